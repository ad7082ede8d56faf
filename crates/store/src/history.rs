//! What has become of events and deliveries, for people who ask.

use posthaste_core::delivery::State;
use posthaste_core::event::{Data, EventType, Timing, TypePatterns};
use posthaste_core::id::{DeliveryId, EndpointId, EventId, ReplayId, TenantId};
use posthaste_core::scheduler::Seq;
use posthaste_core::text::{IdempotencyKey, Label, Labels, OrderingKey, Version};
use posthaste_core::time::Timestamp;

use crate::columns::{corrupt, unsigned};
use crate::{Error, Partition};

/// A delivery as somebody asks after it.
#[derive(Clone, PartialEq, Debug)]
pub struct DeliveryRow {
    pub id: DeliveryId,
    pub seq: Seq,
    pub event: EventId,
    pub endpoint: EndpointId,
    /// Where its last attempt went; where its first one will go if there was none yet.
    pub endpoint_url: String,
    pub tenant: TenantId,
    pub partition: Partition,
    pub event_type: EventType,
    pub is_priority: bool,
    pub state: State,
    pub attempts: u32,
    pub ordering_key: Option<OrderingKey>,
    /// Nothing older with its key and endpoint is unfinished; true without a key.
    pub is_head_of_key: bool,
    pub timestamp: Timestamp,
    /// Its due time was set by a failure or by `deliver_at`.
    pub is_later: bool,
    pub expires_at: Option<Timestamp>,
    pub last_attempt_at: Option<Timestamp>,
    pub last_status_code: Option<u16>,
    pub last_error: Option<String>,
    pub replay_of: Option<DeliveryId>,
    pub replay: Option<ReplayId>,
    pub replayed_as: Option<DeliveryId>,
    pub created_at: Timestamp,
}

/// What is stored; whether it is pending, delivering or scheduled is computed when it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusFilter {
    Waiting,
    Delivered,
    Dead,
    Cancelled,
}

impl StatusFilter {
    pub const ALL: [StatusFilter; 4] =
        [StatusFilter::Waiting, StatusFilter::Delivered, StatusFilter::Dead, StatusFilter::Cancelled];

    /// As the database has it.
    pub fn name(self) -> &'static str {
        match self {
            StatusFilter::Waiting => "waiting",
            StatusFilter::Delivered => "delivered",
            StatusFilter::Dead => "dead",
            StatusFilter::Cancelled => "cancelled",
        }
    }
}

#[derive(Clone, PartialEq, Default, Debug)]
pub struct DeliveryQuery {
    pub tenant: Option<TenantId>,
    pub endpoint: Option<EndpointId>,
    pub event: Option<EventId>,
    /// One of these; any if it is empty.
    pub statuses: Vec<StatusFilter>,
    /// Any if it is empty.
    pub event_types: TypePatterns,
    /// By the time they were made; the end is not included.
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub before: Option<Cursor>,
    pub limit: usize,
}

/// Whose rows, and after which.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct RowsAfter {
    pub tenant: Option<TenantId>,
    pub endpoint: Option<EndpointId>,
    pub after: Seq,
    pub limit: usize,
}

/// Where a page begins; only the store knows what it means.
pub type Cursor = u128;

/// Rows, and where the next page begins.
#[derive(Clone, PartialEq, Debug)]
pub struct Page<T> {
    pub rows: Vec<T>,
    pub next: Option<Cursor>,
}

/// An event as somebody asks after it.
#[derive(Clone, PartialEq, Debug)]
pub struct EventRow {
    pub id: EventId,
    pub tenant: TenantId,
    pub event_type: EventType,
    pub version: Option<Version>,
    pub timestamp: Timestamp,
    pub accepted_at: Timestamp,
    /// Not in lists, and not once it was erased.
    pub data: Option<Data>,
    pub erased_at: Option<Timestamp>,
    pub labels: Labels,
    pub idempotency_key: Option<IdempotencyKey>,
    pub ordering_key: Option<OrderingKey>,
    pub timing: Timing,
    /// Its deliveries: waiting, delivered, dead, cancelled. Not in lists.
    pub deliveries: [u64; 4],
}

#[derive(Clone, PartialEq, Default, Debug)]
pub struct EventQuery {
    pub tenant: Option<TenantId>,
    /// Any if it is empty.
    pub event_types: TypePatterns,
    /// All of these.
    pub labels: Vec<Label>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub before: Option<Cursor>,
    pub limit: usize,
}

/// How many rows a page looks at. What it has not found by then is on the next one.
pub(crate) const SCAN_ROWS_MAX: usize = 2_000;

impl DeliveryQuery {
    /// Whether a row belongs here, whatever index it was found by.
    pub(crate) fn covers(&self, row: &DeliveryRow) -> bool {
        let status = match row.state {
            State::Waiting { .. } => StatusFilter::Waiting,
            State::Delivered { .. } => StatusFilter::Delivered,
            State::Dead { .. } => StatusFilter::Dead,
            State::Cancelled { .. } => StatusFilter::Cancelled,
        };
        self.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
            && self.endpoint.is_none_or(|endpoint| endpoint == row.endpoint)
            && self.event.as_ref().is_none_or(|event| *event == row.event)
            && (self.statuses.is_empty() || self.statuses.contains(&status))
            && self.event_types.covers_or_is_empty(&row.event_type)
            && self.from.is_none_or(|from| from <= row.created_at)
            && self.to.is_none_or(|to| row.created_at < to)
    }
}

impl EventQuery {
    pub(crate) fn covers(&self, row: &EventRow) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
            && self.event_types.covers_or_is_empty(&row.event_type)
            && self.labels.iter().all(|wanted| row.labels.iter().any(|label| label == wanted))
            && self.from.is_none_or(|from| from <= row.accepted_at)
            && self.to.is_none_or(|to| row.accepted_at < to)
    }
}

/// The row that a page begins before.
pub(crate) fn read_cursor_of_seq(cursor: Option<Cursor>) -> Result<i64, Error> {
    cursor.map_or(Ok(i64::MAX), |cursor| i64::try_from(cursor).map_err(corrupt("cursor")))
}

/// Dead letters are in the order of their deaths.
pub(crate) fn cursor_of_dead(row: &DeliveryRow) -> Cursor {
    let at = match row.state {
        State::Dead { at, .. } => at.as_millis(),
        State::Waiting { .. } | State::Delivered { .. } | State::Cancelled { .. } => 0,
    };
    Cursor::from(unsigned(at)) << 64 | Cursor::from(row.seq)
}

pub(crate) fn read_cursor_of_dead(cursor: Option<Cursor>) -> Result<(i64, i64), Error> {
    let Some(cursor) = cursor else { return Ok((i64::MAX, i64::MAX)) };
    let half = |half: Cursor| i64::try_from(half & Cursor::from(u64::MAX)).map_err(corrupt("cursor"));
    Ok((half(cursor >> 64)?, half(cursor)?))
}
