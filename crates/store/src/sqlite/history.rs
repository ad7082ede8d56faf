//! What has become of events and deliveries, for people who ask. Pages look at a bounded number of rows.

use posthaste_core::delivery::Timings;
use posthaste_core::event::EventType;
use posthaste_core::id::{AttemptId, DeliveryId, EndpointId, EventId, ReplayId, TenantId};
use posthaste_core::scheduler::Seq;
use posthaste_core::text::{IdempotencyKey, OrderingKey, Version};
use rusqlite::{Connection, Row, ToSql, named_params, params};

use super::events::seqs_of_event;
use super::lanes::{place, queue};
use super::{Sqlite, configuration, lanes, row};
use crate::columns::{StateColumns, checked_data, duration, labels, limit, outcome, signed, state, unsigned};
use crate::history::{SCAN_ROWS_MAX, cursor_of_dead, read_cursor_of_dead, read_cursor_of_seq};
use crate::{
    AttemptRecord, Cursor, DeliveryQuery, DeliveryRow, EndpointVersion, Error, EventQuery, EventRow, Page, RowsAfter, StatusFilter,
    endpoint_versions,
};

impl Sqlite {
    pub(super) async fn delivery(&self, tenant: Option<TenantId>, id: DeliveryId) -> Result<Option<DeliveryRow>, Error> {
        self.read(move |connection| find(connection, tenant.as_ref(), id)).await
    }

    pub(super) async fn deliveries(&self, query: DeliveryQuery) -> Result<Page<DeliveryRow>, Error> {
        self.read(move |connection| {
            let before = read_cursor_of_seq(query.before)?;
            // The most selective index that there is; the rest is filtered, over a bounded number of rows.
            let (filter, value): (&str, Box<dyn ToSql>) = match (&query.endpoint, &query.tenant) {
                (_, _) if query.event.is_some() => return of_event(connection, &query, before),
                (Some(endpoint), _) => ("endpoint = :value AND", Box::new(endpoint.to_bytes())),
                (None, Some(tenant)) => ("tenant = :value AND", Box::new(tenant.as_str().to_owned())),
                (None, None) => (":value IS NULL AND", Box::new(rusqlite::types::Null)),
            };
            let select = format!(
                "{SELECT} WHERE d.seq IN (SELECT seq FROM deliveries WHERE {filter} seq < :before ORDER BY seq DESC LIMIT :scan)
                 ORDER BY d.seq DESC"
            );
            let mut select = connection.prepare_cached(&select)?;
            let rows = select.query(named_params! {
                ":value": value,
                ":before": before,
                ":scan": limit(SCAN_ROWS_MAX.max(query.limit)),
            })?;
            page(rows, &query, |row| Cursor::from(row.seq))
        })
        .await
    }

    pub(super) async fn rows_after(&self, query: RowsAfter) -> Result<Vec<Seq>, Error> {
        self.read(move |connection| {
            let filter = match (&query.endpoint, &query.tenant) {
                (Some(_), _) => "endpoint = :endpoint AND (:tenant IS NULL OR tenant = :tenant) AND",
                (None, Some(_)) => ":endpoint IS NULL AND tenant = :tenant AND",
                (None, None) => ":endpoint IS NULL AND :tenant IS NULL AND",
            };
            let select = format!("SELECT seq FROM deliveries WHERE {filter} seq > :after ORDER BY seq LIMIT :limit");
            let mut select = connection.prepare_cached(&select)?;
            let rows = select.query(named_params! {
                ":endpoint": query.endpoint.map(EndpointId::to_bytes),
                ":tenant": query.tenant.as_ref().map(TenantId::as_str),
                ":after": signed(query.after),
                ":limit": limit(query.limit),
            })?;
            row::all(rows, |row| Ok(unsigned(row::column(row, "seq")?)))
        })
        .await
    }

    pub(super) async fn deliveries_at(&self, rows: Vec<Seq>) -> Result<Vec<DeliveryRow>, Error> {
        self.read(move |connection| {
            let mut select = connection.prepare_cached(&format!("{SELECT} WHERE d.seq = ?1"))?;
            let mut found = Vec::with_capacity(rows.len());
            for seq in rows {
                found.extend(row::first(select.query([signed(seq)])?, delivery)?);
            }
            Ok(found)
        })
        .await
    }

