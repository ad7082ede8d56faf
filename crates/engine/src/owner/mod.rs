//! What the owner of lanes knows, and what it wants done.
//!
//! Everything that happens to a node's deliveries comes in as a [`Wake`]; everything that has to be done about it goes out
//! as a [`Deed`]. Whoever goes next is `core::scheduler`'s business; this is what lies around it: which endpoints are known,
//! which payloads are at hand, what is to be recorded, who waits for an answer.
//!
//! Nothing in here waits, asks the time or touches the world. So the simulator can run it in virtual time, and let it die
//! between any two steps.

mod applying;
mod asked;
mod blocked;
mod feed_gap;
mod news;
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
use posthaste_store::{Commanded, Epoch, LaneShown, LaneState, LeaveAlone, Partition, Record, Recorded};
use tokio::sync::oneshot;

use crate::Options;
use crate::bodies::CachedBodies;

use applying::Applying;
use asked::Waiter;
use blocked::Blocked;
use feed_gap::FeedGap;
pub use news::{After, Bodiless, Deed, Errand, Life, Seen, Sending, Ticket, Wake};
use ownership::{Known, KnownTenant};
use sending::Sent;
use unreadable::Unreadable;

/// How many endpoints are taken up, and bodies read, in one go.
const AT_ONCE_MAX: usize = 256;
/// While more outcomes than this wait for their commit, nothing is sent.
const UNRECORDED_MAX: usize = 4096;

/// An event that somebody wants to see arrive, and who.
type Test = (Arc<Event>, oneshot::Sender<Commanded>);

#[derive(Debug)]
pub struct Owner {
    options: Options,
    scheduler: Scheduler,
    life: Life,
    epochs: BTreeMap<Partition, Epoch>,
    /// When each became ours: what was spent there before is not known.
    owned_since: BTreeMap<Partition, ownership::Since>,
    /// Under which what is still in flight is recorded.
    left_epochs: BTreeMap<Partition, Epoch>,
    /// Whose last owner has written down all that it knew.
    handed_over: BTreeSet<Partition>,
    left_alone: HashMap<EndpointId, Vec<LeaveAlone>>,
    known: HashMap<EndpointId, Known>,
    feed_gap: FeedGap,
    /// The highest of all lane states, those that were read and those that were made here. Never falls, so that a record that is
    /// retried late is never taken for a newer one.
    lane_version: u64,
    /// In an order, so that what is asked for does not depend on a hash.
    tenants: BTreeMap<TenantId, KnownTenant>,
    /// Under which epoch of a partition what is known of a tenant's tokens was taken over.
    tenants_taken: BTreeMap<(TenantId, Partition), Epoch>,
    taking_up: HashSet<EndpointId>,
    /// Since when nobody has answered about those.
    taking_up_since: Option<Timestamp>,
    to_take_up: Vec<EndpointId>,
    unreadable: BTreeMap<EndpointId, Unreadable>,
    blocked: Blocked,
    bodies: CachedBodies,
    bodiless: Vec<Bodiless>,
    /// Their turn has come and nothing has been sent yet: their payload is being read, or their probe recorded.
    unsent: HashSet<DeliveryId>,
    bytes_in_flight: usize,
    records: Vec<Record>,
    after: Vec<After>,
    unrecorded: usize,
    /// Rows that were read or withdrawn and whose commit the feed may not have reported yet.
    ahead_of_news: BTreeSet<Seq>,
    /// Taken out of their lanes and not yet recorded: nothing sends them, whatever a read brings. Whether one has.
    withdrawn: HashMap<Seq, bool>,
    waiters: HashMap<Ticket, Waiter>,
    applying: Applying,
    tickets: Ticket,
    /// Somebody wants to send a test there as soon as it is known.
    tests: HashMap<EndpointId, Vec<Test>>,
    /// Whoever waits for a test that is under way.
    testers: HashMap<DeliveryId, oneshot::Sender<Commanded>>,
    /// What has happened and is on disk, for whoever counts it.
    notes: Vec<Note>,
    /// Of requests that are on their way.
    sent: HashMap<DeliveryId, Sent>,
    changed: BTreeSet<EndpointId>,
    requests: usize,
    is_stopping: bool,
    deeds: Vec<Deed>,
}

