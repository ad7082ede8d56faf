//! `/v1/attention`: what needs a person, for the dashboard's first page and `posthaste status`.
//!
//! Every question that is asked of the store is bounded, whatever its size: the newest dead letters, the lanes with a backlog, the
//! disabled endpoints. The answer is kept for some seconds, and only one is computed at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use axum::response::Response;
use posthaste_core::admission::{Gates, RowFacts};
use posthaste_core::circuit::Breaker;
use posthaste_core::delivery::State;
use posthaste_core::endpoint::Status;
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::quiet_hours::Phase;
use posthaste_core::scheduler::Class;
use posthaste_core::time::Timestamp;
use posthaste_store::{
    BacklogQuery, BacklogScope, DeliveryQuery, DeliveryRow, EndpointQuery, LaneBacklog, StatisticsQuery, StatusFilter,
    StoredEndpoint,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::call::{Call, Rows};
use crate::lane_status::{LaneStatus, lanes};
use crate::policies::in_force;
use crate::problem::Problem;

const LIST: &str = "attention";
/// A page that is open asks again every few seconds.
const KEPT_FOR: Duration = Duration::from_secs(3);
/// Tenants whose answer is kept for that long.
const TENANTS_KEPT_MAX: usize = 256;
/// Of each kind; a list that is longer is not read.
const OF_KIND_MAX: usize = 50;
/// How far back failures are looked for.
const RECENT: Duration = Duration::from_hours(24);
const DEAD_ROWS_MAX: usize = 2_000;
const LANES_MAX: usize = 1_000;
const ROWS_PER_QUEUE_MAX: usize = 1_000;
const ROWS_MAX: usize = 50_000;
/// Endpoints of which a waiting delivery is read, to say how it failed.
const SAMPLES_MAX: usize = 10;
/// What nothing holds is begun within a second; longer than this is worth a look.
const DUE_MAX: Duration = Duration::from_mins(1);
/// Dead letters grow when the last hour had this many, and twice as many as the hour before.
const GROWING_MIN: u64 = 10;
const SKEW_MAX: Duration = Duration::from_secs(5);

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// Deliveries are due and none is made.
    DeliveriesStalled,
    /// No node delivers.
    NoNode,
    /// The clock of this node cannot be believed, or differs from the database's.
    Clock,
    CircuitOpen,
    EndpointDisabled,
    /// The server's own settings do not let anything be sent there.
    EndpointBlocked,
    /// Attempts fail, and its circuit is closed.
    EndpointFailing,
    /// Something is due, nothing holds it, and it has waited for more than a minute.
    OldestDue,
    /// At least twice as many in the last hour as in the hour before.
    DeadLettersGrowing,
    /// Given up within a day: one entry for each endpoint, reason and status.
    DeadLetters,
}

/// One thing that needs a person.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Attention)]
pub(crate) struct AttentionView {
    kind: Kind,
    tenant: Option<String>,
    endpoint: Option<String>,
    endpoint_url: Option<String>,
    /// For dead letters a `dead_reason`; else what went wrong, in words.
    reason: Option<String>,
    status_code: Option<u16>,
    /// How many deliveries it concerns, of what waits at most 1,000 in each queue of an endpoint; `null` where that is not counted.
    count: Option<u64>,
    #[schema(format = DateTime)]
    first_seen: Option<String>,
    #[schema(format = DateTime)]
    last_seen: Option<String>,
    /// One of them.
    delivery: Option<String>,
}

impl AttentionView {
    fn new(kind: Kind) -> AttentionView {
        AttentionView {
            kind,
            tenant: None,
            endpoint: None,
            endpoint_url: None,
            reason: None,
            status_code: None,
            count: None,
            first_seen: None,
            last_seen: None,
            delivery: None,
        }
    }

    fn of_endpoint(kind: Kind, stored: &StoredEndpoint) -> AttentionView {
        AttentionView {
            tenant: Some(stored.endpoint.tenant.to_string()),
            endpoint: Some(stored.endpoint.id.to_string()),
            endpoint_url: Some(stored.endpoint.url.clone()),
            ..AttentionView::new(kind)
        }
    }
}

/// What was found last, of all tenants and of each.
#[derive(Default, Debug)]
pub(crate) struct Found(tokio::sync::Mutex<Kept>);

