//! I23: over any interval at most burst + rate × time leave, whatever restarts and changes come between.

use posthaste_core::bucket::{Bucket, RateLimit};
use posthaste_core::time::Timestamp;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    /// As many go as can, up to a thousand.
    Drain,
    /// Time passes, then so many try to go.
    Wait {
        millis: i64,
        tries: u32,
    },
    /// Wait for exactly the moment that the bucket named.
    UntilReady,
    /// The process dies and somebody takes over who does not know what was spent.
    Restart,
    Change(RateLimit),
}

fn limit() -> impl Strategy<Value = RateLimit> {
    let per_minute = prop_oneof![1u32..=10, 1u32..=1000, 1u32..=1_000_000];
    let burst = prop_oneof![1u32..=5, 1u32..=1000, 1u32..=1_000_000];
    (per_minute, burst).prop_map(|(per_minute, burst)| RateLimit::new(per_minute, burst).unwrap())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop_oneof![0i64..=3, 0i64..=2000, 0i64..=600_000], 1u32..=6).prop_map(|(millis, tries)| Step::Wait { millis, tries }),
        3 => Just(Step::UntilReady),
        1 => Just(Step::Drain),
        1 => Just(Step::Restart),
        1 => limit().prop_map(Step::Change),
    ]
}

/// An ordinary bucket of tokens in floating point: what the words say, without the algorithm.
struct Model {
    tokens: f64,
    at: i64,
}

impl Model {
    fn advance(&mut self, now: i64, limit: RateLimit) {
        let dripped = (now - self.at) as f64 * f64::from(limit.max_per_minute()) / 60_000.0;
        self.tokens = (self.tokens + dripped).min(f64::from(limit.burst_capacity()));
        self.at = now;
    }
}

proptest! {
    #![proptest_config(super::cases(super::MILLION))]

    #[test]
    fn i23_no_interval_has_more_than_burst_and_rate_allow(first in limit(), steps in prop::collection::vec(step(), 1..24)) {
        let mut limit = first;
        let mut now = 1_800_000_000_000i64;
        let mut bucket = Bucket::full();
        let mut model = Model { tokens: f64::from(limit.burst_capacity()), at: now };
        // The linear check of the promise over hits under one limit: x_k = k − r·t_k, against its lowest so far.
        let (mut hits, mut lowest) = (0u32, f64::INFINITY);
        let started = now;
        // Rounding the interval up to a nanosecond makes a full bucket late by a sixtieth of a billionth of burst times rate.
        let lateness = |limit: RateLimit| f64::from(limit.burst_capacity()) * f64::from(limit.max_per_minute()) * 1.7e-11;
        let mut late = lateness(limit);
        for step in steps {
            let tries = match step {
                Step::Wait { millis, tries } => {
                    now += millis;
                    tries
                }
                Step::UntilReady => {
                    let ready = bucket.ready_at(Timestamp::from_millis(now), limit, 1).as_millis();
                    if ready > now {
                        let before = &mut bucket.clone();
                        prop_assert!(before.take(Timestamp::from_millis(ready - 1), limit).is_err(), "a moment earlier is too early");
                    }
                    now = ready;
                    1
                }
                Step::Drain => 1000,
                Step::Restart => {
                    bucket = Bucket::empty(Timestamp::from_millis(now), limit);
                    model.tokens = 0.0;
                    model.at = now;
                    0
                }
                Step::Change(to) => {
                    model.advance(now, limit);
                    bucket = bucket.under(Timestamp::from_millis(now), limit, to);
                    model.tokens = model.tokens.min(f64::from(to.burst_capacity()));
                    limit = to;
                    late += lateness(to);
                    (hits, lowest) = (0, f64::INFINITY);
                    0
                }
            };
            model.advance(now, limit);
            for _ in 0..tries {
                // Never too many, but for the rounding of floating point.
                let slack = 1e-6;
                match bucket.take(Timestamp::from_millis(now), limit) {
                    Ok(()) => {
                        prop_assert!(model.tokens >= 1.0 - slack, "sent with {} tokens", model.tokens);
                        model.tokens -= 1.0;
                        hits += 1;
                        let x = f64::from(hits) - f64::from(limit.max_per_minute()) * (now - started) as f64 / 60_000.0;
                        lowest = lowest.min(x);
                        prop_assert!(x - lowest + 1.0 <= f64::from(limit.burst_capacity()) + slack, "more than burst and rate allow");
                    }
                    Err(ready) => {
                        let millis_per_token = 60_000.0 / f64::from(limit.max_per_minute());
                        prop_assert!(model.tokens < 1.0 + slack + late + 1.0 / millis_per_token, "held with {} tokens", model.tokens);
                        let wait = (ready.as_millis() - now) as f64;
                        prop_assert!(wait >= 1.0 && wait <= millis_per_token + 1.0, "one token is never further than its interval");
                        break;
                    }
                }
            }
        }
    }
}
