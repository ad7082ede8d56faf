//! Publishing: the event and its deliveries, or nothing.
//!
//! A plan is made outside of the transaction, and the transaction's last statement compares what it was made by with what the
//! database says then. A change that was committed before that statement is seen, and the group is planned again. One that is
//! committed after it had not been answered when the publish was under way, so that either order of the two is right; and
//! whoever publishes after the answer to a change compares after it. So nothing has to be locked.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::State as DeliveryState;
use posthaste_core::event::{Event, EventType};
use posthaste_core::filter::TooCostly;
use posthaste_core::id::{DeliveryId, EventId, TenantId};
use posthaste_core::scheduler::Entry;
use posthaste_core::text::{IdempotencyKey, OrderingKey, Version};
use posthaste_core::time::Timestamp;
use posthaste_core::trace::TraceContext;
use tokio::time::timeout;
use tokio_postgres::Row;

use super::committer::Writing;
use super::connection::{CommitId, Connection, Flight, Problem, Remedy, Retries, Use};
use super::in_flight::Opened;
use super::row::{self, Parameters};
use super::slots::{Slot, Table, end_of, slot_of};
use super::{Database, Postgres, configuration};
use crate::columns::{class_code, lines, millis, signed, state_columns, unsigned};
use crate::feed::CommittedDelivery;
use crate::publishing::{DuplicateBy, answer_for_our_ids, digest_of, merge, unanswered};
use crate::routing::{Planned, Routing, Versions};
use crate::{Error, NewEvent, Published, partition_of};

/// What a row weighs beside its payload.
const ROW_BYTES: usize = 512;
/// How often a group is planned again, or tables are made for it, before it is given up.
const DETOURS_MAX: u32 = 5;
/// For everything before the commit.
const DECIDING_MAX: Duration = Duration::from_secs(5);

/// An event whose deliveries have been chosen.
#[derive(Debug)]
pub(super) struct Plan {
    new: NewEvent,
    digest: [u8; 32],
    slot: Slot,
    versions: Versions,
    chosen: Vec<Planned>,
    /// Set if its endpoints cannot be chosen: it is not written.
    too_costly: Option<TooCostly>,
}

impl Plan {
    async fn new(new: NewEvent, routing: &Arc<Routing>) -> Result<Plan, Error> {
        let digest = digest_of(&new.event).await?;
        let mut plan = Plan { new, digest, slot: 0, versions: routing.versions, chosen: vec![], too_costly: None };
        plan.make_by(routing).await?;
        Ok(plan)
    }

    async fn make_by(&mut self, routing: &Arc<Routing>) -> Result<(), Error> {
        self.versions = routing.versions;
        let planned = routing.plan(&self.new.event).await?;
        self.too_costly = planned.as_ref().err().copied();
        self.chosen = planned.unwrap_or_default();
        self.slot = slot_of(self.new.event.accepted_at, routing.retention);
        Ok(())
    }

