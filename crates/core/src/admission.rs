//! Why a delivery waits, and until when.
//!
//! A hold is never written down: it follows from the row, the endpoint, the lane and the time. This is the one place that
//! puts it into words, in the order in which the reasons are told, by the same rules that hold it.

use std::time::Duration;

use crate::bucket::{Bucket, RateLimit};
use crate::circuit::{Breaker, Permission};
use crate::delivery::{CancelReason, DeadReason, State};
use crate::endpoint::Status;
use crate::event::EventType;
use crate::plant::{self, Plant};
use crate::quiet_hours::{Phase, QuietHours};
use crate::time::Timestamp;

/// What somebody who asks after a delivery is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveryStatus {
    /// Due, and waiting only for its turn.
    Pending,
    /// A request is on its way.
    Delivering,
    /// Not now. `until` is the earliest moment at which none of the known reasons applies, if that can be said.
    Held {
        reason: HoldReason,
        until: Option<Timestamp>,
    },
    Delivered {
        at: Timestamp,
    },
    Dead {
        at: Timestamp,
        reason: DeadReason,
    },
    Cancelled {
        at: Timestamp,
        reason: CancelReason,
    },
}

/// In the order in which they are told: the first that applies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HoldReason {
    Disabled,
    Paused,
    /// Our own settings do not let anything be sent there, or its configuration cannot be read.
    Blocked,
    DeliverAt,
    Retry,
    CircuitOpen,
    QuietHours,
    /// An older delivery of its key comes first.
    Ordering,
    /// No token, or the receiver asked everybody to wait.
    RateLimited,
    /// As many as may be are in flight.
    Concurrency,
}

impl HoldReason {
    pub const ALL: [HoldReason; 10] = [
        HoldReason::Disabled,
        HoldReason::Paused,
        HoldReason::Blocked,
        HoldReason::DeliverAt,
        HoldReason::Retry,
        HoldReason::CircuitOpen,
        HoldReason::QuietHours,
        HoldReason::Ordering,
        HoldReason::RateLimited,
        HoldReason::Concurrency,
    ];

    /// The one word for it: in answers and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            HoldReason::Disabled => "disabled",
            HoldReason::Paused => "paused",
            HoldReason::Blocked => "blocked",
            HoldReason::DeliverAt => "deliver_at",
            HoldReason::Retry => "retry",
            HoldReason::CircuitOpen => "circuit_open",
            HoldReason::QuietHours => "quiet_hours",
            HoldReason::Ordering => "ordering",
            HoldReason::RateLimited => "rate_limited",
            HoldReason::Concurrency => "concurrency",
        }
    }
}

/// A token that is waited for is taken within this time, and seen to be taken by everybody who explains. One that has been there
/// for longer holds nothing: then something is wrong, and must not be called a rate limit.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);

/// The facts about one delivery that decide how it stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Facts<'a> {
    pub state: State,
    pub attempts: u32,
    pub is_in_flight: bool,
    pub event_type: &'a EventType,
    pub is_priority: bool,
    /// Nothing older of its ordering key is unfinished.
    pub is_head_of_key: bool,
    pub lane: LaneFacts<'a>,
}

/// The facts about its lane.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LaneFacts<'a> {
    pub status: Status,
    /// Nothing can be sent there, whatever its status.
    pub is_blocked: bool,
    pub breaker: Breaker,
    pub schedule: Option<&'a QuietHours>,
    pub rate_limit: Option<(RateLimit, Bucket)>,
    pub tenant_rate_limit: Option<(RateLimit, Bucket)>,
    /// The receiver asked everybody to wait.
    pub held_until: Option<Timestamp>,
    /// When the lane last had its turn, more was due than there were tokens: those that have come since are spoken for.
    pub is_short_of_tokens: bool,
    /// In an incident: from when second and later tries may go, of all endpoints together.
    pub retries_from: Option<Timestamp>,
    /// Server, tenant and lane all have room for one more request.
    pub has_slot: bool,
}

