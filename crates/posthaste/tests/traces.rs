//! Traces of the real binary: what a collector sees of an event, what its receivers are told, and what nobody is ever told.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use parking_lot::Mutex;
use posthaste_checker::caller::Caller;
use posthaste_checker::world::World;
use prost::Message;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

const BINARY: &str = env!("CARGO_BIN_EXE_posthaste");
const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// However slow this machine is today.
const PATIENCE: Duration = Duration::from_mins(1);

/// Takes requests, keeps them, and answers what it was told to, one after the other; after that 200.
struct Taker {
    address: SocketAddr,
    taken: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    count: watch::Receiver<usize>,
}

impl Taker {
    async fn start(statuses: &[u16]) -> Taker {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let taken: Arc<Mutex<Vec<_>>> = Arc::default();
        let (counted, count) = watch::channel(0);
        let statuses: Arc<[StatusCode]> = statuses.iter().map(|status| StatusCode::from_u16(*status).unwrap()).collect();
        let kept = Arc::clone(&taken);
        let take = move |request: Request| {
            let (kept, counted, statuses) = (Arc::clone(&kept), counted.clone(), Arc::clone(&statuses));
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let mut kept = kept.lock();
                kept.push((head.headers, body));
                counted.send_modify(|count| *count += 1);
                statuses.get(kept.len() - 1).copied().unwrap_or(StatusCode::OK)
            }
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(take)).await });
        Taker { address, taken, count }
    }

    async fn wait_for(&mut self, requests: usize) {
        let came = tokio::time::timeout(PATIENCE, self.count.wait_for(|count| *count >= requests)).await.is_ok();
        assert!(came, "{} of {requests} requests came", *self.count.borrow());
    }

    /// `traceparent` and `tracestate` of all that has come.
    fn told(&self) -> Vec<[Option<String>; 2]> {
        let header = |headers: &HeaderMap, name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        self.taken.lock().iter().map(|(headers, _)| ["traceparent", "tracestate"].map(|name| header(headers, name))).collect()
    }

    fn spans(&self) -> Vec<Seen> {
        let read = |body: &Bytes| ExportTraceServiceRequest::decode(body.clone()).unwrap().resource_spans;
        let resources: Vec<_> = self.taken.lock().iter().flat_map(|(_, body)| read(body)).collect();
        resources.into_iter().flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).map(Seen).collect()
    }

    async fn wait_for_spans(&mut self, spans: usize) -> Vec<Seen> {
        let mut requests = 0;
        while self.spans().len() < spans {
            requests += 1;
            self.wait_for(requests).await;
        }
        self.spans()
    }
}

/// A span as a collector sees it.
#[derive(Clone, PartialEq, Debug)]
struct Seen(Span);

impl Seen {
    fn id(&self) -> String {
        hex(&self.0.span_id)
    }

    fn parent(&self) -> String {
        hex(&self.0.parent_span_id)
    }

    fn trace(&self) -> String {
        hex(&self.0.trace_id)
    }

    fn time(&self) -> (u64, u64) {
        (self.0.start_time_unix_nano, self.0.end_time_unix_nano)
    }

    fn has_failed(&self) -> bool {
        self.0.status.as_ref().is_some_and(|status| status.code() == SpanStatus::Error)
    }