    /// By what it would be known again: its key, and the id that was chosen for it.
    fn keys(&self) -> impl Iterator<Item = Key<'_>> {
        let event = &self.new.event;
        let tenant = event.tenant.as_str();
        let key = event.idempotency_key.as_ref().map(|key| Key { tenant, kind: "key", name: key.as_str() });
        let id = self.new.is_id_chosen.then(|| Key { tenant, kind: "id", name: event.id.as_str() });
        key.into_iter().chain(id)
    }

    fn duplicate(&self, of: &Plan, key: &Key<'_>) -> Published {
        if self.new.fingerprint != of.new.fingerprint {
            return Published::Conflict { event: of.new.event.id.clone(), by: DuplicateBy::of_kind(key.kind) };
        }
        let event = &of.new.event;
        Published::Duplicate {
            event: event.id.clone(),
            event_type: event.event_type.clone(),
            timestamp: event.timestamp,
            deliveries: count(of.chosen.len()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Key<'a> {
    tenant: &'a str,
    kind: &'static str,
    name: &'a str,
}

fn count(deliveries: usize) -> u32 {
    u32::try_from(deliveries).unwrap_or(u32::MAX)
}

impl Postgres {
    pub(super) async fn publish_in_a_group(&self, events: Vec<NewEvent>) -> Result<Vec<Published>, Error> {
        let find = |event: &Event| self.0.database.published_event(event.tenant.clone(), event.id.clone());
        let (events, mut answers) = answer_for_our_ids(events, find).await?;
        let mut plans = Vec::with_capacity(events.len());
        let mut bytes = 0;
        for (new, place) in events.into_iter().zip(unanswered(&answers)) {
            let routing = self.0.database.routing_of_a_publisher(&new.event.tenant).await?;
            let plan = Plan::new(new, &routing).await?;
            if let Some(too_costly) = plan.too_costly {
                answers[place] = Some(Published::TooCostly(too_costly));
                continue;
            }
            plan.new.mark_resolved();
            bytes += plan.new.event.data.as_str().len() + ROW_BYTES * (1 + plan.chosen.len());
            plans.push(plan);
        }
        if plans.is_empty() {
            return Ok(merge(answers, vec![]));
        }
        Ok(merge(answers, self.0.publishing.write(bytes, plans).await?))
    }
}

/// Writes groups of publishers.
#[derive(Debug)]
pub(super) struct Publishing(pub(super) Arc<Database>);

impl Writing for Publishing {
    type Call = Vec<Plan>;
    type Answer = Vec<Published>;

    async fn write(&self, calls: &mut [Vec<Plan>]) -> Result<Vec<Vec<Published>>, Problem> {
        let (mut tries, mut detours) = (Retries::new(), 0);
        if !are_of_one_mind(calls) {
            self.0.plan_again(calls).await?;
        }
        loop {
            let plans: Vec<&Plan> = calls.iter().flatten().collect();
            let problem = match self.0.try_to_publish(&plans).await {
                Ok(answers) => {
                    let mut answers = answers.into_iter();
                    return Ok(calls.iter().map(|call| answers.by_ref().take(call.len()).collect()).collect());
                }
                Err(problem) => problem,
            };
            let remedy = problem.remedy();
            if detours >= DETOURS_MAX && remedy != Remedy::TryAgain {
                return Err(problem);
            }
            detours += 1;
            match remedy {
                Remedy::PlanAgain => self.0.plan_again(calls).await?,
                // Another node has dropped it, because it was old.
                Remedy::MakePartitions => self.0.slots.forget(),
                Remedy::TryAgain => tries.again(problem).await?,
                Remedy::LeaveItOut | Remedy::Nothing => return Err(problem),
            }
        }
    }
}

/// Whether all plans of a tenant were made by the same version, and all by the same catalogue.
fn are_of_one_mind(calls: &[Vec<Plan>]) -> bool {
    let mut known: HashMap<&str, Versions> = HashMap::new();
    let mut plans = calls.iter().flatten();
    let Some(catalogue) = calls.iter().flatten().next().map(|plan| plan.versions.catalogue) else { return true };
    plans.all(|plan| {
        plan.versions.catalogue == catalogue
            && *known.entry(plan.new.event.tenant.as_str()).or_insert(plan.versions) == plan.versions
    })
}

/// What is known about a group before its rows are written.
struct Decided {
    /// Where a key had to name them; the others get theirs when they are written.
    event_seqs: Vec<Option<i64>>,
    /// `None` where it is to be written.
    answers: Vec<Option<Published>>,
    has_begun: bool,
}

impl Database {
    /// The routing of a tenant that is there, because it is made if it is not: in a transaction of its own, so that many
    /// who publish for a new tenant at once do not wait for each other's commits.
    async fn routing_of_a_publisher(&self, tenant: &TenantId) -> Result<Arc<Routing>, Error> {
        let mut routing = self.routing(tenant).await?;
        while routing.versions.tenant == 0 {
            self.run(
                Use::Verb,
                |connection| async move { configuration::make_tenant(&connection, tenant, self.clock_now()).await },
            )
            .await?;
            routing = self.load_routing(tenant).await?;
        }
        Ok(routing)
    }

    async fn plan_again(&self, calls: &mut [Vec<Plan>]) -> Result<(), Error> {
        let tenants: BTreeSet<TenantId> = calls.iter().flatten().map(|plan| plan.new.event.tenant.clone()).collect();
        self.refresh_routings(&tenants).await?;
        let mut routings = HashMap::new();
        for tenant in tenants {
            let routing = self.routing_of_a_publisher(&tenant).await?;
            routings.insert(tenant, routing);
        }
        for plan in calls.iter_mut().flatten() {
            plan.make_by(&routings[&plan.new.event.tenant]).await?;
        }
        Ok(())
    }

    async fn try_to_publish(&self, plans: &[&Plan]) -> Result<Vec<Published>, Problem> {
        let slots: BTreeSet<Slot> = plans.iter().map(|plan| plan.slot).collect();
        self.make_slots(Table::Events, &slots).await?;
        // Held until it is known what has become of the rows, and told of.
        let opened = self.in_flight.open();
        let connection = self.connection(Use::Committing).await?;
        let deciding = async {
            let decided = decide(self, &connection, plans).await?;
            let has_one_each = plans.iter().all(|plan| plan.chosen.len() == 1);
            let publish = match (decided.has_begun, has_one_each) {
                (true, _) => PUBLISH,
                (false, true) => PUBLISH_ONE_EACH_AT_ONCE,
                (false, false) => PUBLISH_AT_ONCE,
            };
            Ok((decided, connection.prepare(publish).await?))
        };
        let (decided, publish) = match timeout(DECIDING_MAX, deciding).await {
            Ok(Ok(decided)) => decided,
            Ok(Err(problem)) => {
                connection.clean_up(&problem).await;
                return Err(problem);
            }
            Err(_) => return Err(Error::unavailable("the database does not answer").into()),
        };
        let made: Vec<usize> = (0..plans.len()).filter(|place| decided.answers[*place].is_none()).collect();
        if made.is_empty() {
            // Nothing but duplicates.
            connection.roll_back().await;
            return Ok(decided.answers.into_iter().flatten().collect());
        }
        let rows = deliveries_of(self, plans, &made);
        let id = rand::random::<CommitId>();
        let mut flight = Flight::new(&connection);
        let parameters = publish_parameters(plans, &made, &decided, &rows, id);
        let published = if decided.has_begun {
            let published = flight.query(publish, parameters);
            flight.commit();
            published
        } else {
            flight.query_that_commits(publish, parameters)
        };
        let seqs = match flight.land().await {
            Ok(landed) => {
                connection.mark_reusable();
                seqs_by_id(&landed[published])
            }
            Err(crash) => {
                self.after_a_crash(&connection, crash, id).await?;
                self.seqs_of(&rows).await
            }
        };
        self.tell_of(&rows, seqs, &opened);
        drop(opened);
        let answers = decided.answers.into_iter().zip(plans);
        Ok(answers.map(|(answer, plan)| answer.unwrap_or(Published::Made { deliveries: count(plan.chosen.len()) })).collect())
    }

    /// The numbers of rows that were committed, and whose answer was lost.
    async fn seqs_of(&self, rows: &[NewDelivery<'_>]) -> Result<HashMap<DeliveryId, i64>, Error> {
        let ids = &rows.iter().map(|row| row.id.to_bytes().to_vec()).collect::<Vec<_>>();
        self.read(|connection| async move {
            let rows = connection.query(SELECT_SEQS, &[ids]).await?;
            Ok(seqs_by_id(&rows)?)
        })
        .await
    }

    /// They are committed, so that whatever fails here is made up for by a sweep.
    fn tell_of(&self, rows: &[NewDelivery<'_>], seqs: Result<HashMap<DeliveryId, i64>, Error>, opened: &Opened) {
        if rows.is_empty() {
            return;
        }
        let mut fed = Vec::new();
        match seqs {
            Ok(seqs) => {
                opened.got(&seqs.values().copied().map(unsigned).collect::<Vec<_>>());
                if self.feeder.has_listener() {
                    fed = rows.iter().filter_map(|row| Some(NewDelivery { seq: *seqs.get(&row.id)?, ..*row }.fed())).collect();
                }
                if fed.len() < rows.len() {
                    self.feeder.mark_overflow();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "what was just published is not known to the scheduler before its next sweep");
                self.feeder.mark_overflow();
            }
        }
        self.send_to_feed(fed);
    }
}

fn seqs_by_id(rows: &[Row]) -> Result<HashMap<DeliveryId, i64>, Error> {
    rows.iter().map(|row| Ok((DeliveryId::from_bytes(row::bytes(row, "id")?), row::column(row, "seq")?))).collect()
}

/// Finds out which events were published before. Those that could have been get their numbers now, for their keys to name.
async fn decide(database: &Database, connection: &Connection, plans: &[&Plan]) -> Result<Decided, Problem> {
    let mut decided = Decided {
        event_seqs: plans.iter().map(|_| None).collect(),
        answers: plans.iter().map(|plan| plan.too_costly.map(Published::TooCostly)).collect(),
        has_begun: false,
    };
    let mut undecided: Vec<usize> =
        (0..plans.len()).filter(|place| decided.answers[*place].is_none() && plans[*place].keys().next().is_some()).collect();
    if undecided.is_empty() {
        return Ok(decided);
    }
    let row = connection.query_one(SELECT_EVENT_NUMBERS, &[&number(undecided.len())]).await?;
    for (place, seq) in undecided.iter().zip(row::column::<Vec<i64>>(&row, "events")?) {
        decided.event_seqs[*place] = Some(seq);
    }
    let keys_kept = millis(database.options.idempotency_keys_kept);
    let mut ours: HashMap<i64, usize> = HashMap::new();
    while !undecided.is_empty() {
        undecided = decide_round(connection, plans, &mut decided, &mut ours, &undecided, keys_kept).await?;
    }
    Ok(decided)
}

impl Decided {
    /// Of an event that has a key.
    fn event_seq(&self, place: usize) -> i64 {
        self.event_seqs[place].expect("an event with a key has got its number")
    }
}

fn number(rows: usize) -> i32 {
    i32::try_from(rows).unwrap_or(i32::MAX)
}

/// Who holds a key that we wanted.
struct Holder {
    slot: Slot,
    seq: i64,
    fingerprint: [u8; 32],
}

/// Takes the keys of those that share none with each other. Answers whose turn is next.
async fn decide_round(
    connection: &Connection,
    plans: &[&Plan],
    decided: &mut Decided,
    ours: &mut HashMap<i64, usize>,
    undecided: &[usize],
    keys_kept: i64,
) -> Result<Vec<usize>, Problem> {
    // In order, so that two nodes never wait for each other in a circle.
    let mut keys: BTreeMap<Key<'_>, usize> = BTreeMap::new();
    let (mut picked, mut later) = (Vec::new(), Vec::new());
    for place in undecided {
        if plans[*place].keys().any(|key| keys.contains_key(&key)) {
            later.push(*place);
        } else {
            keys.extend(plans[*place].keys().map(|key| (key, *place)));
            picked.push(*place);
        }
    }
    let (won, holders) = take_keys(connection, plans, decided, &keys, keys_kept).await?;
    let mut lost: HashMap<usize, Vec<Key<'_>>> = HashMap::new();
    for place in &picked {
        let of_others: Vec<Key<'_>> = plans[*place].keys().filter(|key| !won.contains(key)).collect();
        if !of_others.is_empty() {
            lost.insert(*place, of_others);
        }
    }
    if !lost.is_empty() {
        // One that has gone between two looks was swept away.
        let is_known = |key: &Key<'_>| holders.contains_key(key);
        if !lost.values().flatten().all(is_known) {
            return Err(Problem::Overtaken);
        }
        let before = published_before(connection, holders.iter().filter(|(_, holder)| !ours.contains_key(&holder.seq))).await?;
        let (mut given_back, mut vacant) = (Vec::new(), Vec::new());
        for (place, of_others) in &lost {
            let answer = of_others.iter().find_map(|key| {
                let holder = &holders[key];
                match ours.get(&holder.seq) {
                    Some(first) => Some(plans[*place].duplicate(plans[*first], key)),
                    None => before.get(&holder.seq).cloned().map(|found| match found {
                        Published::Duplicate { event, .. } if holder.fingerprint != plans[*place].new.fingerprint => {
                            Published::Conflict { event, by: DuplicateBy::of_kind(key.kind) }
                        }
                        found @ (Published::Duplicate { .. }
                        | Published::Made { .. }
                        | Published::Conflict { .. }
                        | Published::TooCostly(_)) => found,
                    }),
                }
            });
            match answer {
                Some(answer) => {
                    decided.answers[*place] = Some(answer);
                    given_back.extend(plans[*place].keys().filter(|key| won.contains(key)).map(|key| (key, *place)));
                }
                // What they belonged to is gone: as if they had expired.
                None => vacant.extend(of_others.iter().map(|key| (*key, *place))),
            }
        }
        give_back(connection, decided, given_back).await?;
        take_over(connection, plans, decided, &holders, vacant, keys_kept).await?;
    }
    ours.extend(picked.iter().filter(|place| decided.answers[**place].is_none()).map(|place| (decided.event_seq(*place), *place)));
    Ok(later)
}

type Taken<'a> = (HashSet<Key<'a>>, HashMap<Key<'a>, Holder>);

async fn take_keys<'a>(
    connection: &Connection,
    plans: &[&'a Plan],
    decided: &mut Decided,
    keys: &BTreeMap<Key<'a>, usize>,
    keys_kept: i64,
) -> Result<Taken<'a>, Problem> {
    let (tenants, kinds, names) = key_columns(keys.keys());
    let seqs: Vec<i64> = keys.values().map(|place| decided.event_seq(*place)).collect();
    let slots: Vec<i32> = keys.values().map(|place| plans[*place].slot).collect();
    let fingerprints: Vec<&[u8]> = keys.values().map(|place| plans[*place].new.fingerprint.as_slice()).collect();
    let accepted: Vec<i64> = keys.values().map(|place| plans[*place].new.event.accepted_at.as_millis()).collect();
    let expiries: Vec<i64> = keys.iter().map(|(key, place)| expiry(*key, plans[*place], keys_kept)).collect();
    let forget = connection.prepare(DELETE_EXPIRED_KEYS).await?;
    let insert = connection.prepare(INSERT_KEYS).await?;
    let select = connection.prepare(SELECT_HOLDERS).await?;
    let mut flight = Flight::new(connection);
    if !decided.has_begun {
        flight.begin();
        decided.has_begun = true;
    }
    flight.query(forget, row::parameters![tenants.clone(), kinds.clone(), names.clone(), accepted]);
    let inserted = flight.query(
        insert,
        row::parameters![tenants.clone(), kinds.clone(), names.clone(), slots, seqs.clone(), fingerprints, expiries],
    );
    let held = flight.query(select, row::parameters![tenants, kinds, names, seqs]);
    let landed = flight.land().await.map_err(|crash| crash.problem)?;
    let by_name: HashMap<(&str, &str, &str), Key<'a>> = keys.keys().map(|key| ((key.tenant, key.kind, key.name), *key)).collect();
    let key_of = |row| -> Result<Key<'a>, Error> {
        let name = (row::text(row, "tenant")?, row::text(row, "kind")?, row::text(row, "key")?);
        by_name.get(&name).copied().ok_or(Error::Corrupt { what: "idempotency key" })
    };
    let won = landed[inserted].iter().map(key_of).collect::<Result<_, _>>()?;
    let holders = landed[held].iter().map(|row| {
        let holder = Holder {
            slot: row::column(row, "event_slot")?,
            seq: row::column(row, "event_seq")?,
            fingerprint: row::bytes(row, "fingerprint")?,
        };
        Ok((key_of(row)?, holder))
    });
    let holders = holders.collect::<Result<_, Error>>()?;
    Ok((won, holders))
}

/// A key is remembered for a while, and an id until the day of its event is dropped.
fn expiry(key: Key<'_>, plan: &Plan, keys_kept: i64) -> i64 {
    match key.kind {
        "id" => end_of(plan.slot).as_millis(),
        _ => plan.new.event.accepted_at.as_millis() + keys_kept,
    }
}

fn key_columns<'a: 'b, 'b>(keys: impl Iterator<Item = &'b Key<'a>>) -> (Vec<&'a str>, Vec<&'static str>, Vec<&'a str>) {
    let (mut tenants, mut kinds, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for key in keys {
        tenants.push(key.tenant);
        kinds.push(key.kind);
        names.push(key.name);
    }
    (tenants, kinds, names)
}

/// The events that hold keys, by their numbers. Looked for in their own days only, and among what was kept aside; without those of a tenant that
/// was deleted, also if there is another of the same id since.
async fn published_before<'a: 'b, 'b>(
    connection: &Connection,
    holders: impl Iterator<Item = (&'b Key<'a>, &'b Holder)>,
) -> Result<HashMap<i64, Published>, Problem> {
    let (mut slots, mut seqs, mut tenants) = (Vec::new(), Vec::new(), Vec::new());
    for (key, holder) in holders {
        slots.push(holder.slot);
        seqs.push(holder.seq);
        tenants.push(key.tenant);
    }
    let mut found = HashMap::new();
    if seqs.is_empty() {
        return Ok(found);
    }
    for row in connection.query(SELECT_PUBLISHED, &[&slots, &seqs, &tenants]).await? {
        let published = Published::Duplicate {
            event: row::parsed(&row, "id", EventId::parse)?,
            event_type: row::parsed(&row, "type", EventType::parse)?,
            timestamp: row::timestamp(&row, "timestamp_ms")?,
            deliveries: count(usize::try_from(row::column::<i64>(&row, "deliveries")?).unwrap_or(0)),
        };
        found.insert(row::column(&row, "seq")?, published);
    }
    Ok(found)
}

/// Keys of an event that is not written after all.
async fn give_back(connection: &Connection, decided: &Decided, mut keys: Vec<(Key<'_>, usize)>) -> Result<(), Problem> {
    if keys.is_empty() {
        return Ok(());
    }
    keys.sort_unstable();
    let (tenants, kinds, names) = key_columns(keys.iter().map(|(key, _)| key));
    let seqs: Vec<i64> = keys.iter().map(|(_, place)| decided.event_seq(*place)).collect();
    connection.execute(DELETE_KEYS, &[&tenants, &kinds, &names, &seqs]).await?;
    Ok(())
}

async fn take_over(
    connection: &Connection,
    plans: &[&Plan],
    decided: &Decided,
    holders: &HashMap<Key<'_>, Holder>,
    mut keys: Vec<(Key<'_>, usize)>,
    keys_kept: i64,
) -> Result<(), Problem> {
    keys.sort_unstable();
    for (key, place) in keys {
        let plan = plans[place];
        let taken = connection
            .execute(
                TAKE_OVER_KEY,
                &[
                    &key.tenant,
                    &key.kind,
                    &key.name,
                    &holders[&key].seq,
                    &plan.slot,
                    &decided.event_seq(place),
                    &plan.new.fingerprint.as_slice(),
                    &expiry(key, plan, keys_kept),
                ],
            )
            .await?;
        if taken == 0 {
            return Err(Problem::Overtaken);
        }
    }
    Ok(())
}

fn publish_parameters<'a>(
    plans: &[&'a Plan],
    made: &[usize],
    decided: &Decided,
    rows: &[NewDelivery<'a>],
    id: CommitId,
) -> Parameters<'a> {
    let events: Vec<&'a Event> = made.iter().map(|place| plans[*place].new.event.as_ref()).collect();
    let counts: Vec<i32> = made.iter().map(|place| number(plans[*place].chosen.len())).collect();
    let firsts: Vec<i32> = counts.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + *count))).collect();
    let versions: BTreeMap<&str, Versions> = plans.iter().map(|plan| (plan.new.event.tenant.as_str(), plan.versions)).collect();
    let catalogue = plans.first().map_or(0, |plan| plan.versions.catalogue);
    row::parameters![
        made.iter().map(|place| plans[*place].slot).collect::<Vec<_>>(),
        row::if_any(made.iter().map(|place| decided.event_seqs[*place])),
        events.iter().map(|event| event.tenant.as_str()).collect::<Vec<_>>(),
        events.iter().map(|event| event.id.as_str()).collect::<Vec<_>>(),
        events.iter().map(|event| event.event_type.as_str()).collect::<Vec<_>>(),
        row::if_any(events.iter().map(|event| event.version.as_ref().map(Version::as_str))),
        row::if_any(events.iter().map(|event| unless_accepted(event, event.timestamp))),
        events.iter().map(|event| event.accepted_at.as_millis()).collect::<Vec<_>>(),
        events.iter().map(|event| event.data.as_str()).collect::<Vec<_>>(),
        made.iter().map(|place| plans[*place].digest.as_slice()).collect::<Vec<_>>(),
        row::if_any(events.iter().map(|event| (!event.labels.is_empty()).then(|| lines(event.labels.iter())))),
        row::if_any(events.iter().map(|event| event.idempotency_key.as_ref().map(IdempotencyKey::as_str))),
        row::if_any(events.iter().map(|event| event.ordering_key.as_ref().map(OrderingKey::as_str))),
        row::if_any(events.iter().map(|event| event.timing.deliver_at().map(Timestamp::as_millis))),
        row::if_any(events.iter().map(|event| event.timing.expires_at().map(Timestamp::as_millis))),
        row::if_any(events.iter().map(|event| unless_accepted(event, event.timing.first_due(event.accepted_at)))),
        events.iter().map(|event| configuration::partition(&event.tenant)).collect::<Vec<_>>(),
        firsts,
        counts,
        rows.iter().flat_map(|row| row.id.to_bytes()).collect::<Vec<u8>>(),
        rows.iter().flat_map(|row| row.planned.endpoint.to_bytes()).collect::<Vec<u8>>(),
        rows.iter().map(|row| marks(row.planned)).collect::<Vec<u8>>(),
        id.to_vec(),
        versions.keys().copied().collect::<Vec<_>>(),
        versions.values().map(|versions| signed(versions.tenant)).collect::<Vec<_>>(),
        signed(catalogue),
        row::if_any(events.iter().map(|event| event.trace.as_deref().map(TraceContext::to_text))),
    ]
}

/// Mostly everything happens when it is accepted.
fn unless_accepted(event: &Event, at: Timestamp) -> Option<i64> {
    (at != event.accepted_at).then(|| at.as_millis())
}

/// Two bits of class, and one that says whether it goes before the rest.
fn marks(planned: Planned) -> u8 {
    let class = u8::try_from(class_code(planned.class)).expect("there are three classes");
    class | u8::from(planned.is_priority) << 2
}

/// In the order of their events, which is the order of their numbers. These are not known yet.
fn deliveries_of<'a>(database: &Database, plans: &[&'a Plan], made: &[usize]) -> Vec<NewDelivery<'a>> {
    let mut rows = Vec::new();
    for place in made {
        let (plan, event) = (plans[*place], &plans[*place].new.event);
        rows.extend(plan.chosen.iter().map(|planned| NewDelivery {
            seq: 0,
            id: DeliveryId::from_unique(database.next_unique()),
            event,
            event_slot: plan.slot,
            event_seq: 0,
            planned: *planned,
            timestamp: event.timestamp,
            due: event.timing.first_due(event.accepted_at),
            is_later: event.timing.deliver_at().is_some(),
            replay_of: None,
            replay: None,
            created_at: event.accepted_at,
        }));
    }
    rows
}

