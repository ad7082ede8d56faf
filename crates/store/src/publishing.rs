//! What goes in.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use posthaste_core::event::{Event, EventType};
use posthaste_core::filter::TooCostly;
use posthaste_core::id::EventId;
use posthaste_core::time::Timestamp;

use crate::columns::digest;
use crate::{Error, EventRow, computing};

/// An event that somebody wants to be known.
#[derive(Clone, PartialEq, Debug)]
pub struct NewEvent {
    pub event: Arc<Event>,
    /// Its id was chosen by the publisher, and works as an idempotency key for as long as the event is kept.
    pub is_id_chosen: bool,
    /// Of all that was given but the id and the key: the same key with another body is a conflict.
    pub fingerprint: [u8; 32],
    /// Told when its endpoints have been chosen, if somebody wants to know.
    pub resolved: Option<Arc<OnceLock<Instant>>>,
}

/// What became of it.
#[derive(Clone, PartialEq, Debug)]
pub enum Published {
    Made {
        deliveries: u32,
    },
    /// It was published before, under this id.
    Duplicate {
        event: EventId,
        event_type: EventType,
        timestamp: Timestamp,
        deliveries: u32,
    },
    /// It was published before with another body, under this id.
    Conflict {
        event: EventId,
        by: DuplicateBy,
    },
    /// Choosing its endpoints would take too long. Nothing was stored.
    TooCostly(TooCostly),
}

/// By what an event is known to have been published before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DuplicateBy {
    IdempotencyKey,
    /// The id that the publisher chose.
    Id,
}

impl DuplicateBy {
    /// From the column that tells the two apart.
    pub(crate) fn of_kind(kind: &str) -> DuplicateBy {
        if kind == "id" { DuplicateBy::Id } else { DuplicateBy::IdempotencyKey }
    }
}

impl NewEvent {
    pub(crate) fn mark_resolved(&self) {
        if let Some(resolved) = &self.resolved {
            let _ = resolved.set(Instant::now());
        }
    }

    /// Whether the id that was chosen may be one that a server has made for another event. Those are not remembered as chosen ones
    /// are. Only an id of our own form can be one, and nobody chooses such an id unless it was read here or on another server.
    fn has_an_id_like_ours(&self) -> bool {
        let made = self.event.id.as_str().strip_prefix(EventId::PREFIX);
        let is_ours = |made: &str| made.len() == 26 && made.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
        self.is_id_chosen && made.is_some_and(is_ours)
    }

    /// What to answer whose id another event has: there is no fingerprint of it, so that the events themselves are compared.
    fn beside(&self, row: EventRow) -> Published {
        let event = &self.event;
        let is_the_same = row.event_type == event.event_type
            && row.version == event.version
            // A time that was not given is that of its acceptance.
            && (event.timestamp == event.accepted_at || event.timestamp == row.timestamp)
            && row.data.as_ref() == Some(&event.data)
            && row.labels == event.labels
            && row.ordering_key == event.ordering_key
            && row.timing == event.timing;
        if !is_the_same {
            return Published::Conflict { event: row.id, by: DuplicateBy::Id };
        }
        let deliveries = u32::try_from(row.deliveries.iter().sum::<u64>()).unwrap_or(u32::MAX);
        Published::Duplicate { event: row.id, event_type: row.event_type, timestamp: row.timestamp, deliveries }
    }
}

/// Finds out which of the ids that were chosen are ours, and answers for those; the rest is to be written. An id is there for
/// long before anybody can choose it, so that a look before the transaction is enough.
pub(crate) async fn answer_for_our_ids<F>(
    events: Vec<NewEvent>,
    mut find: impl FnMut(&Event) -> F,
) -> Result<(Vec<NewEvent>, Vec<Option<Published>>), Error>
where
    F: Future<Output = Result<Option<EventRow>, Error>>,
{
    let (mut unanswered, mut answers) = (Vec::with_capacity(events.len()), Vec::with_capacity(events.len()));
    for new in events {
        let found = if new.has_an_id_like_ours() { find(&new.event).await? } else { None };
        let answer = found.map(|row| new.beside(row));
        if answer.is_none() {
            unanswered.push(new);
        }
        answers.push(answer);
    }
    Ok((unanswered, answers))
}

/// Of its payload.
pub(crate) async fn digest_of(event: &Arc<Event>) -> Result<[u8; 32], Error> {
    if event.data.as_str().len() <= DIGESTED_IN_PLACE_MAX {
        return Ok(digest(event.data.as_str()));
    }
    let large = Arc::clone(event);
    computing::run(event.tenant.as_str(), move || digest(large.data.as_str())).await
}

/// Under a millisecond, also on a processor that has no instructions for it.
const DIGESTED_IN_PLACE_MAX: usize = 256 * 1024;

/// The places of those that are to be written.
pub(crate) fn unanswered(answers: &[Option<Published>]) -> Vec<usize> {
    answers.iter().enumerate().filter(|(_, answer)| answer.is_none()).map(|(place, _)| place).collect()
}

/// All answers, in the order of the events.
pub(crate) fn merge(answers: Vec<Option<Published>>, written: Vec<Published>) -> Vec<Published> {
    let mut written = written.into_iter();
    answers.into_iter().map(|answer| answer.or_else(|| written.next()).expect("an answer for each that was written")).collect()
}
