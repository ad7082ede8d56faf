//! From which row on a sweep has to look, so that together the sweeps see every row that other processes commit.
//!
//! A row's number is taken before it is committed, so a lower number may appear after a higher one. Each sweep therefore
//! starts at the highest row of [`COMMITTED_AFTER`] ago: what has a lower number is committed by now, or never will be.

use std::collections::VecDeque;
use std::time::Duration;

use posthaste_core::scheduler::Seq;

/// Where others may write too, their commits are looked for so often.
pub const SWEPT_EVERY: Duration = Duration::from_secs(2);
/// A row's number is taken before it is committed: so long after it was taken it is there, or never will be.
pub const COMMITTED_AFTER: Duration = Duration::from_secs(15);
/// How many rows may have been under way when the first look was taken.
const FIRST_LOOK_BACK_ROWS: Seq = 100_000;

/// Knows how far earlier sweeps of this process have looked. Times are its uptime.
#[derive(Debug, Default)]
pub struct Sweeper {
    /// The highest row of each sweep that is not old enough yet.
    highest_at: VecDeque<(Duration, Seq)>,
    after: Option<Seq>,
}

impl Sweeper {
    /// The next sweep looks at every row after this one. The first one looks at none: what is there already is found
    /// by whoever takes a partition.
    pub fn start_after(&self) -> Seq {
        self.after.unwrap_or(Seq::MAX >> 1)
    }

    /// A sweep that began then has seen every row that was visible, up to this one.
    pub fn swept(&mut self, began: Duration, highest: Seq) {
        self.highest_at.push_back((began, highest));
        while self.highest_at.front().is_some_and(|(at, _)| *at + COMMITTED_AFTER <= began) {
            self.after = self.highest_at.pop_front().map(|(_, highest)| highest);
        }
        // In the first seconds nothing is that old: everything since the first look is looked at.
        self.after = self.after.or(self.highest_at.front().map(|(_, highest)| highest.saturating_sub(FIRST_LOOK_BACK_ROWS)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_committed_fifteen_seconds_after_it_was_numbered_is_seen() {
        let mut sweeper = Sweeper::default();
        let seconds = Duration::from_secs;
        sweeper.swept(seconds(0), 200_000);
        assert_eq!(sweeper.start_after(), 100_000, "rows under way at the first look may have lower numbers");
        for at in (2..15).step_by(2) {
            sweeper.swept(seconds(at), 200_000 + at);
        }
        assert_eq!(sweeper.start_after(), 100_000);
        sweeper.swept(seconds(16), 300_000);
        assert_eq!(sweeper.start_after(), 200_000, "the highest of sixteen seconds ago");
        sweeper.swept(seconds(60), 400_000);
        assert_eq!(sweeper.start_after(), 300_000, "after a store that was away, too");
    }
}
