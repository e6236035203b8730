//! Mail servers with TLS and without: nothing that matters goes over an open line, and nothing at all to a stranger.

use counterfoil_domain::outbound::{AddressPolicy, MailServer as Server};
use counterfoil_domain::ports::NoFaults;
use counterfoil_effects::client::{
    Budget, Client, ClientConfig, MailExchange, NameServers, NotSentKind, WireMail,
};
use counterfoil_testkit::smtp::{MailServer, Stage, Tls, Twist};
use secrecy::SecretString;

use super::dns::{Entry, NameServer};
use super::tls::authority;
use super::{client, config, loopback, open};

fn mail(url: &str, plain: bool, policy: &AddressPolicy) -> WireMail {
    WireMail {
        server: Server::parse(url, plain, policy).expect(url),
        credentials: Some((SecretString::from("ada"), SecretString::from("pässword"))),
        from: "billing@acme.com".into(),
        to: vec!["bob@example.com".into()],
        content: b"Subject: a\r\n\r\n.b\r\n".to_vec(),
    }
}

async fn send(client: &Client, mail: &WireMail) -> String {
    match client.mail(mail, &Budget::DEFAULT, &open(), &NoFaults).await {
        MailExchange::NotSent(not_sent) => format!("not sent: {:?}", not_sent.kind),
        MailExchange::Refused(reply) => format!("refused: {} {}", reply.code, reply.text),
        MailExchange::Answered(reply) => format!("answered: {}", reply.code),
        MailExchange::Lost(lost) => format!("lost: {:?}", lost.kind),
    }
}

#[tokio::test]
async fn a_message_goes_as_its_url_says_or_not_at_all() -> anyhow::Result<()> {
    let (trusted, other) = (authority(), authority());
    let client = client(ClientConfig { extra_roots: vec![trusted.root()], ..config() });
    let stranger = format!("not sent: {:?}", NotSentKind::Tls);
    let broken = format!("not sent: {:?}", NotSentKind::Connect);
    for (name, tls, scheme, plain, expected) in [
        ("open", Tls::None, "smtp", true, "answered: 250"),
        ("upgraded", Tls::OnRequest(trusted.issue("127.0.0.1")), "smtp", false, "answered: 250"),
        ("in TLS", Tls::AtOnce(trusted.issue("127.0.0.1")), "smtps", false, "answered: 250"),
        ("no upgrade offered", Tls::None, "smtp", false, broken.as_str()),
        ("upgraded to a stranger", Tls::OnRequest(other.issue("127.0.0.1")), "smtp", false, &stranger),
        (
            "upgraded to another name",
            Tls::OnRequest(trusted.issue("mail.acme.com")),
            "smtp",
            false,
            &stranger,
        ),
        ("in TLS with a stranger", Tls::AtOnce(other.issue("127.0.0.1")), "smtps", false, &stranger),
        ("in TLS with an open server", Tls::None, "smtps", false, &stranger),
    ] {
        let is_open = matches!(tls, Tls::None);
        let server = MailServer::start(tls).await?;
        let url = format!("{scheme}://{}", server.address());
        assert_eq!(send(&client, &mail(&url, plain, &loopback())).await, expected, "{name}");
        let letters = server.letters();
        assert_eq!(letters.len(), usize::from(expected.starts_with("answered")), "{name}");
        for letter in letters {
            assert_eq!(letter.in_tls, !is_open, "{name}");
            assert_eq!(letter.content, "Subject: a\r\n\r\n.b\r\n", "{name}");
            // "\0ada\0pässword"
            let signed_in = ("PLAIN".to_owned(), "AGFkYQBww6Rzc3dvcmQ=".to_owned());
            assert_eq!(letter.signed_in, Some(signed_in), "{name}");
        }
    }
    Ok(())
}

/// Whoever sits on the line may say anything before the handshake; none of it is taken for the server's word.
#[tokio::test]
async fn what_is_said_before_the_handshake_counts_for_nothing() -> anyhow::Result<()> {
    let authority = authority();
    let client = client(ClientConfig { extra_roots: vec![authority.root()], ..config() });
    for twist in ["220 go\r\n250 forged", "454 not now", "250 what"] {
        let server = MailServer::start(Tls::OnRequest(authority.issue("127.0.0.1"))).await?;
        server.twist(Stage::StartTls, Twist::Reply(twist));
        let came = send(&client, &mail(&format!("smtp://{}", server.address()), false, &loopback())).await;
        assert!(came.starts_with("not sent") || came.starts_with("refused: 454"), "{twist}: {came}");
        assert_eq!(server.letters(), vec![], "{twist}");
    }
    Ok(())
}

/// A password that a server repeats does not come back to the block.
#[tokio::test]
async fn refused_credentials_are_not_repeated() -> anyhow::Result<()> {
    let server = MailServer::start(Tls::None).await?;
    server.twist(Stage::Auth, Twist::Reply("535 wrong: AGFkYQBww6Rzc3dvcmQ="));
    let mail = mail(&format!("smtp://{}", server.address()), true, &loopback());
    let came = send(&client(config()), &mail).await;
    assert_eq!(came, "refused: 535 the connection's credentials are refused");
    Ok(())
}

/// Without TLS, anybody on the way could read the message and the password.
#[tokio::test]
async fn an_open_line_stays_inside() -> anyhow::Result<()> {
    let addresses = vec![[93, 184, 215, 14].into(), [127, 0, 0, 1].into()];
    let name_server = NameServer::start(&[("mail.acme.com.", Entry::Addresses(addresses))]).await;
    let client = client(ClientConfig {
        policy: loopback(),
        name_servers: NameServers::Fixed(vec![name_server.address]),
        ..ClientConfig::default()
    });
    let came = send(&client, &mail("smtp://mail.acme.com:2525", true, &loopback())).await;
    assert_eq!(came, format!("not sent: {:?}", NotSentKind::Refused));
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_not_there_is_not_sent_to() -> anyhow::Result<()> {
    let address = MailServer::start(Tls::None).await?.address();
    tokio::task::yield_now().await;
    let came = send(&client(config()), &mail(&format!("smtp://{address}"), true, &loopback())).await;
    assert_eq!(came, format!("not sent: {:?}", NotSentKind::Connect));
    Ok(())
}
