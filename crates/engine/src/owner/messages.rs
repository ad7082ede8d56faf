//! What can happen to an owner, and what it can want done.

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

/// Raised when everything is dropped: what was asked for in an earlier life is nobody's.
pub type OwnerGeneration = u64;

/// Everything that can happen.
#[derive(Debug)]
pub enum Input {
    /// These partitions are ours from now on.
    PartitionsClaimed(Claimed),
    /// Nothing is ours any more.
    LeaseEnded,
    /// These are given to somebody else; what is in flight there is still finished here.
    GiveUp(Vec<Partition>),
    /// The owner before has recorded what it had in flight.
    RecordedElsewhere {
        endpoint: EndpointId,
        delivery: DeliveryId,
    },
    /// Endpoints that have something unfinished, or may have.
    Work(Vec<EndpointId>),
    /// Rows of our own commits.
    Committed(Vec<CommittedDelivery>),
    /// The feed of our own commits dropped rows, all of them before those of the next [`Input::Committed`].
    FeedOverflowed,
    /// A scan for rows that the feed dropped has seen every row up to this one.
    GapScanned {
        generation: OwnerGeneration,
        through: Seq,
    },
    EndpointsLoaded {
        generation: OwnerGeneration,
        asked: Vec<EndpointId>,
        found: Vec<EndpointBundle>,
    },
    /// What is stored about an endpoint cannot be read.
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
    /// No request was made, because this node's lease has ended: there is nothing to remember of it.
    NotSent {
        generation: OwnerGeneration,
        send: SendRef,
    },
    Recorded {
        generation: OwnerGeneration,
        on_recorded: Vec<OnRecorded>,
        results: Vec<RecordResult>,
    },
    /// What people have said has changed somewhere.
    ConfigurationChanged,
    Versions {
        generation: OwnerGeneration,
        versions: Vec<(TenantId, u64)>,
    },
    /// The rows of an endpoint are stamped with the classes that its quiet hours give them.
    Restamped {
        generation: OwnerGeneration,
        endpoint: EndpointId,
    },
    /// What waits and should not any more.
    Overdue(Vec<Overdue>),
    /// Somebody wants something.
    Command(CommandRequest),
    /// What the database says of what somebody wants.
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

/// Everything that can be wanted.
#[derive(Debug)]
pub enum Effect {
    /// Find the endpoints that have something unfinished.
    FindWork,
    /// Find the endpoints that have something unfinished among the rows after this one, because the feed dropped some.
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
    /// See what an endpoint's attempts were like, so that its timeout can be computed, or a shortening looked back at.
    ReadStatistics {
        generation: OwnerGeneration,
        endpoint: EndpointId,
        trigger: Option<Trigger>,
        shortened_at: Option<Timestamp>,
    },
    PublishLanes(Vec<LaneSnapshot>),
    /// Something that people should hear of, and that is on disk.
    Notify(Noticed),
    /// Write what is known of these lanes, and then give the partitions up.
    HandOver {
        partitions: Vec<(Partition, Epoch)>,
        lanes: Vec<Record>,
        in_flight: Vec<HandedOver>,
    },
}

/// A delivery whose turn has come and whose payload is not at hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingSend {
    pub endpoint: EndpointId,
    pub delivery: DeliveryId,
    pub seq: Seq,
    pub is_probe: bool,
}

/// One request that has to be made.
#[derive(Debug)]
pub struct SendRequest {
    pub generation: OwnerGeneration,
    pub send: SendRef,
    /// Counted from 1.
    pub number: u32,
    pub event: Arc<Event>,
    pub target: Arc<Target>,
    pub timeout: Duration,
    /// Since when it could have been made.
    pub due: Timestamp,
    /// The trace of its event, if somebody looks at it.
    pub trace: Option<Trace>,
}

/// What a request is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRef {
    pub endpoint: EndpointId,
    pub delivery: DeliveryId,
    pub seq: Seq,
    /// Of no event that is kept: somebody wants to see what happens.
    pub is_test: bool,
    pub(super) bytes: usize,
}

/// What is done once a record is committed.
#[derive(Clone, PartialEq, Debug)]
pub enum OnRecorded {
    /// A delivery that was in flight.
    AttemptEnded {
        endpoint: EndpointId,
        delivery: DeliveryId,
        /// What is counted if it was done.
        note: Option<Note>,
        /// What people are told then.
        noticed: Vec<Noticed>,
    },
    /// One that was taken out of its lane to be ended or made due.
    Withdrawn {
        endpoint: EndpointId,
        delivery: DeliveryId,
        seq: Seq,
        still_waits: bool,
        waiter_id: Option<WaiterId>,
        note: Option<Note>,
    },
    /// A circuit is half-open: its probe is sent now.
    Probe(PendingSend),
    Nothing,
}

/// Who waits for some records.
pub type WaiterId = u64;

/// What an endpoint's attempts were like.
#[derive(Clone, PartialEq, Debug)]
pub struct ObservedAttempts {
    pub week: Option<StatisticsStep>,
    pub day: Counts,
    /// Since a shortening that is on trial.
    pub since_shortened: Option<Counts>,
}
