//! A token bucket in one number.
//!
//! Over any t minutes at most `burst_capacity + max_per_minute × t` requests leave. The whole
//! bucket is the moment at which it will be full again (the generic cell rate algorithm), so
//! that it costs eight bytes, needs no ticking, and is handed over by writing it down.
//!
//! Whoever cannot know what was spent before (a crash, a takeover) starts with an empty
//! bucket, never with a full one: no restart grants a fresh burst.

use std::time::Duration;

use crate::time::Timestamp;

/// `max_per_minute` sustained, `burst_capacity` at once. Unlimited is `None` of this, not a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateLimit {
    max_per_minute: u32,
    burst_capacity: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RateLimitError {
    #[error("max_per_minute is 1 to 1,000,000; to stop sending, pause the endpoint")]
    MaxPerMinute,
    #[error("burst_capacity is 1 to 1,000,000")]
    BurstCapacity,
}

impl RateLimit {
    pub fn new(max_per_minute: u32, burst_capacity: u32) -> Result<RateLimit, RateLimitError> {
        if !(1..=1_000_000).contains(&max_per_minute) {
            return Err(RateLimitError::MaxPerMinute);
        }
        if !(1..=1_000_000).contains(&burst_capacity) {
            return Err(RateLimitError::BurstCapacity);
        }
        Ok(RateLimit { max_per_minute, burst_capacity })
    }

    pub fn max_per_minute(&self) -> u32 {
        self.max_per_minute
    }

    pub fn burst_capacity(&self) -> u32 {
        self.burst_capacity
    }

    /// The time in which one token drips in, rounded up: rather a billionth too slow than one request too many.
    fn interval_nanos(self) -> i128 {
        i128::from(60_000_000_000u64.div_ceil(u64::from(self.max_per_minute)))
    }

    /// The time in which an empty bucket fills up.
    fn span_nanos(self) -> i128 {
        self.interval_nanos() * i128::from(self.burst_capacity)
    }
}

/// The state of one bucket. Which limit applies is said at each call, so that it lives in one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// When it will be full again, in nanoseconds since 1970.
    full_at_nanos: i64,
}

impl Bucket {
    /// For an endpoint that has just been made: nobody has spent anything yet.
    pub fn full() -> Bucket {
        Bucket { full_at_nanos: i64::MIN }
    }

    /// For whoever takes over without knowing what was spent.
    pub fn empty(now: Timestamp, limit: RateLimit) -> Bucket {
        Bucket::with_debt(now, limit.span_nanos())
    }

    /// For the store, which keeps the one number.
    pub fn from_nanos(full_at_nanos: i64) -> Bucket {
        Bucket { full_at_nanos }
    }

    pub fn as_nanos(self) -> i64 {
        self.full_at_nanos
    }

    /// Takes a token, or says when the next one will be there.
    pub fn take(&mut self, now: Timestamp, limit: RateLimit) -> Result<(), Timestamp> {
        match self.ready_at(now, limit, 1) {
            ready if ready <= now => {
                *self = Bucket::with_debt(now, self.debt_nanos(now, limit) + limit.interval_nanos());
                Ok(())
            }
            ready => Err(ready),
        }
    }

    /// Takes so many tokens for what has been done already, whether they are there or not.
    pub fn charge(&mut self, now: Timestamp, limit: RateLimit, tokens: u64) {
        *self = Bucket::with_debt(now, self.debt_nanos(now, limit) + limit.interval_nanos() * i128::from(tokens));
    }

    /// When the `place`-th token from now (the next is the first) will be there, if nobody else takes one.
    pub fn ready_at(self, now: Timestamp, limit: RateLimit, place: u64) -> Timestamp {
        assert!(0 < place, "places are counted from 1");
        let needed = self.debt_nanos(now, limit) + limit.interval_nanos() * i128::from(place);
        let wait_nanos = (needed - limit.span_nanos()).max(0);
        let wait_millis = i64::try_from(div_ceil(wait_nanos, 1_000_000)).unwrap_or(i64::MAX);
        Timestamp::from_millis(now.as_millis().saturating_add(wait_millis))
    }

    /// When a token will be there that is not there yet: whoever is behind those that are waits until then at least.
    pub fn next_token_at(self, now: Timestamp, limit: RateLimit) -> Timestamp {
        let tokens = (limit.span_nanos() - self.debt_nanos(now, limit)) / limit.interval_nanos();
        self.ready_at(now, limit, u64::try_from(tokens).unwrap_or(0) + 1)
    }

    /// For how long a token has been there that nobody has taken; zero if there is none.
    pub fn ready_for(self, now: Timestamp, limit: RateLimit) -> Duration {
        let ready_at = i128::from(self.full_at_nanos) - limit.span_nanos() + limit.interval_nanos();
        Duration::from_nanos(u64::try_from((nanos(now) - ready_at).max(0)).unwrap_or(u64::MAX))
    }

    pub fn is_full(self, now: Timestamp, limit: RateLimit) -> bool {
        self.debt_nanos(now, limit) == 0
    }

    /// Carries what was spent over to a new limit. Tokens already there stay, as far as they fit; none are given.
    #[must_use]
    pub fn under(self, now: Timestamp, old: RateLimit, new: RateLimit) -> Bucket {
        // In the old bucket's nanoseconds, because tokens are fractions.
        let kept = (old.span_nanos() - self.debt_nanos(now, old)).min(old.interval_nanos() * i128::from(new.burst_capacity));
        let kept_in_new = kept * new.interval_nanos() / old.interval_nanos();
        Bucket::with_debt(now, new.span_nanos() - kept_in_new)
    }

