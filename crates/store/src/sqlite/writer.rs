//! The one thread that writes. Callers that arrive during a commit share the next one.
//!
//! A group runs in one transaction without savepoints, because expected conflicts are answers and not errors. If one of
//! its callers fails all the same, the group is rolled back and run again with a savepoint around each, so that whoever
//! cannot be written is refused alone.
//!
//! A commit whose flush has failed may or may not be on disk. Then no further write is taken until the database has been
//! opened anew and flushed, and its commit counter tells what has become of the group.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use posthaste_core::id::TenantId;
use rusqlite::hooks::Wal;
use rusqlite::{CachedStatement, Connection, Params};
use tokio::sync::oneshot;

use super::row_numbers::RowNumbers;
use super::{file, routing, statistics};
use crate::feed::{CommittedDelivery, FeedSender};
use crate::routing::Versions;
use crate::{Commits, Epoch, Error};

/// Enough to make a flush cheap, few enough that nobody waits long.
const GROUP_CALLERS_MAX: usize = 512;
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Callers in one group that show that many write at once.
const CROWD_CALLERS: usize = 8;
/// Under load, a group waits for as many callers as the larger of the last two groups had, capped at this many callers and this long.
/// Callers that were just answered are about to come back, and more of them share each flush and each page of the log.
const GATHERED_CALLERS: usize = 64;
const GATHERING_MAX: Duration = Duration::from_millis(1);
const GATHERING_STEP: Duration = Duration::from_micros(150);
/// A page in the log, and what says which one it is.
const FRAME_BYTES: usize = 4096 + 24;
/// What the log grows by before it is checkpointed beside the writer.
const LOG_BYTES_STEP: usize = 8 * 1024 * 1024;
/// From here on the writer itself sees to it that the log begins anew.
const LOG_BYTES_HIGH: usize = 64 * 1024 * 1024;
/// How long callers wait while a commit is in doubt.
const DOUBT_MAX: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Message>,
    waiting: Arc<PendingJobs>,
    waiting_bytes_max: usize,
}

/// Jobs that wait for the next group.
#[derive(Default, Debug)]
struct PendingJobs {
    callers: AtomicUsize,
    bytes: AtomicUsize,
}

