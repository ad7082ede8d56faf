//! One endpoint with something to send: its window, its bucket, its breaker, what is in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bucket::{Bucket, RateLimit};
use crate::circuit::{Breaker, CircuitPolicy, Permission, Signal, Transition};
use crate::delivery::{self, CancelReason, DeadReason, Outcome, State, Verdict, judge, lane_hold};
use crate::endpoint::{Status, Subscription};
use crate::health::{DisableReason, Health, HealthChange, HealthPolicy, HealthSignal};
use crate::id::{DeliveryId, EndpointId};
use crate::plant::{self, Plant};
use crate::quiet_hours::{Phase, QuietHours};
use crate::retry::RetryPolicy;
use crate::text::OrderingKey;
use crate::time::Timestamp;

use super::line::Line;
use super::window::{Class, Entry, EntryPlace, Window, WindowQuery};

/// What is said about an endpoint, as far as scheduling has to know it.
#[derive(Clone, PartialEq, Debug)]
pub struct LaneConfig {
    pub status: Status,
    pub subscription: Subscription,
    pub max_in_flight: u32,
    pub rate_limit: Option<RateLimit>,
    pub schedule: Option<QuietHours>,
    pub circuit: CircuitPolicy,
    pub retry: RetryPolicy,
    pub health: HealthPolicy,
}

impl Default for LaneConfig {
    fn default() -> LaneConfig {
        LaneConfig {
            status: Status::Active,
            subscription: Subscription::default(),
            max_in_flight: 16,
            rate_limit: None,
            schedule: None,
            circuit: CircuitPolicy::default(),
            retry: RetryPolicy::default(),
            health: HealthPolicy::default(),
        }
    }
}

/// What a lane knows that its configuration does not say. Survives a clean hand-over whole, and a crash in part.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LaneMemory {
    pub breaker: Breaker,
    pub bucket: Bucket,
    pub health: Health,
    /// A receiver asked all of us to wait.
    pub held_until: Option<Timestamp>,
    /// After a circuit has closed: successes since. So many and one more may be in flight, until the backlog is gone.
    pub slow_start: Option<u32>,
}

impl LaneMemory {
    /// For an endpoint that has just been made.
    pub fn new() -> LaneMemory {
        LaneMemory {
            breaker: Breaker::default(),
            bucket: Bucket::full(),
            health: Health::default(),
            held_until: None,
            slow_start: None,
        }
    }

    /// For whoever takes over from an owner that died: what was spent is not known, so nothing is there to spend, and a
    /// probe that was on its way counts as made.
    #[must_use]
    pub fn after_a_crash(self, now: Timestamp, config: &LaneConfig) -> LaneMemory {
        let bucket = match config.rate_limit {
            Some(_) if plant::is(Plant::FullBucketAfterCrash) => Bucket::full(),
            Some(limit) => Bucket::empty(now, limit),
            None => self.bucket,
        };
        LaneMemory { bucket, ..self.handed_over(config) }
    }

    /// With what was said about its endpoint while no one had the lane: if it was given up, a person has enabled it.
    #[must_use]
    pub fn under(self, status: Status) -> LaneMemory {
        let is_enabled = status != Status::Disabled && self.health.is_given_up();
        LaneMemory { health: if is_enabled { self.health.enabled() } else { self.health }, ..self }
    }

    /// For whoever is given the lane by an owner that is well: a probe that is on its way counts as made.
    #[must_use]
    pub fn handed_over(self, config: &LaneConfig) -> LaneMemory {
        LaneMemory { breaker: self.breaker.recovered(&config.circuit), ..self }
    }
}

impl Default for LaneMemory {
    fn default() -> LaneMemory {
        LaneMemory::new()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) endpoint: EndpointId,
    pub(super) tenant: usize,
    /// Apart, because it is large and most of it is not looked at for a dispatch.
    pub(super) config: Box<LaneConfig>,
    pub(super) memory: LaneMemory,
    pub(super) window: Window,
    pub(super) flights: Line<DeliveryId, Flight>,
    /// Requests on the wire; less than `flights`, which also has what is not yet recorded.
    pub(super) in_flight: u32,
    /// What the owner before still has on the wire; it counts as in flight here.
    pub(super) elsewhere: BTreeMap<DeliveryId, Elsewhere>,
    /// It has been given to another owner: what is in flight is finished here, and nothing else is begun.
    pub(super) is_leaving: bool,
    pub(super) block: Block,
    phase: Option<Phase>,
    /// Where it stands with its tenant.
    pub(super) is_queued: bool,
    /// Its entry among the wake-ups; it may be woken for nothing.
    pub(super) wakes_at: Option<Timestamp>,
    /// The same for what it leaves alone.
    pub(super) elsewhere_wakes_at: Option<Timestamp>,
    /// Since when the store has not answered a read, if one is under way.
    pub(super) reads_since: Option<Timestamp>,
    /// When something of it was last begun or ended.
    pub(super) moved_at: Timestamp,
    /// The token that it waits for: a wait is counted once.
    waits_for_token_at: Option<Timestamp>,
    /// At its last turn it had something to send and no token for it.
    pub(super) is_short_of_tokens: bool,
    /// Waits for tokens that nobody has been told of yet.
    pub(super) token_waits: TokenWaits,
    /// How long the present quiet time is, and when it ends.
    quiet_length: Option<(Timestamp, Duration)>,
}

