//! `posthaste backup` and `posthaste restore`: a copy of a SQLite data directory, taken while the server runs.
//!
//! A backup is a directory with three files: `posthaste.db`, `keys.sealed` (`sealed_keys.rs`) and `backup.json`, which is
//! written last: without it a backup is not complete. A restore goes into an empty directory only. With PostgreSQL the
//! database's own tools make the backup (docs/guide/backup.md).

mod sealed_keys;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use posthaste_core::time::Timestamp;
use posthaste_store::{CopyContents, Schema, Sqlite};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::keys::{ADMIN_KEY, DATABASE, MASTER_KEY, existing_keys, refuse_if_loose};
use crate::serve::plainly;
use crate::settings::{self, Flags, Settings};
use sealed_keys::Keys;

const KEYS: &str = "keys.sealed";
const MANIFEST: &str = "backup.json";
/// Where a restore puts master keys from before a rotation, for `--previous-master-keys-file`.
const PREVIOUS_MASTER_KEYS: &str = "previous-master-keys";

#[derive(Args)]
pub(crate) struct BackupCommand {
    #[command(subcommand)]
    command: Backup,
}

#[derive(Subcommand)]
enum Backup {
    /// Back up the data directory, also while the server runs
    Create(Create),
    /// Check that a backup is whole: every page of the database, its schema, its keys if there is a passphrase
    Verify(Verify),
}

#[derive(Args)]
struct Create {
    /// The directory to make; it must not exist, or be empty
    backup: PathBuf,
    #[arg(
        long,
        value_name = "DIR",
        help = "The data directory of the server [env: POSTHASTE_DATA_DIR] [default: ./posthaste-data]"
    )]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    passphrase: Passphrase,
    /// For scripts
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Verify {
    backup: PathBuf,
    #[command(flatten)]
    passphrase: Passphrase,
    /// For scripts
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Restore {
    backup: PathBuf,
    #[arg(
        long,
        value_name = "DIR",
        help = "Where to; it must not exist, or be empty [env: POSTHASTE_DATA_DIR] [default: ./posthaste-data]"
    )]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    passphrase: Passphrase,
    /// Deliver nothing from there until an operator says `posthaste hold release`
    #[arg(long)]
    hold: bool,
}

#[derive(Args)]
struct Passphrase {
    #[arg(
        long,
        value_name = "FILE",
        help = "The file with the passphrase that encrypts the keys [env: POSTHASTE_BACKUP_PASSPHRASE is the passphrase itself]"
    )]
    passphrase_file: Option<PathBuf>,
}

/// Shorter ones are found by trying.
const PASSPHRASE_BYTES_MIN: usize = 12;

impl Passphrase {
    fn read(&self) -> anyhow::Result<Option<String>> {
        let text = if let Some(path) = &self.passphrase_file {
            refuse_if_loose(path, 0o077)?;
            Some(std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?)
        } else {
            settings::backup_passphrase()
        };
        let text = text.map(|text| text.trim_end_matches(['\n', '\r']).to_owned());
        if text.as_ref().is_some_and(|text| text.len() < PASSPHRASE_BYTES_MIN) {
            bail!("the passphrase is shorter than {PASSPHRASE_BYTES_MIN} bytes; `head -c 24 /dev/urandom | base64` makes one");
        }
        Ok(text)
    }

    fn required(&self) -> anyhow::Result<String> {
        self.read()?.context("the keys of the server are encrypted in a backup; give a passphrase with --passphrase-file or POSTHASTE_BACKUP_PASSPHRASE")
    }
}

pub(crate) fn run(command: &BackupCommand) -> anyhow::Result<()> {
    match &command.command {
        Backup::Create(create) => create.run(),
        Backup::Verify(verify) => verify.run(),
    }
}

impl Create {
    fn run(&self) -> anyhow::Result<()> {
        let passphrase = self.passphrase.required()?;
        let (settings, _) = Settings::load_what_can_be(&Flags::default());
        if settings.database_url.is_some() && self.data_dir.is_none() {
            bail!("this server keeps its data in PostgreSQL; back it up with pg_dump, as docs/guide/backup.md says");
        }
        let data_dir = self.data_dir.clone().unwrap_or(settings.data_dir);
        let keys = existing_keys(&data_dir)?;
        let master_key = settings.master_key.or(keys.master).with_context(|| {
            format!("there is no master key: neither POSTHASTE_MASTER_KEY nor {} has it", data_dir.join(MASTER_KEY).display())
        })?;
        let admin_key = settings.admin_key.or(keys.admin).with_context(|| {
            format!("there is no admin key: neither POSTHASTE_ADMIN_KEY nor {} has it", data_dir.join(ADMIN_KEY).display())
        })?;
        let previous = settings.previous_master_keys.iter().map(|key| key.reveal_base64().to_string()).collect();
        let keys = Keys { master: master_key.reveal_base64().to_string(), previous, admin: admin_key.0 };

        make_empty(&self.backup, "backup")?;
        let database = self.backup.join(DATABASE);
        Sqlite::copy_to(&data_dir, &database).map_err(plainly)?;
        write(&self.backup.join(KEYS), &keys.seal(&passphrase)?)?;
        let contents = Sqlite::verify_copy(&database).map_err(plainly)?;
        let manifest = json!({
            "posthaste_version": env!("CARGO_PKG_VERSION"),
            "taken_at": now().to_rfc3339(),
            "files": {DATABASE: digest(&database)?, KEYS: digest(&self.backup.join(KEYS))?},
            "contents": counts(&contents),
        });
        write(&self.backup.join(MANIFEST), format!("{manifest:#}\n").as_bytes())?;
        sync_directory(&self.backup)?;
        tell(self.json, &manifest, || {
            format!("backed up {} to {}: {}", data_dir.display(), self.backup.display(), in_words(&contents))
        });
        Ok(())
    }
}

