//! Where connections are made, and where addresses are judged.
//!
//! A name is resolved, every address it has is judged, and one of those is dialled: nothing is resolved a second time. Each
//! step has until the deadline, and says by its own class that it came to nothing.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste_core::delivery::{NoConnection, Outcome, Timings};
use posthaste_core::destination::{Destination, DestinationError, Host, Policy, Scheme};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use crate::connection::{Connection, Facts, Stream};
use crate::names::{self, Names};
use crate::options::{Options, OptionsError, Proxy};
use crate::{proxy, tls};

/// How long one address is tried alone before the next is tried beside it: a broken network of one kind must not cost the attempt.
const HEAD_START: Duration = Duration::from_millis(250);

/// How long an answer takes about a name that is blocked: longer than most name servers need to say that there is no such name.
const BLOCKED_NAME_TIME: Duration = Duration::from_secs(1);

pub(crate) struct Connector {
    names: Names,
    tls: TlsConnector,
    proxy: Option<Proxy>,
    bind_address: Option<IpAddr>,
}

/// Why there is no answer, and what to tell people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) outcome: Outcome,
    pub(crate) error: String,
}

impl Failure {
    pub(crate) fn not_sent(what: NoConnection, error: impl Into<String>) -> Failure {
        Failure { outcome: Outcome::NotSent(what), error: error.into() }
    }

    pub(crate) fn refused(rule: &DestinationError) -> Failure {
        Failure { outcome: Outcome::Blocked, error: rule.to_string() }
    }
}

impl Connector {
    pub(crate) fn new(options: &Options) -> Result<Connector, OptionsError> {
        Ok(Connector {
            names: Names::new(&options.name_servers)?,
            tls: TlsConnector::from(tls::config(options)?),
            proxy: options.proxy.clone(),
            bind_address: options.bind_address,
        })
    }

    pub(crate) async fn connect(
        &self,
        policy: &Policy,
        destination: &Destination,
        deadline: Instant,
        timings: &mut Timings,
    ) -> Result<Connection, Failure> {
        let addresses = self.judged_addresses(policy, destination, deadline, timings).await?;
        let connecting = Instant::now();
        let connected = within(deadline, self.reach(&addresses, destination.port())).await;
        timings.connect = Some(connecting.elapsed());
        let (stream, dialled, address) = match connected {
            Some(Ok(connected)) => connected,
            Some(Err(error)) => {
                return Err(Failure::not_sent(NoConnection::Connect, format!("could not connect: {}", error_in_words(&error))));
            }
            None => return Err(Failure::not_sent(NoConnection::Connect, "no connection came about in time")),
        };
        // Somebody between us and the kernel could have led it elsewhere.
        if stream.peer_addr().is_ok_and(|peer| peer != dialled) {
            return Err(blocked(None));
        }
        let stream = match destination.scheme() {
            Scheme::Http => Stream::Plain(stream),
            Scheme::Https => {
                let handshaking = Instant::now();
                let shaken = within(deadline, self.handshake(stream, destination.host())).await;
                timings.tls = Some(handshaking.elapsed());
                match shaken {
                    Some(Ok(stream)) => stream,
                    Some(Err(error)) => return Err(Failure::not_sent(NoConnection::Tls, tls::in_words(&error))),
                    None => return Err(Failure::not_sent(NoConnection::Tls, "the TLS handshake took too long")),
                }
            }
        };
        match within(deadline, Connection::over(stream, destination.clone(), address)).await {
            Some(Ok(connection)) => Ok(connection),
            Some(Err(error)) => Err(Failure::not_sent(NoConnection::Connect, format!("the connection broke at once: {error}"))),
            None => Err(Failure::not_sent(NoConnection::Connect, "no connection came about in time")),
        }
    }

