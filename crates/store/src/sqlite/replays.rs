//! Sending again: replays in steps, and single deliveries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use posthaste_core::delivery::State as DeliveryState;
use posthaste_core::endpoint::Endpoint;
use posthaste_core::event::{Event, EventType};
use posthaste_core::id::{DeliveryId, EndpointId, ReplayId, TenantId};
use posthaste_core::quiet_hours::QuietHours;
use posthaste_core::scheduler::Class;
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, Row, named_params, params};

use super::events::{self, NewDelivery, seqs_of_event};
use super::writer::{GroupContext, State};
use super::{SMALL, Sqlite, configuration, history, lanes, routing, row};
use crate::columns::{limit, named, signed, unsigned};
use crate::replays::{Bounds, ENDPOINTS_PER_STEP, ROWS_PER_ENDPOINT, RowAction, SCAN_ROWS, SkipReason, Stepped, Successor};
use crate::routing::{Planned, schedule_of};
use crate::{Audit, BodyError, DeliveryRow, Error, NewReplay, Refusal, ReplayCount, ReplayFilter, ReplayRow, ReplayState, Skipped};

impl Sqlite {
    pub(super) async fn create_replay(&self, replay: NewReplay, audit: Audit) -> Result<ReplayRow, Error> {
        let counted = self.count_matching(replay.filter.clone()).await?;
        let store = self.clone();
        self.write(SMALL * (1 + counted.endpoints.len()), move |connection, _| {
            let tenant = replay.filter.tenant.as_ref().map(TenantId::as_str);
            if let Some(key) = &replay.idempotency_key {
                let mut select = connection
                    .prepare_cached("SELECT * FROM replays WHERE tenant IS ?1 AND idempotency_key = ?2")?;
                if let Some(before) = row::first(select.query(params![tenant, key])?, replay_row)? {
                    return Ok(before);
                }
            }
            connection
                .prepare_cached(
                    "INSERT INTO replays (id, tenant, filter, reason, requested_by, rate_per_minute, idempotency_key, state, matched,
                                          created, cursor, up_to, last_delivery, created_at_ms)
                     VALUES (:id, :tenant, :filter, :reason, :requested_by, :rate_per_minute, :idempotency_key, 'running', :matched,
                             0, 0, :up_to, :last_delivery, :created_at)",
                )?
                .execute(named_params! {
                    ":id": replay.id.to_bytes(),
                    ":tenant": tenant,
                    ":filter": replay.filter.document(),
                    ":reason": replay.reason,
                    ":requested_by": replay.requested_by,
                    ":rate_per_minute": replay.rate_per_minute,
                    ":idempotency_key": replay.idempotency_key,
                    ":matched": signed(counted.count.matched),
                    ":up_to": counted.bounds.up_to,
                    ":last_delivery": counted.bounds.last_delivery,
                    ":created_at": counted.bounds.as_of.as_millis(),
                })?;
            let mut insert =
                connection.prepare_cached("INSERT INTO replay_progress (replay, endpoint, cursor, turn) VALUES (?1, ?2, 0, 0)")?;
            for endpoint in &counted.endpoints {
                insert.execute(params![replay.id.to_bytes(), endpoint.to_bytes()])?;
            }
            configuration::write_audit(connection, &audit, store.clock_now())?;
            by_id(connection, replay.id)?.ok_or(Error::Corrupt { what: "replay" })
        })
        .await
    }

    pub(super) async fn count_replay(&self, filter: ReplayFilter) -> Result<ReplayCount, Error> {
        Ok(self.count_matching(filter).await?.count)
    }

    /// Looks at everything, some rows at a time, so that no look is long.
    async fn count_matching(&self, filter: ReplayFilter) -> Result<RangeCount, Error> {
        let filter = Arc::new(filter);
        let (looking, store) = (Arc::clone(&filter), self.clone());
        let bounds = self.read(move |connection| bounds(connection, &store, &looking)).await?;
        let mut counted = RangeCount { bounds, count: ReplayCount::default(), endpoints: BTreeSet::new() };
        let mut cursor = 0;
        loop {
            let (looking, store) = (Arc::clone(&filter), self.clone());
            let (part, last) = self.read(move |connection| count_some(connection, &store, &looking, &bounds, cursor)).await?;
            counted.add(part);
            match last {
                Some(last) => cursor = last,
                None => return Ok(counted),
            }
        }
    }

    pub(super) async fn replay(&self, tenant: Option<TenantId>, id: ReplayId) -> Result<Option<ReplayRow>, Error> {
        self.read(move |connection| {
            let mut select = connection.prepare_cached("SELECT * FROM replays WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)")?;
            row::first(select.query(params![id.to_bytes(), tenant.as_ref().map(TenantId::as_str)])?, replay_row)
        })
        .await
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
        self.read_for_work(|connection| {
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
                connection.prepare_cached("DELETE FROM replay_progress WHERE replay = ?1")?.execute([id.to_bytes()])?;
                configuration::write_audit(connection, &audit, now)?;
            }
            by_id(connection, id)
        })
        .await
    }

    pub(super) async fn redeliver(&self, delivery: DeliveryId, audit: Audit) -> Result<Result<DeliveryRow, Refusal>, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, state| {
            let Some(original) = history::by_id(connection, delivery)? else { return Ok(Err(Refusal::NotFound)) };
            if matches!(original.state, DeliveryState::Waiting { .. }) {
                return Ok(Err(Refusal::StillWaiting));
            }
            let target = target(&store, connection, original.endpoint)?;
            let planned = target.as_ref().and_then(|target| target.planned(&original.event_type, original.is_priority));
            let (Some(target), Some(planned)) = (target, planned) else { return Ok(Err(Refusal::EndpointTakesNothing)) };
            if !target.endpoint.subscription.covers(&original.event_type) {
                return Ok(Err(Refusal::Unsubscribed));
            }
            let event = match event_of(connection, signed(original.seq))? {
                Some((event_seq, Ok(event))) => (event_seq, event),
                Some((_, Err(_))) | None => return Ok(Err(Refusal::PayloadGone)),
            };
            let now = store.clock_now();
            let made = make_again(&store, connection, state, Some(signed(original.seq)), &event, planned, None, now)?;
            configuration::write_audit(connection, &audit, now)?;
            let row = history::by_id(connection, made)?.ok_or(Error::Corrupt { what: "delivery" })?;
            Ok(Ok(row))
        })
        .await
    }
}

