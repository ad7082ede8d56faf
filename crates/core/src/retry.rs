//! How long to wait before the next try, and when to give up.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::DeliveryId;
use crate::jitter;
use crate::time::millis;

/// When to try again, how often, and which further answers are worth another try.
#[derive(Clone, PartialEq, Debug)]
pub struct RetryPolicy {
    strategy: Strategy,
    max_attempts: u32,
    /// Statuses that would be permanent but are not for this endpoint.
    also_statuses: BTreeSet<u16>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Strategy {
    /// d = min(cap, base × factor^(n−1)) after n failures, spread by `jitter`.
    Exponential { base: Duration, factor: f64, cap: Duration, jitter: Jitter },
    /// The n-th delay after n failures, with up to `jitter_percent` of it added, at most [`SCHEDULE_JITTER_MAX`].
    Schedule { delays: Vec<Duration>, jitter_percent: u32 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Jitter {
    None,
    /// Uniform in [0, d].
    Full,
    /// d/2 and uniform in [0, d/2].
    Equal,
    /// d, up to so many percent more or less.
    Proportional {
        percent: u32,
    },
    /// min(cap, uniform in [base, 3 × the previous delay]).
    Decorrelated,
}

/// Further answers that are worth another try, as people name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlsoStatus {
    One(u16),
    /// `4xx`: all from 400 to 499 but 410, which disables the endpoint.
    ClientErrors,
}

impl AlsoStatus {
    /// The word for [`AlsoStatus::ClientErrors`].
    pub const CLIENT_ERRORS: &'static str = "4xx";

    pub fn statuses(self) -> impl Iterator<Item = u16> {
        let range = match self {
            AlsoStatus::One(status) => status..=status,
            AlsoStatus::ClientErrors => 400..=499,
        };
        range.filter(move |status| self != AlsoStatus::ClientErrors || *status != 410)
    }

    /// The shortest way to name these.
    pub fn naming(statuses: &BTreeSet<u16>) -> Vec<AlsoStatus> {
        let has_class = AlsoStatus::ClientErrors.statuses().all(|status| statuses.contains(&status));
        let is_covered = |status: u16| has_class && AlsoStatus::ClientErrors.statuses().any(|covered| covered == status);
        let class = has_class.then_some(AlsoStatus::ClientErrors);
        class.into_iter().chain(statuses.iter().copied().filter(|status| !is_covered(*status)).map(AlsoStatus::One)).collect()
    }
}

/// What a day's delay may gain: enough to spread a crowd, too little to be felt.
pub const SCHEDULE_JITTER_MAX: Duration = Duration::from_mins(5);
pub const ATTEMPTS_MAX: u32 = 50;
pub const DELAY_MAX: Duration = Duration::from_hours(7 * 24);
pub const BASE_MAX: Duration = Duration::from_hours(24);

/// The default: half a minute, then ever longer, for a day and a half.
const DEFAULT_DELAYS_SECONDS: [u64; 7] = [30, 120, 600, 1800, 7200, 21600, 86400];

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RetryPolicyError {
    #[error("max_attempts is 1 to 50")]
    MaxAttempts,
    #[error("base_ms is 1 to 86,400,000")]
    Base,
    #[error("factor is 1 to 10")]
    Factor,
    #[error("cap_ms is at least base_ms and at most 604,800,000 (7 days)")]
    Cap,
    #[error("jitter_percent is 0 to 100")]
    JitterPercent,
    #[error("delays_seconds has at most 50 delays")]
    TooManyDelays,
    #[error("each of delays_seconds is 0 to 604,800 (7 days)")]
    Delay,
    #[error("also_statuses names statuses from 400 to 499, or `4xx` for all of them but 410; all others are decided already")]
    AlsoStatus,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        let delays = DEFAULT_DELAYS_SECONDS.map(Duration::from_secs).to_vec();
        RetryPolicy::new(Strategy::Schedule { delays, jitter_percent: 20 }, 8, BTreeSet::new())
            .expect("our own default is within its bounds")
    }
}

impl RetryPolicy {
    pub fn new(strategy: Strategy, max_attempts: u32, also_statuses: BTreeSet<u16>) -> Result<RetryPolicy, RetryPolicyError> {
        if !(1..=ATTEMPTS_MAX).contains(&max_attempts) {
            return Err(RetryPolicyError::MaxAttempts);
        }
        if !also_statuses.iter().all(|status| (400..=499).contains(status)) {
            return Err(RetryPolicyError::AlsoStatus);
        }
        match &strategy {
            Strategy::Exponential { base, factor, cap, jitter } => {
                if !(Duration::from_millis(1)..=BASE_MAX).contains(base) {
                    return Err(RetryPolicyError::Base);
                }
                if !(1.0..=10.0).contains(factor) {
                    return Err(RetryPolicyError::Factor);
                }
                if cap < base || *cap > DELAY_MAX {
                    return Err(RetryPolicyError::Cap);
                }
                if matches!(jitter, Jitter::Proportional { percent } if *percent > 100) {
                    return Err(RetryPolicyError::JitterPercent);
                }
            }
            Strategy::Schedule { delays, jitter_percent } => {
                if delays.len() > ATTEMPTS_MAX as usize {
                    return Err(RetryPolicyError::TooManyDelays);
                }
                if delays.iter().any(|delay| *delay > DELAY_MAX) {
                    return Err(RetryPolicyError::Delay);
                }
                if *jitter_percent > 100 {
                    return Err(RetryPolicyError::JitterPercent);
                }
            }
        }
        Ok(RetryPolicy { strategy, max_attempts, also_statuses })
    }

    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    pub fn also_statuses(&self) -> &BTreeSet<u16> {
        &self.also_statuses
    }

