//! The circuit breaker: stop knocking at a door that nobody opens.
//!
//! After so many failures in a row the circuit opens. Nothing is sent then, and no attempt is
//! used up. After the probe interval exactly one delivery may try; if it arrives the circuit
//! closes, and otherwise it stays open for another interval.

use std::time::Duration;

use crate::delivery::Outcome;
use crate::plant::{self, Plant};
use crate::time::Timestamp;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CircuitPolicy {
    failure_threshold: u32,
    probe_interval: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CircuitPolicyError {
    #[error("failure_threshold is 1 to 1,000")]
    FailureThreshold,
    #[error("probe_interval_seconds is 1 to 86,400")]
    ProbeInterval,
}

impl CircuitPolicy {
    pub fn new(failure_threshold: u32, probe_interval: Duration) -> Result<CircuitPolicy, CircuitPolicyError> {
        if !(1..=1000).contains(&failure_threshold) {
            return Err(CircuitPolicyError::FailureThreshold);
        }
        if !(Duration::from_secs(1)..=Duration::from_hours(24)).contains(&probe_interval) {
            return Err(CircuitPolicyError::ProbeInterval);
        }
        Ok(CircuitPolicy { failure_threshold, probe_interval })
    }

    pub fn failure_threshold(&self) -> u32 {
        self.failure_threshold
    }

    pub fn probe_interval(&self) -> Duration {
        self.probe_interval
    }
}

impl Default for CircuitPolicy {
    fn default() -> CircuitPolicy {
        CircuitPolicy::new(5, Duration::from_mins(1)).expect("our own default is within its bounds")
    }
}

/// What one finished attempt says about the endpoint as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    Works,
    Fails,
    /// An answer, but to the question rather than about the endpoint's health: a 400, say, or a redirect.
    Neither,
}

impl Signal {
    pub fn of(outcome: &Outcome) -> Signal {
        match outcome {
            Outcome::Answered { status: 200..=299, .. } => Signal::Works,
            Outcome::Answered { status: 408 | 425 | 429 | 500..=599, .. } | Outcome::NotSent(_) | Outcome::Silent(_) => {
                Signal::Fails
            }
            Outcome::Answered { .. } | Outcome::Blocked => Signal::Neither,
        }
    }
}

/// The breaker of one endpoint. It survives a restart: the store keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breaker {
    Closed {
        failures: u32,
    },
    Open {
        since: Timestamp,
        probe_at: Timestamp,
        failures: u32,
    },
    /// A probe is on its way.
    HalfOpen {
        since: Timestamp,
        probe_started: Timestamp,
        failures: u32,
    },
}

/// What the breaker says to a delivery that would like to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permission {
    Go,
    /// Go, and tell [`Breaker::probing`]: everything hangs on this one.
    Probe,
    Wait {
        until: Timestamp,
    },
    /// A probe is on its way; its end decides, and when that will be nobody knows.
    AwaitProbe,
}

/// Worth telling: an alert, a metric, an operational event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transition {
    Opened,
    /// Closed after a good probe.
    Closed,
    /// The probe did not succeed.
    Reopened,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker::Closed { failures: 0 }
    }
}

impl Breaker {
    pub fn permission(&self, now: Timestamp) -> Permission {
        match *self {
            Breaker::Closed { .. } => Permission::Go,
            Breaker::Open { probe_at, .. } if probe_at <= now => Permission::Probe,
            Breaker::Open { probe_at, .. } if plant::is(Plant::ProbeTooEarly) && probe_at <= now + Duration::from_secs(10) => {
                Permission::Probe
            }
            Breaker::Open { probe_at, .. } => Permission::Wait { until: probe_at },
            Breaker::HalfOpen { .. } => Permission::AwaitProbe,
        }
    }

    /// The probe that was permitted has started.
    #[must_use]
    pub fn probing(self, now: Timestamp) -> Breaker {
        match self {
            Breaker::Open { since, failures, .. } => Breaker::HalfOpen { since, probe_started: now, failures },
            Breaker::Closed { .. } | Breaker::HalfOpen { .. } => self,
        }
    }

