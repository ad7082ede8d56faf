//! A fixed amount of work, in parts that somebody who counts instructions can tell apart: `cargo xtask bench-instructions`.
//!
//! It does by hand, on one thread and in groups of the same size every time, what the server does when it is busy: so that two
//! runs do the same work, whatever the machine is doing. Every part goes through the public interface of its crate.
//!
//! - *api*: `POST /v1/events` as it comes out of HTTP, authenticated, parsed and validated, and refused by the last check before
//!   the store (a version that the catalogue does not know).
//! - *publish*: the whole of it, one after the other, a commit for each, which is dearer than many callers at once.
//! - *store*: a group of events in one commit, as the store sees them from many callers at once.
//! - *schedule*: the owner, from the news of a commit to requests, from answers to records, and what is counted of them.
//! - *sign*: a request is made and signed.
//! - *send*: it is posted to a receiver in a process of its own, on connections that are kept.
//! - *record*: what has come of a group, in one commit.
//!
//! Beside that it has only [`a_part_has_ended`], at which whoever counts begins anew. In the end it names the parts in the order in
//! which they have ended: the round, how many deliveries it was about, and its name.

#![allow(clippy::unwrap_used, reason = "a measurement that panics has failed, as it should")]

use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::Request;
use posthaste_core::delivery::Outcome;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{AttemptId, EventId, TenantId};
use posthaste_core::text::Labels;
use posthaste_engine::{Effect, Input, Options as EngineOptions, Owner, SendRequest};
use posthaste_metrics::{Limits, Metrics};
use posthaste_sender::request::{self, Address, Signer, Try};
use posthaste_sender::{Client, Options as SenderOptions, Policy, Posted};
use posthaste_store::{
    AttemptRecord, Feed, Keyring, MasterKey, NewEvent, NodeId, Options as StoreOptions, PARTITIONS, RecordResult, Sqlite, Store,
    WindowRequest,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower_service::Service;

const KEY: &str = "phk_the-key-of-a-measurement";
const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
/// Deliveries that go through each part together.
const GROUP: usize = 64;
/// Those that have a commit of their own.
const ALONE: usize = 16;
/// In the first, connections are made, statements prepared and tables grown; in some of the others the store tidies up.
const ROUNDS: usize = 12;

fn main() {
    if std::env::args().nth(1).is_some_and(|argument| argument == "receiver") {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        return runtime.block_on(receive());
    }
    // One thread, so that what wakes what is the same every time.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime.block_on(async {
        let mut bench = Bench::start().await;
        for round in 0..ROUNDS {
            bench.round = round;
            bench.send_a_group().await;
        }
        std::mem::take(&mut bench.ended)
    });
    for (round, count, name) in ended {
        println!("{round} {count} {name}");
    }
}

/// Whoever counts begins anew where this is called. It has to be found by its name, so it is not inlined.
#[inline(never)]
fn a_part_has_ended(name: &'static str) {
    black_box(name);
}

struct Bench {
    router: Router,
    store: Arc<dyn Store>,
    feed: Feed,
    owner: Owner,
    metrics: Metrics,
    client: Client,
    signer: Signer,
    address: Arc<Address>,
    data: Data,
    round: usize,
    ended: Vec<(usize, usize, &'static str)>,
    _receiver: Receiver,
    _directory: Scratch,
}

impl Bench {
    async fn start() -> Bench {
        let directory = Scratch::new();
        let keyring = Keyring::new(MasterKey::from_base64(MASTER_KEY).unwrap(), vec![]);
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&directory.0, StoreOptions::new(keyring)).unwrap());
        let metrics = Metrics::new(Limits::default(), "bench");
        let policy = Policy { allowed_networks: vec!["127.0.0.0/8".parse().unwrap()], allow_http: true, public_host: None };
        let options = posthaste_api::Options {
            calls: None,
            destinations: policy.clone(),
            metrics: Some(metrics.clone()),
            ..posthaste_api::Options::default()
        };
        let mut router = posthaste_api::router(Arc::clone(&store), options, KEY);
        let receiver = Receiver::start();
        let mut secret = String::new();
        for tenant in ["acme", "published"] {
            let body = format!(r#"{{"tenant": "{tenant}", "url": "{}", "max_in_flight": {GROUP}}}"#, receiver.url);
            let made = ask(&mut router, "/v1/endpoints", &body, 201).await;
            made["secret"].as_str().unwrap().clone_into(&mut secret);
        }
        let entry = r#"{"name": "invoice.checked", "versions": [{"version": "another"}]}"#;
        ask(&mut router, "/v1/event-types", entry, 201).await;
        let node = NodeId(1);
        store.join(node).await.unwrap();
        let claimed = store.claim(node, usize::from(PARTITIONS)).await.unwrap().unwrap();
        let options = EngineOptions { metrics: Some(metrics.clone()), ..EngineOptions::default() };
        let mut owner = Owner::new(store.now(), options);
        owner.handle(store.now(), Input::PartitionsClaimed(claimed));
        Bench {
            router,
            feed: store.feed(),
            owner,
            metrics,
            client: Client::new(&SenderOptions { policy, ..SenderOptions::default() }).unwrap(),
            signer: Signer::new(&posthaste_core::endpoint::Signing::Standard, [secret.as_str()]).unwrap(),
            address: Arc::new(Address::parse(&receiver.url).unwrap()),
            data: Data::parse(&payload()).unwrap(),
            store,
            round: 0,
            ended: Vec::new(),
            _receiver: receiver,
            _directory: directory,
        }
    }

