//! The owner of lanes: a state machine that decides what this node sends and records.
//!
//! Everything that happens to a node's deliveries comes in as an [`Input`]; everything to be done about it goes out as an
//! [`Effect`]. `core::scheduler` chooses the next delivery. The owner keeps the rest: which endpoints are loaded, which
//! payloads are in memory, what has to be recorded, and which callers wait for an answer.
//!
//! The owner does no I/O and has no clock. The simulator runs it in virtual time and kills it between any two steps.

mod applying;
mod blocked;
mod commands;
mod feed_gap;
mod messages;
mod ownership;
mod sending;
mod timeouts;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use posthaste_core::delivery::State;
use posthaste_core::event::Event;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::{Command, LaneSurvey, Scheduler, Seq, TokenWaits};
use posthaste_core::time::Timestamp;
use posthaste_metrics::Note;
use posthaste_store::{CommandOutcome, DeliveryChange, Epoch, InFlightElsewhere, LaneSnapshot, LaneState, Partition, Record};
use tokio::sync::oneshot;

use crate::Options;
use crate::bodies::CachedBodies;

use applying::Applying;
use blocked::Blocked;
use commands::Waiter;
use feed_gap::FeedGap;
pub use messages::{Effect, Input, ObservedAttempts, OnRecorded, OwnerGeneration, PendingSend, SendRef, SendRequest, WaiterId};
use ownership::{EndpointState, TenantState};
use sending::InFlightRequest;
use unreadable::Unreadable;

/// Endpoints loaded, or payloads read, per store call.
const AT_ONCE_MAX: usize = 256;
/// While more outcomes than this wait for their commit, nothing is sent.
const UNRECORDED_MAX: usize = 4096;

/// The event of a test send that waits for its endpoint to be loaded, and the caller.
type PendingTest = (Arc<Event>, oneshot::Sender<CommandOutcome>);

#[derive(Debug)]
pub struct Owner {
    options: Options,
    scheduler: Scheduler,
    generation: OwnerGeneration,
    epochs: BTreeMap<Partition, Epoch>,
    /// When this node claimed each partition. Tokens spent before are not known.
    owned_since: BTreeMap<Partition, ownership::Since>,
    /// The epochs of partitions that were given up, for recording what is still in flight.
    left_epochs: BTreeMap<Partition, Epoch>,
    /// Partitions whose previous owner wrote all its lane states.
    handed_over: BTreeSet<Partition>,
    in_flight_elsewhere: HashMap<EndpointId, Vec<InFlightElsewhere>>,
    endpoints: HashMap<EndpointId, EndpointState>,
    feed_gap: FeedGap,
    /// The highest of all lane states, those that were read and those that were made here. Never falls, so that a record that is
    /// retried late is never taken for a newer one.
    lane_version: u64,
    /// Ordered, so that effects do not depend on a hash.
    tenants: BTreeMap<TenantId, TenantState>,
    /// The epoch of the partition under which the tokens of a tenant were taken over.
    tenants_taken: BTreeMap<(TenantId, Partition), Epoch>,
    loading: HashSet<EndpointId>,
    /// Since when the store has not answered about `loading`.
    loading_since: Option<Timestamp>,
    to_load: Vec<EndpointId>,
    unreadable: BTreeMap<EndpointId, Unreadable>,
    blocked: Blocked,
    bodies: CachedBodies,
    pending_sends: Vec<PendingSend>,
    /// Scheduled but not sent yet: the payload is being read, or the probe recorded.
    unsent: HashSet<DeliveryId>,
    bytes_in_flight: usize,
    records: Vec<Record>,
    on_recorded: Vec<OnRecorded>,
    unrecorded: usize,
    /// Rows that were read or withdrawn before the feed reported their commit.
    ahead_of_feed: BTreeSet<Seq>,
    /// Rows withdrawn from their lanes and not yet recorded. They are not sent, even if a read returns them (the value).
    withdrawn: HashMap<Seq, bool>,
    waiters: HashMap<WaiterId, Waiter>,
    applying: Applying,
    last_waiter_id: WaiterId,
    /// Test sends that wait for their endpoint to be loaded.
    tests: HashMap<EndpointId, Vec<PendingTest>>,
    /// The callers of test sends in flight.
    testers: HashMap<DeliveryId, oneshot::Sender<CommandOutcome>>,
    /// What was recorded, for the metrics.
    notes: Vec<Note>,
    /// Requests in flight.
    in_flight_requests: HashMap<DeliveryId, InFlightRequest>,
    changed: BTreeSet<EndpointId>,
    requests: usize,
    is_stopping: bool,
    effects: Vec<Effect>,
}