    /// An attempt has ended. `was_probe` is true for the one that [`Permission::Probe`] let through; answers to
    /// requests that were under way when the circuit opened are late news, and change nothing while it is open.
    #[must_use]
    pub fn after(self, now: Timestamp, signal: Signal, was_probe: bool, policy: &CircuitPolicy) -> (Breaker, Option<Transition>) {
        let was_probe = was_probe || plant::is(Plant::LateAnswerClosesCircuit);
        let open = |since, failures| Breaker::Open { since, probe_at: now + policy.probe_interval, failures };
        match (self, signal) {
            (Breaker::Closed { .. }, Signal::Works) => (Breaker::Closed { failures: 0 }, None),
            (Breaker::Closed { failures }, Signal::Fails) => {
                let failures = failures.saturating_add(1);
                if failures >= policy.failure_threshold && !plant::is(Plant::CircuitNeverOpens) {
                    (open(now, failures), Some(Transition::Opened))
                } else {
                    (Breaker::Closed { failures }, None)
                }
            }
            (Breaker::HalfOpen { .. }, Signal::Works) if was_probe => (Breaker::Closed { failures: 0 }, Some(Transition::Closed)),
            (Breaker::HalfOpen { since, failures, .. }, Signal::Fails) if was_probe => {
                (open(since, failures.saturating_add(1)), Some(Transition::Reopened))
            }
            // The probe got an answer that proves nothing: the next one decides.
            (Breaker::HalfOpen { since, failures, .. }, Signal::Neither) if was_probe => {
                (open(since, failures), Some(Transition::Reopened))
            }
            (Breaker::Closed { .. }, Signal::Neither)
            | (Breaker::HalfOpen { .. } | Breaker::Open { .. }, Signal::Works | Signal::Fails | Signal::Neither) => (self, None),
        }
    }

    /// What a new owner makes of a stored breaker: a probe that was on its way has been lost with the old one, and
    /// counts as made, so that a crash does not grant an extra knock.
    #[must_use]
    pub fn recovered(self, policy: &CircuitPolicy) -> Breaker {
        match self {
            Breaker::HalfOpen { since, probe_started, failures } => {
                Breaker::Open { since, probe_at: probe_started + policy.probe_interval, failures }
            }
            Breaker::Closed { .. } | Breaker::Open { .. } => self,
        }
    }

    /// The policy was changed. A lower threshold does not open a closed circuit without a further failure; a shorter
    /// interval brings the next probe forward, and a longer one does not put off a probe that was already promised.
    #[must_use]
    pub fn under(self, now: Timestamp, policy: &CircuitPolicy) -> Breaker {
        match self {
            Breaker::Open { since, probe_at, failures } => {
                Breaker::Open { since, probe_at: probe_at.min(now + policy.probe_interval), failures }
            }
            Breaker::Closed { .. } | Breaker::HalfOpen { .. } => self,
        }
    }

