//! Which addresses a call may reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Network, PrivateNetwork, Refusal};

/// Which addresses a host may call. By default only those that are globally reachable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    /// Adds `127.0.0.0/8` and `::1`, and nothing else. For development: it hands every block the host's own services.
    pub loopback: bool,
    /// Private networks that the operator opened.
    pub private: Vec<PrivateNetwork>,
}

impl AddressPolicy {
    /// Whether an address is within what the operator opened: his own machine, his own networks.
    pub fn is_inside(&self, address: IpAddr) -> bool {
        self.loopback && address.is_loopback() || self.private.iter().any(|network| network.contains(address))
    }

    /// Judges one address, as parsed.
    ///
    /// # Errors
    /// [`Refusal::Address`] with its class.
    pub fn judge(&self, address: IpAddr) -> Result<(), Refusal> {
        if self.loopback && address.is_loopback() {
            return Ok(());
        }
        let refused = |why| Err(Refusal::Address { address, why });
        if let Some(why) = class(METADATA, address) {
            return refused(why);
        }
        if self.private.iter().any(|network| network.contains(address)) {
            return Ok(());
        }
        match address {
            IpAddr::V4(v4) => judge_v4(v4),
            IpAddr::V6(v6) => judge_v6(v6),
        }
        .or_else(refused)
    }
}

fn judge_v4(address: Ipv4Addr) -> Result<(), &'static str> {
    class(V4_SPECIAL, address.into()).map_or(Ok(()), Err)
}

fn judge_v6(address: Ipv6Addr) -> Result<(), &'static str> {
    // What the operator opened and the development setting are not asked again for these: a service is reachable
    // under the address that it has, not under a second spelling of it.
    if let Some(embedded) = same_host_v4(address) {
        let is_metadata = class(METADATA, embedded.into());
        return is_metadata.map_or_else(|| judge_v4(embedded), Err);
    }
    if let Some(why) = class(V6_SPECIAL, address.into()) {
        return Err(why);
    }
    if GLOBAL_UNICAST.contains(address.into()) {
        Ok(())
    } else {
        Err("outside 2000::/3, the global unicast range")
    }
}

/// The IPv4 host that an IPv6 spelling leads to: IPv4-mapped by the operating system, the well-known NAT64 prefix by
/// the network. 6to4 and Teredo lead through relays, and are special ranges as a whole.
fn same_host_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    const NAT64: Network = Network::v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
    let [.., a, b, c, d] = address.octets();
    address.to_ipv4_mapped().or_else(|| NAT64.contains(address.into()).then(|| Ipv4Addr::new(a, b, c, d)))
}

fn class(table: &[(Network, &'static str)], address: IpAddr) -> Option<&'static str> {
    table.iter().find(|(network, _)| network.contains(address)).map(|(_, why)| *why)
}

const GLOBAL_UNICAST: Network = Network::v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// Cloud metadata services outside link-local, some on public addresses, some inside ranges that an operator may open.
const METADATA: &[(Network, &str)] = &[
    (Network::v4([168, 63, 129, 16], 32), "metadata service (Azure WireServer)"),
    (Network::v4([100, 100, 100, 200], 32), "metadata service (Alibaba)"),
    (Network::v4([192, 0, 0, 192], 32), "metadata service (Oracle)"),
    (Network::v4([169, 254, 169, 254], 32), "metadata service"),
    (Network::v4([169, 254, 170, 2], 32), "metadata service (ECS)"),
    (Network::v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32), "metadata service (AWS)"),
    (Network::v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), "metadata service (Google)"),
    (Network::v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128), "metadata service (Oracle)"),
];

