//! The stores under faults. SQLite: processes that are killed, flushes that fail, disks that are full, files that are
//! damaged. PostgreSQL: answers that are lost, servers that hang or restart.
//!
//! A child of this same program writes to a store and notes in a file what was acknowledged; the parent does harm, and then
//! looks whether everything that was noted is there.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod child;
mod damage;
mod faults;
mod fuzz;
mod kills;
mod log;
mod migrations;
mod postgres;
mod power;
mod verbs;