    fn attributes(&self) -> BTreeMap<&str, String> {
        let value = |value: &Any| match value {
            Any::StringValue(text) => text.clone(),
            Any::IntValue(number) => number.to_string(),
            other @ (Any::BoolValue(_)
            | Any::DoubleValue(_)
            | Any::ArrayValue(_)
            | Any::KvlistValue(_)
            | Any::BytesValue(_)
            | Any::StringValueStrindex(_)) => panic!("{other:?}"),
        };
        let attributes = self.0.attributes.iter();
        attributes.map(|one| (one.key.as_str(), value(one.value.as_ref().unwrap().value.as_ref().unwrap()))).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// All of this name, in the order of time.
fn named(spans: &[Seen], name: &str) -> Vec<Seen> {
    let mut found: Vec<Seen> = spans.iter().filter(|span| span.0.name == name).cloned().collect();
    found.sort_by_key(|span| span.time().1);
    found
}

/// The steps of a span, by these names, one after the other and none outside of it.
#[track_caller]
fn steps(spans: &[Seen], of: &Seen, names: &[&str]) -> Vec<Seen> {
    let mut below: Vec<Seen> = spans.iter().filter(|span| span.parent() == of.id()).cloned().collect();
    below.retain(|span| span.0.name != "webhook.deliver");
    below.sort_by_key(|span| (span.time().0, names.iter().position(|name| *name == span.0.name)));
    let found: Vec<&str> = below.iter().map(|span| span.0.name.as_str()).collect();
    assert_eq!(found, names);
    let mut last = of.time().0;
    for step in &below {
        let (began, ended) = step.time();
        assert!(last <= began && began <= ended && ended <= of.time().1, "{} is out of order: {below:#?}", step.0.name);
        last = ended;
    }
    below
}

async fn world(seed: u64, flags: &[(&str, &str)]) -> World {
    let mut world = World::new(Path::new(BINARY), seed).await.unwrap();
    for (flag, value) in flags {
        world.program.set(flag, value);
    }
    world.start(&[]).await.unwrap();
    world
}

async fn traced_world(seed: u64, collector: &Taker, ratio: &str) -> World {
    let endpoint = format!("http://{}", collector.address);
    world(seed, &[("--otlp-endpoint", &endpoint), ("--trace-sample-ratio", ratio), ("--log", "info")]).await
}

async fn post(caller: &mut Caller, path: &str, body: Value, status: u16) -> Value {
    let answer = caller.post(path, &body).await.unwrap();
    assert_eq!(answer.status, status, "{path}: {}", answer.json());
    answer.json()
}

async fn make_endpoint(world: &World, hook: &Taker) -> Value {
    let url = format!("http://{}/hook", hook.address);
    post(&mut world.caller(), "/v1/endpoints", json!({"tenant": "acme", "url": url}), 201).await
}

fn event() -> Value {
    json!({"tenant": "acme", "type": "invoice.paid", "data": {"amount": 5}})
}

const PUBLISH_STEPS: [&str; 3] = ["create_event", "resolve_subscriptions", "enqueue_deliveries"];
const DELIVER_STEPS: [&str; 5] =
    ["claim_delivery", "sign_payload", "http_post_customer_endpoint", "mark_delivered_or_retry", "record_attempt"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_is_one_trace_from_its_publishing_to_its_last_attempt() {
    let (mut collector, mut hook) = (Taker::start(&[]).await, Taker::start(&[500]).await);
    let mut world = traced_world(31, &collector, "1").await;
    let endpoint = make_endpoint(&world, &hook).await;
    let published = post(&mut world.caller(), "/v1/events", event(), 202).await;
    hook.wait_for(2).await;
    let spans = collector.wait_for_spans(4 + 2 * 6).await;
    world.stop().await.unwrap();
    assert_eq!(collector.spans().len(), 16, "and no others");

    let [publish] = named(&spans, "webhook.publish").try_into().unwrap();
    let log = std::fs::read_to_string(&world.program.log).unwrap();
    let attempts: Vec<&str> = log.lines().filter(|line| line.contains("webhook_delivery_attempt")).collect();
    assert!(attempts.len() == 2 && attempts.iter().all(|line| line.contains(&publish.trace())), "{log}");
    assert!(spans.iter().all(|span| span.trace() == publish.trace()), "one trace: {spans:#?}");
    assert_eq!((publish.parent().as_str(), publish.0.kind(), publish.has_failed()), ("", SpanKind::Server, false));
    let publish_steps = steps(&spans, &publish, &PUBLISH_STEPS);
    let attributes = publish.attributes();
    for (name, value) in [
        ("messaging.system", "posthaste"),
        ("messaging.message.id", published["id"].as_str().unwrap()),
        ("messaging.destination.name", "invoice.paid"),
        ("posthaste.tenant", "acme"),
        ("posthaste.event.type", "invoice.paid"),
        ("posthaste.publish.result", "made"),
        ("posthaste.deliveries", "1"),
        ("http.route", "/v1/events"),
    ] {
        assert_eq!(attributes[name], value, "{name}");
    }

    let [first, second] = named(&spans, "webhook.deliver").try_into().unwrap();
    let mut posts = Vec::new();
    for (deliver, number, status, verdict) in [(&first, "1", "500", "retry"), (&second, "2", "200", "delivered")] {
        let is_success = status == "200";
        assert_eq!((deliver.parent(), deliver.0.kind()), (publish.id(), SpanKind::Consumer), "below the publishing");
        assert_eq!(deliver.has_failed(), !is_success);
        let attributes = deliver.attributes();
        for (name, value) in [
            ("messaging.message.id", published["id"].as_str().unwrap()),
            ("posthaste.tenant", "acme"),
            ("posthaste.event.type", "invoice.paid"),
            ("posthaste.endpoint.id", endpoint["id"].as_str().unwrap()),
            ("posthaste.attempt.number", number),
            ("posthaste.attempt.outcome", if is_success { "success" } else { "http_error" }),
            ("http.response.status_code", status),
            ("posthaste.verdict", verdict),
        ] {
            assert_eq!(attributes[name], value, "{name} of attempt {number}");
        }
        assert!(attributes["posthaste.delivery.id"].starts_with("dlv_") && attributes["posthaste.attempt.id"].starts_with("att_"));
        assert_eq!(attributes.contains_key("posthaste.next_attempt_at"), !is_success);
        assert_eq!(attributes.get("error.type").map(String::as_str), (!is_success).then_some("500"));
        let [_, _, sent, _, _]: [Seen; 5] = steps(&spans, deliver, &DELIVER_STEPS).try_into().unwrap();
        let of_request = sent.attributes();
        assert_eq!((sent.0.kind(), sent.has_failed()), (SpanKind::Client, !is_success));
        assert_eq!((of_request["server.address"].as_str(), of_request["url.scheme"].as_str()), ("127.0.0.1", "http"));
        assert_eq!(of_request["server.port"], hook.address.port().to_string());
        posts.push(sent);
    }
    assert!(publish_steps[2].time().0 <= posts[0].time().0, "nothing is sent before it is being written");
    assert!(posts[0].time().1 <= posts[1].time().0, "one attempt after the other");
    let told = hook.told();
    let below = |post: &Seen| [Some(format!("00-{}-{}-01", post.trace(), post.id())), None];
    assert_eq!(told, [below(&posts[0]), below(&posts[1])], "receivers are told of the request's span");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_s_trace_goes_on_and_whether_it_is_looked_at_is_the_caller_s_to_say() {
    let (mut collector, mut hook) = (Taker::start(&[]).await, Taker::start(&[]).await);
    // Of those without a caller's trace, none.
    let mut world = traced_world(32, &collector, "0").await;
    make_endpoint(&world, &hook).await;
    let unsampled = PARENT.replace("-01", "-00");
    let with = |parent: &str| world.caller().with_header("traceparent", parent).with_header("tracestate", "rojo=1, congo=2");
    post(&mut world.caller(), "/v1/events", event(), 202).await;
    hook.wait_for(1).await;
    post(&mut with(&unsampled), "/v1/events", event(), 202).await;
    hook.wait_for(2).await;
    post(&mut with(&PARENT.replace("00-4", "00-X")), "/v1/events", event(), 202).await;
    hook.wait_for(3).await;
    let batch = post(&mut with(PARENT), "/v1/events/batch", json!([event(), event()]), 202).await;
    assert_eq!(batch["accepted"], 2);
    hook.wait_for(5).await;
    let spans = collector.wait_for_spans(2 * (4 + 6)).await;
    world.stop().await.unwrap();
    assert_eq!(collector.spans().len(), 20, "and no others");

    let publishes = named(&spans, "webhook.publish");
    assert_eq!(publishes.len(), 2, "each of a batch has its own");
    assert_ne!(publishes[0].id(), publishes[1].id());
    for publish in &publishes {
        assert_eq!(
            (publish.parent().as_str(), publish.0.flags),
            ("00f067aa0ba902b7", 0x301),
            "below the caller's, which is elsewhere"
        );
        assert_eq!(publish.attributes()["http.route"], "/v1/events/batch");
        steps(&spans, publish, &PUBLISH_STEPS);
        let deliver = spans.iter().find(|span| span.0.name == "webhook.deliver" && span.parent() == publish.id()).unwrap();
        steps(&spans, deliver, &DELIVER_STEPS);
    }
    assert!(spans.iter().all(|span| span.trace() == "4bf92f3577b34da6a3ce929d0e0e4736"));
    let told = hook.told();
    let state = Some("rojo=1,congo=2".to_owned());
    assert_eq!(told[0], [None, None], "nobody looks, and nobody has said anything");
    assert_eq!(told[1], [Some(unsampled), state.clone()], "as it came");
    assert_eq!(told[2], [None, None], "nonsense is not passed on");
    for told in &told[3..] {
        let [Some(parent), passed] = told else { panic!("{told:?}") };
        assert_eq!(*passed, state);
        let post = named(&spans, "http_post_customer_endpoint").into_iter().find(|post| parent.contains(&post.id()));
        assert_eq!(*parent, format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", post.unwrap().id()));
    }
}

/// Without a collector there are no spans, and what a caller has said is passed on all the same.
async fn passed_on_after_a_kill(seed: u64, database: &[(&str, &str)]) {
    let mut hook = Taker::start(&[500]).await;
    let mut world = World::new(Path::new(BINARY), seed).await.unwrap();
    for (flag, value) in database {
        world.program.set(flag, value);
    }
    // Nothing is tried again by itself before the test has done what it wants to.
    world.program.set("--retry-base-ms", "600000");
    world.program.set("--retry-cap-ms", "600000");
    world.program.set("--retry-jitter", "none");
    world.start(&[]).await.unwrap();
    make_endpoint(&world, &hook).await;
    let mut caller = world.caller().with_header("traceparent", PARENT).with_header("tracestate", "rojo=1");
    let published = post(&mut caller, "/v1/events", event(), 202).await;
    hook.wait_for(1).await;
    let path = format!("/v1/deliveries?event={}", published["id"].as_str().unwrap());
    let delivery = wait_until(&mut world.caller(), &path, |row| row["attempt_count"] == 1).await;
    world.kill().unwrap();
    world.start(&[]).await.unwrap();
    // Due now instead of later, by another process than the one that has read the header.
    let again = format!("/v1/deliveries/{}/retry", delivery["id"].as_str().unwrap());
    // On PostgreSQL the lease of the one that was killed has to end first.
    let deadline = Instant::now() + PATIENCE;
    while world.caller().post(&again, &json!({})).await.unwrap().status != 202 {
        assert!(Instant::now() < deadline, "nobody takes it up");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    hook.wait_for(2).await;
    wait_until(&mut world.caller(), &path, |row| row["status"] == "delivered").await;
    post(&mut world.caller(), &again, json!({}), 202).await;
    hook.wait_for(3).await;
    world.stop().await.unwrap();
    // First try, retry after a crash, replay; and one more if a wish was heard although its answer was lost.
    let (told, verbatim) = (hook.told(), [Some(PARENT.to_owned()), Some("rojo=1".to_owned())]);
    assert!(told.len() >= 3 && told.iter().all(|told| *told == verbatim), "{told:?}");
}

async fn wait_until(caller: &mut Caller, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = caller.get(path).await.unwrap().json();
        let row = &page["data"][0];
        if holds(row) {
            return row.clone();
        }
        assert!(Instant::now() < deadline, "{row}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_s_trace_outlives_a_crash_and_goes_with_retries_and_replays() {
    passed_on_after_a_kill(33, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_s_trace_outlives_a_crash_on_postgresql_too() {
    let postgres = posthaste_testpg::Server::start();
    passed_on_after_a_kill(34, &[("--database-url", &postgres.url()), ("--master-key", MASTER_KEY)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i45_no_secret_and_no_payload_is_in_any_byte_that_a_collector_gets() {
    let (mut collector, mut hook) = (Taker::start(&[]).await, Taker::start(&[500]).await);
    let endpoint = format!("http://{}", collector.address);
    let flags = [
        ("--otlp-endpoint", endpoint.as_str()),
        ("--otlp-headers", "authorization=Bearer%20canary-of-the-collector"),
        ("--trace-sample-ratio", "1"),
        ("--master-key", MASTER_KEY),
        ("--log", "debug"),
    ];
    let mut world = world(35, &flags).await;
    let body = json!({
        "tenant": "acme",
        "url": format!("http://{}/canary-of-the-path?key=canary-of-the-query", hook.address),
        "secret": "whsec_Y2FuYXJ5LW9mLXRoZS1lbmRwb2ludC1zZWNyZXQ=",
        "headers": {"authorization": "Bearer canary-of-the-endpoint"},
        "description": "canary-of-the-description",
        "metadata": {"note": "canary-of-the-metadata"},
    });
    post(&mut world.caller(), "/v1/endpoints", body, 201).await;
    let event = json!({
        "tenant": "acme", "type": "invoice.paid", "data": {"card": "canary-of-the-payload"},
        "idempotency_key": "canary-of-the-key", "ordering_key": "canary-of-the-ordering", "labels": ["canary-of-the-label"],
    });
    post(&mut world.caller(), "/v1/events", event, 202).await;
    hook.wait_for(2).await;
    collector.wait_for_spans(16).await;
    world.stop().await.unwrap();
    let taken = collector.taken.lock();
    assert!(taken.iter().all(|(headers, _)| headers["authorization"] == "Bearer canary-of-the-collector"));
    let secrets = ["canary", "Y2FuYXJ5", MASTER_KEY, &world.program.admin_key, "whsec_"];
    let said = std::fs::read_to_string(&world.program.log).unwrap();
    for secret in secrets {
        for (_, body) in taken.iter() {
            let found = body.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{secret} is in {:?}", String::from_utf8_lossy(body));
        }
    }
    assert!(!said.contains("canary-of-the-collector"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_hangs_holds_up_neither_deliveries_nor_for_long_a_stop() {
    // Takes connections and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let mut hook = Taker::start(&[]).await;
    let mut world = world(36, &[("--otlp-endpoint", &endpoint), ("--trace-sample-ratio", "1")]).await;
    make_endpoint(&world, &hook).await;
    let batch: Vec<Value> = (0..100).map(|_| event()).collect();
    post(&mut world.caller(), "/v1/events/batch", json!(batch), 202).await;
    hook.wait_for(100).await;
    let metrics = world.caller().get("/metrics").await.unwrap();
    let metrics = std::str::from_utf8(&metrics.body).unwrap();
    assert!(metrics.contains("\nposthaste_spans_exported_total 0\n"), "{metrics}");
    assert!(metrics.contains("\nposthaste_spans_dropped_total{reason=\"queue_full\"} 0\n"), "{metrics}");
    let began = Instant::now();
    world.stop().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let said = std::fs::read_to_string(&world.program.log).unwrap();
    assert!(said.contains("the collector did not take the last spans in time"), "{said}");
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_refuses_is_complained_of_once_and_its_spans_are_counted() {
    let (mut collector, mut hook) = (Taker::start(&[401; 100]).await, Taker::start(&[]).await);
    let mut world = traced_world(37, &collector, "1").await;
    make_endpoint(&world, &hook).await;
    for n in 1..=2 {
        post(&mut world.caller(), "/v1/events", event(), 202).await;
        hook.wait_for(n).await;
        collector.wait_for(n).await;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metrics = world.caller().get("/metrics").await.unwrap();
        let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
        if metrics.contains("\nposthaste_spans_dropped_total{reason=\"refused\"} 20\n") {
            break;
        }
        assert!(Instant::now() < deadline, "{metrics}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.stop().await.unwrap();
    let said = std::fs::read_to_string(&world.program.log).unwrap();
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains("spans are lost on their way")).collect();
    assert_eq!(complaints.len(), 1, "{said}");
    assert!(complaints[0].contains("the collector answered 401"), "{said}");
}
