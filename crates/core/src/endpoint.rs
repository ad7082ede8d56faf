//! A place that a tenant wants events sent to, and everything that was said about it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bucket::RateLimit;
use crate::circuit::CircuitPolicy;
use crate::event::{EventType, TypePatterns};
use crate::filter::Filter;
use crate::id::{EndpointId, EndpointUid, TenantId};
use crate::quiet_hours::QuietHours;
use crate::retry::RetryPolicy;
use crate::text::{TextError, text_type};
use crate::time::Timestamp;
use crate::timeout;

/// What a tenant, or an operator, has said about one endpoint.
#[derive(Clone, PartialEq, Debug)]
pub struct Endpoint {
    pub id: EndpointId,
    pub tenant: TenantId,
    pub uid: Option<EndpointUid>,
    pub url: String,
    pub description: Description,
    pub status: Status,
    pub subscription: Subscription,
    /// `None`: the server's default.
    pub max_in_flight: Option<MaxInFlight>,
    pub policies: PolicyOverrides,
    pub signing: Signing,
    pub payload_format: PayloadFormat,
    pub headers: Headers,
    pub metadata: Metadata,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Endpoint {
    /// One about which nothing else was said: active, for all types, with everybody's policies.
    pub fn new(id: EndpointId, tenant: TenantId, url: String, now: Timestamp) -> Endpoint {
        Endpoint {
            id,
            tenant,
            uid: None,
            url,
            description: Description::parse("").expect("nothing is a description"),
            status: Status::Active,
            subscription: Subscription::default(),
            max_in_flight: None,
            policies: PolicyOverrides::default(),
            signing: Signing::default(),
            payload_format: PayloadFormat::default(),
            headers: Headers::default(),
            metadata: Metadata::default(),
            created_at: now,
            updated_at: now,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Active,
    /// Events are taken and wait; until that time, or until somebody resumes it.
    Paused {
        until: Option<Timestamp>,
    },
    /// No events are taken. Ends only when a person enables it.
    Disabled,
}

impl Status {
    /// A pause with an end is over at that moment, without anybody writing it down.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Status {
        match self {
            Status::Paused { until: Some(until) } if until <= now => Status::Active,
            Status::Active | Status::Paused { .. } | Status::Disabled => self,
        }
    }

    /// Whether events published now get a delivery here.
    pub fn takes_events(self) -> bool {
        match self {
            Status::Active | Status::Paused { .. } => true,
            Status::Disabled => false,
        }
    }
}

/// Which events an endpoint wants.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Subscription {
    /// Left empty, all types.
    pub event_types: TypePatterns,
    /// Switched off without being deleted; wins over `event_types`.
    pub disabled_event_types: TypePatterns,
    pub filter: Option<Filter>,
}

impl Subscription {
    /// By type alone. The filter is judged once, when the event is published; this also later, at its turn.
    pub fn covers(&self, event_type: &EventType) -> bool {
        self.event_types.covers_or_is_empty(event_type) && !self.disabled_event_types.covers(event_type)
    }
}

/// How many requests an endpoint may have in flight: 1 to 1,000, and 16 unless said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaxInFlight(u32);

impl MaxInFlight {
    pub fn new(count: u32) -> Result<MaxInFlight, TextError> {
        if (1..=1000).contains(&count) { Ok(MaxInFlight(count)) } else { Err(TextError { rule: "max_in_flight is 1 to 1,000" }) }
    }

    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for MaxInFlight {
    fn default() -> MaxInFlight {
        MaxInFlight(16)
    }
}

/// How requests to it are signed. The secrets are not here: only the store and the sender see them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Signing {
    /// Standard Webhooks, `v1`: HMAC-SHA256.
    #[default]
    Standard,
    /// Standard Webhooks, `v1a`: Ed25519.
    StandardEd25519,
    /// Hex HMAC-SHA256 over `timestamp.body`, with header names of one's own.
    TimestampHex { prefix: HexPrefix, header_names: HeaderNames },
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum HexPrefix {
    /// `v1=`
    #[default]
    V1,
    /// `sha256=`
    Sha256,
}

impl HexPrefix {
    pub fn as_str(self) -> &'static str {
        match self {
            HexPrefix::V1 => "v1=",
            HexPrefix::Sha256 => "sha256=",
        }
    }
}

/// The names under which the timestamp-hex style sends what it has to say, in lower case, all different.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeaderNames {
    id: String,
    delivery: String,
    timestamp: String,
    signature: String,
}

