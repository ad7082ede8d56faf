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
use super::slots::{Slot, Table, class_durations, day_of, end_of, kept_ms, next_day, slot};
use super::{Database, commands, configuration, history, row};
use crate::columns::{limit, millis, unsigned};
use crate::housekeeping::MINUTES_FACTOR;
use crate::{Audit, Error, Housekeeping, MINUTES_KEPT, Overdue, OverdueReason, SweptAway, secrets};

/// Whoever holds it keeps house, and other nodes do not: `house` in ASCII.
const LOCK: i64 = 0x68_6f75_7365;
/// How many tenants one step looks at. With more of them, the next step goes on.
const TENANTS_MAX: i64 = 5_000;
/// How many rows of a day are looked at in one go before it is dropped.
const COPIED_ROWS: i64 = 5_000;
/// How long one step goes on copying aside.
const COPYING_MAX: Duration = Duration::from_secs(1);
/// Commits come by the hundred each second, so that as many have to go.
const COMMITS_MAX: i64 = 50_000;
/// A count is exact up to here, and the server's estimate beyond.
const COUNTED_MAX: i64 = 100_000;

/// How far it has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The last tenant that was looked at.
    tenant: Mutex<String>,
    copying: Mutex<BTreeMap<(Table, Slot), Copying>>,
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
    pub(super) async fn sweep_away(&self, limits: Housekeeping) -> Result<SweptAway, Error> {
        let limits = &limits;
        // Each kind in a transaction of its own, so that none of them lasts.
        let mut swept = SweptAway::default();
        let (from, to) = &self.next_tenants().await?;
        let deliveries =
            self.keep_house(|connection| async move { sweep_deliveries(self, &connection, limits, from, to).await }).await?;
        let Some(deliveries) = deliveries else {
            // Another node is at it.
            return Ok(swept);
        };
        swept.deliveries = deliveries;
        match self.sweep_on(limits, from, to, &mut swept).await {
            // What is gone is gone, and the next step goes on from there.
            Err(error) if !swept.is_nothing() => tracing::warn!(%error, "a step of housekeeping has ended early"),
            ended => ended?,
        }
        Ok(swept)
    }

    async fn sweep_on(&self, limits: &Housekeeping, from: &str, to: &str, swept: &mut SweptAway) -> Result<(), Error> {
        let events = self.keep_house(|connection| async move { sweep_events(self, &connection, limits, from, to).await }).await?;
        swept.events = events.unwrap_or(0);
        let rest = self.keep_house(|connection| async move { sweep_the_rest(self, &connection, limits).await }).await?;
        *swept = SweptAway { deliveries: swept.deliveries, events: swept.events, ..rest.unwrap_or_default() };
        swept.events += self.drop_a_day(Table::Events).await?;
        self.drop_a_day(Table::Attempts).await?;
        self.make_tomorrow().await
    }

    pub(super) async fn overdue(&self, rows_max: usize) -> Result<Vec<Overdue>, Error> {
        self.read(|connection| async move { overdue(&connection, self.clock_now(), rows_max).await }).await
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

    /// The tenants that this step looks at: after the first, up to the second.
    async fn next_tenants(&self) -> Result<(String, String), Error> {
        let from = self.housekeeping.tenant.lock().clone();
        let after = &from;
        let last: Option<String> = self
            .read(|connection| async move {
                let row = connection.query_opt(SELECT_LAST_TENANT, &[after, &TENANTS_MAX]).await?;
                Ok(row.map(|row| row::column(&row, "id")).transpose()?)
            })
            .await?;
        // Past the last one it begins anew. No id is as large as this.
        let to = last.unwrap_or_else(|| "\u{7f}".to_owned());
        *self.housekeeping.tenant.lock() = if to == "\u{7f}" { String::new() } else { to.clone() };
        Ok((from, to))
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
        self.read(|connection| async move {
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
                    let row = self.read(|connection| async move { connection.query_one(SELECT_LAST_DELIVERY, &[]).await }).await?;
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
const SELECT_LAST_TENANT: &str = "SELECT id FROM tenants WHERE id > $1 ORDER BY id OFFSET $2::bigint - 1 LIMIT 1";
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

/// Goes through each tenant's deliveries from the oldest on, and remembers how far it has come. What still waits stays
/// behind; it ends one day, and then the tenant is gone through again.
async fn sweep_deliveries(
    database: &Database,
    connection: &Connection,
    limits: &Housekeeping,
    from: &str,
    to: &str,
) -> Result<u64, Problem> {
    let now = database.clock_now().as_millis();
    let mut swept = 0;
    for tenant in connection.query(SELECT_TENANTS_TO_SWEEP, &[&now, &from, &to]).await? {
        let is_deleted = row::column::<Option<i64>>(&tenant, "deleted_at_ms")?.is_some();
        let keep_ms = if is_deleted { 0 } else { row::column(&tenant, "retention_ms")? };
        let (id, swept_to): (&str, i64) = (row::text(&tenant, "id")?, row::column(&tenant, "swept_to")?);
        let (mut reached, mut gone) = (swept_to, Gone::default());
        for old in connection.query(SELECT_OLD, &[&id, &swept_to, &limit(limits.rows_max)]).await? {
            if row::column::<i64>(&old, "created_at_ms")? > now - keep_ms {
                break;
            }
            reached = row::column(&old, "seq")?;
            let is_dead = row::text(&old, "status")? == "dead";
            let kept_ms = if is_dead && !is_deleted { millis(limits.dead_letters_kept).max(keep_ms) } else { keep_ms };
            if row::column::<Option<i64>>(&old, "ended_at_ms")?.is_some_and(|ended| ended <= now - kept_ms) {
                gone.deliveries.push(reached);
                gone.events.insert(row::column(&old, "event_seq")?);
            }
        }
        swept += gone.deliveries.len() as u64;
        forget(connection, gone).await?;
        // Some were left behind and end later: begin anew once everything that is old enough has been looked at.
        connection.execute(SET_SWEPT, &[&id, &reached]).await?;
    }
    connection.execute(BEGIN_ANEW, &[&now, &millis(limits.dead_letters_kept), &from, &to]).await?;
    Ok(swept)
}

#[derive(Default)]
struct Gone {
    deliveries: Vec<i64>,
    events: BTreeSet<i64>,
}

/// Attempts go with the days in which they were made; only what was kept aside for these goes now.
async fn forget(connection: &Connection, gone: Gone) -> Result<(), Problem> {
    if gone.deliveries.is_empty() {
        return Ok(());
    }
    connection.execute(DELETE_KEPT_ATTEMPTS, &[&gone.deliveries]).await?;
    connection.execute(DELETE_DELIVERIES, &[&gone.deliveries]).await?;
    connection.execute(DELETE_KEPT_EVENTS, &[&gone.events.into_iter().collect::<Vec<_>>()]).await?;
    Ok(())
}

/// The first row that has not been looked at tells: later ones are younger.
const SELECT_TENANTS_TO_SWEEP: &str = "SELECT id, retention_ms, deleted_at_ms, swept_to FROM tenants t
     WHERE id > $2 AND id <= $3 AND (
       SELECT d.created_at_ms FROM deliveries d WHERE d.tenant = t.id AND d.seq > t.swept_to ORDER BY d.seq LIMIT 1
     ) <= CASE WHEN t.deleted_at_ms IS NULL THEN $1 - t.retention_ms ELSE $1 END
     ORDER BY id LIMIT 20";
const SELECT_OLD: &str = "SELECT seq, event_seq, status, ended_at_ms, created_at_ms FROM deliveries WHERE tenant = $1 AND seq > $2
                          ORDER BY seq LIMIT $3";
const SET_SWEPT: &str = "UPDATE tenants SET swept_to = $2 WHERE id = $1";
const DELETE_KEPT_ATTEMPTS: &str = "DELETE FROM attempts_kept WHERE delivery_seq = ANY($1)";
const DELETE_DELIVERIES: &str = "DELETE FROM deliveries WHERE seq = ANY($1)";
const DELETE_KEPT_EVENTS: &str = "WITH gone AS (
       DELETE FROM events_kept k WHERE k.seq = ANY($1) AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_seq = k.seq)
       RETURNING k.tenant, k.id, k.seq)
     DELETE FROM idempotency_keys i USING gone
     WHERE i.tenant = gone.tenant AND i.kind = 'id' AND i.key = gone.id AND i.event_seq = gone.seq";
/// What was passed over because it still waited, or because a dead letter is kept longer, is looked at again once the first
/// of it has ended long enough ago.
const BEGIN_ANEW: &str = "UPDATE tenants SET swept_to = 0 WHERE id IN (
       SELECT t.id FROM tenants t WHERE t.id > $3 AND t.id <= $4 AND t.swept_to > 0 AND EXISTS (
         SELECT 1 FROM (SELECT d.status, d.ended_at_ms FROM deliveries d WHERE d.tenant = t.id AND d.seq <= t.swept_to
                        ORDER BY d.seq LIMIT 100) first
         WHERE first.ended_at_ms <= $1 - CASE WHEN t.deleted_at_ms IS NOT NULL THEN 0
                                              WHEN first.status = 'dead' THEN greatest(t.retention_ms, $2) ELSE t.retention_ms END)
       LIMIT 20)";

/// Events of tenants that are deleted, or whose retention is shorter than their class: they do not wait for their day to be
/// dropped. The oldest of each tenant first.
async fn sweep_events(
    database: &Database,
    connection: &Connection,
    limits: &Housekeeping,
    from: &str,
    to: &str,
) -> Result<u64, Problem> {
    let now = database.clock_now().as_millis();
    let classes = class_durations().to_vec();
    // What was kept aside for a retention that was raised, and that no delivery needs.
    let kept = connection.query_one(DELETE_OLD_KEPT_EVENTS, &[&now, &from, &to, &limit(limits.rows_max)]).await?;
    let kept = unsigned(row::column(&kept, "n")?);
    let old = connection.query(SELECT_OLD_EVENTS, &[&now, &from, &to, &classes, &limit(limits.rows_max)]).await?;
    if old.is_empty() {
        return Ok(kept);
    }
    let (mut slots, mut seqs, mut tenants, mut ids) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for row in &old {
        slots.push(row::column::<i32>(row, "slot")?);
        seqs.push(row::column::<i64>(row, "seq")?);
        tenants.push(row::text(row, "tenant")?);
        ids.push(row::text(row, "id")?);
    }
    connection.execute(DELETE_OLD_IDS, &[&tenants, &ids, &seqs]).await?;
    connection.execute(DELETE_OLD_EVENTS, &[&slots, &seqs]).await?;
    Ok(kept + old.len() as u64)
}

const SELECT_OLD_EVENTS: &str = "SELECT e.slot, e.seq, t.id AS tenant, e.id FROM tenants t
     CROSS JOIN LATERAL (SELECT slot, seq, id, accepted_at_ms FROM events WHERE tenant = t.id ORDER BY seq LIMIT $5) e
     WHERE t.id > $2 AND t.id <= $3 AND (t.deleted_at_ms IS NOT NULL OR t.retention_ms <> ALL($4::bigint[]))
       AND e.accepted_at_ms <= $1 - CASE WHEN t.deleted_at_ms IS NULL THEN t.retention_ms ELSE 0 END
       AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_seq = e.seq)
     LIMIT $5";
