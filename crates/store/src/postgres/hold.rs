//! The hold on all deliveries, for every node.

use super::configuration::write_audit;
use super::connection::{Connection, Problem};
use super::{Database, row};
use crate::columns::{limit, unsigned};
use crate::hold::{HELD_COUNT_MAX, HOLD, Hold, read, written};
use crate::{Audit, Error};

impl Database {
    pub(super) async fn hold(&self) -> Result<Option<Hold>, Error> {
        self.read(|connection| async move { find(&connection).await }).await
    }

    pub(super) async fn set_hold(&self) -> Result<(), Error> {
        self.transact(|connection| async move {
            connection.execute(INSERT, &[&HOLD, &written(self.clock_now())]).await?;
            Ok(())
        })
        .await
    }

    pub(super) async fn release_hold(&self, audit: Audit) -> Result<bool, Error> {
        let audit = &audit;
        self.transact(|connection| async move {
            let was_held = connection.execute(DELETE, &[&HOLD]).await? > 0;
            if was_held {
                write_audit(&connection, audit, self.clock_now()).await?;
            }
            Ok(was_held)
        })
        .await
    }
}

pub(super) async fn find(connection: &Connection) -> Result<Option<Hold>, Problem> {
    let Some(found) = connection.query_opt(SELECT, &[&HOLD]).await? else { return Ok(None) };
    let since = read(row::text(&found, "value")?)?;
    let counted = connection.query_one(COUNT_WAITING, &[&limit(HELD_COUNT_MAX)]).await?;
    let (waiting, tried) = (unsigned(row::column(&counted, "waiting")?), unsigned(row::column(&counted, "tried")?));
    Ok(Some(Hold { since, waiting, tried }))
}

const SELECT: &str = "SELECT value FROM words WHERE name = $1";
/// An earlier hold keeps its time.
const INSERT: &str = "INSERT INTO words (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
const DELETE: &str = "DELETE FROM words WHERE name = $1";
const COUNT_WAITING: &str = "SELECT count(*) AS waiting, count(*) FILTER (WHERE attempts > 0) AS tried
     FROM (SELECT attempts FROM deliveries WHERE status = 'waiting' LIMIT $1) AS rows";
