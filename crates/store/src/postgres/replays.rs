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
use super::lanes::{self, Place};
use super::row::{self, optional_storable, storable};
use super::{Database, configuration, history, routing};
use crate::columns::{corrupt, limit, named, signed, unsigned};
use crate::feed::Fed;
use crate::routing::{Planned, schedule_of};
use crate::{Audit, DeliveryRow, Error, NewReplay, Refusal, ReplayFilter, ReplayRow, ReplayState};

/// How many rows one look goes over.
const SCAN_ROWS: usize = 2_000;
/// With payloads, which are all sent: fewer.
const SCAN_EVENTS: usize = 200;

impl Database {
    pub(super) async fn create_replay(&self, replay: NewReplay, audit: Audit) -> Result<ReplayRow, Error> {
        let matched = self.count_replay(replay.filter.clone()).await?;
        let (replay, audit) = (&replay, &audit);
        self.transact(|connection| async move {
            // One at a time, so that the same key is seen by the second.
            configuration::take_lock(&connection).await?;
            let now = self.clock_now();
            let tenant = replay.filter.tenant.as_ref().map(TenantId::as_str);
            let key = optional_storable(replay.idempotency_key.as_ref());
            if key.is_some()
                && let Some(before) = connection.query_opt(SELECT_BY_KEY, &[&tenant, &key]).await?
            {
                return Ok(replay_row(&before)?);
            }
            // What is made from here on is not part of it.
            let up_to =
                if replay.filter.missing { last_event(&connection).await? } else { signed(lanes::last_seq(&connection).await?) };
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
                        &signed(matched),
                        &up_to,
                        &now.as_millis(),
                    ],
                )
                .await?;
            configuration::write_audit(&connection, audit, now).await?;
            by_id(&connection, replay.id).await?.ok_or(Problem::Store(Error::Corrupt { what: "replay" }))
        })
        .await
    }

    /// Looks at everything, some rows at a time, so that no look is long.
    pub(super) async fn count_replay(&self, filter: ReplayFilter) -> Result<u64, Error> {
        let filter = &filter;
        let (mut cursor, mut count) = (0, 0);
        loop {
            let found = self.read(|connection| async move { look(self, &connection, filter, cursor, i64::MAX).await }).await?;
            count += found.candidates.iter().filter(|candidate| candidate.made_of.is_some()).count() as u64;
            match found.candidates.last() {
                Some(last) if found.more => cursor = last.position,
                Some(_) | None => return Ok(count),
            }
        }
    }

    pub(super) async fn replay(&self, id: ReplayId) -> Result<Option<ReplayRow>, Error> {
        self.read(|connection| async move { by_id(&connection, id).await }).await
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
        self.read(|connection| async move {
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
            self.tell(fed);
        }
        Ok(replay)
    }

    pub(super) async fn cancel_replay(&self, id: ReplayId, audit: Audit) -> Result<Option<ReplayRow>, Error> {
        let audit = &audit;
        self.transact(|connection| async move {
            let now = self.clock_now();
            if connection.execute(CANCEL, &[&id.to_bytes().as_slice(), &now.as_millis()]).await? > 0 {
                configuration::write_audit(&connection, audit, now).await?;
            }
            by_id(&connection, id).await
        })
        .await
    }

    pub(super) async fn repeat(&self, delivery: DeliveryId, audit: Audit) -> Result<Result<DeliveryRow, Refusal>, Error> {
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
                let place = place_of(&row)?;
                let found = lanes::events_at(&connection, std::iter::once(place)).await?;
                let Some(Ok(event)) = found.get(&place.seq).map(lanes::event) else { return Ok(Err(Refusal::PayloadGone)) };
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
            self.tell(vec![fed]);
            made
        }))
    }
}

const SELECT_BY_KEY: &str = "SELECT * FROM replays WHERE tenant IS NOT DISTINCT FROM $1 AND idempotency_key = $2";
const INSERT_REPLAY: &str =
    "INSERT INTO replays (id, tenant, filter, reason, requested_by, rate_per_minute, idempotency_key, state, matched, created,
                          cursor, up_to, created_at_ms)
     VALUES ($1, $2, $3, $4, $5, $6, $7, 'running', $8, 0, 0, $9, $10)";
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
    place: Place,
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

fn place_of(row: &Row) -> Result<Place, Error> {
    Ok(Place { slot: row::column(row, "event_slot")?, seq: row::column(row, "event_seq")? })
}

/// One row that a look went over, and what would be made of it.
struct Candidate {
    position: i64,
    made_of: Option<MadeOf>,
}

enum MadeOf {
    Delivery { endpoint: EndpointId, event_type: EventType, is_priority: bool, place: Place },
    MissedEvent { event: Arc<Event>, planned: Planned, place: Place },
}

impl MadeOf {
    fn endpoint(&self) -> EndpointId {
        match self {
            MadeOf::Delivery { endpoint, .. } => *endpoint,
            MadeOf::MissedEvent { planned, .. } => planned.endpoint,
        }
    }
}

struct Look {
    candidates: Vec<Candidate>,
    more: bool,
}

