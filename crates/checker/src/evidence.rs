//! What was done and what was seen, by one clock.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

/// Microseconds since the world began, by the monotonic clock of this machine.
pub type Moment = u64;

/// Everybody's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    /// The wall clock when the world began, in microseconds since 1970.
    began_wall: u64,
}

impl Clock {
    pub fn start() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { began: Instant::now(), began_wall: moments(wall) }
    }

    pub fn now(&self) -> Moment {
        moments(self.began.elapsed())
    }

    /// What the wall clock shows at a moment, in microseconds since 1970.
    pub fn wall(&self, at: Moment) -> u64 {
        self.began_wall + at
    }

    /// When the wall clock shows this.
    pub fn at_wall(&self, wall: u64) -> Moment {
        wall.saturating_sub(self.began_wall)
    }
}

pub fn moments(duration: Duration) -> Moment {
    u64::try_from(duration.as_micros()).expect("no world lasts half a million years")
}

/// Enough of a SHA-256 to tell two texts apart.
pub type Fingerprint = [u8; 16];

pub fn fingerprint(bytes: &[u8]) -> Fingerprint {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    *digest.first_chunk().expect("16 of 32")
}

/// One call that published, or tried to. The serial number is in its payload, so that a hit can be told to belong to it even
/// if the answer never came. Calls that were repeated have the same.
#[derive(Clone, Debug)]
pub struct Publish {
    pub serial: u64,
    pub tenant: u32,
    pub event_type: &'static str,
    pub sent: Moment,
    pub answered: Moment,
    pub outcome: Outcome,
    pub data: Fingerprint,
    pub idempotency_key: Option<Box<str>>,
    pub ordering_key: Option<Box<str>>,
    pub deliver_at: Option<Moment>,
}

/// A call that was to cancel an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cancel {
    pub event: Box<str>,
    pub answered: Moment,
    /// It was answered with 2xx.
    pub is_granted: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// 2xx.
    Ok { event: Box<str>, is_duplicate: bool },
    /// 4xx.
    No,
    /// 5xx, a time-out, a connection that broke: nobody knows.
    Unknown,
}

/// One request that a receiver got.
#[derive(Clone, Debug)]
pub struct Hit {
    pub start: Moment,
    /// When the answer was given, or the other side was gone.
    pub end: Moment,
    pub endpoint: usize,
    pub event: Box<str>,
    pub delivery: Box<str>,
    pub attempt: u32,
    /// What its payload says: which publish, of which tenant.
    pub serial: Option<u64>,
    pub tenant: Option<u32>,
    pub event_type: Box<str>,
    pub data: Fingerprint,
    pub body: Fingerprint,
    pub answer: Answer,
    /// What was said in `Retry-After`.
    pub retry_after: RetryAfter,
    /// What the query of its URL and its header `x-mark` say.
    pub marks: [Option<u64>; 2],
    /// Which of its endpoint's secrets it is signed with, counted in the order in which they were given.
    pub secret: Option<usize>,
    /// Why the signature is not valid, or is not known to be.
    pub signature_problem: Option<Box<str>>,
    /// By how much `webhook-timestamp` differs from the time of arrival.
    pub clock_off_seconds: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// This status, as a whole.
    Status(u16),
    /// The connection was closed without one, by either side.
    Cut,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryAfter {
    None,
    Seconds(u32),
    /// Something that means nothing.
    Malformed,
}

impl RetryAfter {
    pub fn header(self) -> Option<String> {
        match self {
            RetryAfter::None => None,
            RetryAfter::Seconds(seconds) => Some(seconds.to_string()),
            RetryAfter::Malformed => Some("-soon".to_owned()),
        }
    }
}

impl Answer {
    pub fn is_success(self) -> bool {
        matches!(self, Answer::Status(200..=299))
    }

    /// What nobody should try again.
    pub fn is_permanent(self) -> bool {
        matches!(self, Answer::Status(300..=499)) && !matches!(self, Answer::Status(408 | 409 | 425 | 429))
    }
}

/// An endpoint that was made, or that somebody tried to make.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub tenant: u32,
    /// The beginning of the types that it wants; all if there is none.
    pub wants: Option<&'static str>,
    pub id: Box<str>,
    /// From when on it is known to be there.
    pub made: Moment,
    /// It may end as disabled, so that nothing is owed to it.
    pub is_doomed: bool,
    pub rate_limit: Option<RateLimit>,
    /// Its policy, where tries are to be judged by it: nothing else may hold them.
    pub retry: Option<Retry>,
    pub max_in_flight: Option<u32>,
}

