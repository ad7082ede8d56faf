//! Rows of this process that have a number and are not committed yet.
//!
//! Numbers are taken before a commit, so that a lower one may become visible after a higher one. A look at a lane says up to
//! which number it has seen everything; only our own commits are fed, so that only our own open ones have to be left out.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use posthaste_core::scheduler::Seq;

#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    /// The highest number that was ever given to us. The next one will be higher.
    highest: Seq,
    next_token: u64,
    /// For each open transaction, the last number that is certainly below all of its own.
    below: BTreeMap<u64, Seq>,
}

/// One transaction that makes deliveries, until what became of it is known.
#[derive(Debug)]
pub(super) struct Opened {
    in_flight: Arc<InFlight>,
    token: u64,
}

impl InFlight {
    /// To be called before numbers are asked for: they are ours from the moment that the server gives them out.
    pub(super) fn open(self: &Arc<InFlight>) -> Opened {
        let mut open = self.0.lock();
        let token = open.next_token;
        open.next_token += 1;
        let highest = open.highest;
        open.below.insert(token, highest);
        Opened { in_flight: Arc::clone(self), token }
    }

    /// Up to here everything of ours is committed or will never be. To be read before the look that it is said of.
    pub(super) fn all_done_up_to(&self) -> Seq {
        self.0.lock().below.values().copied().min().unwrap_or(Seq::MAX)
    }
}

impl Opened {
    /// What the server has given out.
    pub(super) fn got(&self, seqs: &[Seq]) {
        let (Some(lowest), Some(highest)) = (seqs.iter().min(), seqs.iter().max()) else { return };
        let mut open = self.in_flight.0.lock();
        open.highest = open.highest.max(*highest);
        // A second try of the same transaction has higher ones; the first were never used.
        open.below.insert(self.token, lowest.saturating_sub(1));
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.in_flight.0.lock().below.remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_above_an_open_number_counts_as_seen() {
        let in_flight = Arc::new(InFlight::default());
        assert_eq!(in_flight.all_done_up_to(), Seq::MAX);
        let first = in_flight.open();
        first.got(&[11, 10, 12]);
        assert_eq!(in_flight.all_done_up_to(), 9);
        // It has asked and not heard yet: its numbers are above all that were ever heard of.
        let second = in_flight.open();
        drop(first);
        assert_eq!(in_flight.all_done_up_to(), 12);
        second.got(&[15]);
        assert_eq!(in_flight.all_done_up_to(), 14);
        drop(second);
        assert_eq!(in_flight.all_done_up_to(), Seq::MAX);
    }
}
