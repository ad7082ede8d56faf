//! `/v1/deliveries`: one event on its way to one endpoint, and every try of it.
//!
//! How a delivery stands is computed when it is read, from the row, its endpoint, and what the owner of the lane has shown of
//! it; nothing of that is stored.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use axum::response::Response;
use http::StatusCode;
use posthaste_core::admission::{DeliveryStatus, Facts, explain};
use posthaste_core::delivery::State;
use posthaste_core::endpoint::{Policies, Status};
use posthaste_core::estimate::{Queue, estimate};
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::tenant::Tenant;
use posthaste_core::text::Label;
use posthaste_core::time::{Timestamp, millis};
use posthaste_store::{
    AttemptRecord, BacklogQuery, BacklogScope, Command, CommandOutcome, Cursor, DeliveryQuery, DeliveryRow, EndpointVersion,
    EventRow, LaneBacklog, Page, PlaceQuery, StatusFilter,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::call::{Call, Rows, answer, ok};
use crate::endpoints::{PayloadFormatName, refused};
use crate::lane_status::{LaneStatus, lanes};
use crate::policies::in_force;
use crate::problem::Problem;
use crate::query::{HOLD_REASON, STATUS};

const LIST: &str = "deliveries";
const ATTEMPTS: &str = "attempts";

/// One event on its way to one endpoint.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Delivery)]
pub(crate) struct DeliveryView {
    pub(crate) id: String,
    event: String,
    endpoint: String,
    /// Where its last attempt was sent; without one, where the first would be sent now.
    endpoint_url: String,
    tenant: String,
    #[serde(rename = "type")]
    event_type: String,
    #[schema(value_type = String)]
    pub(crate) status: &'static str,
    #[schema(value_type = Option<String>)]
    pub(crate) hold_reason: Option<&'static str>,
    #[schema(value_type = Option<String>)]
    dead_reason: Option<&'static str>,
    #[schema(value_type = Option<String>)]
    cancel_reason: Option<&'static str>,
    pub(crate) attempt_count: u32,
    max_attempts: u32,
    #[schema(format = DateTime)]
    next_attempt_at: Option<String>,
    /// When its turn will come, judging by its place in the lane; not in lists.
    #[schema(format = DateTime)]
    estimated_at: Option<String>,
    #[schema(format = DateTime)]
    last_attempt_at: Option<String>,
    #[schema(format = DateTime)]
    delivered_at: Option<String>,
    #[schema(format = DateTime)]
    dead_at: Option<String>,
    #[schema(format = DateTime)]
    cancelled_at: Option<String>,
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    last_status_code: Option<u16>,
    last_error: Option<String>,
    replay_of: Option<String>,
    replay: Option<String>,
    replayed_as: Option<String>,
    ordering_key: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
}

/// One try.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attempt)]
pub(crate) struct AttemptView {
    id: String,
    /// `null` for a test-send.
    delivery: Option<String>,
    number: u32,
    #[schema(value_type = String)]
    outcome: &'static str,
    status_code: Option<u16>,
    /// From the start of the attempt to the response head or the failure.
    response_time_ms: u64,
    timings: TimingsView,
    timeout_ms: u64,
    response_preview: Option<String>,
    error: Option<String>,
    #[schema(format = DateTime)]
    attempted_at: String,
    /// The version of the endpoint that it was sent with; `null`, as the next three, for attempts from before versions were kept.
    endpoint_version: Option<u64>,
    /// Where it was sent.
    url: Option<String>,
    #[schema(value_type = Option<PayloadFormatName>)]
    payload_format: Option<PayloadFormatName>,
    /// The names of the endpoint's own headers. Their values are not kept.
    header_names: Option<Vec<String>>,
}

/// Where the time went; `null` for what did not happen.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Timings)]
#[expect(clippy::struct_field_names, reason = "the contract has the unit in each name")]
struct TimingsView {
    dns_ms: Option<u64>,
    connect_ms: Option<u64>,
    tls_ms: Option<u64>,
    first_byte_ms: Option<u64>,
}

impl AttemptView {
    pub(crate) fn show(delivery: Option<DeliveryId>, attempt: &AttemptRecord, sent_with: Option<EndpointVersion>) -> AttemptView {
        AttemptView {
            id: attempt.id.to_string(),
            delivery: delivery.map(|delivery| delivery.to_string()),
            number: attempt.number,
            outcome: attempt.outcome.name(),
            status_code: attempt.outcome.status_code(),
            response_time_ms: millis(attempt.response_time),
            timings: TimingsView {
                dns_ms: attempt.timings.dns.map(millis),
                connect_ms: attempt.timings.connect.map(millis),
                tls_ms: attempt.timings.tls.map(millis),
                first_byte_ms: attempt.timings.first_byte.map(millis),
            },
            timeout_ms: millis(attempt.timeout),
            response_preview: attempt.preview.clone(),
            error: attempt.error.clone(),
            attempted_at: attempt.attempted_at.to_rfc3339(),
            endpoint_version: attempt.endpoint_version,
            url: sent_with.as_ref().map(|version| version.url.clone()),
            payload_format: sent_with.as_ref().map(|version| PayloadFormatName::of(version.payload_format)),
            header_names: sent_with.and_then(|version| version.header_names),
        }
    }
}

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    page(&call, LIST, false).await
}

