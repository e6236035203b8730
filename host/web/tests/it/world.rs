//! A tenant with keys on a database of its own, and short ways to ask and to be answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use chrono::{DateTime, Utc};
use counterfoil_domain::block::{Descriptor, EffectGrant, WantedLimits};
use counterfoil_domain::code::Code;
use counterfoil_domain::connection::{SealedSecret, SecretName};
use counterfoil_domain::effect::Safety;
use counterfoil_domain::id::{Digest, HostId, KeyId, RunId, TenantId};
use counterfoil_domain::key::{ApiKey, Pepper, Scope};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::outbound::AddressPolicy;
use counterfoil_domain::ports::{ComponentInspector, Inspection, NoSecretKey, Refused, SecretSealer};
use counterfoil_domain::receipt::identity::{EPOCH, Slot};
use counterfoil_domain::receipt::request::Scope as ContentScope;
use counterfoil_domain::receipt::request::http_facts;
use counterfoil_domain::receipt::{Actor, Move, Receipt, ReceiptState, SlotKey, Standing, Transition};
use counterfoil_domain::schema::Fault;
use counterfoil_store::Store;
use counterfoil_store::key::KeyRow;
use counterfoil_store::receipt::{Dispatch, DispatchVerdict};
use counterfoil_store::settle::Blocking;
use counterfoil_store::step::{ClaimRequest, Claimed, Take};
use counterfoil_testkit::work::Work;
use counterfoil_web::{LoginLinks, WebState, router};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

/// Longer than any test.
const LEASE: Duration = Duration::from_mins(10);

/// Two steps and a switch: enough for every kind of row of a timeline.
pub(crate) const DEFINITION: &str = "\
name: pay
triggers:
  - event: order.placed
    dedup: every_time
