//! A world from a seed: tenants, endpoints, nodes that die, receivers with moods, and the engine's owners in the middle.
//!
//! What runs in production is what runs here: each node is a [`posthaste_engine::Owner`], told of everything by
//! [`Input`]s, and every [`Effect`] that it wants done is done by this world. Time is virtual and nothing runs beside anything
//! else, so that a seed is a whole history. The store is a model (`store.rs`): a question sees one moment and its answer
//! arrives at a later one, a record is committed at one moment and heard of at another, and a node can die between any two of
//! them. News of a commit may be lost, in which case a sweep brings it two seconds later. After every step the checker
//! (`checker.rs`) compares what happened with the promises.

mod clients;
mod clock;
mod effects;
mod faults;
mod members;
mod receivers;
mod store;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::admission::{self, DeliveryStatus, Facts, HoldReason, LaneFacts};
use posthaste_core::bucket::RateLimit;
use posthaste_core::delivery::{Outcome, State};
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::plant::{self, Plant};
use posthaste_core::retention::Keeping;
use posthaste_core::scheduler::{Entry, LaneConfig, Limits, TenantConfig};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::{Mode, TimeoutRules};
use posthaste_engine::{
    CallFailure, Effect, HandedOver, Input, MembershipCall, MembershipMachine, MembershipReply, Options, Owner, OwnerGeneration,
    SendRef, StoreCall, StoreReply, Sweeper,
};
use posthaste_store::{Clock, Partition, partition_of};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::checker::{Checker, Hit, Violation};
use crate::draw::{self, Mood};

use clients::{PendingCommand, Publishing, Replay};
use clock::{Machine, SKEW_MAX_MS};
use effects::{Running, turns};
use store::{Holding, Kind, Store};
pub(crate) use store::{Member, Row};

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

/// What people have said about an endpoint, and how it behaves.
pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    pub(crate) tenant: usize,
    pub(crate) config: LaneConfig,
    pub(crate) mode: Mode,
    pub(crate) url: String,
    pub(crate) deleted_at: Option<Timestamp>,
    /// What is stored of it is damaged.
    pub(crate) is_unreadable: bool,
    /// When what is said now was answered to whoever said it.
    pub(crate) changed_at: Timestamp,
    /// Its owner has said that it goes by what is said now.
    pub(crate) is_applied: bool,
    /// What was said before that.
    pub(crate) before: Before,
    mood: Mood,
    created_at: Timestamp,
}

/// How large a world is. Most are small: a mistake is found sooner in many of them than in a large one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Size {
    Small,
    /// Many more ordering keys than a window holds.
    ManyKeys,
    ManyTenants,
}

impl Size {
    fn draw(random: &mut ChaCha8Rng) -> Size {
        match random.random_range(0..40u32) {
            0 => Size::ManyKeys,
            1 => Size::ManyTenants,
            _ => Size::Small,
        }
    }

    fn tenants(self, random: &mut ChaCha8Rng) -> usize {
        match self {
            Size::Small => random.random_range(1..=4),
            Size::ManyKeys => 1,
            Size::ManyTenants => 30,
        }
    }

    fn endpoints(self, random: &mut ChaCha8Rng) -> usize {
        match self {
            Size::Small => random.random_range(1..=3),
            Size::ManyKeys | Size::ManyTenants => random.random_range(1..=2),
        }
    }

    fn events(self, random: &mut ChaCha8Rng) -> u32 {
        match self {
            Size::Small => random.random_range(20..250),
            Size::ManyKeys | Size::ManyTenants => random.random_range(300..600),
        }
    }
}

/// What is published.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    /// How many ordering keys are in use.
    keys: u32,
    keyed_percent: u32,
    /// Of the events with a key, how many are to be delivered at a later time.
    keyed_ahead_percent: u32,
}

