//! How long to wait for an answer, learned from how long answers take.
//!
//! `timeout = min(max, max(min, p99 × multiplier + buffer))` over a week of successes. A longer
//! value applies at once, because it only prevents false failures. A shorter one comes in two
//! steps a week apart, and is undone if it made timeouts twice as common. Until enough is known
//! the default applies, and a person can pin a value, which nothing here touches.

use std::time::Duration;

use crate::latency::LatencySketch;
use crate::plant::{self, Plant};
use crate::time::{Timestamp, millis};

/// What the operator set for everybody. Per endpoint only [`Mode`] differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeoutRules {
    pub default: Duration,
    pub min: Duration,
    pub max: Duration,
    pub multiplier_percent: u32,
    pub buffer: Duration,
    pub samples_min: u64,
}

impl Default for TimeoutRules {
    fn default() -> TimeoutRules {
        TimeoutRules {
            default: Duration::from_secs(10),
            min: Duration::from_secs(1),
            max: Duration::from_secs(30),
            multiplier_percent: 150,
            buffer: Duration::from_millis(500),
            samples_min: 100,
        }
    }
}

impl TimeoutRules {
    /// p99 4,200 ms → 6,800 ms.
    pub fn from_p99(&self, p99: Duration) -> Duration {
        let scaled = Duration::from_millis(millis(p99) * u64::from(self.multiplier_percent) / 100);
        (scaled + self.buffer).max(self.min).min(self.max)
    }
}

/// Learn, or do as told.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Mode {
    #[default]
    Adaptive,
    Manual(Pinned),
}

/// A value that a person chose, from 1 to 60 seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pinned(Duration);

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("timeout_ms is 1,000 to 60,000")]
pub struct PinnedError;

impl Pinned {
    pub fn new(timeout: Duration) -> Result<Pinned, PinnedError> {
        if (Duration::from_secs(1)..=Duration::from_mins(1)).contains(&timeout) { Ok(Pinned(timeout)) } else { Err(PinnedError) }
    }

    pub fn as_duration(self) -> Duration {
        self.0
    }
}

/// Attempts in some stretch of time, and how many of them ran out of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    pub attempts: u64,
    pub timeouts: u64,
}

impl Tally {
    /// A sudden run of timeouts, and not of a receiver that is down: at least 20 attempts in ten minutes, more than
    /// 5 % of them timed out, the circuit closed.
    pub fn is_spike(self, circuit_is_closed: bool) -> bool {
        circuit_is_closed && self.attempts >= 20 && self.timeouts * 100 > self.attempts * 5
    }

    /// At least ten attempts, over 1 % timed out, and twice the share of before.
    fn is_twice_as_bad_as(self, before: Tally) -> bool {
        let doubled = u128::from(self.timeouts) * u128::from(before.attempts.max(1))
            >= 2 * u128::from(before.timeouts) * u128::from(self.attempts);
        self.attempts >= 10 && self.timeouts * 100 > self.attempts && doubled
    }
}

/// What was seen of one endpoint when its timeout is computed.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    pub endpoint_created_at: Timestamp,
    /// Response times of the successes of the last seven days.
    pub successes: &'a LatencySketch,
    /// The timeouts of the last seven days, each at the value that was then in force. Counted only after a spike.
    pub timeouts: &'a LatencySketch,
    /// The last 24 hours: what a shortening will be measured against.
    pub last_day: Tally,
}

/// Why it is computed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trigger {
    Daily,
    /// [`Tally::is_spike`].
    Spike,
}

/// What a computation has led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Younger than a day, or fewer samples than it takes. Whatever was in force stays.
    TooEarly,
    Unchanged,
    Longer {
        from: Duration,
        to: Duration,
    },
    Shorter {
        from: Duration,
        to: Duration,
    },
}

/// How the value in force came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    Default,
    Adaptive,
    Manual,
}

/// For the first day everybody gets the default.
const PROBATION: Duration = Duration::from_hours(24);
/// Between two shortenings, and after one that was undone.
const REST: Duration = Duration::from_hours(7 * 24);
/// Of its present value, a timeout keeps at least so much in a first step.
const FIRST_STEP_PERCENT: u64 = 75;

/// The learned timeout of one endpoint. A pin lies over it and does not change it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Adaptive {
    learned: Option<Learned>,
    descent: Descent,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Learned {
    pub timeout: Duration,
    pub p50: Duration,
    pub p95: Duration,
    pub p99: Duration,
    pub sample_count: u64,
    pub computed_at: Timestamp,
}