/// What a replay would go over.
struct RangeCount {
    bounds: Bounds,
    count: ReplayCount,
    /// Those with at least one row that matches.
    endpoints: BTreeSet<EndpointId>,
}

impl RangeCount {
    fn add(&mut self, part: BTreeMap<EndpointId, ReplayCount>) {
        for (endpoint, count) in part {
            self.count.add(&count);
            if count.matched > 0 {
                self.endpoints.insert(endpoint);
            }
        }
    }
}

fn bounds(connection: &Connection, store: &Sqlite, filter: &ReplayFilter) -> Result<Bounds, Error> {
    let as_of = store.clock_now();
    let last_delivery = signed(lanes::last_seq(connection)?);
    // What is made from here on is not part of it.
    let up_to = if filter.missing { last_event(connection)? } else { last_delivery };
    Ok(Bounds { as_of, up_to, last_delivery })
}

/// Counts over one look, by endpoint. Answers where to go on, if there is more.
fn count_some(
    connection: &Connection,
    store: &Sqlite,
    filter: &ReplayFilter,
    bounds: &Bounds,
    after: i64,
) -> Result<(BTreeMap<EndpointId, ReplayCount>, Option<i64>), Error> {
    let mut counts: BTreeMap<EndpointId, ReplayCount> = BTreeMap::new();
    let mut targets = Targets::new(store);
    let ScanPage { candidates, more } = look(connection, store, filter, filter.endpoint, bounds, after, SCAN_ROWS)?;
    for candidate in &candidates {
        let endpoint = match &candidate.found {
            RowAction::NotMatched => continue,
            RowAction::Skipped(_) => candidate.endpoint,
            RowAction::Make(RowSource::MissedEvent { planned, .. }) => planned.endpoint,
            RowAction::Make(RowSource::Delivery { event_type, is_priority }) => {
                if is_erased(connection, candidate.position, bounds.as_of)? {
                    continue;
                }
                let count = counts.entry(candidate.endpoint).or_default();
                count.matched += 1;
                if !has_payload(connection, candidate.position)? {
                    count.skipped.add(SkipReason::Erased);
                } else if targets.planned(connection, candidate.endpoint, event_type, *is_priority)?.is_none() {
                    count.skipped.add(SkipReason::Unsubscribed);
                }
                continue;
            }
        };
        candidate.found.count_in(counts.entry(endpoint).or_default());
    }
    let last = candidates.last().map(|last| last.position).filter(|_| more);
    Ok((counts, last))
}

