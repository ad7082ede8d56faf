//! Brings the schema up to date, each step in a transaction of its own, so that one that was killed goes on where it was.

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::Error;
use crate::migrations::{Steps, check_usable};

pub(super) const STEPS: Steps = crate::migrations::steps!("sqlite");

pub(super) fn run(connection: &mut Connection) -> Result<(), Error> {
    connection
        .execute_batch("CREATE TABLE IF NOT EXISTS schema (version INTEGER NOT NULL, usable_from INTEGER NOT NULL) STRICT;")?;
    loop {
        let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let stored: Option<(u32, u32)> =
            step.query_row("SELECT version, usable_from FROM schema", [], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let Some(next) = check_usable(&STEPS, stored)? else { return Ok(()) };
        step.execute_batch(next.sql)?;
        step.execute("DELETE FROM schema", [])?;
        step.execute("INSERT INTO schema (version, usable_from) VALUES (?1, ?2)", [next.version, next.usable_from])?;
        step.commit()?;
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::delivery::{CancelReason, DeadReason, State};
    use posthaste_core::time::Timestamp;
    use rusqlite::params;

    use super::*;
    use crate::columns::state_columns;

    /// The schema takes what we write of a state, all of it together, and nothing else.
    #[test]
    fn a_delivery_says_all_that_belongs_to_its_state_and_nothing_else() {
        let mut connection = Connection::open_in_memory().expect("a database");
        run(&mut connection).expect("a schema");
        let at = Timestamp::from_millis(1);
        let dead = DeadReason::ALL.map(|reason| State::Dead { at, reason });
        let cancelled = CancelReason::ALL.map(|reason| State::Cancelled { at, reason });
        let states = [State::Waiting { due: at }, State::Delivered { at }].into_iter().chain(dead).chain(cancelled);
        let written: Vec<_> = states
            .map(state_columns)
            .map(|columns| (columns.status, columns.due_at_ms, columns.ended_at_ms, columns.dead_reason, columns.cancel_reason))
            .collect();
        let named = |name: &'static str| [None, Some(name)];
        let dead_reasons = DeadReason::ALL.map(DeadReason::name).into_iter().chain(["other"]).flat_map(named);
        let cancel_reasons = CancelReason::ALL.map(CancelReason::name).into_iter().chain(["other"]).flat_map(named);
        let mut taken = 0;
        for status in ["waiting", "delivered", "dead", "cancelled", "other"] {
            for (due, ended) in [(None, None), (Some(1), None), (None, Some(1)), (Some(1), Some(1))] {
                for dead_reason in dead_reasons.clone() {
                    for cancel_reason in cancel_reasons.clone() {
                        let said = (status, due, ended, dead_reason, cancel_reason);
                        let inserted = connection.execute(
                            "INSERT INTO deliveries (id, tenant, partition, endpoint, event_seq, event, type, is_priority, class, timestamp_ms,
                                                     is_later, created_at_ms, status, due_at_ms, ended_at_ms, dead_reason, cancel_reason)
                             VALUES (zeroblob(16), 't', 1, x'00', 1, 'e', 't', 0, 0, 1, 0, 1, ?, ?, ?, ?, ?)",
                            params![status, due, ended, dead_reason, cancel_reason],
                        );
                        assert_eq!(inserted.is_ok(), written.contains(&said), "{said:?}: {inserted:?}");
                        taken += connection.execute("DELETE FROM deliveries", []).expect("a table");
                    }
                }
            }
        }
        assert!(taken >= written.len(), "each state was tried");
    }
}
