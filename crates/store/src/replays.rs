//! Sending again what was sent, or missed, before.

use posthaste_core::delivery::State;
use posthaste_core::event::{Event, TypePatterns};
use posthaste_core::id::{DeliveryId, EndpointId, ReplayId, TenantId};
use posthaste_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::columns::{corrupt, named};
use crate::{DeliveryRow, Error, StatusFilter};

/// How many rows one step goes over.
pub(crate) const SCAN_ROWS: usize = 2_000;
/// How many of them at one endpoint, so that one with a long history leaves time for the others.
pub(crate) const ROWS_PER_ENDPOINT: usize = 500;
/// How many endpoints one step looks at; the others come first in the next.
pub(crate) const ENDPOINTS_PER_STEP: usize = 64;

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
    /// `created + skipped + remaining`, at any time.
    pub matched: u64,
    pub created: u64,
    pub skipped: Skipped,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

impl ReplayRow {
    /// What it has still to look at; of a cancelled replay, what it never came to.
    pub fn remaining(&self) -> u64 {
        self.matched.saturating_sub(self.created + self.skipped.total())
    }
}

/// How many matching rows were not made again, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Skipped {
    /// The payload is gone: erased, damaged, or past its retention.
    pub erased: u64,
    /// Another replay or a retry made the row again first.
    pub already_redelivered: u64,
    /// The endpoint was deleted or disabled, or no longer subscribes to the type.
    pub unsubscribed: u64,
}

impl Skipped {
    pub fn total(&self) -> u64 {
        self.erased + self.already_redelivered + self.unsubscribed
    }

    pub(crate) fn add(&mut self, reason: SkipReason) {
        self.add_many(reason, 1);
    }

    fn add_all(&mut self, other: &Skipped) {
        self.erased += other.erased;
        self.already_redelivered += other.already_redelivered;
        self.unsubscribed += other.unsubscribed;
    }

    fn add_many(&mut self, reason: SkipReason, count: u64) {
        *match reason {
            SkipReason::Erased => &mut self.erased,
            SkipReason::AlreadyRedelivered => &mut self.already_redelivered,
            SkipReason::Unsubscribed => &mut self.unsubscribed,
        } += count;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SkipReason {
    Erased,
    AlreadyRedelivered,
    Unsubscribed,
}

/// What a replay would do if it were requested now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReplayCount {
    pub matched: u64,
    pub skipped: Skipped,
}

impl ReplayCount {
    /// How many deliveries it would make.
    pub fn remaining(&self) -> u64 {
        self.matched.saturating_sub(self.skipped.total())
    }

    pub(crate) fn add(&mut self, other: &ReplayCount) {
        self.matched += other.matched;
        self.skipped.add_all(&other.skipped);
    }
}

/// Which rows can be part of a replay. Taken once, before the matching rows are counted, so that the count and every later
/// step speak of the same rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Deliveries that end later are not part of it.
    pub(crate) as_of: Timestamp,
    /// The newest row that can be: a delivery, or with `missing` an event.
    pub(crate) up_to: i64,
    /// The newest delivery. A row that is repeated by a newer one was repeated meanwhile.
    pub(crate) last_delivery: i64,
}

impl Bounds {
    /// What a row's successor means: none, one that keeps the row from matching, or one that came first.
    pub(crate) fn successor(&self, successor: Option<i64>) -> Successor {
        match successor {
            None => Successor::None,
            Some(seq) if seq <= self.last_delivery => Successor::Before,
            Some(_) => Successor::Meanwhile,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Successor {
    None,
    /// Made before the replay was requested: the row does not match.
    Before,
    /// Made since: the row matches and is skipped.
    Meanwhile,
}

/// What is to be done with a row that a look went over.
#[derive(Debug)]
pub(crate) enum RowAction<T> {
    NotMatched,
    Skipped(SkipReason),
    Make(T),
}

impl<T> RowAction<T> {
    pub(crate) fn count_in(&self, count: &mut ReplayCount) {
        match self {
            RowAction::NotMatched => {}
            RowAction::Skipped(reason) => {
                count.matched += 1;
                count.skipped.add(*reason);
            }
            RowAction::Make(_) => count.matched += 1,
        }
    }
}

/// What one step has done.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Stepped {
    pub(crate) created: u64,
    pub(crate) skipped: Skipped,
    /// Every endpoint is done.
    pub(crate) is_done: bool,
}

impl ReplayRow {
    /// The books after a step. They balance at any time: a row that was not counted raises `matched`, and one that was
    /// counted and is not found any more counts as skipped when the replay ends.
    pub(crate) fn after(&self, step: &Stepped) -> ReplayRow {
        let mut after = self.clone();
        after.created += step.created;
        after.skipped.add_all(&step.skipped);
        after.matched = after.matched.max(after.created + after.skipped.total());
        if step.is_done {
            // Deliveries go with their payload. What an endpoint has missed depends on what it subscribes to.
            let reason = if after.filter.missing { SkipReason::Unsubscribed } else { SkipReason::Erased };
            let lost = after.remaining();
            after.skipped.add_many(reason, lost);
            after.state = ReplayState::Done;
        }
        after
    }
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

    /// Whether a delivery is what is asked for: it had ended by then. Whether it can be made again is another question.
    pub(crate) fn covers(&self, row: &DeliveryRow, as_of: Timestamp) -> bool {
        let (status, ended_at) = match row.state {
            State::Waiting { .. } => return false,
            State::Delivered { at } => (StatusFilter::Delivered, at),
            State::Dead { at, .. } => (StatusFilter::Dead, at),
            State::Cancelled { at, .. } => (StatusFilter::Cancelled, at),
        };
        ended_at <= as_of
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