/// A page of deliveries or of dead letters, narrowed by the same filters.
pub(crate) async fn page(call: &Call, list: &str, is_dead: bool) -> Result<Response, Problem> {
    let query = &call.query;
    let statuses = query.words(&STATUS)?;
    let labels = query.labels()?;
    let hold_reason = query.word(&HOLD_REASON)?;
    let wanted = DeliveryQuery {
        tenant: None,
        endpoint: query.endpoint()?,
        event: query.event()?,
        statuses: match hold_reason {
            Some(_) => vec![StatusFilter::Waiting],
            None => statuses.iter().map(|status| stored_as(status)).collect(),
        },
        event_types: query.event_types()?,
        from: query.range()?.0,
        to: query.range()?.1,
        before: call.cursor(list, |position| position.parse::<Cursor>().ok())?,
        limit: query.limit()?,
    };
    let Ok(tenant) = call.caller.narrowed_to(query.tenant()?) else { return Ok(call.list(list, Rows::<DeliveryView>::none())) };
    // Rows are found by their endpoint: of another tenant's endpoint not even their number is looked at.
    if let (Some(_), Some(endpoint)) = (&tenant, wanted.endpoint)
        && call.app.store.endpoint(tenant.clone(), endpoint).await?.is_none()
    {
        return Ok(call.list(list, Rows::<DeliveryView>::none()));
    }
    let wanted = DeliveryQuery { tenant, ..wanted };
    let Page { rows, next } =
        if is_dead { call.app.store.dead_letters(wanted).await? } else { call.app.store.deliveries(wanted).await? };
    let rows = with_labels(&call.app, rows, &labels).await?;
    let contexts = DeliveryContexts::of(&call.app, &rows).await?;
    // What is computed is judged row by row: a page may be short while there is a next one.
    let covers = |view: &DeliveryView| {
        (statuses.is_empty() || statuses.contains(&view.status))
            && hold_reason.is_none_or(|wanted| view.hold_reason == Some(wanted))
    };
    let views = rows.iter().map(|row| contexts.view(&call.app, row)).filter(covers).collect();
    Ok(call.list(list, Rows::new(views, next.map(|next| next.to_string()))))
}

/// What the store knows of a status; the rest is computed.
fn stored_as(status: &str) -> StatusFilter {
    match status {
        "delivered" => StatusFilter::Delivered,
        "dead" => StatusFilter::Dead,
        "cancelled" => StatusFilter::Cancelled,
        _ => StatusFilter::Waiting,
    }
}

