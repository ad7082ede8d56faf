//! Publishes over HTTP, with so many connections, as fast as answers come or at a fixed rate, and notes when each request was sent and
//! acknowledged. A process of its own, which the bench tells what to do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::bail;
use axum::extract::{Json, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::line::Line;
use super::meter::now_ns;
use super::part::listen;
use super::process::Part;

/// What is to be published.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) struct Plan {
    pub(super) server: SocketAddr,
    pub(super) key: String,
    /// They take turns.
    pub(super) tenants: Vec<String>,
    /// Events are numbered from here on.
    pub(super) first: usize,
    pub(super) events: usize,
    pub(super) connections: usize,
    pub(super) payload_bytes: usize,
    /// Events in a request; 1 is a request of its own for each.
    pub(super) batch: usize,
    /// `None`: the next as soon as a connection is free.
    pub(super) requests_per_second: Option<f64>,
}

/// A request: its first event, when it was sent, and when it was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) first: usize,
    pub(super) began_ns: u64,
    pub(super) acknowledged_ns: u64,
}

impl Sent {
    pub(super) fn took(&self) -> Duration {
        Duration::from_nanos(self.acknowledged_ns.saturating_sub(self.began_ns))
    }
}

/// Somebody who publishes until told to stop, and does not care for the answers.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) struct Disturbance {
    pub(super) server: SocketAddr,
    pub(super) key: String,
    pub(super) tenant: String,
    pub(super) per_second: u32,
    pub(super) connections: u32,
    pub(super) payload_bytes: usize,
}

#[derive(Serialize, Deserialize)]
struct Nothing {}

/// What the bench asks of the load generator.
pub(super) struct Load<'a>(pub(super) &'a Part);

impl Load<'_> {
    /// Until the last one is acknowledged. An answer other than yes ends it.
    pub(super) async fn publish(&self, plan: &Plan) -> anyhow::Result<Vec<Sent>> {
        let bytes = self.0.tell("/publish", plan).await?;
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (triples, _) = words.as_chunks::<3>();
        let sent = |[first, began_ns, acknowledged_ns]: &[u64; 3]| {
            Ok(Sent { first: usize::try_from(*first)?, began_ns: *began_ns, acknowledged_ns: *acknowledged_ns })
        };
        triples.iter().map(sent).collect()
    }

    pub(super) async fn disturb(&self, disturbance: &Disturbance) -> anyhow::Result<()> {
        self.0.tell("/disturb", disturbance).await.map(drop)
    }

    /// Ends every disturbance. Answers how many events they got rid of.
    pub(super) async fn calm(&self) -> anyhow::Result<usize> {
        self.0.ask("/calm", &Nothing {}).await
    }
}

#[derive(Default)]
struct Generator {
    disturbing: Mutex<JoinSet<()>>,
    disturbed: Arc<AtomicUsize>,
}

pub(super) async fn serve() -> anyhow::Result<String> {
    let router = axum::Router::new()
        .route("/publish", post(publish))
        .route("/disturb", post(disturb))
        .route("/calm", post(calm))
        .with_state(Arc::new(Generator::default()));
    Ok(listen(router).await?.to_string())
}

async fn publish(Json(plan): Json<Plan>) -> Response {
    match published(Arc::new(plan)).await {
        Ok(sent) => {
            let words = sent.iter().flat_map(|sent| [sent.first as u64, sent.began_ns, sent.acknowledged_ns]);
            words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>().into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}

async fn published(plan: Arc<Plan>) -> anyhow::Result<Vec<Sent>> {
    let mut lines = Vec::with_capacity(plan.connections);
    for _ in 0..plan.connections {
        lines.push(Line::connect(plan.server, &plan.key).await?);
    }
    let next = Arc::new(AtomicUsize::new(0));
    let began = (tokio::time::Instant::now(), now_ns());
    let mut tasks = JoinSet::new();
    for line in lines {
        tasks.spawn(publish_on(line, Arc::clone(&plan), Arc::clone(&next), began));
    }
    let mut all = Vec::with_capacity(plan.events.div_ceil(plan.batch));
    while let Some(part) = tasks.join_next().await {
        all.extend(part??);
    }
    Ok(all)
}

/// Takes the next request for as long as there is one.
async fn publish_on(
    mut line: Line,
    plan: Arc<Plan>,
    next: Arc<AtomicUsize>,
    (began, began_ns): (tokio::time::Instant, u64),
) -> anyhow::Result<Vec<Sent>> {
    let mut all = Vec::new();
    loop {
        let request = next.fetch_add(1, Ordering::Relaxed);
        let first = request * plan.batch;
        if first >= plan.events {
            return Ok(all);
        }
        let count = plan.batch.min(plan.events - first);
        let (path, body) = body(&plan, plan.first + first, count);
        let began_ns = match plan.requests_per_second {
            None => now_ns(),
            // What is due is sent at its time, or as soon as a connection is free; either way its time counts from when it was due, so
            // that a stall is not left out of what it has delayed.
            Some(rate) => {
                let offset = Duration::from_secs_f64(request as f64 / rate);
                tokio::time::sleep_until(began + offset).await;
                began_ns + u64::try_from(offset.as_nanos()).unwrap_or(u64::MAX / 2)
            }
        };
        let (status, answer) = line.post(path, body).await?;
        if status != 202 {
            bail!("an event was answered {status}: {}", String::from_utf8_lossy(&answer));
        }
        all.push(Sent { first: plan.first + first, began_ns, acknowledged_ns: now_ns() });
    }
}

fn body(plan: &Plan, first: usize, count: usize) -> (&'static str, Bytes) {
    let one = |number: usize| event(&plan.tenants[number % plan.tenants.len()], number, plan.payload_bytes);
    if plan.batch == 1 {
        return ("/v1/events", one(first).into());
    }
    let all: Vec<String> = (first..first + count).map(one).collect();
    ("/v1/events/batch", format!("[{}]", all.join(",")).into())
}

/// The body of a publish: about so many bytes, with the number that the receiver looks for.
pub(super) fn event(tenant: &str, number: usize, payload_bytes: usize) -> String {
    let filler = "x".repeat(payload_bytes.saturating_sub(30));
    format!(r#"{{"type":"bench.event","tenant":"{tenant}","data":{{"number":{number},"filler":"{filler}"}}}}"#)
}

/// Beyond everybody's numbers, so that the receiver does not count them.
const NOT_COUNTED: usize = usize::MAX / 2;

async fn disturb(State(generator): State<Arc<Generator>>, Json(order): Json<Disturbance>) {
    for _ in 0..order.connections {
        let disturbed = Arc::clone(&generator.disturbed);
        generator.disturbing.lock().spawn(disturb_on(order.clone(), disturbed));
    }
}

/// Being refused is what may happen to a flood.
async fn disturb_on(order: Disturbance, disturbed: Arc<AtomicUsize>) {
    let Ok(mut line) = Line::connect(order.server, &order.key).await else { return };
    let mut turns = tokio::time::interval(Duration::from_secs(1) * order.connections / order.per_second.max(1));
    turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        turns.tick().await;
        match line.post("/v1/events", event(&order.tenant, NOT_COUNTED, order.payload_bytes).into()).await {
            Ok((202, _)) => _ = disturbed.fetch_add(1, Ordering::Relaxed),
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

async fn calm(State(generator): State<Arc<Generator>>, Json(_): Json<Nothing>) -> Json<usize> {
    generator.disturbing.lock().abort_all();
    Json(generator.disturbed.swap(0, Ordering::Relaxed))
}
