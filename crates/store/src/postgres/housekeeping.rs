//! Forgetting, in small steps that publishing does not notice.
//!
//! Events and attempts go by dropping the table of a day. What deliveries that wait, or that are open dead letters, still need
//! of it is copied aside before, some rows at a time, and how far that has come is remembered here: whoever is started anew
//! begins anew, and finds most of it copied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use posthaste_core::id::{DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connection::{Connection, Problem};
use super::retention;
use super::slots::{Slot, Table, day_of, end_of, kept_ms, next_day, slot};
use super::{Database, commands, configuration, history, row};
use crate::columns::{limit, millis, unsigned};
use crate::endpoint_versions::STRAGGLERS_MAX;
use crate::housekeeping::Rotation;
use crate::{Audit, CleanupStep, Error, Housekeeping, MINUTES_KEPT, Overdue, OverdueReason, secrets};

/// Whoever holds it keeps house, and other nodes do not: `house` in ASCII.
const LOCK: i64 = 0x68_6f75_7365;
/// How many rows of a day are looked at in one go before it is dropped.
const COPIED_ROWS: i64 = 5_000;
/// How long one step goes on copying aside.
const COPYING_MAX: Duration = Duration::from_secs(1);
/// Commits come by the hundred each second, so that as many have to go.
const COMMITS_MAX: i64 = 5_000;
/// A count is exact up to here, and the server's estimate beyond.
const COUNTED_MAX: i64 = 100_000;
/// Rows that a look at what there is little of goes over.
const LOOK_ROWS: usize = 500;
/// Deleted endpoints whose rows are looked for in one go: the newest, and as many others in turn.
const DELETED_ENDPOINTS_PER_LOOK: i64 = 250;

/// A place in an index by time and id.
type IndexPosition = (i64, Vec<u8>);
const FRONT: IndexPosition = (i64::MIN, Vec::new());

/// How far it has come. What has to survive a restart is in the database.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Held by whoever takes a step.
    looks: tokio::sync::Mutex<Looks>,
    copying: Mutex<BTreeMap<(Table, Slot), Copying>>,
    overdue: Mutex<OverduePositions>,
}

/// Where the next looks start; at the front after the last row.
#[derive(Debug)]
struct Looks {
    deliveries: Rotation,
    events: Rotation,
    kept_events: i64,
    expired_ids: (i64, String, String),
    replays: IndexPosition,
    endpoints: IndexPosition,
    tenants: (i64, String),
    versions: (Vec<u8>, i64),
    lanes: Vec<u8>,
    lane_snapshots: Vec<u8>,
    sealed: Vec<u8>,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks {
            deliveries: Rotation::default(),
            events: Rotation::default(),
            kept_events: 0,
            expired_ids: (i64::MIN, String::new(), String::new()),
            replays: FRONT,
            endpoints: FRONT,
            tenants: (i64::MIN, String::new()),
            versions: (Vec::new(), 0),
            lanes: Vec::new(),
            lane_snapshots: Vec::new(),
            sealed: Vec::new(),
        }
    }
}

#[derive(Clone, Debug)]
struct OverduePositions {
    retained: i64,
    endpoints: IndexPosition,
}

impl Default for OverduePositions {
    fn default() -> OverduePositions {
        OverduePositions { retained: 0, endpoints: FRONT }
    }
}

/// How far a day has been copied aside.
#[derive(Clone, Copy, Default, Debug)]
struct Copying {
    /// The last delivery that there was when it began. Later ones are looked at once more.
    since: i64,
    seq: i64,
    number: i32,
    is_done: bool,
}

impl Database {
    pub(super) async fn clean_up(&self, limits: Housekeeping) -> Result<CleanupStep, Error> {
        // All that follows destroys, by the clock. Whatever has to be true before that is asked here.
        let began = Instant::now();
        let looks = &mut *self.housekeeping.looks.lock().await;
        let mut swept = CleanupStep::default();
        // Each kind in a transaction of its own, so that none of them lasts.
        let is_ours = self.sweep_deliveries(&limits, &mut looks.deliveries, &mut swept).await?;
        if !is_ours {
            // Another node is at it.
            return Ok(CleanupStep::default());
        }
        match self.sweep_on(&limits, looks, &mut swept).await {
            // What is gone is gone, and the next step goes on from there.
            Err(error) if !swept.is_nothing() => tracing::warn!(%error, "a step of housekeeping has ended early"),
            ended => ended?,
        }
        swept.behind = swept.behind.max(looks.deliveries.behind()).max(looks.events.behind());
        swept.has_more |= looks.deliveries.is_anything_left() || looks.events.is_anything_left();
        swept.busy = began.elapsed();
        Ok(swept)
    }

    async fn sweep_on(&self, limits: &Housekeeping, looks: &mut Looks, swept: &mut CleanupStep) -> Result<(), Error> {
        if !looks.deliveries.are_others_due() {
            return Ok(());
        }
        self.sweep_retained(limits, swept).await?;
        self.sweep_events(limits, &mut looks.events, swept).await?;
        let expired_ids = &looks.expired_ids.clone();
        let keys = self.keep_house(|connection| async move { sweep_keys(self, &connection, limits, expired_ids).await }).await?;
        if let Some(keys) = keys {
            looks.expired_ids = keys.go_on;
            swept.idempotency_keys += keys.deleted;
            swept.has_more |= keys.has_more;
            swept.behind = swept.behind.max(keys.behind);
        }
        let minutes = self.keep_house(|connection| async move { sweep_minutes(self, &connection, limits).await }).await?;
        let (minutes, is_cut) = minutes.unwrap_or_default();
        swept.minutes += minutes;
        swept.has_more |= is_cut;
        if looks.deliveries.is_rest_due() {
            self.sweep_the_rest(limits, looks, swept).await?;
        }
        Ok(())
    }