/// What was erased before a replay was requested is not part of it.
fn is_erased(connection: &Connection, delivery_seq: i64, as_of: Timestamp) -> Result<bool, Error> {
    Ok(connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM deliveries d JOIN events e ON e.seq = d.event_seq WHERE d.seq = ?1 AND e.erased_at_ms <= ?2)",
        )?
        .query_row(params![delivery_seq, as_of.as_millis()], |row| row.get(0))?)
}

fn has_payload(connection: &Connection, delivery_seq: i64) -> Result<bool, Error> {
    Ok(connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM deliveries d JOIN events e ON e.seq = d.event_seq WHERE d.seq = ?1 AND e.data IS NOT NULL)",
        )?
        .query_row([delivery_seq], |row| row.get(0))?)
}

/// One row that a look went over. What can be made of it is decided without its payload.
struct Candidate {
    position: i64,
    endpoint: EndpointId,
    found: RowAction<RowSource>,
}

enum RowSource {
    Delivery { event_type: EventType, is_priority: bool },
    MissedEvent { event: Box<Event>, planned: Planned },
}

struct ScanPage {
    candidates: Vec<Candidate>,
    more: bool,
}

/// Goes over rows of one endpoint, or without one over all that the filter is about.
fn look(
    connection: &Connection,
    store: &Sqlite,
    filter: &ReplayFilter,
    endpoint: Option<EndpointId>,
    bounds: &Bounds,
    after: i64,
    rows_max: usize,
) -> Result<ScanPage, Error> {
    if filter.missing {
        return look_for_missing(connection, store, filter, bounds, after, rows_max);
    }
    let scope = match (&endpoint, &filter.tenant) {
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
        ":endpoint": endpoint.map(EndpointId::to_bytes),
        ":tenant": filter.tenant.as_ref().map(TenantId::as_str),
        ":after": after,
        ":up_to": bounds.up_to,
        ":limit": limit(rows_max),
    })?;
    let candidates = row::all(rows, |row| {
        let delivery = history::delivery(row)?;
        let found = if filter.covers(&delivery, bounds.as_of) {
            match bounds.successor(row::column(row, "replayed_as")?) {
                Successor::None => RowAction::Make(RowSource::Delivery {
                    event_type: delivery.event_type.clone(),
                    is_priority: delivery.is_priority,
                }),
                Successor::Before => RowAction::NotMatched,
                Successor::Meanwhile => RowAction::Skipped(SkipReason::AlreadyRedelivered),
            }
        } else {
            RowAction::NotMatched
        };
        Ok(Candidate { position: signed(delivery.seq), endpoint: delivery.endpoint, found })
    })?;
    Ok(ScanPage { more: candidates.len() >= rows_max, candidates })
}

pub(super) const SELECT_MISSING: &str = concat!(
    "SELECT e.*, (SELECT d.seq FROM deliveries d WHERE d.seq IN (",
    seqs_of_event!(),
    ") AND d.endpoint = ?1 AND d.replay_of IS NULL) AS had
     FROM events e WHERE e.tenant = ?2 AND e.seq > ?3 AND e.seq <= ?4
       AND e.seq >= (SELECT t.first_event FROM tenants t WHERE t.id = ?2) ORDER BY e.seq LIMIT ?5"
);

