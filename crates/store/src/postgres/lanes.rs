//! What an owner reads and writes while it delivers: windows, bodies, records.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::event::{Event, EventType, Timing};
use posthaste_core::id::{DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::scheduler::{Class, Entry, Seq, WindowQuery};
use posthaste_core::text::{IdempotencyKey, OrderingKey, Version};
use tokio::time::timeout;
use tokio_postgres::Row;

use super::cluster::is_awaited;
use super::committer::Writing;
use super::connection::{CommitId, Connection, Flight, INSERT_COMMIT, Problem, Remedy, Retries, Use};
use super::row::{self, Parameters, optional_storable, storable};
use super::slots::{Slot, Table, day_of, slot};
use super::{Database, Postgres, configuration};
use crate::columns::{
    StateColumns, checked_data, class, class_code, labels, limit, millis, outcome_columns, signed, state_columns, trace_context,
    unsigned,
};
use crate::routing::schedule_of;
use crate::{
    AttemptRecord, Audit, Body, BodyError, DeliveryChange, Error, LaneState, Record, RecordResult, SweepPage, WindowRequest,
    WindowRows, document,
};

/// What a record is taken to weigh while it waits.
const RECORD_BYTES: usize = 512;
/// For everything but the commit of a group of records.
const RECORDING_MAX: Duration = Duration::from_secs(8);
/// How often tables are made for a group before it is given up.
const DETOURS_MAX: u32 = 3;

impl Database {
    /// A skip scan over each of the three queues: as many steps as there are endpoints with work.
    pub(super) async fn work(&self, after: Option<EndpointId>, rows_max: usize) -> Result<Vec<EndpointId>, Error> {
        self.read_for_work(|connection| async move {
            let after = after.map_or_else(Vec::new, |after| after.to_bytes().to_vec());
            let rows = connection.query(SELECT_WORK, &[&after, &limit(rows_max)]).await?;
            Ok(rows.iter().map(|row| Ok(EndpointId::from_bytes(row::bytes(row, "endpoint")?))).collect::<Result<_, Error>>()?)
        })
        .await
    }

    pub(super) async fn sweep(&self, after: Seq, rows_max: usize) -> Result<SweepPage, Error> {
        self.read_for_work(|connection| async move {
            // The last row first: what is committed between the statements is swept again, and not passed over.
            let highest = last_seq(&connection).await?;
            let last = connection.query_opt(SELECT_SWEPT_END, &[&signed(after), &limit(rows_max)]).await?;
            let last: Option<i64> = last.map(|row| row::column(&row, "seq")).transpose()?;
            let rows = connection.query(SELECT_SWEPT, &[&signed(after), &last.unwrap_or(i64::MAX)]).await?;
            let endpoint = |row| Ok(EndpointId::from_bytes(row::bytes(row, "endpoint")?));
            let endpoints = rows.iter().map(endpoint).collect::<Result<_, Error>>()?;
            Ok(SweepPage { endpoints, highest, next: last.map(unsigned) })
        })
        .await
    }

    pub(super) async fn windows(&self, asked: Vec<WindowRequest>) -> Result<Vec<WindowRows>, Error> {
        let asked = &asked;
        self.read_for_work(|connection| async move {
            // Before the look, as is the last row: whatever is committed meanwhile may be among its rows and is not said to be.
            let done = self.in_flight.all_done_up_to();
            let last = connection.prepare(SELECT_LAST_SEQ).await?;
            let mut selects = Vec::with_capacity(asked.len());
            for one in asked {
                let (sql, parameters) = select_window(one);
                selects.push((connection.prepare(sql).await?, parameters));
            }
            let mut flight = Flight::new(&connection);
            let last = flight.query(last, vec![]);
            let selects: Vec<_> = selects.into_iter().map(|(select, parameters)| flight.query(select, parameters)).collect();
            let landed = flight.land().await.map_err(|crash| crash.problem)?;
            let seen = landed[last].first().map(|row| row::column(row, "seq")).transpose()?.map_or(0, unsigned).min(done);
            let window = |(asked, select): (&WindowRequest, usize)| {
                let mut rows = landed[select].iter().map(entry).collect::<Result<Vec<_>, _>>()?;
                let more = rows.len() > asked.limit;
                rows.truncate(asked.limit);
                Ok(WindowRows { rows, more, seen })
            };
            asked.iter().zip(selects).map(window).collect()
        })
        .await
    }

    pub(super) async fn bodies(&self, deliveries: Vec<Seq>) -> Result<Vec<Body>, Error> {
        let asked = &deliveries;
        self.read_for_work(|connection| async move {
            let seqs: Vec<i64> = asked.iter().copied().map(signed).collect();
            let rows = connection.query(SELECT_EVENTS_OF_DELIVERIES, &[&seqs]).await?;
            let mut places = HashMap::new();
            for row in &rows {
                let of = EventLocation { slot: row::column(row, "event_slot")?, seq: row::column(row, "event_seq")? };
                let delivery = DeliveryId::from_bytes(row::bytes(row, "id")?);
                places.insert(row::column::<i64>(row, "seq")?, (delivery, row::text(row, "tenant")?, of));
            }
            let events = events_at(&connection, places.values().map(|(_, _, place)| *place)).await?;
            let body = |seq: &Seq| {
                let (delivery, tenant, place) = places.get(&signed(*seq))?;
                let found = events.get(&place.seq).filter(|row| row::text(row, "tenant").is_ok_and(|of| of == *tenant))?;
                Some(Body { seq: *seq, delivery: *delivery, event: event(found) })
            };
            Ok(asked.iter().filter_map(body).collect())
        })
        .await
    }

    pub(super) async fn lane(&self, endpoint: EndpointId) -> Result<Option<LaneState>, Error> {
        self.read_for_work(|connection| async move {
            let Some(row) = connection.query_opt(SELECT_LANE, &[&endpoint.to_bytes().as_slice()]).await? else { return Ok(None) };
            let (memory, timeout) = document::read_lane(row::text(&row, "document")?)?;
            Ok(Some(LaneState { memory, timeout, version: unsigned(row::column(&row, "version")?) }))
        })
        .await
    }

    pub(super) async fn restamp(&self, endpoint: EndpointId, after: Seq, rows_max: usize) -> Result<Option<Seq>, Error> {
        self.transact(|connection| async move { restamp(self, &connection, endpoint, after, rows_max).await }).await
    }
}

fn select_window(asked: &WindowRequest) -> (&'static str, Parameters<'_>) {
    let (endpoint, wanted) = (asked.endpoint.to_bytes().to_vec(), limit(asked.limit.saturating_add(1)));
    match &asked.want {
        WindowQuery::Fresh(class) => (SELECT_FRESH, row::parameters![endpoint, class_code(*class), wanted]),
        WindowQuery::Later(class) => (SELECT_LATER, row::parameters![endpoint, class_code(*class), wanted]),
        WindowQuery::Head(key) => (SELECT_HEAD, row::parameters![endpoint, key.as_str()]),
        WindowQuery::Heads { after } => {
            let after = after.as_ref().map_or("", OrderingKey::as_str);
            (SELECT_HEADS, row::parameters![endpoint, after, wanted])
        }
    }
}

impl Postgres {
    pub(super) async fn record_in_a_group(&self, records: Vec<Record>) -> Result<Vec<RecordResult>, Error> {
        self.0.recording.write(RECORD_BYTES * records.len(), records).await
    }
}

const SELECT_WORK: &str = "WITH RECURSIVE found (endpoint) AS (
       SELECT least(
         (SELECT d.endpoint FROM deliveries d WHERE d.endpoint > $1::bytea AND d.status = 'waiting' AND NOT d.is_later
            AND d.ordering_key IS NULL ORDER BY d.endpoint LIMIT 1),
         (SELECT d.endpoint FROM deliveries d WHERE d.endpoint > $1 AND d.status = 'waiting' AND d.is_later
            AND d.ordering_key IS NULL ORDER BY d.endpoint LIMIT 1),
         (SELECT d.endpoint FROM deliveries d WHERE d.endpoint > $1 AND d.status = 'waiting'
            AND d.ordering_key IS NOT NULL ORDER BY d.endpoint LIMIT 1))
       UNION ALL
       SELECT least(
         (SELECT d.endpoint FROM deliveries d WHERE d.endpoint > f.endpoint AND d.status = 'waiting' AND NOT d.is_later
            AND d.ordering_key IS NULL ORDER BY d.endpoint LIMIT 1),
         (SELECT d.endpoint FROM deliveries d WHERE d.endpoint > f.endpoint AND d.status = 'waiting' AND d.is_later
            AND d.ordering_key IS NULL ORDER BY d.endpoint LIMIT 1),
         (SELECT d.endpoint FROM deliveries d WHERE d.endpoint > f.endpoint AND d.status = 'waiting'
            AND d.ordering_key IS NOT NULL ORDER BY d.endpoint LIMIT 1))
       FROM found f WHERE f.endpoint IS NOT NULL)
     SELECT endpoint FROM found WHERE endpoint IS NOT NULL LIMIT $2";