/// A delivery to be made: an original, or a replay.
pub(super) struct NewDelivery<'a> {
    pub(super) seq: i64,
    pub(super) id: DeliveryId,
    pub(super) event: &'a Arc<Event>,
    pub(super) event_slot: Slot,
    pub(super) event_seq: i64,
    pub(super) planned: Planned,
    pub(super) timestamp: Timestamp,
    pub(super) due: Timestamp,
    pub(super) is_later: bool,
    /// The row it repeats.
    pub(super) replay_of: Option<i64>,
    pub(super) replay: Option<[u8; 16]>,
    pub(super) created_at: Timestamp,
}

impl NewDelivery<'_> {
    /// To be told once it is committed.
    pub(super) fn fed(&self) -> CommittedDelivery {
        let Planned { endpoint, class, is_priority } = self.planned;
        CommittedDelivery {
            endpoint,
            tenant: self.event.tenant.clone(),
            partition: partition_of(&self.event.tenant),
            entry: Entry {
                delivery: self.id,
                seq: unsigned(self.seq),
                timestamp: self.timestamp,
                due: self.due,
                attempts: 0,
                is_later: self.is_later,
                event_type: self.event.event_type.clone(),
                is_priority,
                class,
                ordering_key: self.event.ordering_key.clone(),
                expires_at: self.event.timing.expires_at(),
            },
            event: Arc::clone(self.event),
        }
    }
}

