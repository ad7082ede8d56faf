//! Where deliveries may go: everything that can be said of a URL and of an address without asking anybody.
//!
//! 1. Text: no control characters, spaces or backslashes; `https://`, or `http://` where the operator allows it; no user
//!    name or password; no `%` before the path.
//! 2. Parsed as browsers do; an IPv4 address in its usual spelling only.
//! 3. Names: at least two labels of letters, digits and inner hyphens; not one that means "this network", nor our own.
//!    Where the operator allows a network, names that resolve wholly inside it are exempt, which only the attempt can know.
//! 4. Ports: none that another protocol listens on.
//! 5. Addresses: public ones, and those that the operator allows (`address.rs`).
//!
//! Whoever makes an endpoint hears of it at once ([`Policy::check`]). Every attempt asks again, and then judges each
//! address that the name has led to ([`Policy::judge`]). Nothing in here resolves a name.

mod address;
mod name;
mod port;

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use url::Url;

pub use address::AddressRule;
pub use name::NameRule;

/// As long as anybody's URL, and short enough to show.
pub const URL_CHARACTERS_MAX: usize = 2048;

/// What the operator allows. The default is the strictest.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Policy {
    /// Reached although they are not public.
    pub allowed_networks: Vec<IpNet>,
    pub allow_http: bool,
    /// The host of the server's own address, where it is a name: nothing is delivered to ourselves.
    pub public_host: Option<String>,
}

