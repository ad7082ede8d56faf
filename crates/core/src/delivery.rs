//! What becomes of a delivery: its states, and what an answer means for it.
//!
//! A receiver saying no is news, not an error. [`judge`] is the only place that turns
//! such news into a new state.

use std::time::Duration;

use crate::id::DeliveryId;
use crate::plant::{self, Plant};
use crate::retry::RetryPolicy;
use crate::retry_after::{LANE_HOLD_MAX, RETRY_AFTER_MAX};
use crate::time::Timestamp;

/// Where a delivery stands, as it is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Waiting for its turn, and not before `due`. Why it waits is the lane's business ([`crate::admission::explain`]).
    Waiting {
        due: Timestamp,
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

impl State {
    /// Not before then is it sent; `None` of one that has ended.
    pub fn due(self) -> Option<Timestamp> {
        match self {
            State::Waiting { due } => Some(due),
            State::Delivered { .. } | State::Dead { .. } | State::Cancelled { .. } => None,
        }
    }
}

/// Why nobody tries any more. A person has to look.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DeadReason {
    /// The receiver said that trying again is useless.
    PermanentFailure,
    MaxAttemptsExceeded,
    /// The receiver said 410: it does not want to hear from us again.
    EndpointGone,
    /// It had not arrived by `expires_at`, or waited longer than retention.
    Expired,
    /// The stored payload is not what was published.
    Corrupt,
}

/// Why a delivery was called off.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CancelReason {
    Requested,
    EndpointDeleted,
    Unsubscribed,
}

impl DeadReason {
    pub const ALL: [DeadReason; 5] = [
        DeadReason::PermanentFailure,
        DeadReason::MaxAttemptsExceeded,
        DeadReason::EndpointGone,
        DeadReason::Expired,
        DeadReason::Corrupt,
    ];

    /// The one word for it: in the database, in answers, in metrics.
    pub fn name(self) -> &'static str {
        match self {
            DeadReason::PermanentFailure => "permanent_failure",
            DeadReason::MaxAttemptsExceeded => "max_attempts_exceeded",
            DeadReason::EndpointGone => "endpoint_gone",
            DeadReason::Expired => "expired",
            DeadReason::Corrupt => "corrupt",
        }
    }
}

impl CancelReason {
    pub const ALL: [CancelReason; 3] = [CancelReason::Requested, CancelReason::EndpointDeleted, CancelReason::Unsubscribed];

    /// The one word for it, as [`DeadReason::name`].
    pub fn name(self) -> &'static str {
        match self {
            CancelReason::Requested => "requested",
            CancelReason::EndpointDeleted => "endpoint_deleted",
            CancelReason::Unsubscribed => "unsubscribed",
        }
    }
}

/// What came of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A response head came in time. `retry_after` is what the header of that name asked for.
    Answered { status: u16, retry_after: Option<Duration> },
    /// No connection came about, so nothing was sent.
    NotSent(NoConnection),
    /// No answer came, and we cannot know whether the receiver saw the request.
    Silent(Silence),
    /// We did not send: the address is not one we may reach.
    Blocked,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoConnection {
    Dns,
    Connect,
    Tls,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// The time was up.
    Timeout,
    /// The connection broke.
    Reset,
}

/// Where the time of an attempt went; `None` for what did not happen, as on a connection that was open.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Timings {
    pub dns: Option<Duration>,
    pub connect: Option<Duration>,
    pub tls: Option<Duration>,
    /// From sending to the head of the answer.
    pub first_byte: Option<Duration>,
}

/// What to do with the delivery after one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Delivered,
    RetryAt(Timestamp),
    Dead(DeadReason),
}

impl Verdict {
    /// The state that the delivery is in from now on.
    pub fn state(self, now: Timestamp) -> State {
        match self {
            Verdict::Delivered => State::Delivered { at: now },
            Verdict::RetryAt(at) => State::Waiting { due: at },
            Verdict::Dead(reason) => State::Dead { at: now, reason },
        }
    }

    /// When it is tried again, if it is.
    pub fn retry_at(self) -> Option<Timestamp> {
        match self {
            Verdict::RetryAt(at) => Some(at),
            Verdict::Delivered | Verdict::Dead(_) => None,
        }
    }

    /// A 410 ends more than the delivery: the endpoint is disabled with it.
    pub fn is_death(self) -> bool {
        match self {
            Verdict::Dead(_) => true,
            Verdict::Delivered | Verdict::RetryAt(_) => false,
        }
    }

