//! `/v1/deliveries`: one event on its way to one endpoint, and every try of it.

use axum::Json as Answer;
use axum::extract::State;
use posthaste_core::admission::{Facts, LaneFacts, Standing, explain};
use posthaste_core::delivery::{NoConnection, Outcome, Silence, State as DeliveryState};
use posthaste_core::endpoint::Status;
use posthaste_core::id::DeliveryId;
use posthaste_core::time::Timestamp;
use posthaste_store::{AttemptRecord, DeliveryRow};
use serde::Serialize;

use crate::App;
use crate::body::Id;
use crate::problem::Problem;

#[derive(Debug, Serialize)]
pub(crate) struct DeliveryView {
    id: String,
    event: String,
    endpoint: String,
    endpoint_url: String,
    tenant: String,
    #[serde(rename = "type")]
    event_type: String,
    status: &'static str,
    hold_reason: Option<&'static str>,
    dead_reason: Option<&'static str>,
    cancel_reason: Option<&'static str>,
    attempt_count: u32,
    next_attempt_at: Option<String>,
    delivered_at: Option<String>,
    dead_at: Option<String>,
    created_at: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct AttemptView {
    id: String,
    delivery: String,
    number: u32,
    outcome: &'static str,
    status_code: Option<u16>,
    response_time_ms: u128,
    timeout_ms: u128,
    response_preview: Option<String>,
    error: Option<String>,
    attempted_at: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Attempts {
    data: Vec<AttemptView>,
    next_cursor: Option<String>,
}

pub(crate) async fn read(State(app): State<App>, Id(id): Id) -> Result<Answer<DeliveryView>, Problem> {
    let row = find(&app, &id).await?;
    let endpoint = app.store.endpoint(row.endpoint).await?.ok_or_else(Problem::not_found)?;
    Ok(Answer(view(&row, endpoint.endpoint.status, app.store.now())))
}

pub(crate) async fn attempts(State(app): State<App>, Id(id): Id) -> Result<Answer<Attempts>, Problem> {
    let row = find(&app, &id).await?;
    let attempts = app.store.attempts(row.id).await?;
    // Newest first, as in every list.
    let data = attempts.iter().rev().map(|attempt| attempt_view(row.id, attempt)).collect();
    Ok(Answer(Attempts { data, next_cursor: None }))
}

async fn find(app: &App, id: &str) -> Result<DeliveryRow, Problem> {
    let id = DeliveryId::parse(id).map_err(|_| Problem::not_found())?;
    app.store.delivery(id).await?.ok_or_else(Problem::not_found)
}

fn view(row: &DeliveryRow, endpoint_status: Status, now: Timestamp) -> DeliveryView {
    let facts = Facts {
        state: row.state,
        attempts: row.attempts,
        is_in_flight: false,
        event_type: &row.event_type,
        is_priority: row.is_priority,
        is_head_of_key: true,
        lane: LaneFacts::of(endpoint_status),
    };
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
        next_attempt_at: None,
        delivered_at: None,
        dead_at: None,
        created_at: row.created_at.to_rfc3339(),
    };
    match explain(now, &facts) {
        Standing::Pending => {
            if let DeliveryState::Waiting { due } = row.state {
                view.next_attempt_at = Some(due.to_rfc3339());
            }
        }
        Standing::Delivering => view.status = "delivering",
        Standing::Held { reason, until } => {
            view.status = "scheduled";
            view.hold_reason = Some(reason.name());
            view.next_attempt_at = until.map(Timestamp::to_rfc3339);
        }
        Standing::Delivered { at } => {
            view.status = "delivered";
            view.delivered_at = Some(at.to_rfc3339());
        }
        Standing::Dead { at, reason } => {
            view.status = "dead";
            view.dead_reason = Some(reason.name());
            view.dead_at = Some(at.to_rfc3339());
        }
        Standing::Cancelled { reason, .. } => {
            view.status = "cancelled";
            view.cancel_reason = Some(reason.name());
        }
    }
    view
}

fn attempt_view(delivery: DeliveryId, attempt: &AttemptRecord) -> AttemptView {
    AttemptView {
        id: attempt.id.to_string(),
        delivery: delivery.to_string(),
        number: attempt.number,
        outcome: outcome(attempt.outcome),
        status_code: match attempt.outcome {
            Outcome::Answered { status, .. } => Some(status),
            Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => None,
        },
        response_time_ms: attempt.response_time.as_millis(),
        timeout_ms: attempt.timeout.as_millis(),
        response_preview: attempt.preview.clone(),
        error: attempt.error.clone(),
        attempted_at: attempt.attempted_at.to_rfc3339(),
    }
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Answered { status: 200..=299, .. } => "success",
        Outcome::Answered { .. } => "http_error",
        Outcome::NotSent(NoConnection::Dns) => "dns_error",
        Outcome::NotSent(NoConnection::Connect) => "connection_error",
        Outcome::NotSent(NoConnection::Tls) => "tls_error",
        Outcome::Silent(Silence::Timeout) => "timeout",
        Outcome::Silent(Silence::Reset) => "reset",
        Outcome::Blocked => "blocked",
    }
}