/// Where a shortening stands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Descent {
    #[default]
    None,
    /// Shortened at `since` from `before`; not shorter again for a week. If `half_way`, the computed value was not
    /// reached, and the next step may go all the way.
    Shortened { since: Timestamp, before: Duration, tally_before: Tally, half_way: bool },
    /// A shortening was undone at `since`; not shorter again for a week.
    Undone { since: Timestamp },
}

impl Adaptive {
    /// For the store. `None` if a shortening is named of which nothing was learned: there would be nothing to undo.
    pub fn stored(learned: Option<Learned>, descent: Descent) -> Option<Adaptive> {
        match descent {
            Descent::Shortened { .. } if learned.is_none() => None,
            Descent::None | Descent::Shortened { .. } | Descent::Undone { .. } => Some(Adaptive { learned, descent }),
        }
    }

    /// For the store: what [`Adaptive::stored`] takes beside what was learned.
    pub fn descent(&self) -> Descent {
        self.descent
    }

    /// What applies now, and why.
    pub fn in_force(&self, mode: Mode, rules: &TimeoutRules) -> (Duration, Method) {
        match (mode, &self.learned) {
            (Mode::Manual(pinned), learned) if learned.is_none() || !plant::is(Plant::PinIsLearned) => {
                (pinned.as_duration(), Method::Manual)
            }
            (_, Some(learned)) => (learned.timeout, Method::Adaptive),
            (_, None) => (rules.default, Method::Default),
        }
    }

    /// The same for a probe, which waits at least as long as the default. A receiver that has become slower than its
    /// timeout would otherwise fail every probe, and its circuit would never close to let anything be learned.
    pub fn in_force_for_probe(&self, mode: Mode, rules: &TimeoutRules) -> Duration {
        let (timeout, method) = self.in_force(mode, rules);
        match method {
            Method::Manual => timeout,
            Method::Default | Method::Adaptive => timeout.max(rules.default),
        }
    }

    /// What was learned last, for showing.
    pub fn learned(&self) -> Option<&Learned> {
        self.learned.as_ref()
    }

    /// Computes anew, once a day and after a spike. Not called while a value is pinned.
    pub fn recompute(&mut self, now: Timestamp, trigger: Trigger, evidence: &Evidence<'_>, rules: &TimeoutRules) -> Change {
        let mut samples = evidence.successes.clone();
        if trigger == Trigger::Spike {
            samples.merge(evidence.timeouts);
        }
        if now.since(evidence.endpoint_created_at) < PROBATION || samples.count() < rules.samples_min {
            return Change::TooEarly;
        }
        let percentile = |percent| samples.percentile(percent).expect("there are samples");
        let p99 = percentile(99);
        let computed = rules.from_p99(p99);
        let from = self.in_force(Mode::Adaptive, rules).0;
        let to = match trigger {
            // Whatever a spike is, it is no reason to wait less.
            Trigger::Spike if computed <= from => from,
            Trigger::Spike | Trigger::Daily => self.step_towards(now, computed, from, evidence.last_day),
        };
        self.learned = Some(Learned {
            timeout: to,
            p50: percentile(50),
            p95: percentile(95),
            p99,
            sample_count: samples.count(),
            computed_at: now,
        });
        match to.cmp(&from) {
            std::cmp::Ordering::Less => Change::Shorter { from, to },
            std::cmp::Ordering::Equal => Change::Unchanged,
            std::cmp::Ordering::Greater => Change::Longer { from, to },
        }
    }

    /// How far to go from the present value to the computed one, now.
    fn step_towards(&mut self, now: Timestamp, computed: Duration, present: Duration, tally_before: Tally) -> Duration {
        if computed > present {
            self.descent = Descent::None;
            return computed;
        }
        let may_go_all_the_way = match self.descent {
            Descent::Shortened { since, .. } | Descent::Undone { since }
                if now.since(since) < REST && !plant::is(Plant::TimeoutsFallDaily) =>
            {
                return present;
            }
            Descent::Shortened { half_way, .. } => half_way,
            Descent::Undone { .. } | Descent::None => false,
        };
        let least = Duration::from_millis((millis(present) * FIRST_STEP_PERCENT).div_ceil(100));
        let step = if may_go_all_the_way { computed } else { computed.max(least) };
        if step < present {
            self.descent = Descent::Shortened { since: now, before: present, tally_before, half_way: computed < step };
        } else {
            // The value has been reached: the next shortening is a first step again.
            self.descent = Descent::None;
        }
        step
    }