    pub(super) async fn dead_letters(&self, query: DeliveryQuery) -> Result<Page<DeliveryRow>, Error> {
        self.read(move |connection| {
            let (at, seq) = read_cursor_of_dead(query.before)?;
            let (index, filter) = match &query.tenant {
                Some(_) => ("deliveries_dead_by_tenant", "tenant = :tenant AND"),
                None => ("deliveries_dead", ":tenant IS NULL AND"),
            };
            let select = format!(
                "{SELECT} WHERE d.seq IN (
                   SELECT seq FROM deliveries INDEXED BY {index}
                   WHERE {filter} dead_reason IS NOT NULL AND replayed_as IS NULL AND (ended_at_ms, seq) < (:at, :seq)
                   ORDER BY ended_at_ms DESC, seq DESC LIMIT :scan)
                 ORDER BY d.ended_at_ms DESC, d.seq DESC"
            );
            let mut select = connection.prepare_cached(&select)?;
            let rows = select.query(named_params! {
                ":tenant": query.tenant.as_ref().map(TenantId::as_str),
                ":at": at,
                ":seq": seq,
                ":scan": limit(SCAN_ROWS_MAX.max(query.limit)),
            })?;
            page(rows, &query, cursor_of_dead)
        })
        .await
    }

    pub(super) async fn attempts(&self, delivery: DeliveryId) -> Result<Vec<AttemptRecord>, Error> {
        self.read(move |connection| {
            let Some(seq) = seq_of(connection, delivery)? else { return Ok(vec![]) };
            let mut select = connection.prepare_cached("SELECT * FROM attempts WHERE delivery_seq = ?1 ORDER BY number")?;
            row::all(select.query([seq])?, attempt)
        })
        .await
    }

    pub(super) async fn endpoint_versions(&self, endpoint: EndpointId, versions: Vec<u64>) -> Result<Vec<EndpointVersion>, Error> {
        let store = self.clone();
        self.read(move |connection| {
            let Some(present) = configuration::present_version(connection, &store.0.options.keyring, endpoint)? else {
                return Ok(vec![]);
            };
            let mut select = connection.prepare_cached(SELECT_VERSION)?;
            let mut found = Vec::with_capacity(versions.len());
            for version in versions {
                let earlier = row::first(select.query(params![endpoint.to_bytes(), signed(version)])?, |row| {
                    let (format, names) = (row::text(row, "payload_format")?, row::text(row, "header_names")?);
                    endpoint_versions::read(version, row::column(row, "url")?, format, names)
                })?;
                found.push(earlier.unwrap_or_else(|| EndpointVersion { version, ..present.clone() }));
            }
            Ok(found)
        })
        .await
    }

    pub(super) async fn event(&self, tenant: Option<TenantId>, id: EventId) -> Result<Option<EventRow>, Error> {
        self.read(move |connection| {
            // Of an id that was used again, after its tenant was deleted, the newest is meant.
            let by_tenant = "SELECT * FROM events WHERE tenant = ?1 AND id = ?2 ORDER BY seq DESC LIMIT 1";
            // Whoever may see all tenants names one where the same id was chosen twice.
            let of_all = "SELECT * FROM events WHERE ?1 IS NULL AND id = ?2 LIMIT 1";
            let select = if tenant.is_some() { by_tenant } else { of_all };
            find_event(connection, select, tenant.as_ref(), &id)
        })
        .await
    }

    pub(super) async fn tenants_of_event(&self, id: EventId) -> Result<Vec<TenantId>, Error> {
        self.read(move |connection| {
            let mut select =
                connection.prepare_cached("SELECT DISTINCT tenant FROM events WHERE id = ?1 ORDER BY tenant LIMIT 2")?;
            row::all(select.query([id.as_str()])?, |row| row::parsed(row, "tenant", TenantId::parse))
        })
        .await
    }

    /// The event that has this id in the present tenant, not in a deleted one of the same name.
    pub(super) async fn published_event(&self, tenant: TenantId, id: EventId) -> Result<Option<EventRow>, Error> {
        self.read(move |connection| {
            let select = "SELECT e.* FROM tenants t CROSS JOIN events e ON e.tenant = t.id AND e.id = ?2 AND e.seq >= t.first_event
                          WHERE t.id = ?1 AND t.deleted_at_ms IS NULL ORDER BY e.seq DESC LIMIT 1";
            find_event(connection, select, Some(&tenant), &id)
        })
        .await
    }

    pub(super) async fn events(&self, query: EventQuery) -> Result<Page<EventRow>, Error> {
        self.read(move |connection| {
            let before = read_cursor_of_seq(query.before)?;
            let by_tenant = "SELECT * FROM events WHERE tenant = :tenant AND seq < :before ORDER BY seq DESC LIMIT :scan";
            let of_all = "SELECT * FROM events WHERE :tenant IS NULL AND seq < :before ORDER BY seq DESC LIMIT :scan";
            let mut select = connection.prepare_cached(if query.tenant.is_some() { by_tenant } else { of_all })?;
            let mut rows = select.query(named_params! {
                ":tenant": query.tenant.as_ref().map(TenantId::as_str),
                ":before": before,
                ":scan": limit(SCAN_ROWS_MAX.max(query.limit)),
            })?;
            let (mut found, mut scanned, mut last) = (Vec::new(), 0, None);
            while let Some(row) = rows.next()? {
                scanned += 1;
                last = Some(Cursor::from(unsigned(row::column(row, "seq")?)));
                let event = event_row(row)?;
                if query.covers(&event) {
                    found.push(event);
                    if found.len() >= query.limit {
                        return Ok(Page { rows: found, next: last });
                    }
                }
            }
            let is_cut = scanned >= SCAN_ROWS_MAX.max(query.limit);
            Ok(Page { rows: found, next: last.filter(|_| is_cut) })
        })
        .await
    }
}