const SELECT_LAST_SEQ: &str = "SELECT coalesce(max(seq), 0) AS seq FROM deliveries";
const SELECT_SWEPT: &str = "SELECT DISTINCT endpoint FROM deliveries WHERE seq > $1 AND seq <= $2 AND status = 'waiting'";
/// The last row of a page, if the page is full.
const SELECT_SWEPT_END: &str = "SELECT seq FROM deliveries WHERE seq > $1 ORDER BY seq LIMIT 1 OFFSET $2::bigint - 1";
const SELECT_FRESH: &str =
    "SELECT id, seq, timestamp_ms, due_at_ms, attempts, is_later, type, is_priority, class, ordering_key, expires_at_ms
     FROM deliveries WHERE endpoint = $1 AND class = $2 AND status = 'waiting' AND NOT is_later AND ordering_key IS NULL
     ORDER BY timestamp_ms, seq LIMIT $3";
const SELECT_LATER: &str =
    "SELECT id, seq, timestamp_ms, due_at_ms, attempts, is_later, type, is_priority, class, ordering_key, expires_at_ms
     FROM deliveries WHERE endpoint = $1 AND class = $2 AND status = 'waiting' AND is_later AND ordering_key IS NULL
     ORDER BY due_at_ms, seq LIMIT $3";
