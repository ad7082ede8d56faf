//! A held load: so many events in a second for so many minutes. Memory has to stay flat, and every promise kept.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::evidence::{Evidence, Outcome};
use crate::receiver::Behaviour;
use crate::shape::without_case;
use crate::verdict::{Verdict, judge};
use crate::world::{Database, World};

/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// After so many looks something is replayed.
const REPLAY_AT: usize = 2;
/// What may come on top of what it was after the first fifth: caches fill, allocators keep what they had.
const GROWTH_MAX: f64 = 1.2;
const GROWTH_BYTES_MAX: u64 = 24 * 1024 * 1024;
/// A load of which less was taken was not held.
const HELD_MIN: f64 = 0.95;

/// What every run has cases of.
const EXPECTED: [&str; 16] =
    ["I1", "I4", "I5", "I6", "I9", "I10", "I11", "I12", "I13", "I14", "I15", "I16", "I17", "I20", "I25", "I26"];
/// Of a hundred events; the rest goes to one healthy tenant.
const SHARES: [u64; 5] = [1; 5];
const SHARE_OF_THE_REST: u64 = 95;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub duration: Duration,
    pub rate: u64,
    pub database: Database,
}

#[derive(Debug)]
pub struct Report {
    pub verdicts: Vec<Verdict>,
    pub evidence: Evidence,
    pub owed: usize,
    /// Resident bytes, every two seconds.
    pub memory: Vec<u64>,
    pub published_per_second: f64,
    pub rate: u64,
}

impl Report {
    /// Whether the server took what it was meant to be given.
    pub fn is_held(&self) -> bool {
        self.published_per_second >= HELD_MIN * self.rate as f64
    }

    /// The mean of the last fifth beside the mean of the second.
    pub fn growth(&self) -> Option<(u64, u64)> {
        let fifth = self.memory.len() / 5;
        let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
        (fifth > 0).then(|| (mean(&self.memory[fifth..2 * fifth]), mean(&self.memory[self.memory.len() - fifth..])))
    }

    pub fn is_flat(&self) -> bool {
        self.growth()
            .is_some_and(|(before, after)| after as f64 <= before as f64 * GROWTH_MAX || after <= before + GROWTH_BYTES_MAX)
    }

    pub fn is_broken(&self) -> bool {
        let is_unlike = self.owed > 0 || !self.is_flat() || !self.is_held();
        is_unlike || self.verdicts.iter().any(Verdict::is_broken) || !self.without_case().is_empty()
    }

    /// Promises that nothing was learned about, though the world is made so that there is something to learn.
    pub fn without_case(&self) -> Vec<&'static str> {
        without_case(&self.verdicts, &EXPECTED).collect()
    }
}

pub async fn run(binary: &Path, course: &Scenario, mut progress: impl FnMut(Duration, u64)) -> anyhow::Result<Report> {
    let mut world = World::on(course.database, binary, course.seed).await?;
    world.start(&[]).await?;
    world.furnish_plainly().await?;
    world.make_endpoint(0, Behaviour::Healthy, Some("order.")).await?;
    world.give_share(SHARE_OF_THE_REST);
    world.furnish_shapes(&SHARES).await?;
    let publishing = world.publish(course.rate);
    let started = Instant::now();
    let mut memory = Vec::new();
    while started.elapsed() < course.duration {
        if memory.len() == REPLAY_AT {
            world.replay().await;
        }
        tokio::time::sleep(LOOK_EVERY.min(course.duration)).await;
        if let Some(bytes) = world.process()?.resident_bytes() {
            memory.push(bytes);
            progress(started.elapsed(), bytes);
        }
    }
    world.pass_edge().await?;
    let seconds = started.elapsed().as_secs_f64();
    publishing.stop().await;
    let owed = world.settle().await;
    world.finish_replays().await?;
    let owed = owed + world.settle().await;
    let evidence = world.testify().await?;
    world.stop().await?;
    let acknowledged = evidence.publishes.iter().filter(|publish| matches!(publish.outcome, Outcome::Ok { .. })).count();
    let published_per_second = acknowledged as f64 / seconds;
    Ok(Report { verdicts: judge(&evidence), evidence, owed, memory, published_per_second, rate: course.rate })
}