    fn part(&mut self, count: usize, name: &'static str) {
        a_part_has_ended(name);
        self.ended.push((self.round, count, name));
    }

    /// One group through everything.
    async fn send_a_group(&mut self) {
        let refused: Vec<Request<Body>> = (0..GROUP).map(|_| publication("invoice.checked")).collect();
        let alone: Vec<Request<Body>> = (0..ALONE).map(|_| publication("invoice.paid")).collect();
        let group: Vec<NewEvent> = (0..GROUP).map(|_| self.event("acme")).collect();
        self.part(GROUP, "preparation");
        self.publish(refused, 422).await;
        self.part(GROUP, "api");
        self.publish(alone, 202).await;
        self.part(ALONE, "publish");
        // Nobody sends these.
        self.fed(ALONE).await;
        self.part(GROUP, "preparation");
        self.store.publish(group).await.unwrap();
        self.part(GROUP, "store");

        let rows = self.fed(GROUP).await;
        self.owner.handle(self.store.now(), Input::Committed(rows));
        let sends = self.sends().await;
        self.part(GROUP, "schedule");
        let requests: Vec<_> = sends.iter().map(|sending| self.request(sending)).collect();
        self.part(GROUP, "sign");
        let mut posting = JoinSet::new();
        for (place, request) in requests.into_iter().enumerate() {
            let (client, address, timeout) = (self.client.clone(), Arc::clone(&self.address), sends[place].timeout);
            let now = self.store.now();
            posting.spawn(async move { (place, client.post(&address, request, timeout, now).await) });
        }
        let mut posted = Vec::with_capacity(GROUP);
        while let Some(answer) = posting.join_next().await {
            posted.push(answer.unwrap());
        }
        self.part(GROUP, "send");

        let now = self.store.now();
        for (place, posted) in posted {
            let SendRequest { generation, send, .. } = *sends[place];
            let attempt = Box::new(self.attempt(&sends[place], posted));
            self.owner.handle(now, Input::AttemptFinished { generation, send, attempt });
        }
        let mut records = None;
        for effect in self.owner.next_effects(now) {
            if let Effect::Record { generation, records: wanted, on_recorded } = effect {
                assert_eq!(wanted.len(), GROUP);
                records = Some((generation, wanted, on_recorded));
            }
        }
        let (generation, wanted, on_recorded) = records.unwrap();
        self.part(GROUP, "schedule");
        let results = self.store.record(wanted).await.unwrap();
        assert!(results.iter().all(|result| *result == RecordResult::Done), "{results:?}");
        self.part(GROUP, "record");
        self.owner.handle(self.store.now(), Input::Recorded { generation, on_recorded, results });
        drop(self.owner.next_effects(self.store.now()));
        self.metrics.deliveries().note(&self.owner.take_notes());
        self.part(GROUP, "schedule");
    }

    async fn publish(&mut self, requests: Vec<Request<Body>>, status: u16) {
        for request in requests {
            let response = self.router.call(request).await.unwrap();
            assert_eq!(response.status(), status);
            axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        }
    }

    /// What is to be sent, after the owner has asked for what it did not know.
    async fn sends(&mut self) -> Vec<Box<SendRequest>> {
        let mut sends = Vec::with_capacity(GROUP);
        while sends.len() < GROUP {
            let now = self.store.now();
            let effects = self.owner.next_effects(now);
            assert!(!effects.is_empty(), "{} of {GROUP} are to be sent, and nothing else happens", sends.len());
            for effect in effects {
                match effect {
                    Effect::Send(sending) => sends.push(sending),
                    Effect::FindWork => {
                        let endpoints = self.store.work(None, 1000).await.unwrap();
                        self.owner.handle(now, Input::Work(endpoints));
                    }
                    Effect::LoadEndpoints { generation, endpoints } => {
                        let found = self.store.load_endpoints(endpoints.clone()).await.unwrap();
                        self.owner.handle(now, Input::EndpointsLoaded { generation, asked: endpoints, found });
                    }
                    Effect::ReadWindow { generation, endpoint, want, limit } => {
                        let asked = vec![WindowRequest { endpoint, want: want.clone(), limit }];
                        let rows = self.store.windows(asked).await.unwrap().pop().unwrap();
                        self.owner.handle(now, Input::WindowRead { generation, endpoint, want, rows });
                    }
                    Effect::ReadBodies { generation, wanted } => {
                        let rows = wanted.iter().map(|wanted| wanted.seq).collect();
                        let found = self.store.bodies(rows).await.unwrap();
                        self.owner.handle(now, Input::BodiesRead { generation, asked: wanted, found });
                    }
                    Effect::CompareVersions { generation, tenants } => {
                        let versions = self.store.tenant_versions(tenants.clone()).await.unwrap();
                        self.owner
                            .handle(now, Input::Versions { generation, versions: tenants.into_iter().zip(versions).collect() });
                    }
                    Effect::Record { .. }
                    | Effect::ScanGap { .. }
                    | Effect::Restamp { .. }
                    | Effect::FindDeliveries { .. }
                    | Effect::ReadStatistics { .. }
                    | Effect::PublishLanes(_)
                    | Effect::Notify(_)
                    | Effect::HandOver { .. } => {}
                }
            }
        }
        sends
    }