steps:
  - amount: { set: \"=input.cents\" }
  - decide:
      switch:
        - when: steps.amount.output > 0
          do:
            - charge: { block: charge-card, input: { cents: \"=steps.amount.output\" } }
        - else: []
  - settle: { delay: 3d }
";

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) web: WebState,
    pub(crate) router: Router,
    pub(crate) tenant: TenantId,
    keys: BTreeMap<Scope, String>,
    /// Dropped last.
    pub(crate) work: Work,
}

/// What was answered.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {} {}", self.status, self.text))
    }

    /// The body, if the status is this one.
    pub(crate) fn with(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self.json()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        let work = Work::new().await.expect("a database");
        let (store, tenant) = (work.store.clone(), work.tenant);
        let web = WebState {
            store: store.clone(),
            inspector: Arc::new(Told),
            sealer: Arc::new(Wax),
            addresses: AddressPolicy { loopback: true, private: vec![] },
            limits: StepLimits { cpu_ms_max: 700, ..StepLimits::DEFAULT },
            pepper: Pepper::new([7; 32]),
            clock,
            random,
            cookies_secure: false,
            login_links: LoginLinks::default(),
        };
        let router = router(web.clone());
        let mut world = Self { store, web, router, tenant, keys: BTreeMap::new(), work };
        world.keys = world.new_keys(tenant, "acme").await;
        world
    }

    /// Creates a tenant with a key of each scope.
    pub(crate) async fn new_tenant(&self, tenant: TenantId, name: &str) -> BTreeMap<Scope, String> {
        self.store.create_tenant(tenant, name).await.expect("creates");
        self.new_keys(tenant, name).await
    }

    /// A key of each scope.
    async fn new_keys(&self, tenant: TenantId, name: &str) -> BTreeMap<Scope, String> {
        let mut keys = BTreeMap::new();
        for scope in Scope::ALL {
            let mut bytes = [0; 40];
            random(&mut bytes);
            let key = ApiKey::from_random(bytes);
            let row = KeyRow {
                tenant,
                id: KeyId(Uuid::now_v7()),
                prefix: key.prefix().into(),
                hash: key.hash(&self.web.pepper),
                scope: scope.name().into(),
                label: format!("{name}'s {scope}"),
                created_at: clock(),
                revoked_at: None,
            };
            self.store.create_key(&row).await.expect("creates");
            keys.insert(scope, key.to_string());
        }
        keys
    }

    pub(crate) fn key(&self, scope: Scope) -> &str {
        &self.keys[&scope]
    }

    /// Sends a request as it is.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        send(&self.router, request).await
    }

    /// Asks with a key and these header fields.
    pub(crate) async fn ask(
        &self,
        key: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder()
            .method(method.parse::<Method>().expect("a method"))
            .uri(path)
            .header(header::AUTHORIZATION, format!("Bearer {key}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(body.into()).expect("a request")).await
    }

    /// Asks as an administrator, with a JSON body.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.ask(self.key(Scope::Admin), method, path, &[("content-type", "application/json")], body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, Value::Null).await
    }

    /// Uploads the block that [`DEFINITION`] uses, saves that and activates it.
    pub(crate) async fn set_up(&self) {
        let key = self.key(Scope::Admin);
        self.ask(key, "POST", "/v1/blocks/charge-card", &[], "charges a card").await.with(201);
        self.ask(key, "PUT", "/v1/workflows/pay", &[], DEFINITION).await.with(201);
        self.call("POST", "/v1/workflows/pay/activate", json!({})).await.with(200);
    }

    /// Starts a run that charges.
    pub(crate) async fn start(&self) -> RunId {
        let body = json!({ "input": { "cents": 100 }, "record": "order-1" });
        let run = self.call("POST", "/v1/workflows/pay/runs", body).await.with(201);
        run["id"].as_str().expect("an id").parse().expect("a run's id")
    }

    /// Claims the one step that is due.
    pub(crate) async fn claim(&self) -> Claimed {
        let due = self.store.due_of(&[self.tenant]).await.expect("looks");
        let request = ClaimRequest {
            host: HostId(Uuid::now_v7()),
            lease: LEASE,
            takes: due.iter().map(|line| Take::of(line.queue, 10)).collect(),
            without: vec![],
        };
        let mut claimed = self.store.claim(&request).await.expect("claims");
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        claimed.pop().expect("one")
    }

    /// Sends what a block would send, as far as the receipt.
    pub(crate) async fn dispatch(&self, step: &Claimed, url: &str) -> Receipt {
        let mut receipt = receipt(step, url);
        let dispatch = Dispatch {
            fence: &step.fence,
            receipt: &receipt,
            expected: &[],
            lose: &[],
            guard: None,
            connection_set_at: None,
            absence_known_after: LEASE,
            writes: &[],
        };
        match self.store.dispatch(&dispatch).await.expect("dispatches") {
            DispatchVerdict::Dispatched { at } => {
                receipt.standing = Standing::Dispatched { lease: step.fence.lease, at };
                receipt
            }
            other => panic!("not dispatched: {other:?}"),
        }
    }

    /// A run whose step is blocked on an effect that was sent and not answered.
    pub(crate) async fn blocked(&self) -> (RunId, Receipt) {
        let run = self.start().await;
        let step = self.claim().await;
        let receipt = self.dispatch(&step, "http://127.0.0.1:9/charges").await;
        let reason = "the connection was reset".into();
        let lose = Transition::new(
            self.tenant,
            receipt.id,
            ReceiptState::Dispatched,
            Actor::Host,
            Move::Lose { reason },
        );
        let blocking = Blocking {
            fence: step.fence,
            run,
            writes: vec![],
            lose: vec![lose.expect("legal")],
            error: json!({ "code": "unknown", "message": "the connection was reset" }),
            logs: None,
        };
        self.store.block(&blocking).await.expect("blocks");
        (run, receipt)
    }
}

