//! Sending again: replays in steps, and single deliveries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use posthaste_core::delivery::State as DeliveryState;
use posthaste_core::endpoint::Endpoint;
use posthaste_core::event::{Event, EventType};
use posthaste_core::id::{DeliveryId, EndpointId, ReplayId, TenantId};
use posthaste_core::scheduler::Class;
use posthaste_core::tenant::Tenant;
use posthaste_core::time::Timestamp;
use tokio_postgres::Row;

use super::connection::{Connection, Problem};
use super::events::{self, NewDelivery};
use super::history::select_deliveries;
use super::lanes::{self, EventLocation};
use super::row::{self, optional_storable, storable};
use super::{Database, configuration, history, routing};
use crate::columns::{corrupt, limit, named, signed, unsigned};
use crate::computing;
use crate::feed::CommittedDelivery;
use crate::replays::{Bounds, ENDPOINTS_PER_STEP, ROWS_PER_ENDPOINT, RowAction, SCAN_ROWS, SkipReason, Stepped, Successor};
use crate::routing::{Planned, schedule_of};
use crate::{Audit, DeliveryRow, Error, NewReplay, Refusal, ReplayCount, ReplayFilter, ReplayRow, ReplayState, Skipped};

/// With payloads, which are all sent: fewer.
const SCAN_EVENTS: usize = 200;

impl Database {
    pub(super) async fn create_replay(&self, replay: NewReplay, audit: Audit) -> Result<ReplayRow, Error> {
        let counted = &self.count_matching(&replay.filter).await?;
        let (replay, audit) = (&replay, &audit);
        self.transact(|connection| async move {
            // One at a time, so that the same key is seen by the second.
            configuration::take_lock(&connection).await?;
            let tenant = replay.filter.tenant.as_ref().map(TenantId::as_str);
            let key = optional_storable(replay.idempotency_key.as_ref());
            if key.is_some()
                && let Some(before) = connection.query_opt(SELECT_BY_KEY, &[&tenant, &key]).await?
            {
                return Ok(replay_row(&before)?);
            }
            connection
                .execute(
                    INSERT_REPLAY,
                    &[
                        &replay.id.to_bytes().as_slice(),
                        &tenant,
                        &storable(&replay.filter.document()),
                        &storable(&replay.reason),
                        &storable(&replay.requested_by),
                        &i64::from(replay.rate_per_minute),
                        &key,
                        &signed(counted.count.matched),
                        &counted.bounds.up_to,
                        &counted.bounds.last_delivery,
                        &counted.bounds.as_of.as_millis(),
                    ],
                )
                .await?;
            let endpoints: Vec<Vec<u8>> = counted.endpoints.iter().map(|endpoint| endpoint.to_bytes().to_vec()).collect();
            connection.execute(INSERT_PROGRESS, &[&replay.id.to_bytes().as_slice(), &endpoints]).await?;
            configuration::write_audit(&connection, audit, self.clock_now()).await?;
            by_id(&connection, replay.id).await?.ok_or(Problem::Store(Error::Corrupt { what: "replay" }))
        })
        .await
    }

    pub(super) async fn count_replay(&self, filter: ReplayFilter) -> Result<ReplayCount, Error> {
        Ok(self.count_matching(&filter).await?.count)
    }

    /// Looks at everything, some rows at a time, so that no look is long.
    async fn count_matching(&self, filter: &ReplayFilter) -> Result<RangeCount, Error> {
        let bounds = self.read(|connection| async move { bounds(self, &connection, filter).await }).await?;
        let mut counted = RangeCount { bounds, count: ReplayCount::default(), endpoints: BTreeSet::new() };
        let (mut cursor, bounds) = (0, &bounds);
        loop {
            let read = self.read(|connection| async move { count_some(self, &connection, filter, bounds, cursor).await });
            let (part, last) = read.await?;
            counted.add(part);
            match last {
                Some(last) => cursor = last,
                None => return Ok(counted),
            }
        }
    }

    pub(super) async fn replay(&self, tenant: Option<TenantId>, id: ReplayId) -> Result<Option<ReplayRow>, Error> {
        let tenant = tenant.as_ref().map(TenantId::as_str);
        self.read(|connection| async move {
            let row = connection.query_opt(SELECT_REPLAY_OF_TENANT, &[&id.to_bytes().as_slice(), &tenant]).await?;
            Ok(row.as_ref().map(replay_row).transpose()?)
        })
        .await
    }

    pub(super) async fn replays(
        &self,
        tenant: Option<TenantId>,
        before: Option<ReplayId>,
        rows_max: usize,
    ) -> Result<Vec<ReplayRow>, Error> {
        let tenant = tenant.as_ref().map(TenantId::as_str);
        self.read(|connection| async move {
            let before = before.map(|before| before.to_bytes().to_vec());
            let rows = connection.query(SELECT_REPLAYS, &[&tenant, &before, &limit(rows_max)]).await?;
            Ok(rows.iter().map(replay_row).collect::<Result<_, _>>()?)
        })
        .await
    }

