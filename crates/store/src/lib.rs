//! Persistence: all SQL, for SQLite and PostgreSQL.
//!
//! Each method is one transaction and says what is atomic. Callers do not know tables. What a method has returned survives
//! a crash.
//!
//! [`Store`] has two implementations: SQLite in a directory of its own, and PostgreSQL for many nodes. Both pass the same
//! suite (`tests/conformance`).

mod accepting;
mod backlog;
pub mod catalogue;
mod clock;
mod cluster;
mod columns;
mod command_document;
mod commands;
mod commits;
pub mod computing;
mod configuration;
mod delivering;
mod document;
mod endpoint_versions;
mod examination;
mod feed;
mod history;
mod hold;
mod housekeeping;
mod migrations;
mod options;
mod postgres;
mod publishing;
mod replays;
mod routing;
mod schema_cost;
mod sealed;
mod secrets;
mod sessions;
mod sqlite;
mod statistics;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use posthaste_core::catalogue::Entry;
use posthaste_core::id::{DeliveryId, EndpointId, EventId, KeyId, ReplayId, TenantId, Unique};
use posthaste_core::scheduler::Seq;
use posthaste_core::time::Timestamp;

pub use accepting::{DEFAULT_TENANT, Draft, InvalidEvent, RESERVED_TYPES, check_not_reserved, check_tenant, is_reserved_type};
pub use backlog::{Backlog, BacklogGroup, BacklogQuery, BacklogScope, LaneBacklog, PlaceQuery};
pub use clock::{Clock, ClockSource, ClockStatus, SystemClock};
pub use cluster::{Claimed, Epoch, GivenUp, HandedOver, InFlightElsewhere, LEASE, NodeId, PARTITIONS, Partition, partition_of};
pub use commands::{APPLY_MAX, ApplyResult, COMMAND_MAX, Command, CommandOutcome, CommandRequest, Commands};
pub use commits::Commits;
pub use configuration::{
    AUTO_DISABLED, Audit, AuditRow, Change, ChangeResult, EndpointQuery, Key, KeyHash, KeyScope, NewEndpoint, Refusal, SecretText,
    StoredEndpoint, StoredSecret, StoredTenant,
};
pub use delivering::{
    AttemptRecord, Body, BodyError, DeliveryChange, EndpointBundle, LaneSnapshot, LaneState, Record, RecordResult, SweepPage,
    WindowRequest, WindowRows,
};
pub use endpoint_versions::EndpointVersion;
pub use examination::{Examined, MasterKeyFit, Schema};
pub use feed::{CommittedDelivery, Feed};
pub use history::{Cursor, DeliveryQuery, DeliveryRow, EventQuery, EventRow, Page, RowsAfter, StatusFilter};
pub use hold::{HELD_COUNT_MAX, Hold};
pub use housekeeping::{CleanupStep, Housekeeping, Overdue, OverdueReason};
pub use migrations::SCHEMA_VERSION;
pub use options::Options;
pub use postgres::{ConnectError, Postgres, PostgresAddress, PostgresConnection, sentence as postgres_sentence};
pub use publishing::{DuplicateBy, NewEvent, Published};
pub use replays::{NewReplay, ReplayCount, ReplayFilter, ReplayRow, ReplayState, Skipped};
pub use sealed::{Keyring, MasterKey, MasterKeyError, SealedValues};
pub use sessions::{
    EndSessions, NewSession, PortalPermissions, SESSIONS_MAX, SessionAccess, SessionMaker, SessionQuery, StoredSession,
};
pub use sqlite::{CopyContents, Sqlite};
pub use statistics::{Counts, MINUTES_KEPT, StatisticsQuery, StatisticsStep};

/// What every method of the store returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Everything that Posthaste knows.
pub trait Store: fmt::Debug + Send + Sync {
    // Time and names, the same for everybody.