const DELETE_OLD_KEPT_EVENTS: &str = "WITH old AS (
       SELECT k.seq FROM tenants t CROSS JOIN LATERAL (
         SELECT seq FROM events_kept WHERE tenant = t.id
           AND accepted_at_ms <= $1 - CASE WHEN t.deleted_at_ms IS NULL THEN t.retention_ms ELSE 0 END
           AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_seq = events_kept.seq)
         ORDER BY seq LIMIT $4) k
       WHERE t.id > $2 AND t.id <= $3 LIMIT $4
     ), gone AS (
       DELETE FROM events_kept WHERE seq IN (SELECT seq FROM old) RETURNING tenant, id, seq
     ), ids AS (
       DELETE FROM idempotency_keys i USING gone
       WHERE i.tenant = gone.tenant AND i.kind = 'id' AND i.key = gone.id AND i.event_seq = gone.seq
     )
     SELECT count(*) AS n FROM gone";
const DELETE_OLD_IDS: &str =
    "DELETE FROM idempotency_keys k USING unnest($1::text[], $2::text[], $3::bigint[]) AS old (tenant, id, seq)
     WHERE k.tenant = old.tenant AND k.kind = 'id' AND k.key = old.id AND k.event_seq = old.seq";
const DELETE_OLD_EVENTS: &str = "DELETE FROM events WHERE slot = ANY($1) AND seq = ANY($2)";

