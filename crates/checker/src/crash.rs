//! Kills the server again and again while it works, and asks in the end what has become of everything.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use crate::draw::Draw;
use crate::evidence::{Evidence, Hit, Moment, Outcome};
use crate::receiver::Behaviour;
use crate::shape::without_case;
use crate::verdict::{Verdict, judge};
use crate::world::{Database, World};

/// F1: killed so long after its start, or after it was ready.
const LIFE_MS: (u64, u64) = (5, 500);
/// On PostgreSQL whoever died keeps its lease for five seconds: some live long enough to work after that.
const LIFE_ON_POSTGRES_MS: (u64, u64) = (200, 9_000);
/// Of those with an order, a time, caps, quiet hours and replays.
const SHARES: [u64; 5] = [1, 2, 2, 2, 1];
/// Of those whose settings change.
const SHARE_OF_CHANGES: u64 = 2;
/// How often they change in the end, when requests that hang are not cut off by kills.
const CHANGES_WITHOUT_KILLS: u32 = 4;
const LONGER_THAN_A_REQUEST: Duration = Duration::from_secs(3);
/// In which cycles a replay is asked for.
const REPLAYS_IN: [u32; 2] = [2, 4];
/// What every run has cases of.
const EXPECTED: [&str; 20] = [
    "I1", "I4", "I5", "I6", "I9", "I10", "I11", "I12", "I13", "I14", "I15", "I16", "I17", "I18", "I20", "I22", "I23", "I25", "I26",
    "I28",
];
/// How often one of the endpoints is paused, for half as long, in cycles.
const PAUSE_EVERY: u32 = 16;
/// How often a new endpoint comes along, in cycles.
const NEW_ENDPOINT_EVERY: u32 = 10;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub cycles: u32,
    /// Events in a second.
    pub rate: u64,
    pub database: Database,
}

#[derive(Debug)]
pub struct Report {
    pub verdicts: Vec<Verdict>,
    pub evidence: Evidence,
    pub slowest_restart: Duration,
    pub owed: usize,
}

impl Report {
    pub fn is_broken(&self) -> bool {
        self.owed > 0 || self.verdicts.iter().any(Verdict::is_broken) || !self.without_case().is_empty()
    }

    /// Promises that nothing was learned about, though the world is made so that there is something to learn.
    pub fn without_case(&self) -> Vec<&'static str> {
        without_case(&self.verdicts, &EXPECTED).collect()
    }

    /// In one line.
    pub fn numbers(&self) -> String {
        let publishes = &self.evidence.publishes;
        let count = |is: fn(&Outcome) -> bool| publishes.iter().filter(|publish| is(&publish.outcome)).count();
        let kills = &self.evidence.kills;
        let in_flight = |kill: &u64| self.evidence.hits.iter().filter(|hit| (hit.start..=hit.end).contains(kill)).count();
        format!(
            "{} kills; {} publishes: {} acknowledged, {} refused, {} unknown; {} hits, {} of them after a 2xx, {} in flight at kills; {} still owed; slowest restart {:.2} s",
            kills.len(),
            publishes.len(),
            count(|outcome| matches!(outcome, Outcome::Ok { .. })),
            count(|outcome| *outcome == Outcome::No),
            count(|outcome| *outcome == Outcome::Unknown),
            self.evidence.hits.len(),
            duplicates(&self.evidence),
            kills.iter().map(in_flight).sum::<usize>(),
            self.owed,
            self.slowest_restart.as_secs_f64(),
        )
    }
}

/// `progress` is told how many cycles are done.
pub async fn run(binary: &Path, course: &Scenario, mut progress: impl FnMut(u32)) -> anyhow::Result<Report> {
    let mut draw = Draw::new(course.seed);
    let mut world = World::on(course.database, binary, course.seed).await?;
    world.start(&[]).await?;
    world.furnish().await?;
    world.furnish_shapes(&SHARES).await?;
    world.furnish_changes(SHARE_OF_CHANGES).await?;
    let publishing = world.publish(course.rate);
    let mut slowest_restart = Duration::ZERO;
    let (shortest, longest) = match course.database {
        Database::Sqlite => LIFE_MS,
        Database::Postgres => LIFE_ON_POSTGRES_MS,
    };
    for cycle in 0..course.cycles {
        let life = Duration::from_millis(draw.between(shortest, longest));
        // Every fourth one dies while it starts, or soon after; the others work for a while.
        let is_waited_for = !draw.number().is_multiple_of(4);
        if cycle > 0 {
            world.launch()?;
            if is_waited_for {
                slowest_restart = slowest_restart.max(world.ready().await?);
            }
        }
        if is_waited_for && cycle % NEW_ENDPOINT_EVERY == NEW_ENDPOINT_EVERY - 1 {
            world.make_endpoint(1, Behaviour::Healthy, None).await?;
        }
        if is_waited_for && cycle % (PAUSE_EVERY / 2) == 0 {
            world.pause(cycle % PAUSE_EVERY == 0).await;
        }
        if is_waited_for {
            world.change().await;
        }
        if is_waited_for && REPLAYS_IN.contains(&cycle) {
            world.replay().await;
        }
        tokio::time::sleep(life).await;
        world.kill()?;
        progress(cycle + 1);
    }
    slowest_restart = slowest_restart.max(world.start(&[]).await?);
    world.pause(false).await;
    for _ in 0..CHANGES_WITHOUT_KILLS {
        world.change().await;
        tokio::time::sleep(LONGER_THAN_A_REQUEST).await;
    }
    world.end_changes().await?;
    world.pass_edge().await?;
    publishing.stop().await;
    let owed = world.settle().await;
    world.finish_replays().await?;
    let owed = owed + world.settle().await;
    let evidence = world.testify().await?;
    world.stop().await?;
    Ok(Report { verdicts: judge(&evidence), evidence, slowest_restart, owed })
}

/// Hits of a delivery that had been answered with 2xx before.
fn duplicates(evidence: &Evidence) -> usize {
    let mut delivered: HashMap<&str, Moment> = HashMap::new();
    for hit in evidence.hits.iter().filter(|hit| hit.answer.is_success()) {
        let first = delivered.entry(&hit.delivery).or_insert(hit.end);
        *first = hit.end.min(*first);
    }
    let is_late = |hit: &&Hit| delivered.get(&*hit.delivery).is_some_and(|first| *first < hit.start);
    evidence.hits.iter().filter(is_late).count()
}
