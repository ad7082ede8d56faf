//! A store that fails when it is told to, and otherwise is the one behind it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use posthaste_core::catalogue::Entry;
use posthaste_core::id::{DeliveryId, EndpointId, EventId, KeyId, ReplayId, TenantId, Unique};
use posthaste_core::scheduler::Seq;
use posthaste_core::time::Timestamp;
use posthaste_store::{
    ApplyResult, AttemptRecord, Audit, AuditRow, Backlog, BacklogQuery, Body, Change, ChangeResult, Claimed, CleanupStep,
    ClockStatus, Command, CommandOutcome, Commands, DeliveryQuery, DeliveryRow, EndSessions, EndpointBundle, EndpointQuery,
    EndpointVersion, Error, EventQuery, EventRow, Feed, GivenUp, HandedOver, Hold, Housekeeping, Key, KeyHash, LaneSnapshot,
    LaneState, NewEvent, NewReplay, NewSession, NodeId, Overdue, Page, Partition, PlaceQuery, Published, Record, RecordResult,
    Refusal, ReplayCount, ReplayFilter, ReplayRow, RowsAfter, SealedValues, SessionQuery, StatisticsQuery, StatisticsStep, Store,
    StoreFuture, StoredEndpoint, StoredSession, StoredTenant, SweepPage, WindowRequest, WindowRows,
};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Unavailable,
    Panic,
}

#[derive(Debug)]
pub(crate) struct FaultyStore {
    behind: Arc<dyn Store>,
    /// By the name of the call: how often it fails from now on, and how.
    faults: Mutex<HashMap<&'static str, (usize, Fault)>>,
    calls: Mutex<HashMap<&'static str, usize>>,
    panicking_requests: AtomicUsize,
}

impl FaultyStore {
    pub(crate) fn new(behind: Arc<dyn Store>) -> FaultyStore {
        FaultyStore { behind, faults: Mutex::default(), calls: Mutex::default(), panicking_requests: AtomicUsize::new(0) }
    }

    pub(crate) fn fail(&self, call: &'static str, times: usize, fault: Fault) {
        self.faults.lock().unwrap().insert(call, (times, fault));
    }

    /// How often a call will still fail.
    pub(crate) fn left(&self, call: &str) -> usize {
        self.faults.lock().unwrap().get(call).map_or(0, |(left, _)| *left)
    }

    pub(crate) fn calls(&self, call: &str) -> usize {
        self.calls.lock().unwrap().get(call).copied().unwrap_or(0)
    }

    /// Whoever makes a request asks for the wall clock.
    pub(crate) fn panic_in_requests(&self, times: usize) {
        self.panicking_requests.store(times, Ordering::SeqCst);
    }

    fn may_fail(&self, call: &'static str) -> Result<(), Error> {
        *self.calls.lock().unwrap().entry(call).or_default() += 1;
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            let Some((left, fault)) = faults.get_mut(call).filter(|(left, _)| *left > 0) else { return Ok(()) };
            *left -= 1;
            *fault
        };
        match fault {
            Fault::Unavailable => Err(Error::Unavailable("it was told to fail".into())),
            Fault::Panic => panic!("{call} was told to panic"),
        }
    }
}

macro_rules! verbs {
    ($($verb:ident($($name:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $verb(&self, $($name: $type),*) -> StoreFuture<'_, $answer> {
            Box::pin(async move {
                self.may_fail(stringify!($verb))?;
                self.behind.$verb($($name),*).await
            })
        })*
    };
}

impl Store for FaultyStore {
    fn now(&self) -> Timestamp {
        self.behind.now()
    }

    fn wall_clock(&self) -> Timestamp {
        let is_told = self.panicking_requests.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(is_told.is_err(), "a request was told to panic");
        self.behind.wall_clock()
    }

    fn clock_status(&self) -> ClockStatus {
        self.behind.clock_status()
    }

    fn is_shared(&self) -> bool {
        self.behind.is_shared()
    }

    fn unique(&self) -> Unique {
        self.behind.unique()
    }

    fn feed(&self) -> Feed {
        self.behind.feed()
    }

    fn commands(&self, node: NodeId) -> Commands {
        self.behind.commands(node)
    }

    verbs! {
        configure(change: Change, audit: Audit) -> Result<ChangeResult, Refusal>;
        configuration_number() -> u64;
        endpoint(tenant: Option<TenantId>, id: EndpointId) -> Option<StoredEndpoint>;
        tenant_versions(tenants: Vec<TenantId>) -> Vec<u64>;
        endpoints(query: EndpointQuery) -> Vec<StoredEndpoint>;
        tenant(id: TenantId) -> Option<StoredTenant>;
        tenants(after: Option<TenantId>, limit: usize) -> Vec<StoredTenant>;
        event_types() -> Vec<Entry>;
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
        restamp(endpoint: EndpointId, after: Seq, limit: usize) -> Option<Seq>;
        command(partition: Partition, command: Command) -> CommandOutcome;
        apply(tenant: TenantId, endpoint: Option<EndpointId>) -> ApplyResult;
        publish_lanes(lanes: Vec<LaneSnapshot>) -> ();
        lane_snapshots(endpoints: Vec<EndpointId>) -> Vec<LaneSnapshot>;
        count() -> bool;
        handed_over_left(deliveries: Vec<Seq>) -> Vec<Seq>;
        statistics(query: StatisticsQuery) -> Vec<StatisticsStep>;
        backlog(query: BacklogQuery) -> Backlog;
        count_ahead(query: PlaceQuery) -> Option<u64>;
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
        nodes() -> Vec<NodeId>;
        hold() -> Option<Hold>;
        set_hold() -> ();
        release_hold(audit: Audit) -> bool;
        close() -> ();
    }
}