    pub(super) async fn running_replays(&self) -> Result<Vec<ReplayRow>, Error> {
        self.read_for_work(|connection| async move {
            let rows = connection.query(SELECT_RUNNING, &[]).await?;
            Ok(rows.iter().map(replay_row).collect::<Result<_, _>>()?)
        })
        .await
    }

    pub(super) async fn step_replay(
        &self,
        id: ReplayId,
        rows_max: usize,
        unfinished_max: usize,
    ) -> Result<Option<ReplayRow>, Error> {
        // Held until it is known what has become of the rows, and told of.
        let opened = &self.in_flight.open();
        let (replay, fed) =
            self.transact(|connection| async move { step(self, &connection, opened, id, rows_max, unfinished_max).await }).await?;
        if !fed.is_empty() {
            self.send_to_feed(fed);
        }
        Ok(replay)
    }

    pub(super) async fn cancel_replay(&self, id: ReplayId, audit: Audit) -> Result<Option<ReplayRow>, Error> {
        let audit = &audit;
        self.transact(|connection| async move {
            let now = self.clock_now();
            if connection.execute(CANCEL, &[&id.to_bytes().as_slice(), &now.as_millis()]).await? > 0 {
                connection.execute(DELETE_PROGRESS, &[&id.to_bytes().as_slice()]).await?;
                configuration::write_audit(&connection, audit, now).await?;
            }
            by_id(&connection, id).await
        })
        .await
    }

    pub(super) async fn redeliver(&self, delivery: DeliveryId, audit: Audit) -> Result<Result<DeliveryRow, Refusal>, Error> {
        let audit = &audit;
        let opened = &self.in_flight.open();
        let repeated = self
            .transact(|connection| async move {
                let Some(row) = connection.query_opt(SELECT_TO_REPEAT, &[&delivery.to_bytes().as_slice()]).await? else {
                    return Ok(Err(Refusal::NotFound));
                };
                let original = history::delivery(&row)?;
                if matches!(original.state, DeliveryState::Waiting { .. }) {
                    return Ok(Err(Refusal::StillWaiting));
                }
                let targets = Targets::load(&connection, BTreeSet::from([original.endpoint])).await?;
                let Some(planned) = targets.planned(self, original.endpoint, &original.event_type, original.is_priority) else {
                    return Ok(Err(Refusal::EndpointTakesNothing));
                };
                if targets.subscribed(self, original.endpoint, &original.event_type, original.is_priority).is_none() {
                    return Ok(Err(Refusal::Unsubscribed));
                }
                let place = place_of(&row)?;
                let found = lanes::events_at(&connection, std::iter::once(place)).await?;
                let event = found.get(&place.seq).and_then(|row| lanes::event(row).ok());
                let Some(event) = event.filter(|event| event.tenant == original.tenant) else {
                    return Ok(Err(Refusal::PayloadGone));
                };
                let now = self.clock_now();
                let event = Arc::new(event);
                let seqs = events::delivery_numbers(&connection, opened, 1).await?;
                let new = NewDelivery {
                    seq: seqs.first().copied().ok_or(Error::Corrupt { what: "number" })?,
                    ..again(self, &event, place, planned, now, now, Some(signed(original.seq)), None)
                };
                events::insert(&connection, std::slice::from_ref(&new)).await?;
                connection.execute(NAME_SUCCESSORS, &[&vec![signed(original.seq)], &vec![new.seq]]).await?;
                configuration::write_audit(&connection, audit, now).await?;
                let made = history::by_id(&connection, new.id).await?.ok_or(Error::Corrupt { what: "delivery" })?;
                Ok(Ok((made, new.fed())))
            })
            .await?;
        Ok(repeated.map(|(made, fed)| {
            self.send_to_feed(vec![fed]);
            made
        }))
    }
}

const SELECT_BY_KEY: &str = "SELECT * FROM replays WHERE tenant IS NOT DISTINCT FROM $1 AND idempotency_key = $2";
const INSERT_REPLAY: &str =
    "INSERT INTO replays (id, tenant, filter, reason, requested_by, rate_per_minute, idempotency_key, state, matched, created,
                          cursor, up_to, last_delivery, created_at_ms)
     VALUES ($1, $2, $3, $4, $5, $6, $7, 'running', $8, 0, 0, $9, $10, $11)";
const INSERT_PROGRESS: &str = "INSERT INTO replay_progress (replay, endpoint, cursor, turn) SELECT $1, endpoint, 0, 0 FROM unnest($2::bytea[]) AS asked (endpoint)";
const DELETE_PROGRESS: &str = "DELETE FROM replay_progress WHERE replay = $1";
const SELECT_REPLAYS: &str =
    "SELECT * FROM replays WHERE ($1::text IS NULL OR tenant = $1) AND ($2::bytea IS NULL OR id < $2) ORDER BY id DESC LIMIT $3";