impl Owner {
    pub fn new(now: Timestamp, options: Options) -> Owner {
        Owner {
            scheduler: Scheduler::new(now, options.limits),
            generation: 0,
            epochs: BTreeMap::new(),
            owned_since: BTreeMap::new(),
            left_epochs: BTreeMap::new(),
            handed_over: BTreeSet::new(),
            in_flight_elsewhere: HashMap::new(),
            endpoints: HashMap::new(),
            feed_gap: FeedGap::default(),
            lane_version: 0,
            tenants: BTreeMap::new(),
            tenants_taken: BTreeMap::new(),
            loading: HashSet::new(),
            loading_since: None,
            to_load: Vec::new(),
            unreadable: BTreeMap::new(),
            blocked: Blocked::default(),
            bodies: CachedBodies::new(options.cached_body_bytes_max),
            pending_sends: Vec::new(),
            unsent: HashSet::new(),
            bytes_in_flight: 0,
            records: Vec::new(),
            on_recorded: Vec::new(),
            unrecorded: 0,
            ahead_of_feed: BTreeSet::new(),
            withdrawn: HashMap::new(),
            waiters: HashMap::new(),
            applying: Applying::default(),
            last_waiter_id: 0,
            tests: HashMap::new(),
            testers: HashMap::new(),
            notes: Vec::new(),
            in_flight_requests: HashMap::new(),
            changed: BTreeSet::new(),
            requests: 0,
            is_stopping: false,
            effects: Vec::new(),
            options,
        }
    }

    /// Takes one input. Call [`Owner::next_effects`] for what follows from it.
    pub fn handle(&mut self, now: Timestamp, input: Input) {
        match input {
            Input::PartitionsClaimed(claimed) => self.partitions_claimed(now, claimed),
            Input::LeaseEnded if plant::is(Plant::FrozenNodeGoesOn) || plant::is(Plant::LeaseEndIgnored) => {}
            Input::LeaseEnded => self.drop_everything(now),
            Input::GiveUp(partitions) => self.give_up(now, partitions),
            Input::RecordedElsewhere { endpoint, delivery } => self.recorded_elsewhere(endpoint, delivery),
            Input::Work(endpoints) => endpoints.into_iter().for_each(|endpoint| self.look_at(now, endpoint)),
            Input::Committed(rows) => rows.into_iter().for_each(|row| self.delivery_committed(now, row)),
            Input::FeedOverflowed => self.feed_gap.overflowed(),
            Input::GapScanned { generation, through } if generation == self.generation => self.feed_gap.scanned(through),
            Input::EndpointUnreadable { generation, endpoint, cause } if generation == self.generation => {
                self.endpoint_unreadable(now, endpoint, cause);
            }
            Input::EndpointsLoaded { generation, asked, found } if generation == self.generation => {
                self.endpoints_loaded(now, &asked, found);
            }
            Input::WindowRead { generation, endpoint, want, rows } if generation == self.generation => {
                self.window_read(endpoint, &want, rows);
            }
            Input::BodiesRead { generation, asked, found } if generation == self.generation => self.bodies_found(now, asked, found),
            Input::AttemptFinished { generation, send, attempt } if generation == self.generation => {
                self.attempt_finished(now, send, attempt);
            }
            Input::NotSent { generation, send } if generation == self.generation => self.not_sent(now, send),
            Input::Recorded { generation, on_recorded, results } if generation == self.generation => {
                self.recorded(now, on_recorded, &results);
            }
            Input::ConfigurationChanged => {
                self.retry_unreadable_now(now);
                let (generation, tenants) = (self.generation, self.tenants.keys().cloned().collect::<Vec<_>>());
                if !tenants.is_empty() {
                    self.effects.push(Effect::CompareVersions { generation, tenants });
                }
            }
            Input::Versions { generation, versions } if generation == self.generation => self.compare(versions),
            Input::Restamped { generation, endpoint } if generation == self.generation => {
                // A row may have gone from one queue to another between two reads, so that a lane that saw neither of
                // them was forgotten.
                self.look_at(now, endpoint);
                self.scheduler.reread(endpoint);
            }
            Input::Overdue(overdue) => overdue.into_iter().for_each(|overdue| self.end_overdue(now, overdue)),
            Input::Command(asked) => self.command_received(now, asked),
            Input::DeliveriesFound { generation, asked, rows } if generation == self.generation => {
                self.deliveries_found(now, *asked, &rows);
            }
            Input::StatisticsRead { generation, endpoint, trigger, seen } if generation == self.generation => {
                self.statistics_read(now, endpoint, trigger, &seen);
            }
            // Of an earlier generation: another owner sends those deliveries again.
            Input::GapScanned { .. }
            | Input::EndpointsLoaded { .. }
            | Input::EndpointUnreadable { .. }
            | Input::WindowRead { .. }
            | Input::BodiesRead { .. }
            | Input::Recorded { .. }
            | Input::Versions { .. }
            | Input::Restamped { .. }
            | Input::DeliveriesFound { .. }
            | Input::StatisticsRead { .. } => {}
            Input::AttemptFinished { .. } | Input::NotSent { .. } => self.requests -= 1,
        }
    }