    /// Whether its name still leads to the address of this connection, and all that it leads to is permitted; with the time of that.
    /// `Err` where the name leads to nowhere, or to what is not permitted.
    pub(crate) async fn judge_again(
        &self,
        policy: &Policy,
        facts: &Facts,
        deadline: Instant,
        timings: &mut Timings,
    ) -> Result<bool, Failure> {
        let addresses = self.judged_addresses(policy, &facts.destination, deadline, timings).await?;
        let is_there = addresses.contains(&facts.address);
        if is_there {
            *facts.judged_at.lock() = std::time::Instant::now();
        }
        Ok(is_there)
    }

    /// Every address that the destination has, all of them permitted.
    async fn judged_addresses(
        &self,
        policy: &Policy,
        destination: &Destination,
        deadline: Instant,
        timings: &mut Timings,
    ) -> Result<Vec<IpAddr>, Failure> {
        let name = match destination.host() {
            Host::Address(address) => {
                policy.judge(destination, *address).map_err(|rule| Failure::refused(&rule))?;
                return Ok(vec![*address]);
            }
            Host::Name(name) => name,
        };
        if names::is_this_machine(name) {
            // Whoever allows one of the two wants to reach this machine by it.
            let mut allowed = names::THIS_MACHINE.to_vec();
            allowed.retain(|address| policy.judge(destination, *address).is_ok());
            return if allowed.is_empty() { Err(blocked(None)) } else { Ok(allowed) };
        }
        let broken_rule = policy.broken_name_rule(destination);
        if let (Some(rule), true) = (broken_rule, policy.allowed_networks.is_empty()) {
            return Err(blocked(Some(&rule.into())));
        }
        let resolving = Instant::now();
        let resolved = within(deadline, self.names.resolve(name)).await;
        if let Some(rule) = broken_rule {
            let is_inside = |addresses: &Vec<IpAddr>| addresses.iter().all(|address| policy.judge(destination, *address).is_ok());
            if !resolved.as_ref().is_some_and(|resolved| resolved.as_ref().is_ok_and(is_inside)) {
                // Whether such a name exists is the operator's business: neither the words nor the time may tell.
                tokio::time::sleep_until((resolving + BLOCKED_NAME_TIME).min(deadline)).await;
                return Err(blocked(Some(&rule.into())));
            }
        }
        timings.dns = Some(resolving.elapsed());
        let addresses = match resolved {
            Some(Ok(addresses)) => addresses,
            Some(Err(error)) => return Err(Failure::not_sent(NoConnection::Dns, error)),
            None => return Err(Failure::not_sent(NoConnection::Dns, "no name server answered in time")),
        };
        for address in &addresses {
            policy.judge(destination, *address).map_err(|rule| blocked(Some(&rule)))?;
        }
        Ok(addresses)
    }

    /// To one of the addresses, through the proxy where there is one. Answers also what was dialled, and which of the addresses
    /// it leads to.
    async fn reach(&self, addresses: &[IpAddr], port: u16) -> io::Result<(TcpStream, SocketAddr, IpAddr)> {
        let targets = addresses.iter().map(|address| SocketAddr::new(*address, port));
        match &self.proxy {
            None => {
                let (stream, dialled) = self.dial(targets.collect()).await?;
                Ok((stream, dialled, dialled.ip()))
            }
            Some(proxy) => {
                let target = targets.min_by_key(SocketAddr::is_ipv6).ok_or_else(no_address)?;
                let (mut stream, dialled) = self.dial(self.addresses_of(proxy).await?).await?;
                proxy::open_tunnel(&mut stream, proxy, target).await?;
                Ok((stream, dialled, target.ip()))
            }
        }
    }