/// Events that the endpoint wants now, and never had.
fn look_for_missing(
    connection: &Connection,
    store: &Sqlite,
    filter: &ReplayFilter,
    bounds: &Bounds,
    after: i64,
    rows_max: usize,
) -> Result<ScanPage, Error> {
    let nothing = ScanPage { candidates: vec![], more: false };
    let Some(endpoint) = filter.endpoint else { return Ok(nothing) };
    let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE id = ?1 AND deleted_at_ms IS NULL")?;
    let Some(stored) = row::first(select.query([endpoint.to_bytes()])?, configuration::endpoint_without_secrets)? else {
        return Ok(nothing);
    };
    let routing = routing::load(connection, &stored.tenant, &store.0.options)?;
    let mut select = connection.prepare_cached(SELECT_MISSING)?;
    let rows = select.query(params![endpoint.to_bytes(), stored.tenant.as_str(), after, bounds.up_to, limit(rows_max)])?;
    let candidates = row::all(rows, |row| {
        let position = row::column(row, "seq")?;
        let successor = bounds.successor(row::column(row, "had")?);
        if successor == Successor::Before {
            return Ok(Candidate { position, endpoint, found: RowAction::NotMatched });
        }
        // What was erased or damaged cannot be sent, and nothing tells whether the endpoint would want it.
        let event = lanes::event(row).ok().filter(|event| filter.covers_event(event));
        let planned = event.and_then(|event| {
            // The same holds for an event that its filter takes too long for.
            let planned = routing.plan_for(endpoint, &event).ok().flatten()?;
            Some((event, planned))
        });
        let found = match planned {
            None => RowAction::NotMatched,
            Some(_) if successor == Successor::Meanwhile => RowAction::Skipped(SkipReason::AlreadyRedelivered),
            Some((event, planned)) => RowAction::Make(RowSource::MissedEvent { event: Box::new(event), planned }),
        };
        Ok(Candidate { position, endpoint, found })
    })?;
    Ok(ScanPage { more: candidates.len() >= rows_max, candidates })
}

fn step(
    store: &Sqlite,
    turn: &GroupContext<'_>,
    state: &mut State,
    id: ReplayId,
    rows_max: usize,
    unfinished_max: usize,
) -> Result<Option<ReplayRow>, Error> {
    let mut select = turn.prepare_cached("SELECT * FROM replays WHERE id = ?1")?;
    let found = row::first(select.query([id.to_bytes()])?, |row| Ok((replay_row(row)?, stored_bounds(row)?)))?;
    let Some((replay, bounds)) = found else { return Ok(None) };
    if replay.state != ReplayState::Running {
        return Ok(Some(replay));
    }
    let now = store.clock_now();
    let mut targets = Targets::new(store);
    let open = open_endpoints(turn, id)?;
    let mut free = Vec::with_capacity(open.len());
    for (endpoint, _) in &open {
        free.push(unfinished_max.saturating_sub(unfinished_replays(turn, *endpoint, unfinished_max)?));
    }
    // What cannot take anything now leaves its share to the others.
    let share = rows_max.div_ceil(free.iter().filter(|free| **free > 0).count().max(1));
    let (mut stepped, mut made, mut rows_left, mut finished, mut has_moved) = (Stepped::default(), 0, SCAN_ROWS, 0, false);
    for ((endpoint, after), free) in open.iter().zip(free) {
        if made >= rows_max || rows_left == 0 {
            break;
        }
        // Where nothing is made at all, rows are skipped however many wait.
        if free == 0 && targets.takes_events(turn, *endpoint)? {
            if open.len() >= ENDPOINTS_PER_STEP {
                move_progress(turn, id, *endpoint, *after)?;
                has_moved = true;
            }
            continue;
        }
        let is_of_another = replay.filter.endpoint.is_some_and(|only| only != *endpoint);
        let ScanPage { candidates, more } = if is_of_another {
            ScanPage { candidates: vec![], more: false }
        } else {
            look(turn, store, &replay.filter, Some(*endpoint), &bounds, *after, rows_left.min(ROWS_PER_ENDPOINT))?
        };
        rows_left -= candidates.len();
        let made_max = made + share.min(free).min(rows_max - made);
        let (mut cursor, mut is_at_the_end) = (*after, !more);
        for candidate in candidates {
            match candidate.found {
                RowAction::NotMatched => {}
                RowAction::Skipped(reason) => stepped.skipped.add(reason),
                RowAction::Make(made_of) => match makeable(turn, &mut targets, candidate.position, *endpoint, made_of)? {
                    Err(SkipReason::Erased) if is_erased(turn, candidate.position, bounds.as_of)? => {}
                    Err(reason) => stepped.skipped.add(reason),
                    Ok(_) if made >= made_max => {
                        is_at_the_end = false;
                        break;
                    }
                    Ok(makeable) => {
                        make(store, turn, state, &replay, &makeable, now)?;
                        made += 1;
                    }
                },
            }
            cursor = candidate.position;
        }
        if is_at_the_end {
            turn.prepare_cached("DELETE FROM replay_progress WHERE replay = ?1 AND endpoint = ?2")?
                .execute(params![id.to_bytes(), endpoint.to_bytes()])?;
            finished += 1;
        } else if cursor > *after || open.len() >= ENDPOINTS_PER_STEP {
            move_progress(turn, id, *endpoint, cursor)?;
            has_moved = true;
        }
    }
    stepped.created = made as u64;
    stepped.is_done = finished == open.len() && open_endpoints(turn, id)?.is_empty();
    // One that waits for its endpoints writes nothing.
    if finished == 0 && !has_moved && !stepped.is_done {
        return Ok(Some(replay));
    }
    let after = replay.after(&stepped);
    turn.prepare_cached(
        "UPDATE replays SET matched = ?2, created = ?3, skipped_erased = ?4, skipped_already_redelivered = ?5, skipped_unsubscribed = ?6,
                    steps = steps + 1, state = ?7, ended_at_ms = ?8 WHERE id = ?1",
    )?
    .execute(params![
        id.to_bytes(),
        signed(after.matched),
        signed(after.created),
        signed(after.skipped.erased),
        signed(after.skipped.already_redelivered),
        signed(after.skipped.unsubscribed),
        after.state.name(),
        stepped.is_done.then_some(now.as_millis()),
    ])?;
    by_id(turn, id)
}