/// IANA's special-purpose registry, without its few globally reachable services that no HTTP provider lives on.
const V4_SPECIAL: &[(Network, &str)] = &[
    (Network::v4([0, 0, 0, 0], 8), "this network"),
    (Network::v4([10, 0, 0, 0], 8), "private"),
    (Network::v4([100, 64, 0, 0], 10), "carrier NAT"),
    (Network::v4([127, 0, 0, 0], 8), "loopback"),
    (Network::v4([169, 254, 0, 0], 16), "link-local"),
    (Network::v4([172, 16, 0, 0], 12), "private"),
    (Network::v4([192, 0, 0, 0], 24), "protocol assignments"),
    (Network::v4([192, 0, 2, 0], 24), "documentation"),
    (Network::v4([192, 31, 196, 0], 24), "AS112"),
    (Network::v4([192, 52, 193, 0], 24), "multicast tunnelling"),
    (Network::v4([192, 88, 99, 0], 24), "6to4 relay"),
    (Network::v4([192, 168, 0, 0], 16), "private"),
    (Network::v4([192, 175, 48, 0], 24), "AS112"),
    (Network::v4([198, 18, 0, 0], 15), "benchmarking"),
    (Network::v4([198, 51, 100, 0], 24), "documentation"),
    (Network::v4([203, 0, 113, 0], 24), "documentation"),
    (Network::v4([224, 0, 0, 0], 4), "multicast"),
    (Network::v4([255, 255, 255, 255], 32), "broadcast"),
    (Network::v4([240, 0, 0, 0], 4), "reserved"),
];

