use std::fs;

use counterfoil_domain::connection::{SealedSecret, SecretName};
use counterfoil_domain::id::TenantId;
use counterfoil_domain::ports::SecretSealer as _;
use counterfoil_store::connection::Connection;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

use super::{KeyRing, Opened, Secrets};

const TENANT: TenantId = TenantId(Uuid::from_u128(1));
const OTHER: TenantId = TenantId(Uuid::from_u128(2));

/// Never the same twice.
fn random(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(16) {
        chunk.copy_from_slice(
            &Uuid::now_v7().as_u128().wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[..chunk.len()],
        );
    }
}

struct Desk {
    home: TempDir,
    secrets: Secrets,
}

impl Desk {
    fn new() -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        let secrets = Secrets::new(home.path().join("keys"), random);
        let desk = Self { home, secrets };
        desk.write(KeyRing::with_new(None, random).to_text().expose_secret())?;
        Ok(desk)
    }

    fn write(&self, text: &str) -> anyhow::Result<()> {
        Ok(fs::write(self.home.path().join("keys"), text)?)
    }

    fn text(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.home.path().join("keys"))?)
    }

    async fn seal(&self, name: &str, text: &str) -> anyhow::Result<SealedSecret> {
        let secret = (name.parse::<SecretName>()?, SecretString::from(text));
        Ok(self.secrets.seal(TENANT, "p", vec![secret]).await?.remove(0))
    }

    /// The text of the one header, or what is wrong.
    fn open(&self, tenant: TenantId, connection: &str, secret: &SealedSecret) -> Result<String, String> {
        let opened =
            self.secrets.open(tenant, &through(connection, secret)).map_err(|error| error.to_string())?;
        Ok(opened.headers().iter().map(|(_, value)| value.expose_secret()).collect())
    }
}

fn through(name: &str, secret: &SealedSecret) -> Connection {
    Connection {
        name: name.into(),
        base_url: "https://example.com".into(),
        allowed_hosts: vec![],
        abilities: json!({}),
        rate: None,
        in_flight_max: None,
        secrets: vec![secret.clone()],
        updated_at: chrono::DateTime::UNIX_EPOCH,
    }
}

#[tokio::test]
async fn a_secret_opens_at_its_place_and_nowhere_else() -> anyhow::Result<()> {
    let desk = Desk::new()?;
    let secret = desk.seal("header:authorization", "Bearer canary").await?;
    assert_eq!(desk.open(TENANT, "p", &secret), Ok("Bearer canary".into()));
    let again = desk.seal("header:authorization", "Bearer canary").await?;
    assert_ne!(secret.sealed, again.sealed, "two seals of one text are not alike");
    assert!(!secret.sealed.windows(6).any(|window| window == b"canary"));

    let named = |name: &str| SealedSecret { name: SecretName::Header(name.into()), ..secret.clone() };
    for (place, moved) in [
        ("another tenant", desk.open(OTHER, "p", &secret)),
        ("another connection", desk.open(TENANT, "q", &secret)),
        ("another name", desk.open(TENANT, "p", &named("x-token"))),
        (
            "another kind",
            desk.open(TENANT, "p", &SealedSecret { name: SecretName::Password, ..secret.clone() }),
        ),
    ] {
        let error = moved.expect_err(place);
        assert!(
            error.contains("does not open with the key") && !error.contains("canary"),
            "{place}: {error}"
        );
    }
    for position in 0..secret.sealed.len() {
        let mut changed = secret.clone();
        changed.sealed[position] ^= 1;
        assert!(desk.open(TENANT, "p", &changed).is_err(), "byte {position}");
        changed.sealed.truncate(position);
        assert!(desk.open(TENANT, "p", &changed).is_err(), "cut at {position}");
    }
    Ok(())
}