async fn sweep_the_rest(database: &Database, connection: &Connection, limits: &Housekeeping) -> Result<SweptAway, Problem> {
    let now = database.clock_now().as_millis();
    let rows_max = limit(limits.rows_max);
    let idempotency_keys = connection.execute(DELETE_EXPIRED_KEYS, &[&now, &rows_max]).await?;
    let audit = connection.execute(DELETE_AUDIT, &[&(now - millis(limits.audit_kept)), &rows_max]).await?;
    let resealed = reseal(database, connection, limits).await?;
    connection.execute(DELETE_COMMITS, &[&COMMITS_MAX]).await?;
    connection.execute(DELETE_HANDED_OVER, &[&now]).await?;
    connection.execute(commands::DELETE_OLD_COMMANDS, &[&rows_max]).await?;
    let (old, minutes_max) = (now - millis(MINUTES_KEPT), limit(limits.rows_max.saturating_mul(MINUTES_FACTOR)));
    let minutes = connection.execute(DELETE_MINUTES, &[&old, &minutes_max]).await?
        + connection.execute(DELETE_MINUTES_OF_TENANTS, &[&old, &minutes_max]).await?;
    Ok(SweptAway { idempotency_keys, audit, minutes, resealed, ..SweptAway::default() })
}

/// An id lives as long as its event, whose day is dropped after this, or late; and if it is kept aside then, so is its id.
const DELETE_EXPIRED_KEYS: &str = "DELETE FROM idempotency_keys WHERE (tenant, kind, key) IN (
       SELECT k.tenant, k.kind, k.key FROM idempotency_keys k WHERE k.expires_at_ms <= $1
         AND (k.kind <> 'id' OR NOT EXISTS (SELECT 1 FROM events e WHERE e.slot = k.event_slot AND e.seq = k.event_seq))
       ORDER BY k.expires_at_ms LIMIT $2)";