const SELECT_RUNNING: &str = "SELECT * FROM replays WHERE state = 'running' ORDER BY created_at_ms, id";
const CANCEL: &str = "UPDATE replays SET state = 'cancelled', ended_at_ms = $2 WHERE id = $1 AND state = 'running'";
/// Locked, so that two who repeat it at once do so one after the other.
const SELECT_TO_REPEAT: &str = select_deliveries!("WHERE d.id = $1 FOR UPDATE OF d");
const NAME_SUCCESSORS: &str =
    "UPDATE deliveries d SET replayed_as = made.seq FROM unnest($1::bigint[], $2::bigint[]) AS made (original, seq)
     WHERE d.seq = made.original";

/// A delivery of the same event, without its number.
#[expect(clippy::too_many_arguments, reason = "all of it goes into one row")]
fn again<'a>(
    database: &Database,
    event: &'a Arc<Event>,
    place: EventLocation,
    planned: Planned,
    timestamp: Timestamp,
    now: Timestamp,
    replay_of: Option<i64>,
    replay: Option<[u8; 16]>,
) -> NewDelivery<'a> {
    NewDelivery {
        seq: 0,
        id: DeliveryId::from_unique(database.next_unique()),
        event,
        event_slot: place.slot,
        event_seq: place.seq,
        planned,
        timestamp,
        due: now,
        is_later: false,
        replay_of,
        replay,
        created_at: now,
    }
}

fn place_of(row: &Row) -> Result<EventLocation, Error> {
    Ok(EventLocation { slot: row::column(row, "event_slot")?, seq: row::column(row, "event_seq")? })
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

async fn bounds(database: &Database, connection: &Connection, filter: &ReplayFilter) -> Result<Bounds, Problem> {
    let as_of = database.clock_now();
    let last_delivery = signed(lanes::last_seq(connection).await?);
    // What is made from here on is not part of it.
    let up_to = if filter.missing { last_event(connection).await? } else { last_delivery };
    Ok(Bounds { as_of, up_to, last_delivery })
}

/// Counts over one look, by endpoint. Answers where to go on, if there is more.
async fn count_some(
    database: &Database,
    connection: &Connection,
    filter: &ReplayFilter,
    bounds: &Bounds,
    after: i64,
) -> Result<(BTreeMap<EndpointId, ReplayCount>, Option<i64>), Problem> {
    let ScanPage { candidates, more } = look(database, connection, filter, filter.endpoint, bounds, after, SCAN_ROWS).await?;
    let payloads = with_payload(connection, &candidates).await?;
    let erased = erased_before(connection, &candidates, bounds.as_of).await?;
    let targets = Targets::load(connection, candidates.iter().map(|candidate| candidate.endpoint).collect()).await?;
    let mut counts: BTreeMap<EndpointId, ReplayCount> = BTreeMap::new();
    for candidate in &candidates {
        if matches!(&candidate.found, RowAction::Make(RowSource::Delivery { place, .. }) if erased.contains(&place.seq)) {
            continue;
        }
        let count = counts.entry(candidate.endpoint).or_default();
        candidate.found.count_in(count);
        if let RowAction::Make(RowSource::Delivery { event_type, is_priority, place }) = &candidate.found {
            if !payloads.contains(&place.seq) {
                count.skipped.add(SkipReason::Erased);
            } else if targets.subscribed(database, candidate.endpoint, event_type, *is_priority).is_none() {
                count.skipped.add(SkipReason::Unsubscribed);
            }
        }
    }
    let last = candidates.last().map(|last| last.position).filter(|_| more);
    Ok((counts, last))
}

/// The events whose payload is still there, of deliveries that could be made again.
async fn with_payload(connection: &Connection, candidates: &[Candidate]) -> Result<BTreeSet<i64>, Problem> {
    let (slots, seqs): (BTreeSet<_>, BTreeSet<i64>) = places(candidates).map(|place| (place.slot, place.seq)).unzip();
    if seqs.is_empty() {
        return Ok(BTreeSet::new());
    }
    let (slots, seqs): (Vec<_>, Vec<_>) = (slots.into_iter().collect(), seqs.into_iter().collect());
    let rows = connection.query(SELECT_WITH_PAYLOAD, &[&slots, &seqs]).await?;
    Ok(rows.iter().map(|row| row::column(row, "seq")).collect::<Result<_, _>>()?)
}

/// What was erased before a replay was requested is not part of it.
async fn erased_before<'a>(
    connection: &Connection,
    candidates: impl IntoIterator<Item = &'a Candidate>,
    as_of: Timestamp,
) -> Result<BTreeSet<i64>, Problem> {
    let (slots, seqs): (BTreeSet<_>, BTreeSet<i64>) = places(candidates).map(|place| (place.slot, place.seq)).unzip();
    if seqs.is_empty() {
        return Ok(BTreeSet::new());
    }
    let (slots, seqs): (Vec<_>, Vec<_>) = (slots.into_iter().collect(), seqs.into_iter().collect());
    let rows = connection.query(SELECT_ERASED, &[&slots, &seqs, &as_of.as_millis()]).await?;
    Ok(rows.iter().map(|row| row::column(row, "seq")).collect::<Result<_, _>>()?)
}

