//! What a world is made of, drawn at random: tenants, endpoints, receivers.

use std::collections::BTreeSet;
use std::time::Duration;

use posthaste_core::bucket::RateLimit;
use posthaste_core::circuit::CircuitPolicy;
use posthaste_core::endpoint::Subscription;
use posthaste_core::event::TypePatterns;
use posthaste_core::quiet_hours::{Days, QuietHours, TimeOfDay, Window};
use posthaste_core::retry::{Jitter, RetryPolicy, Strategy};
use posthaste_core::scheduler::{LaneConfig, TenantConfig};
use posthaste_core::tenant::Share;
use posthaste_core::timeout::{Mode, Pinned};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// How a receiver behaves for a while.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Mood {
    Healthy,
    Failing(u16),
    Hanging,
    Refusing,
    Flaky,
    Limiting(u64),
    /// Answers well, after so many milliseconds.
    Slow(u64),
    /// Fails at once, or answers well after a while.
    Uneven,
}

pub(crate) fn tenant_config(random: &mut ChaCha8Rng) -> TenantConfig {
    let share = Share::new(random.random_range(1..=3u32), [2, 8, 256][random.random_range(0..3usize)]).expect("valid");
    let rate_limit = (random.random_range(0..5u32) == 0)
        .then(|| RateLimit::new(random.random_range(20..600u32), random.random_range(1..20u32)).expect("valid"));
    TenantConfig { share, rate_limit }
}

pub(crate) fn lane_config(random: &mut ChaCha8Rng) -> LaneConfig {
    let rate_limit = (random.random_range(0..3u32) == 0).then(|| {
        RateLimit::new([1, 6, 60, 600][random.random_range(0..4usize)], [1, 3, 20][random.random_range(0..3usize)]).expect("valid")
    });
    let schedule = (random.random_range(0..3u32) == 0).then(|| {
        let time = |minutes: u32| TimeOfDay::parse(&format!("{:02}:{:02}", minutes / 60, minutes % 60)).expect("valid");
        let start = random.random_range(0..1440u32);
        let end = (start + random.random_range(1..900u32)) % 1440;
        let zone = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata"][random.random_range(0..4usize)];
        let bypass: &[&str] = if random.random_range(0..2u32) == 0 { &["user.made"] } else { &[] };
        QuietHours::new(
            zone,
            vec![Window { start: time(start), end: time(end), days: Days::ALL }],
            vec![],
            TypePatterns::default(),
            TypePatterns::parse(bypass.iter().copied()).expect("valid"),
        )
        .expect("it opens")
    });
    let retry = match random.random_range(0..3u32) {
        0 => RetryPolicy::default(),
        1 => {
            let delays = vec![Duration::from_secs(random.random_range(0..60u64)); random.random_range(0..5usize)];
            RetryPolicy::new(Strategy::Schedule { delays, jitter_percent: 20 }, 8, BTreeSet::new()).expect("valid")
        }
        _ => {
            let jitter = [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated][random.random_range(0..4usize)];
            let strategy =
                Strategy::Exponential { base: Duration::from_secs(1), factor: 2.0, cap: Duration::from_mins(10), jitter };
            RetryPolicy::new(strategy, random.random_range(1..12u32), BTreeSet::from([404])).expect("valid")
        }
    };
    let off: &[&str] = if random.random_range(0..4u32) == 0 { &["order.sent"] } else { &[] };
    let subscription =
        Subscription { disabled_event_types: TypePatterns::parse(off.iter().copied()).expect("valid"), ..Subscription::default() };
    LaneConfig {
        subscription,
        max_in_flight: [1, 2, 16][random.random_range(0..3usize)],
        rate_limit,
        schedule,
        circuit: CircuitPolicy::new(random.random_range(1..8u32), Duration::from_secs(random.random_range(1..120u64)))
            .expect("valid"),
        retry,
        ..LaneConfig::default()
    }
}

pub(crate) fn mood(random: &mut ChaCha8Rng) -> Mood {
    match random.random_range(0..17u32) {
        0..=7 => Mood::Healthy,
        8 | 9 => Mood::Failing([500, 503, 404, 302, 409, 400][random.random_range(0..6usize)]),
        10 => Mood::Hanging,
        11 => Mood::Refusing,
        12 => Mood::Limiting(random.random_range(0..2000u64)),
        14 => Mood::Uneven,
        16 => Mood::Slow(random.random_range(500..12_000u64)),
        13 if random.random_range(0..4u32) == 0 => Mood::Failing(410),
        _ => Mood::Flaky,
    }
}

pub(crate) fn timeout_mode(random: &mut ChaCha8Rng) -> Mode {
    if random.random_range(0..4u32) == 0 {
        Mode::Manual(Pinned::new(Duration::from_secs(random.random_range(1..=60u64))).expect("valid"))
    } else {
        Mode::Adaptive
    }
}
