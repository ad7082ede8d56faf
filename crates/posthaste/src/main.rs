//! The binary: settings, wiring, commands.

mod accept;
mod demo;
mod keys;
mod log;
mod receiver;
mod scratch;
mod serve;
mod settings;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use log::Logs;
use settings::{Flags, LogFormat, Settings};

/// Webhook delivery that never loses an event.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server
    ///
    /// Every setting can be given as a flag, as a variable of the environment, or in posthaste.toml; a flag wins over a
    /// variable, and that over the file.
    Serve(Box<Flags>),
    /// Publish an event to a built-in receiver and watch it arrive, signed and verified
    Demo,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Serve(flags) => return serve(&flags).await,
        Command::Demo => {
            // Quiet unless asked: POSTHASTE_LOG=info shows a line for every attempt.
            Logs::start(&std::env::var("POSTHASTE_LOG").unwrap_or_else(|_| "error".to_owned()), LogFormat::Human);
            demo::run().await
        }
    };
    ended(result)
}

async fn serve(flags: &Flags) -> ExitCode {
    let settings = match Settings::load(flags) {
        Ok(settings) => settings,
        Err(mistakes) => {
            eprintln!("{mistakes}");
            // As after a flag that there is not.
            return ExitCode::from(2);
        }
    };
    if flags.print_config {
        print!("{}", settings::printed(flags));
        return ExitCode::SUCCESS;
    }
    let logs = Logs::start(&settings.log, settings.log_format);
    let result = serve::run(settings, &logs).await;
    logs.flush();
    ended(result)
}

fn ended(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("posthaste: {error:#}");
            ExitCode::FAILURE
        }
    }
}