impl LaneFacts<'_> {
    /// A lane about which nothing is known but its status.
    pub fn of(status: Status) -> LaneFacts<'static> {
        LaneFacts {
            status,
            is_blocked: false,
            breaker: Breaker::default(),
            schedule: None,
            rate_limit: None,
            tenant_rate_limit: None,
            is_short_of_tokens: false,
            held_until: None,
            retries_from: None,
            has_slot: true,
        }
    }

    /// Until when the buckets hold a delivery of this lane, if they do.
    fn limited_until(&self, now: Timestamp) -> Option<Timestamp> {
        let buckets = [self.rate_limit, self.tenant_rate_limit].into_iter().flatten();
        let until = |(limit, bucket): (RateLimit, Bucket)| {
            let is_spoken_for = self.is_short_of_tokens && bucket.ready_for(now, limit) <= TAKEN_WITHIN;
            if is_spoken_for { bucket.next_token_at(now, limit) } else { bucket.ready_at(now, limit, 1) }
        };
        buckets.map(until).max().filter(|until| now < *until)
    }
}

/// How a delivery stands at `now`.
pub fn explain(now: Timestamp, facts: &Facts<'_>) -> DeliveryStatus {
    let due = match facts.state {
        State::Waiting { due } => due,
        State::Delivered { at } => return DeliveryStatus::Delivered { at },
        State::Dead { at, reason } => return DeliveryStatus::Dead { at, reason },
        State::Cancelled { at, reason } => return DeliveryStatus::Cancelled { at, reason },
    };
    if facts.is_in_flight {
        return DeliveryStatus::Delivering;
    }
    let mut holds = Holds { first: None, until: Some(now) };
    match facts.lane.status.at(now) {
        Status::Active => {}
        Status::Paused { until } => holds.add(HoldReason::Paused, until),
        Status::Disabled => holds.add(HoldReason::Disabled, None),
    }
    if facts.lane.is_blocked {
        holds.add(HoldReason::Blocked, None);
    }
    if now < due {
        // A wait before the first try was asked for; one after it comes from a failure.
        holds.add(if facts.attempts == 0 { HoldReason::DeliverAt } else { HoldReason::Retry }, Some(due));
    }
    match facts.lane.breaker.permission(now) {
        Permission::Go | Permission::Probe => {}
        Permission::Wait { until } => holds.add(HoldReason::CircuitOpen, Some(until)),
        Permission::AwaitProbe => holds.add(HoldReason::CircuitOpen, None),
    }
    if let Some(schedule) = facts.lane.schedule.filter(|schedule| schedule.holds(facts.event_type, facts.is_priority)) {
        if let Phase::Quiet { until } = schedule.at(now) {
            holds.add(HoldReason::QuietHours, Some(until));
        }
        // What ends in quiet hours goes on to their end.
        if let Some(Phase::Quiet { until }) = holds.until.map(|until| schedule.at(until)) {
            holds.until = Some(until);
        }
    }
    if !facts.is_head_of_key {
        holds.add(HoldReason::Ordering, None);
    }
    if let Some(until) = facts.lane.limited_until(now) {
        holds.add(HoldReason::RateLimited, Some(until));
    }
    let retries_from = facts.lane.retries_from.filter(|_| facts.attempts > 0);
    for until in [facts.lane.held_until, retries_from].into_iter().flatten().filter(|until| now < *until) {
        holds.add(HoldReason::RateLimited, Some(until));
    }
    if !facts.lane.has_slot && !plant::is(Plant::CapWithoutReason) {
        holds.add(HoldReason::Concurrency, Some(now));
    }
    match holds.first {
        None => DeliveryStatus::Pending,
        Some(reason) => DeliveryStatus::Held { reason, until: holds.until },
    }
}

