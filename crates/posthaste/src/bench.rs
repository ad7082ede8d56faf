//! `posthaste bench`: what it does on this machine, beside what the machine can do without it.
//!
//! The server, the receiver and the load generator are processes of their own (`part.rs`), so that what each of them costs is what
//! the kernel says of it. Everything is on loopback: the numbers are about Posthaste, not about a network.

mod backlog;
mod bare_store;
mod bed;
mod collector;
mod database;
mod figures;
mod forwarder;
mod held;
mod latency;
mod line;
mod load;
mod measure;
mod meter;
mod noisy;
mod part;
mod plot;
mod process;
mod raw;
mod receiver;
mod recovery;
mod throughput;
mod writer;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use bed::Ground;
use plot::Chart;

pub(crate) use part::{BenchPart, run as run_part};

#[derive(Args)]
pub(crate) struct Bench {
    /// What to measure; throughput unless given
    #[command(subcommand)]
    what: Option<What>,
    /// As JSON, for scripts
    #[arg(long, global = true)]
    json: bool,
    /// Draw it, too: a file that ends in .svg or .html
    #[arg(long, global = true, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    place: Where,
}

/// Where servers keep what they are given.
#[derive(Args, Clone, Debug)]
struct Where {
    /// Measure on PostgreSQL: a server where databases may be made; the bench makes some of its own, and drops them
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// Where SQLite's files are put meanwhile; a disk like the one they will be on, and not memory [default: the system's temporary files]
    #[arg(long, global = true, value_name = "DIRECTORY")]
    scratch_dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum What {
    /// Publish events as fast as they are taken and wait for all to arrive: one endpoint, many, fan-out, batches
    Throughput(throughput::Course),
    /// Publish at a fixed rate and tell how long events take to be acknowledged and to arrive
    Latency(latency::Course),
    /// What the machine does without Posthaste: a forwarder that remembers nothing, the client alone, a bare writer, a bare store
    Raw(raw::Course),
    /// The same load beside deliveries that wait, and how long a restart takes then
    Backlog(backlog::Course),
    /// One tenant's events beside another tenant's hanging endpoints and a third one's flood
    Noisy(noisy::Course),
    /// Memory with events held by quiet hours, and what another tenant sees when all windows open at once
    Held(held::Course),
    /// An endpoint comes back after an outage, with deliveries waiting for it
    Recovery(recovery::Course),
}

/// To find out what a course is about which nothing was said.
#[derive(Parser)]
struct Unsaid {
    #[command(flatten)]
    course: throughput::Course,
}

pub(crate) fn run(bench: Bench) -> anyhow::Result<()> {
    if let Some(path) = &bench.plot {
        plot::check_name(path)?;
    }
    let what = bench.what.unwrap_or_else(|| What::Throughput(Unsaid::parse_from(["bench"]).course));
    // On this thread alone, whose end is the end of the parts.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        tokio::select! {
            report = measured(&what, &bench.place) => report,
            signal = interrupted() => bail!("{}; nothing is left behind", signal?),
        }
    });
    show("");
    let report = report?;
    if let Some(path) = &bench.plot {
        let heading =
            format!("posthaste {} bench {}", env!("CARGO_PKG_VERSION"), report.json["bench"].as_str().unwrap_or_default());
        plot::write(path, &heading, &report.charts, &report.page)?;
    }
    if bench.json {
        println!("{}", report.json);
    } else {
        print!("{}", report.page);
    }
    Ok(())
}

async fn measured(what: &What, place: &Where) -> anyhow::Result<Report> {
    let mut ground = Ground::new(place).await?;
    match what {
        What::Throughput(course) => throughput::run(&mut ground, course).await,
        What::Latency(course) => latency::run(&mut ground, course).await,
        What::Raw(course) => raw::run(&mut ground, course).await,
        What::Backlog(course) => backlog::run(&mut ground, course).await,
        What::Noisy(course) => noisy::run(&mut ground, course).await,
        What::Held(course) => held::run(&mut ground, course).await,
        What::Recovery(course) => recovery::run(&mut ground, course).await,
    }
}

/// A measurement that is cut short is of no use to anybody, and neither is what it has made.
async fn interrupted() -> anyhow::Result<&'static str> {
    let [mut interrupt, mut terminate, mut hangup] =
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    Ok(tokio::select! {
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "terminated",
        _ = hangup.recv() => "hung up",
    })
}

/// What a measurement has found, for people, for programs, and to look at.
struct Report {
    page: String,
    json: Value,
    charts: Vec<Chart>,
}

/// On a terminal, one line that changes.
fn show(line: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
        let _ = std::io::stderr().flush();
    }
}
