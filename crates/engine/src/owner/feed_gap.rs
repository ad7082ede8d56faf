//! Finds deliveries that the in-process feed dropped.
//!
//! The feed from commits to the owner is bounded; under load it drops rows. This tracks the highest sequence number below which
//! every committed row is known, and asks for one scan at a time from there after an overflow.

use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::Seq;

#[derive(Clone, Default, Debug)]
pub(super) struct FeedGap {
    /// Every row up to here is known to the owner, or was found when its partition was claimed. `None` before the first claim.
    complete_through: Option<Seq>,
    /// The highest row received from the feed.
    received_through: Seq,
    /// The feed overflowed since the last scan started.
    has_overflowed: bool,
    is_scanning: bool,
}

impl FeedGap {
    /// Partitions were claimed when this was the last row. Rows up to it are found by looking for endpoints with work.
    pub(super) fn claimed(&mut self, last_row: Seq) {
        // Of a later claim, too, but then rows of what was owned before may be missing.
        self.complete_through.get_or_insert(last_row);
    }

    pub(super) fn received(&mut self, row: Seq) {
        self.received_through = self.received_through.max(row);
    }

    /// The feed dropped rows, all of them before what is received from now on.
    pub(super) fn overflowed(&mut self) {
        self.has_overflowed = true;
    }

    /// The scan has ended; it has seen every row up to this one.
    pub(super) fn scanned(&mut self, through: Seq) {
        self.is_scanning = false;
        self.complete_through = self.complete_through.max(Some(through));
    }

    /// Call after each batch from the feed. Answers where to start a scan, at most one at a time.
    pub(super) fn next_scan(&mut self) -> Option<Seq> {
        if self.is_scanning {
            return None;
        }
        // Before the first claim nothing is owned that could be missed.
        let complete_through = self.complete_through.as_mut()?;
        if !self.has_overflowed {
            *complete_through = (*complete_through).max(self.received_through);
            return None;
        }
        // A row that is dropped from here on may be missed by this scan.
        self.has_overflowed = false;
        self.is_scanning = true;
        let is_late = plant::is(Plant::GapScanStartsLate);
        Some(if is_late { self.received_through.max(*complete_through) } else { *complete_through })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(through: Seq) -> FeedGap {
        let mut gap = FeedGap::default();
        gap.claimed(0);
        gap.received(through);
        assert_eq!(gap.next_scan(), None, "nothing is missing");
        gap
    }

    #[test]
    fn an_overflow_scans_from_the_last_complete_row() {
        let mut gap = received(10);
        gap.overflowed();
        gap.received(30);
        assert_eq!(gap.next_scan(), Some(10), "30 was received, and says nothing about those before it");
    }

    #[test]
    fn the_first_scan_starts_at_the_row_that_was_last_when_partitions_were_claimed() {
        let mut gap = FeedGap::default();
        gap.overflowed();
        assert_eq!(gap.next_scan(), None, "nothing is owned yet");
        gap.claimed(5_000_000);
        assert_eq!(gap.next_scan(), Some(5_000_000), "and not at the beginning of the table");
    }

    #[test]
    fn one_scan_runs_at_a_time_and_the_next_starts_where_it_ended() {
        let mut gap = received(10);
        gap.overflowed();
        assert_eq!(gap.next_scan(), Some(10));
        gap.overflowed();
        assert_eq!(gap.next_scan(), None, "one runs, and may have been too early for this");
        gap.scanned(50);
        assert_eq!(gap.next_scan(), Some(50), "the feed overflowed while it ran");
        gap.scanned(60);
        assert_eq!(gap.next_scan(), None, "nothing is missing any more");
        assert_eq!(gap.complete_through, Some(60));
    }

    #[test]
    fn a_later_claim_does_not_hide_what_is_missing() {
        let mut gap = received(10);
        gap.overflowed();
        gap.claimed(100);
        assert_eq!(gap.next_scan(), Some(10));
    }
}
