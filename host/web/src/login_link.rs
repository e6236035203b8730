//! One-time links that sign a browser in, so that nobody has to copy a key from a terminal into a form.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};

/// Links that are open at once; an older one gives way.
const LINKS_MAX: usize = 16;

/// Links that this process has given out. Clones share them.
#[derive(Clone, Default)]
pub struct LoginLinks {
    open: Arc<Mutex<HashMap<String, Link>>>,
}

struct Link {
    prefix: String,
    until: DateTime<Utc>,
}

impl std::fmt::Debug for LoginLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoginLinks(not shown)")
    }
}

impl LoginLinks {
    /// For how long a link may be used: long enough to reach for the mouse.
    pub const VALID_MINUTES: i64 = 15;

    /// Opens a link for the holder of the key with this prefix: a path under the host's address, good for one use
    /// within [`Self::VALID_MINUTES`] after `now`. `random` must be fit for a secret.
    pub fn open(&self, prefix: &str, random: [u8; 32], now: DateTime<Utc>) -> String {
        let token = hex::encode(random);
        let path = format!("/login/{token}");
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= LINKS_MAX {
            let oldest = open.iter().min_by_key(|(_, link)| link.until).map(|(token, _)| token.clone());
            oldest.and_then(|token| open.remove(&token));
        }
        let until = now + TimeDelta::minutes(Self::VALID_MINUTES);
        open.insert(token, Link { prefix: prefix.into(), until });
        path
    }

    /// Uses a link up.
    pub(crate) fn take(&self, token: &str, now: DateTime<Utc>) -> Option<String> {
        let link = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(token)?;
        (now < link.until).then_some(link.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_good_once_and_for_a_while() {
        let links = LoginLinks::default();
        let at = |minutes| DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
        let token = |path: &str| path.strip_prefix("/login/").expect("a path").to_owned();
        let first = token(&links.open("0a", [1; 32], at(0)));
        let second = token(&links.open("0b", [2; 32], at(0)));
        assert_eq!(links.take("00", at(1)), None);
        assert_eq!(links.take(&first, at(1)), Some("0a".into()));
        assert_eq!(links.take(&first, at(1)), None, "used");
        assert_eq!(links.take(&second, at(15)), None, "too late");
        for n in 0..=u8::try_from(LINKS_MAX).expect("few") {
            links.open("0c", [n; 32], at(i64::from(n)));
        }
        assert_eq!(links.open.lock().expect("not poisoned").len(), LINKS_MAX);
    }
}
