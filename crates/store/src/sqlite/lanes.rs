//! What an owner reads and writes while it delivers: windows, bodies, records.

use posthaste_core::delivery::State as DeliveryState;
use posthaste_core::event::{Event, EventType, Timing};
use posthaste_core::id::{DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::scheduler::{Class, Entry, Seq, WindowQuery};
use posthaste_core::text::{IdempotencyKey, OrderingKey, Version};
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, Row, params};

use super::writer::{GroupContext, State};
use super::{SMALL, Sqlite, configuration, row};
use crate::columns::{
    StateColumns, checked_data, class, class_code, labels, limit, millis, outcome_columns, signed, state_columns, trace_context,
    unsigned,
};
use crate::routing::schedule_of;
use crate::statistics::CountedAttempt;
use crate::{
    AttemptRecord, Body, BodyError, DeliveryChange, Error, LaneState, Record, RecordResult, SweepPage, WindowRequest, WindowRows,
    document,
};

impl Sqlite {
    /// A skip scan: as many steps as there are endpoints with work.
    pub(super) async fn work(&self, after: Option<EndpointId>, rows_max: usize) -> Result<Vec<EndpointId>, Error> {
        self.read_for_work(move |connection| with_work(connection, after, rows_max)).await
    }

    pub(super) async fn sweep(&self, after: Seq, rows_max: usize) -> Result<SweepPage, Error> {
        self.read_for_work(move |connection| {
            let highest = last_seq(connection)?;
            let mut select = connection.prepare_cached(SELECT_SWEPT_END)?;
            let last: Option<i64> =
                row::first(select.query(params![signed(after), limit(rows_max)])?, |row| row::column(row, "seq"))?;
            let end = last.unwrap_or(i64::MAX);
            let mut select = connection.prepare_cached(SELECT_SWEPT)?;
            let rows = select.query(params![signed(after), end])?;
            let endpoints = row::all(rows, |row| Ok(EndpointId::from_bytes(row::column(row, "endpoint")?)))?;
            Ok(SweepPage { endpoints, highest, next: last.map(unsigned) })
        })
        .await
    }

    pub(super) async fn windows(&self, asked: Vec<WindowRequest>) -> Result<Vec<WindowRows>, Error> {
        self.read_for_work(move |connection| {
            let seen = last_seq(connection)?;
            asked.iter().map(|asked| window(connection, asked, seen)).collect()
        })
        .await
    }

    pub(super) async fn bodies(&self, deliveries: Vec<Seq>) -> Result<Vec<Body>, Error> {
        self.read_for_work(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT d.seq AS delivery_seq, d.id AS delivery, e.* FROM deliveries d
                 JOIN events e ON e.seq = d.event_seq AND e.tenant = d.tenant WHERE d.seq = ?1",
            )?;
            let mut bodies = Vec::with_capacity(deliveries.len());
            for seq in deliveries {
                let body = row::first(select.query([signed(seq)])?, |row| {
                    let delivery = DeliveryId::from_bytes(row::column(row, "delivery")?);
                    Ok(Body { seq, delivery, event: event(row) })
                })?;
                bodies.extend(body);
            }
            Ok(bodies)
        })
        .await
    }

    pub(super) async fn record(&self, records: Vec<Record>) -> Result<Vec<RecordResult>, Error> {
        let store = self.clone();
        self.write(SMALL * records.len(), move |turn, state| records.iter().map(|one| record(&store, turn, state, one)).collect())
            .await
    }

    pub(super) async fn lane(&self, endpoint: EndpointId) -> Result<Option<LaneState>, Error> {
        self.read_for_work(move |connection| lane(connection, endpoint)).await
    }

    pub(super) async fn restamp(&self, endpoint: EndpointId, after: Seq, rows_max: usize) -> Result<Option<Seq>, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, _| restamp(&store, connection, endpoint, after, rows_max)).await
    }
}

pub(super) fn with_work(connection: &Connection, after: Option<EndpointId>, rows_max: usize) -> Result<Vec<EndpointId>, Error> {
    let mut found = Vec::new();
    let mut after = after.map_or_else(Vec::new, |after| after.to_bytes().to_vec());
    let mut select = connection.prepare_cached(SELECT_NEXT)?;
    while found.len() < rows_max {
        let next: Option<[u8; 16]> = row::first(select.query([&after])?, |row| row::column(row, "endpoint"))?;
        let Some(endpoint) = next else { break };
        found.push(EndpointId::from_bytes(endpoint));
        after = endpoint.to_vec();
    }
    Ok(found)
}