async fn look(
    database: &Database,
    connection: &Connection,
    filter: &ReplayFilter,
    after: i64,
    up_to: i64,
) -> Result<Look, Problem> {
    if filter.missing {
        return look_for_missing(database, connection, filter, after, up_to).await;
    }
    let endpoint = filter.endpoint.map(|endpoint| endpoint.to_bytes().to_vec());
    let tenant = filter.tenant.as_ref().map(TenantId::as_str);
    // What the index does not look at is filtered below.
    let rows = match (&endpoint, &tenant) {
        (Some(endpoint), _) => connection.query(LOOK_AT_ENDPOINT, &[&after, &up_to, &limit(SCAN_ROWS), endpoint]).await?,
        (None, Some(tenant)) => connection.query(LOOK_AT_TENANT, &[&after, &up_to, &limit(SCAN_ROWS), tenant]).await?,
        (None, None) => connection.query(LOOK_AT_ALL, &[&after, &up_to, &limit(SCAN_ROWS)]).await?,
    };
    let candidate = |row: &Row| {
        let delivery = history::delivery(row)?;
        let made_of = if filter.covers(&delivery) {
            Some(MadeOf::Delivery {
                endpoint: delivery.endpoint,
                event_type: delivery.event_type.clone(),
                is_priority: delivery.is_priority,
                place: place_of(row)?,
            })
        } else {
            None
        };
        Ok(Candidate { position: signed(delivery.seq), made_of })
    };
    let candidates = rows.iter().map(candidate).collect::<Result<Vec<_>, Error>>()?;
    Ok(Look { more: candidates.len() >= SCAN_ROWS, candidates })
}

const LOOK_AT_ENDPOINT: &str = select_deliveries!("WHERE d.endpoint = $4 AND d.seq > $1 AND d.seq <= $2 ORDER BY d.seq LIMIT $3");
const LOOK_AT_TENANT: &str = select_deliveries!("WHERE d.tenant = $4 AND d.seq > $1 AND d.seq <= $2 ORDER BY d.seq LIMIT $3");
const LOOK_AT_ALL: &str = select_deliveries!("WHERE d.seq > $1 AND d.seq <= $2 ORDER BY d.seq LIMIT $3");

/// Events that the endpoint wants now, and never had.
async fn look_for_missing(
    database: &Database,
    connection: &Connection,
    filter: &ReplayFilter,
    after: i64,
    up_to: i64,
) -> Result<Look, Problem> {
    let nothing = Look { candidates: vec![], more: false };
    let Some(endpoint) = filter.endpoint else { return Ok(nothing) };
    let id = endpoint.to_bytes().to_vec();
    let Some(row) = connection.query_opt(SELECT_ENDPOINT, &[&id]).await? else { return Ok(nothing) };
    let stored = configuration::endpoint_without_secrets(&row)?;
    let routing = routing::load(connection, &stored.tenant, &database.options).await?;
    let rows = connection.query(LOOK_FOR_MISSING, &[&id, &stored.tenant.as_str(), &after, &up_to, &limit(SCAN_EVENTS)]).await?;
    let mut candidates = Vec::with_capacity(rows.len());
    for row in &rows {
        let place = Place { slot: row::column(row, "slot")?, seq: row::column(row, "seq")? };
        let mut made_of = None;
        // What was erased or damaged cannot be sent.
        if !row::column::<bool>(row, "had")?
            && let Some(event) = lanes::event(row).ok().filter(|event| filter.covers_event(event))
            && let Some(planned) = routing.plan(&event).into_iter().find(|planned| planned.endpoint == endpoint)
        {
            made_of = Some(MadeOf::MissedEvent { event: Arc::new(event), planned, place });
        }
        candidates.push(Candidate { position: place.seq, made_of });
    }
    Ok(Look { more: candidates.len() >= SCAN_EVENTS, candidates })
}

const SELECT_ENDPOINT: &str = "SELECT * FROM endpoints WHERE id = $1 AND deleted_at_ms IS NULL";
/// The payload only of what it never had.
const LOOK_FOR_MISSING: &str =
    "SELECT e.slot, e.seq, e.tenant, e.id, e.type, e.version, e.timestamp_ms, e.accepted_at_ms, e.digest, e.labels,
            e.idempotency_key, e.ordering_key, e.deliver_at_ms, e.expires_at_ms, e.trace_context, h.had,
            CASE WHEN NOT h.had THEN e.data END AS data
     FROM ((SELECT * FROM events WHERE tenant = $2 AND seq > $3 AND seq <= $4 ORDER BY seq LIMIT $5)
           UNION ALL
           (SELECT k.* FROM events_kept k WHERE k.tenant = $2 AND k.seq > $3 AND k.seq <= $4
              AND NOT EXISTS (SELECT 1 FROM events e WHERE e.slot = k.slot AND e.seq = k.seq) ORDER BY k.seq LIMIT $5)) e
     CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_seq = e.seq AND d.endpoint = $1
                                          AND d.replay_of IS NULL) AS had) h
     ORDER BY e.seq LIMIT $5";

type Stepped = (Option<ReplayRow>, Vec<Fed>);

