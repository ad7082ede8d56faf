//! Compares what happened with the promises, from the outside.
//!
//! It knows rows, configurations, hits and answers, and works out for itself what was allowed. It asks the core only for
//! what a policy says in words (the bounds of a delay, whether it is quiet now), never for a decision.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use posthaste_core::admission::DeliveryStatus;
use posthaste_core::bucket::RateLimit;
use posthaste_core::circuit::{Breaker, CircuitPolicy};
use posthaste_core::delivery::{DeadReason, Outcome, State, Verdict};
use posthaste_core::endpoint::Status;
use posthaste_core::event::Event;
use posthaste_core::quiet_hours::Phase;
use posthaste_core::scheduler::{LaneConfig, LaneMemory};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::Mode;
use posthaste_store::{Record, StoredEndpoint};

use crate::world::{Endpoint, Member, Row, World};

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Such as `I23`.
    pub promise: &'static str,
    pub what: String,
}

/// One turn of a delivery, and the request that comes of it.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) row: usize,
    pub(crate) endpoint: usize,
    pub(crate) attempt: u32,
    pub(crate) is_probe: bool,
    pub(crate) member: Member,
    /// When it was decided that it goes. Its payload may have to be read first.
    pub(crate) turned_at: Timestamp,
    /// As time passes.
    pub(crate) started: Timestamp,
    pub(crate) timeout: Duration,
}

#[derive(Default)]
pub(crate) struct Checker {
    rows: BTreeMap<usize, RowHistory>,
    lanes: BTreeMap<usize, LaneHistory>,
    tenants: BTreeMap<usize, Shape>,
    /// Second and later tries of a node, while there is an incident.
    retries: BTreeMap<Member, Shape>,
    replays: BTreeMap<ReplayStepper, Shape>,
}

/// A replay, by its endpoint and when it was asked for, and the incarnation of the node that steps it.
type ReplayStepper = (usize, Timestamp, (usize, u64));

/// What has happened to one delivery.
#[derive(Clone, Default)]
struct RowHistory {
    hits: u32,
    /// When its owner heard how the last hit ended, its outcome, and its attempt number.
    last: Option<(Timestamp, Outcome, u32)>,
    /// A success that was not recorded because its owner died; then another hit is allowed.
    lost_success: bool,
    succeeded: bool,
    /// Owners that died while a hit was on its way or not yet recorded.
    crashes: u32,
    /// Since when whoever asked was told that it is due and held by nothing.
    pending_since: Option<Timestamp>,
    /// Somebody was told that it is called off.
    called_off: bool,
    /// What its last answer has led to, by the attempt: that is what has to be written down with it.
    circuit_after: Option<(u32, Circuit, u32)>,
}

