//! `/v1/dead-letters`: what nobody tries any more, and nobody has retried.

use axum::response::Response;
use posthaste_core::delivery::State;

use crate::call::Call;
use crate::deliveries::{find, page, redeliver};
use crate::problem::Problem;

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    page(&call, "dead-letters", true).await
}

pub(crate) async fn retry(call: Call) -> Result<Response, Problem> {
    let call = call.without_body().await?;
    let row = find(&call).await?;
    match (row.state, row.replayed_as) {
        (State::Dead { .. }, None) => redeliver(&call, &row).await,
        (State::Dead { .. }, Some(successor)) => Err(Problem::conflict(format!("It has been retried already, as {successor}."))),
        // A delivery that is not dead is no dead letter.
        (State::Waiting { .. } | State::Delivered { .. } | State::Cancelled { .. }, _) => Err(Problem::not_found()),
    }
}
