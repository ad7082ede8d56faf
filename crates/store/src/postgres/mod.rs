//! PostgreSQL: one database that many nodes share, and its clock is theirs.

mod address;
mod backlog;
mod clock;
mod cluster;
mod commands;
mod committer;
mod configuration;
mod connection;
mod events;
mod examination;
mod history;
mod hold;
mod housekeeping;
mod in_flight;
mod lanes;
mod migrations;
mod notifications;
mod replays;
mod retention;
mod routing;
mod row;
mod sessions;
mod slots;
mod statistics;
mod tls;

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use posthaste_core::id::{Sequence, Unique};
use posthaste_core::tenant::Retention;
use posthaste_core::time::Timestamp;
use tokio::sync::mpsc;

use crate::columns::millis;
use crate::commands::Queued;
use crate::feed::{CommittedDelivery, Feed, FeedSender};
use crate::routing::Routings;
use crate::{Error, Options};
pub use address::{ConnectError, PostgresAddress, PostgresConnection};
use clock::DatabaseClock;
use committer::Committer;
pub use connection::sentence;
use connection::{Connection, Connections, Problem, Use, VERB_MAX};
use events::Publishing;
use in_flight::InFlight;
use lanes::Recording;
use notifications::Notifications;
use slots::Slots;

/// Two commits of publishers may be in flight: while one is flushed, the next is written.
const PUBLISHING_TASKS: usize = 2;
/// Attempts of one delivery are recorded one after the other.
const RECORDING_TASKS: usize = 1;
/// Longer than a group of records may take by its own limits. Nobody but the engine waits for them.
const RECORDED_WITHIN: Duration = Duration::from_secs(30);
const OLDEST_SERVER: i32 = 140_000;

/// Everything that Posthaste knows, in a PostgreSQL database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Postgres(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    database: Arc<Database>,
    publishing: Committer<Publishing>,
    recording: Committer<Recording>,
}

/// What verbs and committers share.
#[derive(Debug)]
struct Database {
    connections: Connections,
    clock: DatabaseClock,
    ids: Mutex<Sequence>,
    feeder: FeedSender,
    routings: Routings,
    options: Options,
    in_flight: Arc<InFlight>,
    slots: Slots,
    /// What other nodes ask for.
    news: Notifications,
    /// Whoever was last to listen for commands.
    listener: Mutex<Option<Weak<mpsc::Sender<Queued>>>>,
    housekeeping: housekeeping::Progress,
}

impl Postgres {
    /// Connects to the database that this URL names, and makes its tables if they are not there. Refuses a server that is
    /// too old, that would lose what it has acknowledged, or that cannot be written to, and what a newer version has written.
    pub async fn connect(url: &str, options: Options) -> Result<Postgres, Error> {
        Postgres::connect_within(url, Duration::ZERO, options).await
    }

    /// The same; waits at most this long while the server refuses connections, does not answer or is starting up. Does not
    /// wait if the server refuses the password, the database or the certificate.
    pub async fn connect_within(url: &str, wait: Duration, options: Options) -> Result<Postgres, Error> {
        let address = PostgresAddress::parse(url)?.with_options(connection::SETTINGS);
        connection::wait_for_server(&address, wait).await?;
        let database = Arc::new(Database {
            connections: Connections::new(&address)?,
            clock: DatabaseClock::new(Arc::clone(&options.clock)),
            ids: Mutex::new(Sequence::default()),
            feeder: FeedSender::default(),
            routings: Routings::default(),
            options,
            in_flight: Arc::new(InFlight::default()),
            slots: Slots::default(),
            news: Notifications::new(address),
            listener: Mutex::default(),
            housekeeping: housekeeping::Progress::default(),
        });
        // Dropped unused, so that what migrations have set goes with it.
        let connection = database.connection(Use::Verb).await?;
        check_server(&connection).await?;
        migrations::run(&connection).await?;
        check_master_key(&connection, &database.options).await?;
        configuration::sealed_values(&connection, &database.options.keyring).await?.check()?;
        apply_default_retention(&connection, database.options.retention).await?;
        drop(connection);
        let waiting_bytes_max = database.options.commit_queue_bytes_max;
        let publishing = Arc::new(Publishing(Arc::clone(&database)));
        let recording = Arc::new(Recording(Arc::clone(&database)));
        let commits = &Arc::clone(&database.options.commits);
        Ok(Postgres(Arc::new(Inner {
            publishing: Committer::start(&publishing, PUBLISHING_TASKS, waiting_bytes_max, VERB_MAX, commits),
            recording: Committer::start(&recording, RECORDING_TASKS, waiting_bytes_max, RECORDED_WITHIN, commits),
            database,
        })))
    }