/// Whether our own settings let anything be sent there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Block {
    None,
    /// They do not, as far as is known.
    Held,
    /// One delivery is sent to see whether they still do not.
    Looking,
}

/// How often somebody had to wait for a token, and how long together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TokenWaits {
    pub count: u64,
    pub time: Duration,
}

impl TokenWaits {
    pub(super) fn add(&mut self, time: Duration) {
        self.count += 1;
        self.time += time;
    }

    pub(super) fn take_from(&mut self, other: &mut TokenWaits) {
        self.count += other.count;
        self.time += other.time;
        *other = TokenWaits::default();
    }
}

/// A delivery that was handed out and is not yet recorded.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) entry: Box<Entry>,
    pub(super) stage: Stage,
    /// When it was handed out.
    pub(super) since: Timestamp,
}

/// A delivery that the owner before may still record, until then.
#[derive(Clone, Debug)]
pub(super) struct Elsewhere {
    pub(super) until: Timestamp,
    pub(super) ordering_key: Option<OrderingKey>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    OnTheWire {
        is_probe: bool,
    },
    /// Decided; once that is committed it waits until then, or has ended.
    Recording {
        waits_until: Option<Timestamp>,
    },
}

/// What a lane says when it is its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Send {
        place: EntryPlace,
        is_probe: bool,
    },
    /// It is not to be sent any more.
    End {
        place: EntryPlace,
        state: State,
    },
    /// Nothing before then; nothing at all until something changes if `None`.
    Wait {
        until: Option<Timestamp>,
    },
}

/// What came of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    pub verdict: Verdict,
    pub transition: Option<Transition>,
    pub news: Option<HealthChange>,
    /// Why the endpoint is disabled from now on, if it is.
    pub disables_endpoint: Option<DisableReason>,
}

impl Lane {
    pub(super) fn new(endpoint: EndpointId, tenant: usize, config: LaneConfig, memory: LaneMemory, window: Window) -> Lane {
        Lane {
            endpoint,
            tenant,
            config: Box::new(config),
            memory,
            window,
            flights: Line::new(),
            in_flight: 0,
            elsewhere: BTreeMap::new(),
            is_leaving: false,
            block: Block::None,
            phase: None,
            is_queued: false,
            wakes_at: None,
            elsewhere_wakes_at: None,
            reads_since: None,
            moved_at: Timestamp::from_millis(0),
            waits_for_token_at: None,
            is_short_of_tokens: false,
            token_waits: TokenWaits::default(),
            quiet_length: None,
        }
    }

    /// How many requests may be on the wire now.
    pub(super) fn in_flight_max(&self) -> u32 {
        if plant::is(Plant::LaneCapIgnored) {
            return u32::MAX;
        }
        if self.block == Block::Looking {
            return 1;
        }
        let slow = self.memory.slow_start.map_or(u32::MAX, |successes| successes.saturating_add(1));
        self.config.max_in_flight.min(slow)
    }

    pub(super) fn phase(&mut self, now: Timestamp) -> Phase {
        let schedule = self.config.schedule.as_ref();
        let is_certain = |phase: &Phase| match phase {
            Phase::Open { until } => until.is_none_or(|until| now < until),
            Phase::Quiet { until } => now < *until,
        };
        let phase = self
            .phase
            .filter(is_certain)
            .unwrap_or_else(|| schedule.map_or(Phase::Open { until: None }, |schedule| schedule.at(now)));
        self.phase = Some(phase);
        phase
    }

    pub(super) fn quiet_at(&mut self, now: Timestamp) -> bool {
        matches!(self.phase(now), Phase::Quiet { .. })
    }

