use crate::prelude::*;

mod charging {
    use crate::block;
    use crate::prelude::*;

    #[derive(Deserialize, JsonSchema)]
    pub(super) struct Charge {
        pub(super) order: String,
        #[serde(default)]
        pub(super) cents: u64,
    }

    #[derive(Serialize, JsonSchema)]
    pub(super) struct Charged {
        #[serde(skip_serializing_if = "Option::is_none")]
        pub(super) id: Option<String>,
    }

    /// Charges a card
    /// once.
    ///
    /// Only the first paragraph is the summary.
    #[block(
        effects(
            http(connection = "payments", safety = "at-most-once"),
            http(hosts = ["fx.example", "*.rates.example"], safety = "read-only"),
            mail(connection = "post"),
            emit,
            storage(safety = "read-only"),
            storage,
        ),
        credits = 3,
    )]
    pub(super) fn charge_card(input: Charge) -> Result<Charged, Failure> {
        match input.cents {
            0 => Err(Failure::permanent("nothing_to_charge", "no cents")),
            cents => Ok(Charged { id: Some(format!("{}-{cents}", input.order)) }),
        }
    }

    pub(super) fn described() -> String {
        block::describe::<charge_card>()
    }

    pub(super) fn run(input: &str) -> Result<String, Failure> {
        block::run::<charge_card>(input)
    }
}

mod plain {
    use crate::block;
    use crate::prelude::*;

    #[block]
    fn echo(input: Value) -> Result<Value, EffectError> {
        match input {
            Value::Null => Err(EffectError::Limit("nothing".into())),
            input => Ok(input),
        }
    }

    pub(super) fn described() -> String {
        block::describe::<echo>()
    }

    pub(super) fn run(input: &str) -> Result<String, Failure> {
        block::run::<echo>(input)
    }
}

fn parsed(descriptor: &str) -> Value {
    serde_json::from_str(descriptor).expect("a descriptor is JSON")
}

#[test]
fn a_block_describes_itself() {
    assert_eq!(
        parsed(&charging::described()),
        json!({
            "name": "charge-card",
            "summary": "Charges a card once.",
            "input": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "title": "Charge",
                "type": "object",
                "properties": {
                    "order": { "type": "string" },
                    "cents": { "type": "integer", "format": "uint64", "minimum": 0, "default": 0 },
                },
                "required": ["order"],
            },
            "output": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "title": "Charged",
                "type": "object",
                "properties": { "id": { "type": ["string", "null"] } },
            },
            "effects": [
                { "kind": "http", "safety": "at-most-once", "connections": ["payments"], "hosts": [] },
                {
                    "kind": "http",
                    "safety": "read-only",
                    "connections": [],
                    "hosts": ["fx.example", "*.rates.example"],
                },
                { "kind": "mail", "safety": "at-most-once", "connections": ["post"], "hosts": [] },
                { "kind": "emit", "safety": "at-most-once", "connections": [], "hosts": [] },
                { "kind": "storage", "safety": "read-only", "connections": [], "hosts": [] },
                { "kind": "storage", "safety": "at-most-once", "connections": [], "hosts": [] },
            ],
            "limits": {},
            "credits": 3,
        })
    );
    assert_eq!(
        parsed(&plain::described()),
        json!({
            "name": "echo",
            "summary": "",
            "input": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "title": "AnyValue",
            },
            "output": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "title": "AnyValue",
            },
            "effects": [],
            "limits": {},
            "credits": 0,
        })
    );
}

#[test]
fn a_block_runs_on_json() {
    let charge = charging::run;
    let echo = plain::run;
    assert_eq!(charge(r#"{"order":"o","cents":5}"#), Ok(r#"{"id":"o-5"}"#.into()));
    assert_eq!(echo(r#"{"b":1,"a":[2.5]}"#).map(|text| text.len()), Ok(17));
    assert_eq!(charge(r#"{"order":"o"}"#), Err(Failure::permanent("nothing_to_charge", "no cents")));
    assert_eq!(echo("null"), Err(Failure::permanent("limit", "a limit of this step was reached: nothing")));
    for (input, message) in [
        ("", "the input does not fit this block: EOF while parsing a value at line 1 column 0"),
        ("{}", "the input does not fit this block: missing field `order` at line 1 column 2"),
        (
            r#"{"order":1}"#,
            "the input does not fit this block: invalid type: integer `1`, expected a string \
             at line 1 column 10",
        ),
    ] {
        assert_eq!(charge(input), Err(Failure::permanent("invalid_input", message)), "{input}");
    }
}

mod asked {
    #![expect(clippy::unnecessary_wraps, reason = "a block returns a result")]

    use crate::prelude::*;
    use crate::reconcile::Verify as _;

    #[block(verify = plainly)]
    fn plain(input: Value) -> Result<Value, Failure> {
        Ok(input)
    }

    fn plainly(effect: &UnknownEffect) -> Verdict {
        Verdict::inconclusive(format!("{} is not found", effect.key))
    }

    mod fallible {
        use crate::prelude::*;
        use crate::reconcile::Verify as _;

        #[block(verify = super::with_a_result)]
        fn fallible(input: Value) -> Result<Value, Failure> {
            Ok(input)
        }

        pub(super) fn ask(effect: &UnknownEffect) -> Verdict {
            fallible::verify(effect)
        }
    }

    fn with_a_result(effect: &UnknownEffect) -> Result<Verdict, Failure> {
        match effect.key.as_str() {
            "charge" => Ok(Verdict::applied(http::Answer::new_json(201, &json!({ "id": 1 })))),
            _ => Err(Failure::permanent("lost", "nobody knows it")),
        }
    }

    pub(super) fn ask(key: &str) -> [Verdict; 2] {
        let effect = UnknownEffect {
            id: "eff_1".into(),
            kind: "http".into(),
            node: "pay".into(),
            key: key.into(),
            idempotency_key: None,
            request: json!({}),
            sent_at: std::time::SystemTime::UNIX_EPOCH,
        };
        [plain::verify(&effect), fallible::ask(&effect)]
    }
}

#[test]
fn a_block_says_what_became_of_its_effect_with_or_without_a_result() {
    use crate::Verdict;

    let applied = http::Answer::new_json(201, &json!({ "id": 1 }));
    assert_eq!(applied.header("content-type"), Some("application/json"));
    let not_found = |key: &str| Verdict::inconclusive(format!("{key} is not found"));
    assert_eq!(asked::ask("charge"), [not_found("charge"), Verdict::Applied(applied)]);
    let lost = Verdict::Inconclusive("lost: nobody knows it".into());
    assert_eq!(asked::ask("other"), [not_found("other"), lost]);
}
