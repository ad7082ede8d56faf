//! Events whose deliveries were just committed, so that they need not be read back.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use posthaste_core::event::Event;
use posthaste_core::scheduler::Seq;

/// What an event weighs beside its payload.
const EVENT_BYTES: usize = 256;

/// At most so many bytes; the oldest go first, and are read from the store when it is their turn.
#[derive(Debug)]
pub(crate) struct CachedBodies {
    bytes_max: usize,
    bytes: usize,
    events: HashMap<Seq, Arc<Event>>,
    /// Also names what has been taken since.
    order: VecDeque<Seq>,
}

impl CachedBodies {
    pub(crate) fn new(bytes_max: usize) -> CachedBodies {
        CachedBodies { bytes_max, bytes: 0, events: HashMap::new(), order: VecDeque::new() }
    }

    pub(crate) fn keep(&mut self, seq: Seq, event: Arc<Event>) {
        let bytes = weight(&event);
        if let Some(before) = self.events.insert(seq, event) {
            self.bytes -= weight(&before);
        } else {
            self.order.push_back(seq);
        }
        self.bytes += bytes;
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.order.pop_front()
        {
            self.take(oldest);
        }
        // Names of what is gone must not add up.
        if self.order.len() > 2 * self.events.len() + 64 {
            self.order.retain(|seq| self.events.contains_key(seq));
        }
    }

    pub(crate) fn take(&mut self, seq: Seq) -> Option<Arc<Event>> {
        let event = self.events.remove(&seq)?;
        self.bytes -= weight(&event);
        Some(event)
    }
}

/// What an event takes up while it is in memory.
pub(crate) fn weight(event: &Event) -> usize {
    event.data.as_str().len() + EVENT_BYTES
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

    use posthaste_core::event::{Data, EventType, Timing};
    use posthaste_core::id::{EventId, TenantId};
    use posthaste_core::text::Labels;
    use posthaste_core::time::Timestamp;

    use super::*;

    fn event(bytes: usize) -> Arc<Event> {
        let at = Timestamp::from_millis(0);
        Arc::new(Event {
            id: EventId::parse("evt_1").unwrap(),
            tenant: TenantId::parse("acme").unwrap(),
            event_type: EventType::parse("a").unwrap(),
            version: None,
            timestamp: at,
            accepted_at: at,
            data: Data::parse(&format!("\"{}\"", "x".repeat(bytes))).unwrap(),
            labels: Labels::default(),
            idempotency_key: None,
            ordering_key: None,
            timing: Timing::default(),
            trace: None,
        })
    }

    #[test]
    fn the_oldest_go_when_there_is_no_room() {
        let mut bodies = CachedBodies::new(3 * (100 + 2 + EVENT_BYTES));
        (1..=4).for_each(|seq| bodies.keep(seq, event(100)));
        assert!(bodies.take(1).is_none());
        assert!((2..=4).all(|seq| bodies.take(seq).is_some()));
        assert_eq!(bodies.bytes, 0);
    }

    #[test]
    fn names_of_what_was_taken_do_not_add_up() {
        let mut bodies = CachedBodies::new(1 << 20);
        for seq in 0..10_000 {
            bodies.keep(seq, event(1));
            bodies.take(seq);
        }
        assert!(bodies.order.len() <= 65, "{}", bodies.order.len());
    }
}