impl Traffic {
    fn draw(size: Size, random: &mut ChaCha8Rng) -> Traffic {
        let keyed_ahead_percent = [10, 10, 70][random.random_range(0..3usize)];
        match size {
            // A window holds fewer than the most of these.
            Size::Small => {
                let keys = [3, 3, 3 * LIMITS.window][random.random_range(0..3usize)];
                let keys = u32::try_from(keys).expect("a few");
                Traffic { keys, keyed_percent: if keys > 3 { 50 } else { 25 }, keyed_ahead_percent }
            }
            Size::ManyKeys => Traffic { keys: 300, keyed_percent: 80, keyed_ahead_percent },
            Size::ManyTenants => Traffic { keys: 3, keyed_percent: 25, keyed_ahead_percent },
        }
    }
}

/// What was in force until the last change.
#[derive(Clone)]
pub(crate) struct Before {
    pub(crate) config: LaneConfig,
    pub(crate) mode: Mode,
    pub(crate) url: String,
}

pub(crate) struct Tenant {
    id: TenantId,
    pub(crate) config: TenantConfig,
    partition: Partition,
    /// Raised with every change of it or of one of its endpoints.
    version: u64,
    created_at: Timestamp,
}

#[expect(clippy::struct_excessive_bools, reason = "each is something else that a node is about to do")]
struct Node {
    /// `None` while it is down.
    owner: Option<Owner>,
    /// Raised when it dies: whatever was on its way then is nobody's.
    incarnation: u64,
    /// Raised when it joins under another name: when it dies, and when its lease has ended.
    member: u64,
    /// When it is to be asked again, each moment once, as time passes.
    inputs: BTreeSet<Timestamp>,
    /// Nothing runs there until then.
    frozen_until: Option<Timestamp>,
    /// It freezes when the database has next seen a renewal of its lease, before it hears of that.
    freezes_at_renewal: bool,
    /// What it wanted done when it froze is done all the same: the request had left.
    reaches_the_store: bool,
    membership: MembershipMachine,
    /// It renews its lease again and again, and that is not run.
    rests: bool,
    /// Of the records that were on their way when it died, so many are still committed.
    last_words: u32,
    /// News of commits comes in the order of the commits.
    feed_until: Timestamp,
    /// News of some commit did not fit.
    feed_has_overflowed: bool,
    started_at: Timestamp,
    sweeper: Sweeper,
    /// The next sweep is planned. While nothing is being written none is: it would find nothing.
    sweeps_soon: bool,
    /// What owners before may still record, and whether that is asked about soon.
    handed_over: HandedOver,
    asks_soon: bool,
    counts_soon: bool,
    /// It was told to stop, and does so by then.
    stops_by: Option<Timestamp>,
    /// How far its clock is ahead of the database's.
    skew_ms: i64,
    /// What its clock has shown last.
    clock_shown: Timestamp,
}

