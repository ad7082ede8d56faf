//! The checker as a program. It ends with 1 if a promise was broken.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use posthaste_checker::verdict::Verdict;
use posthaste_checker::world::Database;
use posthaste_checker::{attack, crash, dashboard, soak};

#[derive(Parser)]
#[command(about = "Drives the real server through faults and checks the promises from outside")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The program to check
    #[arg(long, global = true, default_value = "target/release/posthaste")]
    binary: PathBuf,
    /// The number that everything is drawn from; another one each time unless given
    #[arg(long, global = true)]
    seed: Option<u64>,
    /// Also fail where something could not be checked
    #[arg(long, global = true)]
    strict: bool,
    /// Use a PostgreSQL server of its own instead of SQLite
    #[arg(long, global = true)]
    postgres: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Kill it again and again under load
    Crash {
        #[arg(long, default_value_t = 100)]
        cycles: u32,
        /// Events in a second
        #[arg(long, default_value_t = 300)]
        rate: u64,
    },
    /// Hold a load and watch its memory
    Soak {
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
        /// Events in a second
        #[arg(long, default_value_t = 1000)]
        rate: u64,
    },
    /// Attack it as one caller, on both databases, and measure what a healthy tenant sees
    Attack {
        /// How long each attack goes on
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// A Markdown file whose table is replaced by what was measured
        #[arg(long)]
        write: Option<PathBuf>,
        /// Only attacks whose name contains this, such as `heads`
        #[arg(long, default_value = "")]
        only: String,
        /// How many times what is required is still allowed
        #[arg(long, default_value_t = 1)]
        slack: u32,
    },
    /// Let a real Prometheus watch it, and ask every query of the dashboard and every rule
    Dashboard {
        #[arg(long, default_value = "deploy/grafana/posthaste.json")]
        dashboard: PathBuf,
        #[arg(long, default_value = "deploy/prometheus/posthaste.rules.yml")]
        rules: PathBuf,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let Arguments { command, binary, seed, strict, postgres } = Arguments::parse();
    let database = if postgres { Database::Postgres } else { Database::Sqlite };
    let seed = seed.unwrap_or_else(|| rand::random::<u64>() % 1_000_000);
    println!("seed {seed}, {database:?}, {}", binary.display());
    let (verdicts, without_case, is_broken) = match command {
        Command::Dashboard { dashboard, rules } => {
            let report = dashboard::run(&binary, seed, &dashboard, &rules).await?;
            for failed in &report.failed {
                println!("{failed}");
            }
            println!("{} queries and {} rules, {} of them without an answer", report.queries, report.rules, report.failed.len());
            (Vec::new(), Vec::new(), !report.failed.is_empty())
        }
        Command::Attack { seconds, write, only, slack } => {
            let attacked = Duration::from_secs(seconds);
            let course = attack::Scenario { undisturbed: attacked / 2, attacked };
            let is_meant = |attack: &attack::Attack| format!("{attack:?}").to_lowercase().contains(&only.to_lowercase());
            let attacks: Vec<attack::Attack> = attack::Attack::ALL.into_iter().filter(is_meant).collect();
            let databases = if postgres { vec![Database::Postgres] } else { vec![Database::Sqlite, Database::Postgres] };
            let mut all = Vec::new();
            println!("{}", attack::TABLE_HEAD);
            for database in databases {
                let tell = |measured: &attack::Measured| println!("{}", measured.row());
                all.extend(attack::run(&binary, database, course, &attacks, tell).await?);
            }
            if let Some(path) = write.filter(|_| only.is_empty() && !postgres) {
                attack::write_table(&path, &all)?;
            }
            let faults: Vec<String> = all.iter().flat_map(|measured| measured.faults(slack)).collect();
            for fault in &faults {
                println!("{fault}");
            }
            (Vec::new(), Vec::new(), !faults.is_empty())
        }
        Command::Crash { cycles, rate } => {
            let course = crash::Scenario { seed, cycles, rate, database };
            let report = crash::run(&binary, &course, |done| show(&format!("{done} of {cycles} kills"))).await?;
            show("");
            println!("{}", report.numbers());
            let (without_case, is_broken) = (report.without_case(), report.is_broken());
            (report.verdicts, without_case, is_broken)
        }
        Command::Soak { minutes, rate } => {
            let course = soak::Scenario { seed, duration: Duration::from_secs_f64(minutes * 60.0), rate, database };
            let report = soak::run(&binary, &course, |elapsed, bytes| {
                show(&format!("{:>5} s  {:>4} MiB", elapsed.as_secs(), mib(bytes)));
            })
            .await?;
            show("");
            let word = if report.is_flat() { "flat" } else { "NOT FLAT" };
            let (before, after) = report.growth().unwrap_or_default();
            println!(
                "{:.0} events/s acknowledged over {minutes} minutes, {}; {} hits; {} still owed; memory {word}: {} MiB early, {} MiB late, {} MiB at most",
                report.published_per_second,
                if report.is_held() { "as asked" } else { "NOT HELD" },
                report.evidence.hits.len(),
                report.owed,
                mib(before),
                mib(after),
                mib(report.memory.iter().copied().max().unwrap_or_default()),
            );
            let (without_case, is_broken) = (report.without_case(), report.is_broken());
            (report.verdicts, without_case, is_broken)
        }
    };
    for verdict in &verdicts {
        println!("{verdict}");
    }
    if !without_case.is_empty() {
        println!("nothing was learned about {}: the world has to produce cases of it", without_case.join(", "));
    }
    let is_incomplete = strict && verdicts.iter().any(|verdict: &Verdict| verdict.not_checked.is_some());
    if is_broken || is_incomplete {
        println!("seed {seed}: broken");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn mib(bytes: u64) -> u64 {
    bytes / (1024 * 1024)
}

/// On a terminal, one line that changes.
fn show(line: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
        let _ = std::io::stderr().flush();
    }
}
