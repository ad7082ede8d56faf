//! Credentials that were not accepted: how often from each address, counted and logged.
//!
//! Above its rate an address is told to wait. A valid credential is accepted all the same: many callers may share one address,
//! and one of them must not keep the others out. Credentials are too long to be guessed at any rate.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use posthaste_core::bucket::{Bucket, RateLimit};
use posthaste_core::time::Timestamp;
use posthaste_metrics::{Counter, Kind, Metrics};

use crate::problem::Problem;

/// A mistyped key is tried a few times; a program with a stale one goes on for ever.
static LIMIT: LazyLock<RateLimit> = LazyLock::new(|| RateLimit::new(60, 100).expect("within its bounds"));
/// Beyond this many addresses, those that have been quiet are forgotten; where there are none, the rest share one bucket.
const ADDRESSES_MAX: usize = 10_000;
/// One line says how many there were since the one before.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Failures {
    counted: std::sync::Arc<Counter>,
    seen: Mutex<FailureCount>,
}

#[derive(Debug, Default)]
struct FailureCount {
    buckets: HashMap<Option<IpAddr>, Bucket>,
    logged_at: Option<Timestamp>,
    since_logged: u64,
}

impl Failures {
    pub(crate) fn new(metrics: Option<&Metrics>) -> Failures {
        let counted = std::sync::Arc::new(Counter::default());
        if let Some(metrics) = metrics {
            let counted = std::sync::Arc::clone(&counted);
            metrics.gather(move |page| {
                let help = "Calls whose key, session or portal code was not accepted.";
                page.family("posthaste_failed_authentications_total", Kind::Counter, help).sample(&[], counted.get() as f64);
            });
        }
        Failures { counted, seen: Mutex::default() }
    }

    /// What the caller is answered: the problem as it is, or, above the rate, that it has to wait. Only what is about a
    /// credential counts.
    pub(crate) fn refuse(&self, address: Option<IpAddr>, now: Timestamp, problem: Problem) -> Problem {
        if problem.status() != StatusCode::UNAUTHORIZED {
            return problem;
        }
        self.counted.add(1);
        let mut seen = self.seen.lock();
        seen.since_logged += 1;
        if seen.logged_at.is_none_or(|at| at + LOGGED_EVERY <= now) {
            let address = address.map(|address| address.to_string());
            tracing::warn!(address, failures = seen.since_logged, "authentication_failed");
            (seen.logged_at, seen.since_logged) = (Some(now), 0);
        }
        let Some(address) = address else { return problem };
        let network = network(address);
        if seen.buckets.len() >= ADDRESSES_MAX && !seen.buckets.contains_key(&Some(network)) {
            seen.buckets.retain(|_, bucket| !bucket.is_full(now, *LIMIT));
        }
        let is_known = seen.buckets.len() < ADDRESSES_MAX || seen.buckets.contains_key(&Some(network));
        let bucket = seen.buckets.entry(is_known.then_some(network)).or_insert_with(Bucket::full);
        match bucket.take(now, *LIMIT) {
            Ok(()) => problem,
            Err(ready) => Problem::too_many_failures(ready.since(now)),
        }
    }
}

/// A household or a machine has a whole /64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_fails_too_often_is_told_to_wait_and_others_are_not() {
        let failures = Failures::new(None);
        let now = Timestamp::from_millis(1_000_000);
        let fail =
            |address: &str, now| failures.refuse(Some(address.parse().unwrap()), now, Problem::unauthorized()).status().as_u16();
        for _ in 0..100 {
            assert_eq!(fail("192.0.2.1", now), 401);
        }
        assert_eq!(fail("192.0.2.1", now), 429);
        assert_eq!(fail("::ffff:192.0.2.1", now), 429, "the same address in another spelling");
        assert_eq!(fail("192.0.2.2", now), 401);
        assert_eq!(fail("192.0.2.1", now + Duration::from_secs(1)), 401);
        for _ in 0..100 {
            fail("2001:db8::1", now);
        }
        assert_eq!(fail("2001:db8::2", now), 429, "the same network");
        assert_eq!(failures.refuse(None, now, Problem::not_found()).status(), 404, "not about a credential");
        assert_eq!(failures.counted.get(), 205);
    }

    #[test]
    fn there_is_a_bound_on_addresses_that_are_remembered() {
        let failures = Failures::new(None);
        let now = Timestamp::from_millis(1_000_000);
        for number in 0..20_000_u32 {
            failures.refuse(Some(IpAddr::V4(number.into())), now, Problem::unauthorized());
        }
        assert!(failures.seen.lock().buckets.len() <= ADDRESSES_MAX + 1);
    }
}
