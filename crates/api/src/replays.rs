//! `/v1/replays`: sending again what was sent, or missed, before.

use axum::response::Response;
use http::StatusCode;
use posthaste_core::endpoint::Status;
use posthaste_core::id::{DeliveryId, EndpointId, ReplayId, TenantId};
use posthaste_core::time::Timestamp;
use posthaste_store::{NewReplay, ReplayFilter, ReplayRow, Skipped, StatusFilter};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::call::{Call, Rows, answer, ok, with_change};
use crate::endpoints::find_stored;
use crate::policies::patterns;
use crate::problem::Problem;

const LIST: &str = "replays";
const REASON_CHARACTERS_MAX: usize = 1024;
/// More are a range.
const IDS_MAX: usize = 1000;

/// Which deliveries are made again. At least one filter, and a reason.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewReplay)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewReplayBody {
    tenant: Option<String>,
    endpoint: Option<String>,
    #[schema(max_items = 1000)]
    event_types: Option<Vec<String>>,
    /// Of what has ended; left empty, all of it.
    status: Option<Vec<EndedStatus>>,
    /// Of deliveries.
    #[schema(max_items = 1000)]
    ids: Option<Vec<String>>,
    /// Events that match `endpoint` now and never had a delivery there.
    missing: Option<bool>,
    #[schema(format = DateTime)]
    from: Option<String>,
    #[schema(format = DateTime)]
    to: Option<String>,
    #[schema(max_length = 1024)]
    reason: Option<String>,
    #[schema(minimum = 1, maximum = 600)]
    rate_per_minute: Option<u32>,
    /// Count only.
    dry_run: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum EndedStatus {
    Delivered,
    Dead,
    Cancelled,
}

impl EndedStatus {
    fn filter(self) -> StatusFilter {
        match self {
            EndedStatus::Delivered => StatusFilter::Delivered,
            EndedStatus::Dead => StatusFilter::Dead,
            EndedStatus::Cancelled => StatusFilter::Cancelled,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Replay)]
pub(crate) struct ReplayView {
    id: String,
    #[schema(value_type = String)]
    state: &'static str,
    /// Deliveries that the filter covered when the replay was requested: created + skipped + remaining, at any time.
    matched: u64,
    /// Deliveries made so far.
    created: u64,
    skipped: SkippedView,
    /// Not looked at yet; of a cancelled replay, never.
    remaining: u64,
    tenant: Option<String>,
    endpoint: Option<String>,
    event_types: Vec<String>,
    #[schema(value_type = Vec<String>)]
    status: Vec<&'static str>,
    ids: Vec<String>,
    missing: bool,
    #[schema(format = DateTime)]
    from: Option<String>,
    #[schema(format = DateTime)]
    to: Option<String>,
    reason: String,
    rate_per_minute: u32,
    requested_by: String,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    ended_at: Option<String>,
}

/// Matching deliveries that were not made again, by reason.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ReplaySkipped)]
pub(crate) struct SkippedView {
    /// The payload is gone: erased, damaged, or past its retention.
    erased: u64,
    /// Another replay or a retry made them again first.
    already_redelivered: u64,
    /// The endpoint was deleted or disabled, or no longer subscribes to the type.
    unsubscribed: u64,
}

impl From<Skipped> for SkippedView {
    fn from(Skipped { erased, already_redelivered, unsubscribed }: Skipped) -> SkippedView {
        SkippedView { erased, already_redelivered, unsubscribed }
    }
}

/// What a replay would do if it were requested now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DryRun {
    matched: u64,
    skipped: SkippedView,
    /// How many deliveries it would make.
    remaining: u64,
}

pub(crate) async fn create(call: Call) -> Result<Response, Problem> {
    let key = call.idempotency_key()?;
    let (call, body) = call.body().await?;
    let given: NewReplayBody = body.parse()?;
    let filter = given.filter(&call).await?;
    let reason = given.reason.as_deref().unwrap_or_default().trim();
    if reason.is_empty() || reason.chars().count() > REASON_CHARACTERS_MAX || reason.chars().any(char::is_control) {
        return Err(Problem::invalid("reason", "1 to 1,024 characters without control characters: why it is sent again"));
    }
    let rate_max = call.app.options.replays_per_minute_max;
    let rate_per_minute = given.rate_per_minute.unwrap_or(rate_max);
    if !(1..=rate_max).contains(&rate_per_minute) {
        return Err(Problem::invalid("rate_per_minute", format!("1 to {rate_max}")));
    }
    if given.dry_run == Some(true) {
        let count = call.app.store.count_replay(filter).await?;
        return Ok(ok(&DryRun { matched: count.matched, skipped: count.skipped.into(), remaining: count.remaining() }));
    }
    let id = ReplayId::from_unique(call.app.store.unique());
    let new = NewReplay {
        id,
        filter,
        reason: reason.to_owned(),
        requested_by: call.caller.actor.to_string(),
        rate_per_minute,
        // Keys of different tenants never meet.
        idempotency_key: key.map(|key| format!("{}/{key}", call.caller.tenant.as_ref().map_or("*", TenantId::as_str))),
    };
    let audit = call.audit("replay.create", &id, new.filter.tenant.as_ref());
    let audit = with_change(audit, None, Some(&json!({"reason": new.reason, "rate_per_minute": rate_per_minute})));
    let row = call.app.store.create_replay(new.clone(), audit).await?;
    let is_the_same = row.filter == new.filter && row.reason == new.reason && row.rate_per_minute == new.rate_per_minute;
    if !is_the_same {
        return Err(Problem::conflict("The same idempotency key was used before, for another replay."));
    }
    // The same key again is no new wish.
    if let Some(metrics) = call.app.options.metrics.as_ref().filter(|_| row.id == id) {
        metrics.publishing().replay_requested();
    }
    Ok(answer(StatusCode::ACCEPTED, &view(&row)))
}

