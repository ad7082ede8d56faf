//! A world from a seed: tenants, endpoints, nodes that die, receivers with moods, and the scheduler in the middle.
//!
//! Time is virtual and nothing runs beside anything else, so that a seed is a whole history. The store is a model: rows
//! become visible when they are committed, reads see a moment and arrive later, records are fenced by the epoch of their
//! owner, and news of a commit may be lost, in which case a sweep brings it two seconds later. After every step the
//! checker (`checker.rs`) compares what happened with the promises.

mod trouble;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use posthaste_core::admission::{self, Facts, HoldReason, LaneFacts, Standing};
use posthaste_core::bucket::{Bucket, RateLimit};
use posthaste_core::delivery::{CancelReason, DeadReason, NoConnection, Outcome, Silence, State};
use posthaste_core::endpoint::Status;
use posthaste_core::event::EventType;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::latency::LatencySketch;
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::{Backlog, Class, Command, Entry, LaneConfig, LaneMemory, Limits, Scheduler, TenantConfig, Want};
use posthaste_core::text::OrderingKey;
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::{Adaptive, Evidence, Mode, Tally, TimeoutRules, Trigger};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::checker::{Checker, Hit, Violation};
use crate::draw::{self, Mood};

/// Small, so that windows, caps and refills are met in every world.
const LIMITS: Limits = Limits { in_flight_max: 24, window: 8, low_water: 4, retries: None };
/// What a day of a small world teaches is enough.
pub(crate) const RULES: TimeoutRules = TimeoutRules {
    default: Duration::from_secs(10),
    min: Duration::from_secs(1),
    max: Duration::from_secs(30),
    multiplier_percent: 150,
    buffer: Duration::from_millis(500),
    samples_min: 20,
};
/// For how long an heir leaves alone what the leaver has in flight: the longest timeout, and some.
const DEADLINE: Duration = Duration::from_secs(65);
/// Of one endpoint, unfinished.
const REPLAYS_AT_ONCE: usize = 5;
/// How long after its heartbeat stops a node's tenants are taken over.
const LEASE: Duration = Duration::from_secs(5);

/// What a world has been through.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seed: u64,
    /// The same for the same seed, always.
    pub hash: u64,
    pub hits: u64,
    pub rows: u64,
    /// Hold reasons, states, edges and faults, with how often each was met.
    pub visited: BTreeMap<String, u64>,
    pub violation: Option<Violation>,
}

/// A delivery as the database has it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) delivery: DeliveryId,
    pub(crate) seq: u64,
    pub(crate) endpoint: usize,
    pub(crate) event_type: EventType,
    pub(crate) timestamp: Timestamp,
    pub(crate) is_priority: bool,
    pub(crate) key: Option<OrderingKey>,
    pub(crate) deliver_at: Option<Timestamp>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) state: State,
    pub(crate) attempts: u32,
    pub(crate) is_later: bool,
    pub(crate) class: Class,
    pub(crate) committed_at: Timestamp,
    /// What is stored of it is not what was published.
    pub(crate) is_damaged: bool,
    /// When it was asked for, if it is a replay.
    pub(crate) replayed_at: Option<Timestamp>,
}

impl Row {
    pub(crate) fn due(&self) -> Option<Timestamp> {
        match self.state {
            State::Waiting { due } => Some(due),
            State::Delivered { .. } | State::Dead { .. } | State::Cancelled { .. } => None,
        }
    }

    fn entry(&self) -> Entry {
        Entry {
            delivery: self.delivery,
            seq: self.seq,
            timestamp: self.timestamp,
            due: self.due().expect("only what waits is given out"),
            attempts: self.attempts,
            is_later: self.is_later,
            event_type: self.event_type.clone(),
            is_priority: self.is_priority,
            class: self.class,
            ordering_key: self.key.clone(),
            expires_at: self.expires_at,
        }
    }
}

pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    pub(crate) tenant: usize,
    pub(crate) config: LaneConfig,
    /// When the present status, subscription, schedule or limit was answered to whoever changed it.
    pub(crate) changed_at: Timestamp,
    pub(crate) before_change: LaneConfig,
    memory: LaneMemory,
    mood: Mood,
    created_at: Timestamp,
    pub(crate) mode: Mode,
    pub(crate) timeout: Adaptive,
    response_times: LatencySketch,
    tally: Tally,
}

pub(crate) struct Tenant {
    id: TenantId,
    pub(crate) config: TenantConfig,
    owner: usize,
}

struct Node {
    /// `None` while it is down.
    scheduler: Option<Scheduler>,
    /// Raised when it dies: whatever was on its way then is nobody's.
    epoch: u64,
    wakes_at: Option<Timestamp>,
    /// Nothing runs there until then.
    frozen_until: Option<Timestamp>,
    /// Others have taken over while it was frozen. It does not know yet.
    has_lost_lease: bool,
}

/// What a replay has still to make, a few at a time.
struct Replay {
    endpoint: usize,
    asked_at: Timestamp,
    rows: VecDeque<usize>,
}

/// What a commit writes.
struct Written {
    endpoint: usize,
    delivery: DeliveryId,
    state: State,
    /// `None` where it ended without one.
    attempt: Option<u32>,
    disables: bool,
}

