//! Answers in a form that is the same on every run: ids numbered in order of appearance, times and lengths left out.

use std::collections::HashMap;

use chrono::DateTime;
use serde_json::Value;

const PREFIXES: [&str; 9] = ["ten", "key", "wf", "wfv", "evt", "run", "lin", "stp", "eff"];
const ID_LEN: usize = 26;

/// A JSON answer, indented.
pub(crate) fn json(value: &Value) -> String {
    let mut value = value.clone();
    hide_times(&mut value);
    ids(&serde_json::to_string_pretty(&value).expect("writes"))
}

fn hide_times(value: &mut Value) {
    match value {
        Value::String(text) if DateTime::parse_from_rfc3339(text).is_ok() => *text = "(time)".into(),
        Value::Array(items) => items.iter_mut().for_each(hide_times),
        Value::Object(fields) => {
            for (name, value) in fields {
                if matches!(name.as_str(), "ms" | "duration_ms") {
                    *value = "(length)".into();
                }
                if name == "request_id" {
                    *value = "(request)".into();
                }
                hide_times(value);
            }
        }
        _ => {}
    }
}

/// Numbers the ids in a text.
pub(crate) fn ids(text: &str) -> String {
    let mut seen: HashMap<String, String> = HashMap::new();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let is_sign = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
    let mut told = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|sign| !is_sign(sign)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        told.push_str(&numbered(word, &mut seen, &mut counts));
        let next = behind.chars().next().map_or(0, char::len_utf8);
        told.push_str(&behind[..next]);
        rest = &behind[next..];
    }
    told
}

fn numbered<'a>(
    word: &'a str,
    seen: &mut HashMap<String, String>,
    counts: &mut HashMap<&'a str, usize>,
) -> String {
    let Some((prefix, id)) = word.split_once('_') else { return word.into() };
    if !PREFIXES.contains(&prefix) || id.len() != ID_LEN {
        return word.into();
    }
    seen.entry(word.into())
        .or_insert_with(|| {
            let count = counts.entry(prefix).or_default();
            *count += 1;
            format!("{prefix}_{count}")
        })
        .clone()
}

/// What a page says, without its markup: a line for each element that begins one.
pub(crate) fn page(html: &str) -> String {
    let main = html.split_once("<main").map_or(html, |(_, main)| main);
    let main = main.split_once('>').map_or(main, |(_, main)| main);
    let mut told = String::new();
    let mut rest = main;
    while let Some((text, tag)) = rest.split_once('<') {
        told.push_str(text);
        let (tag, behind) = tag.split_once('>').expect("a tag ends");
        rest = behind;
        let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap_or_default();
        if name == "time" && !tag.starts_with('/') {
            told.push_str("(time)");
            rest = rest.split_once("</time>").expect("a time ends").1;
        }
        if tag == "strong class=\"age\"" {
            told.push_str("(age)");
            rest = rest.split_once("</strong>").expect("an age ends").1;
        }
        if let Some(control) = control(name, tag) {
            told.push_str(&control);
        }
        if matches!(
            name,
            "h1" | "h2" | "h3" | "p" | "li" | "tr" | "div" | "pre" | "summary" | "legend" | "label"
        ) {
            told.push('\n');
        }
        if matches!(name, "td" | "th" | "dt" | "dd") && tag.starts_with('/') {
            told.push_str(" | ");
        }
    }
    let lines = told.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "|");
    ids(&lines.collect::<Vec<_>>().join("\n"))
}

/// What a form control holds.
fn control(name: &str, tag: &str) -> Option<String> {
    let attribute = |wanted: &str| {
        let (_, behind) = tag.split_once(&format!(" {wanted}=\""))?;
        behind.split_once('"').map(|(value, _)| value.to_owned())
    };
    match (name, attribute("name")?) {
        (_, name) if name == "form_token" => None,
        ("input" | "button", name) => {
            let checked = if tag.contains(" checked") { " (chosen)" } else { "" };
            Some(format!("[{name}={}{checked}]", attribute("value").unwrap_or_default()))
        }
        _ => None,
    }
}
