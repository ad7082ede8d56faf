//! Partitions that this node owns, and the state of the endpoints loaded in them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use posthaste_core::bucket::Bucket;
use posthaste_core::endpoint::Override;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::{Backlog, LaneConfig, LaneMemory, Seq, WindowQuery};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::{Adaptive, Mode};
use posthaste_store::{
    Claimed, CommandOutcome, CommittedDelivery, DeliveryChange, EndpointBundle, Epoch, HandedOver, LaneState, Partition, Record,
    WindowRows,
};

use super::timeouts::{DAY, HOUR};
use super::{Effect, Owner};
use crate::Target;
use crate::tally::RecentAttempts;
use crate::target::{lane_config, tenant_config};

/// The state of a loaded endpoint, except for its lane.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) target: Arc<Target>,
    pub(super) tenant: TenantId,
    pub(super) partition: Partition,
    pub(super) config: LaneConfig,
    pub(super) mode: Mode,
    pub(super) timeout: Adaptive,
    /// The lane state that the store has.
    pub(super) written: LaneMemory,
    pub(super) recent: RecentAttempts,
    /// When the timeout is computed next, if something is sent by then.
    pub(super) computes_at: Timestamp,
    pub(super) reviews_at: Timestamp,
    pub(super) spiked_at: Option<Timestamp>,
    /// Timeouts came in a run: the timeout is computed once the attempt that showed it, of this delivery, is recorded.
    pub(super) spike_shown_by: Option<DeliveryId>,
    pub(super) tested_at: Option<Timestamp>,
    /// Rows up to this one are ignored in the feed once the lane has been dropped.
    pub(super) seen: Option<Seq>,
    /// The partition was given up. The state stays until what is in flight is recorded.
    pub(super) has_left: bool,
}

#[derive(Debug)]
pub(super) struct TenantState {
    pub(super) version: u64,
    pub(super) endpoints: BTreeSet<EndpointId>,
}

/// When a partition was claimed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    pub(super) at: Timestamp,
    /// The highest row at that moment.
    pub(super) numbered: Seq,
}

/// The feed never reports rows of other processes; this bounds how many are remembered.
const AHEAD_MAX: usize = 65_536;

impl Owner {
    pub(super) fn partitions_claimed(&mut self, now: Timestamp, claimed: Claimed) {
        // A claim names all of them, so that what an earlier one has named and this does not has been recorded since.
        self.in_flight_elsewhere.clear();
        for left in claimed.in_flight_elsewhere {
            self.in_flight_elsewhere.entry(left.endpoint).or_default().push(left);
        }
        // A claim may have looked before what was given up was gone: under that epoch it is not ours again.
        let is_left = |partition: &Partition, epoch: &Epoch| self.left_epochs.get(partition) == Some(epoch);
        let epochs: BTreeMap<Partition, Epoch> =
            claimed.partitions.into_iter().filter(|(partition, epoch)| !is_left(partition, epoch)).collect();
        let mut is_more = false;
        for (partition, epoch) in &epochs {
            if self.epochs.get(partition) == Some(epoch) {
                continue;
            }
            is_more = true;
            self.owned_since.insert(*partition, Since { at: now, numbered: claimed.numbered });
            if claimed.handed_over.contains(partition) {
                self.handed_over.insert(*partition);
            } else {
                self.handed_over.remove(partition);
            }
        }
        self.epochs = epochs;
        self.feed_gap.claimed(claimed.numbered);
        if is_more {
            self.effects.push(Effect::FindWork);
        }
    }

    /// Drops all state. An expired lease is never renewed; the node joins again.
    pub(super) fn drop_everything(&mut self, now: Timestamp) {
        let options = self.options.clone();
        // What was about to be sent is not, and nobody will say so.
        let unsent = self.effects.iter().filter(|effect| matches!(effect, Effect::Send(_))).count();
        let (generation, requests, is_stopping) = (self.generation + 1, self.requests - unsent, self.is_stopping);
        let (notes, lane_version) = (std::mem::take(&mut self.notes), self.lane_version);
        *self = Owner::new(now, options);
        self.lane_version = lane_version;
        (self.generation, self.requests, self.is_stopping) = (generation, requests, is_stopping);
        self.notes = notes;
    }

