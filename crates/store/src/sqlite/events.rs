//! Publishing: the event and its deliveries, or nothing.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::State as DeliveryState;
use posthaste_core::event::{Event, EventType};
use posthaste_core::id::{DeliveryId, EventId};
use posthaste_core::scheduler::Entry;
use posthaste_core::text::{IdempotencyKey, OrderingKey, Version};
use posthaste_core::time::Timestamp;
use posthaste_core::trace::TraceContext;
use rusqlite::{Connection, params};

use super::writer::{GroupContext, State};
use super::{Sqlite, configuration, routing, row};
use crate::columns::{class_code, limit, lines, millis, state_columns, unsigned};
use crate::feed::CommittedDelivery;
use crate::publishing::{DuplicateBy, answer_for_our_ids, digest_of, unanswered};
use crate::routing::{Planned, Versions};
use crate::{Error, NewEvent, Published, partition_of};

/// The deliveries of an event `e`: those that it began with, which lie side by side, and those that were made of it later. The plus: rows are
/// found by their numbers, and not by an index on the tenant.
macro_rules! seqs_of_event {
    () => {
        "SELECT b.seq FROM deliveries b WHERE b.seq BETWEEN e.first_delivery AND e.first_delivery + e.deliveries - 1 AND b.event_seq = e.seq
           AND +b.tenant = e.tenant
         UNION ALL
         SELECT l.seq FROM deliveries l INDEXED BY deliveries_made_later
         WHERE l.event_seq = e.seq AND +l.tenant = e.tenant AND (l.replay IS NOT NULL OR l.replay_of IS NOT NULL)"
    };
}
pub(super) use seqs_of_event;

/// An event whose deliveries have been chosen.
struct Plan {
    new: NewEvent,
    digest: [u8; 32],
    versions: Versions,
    chosen: Vec<Planned>,
}

/// What a row weighs beside its payload.
const ROW_BYTES: usize = 512;

impl Sqlite {
    pub(super) async fn publish(&self, events: Vec<NewEvent>) -> Result<Vec<Published>, Error> {
        let find = |event: &Event| self.published_event(event.tenant.clone(), event.id.clone());
        let (mut events, mut answers) = answer_for_our_ids(events, find).await?;
        for _ in 0..PLANNED_MAX {
            let (mut plans, mut bytes) = (Vec::with_capacity(events.len()), 0);
            for (new, place) in std::mem::take(&mut events).into_iter().zip(unanswered(&answers)) {
                let routing = self.routing(&new.event.tenant).await?;
                let chosen = match routing.plan(&new.event).await? {
                    Ok(chosen) => chosen,
                    Err(too_costly) => {
                        answers[place] = Some(Published::TooCostly(too_costly));
                        continue;
                    }
                };
                new.mark_resolved();
                bytes += new.event.data.as_str().len() + ROW_BYTES * (1 + chosen.len());
                plans.push(Plan { digest: digest_of(&new.event).await?, versions: routing.versions, chosen, new });
            }
            if plans.is_empty() {
                break;
            }
            let tried: Vec<NewEvent> = plans.iter().map(|plan| plan.new.clone()).collect();
            let store = self.clone();
            let written = self
                .write(bytes, move |turn, state| {
                    plans.iter_mut().map(|plan| publish(&store, turn, state, plan)).collect::<Result<Vec<_>, _>>()
                })
                .await?;
            for ((new, place), answer) in tried.into_iter().zip(unanswered(&answers)).zip(written) {
                match answer {
                    Some(answer) => answers[place] = Some(answer),
                    None => events.push(new),
                }
            }
            if events.is_empty() {
                break;
            }
        }
        // What was written stays written, and who asks again hears of it as a duplicate, or has chosen to have it twice.
        answers.into_iter().collect::<Option<Vec<_>>>().ok_or(Error::Overloaded { retry_after: Duration::from_secs(1) })
    }
}

/// How often an event is planned whose tenant is changed all the time.
const PLANNED_MAX: usize = 10;