    pub fn disables_endpoint(self) -> bool {
        self == Verdict::Dead(DeadReason::EndpointGone) && !plant::is(Plant::GoneDoesNotDisable)
    }
}

/// What an outcome is, before any policy about how often to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    Success,
    /// Another try may help.
    Temporary,
    /// Another try would get the same answer.
    Permanent,
    /// 410.
    Gone,
}

impl Outcome {
    /// The one word for it: in answers, logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Answered { status: 200..=299, .. } => "success",
            Outcome::Answered { .. } => "http_error",
            Outcome::NotSent(NoConnection::Dns) => "dns_error",
            Outcome::NotSent(NoConnection::Connect) => "connection_error",
            Outcome::NotSent(NoConnection::Tls) => "tls_error",
            Outcome::Silent(Silence::Timeout) => "timeout",
            Outcome::Silent(Silence::Reset) => "reset",
            Outcome::Blocked => "blocked",
        }
    }

    /// What a receiver has answered, if it has.
    pub fn status_code(&self) -> Option<u16> {
        match self {
            Outcome::Answered { status, .. } => Some(*status),
            Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => None,
        }
    }

    pub fn class(&self, policy: &RetryPolicy) -> Class {
        match self {
            Outcome::Answered { status, .. } => match status {
                200..=299 => Class::Success,
                408 | 409 | 425 | 429 => Class::Temporary,
                400..=499 if policy.also_statuses().contains(status) => Class::Temporary,
                410 => Class::Gone,
                300..=499 if plant::is(Plant::NotFoundIsRetried) => Class::Temporary,
                300..=499 => Class::Permanent,
                // 5xx, and statuses that no final answer should have.
                _ => Class::Temporary,
            },
            Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => Class::Temporary,
        }
    }

    /// What the receiver's wish to be left alone counts for: only these two statuses may express it.
    fn wait_asked_for(&self) -> Option<Duration> {
        match self {
            Outcome::Answered { status: 429 | 503, retry_after } => *retry_after,
            Outcome::Answered { .. } | Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => None,
        }
    }
}

/// Decides what attempt number `attempt` of a delivery has led to. `now` is when the attempt ended.
pub fn judge(now: Timestamp, delivery: DeliveryId, attempt: u32, outcome: &Outcome, policy: &RetryPolicy) -> Verdict {
    assert!(0 < attempt, "attempts are counted from 1");
    match outcome.class(policy) {
        Class::Success => Verdict::Delivered,
        Class::Gone => Verdict::Dead(DeadReason::EndpointGone),
        Class::Permanent => Verdict::Dead(DeadReason::PermanentFailure),
        Class::Temporary => match policy.delay_after(delivery, attempt) {
            None => Verdict::Dead(DeadReason::MaxAttemptsExceeded),
            Some(delay) => {
                let asked = outcome.wait_asked_for().filter(|_| !plant::is(Plant::RetryAfterIgnored)).unwrap_or(Duration::ZERO);
                let delay = if plant::is(Plant::RetryTooEarly) { delay / 2 } else { delay };
                Verdict::RetryAt(now + delay.max(asked.min(RETRY_AFTER_MAX)))
            }
        },
    }
}