const DELETE_AUDIT: &str = "DELETE FROM audit WHERE seq IN (
                              SELECT seq FROM (SELECT seq, at_ms FROM audit ORDER BY seq LIMIT $2) oldest WHERE at_ms <= $1)";
/// Whoever is still in doubt about one after an hour has given up long since.
const DELETE_COMMITS: &str = "DELETE FROM commits WHERE id IN (SELECT id FROM commits WHERE at < clock_timestamp() - interval '1 hour' ORDER BY at LIMIT $1)";
const DELETE_HANDED_OVER: &str = "DELETE FROM handed_over WHERE until_ms <= $1";

/// There are as many of them as endpoints that were busy, every minute: so they go in larger steps than what is read by people.
const DELETE_MINUTES: &str = "DELETE FROM minutes WHERE (endpoint, minute_ms) IN (
       SELECT endpoint, minute_ms FROM minutes WHERE minute_ms < $1 ORDER BY minute_ms LIMIT $2)";
const DELETE_MINUTES_OF_TENANTS: &str = "DELETE FROM minutes_of_tenants WHERE (tenant, minute_ms) IN (
       SELECT tenant, minute_ms FROM minutes_of_tenants WHERE minute_ms < $1 ORDER BY minute_ms LIMIT $2)";

/// Secrets that an earlier master key has sealed.
async fn reseal(database: &Database, connection: &Connection, limits: &Housekeeping) -> Result<u64, Problem> {
    let keyring = &database.options.keyring;
    if !keyring.has_previous() {
        return Ok(0);
    }
    let rows_max = limit(limits.rows_max.min(100));
    let mut count = 0;
    for row in connection.query(SELECT_TO_RESEAL, &[&keyring.current_id().as_bytes(), &rows_max]).await? {
        let id = EndpointId::from_bytes(row::bytes(&row, "id")?);
        if let Some(sealed) = secrets::reseal(keyring, id, row::column(&row, "sealed")?)? {
            connection.execute(RESEAL, &[&id.to_bytes().as_slice(), &sealed]).await?;
            count += 1;
        }
    }
    Ok(count)
}