    /// The operator has named it, so it is not judged.
    async fn addresses_of(&self, proxy: &Proxy) -> io::Result<Vec<SocketAddr>> {
        let addresses = match proxy.host.parse() {
            Ok(address) => vec![address],
            Err(_) if names::is_this_machine(&proxy.host) => names::THIS_MACHINE.to_vec(),
            Err(_) => self.names.resolve(&proxy.host).await.map_err(|error| io::Error::other(format!("the proxy: {error}")))?,
        };
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, proxy.port)).collect())
    }

    /// The first connection that comes about, with a head start for the addresses that come first.
    async fn dial(&self, addresses: Vec<SocketAddr>) -> io::Result<(TcpStream, SocketAddr)> {
        let fits = |address: &SocketAddr| self.bind_address.is_none_or(|bind| bind.is_ipv4() == address.is_ipv4());
        let mut waiting = alternating(addresses.into_iter().filter(fits).collect()).into_iter();
        let mut dialling = FuturesUnordered::new();
        dialling.push(self.dial_one(waiting.next().ok_or_else(no_address)?));
        loop {
            tokio::select! {
                biased;
                Some(dialled) = dialling.next() => match (dialled, waiting.next()) {
                    (Ok(dialled), _) => return Ok(dialled),
                    (Err(_), Some(next)) => dialling.push(self.dial_one(next)),
                    (Err(error), None) if dialling.is_empty() => return Err(error),
                    (Err(_), None) => {}
                },
                () = tokio::time::sleep(HEAD_START), if waiting.len() > 0 => {
                    if let Some(next) = waiting.next() {
                        dialling.push(self.dial_one(next));
                    }
                }
            }
        }
    }

    async fn dial_one(&self, address: SocketAddr) -> io::Result<(TcpStream, SocketAddr)> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(bind_address) = self.bind_address {
            socket.bind(SocketAddr::new(bind_address, 0))?;
        }
        let stream = socket.connect(address).await?;
        // One small write per request: waiting for more would only add delay.
        stream.set_nodelay(true)?;
        Ok((stream, address))
    }

    async fn handshake(&self, stream: TcpStream, host: &Host) -> io::Result<Stream> {
        let name = tls::server_name(host).ok_or_else(|| io::Error::other("no certificate can be for this name"))?;
        let stream = self.tls.connect(name, stream).await?;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("proxy", &self.proxy).field("bind_address", &self.bind_address).finish_non_exhaustive()
    }
}

/// Which address it was is the operator's business: a tenant could read out internal names.
fn blocked(rule: Option<&DestinationError>) -> Failure {
    let error = match rule {
        Some(DestinationError::Name(rule)) => rule.to_string(),
        _ => "the name leads to an address that deliveries do not go to (an operator can allow a network)".to_owned(),
    };
    Failure { outcome: Outcome::Blocked, error }
}

/// One of each kind in turn, so that the second try is over the other network.
fn alternating(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (six, four): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv6);
    let (mut six, mut four) = (six.into_iter(), four.into_iter());
    let mut mixed = Vec::with_capacity(six.len() + four.len());
    while six.len() + four.len() > 0 {
        mixed.extend(six.next());
        mixed.extend(four.next());
    }
    mixed
}

fn no_address() -> io::Error {
    io::Error::other("the host has no address of the kind that can be dialled from here")
}

/// The system's own words without its number.
fn error_in_words(error: &io::Error) -> String {
    use io::ErrorKind;
    let kind = error.kind();
    if kind == ErrorKind::ConnectionRefused {
        "the receiver refused the connection".to_owned()
    } else if kind == ErrorKind::ConnectionReset {
        "the receiver reset the connection".to_owned()
    } else if kind == ErrorKind::TimedOut {
        "the receiver did not answer".to_owned()
    } else if matches!(kind, ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) {
        "there is no way to the receiver's network".to_owned()
    } else {
        error.to_string()
    }
}

/// `None` where the time was up first.
pub(crate) async fn within<T>(deadline: Instant, step: impl Future<Output = T>) -> Option<T> {
    timeout_at(deadline, step).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_try_is_over_the_other_network() {
        let addresses = ["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"].map(|address| address.parse().unwrap());
        let shown: Vec<String> = alternating(addresses.to_vec()).iter().map(SocketAddr::to_string).collect();
        assert_eq!(shown, ["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
    }
}
