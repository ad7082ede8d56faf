//! How the text of a setting is read, and what is said of one that cannot be.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use posthaste_core::event::TypePatterns;
use posthaste_core::id::TenantId;
use posthaste_core::quiet_hours::{Days, TimeOfDay, Window};
use posthaste_core::retry::AlsoStatus;
use posthaste_notify::mail_server::MailServer;
use posthaste_store::{MasterKey, SecretText};
use posthaste_traces::{Collector, CollectorHeader};
use tracing_subscriber::EnvFilter;

/// How a setting is shown, and how its flag is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Text,
    /// Not quoted in the file.
    Number,
    /// Its flag needs no value.
    Boolean,
    /// Separated by commas; its flag may be given more than once.
    List,
    /// Never shown.
    Secret,
}

/// Reads one value. What it says on failure may be empty: `allowed` is told in any case.
type Read<T> = Box<dyn Fn(&str) -> Result<T, String>>;

pub(crate) struct Rule<T> {
    pub(crate) kind: Kind,
    /// Completes "… is not": `a number from 1 to 50`.
    pub(crate) allowed: String,
    read: Read<T>,
}

impl<T> Rule<T> {
    fn new(kind: Kind, allowed: impl Into<String>, read: impl Fn(&str) -> Result<T, String> + 'static) -> Rule<T> {
        Rule { kind, allowed: allowed.into(), read: Box::new(read) }
    }

    pub(crate) fn read(&self, text: &str) -> Result<T, String> {
        (self.read)(text)
    }
}

/// For what has nothing to add to `allowed`.
fn plainly<T, E>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|_| String::new())
}

fn telling<T, E: Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// May be left out: then, or if it is empty, there is none.
pub(crate) fn optional<T: 'static>(rule: Rule<T>) -> Rule<Option<T>> {
    let Rule { kind, allowed, read } = rule;
    Rule::new(kind, allowed, move |text| if text.is_empty() { Ok(None) } else { read(text).map(Some) })
}

/// Any number of them, separated by commas.
pub(crate) fn list<T: 'static>(rule: Rule<T>) -> Rule<Vec<T>> {
    let Rule { kind, allowed, read } = rule;
    let kind = if kind == Kind::Secret { Kind::Secret } else { Kind::List };
    Rule::new(kind, format!("a list, separated by commas, of which each is {allowed}"), move |text| {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| read(part).map_err(|why| if why.is_empty() { format!("`{part}` is not") } else { why })).collect()
    })
}

pub(crate) fn number<T>(min: T, max: T) -> Rule<T>
where
    T: FromStr + PartialOrd + Copy + Display + 'static,
{
    Rule::new(Kind::Number, format!("a number from {min} to {max}"), move |text| {
        let read: Option<T> = text.replace('_', "").parse().ok();
        read.filter(|value| min <= *value && *value <= max).ok_or_else(String::new)
    })
}

/// A status that is not worth another try by itself, or the class of them.
pub(crate) fn also_status() -> Rule<AlsoStatus> {
    Rule::new(Kind::Text, "a number from 400 to 499, or 4xx for all of them but 410", |text| {
        if text == AlsoStatus::CLIENT_ERRORS {
            return Ok(AlsoStatus::ClientErrors);
        }
        let status: Option<u16> = text.parse().ok();
        status.filter(|status| (400..=499).contains(status)).map(AlsoStatus::One).ok_or_else(String::new)
    })
}

/// Bytes, also with a unit: `1MiB`.
pub(crate) fn bytes(min: usize, max: usize) -> Rule<usize> {
    Rule::new(
        Kind::Number,
        format!("a number of bytes from {min} to {max}, such as 1048576 or 1MiB (units: KiB, MiB, GiB)"),
        move |text| {
            let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
            let (digits, shift) =
                units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift))).unwrap_or((text, 0));
            let count: Option<usize> = digits.trim().replace('_', "").parse().ok();
            let count = count.and_then(|count| count.checked_mul(1 << shift));
            count.filter(|count| (min..=max).contains(count)).ok_or_else(String::new)
        },
    )
}

pub(crate) fn boolean() -> Rule<bool> {
    Rule::new(Kind::Boolean, "true or false", |text| plainly(text.parse()))
}

/// One of these words.
pub(crate) fn one_of<T: Copy + 'static>(words: &'static [(&'static str, T)]) -> Rule<T> {
    let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
    Rule::new(Kind::Text, format!("one of {}", names.join(", ")), move |text| {
        words.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(String::new)
    })
}

pub(crate) fn address() -> Rule<SocketAddr> {
    let allowed = "an address and a port, such as 127.0.0.1:8080 or [::]:8080";
    Rule::new(Kind::Text, allowed, |text| plainly(text.parse()))
}

pub(crate) fn ip() -> Rule<IpAddr> {
    Rule::new(Kind::Text, "an address of this machine, such as 192.0.2.7", |text| plainly(text.parse()))
}

pub(crate) fn path() -> Rule<PathBuf> {
    let read = |text: &str| if text.is_empty() { Err(String::new()) } else { Ok(PathBuf::from(text)) };
    Rule::new(Kind::Text, "a path", read)
}

pub(crate) fn network() -> Rule<IpNet> {
    Rule::new(Kind::Text, "a network, such as 10.0.0.0/8 or ::1/128", |text| {
        let network: IpNet = plainly(text.parse())?;
        if network == network.trunc() { Ok(network) } else { Err(format!("it has host bits; {} is meant?", network.trunc())) }
    })
}

/// Where people reach a server, without a path.
pub(crate) fn web_address() -> Rule<String> {
    Rule::new(Kind::Text, "a URL such as https://hooks.example.com", |text| {
        let uri: http::Uri = plainly(text.parse())?;
        let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
        let is_bare = uri.query().is_none() && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        if is_web && is_bare { Ok(text.trim_end_matches('/').to_owned()) } else { Err(String::new()) }
    })
}

/// As browsers write it: a scheme, a host, and a port that is not the scheme's own.
pub(crate) fn origin() -> Rule<String> {
    Rule::new(Kind::Text, "an origin such as https://app.example.com", |text| {
        let uri: http::Uri = plainly(text.parse())?;
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        let written = format!("{}://{authority}", uri.scheme_str().unwrap_or_default());
        let is_own_port = matches!((uri.scheme_str(), uri.port_u16()), (Some("https"), Some(443)) | (Some("http"), Some(80)));
        let is_plain = authority.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte));
        let is_origin = matches!(uri.scheme_str(), Some("http" | "https")) && is_plain && !authority.is_empty() && !is_own_port;
        if is_origin && text == written && text == text.to_ascii_lowercase() { Ok(written) } else { Err(String::new()) }
    })
}