#[derive(Clone, Default)]
struct LaneHistory {
    shape: Shape,
    /// In the order in which answers came to the owner.
    failures_in_a_row: u32,
    circuit: Circuit,
    /// All attempts, whatever they say about the endpoint.
    failed_attempts_in_a_row: u32,
    failing_since: Option<Timestamp>,
    held_until: Option<Timestamp>,
    /// Successes since the circuit has closed, until they are as many as may be in flight.
    slow_start: Option<u32>,
    /// When a hit last started or ended there.
    last_hit: Option<Timestamp>,
    /// When the present owner took over, or ran again after it was frozen.
    last_owner: Option<Timestamp>,
    /// When it ran again after it was frozen; what has changed since then it hears at that moment.
    thawed_at: Option<Timestamp>,
    /// When the last probe of an open circuit was sent, whoever owned it then.
    probed_at: Option<Timestamp>,
    /// When its timeout was last made shorter.
    shortened_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Circuit {
    #[default]
    Closed,
    /// Not before this moment may a probe go.
    Open {
        probe_from: Timestamp,
    },
    Probing,
}

/// The linear check of a token bucket: x = hits − rate × time, against its lowest so far.
#[derive(Clone, Default)]
struct Shape {
    limit: Option<RateLimit>,
    hits: u32,
    origin: Option<Timestamp>,
    lowest: f64,
}

impl Shape {
    fn hit(&mut self, now: Timestamp, limit: Option<RateLimit>, slack: Duration) -> bool {
        if self.limit != limit {
            *self = Shape { limit, ..Shape::default() };
        }
        let Some(limit) = limit else { return true };
        let origin = *self.origin.get_or_insert(now);
        self.hits += 1;
        let x = f64::from(self.hits) - f64::from(limit.max_per_minute()) * now.since(origin).as_secs_f64() / 60.0;
        self.lowest = if self.hits == 1 { x } else { self.lowest.min(x) };
        // A millisecond of slack, and what clocks may differ by.
        let slack = f64::from(limit.max_per_minute()) / 60.0 * (slack + Duration::from_millis(1)).as_secs_f64();
        x - self.lowest + 1.0 <= f64::from(limit.burst_capacity()) + slack + 1e-6
    }
}

/// How long news may take to reach an owner: a sweep, and the reads that follow.
const NEWS: Duration = Duration::from_secs(3);
/// How long what a failed call was to bring may be late: two more tries, and what follows from them.
const AFTER_FAILURE: Duration = Duration::from_secs(4);
/// How long something may be due and held by nothing once its owner has heard of it.
const PENDING_MAX: Duration = Duration::from_secs(1);
/// The same where its owner has to find it by itself: a sweep, and the reads that follow.
const UNHEARD_MAX: Duration = Duration::from_secs(4);
/// How long a change may take to be in force.
const CHANGES: Duration = Duration::from_secs(1);

impl Checker {
    /// It is decided that a delivery goes now. Answers whether it is the probe of an open circuit.
    pub(crate) fn turn_comes(&mut self, world: &World, hit: &Hit) -> Result<bool, Violation> {
        let now = world.now;
        let row = &world.store.rows[hit.row];
        let endpoint = &world.endpoints[hit.endpoint];
        let history = self.rows.entry(hit.row).or_default();
        let fail =
            |promise, what: String| Err(Violation { promise, what: format!("row {} at {}: {what}", hit.row, now.to_rfc3339()) });
        let Some(due) = row.due() else { return fail("I14", format!("sent although it has ended: {:?}", row.state)) };
        // What is to go at once is due by the clock of its publisher.
        let slack = if row.is_later { Duration::ZERO } else { world.clock_slack };
        if now + slack < due {
            return fail(if row.attempts == 0 { "I14" } else { "I12" }, format!("sent before it was due at {}", due.to_rfc3339()));
        }
        if row.deliver_at.is_some_and(|at| now < at) && !row.is_hurried {
            return fail("I14", "sent before deliver_at".to_owned());
        }
        if row.expires_at.is_some_and(|at| at <= now) {
            return fail("A6", "sent although it has expired".to_owned());
        }
        if let Some((ended, outcome, attempt)) = &history.last
            && *attempt == row.attempts
            && let Some((low, _)) = endpoint.config.retry.delay_bounds(row.attempts)
        {
            let asked = match outcome {
                Outcome::Answered { status: 429 | 503, retry_after: Some(wait) } => *wait,
                Outcome::Answered { .. } | Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => Duration::ZERO,
            };
            if now.since(*ended) + Duration::from_millis(1) < low.max(asked) {
                return fail("I12", format!("tried again after {:?}, at least {:?}", now.since(*ended), low.max(asked)));
            }
        }
        for other in world.in_flight.values().filter(|other| other.endpoint == hit.endpoint) {
            let same_owner = other.member == hit.member;
            if other.row == hit.row && same_owner {
                return fail("I13", "two requests of one delivery at once".to_owned());
            }
            if row.key.is_some() && world.store.rows[other.row].key == row.key && same_owner {
                return fail("I20", "two requests of one key at once".to_owned());
            }
        }
        // Of two that were published at the same time nobody can say which was first.
        if let Some(older) = world.store.older_of_key(hit.row).find(|older| older.committed_at < row.numbered_at) {
            return fail("I20", format!("overtakes {} of its key", older.seq));
        }
        let is_probe = self.lane(hit.endpoint).is_some_and(|lane| lane.circuit != Circuit::Closed);
        self.check_order(world, hit, row, endpoint, is_probe)?;
        self.check_holds(world, hit, row, endpoint)?;
        Ok(is_probe)
    }

    /// A replay makes a row: no more than its rate, and one minute's worth that it has missed.
    pub(crate) fn replay_made(&mut self, now: Timestamp, stepper: ReplayStepper, rate_per_minute: u32) -> Result<(), Violation> {
        let limit = RateLimit::new(rate_per_minute, rate_per_minute + 1).expect("a rate that was drawn");
        if self.replays.entry(stepper).or_default().hit(now, Some(limit), Duration::ZERO) {
            return Ok(());
        }
        let what = format!("a replay at endpoint {} makes more than {rate_per_minute} a minute at {}", stepper.0, now.to_rfc3339());
        Err(Violation { promise: "E2", what })
    }