impl Owner {
    pub fn new(now: Timestamp, options: Options) -> Owner {
        Owner {
            scheduler: Scheduler::new(now, options.limits),
            life: 0,
            epochs: BTreeMap::new(),
            owned_since: BTreeMap::new(),
            left_epochs: BTreeMap::new(),
            handed_over: BTreeSet::new(),
            left_alone: HashMap::new(),
            known: HashMap::new(),
            feed_gap: FeedGap::default(),
            lane_version: 0,
            tenants: BTreeMap::new(),
            tenants_taken: BTreeMap::new(),
            taking_up: HashSet::new(),
            taking_up_since: None,
            to_take_up: Vec::new(),
            unreadable: BTreeMap::new(),
            blocked: Blocked::default(),
            bodies: CachedBodies::new(options.cached_body_bytes_max),
            bodiless: Vec::new(),
            unsent: HashSet::new(),
            bytes_in_flight: 0,
            records: Vec::new(),
            after: Vec::new(),
            unrecorded: 0,
            ahead_of_news: BTreeSet::new(),
            withdrawn: HashMap::new(),
            waiters: HashMap::new(),
            applying: Applying::default(),
            tickets: 0,
            tests: HashMap::new(),
            testers: HashMap::new(),
            notes: Vec::new(),
            sent: HashMap::new(),
            changed: BTreeSet::new(),
            requests: 0,
            is_stopping: false,
            deeds: Vec::new(),
            options,
        }
    }

    /// Something has happened. What comes of it is told by [`Owner::next_deeds`].
    pub fn wake(&mut self, now: Timestamp, wake: Wake) {
        match wake {
            Wake::Owns(claimed) => self.owns(now, claimed),
            Wake::LeaseEnded if plant::is(Plant::FrozenNodeGoesOn) || plant::is(Plant::LeaseEndIgnored) => {}
            Wake::LeaseEnded => self.drop_everything(now),
            Wake::GiveUp(partitions) => self.give_up(now, partitions),
            Wake::RecordedElsewhere { endpoint, delivery } => self.recorded_elsewhere(endpoint, delivery),
            Wake::Work(endpoints) => endpoints.into_iter().for_each(|endpoint| self.look_at(now, endpoint)),
            Wake::Fed(rows) => rows.into_iter().for_each(|row| self.fed(now, row)),
            Wake::FeedOverflowed => self.feed_gap.overflowed(),
            Wake::GapScanned { life, through } if life == self.life => self.feed_gap.scanned(through),
            Wake::EndpointUnreadable { life, endpoint, cause } if life == self.life => {
                self.endpoint_unreadable(now, endpoint, cause);
            }
            Wake::TakenUp { life, asked, found } if life == self.life => self.taken_up(now, &asked, found),
            Wake::Read { life, endpoint, want, rows } if life == self.life => self.has_read(endpoint, &want, rows),
            Wake::Bodies { life, asked, found } if life == self.life => self.bodies_found(now, asked, found),
            Wake::Answered { life, errand, attempt } if life == self.life => self.answered(now, errand, attempt),
            Wake::NotSent { life, errand } if life == self.life => self.not_sent(now, errand),
            Wake::Recorded { life, after, results } if life == self.life => self.recorded(now, after, &results),
            Wake::ConfigurationMoved => {
                self.retry_unreadable_now(now);
                let (life, tenants) = (self.life, self.tenants.keys().cloned().collect::<Vec<_>>());
                if !tenants.is_empty() {
                    self.deeds.push(Deed::CompareVersions { life, tenants });
                }
            }
            Wake::Versions { life, versions } if life == self.life => self.compare(versions),
            Wake::Restamped { life, endpoint } if life == self.life => {
                // A row may have gone from one queue to another between two reads, so that a lane that saw neither of
                // them was forgotten.
                self.look_at(now, endpoint);
                self.scheduler.reread(endpoint);
            }
            Wake::Overdue(overdue) => overdue.into_iter().for_each(|overdue| self.end_overdue(now, overdue)),
            Wake::Asked(asked) => self.asked(now, asked),
            Wake::LookedUp { life, asked, rows } if life == self.life => self.looked_up(now, *asked, &rows),
            Wake::Seen { life, endpoint, trigger, seen } if life == self.life => self.seen(now, endpoint, trigger, &seen),
            // Of an earlier life. What was sent in it is somebody else's to send again.
            Wake::GapScanned { .. }
            | Wake::TakenUp { .. }
            | Wake::EndpointUnreadable { .. }
            | Wake::Read { .. }
            | Wake::Bodies { .. }
            | Wake::Recorded { .. }
            | Wake::Versions { .. }
            | Wake::Restamped { .. }
            | Wake::LookedUp { .. }
            | Wake::Seen { .. } => {}
            Wake::Answered { .. } | Wake::NotSent { .. } => self.requests -= 1,
        }
    }

