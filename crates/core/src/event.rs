//! What happened: the envelope, its payload, and the names of its type.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::{EventId, TenantId};
use crate::json::{self, JsonError};
use crate::text::{IdempotencyKey, Labels, OrderingKey, TextError, Version, is_word, text_type};
use crate::time::Timestamp;
use crate::trace::TraceContext;

/// One thing that happened, as it was accepted.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    pub id: EventId,
    pub tenant: TenantId,
    pub event_type: EventType,
    pub version: Option<Version>,
    /// When it happened, in the publisher's words; a backlog drains in this order.
    pub timestamp: Timestamp,
    /// When we took it.
    pub accepted_at: Timestamp,
    pub data: Data,
    pub labels: Labels,
    pub idempotency_key: Option<IdempotencyKey>,
    pub ordering_key: Option<OrderingKey>,
    pub timing: Timing,
    /// The caller's trace, if it has one.
    pub trace: Option<Box<TraceContext>>,
}

/// The payload: valid JSON, kept to the byte as it was published.
#[derive(Clone, PartialEq, Eq)]
pub struct Data(Arc<str>);

impl Data {
    pub fn parse(text: &str) -> Result<Data, JsonError> {
        json::check(text, json::DEPTH_MAX)?;
        Ok(Data(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Payloads do not belong into logs.
impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} bytes)", self.0.len())
    }
}

/// Not before, and not after. Both are for the event as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Timing {
    deliver_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TimingError {
    #[error("deliver_at is more than a year ahead")]
    TooFarAhead,
    #[error("expires_at has passed already")]
    Expired,
    #[error("expires_at is not after deliver_at, so nothing could ever be delivered")]
    ExpiresBeforeDelivery,
}

impl Timing {
    /// Beyond this a calendar is the better tool.
    pub const AHEAD_MAX: Duration = Duration::from_hours(365 * 24);

    /// Checks what a publisher asks for at the time it is asked.
    pub fn new(now: Timestamp, deliver_at: Option<Timestamp>, expires_at: Option<Timestamp>) -> Result<Timing, TimingError> {
        if deliver_at.is_some_and(|at| at > now + Self::AHEAD_MAX) {
            return Err(TimingError::TooFarAhead);
        }
        match (expires_at, deliver_at) {
            (Some(expires_at), _) if expires_at <= now => Err(TimingError::Expired),
            (Some(expires_at), Some(deliver_at)) if expires_at <= deliver_at => Err(TimingError::ExpiresBeforeDelivery),
            _ => Ok(Timing { deliver_at, expires_at }),
        }
    }

    /// For the store: what was checked when it came in.
    pub fn stored(deliver_at: Option<Timestamp>, expires_at: Option<Timestamp>) -> Timing {
        Timing { deliver_at, expires_at }
    }

    pub fn deliver_at(self) -> Option<Timestamp> {
        self.deliver_at
    }

    pub fn expires_at(self) -> Option<Timestamp> {
        self.expires_at
    }

    /// When an event that was accepted at `accepted_at` may first be tried.
    pub fn first_due(self, accepted_at: Timestamp) -> Timestamp {
        self.deliver_at.map_or(accepted_at, |at| at.max(accepted_at))
    }
}

text_type!(
    /// The name of a kind of event, such as `invoice.paid`.
    EventType,
    "an event type is 1 to 128 letters, digits, `_` or `-`, in segments between single dots, such as `invoice.paid`",
    |text| text.len() <= 128 && text.split('.').all(is_word)
);

/// What a list of event types may contain.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TypePattern {
    /// `*`
    All,
    /// `invoice.*`: everything below `invoice.`, at any depth, and not `invoice` itself.
    Below(EventType),
    Exactly(EventType),
}

impl TypePattern {
    pub const RULE: &'static str = "expected an event type such as `invoice.paid`, a pattern such as `invoice.*`, or `*`";

    pub fn parse(text: &str) -> Result<TypePattern, TextError> {
        let refuse = |_| TextError { rule: Self::RULE };
        if text == "*" {
            Ok(TypePattern::All)
        } else if let Some(above) = text.strip_suffix(".*") {
            EventType::parse(above).map(TypePattern::Below).map_err(refuse)
        } else {
            EventType::parse(text).map(TypePattern::Exactly).map_err(refuse)
        }
    }
}

impl fmt::Display for TypePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TypePattern::All => f.write_str("*"),
            TypePattern::Below(above) => write!(f, "{above}.*"),
            TypePattern::Exactly(exactly) => write!(f, "{exactly}"),
        }
    }
}

/// A list of patterns. Asking it costs the same for three as for a thousand of them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct TypePatterns {
    /// As given, for showing.
    patterns: Vec<TypePattern>,
    all: bool,
    below: BTreeSet<Arc<str>>,
    exactly: BTreeSet<Arc<str>>,
}