    /// For the store: the setting itself, which a longer list of delays would bring to bear.
    pub fn max_attempts_as_set(&self) -> u32 {
        self.max_attempts
    }

    /// How many tries a delivery has in all: the setting, or fewer where the list of delays ends before.
    pub fn max_attempts(&self) -> u32 {
        match &self.strategy {
            Strategy::Exponential { .. } => self.max_attempts,
            Strategy::Schedule { delays, .. } => {
                let listed = u32::try_from(delays.len()).expect("at most fifty") + 1;
                self.max_attempts.min(listed)
            }
        }
    }

    /// The wait after attempt number `failures` failed, or `None` if that was the last.
    pub fn delay_after(&self, delivery: DeliveryId, failures: u32) -> Option<Duration> {
        assert!(0 < failures, "attempts are counted from 1");
        if failures >= self.max_attempts() {
            return None;
        }
        Some(match &self.strategy {
            Strategy::Exponential { base, factor, cap, jitter } => exponential(delivery, failures, *base, *factor, *cap, *jitter),
            Strategy::Schedule { delays, jitter_percent } => {
                let delay = delays[failures as usize - 1];
                let extra_max = percent_of(delay, *jitter_percent).min(SCHEDULE_JITTER_MAX);
                delay + jitter::between(jitter::draw(delivery, failures), Duration::ZERO, extra_max)
            }
        })
    }