    /// Walks on through the deliveries of the tenants whose turn it is. Answers whether it is this node that keeps house.
    async fn sweep_deliveries(
        &self,
        limits: &Housekeeping,
        rotation: &mut Rotation,
        swept: &mut CleanupStep,
    ) -> Result<bool, Error> {
        let now = self.clock_now();
        for _ in 0..rotation.looks_of_next_step() {
            let after = &rotation.look_after();
            let looked =
                self.read_for_work(|connection| async move { retention::look_for_due(&connection, after, now).await }).await?;
            if !rotation.looked(looked.due, looked.last) {
                break;
            }
        }
        let (tenants, quantum) = rotation.take_turns(limits.rows_max);
        let turns = &tenants;
        let walked = self
            .keep_house(
                |connection| async move { retention::walk(&connection, turns, quantum, limits.dead_letters_kept, now).await },
            )
            .await;
        match walked {
            Ok(Some(walked)) => {
                swept.deliveries += walked.deleted.deliveries;
                swept.events += walked.deleted.events;
                walked.more.into_iter().for_each(|tenant| rotation.requeue(tenant));
                Ok(true)
            }
            Ok(None) => {
                rotation.was_not_reached(tenants.into_iter());
                Ok(false)
            }
            Err(error) => {
                rotation.was_not_reached(tenants.into_iter());
                Err(error)
            }
        }
    }

    /// What was passed over, once it may have ended long enough ago.
    async fn sweep_retained(&self, limits: &Housekeeping, swept: &mut CleanupStep) -> Result<(), Error> {
        let now = self.clock_now();
        let looked = self.keep_house(|connection| async move { retention::look_again(&connection, limits, now).await }).await?;
        if let Some(looked) = looked {
            swept.deliveries += looked.deleted.deliveries;
            swept.events += looked.deleted.events;
            swept.has_more |= looked.is_cut;
            swept.behind = swept.behind.max(looked.behind);
        }
        Ok(())
    }

    /// Events that nobody was sent, of tenants that are deleted or whose retention is shorter than their class: they do not
    /// wait for their day to be dropped, and no delivery takes them along.
    async fn sweep_events(&self, limits: &Housekeeping, rotation: &mut Rotation, swept: &mut CleanupStep) -> Result<(), Error> {
        let now = self.clock_now();
        for _ in 0..rotation.looks_of_next_step() {
            let after = &rotation.look_after();
            let looked = self
                .read_for_work(|connection| async move { retention::look_for_due_events(&connection, after, now).await })
                .await?;
            if !rotation.looked(looked.due, looked.last) {
                break;
            }
        }
        let (tenants, quantum) = rotation.take_turns(limits.rows_max);
        if tenants.is_empty() {
            return Ok(());
        }
        let turns = &tenants;
        let walked =
            self.keep_house(|connection| async move { retention::walk_events(&connection, turns, quantum, now).await }).await;
        match walked {
            Ok(walked) => {
                let walked = walked.unwrap_or_default();
                swept.events += walked.deleted.events;
                walked.more.into_iter().for_each(|tenant| rotation.requeue(tenant));
                Ok(())
            }
            Err(error) => {
                rotation.was_not_reached(tenants.into_iter());
                Err(error)
            }
        }
    }

    /// What there is little of, and whole days.
    async fn sweep_the_rest(&self, limits: &Housekeeping, looks: &mut Looks, swept: &mut CleanupStep) -> Result<(), Error> {
        let from = &*looks;
        let rest = self.keep_house(|connection| async move { sweep_the_rest(self, &connection, limits, from).await }).await?;
        if let Some(rest) = rest {
            looks.kept_events = rest.kept_events;
            looks.replays = rest.replays;
            looks.endpoints = rest.endpoints;
            looks.tenants = rest.tenants;
            looks.versions = rest.versions;
            looks.lanes = rest.lanes;
            looks.lane_snapshots = rest.lane_snapshots;
            looks.sealed = rest.sealed;
            swept.audit += rest.swept.audit;
            swept.keys += rest.swept.keys;
            swept.sessions += rest.swept.sessions;
            swept.replays += rest.swept.replays;
            swept.endpoints += rest.swept.endpoints;
            swept.tenants += rest.swept.tenants;
            swept.endpoint_versions += rest.swept.endpoint_versions;
            swept.lanes += rest.swept.lanes;
            swept.commands += rest.swept.commands;
            swept.resealed += rest.swept.resealed;
            swept.events += rest.swept.events;
            swept.has_more |= rest.swept.has_more;
        }
        swept.events += self.drop_a_day(Table::Events).await?;
        self.drop_a_day(Table::Attempts).await?;
        self.make_tomorrow().await
    }

    /// What is found, even if one of the looks fails; an error only if nothing was.
    pub(super) async fn overdue(&self, rows_max: usize) -> Result<Vec<Overdue>, Error> {
        let (now, places) = (self.clock_now(), &self.housekeeping.overdue.lock().clone());
        let mut found = Vec::new();
        let mut failed = None;
        let mut take = |part: Result<Vec<Overdue>, Error>| match part {
            Ok(part) => found.extend(part),
            Err(error) => {
                tracing::warn!(%error, "some of what is overdue was not found; it is looked for again");
                failed = Some(error);
            }
        };
        take(self.read_for_work(|connection| async move { expired(&connection, now, rows_max).await }).await);
        let deleted =
            self.read_for_work(|connection| async move { of_deleted(&connection, &places.endpoints, rows_max).await }).await;
        let endpoints = deleted.as_ref().ok().map(|(place, _)| place.clone());
        take(deleted.map(|(_, found)| found));
        let stale = self.read_for_work(|connection| async move { stale(&connection, places.retained, now, rows_max).await }).await;
        let retained = stale.as_ref().ok().map(|(place, _)| *place);
        take(stale.map(|(_, found)| found));
        {
            let mut places = self.housekeeping.overdue.lock();
            places.endpoints = endpoints.unwrap_or_else(|| places.endpoints.clone());
            places.retained = retained.unwrap_or(places.retained);
        }
        found.truncate(rows_max);
        match failed {
            Some(error) if found.is_empty() => Err(error),
            Some(_) | None => Ok(found),
        }
    }