/// The endpoints whose turn it is, and how far each has come.
fn open_endpoints(connection: &Connection, id: ReplayId) -> Result<Vec<(EndpointId, i64)>, Error> {
    let mut select = connection
        .prepare_cached("SELECT endpoint, cursor FROM replay_progress WHERE replay = ?1 ORDER BY turn, endpoint LIMIT ?2")?;
    row::all(select.query(params![id.to_bytes(), limit(ENDPOINTS_PER_STEP)])?, |row| {
        Ok((EndpointId::from_bytes(row::column(row, "endpoint")?), row::column(row, "cursor")?))
    })
}

/// Moves the cursor, and the endpoint behind those that were not looked at in this step.
fn move_progress(connection: &Connection, id: ReplayId, endpoint: EndpointId, cursor: i64) -> Result<(), Error> {
    connection
        .prepare_cached(
            "UPDATE replay_progress SET cursor = ?3, turn = (SELECT steps + 1 FROM replays WHERE id = ?1)
             WHERE replay = ?1 AND endpoint = ?2",
        )?
        .execute(params![id.to_bytes(), endpoint.to_bytes(), cursor])?;
    Ok(())
}

/// Everything that one new row takes.
struct Makeable {
    event_seq: i64,
    event: Arc<Event>,
    planned: Planned,
    /// The delivery that it repeats.
    original: Option<i64>,
}

/// Why nothing can be made of a row is counted.
fn makeable(
    connection: &Connection,
    targets: &mut Targets<'_>,
    position: i64,
    endpoint: EndpointId,
    made_of: RowSource,
) -> Result<Result<Makeable, SkipReason>, Error> {
    match made_of {
        RowSource::MissedEvent { event, planned } => {
            Ok(Ok(Makeable { event_seq: position, event: Arc::new(*event), planned, original: None }))
        }
        RowSource::Delivery { event_type, is_priority } => {
            let Some((event_seq, Ok(event))) = event_of(connection, position)? else { return Ok(Err(SkipReason::Erased)) };
            let planned = targets.planned(connection, endpoint, &event_type, is_priority)?;
            Ok(planned
                .map(|planned| Makeable { event_seq, event, planned, original: Some(position) })
                .ok_or(SkipReason::Unsubscribed))
        }
    }
}

fn make(
    store: &Sqlite,
    turn: &GroupContext<'_>,
    state: &mut State,
    replay: &ReplayRow,
    makeable: &Makeable,
    now: Timestamp,
) -> Result<(), Error> {
    let event = (makeable.event_seq, Arc::clone(&makeable.event));
    make_again(store, turn, state, makeable.original, &event, makeable.planned, Some(replay), now)?;
    Ok(())
}

/// An endpoint that rows may go to, with the quiet hours that apply to it.
struct Target {
    endpoint: Endpoint,
    schedule: Option<QuietHours>,
}

impl Target {
    /// How a row would go to this endpoint now; not at all, if it takes nothing.
    fn planned(&self, event_type: &EventType, is_priority: bool) -> Option<Planned> {
        self.endpoint.status.takes_events().then(|| Planned {
            endpoint: self.endpoint.id,
            class: Class::of(event_type, is_priority, self.schedule.as_ref()),
            is_priority,
        })
    }
}