enum Step {
    Publish,
    /// The owner hears of a commit, or of many by a sweep.
    Feed {
        row: usize,
        /// As it was committed.
        entry: Box<Entry>,
    },
    Sweep {
        endpoint: usize,
    },
    ReadSees {
        node: usize,
        epoch: u64,
        endpoint: usize,
        want: Want,
        limit: usize,
    },
    ReadArrives {
        node: usize,
        epoch: u64,
        endpoint: usize,
        want: Want,
        rows: Vec<Entry>,
        more: bool,
        seen: u64,
    },
    Answer {
        node: usize,
        epoch: u64,
        hit: usize,
        outcome: Outcome,
    },
    Record {
        node: usize,
        epoch: u64,
        written: Written,
    },
    Change,
    Applied {
        endpoint: usize,
    },
    MoodChanges {
        endpoint: usize,
    },
    Cancel,
    TestSend,
    TestSendEnds {
        node: usize,
        epoch: u64,
        endpoint: usize,
    },
    /// The owner hears an answer that came while it was frozen.
    Heard {
        node: usize,
        epoch: u64,
        hit: Box<Hit>,
        outcome: Outcome,
    },
    /// The owner hears that the one before it has recorded something.
    RecordedElsewhere {
        endpoint: usize,
        delivery: DeliveryId,
    },
    Crash,
    TakeOver {
        dead: usize,
    },
    Freeze,
    Thaw {
        node: usize,
    },
    /// A tenant is handed to another node that is well.
    Transfer,
    Replay,
    ReplayGoesOn {
        replay: Replay,
    },
    RecomputeTimeouts,
    Wake {
        node: usize,
    },
    Expire,
    Heal,
}

pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) limits: Limits,
    random: ChaCha8Rng,
    steps: BinaryHeap<Reverse<(Timestamp, u64)>>,
    pending: BTreeMap<u64, Step>,
    step_number: u64,
    pub(crate) rows: Vec<Row>,
    by_delivery: BTreeMap<DeliveryId, usize>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) tenants: Vec<Tenant>,
    nodes: Vec<Node>,
    /// What a leaver may still record, and until when its heir leaves it alone. In the database.
    left_alone: BTreeMap<DeliveryId, Timestamp>,
    pub(crate) in_flight: BTreeMap<usize, Hit>,
    hit_count: usize,
    publishing_until: Timestamp,
    is_healed: bool,
    checker: Checker,
    report: Report,
}

