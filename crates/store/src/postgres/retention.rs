//! Deletes deliveries that are older than their tenant's retention, and the events that do not wait for their day to be dropped.
//!
//! Tenants take turns. Each tenant's rows are walked in their order, and how far that has come is stored with the tenant; what
//! cannot be deleted yet is noted in `retained` with the time when to look again. Every statement reads a bounded number of rows.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_core::time::Timestamp;
use tokio_postgres::Row;

use super::connection::{Connection, Problem};
use super::row;
use super::slots::{Slot, class_durations, kept_ms};
use crate::columns::{duration, limit, millis, unsigned};
use crate::housekeeping::{DueTenant, RetentionDecision, TENANTS_PER_LOOK, TenantKeeping, fate, standing};
use crate::{Error, Housekeeping};

/// Which tenants are due, and the last one that was looked at if there are more.
pub(super) struct LookedForDue {
    pub(super) due: Vec<DueTenant>,
    pub(super) last: Option<String>,
}

fn due_of(rows: &[Row], now: Timestamp) -> Result<LookedForDue, Error> {
    let mut due = Vec::new();
    for row in rows {
        let Some(seq) = row::column::<Option<i64>>(row, "seq")? else { continue };
        if let Some(behind) = keeping(row)?.overdue_for(seq, row::timestamp(row, "at_ms")?, now) {
            due.push(DueTenant { id: row::text(row, "id")?.to_owned(), behind });
        }
    }
    let last = rows.last().filter(|_| rows.len() >= TENANTS_PER_LOOK).map(|row| row::text(row, "id").map(str::to_owned));
    Ok(LookedForDue { due, last: last.transpose()? })
}

/// A deleted tenant may be created again at any moment: only the numbers of its rows tell which of them were there before.
fn keeping(row: &Row) -> Result<TenantKeeping, Error> {
    Ok(TenantKeeping {
        retention: duration(row::column(row, "retention_ms")?)?,
        is_deleted: false,
        deleted_to: row::column(row, "deleted_to")?,
        swept_to: row::column(row, "swept_to")?,
    })
}

pub(super) async fn look_for_due(connection: &Connection, after: &str, now: Timestamp) -> Result<LookedForDue, Problem> {
    Ok(due_of(&connection.query(SELECT_TENANTS, &[&after, &limit(TENANTS_PER_LOOK)]).await?, now)?)
}

pub(super) async fn look_for_due_events(connection: &Connection, after: &str, now: Timestamp) -> Result<LookedForDue, Problem> {
    let classes = class_durations().to_vec();
    Ok(due_of(&connection.query(SELECT_TENANTS_BY_EVENTS, &[&after, &limit(TENANTS_PER_LOOK), &classes]).await?, now)?)
}

const SELECT_TENANTS: &str = "SELECT t.id, t.retention_ms, t.deleted_to, t.swept_to, d.seq, d.created_at_ms AS at_ms FROM (
       SELECT id, retention_ms, deleted_to, swept_to FROM tenants WHERE id > $1 ORDER BY id LIMIT $2
     ) t LEFT JOIN LATERAL (
       SELECT seq, created_at_ms FROM deliveries WHERE tenant = t.id AND seq > t.swept_to ORDER BY seq LIMIT 1
     ) d ON TRUE ORDER BY t.id";
/// Of tenants with a retention that is no class, and of those that were deleted. The others lose their events with their days.
const SELECT_TENANTS_BY_EVENTS: &str =
    "SELECT t.id, t.retention_ms, t.deleted_to, t.swept_to, e.seq, e.accepted_at_ms AS at_ms FROM (
       SELECT id, retention_ms, events_deleted_to AS deleted_to, events_swept_to AS swept_to FROM tenants
       WHERE id > $1 ORDER BY id LIMIT $2
     ) t LEFT JOIN LATERAL (
       SELECT seq, accepted_at_ms FROM events
       WHERE tenant = t.id AND seq > t.swept_to AND (t.retention_ms <> ALL($3::bigint[]) OR t.swept_to < t.deleted_to)
       ORDER BY seq LIMIT 1
     ) e ON TRUE ORDER BY t.id";

/// Rows that were deleted.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Deleted {
    pub(super) deliveries: u64,
    pub(super) events: u64,
}

#[derive(Default)]
pub(super) struct Walked {
    pub(super) deleted: Deleted,
    /// Tenants that have more to delete.
    pub(super) more: Vec<DueTenant>,
}