#[derive(Debug)]
enum Step {
    Publish,
    /// Deliveries become visible.
    Commit {
        publishing: Publishing,
    },
    /// A node hears of its own commit.
    Feed {
        node: usize,
        incarnation: u64,
        /// As they were committed.
        entries: Vec<(usize, Entry)>,
    },
    /// A node looks for what others have committed.
    Sweep {
        node: usize,
        incarnation: u64,
    },
    /// A node's loop comes round.
    Turn {
        node: usize,
    },
    /// The store sees a call.
    Call {
        running: Box<Running>,
        call: Box<StoreCall>,
    },
    /// A node hears what became of its call.
    Returned {
        running: Box<Running>,
        result: Box<Result<StoreReply, CallFailure>>,
    },
    /// A node asks whether the owner before has recorded what it had in flight.
    AskHandedOver {
        node: usize,
        incarnation: u64,
    },
    /// The store does not answer for a while.
    Outage,
    /// What is stored of an endpoint cannot be read, until somebody repairs it.
    Damage,
    Repair {
        endpoint: usize,
    },
    /// An owner hears of something.
    Arrives {
        node: usize,
        incarnation: u64,
        member: u64,
        input: Box<Input>,
    },
    /// A receiver has answered.
    Answer {
        incarnation: u64,
        hit: usize,
        generation: OwnerGeneration,
        send: SendRef,
        outcome: Outcome,
    },
    Change,
    ConfigurationMoves {
        node: usize,
    },
    MoodChanges {
        endpoint: usize,
    },
    Cancel,
    SendNow,
    TestSend,
    Erase,
    CommandRequest {
        question: Box<PendingCommand>,
        asked: Box<posthaste_store::CommandRequest>,
    },
    Crash,
    /// The store sees a call of a node's membership.
    MemberCalls {
        node: usize,
        incarnation: u64,
        asked_at: Timestamp,
        call: Box<MembershipCall>,
    },
    /// A node hears how it ended; `None` if it has panicked.
    MemberReply {
        node: usize,
        incarnation: u64,
        asked_at: Timestamp,
        reply: Box<Option<MembershipReply>>,
    },
    MembershipRestarts {
        node: usize,
        incarnation: u64,
    },
    Freeze,
    Thaw {
        node: usize,
    },
    /// A tenant is handed to another node that is well.
    Transfer,
    /// A node is told to stop, and starts again a moment after it has.
    Stop,
    StopsAtLast {
        node: usize,
        incarnation: u64,
    },
    Start {
        node: usize,
    },
    Replay,
    ReplayGoesOn {
        replay: Replay,
    },
    Count {
        node: usize,
        incarnation: u64,
    },
    Input {
        node: usize,
    },
    Expire,
    /// Cleanup deletes what is older than its retention.
    Retention,
    ClockIsSet {
        by_ms: i64,
    },
    ClocksDrift,
    Heal,
}

pub(crate) struct World {
    /// By the clock of whoever decides or writes at this moment.
    pub(crate) now: Timestamp,
    /// As time passes, whatever clocks show.
    pub(crate) real: Timestamp,
    database_now: Timestamp,
    machine: Arc<Machine>,
    clock: Clock,
    clock_set_at: Timestamp,
    /// How far the clocks of two nodes may be apart.
    pub(crate) clock_slack: Duration,
    pub(crate) limits: Limits,
    options: Options,
    random: ChaCha8Rng,
    steps: BinaryHeap<Reverse<(Timestamp, u64)>>,
    pending: BTreeMap<u64, Step>,
    step_number: u64,
    pub(crate) store: Store,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) tenants: Vec<Tenant>,
    traffic: Traffic,
    nodes: Vec<Node>,
    /// Deliveries whose turn has come, until their receiver has answered.
    pub(crate) in_flight: BTreeMap<usize, Hit>,
    /// Rows whose turn comes at this moment.
    pub(crate) turning: BTreeSet<usize>,
    /// Of those in flight, the ones whose payload is still being read.
    pending_sends: BTreeMap<(Member, DeliveryId), usize>,
    /// Answered, and not yet decided about.
    answered: BTreeMap<(Member, DeliveryId), Hit>,
    /// Sent, and the record of it is not committed.
    unrecorded: BTreeMap<usize, Member>,
    questions: Vec<PendingCommand>,
    /// When a number was last taken.
    numbered_at: Timestamp,
    store_fails_until: Timestamp,
    began_at: Timestamp,
    /// When something last happened to a node.
    troubled_at: Timestamp,
    /// How many partitions a node takes at first.
    first_share: usize,
    /// When a node last ran again after it was frozen.
    thawed_at: Timestamp,
    /// Rows that have ended lately, as owners before have recorded.
    recorded_elsewhere: Vec<(Timestamp, usize)>,
    /// When a call last failed: what follows from it may be late.
    pub(crate) store_failed_at: Timestamp,
    event_count: u64,
    hit_count: usize,
    attempt_count: u128,
    publishing_until: Timestamp,
    is_healed: bool,
    checker: Checker,
    report: Report,
}

/// Runs the world of a seed to its end, or to the first broken promise; with a known bug built in, if one is named.
pub fn run(seed: u64, plant: Option<Plant>) -> Report {
    run_and_tell(seed, plant, |_| {})
}

