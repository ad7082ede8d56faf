//! Where PostgreSQL's programs are. Debian keeps them outside of PATH, one directory for each version.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What Posthaste supports.
const OLDEST_MAJOR_VERSION: u32 = 14;

const DEBIAN: &str = "/usr/lib/postgresql";

/// A directory that has only some of them belongs to a package of clients.
const PROGRAMS: [&str; 4] = ["initdb", "postgres", "pg_ctl", "psql"];

/// Whether a server can be started on this machine.
pub fn is_installed() -> bool {
    Installation::find().is_some()
}

#[derive(Debug)]
pub(crate) struct Installation {
    programs: PathBuf,
    /// As in `15.18`.
    pub(crate) version: String,
}

impl Installation {
    /// Debian's, newest first, and else what is in PATH.
    pub(crate) fn find() -> Option<Installation> {
        let mut debian: Vec<(u32, PathBuf)> = std::fs::read_dir(DEBIAN)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| Some((major(entry.file_name().to_str()?)?, entry.path().join("bin"))))
            .collect();
        debian.sort();
        let path = std::env::var_os("PATH").unwrap_or_default();
        debian.into_iter().rev().map(|(_, programs)| programs).chain(std::env::split_paths(&path)).find_map(Installation::at)
    }

    fn at(programs: PathBuf) -> Option<Installation> {
        if !PROGRAMS.iter().all(|program| programs.join(program).is_file()) {
            return None;
        }
        let output = Command::new(programs.join("postgres")).arg("--version").output().ok()?;
        // As in `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
        let version = str::from_utf8(&output.stdout).ok()?.split_whitespace().nth(2)?.to_owned();
        (major(&version)? >= OLDEST_MAJOR_VERSION).then_some(Installation { programs, version })
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        Path::new(&self.programs).join(name)
    }
}

/// The number that a version begins with: `17` of `17`, `17.2` and `17beta1`.
fn major(version: &str) -> Option<u32> {
    let end = version.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(version.len());
    version[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_begins_with_its_major_number() {
        for (version, expected) in
            [("15", Some(15)), ("15.18", Some(15)), ("17beta1", Some(17)), ("9.6", Some(9)), ("devel", None), ("", None)]
        {
            assert_eq!(major(version), expected, "{version}");
        }
    }
}
