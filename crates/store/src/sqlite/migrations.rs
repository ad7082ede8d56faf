//! Brings the schema up to date, each step in a transaction of its own.

use rusqlite::{Connection, TransactionBehavior};

use crate::Error;

const MIGRATIONS: [&str; 4] = [
    include_str!("../../migrations/sqlite/0001_endpoints.sql"),
    include_str!("../../migrations/sqlite/0002_events.sql"),
    include_str!("../../migrations/sqlite/0003_deliveries.sql"),
    include_str!("../../migrations/sqlite/0004_attempts.sql"),
];

pub(super) fn run(connection: &mut Connection) -> Result<(), Error> {
    loop {
        let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let version: u32 = step.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version as usize > MIGRATIONS.len() {
            return Err(Error::TooNew);
        }
        let Some(sql) = MIGRATIONS.get(version as usize) else { return Ok(()) };
        step.execute_batch(sql)?;
        step.pragma_update(None, "user_version", version + 1)?;
        step.commit()?;
    }
}
