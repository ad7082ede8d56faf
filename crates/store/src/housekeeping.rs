//! Cleanup in small steps: its limits, its results, and which tenant's turn it is.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::retention::{self, Keeping, RetentionStatus};
use posthaste_core::scheduler::Seq;
use posthaste_core::time::Timestamp;

use crate::Error;

/// How large a step is, and how long things are kept that no tenant has a say in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Housekeeping {
    /// Rows of each kind that one step reads at most. Steps are smaller where they take too long.
    pub rows_max: usize,
    pub dead_letters_kept: Duration,
    pub audit_kept: Duration,
    /// Deleted endpoints and tenants are kept for at least this long, and until nothing refers to them.
    pub deleted_kept: Duration,
    /// API keys are listed for this long after they were revoked or have expired. The audit log keeps its record of them.
    pub ended_keys_kept: Duration,
}

impl Default for Housekeeping {
    fn default() -> Housekeeping {
        let days = |days: u64| Duration::from_hours(days * 24);
        Housekeeping {
            rows_max: 1_000,
            dead_letters_kept: days(30),
            audit_kept: days(365),
            deleted_kept: days(1),
            ended_keys_kept: days(30),
        }
    }
}

/// What a step has removed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CleanupStep {
    pub deliveries: u64,
    pub events: u64,
    /// Those that expired by themselves. Others go with their events.
    pub idempotency_keys: u64,
    pub audit: u64,
    pub minutes: u64,
    pub replays: u64,
    pub endpoints: u64,
    /// Earlier versions of endpoints that no attempt refers to.
    pub endpoint_versions: u64,
    pub tenants: u64,
    pub keys: u64,
    pub sessions: u64,
    /// Lane states of endpoints that are gone.
    pub lanes: u64,
    pub commands: u64,
    /// Pages that were given back to the file system (SQLite).
    pub freed_pages: u64,
    /// Secrets sealed again under the present master key.
    pub resealed: u64,
    /// Whether there is, or may be, more to do now.
    pub has_more: bool,
    /// For how long the oldest row that was found should have been gone.
    pub behind: Duration,
    /// How long the step kept the database busy, in all of its transactions together.
    pub busy: Duration,
    /// The longest time for which it kept the one writer from others (SQLite).
    pub longest_hold: Duration,
}

impl CleanupStep {
    /// Nothing was removed, and there is nothing more to look at now.
    pub fn is_nothing(self) -> bool {
        let CleanupStep { behind, busy, longest_hold, .. } = CleanupStep::default();
        CleanupStep { behind, busy, longest_hold, ..self } == CleanupStep::default()
    }

    pub(crate) fn held(&mut self, took: Duration) {
        self.busy += took;
        self.longest_hold = self.longest_hold.max(took);
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

/// Tenants whose first rows are looked at in one query.
pub(crate) const TENANTS_PER_LOOK: usize = 200;
/// Looks of one step while nobody is known to have anything to delete.
const LOOKS_PER_STEP: usize = 10;
/// While some are known to have, others are looked for only once in so many steps.
const STEPS_PER_LOOK: u64 = 32;
/// Tenants that are remembered at once. The others are found when these are done.
const DUE_TENANTS_MAX: usize = 1_000;
/// What was passed over, idempotency keys and minutes are looked for once in so many steps while events are deleted.
const STEPS_PER_OTHERS: u64 = 4;
/// Things that there are few of are looked for once in so many steps while events are deleted.
const STEPS_PER_REST: u64 = 16;

/// What retention says about a tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TenantKeeping {
    pub(crate) retention: Duration,
    pub(crate) is_deleted: bool,
    /// Rows up to this one are what a deleted tenant of the same name has left.
    pub(crate) deleted_to: i64,
    /// Rows up to this one have been passed.
    pub(crate) swept_to: i64,
}

impl TenantKeeping {
    /// How long a row with this number is kept.
    pub(crate) fn of(&self, seq: i64, dead_letters: Duration) -> Keeping {
        let is_left_behind = self.is_deleted || seq <= self.deleted_to;
        if is_left_behind { Keeping::NOTHING } else { Keeping { retention: self.retention, dead_letters } }
    }

    /// For how long a row should have been looked at; `None` while it is too young.
    pub(crate) fn overdue_for(&self, seq: i64, created_at: Timestamp, now: Timestamp) -> Option<Duration> {
        let due = created_at + self.of(seq, Duration::ZERO).retention;
        (due <= now).then(|| now.since(due))
    }
}

/// The status of a row, for [`retention::fate`].
pub(crate) fn standing(status: &str, due_at_ms: Option<i64>, ended_at_ms: Option<i64>) -> Result<RetentionStatus, Error> {
    let at = |millis: Option<i64>| millis.map(Timestamp::from_millis).ok_or(Error::Corrupt { what: "status" });
    match status {
        "waiting" => Ok(RetentionStatus::Waiting { due: at(due_at_ms)? }),
        "dead" => Ok(RetentionStatus::Dead { at: at(ended_at_ms)? }),
        "delivered" | "cancelled" => Ok(RetentionStatus::Ended { at: at(ended_at_ms)? }),
        _ => Err(Error::Corrupt { what: "status" }),
    }
}

/// A tenant that has rows past their retention.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DueTenant {
    pub(crate) id: String,
    /// For how long its oldest row should have been looked at.
    pub(crate) behind: Duration,
}

/// Tenants that have something to delete, each in its turn. None is left out, however many there are and whatever others keep.
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    due: VecDeque<DueTenant>,
    known: HashSet<String>,
    /// Tenants up to this id have been looked at in this round.
    looked_to: String,
    is_round_over: bool,
    steps: u64,
}

