//! Copies of the database: taken while a server writes, verified, and put back.
//!
//! A copy is made with SQLite's online backup in one read transaction: it is the database as of one commit, and the server
//! goes on writing next to it. Meanwhile the log cannot be reset, so it grows by what is written.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use posthaste_core::time::Timestamp;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};

use super::examination::{open_unchanging, stored_schema};
use super::file::{BUSY_TIMEOUT, DATABASE, LOCK, commit_number, connect, connect_to_read};
use super::migrations::STEPS;
use super::{Sqlite, hold};
use crate::columns::unsigned;
use crate::examination::Schema;
use crate::{Error, hold as stored_hold};

/// What is in a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyContents {
    pub schema: Schema,
    /// The last commit that is in it.
    pub commit: u64,
    pub tenants: u64,
    pub endpoints: u64,
    pub events: u64,
    pub deliveries: u64,
    /// Deliveries that would be sent by a server that starts on it.
    pub waiting: u64,
}

impl Sqlite {
    /// Copies the database in this directory to a new file, also while a server uses it. The copy is on disk afterwards.
    pub fn copy_to(data_dir: &Path, target: &Path) -> Result<(), Error> {
        let path = data_dir.join(DATABASE);
        if std::fs::metadata(&path).map_or(0, |metadata| metadata.len()) == 0 {
            return Err(Error::Unusable(format!(
                "there is no database in {}; name its directory with --data-dir",
                data_dir.display()
            )));
        }
        // Where no server runs, none may start while the log of the last one is read back. Where one runs, its lock stays its own.
        let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(data_dir.join(LOCK));
        let lock = lock.map_err(Error::unavailable)?;
        let source = if lock.try_lock().is_ok() { connect(&path)? } else { connect_to_read(&path)? };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target).map_err(Error::unavailable)?;
        let mut copy = Connection::open_with_flags(target, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        copy.busy_timeout(BUSY_TIMEOUT)?;
        let backup = Backup::new(&source, &mut copy)?;
        // All pages in one step: after a pause SQLite would begin again whenever the server has written.
        loop {
            match backup.step(-1)? {
                StepResult::Done => break,
                StepResult::More | StepResult::Busy | StepResult::Locked => std::thread::sleep(Duration::from_millis(50)),
                _ => return Err(Error::unavailable("SQLite did not finish the copy")),
            }
        }
        drop(backup);
        copy.close().map_err(|(_, error)| error)?;
        file.sync_all().map_err(Error::unavailable)?;
        drop((source, lock));
        Ok(())
    }

    /// Reads all of a copy and checks every page and index. Changes nothing.
    pub fn verify_copy(path: &Path) -> Result<CopyContents, Error> {
        let unusable =
            |what: &dyn std::fmt::Display| Error::Unusable(format!("{} is not a whole database: {what}", path.display()));
        let connection = open_unchanging(path)?;
        let verdict: String =
            connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(|error| unusable(&error))?;
        if verdict != "ok" {
            return Err(unusable(&verdict.trim()));
        }
        let known = STEPS.last().expect("there are steps").version;
        let schema = Schema::of(stored_schema(&connection), known);
        match schema {
            Schema::None => return Err(unusable(&"it has no tables")),
            Schema::TooNew { .. } => return Err(Error::TooNew),
            Schema::Current { .. } | Schema::Older { .. } | Schema::NewerButUsable { .. } => {}
        }
        let count = |from: &str| -> Result<u64, Error> {
            Ok(unsigned(connection.query_row(&format!("SELECT count(*) FROM {from}"), [], |row| row.get(0))?))
        };
        Ok(CopyContents {
            schema,
            commit: unsigned(commit_number(&connection)?),
            tenants: count("tenants")?,
            endpoints: count("endpoints WHERE deleted_at_ms IS NULL")?,
            events: count("events")?,
            deliveries: count("deliveries")?,
            waiting: count("deliveries WHERE status = 'waiting'")?,
        })
    }

    /// Puts a copy into a directory that has no database yet. With `hold`, a server that starts there does not deliver until an operator
    /// releases it.
    pub fn restore_copy(copy: &Path, data_dir: &Path, hold: Option<Timestamp>) -> Result<(), Error> {
        let target = data_dir.join(DATABASE);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target).map_err(Error::unavailable)?;
        let mut source = File::open(copy).map_err(Error::unavailable)?;
        std::io::copy(&mut source, &mut file).map_err(Error::unavailable)?;
        file.sync_all().map_err(Error::unavailable)?;
        if let Some(since) = hold {
            let connection = connect(&target)?;
            hold::insert(&connection, &stored_hold::written(since))?;
            connection.close().map_err(|(_, error)| error)?;
        }
        File::open(data_dir).and_then(|directory| directory.sync_all()).map_err(Error::unavailable)
    }
}