/// The deliveries of a page whose event has all of these labels. Labels are kept with the event: each is read once.
async fn with_labels(app: &App, rows: Vec<DeliveryRow>, labels: &[Label]) -> Result<Vec<DeliveryRow>, Problem> {
    if labels.is_empty() {
        return Ok(rows);
    }
    let mut events = HashMap::new();
    let mut found = Vec::new();
    for row in rows {
        let key = (row.tenant.clone(), row.event.clone());
        let known: Option<bool> = events.get(&key).copied();
        let has_them = if let Some(known) = known {
            known
        } else {
            let event = app.store.event(Some(row.tenant.clone()), row.event.clone()).await?;
            let has = |event: EventRow| labels.iter().all(|wanted| event.labels.iter().any(|label| label == wanted));
            let has_them = event.is_some_and(has);
            events.insert(key, has_them);
            has_them
        };
        if has_them {
            found.push(row);
        }
    }
    Ok(found)
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    let row = find(&call).await?;
    Ok(ok(&shown(&call.app, &row).await?))
}

pub(crate) async fn attempts(call: Call) -> Result<Response, Problem> {
    let limit = call.query.limit()?;
    let before = call.cursor(ATTEMPTS, |position| position.parse::<u32>().ok())?;
    let row = find(&call).await?;
    let mut attempts = call.app.store.attempts(row.id).await?;
    // Newest first, as in every list.
    attempts.reverse();
    attempts.retain(|attempt| before.is_none_or(|before| attempt.number < before));
    let versions = versions_of(&call, row.endpoint, attempts.iter().take(limit)).await?;
    let view = |attempt: &AttemptRecord| {
        let sent_with = attempt.endpoint_version.and_then(|version| versions.get(&version).cloned());
        AttemptView::show(Some(row.id), attempt, sent_with)
    };
    Ok(call.list(ATTEMPTS, Rows::cut(attempts, limit, |attempt| attempt.number.to_string(), view)))
}

/// What the endpoint was when these attempts were sent, by version.
pub(crate) async fn versions_of(
    call: &Call,
    endpoint: EndpointId,
    attempts: impl Iterator<Item = &AttemptRecord>,
) -> Result<BTreeMap<u64, EndpointVersion>, Problem> {
    let versions: BTreeSet<u64> = attempts.filter_map(|attempt| attempt.endpoint_version).collect();
    if versions.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found = call.app.store.endpoint_versions(endpoint, versions.into_iter().collect()).await?;
    Ok(found.into_iter().map(|version| (version.version, version)).collect())
}

pub(crate) async fn retry(call: Call) -> Result<Response, Problem> {
    let call = call.without_body().await?;
    let row = find(&call).await?;
    match row.state {
        State::Waiting { .. } => send_now(&call, &row).await,
        State::Delivered { .. } | State::Dead { .. } | State::Cancelled { .. } => redeliver(&call, &row).await,
    }
}

/// One that still waits is due now; no second row is made.
async fn send_now(call: &Call, row: &DeliveryRow) -> Result<Response, Problem> {
    let audit = call.audit("delivery.retry", &row.id, Some(&row.tenant));
    match call.app.store.command(row.partition, Command::SendNow { delivery: row.id, audit }).await? {
        CommandOutcome::Done => {
            let row = call.app.store.delivery(None, row.id).await?.ok_or_else(Problem::not_found)?;
            Ok(answer(StatusCode::ACCEPTED, &shown(&call.app, &row).await?))
        }
        CommandOutcome::InFlight => Err(Problem::conflict("It is being delivered at this moment.")),
        // It has ended between our look and the owner's: then it is made again.
        CommandOutcome::HasEnded => {
            let row = call.app.store.delivery(None, row.id).await?.ok_or_else(Problem::not_found)?;
            redeliver(call, &row).await
        }
        CommandOutcome::NotFound => Err(Problem::not_found()),
        CommandOutcome::NotBefore(_) | CommandOutcome::Tested(_) => {
            Err(Problem::unavailable("The owner of the delivery could not do that now."))
        }
    }
}

