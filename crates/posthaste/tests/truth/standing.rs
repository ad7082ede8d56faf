//! How a delivery stands is shown as it is.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Client, Database, Receiver, Server};

const FLAGS: &[&str] =
    &["--allow-http", "--allow-networks", "127.0.0.0/8", "--retry-strategy", "schedule", "--retry-delays-seconds", "3600"];

/// With a burst of 1 all of a backlog but what is on its way waits for a token.
async fn a_backlog_behind_a_rate_limit_is_rate_limited(database: Database, max_per_minute: u32) {
    let server = Server::start("limited", database, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    let rate_limit = json!({"max_per_minute": max_per_minute, "burst_capacity": 1});
    let endpoint = client.endpoint(json!({"url": receiver.url("a"), "tenant": "acme", "rate_limit": rate_limit})).await;
    client.publish_many("acme", 200).await;
    // What owners show is at most two seconds old.
    let shown = Instant::now() + Duration::from_secs(2);
    // A machine that stalls makes it older: the looks in a row that have to be right may begin later.
    let deadline = shown + Duration::from_secs(30);
    let (mut right_in_a_row, mut wrong) = (0, String::new());
    receiver.wait_for_count("/a", 3).await;
    while right_in_a_row < 20 {
        assert!(Instant::now() < deadline, "at {max_per_minute} a minute: {wrong}");
        let page = client.get(&format!("/v1/deliveries?endpoint={endpoint}&limit=250")).await;
        if Instant::now() < shown {
            tokio::task::yield_now().await;
            continue;
        }
        let now = jiff::Timestamp::now() - Duration::from_secs(1);
        let waiting: Vec<&Value> = page["data"].as_array().unwrap().iter().filter(|row| row["status"] != "delivered").collect();
        // One may be about to be sent, or may have been sent a moment ago.
        let unexplained = waiting.iter().filter(|row| row["status"] == "pending").count().saturating_sub(1);
        let is_past = |row: &&&Value| {
            row["hold_reason"] == "rate_limited"
                && row["next_attempt_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap() < now
        };
        let past = waiting.iter().filter(is_past).count();
        if unexplained + past == 0 {
            right_in_a_row += 1;
        } else {
            wrong = format!("of {} rows {unexplained} without a reason, {past} due in the past", waiting.len());
            right_in_a_row = 0;
        }
    }
    let limited = client.get(&format!("/v1/deliveries?endpoint={endpoint}&hold_reason=rate_limited&limit=250")).await;
    let waiting = 200 - receiver.arrivals("/a").len();
    assert!(limited["data"].as_array().unwrap().len() + 5 >= waiting, "{waiting} wait");
    let stats = client.get("/v1/stats?tenant=acme").await;
    let counted = stats["backlog"]["held"]["rate_limited"].as_u64().unwrap_or_else(|| panic!("{stats}"));
    assert!(counted + 50 >= waiting as u64, "{counted} of {waiting}: {stats}");
}

/// From when its failure is recorded a delivery is not on its way.
async fn a_recorded_failure_is_not_shown_as_delivering(database: Database) {
    let server = Server::start("failed", database, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    receiver.answer(500);
    client.endpoint(json!({"url": receiver.url("a"), "circuit": {"failure_threshold": 1000}})).await;
    for _ in 0..30 {
        let event = client.publish(json!({"type": "order.paid", "data": {}})).await;
        let delivery = receiver.wait_for("/a", &event).await.header("posthaste-delivery").to_owned();
        let path = format!("/v1/deliveries/{delivery}");
        let seen = client.wait_for(&path, |seen| seen["attempt_count"] == 1).await;
        assert_eq!((&seen["status"], &seen["hold_reason"]), (&json!("scheduled"), &json!("retry")), "{seen}");
    }
}

/// What was learned and counted before a restart is shown before anything is sent again.
async fn a_circuit_is_shown_as_stored_after_a_restart(database: Database) {
    let mut server = Server::start("restart", database, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    receiver.answer(500);
    let endpoint = client.endpoint(json!({"url": receiver.url("a")})).await;
    client.publish_many("default", 10).await;
    let path = format!("/v1/endpoints/{endpoint}");
    client.wait_for(&path, |seen| seen["circuit"]["state"] == "open").await;
    // So that nothing is sent after the start: nobody shows the lane then.
    client.post(&format!("{path}/pause"), Value::Null).await;
    server.kill();
    server.start_again().await;
    let seen = Client::of(&server).get(&path).await;
    assert_eq!((&seen["circuit"]["state"], &seen["health"]["state"]), (&json!("open"), &json!("unhealthy")), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i53_a_backlog_behind_a_rate_limit_says_so_on_sqlite() {
    a_backlog_behind_a_rate_limit_is_rate_limited(Database::Sqlite, 120).await;
    a_backlog_behind_a_rate_limit_is_rate_limited(Database::Sqlite, 600).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i53_a_backlog_behind_a_rate_limit_says_so_on_postgresql() {
    a_backlog_behind_a_rate_limit_is_rate_limited(Database::Postgres, 120).await;
    a_backlog_behind_a_rate_limit_is_rate_limited(Database::Postgres, 600).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i53_failures_and_circuits_are_shown_as_recorded_on_sqlite() {
    a_recorded_failure_is_not_shown_as_delivering(Database::Sqlite).await;
    a_circuit_is_shown_as_stored_after_a_restart(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i53_failures_and_circuits_are_shown_as_recorded_on_postgresql() {
    a_recorded_failure_is_not_shown_as_delivering(Database::Postgres).await;
    a_circuit_is_shown_as_stored_after_a_restart(Database::Postgres).await;
}

/// After a restart with other settings nothing is lost: it waits, says why, and goes on when it may.
async fn what_our_own_settings_block_is_held(database: Database) {
    let mut server = Server::start("blocked", database, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    let endpoint = client.endpoint(json!({"url": receiver.url("a"), "tenant": "acme"})).await;
    let path = format!("/v1/endpoints/{endpoint}");
    client.post(&format!("{path}/pause"), Value::Null).await;
    client.publish_many("acme", 50).await;
    server.kill();
    let with = std::mem::take(&mut server.program.flags);
    server.program.flags = with.iter().filter(|flag| *flag != "--allow-http").cloned().collect();
    server.start_again().await;
    let mut client = Client::of(&server);
    client.post(&format!("{path}/resume"), Value::Null).await;
    let list = format!("/v1/deliveries?endpoint={endpoint}&hold_reason=blocked&limit=250");
    let held = client.wait_for(&list, |seen| seen["data"].as_array().unwrap().len() == 50).await;
    let one = &held["data"][0];
    assert_eq!((&one["status"], &one["attempt_count"], &one["next_attempt_at"]), (&json!("scheduled"), &json!(0), &Value::Null));
    assert!(one["last_error"].as_str().unwrap().contains("http"), "{one}");
    let attempts = client.get(&format!("/v1/deliveries/{}/attempts", one["id"].as_str().unwrap())).await;
    assert_eq!(attempts["data"], json!([]), "there is no attempt");
    let seen = client.get(&path).await;
    assert_eq!((&seen["circuit"]["state"], &seen["circuit"]["consecutive_failures"]), (&json!("closed"), &json!(0)));
    let stats = client.wait_for("/v1/stats?tenant=acme", |seen| seen["backlog"]["held"]["blocked"] == 50).await;
    assert_eq!(stats["total"]["attempts"], 0, "{stats}");
    let log = std::fs::read_to_string(&server.program.log).unwrap();
    assert!(log.contains("endpoints_blocked"), "the start says so: {log}");
    let said = doctor(&server);
    assert!(said.contains("1 of 1 cannot be reached under the present settings"), "{said}");
    server.kill();
    server.program.flags = with;
    server.start_again().await;
    receiver.wait_for_count("/a", 50).await;
    assert!(doctor(&server).contains("deliveries may go to the URLs of all 1"));
}

fn doctor(server: &Server) -> String {
    let mut command = std::process::Command::new(&server.program.binary);
    command.arg("doctor").args(["--data-dir", server.program.data_dir.to_str().unwrap()]);
    let wanted = ["--allow-http", "--allow-networks", "--database-url", "--master-key"];
    let mut flags = server.program.flags.iter().peekable();
    while let Some(flag) = flags.next() {
        if wanted.contains(&flag.as_str()) {
            command.arg(flag);
            command.args(flags.next_if(|value| !value.starts_with("--")));
        }
    }
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_our_own_settings_block_waits_and_says_so_on_sqlite() {
    what_our_own_settings_block_is_held(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_our_own_settings_block_waits_and_says_so_on_postgresql() {
    what_our_own_settings_block_is_held(Database::Postgres).await;
}
