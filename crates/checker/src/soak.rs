//! A held load: so many events in a second for so many minutes. Memory has to stay flat, and every promise kept.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::evidence::{Evidence, Outcome};
use crate::receiver::Mood;
use crate::verdict::{Verdict, judge};
use crate::world::World;

/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What may come on top of what it was after the first fifth: caches fill, allocators keep what they had.
const GROWTH_MAX: f64 = 1.2;
const GROWTH_BYTES_MAX: u64 = 24 * 1024 * 1024;
/// A load of which less was taken was not held.
const HELD_MIN: f64 = 0.95;

#[derive(Clone, Debug)]
pub struct Course {
    pub seed: u64,
    pub duration: Duration,
    pub rate: u64,
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
        self.owed > 0 || !self.is_flat() || !self.is_held() || self.verdicts.iter().any(Verdict::is_broken)
    }
}

pub async fn run(binary: &Path, course: &Course, mut progress: impl FnMut(Duration, u64)) -> anyhow::Result<Report> {
    let mut world = World::new(binary, course.seed).await?;
    world.start(&[]).await?;
    world.furnish_plainly().await?;
    world.make_endpoint(0, Mood::Healthy, Some("order.")).await?;
    let publishing = world.publish(course.rate);
    let started = Instant::now();
    let mut memory = Vec::new();
    while started.elapsed() < course.duration {
        tokio::time::sleep(LOOK_EVERY.min(course.duration)).await;
        if let Some(bytes) = world.process()?.resident_bytes() {
            memory.push(bytes);
            progress(started.elapsed(), bytes);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    publishing.stop().await;
    let owed = world.settle().await;
    let evidence = world.testify().await?;
    world.stop().await?;
    let acknowledged = evidence.publishes.iter().filter(|publish| matches!(publish.outcome, Outcome::Ok { .. })).count();
    let published_per_second = acknowledged as f64 / seconds;
    Ok(Report { verdicts: judge(&evidence), evidence, owed, memory, published_per_second, rate: course.rate })
}