#[tokio::test]
async fn the_first_key_seals_and_every_key_opens() -> anyhow::Result<()> {
    let desk = Desk::new()?;
    let old_text = desk.text()?;
    let old = desk.seal("header:x", "the-value").await?;
    // Another process puts a key before it: seen at the next seal, and when a secret asks for it.
    let ring = KeyRing::read(&desk.home.path().join("keys"))?;
    let rotated = KeyRing::with_new(Some(ring), random);
    desk.write(rotated.to_text().expose_secret())?;
    let new = desk.seal("header:x", "the-value").await?;
    assert_eq!((new.key.as_str(), rotated.ids().nth(1)), (rotated.first_id(), Some(old.key.as_str())));
    assert_eq!(desk.open(TENANT, "p", &old), Ok("the-value".into()));
    let resealed = desk.secrets.reseal(TENANT, "p", &old)?;
    assert_eq!(resealed.key, new.key);
    assert_eq!(desk.open(TENANT, "p", &resealed), Ok("the-value".into()));

    // A host that has the old file only says what it lacks, and opens as soon as it has it.
    let other = Desk::new()?;
    other.write(&old_text)?;
    assert_eq!(other.open(TENANT, "p", &old), Ok("the-value".into()));
    let error = other.open(TENANT, "p", &new).expect_err("it has no such key");
    assert!(error.contains(&format!("sealed with the key `{}`", new.key)), "{error}");
    other.write(&desk.text()?)?;
    assert_eq!(other.open(TENANT, "p", &new), Ok("the-value".into()));

    // A key that bears another one's id opens nothing.
    let third = Desk::new()?;
    let wrong = third.text()?.replace(KeyRing::read(&third.home.path().join("keys"))?.first_id(), &new.key);
    third.write(&wrong)?;
    assert!(third.open(TENANT, "p", &new).is_err());
    Ok(())
}

#[tokio::test]
async fn a_file_that_is_no_key_file_says_so_and_shows_no_key() -> anyhow::Result<()> {
    let desk = Desk::new()?;
    let key = "0123456789abcdef".repeat(4);
    for (text, expected) in [
        (String::new(), "holds no key"),
        ("# nothing\n\n".into(), "holds no key"),
        (key.clone(), "line 1 of"),
        (format!("# a\na {key}\nb {}\n", &key[1..]), "line 3 of"),
        (format!("a {}g\n", &key[1..]), "line 1 of"),
        (format!("a_b {key}\n"), "line 1 of"),
        (format!("a {key}\na {key}\n"), "two keys of the id `a`"),
    ] {
        desk.write(&text)?;
        let error = desk.seal("header:x", "the-value").await.expect_err(expected).to_string();
        assert!(error.contains(expected) && !error.contains(&key[..16]), "{error}");
    }
    fs::remove_file(desk.home.path().join("keys"))?;
    let error = desk.seal("header:x", "the-value").await.expect_err("no file").to_string();
    assert!(
        error.contains("there is no key file") && error.contains("counterfoil secret add-key"),
        "{error}"
    );
    Ok(())
}

#[test]
fn what_repeats_a_secret_is_hidden() {
    let opened = Opened {
        headers: vec![
            ("authorization".into(), "Basic dXNlcjpjYW5hcnk=".into()),
            ("x-token".into(), "q\"uo\\te/d-canary".into()),
        ],
        username: Some("ann".into()),
        password: Some("correct horse".into()),
    };
    for (text, truncated, expected) in [
        ("nothing of it", false, "nothing of it"),
        (
            r#"{"a":"Basic dXNlcjpjYW5hcnk=","b":"dXNlcjpjYW5hcnk="}"#,
            false,
            r#"{"a":"**********************","b":"****************"}"#,
        ),
        ("q\"uo\\te/d-canary", false, "****************"),
        (r#"{"t":"q\"uo\\te/d-canary"}"#, false, r#"{"t":"******************"}"#),
        (r#"{"t":"q\"uo\\te\/d-canary"}"#, false, r#"{"t":"*******************"}"#),
        ("correct horse correct hors horse ann", false, "************* correct hors horse ann"),
        ("…dXNlcjpjYW", true, "…**********"),
        ("…dXNlcjpjYW", false, "…dXNlcjpjYW"),
        ("…dXNl", true, "…dXNl"),
    ] {
        let mut bytes = text.as_bytes().to_vec();
        opened.hide(&mut bytes, truncated);
        assert_eq!(String::from_utf8_lossy(&bytes), expected, "{text}");
    }
    assert!(!format!("{opened:?}").contains("canary"));
}
