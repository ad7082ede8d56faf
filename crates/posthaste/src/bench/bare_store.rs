//! What is compared with, too: the least that keeps the promise. It takes the same publish requests with the same HTTP server, makes each
//! safe in SQLite before it answers, signs, posts with the same client, and writes the outcome down. It knows one endpoint, tries once, and
//! has no keys, tenants, types, order, limits, history or metrics: what Posthaste costs beyond this is what those cost.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use anyhow::Context;
use axum::extract::{Json, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use posthaste_core::event::Event;
use rusqlite::Connection;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::forwarder::Forwarder;
use super::part::listen;

/// How many share a commit at most.
const GROUP_MAX: usize = 512;

const SCHEMA: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
    CREATE TABLE events (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, type TEXT NOT NULL, at_ms INTEGER NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE deliveries (id INTEGER PRIMARY KEY, event TEXT NOT NULL, endpoint INTEGER NOT NULL, is_done INTEGER NOT NULL, due_ms INTEGER NOT NULL);
    CREATE INDEX deliveries_due ON deliveries (endpoint, due_ms) WHERE is_done = 0;
    CREATE TABLE attempts (id INTEGER PRIMARY KEY, delivery INTEGER NOT NULL, has_arrived INTEGER NOT NULL, at_ms INTEGER NOT NULL);
    CREATE INDEX attempts_by_delivery ON attempts (delivery);";

enum Job {
    Publish { event: Arc<Event>, is_safe: oneshot::Sender<()> },
    Record { delivery: i64, has_arrived: bool, at_ms: i64 },
}

struct BareStore {
    forwarder: Arc<Forwarder>,
    jobs: mpsc::Sender<Job>,
}

pub(super) async fn serve(receiver: SocketAddr, directory: PathBuf) -> anyhow::Result<String> {
    let forwarder = Arc::new(Forwarder::new(receiver)?);
    let connection = prepared(&directory)?;
    let (jobs, inbox) = mpsc::channel();
    let writer = Writer { connection, forwarder: Arc::clone(&forwarder), jobs: jobs.clone(), runtime: Handle::current() };
    // Whoever publishes hears of its end: their answer does not come.
    std::thread::spawn(move || writer.run(&inbox).inspect_err(|error| eprintln!("the bare store has ended: {error}")));
    let router = axum::Router::new().route("/v1/events", post(publish)).with_state(Arc::new(BareStore { forwarder, jobs }));
    Ok(listen(router).await?.to_string())
}

fn prepared(directory: &Path) -> anyhow::Result<Connection> {
    let connection = Connection::open(directory.join("bare-store.db"))
        .with_context(|| format!("cannot make a database in {}", directory.display()))?;
    connection.execute_batch(SCHEMA)?;
    Ok(connection)
}

async fn publish(State(store): State<Arc<BareStore>>, body: Bytes) -> Response {
    let event = match store.forwarder.event(&body) {
        Ok(event) => Arc::new(event),
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response(),
    };
    let (is_safe, answer) = oneshot::channel();
    let is_queued = store.jobs.send(Job::Publish { event: Arc::clone(&event), is_safe }).is_ok();
    if is_queued && answer.await.is_ok() {
        (StatusCode::ACCEPTED, Json(json!({"id": event.id.as_str(), "deliveries": 1}))).into_response()
    } else {
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}

struct Writer {
    connection: Connection,
    forwarder: Arc<Forwarder>,
    jobs: mpsc::Sender<Job>,
    runtime: Handle,
}

impl Writer {
    /// What is published and what became of it share their commits.
    fn run(self, inbox: &mpsc::Receiver<Job>) -> rusqlite::Result<()> {
        let mut committed = Vec::new();
        while let Ok(first) = inbox.recv() {
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
            for job in std::iter::once(first).chain(inbox.try_iter().take(GROUP_MAX - 1)) {
                self.write(job, &mut committed)?;
            }
            self.connection.execute_batch("COMMIT")?;
            for (delivery, event, is_safe) in committed.drain(..) {
                let _ = is_safe.send(());
                self.runtime.spawn(deliver(Arc::clone(&self.forwarder), self.jobs.clone(), delivery, event));
            }
        }
        Ok(())
    }

    fn write(&self, job: Job, committed: &mut Vec<(i64, Arc<Event>, oneshot::Sender<()>)>) -> rusqlite::Result<()> {
        let prepare = |sql| self.connection.prepare_cached(sql);
        match job {
            Job::Publish { event, is_safe } => {
                let (id, at_ms) = (event.id.as_str(), event.accepted_at.as_millis());
                let columns = (id, event.tenant.as_str(), event.event_type.as_str(), at_ms, event.data.as_str());
                prepare("INSERT INTO events (id, tenant, type, at_ms, data) VALUES (?, ?, ?, ?, ?)")?.execute(columns)?;
                prepare("INSERT INTO deliveries (event, endpoint, is_done, due_ms) VALUES (?, 1, 0, ?)")?.execute((id, at_ms))?;
                committed.push((self.connection.last_insert_rowid(), event, is_safe));
            }
            Job::Record { delivery, has_arrived, at_ms } => {
                prepare("UPDATE deliveries SET is_done = 1 WHERE id = ?")?.execute([delivery])?;
                prepare("INSERT INTO attempts (delivery, has_arrived, at_ms) VALUES (?, ?, ?)")?.execute((
                    delivery,
                    has_arrived,
                    at_ms,
                ))?;
            }
        }
        Ok(())
    }
}

/// The payload goes from the commit to the receiver without being read back.
async fn deliver(forwarder: Arc<Forwarder>, jobs: mpsc::Sender<Job>, delivery: i64, event: Arc<Event>) {
    let has_arrived = forwarder.post(&event).await.is_ok();
    let _ = jobs.send(Job::Record { delivery, has_arrived, at_ms: event.accepted_at.as_millis() });
}
