//! What publishing costs in the API alone, beside a bare handler of the same framework: `cargo xtask bench-api`.
//!
//! Requests are given to the routers as they come out of HTTP, without sockets, and what is counted is the processor time of
//! this process: on a machine that others use too, it says more than a clock.
//!
//! - *hello*: a bare handler that answers `ok`.
//! - *all but the store*: a publish that is authenticated, parsed and validated, and is refused by the last check before the
//!   store (a version that the catalogue does not know).
//! - *publish*: the whole of it, many callers at once, so that they share commits.
//! - *store*: the same events given to the store directly.

#![allow(clippy::unwrap_used, reason = "a measurement that panics has failed, as it should")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::routing::post;
use http::Request;
use posthaste_api::Options;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{EventId, TenantId};
use posthaste_core::text::Labels;
use posthaste_store::{Keyring, MasterKey, NewEvent, Options as StoreOptions, Sqlite, Store};
use tower::ServiceExt;

const KEY: &str = "phk_the-key-of-a-measurement";
const CALLERS: usize = 256;

fn main() {
    let calls: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200_000);
    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let hello = axum::Router::new().route("/v1/events", post(async || "ok"));
    let data = format!(r#"{{"invoice":"inv_456","amount":4999,"note":"{}"}}"#, "x".repeat(512));
    let body = format!(r#"{{"type":"invoice.paid","tenant":"acme","version":"2026-04-08","data":{data}}}"#);
    let refused = body.replace("invoice.paid", "invoice.checked");
    println!("bodies of {} bytes; processor time of this process\n", body.len());
    println!("{:<20} {:>12} {:>16}", "", "µs a call", "calls/s a core");

    let bare = single.block_on(async { measure("hello", calls, || ask(&hello, &body, 200)).await });

    let directory = Scratch::new();
    let store: Arc<dyn Store> =
        Arc::new(Sqlite::open(&directory.0, StoreOptions::new(Keyring::new(MasterKey::generate(), vec![]))).unwrap());
    let api = posthaste_api::router(Arc::clone(&store), Options { calls: None, ..Options::default() }, KEY);
    let made = single.block_on(async {
        let entry = r#"{"name": "invoice.checked", "versions": [{"version": "another"}]}"#;
        let request = Request::post("/v1/event-types").header("authorization", format!("Bearer {KEY}"));
        let request = request.header("content-type", "application/json").body(Body::from(entry)).unwrap();
        assert_eq!(api.clone().oneshot(request).await.unwrap().status(), 201);
        // As users have it: a key from the store, not the operator's.
        let request = Request::post("/v1/keys").header("authorization", format!("Bearer {KEY}"));
        let key = r#"{"name": "bench", "scopes": ["publish"]}"#;
        let request = request.header("content-type", "application/json").body(Body::from(key)).unwrap();
        let response = api.clone().oneshot(request).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        let made: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        made["key"].as_str().unwrap().to_owned()
    });
    let without_store =
        single.block_on(async { measure("all but the store", calls, || ask_with(&api, &made, &refused, 422)).await });

    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let publishes = calls / 4;
    many.block_on(async {
        let each = publishes / CALLERS;
        let started = Started::now();
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (api, made, body) = (api.clone(), made.clone(), body.clone());
                tokio::spawn(async move {
                    for _ in 0..each {
                        ask_with(&api, &made, &body, 202).await;
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        started.show("publish", each * CALLERS);
    });
    many.block_on(async {
        let each = publishes / CALLERS;
        let started = Started::now();
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (store, data) = (Arc::clone(&store), data.clone());
                tokio::spawn(async move {
                    for _ in 0..each {
                        store.publish(vec![event(&store, &data)]).await.unwrap();
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        started.show("store", each * CALLERS);
    });
    println!("\nthe API's own part of a publish is {:.1} times a bare handler", without_store / bare);
}

async fn ask(router: &axum::Router, body: &str, status: u16) {
    ask_with(router, KEY, body, status).await;
}

async fn ask_with(router: &axum::Router, key: &str, body: &str, status: u16) {
    let request = Request::post("/v1/events")
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .header("content-length", body.len())
        .header("host", "hooks.example.com")
        .header("user-agent", "bench")
        .body(Body::from(body.to_owned()))
        .unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status().as_u16(), status);
}

fn event(store: &Arc<dyn Store>, data: &str) -> NewEvent {
    let now = store.now();
    let event = Event {
        id: EventId::from_unique(store.unique()),
        tenant: TenantId::parse("acme").unwrap(),
        event_type: EventType::parse("invoice.paid").unwrap(),
        version: None,
        timestamp: now,
        accepted_at: now,
        data: Data::parse(data).unwrap(),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    };
    NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [0; 32], resolved: None }
}

/// Calls one after another; answers the microseconds of each.
async fn measure<F: Future<Output = ()>>(name: &str, calls: usize, call: impl Fn() -> F) -> f64 {
    for _ in 0..calls / 20 {
        call().await;
    }
    let started = Started::now();
    for _ in 0..calls {
        call().await;
    }
    started.show(name, calls)
}

struct Started {
    wall: Instant,
    processor: Duration,
}

impl Started {
    fn now() -> Started {
        Started { wall: Instant::now(), processor: processor_time() }
    }

    fn show(&self, name: &str, calls: usize) -> f64 {
        let (wall, processor) = (self.wall.elapsed(), processor_time().saturating_sub(self.processor));
        let micros = processor.as_secs_f64() * 1e6 / calls as f64;
        let by_the_clock = calls as f64 / wall.as_secs_f64();
        println!("{name:<20} {micros:>12.2} {:>16.0}   {by_the_clock:>10.0}/s by the clock", 1e6 / micros);
        micros
    }
}

/// Of all threads of this process, in user and kernel together.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // A hundred ticks a second on every Linux.
    Duration::from_millis(ticks * 10)
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let directory = std::env::temp_dir().join(format!("posthaste-bench-api-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        Scratch(directory)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
