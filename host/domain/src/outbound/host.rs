//! Lists of hosts that may be called.

use std::fmt;
use std::str::FromStr;

use url::{Host, Url};

use super::{Destination, Refusal};

/// One entry of a list: a host name or address, or `*.` and a name for everything below it; then, where given, a port.
/// Without one it stands for every port that may be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    /// In the form of a URL: lower case, IPv6 addresses in brackets.
    host: String,
    below: bool,
    port: Option<u16>,
}

impl HostPattern {
    fn matches(&self, destination: &Destination) -> bool {
        let host_matches = if self.below {
            destination
                .host()
                .strip_suffix(&self.host)
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        } else {
            destination.host() == self.host
        };
        host_matches && self.port.is_none_or(|port| port == destination.port())
    }
}

impl FromStr for HostPattern {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let refused = |why| Refusal::Pattern { pattern: text.to_owned(), why };
        let (below, authority) = text.strip_prefix("*.").map_or((false, text), |authority| (true, authority));
        if authority.contains(['/', '?', '#', '@', '\\', '*']) {
            return Err(refused("neither a host, nor a host and a port"));
        }
        let url = Url::parse(&format!("http://{authority}/"))
            .map_err(|_| refused("neither a host, nor a host and a port"))?;
        let host = url.host_str().unwrap_or_default();
        let port = match authority.strip_prefix(host) {
            Some("") => None,
            // Read here: the URL parser drops a port that is its scheme's own.
            Some(rest) => Some(
                rest.strip_prefix(':')
                    .and_then(|port| port.parse::<u16>().ok())
                    .ok_or_else(|| refused("neither a host, nor a host and a port"))?,
            ),
            None => return Err(refused("the host is not in canonical form")),
        };
        if below && !matches!(url.host(), Some(Host::Domain(name)) if name.contains('.')) {
            return Err(refused("a wildcard stands before a name of at least two labels"));
        }
        Ok(Self { host: host.to_owned(), below, port })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wildcard = if self.below { "*." } else { "" };
        write!(f, "{wildcard}{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// The hosts that a connection, or a block's grant, may reach. An empty list allows nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedHosts(Vec<HostPattern>);

impl AllowedHosts {
    /// Reads a list.
    ///
    /// # Errors
    /// [`Refusal::Pattern`] with the first entry that cannot be read.
    pub fn parse<T: AsRef<str>>(patterns: &[T]) -> Result<Self, Refusal> {
        patterns.iter().map(|pattern| pattern.as_ref().parse()).collect::<Result<_, _>>().map(Self)
    }

    /// Judges a destination.
    ///
    /// # Errors
    /// [`Refusal::NotAllowed`] unless an entry matches.
    pub fn judge(&self, destination: &Destination) -> Result<(), Refusal> {
        if self.0.iter().any(|pattern| pattern.matches(destination)) {
            return Ok(());
        }
        Err(Refusal::NotAllowed { host: destination.host().to_owned(), port: destination.port() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::AddressPolicy;

    #[test]
    fn a_pattern_matches_whole_hosts() {
        let policy = AddressPolicy { loopback: true, private: vec![] };
        for (pattern, url, expected) in [
            ("example.com", "https://example.com/", true),
            ("example.com", "http://example.com:8080/", true),
            ("example.com", "https://a.example.com/", false),
            ("example.com", "https://notexample.com/", false),
            ("example.com", "https://example.com.evil.net/", false),
            ("example.com:8443", "https://example.com:8443/", true),
            ("example.com:8443", "https://example.com/", false),
            ("example.com:443", "https://example.com/", true),
            ("example.com:80", "http://example.com/", true),
            ("example.com:80", "https://example.com/", false),
            ("*.example.com", "https://a.example.com/", true),
            ("*.example.com", "https://a.b.example.com/", true),
            ("*.example.com", "https://example.com/", false),
            ("*.example.com", "https://notexample.com/", false),
            ("*.example.com:8443", "https://a.example.com/", false),
            ("1.1.1.1", "https://1.1.1.1/", true),
            ("1.1.1.1", "https://1.1.1.11/", false),
            ("127.0.0.1:9000", "http://127.0.0.1:9000/", true),
            ("127.0.0.1:9000", "http://127.0.0.1:9001/", false),
            ("[::1]:9000", "http://[::1]:9000/", true),
            ("[::1]", "http://[::1]:9000/", true),
        ] {
            let allowed = AllowedHosts::parse(&[pattern]).expect(pattern);
            let destination = Destination::parse(url, &policy).expect(url);
            assert_eq!(allowed.judge(&destination).is_ok(), expected, "{pattern} {url}");
            assert_eq!(pattern.parse::<HostPattern>().expect(pattern).to_string(), pattern);
        }
    }

    #[test]
    fn an_empty_list_allows_nothing() {
        let destination =
            Destination::parse("https://example.com/", &AddressPolicy::default()).expect("a URL");
        assert_eq!(
            AllowedHosts::default().judge(&destination),
            Err(Refusal::NotAllowed { host: "example.com".to_owned(), port: 443 }),
        );
    }

    #[test]
    fn entries_that_would_match_by_accident_are_refused() {
        for pattern in [
            "",
            "*",
            "*.",
            "*.com",
            "*.*.example.com",
            "a.*.com",
            "*example.com",
            "*.1.1.1.1",
            "https://example.com",
            "example.com/path",
            "user@example.com",
            "EXAMPLE.com",
            "exa%6dple.com",
            "0x7f000001",
            "127.1",
            "::1",
            "example.com:",
            "example.com:x",
            "example.com:99999",
            "example.com:-1",
            "exam ple.com",
            " example.com",
        ] {
            let parsed = AllowedHosts::parse(&[pattern]);
            assert!(matches!(parsed, Err(Refusal::Pattern { .. })), "{pattern:?}: {parsed:?}");
        }
    }
}