/// Takes numbers for this many deliveries.
pub(super) async fn delivery_numbers(connection: &Connection, opened: &Opened, rows: usize) -> Result<Vec<i64>, Problem> {
    let row = connection.query_one(SELECT_DELIVERY_NUMBERS, &[&number(rows)]).await?;
    let seqs: Vec<i64> = row::column(&row, "deliveries")?;
    opened.got(&seqs.iter().copied().map(unsigned).collect::<Vec<_>>());
    Ok(seqs)
}

pub(super) async fn insert(connection: &Connection, rows: &[NewDelivery<'_>]) -> Result<(), Problem> {
    let statement = connection.prepare(INSERT_DELIVERIES).await?;
    let mut flight = Flight::new(connection);
    flight.query(statement, delivery_parameters(rows));
    flight.land().await.map_err(|crash| crash.problem)?;
    Ok(())
}

fn delivery_parameters<'a>(rows: &[NewDelivery<'a>]) -> Parameters<'a> {
    let columns: Vec<_> = rows.iter().map(|row| state_columns(DeliveryState::Waiting { due: row.due })).collect();
    row::parameters![
        rows.iter().map(|row| row.seq).collect::<Vec<_>>(),
        rows.iter().map(|row| row.id.to_bytes().to_vec()).collect::<Vec<_>>(),
        rows.iter().map(|row| row.event.tenant.as_str()).collect::<Vec<_>>(),
        rows.iter().map(|row| configuration::partition(&row.event.tenant)).collect::<Vec<_>>(),
        rows.iter().map(|row| row.planned.endpoint.to_bytes().to_vec()).collect::<Vec<_>>(),
        rows.iter().map(|row| row.event_slot).collect::<Vec<_>>(),
        rows.iter().map(|row| row.event_seq).collect::<Vec<_>>(),
        rows.iter().map(|row| row.event.id.as_str()).collect::<Vec<_>>(),
        rows.iter().map(|row| row.event.event_type.as_str()).collect::<Vec<_>>(),
        rows.iter().map(|row| row.planned.is_priority).collect::<Vec<_>>(),
        rows.iter().map(|row| class_code(row.planned.class)).collect::<Vec<_>>(),
        rows.iter().map(|row| row.event.ordering_key.as_ref().map(OrderingKey::as_str)).collect::<Vec<_>>(),
        rows.iter().map(|row| row.timestamp.as_millis()).collect::<Vec<_>>(),
        columns.iter().map(|columns| columns.status).collect::<Vec<_>>(),
        columns.iter().map(|columns| columns.due_at_ms).collect::<Vec<_>>(),
        rows.iter().map(|row| row.is_later).collect::<Vec<_>>(),
        rows.iter().map(|row| row.event.timing.expires_at().map(Timestamp::as_millis)).collect::<Vec<_>>(),
        rows.iter().map(|row| row.replay_of).collect::<Vec<_>>(),
        rows.iter().map(|row| row.replay.map(Vec::from)).collect::<Vec<_>>(),
        rows.iter().map(|row| row.created_at.as_millis()).collect::<Vec<_>>(),
    ]
}

