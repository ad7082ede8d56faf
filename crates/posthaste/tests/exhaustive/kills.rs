//! F1, in small: the same course as `cargo xtask crash`, with the program that the other tests run.

use std::path::Path;
use std::process::Command;

use posthaste_checker::crash::{self, Scenario};
use posthaste_checker::verdict::judge;
use posthaste_checker::world::Database;

use crate::{furnished, wait_until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_kills_under_load_lose_nothing_and_invent_nothing() {
    let course = Scenario { seed: 4711, cycles: 8, rate: 200, database: Database::Sqlite };
    let report = crash::run(Path::new(env!("CARGO_BIN_EXE_posthaste")), &course, |_| {}).await.unwrap();
    println!("{}", report.numbers());
    let shown: Vec<String> = report.verdicts.iter().map(ToString::to_string).collect();
    assert!(!report.is_broken(), "{}\n{}", report.numbers(), shown.join("\n"));
    assert!(report.evidence.hits.len() > 50, "something was going on");
}

/// The checker itself: a server that has lost what it acknowledged must not get past it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_forgotten_is_found_out() {
    let mut world = furnished(17).await;
    let (data, aside) = (world.program.data_dir.clone(), world.program.data_dir.with_extension("before"));
    assert!(Command::new("cp").arg("-a").arg(&data).arg(&aside).status().unwrap().success());
    world.start(&[]).await.unwrap();
    let publishing = world.publish(300);
    wait_until("events are acknowledged", || world.desk.acknowledged_since(0) > 100).await;
    world.kill().unwrap();
    publishing.stop().await;
    // As if nothing that was written since had been flushed.
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&aside, &data).unwrap();
    let arrived = world.desk.acknowledged_since(0) - world.owed();
    world.start(&[]).await.unwrap();
    world.settle().await;
    let evidence = world.testify().await.unwrap();
    let broken: Vec<&str> = judge(&evidence).iter().filter(|verdict| verdict.is_broken()).map(|verdict| verdict.promise).collect();
    // Those that had arrived are not known to the server any more; those that had not are lost.
    assert!(broken.contains(&"I6"), "{arrived} had arrived, {} are owed, found: {broken:?}", world.owed());
    assert!(world.owed() == 0 || broken.contains(&"I1"), "{broken:?}");
}