fn target(store: &Sqlite, connection: &Connection, endpoint: EndpointId) -> Result<Option<Target>, Error> {
    let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE id = ?1 AND deleted_at_ms IS NULL")?;
    let Some(stored) = row::first(select.query([endpoint.to_bytes()])?, configuration::endpoint_without_secrets)? else {
        return Ok(None);
    };
    let tenant = configuration::tenant(connection, &stored.tenant)?.map(|stored| stored.tenant);
    let schedule = schedule_of(&store.0.options.policies, tenant.as_ref(), &stored);
    Ok(Some(Target { endpoint: stored, schedule }))
}

/// Endpoints, each loaded once in a transaction.
struct Targets<'a> {
    store: &'a Sqlite,
    loaded: BTreeMap<EndpointId, Option<Target>>,
}

impl Targets<'_> {
    fn new(store: &Sqlite) -> Targets<'_> {
        Targets { store, loaded: BTreeMap::new() }
    }

    fn get(&mut self, connection: &Connection, endpoint: EndpointId) -> Result<Option<&Target>, Error> {
        if !self.loaded.contains_key(&endpoint) {
            self.loaded.insert(endpoint, target(self.store, connection, endpoint)?);
        }
        Ok(self.loaded.get(&endpoint).and_then(Option::as_ref))
    }

    fn takes_events(&mut self, connection: &Connection, endpoint: EndpointId) -> Result<bool, Error> {
        Ok(self.get(connection, endpoint)?.is_some_and(|target| target.endpoint.status.takes_events()))
    }

    /// As [`Target::planned`], if it still subscribes to the type: another row would be cancelled at its turn.
    fn planned(
        &mut self,
        connection: &Connection,
        endpoint: EndpointId,
        event_type: &EventType,
        is_priority: bool,
    ) -> Result<Option<Planned>, Error> {
        let target = self.get(connection, endpoint)?.filter(|target| target.endpoint.subscription.covers(event_type));
        Ok(target.and_then(|target| target.planned(event_type, is_priority)))
    }
}

/// At most `count_max`.
fn unfinished_replays(connection: &Connection, endpoint: EndpointId, count_max: usize) -> Result<usize, Error> {
    let count: i64 = connection
        .prepare_cached(
            "SELECT count(*) FROM (SELECT 1 FROM deliveries INDEXED BY deliveries_replayed
                                   WHERE endpoint = ?1 AND status = 'waiting' AND replay IS NOT NULL LIMIT ?2)",
        )?
        .query_row(params![endpoint.to_bytes(), limit(count_max)], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

type FoundEvent = (i64, Result<Arc<Event>, BodyError>);

/// The event of a delivery; `Err` where its payload is gone.
fn event_of(connection: &Connection, delivery_seq: i64) -> Result<Option<FoundEvent>, Error> {
    let mut select = connection.prepare_cached(
        "SELECT e.* FROM deliveries d JOIN events e ON e.seq = d.event_seq AND e.tenant = d.tenant WHERE d.seq = ?1",
    )?;
    row::first(select.query([delivery_seq])?, |row| Ok((row::column(row, "seq")?, lanes::event(row).map(Arc::new))))
}

#[expect(clippy::too_many_arguments, reason = "all of it goes into one row")]
fn make_again(
    store: &Sqlite,
    turn: &GroupContext<'_>,
    state: &mut State,
    original: Option<i64>,
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
        replay_of: original,
        replay: replay.map(|replay| replay.id.to_bytes()),
        created_at: now,
    };
    let made = events::insert(turn, state, &new)?;
    if let Some(original) = original {
        turn.prepare_cached("UPDATE deliveries SET replayed_as = ?2 WHERE seq = ?1")?.execute([original, made])?;
    }
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
        skipped: Skipped {
            erased: unsigned(row::column(row, "skipped_erased")?),
            already_redelivered: unsigned(row::column(row, "skipped_already_redelivered")?),
            unsubscribed: unsigned(row::column(row, "skipped_unsubscribed")?),
        },
        created_at: row::timestamp(row, "created_at_ms")?,
        ended_at: row::optional_timestamp(row, "ended_at_ms")?,
    })
}

fn stored_bounds(row: &Row<'_>) -> Result<Bounds, Error> {
    Ok(Bounds {
        as_of: row::timestamp(row, "created_at_ms")?,
        up_to: row::column(row, "up_to")?,
        last_delivery: row::column(row, "last_delivery")?,
    })
}