/// May carry a password.
pub(crate) fn proxy_address() -> Rule<SecretText> {
    Rule::new(Kind::Secret, "a URL such as http://proxy.internal:3128", |text| {
        let uri: http::Uri = plainly(text.parse())?;
        if uri.scheme_str() == Some("http") && uri.authority().is_some() {
            Ok(SecretText(text.to_owned()))
        } else {
            Err(String::new())
        }
    })
}

pub(crate) fn database_address() -> Rule<SecretText> {
    Rule::new(Kind::Secret, "a URL such as postgres://user:password@host/database", |text| {
        let is_postgres = text.starts_with("postgres://") || text.starts_with("postgresql://");
        if is_postgres { Ok(SecretText(text.to_owned())) } else { Err(String::new()) }
    })
}

/// What the first caller shows. Long enough that nobody guesses it.
pub(crate) fn api_key() -> Rule<SecretText> {
    Rule::new(Kind::Secret, "20 to 200 characters of visible ASCII", |text| {
        let fits = (20..=200).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(SecretText(text.to_owned())) } else { Err(String::new()) }
    })
}

pub(crate) fn master_key() -> Rule<MasterKey> {
    Rule::new(Kind::Secret, "the base64 of 32 random bytes", |text| telling(MasterKey::from_base64(text)))
}

/// Levels, also by module. Kept as text: a filter cannot be cloned.
pub(crate) fn log_levels() -> Rule<String> {
    let allowed = "a level (error, warn, info, debug, trace, off), or levels by module such as info,posthaste_store=debug";
    Rule::new(Kind::Text, allowed, |text| telling(EnvFilter::builder().parse(text)).map(|_| text.to_owned()))
}

pub(crate) fn tenant() -> Rule<TenantId> {
    Rule::new(Kind::Text, "a tenant's id: letters, digits, `_` or `-`, with `.` and `:` inside", |text| {
        plainly(TenantId::parse(text))
    })
}

/// May carry a password.
pub(crate) fn mail_server() -> Rule<SecretText> {
    Rule::new(Kind::Secret, "a URL such as smtp://user:password@mail.example.com:587?tls=required, or smtps://…", |text| {
        telling(MailServer::parse(text, b"").map(|_| SecretText(text.to_owned())))
    })
}

pub(crate) fn mail_address() -> Rule<String> {
    Rule::new(Kind::Text, "a mail address such as hooks@example.com", |text| {
        if posthaste_notify::mail::is_address(text) { Ok(text.to_owned()) } else { Err(String::new()) }
    })
}

pub(crate) fn type_patterns() -> Rule<TypePatterns> {
    let allowed = "a list of event types and patterns, such as invoice.*,payment.failed";
    Rule::new(Kind::List, allowed, |text| {
        telling(TypePatterns::parse(text.split(',').map(str::trim).filter(|part| !part.is_empty())))
    })
}

/// `22:00-06:00`, on some days only `22:00-06:00 mon tue`.
pub(crate) fn window() -> Rule<Window> {
    Rule::new(Kind::Text, "a window such as 22:00-06:00, or on some days 22:00-06:00 sat sun", |text| {
        let mut words = text.split_whitespace();
        let (start, end) = words.next().and_then(|times| times.split_once('-')).ok_or_else(String::new)?;
        let days: Vec<&str> = words.collect();
        let days = if days.is_empty() { Days::ALL } else { telling(Days::parse(days))? };
        Ok(Window { start: telling(TimeOfDay::parse(start))?, end: telling(TimeOfDay::parse(end))?, days })
    })
}

/// Where traces go.
pub(crate) fn collector() -> Rule<Collector> {
    Rule::new(Kind::Text, "a URL such as http://localhost:4318", |text| telling(Collector::parse(text)))
}

/// May be a credential.
pub(crate) fn collector_header() -> Rule<CollectorHeader> {
    Rule::new(Kind::Secret, "a name, `=`, and a value in which a space is %20 and a comma %2C", |text| {
        telling(CollectorHeader::parse(text))
    })
}

/// Whatever it is, somebody else judges it.
pub(crate) fn free_text() -> Rule<String> {
    Rule::new(Kind::Text, "some text", |text| if text.is_empty() { Err(String::new()) } else { Ok(text.to_owned()) })
}
