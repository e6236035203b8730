//! API keys: their text, what is kept of them, and what each scope allows.
//!
//! A key reads `cf_<prefix>_<secret>_<checksum>`, each part hexadecimal. The prefix finds the row, the secret proves the
//! holder, and the checksum tells a mistyped or cut key from a revoked one without a look-up. Only a keyed hash is kept.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

const PREFIX_BYTES_LEN: usize = 8;
const SECRET_BYTES_LEN: usize = 32;
const CHECKSUM_BYTES_LEN: usize = 4;

/// Random bytes that one key is made of.
pub const KEY_RANDOM_BYTES_LEN: usize = PREFIX_BYTES_LEN + SECRET_BYTES_LEN;

/// What a key's holder may do. Each scope allows all that the ones before it allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Reads.
    Viewer,
    /// Starts, cancels and resumes runs, sends events, resolves effects.
    Operator,
    /// Uploads blocks, saves and activates workflows.
    Author,
    /// Manages connections and keys.
    Admin,
}

impl Scope {
    /// Every scope, the narrowest first.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Operator, Self::Author, Self::Admin];

    /// The name in the database, in JSON and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Author => "author",
            Self::Admin => "admin",
        }
    }

    /// The inverse of [`Scope::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    /// Whether a key of this scope may do what `needed` may.
    pub fn allows(self, needed: Self) -> bool {
        self >= needed
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The installation's own secret, kept outside the database: whoever reads the database alone can neither try keys
/// against the hashes nor forge what the host signs.
#[derive(Clone)]
pub struct Pepper([u8; 32]);

impl Pepper {
    /// A pepper from 32 random bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// HMAC-SHA256 over `message`, for one `purpose`: codes of different purposes never match.
    ///
    /// # Panics
    /// Never: HMAC takes a key of any length.
    pub fn mac(&self, purpose: &str, message: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&self.0).expect("HMAC takes any key");
        mac.update(purpose.as_bytes());
        mac.update(&[0]);
        mac.update(message);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pepper(not shown)")
    }
}

/// Whether two codes are the same, in a time that does not tell where they differ.
pub fn matches(code: &[u8], kept: &[u8]) -> bool {
    code.ct_eq(kept).into()
}

/// A text that is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The parts are not there, or not of their length, or not hexadecimal.
    #[error("a key has the form cf_<prefix>_<secret>_<checksum>")]
    Form,
    /// The parts do not belong together.
    #[error("the key's checksum does not match: it was mistyped or cut")]
    Checksum,
}

/// A key as its holder has it. It is shown once and never stored.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    prefix: String,
    secret: String,
}

impl ApiKey {
    /// A new key.
    pub fn from_random(random: [u8; KEY_RANDOM_BYTES_LEN]) -> Self {
        let (prefix, secret) = random.split_at(PREFIX_BYTES_LEN);
        Self { prefix: hex::encode(prefix), secret: hex::encode(secret) }
    }

    /// What finds the key's row; it is no secret.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What is kept of the key.
    pub fn hash(&self, pepper: &Pepper) -> [u8; 32] {
        pepper.mac("api-key-v1", self.body().as_bytes())
    }

    fn body(&self) -> String {
        format!("cf_{}_{}", self.prefix, self.secret)
    }

    fn checksum(&self) -> String {
        use sha2::Digest as _;
        hex::encode(&sha2::Sha256::digest(self.body())[..CHECKSUM_BYTES_LEN])
    }
}

/// The whole key, secret included: for the one time it is shown.
impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.body(), self.checksum())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey(cf_{}_…)", self.prefix)
    }
}

impl FromStr for ApiKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let mut parts = text.split('_');
        let (Some("cf"), Some(prefix), Some(secret), Some(checksum), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(InvalidKey::Form);
        };
        let is_hex = |part: &str, bytes_len: usize| {
            part.len() == 2 * bytes_len && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !(is_hex(prefix, PREFIX_BYTES_LEN)
            && is_hex(secret, SECRET_BYTES_LEN)
            && is_hex(checksum, CHECKSUM_BYTES_LEN))
        {
            return Err(InvalidKey::Form);
        }
        let key = Self { prefix: prefix.into(), secret: secret.into() };
        if key.checksum() == checksum { Ok(key) } else { Err(InvalidKey::Checksum) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ApiKey {
        ApiKey::from_random(std::array::from_fn(|index| u8::try_from(index).unwrap_or(0)))
    }

    #[test]
    fn a_key_reads_back_and_its_debug_form_hides_the_secret() {
        let text = key().to_string();
        insta::assert_snapshot!(text, @"cf_0001020304050607_08090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324252627_a99a7d69");
        assert_eq!(text.parse(), Ok(key()));
        assert!(!format!("{:?}", key()).contains(&key().secret));
    }

    #[test]
    fn whatever_is_not_a_whole_key_is_refused() {
        let text = key().to_string();
        let other_digit = |at: usize| {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            String::from_utf8(bytes).expect("hexadecimal")
        };
        let cases = [
            (String::new(), InvalidKey::Form),
            ("cf_".into(), InvalidKey::Form),
            (text[..text.len() - 1].into(), InvalidKey::Form),
            (format!("{text}_"), InvalidKey::Form),
            (text.to_uppercase(), InvalidKey::Form),
            (text.replacen("cf", "cg", 1), InvalidKey::Form),
            (text.replace('a', "g"), InvalidKey::Form),
            (other_digit(3), InvalidKey::Checksum),
            (other_digit(40), InvalidKey::Checksum),
            (other_digit(text.len() - 1), InvalidKey::Checksum),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<ApiKey>(), Err(expected), "{text}");
        }
    }

    #[test]
    fn a_hash_holds_for_one_key_and_one_pepper() {
        let (one, two) = (Pepper::new([1; 32]), Pepper::new([2; 32]));
        let hash = key().hash(&one);
        assert!(matches(&hash, &key().hash(&one)));
        assert!(!matches(&hash, &key().hash(&two)));
        assert!(!matches(&hash, &ApiKey::from_random([9; KEY_RANDOM_BYTES_LEN]).hash(&one)));
        assert!(!matches(&hash, &hash[..31]));
        assert_ne!(one.mac("a", b"b"), one.mac("ab", b""));
    }

    #[test]
    fn scopes_are_a_ladder() {
        let table: Vec<String> = Scope::ALL
            .into_iter()
            .map(|scope| {
                let allowed: Vec<&str> =
                    Scope::ALL.into_iter().filter(|needed| scope.allows(*needed)).map(Scope::name).collect();
                format!("{scope}: {}", allowed.join(" "))
            })
            .collect();
        assert_eq!(
            table,
            [
                "viewer: viewer",
                "operator: viewer operator",
                "author: viewer operator author",
                "admin: viewer operator author admin",
            ]
        );
    }
}
