//! Receivers as customers would write them: they take a webhook, verify it, and answer, each in its own mood.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use posthaste_signing::{Key, Received, Secret, TOLERANCE, VerifyError, standard};
use tokio::sync::mpsc;

/// How a receiver behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Behaviour {
    Healthy,
    /// Says 503 to every third request.
    Flaky,
    Slow(Duration),
    /// Says 500 until so long after the demo began.
    DownFor(Duration),
}

/// A webhook as it arrived, and what it was answered with.
pub(super) struct Arrival {
    pub(super) name: &'static str,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) status: StatusCode,
    pub(super) verified: Result<(), VerifyError>,
}

impl Arrival {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("?")
    }
}

#[derive(Clone)]
pub(super) struct ReceiverHandle {
    began: Instant,
    moods: Arc<Vec<(&'static str, Behaviour)>>,
    known: Arc<Mutex<BTreeMap<&'static str, ReceiverState>>>,
    arrivals: mpsc::UnboundedSender<Arrival>,
}

/// What a receiver has been told, and has seen.
#[derive(Default)]
struct ReceiverState {
    secret: Option<Secret>,
    requests: u64,
}

impl ReceiverHandle {
    pub(super) fn new(moods: Vec<(&'static str, Behaviour)>, arrivals: mpsc::UnboundedSender<Arrival>) -> ReceiverHandle {
        ReceiverHandle { began: Instant::now(), moods: Arc::new(moods), known: Arc::default(), arrivals }
    }

    /// The secret is put in when the endpoint has been made and has shown it.
    pub(super) fn trust(&self, name: &'static str, secret: Secret) {
        self.known.lock().entry(name).or_default().secret = Some(secret);
    }

    /// Takes webhooks at `/webhooks/<name>`.
    pub(super) fn router(&self) -> Router {
        Router::new().route("/webhooks/{name}", post(receive)).with_state(self.clone())
    }
}

async fn receive(State(desk): State<ReceiverHandle>, Path(name): Path<String>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let Some((name, mood)) = desk.moods.iter().copied().find(|(known, _)| *known == name) else {
        return StatusCode::NOT_FOUND;
    };
    let (verified, requests) = {
        let mut known = desk.known.lock();
        let known = known.entry(name).or_default();
        known.requests += 1;
        (verify(known.secret.as_ref(), &headers, &body), known.requests)
    };
    let status = match mood {
        _ if verified.is_err() => StatusCode::UNAUTHORIZED,
        Behaviour::Flaky if requests.is_multiple_of(3) => StatusCode::SERVICE_UNAVAILABLE,
        Behaviour::Slow(takes) => {
            tokio::time::sleep(takes).await;
            StatusCode::NO_CONTENT
        }
        Behaviour::DownFor(span) if desk.began.elapsed() < span => StatusCode::INTERNAL_SERVER_ERROR,
        Behaviour::Healthy | Behaviour::Flaky | Behaviour::DownFor(_) => StatusCode::NO_CONTENT,
    };
    // Nobody may be looking any more; the answer is the same.
    let _ = desk.arrivals.send(Arrival { name, headers, body, status, verified });
    status
}

fn verify(secret: Option<&Secret>, headers: &HeaderMap, body: &[u8]) -> Result<(), VerifyError> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let secret = secret.ok_or(VerifyError::NoMatch)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let received = Received { timestamp: header("webhook-timestamp"), signature: header("webhook-signature"), body };
    standard::verify(header("webhook-id"), &received, i64::try_from(now).unwrap_or(i64::MAX), TOLERANCE, &[Key::Shared(secret)])
}
