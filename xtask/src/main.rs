//! What the project does to itself. `cargo xtask` lists it.

mod alerts;
mod check;
mod dependencies;
mod deploy;
mod dist;
mod documents;
mod fuzz;
mod fuzz_api;
mod instructions;
mod names;
mod tools;
mod ui;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::bail;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "What the project does to itself", disable_version_flag = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, lint and test everything: all that CI runs
    Check {
        /// Leave out what takes minutes: the tests over millions of cases, and the release build. For every commit
        #[arg(long)]
        fast: bool,
    },
    /// Run worlds from seeds and check the promises: [SEED | --seeds N [--from N]] [--plant NAME] [--list-plants]
    Sim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Kill the real server again and again under load and check the promises: [--postgres] [--cycles N] [--rate N] [--seed N] [--strict]
    Crash {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Hold a load on the real server; memory has to stay flat: [--postgres] [--minutes N] [--rate N] [--seed N]
    Soak {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Attack the real server as one caller, on both databases, and write what a healthy tenant sees into docs/security.md: [--seconds N] [--slack N]
    Attack {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure the scheduler alone, with few lanes and with many
    BenchScheduler,
    /// Measure the sender beside the bare client of the same library: [--seconds N] [--tasks N]
    BenchSender {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure a store beside a bare program: [--postgres] [--backlog [--rows N]] [--seconds N] [--callers N] [--rounds N]
    BenchStore {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure cleanup at the edge of retention, and publishing next to it: [--events N] [--seconds N]
    BenchRetention {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure what publishing costs in the API alone, beside a bare handler; takes how many calls
    BenchApi {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure how fast rows of an outbox become events, on both databases; what follows is passed on: how many rows
    BenchRelay {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Count the instructions and allocations of a delivery, part by part, and compare them with those that are kept
    BenchInstructions {
        /// Keep what was counted, to compare with from now on
        #[arg(long)]
        accept: bool,
    },
    /// Search for URLs that the guard accepts and that mean two things
    FuzzUrl {
        /// How many to try
        #[arg(default_value_t = 10_000_000)]
        cases: u64,
    },
    /// Run parsers of untrusted input on mutated inputs, 10,000,000 each or for ten minutes
    Fuzz {
        /// One of them; `--list` names them
        target: Option<String>,
        /// How many inputs to try at most
        #[arg(long, default_value_t = 10_000_000)]
        cases: u64,
        /// How long one target runs at most
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// Name the targets
        #[arg(long)]
        list: bool,
    },
    /// Let Schemathesis (fetched once) try the API of the real server; what follows is passed on, such as --max-examples 200
    FuzzApi {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Make a release in target/dist-files: binary, debug info, Debian package, bill of materials, licences, checksums
    Dist {
        /// Package this binary instead of building one
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
    },
    /// Check what is in `deploy/` as far as that goes without a container runtime or a cluster
    Deploy,
    /// Let a real Prometheus watch a real server with traffic, and ask it every query of the Grafana dashboard
    Grafana,
    /// Build the dashboard from `ui/` into `ui/dist`, which the server embeds
    Ui {
        /// Run Vite's development server instead, in front of the Posthaste at `POSTHASTE_URL`
        #[arg(long)]
        watch: bool,
        /// Try the dashboard of the real server in a headless Chromium instead
        #[arg(long)]
        test: bool,
    },
    /// Take a picture of every page of the dashboard, light, dark and at phone width, into target/screenshots
    Screenshots,
    /// Simulate adaptive timeouts against a fixed one, over a fleet of destinations
    Fleet {
        /// Passed on: --seed N, --destinations N, --days N, --busier N
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Check { fast } => check::run(fast),
        Task::Sim { arguments } => simulator("sim", &arguments),
        Task::Crash { arguments } => checker("crash", &arguments),
        Task::Soak { arguments } => checker("soak", &arguments),
        Task::Attack { arguments } => attack(&arguments),
        Task::BenchScheduler => simulator("scheduler", &[]),
        Task::BenchSender { arguments } => bench("sender", "sender", &arguments),
        Task::BenchStore { arguments } => bench("store", "store", &arguments),
        Task::BenchRetention { arguments } => bench("store", "retention", &arguments),
        Task::BenchApi { arguments } => bench("api", "api", &arguments),
        Task::BenchRelay { arguments } => bench("relay", "relay", &arguments),
        Task::BenchInstructions { accept } => instructions::run(accept),
        Task::FuzzUrl { cases } => fuzz_url(cases),
        Task::Fuzz { list: true, .. } => {
            fuzz::list();
            Ok(())
        }
        Task::Fuzz { target, cases, seconds, .. } => fuzz::run(target.as_deref(), cases, seconds),
        Task::FuzzApi { arguments } => fuzz_api::fuzz(&arguments),
        Task::Dist { binary } => dist::make(binary.as_deref()),
        Task::Deploy => deploy::check(),
        Task::Grafana => alerts::grafana(),
        Task::Ui { watch: true, .. } => ui::watch(),
        Task::Ui { test: true, .. } => ui::test(),
        Task::Ui { .. } => ui::build(),
        Task::Screenshots => ui::screenshots(),
        Task::Fleet { arguments } => simulator("fleet", &arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The same property that the check tries 50,000 times, for as long as one likes.
fn fuzz_url(cases: u64) -> anyhow::Result<()> {
    let property = "i43_a_url_that_is_accepted_has_one_meaning";
    let search = ["test", "--package", "posthaste-core", "--test", "exhaustive", property, "--", "--nocapture"];
    run(cargo(&search).env("PROPTEST_CASES", cases.to_string()))
}

/// A crate's measurements.
fn bench(name: &str, what: &str, arguments: &[String]) -> anyhow::Result<()> {
    let (package, example) = (format!("posthaste-{name}"), format!("bench_{what}"));
    run(cargo(&["run", "--release", "--quiet", "--package", &package, "--example", &example, "--"]).args(arguments))
}

fn simulator(command: &str, arguments: &[String]) -> anyhow::Result<()> {
    run(cargo(&["run", "--release", "--quiet", "--package", "posthaste-sim", "--", command]).args(arguments))
}

/// The checker against the server, both as they ship.
fn checker(command: &str, arguments: &[String]) -> anyhow::Result<()> {
    run(&mut cargo(&["build", "--release", "--quiet", "--package", "posthaste", "--package", "posthaste-checker"]))?;
    let built = root().join("target/release");
    run(Command::new(built.join("posthaste-checker")).arg(command).arg("--binary").arg(built.join("posthaste")).args(arguments))
}

fn attack(arguments: &[String]) -> anyhow::Result<()> {
    let mut all = vec!["--write".to_owned(), root().join("docs/security.md").display().to_string()];
    all.extend(arguments.iter().cloned());
    checker("attack", &all)
}

/// The top of the repository.
fn root() -> PathBuf {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.parent().expect("xtask lies one below the top").to_owned()
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root());
    command
}

/// Runs it with its output shown.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { bail!("{} ended with {status}", shown(command)) }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