    /// The current time. Never goes backwards within a process.
    fn now(&self) -> Timestamp;
    /// What time it is for receivers, who compare signatures with it: the database's where that has a clock, else the wall clock's.
    /// It may jump.
    fn wall_clock(&self) -> Timestamp;
    /// Whether the wall clock can be trusted.
    fn clock_status(&self) -> ClockStatus;
    /// Whether other processes may write to this database. If not, no other node can take over.
    fn is_shared(&self) -> bool;
    /// The raw material of a new id.
    fn unique(&self) -> Unique;

    // Configuration.

    /// Makes one change, writes who made it into the audit log, and raises the configuration's number and the tenant's
    /// version, together. From the answer on, every publish sees it.
    fn configure(&self, change: Change, audit: Audit) -> StoreFuture<'_, Result<ChangeResult, Refusal>>;
    /// Rises with every change. Whoever keeps a copy compares it.
    fn configuration_number(&self) -> StoreFuture<'_, u64>;
    /// Deleted ones too, for their history. With a tenant, another tenant's is looked up like one that was never made.
    fn endpoint(&self, tenant: Option<TenantId>, id: EndpointId) -> StoreFuture<'_, Option<StoredEndpoint>>;
    /// Raised with every change of a tenant or of one of its endpoints; in the order asked, zero for one that is not there.
    fn tenant_versions(&self, tenants: Vec<TenantId>) -> StoreFuture<'_, Vec<u64>>;
    /// Newest first; without the deleted ones.
    fn endpoints(&self, query: EndpointQuery) -> StoreFuture<'_, Vec<StoredEndpoint>>;
    fn tenant(&self, id: TenantId) -> StoreFuture<'_, Option<StoredTenant>>;
    /// In the order of their ids.
    fn tenants(&self, after: Option<TenantId>, limit: usize) -> StoreFuture<'_, Vec<StoredTenant>>;
    /// The whole catalogue, in the order of names.
    fn event_types(&self) -> StoreFuture<'_, Vec<Entry>>;
    /// By what a caller has shown. Revoked and expired ones are not found.
    fn key(&self, hash: KeyHash) -> StoreFuture<'_, Option<Key>>;
    /// Newest first; revoked and expired ones too.
    fn keys(&self, before: Option<KeyId>, limit: usize) -> StoreFuture<'_, Vec<Key>>;
    /// When keys were last used, collected by the caller over some time. Keys that are gone are passed over.
    fn keys_used(&self, used: Vec<(KeyId, Timestamp)>) -> StoreFuture<'_, ()>;
    /// Keeps a session or a portal link, with its audit entry; the same one again changes nothing; refused where its tenant or its key is gone. The oldest of its kind
    /// makes room for it above [`SESSIONS_MAX`].
    fn create_session(&self, session: NewSession, audit: Audit) -> StoreFuture<'_, Result<(), Refusal>>;
    /// Exchanges the code of a portal link for a session, once, and writes the audit entry about it, together.
    fn start_session(&self, code: KeyHash, token: KeyHash, audit: Audit) -> StoreFuture<'_, Option<StoredSession>>;
    /// By what a caller has shown. Those that are over are not found.
    fn session(&self, token: KeyHash) -> StoreFuture<'_, Option<StoredSession>>;
    /// Of the portal, newest first, with links that have not been used; without those that are over.
    fn sessions(&self, query: SessionQuery) -> StoreFuture<'_, Vec<StoredSession>>;
    /// Ends sessions, with one audit entry if there were any. Answers how many there were.
    fn end_sessions(&self, which: EndSessions, audit: Audit) -> StoreFuture<'_, u64>;
    /// Newest first.
    fn audit(&self, tenant: Option<TenantId>, before: Option<u64>, limit: usize) -> StoreFuture<'_, Vec<AuditRow>>;

    // Publishing.

