use counterfoil_domain::code::Code;
use counterfoil_domain::effect::Safety;
use counterfoil_domain::id::Digest;
use counterfoil_domain::ports::{ComponentInspector, Inspection, Refused, StepRunner, Unprepared};
use counterfoil_testkit::guest::{EFFECT_AT, EFFECT_RESULT_AT, Guest};

use crate::house;
use crate::port::Script;
use crate::run::model_call;

async fn inspect(bytes: Vec<u8>) -> Result<Inspection, Refused> {
    house(Script::unused()).sandbox.inspect(bytes).await
}

#[tokio::test]
async fn an_upload_is_described() {
    let guest = Guest::echo().describing(
        r#"{"name":"charge-card","summary":"Charges a card once.","input":{"type":"object"},"output":true,
            "effects":[{"kind":"http","safety":"at-most-once","connections":["payments"]}],
            "limits":{"cpu_ms_max":100},"credits":2}"#,
    );
    let bytes = guest.build();
    let inspection = inspect(bytes.clone()).await.expect("accepted");
    assert_eq!(inspection.digest, Digest::of(&bytes));
    assert_eq!(inspection.bytes_len, bytes.len() as u64);
    assert_eq!(inspection.imports, ["counterfoil:block/effects@0.1.0", "counterfoil:block/context@0.1.0"]);
    assert_eq!(inspection.exports, ["counterfoil:block/step@0.1.0"]);
    let descriptor = inspection.descriptor;
    assert_eq!((descriptor.name.as_str(), descriptor.credits), ("charge-card", 2));
    assert_eq!((descriptor.effects[0].safety, descriptor.limits.cpu_ms_max), (Safety::AtMostOnce, Some(100)));
}

#[tokio::test]
async fn an_accepted_upload_is_ready_to_run() {
    let house = house(Script::unused());
    let bytes = Guest::echo().build();
    let digest = Digest::of(&bytes);
    assert!(!house.sandbox.is_ready(digest).await);
    house.sandbox.inspect(bytes).await.expect("accepted");
    assert!(house.sandbox.is_ready(digest).await);
}

