//! Finds out when an earlier owner has recorded what it handed over.
//!
//! A node that stops cleanly may still have requests in flight. The new owner leaves those deliveries alone, and with them
//! their ordering keys and slots, until they are recorded. While there are any, this asks the store about them; otherwise it
//! asks nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::Seq;
use posthaste_store::{InFlightElsewhere, Store};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::owner::Input;

/// The next delivery of a key starts at most this long, and a query, after the record of the one before.
pub const HANDED_OVER_ASKED_EVERY: Duration = Duration::from_millis(200);

/// The deliveries that the owner was told to leave alone. Written by the membership with each claim, and by
/// `HandedOver::watch`, which removes what has been recorded.
#[derive(Debug, Default)]
pub struct HandedOver {
    state: Mutex<State>,
    has_some: Notify,
}

#[derive(Debug, Default)]
struct State {
    left: HashMap<Seq, (EndpointId, DeliveryId)>,
    /// Raised with every claim. What the store has said about those of an earlier claim does not count: a delivery may
    /// have been handed over again since.
    claim: u64,
}

impl HandedOver {
    /// What a claim names. Called after the owner was told of the claim, so that it hears of records later. What an earlier
    /// claim named and this one does not has been recorded in between: it is still asked about, so that the owner hears of it.
    pub fn add(&self, in_flight_elsewhere: &[InFlightElsewhere]) {
        let mut state = self.state.lock();
        state.claim += 1;
        state.left.extend(in_flight_elsewhere.iter().map(|left| (left.seq, (left.endpoint, left.delivery))));
        if !state.left.is_empty() {
            self.has_some.notify_one();
        }
    }

    /// Nothing is owned any more, so nothing is left alone.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.claim += 1;
        state.left.clear();
    }

    /// Tells the owner of each delivery that does not have to be left alone any more. Never returns.
    pub(crate) async fn watch(self: Arc<Self>, store: Arc<dyn Store>, inbox: UnboundedSender<Input>) {
        loop {
            let (claim, asked) = self.asked();
            if asked.is_empty() {
                self.has_some.notified().await;
                continue;
            }
            match store.handed_over_left(asked.clone()).await {
                Ok(left) => self.settle(claim, &asked, &left.into_iter().collect(), &inbox),
                Err(error) => crate::housekeeping::complain("handed_over_left", &error),
            }
            tokio::time::sleep(HANDED_OVER_ASKED_EVERY).await;
        }
    }

    /// What the store is asked about, and under which claim. Nothing has to be asked while there is nothing.
    pub fn asked(&self) -> (u64, Vec<Seq>) {
        let state = self.state.lock();
        (state.claim, state.left.keys().copied().collect())
    }

    /// The store was asked about these, and these may still be recorded elsewhere: the owner hears of the others.
    pub fn settle(&self, claim: u64, asked: &[Seq], left: &HashSet<Seq>, inbox: &UnboundedSender<Input>) {
        let mut state = self.state.lock();
        if state.claim != claim {
            return;
        }
        for seq in asked.iter().filter(|seq| !left.contains(seq)) {
            if let Some((endpoint, delivery)) = state.left.remove(seq)
                && !plant::is(Plant::RecordedElsewhereUnheard)
            {
                // If the loop has ended, nothing waits for it.
                let _ = inbox.send(Input::RecordedElsewhere { endpoint, delivery });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::time::Timestamp;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    fn in_flight_elsewhere(seq: Seq) -> InFlightElsewhere {
        InFlightElsewhere {
            endpoint: EndpointId::from_bytes([1; 16]),
            delivery: DeliveryId::from_bytes([u8::try_from(seq).expect("small"); 16]),
            seq,
            ordering_key: None,
            until: Timestamp::from_millis(1),
        }
    }

    #[test]
    fn each_recorded_delivery_is_told_once_and_answers_about_an_earlier_claim_do_not_count() {
        let (inbox, mut inputs) = unbounded_channel();
        let mut told = || match inputs.try_recv() {
            Ok(Input::RecordedElsewhere { delivery, .. }) => Some(delivery),
            _ => None,
        };
        let handed_over = HandedOver::default();
        handed_over.add(&[in_flight_elsewhere(1), in_flight_elsewhere(2)]);
        let (claim, mut asked) = handed_over.asked();
        asked.sort_unstable();
        assert_eq!(asked, [1, 2]);
        handed_over.settle(claim, &asked, &HashSet::from([2]), &inbox);
        assert_eq!((told(), told()), (Some(in_flight_elsewhere(1).delivery), None));
        handed_over.settle(claim, &asked, &HashSet::from([2]), &inbox);
        assert_eq!(told(), None, "only once");
        // Another claim finds the second again, while it was asked about it.
        let (claim, asked) = handed_over.asked();
        handed_over.add(&[in_flight_elsewhere(2), in_flight_elsewhere(3)]);
        handed_over.settle(claim, &asked, &HashSet::new(), &inbox);
        assert_eq!(told(), None, "asked again under the new claim");
        assert_eq!(handed_over.asked().1.len(), 2);
        // A claim that names none: what was named before has been recorded, and the owner has to hear of it.
        handed_over.add(&[]);
        assert_eq!(handed_over.asked().1.len(), 2);
        handed_over.clear();
        assert!(handed_over.asked().1.is_empty(), "and nothing is asked any more");
    }
}