/// `None`: nothing was written, because the tenant has changed since it was planned, and planning again takes too long to do it
/// here, where every publisher waits.
fn publish(store: &Sqlite, turn: &GroupContext<'_>, state: &mut State, plan: &mut Plan) -> Result<Option<Published>, Error> {
    let event = Arc::clone(&plan.new.event);
    let versions = state.versions(turn, &event.tenant)?;
    if versions != plan.versions {
        if !routing::is_small(turn, &event.tenant)? {
            store.0.routings.forget(&event.tenant);
            return Ok(None);
        }
        let routing = routing::load(turn, &event.tenant, &store.0.options)?;
        store.0.routings.put(&event.tenant, &routing);
        let Some(chosen) = routing.plan_in_place(&event) else { return Ok(None) };
        plan.chosen = chosen;
        plan.versions = versions;
    }
    if let Some(before) = published_before(turn, &plan.new, event.accepted_at)? {
        return Ok(Some(before));
    }
    if versions.tenant == 0 {
        configuration::touch_tenant(turn, &event.tenant, event.accepted_at)?;
        state.forget_versions();
    }
    let event_seq = state.numbers.events.take();
    let columns = params![
        event_seq,
        event.tenant.as_str(),
        event.id.as_str(),
        event.event_type.as_str(),
        event.version.as_ref().map(Version::as_str),
        event.timestamp.as_millis(),
        event.accepted_at.as_millis(),
        event.data.as_str(),
        plan.digest,
        lines(event.labels.iter()),
        event.idempotency_key.as_ref().map(IdempotencyKey::as_str),
        event.ordering_key.as_ref().map(OrderingKey::as_str),
        event.timing.deliver_at().map(Timestamp::as_millis),
        event.timing.expires_at().map(Timestamp::as_millis),
        event.trace.as_deref().map(TraceContext::to_text),
        state.numbers.deliveries.next(),
        limit(plan.chosen.len()),
    ];
    turn.execute_often(INSERT_EVENT, columns)?;
    remember(turn, &plan.new, event_seq, store)?;
    for planned in &plan.chosen {
        let made = NewDelivery {
            id: DeliveryId::from_unique(store.next_unique()),
            event: &event,
            event_seq,
            planned: *planned,
            timestamp: event.timestamp,
            due: event.timing.first_due(event.accepted_at),
            is_later: event.timing.deliver_at().is_some(),
            replay_of: None,
            replay: None,
            created_at: event.accepted_at,
        };
        insert(turn, state, &made)?;
    }
    Ok(Some(Published::Made { deliveries: u32::try_from(plan.chosen.len()).unwrap_or(u32::MAX) }))
}

/// A delivery to be made: an original, or a replay.
pub(super) struct NewDelivery<'a> {
    pub(super) id: DeliveryId,
    pub(super) event: &'a Arc<Event>,
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

/// Writes it, and tells of it once it is committed. Answers its row.
pub(super) fn insert(turn: &GroupContext<'_>, state: &mut State, new: &NewDelivery<'_>) -> Result<i64, Error> {
    let Planned { endpoint, class, is_priority } = new.planned;
    let waiting = state_columns(DeliveryState::Waiting { due: new.due });
    let partition = partition_of(&new.event.tenant);
    let seq = state.numbers.deliveries.take();
    let columns = params![
        seq,
        new.id.to_bytes(),
        new.event.tenant.as_str(),
        partition,
        endpoint.to_bytes(),
        new.event_seq,
        new.event.id.as_str(),
        new.event.event_type.as_str(),
        is_priority,
        class_code(class),
        new.event.ordering_key.as_ref().map(OrderingKey::as_str),
        new.timestamp.as_millis(),
        waiting.status,
        waiting.due_at_ms,
        new.is_later,
        new.event.timing.expires_at().map(Timestamp::as_millis),
        new.replay_of,
        new.replay,
        new.created_at.as_millis(),
    ];
    turn.execute_often(INSERT_DELIVERY, columns)?;
    if state.is_fed {
        state.fed.push(CommittedDelivery {
            endpoint,
            tenant: new.event.tenant.clone(),
            partition,
            entry: Entry {
                delivery: new.id,
                seq: unsigned(seq),
                timestamp: new.timestamp,
                due: new.due,
                attempts: 0,
                is_later: new.is_later,
                event_type: new.event.event_type.clone(),
                is_priority,
                class,
                ordering_key: new.event.ordering_key.clone(),
                expires_at: new.event.timing.expires_at(),
            },
            event: Arc::clone(new.event),
        });
    }
    Ok(seq)
}

/// By place, here and below: to look a name up costs as much as to bind its value.
const INSERT_EVENT: &str = "INSERT INTO events (seq, tenant, id, type, version, timestamp_ms, accepted_at_ms, data, digest, labels,
                                                idempotency_key, ordering_key, deliver_at_ms, expires_at_ms, trace_context,
                                                first_delivery, deliveries)
                            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
