//! The real server under faults of its machine: flushes that fail, disks that are full, slow or read-only, too little
//! memory, too few descriptors, and kills. No false acknowledgement, and unaided recovery; judged from outside by the
//! checker.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod disk;
mod kills;
mod limits;
mod nodes;
mod power;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use posthaste_checker::evidence::{Evidence, Outcome};
use posthaste_checker::verdict::judge;
use posthaste_checker::world::World;

/// A world with one endpoint, whose server was stopped again: the fault comes while events are published, not before.
async fn furnished(seed: u64) -> World {
    let mut world = World::new(Path::new(env!("CARGO_BIN_EXE_posthaste")), seed).await.unwrap();
    world.start(&[]).await.unwrap();
    world.furnish_plainly().await.unwrap();
    world.stop().await.unwrap();
    world
}

/// After everything has calmed down: nothing is owed, and every promise was kept.
async fn check_and_collect(world: &mut World) -> Evidence {
    assert_eq!(world.settle().await, 0, "everything that was acknowledged arrives");
    let evidence = world.testify().await.unwrap();
    let broken: Vec<String> = judge(&evidence).iter().filter(|verdict| verdict.is_broken()).map(ToString::to_string).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    evidence
}

/// Kills it and starts it without the fault.
async fn restart(world: &mut World) {
    world.kill().unwrap();
    world.start(&[]).await.unwrap();
}

/// Waits until the fault was felt, and then until so many calls were acknowledged since the last that was not.
async fn fails_and_recovers(world: &World, acknowledged: usize) {
    // What fails may be a group of writes without a publish in it: then only the log tells.
    let has_failed = || {
        let log = std::fs::read_to_string(&world.program.log).unwrap();
        world.desk.failed_since(0) > 0 || log.contains(" ERROR ")
    };
    wait_until("it has failed", has_failed).await;
    let calls = world.desk.count();
    let has_recovered = || {
        let publishes = world.desk.publishes();
        let last_failure = publishes.iter().rposition(|publish| publish.outcome == Outcome::Unknown).unwrap_or_default();
        world.desk.acknowledged_since(last_failure.max(calls)) > acknowledged
    };
    wait_until("it works again", has_recovered).await;
}

async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether the server answers a question that needs nothing written, and refuses to publish with a time to come back.
async fn reads_live_and_publishing_is_refused(world: &World) {
    let mut caller = world.caller();
    assert_eq!(caller.get("/healthz").await.unwrap().status, 200);
    assert_eq!(caller.get("/v1/deliveries/dlv_00000000000000000000000000").await.unwrap().status, 404, "reads work");
    let body = serde_json::json!({"type": "order.made", "tenant": "other", "data": {"filler": "x".repeat(100_000)}});
    let refused = caller.post("/v1/events", &body).await.unwrap();
    assert_eq!((refused.status, refused.has_retry_after), (503, true), "{:?}", refused.json());
}

/// A small file system in memory at the data directory, or nothing where that is not allowed.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    fn new<'a>(path: &'a Path, size: &str) -> Option<Mounted<'a>> {
        std::fs::create_dir_all(path).unwrap();
        let options = format!("size={size},mode=700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).status().unwrap();
        if !mounted.success() {
            println!("not run: this machine allows no mounts");
        }
        mounted.success().then_some(Mounted(path))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Lazily: a process that is being ended may still hold it.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
