//! What waits, counted over a bounded number of rows.

use posthaste_core::id::{EndpointId, TenantId};
use rusqlite::{Connection, named_params, params};

use super::lanes::{place, queue};
use super::{Sqlite, lanes, row};
use crate::backlog::is_cut_off;
use crate::columns::{class, limit, signed, unsigned};
use crate::{Backlog, BacklogGroup, BacklogQuery, BacklogScope, Error, LaneBacklog, PlaceQuery};

impl Sqlite {
    pub(super) async fn backlog(&self, query: BacklogQuery) -> Result<Backlog, Error> {
        self.read(move |connection| backlog(connection, &query)).await
    }

    pub(super) async fn count_ahead(&self, query: PlaceQuery) -> Result<Option<u64>, Error> {
        self.read(move |connection| ahead(connection, &query)).await
    }
}

fn backlog(connection: &Connection, query: &BacklogQuery) -> Result<Backlog, Error> {
    let mut endpoints = match &query.scope {
        BacklogScope::Endpoint(endpoint) => vec![*endpoint],
        BacklogScope::Tenant(tenant) => of_tenant(connection, tenant, query.lanes_max)?,
        BacklogScope::All => lanes::with_work(connection, None, query.lanes_max.saturating_add(1))?,
    };
    let mut backlog = Backlog { lanes: vec![], is_whole: endpoints.len() <= query.lanes_max };
    endpoints.truncate(query.lanes_max);
    let mut counted = 0;
    for endpoint in endpoints {
        if counted >= query.rows_max as u64 {
            backlog.is_whole = false;
            break;
        }
        let mut select = connection.prepare_cached(SELECT_WAITING)?;
        let rows = select.query(named_params! {
            ":endpoint": endpoint.to_bytes(),
            ":now": query.now.as_millis(),
            ":rows": limit(query.rows_per_queue_max),
        })?;
        let waiting = row::all(rows, |row| {
            Ok(BacklogGroup {
                class: class(row::column(row, "class")?)?,
                is_due: row::column(row, "is_due")?,
                is_tried: row::column(row, "is_tried")?,
                is_head_of_key: row::column(row, "is_head")?,
                count: unsigned(row::column(row, "n")?),
                oldest: row::timestamp(row, "oldest")?,
            })
        })?;
        counted += waiting.iter().map(|alike| alike.count).sum::<u64>();
        backlog.is_whole &= !is_cut_off(&waiting, query);
        if !waiting.is_empty() {
            backlog.lanes.push(LaneBacklog { endpoint, waiting });
        }
    }
    Ok(backlog)
}

fn ahead(connection: &Connection, query: &PlaceQuery) -> Result<Option<u64>, Error> {
    let mut select = connection.prepare_cached(SELECT_AHEAD)?;
    let rows = select.query(named_params! {
        ":endpoint": query.endpoint.to_bytes(),
        ":due_by": query.due_by.as_millis(),
        ":timestamp": query.older_than.0.as_millis(),
        ":seq": signed(query.older_than.1),
        ":rows": limit(query.rows_per_queue_max),
    })?;
    let queues: Vec<(u64, u64)> =
        row::all(rows, |row| Ok((unsigned(row::column(row, "n")?), unsigned(row::column(row, "ahead")?))))?;
    let is_whole = queues.iter().all(|(rows, _)| *rows < query.rows_per_queue_max as u64);
    Ok(is_whole.then(|| queues.iter().map(|(_, ahead)| ahead).sum()))
}

/// Deleted ones too, until what waits there is cancelled.
fn of_tenant(connection: &Connection, tenant: &TenantId, lanes_max: usize) -> Result<Vec<EndpointId>, Error> {
    let mut select = connection.prepare_cached("SELECT id FROM endpoints WHERE tenant = ?1 ORDER BY id DESC LIMIT ?2")?;
    let rows = select.query(params![tenant.as_str(), limit(lanes_max.saturating_add(1))])?;
    row::all(rows, |row| Ok(EndpointId::from_bytes(row::column(row, "id")?)))
}

/// Each queue by its part of the index. What is fresh has no time of its own and was not tried, so that the index says it all.
const SELECT_WAITING: &str = concat!(
    "SELECT class, is_due, is_tried, is_head, count(*) AS n, min(timestamp_ms) AS oldest FROM (
       SELECT * FROM (SELECT ",
    queue!(""),
    " AS class, 1 AS is_due, 0 AS is_tried, 1 AS is_head, ",
    place!(""),
    " AS timestamp_ms FROM deliveries INDEXED BY deliveries_queued WHERE endpoint = :endpoint AND status = 'waiting' AND ",
    queue!(""),
    " BETWEEN 0 AND 2 LIMIT :rows)
       UNION ALL
       SELECT * FROM (SELECT class, due_at_ms <= :now, attempts > 0, 1, timestamp_ms
         FROM deliveries INDEXED BY deliveries_queued WHERE endpoint = :endpoint AND status = 'waiting' AND ",
    queue!(""),
    " BETWEEN 3 AND 5 LIMIT :rows)
       UNION ALL
       SELECT class, due_at_ms <= :now, attempts > 0, row_number() OVER (PARTITION BY ordering_key ORDER BY seq) = 1, timestamp_ms
       FROM (SELECT class, due_at_ms, attempts, ordering_key, seq, timestamp_ms
         FROM deliveries INDEXED BY deliveries_queued WHERE endpoint = :endpoint AND status = 'waiting' AND ",
    queue!(""),
    " = 6 ORDER BY ",
    place!(""),
    ", seq LIMIT :rows))
     GROUP BY class, is_due, is_tried, is_head ORDER BY class, is_due, is_tried, is_head"
);
/// Queue by queue: how many rows were looked at, and how many of them go first.
const SELECT_AHEAD: &str = concat!(
    "WITH fresh AS (SELECT seq, timestamp_ms, due_at_ms
         FROM deliveries INDEXED BY deliveries_queued WHERE endpoint = :endpoint AND status = 'waiting' AND ",
    queue!(""),
    " BETWEEN 0 AND 2 LIMIT :rows),
       later AS (SELECT seq, timestamp_ms, due_at_ms
         FROM deliveries INDEXED BY deliveries_queued WHERE endpoint = :endpoint AND status = 'waiting' AND ",
    queue!(""),
    " BETWEEN 3 AND 5 LIMIT :rows),
       keyed AS (SELECT seq, timestamp_ms, due_at_ms
         FROM deliveries INDEXED BY deliveries_queued WHERE endpoint = :endpoint AND status = 'waiting' AND ",
    queue!(""),
    " = 6 LIMIT :rows)
     SELECT count(*) AS n, count(*) FILTER (WHERE due_at_ms <= :due_by AND (timestamp_ms, seq) < (:timestamp, :seq)) AS ahead
       FROM fresh
     UNION ALL
     SELECT count(*), count(*) FILTER (WHERE due_at_ms <= :due_by AND (timestamp_ms, seq) < (:timestamp, :seq)) FROM later
     UNION ALL
     SELECT count(*), count(*) FILTER (WHERE due_at_ms <= :due_by AND (timestamp_ms, seq) < (:timestamp, :seq)) FROM keyed"
);
