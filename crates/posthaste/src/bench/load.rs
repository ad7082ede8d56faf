//! Publishes over HTTP, with so many connections, as fast as answers come or at a fixed rate, and notes when each request was sent and
//! acknowledged. A process of its own, which the bench tells what to do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{anyhow, bail};
use axum::extract::{Json, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
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
    match plan.requests_per_second {
        None => as_answers_come(plan).await,
        Some(rate) => tokio::task::spawn_blocking(move || at_its_time(&plan, rate)).await?,
    }
}

async fn as_answers_come(plan: Arc<Plan>) -> anyhow::Result<Vec<Sent>> {
    let mut lines = Vec::with_capacity(plan.connections);
    for _ in 0..plan.connections {
        lines.push(Line::connect(plan.server, &plan.key).await?);
    }
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for mut line in lines {
        let (plan, next) = (Arc::clone(&plan), Arc::clone(&next));
        tasks.spawn(async move {
            let mut all = Vec::new();
            while let Some(request) = plan.request(next.fetch_add(1, Ordering::Relaxed)) {
                all.push(request.publish(&mut line, now_ns()).await?);
            }
            anyhow::Ok(all)
        });
    }
    let mut all = Vec::with_capacity(plan.events.div_ceil(plan.batch));
    while let Some(part) = tasks.join_next().await {
        all.extend(part??);
    }
    Ok(all)
}

/// What is due is sent at its time, or as soon as a connection is free; either way its time counts from when it was due, so that a stall
/// is not left out of what it has delayed.
///
/// Each connection is a thread of its own, which sends and hears by itself: a timer of the runtime rings up to a millisecond late, and who
/// is woken by it has somebody else to wake. That would be told as the server's time.
fn at_its_time(plan: &Arc<Plan>, rate: f64) -> anyhow::Result<Vec<Sent>> {
    let mut lines = Vec::with_capacity(plan.connections);
    for _ in 0..plan.connections {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let line = runtime.block_on(Line::connect(plan.server, &plan.key))?;
        lines.push((runtime, line));
    }
    let next = AtomicUsize::new(0);
    let began_ns = now_ns();
    let publish_on = |runtime: Runtime, mut line: Line| {
        let mut all = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(request) = plan.request(number) else { return anyhow::Ok(all) };
            let offset = Duration::from_secs_f64(number as f64 / rate);
            let due_ns = began_ns.saturating_add(u64::try_from(offset.as_nanos()).unwrap_or(u64::MAX));
            wait_until(due_ns);
            all.push(runtime.block_on(request.publish(&mut line, due_ns))?);
        }
    };
    std::thread::scope(|scope| {
        let publish_on = &publish_on;
        let threads: Vec<_> = lines.into_iter().map(|(runtime, line)| scope.spawn(move || publish_on(runtime, line))).collect();
        let mut all = Vec::with_capacity(plan.events.div_ceil(plan.batch));
        for thread in threads {
            all.extend(thread.join().map_err(|_| anyhow!("a connection has panicked"))??);
        }
        Ok(all)
    })
}

/// What a sleeper may come late by; for so long it stays awake.
const AWAKE_BEFORE: Duration = Duration::from_micros(150);

fn wait_until(due_ns: u64) {
    let left = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
    if let Some(asleep) = left.checked_sub(AWAKE_BEFORE) {
        std::thread::sleep(asleep);
    }
    while now_ns() < due_ns {
        std::hint::spin_loop();
    }
}

/// A request that is ready to be sent.
struct Request {
    path: &'static str,
    body: Bytes,
    first: usize,
}

impl Request {
    async fn publish(self, line: &mut Line, began_ns: u64) -> anyhow::Result<Sent> {
        let (status, answer) = line.post(self.path, self.body).await?;
        if status != 202 {
            bail!("an event was answered {status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(Sent { first: self.first, began_ns, acknowledged_ns: now_ns() })
    }
}

impl Plan {
    /// The so-manieth of its requests, while there is one.
    fn request(&self, number: usize) -> Option<Request> {
        let offset = number * self.batch;
        let count = self.batch.min(self.events.checked_sub(offset)?);
        let first = self.first + offset;
        let one = |number: usize| event(&self.tenants[number % self.tenants.len()], number, self.payload_bytes);
        let (path, body) = match self.batch {
            _ if count == 0 => return None,
            1 => ("/v1/events", one(first)),
            _ => ("/v1/events/batch", format!("[{}]", (first..first + count).map(one).collect::<Vec<_>>().join(","))),
        };
        Some(Request { path, body: body.into(), first })
    }
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
