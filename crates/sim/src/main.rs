//! `cargo xtask sim` and `cargo xtask fleet` run this.

use std::ops::Range;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use posthaste_core::plant::Plant;
use posthaste_sim::fleet::{self, Options};
use posthaste_sim::{bench, seeds, world};

#[derive(Parser)]
#[command(about = "Whole worlds from a seed")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run worlds and check the promises after every step
    Sim {
        /// Run this one world
        seed: Option<u64>,
        /// Run so many worlds
        #[arg(long, default_value_t = 2_000, conflicts_with = "seed")]
        seeds: u64,
        /// The first seed of these worlds, to continue an earlier run
        #[arg(long, default_value_t = 0, conflicts_with = "seed")]
        from: u64,
        /// Of one world, tell every step
        #[arg(long, requires = "seed")]
        trace: bool,
        /// Build in a known bug; it has to be found, and the exit code says so by not being 0
        #[arg(long)]
        plant: Option<String>,
        /// Name the known bugs
        #[arg(long)]
        list_plants: bool,
    },
    /// What the scheduler alone costs, with few lanes and with many
    Scheduler,
    /// Adaptive timeouts against a fixed one, over a fleet of destinations
    Fleet {
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[arg(long, default_value_t = 200)]
        destinations: u32,
        #[arg(long, default_value_t = 60)]
        days: u32,
        /// So many times the traffic
        #[arg(long, default_value_t = 1)]
        busier: u32,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Sim { list_plants: true, .. } => {
            for plant in Plant::ALL {
                println!("{:<28} {}", plant.name(), plant.what());
            }
            ExitCode::SUCCESS
        }
        Command::Sim { seed: Some(seed), trace, plant, .. } => simulate(seed..seed + 1, trace, plant.as_deref()),
        Command::Sim { seed: None, seeds, from, plant, .. } => simulate(from..from.saturating_add(seeds), false, plant.as_deref()),
        Command::Scheduler => {
            print!("{}", bench::table(&bench::run()));
            match bench::memory() {
                Ok(memory) => {
                    let bench::Memory { per_lane, per_row, rows_max } = memory;
                    println!(
                        "in memory: {per_lane} bytes for a lane with one row, {per_row} for each further row, at most {rows_max} rows in a queue"
                    );
                    ExitCode::SUCCESS
                }
                Err(error) => {
                    eprintln!("what is in memory cannot be told: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        Command::Fleet { seed, destinations, days, busier } => {
            compare(&Options { seed, destinations, days, busier });
            ExitCode::SUCCESS
        }
    }
}

fn simulate(range: Range<u64>, trace: bool, plant: Option<&str>) -> ExitCode {
    let plant = match plant.map(|name| Plant::ALL.iter().copied().find(|plant| plant.name() == name).ok_or(name)) {
        None => None,
        Some(Ok(plant)) => Some(plant),
        Some(Err(name)) => {
            eprintln!("there is no plant called {name}; --list-plants names them");
            return ExitCode::from(2);
        }
    };
    if trace {
        world::run_and_tell(range.start, plant, |step| println!("{step}"));
    }
    let is_long = range.end - range.start > 1;
    let summary = seeds::run(range, plant, is_long);
    print!("{summary}");
    if summary.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn compare(options: &Options) {
    let Options { seed, destinations, days, .. } = options;
    println!("{destinations} destinations over {days} days, seed {seed}: a fixed timeout of 10 s against adaptive timeouts\n");
    let (fixed, adaptive) = std::thread::scope(|scope| {
        let fixed = scope.spawn(|| fleet::run(options, fleet::Arm::Fixed));
        let adaptive = scope.spawn(|| fleet::run(options, fleet::Arm::Adaptive));
        (fixed.join().expect("the fixed arm runs"), adaptive.join().expect("the adaptive arm runs"))
    });
    print!("{}", fleet::table(&fixed, &adaptive));
}