    /// What is to be done now. Nothing more until something happens, or until [`Owner::wake_at`].
    pub fn next_deeds(&mut self, now: Timestamp) -> Vec<Deed> {
        self.look_at_blocked(now);
        while self.may_start()
            && let Some(command) = self.scheduler.next(now)
        {
            match command {
                Command::Send { endpoint, delivery, attempt: _, is_probe } => self.send(now, endpoint, delivery, is_probe),
                Command::End { endpoint, delivery, state } => self.end(endpoint, delivery, state),
                Command::Read { endpoint, want, limit } => {
                    self.deeds.push(Deed::Read { life: self.life, endpoint, want, limit });
                }
            }
        }
        let life = self.life;
        if let Some(after) = self.feed_gap.next_scan() {
            self.deeds.push(Deed::ScanGap { life, after });
        }
        self.retry_unreadable(now);
        let to_take_up = std::mem::take(&mut self.to_take_up);
        if !to_take_up.is_empty() {
            self.taking_up_since.get_or_insert(now);
            self.applying.begin(&to_take_up);
        }
        self.deeds.extend(to_take_up.chunks(AT_ONCE_MAX).map(|chunk| Deed::TakeUp { life, endpoints: chunk.to_vec() }));
        let bodiless = std::mem::take(&mut self.bodiless);
        self.deeds.extend(bodiless.chunks(AT_ONCE_MAX).map(|chunk| Deed::ReadBodies { life, wanted: chunk.to_vec() }));
        if !self.records.is_empty() {
            self.unrecorded += self.records.len();
            // Into lists of just that length, so that those here keep their room for the next ones.
            let (records, after) = (self.records.drain(..).collect(), self.after.drain(..).collect());
            self.deeds.push(Deed::Record { life, records, after });
        }
        std::mem::take(&mut self.deeds)
    }

    /// When to ask again if nothing happens.
    pub fn wake_at(&self) -> Option<Timestamp> {
        // While nothing may be started only news can change that.
        let scheduled = self.scheduler.wake_at().filter(|_| self.may_start());
        [scheduled, self.unreadable_retry_at(), self.blocked.next_look()].into_iter().flatten().min()
    }

    /// Nothing new is started from here on.
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

    /// What has changed of the lanes since this was last asked, for whoever explains holds.
    pub fn show(&mut self, now: Timestamp) {
        let changed = std::mem::take(&mut self.changed);
        let lanes: Vec<LaneShown> = changed.into_iter().filter_map(|endpoint| self.shown(now, endpoint)).collect();
        if !lanes.is_empty() {
            self.deeds.push(Deed::Show(lanes));
        }
    }

    /// What is shown of one lane; `None` of one that is not known here.
    pub fn shown(&self, now: Timestamp, endpoint: EndpointId) -> Option<LaneShown> {
        let blocked = self.unreadable.get(&endpoint).map(|unreadable| unreadable.cause.clone());
        let Some(known) = self.known.get(&endpoint) else {
            return Some(LaneShown { blocked: Some(blocked?), ..LaneShown::unknown(endpoint, now) });
        };
        let blocked = blocked.or_else(|| self.blocked.cause(endpoint));
        let facts = self.scheduler.facts(now, endpoint);
        Some(LaneShown {
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

    /// What has happened since this was last asked. Nothing unless somebody counts it.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    fn note(&mut self, note: Note) {
        if self.options.metrics.is_some() {
            self.notes.push(note);
        }
    }

    /// What is counted when a delivery ends without an attempt.
    fn note_of_end(&self, endpoint: EndpointId, state: State) -> Option<Note> {
        self.options.metrics.as_ref()?;
        let tenant = self.known.get(&endpoint)?.tenant.clone();
        match state {
            State::Waiting { .. } | State::Delivered { .. } => None,
            State::Dead { reason, .. } => Some(Note::Dead { tenant, reason }),
            State::Cancelled { reason, .. } => Some(Note::Cancelled { tenant, reason }),
        }
    }

    /// Looks at lanes from this place on, at most so many, and says where to go on.
    pub fn survey(&mut self, now: Timestamp, from: usize, lanes_max: usize) -> (Vec<LaneSurvey>, Option<usize>) {
        self.scheduler.survey(now, from, lanes_max)
    }

    /// Since when the store has not said what endpoints are like that something is to be sent to.
    pub fn takes_up_since(&self) -> Option<Timestamp> {
        self.taking_up_since
    }

    pub fn token_waits(&self) -> TokenWaits {
        self.scheduler.token_waits()
    }

    /// Requests that are on their way.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Outcomes that wait for their commit.
    pub fn unrecorded(&self) -> usize {
        self.unrecorded
    }

    /// What a clean stop writes, so that the next start knows it: the lanes that have something to remember.
    pub fn lane_states(&mut self) -> Vec<Record> {
        // Each of another lane: one version is newer than all that they had.
        let version = self.next_lane_version();
        let lane = |(endpoint, known): (&EndpointId, &Known)| {
            let memory = self.scheduler.memory(*endpoint)?;
            Some(Record {
                partition: known.partition,
                epoch: *self.epochs.get(&known.partition)?,
                endpoint: *endpoint,
                recorded: Recorded::Nothing,
                lane: Some(LaneState { memory, timeout: known.timeout, version }),
                disables_endpoint: None,
            })
        };
        let mut lanes: Vec<Record> = self.known.iter().filter_map(lane).collect();
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