/// A new delivery of the same event.
pub(crate) async fn redeliver(call: &Call, row: &DeliveryRow) -> Result<Response, Problem> {
    let audit = call.audit("delivery.retry", &row.id, Some(&row.tenant));
    let new = call.app.store.redeliver(row.id, audit).await?.map_err(refused)?;
    if let Some(metrics) = &call.app.options.metrics {
        metrics.publishing().retry_requested();
    }
    Ok(answer(StatusCode::ACCEPTED, &shown(&call.app, &new).await?))
}

pub(crate) async fn cancel(call: Call) -> Result<Response, Problem> {
    let call = call.without_body().await?;
    let row = find(&call).await?;
    if let State::Cancelled { .. } = row.state {
        return Ok(ok(&shown(&call.app, &row).await?));
    }
    let audit = call.audit("delivery.cancel", &row.id, Some(&row.tenant));
    match call.app.store.command(row.partition, Command::CancelDelivery { delivery: row.id, audit }).await? {
        CommandOutcome::Done => {
            let row = call.app.store.delivery(None, row.id).await?.ok_or_else(Problem::not_found)?;
            Ok(ok(&shown(&call.app, &row).await?))
        }
        CommandOutcome::InFlight => Err(Problem::conflict("It is being delivered at this moment.")),
        CommandOutcome::HasEnded => Err(Problem::conflict("It has ended already.")),
        CommandOutcome::NotFound => Err(Problem::not_found()),
        CommandOutcome::NotBefore(_) | CommandOutcome::Tested(_) => {
            Err(Problem::unavailable("The owner of the delivery could not do that now."))
        }
    }
}

/// The delivery that the address names, if it is there for this caller.
pub(crate) async fn find(call: &Call) -> Result<DeliveryRow, Problem> {
    let id = DeliveryId::parse(&call.name).map_err(|_| Problem::not_found())?;
    call.app.store.delivery(call.caller.tenant.clone(), id).await?.ok_or_else(Problem::not_found)
}

/// One delivery as it stands, with an estimate of its turn.
pub(crate) async fn shown(app: &App, row: &DeliveryRow) -> Result<DeliveryView, Problem> {
    let contexts = DeliveryContexts::of(app, std::slice::from_ref(row)).await?;
    let mut view = contexts.view(app, row);
    if view.next_attempt_at.is_some() {
        view.estimated_at = estimated_at(app, &contexts, row).await?.map(Timestamp::to_rfc3339);
    }
    Ok(view)
}

/// How many rows of each queue of a lane are counted to say whose turn comes when.
const PLACES_MAX: usize = 200_000;
/// Endpoints of a tenant that take turns with one of them.
const NEIGHBOURS_MAX: usize = 1_000;

/// When its turn comes, judging by the holds that are known and by its place; `None` if that cannot be said.
async fn estimated_at(app: &App, contexts: &DeliveryContexts, row: &DeliveryRow) -> Result<Option<Timestamp>, Problem> {
    let now = app.store.now();
    let Some(context) = contexts.endpoints.get(&row.endpoint) else { return Ok(None) };
    let tenant = contexts.tenants.get(&row.tenant).and_then(Option::as_ref);
    let mut facts = contexts.facts(row, context);
    let (of_lane, of_tenant) = (
        context.policies.rate_limit.map(|limit| (limit, context.observed.bucket())),
        tenant.and_then(|tenant| tenant.rate_limit).map(|limit| (limit, context.observed.tenant_bucket())),
    );
    // Tokens are waited for from when nothing else holds it.
    (facts.lane.rate_limit, facts.lane.tenant_rate_limit) = (None, None);
    let from = match explain(now, &facts) {
        DeliveryStatus::Pending => now,
        DeliveryStatus::Held { until: Some(until), .. } => until,
        DeliveryStatus::Held { until: None, .. }
        | DeliveryStatus::Delivering
        | DeliveryStatus::Delivered { .. }
        | DeliveryStatus::Dead { .. }
        | DeliveryStatus::Cancelled { .. } => return Ok(None),
    };
    let schedule = facts.lane.schedule.filter(|schedule| schedule.holds(&row.event_type, row.is_priority));
    if of_lane.is_none() && of_tenant.is_none() {
        return Ok(estimate(from, vec![], schedule));
    }
    let query =
        PlaceQuery { endpoint: row.endpoint, older_than: (row.timestamp, row.seq), due_by: from, rows_per_queue_max: PLACES_MAX };
    let Some(ahead) = app.store.count_ahead(query).await? else { return Ok(None) };
    let place = ahead + 1;
    let mut queues = Vec::new();
    if let Some((limit, bucket)) = of_lane {
        queues.push(Queue { limit, bucket, place });
    }
    if let Some((limit, bucket)) = of_tenant {
        let neighbours = ahead_of_neighbours(app, row, from, place).await?;
        queues.push(Queue { limit, bucket, place: place + neighbours });
    }
    Ok(estimate(from, queues, schedule))
}