impl PendingJobs {
    fn come(&self, bytes: usize) {
        self.callers.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn gone(&self, bytes: usize) {
        self.callers.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

enum Message {
    Job {
        job: Box<dyn Job>,
        bytes: usize,
    },
    /// Answers whether the log is empty now.
    EmptyTheLog(oneshot::Sender<Result<bool, Error>>),
    Close(oneshot::Sender<Result<(), Error>>),
}

/// One caller's part of a transaction. It may be run again after a rollback.
trait Job: Send {
    fn run(&mut self, turn: &GroupContext<'_>, state: &mut State) -> Result<(), Error>;
    fn answer(self: Box<Self>, outcome: GroupOutcome);
}

/// The connection while a group has it, and what is said to the database again and again meanwhile: to look a statement up and to put it
/// back costs nearly a tenth of what it does.
pub(super) struct GroupContext<'c> {
    connection: &'c Connection,
    held: RefCell<Vec<(&'static str, CachedStatement<'c>)>>,
}

impl<'c> GroupContext<'c> {
    fn new(connection: &'c Connection) -> GroupContext<'c> {
        GroupContext { connection, held: RefCell::default() }
    }

    /// For the few statements that everybody comes with. Each is known by where its text is, so that it takes a constant.
    pub(super) fn execute_often(&self, sql: &'static str, params: impl Params) -> rusqlite::Result<usize> {
        let mut held = self.held.borrow_mut();
        if let Some((_, statement)) = held.iter_mut().find(|(other, _)| std::ptr::eq(*other, sql)) {
            return statement.execute(params);
        }
        let mut statement = self.connection.prepare_cached(sql)?;
        let changed = statement.execute(params);
        held.push((sql, statement));
        changed
    }
}

impl Deref for GroupContext<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

/// The outcome of a group's commit.
#[derive(Clone, Debug)]
enum GroupOutcome {
    Committed,
    /// Nothing was written, and why.
    NotWritten(String),
    /// Not known yet, and the callers have waited long enough.
    InDoubt,
}

/// What the writer knows beside the database. Forgotten when a group is rolled back, except for the numbers of rows.
#[derive(Debug)]
pub(super) struct State {
    versions: HashMap<TenantId, u64>,
    catalogue: Option<u64>,
    pub(super) numbers: RowNumbers,
    pub(super) epoch: Epoch,
    /// The deliveries of the group, sent to the feed once it is committed.
    pub(super) fed: Vec<CommittedDelivery>,
    pub(super) is_fed: bool,
    /// The attempts that the group has recorded, as they are noted for counting.
    pub(super) uncounted: Vec<u8>,
}

impl State {
    /// The versions that this transaction sees.
    pub(super) fn versions(&mut self, connection: &Connection, tenant: &TenantId) -> Result<Versions, Error> {
        let catalogue = match self.catalogue {
            Some(catalogue) => catalogue,
            None => *self.catalogue.insert(routing::catalogue_version(connection)?),
        };
        if let Some(version) = self.versions.get(tenant) {
            return Ok(Versions { tenant: *version, catalogue });
        }
        let version = routing::tenant_version(connection, tenant)?;
        self.versions.insert(tenant.clone(), version);
        Ok(Versions { tenant: version, catalogue })
    }

    /// Something that publishing goes by has changed.
    pub(super) fn forget_versions(&mut self) {
        self.versions.clear();
        self.catalogue = None;
    }

    fn forget(&mut self) {
        self.forget_versions();
        self.fed.clear();
        self.uncounted.clear();
    }
}

struct QueuedCall<V, T> {
    run: V,
    result: Option<Result<T, Error>>,
    answer: oneshot::Sender<Result<T, Error>>,
}

impl<T: Send, V: FnMut(&GroupContext<'_>, &mut State) -> Result<T, Error> + Send> Job for QueuedCall<V, T> {
    fn run(&mut self, turn: &GroupContext<'_>, state: &mut State) -> Result<(), Error> {
        // A verb that panics must not take the only writer with it.
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| (self.run)(turn, state)))
            .unwrap_or_else(|_| Err(Error::unavailable("a write panicked")));
        let has_failed = result.is_err();
        self.result = Some(result);
        if has_failed { Err(Error::unavailable("one of a group has failed")) } else { Ok(()) }
    }

    fn answer(self: Box<Self>, outcome: GroupOutcome) {
        let result = match (outcome, self.result) {
            (GroupOutcome::Committed, Some(result))
            | (GroupOutcome::NotWritten(_) | GroupOutcome::InDoubt, Some(result @ Err(_))) => result,
            (GroupOutcome::Committed, None) => Err(Error::unavailable("the writer has stopped")),
            (GroupOutcome::NotWritten(problem), _) => Err(Error::unavailable(problem)),
            (GroupOutcome::InDoubt, _) => Err(Error::CommitInDoubt),
        };
        // Whoever asked may have gone; what was committed stays.
        let _ = self.answer.send(result);
    }
}

/// What the writer needs besides its connection.
pub(super) struct WriterContext {
    pub(super) path: PathBuf,
    pub(super) marker: File,
    pub(super) marker_path: PathBuf,
    pub(super) epoch: Epoch,
    pub(super) feeder: Arc<FeedSender>,
    pub(super) waiting_bytes_max: usize,
    pub(super) commits: Arc<Commits>,
}

impl Writer {
    /// The thread ends when the last handle is gone and everything before it is written.
    pub(super) fn start(connection: Connection, numbers: RowNumbers, context: WriterContext) -> Writer {
        let (jobs, inbox) = mpsc::channel();
        let waiting = Arc::<PendingJobs>::default();
        let waiting_bytes_max = context.waiting_bytes_max;
        let seen_waiting = Arc::clone(&waiting);
        std::thread::Builder::new()
            .name("posthaste-writer".to_owned())
            .spawn(move || Loop::new(connection, context, numbers, seen_waiting).run(&inbox))
            .expect("the system starts a thread");
        Writer { jobs, waiting, waiting_bytes_max }
    }

    /// Runs `verb` in the next group. `bytes` is about what it writes. It may be called again after a rollback.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        verb: impl FnMut(&GroupContext<'_>, &mut State) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.waiting.bytes.load(Ordering::Relaxed) > self.waiting_bytes_max {
            return Err(Error::Overloaded { retry_after: Duration::from_secs(1) });
        }
        let (answer, answered) = oneshot::channel();
        let job = Box::new(QueuedCall { run: verb, result: None, answer });
        self.waiting.come(bytes);
        self.jobs.send(Message::Job { job, bytes }).map_err(|_| Error::unavailable("the store is closed"))?;
        answered.await.map_err(|_| Error::unavailable("the store is closed"))?
    }

