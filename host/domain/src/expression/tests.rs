//! The promise: what is refused when it is saved, what is refused before it runs, and what the rest comes to.

use std::time::{Duration, Instant};

use insta::assert_snapshot;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

/// How much longer an evaluation may take than to read the event that it sees. What is refused would take thousands.
const READS_PER_EVALUATION_MAX: u32 = 50;

#[derive(Deserialize)]
struct Case {
    expression: String,
    verdict: String,
    why: String,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../../cases/expressions.json")).expect("the cases are JSON")
}

/// 15,000 items, a text of 32 KiB and one of 64.
fn large_event() -> Value {
    let items: Vec<Value> = (0..15_000).map(|price| json!({ "price": price % 20 })).collect();
    json!({ "data": {
        "items": items,
        "s": "s".repeat(32 << 10),
        "name": "a".repeat(64 << 10),
        "stage": "qualified",
        "owner": "ada",
        "n": 42,
        "big": 1,
    }})
}

#[test]
fn every_case_ends_as_told() {
    let event = large_event();
    let enriched = json!({ "tier": "gold" });
    let mut scope = Scope::of_event(&event);
    scope.add_step("enrich", &enriched);
    let mut answers = Vec::new();
    for Case { expression: source, verdict, why } in cases() {
        let seen = match Expression::compile(&source) {
            Err(error) => format!("refuse\n{error}\n{}", error.pointed(&source)),
            Ok(expression) => match expression.evaluate(&scope) {
                Ok(value) => format!("allow\n{value}"),
                Err(error @ EvaluationError { reason: Reason::TooCostly { .. }, .. }) => {
                    format!("too-costly-at-run\n{error}")
                }
                Err(error) => format!("error-at-run\n{error}"),
            },
        };
        let told = if verdict == "allow-bounded" { "allow" } else { &verdict };
        assert_eq!(seen.lines().next(), Some(told), "{source} ({why})\n{seen}");
        let shortened: Vec<String> = seen.lines().map(|line| line.chars().take(160).collect()).collect();
        answers.push(format!("{why}: {}", shortened.join("\n")));
    }
    let told = answers.join("\n\n");
    assert_snapshot!(told);
}

/// Five milliseconds in a release build on a quiet machine. Here the machine is not quiet: the yardstick is what it
/// takes beside the evaluation to read the same event, and one of several tries must hold.
#[test]
fn what_is_not_refused_is_done_in_no_time() {
    let event = large_event();
    let text = event.to_string();
    let scope = Scope::of_event(&event);
    for Case { expression: source, .. } in cases() {
        let Ok(expression) = Expression::compile(&source) else { continue };
        let mut tries = Vec::new();
        let is_quick = (0..10).any(|_| {
            let reading = timed(|| serde_json::from_str::<Value>(&text).is_ok());
            let evaluating = timed(|| expression.evaluate(&scope).is_ok());
            tries.push((reading, evaluating));
            evaluating < reading * READS_PER_EVALUATION_MAX
        });
        assert!(is_quick, "{source}: {tries:?}");
    }
}

/// One to three milliseconds in a release build, where the event is read in four: lists are what conditions are asked about.
#[test]
fn a_plain_condition_on_a_long_list_is_told_sooner_than_the_list_is_read() {
    let event = large_event();
    let text = event.to_string();
    let scope = Scope::of_event(&event);
    for source in [
        "event.data.items.filter(x, x.price > 10).size() > 3",
        "event.data.items.all(x, x.price >= 0 && x.price < 20)",
        "event.data.items.exists(x, x.price == 20 || x.price < 0)",
    ] {
        let expression = Expression::compile(source).expect("it compiles");
        let mut tries = Vec::new();
        let is_quick = (0..20).any(|_| {
            let reading = timed(|| serde_json::from_str::<Value>(&text).is_ok());
            let evaluating = timed(|| expression.evaluate(&scope).is_ok());
            tries.push((reading, evaluating));
            evaluating < reading
        });
        assert!(is_quick, "{source}: {tries:?}");
    }
}

