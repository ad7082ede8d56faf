//! What comes in: events, the deliveries they make, and wishes to send again.

use parking_lot::Mutex;
use posthaste_core::event::EventType;
use posthaste_core::id::TenantId;

use crate::Limits;
use crate::count::Counter;
use crate::page::{Kind, Page};
use crate::ranked::Ranked;

#[derive(Debug)]
pub struct Publishing {
    events: Mutex<Ranked<(TenantId, EventType), u64>>,
    deliveries_of_events: Counter,
    deliveries_again: Counter,
    retries: Counter,
    replays: Counter,
}

impl Publishing {
    pub(crate) fn new(limits: &Limits) -> Publishing {
        Publishing {
            events: Mutex::new(Ranked::new(limits.types_max)),
            deliveries_of_events: Counter::default(),
            deliveries_again: Counter::default(),
            retries: Counter::default(),
            replays: Counter::default(),
        }
    }

    /// Events that are on disk, each with how many deliveries it has made. Duplicates are none.
    pub fn created<'a>(&self, events: impl IntoIterator<Item = (&'a TenantId, &'a EventType, u32)>) {
        let mut deliveries = 0;
        let mut counted = self.events.lock();
        for (tenant, event_type, count) in events {
            counted.add(&(tenant.clone(), event_type.clone()), &1);
            deliveries += u64::from(count);
        }
        drop(counted);
        self.deliveries_of_events.add(deliveries);
    }

    /// Somebody wants one delivery to be sent again, and a new one was made for it.
    pub fn retry_requested(&self) {
        self.retries.add(1);
        self.deliveries_again.add(1);
    }

    pub fn replay_requested(&self) {
        self.replays.add(1);
    }

    /// Deliveries that a replay has made.
    pub fn replayed(&self, count: u64) {
        self.deliveries_again.add(count);
    }

    pub(crate) fn show(&self, page: &mut Page) {
        let mut counted = self.events.lock();
        counted.rank();
        let mut events = page.family(
            "webhook_events_created_total",
            Kind::Counter,
            "Events that were accepted and are on disk, without duplicates.",
        );
        for (key, count) in counted.shown() {
            let (tenant, event_type) =
                key.map_or(("other", "other"), |(tenant, event_type)| (tenant.as_str(), event_type.as_str()));
            events.sample(&[("tenant", &tenant), ("type", &event_type)], *count as f64);
        }
        drop(counted);
        let mut made =
            page.family("webhook_deliveries_created_total", Kind::Counter, "Deliveries that were made, by what made them.");
        made.sample(&[("origin", &"event")], self.deliveries_of_events.get() as f64);
        made.sample(&[("origin", &"replay")], self.deliveries_again.get() as f64);
        let mut wishes = page.family(
            "webhook_replay_requests_total",
            Kind::Counter,
            "Requests to send again: one delivery (retry), or many (replay).",
        );
        wishes.sample(&[("kind", &"retry")], self.retries.get() as f64);
        wishes.sample(&[("kind", &"replay")], self.replays.get() as f64);
    }
}
