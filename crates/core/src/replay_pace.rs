//! How many rows of a replay may be made now.
//!
//! A replay makes at most its rate, counted from when its owner first stepped it. What it could not make because its endpoints had too
//! much unfinished is made up for, up to one minute's worth; more than that is forgotten, so that a replay that was blocked for an hour
//! does not flood its endpoint afterwards. Over any interval of t minutes one owner makes at most rate × (t + 1) + 1 rows.

use std::time::Duration;

use crate::plant::{self, Plant};

/// Rows of a replay that are made in one transaction.
pub const STEP_ROWS_MAX: usize = 100;

/// The pace of one replay at one owner. Times are the owner's uptime.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplayPace {
    since: Duration,
    made: u64,
}

impl ReplayPace {
    pub fn starting_at(uptime: Duration) -> ReplayPace {
        ReplayPace { since: uptime, made: 0 }
    }

    /// How many rows the next step may make.
    pub fn rows_due(&mut self, uptime: Duration, rate_per_minute: u32) -> usize {
        if plant::is(Plant::ReplayIgnoresRate) {
            return STEP_ROWS_MAX;
        }
        let rate = u64::from(rate_per_minute);
        let passed_ms = u64::try_from(uptime.saturating_sub(self.since).as_millis()).unwrap_or(u64::MAX);
        let by_now = rate.saturating_mul(passed_ms) / 60_000 + 1;
        let due = by_now.saturating_sub(self.made);
        if due > rate {
            *self = ReplayPace::starting_at(uptime);
            return 1;
        }
        usize::try_from(due).map_or(STEP_ROWS_MAX, |due| due.min(STEP_ROWS_MAX))
    }

    pub fn made(&mut self, rows: u64) {
        self.made += rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps once a second from one second to another, with everything made that is due, and returns how many.
    fn made(pace: &mut ReplayPace, seconds: std::ops::Range<u64>, rate_per_minute: u32) -> usize {
        seconds
            .map(|second| {
                let rows = pace.rows_due(Duration::from_secs(second), rate_per_minute);
                pace.made(rows as u64);
                rows
            })
            .sum()
    }

    #[test]
    fn a_replay_makes_its_rate_and_one_at_once() {
        let mut pace = ReplayPace::starting_at(Duration::ZERO);
        assert_eq!(made(&mut pace, 0..1, 60), 1);
        assert_eq!(made(&mut pace, 1..61, 60), 60);
        let mut fast = ReplayPace::starting_at(Duration::ZERO);
        assert_eq!(made(&mut fast, 0..1, 600_000), 1);
        assert_eq!(made(&mut fast, 1..2, 600_000), STEP_ROWS_MAX, "as many as one step makes");
    }

    #[test]
    fn what_was_missed_in_the_last_minute_is_made_up_for_and_what_was_missed_before_is_not() {
        let mut pace = ReplayPace::starting_at(Duration::ZERO);
        assert_eq!(pace.rows_due(Duration::from_secs(50), 60), 51);
        assert_eq!(pace.rows_due(Duration::from_hours(1), 60), 1, "it starts over");
        pace.made(1);
        assert_eq!(pace.rows_due(Duration::from_hours(1) + Duration::from_secs(10), 60), 10);
    }
}
