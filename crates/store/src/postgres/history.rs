//! What has become of events and deliveries, for people who ask. Pages look at a bounded number of rows.

use std::collections::BTreeMap;

use posthaste_core::delivery::Timings;
use posthaste_core::event::EventType;
use posthaste_core::id::{AttemptId, DeliveryId, EndpointId, EventId, ReplayId, TenantId};
use posthaste_core::scheduler::Seq;
use posthaste_core::text::{IdempotencyKey, OrderingKey, Version};
use tokio_postgres::Row;

use super::connection::{Connection, Problem};
use super::lanes::EventLocation;
use super::slots::{Slot, day_of, slot};
use super::{Database, configuration, lanes, row};
use crate::columns::{StateColumns, checked_data, corrupt, duration, labels, limit, outcome, signed, state, unsigned};
use crate::history::{SCAN_ROWS_MAX, cursor_of_dead, read_cursor_of_dead, read_cursor_of_seq};
use crate::{
    AttemptRecord, Cursor, DeliveryQuery, DeliveryRow, EndpointVersion, Error, EventQuery, EventRow, Page, RowsAfter, StatusFilter,
    endpoint_versions,
};

/// PostgreSQL sends all rows of a query, wanted or not, so that a page is looked for some rows at a time.
const LOOK_ROWS_MIN: usize = 100;

impl Database {
    pub(super) async fn delivery(&self, tenant: Option<TenantId>, id: DeliveryId) -> Result<Option<DeliveryRow>, Error> {
        let tenant = tenant.as_ref();
        self.read(|connection| async move { find(&connection, tenant, id).await }).await
    }

    pub(super) async fn deliveries(&self, query: DeliveryQuery) -> Result<Page<DeliveryRow>, Error> {
        let query = &query;
        self.read(|connection| async move {
            let before = read_cursor_of_seq(query.before)?;
            if let Some(event) = &query.event {
                return of_event(&connection, query, event, before).await;
            }
            let mut page = Paging::new(query.limit);
            let mut before = before;
            while let Some(look) = page.next_look() {
                // The most selective index that there is; the rest is filtered, over a bounded number of rows.
                let rows = match (&query.endpoint, &query.tenant) {
                    (Some(endpoint), _) => {
                        connection.query(SELECT_OF_ENDPOINT, &[&before, &look, &endpoint.to_bytes().as_slice()]).await?
                    }
                    (None, Some(tenant)) => connection.query(SELECT_OF_TENANT, &[&before, &look, &tenant.as_str()]).await?,
                    (None, None) => connection.query(SELECT_OF_ALL, &[&before, &look]).await?,
                };
                page.take(&rows, delivery, |row| query.covers(row), |row| Cursor::from(row.seq))?;
                before = read_cursor_of_seq(page.last)?;
            }
            Ok(page.page())
        })
        .await
    }

    pub(super) async fn rows_after(&self, query: RowsAfter) -> Result<Vec<Seq>, Error> {
        let query = &query;
        self.read(|connection| async move {
            let (after, wanted) = (signed(query.after), limit(query.limit));
            let tenant = query.tenant.as_ref().map(TenantId::as_str);
            let rows = match (&query.endpoint, tenant) {
                (Some(endpoint), _) => {
                    let endpoint = endpoint.to_bytes();
                    connection.query(MADE_FOR_ENDPOINT, &[&after, &wanted, &endpoint.as_slice(), &tenant]).await?
                }
                (None, Some(tenant)) => connection.query(MADE_FOR_TENANT, &[&after, &wanted, &tenant]).await?,
                (None, None) => connection.query(MADE_FOR_ALL, &[&after, &wanted]).await?,
            };
            Ok(rows.iter().map(|row| Ok(unsigned(row::column(row, "seq")?))).collect::<Result<_, Error>>()?)
        })
        .await
    }

    pub(super) async fn deliveries_at(&self, rows: Vec<Seq>) -> Result<Vec<DeliveryRow>, Error> {
        let rows = &rows.into_iter().map(signed).collect::<Vec<_>>();
        self.read(|connection| async move {
            let rows = connection.query(SELECT_BY_SEQ, &[rows]).await?;
            Ok(rows.iter().map(delivery).collect::<Result<_, Error>>()?)
        })
        .await
    }

