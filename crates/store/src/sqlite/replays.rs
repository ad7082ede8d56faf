//! Sending again: replays in steps, and single deliveries.

use std::sync::Arc;

use posthaste_core::delivery::State as DeliveryState;
use posthaste_core::event::{Event, EventType};
use posthaste_core::id::{DeliveryId, EndpointId, ReplayId, TenantId};
use posthaste_core::scheduler::Class;
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, Row, named_params, params};

use super::events::{self, NewDelivery, seqs_of_event};
use super::writer::{State, Turn};
use super::{SMALL, Sqlite, configuration, history, lanes, routing, row};
use crate::columns::{limit, named, signed, unsigned};
use crate::routing::{Planned, schedule_of};
use crate::{Audit, BodyError, DeliveryRow, Error, NewReplay, Refusal, ReplayFilter, ReplayRow, ReplayState};

/// How many rows one look goes over.
const SCAN_ROWS: usize = 2_000;

impl Sqlite {
    pub(super) async fn create_replay(&self, replay: NewReplay, audit: Audit) -> Result<ReplayRow, Error> {
        let matched = self.count_replay(replay.filter.clone()).await?;
        let store = self.clone();
        self.write(SMALL, move |connection, _| {
            let now = store.clock_now();
            let tenant = replay.filter.tenant.as_ref().map(TenantId::as_str);
            if let Some(key) = &replay.idempotency_key {
                let mut select = connection
                    .prepare_cached("SELECT * FROM replays WHERE tenant IS ?1 AND idempotency_key = ?2")?;
                if let Some(before) = row::first(select.query(params![tenant, key])?, replay_row)? {
                    return Ok(before);
                }
            }
            // What is made from here on is not part of it.
            let up_to = if replay.filter.missing { last_event(connection)? } else { signed(lanes::last_seq(connection)?) };
            connection
                .prepare_cached(
                    "INSERT INTO replays (id, tenant, filter, reason, requested_by, rate_per_minute, idempotency_key, state, matched,
                                          created, cursor, up_to, created_at_ms)
                     VALUES (:id, :tenant, :filter, :reason, :requested_by, :rate_per_minute, :idempotency_key, 'running', :matched,
                             0, 0, :up_to, :now)",
                )?
                .execute(named_params! {
                    ":id": replay.id.to_bytes(),
                    ":tenant": tenant,
                    ":filter": replay.filter.document(),
                    ":reason": replay.reason,
                    ":requested_by": replay.requested_by,
                    ":rate_per_minute": replay.rate_per_minute,
                    ":idempotency_key": replay.idempotency_key,
                    ":matched": signed(matched),
                    ":up_to": up_to,
                    ":now": now.as_millis(),
                })?;
            configuration::write_audit(connection, &audit, now)?;
            by_id(connection, replay.id)?.ok_or(Error::Corrupt { what: "replay" })
        })
        .await
    }

    /// Looks at everything, some rows at a time, so that no look is long.
    pub(super) async fn count_replay(&self, filter: ReplayFilter) -> Result<u64, Error> {
        let filter = Arc::new(filter);
        let (mut cursor, mut count) = (0, 0);
        loop {
            let (looking, store) = (Arc::clone(&filter), self.clone());
            let found = self.read(move |connection| look(connection, &store, &looking, cursor, i64::MAX)).await?;
            count += found.candidates.iter().filter(|candidate| candidate.made_of.is_some()).count() as u64;
            match found.candidates.last() {
                Some(last) if found.more => cursor = last.position,
                Some(_) | None => return Ok(count),
            }
        }
    }

    pub(super) async fn replay(&self, id: ReplayId) -> Result<Option<ReplayRow>, Error> {
        self.read(move |connection| by_id(connection, id)).await
    }

    pub(super) async fn replays(
        &self,
        tenant: Option<TenantId>,
        before: Option<ReplayId>,
        rows_max: usize,
    ) -> Result<Vec<ReplayRow>, Error> {
        self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT * FROM replays WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3",
            )?;
            let tenant = tenant.as_ref().map(TenantId::as_str);
            row::all(select.query(params![tenant, before.map(ReplayId::to_bytes), limit(rows_max)])?, replay_row)
        })
        .await
    }

    pub(super) async fn running_replays(&self) -> Result<Vec<ReplayRow>, Error> {
        self.read(|connection| {
            let mut select =
                connection.prepare_cached("SELECT * FROM replays WHERE state = 'running' ORDER BY created_at_ms, id")?;
            row::all(select.query([])?, replay_row)
        })
        .await
    }

    pub(super) async fn step_replay(
        &self,
        id: ReplayId,
        rows_max: usize,
        unfinished_max: usize,
    ) -> Result<Option<ReplayRow>, Error> {
        let store = self.clone();
        self.write(SMALL * rows_max, move |connection, state| step(&store, connection, state, id, rows_max, unfinished_max)).await
    }

    pub(super) async fn cancel_replay(&self, id: ReplayId, audit: Audit) -> Result<Option<ReplayRow>, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, _| {
            let now = store.clock_now();
            let cancelled = connection
                .prepare_cached("UPDATE replays SET state = 'cancelled', ended_at_ms = ?2 WHERE id = ?1 AND state = 'running'")?
                .execute(params![id.to_bytes(), now.as_millis()])?;
            if cancelled > 0 {
                configuration::write_audit(connection, &audit, now)?;
            }
            by_id(connection, id)
        })
        .await
    }

    pub(super) async fn repeat(&self, delivery: DeliveryId, audit: Audit) -> Result<Result<DeliveryRow, Refusal>, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, state| {
            let Some(original) = history::by_id(connection, delivery)? else { return Ok(Err(Refusal::NotFound)) };
            if matches!(original.state, DeliveryState::Waiting { .. }) {
                return Ok(Err(Refusal::StillWaiting));
            }
            let Some(planned) = planned(&store, connection, original.endpoint, &original.event_type, original.is_priority)? else {
                return Ok(Err(Refusal::EndpointTakesNothing));
            };
            let event = match event_of(connection, signed(original.seq))? {
                Some((event_seq, Ok(event))) => (event_seq, event),
                Some((_, Err(_))) | None => return Ok(Err(Refusal::PayloadGone)),
            };
            let now = store.clock_now();
            let made = make_again(&store, connection, state, signed(original.seq), &event, planned, None, now)?;
            configuration::write_audit(connection, &audit, now)?;
            let row = history::by_id(connection, made)?.ok_or(Error::Corrupt { what: "delivery" })?;
            Ok(Ok(row))
        })
        .await
    }
}