    /// The request leaves.
    pub(crate) fn hit_starts(&mut self, world: &World, hit: &Hit, event: &Event, target: &StoredEndpoint) -> Result<(), Violation> {
        let now = world.now;
        let row = &world.store.rows[hit.row];
        let endpoint = &world.endpoints[hit.endpoint];
        let is_fresh = self.is_fresh(world, hit.endpoint, endpoint, hit.turned_at);
        let history = self.rows.entry(hit.row).or_default();
        let fail =
            |promise, what: String| Err(Violation { promise, what: format!("row {} at {}: {what}", hit.row, now.to_rfc3339()) });
        let promised = world.store.promised.get(&row.seq);
        let is_promised = promised.is_some_and(|promised| promised.by == hit.member && now < promised.until);
        if world.owner_of(hit.endpoint) != Some(hit.member) && !is_promised {
            return fail("I34", "sent by a node that has lost it".to_owned());
        }
        if history.called_off {
            return fail("I14", "sent although somebody was told that it is called off".to_owned());
        }
        if row.due().is_none() {
            return fail("I14", format!("sent although it has ended: {:?}", row.state));
        }
        if event != &*row.event {
            return fail("I15", format!("sent with the payload of {}", event.id));
        }
        if history.succeeded && !history.lost_success {
            return fail("I9", "sent again after a success".to_owned());
        }
        if hit.attempt != row.attempts + 1 {
            return fail("I10", format!("attempt {} after {} recorded ones", hit.attempt, row.attempts));
        }
        if hit.attempt > endpoint.config.retry.max_attempts() && endpoint.config.retry == endpoint.before.config.retry {
            return fail("I10", format!("attempt {} of at most {}", hit.attempt, endpoint.config.retry.max_attempts()));
        }
        history.hits += 1;
        if history.hits > row.attempts + 1 + history.crashes {
            return fail(
                "I10",
                format!("{} hits for {} recorded attempts and {} crashes", history.hits, row.attempts, history.crashes),
            );
        }
        if hit.is_probe {
            let lane = self.lanes.entry(hit.endpoint).or_default();
            let interval = endpoint.config.circuit.probe_interval();
            // It was decided a moment before it is sent.
            if let Some(before) = lane.probed_at.replace(hit.turned_at)
                && hit.turned_at.since(before) < interval
            {
                return fail("I27", format!("probed again after {:?}", hit.turned_at.since(before)));
            }
        }
        let url = &target.endpoint.url;
        if *url != endpoint.url && !(is_fresh && *url == endpoint.before.url) {
            return fail("I28", format!("sent to {url}, which is not where it belongs"));
        }
        let is_right = |mode| match mode {
            Mode::Manual(pinned) => hit.timeout == pinned.as_duration(),
            Mode::Adaptive => (Duration::from_secs(1)..=Duration::from_secs(30)).contains(&hit.timeout),
        };
        let may_be_before = is_fresh && is_right(endpoint.before.mode);
        if !is_right(endpoint.mode) && !may_be_before {
            return fail("I30", format!("sent with a timeout of {:?} under {:?}", hit.timeout, endpoint.mode));
        }
        Ok(())
    }

    /// A change is in force a second after it was answered; before that either setting may be. Whoever was frozen, or has
    /// lost its lease, hears of it when it runs again.
    fn is_fresh(&self, world: &World, number: usize, endpoint: &Endpoint, at: Timestamp) -> bool {
        if endpoint.is_applied {
            return false;
        }
        // A store that fails is asked again a moment later.
        if at.since(world.store_failed_at) < AFTER_FAILURE {
            return true;
        }
        let has_thawed = self.lane(number).and_then(|lane| lane.thawed_at).is_some_and(|thawed| at.since(thawed) < CHANGES);
        at.since(endpoint.changed_at) < CHANGES || has_thawed
    }