fn window(connection: &Connection, asked: &WindowRequest, seen: Seq) -> Result<WindowRows, Error> {
    let (endpoint, wanted) = (asked.endpoint.to_bytes(), limit(asked.limit.saturating_add(1)));
    let mut rows = match &asked.want {
        WindowQuery::Fresh(class) => {
            let mut select = connection.prepare_cached(SELECT_QUEUED)?;
            row::all(select.query(params![endpoint, class_code(*class), wanted])?, entry)?
        }
        WindowQuery::Later(class) => {
            let mut select = connection.prepare_cached(SELECT_QUEUED)?;
            row::all(select.query(params![endpoint, LATER + class_code(*class), wanted])?, entry)?
        }
        WindowQuery::Head(key) => {
            let mut select = connection.prepare_cached(SELECT_HEAD)?;
            row::all(select.query(params![endpoint, key.as_str()])?, entry)?
        }
        WindowQuery::Heads { after } => {
            let after = after.as_ref().map_or("", OrderingKey::as_str);
            let mut select = connection.prepare_cached(SELECT_HEADS)?;
            row::all(select.query(params![endpoint, after, wanted])?, entry)?
        }
    };
    let more = rows.len() > asked.limit;
    rows.truncate(asked.limit);
    Ok(WindowRows { rows, more, seen })
}

pub(super) fn lane(connection: &Connection, endpoint: EndpointId) -> Result<Option<LaneState>, Error> {
    let mut select = connection.prepare_cached("SELECT document, version FROM lanes WHERE endpoint = ?1")?;
    row::first(select.query([endpoint.to_bytes()])?, |row| {
        let (memory, timeout) = document::read_lane(row::text(row, "document")?)?;
        Ok(LaneState { memory, timeout, version: unsigned(row::column(row, "version")?) })
    })
}

/// By row, of which few are behind this one, and not by endpoint, which would spare a sort and read all that there are.
const SELECT_SWEPT: &str =
    "SELECT DISTINCT endpoint FROM deliveries NOT INDEXED WHERE seq > ?1 AND seq <= ?2 AND status = 'waiting'";
/// The last row of a page, if the page is full.
const SELECT_SWEPT_END: &str = "SELECT seq FROM deliveries NOT INDEXED WHERE seq > ?1 ORDER BY seq LIMIT 1 OFFSET ?2 - 1";

/// In which of its endpoint's queues a row stands (what is fresh in 0 to 2 by class, what is due later in 3 to 5, what has an ordering key in
/// 6), and in what order there: the words of the index `deliveries_queued`, or it is not used.
macro_rules! queue {
    ($of:literal) => {
        concat!(
            "(CASE WHEN ",
            $of,
            "ordering_key IS NOT NULL THEN 6 WHEN ",
            $of,
            "is_later THEN 3 + ",
            $of,
            "class ELSE ",
            $of,
            "class END)"
        )
    };
}
macro_rules! place {
    ($of:literal) => {
        concat!(
            "(CASE WHEN ",
            $of,
            "ordering_key IS NOT NULL THEN ",
            $of,
            "ordering_key WHEN ",
            $of,
            "is_later THEN ",
            $of,
            "due_at_ms ELSE ",
            $of,
            "timestamp_ms END)"
        )
    };
}
pub(super) use {place, queue};
/// Above what is fresh of the same class.
const LATER: i16 = 3;

/// The next endpoint with something that waits.
const SELECT_NEXT: &str = "SELECT endpoint FROM deliveries INDEXED BY deliveries_queued WHERE status = 'waiting' AND endpoint > ?1 ORDER BY endpoint LIMIT 1";

/// What [`entry`] reads, in its order.
macro_rules! entry_columns {
    () => {
        "id, seq, timestamp_ms, due_at_ms, attempts, is_later, type, is_priority, class, ordering_key, expires_at_ms"
    };
}

