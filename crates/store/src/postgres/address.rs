//! Where a database is and how it is reached: reads the URL, including the parameters that tokio-postgres does not know, and
//! connects to the first of its hosts that answers and takes writes.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio::time::timeout;
use tokio_postgres::config::{ChannelBinding, Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Socket};

use super::connection::sentence;
use super::tls::{Connector, EncryptedStream, Mode, Roots, TlsSettings};
use crate::Error;

/// Longest time for a connection, shared between the hosts of a URL.
pub(super) const CONNECT_MAX: Duration = Duration::from_millis(2_500);
/// How long the kernel waits for the server to acknowledge what was sent.
const ACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

/// A connection that its owner polls.
pub type PostgresConnection = tokio_postgres::Connection<Socket, EncryptedStream<Socket>>;

/// Why there is no connection.
#[derive(Debug)]
pub enum ConnectError {
    /// What the last host said, or the first one that waiting would not help with.
    Postgres(tokio_postgres::Error),
    /// A certificate or key cannot be read any more.
    Unusable(Error),
    NoAnswer,
}

/// A PostgreSQL database, as a URL names it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PostgresAddress {
    /// One for each host.
    hosts: Vec<Config>,
    tls: TlsSettings,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The host that was connected to last; it is tried first.
    last_host: AtomicUsize,
    /// The log says that the connection is not encrypted.
    has_warned: AtomicBool,
}

impl PostgresAddress {
    /// Reads a URL, and the files that it names once, to find mistakes in them.
    pub fn parse(url: &str) -> Result<PostgresAddress, Error> {
        let Parameters { url, tls, takes_writes, is_mode_given } = Parameters::take_from(url)?;
        let config: Config =
            url.parse().map_err(|error| Error::Unusable(format!("the database URL cannot be read: {}", sentence(&error))))?;
        if config.get_channel_binding() == ChannelBinding::Require {
            let why = "channel_binding=require is not supported; sslmode=verify-full protects against the same impostors";
            return Err(Error::Unusable(why.to_owned()));
        }
        let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
        let addresses = config.get_hostaddrs().len();
        if hosts == 0 {
            return Err(Error::Unusable("the database URL names no host".to_owned()));
        }
        if addresses > 0 && !config.get_hosts().is_empty() && addresses != config.get_hosts().len() {
            return Err(Error::Unusable("the database URL names as many hostaddr as hosts, or none".to_owned()));
        }
        if config.get_ports().len() > 1 && config.get_ports().len() != hosts {
            return Err(Error::Unusable("the database URL names one port, or one for each host".to_owned()));
        }
        Connector::new(&tls)?;
        let state = State { has_warned: AtomicBool::new(!is_mode_given && is_local(&config)), ..State::default() };
        let takes_writes = takes_writes || hosts > 1;
        let hosts = (0..hosts).map(|number| host_config(&config, number, hosts, tls.mode, takes_writes)).collect();
        Ok(PostgresAddress { hosts, tls, state: Arc::new(state) })
    }

    /// The same with further settings for its sessions (`-c name=value`), which win over those before.
    #[must_use]
    pub fn with_options(&self, options: &str) -> PostgresAddress {
        let mut address = self.clone();
        for config in &mut address.hosts {
            let given = config.get_options().map_or_else(String::new, |given| format!("{given} "));
            config.options(format!("{given}{options}"));
        }
        address
    }

    /// The settings for its sessions.
    #[cfg(test)]
    pub(super) fn options(&self) -> &str {
        self.hosts[0].get_options().unwrap_or_default()
    }

    /// For the pool, which shows it in its own `Debug` and connects through [`PostgresAddress::connect`].
    pub(super) fn first_config(&self) -> Config {
        self.hosts[0].clone()
    }

    /// Connects to the first host that answers, beginning with the one that was used last. With several hosts only one that
    /// takes writes is accepted.
    pub async fn connect(&self) -> Result<(Client, PostgresConnection), ConnectError> {
        let (count, first) = (self.hosts.len(), self.state.last_host.load(Ordering::Relaxed));
        let share = CONNECT_MAX / u32::try_from(count).unwrap_or(u32::MAX);
        let mut failed: Option<tokio_postgres::Error> = None;
        for number in (first..first + count).map(|number| number % count) {
            let connector = Connector::new(&self.tls).map_err(ConnectError::Unusable)?;
            let error = match timeout(share, self.hosts[number].connect(connector.clone())).await {
                Ok(Ok(connected)) => {
                    self.state.last_host.store(number, Ordering::Relaxed);
                    self.report_plain_text(&connector);
                    return Ok(connected);
                }
                Ok(Err(error)) => error,
                Err(_) => continue,
            };
            // Every host takes the same password.
            if is_refused(&error) {
                return Err(ConnectError::Postgres(error));
            }
            if !failed.as_ref().is_some_and(is_permanent) {
                failed = Some(error);
            }
        }
        Err(failed.map_or(ConnectError::NoAnswer, ConnectError::Postgres))
    }

