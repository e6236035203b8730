//! Networks in CIDR form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address range: a base address and the number of leading bits that its members share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    base: IpAddr,
    prefix_bits: u32,
}

impl Network {
    pub(super) const fn v4(octets: [u8; 4], prefix_bits: u32) -> Self {
        Self { base: IpAddr::V4(Ipv4Addr::from_octets(octets)), prefix_bits }
    }

    pub(super) const fn v6(segments: [u16; 8], prefix_bits: u32) -> Self {
        Self { base: IpAddr::V6(Ipv6Addr::from_segments(segments)), prefix_bits }
    }

    /// Whether `address` is a member. An IPv4 address is never a member of an IPv6 network, mapped or not.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                (base.to_bits() ^ address.to_bits()).leading_zeros() >= self.prefix_bits
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                (base.to_bits() ^ address.to_bits()).leading_zeros() >= self.prefix_bits
            }
            _ => false,
        }
    }

    fn is_within(&self, outer: &Self) -> bool {
        self.prefix_bits >= outer.prefix_bits && outer.contains(self.base)
    }

    fn has_host_bits(&self) -> bool {
        match self.base {
            IpAddr::V4(base) => base.to_bits().trailing_zeros() + self.prefix_bits < 32,
            IpAddr::V6(base) => base.to_bits().trailing_zeros() + self.prefix_bits < 128,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix_bits)
    }
}

impl FromStr for Network {
    type Err = NetworkFault;

    fn from_str(text: &str) -> Result<Self, NetworkFault> {
        let (base, prefix_bits) = text.split_once('/').ok_or(NetworkFault::Form)?;
        let base = base.parse::<IpAddr>().map_err(|_| NetworkFault::Form)?;
        let prefix_bits = prefix_bits.parse::<u8>().map_err(|_| NetworkFault::Form)?.into();
        if prefix_bits > if base.is_ipv4() { 32 } else { 128 } {
            return Err(NetworkFault::Form);
        }
        let network = Self { base, prefix_bits };
        if network.has_host_bits() { Err(NetworkFault::HostBits) } else { Ok(network) }
    }
}

/// Why a text names no network that may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NetworkFault {
    /// Not an address, a slash and a prefix length.
    #[error("a network is written as an address and a prefix length, such as 10.1.0.0/16")]
    Form,
    /// Bits behind the prefix are set: probably a host's address, or the wrong prefix.
    #[error("the address has bits set behind its prefix")]
    HostBits,
    /// Not a range that is set aside for private use.
    #[error(
        "only networks within 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10 and fc00::/7 can be opened"
    )]
    NotPrivate,
}

/// A network that an operator may open to calls: all of it lies in a range set aside for private use. Loopback,
/// link-local and the rest can therefore not be opened by naming them, nor by naming `0.0.0.0/0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrivateNetwork(Network);

impl PrivateNetwork {
    const RANGES: [Network; 5] = [
        Network::v4([10, 0, 0, 0], 8),
        Network::v4([172, 16, 0, 0], 12),
        Network::v4([192, 168, 0, 0], 16),
        Network::v4([100, 64, 0, 0], 10),
        Network::v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),
    ];

    /// Whether `address` is a member.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(address)
    }
}

impl fmt::Display for PrivateNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for PrivateNetwork {
    type Err = NetworkFault;

    fn from_str(text: &str) -> Result<Self, NetworkFault> {
        let network = text.parse::<Network>()?;
        let is_private = Self::RANGES.iter().any(|range| network.is_within(range));
        if is_private { Ok(Self(network)) } else { Err(NetworkFault::NotPrivate) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_ranges_can_be_opened() {
        for (text, expected) in [
            ("10.0.0.0/8", Ok(())),
            ("10.1.2.0/24", Ok(())),
            ("10.1.2.3/32", Ok(())),
            ("172.16.0.0/12", Ok(())),
            ("192.168.7.0/24", Ok(())),
            ("100.64.0.0/10", Ok(())),
            ("fd12:3456::/32", Ok(())),
            ("0.0.0.0/0", Err(NetworkFault::NotPrivate)),
            ("::/0", Err(NetworkFault::NotPrivate)),
            ("10.0.0.0/7", Err(NetworkFault::NotPrivate)),
            ("127.0.0.0/8", Err(NetworkFault::NotPrivate)),
            ("169.254.0.0/16", Err(NetworkFault::NotPrivate)),
            ("172.0.0.0/8", Err(NetworkFault::NotPrivate)),
            ("8.8.8.8/32", Err(NetworkFault::NotPrivate)),
            ("fe80::/10", Err(NetworkFault::NotPrivate)),
            ("::ffff:10.0.0.0/104", Err(NetworkFault::NotPrivate)),
            ("10.1.2.3/24", Err(NetworkFault::HostBits)),
            ("fd00::1/64", Err(NetworkFault::HostBits)),
            ("10.0.0.0", Err(NetworkFault::Form)),
            ("10.0.0.0/33", Err(NetworkFault::Form)),
            ("fd00::/129", Err(NetworkFault::Form)),
            ("10.0.0/8", Err(NetworkFault::Form)),
            ("10.0.0.0/-1", Err(NetworkFault::Form)),
            ("", Err(NetworkFault::Form)),
        ] {
            let parsed = text.parse::<PrivateNetwork>();
            assert_eq!(parsed.map(|_| ()), expected, "{text}");
            if let Ok(network) = parsed {
                assert_eq!(network.to_string(), text);
            }
        }
    }
}
