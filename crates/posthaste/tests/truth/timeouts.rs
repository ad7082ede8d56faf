//! A timeout that is learned follows a receiver that has become slow.

use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{Client, Database, Receiver, Server};

const FLAGS: &[&str] = &[
    "--allow-http",
    "--allow-networks",
    "127.0.0.0/8",
    "--timeout-default-ms",
    "1000",
    "--timeout-samples-min",
    "10",
    "--in-flight-max",
    "200",
];
const SPIKE: usize = 40;
/// Between two computations of one spike, and as long again for a slow machine.
const NEXT_WITHIN: Duration = Duration::from_mins(2);

struct World {
    server: Server,
    receiver: std::sync::Arc<Receiver>,
    client: Client,
    endpoint: String,
    timeouts: usize,
}

impl World {
    /// An endpoint that is old enough to learn from, and has answered ten requests at once.
    async fn new(name: &str, database: Database) -> World {
        let mut server = Server::start(name, database, FLAGS).await;
        let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
        let retry = json!({"strategy": "schedule", "delays_seconds": [1], "max_attempts": 1});
        let body = json!({"url": receiver.url("a"), "tenant": "acme", "retry": retry, "max_in_flight": 100,
                          "circuit": {"failure_threshold": 1000}});
        let endpoint = client.endpoint(body).await;
        server.kill();
        server.execute("UPDATE endpoints SET created_at_ms = created_at_ms - 172800000");
        server.start_again().await;
        let mut client = Client::of(&server);
        client.publish_many("acme", 10).await;
        receiver.wait_for_count("/a", 10).await;
        World { server, receiver, client, endpoint, timeouts: 0 }
    }

    async fn timeout(&mut self) -> Value {
        self.client.get(&format!("/v1/endpoints/{}", self.endpoint)).await["timeout"].clone()
    }

    /// Lets many requests at once wait for an answer that does not come, again and again until the timeout is this. One good answer in
    /// between keeps the endpoint from being disabled.
    async fn hang_until(&mut self, timeout_ms: u64, within: Duration) -> Value {
        let deadline = std::time::Instant::now() + within;
        let stats = format!("/v1/endpoints/{}/stats", self.endpoint);
        loop {
            self.receiver.hold(true);
            self.client.publish_many("acme", SPIKE).await;
            self.timeouts += SPIKE;
            let timeouts = self.timeouts;
            self.client.wait_for(&stats, |seen| seen["total"]["timeouts"].as_u64() >= Some(timeouts as u64)).await;
            let timeout = self.timeout().await;
            if timeout["timeout_ms"] == timeout_ms {
                return timeout;
            }
            assert!(std::time::Instant::now() < deadline, "the timeout is not {timeout_ms}: {timeout}");
            self.receiver.hold(false);
            let good = self.client.publish(json!({"type": "order.paid", "tenant": "acme", "data": {}})).await;
            self.receiver.wait_for("/a", &good).await;
        }
    }
}

/// The requests that time out at once are what the computation has to include: without them nothing is slow.
async fn a_spike_of_timeouts_is_learned_from(database: Database) -> World {
    let mut world = World::new("spike", database).await;
    assert_eq!(world.timeout().await["timeout_ms"], 1_000);
    // 1,000 ms × 1.5 + 500 ms.
    let timeout = world.hang_until(2_000, Duration::from_secs(30)).await;
    assert!(timeout["sample_count"].as_u64().unwrap() >= 20, "{timeout}");
    assert_eq!((&timeout["method"], &timeout["p99_ms"]), (&json!("adaptive"), &json!(1_000)), "{timeout}");
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_a_spike_of_timeouts_is_learned_from_and_again_while_it_goes_on() {
    let mut world = a_spike_of_timeouts_is_learned_from(Database::Sqlite).await;
    // 2,000 ms × 1.5 + 500 ms, a minute later.
    world.hang_until(3_500, NEXT_WITHIN).await;
    drop(world.server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_a_spike_of_timeouts_is_learned_from_on_postgres() {
    a_spike_of_timeouts_is_learned_from(Database::Postgres).await;
}
