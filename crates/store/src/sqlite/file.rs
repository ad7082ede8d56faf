//! The database file: who may open it, whether it is whole, how it is opened and closed.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste_core::tenant::Retention;
use rusqlite::{Connection, OpenFlags};

use crate::{Error, Keyring, Options, SealedValues};

use super::migrations;
use super::row;
use crate::columns::{millis, unsigned};

/// Up to this size every page is looked at when it is opened: some tenths of a second.
pub(super) const CHECKED_BYTES_MAX: u64 = 64 * 1024 * 1024;
pub(super) const LOCK: &str = "posthaste.lock";
pub(super) const MARKER: &str = "posthaste.running";
pub(super) const DATABASE: &str = "posthaste.db";
/// Written into the lock once there is a database, so that an empty one is never taken for a new one.
const INITIALISED: &[u8] = b"initialised\n";

/// A database that was opened, and what keeps it ours.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    /// Held for as long as the process owns the directory.
    pub(super) lock: File,
    pub(super) marker: File,
    pub(super) marker_path: PathBuf,
    pub(super) epoch: u64,
}

pub(super) fn open(data_dir: &Path, options: &Options) -> Result<Opened, Error> {
    let unusable = |what: &str, error: &dyn std::fmt::Display| {
        Error::Unusable(format!("the data directory {} {what}: {error}", data_dir.display()))
    };
    // Secrets are in there.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)
        .map_err(|error| unusable("cannot be made; name another with --data-dir", &error))?;
    let open_ours =
        |name: &str| OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(data_dir.join(name));
    let mut lock = open_ours(LOCK).map_err(|error| unusable("cannot be written to; check its owner and permissions", &error))?;
    if let Err(error) = lock.try_lock() {
        return Err(match error {
            std::fs::TryLockError::WouldBlock => Error::Unusable(format!(
                "another Posthaste process uses the data directory {}; stop it, or name another with --data-dir",
                data_dir.display()
            )),
            std::fs::TryLockError::Error(error) => unusable("cannot be locked", &error),
        });
    }
    let mut noted = Vec::new();
    lock.read_to_end(&mut noted).map_err(|error| unusable("cannot be read", &error))?;
    let was_initialised = noted == INITIALISED;
    let path = data_dir.join(DATABASE);
    let marker_path = data_dir.join(MARKER);
    let had_stopped_uncleanly = marker_path.exists();
    let is_empty = std::fs::metadata(&path).map_or(0, |metadata| metadata.len()) == 0;
    if is_empty && (was_initialised || had_stopped_uncleanly) {
        return Err(damaged(data_dir, "its database is missing or empty"));
    }
    let acknowledged = if had_stopped_uncleanly { marked(&marker_path) } else { 0 };

    // What cannot be read at this point is damaged; a disk that is full or gone says so by itself.
    let check = |error: Error| match error {
        Error::Unavailable(cause) => damaged(data_dir, &cause.to_string()),
        Error::Corrupt { what } => damaged(data_dir, &format!("its {what} is not readable")),
        other @ (Error::CommitInDoubt | Error::Overloaded { .. } | Error::Unusable(_) | Error::TooNew) => other,
    };
    // Before SQLite makes them, which gives its other files the mode of the database.
    for name in [DATABASE.to_owned(), format!("{DATABASE}-wal"), format!("{DATABASE}-shm")] {
        make_private(&data_dir.join(&name), name == DATABASE).map_err(|error| unusable("cannot be written to", &error))?;
    }
    let mut connection = connect(&path).map_err(check)?;
    if !is_empty {
        // A first start that was killed leaves a file without tables, and nobody was ever told anything of it.
        let may_have_no_tables = !was_initialised && !had_stopped_uncleanly;
        check_file(&connection, &path, data_dir, may_have_no_tables)?;
    }
    migrations::run(&mut connection).map_err(check)?;
    let found = commit_number(&connection).map_err(check)?;
    if found < acknowledged {
        let lost = acknowledged - found;
        return Err(damaged(
            data_dir,
            &format!(
                "{lost} groups of writes that were acknowledged are not in it: its log ({DATABASE}-wal) is missing or damaged"
            ),
        ));
    }
    check_master_key(&connection, options)?;
    sealed_values(&connection, &options.keyring)?.check()?;
    apply_default_retention(&mut connection, options.retention).map_err(|error| unusable("cannot be written to", &error))?;
    connection
        .execute("UPDATE counters SET value = value + 1 WHERE name = 'epoch'", [])
        .map_err(|error| unusable("cannot be written to", &error))?;
    let epoch: i64 = connection.query_row("SELECT value FROM counters WHERE name = 'epoch'", [], |row| row.get(0))?;
    if !was_initialised {
        lock.write_all(INITIALISED).and_then(|()| lock.sync_all()).map_err(|error| unusable("cannot be written to", &error))?;
    }
    let marker = open_ours(MARKER).map_err(|error| unusable("cannot be written to", &error))?;
    let epoch = u64::try_from(epoch).map_err(|_| Error::Corrupt { what: "epoch" })?;
    Ok(Opened { connection, path, lock, marker, marker_path, epoch })
}

/// For its owner alone, whoever may look into the directory.
fn make_private(path: &Path, is_made: bool) -> std::io::Result<()> {
    let opened = OpenOptions::new().read(true).write(true).create(is_made).truncate(false).mode(0o600).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mode = file.metadata()?.permissions().mode() & 0o777;
    let is_private = (mode & !0o700) == 0;
    if is_private { Ok(()) } else { file.set_permissions(std::fs::Permissions::from_mode(0o600)) }
}

fn damaged(data_dir: &Path, what: &str) -> Error {
    Error::Unusable(format!(
        "the database in {} is damaged: {what}. It was left as it is. Restore a backup, or move the directory away to begin anew",
        data_dir.display()
    ))
}