/// One row that a look went over, and what would be made of it.
struct Candidate {
    position: i64,
    made_of: Option<MadeOf>,
}

enum MadeOf {
    Delivery { endpoint: EndpointId, event_type: EventType, is_priority: bool },
    MissedEvent { event: Box<Event>, planned: Planned },
}

struct Look {
    candidates: Vec<Candidate>,
    more: bool,
}

fn look(connection: &Connection, store: &Sqlite, filter: &ReplayFilter, after: i64, up_to: i64) -> Result<Look, Error> {
    if filter.missing {
        return look_for_missing(connection, store, filter, after, up_to);
    }
    let scope = match (&filter.endpoint, &filter.tenant) {
        (Some(_), _) => "d.endpoint = :endpoint AND",
        (None, Some(_)) => "d.tenant = :tenant AND",
        (None, None) => "",
    };
    let select = format!(
        "{} WHERE {scope} (:endpoint IS NULL OR d.endpoint = :endpoint) AND (:tenant IS NULL OR d.tenant = :tenant)
           AND d.seq > :after AND d.seq <= :up_to ORDER BY d.seq LIMIT :limit",
        history::SELECT
    );
    let mut select = connection.prepare_cached(&select)?;
    let rows = select.query(named_params! {
        ":endpoint": filter.endpoint.map(EndpointId::to_bytes),
        ":tenant": filter.tenant.as_ref().map(TenantId::as_str),
        ":after": after,
        ":up_to": up_to,
        ":limit": limit(SCAN_ROWS),
    })?;
    let candidates = row::all(rows, |row| {
        let delivery = history::delivery(row)?;
        let made_of = filter.covers(&delivery).then(|| MadeOf::Delivery {
            endpoint: delivery.endpoint,
            event_type: delivery.event_type.clone(),
            is_priority: delivery.is_priority,
        });
        Ok(Candidate { position: signed(delivery.seq), made_of })
    })?;
    Ok(Look { more: candidates.len() >= SCAN_ROWS, candidates })
}

