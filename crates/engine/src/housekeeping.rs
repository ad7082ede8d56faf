//! What goes on beside delivering: forgetting, ending what has waited too long, replays, and hearing of changes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use posthaste_core::id::{ReplayId, TenantId};
use posthaste_core::scheduler::Seq;
use posthaste_store::{Error, Partition, ReplayRow, Store, partition_of};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep};

use crate::Options;
use crate::membership::Membership;
use crate::owner::Wake;

/// A change takes effect within a second.
const CHANGES_EVERY: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_millis(250);
const OVERDUE_EVERY: Duration = Duration::from_secs(1);
const OVERDUE_ROWS: usize = 500;
/// Running replays are asked for so often while there are none.
const REPLAYS_EVERY: Duration = Duration::from_secs(1);
/// Rows of a replay that are made in one transaction.
const REPLAY_ROWS_MAX: u32 = 100;
const FORGETTING_EVERY: Duration = Duration::from_secs(10);
/// While there is more to forget.
const FORGETTING_AGAIN: Duration = Duration::from_millis(250);

/// Where others may write too, their commits are looked for so often.
const SWEPT_EVERY: Duration = Duration::from_secs(2);
/// How many rows may have been under way when the first look was taken.
const FIRST_LOOK_BACK: Seq = 100_000;
/// A row's number is taken before it is committed: so long after it was taken it is there, or never will be.
const COMMITTED_AFTER: Duration = Duration::from_secs(15);

/// Finds what other processes have committed.
pub(crate) async fn sweep(store: Arc<dyn Store>, inbox: UnboundedSender<Wake>) {
    if !store.is_shared() {
        return;
    }
    // What was there at the beginning is found by whoever takes a partition.
    let mut highest_at: VecDeque<(Instant, Seq)> = VecDeque::new();
    let mut after = None;
    loop {
        match store.sweep(after.unwrap_or(Seq::MAX >> 1)).await {
            Ok(swept) => {
                let now = Instant::now();
                highest_at.push_back((now, swept.highest));
                while highest_at.front().is_some_and(|(at, _)| *at + COMMITTED_AFTER <= now) {
                    after = highest_at.pop_front().map(|(_, highest)| highest);
                }
                // In the first seconds nothing is that old: everything since the first look is looked at.
                after = after.or(highest_at.front().map(|(_, highest)| highest.saturating_sub(FIRST_LOOK_BACK)));
                if !swept.endpoints.is_empty() && inbox.send(Wake::Work(swept.endpoints)).is_err() {
                    return;
                }
            }
            Err(error) => complain("sweep", &error),
        }
        sleep(SWEPT_EVERY).await;
    }
}

/// Says when what people have said has changed.
pub(crate) async fn watch_configuration(store: Arc<dyn Store>, inbox: UnboundedSender<Wake>) {
    let mut known = None;
    loop {
        match store.configuration_number().await {
            Ok(number) => {
                if known.replace(number).is_some_and(|known| known != number) && inbox.send(Wake::ConfigurationMoved).is_err() {
                    return;
                }
            }
            Err(error) => complain("configuration_number", &error),
        }
        sleep(CHANGES_EVERY).await;
    }
}

/// One step after another, none of which holds delivering up.
pub(crate) async fn keep(store: Arc<dyn Store>, options: Options, membership: Arc<Membership>, inbox: UnboundedSender<Wake>) {
    let mut overdue_at = Instant::now();
    let mut replays_at = Instant::now();
    let mut forgetting_at = Instant::now() + FORGETTING_EVERY;
    let mut replays = Replays::default();
    loop {
        sleep(TICK).await;
        let now = Instant::now();
        if overdue_at <= now {
            overdue_at = now + OVERDUE_EVERY;
            match store.overdue(OVERDUE_ROWS).await {
                Ok(overdue) if overdue.is_empty() => {}
                Ok(overdue) => {
                    if inbox.send(Wake::Overdue(overdue)).is_err() {
                        return;
                    }
                }
                Err(error) => complain("overdue", &error),
            }
        }
        if replays_at <= now {
            match replays.step(store.as_ref(), &membership, &options).await {
                Ok(is_any) => replays_at = now + if is_any { TICK } else { REPLAYS_EVERY },
                Err(error) => complain("step_replay", &error),
            }
        }
        // One node is enough to forget for all.
        if forgetting_at <= now && membership.owns(0) {
            forgetting_at = now + FORGETTING_EVERY;
            match store.sweep_away(options.housekeeping).await {
                Ok(swept) if swept.is_nothing() => {}
                Ok(_) => forgetting_at = now + FORGETTING_AGAIN,
                Err(error) => complain("sweep_away", &error),
            }
        }
    }
}

/// Running replays, each at its own pace.
#[derive(Default)]
struct Replays {
    paces: HashMap<ReplayId, Pace>,
}

struct Pace {
    since: Instant,
    made: u64,
}

impl Replays {
    /// Makes what is due of each, and answers whether there are any.
    async fn step(&mut self, store: &dyn Store, membership: &Membership, options: &Options) -> Result<bool, Error> {
        let running = store.running_replays().await?;
        self.paces.retain(|id, _| running.iter().any(|replay| replay.id == *id));
        for replay in &running {
            if !membership.owns(partition_of_replay(store, replay).await?) {
                continue;
            }
            let pace = self.paces.entry(replay.id).or_insert_with(|| Pace { since: Instant::now(), made: 0 });
            let limit = pace.rows_due(replay.rate_per_minute);
            if limit > 0
                && let Some(after) = store.step_replay(replay.id, limit, options.replays_at_once_max).await?
            {
                let made = after.created.saturating_sub(replay.created);
                pace.made += made;
                if let Some(metrics) = &options.metrics {
                    metrics.publishing().replayed(made);
                }
            }
        }
        Ok(!running.is_empty())
    }
}

impl Pace {
    /// How many may be made now. What was missed while others had to wait is not made up for at once.
    fn rows_due(&mut self, rate_per_minute: u32) -> usize {
        let by_now = u64::from(rate_per_minute) * u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX) / 60_000 + 1;
        let due = by_now.saturating_sub(self.made);
        if due > u64::from(rate_per_minute) {
            *self = Pace { since: Instant::now(), made: 0 };
            return 1;
        }
        usize::try_from(due.min(u64::from(REPLAY_ROWS_MAX))).unwrap_or(1)
    }
}

/// A replay is a job of its tenant's partition; one over all tenants of the first.
async fn partition_of_replay(store: &dyn Store, replay: &ReplayRow) -> Result<Partition, Error> {
    let of_tenant = |tenant: &TenantId| partition_of(tenant);
    if let Some(tenant) = &replay.filter.tenant {
        return Ok(of_tenant(tenant));
    }
    match replay.filter.endpoint {
        Some(endpoint) => Ok(store.endpoint(endpoint).await?.map_or(0, |stored| stored.partition)),
        None => Ok(0),
    }
}

/// A store that is away is news once in a while, not in every line.
pub(crate) fn complain(what: &str, error: &Error) {
    static TOLD_AT: AtomicI64 = AtomicI64::new(i64::MIN);
    static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let second = i64::try_from(BEGUN.get_or_init(Instant::now).elapsed().as_secs()).unwrap_or(i64::MAX);
    if TOLD_AT.swap(second, Ordering::Relaxed) != second {
        tracing::error!(what, %error, "the store does not answer; trying again");
    }
}
