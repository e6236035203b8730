//! Blocks that hand the host what no compiler would: text that is none, cases that there are not, pointers into each
//! other and past the end.

use counterfoil_domain::effect::{
    CLAIM_WITHIN, EffectCall, EffectRequest, HttpRequest, MailMessage, Safety, StorageRequest,
};

use crate::guest::{EFFECT_AT, EFFECT_RESULT_AT, Guest};
use crate::random::Random;

/// Where `run` and the allocator of a guest leave what they are asked for.
const RESULT_AT: u32 = 16;
const RESULT_BYTES_LEN: usize = 48;
/// Calls that a host answers, before those that it may not: there is room for so many between the first and the texts.
const SOUND_CALLS_MAX: u64 = 4;
const SOUND_CALL_BYTES_LEN: u32 = 128;
/// The queue that workers are known to serve.
pub(super) const QUEUE: &str = "fuzz";
/// Of a hundred blocks, those that are asked what became of a call whose answer is lost: a second or more each.
const VERIFYING_PERCENT: u64 = 8;
/// Where what a block says then lies, behind the calls.
const VERDICT_AT: u32 = 896;
/// Where texts of a guest lie.
const TEXTS_AT: u32 = 1_024;
/// Bytes that are no text.
const NOISE_AT: u32 = 62_000;
const NOISE_BYTES_LEN: u32 = 2_000;
/// Its own limit of CPU: most random loops have no end.
const DESCRIPTOR: &str = r#"{"name":"fuzz","input":true,"output":true,"limits":{"cpu_ms_max":100},"effects":[
    {"kind":"http","safety":"at-most-once","connections":["payments"]},{"kind":"emit","safety":"at-most-once"},
    {"kind":"storage","safety":"at-most-once"},{"kind":"mail","safety":"at-most-once"},
    {"kind":"worker","safety":"at-most-once"}]}"#;

/// A block that calls the host a few times, and what it hands over is damaged.
pub(super) fn block(random: &mut Random) -> Vec<u8> {
    let mut guest = Guest::running("(unreachable)").describing(DESCRIPTOR);
    let mut record = guest.lowered(&call(random));
    damage(&mut record, random);
    let mut sound = Vec::new();
    let verifies = random.percent(VERIFYING_PERCENT);
    // What comes behind calls that were answered is met by a host that has something to keep.
    let calls = if verifies || random.percent(60) { random.between(1, SOUND_CALLS_MAX) } else { 0 };
    let lost = verifies.then(|| random.below(calls));
    for nth in 0..calls {
        let at = EFFECT_AT + SOUND_CALL_BYTES_LEN * (1 + u32::try_from(nth).unwrap_or_default());
        let call = sound_call(random, nth, lost == Some(nth));
        let call = guest.lowered(&call);
        guest = guest.holding_bytes(at, &call);
        sound.push(format!("(call $perform (i32.const {at}) (i32.const {EFFECT_RESULT_AT}))"));
    }
    let mut result = vec![0; RESULT_BYTES_LEN];
    damage(&mut result, random);
    let noise: Vec<u8> = (0..NOISE_BYTES_LEN).map(|_| byte(random)).collect();
    let actions: String = (0..random.between(0, 5)).map(|_| action(random)).collect();
    let answer = match random.below(5) {
        0..3 => "(call $ok (local.get $input) (local.get $len))".to_owned(),
        3 => format!("(call $ok {} {})", constant(random), constant(random)),
        // What the damaged bytes there say.
        _ => format!("(i32.const {RESULT_AT})"),
    };
    if random.percent(8) {
        guest = guest.reallocating(&format!("(return {})", constant(random)));
    }
    if verifies {
        guest = verifying(guest, random);
    }
    guest
        .running_instead(sound.concat() + &actions + &answer)
        .holding_bytes(RESULT_AT, &result)
        .holding_bytes(EFFECT_AT, &record)
        .holding_bytes(NOISE_AT, &noise)
        .build()
}