impl NewReplayBody {
    async fn filter(&self, call: &Call) -> Result<ReplayFilter, Problem> {
        let time = |field: &str, text: &Option<String>| {
            text.as_deref().map(Timestamp::parse).transpose().map_err(|error| Problem::invalid(field, error))
        };
        let (from, to) = (time("from", &self.from)?, time("to", &self.to)?);
        let now = call.app.store.now();
        if from.is_some_and(|from| now < from) {
            return Err(Problem::invalid("from", "is in the future, where nothing has been sent yet"));
        }
        if let (Some(from), Some(to)) = (from, to)
            && to <= from
        {
            return Err(Problem::invalid("to", "is not after from"));
        }
        if self.ids.as_ref().is_some_and(|ids| ids.len() > IDS_MAX) {
            return Err(Problem::invalid("ids", "at most 1,000 ids; more are a range"));
        }
        let id = |(index, text): (usize, &String)| {
            DeliveryId::parse(text).map_err(|error| Problem::invalid(format!("ids[{index}]"), error))
        };
        let ids: Vec<DeliveryId> = self.ids.iter().flatten().enumerate().map(id).collect::<Result<_, _>>()?;
        let endpoint = self.endpoint.as_deref().map(EndpointId::parse).transpose();
        let endpoint = endpoint.map_err(|error| Problem::invalid("endpoint", error))?;
        let missing = self.missing.unwrap_or(false);
        if missing && endpoint.is_none() {
            return Err(Problem::invalid("endpoint", "what was missed was missed by an endpoint"));
        }
        if missing && (!ids.is_empty() || self.status.as_ref().is_some_and(|status| !status.is_empty())) {
            return Err(Problem::invalid("missing", "what never had a delivery has no delivery's id or status"));
        }
        let event_types = patterns("event_types", self.event_types.as_deref().unwrap_or_default())?;
        let status: Vec<StatusFilter> = self.status.iter().flatten().map(|status| status.filter()).collect();
        let is_narrowed = self.tenant.is_some()
            || endpoint.is_some()
            || !event_types.is_empty()
            || !status.is_empty()
            || !ids.is_empty()
            || from.is_some()
            || to.is_some();
        if !is_narrowed {
            return Err(Problem::invalid("", "at least one of tenant, endpoint, event_types, status, ids, from, to"));
        }
        let mut tenant = match (&self.tenant, &call.caller.tenant) {
            (None, own) => own.clone(),
            (Some(named), _) => Some(call.caller.tenant_for(Some(named))?),
        };
        if let Some(endpoint) = endpoint {
            let stored = find_stored(call, endpoint).await?;
            let of = &stored.endpoint.tenant;
            if tenant.as_ref().is_some_and(|tenant| tenant != of) {
                return Err(Problem::not_found());
            }
            if stored.endpoint.status == Status::Disabled {
                return Err(Problem::conflict("The endpoint is disabled. Enable it first."));
            }
            tenant = Some(of.clone());
        }
        Ok(ReplayFilter { tenant, endpoint, event_types, status, ids, missing, from, to })
    }
}

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    let limit = call.query.limit()?;
    let before = call.cursor(LIST, |position| ReplayId::parse(position).ok())?;
    let Ok(tenant) = call.caller.narrowed_to(call.query.tenant()?) else { return Ok(call.list(LIST, Rows::<ReplayView>::none())) };
    let rows = call.app.store.replays(tenant, before, limit + 1).await?;
    Ok(call.list(LIST, Rows::cut(rows, limit, |row: &ReplayRow| row.id.to_string(), view)))
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    Ok(ok(&view(&find(&call).await?)))
}

pub(crate) async fn cancel(call: Call) -> Result<Response, Problem> {
    let call = call.without_body().await?;
    let row = find(&call).await?;
    let audit = call.audit("replay.cancel", &row.id, row.filter.tenant.as_ref());
    let row = call.app.store.cancel_replay(row.id, audit).await?.ok_or_else(Problem::not_found)?;
    Ok(ok(&view(&row)))
}

async fn find(call: &Call) -> Result<ReplayRow, Problem> {
    let id = ReplayId::parse(&call.name).map_err(|_| Problem::not_found())?;
    call.app.store.replay(call.caller.tenant.clone(), id).await?.ok_or_else(Problem::not_found)
}

fn view(row: &ReplayRow) -> ReplayView {
    let filter = &row.filter;
    ReplayView {
        id: row.id.to_string(),
        state: row.state.name(),
        matched: row.matched,
        created: row.created,
        skipped: row.skipped.into(),
        remaining: row.remaining(),
        tenant: filter.tenant.as_ref().map(ToString::to_string),
        endpoint: filter.endpoint.map(|endpoint| endpoint.to_string()),
        event_types: filter.event_types.iter().map(ToString::to_string).collect(),
        status: filter.status.iter().map(|status| status.name()).collect(),
        ids: filter.ids.iter().map(ToString::to_string).collect(),
        missing: filter.missing,
        from: filter.from.map(Timestamp::to_rfc3339),
        to: filter.to.map(Timestamp::to_rfc3339),
        reason: row.reason.clone(),
        rate_per_minute: row.rate_per_minute,
        requested_by: row.requested_by.clone(),
        created_at: row.created_at.to_rfc3339(),
        ended_at: row.ended_at.map(Timestamp::to_rfc3339),
    }
}
