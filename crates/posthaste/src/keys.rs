//! The data directory and the keys in it: made at the first start, readable to nobody else, and never made anew where
//! that would lock somebody out.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use posthaste_store::{MasterKey, SecretText};

pub(crate) const ADMIN_KEY: &str = "admin.key";
pub(crate) const MASTER_KEY: &str = "master.key";
pub(crate) const DATABASE: &str = "posthaste.db";

/// The directory that everything is in.
#[derive(Debug)]
pub(crate) struct DataDirectory(PathBuf);

/// A key, and whether this start has made it.
#[derive(Debug)]
pub(crate) struct StoredKey<T> {
    pub(crate) key: T,
    pub(crate) is_new: bool,
}

impl DataDirectory {
    /// Makes it if it is not there. Refuses one whose database belongs to somebody else: what we would write beside it
    /// its owner could not read.
    pub(crate) fn open(path: &Path) -> anyhow::Result<DataDirectory> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
            anyhow!("the data directory {} cannot be made: {error}; name another with --data-dir", path.display())
        })?;
        if let (Some(owner), Some(us)) = (owner(&path.join(DATABASE)), owner(Path::new("/proc/self")))
            && owner != us
        {
            bail!(
                "the database in {} belongs to user {owner}, and this process runs as user {us}; run it as that user, or change \
                 the owner of the directory and everything in it",
                path.display()
            );
        }
        Ok(DataDirectory(path.to_owned()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A database whose key is gone is not given a new one: nothing in it would open.
    pub(crate) fn master_key(&self) -> anyhow::Result<MasterKey> {
        let path = self.0.join(MASTER_KEY);
        if !path.exists() && self.0.join(DATABASE).exists() {
            bail!(
                "{} is missing, and the secrets in the database beside it cannot be opened without it; restore it from a backup, \
                 or set POSTHASTE_MASTER_KEY",
                path.display()
            );
        }
        let kept = self.keep(MASTER_KEY, || MasterKey::generate().reveal_base64().to_string())?;
        MasterKey::from_base64(&kept.key).map_err(|error| anyhow!("{} is not usable: {error}", path.display()))
    }

    pub(crate) fn admin_key(&self) -> anyhow::Result<StoredKey<SecretText>> {
        let kept = self.keep(ADMIN_KEY, || format!("phk_{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>()))?;
        if kept.key.len() < 20 {
            bail!("{} is not usable: an admin key has at least 20 characters", self.0.join(ADMIN_KEY).display());
        }
        Ok(StoredKey { key: SecretText(kept.key), is_new: kept.is_new })
    }

    /// What is in this file, or else what is made now and is in it from now on, also after a power cut. Of two processes
    /// that start together one makes it, and the other reads that.
    fn keep(&self, name: &str, new_key: impl FnOnce() -> String) -> anyhow::Result<StoredKey<String>> {
        let path = self.0.join(name);
        if let Some(key) = read(&path)? {
            return Ok(StoredKey { key, is_new: false });
        }
        let key = new_key();
        let beside = self.0.join(format!(".{name}.{:016x}", rand::random::<u64>()));
        let made = write(&beside, &key).and_then(|()| std::fs::hard_link(&beside, &path));
        let _ = std::fs::remove_file(&beside);
        match made {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let key = read(&path)?.context("it was there a moment ago")?;
                return Ok(StoredKey { key, is_new: false });
            }
            Err(error) => bail!(
                "the data directory {} cannot be written to: {error}; check its owner and permissions, or name another with \
                 --data-dir",
                self.0.display()
            ),
        }
        File::open(&self.0).and_then(|directory| directory.sync_all()).with_context(|| self.0.display().to_string())?;
        Ok(StoredKey { key, is_new: true })
    }
}

/// The master key in this directory, if there is one. Nothing is made.
pub(crate) fn existing_master_key(data_dir: &Path) -> anyhow::Result<Option<MasterKey>> {
    let path = data_dir.join(MASTER_KEY);
    let Some(text) = read(&path)? else { return Ok(None) };
    MasterKey::from_base64(&text).map(Some).map_err(|error| anyhow!("{} is not usable: {error}", path.display()))
}

/// The keys in a directory, as far as they are there. Nothing is made.
// No `Debug`: they are keys.
pub(crate) struct ExistingKeys {
    pub(crate) master: Option<MasterKey>,
    pub(crate) admin: Option<SecretText>,
}

pub(crate) fn existing_keys(data_dir: &Path) -> anyhow::Result<ExistingKeys> {
    Ok(ExistingKeys { master: existing_master_key(data_dir)?, admin: read(&data_dir.join(ADMIN_KEY))?.map(SecretText) })
}

/// Whose bits of a file's mode say that somebody else can read or change it.
const OTHERS: u32 = 0o077;

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    refuse_if_loose(path, OTHERS)?;
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(anyhow!("{} cannot be read: {error}; check its owner and permissions", path.display())),
    }
}

