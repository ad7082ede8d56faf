//! What the bench starts beside itself: each part is this same program with another duty, in a process of its own, so that what
//! it costs can be read from the kernel.
//!
//! A part serves HTTP on loopback, says where in one line on its output, and ends when the bench does, however that ends: the
//! kernel kills it with its parent. Only the cleaner lives on, for as long as it takes to remove what was left.

use std::ffi::OsString;
use std::io::{BufRead, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use clap::{Args, Subcommand};
use tokio::net::TcpListener;

use super::{bare_store, collector, database, forwarder, load, receiver, writer};
use crate::accept;

#[derive(Args)]
pub(crate) struct BenchPart {
    /// The process that it belongs to
    #[arg(long)]
    parent: u32,
    #[command(subcommand)]
    duty: Duty,
}

#[derive(Subcommand)]
enum Duty {
    /// Takes webhooks and notes when
    Receiver,
    /// Publishes
    Load,
    /// Passes on what is published, and remembers nothing
    Forwarder { target: SocketAddr },
    /// Makes what is published safe on disk, and does nothing else
    Writer { directory: PathBuf },
    /// Makes what is published safe in a database, passes it on, and writes that down
    BareStore { target: SocketAddr, directory: PathBuf },
    /// Takes traces and counts them
    Collector,
    /// `posthaste serve`, which knows nothing of a bench
    Server {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Removes what it was told of once nobody is left to do it
    Cleaner,
}

pub(crate) fn run(part: BenchPart) -> anyhow::Result<()> {
    if matches!(part.duty, Duty::Cleaner) {
        return clean();
    }
    end_with(part.parent)?;
    match part.duty {
        Duty::Receiver => served(receiver::serve()),
        Duty::Load => served(load::serve()),
        Duty::Forwarder { target } => served(forwarder::serve(target)),
        Duty::Writer { directory } => served(writer::serve(directory)),
        Duty::BareStore { target, directory } => served(bare_store::serve(target, directory)),
        Duty::Collector => served(collector::serve()),
        Duty::Server { flags } => {
            // The promise to end with the parent outlives this.
            let error = Command::new(std::env::current_exe()?).arg("serve").args(flags).exec();
            Err(error).context("cannot start the server")
        }
        Duty::Cleaner => Ok(()),
    }
}

#[cfg(target_os = "linux")]
fn end_with(parent: u32) -> anyhow::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have died before we could ask to be told.
    let us = getppid().map(|pid| pid.as_raw_nonzero().get());
    if us.and_then(|pid| u32::try_from(pid).ok()) == Some(parent) { Ok(()) } else { bail!("the bench is gone") }
}

#[cfg(not(target_os = "linux"))]
fn end_with(_: u32) -> anyhow::Result<()> {
    bail!("posthaste bench reads what its parts cost from /proc, which only Linux has")
}

/// Runs until nobody holds the other end of our input.
fn served(part: impl Future<Output = anyhow::Result<String>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("{}", runtime.block_on(part)?);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    runtime.shutdown_background();
    Ok(())
}

/// More than any part is asked for at once.
const CONNECTIONS_MAX: usize = 8_192;
const LIMITS: accept::Limits = accept::Limits {
    connections_max: CONNECTIONS_MAX,
    connections_per_address_max: CONNECTIONS_MAX,
    trusted_proxies: vec![],
    header_timeout: Duration::from_secs(30),
};

/// Serves it with what serves the API, too.
pub(super) async fn listen(router: Router) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on 127.0.0.1")?;
    let address = listener.local_addr()?;
    tokio::spawn(accept::serve(listener, None, router, LIMITS, std::future::pending()));
    Ok(address)
}

/// How the bench tells the cleaner what there is to remove.
pub(super) const DIRECTORY: &str = "directory ";
pub(super) const DATABASE: &str = "database ";
/// Where the databases are. Not an argument, which everybody can read.
pub(super) const DATABASE_URL_VARIABLE: &str = "BENCH_DATABASE_URL";

fn clean() -> anyhow::Result<()> {
    // What is read here was written by whoever has started us, line by line, until it ended.
    let told: Vec<String> = std::io::stdin().lock().lines().map_while(Result::ok).collect();
    for directory in told.iter().filter_map(|line| line.strip_prefix(DIRECTORY)) {
        remove(Path::new(directory));
    }
    let databases: Vec<&str> = told.iter().filter_map(|line| line.strip_prefix(DATABASE)).collect();
    if !databases.is_empty() {
        let url = std::env::var(DATABASE_URL_VARIABLE).context("the cleaner was not told where the databases are")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(database::drop_all(&url, &databases))?;
    }
    Ok(())
}

const REMOVE_TRIES: usize = 100;
const REMOVE_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Somebody who is being killed may still write a last file into it.
fn remove(directory: &Path) {
    for _ in 0..REMOVE_TRIES {
        let _ = std::fs::remove_dir_all(directory);
        if !directory.exists() {
            return;
        }
        std::thread::sleep(REMOVE_AGAIN_AFTER);
    }
}
