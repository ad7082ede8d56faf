//! What every bench of the store publishes, and with which options.

use std::sync::Arc;

use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{EventId, TenantId};
use posthaste_core::text::Labels;
use posthaste_store::{Audit, Keyring, MasterKey, NewEvent, Options, Store};

pub(crate) fn options() -> Options {
    Options::new(Keyring::new(MasterKey::from_base64("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").unwrap(), vec![]))
}

pub(crate) fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

pub(crate) fn audit() -> Audit {
    let text = |text: &str| text.to_owned();
    Audit {
        actor: text("bench"),
        address: None,
        action: text("create"),
        subject: text("x"),
        tenant: None,
        before: None,
        after: None,
    }
}

pub(crate) fn payload() -> Data {
    Data::parse(&format!("{{\"invoice\": \"inv_456\", \"amount\": 4999, \"note\": \"{}\"}}", "x".repeat(490))).unwrap()
}

pub(crate) fn event(store: &dyn Store, data: &Data) -> NewEvent {
    let now = store.now();
    let event = Event {
        id: EventId::from_unique(store.unique()),
        tenant: tenant(),
        event_type: EventType::parse("invoice.paid").unwrap(),
        version: None,
        timestamp: now,
        accepted_at: now,
        data: data.clone(),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    };
    NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [0; 32], resolved: None }
}
