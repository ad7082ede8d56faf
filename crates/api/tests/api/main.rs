//! The API as a caller sees it, on SQLite in a directory of its own.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod batch;
mod canaries;
mod conventions;
mod credentials;
mod deliveries;
mod documents;
mod endpoints;
mod events;
mod generated;
mod hostile;
mod owner;
mod portal;
mod replays;
mod server;
mod stream;
mod tenancy;
mod tenants;
