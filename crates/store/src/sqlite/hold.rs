//! The hold on all deliveries.

use rusqlite::{Connection, OptionalExtension};

use super::{SMALL, Sqlite};
use crate::columns::{limit, unsigned};
use crate::hold::{HELD_COUNT_MAX, HOLD, Hold, read, written};
use crate::sqlite::configuration::write_audit;
use crate::{Audit, Error};

impl Sqlite {
    pub(super) async fn hold(&self) -> Result<Option<Hold>, Error> {
        self.read(find).await
    }

    pub(super) async fn set_hold(&self) -> Result<(), Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, _| insert(connection, &written(store.clock_now()))).await
    }

    pub(super) async fn release_hold(&self, audit: Audit) -> Result<bool, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, _| {
            let was_held = connection.execute("DELETE FROM words WHERE name = ?1", [HOLD])? > 0;
            if was_held {
                write_audit(connection, &audit, store.clock_now())?;
            }
            Ok(was_held)
        })
        .await
    }
}

/// An earlier hold keeps its time.
pub(super) fn insert(connection: &Connection, since: &str) -> Result<(), Error> {
    connection.execute("INSERT OR IGNORE INTO words (name, value) VALUES (?1, ?2)", [HOLD, since])?;
    Ok(())
}

pub(super) fn find(connection: &Connection) -> Result<Option<Hold>, Error> {
    let since: Option<String> =
        connection.query_row("SELECT value FROM words WHERE name = ?1", [HOLD], |row| row.get(0)).optional()?;
    let Some(since) = since else { return Ok(None) };
    let (waiting, tried) = connection.query_row(COUNT_WAITING, [limit(HELD_COUNT_MAX)], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Some(Hold { since: read(&since)?, waiting: unsigned(waiting), tried: unsigned(tried) }))
}

const COUNT_WAITING: &str = "SELECT count(*), coalesce(sum(attempts > 0), 0)
     FROM (SELECT attempts FROM deliveries WHERE status = 'waiting' LIMIT ?1)";