/// The last commit that was acknowledged, as far as it was noted.
pub(super) fn marked(marker_path: &Path) -> i64 {
    let noted = std::fs::read(marker_path).unwrap_or_default();
    noted.get(..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_le_bytes)
}

fn check_file(connection: &Connection, path: &Path, data_dir: &Path, may_have_no_tables: bool) -> Result<(), Error> {
    let is_readable = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
    match is_readable {
        Err(error) => return Err(damaged(data_dir, &error.to_string())),
        Ok(0) if !may_have_no_tables => return Err(damaged(data_dir, "it has no tables")),
        Ok(_) => {}
    }
    if std::fs::metadata(path).map_or(0, |metadata| metadata.len()) <= CHECKED_BYTES_MAX {
        let verdict: String =
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).unwrap_or_else(|error| error.to_string());
        if verdict != "ok" {
            return Err(damaged(data_dir, verdict.trim()));
        }
    }
    Ok(())
}

/// A node with another key than the database's could read no secret, and would write some that nobody else can.
fn check_master_key(connection: &Connection, options: &Options) -> Result<(), Error> {
    use rusqlite::OptionalExtension;
    let stored: Option<String> =
        connection.query_row("SELECT value FROM words WHERE name = 'master_key'", [], |row| row.get(0)).optional()?;
    let current = options.keyring.current_id().to_string();
    match stored {
        Some(stored) if !options.keyring.knows(&stored) => Err(Error::Unusable(format!(
            "the secrets in this database were sealed with the master key {stored}, and the one given is {current}; \
             set POSTHASTE_MASTER_KEY to the key that was used before"
        ))),
        Some(stored) if stored == current => Ok(()),
        Some(_) | None => {
            connection.execute("INSERT OR REPLACE INTO words (name, value) VALUES ('master_key', ?1)", [current])?;
            Ok(())
        }
    }
}

pub(super) fn sealed_values(connection: &Connection, keyring: &Keyring) -> Result<SealedValues, Error> {
    let mut select = connection.prepare("SELECT substr(sealed, 2, 8) AS key, count(*) AS n FROM endpoints GROUP BY 1")?;
    let by_key = row::all(select.query([])?, |row| Ok((row::column(row, "key")?, unsigned(row::column(row, "n")?))))?;
    Ok(SealedValues::count(keyring, by_key))
}

/// Tenants that do not set their own retention follow the server's setting, which may have changed since the last start. The document
/// is not parsed: one that cannot be read must not keep the server from starting.
fn apply_default_retention(connection: &mut Connection, retention: Retention) -> Result<(), rusqlite::Error> {
    let retention_ms = millis(retention.as_duration());
    let transaction = connection.transaction()?;
    transaction.execute(
        "INSERT INTO counters (name, value) VALUES ('default_retention_ms', ?1)
         ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE value <> excluded.value",
        [retention_ms],
    )?;
    transaction.execute(
        r#"UPDATE tenants SET retention_ms = ?1 WHERE retention_ms <> ?1 AND document NOT LIKE '%"retention_days":%'"#,
        [retention_ms],
    )?;
    transaction.commit()
}

/// Where a writer goes again and again: the ends of tables and indexes. What else it wants is in the system's cache. SQLite looks through
/// all of it whenever a tree was balanced, so that more would cost more than it saves.
const WRITERS_CACHE_KIB: u32 = 8 * 1024;
/// Of each of them.
const READERS_CACHE_KIB: u32 = 2 * 1024;

pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn connect(path: &Path) -> Result<Connection, Error> {
    let connection = Connection::open(path)?;
    // FULL: an answer is given only after the disk has it. NORMAL could lose acknowledged events in a power cut.
    // The log is checkpointed beside the writer, not inside a commit. What is deleted is overwritten, so that an erased payload is
    // gone from the file.
    connection.execute_batch(&format!(
        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;
         PRAGMA secure_delete = ON;
         PRAGMA busy_timeout = 5000; PRAGMA cache_size = -{WRITERS_CACHE_KIB}; PRAGMA temp_store = MEMORY;"
    ))?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(connection)
}

pub(super) fn connect_to_read(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch(&format!(
        "PRAGMA busy_timeout = 5000; PRAGMA cache_size = -{READERS_CACHE_KIB}; PRAGMA temp_store = MEMORY;"
    ))?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(connection)
}

/// Opens it after a failed flush, and makes sure that what is in it is on disk.
pub(super) fn reopen(path: &Path) -> Result<(Connection, i64), Error> {
    let connection = connect(path)?;
    // Copies what the log has into the database file and flushes that: pages whose flush has failed are written once more.
    let is_busy: i64 = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if is_busy != 0 {
        return Err(Error::unavailable("somebody still reads the log"));
    }
    let number = commit_number(&connection)?;
    Ok((connection, number))
}

/// Leaves nothing in the log, and says that this was no accident.
pub(super) fn close(connection: &Connection, marker_path: &Path) -> Result<(), Error> {
    connection.busy_timeout(Duration::from_secs(2))?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    std::fs::remove_file(marker_path).map_err(Error::unavailable)
}

pub(super) fn commit_number(connection: &Connection) -> Result<i64, Error> {
    Ok(connection.prepare_cached("SELECT value FROM counters WHERE name = 'commit'")?.query_row([], |row| row.get(0))?)
}

pub(super) fn set_commit_number(connection: &Connection, number: i64) -> Result<(), Error> {
    connection.prepare_cached("UPDATE counters SET value = ?1 WHERE name = 'commit'")?.execute([number])?;
    Ok(())
}

pub(super) fn log_bytes(path: &Path) -> u64 {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    std::fs::metadata(name).map_or(0, |metadata| metadata.len())
}