/// Whatever the values are, and however they fail.
#[test]
fn a_plain_condition_comes_to_what_the_evaluator_makes_of_it() {
    let lists = [
        json!([]),
        json!([{ "a": 1, "b": "x", "c": { "d": true } }, { "a": 7, "b": "y", "c": { "d": false } }]),
        json!([{ "a": 2.5, "b": "x", "c": { "d": true } }, { "a": 1, "b": "é", "c": { "d": true } }]),
        json!([{ "a": 5, "b": "x", "c": { "d": true } }, { "b": "x" }]),
        json!([{ "b": "x" }, { "a": 1, "b": "x", "c": { "d": true } }]),
        json!([{ "a": null, "b": 1, "c": [] }]),
        json!([{ "a": 18_446_744_073_709_551_615_u64, "b": "", "c": { "d": 1 } }]),
        json!([1, 2, 3]),
        json!(["x", "y", null]),
        json!([true, false]),
        json!({ "a": 1, "b": 2 }),
        json!("text"),
        Value::Null,
    ];
    let tests = [
        "x.a > 2",
        "x.a >= 2.5",
        "x.a == 1",
        "x.a != x.a",
        "1 < x.a",
        "x.b == 'x'",
        "x.b < 'y'",
        "x.c.d",
        "!x.c.d",
        "x.c.d == true",
        "x.a > 2 && x.b == 'x'",
        "x.a > 2 || x.c.d",
        "!(x.a < 2) || x.b != 'x'",
        "x",
        "x > 1",
        "x == 'x'",
        "x == null",
        "true",
        "x.a + 1 > 2",
        "has(x.a)",
        "x.a > event.n",
        "x.a > 2 == x.c.d",
    ];
    let mut quick = 0;
    for test in tests {
        for form in [
            "event.list.filter(x, TEST)",
            "event.list.all(x, TEST)",
            "event.list.exists(x, TEST)",
            "event.list.filter(x, TEST).map(y, y) == event.list || event.n > 0",
            "event.n > 5 ? event.list.filter(x, TEST).size() : event.list.size()",
        ] {
            let ours = Expression::compile(&form.replace("TEST", test)).expect("it compiles");
            let theirs = Expression { quick: None, ..ours.clone() };
            quick += usize::from(ours.quick.is_some());
            for list in &lists {
                for n in [1, 9] {
                    let event = json!({ "list": list, "n": n });
                    let scope = Scope::of_event(&event);
                    assert_eq!(
                        ours.evaluate(&scope),
                        theirs.evaluate(&scope),
                        "{} on {event}",
                        ours.source()
                    );
                }
            }
        }
    }
    assert!(quick > 70, "only {quick} of these are told here");
}

#[expect(clippy::disallowed_methods, reason = "how long an evaluation takes is what is promised")]
fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let begun = Instant::now();
    std::hint::black_box(work());
    begun.elapsed()
}

/// What each of these comes to, one line each.
fn answers(sources: &[&str]) -> String {
    let event = json!({ "id": "e-1", "data": {
        "n": 42, "f": 1.5, "huge": 18_446_744_073_709_551_615_u64, "text": "tea", "nothing": null, "yes": true,
        "list": ["x", "y"], "map": { "b": 1, "a": [1, 2], "c": { "d": null } }, "lead-id": 7,
    }});
    let input = json!({ "dry": false });
    let run = json!({ "lineage": "lin_1" });
    let output = json!({ "tier": "gold" });
    let mut scope = Scope::new(&event, &input, &run);
    scope.add_step("decide/enrich-lead", &output);
    let answer = |source: &&str| match Expression::compile(source) {
        Err(error) => format!("{source}\n  refused: {error}, at {}", error.offset),
        Ok(expression) => match expression.evaluate(&scope) {
            Ok(value) => format!("{source}\n  {value}"),
            Err(error) => format!("{source}\n  {}: {error}", error.code()),
        },
    };
    sources.iter().map(answer).collect::<Vec<_>>().join("\n")
}

#[test]
fn values_keep_their_types() {
    let told = answers(&[
        "event.data.n",
        "event.data.n + 1",
        "event.data.f * 2.0",
        // A bare path hands the value over; in an expression, an integer beyond i64 is a double.
        "event.data.huge",
        "[event.data.huge]",
        "event.data.map",
        "{'z': event.data.map, 'a': 1u}",
        "event.data.nothing == null",
        "event.data['lead-id']",
        "input.dry || run.lineage == 'lin_1'",
        "steps['enrich-lead'].output.tier",
        "steps",
        "has(steps.other) ? steps.other.output : 'none'",
        "has(event.data.n) && !has(event.data.m)",
        "type(event.data.n) == int && type(event.data.f) == double && type(event.data.map) == map",
        "event.data.map == {'a': [1, 2], 'b': 1, 'c': {'d': null}} && {'b': 1} != event.data.map",
        "'a' in event.data.map && !('d' in event.data.map) && 'x' in event.data.list && size(event.data.map) == 3",
        "event.data.list.map(event, event + '!')",
        "event.data.list.map(x, {'id': x, 'of': event.id})",
        "event.data.text.matches('^t[aeiou]+$') && matches(event.data.text, 'e') && !event.data.text.matches('\\\\d')",
        "string(event.data.f) + event.data.text",
    ]);
    assert_snapshot!(told);
}

