//! Many worlds, one after another on every core, and what they met together.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::plant::Plant;

use crate::checker::Violation;
use crate::world;

/// What a range of seeds has shown.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub seeds: u64,
    pub rows: u64,
    pub hits: u64,
    /// Of all worlds together, in any order; of one seed, the trace hash of that world.
    pub hash: u64,
    pub visited: BTreeMap<String, u64>,
    /// The seeds that broke a promise, the smallest first.
    pub violations: BTreeMap<u64, Violation>,
    pub took: Duration,
}

/// Runs every seed of the range. With a plant it stops at the first that finds it.
pub fn run(range: Range<u64>, plant: Option<Plant>, show_progress: bool) -> Summary {
    let started = Instant::now();
    let next = AtomicU64::new(range.start);
    let found = AtomicU64::new(u64::MAX);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut summary = Summary::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut mine = Summary::default();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= range.end || plant.is_some() && seed > found.load(Ordering::Relaxed) {
                            return mine;
                        }
                        if show_progress && plant.is_none() && seed > range.start && seed.is_multiple_of(5_000) {
                            eprintln!("{} seeds, {:.0} s", seed - range.start, started.elapsed().as_secs_f64());
                        }
                        let report = world::run(seed, plant);
                        mine.seeds += 1;
                        mine.rows += report.rows;
                        mine.hits += report.hits;
                        mine.hash ^= report.hash.rotate_left(u32::try_from(seed % 64).expect("small"));
                        for (name, count) in report.visited {
                            *mine.visited.entry(name).or_default() += count;
                        }
                        if let Some(violation) = report.violation {
                            if show_progress {
                                eprintln!("seed {seed} broke {}: {}", violation.promise, violation.what);
                            }
                            mine.violations.insert(seed, violation);
                            found.fetch_min(seed, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            let part = worker.join().expect("a world does not panic");
            summary.seeds += part.seeds;
            summary.rows += part.rows;
            summary.hits += part.hits;
            summary.hash ^= part.hash;
            for (name, count) in part.visited {
                *summary.visited.entry(name).or_default() += count;
            }
            summary.violations.extend(part.violations);
        }
    });
    summary.took = started.elapsed();
    summary
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.visited {
            writeln!(f, "{count:>12}  {name}")?;
        }
        for (seed, violation) in self.violations.iter().take(10) {
            writeln!(f, "seed {seed} broke {}: {}", violation.promise, violation.what)?;
        }
        writeln!(
            f,
            "{} seeds, {} deliveries, {} hits, {} broken, trace hash {:016x}, {:.1} s",
            self.seeds,
            self.rows,
            self.hits,
            self.violations.len(),
            self.hash,
            self.took.as_secs_f64()
        )
    }
}