    /// How long the quiet time is that is now, to about an hour; `None` if it is not quiet, or if that is not known and
    /// `looks_left` is used up: each look back costs more than all else that is asked of a lane.
    pub(super) fn quiet_length(&mut self, now: Timestamp, looks_left: &mut usize) -> Option<Duration> {
        const STEP: Duration = Duration::from_hours(1);
        const LOOKS_BACK_MAX: usize = 8 * 24;
        let Phase::Quiet { until } = self.phase(now) else { return None };
        let schedule = self.config.schedule.as_ref()?;
        if let Some((_, length)) = self.quiet_length.filter(|(of, _)| *of == until) {
            return Some(length);
        }
        if *looks_left == 0 {
            return None;
        }
        let mut began = now;
        for _ in 0..LOOKS_BACK_MAX {
            *looks_left = looks_left.saturating_sub(1);
            if !matches!(schedule.at(began), Phase::Quiet { .. }) {
                break;
            }
            began = Timestamp::from_millis(began.as_millis() - i64::try_from(STEP.as_millis()).expect("an hour"));
        }
        let length = until.since(began);
        self.quiet_length = Some((until, length));
        Some(length)
    }

    /// What should be read from the store before its turn. Moves what has become due to where [`Lane::turn`] looks.
    pub(super) fn wants(&mut self, now: Timestamp, low_water: usize) -> Vec<WindowQuery> {
        let rest_may_go = !self.quiet_at(now);
        self.window.ripen(now, rest_may_go);
        self.window.wants(low_water, rest_may_go)
    }

    /// What to do now. `retries_from` is when second and later tries may go, if not now.
    pub(super) fn turn(&mut self, now: Timestamp, retries_from: Option<Timestamp>) -> Turn {
        match self.config.status.at(now) {
            Status::Active => {}
            Status::Paused { .. } if plant::is(Plant::PauseIgnored) => {}
            Status::Paused { until } => return Turn::Wait { until },
            Status::Disabled if plant::is(Plant::DisabledIsSent) => {}
            Status::Disabled => return Turn::Wait { until: None },
        }
        if self.block == Block::Held {
            return Turn::Wait { until: None };
        }
        if let Some(until) = self.memory.held_until.filter(|until| now < *until) {
            return Turn::Wait { until: Some(until) };
        }
        if self.window.is_blind() {
            return Turn::Wait { until: None };
        }
        let quiet_until = match self.phase(now) {
            Phase::Open { .. } => None,
            Phase::Quiet { until } if plant::is(Plant::QuietHoursEndEarly) => {
                Some(until).filter(|until| now + Duration::from_mins(1) < *until)
            }
            Phase::Quiet { until } => Some(until),
        };
        let schedule = self.config.schedule.as_ref();
        let may_go = |entry: &Entry| {
            let is_held =
                quiet_until.is_some() && schedule.is_some_and(|schedule| schedule.holds(&entry.event_type, entry.is_priority));
            let is_held = is_held && !(plant::is(Plant::RetriesIgnoreQuietHours) && entry.attempts > 0);
            !is_held && (retries_from.is_none() || entry.attempts == 0)
        };
        let (permission, place) = match self.memory.breaker.permission(now) {
            Permission::Go => {
                let rest_may_go = quiet_until.is_none() || plant::is(Plant::RetriesIgnoreQuietHours);
                (Permission::Go, self.window.best(rest_may_go, may_go))
            }
            Permission::Probe => {
                let classes: &[Class] = if quiet_until.is_none() { &Class::ALL } else { &[Class::Priority, Class::Exempt] };
                (Permission::Probe, self.window.oldest(classes, may_go))
            }
            Permission::Wait { until } => return Turn::Wait { until: Some(until) },
            Permission::AwaitProbe => return Turn::Wait { until: None },
        };
        let Some(place) = place else {
            self.is_short_of_tokens = false;
            let later = [self.window.next_due(now), quiet_until, retries_from].into_iter().flatten().filter(|at| now < *at).min();
            return Turn::Wait { until: later };
        };
        // What has expired, or is not wanted any more, costs no token. What is held longer ends by housekeeping.
        if let Some(state) = self.end_of(self.window.get(place), now) {
            return Turn::End { place, state };
        }
        if let Some(limit) = self.config.rate_limit {
            let ready = self.memory.bucket.ready_at(now, limit, 1);
            let is_free = plant::is(Plant::NoTokenForRetries) && self.window.get(place).attempts > 0;
            if now < ready && !is_free {
                let ready = if plant::is(Plant::TokensComeLate) { ready + Duration::from_mins(5) } else { ready };
                self.is_short_of_tokens = true;
                if self.waits_for_token_at.replace(ready) != Some(ready) {
                    self.token_waits.add(ready.since(now));
                }
                return Turn::Wait { until: Some(ready) };
            }
        }
        Turn::Send { place, is_probe: permission == Permission::Probe }
    }

