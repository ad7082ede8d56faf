//! Who goes next: lanes under tenants, fairly, in order, and only what may go.
//!
//! Each endpoint with something to send has a lane. The scheduler is told of rows, answers and changes, and says what to
//! send, what to end, and what it would like to be read from the store. It never waits and never asks the time; it says
//! when it wants to be asked again.
//!
//! Fairness is in three steps. Tenants take turns by weight (deficit round robin); a tenant's lanes take turns; inside a
//! lane the oldest goes first. And nobody may have more in flight than there are slots free (times their weight): one hog
//! gets half of the machine, two get a third each, and a newcomer always finds room.
//!
//! Cost does not grow with what is idle: a dispatch touches one tenant and one lane, and what cannot go now is parked
//! with the time at which that may change.

mod lane;
mod line;
mod survey;
mod wake_ups;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::admission::LaneFacts;
use crate::bucket::{Bucket, RateLimit};
use crate::delivery::{Outcome, State};
use crate::id::{DeliveryId, EndpointId, TenantId};
use crate::plant::{self, Plant};
use crate::tenant::Share;
use crate::text::OrderingKey;
use crate::time::Timestamp;

use lane::{Block, Elsewhere, Flight, Lane, Stage, Turn};
use wake_ups::{Sleeper, WakeUps};
use window::Window;

pub use lane::{Decision, LaneConfig, LaneMemory, TokenWaits};
pub use survey::{HeldRows, LaneSurvey};
pub use window::{Class, Entry, Seq, WindowQuery};

/// What holds for the whole node.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    pub in_flight_max: u32,
    /// Rows in memory for each queue of a lane.
    pub window: usize,
    /// With fewer than this a window wants more.
    pub low_water: usize,
    /// For incidents: second and later tries of all endpoints together.
    pub retries: Option<RateLimit>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { in_flight_max: 1024, window: 256, low_water: 64, retries: None }
    }
}

#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct TenantConfig {
    pub share: Share,
    pub rate_limit: Option<RateLimit>,
}

/// Something to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Send it, then say [`Scheduler::finished`], record what that decides, and say [`Scheduler::recorded`].
    Send { endpoint: EndpointId, delivery: DeliveryId, attempt: u32, is_probe: bool },
    /// End it in this state without sending, then say [`Scheduler::ended`].
    End { endpoint: EndpointId, delivery: DeliveryId, state: State },
    /// Read this from the store, at most `limit` rows, then say [`Scheduler::refilled`]. What is in flight is still in the
    /// store, so the limit leaves room for it.
    Read { endpoint: EndpointId, want: WindowQuery, limit: usize },
}

/// Where rows come from when a lane is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backlog {
    /// Just made: the store has nothing.
    None,
    /// The store may have rows.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    /// Those that were forgotten leave their place to the next.
    tenants: Vec<Tenant>,
    free_tenants: Vec<usize>,
    tenant_numbers: BTreeMap<TenantId, usize>,
    lanes: Vec<Option<Lane>>,
    lane_numbers: LaneNumbers,
    free_numbers: Vec<usize>,
    in_flight: u32,
    /// Tenants with a lane that may have something to send, in turn.
    ring: VecDeque<usize>,
    /// Tenants that wait for slots: how many have to be free.
    slot_waiters: BTreeSet<(u32, usize)>,
    wake_ups: WakeUps,
    retry_bucket: Bucket,
    reads: VecDeque<Command>,
    token_waits: TokenWaits,
}

/// Looked up three times for every delivery, so it is a hash map; by a fixed hash of the id, and never gone through, so
/// that nothing depends on its order. Ids are ours, so nobody can choose them to collide.
#[expect(clippy::disallowed_types, reason = "fixed hash, no iteration")]
type LaneNumbers = std::collections::HashMap<EndpointId, usize, BuildHasherDefault<IdHasher>>;