/// Exponential, with between half and all of each delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry {
    pub base: Moment,
    pub factor: u64,
    pub cap: Moment,
}

impl Retry {
    /// How long to wait after this attempt, at least and at most.
    pub fn bounds(&self, attempt: u32) -> (Moment, Moment) {
        let delay = self.base.saturating_mul(self.factor.saturating_pow(attempt.saturating_sub(1))).min(self.cap);
        (delay / 2, delay)
    }
}

/// A time in which an endpoint is not to be sent what is covered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuietWindow {
    pub endpoint: usize,
    pub from: Moment,
    pub until: Moment,
    /// The one type that is exempt.
    pub bypass: &'static str,
    /// It ended by itself, and was not taken back.
    pub is_whole: bool,
}

/// A delivery as the server lists it in the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub id: Box<str>,
    pub event: Box<str>,
    pub endpoint: Box<str>,
    pub replay: Option<Box<str>>,
    pub replay_of: Option<Box<str>>,
}

/// A replay as the server shows it in the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplayEnd {
    pub id: Box<str>,
    pub state: String,
    pub matched: u64,
    pub created: u64,
    /// For all reasons.
    pub skipped: u64,
    pub remaining: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateLimit {
    pub max_per_minute: u32,
    pub burst_capacity: u32,
}

impl Endpoint {
    pub fn wants(&self, event_type: &str) -> bool {
        self.wants.is_none_or(|beginning| event_type.starts_with(beginning))
    }
}

/// A time in which nothing may be sent to an endpoint: from the answer to a pause until the call that ended it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pause {
    pub endpoint: usize,
    pub from: Moment,
    pub until: Moment,
}

/// A time in which an endpoint has these settings: from the answer to a change until the call that changes them again was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    pub endpoint: usize,
    pub from: Moment,
    pub until: Moment,
    pub setting: Setting,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// Of both the URL's query and a header.
    Mark(u64),
    /// The number of its secret.
    Secret(usize),
    /// How long a request may take.
    Timeout(Moment),
    /// Only events with an even serial number, or only those with an odd one.
    Wants(Parity),
    Disabled,
    RateLimit(RateLimit),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parity {
    Even,
    Odd,
}

impl Parity {
    pub fn of(serial: u64) -> Parity {
        if serial.is_multiple_of(2) { Parity::Even } else { Parity::Odd }
    }
}

/// What the server says of a delivery in the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeliveryState {
    pub status: String,
    pub reason: Option<String>,
    pub attempt_count: u64,
}

impl DeliveryState {
    pub fn is_over(&self) -> bool {
        ["delivered", "dead", "cancelled"].contains(&self.status.as_str())
    }
}

/// What the server lists for one event in the end: of how many deliveries to which endpoint it knows.
pub type Listed = BTreeMap<String, u32>;

/// Everything that a judge gets to see.
#[derive(Clone, Default, Debug)]
pub struct Evidence {
    pub publishes: Vec<Publish>,
    pub hits: Vec<Hit>,
    pub endpoints: Vec<Endpoint>,
    pub pauses: Vec<Pause>,
    pub changes: Vec<Change>,
    pub cancels: Vec<Cancel>,
    pub quiet: Vec<QuietWindow>,
    /// How many requests of a tenant may be in flight.
    pub tenant_caps: BTreeMap<u32, u32>,
    pub replays: Vec<ReplayEnd>,
    /// What a dry run just before a replay said that it would make, while nothing else was going on.
    pub dry_runs: BTreeMap<Box<str>, u64>,
    /// All deliveries of the tenant that is replayed.
    pub rows: Vec<Row>,
    /// When the server was killed.
    pub kills: Vec<Moment>,
    /// From when until when it could not write: what ended meanwhile is not on disk before that is over.
    pub outages: Vec<(Moment, Moment)>,
    pub deliveries: HashMap<Box<str>, DeliveryState>,
    pub listed: HashMap<Box<str>, Listed>,
    /// What the server says that endpoints are in the end, by their ids.
    pub endpoint_statuses: HashMap<Box<str>, String>,
    pub max_attempts: u32,
    /// What this server does not offer, so that it could not be looked at.
    pub missing: BTreeMap<&'static str, String>,
}
