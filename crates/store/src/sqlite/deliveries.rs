//! Deliveries: which are due, what came of them, and how they stand.

use posthaste_core::delivery::State;
use posthaste_core::event::EventType;
use posthaste_core::id::{AttemptId, DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, named_params, params};

use super::{Store, endpoints, events, row};
use crate::{AttemptRecord, DeliveryRow, Due, DueNow, Error, Recorded};

impl Store {
    /// The `limit` deliveries that have been due the longest, with event and endpoint.
    pub async fn due(&self, now: Timestamp, limit: usize) -> Result<DueNow, Error> {
        self.read(move |connection| {
            let mut select = connection.prepare_cached(SELECT_DUE)?;
            let mut rows = select.query(params![now.as_millis(), i64::try_from(limit).unwrap_or(i64::MAX)])?;
            let (mut due, mut damaged) = (Vec::new(), Vec::new());
            while let Some(row) = rows.next()? {
                let delivery = DeliveryId::from_bytes(row::column(row, "delivery")?);
                match due_from_row(row, delivery) {
                    Ok(one) => due.push(one),
                    Err(Error::Corrupt { what }) => {
                        tracing::error!(%delivery, what, "a stored delivery is damaged");
                        damaged.push(delivery);
                    }
                    Err(error) => return Err(error),
                }
            }
            let next: Option<i64> = connection
                .prepare_cached("SELECT min(due_at_ms) FROM deliveries WHERE status = 'waiting' AND due_at_ms > ?1")?
                .query_row([now.as_millis()], |row| row.get(0))?;
            Ok(DueNow { due, damaged, next: next.map(Timestamp::from_millis) })
        })
        .await
    }

    /// Keeps the attempt, moves its delivery on, and disables the endpoint if it comes to that, together. Answers `MovedOn` and changes nothing if this attempt
    /// is not the next one of a delivery that still waits; so that repeating it is harmless.
    pub async fn record(&self, recorded: Recorded) -> Result<(), Error> {
        self.0.writer.write(move |connection| record(connection, &recorded)).await
    }

    /// Ends a delivery that cannot be tried. Changes nothing if it has ended already.
    pub async fn end(&self, delivery: DeliveryId, state: State) -> Result<(), Error> {
        self.0
            .writer
            .write(move |connection| {
                let state = row::state_columns(state);
                connection
                    .prepare_cached(
                        "UPDATE deliveries SET status = ?2, due_at_ms = ?3, ended_at_ms = ?4, dead_reason = ?5, cancel_reason = ?6
                         WHERE id = ?1 AND status = 'waiting'",
                    )?
                    .execute(params![
                        delivery.to_bytes(),
                        state.status,
                        state.due_at_ms,
                        state.ended_at_ms,
                        state.dead_reason,
                        state.cancel_reason
                    ])?;
                Ok(())
            })
            .await
    }

    pub async fn delivery(&self, id: DeliveryId) -> Result<Option<DeliveryRow>, Error> {
        self.read(move |connection| {
            let mut select = connection.prepare_cached(SELECT_DELIVERY)?;
            select.query_row([id.to_bytes()], |row| Ok(delivery(row))).optional()?.transpose()
        })
        .await
    }

    /// Every try of a delivery, first to last.
    pub async fn attempts(&self, delivery: DeliveryId) -> Result<Vec<AttemptRecord>, Error> {
        self.read(move |connection| {
            let mut select = connection.prepare_cached("SELECT * FROM attempts WHERE delivery = ?1 ORDER BY number")?;
            let rows = select.query_map([delivery.to_bytes()], |row| Ok(attempt(row)))?;
            rows.map(|attempt| attempt?).collect()
        })
        .await
    }
}

// A disabled or paused endpoint's deliveries are passed over.
const SELECT_DUE: &str =
    "SELECT d.id AS delivery, d.attempts, d.event, e.type, e.version, e.timestamp_ms, e.accepted_at_ms, e.data,
                                 e.digest, e.labels, p.*
                          FROM deliveries d
                          JOIN events e ON e.tenant = d.tenant AND e.id = d.event
                          JOIN endpoints p ON p.id = d.endpoint
                          WHERE d.status = 'waiting' AND d.due_at_ms <= ?1
                            AND (p.status = 'active' OR p.status = 'paused' AND p.paused_until_ms <= ?1)
                          ORDER BY d.due_at_ms, d.seq LIMIT ?2";