/// What holds the deliveries of a lane, taken once for all of them: whoever counts a backlog cannot explain each row by itself.
/// Says the same as [`explain`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is another thing that can hold a lane, and all of them can at once")]
pub struct Gates {
    status: Option<HoldReason>,
    is_blocked: bool,
    is_circuit_open: bool,
    is_quiet: bool,
    is_limited: bool,
    are_retries_limited: bool,
    is_full: bool,
}

/// What counting has to know of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is another question about a row")]
pub struct RowFacts {
    pub is_due: bool,
    pub is_tried: bool,
    /// Its type waits in quiet hours.
    pub waits_in_quiet_hours: bool,
    pub is_head_of_key: bool,
}

impl Gates {
    /// `is_quiet` is asked of whoever keeps it: a schedule is not looked up for each count.
    pub fn of(now: Timestamp, lane: &LaneFacts<'_>, is_quiet: bool) -> Gates {
        Gates {
            status: match lane.status.at(now) {
                Status::Active => None,
                Status::Paused { .. } => Some(HoldReason::Paused),
                Status::Disabled => Some(HoldReason::Disabled),
            },
            is_blocked: lane.is_blocked,
            is_circuit_open: match lane.breaker.permission(now) {
                Permission::Go | Permission::Probe => false,
                Permission::Wait { .. } | Permission::AwaitProbe => true,
            },
            is_quiet,
            is_limited: lane.limited_until(now).is_some() || lane.held_until.is_some_and(|until| now < until),
            are_retries_limited: lane.retries_from.is_some_and(|from| now < from),
            is_full: !lane.has_slot,
        }
    }

    /// Why such a row waits; `None` if it waits for nothing but its turn.
    pub fn hold(&self, row: RowFacts) -> Option<HoldReason> {
        let later = if row.is_tried { HoldReason::Retry } else { HoldReason::DeliverAt };
        let reasons = [
            self.status,
            self.is_blocked.then_some(HoldReason::Blocked),
            (!row.is_due).then_some(later),
            self.is_circuit_open.then_some(HoldReason::CircuitOpen),
            (self.is_quiet && row.waits_in_quiet_hours).then_some(HoldReason::QuietHours),
            (!row.is_head_of_key).then_some(HoldReason::Ordering),
            (self.is_limited || self.are_retries_limited && row.is_tried).then_some(HoldReason::RateLimited),
            self.is_full.then_some(HoldReason::Concurrency),
        ];
        reasons.into_iter().flatten().next()
    }
}

/// The first reason, and when the last of them is over; `None` if nobody can say.
struct Holds {
    first: Option<HoldReason>,
    until: Option<Timestamp>,
}