    pub(super) async fn erase(&self, tenant: Option<TenantId>, event: EventId, audit: Audit) -> Result<bool, Error> {
        let (tenant, event, audit) = (tenant.as_ref().map(TenantId::as_str), &event, &audit);
        self.transact(|connection| async move {
            let now = self.clock_now();
            let (slots, seqs): (Vec<Slot>, Vec<i64>) = history::places_of_event(&connection, tenant, event)
                .await?
                .into_iter()
                .map(|place| (place.slot, place.seq))
                .unzip();
            let of_days = connection.execute(ERASE, &[&slots, &seqs, &event.as_str(), &now.as_millis()]).await?;
            let kept = connection.execute(ERASE_KEPT, &[&seqs, &event.as_str(), &now.as_millis()]).await?;
            let has_erased = of_days + kept > 0;
            if has_erased {
                configuration::write_audit(&connection, audit, now).await?;
            }
            Ok(has_erased)
        })
        .await
    }

    /// Runs one step, unless another node is at it.
    async fn keep_house<T, F: Future<Output = Result<T, Problem>>>(
        &self,
        work: impl Fn(Arc<Connection>) -> F,
    ) -> Result<Option<T>, Error> {
        let work = &work;
        self.transact(|connection| async move {
            let has_lock: bool = row::column(&connection.query_one(TRY_LOCK, &[&LOCK]).await?, "has_lock")?;
            if has_lock { Ok(Some(work(connection).await?)) } else { Ok(None) }
        })
        .await
    }

    /// So that nobody has to wait for it at midnight.
    async fn make_tomorrow(&self) -> Result<(), Error> {
        let (today, tomorrow) = (self.clock_now(), next_day(self.clock_now()));
        for table in [Table::Events, Table::Attempts] {
            let used = self.days_of(table).await?;
            let is_used = |class: &i32| used.contains(&slot(day_of(today), *class));
            let wanted: BTreeSet<Slot> = (0..4).filter(is_used).map(|class| slot(day_of(tomorrow), class)).collect();
            self.make_slots(table, &wanted).await?;
        }
        Ok(())
    }

    async fn days_of(&self, table: Table) -> Result<BTreeSet<Slot>, Error> {
        self.read_for_work(|connection| async move {
            let rows = connection.query(SELECT_DAYS, &[&table.name()]).await?;
            let names = rows.iter().map(|row| row::text(row, "name")).collect::<Result<Vec<_>, _>>()?;
            Ok(names.into_iter().filter_map(|name| table.slot_of(name)).collect())
        })
        .await
    }

    /// Drops the first day that is old enough, once what is needed of it has been copied aside. Answers how many rows went.
    async fn drop_a_day(&self, table: Table) -> Result<u64, Error> {
        let now = self.clock_now();
        let days = self.days_of(table).await?;
        let Some(slot) = days.into_iter().find(|slot| end_of(*slot) <= now) else { return Ok(0) };
        let deadline = Instant::now() + COPYING_MAX;
        loop {
            let known = self.housekeeping.copying.lock().get(&(table, slot)).copied();
            let next = &match known {
                Some(copying) if copying.is_done => break,
                Some(copying) => copying,
                None => {
                    let row = self
                        .read_for_work(|connection| async move { connection.query_one(SELECT_LAST_DELIVERY, &[]).await })
                        .await?;
                    Copying { since: row::column(&row, "seq")?, ..Copying::default() }
                }
            };
            let copied = self.keep_house(|connection| async move { copy_aside(&connection, table, slot, *next).await }).await?;
            let Some(copied) = copied else { return Ok(0) };
            self.housekeeping.copying.lock().insert((table, slot), copied);
            if !copied.is_done && Instant::now() > deadline {
                return Ok(0);
            }
        }
        let copying = self.housekeeping.copying.lock().get(&(table, slot)).copied().unwrap_or_default();
        // Somebody may be reading it. Then it is left for the next time, instead of making everybody wait behind us.
        let is_in_use = &AtomicBool::new(false);
        let dropped = self
            .keep_house(|connection| async move {
                let dropped = drop_day(&connection, table, slot, copying).await;
                dropped.map_err(|problem| {
                    is_in_use.store(problem.is_of_a_lock(), Ordering::Relaxed);
                    Problem::Store(problem.into())
                })
            })
            .await;
        match dropped {
            Ok(dropped) => {
                self.housekeeping.copying.lock().remove(&(table, slot));
                self.slots.forget();
                Ok(dropped.unwrap_or(0))
            }
            Err(_) if is_in_use.load(Ordering::Relaxed) => {
                tracing::info!(table = table.of(slot), "a day that is old enough was not dropped yet, because it is in use");
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }
}

const TRY_LOCK: &str = "SELECT pg_try_advisory_xact_lock($1) AS has_lock";
const SELECT_DAYS: &str = "SELECT c.relname::text AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                           WHERE i.inhparent = to_regclass($1::text)";
const SELECT_LAST_DELIVERY: &str = "SELECT coalesce(max(seq), 0) AS seq FROM deliveries";
const ERASE: &str = "UPDATE events SET data = NULL, erased_at_ms = $4
                     WHERE slot = ANY($1) AND seq = ANY($2) AND id = $3 AND data IS NOT NULL";
const ERASE_KEPT: &str = "UPDATE events_kept SET data = NULL, erased_at_ms = $3
                          WHERE seq = ANY($1) AND id = $2 AND data IS NOT NULL";

/// Copies some of what is needed, and answers how far it has come.
async fn copy_aside(connection: &Connection, table: Table, slot: Slot, copying: Copying) -> Result<Copying, Problem> {
    let row = match table {
        Table::Events => connection.query_one(COPY_EVENTS, &[&slot, &copying.seq, &COPIED_ROWS, &kept_ms(slot)]).await?,
        Table::Attempts => {
            let parameters: [&(dyn ToSql + Sync); 5] = [&slot, &copying.seq, &copying.number, &COPIED_ROWS, &kept_ms(slot)];
            connection.query_one(COPY_ATTEMPTS, &parameters).await?
        }
    };
    let is_done = row::column::<i64>(&row, "looked_at")? < COPIED_ROWS;
    let seq = row::column::<Option<i64>>(&row, "seq")?.unwrap_or(copying.seq);
    let number = row::column::<Option<i32>>(&row, "number")?.unwrap_or(copying.number);
    Ok(Copying { since: copying.since, seq, number, is_done })
}

/// Drops it, with nobody else near. What was asked for again since it was copied is copied too: whoever asks reads the event,
/// so that either we see their delivery or they see that the event is gone.
async fn drop_day(connection: &Connection, table: Table, slot: Slot, copying: Copying) -> Result<u64, Problem> {
    let name = table.of(slot);
    // Whoever comes behind a lock that waits has to wait too.
    connection.batch(&format!("SET LOCAL lock_timeout = '1s'; LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")).await?;
    let counted =
        connection.query_one(&format!("SELECT count(*) AS n FROM (SELECT 1 FROM {name} LIMIT {COUNTED_MAX}) counted"), &[]).await?;
    let mut dropped: i64 = row::column(&counted, "n")?;
    if dropped >= COUNTED_MAX {
        dropped = dropped.max(row::column(&connection.query_one(ESTIMATE, &[&name]).await?, "n")?);
    }
    match table {
        Table::Events => {
            connection.execute(COPY_LATE_EVENTS, &[&slot, &copying.since]).await?;
            connection.execute(COPY_ERASURES, &[&slot]).await?;
            dropped -= row::column::<i64>(&connection.query_one(COUNT_KEPT, &[&slot]).await?, "n")?;
        }
        // An attempt is never made in the past, and what has ended never waits again.
        Table::Attempts => {}
    }
    connection.batch(&format!("DROP TABLE {name}")).await?;
    Ok(unsigned(dropped))
}

/// What is needed: by a delivery that waits or is an open dead letter; or because its tenant's retention has been raised since
/// it was put here. An id that somebody chose is remembered for as long as it is kept.
const COPY_EVENTS: &str = "WITH looked_at AS (
       SELECT seq FROM events WHERE slot = $1 AND seq > $2 ORDER BY seq LIMIT $3
     ), kept AS (
       INSERT INTO events_kept SELECT e.* FROM looked_at l JOIN events e ON e.slot = $1 AND e.seq = l.seq
       WHERE EXISTS (SELECT 1 FROM deliveries d WHERE d.event_seq = l.seq
                       AND (d.status = 'waiting' OR (d.status = 'dead' AND d.replayed_as IS NULL)))
          OR EXISTS (SELECT 1 FROM tenants t WHERE t.id = e.tenant AND t.deleted_at_ms IS NULL AND t.retention_ms > $4)
       ON CONFLICT (seq) DO NOTHING RETURNING tenant, id, seq
     ), keys AS (
       UPDATE idempotency_keys k SET expires_at_ms = NULL FROM kept
       WHERE k.tenant = kept.tenant AND k.kind = 'id' AND k.key = kept.id AND k.event_seq = kept.seq
     )
     SELECT count(*) AS looked_at, max(seq) AS seq, NULL::int AS number FROM looked_at";
const COPY_ATTEMPTS: &str = "WITH looked_at AS (
       SELECT delivery_seq, number FROM attempts WHERE slot = $1 AND (delivery_seq, number) > ($2, $3)
       ORDER BY delivery_seq, number LIMIT $4
     ), kept AS (
       INSERT INTO attempts_kept SELECT a.* FROM looked_at l
       JOIN attempts a ON a.slot = $1 AND a.delivery_seq = l.delivery_seq AND a.number = l.number
       WHERE EXISTS (SELECT 1 FROM deliveries d LEFT JOIN tenants t ON t.id = d.tenant AND t.deleted_at_ms IS NULL
                     WHERE d.seq = l.delivery_seq AND (d.status = 'waiting' OR (d.status = 'dead' AND d.replayed_as IS NULL)
                       OR t.retention_ms > $5))
       ON CONFLICT (delivery_seq, number) DO NOTHING
     )
     SELECT count(*) AS looked_at, max(delivery_seq) AS seq,
            (SELECT number FROM looked_at ORDER BY delivery_seq DESC, number DESC LIMIT 1) AS number FROM looked_at";
