//! When lanes and tenants that wait want to be looked at again: at most one entry for each.
//!
//! Whoever waits keeps the time of its entry, so that a later wish replaces the earlier one instead of being added to it.
//! A lane that is held for a night and hears of ten thousand commits has one entry, as it had before.

use std::collections::BTreeSet;

use crate::plant::{self, Plant};
use crate::time::Timestamp;

/// What is woken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Sleeper {
    Lane(usize),
    Tenant(usize),
    /// A lane that leaves alone what its owner before still has in flight.
    Elsewhere(usize),
}

#[derive(Clone, Default, Debug)]
pub(super) struct WakeUps(BTreeSet<(Timestamp, Sleeper)>);

impl WakeUps {
    /// Sets, moves or removes the entry of a sleeper. `entry` is the time that it has now, and is kept by the sleeper.
    pub(super) fn set(&mut self, sleeper: Sleeper, entry: &mut Option<Timestamp>, at: Option<Timestamp>) {
        if *entry == at {
            return;
        }
        if let Some(before) = entry.filter(|_| !plant::is(Plant::WakeUpsPileUp)) {
            self.0.remove(&(before, sleeper));
        }
        if let Some(at) = at {
            self.0.insert((at, sleeper));
        }
        *entry = at;
    }

    pub(super) fn first_at(&self) -> Option<Timestamp> {
        self.0.first().map(|(at, _)| *at)
    }

    /// The next one whose time has come. Its entry is gone.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<Sleeper> {
        let (at, _) = self.0.first()?;
        if *at > now {
            return None;
        }
        self.0.pop_first().map(|(_, sleeper)| sleeper)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_sleeper_has_one_entry_however_often_it_is_set() {
        let (mut wake_ups, mut entry) = (WakeUps::default(), None);
        for millis in [500, 400, 900, 100, 300] {
            wake_ups.set(Sleeper::Lane(1), &mut entry, Some(at(millis)));
            assert_eq!((wake_ups.len(), wake_ups.first_at()), (1, Some(at(millis))));
        }
        wake_ups.set(Sleeper::Lane(1), &mut entry, None);
        assert_eq!((wake_ups.len(), wake_ups.first_at()), (0, None));
    }

    #[test]
    fn the_earliest_is_woken_first_and_not_before_its_time() {
        let mut wake_ups = WakeUps::default();
        wake_ups.set(Sleeper::Lane(1), &mut None, Some(at(20)));
        wake_ups.set(Sleeper::Tenant(1), &mut None, Some(at(10)));
        assert_eq!(wake_ups.pop_due(at(9)), None);
        assert_eq!(wake_ups.pop_due(at(20)), Some(Sleeper::Tenant(1)));
        assert_eq!(wake_ups.pop_due(at(20)), Some(Sleeper::Lane(1)));
        assert_eq!(wake_ups.pop_due(at(20)), None);
    }
}