/// The configuration that a version had, if it is not the present one.
const SELECT_VERSION: &str = "SELECT url, payload_format, header_names FROM endpoint_versions
                              WHERE endpoint = ?1 AND last_version >= ?2 ORDER BY last_version LIMIT 1";

pub(super) const SELECT: &str = concat!(
    "SELECT d.*, coalesce((
         SELECT v.url FROM endpoint_versions v WHERE v.endpoint = d.endpoint AND v.last_version >= d.last_endpoint_version
         ORDER BY v.last_version LIMIT 1), p.url) AS url, r.id AS replay_of_id, s.id AS replayed_as_id,
       d.ordering_key IS NULL OR NOT EXISTS (
         SELECT 1 FROM deliveries o INDEXED BY deliveries_queued
         WHERE o.endpoint = d.endpoint AND o.status = 'waiting' AND ",
    queue!("o."),
    " = 6 AND ",
    place!("o."),
    // The plus: compared as they are, as the index has them.
    " = +d.ordering_key AND o.seq < d.seq) AS is_head_of_key
     FROM deliveries d
     JOIN endpoints p ON p.id = d.endpoint
     LEFT JOIN deliveries r ON r.seq = d.replay_of AND r.tenant = d.tenant
     LEFT JOIN deliveries s ON s.seq = d.replayed_as AND s.tenant = d.tenant"
);

pub(super) fn by_id(connection: &Connection, id: DeliveryId) -> Result<Option<DeliveryRow>, Error> {
    find(connection, None, id)
}

fn find(connection: &Connection, tenant: Option<&TenantId>, id: DeliveryId) -> Result<Option<DeliveryRow>, Error> {
    let Some(seq) = seq_of(connection, id)? else { return Ok(None) };
    let mut select = connection.prepare_cached(&format!("{SELECT} WHERE d.seq = ?1 AND (?2 IS NULL OR d.tenant = ?2)"))?;
    row::first(select.query(params![seq, tenant.map(TenantId::as_str)])?, delivery)
}

