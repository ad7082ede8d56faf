//! `posthaste serve` on PostgreSQL, with the real binary: one process that does everything, and two that share the work.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use posthaste_checker::verdict::judge;
use posthaste_checker::world::World;

const BINARY: &str = env!("CARGO_BIN_EXE_posthaste");
const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

async fn world(seed: u64, database: &str) -> World {
    let mut world = World::new(Path::new(BINARY), seed).await.unwrap();
    world.program.set("--database-url", database);
    world.program.set("--master-key", MASTER_KEY);
    world
}

async fn publish(world: &World, count: usize) {
    let load = world.load(1);
    let mut caller = world.caller();
    let before = world.desk.count();
    for _ in 0..count {
        world.desk.publish(&load, &mut caller).await;
    }
    assert_eq!(world.desk.acknowledged_since(before), count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_on_postgresql_delivers_and_refuses_another_master_key() {
    let postgres = posthaste_testpg::Server::start();
    let mut world = world(21, &postgres.url()).await;
    world.start(&[]).await.unwrap();
    world.furnish_plainly().await.unwrap();
    publish(&world, 20).await;
    assert_eq!(world.settle().await, 0);
    let evidence = world.testify().await.unwrap();
    let broken: Vec<String> = judge(&evidence).iter().filter(|verdict| verdict.is_broken()).map(ToString::to_string).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    world.stop().await.unwrap();

    let other = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=";
    let output = Command::new(BINARY)
        .args(["serve", "--listen", "127.0.0.1:0", "--database-url", &postgres.url(), "--master-key", other])
        .args(["--data-dir", world.program.data_dir.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.lines().count() == 1, "{said}");
    assert!(said.contains("set POSTHASTE_MASTER_KEY to the key that was used before"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i53_statistics_agree_with_the_rows_after_a_kill() {
    let postgres = posthaste_testpg::Server::start();
    let mut world = world(24, &postgres.url()).await;
    world.start(&[]).await.unwrap();
    world.furnish_plainly().await.unwrap();
    publish(&world, 20).await;
    assert_eq!(world.settle().await, 0);
    world.kill().unwrap();
    world.start(&[]).await.unwrap();
    statistics_agree(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_process_takes_another_delivers() {
    let postgres = posthaste_testpg::Server::start();
    let mut taking = world(22, &postgres.url()).await;
    taking.program.set("--role", "api");
    let mut delivering = world(23, &postgres.url()).await;
    delivering.program.set("--role", "deliver");
    taking.start(&[]).await.unwrap();
    delivering.start(&[]).await.unwrap();
    taking.furnish_plainly().await.unwrap();
    publish(&taking, 5).await;
    assert_eq!(taking.settle().await, 0);
    let answer = delivering.caller().get("/v1/endpoints").await.unwrap();
    assert_eq!(answer.status, 404, "it has no API");
    // Each counts what it has done, for whoever watches from this machine.
    for (process, line) in
        [(&taking, "webhook_deliveries_created_total{origin=\"event\"} 5"), (&delivering, "webhook_delivery_attempt_count_count 5")]
    {
        let page = process.caller().get("/metrics").await.unwrap();
        let page = String::from_utf8(page.body.to_vec()).unwrap();
        assert!(page.lines().any(|other| other == line), "{line}: {page}");
    }
    taking.stop().await.unwrap();
    delivering.stop().await.unwrap();
}

#[test]
fn a_database_that_is_not_there_is_refused_in_one_line() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = Command::new(BINARY)
        .args(["serve", "--database-url", &format!("postgres://posthaste:canary@{unused}/x"), "--master-key", MASTER_KEY])
        .args(["--data-dir", concat!(env!("CARGO_TARGET_TMPDIR"), "/nobody"), "--database-wait-seconds", "0"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.lines().count() == 1, "{said}");
    assert!(!said.contains("canary"), "a password is not shown: {said}");
}

/// Waits until the counts per minute say what the deliveries themselves say.
async fn statistics_agree(world: &World) {
    let mut caller = world.caller();
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let rows = caller.get("/v1/deliveries?limit=250").await.unwrap().json()["data"].as_array().unwrap().clone();
        let attempts: u64 = rows.iter().map(|row| row["attempt_count"].as_u64().unwrap()).sum();
        let delivered = rows.iter().filter(|row| row["status"] == "delivered").count() as u64;
        assert!(delivered > 0);
        let total = caller.get("/v1/stats").await.unwrap().json()["total"].clone();
        if (&total["attempts"], &total["delivered"]) == (&attempts.into(), &delivered.into()) {
            return;
        }
        assert!(Instant::now() < deadline, "{attempts} attempts and {delivered} delivered, and not {total}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
