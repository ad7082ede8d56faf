//! The status of an endpoint's lane: circuit, learned timeout, health, deliveries in flight.
//!
//! The owner of a lane publishes it; on another node it is a few seconds old at most.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use posthaste_core::admission::LaneFacts;
use posthaste_core::bucket::Bucket;
use posthaste_core::circuit::Breaker;
use posthaste_core::endpoint::{Policies, Status};
use posthaste_core::health::Health;
use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::tenant::Tenant;
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::Adaptive;
use posthaste_store::{LaneSnapshot, LaneState, StatisticsQuery};
use serde::Serialize;
use utoipa::ToSchema;

use crate::deliveries::readable;
use crate::problem::Problem;
use crate::{App, hold};

/// The time that a health score looks back over.
const SCORE_OVER: Duration = Duration::from_hours(1);

/// The status of one endpoint's lane.
#[derive(Clone, Default, Debug)]
pub(crate) struct LaneStatus {
    lane: Option<LaneSnapshot>,
    attempts: u64,
    successes: u64,
}

/// How an endpoint is doing.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Health)]
pub(crate) struct HealthView {
    /// The share of successful attempts in the last hour, 0 to 100; 100 if there were none.
    score: u32,
    #[schema(value_type = String)]
    state: &'static str,
    #[schema(format = DateTime)]
    failing_since: Option<String>,
}

impl LaneStatus {
    pub(crate) fn breaker(&self) -> Breaker {
        self.lane.as_ref().map_or_else(Breaker::default, |lane| lane.memory.breaker)
    }

    pub(crate) fn timeout(&self) -> Adaptive {
        self.lane.as_ref().map_or_else(Adaptive::default, |lane| lane.timeout)
    }

    /// Of one that nobody has spent from yet, where nothing was shown.
    pub(crate) fn bucket(&self) -> Bucket {
        self.lane.as_ref().map_or_else(Bucket::full, |lane| lane.memory.bucket)
    }

    /// The same of its tenant.
    pub(crate) fn tenant_bucket(&self) -> Bucket {
        self.lane.as_ref().and_then(|lane| lane.tenant_bucket).unwrap_or_else(Bucket::full)
    }

    /// `due` is what the row says: one whose failure was recorded since its lane was shown is due after that.
    pub(crate) fn is_in_flight(&self, delivery: DeliveryId, due: Timestamp) -> bool {
        self.lane.as_ref().is_some_and(|lane| due <= lane.at && lane.in_flight.contains(&delivery))
    }

    /// Since when every attempt has failed, if the last one has.
    pub(crate) fn failing_since(&self) -> Option<Timestamp> {
        self.lane.as_ref()?.memory.health.failing_since()
    }

    /// Why nothing can be sent there: the rule that forbids it, or that its configuration cannot be read.
    pub(crate) fn blocked(&self) -> Option<&str> {
        self.lane.as_ref()?.blocked.as_deref()
    }

    pub(crate) fn in_flight_count(&self) -> u64 {
        self.lane.as_ref().map_or(0, |lane| lane.in_flight.len() as u64)
    }

    /// An endpoint that is disabled, or whose circuit is open, is unhealthy whatever its last hour was like.
    pub(crate) fn health(&self, status: Status) -> HealthView {
        let health = self.lane.as_ref().map_or_else(Health::default, |lane| lane.memory.health);
        let score = (self.successes * 100).checked_div(self.attempts).unwrap_or(100);
        let score = u32::try_from(score.min(100)).expect("a share");
        let is_working = status != Status::Disabled && matches!(self.breaker(), Breaker::Closed { .. });
        HealthView {
            score,
            state: if is_working && health.is_healthy(self.attempts, score) { "healthy" } else { "unhealthy" },
            failing_since: health.failing_since().map(Timestamp::to_rfc3339),
        }
    }

    /// The facts about its lane that explain why something waits there.
    pub(crate) fn lane_facts<'a>(&self, status: Status, policies: &'a Policies, tenant: Option<&Tenant>) -> LaneFacts<'a> {
        let facts = LaneFacts { schedule: policies.delivery_schedule.as_ref(), ..LaneFacts::of(status) };
        let Some(lane) = &self.lane else { return facts };
        LaneFacts {
            is_blocked: lane.blocked.is_some(),
            breaker: lane.memory.breaker,
            rate_limit: policies.rate_limit.map(|limit| (limit, lane.memory.bucket)),
            tenant_rate_limit: tenant.and_then(|tenant| tenant.rate_limit).zip(lane.tenant_bucket),
            is_short_of_tokens: lane.is_short_of_tokens,
            held_until: lane.memory.held_until,
            retries_from: lane.retries_from,
            has_slot: lane.has_slot,
            ..facts
        }
    }
}

/// What is known of these endpoints, without how healthy they are.
pub(crate) async fn lanes(app: &App, endpoints: Vec<EndpointId>) -> Result<HashMap<EndpointId, LaneStatus>, Problem> {
    if endpoints.is_empty() {
        return Ok(HashMap::new());
    }
    let mut lanes = app.store.lane_snapshots(endpoints.clone()).await?;
    let is_held = app.hold.look(app.store.as_ref()).await?.is_some();
    // After a restart nothing is shown until there is traffic. What was learned before is stored.
    let shown: HashSet<EndpointId> = lanes.iter().map(|lane| lane.endpoint).collect();
    let now = app.store.now();
    for endpoint in endpoints.into_iter().filter(|endpoint| !shown.contains(endpoint)) {
        if let Some(LaneState { memory, timeout, .. }) = readable(app.store.lane(endpoint).await)?.flatten() {
            lanes.push(LaneSnapshot { memory, timeout, ..LaneSnapshot::unknown(endpoint, now) });
        } else if is_held {
            lanes.push(LaneSnapshot::unknown(endpoint, now));
        }
    }
    if is_held {
        for lane in &mut lanes {
            lane.blocked = Some(hold::HELD.to_owned());
        }
    }
    Ok(lanes.into_iter().map(|lane| (lane.endpoint, LaneStatus { lane: Some(lane), ..LaneStatus::default() })).collect())
}

/// The same, with the last hour's counts.
pub(crate) async fn lanes_and_health(app: &App, endpoints: &[EndpointId]) -> Result<HashMap<EndpointId, LaneStatus>, Problem> {
    let mut known = lanes(app, endpoints.to_vec()).await?;
    let now = app.store.now();
    for endpoint in endpoints {
        let query = StatisticsQuery {
            tenant: None,
            endpoint: Some(*endpoint),
            from: now - SCORE_OVER,
            to: now + Duration::from_mins(1),
            step: SCORE_OVER * 2,
        };
        let observed = known.entry(*endpoint).or_default();
        for step in app.store.statistics(query).await? {
            observed.attempts += step.counts.attempts;
            observed.successes += step.counts.successes;
        }
    }
    Ok(known)
}
