//! Whether the wall clock can be believed.
//!
//! A wall clock can be set to any time by mistake. If it jumps ahead by more than everything is kept, one reading would expire every
//! waiting delivery and delete all history. So each reading is compared with a clock that cannot be set, counts suspension and
//! starts anew with each boot (`CLOCK_BOOTTIME` on Linux): the difference between both, the offset, changes only when the wall clock is set.
//!
//! - An offset up to [`JUMP_MIN`] above the trusted one is believed at once, and so is one that is lower: a clock that was set back
//!   destroys nothing.
//! - A larger one makes the clock suspect. Until it is confirmed, time goes on from where it was.
//! - It is confirmed when the kernel has reported it as not synchronised and then as synchronised, when it was consistent for
//!   [`CONSISTENT_FOR`], or when an operator accepts it. What the kernel said before the jump says nothing about it.
//! - An offset that is believed becomes the trusted one after it was consistent for as long, or is confirmed, so that steps do not
//!   add up and a later jump is measured from what is true then.

use std::time::Duration;

use crate::plant::{self, Plant};
use crate::time::Timestamp;

/// Summer time that was set by hand, and what time servers correct, is not more than this.
pub const JUMP_MIN: Duration = Duration::from_hours(1);
/// A clock that is set by mistake is usually set right within this time.
pub const CONSISTENT_FOR: Duration = Duration::from_hours(1);
/// Offsets that are this close are the same: both clocks are read one after the other.
const SAME_WITHIN_MS: i64 = 60_000;

/// What both clocks and the kernel say at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    pub wall: Timestamp,
    /// Since the machine was started, suspension included.
    pub boottime: Duration,
    /// `None` where it is not known.
    pub is_synchronised: Option<bool>,
}

impl Reading {
    fn offset_ms(&self) -> i64 {
        self.wall.as_millis().saturating_sub(millis(self.boottime))
    }
}