#[test]
fn failures_name_expression_and_path_and_never_a_value() {
    let told = answers(&[
        "event.data.n / 0",
        "event.data.n % 0",
        "-(-9223372036854775807 - 1)",
        "event.data.missing.deep == 1",
        "event.data.map.c.e == 1",
        "event.data['no such'].x + 1",
        "steps.other.output",
        "event.data.text.length > 1",
        "event.data.nothing.x == 1",
        "{'a': 1}.b",
        "event.data.list[2]",
        "event.data.n + event.data.f",
        "event.data.text + event.data.list",
        "event.data.n < event.data.text",
        "!event.data.text",
        "event.data.text ? 1 : 2",
        "event.data.n && true",
        "event.data.n in event.data.n",
        "event.data.n.map(x, x)",
        "int(event.data.text)",
        "size(event.data.n)",
        "event.data.n.matches('4')",
        "{'a': 1, 'a': 2}",
        "1.0 / 0.0",
        "b'bytes'",
        "{1: 2}",
        "type(1)",
    ]);
    assert_snapshot!(told);
}

#[test]
fn what_cannot_be_saved_is_told_with_its_place() {
    let too_deep = format!("{}1{}", "[".repeat(33), "]".repeat(33));
    let long_chain = ["1"; 40].join(" + ");
    let long_path = format!("event{}", ".a".repeat(40));
    let too_long = format!("'{}'", "a".repeat(1_023));
    let told = answers(&[
        "",
        "1 +",
        "(1",
        "event.data.stage = 'x'",
        "event.data.stage == 'x",
        "lead.id",
        ".event.id",
        "size(foo)",
        "unknown_function(1)",
        "event.data.lower()",
        "steps.enrich-lead.output",
        "event.data.list.map(x)",
        "event.data.list.map(x.y, 1)",
        "event.data.list.all(x, event.data.list.exists(y, x == y))",
        "event.data.list.filter(x, x != 'x').map(x, x + 'é' + y)",
        "Lead{id: 1}",
        "event.?data",
        "event.`data`",
        "event.data.text.matches(event.data.text)",
        "event.data.text.matches('(x')",
        "event.data.text.matches('\\\\w{200}')",
        "event.data.text.matches('a', 'b')",
        "99999999999999999999",
        &too_deep,
        &long_chain,
        &long_path,
        &too_long,
    ]);
    assert_snapshot!(told);
}

#[test]
fn a_trigger_sees_its_event_alone() {
    let refused = |source| Expression::compile_for(source, &[Root::Event]).expect_err("refused").to_string();
    assert_eq!(refused("steps.a.output"), "`steps` does not exist here, only `event`");
    assert!(Expression::compile_for("event.data.score > 10", &[Root::Event]).is_ok());
}

#[test]
fn maps_are_visited_in_key_order() {
    let names: Vec<String> = (0..100).map(|n| format!("k{n:02}")).collect();
    let fields: serde_json::Map<_, _> = names.iter().rev().map(|name| (name.clone(), json!(1))).collect();
    let event = Value::Object(fields);
    for source in ["event.map(k, k)", "[event][0].map(k, k)", "event.filter(k, event[k] == 1)"] {
        let expression = Expression::compile(source).expect("it compiles");
        let keys = expression.evaluate(&Scope::of_event(&event)).expect("it evaluates");
        assert_eq!(keys, json!(names), "{source}");
    }
}

#[test]
fn growth_is_counted_before_it_happens() {
    let lead = json!({ "a": "a".repeat(50), "b": "b", "c": "c", "d": "d" });
    let event =
        json!({ "s": "s".repeat(1 << 10), "list": vec![vec!["x"; 100]; 100], "leads": vec![lead; 1_000] });
    let scope = Scope::of_event(&event);
    let doubled = format!("[event.s]{}", ".map(x, x + x)".repeat(20));
    let folded = format!("event.list{}", ".map(x, x + x)".repeat(20));
    let literal = format!("event.list.map(x, '{}')", "a".repeat(900));
    for (source, is_allowed) in [
        ("[event.s].map(x, x + x).size()", true),
        (doubled.as_str(), false),
        (folded.as_str(), false),
        // Unequal elements count for what they are, not each for the largest.
        ("event.list.map(x, x[0]).size()", true),
        ("event.list.map(x, x + x).size()", true),
        ("event.leads.map(x, {'a': x.a, 'b': x.b, 'c': x.c, 'd': x.d}).size()", true),
        ("event.leads.map(x, [x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x]).size()", false),
        (
            "event.leads.map(x, [x.a, x.a, x.a, x.a, x.a, x.a, x.a, x.a, x.a, x.a, x.a, x.a, x.a]).size()",
            false,
        ),
        ("event.list.map(x, event.list).size()", false),
        ("event.list.map(x, {'x': x, 's': event.s}).size()", true),
        (literal.as_str(), true),
    ] {
        let result = Expression::compile(source).expect("it compiles").evaluate(&scope);
        let is_too_costly = matches!(result, Err(EvaluationError { reason: Reason::TooCostly { .. }, .. }));
        assert_eq!(is_too_costly, !is_allowed, "{source}: {result:?}");
    }
}