/// Of events whose keys have to name them before they are written.
const SELECT_EVENT_NUMBERS: &str = "SELECT ARRAY(SELECT nextval('events_seq') FROM generate_series(1, $1::int)) AS events";
/// Of replays, whose numbers are known to be in flight before anybody can see them. Never more than are used at once: a supply
/// would be used long after others have gone ahead, and a sweep would not look back that far.
const SELECT_DELIVERY_NUMBERS: &str =
    "SELECT ARRAY(SELECT nextval('deliveries_seq_seq') FROM generate_series(1, $1::int)) AS deliveries";
const SELECT_SEQS: &str = "SELECT id, seq FROM deliveries WHERE id = ANY($1)";

/// All of a group in one statement. Deliveries come as three strings of bytes with a fixed width, which each event cuts its own
/// from, so that nothing is joined and little is sent; their numbers rise with their places. The commit fails, and everything
/// with it, where what it was planned by has moved on: it has to have a time. A statement locks its tables before it looks at
/// anything, so that whoever locks `commits` against it makes it see what they have done.
macro_rules! publish {
    ($comment:literal, $places:literal) => {
        concat!(
            $comment,
            "WITH given AS MATERIALIZED (
               SELECT g.slot, g.tenant, g.id, g.type, g.version, g.accepted_at_ms, g.data, g.digest, g.idempotency_key,
                      g.ordering_key, g.deliver_at_ms, g.expires_at_ms, g.partition, g.first, g.count,
                      g.trace_context, coalesce(g.given_seq, nextval('events_seq')) AS seq, coalesce(g.labels, '') AS labels,
                      coalesce(g.timestamp_ms, g.accepted_at_ms) AS timestamp_ms,
                      coalesce(g.due_at_ms, g.accepted_at_ms) AS due_at_ms
               FROM unnest($1::int[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[],
                           $9::text[], $10::bytea[], $11::text[], $12::text[], $13::text[], $14::bigint[], $15::bigint[],
                           $16::bigint[], $17::smallint[], $18::int[], $19::int[], $27::text[])
                 AS g (slot, given_seq, tenant, id, type, version, timestamp_ms, accepted_at_ms, data, digest, labels,
                       idempotency_key, ordering_key, deliver_at_ms, expires_at_ms, due_at_ms, partition, first, count,
                       trace_context)
             ), kept AS (
               INSERT INTO events (slot, seq, tenant, id, type, version, timestamp_ms, accepted_at_ms, data, digest, labels,
                                   idempotency_key, ordering_key, deliver_at_ms, expires_at_ms, trace_context)
               SELECT slot, seq, tenant, id, type, version, timestamp_ms, accepted_at_ms, data, digest, labels, idempotency_key,
                      ordering_key, deliver_at_ms, expires_at_ms, trace_context
               FROM given
             ), made AS (
               INSERT INTO deliveries (id, tenant, partition, endpoint, event_slot, event_seq, event, type, is_priority, class,
                                       ordering_key, timestamp_ms, status, due_at_ms, is_later, expires_at_ms, created_at_ms)
               SELECT substr($20::bytea, place * 16 + 1, 16), g.tenant, g.partition, substr($21::bytea, place * 16 + 1, 16), g.slot,
                      g.seq, g.id, g.type, get_byte($22::bytea, place) >= 4, (get_byte($22::bytea, place) & 3)::smallint,
                      g.ordering_key, g.timestamp_ms, 'waiting', g.due_at_ms, g.deliver_at_ms IS NOT NULL, g.expires_at_ms,
                      g.accepted_at_ms
               FROM given g CROSS JOIN LATERAL ",
            $places,
            "
               RETURNING id, seq
             ), named AS (
               INSERT INTO commits (id, at)
               SELECT $23::bytea, CASE WHEN (SELECT value FROM counters WHERE name = 'catalogue') = $26::bigint AND NOT EXISTS (
                 SELECT 1 FROM unnest($24::text[], $25::bigint[]) AS planned (tenant, version)
                 WHERE (SELECT t.version FROM tenants t WHERE t.id = planned.tenant AND t.deleted_at_ms IS NULL)
                       IS DISTINCT FROM planned.version) THEN clock_timestamp() END
             )
             SELECT id, seq FROM made"
        )
    };
}
const PUBLISH: &str = publish!("", "generate_series(g.first, g.first + g.count - 1) AS place");
const PUBLISH_AT_ONCE: &str = publish!("/* commit */ ", "generate_series(g.first, g.first + g.count - 1) AS place");
/// What most people send, for which nothing has to be counted out.
const PUBLISH_ONE_EACH_AT_ONCE: &str = publish!("/* commit */ ", "(SELECT g.first AS place) AS places");

