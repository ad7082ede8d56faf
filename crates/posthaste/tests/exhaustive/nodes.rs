//! Two nodes on one database, of which one stands still.

use std::path::Path;

use posthaste_checker::receiver::Behaviour;
use posthaste_checker::server::signal_group;
use posthaste_checker::world::World;
use posthaste_testpg::Server;

use crate::{check_and_collect, wait_until};

const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

async fn node(seed: u64, postgres: &Server) -> World {
    let mut node = World::new(Path::new(env!("CARGO_BIN_EXE_posthaste")), seed).await.unwrap();
    node.program.set("--database-url", &postgres.url());
    node.program.set("--master-key", MASTER_KEY);
    node.start(&[]).await.unwrap();
    node
}

/// Every attempt there is, and what has become of the deliveries.
const RECORDED: &str = "SELECT (SELECT count(*) || md5(string_agg(encode(id, 'hex'), ',' ORDER BY id)) FROM attempts),
                               (SELECT md5(string_agg(seq || status || attempts, ',' ORDER BY seq)) FROM deliveries)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i31_i34_a_node_that_is_frozen_for_longer_than_its_lease_is_replaced_and_changes_nothing_when_it_wakes() {
    let postgres = Server::start();
    let owned_by_others = |than: &str| {
        let owner = format!("SELECT count(*) FROM partitions WHERE owner IS NOT NULL AND encode(owner, 'hex') <> '{than}'");
        postgres.psql(&owner).trim().to_owned()
    };
    let mut frozen = node(61, &postgres).await;
    wait_until("the first owns everything", || owned_by_others("") == "256").await;
    let name = postgres.psql("SELECT DISTINCT encode(owner, 'hex') FROM partitions").trim().to_owned();
    let mut other = node(62, &postgres).await;
    wait_until("there are two", || postgres.psql("SELECT count(*) FROM nodes").trim() == "2").await;
    other.furnish_plainly().await.unwrap();
    // Of a slow one something is in flight at every moment.
    other.make_endpoint(0, Behaviour::Slow, None).await.unwrap();
    let publishing = other.publish(100);
    wait_until("the first delivers", || other.receiver.hit_count() > 100).await;
    assert_eq!(owned_by_others(&name), "0");

    signal_group(frozen.process().unwrap().id(), "STOP").unwrap();
    // What it had written may be read by the receiver later than that, on a busy machine; the lease lasts longer.
    let (mut hits, mut looks) = (other.receiver.hit_count(), 0);
    wait_until("what it had sent has arrived", || {
        let now = other.receiver.hit_count();
        looks = if now == hits { looks + 1 } else { 0 };
        hits = now;
        looks == 20
    })
    .await;
    other.note_death_of_another();
    wait_until("the other owns everything", || owned_by_others(&name) == "256").await;
    let before = other.receiver.hit_count();
    wait_until("and delivers", || other.receiver.hit_count() > before + 100).await;
    publishing.stop().await;
    assert_eq!(other.settle().await, 0, "nothing is lost");
    wait_until("all is recorded", || postgres.psql("SELECT count(*) FROM deliveries WHERE status = 'waiting'").trim() == "0").await;
    let (recorded, hits) = (postgres.psql(RECORDED), other.receiver.hit_count());

    signal_group(frozen.process().unwrap().id(), "CONT").unwrap();
    let log = frozen.program.log.clone();
    let is_told = || std::fs::read_to_string(&log).unwrap().contains("this node drops everything and joins again");
    wait_until("the first notices", is_told).await;
    wait_until("and joins anew", || postgres.psql("SELECT count(*) FROM nodes").trim() == "2").await;
    assert_eq!(owned_by_others(&name), "256");
    let evidence = check_and_collect(&mut other).await;
    assert_eq!(postgres.psql(RECORDED), recorded, "what the first had in flight is not recorded by it");
    assert_eq!(other.receiver.hit_count(), hits, "and it sends nothing");
    println!("{} calls, {hits} hits, one node frozen beyond its lease: all is well", evidence.publishes.len());
    frozen.stop().await.unwrap();
    other.stop().await.unwrap();
}
