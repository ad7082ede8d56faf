//! What waits and why, counted for `/v1/stats`.
//!
//! Rows are counted where they lie, up to a bound, and told apart by what a row knows; why they wait follows from their lanes, by
//! the same rules as for a single delivery. What was counted is told again for two seconds, and only one is counted at a time, so
//! that however many watch, the store is asked no oftener.

use std::collections::HashMap;
use std::time::Duration;

use posthaste_core::admission::{Gates, HoldReason, LaneFacts, RowFacts};
use posthaste_core::id::TenantId;
use posthaste_core::quiet_hours::Phase;
use posthaste_core::scheduler::Class;
use posthaste_core::tenant::Tenant;
use posthaste_core::time::Timestamp;
use posthaste_store::{BacklogGroup, BacklogQuery, BacklogScope, LaneBacklog};
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::lane_status::lanes;
use crate::policies::in_force;
use crate::problem::Problem;

/// As old as what owners show of their lanes may be.
const TOLD_FOR: Duration = Duration::from_secs(2);
/// Tenants whose backlog is kept for that long.
const KEPT_MAX: usize = 256;
const LANES_MAX: usize = 1_000;
const ROWS_PER_QUEUE_MAX: usize = 100_000;
/// Some tenths of a second of reading at the most.
const ROWS_MAX: usize = 200_000;

/// What waits. Counted at most two seconds ago; the reasons are what owners of lanes have shown within the last two seconds.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Backlog)]
pub(crate) struct BacklogView {
    /// `null` where there is nothing to count for this key.
    #[schema(format = DateTime)]
    counted_at: Option<String>,
    /// Whether all of it was counted. Where not, each number is the least that it is: of an endpoint at most 100,000 in each queue
    /// (fresh, later, by key) are counted, and no further endpoint is begun after 200,000 or 1,000 endpoints.
    is_complete: bool,
    /// All that has not ended.
    waiting: u64,
    /// Due, and waiting only for its turn.
    pending: u64,
    delivering: u64,
    held: HeldByReason,
}

/// By hold reason.
#[derive(Clone, Default, Debug, Serialize, ToSchema)]
#[schema(as = HeldByReason)]
struct HeldByReason {
    disabled: u64,
    paused: u64,
    blocked: u64,
    deliver_at: u64,
    retry: u64,
    circuit_open: u64,
    quiet_hours: u64,
    ordering: u64,
    rate_limited: u64,
    concurrency: u64,
}

impl HeldByReason {
    fn of(&mut self, reason: HoldReason) -> &mut u64 {
        match reason {
            HoldReason::Disabled => &mut self.disabled,
            HoldReason::Paused => &mut self.paused,
            HoldReason::Blocked => &mut self.blocked,
            HoldReason::DeliverAt => &mut self.deliver_at,
            HoldReason::Retry => &mut self.retry,
            HoldReason::CircuitOpen => &mut self.circuit_open,
            HoldReason::QuietHours => &mut self.quiet_hours,
            HoldReason::Ordering => &mut self.ordering,
            HoldReason::RateLimited => &mut self.rate_limited,
            HoldReason::Concurrency => &mut self.concurrency,
        }
    }
}

impl BacklogView {
    /// Of somebody else's tenant: the same as of one that is not there.
    pub(crate) fn empty() -> BacklogView {
        BacklogView { counted_at: None, is_complete: true, waiting: 0, pending: 0, delivering: 0, held: HeldByReason::default() }
    }
}

/// What was counted last, of all tenants and of each.
#[derive(Default, Debug)]
pub(crate) struct BacklogCache(tokio::sync::Mutex<HashMap<Option<TenantId>, (Timestamp, BacklogView)>>);

impl BacklogCache {
    pub(crate) async fn read(&self, app: &App, tenant: Option<TenantId>) -> Result<BacklogView, Problem> {
        let mut kept = self.0.lock().await;
        let now = app.store.now();
        kept.retain(|_, (at, _)| now < *at + TOLD_FOR);
        if let Some((_, view)) = kept.get(&tenant) {
            return Ok(view.clone());
        }
        let view = count(app, tenant.clone(), now).await?;
        if kept.len() < KEPT_MAX {
            kept.insert(tenant, (now, view.clone()));
        }
        Ok(view)
    }
}

async fn count(app: &App, tenant: Option<TenantId>, now: Timestamp) -> Result<BacklogView, Problem> {
    let query = BacklogQuery {
        scope: tenant.map_or(BacklogScope::All, BacklogScope::Tenant),
        now,
        lanes_max: LANES_MAX,
        rows_per_queue_max: ROWS_PER_QUEUE_MAX,
        rows_max: ROWS_MAX,
    };
    let backlog = app.store.backlog(query).await?;
    let mut observed = lanes(app, backlog.lanes.iter().map(|lane| lane.endpoint).collect()).await?;
    let mut tenants: HashMap<TenantId, Option<Tenant>> = HashMap::new();
    let counted_at = Some(now.to_rfc3339());
    let mut view = BacklogView { counted_at, is_complete: backlog.is_whole, ..BacklogView::empty() };
    for lane in &backlog.lanes {
        let Some(stored) = app.store.endpoint(None, lane.endpoint).await? else { continue };
        let of = &stored.endpoint.tenant;
        if !tenants.contains_key(of) {
            tenants.insert(of.clone(), app.store.tenant(of.clone()).await?.map(|stored| stored.tenant));
        }
        let tenant = tenants.get(of).and_then(Option::as_ref);
        let policies = in_force(&app.options.policies, tenant.map(|tenant| &tenant.defaults), &stored.endpoint.policies);
        let observed = observed.remove(&lane.endpoint).unwrap_or_default();
        let facts = observed.lane_facts(stored.endpoint.status, &policies, tenant);
        add_lane(&mut view, now, lane, observed.in_flight_count(), &facts);
    }
    Ok(view)
}

fn add_lane(view: &mut BacklogView, now: Timestamp, lane: &LaneBacklog, mut in_flight: u64, lane_facts: &LaneFacts<'_>) {
    let is_quiet = lane_facts.schedule.is_some_and(|schedule| matches!(schedule.at(now), Phase::Quiet { .. }));
    let gates = Gates::of(now, lane_facts, is_quiet);
    for alike in &lane.waiting {
        let BacklogGroup { class, is_due, is_tried, is_head_of_key, mut count, oldest: _ } = *alike;
        view.waiting += count;
        if is_due && is_head_of_key {
            let flying = in_flight.min(count);
            (in_flight, count) = (in_flight - flying, count - flying);
            view.delivering += flying;
        }
        match gates.hold(RowFacts { is_due, is_tried, waits_in_quiet_hours: class == Class::Rest, is_head_of_key }) {
            Some(reason) => *view.held.of(reason) += count,
            None => view.pending += count,
        }
    }
}
