//! `/v1/stats` and `/v1/endpoints/{id}/stats`: how deliveries have fared, in steps of time.
//!
//! Counts are kept per minute for a week and a day; nothing here reads attempts.

use std::time::Duration;

use axum::response::Response;
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::latency::LatencySketch;
use posthaste_core::time::{Timestamp, millis};
use posthaste_store::{Counts, MINUTES_KEPT, StatisticsQuery, StatisticsStep};
use serde::Serialize;
use utoipa::ToSchema;

use crate::backlog::BacklogView;
use crate::call::{Call, ok};
use crate::endpoints::find;
use crate::lane_status::HealthView;
use crate::problem::Problem;
use crate::query::{FROM, TO};

/// A day unless said.
const RANGE_DEFAULT: Duration = Duration::from_hours(24);
/// What a chart can show.
const STEPS_MAX: u128 = 300;
const STEPS: [Duration; 6] = [
    Duration::from_mins(1),
    Duration::from_mins(5),
    Duration::from_mins(15),
    Duration::from_hours(1),
    Duration::from_hours(6),
    Duration::from_hours(24),
];

/// How deliveries have fared.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Stats {
    #[schema(format = DateTime)]
    from: String,
    #[schema(format = DateTime)]
    to: String,
    total: Tally,
    step_seconds: u64,
    /// The oldest first; without those in which nothing happened.
    steps: Vec<Step>,
}

/// What the dashboard's first page shows.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Overview {
    #[serde(flatten)]
    stats: Stats,
    backlog: BacklogView,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EndpointStats {
    endpoint: String,
    health: HealthView,
    #[serde(flatten)]
    stats: Stats,
}

#[derive(Debug, Serialize, ToSchema)]
struct Step {
    #[schema(format = DateTime)]
    from: String,
    #[serde(flatten)]
    tally: Tally,
}

#[derive(Debug, Serialize, ToSchema)]
struct Tally {
    attempts: u64,
    successes: u64,
    timeouts: u64,
    delivered: u64,
    dead: u64,
    retried: u64,
    /// Of successful attempts; `null` if there were none.
    p50_ms: Option<u64>,
    p95_ms: Option<u64>,
    p99_ms: Option<u64>,
}

pub(crate) async fn overview(call: Call) -> Result<Response, Problem> {
    let asked = call.query.tenant()?;
    let range = Range::read(&call)?;
    // Of somebody else's tenant there is nothing to count.
    let Ok(tenant) = call.caller.narrowed_to(asked) else {
        return Ok(ok(&Overview { stats: range.show(&[]), backlog: BacklogView::empty() }));
    };
    let backlog = call.app.backlogs.read(&call.app, tenant.clone()).await?;
    Ok(ok(&Overview { stats: range.ask(&call, tenant, None).await?, backlog }))
}

pub(crate) async fn of_endpoint(call: Call) -> Result<Response, Problem> {
    let found = find(&call).await?;
    let id = found.stored.endpoint.id;
    let stats = Range::read(&call)?.ask(&call, None, Some(id)).await?;
    Ok(ok(&EndpointStats { endpoint: id.to_string(), health: found.observed.health(found.stored.endpoint.status), stats }))
}

struct Range {
    from: Timestamp,
    to: Timestamp,
    step: Duration,
}

impl Range {
    fn read(call: &Call) -> Result<Range, Problem> {
        let to = call.query.time(&TO)?.unwrap_or_else(|| call.app.store.now());
        let from = call.query.time(&FROM)?.unwrap_or(to - RANGE_DEFAULT);
        if to <= from {
            return Err(Problem::invalid("to", "is not after from"));
        }
        let length = to.since(from);
        if length > MINUTES_KEPT {
            return Err(Problem::invalid("from", "at most 8 days before `to`: counts are kept no longer"));
        }
        let fits = |step: &&Duration| length.as_millis() <= step.as_millis() * STEPS_MAX;
        let step = STEPS.iter().find(fits).copied().unwrap_or(Duration::from_hours(24));
        Ok(Range { from, to, step })
    }

    async fn ask(&self, call: &Call, tenant: Option<TenantId>, endpoint: Option<EndpointId>) -> Result<Stats, Problem> {
        let query = StatisticsQuery { tenant, endpoint, from: self.from, to: self.to, step: self.step };
        Ok(self.show(&call.app.store.statistics(query).await?))
    }

    fn show(&self, steps: &[StatisticsStep]) -> Stats {
        let mut total = Counts::default();
        let mut successes = LatencySketch::default();
        for step in steps {
            total.attempts += step.counts.attempts;
            total.successes += step.counts.successes;
            total.timeouts += step.counts.timeouts;
            total.delivered += step.counts.delivered;
            total.dead += step.counts.dead;
            total.retried += step.counts.retried;
            successes.merge(&step.successes);
        }
        let step = |step: &StatisticsStep| Step { from: step.from.to_rfc3339(), tally: tally(step.counts, &step.successes) };
        Stats {
            from: self.from.to_rfc3339(),
            to: self.to.to_rfc3339(),
            total: tally(total, &successes),
            step_seconds: self.step.as_secs(),
            steps: steps.iter().map(step).collect(),
        }
    }
}

fn tally(counts: Counts, successes: &LatencySketch) -> Tally {
    let Counts { attempts, successes: succeeded, timeouts, delivered, dead, retried } = counts;
    let percentile = |percent| successes.percentile(percent).map(millis);
    Tally {
        attempts,
        successes: succeeded,
        timeouts,
        delivered,
        dead,
        retried,
        p50_ms: percentile(50),
        p95_ms: percentile(95),
        p99_ms: percentile(99),
    }
}
