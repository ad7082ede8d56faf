//! The store calls that carrying out effects needs, as data.
//!
//! An [`Execution`](super::Execution) asks for calls and is given their results. Production makes the calls against the store
//! ([`StoreCall::make`]); the simulator answers them from its model.

use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::scheduler::Seq;
use posthaste_store::{
    AttemptRecord, Body, DeliveryQuery, DeliveryRow, EndpointBundle, Epoch, Error, GivenUp, HandedOver, LaneSnapshot, NodeId, Page,
    Partition, Record, RecordResult, StatisticsQuery, StatisticsStep, Store, SweepPage, WindowRequest, WindowRows,
};

/// One call of the method of [`Store`] with the same name.
#[derive(Clone, PartialEq, Debug)]
pub enum StoreCall {
    Work { after: Option<EndpointId>, limit: usize },
    Sweep { after: Seq, limit: usize },
    LoadEndpoints(Vec<EndpointId>),
    Windows(Vec<WindowRequest>),
    Bodies(Vec<Seq>),
    Record(Vec<Record>),
    DeliveriesAt(Vec<Seq>),
    Attempts(DeliveryId),
    TenantVersions(Vec<TenantId>),
    Restamp { endpoint: EndpointId, after: Seq, limit: usize },
    Delivery(DeliveryId),
    Deliveries(DeliveryQuery),
    Count,
    Statistics(StatisticsQuery),
    PublishLanes(Vec<LaneSnapshot>),
    HandOver { node: NodeId, partitions: Vec<(Partition, Epoch)>, in_flight: Vec<HandedOver> },
}

/// The answer to the [`StoreCall`] of the same name.
#[derive(Debug)]
pub enum StoreReply {
    Work(Vec<EndpointId>),
    Sweep(SweepPage),
    LoadEndpoints(Vec<EndpointBundle>),
    Windows(Vec<WindowRows>),
    Bodies(Vec<Body>),
    Record(Vec<RecordResult>),
    DeliveriesAt(Vec<DeliveryRow>),
    Attempts(Vec<AttemptRecord>),
    TenantVersions(Vec<u64>),
    Restamp(Option<Seq>),
    Delivery(Box<Option<DeliveryRow>>),
    Deliveries(Page<DeliveryRow>),
    Count { is_more: bool },
    Statistics(Vec<StatisticsStep>),
    PublishLanes,
    HandOver,
}

/// Why a call has no answer.
#[derive(Debug)]
pub enum CallFailure {
    Store(Error),
    /// The call panicked. Whether it has written something is not known.
    Panicked,
}

impl CallFailure {
    /// Something that was asked for cannot be read, and asking again gives the same answer.
    pub(super) fn is_corrupt(&self) -> bool {
        match self {
            CallFailure::Store(Error::Corrupt { .. }) => true,
            CallFailure::Store(
                Error::Unavailable(_) | Error::CommitInDoubt | Error::Overloaded { .. } | Error::Unusable(_) | Error::TooNew,
            )
            | CallFailure::Panicked => false,
        }
    }

    /// The call may have written what it was given.
    pub(super) fn leaves_doubt(&self) -> bool {
        match self {
            CallFailure::Store(Error::CommitInDoubt) | CallFailure::Panicked => true,
            CallFailure::Store(
                Error::Unavailable(_) | Error::Corrupt { .. } | Error::Overloaded { .. } | Error::Unusable(_) | Error::TooNew,
            ) => false,
        }
    }
}

impl std::fmt::Display for CallFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallFailure::Store(error) => error.fmt(f),
            CallFailure::Panicked => f.write_str("the call panicked"),
        }
    }
}

impl StoreCall {
    /// The name of the method, for log lines.
    pub fn name(&self) -> &'static str {
        match self {
            StoreCall::Work { .. } => "work",
            StoreCall::Sweep { .. } => "sweep",
            StoreCall::LoadEndpoints(_) => "load_endpoints",
            StoreCall::Windows(_) => "windows",
            StoreCall::Bodies(_) => "bodies",
            StoreCall::Record(_) => "record",
            StoreCall::DeliveriesAt(_) => "deliveries_at",
            StoreCall::Attempts(_) => "attempts",
            StoreCall::TenantVersions(_) => "tenant_versions",
            StoreCall::Restamp { .. } => "restamp",
            StoreCall::Delivery(_) => "delivery",
            StoreCall::Deliveries(_) => "deliveries",
            StoreCall::Count => "count",
            StoreCall::Statistics(_) => "statistics",
            StoreCall::PublishLanes(_) => "publish_lanes",
            StoreCall::HandOver { .. } => "hand_over",
        }
    }

    pub(super) async fn make(self, store: &dyn Store) -> Result<StoreReply, Error> {
        Ok(match self {
            StoreCall::Work { after, limit } => StoreReply::Work(store.work(after, limit).await?),
            StoreCall::Sweep { after, limit } => StoreReply::Sweep(store.sweep(after, limit).await?),
            StoreCall::LoadEndpoints(endpoints) => StoreReply::LoadEndpoints(store.load_endpoints(endpoints).await?),
            StoreCall::Windows(asked) => StoreReply::Windows(store.windows(asked).await?),
            StoreCall::Bodies(deliveries) => StoreReply::Bodies(store.bodies(deliveries).await?),
            StoreCall::Record(records) => StoreReply::Record(store.record(records).await?),
            StoreCall::DeliveriesAt(rows) => StoreReply::DeliveriesAt(store.deliveries_at(rows).await?),
            StoreCall::Attempts(delivery) => StoreReply::Attempts(store.attempts(delivery).await?),
            StoreCall::TenantVersions(tenants) => StoreReply::TenantVersions(store.tenant_versions(tenants).await?),
            StoreCall::Restamp { endpoint, after, limit } => StoreReply::Restamp(store.restamp(endpoint, after, limit).await?),
            StoreCall::Delivery(id) => StoreReply::Delivery(Box::new(store.delivery(None, id).await?)),
            StoreCall::Deliveries(query) => StoreReply::Deliveries(store.deliveries(query).await?),
            StoreCall::Count => StoreReply::Count { is_more: store.count().await? },
            StoreCall::Statistics(query) => StoreReply::Statistics(store.statistics(query).await?),
            StoreCall::PublishLanes(lanes) => {
                store.publish_lanes(lanes).await?;
                StoreReply::PublishLanes
            }
            StoreCall::HandOver { node, partitions, in_flight } => {
                store.hand_over(node, GivenUp::Partitions(partitions), in_flight).await?;
                StoreReply::HandOver
            }
        })
    }
}
