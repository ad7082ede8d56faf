//! What waits, and why: set by whoever looks it over, now and then, and shown as it was then.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use posthaste_core::admission::HoldReason;

use crate::page::{Kind, Page};

#[derive(Debug, Default)]
pub struct Backlog(Mutex<Option<(Instant, BacklogGauges)>>);

/// What waits for one reason.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Held {
    pub count: u64,
    /// How old the oldest is.
    pub oldest: Option<Duration>,
    /// How long that one is expected to be held, where that can be said.
    pub expected: Option<Duration>,
    /// Endpoints whose oldest is more than twice as old as it should be.
    pub overdue_endpoints: u64,
}

/// One look at everything that a node owns.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct BacklogGauges {
    /// In the order of [`HoldReason::ALL`].
    pub held: [Held; HoldReason::ALL.len()],
    /// Due, and waiting for nothing but its turn.
    pub pending: u64,
    /// Of those, what could have been sent for more than a second and was not, without a reason: this should be 0.
    pub unexplained: u64,
    /// For how long the one of them that was due first has been due.
    pub oldest_due: Option<Duration>,
    pub in_flight: u64,
    pub lanes: u64,
    /// Whose backlog is larger than what is in memory: these were counted in the store.
    pub lanes_counted_in_store: u64,
    pub partitions: u64,
    pub unrecorded: u64,
    pub requests: u64,
    pub token_waits: u64,
    pub token_wait: Duration,
}

impl Backlog {
    pub fn set(&self, gauges: BacklogGauges) {
        *self.0.lock() = Some((Instant::now(), gauges));
    }

    pub(crate) fn show(&self, page: &mut Page) {
        let Some((looked_at, gauges)) = self.0.lock().clone() else { return };
        let mut depth = page.family(
            "webhook_queue_depth",
            Kind::Gauge,
            "Deliveries that wait, by why; none: due and waiting for their turn. Looked over once a second; the part of a backlog that is not in memory is counted every ten seconds, up to 200,000 rows of a queue.",
        );
        depth.sample(&[("hold_reason", &"none")], gauges.pending as f64);
        for (reason, held) in HoldReason::ALL.into_iter().zip(&gauges.held) {
            depth.sample(&[("hold_reason", &reason.name())], held.count as f64);
        }
        let mut oldest = page.family(
            "webhook_oldest_held_seconds",
            Kind::Gauge,
            "How long ago the oldest event happened that is held, by why; for a replayed one how long ago that was asked for.",
        );
        for (reason, held) in HoldReason::ALL.into_iter().zip(&gauges.held) {
            oldest.sample(&[("hold_reason", &reason.name())], held.oldest.unwrap_or_default().as_secs_f64());
        }
        let mut expected = page.family(
            "webhook_expected_hold_seconds",
            Kind::Gauge,
            "How long that one is expected to be held: this quiet window, the time to drain its lane, all of its retries, its deliver_at. Absent where nobody can say.",
        );
        for (reason, held) in HoldReason::ALL.into_iter().zip(&gauges.held) {
            if let Some(hold) = held.expected {
                expected.sample(&[("hold_reason", &reason.name())], hold.as_secs_f64());
            }
        }
        let mut overdue = page.family(
            "webhook_holds_overdue",
            Kind::Gauge,
            "Endpoints whose oldest held event is more than twice as old as its expected hold, by why it is held.",
        );
        for (reason, held) in HoldReason::ALL.into_iter().zip(&gauges.held) {
            overdue.sample(&[("hold_reason", &reason.name())], held.overdue_endpoints as f64);
        }
        for (name, help, value) in [
            (
                "webhook_oldest_due_seconds",
                "For how long the delivery has been due that waits for nothing but its turn and was due first.",
                gauges.oldest_due.unwrap_or_default().as_secs_f64(),
            ),
            (
                "webhook_unexplained_pending",
                "Deliveries that have been due for more than a second and are neither sent nor held for a reason. Other than 0, this is a defect.",
                gauges.unexplained as f64,
            ),
            ("webhook_deliveries_in_flight", "Deliveries on their way, or answered and not yet recorded.", gauges.in_flight as f64),
            ("posthaste_lanes", "Endpoints with something to send or to remember.", gauges.lanes as f64),
            (
                "posthaste_lanes_counted_in_store",
                "Those of them whose backlog is larger than what is in memory.",
                gauges.lanes_counted_in_store as f64,
            ),
            ("posthaste_partitions", "Partitions that this node owns.", gauges.partitions as f64),
            ("posthaste_unrecorded", "Outcomes that wait for their commit.", gauges.unrecorded as f64),
            ("posthaste_requests_in_flight", "Requests on their way, test-sends included.", gauges.requests as f64),
            (
                "posthaste_backlog_looked_at_age_seconds",
                "How long ago all this was looked over.",
                looked_at.elapsed().as_secs_f64(),
            ),
        ] {
            page.gauge(name, help, value);
        }
        page.counter("posthaste_token_waits_total", "Times that a lane or a tenant had to wait for a token.", gauges.token_waits);
        page.family("posthaste_token_wait_seconds_total", Kind::Counter, "How long these waits were to be, together.")
            .sample(&[], gauges.token_wait.as_secs_f64());
    }
}