    /// How an entry ends that is not to be sent any more.
    fn end_of(&self, entry: &Entry, now: Timestamp) -> Option<State> {
        if entry.expires_at.is_some_and(|expires_at| expires_at <= now) && !plant::is(Plant::ExpiredIsSent) {
            Some(State::Dead { at: now, reason: DeadReason::Expired })
        } else if !self.config.subscription.covers(&entry.event_type) && !plant::is(Plant::UnsubscribedIsSent) {
            Some(State::Cancelled { at: now, reason: CancelReason::Unsubscribed })
        } else {
            None
        }
    }

    /// Puts it on the wire: a token is spent, and the circuit knows of its probe.
    pub(super) fn start(&mut self, now: Timestamp, place: EntryPlace, is_probe: bool) -> &Entry {
        let is_free = plant::is(Plant::NoTokenForRetries) && self.window.get(place).attempts > 0;
        if let Some(limit) = self.config.rate_limit.filter(|_| !is_free) {
            self.memory.bucket.take(now, limit).expect("a token was there when it was its turn");
        }
        if is_probe && !plant::is(Plant::ManyProbes) {
            self.memory.breaker = self.memory.breaker.probing(now);
        }
        let entry = self.window.take(place);
        self.in_flight += 1;
        let delivery = entry.delivery;
        let flight = Flight { entry, stage: Stage::OnTheWire { is_probe }, since: now };
        self.moved_at = now;
        self.flights.insert(delivery, flight);
        &self.flights.get(delivery).expect("just inserted").entry
    }

    /// The answer is there. What it means is decided, and has to be recorded.
    pub(super) fn finished(&mut self, now: Timestamp, delivery: DeliveryId, outcome: &Outcome) -> Decision {
        let flight = self.flights.get_mut(delivery).expect("in flight until recorded");
        self.in_flight -= 1;
        self.moved_at = now;
        self.block = Block::None;
        let attempt = flight.entry.attempts + 1;
        let verdict = judge(now, delivery, attempt, outcome, &self.config.retry);
        let was_probe = flight.stage == Stage::OnTheWire { is_probe: true };
        flight.stage = Stage::Recording { waits_until: verdict.retry_at() };
        let signal = Signal::of(outcome);
        let (breaker, transition) = self.memory.breaker.after(now, signal, was_probe, &self.config.circuit);
        self.memory.breaker = breaker;
        match (transition, signal) {
            (Some(Transition::Closed), _) => self.memory.slow_start = Some(0).filter(|_| !plant::is(Plant::NoSlowStart)),
            (Some(Transition::Opened | Transition::Reopened), _) => self.memory.slow_start = None,
            (None, Signal::Works) => {
                let successes = self.memory.slow_start.map(|successes| successes + 1);
                self.memory.slow_start = successes.filter(|successes| *successes < self.config.max_in_flight);
            }
            (None, Signal::Fails | Signal::Neither) => {}
        }
        self.memory.held_until = self.memory.held_until.max(lane_hold(now, outcome));
        let ended = match outcome.class(&self.config.retry) {
            delivery::Class::Success => HealthSignal::Succeeded,
            delivery::Class::Temporary => HealthSignal::Failed,
            delivery::Class::Permanent | delivery::Class::Gone => HealthSignal::Refused,
        };
        let news = self.memory.health.after(now, ended, &self.config.health);
        // What was in flight when it was disabled warns of nothing.
        let was_disabled = self.config.status == Status::Disabled;
        let news = news.filter(|news| !was_disabled || *news == HealthChange::Recovered);
        let given_up = || self.memory.health.reason_to_give_up(&self.config.health).filter(|_| news == Some(HealthChange::GiveUp));
        let disables_endpoint = if verdict.disables_endpoint() { Some(DisableReason::Gone) } else { given_up() };
        if disables_endpoint.is_some() {
            self.config.status = Status::Disabled;
        }
        Decision { verdict, transition, news, disables_endpoint }
    }

    /// Nothing was sent. A probe has proved nothing.
    pub(super) fn unsendable(&mut self, now: Timestamp, delivery: DeliveryId) {
        let flight = self.flights.get_mut(delivery).expect("in flight until recorded");
        let was_probe = flight.stage == Stage::OnTheWire { is_probe: true };
        flight.stage = Stage::Recording { waits_until: None };
        self.in_flight -= 1;
        (self.memory.breaker, _) = self.memory.breaker.after(now, Signal::Neither, was_probe, &self.config.circuit);
    }

