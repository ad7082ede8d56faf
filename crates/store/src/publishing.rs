//! What goes in.

use std::sync::Arc;

use posthaste_core::event::{Event, EventType};
use posthaste_core::id::EventId;
use posthaste_core::time::Timestamp;

/// An event that somebody wants to be known.
#[derive(Clone, PartialEq, Debug)]
pub struct NewEvent {
    pub event: Arc<Event>,
    /// Its id was chosen by the publisher, and works as an idempotency key for as long as the event is kept.
    pub is_id_chosen: bool,
    /// Of all that was given but the id and the key: the same key with another body is a conflict.
    pub fingerprint: [u8; 32],
}

/// What became of it.
#[derive(Clone, PartialEq, Debug)]
pub enum Published {
    Made {
        deliveries: u32,
    },
    /// It was published before, under this id.
    Duplicate {
        event: EventId,
        event_type: EventType,
        timestamp: Timestamp,
        deliveries: u32,
    },
    /// The same key or id, and another body.
    Conflict,
}
