//! URLs that may be called.

use std::fmt;
use std::net::IpAddr;

use url::{Host, Position, Url};

use super::{AddressPolicy, Refusal};

/// Longest URL: what common servers and proxies accept.
pub const URL_BYTES_MAX: usize = 8 << 10;

/// Longest host name that DNS can carry.
const HOST_BYTES_MAX: usize = 253;
/// Longest label of one.
const LABEL_BYTES_MAX: usize = 63;

/// Ports below 1024 belong to one protocol each; these are the ones of HTTP.
const HTTP_PORTS: [u16; 2] = [80, 443];
const WELL_KNOWN_PORTS_END: u16 = 1024;

/// Top-level names that resolve to nothing on the public internet, by RFC 6761 and its successors.
const SPECIAL_USE: &[&str] = &["alt", "arpa", "example", "invalid", "onion", "test"];

/// Names of private networks: refused unless the operator opened one. (Their addresses are judged all the same.)
const PRIVATE_USE: &[&str] =
    &["corp", "home", "home.arpa", "internal", "intranet", "lan", "local", "localdomain", "private"];

/// A URL whose form was judged: `http` or `https`, a canonical host that may be called, a permitted port, no user-info
/// and no fragment. The addresses that its name resolves to are judged when it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination(Url);

/// What stands in the place of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// An address literal.
    Address(IpAddr),
    /// `localhost` or a name below it: loopback by definition, never asked of a name server.
    Loopback,
    /// A name to resolve, canonical and without a trailing dot.
    Name(&'a str),
}