const INSERT_DELIVERY: &str =
    "INSERT INTO deliveries (seq, id, tenant, partition, endpoint, event_seq, event, type, is_priority, class, ordering_key,
                             timestamp_ms, status, due_at_ms, is_later, expires_at_ms, replay_of, replay, created_at_ms)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// A key counts only for an event that is still there, that has this key or id itself, and that belongs to the present tenant of this id: not to
/// one that was deleted.
const SELECT_PUBLISHED_BEFORE: &str = concat!(
    "SELECT k.fingerprint, e.id, e.type, e.timestamp_ms,
            (SELECT count(*) FROM deliveries d WHERE d.seq IN (",
    seqs_of_event!(),
    ") AND d.replay_of IS NULL) AS deliveries
     FROM idempotency_keys k
     CROSS JOIN tenants t ON t.id = k.tenant AND t.deleted_at_ms IS NULL
     CROSS JOIN events e ON e.seq = k.event_seq AND e.seq >= t.first_event AND e.tenant = k.tenant
       AND CASE k.kind WHEN 'id' THEN e.id ELSE e.idempotency_key END = k.key
     WHERE k.tenant = ?1 AND k.kind = ?2 AND k.key = ?3 AND (k.expires_at_ms IS NULL OR k.expires_at_ms > ?4)"
);

/// Whether this was published before, by its key or by the id that was chosen for it.
fn published_before(connection: &Connection, new: &NewEvent, now: Timestamp) -> Result<Option<Published>, Error> {
    let event = &new.event;
    let key = event.idempotency_key.as_ref().map(|key| ("key", key.as_str()));
    let id = new.is_id_chosen.then(|| ("id", event.id.as_str()));
    for (kind, key) in key.into_iter().chain(id) {
        let mut select = connection.prepare_cached(SELECT_PUBLISHED_BEFORE)?;
        let found = row::first(select.query(params![event.tenant.as_str(), kind, key, now.as_millis()])?, |row| {
            if row::column::<[u8; 32]>(row, "fingerprint")? != new.fingerprint {
                return Ok(Published::Conflict { event: row::parsed(row, "id", EventId::parse)?, by: DuplicateBy::of_kind(kind) });
            }
            Ok(Published::Duplicate {
                event: row::parsed(row, "id", EventId::parse)?,
                event_type: row::parsed(row, "type", EventType::parse)?,
                timestamp: row::timestamp(row, "timestamp_ms")?,
                deliveries: row::column(row, "deliveries")?,
            })
        })?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn remember(connection: &Connection, new: &NewEvent, event_seq: i64, store: &Sqlite) -> Result<(), Error> {
    let event = &new.event;
    let until = event.accepted_at.as_millis() + millis(store.0.options.idempotency_keys_kept);
    let key = event.idempotency_key.as_ref().map(|key| ("key", key.as_str(), Some(until)));
    let id = new.is_id_chosen.then(|| ("id", event.id.as_str(), None));
    for (kind, key, expires_at_ms) in key.into_iter().chain(id) {
        // One that was there has expired, or its event is gone.
        connection
            .prepare_cached(
                "INSERT OR REPLACE INTO idempotency_keys (tenant, kind, key, event_seq, fingerprint, expires_at_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![event.tenant.as_str(), kind, key, event_seq, new.fingerprint, expires_at_ms])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::history::{COUNT_OF_EVENT, SEQS_BY_EVENT};
    use crate::sqlite::migrations;
    use crate::sqlite::replays::SELECT_MISSING;
    use crate::sqlite::retention::SELECT_DELIVERIES;

    /// However many there are of others.
    #[test]
    fn the_deliveries_of_an_event_are_found_where_they_lie() {
        let mut connection = Connection::open_in_memory().expect("a database");
        migrations::run(&mut connection).expect("a schema");
        for select in [SELECT_PUBLISHED_BEFORE, SEQS_BY_EVENT, COUNT_OF_EVENT, SELECT_DELIVERIES, SELECT_MISSING] {
            let steps = row::plan(&connection, select);
            assert!(!steps.iter().any(|step| step.starts_with("SCAN")), "{select}\n{steps:?}");
            for way in [
                "SEARCH b USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
                "SEARCH l USING INDEX deliveries_made_later (event_seq=?)",
            ] {
                assert!(steps.iter().any(|step| step == way), "{select}\n{steps:?}");
            }
        }
    }
}
