//! Mail, over a real server: what is sent, what is recorded, and what the block is told.

use std::time::Duration;

use counterfoil_domain::connection::SecretName;
use counterfoil_domain::effect::{Answer, EffectCall, EffectReply, EffectRequest, MailMessage, Safety};
use counterfoil_domain::ports::{EffectPort as _, SecretSealer as _};
use counterfoil_effects::secrets::{KeyRing, Secrets};
use counterfoil_store::connection::{NewConnection, SecretChanges};
use counterfoil_testkit::smtp::{Letter, MailServer, Stage, Tls, Twist};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::{Desk, call, guard_with, told};

/// A desk with a mail server behind the connection `post`.
struct Post {
    desk: Desk,
    server: MailServer,
}

impl Post {
    async fn new() -> anyhow::Result<Self> {
        let desk = Desk::new().await?;
        let server = MailServer::start(Tls::None).await?;
        let mail = json!({ "mail": { "from": "Acme Billing <billing@acme.com>", "plain": true } });
        desk.work.connect("post", &format!("smtp://{}", server.address()), mail).await?;
        Ok(Self { desk, server })
    }
}

fn letter() -> EffectCall {
    changed(|_| ())
}

fn changed(change: impl FnOnce(&mut MailMessage)) -> EffectCall {
    let mut message = MailMessage {
        to: vec!["ada@example.com".into(), "Bob <bob@example.com>".into()],
        subject: "Your ordér".into(),
        text: "It is paid.\n.\nThanks, ädä".into(),
        html: None,
        headers: vec![("Reply-To".into(), "team@acme.com".into())],
    };
    change(&mut message);
    let request = EffectRequest::Mail(message);
    let connection = Some("post".into());
    EffectCall { request, connection, timeout_ms: Some(2_000), ..call("GET", "/", Some("letter"), None) }
}

fn field<'a>(letter: &'a Letter, name: &str) -> Vec<&'a str> {
    let head = letter.content.split("\r\n\r\n").next().unwrap_or_default();
    head.split("\r\n").filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
}

#[tokio::test]
async fn a_message_is_sent_once_and_found_by_its_receipt() -> anyhow::Result<()> {
    let Post { desk, server } = Post::new().await?;
    desk.work.admit("tell").await?;
    let first = desk.begin().await?;
    let reply = desk.perform(&first, letter()).await;
    assert_eq!(reply, EffectReply::Answered(Answer::Mailed("250 2.0.0 queued as 1".into())));
    desk.guard.record_alone(desk.guard.finish(first.fence.lease).await.writes).await;

    let letters = server.letters();
    let [sent] = letters.as_slice() else { panic!("{letters:?}") };
    assert_eq!(
        (sent.from.as_str(), sent.to.join(" ")),
        ("billing@acme.com", "ada@example.com bob@example.com".into())
    );
    assert_eq!(field(sent, "From"), ["\"Acme Billing\" <billing@acme.com>"]);
    assert_eq!(field(sent, "Reply-To"), ["team@acme.com"]);
    assert_eq!(field(sent, "Subject").len(), 1);
    assert_eq!(field(sent, "Date").len(), 1);
    let receipt = desk.work.store.journal(desk.work.tenant, &first.place).await?.remove(0);
    assert_eq!(field(sent, "Message-ID"), [format!("<{}@acme.com>", receipt.id)]);
    assert_eq!(receipt.request.idempotency_key, receipt.id.to_string());
    assert_eq!(receipt.request.preview["summary"], "mail to ada@example.com and 1 more: Your ordér");

    // The host dies here; the next one hands the reply over, and sends nothing.
    desk.work.let_time_pass().await?;
    let second = desk.begin().await?;
    assert_eq!(desk.perform(&second, letter()).await, reply);
    assert_eq!(desk.end(&second).await?, "settled");
    assert_eq!((server.letters().len(), server.conversations()), (1, 1));
    Ok(())
}

