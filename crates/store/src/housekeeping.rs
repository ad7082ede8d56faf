//! Forgetting, in small steps.

use std::time::Duration;

use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::scheduler::Seq;

/// How large a step is, and how long things are kept that no tenant has a say in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Housekeeping {
    /// Rows of each kind in one step: few enough that publishing does not notice.
    pub rows_max: usize,
    pub dead_letters_kept: Duration,
    pub audit_kept: Duration,
}

/// How many times as many minutes go in one step.
pub(crate) const MINUTES_FACTOR: usize = 10;

impl Default for Housekeeping {
    fn default() -> Housekeeping {
        Housekeeping { rows_max: 500, dead_letters_kept: Duration::from_hours(30 * 24), audit_kept: Duration::from_hours(365 * 24) }
    }
}

/// What a step has removed. If anything, there may be more.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SweptAway {
    pub deliveries: u64,
    pub events: u64,
    pub idempotency_keys: u64,
    pub audit: u64,
    pub minutes: u64,
    /// Secrets sealed anew under the present master key.
    pub resealed: u64,
}

impl SweptAway {
    pub fn is_nothing(self) -> bool {
        self == SweptAway::default()
    }
}

/// A delivery that waits and should not any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overdue {
    pub endpoint: EndpointId,
    pub delivery: DeliveryId,
    pub seq: Seq,
    pub why: OverdueReason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverdueReason {
    /// `expires_at` has passed, or it has waited longer than its tenant's retention.
    Expired,
    EndpointDeleted,
}
