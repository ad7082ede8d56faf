//! From a name to addresses: all of them, or none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::{ResolverBuilder, TokioResolver};

use crate::options::{NameServers, OptionsError};

/// How long both questions may take together.
pub(crate) const RESOLVE_TIME_MAX: Duration = Duration::from_secs(5);
/// A name with more addresses than this is not a receiver.
const ADDRESSES_MAX: usize = 32;
/// One server that is silent leaves time to ask again, or another one.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(2);
/// However long an answer claims to be good: a receiver that moves is found again after this long.
pub(crate) const REMEMBERED_MAX: Duration = Duration::from_mins(1);
const SYSTEM_SETTINGS: &str = "/etc/resolv.conf";
const FAILURE_REMEMBERED_MAX: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Names {
    resolver: TokioResolver,
}

impl Names {
    pub(crate) fn new(name_servers: &NameServers) -> Result<Names, OptionsError> {
        let refuse = |error: NetError| OptionsError::NameServers(error.to_string());
        let mut builder = match name_servers {
            // Where the machine says nothing, the C library asks the machine itself.
            NameServers::System if !Path::new(SYSTEM_SETTINGS).exists() => builder(&[(Ipv4Addr::LOCALHOST, 53).into()]),
            NameServers::System => TokioResolver::builder_tokio().map_err(refuse)?,
            NameServers::These(servers) => builder(servers),
        };
        let options = builder.options_mut();
        options.timeout = QUESTION_TIME_MAX;
        options.attempts = 1;
        options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
        options.positive_max_ttl = Some(REMEMBERED_MAX);
        options.negative_max_ttl = Some(FAILURE_REMEMBERED_MAX);
        options.use_hosts_file = match name_servers {
            NameServers::System => ResolveHosts::Always,
            NameServers::These(_) => ResolveHosts::Never,
        };
        Ok(Names { resolver: builder.build().map_err(refuse)? })
    }

    /// Every address of a name, those of IPv6 first. `Err` says in words why there is none.
    pub(crate) async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let mut full = Name::from_ascii(name).map_err(|_| "the host is not a name that can be asked for".to_owned())?;
        // Or the machine's search domains would be tried, and lead somewhere else on each machine.
        full.set_fqdn(true);
        let answer = match tokio::time::timeout(RESOLVE_TIME_MAX, self.resolver.lookup_ip(full)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(in_words(&error)),
            Err(_) => return Err("no name server answered in time".to_owned()),
        };
        let addresses: Vec<IpAddr> = answer.iter().take(ADDRESSES_MAX + 1).collect();
        match addresses.len() {
            0 => Err("the name has no address".to_owned()),
            count if count > ADDRESSES_MAX => Err(format!("the name has more than {ADDRESSES_MAX} addresses")),
            _ => Ok(addresses),
        }
    }
}

/// Names for this machine are never asked for: by definition they lead here.
pub(crate) fn is_this_machine(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

pub(crate) const THIS_MACHINE: [IpAddr; 2] = [IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)];

fn builder(servers: &[SocketAddr]) -> ResolverBuilder<TokioRuntimeProvider> {
    let config = ResolverConfig::from_name_servers(servers.iter().map(name_server).collect());
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(ResolverOpts::default())
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let at_port = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    // What does not fit into a datagram is asked again over TCP.
    NameServerConfig::new(address.ip(), true, vec![at_port(ConnectionConfig::udp()), at_port(ConnectionConfig::tcp())])
}

/// What went wrong, without the name: whoever reads it knows which one they wrote.
fn in_words(error: &NetError) -> String {
    if error.is_nx_domain() {
        "there is no such name".to_owned()
    } else if error.is_no_records_found() {
        "the name has no address, or its name servers failed".to_owned()
    } else if matches!(error, NetError::Timeout) {
        "no name server answered in time".to_owned()
    } else {
        "the name servers could not answer".to_owned()
    }
}
