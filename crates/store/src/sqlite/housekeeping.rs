//! Forgetting, in small steps that publishing does not notice.

use posthaste_core::id::{DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, params};

use super::events::seqs_of_event;
use super::{SMALL, Sqlite, configuration, row};
use crate::columns::{limit, millis, unsigned};
use crate::housekeeping::MINUTES_FACTOR;
use crate::{Audit, Error, Housekeeping, MINUTES_KEPT, Overdue, OverdueReason, SweptAway, secrets};

impl Sqlite {
    pub(super) async fn sweep_away(&self, limits: Housekeeping) -> Result<SweptAway, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, _| {
            let now = store.clock_now();
            let mut swept = SweptAway::default();
            sweep_deliveries(connection, &limits, now, &mut swept)?;
            swept.events += sweep_events(connection, &limits, now)?;
            swept.idempotency_keys = deleted(
                connection,
                "DELETE FROM idempotency_keys WHERE (tenant, kind, key) IN (
                   SELECT tenant, kind, key FROM idempotency_keys WHERE expires_at_ms <= ?1 ORDER BY expires_at_ms LIMIT ?2)",
                now.as_millis(),
                &limits,
            )?;
            swept.audit = deleted(
                connection,
                "DELETE FROM audit WHERE seq IN (SELECT seq FROM audit WHERE at_ms <= ?1 ORDER BY seq LIMIT ?2)",
                now.as_millis() - millis(limits.audit_kept),
                &limits,
            )?;
            swept.minutes = sweep_minutes(connection, &limits, now)?;
            // What a leaver has not recorded by now it never may.
            connection.prepare_cached("DELETE FROM handed_over WHERE until_ms <= ?1")?.execute([now.as_millis()])?;
            swept.resealed = reseal(&store, connection, &limits)?;
            // Gives pages that are free back to the file system, a few at a time.
            connection.prepare_cached("PRAGMA incremental_vacuum(256)")?.query([])?.next()?;
            Ok(swept)
        })
        .await
    }

    pub(super) async fn overdue(&self, rows_max: usize) -> Result<Vec<Overdue>, Error> {
        let now = self.clock_now();
        self.read(move |connection| overdue(connection, now, rows_max)).await
    }

    pub(super) async fn erase(&self, tenant: Option<TenantId>, event: EventId, audit: Audit) -> Result<bool, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, _| {
            let now = store.clock_now();
            let erased = connection
                .prepare_cached(
                    "UPDATE events SET data = NULL, erased_at_ms = ?3
                     WHERE seq IN (SELECT seq FROM events WHERE id = ?2 AND (?1 IS NULL OR tenant = ?1)) AND data IS NOT NULL",
                )?
                .execute(params![tenant.as_ref().map(TenantId::as_str), event.as_str(), now.as_millis()])?;
            if erased > 0 {
                configuration::write_audit(connection, &audit, now)?;
            }
            Ok(erased > 0)
        })
        .await
    }

    pub(super) async fn close(&self) -> Result<(), Error> {
        let closed = self.0.writer.close().await;
        self.0.feeder.close();
        self.0.commander.close();
        closed
    }
}

fn deleted(connection: &Connection, sql: &str, before: i64, limits: &Housekeeping) -> Result<u64, Error> {
    let rows = connection.prepare_cached(sql)?.execute(params![before, limit(limits.rows_max)])?;
    Ok(rows as u64)
}

/// There are as many of them as endpoints that were busy, every minute: so they go in larger steps than what is read by people.
fn sweep_minutes(connection: &Connection, limits: &Housekeeping, now: Timestamp) -> Result<u64, Error> {
    let (before, rows_max) = (now.as_millis() - millis(MINUTES_KEPT), limit(limits.rows_max.saturating_mul(MINUTES_FACTOR)));
    let of_endpoints = connection
        .prepare_cached(
            "DELETE FROM minutes WHERE (endpoint, minute_ms) IN (
               SELECT endpoint, minute_ms FROM minutes WHERE minute_ms < ?1 ORDER BY minute_ms LIMIT ?2)",
        )?
        .execute(params![before, rows_max])?;
    let of_tenants = connection
        .prepare_cached(
            "DELETE FROM minutes_of_tenants WHERE (tenant, minute_ms) IN (
               SELECT tenant, minute_ms FROM minutes_of_tenants WHERE minute_ms < ?1 ORDER BY minute_ms LIMIT ?2)",
        )?
        .execute(params![before, rows_max])?;
    Ok((of_endpoints + of_tenants) as u64)
}