impl TypePatterns {
    /// Enough for any catalogue; a pattern says more than a thousand names.
    pub const COUNT_MAX: usize = 1000;

    pub fn new(patterns: Vec<TypePattern>) -> Result<TypePatterns, TextError> {
        if patterns.len() > Self::COUNT_MAX {
            return Err(TextError { rule: "at most 1,000 event types in a list" });
        }
        let mut set = TypePatterns::default();
        for pattern in &patterns {
            match pattern {
                TypePattern::All => set.all = true,
                TypePattern::Below(above) => _ = set.below.insert(above.as_str().into()),
                TypePattern::Exactly(exactly) => _ = set.exactly.insert(exactly.as_str().into()),
            }
        }
        set.patterns = patterns;
        Ok(set)
    }

    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<TypePatterns, TextError> {
        TypePatterns::new(texts.into_iter().map(TypePattern::parse).collect::<Result<_, _>>()?)
    }

    pub fn iter(&self) -> impl Iterator<Item = &TypePattern> {
        self.patterns.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether some pattern covers this type. An empty list covers nothing.
    pub fn covers(&self, event_type: &EventType) -> bool {
        let text = event_type.as_str();
        self.all
            || self.exactly.contains(text)
            || (!self.below.is_empty() && text.match_indices('.').any(|(dot, _)| self.below.contains(&text[..dot])))
    }

    /// The same where a list left empty means everything.
    pub fn covers_or_is_empty(&self, event_type: &EventType) -> bool {
        self.is_empty() || self.covers(event_type)
    }

    /// A pattern that stands in both lists to the letter.
    pub fn shared_with<'a>(&'a self, other: &TypePatterns) -> Option<&'a TypePattern> {
        self.patterns.iter().find(|pattern| other.patterns.contains(pattern))
    }
}

impl fmt::Debug for TypePatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.patterns.iter().map(ToString::to_string)).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::text::Label;

    pub(crate) fn event(event_type: &str, data: &str) -> Event {
        Event {
            id: EventId::parse("evt_1").unwrap(),
            tenant: TenantId::parse("acme").unwrap(),
            event_type: EventType::parse(event_type).unwrap(),
            version: None,
            timestamp: Timestamp::from_millis(1_775_643_330_000),
            accepted_at: Timestamp::from_millis(1_775_643_330_000),
            data: Data::parse(data).unwrap(),
            labels: Labels::new(vec![Label::parse("vip").unwrap()]).unwrap(),
            idempotency_key: None,
            ordering_key: None,
            timing: Timing::default(),
            trace: None,
        }
    }

    #[test]
    fn a_type_is_segments_between_single_dots() {
        for good in ["a", "invoice.paid", "a.b.c-d_e.F9", &"x".repeat(128)] {
            assert!(EventType::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a.*", "*", "a b", "ä", &"x".repeat(129)] {
            assert!(EventType::parse(bad).is_err(), "{bad}");
        }
        for bad in ["a.*.b", "*.a", ".*", "**", "a*", ""] {
            assert!(TypePattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pattern_covers_what_is_below_it() {
        for (patterns, event_type, covered) in [
            (&["*"][..], "anything", true),
            (&["invoice.*"], "invoice.paid", true),
            (&["invoice.*"], "invoice.paid.late", true),
            (&["invoice.*"], "invoice", false),
            (&["invoice.*"], "invoices.paid", false),
            (&["invoice.paid.*", "user.created"], "invoice.paid", false),
            (&["invoice.paid", "user.created"], "user.created", true),
            (&["invoice.paid"], "invoice.paid.late", false),
            (&[], "invoice.paid", false),
        ] {
            let set = TypePatterns::parse(patterns.iter().copied()).unwrap();
            assert_eq!(set.covers(&EventType::parse(event_type).unwrap()), covered, "{patterns:?} and {event_type}");
        }
    }

    #[test]
    fn timing_is_refused_where_nothing_could_ever_be_delivered() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let day = Duration::from_hours(24);
        let year = 365 * day;
        assert!(Timing::new(now, Some(now + year), None).is_ok());
        assert_eq!(Timing::new(now, Some(now + year + Duration::from_millis(1)), None), Err(TimingError::TooFarAhead));
        assert_eq!(Timing::new(now, None, Some(now)), Err(TimingError::Expired));
        assert_eq!(Timing::new(now, Some(now + day), Some(now + day)), Err(TimingError::ExpiresBeforeDelivery));
        let timing = Timing::new(now, Some(now - day), Some(now + day)).unwrap();
        assert_eq!(timing.first_due(now), now, "the past means at once");
    }

    #[test]
    fn a_payload_never_shows_up_in_debug_output() {
        assert!(!format!("{:?}", event("a", r#"{"card":"4242"}"#)).contains("4242"));
    }
}
