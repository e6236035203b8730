//! Programs for the command line of WASI, which are blocks without knowing it.

use counterfoil_domain::block::with_manifest;
use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{Answer, EffectReply, EffectRequest, HttpResponse};
use counterfoil_domain::id::Digest;
use counterfoil_domain::limits::{MANIFEST_BYTES_MAX, StepLimits};
use counterfoil_domain::ports::{ComponentInspector as _, LogLevel, StepJob, StepReport, StepRunner as _};
use counterfoil_testkit::guest::component;
use serde_json::{Value, json};

use crate::examples::example;
use crate::port::{Act, Script};
use crate::{House, ROOMY, house, job, output, trapped};

async fn ran(house: &House, name: &str, input: &str, limits: StepLimits) -> StepReport {
    let component = house.prepared_example(name).await;
    house.sandbox.run(StepJob { input: input.into(), limits, ..job(component) }).await
}

#[tokio::test]
async fn the_input_is_read_and_what_is_printed_is_the_output() {
    let house = house(Script::unused());
    for input in ["{}", " [1, \"ä\"]\n", &"x".repeat(200_000)] {
        let report = ran(&house, "plain-copy", input, ROOMY).await;
        assert_eq!((report.end, report.logs), (output(input), vec![]));
    }
    for (input, expected, reason) in [
        ("", Code::OutputInvalid, "wrote nothing"),
        ("\n ", Code::OutputInvalid, "wrote nothing"),
        ("12345678901", Code::OutputTooLarge, "larger than 10 bytes"),
    ] {
        let report = ran(&house, "plain-copy", input, StepLimits { output_bytes_max: 10, ..ROOMY }).await;
        let (code, message) = trapped(&report);
        assert!(code == expected && message.contains(reason), "{code}: {message}");
    }
    assert_eq!(
        ran(&house, "plain-copy", "1234567890", StepLimits { output_bytes_max: 10, ..ROOMY }).await.end,
        output("1234567890")
    );
}

/// A program that prints these bytes, as Wasm text escapes them.
fn printing(bytes: &str, len: usize) -> Vec<u8> {
    component(&include_str!("printer.wat").replace("@BYTES@", bytes).replace("@LEN@", &len.to_string()))
}

#[tokio::test]
async fn what_is_printed_has_to_be_text() {
    let house = house(Script::unused());
    for (bytes, len, is_text) in [
        ("\\22\\c3\\a4\\22", 4, true),
        ("\\22\\ff\\22", 3, false),
        // Breaks off within a character.
        ("\\22\\c3", 2, false),
        ("\\ed\\a0\\80", 3, false),
    ] {
        let program = printing(bytes, len);
        let digest = Digest::of(&program);
        house.sandbox.prepare(digest, program).await.expect("accepted");
        let report = house.sandbox.run(job(digest)).await;
        if is_text {
            assert_eq!(report.end, output("\"ä\""));
        } else {
            let (code, message) = trapped(&report);
            let told = message.contains("what it wrote to its standard output is not UTF-8");
            assert!(code == Code::OutputInvalid && told, "{bytes}: {code}: {message}");
        }
    }
}

#[tokio::test]
async fn a_program_that_ends_badly_fails_with_its_status_and_its_last_words() {
    let declined = HttpResponse { status: 402, headers: vec![], body: b"{}".to_vec(), truncated: false };
    let house = house(Script::new(Act::Reply(EffectReply::Answered(Answer::Http(declined)))));
    for (input, words) in
        [(r#"{"order":"o-1","cents":5}"#, "the provider answered 402"), ("no JSON", "expected")]
    {
        let report = ran(&house, "plain-charge", input, ROOMY).await;
        let (code, message) = trapped(&report);
        assert!(code == Code::GuestExit && message.contains("status 1"), "{code}: {message}");
        assert_eq!((report.logs.len(), report.logs[0].level), (1, LogLevel::Warn));
        assert!(report.logs[0].message.contains(words), "{:?}", report.logs);
    }
}

#[tokio::test]
async fn its_request_goes_through_the_connection_that_it_names() {
    let charged = HttpResponse {
        status: 201,
        headers: vec![],
        body: br#"{"id":"ch_1","x":1}"#.to_vec(),
        truncated: false,
    };
    let script = Script::new(Act::Reply(EffectReply::Answered(Answer::Http(charged))));
    let report = ran(&house(script.clone()), "plain-charge", r#"{"order":"o-1","cents":5}"#, ROOMY).await;
    assert_eq!(report.end, output("{\"id\":\"ch_1\"}\n"));
    let [(_, call)] = &script.calls()[..] else { panic!("one call") };
    assert_eq!((call.connection.as_deref(), &call.key, call.safety), (Some("payments"), &None, None));
    let EffectRequest::Http(request) = &call.request else { panic!("{call:?}") };
    assert_eq!((request.method.as_str(), request.url.as_str()), ("POST", "/charges"));
    let body: Value = serde_json::from_slice(&request.body).expect("JSON");
    assert_eq!(body, json!({ "order": "o-1", "cents": 5 }));
}

#[tokio::test]
async fn a_manifest_says_what_a_program_is() {
    let house = house(Script::unused());
    let manifest = br#"{"name":"plain-copy","summary":"Copies.","input":true,"output":true,"credits":2}"#;
    let bytes = with_manifest(&example("plain-copy"), manifest);
    let inspection = house.sandbox.inspect(bytes.clone()).await.expect("accepted");
    assert_eq!((inspection.descriptor.name.as_str(), inspection.descriptor.credits), ("plain-copy", 2));
    // A manifest that comes later counts, and makes another version of the block.
    let again = with_manifest(&bytes, &manifest.map(|byte| if byte == b'2' { b'3' } else { byte }));
    let other = house.sandbox.inspect(again).await.expect("accepted");
    assert_eq!(other.descriptor.credits, 3);
    assert_ne!(other.digest, inspection.digest);
}

#[tokio::test]
async fn a_program_without_a_manifest_that_says_what_it_is_is_refused() {
    let house = house(Script::unused());
    let plain = example("plain-copy");
    let long = vec![b' '; usize::try_from(MANIFEST_BYTES_MAX).expect("small") + 1];
    for (bytes, code, reason) in [
        (plain.clone(), Code::ManifestMissing, "came without a manifest"),
        (with_manifest(&plain, b"{}"), Code::DescriptorInvalid, "the manifest is not a descriptor"),
        (with_manifest(&plain, b"\xff"), Code::DescriptorInvalid, "the manifest is not a descriptor"),
        (with_manifest(&plain, &long), Code::ComponentTooLarge, "bytes of a manifest"),
        (with_manifest(&example("charge-card"), b"{}"), Code::ManifestNeedless, "describes itself"),
    ] {
        let refused = house.sandbox.inspect(bytes).await.expect_err(reason);
        assert!(refused.code == code && refused.message.contains(reason), "{}: {refused}", refused.code);
    }
}
