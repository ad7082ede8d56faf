//! What happens to requests in flight when a server is stopped for good.

use std::time::Instant;

use serde_json::json;

use crate::server::{Client, Database, Receiver, Server};

const FLAGS: &[&str] = &["--allow-http", "--allow-networks", "127.0.0.0/8"];
const COUNT: usize = 5;

/// A second SIGTERM ends the process while it finishes its requests. Its successor sends them again once the lease of the first has
/// ended (5 s), and does not wait for the requests' deadline (66 s).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i33_after_a_second_sigterm_what_was_in_flight_is_sent_again_within_seconds() {
    let mut server = Server::start("stopping", Database::Postgres, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    client.endpoint(json!({"url": receiver.url("a"), "timeout": {"mode": "manual", "timeout_ms": 60_000}})).await;
    receiver.hold(true);
    client.publish_many("default", COUNT).await;
    receiver.wait_for_count("/a", COUNT).await;
    server.ask_to_stop();
    server.wait_for_sql("SELECT count(*) FROM handed_over", &COUNT.to_string());
    server.stop_at_once().await;
    let ended = Instant::now();
    receiver.hold(false);
    server.start_again().await;
    receiver.wait_for_count("/a", 2 * COUNT).await;
    println!("sent again {:?} after the end", ended.elapsed());
    let mut client = Client::of(&server);
    let is_delivered = |page: &serde_json::Value| page["data"].as_array().is_some_and(|rows| rows.len() == COUNT);
    client.wait_for("/v1/deliveries?status=delivered", is_delivered).await;
    assert_eq!(receiver.arrivals("/a").len(), 2 * COUNT, "each once more");
}