/// Walks on through the deliveries of these tenants, so many rows of each.
pub(super) async fn walk(
    connection: &Connection,
    tenants: &[DueTenant],
    quantum: usize,
    dead_letters_kept: Duration,
    now: Timestamp,
) -> Result<Walked, Problem> {
    let mut walked = Walked::default();
    if tenants.is_empty() {
        return Ok(walked);
    }
    let ids: Vec<&str> = tenants.iter().map(|tenant| tenant.id.as_str()).collect();
    let rows = connection.query(SELECT_OLD, &[&ids, &limit(quantum)]).await?;
    let mut decided = Decided::default();
    let mut by_tenant: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in &rows {
        by_tenant.entry(row::text(row, "tenant")?).or_default().push(row);
    }
    let mut reached: (Vec<&str>, Vec<i64>, Vec<i64>) = Default::default();
    for (tenant, rows) in by_tenant {
        let mut swept_to = None;
        let mut more = None;
        let is_full = rows.len() >= quantum;
        for old in rows {
            let (keeping, seq) = (keeping(old)?, row::column(old, "seq")?);
            // Later ones are younger.
            more = keeping.overdue_for(seq, row::timestamp(old, "created_at_ms")?, now);
            if more.is_none() {
                break;
            }
            decided.decide(old, &keeping, dead_letters_kept, now)?;
            swept_to = Some((keeping.swept_to, seq));
        }
        if let Some((before, to)) = swept_to {
            reached.0.push(tenant);
            reached.1.push(before);
            reached.2.push(to);
        }
        if let Some(behind) = more.filter(|_| is_full) {
            walked.more.push(DueTenant { id: tenant.to_owned(), behind });
        }
    }
    walked.deleted = decided.carry_out(connection).await?;
    if !reached.0.is_empty() {
        connection.execute(SET_SWEPT, &[&reached.0, &reached.1, &reached.2]).await?;
    }
    Ok(walked)
}

const SELECT_OLD: &str =
    "SELECT t.retention_ms, t.deleted_to, t.swept_to, t.id AS tenant, d.seq, d.event_slot, d.event_seq, d.status,
            d.due_at_ms, d.ended_at_ms, d.created_at_ms
     FROM unnest($1::text[]) AS turn (id) JOIN tenants t ON t.id = turn.id CROSS JOIN LATERAL (
       SELECT seq, event_slot, event_seq, status, due_at_ms, ended_at_ms, created_at_ms FROM deliveries
       WHERE tenant = t.id AND seq > t.swept_to ORDER BY seq LIMIT $2) d
     ORDER BY t.id, d.seq";
/// Unless the tenant was deleted in the meantime, which begins at the front.
const SET_SWEPT: &str =
    "UPDATE tenants t SET swept_to = reached.to FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS reached (id, before, \"to\")
     WHERE t.id = reached.id AND t.swept_to = reached.before";

pub(super) struct LookedAgain {
    pub(super) deleted: Deleted,
    pub(super) behind: Duration,
    pub(super) is_cut: bool,
}

/// Looks again at deliveries that were passed over.
pub(super) async fn look_again(connection: &Connection, limits: &Housekeeping, now: Timestamp) -> Result<LookedAgain, Problem> {
    let rows = connection.query(SELECT_RETAINED, &[&now.as_millis(), &limit(limits.rows_max)]).await?;
    let behind = match rows.first() {
        Some(first) => now.since(row::timestamp(first, "look_again_at_ms")?),
        None => Duration::ZERO,
    };
    let mut decided = Decided::default();
    for old in &rows {
        if row::column::<Option<i64>>(old, "seq")?.is_some() {
            decided.decide(old, &keeping(old)?, limits.dead_letters_kept, now)?;
        } else {
            decided.gone.push(row::column(old, "delivery_seq")?);
        }
    }
    let deleted = decided.carry_out(connection).await?;
    Ok(LookedAgain { deleted, behind, is_cut: rows.len() >= limits.rows_max })
}

/// Without a tenant there is nobody to keep it for.
const SELECT_RETAINED: &str = "SELECT r.delivery_seq, r.look_again_at_ms, coalesce(t.retention_ms, 0) AS retention_ms,
            coalesce(t.deleted_to, r.delivery_seq) AS deleted_to, coalesce(t.swept_to, 0) AS swept_to,
            d.seq, d.event_slot, d.event_seq, d.status, d.due_at_ms, d.ended_at_ms, d.created_at_ms
     FROM (SELECT delivery_seq, look_again_at_ms FROM retained WHERE look_again_at_ms <= $1
           ORDER BY look_again_at_ms, delivery_seq LIMIT $2) r
     LEFT JOIN deliveries d ON d.seq = r.delivery_seq LEFT JOIN tenants t ON t.id = d.tenant
     ORDER BY r.look_again_at_ms, r.delivery_seq";

