//! Stands in for an OpenTelemetry collector: it takes what it is sent, in a process of its own, and counts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Json, State};
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::part::listen;

#[derive(Default)]
struct Counted {
    requests: AtomicUsize,
    spans: AtomicUsize,
}

/// Since it was last asked.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(super) struct Taken {
    pub(super) requests: usize,
    pub(super) spans: usize,
}

pub(super) async fn serve() -> anyhow::Result<String> {
    let router = Router::new()
        .route("/v1/traces", post(take))
        .route("/taken", post(taken))
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::new(Counted::default()));
    Ok(listen(router).await?.to_string())
}

async fn take(State(counted): State<Arc<Counted>>, request: Bytes) -> StatusCode {
    counted.requests.fetch_add(1, Ordering::Relaxed);
    counted.spans.fetch_add(posthaste_traces::spans_in(&request), Ordering::Relaxed);
    StatusCode::OK
}

async fn taken(State(counted): State<Arc<Counted>>) -> Json<Taken> {
    let taken = |counter: &AtomicUsize| counter.swap(0, Ordering::Relaxed);
    Json(Taken { requests: taken(&counted.requests), spans: taken(&counted.spans) })
}
