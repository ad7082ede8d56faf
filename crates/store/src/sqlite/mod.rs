//! SQLite: one file in the data directory, one thread that writes, readers beside it, one process.

mod backlog;
mod backup;
mod clock;
mod cluster;
mod configuration;
mod events;
mod examination;
mod file;
mod history;
mod hold;
mod housekeeping;
mod lanes;
mod migrations;
mod replays;
mod retention;
mod routing;
mod row;
mod row_numbers;
mod sessions;
mod statistics;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use posthaste_core::id::{EndpointId, Sequence, Unique};
use posthaste_core::time::Timestamp;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::commands::CommandChannel;
use crate::feed::{Feed, FeedSender};
use crate::routing::Routings;
use crate::{Epoch, Error, LaneSnapshot, NodeId, Options};
pub use backup::CopyContents;
use row_numbers::RowNumbers;
use writer::{GroupContext, Writer, WriterContext};

/// Connections that read what people ask for: lists, single rows, statistics. Some of these queries are slow.
const PEOPLES_READERS: usize = 4;
/// Connections that read what delivering and publishing cannot go on without. They have their own, so that slow queries of people never
/// keep a lane from its next rows.
const WORK_READERS: usize = 3;
/// A query that takes longer would keep the log from being checkpointed.
const READ_MAX: Duration = Duration::from_secs(2);
/// How many steps of SQLite's machine go by between two looks at the clock.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;

/// Everything that Posthaste knows, in one directory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sqlite(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    writer: Writer,
    peoples_readers: Readers,
    work_readers: Readers,
    clock: Clock,
    /// Whether there is something about the clock in the database.
    is_suspicion_kept: AtomicBool,
    ids: Mutex<Sequence>,
    feeder: Arc<FeedSender>,
    routings: Routings,
    options: Options,
    epoch: Epoch,
    /// The one node there is.
    node: Mutex<Option<NodeId>>,
    commander: CommandChannel,
    lane_snapshots: Mutex<HashMap<EndpointId, LaneSnapshot>>,
    housekeeping: tokio::sync::Mutex<housekeeping::Progress>,
    overdue: housekeeping::OverdueProgress,
    /// Released when the last handle is gone.
    _lock: File,
}

impl Sqlite {
    /// Opens the database in this directory, making both if they are not there. Refuses what is damaged, what another
    /// process uses, and what a newer version has written.
    pub fn open(data_dir: &Path, options: Options) -> Result<Sqlite, Error> {
        let opened = file::open(data_dir, &options)?;
        // Ids grow from row to row, also if the clock was set back between two starts.
        let ids = history::last_id(&opened.connection)?.map(Sequence::after).unwrap_or_default();
        let feeder = Arc::new(FeedSender::default());
        let peoples_readers = Readers::new(&opened.path, PEOPLES_READERS)?;
        let work_readers = Readers::new(&opened.path, WORK_READERS)?;
        let numbers = RowNumbers::load(&opened.connection)?;
        let kept = clock::read(&opened.connection)?;
        let clock = Clock::new(Arc::clone(&options.clock), kept.suspicion.clone().filter(|_| !kept.is_accepted));
        let writer = Writer::start(
            opened.connection,
            numbers,
            WriterContext {
                path: opened.path,
                marker: opened.marker,
                marker_path: opened.marker_path,
                epoch: opened.epoch,
                feeder: Arc::clone(&feeder),
                waiting_bytes_max: options.commit_queue_bytes_max,
                commits: Arc::clone(&options.commits),
            },
        );
        Ok(Sqlite(Arc::new(Inner {
            writer,
            peoples_readers,
            work_readers,
            clock,
            is_suspicion_kept: AtomicBool::new(kept.suspicion.is_some() || kept.is_accepted),
            ids: Mutex::new(ids),
            feeder,
            routings: Routings::default(),
            options,
            epoch: opened.epoch,
            node: Mutex::new(None),
            commander: CommandChannel::default(),
            lane_snapshots: Mutex::default(),
            housekeeping: tokio::sync::Mutex::default(),
            overdue: housekeeping::OverdueProgress::default(),
            _lock: opened.lock,
        })))
    }