pub(super) const SELECT_MISSING: &str = concat!(
    "SELECT e.*, (SELECT 1 FROM deliveries d WHERE d.seq IN (",
    seqs_of_event!(),
    ") AND d.endpoint = ?1 AND d.replay_of IS NULL) AS had
     FROM events e WHERE e.tenant = ?2 AND e.seq > ?3 AND e.seq <= ?4 ORDER BY e.seq LIMIT ?5"
);

/// Events that the endpoint wants now, and never had.
fn look_for_missing(connection: &Connection, store: &Sqlite, filter: &ReplayFilter, after: i64, up_to: i64) -> Result<Look, Error> {
    let nothing = Look { candidates: vec![], more: false };
    let Some(endpoint) = filter.endpoint else { return Ok(nothing) };
    let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE id = ?1 AND deleted_at_ms IS NULL")?;
    let Some(stored) = row::first(select.query([endpoint.to_bytes()])?, configuration::endpoint_without_secrets)? else {
        return Ok(nothing);
    };
    let routing = routing::load(connection, &stored.tenant, &store.0.options)?;
    let mut select = connection.prepare_cached(SELECT_MISSING)?;
    let rows = select.query(params![endpoint.to_bytes(), stored.tenant.as_str(), after, up_to, limit(SCAN_ROWS)])?;
    let candidates = row::all(rows, |row| {
        let position = row::column(row, "seq")?;
        if row::column::<Option<i64>>(row, "had")?.is_some() {
            return Ok(Candidate { position, made_of: None });
        }
        // What was erased or damaged cannot be sent.
        let event = lanes::event(row).ok().filter(|event| filter.covers_event(event));
        let made_of = event.and_then(|event| {
            let planned = routing.plan(&event).into_iter().find(|planned| planned.endpoint == endpoint)?;
            Some(MadeOf::MissedEvent { event: Box::new(event), planned })
        });
        Ok(Candidate { position, made_of })
    })?;
    Ok(Look { more: candidates.len() >= SCAN_ROWS, candidates })
}

fn step(
    store: &Sqlite,
    turn: &Turn<'_>,
    state: &mut State,
    id: ReplayId,
    rows_max: usize,
    unfinished_max: usize,
) -> Result<Option<ReplayRow>, Error> {
    let mut select = turn.prepare_cached("SELECT * FROM replays WHERE id = ?1")?;
    let found = row::first(select.query([id.to_bytes()])?, |row| {
        Ok((replay_row(row)?, row::column::<i64>(row, "cursor")?, row::column::<i64>(row, "up_to")?))
    })?;
    let Some((replay, after, up_to)) = found else { return Ok(None) };
    if replay.state != ReplayState::Running {
        return Ok(Some(replay));
    }
    let now = store.clock_now();
    let Look { candidates, more } = look(turn, store, &replay.filter, after, up_to)?;
    let (mut cursor, mut made, mut is_at_the_end) = (after, 0, !more);
    for candidate in candidates {
        let Some(made_of) = candidate.made_of else {
            cursor = candidate.position;
            continue;
        };
        let endpoint = match &made_of {
            MadeOf::Delivery { endpoint, .. } => *endpoint,
            MadeOf::MissedEvent { planned, .. } => planned.endpoint,
        };
        if made >= rows_max || unfinished_replays(turn, endpoint)? >= unfinished_max {
            is_at_the_end = false;
            break;
        }
        match made_of {
            MadeOf::Delivery { endpoint, event_type, is_priority } => {
                let planned = planned(store, turn, endpoint, &event_type, is_priority)?;
                let event = event_of(turn, candidate.position)?;
                if let (Some(planned), Some((event_seq, Ok(event)))) = (planned, event) {
                    let event = (event_seq, event);
                    make_again(store, turn, state, candidate.position, &event, planned, Some(&replay), now)?;
                    made += 1;
                }
            }
            MadeOf::MissedEvent { event, planned } => {
                let new = NewDelivery {
                    id: DeliveryId::from_unique(store.next_unique()),
                    event: &Arc::new(*event),
                    event_seq: candidate.position,
                    planned,
                    timestamp: replay.created_at,
                    due: now,
                    is_later: false,
                    replay_of: None,
                    replay: Some(replay.id.to_bytes()),
                    created_at: now,
                };
                events::insert(turn, state, &new)?;
                made += 1;
            }
        }
        cursor = candidate.position;
    }
    turn.prepare_cached(
        "UPDATE replays SET cursor = ?2, created = created + ?3, state = CASE WHEN ?4 THEN 'done' ELSE state END,
                    ended_at_ms = CASE WHEN ?4 THEN ?5 END WHERE id = ?1",
    )?
    .execute(params![id.to_bytes(), cursor, limit(made), is_at_the_end, now.as_millis()])?;
    by_id(turn, id)
}