/// A URL that can be read, in one spelling. Whether we go there is for a [`Policy`] to say.
#[derive(Clone, PartialEq, Eq)]
pub struct Destination {
    url: Url,
    scheme: Scheme,
    host: Host,
    port: u16,
    /// Which rule about names it breaks; an allowed network may lift it.
    name_rule: Option<NameRule>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scheme {
    Http,
    Https,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Host {
    /// In ASCII and lower case, without a dot at its end.
    Name(String),
    Address(IpAddr),
}

/// Which rule a URL breaks, in words for whoever wrote it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DestinationError {
    #[error("a URL has at most 2,048 characters")]
    TooLong,
    #[error("a URL has no spaces, control characters or backslashes")]
    Character,
    #[error("a URL begins with https://")]
    Scheme,
    #[error("plain http is not allowed here; use https:// (an operator can allow http with `serve --allow-http`)")]
    Http,
    #[error("a URL carries no user name or password; use one of the endpoint's headers for credentials")]
    UserInfo,
    #[error("the host of a URL is written without %")]
    Percent,
    #[error("the URL cannot be read: {0}")]
    Unreadable(&'static str),
    #[error("an IPv4 address is written in its usual form, here {0}")]
    Ipv4Spelling(std::net::Ipv4Addr),
    #[error(transparent)]
    Name(#[from] NameRule),
    #[error("deliveries do not go to port {0}: it is not for the web, or belongs to a service that must not be spoken to")]
    Port(u16),
    #[error(transparent)]
    Address(#[from] AddressRule),
}

impl Destination {
    /// Reads a URL. What it may not be whatever the operator allows is refused here.
    pub fn parse(text: &str) -> Result<Destination, DestinationError> {
        if text.chars().count() > URL_CHARACTERS_MAX {
            return Err(DestinationError::TooLong);
        }
        if text.chars().any(|character| character.is_control() || character.is_whitespace() || character == '\\') {
            return Err(DestinationError::Character);
        }
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Scheme::Https, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Scheme::Http, rest),
            Some(_) | None => return Err(DestinationError::Scheme),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.is_empty() {
            // A browser would take the first part of the path for the host.
            return Err(DestinationError::Unreadable("it has no host"));
        }
        if authority.contains('@') {
            return Err(DestinationError::UserInfo);
        }
        if authority.contains('%') {
            return Err(DestinationError::Percent);
        }
        let written = written_host(authority);
        if written.chars().any(name::is_invisible) {
            // In the spelling that is sent nobody could see that they were there, so this rule is never lifted.
            return Err(DestinationError::Name(NameRule::Invisible));
        }
        let mut url = Url::parse(text).map_err(|error| DestinationError::Unreadable(reason(error)))?;
        let (host, name_rule) = match url.host() {
            None => return Err(DestinationError::Unreadable("it has no host")),
            Some(url::Host::Ipv4(address)) if written != address.to_string() => {
                return Err(DestinationError::Ipv4Spelling(address));
            }
            Some(url::Host::Ipv4(address)) => (Host::Address(address.into()), None),
            Some(url::Host::Ipv6(address)) => (Host::Address(address.into()), None),
            Some(url::Host::Domain(name)) => {
                let name = name.strip_suffix('.').unwrap_or(name).to_owned();
                if name.split('.').any(str::is_empty) {
                    // No network has such a name, and dropping its last dot would make another one of it.
                    return Err(DestinationError::Name(NameRule::Label));
                }
                let rule = name::check(&name).err();
                (Host::Name(name), rule)
            }
        };
        if let (Host::Name(name), Some(written)) = (&host, url.host_str())
            && name != written
        {
            url.set_host(Some(name)).map_err(|error| DestinationError::Unreadable(reason(error)))?;
        }
        if url.fragment().is_some() {
            url.set_fragment(None);
        }
        let port = url.port_or_known_default().ok_or(DestinationError::Scheme)?;
        if !port::may_be_spoken_to(port) {
            return Err(DestinationError::Port(port));
        }
        Ok(Destination { url, scheme, host, port, name_rule })
    }

    /// The whole URL in its one spelling, without what follows a `#`.
    pub fn as_str(&self) -> &str {
        self.url.as_str()
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Paths are often credentials, so only the host is shown.
impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Destination({:?} {:?} {})", self.scheme, self.host, self.port)
    }
}

impl Policy {
    /// What can be known without resolving the name: for whoever makes an endpoint, and once more before every attempt.
    /// Where any network is allowed, the rules about names are left to [`Policy::judge`].
    pub fn check(&self, destination: &Destination) -> Result<(), DestinationError> {
        match destination.scheme {
            Scheme::Https => {}
            Scheme::Http if self.allow_http => {}
            Scheme::Http => return Err(DestinationError::Http),
        }
        match &destination.host {
            Host::Address(address) => Ok(self.permits(*address)?),
            Host::Name(_) if self.allowed_networks.is_empty() => Ok(self.check_name(destination)?),
            Host::Name(_) => Ok(()),
        }
    }

    /// Whether a connection to this destination may go to this address. Every address that the name has must pass.
    pub fn judge(&self, destination: &Destination, address: IpAddr) -> Result<(), DestinationError> {
        self.permits(address)?;
        match self.check_name(destination) {
            Ok(()) => Ok(()),
            // The operator's own network has names of its own.
            Err(_) if self.allows(address) => Ok(()),
            Err(rule) => Err(rule.into()),
        }
    }

    /// The rule about names that a destination breaks. Only addresses that are all in an allowed network lift it, and only
    /// where there is such a network is the name worth resolving.
    pub fn broken_name_rule(&self, destination: &Destination) -> Option<NameRule> {
        self.check_name(destination).err()
    }

    fn check_name(&self, destination: &Destination) -> Result<(), NameRule> {
        let Host::Name(name) = &destination.host else { return Ok(()) };
        if let Some(rule) = destination.name_rule {
            return Err(rule);
        }
        let is_ours = |ours: &String| ours.strip_suffix('.').unwrap_or(ours).eq_ignore_ascii_case(name);
        if self.public_host.as_ref().is_some_and(is_ours) { Err(NameRule::OurOwn) } else { Ok(()) }
    }

    fn allows(&self, address: IpAddr) -> bool {
        self.allowed_networks.iter().any(|network| network.contains(&address))
    }
}

/// The host as it was written: without the port, and an IPv6 address with its brackets.
fn written_host(authority: &str) -> &str {
    match authority.rfind(']') {
        Some(end) => &authority[..=end],
        None => authority.split(':').next().unwrap_or_default(),
    }
}

fn reason(error: url::ParseError) -> &'static str {
    use url::ParseError;
    if error == ParseError::EmptyHost {
        "it has no host"
    } else if error == ParseError::InvalidPort {
        "the port is not a number from 1 to 65535"
    } else if error == ParseError::InvalidIpv6Address {
        "the host is not an IPv6 address"
    } else if matches!(error, ParseError::IdnaError | ParseError::InvalidDomainCharacter | ParseError::InvalidIpv4Address) {
        "the host is not a name that can exist"
    } else {
        "it is not a URL"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(networks: &str) -> Policy {
        let allowed_networks = networks.split_whitespace().map(|network| network.parse().unwrap()).collect();
        Policy { allowed_networks, allow_http: true, public_host: Some("Hooks.Ours.Com".to_owned()) }
    }

    fn check(url: &str, policy: &Policy) -> Result<String, DestinationError> {
        let destination = Destination::parse(url)?;
        policy.check(&destination)?;
        Ok(destination.as_str().to_owned())
    }

    #[test]
    fn an_ordinary_url_is_taken_in_one_spelling() {
        for (url, spelling) in [
            ("https://example.com/hooks?a=b", "https://example.com/hooks?a=b"),
            ("HTTPS://Example.COM", "https://example.com/"),
            ("https://example.com.:8443/x#part", "https://example.com:8443/x"),
            ("https://example.com:443/x", "https://example.com/x"),
            ("http://example.com:8080/", "http://example.com:8080/"),
            ("https://bücher.example.com/ü?ü", "https://xn--bcher-kva.example.com/%C3%BC?%C3%BC"),
            ("https://93.184.216.34/", "https://93.184.216.34/"),
            ("https://[2606:2800:220:1:248:1893:25c8:1946]:8443/", "https://[2606:2800:220:1:248:1893:25c8:1946]:8443/"),
            ("https://a.b/%00%0d%0a", "https://a.b/%00%0d%0a"),
            ("https://user.example.com/a@b", "https://user.example.com/a@b"),
        ] {
            assert_eq!(check(url, &policy("")).as_deref(), Ok(spelling), "{url}");
        }
    }

    #[test]
    fn a_url_that_could_mean_something_else_is_refused() {
        for (url, refused) in [
            ("", DestinationError::Scheme),
            ("example.com", DestinationError::Scheme),
            ("ftp://example.com/", DestinationError::Scheme),
            ("file:///etc/passwd", DestinationError::Scheme),
            ("https:example.com", DestinationError::Scheme),
            ("https:/example.com", DestinationError::Scheme),
            ("javascript:alert(1)//https://a.b", DestinationError::Scheme),
            (" https://example.com/", DestinationError::Character),
            ("https://example.com/a b", DestinationError::Character),
            ("https://example.com/\u{a0}", DestinationError::Character),
            ("https://exa\tmple.com/", DestinationError::Character),
            ("https://example.com/\r\nHost: x", DestinationError::Character),
            ("https://example.com\\@10.0.0.1/", DestinationError::Character),
            ("https://example.com/\0", DestinationError::Character),
            ("https://user@example.com/", DestinationError::UserInfo),
            ("https://example.com:pass@10.0.0.1/", DestinationError::UserInfo),
            ("https://@example.com/", DestinationError::UserInfo),
            ("https://10.0.0.1%2f@example.com/", DestinationError::UserInfo),
            ("https://ex%61mple.com/", DestinationError::Percent),
            ("https://[fe80::1%25eth0]/", DestinationError::Percent),
            ("https://exam\u{ad}ple.com/", DestinationError::Name(NameRule::Invisible)),
            ("https://example\u{200b}.com/", DestinationError::Name(NameRule::Invisible)),
            ("https://example.com\u{2060}/", DestinationError::Name(NameRule::Invisible)),
            ("https://a..com/", DestinationError::Name(NameRule::Label)),
            ("https://a.com../", DestinationError::Name(NameRule::Label)),
            ("https://。。/", DestinationError::Name(NameRule::Label)),
            ("https:///example.com/", DestinationError::Unreadable("it has no host")),
            ("https://?x", DestinationError::Unreadable("it has no host")),
            ("https://[::1/", DestinationError::Unreadable("the host is not an IPv6 address")),
            ("https://example.com:99999/", DestinationError::Unreadable("the port is not a number from 1 to 65535")),
            ("https://exa<mple.com/", DestinationError::Unreadable("the host is not a name that can exist")),
        ] {
            assert_eq!(check(url, &policy("")), Err(refused), "{url}");
        }
        assert_eq!(check(&format!("https://a.b/{}", "x".repeat(2036)), &policy("")).map(|url| url.len()), Ok(2048));
        assert_eq!(check(&format!("https://a.b/{}", "x".repeat(2037)), &policy("")), Err(DestinationError::TooLong));
        let strict = Policy::default();
        assert_eq!(check("http://example.com/", &strict), Err(DestinationError::Http));
        assert_eq!(check("https://example.com/", &strict).as_deref(), Ok("https://example.com/"));
    }

    #[test]
    fn an_ipv4_address_has_one_spelling() {
        let everything = policy("0.0.0.0/0");
        for url in [
            "https://127.1/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0x7f.1/",
            "https://0177.0.0.1/",
            "https://127.0.0.01/",
            "https://127.0.0.1./",
            "https://１２７.0.0.1/",
            "https://127。0。0。1/",
            "https://①②⑦.⓪.⓪.①/",
        ] {
            assert_eq!(check(url, &everything), Err(DestinationError::Ipv4Spelling([127, 0, 0, 1].into())), "{url}");
        }
        assert!(check("https://127.0.0.1/", &everything).is_ok());
        assert!(check("https://256.0.0.1/", &everything).is_err());
        assert!(check("https://1.2.3.4.5/", &everything).is_err());
    }

    #[test]
    fn names_of_this_network_and_our_own_are_refused() {
        for (url, rule) in [
            ("https://localhost/", NameRule::SingleLabel),
            ("https://intranet/", NameRule::SingleLabel),
            ("https://com./", NameRule::SingleLabel),
            ("https://a.localhost/", NameRule::SpecialUse("localhost")),
            ("https://printer.local/", NameRule::SpecialUse("local")),
            ("https://metadata.google.internal/", NameRule::SpecialUse("internal")),
            ("https://router.home.arpa/", NameRule::SpecialUse("arpa")),
            ("https://db.default.svc/", NameRule::SpecialUse("svc")),
            ("https://x.LOCAL./", NameRule::SpecialUse("local")),
            ("https://x.example/", NameRule::SpecialUse("example")),
            ("https://hooks.ours.com/", NameRule::OurOwn),
            ("https://HOOKS.OURS.COM.:8443/", NameRule::OurOwn),
            ("https://a_b.example.com/", NameRule::Label),
            ("https://-a.example.com/", NameRule::Label),
            ("https://a-.example.com/", NameRule::Label),
            ("https://a!b.example.com/", NameRule::Label),
        ] {
            assert_eq!(check(url, &policy("")), Err(DestinationError::Name(rule)), "{url}");
            assert_eq!(check(url, &policy("10.0.0.0/8")).err(), None, "left to the attempt: {url}");
        }
        for good in
            ["https://sub.hooks.ours.com/", "https://hooks.ours.com.evil.com/", "https://localhost.com/", "https://a--b.com/"]
        {
            assert_eq!(check(good, &policy("")).err(), None, "{good}");
        }
        let long = |labels: usize| format!("https://{}com/", "a123456789.".repeat(labels));
        assert!(check(&long(22), &policy("")).is_ok());
        assert_eq!(check(&long(23), &policy("")), Err(DestinationError::Name(NameRule::Label)), "256 characters");
        let label = |length: usize| format!("https://{}.com/", "a".repeat(length));
        assert!(check(&label(63), &policy("")).is_ok());
        assert_eq!(check(&label(64), &policy("")), Err(DestinationError::Name(NameRule::Label)));
    }

    #[test]
    fn an_allowed_network_lifts_the_rules_about_names_inside_it_alone() {
        let policy = policy("10.0.0.0/8 2001:db8::/32");
        let judge = |url: &str, address: &str| policy.judge(&Destination::parse(url).unwrap(), address.parse().unwrap());
        assert_eq!(judge("https://queue/", "10.1.2.3"), Ok(()));
        assert_eq!(judge("https://queue/", "2001:db8::1"), Ok(()));
        assert_eq!(judge("https://queue/", "93.184.216.34"), Err(DestinationError::Name(NameRule::SingleLabel)));
        assert_eq!(judge("https://hooks.ours.com/", "93.184.216.34"), Err(DestinationError::Name(NameRule::OurOwn)));
        assert_eq!(judge("https://hooks.ours.com/", "10.1.2.3"), Ok(()));
        assert_eq!(judge("https://example.com/", "93.184.216.34"), Ok(()));
        assert_eq!(judge("https://example.com/", "10.1.2.3"), Ok(()));
        assert!(matches!(judge("https://example.com/", "192.168.0.1"), Err(DestinationError::Address(_))));
    }

    #[test]
    fn ports_of_other_protocols_are_refused_and_no_network_lifts_that() {
        for port in [0, 1, 22, 25, 53, 445, 587, 2375, 3306, 5432, 6000, 6379, 6667, 9200, 10080, 10250, 11211, 27017] {
            let url = format!("https://127.0.0.1:{port}/");
            assert_eq!(check(&url, &policy("127.0.0.0/8")), Err(DestinationError::Port(port)), "{port}");
        }
        for port in [80, 443, 3000, 8000, 8080, 8443, 65535] {
            assert!(check(&format!("http://127.0.0.1:{port}/"), &policy("127.0.0.0/8")).is_ok(), "{port}");
        }
    }

    #[test]
    fn what_is_said_to_a_user_names_the_rule() {
        let said = |url: &str| check(url, &Policy::default()).unwrap_err().to_string();
        assert_eq!(
            said("http://example.com/"),
            "plain http is not allowed here; use https:// (an operator can allow http with `serve --allow-http`)"
        );
        assert_eq!(
            said("https://a.local/"),
            "names under .local mean something in one network only, so deliveries do not go there"
        );
        assert_eq!(
            said("https://10.0.0.1/"),
            "deliveries do not go to this address: it is in a private network (an operator can allow a network)"
        );
        assert_eq!(said("https://0x7f.1/"), "an IPv4 address is written in its usual form, here 127.0.0.1");
    }

    #[test]
    fn a_path_is_not_shown_by_debug_output() {
        let shown = format!("{:?}", Destination::parse("https://example.com/services/T0/secret").unwrap());
        assert_eq!(shown, r#"Destination(Https Name("example.com") 443)"#);
    }
}