    /// I22, and that nothing which could go is hidden by what cannot.
    fn check_order(&self, world: &World, hit: &Hit, row: &Row, endpoint: &Endpoint, is_probe: bool) -> Result<(), Violation> {
        let now = world.now;
        let is_quiet = |row: &Row| {
            let held = |config: &LaneConfig| {
                config.schedule.as_ref().is_some_and(|schedule| {
                    schedule.holds(&row.event_type, row.is_priority) && matches!(schedule.at(now), Phase::Quiet { .. })
                })
            };
            held(&endpoint.config) || now.since(endpoint.changed_at) < NEWS && held(&endpoint.before.config)
        };
        let is_catching_up = self.lane(hit.endpoint).and_then(|lane| lane.last_owner).is_some_and(|at| now.since(at) < NEWS);
        let has_failed = now.since(world.store_failed_at) < NEWS + AFTER_FAILURE;
        if row.key.is_some() || now.since(endpoint.changed_at) < NEWS || is_catching_up || has_failed {
            return Ok(());
        }
        // A replay stands where it was asked for.
        let age = |row: &Row| (row.replayed_at.unwrap_or(row.timestamp), row.seq);
        let wanted = world.wanted();
        let overtaken = world.store.waiting(row.endpoint).find(|(number, other)| {
            other.key.is_none()
                && other.due().is_some_and(|due| due + NEWS < now)
                && !other.is_later
                && other.committed_at + NEWS < now
                && self.lane(hit.endpoint).is_none_or(|lane| lane.circuit == Circuit::Closed)
                && !world.in_flight.values().any(|flight| flight.row == *number)
                && !is_quiet(other)
                // It is being ended instead.
                && !other.is_damaged
                && !other.is_erased
                && !wanted.contains(number)
                && !world.turning.contains(number)
                && endpoint.config.subscription.covers(&other.event_type)
                && other.expires_at.is_none_or(|at| now < at)
                && self.rows.get(number).is_none_or(|history| history.hits == 0)
                && (other.is_priority, Reverse(age(other))) > (row.is_priority, Reverse(age(row)))
        });
        match overtaken {
            Some((number, _)) if !is_probe => Err(Violation {
                promise: "I22",
                what: format!(
                    "row {} of {} goes at {} before row {number} of {}, which is older or more urgent",
                    hit.row,
                    row.timestamp.to_rfc3339(),
                    now.to_rfc3339(),
                    world.store.rows[number].timestamp.to_rfc3339()
                ),
            }),
            _ => Ok(()),
        }
    }

    fn lane(&self, endpoint: usize) -> Option<&LaneHistory> {
        self.lanes.get(&endpoint)
    }

    fn check_holds(&mut self, world: &World, hit: &Hit, row: &Row, endpoint: &Endpoint) -> Result<(), Violation> {
        let now = world.now;
        let fail =
            |promise, what: String| Err(Violation { promise, what: format!("row {} at {}: {what}", hit.row, now.to_rfc3339()) });
        let is_fresh = self.is_fresh(world, hit.endpoint, endpoint, now);
        let forbids = |config: &LaneConfig| -> Option<(&'static str, &'static str)> {
            if config.status.at(now) != Status::Active {
                return Some(("I28", "sent to an endpoint that is paused or disabled"));
            }
            if !config.subscription.covers(&row.event_type) {
                return Some(("I28", "sent to an endpoint that has unsubscribed"));
            }
            let schedule = config.schedule.as_ref()?;
            let is_quiet = schedule.holds(&row.event_type, row.is_priority) && matches!(schedule.at(now), Phase::Quiet { .. });
            is_quiet.then_some(("I26", "sent in quiet hours"))
        };
        if let Some((promise, what)) = forbids(&endpoint.config)
            && !(is_fresh && forbids(&endpoint.before.config).is_none())
        {
            return fail(promise, what.to_owned());
        }
        let same_epoch = |other: &&Hit| other.member == hit.member;
        let lane_count = world.in_flight.values().filter(same_epoch).filter(|other| other.endpoint == hit.endpoint).count();
        let cap = endpoint.config.max_in_flight.max(if is_fresh { endpoint.before.config.max_in_flight } else { 0 });
        if lane_count >= cap as usize {
            let others = world.in_flight.values().filter(same_epoch).filter(|other| other.endpoint == hit.endpoint);
            let others: Vec<String> = others.map(|other| format!("{} since {}", other.row, other.turned_at.to_rfc3339())).collect();
            return fail("I25", format!("{} in flight at an endpoint that takes {cap}: rows {others:?}", lane_count + 1));
        }
        let tenant = &world.tenants[endpoint.tenant];
        let tenant_count = world
            .in_flight
            .values()
            .filter(same_epoch)
            .filter(|other| world.endpoints[other.endpoint].tenant == endpoint.tenant)
            .count();
        if tenant_count >= tenant.config.share.max_in_flight() as usize {
            return fail(
                "I25",
                format!("{} in flight of a tenant that may have {}", tenant_count + 1, tenant.config.share.max_in_flight()),
            );
        }
        let node_count = world.in_flight.values().filter(same_epoch).count();
        if node_count >= world.limits.in_flight_max as usize {
            return fail("I25", format!("{} in flight on a node", node_count + 1));
        }
        // A tenant has at most as many as are free, times its weight: so that a newcomer always finds room. Of what goes
        // at the same moment nobody can say which went first.
        let is_before =
            |other: &&Hit| world.endpoints[other.endpoint].tenant == endpoint.tenant || !world.turning.contains(&other.row);
        let free = world.limits.in_flight_max as usize - world.in_flight.values().filter(same_epoch).filter(is_before).count();
        if tenant_count / tenant.config.share.weight() as usize + 1 > free {
            return fail("I36", format!("a tenant with {tenant_count} in flight takes one more of {free} slots"));
        }
        let retries = self.retries.entry(hit.member).or_default();
        if hit.attempt > 1 && !retries.hit(now, world.limits.retries, world.clock_slack) {
            return fail("D5", "more retries than the cap for incidents allows".to_owned());
        }
        let shape = self.tenants.entry(endpoint.tenant).or_default();
        if !shape.hit(now, tenant.config.rate_limit, world.clock_slack) {
            return fail("I23", "more than the tenant's bucket allows".to_owned());
        }
        let lane = self.lanes.entry(hit.endpoint).or_default();
        lane.last_hit = Some(now);
        let limit = lane.shape.limit;
        if !lane.shape.hit(now, limit.or(endpoint.config.rate_limit.filter(|_| !is_fresh)), world.clock_slack) {
            return fail("I23", format!("more than the bucket allows: {limit:?}"));
        }
        if lane.slow_start.is_some_and(|successes| lane_count > successes as usize) {
            return fail("B4", format!("{} in flight so soon after the circuit has closed", lane_count + 1));
        }
        if lane.held_until.is_some_and(|until| now < until) {
            return fail("I12", "sent although the receiver asked everybody to wait".to_owned());
        }
        match lane.circuit {
            Circuit::Closed => {}
            Circuit::Open { probe_from } if probe_from <= now => lane.circuit = Circuit::Probing,
            Circuit::Open { .. } => return fail("I27", "sent although the circuit is open".to_owned()),
            Circuit::Probing => return fail("I27", "sent although a probe is on its way".to_owned()),
        }
        Ok(())
    }

