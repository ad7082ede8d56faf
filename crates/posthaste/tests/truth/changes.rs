//! A change is in force when it is answered.

use std::sync::Arc;
use std::time::Instant;

use base64::Engine;
use posthaste_checker::signature;
use serde_json::{Value, json};

use crate::server::{Client, Database, Receiver, Server};

const TIMES: usize = 100;
const FLAGS: &[&str] = &["--allow-http", "--allow-networks", "127.0.0.0/8"];

/// One endpoint that is changed, and next to it one that is not: where both should get an event and one has it, the other had
/// its time.
struct World {
    client: Client,
    receiver: Arc<Receiver>,
    endpoint: String,
    _server: Server,
}

impl World {
    async fn new(name: &str, database: Database) -> World {
        let server = Server::start(name, database, FLAGS).await;
        let receiver = Receiver::start().await;
        let mut client = Client::of(&server);
        let endpoint = client.endpoint(json!({"url": receiver.url("changed")})).await;
        client.endpoint(json!({"url": receiver.url("other")})).await;
        let mut world = World { client, receiver, endpoint, _server: server };
        let first = world.publish().await;
        world.receiver.wait_for("/changed", &first).await;
        world
    }

    fn path(&self, verb: &str) -> String {
        format!("/v1/endpoints/{}{verb}", self.endpoint)
    }

    async fn publish(&mut self) -> String {
        self.client.publish(json!({"type": "order.paid", "data": {}})).await
    }

    async fn change(&mut self, change: Value) {
        self.client.patch(&self.path(""), change).await;
    }

    /// Publishes, and says whether the changed endpoint has it by the time the other one does.
    async fn publish_and_check_hold(&mut self) -> (String, bool) {
        let event = self.publish().await;
        self.receiver.wait_for("/other", &event).await;
        let is_held = self.receiver.of("/changed", &event).is_none();
        (event, is_held)
    }
}

#[track_caller]
fn none(what: &str, wrong: usize) {
    assert_eq!(wrong, 0, "{wrong} of {TIMES} went by the old {what}");
}

async fn url_headers_secret_and_timeout(database: Database) {
    let mut world = World::new("what", database).await;
    let mut wrong = 0;
    for n in 0..TIMES {
        let path = format!("changed/{n}");
        world.change(json!({"url": world.receiver.url(&path)})).await;
        let event = world.publish().await;
        let arrival = world.receiver.wait_for("/changed", &event).await;
        wrong += usize::from(arrival.path != format!("/{path}"));
    }
    none("URL", wrong);
    for n in 0..TIMES {
        world.change(json!({"headers": {"x-mark": n.to_string()}})).await;
        let event = world.publish().await;
        let arrival = world.receiver.wait_for("/changed", &event).await;
        wrong += usize::from(arrival.header("x-mark") != n.to_string());
    }
    none("headers", wrong);
    for n in 0..TIMES {
        let secret = format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode([u8::try_from(n).unwrap(); 24]));
        world.client.post(&world.path("/rotate-secret"), json!({"secret": secret, "overlap_seconds": 0})).await;
        let event = world.publish().await;
        let arrival = world.receiver.wait_for("/changed", &event).await;
        let (timestamp, signatures) = (arrival.header("webhook-timestamp"), arrival.header("webhook-signature"));
        let problem = signature::problem(&secret, &event, timestamp, signatures, &arrival.body);
        wrong += usize::from(problem.is_some() || signatures.contains(' '));
    }
    none("secret", wrong);
    for n in 0..TIMES {
        let timeout_ms = 1_000 + n;
        world.change(json!({"timeout": {"mode": "manual", "timeout_ms": timeout_ms}})).await;
        let event = world.publish().await;
        let delivery = world.receiver.wait_for("/changed", &event).await.header("posthaste-delivery").to_owned();
        let is_recorded = |attempts: &Value| attempts["data"].as_array().is_some_and(|attempts| !attempts.is_empty());
        let attempts = world.client.wait_for(&format!("/v1/deliveries/{delivery}/attempts"), is_recorded).await;
        wrong += usize::from(attempts["data"][0]["timeout_ms"] != timeout_ms);
    }
    none("timeout", wrong);
}

async fn pause_disable_filter_and_rate_limit(database: Database) {
    let mut world = World::new("whether", database).await;
    let mut wrong = 0;
    for _ in 0..TIMES {
        world.client.post(&world.path("/pause"), Value::Null).await;
        let (event, is_held) = world.publish_and_check_hold().await;
        let resumed = Instant::now();
        world.client.post(&world.path("/resume"), Value::Null).await;
        let arrival = world.receiver.wait_for("/changed", &event).await;
        wrong += usize::from(!is_held || arrival.at < resumed);
    }
    none("status when paused", wrong);
    let mut unwanted = Vec::new();
    for _ in 0..TIMES {
        world.client.post(&world.path("/disable"), Value::Null).await;
        let (event, is_held) = world.publish_and_check_hold().await;
        wrong += usize::from(!is_held);
        unwanted.push(event);
        world.client.post(&world.path("/enable"), Value::Null).await;
    }
    none("status when disabled", wrong);
    for n in 0..TIMES {
        world.change(json!({"filter": {"data.n": n}})).await;
        unwanted.push(world.client.publish(json!({"type": "order.paid", "data": {"n": n + 1}})).await);
        let wanted = world.client.publish(json!({"type": "order.paid", "data": {"n": n}})).await;
        world.receiver.wait_for("/changed", &wanted).await;
    }
    world.change(json!({"filter": null})).await;
    for _ in 0..TIMES {
        world.change(json!({"rate_limit": {"max_per_minute": 1, "burst_capacity": 1}})).await;
        // A new limit allows one request or none; the second event waits for a minute.
        let first = world.publish().await;
        let (second, is_held) = world.publish_and_check_hold().await;
        wrong += usize::from(!is_held && world.receiver.of("/changed", &first).is_some());
        world.change(json!({"rate_limit": "unlimited"})).await;
        world.receiver.wait_for("/changed", &first).await;
        world.receiver.wait_for("/changed", &second).await;
    }
    none("rate limit", wrong);
    let arrived = unwanted.iter().filter(|event| world.receiver.of("/changed", event).is_some()).count();
    assert_eq!(arrived, 0, "sent although the endpoint was disabled, or its filter did not match");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i28_a_change_of_what_is_sent_is_in_force_when_it_is_answered_on_sqlite() {
    url_headers_secret_and_timeout(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i28_a_change_of_what_is_sent_is_in_force_when_it_is_answered_on_postgresql() {
    url_headers_secret_and_timeout(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i28_a_change_of_whether_it_is_sent_is_in_force_when_it_is_answered_on_sqlite() {
    pause_disable_filter_and_rate_limit(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i28_a_change_of_whether_it_is_sent_is_in_force_when_it_is_answered_on_postgresql() {
    pause_disable_filter_and_rate_limit(Database::Postgres).await;
}