impl Holds {
    fn add(&mut self, reason: HoldReason, until: Option<Timestamp>) {
        self.first.get_or_insert(reason);
        self.until = self.until.zip(until).map(|(a, b)| a.max(b));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TypePatterns;
    use crate::quiet_hours::{Days, TimeOfDay, Window};

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn held(reason: HoldReason, until: Option<i64>) -> DeliveryStatus {
        DeliveryStatus::Held { reason, until: until.map(at) }
    }

    /// A delivery that is due at `due`, asked after at 1,000, with something about its lane changed.
    fn check(due: i64, attempts: u32, change: impl Fn(&mut Facts<'_>), expected: DeliveryStatus) {
        let event_type = EventType::parse("a.b").unwrap();
        let mut facts = Facts {
            state: State::Waiting { due: at(due) },
            attempts,
            is_in_flight: false,
            event_type: &event_type,
            is_priority: false,
            is_head_of_key: true,
            lane: LaneFacts::of(Status::Active),
        };
        change(&mut facts);
        assert_eq!(explain(at(1000), &facts), expected);
    }

    #[test]
    fn the_first_reason_that_applies_is_told_and_the_last_to_end_is_waited_for() {
        let paused = |until: Option<i64>| Status::Paused { until: until.map(at) };
        let open = Breaker::Open { since: at(0), probe_at: at(5000), failures: 5 };
        check(1000, 0, |_| {}, DeliveryStatus::Pending);
        check(1001, 0, |_| {}, held(HoldReason::DeliverAt, Some(1001)));
        check(1001, 1, |_| {}, held(HoldReason::Retry, Some(1001)));
        check(1001, 1, |facts| facts.lane.status = Status::Disabled, held(HoldReason::Disabled, None));
        check(0, 0, |facts| facts.lane.status = paused(None), held(HoldReason::Paused, None));
        check(0, 0, |facts| facts.lane.status = paused(Some(2000)), held(HoldReason::Paused, Some(2000)));
        check(3000, 0, |facts| facts.lane.status = paused(Some(2000)), held(HoldReason::Paused, Some(3000)));
        check(0, 0, |facts| facts.lane.status = paused(Some(1000)), DeliveryStatus::Pending);
        check(9000, 1, |facts| facts.lane.is_blocked = true, held(HoldReason::Blocked, None));
        check(0, 1, |facts| facts.lane.breaker = open, held(HoldReason::CircuitOpen, Some(5000)));
        check(9000, 1, |facts| facts.lane.breaker = open, held(HoldReason::Retry, Some(9000)));
        check(0, 1, |facts| facts.lane.breaker = open.probing(at(900)), held(HoldReason::CircuitOpen, None));
        check(0, 0, |facts| facts.is_head_of_key = false, held(HoldReason::Ordering, None));
        check(0, 0, |facts| facts.lane.has_slot = false, held(HoldReason::Concurrency, Some(1000)));
        check(0, 0, |facts| facts.lane.held_until = Some(at(4000)), held(HoldReason::RateLimited, Some(4000)));
        check(0, 1, |facts| facts.lane.retries_from = Some(at(4000)), held(HoldReason::RateLimited, Some(4000)));
        check(0, 0, |facts| facts.lane.retries_from = Some(at(4000)), DeliveryStatus::Pending);
        check(0, 0, |facts| facts.is_in_flight = true, DeliveryStatus::Delivering);
        let limit = RateLimit::new(60, 1).unwrap();
        let limited = |facts: &mut Facts<'_>| facts.lane.rate_limit = Some((limit, Bucket::empty(at(1000), limit)));
        check(0, 0, limited, held(HoldReason::RateLimited, Some(2000)));
        // A token is there, and others were waiting for it before: a burst of 1 is never seen full by those behind.
        let since = |millis: i64| Bucket::empty(at(millis - 1_000), limit);
        let has_a_token = |facts: &mut Facts<'_>| facts.lane.rate_limit = Some((limit, since(1_000)));
        check(0, 0, has_a_token, DeliveryStatus::Pending);
        let behind = |facts: &mut Facts<'_>| {
            has_a_token(facts);
            facts.lane.is_short_of_tokens = true;
        };
        check(0, 0, behind, held(HoldReason::RateLimited, Some(2000)));
        let behind_in_tenant = |facts: &mut Facts<'_>| {
            facts.lane.tenant_rate_limit = Some((limit, since(1_000)));
            facts.lane.is_short_of_tokens = true;
        };
        check(0, 0, behind_in_tenant, held(HoldReason::RateLimited, Some(2000)));
        // One that nobody has taken for so long is not what it waits for.
        let forgotten = |facts: &mut Facts<'_>| {
            facts.lane.rate_limit = Some((limit, since(-1_001)));
            facts.lane.is_short_of_tokens = true;
        };
        check(0, 0, forgotten, DeliveryStatus::Pending);
    }

    #[test]
    fn quiet_hours_hold_what_would_be_due_in_them() {
        let window = Window { start: TimeOfDay::parse("00:00").unwrap(), end: TimeOfDay::parse("06:00").unwrap(), days: Days::ALL };
        let schedule = |applies_to: &[&str]| {
            let applies_to = TypePatterns::parse(applies_to.iter().copied()).unwrap();
            QuietHours::new("UTC", vec![window], vec![], applies_to, TypePatterns::default()).unwrap()
        };
        let (all, others) = (schedule(&[]), schedule(&["other"]));
        let six = 6 * 3_600_000;
        check(0, 0, |facts| facts.lane.schedule = Some(leaked(&all)), held(HoldReason::QuietHours, Some(six)));
        check(2000, 1, |facts| facts.lane.schedule = Some(leaked(&all)), held(HoldReason::Retry, Some(six)));
        check(0, 0, |facts| facts.lane.schedule = Some(leaked(&others)), DeliveryStatus::Pending);
    }

    /// A schedule that lives as long as the facts of any check.
    fn leaked(schedule: &QuietHours) -> &'static QuietHours {
        Box::leak(Box::new(schedule.clone()))
    }

    #[test]
    fn what_has_ended_has_no_hold() {
        let dead = State::Dead { at: at(5), reason: DeadReason::Expired };
        check(0, 3, |facts| facts.state = dead, DeliveryStatus::Dead { at: at(5), reason: DeadReason::Expired });
    }

    #[test]
    fn a_count_says_of_every_row_what_an_explanation_says() {
        let now = at(1_000);
        let limit = RateLimit::new(60, 1).unwrap();
        let quiet_type = EventType::parse("order.made").unwrap();
        let window = |start: &str, end: &str| Window {
            start: TimeOfDay::parse(start).unwrap(),
            end: TimeOfDay::parse(end).unwrap(),
            days: Days::ALL,
        };
        let schedule =
            |window| QuietHours::new("UTC", vec![window], vec![], TypePatterns::default(), TypePatterns::default()).unwrap();
        let (quiet, open) = (schedule(window("00:00", "06:00")), schedule(window("12:00", "13:00")));
        let statuses = [Status::Active, Status::Paused { until: None }, Status::Paused { until: Some(at(500)) }, Status::Disabled];
        let breakers = [
            Breaker::default(),
            Breaker::Open { since: at(0), probe_at: at(2_000), failures: 5 },
            Breaker::Open { since: at(0), probe_at: at(900), failures: 5 },
            Breaker::HalfOpen { since: at(0), probe_started: at(900), failures: 5 },
        ];
        let mut count = 0;
        for bits in 0..4096_u32 {
            let is = |bit: u32| bits & 1 << bit != 0;
            for (status, breaker) in statuses.iter().flat_map(|status| breakers.iter().map(move |breaker| (*status, *breaker))) {
                let lane = LaneFacts {
                    status,
                    is_blocked: is(11),
                    breaker,
                    schedule: is(0).then_some(if is(1) { &quiet } else { &open }),
                    rate_limit: is(2).then(|| (limit, Bucket::empty(now, limit))),
                    tenant_rate_limit: is(3).then(|| (limit, Bucket::full())),
                    is_short_of_tokens: is(10),
                    held_until: is(4).then(|| at(5_000)),
                    retries_from: is(5).then(|| at(5_000)),
                    has_slot: is(6),
                };
                let due = if is(7) { at(1_000) } else { at(1_001) };
                let attempts = u32::from(is(8));
                let facts = Facts {
                    state: State::Waiting { due },
                    attempts,
                    is_in_flight: false,
                    event_type: &quiet_type,
                    is_priority: false,
                    is_head_of_key: is(9),
                    lane,
                };
                let row = RowFacts { is_due: is(7), is_tried: is(8), waits_in_quiet_hours: is(0), is_head_of_key: is(9) };
                let counted = Gates::of(now, &lane, is(0) && is(1)).hold(row);
                let explained = match explain(now, &facts) {
                    DeliveryStatus::Pending => None,
                    DeliveryStatus::Held { reason, .. } => Some(reason),
                    other @ (DeliveryStatus::Delivering
                    | DeliveryStatus::Delivered { .. }
                    | DeliveryStatus::Dead { .. }
                    | DeliveryStatus::Cancelled { .. }) => {
                        panic!("{other:?}")
                    }
                };
                assert_eq!(counted, explained, "{facts:?}");
                count += 1;
            }
        }
        assert_eq!(count, 16 * 4096);
    }
}