const SELECT_DELIVERY: &str = "SELECT d.*, e.type, p.url, p.status AS endpoint_status, p.paused_until_ms
                               FROM deliveries d
                               JOIN events e ON e.tenant = d.tenant AND e.id = d.event
                               JOIN endpoints p ON p.id = d.endpoint
                               WHERE d.id = ?1";

fn record(connection: &Connection, recorded: &Recorded) -> Result<(), Error> {
    let AttemptRecord { id, number, outcome, response_time, timeout, preview, error, attempted_at } = &recorded.attempt;
    let state = row::state_columns(recorded.state);
    let moved = connection
        .prepare_cached(
            "UPDATE deliveries SET status = :status, due_at_ms = :due_at_ms, ended_at_ms = :ended_at_ms,
                    dead_reason = :dead_reason, cancel_reason = :cancel_reason, attempts = :number
             WHERE id = :delivery AND status = 'waiting' AND attempts = :number - 1",
        )?
        .execute(named_params! {
            ":status": state.status,
            ":due_at_ms": state.due_at_ms,
            ":ended_at_ms": state.ended_at_ms,
            ":dead_reason": state.dead_reason,
            ":cancel_reason": state.cancel_reason,
            ":number": number,
            ":delivery": recorded.delivery.to_bytes(),
        })?;
    if moved == 0 {
        return Err(Error::MovedOn);
    }
    let (outcome, status_code) = row::outcome_columns(*outcome);
    connection
        .prepare_cached(
            "INSERT INTO attempts (delivery, number, id, outcome, status_code, response_time_ms, timeout_ms, preview, error, attempted_at_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?
        .execute(params![
            recorded.delivery.to_bytes(),
            number,
            id.to_bytes(),
            outcome,
            status_code,
            row::millis(*response_time),
            row::millis(*timeout),
            preview,
            error,
            attempted_at.as_millis(),
        ])?;
    if recorded.disables_endpoint {
        connection
            .prepare_cached(
                "UPDATE endpoints SET status = 'disabled', paused_until_ms = NULL
                 WHERE id = (SELECT endpoint FROM deliveries WHERE id = ?1)",
            )?
            .execute([recorded.delivery.to_bytes()])?;
    }
    Ok(())
}

fn due_from_row(row: &Row<'_>, delivery: DeliveryId) -> Result<Due, Error> {
    Ok(Due {
        delivery,
        attempts: row::column(row, "attempts")?,
        event: events::from_row(row)?,
        endpoint: endpoints::from_row(row)?,
    })
}

fn delivery(row: &Row<'_>) -> Result<DeliveryRow, Error> {
    Ok(DeliveryRow {
        id: DeliveryId::from_bytes(row::column(row, "id")?),
        event: row::parsed(row, "event", EventId::parse)?,
        endpoint: EndpointId::from_bytes(row::column(row, "endpoint")?),
        endpoint_url: row::column(row, "url")?,
        endpoint_status: row::status(row, "endpoint_status", "paused_until_ms")?,
        tenant: row::parsed(row, "tenant", TenantId::parse)?,
        event_type: row::parsed(row, "type", EventType::parse)?,
        state: row::state(row)?,
        attempts: row::column(row, "attempts")?,
        created_at: row::timestamp(row, "created_at_ms")?,
    })
}

fn attempt(row: &Row<'_>) -> Result<AttemptRecord, Error> {
    Ok(AttemptRecord {
        id: AttemptId::from_bytes(row::column(row, "id")?),
        number: row::column(row, "number")?,
        outcome: row::outcome(row)?,
        response_time: row::duration(row, "response_time_ms")?,
        timeout: row::duration(row, "timeout_ms")?,
        preview: row::column(row, "preview")?,
        error: row::column(row, "error")?,
        attempted_at: row::timestamp(row, "attempted_at_ms")?,
    })
}