const COPY_LATE_EVENTS: &str = "INSERT INTO events_kept SELECT e.* FROM events e WHERE e.slot = $1 AND e.seq IN (
       SELECT d.event_seq FROM deliveries d WHERE d.seq > $2 AND d.event_slot = $1 AND d.status = 'waiting')
     ON CONFLICT (seq) DO NOTHING";
/// What was erased while it was copied stays erased.
const COPY_ERASURES: &str = "UPDATE events_kept k SET data = NULL, erased_at_ms = e.erased_at_ms FROM events e
     WHERE k.slot = $1 AND e.slot = $1 AND e.seq = k.seq AND e.data IS NULL AND k.data IS NOT NULL";
const COUNT_KEPT: &str = "SELECT count(*) AS n FROM events_kept WHERE slot = $1";
const ESTIMATE: &str = "SELECT coalesce(max(reltuples), 0)::bigint AS n FROM pg_class WHERE oid = to_regclass($1::text)";

/// What a look for expired keys has come to.
struct SweptKeys {
    deleted: u64,
    has_more: bool,
    behind: Duration,
    go_on: (i64, String, String),
}

/// Keys by themselves; ids that publishers chose once their event is gone, wherever the look for those had stopped.
async fn sweep_keys(
    database: &Database,
    connection: &Connection,
    limits: &Housekeeping,
    (from, tenant, key): &(i64, String, String),
) -> Result<SweptKeys, Problem> {
    let (now, rows_max) = (database.clock_now(), limit(limits.rows_max));
    let keys = connection.query_one(DELETE_EXPIRED_KEYS, &[&now.as_millis(), &rows_max]).await?;
    let deleted_keys: i64 = row::column(&keys, "deleted")?;
    let oldest: Option<i64> = row::column(&keys, "oldest")?;
    let ids = connection.query_one(DELETE_EXPIRED_IDS, &[&now.as_millis(), &rows_max, from, tenant, key]).await?;
    let (looked_at, deleted_ids): (i64, i64) = (row::column(&ids, "looked_at")?, row::column(&ids, "deleted")?);
    let go_on = if looked_at >= rows_max {
        (row::column(&ids, "expires_at_ms")?, row::column(&ids, "tenant")?, row::column(&ids, "key")?)
    } else {
        (i64::MIN, String::new(), String::new())
    };
    Ok(SweptKeys {
        deleted: unsigned(deleted_keys + deleted_ids),
        has_more: deleted_keys >= rows_max || looked_at >= rows_max,
        behind: oldest.map(|oldest| now.since(Timestamp::from_millis(oldest))).unwrap_or_default(),
        go_on,
    })
}

