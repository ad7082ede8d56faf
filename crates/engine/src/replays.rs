//! Steps replays forward, each at the pace that was asked for. Which rows a step makes is the store's business.

use std::collections::HashMap;

use posthaste_core::id::{ReplayId, TenantId};
use posthaste_core::replay_pace::ReplayPace;
use posthaste_store::{Error, Partition, ReplayRow, Store, partition_of};
use tokio::time::Instant;

use crate::Options;
use crate::housekeeping::complain;
use crate::membership::Membership;

/// Running replays, each at its own pace.
pub(crate) struct Replays {
    started: Instant,
    paces: HashMap<ReplayId, ReplayPace>,
}

impl Replays {
    pub(crate) fn new() -> Replays {
        Replays { started: Instant::now(), paces: HashMap::new() }
    }

    /// Makes what is due of each, and answers whether there are any. One that fails does not stop the others.
    pub(crate) async fn step(&mut self, store: &dyn Store, membership: &Membership, options: &Options) -> Result<bool, Error> {
        let running = store.running_replays().await?;
        self.paces.retain(|id, _| running.iter().any(|replay| replay.id == *id));
        for replay in &running {
            if let Err(error) = self.step_one(store, membership, options, replay).await {
                complain("step_replay", &error);
            }
        }
        Ok(!running.is_empty())
    }

    async fn step_one(
        &mut self,
        store: &dyn Store,
        membership: &Membership,
        options: &Options,
        replay: &ReplayRow,
    ) -> Result<(), Error> {
        if !membership.owns(partition_of_replay(store, replay).await?) {
            return Ok(());
        }
        let uptime = self.started.elapsed();
        let pace = self.paces.entry(replay.id).or_insert_with(|| ReplayPace::starting_at(uptime));
        let limit = pace.rows_due(uptime, replay.rate_per_minute);
        if limit > 0
            && let Some(after) = store.step_replay(replay.id, limit, options.replays_at_once_max).await?
        {
            let made = after.created.saturating_sub(replay.created);
            pace.made(made);
            if let Some(metrics) = &options.metrics {
                metrics.publishing().replayed(made);
            }
        }
        Ok(())
    }
}

/// A replay is a job of its tenant's partition; one over all tenants of the first.
async fn partition_of_replay(store: &dyn Store, replay: &ReplayRow) -> Result<Partition, Error> {
    let of_tenant = |tenant: &TenantId| partition_of(tenant);
    if let Some(tenant) = &replay.filter.tenant {
        return Ok(of_tenant(tenant));
    }
    match replay.filter.endpoint {
        Some(endpoint) => Ok(store.endpoint(None, endpoint).await?.map_or(0, |stored| stored.partition)),
        None => Ok(0),
    }
}