const SELECT_QUEUED: &str = concat!(
    "SELECT ",
    entry_columns!(),
    " FROM deliveries INDEXED BY deliveries_queued WHERE endpoint = ?1 AND status = 'waiting' AND ",
    queue!(""),
    " = ?2 ORDER BY ",
    place!(""),
    ", seq LIMIT ?3"
);
const SELECT_HEAD: &str = concat!(
    "SELECT ",
    entry_columns!(),
    " FROM deliveries INDEXED BY deliveries_queued WHERE endpoint = ?1 AND status = 'waiting' AND ",
    queue!(""),
    " = 6 AND ",
    place!(""),
    " = ?2 ORDER BY seq LIMIT 1"
);
macro_rules! keyed {
    ($selected:expr) => {
        concat!(
            "SELECT ",
            $selected,
            " FROM deliveries INDEXED BY deliveries_queued WHERE endpoint = ?1 AND status = 'waiting' AND ",
            queue!(""),
            " = 6 AND ",
            place!("")
        )
    };
}
/// A skip scan: from each key to the next one, however many rows lie between them.
const SELECT_HEADS: &str = concat!(
    "WITH RECURSIVE heads (key) AS (",
    keyed!(concat!("min(", place!(""), ")")),
    " > ?2 UNION ALL SELECT (",
    keyed!(concat!("min(", place!(""), ")")),
    " > heads.key) FROM heads WHERE heads.key IS NOT NULL LIMIT ?3)
     SELECT ",
    entry_columns!(),
    " FROM heads JOIN deliveries d ON d.seq = (",
    keyed!("min(seq)"),
    " = heads.key) ORDER BY d.ordering_key"
);

pub(super) fn last_seq(connection: &Connection) -> Result<Seq, Error> {
    let last: Option<i64> = connection.prepare_cached("SELECT max(seq) FROM deliveries")?.query_row([], |row| row.get(0))?;
    Ok(last.map_or(0, unsigned))
}

/// A row of `entry_columns!`.
fn entry(row: &Row<'_>) -> Result<Entry, Error> {
    Ok(Entry {
        delivery: DeliveryId::from_bytes(row::column(row, (0, "id"))?),
        seq: unsigned(row::column(row, (1, "seq"))?),
        timestamp: row::timestamp(row, (2, "timestamp_ms"))?,
        due: row::timestamp(row, (3, "due_at_ms"))?,
        attempts: row::column(row, (4, "attempts"))?,
        is_later: row::column(row, (5, "is_later"))?,
        event_type: row::parsed(row, (6, "type"), EventType::parse)?,
        is_priority: row::column(row, (7, "is_priority"))?,
        class: class(row::column(row, (8, "class"))?)?,
        ordering_key: row::optional(row, (9, "ordering_key"), OrderingKey::parse)?,
        expires_at: row::optional_timestamp(row, (10, "expires_at_ms"))?,
    })
}

/// An event with its payload, refused if that is not what was published.
pub(super) fn event(row: &Row<'_>) -> Result<Event, BodyError> {
    let data = row::optional_text(row, "data")?.ok_or(BodyError::Erased)?;
    let digest: [u8; 32] = row::column(row, "digest")?;
    Ok(Event {
        id: row::parsed(row, "id", EventId::parse)?,
        tenant: row::parsed(row, "tenant", TenantId::parse)?,
        event_type: row::parsed(row, "type", EventType::parse)?,
        version: row::optional(row, "version", Version::parse)?,
        timestamp: row::timestamp(row, "timestamp_ms")?,
        accepted_at: row::timestamp(row, "accepted_at_ms")?,
        data: checked_data(data, &digest)?,
        labels: labels(row::text(row, "labels")?)?,
        idempotency_key: row::optional(row, "idempotency_key", IdempotencyKey::parse)?,
        ordering_key: row::optional(row, "ordering_key", OrderingKey::parse)?,
        timing: timing(row)?,
        trace: trace_context(row::optional_text(row, "trace_context")?),
    })
}

pub(super) fn timing(row: &Row<'_>) -> Result<Timing, Error> {
    Ok(Timing::stored(row::optional_timestamp(row, "deliver_at_ms")?, row::optional_timestamp(row, "expires_at_ms")?))
}