const DELETE_EXPIRED_KEYS: &str = "WITH old AS (
       SELECT tenant, kind, key, expires_at_ms FROM idempotency_keys
       WHERE kind = 'key' AND expires_at_ms IS NOT NULL AND expires_at_ms <= $1 ORDER BY expires_at_ms LIMIT $2
     ), gone AS (
       DELETE FROM idempotency_keys k USING old WHERE k.tenant = old.tenant AND k.kind = old.kind AND k.key = old.key
         AND k.expires_at_ms <= $1 RETURNING 1
     )
     SELECT (SELECT count(*) FROM gone) AS deleted, (SELECT min(expires_at_ms) FROM old) AS oldest";
/// An id lives as long as its event, whose day is dropped after this, or late; and if it is kept aside then, so is its id.
const DELETE_EXPIRED_IDS: &str = "WITH looked_at AS (
       SELECT tenant, kind, key, expires_at_ms, event_slot, event_seq FROM idempotency_keys
       WHERE kind = 'id' AND expires_at_ms IS NOT NULL AND expires_at_ms <= $1 AND (expires_at_ms, tenant, key) > ($3, $4, $5)
       ORDER BY expires_at_ms, tenant, key LIMIT $2
     ), gone AS (
       DELETE FROM idempotency_keys k USING looked_at l WHERE k.tenant = l.tenant AND k.kind = l.kind AND k.key = l.key
         AND k.expires_at_ms <= $1
         AND NOT EXISTS (SELECT 1 FROM events e WHERE e.slot = l.event_slot AND e.seq = l.event_seq) RETURNING 1
     ), last AS (
       SELECT expires_at_ms, tenant, key FROM looked_at ORDER BY expires_at_ms DESC, tenant DESC, key DESC LIMIT 1
     )
     SELECT (SELECT count(*) FROM looked_at) AS looked_at, (SELECT count(*) FROM gone) AS deleted,
            (SELECT expires_at_ms FROM last) AS expires_at_ms, (SELECT tenant FROM last) AS tenant, (SELECT key FROM last) AS key";

/// Answers how many went, and whether there are more.
async fn sweep_minutes(database: &Database, connection: &Connection, limits: &Housekeeping) -> Result<(u64, bool), Problem> {
    let (old, rows_max) = (database.clock_now().as_millis() - millis(MINUTES_KEPT), limit(limits.rows_max));
    let of_endpoints = connection.execute(DELETE_MINUTES, &[&old, &rows_max]).await?;
    let of_tenants = connection.execute(DELETE_MINUTES_OF_TENANTS, &[&old, &rows_max]).await?;
    Ok((of_endpoints + of_tenants, of_endpoints.max(of_tenants) >= limits.rows_max as u64))
}

const DELETE_ENDED_SESSIONS: &str = "DELETE FROM sessions WHERE id IN (
       SELECT id FROM sessions WHERE ends_at_ms <= $1 ORDER BY ends_at_ms LIMIT $2)";
const DELETE_MINUTES: &str = "DELETE FROM minutes WHERE (endpoint, minute_ms) IN (
       SELECT endpoint, minute_ms FROM minutes WHERE minute_ms < $1 ORDER BY minute_ms LIMIT $2)";
const DELETE_MINUTES_OF_TENANTS: &str = "DELETE FROM minutes_of_tenants WHERE (tenant, minute_ms) IN (
       SELECT tenant, minute_ms FROM minutes_of_tenants WHERE minute_ms < $1 ORDER BY minute_ms LIMIT $2)";

/// What the rest has come to, and where its looks go on.
struct Rest {
    swept: CleanupStep,
    kept_events: i64,
    replays: IndexPosition,
    endpoints: IndexPosition,
    tenants: (i64, String),
    versions: (Vec<u8>, i64),
    lanes: Vec<u8>,
    lane_snapshots: Vec<u8>,
    sealed: Vec<u8>,
}

async fn sweep_the_rest(
    database: &Database,
    connection: &Connection,
    limits: &Housekeeping,
    from: &Looks,
) -> Result<Rest, Problem> {
    let now = database.clock_now().as_millis();
    let rows = LOOK_ROWS.min(limits.rows_max);
    let rows_max = limit(rows);
    let mut swept = CleanupStep {
        audit: connection.execute(DELETE_AUDIT, &[&(now - millis(limits.audit_kept)), &rows_max]).await?,
        keys: connection.execute(DELETE_ENDED_KEYS, &[&(now - millis(limits.ended_keys_kept)), &rows_max]).await?,
        sessions: connection.execute(DELETE_ENDED_SESSIONS, &[&now, &rows_max]).await?,
        commands: connection.execute(commands::DELETE_OLD_COMMANDS, &[&rows_max]).await?,
        ..CleanupStep::default()
    };
    let commits = connection.execute(DELETE_COMMITS, &[&COMMITS_MAX]).await?;
    let handed_over = connection.execute(DELETE_HANDED_OVER, &[&now, &rows_max]).await?;
    let is_full = |removed: u64| removed >= rows as u64;
    swept.has_more = commits >= unsigned(COMMITS_MAX)
        || [swept.audit, swept.keys, swept.sessions, swept.commands, handed_over].into_iter().any(is_full);

    let kept = connection.query_one(retention::DELETE_OLD_KEPT_EVENTS, &[&now, &from.kept_events, &COPIED_ROWS]).await?;
    swept.events = unsigned(row::column(&kept, "deleted")?);
    let kept_events = if row::column::<i64>(&kept, "looked_at")? >= COPIED_ROWS { row::column(&kept, "last")? } else { 0 };

    let retention = millis(database.options.retention.as_duration());
    let (at, id) = &from.replays;
    let looked = connection.query(DELETE_REPLAYS, &[at, id, &now, &retention, &rows_max]).await?;
    let replays = Looked::read(&looked, rows)?;
    swept.replays = replays.deleted;
    let before = now - millis(limits.deleted_kept);
    let (at, id) = &from.endpoints;
    let looked = connection.query(DELETE_ENDPOINTS, &[at, id, &before, &rows_max]).await?;
    let endpoints = Looked::read(&looked, rows)?;
    swept.endpoints = endpoints.deleted;
    let tenants = sweep_tenants(connection, &from.tenants, before, rows).await?;
    swept.tenants = tenants.deleted;
    let (endpoint, last_version) = &from.versions;
    let looked = connection.query(DELETE_VERSIONS, &[endpoint, last_version, &millis(STRAGGLERS_MAX), &rows_max]).await?;
    let versions = match looked.last() {
        Some(last) if looked.len() >= rows => (row::column(last, "endpoint")?, row::column(last, "last_version")?),
        Some(_) | None => (Vec::new(), 0),
    };
    for row in &looked {
        swept.endpoint_versions += u64::from(row::column::<bool>(row, "is_deleted")?);
    }
    let lanes = Orphans::delete(connection, DELETE_LANES, &from.lanes, rows).await?;
    let lane_snapshots = Orphans::delete(connection, DELETE_LANES_SHOWN, &from.lane_snapshots, rows).await?;
    swept.lanes = lanes.deleted + lane_snapshots.deleted;
    let (resealed, sealed) = reseal(database, connection, &from.sealed, rows.min(100)).await?;
    swept.resealed = resealed;
    swept.has_more |= replays.go_on != FRONT || endpoints.go_on != FRONT || tenants.has_more;
    swept.has_more |= !(versions.0.is_empty() && lanes.go_on.is_empty() && lane_snapshots.go_on.is_empty() && sealed.is_empty());
    Ok(Rest {
        swept,
        kept_events,
        replays: replays.go_on,
        endpoints: endpoints.go_on,
        tenants: tenants.go_on,
        versions,
        lanes: lanes.go_on,
        lane_snapshots: lane_snapshots.go_on,
        sealed,
    })
}