    /// Our own settings do not let it be sent: it goes back to where it was, and the others wait with it.
    pub(super) fn blocked(&mut self, now: Timestamp, delivery: DeliveryId) {
        self.unsendable(now, delivery);
        self.recorded(delivery);
        self.window.mark_unread();
        self.block = Block::Held;
    }

    /// The record has been committed.
    pub(super) fn recorded(&mut self, delivery: DeliveryId) {
        let Flight { mut entry, stage, .. } = self.flights.remove(delivery).expect("in flight until recorded");
        let Stage::Recording { waits_until } = stage else { panic!("{delivery} was recorded before it was answered") };
        if let Some(due) = waits_until {
            entry.due = due;
            entry.attempts += u32::from(!plant::is(Plant::AttemptNotCounted));
            entry.is_later = true;
        }
        self.window.settled(entry, waits_until.is_some());
    }

    /// Another owner takes it. Answers what is still in flight here.
    pub(super) fn leave(&mut self) -> Vec<DeliveryId> {
        self.is_leaving = true;
        self.block = Block::None;
        self.window.forget();
        self.flights.iter().map(|(delivery, _)| delivery).collect()
    }

    /// It has come back, or it is handed to somebody who still had something of it in flight.
    pub(super) fn come_back(&mut self, memory: LaneMemory) {
        self.is_leaving = false;
        self.memory = memory;
        self.window.forget();
    }

    /// The owner before has it in flight: it is not touched until that is recorded, or until then.
    pub(super) fn in_flight_elsewhere(&mut self, delivery: DeliveryId, elsewhere: Elsewhere) {
        if let Some(key) = &elsewhere.ordering_key {
            self.window.mark_key_busy(key.clone());
        }
        self.in_flight += 1;
        self.elsewhere.insert(delivery, elsewhere);
    }

    /// Recorded by the owner before, or given up. Answers whether it was waited for.
    pub(super) fn settled_elsewhere(&mut self, delivery: DeliveryId) -> bool {
        let Some(Elsewhere { ordering_key, .. }) = self.elsewhere.remove(&delivery) else { return false };
        self.in_flight -= 1;
        self.window.left(delivery);
        if let Some(key) = ordering_key {
            self.window.mark_key_free(key);
        }
        self.window.mark_unread();
        true
    }

    pub(super) fn has_in_flight(&self, delivery: DeliveryId) -> bool {
        self.flights.contains(delivery) || self.elsewhere.contains_key(&delivery)
    }

    /// What the owner before should have recorded by now.
    pub(super) fn overdue_elsewhere(&self, now: Timestamp) -> Vec<DeliveryId> {
        self.elsewhere.iter().filter(|(_, elsewhere)| elsewhere.until <= now).map(|(delivery, _)| *delivery).collect()
    }

    /// Takes on a changed configuration. What was spent, counted and learned stays.
    pub(super) fn configure(&mut self, now: Timestamp, config: LaneConfig) {
        self.memory.bucket = changed_bucket(self.memory.bucket, now, self.config.rate_limit, config.rate_limit);
        self.memory.breaker = self.memory.breaker.under(now, &config.circuit);
        if self.config.schedule != config.schedule {
            self.phase = None;
            self.window.forget();
        }
        if self.config.status == Status::Disabled && config.status != Status::Disabled {
            self.memory.health = self.memory.health.enabled();
        }
        *self.config = config;
    }

    /// Nothing to do, nothing to remember: the next event makes it anew.
    pub(super) fn can_be_forgotten(&self, now: Timestamp) -> bool {
        self.flights.is_empty() && self.in_flight == 0 && (self.is_leaving || self.has_nothing_to_remember(now))
    }

    fn has_nothing_to_remember(&self, now: Timestamp) -> bool {
        self.window.is_empty()
            && self.block == Block::None
            && self.memory.breaker == Breaker::default()
            && self.memory.health == Health::default()
            && self.memory.held_until.is_none_or(|until| until <= now)
            && self.config.rate_limit.is_none_or(|limit| self.memory.bucket.is_full(now, limit))
    }
}

/// A bucket whose limit has changed.
pub(super) fn changed_bucket(bucket: Bucket, now: Timestamp, old: Option<RateLimit>, new: Option<RateLimit>) -> Bucket {
    match (old, new) {
        (Some(old), Some(new)) => bucket.under(now, old, new),
        // Nobody counted while there was no limit: it starts empty, so that switching it on cannot grant a burst.
        (None, Some(new)) => Bucket::empty(now, new),
        (_, None) => Bucket::full(),
    }
}