impl Default for HeaderNames {
    fn default() -> HeaderNames {
        HeaderNames::new("x-webhook-event-id", "x-webhook-delivery-id", "x-webhook-timestamp", "x-webhook-signature")
            .expect("our own defaults are valid")
    }
}

impl HeaderNames {
    pub fn new(id: &str, delivery: &str, timestamp: &str, signature: &str) -> Result<HeaderNames, HeaderError> {
        let names = [id, delivery, timestamp, signature].map(str::to_ascii_lowercase);
        for name in &names {
            check_header_name(name)?;
            // The standard names may carry this style too, as long as what frames the request stays ours.
            if is_reserved(name) && !SIGNATURE_HEADERS.contains(&name.as_str()) {
                return Err(HeaderError::Reserved { name: name.clone() });
            }
        }
        if BTreeSet::from_iter(&names).len() < names.len() {
            return Err(HeaderError::Twice);
        }
        let [id, delivery, timestamp, signature] = names;
        Ok(HeaderNames { id, delivery, timestamp, signature })
    }

    fn all(&self) -> [&str; 4] {
        [&self.id, &self.delivery, &self.timestamp, &self.signature]
    }

    pub fn id(&self) -> &str {
        &self.id
    }
    pub fn delivery(&self) -> &str {
        &self.delivery
    }
    pub fn timestamp(&self) -> &str {
        &self.timestamp
    }
    pub fn signature(&self) -> &str {
        &self.signature
    }
}

text_type!(
    /// What an endpoint is for, in its owner's words.
    Description,
    "a description has at most 1,024 characters and no control characters but line breaks",
    |text| text.chars().count() <= 1024 && !text.chars().any(|character| character.is_control() && character != '\n')
);

/// What the user's own system wants to remember about an endpoint. We only keep it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Metadata(BTreeMap<String, String>);

impl Metadata {
    pub const BYTES_MAX: usize = 16 * 1024;

    pub fn new(entries: BTreeMap<String, String>) -> Result<Metadata, TextError> {
        let bytes: usize = entries.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes <= Self::BYTES_MAX { Ok(Metadata(entries)) } else { Err(TextError { rule: "metadata has at most 16 KiB" }) }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// What the body looks like.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum PayloadFormat {
    #[default]
    Envelope,
    /// The payload and nothing around it.
    Data,
    /// `CloudEvents` 1.0, structured.
    CloudEvents,
}

/// Headers of the user's own, sent with every request. They can never replace ours.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Headers(BTreeMap<String, String>);

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("at most 64 headers")]
    TooMany,
    #[error("`{name}` is not a header name")]
    Name { name: String },
    #[error("`{name}` frames, routes, signs or traces the request and is set by Posthaste")]
    Reserved { name: String },
    #[error("the value of `{name}` is 0 to 4,096 characters of visible ASCII, with spaces only inside")]
    Value { name: String },
    #[error("two of the names are the same")]
    Twice,
}

impl Headers {
    pub const COUNT_MAX: usize = 64;
    pub const VALUE_BYTES_MAX: usize = 4096;

    /// Names are kept in lower case: they mean the same in any. What `signing` sends under a name of its own is taken.
    pub fn new<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>, signing: &Signing) -> Result<Headers, HeaderError> {
        let mut checked = BTreeMap::new();
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            check_header_name(&name)?;
            let signs = match signing {
                Signing::Standard | Signing::StandardEd25519 => false,
                Signing::TimestampHex { header_names, .. } => header_names.all().contains(&name.as_str()),
            };
            if is_reserved(&name) || signs {
                return Err(HeaderError::Reserved { name });
            }
            let fits = value.len() <= Self::VALUE_BYTES_MAX
                && value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
                && value.trim_matches(' ') == value;
            if !fits {
                return Err(HeaderError::Value { name });
            }
            if checked.insert(name, value.to_owned()).is_some() {
                return Err(HeaderError::Twice);
            }
        }
        if checked.len() > Self::COUNT_MAX {
            return Err(HeaderError::TooMany);
        }
        Ok(Headers(checked))
    }

    /// For the store: a name that was free when it was given, and is ours since, is left out.
    pub fn stored<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>, signing: &Signing) -> Result<Headers, HeaderError> {
        Headers::new(headers.into_iter().filter(|(name, _)| !TRACE_HEADERS.contains(name)), signing)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// The values may be credentials.
impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// They were free once.
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];
const SIGNATURE_HEADERS: [&str; 3] = ["webhook-id", "webhook-timestamp", "webhook-signature"];