    /// A token was spent and nothing was sent. If it was to be the probe, it has proved nothing.
    pub(crate) fn unsendable(&mut self, endpoint: usize, is_probe: bool, now: Timestamp, circuit: &CircuitPolicy) {
        let lane = self.lanes.entry(endpoint).or_default();
        lane.last_hit = Some(now);
        if is_probe {
            lane.circuit = Circuit::Open { probe_from: now + circuit.probe_interval() };
        }
    }

    /// A test-send takes a token like everybody else.
    pub(crate) fn test_send(&mut self, world: &World, endpoint: usize) -> Result<(), Violation> {
        let tenant = world.endpoints[endpoint].tenant;
        let lane = self.lanes.entry(endpoint).or_default();
        lane.last_hit = Some(world.now);
        let limit = lane.shape.limit;
        let is_shaped = lane.shape.hit(world.now, limit, world.clock_slack)
            && self.tenants.entry(tenant).or_default().hit(world.now, world.tenants[tenant].config.rate_limit, world.clock_slack);
        if is_shaped {
            Ok(())
        } else {
            Err(Violation { promise: "I23", what: format!("a test-send without a token at {}", world.now.to_rfc3339()) })
        }
    }

    pub(crate) fn hit_ends(&mut self, world: &World, hit: &Hit, outcome: &Outcome) -> Result<(), Violation> {
        let took = world.real.since(hit.started);
        if took > hit.timeout + Duration::from_secs(1) {
            return Err(Violation { promise: "I30", what: format!("row {}: {took:?} under {:?}", hit.row, hit.timeout) });
        }
        // A slot has become free.
        self.lanes.entry(hit.endpoint).or_default().last_hit = Some(world.now);
        let history = self.rows.entry(hit.row).or_default();
        history.succeeded |= matches!(outcome, Outcome::Answered { status: 200..=299, .. });
        Ok(())
    }

    /// A timeout was computed anew: it keeps its bounds and falls at most weekly.
    pub(crate) fn timeout_computed(
        &mut self,
        endpoint: usize,
        now: Timestamp,
        before: Duration,
        after: Duration,
    ) -> Result<(), Violation> {
        let lane = self.lanes.entry(endpoint).or_default();
        let fail = |what: String| Err(Violation { promise: "I30", what: format!("endpoint {endpoint}: {what}") });
        if !(Duration::from_secs(1)..=Duration::from_secs(30)).contains(&after) {
            return fail(format!("{after:?} is out of bounds"));
        }
        if after < before {
            if lane.shortened_at.is_some_and(|last| now.since(last) < Duration::from_hours(7 * 24)) {
                return fail("shortened twice in a week".to_owned());
            }
            if after * 4 < before * 3 {
                return fail(format!("from {before:?} to {after:?} in a first step"));
            }
            lane.shortened_at = Some(now);
        }
        if after > before {
            // The way down begins anew.
            lane.shortened_at = None;
        }
        Ok(())
    }