    pub fn consecutive_failures(&self) -> u32 {
        match *self {
            Breaker::Closed { failures } | Breaker::Open { failures, .. } | Breaker::HalfOpen { failures, .. } => failures,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::{NoConnection, Silence};
    use expect_test::{Expect, expect};
    use std::fmt::Write;

    /// Each word is a second and an answer; `late:` marks one that was under way before the circuit opened.
    fn check(script: &str, expected: &Expect) {
        let policy = CircuitPolicy::new(3, Duration::from_mins(1)).unwrap();
        let mut breaker = Breaker::default();
        let mut trace = String::new();
        for word in script.split(' ') {
            let (second, answer) = word.split_once('=').unwrap();
            let now = Timestamp::from_millis(second.parse::<i64>().unwrap() * 1000);
            let (late, answer) = answer.strip_prefix("late:").map_or((false, answer), |answer| (true, answer));
            let permission = breaker.permission(now);
            let may_go = late || matches!(permission, Permission::Go | Permission::Probe);
            if answer == "ask" || !may_go {
                writeln!(trace, "{second}s: {permission:?}").unwrap();
                continue;
            }
            let was_probe = !late && permission == Permission::Probe;
            if was_probe {
                breaker = breaker.probing(now);
                assert_eq!(breaker.permission(now), Permission::AwaitProbe, "one probe at a time");
            }
            let outcome = Outcome::Answered { status: answer.parse().unwrap(), retry_after: None };
            let (next, transition) = breaker.after(now, Signal::of(&outcome), was_probe, &policy);
            breaker = next;
            let told = transition.map(|transition| format!(" {transition:?}")).unwrap_or_default();
            writeln!(
                trace,
                "{second}s: {answer}{} ->{told} failures {}",
                if was_probe { " probe" } else { "" },
                breaker.consecutive_failures()
            )
            .unwrap();
        }
        expected.assert_eq(&trace);
    }

    #[test]
    fn it_opens_after_the_threshold_and_closes_after_a_good_probe() {
        check(
            "0=500 1=500 2=500 3=ask 61=ask 62=503 63=ask 122=200 123=ask",
            &expect![[r"
            0s: 500 -> failures 1
            1s: 500 -> failures 2
            2s: 500 -> Opened failures 3
            3s: Wait { until: Timestamp(62000) }
            61s: Wait { until: Timestamp(62000) }
            62s: 503 probe -> Reopened failures 4
            63s: Wait { until: Timestamp(122000) }
            122s: 200 probe -> Closed failures 0
            123s: Go
        "]],
        );
    }

    #[test]
    fn a_success_resets_the_count_and_an_odd_answer_does_nothing() {
        check(
            "0=500 1=500 2=200 3=500 4=404 5=409 6=500 7=302 8=500",
            &expect![[r"
            0s: 500 -> failures 1
            1s: 500 -> failures 2
            2s: 200 -> failures 0
            3s: 500 -> failures 1
            4s: 404 -> failures 1
            5s: 409 -> failures 1
            6s: 500 -> failures 2
            7s: 302 -> failures 2
            8s: 500 -> Opened failures 3
        "]],
        );
    }

    #[test]
    fn late_answers_neither_close_it_nor_put_off_the_probe() {
        check(
            "0=500 0=500 0=500 5=late:200 6=late:500 7=late:404 8=ask 60=200",
            &expect![[r"
            0s: 500 -> failures 1
            0s: 500 -> failures 2
            0s: 500 -> Opened failures 3
            5s: 200 -> failures 3
            6s: 500 -> failures 3
            7s: 404 -> failures 3
            8s: Wait { until: Timestamp(60000) }
            60s: 200 probe -> Closed failures 0
        "]],
        );
    }

    #[test]
    fn a_probe_that_proves_nothing_leaves_the_circuit_open() {
        check(
            "0=500 0=500 0=500 60=404 61=ask 120=204",
            &expect![[r"
            0s: 500 -> failures 1
            0s: 500 -> failures 2
            0s: 500 -> Opened failures 3
            60s: 404 probe -> Reopened failures 3
            61s: Wait { until: Timestamp(120000) }
            120s: 204 probe -> Closed failures 0
        "]],
        );
    }

    #[test]
    fn while_a_probe_is_on_its_way_only_its_own_answer_counts() {
        let policy = CircuitPolicy::default();
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let probing = Breaker::Open { since: at(0), probe_at: at(60), failures: 5 }.probing(at(60));
        for late in [Signal::Works, Signal::Fails, Signal::Neither] {
            assert_eq!(probing.after(at(61), late, false, &policy), (probing, None), "{late:?}");
        }
        assert_eq!(probing.after(at(61), Signal::Works, true, &policy).1, Some(Transition::Closed));
    }

    #[test]
    fn what_counts_is_what_says_something_about_the_endpoint() {
        let answered = |status| Signal::of(&Outcome::Answered { status, retry_after: None });
        for status in [500, 503, 599, 408, 425, 429] {
            assert_eq!(answered(status), Signal::Fails, "{status}");
        }
        for status in [200, 204, 299] {
            assert_eq!(answered(status), Signal::Works, "{status}");
        }
        for status in [0, 101, 301, 400, 404, 409, 410, 418, 600, 999] {
            assert_eq!(answered(status), Signal::Neither, "{status}");
        }
        for failure in [NoConnection::Dns, NoConnection::Connect, NoConnection::Tls] {
            assert_eq!(Signal::of(&Outcome::NotSent(failure)), Signal::Fails);
        }
        for silence in [Silence::Timeout, Silence::Reset] {
            assert_eq!(Signal::of(&Outcome::Silent(silence)), Signal::Fails);
        }
        assert_eq!(Signal::of(&Outcome::Blocked), Signal::Neither);
    }

    #[test]
    fn a_crash_during_a_probe_does_not_grant_another_at_once() {
        let policy = CircuitPolicy::default();
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let probing = Breaker::Open { since: at(0), probe_at: at(60), failures: 5 }.probing(at(60));
        assert_eq!(probing.recovered(&policy).permission(at(61)), Permission::Wait { until: at(120) });
        assert_eq!(probing.recovered(&policy).permission(at(120)), Permission::Probe);
    }

    #[test]
    fn a_shorter_interval_brings_the_probe_forward() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let open = Breaker::Open { since: at(0), probe_at: at(3600), failures: 5 };
        let shorter = CircuitPolicy::new(5, Duration::from_secs(10)).unwrap();
        assert_eq!(open.under(at(100), &shorter).permission(at(100)), Permission::Wait { until: at(110) });
        let longer = CircuitPolicy::new(5, Duration::from_hours(24)).unwrap();
        assert_eq!(open.under(at(100), &longer).permission(at(100)), Permission::Wait { until: at(3600) });
    }
}
