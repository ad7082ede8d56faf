//! Why a delivery waits, and until when.
//!
//! A hold is never written down: it follows from the row, the endpoint and the time. This is
//! the one place that puts it into words, in the order in which the reasons are told.

use crate::delivery::{CancelReason, DeadReason, State};
use crate::endpoint::Status;
use crate::time::Timestamp;

/// What somebody who asks after a delivery is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Due, and waiting only for its turn.
    Pending,
    /// A request is on its way.
    Delivering,
    /// Not now. `until` is the earliest moment at which the known reasons are gone, if that can be said.
    Held {
        reason: HoldReason,
        until: Option<Timestamp>,
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HoldReason {
    Disabled,
    Paused,
    DeliverAt,
    Retry,
}

impl HoldReason {
    /// The one word for it: in answers and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            HoldReason::Disabled => "disabled",
            HoldReason::Paused => "paused",
            HoldReason::DeliverAt => "deliver_at",
            HoldReason::Retry => "retry",
        }
    }
}

/// The facts about one delivery that decide how it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    pub state: State,
    pub attempts: u32,
    pub is_in_flight: bool,
    pub endpoint: Status,
}

/// How a delivery stands at `now`.
pub fn explain(now: Timestamp, facts: &Facts) -> Standing {
    let due = match facts.state {
        State::Waiting { due } => due,
        State::Delivered { at } => return Standing::Delivered { at },
        State::Dead { at, reason } => return Standing::Dead { at, reason },
        State::Cancelled { at, reason } => return Standing::Cancelled { at, reason },
    };
    if facts.is_in_flight {
        return Standing::Delivering;
    }
    match facts.endpoint.at(now) {
        Status::Disabled => Standing::Held { reason: HoldReason::Disabled, until: None },
        Status::Paused { until } => Standing::Held { reason: HoldReason::Paused, until: until.map(|until| until.max(due)) },
        Status::Active if due <= now => Standing::Pending,
        Status::Active => {
            // A wait before the first try was asked for; one after it comes from a failure.
            let reason = if facts.attempts == 0 { HoldReason::DeliverAt } else { HoldReason::Retry };
            Standing::Held { reason, until: Some(due) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_that_applies_is_told() {
        let at = Timestamp::from_millis;
        let now = at(1000);
        let waiting = |due, attempts, endpoint| {
            explain(now, &Facts { state: State::Waiting { due }, attempts, is_in_flight: false, endpoint })
        };
        let held = |reason, until| Standing::Held { reason, until };
        assert_eq!(waiting(at(1000), 0, Status::Active), Standing::Pending);
        assert_eq!(waiting(at(1001), 0, Status::Active), held(HoldReason::DeliverAt, Some(at(1001))));
        assert_eq!(waiting(at(1001), 1, Status::Active), held(HoldReason::Retry, Some(at(1001))));
        assert_eq!(waiting(at(1001), 1, Status::Disabled), held(HoldReason::Disabled, None));
        assert_eq!(waiting(at(0), 0, Status::Paused { until: None }), held(HoldReason::Paused, None));
        assert_eq!(waiting(at(0), 0, Status::Paused { until: Some(at(2000)) }), held(HoldReason::Paused, Some(at(2000))));
        assert_eq!(waiting(at(3000), 0, Status::Paused { until: Some(at(2000)) }), held(HoldReason::Paused, Some(at(3000))));
        assert_eq!(waiting(at(0), 0, Status::Paused { until: Some(at(1000)) }), Standing::Pending);
    }

    #[test]
    fn what_has_ended_has_no_hold() {
        let at = Timestamp::from_millis(5);
        let state = State::Dead { at, reason: DeadReason::Expired };
        let facts = Facts { state, attempts: 3, is_in_flight: false, endpoint: Status::Disabled };
        assert_eq!(explain(Timestamp::from_millis(9), &facts), Standing::Dead { at, reason: DeadReason::Expired });
    }
}