/// Whoever writes gives ids out in the order of the rows, over restarts and whatever the clock does: each look halves what is left.
fn seq_of(connection: &Connection, id: DeliveryId) -> Result<Option<i64>, Error> {
    let mut ends = connection.prepare_cached("SELECT (SELECT min(seq) FROM deliveries), (SELECT max(seq) FROM deliveries)")?;
    let (Some(mut low), Some(mut high)) = ends.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))? else { return Ok(None) };
    let mut look = connection.prepare_cached("SELECT seq, id FROM deliveries WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq LIMIT 1")?;
    while low <= high {
        let middle = low + (high - low) / 2;
        let found: Option<(i64, [u8; 16])> =
            row::first(look.query([middle, high])?, |row| Ok((row::column(row, "seq")?, row::column(row, "id")?)))?;
        match found {
            Some((seq, other)) if other == id.to_bytes() => return Ok(Some(seq)),
            Some((seq, other)) if other < id.to_bytes() => low = seq + 1,
            // It is before the middle, or nowhere.
            Some(_) | None => high = middle - 1,
        }
    }
    Ok(None)
}

/// The largest id there is.
pub(super) fn last_id(connection: &Connection) -> Result<Option<DeliveryId>, Error> {
    let mut select = connection.prepare_cached("SELECT id FROM deliveries ORDER BY seq DESC LIMIT 1")?;
    row::first(select.query([])?, |row| Ok(DeliveryId::from_bytes(row::column(row, "id")?)))
}

/// Runs a query for one event by its tenant and id.
fn find_event(connection: &Connection, select: &str, tenant: Option<&TenantId>, id: &EventId) -> Result<Option<EventRow>, Error> {
    let mut select = connection.prepare_cached(select)?;
    let found = row::first(select.query(params![tenant.map(TenantId::as_str), id.as_str()])?, |row| {
        let mut found = event_row(row)?;
        let digest: [u8; 32] = row::column(row, "digest")?;
        let data = row::optional_text(row, "data")?;
        found.data = data.map(|data| checked_data(data, &digest)).transpose()?;
        Ok((row::column::<i64>(row, "seq")?, found))
    })?;
    let Some((seq, mut found)) = found else { return Ok(None) };
    let mut counts = connection.prepare_cached(COUNT_OF_EVENT)?;
    let mut rows = counts.query([seq])?;
    while let Some(row) = rows.next()? {
        let status = row::text(row, "status")?;
        if let Some(place) = StatusFilter::ALL.iter().position(|filter| filter.name() == status) {
            found.deliveries[place] = unsigned(row::column(row, "n")?);
        }
    }
    Ok(Some(found))
}

/// Whoever may see all tenants sees those of each that has chosen this id.
pub(super) const SEQS_BY_EVENT: &str = concat!(
    "SELECT d.seq FROM events e CROSS JOIN deliveries d ON d.seq IN (",
    seqs_of_event!(),
    ") WHERE e.id = ?1 AND (?2 IS NULL OR e.tenant = ?2)"
);
pub(super) const COUNT_OF_EVENT: &str = concat!(
    "SELECT d.status, count(*) AS n FROM events e CROSS JOIN deliveries d ON d.seq IN (",
    seqs_of_event!(),
    ") WHERE e.seq = ?1 GROUP BY d.status"
);

/// An event has few deliveries: they are all looked at.
fn of_event(connection: &Connection, query: &DeliveryQuery, before: i64) -> Result<Page<DeliveryRow>, Error> {
    let mut select =
        connection.prepare_cached(&format!("{SELECT} WHERE d.seq IN ({SEQS_BY_EVENT}) AND d.seq < ?3 ORDER BY d.seq DESC"))?;
    let event = query.event.as_ref().map(EventId::as_str);
    let rows = select.query(params![event, query.tenant.as_ref().map(TenantId::as_str), before])?;
    page(rows, query, |row| Cursor::from(row.seq))
}

/// Takes what the query covers, until the page is full.
fn page(
    mut rows: rusqlite::Rows<'_>,
    query: &DeliveryQuery,
    cursor: fn(&DeliveryRow) -> Cursor,
) -> Result<Page<DeliveryRow>, Error> {
    let (mut found, mut scanned, mut last) = (Vec::new(), 0, None);
    while let Some(row) = rows.next()? {
        let delivery = delivery(row)?;
        scanned += 1;
        last = Some(cursor(&delivery));
        if query.covers(&delivery) {
            found.push(delivery);
            if found.len() >= query.limit {
                return Ok(Page { rows: found, next: last });
            }
        }
    }
    let is_cut = scanned >= SCAN_ROWS_MAX.max(query.limit);
    Ok(Page { rows: found, next: last.filter(|_| is_cut) })
}

