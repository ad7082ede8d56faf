//! The binary: settings, wiring, commands.

mod demo;
mod receiver;
mod scratch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Webhook delivery that never loses an event.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Publish an event to a built-in receiver and watch it arrive, signed and verified
    Demo,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Quiet unless asked: POSTHASTE_LOG=info shows a line for every attempt.
    let filter =
        EnvFilter::builder().with_env_var("POSTHASTE_LOG").with_default_directive(tracing::Level::ERROR.into()).from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let result = match arguments.command {
        Command::Demo => demo::run().await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("posthaste: {error:#}");
            ExitCode::FAILURE
        }
    }
}