#[tokio::test]
async fn a_refused_upload_says_by_which_rule_and_what_to_do() {
    let more_import = |import: &str| {
        Guest::echo().replacing(
            "(component\n  (type $effects-shape",
            &format!("(component {import}\n  (type $effects-shape"),
        )
    };
    let perform =
        format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT})) (unreachable)");
    let endless = "(loop $for-ever (br $for-ever)) (unreachable)";
    let step = "(export \"counterfoil:block/step@0.1.0\" (instance $step))";
    for (guest, code, reason) in [
        (
            more_import("(import \"wasi:keyvalue/store@0.2.0\" (instance)) (import \"env\" (func))"),
            Code::ImportUnknown,
            "unknown: env; unknown: wasi:keyvalue/store@0.2.0",
        ),
        (
            Guest::echo().replacing("counterfoil:block/effects@0.1.0", "counterfoil:block/effects@0.9.0"),
            Code::ImportUnknown,
            "wrong version: counterfoil:block/effects@0.9.0 (the host offers 0.1.0)",
        ),
        (
            Guest::echo().replacing("(export \"started-at\" (func (result u64)))", "(export \"started-at\" (func (result u64))) (export \"now\" (func (result u64)))"),
            Code::ImportUnknown,
            "wrong type: counterfoil:block/context@0.1.0 has no function `now`",
        ),
        (
            Guest::echo().replacing("(field \"status\" u16)", "(field \"status\" u32)"),
            Code::ImportUnknown,
            "wrong type: ",
        ),
        (Guest::echo().replacing(step, ""), Code::ExportMissing, "does not export `counterfoil:block/step@0.1.0`"),
        (
            Guest::echo().replacing(step, "(instance $none) (export \"counterfoil:block/step@0.1.0\" (instance $none))"),
            Code::ExportMissing,
            "lacks a function of the step interface",
        ),
        (
            Guest::echo()
                .replacing("(export \"describe\" (func $describe) (func (result string)))", "(export \"describe\" (func $run) (func (param \"input\" string) (result (result string (error $exported-failure)))))"),
            Code::ExportMissing,
            "other parameters or results",
        ),
        (
            Guest::echo().replacing(step, &format!("{step} (instance $none) (export \"counterfoil:block/reconcile@0.1.0\" (instance $none))")),
            Code::ExportMissing,
            "lacks a function of the reconcile interface",
        ),
        (
            Guest::echo().verifying("(i32.const 0)").replacing("(field \"request\" string) (field \"sent-at\" u64)", "(field \"request\" string) (field \"sent-at\" s64)"),
            Code::ExportMissing,
            "other parameters or results",
        ),
        (Guest::running("(i64.const 0)"), Code::ComponentInvalid, "type mismatch"),
        (Guest::echo().with("(memory 1)"), Code::ComponentInvalid, "multiple memories"),
        (Guest::echo().with("(func (drop (i32x4.relaxed_trunc_f32x4_s (v128.const i32x4 0 0 0 0))))"), Code::ComponentInvalid, "relaxed"),
        (Guest::echo().describing("{}"), Code::DescriptorInvalid, "`name` is missing"),
        (
            Guest::echo().describing(r#"{"name":"a","input":{"properties":{"a":{"type":"money"}}},"output":{}}"#),
            Code::DescriptorInvalid,
            "/input/properties/a/type: this is no JSON Schema that can be used",
        ),
        (Guest::echo().describing_by("(unreachable)"), Code::DescriptorInvalid, "guest_trap"),
        (Guest::echo().describing_by(endless), Code::DescriptorInvalid, "cpu_limit"),
        (Guest::echo().with(&format!("(func $start {endless}) (start $start)")), Code::DescriptorInvalid, "cpu_limit"),
        (Guest::echo().describing_by(&perform).holding(&model_call()), Code::DescriptorInvalid, "`describe` asked for an effect"),
    ] {
        let refused = inspect(guest.build()).await.expect_err(reason);
        assert_eq!(refused.code, code, "{refused}");
        let details = refused.details.iter().map(ToString::to_string);
        let told = std::iter::once(refused.message.clone()).chain(details).collect::<Vec<_>>().join("\n");
        assert!(told.contains(reason), "{reason}: {told}");
        assert!(refused.message.len() < 6_000, "{}", refused.message.len());
    }
}

#[tokio::test]
async fn what_is_no_component_is_refused_before_it_is_compiled() {
    let module = wat::parse_str("(module)").expect("a module");
    for (bytes, reason) in [(module, "core module"), (b"PK\x03\x04".to_vec(), "not a WebAssembly component")]
    {
        let refused = inspect(bytes).await.expect_err(reason);
        assert_eq!(refused.code, Code::ComponentInvalid);
        assert!(refused.message.contains(reason), "{refused}");
    }
}

#[tokio::test]
async fn a_bomb_of_nested_instantiation_is_refused_by_upload_and_by_preparation() {
    let mut level = "(component $c (core module $m) (core instance (instantiate $m)))".to_owned();
    for _ in 0..22 {
        level = format!("(component $c {level} (instance (instantiate $c)) (instance (instantiate $c)))");
    }
    let bytes = wat::parse_str(&level).expect("well formed");
    assert!(bytes.len() < 2_000, "{}", bytes.len());
    assert_eq!(inspect(bytes.clone()).await.expect_err("a bomb").code, Code::ComponentTooLarge);
    let house = house(Script::unused());
    let prepared = house.sandbox.prepare(Digest::of(&bytes), bytes).await;
    assert!(
        matches!(prepared, Err(Unprepared::Refused { code: Code::ComponentTooLarge, .. })),
        "{prepared:?}"
    );
}