/// What is to be done with rows that were looked at.
#[derive(Default)]
struct Decided {
    deliveries: Vec<i64>,
    /// Their events.
    events: Vec<i64>,
    /// Those of their events that do not wait for their day to be dropped.
    early_slots: Vec<Slot>,
    early_events: Vec<i64>,
    retained: Vec<i64>,
    look_again: Vec<i64>,
    is_overdue: Vec<bool>,
    /// Noted as retained, and deleted by somebody else.
    gone: Vec<i64>,
}

impl Decided {
    fn decide(&mut self, old: &Row, keeping: &TenantKeeping, dead_letters_kept: Duration, now: Timestamp) -> Result<(), Error> {
        let seq = row::column(old, "seq")?;
        let standing = standing(row::text(old, "status")?, row::column(old, "due_at_ms")?, row::column(old, "ended_at_ms")?)?;
        let kept = keeping.of(seq, dead_letters_kept);
        match fate(standing, kept, now) {
            RetentionDecision::Delete => {
                let (slot, event): (Slot, i64) = (row::column(old, "event_slot")?, row::column(old, "event_seq")?);
                self.deliveries.push(seq);
                self.events.push(event);
                if millis(kept.retention) < kept_ms(slot) {
                    self.early_slots.push(slot);
                    self.early_events.push(event);
                }
            }
            RetentionDecision::Keep { look_again, is_overdue } => {
                self.retained.push(seq);
                self.look_again.push(look_again.as_millis());
                self.is_overdue.push(is_overdue);
            }
        }
        Ok(())
    }

    /// Attempts go with the days in which they were made; only what was kept aside for these goes now.
    async fn carry_out(mut self, connection: &Connection) -> Result<Deleted, Problem> {
        let mut deleted = Deleted::default();
        if !self.retained.is_empty() {
            connection.execute(RETAIN, &[&self.retained, &self.look_again, &self.is_overdue]).await?;
        }
        self.gone.extend(&self.deliveries);
        if !self.gone.is_empty() {
            connection.execute(DELETE_RETAINED, &[&self.gone]).await?;
        }
        if self.deliveries.is_empty() {
            return Ok(deleted);
        }
        connection.execute(DELETE_KEPT_ATTEMPTS, &[&self.deliveries]).await?;
        deleted.deliveries = connection.execute(DELETE_DELIVERIES, &[&self.deliveries]).await?;
        self.events.sort_unstable();
        self.events.dedup();
        connection.execute(DELETE_KEPT_EVENTS, &[&self.events]).await?;
        if !self.early_events.is_empty() {
            self.early_slots.sort_unstable();
            self.early_slots.dedup();
            let early = connection.query_one(DELETE_EARLY_EVENTS, &[&self.early_slots, &self.early_events]).await?;
            deleted.events = unsigned(row::column(&early, "deleted")?);
        }
        Ok(deleted)
    }
}

const RETAIN: &str = "INSERT INTO retained (delivery_seq, look_again_at_ms, is_overdue)
     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::boolean[])
     ON CONFLICT (delivery_seq) DO UPDATE SET look_again_at_ms = excluded.look_again_at_ms, is_overdue = excluded.is_overdue";
const DELETE_RETAINED: &str = "DELETE FROM retained WHERE delivery_seq = ANY($1)";
const DELETE_KEPT_ATTEMPTS: &str = "DELETE FROM attempts_kept WHERE delivery_seq = ANY($1)";
const DELETE_DELIVERIES: &str = "DELETE FROM deliveries WHERE seq = ANY($1) AND status <> 'waiting'";