    fn report_plain_text(&self, connector: &Connector) {
        if self.tls.mode == Mode::Prefer && !connector.was_used() && !self.state.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the connection to PostgreSQL is not encrypted, because the server does not speak TLS and sslmode=prefer allows \
                 that; set sslmode=verify-full, or sslmode=disable if the network is trusted"
            );
        }
    }
}

/// The name and password, or the database, are refused.
fn is_refused(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("28") || *code == SqlState::INVALID_CATALOG_NAME)
}

/// Whether the server's certificate is refused, or ours, or one side does not speak TLS.
pub(super) fn is_of_tls(error: &tokio_postgres::Error) -> bool {
    let Some(source) = error.source() else { return false };
    // tokio-postgres has no other way to tell the kinds of its errors apart.
    let is_tls_error = error.to_string().starts_with("error performing TLS handshake");
    let inner = source.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let is_of_rustls = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some();
    let is_connection_lost = source.is::<io::Error>() && !is_of_rustls;
    is_of_rustls || (is_tls_error && !is_connection_lost)
}

/// Whether waiting does not help.
pub(super) fn is_permanent(error: &tokio_postgres::Error) -> bool {
    is_refused(error) || is_of_tls(error) || error.code() == Some(&SqlState::PROTOCOL_VIOLATION)
}

/// One host of a configuration that may have several.
fn host_config(all: &Config, number: usize, count: usize, mode: Mode, takes_writes: bool) -> Config {
    let mut config = Config::new();
    if let Some(user) = all.get_user() {
        config.user(user);
    }
    if let Some(password) = all.get_password() {
        config.password(password);
    }
    if let Some(name) = all.get_dbname() {
        config.dbname(name);
    }
    if let Some(options) = all.get_options() {
        config.options(options);
    }
    let mut mode = match mode {
        Mode::Disable => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
    };
    match all.get_hosts().get(number) {
        Some(Host::Tcp(host)) => _ = config.host(host),
        Some(Host::Unix(directory)) => {
            // Never encrypted, as with libpq.
            mode = SslMode::Disable;
            config.host_path(directory);
        }
        None => {}
    }
    if let Some(address) = all.get_hostaddrs().get(number) {
        config.hostaddr(*address);
        if all.get_hosts().is_empty() {
            config.host(address.to_string());
        }
    }
    if let Some(port) = all.get_ports().get(number).or_else(|| all.get_ports().first()) {
        config.port(*port);
    }
    config.application_name(all.get_application_name().unwrap_or("posthaste"));
    config.ssl_mode(mode).ssl_negotiation(all.get_ssl_negotiation());
    config.connect_timeout(CONNECT_MAX / u32::try_from(count).unwrap_or(u32::MAX));
    config.keepalives(all.get_keepalives()).keepalives_idle(Duration::from_secs(10)).tcp_user_timeout(ACKNOWLEDGED_MAX);
    config.channel_binding(all.get_channel_binding());
    if takes_writes {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    config
}

/// Whether the connection does not leave this machine.
fn is_local(config: &Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
    }) && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
}

/// The parameters of a URL that are read here, and the URL without them.
struct Parameters {
    url: String,
    tls: TlsSettings,
    takes_writes: bool,
    is_mode_given: bool,
}

