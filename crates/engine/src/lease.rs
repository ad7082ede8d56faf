//! How long this node may rely on its lease, by its own monotonic clock, and whether the delivery loop still runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::time::millis;

/// Longer than a request takes to be begun.
const LONG: Duration = Duration::from_hours(1);

/// The lease of this node. It never ends where no other node can take over.
#[derive(Debug)]
pub(crate) struct Lease {
    begun: Instant,
    /// In milliseconds since `begun`.
    ends_at: AtomicU64,
    term: AtomicU64,
}

/// The time from one loss of the lease to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeaseTerm(u64);

impl Lease {
    pub(crate) fn endless() -> Lease {
        Lease { begun: Instant::now(), ends_at: AtomicU64::new(u64::MAX), term: AtomicU64::new(0) }
    }

    pub(crate) fn term(&self) -> LeaseTerm {
        LeaseTerm(self.term.load(Ordering::Acquire))
    }

    /// Starts a new term: another node may own what was begun in an earlier one.
    pub(crate) fn begin_term(&self) {
        self.term.fetch_add(1, Ordering::AcqRel);
    }

    /// The deadline for starting requests of this term; `None` if they may no longer be sent.
    pub(crate) fn lasts_until(&self, term: LeaseTerm) -> Option<Instant> {
        let left = self.ends_at.load(Ordering::Acquire).checked_sub(millis(self.begun.elapsed())).filter(|left| *left > 0)?;
        (self.term() == term).then(|| Instant::now() + Duration::from_millis(left).min(LONG))
    }

    /// Nothing is sent after `at`.
    pub(crate) fn set_end(&self, at: Instant) {
        self.ends_at.store(millis(at.saturating_duration_since(self.begun)), Ordering::Release);
    }

    /// No other node can take over.
    pub(crate) fn never_ends(&self) {
        self.ends_at.store(u64::MAX, Ordering::Release);
    }
}

/// The loop wakes at least once a second; after this long without a tick it is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Tells whether the delivery loop still runs.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    begun: Instant,
    /// In milliseconds since `begun`.
    ticked_at: AtomicU64,
    is_stalled: AtomicBool,
}

impl Heartbeat {
    pub(crate) fn new() -> Heartbeat {
        Heartbeat { begun: Instant::now(), ticked_at: AtomicU64::new(0), is_stalled: AtomicBool::new(false) }
    }

    pub(crate) fn tick(&self) {
        self.ticked_at.store(millis(self.begun.elapsed()), Ordering::Relaxed);
    }

    /// The loop runs but starts nothing of what is due.
    pub(crate) fn stalled(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, Ordering::Relaxed);
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.is_stalled.load(Ordering::Relaxed)
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.ticked_at.load(Ordering::Relaxed) + millis(STUCK_AFTER) < millis(self.begun.elapsed())
    }
}
