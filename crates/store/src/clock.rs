//! The one `now()`: the wall clock, never backwards within a process, and never standing still.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use posthaste_core::time::Timestamp;

/// Follows the wall clock. When that is set back, it goes on at half speed until the wall has caught up: what is due
/// still comes due, and no time is seen twice.
#[derive(Debug)]
pub(crate) struct Clock(Mutex<Reading>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    /// Since 1970, to the microsecond so that halves add up.
    time: Duration,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock(Mutex::new(Reading { at: Instant::now(), time: since_1970() }))
    }

    pub(crate) fn now(&self) -> Timestamp {
        let mut last = self.0.lock().expect("nothing panics while holding it");
        *last = last.followed_by(Instant::now(), since_1970());
        timestamp(last.time)
    }

    /// What the wall shows, jumps and all: what a receiver compares a signature with.
    pub(crate) fn wall() -> Timestamp {
        timestamp(since_1970())
    }
}

impl Reading {
    fn followed_by(self, at: Instant, wall: Duration) -> Reading {
        let crept = self.time + at.saturating_duration_since(self.at) / 2;
        Reading { at, time: if wall > self.time { wall } else { crept } }
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn timestamp(since_1970: Duration) -> Timestamp {
    Timestamp::from_millis(i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_goes_on_slowly_until_the_wall_has_caught_up() {
        let start = Instant::now();
        let hours = |hours: u64| Duration::from_hours(hours);
        let mut reading = Reading { at: start, time: hours(100) };
        // Set forward by two hours, and back again a moment later.
        reading = reading.followed_by(start, hours(102));
        assert_eq!(reading.time, hours(102));
        let mut last = reading.time;
        for passed in 1..=10 {
            reading = reading.followed_by(start + hours(passed), hours(100 + passed));
            assert!(last < reading.time, "it neither stands still nor goes back");
            last = reading.time;
        }
        assert_eq!(reading.time, hours(110), "after four hours both agree again");
    }
}
