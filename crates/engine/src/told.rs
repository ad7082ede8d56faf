//! Up to where everything that was committed has been told of. What the feed had to leave out is looked for, once at a time.

use posthaste_core::scheduler::Seq;
use posthaste_store::Fed;
use tokio::sync::oneshot;

#[derive(Default, Debug)]
pub(crate) struct Told {
    /// All rows up to here are known of.
    frontier: Seq,
    fed_up_to: Seq,
    /// Something behind the frontier was left out, and nobody looks for it yet.
    is_incomplete: bool,
    /// Somebody does, and will say up to where.
    looking: Option<oneshot::Receiver<Seq>>,
}

/// Look for everything behind this row, and say up to where there was something.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) after: Seq,
    pub(crate) found_up_to: oneshot::Sender<Seq>,
}

impl Told {
    pub(crate) fn fed(&mut self, rows: &[Fed]) {
        self.fed_up_to = rows.iter().map(|row| row.entry.seq).fold(self.fed_up_to, Seq::max);
    }

    /// After what was fed, with whether something was left out before it.
    pub(crate) fn turn(&mut self, has_overflowed: bool) -> Option<Look> {
        self.is_incomplete |= has_overflowed;
        if let Some(looking) = &mut self.looking {
            match looking.try_recv() {
                Ok(found_up_to) => self.frontier = self.frontier.max(found_up_to),
                Err(oneshot::error::TryRecvError::Empty) => return None,
                // Nobody will say: it has to be looked for again.
                Err(oneshot::error::TryRecvError::Closed) => self.is_incomplete = true,
            }
            self.looking = None;
        }
        if !self.is_incomplete {
            self.frontier = self.frontier.max(self.fed_up_to);
            return None;
        }
        // What is left out from here on may be missed by this look.
        self.is_incomplete = false;
        let (found_up_to, looking) = oneshot::channel();
        self.looking = Some(looking);
        Some(Look { after: self.frontier, found_up_to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(fed_up_to: Seq) -> Told {
        Told { fed_up_to, ..Told::default() }
    }

    #[test]
    fn what_was_left_out_is_looked_for_from_where_nothing_was() {
        let mut told = up_to(10);
        assert!(told.turn(false).is_none());
        told.fed_up_to = 30;
        let look = told.turn(true).expect("20 was left out, perhaps");
        assert_eq!(look.after, 10, "30 was fed, and says nothing of those before it");
    }

    #[test]
    fn one_looks_at_a_time_and_the_next_goes_on_where_it_has_ended() {
        let mut told = up_to(10);
        told.turn(false);
        let look = told.turn(true).expect("something was left out");
        assert!(told.turn(true).is_none(), "somebody looks already, and may have been too early for this");
        assert!(told.turn(false).is_none());
        look.found_up_to.send(50).expect("somebody waits for it");
        let next = told.turn(false).expect("something was left out meanwhile");
        assert_eq!(next.after, 50);
        next.found_up_to.send(60).expect("somebody waits for it");
        assert!(told.turn(false).is_none(), "nothing is missing any more");
        assert_eq!(told.frontier, 60);
    }

    #[test]
    fn a_look_that_ends_without_a_word_is_made_again() {
        let mut told = up_to(10);
        told.turn(false);
        drop(told.turn(true));
        assert_eq!(told.turn(false).expect("again").after, 10);
    }
}