/// How a row would go to this endpoint now; not at all, if it takes nothing.
fn planned(
    store: &Sqlite,
    connection: &Connection,
    endpoint: EndpointId,
    event_type: &EventType,
    is_priority: bool,
) -> Result<Option<Planned>, Error> {
    let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE id = ?1 AND deleted_at_ms IS NULL")?;
    let Some(stored) = row::first(select.query([endpoint.to_bytes()])?, configuration::endpoint_without_secrets)? else {
        return Ok(None);
    };
    if !stored.status.takes_events() {
        return Ok(None);
    }
    let tenant = configuration::tenant(connection, &stored.tenant)?.map(|stored| stored.tenant);
    let schedule = schedule_of(&store.0.options.policies, tenant.as_ref(), &stored);
    Ok(Some(Planned { endpoint, class: Class::of(event_type, is_priority, schedule.as_ref()), is_priority }))
}

fn unfinished_replays(connection: &Connection, endpoint: EndpointId) -> Result<usize, Error> {
    let count: i64 = connection
        .prepare_cached(
            "SELECT count(*) FROM deliveries INDEXED BY deliveries_replayed
             WHERE endpoint = ?1 AND status = 'waiting' AND replay IS NOT NULL",
        )?
        .query_row([endpoint.to_bytes()], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

type FoundEvent = (i64, Result<Arc<Event>, BodyError>);

/// The event of a delivery; `Err` where its payload is gone.
fn event_of(connection: &Connection, delivery_seq: i64) -> Result<Option<FoundEvent>, Error> {
    let mut select =
        connection.prepare_cached("SELECT e.* FROM deliveries d JOIN events e ON e.seq = d.event_seq WHERE d.seq = ?1")?;
    row::first(select.query([delivery_seq])?, |row| Ok((row::column(row, "seq")?, lanes::event(row).map(Arc::new))))
}

#[expect(clippy::too_many_arguments, reason = "all of it goes into one row")]
fn make_again(
    store: &Sqlite,
    turn: &Turn<'_>,
    state: &mut State,
    original: i64,
    (event_seq, event): &(i64, Arc<Event>),
    planned: Planned,
    replay: Option<&ReplayRow>,
    now: Timestamp,
) -> Result<DeliveryId, Error> {
    let new = NewDelivery {
        id: DeliveryId::from_unique(store.next_unique()),
        event,
        event_seq: *event_seq,
        planned,
        // Behind what was there before it.
        timestamp: replay.map_or(now, |replay| replay.created_at),
        due: now,
        is_later: false,
        replay_of: Some(original),
        replay: replay.map(|replay| replay.id.to_bytes()),
        created_at: now,
    };
    let made = events::insert(turn, state, &new)?;
    turn.prepare_cached("UPDATE deliveries SET replayed_as = ?2 WHERE seq = ?1")?.execute([original, made])?;
    Ok(new.id)
}

fn last_event(connection: &Connection) -> Result<i64, Error> {
    Ok(connection.prepare_cached("SELECT coalesce(max(seq), 0) FROM events")?.query_row([], |row| row.get(0))?)
}

fn by_id(connection: &Connection, id: ReplayId) -> Result<Option<ReplayRow>, Error> {
    let mut select = connection.prepare_cached("SELECT * FROM replays WHERE id = ?1")?;
    row::first(select.query([id.to_bytes()])?, replay_row)
}

fn replay_row(row: &Row<'_>) -> Result<ReplayRow, Error> {
    Ok(ReplayRow {
        id: ReplayId::from_bytes(row::column(row, "id")?),
        filter: ReplayFilter::read(row::text(row, "filter")?)?,
        reason: row::column(row, "reason")?,
        requested_by: row::column(row, "requested_by")?,
        rate_per_minute: row::column(row, "rate_per_minute")?,
        state: named("replay", Some(row::text(row, "state")?), &ReplayState::ALL, ReplayState::name)?,
        matched: unsigned(row::column(row, "matched")?),
        created: unsigned(row::column(row, "created")?),
        created_at: row::timestamp(row, "created_at_ms")?,
        ended_at: row::optional_timestamp(row, "ended_at_ms")?,
    })
}