const SELECT_HEAD: &str =
    "SELECT id, seq, timestamp_ms, due_at_ms, attempts, is_later, type, is_priority, class, ordering_key, expires_at_ms
     FROM deliveries WHERE endpoint = $1 AND ordering_key = $2 AND status = 'waiting' AND ordering_key IS NOT NULL
     ORDER BY ordering_key, seq LIMIT 1";
/// A skip scan: the head of the next key, and so on.
const SELECT_HEADS: &str = "WITH RECURSIVE heads AS (
       (SELECT d.id, d.seq, d.timestamp_ms, d.due_at_ms, d.attempts, d.is_later, d.type, d.is_priority, d.class, d.ordering_key,
               d.expires_at_ms
        FROM deliveries d WHERE d.endpoint = $1 AND d.ordering_key > $2 AND d.status = 'waiting' AND d.ordering_key IS NOT NULL
        ORDER BY d.ordering_key, d.seq LIMIT 1)
       UNION ALL
       SELECT next.* FROM heads h CROSS JOIN LATERAL (
         SELECT d.id, d.seq, d.timestamp_ms, d.due_at_ms, d.attempts, d.is_later, d.type, d.is_priority, d.class, d.ordering_key,
                d.expires_at_ms
         FROM deliveries d
         WHERE d.endpoint = $1 AND d.ordering_key > h.ordering_key AND d.status = 'waiting' AND d.ordering_key IS NOT NULL
         ORDER BY d.ordering_key, d.seq LIMIT 1) next)
     SELECT * FROM heads LIMIT $3";
const SELECT_EVENTS_OF_DELIVERIES: &str = "SELECT seq, id, tenant, event_slot, event_seq FROM deliveries WHERE seq = ANY($1)";
const SELECT_LANE: &str = "SELECT document, version FROM lanes WHERE endpoint = $1";

pub(super) async fn last_seq(connection: &Connection) -> Result<Seq, Problem> {
    Ok(unsigned(row::column(&connection.query_one(SELECT_LAST_SEQ, &[]).await?, "seq")?))
}

/// Where an event is, unless it was kept aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EventLocation {
    pub(super) slot: Slot,
    pub(super) seq: i64,
}

/// Events by their numbers. Their own days are named, because each day that is not is one more table to look at.
pub(super) async fn events_at(
    connection: &Connection,
    places: impl Iterator<Item = EventLocation>,
) -> Result<HashMap<i64, Row>, Problem> {
    let (slots, seqs): (BTreeSet<Slot>, BTreeSet<i64>) = places.map(|place| (place.slot, place.seq)).unzip();
    if seqs.is_empty() {
        return Ok(HashMap::new());
    }
    let (slots, seqs): (Vec<_>, Vec<_>) = (slots.into_iter().collect(), seqs.into_iter().collect());
    // The days first: what is kept aside between the two is found by one of them.
    let (of_days, kept) = (connection.prepare(SELECT_EVENTS_OF_DAYS).await?, connection.prepare(SELECT_EVENTS_KEPT).await?);
    let mut flight = Flight::new(connection);
    flight.query(of_days, row::parameters![slots, seqs.clone()]);
    flight.query(kept, row::parameters![seqs]);
    let landed = flight.land().await.map_err(|crash| crash.problem)?;
    let mut found = HashMap::new();
    for row in landed.into_iter().flatten() {
        found.insert(row::column(&row, "seq")?, row);
    }
    Ok(found)
}

const SELECT_EVENTS_OF_DAYS: &str = "SELECT * FROM events WHERE slot = ANY($1) AND seq = ANY($2)";
const SELECT_EVENTS_KEPT: &str = "SELECT * FROM events_kept WHERE seq = ANY($1)";

fn entry(row: &Row) -> Result<Entry, Error> {
    Ok(Entry {
        delivery: DeliveryId::from_bytes(row::bytes(row, "id")?),
        seq: unsigned(row::column(row, "seq")?),
        timestamp: row::timestamp(row, "timestamp_ms")?,
        due: row::timestamp(row, "due_at_ms")?,
        attempts: row::count(row, "attempts")?,
        is_later: row::column(row, "is_later")?,
        event_type: row::parsed(row, "type", EventType::parse)?,
        is_priority: row::column(row, "is_priority")?,
        class: class(row::column(row, "class")?)?,
        ordering_key: row::optional(row, "ordering_key", OrderingKey::parse)?,
        expires_at: row::optional_timestamp(row, "expires_at_ms")?,
    })
}

