//! Decides what cleanup may delete, and how much of the database's time it may take.
//!
//! Retention never deletes what is unfinished (I8). The further cleanup is behind, the larger its share.

use std::time::Duration;

use crate::plant::{self, Plant};
use crate::time::Timestamp;

/// The share of the database's time that cleanup takes while it keeps up.
const SHARE_MIN: f64 = 0.02;
/// The share that cleanup takes at most. Publishing and delivering have the rest.
const SHARE_MAX: f64 = 0.5;
/// Up to here cleanup keeps up: rows go a little late whatever happens.
const KEEPS_UP: Duration = Duration::from_mins(1);
/// From here on cleanup takes its largest share.
const FAR_BEHIND: Duration = Duration::from_mins(15);
/// The longest pause between two steps while there is more to delete.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A step that holds the only writer is meant to take this long. The limit is 5 ms; what exceeds the aim is one slow row.
pub const STEP_AIM: Duration = Duration::from_millis(3);
/// Rows in a step, so that even a slow disk lets cleanup go on.
const STEP_ROWS_MIN: usize = 16;

/// What cleanup looks at again waits at most this long, so that a changed retention takes effect within a day.
const LOOK_AGAIN_MAX: Duration = Duration::from_hours(24);
/// What should have ended by now, and is not ended yet, is looked at again this soon.
const LOOK_AGAIN_OVERDUE: Duration = Duration::from_mins(10);

/// The status of a delivery, as far as retention depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetentionStatus {
    Waiting {
        due: Timestamp,
    },
    Dead {
        at: Timestamp,
    },
    /// Delivered or cancelled.
    Ended {
        at: Timestamp,
    },
}

/// How long the rows of a tenant are kept after they have ended. All zero for what a deleted tenant has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keeping {
    pub retention: Duration,
    /// Dead letters are kept for this long, if that is longer than the retention.
    pub dead_letters: Duration,
}

impl Keeping {
    /// For what belongs to a deleted tenant: it goes as soon as it has ended.
    pub const NOTHING: Keeping = Keeping { retention: Duration::ZERO, dead_letters: Duration::ZERO };
}

/// What cleanup does with a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetentionDecision {
    Delete,
    /// It stays for now. `is_overdue`: it has waited longer than the retention after it was due, so that its owner has to end it.
    Keep {
        look_again: Timestamp,
        is_overdue: bool,
    },
}

/// Decides what happens to a delivery of an event that is older than the retention.
pub fn fate(standing: RetentionStatus, keeping: Keeping, now: Timestamp) -> RetentionDecision {
    let latest = now + LOOK_AGAIN_MAX;
    let until = |at: Timestamp, kept: Duration| {
        if at + kept <= now {
            RetentionDecision::Delete
        } else {
            RetentionDecision::Keep { look_again: latest.min(at + kept), is_overdue: false }
        }
    };
    match standing {
        RetentionStatus::Ended { at } => until(at, keeping.retention),
        RetentionStatus::Dead { at } => until(at, keeping.retention.max(keeping.dead_letters)),
        RetentionStatus::Waiting { due } if due + keeping.retention <= now && plant::is(Plant::RetentionDeletesWaiting) => {
            RetentionDecision::Delete
        }
        RetentionStatus::Waiting { due } if due + keeping.retention <= now => {
            RetentionDecision::Keep { look_again: now + LOOK_AGAIN_OVERDUE, is_overdue: true }
        }
        RetentionStatus::Waiting { due } => {
            RetentionDecision::Keep { look_again: latest.min(due + keeping.retention), is_overdue: false }
        }
    }
}

/// The share of the database's time that cleanup may take, by the age of the oldest row that should be gone.
pub fn share(behind: Duration) -> f64 {
    let over = behind.saturating_sub(KEEPS_UP).as_secs_f64() / FAR_BEHIND.saturating_sub(KEEPS_UP).as_secs_f64();
    SHARE_MIN + (SHARE_MAX - SHARE_MIN) * over.min(1.0)
}

/// How long to leave the database alone after a step that took `took`.
pub fn pause_after(took: Duration, behind: Duration) -> Duration {
    let share = share(behind);
    took.mul_f64((1.0 - share) / share).min(PAUSE_MAX)
}

