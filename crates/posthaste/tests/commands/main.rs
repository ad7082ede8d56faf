//! The command line as a client, with the real binary against a real server.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod access;
mod backup;
mod codes;
mod doctor;
mod erasure;
mod every_command;
mod files;
mod formats;
#[path = "../../../notify/tests/mail/server.rs"]
mod mail_server;
mod notifications;
mod output;
mod rotation;
mod secure;
mod server;
mod settings;
mod smaller;
mod tls;
mod verify;