    /// Keeps each event **and** one delivery for each endpoint that `core::route` names, together, or answers why not;
    /// one that is refused never harms its neighbours. Calls that arrive during a commit share the next one.
    fn publish(&self, events: Vec<NewEvent>) -> StoreFuture<'_, Vec<Published>>;
    /// The deliveries of this process's own commits, as they are made, with their events.
    fn feed(&self) -> Feed;

    // Delivering.

    /// Endpoints that have something unfinished, in the order of their ids; found without reading the backlog.
    fn work(&self, after: Option<EndpointId>, limit: usize) -> StoreFuture<'_, Vec<EndpointId>>;
    /// Endpoints with something that waits among the first `limit` rows after `after`. Looks at no more rows than that, so that
    /// a scan of a large table is many short reads.
    fn sweep(&self, after: Seq, limit: usize) -> StoreFuture<'_, SweepPage>;
    /// Loads what an owner needs to know about these endpoints, in any order. Includes deleted ones; skips unknown ids.
    fn load_endpoints(&self, endpoints: Vec<EndpointId>) -> StoreFuture<'_, Vec<EndpointBundle>>;
    /// The next rows of these queues of lanes; one answer for each, in the order asked.
    fn windows(&self, asked: Vec<WindowRequest>) -> StoreFuture<'_, Vec<WindowRows>>;
    /// What these deliveries carry; in the order asked, without those that are gone.
    fn bodies(&self, deliveries: Vec<Seq>) -> StoreFuture<'_, Vec<Body>>;
    /// Keeps attempts, moves their deliveries on, and writes lane states, together for each one given. One that is not
    /// the next of a delivery that waits, or whose partition has another epoch, changes nothing and says so; so that
    /// repeating it is harmless. Calls that arrive during a commit share the next one.
    fn record(&self, records: Vec<Record>) -> StoreFuture<'_, Vec<RecordResult>>;
    /// The lane state that its owner wrote last.
    fn lane(&self, endpoint: EndpointId) -> StoreFuture<'_, Option<LaneState>>;
    /// Stamps waiting rows of an endpoint with the class that its present configuration gives them, `limit` at a time.
    /// Answers where to go on.
    fn restamp(&self, endpoint: EndpointId, after: Seq, limit: usize) -> StoreFuture<'_, Option<Seq>>;

    /// Asks the owner of a partition to do something, and waits at most [`COMMAND_MAX`] for its answer (a test as long as its request takes); then nothing was done
    /// (`Unavailable`), or it was taken and whether it was done is not known (`Unknown`).
    fn command(&self, partition: Partition, command: Command) -> StoreFuture<'_, CommandOutcome>;
    /// Waits until the owner of a tenant's lanes goes by what is configured now, for one endpoint or for all of the tenant's; at
    /// most [`APPLY_MAX`]. Where no one owns them, whoever does next reads it first.
    fn apply(&self, tenant: TenantId, endpoint: Option<EndpointId>) -> StoreFuture<'_, ApplyResult>;
    /// What this node is asked to do, as owner of its partitions. Whoever listens last is the one who is asked.
    fn commands(&self, node: NodeId) -> Commands;
    /// What an owner shows of its lanes, so that any node can explain a hold. Replaces what was shown of them, unless that is
    /// younger.
    fn publish_lanes(&self, lanes: Vec<LaneSnapshot>) -> StoreFuture<'_, ()>;
    /// What owners have shown of these, in no order; without those of which nothing was.
    fn lane_snapshots(&self, endpoints: Vec<EndpointId>) -> StoreFuture<'_, Vec<LaneSnapshot>>;

    // Statistics.

    /// Adds some attempts that were recorded and not counted yet to the counts per minute, each exactly once. Returns whether there
    /// are more.
    fn count(&self) -> StoreFuture<'_, bool>;
    /// Sums of them, by steps of time, the oldest first; without steps in which nothing was counted.
    fn statistics(&self, query: StatisticsQuery) -> StoreFuture<'_, Vec<StatisticsStep>>;
    /// What waits, counted over a bounded number of rows.
    fn backlog(&self, query: BacklogQuery) -> StoreFuture<'_, Backlog>;
    /// Counts the deliveries in front of one; `None` if that takes more than a bounded number of rows.
    fn count_ahead(&self, query: PlaceQuery) -> StoreFuture<'_, Option<u64>>;

