//! A receiver as a customer would write it: takes a webhook, verifies it, answers.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use posthaste_signing::{Key, Received, Secret, TOLERANCE, VerifyError, standard};
use tokio::sync::mpsc;

/// A webhook as it arrived.
pub(crate) struct Arrival {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) verified: Result<(), VerifyError>,
}

#[derive(Clone)]
struct Desk {
    secret: Arc<OnceLock<Secret>>,
    arrivals: mpsc::UnboundedSender<Arrival>,
}

/// Takes webhooks at `/webhooks`. The secret is put in when the endpoint has been made and has shown it.
pub(crate) fn router(secret: Arc<OnceLock<Secret>>, arrivals: mpsc::UnboundedSender<Arrival>) -> Router {
    Router::new().route("/webhooks", post(receive)).with_state(Desk { secret, arrivals })
}

async fn receive(State(desk): State<Desk>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let verified = verify(&desk, &headers, &body);
    let status = if verified.is_ok() { StatusCode::NO_CONTENT } else { StatusCode::UNAUTHORIZED };
    // Nobody may be looking any more; the answer is the same.
    let _ = desk.arrivals.send(Arrival { headers, body, verified });
    status
}

fn verify(desk: &Desk, headers: &HeaderMap, body: &[u8]) -> Result<(), VerifyError> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let secret = desk.secret.get().ok_or(VerifyError::NoMatch)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let received = Received { timestamp: header("webhook-timestamp"), signature: header("webhook-signature"), body };
    standard::verify(header("webhook-id"), &received, i64::try_from(now).unwrap_or(i64::MAX), TOLERANCE, &[Key::Shared(secret)])
}
