//! From a host to the addresses that may be called.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use counterfoil_domain::outbound::{AddressPolicy, Target};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use tokio::time::{Instant, timeout_at};

use super::{ClientError, NotSent};

/// One question to one name server: three of them fit into the budget of a look-up.
const QUESTION_MS_MAX: u64 = 600;

/// Whom to ask for names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NameServers {
    /// Those of the operating system, and its hosts file.
    #[default]
    System,
    /// These alone.
    Fixed(Vec<SocketAddr>),
}

/// Resolves names. Answers are kept as long as their time to live says; they are judged at each use.
#[derive(Clone)]
pub(super) struct Names(TokioResolver);

impl Names {
    pub(super) fn new(servers: &NameServers) -> Result<Self, ClientError> {
        let mut builder = match servers {
            NameServers::System => TokioResolver::builder_tokio().map_err(ClientError::NameServers)?,
            NameServers::Fixed(servers) => {
                let servers = servers.iter().map(|server| {
                    let connections =
                        [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
                            connection.port = server.port();
                            connection
                        });
                    NameServerConfig::new(server.ip(), true, connections.into())
                });
                let config = ResolverConfig::from_parts(None, vec![], servers.collect());
                TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
        };
        let options = builder.options_mut();
        options.timeout = Duration::from_millis(QUESTION_MS_MAX);
        // Both, because every address that a name has is judged; IPv4 first, because it is what more networks route.
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        builder.build().map(Self).map_err(ClientError::NameServers)
    }

    /// The addresses of `target`, none of them refused. One that is refused the whole name: an answer that mixes
    /// public and private addresses is an attempt to reach the private ones.
    pub(super) async fn resolve(
        &self,
        target: Target<'_>,
        policy: &AddressPolicy,
        until: Instant,
    ) -> Result<Vec<IpAddr>, NotSent> {
        let addresses = match target {
            Target::Address(address) => vec![address],
            Target::Loopback => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            Target::Name(name) => self.look_up(name, until).await?,
        };
        for address in &addresses {
            policy.judge(*address).map_err(NotSent::refused)?;
        }
        Ok(addresses)
    }

    async fn look_up(&self, name: &str, until: Instant) -> Result<Vec<IpAddr>, NotSent> {
        // The dot at the end keeps the system's search domains out.
        let answer = timeout_at(until, self.0.lookup_ip(format!("{name}.")))
            .await
            .map_err(|_| NotSent::dns(format!("resolving {name} took too long")))?
            .map_err(|error| NotSent::dns(format!("resolving {name}: {error}")))?;
        let addresses: Vec<_> = answer.iter().collect();
        if addresses.is_empty() { Err(NotSent::dns(format!("{name} has no address"))) } else { Ok(addresses) }
    }
}
