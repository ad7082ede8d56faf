//! What waits, counted over a bounded number of rows.

use posthaste_core::id::EndpointId;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connection::{Connection, Problem};
use super::{Database, row};
use crate::backlog::is_cut_off;
use crate::columns::{class, limit, signed, unsigned};
use crate::{Backlog, BacklogGroup, BacklogQuery, BacklogScope, Error, LaneBacklog, PlaceQuery};

/// So many lanes are counted by one statement: few enough that the bound on rows is kept to, many enough to be quick.
const LANES_AT_ONCE: usize = 16;

impl Database {
    pub(super) async fn backlog(&self, query: BacklogQuery) -> Result<Backlog, Error> {
        let query = &query;
        let mut endpoints = match &query.scope {
            BacklogScope::Endpoint(endpoint) => vec![*endpoint],
            BacklogScope::Tenant(tenant) => {
                let wanted = limit(query.lanes_max.saturating_add(1));
                self.read(|connection| async move {
                    let rows = connection.query(SELECT_OF_TENANT, &[&tenant.as_str(), &wanted]).await?;
                    Ok(rows.iter().map(|row| Ok(EndpointId::from_bytes(row::bytes(row, "id")?))).collect::<Result<_, Error>>()?)
                })
                .await?
            }
            BacklogScope::All => self.work(None, query.lanes_max.saturating_add(1)).await?,
        };
        let mut backlog = Backlog { lanes: vec![], is_whole: endpoints.len() <= query.lanes_max };
        endpoints.truncate(query.lanes_max);
        let mut counted = 0;
        for some in endpoints.chunks(LANES_AT_ONCE) {
            if counted >= query.rows_max as u64 {
                backlog.is_whole = false;
                break;
            }
            let lanes = self.read(|connection| async move { waiting(&connection, some, query).await }).await?;
            counted += lanes.iter().flat_map(|lane| &lane.waiting).map(|alike| alike.count).sum::<u64>();
            backlog.is_whole &= !lanes.iter().any(|lane| is_cut_off(&lane.waiting, query));
            backlog.lanes.extend(lanes);
        }
        Ok(backlog)
    }

    pub(super) async fn count_ahead(&self, query: PlaceQuery) -> Result<Option<u64>, Error> {
        let query = &query;
        let queues: Vec<(u64, u64)> = self
            .read(|connection| async move {
                let (timestamp, seq) = query.older_than;
                let endpoint = query.endpoint.to_bytes().to_vec();
                let (due_by, rows_max) = (query.due_by.as_millis(), limit(query.rows_per_queue_max));
                let parameters: [&(dyn ToSql + Sync); 5] = [&endpoint, &due_by, &timestamp.as_millis(), &signed(seq), &rows_max];
                let rows = connection.query(SELECT_AHEAD, &parameters).await?;
                let queue = |row| Ok((unsigned(row::column(row, "n")?), unsigned(row::column(row, "ahead")?)));
                Ok(rows.iter().map(queue).collect::<Result<_, Error>>()?)
            })
            .await?;
        let is_whole = queues.iter().all(|(rows, _)| *rows < query.rows_per_queue_max as u64);
        Ok(is_whole.then(|| queues.iter().map(|(_, ahead)| ahead).sum()))
    }
}

async fn waiting(connection: &Connection, endpoints: &[EndpointId], query: &BacklogQuery) -> Result<Vec<LaneBacklog>, Problem> {
    let ids: Vec<Vec<u8>> = endpoints.iter().map(|endpoint| endpoint.to_bytes().to_vec()).collect();
    let rows = connection.query(SELECT_WAITING, &[&ids, &query.now.as_millis(), &limit(query.rows_per_queue_max)]).await?;
    let mut lanes: Vec<LaneBacklog> = Vec::new();
    for row in &rows {
        let (endpoint, alike) = read(row)?;
        match lanes.last_mut().filter(|lane| lane.endpoint == endpoint) {
            Some(lane) => lane.waiting.push(alike),
            None => lanes.push(LaneBacklog { endpoint, waiting: vec![alike] }),
        }
    }
    Ok(lanes)
}

