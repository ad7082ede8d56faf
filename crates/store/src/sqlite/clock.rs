//! What is kept of a clock that cannot be believed, so that a restart does not forget it and an operator can accept it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::file::DATABASE;
use super::{SMALL, Sqlite};
use crate::Error;
use crate::clock::KeptSuspicion;

/// In the table of words.
const SUSPECT: &str = "clock_suspect";
const ACCEPTED: &str = "clock_accepted";

pub(super) struct StoredClock {
    pub(super) suspicion: Option<KeptSuspicion>,
    /// An operator has said that the clock is right, and no server has heard of it yet.
    pub(super) is_accepted: bool,
}

pub(super) fn read(connection: &Connection) -> Result<StoredClock, Error> {
    let suspicion = word(connection, SUSPECT)?.and_then(|text| KeptSuspicion::parse(&text));
    Ok(StoredClock { suspicion, is_accepted: word(connection, ACCEPTED)?.is_some() })
}

fn word(connection: &Connection, name: &str) -> Result<Option<String>, Error> {
    Ok(connection.query_row("SELECT value FROM words WHERE name = ?1", [name], |row| row.get(0)).optional()?)
}

impl Sqlite {
    /// Writes down that the clock is suspect, hears whether it was accepted, and forgets both once it is believed again.
    pub(super) async fn keep_suspicion(&self) {
        let suspicion = self.0.clock.suspicion_to_keep();
        let is_kept = self.0.is_suspicion_kept.load(Ordering::Relaxed);
        let kept = match (suspicion, is_kept) {
            (None, false) => return,
            (None, true) => self.forget_suspicion().await,
            (Some(suspicion), false) => self.write_suspicion(suspicion).await,
            (Some(_), true) => self.hear_of_acceptance().await,
        };
        if let Err(error) = kept {
            tracing::warn!(%error, "what is known of a clock that has jumped could not be written or read");
        }
    }

    async fn write_suspicion(&self, suspicion: KeptSuspicion) -> Result<(), Error> {
        let text = suspicion.to_text();
        self.write(SMALL, move |connection, _| {
            // An earlier acceptance was of another jump.
            connection.prepare_cached("DELETE FROM words WHERE name = ?1")?.execute([ACCEPTED])?;
            connection.prepare_cached("INSERT OR REPLACE INTO words (name, value) VALUES (?1, ?2)")?.execute([SUSPECT, &text])?;
            Ok(())
        })
        .await?;
        self.0.is_suspicion_kept.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn hear_of_acceptance(&self) -> Result<(), Error> {
        if self.read(|connection| word(connection, ACCEPTED)).await?.is_none() {
            return Ok(());
        }
        self.0.clock.accept();
        self.forget_suspicion().await
    }

    async fn forget_suspicion(&self) -> Result<(), Error> {
        self.write(SMALL, |connection, _| {
            connection.prepare_cached("DELETE FROM words WHERE name IN (?1, ?2)")?.execute([SUSPECT, ACCEPTED])?;
            Ok(())
        })
        .await?;
        self.0.is_suspicion_kept.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Says that the clock of the server in this directory is right, whether it runs or not. Answers whether it was suspect.
    pub fn accept_clock(data_dir: &Path) -> Result<bool, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(data_dir.join(DATABASE), flags)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        let sql = "INSERT OR REPLACE INTO words (name, value) SELECT ?1, value FROM words WHERE name = ?2";
        Ok(connection.execute(sql, [ACCEPTED, SUSPECT])? > 0)
    }
}

/// By how much the clock has jumped that is not believed, if so.
pub(super) fn jumped_by(connection: &Connection) -> Option<Duration> {
    let kept = read(connection).ok()?;
    kept.suspicion.filter(|_| !kept.is_accepted).map(|suspicion| suspicion.jumped_by)
}