    pub(super) async fn dead_letters(&self, query: DeliveryQuery) -> Result<Page<DeliveryRow>, Error> {
        let query = &query;
        self.read(|connection| async move {
            let mut before = read_cursor_of_dead(query.before)?;
            let mut page = Paging::new(query.limit);
            while let Some(look) = page.next_look() {
                let (at, seq) = before;
                let rows = match &query.tenant {
                    Some(tenant) => connection.query(SELECT_DEAD_OF_TENANT, &[&at, &seq, &look, &tenant.as_str()]).await?,
                    None => connection.query(SELECT_DEAD_OF_ALL, &[&at, &seq, &look]).await?,
                };
                page.take(&rows, delivery, |row| query.covers(row), cursor_of_dead)?;
                before = read_cursor_of_dead(page.last)?;
            }
            Ok(page.page())
        })
        .await
    }

    pub(super) async fn attempts(&self, delivery: DeliveryId) -> Result<Vec<AttemptRecord>, Error> {
        self.read(|connection| async move {
            let Some(row) = connection.query_opt(SELECT_SPAN, &[&delivery.to_bytes().as_slice()]).await? else { return Ok(vec![]) };
            let (seq, count): (i64, i32) = (row::column(&row, "seq")?, row::column(&row, "attempts")?);
            let from = row::timestamp(&row, "created_at_ms")?;
            let to = row::optional_timestamp(&row, "last_attempt_at_ms")?.unwrap_or(from).max(from);
            // The days in which it was tried: each that is not named is one more table to look at.
            let (first, last) = (slot(day_of(from), 0), slot(day_of(to), 3));
            let mut found = attempts_of(&connection, seq, first, last).await?;
            if found.len() < usize::try_from(count).unwrap_or(0) {
                // Its times were not what they seemed; or the oldest are gone.
                found = attempts_of(&connection, seq, 0, i32::MAX).await?;
            }
            Ok(found)
        })
        .await
    }

    pub(super) async fn endpoint_versions(&self, endpoint: EndpointId, versions: Vec<u64>) -> Result<Vec<EndpointVersion>, Error> {
        let versions = &versions;
        self.read(|connection| async move {
            let Some(present) = configuration::present_version(&connection, &self.options.keyring, endpoint).await? else {
                return Ok(vec![]);
            };
            let asked: Vec<i64> = versions.iter().copied().map(signed).collect();
            let rows = connection.query(SELECT_VERSIONS, &[&endpoint.to_bytes().as_slice(), &asked]).await?;
            let version = |row: &Row| {
                let version = unsigned(row::column(row, "version")?);
                let Some(format) = row::optional_text(row, "payload_format")? else {
                    return Ok(EndpointVersion { version, ..present.clone() });
                };
                endpoint_versions::read(version, row::column(row, "url")?, format, row::text(row, "header_names")?)
            };
            Ok(rows.iter().map(version).collect::<Result<_, Error>>()?)
        })
        .await
    }

    pub(super) async fn event(&self, tenant: Option<TenantId>, id: EventId) -> Result<Option<EventRow>, Error> {
        self.event_from(0, tenant, id).await
    }

    pub(super) async fn tenants_of_event(&self, id: EventId) -> Result<Vec<TenantId>, Error> {
        let id = &id;
        self.read(|connection| async move {
            let (first, last) = slots_around(id);
            let rows = connection.query(SELECT_TENANTS_OF_EVENT, &[&id.as_str(), &first, &last]).await?;
            Ok(rows.iter().map(|row| row::parsed(row, "tenant", TenantId::parse)).collect::<Result<_, Error>>()?)
        })
        .await
    }

    /// The event that has this id in the present tenant, not in a deleted one of the same name.
    pub(super) async fn published_event(&self, tenant: TenantId, id: EventId) -> Result<Option<EventRow>, Error> {
        let name = tenant.as_str();
        let first: Option<i64> = self
            .read(|connection| async move {
                let row = connection.query_opt(SELECT_FIRST_EVENT, &[&name]).await?;
                Ok(row.map(|row| row::column(&row, "first_event")).transpose()?)
            })
            .await?;
        match first {
            Some(first) => self.event_from(first, Some(tenant), id).await,
            None => Ok(None),
        }
    }