    pub(super) fn give_up(&mut self, now: Timestamp, partitions: Vec<Partition>) {
        let partitions: Vec<Partition> = partitions.into_iter().filter(|partition| self.epochs.contains_key(partition)).collect();
        let (mut lanes, mut in_flight) = (Vec::new(), Vec::new());
        let version = self.next_lane_version();
        let leaving: BTreeSet<EndpointId> = self
            .endpoints
            .iter()
            .filter(|(_, known)| partitions.contains(&known.partition) && !known.has_left)
            .map(|(endpoint, _)| *endpoint)
            .collect();
        for endpoint in leaving {
            if plant::is(Plant::LeaverSendsOn) {
                continue;
            }
            self.give_back_unsent(now, endpoint);
            self.blocked.remove(endpoint);
            let hand_over = self.scheduler.leave(endpoint);
            let known = self.endpoints.get_mut(&endpoint).expect("just found");
            known.has_left = true;
            // Its configuration is somebody else's to keep up with.
            if let Some(tenant) = self.tenants.get_mut(&known.tenant) {
                tenant.endpoints.remove(&endpoint);
            }
            let Some(hand_over) = hand_over else { continue };
            let memory = hand_over.memory_under(now, &known.config);
            lanes.push(Record {
                partition: known.partition,
                epoch: self.epochs[&known.partition],
                endpoint,
                recorded: DeliveryChange::Nothing,
                lane: Some(LaneState { memory, timeout: known.timeout, version }),
                disables_endpoint: None,
            });
            let until = now + self.options.request_max();
            in_flight.extend(hand_over.in_flight.into_iter().map(|delivery| {
                let entry = self.scheduler.in_flight_entry(endpoint, delivery).expect("in flight until recorded");
                HandedOver { seq: entry.seq, attempt: entry.attempts + 1, until }
            }));
        }
        let mut given_up = Vec::new();
        for partition in partitions {
            if let Some(epoch) = self.epochs.remove(&partition) {
                self.left_epochs.insert(partition, epoch);
                given_up.push((partition, epoch));
            }
            self.handed_over.remove(&partition);
        }
        self.tenants.retain(|_, tenant| !tenant.endpoints.is_empty());
        self.effects.push(Effect::HandOver { partitions: given_up, lanes, in_flight });
    }

    /// What waits for its payload, or for the record of its probe, has not been sent and will not be, so that there is nothing that the next owner had to wait for.
    fn give_back_unsent(&mut self, now: Timestamp, endpoint: EndpointId) {
        for delivery in self.scheduler.deliveries_in_flight(endpoint) {
            if self.unsent.remove(&delivery) {
                self.scheduler.unsendable(now, endpoint, delivery);
                self.scheduler.ended(endpoint, delivery);
            }
        }
        self.pending_sends.retain(|wanted| wanted.endpoint != endpoint);
    }

    pub(super) fn recorded_elsewhere(&mut self, endpoint: EndpointId, delivery: DeliveryId) {
        // It may be heard of before the endpoint is known.
        if let Some(left) = self.in_flight_elsewhere.get_mut(&endpoint) {
            left.retain(|left| left.delivery != delivery);
        }
        self.scheduler.recorded_elsewhere(endpoint, delivery);
    }

    /// When the partition of an endpoint was claimed.
    fn owned_since(&self, partition: Partition) -> Option<Timestamp> {
        if plant::is(Plant::OldClaimGrantsBurst) {
            return self.owned_since.values().map(|since| since.at).min();
        }
        self.owned_since.get(&partition).map(|since| since.at)
    }

    /// Checks an endpoint that may have something to send.
    pub(super) fn look_at(&mut self, now: Timestamp, endpoint: EndpointId) {
        if self.ensure_lane(now, endpoint, Backlog::Unknown) {
            self.scheduler.hint(endpoint);
        }
    }