    fn clock_now(&self) -> Timestamp {
        self.0.clock.now()
    }

    fn next_unique(&self) -> Unique {
        self.0.ids.lock().next(self.clock_now(), rand::random())
    }

    /// Runs a query that somebody has asked for off the async threads, in a transaction of its own so that it sees one moment.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.read_by(|inner| &inner.peoples_readers, query).await
    }

    /// The same for what delivering and publishing need. It does not wait for people's queries.
    async fn read_for_work<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.read_by(|inner| &inner.work_readers, query).await
    }

    async fn read_by<T: Send + 'static>(
        &self,
        readers: fn(&Inner) -> &Readers,
        query: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = Arc::clone(&self.0);
        let permit = readers(&inner).permits.clone().acquire_owned().await.map_err(Error::unavailable)?;
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            readers(&inner).read(query)
        })
        .await
        .map_err(Error::unavailable)?
    }

    /// As [`Writer::write`].
    async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        verb: impl FnMut(&GroupContext<'_>, &mut writer::State) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.0.writer.write(bytes, verb).await
    }
}

/// What a small write is taken to weigh while it waits.
const SMALL: usize = 512;

#[derive(Debug)]
struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    fn new(path: &Path, connections: usize) -> Result<Readers, Error> {
        let idle = (0..connections).map(|_| file::connect_to_read(path)).collect::<Result<_, _>>()?;
        Ok(Readers { path: path.to_owned(), idle: Mutex::new(idle), permits: Arc::new(Semaphore::new(connections)) })
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => file::connect_to_read(&self.path)?,
        };
        let deadline = Instant::now() + READ_MAX;
        connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(move || Instant::now() > deadline))?;
        connection.execute_batch("BEGIN")?;
        let result = query(&connection);
        let ended = connection.execute_batch("ROLLBACK");
        // One that cannot end its transaction would keep the log from being checkpointed.
        if ended.is_ok() {
            self.idle.lock().push(connection);
        }
        result
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => {
                Error::Corrupt { what: "database file" }
            }
            Some(rusqlite::ErrorCode::OperationInterrupted) => Error::unavailable("the query took too long"),
            _ => Error::Unavailable(error.into()),
        }
    }
}

