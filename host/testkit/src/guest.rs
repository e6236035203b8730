//! Blocks written as text: `guest.wat` with what each test wants it to do.

use counterfoil_domain::effect::{EffectCall, EffectRequest, StorageRequest};

/// Where `guest.wat` and whoever writes a body agree that the result of an effect lies in the main memory.
pub const EFFECT_RESULT_AT: u32 = 128;
/// And where a lowered effect does.
pub const EFFECT_AT: u32 = 256;
const TEXTS_AT: u32 = 1_024;

/// A block whose parts are core WebAssembly text.
#[derive(Clone)]
pub struct Guest {
    describe: String,
    run: String,
    realloc: String,
    items: String,
    data: Data,
    replaced: Vec<(String, String)>,
}

impl Guest {
    /// A block whose `run` has this body: `$input` and `$len` come in, the address of the result goes out.
    pub fn running(body: impl Into<String>) -> Self {
        let descriptor = r#"{"name":"guest","input":true,"output":true,"effects":[{"kind":"http","safety":"at-most-once"}]}"#;
        let guest = Self {
            describe: String::new(),
            run: body.into(),
            realloc: String::new(),
            items: String::new(),
            data: Data { bytes: Vec::new() },
            replaced: Vec::new(),
        };
        guest.describing(descriptor)
    }

    /// The same block with another body.
    #[must_use]
    pub fn running_instead(mut self, body: impl Into<String>) -> Self {
        self.run = body.into();
        self
    }

    /// A block that answers with its input.
    pub fn echo() -> Self {
        Self::running("(call $ok (local.get $input) (local.get $len))")
    }

    /// A block that makes one call and then goes on with `then`; the result lies at [`EFFECT_RESULT_AT`].
    pub fn performing(call: &EffectCall, then: &str) -> Self {
        let run = format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT})) {then}");
        Self::running(run).holding(call)
    }

    /// Puts a lowered effect at [`EFFECT_AT`].
    #[must_use]
    pub fn holding(mut self, call: &EffectCall) -> Self {
        let record = self.lowered(call);
        self.holding_bytes(EFFECT_AT, &record)
    }

    /// An effect as it lies in memory. What it points to is placed.
    pub fn lowered(&mut self, call: &EffectCall) -> Vec<u8> {
        self.data.effect(call)
    }

    /// Puts bytes into the main memory.
    #[must_use]
    pub fn holding_bytes(self, at: u32, bytes: &[u8]) -> Self {
        self.with(&format!("(data (i32.const {at}) \"{}\")", escaped(bytes)))
    }

    /// What it says of itself.
    #[must_use]
    pub fn describing(mut self, descriptor: &str) -> Self {
        let (at, len) = self.data.text(descriptor.as_bytes());
        self.describe = format!(
            "(i32.store (i32.const 64) (i32.const {at})) (i32.store (i32.const 68) (i32.const {len})) (i32.const 64)"
        );
        self
    }

    /// What it does when it is to say so.
    #[must_use]
    pub fn describing_by(mut self, body: &str) -> Self {
        body.clone_into(&mut self.describe);
        self
    }

    /// Lets it be asked what became of an effect: the receipt comes in field by field, and the address of the verdict goes
    /// out. `$say` makes it inconclusive, in these words.
    #[must_use]
    pub fn verifying(self, body: &str) -> Self {
        const STEP: &str = "(export \"counterfoil:block/step@0.1.0\" (instance $step))";
        let params = "(param $id i32) (param $id-len i32) (param $kind i32) (param $kind-len i32)
            (param $node i32) (param $node-len i32) (param $key i32) (param $key-len i32)
            (param $has-idempotency-key i32) (param $idempotency-key i32) (param $idempotency-key-len i32)
            (param $request i32) (param $request-len i32) (param $sent-at i64)";
        let say = "(func $say (param $at i32) (param $len i32) (result i32)
            (i32.store8 (i32.const 600) (i32.const 2))
            (i32.store (i32.const 604) (local.get $at))
            (i32.store (i32.const 608) (local.get $len))
            (i32.const 600))";
        self.with(say)
            .with(&format!("(func (export \"verify\") {params} (result i32) {body})"))
            .replacing(STEP, &format!("{STEP}\n{}", include_str!("guest/verifier.wat")))
    }

    /// Adds items (functions, a start, globals) to the main module.
    #[must_use]
    pub fn with(mut self, items: &str) -> Self {
        self.items += items;
        self
    }

    /// What the allocator does first.
    #[must_use]
    pub fn reallocating(mut self, body: &str) -> Self {
        body.clone_into(&mut self.realloc);
        self
    }

    /// Lets it make handles of a resource of its own, which the host keeps the table of: `$new` takes what one stands for.
    #[must_use]
    pub fn making_handles(self) -> Self {
        self.replacing(
            "(core module $main",
            "(type $own (resource (rep i32))) (core func $new (canon resource.new $own))
             (core module $main (import \"own\" \"new\" (func $new (param i32) (result i32)))",
        )
        .replacing(
            "(with \"libc\" (instance $libc))\n",
            "(with \"libc\" (instance $libc)) (with \"own\" (instance (export \"new\" (func $new))))\n",
        )
    }

    /// Changes the finished text.
    ///
    /// # Panics
    /// Once it is built, if `from` is not in it.
    #[must_use]
    pub fn replacing(mut self, from: &str, to: &str) -> Self {
        self.replaced.push((from.into(), to.into()));
        self
    }

    /// Places a text in memory: its address and length, as two instructions.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn text(&mut self, text: &str) -> String {
        let (at, len) = self.data.text(text.as_bytes());
        format!("(i32.const {at}) (i32.const {len})")
    }

    /// The component.
    ///
    /// # Panics
    /// If the text is not well formed.
    pub fn build(&self) -> Vec<u8> {
        let data = format!("(data (i32.const {TEXTS_AT}) \"{}\")", escaped(&self.data.bytes));
        let mut text = include_str!("guest/guest.wat").to_owned();
        for (mark, part) in [
            ("@DESCRIBE@", &self.describe),
            ("@RUN@", &self.run),
            ("@REALLOC@", &self.realloc),
            ("@ITEMS@", &self.items),
            ("@DATA@", &data),
        ] {
            text = text.replace(mark, part);
        }
        for (from, to) in &self.replaced {
            assert!(text.contains(from.as_str()), "{from} is not in the text");
            text = text.replace(from.as_str(), to);
        }
        wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A component from its text, for what is no block.
///
/// # Panics
/// If the text is not well formed.
pub fn component(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}"))
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("\\{byte:02x}"))
}