    /// The owner has heard the answer and decided.
    pub(crate) fn decided(
        &mut self,
        world: &World,
        hit: &Hit,
        outcome: &Outcome,
        state: State,
        record: &Record,
    ) -> Result<(), Violation> {
        let disables_endpoint = record.disables_endpoint.is_some();
        let verdict = match state {
            State::Waiting { due } => Verdict::RetryAt(due),
            State::Delivered { .. } => Verdict::Delivered,
            State::Dead { reason, .. } => Verdict::Dead(reason),
            State::Cancelled { .. } => {
                let what = format!("row {}: {outcome:?} led to {state:?}", hit.row);
                return Err(Violation { promise: "I11", what });
            }
        };
        let now = world.now;
        let endpoint = &world.endpoints[hit.endpoint];
        let fail =
            |promise, what: String| Err(Violation { promise, what: format!("row {} at {}: {what}", hit.row, now.to_rfc3339()) });
        let promised = world.store.promised.get(&world.store.rows[hit.row].seq);
        let is_owner = world.owner_of(hit.endpoint) == Some(hit.member);
        // What others do not accept any more changes nothing.
        if is_owner || promised.is_some_and(|promised| promised.by == hit.member) {
            self.rows.entry(hit.row).or_default().last = Some((now, *outcome, hit.attempt));
        }
        let policy = &endpoint.config.retry;
        let is_last = hit.attempt >= policy.max_attempts();
        let expected = match outcome {
            Outcome::Answered { status: 200..=299, .. } => Some(Verdict::Delivered),
            Outcome::Answered { status, .. }
                if matches!(status, 408 | 409 | 425 | 429 | 500..) || policy.also_statuses().contains(status) =>
            {
                None
            }
            Outcome::Answered { status: 410, .. } => Some(Verdict::Dead(DeadReason::EndpointGone)),
            Outcome::Answered { .. } => Some(Verdict::Dead(DeadReason::PermanentFailure)),
            Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => None,
        };
        let is_right = match (expected, verdict) {
            (Some(expected), verdict) => expected == verdict,
            (None, Verdict::RetryAt(_)) => !is_last,
            (None, Verdict::Dead(DeadReason::MaxAttemptsExceeded)) => is_last,
            (None, Verdict::Dead(_) | Verdict::Delivered) => false,
        };
        if !is_right {
            return fail("I11", format!("{outcome:?} at attempt {} led to {:?}", hit.attempt, verdict));
        }
        if let Verdict::RetryAt(at) = verdict
            && let Some((low, high)) = policy.delay_bounds(hit.attempt)
        {
            let asked = match outcome {
                Outcome::Answered { status: 429 | 503, retry_after: Some(wait) } => *wait,
                Outcome::Answered { .. } | Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => Duration::ZERO,
            };
            let wait = at.since(now);
            if wait < low.max(asked) || wait > high.max(asked) {
                return fail("I12", format!("waits {wait:?}, from {:?} to {:?} is right", low.max(asked), high.max(asked)));
            }
        }
        // What a leaver still hears counts for its delivery alone.
        if !is_owner {
            return Ok(());
        }
        let lane = self.lanes.entry(hit.endpoint).or_default();
        if let Outcome::Answered { status: 429 | 503, retry_after: Some(wait) } = outcome {
            lane.held_until = lane.held_until.max(Some(now + (*wait).min(Duration::from_mins(15))));
        }
        let signal = match outcome {
            Outcome::Answered { status: 200..=299, .. } => Some(true),
            Outcome::Answered { status: 408 | 425 | 429 | 500..=599, .. } | Outcome::NotSent(_) | Outcome::Silent(_) => Some(false),
            Outcome::Answered { .. } | Outcome::Blocked => None,
        };
        let circuit = &endpoint.config.circuit;
        let probe_from = now + circuit.probe_interval();
        let circuit_before = lane.circuit;
        match (lane.circuit, signal) {
            (Circuit::Closed, Some(true)) => {
                lane.failures_in_a_row = 0;
                // Until its owner hears of a change, the cap before it is in force.
                let is_fresh = now.since(endpoint.changed_at) < Duration::from_secs(1);
                let before = if is_fresh { endpoint.before.config.max_in_flight } else { u32::MAX };
                let cap = endpoint.config.max_in_flight.min(before);
                lane.slow_start = lane.slow_start.map(|successes| successes + 1).filter(|successes| *successes < cap);
            }
            (Circuit::Closed, Some(false)) => {
                lane.failures_in_a_row += 1;
                if lane.failures_in_a_row >= circuit.failure_threshold() {
                    lane.circuit = Circuit::Open { probe_from };
                    lane.slow_start = None;
                }
            }
            (Circuit::Probing, Some(true)) if hit.is_probe => {
                lane.circuit = Circuit::Closed;
                lane.failures_in_a_row = 0;
                lane.slow_start = Some(0);
            }
            (Circuit::Probing, Some(false) | None) if hit.is_probe => lane.circuit = Circuit::Open { probe_from },
            (Circuit::Closed | Circuit::Open { .. } | Circuit::Probing, _) => {}
        }
        if lane.circuit != circuit_before && record.lane.is_none() {
            return fail("I27", "what its answer has done to the circuit is not written down".to_owned());
        }
        if lane.circuit == Circuit::Closed {
            lane.probed_at = None;
        }
        let circuit_after = (hit.attempt, lane.circuit, lane.failures_in_a_row);
        self.rows.entry(hit.row).or_default().circuit_after = Some(circuit_after);
        if verdict == Verdict::Delivered {
            lane.failed_attempts_in_a_row = 0;
            lane.failing_since = None;
        } else {
            lane.failed_attempts_in_a_row += 1;
            lane.failing_since.get_or_insert(now);
        }
        let is_gone = verdict == Verdict::Dead(DeadReason::EndpointGone);
        let has_failed_enough = lane.failed_attempts_in_a_row >= 100
            || lane.failing_since.is_some_and(|since| now.since(since) >= Duration::from_hours(120));
        if disables_endpoint && !is_gone && !has_failed_enough {
            return fail("I29", format!("disabled after {} failures", lane.failed_attempts_in_a_row));
        }
        if is_gone && !disables_endpoint {
            return fail("I11", "a 410 did not disable the endpoint".to_owned());
        }
        Ok(())
    }

