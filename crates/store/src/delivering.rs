//! The types that an owner reads and writes while it delivers.

use std::time::Duration;

use posthaste_core::bucket::Bucket;
use posthaste_core::delivery::{Outcome, State, Timings};
use posthaste_core::event::Event;
use posthaste_core::health::DisableReason;
use posthaste_core::id::{AttemptId, DeliveryId, EndpointId};
use posthaste_core::scheduler::{Entry, LaneMemory, Seq, WindowQuery};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::Adaptive;

use crate::{Audit, Epoch, Error, Partition, StoredEndpoint, StoredTenant};

/// Everything that an owner has to know about an endpoint before it can send there.
#[derive(Clone, PartialEq, Debug)]
pub struct EndpointBundle {
    pub endpoint: StoredEndpoint,
    /// `None` for one that was deleted.
    pub tenant: Option<StoredTenant>,
    pub lane: Option<LaneState>,
}

/// A request for the first rows of one of a lane's queues.
#[derive(Clone, PartialEq, Debug)]
pub struct WindowRequest {
    pub endpoint: EndpointId,
    pub want: WindowQuery,
    pub limit: usize,
}

/// The first rows of a queue, in its order.
#[derive(Clone, PartialEq, Debug)]
pub struct WindowRows {
    pub rows: Vec<Entry>,
    /// It was cut off at its limit.
    pub more: bool,
    /// The last row that was committed when the queue was read.
    pub seen: Seq,
}

/// One page of a scan for waiting deliveries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SweepPage {
    /// Endpoints that have something waiting among the rows of this page, each once.
    pub endpoints: Vec<EndpointId>,
    /// The last row that there was when the page was read. A scan whose last page says so has seen every row up to here.
    pub highest: Seq,
    /// Where the next page starts; `None` if this was the last one.
    pub next: Option<Seq>,
}

/// What a delivery carries.
#[derive(Debug)]
pub struct Body {
    pub seq: Seq,
    pub delivery: DeliveryId,
    /// `Err` where there is nothing that may be sent.
    pub event: Result<Event, BodyError>,
}

/// Why a delivery cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// A client erased the payload.
    #[error("its payload was erased")]
    Erased,
    /// What is stored is not what was published.
    #[error(transparent)]
    Corrupt(#[from] Error),
}

/// What happened to one delivery, to be written.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    pub partition: Partition,
    pub epoch: Epoch,
    pub endpoint: EndpointId,
    pub recorded: DeliveryChange,
    /// What the lane knows since. Written with it.
    pub lane: Option<LaneState>,
    /// Why the endpoint is disabled with it, if it is.
    pub disables_endpoint: Option<DisableReason>,
}

impl Record {
    /// The row of the delivery that it is about, if it is about one.
    pub fn seq(&self) -> Option<Seq> {
        match &self.recorded {
            DeliveryChange::Attempt { seq, .. } | DeliveryChange::Moved { seq, .. } => Some(*seq),
            DeliveryChange::Nothing => None,
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum DeliveryChange {
    /// One finished attempt, and the state that it has led to.
    Attempt { seq: Seq, attempt: Box<AttemptRecord>, state: State },
    /// Ended, or made due at another time, without an attempt; and who wanted that, if it was a person.
    Moved { seq: Seq, state: State, audit: Option<Box<Audit>> },
    /// Nothing but the lane.
    Nothing,
}

/// The result of writing a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordResult {
    Done,
    /// Another attempt of this number has been recorded, or the delivery has ended. Nothing was changed.
    MovedOn,
    /// The partition has gone to another node. Nothing was changed.
    NotOwner,
}

#[derive(Clone, PartialEq, Debug)]
pub struct AttemptRecord {
    pub id: AttemptId,
    /// Counted from 1.
    pub number: u32,
    pub outcome: Outcome,
    /// Until the response head, or the failure.
    pub response_time: Duration,
    pub timings: Timings,
    pub timeout: Duration,
    pub preview: Option<String>,
    pub error: Option<String>,
    pub attempted_at: Timestamp,
    /// The version of the endpoint that it was sent with; `None` for attempts from before versions were kept.
    pub endpoint_version: Option<u64>,
}

/// The state of a lane that its owner has written.
#[derive(Clone, PartialEq, Debug)]
pub struct LaneState {
    pub memory: LaneMemory,
    pub timeout: Adaptive,
    /// Rises with every state of this lane, also from owner to owner. The store keeps the highest, in whatever order states come.
    pub version: u64,
}

/// What an owner publishes about a lane, so that any node can explain a hold.
#[derive(Clone, PartialEq, Debug)]
pub struct LaneSnapshot {
    pub endpoint: EndpointId,
    /// When the snapshot was taken.
    pub at: Timestamp,
    pub memory: LaneMemory,
    pub timeout: Adaptive,
    /// Of the tenant that it belongs to, if that is limited.
    pub tenant_bucket: Option<Bucket>,
    /// More is due than there are tokens.
    pub is_short_of_tokens: bool,
    /// Retries are held until then.
    pub retries_from: Option<Timestamp>,
    /// Another request may be started.
    pub has_slot: bool,
    pub in_flight: Vec<DeliveryId>,
    /// Why nothing can be sent there: the rule of our own settings that forbids it, or that its configuration cannot be read.
    pub blocked: Option<String>,
}

impl LaneSnapshot {
    /// A lane of which nothing is known but its endpoint.
    pub fn unknown(endpoint: EndpointId, at: Timestamp) -> LaneSnapshot {
        LaneSnapshot {
            endpoint,
            at,
            memory: LaneMemory::new(),
            timeout: Adaptive::default(),
            tenant_bucket: None,
            is_short_of_tokens: false,
            retries_from: None,
            has_slot: true,
            in_flight: vec![],
            blocked: None,
        }
    }
}