fn write(path: &Path, key: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{key}\n").as_bytes())?;
    file.sync_all()
}

/// A key that others can read is not a secret. Whoever put it there is told how to mend that.
pub(crate) fn refuse_if_loose(path: &Path, others: u32) -> anyhow::Result<()> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let mode = metadata.mode() & 0o777;
    if mode & others != 0 {
        bail!("{} can be read or changed by others (mode {mode:04o}); mend that with: chmod 600 {}", path.display(), quoted(path));
    }
    Ok(())
}

/// As a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/._-".contains(character);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

fn owner(path: &Path) -> Option<u32> {
    std::fs::metadata(path).ok().map(|metadata| metadata.uid())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn keys_are_made_once_for_nobody_else_to_read() {
        let scratch = Scratch::new().unwrap();
        let directory = DataDirectory::open(&scratch.path().join("a/b")).unwrap();
        assert_eq!(std::fs::metadata(directory.path()).unwrap().mode() & 0o777, 0o700);
        let first = directory.admin_key().unwrap();
        let second = directory.admin_key().unwrap();
        assert!(first.is_new && !second.is_new);
        assert_eq!(first.key, second.key);
        let master = directory.master_key().unwrap().reveal_base64();
        assert_eq!(*directory.master_key().unwrap().reveal_base64(), *master);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().mode() & 0o777, 0o600);
            names.push(entry.file_name());
        }
        assert_eq!(names.len(), 2, "nothing is left beside them: {names:?}");
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused_with_the_command_that_mends_it() {
        let scratch = Scratch::new().unwrap();
        let directory = DataDirectory::open(&scratch.path().join("it's here")).unwrap();
        directory.admin_key().unwrap();
        let path = directory.path().join(ADMIN_KEY);
        for mode in [0o640, 0o604, 0o660, 0o644] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let error = directory.admin_key().unwrap_err().to_string();
            assert!(error.contains(&format!("mode {mode:04o}")), "{error}");
            let command = error.split_once("mend that with: ").unwrap().1;
            assert!(std::process::Command::new("sh").args(["-c", command]).status().unwrap().success());
            assert!(!directory.admin_key().unwrap().is_new);
        }
    }

    #[test]
    fn a_database_without_its_key_is_not_given_a_new_one() {
        let scratch = Scratch::new().unwrap();
        std::fs::write(scratch.path().join(DATABASE), "x").unwrap();
        let directory = DataDirectory::open(scratch.path()).unwrap();
        let error = directory.master_key().unwrap_err().to_string();
        assert!(error.contains("is missing"), "{error}");
        assert!(!scratch.path().join(MASTER_KEY).exists());
    }

    #[test]
    fn of_many_that_start_together_all_have_the_same_key() {
        let scratch = Scratch::new().unwrap();
        let directory = DataDirectory::open(scratch.path()).unwrap();
        let keys = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| directory.admin_key().unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(keys.iter().all(|kept| kept.key == keys[0].key));
        assert_eq!(keys.iter().filter(|kept| kept.is_new).count(), 1);
    }
}