    /// The record of an attempt is committed: what its answer has done to the circuit is written down with it.
    pub(crate) fn recorded(&mut self, row: usize, attempt: u32, stored: Breaker, now: Timestamp) -> Result<(), Violation> {
        let Some((decided, circuit, failures)) = self.rows.entry(row).or_default().circuit_after else { return Ok(()) };
        let is_right = match (circuit, stored) {
            (Circuit::Closed, Breaker::Closed { failures: stored }) => stored == failures,
            // A turn that came to nothing may have put the next probe off.
            (Circuit::Open { probe_from }, Breaker::Open { probe_at, .. }) => probe_from <= probe_at,
            (Circuit::Probing, Breaker::Open { .. } | Breaker::HalfOpen { .. }) => true,
            (Circuit::Closed, Breaker::Open { .. } | Breaker::HalfOpen { .. })
            | (Circuit::Open { .. }, Breaker::Closed { .. } | Breaker::HalfOpen { .. })
            | (Circuit::Probing, Breaker::Closed { .. }) => false,
        };
        if decided != attempt || is_right {
            return Ok(());
        }
        let what = format!("row {row} at {}: {stored:?} is written after {failures} failures", now.to_rfc3339());
        Err(Violation { promise: "I27", what })
    }

    /// Somebody was told that it will not be sent.
    pub(crate) fn called_off(&mut self, row: usize) {
        self.rows.entry(row).or_default().called_off = true;
    }

    /// Somebody wanted it to go at once: it need not wait for its next try.
    pub(crate) fn hurried(&mut self, row: usize) {
        self.rows.entry(row).or_default().last = None;
    }

    pub(crate) fn limit_changed(&mut self, endpoint: usize, limit: Option<RateLimit>) {
        let lane = self.lanes.entry(endpoint).or_default();
        if lane.shape.limit != limit {
            lane.shape = Shape { limit, ..Shape::default() };
        }
    }

    /// Whatever this owner had on its way is lost.
    pub(crate) fn owner_died(&mut self, endpoint: usize) {
        self.lanes.entry(endpoint).or_default().held_until = None;
    }

    /// Nothing is left to send there: whatever comes next is no backlog.
    pub(crate) fn drained(&mut self, endpoint: usize) {
        self.lanes.entry(endpoint).or_default().slow_start = None;
    }

    /// For each row of the dead owner that was on its way or not yet recorded.
    pub(crate) fn lost(&mut self, row: usize) {
        let history = self.rows.entry(row).or_default();
        history.crashes += 1;
        history.lost_success = true;
        history.last = None;
    }

    /// An owner that was frozen hears all of its news at once.
    pub(crate) fn catching_up(&mut self, endpoint: usize, now: Timestamp) {
        let lane = self.lanes.entry(endpoint).or_default();
        lane.last_owner = Some(now);
        lane.thawed_at = Some(now);
    }