    // History.

    /// With a tenant, another tenant's is looked up like one that was never made.
    fn delivery(&self, tenant: Option<TenantId>, id: DeliveryId) -> StoreFuture<'_, Option<DeliveryRow>>;
    /// Newest first. A page looks at a bounded number of rows, so it may be short and still not be the last.
    fn deliveries(&self, query: DeliveryQuery) -> StoreFuture<'_, Page<DeliveryRow>>;
    /// The rows created after one, in order. If other processes write too, a row with a smaller number may still appear for as
    /// long as a commit takes.
    fn rows_after(&self, query: RowsAfter) -> StoreFuture<'_, Vec<Seq>>;
    /// Deliveries by their rows, in no order; without those that are gone.
    fn deliveries_at(&self, rows: Vec<Seq>) -> StoreFuture<'_, Vec<DeliveryRow>>;
    /// Dead and not retried, the newest death first.
    fn dead_letters(&self, query: DeliveryQuery) -> StoreFuture<'_, Page<DeliveryRow>>;
    /// Every try of a delivery, first to last.
    fn attempts(&self, delivery: DeliveryId) -> StoreFuture<'_, Vec<AttemptRecord>>;
    /// What an endpoint was under these versions, in the order asked; an unknown endpoint has none. A version that is forgotten with its
    /// last attempt is answered as the one that replaced it.
    fn endpoint_versions(&self, endpoint: EndpointId, versions: Vec<u64>) -> StoreFuture<'_, Vec<EndpointVersion>>;
    fn event(&self, tenant: Option<TenantId>, id: EventId) -> StoreFuture<'_, Option<EventRow>>;
    /// The tenants that have an event with this id; two at most, which is enough to know that the id alone names none.
    fn tenants_of_event(&self, id: EventId) -> StoreFuture<'_, Vec<TenantId>>;
    /// Newest first, without payloads.
    fn events(&self, query: EventQuery) -> StoreFuture<'_, Page<EventRow>>;

    // Redelivery and replays.

    /// Starts a replay: its rows are made by [`Store::step_replay`].
    fn create_replay(&self, replay: NewReplay, audit: Audit) -> StoreFuture<'_, ReplayRow>;
    /// What a replay would do if it were requested now.
    fn count_replay(&self, filter: ReplayFilter) -> StoreFuture<'_, ReplayCount>;
    /// With a tenant, one of another tenant or of all tenants is looked up like one that was never made.
    fn replay(&self, tenant: Option<TenantId>, id: ReplayId) -> StoreFuture<'_, Option<ReplayRow>>;
    /// Newest first.
    fn replays(&self, tenant: Option<TenantId>, before: Option<ReplayId>, limit: usize) -> StoreFuture<'_, Vec<ReplayRow>>;
    /// Replays that are not finished, in the order in which they were asked for.
    fn running_replays(&self) -> StoreFuture<'_, Vec<ReplayRow>>;
    /// Makes at most `limit` of its rows and moves its cursor past them, together. Nobody makes a row twice, whatever
    /// dies in between. At most `unfinished_max` of an endpoint's replayed rows wait at once.
    fn step_replay(&self, id: ReplayId, limit: usize, unfinished_max: usize) -> StoreFuture<'_, Option<ReplayRow>>;
    fn cancel_replay(&self, id: ReplayId, audit: Audit) -> StoreFuture<'_, Option<ReplayRow>>;
    /// A new delivery of the same event for one that has ended. It leaves the dead letters and names its successor.
    /// Refused while it waits, for a payload that is gone, and where the endpoint takes nothing.
    fn redeliver(&self, delivery: DeliveryId, audit: Audit) -> StoreFuture<'_, Result<DeliveryRow, Refusal>>;