    /// The shortest and the longest wait that [`RetryPolicy::delay_after`] can name, for those who check it.
    pub fn delay_bounds(&self, failures: u32) -> Option<(Duration, Duration)> {
        if failures == 0 || failures >= self.max_attempts() {
            return None;
        }
        Some(match &self.strategy {
            Strategy::Exponential { base, factor, cap, jitter } => {
                let full = grown(*base, *factor, *cap, failures);
                match jitter {
                    Jitter::None => (full, full),
                    Jitter::Full => (Duration::ZERO, full),
                    Jitter::Equal => (half(full), full),
                    Jitter::Proportional { percent } => {
                        (full.saturating_sub(percent_of(full, *percent)), full + percent_of(full, *percent))
                    }
                    Jitter::Decorrelated => (*base, grown(*base, 3.0, *cap, failures + 1)),
                }
            }
            Strategy::Schedule { delays, jitter_percent } => {
                let delay = delays[failures as usize - 1];
                (delay, delay + percent_of(delay, *jitter_percent).min(SCHEDULE_JITTER_MAX))
            }
        })
    }
}

fn exponential(delivery: DeliveryId, failures: u32, base: Duration, factor: f64, cap: Duration, jitter: Jitter) -> Duration {
    let draw = jitter::draw(delivery, failures);
    let full = grown(base, factor, cap, failures);
    match jitter {
        Jitter::None => full,
        Jitter::Full => jitter::between(draw, Duration::ZERO, full),
        Jitter::Equal => jitter::between(draw, half(full), full),
        Jitter::Proportional { percent } => {
            let swing = percent_of(full, percent);
            jitter::between(draw, full.saturating_sub(swing), full + swing)
        }
        // The previous delay is not remembered but computed again, from the first one on.
        Jitter::Decorrelated => (1..=failures)
            .fold(base, |previous, failure| jitter::between(jitter::draw(delivery, failure), base, previous * 3).min(cap)),
    }
}

/// min(cap, base × factor^(n−1)), by repeated multiplication so that it is the same on every machine.
fn grown(base: Duration, factor: f64, cap: Duration, failures: u32) -> Duration {
    let cap_millis = millis(cap) as f64;
    let mut delay = millis(base) as f64;
    for _ in 1..failures {
        delay *= factor;
        if delay >= cap_millis {
            return cap;
        }
    }
    // At most the cap, which is seven days of milliseconds, and never negative.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by the cap just above")]
    let delay_millis = delay as u64;
    Duration::from_millis(delay_millis).min(cap)
}

fn half(duration: Duration) -> Duration {
    Duration::from_millis(millis(duration) / 2)
}

fn percent_of(duration: Duration, percent: u32) -> Duration {
    Duration::from_millis(millis(duration) * u64::from(percent) / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::fmt::Write;

    fn delivery(n: u128) -> DeliveryId {
        DeliveryId::from_bytes(n.to_be_bytes())
    }

    fn policy(strategy: Strategy, max_attempts: u32) -> RetryPolicy {
        RetryPolicy::new(strategy, max_attempts, BTreeSet::new()).unwrap()
    }

    fn exponential(jitter: Jitter) -> Strategy {
        Strategy::Exponential { base: Duration::from_secs(1), factor: 2.0, cap: Duration::from_mins(1), jitter }
    }

    /// The delays of one delivery, one after another.
    fn delays(policy: &RetryPolicy) -> String {
        let mut text = String::new();
        for failures in 1.. {
            let Some(delay) = policy.delay_after(delivery(7), failures) else { break };
            let (low, high) = policy.delay_bounds(failures).unwrap();
            writeln!(text, "{failures}: {delay:?} in {low:?}..={high:?}").unwrap();
        }
        text
    }

    #[test]
    fn a_class_of_statuses_is_named_as_it_was_given() {
        let expand = |named: &[AlsoStatus]| named.iter().flat_map(|named| named.statuses()).collect::<BTreeSet<u16>>();
        let class = expand(&[AlsoStatus::ClientErrors]);
        assert_eq!((class.len(), class.contains(&410), class.contains(&404)), (99, false, true));
        for named in [
            vec![],
            vec![AlsoStatus::One(404), AlsoStatus::One(422)],
            vec![AlsoStatus::ClientErrors],
            vec![AlsoStatus::ClientErrors, AlsoStatus::One(410)],
        ] {
            assert_eq!(AlsoStatus::naming(&expand(&named)), named);
        }
    }

    #[test]
    fn the_default_is_eight_attempts_over_a_day_and_a_half() {
        expect![[r#"
            1: 30.871s in 30s..=36s
            2: 132.519s in 120s..=144s
            3: 608.958s in 600s..=720s
            4: 1837.733s in 1800s..=2100s
            5: 7455.911s in 7200s..=7500s
            6: 21847.173s in 21600s..=21900s
            7: 86575.111s in 86400s..=86700s
        "#]]
        .assert_eq(&delays(&RetryPolicy::default()));
    }

    #[test]
    fn exponential_doubles_up_to_its_cap() {
        expect![[r"
            1: 1s in 1s..=1s
            2: 2s in 2s..=2s
            3: 4s in 4s..=4s
            4: 8s in 8s..=8s
            5: 16s in 16s..=16s
            6: 32s in 32s..=32s
            7: 60s in 60s..=60s
            8: 60s in 60s..=60s
        "]]
        .assert_eq(&delays(&policy(exponential(Jitter::None), 9)));
    }

    #[test]
    fn decorrelated_grows_from_its_own_last_delay() {
        expect![[r#"
            1: 1.29s in 1s..=3s
            2: 2.497s in 1s..=9s
            3: 1.484s in 1s..=27s
            4: 1.434s in 1s..=60s
            5: 3.817s in 1s..=60s
            6: 9.611s in 1s..=60s
        "#]]
        .assert_eq(&delays(&policy(exponential(Jitter::Decorrelated), 7)));
    }

    #[test]
    fn attempts_end_with_the_list_or_at_the_maximum_whichever_comes_first() {
        let list = |count: usize| Strategy::Schedule { delays: vec![Duration::from_secs(1); count], jitter_percent: 0 };
        assert_eq!(policy(list(3), 50).max_attempts(), 4);
        assert_eq!(policy(list(3), 2).max_attempts(), 2);
        assert_eq!(policy(list(0), 50).max_attempts(), 1);
        assert_eq!(policy(list(0), 50).delay_after(delivery(1), 1), None);
        assert_eq!(policy(list(3), 50).delay_after(delivery(1), 4), None);
        assert_eq!(policy(exponential(Jitter::Full), 1).delay_after(delivery(1), 1), None);
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        let refuse = |strategy, max_attempts| RetryPolicy::new(strategy, max_attempts, BTreeSet::new()).unwrap_err();
        let exponential = |base, factor, cap| Strategy::Exponential {
            base: Duration::from_millis(base),
            factor,
            cap: Duration::from_millis(cap),
            jitter: Jitter::None,
        };
        assert_eq!(refuse(exponential(0, 2.0, 1), 1), RetryPolicyError::Base);
        assert_eq!(refuse(exponential(86_400_001, 2.0, 100_000_000), 1), RetryPolicyError::Base);
        assert_eq!(refuse(exponential(1, 0.5, 1), 1), RetryPolicyError::Factor);
        assert_eq!(refuse(exponential(1, 10.1, 1), 1), RetryPolicyError::Factor);
        assert_eq!(refuse(exponential(1, f64::NAN, 1), 1), RetryPolicyError::Factor);
        assert_eq!(refuse(exponential(2, 1.0, 1), 1), RetryPolicyError::Cap);
        assert_eq!(refuse(exponential(1, 1.0, 604_800_001), 1), RetryPolicyError::Cap);
        assert_eq!(refuse(exponential(1, 1.0, 1), 0), RetryPolicyError::MaxAttempts);
        assert_eq!(refuse(exponential(1, 1.0, 1), 51), RetryPolicyError::MaxAttempts);
        let schedule =
            |delay, count, jitter_percent| Strategy::Schedule { delays: vec![Duration::from_secs(delay); count], jitter_percent };
        assert_eq!(refuse(schedule(604_801, 1, 0), 1), RetryPolicyError::Delay);
        assert_eq!(refuse(schedule(1, 51, 0), 1), RetryPolicyError::TooManyDelays);
        assert_eq!(refuse(schedule(1, 1, 101), 1), RetryPolicyError::JitterPercent);
        let also = RetryPolicy::new(schedule(1, 1, 0), 1, BTreeSet::from([404, 302])).unwrap_err();
        assert_eq!(also, RetryPolicyError::AlsoStatus);
    }
}