/// Rows that were looked at by time and id, some of which were deleted.
struct Looked {
    deleted: u64,
    go_on: IndexPosition,
}

impl Looked {
    fn read(rows: &[Row], rows_max: usize) -> Result<Looked, Error> {
        let deleted = rows.iter().map(|row| row::column(row, "is_deleted")).collect::<Result<Vec<bool>, _>>()?;
        let go_on = match rows.last() {
            Some(last) if rows.len() >= rows_max => (row::column(last, "at_ms")?, row::column(last, "id")?),
            Some(_) | None => FRONT,
        };
        Ok(Looked { deleted: deleted.into_iter().filter(|is_deleted| *is_deleted).count() as u64, go_on })
    }
}

/// Rows of endpoints that are gone.
struct Orphans {
    deleted: u64,
    go_on: Vec<u8>,
}

impl Orphans {
    async fn delete(connection: &Connection, sql: &str, after: &Vec<u8>, rows: usize) -> Result<Orphans, Problem> {
        let row = connection.query_one(sql, &[after, &limit(rows)]).await?;
        let is_full = row::column::<i64>(&row, "looked_at")? >= limit(rows);
        let go_on = if is_full { row::column(&row, "last")? } else { Vec::new() };
        Ok(Orphans { deleted: unsigned(row::column(&row, "deleted")?), go_on })
    }
}

struct LookedAtTenants {
    deleted: u64,
    has_more: bool,
    go_on: (i64, String),
}

/// Deleted tenants, once nothing of theirs is left.
async fn sweep_tenants(
    connection: &Connection,
    (at, id): &(i64, String),
    before: i64,
    rows: usize,
) -> Result<LookedAtTenants, Problem> {
    let looked = connection.query(SELECT_DELETED_TENANTS, &[at, id, &before, &limit(rows)]).await?;
    let mut unneeded: Vec<&str> = Vec::new();
    for row in &looked {
        if !row::column::<bool>(row, "is_needed")? {
            unneeded.push(row::text(row, "id")?);
        }
    }
    let (mut deleted, mut keys) = (0, 0);
    if !unneeded.is_empty() {
        // What its events have not taken with them.
        keys = connection.execute(DELETE_KEYS_OF_TENANTS, &[&unneeded, &limit(rows)]).await?;
        deleted = connection.execute(DELETE_TENANTS, &[&unneeded, &before]).await?;
    }
    let is_full = looked.len() >= rows;
    let go_on = match looked.last() {
        Some(last) if is_full => (row::column(last, "deleted_at_ms")?, row::column(last, "id")?),
        Some(_) | None => (i64::MIN, String::new()),
    };
    Ok(LookedAtTenants { deleted, has_more: is_full || keys > 0, go_on })
}

const DELETE_AUDIT: &str = "DELETE FROM audit WHERE seq IN (
                              SELECT seq FROM (SELECT seq, at_ms FROM audit ORDER BY seq LIMIT $2) oldest WHERE at_ms <= $1)";
const DELETE_ENDED_KEYS: &str = "DELETE FROM keys WHERE id IN (
       SELECT id FROM keys WHERE coalesce(revoked_at_ms, expires_at_ms) IS NOT NULL AND coalesce(revoked_at_ms, expires_at_ms) <= $1
       ORDER BY coalesce(revoked_at_ms, expires_at_ms) LIMIT $2)";
/// Whoever is still in doubt about one after an hour has given up long since.
const DELETE_COMMITS: &str = "DELETE FROM commits WHERE id IN (SELECT id FROM commits WHERE at < clock_timestamp() - interval '1 hour' ORDER BY at LIMIT $1)";
/// What a leaver has not recorded by now it never may.
const DELETE_HANDED_OVER: &str = "DELETE FROM handed_over WHERE until_ms <= $1 AND delivery_seq IN (
       SELECT delivery_seq FROM handed_over WHERE until_ms <= $1 ORDER BY until_ms LIMIT $2)";
const DELETE_REPLAYS: &str = "WITH looked_at AS (
       SELECT r.ended_at_ms, r.id, r.ended_at_ms <= $3 - coalesce(t.retention_ms, $4) AS is_old
       FROM (SELECT ended_at_ms, id, tenant FROM replays
             WHERE ended_at_ms IS NOT NULL AND (ended_at_ms, id) > ($1, $2) ORDER BY ended_at_ms, id LIMIT $5) r
       LEFT JOIN tenants t ON t.id = r.tenant
     ), gone AS (
       DELETE FROM replays WHERE id IN (SELECT id FROM looked_at WHERE is_old) RETURNING id
     )
     SELECT l.ended_at_ms AS at_ms, l.id, l.id IN (SELECT id FROM gone) AS is_deleted FROM looked_at l ORDER BY l.ended_at_ms, l.id";