    /// Copies the log into the database file and cuts it to nothing, so that no page is left in it as it was before. False while
    /// somebody reads from it.
    pub(super) async fn empty_the_log(&self) -> Result<bool, Error> {
        let (answer, answered) = oneshot::channel();
        self.jobs.send(Message::EmptyTheLog(answer)).map_err(|_| Error::unavailable("the store is closed"))?;
        answered.await.map_err(|_| Error::unavailable("the store is closed"))?
    }

    pub(super) async fn close(&self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        // Closed already is closed.
        if self.jobs.send(Message::Close(answer)).is_err() {
            return Ok(());
        }
        answered.await.unwrap_or(Ok(()))
    }
}

struct Loop {
    connection: Connection,
    context: WriterContext,
    waiting: Arc<PendingJobs>,
    state: State,
    commit_number: i64,
    checkpoints: Checkpoints,
    /// Pages in the log, as SQLite tells after each commit.
    log_frames: Arc<AtomicUsize>,
    /// How large the log was when it was last checkpointed.
    log_bytes_seen: usize,
    /// How many shared the last group, and the one before.
    last_callers: [usize; 2],
    /// The last flush has failed, and every handle was dropped before it was known what became of it.
    is_left_in_doubt: bool,
}

impl Loop {
    fn new(connection: Connection, context: WriterContext, numbers: RowNumbers, waiting: Arc<PendingJobs>) -> Loop {
        let state = State {
            versions: HashMap::new(),
            catalogue: None,
            numbers,
            epoch: context.epoch,
            fed: Vec::new(),
            is_fed: false,
            uncounted: Vec::new(),
        };
        let commit_number = file::commit_number(&connection).unwrap_or(0);
        let checkpoints = Checkpoints::start(&context.path);
        let log_frames = Arc::default();
        let mut this = Loop {
            connection,
            context,
            waiting,
            state,
            commit_number,
            checkpoints,
            log_frames,
            log_bytes_seen: 0,
            last_callers: [0; 2],
            is_left_in_doubt: false,
        };
        this.watch_the_log();
        this
    }

