//! How an endpoint is doing: a score, when to warn, when to stop.
//!
//! Only attempts count. Time that passes while a circuit is open, an endpoint is paused or
//! nothing is published proves nothing, so every decision is made at the end of an attempt.

use std::time::Duration;

use crate::plant::{self, Plant};
use crate::time::Timestamp;

/// When an endpoint is given up. Enabling it again is a person's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HealthPolicy {
    pub failures_in_a_row: u32,
    pub failing_for: Duration,
}

impl Default for HealthPolicy {
    fn default() -> HealthPolicy {
        HealthPolicy { failures_in_a_row: 100, failing_for: Duration::from_hours(5 * 24) }
    }
}

/// How an attempt ended, as far as health goes by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HealthSignal {
    Succeeded,
    Failed,
    /// The receiver answered, and another try would get the same answer: 3xx, or 4xx that is not retried.
    Refused,
}

/// The rule by which an endpoint is disabled, and its figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DisableReason {
    /// It answered 410.
    Gone,
    FailuresInARow {
        failures: u32,
    },
    FailingFor {
        failing_for: Duration,
        failures: u32,
    },
}

impl DisableReason {
    /// The one word for it: in the audit log and in notifications.
    pub fn name(self) -> &'static str {
        match self {
            DisableReason::Gone => "gone",
            DisableReason::FailuresInARow { .. } => "failures_in_a_row",
            DisableReason::FailingFor { .. } => "failing_for",
        }
    }
}

/// The failures since the last success.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Health {
    run: Option<FailingRun>,
    /// It was given up or warned about, and then enabled by a person: its next success is worth telling.
    awaits_recovery: bool,
}

/// One failure after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailingRun {
    pub since: Timestamp,
    pub last: Timestamp,
    /// The time from attempt to attempt, of which a long silence counts only so much.
    pub failing_for: Duration,
    pub failures: u32,
    /// How many of them were refusals.
    pub refusals: u32,
    pub told: Option<ReportedStage>,
}

/// What has been said about this run already.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ReportedStage {
    Warning(Warning),
    GivenUp,
}

/// The longest wait between two attempts of the default retry policy, and an hour. What is longer was a pause, or nothing
/// to send, and proves nothing.
const GAP_MAX: Duration = Duration::from_hours(25);

/// How much of the way to being disabled lies behind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Warning {
    /// It has answered, and refused, everything so far.
    Refusing,
    Half,
    NineTenths,
}

/// So many refusals in a row, and nothing else, are a receiver that wants something other than what it gets.
const REFUSALS_IN_A_ROW: u32 = 10;

/// Worth telling the tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HealthChange {
    Failing(Warning),
    /// Disable it now. Whoever enables it again starts with a new [`Health`].
    GiveUp,
    /// It works again, after a warning.
    Recovered,
}

impl Health {
    /// For the store, which keeps both.
    pub fn stored(run: Option<FailingRun>, awaits_recovery: bool) -> Health {
        Health { run, awaits_recovery }
    }

    /// For the store: what [`Health::stored`] takes.
    pub fn awaits_recovery(&self) -> bool {
        self.awaits_recovery
    }

    /// A person has enabled the endpoint: it starts anew, and if people were told that it failed, they are told when it works.
    #[must_use]
    pub fn enabled(self) -> Health {
        Health { run: None, awaits_recovery: self.awaits_recovery || self.run.is_some_and(|run| run.told.is_some()) }
    }

    /// It was given up. Unless a person enables it, nothing is sent there any more.
    pub fn is_given_up(&self) -> bool {
        self.run.is_some_and(|run| run.told == Some(ReportedStage::GivenUp))
    }

    /// By which rule, with what has been counted until now.
    pub fn reason_to_give_up(&self, policy: &HealthPolicy) -> Option<DisableReason> {
        let run = self.run.filter(|_| self.is_given_up())?;
        let failures = run.failures;
        Some(if failures >= policy.failures_in_a_row {
            DisableReason::FailuresInARow { failures }
        } else {
            DisableReason::FailingFor { failing_for: run.failing_for, failures }
        })
    }

    /// For the store: what [`Health::stored`] takes.
    pub fn run(&self) -> Option<FailingRun> {
        self.run
    }

    /// An attempt has ended. The same news is told once per run of failures.
    pub fn after(&mut self, now: Timestamp, ended: HealthSignal, policy: &HealthPolicy) -> Option<HealthChange> {
        if ended == HealthSignal::Succeeded {
            let was_told = self.run.take().is_some_and(|run| run.told.is_some());
            let was_awaited = std::mem::take(&mut self.awaits_recovery);
            return (was_told || was_awaited).then_some(HealthChange::Recovered);
        }
        let began = FailingRun { since: now, last: now, failing_for: Duration::ZERO, failures: 0, refusals: 0, told: None };
        let run = self.run.get_or_insert(began);
        run.failures = run.failures.saturating_add(1);
        run.refusals = run.refusals.saturating_add(u32::from(ended == HealthSignal::Refused));
        run.failing_for += now.since(run.last).min(GAP_MAX);
        run.last = now;
        let reached = |tenths: u32| {
            u64::from(run.failures) * 10 >= u64::from(policy.failures_in_a_row) * u64::from(tenths)
                || run.failing_for * 10 >= policy.failing_for * tenths
        };
        let telling = if reached(if plant::is(Plant::GivesUpTooSoon) { 5 } else { 10 }) {
            ReportedStage::GivenUp
        } else if reached(9) {
            ReportedStage::Warning(Warning::NineTenths)
        } else if reached(5) {
            ReportedStage::Warning(Warning::Half)
        } else if run.failures >= REFUSALS_IN_A_ROW && run.refusals == run.failures {
            ReportedStage::Warning(Warning::Refusing)
        } else {
            return None;
        };
        if run.told >= Some(telling) {
            return None;
        }
        run.told = Some(telling);
        Some(match telling {
            ReportedStage::Warning(warning) => HealthChange::Failing(warning),
            ReportedStage::GivenUp => HealthChange::GiveUp,
        })
    }