/// Bytes from [`TEXTS_AT`] on, and records that point into them, laid out by the canonical ABI.
#[derive(Clone)]
struct Data {
    bytes: Vec<u8>,
}

impl Data {
    fn text(&mut self, text: &[u8]) -> (u32, u32) {
        // Records inside lists hold pointers, which are aligned.
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let at = TEXTS_AT + u32::try_from(self.bytes.len()).expect("a small guest");
        self.bytes.extend(text);
        assert!(self.bytes.len() < 60_000, "the guest's texts run into its heap");
        (at, u32::try_from(text.len()).expect("a small guest"))
    }

    fn effect(&mut self, call: &EffectCall) -> Vec<u8> {
        let mut record = self.request(&call.request);
        record.extend(self.optional(call.key.as_deref()));
        record.extend(self.optional(call.connection.as_deref()));
        record.extend(call.safety.map_or([0, 0], |safety| [1, safety as u8]));
        record.extend([0; 2]);
        record.extend(self.optional(call.idempotency_key.as_deref()));
        record.extend(u32::from(call.timeout_ms.is_some()).to_le_bytes());
        record.extend(call.timeout_ms.unwrap_or(0).to_le_bytes());
        record.extend(self.pairs(&call.extra));
        assert_eq!(record.len(), 104);
        record
    }

    fn request(&mut self, request: &EffectRequest) -> Vec<u8> {
        let (case, payload) = match request {
            EffectRequest::Http(http) => {
                let parts = [
                    self.string(&http.method),
                    self.string(&http.url),
                    self.pairs(&http.headers),
                    self.list(&http.body),
                ];
                (0_u32, parts.concat())
            }
            EffectRequest::Emit { event_type, record_id, data } => {
                let parts = [self.string(event_type), self.optional(record_id.as_deref()), self.string(data)];
                (1, parts.concat())
            }
            EffectRequest::Storage(request) => (
                2,
                match request {
                    StorageRequest::Get(key) => [vec![0, 0, 0, 0], self.string(key)].concat(),
                    StorageRequest::Put(key, value) => {
                        [vec![1, 0, 0, 0], self.string(key), self.list(value)].concat()
                    }
                    StorageRequest::Delete(key) => [vec![2, 0, 0, 0], self.string(key)].concat(),
                },
            ),
            EffectRequest::Mail(mail) => {
                let to: Vec<u8> = mail.to.iter().flat_map(|to| self.string(to)).collect();
                let parts = [
                    self.counted(&to, mail.to.len()),
                    self.string(&mail.subject),
                    self.string(&mail.text),
                    self.optional(mail.html.as_deref()),
                    self.pairs(&mail.headers),
                ];
                (3, parts.concat())
            }
            EffectRequest::Model(body) => (4, self.string(body)),
            EffectRequest::Worker { queue, input } => (5, [self.string(queue), self.string(input)].concat()),
        };
        let mut lowered = case.to_le_bytes().to_vec();
        lowered.extend(payload);
        // The size of the largest case.
        lowered.resize(4 + 44, 0);
        lowered
    }

    fn string(&mut self, text: &str) -> Vec<u8> {
        self.list(text.as_bytes())
    }

    fn list(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.counted(bytes, bytes.len())
    }

    fn counted(&mut self, bytes: &[u8], count: usize) -> Vec<u8> {
        let (at, _) = self.text(bytes);
        [at.to_le_bytes(), u32::try_from(count).expect("a small guest").to_le_bytes()].concat()
    }

    fn pairs(&mut self, pairs: &[(String, String)]) -> Vec<u8> {
        let elements: Vec<u8> =
            pairs.iter().flat_map(|(name, value)| [self.string(name), self.string(value)].concat()).collect();
        self.counted(&elements, pairs.len())
    }

    fn optional(&mut self, text: Option<&str>) -> Vec<u8> {
        let value = text.map_or_else(|| vec![0; 8], |text| self.string(text));
        [u32::from(text.is_some()).to_le_bytes().to_vec(), value].concat()
    }
}