macro_rules! verbs {
    ($($verb:ident($($name:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $verb(&self, $($name: $type),*) -> crate::StoreFuture<'_, $answer> {
            Box::pin(Sqlite::$verb(self, $($name),*))
        })*
    };
}

mod verbs {
    use std::future::ready;

    use posthaste_core::catalogue;
    use posthaste_core::id::{DeliveryId, EndpointId, EventId, KeyId, ReplayId, TenantId, Unique};
    use posthaste_core::scheduler::Seq;
    use posthaste_core::time::Timestamp;

    use super::{Feed, Sqlite};
    use crate::{
        ApplyResult, AttemptRecord, Audit, AuditRow, Backlog, BacklogQuery, Body, Change, ChangeResult, Claimed, CleanupStep,
        ClockStatus, Command, CommandOutcome, Commands, DeliveryQuery, DeliveryRow, EndSessions, EndpointBundle, EndpointQuery,
        EndpointVersion, EventQuery, EventRow, GivenUp, HandedOver, Hold, Housekeeping, Key, KeyHash, LaneSnapshot, LaneState,
        NewEvent, NewReplay, NewSession, NodeId, Overdue, Page, Partition, PlaceQuery, Published, Record, RecordResult, Refusal,
        ReplayCount, ReplayFilter, ReplayRow, RowsAfter, SealedValues, SessionQuery, StatisticsQuery, StatisticsStep, Store,
        StoreFuture, StoredEndpoint, StoredSession, StoredTenant, SweepPage, WindowRequest, WindowRows,
    };

    impl Store for Sqlite {
        fn now(&self) -> Timestamp {
            self.clock_now()
        }

        fn wall_clock(&self) -> Timestamp {
            self.0.clock.wall()
        }

        fn clock_status(&self) -> ClockStatus {
            self.0.clock.status()
        }

        fn is_shared(&self) -> bool {
            false
        }

        fn unique(&self) -> Unique {
            self.next_unique()
        }

        // Nobody else is asked who owns what.
        fn join(&self, node: NodeId) -> StoreFuture<'_, ()> {
            self.set_node(node);
            Box::pin(ready(Ok(())))
        }

        /// There is nobody to tell that it lives. It is asked every second, which is when the clock is looked at.
        fn renew(&self, node: NodeId) -> StoreFuture<'_, Result<(), Refusal>> {
            Box::pin(async move {
                self.keep_suspicion().await;
                Ok(self.knows(node))
            })
        }

        fn nodes(&self) -> StoreFuture<'_, Vec<NodeId>> {
            Box::pin(ready(Ok(self.node())))
        }

        fn feed(&self) -> Feed {
            self.0.feeder.subscribe()
        }

        fn commands(&self, _: NodeId) -> Commands {
            self.0.commander.listen()
        }

        fn publish_lanes(&self, lanes: Vec<LaneSnapshot>) -> StoreFuture<'_, ()> {
            self.keep_shown(lanes);
            Box::pin(ready(Ok(())))
        }

        fn lane_snapshots(&self, endpoints: Vec<EndpointId>) -> StoreFuture<'_, Vec<LaneSnapshot>> {
            Box::pin(ready(Ok(self.shown(&endpoints))))
        }

        verbs! {
            configure(change: Change, audit: Audit) -> Result<ChangeResult, Refusal>;
            configuration_number() -> u64;
            endpoint(tenant: Option<TenantId>, id: EndpointId) -> Option<StoredEndpoint>;
            tenant_versions(tenants: Vec<TenantId>) -> Vec<u64>;
            endpoints(query: EndpointQuery) -> Vec<StoredEndpoint>;
            tenant(id: TenantId) -> Option<StoredTenant>;
            tenants(after: Option<TenantId>, limit: usize) -> Vec<StoredTenant>;
            event_types() -> Vec<catalogue::Entry>;
            key(hash: KeyHash) -> Option<Key>;
            keys(before: Option<KeyId>, limit: usize) -> Vec<Key>;
            keys_used(used: Vec<(KeyId, Timestamp)>) -> ();
            create_session(session: NewSession, audit: Audit) -> Result<(), Refusal>;
            start_session(code: KeyHash, token: KeyHash, audit: Audit) -> Option<StoredSession>;
            session(token: KeyHash) -> Option<StoredSession>;
            sessions(query: SessionQuery) -> Vec<StoredSession>;
            end_sessions(which: EndSessions, audit: Audit) -> u64;
            audit(tenant: Option<TenantId>, before: Option<u64>, limit: usize) -> Vec<AuditRow>;
            publish(events: Vec<NewEvent>) -> Vec<Published>;
            work(after: Option<EndpointId>, limit: usize) -> Vec<EndpointId>;
            sweep(after: Seq, limit: usize) -> SweepPage;
            load_endpoints(endpoints: Vec<EndpointId>) -> Vec<EndpointBundle>;
            windows(asked: Vec<WindowRequest>) -> Vec<WindowRows>;
            bodies(deliveries: Vec<Seq>) -> Vec<Body>;
            record(records: Vec<Record>) -> Vec<RecordResult>;
            lane(endpoint: EndpointId) -> Option<LaneState>;
            command(partition: Partition, command: Command) -> CommandOutcome;
            apply(tenant: TenantId, endpoint: Option<EndpointId>) -> ApplyResult;
            count() -> bool;
            statistics(query: StatisticsQuery) -> Vec<StatisticsStep>;
            backlog(query: BacklogQuery) -> Backlog;
            count_ahead(query: PlaceQuery) -> Option<u64>;
            restamp(endpoint: EndpointId, after: Seq, limit: usize) -> Option<Seq>;
            delivery(tenant: Option<TenantId>, id: DeliveryId) -> Option<DeliveryRow>;
            deliveries(query: DeliveryQuery) -> Page<DeliveryRow>;
            rows_after(query: RowsAfter) -> Vec<Seq>;
            deliveries_at(rows: Vec<Seq>) -> Vec<DeliveryRow>;
            dead_letters(query: DeliveryQuery) -> Page<DeliveryRow>;
            attempts(delivery: DeliveryId) -> Vec<AttemptRecord>;
            endpoint_versions(endpoint: EndpointId, versions: Vec<u64>) -> Vec<EndpointVersion>;
            event(tenant: Option<TenantId>, id: EventId) -> Option<EventRow>;
            tenants_of_event(id: EventId) -> Vec<TenantId>;
            sealed_values() -> SealedValues;
            events(query: EventQuery) -> Page<EventRow>;
            create_replay(replay: NewReplay, audit: Audit) -> ReplayRow;
            count_replay(filter: ReplayFilter) -> ReplayCount;
            replay(tenant: Option<TenantId>, id: ReplayId) -> Option<ReplayRow>;
            replays(tenant: Option<TenantId>, before: Option<ReplayId>, limit: usize) -> Vec<ReplayRow>;
            running_replays() -> Vec<ReplayRow>;
            step_replay(id: ReplayId, limit: usize, unfinished_max: usize) -> Option<ReplayRow>;
            cancel_replay(id: ReplayId, audit: Audit) -> Option<ReplayRow>;
            redeliver(delivery: DeliveryId, audit: Audit) -> Result<DeliveryRow, Refusal>;
            clean_up(limits: Housekeeping) -> CleanupStep;
            overdue(limit: usize) -> Vec<Overdue>;
            erase(tenant: Option<TenantId>, event: EventId, audit: Audit) -> bool;
            claim(node: NodeId, share: usize) -> Result<Claimed, Refusal>;
            hand_over(node: NodeId, given_up: GivenUp, in_flight: Vec<HandedOver>) -> ();
            handed_over_left(deliveries: Vec<Seq>) -> Vec<Seq>;
            hold() -> Option<Hold>;
            set_hold() -> ();
            release_hold(audit: Audit) -> bool;
            close() -> ();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use posthaste_core::scheduler::{Class, WindowQuery};
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;
    use crate::{Keyring, MasterKey, Store, WindowRequest};

    /// Far longer than any of them takes, and far shorter than for ever.
    const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn slow_queries_of_people_do_not_keep_lanes_from_their_rows() {
        let directory = std::env::temp_dir().join(format!("posthaste-readers-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let key = MasterKey::from_base64("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").expect("a key");
        let store = Sqlite::open(&directory, Options::new(Keyring::new(key, vec![]))).expect("a store");
        // Twice as many as there are connections: half of them hold one, the rest waits.
        let (mut slow, mut release) = (JoinSet::new(), Vec::new());
        let (began, has_begun) = mpsc::channel();
        for _ in 0..2 * PEOPLES_READERS {
            let (end, ended) = mpsc::channel::<()>();
            release.push(end);
            let (store, began) = (store.clone(), began.clone());
            slow.spawn(async move {
                let query = move |_: &Connection| {
                    let _ = began.send(());
                    // Until the other side is dropped.
                    let _ = ended.recv();
                    Ok(())
                };
                store.read(query).await
            });
        }
        for _ in 0..PEOPLES_READERS {
            has_begun.recv_timeout(ANSWERED_WITHIN).expect("a slow query has begun");
        }
        let endpoint = EndpointId::from_unique(store.next_unique());
        let asked = vec![WindowRequest { endpoint, want: WindowQuery::Fresh(Class::Rest), limit: 10 }];
        let work = async {
            Store::windows(&store, asked).await?;
            Store::bodies(&store, vec![1]).await?;
            Store::load_endpoints(&store, vec![endpoint]).await?;
            Store::work(&store, None, 10).await?;
            Store::sweep(&store, 0, 10).await?;
            Store::tenant_versions(&store, vec![]).await?;
            Store::configuration_number(&store).await?;
            Store::running_replays(&store).await?;
            Store::overdue(&store, 10).await?;
            Ok::<_, Error>(())
        };
        timeout(ANSWERED_WITHIN, work).await.expect("an answer while people's queries are under way").expect("a good one");
        drop(release);
        while let Some(ended) = slow.join_next().await {
            ended.expect("no panic").expect("a slow query ends");
        }
        let _ = std::fs::remove_dir_all(&directory);
    }
}
