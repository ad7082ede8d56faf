//! Brings the schema up to date, each step in a transaction of its own, so that one that was killed goes on where it was.

use super::connection::{Connection, Problem};
use super::row;
use crate::Error;
use crate::columns::corrupt;
use crate::migrations::{Steps, check_usable};

pub(super) const STEPS: Steps = crate::migrations::steps!("postgres");

/// Whoever holds it may change the schema: `posthast` in ASCII.
const LOCK: i64 = 0x706f_7374_6861_7374;

/// The connection is not to be used for anything else: what is set here stays set, and the lock goes with it.
pub(super) async fn run(connection: &Connection) -> Result<(), Problem> {
    // Another node that has just begun to migrate may take its time.
    connection.batch("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0").await?;
    connection.execute(TAKE_LOCK, &[&LOCK]).await?;
    connection.batch(CREATE_SCHEMA).await?;
    loop {
        let stored = match connection.query_opt(SELECT_SCHEMA, &[]).await? {
            Some(row) => Some((number(row::column(&row, "version")?)?, number(row::column(&row, "usable_from")?)?)),
            None => None,
        };
        let Some(next) = check_usable(&STEPS, stored)? else { return Ok(()) };
        connection.batch("BEGIN").await?;
        connection.batch(next.sql).await?;
        connection.execute(DELETE_SCHEMA, &[]).await?;
        connection.execute(INSERT_SCHEMA, &[&i64::from(next.version), &i64::from(next.usable_from)]).await?;
        connection.batch("COMMIT").await?;
    }
}

fn number(stored: i64) -> Result<u32, Error> {
    u32::try_from(stored).map_err(corrupt("schema version"))
}

const TAKE_LOCK: &str = "SELECT pg_advisory_lock($1)";
const CREATE_SCHEMA: &str = "CREATE TABLE IF NOT EXISTS schema (version BIGINT NOT NULL, usable_from BIGINT NOT NULL)";
const SELECT_SCHEMA: &str = "SELECT version, usable_from FROM schema";
const DELETE_SCHEMA: &str = "DELETE FROM schema";
const INSERT_SCHEMA: &str = "INSERT INTO schema (version, usable_from) VALUES ($1, $2)";