const SELECT_ERASED: &str = "SELECT seq FROM events WHERE slot = ANY($1) AND seq = ANY($2) AND erased_at_ms <= $3
     UNION SELECT seq FROM events_kept WHERE seq = ANY($2) AND erased_at_ms <= $3";
const SELECT_WITH_PAYLOAD: &str = "SELECT seq FROM events WHERE slot = ANY($1) AND seq = ANY($2) AND data IS NOT NULL
     UNION ALL SELECT seq FROM events_kept WHERE seq = ANY($2) AND data IS NOT NULL";

fn places<'a>(candidates: impl IntoIterator<Item = &'a Candidate>) -> impl Iterator<Item = EventLocation> {
    candidates.into_iter().filter_map(|candidate| match &candidate.found {
        RowAction::Make(RowSource::Delivery { place, .. }) => Some(*place),
        RowAction::Make(RowSource::MissedEvent { .. }) | RowAction::Skipped(_) | RowAction::NotMatched => None,
    })
}

/// One row that a look went over. What can be made of it is decided without its payload.
struct Candidate {
    position: i64,
    endpoint: EndpointId,
    found: RowAction<RowSource>,
}

enum RowSource {
    Delivery { event_type: EventType, is_priority: bool, place: EventLocation },
    MissedEvent { event: Arc<Event>, planned: Planned, place: EventLocation },
}

struct ScanPage {
    candidates: Vec<Candidate>,
    more: bool,
}

/// Goes over rows of one endpoint, or without one over all that the filter is about.
async fn look(
    database: &Database,
    connection: &Connection,
    filter: &ReplayFilter,
    endpoint: Option<EndpointId>,
    bounds: &Bounds,
    after: i64,
    rows_max: usize,
) -> Result<ScanPage, Problem> {
    if filter.missing {
        return look_for_missing(database, connection, filter, bounds, after, rows_max.min(SCAN_EVENTS)).await;
    }
    let endpoint = endpoint.map(|endpoint| endpoint.to_bytes().to_vec());
    let tenant = filter.tenant.as_ref().map(TenantId::as_str);
    let (up_to, rows_limit) = (bounds.up_to, limit(rows_max));
    // What the index does not look at is filtered below.
    let rows = match (&endpoint, &tenant) {
        (Some(endpoint), _) => connection.query(LOOK_AT_ENDPOINT, &[&after, &up_to, &rows_limit, endpoint]).await?,
        (None, Some(tenant)) => connection.query(LOOK_AT_TENANT, &[&after, &up_to, &rows_limit, tenant]).await?,
        (None, None) => connection.query(LOOK_AT_ALL, &[&after, &up_to, &rows_limit]).await?,
    };
    let candidate = |row: &Row| {
        let delivery = history::delivery(row)?;
        let found = if filter.covers(&delivery, bounds.as_of) {
            match bounds.successor(row::column(row, "replayed_as")?) {
                Successor::None => RowAction::Make(RowSource::Delivery {
                    event_type: delivery.event_type.clone(),
                    is_priority: delivery.is_priority,
                    place: place_of(row)?,
                }),
                Successor::Before => RowAction::NotMatched,
                Successor::Meanwhile => RowAction::Skipped(SkipReason::AlreadyRedelivered),
            }
        } else {
            RowAction::NotMatched
        };
        Ok(Candidate { position: signed(delivery.seq), endpoint: delivery.endpoint, found })
    };
    let candidates = rows.iter().map(candidate).collect::<Result<Vec<_>, Error>>()?;
    Ok(ScanPage { more: candidates.len() >= rows_max, candidates })
}

const LOOK_AT_ENDPOINT: &str = select_deliveries!("WHERE d.endpoint = $4 AND d.seq > $1 AND d.seq <= $2 ORDER BY d.seq LIMIT $3");
const LOOK_AT_TENANT: &str = select_deliveries!("WHERE d.tenant = $4 AND d.seq > $1 AND d.seq <= $2 ORDER BY d.seq LIMIT $3");
const LOOK_AT_ALL: &str = select_deliveries!("WHERE d.seq > $1 AND d.seq <= $2 ORDER BY d.seq LIMIT $3");