impl Verify {
    fn run(&self) -> anyhow::Result<()> {
        let (manifest, contents) = verified(&self.backup)?;
        let keys = match self.passphrase.read()? {
            Some(passphrase) => {
                open_keys(&self.backup, &passphrase)?;
                "the passphrase opens its keys"
            }
            None => "its keys were not tried: there is no passphrase",
        };
        tell(self.json, &manifest, || format!("{} is whole: {}; {keys}", self.backup.display(), in_words(&contents)));
        Ok(())
    }
}

pub(crate) fn restore(restore: &Restore) -> anyhow::Result<()> {
    let passphrase = restore.passphrase.required()?;
    let (settings, _) = Settings::load_what_can_be(&Flags::default());
    let data_dir = restore.data_dir.clone().unwrap_or(settings.data_dir);
    let (_, contents) = verified(&restore.backup)?;
    let keys = open_keys(&restore.backup, &passphrase)?;
    make_empty(&data_dir, "data directory")?;
    // The database last: a directory with keys and no database is not taken for a server's.
    write(&data_dir.join(ADMIN_KEY), format!("{}\n", keys.admin).as_bytes())?;
    write(&data_dir.join(MASTER_KEY), format!("{}\n", keys.master).as_bytes())?;
    if !keys.previous.is_empty() {
        write(&data_dir.join(PREVIOUS_MASTER_KEYS), format!("{}\n", keys.previous.join(",")).as_bytes())?;
    }
    Sqlite::restore_copy(&restore.backup.join(DATABASE), &data_dir, restore.hold.then(now)).map_err(plainly)?;
    println!("restored {} to {}: {}", restore.backup.display(), data_dir.display(), in_words(&contents));
    if !keys.previous.is_empty() {
        let path = data_dir.join(PREVIOUS_MASTER_KEYS);
        println!("the master key was being rotated: start the server with --previous-master-keys-file {}", path.display());
    }
    let waiting = contents.waiting;
    if restore.hold {
        println!(
            "deliveries are held: {waiting} will be sent after `posthaste hold release`, also those that arrived after the backup"
        );
    } else {
        println!("{waiting} deliveries will be sent when the server starts, also those that arrived after the backup");
    }
    Ok(())
}

/// Checks the digests, then every page.
fn verified(backup: &Path) -> anyhow::Result<(Value, CopyContents)> {
    let path = backup.join(MANIFEST);
    let text = std::fs::read(&path)
        .map_err(|error| anyhow!("{} is not a complete backup: {} cannot be read: {error}", backup.display(), path.display()))?;
    let manifest: Value = serde_json::from_slice(&text).with_context(|| format!("{} is not readable", path.display()))?;
    for name in [DATABASE, KEYS] {
        if manifest["files"][name].as_str() != Some(&digest(&backup.join(name))?) {
            bail!("{} is not as it was written: its SHA-256 differs from the one in {MANIFEST}", backup.join(name).display());
        }
    }
    let contents = Sqlite::verify_copy(&backup.join(DATABASE)).map_err(plainly)?;
    Ok((manifest, contents))
}

fn open_keys(backup: &Path, passphrase: &str) -> anyhow::Result<Keys> {
    let path = backup.join(KEYS);
    let sealed = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Keys::open(&sealed, passphrase).with_context(|| format!("cannot open {}", path.display()))
}

/// Made if it is not there; refused if something is in it.
fn make_empty(path: &Path, what: &str) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot make the {what} {}", path.display()))?;
    let mut entries = std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    if entries.next().is_some() {
        bail!("{} is not empty; name a new directory for the {what}", path.display());
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

fn sync_directory(path: &Path) -> anyhow::Result<()> {
    File::open(path).and_then(|directory| directory.sync_all()).with_context(|| format!("cannot flush {}", path.display()))
}

fn digest(path: &Path) -> anyhow::Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1024 * 1024]);
    loop {
        let count = file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
    }
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}

fn counts(contents: &CopyContents) -> Value {
    let CopyContents { schema, commit, tenants, endpoints, events, deliveries, waiting } = contents;
    json!({
        "schema_version": schema_version(*schema), "commit": commit, "tenants": tenants, "endpoints": endpoints, "events": events,
        "deliveries": deliveries, "waiting_deliveries": waiting,
    })
}

fn in_words(contents: &CopyContents) -> String {
    let CopyContents { schema, tenants, endpoints, events, deliveries, waiting, .. } = contents;
    format!(
        "schema {}, tenants {tenants}, endpoints {endpoints}, events {events}, deliveries {deliveries}, of which {waiting} wait",
        schema_version(*schema)
    )
}

fn schema_version(schema: Schema) -> u32 {
    match schema {
        Schema::None => 0,
        Schema::Current { version }
        | Schema::Older { version, .. }
        | Schema::NewerButUsable { version, .. }
        | Schema::TooNew { version, .. } => version,
    }
}

fn tell(is_json: bool, manifest: &Value, words: impl FnOnce() -> String) {
    if is_json {
        println!("{manifest}");
    } else {
        println!("{}", words());
    }
}

fn now() -> Timestamp {
    Timestamp::from_millis(jiff::Timestamp::now().as_millisecond())
}