/// Goes through each tenant's deliveries from the oldest on, and remembers how far it has come. What still waits stays
/// behind; it ends one day, and then the tenant is gone through again.
fn sweep_deliveries(connection: &Connection, limits: &Housekeeping, now: Timestamp, swept: &mut SweptAway) -> Result<(), Error> {
    let mut tenants = connection.prepare_cached(
        "SELECT id, retention_ms, deleted_at_ms, swept_to FROM tenants t
         WHERE (SELECT d.created_at_ms FROM deliveries d WHERE d.tenant = t.id AND d.seq > t.swept_to ORDER BY d.seq LIMIT 1)
               <= CASE WHEN t.deleted_at_ms IS NULL THEN ?1 - t.retention_ms ELSE ?1 END
         LIMIT 20",
    )?;
    let due = row::all(tenants.query([now.as_millis()])?, |row| {
        let retention_ms: i64 = row::column(row, "retention_ms")?;
        let is_deleted = row::column::<Option<i64>>(row, "deleted_at_ms")?.is_some();
        let tenant: String = row::column(row, "id")?;
        let keep_ms = if is_deleted { 0 } else { retention_ms };
        Ok((tenant, keep_ms, is_deleted, row::column::<i64>(row, "swept_to")?))
    })?;
    for (tenant, keep_ms, is_deleted, swept_to) in due {
        let mut select = connection.prepare_cached(
            "SELECT seq, status, ended_at_ms, created_at_ms FROM deliveries WHERE tenant = ?1 AND seq > ?2
             ORDER BY seq LIMIT ?3",
        )?;
        let rows = row::all(select.query(params![tenant, swept_to, limit(limits.rows_max)])?, |row| {
            Ok(Old {
                seq: row::column(row, "seq")?,
                is_dead: row::text(row, "status")? == "dead",
                ended_at_ms: row::column(row, "ended_at_ms")?,
                created_at_ms: row::column(row, "created_at_ms")?,
            })
        })?;
        let mut reached = swept_to;
        for old in rows {
            if old.created_at_ms > now.as_millis() - keep_ms {
                break;
            }
            reached = old.seq;
            let kept_ms = if old.is_dead && !is_deleted { millis(limits.dead_letters_kept).max(keep_ms) } else { keep_ms };
            if old.ended_at_ms.is_some_and(|ended| ended <= now.as_millis() - kept_ms) {
                forget_delivery(connection, &old)?;
                swept.deliveries += 1;
            }
        }
        // Some were left behind and end later: begin anew once everything that is old enough has been looked at.
        connection.prepare_cached("UPDATE tenants SET swept_to = ?2 WHERE id = ?1")?.execute(params![tenant, reached])?;
    }
    begin_anew(connection, limits, now)
}

struct Old {
    seq: i64,
    is_dead: bool,
    ended_at_ms: Option<i64>,
    created_at_ms: i64,
}

fn forget_delivery(connection: &Connection, old: &Old) -> Result<(), Error> {
    connection.prepare_cached("DELETE FROM attempts WHERE delivery_seq = ?1")?.execute([old.seq])?;
    connection.prepare_cached("DELETE FROM deliveries WHERE seq = ?1")?.execute([old.seq])?;
    Ok(())
}

/// What was passed over because it still waited, or because a dead letter is kept longer, is looked at again once the
/// first of it has ended long enough ago.
fn begin_anew(connection: &Connection, limits: &Housekeeping, now: Timestamp) -> Result<(), Error> {
    connection
        .prepare_cached(
            "UPDATE tenants SET swept_to = 0 WHERE id IN (
               SELECT t.id FROM tenants t WHERE t.swept_to > 0 AND EXISTS (
                 SELECT 1 FROM (SELECT status, ended_at_ms FROM deliveries d WHERE d.tenant = t.id AND d.seq <= t.swept_to
                                ORDER BY d.seq LIMIT 100)
                 WHERE ended_at_ms <= ?1 - CASE WHEN t.deleted_at_ms IS NOT NULL THEN 0
                                                WHEN status = 'dead' THEN max(t.retention_ms, ?2) ELSE t.retention_ms END)
               LIMIT 20)",
        )?
        .execute(params![now.as_millis(), millis(limits.dead_letters_kept)])?;
    Ok(())
}

pub(super) const SELECT_OLD_EVENTS: &str = concat!(
    "SELECT e.seq, e.tenant, e.id FROM events e WHERE e.tenant = ?1 AND e.accepted_at_ms <= ?2 AND NOT EXISTS (",
    seqs_of_event!(),
    ") ORDER BY e.seq LIMIT ?3"
);

