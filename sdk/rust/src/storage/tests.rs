use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::Failure;
use crate::host::native::{Host, with};

/// Keeps what is put into it, and refuses a label.
#[derive(Default)]
struct Space(BTreeMap<String, Vec<u8>>);

impl Host for Space {
    fn storage(&mut self, effect: StorageEffect) -> Result<Option<Vec<u8>>, EffectError> {
        if let Some(label) = effect.key {
            return Err(EffectError::Limit(label));
        }
        match effect.operation {
            StorageOperation::Get(key) => Ok(self.0.get(&key).cloned()),
            StorageOperation::Put(key, value) => {
                self.0.insert(key, value);
                Ok(None)
            }
            StorageOperation::Delete(key) => {
                self.0.remove(&key);
                Ok(None)
            }
        }
    }
}

#[test]
fn what_is_put_is_got_until_it_is_deleted() -> Result<(), Failure> {
    with(Space::default(), || {
        assert_eq!(get("a").send()?, None);
        put("a").bytes([0, 159]).send()?;
        put("b").json(&json!({ "n": 1 }))?.send()?;
        put("c").send()?;
        assert_eq!(get("a").send()?.map(Value::into_bytes), Some(vec![0, 159]));
        assert_eq!(get("c").send()?.as_ref().map(Value::bytes), Some(&[][..]));
        let value = get("b").send()?.expect("it is there");
        assert_eq!(value.json::<serde_json::Value>()?, json!({ "n": 1 }));
        let failure = Failure::from(value.json::<u64>().expect_err("it is no number"));
        assert_eq!(failure.code(), "invalid_json");
        assert!(
            failure.message().starts_with("the stored value is not the expected JSON: invalid type"),
            "{failure}"
        );
        delete("a").send()?;
        assert_eq!(get("a").send()?, None);
        Ok(())
    })
}

#[test]
fn a_label_crosses_with_its_operation() {
    with(Space::default(), || {
        let labelled = |label: &str| Err(EffectError::Limit(label.into()));
        assert_eq!(get("a").key("read").send().map(drop), labelled("read"));
        assert_eq!(put("a").key("write").send(), labelled("write"));
        assert_eq!(delete("a").key("remove").send(), labelled("remove"));
    });
}