    /// Creates the lane of a loaded endpoint, or requests to load the endpoint. Returns whether there is a lane.
    pub(super) fn ensure_lane(&mut self, now: Timestamp, endpoint: EndpointId, backlog: Backlog) -> bool {
        if self.scheduler.has_lane(endpoint) && self.endpoints.get(&endpoint).is_some_and(|known| !known.has_left) {
            return true;
        }
        let Some(known) = self.endpoints.get(&endpoint).filter(|known| !known.has_left) else {
            self.request_load(endpoint);
            return false;
        };
        if !self.epochs.contains_key(&known.partition) {
            return false;
        }
        // It was forgotten, so there is nothing to remember but how far it was read: news of rows up to there may still come, and
        // these may have been sent.
        self.scheduler.configure(now, &known.tenant, endpoint, known.config.clone(), LaneMemory::new(), backlog);
        if let Some(seen) = known.seen.filter(|_| !plant::is(Plant::LateNewsIsSent)) {
            self.scheduler.rows_seen(endpoint, seen);
        }
        true
    }

    /// The store has answered about these endpoints.
    pub(super) fn load_finished(&mut self, now: Timestamp, endpoints: &[EndpointId]) {
        for endpoint in endpoints {
            self.loading.remove(endpoint);
        }
        self.loading_since = Some(now).filter(|_| !self.loading.is_empty());
    }

    pub(super) fn request_load(&mut self, endpoint: EndpointId) {
        // One that cannot be read is asked for again at its own pace.
        if !self.unreadable.contains_key(&endpoint) && self.loading.insert(endpoint) {
            self.to_load.push(endpoint);
        }
    }

    pub(super) fn delivery_committed(&mut self, now: Timestamp, row: CommittedDelivery) {
        self.feed_gap.received(row.entry.seq);
        if !self.epochs.contains_key(&row.partition) {
            return;
        }
        // A read was faster, ours or that of whoever owned it before: it is here, or on its way, or has ended. If it is none of
        // these, another read finds it.
        let was_numbered = self.owned_since.get(&row.partition).is_some_and(|since| row.entry.seq <= since.numbered);
        let was_read = self.ahead_of_feed.remove(&row.entry.seq) && !plant::is(Plant::NewsAfterReadIsSent);
        if was_read || (was_numbered && !plant::is(Plant::NewsAfterTakeoverIsSent)) {
            self.look_at(now, row.endpoint);
            return;
        }
        self.bodies.keep(row.entry.seq, row.event);
        // A lane that was forgotten had nothing in the store, and hears of everything since. But news may be late: what
        // a read has seen, or somebody has called off, may have been sent and forgotten, so that only a read brings it.
        let seen = self.endpoints.get(&row.endpoint).and_then(|known| known.seen);
        let is_late = seen >= Some(row.entry.seq) && !plant::is(Plant::LateNewsIsSent);
        if self.ensure_lane(now, row.endpoint, if is_late { Backlog::Unknown } else { Backlog::None }) {
            self.scheduler.offer(row.endpoint, row.entry);
        }
    }

    /// Puts the rows of a read into the lane, except for those that are being withdrawn.
    pub(super) fn window_read(&mut self, endpoint: EndpointId, want: &WindowQuery, mut rows: WindowRows) {
        self.mark_seen(endpoint, rows.seen);
        if !plant::is(Plant::WithdrawnIsSent) {
            rows.rows.retain(|row| {
                self.withdrawn.get_mut(&row.seq).is_none_or(|came_back| {
                    *came_back = true;
                    false
                })
            });
        }
        // On PostgreSQL a read can be ahead of the news: that is then no reason to send it once more.
        self.expect_late_feed_rows(rows.rows.iter().map(|row| row.seq).filter(|seq| *seq > rows.seen));
        self.scheduler.refilled(endpoint, want, rows.rows, rows.more, rows.seen);
    }

    /// The feed may still report these rows in their old state. They must not be sent because of it.
    pub(super) fn expect_late_feed_rows(&mut self, rows: impl IntoIterator<Item = Seq>) {
        self.ahead_of_feed.extend(rows);
        while self.ahead_of_feed.len() > AHEAD_MAX {
            self.ahead_of_feed.pop_first();
        }
    }