impl Destination {
    /// Judges a URL as a block or a tenant wrote it.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn parse(text: &str, policy: &AddressPolicy) -> Result<Self, Refusal> {
        Self::judged(text, policy, &HTTP_PORTS)
    }

    /// As [`Destination::parse`], of a protocol with these ports below 1024.
    pub(super) fn judged(text: &str, policy: &AddressPolicy, ports: &[u16]) -> Result<Self, Refusal> {
        let refused = |why| Err(Refusal::Url { why });
        if text.len() > URL_BYTES_MAX {
            return refused("longer than 8 KiB");
        }
        if text.chars().any(char::is_control) {
            return refused("it holds a control character");
        }
        if text.contains('\\') {
            return refused("it holds a backslash, which readers take for different things");
        }
        let Ok(mut url) = Url::parse(text) else { return refused("not an absolute URL") };
        if !matches!(url.scheme(), "http" | "https") {
            return refused("its scheme is neither http nor https");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refused("it holds user-info");
        }
        // Whatever the parser had to mend before it saw this host, another reader may have mended otherwise.
        let rest = text.strip_prefix(&url[..Position::AfterHost]);
        if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#', ':'])) {
            return refused("its host is not in canonical form");
        }
        url.set_fragment(None);
        let destination = Self(url);
        destination.judge_host(policy)?;
        let port = destination.port();
        if port == 0 || port < WELL_KNOWN_PORTS_END && !ports.contains(&port) {
            return Err(Refusal::Port { port });
        }
        Ok(destination)
    }

    fn judge_host(&self, policy: &AddressPolicy) -> Result<(), Refusal> {
        match self.target() {
            Target::Address(address) => policy.judge(address),
            Target::Loopback if policy.loopback => Ok(()),
            Target::Loopback => Err(Refusal::Host { host: self.host().to_owned(), why: "it names loopback" }),
            Target::Name(name) => {
                judge_name(name, policy).map_err(|why| Refusal::Host { host: name.to_owned(), why })
            }
        }
    }

    /// The whole URL, for people and for the request's hash.
    pub fn url(&self) -> &Url {
        &self.0
    }

    /// Whether the call goes over TLS.
    pub fn is_tls(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// The host as it appears in a URL: IPv6 addresses in brackets.
    pub fn host(&self) -> &str {
        &self.0[Position::BeforeHost..Position::AfterHost]
    }

    /// The port, the scheme's own where the URL names none.
    pub fn port(&self) -> u16 {
        self.0.port().unwrap_or(if self.is_tls() { 443 } else { 80 })
    }

    /// The value of the `Host` header: the port only where it is not the scheme's own.
    pub fn authority(&self) -> &str {
        &self.0[Position::BeforeHost..Position::AfterPort]
    }

    /// The request target: path and query.
    pub fn path_and_query(&self) -> &str {
        &self.0[Position::BeforePath..Position::AfterQuery]
    }

    /// What the host stands for.
    pub fn target(&self) -> Target<'_> {
        match self.0.host() {
            Some(Host::Ipv4(address)) => Target::Address(address.into()),
            Some(Host::Ipv6(address)) => Target::Address(address.into()),
            Some(Host::Domain(name)) if is_below(name, "localhost") => Target::Loopback,
            Some(Host::Domain(name)) => Target::Name(name),
            // The parser refuses http URLs without a host; an empty name resolves to nothing.
            None => Target::Name(""),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn judge_name(name: &str, policy: &AddressPolicy) -> Result<(), &'static str> {
    if name.ends_with('.') {
        return Err("it ends in a dot");
    }
    if name.len() > HOST_BYTES_MAX {
        return Err("longer than 253 bytes");
    }
    if name.split('.').any(|label| label.is_empty() || label.len() > LABEL_BYTES_MAX) {
        return Err("a label is empty or longer than 63 bytes");
    }
    if !name.contains('.') {
        return Err("a single label names a machine of some local network");
    }
    if PRIVATE_USE.iter().any(|zone| is_below(name, zone)) {
        return if policy.private.is_empty() { Err("the name is for private use") } else { Ok(()) };
    }
    if SPECIAL_USE.iter().any(|zone| is_below(name, zone)) {
        return Err("the name is for special use");
    }
    Ok(())
}

/// Whether `name` is `zone` or lies below it.
fn is_below(name: &str, zone: &str) -> bool {
    name.strip_suffix(zone).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        url: String,
        verdict: String,
        why: String,
    }

    fn verdict(text: &str, policy: &AddressPolicy) -> String {
        Destination::parse(text, policy).map_or_else(|refusal| refusal.to_string(), |_| "allow".to_owned())
    }

    #[test]
    fn every_listed_url_gets_its_verdict() {
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("../../cases/urls.json")).expect("the cases are readable");
        for Case { url, verdict, why } in cases {
            let parsed = Destination::parse(&url, &AddressPolicy::default());
            assert_eq!(parsed.is_ok(), verdict == "allow", "{url:?} {why}: {parsed:?}");
        }
    }

    #[test]
    fn each_rule_has_its_reason() {
        let long_label = format!("https://{}.example.com/", "a".repeat(64));
        let long_name = format!("https://{}example.com/", "a.".repeat(122));
        let long_url = format!("https://example.com/{}", "a".repeat(URL_BYTES_MAX));
        for (text, expected) in [
            ("https://example.com", "allow"),
            ("https://example.com?a=b", "allow"),
            ("https://example.com/ä b|[c]", "allow"),
            ("https://example.com:65535/", "allow"),
            ("https://_srv.example.com/", "allow"),
            ("https://1.1.1.1/", "allow"),
            ("https://[2606:4700:4700::1111]:8443/", "allow"),
            ("https://EXAMPLE.com/", "the URL is refused: its host is not in canonical form"),
            ("HTTPS://example.com/", "the URL is refused: its host is not in canonical form"),
            (" https://example.com/", "the URL is refused: its host is not in canonical form"),
            ("https://@example.com/", "the URL is refused: its host is not in canonical form"),
            ("https:example.com/", "the URL is refused: its host is not in canonical form"),
            ("https://bücher.example.com/", "the URL is refused: its host is not in canonical form"),
            ("https://[2606:4700:4700:0::1111]/", "the URL is refused: its host is not in canonical form"),
            (
                "https://example.com\\@evil.com/",
                "the URL is refused: it holds a backslash, which readers take for different things",
            ),
            ("https://example.com/\u{85}", "the URL is refused: it holds a control character"),
            ("https://exam\tple.com/", "the URL is refused: it holds a control character"),
            ("https://example.com@evil.com/", "the URL is refused: it holds user-info"),
            ("https://:pw@example.com/", "the URL is refused: it holds user-info"),
            ("/charges", "the URL is refused: not an absolute URL"),
            ("https://", "the URL is refused: not an absolute URL"),
            ("https://example.com:99999/", "the URL is refused: not an absolute URL"),
            ("https://1.2.3.4.5/", "the URL is refused: not an absolute URL"),
            ("javascript:alert(1)", "the URL is refused: its scheme is neither http nor https"),
            ("ws://example.com/", "the URL is refused: its scheme is neither http nor https"),
            (
                "https://example.com:25/",
                "port 25 is refused: of the ports below 1024 only 80 and 443 may be called",
            ),
            (
                "https://1.0.0.127.in-addr.arpa/",
                "host 1.0.0.127.in-addr.arpa is refused: the name is for special use",
            ),
            ("https://a.test/", "host a.test is refused: the name is for special use"),
            ("https://db.home.arpa/", "host db.home.arpa is refused: the name is for private use"),
            ("https://a.localhost/", "host a.localhost is refused: it names loopback"),
            ("https://10.0.0.1/", "address 10.0.0.1 is refused: private"),
            (&long_url, "the URL is refused: longer than 8 KiB"),
        ] {
            assert_eq!(verdict(text, &AddressPolicy::default()), expected, "{text}");
        }
        for (text, expected) in
            [(long_label, "a label is empty or longer than 63 bytes"), (long_name, "longer than 253 bytes")]
        {
            assert!(verdict(&text, &AddressPolicy::default()).ends_with(expected), "{text}");
        }
    }

    #[test]
    fn names_follow_the_networks_that_are_opened() {
        let closed = AddressPolicy::default();
        let development = AddressPolicy { loopback: true, private: vec![] };
        let intranet = AddressPolicy {
            loopback: false,
            private: vec!["10.0.0.0/8".parse().expect("a private network")],
        };
        for (text, when_closed, in_development, in_intranet) in [
            ("http://localhost:8080/", false, true, false),
            ("http://a.localhost:8080/", false, true, false),
            ("http://notlocalhost.example.com/", true, true, true),
            ("http://localhost.:8080/", false, false, false),
            ("http://127.0.0.1:8080/", false, true, false),
            ("http://127.1:8080/", false, false, false),
            ("http://[::1]:8080/", false, true, false),
            ("http://db.internal/", false, false, true),
            ("http://10.0.0.1/", false, false, true),
            ("http://metadata/", false, false, false),
        ] {
            for (policy, expected) in
                [(&closed, when_closed), (&development, in_development), (&intranet, in_intranet)]
            {
                assert_eq!(Destination::parse(text, policy).is_ok(), expected, "{text} under {policy:?}");
            }
        }
    }

    #[test]
    fn the_parts_are_those_that_go_on_the_wire() {
        for (text, authority, port, path_and_query) in [
            ("https://example.com:443/a?b=c#d", "example.com", 443, "/a?b=c"),
            ("http://example.com?b", "example.com", 80, "/?b"),
            ("https://[2606:4700:4700::1111]:8443/a/./b/../c", "[2606:4700:4700::1111]:8443", 8443, "/a/c"),
            ("https://example.com/ä b", "example.com", 443, "/%C3%A4%20b"),
        ] {
            let destination = Destination::parse(text, &AddressPolicy::default()).expect(text);
            let parts = (destination.authority(), destination.port(), destination.path_and_query());
            assert_eq!(parts, (authority, port, path_and_query), "{text}");
        }
    }
}