    async fn fed(&mut self, count: usize) -> Vec<posthaste_store::CommittedDelivery> {
        let mut rows = Vec::with_capacity(count);
        while rows.len() < count {
            rows.extend(self.feed.next().await.unwrap());
        }
        rows
    }

    fn event(&self, tenant: &str) -> NewEvent {
        let now = self.store.now();
        let event = Event {
            id: EventId::from_unique(self.store.unique()),
            tenant: TenantId::parse(tenant).unwrap(),
            event_type: EventType::parse("invoice.paid").unwrap(),
            version: None,
            timestamp: now,
            accepted_at: now,
            data: self.data.clone(),
            labels: Labels::default(),
            idempotency_key: None,
            ordering_key: None,
            timing: Timing::default(),
            trace: None,
        };
        NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [0; 32], resolved: None }
    }

    fn request(&self, sending: &SendRequest) -> Request<http_body_util::Full<bytes::Bytes>> {
        let endpoint = &sending.target.stored().endpoint;
        request::build(&Try {
            delivery: sending.send.delivery,
            attempt: sending.number,
            event: &sending.event,
            address: &self.address,
            signer: &self.signer,
            payload_format: endpoint.payload_format,
            headers: &endpoint.headers,
            now: self.store.now(),
            span: None,
        })
    }

    fn attempt(&self, sending: &SendRequest, posted: Posted) -> AttemptRecord {
        assert!(matches!(posted.outcome, Outcome::Answered { status: 200, .. }), "{posted:?}");
        AttemptRecord {
            id: AttemptId::from_unique(self.store.unique()),
            number: sending.number,
            outcome: posted.outcome,
            response_time: posted.response_time,
            timings: posted.timings,
            timeout: sending.timeout,
            preview: posted.preview,
            error: posted.error,
            attempted_at: self.store.now(),
            endpoint_version: Some(sending.target.stored().version),
        }
    }
}

/// About what a webhook weighs.
fn payload() -> String {
    format!(r#"{{"invoice": "inv_456", "amount": 4999, "note": "{}"}}"#, "x".repeat(460))
}

fn publication(event_type: &str) -> Request<Body> {
    let data = payload();
    let body = format!(r#"{{"type":"{event_type}","tenant":"published","version":"2026-04-08","data":{data}}}"#);
    request_to("/v1/events", &body)
}

fn request_to(path: &str, body: &str) -> Request<Body> {
    Request::post(path)
        .header("authorization", format!("Bearer {KEY}"))
        .header("content-type", "application/json")
        .header("content-length", body.len())
        .header("host", "hooks.example.com")
        .header("user-agent", "bench")
        .body(Body::from(body.to_owned()))
        .unwrap()
}

async fn ask(router: &mut Router, path: &str, body: &str, status: u16) -> Value {
    let response = router.call(request_to(path, body)).await.unwrap();
    let answered = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), 100_000).await.unwrap();
    assert_eq!(answered, status, "{}", String::from_utf8_lossy(&bytes));
    serde_json::from_slice(&bytes).unwrap()
}

/// A process of its own, so that what it does is not counted.
struct Receiver {
    child: Child,
    url: String,
}

impl Receiver {
    fn start() -> Receiver {
        let this = std::env::current_exe().unwrap();
        let mut child = Command::new(this).arg("receiver").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Receiver { child, url: line.trim().to_owned() }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers every request with `ok`, until whoever has started it is gone.
async fn receive() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        tokio::spawn(async move {
            let mut read = Vec::with_capacity(8192);
            while stream.read_buf(&mut read).await.is_ok_and(|bytes| bytes > 0) {
                let Some(length) = request_length(&read) else { continue };
                read.drain(..length);
                if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Of a whole request, if there is one.
fn request_length(read: &[u8]) -> Option<usize> {
    let head = read.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&read[..head]).unwrap().to_ascii_lowercase();
    let body: usize = text.lines().find_map(|line| line.strip_prefix("content-length:"))?.trim().parse().ok()?;
    (read.len() >= head + body).then_some(head + body)
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let directory = std::env::temp_dir().join(format!("posthaste-instructions-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        Scratch(directory)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