/// The same, and tells of every step.
pub fn run_and_tell(seed: u64, plant: Option<Plant>, mut tell: impl FnMut(fmt::Arguments<'_>)) -> Report {
    plant::activate(plant);
    let mut world = World::new(seed);
    let result = world.run(&mut tell);
    plant::activate(None);
    let mut report = world.report;
    report.rows = world.store.rows.len() as u64;
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
        let options = Options {
            limits,
            timeouts: RULES,
            // In some worlds hardly a payload is kept, and hardly an endpoint.
            cached_body_bytes_max: [600, 3_000, 1 << 25][random.random_range(0..3usize)],
            endpoints_known_max: [1, 100_000][random.random_range(0..2usize)],
            ..Options::default()
        };
        let size = Size::draw(&mut random);
        let node_count = random.random_range(1..=3usize);
        // In some worlds what has ended is deleted while they last.
        let retention = Duration::from_hours([24, 24 * 90][random.random_range(0..2usize)]);
        let keeping = Keeping { retention, dead_letters: Duration::from_hours([24, 48][random.random_range(0..2usize)]) };
        let machine = Machine::started_at(now);
        let is_skewed = node_count > 1 && random.random_range(0..2u32) == 0;
        let mut world = World {
            now,
            real: now,
            database_now: now,
            clock: Clock::starting(Arc::<Machine>::clone(&machine)),
            machine,
            clock_set_at: now - Duration::from_hours(24),
            clock_slack: Duration::from_millis(if is_skewed { 2 * SKEW_MAX_MS.unsigned_abs() } else { 0 }),
            limits,
            options,
            steps: BinaryHeap::new(),
            pending: BTreeMap::new(),
            step_number: 0,
            // Where there are several nodes, they share a database.
            store: Store::new(if node_count == 1 && seed.is_multiple_of(2) { Kind::Sqlite } else { Kind::Postgres }, keeping),
            endpoints: Vec::new(),
            tenants: Vec::new(),
            traffic: Traffic::draw(size, &mut random),
            nodes: Vec::new(),
            in_flight: BTreeMap::new(),
            turning: BTreeSet::new(),
            pending_sends: BTreeMap::new(),
            answered: BTreeMap::new(),
            unrecorded: BTreeMap::new(),
            questions: Vec::new(),
            numbered_at: now,
            store_fails_until: now,
            began_at: now,
            troubled_at: now,
            first_share: usize::MAX,
            thawed_at: now,
            recorded_elsewhere: Vec::new(),
            store_failed_at: now,
            event_count: 0,
            hit_count: 0,
            attempt_count: 0,
            publishing_until: now + Duration::from_hours(hours),
            is_healed: false,
            checker: Checker::default(),
            report: Report { seed, hash: 0xcbf2_9ce4_8422_2325, ..Report::default() },
            random: ChaCha8Rng::seed_from_u64(seed ^ 0x5eed),
        };
        for _ in 0..node_count {
            world.nodes.push(Node {
                owner: Some(Owner::new(now, world.options.clone())),
                incarnation: 0,
                member: 0,
                inputs: BTreeSet::new(),
                frozen_until: None,
                freezes_at_renewal: false,
                reaches_the_store: false,
                membership: MembershipMachine::new(false),
                rests: false,
                last_words: 0,
                feed_until: now,
                feed_has_overflowed: false,
                started_at: now,
                sweeper: Sweeper::default(),
                sweeps_soon: false,
                handed_over: HandedOver::default(),
                asks_soon: false,
                counts_soon: false,
                stops_by: None,
                skew_ms: 0,
                clock_shown: now,
            });
        }
        for number in 0..size.tenants(&mut random) {
            let id = TenantId::parse(&format!("tenant-{number}")).expect("a valid id");
            let config = draw::tenant_config(&mut world.random);
            let partition = partition_of(&id);
            let holding = Holding { owner: None, epoch: 1, left_by: None, is_handed_over: false, is_trusted: true };
            // Some share one.
            world.store.partitions.entry(partition).or_insert(holding);
            world.tenants.push(Tenant { id, config, partition, version: 1, created_at: now });
            for _ in 0..size.endpoints(&mut random) {
                let config = draw::lane_config(&mut world.random);
                let mood = draw::mood(&mut world.random);
                let mode = draw::timeout_mode(&mut world.random);
                let id = EndpointId::from_bytes((world.endpoints.len() as u128 + 1).to_be_bytes());
                let url = format!("http://receiver-{}.test/", world.endpoints.len());
                world.endpoints.push(Endpoint {
                    id,
                    tenant: number,
                    is_applied: false,
                    before: Before { config: config.clone(), mode, url: url.clone() },
                    config,
                    mode,
                    url,
                    deleted_at: None,
                    is_unreadable: false,
                    changed_at: now,
                    mood,
                    created_at: now,
                });
            }
        }
        // In some worlds one node has everything, and others stand by.
        if random.random_range(0..3u32) > 0 {
            world.first_share = world.store.partitions.len().div_ceil(node_count);
        }
        for node in 0..world.nodes.len() {
            let incarnation = world.nodes[node].incarnation;
            world.nodes[node].membership = MembershipMachine::new(world.store.kind == Kind::Postgres);
            world.later(Duration::ZERO, Step::MembershipRestarts { node, incarnation });
        }
        world.drift();
        world.sweeps_go_on();
        world.plan(size);
        world
    }

    /// Everything that will happen from outside.
    fn plan(&mut self, size: Size) {
        let span = self.publishing_until.since(self.real);
        let events = size.events(&mut self.random);
        let mut busy = Vec::new();
        for _ in 0..events {
            let at = self.moment_within(span);
            busy.push(at);
            // Events come in bursts, too.
            let is_burst = self.random.random_range(0..20u32) == 0;
            for _ in 0..if is_burst { 25 } else { 1 } {
                self.later(at, Step::Publish);
            }
            // While many wait for their turn, some are called off.
            for _ in 0..if is_burst { self.random.random_range(0..3u32) } else { 0 } {
                let at = at + self.soon(300);
                self.later(at, Step::Cancel);
            }
        }
        for endpoint in 0..self.endpoints.len() {
            for _ in 0..self.random.random_range(0..5u32) {
                let at = self.moment_within(span);
                self.later(at, Step::MoodChanges { endpoint });
            }
        }
        let often: [(u32, fn() -> Step); 7] = [
            (8, || Step::Change),
            (6, || Step::Cancel),
            (4, || Step::SendNow),
            (10, || Step::TestSend),
            (3, || Step::Replay),
            (3, || Step::Erase),
            // Many are called off while something is under way.
            (6, || Step::Cancel),
        ];
        for (number, (most, step)) in often.into_iter().enumerate() {
            for _ in 0..self.random.random_range(0..most) {
                let at = if number == 6 { self.moment_for_trouble(span, &busy) } else { self.moment_within(span) };
                self.later(at, step());
            }
        }
        let troubles: [(u32, fn() -> Step); 6] = [
            (4, || Step::Crash),
            (3, || Step::Freeze),
            (10, || Step::Transfer),
            (3, || Step::Stop),
            (3, || Step::Outage),
            (3, || Step::Damage),
        ];
        for (most, step) in troubles {
            for _ in 0..self.random.random_range(0..most) {
                let at = self.moment_for_trouble(span, &busy);
                self.later(at, step());
            }
        }
        self.plan_clocks(span);
        self.later(Duration::from_mins(1), Step::Expire);
        self.later(Duration::from_hours(1), Step::Retention);
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
        self.steps.push(Reverse((self.real + after, self.step_number)));
        self.pending.insert(self.step_number, step);
    }

    fn soon(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.random.random_range(0..=most))
    }

    fn run(&mut self, tell: &mut impl FnMut(fmt::Arguments<'_>)) -> Result<(), Violation> {
        while let Some(Reverse((at, number))) = self.steps.pop() {
            self.advance(at)?;
            let step = self.pending.remove(&number).expect("each step once");
            tell(format_args!("{} {step:?}", self.now.to_rfc3339()));
            self.take(step)?;
            if self.random.random_range(0..if self.is_healed { 16u32 } else { 3 }) == 0 {
                self.look_at_one()?;
            }
        }
        Checker::at_the_end(&self.store.rows, &self.endpoints)
    }

    fn take(&mut self, step: Step) -> Result<(), Violation> {
        let Some(step) = self.unless_frozen(step) else { return Ok(()) };
        match step {
            Step::Publish => self.publish(),
            Step::Commit { publishing } => self.commit(publishing),
            Step::Feed { node, incarnation, entries } => self.feed(node, incarnation, entries)?,
            Step::Sweep { node, incarnation } => self.sweep(node, incarnation),
            Step::Turn { node } => self.pump(node)?,
            Step::Call { running, call } => self.call(running, *call)?,
            Step::Returned { running, result } => self.returned(running, *result)?,
            Step::AskHandedOver { node, incarnation } => self.ask_handed_over(node, incarnation),
            Step::Outage => self.outage(),
            Step::Damage => self.damage(),
            Step::Repair { endpoint } => self.repair(endpoint),
            Step::Arrives { node, incarnation, member, input } => self.arrives(node, incarnation, member, *input)?,
            Step::Answer { incarnation, hit, generation, send, outcome } => {
                self.answer(incarnation, hit, generation, send, outcome)?;
            }
            Step::Change => self.change(),
            Step::ConfigurationMoves { node } => self.deliver(node, Input::ConfigurationChanged)?,
            Step::MoodChanges { endpoint } => {
                if !self.is_healed {
                    self.endpoints[endpoint].mood = draw::mood(&mut self.random);
                }
            }
            Step::Cancel => self.cancel(),
            Step::SendNow => self.send_now(),
            Step::TestSend => self.test_send(),
            Step::Erase => self.erase(),
            Step::CommandRequest { question, asked } => self.asked(*question, *asked)?,
            Step::Crash => self.crash(),
            Step::MemberCalls { node, incarnation, asked_at, call } => self.member_calls(node, incarnation, asked_at, *call),
            Step::MemberReply { node, incarnation, asked_at, reply } => self.member_hears(node, incarnation, asked_at, *reply)?,
            Step::MembershipRestarts { node, incarnation } => self.restart_membership(node, incarnation)?,
            Step::Freeze => self.freeze(),
            Step::Thaw { node } => self.thaw(node)?,
            Step::Transfer => self.transfer()?,
            Step::Stop => self.stop()?,
            Step::StopsAtLast { node, incarnation } => self.stop_at_last(node, incarnation)?,
            Step::Start { node } => self.start(node)?,
            Step::Replay => self.replay(),
            Step::ReplayGoesOn { replay } => self.go_on_with(replay)?,
            Step::Count { node, incarnation } => self.count(node, incarnation)?,
            Step::Input { node } => {
                self.nodes[node].inputs.remove(&self.real);
                self.pump(node)?;
            }
            Step::Expire => self.expire()?,
            Step::Retention => self.clean_up()?,
            Step::ClockIsSet { by_ms } => self.set_clock(by_ms)?,
            Step::ClocksDrift => self.drift(),
            Step::Heal => self.heal(),
        }
        Ok(())
    }

    /// Lets a node do what it wants to do now.
    fn pump(&mut self, node: usize) -> Result<(), Violation> {
        self.by_clock_of(node, |world| world.pump_here(node))
    }

    fn pump_here(&mut self, node: usize) -> Result<(), Violation> {
        if self.nodes[node].frozen_until.is_some() {
            return Ok(());
        }
        let Node { owner: Some(owner), feed_has_overflowed, .. } = &mut self.nodes[node] else { return Ok(()) };
        if std::mem::take(feed_has_overflowed) {
            owner.handle(self.now, Input::FeedOverflowed);
        }
        let effects = owner.next_effects(self.now);
        // What was decided about an answer comes before what follows from it.
        for effect in &effects {
            if let Effect::Record { records, .. } = effect {
                let member = (node, self.nodes[node].member);
                records.iter().try_for_each(|record| self.decided(member, record))?;
            }
        }
        // What was given back before it was sent has freed its slot.
        let member = (node, self.nodes[node].member);
        for delivery in self.pending_sends.keys().filter(|(by, _)| *by == member).map(|(_, delivery)| *delivery).collect::<Vec<_>>()
        {
            self.drop_given_up(node, member, delivery);
        }
        // What goes at the same moment overtakes nobody.
        self.turning = effects.iter().flat_map(turns).collect();
        self.perform_all(node, effects)?;
        let Some(owner) = self.nodes[node].owner.as_ref() else { return Ok(()) };
        let wakes_at = owner.wake_at();
        for (number, endpoint) in self.endpoints.iter().enumerate() {
            let is_own =
                self.store.partitions[&self.tenants[endpoint.tenant].partition].owner == Some((node, self.nodes[node].member));
            // It knew of nothing to send when it was forgotten: whatever comes next is no backlog.
            if is_own && !owner.remembers(endpoint.id) {
                self.checker.drained(number);
            }
        }
        if let Some(after) = wakes_at.map(|at| at.since(self.now))
            && self.nodes[node].inputs.insert(self.real + after)
        {
            self.later(after, Step::Input { node });
        }
        self.hear_answers()?;
        let is_at_rest = self.nodes[node].owner.as_ref().is_some_and(Owner::is_at_rest);
        let has_stopped = self.nodes[node].stops_by.is_some() && is_at_rest && !self.is_handing_over(node);
        if has_stopped { self.leave(node) } else { Ok(()) }
    }

    /// Asks after one delivery, as a person would, and counts the answer.
    fn look_at_one(&mut self) -> Result<(), Violation> {
        if self.store.rows.is_empty() {
            return Ok(());
        }
        self.check_recorded_elsewhere()?;
        let number = self.one_to_look_at();
        let row = &self.store.rows[number];
        if matches!(row.state, State::Waiting { .. }) && row.due().is_none() {
            // Nobody can see it yet.
            return Ok(());
        }
        let endpoint = &self.endpoints[row.endpoint];
        let tenant = &self.tenants[endpoint.tenant];
        let Some((node, member)) = self.store.partitions[&tenant.partition].owner else { return Ok(()) };
        let node = &self.nodes[node];
        // One that stops begins nothing, and keeps what it owns until what it has begun has ended.
        if node.frozen_until.is_some() || node.stops_by.is_some() || node.member != member {
            return Ok(());
        }
        let Some(owner) = &node.owner else { return Ok(()) };
        // It has given it up, and the database does not know yet.
        if !owner.partitions().contains(&tenant.partition) {
            return Ok(());
        }
        if !owner.is_bounded() {
            let what = format!("at {}: what a node keeps of its lanes is out of bounds", self.now.to_rfc3339());
            return Err(Violation { promise: "I40", what });
        }
        let shown = owner.lane_snapshot(self.now, endpoint.id);
        let config = &endpoint.config;
        let lane = shown.as_ref().map_or(LaneFacts::of(config.status), |shown| LaneFacts {
            status: config.status,
            is_blocked: shown.blocked.is_some(),
            breaker: shown.memory.breaker,
            schedule: config.schedule.as_ref(),
            rate_limit: config.rate_limit.map(|limit| (limit, shown.memory.bucket)),
            tenant_rate_limit: tenant.config.rate_limit.zip(shown.tenant_bucket),
            is_short_of_tokens: shown.is_short_of_tokens,
            held_until: shown.memory.held_until,
            retries_from: shown.retries_from,
            has_slot: shown.has_slot,
        });
        let facts = Facts {
            state: row.state,
            attempts: row.attempts,
            is_in_flight: shown.as_ref().is_some_and(|shown| shown.in_flight.contains(&row.delivery)),
            event_type: &row.event_type,
            is_priority: row.is_priority,
            is_head_of_key: self.store.is_head_of_key(number),
            lane,
        };
        let standing = admission::explain(self.now, &facts);
        // A moment ago it may have been held by something that has ended by itself.
        let was_held = standing == DeliveryStatus::Pending
            && matches!(admission::explain(self.now - Duration::from_secs(10), &facts), DeliveryStatus::Held { .. });
        let name = match standing {
            DeliveryStatus::Pending => "pending".to_owned(),
            DeliveryStatus::Delivering => "delivering".to_owned(),
            DeliveryStatus::Held { reason, .. } => format!("held: {}", reason.name()),
            DeliveryStatus::Delivered { .. } => "delivered".to_owned(),
            DeliveryStatus::Dead { reason, .. } => format!("dead: {}", reason.name()),
            DeliveryStatus::Cancelled { reason, .. } => format!("cancelled: {}", reason.name()),
        };
        // What an owner before has in flight takes slots until its deadline, and a moment ago still did.
        let was_awaited = self.store.promised.iter().any(|(seq, promised)| {
            let other = &self.store.rows[store::row_number(*seq)];
            other.partition == row.partition && self.now < promised.until + Duration::from_secs(10)
        });
        let concurrency =
            was_held || was_awaited || matches!(standing, DeliveryStatus::Held { reason: HoldReason::Concurrency, .. });
        self.visit("standing", &name);
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.seen(self, number, standing, concurrency);
        self.checker = checker;
        verdict
    }

    /// Half of the time one that has not ended.
    fn one_to_look_at(&mut self) -> usize {
        let endpoint = self.random.random_range(0..self.endpoints.len());
        let waiting = self.store.waiting(endpoint).count();
        if waiting > 0 && self.random.random_range(0..2u32) == 0 {
            let place = self.random.random_range(0..waiting);
            return self.store.waiting(endpoint).nth(place).map_or(0, |(number, _)| number);
        }
        self.random.random_range(0..self.store.rows.len())
    }

    /// What an owner before has recorded does not take a slot of the new one, or its key.
    fn check_recorded_elsewhere(&mut self) -> Result<(), Violation> {
        let now = self.now;
        self.recorded_elsewhere.retain(|(at, _)| now.since(*at) < Duration::from_secs(30));
        let is_late = |passed: Duration| passed > Duration::from_secs(4);
        if !is_late(now.since(self.store_failed_at)) || !is_late(self.real.since(self.thawed_at)) {
            return Ok(());
        }
        for (at, number) in &self.recorded_elsewhere {
            let row = &self.store.rows[*number];
            let Some((node, member)) = self.owner_of(row.endpoint) else { continue };
            let is_begun = self.unrecorded.contains_key(number) || self.in_flight.values().any(|hit| hit.row == *number);
            let is_well = self.is_well(node) && self.nodes[node].member == member;
            if now.since(*at) < Duration::from_secs(2) || is_begun || !is_well {
                continue;
            }
            let owner = self.nodes[node].owner.as_ref().expect("it is well");
            let shown = owner.lane_snapshot(now, self.endpoints[row.endpoint].id);
            if shown.is_some_and(|shown| shown.in_flight.contains(&row.delivery)) {
                let what = format!("row {number} at {}: recorded at {} by the owner before", now.to_rfc3339(), at.to_rfc3339());
                return Err(Violation { promise: "I33", what });
            }
        }
        Ok(())
    }

    /// Whoever the database says owns an endpoint.
    pub(crate) fn owner_of(&self, endpoint: usize) -> Option<Member> {
        self.store.partitions[&self.tenants[self.endpoints[endpoint].tenant].partition].owner
    }

    fn is_well(&self, node: usize) -> bool {
        self.nodes[node].owner.is_some() && self.nodes[node].frozen_until.is_none()
    }

    /// Rows that somebody wants called off or sent now, and has not heard about yet.
    pub(crate) fn wanted(&self) -> BTreeSet<usize> {
        self.questions.iter().flat_map(|question| question.rows.iter().copied()).collect()
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

pub(crate) fn endpoint_number(id: EndpointId) -> usize {
    usize::try_from(id.as_u128() - 1).expect("a small number")
}