/// Names that frame the request, route it, vouch for it, or say which trace it belongs to.
const RESERVED_HEADERS: [&str; 17] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
];
const RESERVED_PREFIXES: [&str; 4] = ["posthaste-", "proxy-", "webhook-", "x-forwarded-"];

fn is_reserved(lower_case_name: &str) -> bool {
    RESERVED_HEADERS.contains(&lower_case_name)
        || TRACE_HEADERS.contains(&lower_case_name)
        || RESERVED_PREFIXES.iter().any(|prefix| lower_case_name.starts_with(prefix))
}

fn check_header_name(name: &str) -> Result<(), HeaderError> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if (1..=128).contains(&name.len()) && name.bytes().all(is_token) {
        Ok(())
    } else {
        Err(HeaderError::Name { name: name.to_owned() })
    }
}

/// What applies to an endpoint once everybody has been heard.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Policies {
    pub retry: RetryPolicy,
    pub timeout: timeout::Mode,
    pub circuit: CircuitPolicy,
    /// `None`: always open.
    pub delivery_schedule: Option<QuietHours>,
    /// `None`: unlimited.
    pub rate_limit: Option<RateLimit>,
    /// Where the endpoint does not have its own.
    pub max_in_flight: MaxInFlight,
}

/// What one layer (a tenant, an endpoint) says; the rest it inherits.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct PolicyOverrides {
    pub retry: Option<RetryPolicy>,
    pub timeout: Option<timeout::Mode>,
    pub circuit: Option<CircuitPolicy>,
    pub delivery_schedule: Override<QuietHours>,
    pub rate_limit: Override<RateLimit>,
}

/// For policies that can also be lifted: `"unlimited"`, `"always"`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Override<T> {
    #[default]
    Inherit,
    Lift,
    Set(T),
}

impl<T: Clone> Override<T> {
    fn over(&self, inherited: Option<T>) -> Option<T> {
        match self {
            Override::Inherit => inherited,
            Override::Lift => None,
            Override::Set(own) => Some(own.clone()),
        }
    }
}

impl Policies {
    /// The server's, with one layer laid over them.
    #[must_use]
    pub fn overridden_by(self, layer: &PolicyOverrides) -> Policies {
        Policies {
            retry: layer.retry.clone().unwrap_or(self.retry),
            timeout: layer.timeout.unwrap_or(self.timeout),
            circuit: layer.circuit.unwrap_or(self.circuit),
            delivery_schedule: layer.delivery_schedule.over(self.delivery_schedule),
            rate_limit: layer.rate_limit.over(self.rate_limit),
            max_in_flight: self.max_in_flight,
        }
    }
}