/// Sends a request to a router.
pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.expect("the router always answers");
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.expect("a whole body");
    let text = String::from_utf8(bytes.to_vec()).expect("text");
    Answer { status: parts.status, headers: parts.headers, text }
}

fn receipt(step: &Claimed, url: &str) -> Receipt {
    let (tenant, key) = (step.fence.tenant, SlotKey::Label("charge".into()));
    let id = Slot { tenant, epoch: EPOCH, place: &step.place, key: &key }.receipt_id(0);
    let request = counterfoil_domain::effect::HttpRequest {
        method: "POST".into(),
        url: "/charges".into(),
        headers: vec![
            ("content-type".into(), "application/json".into()),
            ("authorization".into(), "canary".into()),
        ],
        body: br#"{"cents":100}"#.to_vec(),
    };
    let scope = ContentScope::Lineage(step.place.lineage);
    Receipt {
        id,
        tenant,
        run: step.run,
        step: step.fence.step,
        place: step.place.clone(),
        slot: key,
        dispatch_number: 0,
        position: 0,
        attempt: step.attempt,
        request: http_facts(&request, url, Some("payments"), Safety::AtMostOnce, id.to_string(), scope),
        standing: Standing::Planned,
    }
}

/// Stands in for the sandbox: a component is a line of text that says what it does, or why it is refused.
struct Told;

#[async_trait::async_trait]
impl ComponentInspector for Told {
    async fn inspect(&self, bytes: Vec<u8>) -> Result<Inspection, Refused> {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some(imports) = text.strip_prefix("imports ") {
            let details = imports
                .split(' ')
                .map(|import| Fault { place: String::new(), why: format!("`{import}` is not offered") })
                .collect();
            let message = "it imports what the host does not offer".into();
            return Err(Refused { code: Code::ImportUnknown, message, details });
        }
        let grant = EffectGrant {
            kind: "http".into(),
            safety: Safety::AtMostOnce,
            connections: vec!["payments".into()],
            hosts: vec![],
        };
        Ok(Inspection {
            digest: Digest::of(&bytes),
            bytes_len: bytes.len() as u64,
            imports: vec!["counterfoil:block/effects@0.1.0".into()],
            exports: vec!["counterfoil:block/step@0.1.0".into()],
            descriptor: Descriptor {
                name: "told".into(),
                // A component holds bytes that no text in the database may.
                summary: text.replace('\0', ""),
                input: json!({ "type": "object" }),
                output: json!(true),
                effects: vec![grant],
                limits: WantedLimits::default(),
                credits: 1,
            },
            compile_ms: 1,
        })
    }
}

/// Stands in for the door out: what it seals says where it belongs, and not what it is. It seals nothing for `keyless`.
struct Wax;

#[async_trait::async_trait]
impl SecretSealer for Wax {
    async fn seal(
        &self,
        tenant: TenantId,
        connection: &str,
        secrets: Vec<(SecretName, SecretString)>,
    ) -> Result<Vec<SealedSecret>, NoSecretKey> {
        if connection == "keyless" {
            return Err(NoSecretKey { message: "there is no key file".into() });
        }
        let seal = |(name, text): (SecretName, SecretString)| {
            let length = text.expose_secret().len();
            let sealed =
                format!("{length} bytes for {tenant} {connection} {name}, sealed with wax").into_bytes();
            SealedSecret { name, key: "wax".into(), sealed }
        };
        Ok(secrets.into_iter().map(seal).collect())
    }
}

/// A fixed time: nothing that is shown depends on it but the ends of sessions.
pub(crate) fn clock() -> DateTime<Utc> {
    DateTime::from_timestamp(1_900_000_000, 0).expect("a time")
}

/// Never the same twice, and always larger, so that ids are in the order in which they were made.
pub(crate) fn random(bytes: &mut [u8]) {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    for chunk in bytes.chunks_mut(8) {
        let count = COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        chunk.copy_from_slice(&count[..chunk.len()]);
    }
}