    /// Among events with this number or a higher one.
    async fn event_from(&self, first: i64, tenant: Option<TenantId>, id: EventId) -> Result<Option<EventRow>, Error> {
        let (tenant, id) = (tenant.as_ref().map(TenantId::as_str), &id);
        self.read(|connection| async move {
            let places = places_of_event(&connection, tenant, id).await?.into_iter().filter(|place| place.seq >= first);
            let found = lanes::events_at(&connection, places).await?;
            // Whoever may see all tenants names one where the same id was chosen twice. Of an id that was used again the newest is
            // meant.
            let Some((_, row)) = found.into_iter().max_by_key(|(seq, _)| *seq) else { return Ok(None) };
            let mut found = event_row(&row)?;
            let digest: [u8; 32] = row::bytes(&row, "digest")?;
            let data = row::optional_text(&row, "data")?;
            found.data = data.map(|data| checked_data(data, &digest)).transpose()?;
            for row in connection.query(COUNT_DELIVERIES, &[&row::column::<i64>(&row, "seq")?]).await? {
                let status = row::text(&row, "status")?;
                if let Some(place) = StatusFilter::ALL.iter().position(|filter| filter.name() == status) {
                    found.deliveries[place] = unsigned(row::column(&row, "n")?);
                }
            }
            Ok(Some(found))
        })
        .await
    }

    pub(super) async fn events(&self, query: EventQuery) -> Result<Page<EventRow>, Error> {
        let query = &query;
        self.read(|connection| async move {
            let mut before = read_cursor_of_seq(query.before)?;
            let mut page = Paging::new(query.limit);
            while let Some(look) = page.next_look() {
                let rows = match &query.tenant {
                    Some(tenant) => connection.query(SELECT_EVENTS_OF_TENANT, &[&before, &look, &tenant.as_str()]).await?,
                    None => connection.query(SELECT_EVENTS_OF_ALL, &[&before, &look]).await?,
                };
                let read = |row: &Row| Ok((unsigned(row::column(row, "seq")?), event_row(row)?));
                page.take(&rows, read, |(_, event)| query.covers(event), |(seq, _)| Cursor::from(*seq))?;
                before = read_cursor_of_seq(page.last)?;
            }
            let Page { rows, next } = page.page();
            Ok(Page { rows: rows.into_iter().map(|(_, event)| event).collect(), next })
        })
        .await
    }
}

/// What a page has found so far, and how far it has looked.
struct Paging<T> {
    limit: usize,
    scan_max: usize,
    scanned: usize,
    /// How many rows the next look asks for, and the last one has asked for.
    look: usize,
    asked: usize,
    found: Vec<T>,
    last: Option<Cursor>,
    is_at_the_end: bool,
}

impl<T> Paging<T> {
    fn new(limit: usize) -> Paging<T> {
        let scan_max = SCAN_ROWS_MAX.max(limit);
        let look = limit.max(LOOK_ROWS_MIN);
        Paging { limit, scan_max, scanned: 0, look, asked: 0, found: vec![], last: None, is_at_the_end: false }
    }

    fn is_full(&self) -> bool {
        !self.found.is_empty() && self.found.len() >= self.limit
    }

    /// How many rows to ask for next, if any.
    fn next_look(&mut self) -> Option<i64> {
        self.asked = self.look.min(self.scan_max.saturating_sub(self.scanned));
        self.look = self.look.saturating_mul(2);
        (self.asked > 0 && !self.is_at_the_end && !self.is_full()).then_some(limit(self.asked))
    }

