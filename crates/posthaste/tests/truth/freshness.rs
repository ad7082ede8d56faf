//! Statistics and health are at most two seconds behind what has happened.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Client, Database, Receiver, Server};

const FLAGS: &[&str] = &["--allow-http", "--allow-networks", "127.0.0.0/8"];
/// Five times what is promised: this machine may have other things to do.
const BEHIND_MAX: Duration = Duration::from_secs(10);
const ROUNDS: u64 = 4;
const EVENTS: u64 = 20;

/// Waits until it is so, and fails if that takes longer than the bound allows.
async fn shown_within(client: &mut Client, path: &str, since: Instant, is_so: impl Fn(&Value) -> bool) {
    let seen = client.wait_for(path, is_so).await;
    let behind = since.elapsed();
    println!("{path} was {behind:?} behind");
    assert!(behind < BEHIND_MAX, "{path} was {behind:?} behind: {seen}");
}

async fn statistics_and_health_are_two_seconds_behind_at_most(database: Database) {
    let server = Server::start("freshness", database, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    let retry = json!({"strategy": "schedule", "delays_seconds": [1], "max_attempts": 1});
    let body = json!({"url": receiver.url("a"), "tenant": "acme", "retry": retry, "circuit": {"failure_threshold": 1000}});
    let path = format!("/v1/endpoints/{}", client.endpoint(body).await);
    for round in 1..=ROUNDS {
        // The second round and every other one fails.
        receiver.answer(if round % 2 == 0 { 500 } else { 200 });
        client.publish_many("acme", usize::try_from(EVENTS).unwrap()).await;
        receiver.wait_for_count("/a", usize::try_from(round * EVENTS).unwrap()).await;
        let arrived = Instant::now();
        let attempts = round * EVENTS;
        let score = (100 * (round.div_ceil(2))) / round;
        shown_within(&mut client, &format!("{path}/stats"), arrived, |seen| seen["total"]["attempts"] == attempts).await;
        shown_within(&mut client, "/v1/stats?tenant=acme", arrived, |seen| seen["total"]["attempts"] == attempts).await;
        shown_within(&mut client, &path, arrived, |seen| seen["health"]["score"] == score).await;
    }
}

mod sqlite {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn i53_statistics_and_health_are_two_seconds_behind_at_most() {
        super::statistics_and_health_are_two_seconds_behind_at_most(super::Database::Sqlite).await;
    }
}

mod postgres {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn i53_statistics_and_health_are_two_seconds_behind_at_most() {
        super::statistics_and_health_are_two_seconds_behind_at_most(super::Database::Postgres).await;
    }
}