/// An event with its payload, refused if that is not what was published.
pub(super) fn event(row: &Row) -> Result<Event, BodyError> {
    let data = row::optional_text(row, "data")?.ok_or(BodyError::Erased)?;
    let digest: [u8; 32] = row::bytes(row, "digest")?;
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

pub(super) fn timing(row: &Row) -> Result<Timing, Error> {
    Ok(Timing::stored(row::optional_timestamp(row, "deliver_at_ms")?, row::optional_timestamp(row, "expires_at_ms")?))
}

/// Writes groups of records.
#[derive(Debug)]
pub(super) struct Recording(pub(super) Arc<Database>);

impl Writing for Recording {
    type Call = Vec<Record>;
    type Answer = Vec<RecordResult>;

    async fn write(&self, calls: &mut [Vec<Record>]) -> Result<Vec<Vec<RecordResult>>, Problem> {
        let records: Vec<&Record> = calls.iter().flatten().collect();
        let mut answers = vec![RecordResult::NotOwner; records.len()];
        let all: Vec<usize> = (0..records.len()).collect();
        let strangers = self.0.record_group(&records, &all, false, &mut answers).await?;
        // Those of an earlier owner, if it has said that they would come. They are few and far between.
        let late: Vec<usize> = strangers.into_iter().filter(|place| seq_of(records[*place]).is_some()).collect();
        if !late.is_empty() {
            self.0.record_group(&records, &late, true, &mut answers).await?;
        }
        let mut answers = answers.into_iter();
        Ok(calls.iter().map(|call| answers.by_ref().take(call.len()).collect()).collect())
    }
}

fn seq_of(record: &Record) -> Option<i64> {
    match &record.recorded {
        DeliveryChange::Attempt { seq, .. } | DeliveryChange::Moved { seq, .. } => Some(signed(*seq)),
        DeliveryChange::Nothing => None,
    }
}

impl Database {
    /// Writes some of these records in one transaction, and says what came of each. Answers those whose partition has
    /// another owner, or none.
    async fn record_group(
        &self,
        records: &[&Record],
        places: &[usize],
        are_late: bool,
        answers: &mut [RecordResult],
    ) -> Result<Vec<usize>, Problem> {
        let (mut tries, mut detours) = (Retries::new(), 0);
        loop {
            let problem = match self.try_to_record(records, places, are_late).await {
                Ok(recorded) => {
                    for (place, answer) in &recorded {
                        answers[*place] = *answer;
                    }
                    return Ok(places.iter().copied().filter(|place| !recorded.contains_key(place)).collect());
                }
                Err(problem) => problem,
            };
            match problem.remedy() {
                Remedy::MakePartitions if detours < DETOURS_MAX => {
                    detours += 1;
                    self.slots.forget();
                    self.make_slots_of_attempts(records).await?;
                }
                Remedy::TryAgain => tries.again(problem).await?,
                Remedy::MakePartitions | Remedy::PlanAgain | Remedy::LeaveItOut | Remedy::Nothing => return Err(problem),
            }
        }
    }

    /// An attempt is kept as long as its event's class says, from its own day on.
    async fn make_slots_of_attempts(&self, records: &[&Record]) -> Result<(), Error> {
        let seqs = &records.iter().filter_map(|record| seq_of(record)).collect::<Vec<_>>();
        let classes: Vec<i32> = self
            .read_for_work(|connection| async move {
                let rows = connection.query(SELECT_CLASSES, &[seqs]).await?;
                Ok(rows.iter().map(|row| row::column(row, "class")).collect::<Result<_, _>>()?)
            })
            .await?;
        let days = records.iter().filter_map(|record| attempt_of(record)).map(|attempt| day_of(attempt.attempted_at));
        let slots = days.flat_map(|day| classes.iter().map(move |class| slot(day, *class))).collect();
        self.make_slots(Table::Attempts, &slots).await
    }

    async fn try_to_record(
        &self,
        records: &[&Record],
        places: &[usize],
        are_late: bool,
    ) -> Result<BTreeMap<usize, RecordResult>, Problem> {
        let connection = self.connection(Use::Committing).await?;
        let id = rand::random::<CommitId>();
        let slow = || Problem::Store(Error::unavailable("the database does not answer"));
        let disables = |place: &usize| records[*place].disables_endpoint.filter(|_| !are_late);
        let has_audit = |place: &usize| audit_of(records[*place]).is_some();
        let has_more_to_do = are_late || places.iter().any(|place| disables(place).is_some() || has_audit(place));
        // Two of the same delivery are written one after the other.
        let rounds = rounds(records, places);
        let is_one_statement = rounds.len() == 1 && !has_more_to_do;
        let prepare = async {
            let record = match (are_late, is_one_statement) {
                (true, _) => RECORD_LATE,
                (false, true) => RECORD_AT_ONCE,
                (false, false) => RECORD,
            };
            let lock = if are_late { Some(connection.prepare(LOCK_HANDED_OVER).await?) } else { None };
            Ok::<_, Problem>((lock, connection.prepare(record).await?, connection.prepare(INSERT_COMMIT).await?))
        };
        let (lock, record, commit) = timeout(RECORDING_MAX, prepare).await.map_err(|_| slow())??;
        let mut flight = Flight::new(&connection);
        let rounds: Vec<usize> = if is_one_statement {
            let mut parameters = record_parameters(records, &rounds[0], are_late);
            parameters.push(Box::new(id.to_vec()));
            vec![flight.query_that_commits(record, parameters)]
        } else {
            flight.begin();
            if let Some(lock) = lock {
                let seqs = places.iter().filter_map(|place| seq_of(records[*place])).collect::<Vec<_>>();
                flight.query(lock, row::parameters![seqs]);
            }
            let query = |round: &Vec<usize>| flight.query(record.clone(), record_parameters(records, round, are_late));
            rounds.iter().map(query).collect()
        };
        if !is_one_statement && !has_more_to_do {
            flight.query(commit.clone(), row::parameters![id.to_vec()]);
            flight.commit();
        }
        let landed = match flight.land().await {
            Ok(landed) => landed,
            Err(crash) if !crash.is_in_doubt => {
                connection.clean_up(&crash.problem).await;
                return Err(crash.problem);
            }
            Err(crash) => {
                // What each has come to was lost with the answers. If it was committed, running it again says so: by then
                // their attempts are recorded, and the lanes are the same.
                self.after_a_crash(&connection, crash, id).await?;
                return self.what_was_recorded(records, places, are_late).await;
            }
        };
        let mut recorded = BTreeMap::new();
        for row in rounds.iter().flat_map(|round| &landed[*round]) {
            let place = usize::try_from(row::column::<i32>(row, "place")?).map_err(crate::columns::corrupt("place"))?;
            // One that was done is named twice.
            if row::column(row, "is_done")? {
                recorded.insert(place, RecordResult::Done);
            } else {
                recorded.entry(place).or_insert(RecordResult::MovedOn);
            }
        }
        if has_more_to_do {
            let is_done = |place: &&usize| recorded.get(*place) == Some(&RecordResult::Done);
            let done: Vec<usize> = places.iter().filter(is_done).copied().collect();
            let finish = async {
                if are_late {
                    let seqs: Vec<i64> = done.iter().filter_map(|place| seq_of(records[*place])).collect();
                    connection.execute(DELETE_HANDED_OVER, &[&seqs]).await?;
                }
                for (place, reason) in done.iter().filter_map(|place| disables(place).map(|reason| (place, reason))) {
                    let endpoint = records[*place].endpoint;
                    configuration::disable_endpoint(&connection, endpoint, reason, self.clock_now()).await?;
                }
                for audit in done.iter().filter_map(|place| audit_of(records[*place])) {
                    configuration::write_audit(&connection, audit, self.clock_now()).await?;
                }
                Ok::<_, Problem>(())
            };
            if let Err(problem) = timeout(RECORDING_MAX, finish).await.unwrap_or_else(|_| Err(slow())) {
                connection.clean_up(&problem).await;
                return Err(problem);
            }
            let mut flight = Flight::new(&connection);
            flight.query(commit, row::parameters![id.to_vec()]);
            flight.commit();
            if let Err(crash) = flight.land().await {
                self.after_a_crash(&connection, crash, id).await?;
                return Ok(recorded);
            }
        }
        connection.mark_reusable();
        Ok(recorded)
    }

    /// After a commit whose answers were lost: an attempt that is there under its own id was recorded by it.
    async fn what_was_recorded(
        &self,
        records: &[&Record],
        places: &[usize],
        are_late: bool,
    ) -> Result<BTreeMap<usize, RecordResult>, Problem> {
        let seqs = &places.iter().filter_map(|place| seq_of(records[*place])).collect::<Vec<_>>();
        let partitions = &places.iter().map(|place| partition_of_record(records[*place])).collect::<Vec<_>>();
        let (attempts, states, epochs) = self
            .read_for_work(|connection| async move {
                let attempts = connection.query(SELECT_ATTEMPT_IDS, &[seqs]).await?;
                let states = connection.query(SELECT_STATES, &[seqs]).await?;
                let epochs = connection.query(SELECT_EPOCHS, &[partitions]).await?;
                Ok((attempts, states, epochs))
            })
            .await?;
        let attempts = attempts.iter().map(|row| row::bytes::<16>(row, "id")).collect::<Result<BTreeSet<_>, _>>()?;
        let mut present = HashMap::new();
        for row in &states {
            let columns = (
                row::text(row, "status")?,
                row::column::<Option<i64>>(row, "due_at_ms")?,
                row::column::<Option<i64>>(row, "ended_at_ms")?,
            );
            present.insert(row::column::<i64>(row, "seq")?, columns);
        }
        let mut owned = BTreeSet::new();
        for row in &epochs {
            owned.insert((row::column::<i16>(row, "id")?, row::column::<i64>(row, "epoch")?));
        }
        let mut recorded = BTreeMap::new();
        for place in places {
            let record = records[*place];
            let is_done = match &record.recorded {
                DeliveryChange::Attempt { attempt, .. } => attempts.contains(&attempt.id.to_bytes()),
                DeliveryChange::Moved { seq, state, .. } => {
                    let StateColumns { status, due_at_ms, ended_at_ms, .. } = state_columns(*state);
                    present.get(&signed(*seq)) == Some(&(status, due_at_ms, ended_at_ms))
                }
                DeliveryChange::Nothing => true,
            };
            if is_done || are_late || owned.contains(&(partition_of_record(record), signed(record.epoch))) {
                recorded.insert(*place, if is_done { RecordResult::Done } else { RecordResult::MovedOn });
            }
        }
        Ok(recorded)
    }
}

fn attempt_of(record: &Record) -> Option<&AttemptRecord> {
    match &record.recorded {
        DeliveryChange::Attempt { attempt, .. } => Some(attempt),
        DeliveryChange::Moved { .. } | DeliveryChange::Nothing => None,
    }
}

fn audit_of(record: &Record) -> Option<&Audit> {
    match &record.recorded {
        DeliveryChange::Moved { audit, .. } => audit.as_deref(),
        DeliveryChange::Attempt { .. } | DeliveryChange::Nothing => None,
    }
}

fn partition_of_record(record: &Record) -> i16 {
    i16::try_from(record.partition).unwrap_or(-1)
}

/// As many as can be written by one statement, in order: a new round begins where a delivery comes up again.
fn rounds(records: &[&Record], places: &[usize]) -> Vec<Vec<usize>> {
    let (mut rounds, mut seen) = (vec![Vec::new()], BTreeSet::new());
    for place in places {
        if let Some(seq) = seq_of(records[*place])
            && !seen.insert(seq)
        {
            seen = BTreeSet::from([seq]);
            rounds.push(Vec::new());
        }
        rounds.last_mut().expect("there is always one").push(*place);
    }
    rounds
}

fn record_parameters<'a>(records: &[&'a Record], round: &[usize], are_late: bool) -> Parameters<'a> {
    let all: Vec<&'a Record> = round.iter().map(|place| records[*place]).collect();
    let attempts: Vec<Option<&'a AttemptRecord>> = all.iter().map(|record| attempt_of(record)).collect();
    let states: Vec<Option<StateColumns>> = all
        .iter()
        .map(|record| match &record.recorded {
            DeliveryChange::Attempt { state, .. } | DeliveryChange::Moved { state, .. } => Some(state_columns(*state)),
            DeliveryChange::Nothing => None,
        })
        .collect();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.map(|attempt| outcome_columns(attempt.outcome))).collect();
    let lane = |record: &&Record| record.lane.as_ref().map(|LaneState { memory, timeout, .. }| document::lane(memory, timeout));
    let of_attempts =
        |column: fn(&AttemptRecord) -> Option<i64>| row::if_any(attempts.iter().map(|attempt| attempt.and_then(column)));
    let of_states =
        |column: fn(&StateColumns) -> Option<&'static str>| row::if_any(states.iter().map(|state| state.as_ref().and_then(column)));
    let mut parameters: Parameters<'a> = row::parameters![
        round.iter().map(|place| i32::try_from(*place).unwrap_or(i32::MAX)).collect::<Vec<_>>(),
        all.iter().map(|record| partition_of_record(record)).collect::<Vec<_>>(),
        all.iter().map(|record| signed(record.epoch)).collect::<Vec<_>>(),
        // Asked for beside what is known of its lane.
        row::if_any(all.iter().map(|record| record.lane.as_ref().map(|_| record.endpoint.to_bytes().to_vec()))),
        all.iter().map(|record| seq_of(record)).collect::<Vec<_>>(),
        of_states(|state| Some(state.status)),
        row::if_any(states.iter().map(|state| state.and_then(|state| state.due_at_ms))),
        row::if_any(states.iter().map(|state| state.and_then(|state| state.ended_at_ms))),
        of_states(|state| state.dead_reason),
        of_states(|state| state.cancel_reason),
        attempts.iter().map(|attempt| attempt.map(|attempt| number(attempt.number))).collect::<Vec<_>>(),
        attempts.iter().map(|attempt| attempt.map(|attempt| attempt.id.to_bytes().to_vec())).collect::<Vec<_>>(),
        outcomes.iter().map(|outcome| outcome.map(|(name, _)| name)).collect::<Vec<_>>(),
        outcomes.iter().map(|outcome| outcome.and_then(|(_, code)| code).map(i32::from)).collect::<Vec<_>>(),
        of_attempts(|attempt| Some(millis(attempt.response_time))),
        of_attempts(|attempt| attempt.timings.dns.map(millis)),
        of_attempts(|attempt| attempt.timings.connect.map(millis)),
        of_attempts(|attempt| attempt.timings.tls.map(millis)),
        of_attempts(|attempt| attempt.timings.first_byte.map(millis)),
        of_attempts(|attempt| Some(millis(attempt.timeout))),
        row::if_any(attempts.iter().map(|attempt| attempt.and_then(|attempt| optional_storable(attempt.preview.as_ref())))),
        row::if_any(attempts.iter().map(|attempt| attempt.and_then(|attempt| optional_storable(attempt.error.as_ref())))),
        of_attempts(|attempt| Some(attempt.attempted_at.as_millis())),
        attempts.iter().map(|attempt| attempt.map(|attempt| day_of(attempt.attempted_at))).collect::<Vec<_>>(),
        // A leaver has no say in the lane any more.
        row::if_any(all.iter().map(|record| lane(record).filter(|_| !are_late).map(|lane| storable(&lane).into_owned()))),
        row::if_any(all.iter().map(|record| record.lane.as_ref().map(|lane| signed(lane.version)))),
        row::if_any(attempts.iter().map(|attempt| attempt.and_then(|attempt| attempt.endpoint_version).map(version_column))),
    ];
    if !are_late {
        let partitions: BTreeSet<i16> = all.iter().map(|record| partition_of_record(record)).collect();
        parameters.push(Box::new(partitions.into_iter().collect::<Vec<_>>()));
    }
    parameters
}

