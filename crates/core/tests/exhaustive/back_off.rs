//! I12: the wait between two attempts lies within what the policy says, and `Retry-After` is a lower bound.

use std::collections::BTreeSet;
use std::time::Duration;

use posthaste_core::delivery::{self, DeadReason, Outcome, Silence, Verdict};
use posthaste_core::id::DeliveryId;
use posthaste_core::retry::{Jitter, RetryPolicy, Strategy as Back};
use posthaste_core::time::Timestamp;
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Case {
    policy: RetryPolicy,
    max_attempts: u32,
    delivery: u128,
    attempt: u32,
    now: i64,
    outcome: Outcome,
}

fn jitter() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        Just(Jitter::None),
        Just(Jitter::Full),
        Just(Jitter::Equal),
        (0u32..=100).prop_map(|percent| Jitter::Proportional { percent }),
        Just(Jitter::Decorrelated),
    ]
}

fn back() -> impl Strategy<Value = Back> {
    let exponential = (1u64..=86_400_000, 1.0f64..=10.0, 1.0f64..=1000.0, jitter()).prop_map(|(base, factor, headroom, jitter)| {
        let base = Duration::from_millis(base);
        let cap = base.mul_f64(headroom).min(Duration::from_hours(7 * 24));
        Back::Exponential { base, factor, cap, jitter }
    });
    let schedule = (prop::collection::vec(0u64..=604_800, 0..12), 0u32..=100).prop_map(|(delays, jitter_percent)| Back::Schedule {
        delays: delays.into_iter().map(Duration::from_secs).collect(),
        jitter_percent,
    });
    prop_oneof![exponential, schedule]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let asked = prop::option::of((0u64..200_000).prop_map(Duration::from_secs));
    prop_oneof![
        (prop::sample::select(vec![429u16, 503, 500, 408, 409]), asked)
            .prop_map(|(status, retry_after)| Outcome::Answered { status, retry_after }),
        Just(Outcome::Silent(Silence::Timeout)),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    (back(), 1u32..=50, any::<u128>(), 1u32..=55, 0i64..4_000_000_000_000, outcome()).prop_map(
        |(back, max_attempts, delivery, attempt, now, outcome)| Case {
            policy: RetryPolicy::new(back, max_attempts, BTreeSet::new()).unwrap(),
            max_attempts,
            delivery,
            attempt,
            now,
            outcome,
        },
    )
}

/// The bounds in milliseconds, worked out here from the words of the requirement, in floating point.
fn bounds(back: &Back, failures: u32) -> (f64, f64) {
    let ms = |duration: &Duration| duration.as_secs_f64() * 1000.0;
    match back {
        Back::Exponential { base, factor, cap, jitter } => {
            let power = i32::try_from(failures).unwrap() - 1;
            let d = (ms(base) * factor.powi(power)).min(ms(cap));
            match jitter {
                Jitter::None => (d, d),
                Jitter::Full => (0.0, d),
                Jitter::Equal => (d / 2.0, d),
                Jitter::Proportional { percent } => {
                    (d * (1.0 - f64::from(*percent) / 100.0), d * (1.0 + f64::from(*percent) / 100.0))
                }
                Jitter::Decorrelated => (ms(base), (ms(base) * 3f64.powi(power + 1)).min(ms(cap))),
            }
        }
        Back::Schedule { delays, jitter_percent } => {
            let d = ms(&delays[failures as usize - 1]);
            (d, d + (d * f64::from(*jitter_percent) / 100.0).min(300_000.0))
        }
    }
}

proptest! {
    #![proptest_config(super::cases(super::MILLION))]

    #[test]
    fn i12_every_wait_lies_within_its_policy(case in case()) {
        let delivery = DeliveryId::from_bytes(case.delivery.to_be_bytes());
        let now = Timestamp::from_millis(case.now);
        let verdict = delivery::judge(now, delivery, case.attempt, &case.outcome, &case.policy);
        let asked = match case.outcome {
            Outcome::Answered { status: 429 | 503, retry_after } => retry_after.map(|wait| wait.as_secs_f64() * 1000.0),
            Outcome::Answered { .. } | Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => None,
        };
        let lane = delivery::lane_hold(now, &case.outcome).map(|until| until.since(now).as_secs_f64() * 1000.0);
        prop_assert_eq!(lane, asked.map(|wait| wait.min(900_000.0)), "the lane is held whatever becomes of the delivery");
        let last = match case.policy.strategy() {
            Back::Schedule { delays, .. } => case.max_attempts.min(u32::try_from(delays.len()).unwrap() + 1),
            Back::Exponential { .. } => case.max_attempts,
        };
        if case.attempt >= last {
            prop_assert_eq!(verdict, Verdict::Dead(DeadReason::MaxAttemptsExceeded));
            return Ok(());
        }
        let Verdict::RetryAt(at) = verdict else { panic!("{verdict:?}") };
        let asked = asked.unwrap_or(0.0).min(86_400_000.0);
        let (low, high) = bounds(case.policy.strategy(), case.attempt);
        let (low, high) = (low.max(asked), high.max(asked));
        let wait = at.since(now).as_secs_f64() * 1000.0;
        // Whole milliseconds, and a billionth for the order in which floating point multiplied.
        prop_assert!(wait >= low - 1.001 - low * 1e-9, "{} is below {}", wait, low);
        prop_assert!(wait <= high + 1.001 + high * 1e-9, "{} is above {}", wait, high);
        // Decorrelated: at most three times the delay before, which can be asked for too.
        if let Back::Exponential { base, cap, jitter: Jitter::Decorrelated, .. } = case.policy.strategy() {
            let before = if case.attempt == 1 { *base } else { case.policy.delay_after(delivery, case.attempt - 1).unwrap() };
            let delay = case.policy.delay_after(delivery, case.attempt).unwrap();
            prop_assert!(delay <= (before * 3).min(*cap));
        }
        prop_assert_eq!(delivery::judge(now, delivery, case.attempt, &case.outcome, &case.policy), verdict, "the same every time");
    }
}

/// Bounds alone would be kept by a jitter that always draws the same: each kind fills its range.
#[test]
fn every_jitter_spreads_over_its_whole_range() {
    for (jitter, low, high) in [
        (Jitter::Full, 0, 4000),
        (Jitter::Equal, 2000, 4000),
        (Jitter::Proportional { percent: 50 }, 2000, 6000),
        (Jitter::Decorrelated, 1000, 27_000),
    ] {
        let back = Back::Exponential { base: Duration::from_secs(1), factor: 2.0, cap: Duration::from_hours(1), jitter };
        let policy = RetryPolicy::new(back, 10, BTreeSet::new()).unwrap();
        let mut delays: Vec<u128> =
            (0..20_000u128).map(|n| policy.delay_after(DeliveryId::from_bytes(n.to_be_bytes()), 3).unwrap().as_millis()).collect();
        delays.sort_unstable();
        let span = high - low;
        assert!(delays[0] <= low + span / 50, "{jitter:?} reaches down: {}", delays[0]);
        assert!(delays[delays.len() - 1] >= high - span / 10, "{jitter:?} reaches up: {}", delays[delays.len() - 1]);
        if jitter != Jitter::Decorrelated {
            let middle = delays[delays.len() / 2];
            assert!(middle.abs_diff(low + span / 2) < span / 50, "{jitter:?} is even: {middle}");
        }
    }
}