type Kept = HashMap<Option<TenantId>, (Timestamp, Vec<AttentionView>)>;

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    let asked = call.query.tenant()?;
    let Ok(tenant) = call.caller.narrowed_to(asked) else { return Ok(call.list(LIST, Rows::<AttentionView>::none())) };
    let is_operator = call.caller.tenant.is_none() && tenant.is_none();
    let mut kept = call.app.attention.0.lock().await;
    let now = call.app.store.now();
    kept.retain(|_, (at, _)| now < *at + KEPT_FOR);
    if let Some((_, found)) = kept.get(&tenant) {
        return Ok(call.list(LIST, Rows::new(found.clone(), None)));
    }
    let found = look(&call.app, tenant.clone(), is_operator, now).await?;
    if kept.len() < TENANTS_KEPT_MAX {
        kept.insert(tenant, (now, found.clone()));
    }
    drop(kept);
    Ok(call.list(LIST, Rows::new(found, None)))
}

async fn look(app: &App, tenant: Option<TenantId>, is_operator: bool, now: Timestamp) -> Result<Vec<AttentionView>, Problem> {
    let mut found = if is_operator { of_server(app).await? } else { vec![] };
    let query = DeliveryQuery { tenant: tenant.clone(), limit: DEAD_ROWS_MAX, ..DeliveryQuery::default() };
    let dead = app.store.dead_letters(query).await?.rows;
    let query = BacklogQuery {
        scope: tenant.clone().map_or(BacklogScope::All, BacklogScope::Tenant),
        now,
        lanes_max: LANES_MAX,
        rows_per_queue_max: ROWS_PER_QUEUE_MAX,
        rows_max: ROWS_MAX,
    };
    let backlog = app.store.backlog(query).await?.lanes;
    found.extend(of_endpoints(app, tenant.as_ref(), &backlog, &dead, now).await?);
    found.extend(oldest_due(app, &backlog, now).await?);
    found.extend(growing(app, tenant.as_ref(), now).await?);
    found.extend(dead_letters(&dead, now));
    Ok(found)
}

/// What concerns no tenant alone.
async fn of_server(app: &App) -> Result<Vec<AttentionView>, Problem> {
    let mut found = Vec::new();
    let mut add = |kind, reason: &str| found.push(AttentionView { reason: Some(reason.to_owned()), ..AttentionView::new(kind) });
    if let Some(stall) = app.options.metrics.as_ref().and_then(|metrics| metrics.liveness().stall()) {
        add(Kind::DeliveriesStalled, stall.in_words());
    }
    if app.store.nodes().await?.is_empty() {
        add(Kind::NoNode, "no node delivers");
    }
    let clock = app.store.clock_status();
    if clock.suspicion.is_some() {
        add(Kind::Clock, "the clock of this node has jumped ahead and is not believed");
    } else if clock.skew.is_some_and(|skew| skew > SKEW_MAX) {
        add(Kind::Clock, "the clocks of this node and of the database are more than 5 seconds apart");
    }
    Ok(found)
}