    /// How far the wall clock of this machine is off from the database's.
    pub fn clock_skew(&self) -> Duration {
        self.0.database.clock.skew()
    }

    async fn close_after_what_waits(&self) -> Result<(), Error> {
        self.0.publishing.close().await;
        self.0.recording.close().await;
        self.0.database.feeder.close();
        self.0.database.news.close();
        *self.0.database.listener.lock() = None;
        self.0.database.connections.close();
        Ok(())
    }
}

impl Database {
    fn clock_now(&self) -> Timestamp {
        self.clock.now()
    }

    fn next_unique(&self) -> Unique {
        self.ids.lock().next(self.clock_now(), rand::random())
    }

    /// What was just committed, to the scheduler of this process. Those of other nodes find it by sweeping.
    fn send_to_feed(&self, fed: Vec<CommittedDelivery>) {
        self.feeder.send_group(fed);
    }
}

async fn check_server(connection: &Connection) -> Result<(), Problem> {
    match unfit(&connection.query_one(SELECT_SETTINGS, &[]).await?)? {
        None => Ok(()),
        Some(refused) => Err(Error::Unusable(refused.to_owned()).into()),
    }
}

/// Why nothing can be kept on this server, if so.
fn unfit(row: &tokio_postgres::Row) -> Result<Option<&'static str>, Error> {
    Ok(if row::column::<i32>(row, "version")? < OLDEST_SERVER {
        Some("this PostgreSQL is older than version 14; upgrade it")
    } else if row::text(row, "fsync")? == "off" {
        Some("this PostgreSQL runs with fsync = off and may lose what it has acknowledged; switch it on")
    } else if row::text(row, "full_page_writes")? == "off" {
        Some("this PostgreSQL runs with full_page_writes = off and may be damaged by a power cut; switch it on")
    } else if row::text(row, "synchronous_commit")? == "off" {
        Some("the session runs with synchronous_commit = off although Posthaste asks for on, and may lose what it has acknowledged")
    } else if row::column(row, "is_standby")? {
        Some("this PostgreSQL is a standby that cannot be written to; name the primary")
    } else if row::text(row, "read_only")? == "on" {
        Some("this PostgreSQL takes no writes (default_transaction_read_only = on); name the primary, or switch that off")
    } else {
        None
    })
}

/// A node with another key than the database's could read no secret, and would write some that nobody else can.
/// Tenants that do not set their own retention follow the setting of the node that was started last.
async fn apply_default_retention(connection: &Connection, retention: Retention) -> Result<(), Problem> {
    let retention_ms = millis(retention.as_duration());
    connection.execute(PUT_DEFAULT_RETENTION, &[&retention_ms]).await?;
    connection.execute(APPLY_DEFAULT_RETENTION, &[&retention_ms]).await?;
    Ok(())
}

const PUT_DEFAULT_RETENTION: &str = "INSERT INTO counters (name, value) VALUES ('default_retention_ms', $1)
     ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE counters.value <> excluded.value";
/// The document is not parsed: one that cannot be read must not keep a node from starting.
const APPLY_DEFAULT_RETENTION: &str = r#"UPDATE tenants SET retention_ms = $1
     WHERE retention_ms <> $1 AND document NOT LIKE '%"retention_days":%'"#;

async fn check_master_key(connection: &Connection, options: &Options) -> Result<(), Problem> {
    let current = options.keyring.current_id().to_string();
    let stored = match connection.query_opt(SELECT_MASTER_KEY, &[]).await? {
        Some(row) => Some(row::text(&row, "value")?.to_owned()),
        None => None,
    };
    match stored {
        Some(stored) if !options.keyring.knows(&stored) => Err(Error::Unusable(format!(
            "the secrets in this database were sealed with the master key {stored}, and the one given is {current}; \
             set POSTHASTE_MASTER_KEY to the key that was used before"
        ))
        .into()),
        Some(stored) if stored == current => Ok(()),
        Some(_) | None => {
            connection.execute(PUT_MASTER_KEY, &[&current]).await?;
            Ok(())
        }
    }
}