pub(super) fn delivery(row: &Row<'_>) -> Result<DeliveryRow, Error> {
    let state = state(&StateColumns {
        status: row::text(row, "status")?,
        due_at_ms: row::column(row, "due_at_ms")?,
        ended_at_ms: row::column(row, "ended_at_ms")?,
        dead_reason: row::optional_text(row, "dead_reason")?,
        cancel_reason: row::optional_text(row, "cancel_reason")?,
    })?;
    let optional_id = |name| row::column::<Option<[u8; 16]>>(row, name).map(|bytes| bytes.map(DeliveryId::from_bytes));
    Ok(DeliveryRow {
        id: DeliveryId::from_bytes(row::column(row, "id")?),
        seq: unsigned(row::column(row, "seq")?),
        event: row::parsed(row, "event", EventId::parse)?,
        endpoint: EndpointId::from_bytes(row::column(row, "endpoint")?),
        endpoint_url: row::column(row, "url")?,
        tenant: row::parsed(row, "tenant", TenantId::parse)?,
        partition: row::column(row, "partition")?,
        event_type: row::parsed(row, "type", EventType::parse)?,
        is_priority: row::column(row, "is_priority")?,
        state,
        attempts: row::column(row, "attempts")?,
        ordering_key: row::optional(row, "ordering_key", OrderingKey::parse)?,
        is_head_of_key: row::column(row, "is_head_of_key")?,
        timestamp: row::timestamp(row, "timestamp_ms")?,
        is_later: row::column(row, "is_later")?,
        expires_at: row::optional_timestamp(row, "expires_at_ms")?,
        last_attempt_at: row::optional_timestamp(row, "last_attempt_at_ms")?,
        last_status_code: row::column(row, "last_status_code")?,
        last_error: row::column(row, "last_error")?,
        replay_of: optional_id("replay_of_id")?,
        replay: row::column::<Option<[u8; 16]>>(row, "replay")?.map(ReplayId::from_bytes),
        replayed_as: optional_id("replayed_as_id")?,
        created_at: row::timestamp(row, "created_at_ms")?,
    })
}

fn attempt(row: &Row<'_>) -> Result<AttemptRecord, Error> {
    let optional_duration = |name| row::column::<Option<i64>>(row, name)?.map(duration).transpose();
    Ok(AttemptRecord {
        id: AttemptId::from_bytes(row::column(row, "id")?),
        number: row::column(row, "number")?,
        outcome: outcome(row::text(row, "outcome")?, row::column(row, "status_code")?)?,
        response_time: duration(row::column(row, "response_time_ms")?)?,
        timings: Timings {
            dns: optional_duration("dns_ms")?,
            connect: optional_duration("connect_ms")?,
            tls: optional_duration("tls_ms")?,
            first_byte: optional_duration("first_byte_ms")?,
        },
        timeout: duration(row::column(row, "timeout_ms")?)?,
        preview: row::column(row, "preview")?,
        error: row::column(row, "error")?,
        attempted_at: row::timestamp(row, "attempted_at_ms")?,
        endpoint_version: row::column::<Option<i64>>(row, "endpoint_version")?.map(unsigned),
    })
}

/// Without its payload.
pub(super) fn event_row(row: &Row<'_>) -> Result<EventRow, Error> {
    Ok(EventRow {
        id: row::parsed(row, "id", EventId::parse)?,
        tenant: row::parsed(row, "tenant", TenantId::parse)?,
        event_type: row::parsed(row, "type", EventType::parse)?,
        version: row::optional(row, "version", Version::parse)?,
        timestamp: row::timestamp(row, "timestamp_ms")?,
        accepted_at: row::timestamp(row, "accepted_at_ms")?,
        data: None,
        erased_at: row::optional_timestamp(row, "erased_at_ms")?,
        labels: labels(row::text(row, "labels")?)?,
        idempotency_key: row::optional(row, "idempotency_key", IdempotencyKey::parse)?,
        ordering_key: row::optional(row, "ordering_key", OrderingKey::parse)?,
        timing: lanes::timing(row)?,
        deliveries: [0; 4],
    })
}
