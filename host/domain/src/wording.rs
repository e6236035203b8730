//! What serde has against a value, in words that say what to write.

/// The message of an error of serde, for whoever wrote the value. One that is not known here stays as it is.
pub fn told(message: &str) -> String {
    // serde_json says where in the text, behind all else.
    let (what, place) = match message.rfind(" at line ") {
        Some(at) => message.split_at(at),
        None => (message, ""),
    };
    let known = missing(what).or_else(|| unknown(what)).or_else(|| mistaken(what));
    known.map_or_else(|| message.to_owned(), |known| known + place)
}

fn missing(what: &str) -> Option<String> {
    if let Some(field) = quoted(what, "missing field ") {
        return Some(format!("`{field}` is missing"));
    }
    quoted(what, "duplicate field ").map(|field| format!("`{field}` is given twice"))
}

fn unknown(what: &str) -> Option<String> {
    let (given, rest, is_field) = match what.strip_prefix("unknown field `") {
        Some(rest) => (rest, "there is no", true),
        None => (what.strip_prefix("unknown variant `")?, "is not known here", false),
    };
    let (given, expected) = given.split_once("`, ")?;
    let known = expected.strip_prefix("expected ");
    Some(match (is_field, known) {
        (true, Some(known)) => {
            let known = known.strip_prefix("one of ").unwrap_or(known);
            format!("{rest} `{given}` here; what there is: {known}")
        }
        (true, None) => format!("{rest} `{given}` here, nor anything else"),
        (false, known) => format!("`{given}` {rest}; write {}", known?),
    })
}

fn mistaken(what: &str) -> Option<String> {
    let found = what.strip_prefix("invalid type").or_else(|| what.strip_prefix("invalid value"))?;
    let found = found.trim_start_matches([':', ' ']);
    let (found, expected) = found.rsplit_once(", expected ")?;
    let found = match found {
        "map" => "a map",
        "sequence" => "a list",
        "null" | "unit value" => "nothing",
        other => other.find(['`', '"']).map_or(other, |value| &other[value..]),
    };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, not below 0,",
        "i32" | "i64" => "a whole number",
        "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "a string" | "string" => "a text",
        "a sequence" => "a list",
        expected if expected.starts_with("struct ") => "a map",
        other => other,
    };
    Some(format!("{expected} is expected here, and this is {found}"))
}

fn quoted<'a>(what: &'a str, beginning: &str) -> Option<&'a str> {
    what.strip_prefix(beginning)?.strip_prefix('`')?.strip_suffix('`')
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only what cannot be read is looked at")]
    struct Form {
        name: String,
        #[serde(default)]
        count: u32,
        #[serde(default)]
        kind: Option<Kind>,
        #[serde(default)]
        list: Vec<bool>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        One,
        Two,
        Three,
    }

    #[test]
    fn what_cannot_be_read_is_told_in_words_that_say_what_to_write() {
        for (text, expected) in [
            ("{}", "`name` is missing at line 1 column 2"),
            (r#"{"name":"a","name":"b"}"#, "`name` is given twice at line 1 column 18"),
            (
                r#"{"nam":"a"}"#,
                "there is no `nam` here; what there is: `name`, `count`, `kind`, `list` at line 1 column 6",
            ),
            (
                r#"{"name":"a","kind":"four"}"#,
                "`four` is not known here; write one of `one`, `two`, `three` at line 1 column 25",
            ),
            (r#"{"name":7}"#, "a text is expected here, and this is `7` at line 1 column 9"),
            (r#"{"name":{}}"#, "a text is expected here, and this is a map at line 1 column 8"),
            (
                r#"{"name":"a","count":-1}"#,
                "a whole number, not below 0, is expected here, and this is `-1` at line 1 column 22",
            ),
            (
                r#"{"name":"a","list":["x"]}"#,
                "`true` or `false` is expected here, and this is \"x\" at line 1 column 23",
            ),
            ("7", "a map is expected here, and this is `7` at line 1 column 1"),
            ("{", "EOF while parsing an object at line 1 column 1"),
        ] {
            let error = serde_json::from_str::<Form>(text).expect_err(text).to_string();
            assert_eq!(told(&error), expected, "{error}");
        }
    }
}