/// Endpoints of a tenant take turns: by the time of the n-th turn of one, each other one has had n, or as many as it has rows.
async fn ahead_of_neighbours(app: &App, row: &DeliveryRow, due_by: Timestamp, place: u64) -> Result<u64, Problem> {
    let places = usize::try_from(place).unwrap_or(PLACES_MAX).min(PLACES_MAX);
    let query = BacklogQuery {
        scope: BacklogScope::Tenant(row.tenant.clone()),
        now: due_by,
        lanes_max: NEIGHBOURS_MAX,
        rows_per_queue_max: places,
        rows_max: PLACES_MAX,
    };
    let lanes = app.store.backlog(query).await?.lanes;
    let due = |lane: &LaneBacklog| lane.waiting.iter().filter(|alike| alike.is_due).map(|alike| alike.count).sum::<u64>();
    Ok(lanes.iter().filter(|lane| lane.endpoint != row.endpoint).map(|lane| due(lane).min(place)).sum())
}

/// What the deliveries of a page have around them: their endpoints and tenants, each read once.
#[derive(Debug)]
pub(crate) struct DeliveryContexts {
    endpoints: HashMap<EndpointId, DeliveryContext>,
    tenants: HashMap<TenantId, Option<Tenant>>,
}

#[derive(Debug)]
struct DeliveryContext {
    status: Status,
    policies: Policies,
    observed: LaneStatus,
}

impl DeliveryContexts {
    pub(crate) async fn of(app: &App, rows: &[DeliveryRow]) -> Result<DeliveryContexts, Problem> {
        let mut tenants: HashMap<TenantId, Option<Tenant>> = HashMap::new();
        let mut endpoints: HashMap<EndpointId, DeliveryContext> = HashMap::new();
        let mut ids: Vec<EndpointId> = rows.iter().map(|row| row.endpoint).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut observed = lanes(app, ids).await?;
        for row in rows {
            if !tenants.contains_key(&row.tenant) {
                let tenant = readable(app.store.tenant(row.tenant.clone()).await)?.flatten().map(|stored| stored.tenant);
                tenants.insert(row.tenant.clone(), tenant);
            }
            if endpoints.contains_key(&row.endpoint) {
                continue;
            }
            let observed = observed.remove(&row.endpoint).unwrap_or_default();
            let context = match readable(app.store.endpoint(None, row.endpoint).await)? {
                Some(None) => continue,
                Some(Some(stored)) => {
                    let defaults = tenants.get(&row.tenant).and_then(Option::as_ref).map(|tenant| &tenant.defaults);
                    let policies = in_force(&app.options.policies, defaults, &stored.endpoint.policies);
                    DeliveryContext { status: stored.endpoint.status, policies, observed }
                }
                // Its deliveries can still be read, and its owner says why they wait.
                None => DeliveryContext { status: Status::Active, policies: app.options.policies.clone(), observed },
            };
            endpoints.insert(row.endpoint, context);
        }
        Ok(DeliveryContexts { endpoints, tenants })
    }

