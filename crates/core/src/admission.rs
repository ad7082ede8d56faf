//! Why a delivery waits, and until when.
//!
//! A hold is never written down: it follows from the row, the endpoint, the lane and the time. This is the one place that
//! puts it into words, in the order in which the reasons are told, by the same rules that hold it.

use crate::bucket::{Bucket, RateLimit};
use crate::circuit::{Breaker, Permission};
use crate::delivery::{CancelReason, DeadReason, State};
use crate::endpoint::Status;
use crate::event::EventType;
use crate::quiet_hours::{Phase, QuietHours};
use crate::time::Timestamp;

/// What somebody who asks after a delivery is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
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
    pub const ALL: [HoldReason; 9] = [
        HoldReason::Disabled,
        HoldReason::Paused,
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
    pub breaker: Breaker,
    pub schedule: Option<&'a QuietHours>,
    pub rate_limit: Option<(RateLimit, Bucket)>,
    pub tenant_rate_limit: Option<(RateLimit, Bucket)>,
    /// The receiver asked everybody to wait.
    pub held_until: Option<Timestamp>,
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
            breaker: Breaker::default(),
            schedule: None,
            rate_limit: None,
            tenant_rate_limit: None,
            held_until: None,
            retries_from: None,
            has_slot: true,
        }
    }
}

/// How a delivery stands at `now`.
pub fn explain(now: Timestamp, facts: &Facts<'_>) -> Standing {
    let is_held = |schedule: &QuietHours| schedule.holds(facts.event_type, facts.is_priority);
    explain_held(now, facts, facts.lane.schedule.is_some_and(is_held))
}

/// The same where quiet hours are known to concern it, or not to: by its class, whatever its type.
pub fn explain_held(now: Timestamp, facts: &Facts<'_>, is_held_by_quiet_hours: bool) -> Standing {
    let due = match facts.state {
        State::Waiting { due } => due,
        State::Delivered { at } => return Standing::Delivered { at },
        State::Dead { at, reason } => return Standing::Dead { at, reason },
        State::Cancelled { at, reason } => return Standing::Cancelled { at, reason },
    };
    if facts.is_in_flight {
        return Standing::Delivering;
    }
    let mut holds = Holds { first: None, until: Some(now) };
    match facts.lane.status.at(now) {
        Status::Active => {}
        Status::Paused { until } => holds.add(HoldReason::Paused, until),
        Status::Disabled => holds.add(HoldReason::Disabled, None),
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
    if let Some(schedule) = facts.lane.schedule.filter(|_| is_held_by_quiet_hours) {
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
    for (limit, bucket) in [facts.lane.rate_limit, facts.lane.tenant_rate_limit].into_iter().flatten() {
        let ready = bucket.ready_at(now, limit, 1);
        if now < ready {
            holds.add(HoldReason::RateLimited, Some(ready));
        }
    }
    let retries_from = facts.lane.retries_from.filter(|_| facts.attempts > 0);
    for until in [facts.lane.held_until, retries_from].into_iter().flatten().filter(|until| now < *until) {
        holds.add(HoldReason::RateLimited, Some(until));
    }
    if !facts.lane.has_slot {
        holds.add(HoldReason::Concurrency, Some(now));
    }
    match holds.first {
        None => Standing::Pending,
        Some(reason) => Standing::Held { reason, until: holds.until },
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

    fn held(reason: HoldReason, until: Option<i64>) -> Standing {
        Standing::Held { reason, until: until.map(at) }
    }

    /// A delivery that is due at `due`, asked after at 1,000, with something about its lane changed.
    fn check(due: i64, attempts: u32, change: impl Fn(&mut Facts<'_>), expected: Standing) {
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
        check(1000, 0, |_| {}, Standing::Pending);
        check(1001, 0, |_| {}, held(HoldReason::DeliverAt, Some(1001)));
        check(1001, 1, |_| {}, held(HoldReason::Retry, Some(1001)));
        check(1001, 1, |facts| facts.lane.status = Status::Disabled, held(HoldReason::Disabled, None));
        check(0, 0, |facts| facts.lane.status = paused(None), held(HoldReason::Paused, None));
        check(0, 0, |facts| facts.lane.status = paused(Some(2000)), held(HoldReason::Paused, Some(2000)));
        check(3000, 0, |facts| facts.lane.status = paused(Some(2000)), held(HoldReason::Paused, Some(3000)));
        check(0, 0, |facts| facts.lane.status = paused(Some(1000)), Standing::Pending);
        check(0, 1, |facts| facts.lane.breaker = open, held(HoldReason::CircuitOpen, Some(5000)));
        check(9000, 1, |facts| facts.lane.breaker = open, held(HoldReason::Retry, Some(9000)));
        check(0, 1, |facts| facts.lane.breaker = open.probing(at(900)), held(HoldReason::CircuitOpen, None));
        check(0, 0, |facts| facts.is_head_of_key = false, held(HoldReason::Ordering, None));
        check(0, 0, |facts| facts.lane.has_slot = false, held(HoldReason::Concurrency, Some(1000)));
        check(0, 0, |facts| facts.lane.held_until = Some(at(4000)), held(HoldReason::RateLimited, Some(4000)));
        check(0, 1, |facts| facts.lane.retries_from = Some(at(4000)), held(HoldReason::RateLimited, Some(4000)));
        check(0, 0, |facts| facts.lane.retries_from = Some(at(4000)), Standing::Pending);
        check(0, 0, |facts| facts.is_in_flight = true, Standing::Delivering);
        let limit = RateLimit::new(60, 1).unwrap();
        let limited = |facts: &mut Facts<'_>| facts.lane.rate_limit = Some((limit, Bucket::empty(at(1000), limit)));
        check(0, 0, limited, held(HoldReason::RateLimited, Some(2000)));
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
        check(0, 0, |facts| facts.lane.schedule = Some(leaked(&others)), Standing::Pending);
    }

    /// A schedule that lives as long as the facts of any check.
    fn leaked(schedule: &QuietHours) -> &'static QuietHours {
        Box::leak(Box::new(schedule.clone()))
    }

    #[test]
    fn what_has_ended_has_no_hold() {
        let dead = State::Dead { at: at(5), reason: DeadReason::Expired };
        check(0, 3, |facts| facts.state = dead, Standing::Dead { at: at(5), reason: DeadReason::Expired });
    }
}