/// The idempotency rows of `gone`: keys, and ids that publishers chose.
macro_rules! delete_idempotency_keys {
    () => {
        "DELETE FROM idempotency_keys i USING (
           SELECT tenant, 'id' AS kind, id AS key, seq FROM gone
           UNION ALL SELECT tenant, 'key', idempotency_key, seq FROM gone WHERE idempotency_key IS NOT NULL) g
         WHERE i.tenant = g.tenant AND i.kind = g.kind AND i.key = g.key AND i.event_seq = g.seq"
    };
}
const DELETE_KEPT_EVENTS: &str = concat!(
    "WITH gone AS (
       DELETE FROM events_kept k WHERE k.seq = ANY($1) AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_seq = k.seq)
       RETURNING k.tenant, k.id, k.idempotency_key, k.seq) ",
    delete_idempotency_keys!()
);
const DELETE_EARLY_EVENTS: &str = concat!(
    "WITH gone AS (
       DELETE FROM events e WHERE e.slot = ANY($1) AND e.seq = ANY($2) AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_seq = e.seq)
       RETURNING e.tenant, e.id, e.idempotency_key, e.seq
     ), keys AS (",
    delete_idempotency_keys!(),
    ") SELECT count(*) AS deleted FROM gone"
);
/// What was kept aside for a retention that was raised, and that no delivery needs.
pub(super) const DELETE_OLD_KEPT_EVENTS: &str = concat!(
    "WITH looked_at AS (
       SELECT k.seq, t.id IS NULL OR k.seq <= t.events_deleted_to OR k.accepted_at_ms <= $1 - t.retention_ms AS is_old
       FROM (SELECT seq, tenant, accepted_at_ms FROM events_kept WHERE seq > $2 ORDER BY seq LIMIT $3) k
       LEFT JOIN tenants t ON t.id = k.tenant
     ), gone AS (
       DELETE FROM events_kept k WHERE k.seq IN (SELECT seq FROM looked_at WHERE is_old)
         AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_seq = k.seq)
       RETURNING k.tenant, k.id, k.idempotency_key, k.seq
     ), keys AS (",
    delete_idempotency_keys!(),
    ") SELECT (SELECT count(*) FROM looked_at) AS looked_at, (SELECT max(seq) FROM looked_at) AS last, (SELECT count(*) FROM gone) AS deleted"
);

/// Walks on through the events of these tenants. Those that have deliveries go with the last of them.
pub(super) async fn walk_events(
    connection: &Connection,
    tenants: &[DueTenant],
    quantum: usize,
    now: Timestamp,
) -> Result<Walked, Problem> {
    let mut walked = Walked::default();
    let ids: Vec<&str> = tenants.iter().map(|tenant| tenant.id.as_str()).collect();
    let rows = connection.query(SELECT_OLD_EVENTS, &[&ids, &limit(quantum)]).await?;
    let mut by_tenant: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in &rows {
        by_tenant.entry(row::text(row, "tenant")?).or_default().push(row);
    }
    let (mut slots, mut seqs): (Vec<Slot>, Vec<i64>) = Default::default();
    let mut reached: (Vec<&str>, Vec<i64>, Vec<i64>) = Default::default();
    for (tenant, rows) in by_tenant {
        let mut swept_to = None;
        let mut more = None;
        let is_full = rows.len() >= quantum;
        for old in rows {
            let (keeping, seq) = (keeping(old)?, row::column(old, "seq")?);
            more = keeping.overdue_for(seq, row::timestamp(old, "accepted_at_ms")?, now);
            if more.is_none() {
                break;
            }
            if !row::column::<bool>(old, "has_deliveries")? {
                slots.push(row::column(old, "slot")?);
                seqs.push(seq);
            }
            swept_to = Some((keeping.swept_to, seq));
        }
        if let Some((before, to)) = swept_to {
            reached.0.push(tenant);
            reached.1.push(before);
            reached.2.push(to);
        }
        if let Some(behind) = more.filter(|_| is_full) {
            walked.more.push(DueTenant { id: tenant.to_owned(), behind });
        }
    }
    if !seqs.is_empty() {
        slots.sort_unstable();
        slots.dedup();
        let deleted = connection.query_one(DELETE_EARLY_EVENTS, &[&slots, &seqs]).await?;
        walked.deleted.events = unsigned(row::column(&deleted, "deleted")?);
    }
    if !reached.0.is_empty() {
        connection.execute(SET_EVENTS_SWEPT, &[&reached.0, &reached.1, &reached.2]).await?;
    }
    Ok(walked)
}

const SELECT_OLD_EVENTS: &str =
    "SELECT t.retention_ms, t.events_deleted_to AS deleted_to, t.events_swept_to AS swept_to, t.id AS tenant,
            e.slot, e.seq, e.accepted_at_ms, EXISTS (SELECT 1 FROM deliveries d WHERE d.event_seq = e.seq) AS has_deliveries
     FROM unnest($1::text[]) AS turn (id) JOIN tenants t ON t.id = turn.id CROSS JOIN LATERAL (
       SELECT slot, seq, accepted_at_ms FROM events WHERE tenant = t.id AND seq > t.events_swept_to ORDER BY seq LIMIT $2) e
     ORDER BY t.id, e.seq";
const SET_EVENTS_SWEPT: &str = "UPDATE tenants t SET events_swept_to = reached.to
     FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS reached (id, before, \"to\")
     WHERE t.id = reached.id AND t.events_swept_to = reached.before";