    fn run(mut self, inbox: &mpsc::Receiver<Message>) {
        while let Ok(first) = inbox.recv() {
            self.gather();
            let mut group = Vec::new();
            let mut group_bytes = 0;
            let mut next = Some(first);
            let mut closing = None;
            let mut emptying = Vec::new();
            while let Some(message) = next {
                match message {
                    Message::Job { job, bytes } => {
                        self.waiting.gone(bytes);
                        group_bytes += bytes;
                        group.push(job);
                    }
                    Message::EmptyTheLog(answer) => emptying.push(answer),
                    Message::Close(answer) => {
                        closing = Some(answer);
                        break;
                    }
                }
                let has_room = group.len() < GROUP_CALLERS_MAX && group_bytes < GROUP_BYTES_MAX;
                next = if has_room { inbox.try_recv().ok() } else { None };
            }
            if !group.is_empty() {
                let (callers, began_at) = (group.len(), Instant::now());
                let outcome = match self.write_group(&mut group, inbox) {
                    Ok(()) => GroupOutcome::Committed,
                    Err(why) => GroupOutcome::NotWritten(why),
                };
                let is_written = matches!(outcome, GroupOutcome::Committed);
                self.context.commits.group(callers, began_at.elapsed(), is_written);
                for job in group {
                    job.answer(outcome.clone());
                }
                self.last_callers = [callers, self.last_callers[0]];
                self.tend_the_log();
            }
            for answer in emptying {
                let _ = answer.send(self.empty_the_log());
            }
            if let Some(answer) = closing {
                let closed = file::close(&self.connection, &self.context.marker_path);
                let Loop { connection, checkpoints, .. } = self;
                checkpoints.end();
                drop(connection);
                // From here on nobody touches the files any more.
                let _ = answer.send(closed);
                return;
            }
        }
        if self.is_left_in_doubt {
            // A close would say that nothing can be missing.
            return;
        }
        if let Err(error) = file::close(&self.connection, &self.context.marker_path) {
            tracing::error!(%error, "the database was not closed cleanly; nothing is lost, and the next start checks it");
        }
    }

    /// Asleep, so that whoever comes meanwhile wakes nobody.
    fn gather(&self) {
        let [last, before] = self.last_callers;
        let expected = last.max(before).min(GATHERED_CALLERS);
        if expected < CROWD_CALLERS {
            return;
        }
        let until = Instant::now() + GATHERING_MAX;
        while self.waiting.callers.load(Ordering::Relaxed) < expected && Instant::now() < until {
            std::thread::sleep(GATHERING_STEP);
        }
    }

    fn write_group(&mut self, group: &mut Vec<Box<dyn Job>>, inbox: &mpsc::Receiver<Message>) -> Result<(), String> {
        self.state.is_fed = self.context.feeder.has_listener();
        if let Err(error) = self.connection.execute_batch("BEGIN IMMEDIATE") {
            return Err(error.to_string());
        }
        // SQLite may roll a whole transaction back by itself, on a full disk say.
        let turn = GroupContext::new(&self.connection);
        let all_ran = group.iter_mut().all(|job| job.run(&turn, &mut self.state).is_ok());
        drop(turn);
        if !all_ran {
            self.roll_back();
            if let Err(error) = self.connection.execute_batch("BEGIN IMMEDIATE") {
                return Err(error.to_string());
            }
            for job in group.iter_mut() {
                if self.connection.is_autocommit() {
                    self.state.forget();
                    return Err("the transaction was rolled back".to_owned());
                }
                if let Err(error) = in_savepoint(&self.connection, &mut self.state, job.as_mut()) {
                    self.roll_back();
                    return Err(error.to_string());
                }
            }
        }
        let number = self.commit_number + 1;
        let prepared = self.state.numbers.reserve(&self.connection).and_then(|reservation| {
            statistics::note(&self.connection, &self.state.uncounted)?;
            file::set_commit_number(&self.connection, number)?;
            Ok(reservation)
        });
        let reservation = match prepared {
            Ok(reservation) => reservation,
            Err(error) => {
                self.roll_back();
                return Err(error.to_string());
            }
        };
        match self.connection.execute_batch("COMMIT") {
            Ok(()) => {}
            Err(error) if is_certain(&error) => {
                self.roll_back();
                return Err(error.to_string());
            }
            Err(error) => {
                tracing::error!(%error, "it is not known whether a group of writes was kept: opening the database anew");
                let fed = std::mem::take(&mut self.state.fed);
                self.state.forget();
                if !self.resolve_commit_in_doubt(number, group, inbox) {
                    return Err(error.to_string());
                }
                self.state.fed = fed;
            }
        }
        self.commit_number = number;
        self.state.numbers.commit(&reservation);
        self.state.uncounted.clear();
        // Not flushed: it is only ever compared with what survived.
        if let Err(error) = self.context.marker.write_all_at(&number.to_le_bytes(), 0) {
            tracing::warn!(%error, "the marker of the running process cannot be written");
        }
        self.context.feeder.send_group(std::mem::take(&mut self.state.fed));
        Ok(())
    }