/// Events that the endpoint wants now, and never had.
async fn look_for_missing(
    database: &Database,
    connection: &Connection,
    filter: &ReplayFilter,
    bounds: &Bounds,
    after: i64,
    rows_max: usize,
) -> Result<ScanPage, Problem> {
    let nothing = ScanPage { candidates: vec![], more: false };
    let Some(endpoint) = filter.endpoint else { return Ok(nothing) };
    let id = endpoint.to_bytes().to_vec();
    let Some(row) = connection.query_opt(SELECT_ENDPOINT, &[&id]).await? else { return Ok(nothing) };
    let stored = configuration::endpoint_without_secrets(&row)?;
    let routing = routing::load(connection, &stored.tenant, &database.options).await?;
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
        [&id, &stored.tenant.as_str(), &after, &bounds.up_to, &limit(rows_max), &bounds.last_delivery];
    let rows = connection.query(LOOK_FOR_MISSING, &parameters).await?;
    let mut events = Vec::with_capacity(rows.len());
    for row in &rows {
        let successor = bounds.successor(row::column(row, "had")?);
        // What was erased or damaged cannot be sent, and nothing tells whether the endpoint would want it.
        let event = lanes::event(row).ok().filter(|event| successor != Successor::Before && filter.covers_event(event));
        events.push(event);
    }
    let plan = move |event: Option<Event>| {
        // The same holds for an event that its filter takes too long for.
        let planned = routing.plan_for(endpoint, event.as_ref()?).ok().flatten()?;
        Some((event?, planned))
    };
    let planned: Vec<_> = computing::run(stored.tenant.as_str(), move || events.into_iter().map(plan).collect()).await?;
    let mut candidates = Vec::with_capacity(rows.len());
    for (row, planned) in rows.iter().zip(planned) {
        let place = EventLocation { slot: row::column(row, "slot")?, seq: row::column(row, "seq")? };
        let successor = bounds.successor(row::column(row, "had")?);
        let mut found = RowAction::NotMatched;
        if let Some((event, planned)) = planned {
            found = match successor {
                Successor::Meanwhile => RowAction::Skipped(SkipReason::AlreadyRedelivered),
                Successor::None | Successor::Before => {
                    RowAction::Make(RowSource::MissedEvent { event: Arc::new(event), planned, place })
                }
            };
        }
        candidates.push(Candidate { position: place.seq, endpoint, found });
    }
    Ok(ScanPage { more: candidates.len() >= rows_max, candidates })
}

const SELECT_ENDPOINT: &str = "SELECT * FROM endpoints WHERE id = $1 AND deleted_at_ms IS NULL";
/// The payload only of what it did not have when the replay was requested.
const LOOK_FOR_MISSING: &str =
    "SELECT e.slot, e.seq, e.tenant, e.id, e.type, e.version, e.timestamp_ms, e.accepted_at_ms, e.digest, e.labels,
            e.idempotency_key, e.ordering_key, e.deliver_at_ms, e.expires_at_ms, e.trace_context, h.had,
            CASE WHEN h.had IS NULL OR h.had > $6 THEN e.data END AS data
     FROM ((SELECT * FROM events WHERE tenant = $2 AND seq > $3 AND seq <= $4
              AND seq >= (SELECT t.first_event FROM tenants t WHERE t.id = $2) ORDER BY seq LIMIT $5)
           UNION ALL
           (SELECT k.* FROM events_kept k WHERE k.tenant = $2 AND k.seq > $3 AND k.seq <= $4
              AND k.seq >= (SELECT t.first_event FROM tenants t WHERE t.id = $2)
              AND NOT EXISTS (SELECT 1 FROM events e WHERE e.slot = k.slot AND e.seq = k.seq) ORDER BY k.seq LIMIT $5)) e
     CROSS JOIN LATERAL (SELECT (SELECT d.seq FROM deliveries d WHERE d.event_seq = e.seq AND d.tenant = e.tenant AND d.endpoint = $1
                                   AND d.replay_of IS NULL) AS had) h
     ORDER BY e.seq LIMIT $5";