/// With their secrets and lane states, once no delivery refers to them.
const DELETE_ENDPOINTS: &str = "WITH looked_at AS (
       SELECT deleted_at_ms, id FROM endpoints
       WHERE deleted_at_ms IS NOT NULL AND (deleted_at_ms, id) > ($1, $2) AND deleted_at_ms <= $3 ORDER BY deleted_at_ms, id LIMIT $4
     ), gone AS (
       DELETE FROM endpoints p USING looked_at l WHERE p.id = l.id AND p.deleted_at_ms IS NOT NULL
         AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint = p.id) RETURNING p.id
     ), lane AS (
       DELETE FROM lanes WHERE endpoint IN (SELECT id FROM gone)
     ), shown AS (
       DELETE FROM lanes_shown WHERE endpoint IN (SELECT id FROM gone)
     )
     SELECT l.deleted_at_ms AS at_ms, l.id, l.id IN (SELECT id FROM gone) AS is_deleted FROM looked_at l ORDER BY l.deleted_at_ms, l.id";
/// Once every delivery that was made before they were replaced is gone. A delivery that was made later was never sent with them.
const DELETE_VERSIONS: &str = "WITH looked_at AS (
       SELECT v.endpoint, v.last_version,
              coalesce((SELECT d.created_at_ms FROM deliveries d WHERE d.endpoint = v.endpoint ORDER BY d.seq LIMIT 1)
                       > v.replaced_at_ms + $3, TRUE) AS is_unneeded
       FROM (SELECT endpoint, last_version, replaced_at_ms FROM endpoint_versions
             WHERE (endpoint, last_version) > ($1, $2) ORDER BY endpoint, last_version LIMIT $4) v
     ), gone AS (
       DELETE FROM endpoint_versions v USING looked_at l
       WHERE v.endpoint = l.endpoint AND v.last_version = l.last_version AND l.is_unneeded
     )
     SELECT endpoint, last_version, is_unneeded AS is_deleted FROM looked_at ORDER BY endpoint, last_version";
const DELETE_LANES: &str = "WITH looked_at AS (
       SELECT endpoint FROM lanes WHERE endpoint > $1 ORDER BY endpoint LIMIT $2
     ), gone AS (
       DELETE FROM lanes WHERE endpoint IN (
         SELECT l.endpoint FROM looked_at l WHERE NOT EXISTS (SELECT 1 FROM endpoints p WHERE p.id = l.endpoint)) RETURNING 1
     )
     SELECT (SELECT count(*) FROM looked_at) AS looked_at, (SELECT count(*) FROM gone) AS deleted,
            (SELECT endpoint FROM looked_at ORDER BY endpoint DESC LIMIT 1) AS last";
const DELETE_LANES_SHOWN: &str = "WITH looked_at AS (
       SELECT endpoint FROM lanes_shown WHERE endpoint > $1 ORDER BY endpoint LIMIT $2
     ), gone AS (
       DELETE FROM lanes_shown WHERE endpoint IN (
         SELECT l.endpoint FROM looked_at l WHERE NOT EXISTS (SELECT 1 FROM endpoints p WHERE p.id = l.endpoint)) RETURNING 1
     )
     SELECT (SELECT count(*) FROM looked_at) AS looked_at, (SELECT count(*) FROM gone) AS deleted,
            (SELECT endpoint FROM looked_at ORDER BY endpoint DESC LIMIT 1) AS last";

/// Whether anything of a tenant `t` is left.
macro_rules! is_tenant_needed {
    () => {
        "(EXISTS (SELECT 1 FROM events e WHERE e.tenant = t.id) OR EXISTS (SELECT 1 FROM events_kept k WHERE k.tenant = t.id)
          OR EXISTS (SELECT 1 FROM deliveries d WHERE d.tenant = t.id) OR EXISTS (SELECT 1 FROM endpoints p WHERE p.tenant = t.id))"
    };
}
const SELECT_DELETED_TENANTS: &str = concat!(
    "SELECT t.deleted_at_ms, t.id, ",
    is_tenant_needed!(),
    " AS is_needed FROM (
       SELECT deleted_at_ms, id FROM tenants WHERE deleted_at_ms IS NOT NULL AND (deleted_at_ms, id) > ($1, $2) AND deleted_at_ms <= $3
       ORDER BY deleted_at_ms, id LIMIT $4) t ORDER BY t.deleted_at_ms, t.id"
);
const DELETE_KEYS_OF_TENANTS: &str = "DELETE FROM idempotency_keys WHERE (tenant, kind, key) IN (
       SELECT k.tenant, k.kind, k.key FROM tenants t CROSS JOIN LATERAL (
         SELECT tenant, kind, key FROM idempotency_keys WHERE tenant = t.id AND event_seq <= t.events_deleted_to LIMIT $2) k
       WHERE t.id = ANY($1) AND t.deleted_at_ms IS NOT NULL LIMIT $2)";
/// Whoever creates one again goes on above its version: what was cached of it must not look like the present.
const DELETE_TENANTS: &str = concat!(
    "WITH gone AS (
       DELETE FROM tenants t WHERE t.id = ANY($1) AND t.deleted_at_ms IS NOT NULL AND t.deleted_at_ms <= $2
         AND NOT EXISTS (SELECT 1 FROM idempotency_keys i WHERE i.tenant = t.id) AND NOT ",
    is_tenant_needed!(),
    " RETURNING t.version
     ), raised AS (
       UPDATE counters SET value = greatest(value, (SELECT max(version) FROM gone))
       WHERE name = 'removed_tenant_version' AND EXISTS (SELECT 1 FROM gone)
     )
     SELECT version FROM gone"
);