fn version_column(version: u64) -> i32 {
    i32::try_from(version).unwrap_or(i32::MAX)
}

fn number(attempt: u32) -> i32 {
    i32::try_from(attempt).unwrap_or(i32::MAX)
}

const LOCK_HANDED_OVER: &str =
    "SELECT delivery_seq FROM handed_over WHERE delivery_seq = ANY($1::bigint[]) ORDER BY delivery_seq FOR UPDATE";
const DELETE_HANDED_OVER: &str = "DELETE FROM handed_over WHERE delivery_seq = ANY($1)";

/// Answers a row for each that may be recorded, and another for each that was: deliveries move on, their attempts are kept, and
/// the lane is written, together.
macro_rules! record {
    ($comment:literal, $allowed:expr, $commit:literal) => {
        concat!(
            $comment,
            "WITH given AS (
               SELECT * FROM unnest($1::int[], $2::smallint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::text[], $7::bigint[],
                                    $8::bigint[], $9::text[], $10::text[], $11::int[], $12::bytea[], $13::text[], $14::int[],
                                    $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[],
                                    $21::text[], $22::text[], $23::bigint[], $24::int[], $25::text[], $26::bigint[], $27::int[])
                 AS g (place, partition, epoch, endpoint, seq, status, due_at_ms, ended_at_ms, dead_reason, cancel_reason, number,
                       id, outcome, status_code, response_time_ms, dns_ms, connect_ms, tls_ms, first_byte_ms, timeout_ms, preview,
                       error, attempted_at_ms, day, document, version, endpoint_version)
             ), ",
            $allowed,
            ", moved AS (
               UPDATE deliveries d SET status = a.status, due_at_ms = a.due_at_ms, ended_at_ms = a.ended_at_ms,
                      dead_reason = a.dead_reason, cancel_reason = a.cancel_reason, attempts = coalesce(a.number, d.attempts),
                      is_later = d.is_later OR (a.number IS NOT NULL AND a.status = 'waiting'),
                      last_attempt_at_ms = CASE WHEN a.number IS NULL THEN d.last_attempt_at_ms ELSE a.attempted_at_ms END,
                      last_status_code = CASE WHEN a.number IS NULL THEN d.last_status_code ELSE a.status_code END,
                      last_error = CASE WHEN a.number IS NULL THEN d.last_error ELSE a.error END,
                      last_endpoint_version = CASE WHEN a.number IS NULL THEN d.last_endpoint_version ELSE a.endpoint_version END
               FROM allowed a WHERE d.seq = a.seq AND d.status = 'waiting' AND (a.number IS NULL OR d.attempts = a.number - 1)
               RETURNING a.place, d.endpoint, d.tenant, a.status, a.day * 4 + (d.event_slot & 3) AS slot, a.seq, a.number, a.id, a.outcome, a.status_code,
                         a.response_time_ms, a.dns_ms, a.connect_ms, a.tls_ms, a.first_byte_ms, a.timeout_ms, a.preview, a.error,
                         a.attempted_at_ms, a.endpoint_version
             ), tried AS (
               INSERT INTO attempts (slot, delivery_seq, number, id, outcome, status_code, response_time_ms, dns_ms, connect_ms,
                                     tls_ms, first_byte_ms, timeout_ms, preview, error, attempted_at_ms, endpoint_version)
               SELECT slot, seq, number, id, outcome, status_code, response_time_ms, dns_ms, connect_ms, tls_ms, first_byte_ms,
                      timeout_ms, preview, error, attempted_at_ms, endpoint_version
               FROM moved WHERE number IS NOT NULL
             ), noted AS (
               INSERT INTO uncounted_attempts (endpoint, tenant, attempted_at_ms, status, is_timeout, millis)
               SELECT array_agg(endpoint), array_agg(tenant), array_agg(attempted_at_ms), array_agg(status),
                      array_agg(outcome = 'timeout'),
                      array_agg(CASE WHEN outcome = 'timeout' THEN timeout_ms ELSE response_time_ms END)
               FROM moved WHERE number IS NOT NULL HAVING count(*) > 0
             ), known AS (
               INSERT INTO lanes (endpoint, document, version)
               SELECT DISTINCT ON (a.endpoint) a.endpoint, a.document, a.version FROM allowed a
               WHERE a.document IS NOT NULL AND (a.seq IS NULL OR a.place IN (SELECT place FROM moved))
               ORDER BY a.endpoint, a.version DESC
               ON CONFLICT (endpoint) DO UPDATE SET document = excluded.document, version = excluded.version
               WHERE excluded.version > lanes.version
             )",
            $commit,
            " SELECT place, TRUE AS is_done FROM moved UNION ALL SELECT place, seq IS NULL FROM allowed"
        )
    };
}

