//! When the turn of a delivery will come, by its place among what waits for the same tokens.
//!
//! Holds compose: tokens gather while nothing may be sent, and no further than the bucket holds; from then on they come at their
//! pace; quiet hours interrupt that, and afterwards it goes on.

use crate::bucket::{Bucket, RateLimit};
use crate::quiet_hours::{Phase, QuietHours};
use crate::time::Timestamp;

/// Quiet times that are looked ahead over. What lies behind more of them is too far away to be told.
const QUIET_TIMES_MAX: usize = 100;

/// Tokens that a delivery waits for, and its place among those that do: the next token is for the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue {
    pub limit: RateLimit,
    pub bucket: Bucket,
    pub place: u64,
}

/// `from` is when nothing else holds it any more, `schedule` what may hold it again. `None` if it is too far away to be told.
pub fn estimate(from: Timestamp, mut queues: Vec<Queue>, schedule: Option<&QuietHours>) -> Option<Timestamp> {
    let mut now = from;
    for _ in 0..QUIET_TIMES_MAX {
        let quiet_from = match schedule.map_or(Phase::Open { until: None }, |schedule| schedule.at(now)) {
            Phase::Quiet { until } => {
                now = until;
                continue;
            }
            Phase::Open { until } => until,
        };
        let turn = queues.iter().map(|queue| queue.bucket.ready_at(now, queue.limit, queue.place)).max().unwrap_or(now);
        let Some(quiet_from) = quiet_from.filter(|quiet_from| *quiet_from <= turn) else { return Some(turn) };
        for queue in &mut queues {
            *queue = queue.after(now, quiet_from);
        }
        now = quiet_from;
    }
    None
}

impl Queue {
    /// What is left of it at `until`, if all who could go since `now` have gone.
    fn after(self, now: Timestamp, until: Timestamp) -> Queue {
        let goes_before = |place: u64| self.bucket.ready_at(now, self.limit, place) < until;
        let (mut gone, mut left) = (0, self.place);
        while gone + 1 < left {
            let middle = gone + (left - gone) / 2;
            if goes_before(middle) {
                gone = middle;
            } else {
                left = middle;
            }
        }
        Queue { bucket: self.bucket.spent(now, self.limit, gone), place: self.place - gone, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TypePatterns;
    use crate::quiet_hours::{Days, TimeOfDay, Window};

    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn queue(max_per_minute: u32, burst_capacity: u32, place: u64) -> Queue {
        Queue { limit: RateLimit::new(max_per_minute, burst_capacity).unwrap(), bucket: Bucket::full(), place }
    }

    /// Every day from one hour to another, in UTC.
    fn quiet(start: &str, end: &str) -> QuietHours {
        let window = Window { start: TimeOfDay::parse(start).unwrap(), end: TimeOfDay::parse(end).unwrap(), days: Days::ALL };
        QuietHours::new("UTC", vec![window], vec![], TypePatterns::default(), TypePatterns::default()).unwrap()
    }

    #[test]
    fn ten_thousand_held_overnight_end_97_and_a_half_minutes_after_the_opening() {
        let schedule = quiet("00:00", "06:00");
        let last = |queue| estimate(at(HOUR), vec![queue], Some(&schedule));
        assert_eq!(last(queue(100, 250, 10_000)), Some(at(6 * HOUR + 97 * MINUTE + MINUTE / 2)));
        assert_eq!(last(queue(100, 250, 250)), Some(at(6 * HOUR)), "a burst gathers while it is quiet, and no more");
        let empty = Bucket::empty(at(HOUR), RateLimit::new(1, 1000).unwrap());
        let slow = Queue { bucket: empty, ..queue(1, 1000, 301) };
        assert_eq!(last(slow), Some(at(6 * HOUR + MINUTE)), "of which five hours have brought three hundred");
    }

    #[test]
    fn what_does_not_fit_into_a_day_goes_on_after_the_next_night() {
        let schedule = quiet("22:00", "06:00");
        // Sixty an hour from six to ten in the evening: 960, and one that had gathered.
        let turn = |place| estimate(at(0), vec![queue(1, 1, place)], Some(&schedule));
        assert_eq!(turn(1), Some(at(6 * HOUR)));
        assert_eq!(turn(960), Some(at(6 * HOUR + 959 * MINUTE)));
        assert_eq!(turn(961), Some(at(30 * HOUR)));
        assert_eq!(turn(962), Some(at(30 * HOUR + MINUTE)));
        assert_eq!(turn(u64::from(u32::MAX)), None, "years from now");
    }

    #[test]
    fn the_slower_of_two_queues_decides_and_without_any_its_turn_comes_at_once() {
        assert_eq!(estimate(at(5), vec![], None), Some(at(5)));
        assert_eq!(estimate(at(0), vec![queue(60, 1, 10), queue(60, 1, 20)], None), Some(at(19_000)));
    }
}