impl Rotation {
    /// Begins a step, and says how many pages of tenants it may look at.
    pub(crate) fn looks_of_next_step(&mut self) -> usize {
        self.steps += 1;
        if self.due.is_empty() {
            LOOKS_PER_STEP
        } else {
            usize::from(self.steps.is_multiple_of(STEPS_PER_LOOK) && self.due.len() + TENANTS_PER_LOOK <= DUE_TENANTS_MAX)
        }
    }

    /// Where the next look starts.
    pub(crate) fn look_after(&self) -> String {
        self.looked_to.clone()
    }

    /// What a look has found: those that are due, and the last tenant if the page was full. Says whether to look on.
    pub(crate) fn looked(&mut self, due: Vec<DueTenant>, last: Option<String>) -> bool {
        for tenant in due {
            if self.known.insert(tenant.id.clone()) {
                self.due.push_back(tenant);
            }
        }
        self.is_round_over = last.is_none();
        self.looked_to = last.unwrap_or_default();
        !self.is_round_over && self.due.is_empty()
    }

    /// Whose turn it is, and how many rows each may use of so many.
    pub(crate) fn take_turns(&mut self, rows: usize) -> (Vec<DueTenant>, usize) {
        /// So that a tenant's turn is worth the look at the tenant.
        const QUANTUM_MIN: usize = 8;
        let count = self.due.len().min((rows / QUANTUM_MIN).max(1));
        let turns: Vec<DueTenant> = self.due.drain(..count).collect();
        for tenant in &turns {
            self.known.remove(&tenant.id);
        }
        (turns, (rows / count.max(1)).max(1))
    }

    /// Has more to delete: its next turn comes after everybody else's.
    pub(crate) fn requeue(&mut self, tenant: DueTenant) {
        if self.known.insert(tenant.id.clone()) {
            self.due.push_back(tenant);
        }
    }

    /// Did not have its turn: it is the next.
    pub(crate) fn was_not_reached(&mut self, tenants: impl DoubleEndedIterator<Item = DueTenant>) {
        for tenant in tenants.rev() {
            if self.known.insert(tenant.id.clone()) {
                self.due.push_front(tenant);
            }
        }
    }

    pub(crate) fn is_anything_left(&self) -> bool {
        !self.due.is_empty() || !self.is_round_over
    }

    pub(crate) fn behind(&self) -> Duration {
        self.due.iter().map(|tenant| tenant.behind).max().unwrap_or_default()
    }

    /// Whether this step also looks for what was passed over, and for what expires by itself.
    pub(crate) fn are_others_due(&self) -> bool {
        self.due.is_empty() || self.steps.is_multiple_of(STEPS_PER_OTHERS)
    }

    /// Whether this step also looks for what there is little of.
    pub(crate) fn is_rest_due(&self) -> bool {
        self.due.is_empty() || self.steps.is_multiple_of(STEPS_PER_REST)
    }
}

/// How far the deliveries of an event, or a delivery, are from being deleted.
pub(crate) use retention::{RetentionDecision, fate};

#[cfg(test)]
mod tests {
    use super::*;

    fn due(id: usize) -> DueTenant {
        DueTenant { id: format!("t{id:04}"), behind: Duration::from_secs(id as u64) }
    }

    #[test]
    fn i52_every_tenant_has_its_turn_before_any_has_its_second() {
        let mut rotation = Rotation::default();
        assert_eq!(rotation.looks_of_next_step(), LOOKS_PER_STEP);
        assert!(!rotation.looked((0..40).map(due).collect(), None));
        assert_eq!(rotation.behind(), Duration::from_secs(39));
        let mut order = Vec::new();
        for _ in 0..30 {
            let (turns, quantum) = rotation.take_turns(64);
            assert!(quantum * turns.len() <= 64, "no step is larger than it may be");
            let mut turns = turns.into_iter();
            // The last three of each step are not reached.
            for tenant in turns.by_ref().take(5) {
                order.push(tenant.id.clone());
                rotation.requeue(tenant);
            }
            rotation.was_not_reached(turns);
        }
        for round in order.chunks_exact(40) {
            assert_eq!(round.iter().collect::<HashSet<_>>().len(), 40, "{round:?}");
        }
    }

    #[test]
    fn with_few_rows_in_a_step_each_tenant_still_has_its_turn() {
        let mut rotation = Rotation::default();
        rotation.looked((0..3).map(due).collect(), None);
        let mut order = Vec::new();
        for _ in 0..6 {
            let (turns, quantum) = rotation.take_turns(2);
            assert_eq!((turns.len(), quantum), (1, 2));
            order.extend(turns.iter().map(|tenant| tenant.id.clone()));
            for tenant in turns {
                rotation.requeue(tenant);
            }
        }
        assert_eq!(order, ["t0000", "t0001", "t0002", "t0000", "t0001", "t0002"]);
    }

    #[test]
    fn others_are_looked_for_while_some_are_busy_and_a_round_ends() {
        let mut rotation = Rotation::default();
        assert!(rotation.is_anything_left(), "nobody has looked yet");
        assert!(rotation.looked(vec![], Some("t0199".to_owned())), "the page was full, and empty of work");
        assert_eq!(rotation.look_after(), "t0199");
        assert!(!rotation.looked(vec![due(250)], Some("t0399".to_owned())));
        let looks: usize = (0..STEPS_PER_LOOK).map(|_| rotation.looks_of_next_step()).sum();
        assert_eq!(looks, 1, "once in a while");
        rotation.looked(vec![due(250)], None);
        assert_eq!(rotation.take_turns(100).0, [due(250)], "known once, and found twice");
        assert!(!rotation.is_anything_left());
        assert_eq!(rotation.look_after(), "", "the next round begins at the front");
    }
}