    /// Takes what the query covers, until the page is full.
    fn take(
        &mut self,
        rows: &[Row],
        read: impl Fn(&Row) -> Result<T, Error>,
        covers: impl Fn(&T) -> bool,
        cursor: impl Fn(&T) -> Cursor,
    ) -> Result<(), Error> {
        self.is_at_the_end = rows.len() < self.asked;
        for row in rows {
            let one = read(row)?;
            self.scanned += 1;
            self.last = Some(cursor(&one));
            if covers(&one) {
                self.found.push(one);
                if self.is_full() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn page(self) -> Page<T> {
        let is_cut = self.is_full() || self.scanned >= self.scan_max;
        Page { rows: self.found, next: self.last.filter(|_| is_cut) }
    }
}

/// The columns and joins of a delivery, with a condition.
macro_rules! select_deliveries {
    ($rest:literal) => {
        concat!(
            "SELECT d.*, coalesce((
                      SELECT v.url FROM endpoint_versions v WHERE v.endpoint = d.endpoint AND v.last_version >= d.last_endpoint_version
                      ORDER BY v.last_version LIMIT 1), p.url) AS url, r.id AS replay_of_id, s.id AS replayed_as_id,
                    d.ordering_key IS NULL OR NOT EXISTS (
                      SELECT 1 FROM deliveries o WHERE o.endpoint = d.endpoint AND o.ordering_key = d.ordering_key
                        AND o.status = 'waiting' AND o.ordering_key IS NOT NULL AND o.seq < d.seq) AS is_head_of_key
             FROM deliveries d
             JOIN endpoints p ON p.id = d.endpoint
             LEFT JOIN deliveries r ON r.seq = d.replay_of AND r.tenant = d.tenant
             LEFT JOIN deliveries s ON s.seq = d.replayed_as AND s.tenant = d.tenant ",
            $rest
        )
    };
}
pub(super) use select_deliveries;

/// The configuration that each version had; nulls for the present one.
const SELECT_VERSIONS: &str = "SELECT asked.version, v.url, v.payload_format, v.header_names
     FROM unnest($2::bigint[]) WITH ORDINALITY AS asked (version, place) LEFT JOIN LATERAL (
       SELECT url, payload_format, header_names FROM endpoint_versions
       WHERE endpoint = $1 AND last_version >= asked.version ORDER BY last_version LIMIT 1) v ON TRUE
     ORDER BY asked.place";
const SELECT_BY_ID: &str = select_deliveries!("WHERE d.id = $1 AND ($2::text IS NULL OR d.tenant = $2)");
const SELECT_BY_SEQ: &str = select_deliveries!("WHERE d.seq = ANY($1)");
const MADE_FOR_ENDPOINT: &str = "SELECT seq FROM deliveries WHERE endpoint = $3 AND seq > $1 AND ($4::text IS NULL OR tenant = $4)
                                 ORDER BY seq LIMIT $2";
const MADE_FOR_TENANT: &str = "SELECT seq FROM deliveries WHERE tenant = $3 AND seq > $1 ORDER BY seq LIMIT $2";
const MADE_FOR_ALL: &str = "SELECT seq FROM deliveries WHERE seq > $1 ORDER BY seq LIMIT $2";
const SELECT_OF_ENDPOINT: &str = select_deliveries!("WHERE d.endpoint = $3 AND d.seq < $1 ORDER BY d.seq DESC LIMIT $2");
const SELECT_OF_TENANT: &str = select_deliveries!("WHERE d.tenant = $3 AND d.seq < $1 ORDER BY d.seq DESC LIMIT $2");
const SELECT_OF_ALL: &str = select_deliveries!("WHERE d.seq < $1 ORDER BY d.seq DESC LIMIT $2");
const SELECT_OF_EVENT: &str = select_deliveries!("WHERE d.event_seq = ANY($1) AND d.seq < $2 ORDER BY d.seq DESC");
const SELECT_DEAD_OF_TENANT: &str = select_deliveries!(
    "WHERE d.tenant = $4 AND d.status = 'dead' AND d.replayed_as IS NULL AND (d.ended_at_ms, d.seq) < ($1, $2)
     ORDER BY d.ended_at_ms DESC, d.seq DESC LIMIT $3"
);
const SELECT_DEAD_OF_ALL: &str = select_deliveries!(
    "WHERE d.status = 'dead' AND d.replayed_as IS NULL AND (d.ended_at_ms, d.seq) < ($1, $2)
     ORDER BY d.ended_at_ms DESC, d.seq DESC LIMIT $3"
);
const SELECT_SPAN: &str = "SELECT seq, attempts, created_at_ms, last_attempt_at_ms FROM deliveries WHERE id = $1";
/// One that is being kept aside is in both.
const SELECT_ATTEMPTS: &str = "SELECT * FROM attempts WHERE delivery_seq = $1 AND slot BETWEEN $2 AND $3
     UNION ALL SELECT * FROM attempts_kept WHERE delivery_seq = $1";
/// Ids that were chosen are found where they are kept from being chosen again, and those of ours in the days around the time that
/// they tell. The tenant is compared in a way that no index is taken for it: with an id, there is never a better one.
const SELECT_PLACES: &str = "SELECT event_slot AS slot, event_seq AS seq FROM idempotency_keys
       WHERE kind = 'id' AND key = $1 AND coalesce(tenant = $2::text, TRUE)
     UNION SELECT slot, seq FROM events WHERE slot BETWEEN $3 AND $4 AND id = $1 AND coalesce(tenant = $2::text, TRUE)
     UNION SELECT slot, seq FROM events_kept WHERE id = $1 AND coalesce(tenant = $2::text, TRUE)";
const SELECT_TENANTS_OF_EVENT: &str = "SELECT tenant FROM (
       SELECT tenant FROM idempotency_keys WHERE kind = 'id' AND key = $1
       UNION SELECT tenant FROM events WHERE slot BETWEEN $2 AND $3 AND id = $1
       UNION SELECT tenant FROM events_kept WHERE id = $1) t ORDER BY tenant LIMIT 2";
