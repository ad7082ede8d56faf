//! The command line as a client, with the real binary against a real server.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod codes;
mod doctor;
mod every_command;
#[path = "../../../notify/tests/mail/server.rs"]
mod mail_server;
mod notifications;
mod output;
mod secure;
mod server;
mod verify;
