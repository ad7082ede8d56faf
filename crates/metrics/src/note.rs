//! What an owner tells of its work, once it is on disk.

use std::time::Duration;

use posthaste_core::circuit::Transition;
use posthaste_core::delivery::{CancelReason, DeadReason, NoConnection, Outcome, Silence, Verdict};
use posthaste_core::endpoint::Status;
use posthaste_core::event::EventType;
use posthaste_core::id::{EndpointId, TenantId};

/// Something worth counting.
#[derive(Clone, PartialEq, Debug)]
pub enum Note {
    /// An attempt has been recorded.
    Attempt(Box<Attempt>),
    /// A delivery has died without an attempt.
    Dead {
        tenant: TenantId,
        reason: DeadReason,
    },
    Cancelled {
        tenant: TenantId,
        reason: CancelReason,
    },
    Circuit(CircuitChange),
    /// What was learned has changed how long an endpoint's answers may take.
    Timeout {
        endpoint: EndpointId,
        tenant: TenantId,
        timeout: Duration,
        is_shorter: bool,
    },
}

#[derive(Clone, PartialEq, Debug)]
pub struct Attempt {
    pub endpoint: EndpointId,
    pub tenant: TenantId,
    pub event_type: EventType,
    pub status: EndpointStatus,
    /// Counted from 1.
    pub number: u32,
    pub outcome: Outcome,
    pub verdict: Verdict,
    pub response_time: Duration,
    /// From when it was due to its start.
    pub lag: Duration,
    /// From when it was there and due for the first time to its end.
    pub age: Duration,
    pub timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EndpointStatus {
    Active,
    Paused,
    Disabled,
}

impl EndpointStatus {
    pub fn of(status: Status) -> EndpointStatus {
        match status {
            Status::Active => EndpointStatus::Active,
            Status::Paused { .. } => EndpointStatus::Paused,
            Status::Disabled => EndpointStatus::Disabled,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            EndpointStatus::Active => "active",
            EndpointStatus::Paused => "paused",
            EndpointStatus::Disabled => "disabled",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CircuitChange {
    Open,
    HalfOpen,
    Closed,
}

impl CircuitChange {
    pub const ALL: [CircuitChange; 3] = [CircuitChange::Open, CircuitChange::HalfOpen, CircuitChange::Closed];

    pub fn of(transition: Transition) -> CircuitChange {
        match transition {
            Transition::Opened | Transition::Reopened => CircuitChange::Open,
            Transition::Closed => CircuitChange::Closed,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            CircuitChange::Open => "open",
            CircuitChange::HalfOpen => "half_open",
            CircuitChange::Closed => "closed",
        }
    }
}

/// How an attempt ended, as few kinds as labels may have: the class of a status, or why there was none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) status_class: &'static str,
    pub(crate) reason: &'static str,
}

pub(crate) const ENDS: [End; 12] = [
    End { status_class: "1xx", reason: "http_error" },
    End { status_class: "2xx", reason: "http_error" },
    End { status_class: "3xx", reason: "http_error" },
    End { status_class: "4xx", reason: "http_error" },
    End { status_class: "5xx", reason: "http_error" },
    End { status_class: "other", reason: "http_error" },
    End { status_class: "none", reason: "timeout" },
    End { status_class: "none", reason: "reset" },
    End { status_class: "none", reason: "dns_error" },
    End { status_class: "none", reason: "connection_error" },
    End { status_class: "none", reason: "tls_error" },
    End { status_class: "none", reason: "blocked" },
];

/// Its place in [`ENDS`].
pub(crate) fn end_of(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Answered { status, .. } => match status {
            100..=599 => usize::from(status / 100 - 1),
            _ => 5,
        },
        Outcome::Silent(Silence::Timeout) => 6,
        Outcome::Silent(Silence::Reset) => 7,
        Outcome::NotSent(NoConnection::Dns) => 8,
        Outcome::NotSent(NoConnection::Connect) => 9,
        Outcome::NotSent(NoConnection::Tls) => 10,
        Outcome::Blocked => 11,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_an_attempt_can_end_has_its_class_and_its_reason() {
        let answered = |status| Outcome::Answered { status, retry_after: None };
        for (outcome, status_class, reason) in [
            (answered(200), "2xx", "http_error"),
            (answered(404), "4xx", "http_error"),
            (answered(599), "5xx", "http_error"),
            (answered(999), "other", "http_error"),
            (Outcome::Silent(Silence::Timeout), "none", "timeout"),
            (Outcome::Silent(Silence::Reset), "none", "reset"),
            (Outcome::NotSent(NoConnection::Dns), "none", "dns_error"),
            (Outcome::NotSent(NoConnection::Connect), "none", "connection_error"),
            (Outcome::NotSent(NoConnection::Tls), "none", "tls_error"),
            (Outcome::Blocked, "none", "blocked"),
        ] {
            assert_eq!(ENDS[end_of(&outcome)], End { status_class, reason }, "{outcome:?}");
            assert!(outcome.name() == reason || outcome.name() == "success", "the word that the API has for it, too");
        }
    }
}
