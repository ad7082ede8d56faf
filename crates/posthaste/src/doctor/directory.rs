//! The data directory: whose it is, who else can read it, how much room it has, who runs on it, and whether its disk keeps
//! what it was given.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use posthaste_store::Sqlite;
use rustix::fs::{Access, OFlags, access, statfs, statvfs};

use super::finding::Finding;
use crate::keys::{ADMIN_KEY, DATABASE, MASTER_KEY};
use crate::settings::Settings;

/// A busy server writes as much in minutes.
const FREE_BYTES_LOW: u64 = 1024 * 1024 * 1024;
/// The log alone may want this much.
const FREE_BYTES_MIN: u64 = 64 * 1024 * 1024;
const FREE_FILES_MIN: u64 = 100;
/// A few files are opened and closed while it runs; enough flushes to tell a hiccup from a habit.
const FLUSHES: usize = 9;
/// No disk is faster: what says so has not flushed.
const FLUSH_MIN: Duration = Duration::from_micros(5);
/// Every acknowledgement waits for one of them.
const FLUSH_SLOW: Duration = Duration::from_millis(50);
/// File systems that are memory: `tmpfs` and `ramfs`.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

pub(super) fn look(settings: &Settings) -> Vec<Finding> {
    let path = &settings.data_dir;
    let is_sqlite = settings.database_url.is_none();
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return not_there(path),
        Err(error) => {
            return vec![Finding::wrong("data directory", at(path, &format!("cannot be looked at: {error}")), OWN_OR_NAME)];
        }
    };
    if !metadata.is_dir() {
        return vec![Finding::wrong("data directory", at(path, "is not a directory"), "name another with --data-dir")];
    }
    let user = if is_sqlite { Sqlite::process_using(path) } else { None };
    let mut findings = vec![directory(path, &metadata, user)];
    findings.extend([ADMIN_KEY, MASTER_KEY].iter().filter_map(|name| key_file(&path.join(name))));
    if is_sqlite {
        findings.push(process(path, user));
        findings.push(space(path));
        findings.push(flush(path));
    }
    findings
}

const OWN_OR_NAME: &str =
    "run as the user that the server runs as, check its owner and permissions, or name another with --data-dir";

fn at(path: &Path, what: &str) -> String {
    format!("{} {what}", path.display())
}

fn not_there(path: &Path) -> Vec<Finding> {
    let above = nearest(path);
    let may_make = access(&above, Access::WRITE_OK | Access::EXEC_OK);
    match may_make {
        Ok(()) => {
            let words = at(path, "is not there yet; the first start makes it");
            vec![Finding::ok("data directory", words), space(&above)]
        }
        Err(error) => {
            let words = at(path, &format!("is not there and cannot be made in {}: {error}", above.display()));
            vec![Finding::wrong("data directory", words, OWN_OR_NAME)]
        }
    }
}

