//! How endpoints have fared, per minute, so that nobody has to read attempts to say so.
//!
//! An attempt is noted for counting in the transaction that records it, and added to its minute soon after, in one that removes the note: no
//! attempt is lost for the counts, and none is counted twice, whatever dies in between. A minute is also added to its tenant's and to everybody's,
//! so that a question over all endpoints reads no more rows than one over a single one.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_core::delivery::{Outcome, Silence, State};
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::latency::LatencySketch;
use posthaste_core::time::Timestamp;

use crate::columns::{millis, signed};
use crate::{AttemptRecord, Error};

/// How long minutes are kept: a week, and a day to compare it with.
pub const MINUTES_KEPT: Duration = Duration::from_hours(8 * 24);

/// Attempts that are added to their minutes in one transaction: few enough that nobody waits long for it.
pub(crate) const COUNTED_ATTEMPTS_MAX: usize = 2_000;
/// The same for endpoints, each of which has rows of its own.
pub(crate) const COUNTED_ENDPOINTS_MAX: usize = 100;
const MINUTE_MILLIS: i64 = 60_000;

/// What is counted of one recorded attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CountedAttempt {
    pub(crate) endpoint: EndpointId,
    pub(crate) attempted_at_ms: i64,
    pub(crate) led_to: LedTo,
    pub(crate) is_timeout: bool,
    /// How long the answer took, or the timeout.
    pub(crate) millis: u32,
}

/// What has become of the delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LedTo {
    Delivery,
    Death,
    Retry,
    Cancellation,
}

impl LedTo {
    const ALL: [LedTo; 4] = [LedTo::Delivery, LedTo::Death, LedTo::Retry, LedTo::Cancellation];

    /// By the status of the delivery, as a column has it.
    pub(crate) fn of_status(status: &str) -> Result<LedTo, Error> {
        Ok(match status {
            "delivered" => LedTo::Delivery,
            "dead" => LedTo::Death,
            "waiting" => LedTo::Retry,
            "cancelled" => LedTo::Cancellation,
            _ => return Err(Error::Corrupt { what: "status" }),
        })
    }
}

impl CountedAttempt {
    pub(crate) fn new(endpoint: EndpointId, attempt: &AttemptRecord, state: State) -> CountedAttempt {
        let is_timeout = attempt.outcome == Outcome::Silent(Silence::Timeout);
        let took = if is_timeout { attempt.timeout } else { attempt.response_time };
        CountedAttempt {
            endpoint,
            attempted_at_ms: attempt.attempted_at.as_millis(),
            led_to: match state {
                State::Delivered { .. } => LedTo::Delivery,
                State::Dead { .. } => LedTo::Death,
                State::Waiting { .. } => LedTo::Retry,
                State::Cancelled { .. } => LedTo::Cancellation,
            },
            is_timeout,
            millis: u32::try_from(took.as_millis()).unwrap_or(u32::MAX),
        }
    }

    fn minute_ms(self) -> i64 {
        self.attempted_at_ms - self.attempted_at_ms.rem_euclid(MINUTE_MILLIS)
    }

    /// Endpoint, time, how long, what it has led to and whether it is a timeout.
    const BYTES: usize = 16 + 8 + 4 + 1;

    pub(crate) fn write(self, bytes: &mut Vec<u8>) {
        bytes.extend(self.endpoint.to_bytes());
        bytes.extend(self.attempted_at_ms.to_le_bytes());
        bytes.extend(self.millis.to_le_bytes());
        bytes.push(self.led_to as u8 | u8::from(self.is_timeout) << 2);
    }

