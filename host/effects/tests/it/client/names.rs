//! Names: asked for once, and every address of the answer judged.

use std::net::{IpAddr, Ipv4Addr};

use counterfoil_domain::outbound::AddressPolicy;
use counterfoil_domain::ports::NoFaults;
use counterfoil_effects::client::{Budget, Client, ClientConfig, Exchange, NameServers, NotSentKind};
use counterfoil_testkit::provider::{Provider, ProviderConfig};

use super::dns::{Entry, NO_SUCH_NAME, NameServer, SERVER_FAILURE};
use super::{Came, client, loopback, open, post};

fn asking(server: &NameServer, policy: AddressPolicy) -> Client {
    let name_servers = NameServers::Fixed(vec![server.address]);
    client(ClientConfig { policy, name_servers, ..ClientConfig::default() })
}

fn addresses(texts: &[&str]) -> Entry {
    Entry::Addresses(texts.iter().map(|text| text.parse::<IpAddr>().expect(text)).collect())
}

async fn exchange(client: &Client, url: &str) -> Exchange {
    client.exchange(post(url), &Budget::DEFAULT, &open(), &NoFaults).await
}

#[tokio::test]
async fn a_name_is_called_at_its_address_and_by_its_name() {
    let server = NameServer::start(&[("pay.example.com.", addresses(&["127.0.0.1"]))]).await;
    let provider = Provider::start(ProviderConfig::default()).await.expect("a provider starts");
    let port = provider.address().port();
    let came =
        exchange(&asking(&server, loopback()), &format!("http://pay.example.com:{port}/charges")).await;
    assert_eq!(Came::from(&came), Came::Answered(201));
    assert_eq!(provider.calls()[0].header("host"), Some(format!("pay.example.com:{port}").as_str()));
    assert_eq!(server.asked(), ["pay.example.com. A", "pay.example.com. AAAA"]);
}

#[tokio::test]
async fn one_refused_address_refuses_the_name() {
    let provider = Provider::start(ProviderConfig::default()).await.expect("a provider starts");
    let port = provider.address().port();
    for (entry, reason) in [
        (addresses(&["127.0.0.1", "10.0.0.1"]), "not sent: address 10.0.0.1 is refused: private"),
        (addresses(&["10.0.0.1", "127.0.0.1"]), "not sent: address 10.0.0.1 is refused: private"),
        (addresses(&["127.0.0.1", "fd00::1"]), "not sent: address fd00::1 is refused: unique-local"),
        (
            addresses(&["8.8.8.8", "169.254.169.254"]),
            "not sent: address 169.254.169.254 is refused: metadata service",
        ),
        (addresses(&["::ffff:127.0.0.1"]), "not sent: address ::ffff:127.0.0.1 is refused: loopback"),
        (addresses(&["64:ff9b::a00:1"]), "not sent: address 64:ff9b::a00:1 is refused: private"),
        (
            Entry::Alias("inside.example.com", Ipv4Addr::new(192, 168, 0, 1)),
            "not sent: address 192.168.0.1 is refused: private",
        ),
    ] {
        let server = NameServer::start(&[("pay.example.com.", entry.clone())]).await;
        let came =
            exchange(&asking(&server, loopback()), &format!("http://pay.example.com:{port}/charges")).await;
        assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::Refused), "{entry:?}");
        let Exchange::NotSent(not_sent) = came else { unreachable!() };
        assert_eq!(not_sent.to_string(), reason);
    }
    let server = NameServer::start(&[("pay.example.com.", addresses(&["127.0.0.1"]))]).await;
    let came = exchange(
        &asking(&server, AddressPolicy::default()),
        &format!("http://pay.example.com:{port}/charges"),
    )
    .await;
    assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::Refused), "without the development setting");
    assert_eq!(provider.calls(), []);
}

/// So many that they do not fit into a datagram: the last one counts as much as the first.
#[tokio::test]
async fn each_of_a_thousand_addresses_is_judged() {
    let provider = Provider::start(ProviderConfig::default()).await.expect("a provider starts");
    let url = format!("http://pay.example.com:{}/charges", provider.address().port());
    let mut thousand = vec!["127.0.0.1"; 1_000];
    for (last, expected) in
        [("127.0.0.2", Came::Answered(201)), ("10.0.0.1", Came::NotSent(NotSentKind::Refused))]
    {
        thousand[999] = last;
        let server = NameServer::start(&[("pay.example.com.", addresses(&thousand))]).await;
        let came = exchange(&asking(&server, loopback()), &url).await;
        assert_eq!(Came::from(&came), expected, "{came:?}");
    }
    assert_eq!(provider.calls().len(), 1);
}

#[tokio::test]
async fn a_name_that_changes_its_mind_is_judged_each_time() {
    let rebinding = Entry::Rebinding(vec![Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 0, 1)]);
    let server = NameServer::start(&[("pay.example.com.", rebinding)]).await;
    let provider = Provider::start(ProviderConfig::default()).await.expect("a provider starts");
    let url = format!("http://pay.example.com:{}/charges", provider.address().port());
    let client = asking(&server, loopback());
    for expected in [Came::Answered(201), Came::NotSent(NotSentKind::Refused), Came::Answered(201)] {
        assert_eq!(Came::from(&exchange(&client, &url).await), expected);
    }
    let asked_for_v4 = server.asked().iter().filter(|asked| asked.ends_with(" A")).count();
    assert_eq!(asked_for_v4, 3, "once for each exchange");
}

#[tokio::test]
async fn a_name_that_cannot_be_resolved_is_not_sent() {
    let server = NameServer::start(&[
        ("missing.example.com.", Entry::Code(NO_SUCH_NAME)),
        ("broken.example.com.", Entry::Code(SERVER_FAILURE)),
        ("empty.example.com.", addresses(&[])),
        ("silent.example.com.", Entry::Silence),
    ])
    .await;
    let client = asking(&server, loopback());
    for (name, expected) in [
        ("missing", "resolving missing.example.com: DNS error: no records found"),
        ("broken", "resolving broken.example.com: "),
        ("empty", "resolving empty.example.com: DNS error: no records found"),
        ("silent", "resolving silent.example.com took too long"),
    ] {
        let budget = Budget { dns_ms_max: if name == "silent" { 100 } else { 10_000 }, ..Budget::DEFAULT };
        let request = post(&format!("http://{name}.example.com:8080/"));
        let came = client.exchange(request, &budget, &open(), &NoFaults).await;
        assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::Dns), "{name}: {came:?}");
        let Exchange::NotSent(not_sent) = came else { unreachable!() };
        assert!(not_sent.detail.starts_with(expected), "{name}: {}", not_sent.detail);
    }
}

#[tokio::test]
async fn localhost_is_not_asked_for() {
    let server = NameServer::start(&[
        ("localhost.", addresses(&["8.8.8.8"])),
        ("a.localhost.", addresses(&["8.8.8.8"])),
    ])
    .await;
    let provider = Provider::start(ProviderConfig::default()).await.expect("a provider starts");
    let client = asking(&server, loopback());
    for host in ["localhost", "a.localhost"] {
        let came = exchange(&client, &format!("http://{host}:{}/charges", provider.address().port())).await;
        assert_eq!(Came::from(&came), Came::Answered(201), "{host}: {came:?}");
    }
    assert_eq!(server.asked(), Vec::<String>::new());
}