    /// Notes that rows up to this one may have been read or withdrawn.
    pub(super) fn mark_seen(&mut self, endpoint: EndpointId, seq: Seq) {
        if let Some(known) = self.endpoints.get_mut(&endpoint) {
            known.seen = known.seen.max(Some(seq));
        }
    }

    pub(super) fn endpoints_loaded(&mut self, now: Timestamp, asked: &[EndpointId], found: Vec<EndpointBundle>) {
        self.load_finished(now, asked);
        self.mark_readable(asked);
        let found_ids: HashSet<EndpointId> = found.iter().map(|bundle| bundle.endpoint.endpoint.id).collect();
        for endpoint in asked.iter().filter(|endpoint| !found_ids.contains(endpoint)) {
            for (_, answer) in self.tests.remove(endpoint).unwrap_or_default() {
                let _ = answer.send(CommandOutcome::NotFound);
            }
        }
        let tenants: BTreeSet<TenantId> = found.iter().map(|bundle| bundle.endpoint.endpoint.tenant.clone()).collect();
        for bundle in found {
            self.take_over(now, bundle);
        }
        // What has changed while it was read is not in it.
        let tenants: Vec<TenantId> = tenants.into_iter().filter(|tenant| self.tenants.contains_key(tenant)).collect();
        if !tenants.is_empty() {
            self.effects.push(Effect::CompareVersions { generation: self.generation, tenants });
        }
        self.applied(asked);
        self.make_room(now);
    }

