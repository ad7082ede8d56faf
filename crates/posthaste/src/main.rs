//! The binary: settings, wiring, commands.

mod accept;
mod backup;
mod bench;
mod client;
mod demo;
mod descriptors;
mod doctor;
mod framing;
mod guarded;
mod health;
mod hold;
mod keys;
mod log;
mod outbox;
mod scratch;
mod serve;
mod settings;
mod tls;
mod unreachable;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use log::Logs;
use settings::{Flags, LogFormat, Settings};

/// Measured against the system's: a fifth less processor time for a delivery, and half as much memory again. Huge pages would double that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Webhook delivery that never loses an event.
#[derive(Parser)]
#[command(version, about, after_help = client::EXIT_CODES)]
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
    /// Run a demo server with built-in receivers and sample traffic
    Demo(demo::Demo),
    /// Benchmark Posthaste on this machine, compared with the machine's own limits
    Bench(Box<bench::Bench>),
    /// A process that `bench` starts
    #[command(hide = true)]
    BenchPart(bench::BenchPart),
    /// Create or migrate the database tables, then exit
    ///
    /// `serve` does the same when it starts. Takes the flags of `serve` and reads the same variables and file.
    #[command(mut_arg("print_config", |arg| arg.hide(true)))]
    Migrate(Box<Flags>),
    /// Back up the data directory of a server with SQLite, also while it runs, and verify backups
    Backup(backup::BackupCommand),
    /// Restore a backup into an empty data directory
    Restore(backup::Restore),
    /// Ask a server whether it is ready; exit code 0 if it is
    ///
    /// For health checks of containers. Asks the server of this machine, as its settings have it, or the one that --url names.
    Health(health::HealthCheck),
    /// Install, remove or inspect the outbox in an application's database
    Outbox(outbox::OutboxCommand),
    /// Check the installation and suggest fixes (read-only; safe while the server runs)
    ///
    /// Takes the flags of `serve` and reads the same variables and file. Exit code 1 if something is wrong.
    #[command(mut_arg("print_config", |arg| arg.hide(true)))]
    Doctor(Box<doctor::Doctor>),
    #[command(flatten)]
    Client(Box<client::ClientCommand>),
    /// Verify a signature (no server needed)
    Verify(Box<client::Verify>),
    /// Print the OpenAPI document (no server needed)
    Openapi,
    /// Print a shell completion script, as in `posthaste completions bash > ~/.local/share/bash-completion/completions/posthaste`
    Completions { shell: clap_complete::Shell },
}

fn main() -> ExitCode {
    // Whatever we write, also in a directory that others can read, is for us alone.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    match Arguments::parse().command {
        Command::Serve(flags) => serve(&flags),
        Command::Demo(demo) => {
            log_quietly();
            ended(runtime().and_then(|runtime| runtime.block_on(demo::run(&demo))))
        }
        Command::Bench(bench) => {
            log_quietly();
            ended(bench::run(*bench))
        }
        Command::BenchPart(part) => ended(bench::run_part(part)),
        Command::Migrate(flags) => migrate(&flags),
        Command::Outbox(command) => {
            log_quietly();
            ended(runtime().and_then(|runtime| runtime.block_on(outbox::run(&command))))
        }
        Command::Backup(command) => ended(backup::run(&command)),
        Command::Restore(restore) => ended(backup::restore(&restore)),
        Command::Health(check) => health::run(&check),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Client(command) => client::run(*command),
        Command::Verify(verify) => client::verify(&verify),
        Command::Openapi => client::openapi(),
        Command::Completions { shell } => client::completions::<Arguments>(shell),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Unless asked: `POSTHASTE_LOG=info` shows a line for every attempt.
fn log_quietly() {
    Logs::start(&settings::log_levels_of_commands(), LogFormat::Human);
}

fn serve(flags: &Flags) -> ExitCode {
    let settings = match Settings::load(flags) {
        Ok(settings) => settings,
        Err(mistakes) => {
            let format = Settings::load_what_can_be(flags).0.log_format;
            mistakes.to_string().lines().for_each(|mistake| eprint!("{}", log::spoken(format, "ERROR", mistake)));
            // As after a flag that there is not.
            return ExitCode::from(2);
        }
    };
    if flags.print_config {
        print!("{}", settings::printed(flags));
        return ExitCode::SUCCESS;
    }
    let logs = Logs::start(&settings.log, settings.log_format);
    let result = runtime().and_then(|runtime| runtime.block_on(serve::run(settings, &logs, || Settings::load(flags))));
    if let Err(error) = &result {
        logs.complain(&format!("posthaste: {error:#}"));
    }
    logs.flush();
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn migrate(flags: &Flags) -> ExitCode {
    let settings = match Settings::load(flags) {
        Ok(settings) => settings,
        Err(mistakes) => {
            eprintln!("{mistakes}");
            return ExitCode::from(2);
        }
    };
    log_quietly();
    ended(runtime().and_then(|runtime| runtime.block_on(serve::migrate(&settings))))
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