/// An id is random already; folding it is enough.
#[derive(Clone, Copy, Default, Debug)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_u128(&mut self, id: u128) {
        let bytes = id.to_le_bytes();
        let (low, high) = bytes.split_at(8);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of sixteen bytes"));
        self.0 = (half(low) ^ half(high).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

#[derive(Clone, Debug)]
struct Tenant {
    config: TenantConfig,
    bucket: Bucket,
    /// How many lanes there are of it.
    lanes: usize,
    in_flight: u32,
    /// Lanes that may have something to send, in turn.
    ready: VecDeque<usize>,
    /// Lanes that wait for slots of this tenant: how many have to be free.
    slot_waiters: BTreeSet<(u32, usize)>,
    /// What is left of its turn.
    deficit: u32,
    is_in_ring: bool,
    /// At its last turn it had something to send and no token for it.
    is_short_of_tokens: bool,
    /// Its entry among the wake-ups; it may be woken for nothing.
    wakes_at: Option<Timestamp>,
}

impl Scheduler {
    /// `now` is when this node took over: nothing is known to be unspent.
    pub fn new(now: Timestamp, limits: Limits) -> Scheduler {
        Scheduler {
            limits,
            tenants: Vec::new(),
            free_tenants: Vec::new(),
            tenant_numbers: BTreeMap::new(),
            lanes: Vec::new(),
            lane_numbers: LaneNumbers::default(),
            free_numbers: Vec::new(),
            in_flight: 0,
            ring: VecDeque::new(),
            slot_waiters: BTreeSet::new(),
            wake_ups: WakeUps::default(),
            retry_bucket: limits.retries.map_or(Bucket::full(), |limit| Bucket::empty(now, limit)),
            reads: VecDeque::new(),
            token_waits: TokenWaits::default(),
        }
    }

    /// Makes or changes a tenant. `bucket` is what is known of its tokens; for one that is there it stays.
    pub fn configure_tenant(&mut self, now: Timestamp, id: &TenantId, config: TenantConfig, bucket: Bucket) {
        if let Some(number) = self.tenant_numbers.get(id).copied() {
            let tenant = &mut self.tenants[number];
            tenant.bucket = lane::changed_bucket(tenant.bucket, now, tenant.config.rate_limit, config.rate_limit);
            tenant.config = config;
            self.enter_ring(number);
            return;
        }
        let tenant = Tenant {
            config,
            bucket,
            lanes: 0,
            in_flight: 0,
            ready: VecDeque::new(),
            slot_waiters: BTreeSet::new(),
            deficit: 0,
            is_in_ring: false,
            is_short_of_tokens: false,
            wakes_at: None,
        };
        let number = if let Some(number) = self.free_tenants.pop() {
            self.tenants[number] = tenant;
            number
        } else {
            self.tenants.push(tenant);
            self.tenants.len() - 1
        };
        self.tenant_numbers.insert(id.clone(), number);
    }

    /// Forgets a tenant that has no lane and whose bucket is full, so that nothing about it has to be remembered. Returns
    /// whether it is unknown now.
    pub fn forget_tenant(&mut self, now: Timestamp, id: &TenantId) -> bool {
        let Some(number) = self.tenant_numbers.get(id).copied() else { return true };
        let tenant = &mut self.tenants[number];
        let has_spent = tenant.config.rate_limit.is_some_and(|limit| !tenant.bucket.is_full(now, limit));
        if tenant.lanes > 0 || tenant.in_flight > 0 || tenant.is_in_ring || has_spent {
            return false;
        }
        self.wake_ups.set(Sleeper::Tenant(number), &mut tenant.wakes_at, None);
        self.slot_waiters.retain(|(_, waiter)| *waiter != number);
        self.tenant_numbers.remove(id);
        self.free_tenants.push(number);
        true
    }

    /// Takes a tenant from another owner, with what is known of its tokens.
    pub fn take_tenant(&mut self, now: Timestamp, id: &TenantId, config: TenantConfig, bucket: Bucket) {
        self.configure_tenant(now, id, config, bucket);
        let number = *self.tenant_numbers.get(id).expect("just configured");
        self.tenants[number].bucket = bucket;
    }

    /// Makes a lane, or changes the one that is there; its `memory` is then kept, and `backlog` says no more than before.
    pub fn configure(
        &mut self,
        now: Timestamp,
        tenant: &TenantId,
        endpoint: EndpointId,
        config: LaneConfig,
        memory: LaneMemory,
        backlog: Backlog,
    ) {
        if let Some(number) = self.lane_numbers.get(&endpoint).copied() {
            let lane = self.lane_mut(number);
            if lane.is_leaving {
                lane.come_back(memory);
            }
            lane.configure(now, config);
            self.enqueue(number);
            return;
        }
        let tenant = *self.tenant_numbers.get(tenant).expect("a tenant is configured before its lanes");
        let window = match backlog {
            Backlog::None => Window::empty(self.limits.window),
            Backlog::Unknown => Window::new(self.limits.window),
        };
        self.tenants[tenant].lanes += 1;
        let lane = Lane::new(endpoint, tenant, config, memory, window);
        let number = self.free_numbers.pop().unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        self.lanes[number] = Some(lane);
        self.lane_numbers.insert(endpoint, number);
        self.enqueue(number);
    }

    pub fn has_lane(&self, endpoint: EndpointId) -> bool {
        self.lane_numbers.contains_key(&endpoint)
    }

    /// What this lane knows, for writing it down and for handing it over.
    pub fn memory(&self, endpoint: EndpointId) -> Option<LaneMemory> {
        self.lane_numbers.get(&endpoint).map(|number| self.lane(*number).memory)
    }

    /// A row that was just committed.
    pub fn offer(&mut self, endpoint: EndpointId, entry: Entry) {
        let Some(number) = self.lane_numbers.get(&endpoint).copied() else { return };
        // A read may have been faster, and it is on its way already.
        if self.lane(number).has_in_flight(entry.delivery) {
            return;
        }
        self.lane_mut(number).window.offer(entry);
        self.enqueue(number);
    }

    /// Rows up to this one have been read before this lane was made: only a read brings them from here on.
    pub fn rows_seen(&mut self, endpoint: EndpointId, seq: Seq) {
        if let Some(number) = self.lane_numbers.get(&endpoint).copied() {
            self.lane_mut(number).window.rows_seen(seq);
        }
    }

    /// There may be rows in the store that this lane has not seen.
    pub fn hint(&mut self, endpoint: EndpointId) {
        if let Some(number) = self.lane_numbers.get(&endpoint).copied() {
            if !plant::is(Plant::HintLost) {
                self.lane_mut(number).window.mark_unread();
            }
            self.enqueue(number);
        }
    }

    /// Rows of this lane have been stamped with other classes: all of it is read again.
    pub fn reread(&mut self, endpoint: EndpointId) {
        if let Some(number) = self.lane_numbers.get(&endpoint).copied() {
            self.lane_mut(number).window.forget();
            self.enqueue(number);
        }
    }

    /// The answer to [`Command::Read`]. `more` says that it was cut off at its limit, `seen` is the last row that was
    /// committed when it looked.
    pub fn refilled(&mut self, endpoint: EndpointId, want: &WindowQuery, rows: Vec<Entry>, more: bool, seen: Seq) {
        let Some(number) = self.lane_numbers.get(&endpoint).copied() else { return };
        let Lane { window, flights, elsewhere, .. } = self.lane_mut(number);
        let is_in_flight = |delivery| flights.contains(delivery) || elsewhere.contains_key(&delivery);
        window.refilled(want, rows, more, seen, is_in_flight);
        if !window.is_being_read() {
            self.lane_mut(number).reads_since = None;
        }
        self.enqueue(number);
    }

    /// What to do next, or nothing until [`Scheduler::wake_at`] or further news.
    pub fn next(&mut self, now: Timestamp) -> Option<Command> {
        if let Some(read) = self.reads.pop_front() {
            return Some(read);
        }
        self.wake(now);
        while self.in_flight < self.limits.in_flight_max {
            let tenant_number = *self.ring.front()?;
            let free = self.free();
            let tenant = &mut self.tenants[tenant_number];
            if let Some(slots) = tenant.slots_needed(free) {
                self.leave_ring();
                // At its own cap it waits for its own answers.
                if let Some(slots) = slots {
                    self.slot_waiters.insert((slots, tenant_number));
                }
                continue;
            }
            if let Some(limit) = tenant.config.rate_limit.filter(|_| !plant::is(Plant::TenantBucketIgnored)) {
                let ready = tenant.bucket.ready_at(now, limit, 1);
                if now < ready {
                    tenant.is_short_of_tokens = true;
                    self.token_waits.add(ready.since(now));
                    self.wake_ups.set(Sleeper::Tenant(tenant_number), &mut tenant.wakes_at, Some(ready));
                    self.leave_ring();
                    continue;
                }
            }
            let Some(number) = tenant.ready.pop_front() else {
                tenant.is_short_of_tokens = false;
                self.leave_ring();
                continue;
            };
            if let Some(command) = self.turn_of(now, tenant_number, number) {
                return Some(command);
            }
            if let Some(read) = self.reads.pop_front() {
                return Some(read);
            }
        }
        None
    }

    /// Lets one lane have its turn. It is not queued while it has it.
    fn turn_of(&mut self, now: Timestamp, tenant_number: usize, number: usize) -> Option<Command> {
        let limits = self.limits;
        let retries_from = limits
            .retries
            .filter(|_| !plant::is(Plant::IncidentCapIgnored))
            .map(|limit| self.retry_bucket.ready_at(now, limit, 1))
            .filter(|ready| now < *ready);
        let tenant = &mut self.tenants[tenant_number];
        let lane = self.lanes[number].as_mut().expect("a number in a queue is a lane");
        lane.is_queued = false;
        if lane.is_leaving {
            self.park(now, number, None);
            return None;
        }
        let wants = lane.wants(now, limits.low_water);
        let limit = limits.window + lane.flights.len() + lane.elsewhere.len();
        if !wants.is_empty() {
            lane.reads_since.get_or_insert(now);
        }
        self.reads.extend(wants.into_iter().map(|want| Command::Read { endpoint: lane.endpoint, want, limit }));
        if lane.in_flight >= lane.in_flight_max() {
            return None;
        }
        let free = tenant.free();
        if lane.in_flight >= free {
            tenant.slot_waiters.insert((lane.in_flight + 1, number));
            return None;
        }
        match lane.turn(now, retries_from) {
            Turn::Send { place, is_probe } => {
                let entry = lane.start(now, place, is_probe);
                let (delivery, attempt) = (entry.delivery, entry.attempts + 1);
                if let Some(limit) = tenant.config.rate_limit.filter(|_| !plant::is(Plant::TenantBucketIgnored)) {
                    tenant.bucket.take(now, limit).expect("a token was there when it was its turn");
                }
                if let Some(limit) = limits.retries.filter(|_| attempt > 1 && !plant::is(Plant::IncidentCapIgnored)) {
                    self.retry_bucket.take(now, limit).expect("a token was there when it was its turn");
                }
                let endpoint = lane.endpoint;
                self.in_flight += 1;
                tenant.in_flight += 1;
                self.end_turn(number);
                Some(Command::Send { endpoint, delivery, attempt, is_probe })
            }
            Turn::End { place, state } => {
                let entry = lane.window.take(place);
                let (endpoint, delivery) = (lane.endpoint, entry.delivery);
                lane.flights.insert(delivery, Flight { entry, stage: Stage::Recording { waits_until: None }, since: now });
                self.enqueue(number);
                Some(Command::End { endpoint, delivery, state })
            }
            Turn::Wait { until } => {
                self.token_waits.take_from(&mut lane.token_waits);
                self.park(now, number, until);
                None
            }
        }
    }

    /// The tenant at the front has sent one: its lane goes to the back of its lanes, and it to the back if its turn is over.
    fn end_turn(&mut self, number: usize) {
        self.enqueue(number);
        let tenant_number = *self.ring.front().expect("its turn");
        let tenant = &mut self.tenants[tenant_number];
        if tenant.deficit == 0 {
            tenant.deficit = tenant.config.share.weight();
        }
        tenant.deficit -= 1;
        if tenant.deficit == 0 {
            self.ring.rotate_left(1);
        }
    }

    /// The answer to a [`Command::Send`] is there.
    pub fn finished(&mut self, now: Timestamp, endpoint: EndpointId, delivery: DeliveryId, outcome: &Outcome) -> Decision {
        let number = self.number(endpoint);
        let decision = self.lane_mut(number).finished(now, delivery, outcome);
        self.slot_is_free(number);
        decision
    }

    /// A [`Command::Send`] cannot be carried out, because what is stored of it is damaged. It ends without an attempt: record
    /// that, and say [`Scheduler::ended`].
    pub fn unsendable(&mut self, now: Timestamp, endpoint: EndpointId, delivery: DeliveryId) {
        let number = self.number(endpoint);
        self.lane_mut(number).unsendable(now, delivery);
        self.slot_is_free(number);
    }

    /// A [`Command::Send`] was refused by our own settings: there is no attempt. Nothing more is sent there until
    /// [`Scheduler::look_again`] or [`Scheduler::unblock`].
    pub fn blocked(&mut self, now: Timestamp, endpoint: EndpointId, delivery: DeliveryId) {
        let number = self.number(endpoint);
        self.lane_mut(number).blocked(now, delivery);
        self.slot_is_free(number);
    }

    /// One delivery is sent to see whether a lane is still blocked.
    pub fn look_again(&mut self, endpoint: EndpointId) {
        self.set_block(endpoint, Block::Looking);
    }

    /// What blocked a lane has changed.
    pub fn unblock(&mut self, endpoint: EndpointId) {
        self.set_block(endpoint, Block::None);
    }

    fn set_block(&mut self, endpoint: EndpointId, block: Block) {
        let Some(number) = self.lane_numbers.get(&endpoint).copied() else { return };
        self.lane_mut(number).block = block;
        self.enqueue(number);
    }

    /// The record of an answer has been committed.
    pub fn recorded(&mut self, endpoint: EndpointId, delivery: DeliveryId) {
        let number = self.number(endpoint);
        self.lane_mut(number).recorded(delivery);
        self.enqueue(number);
    }

    /// A [`Command::End`] has been carried out.
    pub fn ended(&mut self, endpoint: EndpointId, delivery: DeliveryId) {
        self.recorded(endpoint, delivery);
    }

    /// Whether a delivery is on its way, or answered and not yet recorded, here or at the owner before.
    pub fn is_in_flight(&self, endpoint: EndpointId, delivery: DeliveryId) -> bool {
        self.lane_numbers.get(&endpoint).is_some_and(|number| self.lane(*number).has_in_flight(delivery))
    }

    /// What was handed out and is not yet recorded.
    pub fn in_flight_entry(&self, endpoint: EndpointId, delivery: DeliveryId) -> Option<&Entry> {
        let number = self.lane_numbers.get(&endpoint)?;
        self.lane(*number).flights.get(delivery).map(|flight| &*flight.entry)
    }

    /// The deliveries of a lane that are on their way, or answered and not yet recorded.
    pub fn deliveries_in_flight(&self, endpoint: EndpointId) -> Vec<DeliveryId> {
        let Some(number) = self.lane_numbers.get(&endpoint) else { return Vec::new() };
        let lane = self.lane(*number);
        lane.flights.iter().map(|(delivery, _)| delivery).chain(lane.elsewhere.keys().copied()).collect()
    }

    /// The same for people: without what has failed and is about to be recorded as waiting again.
    pub fn delivering(&self, endpoint: EndpointId) -> Vec<DeliveryId> {
        let Some(number) = self.lane_numbers.get(&endpoint) else { return Vec::new() };
        let lane = self.lane(*number);
        let has_failed = |stage| matches!(stage, Stage::Recording { waits_until: Some(_) });
        let here = lane.flights.iter().filter(|(_, flight)| !has_failed(flight.stage)).map(|(delivery, _)| delivery);
        here.chain(lane.elsewhere.keys().copied()).collect()
    }

    /// Gives an endpoint to another owner. Nothing of it is begun here any more; what is in flight is finished and
    /// recorded here. Until then the new owner leaves it alone: see [`Scheduler::in_flight_elsewhere`].
    pub fn leave(&mut self, endpoint: EndpointId) -> Option<HandOver> {
        let number = self.lane_numbers.get(&endpoint).copied()?;
        // What an owner before has in flight is now the new owner's to leave alone.
        for delivery in self.lane(number).elsewhere.keys().copied().collect::<Vec<_>>() {
            self.recorded_elsewhere(endpoint, delivery);
        }
        let lane = self.lane_mut(number);
        let in_flight = lane.leave();
        let (memory, rate_limit) = (lane.memory.handed_over(&lane.config), lane.config.rate_limit);
        self.enqueue(number);
        Some(HandOver { memory, rate_limit, in_flight })
    }

    /// What is known of a tenant's tokens, for handing it over.
    pub fn tenant_bucket(&self, id: &TenantId) -> Option<Bucket> {
        self.tenant_numbers.get(id).map(|number| self.tenants[*number].bucket)
    }

    /// The owner before has this in flight. It counts as in flight here, and nothing is done about it until it is
    /// [recorded](Scheduler::recorded_elsewhere) there, or until then.
    pub fn in_flight_elsewhere(
        &mut self,
        endpoint: EndpointId,
        delivery: DeliveryId,
        ordering_key: Option<OrderingKey>,
        until: Timestamp,
    ) {
        if plant::is(Plant::HandOverForgetsFlights) {
            return;
        }
        let number = self.number(endpoint);
        let lane = self.lane_mut(number);
        if lane.has_in_flight(delivery) {
            return;
        }
        lane.in_flight_elsewhere(delivery, Elsewhere { until, ordering_key });
        let tenant = lane.tenant;
        self.tenants[tenant].in_flight += 1;
        self.in_flight += 1;
        self.wake_for_elsewhere(number);
        self.enqueue(number);
    }

    /// The owner before has recorded it.
    pub fn recorded_elsewhere(&mut self, endpoint: EndpointId, delivery: DeliveryId) {
        let Some(number) = self.lane_numbers.get(&endpoint).copied() else { return };
        if self.lane_mut(number).settled_elsewhere(delivery) {
            self.slot_is_free(number);
        }
    }

    /// Somebody is about to end a delivery that waits, or to make it due: it is not handed out any more. Refused while it
    /// is in flight. Afterwards the row is written, and [`Scheduler::hint`] said if it still waits.
    pub fn withdraw(&mut self, endpoint: EndpointId, delivery: DeliveryId, seq: Seq) -> Result<(), InFlight> {
        let Some(number) = self.lane_numbers.get(&endpoint).copied() else { return Ok(()) };
        if self.lane(number).has_in_flight(delivery) {
            return Err(InFlight);
        }
        if !plant::is(Plant::CancelledIsSent) {
            self.lane_mut(number).window.remove(delivery, seq);
        }
        self.enqueue(number);
        Ok(())
    }

    /// A test-send passes pause, quiet hours and an open circuit, but not the bucket: it takes a token, or hears when.
    pub fn start_test_send(&mut self, now: Timestamp, endpoint: EndpointId) -> Result<(), Timestamp> {
        let number = self.number(endpoint);
        let lane = self.lanes[number].as_mut().expect("a lane");
        let tenant = &mut self.tenants[lane.tenant];
        let lane_ready = lane.config.rate_limit.map_or(now, |limit| lane.memory.bucket.ready_at(now, limit, 1));
        let tenant_ready = tenant.config.rate_limit.map_or(now, |limit| tenant.bucket.ready_at(now, limit, 1));
        let ready = lane_ready.max(tenant_ready);
        if now < ready {
            return Err(ready);
        }
        if let Some(limit) = lane.config.rate_limit.filter(|_| !plant::is(Plant::TestSendWithoutToken)) {
            lane.memory.bucket.take(now, limit).expect("just seen to be there");
        }
        if let Some(limit) = tenant.config.rate_limit {
            tenant.bucket.take(now, limit).expect("just seen to be there");
        }
        lane.in_flight += 1;
        tenant.in_flight += 1;
        self.in_flight += 1;
        Ok(())
    }

    /// It has ended. Breaker, health and timeouts do not hear of it.
    pub fn finish_test_send(&mut self, endpoint: EndpointId) {
        let number = self.number(endpoint);
        self.lane_mut(number).in_flight -= 1;
        self.slot_is_free(number);
    }

    /// What [`crate::admission::explain`] has to know about a lane.
    pub fn facts(&self, now: Timestamp, endpoint: EndpointId) -> Option<LaneFacts<'_>> {
        let lane = self.lane(*self.lane_numbers.get(&endpoint)?);
        let tenant = &self.tenants[lane.tenant];
        let free = self.free();
        Some(LaneFacts {
            status: lane.config.status,
            is_blocked: lane.block != Block::None,
            breaker: lane.memory.breaker,
            schedule: lane.config.schedule.as_ref(),
            rate_limit: lane.config.rate_limit.map(|limit| (limit, lane.memory.bucket)),
            tenant_rate_limit: tenant.config.rate_limit.map(|limit| (limit, tenant.bucket)),
            is_short_of_tokens: lane.is_short_of_tokens || lane.is_queued && tenant.is_short_of_tokens,
            held_until: lane.memory.held_until,
            retries_from: self.limits.retries.map(|limit| self.retry_bucket.ready_at(now, limit, 1)),
            has_slot: free > 0
                && tenant.slots_needed(free).is_none()
                && lane.in_flight < lane.in_flight_max()
                && lane.in_flight < tenant.free(),
        })
    }

    /// When to ask again, if nothing else happens.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.wake_ups.first_at()
    }

    /// How many wake-ups are kept: at most one for each lane and each tenant, and one more for a lane that leaves alone
    /// what its owner before has in flight.
    pub fn wake_up_count(&self) -> usize {
        self.wake_ups.len()
    }

    /// Whether everything that is kept of lanes has a bound that does not depend on how much waits.
    pub fn is_bounded(&self) -> bool {
        let lanes = self.lanes.iter().flatten();
        let in_flight_elsewhere = lanes.clone().filter(|lane| lane.elsewhere_wakes_at.is_some()).count();
        let wake_ups_max = self.lane_numbers.len() + self.tenant_numbers.len() + in_flight_elsewhere;
        self.wake_ups.len() <= wake_ups_max && lanes.into_iter().all(|lane| lane.window.is_bounded())
    }

    pub fn tenant_count(&self) -> usize {
        self.tenant_numbers.len()
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How often lanes and tenants had to wait for a token.
    pub fn token_waits(&self) -> TokenWaits {
        self.token_waits
    }

    pub fn lane_count(&self) -> usize {
        self.lane_numbers.len()
    }

    /// Test-sends may take more than there are.
    fn free(&self) -> u32 {
        self.limits.in_flight_max.saturating_sub(self.in_flight)
    }

    fn slot_is_free(&mut self, number: usize) {
        let tenant_number = self.lane(number).tenant;
        self.in_flight -= 1;
        let free = self.free();
        while let Some((slots, waiter)) = self.slot_waiters.first().copied() {
            if slots > free {
                break;
            }
            self.slot_waiters.pop_first();
            self.enter_ring(waiter);
        }
        let tenant = &mut self.tenants[tenant_number];
        tenant.in_flight -= 1;
        let free = tenant.free();
        let mut lanes = Vec::new();
        while let Some((slots, waiter)) = tenant.slot_waiters.first().copied() {
            if slots > free {
                break;
            }
            tenant.slot_waiters.pop_first();
            lanes.push(waiter);
        }
        for lane in lanes {
            self.enqueue(lane);
        }
        self.enqueue(number);
        // Fewer slots are needed now than when it began to wait.
        self.enter_ring(tenant_number);
    }

    /// Something about this lane has changed: it may have something to send.
    fn enqueue(&mut self, number: usize) {
        let Some(lane) = self.lanes[number].as_mut() else { return };
        if !lane.is_queued {
            lane.is_queued = true;
            let tenant = lane.tenant;
            self.tenants[tenant].ready.push_back(number);
            self.enter_ring(tenant);
        }
    }

    fn enter_ring(&mut self, tenant_number: usize) {
        let tenant = &mut self.tenants[tenant_number];
        if !tenant.is_in_ring && !tenant.ready.is_empty() {
            tenant.is_in_ring = true;
            tenant.deficit = 0;
            self.ring.push_back(tenant_number);
        }
    }

    /// The tenant at the front cannot go now.
    fn leave_ring(&mut self) {
        let tenant_number = self.ring.pop_front().expect("at the front");
        self.tenants[tenant_number].is_in_ring = false;
    }

    fn park(&mut self, now: Timestamp, number: usize, until: Option<Timestamp>) {
        let lane = self.lanes[number].as_mut().expect("a lane");
        if lane.can_be_forgotten(now) {
            self.wake_ups.set(Sleeper::Lane(number), &mut lane.wakes_at, None);
            self.wake_ups.set(Sleeper::Elsewhere(number), &mut lane.elsewhere_wakes_at, None);
            self.tenants[lane.tenant].lanes -= 1;
            self.lane_numbers.remove(&lane.endpoint);
            self.lanes[number] = None;
            self.free_numbers.push(number);
            return;
        }
        let until = until.filter(|_| !plant::is(Plant::WakeForgotten));
        self.wake_ups.set(Sleeper::Lane(number), &mut lane.wakes_at, until);
    }

    fn wake(&mut self, now: Timestamp) {
        while let Some(sleeper) = self.wake_ups.pop_due(now) {
            match sleeper {
                Sleeper::Lane(number) => {
                    // (A planted bug leaves entries of lanes that are gone.)
                    if let Some(lane) = &mut self.lanes[number] {
                        lane.wakes_at = None;
                    }
                    self.enqueue(number);
                }
                Sleeper::Elsewhere(number) => {
                    if let Some(lane) = &mut self.lanes[number] {
                        lane.elsewhere_wakes_at = None;
                        self.give_up_waiting(now, number);
                    }
                }
                Sleeper::Tenant(number) => {
                    self.tenants[number].wakes_at = None;
                    self.enter_ring(number);
                }
            }
        }
    }

    /// Wakes a lane when the first of what it leaves alone is overdue.
    fn wake_for_elsewhere(&mut self, number: usize) {
        let lane = self.lanes[number].as_mut().expect("a number in use");
        let first = lane.elsewhere.values().map(|elsewhere| elsewhere.until).min();
        self.wake_ups.set(Sleeper::Elsewhere(number), &mut lane.elsewhere_wakes_at, first);
    }

    /// What the owner before has not recorded in time is ours.
    fn give_up_waiting(&mut self, now: Timestamp, number: usize) {
        let Some(lane) = &self.lanes[number] else { return };
        let endpoint = lane.endpoint;
        for delivery in lane.overdue_elsewhere(now) {
            self.recorded_elsewhere(endpoint, delivery);
        }
        self.wake_for_elsewhere(number);
    }

    fn number(&self, endpoint: EndpointId) -> usize {
        *self.lane_numbers.get(&endpoint).expect("a lane stays while something of it is in flight")
    }

    fn lane(&self, number: usize) -> &Lane {
        self.lanes[number].as_ref().expect("a number in use")
    }

    fn lane_mut(&mut self, number: usize) -> &mut Lane {
        self.lanes[number].as_mut().expect("a number in use")
    }
}

