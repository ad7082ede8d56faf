//! `/metrics` of the real binary: that it tells the truth, and to whom.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use posthaste_checker::caller::Caller;
use posthaste_checker::receiver::Behaviour;
use posthaste_checker::world::World;
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_posthaste");

async fn world(seed: u64) -> World {
    World::new(Path::new(BINARY), seed).await.unwrap()
}

/// A page, as Prometheus would read it.
struct Scraped(Vec<(String, BTreeMap<String, String>, f64)>);

impl Scraped {
    fn read(text: &str) -> Scraped {
        let sample = |line: &str| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
            let label = |label: &str| {
                let (name, value) = label.split_once("=\"").unwrap();
                (name.to_owned(), value.trim_end_matches('"').to_owned())
            };
            (name.to_owned(), labels.map(label).collect(), value.parse().unwrap())
        };
        Scraped(text.lines().filter(|line| !line.starts_with('#')).map(sample).collect())
    }

    async fn of(caller: &mut Caller) -> Scraped {
        let answer = caller.get("/metrics").await.unwrap();
        assert_eq!(answer.status, 200);
        Scraped::read(std::str::from_utf8(&answer.body).unwrap())
    }

    fn sum(&self, name: &str) -> u64 {
        self.by(name, "").values().sum()
    }

    /// Sums by a label, without those that are zero.
    fn by(&self, name: &str, label: &str) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (_, labels, value) in self.0.iter().filter(|(other, ..)| other == name) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
            let count = *value as u64;
            *sums.entry(labels.get(label).cloned().unwrap_or_default()).or_default() += count;
        }
        sums.retain(|_, sum| *sum > 0);
        sums
    }
}

/// Every row of a list.
async fn all(caller: &mut Caller, path: &str) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut cursor = String::new();
    loop {
        let answer = caller.get(&format!("{path}?limit=250{cursor}")).await.unwrap();
        assert_eq!(answer.status, 200, "{path}");
        let page = answer.json();
        rows.extend(page["data"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

fn counted<'a>(words: impl IntoIterator<Item = &'a Value>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word.as_str().unwrap_or("none").to_owned()).or_default() += 1;
    }
    counts
}