impl Parameters {
    fn take_from(url: &str) -> Result<Parameters, Error> {
        let wrong = |why: &str| Err(Error::Unusable(format!("the database URL cannot be read: {why}")));
        let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
        if !is_url {
            return wrong("it does not begin with postgres://");
        }
        // As the library reads it: a question mark before the first @ belongs to the password.
        let credentials = url.find('@').map_or(0, |at| at + 1);
        let Some(question) = url[credentials..].find('?').map(|at| credentials + at) else {
            let tls = TlsSettings { mode: Mode::Prefer, roots: None, client_certificate: None };
            return Ok(Parameters { url: url.to_owned(), tls, takes_writes: false, is_mode_given: false });
        };
        let (mut mode, mut roots, mut certificate, mut key) = (None, None, None, None);
        let mut takes_writes = false;
        let mut others = Vec::new();
        for parameter in url[question + 1..].split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let Ok(value) = percent_decode_str(value).decode_utf8() else { return wrong("a parameter is not UTF-8") };
            match name {
                "sslmode" => match Mode::parse(&value) {
                    Some(given) => mode = Some(given),
                    None => return wrong("sslmode is one of disable, prefer, require, verify-ca, verify-full"),
                },
                "sslrootcert" if value == "system" => roots = Some(Roots::System),
                "sslrootcert" => roots = Some(Roots::File(PathBuf::from(&*value))),
                "sslcert" => certificate = Some(PathBuf::from(&*value)),
                "sslkey" => key = Some(PathBuf::from(&*value)),
                "target_session_attrs" => match &*value {
                    "any" => takes_writes = false,
                    "read-write" | "primary" => takes_writes = true,
                    _ => return wrong("target_session_attrs is read-write, because Posthaste writes"),
                },
                _ => others.push(parameter),
            }
        }
        let client_certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return wrong("a client certificate needs both sslcert and sslkey"),
        };
        let is_mode_given = mode.is_some();
        let mode = mode.unwrap_or(Mode::Prefer);
        match (mode, &roots) {
            (Mode::VerifyCa, None) => return wrong("sslmode=verify-ca needs sslrootcert=… with the certificate of the authority"),
            (Mode::Disable | Mode::Prefer, Some(_)) => {
                return wrong("sslrootcert needs sslmode=require, verify-ca or verify-full, or it would not be used");
            }
            (Mode::Require | Mode::VerifyCa, Some(Roots::System)) => return wrong("sslrootcert=system needs sslmode=verify-full"),
            _ => {}
        }
        if mode == Mode::Disable && client_certificate.is_some() {
            return wrong("sslcert needs TLS, and sslmode=disable switches it off");
        }
        let mut rest = url[..question].to_owned();
        if !others.is_empty() {
            rest = format!("{rest}?{}", others.join("&"));
        }
        Ok(Parameters { url: rest, tls: TlsSettings { mode, roots, client_certificate }, takes_writes, is_mode_given })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(parameters: &str) -> String {
        let refused = PostgresAddress::parse(&format!("postgresql://somebody:secret@db/posthaste?{parameters}")).unwrap_err();
        let Error::Unusable(why) = refused else { panic!("{refused}") };
        assert!(!why.contains("secret"), "{why}");
        why
    }

    #[test]
    fn parameters_that_contradict_each_other_are_refused_with_the_reason() {
        for (parameters, part) in [
            ("sslmode=allow", "sslmode is one of"),
            ("sslmode=verify-ca", "needs sslrootcert"),
            ("sslrootcert=ca.pem", "sslrootcert needs sslmode"),
            ("sslmode=verify-ca&sslrootcert=system", "needs sslmode=verify-full"),
            ("sslmode=require&sslcert=a.pem", "both sslcert and sslkey"),
            ("sslmode=disable&sslcert=a&sslkey=b", "switches it off"),
            ("sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "sslrootcert /nowhere/ca.pem"),
            ("target_session_attrs=read-only", "Posthaste writes"),
            ("channel_binding=require", "channel_binding"),
            ("sslcrl=a", "unknown option `sslcrl`"),
            ("port=no", "port"),
        ] {
            let why = refused(parameters);
            assert!(why.contains(part), "{parameters}: {why}");
        }
    }

    #[test]
    fn what_tokio_postgres_does_not_know_is_taken_out_of_the_url() {
        let url = "postgres://a:p?w@one:1,two:2/x?sslmode=require&application_name=y&target_session_attrs=primary";
        let parameters = Parameters::take_from(url).expect("a good URL");
        assert_eq!(parameters.url, "postgres://a:p?w@one:1,two:2/x?application_name=y");
        assert_eq!(parameters.tls, TlsSettings { mode: Mode::Require, roots: None, client_certificate: None });
        assert!(parameters.takes_writes);
        let address = PostgresAddress::parse(url).expect("a good URL");
        let hosts: Vec<_> = address.hosts.iter().map(|host| (host.get_hosts().to_vec(), host.get_ports().to_vec())).collect();
        assert_eq!(hosts, [(vec![Host::Tcp("one".into())], vec![1]), (vec![Host::Tcp("two".into())], vec![2])]);
        assert!(address.hosts.iter().all(|host| host.get_target_session_attrs() == TargetSessionAttrs::ReadWrite));
        assert_eq!(address.hosts[1].get_password(), Some(b"p?w".as_slice()));
    }

    #[test]
    fn options_of_the_url_stay_and_ours_are_added() {
        let url = "postgresql://somebody@db/posthaste?options=-c%20search_path%3Dhooks";
        let address = PostgresAddress::parse(url).expect("a good URL").with_options("-c a=1").with_options("-c b=2");
        assert_eq!(address.options(), "-c search_path=hooks -c a=1 -c b=2");
    }
}