    /// After so many more were taken, each as soon as it was there.
    #[must_use]
    pub fn spent(self, now: Timestamp, limit: RateLimit, count: u64) -> Bucket {
        Bucket::with_debt(now, self.debt_nanos(now, limit) + limit.interval_nanos() * i128::from(count))
    }

    fn with_debt(now: Timestamp, debt_nanos: i128) -> Bucket {
        let full_at = nanos(now) + debt_nanos;
        Bucket { full_at_nanos: i64::try_from(full_at).unwrap_or(if full_at < 0 { i64::MIN } else { i64::MAX }) }
    }

    /// How far from full, as time; at most the whole bucket, whatever a clock that went back would say.
    fn debt_nanos(self, now: Timestamp, limit: RateLimit) -> i128 {
        (i128::from(self.full_at_nanos) - nanos(now)).clamp(0, limit.span_nanos())
    }
}

fn nanos(at: Timestamp) -> i128 {
    i128::from(at.as_millis()) * 1_000_000
}

fn div_ceil(value: i128, divisor: i128) -> i128 {
    (value + divisor - 1).div_euclid(divisor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + millis)
    }

    /// How many go out at once.
    fn burst(bucket: &mut Bucket, now: Timestamp, limit: RateLimit) -> usize {
        (0..2_000_000).take_while(|_| bucket.take(now, limit).is_ok()).count()
    }

    #[test]
    fn ten_thousand_held_drain_in_97_and_a_half_minutes() {
        let limit = RateLimit::new(100, 250).unwrap();
        let mut bucket = Bucket::full();
        let mut now = at(0);
        let mut at_once = 0;
        for _ in 0..10_000 {
            while let Err(ready) = bucket.take(now, limit) {
                now = ready;
            }
            at_once += usize::from(now == at(0));
        }
        assert_eq!(at_once, 250);
        assert_eq!(now.since(at(0)).as_millis(), 97_500 * 60);
    }

    #[test]
    fn an_empty_bucket_gives_one_token_per_interval() {
        let limit = RateLimit::new(60, 5).unwrap();
        let mut bucket = Bucket::empty(at(0), limit);
        assert_eq!(bucket.take(at(0), limit), Err(at(1000)));
        assert_eq!(bucket.take(at(999), limit), Err(at(1000)));
        assert_eq!(bucket.take(at(1000), limit), Ok(()));
        assert_eq!(bucket.take(at(1000), limit), Err(at(2000)));
        assert_eq!(burst(&mut bucket, at(100_000), limit), 5);
        assert!(!bucket.is_full(at(104_999), limit));
        assert!(bucket.is_full(at(105_000), limit));
    }

    #[test]
    fn the_place_in_the_lane_says_when() {
        let limit = RateLimit::new(60, 2).unwrap();
        let mut bucket = Bucket::full();
        assert_eq!(bucket.ready_at(at(0), limit, 2), at(0));
        assert_eq!(bucket.ready_at(at(0), limit, 3), at(1000));
        assert_eq!(bucket.ready_at(at(0), limit, 1_000_002), at(1_000_000_000));
        burst(&mut bucket, at(0), limit);
        assert_eq!(bucket.ready_at(at(500), limit, 1), at(1000));
        assert_eq!(bucket.ready_at(at(500), limit, 3), at(3000));
    }

    #[test]
    fn a_change_of_the_limit_gives_no_tokens_and_takes_none_that_fit() {
        let narrow = RateLimit::new(60, 4).unwrap();
        let wide = RateLimit::new(6000, 100).unwrap();
        let mut spent = Bucket::full();
        burst(&mut spent, at(0), narrow);
        assert_eq!(burst(&mut spent.under(at(0), narrow, wide), at(0), wide), 0, "nothing left is nothing left");
        let full = Bucket::full();
        assert_eq!(burst(&mut full.under(at(0), narrow, wide), at(0), wide), 4, "a larger bucket has to fill first");
        assert_eq!(burst(&mut full.under(at(0), wide, narrow), at(0), narrow), 4, "a smaller one overflows");
        assert_eq!(burst(&mut full.under(at(0), narrow, wide), at(1000), wide), 100, "and then it fills at the new rate");
    }

    #[test]
    fn a_clock_that_goes_back_costs_at_most_one_filling() {
        let limit = RateLimit::new(60, 5).unwrap();
        let mut bucket = Bucket::full();
        burst(&mut bucket, at(86_400_000), limit);
        assert_eq!(bucket.ready_at(at(0), limit, 1), at(1000));
    }

    #[test]
    fn the_widest_limits_do_not_overflow() {
        let slow = RateLimit::new(1, 1_000_000).unwrap();
        let fast = RateLimit::new(1_000_000, 1).unwrap();
        for now in [Timestamp::MIN, Timestamp::from_millis(0), Timestamp::MAX] {
            for (old, new) in [(slow, fast), (fast, slow)] {
                let mut bucket = Bucket::empty(now, old).under(now, old, new);
                let _ = bucket.take(now, new);
                let _ = bucket.ready_at(now, new, u64::MAX);
                let _ = Bucket::full().ready_at(now, new, u64::MAX);
            }
        }
    }

    #[test]
    fn zero_is_refused_because_it_could_mean_two_things() {
        assert_eq!(RateLimit::new(0, 1), Err(RateLimitError::MaxPerMinute));
        assert_eq!(RateLimit::new(1, 0), Err(RateLimitError::BurstCapacity));
        assert_eq!(RateLimit::new(1_000_001, 1), Err(RateLimitError::MaxPerMinute));
        assert_eq!(RateLimit::new(1, 1_000_001), Err(RateLimitError::BurstCapacity));
    }
}