    fn roll_back(&mut self) {
        if !self.connection.is_autocommit() {
            // If this fails, SQLite has rolled back by itself.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        self.state.forget();
    }

    /// Opens the database again, flushes it, and returns whether this commit is in it. Until that works, new writes are refused,
    /// and after a while the callers of this commit receive `CommitInDoubt`.
    fn resolve_commit_in_doubt(&mut self, number: i64, group: &mut Vec<Box<dyn Job>>, inbox: &mpsc::Receiver<Message>) -> bool {
        let mut pause = Duration::from_millis(50);
        let told_at = Instant::now() + DOUBT_MAX;
        loop {
            match file::reopen(&self.context.path) {
                Ok((connection, found)) => {
                    self.connection = connection;
                    self.watch_the_log();
                    self.commit_number = found;
                    return found >= number;
                }
                Err(error) => tracing::error!(%error, "the database cannot be opened and flushed yet"),
            }
            if Instant::now() >= told_at {
                group.drain(..).for_each(|job| job.answer(GroupOutcome::InDoubt));
            }
            let until = Instant::now() + pause;
            loop {
                match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(Message::Job { job, bytes }) => {
                        self.waiting.gone(bytes);
                        job.answer(GroupOutcome::NotWritten("the database is being opened anew after a failed flush".to_owned()));
                    }
                    Ok(Message::EmptyTheLog(answer)) => {
                        let _ = answer.send(Err(Error::unavailable("the last flush has failed")));
                    }
                    Ok(Message::Close(answer)) => {
                        let _ = answer.send(Err(Error::unavailable("the last flush has failed")));
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => {
                        // No handle is left that could write or wait: the next start finds out what was kept.
                        tracing::error!(
                            "the last flush has failed, and whether it was kept is not known; the next start checks it"
                        );
                        group.drain(..).for_each(|job| job.answer(GroupOutcome::InDoubt));
                        self.is_left_in_doubt = true;
                        return false;
                    }
                }
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Others wait for the writer meanwhile: it does not wait for readers itself.
    fn empty_the_log(&mut self) -> Result<bool, Error> {
        self.connection.busy_timeout(Duration::ZERO)?;
        let is_busy = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        self.connection.busy_timeout(file::BUSY_TIMEOUT)?;
        let is_empty = is_busy? == 0;
        if is_empty {
            self.log_frames.store(0, Ordering::Relaxed);
        }
        Ok(is_empty)
    }

    /// The length of the file says nothing: a log that begins anew does so within it.
    fn watch_the_log(&mut self) {
        let log_frames = Arc::clone(&self.log_frames);
        let hook = move |_: &mut Wal, frames| {
            log_frames.store(usize::try_from(frames).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        if let Err(error) = self.connection.wal_hook(Some(hook)) {
            tracing::error!(%error, "nobody tells how large the log is: it is not checkpointed");
        }
    }

    /// The bulk is copied beside the writer; what has come since then is little, and lets the log begin anew.
    fn tend_the_log(&mut self) {
        let log_bytes = self.log_frames.load(Ordering::Relaxed) * FRAME_BYTES;
        if log_bytes < self.log_bytes_seen {
            self.log_bytes_seen = 0;
        }
        if log_bytes < self.log_bytes_seen + LOG_BYTES_STEP {
            return;
        }
        self.log_bytes_seen = log_bytes;
        if log_bytes < LOG_BYTES_HIGH {
            self.checkpoints.ask();
        } else if let Err(error) = self.connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())) {
            tracing::warn!(%error, "the log was not checkpointed");
        }
    }
}

/// Whether a failed commit has certainly changed nothing. A failed flush leaves that open; a disk without room does not,
/// because the frame that would make it a commit was not written.
fn is_certain(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull};
    matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked | ConstraintViolation | DiskFull))
}

fn in_savepoint(connection: &Connection, state: &mut State, job: &mut dyn Job) -> Result<(), Error> {
    connection.execute_batch("SAVEPOINT one")?;
    let (fed, uncounted) = (state.fed.len(), state.uncounted.len());
    if job.run(&GroupContext::new(connection), state).is_err() {
        if connection.is_autocommit() {
            return Err(Error::unavailable("the transaction was rolled back"));
        }
        state.fed.truncate(fed);
        state.uncounted.truncate(uncounted);
        state.forget_versions();
        connection.execute_batch("ROLLBACK TO one")?;
    }
    connection.execute_batch("RELEASE one")?;
    Ok(())
}

/// A thread that copies the log into the database file when it is told to.
struct Checkpoints {
    poke: mpsc::SyncSender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Checkpoints {
    fn start(path: &Path) -> Checkpoints {
        let (poke, poked) = mpsc::sync_channel::<()>(1);
        let path = path.to_owned();
        let thread = std::thread::Builder::new()
            .name("posthaste-checkpoints".to_owned())
            .spawn(move || {
                let mut kept = None;
                while poked.recv().is_ok() {
                    kept = match checkpoint(&path, kept.take()) {
                        Ok(connection) => Some(connection),
                        Err(error) => {
                            tracing::warn!(%error, "the log was not checkpointed");
                            None
                        }
                    };
                }
            })
            .expect("the system starts a thread");
        Checkpoints { poke, thread }
    }

    /// One that is under way is enough.
    fn ask(&self) {
        let _ = self.poke.try_send(());
    }

    /// Comes back when the last one is done and its connection is closed.
    fn end(self) {
        drop(self.poke);
        // One that has panicked has ended, too.
        let _ = self.thread.join();
    }
}

/// Answers the connection, to be used again.
fn checkpoint(path: &Path, kept: Option<Connection>) -> Result<Connection, Error> {
    let connection = kept.map_or_else(|| file::connect(path), Ok)?;
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use crate::{Keyring, MasterKey, Options};

    use super::*;

    #[test]
    fn a_writer_whose_handles_are_gone_gives_up_on_a_broken_disk() {
        let directory = std::env::temp_dir().join(format!("posthaste-writer-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let options = Options::new(Keyring::new(MasterKey::generate(), vec![]));
        let opened = file::open(&directory, &options).expect("a database");
        let marker_path = opened.marker_path.clone();
        let context = WriterContext {
            // As good as a disk that does not answer.
            path: directory.join("gone").join("posthaste.db"),
            marker: opened.marker,
            marker_path: opened.marker_path,
            epoch: opened.epoch,
            feeder: Arc::default(),
            waiting_bytes_max: 1,
            commits: Arc::default(),
        };
        let (jobs, inbox) = mpsc::channel();
        let (said, heard) = mpsc::channel();
        let connection = opened.connection;
        let numbers = RowNumbers::load(&connection).unwrap();
        std::thread::spawn(move || {
            let mut writer = Loop::new(connection, context, numbers, Arc::default());
            let was_kept = writer.resolve_commit_in_doubt(7, &mut Vec::new(), &inbox);
            writer.run(&inbox);
            let _ = said.send(was_kept);
        });
        drop(jobs);
        let ended = heard.recv_timeout(Duration::from_secs(30));
        assert_eq!(ended, Ok(false), "it ends, and does not ask the disk for ever");
        assert!(marker_path.exists(), "the next start has to check what was kept");
        let _ = std::fs::remove_dir_all(&directory);
    }
}
