//! Remembers.
//!
//! All SQL is here. The store speaks in verbs, each of which is one transaction and says what is atomic; whoever calls
//! does not know tables. What a verb has answered survives a crash.
//!
//! Today there is one database, SQLite, in a directory of its own.

mod clock;
mod sqlite;

use std::time::Duration;

use posthaste_core::delivery::{Outcome, State};
use posthaste_core::endpoint::{Status, Subscription};
use posthaste_core::event::{Event, EventType};
use posthaste_core::id::{AttemptId, DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::time::Timestamp;

pub use sqlite::Store;

/// An endpoint as the store keeps it.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredEndpoint {
    pub id: EndpointId,
    pub tenant: TenantId,
    pub url: String,
    pub subscription: Subscription,
    pub status: Status,
    pub secret: SecretText,
    pub created_at: Timestamp,
}

/// A secret on its way between the database and the signer. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretText(…)")
    }
}

/// A delivery whose time has come, with everything that sending it takes.
#[derive(Clone, PartialEq, Debug)]
pub struct Due {
    pub delivery: DeliveryId,
    /// How often it was tried before.
    pub attempts: u32,
    pub event: Event,
    pub endpoint: StoredEndpoint,
}

/// What is due now, and when to look again.
#[derive(Clone, PartialEq, Debug)]
pub struct DueNow {
    pub due: Vec<Due>,
    /// Due too, but what is stored of them is not what was published, or cannot be read. Never sent.
    pub damaged: Vec<DeliveryId>,
    /// When the first of the others will be due.
    pub next: Option<Timestamp>,
}

/// One finished attempt and the state that it has led to.
#[derive(Clone, PartialEq, Debug)]
pub struct Recorded {
    pub delivery: DeliveryId,
    pub attempt: AttemptRecord,
    pub state: State,
    /// The receiver wants nothing any more: its endpoint is disabled with it.
    pub disables_endpoint: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub struct AttemptRecord {
    pub id: AttemptId,
    /// Counted from 1.
    pub number: u32,
    pub outcome: Outcome,
    pub response_time: Duration,
    pub timeout: Duration,
    pub preview: Option<String>,
    pub error: Option<String>,
    pub attempted_at: Timestamp,
}

/// A delivery as somebody asks after it.
#[derive(Clone, PartialEq, Debug)]
pub struct DeliveryRow {
    pub id: DeliveryId,
    pub event: EventId,
    pub endpoint: EndpointId,
    pub endpoint_url: String,
    pub endpoint_status: Status,
    pub tenant: TenantId,
    pub event_type: EventType,
    pub state: State,
    pub attempts: u32,
    pub created_at: Timestamp,
}

/// Sorted by what a caller can do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is known to have been written. Trying again is safe.
    #[error("the database is busy or unreachable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A row broke a promise that this code makes. A person has to look.
    #[error("stored {what} is not readable")]
    Corrupt { what: &'static str },
    #[error("the database was written by a newer version of Posthaste; run that version, or a later one")]
    TooNew,
    /// Another attempt of this number has been recorded, or the delivery has ended. Nothing was changed.
    #[error("the delivery has moved on")]
    MovedOn,
}