    pub fn failing_since(&self) -> Option<Timestamp> {
        self.run.map(|run| run.since)
    }

    pub fn consecutive_failures(&self) -> u32 {
        self.run.map_or(0, |run| run.failures)
    }

    /// Unhealthy means warned about, or failing more than half of the attempts of the last hour.
    pub fn is_healthy(&self, attempts: u64, score: u32) -> bool {
        let warned = self.run.is_some_and(|run| run.told.is_some());
        let mostly_failing = attempts >= 10 && score < 50;
        !warned && !mostly_failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hour(hours: i64) -> Timestamp {
        Timestamp::from_millis(hours * 3_600_000)
    }

    #[test]
    fn a_hundred_failures_in_a_row_are_too_many_and_two_warnings_come_before() {
        let mut health = Health::default();
        let policy = HealthPolicy::default();
        let mut news = vec![];
        for attempt in 1..=100 {
            if let Some(told) = health.after(hour(0), HealthSignal::Failed, &policy) {
                news.push((attempt, told));
            }
        }
        assert_eq!(
            news,
            [
                (50, HealthChange::Failing(Warning::Half)),
                (90, HealthChange::Failing(Warning::NineTenths)),
                (100, HealthChange::GiveUp)
            ]
        );
    }

    #[test]
    fn five_days_of_failing_are_too_many_even_with_few_attempts() {
        let mut health = Health::default();
        let policy = HealthPolicy::default();
        let mut news = vec![];
        for hours in (0..=120).step_by(12) {
            if let Some(told) = health.after(hour(hours), HealthSignal::Failed, &policy) {
                news.push((hours, told));
            }
        }
        assert_eq!(
            news,
            [
                (60, HealthChange::Failing(Warning::Half)),
                (108, HealthChange::Failing(Warning::NineTenths)),
                (120, HealthChange::GiveUp)
            ]
        );
        assert_eq!(health.failing_since(), Some(hour(0)));
        assert_eq!(health.after(hour(121), HealthSignal::Failed, &policy), None, "told once");
    }

    #[test]
    fn i29_time_without_attempts_proves_nothing() {
        let mut health = Health::default();
        let policy = HealthPolicy::default();
        for month in 0..4 {
            assert_ne!(health.after(hour(month * 24 * 30), HealthSignal::Failed, &policy), Some(HealthChange::GiveUp));
        }
    }

    #[test]
    fn one_success_clears_everything_and_is_told_if_there_was_a_warning() {
        let mut health = Health::default();
        let policy = HealthPolicy::default();
        health.after(hour(0), HealthSignal::Failed, &policy);
        assert_eq!(health.after(hour(1), HealthSignal::Succeeded, &policy), None);
        assert_eq!(health.failing_since(), None);
        (0..50).for_each(|_| _ = health.after(hour(2), HealthSignal::Failed, &policy));
        assert!(!health.is_healthy(0, 100));
        assert_eq!(health.after(hour(3), HealthSignal::Succeeded, &policy), Some(HealthChange::Recovered));
        assert_eq!(health.after(hour(200), HealthSignal::Failed, &policy), None, "the days before do not count");
        assert_eq!(health.consecutive_failures(), 1);
    }

    #[test]
    fn ten_refusals_and_nothing_else_are_told_once_and_then_counted_on() {
        let (mut health, policy) = (Health::default(), HealthPolicy::default());
        let mut news = vec![];
        for attempt in 1..=100 {
            if let Some(told) = health.after(hour(0), HealthSignal::Refused, &policy) {
                news.push((attempt, told));
            }
            assert_eq!(health.is_healthy(0, 100), attempt < 10);
        }
        let warned = |warning| HealthChange::Failing(warning);
        let expected = [
            (10, warned(Warning::Refusing)),
            (50, warned(Warning::Half)),
            (90, warned(Warning::NineTenths)),
            (100, HealthChange::GiveUp),
        ];
        assert_eq!(news, expected);
        let mut mixed = Health::default();
        mixed.after(hour(0), HealthSignal::Failed, &policy);
        (0..30).for_each(|_| assert_eq!(mixed.after(hour(0), HealthSignal::Refused, &policy), None));
    }

    #[test]
    fn an_endpoint_that_was_enabled_again_has_recovered_with_its_first_success() {
        let (mut health, policy) = (Health::default(), HealthPolicy::default());
        (0..100).for_each(|_| _ = health.after(hour(0), HealthSignal::Failed, &policy));
        assert_eq!(health.reason_to_give_up(&policy), Some(DisableReason::FailuresInARow { failures: 100 }));
        let mut enabled = health.enabled();
        assert!(!enabled.is_given_up() && enabled.is_healthy(0, 100));
        assert_eq!(enabled.after(hour(1), HealthSignal::Failed, &policy), None);
        assert_eq!(enabled.after(hour(1), HealthSignal::Succeeded, &policy), Some(HealthChange::Recovered));
        assert_eq!(enabled.after(hour(1), HealthSignal::Succeeded, &policy), None, "told once");
        let mut unknown = Health::default().enabled();
        assert_eq!(unknown.after(hour(1), HealthSignal::Succeeded, &policy), None);
    }

    #[test]
    fn an_endpoint_that_fails_most_of_the_time_is_unhealthy_before_any_warning() {
        assert!(Health::default().is_healthy(9, 0), "nine are not enough to tell");
        assert!(!Health::default().is_healthy(10, 49));
        assert!(Health::default().is_healthy(10, 50));
    }
}