/// Open circuits, disabled, blocked and failing endpoints. A circuit can only be open, and an endpoint only fail, where something
/// waits or has died.
async fn of_endpoints(
    app: &App,
    tenant: Option<&TenantId>,
    backlog: &[LaneBacklog],
    dead: &[DeliveryRow],
    now: Timestamp,
) -> Result<Vec<AttentionView>, Problem> {
    let mut asked: Vec<EndpointId> = backlog.iter().map(|lane| lane.endpoint).collect();
    let mut known: HashSet<EndpointId> = asked.iter().copied().collect();
    let recent = dead.iter().filter(|row| died_at(row).is_some_and(|at| now.since(at) < RECENT));
    asked.extend(recent.map(|row| row.endpoint).filter(|endpoint| known.insert(*endpoint)).take(LANES_MAX));
    let observed = lanes(app, asked.clone()).await?;
    let query = EndpointQuery { tenant: tenant.cloned(), is_disabled: true, limit: OF_KIND_MAX, ..EndpointQuery::default() };
    let disabled = app.store.endpoints(query).await?;
    let is_disabled: HashSet<EndpointId> = disabled.iter().map(|stored| stored.endpoint.id).collect();
    let waiting: HashMap<EndpointId, u64> =
        backlog.iter().map(|lane| (lane.endpoint, lane.waiting.iter().map(|alike| alike.count).sum())).collect();
    let (mut open, mut blocked, mut failing) = (vec![], vec![], vec![]);
    for endpoint in asked.into_iter().filter(|endpoint| !is_disabled.contains(endpoint)) {
        let Some(lane) = observed.get(&endpoint) else { continue };
        let count = waiting.get(&endpoint).copied();
        if let Some(rule) = lane.blocked() {
            blocked.push((endpoint, count, None, Some(rule.to_owned())));
            continue;
        }
        match lane.breaker() {
            Breaker::Open { since, .. } | Breaker::HalfOpen { since, .. } => open.push((endpoint, count, Some(since), None)),
            Breaker::Closed { .. } => {
                if let (Some(since), Some(_)) = (lane.failing_since(), count) {
                    failing.push((endpoint, count, Some(since), None));
                }
            }
        }
    }
    let mut found = Vec::new();
    let mut samples = 0;
    for (kind, entries) in [(Kind::CircuitOpen, open), (Kind::EndpointBlocked, blocked), (Kind::EndpointFailing, failing)] {
        for (endpoint, count, since, reason) in entries.into_iter().take(OF_KIND_MAX) {
            let Some(stored) = app.store.endpoint(tenant.cloned(), endpoint).await?.filter(|stored| stored.deleted_at.is_none())
            else {
                continue;
            };
            let mut view = AttentionView {
                count,
                first_seen: since.map(Timestamp::to_rfc3339),
                reason,
                ..AttentionView::of_endpoint(kind, &stored)
            };
            if samples < SAMPLES_MAX {
                samples += 1;
                add_sample(app, endpoint, &mut view).await?;
            }
            found.push(view);
        }
    }
    for stored in &disabled {
        let view = AttentionView::of_endpoint(Kind::EndpointDisabled, stored);
        let count = waiting.get(&stored.endpoint.id).copied();
        found.push(AttentionView { count, first_seen: Some(stored.endpoint.updated_at.to_rfc3339()), ..view });
    }
    Ok(found)
}

/// How the last attempt of something that waits there has failed.
async fn add_sample(app: &App, endpoint: EndpointId, view: &mut AttentionView) -> Result<(), Problem> {
    let query =
        DeliveryQuery { endpoint: Some(endpoint), statuses: vec![StatusFilter::Waiting], limit: 100, ..DeliveryQuery::default() };
    let rows = app.store.deliveries(query).await?.rows;
    if let Some(row) = rows.iter().find(|row| row.last_attempt_at.is_some()).or(rows.first()) {
        view.delivery = Some(row.id.to_string());
        view.status_code = row.last_status_code;
        view.last_seen = row.last_attempt_at.map(Timestamp::to_rfc3339);
        view.reason = view.reason.take().or_else(|| row.last_error.clone());
    }
    Ok(())
}

/// The endpoint where something has waited longest although nothing holds it, if that is too long.
async fn oldest_due(app: &App, backlog: &[LaneBacklog], now: Timestamp) -> Result<Option<AttentionView>, Problem> {
    let oldest = |lane: &LaneBacklog| {
        let ready = lane.waiting.iter().filter(|alike| alike.is_due && !alike.is_tried && alike.is_head_of_key);
        ready.map(|alike| (alike.oldest, alike.class)).min_by_key(|(at, _)| *at)
    };
    let mut late: Vec<(Timestamp, Class, EndpointId)> = backlog
        .iter()
        .filter_map(|lane| oldest(lane).map(|(at, class)| (at, class, lane.endpoint)))
        .filter(|(at, ..)| now.since(*at) > DUE_MAX)
        .collect();
    late.sort_by_key(|(at, ..)| *at);
    late.truncate(SAMPLES_MAX);
    let observed = lanes(app, late.iter().map(|(.., endpoint)| *endpoint).collect()).await?;
    for (at, class, endpoint) in late {
        let Some(stored) = app.store.endpoint(None, endpoint).await?.filter(|stored| stored.deleted_at.is_none()) else { continue };
        if stored.endpoint.status != Status::Active || is_held(app, &stored, observed.get(&endpoint), class, now).await? {
            continue;
        }
        // What was to be delivered later has been due for less long than it is old.
        let query = DeliveryQuery {
            endpoint: Some(endpoint),
            statuses: vec![StatusFilter::Waiting],
            to: Some(at + DUE_MAX),
            limit: 1,
            ..DeliveryQuery::default()
        };
        let row = app.store.deliveries(query).await?.rows.into_iter().next();
        let due = row.as_ref().and_then(|row| row.state.due()).map_or(at, |due| due.max(at));
        if now.since(due) <= DUE_MAX {
            continue;
        }
        return Ok(Some(AttentionView {
            first_seen: Some(due.to_rfc3339()),
            delivery: row.map(|row| row.id.to_string()),
            ..AttentionView::of_endpoint(Kind::OldestDue, &stored)
        }));
    }
    Ok(None)
}