/// An epoch that was read without a lock would be no fence: the partition could change hands before the commit. What a lock was
/// waited for is read as it is then. A partition that nobody owns has been given up by whoever writes under its epoch.
macro_rules! record_as_owner {
    ($comment:literal, $commit:literal) => {
        record!(
            $comment,
            "locked AS MATERIALIZED (
               SELECT id, epoch FROM partitions WHERE id = ANY($28::smallint[]) AND owner IS NOT NULL ORDER BY id FOR SHARE
             ), allowed AS MATERIALIZED (
               SELECT g.* FROM given g WHERE (g.partition, g.epoch) IN (SELECT id, epoch FROM locked)
             )",
            $commit
        )
    };
}
const RECORD: &str = record_as_owner!("", "");
const RECORD_AT_ONCE: &str =
    record_as_owner!("/* commit */ ", ", named AS (INSERT INTO commits (id, at) VALUES ($29::bytea, clock_timestamp()))");
/// Under an old epoch a leaver may record exactly what it said it would.
const RECORD_LATE: &str = record!(
    "",
    concat!(
        "allowed AS MATERIALIZED (
       SELECT g.* FROM given g WHERE EXISTS (
         SELECT 1 FROM handed_over h WHERE h.delivery_seq = g.seq AND h.epoch = g.epoch AND ",
        is_awaited!(),
        "))"
    ),
    ""
);
const SELECT_CLASSES: &str = "SELECT DISTINCT event_slot & 3 AS class FROM deliveries WHERE seq = ANY($1)";
const SELECT_ATTEMPT_IDS: &str = "SELECT id FROM attempts WHERE delivery_seq = ANY($1)";
const SELECT_STATES: &str = "SELECT seq, status, due_at_ms, ended_at_ms FROM deliveries WHERE seq = ANY($1)";
const SELECT_EPOCHS: &str = "SELECT id, epoch FROM partitions WHERE id = ANY($1) AND owner IS NOT NULL";

async fn restamp(
    database: &Database,
    connection: &Connection,
    endpoint: EndpointId,
    after: Seq,
    rows_max: usize,
) -> Result<Option<Seq>, Problem> {
    let Some(row) = connection.query_opt(SELECT_ENDPOINT, &[&endpoint.to_bytes().as_slice()]).await? else { return Ok(None) };
    let stored = configuration::endpoint_without_secrets(&row)?;
    let tenant = configuration::tenant(connection, &stored.tenant).await?.map(|stored| stored.tenant);
    let schedule = schedule_of(&database.options.policies, tenant.as_ref(), &stored);
    // Keyed rows are found by their key, whatever their class.
    let rows = connection.query(SELECT_TO_RESTAMP, &[&endpoint.to_bytes().as_slice(), &signed(after), &limit(rows_max)]).await?;
    let (mut seqs, mut classes, mut last) = (Vec::new(), Vec::new(), None);
    for row in &rows {
        let event_type = row::parsed(row, "type", EventType::parse)?;
        let present = Class::of(&event_type, row::column(row, "is_priority")?, schedule.as_ref());
        let seq: i64 = row::column(row, "seq")?;
        if row::text(row, "status")? == "waiting" && class(row::column(row, "class")?)? != present {
            seqs.push(seq);
            classes.push(class_code(present));
        }
        last = Some(unsigned(seq));
    }
    if !seqs.is_empty() {
        connection.execute(RESTAMP, &[&seqs, &classes]).await?;
    }
    Ok(last.filter(|_| rows.len() >= rows_max))
}

/// Locked, so that the configuration does not change between the read and the stamps: a stamp by an old configuration that comes late
/// would hide rows from the owner that goes by the new one.
const SELECT_ENDPOINT: &str = "SELECT * FROM endpoints WHERE id = $1 FOR SHARE";
const SELECT_TO_RESTAMP: &str =
    "SELECT seq, type, is_priority, class, status FROM deliveries WHERE endpoint = $1 AND seq > $2 ORDER BY seq LIMIT $3";
/// One that has ended meanwhile is left as it is.
const RESTAMP: &str = "UPDATE deliveries d SET class = other.class FROM unnest($1::bigint[], $2::smallint[]) AS other (seq, class)
                       WHERE d.seq = other.seq AND d.status = 'waiting'";

#[cfg(test)]
mod tests {
    use posthaste_core::delivery::State;
    use posthaste_core::time::Timestamp;

    use super::*;

    #[test]
    fn two_records_of_one_delivery_are_written_one_after_the_other_and_in_order() {
        let at = Timestamp::from_millis(1);
        let record = |seq: Option<Seq>| Record {
            partition: 1,
            epoch: 1,
            endpoint: EndpointId::from_bytes([1; 16]),
            recorded: seq.map_or(DeliveryChange::Nothing, |seq| DeliveryChange::Moved {
                seq,
                state: State::Waiting { due: at },
                audit: None,
            }),
            lane: None,
            disables_endpoint: None,
        };
        let records = [Some(7), None, Some(8), Some(7), Some(9), Some(9)].map(record);
        let records: Vec<&Record> = records.iter().collect();
        assert_eq!(rounds(&records, &[0, 1, 2, 3, 4, 5]), [vec![0, 1, 2], vec![3, 4], vec![5]]);
    }
}