/// Until when nothing else is sent there either, because the receiver asked to be left alone; also where it was the
/// delivery's last attempt.
pub fn lane_hold(now: Timestamp, outcome: &Outcome) -> Option<Timestamp> {
    let wait = outcome.wait_asked_for().filter(|_| !plant::is(Plant::LaneHoldIgnored))?;
    Some(now + wait.min(LANE_HOLD_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::Strategy;
    use expect_test::{Expect, expect};
    use std::collections::BTreeSet;
    use std::fmt::Write;

    fn delivery() -> DeliveryId {
        DeliveryId::from_bytes([7; 16])
    }

    fn outcome(word: &str) -> Outcome {
        match word {
            "dns" => Outcome::NotSent(NoConnection::Dns),
            "connect" => Outcome::NotSent(NoConnection::Connect),
            "tls" => Outcome::NotSent(NoConnection::Tls),
            "timeout" => Outcome::Silent(Silence::Timeout),
            "reset" => Outcome::Silent(Silence::Reset),
            "blocked" => Outcome::Blocked,
            _ => {
                let (status, wait) = word.split_once('/').map_or((word, None), |(status, wait)| (status, Some(wait)));
                let retry_after = wait.map(|wait| Duration::from_secs(wait.parse().unwrap()));
                Outcome::Answered { status: status.parse().unwrap(), retry_after }
            }
        }
    }

    /// Tries one delivery with these outcomes, each as soon as it is due.
    fn check(outcomes: &str, expected: &Expect) {
        let delays = [30, 120, 600].map(Duration::from_secs).to_vec();
        let policy = RetryPolicy::new(Strategy::Schedule { delays, jitter_percent: 0 }, 8, BTreeSet::from([404, 410])).unwrap();
        let mut now = Timestamp::from_millis(0);
        let mut trace = String::new();
        for (attempt, word) in (1..).zip(outcomes.split(' ')) {
            let verdict = judge(now, delivery(), attempt, &outcome(word), &policy);
            let hold = lane_hold(now, &outcome(word)).map(|until| format!(", lane held until {until:?}")).unwrap_or_default();
            writeln!(trace, "{}s: {word} -> {verdict:?}{hold}", now.as_seconds()).unwrap();
            match verdict {
                Verdict::RetryAt(at) => now = at,
                Verdict::Delivered | Verdict::Dead(_) => break,
            }
        }
        expected.assert_eq(&trace);
    }

    #[test]
    fn a_failing_endpoint_is_tried_until_the_policy_runs_out() {
        check(
            "500 timeout 503 500",
            &expect![[r"
            0s: 500 -> RetryAt(Timestamp(30000))
            30s: timeout -> RetryAt(Timestamp(150000))
            150s: 503 -> RetryAt(Timestamp(750000))
            750s: 500 -> Dead(MaxAttemptsExceeded)
        "]],
        );
    }

    #[test]
    fn retry_after_is_a_lower_bound_and_holds_the_lane_for_a_quarter_of_an_hour_at_most() {
        check(
            "429/10 503/3600 429/200000 200",
            &expect![[r"
            0s: 429/10 -> RetryAt(Timestamp(30000)), lane held until Timestamp(10000)
            30s: 503/3600 -> RetryAt(Timestamp(3630000)), lane held until Timestamp(930000)
            3630s: 429/200000 -> RetryAt(Timestamp(90030000)), lane held until Timestamp(4530000)
            90030s: 200 -> Delivered
        "]],
        );
    }

    #[test]
    fn the_lane_is_held_even_by_an_answer_to_a_last_attempt() {
        check(
            "500 500 500 503/900",
            &expect![[r"
            0s: 500 -> RetryAt(Timestamp(30000))
            30s: 500 -> RetryAt(Timestamp(150000))
            150s: 500 -> RetryAt(Timestamp(750000))
            750s: 503/900 -> Dead(MaxAttemptsExceeded), lane held until Timestamp(1650000)
        "]],
        );
    }

    #[test]
    fn only_429_and_503_may_ask_for_time() {
        check(
            "500/3600 408/3600 204/3600",
            &expect![[r"
            0s: 500/3600 -> RetryAt(Timestamp(30000))
            30s: 408/3600 -> RetryAt(Timestamp(150000))
            150s: 204/3600 -> Delivered
        "]],
        );
    }

    #[test]
    fn a_status_that_the_endpoint_names_is_tried_again_even_a_410() {
        check(
            "404 410 400",
            &expect![[r"
            0s: 404 -> RetryAt(Timestamp(30000))
            30s: 410 -> RetryAt(Timestamp(150000))
            150s: 400 -> Dead(PermanentFailure)
        "]],
        );
    }

    #[test]
    fn every_status_and_failure_has_its_class() {
        let policy = RetryPolicy::default();
        for status in 0..=1000u16 {
            let expected = match status {
                200..=299 => Class::Success,
                410 => Class::Gone,
                408 | 409 | 425 | 429 => Class::Temporary,
                300..=499 => Class::Permanent,
                _ => Class::Temporary,
            };
            assert_eq!(Outcome::Answered { status, retry_after: None }.class(&policy), expected, "{status}");
        }
        for word in ["dns", "connect", "tls", "timeout", "reset", "blocked"] {
            assert_eq!(outcome(word).class(&policy), Class::Temporary, "{word}");
        }
    }

    #[test]
    fn a_410_disables_the_endpoint_and_nothing_else_does() {
        let judge = |word: &str| judge(Timestamp::from_millis(0), delivery(), 1, &outcome(word), &RetryPolicy::default());
        assert_eq!(judge("410"), Verdict::Dead(DeadReason::EndpointGone));
        assert!(judge("410").disables_endpoint());
        for word in ["200", "302", "404", "500", "timeout", "blocked"] {
            assert!(!judge(word).disables_endpoint(), "{word}");
        }
    }
}
