//! What a measurement stands on: a scratch directory, a receiver, a load generator, and servers that begin with nothing.
//!
//! Everything here is a process of its own and ends with the bench; what they leave behind is the cleaner's.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use posthaste_store::MasterKey;

use super::DatabaseChoice;
use super::database::Database;
use super::line::Line;
use super::meter::{Metered, directory_bytes, peak_memory_bytes, resident_bytes};
use super::process::{Cleaner, Part, ServerProcess};

/// For the length of one `posthaste bench`. Its fields end in their order: first whoever writes, last whoever cleans up.
pub(super) struct BenchEnvironment {
    pub(super) receiver: Part,
    pub(super) load: Part,
    pub(super) database: Option<Database>,
    pub(super) scratch: PathBuf,
    cleaner: Cleaner,
    servers: u32,
}

impl BenchEnvironment {
    pub(super) async fn new(place: &DatabaseChoice) -> anyhow::Result<BenchEnvironment> {
        let database_url = place.database_url.as_deref();
        let database = match database_url {
            Some(url) => Some(Database::connect(url).await?),
            None => None,
        };
        let mut cleaner = Cleaner::start(database_url)?;
        let above = place.scratch_dir.clone().unwrap_or_else(std::env::temp_dir);
        let above = std::path::absolute(&above).with_context(|| format!("cannot find {}", above.display()))?;
        let scratch = above.join(format!("posthaste-bench-{:016x}", rand::random::<u64>()));
        cleaner.will_remove_directory(&scratch)?;
        std::fs::DirBuilder::new().mode(0o700).create(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
        let receiver = Part::start("receiver", &[]).await?;
        let load = Part::start("load", &[]).await?;
        Ok(BenchEnvironment { receiver, load, database, scratch, cleaner, servers: 0 })
    }

    /// What a report says of the database.
    pub(super) fn storing(&self) -> String {
        self.database.as_ref().map_or_else(|| "SQLite".to_owned(), |database| format!("PostgreSQL {}", database.version))
    }

    /// Whether the processor time of the database is counted, and if not why.
    pub(super) fn remark(&self) -> &'static str {
        match &self.database {
            Some(Database { postmaster: None, .. }) => {
                "The database runs elsewhere, or where its processes cannot be seen: its processor time is not counted.\n"
            }
            Some(Database { postmaster: Some(_), .. }) => {
                "Processor time of the database is that of all its processes, whoever uses it; bytes on disk are the database's growth, without its log.\n"
            }
            None => "",
        }
    }

    pub(super) async fn forwarder(&self) -> anyhow::Result<Part> {
        let target = self.receiver.address().to_string();
        Part::start("forwarder", &[OsStr::new(&target)]).await
    }

    /// There is none on PostgreSQL.
    pub(super) async fn bare_store(&self) -> anyhow::Result<Option<Part>> {
        if self.database.is_some() {
            return Ok(None);
        }
        let target = self.receiver.address().to_string();
        Part::start("bare-store", &[OsStr::new(&target), self.scratch.as_os_str()]).await.map(Some)
    }

    pub(super) async fn writer(&self) -> anyhow::Result<Part> {
        Part::start("writer", &[self.scratch.as_os_str()]).await
    }

    /// Where an endpoint has to be for its hits to be counted: of `copies` that get each event, this is the one with this number.
    pub(super) fn hook(&self, copies: usize, number: usize) -> String {
        format!("http://{}/{copies}/{number}", self.receiver.address())
    }

    /// An empty one, that is ready.
    pub(super) async fn server(&mut self, set: &[&str]) -> anyhow::Result<Testbed> {
        self.servers += 1;
        let directory = self.scratch.join(format!("server-{}", self.servers));
        std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let key = format!("phk_{:032x}", rand::random::<u128>());
        let mut variables = vec![
            ("POSTHASTE_ADMIN_KEY", key.clone()),
            ("POSTHASTE_MASTER_KEY", MasterKey::generate().reveal_base64().to_string()),
            ("POSTHASTE_LOG", crate::settings::log_levels_of_commands()),
        ];
        let mut in_database = None;
        if let Some(database) = &self.database {
            let name = format!("posthaste_bench_{:016x}", rand::random::<u64>());
            self.cleaner.will_drop_database(&name)?;
            variables.push(("POSTHASTE_DATABASE_URL", database.create(&name).await?));
            in_database = Some(name);
        }
        let flags = ["--listen", "127.0.0.1:0", "--allow-networks", "127.0.0.0/8", "--allow-http", "--data-dir"];
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        flags.push(directory.join("data").display().to_string());
        // To furnish it is not what is measured.
        flags.extend(["--api-rate", "10000", "--api-burst", "100000"].iter().chain(set).map(|flag| (*flag).to_owned()));
        let started = ServerProcess::start(&directory, &flags, &variables).await?;
        let postmaster = self.database.as_ref().and_then(|database| database.postmaster);
        let mut bed =
            Testbed { running: Some(started), directory, flags, variables, key, in_database, postmaster, bytes_before: 0 };
        if self.database.is_some() {
            bed.bytes_before = self.bytes_on_disk(&bed).await?;
        }
        Ok(bed)
    }

    /// What it has written and kept. A log of changes that is not yet in its place counts, too, as long as the server runs.
    pub(super) async fn bytes_on_disk(&self, bed: &Testbed) -> anyhow::Result<u64> {
        let bytes = match (&self.database, &bed.in_database) {
            (Some(database), Some(name)) => database.bytes(name).await?,
            _ => directory_bytes(&bed.directory),
        };
        Ok(bytes.saturating_sub(bed.bytes_before))
    }
}

/// A server, and what it takes to start it again.
pub(super) struct Testbed {
    running: Option<ServerProcess>,
    directory: PathBuf,
    flags: Vec<String>,
    variables: Vec<(&'static str, String)>,
    pub(super) key: String,
    in_database: Option<String>,
    postmaster: Option<u32>,
    /// An empty database is not empty.
    bytes_before: u64,
}

impl Testbed {
    fn running(&self) -> &ServerProcess {
        self.running.as_ref().expect("it is used between a start and a stop")
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.running().address
    }

    pub(super) fn metered(&self) -> Metered {
        Metered { process: self.running().process(), postmaster: self.postmaster }
    }

    pub(super) fn peak_memory_bytes(&self) -> u64 {
        peak_memory_bytes(self.running().process())
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        resident_bytes(self.running().process())
    }

    pub(super) async fn line(&self) -> anyhow::Result<Line> {
        Line::connect(self.address(), &self.key).await
    }

    pub(super) async fn stop(&mut self) -> anyhow::Result<Duration> {
        match self.running.take() {
            Some(running) => running.stop().await,
            None => Ok(Duration::ZERO),
        }
    }

    /// Answers how long it took until it was ready.
    pub(super) async fn start_again(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.running = Some(ServerProcess::start(&self.directory, &self.flags, &self.variables).await?);
        Ok(began.elapsed())
    }
}

/// A measurement may leave gigabytes, and the next one wants them.
impl Drop for Testbed {
    fn drop(&mut self) {
        drop(self.running.take());
        let _ = std::fs::remove_dir_all(Path::new(&self.directory));
    }
}
