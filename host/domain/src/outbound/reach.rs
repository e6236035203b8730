//! From what a block wrote to where the call goes.

use url::Position;

use super::{AddressPolicy, AllowedHosts, Destination, Refusal};

/// How far a call may reach: through a connection or, without one, by a block's own grant. The one place where a
/// destination is made for a block, so that no path goes without the list of allowed hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    base: Option<Destination>,
    allowed: AllowedHosts,
}

impl Reach {
    /// Within a connection: paths are taken under its base URL, whole URLs as they are.
    ///
    /// # Errors
    /// The base URL may not be called, is not among the allowed hosts, or has a query; an entry cannot be read.
    pub fn of_connection<T: AsRef<str>>(
        base_url: &str,
        allowed_hosts: &[T],
        policy: &AddressPolicy,
    ) -> Result<Self, Refusal> {
        let base = Destination::parse(base_url, policy)?;
        if base_url.contains(['?', '#']) {
            return Err(Refusal::Url { why: "a base URL has no query and no fragment" });
        }
        let allowed = AllowedHosts::parse(allowed_hosts)?;
        allowed.judge(&base)?;
        Ok(Self { base: Some(base), allowed })
    }

    /// By a block's grant alone.
    ///
    /// # Errors
    /// An entry cannot be read.
    pub fn of_grant<T: AsRef<str>>(allowed_hosts: &[T]) -> Result<Self, Refusal> {
        Ok(Self { base: None, allowed: AllowedHosts::parse(allowed_hosts)? })
    }

    /// Where a call to `reference` goes: an absolute URL, or, with a connection, a path that begins with `/`.
    ///
    /// # Errors
    /// The reference leads out of the base URL, or to what may not be called or is not allowed.
    pub fn destination(&self, reference: &str, policy: &AddressPolicy) -> Result<Destination, Refusal> {
        let destination = match &self.base {
            Some(base) if reference.starts_with('/') => under(base, reference, policy)?,
            None if reference.starts_with('/') => {
                return Err(Refusal::Url { why: "a path needs a connection to stand under" });
            }
            _ => Destination::parse(reference, policy)?,
        };
        self.allowed.judge(&destination)?;
        Ok(destination)
    }
}

/// Appends `reference` to `base`. `//host`, `@host` and `..` would mean another place to some reader.
fn under(base: &Destination, reference: &str, policy: &AddressPolicy) -> Result<Destination, Refusal> {
    let refused = |why| Err(Refusal::Url { why });
    if reference.starts_with("//") {
        return refused("a path that begins with // names a host");
    }
    if has_parent_segment(reference) {
        return refused("a path under a connection has no parent segments");
    }
    let base_text = base.url()[..Position::AfterPath].trim_end_matches('/');
    let joined = Destination::parse(&format!("{base_text}{reference}"), policy)?;
    let stays = joined.url()[..Position::AfterPort] == base.url()[..Position::AfterPort]
        && joined.url().as_str().strip_prefix(base_text).is_some_and(|rest| rest.starts_with('/'));
    if stays { Ok(joined) } else { refused("the path leads out of the connection's base URL") }
}

/// Whether a segment of the path is `..` to a reader that decodes before it splits.
fn has_parent_segment(reference: &str) -> bool {
    let path = reference.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    let decoded = path.replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    // Parameters of a segment (`..;a=b`) are dropped by some servers before they resolve it.
    decoded.split('/').any(|segment| segment.split(';').next() == Some(".."))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOSTS: &[&str] = &["api.example.com", "files.example.com"];

    fn reach(base_url: &str) -> Reach {
        Reach::of_connection(base_url, HOSTS, &AddressPolicy::default()).expect(base_url)
    }

    #[test]
    fn a_reference_goes_where_it_reads() {
        for (base, reference, expected) in [
            ("https://api.example.com", "/charges", "https://api.example.com/charges"),
            ("https://api.example.com/", "/charges?a=b#c", "https://api.example.com/charges?a=b"),
            ("https://api.example.com/v1", "/charges", "https://api.example.com/v1/charges"),
            ("https://api.example.com/v1/", "/", "https://api.example.com/v1/"),
            ("https://api.example.com/v1/", "/a/./b", "https://api.example.com/v1/a/b"),
            ("https://api.example.com/v1", "/@evil.com", "https://api.example.com/v1/@evil.com"),
            ("https://api.example.com", "/:8080", "https://api.example.com/:8080"),
            ("https://api.example.com", "/a..b/..c?d=../..", "https://api.example.com/a..b/..c?d=../.."),
            ("https://api.example.com", "/http://evil.com/", "https://api.example.com/http://evil.com/"),
            ("https://api.example.com", "https://files.example.com/a", "https://files.example.com/a"),
        ] {
            let destination = reach(base).destination(reference, &AddressPolicy::default());
            assert_eq!(destination.map(|it| it.to_string()), Ok(expected.to_owned()), "{base} {reference}");
        }
    }

    #[test]
    fn no_reference_leads_out() {
        for reference in [
            "",
            "charges",
            "?a",
            "@evil.com",
            ".evil.com/",
            ":8080/",
            "//evil.com/",
            "///evil.com/",
            "/\\evil.com/",
            "\\\\evil.com/",
            "/../admin",
            "/a/../../admin",
            "/%2e%2e/admin",
            "/%2E./admin",
            "/..%2fadmin",
            "/a/..%5Cadmin",
            "/..;a=b/admin",
            "/..",
            "/a\r\nHost: evil.com",
            "/\t/evil.com",
            "https://evil.com/",
            "http://user@api.example.com/",
            "https://10.0.0.1/",
        ] {
            let destination =
                reach("https://api.example.com/v1").destination(reference, &AddressPolicy::default());
            assert!(destination.is_err(), "{reference:?}: {destination:?}");
        }
    }

    #[test]
    fn without_a_connection_only_granted_hosts_are_reached() {
        let granted = Reach::of_grant(&["api.example.com"]).expect("a list");
        let nothing = Reach::of_grant::<&str>(&[]).expect("a list");
        for (reference, by_grant) in [
            ("https://api.example.com/a", true),
            ("https://files.example.com/a", false),
            ("/a", false),
            ("", false),
        ] {
            assert_eq!(
                granted.destination(reference, &AddressPolicy::default()).is_ok(),
                by_grant,
                "{reference}"
            );
            assert!(nothing.destination(reference, &AddressPolicy::default()).is_err(), "{reference}");
        }
    }

    #[test]
    fn a_connection_that_could_reach_nothing_is_refused_when_it_is_made() {
        for (base, hosts) in [
            ("https://api.example.com", &[][..]),
            ("https://api.example.com", &["files.example.com"]),
            ("https://api.example.com/?a=b", HOSTS),
            ("https://api.example.com/#a", HOSTS),
            ("http://127.0.0.1:8080", &["127.0.0.1"]),
            ("api.example.com", HOSTS),
            ("https://api.example.com", &["api.example.com", "*"]),
        ] {
            let made = Reach::of_connection(base, hosts, &AddressPolicy::default());
            assert!(made.is_err(), "{base} {hosts:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_path_the_call_stays_under_the_base(path in "[/.@:\\\\%2eEfF5cC;?#a-c\u{e4}\t ]{0,24}") {
            let base = "https://api.example.com/v1";
            if let Ok(destination) = reach(base).destination(&format!("/{path}"), &AddressPolicy::default()) {
                prop_assert!(destination.to_string().starts_with("https://api.example.com/v1/"), "{}", destination);
                prop_assert!(!has_parent_segment(destination.path_and_query()), "{}", destination);
            }
        }
    }
}
