//! The rules of the core against independent accounts of them, over as many cases as it takes to believe them.
//!
//! `cargo xtask check --fast` leaves this binary out; the full check runs it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod back_off;
mod bucket;
mod destination;
mod filter;
mod fuzz;
mod quiet_hours;

use proptest::test_runner::Config;

const MILLION: u32 = 1_000_000;

/// A failure prints its smallest case; nothing is written into the tree.
fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}