/// Locked, because somebody may be writing new secrets.
const SELECT_TO_RESEAL: &str =
    "SELECT id, sealed FROM endpoints WHERE substr(sealed, 2, 8) <> $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED";
const RESEAL: &str = "UPDATE endpoints SET sealed = $2 WHERE id = $1";

async fn overdue(connection: &Connection, now: Timestamp, rows_max: usize) -> Result<Vec<Overdue>, Problem> {
    let mut found: Vec<Overdue> = Vec::new();
    let read = |why: OverdueReason| {
        move |row: &Row| {
            Ok::<_, Error>(Overdue {
                endpoint: EndpointId::from_bytes(row::bytes(row, "endpoint")?),
                delivery: DeliveryId::from_bytes(row::bytes(row, "id")?),
                seq: unsigned(row::column(row, "seq")?),
                why,
            })
        }
    };
    let expired = connection.query(SELECT_EXPIRED, &[&now.as_millis(), &limit(rows_max)]).await?;
    found.extend(expired.iter().map(read(OverdueReason::Expired)).collect::<Result<Vec<_>, _>>()?);
    if found.len() < rows_max {
        let deleted = connection.query(SELECT_OF_DELETED, &[&limit(rows_max - found.len())]).await?;
        found.extend(deleted.iter().map(read(OverdueReason::EndpointDeleted)).collect::<Result<Vec<_>, _>>()?);
    }
    if found.len() < rows_max {
        let stale = connection.query(SELECT_STALE, &[&now.as_millis(), &limit(rows_max - found.len())]).await?;
        found.extend(stale.iter().map(read(OverdueReason::Expired)).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(found)
}

const SELECT_EXPIRED: &str = "SELECT endpoint, id, seq FROM deliveries
     WHERE status = 'waiting' AND expires_at_ms IS NOT NULL AND expires_at_ms <= $1 ORDER BY expires_at_ms LIMIT $2";
/// By endpoint and queue, so that the backlog of those that are well is not read.
const SELECT_OF_DELETED: &str = "SELECT w.endpoint, w.id, w.seq FROM endpoints p CROSS JOIN LATERAL (
       (SELECT d.endpoint, d.id, d.seq FROM deliveries d
        WHERE d.endpoint = p.id AND d.status = 'waiting' AND NOT d.is_later AND d.ordering_key IS NULL LIMIT $1)
       UNION ALL
       (SELECT d.endpoint, d.id, d.seq FROM deliveries d
        WHERE d.endpoint = p.id AND d.status = 'waiting' AND d.is_later AND d.ordering_key IS NULL LIMIT $1)
       UNION ALL
       (SELECT d.endpoint, d.id, d.seq FROM deliveries d
        WHERE d.endpoint = p.id AND d.status = 'waiting' AND d.ordering_key IS NOT NULL LIMIT $1)) w
     WHERE p.deleted_at_ms IS NOT NULL LIMIT $1";
/// The oldest rows of each tenant that are older than its retention, and due for as long.
const SELECT_STALE: &str = "SELECT old.endpoint, old.id, old.seq FROM tenants t CROSS JOIN LATERAL (
       SELECT d.endpoint, d.id, d.seq FROM deliveries d
       WHERE d.tenant = t.id AND d.seq <= t.swept_to AND d.status = 'waiting' AND d.due_at_ms <= $1 - t.retention_ms
       ORDER BY d.tenant, d.seq LIMIT $2) old
     LIMIT $2";
