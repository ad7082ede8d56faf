//! How endpoints have fared, per minute, so that nobody has to read attempts to say so.
//!
//! Owners count, and add what they have counted now and then. A minute is also added to its tenant's and to everybody's, so that
//! a question over all endpoints reads no more rows than one over a single one.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::latency::LatencySketch;
use posthaste_core::time::Timestamp;

use crate::Error;
use crate::columns::{millis, signed};

/// How long minutes are kept: a week, and a day to compare it with.
pub const MINUTES_KEPT: Duration = Duration::from_hours(8 * 24);

/// One endpoint in one minute.
#[derive(Clone, PartialEq, Debug)]
pub struct Minute {
    pub endpoint: EndpointId,
    pub tenant: TenantId,
    /// Its start.
    pub minute: Timestamp,
    pub counts: Counts,
    pub successes: LatencySketch,
    pub timeouts: LatencySketch,
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

/// What is added up, whoever it is of.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    pub(crate) successes: LatencySketch,
    pub(crate) timeouts: LatencySketch,
}

impl Tally {
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
pub(crate) enum Whose {
    Endpoint(EndpointId, TenantId),
    Tenant(TenantId),
    Everybody,
}

pub(crate) const EVERYBODY: &str = "";

/// What is to be added to which rows, in the order in which they are locked.
pub(crate) fn tallies(minutes: &[Minute]) -> BTreeMap<(Whose, i64), Tally> {
    let mut tallies: BTreeMap<(Whose, i64), Tally> = BTreeMap::new();
    for Minute { endpoint, tenant, minute, counts, successes, timeouts } in minutes {
        let tally = Tally { counts: *counts, successes: successes.clone(), timeouts: timeouts.clone() };
        for whose in [Whose::Endpoint(*endpoint, tenant.clone()), Whose::Tenant(tenant.clone()), Whose::Everybody] {
            tallies.entry((whose, minute.as_millis())).or_default().add(&tally);
        }
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
