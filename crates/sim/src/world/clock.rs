//! The clocks of a world. Time passes evenly; the wall clock of a machine can be set, and each node sees the database's clock a few
//! milliseconds off.
//!
//! A world has three times. `real` orders its steps. `database_now` is what the store shows: on SQLite the wall clock as far as
//! the product's own [`posthaste_store::Clock`] believes it. `now` is the same, except while a node decides: then it is that node's.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use posthaste_core::time::Timestamp;
use posthaste_store::ClockSource;
use rand::RngExt;

use super::store::Kind;
use super::{Step, World};
use crate::checker::Violation;

/// A clock that was set by more than this is not believed for [`CONFIRMED_AFTER`].
const JUMP_MAX: Duration = Duration::from_mins(61);
const CONFIRMED_AFTER: Duration = Duration::from_mins(59);
/// From here on a step of the clock looks to a node as if it had been frozen.
const LEAP_MIN: Duration = Duration::from_millis(500);
/// How far the clocks of two nodes are apart where they differ.
pub(super) const SKEW_MAX_MS: i64 = 20;

/// The clocks of the machine that SQLite runs on.
#[expect(clippy::struct_field_names, reason = "the unit of each")]
#[derive(Debug)]
pub(super) struct Machine {
    started_ms: i64,
    passed_ms: AtomicI64,
    /// By how much somebody has set the wall clock, in all.
    set_by_ms: AtomicI64,
}

impl Machine {
    pub(super) fn started_at(now: Timestamp) -> Arc<Machine> {
        Arc::new(Machine { started_ms: now.as_millis(), passed_ms: AtomicI64::new(0), set_by_ms: AtomicI64::new(0) })
    }
}

impl ClockSource for Machine {
    fn wall(&self) -> Duration {
        let millis = self.started_ms + self.passed_ms.load(Ordering::Relaxed) + self.set_by_ms.load(Ordering::Relaxed);
        Duration::from_millis(millis.unsigned_abs())
    }

    fn boottime(&self) -> Duration {
        Duration::from_millis(self.passed_ms.load(Ordering::Relaxed).unsigned_abs())
    }

    fn is_synchronised(&self) -> Option<bool> {
        None
    }

    fn boot_id(&self) -> String {
        "the only one".to_owned()
    }
}

impl World {
    /// Plans when somebody sets the clock.
    pub(super) fn plan_clocks(&mut self, span: Duration) {
        let minutes = |minutes: i64| minutes * 60_000;
        for _ in 0..self.random.random_range(0..3u32) {
            let at = self.moment_within(span);
            match self.store.kind {
                Kind::Postgres => self.later(at, Step::ClocksDrift),
                Kind::Sqlite => {
                    let by_ms = match self.random.random_range(0..4u32) {
                        0 => minutes(self.random.random_range(1..50)),
                        1 => -minutes(self.random.random_range(1..50)),
                        2 => minutes(self.random.random_range(180..600)),
                        // A mistake: somebody sets it right again.
                        _ => {
                            let by_ms = minutes(400 * 24 * 60);
                            let mended = Duration::from_mins(self.random.random_range(1..50));
                            self.later(at + mended, Step::ClockIsSet { by_ms: -by_ms });
                            by_ms
                        }
                    };
                    self.later(at, Step::ClockIsSet { by_ms });
                }
            }
        }
    }

    /// Time passes until the next step.
    pub(super) fn advance(&mut self, to: Timestamp) -> Result<(), Violation> {
        let (passed, shown_before) = (to.since(self.real), self.database_now);
        self.real = to;
        self.machine.passed_ms.store(to.as_millis() - self.machine.started_ms, Ordering::Relaxed);
        self.database_now = match self.store.kind {
            Kind::Sqlite => self.clock.now(),
            Kind::Postgres => to,
        };
        self.now = self.database_now;
        if self.now < shown_before {
            let what = format!("the time goes back from {} to {}", shown_before.to_rfc3339(), self.now.to_rfc3339());
            return Err(Violation { promise: "I35", what });
        }
        let leapt = self.now.since(shown_before).saturating_sub(passed);
        if leapt > JUMP_MAX && self.real.since(self.clock_set_at) < CONFIRMED_AFTER {
            let what = format!("a clock that was set by {leapt:?} is believed after {:?}", self.real.since(self.clock_set_at));
            return Err(Violation { promise: "I35", what });
        }
        if leapt > LEAP_MIN {
            self.visit("edge", "the time leaps");
            self.thawed_at = self.real;
            for endpoint in 0..self.endpoints.len() {
                self.checker.catching_up(endpoint, self.now);
            }
            // A loop comes round at least once a second.
            for node in 0..self.nodes.len() {
                let delay = self.soon(1_000);
                self.later(delay, Step::Turn { node });
            }
        }
        Ok(())
    }

    /// Somebody sets the wall clock.
    pub(super) fn set_clock(&mut self, by_ms: i64) -> Result<(), Violation> {
        self.visit("fault", if by_ms > 0 { "clock set ahead" } else { "clock set back" });
        // What is off by a minute is the same clock.
        if by_ms.abs() > 60_000 {
            self.clock_set_at = self.real;
        }
        self.machine.set_by_ms.fetch_add(by_ms, Ordering::Relaxed);
        self.advance(self.real)
    }

    /// The clocks of the nodes are measured against the database's again, each with another error.
    pub(super) fn drift(&mut self) {
        if self.clock_slack.is_zero() {
            return;
        }
        self.visit("fault", "clocks drift");
        for node in 0..self.nodes.len() {
            self.nodes[node].skew_ms = self.random.random_range(-SKEW_MAX_MS..=SKEW_MAX_MS);
        }
    }

    /// Does something by a node's own clock, which never goes back.
    pub(super) fn by_clock_of<T>(&mut self, node: usize, act: impl FnOnce(&mut World) -> T) -> T {
        let outside = self.now;
        let skewed = Timestamp::from_millis(self.database_now.as_millis() + self.nodes[node].skew_ms);
        let shown = self.nodes[node].clock_shown.max(skewed);
        self.nodes[node].clock_shown = shown;
        self.now = shown;
        let result = act(self);
        self.now = outside;
        result
    }
}