fn read(row: &Row) -> Result<(EndpointId, BacklogGroup), Error> {
    let alike = BacklogGroup {
        class: class(row::column(row, "class")?)?,
        is_due: row::column(row, "is_due")?,
        is_tried: row::column(row, "is_tried")?,
        is_head_of_key: row::column(row, "is_head")?,
        count: unsigned(row::column(row, "n")?),
        oldest: row::timestamp(row, "oldest")?,
    };
    Ok((EndpointId::from_bytes(row::bytes(row, "endpoint")?), alike))
}

/// Deleted ones too, until what waits there is cancelled.
const SELECT_OF_TENANT: &str = "SELECT id FROM endpoints WHERE tenant = $1 ORDER BY id DESC LIMIT $2";
/// Each queue by its own index. What is fresh has no time of its own and was not tried, so that its index says it all.
const SELECT_WAITING: &str = "SELECT lane.endpoint, q.class, q.is_due, q.is_tried, q.is_head, count(*) AS n,
            min(q.timestamp_ms) AS oldest
     FROM unnest($1::bytea[]) AS lane (endpoint) CROSS JOIN LATERAL (
       (SELECT d.class, true AS is_due, false AS is_tried, true AS is_head, d.timestamp_ms FROM deliveries d
         WHERE d.endpoint = lane.endpoint AND d.status = 'waiting' AND NOT d.is_later AND d.ordering_key IS NULL LIMIT $3)
       UNION ALL
       (SELECT d.class, d.due_at_ms <= $2, d.attempts > 0, true, d.timestamp_ms FROM deliveries d
         WHERE d.endpoint = lane.endpoint AND d.status = 'waiting' AND d.is_later AND d.ordering_key IS NULL LIMIT $3)
       UNION ALL
       SELECT k.class, k.due_at_ms <= $2, k.attempts > 0, row_number() OVER (PARTITION BY k.ordering_key ORDER BY k.seq) = 1,
              k.timestamp_ms
       FROM (SELECT d.class, d.due_at_ms, d.attempts, d.ordering_key, d.seq, d.timestamp_ms FROM deliveries d
         WHERE d.endpoint = lane.endpoint AND d.status = 'waiting' AND d.ordering_key IS NOT NULL
         ORDER BY d.ordering_key, d.seq LIMIT $3) k) q
     GROUP BY lane.endpoint, q.class, q.is_due, q.is_tried, q.is_head
     ORDER BY lane.endpoint, q.class, q.is_due, q.is_tried, q.is_head";
/// Queue by queue: how many rows were looked at, and how many of them go first.
const SELECT_AHEAD: &str = "WITH fresh AS (SELECT seq, timestamp_ms, due_at_ms FROM deliveries
         WHERE endpoint = $1 AND status = 'waiting' AND NOT is_later AND ordering_key IS NULL LIMIT $5),
       later AS (SELECT seq, timestamp_ms, due_at_ms FROM deliveries
         WHERE endpoint = $1 AND status = 'waiting' AND is_later AND ordering_key IS NULL LIMIT $5),
       keyed AS (SELECT seq, timestamp_ms, due_at_ms FROM deliveries
         WHERE endpoint = $1 AND status = 'waiting' AND ordering_key IS NOT NULL LIMIT $5)
     SELECT count(*) AS n, count(*) FILTER (WHERE due_at_ms <= $2 AND (timestamp_ms, seq) < ($3, $4)) AS ahead FROM fresh
     UNION ALL
     SELECT count(*), count(*) FILTER (WHERE due_at_ms <= $2 AND (timestamp_ms, seq) < ($3, $4)) FROM later
     UNION ALL
     SELECT count(*), count(*) FILTER (WHERE due_at_ms <= $2 AND (timestamp_ms, seq) < ($3, $4)) FROM keyed";