const INSERT_DELIVERIES: &str =
    "INSERT INTO deliveries (seq, id, tenant, partition, endpoint, event_slot, event_seq, event, type, is_priority, class,
                             ordering_key, timestamp_ms, status, due_at_ms, is_later, expires_at_ms, replay_of, replay,
                             created_at_ms)
     SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::smallint[], $5::bytea[], $6::int[], $7::bigint[],
                          $8::text[], $9::text[], $10::boolean[], $11::smallint[], $12::text[], $13::bigint[], $14::text[],
                          $15::bigint[], $16::boolean[], $17::bigint[], $18::bigint[], $19::bytea[], $20::bigint[])";
/// An id lives as long as its event, whose day may be dropped late.
const DELETE_EXPIRED_KEYS: &str =
    "DELETE FROM idempotency_keys k USING unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS wanted (tenant, kind, key, now_ms)
     WHERE k.tenant = wanted.tenant AND k.kind = wanted.kind AND k.key = wanted.key AND k.expires_at_ms <= wanted.now_ms
       AND (k.kind <> 'id' OR NOT EXISTS (SELECT 1 FROM events e WHERE e.slot = k.event_slot AND e.seq = k.event_seq))";
/// Waits for whoever is about to write the same key; when they have committed, it is theirs.
const INSERT_KEYS: &str = "INSERT INTO idempotency_keys (tenant, kind, key, event_slot, event_seq, fingerprint, expires_at_ms)
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::bytea[], $7::bigint[])
     ON CONFLICT (tenant, kind, key) DO NOTHING RETURNING tenant, kind, key";