    pub(super) fn take_over(&mut self, now: Timestamp, bundle: EndpointBundle) {
        let (config, mode) = lane_config(&self.options, &bundle);
        let EndpointBundle { endpoint: stored, tenant, lane } = bundle;
        let (endpoint, partition) = (stored.endpoint.id, stored.partition);
        let Some(since) = self.owned_since(partition).filter(|_| self.epochs.contains_key(&partition)) else {
            // Given up meanwhile. Whoever waits for a test hears that it was not made.
            self.tests.remove(&endpoint);
            return;
        };
        let name = stored.endpoint.tenant.clone();
        let tenant_config = tenant_config(&self.options, tenant.as_ref());
        let is_new_tenant = tenant.as_ref().is_some_and(|tenant| tenant.created_at >= since);
        let bucket = match tenant_config.rate_limit {
            Some(limit) if !is_new_tenant => Bucket::empty(since, limit),
            Some(_) | None => Bucket::full(),
        };
        let taken_under = self.epochs.get(&partition).copied().unwrap_or_default();
        if self.tenants_taken.insert((name.clone(), partition), taken_under) == Some(taken_under) {
            self.scheduler.configure_tenant(now, &name, tenant_config, bucket);
        } else {
            // Others may have spent its tokens since we last knew of them.
            self.scheduler.take_tenant(now, &name, tenant_config, bucket);
        }
        let tenant_version = tenant.map_or(0, |tenant| tenant.version);
        let known_tenant =
            self.tenants.entry(name.clone()).or_insert_with(|| TenantState { version: tenant_version, endpoints: BTreeSet::new() });
        // Endpoints of one tenant may be read one after the other: what was seen first is what is known of all.
        known_tenant.version = known_tenant.version.min(tenant_version);
        known_tenant.endpoints.insert(endpoint);
        let is_new = stored.endpoint.created_at >= since;
        let lane = lane.unwrap_or_else(|| LaneState { memory: LaneMemory::new(), timeout: Adaptive::default(), version: 0 });
        let LaneState { memory, timeout, version } = lane;
        self.lane_version = self.lane_version.max(version);
        let computed_at = timeout.learned().map_or(stored.endpoint.created_at, |learned| learned.computed_at);
        // Whoever owned it before may have died while it stamped rows anew.
        let is_inherited = stored.endpoint.policies.delivery_schedule == Override::Inherit;
        let is_just_changed = stored.endpoint.updated_at > stored.endpoint.created_at && now < stored.endpoint.updated_at + HOUR;
        // It may even go on after this: then rows would leave the queue that they have been read from, unless they are stamped here first.
        let may_be_unstamped = is_just_changed || config.schedule.is_some() && is_inherited;
        let target = Arc::new(Target::new(stored));
        if let Some(known) = self.endpoints.get_mut(&endpoint).filter(|known| !known.has_left) {
            let restamps = known.config.schedule != config.schedule;
            let is_changed = known.target.stored != target.stored || known.config != config || known.mode != mode;
            if is_changed {
                self.blocked.remove(endpoint);
                self.scheduler.unblock(endpoint);
                known.target.supersede();
                known.target = target;
                known.config = config.clone();
                known.mode = mode;
            }
            if restamps {
                self.effects.push(Effect::Restamp { generation: self.generation, endpoint });
            }
            if self.scheduler.has_lane(endpoint) {
                self.scheduler.configure(now, &name, endpoint, config, memory, Backlog::Unknown);
                if is_changed && !plant::is(Plant::StaleConfigurationKept) {
                    self.give_back_unsent(now, endpoint);
                    self.scheduler.hint(endpoint);
                }
            }
        } else {
            let written = memory;
            let memory = memory.under(config.status);
            let memory = if is_new {
                memory
            } else if self.handed_over.contains(&partition) {
                memory.handed_over(&config)
            } else {
                memory.after_a_crash(since, &config)
            };
            if may_be_unstamped {
                self.effects.push(Effect::Restamp { generation: self.generation, endpoint });
            }
            self.scheduler.configure(now, &name, endpoint, config.clone(), memory, Backlog::Unknown);
            self.endpoints.insert(
                endpoint,
                EndpointState {
                    target,
                    tenant: name,
                    partition,
                    config,
                    mode,
                    timeout,
                    written,
                    recent: RecentAttempts::default(),
                    computes_at: computed_at + DAY,
                    reviews_at: now + HOUR,
                    spiked_at: None,
                    spike_shown_by: None,
                    tested_at: None,
                    seen: None,
                    has_left: false,
                },
            );
        }
        let in_flight_elsewhere = self.in_flight_elsewhere.remove(&endpoint).unwrap_or_default();
        for left in in_flight_elsewhere.into_iter().filter(|left| now < left.until) {
            self.ensure_lane(now, endpoint, Backlog::Unknown);
            self.scheduler.in_flight_elsewhere(endpoint, left.delivery, left.ordering_key, left.until);
        }
        for (event, answer) in self.tests.remove(&endpoint).unwrap_or_default() {
            self.test(now, endpoint, event, answer);
        }
        self.changed.insert(endpoint);
    }

    /// Forgets endpoints that have nothing to send, when there are too many.
    pub(super) fn make_room(&mut self, now: Timestamp) {
        if self.endpoints.len() <= self.options.endpoints_known_max {
            return;
        }
        let Owner { endpoints: known, tenants, tenants_taken, scheduler, .. } = self;
        known.retain(|endpoint, known| {
            let stays = scheduler.has_lane(*endpoint);
            if !stays && let Some(tenant) = tenants.get_mut(&known.tenant) {
                tenant.endpoints.remove(endpoint);
            }
            stays
        });
        tenants.retain(|_, tenant| !tenant.endpoints.is_empty());
        // One that has spent tokens is remembered until they are back: taken over once more it would have them at once.
        tenants_taken.retain(|(tenant, _), _| tenants.contains_key(tenant) || !scheduler.forget_tenant(now, tenant));
    }

    pub(super) fn compare(&mut self, versions: Vec<(TenantId, u64)>) {
        if plant::is(Plant::StaleConfigurationKept) {
            return;
        }
        for (tenant, version) in versions {
            let Some(known) = self.tenants.get_mut(&tenant) else { continue };
            if known.version != version {
                // What is read from now on is at least this.
                known.version = u64::MAX;
                for endpoint in known.endpoints.clone() {
                    self.request_load(endpoint);
                }
            }
        }
    }
}
