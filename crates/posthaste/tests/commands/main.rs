//! The command line as a client, with the real binary against a real server.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod codes;
mod every_command;
mod output;
mod secure;
mod server;
mod verify;
