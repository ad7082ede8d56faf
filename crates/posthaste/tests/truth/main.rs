//! What the server says is true, with the real binary, on both databases.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod changes;
mod estimates;
mod freshness;
mod health;
mod server;
mod standing;
mod stopping;
mod timeouts;
mod urls;