/// What goes with an endpoint to its new owner.
#[derive(Clone, PartialEq, Debug)]
pub struct HandOver {
    pub memory: LaneMemory,
    /// What its bucket was counted under. The new owner may know of another one already.
    pub rate_limit: Option<RateLimit>,
    /// What the old owner will still record.
    pub in_flight: Vec<DeliveryId>,
}

impl HandOver {
    /// What the new owner begins with.
    pub fn memory_under(&self, now: Timestamp, config: &LaneConfig) -> LaneMemory {
        LaneMemory { bucket: lane::changed_bucket(self.memory.bucket, now, self.rate_limit, config.rate_limit), ..self.memory }
    }
}

/// It is on its way and cannot be called back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the delivery is in flight")]
pub struct InFlight;

impl Tenant {
    fn free(&self) -> u32 {
        if plant::is(Plant::TenantCapIgnored) {
            return u32::MAX;
        }
        self.config.share.max_in_flight().saturating_sub(self.in_flight)
    }

    /// `None` if it may start one more with so many slots free; otherwise how many it takes, or `Some(None)` if it is at
    /// its own cap, where only its own answers help.
    #[expect(clippy::option_option, reason = "may, waits for slots, waits for itself")]
    fn slots_needed(&self, free: u32) -> Option<Option<u32>> {
        if self.free() == 0 {
            return Some(None);
        }
        if plant::is(Plant::SharesIgnored) {
            return None;
        }
        let needed = self.in_flight / self.config.share.weight() + 1;
        (needed > free).then_some(Some(needed))
    }
}
