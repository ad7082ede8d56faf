//! Health, circuit, status and notifications agree.

use serde_json::{Value, json};

use crate::server::{Client, Database, Receiver, Server};

const FLAGS: &[&str] = &["--allow-http", "--allow-networks", "127.0.0.0/8"];

/// Tried once for each event; its circuit stays closed.
fn plain(url: &str) -> Value {
    json!({"url": url, "tenant": "acme", "retry": {"strategy": "schedule", "delays_seconds": [1], "max_attempts": 1},
           "circuit": {"failure_threshold": 1000}})
}

/// The notifications of one type that were published for an endpoint, oldest first.
fn told(receiver: &Receiver, endpoint: &str, event_type: &str) -> Vec<Value> {
    let bodies = receiver.arrivals("/operators").into_iter().map(|arrival| serde_json::from_slice::<Value>(&arrival.body).unwrap());
    bodies
        .filter(|body| body["type"] == event_type && body["data"]["endpoint"] == endpoint)
        .map(|body| body["data"].clone())
        .collect()
}

async fn wait_until_told(receiver: &Receiver, endpoint: &str, event_type: &str) -> Value {
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    loop {
        if let Some(data) = told(receiver, endpoint, event_type).pop() {
            return data;
        }
        assert!(std::time::Instant::now() < deadline, "{event_type} was not told");
        tokio::task::yield_now().await;
    }
}

async fn health_agrees(database: Database) {
    let server = Server::start("health", database, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    client.endpoint(json!({"url": receiver.url("operators"), "tenant": "posthaste", "event_types": ["posthaste.*"]})).await;
    let state = |endpoint: &Value| endpoint["health"]["state"].as_str().unwrap().to_owned();

    // Refused by its receiver ten times in a row.
    let refusing = client.endpoint(plain(&receiver.url("refusing"))).await;
    receiver.answer(422);
    let path = format!("/v1/endpoints/{refusing}");
    client.publish_many("acme", 9).await;
    client.wait_for(&format!("{path}/stats"), |seen| seen["total"]["attempts"] == 9).await;
    assert_eq!(state(&client.get(&path).await), "healthy", "nine are not enough to say");
    client.publish_many("acme", 1).await;
    client.wait_for(&path, |seen| state(seen) == "unhealthy").await;
    receiver.answer(200);
    let failing = wait_until_told(&receiver, &refusing, "posthaste.endpoint.failing").await;
    assert_eq!(failing["consecutive_failures"], 10, "{failing}");

    // An open circuit and a disabled endpoint are unhealthy at once.
    let body = json!({"url": receiver.url("opened"), "tenant": "acme", "circuit": {"failure_threshold": 1}});
    let opened = client.endpoint(body).await;
    receiver.answer(500);
    client.publish_many("acme", 1).await;
    let path = format!("/v1/endpoints/{opened}");
    let seen = client.wait_for(&path, |seen| seen["circuit"]["state"] == "open").await;
    assert_eq!(state(&seen), "unhealthy");
    let disabled = client.endpoint(plain(&receiver.url("disabled"))).await;
    let seen = client.post(&format!("/v1/endpoints/{disabled}/disable"), Value::Null).await;
    assert_eq!(state(&seen), "unhealthy", "{seen}");
}

/// With `4xx` a refusal is tried again; a 410 is not.
async fn refusals_are_retried_where_that_is_wanted(database: Database) {
    let flags =
        [FLAGS, &["--retry-also-statuses", "4xx", "--retry-strategy", "schedule", "--retry-delays-seconds", "3600"]].concat();
    let server = Server::start("classes", database, &flags).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    let retry = json!({"strategy": "schedule", "delays_seconds": [3600], "also_statuses": ["4xx"]});
    let own = client.post("/v1/endpoints", json!({"url": receiver.url("own"), "tenant": "acme", "retry": retry})).await;
    assert_eq!(own["retry"]["also_statuses"], json!(["4xx"]), "{own}");
    let inherited = client.post("/v1/endpoints", json!({"url": receiver.url("inherited"), "tenant": "acme"})).await;
    assert_eq!(inherited["retry"]["also_statuses"], json!(["4xx"]), "{inherited}");
    receiver.answer(404);
    let event = client.publish(json!({"type": "a.b", "tenant": "acme", "data": {}})).await;
    let list = format!("/v1/deliveries?event={event}");
    let is_held = |seen: &Value| seen["data"].as_array().unwrap().iter().filter(|row| row["hold_reason"] == "retry").count() == 2;
    client.wait_for(&list, is_held).await;
    receiver.answer(410);
    let event = client.publish(json!({"type": "a.b", "tenant": "acme", "data": {}})).await;
    let list = format!("/v1/deliveries?event={event}");
    let is_dead =
        |seen: &Value| seen["data"].as_array().unwrap().iter().filter(|row| row["dead_reason"] == "endpoint_gone").count() == 2;
    client.wait_for(&list, is_dead).await;
}

async fn notifications_agree(database: Database) {
    let server = Server::start("told", database, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    client.endpoint(json!({"url": receiver.url("operators"), "tenant": "posthaste", "event_types": ["posthaste.*"]})).await;
    let endpoint = client.endpoint(plain(&receiver.url("given-up"))).await;
    let path = format!("/v1/endpoints/{endpoint}");
    receiver.answer(500);
    client.publish_many("acme", 130).await;
    client.wait_for(&path, |seen| seen["status"] == "disabled").await;
    receiver.answer(200);
    let disabled = wait_until_told(&receiver, &endpoint, "posthaste.endpoint.disabled").await;
    assert_eq!((&disabled["reason"], &disabled["consecutive_failures"]), (&json!("failures_in_a_row"), &json!(100)), "{disabled}");
    let warnings = || told(&receiver, &endpoint, "posthaste.endpoint.failing").len();
    let before = warnings();
    client.post(&format!("{path}/enable"), Value::Null).await;
    client.publish_many("acme", 3).await;
    wait_until_told(&receiver, &endpoint, "posthaste.endpoint.recovered").await;
    assert_eq!(warnings(), before, "nothing is failing after it was disabled");
    for kind in ["disabled", "recovered"] {
        let event_type = format!("posthaste.endpoint.{kind}");
        assert_eq!(told(&receiver, &endpoint, &event_type).len(), 1, "{kind} is told once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i53_health_agrees_with_circuit_status_and_answers_on_sqlite() {
    health_agrees(Database::Sqlite).await;
    notifications_agree(Database::Sqlite).await;
    refusals_are_retried_where_that_is_wanted(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i53_health_agrees_with_circuit_status_and_answers_on_postgresql() {
    health_agrees(Database::Postgres).await;
    notifications_agree(Database::Postgres).await;
    refusals_are_retried_where_that_is_wanted(Database::Postgres).await;
}
