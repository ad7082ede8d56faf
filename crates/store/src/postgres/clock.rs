//! The database's clock, as seen from here: all nodes go by it, whatever their own clocks show.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use posthaste_core::time::Timestamp;

use crate::ClockSource;

/// Clocks drift by some microseconds in this time.
const MEASURED_EVERY: Duration = Duration::from_secs(5);
/// A measurement with a longer round trip says less than the one before it.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(500);

/// Follows the database's clock by the monotonic one. When a measurement sets it back, it goes on at half speed until the
/// database has caught up: what is due still comes due, and no time is seen twice.
#[derive(Debug)]
pub(super) struct DatabaseClock {
    /// Of this machine.
    local: Arc<dyn ClockSource>,
    reading: Mutex<Reading>,
}

/// From here on a node is not ready: something is wrong with its clock or with the database's.
const SKEW_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// The database's time at `measured_at`, since 1970.
    measured: Duration,
    measured_at: Instant,
    /// What was last shown, and when.
    shown: Duration,
    shown_at: Instant,
    next_measurement: Instant,
    /// The last measurement was more than [`SKEW_MAX`] off, and that was logged.
    is_skewed: bool,
}

impl DatabaseClock {
    /// Shows the local time until it has been measured.
    pub(super) fn new(local: Arc<dyn ClockSource>) -> DatabaseClock {
        let now = Instant::now();
        // Nothing is shown before the first measurement, so that it may well be earlier than this.
        let reading = Reading {
            measured: local.wall(),
            measured_at: now,
            shown: Duration::ZERO,
            shown_at: now,
            next_measurement: now,
            is_skewed: false,
        };
        DatabaseClock { local, reading: Mutex::new(reading) }
    }

    pub(super) fn now(&self) -> Timestamp {
        let mut reading = self.reading.lock();
        *reading = reading.shown_next(Instant::now());
        timestamp(reading.shown)
    }

    /// What the database's clock shows, as far as it is known here. It may go back when it is measured.
    pub(super) fn database_now(&self) -> Timestamp {
        timestamp(self.reading.lock().database_time(Instant::now()))
    }

    /// Whether it is time to measure again. Whoever is told so is the only one.
    pub(super) fn is_due(&self) -> bool {
        let (mut reading, now) = (self.reading.lock(), Instant::now());
        let is_due = now >= reading.next_measurement;
        if is_due {
            reading.next_measurement = now + MEASURED_EVERY;
        }
        is_due
    }

    /// What the database has answered to a question that was sent at `asked_at`: it read its clock half-way in between.
    pub(super) fn measure(&self, asked_at: Instant, database_micros: i64) {
        let now = Instant::now();
        let round_trip = now.saturating_duration_since(asked_at);
        let mut reading = self.reading.lock();
        if round_trip > ROUND_TRIP_MAX && reading.shown > Duration::ZERO {
            return;
        }
        reading.measured = Duration::from_micros(u64::try_from(database_micros).unwrap_or(0));
        reading.measured_at = asked_at + round_trip / 2;
        reading.next_measurement = now + MEASURED_EVERY;
        let skew = self.local.wall().abs_diff(reading.database_time(now));
        let is_skewed = skew > SKEW_MAX;
        if is_skewed && !reading.is_skewed {
            let skew_ms = skew.as_millis();
            tracing::error!(
                skew_ms,
                "the clock of this machine and that of the database are too far apart: this node is not ready"
            );
        } else if reading.is_skewed && !is_skewed {
            tracing::warn!("the clock of this machine agrees with that of the database again");
        }
        reading.is_skewed = is_skewed;
    }

    /// How far the local wall clock is off.
    pub(super) fn skew(&self) -> Duration {
        let database = self.reading.lock().database_time(Instant::now());
        self.local.wall().abs_diff(database)
    }
}

impl Reading {
    fn database_time(&self, at: Instant) -> Duration {
        self.measured + at.saturating_duration_since(self.measured_at)
    }

    fn shown_next(self, at: Instant) -> Reading {
        let database = self.database_time(at);
        let crept = self.shown + at.saturating_duration_since(self.shown_at) / 2;
        Reading { shown: if database > self.shown { database } else { crept }, shown_at: at, ..self }
    }
}

fn timestamp(since_1970: Duration) -> Timestamp {
    Timestamp::from_millis(i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_was_set_back_is_waited_for_at_half_speed() {
        let start = Instant::now();
        let seconds = Duration::from_secs;
        let mut reading = Reading {
            measured: seconds(1_000),
            measured_at: start,
            shown: Duration::ZERO,
            shown_at: start,
            next_measurement: start,
            is_skewed: false,
        };
        reading = reading.shown_next(start);
        assert_eq!(reading.shown, seconds(1_000));
        reading = reading.shown_next(start + seconds(10));
        assert_eq!(reading.shown, seconds(1_010));
        // A failover to a server whose clock is four seconds behind.
        (reading.measured, reading.measured_at) = (seconds(1_006), start + seconds(10));
        let mut last = reading.shown;
        for passed in 11..=18 {
            reading = reading.shown_next(start + seconds(passed));
            assert!(last < reading.shown, "it neither stands still nor goes back");
            last = reading.shown;
        }
        assert_eq!(reading.shown, seconds(1_014), "after eight seconds both agree again");
    }

    #[test]
    fn a_measurement_counts_from_the_middle_of_its_round_trip() {
        let clock = DatabaseClock::new(Arc::new(crate::SystemClock::default()));
        assert!(clock.is_due());
        assert!(!clock.is_due(), "one at a time");
        let asked_at = Instant::now().checked_sub(Duration::from_millis(200)).expect("the machine is up for longer");
        clock.measure(asked_at, 5_000_000_000);
        let shown = clock.now().as_millis();
        assert!((5_000_100..5_000_150).contains(&shown), "{shown}");
    }
}