/// How long a rotated secret still signs beside its successor, unless said otherwise.
pub const SECRET_OVERLAP_DEFAULT: Duration = Duration::from_hours(24);
pub const SECRET_OVERLAP_MAX: Duration = Duration::from_hours(7 * 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_are_ours_or_could_inject_are_refused() {
        for (name, value) in [
            ("Host", "x"),
            ("content-length", "0"),
            ("Transfer-Encoding", "chunked"),
            ("webhook-signature", "x"),
            ("Posthaste-Delivery", "x"),
            ("Proxy-Authorization", "x"),
            ("X-Forwarded-For", "x"),
            ("user-agent", "x"),
            ("Content-Type", "x"),
            ("Connection", "close"),
            ("TraceParent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            ("tracestate", "a=1"),
        ] {
            let name_lower = name.to_ascii_lowercase();
            assert_eq!(Headers::new([(name, value)], &Signing::Standard), Err(HeaderError::Reserved { name: name_lower }));
        }
        for name in ["", "a b", "a:b", "a\r\nb", "ä", &"x".repeat(129)] {
            assert!(matches!(Headers::new([(name, "x")], &Signing::Standard), Err(HeaderError::Name { .. })), "{name:?}");
        }
        for value in ["a\r\nb", "a\nb", "\0", " a", "a ", "\t", "ü", &"x".repeat(4097)] {
            assert!(matches!(Headers::new([("x-a", value)], &Signing::Standard), Err(HeaderError::Value { .. })), "{value:?}");
        }
        assert_eq!(Headers::new([("X-A", "1"), ("x-a", "2")], &Signing::Standard), Err(HeaderError::Twice));
        let many: Vec<String> = (0..65).map(|n| format!("x-{n}")).collect();
        assert_eq!(Headers::new(many.iter().map(|name| (name.as_str(), "x")), &Signing::Standard), Err(HeaderError::TooMany));
        let hex = Signing::TimestampHex { prefix: HexPrefix::V1, header_names: HeaderNames::default() };
        let own = [("X-Webhook-Signature", "v1=00")];
        assert!(Headers::new(own, &Signing::Standard).is_ok());
        assert!(matches!(Headers::new(own, &hex), Err(HeaderError::Reserved { .. })), "it would stand beside the real one");
        let good = Headers::new([("Authorization", "Bearer abc"), ("X-Empty", "")], &Signing::Standard).unwrap();
        assert_eq!(good.iter().collect::<Vec<_>>(), [("authorization", "Bearer abc"), ("x-empty", "")]);
        assert!(!format!("{good:?}").contains("abc"), "a value may be a credential");
        let before = [("authorization", "Bearer abc"), ("traceparent", "x"), ("x-empty", "")];
        assert_eq!(Headers::stored(before, &Signing::Standard), Ok(good), "an endpoint from before a name was ours stays usable");
    }

    #[test]
    fn the_names_of_the_hex_style_can_be_chosen_but_not_to_frame_the_request() {
        assert!(HeaderNames::new("X-Id", "X-Delivery", "X-Timestamp", "X-Signature").is_ok());
        assert!(HeaderNames::new("Webhook-Id", "X-Delivery", "Webhook-Timestamp", "Webhook-Signature").is_ok());
        assert_eq!(HeaderNames::new("X-Id", "X-Id", "X-T", "X-S"), Err(HeaderError::Twice));
        assert!(matches!(HeaderNames::new("Host", "X-D", "X-T", "X-S"), Err(HeaderError::Reserved { .. })));
        assert!(matches!(HeaderNames::new("X-I", "X D", "X-T", "X-S"), Err(HeaderError::Name { .. })));
    }

    #[test]
    fn the_endpoint_overrides_the_tenant_who_overrides_the_server() {
        let limit = |n| RateLimit::new(n, n).unwrap();
        let tenant = PolicyOverrides {
            rate_limit: Override::Set(limit(100)),
            circuit: Some(CircuitPolicy::new(9, Duration::from_secs(9)).unwrap()),
            ..PolicyOverrides::default()
        };
        let resolve = |rate_limit| {
            let endpoint = PolicyOverrides { rate_limit, ..PolicyOverrides::default() };
            Policies::default().overridden_by(&tenant).overridden_by(&endpoint)
        };
        assert_eq!(resolve(Override::Inherit).rate_limit, Some(limit(100)));
        assert_eq!(resolve(Override::Set(limit(5))).rate_limit, Some(limit(5)));
        assert_eq!(resolve(Override::Lift).rate_limit, None);
        assert_eq!(resolve(Override::Inherit).circuit.failure_threshold(), 9);
        assert_eq!(resolve(Override::Inherit).retry, RetryPolicy::default());
    }

    #[test]
    fn what_users_write_about_an_endpoint_is_bounded() {
        assert!(Description::parse("").is_ok());
        assert!(Description::parse("two\nlines").is_ok());
        assert!(Description::parse(&"ü".repeat(1024)).is_ok());
        assert!(Description::parse(&"ü".repeat(1025)).is_err());
        assert!(Description::parse("a\rb").is_err());
        let metadata = |bytes: usize| Metadata::new(BTreeMap::from([("k".to_owned(), "v".repeat(bytes - 1))]));
        assert!(metadata(16 * 1024).is_ok());
        assert!(metadata(16 * 1024 + 1).is_err());
    }

    #[test]
    fn a_pause_with_an_end_ends_by_itself() {
        let at = Timestamp::from_millis;
        let paused = Status::Paused { until: Some(at(1000)) };
        assert_eq!(paused.at(at(999)), paused);
        assert_eq!(paused.at(at(1000)), Status::Active);
        assert_eq!(Status::Paused { until: None }.at(Timestamp::MAX), Status::Paused { until: None });
    }
}
