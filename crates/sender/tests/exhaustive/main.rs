//! The sender as a process, seen from outside: which addresses it dials, and how much memory it takes.
//!
//! A child of this same program sends; the parent counts its system calls, or its pages. `cargo xtask check --fast` leaves
//! this binary out; the full check runs it. It needs root, strace and a network of its own to put public addresses into.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

#[allow(dead_code, reason = "shared with the other test program, which uses all of it")]
#[path = "../receivers/certificates.rs"]
mod certificates;
mod dialling;
mod fuzz;
mod memory;
#[allow(dead_code, reason = "shared with the other test program, which uses all of it")]
#[path = "../receivers/name_server.rs"]
mod name_server;
#[allow(dead_code, reason = "shared with the other test program, which uses all of it")]
#[path = "../receivers/receiver.rs"]
mod receiver;

use std::process::Command;

/// This program once more, to run one test that is otherwise ignored.
fn child(test: &str) -> Command {
    under(&[], test)
}

/// The same, started by other programs.
fn under(programs: &[&str], test: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut words = programs.iter().map(|word| (*word).to_owned()).chain([this.to_str().unwrap().to_owned()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--exact", test, "--ignored", "--nocapture"]);
    command
}
