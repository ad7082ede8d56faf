//! The messages between the owner and the rest of the engine: inputs go in, effects come out.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::event::Event;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::notice::Noticed;
use posthaste_core::scheduler::{Seq, WindowQuery};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::Trigger;
use posthaste_core::trace::Trace;
use posthaste_metrics::Note;
use posthaste_store::{
    AttemptRecord, Body, Claimed, CommandRequest, CommittedDelivery, Counts, DeliveryRow, EndpointBundle, Epoch, HandedOver,
    LaneSnapshot, Overdue, Partition, Record, RecordResult, StatisticsStep, WindowRows,
};

use crate::Target;

/// Raised when the owner drops its state. Replies to effects of an earlier generation are ignored.
pub type OwnerGeneration = u64;

/// Everything that can happen to an owner.
#[derive(Debug)]
pub enum Input {
    /// This node owns these partitions from now on.
    PartitionsClaimed(Claimed),
    /// The lease ended: this node owns nothing.
    LeaseEnded,
    /// Another node takes these partitions over. Deliveries in flight are still finished here.
    GiveUp(Vec<Partition>),
    /// The previous owner recorded a delivery that it had in flight.
    RecordedElsewhere {
        endpoint: EndpointId,
        delivery: DeliveryId,
    },
    /// Endpoints that may have unfinished deliveries.
    Work(Vec<EndpointId>),
    /// Deliveries that this process committed, from the feed.
    Committed(Vec<CommittedDelivery>),
    /// The feed dropped rows, all of them before those of the next [`Input::Committed`].
    FeedOverflowed,
    /// A scan for rows that the feed dropped reached this row.
    GapScanned {
        generation: OwnerGeneration,
        through: Seq,
    },
    EndpointsLoaded {
        generation: OwnerGeneration,
        asked: Vec<EndpointId>,
        found: Vec<EndpointBundle>,
    },
    /// The stored configuration of an endpoint cannot be read.
    EndpointUnreadable {
        generation: OwnerGeneration,
        endpoint: EndpointId,
        cause: String,
    },
    WindowRead {
        generation: OwnerGeneration,
        endpoint: EndpointId,
        want: WindowQuery,
        rows: WindowRows,
    },
    BodiesRead {
        generation: OwnerGeneration,
        asked: Vec<PendingSend>,
        found: Vec<Body>,
    },
    AttemptFinished {
        generation: OwnerGeneration,
        send: SendRef,
        attempt: Box<AttemptRecord>,
    },
    /// No request was made because this node's lease ended. There is nothing to record.
    NotSent {
        generation: OwnerGeneration,
        send: SendRef,
    },
    Recorded {
        generation: OwnerGeneration,
        on_recorded: Vec<OnRecorded>,
        results: Vec<RecordResult>,
    },
    /// The configuration changed, here or on another node.
    ConfigurationChanged,
    Versions {
        generation: OwnerGeneration,
        versions: Vec<(TenantId, u64)>,
    },
    /// The rows of an endpoint carry the classes that its quiet hours give them.
    Restamped {
        generation: OwnerGeneration,
        endpoint: EndpointId,
    },
    /// Waiting deliveries that have expired or outlived their retention.
    Overdue(Vec<Overdue>),
    /// A command for the owner of a lane: cancel, send now, test, apply.
    Command(CommandRequest),
    /// The rows that a command is about.
    DeliveriesFound {
        generation: OwnerGeneration,
        asked: Box<CommandRequest>,
        rows: Vec<DeliveryRow>,
    },
    StatisticsRead {
        generation: OwnerGeneration,
        endpoint: EndpointId,
        trigger: Option<Trigger>,
        seen: Box<ObservedAttempts>,
    },
}

/// Everything that an owner can ask the executor to do.
#[derive(Debug)]
pub enum Effect {
    /// Find the endpoints that have unfinished deliveries.
    FindWork,
    /// Find endpoints with unfinished deliveries among the rows after this one, because the feed dropped some.
    ScanGap {
        generation: OwnerGeneration,
        after: Seq,
    },
    LoadEndpoints {
        generation: OwnerGeneration,
        endpoints: Vec<EndpointId>,
    },
    ReadWindow {
        generation: OwnerGeneration,
        endpoint: EndpointId,
        want: WindowQuery,
        limit: usize,
    },
    ReadBodies {
        generation: OwnerGeneration,
        wanted: Vec<PendingSend>,
    },
    Send(Box<SendRequest>),
    Record {
        generation: OwnerGeneration,
        records: Vec<Record>,
        on_recorded: Vec<OnRecorded>,
    },
    CompareVersions {
        generation: OwnerGeneration,
        tenants: Vec<TenantId>,
    },
    Restamp {
        generation: OwnerGeneration,
        endpoint: EndpointId,
    },
    FindDeliveries {
        generation: OwnerGeneration,
        asked: Box<CommandRequest>,
    },
    /// Read the statistics of an endpoint, to compute its timeout or to review a shortened one.
    ReadStatistics {
        generation: OwnerGeneration,
        endpoint: EndpointId,
        trigger: Option<Trigger>,
        shortened_at: Option<Timestamp>,
    },
    PublishLanes(Vec<LaneSnapshot>),
    /// Notify tenants or operators of something that is on disk.
    Notify(Noticed),
    /// Write the states of these lanes, then give the partitions up.
    HandOver {
        partitions: Vec<(Partition, Epoch)>,
        lanes: Vec<Record>,
        in_flight: Vec<HandedOver>,
    },
}

/// A scheduled delivery whose payload is not in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingSend {
    pub endpoint: EndpointId,
    pub delivery: DeliveryId,
    pub seq: Seq,
    pub is_probe: bool,
}

/// One request to make.
#[derive(Debug)]
pub struct SendRequest {
    pub generation: OwnerGeneration,
    pub send: SendRef,
    /// Counted from 1.
    pub number: u32,
    pub event: Arc<Event>,
    pub target: Arc<Target>,
    pub timeout: Duration,
    /// When the request first could have been made.
    pub due: Timestamp,
    /// The trace of its event, if it is sampled.
    pub trace: Option<Trace>,
}

/// Names the delivery that a request is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRef {
    pub endpoint: EndpointId,
    pub delivery: DeliveryId,
    pub seq: Seq,
    /// A test send: its event is not stored.
    pub is_test: bool,
    pub(super) bytes: usize,
}

/// What the owner does once a record is committed.
#[derive(Clone, PartialEq, Debug)]
pub enum OnRecorded {
    /// The attempt of a delivery in flight ended.
    AttemptEnded {
        endpoint: EndpointId,
        delivery: DeliveryId,
        /// The metric to count if the record was written.
        note: Option<Note>,
        /// The notifications to send then.
        noticed: Vec<Noticed>,
    },
    /// A delivery was withdrawn from its lane to end it or to make it due.
    Withdrawn {
        endpoint: EndpointId,
        delivery: DeliveryId,
        seq: Seq,
        still_waits: bool,
        waiter_id: Option<WaiterId>,
        note: Option<Note>,
    },
    /// The circuit is half-open: send its probe now.
    Probe(PendingSend),
    Nothing,
}

/// Identifies a caller that waits for some records.
pub type WaiterId = u64;

/// Statistics of an endpoint's attempts.
#[derive(Clone, PartialEq, Debug)]
pub struct ObservedAttempts {
    pub week: Option<StatisticsStep>,
    pub day: Counts,
    /// Since the timeout was shortened on trial.
    pub since_shortened: Option<Counts>,
}