async fn step(
    database: &Database,
    connection: &Connection,
    opened: &super::in_flight::Opened,
    id: ReplayId,
    rows_max: usize,
    unfinished_max: usize,
) -> Result<Stepped, Problem> {
    let Some(row) = connection.query_opt(SELECT_TO_STEP, &[&id.to_bytes().as_slice()]).await? else { return Ok((None, vec![])) };
    let replay = replay_row(&row)?;
    if replay.state != ReplayState::Running {
        return Ok((Some(replay), vec![]));
    }
    let (after, up_to): (i64, i64) = (row::column(&row, "cursor")?, row::column(&row, "up_to")?);
    let now = database.clock_now();
    let Look { candidates, more } = look(database, connection, &replay.filter, after, up_to).await?;
    // No more than may be made: what is left over is looked at again.
    let mut is_at_the_end = !more;
    let (mut taken, mut wanted) = (0, 0);
    for candidate in &candidates {
        if candidate.made_of.is_some() {
            if wanted >= rows_max {
                is_at_the_end = false;
                break;
            }
            wanted += 1;
        }
        taken += 1;
    }
    let taken = &candidates[..taken];
    let endpoints: BTreeSet<EndpointId> = taken.iter().filter_map(|one| one.made_of.as_ref().map(MadeOf::endpoint)).collect();
    let mut unfinished = unfinished_replays(connection, &endpoints).await?;
    let targets = Targets::load(connection, endpoints).await?;
    let events = load_events(connection, taken).await?;

    let (mut cursor, mut rows) = (after, Vec::new());
    let of = Some(replay.id.to_bytes());
    for candidate in taken {
        if let Some(made_of) = &candidate.made_of {
            let waiting = unfinished.entry(made_of.endpoint()).or_default();
            if *waiting >= unfinished_max {
                is_at_the_end = false;
                break;
            }
            let new = match made_of {
                MadeOf::Delivery { endpoint, event_type, is_priority, place } => {
                    let planned = targets.planned(database, *endpoint, event_type, *is_priority);
                    // Behind what was there before it.
                    planned.zip(events.get(&place.seq)).map(|(planned, event)| {
                        again(database, event, *place, planned, replay.created_at, now, Some(candidate.position), of)
                    })
                }
                MadeOf::MissedEvent { event, planned, place } => {
                    Some(again(database, event, *place, *planned, replay.created_at, now, None, of))
                }
            };
            if let Some(new) = new {
                *waiting += 1;
                rows.push(new);
            }
        }
        cursor = candidate.position;
    }
    let fed = make_all(connection, opened, &mut rows).await?;
    connection
        .execute(UPDATE_REPLAY, &[&id.to_bytes().as_slice(), &cursor, &limit(rows.len()), &is_at_the_end, &now.as_millis()])
        .await?;
    Ok((by_id(connection, id).await?, fed))
}

/// Numbers them and writes them, and names them in what they repeat.
async fn make_all(
    connection: &Connection,
    opened: &super::in_flight::Opened,
    rows: &mut [NewDelivery<'_>],
) -> Result<Vec<Fed>, Problem> {
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
    "UPDATE replays SET cursor = $2, created = created + $3, state = CASE WHEN $4::boolean THEN 'done' ELSE state END,
            ended_at_ms = CASE WHEN $4 THEN $5::bigint END WHERE id = $1";

/// The events of deliveries that are made again, by their numbers; without those whose payload is gone.
async fn load_events(connection: &Connection, candidates: &[Candidate]) -> Result<HashMap<i64, Arc<Event>>, Problem> {
    let places = candidates.iter().filter_map(|candidate| match &candidate.made_of {
        Some(MadeOf::Delivery { place, .. }) => Some(*place),
        Some(MadeOf::MissedEvent { .. }) | None => None,
    });
    let found = lanes::events_at(connection, places).await?;
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
}

const SELECT_TARGETS: &str = "SELECT * FROM endpoints WHERE id = ANY($1::bytea[]) AND deleted_at_ms IS NULL";

async fn unfinished_replays(
    connection: &Connection,
    endpoints: &BTreeSet<EndpointId>,
) -> Result<HashMap<EndpointId, usize>, Problem> {
    let ids: Vec<Vec<u8>> = endpoints.iter().map(|id| id.to_bytes().to_vec()).collect();
    let mut found = HashMap::new();
    for row in connection.query(COUNT_UNFINISHED, &[&ids]).await? {
        let count = usize::try_from(row::column::<i64>(&row, "n")?).map_err(corrupt("count"))?;
        found.insert(EndpointId::from_bytes(row::bytes(&row, "endpoint")?), count);
    }
    Ok(found)
}

const COUNT_UNFINISHED: &str =
    "SELECT asked.endpoint, (SELECT count(*) FROM deliveries d WHERE d.endpoint = asked.endpoint AND d.status = 'waiting'
                               AND d.replay IS NOT NULL) AS n
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
        created_at: row::timestamp(row, "created_at_ms")?,
        ended_at: row::optional_timestamp(row, "ended_at_ms")?,
    })
}
