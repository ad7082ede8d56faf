//! SQLite: one file in the data directory, one thread that writes, readers beside it.

mod deliveries;
mod endpoints;
mod events;
mod migrations;
mod row;
mod writer;

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use posthaste_core::id::{Sequence, Unique};
use posthaste_core::time::Timestamp;
use rusqlite::Connection;
use tokio::sync::watch;

use crate::Error;
use crate::clock::Clock;
use writer::Writer;

/// Everything that Posthaste knows. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    writer: Writer,
    reader: Mutex<Connection>,
    clock: Clock,
    ids: Mutex<Sequence>,
    /// Counts the commits that made deliveries, so that whoever sends need not poll.
    news: watch::Sender<u64>,
}

impl Store {
    /// Opens the database in this directory, making both if they are not there.
    pub fn open(data_dir: &Path) -> Result<Store, Error> {
        // Secrets are in there.
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(data_dir)
            .map_err(|error| Error::Unavailable(error.into()))?;
        let path = data_dir.join("posthaste.db");
        let mut connection = connect(&path)?;
        migrations::run(&mut connection)?;
        Ok(Store(Arc::new(Inner {
            writer: Writer::start(connection),
            reader: Mutex::new(connect(&path)?),
            clock: Clock::new(),
            ids: Mutex::new(Sequence::default()),
            news: watch::Sender::new(0),
        })))
    }

    /// What time it is, for everybody.
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// What the wall clock shows, for signatures: it may jump.
    pub fn wall_clock(&self) -> Timestamp {
        Clock::wall()
    }

    /// The raw material of a new id.
    pub fn unique(&self) -> Unique {
        self.0.ids.lock().next(self.now(), rand::random())
    }

    /// Changes whenever there are new deliveries.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.0.news.subscribe()
    }

    /// Runs a query off the async threads.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || query(&inner.reader.lock())).await.map_err(|error| Error::Unavailable(error.into()))?
    }
}

fn connect(path: &Path) -> Result<Connection, Error> {
    let connection = Connection::open(path)?;
    // FULL: an answer is given only after the disk has it. NORMAL could lose acknowledged events in a power cut.
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA busy_timeout = 5000;",
    )?;
    Ok(connection)
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        Error::Unavailable(error.into())
    }
}
