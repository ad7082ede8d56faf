//! Nothing that one caller does stops another: attacks on the real binary, on both databases.
//!
//! `cargo xtask attack` runs the same for longer, in a release build, and writes the table of `docs/security.md`.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod heads;
mod requests;

use std::path::Path;
use std::time::Duration;

use posthaste_checker::attack::{self, Attack, Scenario};
use posthaste_checker::world::Database;

/// What is required holds on a machine of one's own; this one has other tests to run.
const SLACK: u32 = 5;
/// Heads that are never finished have a budget of 16 MiB, and the HTTP library keeps some more for each connection.
const GROWN_BYTES_MAX: u64 = 100 * 1024 * 1024;

async fn neighbours_see_nothing_of(database: Database) {
    let course = Scenario { undisturbed: Duration::from_secs(1), attacked: Duration::from_secs(3) };
    let binary = Path::new(env!("CARGO_BIN_EXE_posthaste"));
    let tell = |measured: &attack::Measured| println!("{}", measured.row());
    let all = attack::run(binary, database, course, &Attack::ALL, tell).await.unwrap();
    let faults: Vec<String> = all.iter().flat_map(|measured| measured.faults(SLACK)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    for measured in &all {
        assert!(measured.grown_bytes < GROWN_BYTES_MAX, "{:?} grew by {} bytes", measured.attack, measured.grown_bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i49_a_healthy_tenant_sees_nothing_of_an_attack_on_sqlite() {
    neighbours_see_nothing_of(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i49_a_healthy_tenant_sees_nothing_of_an_attack_on_postgres() {
    neighbours_see_nothing_of(Database::Postgres).await;
}
