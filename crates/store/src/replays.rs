//! Sending again what was sent, or missed, before.

use posthaste_core::delivery::State;
use posthaste_core::event::{Event, TypePatterns};
use posthaste_core::id::{DeliveryId, EndpointId, ReplayId, TenantId};
use posthaste_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::columns::{corrupt, named};
use crate::{DeliveryRow, Error, StatusFilter};

/// Which deliveries are made again. Everything that is said has to hold.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct ReplayFilter {
    pub tenant: Option<TenantId>,
    pub endpoint: Option<EndpointId>,
    /// Left empty, all types.
    pub event_types: TypePatterns,
    /// Left empty, everything that has ended.
    pub status: Vec<StatusFilter>,
    /// Left empty, all.
    pub ids: Vec<DeliveryId>,
    /// Events that match `endpoint` now and never had a delivery there, instead of deliveries.
    pub missing: bool,
    /// By the time that they were made or accepted; the end is not included.
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct NewReplay {
    pub id: ReplayId,
    pub filter: ReplayFilter,
    pub reason: String,
    pub requested_by: String,
    pub rate_per_minute: u32,
    /// The answer to the same call again is the same replay.
    pub idempotency_key: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayState {
    Running,
    Done,
    Cancelled,
}

impl ReplayState {
    pub const ALL: [ReplayState; 3] = [ReplayState::Running, ReplayState::Done, ReplayState::Cancelled];

    pub fn name(self) -> &'static str {
        match self {
            ReplayState::Running => "running",
            ReplayState::Done => "done",
            ReplayState::Cancelled => "cancelled",
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct ReplayRow {
    pub id: ReplayId,
    pub filter: ReplayFilter,
    pub reason: String,
    pub requested_by: String,
    pub rate_per_minute: u32,
    pub state: ReplayState,
    pub matched: u64,
    pub created: u64,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

/// A filter, as a column keeps it.
#[derive(Serialize, Deserialize)]
struct FilterDocument {
    tenant: Option<String>,
    endpoint: Option<String>,
    event_types: Vec<String>,
    status: Vec<String>,
    ids: Vec<String>,
    missing: bool,
    from_ms: Option<i64>,
    to_ms: Option<i64>,
}

impl ReplayFilter {
    pub(crate) fn document(&self) -> String {
        let document = FilterDocument {
            tenant: self.tenant.as_ref().map(ToString::to_string),
            endpoint: self.endpoint.map(|endpoint| endpoint.to_string()),
            event_types: self.event_types.iter().map(ToString::to_string).collect(),
            status: self.status.iter().map(|status| status.name().to_owned()).collect(),
            ids: self.ids.iter().map(ToString::to_string).collect(),
            missing: self.missing,
            from_ms: self.from.map(Timestamp::as_millis),
            to_ms: self.to.map(Timestamp::as_millis),
        };
        serde_json::to_string(&document).expect("texts and numbers")
    }

    pub(crate) fn read(stored: &str) -> Result<ReplayFilter, Error> {
        let document: FilterDocument = serde_json::from_str(stored).map_err(corrupt("replay"))?;
        let status = |name: &String| named("replay", Some(name), &StatusFilter::ALL, StatusFilter::name);
        Ok(ReplayFilter {
            tenant: document.tenant.as_deref().map(TenantId::parse).transpose().map_err(corrupt("replay"))?,
            endpoint: document.endpoint.as_deref().map(EndpointId::parse).transpose().map_err(corrupt("replay"))?,
            event_types: TypePatterns::parse(document.event_types.iter().map(String::as_str)).map_err(corrupt("replay"))?,
            status: document.status.iter().map(status).collect::<Result<_, _>>()?,
            ids: document.ids.iter().map(|id| DeliveryId::parse(id)).collect::<Result<_, _>>().map_err(corrupt("replay"))?,
            missing: document.missing,
            from: document.from_ms.map(Timestamp::from_millis),
            to: document.to_ms.map(Timestamp::from_millis),
        })
    }

    /// Whether a delivery is made again: it has ended, and nothing has been made of it yet.
    pub(crate) fn covers(&self, row: &DeliveryRow) -> bool {
        let status = match row.state {
            State::Waiting { .. } => return false,
            State::Delivered { .. } => StatusFilter::Delivered,
            State::Dead { .. } => StatusFilter::Dead,
            State::Cancelled { .. } => StatusFilter::Cancelled,
        };
        row.replayed_as.is_none()
            && self.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
            && self.endpoint.is_none_or(|endpoint| endpoint == row.endpoint)
            && self.event_types.covers_or_is_empty(&row.event_type)
            && (self.status.is_empty() || self.status.contains(&status))
            && (self.ids.is_empty() || self.ids.contains(&row.id))
            && self.is_within(row.created_at)
    }

    /// Whether an event may have been missed; whether it was is asked of the database.
    pub(crate) fn covers_event(&self, event: &Event) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == event.tenant)
            && self.event_types.covers_or_is_empty(&event.event_type)
            && self.is_within(event.accepted_at)
    }

    fn is_within(&self, at: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at < to)
    }
}