fn record(store: &Sqlite, turn: &GroupContext<'_>, state: &mut State, record: &Record) -> Result<RecordResult, Error> {
    let seq = match &record.recorded {
        DeliveryChange::Attempt { seq, .. } | DeliveryChange::Moved { seq, .. } => Some(signed(*seq)),
        DeliveryChange::Nothing => None,
    };
    if record.epoch != state.epoch && !may_still_record(turn, record, seq, store.clock_now())? {
        return Ok(RecordResult::NotOwner);
    }
    let moved = match &record.recorded {
        DeliveryChange::Attempt { seq, attempt, state } => record_attempt(turn, signed(*seq), attempt, *state)?,
        DeliveryChange::Moved { seq, state, .. } => move_on(turn, signed(*seq), *state)?,
        DeliveryChange::Nothing => true,
    };
    if !moved {
        return Ok(RecordResult::MovedOn);
    }
    if let DeliveryChange::Attempt { attempt, state: led_to, .. } = &record.recorded {
        CountedAttempt::new(record.endpoint, attempt, *led_to).write(&mut state.uncounted);
    }
    if let DeliveryChange::Moved { audit: Some(audit), .. } = &record.recorded {
        configuration::write_audit(turn, audit, store.clock_now())?;
    }
    if record.epoch != state.epoch {
        turn.prepare_cached("DELETE FROM handed_over WHERE delivery_seq = ?1")?.execute([seq])?;
        return Ok(RecordResult::Done);
    }
    if let Some(LaneState { memory, timeout, version }) = &record.lane {
        turn.prepare_cached(UPSERT_LANE)?.execute(params![
            record.endpoint.to_bytes(),
            document::lane(memory, timeout),
            signed(*version)
        ])?;
    }
    if let Some(reason) = record.disables_endpoint {
        configuration::disable_endpoint(turn, state, record.endpoint, reason, store.clock_now())?;
    }
    Ok(RecordResult::Done)
}

/// A leaver may record exactly what it said it would.
fn may_still_record(connection: &Connection, record: &Record, seq: Option<i64>, now: Timestamp) -> Result<bool, Error> {
    let mut select =
        connection.prepare_cached("SELECT 1 FROM handed_over WHERE delivery_seq = ?1 AND epoch = ?2 AND until_ms > ?3")?;
    Ok(select.exists(params![seq, signed(record.epoch), now.as_millis()])?)
}

fn record_attempt(turn: &GroupContext<'_>, seq: i64, attempt: &AttemptRecord, state: DeliveryState) -> Result<bool, Error> {
    let (outcome, status_code) = outcome_columns(attempt.outcome);
    let attempted_at = attempt.attempted_at.as_millis();
    let version = attempt.endpoint_version.map(signed);
    let moved = match state {
        DeliveryState::Waiting { due } => {
            let columns = params![attempt.number, attempted_at, status_code, attempt.error, seq, version, due.as_millis()];
            turn.execute_often(UPDATE_TRIED, columns)?
        }
        DeliveryState::Delivered { .. } | DeliveryState::Dead { .. } | DeliveryState::Cancelled { .. } => {
            let StateColumns { status, ended_at_ms, dead_reason, cancel_reason, .. } = state_columns(state);
            let columns = params![
                attempt.number,
                attempted_at,
                status_code,
                attempt.error,
                seq,
                version,
                status,
                ended_at_ms,
                dead_reason,
                cancel_reason
            ];
            turn.execute_often(UPDATE_ENDED, columns)?
        }
    };
    if moved == 0 {
        return Ok(false);
    }
    let timings = attempt.timings;
    let made = params![
        seq,
        attempt.number,
        attempt.id.to_bytes(),
        outcome,
        status_code,
        millis(attempt.response_time),
        timings.dns.map(millis),
        timings.connect.map(millis),
        timings.tls.map(millis),
        timings.first_byte.map(millis),
        millis(attempt.timeout),
        attempt.preview,
        attempt.error,
        attempted_at,
        version,
    ];
    turn.execute_often(INSERT_ATTEMPT, made)?;
    Ok(true)
}

/// Records may come in another order than they were made in, and more than once.
const UPSERT_LANE: &str = "INSERT INTO lanes (endpoint, document, version) VALUES (?1, ?2, ?3)
                           ON CONFLICT (endpoint) DO UPDATE SET document = excluded.document, version = excluded.version
                           WHERE excluded.version > lanes.version";

/// What a statement does not name it need not look after: columns, and the indexes that they are in.
macro_rules! update_attempted {
    ($more:literal) => {
        concat!(
            "UPDATE deliveries SET attempts = ?1, last_attempt_at_ms = ?2, last_status_code = ?3, last_error = ?4, last_endpoint_version = ?6, ",
            $more,
            " WHERE seq = ?5 AND status = 'waiting' AND attempts = ?1 - 1"
        )
    };
}
const UPDATE_TRIED: &str = update_attempted!("due_at_ms = ?7, is_later = 1");
const UPDATE_ENDED: &str =
    update_attempted!("status = ?7, due_at_ms = NULL, ended_at_ms = ?8, dead_reason = ?9, cancel_reason = ?10");