async fn step(
    database: &Database,
    connection: &Connection,
    opened: &super::in_flight::Opened,
    id: ReplayId,
    rows_max: usize,
    unfinished_max: usize,
) -> Result<(Option<ReplayRow>, Vec<CommittedDelivery>), Problem> {
    let key = id.to_bytes();
    let Some(row) = connection.query_opt(SELECT_TO_STEP, &[&key.as_slice()]).await? else { return Ok((None, vec![])) };
    let (replay, bounds) = (replay_row(&row)?, stored_bounds(&row)?);
    if replay.state != ReplayState::Running {
        return Ok((Some(replay), vec![]));
    }
    let now = database.clock_now();
    let open = open_endpoints(connection, id).await?;
    let endpoints: BTreeSet<EndpointId> = open.iter().map(|(endpoint, _)| *endpoint).collect();
    let unfinished = unfinished_replays(connection, &endpoints, unfinished_max).await?;
    let targets = Targets::load(connection, endpoints).await?;
    let free = |endpoint: &EndpointId| unfinished_max.saturating_sub(unfinished.get(endpoint).copied().unwrap_or_default());
    // What cannot take anything now leaves its share to the others.
    let share = rows_max.div_ceil(open.iter().filter(|(endpoint, _)| free(endpoint) > 0).count().max(1));

    let mut looked = Vec::new();
    let (mut wanted, mut rows_left) = (0, SCAN_ROWS);
    for (endpoint, after) in &open {
        if wanted >= rows_max || rows_left == 0 {
            break;
        }
        let free = free(endpoint);
        // Where nothing is made at all, rows are skipped however many wait.
        let is_blocked = free == 0 && targets.takes_events(*endpoint);
        let is_of_another = replay.filter.endpoint.is_some_and(|only| only != *endpoint);
        let look = if is_blocked || is_of_another {
            ScanPage { candidates: vec![], more: is_blocked }
        } else {
            look(database, connection, &replay.filter, Some(*endpoint), &bounds, *after, rows_left.min(ROWS_PER_ENDPOINT)).await?
        };
        rows_left -= look.candidates.len();
        let allowed = share.min(free).min(rows_max - wanted);
        let part = Part::cut(database, &targets, *endpoint, *after, look, allowed);
        wanted += part.wanted;
        looked.push(part);
    }
    let taken = || looked.iter().flat_map(|part| &part.candidates);
    let is_delivery = |one: &&Candidate| matches!(one.found, RowAction::Make(RowSource::Delivery { .. }));
    let originals: Vec<i64> = taken().filter(is_delivery).map(|one| one.position).collect();
    let repeated = lock_originals(connection, originals).await?;
    let events = load_events(connection, places(taken()).collect()).await?;
    let erased = erased_before(connection, taken(), bounds.as_of).await?;

    let (mut stepped, mut rows) = (Stepped::default(), Vec::new());
    let of = Some(key);
    for candidate in taken() {
        let made = match &candidate.found {
            RowAction::NotMatched => continue,
            RowAction::Skipped(reason) => Err(*reason),
            RowAction::Make(RowSource::MissedEvent { event, planned, place }) => {
                Ok(again(database, event, *place, *planned, replay.created_at, now, None, of))
            }
            RowAction::Make(RowSource::Delivery { .. }) if repeated.contains(&candidate.position) => {
                Err(SkipReason::AlreadyRedelivered)
            }
            RowAction::Make(RowSource::Delivery { event_type, is_priority, place }) => {
                let planned = targets.subscribed(database, candidate.endpoint, event_type, *is_priority);
                match (events.get(&place.seq), planned) {
                    (None, _) if erased.contains(&place.seq) => continue,
                    (None, _) => Err(SkipReason::Erased),
                    (Some(_), None) => Err(SkipReason::Unsubscribed),
                    // Behind what was there before it.
                    (Some(event), Some(planned)) => {
                        Ok(again(database, event, *place, planned, replay.created_at, now, Some(candidate.position), of))
                    }
                }
            }
        };
        match made {
            Ok(row) => rows.push(row),
            Err(reason) => stepped.skipped.add(reason),
        }
    }
    let fed = make_all(connection, opened, &mut rows).await?;
    stepped.created = rows.len() as u64;
    let has_moved = move_progress(connection, id, &looked, open.len() >= ENDPOINTS_PER_STEP).await?;
    let is_all = looked.len() == open.len() && looked.iter().all(|part| part.is_finished);
    stepped.is_done = is_all && open_endpoints(connection, id).await?.is_empty();
    // One that waits for its endpoints writes nothing.
    if !has_moved && !stepped.is_done {
        return Ok((Some(replay), fed));
    }
    let after = replay.after(&stepped);
    connection
        .execute(
            UPDATE_REPLAY,
            &[
                &key.as_slice(),
                &signed(after.matched),
                &signed(after.created),
                &signed(after.skipped.erased),
                &signed(after.skipped.already_redelivered),
                &signed(after.skipped.unsubscribed),
                &after.state.name(),
                &stepped.is_done.then_some(now.as_millis()),
            ],
        )
        .await?;
    Ok((by_id(connection, id).await?, fed))
}

/// What one step takes of one endpoint's rows.
struct Part {
    endpoint: EndpointId,
    after: i64,
    /// Up to the last one that is done in this step.
    candidates: Vec<Candidate>,
    /// How many of them are likely to be made.
    wanted: usize,
    is_finished: bool,
}

impl Part {
    fn cut(database: &Database, targets: &Targets, endpoint: EndpointId, after: i64, look: ScanPage, allowed: usize) -> Part {
        let ScanPage { mut candidates, more } = look;
        let (mut taken, mut wanted) = (0, 0);
        for candidate in &candidates {
            let is_wanted = match &candidate.found {
                RowAction::NotMatched | RowAction::Skipped(_) => false,
                RowAction::Make(RowSource::MissedEvent { .. }) => true,
                RowAction::Make(RowSource::Delivery { event_type, is_priority, .. }) => {
                    targets.subscribed(database, endpoint, event_type, *is_priority).is_some()
                }
            };
            if is_wanted && wanted >= allowed {
                break;
            }
            wanted += usize::from(is_wanted);
            taken += 1;
        }
        let is_finished = !more && taken == candidates.len();
        candidates.truncate(taken);
        Part { endpoint, after, candidates, wanted, is_finished }
    }

    fn cursor(&self) -> i64 {
        self.candidates.last().map_or(self.after, |last| last.position)
    }
}

