//! The secrets that come with a connection: read, judged, sealed, and never shown.

use std::collections::BTreeSet;

use counterfoil_domain::code::Code;
use counterfoil_domain::connection::{Abilities, SECRETS_MAX, SealedSecret, SecretName};
use counterfoil_domain::id::TenantId;
use counterfoil_store::connection::SecretChanges;
use secrecy::SecretString;
use serde_json::Value;

use crate::problem::Problem;
use crate::state::App;

/// As they were sent; none if nothing was said of them. It may hold secrets, so it has no `Debug`.
#[derive(Default)]
pub(super) struct Given(pub(super) Option<Value>);

/// What is to become of a connection's secrets.
#[derive(Default)]
pub(super) struct Changes {
    set: Vec<(SecretName, SecretString)>,
    remove: Vec<SecretName>,
    remove_others: bool,
}

impl Given {
    pub(super) fn read(self) -> Result<Changes, Problem> {
        let mut changes = Changes::default();
        let fields = match self.0 {
            None => return Ok(changes),
            Some(Value::Null) => return Ok(Changes { remove_others: true, ..changes }),
            Some(Value::Object(fields)) => fields,
            Some(_) => return Err(Problem::bad_field("/secrets", "names and values in an object, or null")),
        };
        let mut seen = BTreeSet::new();
        for (text, value) in fields {
            let refused = |detail: String| Problem::bad_field(&pointer(&text), detail);
            let name: SecretName = text.parse().map_err(|error| refused(format!("{error}")))?;
            if !seen.insert(name.clone()) {
                return Err(refused("this name stands here twice".into()));
            }
            match value {
                Value::Null => changes.remove.push(name),
                Value::String(value) => {
                    let value = SecretString::from(value);
                    name.judge(&value).map_err(refused)?;
                    changes.set.push((name, value));
                }
                _ => return Err(refused("a text, or null".into())),
            }
        }
        Ok(changes)
    }
}

impl Changes {
    /// Judges what there will be, with what is `present`.
    pub(super) fn judge(&self, present: &[SealedSecret], abilities: &Abilities) -> Result<(), Problem> {
        let kept = present
            .iter()
            .map(|secret| &secret.name)
            .filter(|name| !self.remove_others && !self.remove.contains(name));
        let names: BTreeSet<&SecretName> = kept.chain(self.set.iter().map(|(name, _)| name)).collect();
        if names.len() > SECRETS_MAX {
            return Err(Problem::bad_field("/secrets", format!("a connection has at most {SECRETS_MAX}")));
        }
        let key_header = SecretName::Header(abilities.idempotency_header().to_ascii_lowercase());
        if names.contains(&key_header) {
            let detail = "this header carries the idempotency key".to_owned();
            return Err(Problem::bad_field(&pointer(&key_header.to_string()), detail));
        }
        Ok(())
    }

    /// Seals what is to be set.
    pub(super) async fn seal(
        self,
        app: &App,
        tenant: TenantId,
        connection: &str,
    ) -> Result<SecretChanges, Problem> {
        let Self { set, remove, remove_others } = self;
        if set.is_empty() {
            return Ok(SecretChanges { set: vec![], remove, remove_others });
        }
        let set = app.sealer.seal(tenant, connection, set).await.map_err(|_| {
            let detail = "this host has no key to seal secrets with; its log says more";
            Problem::new(Code::SecretKeyMissing, detail)
        })?;
        Ok(SecretChanges { set, remove, remove_others })
    }
}

fn pointer(name: &str) -> String {
    format!("/secrets/{}", name.replace('~', "~0").replace('/', "~1"))
}