/// Runs on the least stack that a host gives a thread, and an unoptimised build uses several times what it must.
#[test]
fn no_text_overflows_the_stack() {
    let forms =
        ["(", "[", "{1:", "f(", "!", "-", "1?1:", "a.", "a[", "'", "\"\"\"", "1+", "1<", "a||", "{", ")"];
    let texts = forms.map(|form| form.repeat(EXPRESSION_BYTES_MAX / form.len()));
    let closed =
        [("(", ")"), ("[", "]"), ("{1:", "}"), ("size(", ")"), ("!(", ")"), ("1?(", "):2"), ("-(", ")")].map(
            |(open, close)| {
                let times = EXPRESSION_BYTES_MAX / (open.len() + close.len()) - 1;
                format!("{}1{}", open.repeat(times), close.repeat(times))
            },
        );
    let deepest = format!("{}1{}", "(".repeat(32), ")".repeat(32));
    let checked = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
        for text in texts.iter().chain(&closed) {
            assert!(Expression::compile(text).is_err(), "{text}");
        }
        Expression::compile(&deepest).expect("32 are allowed").evaluate(&Scope::default())
    });
    let value = checked.expect("a thread starts").join().expect("it does not overflow");
    assert_eq!(value, Ok(json!(1)));
}

/// Text of pieces that mean something to the parser.
fn expressions() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "event",
        ".",
        "data",
        "n",
        "s",
        "list",
        "map",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "?",
        "+",
        "-",
        "*",
        "/",
        "%",
        "==",
        "<",
        "&&",
        "||",
        "!",
        "in",
        "1",
        "0",
        "2.5",
        "'a'",
        "\"",
        "'",
        "b'x'",
        "r'\\d'",
        "null",
        "true",
        " ",
        ".map(x, ",
        ".all(x, ",
        ".exists_one(x, ",
        "x",
        "size(",
        "has(",
        "string(",
        "int(",
        ".matches('a+')",
        "//",
        "\n",
        "é",
        "\\",
        "9223372036854775807",
    ];
    proptest::collection::vec(proptest::sample::select(PIECES), 1..30).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_text_is_too_much_for_the_third_party_code(source in expressions()) {
        let event = json!({ "data": { "n": 1, "s": "text", "list": [1, "a", null], "map": { "k": 1 } } });
        match Expression::compile(&source) {
            Err(error) => {
                prop_assert_ne!(&error.message, "the parser gave up");
                prop_assert!(source.is_char_boundary(error.offset), "{} in {}", error.offset, source);
            }
            Ok(expression) => {
                let value = expression.evaluate(&Scope::of_event(&event));
                let gave_up = Err(EvaluationError {
                    expression: source.clone(),
                    reason: Reason::Failed("the evaluator gave up".to_owned()),
                });
                prop_assert_ne!(&value, &gave_up);
                prop_assert_eq!(value, expression.evaluate(&Scope::of_event(&event)));
            }
        }
    }
}

#[test]
fn templates_keep_types_and_tell_places() {
    let event = json!({ "id": 7, "tags": ["a"] });
    let scope = Scope::of_event(&event);
    let template = |source: Value| Template::compile_all(&source);
    let rendered = template(json!({
        "plain": "text", "id": "=event.id", "list": ["=event.tags", "==event.tags", "=", null, 1.5, true],
        "=event.id": "a name is a name",
    }));
    let errors = rendered.expect_err("`=` alone is no expression");
    assert_eq!(errors.iter().map(|error| error.pointer.as_str()).collect::<Vec<_>>(), ["/list/2"]);

    let rendered = template(json!({
        "plain": "text", "id": "=event.id", "list": ["=event.tags", "==event.tags", null, 1.5, true],
        "=event.id": "a name is a name",
    }));
    assert_eq!(
        rendered.expect("it compiles").render(&scope),
        Ok(json!({
            "plain": "text", "id": 7, "list": [["a"], "=event.tags", null, 1.5, true],
            "=event.id": "a name is a name",
        }))
    );

    let failing = template(json!({ "a/b": ["=event.id / 0"] })).expect("it compiles").render(&scope);
    assert_eq!(
        failing.expect_err("it fails").to_string(),
        "a division by zero in `event.id / 0`, at `/a~1b/0`"
    );
    let large = json!({ "text": "x".repeat(200 << 10) });
    let doubled = template(json!(["=event.text", "=event.text"])).expect("it compiles");
    assert_eq!(doubled.render(&Scope::of_event(&large)), Err(RenderError::TooLarge));
}