    /// The effects to carry out now. None follow until the next input, or until [`Owner::wake_at`].
    pub fn next_effects(&mut self, now: Timestamp) -> Vec<Effect> {
        self.look_at_blocked(now);
        while self.may_start()
            && let Some(command) = self.scheduler.next(now)
        {
            match command {
                Command::Send { endpoint, delivery, attempt: _, is_probe } => self.send(now, endpoint, delivery, is_probe),
                Command::End { endpoint, delivery, state } => self.end(endpoint, delivery, state),
                Command::Read { endpoint, want, limit } => {
                    self.effects.push(Effect::ReadWindow { generation: self.generation, endpoint, want, limit });
                }
            }
        }
        let generation = self.generation;
        if let Some(after) = self.feed_gap.next_scan() {
            self.effects.push(Effect::ScanGap { generation, after });
        }
        self.retry_unreadable(now);
        let to_load = std::mem::take(&mut self.to_load);
        if !to_load.is_empty() {
            self.loading_since.get_or_insert(now);
            self.applying.begin(&to_load);
        }
        self.effects
            .extend(to_load.chunks(AT_ONCE_MAX).map(|chunk| Effect::LoadEndpoints { generation, endpoints: chunk.to_vec() }));
        let pending_sends = std::mem::take(&mut self.pending_sends);
        self.effects
            .extend(pending_sends.chunks(AT_ONCE_MAX).map(|chunk| Effect::ReadBodies { generation, wanted: chunk.to_vec() }));
        if !self.records.is_empty() {
            self.unrecorded += self.records.len();
            // Into lists of just that length, so that those here keep their room for the next ones.
            let (records, on_recorded) = (self.records.drain(..).collect(), self.on_recorded.drain(..).collect());
            self.effects.push(Effect::Record { generation, records, on_recorded });
        }
        std::mem::take(&mut self.effects)
    }

    /// When to call [`Owner::next_effects`] again if there is no input.
    pub fn wake_at(&self) -> Option<Timestamp> {
        // While nothing may be started only news can change that.
        let scheduled = self.scheduler.wake_at().filter(|_| self.may_start());
        [scheduled, self.unreadable_retry_at(), self.blocked.next_look()].into_iter().flatten().min()
    }

    /// Starts nothing new from now on.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Nothing is on its way, and everything is recorded.
    pub fn is_at_rest(&self) -> bool {
        self.requests == 0 && self.unrecorded == 0 && self.records.is_empty()
    }

    /// What is on its way, or not yet recorded.
    pub fn unfinished(&self) -> usize {
        self.requests + self.unrecorded
    }

    /// Whether something that is due would be sent.
    pub fn may_start(&self) -> bool {
        !self.is_stopping && self.unrecorded < UNRECORDED_MAX && self.bytes_in_flight < self.options.in_flight_body_bytes_max
    }

    /// Publishes snapshots of the lanes that changed since the last call. They explain holds.
    pub fn publish_changed_lanes(&mut self, now: Timestamp) {
        let changed = std::mem::take(&mut self.changed);
        let lanes: Vec<LaneSnapshot> = changed.into_iter().filter_map(|endpoint| self.lane_snapshot(now, endpoint)).collect();
        if !lanes.is_empty() {
            self.effects.push(Effect::PublishLanes(lanes));
        }
    }

