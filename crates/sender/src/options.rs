//! What an operator can set about requests to receivers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste_core::destination::Policy;

use crate::names::REMEMBERED_MAX;

#[derive(Clone, Debug)]
pub struct Options {
    /// Where requests may go.
    pub policy: Policy,
    pub name_servers: NameServers,
    /// Every request goes through it. Names are resolved and judged here all the same, and the proxy is told an address.
    pub proxy: Option<Proxy>,
    /// The address of this machine that connections come from.
    pub bind_address: Option<IpAddr>,
    pub roots: Roots,
    /// Further certificates that may vouch for a receiver, in PEM, any number of them.
    pub extra_roots: Vec<u8>,
    /// How many requests may be under way to one host and port, and so how many connections there can be. The rest waits, within its
    /// own time. As many as one endpoint may have in flight, so that this guards our sockets and does not undercut anybody's setting.
    pub connections_per_host_max: usize,
    /// How many unused connections are kept in all. The one unused for longest goes first.
    pub idle_connections_max: usize,
    /// How long an unused connection is kept. Shorter than what most servers allow, or we would often meet a closed door.
    pub idle_max: Duration,
    /// How old a connection may get.
    pub age_max: Duration,
    /// How long a connection is used before its name is resolved and judged again. As long as names are remembered.
    pub judged_max: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: Policy::default(),
            name_servers: NameServers::System,
            proxy: None,
            bind_address: None,
            roots: Roots::Bundled,
            extra_roots: Vec::new(),
            connections_per_host_max: 1024,
            idle_connections_max: 1024,
            idle_max: Duration::from_secs(50),
            age_max: Duration::from_mins(10),
            judged_max: REMEMBERED_MAX,
        }
    }
}

/// Who is asked for addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameServers {
    /// What the machine is set up with, its hosts file included.
    System,
    These(Vec<SocketAddr>),
}

/// Who may vouch for a receiver, besides the extra roots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Roots {
    /// Mozilla's list, as of our release: the same on every machine, also in a container without certificates.
    Bundled,
    /// What the machine trusts.
    System,
    /// Nobody else.
    ExtraOnly,
}

/// A proxy that opens tunnels (`CONNECT`), spoken to in plain HTTP.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The value of `proxy-authorization`.
    pub(crate) authorization: Option<String>,
}

impl Proxy {
    /// From `http://[user:password@]host:port`.
    pub fn parse(text: &str) -> Result<Proxy, OptionsError> {
        let authority = text.strip_prefix("http://").ok_or(OptionsError::Proxy)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (credentials, host_and_port) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        let (host, port) = host_and_port.rsplit_once(':').ok_or(OptionsError::Proxy)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().map_err(|_| OptionsError::Proxy)?;
        let is_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte));
        if !is_host || port == 0 {
            return Err(OptionsError::Proxy);
        }
        let authorization = match credentials {
            None => None,
            Some(credentials) if credentials.contains(':') => {
                Some(format!("Basic {}", STANDARD.encode(unescaped(credentials).ok_or(OptionsError::Proxy)?)))
            }
            Some(_) => return Err(OptionsError::Proxy),
        };
        Ok(Proxy { host: host.to_owned(), port, authorization })
    }
}

/// A password may need characters that a URL does not have.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut unescaped = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        unescaped.push(if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            byte
        });
    }
    Some(unescaped)
}

/// The password is nobody's business.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({}:{})", self.host, self.port)
    }
}

/// Which setting cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error("the machine's name servers cannot be read: {0}")]
    NameServers(String),
    #[error("the machine has no root certificates; install them, or use the bundled ones")]
    SystemRoots,
    #[error("the extra root certificates cannot be read: {0}")]
    ExtraRoots(String),
    #[error("a proxy is http://host:port, or http://user:password@host:port")]
    Proxy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_read_with_its_password_which_is_never_shown() {
        let proxy = Proxy::parse("http://me:p%40ss%3Aword@proxy.lan:3128/").unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.lan", 3128));
        assert_eq!(proxy.authorization.as_deref(), Some("Basic bWU6cEBzczp3b3Jk"), "me:p@ss:word");
        assert_eq!(format!("{proxy:?}"), "Proxy(proxy.lan:3128)");
        assert_eq!(Proxy::parse("http://[::1]:3128").unwrap().host, "::1");
        for bad in
            ["", "proxy:3128", "https://proxy:3128", "http://proxy", "http://:1", "http://a b:1", "http://u@h:1", "http://h:0"]
        {
            assert!(Proxy::parse(bad).is_err(), "{bad}");
        }
        assert!(Proxy::parse("http://a:%f\u{e9}@h:1").is_err());
    }
}