const SELECT_FIRST_EVENT: &str = "SELECT first_event FROM tenants WHERE id = $1 AND deleted_at_ms IS NULL";
const COUNT_DELIVERIES: &str = "SELECT status, count(*) AS n FROM deliveries WHERE event_seq = $1 GROUP BY status";
/// Payloads stay where they are.
const SELECT_EVENTS_OF_TENANT: &str = "SELECT * FROM (
       (SELECT seq, tenant, id, type, version, timestamp_ms, accepted_at_ms, labels, idempotency_key, ordering_key, deliver_at_ms,
               expires_at_ms, erased_at_ms
        FROM events WHERE tenant = $3 AND seq < $1 ORDER BY seq DESC LIMIT $2)
       UNION ALL
       (SELECT k.seq, k.tenant, k.id, k.type, k.version, k.timestamp_ms, k.accepted_at_ms, k.labels, k.idempotency_key,
               k.ordering_key, k.deliver_at_ms, k.expires_at_ms, k.erased_at_ms
        FROM events_kept k WHERE k.tenant = $3 AND k.seq < $1
          AND NOT EXISTS (SELECT 1 FROM events e WHERE e.slot = k.slot AND e.seq = k.seq) ORDER BY k.seq DESC LIMIT $2)) e
     ORDER BY seq DESC LIMIT $2";
const SELECT_EVENTS_OF_ALL: &str = "SELECT * FROM (
       (SELECT seq, tenant, id, type, version, timestamp_ms, accepted_at_ms, labels, idempotency_key, ordering_key, deliver_at_ms,
               expires_at_ms, erased_at_ms
        FROM events WHERE seq < $1 ORDER BY seq DESC LIMIT $2)
       UNION ALL
       (SELECT k.seq, k.tenant, k.id, k.type, k.version, k.timestamp_ms, k.accepted_at_ms, k.labels, k.idempotency_key,
               k.ordering_key, k.deliver_at_ms, k.expires_at_ms, k.erased_at_ms
        FROM events_kept k WHERE k.seq < $1
          AND NOT EXISTS (SELECT 1 FROM events e WHERE e.slot = k.slot AND e.seq = k.seq) ORDER BY k.seq DESC LIMIT $2)) e
     ORDER BY seq DESC LIMIT $2";

pub(super) async fn by_id(connection: &Connection, id: DeliveryId) -> Result<Option<DeliveryRow>, Problem> {
    find(connection, None, id).await
}

async fn find(connection: &Connection, tenant: Option<&TenantId>, id: DeliveryId) -> Result<Option<DeliveryRow>, Problem> {
    let tenant = tenant.map(TenantId::as_str);
    let row = connection.query_opt(SELECT_BY_ID, &[&id.to_bytes().as_slice(), &tenant]).await?;
    Ok(row.as_ref().map(delivery).transpose()?)
}

/// Where an event may be, without a look at all the days that there are.
pub(super) async fn places_of_event(
    connection: &Connection,
    tenant: Option<&str>,
    id: &EventId,
) -> Result<Vec<EventLocation>, Problem> {
    let (first, last) = slots_around(id);
    let rows = connection.query(SELECT_PLACES, &[&id.as_str(), &tenant, &first, &last]).await?;
    let place = |row| Ok(EventLocation { slot: row::column(row, "slot")?, seq: row::column(row, "seq")? });
    Ok(rows.iter().map(place).collect::<Result<_, Error>>()?)
}