    /// The snapshot of one lane; `None` if its endpoint is not loaded.
    pub fn lane_snapshot(&self, now: Timestamp, endpoint: EndpointId) -> Option<LaneSnapshot> {
        let blocked = self.unreadable.get(&endpoint).map(|unreadable| unreadable.cause.clone());
        let Some(known) = self.endpoints.get(&endpoint) else {
            return Some(LaneSnapshot { blocked: Some(blocked?), ..LaneSnapshot::unknown(endpoint, now) });
        };
        let blocked = blocked.or_else(|| self.blocked.cause(endpoint));
        let facts = self.scheduler.facts(now, endpoint);
        Some(LaneSnapshot {
            endpoint,
            at: now,
            memory: self.scheduler.memory(endpoint).unwrap_or_default(),
            timeout: known.timeout,
            tenant_bucket: self.scheduler.tenant_bucket(&known.tenant),
            retries_from: facts.and_then(|facts| facts.retries_from),
            is_short_of_tokens: facts.is_some_and(|facts| facts.is_short_of_tokens),
            has_slot: facts.is_none_or(|facts| facts.has_slot) && self.may_start(),
            in_flight: self.scheduler.delivering(endpoint),
            blocked,
        })
    }

    /// Takes what was recorded since the last call. Empty without metrics.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    fn note(&mut self, note: Note) {
        if self.options.metrics.is_some() {
            self.notes.push(note);
        }
    }

    /// The metric of a delivery that ends without an attempt.
    fn note_of_end(&self, endpoint: EndpointId, state: State) -> Option<Note> {
        self.options.metrics.as_ref()?;
        let tenant = self.endpoints.get(&endpoint)?.tenant.clone();
        match state {
            State::Waiting { .. } | State::Delivered { .. } => None,
            State::Dead { reason, .. } => Some(Note::Dead { tenant, reason }),
            State::Cancelled { reason, .. } => Some(Note::Cancelled { tenant, reason }),
        }
    }

    /// Surveys at most `lanes_max` lanes from `from` on. Returns where to continue.
    pub fn survey(&mut self, now: Timestamp, from: usize, lanes_max: usize) -> (Vec<LaneSurvey>, Option<usize>) {
        self.scheduler.survey(now, from, lanes_max)
    }

    /// Since when loading endpoints has been waiting for the store.
    pub fn loading_since(&self) -> Option<Timestamp> {
        self.loading_since
    }

    pub fn token_waits(&self) -> TokenWaits {
        self.scheduler.token_waits()
    }

    /// The number of requests in flight.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// The number of outcomes that wait for their commit.
    pub fn unrecorded(&self) -> usize {
        self.unrecorded
    }

    /// The lane states that a clean stop writes for the next start.
    pub fn lane_states(&mut self) -> Vec<Record> {
        // Each of another lane: one version is newer than all that they had.
        let version = self.next_lane_version();
        let lane = |(endpoint, known): (&EndpointId, &EndpointState)| {
            let memory = self.scheduler.memory(*endpoint)?;
            Some(Record {
                partition: known.partition,
                epoch: *self.epochs.get(&known.partition)?,
                endpoint: *endpoint,
                recorded: DeliveryChange::Nothing,
                lane: Some(LaneState { memory, timeout: known.timeout, version }),
                disables_endpoint: None,
            })
        };
        let mut lanes: Vec<Record> = self.endpoints.iter().filter_map(lane).collect();
        lanes.sort_by_key(|record| record.endpoint);
        lanes
    }

    fn next_lane_version(&mut self) -> u64 {
        self.lane_version += 1;
        self.lane_version
    }

    /// Whether there is a lane. One that has nothing to send and nothing to remember is forgotten.
    pub fn remembers(&self, endpoint: EndpointId) -> bool {
        self.scheduler.has_lane(endpoint)
    }

    /// Whether what is kept of lanes is within its bounds, however much waits.
    pub fn is_bounded(&self) -> bool {
        self.scheduler.is_bounded()
    }

    pub fn lane_count(&self) -> usize {
        self.scheduler.lane_count()
    }

    /// Whether a delivery's turn has come and what became of it is not recorded yet.
    pub fn is_in_flight(&self, endpoint: EndpointId, delivery: DeliveryId) -> bool {
        self.scheduler.is_in_flight(endpoint, delivery)
    }

    pub fn in_flight(&self) -> u32 {
        self.scheduler.in_flight()
    }

    pub fn partitions(&self) -> Vec<Partition> {
        self.epochs.keys().copied().collect()
    }
}