/// Lets a block be asked what became of a call; what it says is damaged.
fn verifying(guest: Guest, random: &mut Random) -> Guest {
    let mut verdict: Vec<u8> = verdict(random).iter().flat_map(|word| word.to_le_bytes()).collect();
    damage(&mut verdict, random);
    let actions: String = (0..random.below(3)).map(|_| action(random)).collect();
    let said = match random.below(8) {
        0 => "(unreachable)".to_owned(),
        1 => format!("(call $say {} {})", constant(random), constant(random)),
        2 => constant(random),
        _ => format!("(i32.const {VERDICT_AT})"),
    };
    guest.verifying(&(actions + &said)).holding_bytes(VERDICT_AT, &verdict)
}

/// What a block may say, as it lies in memory: which of the three, which kind of answer, and that.
fn verdict(random: &mut Random) -> [u32; 8] {
    const OK: u32 = 200;
    const LEN: u32 = 10;
    match random.below(10) {
        0..4 => [0, 0, OK, TEXTS_AT, 0, TEXTS_AT, LEN, 0],
        4 => [0, 1, 0, 0, 0, 0, 0, 0],
        5 => [0, 2, 1, TEXTS_AT, LEN, 0, 0, 0],
        6 => [0, *random.pick(&[3, 4, 5]), TEXTS_AT, LEN, 0, 0, 0, 0],
        7 => [1, 0, 0, 0, 0, 0, 0, 0],
        _ => [2, TEXTS_AT, LEN, 0, 0, 0, 0, 0],
    }
}

