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
        let listed = match case.policy.strategy() {
            Back::Schedule { delays, .. } => delays.len() + 1,
            Back::Exponential { .. } => usize::MAX,
        };
        let last = case.policy.max_attempts().min(u32::try_from(listed).unwrap_or(u32::MAX));
        if case.attempt >= last {
            prop_assert_eq!(verdict, Verdict::Dead(DeadReason::MaxAttemptsExceeded));
            return Ok(());
        }
        let Verdict::RetryAt { at, hold_lane_until } = verdict else { panic!("{verdict:?}") };
        let asked = match case.outcome {
            Outcome::Answered { status: 429 | 503, retry_after } => retry_after.map(|wait| wait.as_secs_f64().min(86_400.0) * 1000.0),
            Outcome::Answered { .. } | Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => None,
        };
        let (low, high) = bounds(case.policy.strategy(), case.attempt);
        let (low, high) = (low.max(asked.unwrap_or(0.0)), high.max(asked.unwrap_or(0.0)));
        let wait = at.since(now).as_secs_f64() * 1000.0;
        // Whole milliseconds, and a billionth for the order in which floating point multiplied.
        prop_assert!(wait >= low - 1.001 - low * 1e-9, "{} is below {}", wait, low);
        prop_assert!(wait <= high + 1.001 + high * 1e-9, "{} is above {}", wait, high);
        let lane = hold_lane_until.map(|until| until.since(now).as_secs_f64() * 1000.0);
        prop_assert_eq!(lane, asked.map(|wait| wait.min(900_000.0)));
        prop_assert_eq!(delivery::judge(now, delivery, case.attempt, &case.outcome, &case.policy), verdict, "the same every time");
    }
}
