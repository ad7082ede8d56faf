//! A database that keeps its connections open and answers nothing, and one whose clock is another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_api::Options;
use posthaste_store::{ClockSource, SystemClock};

use crate::server::{ADMIN, Answer, Server, options};

/// Within this time a client hears that the database is away.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

async fn timed(server: &Server, method: &str, path: &str, body: &str) -> (Answer, Duration) {
    let began = Instant::now();
    let answer = server.call(ADMIN, method, path, body.to_owned()).await;
    (answer, began.elapsed())
}

/// A server whose tables, routes and connections have been used, so that nothing but the database can be slow.
async fn used(options: Options) -> Server {
    let server = Server::on_postgres_with(options).await;
    server.endpoint(r#"{"url": "http://127.0.0.1:8081/", "tenant": "acme"}"#).await;
    server.post("/v1/events", EVENT).await.expect(202);
    server
}

const EVENT: &str = r#"{"type": "invoice.paid", "tenant": "acme", "data": {"amount": 4999}}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i37_every_call_is_answered_within_five_seconds_while_the_database_hangs() {
    let server = used(options()).await;
    server.database().freeze();
    let mut calls = Vec::new();
    for route in posthaste_api::routes() {
        let path = route
            .path
            .replace("uid:{uid}", "uid:mine")
            .replace("/v1/endpoints/{id}", "/v1/endpoints/ep_01hzy5k8e0000000000000000a")
            .replace("/v1/deliveries/{id}", "/v1/deliveries/dlv_01hzy5k8e0000000000000000a")
            .replace("{id}", "evt_1")
            .replace("{name}", "invoice.paid");
        let body = if route.method == "GET" || route.method == "DELETE" { "" } else { route.example };
        calls.push((route.method, path, body));
    }
    let answers = calls.iter().map(|(method, path, body)| timed(&server, method.as_str(), path, body));
    let mut slowest = Duration::ZERO;
    for ((method, path, _), (answer, took)) in calls.iter().zip(futures_util::future::join_all(answers).await) {
        assert!(took < TOLD_WITHIN, "{method} {path}: {} after {took:?}", answer.status);
        if answer.status == 503 {
            assert!(answer.headers.contains_key("retry-after"), "{method} {path}");
        }
        let is_publishing = path.starts_with("/v1/events") && method == "POST" && !path.ends_with("/cancel");
        assert!(!is_publishing || answer.status == 503, "{method} {path}: {}", answer.text());
        slowest = slowest.max(took);
    }
    println!("the slowest of {} calls was answered after {slowest:?}", calls.len());
    server.database().thaw();
    let began = Instant::now();
    while server.post("/v1/events", EVENT).await.status != 202 {
        assert!(began.elapsed() < Duration::from_secs(20), "it goes on");
    }
    println!("publishing worked again {:?} after the database", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i37_the_api_waits_no_longer_than_its_own_limit_and_says_that_the_outcome_is_not_known() {
    let limit = Duration::from_millis(300);
    let server = used(Options { answer_max: limit, ..options() }).await;
    server.database().freeze();
    let (published, took) = timed(&server, "POST", "/v1/events", EVENT).await;
    assert!(took >= limit && took < Duration::from_secs(2), "{took:?}");
    assert!(published.headers.contains_key("retry-after"));
    assert!(published.text().contains("not known"), "{}", published.text());
    published.expect(503);
    let (read, took) = timed(&server, "GET", "/v1/deliveries", "").await;
    assert!(took >= limit && took < Duration::from_secs(2), "{took:?}");
    assert!(!read.text().contains("not known"), "{}", read.text());
    read.expect(503);
    server.database().thaw();
}

/// A clock that is two hours ahead.
#[derive(Debug, Default)]
struct Ahead(SystemClock);

impl ClockSource for Ahead {
    fn wall(&self) -> Duration {
        self.0.wall() + Duration::from_hours(2)
    }

    fn boottime(&self) -> Duration {
        self.0.boottime()
    }

    fn is_synchronised(&self) -> Option<bool> {
        self.0.is_synchronised()
    }

    fn boot_id(&self) -> String {
        self.0.boot_id()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i35_a_node_whose_clock_is_far_from_the_database_s_is_not_ready_and_says_why() {
    let server = Server::on_postgres_with_clock(options(), Arc::new(Ahead::default())).await;
    let answer = server.get("/readyz").await;
    assert!(answer.text().contains("more than 5 seconds apart"), "{}", answer.text());
    answer.expect(503);
    server.post("/v1/events", EVENT).await.expect(202);
    assert!(server.deliveries().await.is_empty());
    Server::on_postgres().await.get("/readyz").await.expect(200);
}