/// The endpoints whose turn it is, and how far each has come.
async fn open_endpoints(connection: &Connection, id: ReplayId) -> Result<Vec<(EndpointId, i64)>, Problem> {
    let rows = connection.query(SELECT_PROGRESS, &[&id.to_bytes().as_slice(), &limit(ENDPOINTS_PER_STEP)]).await?;
    let read = |row: &Row| Ok((EndpointId::from_bytes(row::bytes(row, "endpoint")?), row::column(row, "cursor")?));
    Ok(rows.iter().map(read).collect::<Result<_, Error>>()?)
}

const SELECT_PROGRESS: &str = "SELECT endpoint, cursor FROM replay_progress WHERE replay = $1 ORDER BY turn, endpoint LIMIT $2";

/// Moves the cursors, and the endpoints behind those that were not looked at in this step. Answers whether anything was written.
async fn move_progress(connection: &Connection, id: ReplayId, looked: &[Part], takes_turns: bool) -> Result<bool, Problem> {
    let key = id.to_bytes();
    let ids = |parts: &[&Part]| parts.iter().map(|part| part.endpoint.to_bytes().to_vec()).collect::<Vec<_>>();
    let (finished, open): (Vec<&Part>, Vec<&Part>) = looked.iter().partition(|part| part.is_finished);
    let moved: Vec<&Part> = open.into_iter().filter(|part| takes_turns || part.cursor() > part.after).collect();
    if !finished.is_empty() {
        connection.execute(FINISH_PROGRESS, &[&key.as_slice(), &ids(&finished)]).await?;
    }
    if !moved.is_empty() {
        let cursors: Vec<i64> = moved.iter().map(|part| part.cursor()).collect();
        connection.execute(MOVE_PROGRESS, &[&key.as_slice(), &ids(&moved), &cursors]).await?;
    }
    Ok(!finished.is_empty() || !moved.is_empty())
}

const FINISH_PROGRESS: &str = "DELETE FROM replay_progress WHERE replay = $1 AND endpoint = ANY($2::bytea[])";
const MOVE_PROGRESS: &str =
    "UPDATE replay_progress p SET cursor = moved.cursor, turn = (SELECT steps + 1 FROM replays WHERE id = $1)
     FROM unnest($2::bytea[], $3::bigint[]) AS moved (endpoint, cursor) WHERE p.replay = $1 AND p.endpoint = moved.endpoint";

/// Locks what is to be repeated, always in the same order, and answers what someone else has repeated since the look.
async fn lock_originals(connection: &Connection, originals: Vec<i64>) -> Result<BTreeSet<i64>, Problem> {
    if originals.is_empty() {
        return Ok(BTreeSet::new());
    }
    let rows = connection.query(LOCK_ORIGINALS, &[&originals]).await?;
    let mut repeated = BTreeSet::new();
    for row in &rows {
        if row::column::<Option<i64>>(row, "replayed_as")?.is_some() {
            repeated.insert(row::column(row, "seq")?);
        }
    }
    Ok(repeated)
}

const LOCK_ORIGINALS: &str = "SELECT seq, replayed_as FROM deliveries WHERE seq = ANY($1) ORDER BY seq FOR UPDATE";