    fn facts<'a>(&self, row: &'a DeliveryRow, context: &'a DeliveryContext) -> Facts<'a> {
        let tenant = self.tenants.get(&row.tenant).and_then(Option::as_ref);
        Facts {
            state: row.state,
            attempts: row.attempts,
            is_in_flight: row.state.due().is_some_and(|due| context.observed.is_in_flight(row.id, due)),
            event_type: &row.event_type,
            is_priority: row.is_priority,
            is_head_of_key: row.is_head_of_key,
            lane: context.observed.lane_facts(context.status, &context.policies, tenant),
        }
    }

    pub(crate) fn view(&self, app: &App, row: &DeliveryRow) -> DeliveryView {
        let unknown =
            DeliveryContext { status: Status::Active, policies: app.options.policies.clone(), observed: LaneStatus::default() };
        let context = self.endpoints.get(&row.endpoint).unwrap_or(&unknown);
        let mut view = stand(row, explain(app.store.now(), &self.facts(row, context)), context.policies.retry.max_attempts());
        if let (Some("blocked"), Some(cause)) = (view.hold_reason, context.observed.blocked()) {
            view.last_error = Some(cause.to_owned());
        }
        view
    }
}

/// `None` for what is stored and cannot be read: one such row must not hide the others.
pub(crate) fn readable<T>(read: Result<T, posthaste_store::Error>) -> Result<Option<T>, posthaste_store::Error> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(posthaste_store::Error::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn stand(row: &DeliveryRow, standing: DeliveryStatus, max_attempts: u32) -> DeliveryView {
    let mut view = DeliveryView {
        id: row.id.to_string(),
        event: row.event.to_string(),
        endpoint: row.endpoint.to_string(),
        endpoint_url: row.endpoint_url.clone(),
        tenant: row.tenant.to_string(),
        event_type: row.event_type.to_string(),
        status: "pending",
        hold_reason: None,
        dead_reason: None,
        cancel_reason: None,
        attempt_count: row.attempts,
        max_attempts,
        next_attempt_at: None,
        estimated_at: None,
        last_attempt_at: row.last_attempt_at.map(Timestamp::to_rfc3339),
        delivered_at: None,
        dead_at: None,
        cancelled_at: None,
        expires_at: row.expires_at.map(Timestamp::to_rfc3339),
        last_status_code: row.last_status_code,
        last_error: row.last_error.clone(),
        replay_of: row.replay_of.map(|id| id.to_string()),
        replay: row.replay.map(|id| id.to_string()),
        replayed_as: row.replayed_as.map(|id| id.to_string()),
        ordering_key: row.ordering_key.as_ref().map(ToString::to_string),
        created_at: row.created_at.to_rfc3339(),
    };
    match standing {
        DeliveryStatus::Pending => {
            if let State::Waiting { due } = row.state {
                view.next_attempt_at = Some(due.to_rfc3339());
            }
        }
        DeliveryStatus::Delivering => view.status = "delivering",
        DeliveryStatus::Held { reason, until } => {
            view.status = "scheduled";
            view.hold_reason = Some(reason.name());
            view.next_attempt_at = until.map(Timestamp::to_rfc3339);
        }
        DeliveryStatus::Delivered { at } => {
            view.status = "delivered";
            view.delivered_at = Some(at.to_rfc3339());
        }
        DeliveryStatus::Dead { at, reason } => {
            view.status = "dead";
            view.dead_reason = Some(reason.name());
            view.dead_at = Some(at.to_rfc3339());
        }
        DeliveryStatus::Cancelled { at, reason } => {
            view.status = "cancelled";
            view.cancel_reason = Some(reason.name());
            view.cancelled_at = Some(at.to_rfc3339());
        }
    }
    view
}
