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