/// Secrets that an earlier master key has sealed. Answers how many there were, and where to go on.
async fn reseal(database: &Database, connection: &Connection, after: &Vec<u8>, rows: usize) -> Result<(u64, Vec<u8>), Problem> {
    let keyring = &database.options.keyring;
    if !keyring.has_previous() {
        return Ok((0, Vec::new()));
    }
    let mut count = 0;
    let found = connection.query(SELECT_TO_RESEAL, &[after, &limit(rows)]).await?;
    for row in &found {
        let id = EndpointId::from_bytes(row::bytes(row, "id")?);
        if let Some(sealed) = secrets::reseal(keyring, id, row::column(row, "sealed")?)? {
            connection.execute(RESEAL, &[&id.to_bytes().as_slice(), &sealed]).await?;
            count += 1;
        }
    }
    let last = found.last().filter(|_| found.len() >= rows).map(|row| row::column(row, "id")).transpose()?;
    Ok((count, last.unwrap_or_default()))
}

/// Locked, because somebody may be writing new secrets.
const SELECT_TO_RESEAL: &str = "SELECT id, sealed FROM endpoints WHERE id > $1 ORDER BY id LIMIT $2 FOR UPDATE";
const RESEAL: &str = "UPDATE endpoints SET sealed = $2 WHERE id = $1";

fn overdue_row(row: &Row, why: OverdueReason) -> Result<Overdue, Error> {
    Ok(Overdue {
        endpoint: EndpointId::from_bytes(row::bytes(row, "endpoint")?),
        delivery: DeliveryId::from_bytes(row::bytes(row, "id")?),
        seq: unsigned(row::column(row, "seq")?),
        why,
    })
}

async fn expired(connection: &Connection, now: Timestamp, rows_max: usize) -> Result<Vec<Overdue>, Problem> {
    let rows = connection.query(SELECT_EXPIRED, &[&now.as_millis(), &limit(rows_max)]).await?;
    Ok(rows.iter().map(|row| overdue_row(row, OverdueReason::Expired)).collect::<Result<_, _>>()?)
}

/// What waits at deleted endpoints: at the newest, and at some of the others in turn. Answers where to go on.
async fn of_deleted(
    connection: &Connection,
    from: &IndexPosition,
    rows_max: usize,
) -> Result<(IndexPosition, Vec<Overdue>), Problem> {
    let read = |row: &Row| Ok::<IndexPosition, Error>((row::column(row, "deleted_at_ms")?, row::column(row, "id")?));
    let newest = connection.query(SELECT_NEWEST_DELETED, &[&DELETED_ENDPOINTS_PER_LOOK]).await?;
    let mut endpoints = newest.iter().map(read).collect::<Result<BTreeSet<_>, _>>()?;
    let others = connection.query(SELECT_NEXT_DELETED, &[&from.0, &from.1, &DELETED_ENDPOINTS_PER_LOOK]).await?;
    let others = others.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let is_full = limit(others.len()) >= DELETED_ENDPOINTS_PER_LOOK;
    let go_on = others.last().filter(|_| is_full).cloned().unwrap_or(FRONT);
    endpoints.extend(others);
    let endpoints: Vec<Vec<u8>> = endpoints.into_iter().map(|(_, id)| id).collect();
    if endpoints.is_empty() {
        return Ok((go_on, Vec::new()));
    }
    let rows = connection.query(SELECT_WAITING_AT, &[&endpoints, &limit(rows_max)]).await?;
    Ok((go_on, rows.iter().map(|row| overdue_row(row, OverdueReason::EndpointDeleted)).collect::<Result<_, _>>()?))
}

/// What has waited longer than the retention, among what cleanup has noted as such. Answers where to go on.
async fn stale(connection: &Connection, from: i64, now: Timestamp, rows_max: usize) -> Result<(i64, Vec<Overdue>), Problem> {
    let rows = connection.query(SELECT_STALE, &[&from, &now.as_millis(), &limit(rows_max)]).await?;
    let go_on = match rows.last() {
        Some(last) if rows.len() >= rows_max => row::column(last, "delivery_seq")?,
        Some(_) | None => 0,
    };
    let mut found = Vec::new();
    for row in &rows {
        if row::column::<Option<bool>>(row, "is_stale")? == Some(true) {
            found.push(overdue_row(row, OverdueReason::Expired)?);
        }
    }
    Ok((go_on, found))
}

const SELECT_EXPIRED: &str = "SELECT endpoint, id, seq FROM deliveries
     WHERE status = 'waiting' AND expires_at_ms IS NOT NULL AND expires_at_ms <= $1 ORDER BY expires_at_ms LIMIT $2";
const SELECT_NEWEST_DELETED: &str =
    "SELECT deleted_at_ms, id FROM endpoints WHERE deleted_at_ms IS NOT NULL ORDER BY deleted_at_ms DESC, id DESC LIMIT $1";
const SELECT_NEXT_DELETED: &str = "SELECT deleted_at_ms, id FROM endpoints
     WHERE deleted_at_ms IS NOT NULL AND (deleted_at_ms, id) > ($1, $2) ORDER BY deleted_at_ms, id LIMIT $3";
/// By endpoint and queue, so that the backlog of those that are well is not read.
const SELECT_WAITING_AT: &str = "SELECT w.endpoint, w.id, w.seq FROM unnest($1::bytea[]) AS p (id) CROSS JOIN LATERAL (
       (SELECT d.endpoint, d.id, d.seq FROM deliveries d
        WHERE d.endpoint = p.id AND d.status = 'waiting' AND NOT d.is_later AND d.ordering_key IS NULL LIMIT $2)
       UNION ALL
       (SELECT d.endpoint, d.id, d.seq FROM deliveries d
        WHERE d.endpoint = p.id AND d.status = 'waiting' AND d.is_later AND d.ordering_key IS NULL LIMIT $2)
       UNION ALL
       (SELECT d.endpoint, d.id, d.seq FROM deliveries d
        WHERE d.endpoint = p.id AND d.status = 'waiting' AND d.ordering_key IS NOT NULL LIMIT $2)) w
     LIMIT $2";
const SELECT_STALE: &str = "SELECT r.delivery_seq, d.endpoint, d.id, d.seq,
       d.status = 'waiting' AND d.due_at_ms <= $2 - t.retention_ms AS is_stale
     FROM (SELECT delivery_seq FROM retained WHERE is_overdue AND delivery_seq > $1 ORDER BY delivery_seq LIMIT $3) r
     LEFT JOIN deliveries d ON d.seq = r.delivery_seq LEFT JOIN tenants t ON t.id = d.tenant
     ORDER BY r.delivery_seq";