/// The special ranges inside `2000::/3`, and names for the best known ones outside it.
const V6_SPECIAL: &[(Network, &str)] = &[
    (Network::v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "Teredo"),
    // Benchmarking, ORCHID, DRIP and the rest: all of what IANA keeps for protocols.
    (Network::v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "protocol assignments"),
    (Network::v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "documentation"),
    (Network::v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "6to4"),
    (Network::v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48), "AS112"),
    (Network::v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "documentation"),
    (Network::v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified"),
    (Network::v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),
    (Network::v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "unique-local"),
    (Network::v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (Network::v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        address: IpAddr,
        verdict: String,
        why: String,
    }

    fn verdict(policy: &AddressPolicy, address: IpAddr) -> &'static str {
        if policy.judge(address).is_ok() { "allow" } else { "refuse" }
    }

    #[test]
    fn every_listed_address_gets_its_verdict() {
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("../../cases/addresses.json")).expect("the cases are readable");
        for case in cases {
            assert_eq!(
                verdict(&AddressPolicy::default(), case.address),
                case.verdict,
                "{} {}",
                case.address,
                case.why
            );
        }
    }

    #[test]
    fn the_edges_of_ranges_are_where_the_registry_puts_them() {
        for (address, expected) in [
            ("9.255.255.255", "allow"),
            ("128.0.0.0", "allow"),
            ("191.255.255.255", "allow"),
            ("192.0.1.0", "allow"),
            ("192.31.196.1", "refuse"),
            ("192.31.197.0", "allow"),
            ("192.52.193.255", "refuse"),
            ("192.88.98.255", "allow"),
            ("192.88.100.0", "allow"),
            ("192.175.48.6", "refuse"),
            ("203.0.112.255", "allow"),
            ("203.0.114.0", "allow"),
            ("168.63.129.17", "allow"),
            ("2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", "refuse"),
            ("2001:200::", "allow"),
            ("2001:db7:ffff::1", "allow"),
            ("2001:db9::1", "allow"),
            ("2002:808:808::1", "refuse"),
            ("2001:0:808:808:0:0:f7f7:f7f7", "refuse"),
            ("2620:4f:7fff::1", "allow"),
            ("2620:4f:8001::1", "allow"),
            ("3fff:fff:ffff::1", "refuse"),
            ("3fff:1000::1", "allow"),
            ("1fff:ffff::1", "refuse"),
            ("::ffff:8.8.8.8", "allow"),
            ("64:ff9b::8.8.8.8", "allow"),
            ("64:ff9b::168.63.129.16", "refuse"),
            ("64:ff9b:0:1::8.8.8.8", "refuse"),
            ("64:ff9b:1::8.8.8.8", "refuse"),
            ("::8.8.8.8", "refuse"),
            ("::ffff:0:8.8.8.8", "refuse"),
        ] {
            let parsed = address.parse().expect("an address");
            assert_eq!(verdict(&AddressPolicy::default(), parsed), expected, "{address}");
        }
    }

    #[test]
    fn settings_open_what_they_name_and_nothing_else() {
        let development = AddressPolicy { loopback: true, private: vec![] };
        let intranet = AddressPolicy {
            loopback: false,
            private: ["10.1.0.0/16", "100.64.0.0/10", "fd00::/8"]
                .map(|text| text.parse().expect("private"))
                .to_vec(),
        };
        for (address, in_development, in_intranet) in [
            ("127.0.0.1", "allow", "refuse"),
            ("127.255.255.254", "allow", "refuse"),
            ("::1", "allow", "refuse"),
            ("::ffff:127.0.0.1", "refuse", "refuse"),
            ("64:ff9b::7f00:1", "refuse", "refuse"),
            ("0.0.0.0", "refuse", "refuse"),
            ("::", "refuse", "refuse"),
            ("10.1.255.255", "refuse", "allow"),
            ("10.2.0.0", "refuse", "refuse"),
            ("::ffff:10.1.0.1", "refuse", "refuse"),
            ("100.64.0.1", "refuse", "allow"),
            ("100.100.100.200", "refuse", "refuse"),
            ("fd12::1", "refuse", "allow"),
            ("fd00:ec2::254", "refuse", "refuse"),
            ("fd20:ce::254", "refuse", "refuse"),
            ("169.254.169.254", "refuse", "refuse"),
            ("192.168.0.1", "refuse", "refuse"),
            ("8.8.8.8", "allow", "allow"),
        ] {
            let parsed = address.parse().expect("an address");
            assert_eq!(verdict(&development, parsed), in_development, "{address} in development");
            assert_eq!(verdict(&intranet, parsed), in_intranet, "{address} in the intranet");
        }
    }

    #[test]
    fn the_operator_reads_the_class() {
        let refusal = AddressPolicy::default().judge(Ipv4Addr::LOCALHOST.into()).expect_err("loopback");
        assert_eq!(refusal.to_string(), "address 127.0.0.1 is refused: loopback");
    }

    fn embeddings(v4: Ipv4Addr) -> [Ipv6Addr; 7] {
        let [a, b, c, d] = v4.octets();
        let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        [
            v4.to_ipv6_mapped(),
            v4.to_ipv6_compatible(),
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
            Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
            Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            Ipv6Addr::new(0x2001, 0, 0x4136, 0xe378, 0, 0, !high, !low),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn no_embedding_reaches_what_its_v4_address_may_not(bits: u32, special in 0..V4_SPECIAL.len(), inside: bool) {
            // Half of the cases fall into a special range, which a uniform draw would rarely hit.
            let (range, _) = V4_SPECIAL[special];
            let drawn = Ipv4Addr::from_bits(bits);
            let v4 = if inside { moved_into(range, drawn) } else { drawn };
            let default = AddressPolicy::default();
            for spelling in embeddings(v4) {
                let spelled = default.judge(spelling.into());
                prop_assert!(default.judge(v4.into()).is_ok() || spelled.is_err(), "{} of {}", spelling, v4);
                let development = AddressPolicy { loopback: true, private: vec![] };
                prop_assert!(development.judge(spelling.into()) == spelled || spelling.is_loopback(), "{}", spelling);
            }
        }

        #[test]
        fn an_allowed_v6_address_is_global_unicast_or_an_allowed_v4_address(bits: u128) {
            let v6 = Ipv6Addr::from_bits(bits);
            let default = AddressPolicy::default();
            if default.judge(v6.into()).is_ok() {
                prop_assert!(v6.segments()[0] >> 13 == 1 || same_host_v4(v6).is_some());
            }
        }
    }

    fn moved_into(range: Network, address: Ipv4Addr) -> Ipv4Addr {
        let text = range.to_string();
        let (base, prefix_bits) = text.split_once('/').expect("a slash");
        let base = base.parse::<Ipv4Addr>().expect("an address").to_bits();
        let host_mask = u32::MAX.checked_shr(prefix_bits.parse().expect("a number")).unwrap_or(0);
        Ipv4Addr::from_bits(base | (address.to_bits() & host_mask))
    }
}