    /// What [`CountedAttempt::write`] has written, one after the other.
    pub(crate) fn read_all(bytes: &[u8]) -> Result<Vec<CountedAttempt>, Error> {
        let (attempts, rest) = bytes.as_chunks::<{ CountedAttempt::BYTES }>();
        let read = |attempt: &[u8; CountedAttempt::BYTES]| {
            Some(CountedAttempt {
                endpoint: EndpointId::from_bytes(*attempt.first_chunk()?),
                attempted_at_ms: i64::from_le_bytes(*attempt[16..].first_chunk()?),
                millis: u32::from_le_bytes(*attempt[24..].first_chunk()?),
                led_to: *LedTo::ALL.get(usize::from(attempt[28] & 3))?,
                is_timeout: attempt[28] & 4 != 0,
            })
        };
        let read: Option<Vec<CountedAttempt>> = attempts.iter().map(read).collect();
        read.filter(|_| rest.is_empty()).ok_or(Error::Corrupt { what: "list of attempts" })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    pub attempts: u64,
    pub successes: u64,
    pub timeouts: u64,
    pub delivered: u64,
    pub dead: u64,
    pub retried: u64,
}

impl Counts {
    /// As columns, in this order.
    pub(crate) fn columns(self) -> [i64; 6] {
        let Counts { attempts, successes, timeouts, delivered, dead, retried } = self;
        [attempts, successes, timeouts, delivered, dead, retried].map(signed)
    }

    pub(crate) fn of_columns(columns: [i64; 6]) -> Result<Counts, Error> {
        let mut counts = [0; 6];
        for (count, column) in counts.iter_mut().zip(columns) {
            *count = u64::try_from(column).map_err(|_| Error::Corrupt { what: "count" })?;
        }
        let [attempts, successes, timeouts, delivered, dead, retried] = counts;
        Ok(Counts { attempts, successes, timeouts, delivered, dead, retried })
    }

    pub fn add(&mut self, other: Counts) {
        self.attempts = self.attempts.saturating_add(other.attempts);
        self.successes = self.successes.saturating_add(other.successes);
        self.timeouts = self.timeouts.saturating_add(other.timeouts);
        self.delivered = self.delivered.saturating_add(other.delivered);
        self.dead = self.dead.saturating_add(other.dead);
        self.retried = self.retried.saturating_add(other.retried);
    }
}

/// Of one endpoint, of one tenant, or of everybody.
#[derive(Clone, PartialEq, Debug)]
pub struct StatisticsQuery {
    pub tenant: Option<TenantId>,
    pub endpoint: Option<EndpointId>,
    /// Minutes that begin at this time or later.
    pub from: Timestamp,
    /// Minutes that begin before this time.
    pub to: Timestamp,
    /// Steps count from `from`. Under a minute counts as a minute.
    pub step: Duration,
}

/// A step of time in which something was counted.
#[derive(Clone, PartialEq, Debug)]
pub struct StatisticsStep {
    pub from: Timestamp,
    pub counts: Counts,
    pub successes: LatencySketch,
    pub timeouts: LatencySketch,
}

impl StatisticsStep {
    pub fn new(from: Timestamp) -> StatisticsStep {
        StatisticsStep { from, counts: Counts::default(), successes: LatencySketch::default(), timeouts: LatencySketch::default() }
    }

    /// Counts one attempt that has led to this state.
    pub fn count(&mut self, attempt: &AttemptRecord, state: State) {
        let mut tally = Tally::default();
        tally.count(&CountedAttempt::new(EndpointId::from_bytes([0; 16]), attempt, state));
        self.counts.add(tally.counts);
        self.successes.merge(&tally.successes);
        self.timeouts.merge(&tally.timeouts);
    }
}

/// What is added up, whoever it is of.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    pub(crate) successes: LatencySketch,
    pub(crate) timeouts: LatencySketch,
}

impl Tally {
    fn count(&mut self, attempt: &CountedAttempt) {
        let took = Duration::from_millis(u64::from(attempt.millis));
        self.counts.attempts += 1;
        match attempt.led_to {
            LedTo::Delivery => {
                self.counts.successes += 1;
                self.counts.delivered += 1;
                self.successes.record(took);
            }
            LedTo::Death => self.counts.dead += 1,
            LedTo::Retry => self.counts.retried += 1,
            LedTo::Cancellation => {}
        }
        if attempt.is_timeout {
            self.counts.timeouts += 1;
            self.timeouts.record(took);
        }
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.counts.add(other.counts);
        self.successes.merge(&other.successes);
        self.timeouts.merge(&other.timeouts);
    }