async fn is_held(
    app: &App,
    stored: &StoredEndpoint,
    observed: Option<&LaneStatus>,
    class: Class,
    now: Timestamp,
) -> Result<bool, Problem> {
    let tenant = app.store.tenant(stored.endpoint.tenant.clone()).await?.map(|stored| stored.tenant);
    let policies = in_force(&app.options.policies, tenant.as_ref().map(|tenant| &tenant.defaults), &stored.endpoint.policies);
    let unknown = LaneStatus::default();
    let facts = observed.unwrap_or(&unknown).lane_facts(stored.endpoint.status, &policies, tenant.as_ref());
    let is_quiet = facts.schedule.is_some_and(|schedule| matches!(schedule.at(now), Phase::Quiet { .. }));
    let row = RowFacts { is_due: true, is_tried: false, waits_in_quiet_hours: class == Class::Rest, is_head_of_key: true };
    Ok(Gates::of(now, &facts, is_quiet).hold(row).is_some())
}

/// By the counts per minute.
async fn growing(app: &App, tenant: Option<&TenantId>, now: Timestamp) -> Result<Option<AttentionView>, Problem> {
    let hour = Duration::from_hours(1);
    let from = now - hour * 2;
    let query = StatisticsQuery { tenant: tenant.cloned(), endpoint: None, from, to: now, step: hour };
    let (mut before, mut last) = (0, 0);
    for step in app.store.statistics(query).await? {
        *(if step.from < from + hour { &mut before } else { &mut last }) += step.counts.dead;
    }
    Ok((last >= GROWING_MIN && last >= before * 2).then(|| AttentionView {
        tenant: tenant.map(ToString::to_string),
        count: Some(last),
        first_seen: Some((now - hour).to_rfc3339()),
        ..AttentionView::new(Kind::DeadLettersGrowing)
    }))
}

fn died_at(row: &DeliveryRow) -> Option<Timestamp> {
    match row.state {
        State::Dead { at, .. } => Some(at),
        State::Waiting { .. } | State::Delivered { .. } | State::Cancelled { .. } => None,
    }
}

/// By endpoint, reason and status; those with the most first. Rows are newest first.
fn dead_letters(rows: &[DeliveryRow], now: Timestamp) -> Vec<AttentionView> {
    let mut groups: BTreeMap<(EndpointId, &'static str, Option<u16>), AttentionView> = BTreeMap::new();
    for row in rows {
        let State::Dead { at, reason } = row.state else { continue };
        if now.since(at) >= RECENT {
            continue;
        }
        let group = groups.entry((row.endpoint, reason.name(), row.last_status_code)).or_insert_with(|| AttentionView {
            tenant: Some(row.tenant.to_string()),
            endpoint: Some(row.endpoint.to_string()),
            endpoint_url: Some(row.endpoint_url.clone()),
            reason: Some(reason.name().to_owned()),
            status_code: row.last_status_code,
            count: Some(0),
            last_seen: Some(at.to_rfc3339()),
            delivery: Some(row.id.to_string()),
            ..AttentionView::new(Kind::DeadLetters)
        });
        group.count = group.count.map(|count| count + 1);
        group.first_seen = Some(at.to_rfc3339());
    }
    let mut groups: Vec<AttentionView> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups.truncate(OF_KIND_MAX);
    groups
}