const INSERT_ATTEMPT: &str = "INSERT INTO attempts (delivery_seq, number, id, outcome, status_code, response_time_ms, dns_ms,
                                                    connect_ms, tls_ms, first_byte_ms, timeout_ms, preview, error, attempted_at_ms,
                                                    endpoint_version)
                              VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// Ends a delivery that waits, or makes it due at another time, without an attempt.
fn move_on(connection: &Connection, seq: i64, state: DeliveryState) -> Result<bool, Error> {
    let columns = state_columns(state);
    let moved = connection
        .prepare_cached(
            "UPDATE deliveries SET status = ?2, due_at_ms = ?3, ended_at_ms = ?4, dead_reason = ?5, cancel_reason = ?6
             WHERE seq = ?1 AND status = 'waiting'",
        )?
        .execute(params![
            seq,
            columns.status,
            columns.due_at_ms,
            columns.ended_at_ms,
            columns.dead_reason,
            columns.cancel_reason
        ])?;
    Ok(moved > 0)
}

fn restamp(
    store: &Sqlite,
    connection: &Connection,
    endpoint: EndpointId,
    after: Seq,
    rows_max: usize,
) -> Result<Option<Seq>, Error> {
    let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE id = ?1")?;
    let Some(stored) = row::first(select.query([endpoint.to_bytes()])?, configuration::endpoint_without_secrets)? else {
        return Ok(None);
    };
    let tenant = configuration::tenant(connection, &stored.tenant)?.map(|stored| stored.tenant);
    let schedule = schedule_of(&store.0.options.policies, tenant.as_ref(), &stored);
    // Keyed rows are found by their key, whatever their class.
    let mut select = connection.prepare_cached(
        "SELECT seq, type, is_priority, class, status FROM deliveries WHERE endpoint = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
    )?;
    let rows = row::all(select.query(params![endpoint.to_bytes(), signed(after), limit(rows_max)])?, |row| {
        let event_type = row::parsed(row, "type", EventType::parse)?;
        let present = Class::of(&event_type, row::column(row, "is_priority")?, schedule.as_ref());
        let is_waiting = row::text(row, "status")? == "waiting";
        let is_other = is_waiting && class(row::column(row, "class")?)? != present;
        Ok((row::column::<i64>(row, "seq")?, is_other.then_some(present)))
    })?;
    let mut update = connection.prepare_cached("UPDATE deliveries SET class = ?2 WHERE seq = ?1")?;
    for (seq, changed) in &rows {
        if let Some(class) = changed {
            update.execute(params![seq, class_code(*class)])?;
        }
    }
    Ok(rows.last().filter(|_| rows.len() >= rows_max).map(|(seq, _)| unsigned(*seq)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::cluster::SELECT_LEFT_ALONE;
    use crate::sqlite::migrations;

    /// What is asked at a start, or again and again, goes straight to its rows, however many wait.
    #[test]
    fn nothing_that_an_owner_asks_reads_the_backlog() {
        let mut connection = Connection::open_in_memory().expect("a database");
        migrations::run(&mut connection).expect("a schema");
        for select in [SELECT_LEFT_ALONE, SELECT_SWEPT, SELECT_SWEPT_END, SELECT_NEXT, SELECT_QUEUED, SELECT_HEAD, SELECT_HEADS] {
            let steps = row::plan(&connection, select);
            assert!(!steps.iter().any(|step| step.starts_with("SCAN d")), "{select}\n{steps:?}");
            assert!(steps.iter().any(|step| step.starts_with("SEARCH d")), "{select}\n{steps:?}");
        }
        for select in [SELECT_QUEUED, SELECT_HEAD, SELECT_HEADS] {
            let steps = row::plan(&connection, select);
            let in_the_index = steps.iter().filter(|step| step.contains("deliveries_queued (endpoint=? AND <expr>=?"));
            assert!(in_the_index.count() > 0, "it is found by its queue: {select}\n{steps:?}");
        }
        let steps = row::plan(&connection, SELECT_QUEUED);
        assert!(!steps.iter().any(|step| step.contains("TEMP B-TREE")), "and in its order: {steps:?}");
    }
}