    // Housekeeping.

    /// Takes one small step of everything that has to be forgotten: what has ended and is older than its tenant's
    /// retention, keys that are remembered no longer, what deleted endpoints and tenants have left, minutes that are older
    /// than [`MINUTES_KEPT`].
    fn clean_up(&self, limits: Housekeeping) -> StoreFuture<'_, CleanupStep>;
    /// Deliveries that wait although they have expired, or have waited longer than retention: their owner ends them.
    fn overdue(&self, limit: usize) -> StoreFuture<'_, Vec<Overdue>>;
    /// Erases the payload of an event; its history stays. Answers whether there was one.
    fn erase(&self, tenant: Option<TenantId>, event: EventId, audit: Audit) -> StoreFuture<'_, bool>;

    // Many nodes.

    /// Announces a node. It owns nothing yet.
    fn join(&self, node: NodeId) -> StoreFuture<'_, ()>;
    /// Says that a node is alive, for another [`LEASE`]. Once expired it is refused for ever: join anew.
    fn renew(&self, node: NodeId) -> StoreFuture<'_, Result<(), Refusal>>;
    /// Takes partitions that nobody owns, or whose owner's lease has ended, up to `share` in all, and raises their epochs.
    /// Answers all that the node owns then, and what earlier owners may still record.
    fn claim(&self, node: NodeId, share: usize) -> StoreFuture<'_, Result<Claimed, Refusal>>;
    /// Gives partitions up. What is named in flight is left alone by the next owner until then, and may be recorded under the old epoch,
    /// unless its attempt has been recorded already, or it does not wait any more; on PostgreSQL as long as the node's lease lasts.
    fn hand_over(&self, node: NodeId, given_up: GivenUp, in_flight: Vec<HandedOver>) -> StoreFuture<'_, ()>;
    /// By which master keys the secrets and headers of endpoints are sealed. Reads all endpoints.
    fn sealed_values(&self) -> StoreFuture<'_, SealedValues>;
    /// Which of these deliveries an earlier owner may still record: those that were handed over, still wait and whose time has
    /// not passed. In no order.
    fn handed_over_left(&self, deliveries: Vec<Seq>) -> StoreFuture<'_, Vec<Seq>>;
    /// Nodes whose lease has not ended.
    fn nodes(&self) -> StoreFuture<'_, Vec<NodeId>>;

    // Holding everything.

    /// The hold on all deliveries, if there is one. Counts the backlog: not for every request.
    fn hold(&self) -> StoreFuture<'_, Option<Hold>>;
    /// Nodes that start from now on do not deliver until the hold is released.
    fn set_hold(&self) -> StoreFuture<'_, ()>;
    /// Ends the hold, with its audit entry, together. Answers whether there was one.
    fn release_hold(&self, audit: Audit) -> StoreFuture<'_, bool>;

    /// Flushes, closes, and leaves the database so that the next start is quick. Further verbs answer `Unavailable`.
    fn close(&self) -> StoreFuture<'_, ()>;
}

/// Sorted by what a caller can do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing was written. Trying again is safe.
    #[error("the database is busy or unreachable: {0}")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer to a commit was lost. Everything was written, or nothing.
    #[error("whether it was written is not known: the database was lost before it answered")]
    CommitInDoubt,
    /// More is waiting to be written than there is room for. Nothing was written; try again later.
    #[error("the database cannot keep up")]
    Overloaded { retry_after: Duration },
    /// A row broke a promise that this code makes, or the file is damaged. A person has to look.
    #[error("stored {what} is not readable")]
    Corrupt { what: &'static str },
    /// Refused at the start, with what to do.
    #[error("{0}")]
    Unusable(String),
    #[error("the database was written by a newer version of Posthaste; run that version, or a later one")]
    TooNew,
}

impl Error {
    fn unavailable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Unavailable(error.into())
    }
}