/// What there is of the path.
fn nearest(path: &Path) -> PathBuf {
    let existing = path.ancestors().skip(1).find(|above| above.exists());
    existing.filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

fn directory(path: &Path, metadata: &Metadata, user: Option<u32>) -> Finding {
    let check = "data directory";
    if let Err(error) = access(path, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        return Finding::wrong(check, at(path, &format!("cannot be written to: {error}")), OWN_OR_NAME);
    }
    let us = rustix::process::geteuid().as_raw();
    let owner = std::fs::metadata(path.join(DATABASE)).map_or_else(|_| metadata.uid(), |database| database.uid());
    // Whoever asks may be another than the server, as long as that runs.
    if owner != us && user.is_none() {
        let words = at(path, &format!("belongs to user {owner}, and this process runs as user {us}"));
        return Finding::wrong(check, words, "run as that user, or change the owner of the directory and everything in it");
    }
    let mode = metadata.mode() & 0o777;
    let close = format!("chmod 700 {}", path.display());
    if mode & 0o022 != 0 {
        return Finding::wrong(check, at(path, &format!("can be written to by other users (mode {mode:03o})")), close);
    }
    if mode & 0o055 != 0 {
        return Finding::warning(check, at(path, &format!("can be looked into by other users (mode {mode:03o})")), close);
    }
    Finding::ok(check, at(path, &format!("belongs to user {owner} alone (mode {mode:03o})")))
}

/// Nothing is said of one that is not there: the first start makes it, and a database that needs it says so.
fn key_file(path: &Path) -> Option<Finding> {
    let mode = std::fs::metadata(path).ok()?.mode() & 0o777;
    if mode & 0o077 != 0 {
        let words = at(path, &format!("can be read by other users (mode {mode:03o})"));
        let remedy = format!("chmod 600 {}, and change the key if somebody may have read it", path.display());
        return Some(Finding::wrong("keys", words, remedy));
    }
    match std::fs::read(path) {
        Err(error) => Some(Finding::wrong("keys", at(path, &format!("cannot be read: {error}")), OWN_OR_NAME)),
        Ok(text) if path.ends_with(ADMIN_KEY) && text.trim_ascii().len() < 20 => {
            let remedy = "restore it, or remove it so that the next start makes a new one";
            Some(Finding::wrong("keys", at(path, "is not usable: an admin key has at least 20 characters"), remedy))
        }
        Ok(_) => Some(Finding::ok("keys", at(path, "can be read by its owner alone"))),
    }
}

fn process(path: &Path, user: Option<u32>) -> Finding {
    match user {
        Some(process) => Finding::ok("process", at(path, &format!("is in use by the process {process}"))),
        None if Sqlite::was_left_open(path) => Finding::ok(
            "process",
            at(
                path,
                "is not in use; the last server there was killed, which the next start mends (or it runs where this process cannot see it)",
            ),
        ),
        None => Finding::ok("process", at(path, "is not in use")),
    }
}

fn space(path: &Path) -> Finding {
    let check = "disk space";
    let found = match statvfs(path) {
        Ok(found) => found,
        Err(error) => {
            return Finding::warning(
                check,
                at(path, &format!("cannot be asked for its free space: {error}")),
                "look by hand: df -h",
            );
        }
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let words = format!("{} MiB are free at {}", free / (1024 * 1024), path.display());
    let remedy = "free some, enlarge it, or keep less (retention_days)";
    if free < FREE_BYTES_MIN {
        Finding::wrong(check, words, remedy)
    } else if found.f_files > 0 && found.f_favail < FREE_FILES_MIN {
        Finding::wrong(check, format!("only {} more files can be made at {}", found.f_favail, path.display()), "remove some")
    } else if free < FREE_BYTES_LOW {
        Finding::warning(check, words, remedy)
    } else {
        Finding::ok(check, words)
    }
}

fn flush(path: &Path) -> Finding {
    let kind = statfs(path).map_or(0, |found| u64::try_from(found.f_type).unwrap_or_default());
    match time_of_a_flush(path) {
        Ok(time) => judge_flush(path, time, IN_MEMORY.contains(&kind)),
        Err(error) => {
            let words = at(path, &format!("cannot be flushed: {error}"));
            Finding::wrong(
                "disk",
                words,
                "look at the system's log (dmesg), and at the disk; nothing can be acknowledged like this",
            )
        }
    }
}

fn judge_flush(path: &Path, time: Duration, is_in_memory: bool) -> Finding {
    let micros = time.as_micros();
    if is_in_memory {
        let words = at(path, "is in memory: everything in it is gone when the machine stops");
        Finding::warning("disk", words, "name a directory on a disk with --data-dir")
    } else if time < FLUSH_MIN {
        let words =
            at(path, &format!("is flushed in {micros} µs, as no disk can: what was acknowledged may be lost in a power cut"));
        Finding::warning(
            "disk",
            words,
            "look for a mount option, a driver or a program that leaves flushes out (nobarrier, eatmydata)",
        )
    } else if time > FLUSH_SLOW {
        let words = at(path, &format!("is flushed in {} ms, and every acknowledgement waits for one", time.as_millis()));
        Finding::warning("disk", words, "use a faster disk, or see what else keeps it busy")
    } else {
        Finding::ok("disk", at(path, &format!("is flushed in {micros} µs")))
    }
}

/// The middle one of some, on a file that has no name and is gone when it is closed.
fn time_of_a_flush(path: &Path) -> std::io::Result<Duration> {
    let mut file = unnamed_file(path)?;
    let mut times = Vec::with_capacity(FLUSHES);
    for _ in 0..FLUSHES {
        file.write_all(&[0; 4096])?;
        let began = Instant::now();
        file.sync_all()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[FLUSHES / 2])
}

fn unnamed_file(path: &Path) -> std::io::Result<File> {
    #[expect(clippy::cast_possible_wrap, reason = "flags of the system, which takes them as they are")]
    let unnamed = OFlags::TMPFILE.bits() as i32;
    let made = OpenOptions::new().read(true).write(true).custom_flags(unnamed).mode(0o600).open(path);
    if !made.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::IsADirectory)) {
        return made;
    }
    // Some network file systems know no files without a name.
    let named = path.join(format!(".doctor.{:016x}", rand::random::<u64>()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&named)?;
    std::fs::remove_file(&named)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Grade;

    #[test]
    fn a_disk_is_judged_by_how_long_it_takes_over_a_flush() {
        let judged = |micros, is_in_memory| judge_flush(Path::new("/data"), Duration::from_micros(micros), is_in_memory).grade;
        assert_eq!(judged(1, false), Grade::Warning, "it lies");
        assert_eq!(judged(5, false), Grade::Ok);
        assert_eq!(judged(50_000, false), Grade::Ok);
        assert_eq!(judged(50_001, false), Grade::Warning);
        assert_eq!(judged(500, true), Grade::Warning);
    }

    #[test]
    fn what_there_is_of_a_path_is_found() {
        assert_eq!(nearest(Path::new("/nowhere/at/all")), Path::new("/"));
        assert_eq!(nearest(Path::new("posthaste-nowhere")), Path::new("."));
    }
}
