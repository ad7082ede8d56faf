//! What was tried at an endpoint lately: a short memory for sudden changes. The store counts everything that is recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_core::delivery::{Outcome, Silence};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::Tally;

const MINUTE_MILLIS: i64 = 60_000;
/// How far back a sudden run of timeouts is looked for.
const RECENT_MINUTES: i64 = 10;

pub(crate) fn is_timeout(outcome: &Outcome) -> bool {
    *outcome == Outcome::Silent(Silence::Timeout)
}

fn start_of_minute(at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millis() - at.as_millis().rem_euclid(MINUTE_MILLIS))
}

/// The last ten minutes of one endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecentAttempts(BTreeMap<Timestamp, Tally>);

impl RecentAttempts {
    pub(crate) fn add(&mut self, now: Timestamp, timed_out: bool) {
        let oldest = Timestamp::from_millis(start_of_minute(now).as_millis() - RECENT_MINUTES * MINUTE_MILLIS);
        while self.0.first_key_value().is_some_and(|(minute, _)| *minute < oldest) {
            self.0.pop_first();
        }
        let minute = self.0.entry(start_of_minute(now)).or_default();
        minute.attempts += 1;
        minute.timeouts += u64::from(timed_out);
    }

    pub(crate) fn tally(&self) -> Tally {
        self.0.values().fold(Tally::default(), |sum, minute| Tally {
            attempts: sum.attempts + minute.attempts,
            timeouts: sum.timeouts + minute.timeouts,
        })
    }
}

/// How long after a computation that a spike has led to the next one may, if the spike goes on.
pub(crate) const BETWEEN_SPIKES: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_ten_minutes_count_for_a_spike() {
        let mut recent = RecentAttempts::default();
        (0..30).for_each(|n| recent.add(Timestamp::from_millis(n * 1000), true));
        assert!(recent.tally().is_spike(true));
        assert_eq!(recent.tally(), Tally { attempts: 30, timeouts: 30 });
        recent.add(Timestamp::from_millis(12 * MINUTE_MILLIS), false);
        assert_eq!(recent.tally(), Tally { attempts: 1, timeouts: 0 });
    }
}