    pub(crate) fn of_columns(counts: [i64; 6], successes: &[u8], timeouts: &[u8]) -> Result<Tally, Error> {
        let sketch = |bytes| LatencySketch::from_bytes(bytes).ok_or(Error::Corrupt { what: "latency sketch" });
        Ok(Tally { counts: Counts::of_columns(counts)?, successes: sketch(successes)?, timeouts: sketch(timeouts)? })
    }
}

/// Whose a row is. Rows of an endpoint name its tenant too; those of everybody are under an id that no tenant has.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum StatisticsOwner {
    Endpoint(EndpointId, TenantId),
    Tenant(TenantId),
    Everybody,
}

pub(crate) const EVERYBODY: &str = "";

/// What is to be added to which rows, in the order in which they are locked.
pub(crate) type Tallies = BTreeMap<(StatisticsOwner, i64), Tally>;

pub(crate) fn tallies<'a>(attempts: impl IntoIterator<Item = (CountedAttempt, &'a TenantId)>) -> Tallies {
    let mut of_endpoints: BTreeMap<(EndpointId, i64), (&TenantId, Tally)> = BTreeMap::new();
    for (attempt, tenant) in attempts {
        let key = (attempt.endpoint, attempt.minute_ms());
        of_endpoints.entry(key).or_insert_with(|| (tenant, Tally::default())).1.count(&attempt);
    }
    let mut tallies = Tallies::new();
    for ((endpoint, minute), (tenant, tally)) in of_endpoints {
        for whose in [StatisticsOwner::Tenant(tenant.clone()), StatisticsOwner::Everybody] {
            tallies.entry((whose, minute)).or_default().add(&tally);
        }
        tallies.insert((StatisticsOwner::Endpoint(endpoint, tenant.clone()), minute), tally);
    }
    tallies
}

/// Adds rows up, step by step.
pub(crate) struct Steps {
    from: i64,
    step: i64,
    found: BTreeMap<i64, Tally>,
}

impl Steps {
    pub(crate) fn new(query: &StatisticsQuery) -> Steps {
        Steps { from: query.from.as_millis(), step: millis(query.step).max(60_000), found: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, minute: i64, tally: &Tally) {
        let place = minute.saturating_sub(self.from).div_euclid(self.step);
        self.found.entry(place).or_default().add(tally);
    }

    pub(crate) fn steps(self) -> Vec<StatisticsStep> {
        let from = |place: i64| Timestamp::from_millis(self.from.saturating_add(place.saturating_mul(self.step)));
        let step =
            |(place, Tally { counts, successes, timeouts })| StatisticsStep { from: from(place), counts, successes, timeouts };
        self.found.into_iter().map(step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_to_be_counted_are_read_as_they_were_written() {
        let mut attempts = Vec::new();
        for (n, led_to) in LedTo::ALL.into_iter().enumerate() {
            for is_timeout in [false, true] {
                let endpoint = EndpointId::from_bytes([u8::try_from(n).expect("a few"); 16]);
                attempts.push(CountedAttempt { endpoint, attempted_at_ms: -7, led_to, is_timeout, millis: u32::MAX - 1 });
            }
        }
        let mut bytes = Vec::new();
        for attempt in &attempts {
            attempt.write(&mut bytes);
        }
        assert_eq!(CountedAttempt::read_all(&bytes).expect("as it was written"), attempts);
        assert_eq!(CountedAttempt::read_all(&[]).expect("nothing"), []);
        assert!(CountedAttempt::read_all(&bytes[1..]).is_err(), "cut off");
    }
}