async fn post(caller: &mut Caller, path: &str, body: Value, status: u16) -> Value {
    let answer = caller.post(path, &body).await.unwrap();
    assert_eq!(answer.status, status, "{path}: {}", answer.json());
    answer.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_counters_agree_with_the_database_after_a_mixed_run_with_faults() {
    counters_agree(world(7).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_counters_agree_with_the_database_on_postgresql_too() {
    let postgres = posthaste_testpg::Server::start();
    let mut world = world(11).await;
    world.program.set("--database-url", &postgres.url());
    world.program.set("--master-key", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=");
    counters_agree(world).await;
}

/// Failures of all kinds, retries, deaths, cancels and replays; then both are asked.
async fn counters_agree(mut world: World) {
    // Some die of their last attempt, too.
    world.program.set("--retry-max-attempts", "3");
    world.start(&[]).await.unwrap();
    world.furnish().await.unwrap();
    world.furnish_holds().await.unwrap();
    let publishing = world.publish(150);
    wait_until("enough was published", || world.desk.acknowledged_since(0) > 400).await;
    publishing.stop().await;
    world.settle().await;
    let mut caller = world.caller();
    // What has died is sent again: one by itself, the rest by a replay.
    let dead = caller.get("/v1/dead-letters?tenant=t0&limit=2").await.unwrap().json();
    let dead: Vec<String> = dead["data"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(dead.len(), 2, "some have died");
    for id in &dead {
        post(&mut caller, &format!("/v1/dead-letters/{id}/retry"), json!({}), 202).await;
    }
    let replay = json!({"tenant": "t0", "status": ["dead"], "reason": "a test"});
    let replay = post(&mut caller, "/v1/replays", replay, 202).await;
    let path = format!("/v1/replays/{}", replay["id"].as_str().unwrap());
    let deadline = Instant::now() + Duration::from_mins(1);
    while caller.get(&path).await.unwrap().json()["state"] != "done" {
        assert!(Instant::now() < deadline, "the replay ends");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Gauges are a second old; counters are not, once nothing moves.
    let (mut books, mut scraped);
    loop {
        books = Books::read(&mut caller).await;
        scraped = Scraped::of(&mut caller).await;
        let again = Books::read(&mut caller).await;
        let is_quiet = books == again && !books.statuses.contains_key("delivering") && !books.statuses.contains_key("pending");
        if is_quiet && scraped.by("webhook_queue_depth", "hold_reason") == books.held {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "gauges agree with what the API shows: {:?} and {:?}, {:?}",
            scraped.by("webhook_queue_depth", "hold_reason"),
            books.held,
            books.statuses
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for reason in ["paused", "quiet_hours", "rate_limited", "deliver_at"] {
        assert!(books.held.get(reason).is_some_and(|count| *count >= 5), "{reason}: {:?}", books.held);
    }
    assert_eq!(scraped.sum("webhook_events_created_total"), books.events);
    assert_eq!(scraped.sum("webhook_deliveries_created_total"), books.deliveries);
    assert_eq!(scraped.by("webhook_deliveries_created_total", "origin")["replay"], books.replayed);
    assert_eq!(scraped.sum("webhook_deliveries_attempted_total"), books.attempts);
    assert_eq!(scraped.sum("webhook_deliveries_succeeded_total"), books.statuses["delivered"]);
    assert_eq!(scraped.by("webhook_deliveries_failed_total", "reason"), books.failures);
    assert!(books.failures.len() >= 3, "failures of several kinds: {:?}", books.failures);
    assert_eq!(scraped.by("webhook_dead_lettered_total", "reason"), books.dead);
    assert!(books.dead.contains_key("endpoint_gone") && books.dead.contains_key("max_attempts_exceeded"), "{:?}", books.dead);
    assert_eq!(scraped.by("webhook_deliveries_cancelled_total", "reason"), books.cancelled);
    assert_eq!(books.cancelled["requested"], 2);
    assert_eq!(scraped.by("webhook_endpoint_attempts_total", "endpoint"), books.attempts_by_endpoint);
    assert_eq!(scraped.by("webhook_replay_requests_total", "kind"), BTreeMap::from([("replay".into(), 1), ("retry".into(), 2)]));
    assert_eq!(scraped.sum("webhook_delivery_latency_ms_count"), books.attempts);
    assert_eq!(scraped.sum("webhook_delivery_age_seconds_count"), books.statuses["delivered"]);
    assert_eq!(scraped.sum("webhook_deliveries_in_flight"), 0);
    let made = books.statuses.values().sum::<u64>();
    assert_eq!(made, books.deliveries);
}

/// What the API says.
#[derive(PartialEq, Debug)]
struct Books {
    events: u64,
    deliveries: u64,
    replayed: u64,
    statuses: BTreeMap<String, u64>,
    held: BTreeMap<String, u64>,
    dead: BTreeMap<String, u64>,
    cancelled: BTreeMap<String, u64>,
    attempts: u64,
    attempts_by_endpoint: BTreeMap<String, u64>,
    failures: BTreeMap<String, u64>,
}

impl Books {
    async fn read(caller: &mut Caller) -> Books {
        let deliveries = all(caller, "/v1/deliveries").await;
        let (mut attempts, mut attempts_by_endpoint, mut failures) = (0, BTreeMap::<String, u64>::new(), BTreeMap::new());
        for row in &deliveries {
            let count = row["attempt_count"].as_u64().unwrap();
            attempts += count;
            *attempts_by_endpoint.entry(row["endpoint"].as_str().unwrap().to_owned()).or_default() += count;
            // The first try of most is all there is to know of them.
            if count > 0 && !(count == 1 && row["status"] == "delivered") {
                let tried = all(caller, &format!("/v1/deliveries/{}/attempts", row["id"].as_str().unwrap())).await;
                assert_eq!(tried.len() as u64, count);
                for attempt in tried.iter().filter(|attempt| attempt["outcome"] != "success") {
                    *failures.entry(attempt["outcome"].as_str().unwrap().to_owned()).or_default() += 1;
                }
            }
        }
        attempts_by_endpoint.retain(|_, count| *count > 0);
        let of = |status: &'static str, field: &'static str| {
            counted(deliveries.iter().filter(|row| row["status"] == status).map(|row| &row[field]))
        };
        Books {
            events: all(caller, "/v1/events").await.len() as u64,
            deliveries: deliveries.len() as u64,
            replayed: deliveries.iter().filter(|row| !row["replay_of"].is_null()).count() as u64,
            statuses: counted(deliveries.iter().map(|row| &row["status"])),
            held: of("scheduled", "hold_reason"),
            dead: of("dead", "dead_reason"),
            cancelled: of("cancelled", "cancel_reason"),
            attempts,
            attempts_by_endpoint,
            failures,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_that_does_not_fit_into_memory_is_counted_all_the_same() {
    let mut world = world(8).await;
    world.start(&[]).await.unwrap();
    let mut caller = world.caller();
    let url = world.receiver.url(world.receiver.add(Behaviour::Healthy));
    let endpoint = post(&mut caller, "/v1/endpoints", json!({"tenant": "t0", "url": url}), 201).await;
    let endpoint = endpoint["id"].as_str().unwrap().to_owned();
    post(&mut caller, &format!("/v1/endpoints/{endpoint}/pause"), json!({}), 200).await;
    for batch in 0..3 {
        let event = |number: u32| {
            let key = (number < 100).then(|| format!("key-{}", number % 10));
            json!({"tenant": "t0", "type": "order.made", "data": {"number": number}, "ordering_key": key})
        };
        let events: Vec<Value> = (0..500).map(|number| event(batch * 500 + number)).collect();
        post(&mut caller, "/v1/events/batch", Value::Array(events), 202).await;
    }
    let depth = |scraped: &Scraped| scraped.by("webhook_queue_depth", "hold_reason");
    wait_for(&mut caller, "all 1,500 are counted", |scraped| depth(scraped) == BTreeMap::from([("paused".into(), 1500)])).await;
    post(&mut caller, &format!("/v1/endpoints/{endpoint}/resume"), json!({}), 200).await;
    wait_for(&mut caller, "all of them have gone", |scraped| {
        depth(scraped).is_empty() && scraped.sum("webhook_deliveries_succeeded_total") == 1500
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_an_address_of_their_own_and_both_formats() {
    let mut world = world(9).await;
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    world.program.set("--metrics-listen", &port.to_string());
    world.start(&[]).await.unwrap();
    world.furnish_plainly().await.unwrap();
    let load = world.load(1);
    world.desk.publish(&load, &mut world.caller()).await;
    world.settle().await;
    let text = ask(port, "/metrics", "accept: */*\r\n");
    assert!(text.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{text}");
    assert!(text.contains("\n# TYPE webhook_events_created_total counter\n"), "{text}");
    let open = ask(port, "/metrics", "accept: application/openmetrics-text; version=1.0.0\r\n");
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"), "{open}");
    assert!(open.contains("\n# TYPE webhook_events_created counter\n") && open.ends_with("# EOF\n"), "{open}");
    assert!(ask(port, "/v1/events", "").starts_with("HTTP/1.1 404"), "and nothing else is there");
    let listen = world.program.listen;
    assert!(ask(listen, "/metrics", "").starts_with("HTTP/1.1 200"), "without a key from this machine");
    assert!(ask(listen, "/metrics", "x-forwarded-for: 192.0.2.1\r\n").starts_with("HTTP/1.1 401"), "but not for somebody else");
    let names: BTreeSet<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for name in CONTRACT {
        assert!(names.contains(name), "{name} is missing: {names:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_that_a_rule_or_the_dashboard_asks_for_is_on_the_page_and_every_runbook_is_there() {
    let mut world = world(10).await;
    // Some are shown only where there is an outbox.
    let postgres = posthaste_testpg::Server::start();
    world.program.set("--outbox", &postgres.url());
    world.start(&[]).await.unwrap();
    // The loop has looked over its lanes once.
    wait_for(&mut world.caller(), "the backlog is looked over", |scraped| scraped.sum("posthaste_partitions") > 0).await;
    let page = world.caller().get("/metrics").await.unwrap();
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    let mut names = BTreeSet::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        names.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in
        ["deploy/prometheus/posthaste.rules.yml", "deploy/prometheus/posthaste.rules.test.yml", "deploy/grafana/posthaste.json"]
    {
        let text = std::fs::read_to_string(repository.join(file)).unwrap();
        let words = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
        let is_metric = |word: &&str| ["webhook_", "posthaste_", "process_"].iter().any(|beginning| word.starts_with(beginning));
        let asked: BTreeSet<&str> = words.filter(is_metric).collect();
        assert!(asked.len() > 10, "{file}: {asked:?}");
        for name in asked {
            assert!(names.contains(name), "{file} asks for {name}, which is not on the page");
        }
    }
    let rules = std::fs::read_to_string(repository.join("deploy/prometheus/posthaste.rules.yml")).unwrap();
    let runbooks: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("runbook: ")).collect();
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(runbooks.len(), alerts.len(), "each has one");
    for (alert, runbook) in alerts.iter().zip(runbooks) {
        let page = std::fs::read_to_string(repository.join(runbook)).unwrap_or_else(|_| panic!("{runbook} is not there"));
        assert!(page.contains(alert), "{runbook} does not speak of {alert}");
    }
    let tests = std::fs::read_to_string(repository.join("deploy/prometheus/posthaste.rules.test.yml")).unwrap();
    for alert in alerts {
        let mut cases = tests.split("- alertname: ").filter(|case| case.lines().next() == Some(alert));
        assert!(cases.clone().any(|case| case.contains("exp_labels")), "nothing shows that {alert} fires");
        assert!(cases.any(|case| case.contains("exp_alerts: []")), "nothing shows that {alert} stays silent");
    }
}

/// What users hold on to.
const CONTRACT: [&str; 16] = [
    "webhook_events_created_total",
    "webhook_deliveries_attempted_total",
    "webhook_deliveries_succeeded_total",
    "webhook_deliveries_failed_total",
    "webhook_delivery_latency_ms",
    "webhook_delivery_attempt_count",
    "webhook_delivery_lag_seconds",
    "webhook_delivery_age_seconds",
    "webhook_dead_lettered_total",
    "webhook_replay_requests_total",
    "webhook_queue_depth",
    "webhook_oldest_held_seconds",
    "webhook_expected_hold_seconds",
    "webhook_dead_letters_1h",
    "webhook_attempt_distribution",
    "webhook_circuit_transitions_total",
];

/// One request over a connection of its own.
fn ask(server: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

async fn wait_for(caller: &mut Caller, what: &str, is_so: impl Fn(&Scraped) -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let scraped = Scraped::of(caller).await;
        if is_so(&scraped) {
            return;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}: {:?}", scraped.by("webhook_queue_depth", "hold_reason"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