/// A statement of its own, because it has to see what was committed while the one before it waited.
const SELECT_HOLDERS: &str = "SELECT k.tenant, k.kind, k.key, k.event_slot, k.event_seq, k.fingerprint
     FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS wanted (tenant, kind, key, event_seq)
     JOIN idempotency_keys k ON k.tenant = wanted.tenant AND k.kind = wanted.kind AND k.key = wanted.key
     WHERE k.event_seq <> wanted.event_seq";
const SELECT_PUBLISHED: &str =
    "SELECT e.*, (SELECT count(*) FROM deliveries d WHERE d.event_seq = e.seq AND d.tenant = e.tenant AND d.replay_of IS NULL) AS deliveries
     FROM (SELECT seq, tenant, id, type, timestamp_ms FROM events WHERE slot = ANY($1) AND seq = ANY($2)
           UNION ALL SELECT seq, tenant, id, type, timestamp_ms FROM events_kept WHERE seq = ANY($2)) e
     WHERE (e.seq, e.tenant) IN (SELECT * FROM unnest($2::bigint[], $3::text[]))
       AND EXISTS (SELECT 1 FROM tenants t WHERE t.id = e.tenant AND t.deleted_at_ms IS NULL AND e.seq >= t.first_event)";
const DELETE_KEYS: &str =
    "DELETE FROM idempotency_keys k USING unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS ours (tenant, kind, key, event_seq)
     WHERE k.tenant = ours.tenant AND k.kind = ours.kind AND k.key = ours.key AND k.event_seq = ours.event_seq";
const TAKE_OVER_KEY: &str = "UPDATE idempotency_keys SET event_slot = $5, event_seq = $6, fingerprint = $7, expires_at_ms = $8
     WHERE tenant = $1 AND kind = $2 AND key = $3 AND event_seq = $4";