    /// Looks back at a shortening; every hour while [`Adaptive::shortened_at`] names one. `after` counts the attempts since [`Adaptive::shortened_at`], at most 24 hours of them.
    /// Answers the value that applies again, if it was undone.
    pub fn review(&mut self, now: Timestamp, after: Tally) -> Option<Duration> {
        let Descent::Shortened { before, tally_before, .. } = self.descent else { return None };
        if !after.is_twice_as_bad_as(tally_before) {
            return None;
        }
        let learned = self.learned.as_mut().expect("a shortening was learned");
        learned.timeout = before;
        self.descent = Descent::Undone { since: now };
        Some(before)
    }

    /// Since when a shortening is on trial; for a day.
    pub fn shortened_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.descent {
            Descent::Shortened { since, .. } if now.since(since) <= Duration::from_hours(24) => Some(since),
            Descent::Shortened { .. } | Descent::Undone { .. } | Descent::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: TimeoutRules = TimeoutRules {
        default: Duration::from_secs(10),
        min: Duration::from_secs(1),
        max: Duration::from_secs(30),
        multiplier_percent: 150,
        buffer: Duration::from_millis(500),
        samples_min: 100,
    };

    fn day(days: i64) -> Timestamp {
        Timestamp::from_millis(days * 86_400_000)
    }

    fn sketch(value: u64, count: usize) -> LatencySketch {
        let mut sketch = LatencySketch::default();
        (0..count).for_each(|_| sketch.record(Duration::from_millis(value)));
        sketch
    }

    /// An endpoint made on day 0 whose p99 is this; answers the timeout in force afterwards.
    fn daily(adaptive: &mut Adaptive, now: Timestamp, p99: u64) -> u128 {
        let evidence = Evidence {
            endpoint_created_at: day(0),
            successes: &sketch(p99, 100),
            timeouts: &LatencySketch::default(),
            last_day: Tally { attempts: 1000, timeouts: 4 },
        };
        adaptive.recompute(now, Trigger::Daily, &evidence, &RULES);
        adaptive.in_force(Mode::Adaptive, &RULES).0.as_millis()
    }

    #[test]
    fn the_formula_of_the_source_gives_6800_for_4200() {
        assert_eq!(RULES, TimeoutRules::default());
        for (p99, timeout) in [(4200, 6800), (0, 1000), (100, 1000), (400, 1100), (19_666, 29_999), (25_000, 30_000)] {
            assert_eq!(RULES.from_p99(Duration::from_millis(p99)), Duration::from_millis(timeout));
        }
    }

    #[test]
    fn a_longer_value_applies_at_once() {
        let mut adaptive = Adaptive::default();
        assert_eq!(daily(&mut adaptive, day(1), 9_000), 14_000);
        assert_eq!(daily(&mut adaptive, day(2), 15_000), 23_000);
    }

    #[test]
    fn a_shorter_value_comes_in_two_steps_a_week_apart() {
        let mut adaptive = Adaptive::default();
        assert_eq!(daily(&mut adaptive, day(1), 1_000), 7_500, "three quarters of the default");
        for later in 2..8 {
            assert_eq!(daily(&mut adaptive, day(later), 1_000), 7_500);
        }
        assert_eq!(daily(&mut adaptive, day(8), 1_000), 2_000, "and then all the way");
        assert_eq!(daily(&mut adaptive, day(9), 500), 2_000, "which begins a new week");
        assert_eq!(daily(&mut adaptive, day(15), 500), 1_500, "and a new first step");
    }

    #[test]
    fn a_value_that_was_reached_by_itself_begins_a_new_first_step() {
        let mut adaptive = Adaptive::default();
        assert_eq!(daily(&mut adaptive, day(1), 1_000), 7_500);
        assert_eq!(daily(&mut adaptive, day(8), 4_667), 7_500, "the receiver has become as slow as that");
        assert_eq!(daily(&mut adaptive, day(9), 1_000), 5_625);
    }

    #[test]
    fn a_probe_waits_at_least_for_the_default_unless_a_person_said_otherwise() {
        let mut adaptive = Adaptive::default();
        daily(&mut adaptive, day(1), 1_000);
        assert_eq!(adaptive.in_force(Mode::Adaptive, &RULES).0, Duration::from_millis(7_500));
        assert_eq!(adaptive.in_force_for_probe(Mode::Adaptive, &RULES), Duration::from_secs(10));
        let pinned = Mode::Manual(Pinned::new(Duration::from_secs(2)).unwrap());
        assert_eq!(adaptive.in_force_for_probe(pinned, &RULES), Duration::from_secs(2));
        daily(&mut adaptive, day(2), 15_000);
        assert_eq!(adaptive.in_force_for_probe(Mode::Adaptive, &RULES), Duration::from_secs(23));
    }

    #[test]
    fn a_spike_never_shortens() {
        let mut adaptive = Adaptive::default();
        let evidence = Evidence {
            endpoint_created_at: day(0),
            successes: &sketch(100, 10_000),
            timeouts: &sketch(10_000, 30),
            last_day: Tally { attempts: 10_030, timeouts: 30 },
        };
        assert_eq!(adaptive.recompute(day(2), Trigger::Spike, &evidence, &RULES), Change::Unchanged);
        assert_eq!(adaptive.in_force(Mode::Adaptive, &RULES).0, Duration::from_secs(10));
    }

    #[test]
    fn a_small_shortening_is_reached_in_one_step_and_then_rests() {
        let mut adaptive = Adaptive::default();
        assert_eq!(daily(&mut adaptive, day(1), 5_000), 8_000);
        assert_eq!(daily(&mut adaptive, day(2), 3_000), 8_000, "not again within a week");
        assert_eq!(daily(&mut adaptive, day(8), 3_000), 6_000, "a first step of its own");
    }

    #[test]
    fn a_longer_value_ends_a_descent() {
        let mut adaptive = Adaptive::default();
        assert_eq!(daily(&mut adaptive, day(1), 1_000), 7_500);
        assert_eq!(daily(&mut adaptive, day(2), 6_000), 9_500);
        assert_eq!(daily(&mut adaptive, day(3), 1_000), 7_125, "the next shortening is a first step again");
    }

    #[test]
    fn the_default_applies_for_a_day_and_until_there_are_a_hundred_samples() {
        let mut adaptive = Adaptive::default();
        let mut compute = |now: Timestamp, count: usize| {
            let evidence = Evidence {
                endpoint_created_at: day(0),
                successes: &sketch(15_000, count),
                timeouts: &sketch(10_000, 50),
                last_day: Tally::default(),
            };
            adaptive.recompute(now, Trigger::Daily, &evidence, &RULES)
        };
        assert_eq!(compute(day(1) - Duration::from_millis(1), 1000), Change::TooEarly);
        assert_eq!(compute(day(1), 99), Change::TooEarly);
        let longer = Change::Longer { from: Duration::from_secs(10), to: Duration::from_secs(23) };
        assert_eq!(compute(day(1), 100), longer);
        assert_eq!(compute(day(9), 3), Change::TooEarly, "and what was learned stays when traffic dries up");
        assert_eq!(adaptive.in_force(Mode::Adaptive, &RULES), (Duration::from_secs(23), Method::Adaptive));
    }

    #[test]
    fn a_spike_counts_timeouts_as_samples_at_their_own_value() {
        let tally = |attempts, timeouts| Tally { attempts, timeouts };
        assert!(tally(20, 2).is_spike(true));
        assert!(!tally(20, 1).is_spike(true), "5 % is not over 5 %");
        assert!(!tally(19, 19).is_spike(true));
        assert!(!tally(20, 20).is_spike(false), "a receiver that is down teaches nothing about speed");

        let mut adaptive = Adaptive::default();
        let evidence = Evidence {
            endpoint_created_at: day(0),
            successes: &sketch(2_000, 97),
            timeouts: &sketch(10_000, 3),
            last_day: tally(100, 3),
        };
        let longer = Change::Longer { from: Duration::from_secs(10), to: Duration::from_millis(15_500) };
        assert_eq!(adaptive.recompute(day(2), Trigger::Spike, &evidence, &RULES), longer);
        assert_eq!(adaptive.learned().unwrap().sample_count, 100);
    }

    #[test]
    fn a_shortening_that_doubles_the_timeouts_is_undone() {
        let shortened = || {
            let mut adaptive = Adaptive::default();
            assert_eq!(daily(&mut adaptive, day(1), 1_000), 7_500);
            adaptive
        };
        // Before it, 4 of 1,000 timed out.
        for (attempts, timeouts, undone) in [
            (9, 9, false),
            (10, 1, true),
            (1000, 10, false), // doubled, but not over 1 %
            (1000, 11, true),
            (0, 0, false),
        ] {
            let mut adaptive = shortened();
            let back = adaptive.review(day(1) + Duration::from_hours(5), Tally { attempts, timeouts });
            assert_eq!(back, undone.then_some(Duration::from_secs(10)), "{timeouts} of {attempts}");
        }
        let mut adaptive = shortened();
        assert!(adaptive.review(day(2), Tally { attempts: 100, timeouts: 50 }).is_some());
        assert_eq!(adaptive.review(day(2), Tally { attempts: 100, timeouts: 50 }), None, "once");
        assert_eq!(daily(&mut adaptive, day(8), 1_000), 10_000, "not tried again for a week");
        assert_eq!(daily(&mut adaptive, day(9), 1_000), 7_500);
    }

    #[test]
    fn a_share_that_was_high_before_has_to_double() {
        let before = Tally { attempts: 100, timeouts: 10 };
        assert!(!Tally { attempts: 100, timeouts: 19 }.is_twice_as_bad_as(before));
        assert!(Tally { attempts: 100, timeouts: 20 }.is_twice_as_bad_as(before));
        assert!(Tally { attempts: 100, timeouts: 2 }.is_twice_as_bad_as(Tally::default()), "nothing doubles to anything");
    }

    #[test]
    fn a_shortening_is_on_trial_for_a_day() {
        let mut adaptive = Adaptive::default();
        assert_eq!(adaptive.shortened_at(day(1)), None);
        daily(&mut adaptive, day(1), 1_000);
        assert_eq!(adaptive.shortened_at(day(2)), Some(day(1)));
        assert_eq!(adaptive.shortened_at(day(2) + Duration::from_millis(1)), None);
    }

    #[test]
    fn what_is_stored_of_it_is_all_of_it() {
        let mut adaptive = Adaptive::default();
        daily(&mut adaptive, day(1), 1_000);
        assert_eq!(Adaptive::stored(adaptive.learned().copied(), adaptive.descent()), Some(adaptive));
        assert_eq!(Adaptive::stored(None, adaptive.descent()), None, "a shortening was learned, or it was none");
        assert_eq!(Adaptive::stored(None, Descent::None), Some(Adaptive::default()));
    }

    #[test]
    fn a_pin_lies_over_what_was_learned_and_leaves_it_alone() {
        let mut adaptive = Adaptive::default();
        daily(&mut adaptive, day(1), 9_000);
        let pinned = Mode::Manual(Pinned::new(Duration::from_mins(1)).unwrap());
        assert_eq!(adaptive.in_force(pinned, &RULES), (Duration::from_mins(1), Method::Manual));
        assert_eq!(adaptive.in_force(Mode::Adaptive, &RULES).0, Duration::from_secs(14));
        assert!(Pinned::new(Duration::from_millis(999)).is_err());
        assert!(Pinned::new(Duration::from_millis(60_001)).is_err());
    }

    proptest! {
        /// I30: inside its bounds, and falling only by the two steps.
        #[test]
        fn i30_it_stays_in_bounds_and_falls_by_two_steps_only(p99s in prop::collection::vec((0u64..60_000, 0i64..3, 0u64..30), 1..60)) {
            let mut adaptive = Adaptive::default();
            let mut today = 1;
            let mut last = 10_000;
            let mut last_fall = None;
            let mut raised_since_fall = false;
            for (p99, gap, timeouts) in p99s {
                today += gap;
                adaptive.review(day(today), Tally { attempts: 100, timeouts });
                let reviewed = adaptive.in_force(Mode::Adaptive, &RULES).0.as_millis();
                prop_assert!(reviewed >= last, "a review never shortens");
                let next = daily(&mut adaptive, day(today), p99);
                prop_assert!((1_000..=30_000).contains(&next));
                if next < reviewed {
                    let week_over = last_fall.is_none_or(|fall| today - fall >= 7);
                    prop_assert!(next * 4 >= reviewed * 3 || (week_over && last_fall.is_some()), "{} to {}", reviewed, next);
                    prop_assert!(week_over || raised_since_fall, "two falls are a week apart");
                    last_fall = Some(today);
                    raised_since_fall = false;
                }
                raised_since_fall |= next > reviewed;
                last = next;
            }
        }
    }
}