const SELECT_SETTINGS: &str = "SELECT current_setting('server_version_num')::int AS version, current_setting('fsync') AS fsync,
                                      current_setting('full_page_writes') AS full_page_writes,
                                      current_setting('synchronous_commit') AS synchronous_commit, pg_is_in_recovery() AS is_standby,
                                      current_setting('transaction_read_only') AS read_only";
const SELECT_MASTER_KEY: &str = "SELECT value FROM words WHERE name = 'master_key'";
const PUT_MASTER_KEY: &str =
    "INSERT INTO words (name, value) VALUES ('master_key', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value";

macro_rules! verbs {
    ($($verb:ident($($name:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $verb(&self, $($name: $type),*) -> crate::StoreFuture<'_, $answer> {
            Box::pin(self.0.database.$verb($($name),*))
        })*
    };
}

mod verbs {
    use posthaste_core::catalogue;
    use posthaste_core::id::{DeliveryId, EndpointId, EventId, KeyId, ReplayId, TenantId, Unique};
    use posthaste_core::scheduler::Seq;
    use posthaste_core::time::Timestamp;

    use super::{Feed, Postgres, commands};
    use crate::{
        ApplyResult, AttemptRecord, Audit, AuditRow, Backlog, BacklogQuery, Body, Change, ChangeResult, Claimed, CleanupStep,
        ClockStatus, Command, CommandOutcome, Commands, DeliveryQuery, DeliveryRow, EndSessions, EndpointBundle, EndpointQuery,
        EndpointVersion, EventQuery, EventRow, GivenUp, HandedOver, Hold, Housekeeping, Key, KeyHash, LaneSnapshot, LaneState,
        NewEvent, NewReplay, NewSession, NodeId, Overdue, Page, Partition, PlaceQuery, Published, Record, RecordResult, Refusal,
        ReplayCount, ReplayFilter, ReplayRow, RowsAfter, SealedValues, SessionQuery, StatisticsQuery, StatisticsStep, Store,
        StoreFuture, StoredEndpoint, StoredSession, StoredTenant, SweepPage, WindowRequest, WindowRows,
    };

    impl Store for Postgres {
        fn now(&self) -> Timestamp {
            self.0.database.clock_now()
        }

        fn wall_clock(&self) -> Timestamp {
            self.0.database.clock.database_now()
        }

        fn clock_status(&self) -> ClockStatus {
            ClockStatus { skew: Some(self.clock_skew()), suspicion: None }
        }

        fn is_shared(&self) -> bool {
            true
        }

        fn unique(&self) -> Unique {
            self.0.database.next_unique()
        }

        fn feed(&self) -> Feed {
            self.0.database.feeder.subscribe()
        }

        fn commands(&self, node: NodeId) -> Commands {
            commands::listen(&self.0.database, node)
        }

        fn publish(&self, events: Vec<NewEvent>) -> StoreFuture<'_, Vec<Published>> {
            Box::pin(self.publish_in_a_group(events))
        }

        fn record(&self, records: Vec<Record>) -> StoreFuture<'_, Vec<RecordResult>> {
            Box::pin(self.record_in_a_group(records))
        }

        fn close(&self) -> StoreFuture<'_, ()> {
            Box::pin(self.close_after_what_waits())
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
            work(after: Option<EndpointId>, limit: usize) -> Vec<EndpointId>;
            sweep(after: Seq, limit: usize) -> SweepPage;
            load_endpoints(endpoints: Vec<EndpointId>) -> Vec<EndpointBundle>;
            windows(asked: Vec<WindowRequest>) -> Vec<WindowRows>;
            bodies(deliveries: Vec<Seq>) -> Vec<Body>;
            lane(endpoint: EndpointId) -> Option<LaneState>;
            command(partition: Partition, command: Command) -> CommandOutcome;
            apply(tenant: TenantId, endpoint: Option<EndpointId>) -> ApplyResult;
            publish_lanes(lanes: Vec<LaneSnapshot>) -> ();
            lane_snapshots(endpoints: Vec<EndpointId>) -> Vec<LaneSnapshot>;
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
            join(node: NodeId) -> ();
            renew(node: NodeId) -> Result<(), Refusal>;
            claim(node: NodeId, share: usize) -> Result<Claimed, Refusal>;
            hand_over(node: NodeId, given_up: GivenUp, in_flight: Vec<HandedOver>) -> ();
            handed_over_left(deliveries: Vec<Seq>) -> Vec<Seq>;
            hold() -> Option<Hold>;
            set_hold() -> ();
            release_hold(audit: Audit) -> bool;
            nodes() -> Vec<NodeId>;
        }
    }
}