    /// A new owner starts with what was written down, or with what the one before knew.
    pub(crate) fn taken_over(&mut self, endpoint: usize, memory: LaneMemory, now: Timestamp) {
        let breaker = memory.breaker;
        let lane = self.lanes.entry(endpoint).or_default();
        lane.last_owner = Some(now);
        lane.slow_start = memory.slow_start;
        lane.held_until = memory.held_until;
        lane.failures_in_a_row = breaker.consecutive_failures();
        lane.circuit = match (breaker, lane.circuit) {
            (Breaker::Closed { .. }, _) => Circuit::Closed,
            (Breaker::Open { probe_at, .. }, _) => Circuit::Open { probe_from: probe_at },
            (Breaker::HalfOpen { probe_started, .. }, _) => Circuit::Open { probe_from: probe_started },
        };
    }

    /// Somebody has asked after a delivery.
    pub(crate) fn seen(
        &mut self,
        world: &World,
        number: usize,
        standing: DeliveryStatus,
        is_concurrency: bool,
    ) -> Result<(), Violation> {
        let row = &world.store.rows[number];
        let history = self.rows.entry(number).or_default();
        let tenant_hit = (0..world.endpoints.len())
            .filter(|other| world.endpoints[*other].tenant == world.endpoints[row.endpoint].tenant)
            .filter_map(|other| self.lanes.get(&other)?.last_hit)
            .max();
        let lane = self.lanes.entry(row.endpoint).or_default();
        let is_idle =
            !world.in_flight.values().any(|hit| world.endpoints[hit.endpoint].tenant == world.endpoints[row.endpoint].tenant);
        // Whoever asks is told that it waits for a slot if it does.
        let at_endpoint =
            world.in_flight.values().filter(|hit| hit.endpoint == row.endpoint && Some(hit.member) == world.owner_of(row.endpoint));
        let is_certain = world.now.since(world.endpoints[row.endpoint].changed_at) > AFTER_FAILURE
            && world.now.since(world.store_failed_at) > AFTER_FAILURE;
        if standing == DeliveryStatus::Pending
            && is_certain
            && at_endpoint.count() >= world.endpoints[row.endpoint].config.max_in_flight as usize
        {
            let what = format!("row {number} at {}: waits for a slot and is said to wait for nothing", world.now.to_rfc3339());
            return Err(Violation { promise: "I53", what });
        }
        if standing != DeliveryStatus::Pending || is_concurrency || !is_idle || world.endpoints[row.endpoint].is_unreadable {
            history.pending_since = None;
            return Ok(());
        }
        let since = *history.pending_since.get_or_insert(world.now);
        // Between two looks it may have been held by something that has ended by itself.
        let endpoint = &world.endpoints[row.endpoint];
        let paused_until = match endpoint.config.status {
            Status::Paused { until } => until,
            Status::Active | Status::Disabled => None,
        };
        let was_quiet = endpoint.config.schedule.as_ref().is_some_and(|schedule| {
            schedule.holds(&row.event_type, row.is_priority)
                && matches!(schedule.at(world.now - Duration::from_secs(10)), Phase::Quiet { .. })
        });
        if was_quiet {
            return Ok(());
        }
        let failed_until = world.store_failed_at + AFTER_FAILURE;
        let news = [Some(endpoint.changed_at), Some(row.committed_at), Some(failed_until)];
        let since = [lane.last_hit, lane.last_owner, lane.held_until, tenant_hit, paused_until]
            .into_iter()
            .chain(news)
            .flatten()
            .fold(since, Timestamp::max);
        let most = if row.is_heard_of { PENDING_MAX } else { UNHEARD_MAX };
        if world.now.since(since) > most {
            return Err(Violation {
                promise: "I6",
                what: format!(
                    "row {number} of {} at {}: due, held by nothing, and not sent since {}; {:?}, key {:?}, {} attempts",
                    endpoint.id,
                    world.now.to_rfc3339(),
                    since.to_rfc3339(),
                    row.class,
                    row.key,
                    row.attempts
                ),
            });
        }
        Ok(())
    }

    /// Everything has healed and nothing is left to happen.
    pub(crate) fn at_the_end(rows: &[Row], endpoints: &[Endpoint]) -> Result<(), Violation> {
        let mut stuck = BTreeSet::new();
        for (number, row) in rows.iter().enumerate() {
            let endpoint = &endpoints[row.endpoint];
            if row.due().is_some() && (endpoint.config.status == Status::Active || endpoint.deleted_at.is_some()) {
                stuck.insert(number);
            }
        }
        match stuck.first() {
            None => Ok(()),
            Some(number) => Err(Violation {
                promise: "I6",
                what: format!("row {number} and {} more never ended: {:?}", stuck.len() - 1, rows[*number]),
            }),
        }
    }
}