/// Why a clock is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspicion {
    /// By the time that is believed.
    pub since: Timestamp,
    pub jumped_by: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClockGuard {
    trusted_offset_ms: i64,
    /// An offset that differs from the trusted one, while it is watched.
    watched: Option<Watched>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Watched {
    offset_ms: i64,
    since: Duration,
    was_unsynchronised: bool,
    suspicion: Option<Suspicion>,
}

impl ClockGuard {
    /// The first reading of a process is believed: a gap since the last stop is not a jump.
    pub fn new(first: &Reading) -> ClockGuard {
        ClockGuard::trusting(first.offset_ms())
    }

    /// A clock that was suspect when an earlier process ended is compared with what was trusted then.
    pub fn trusting(offset_ms: i64) -> ClockGuard {
        ClockGuard { trusted_offset_ms: offset_ms, watched: None }
    }

    /// What is trusted now, to be given to [`ClockGuard::trusting`].
    pub fn trusted_offset_ms(&self) -> i64 {
        self.trusted_offset_ms
    }

    pub fn suspicion(&self) -> Option<Suspicion> {
        self.watched.as_ref()?.suspicion
    }

    /// The clock is right, says an operator.
    pub fn accept(&mut self) {
        if let Some(watched) = self.watched.take() {
            self.trusted_offset_ms = watched.offset_ms;
        }
    }

    /// The time that can be believed.
    pub fn read(&mut self, reading: &Reading) -> Timestamp {
        let offset_ms = reading.offset_ms();
        if is_same(offset_ms, self.trusted_offset_ms) {
            self.watched = None;
            return reading.wall;
        }
        if self.watched.as_ref().is_none_or(|watched| !is_same(offset_ms, watched.offset_ms)) {
            let jumped_by_ms = offset_ms.saturating_sub(self.trusted_offset_ms);
            let suspicion = (jumped_by_ms > millis(JUMP_MIN)).then(|| Suspicion {
                since: self.trusted_time(reading),
                jumped_by: Duration::from_millis(jumped_by_ms.unsigned_abs()),
            });
            self.watched = Some(Watched { offset_ms, since: reading.boottime, was_unsynchronised: false, suspicion });
        }
        let watched = self.watched.as_mut().expect("set just now, or before");
        watched.was_unsynchronised |= reading.is_synchronised == Some(false);
        let is_synchronised_since = watched.was_unsynchronised && reading.is_synchronised == Some(true);
        if is_synchronised_since || reading.boottime.saturating_sub(watched.since) >= CONSISTENT_FOR {
            self.accept();
            return reading.wall;
        }
        if self.suspicion().is_some() && !plant::is(Plant::ClockJumpIsBelieved) { self.trusted_time(reading) } else { reading.wall }
    }

    fn trusted_time(&self, reading: &Reading) -> Timestamp {
        Timestamp::from_millis(self.trusted_offset_ms.saturating_add(millis(reading.boottime)))
    }
}

fn is_same(one_ms: i64, other_ms: i64) -> bool {
    one_ms.abs_diff(other_ms) <= SAME_WITHIN_MS.unsigned_abs()
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_800_000_000_000;

    /// A machine that was started some time ago, and whose wall clock can be set.
    struct Machine {
        guard: ClockGuard,
        minutes: u64,
        set_by_minutes: i64,
        is_synchronised: Option<bool>,
    }

    impl Machine {
        fn new(is_synchronised: Option<bool>) -> Machine {
            let first = Reading { wall: Timestamp::from_millis(START), boottime: Duration::from_mins(50), is_synchronised };
            Machine { guard: ClockGuard::new(&first), minutes: 0, set_by_minutes: 0, is_synchronised }
        }

        /// After these minutes: how far the time that is believed is from what it would be if nobody had set the clock.
        fn after(&mut self, minutes: u64) -> i64 {
            self.minutes += minutes;
            let passed = i64::try_from(self.minutes).unwrap();
            let wall = Timestamp::from_millis(START + (passed + self.set_by_minutes) * 60_000);
            let boottime = Duration::from_mins(50 + self.minutes);
            let believed = self.guard.read(&Reading { wall, boottime, is_synchronised: self.is_synchronised });
            (believed.as_millis() - START) / 60_000 - passed
        }

        fn is_suspect(&self) -> bool {
            self.guard.suspicion().is_some()
        }
    }

    const DAY: i64 = 24 * 60;

    #[test]
    fn i35_a_jump_of_more_than_an_hour_is_not_believed_until_it_was_consistent_for_an_hour() {
        let mut machine = Machine::new(None);
        assert_eq!(machine.after(5), 0);
        machine.set_by_minutes = 400 * DAY;
        assert_eq!(machine.after(1), 0);
        let suspicion = machine.guard.suspicion().expect("it is suspect");
        assert_eq!(suspicion.jumped_by, Duration::from_hours(400 * 24));
        assert_eq!(suspicion.since, Timestamp::from_millis(START + 6 * 60_000));
        assert_eq!(machine.after(59), 0, "time goes on from where it was");
        assert_eq!(machine.after(1), 400 * DAY);
        assert!(!machine.is_suspect());
    }

    #[test]
    fn a_clock_that_is_set_right_again_is_believed_at_once_and_an_hour_counts_from_the_last_jump() {
        let mut machine = Machine::new(None);
        machine.set_by_minutes = 400 * DAY;
        assert_eq!(machine.after(30), 0);
        machine.set_by_minutes = 0;
        assert_eq!(machine.after(1), 0);
        assert!(!machine.is_suspect());
        machine.set_by_minutes = 400 * DAY;
        machine.after(1);
        machine.set_by_minutes = 500 * DAY;
        assert_eq!(machine.after(59), 0);
        assert_eq!(machine.after(59), 0, "another jump, another hour");
        assert_eq!(machine.after(1), 500 * DAY);
    }

    #[test]
    fn what_the_kernel_said_before_a_jump_confirms_nothing_and_what_it_says_after_it_does() {
        let mut machine = Machine::new(Some(true));
        machine.set_by_minutes = 3 * 60;
        assert_eq!(machine.after(1), 0, "it still says so");
        machine.is_synchronised = Some(false);
        assert_eq!(machine.after(1), 0);
        assert!(machine.is_suspect());
        machine.is_synchronised = Some(true);
        assert_eq!(machine.after(1), 3 * 60);
        assert!(!machine.is_suspect());
    }

    #[test]
    fn an_operator_can_accept_it() {
        let mut machine = Machine::new(None);
        machine.guard.accept();
        machine.set_by_minutes = 2 * DAY;
        assert_eq!(machine.after(1), 0);
        machine.guard.accept();
        assert_eq!(machine.after(1), 2 * DAY);
    }

    #[test]
    fn small_steps_and_steps_back_are_believed_at_once_and_do_not_add_up_unnoticed() {
        let mut machine = Machine::new(None);
        machine.set_by_minutes = 45;
        assert_eq!(machine.after(1), 45);
        machine.set_by_minutes = 90;
        assert_eq!(machine.after(1), 0, "ninety minutes within a few");
        machine.set_by_minutes = 45;
        assert_eq!(machine.after(1), 45);
        assert_eq!(machine.after(60), 45);
        machine.set_by_minutes = 90;
        assert_eq!(machine.after(1), 90, "forty-five minutes after an hour of consistency");
        machine.set_by_minutes = -DAY;
        assert_eq!(machine.after(1), -DAY);
        machine.set_by_minutes = 90;
        assert_eq!(machine.after(1), 90, "and right again");
        machine.set_by_minutes = -DAY;
        assert_eq!((machine.after(1), machine.after(60)), (-DAY, -DAY));
        machine.set_by_minutes = 0;
        assert_eq!(machine.after(1), -DAY, "a day ahead of what is trusted by now");
    }

    #[test]
    fn a_restart_in_the_meantime_does_not_make_it_true_and_a_gap_before_the_start_is_no_jump() {
        let mut machine = Machine::new(None);
        machine.set_by_minutes = 400 * DAY;
        machine.after(1);
        machine.guard = ClockGuard::trusting(machine.guard.trusted_offset_ms());
        assert_eq!(machine.after(1), 0);
        assert!(machine.is_suspect());
        let late = Reading {
            wall: Timestamp::from_millis(START + 400 * DAY * 60_000),
            boottime: Duration::from_secs(9),
            is_synchronised: None,
        };
        assert_eq!(ClockGuard::new(&late).read(&late), late.wall);
    }
}