/// Runs the world of a seed to its end, or to the first broken promise; with a known bug built in, if one is named.
pub fn run(seed: u64, plant: Option<Plant>) -> Report {
    plant::activate(plant);
    let mut world = World::new(seed);
    let result = world.run();
    plant::activate(None);
    let mut report = world.report;
    report.rows = world.rows.len() as u64;
    report.violation = result.err();
    report
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Worlds begin at any time of some year, so that clock changes are met.
        let now = Timestamp::from_millis(1_700_000_000_000 + random.random_range(0..40_000_000_000i64));
        let hours = [1, 6, 30, 80][random.random_range(0..4usize)];
        // In some worlds there is an incident, and retries are capped.
        let retries = (random.random_range(0..5u32) == 0).then(|| RateLimit::new(60, 5).expect("valid"));
        let limits = Limits { retries, ..LIMITS };
        let mut world = World {
            now,
            limits,
            steps: BinaryHeap::new(),
            pending: BTreeMap::new(),
            step_number: 0,
            rows: Vec::new(),
            by_delivery: BTreeMap::new(),
            endpoints: Vec::new(),
            tenants: Vec::new(),
            nodes: Vec::new(),
            left_alone: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            hit_count: 0,
            publishing_until: now + Duration::from_hours(hours),
            is_healed: false,
            checker: Checker::default(),
            report: Report { seed, hash: 0xcbf2_9ce4_8422_2325, ..Report::default() },
            random: ChaCha8Rng::seed_from_u64(seed ^ 0x5eed),
        };
        for _ in 0..random.random_range(1..=3usize) {
            let scheduler = Some(Scheduler::new(now, limits));
            world.nodes.push(Node { scheduler, epoch: 0, wakes_at: None, frozen_until: None, has_lost_lease: false });
        }
        for number in 0..random.random_range(1..=4usize) {
            let id = TenantId::parse(&format!("tenant-{number}")).expect("a valid id");
            let config = draw::tenant_config(&mut world.random);
            let owner = number % world.nodes.len();
            let scheduler = world.nodes[owner].scheduler.as_mut().expect("alive");
            scheduler.configure_tenant(now, &id, config, Bucket::full());
            world.tenants.push(Tenant { id, config, owner });
            for _ in 0..random.random_range(1..=3usize) {
                let config = draw::lane_config(&mut world.random);
                let mood = draw::mood(&mut world.random);
                let mode = draw::timeout_mode(&mut world.random);
                let id = EndpointId::from_bytes((world.endpoints.len() as u128 + 1).to_be_bytes());
                let scheduler = world.nodes[owner].scheduler.as_mut().expect("alive");
                scheduler.configure(now, &world.tenants[number].id, id, config.clone(), LaneMemory::new(), Backlog::None);
                world.endpoints.push(Endpoint {
                    id,
                    tenant: number,
                    before_change: config.clone(),
                    config,
                    changed_at: now,
                    memory: LaneMemory::new(),
                    mood,
                    created_at: now,
                    mode,
                    timeout: Adaptive::default(),
                    response_times: LatencySketch::default(),
                    tally: Tally::default(),
                });
            }
        }
        world.plan();
        world
    }

    /// Everything that will happen from outside.
    fn plan(&mut self) {
        let span = self.publishing_until.since(self.now);
        let events = self.random.random_range(20..250u32);
        let mut busy = Vec::new();
        for _ in 0..events {
            let at = self.moment_within(span);
            busy.push(at);
            // Events come in bursts, too.
            for _ in 0..if self.random.random_range(0..20u32) == 0 { 25 } else { 1 } {
                self.later(at, Step::Publish);
            }
        }
        for endpoint in 0..self.endpoints.len() {
            for _ in 0..self.random.random_range(0..5u32) {
                let at = self.moment_within(span);
                self.later(at, Step::MoodChanges { endpoint });
            }
        }
        for _ in 0..self.random.random_range(0..8u32) {
            let at = self.moment_within(span);
            self.later(at, Step::Change);
        }
        for _ in 0..self.random.random_range(0..6u32) {
            let at = self.moment_within(span);
            self.later(at, Step::Cancel);
        }
        for _ in 0..self.random.random_range(0..10u32) {
            let at = self.moment_within(span);
            self.later(at, Step::TestSend);
        }
        for _ in 0..self.random.random_range(0..4u32) {
            let at = self.moment_for_trouble(span, &busy);
            self.later(at, Step::Crash);
        }
        for _ in 0..self.random.random_range(0..3u32) {
            let at = self.moment_for_trouble(span, &busy);
            self.later(at, Step::Freeze);
        }
        for _ in 0..self.random.random_range(0..6u32) {
            let at = self.moment_for_trouble(span, &busy);
            self.later(at, Step::Transfer);
        }
        for _ in 0..self.random.random_range(0..3u32) {
            let at = self.moment_within(span);
            self.later(at, Step::Replay);
        }
        for day in 1..=span.as_secs() / 86_400 {
            self.later(Duration::from_hours(24 * day), Step::RecomputeTimeouts);
        }
        self.later(Duration::from_mins(1), Step::Expire);
        self.later(span, Step::Heal);
    }

    fn moment_within(&mut self, span: Duration) -> Duration {
        let millis = u64::try_from(span.as_millis()).expect("some days");
        Duration::from_millis(self.random.random_range(0..millis))
    }

    /// Half of it comes when something is on its way.
    fn moment_for_trouble(&mut self, span: Duration, busy: &[Duration]) -> Duration {
        if self.random.random_range(0..2u32) == 0 {
            return self.moment_within(span);
        }
        busy[self.random.random_range(0..busy.len())] + self.soon(300)
    }

    fn later(&mut self, after: Duration, step: Step) {
        self.step_number += 1;
        self.steps.push(Reverse((self.now + after, self.step_number)));
        self.pending.insert(self.step_number, step);
    }

    fn soon(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.random.random_range(0..=most))
    }

    fn run(&mut self) -> Result<(), Violation> {
        self.pump()?;
        while let Some(Reverse((at, number))) = self.steps.pop() {
            self.now = at;
            let step = self.pending.remove(&number).expect("each step once");
            self.take(step)?;
            self.pump()?;
            if !self.is_healed || self.random.random_range(0..8u32) == 0 {
                self.look_at_one()?;
            }
        }
        Checker::at_the_end(&self.rows, &self.endpoints)
    }

    fn take(&mut self, step: Step) -> Result<(), Violation> {
        let Some(step) = self.unless_frozen(step) else { return Ok(()) };
        match step {
            Step::Publish => self.publish(),
            Step::Feed { row, entry } => {
                let endpoint = self.rows[row].endpoint;
                self.with_owner(endpoint, |scheduler, id| scheduler.offer(id, *entry));
            }
            Step::Sweep { endpoint } => self.with_owner(endpoint, Scheduler::hint),
            Step::ReadSees { node, epoch, endpoint, want, limit } => {
                let (rows, more) = self.read(endpoint, &want, limit);
                let seen = self.rows.last().map_or(0, |row| row.seq);
                let delay = self.soon(5);
                self.later(delay, Step::ReadArrives { node, epoch, endpoint, want, rows, more, seen });
            }
            Step::ReadArrives { node, epoch, endpoint, want, rows, more, seen } => {
                if self.nodes[node].epoch == epoch {
                    let id = self.endpoints[endpoint].id;
                    let scheduler = self.nodes[node].scheduler.as_mut().expect("alive in this epoch");
                    scheduler.refilled(id, &want, rows, more, seen);
                }
            }
            Step::Answer { node, epoch, hit, outcome } => self.answered(node, epoch, hit, &outcome)?,
            Step::Heard { node, epoch, hit, outcome } => self.heard(node, epoch, &hit, &outcome)?,
            Step::RecordedElsewhere { endpoint, delivery } => {
                self.with_owner(endpoint, |scheduler, id| scheduler.recorded_elsewhere(id, delivery));
            }
            Step::Record { node, epoch, written } => self.record(node, epoch, &written)?,
            Step::Change => self.change(),
            Step::Applied { endpoint } => self.apply(endpoint),
            Step::MoodChanges { endpoint } => {
                if !self.is_healed {
                    self.endpoints[endpoint].mood = draw::mood(&mut self.random);
                }
            }
            Step::Cancel => self.cancel(),
            Step::TestSend => self.test_send()?,
            Step::TestSendEnds { node, epoch, endpoint } => {
                if self.nodes[node].epoch == epoch {
                    let id = self.endpoints[endpoint].id;
                    self.nodes[node].scheduler.as_mut().expect("alive in this epoch").finish_test_send(id);
                }
            }
            Step::Crash => self.crash(),
            Step::TakeOver { dead } => self.take_over(dead),
            Step::Freeze => self.freeze(),
            Step::Thaw { node } => self.thaw(node),
            Step::Transfer => self.transfer(),
            Step::Replay => self.replay(),
            Step::ReplayGoesOn { replay } => self.go_on_with(replay),
            Step::RecomputeTimeouts => self.recompute_timeouts()?,
            Step::Wake { node } => self.nodes[node].wakes_at = None,
            Step::Expire => self.expire(),
            Step::Heal => self.heal(),
        }
        Ok(())
    }

    fn publish(&mut self) {
        const TYPES: [&str; 4] = ["order.paid", "order.sent", "alert.fire", "user.made"];
        let tenant = self.random.random_range(0..self.tenants.len());
        let event_type = EventType::parse(TYPES[self.random.random_range(0..TYPES.len())]).expect("valid");
        let is_priority = event_type.as_str().starts_with("alert");
        let key = (self.random.random_range(0..4u32) == 0)
            .then(|| OrderingKey::parse(["k1", "k2", "k3"][self.random.random_range(0..3usize)]).expect("valid"));
        let ahead = |random: &mut ChaCha8Rng| Duration::from_secs(random.random_range(1..20_000u64));
        let deliver_at = (self.random.random_range(0..10u32) == 0).then(|| self.now + ahead(&mut self.random));
        let expires_at =
            (self.random.random_range(0..10u32) == 0).then(|| deliver_at.unwrap_or(self.now) + ahead(&mut self.random));
        // The publisher's clock is its own.
        let timestamp = self.now - self.soon(2000);
        for endpoint in 0..self.endpoints.len() {
            let config = &self.endpoints[endpoint].config;
            if self.endpoints[endpoint].tenant != tenant
                || !config.status.takes_events()
                || !config.subscription.covers(&event_type)
            {
                continue;
            }
            if !self.rows.iter().any(|row| row.endpoint == endpoint && row.due().is_some()) {
                self.checker.drained(endpoint);
            }
            self.visit("edge", "published");
            let number = self.rows.len();
            let is_damaged = self.random.random_range(0..200u32) == 0;
            self.commit(Row {
                delivery: DeliveryId::from_bytes((number as u128 + 1).to_be_bytes()),
                seq: number as u64 + 1,
                endpoint,
                event_type: event_type.clone(),
                timestamp,
                is_priority,
                key: key.clone(),
                deliver_at,
                expires_at,
                state: State::Waiting { due: deliver_at.unwrap_or(self.now) },
                attempts: 0,
                is_later: deliver_at.is_some(),
                class: Class::of(&event_type, is_priority, self.endpoints[endpoint].config.schedule.as_ref()),
                committed_at: self.now,
                is_damaged,
                replayed_at: None,
            });
        }
    }

    /// A new row is in the database; its owner hears of it.
    fn commit(&mut self, row: Row) {
        let (number, endpoint) = (self.rows.len(), row.endpoint);
        self.by_delivery.insert(row.delivery, number);
        self.rows.push(row);
        if self.random.random_range(0..10u32) == 0 {
            self.visit("fault", "news lost");
            self.later(Duration::from_secs(2), Step::Sweep { endpoint });
        } else {
            // Mostly at once; now and then a busy node takes its time.
            let most = if self.random.random_range(0..20u32) == 0 { 2000 } else { 3 };
            let delay = self.soon(most);
            let entry = Box::new(self.rows[number].entry());
            self.later(delay, Step::Feed { row: number, entry });
        }
    }

    /// What the store answers to a read at this moment: the first rows of a queue, in its order.
    fn read(&self, endpoint: usize, want: &Want, limit: usize) -> (Vec<Entry>, bool) {
        let waiting = self.rows.iter().filter(|row| row.endpoint == endpoint && row.due().is_some());
        let mut rows: Vec<&Row> = match want {
            Want::Fresh(class) => waiting.filter(|row| row.key.is_none() && !row.is_later && row.class == *class).collect(),
            Want::Later(class) => waiting.filter(|row| row.key.is_none() && row.is_later && row.class == *class).collect(),
            Want::Heads { .. } | Want::Head(_) => {
                let mut heads: BTreeMap<&OrderingKey, &Row> = BTreeMap::new();
                for row in waiting.filter(|row| row.key.is_some()) {
                    heads.entry(row.key.as_ref().expect("filtered")).or_insert(row);
                }
                let wanted = heads.into_iter().filter(|(key, _)| match want {
                    Want::Heads { after } => after.as_ref().is_none_or(|after| *key > after),
                    Want::Head(head) => *key == head,
                    Want::Fresh(_) | Want::Later(_) => unreachable!("not keyed"),
                });
                wanted.map(|(_, row)| row).collect()
            }
        };
        match want {
            Want::Fresh(_) => rows.sort_by_key(|row| (row.timestamp, row.seq)),
            Want::Later(_) => rows.sort_by_key(|row| (row.due(), row.seq)),
            Want::Heads { .. } | Want::Head(_) => {}
        }
        let more = rows.len() > limit;
        rows.truncate(limit);
        (rows.into_iter().map(Row::entry).collect(), more)
    }

    /// Lets every node do what it wants to do now.
    fn pump(&mut self) -> Result<(), Violation> {
        for node in 0..self.nodes.len() {
            if self.nodes[node].frozen_until.is_some() {
                continue;
            }
            let epoch = self.nodes[node].epoch;
            for turn in 0.. {
                assert!(turn < 100_000, "seed {}: a node finds no rest", self.report.seed);
                let Some(scheduler) = self.nodes[node].scheduler.as_mut() else { break };
                let Some(command) = scheduler.next(self.now) else { break };
                match command {
                    Command::Read { endpoint, want, limit } => {
                        let endpoint = endpoint_number(endpoint);
                        let delay = self.soon(5);
                        self.later(delay, Step::ReadSees { node, epoch, endpoint, want, limit });
                    }
                    Command::End { endpoint, delivery, state } => {
                        let endpoint = endpoint_number(endpoint);
                        let delay = self.soon(10);
                        let written = Written { endpoint, delivery, state, attempt: None, disables: false };
                        self.later(delay, Step::Record { node, epoch, written });
                    }
                    Command::Send { endpoint, delivery, attempt, is_probe } => {
                        self.send(node, endpoint, delivery, attempt, is_probe)?;
                    }
                }
            }
            let Some(scheduler) = &self.nodes[node].scheduler else { continue };
            if let Some(at) =
                scheduler.wake_at().filter(|at| self.nodes[node].wakes_at.is_none_or(|known| *at < known || known <= self.now))
            {
                self.nodes[node].wakes_at = Some(at);
                let after = at.since(self.now);
                self.later(after, Step::Wake { node });
            }
        }
        Ok(())
    }

    fn send(
        &mut self,
        node: usize,
        endpoint: EndpointId,
        delivery: DeliveryId,
        attempt: u32,
        is_probe: bool,
    ) -> Result<(), Violation> {
        let endpoint_id = endpoint;
        let endpoint = endpoint_number(endpoint);
        let row = self.by_delivery[&delivery];
        if self.rows[row].is_damaged {
            let scheduler = self.nodes[node].scheduler.as_mut().expect("it has just spoken");
            scheduler.unsendable(self.now, endpoint_id, delivery);
            self.checker.unsendable(endpoint, is_probe, self.now, &self.endpoints[endpoint].config.circuit);
            let state = State::Dead { at: self.now, reason: DeadReason::Corrupt };
            let (epoch, delay) = (self.nodes[node].epoch, self.soon(10));
            let written = Written { endpoint, delivery, state, attempt: None, disables: false };
            self.later(delay, Step::Record { node, epoch, written });
            return Ok(());
        }
        let number = self.hit_count;
        self.hit_count += 1;
        self.report.hits += 1;
        let present = &self.endpoints[endpoint];
        let timeout = if is_probe {
            present.timeout.in_force_for_probe(present.mode, &RULES)
        } else {
            present.timeout.in_force(present.mode, &RULES).0
        };
        let hit = Hit { row, endpoint, attempt, is_probe, node, epoch: self.nodes[node].epoch, started: self.now, timeout };
        self.trace(1, number as u64 ^ (row as u64) << 20);
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.hit_starts(self, &hit);
        self.checker = checker;
        verdict?;
        let (takes, outcome) = self.receive(endpoint, timeout);
        self.in_flight.insert(number, hit);
        let epoch = self.nodes[node].epoch;
        self.later(takes, Step::Answer { node, epoch, hit: number, outcome });
        Ok(())
    }

    fn receive(&mut self, endpoint: usize, timeout: Duration) -> (Duration, Outcome) {
        let quick = self.soon(300);
        let answered = |status| Outcome::Answered { status, retry_after: None };
        match self.endpoints[endpoint].mood {
            Mood::Healthy => (quick, answered(200)),
            Mood::Failing(status) => (quick, answered(status)),
            Mood::Hanging => (timeout, Outcome::Silent(Silence::Timeout)),
            Mood::Slow(millis) if Duration::from_millis(millis) >= timeout => (timeout, Outcome::Silent(Silence::Timeout)),
            Mood::Slow(millis) => (Duration::from_millis(millis), answered(200)),
            Mood::Refusing => (Duration::from_millis(2), Outcome::NotSent(NoConnection::Connect)),
            Mood::Flaky => (quick, answered(if self.random.random_range(0..3u32) == 0 { 500 } else { 204 })),
            Mood::Limiting(seconds) => (quick, Outcome::Answered { status: 429, retry_after: Some(Duration::from_secs(seconds)) }),
        }
    }

    fn answered(&mut self, node: usize, epoch: u64, number: usize, outcome: &Outcome) -> Result<(), Violation> {
        let hit = self.in_flight.remove(&number).expect("in flight until answered");
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.hit_ends(self, &hit, outcome);
        self.checker = checker;
        verdict?;
        let present = &mut self.endpoints[hit.endpoint];
        present.tally.attempts += 1;
        match outcome {
            Outcome::Answered { status: 200..=299, .. } => present.response_times.record(self.now.since(hit.started)),
            Outcome::Silent(_) => present.tally.timeouts += 1,
            Outcome::Answered { .. } | Outcome::NotSent(_) | Outcome::Blocked => {}
        }
        match self.nodes[node].frozen_until {
            Some(thaw) => {
                self.visit("fault", "answer to a frozen node");
                let after = thaw.since(self.now);
                self.later(after, Step::Heard { node, epoch, hit: Box::new(hit), outcome: *outcome });
                Ok(())
            }
            None => self.heard(node, epoch, &hit, outcome),
        }
    }

    fn heard(&mut self, node: usize, epoch: u64, hit: &Hit, outcome: &Outcome) -> Result<(), Violation> {
        if self.nodes[node].epoch != epoch {
            self.visit("fault", "answer to a dead node");
            return Ok(());
        }
        let endpoint = hit.endpoint;
        let id = self.endpoints[endpoint].id;
        let delivery = self.rows[hit.row].delivery;
        let scheduler = self.nodes[node].scheduler.as_mut().expect("alive in this epoch");
        let decision = scheduler.finished(self.now, id, delivery, outcome);
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.decided(self, hit, outcome, &decision);
        self.checker = checker;
        verdict?;
        let delay = self.soon(10);
        let state = decision.verdict.state(self.now);
        let written = Written { endpoint, delivery, state, attempt: Some(hit.attempt), disables: decision.disables_endpoint };
        self.later(delay, Step::Record { node, epoch, written });
        Ok(())
    }

    fn record(&mut self, node: usize, epoch: u64, written: &Written) -> Result<(), Violation> {
        let Written { endpoint, delivery, state, attempt, disables } = *written;
        let is_owner = self.tenants[self.endpoints[endpoint].tenant].owner == node && !self.nodes[node].has_lost_lease;
        // A leaver may record exactly what it said it would.
        let was_promised = self.left_alone.get(&delivery).is_some_and(|until| self.now < *until);
        let may_record = is_owner || was_promised && !self.nodes[node].has_lost_lease;
        if self.nodes[node].epoch != epoch {
            self.visit("fault", "record of a dead node");
            return Ok(());
        }
        if !may_record && !plant::is(Plant::OldEpochIsRecorded) {
            self.visit("fault", "record under an old epoch");
            return Ok(());
        }
        if !may_record {
            let what = format!("{delivery} at {}: written under an old epoch", self.now.to_rfc3339());
            return Err(Violation { promise: "I31", what });
        }
        let id = self.endpoints[endpoint].id;
        let number = self.by_delivery[&delivery];
        let row = &mut self.rows[number];
        // An end without an attempt has no number.
        if row.due().is_some() && attempt.is_none_or(|attempt| row.attempts + 1 == attempt) {
            row.state = state;
            row.attempts = row.attempts.max(attempt.unwrap_or(0));
            row.is_later |= matches!(state, State::Waiting { .. });
            self.visit("edge", &format!("waiting to {}", state_name(state)));
            self.trace(2, number as u64);
        }
        if disables && self.endpoints[endpoint].config.status != Status::Disabled {
            self.visit("edge", "endpoint disabled");
            self.endpoints[endpoint].before_change = self.endpoints[endpoint].config.clone();
            self.endpoints[endpoint].config.status = Status::Disabled;
            self.endpoints[endpoint].changed_at = self.now;
            if !is_owner {
                let delay = self.soon(900);
                self.later(delay, Step::Applied { endpoint });
            }
        }
        let scheduler = self.nodes[node].scheduler.as_mut().expect("alive in this epoch");
        match attempt {
            None => scheduler.ended(id, delivery),
            Some(_) => scheduler.recorded(id, delivery),
        }
        // Written in the same commit.
        if let Some(memory) = scheduler.memory(id).filter(|_| is_owner) {
            self.endpoints[endpoint].memory = memory;
        }
        if self.left_alone.remove(&delivery).is_some() {
            self.visit("edge", "recorded by the owner before");
            let delay = self.soon(10);
            self.later(delay, Step::RecordedElsewhere { endpoint, delivery });
        }
        Ok(())
    }

    /// Somebody changes an endpoint. The owner hears of it within a second.
    fn change(&mut self) {
        if self.is_healed {
            return;
        }
        let endpoint = self.random.random_range(0..self.endpoints.len());
        let drawn = draw::lane_config(&mut self.random);
        let kind = self.random.random_range(0..7u32);
        let until = self.now + Duration::from_secs(self.random.random_range(1..10_000u64));
        let present = &mut self.endpoints[endpoint];
        present.before_change = present.config.clone();
        present.changed_at = self.now;
        let config = &mut present.config;
        let name = match kind {
            0 => {
                config.status = Status::Paused { until: Some(until) };
                "pause"
            }
            1 => {
                config.status = if config.status == Status::Active { Status::Disabled } else { Status::Active };
                "enable or disable"
            }
            2 => {
                config.rate_limit = drawn.rate_limit;
                "rate limit"
            }
            3 => {
                config.schedule = drawn.schedule;
                "schedule"
            }
            4 => {
                config.subscription = drawn.subscription;
                "subscription"
            }
            5 => {
                present.mode = draw::timeout_mode(&mut self.random);
                "timeout"
            }
            _ => {
                config.max_in_flight = drawn.max_in_flight;
                "cap"
            }
        };
        self.visit("change", name);
        // Waiting rows are stamped anew in the background.
        let schedule = self.endpoints[endpoint].config.schedule.clone();
        for row in self.rows.iter_mut().filter(|row| row.endpoint == endpoint) {
            row.class = Class::of(&row.event_type, row.is_priority, schedule.as_ref());
        }
        let delay = self.soon(900);
        self.later(delay, Step::Applied { endpoint });
    }

    fn apply(&mut self, endpoint: usize) {
        let config = self.endpoints[endpoint].config.clone();
        let memory = self.endpoints[endpoint].memory;
        let tenant = self.tenants[self.endpoints[endpoint].tenant].id.clone();
        let now = self.now;
        self.checker.limit_changed(endpoint, config.rate_limit);
        let node = self.tenants[self.endpoints[endpoint].tenant].owner;
        if let Some(thaw) = self.nodes[node].frozen_until {
            let after = thaw.since(now);
            self.later(after, Step::Applied { endpoint });
            return;
        }
        if let Some(scheduler) = self.nodes[node].scheduler.as_mut() {
            if !scheduler.has_lane(self.endpoints[endpoint].id) {
                self.checker.drained(endpoint);
            }
            scheduler.configure(now, &tenant, self.endpoints[endpoint].id, config, memory, Backlog::Unknown);
            scheduler.reread(self.endpoints[endpoint].id);
        }
    }

    /// Somebody tries an endpoint out. It passes every hold but the bucket.
    fn test_send(&mut self) -> Result<(), Violation> {
        let endpoint = self.random.random_range(0..self.endpoints.len());
        let (node, now) = (self.tenants[self.endpoints[endpoint].tenant].owner, self.now);
        let mut started = Err(now);
        self.with_owner(endpoint, |scheduler, id| started = scheduler.start_test_send(now, id));
        if started.is_err() {
            self.visit("edge", "test-send refused");
            return Ok(());
        }
        self.visit("edge", "test-send");
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.test_send(self, endpoint);
        self.checker = checker;
        let (epoch, delay) = (self.nodes[node].epoch, self.soon(300));
        self.later(delay, Step::TestSendEnds { node, epoch, endpoint });
        verdict
    }

    fn cancel(&mut self) {
        let waiting: Vec<usize> = (0..self.rows.len()).filter(|row| self.rows[*row].due().is_some()).collect();
        if waiting.is_empty() {
            return;
        }
        let number = waiting[self.random.random_range(0..waiting.len())];
        let (endpoint, delivery) = (self.rows[number].endpoint, self.rows[number].delivery);
        let node = self.tenants[self.endpoints[endpoint].tenant].owner;
        let Some(scheduler) = self.nodes[node].scheduler.as_mut() else { return };
        match scheduler.withdraw(self.endpoints[endpoint].id, delivery, self.rows[number].seq) {
            Ok(()) => {
                self.rows[number].state = State::Cancelled { at: self.now, reason: CancelReason::Requested };
                self.visit("edge", "waiting to cancelled by request");
            }
            Err(_) => self.visit("edge", "cancel refused in flight"),
        }
    }

    /// Somebody asks for what has ended at an endpoint to be sent again.
    fn replay(&mut self) {
        let endpoint = self.random.random_range(0..self.endpoints.len());
        let rows: VecDeque<usize> = (0..self.rows.len())
            .filter(|row| self.rows[*row].endpoint == endpoint && self.rows[*row].due().is_none())
            .take(40)
            .collect();
        if !rows.is_empty() {
            self.visit("edge", "replay");
            self.later(Duration::ZERO, Step::ReplayGoesOn { replay: Replay { endpoint, asked_at: self.now, rows } });
        }
    }

    /// One step of it: only so many of an endpoint may be unfinished at once.
    fn go_on_with(&mut self, mut replay: Replay) {
        let endpoint = replay.endpoint;
        let is_unfinished = |row: &&Row| row.endpoint == endpoint && row.replayed_at.is_some() && row.due().is_some();
        let unfinished = self.rows.iter().filter(is_unfinished).count();
        for _ in unfinished..REPLAYS_AT_ONCE {
            let Some(original) = replay.rows.pop_front() else { break };
            let original = self.rows[original].clone();
            let number = self.rows.len();
            let timestamp = if plant::is(Plant::ReplayOvertakes) { original.timestamp } else { replay.asked_at };
            let config = &self.endpoints[endpoint].config;
            if !config.status.takes_events() || !config.subscription.covers(&original.event_type) {
                continue;
            }
            self.commit(Row {
                delivery: DeliveryId::from_bytes((number as u128 + 1).to_be_bytes()),
                seq: number as u64 + 1,
                timestamp,
                deliver_at: None,
                expires_at: None,
                state: State::Waiting { due: self.now },
                attempts: 0,
                is_later: false,
                class: Class::of(&original.event_type, original.is_priority, config.schedule.as_ref()),
                committed_at: self.now,
                replayed_at: Some(replay.asked_at),
                ..original
            });
        }
        if !replay.rows.is_empty() && !self.is_healed {
            self.later(Duration::from_secs(5), Step::ReplayGoesOn { replay });
        }
    }

    /// Once a day, from what was seen.
    fn recompute_timeouts(&mut self) -> Result<(), Violation> {
        for number in 0..self.endpoints.len() {
            let now = self.now;
            let endpoint = &mut self.endpoints[number];
            let before = endpoint.timeout.in_force(endpoint.mode, &RULES).0;
            let evidence = Evidence {
                endpoint_created_at: endpoint.created_at,
                successes: &endpoint.response_times,
                timeouts: &LatencySketch::default(),
                last_day: endpoint.tally,
            };
            if matches!(endpoint.mode, Mode::Adaptive) || plant::is(Plant::PinIsLearned) {
                endpoint.timeout.recompute(now, Trigger::Daily, &evidence, &RULES);
            }
            endpoint.tally = Tally::default();
            let (mode, after) = (endpoint.mode, endpoint.timeout.in_force(endpoint.mode, &RULES).0);
            let name = match after.cmp(&before) {
                Ordering::Less => "shorter",
                Ordering::Equal => "unchanged",
                Ordering::Greater => "longer",
            };
            self.visit("timeout", name);
            self.checker.timeout_computed(number, now, mode, before, after)?;
        }
        Ok(())
    }

    /// Housekeeping: what has expired while it was held ends.
    fn expire(&mut self) {
        for number in 0..self.rows.len() {
            let row = &self.rows[number];
            if row.due().is_some() && row.expires_at.is_some_and(|at| at <= self.now) {
                let (endpoint, delivery) = (row.endpoint, row.delivery);
                let node = self.tenants[self.endpoints[endpoint].tenant].owner;
                let Some(scheduler) = self.nodes[node].scheduler.as_mut() else { continue };
                if scheduler.withdraw(self.endpoints[endpoint].id, delivery, self.rows[number].seq).is_ok() {
                    self.rows[number].state = State::Dead { at: self.now, reason: DeadReason::Expired };
                    self.visit("edge", "waiting to dead by housekeeping");
                }
            }
        }
        // What waits at an endpoint that was given up waits for ever.
        let has_time = self.now < self.publishing_until + Duration::from_hours(60 * 24);
        if !self.is_healed || has_time && self.rows.iter().any(|row| row.due().is_some()) {
            self.later(Duration::from_mins(1), Step::Expire);
        }
    }

    /// Everybody is well again, and no hold is in force: from here everything has to end.
    fn heal(&mut self) {
        self.is_healed = true;
        for endpoint in 0..self.endpoints.len() {
            let present = &mut self.endpoints[endpoint];
            present.mood = Mood::Healthy;
            present.before_change = present.config.clone();
            present.changed_at = self.now;
            present.config.status = Status::Active;
            present.config.schedule = None;
            self.apply(endpoint);
        }
    }

    /// Asks after one delivery, as a person would, and counts the answer.
    fn look_at_one(&mut self) -> Result<(), Violation> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let number = self.random.random_range(0..self.rows.len());
        let row = &self.rows[number];
        let endpoint = &self.endpoints[row.endpoint];
        let node = &self.nodes[self.tenants[endpoint.tenant].owner];
        if node.frozen_until.is_some() {
            return Ok(());
        }
        let Some(scheduler) = &node.scheduler else { return Ok(()) };
        let facts = Facts {
            state: row.state,
            attempts: row.attempts,
            is_in_flight: scheduler.is_in_flight(endpoint.id, row.delivery),
            event_type: &row.event_type,
            is_priority: row.is_priority,
            is_head_of_key: row.key.is_none()
                || !self.rows[..number]
                    .iter()
                    .any(|other| other.endpoint == row.endpoint && other.key == row.key && other.due().is_some()),
            lane: scheduler.facts(self.now, endpoint.id).unwrap_or(LaneFacts::of(endpoint.config.status)),
        };
        let standing = admission::explain(self.now, &facts);
        let name = match standing {
            Standing::Pending => "pending".to_owned(),
            Standing::Delivering => "delivering".to_owned(),
            Standing::Held { reason, .. } => format!("held: {}", reason.name()),
            Standing::Delivered { .. } => "delivered".to_owned(),
            Standing::Dead { reason, .. } => format!("dead: {}", reason.name()),
            Standing::Cancelled { reason, .. } => format!("cancelled: {}", reason.name()),
        };
        // What an owner before has in flight takes slots until its deadline, and a moment ago still did.
        let was_awaited = self.left_alone.iter().any(|(delivery, until)| {
            let other = &self.rows[self.by_delivery[delivery]];
            self.endpoints[other.endpoint].tenant == endpoint.tenant && self.now < *until + Duration::from_secs(10)
        });
        let concurrency = was_awaited || matches!(standing, Standing::Held { reason: HoldReason::Concurrency, .. });
        self.visit("standing", &name);
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.seen(self, number, standing, concurrency);
        self.checker = checker;
        verdict
    }

    pub(crate) fn owner_of(&self, endpoint: usize) -> usize {
        self.tenants[self.endpoints[endpoint].tenant].owner
    }

    fn with_owner(&mut self, endpoint: usize, act: impl FnOnce(&mut Scheduler, EndpointId)) {
        let node = self.tenants[self.endpoints[endpoint].tenant].owner;
        let id = self.endpoints[endpoint].id;
        let tenant = self.tenants[self.endpoints[endpoint].tenant].id.clone();
        let now = self.now;
        if let Some(scheduler) = self.nodes[node].scheduler.as_mut() {
            // A lane that was forgotten is made anew from what the store knows.
            if !scheduler.has_lane(id) {
                self.report.visited.entry("lane: made anew".to_owned()).and_modify(|count| *count += 1).or_insert(1);
                // It knew of nothing to send when it was forgotten.
                self.checker.drained(endpoint);
                let Endpoint { config, .. } = &self.endpoints[endpoint];
                scheduler.configure(now, &tenant, id, config.clone(), LaneMemory::new(), Backlog::Unknown);
            }
            act(scheduler, id);
        }
    }

    fn visit(&mut self, kind: &str, name: &str) {
        *self.report.visited.entry(format!("{kind}: {name}")).or_default() += 1;
    }

    fn trace(&mut self, kind: u64, what: u64) {
        for word in [kind, what, self.now.as_millis().unsigned_abs()] {
            for byte in word.to_le_bytes() {
                self.report.hash = (self.report.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
}

fn endpoint_number(id: EndpointId) -> usize {
    usize::try_from(id.as_u128() - 1).expect("a small number")
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Waiting { .. } => "waiting again",
        State::Delivered { .. } => "delivered",
        State::Dead { reason, .. } => reason.name(),
        State::Cancelled { reason, .. } => reason.name(),
    }
}