/// Until the content begins, whatever happens is known not to have sent anything; from then on only the server's reply
/// tells.
#[tokio::test]
async fn a_reply_means_what_its_place_says() -> anyhow::Result<()> {
    let reply = Twist::Reply;
    for (stage, twist, expected, end, receipt, letters) in [
        (Stage::Greeting, reply("421 busy"), "rejected 421", "settled", "rejected", 0),
        (Stage::Greeting, reply("554 go away"), "rejected 554", "settled", "rejected", 0),
        (Stage::Greeting, reply("HTTP/1.1 200 OK"), "not sent", "settled", "rejected", 0),
        (Stage::Greeting, Twist::Close, "not sent", "settled", "rejected", 0),
        (Stage::Ehlo, reply("502 what"), "rejected 502", "settled", "rejected", 0),
        (Stage::Ehlo, Twist::Close, "not sent", "settled", "rejected", 0),
        (Stage::Mail, reply("451 later"), "rejected 451", "settled", "rejected", 0),
        (Stage::Mail, reply("550 who"), "rejected 550", "settled", "rejected", 0),
        (Stage::Mail, Twist::Silence, "not sent", "settled", "rejected", 0),
        (Stage::Rcpt, reply("450 greylisted"), "rejected 450", "settled", "rejected", 0),
        (Stage::Rcpt, reply("550 no such user"), "rejected 550", "settled", "rejected", 0),
        (Stage::Rcpt, reply("251 will forward"), "mailed", "settled", "committed", 1),
        (Stage::Rcpt, Twist::Close, "not sent", "settled", "rejected", 0),
        (Stage::Data, reply("451 no room"), "rejected 451", "settled", "rejected", 0),
        (Stage::Data, reply("554 no"), "rejected 554", "settled", "rejected", 0),
        (Stage::Data, reply("250 ok"), "not sent", "settled", "rejected", 0),
        (Stage::Data, Twist::Close, "not sent", "settled", "rejected", 0),
        (Stage::Content, reply("250-one\r\n250 two"), "mailed", "settled", "committed", 1),
        (Stage::Content, reply("452 no room"), "rejected 452", "settled", "rejected", 0),
        (Stage::Content, reply("554 it is spam"), "rejected 554", "settled", "rejected", 0),
        (Stage::Content, Twist::Close, "nothing", "blocked", "unknown", 1),
        (Stage::Content, Twist::Silence, "nothing", "blocked", "unknown", 1),
        (Stage::Content, reply("who knows"), "nothing", "blocked", "unknown", 1),
        (Stage::Content, reply("354 more"), "nothing", "blocked", "unknown", 1),
    ] {
        let shown = format!("{stage:?} {twist:?}");
        let Post { desk, server } = Post::new().await?;
        let silent = twist == Twist::Silence;
        server.twist(stage, twist);
        desk.work.admit("tell").await?;
        let claimed = desk.begin().await?;
        let mut call = letter();
        call.timeout_ms = silent.then_some(300).or(call.timeout_ms);
        assert_eq!(told(&desk.perform(&claimed, call).await), expected, "{shown}");
        assert_eq!(desk.end(&claimed).await?, end, "{shown}");
        assert_eq!(desk.work.receipts().await?, [format!("letter:0 {receipt}")], "{shown}");
        if letters == 1 {
            server.wait_for_letters(1).await?;
        }
        assert_eq!((server.letters().len(), server.conversations()), (letters, 1), "{shown}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_no_message_is_denied_and_nobody_is_called() -> anyhow::Result<()> {
    let with = |change: fn(&mut EffectCall)| {
        let mut call = letter();
        change(&mut call);
        call
    };
    for (name, call) in [
        ("a second header field", changed(|m| m.subject = "a\r\nBcc: eve@example.com".into())),
        ("a second command", changed(|m| m.to = vec!["a@example.com>\r\nRCPT TO:<eve@example.com".into()])),
        ("another recipient", changed(|m| m.headers = vec![("Bcc".into(), "eve@example.com".into())])),
        ("a header field in a value", changed(|m| m.headers = vec![("X-A".into(), "b\nBcc: c".into())])),
        ("another sender", changed(|m| m.headers = vec![("From".into(), "eve@example.com".into())])),
        ("nobody", changed(|m| m.to = vec![])),
        ("everybody", changed(|m| m.to = vec!["a@example.com".into(); 101])),
        ("no address", changed(|m| m.to = vec!["ada".into()])),
        ("two addresses in one", changed(|m| m.to = vec!["a@example.com, b@example.com".into()])),
        ("no subject", changed(|m| m.subject = String::new())),
        ("a text over the limit", changed(|m| m.text = "x".repeat((1 << 20) + 1))),
        ("no connection", with(|call| call.connection = None)),
        ("a connection that is none", with(|call| call.connection = Some("nowhere".into()))),
        ("a connection that is no mail server", with(|call| call.connection = Some("p".into()))),
        ("a repeat that nobody recognises", with(|call| call.safety = Some(Safety::Idempotent))),
        ("a key that nobody recognises", with(|call| call.idempotency_key = Some("k".into()))),
    ] {
        let Post { desk, server } = Post::new().await?;
        desk.work.admit("tell").await?;
        let claimed = desk.begin().await?;
        assert_eq!(told(&desk.perform(&claimed, call).await), "denied", "{name}");
        assert_eq!(desk.end(&claimed).await?, "settled", "{name}");
        assert_eq!(desk.work.receipts().await?, ["letter:0 rejected"], "{name}");
        assert_eq!(server.conversations(), 0, "{name}");
    }
    Ok(())
}

/// For mail, the first byte is that of the content: the conversation before it may take as long as it likes.
#[tokio::test]
async fn the_content_does_not_leave_after_the_send_window() -> anyhow::Result<()> {
    let Post { desk, server } = Post::new().await?;
    let keyless = Secrets::new("/nowhere".into(), |_| {});
    let late = guard_with(&desk.work, Duration::from_hours(1), keyless, Duration::from_millis(1))?;
    desk.work.admit("tell").await?;
    let claimed = desk.work.claim(super::LEASE).await?;
    late.begin(desk.context(&claimed));
    let reply = late.perform(claimed.fence.lease, letter()).await;
    assert_eq!(told(&reply), "not sent");
    assert_eq!((server.letters().len(), server.conversations()), (0, 1));
    let finished = late.finish(claimed.fence.lease).await;
    assert_eq!(desk.settle(&claimed, finished).await?, "settled");
    assert_eq!(desk.work.receipts().await?, ["letter:0 rejected"]);
    Ok(())
}

/// The server learns who the tenant is, and nobody else does: not the block, whatever the server repeats, and no receipt.
#[tokio::test]
async fn a_connection_signs_in_with_its_secrets() -> anyhow::Result<()> {
    let Post { mut desk, server } = Post::new().await?;
    let home = tempfile::tempdir()?;
    let file = home.path().join("keys");
    std::fs::write(&file, KeyRing::with_new(None, |bytes| bytes.fill(7)).to_text().expose_secret())?;
    let secrets = Secrets::new(file, |bytes| bytes.fill(9));
    desk.guard = guard_with(&desk.work, Duration::from_hours(1), secrets.clone(), super::LEASE)?;
    let named = [(SecretName::Username, "ada"), (SecretName::Password, "canary-5a1c")]
        .map(|(name, value)| (name, SecretString::from(value)));
    let set = secrets.seal(desk.work.tenant, "post", named.into()).await?;
    desk.work
        .set_connection(&NewConnection {
            name: "post".into(),
            base_url: format!("smtp://{}", server.address()),
            allowed_hosts: vec![server.address().to_string()],
            abilities: json!({ "mail": { "from": "billing@acme.com", "plain": true } }),
            rate: None,
            in_flight_max: None,
            secrets: SecretChanges { set, ..Default::default() },
        })
        .await?;
    server.twist(Stage::Content, Twist::Reply("250 queued for ada, who said canary-5a1c"));
    desk.work.admit("tell").await?;
    let claimed = desk.begin().await?;
    let reply = desk.perform(&claimed, letter()).await;
    let EffectReply::Answered(Answer::Mailed(told)) = &reply else { panic!("{reply:?}") };
    assert!(told.starts_with("250 queued for") && !told.contains("canary"), "{told}");
    assert_eq!(desk.end(&claimed).await?, "settled");
    let signed_in = server.letters().remove(0).signed_in.map(|(_, plain)| plain);
    // "\0ada\0canary-5a1c"
    assert_eq!(signed_in.as_deref(), Some("AGFkYQBjYW5hcnktNWExYw=="));
    let dump = desk.work.database.dump().await;
    assert!(dump.iter().all(|line| !line.contains("canary")), "{dump:#?}");
    Ok(())
}