/// Numbers them and writes them, and names them in what they repeat.
async fn make_all(
    connection: &Connection,
    opened: &super::in_flight::Opened,
    rows: &mut [NewDelivery<'_>],
) -> Result<Vec<CommittedDelivery>, Problem> {
    if rows.is_empty() {
        return Ok(vec![]);
    }
    let seqs = events::delivery_numbers(connection, opened, rows.len()).await?;
    rows.iter_mut().zip(seqs).for_each(|(row, seq)| row.seq = seq);
    events::insert(connection, rows).await?;
    let (originals, made): (Vec<i64>, Vec<i64>) = rows.iter().filter_map(|row| Some((row.replay_of?, row.seq))).unzip();
    connection.execute(NAME_SUCCESSORS, &[&originals, &made]).await?;
    Ok(rows.iter().map(NewDelivery::fed).collect())
}

/// Locked: nobody makes a row twice, however many nodes take a step.
const SELECT_TO_STEP: &str = "SELECT * FROM replays WHERE id = $1 FOR UPDATE";
const UPDATE_REPLAY: &str =
    "UPDATE replays SET matched = $2, created = $3, skipped_erased = $4, skipped_already_redelivered = $5, skipped_unsubscribed = $6,
            steps = steps + 1, state = $7, ended_at_ms = $8 WHERE id = $1";

/// The events of deliveries that are made again, by their numbers; without those whose payload is gone.
async fn load_events(connection: &Connection, places: Vec<EventLocation>) -> Result<HashMap<i64, Arc<Event>>, Problem> {
    let found = lanes::events_at(connection, places.into_iter()).await?;
    Ok(found.iter().filter_map(|(seq, row)| Some((*seq, Arc::new(lanes::event(row).ok()?)))).collect())
}

/// Endpoints that rows may go to, with what their tenants say.
struct Targets {
    endpoints: BTreeMap<EndpointId, Endpoint>,
    tenants: BTreeMap<TenantId, Tenant>,
}

impl Targets {
    async fn load(connection: &Connection, ids: BTreeSet<EndpointId>) -> Result<Targets, Problem> {
        let ids: Vec<Vec<u8>> = ids.into_iter().map(|id| id.to_bytes().to_vec()).collect();
        let mut targets = Targets { endpoints: BTreeMap::new(), tenants: BTreeMap::new() };
        if ids.is_empty() {
            return Ok(targets);
        }
        for row in connection.query(SELECT_TARGETS, &[&ids]).await? {
            let endpoint = configuration::endpoint_without_secrets(&row)?;
            if !targets.tenants.contains_key(&endpoint.tenant)
                && let Some(stored) = configuration::tenant(connection, &endpoint.tenant).await?
            {
                targets.tenants.insert(endpoint.tenant.clone(), stored.tenant);
            }
            targets.endpoints.insert(endpoint.id, endpoint);
        }
        Ok(targets)
    }

    /// How a row would go to this endpoint now; not at all, if it takes nothing.
    fn planned(&self, database: &Database, endpoint: EndpointId, event_type: &EventType, is_priority: bool) -> Option<Planned> {
        let stored = self.endpoints.get(&endpoint).filter(|stored| stored.status.takes_events())?;
        let schedule = schedule_of(&database.options.policies, self.tenants.get(&stored.tenant), stored);
        Some(Planned { endpoint, class: Class::of(event_type, is_priority, schedule.as_ref()), is_priority })
    }

    fn takes_events(&self, endpoint: EndpointId) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|stored| stored.status.takes_events())
    }

    /// As [`Targets::planned`], if it still subscribes to the type: another row would be cancelled at its turn.
    fn subscribed(&self, database: &Database, endpoint: EndpointId, event_type: &EventType, is_priority: bool) -> Option<Planned> {
        self.endpoints.get(&endpoint).filter(|stored| stored.subscription.covers(event_type))?;
        self.planned(database, endpoint, event_type, is_priority)
    }
}

const SELECT_TARGETS: &str = "SELECT * FROM endpoints WHERE id = ANY($1::bytea[]) AND deleted_at_ms IS NULL";

/// Of each endpoint at most `count_max`.
async fn unfinished_replays(
    connection: &Connection,
    endpoints: &BTreeSet<EndpointId>,
    count_max: usize,
) -> Result<HashMap<EndpointId, usize>, Problem> {
    let ids: Vec<Vec<u8>> = endpoints.iter().map(|id| id.to_bytes().to_vec()).collect();
    let mut found = HashMap::new();
    for row in connection.query(COUNT_UNFINISHED, &[&ids, &limit(count_max)]).await? {
        let count = usize::try_from(row::column::<i64>(&row, "n")?).map_err(corrupt("count"))?;
        found.insert(EndpointId::from_bytes(row::bytes(&row, "endpoint")?), count);
    }
    Ok(found)
}

const COUNT_UNFINISHED: &str =
    "SELECT asked.endpoint, (SELECT count(*) FROM (SELECT 1 FROM deliveries d WHERE d.endpoint = asked.endpoint AND d.status = 'waiting'
                                                     AND d.replay IS NOT NULL LIMIT $2) AS counted) AS n
     FROM unnest($1::bytea[]) AS asked (endpoint)";

async fn last_event(connection: &Connection) -> Result<i64, Problem> {
    Ok(row::column(&connection.query_one(SELECT_LAST_EVENT, &[]).await?, "seq")?)
}

/// Over all days, because those of another class may have the last one. What was kept aside is older.
const SELECT_LAST_EVENT: &str = "SELECT greatest((SELECT max(seq) FROM events), (SELECT max(seq) FROM events_kept), 0) AS seq";

async fn by_id(connection: &Connection, id: ReplayId) -> Result<Option<ReplayRow>, Problem> {
    let row = connection.query_opt(SELECT_REPLAY, &[&id.to_bytes().as_slice()]).await?;
    Ok(row.as_ref().map(replay_row).transpose()?)
}

const SELECT_REPLAY: &str = "SELECT * FROM replays WHERE id = $1";
const SELECT_REPLAY_OF_TENANT: &str = "SELECT * FROM replays WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)";

fn replay_row(row: &Row) -> Result<ReplayRow, Error> {
    Ok(ReplayRow {
        id: ReplayId::from_bytes(row::bytes(row, "id")?),
        filter: ReplayFilter::read(row::text(row, "filter")?)?,
        reason: row::column(row, "reason")?,
        requested_by: row::column(row, "requested_by")?,
        rate_per_minute: u32::try_from(row::column::<i64>(row, "rate_per_minute")?).map_err(corrupt("rate_per_minute"))?,
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

fn stored_bounds(row: &Row) -> Result<Bounds, Error> {
    Ok(Bounds {
        as_of: row::timestamp(row, "created_at_ms")?,
        up_to: row::column(row, "up_to")?,
        last_delivery: row::column(row, "last_delivery")?,
    })
}