/// Events that are old enough and that no delivery needs any more, the oldest of each tenant first.
fn sweep_events(connection: &Connection, limits: &Housekeeping, now: Timestamp) -> Result<u64, Error> {
    let mut tenants = connection.prepare_cached(
        "SELECT id, CASE WHEN deleted_at_ms IS NULL THEN ?1 - retention_ms ELSE ?1 END AS before FROM tenants t
         WHERE (SELECT e.accepted_at_ms FROM events e WHERE e.tenant = t.id ORDER BY e.seq LIMIT 1)
               <= CASE WHEN t.deleted_at_ms IS NULL THEN ?1 - t.retention_ms ELSE ?1 END
         LIMIT 20",
    )?;
    let due = row::all(tenants.query([now.as_millis()])?, |row| {
        Ok((row::column::<String>(row, "id")?, row::column::<i64>(row, "before")?))
    })?;
    let mut select = connection.prepare_cached(SELECT_OLD_EVENTS)?;
    let mut old = Vec::new();
    for (tenant, before) in due {
        old.extend(row::all(select.query(params![tenant, before, limit(limits.rows_max)])?, |row| {
            Ok((row::column::<i64>(row, "seq")?, row::column::<String>(row, "tenant")?, row::column::<String>(row, "id")?))
        })?);
    }
    for (seq, tenant, id) in &old {
        connection.prepare_cached("DELETE FROM events WHERE seq = ?1")?.execute([seq])?;
        connection
            .prepare_cached("DELETE FROM idempotency_keys WHERE tenant = ?1 AND kind = 'id' AND key = ?2")?
            .execute(params![tenant, id])?;
    }
    Ok(old.len() as u64)
}

/// Secrets that an earlier master key has sealed.
fn reseal(store: &Sqlite, connection: &Connection, limits: &Housekeeping) -> Result<u64, Error> {
    let keyring = &store.0.options.keyring;
    if !keyring.has_previous() {
        return Ok(0);
    }
    let mut select = connection.prepare_cached("SELECT id, sealed FROM endpoints WHERE substr(sealed, 2, 8) <> ?1 LIMIT ?2")?;
    let old = row::all(select.query(params![keyring.current_id().as_bytes(), limit(limits.rows_max.min(100))])?, |row| {
        Ok((EndpointId::from_bytes(row::column(row, "id")?), row::column::<Vec<u8>>(row, "sealed")?))
    })?;
    let mut count = 0;
    for (id, sealed) in old {
        if let Some(sealed) = secrets::reseal(keyring, id, &sealed)? {
            connection.prepare_cached("UPDATE endpoints SET sealed = ?2 WHERE id = ?1")?.execute(params![id.to_bytes(), sealed])?;
            count += 1;
        }
    }
    Ok(count)
}

/// By endpoint, so that the backlog of those that are well is not read: a plain join would begin with the backlog.
const SELECT_OF_DELETED: &str =
    "SELECT d.endpoint, d.id, d.seq FROM endpoints p CROSS JOIN deliveries d INDEXED BY deliveries_queued ON d.endpoint = p.id
     WHERE p.deleted_at_ms IS NOT NULL AND d.status = 'waiting' LIMIT ?1";

/// The oldest rows of each tenant that are older than its retention, and due for as long. By tenant, for the same reason.
const SELECT_STALE: &str =
    "SELECT d.endpoint, d.id, d.seq FROM tenants t CROSS JOIN deliveries d INDEXED BY deliveries_by_tenant ON d.tenant = t.id
     WHERE d.seq <= t.swept_to AND d.status = 'waiting' AND d.due_at_ms <= ?1 - t.retention_ms LIMIT ?2";

fn overdue(connection: &Connection, now: Timestamp, rows_max: usize) -> Result<Vec<Overdue>, Error> {
    let mut found = Vec::new();
    let read = |why: OverdueReason| {
        move |row: &rusqlite::Row<'_>| {
            Ok(Overdue {
                endpoint: EndpointId::from_bytes(row::column(row, "endpoint")?),
                delivery: DeliveryId::from_bytes(row::column(row, "id")?),
                seq: unsigned(row::column(row, "seq")?),
                why,
            })
        }
    };
    let mut expired = connection.prepare_cached(
        "SELECT endpoint, id, seq FROM deliveries INDEXED BY deliveries_expiring
         WHERE status = 'waiting' AND expires_at_ms IS NOT NULL AND expires_at_ms <= ?1 ORDER BY expires_at_ms LIMIT ?2",
    )?;
    found.extend(row::all(expired.query(params![now.as_millis(), limit(rows_max)])?, read(OverdueReason::Expired))?);
    if found.len() < rows_max {
        let mut deleted = connection.prepare_cached(SELECT_OF_DELETED)?;
        let room = limit(rows_max - found.len());
        found.extend(row::all(deleted.query([room])?, read(OverdueReason::EndpointDeleted))?);
    }
    if found.len() < rows_max {
        let mut stale = connection.prepare_cached(SELECT_STALE)?;
        let room = limit(rows_max - found.len());
        found.extend(row::all(stale.query(params![now.as_millis(), room])?, read(OverdueReason::Expired))?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is asked every second, whatever waits.
    #[test]
    fn what_is_overdue_is_found_without_reading_the_backlog() {
        let mut connection = Connection::open_in_memory().expect("a database");
        super::super::migrations::run(&mut connection).expect("a schema");
        for select in [SELECT_OF_DELETED, SELECT_STALE] {
            let steps = row::plan(&connection, select);
            assert!(steps.iter().any(|step| step.starts_with("SEARCH d USING INDEX")), "{select}\n{steps:?}");
        }
    }
}
