//! A world from a seed: tenants, endpoints, nodes that die, receivers with moods, and the engine's owners in the middle.
//!
//! What runs in production is what runs here: each node is a [`posthaste_engine::Owner`], told of everything by
//! [`Wake`]s, and every [`Deed`] that it wants done is done by this world. Time is virtual and nothing runs beside anything
//! else, so that a seed is a whole history. The store is a model (`store.rs`): a question sees one moment and its answer
//! arrives at a later one, a record is committed at one moment and heard of at another, and a node can die between any two of
//! them. News of a commit may be lost, in which case a sweep brings it two seconds later. After every step the checker
//! (`checker.rs`) compares what happened with the promises.

mod deeds;
mod people;
mod receivers;
mod store;
mod trouble;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::time::Duration;

use posthaste_core::admission::{self, Facts, HoldReason, LaneFacts, Standing};
use posthaste_core::bucket::RateLimit;
use posthaste_core::delivery::Outcome;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::{Entry, LaneConfig, Limits, TenantConfig};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::{Mode, TimeoutRules};
use posthaste_engine::{Deed, Errand, Life, Options, Owner, Wake};
use posthaste_store::{HandedOver, Partition, partition_of};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::checker::{Checker, Hit, Violation};
use crate::draw::{self, Mood};

use people::{Question, Replay};
use store::{Holding, Store};
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
    /// When what is said now was answered to whoever said it.
    pub(crate) changed_at: Timestamp,
    /// What was said before that.
    pub(crate) before: Before,
    mood: Mood,
    created_at: Timestamp,
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

struct Node {
    /// `None` while it is down.
    owner: Option<Owner>,
    /// Raised when it dies: whatever was on its way then is nobody's.
    incarnation: u64,
    /// Raised when it joins under another name: when it dies, and when its lease has ended.
    member: u64,
    /// When it is to be asked again, each moment once.
    wakes: BTreeSet<Timestamp>,
    /// Nothing runs there until then.
    frozen_until: Option<Timestamp>,
    /// What it wanted done when it froze is done all the same: the request had left.
    reaches_the_store: bool,
    /// By its own clock, since it was last seen to renew it; `None` while it does.
    lease_ends_at: Option<Timestamp>,
    /// Of the records that were on their way when it died, so many are still committed.
    last_words: u32,
    /// Records are committed in the order in which they were wanted.
    records_until: Timestamp,
    counts_soon: bool,
    /// It was told to stop, and does so by then.
    stops_by: Option<Timestamp>,
}

