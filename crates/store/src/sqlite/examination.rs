//! A look at a data directory without changing anything in it, not even its locks.

use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::file::{CHECKED_BYTES_MAX, DATABASE, LOCK, MARKER, commit_number, connect_to_read, log_bytes, marked};
use super::migrations::STEPS;
use super::{Sqlite, clock, file};
use crate::examination::{ENDPOINTS_MAX, Examined, MasterKeyFit, Schema};
use crate::{Error, Keyring};

impl Sqlite {
    /// Looks at the database in this directory, also while a server uses it. `None`: there is none yet.
    pub fn examine(data_dir: &Path, keyring: Option<&Keyring>) -> Result<Option<Examined>, Error> {
        let path = data_dir.join(DATABASE);
        let marker = data_dir.join(MARKER);
        let version = format!("SQLite {}", rusqlite::version());
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let was_initialised = std::fs::metadata(data_dir.join(LOCK)).is_ok_and(|metadata| metadata.len() > 0);
        if bytes == 0 {
            if !was_initialised && !marker.exists() {
                return Ok(None);
            }
            let troubles =
                vec!["its database is missing or empty; restore a backup, or move the directory away to begin anew".to_owned()];
            let (schema, master_key) = (Schema::None, MasterKeyFit::NothingSealed);
            return Ok(Some(Examined {
                version,
                schema,
                master_key,
                sealed: None,
                clock_skew: None,
                clock_jumped_by: None,
                has_unread_log: false,
                hold: None,
                endpoint_urls: vec![],
                troubles,
            }));
        }
        let is_in_use = Sqlite::process_using(data_dir).is_some();
        // Nobody writes: read as a file that does not change, so that nothing is made beside it. Then what is in its log is not
        // seen; whoever opens it to write reads that back first.
        let has_unread_log = !is_in_use && log_bytes(&path) > 0;
        let connection = if is_in_use { connect_to_read(&path)? } else { open_unchanging(&path)? };
        let mut troubles = Vec::new();
        if !has_unread_log {
            troubles.extend(damage(&connection, bytes));
            let is_short = !is_in_use && commit_number(&connection).unwrap_or(0) < marked(&marker);
            if troubles.is_empty() && is_short {
                troubles.push(format!(
                    "writes that were acknowledged are not in it: its log ({DATABASE}-wal) is missing; put the log back beside it, or \
                     restore a backup"
                ));
            }
        }
        let known = STEPS.last().expect("there are steps").version;
        let schema = Schema::of(stored_schema(&connection), known);
        let master_key = MasterKeyFit::of(stored_master_key(&connection), keyring);
        let clock_jumped_by = clock::jumped_by(&connection);
        // A table that is not there, or damaged, is told elsewhere.
        let sealed = keyring.and_then(|keyring| file::sealed_values(&connection, keyring).ok());
        // There may be no such table yet.
        let endpoint_urls = endpoint_urls(&connection).unwrap_or_default();
        let hold = super::hold::find(&connection).unwrap_or_default();
        Ok(Some(Examined {
            version,
            schema,
            master_key,
            sealed,
            clock_skew: None,
            clock_jumped_by,
            has_unread_log,
            hold,
            endpoint_urls,
            troubles,
        }))
    }

    /// The process that owns this directory, as far as this one can see it. The lock itself is not touched: whoever starts in
    /// this moment must not find it taken.
    pub fn process_using(data_dir: &Path) -> Option<u32> {
        let inode = std::fs::metadata(data_dir.join(LOCK)).ok()?.ino();
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| holder(line, inode))
    }

    /// Whether the last server there was killed, or still runs where nobody here can see it.
    pub fn was_left_open(data_dir: &Path) -> bool {
        data_dir.join(file::MARKER).exists()
    }
}

fn endpoint_urls(connection: &Connection) -> Result<Vec<String>, rusqlite::Error> {
    let select = "SELECT url FROM endpoints WHERE deleted_at_ms IS NULL AND status <> 'disabled' LIMIT ?1";
    connection.prepare(select)?.query_map([crate::columns::limit(ENDPOINTS_MAX)], |row| row.get("url"))?.collect()
}

/// `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1310808 0 EOF`. The device is not compared: some file systems show another one to `stat`.
fn holder(line: &str, inode: u64) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "->").collect();
    let [_, "FLOCK", _, "WRITE", process, file, ..] = words.as_slice() else { return None };
    let is_it = file.rsplit(':').next().and_then(|inode| inode.parse().ok()) == Some(inode);
    process.parse().ok().filter(|_| is_it)
}

pub(super) fn open_unchanging(path: &Path) -> Result<Connection, Error> {
    let mut uri = String::from("file:");
    for byte in std::path::absolute(path).map_err(Error::unavailable)?.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => uri.push(char::from(*byte)),
            other => write!(uri, "%{other:02X}").expect("a String takes everything"),
        }
    }
    uri.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Ok(Connection::open_with_flags(uri, flags)?)
}

/// What is wrong with the file itself. Large ones are only looked at where they are read anyway.
fn damage(connection: &Connection, bytes: u64) -> Option<String> {
    let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
    let found = match tables {
        Err(error) => error.to_string(),
        Ok(_) if bytes > CHECKED_BYTES_MAX => return None,
        Ok(_) => connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0))
            .unwrap_or_else(|error| error.to_string()),
    };
    (found != "ok").then(|| format!("it is damaged ({}); restore a backup, or move the directory away to begin anew", found.trim()))
}

pub(super) fn stored_schema(connection: &Connection) -> Option<(u32, u32)> {
    let read = connection.query_row("SELECT version, usable_from FROM schema", [], |row| Ok((row.get(0)?, row.get(1)?)));
    // No such table: it was never finished, or it is damaged, which is told elsewhere.
    read.optional().ok().flatten()
}

fn stored_master_key(connection: &Connection) -> Option<String> {
    let read = connection.query_row("SELECT value FROM words WHERE name = 'master_key'", [], |row| row.get(0));
    read.optional().ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::holder;

    #[test]
    fn only_whoever_holds_this_lock_is_its_holder() {
        assert_eq!(holder("1: FLOCK  ADVISORY  WRITE 4711 fe:00:1310808 0 EOF", 1_310_808), Some(4711));
        assert_eq!(holder("1: FLOCK  ADVISORY  WRITE 4711 fe:00:1310808 0 EOF", 310_808), None);
        assert_eq!(holder("2: POSIX  ADVISORY  WRITE 4711 fe:00:1310808 0 EOF", 1_310_808), None);
        assert_eq!(holder("", 1), None);
    }
}
