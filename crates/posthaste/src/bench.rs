//! `posthaste bench`: what it does on this machine, beside what the machine can do without it.
//!
//! The server runs in this process with a scratch directory of its own; the load comes from threads with another name, so
//! that what each of them costs can be told apart. Everything is on loopback: the numbers are about Posthaste, not about a
//! network.

mod forwarder;
mod latency;
mod load;
mod meter;
mod noisy;
mod raw;
mod sink;
mod throughput;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::scratch::Scratch;
use crate::serve::Server;
use crate::settings::Settings;

#[derive(Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
    /// As JSON, for scripts
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    /// Publish events as fast as they are taken and wait for all to arrive
    Throughput(throughput::Course),
    /// Publish at a fixed rate and tell how long events take to arrive
    Latency(latency::Course),
    /// Throughput of the forwarder alone that the others are compared with
    Raw(throughput::Course),
    /// One tenant's events beside another tenant's hanging endpoints and a third one's flood
    Noisy(noisy::Course),
}

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    let report = match &bench.what {
        What::Throughput(course) => throughput::run(course)?,
        What::Latency(course) => latency::run(course)?,
        What::Raw(course) => raw::run(course)?,
        What::Noisy(course) => noisy::run(course)?,
    };
    show("");
    if bench.json {
        println!("{}", report.json);
    } else {
        print!("{}", report.page);
    }
    Ok(())
}

/// What a measurement has found, for people and for programs.
struct Report {
    page: String,
    json: Value,
}

/// The server under measurement, on threads of its own.
struct Bed {
    runtime: tokio::runtime::Runtime,
    server: Server,
    scratch: Scratch,
}

/// How the threads that make the load are called. Everything else is the server.
const LOAD_THREAD: &str = "bench-load";

impl Bed {
    fn new() -> anyhow::Result<Bed> {
        Bed::with(|_| {})
    }

    /// With something set.
    fn with(set: impl FnOnce(&mut Settings)) -> anyhow::Result<Bed> {
        let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("bench-server").enable_all().build()?;
        let scratch = Scratch::new()?;
        let mut settings = Settings::unsaid();
        settings.listen = "127.0.0.1:0".parse().context("our own address")?;
        scratch.path().clone_into(&mut settings.data_dir);
        settings.allow_networks = vec!["127.0.0.0/8".parse().context("our own network")?];
        settings.allow_http = true;
        set(&mut settings);
        runtime.spawn(leave_nothing_behind(scratch.path().to_owned()));
        let server = runtime.block_on(Server::start(&settings, None))?;
        Ok(Bed { runtime, server, scratch })
    }

    fn end(self) -> anyhow::Result<()> {
        let ended = self.runtime.block_on(self.server.stop());
        // After the last thread that could write there.
        drop(self.runtime);
        drop(self.scratch);
        ended
    }
}

/// A measurement that is cut short is of no use to anybody, and neither is its database.
async fn leave_nothing_behind(scratch: PathBuf) {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    let _ = std::fs::remove_dir_all(&scratch);
    std::process::exit(1);
}

fn load_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().thread_name(LOAD_THREAD).enable_all().build()?)
}

/// On a terminal, one line that changes.
fn show(line: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
        let _ = std::io::stderr().flush();
    }
}