#[derive(Debug)]
enum Step {
    Publish,
    /// A node hears of its own commit.
    Feed {
        node: usize,
        incarnation: u64,
        row: usize,
        /// As it was committed.
        entry: Box<Entry>,
    },
    /// The owner hears that an endpoint may have something to send: by a notification, or by a sweep.
    Hint {
        endpoint: usize,
    },
    /// What an owner wants done happens in the store.
    Do {
        node: usize,
        incarnation: u64,
        member: u64,
        deed: Box<Deed>,
    },
    /// An owner hears of something.
    Arrives {
        node: usize,
        incarnation: u64,
        member: u64,
        wake: Box<Wake>,
    },
    FindWork {
        node: usize,
        incarnation: u64,
        after: Option<EndpointId>,
    },
    Restamp {
        node: usize,
        incarnation: u64,
        life: Life,
        endpoint: usize,
        after: usize,
    },
    HandOver {
        node: usize,
        member: u64,
        partitions: Vec<Partition>,
        in_flight: Vec<HandedOver>,
    },
    /// A receiver has answered.
    Answer {
        incarnation: u64,
        hit: usize,
        life: Life,
        errand: Errand,
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
    Asked {
        question: Box<Question>,
        asked: Box<posthaste_store::Asked>,
    },
    Crash,
    TakeOver {
        dead: usize,
    },
    Freeze,
    Thaw {
        node: usize,
    },
    /// A node finds that its lease has ended.
    LeaseEnds {
        node: usize,
        incarnation: u64,
    },
    /// A node takes what nobody has.
    Claim {
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
    Wake {
        node: usize,
    },
    Expire,
    Heal,
}

pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) limits: Limits,
    options: Options,
    random: ChaCha8Rng,
    steps: BinaryHeap<Reverse<(Timestamp, u64)>>,
    pending: BTreeMap<u64, Step>,
    step_number: u64,
    pub(crate) store: Store,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) tenants: Vec<Tenant>,
    nodes: Vec<Node>,
    /// Deliveries whose turn has come, until their receiver has answered.
    pub(crate) in_flight: BTreeMap<usize, Hit>,
    /// Rows whose turn comes at this moment.
    pub(crate) turning: BTreeSet<usize>,
    /// Of those in flight, the ones whose payload is still being read.
    bodiless: BTreeMap<(Member, DeliveryId), usize>,
    /// Answered, and not yet decided about.
    answered: BTreeMap<(Member, DeliveryId), Hit>,
    /// Sent, and the record of it is not committed.
    unrecorded: BTreeMap<usize, Member>,
    questions: Vec<Question>,
    event_count: u64,
    hit_count: usize,
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
        let mut world = World {
            now,
            limits,
            options,
            steps: BinaryHeap::new(),
            pending: BTreeMap::new(),
            step_number: 0,
            // Every other world has a store like PostgreSQL's.
            store: if seed % 2 == 1 { Store::cautious() } else { Store::default() },
            endpoints: Vec::new(),
            tenants: Vec::new(),
            nodes: Vec::new(),
            in_flight: BTreeMap::new(),
            turning: BTreeSet::new(),
            bodiless: BTreeMap::new(),
            answered: BTreeMap::new(),
            unrecorded: BTreeMap::new(),
            questions: Vec::new(),
            event_count: 0,
            hit_count: 0,
            publishing_until: now + Duration::from_hours(hours),
            is_healed: false,
            checker: Checker::default(),
            report: Report { seed, hash: 0xcbf2_9ce4_8422_2325, ..Report::default() },
            random: ChaCha8Rng::seed_from_u64(seed ^ 0x5eed),
        };
        for _ in 0..random.random_range(1..=3usize) {
            world.nodes.push(Node {
                owner: Some(Owner::new(now, world.options.clone())),
                incarnation: 0,
                member: 0,
                wakes: BTreeSet::new(),
                frozen_until: None,
                reaches_the_store: false,
                lease_ends_at: None,
                last_words: 0,
                records_until: now,
                counts_soon: false,
                stops_by: None,
            });
        }
        for number in 0..random.random_range(1..=4usize) {
            let id = TenantId::parse(&format!("tenant-{number}")).expect("a valid id");
            let config = draw::tenant_config(&mut world.random);
            let partition = partition_of(&id);
            let owner = Some((number % world.nodes.len(), 0));
            world.store.partitions.insert(partition, Holding { owner, epoch: 1, is_handed_over: false, is_trusted: true });
            world.tenants.push(Tenant { id, config, partition, version: 1, created_at: now });
            for _ in 0..random.random_range(1..=3usize) {
                let config = draw::lane_config(&mut world.random);
                let mood = draw::mood(&mut world.random);
                let mode = draw::timeout_mode(&mut world.random);
                let id = EndpointId::from_bytes((world.endpoints.len() as u128 + 1).to_be_bytes());
                let url = format!("http://receiver-{}.test/", world.endpoints.len());
                world.endpoints.push(Endpoint {
                    id,
                    tenant: number,
                    before: Before { config: config.clone(), mode, url: url.clone() },
                    config,
                    mode,
                    url,
                    deleted_at: None,
                    changed_at: now,
                    mood,
                    created_at: now,
                });
            }
        }
        for node in 0..world.nodes.len() {
            world.later(Duration::ZERO, Step::Claim { node });
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
        let troubles: [(u32, fn() -> Step); 4] =
            [(4, || Step::Crash), (3, || Step::Freeze), (6, || Step::Transfer), (3, || Step::Stop)];
        for (most, step) in troubles {
            for _ in 0..self.random.random_range(0..most) {
                let at = self.moment_for_trouble(span, &busy);
                self.later(at, step());
            }
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

    fn run(&mut self, tell: &mut impl FnMut(fmt::Arguments<'_>)) -> Result<(), Violation> {
        while let Some(Reverse((at, number))) = self.steps.pop() {
            self.now = at;
            let step = self.pending.remove(&number).expect("each step once");
            tell(format_args!("{} {step:?}", at.to_rfc3339()));
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
            Step::Feed { node, incarnation, row, entry } => self.feed(node, incarnation, row, *entry)?,
            Step::Hint { endpoint } => self.hint(endpoint)?,
            Step::Do { node, incarnation, member, deed } => self.do_it(node, incarnation, member, *deed)?,
            Step::Arrives { node, incarnation, member, wake } => self.arrives(node, incarnation, member, *wake)?,
            Step::FindWork { node, incarnation, after } => self.find_work(node, incarnation, after),
            Step::Restamp { node, incarnation, life, endpoint, after } => self.restamp(node, incarnation, life, endpoint, after),
            Step::HandOver { node, member, partitions, in_flight } => {
                self.hand_over((node, member), &partitions, &in_flight);
                if self.nodes[node].stops_by.is_some() {
                    self.pump(node)?;
                }
            }
            Step::Answer { incarnation, hit, life, errand, outcome } => self.answer(incarnation, hit, life, errand, outcome)?,
            Step::Change => self.change(),
            Step::ConfigurationMoves { node } => self.deliver(node, Wake::ConfigurationMoved)?,
            Step::MoodChanges { endpoint } => {
                if !self.is_healed {
                    self.endpoints[endpoint].mood = draw::mood(&mut self.random);
                }
            }
            Step::Cancel => self.cancel(),
            Step::SendNow => self.send_now(),
            Step::TestSend => self.test_send(),
            Step::Erase => self.erase(),
            Step::Asked { question, asked } => self.asked(*question, *asked)?,
            Step::Crash => self.crash(),
            Step::TakeOver { dead } => self.take_over(dead),
            Step::Freeze => self.freeze(),
            Step::Thaw { node } => self.thaw(node)?,
            Step::LeaseEnds { node, incarnation } => self.lease_ends(node, incarnation)?,
            Step::Claim { node } => self.claim(node)?,
            Step::Transfer => self.transfer()?,
            Step::Stop => self.stop()?,
            Step::StopsAtLast { node, incarnation } => self.stop_at_last(node, incarnation)?,
            Step::Start { node } => self.start(node),
            Step::Replay => self.replay(),
            Step::ReplayGoesOn { replay } => self.go_on_with(replay),
            Step::Count { node, incarnation } => self.count(node, incarnation)?,
            Step::Wake { node } => {
                let now = self.now;
                self.nodes[node].wakes.remove(&now);
                self.pump(node)?;
            }
            Step::Expire => self.expire()?,
            Step::Heal => self.heal(),
        }
        Ok(())
    }

    /// Lets a node do what it wants to do now.
    fn pump(&mut self, node: usize) -> Result<(), Violation> {
        if self.nodes[node].frozen_until.is_some() {
            return Ok(());
        }
        let Some(owner) = self.nodes[node].owner.as_mut() else { return Ok(()) };
        let deeds = owner.next_deeds(self.now);
        // What was decided about an answer comes before what follows from it.
        for deed in &deeds {
            if let Deed::Record { records, .. } = deed {
                let member = (node, self.nodes[node].member);
                records.iter().try_for_each(|record| self.decided(member, record))?;
            }
        }
        // What goes at the same moment overtakes nobody.
        self.turning = deeds.iter().flat_map(turns).collect();
        for deed in deeds {
            self.perform(node, deed)?;
        }
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
        if let Some(at) = wakes_at.map(|at| at.max(self.now))
            && self.nodes[node].wakes.insert(at)
        {
            let after = at.since(self.now);
            self.later(after, Step::Wake { node });
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
        let number = self.random.random_range(0..self.store.rows.len());
        let row = &self.store.rows[number];
        let endpoint = &self.endpoints[row.endpoint];
        let tenant = &self.tenants[endpoint.tenant];
        let Some((node, member)) = self.store.partitions[&tenant.partition].owner else { return Ok(()) };
        let node = &self.nodes[node];
        // One that stops begins nothing, and keeps what it owns until what it has begun has ended.
        if node.frozen_until.is_some() || node.stops_by.is_some() || node.member != member {
            return Ok(());
        }
        let Some(owner) = &node.owner else { return Ok(()) };
        let shown = owner.shown(self.now, endpoint.id);
        let config = &endpoint.config;
        let lane = shown.as_ref().map_or(LaneFacts::of(config.status), |shown| LaneFacts {
            status: config.status,
            breaker: shown.memory.breaker,
            schedule: config.schedule.as_ref(),
            rate_limit: config.rate_limit.map(|limit| (limit, shown.memory.bucket)),
            tenant_rate_limit: tenant.config.rate_limit.zip(shown.tenant_bucket),
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
        let was_held = standing == Standing::Pending
            && matches!(admission::explain(self.now - Duration::from_secs(10), &facts), Standing::Held { .. });
        let name = match standing {
            Standing::Pending => "pending".to_owned(),
            Standing::Delivering => "delivering".to_owned(),
            Standing::Held { reason, .. } => format!("held: {}", reason.name()),
            Standing::Delivered { .. } => "delivered".to_owned(),
            Standing::Dead { reason, .. } => format!("dead: {}", reason.name()),
            Standing::Cancelled { reason, .. } => format!("cancelled: {}", reason.name()),
        };
        // What an owner before has in flight takes slots until its deadline, and a moment ago still did.
        let was_awaited = self.store.promised.iter().any(|(seq, promised)| {
            let other = &self.store.rows[store::row_number(*seq)];
            other.partition == row.partition && self.now < promised.until + Duration::from_secs(10)
        });
        let concurrency = was_held || was_awaited || matches!(standing, Standing::Held { reason: HoldReason::Concurrency, .. });
        self.visit("standing", &name);
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.seen(self, number, standing, concurrency);
        self.checker = checker;
        verdict
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

/// Whose turn has come.
fn turns(deed: &Deed) -> Vec<usize> {
    match deed {
        Deed::Send(sending) if !sending.errand.is_test => vec![store::row_number(sending.errand.seq)],
        Deed::ReadBodies { wanted, .. } => wanted.iter().map(|wanted| store::row_number(wanted.seq)).collect(),
        Deed::Send(_)
        | Deed::FindWork
        | Deed::TakeUp { .. }
        | Deed::Read { .. }
        | Deed::Record { .. }
        | Deed::CompareVersions { .. }
        | Deed::Restamp { .. }
        | Deed::LookUp { .. }
        | Deed::See { .. }
        | Deed::Show(_)
        | Deed::Count(_)
        | Deed::Notice(_)
        | Deed::HandOver { .. } => vec![],
    }
}

pub(crate) fn endpoint_number(id: EndpointId) -> usize {
    usize::try_from(id.as_u128() - 1).expect("a small number")
}