/// The days in which an id of ours was made. A day before and after: the clock may have been set between the id and the event.
fn slots_around(id: &EventId) -> (Slot, Slot) {
    match id.made_at().map(day_of) {
        Some(day) => (slot(day.saturating_sub(1), 0), slot(day.saturating_add(1), 3)),
        None => (1, 0),
    }
}

/// An event has few deliveries: they are all looked at.
async fn of_event(
    connection: &Connection,
    query: &DeliveryQuery,
    event: &EventId,
    before: i64,
) -> Result<Page<DeliveryRow>, Problem> {
    let tenant = query.tenant.as_ref().map(TenantId::as_str);
    let seqs: Vec<i64> = places_of_event(connection, tenant, event).await?.into_iter().map(|place| place.seq).collect();
    let rows = connection.query(SELECT_OF_EVENT, &[&seqs, &before]).await?;
    let mut page = Paging::new(query.limit);
    page.take(&rows, delivery, |row| query.covers(row), |row| Cursor::from(row.seq))?;
    Ok(page.page())
}

async fn attempts_of(connection: &Connection, seq: i64, first: i32, last: i32) -> Result<Vec<AttemptRecord>, Problem> {
    let rows = connection.query(SELECT_ATTEMPTS, &[&seq, &first, &last]).await?;
    let mut found = BTreeMap::new();
    for row in &rows {
        let attempt = attempt(row)?;
        found.insert(attempt.number, attempt);
    }
    Ok(found.into_values().collect())
}

pub(super) fn delivery(row: &Row) -> Result<DeliveryRow, Error> {
    let state = state(&StateColumns {
        status: row::text(row, "status")?,
        due_at_ms: row::column(row, "due_at_ms")?,
        ended_at_ms: row::column(row, "ended_at_ms")?,
        dead_reason: row::optional_text(row, "dead_reason")?,
        cancel_reason: row::optional_text(row, "cancel_reason")?,
    })?;
    let status_code: Option<i32> = row::column(row, "last_status_code")?;
    Ok(DeliveryRow {
        id: DeliveryId::from_bytes(row::bytes(row, "id")?),
        seq: unsigned(row::column(row, "seq")?),
        event: row::parsed(row, "event", EventId::parse)?,
        endpoint: EndpointId::from_bytes(row::bytes(row, "endpoint")?),
        endpoint_url: row::column(row, "url")?,
        tenant: row::parsed(row, "tenant", TenantId::parse)?,
        partition: u16::try_from(row::column::<i16>(row, "partition")?).map_err(corrupt("partition"))?,
        event_type: row::parsed(row, "type", EventType::parse)?,
        is_priority: row::column(row, "is_priority")?,
        state,
        attempts: row::count(row, "attempts")?,
        ordering_key: row::optional(row, "ordering_key", OrderingKey::parse)?,
        is_head_of_key: row::column(row, "is_head_of_key")?,
        timestamp: row::timestamp(row, "timestamp_ms")?,
        is_later: row::column(row, "is_later")?,
        expires_at: row::optional_timestamp(row, "expires_at_ms")?,
        last_attempt_at: row::optional_timestamp(row, "last_attempt_at_ms")?,
        last_status_code: status_code.map(u16::try_from).transpose().map_err(corrupt("last_status_code"))?,
        last_error: row::column(row, "last_error")?,
        replay_of: row::optional_bytes(row, "replay_of_id")?.map(DeliveryId::from_bytes),
        replay: row::optional_bytes(row, "replay")?.map(ReplayId::from_bytes),
        replayed_as: row::optional_bytes(row, "replayed_as_id")?.map(DeliveryId::from_bytes),
        created_at: row::timestamp(row, "created_at_ms")?,
    })
}

fn attempt(row: &Row) -> Result<AttemptRecord, Error> {
    let optional_duration = |name| row::column::<Option<i64>>(row, name)?.map(duration).transpose();
    Ok(AttemptRecord {
        id: AttemptId::from_bytes(row::bytes(row, "id")?),
        number: row::count(row, "number")?,
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
        endpoint_version: row::column::<Option<i32>>(row, "endpoint_version")?.map(|version| unsigned(version.into())),
    })
}

/// Without its payload.
fn event_row(row: &Row) -> Result<EventRow, Error> {
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
