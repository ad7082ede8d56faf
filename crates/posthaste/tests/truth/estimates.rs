//! `estimated_at` is when the turn of a delivery comes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::server::{Client, Database, Receiver, Server};

const FLAGS: &[&str] = &["--allow-http", "--allow-networks", "127.0.0.0/8"];
const EVENTS: usize = 10_000;

fn time(of: &Value) -> Timestamp {
    of.as_str().unwrap_or_else(|| panic!("no time: {of}")).parse().unwrap()
}

/// The delivery that was made last there, as it is shown alone.
async fn last_of(client: &mut Client, endpoint: &str) -> Value {
    let newest = client.get(&format!("/v1/deliveries?endpoint={endpoint}&limit=1")).await;
    client.get(&format!("/v1/deliveries/{}", newest["data"][0]["id"].as_str().unwrap())).await
}

async fn ten_thousand_held_end_97_and_a_half_minutes_after_the_opening(database: Database) {
    let server = Server::start("estimate", database, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    let now = Timestamp::now().as_second();
    let (began, opening) = (Timestamp::from_second(now - 60).unwrap(), Timestamp::from_second(now + 5 * 3600).unwrap());
    let maintenance = json!([{"from": began.to_string(), "until": opening.to_string()}]);
    let said = json!({"url": receiver.url("a"), "tenant": "one", "delivery_schedule": {"timezone": "UTC", "maintenance": maintenance},
                      "rate_limit": {"max_per_minute": 100, "burst_capacity": 250}});
    let endpoint = client.endpoint(said).await;
    client.publish_many("one", EVENTS).await;
    let last = last_of(&mut client, &endpoint).await;
    assert_eq!((&last["status"], &last["hold_reason"]), (&json!("scheduled"), &json!("quiet_hours")));
    let minutes = time(&last["estimated_at"]).duration_since(opening).as_secs_f64() / 60.0;
    assert!((minutes - 97.5).abs() <= 0.975, "{minutes} minutes after the opening");
    assert!(receiver.arrivals("/").is_empty());
}

async fn endpoints_that_share_a_tenants_tokens_take_turns(database: Database) {
    let server = Server::start("shared", database, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    client.put("/v1/tenants/two", json!({"rate_limit": {"max_per_minute": 60, "burst_capacity": 1}})).await;
    let endpoint = client.endpoint(json!({"url": receiver.url("a"), "tenant": "two"})).await;
    client.endpoint(json!({"url": receiver.url("b"), "tenant": "two"})).await;
    client.publish_many("two", 100).await;
    receiver.wait_for_count("/", 2).await;
    // What was sent by then is no longer in front of it.
    let (last, sent) = (last_of(&mut client, &endpoint).await, receiver.arrivals("/").len());
    let left = 200.0 - f64::from(u32::try_from(sent).unwrap());
    let seconds = time(&last["estimated_at"]).duration_since(Timestamp::now()).as_secs_f64();
    assert!((seconds - left).abs() <= 5.0, "{seconds} s with {left} to go");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_backlog_is_estimated_through_its_bucket_on_sqlite() {
    ten_thousand_held_end_97_and_a_half_minutes_after_the_opening(Database::Sqlite).await;
    endpoints_that_share_a_tenants_tokens_take_turns(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_backlog_is_estimated_through_its_bucket_on_postgresql() {
    ten_thousand_held_end_97_and_a_half_minutes_after_the_opening(Database::Postgres).await;
    endpoints_that_share_a_tenants_tokens_take_turns(Database::Postgres).await;
}