/// A block whose `run` is that of one more core module, the last but one, with its answer moved to where one can lie.
pub(super) fn block_with_a_module(module: &str) -> Vec<u8> {
    const REASON: &str = "(type $reason (record (field \"code\" string) (field \"message\" string)))\n  (type $failure (variant (case \"transient\" (tuple $reason (option u64)))";
    let module = module.replacen("(module", "(core module $more", 1);
    let instance = "(core instance $more (instantiate $more
        (with \"host\" (instance
          (export \"perform\" (func $perform)) (export \"place\" (func $place))
          (export \"started-at\" (func $started-at)) (export \"random\" (func $random))
          (export \"log\" (func $log))))
        (with \"libc\" (instance $libc))))
      (core module $aligned
        (import \"more\" \"run\" (func $run (param i32 i32) (result i32)))
        (func (export \"run\") (param i32 i32) (result i32)
          (i32.and (call $run (local.get 0) (local.get 1)) (i32.const 0xfff8))))
      (core instance $aligned (instantiate $aligned (with \"more\" (instance $more))))";
    Guest::echo()
        .describing(DESCRIPTOR)
        .replacing(REASON, &format!("{module}\n{instance}\n{REASON}"))
        .replacing("(core func $main \"run\")", "(core func $aligned \"run\")")
        .build()
}

/// A byte; often one of those at which something changes.
pub(super) fn byte(random: &mut Random) -> u8 {
    const EDGES: [u8; 10] = [0, 1, 2, 5, 6, 0x7f, 0x80, 0xc0, 0xed, 0xff];
    if random.percent(30) {
        *random.pick(&EDGES)
    } else {
        u8::try_from(random.below(256)).unwrap_or_default()
    }
}

fn word(random: &mut Random) -> u32 {
    const EDGES: [u32; 22] = [
        0,
        1,
        2,
        3,
        6,
        7,
        RESULT_AT,
        EFFECT_RESULT_AT,
        EFFECT_AT,
        EFFECT_AT + 4,
        1_024,
        NOISE_AT,
        NOISE_AT + 1_001,
        65_535,
        65_536,
        131_068,
        131_072,
        1 << 20,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_fffc,
        0xffff_ffff,
    ];
    match random.below(10) {
        0 => u32::try_from(random.below(1 << 32)).unwrap_or_default(),
        1..4 => u32::try_from(random.below(4_096)).unwrap_or_default(),
        _ => *random.pick(&EDGES),
    }
}

fn constant(random: &mut Random) -> String {
    format!("(i32.const {})", word(random))
}

/// Changes some words and bytes of a record.
fn damage(record: &mut [u8], random: &mut Random) {
    // Most of what is whole reaches further than what is not.
    let changes = if random.percent(40) { 0 } else { random.between(1, 3) };
    for _ in 0..changes {
        let words = record.len() as u64 / 4;
        let at = usize::try_from(random.below(words) * 4).unwrap_or_default();
        if random.percent(60) {
            record[at..at + 4].copy_from_slice(&word(random).to_le_bytes());
        } else {
            record[at] = byte(random);
        }
    }
}

fn action(random: &mut Random) -> String {
    match random.below(16) {
        0 => format!("(call $log {} {} {})", constant(random), constant(random), constant(random)),
        1 => format!("(call $random {} {})", constant(random), constant(random)),
        2 => format!("(call $place {})", constant(random)),
        3 => format!("(call $perform {} {})", constant(random), constant(random)),
        // The answer over the question.
        4 => format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_AT}))"),
        5 => format!("(call $perform (i32.const {EFFECT_AT}) {})", constant(random)),
        _ => format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))"),
    }
}

/// A call that is granted, and is answered, unless its answer is to be lost.
fn sound_call(random: &mut Random, nth: u64, is_lost: bool) -> EffectCall {
    let body = || b"{}".to_vec();
    let charge = |url: &str| {
        let (method, url) = ("POST".into(), url.into());
        EffectRequest::Http(HttpRequest { method, url, headers: vec![], body: body() })
    };
    let request = match random.below(6) {
        _ if is_lost => charge("/charges?drop=true"),
        0..2 => charge("/charges"),
        2 => EffectRequest::Emit { event_type: "lead.created".into(), record_id: None, data: "{}".into() },
        3 => EffectRequest::Storage(StorageRequest::Get("key".into())),
        4 => EffectRequest::Storage(StorageRequest::Put("key".into(), body())),
        _ => EffectRequest::Worker { queue: QUEUE.into(), input: "{}".into() },
    };
    let connection = matches!(request, EffectRequest::Http(_)).then(|| "payments".to_owned());
    EffectCall {
        request,
        key: random.percent(50).then(|| format!("sound-{nth}")),
        connection,
        safety: None,
        idempotency_key: None,
        timeout_ms: None,
        extra: vec![],
    }
}

fn call(random: &mut Random) -> EffectCall {
    let text = |random: &mut Random| {
        const TEXTS: [&str; 9] = [
            "/charges",
            "",
            "key",
            "lead.created",
            "https://api.example.test/v1",
            "http://[::1]:1/",
            "a\r\nb: c",
            "{\"a\":1}",
            "\u{0}\u{202e}",
        ];
        (*random.pick(&TEXTS)).to_owned()
    };
    let pairs =
        |random: &mut Random| (0..random.below(3)).map(|_| (text(random), text(random))).collect::<Vec<_>>();
    let request = match random.below(7) {
        0 => EffectRequest::Http(HttpRequest {
            method: "POST".into(),
            url: text(random),
            headers: pairs(random),
            body: text(random).into_bytes(),
        }),
        1 => EffectRequest::Emit { event_type: text(random), record_id: None, data: text(random) },
        2 => EffectRequest::Storage(StorageRequest::Get(text(random))),
        3 => EffectRequest::Storage(StorageRequest::Put(text(random), text(random).into_bytes())),
        4 => EffectRequest::Storage(StorageRequest::Delete(text(random))),
        5 => EffectRequest::Mail(MailMessage {
            to: vec![text(random)],
            subject: text(random),
            text: text(random),
            html: None,
            headers: pairs(random),
        }),
        _ => EffectRequest::Worker {
            queue: if random.percent(70) { QUEUE.into() } else { text(random) },
            input: if random.percent(70) { "{}".into() } else { text(random) },
        },
    };
    let maybe = |random: &mut Random| random.percent(30).then(|| text(random));
    let is_work = matches!(request, EffectRequest::Worker { .. });
    let connection = if !is_work && random.percent(60) {
        Some("payments".to_owned())
    } else {
        maybe(random).filter(|_| !is_work || random.percent(30))
    };
    let extra = if is_work && random.percent(60) {
        let within = *random.pick(&["60000", "0", "-1", "x", ""]);
        vec![(CLAIM_WITHIN.to_owned(), within.to_owned())]
    } else {
        pairs(random)
    };
    EffectCall {
        request,
        key: maybe(random),
        connection,
        safety: random.percent(50).then_some(Safety::AtMostOnce),
        idempotency_key: maybe(random),
        timeout_ms: random.percent(10).then(|| word(random)),
        extra,
    }
}
