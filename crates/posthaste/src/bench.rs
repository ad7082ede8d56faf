//! `posthaste bench`: what it does on this machine, beside what the machine can do without it.
//!
//! The server, the receiver and the load generator are processes of their own (`part.rs`), so that what each of them costs is what
//! the kernel says of it. Everything is on loopback: the numbers are about Posthaste, not about a network.

mod backlog;
mod bare_store;
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
mod testbed;
mod throughput;
mod writer;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use plot::Chart;
use testbed::BenchEnvironment;

pub(crate) use part::{BenchPart, run as run_part};

#[derive(Args)]
pub(crate) struct Bench {
    /// What to measure; throughput unless given
    #[command(subcommand)]
    what: Option<BenchCommand>,
    /// As JSON, for scripts
    #[arg(long, global = true)]
    json: bool,
    /// Draw it, too: a file that ends in .svg or .html
    #[arg(long, global = true, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    place: DatabaseChoice,
}

/// Where servers keep what they are given.
#[derive(Args, Clone, Debug)]
struct DatabaseChoice {
    /// Measure on PostgreSQL: a server where databases may be made; the bench makes some of its own, and drops them
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// Where SQLite's files are put meanwhile; a disk like the one they will be on, and not memory [default: the system's temporary files]
    #[arg(long, global = true, value_name = "DIRECTORY")]
    scratch_dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Publish events as fast as they are taken and wait for all to arrive: one endpoint, many, fan-out, batches
    Throughput(throughput::Scenario),
    /// Publish at a fixed rate and tell how long events take to be acknowledged and to arrive
    Latency(latency::Scenario),
    /// What the machine does without Posthaste: a forwarder that remembers nothing, the client alone, a bare writer, a bare store
    Raw(raw::Scenario),
    /// The same load beside deliveries that wait, and how long a restart takes then
    Backlog(backlog::Scenario),
    /// One tenant's events beside another tenant's hanging endpoints and a third one's flood
    Noisy(noisy::Scenario),
    /// Memory with events held by quiet hours, and what another tenant sees when all windows open at once
    Held(held::Scenario),
    /// An endpoint comes back after an outage, with deliveries waiting for it
    Recovery(recovery::Scenario),
}

/// To find out what a course is about which nothing was said.
#[derive(Parser)]
struct Unsaid {
    #[command(flatten)]
    scenario: throughput::Scenario,
}

pub(crate) fn run(bench: Bench) -> anyhow::Result<()> {
    if let Some(path) = &bench.plot {
        plot::check_name(path)?;
    }
    let what = bench.what.unwrap_or_else(|| BenchCommand::Throughput(Unsaid::parse_from(["bench"]).scenario));
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

async fn measured(what: &BenchCommand, place: &DatabaseChoice) -> anyhow::Result<Report> {
    let mut ground = BenchEnvironment::new(place).await?;
    match what {
        BenchCommand::Throughput(scenario) => throughput::run(&mut ground, scenario).await,
        BenchCommand::Latency(scenario) => latency::run(&mut ground, scenario).await,
        BenchCommand::Raw(scenario) => raw::run(&mut ground, scenario).await,
        BenchCommand::Backlog(scenario) => backlog::run(&mut ground, scenario).await,
        BenchCommand::Noisy(scenario) => noisy::run(&mut ground, scenario).await,
        BenchCommand::Held(scenario) => held::run(&mut ground, scenario).await,
        BenchCommand::Recovery(scenario) => recovery::run(&mut ground, scenario).await,
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