/// How many rows the next step may read, by what the last one took.
pub fn next_step_rows(rows: usize, took: Duration, rows_max: usize) -> usize {
    let next = if took > STEP_AIM {
        // In proportion, and at most halved: one slow row says little about the rest.
        let scaled = rows as u128 * STEP_AIM.as_micros() / took.as_micros().max(1);
        usize::try_from(scaled).unwrap_or(rows).max(rows / 2)
    } else if took < STEP_AIM / 2 {
        rows + rows / 4 + 1
    } else {
        rows
    };
    next.clamp(STEP_ROWS_MIN.min(rows_max), rows_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn days_ago(days: u32) -> Timestamp {
        now() - DAY * days
    }

    fn now() -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000)
    }

    #[test]
    fn i8_only_what_has_ended_and_is_older_than_retention_is_deleted() {
        let week = Keeping { retention: DAY * 7, dead_letters: DAY * 30 };
        let keep = |look_again| RetentionDecision::Keep { look_again, is_overdue: false };
        for (standing, keeping, expected) in [
            (RetentionStatus::Ended { at: days_ago(7) }, week, RetentionDecision::Delete),
            (RetentionStatus::Ended { at: days_ago(6) + DAY / 2 }, week, keep(now() + DAY)),
            (RetentionStatus::Ended { at: days_ago(7) + DAY / 4 }, week, keep(now() + DAY / 4)),
            (RetentionStatus::Dead { at: days_ago(29) }, week, keep(now() + DAY)),
            (RetentionStatus::Dead { at: days_ago(30) }, week, RetentionDecision::Delete),
            (RetentionStatus::Dead { at: days_ago(31) }, Keeping { retention: DAY * 90, ..week }, keep(now() + DAY)),
            (RetentionStatus::Waiting { due: days_ago(0) + DAY * 3 }, week, keep(now() + DAY)),
            (RetentionStatus::Waiting { due: days_ago(6) }, week, keep(now() + DAY)),
            (
                RetentionStatus::Waiting { due: days_ago(7) },
                week,
                RetentionDecision::Keep { look_again: now() + LOOK_AGAIN_OVERDUE, is_overdue: true },
            ),
            (RetentionStatus::Dead { at: now() }, Keeping::NOTHING, RetentionDecision::Delete),
            (RetentionStatus::Ended { at: now() }, Keeping::NOTHING, RetentionDecision::Delete),
            (
                RetentionStatus::Waiting { due: now() },
                Keeping::NOTHING,
                RetentionDecision::Keep { look_again: now() + LOOK_AGAIN_OVERDUE, is_overdue: true },
            ),
        ] {
            assert_eq!(fate(standing, keeping, now()), expected, "{standing:?} {keeping:?}");
        }
    }

    #[test]
    fn the_share_rises_from_a_fiftieth_to_a_half_as_cleanup_falls_behind() {
        let percent = |behind: Duration| (share(behind) * 100.0).round();
        for (behind, expected) in [
            (Duration::ZERO, 2.0),
            (Duration::from_mins(1), 2.0),
            (Duration::from_mins(8), 26.0),
            (Duration::from_mins(15), 50.0),
            (DAY * 300, 50.0),
        ] {
            assert!((percent(behind) - expected).abs() < 0.5, "{behind:?}: {}", percent(behind));
        }
    }

    #[test]
    fn the_pause_leaves_the_rest_of_the_time_to_others() {
        let ms = Duration::from_millis;
        assert_eq!(pause_after(ms(3), DAY), ms(3));
        assert_eq!(pause_after(ms(3), Duration::ZERO), ms(147));
        assert_eq!(pause_after(Duration::from_secs(9), Duration::ZERO), PAUSE_MAX);
        assert_eq!(pause_after(Duration::ZERO, DAY), Duration::ZERO);
    }

    #[test]
    fn steps_become_smaller_when_they_take_long_and_larger_when_they_do_not() {
        let ms = Duration::from_millis;
        assert_eq!(next_step_rows(400, ms(4), 1000), 300);
        assert_eq!(next_step_rows(400, ms(60), 1000), 200);
        assert_eq!(next_step_rows(20, ms(60), 1000), STEP_ROWS_MIN);
        assert_eq!(next_step_rows(400, ms(1), 1000), 501);
        assert_eq!(next_step_rows(990, ms(1), 1000), 1000);
        assert_eq!(next_step_rows(400, ms(2), 1000), 400);
        assert_eq!(next_step_rows(2, ms(1), 2), 2);
    }
}
