//! What becomes of a row, and when it is looked at again. Pure.
//!
//! A row is moved once its event is in the store, whoever put it there. What the store will never take as it is stays in the
//! outbox with its error, and is tried again ever more rarely: what has to change is the row or the configuration (a schema, a
//! tenant), and the latter mends all of them without anybody touching a row. What the store cannot take *now* is nobody's fault and
//! is counted against nobody.

use std::time::Duration;

use posthaste_core::text::{OrderingKey, Version};
use posthaste_store::{Error, EventRow, Published};

use crate::outbox::OutboxRow;

/// Between the first refusal of a row and the next try.
const BACKOFF_MIN: Duration = Duration::from_secs(5);
/// What was refused ten times waits for a person or a change; one look an hour finds that it has come.
const BACKOFF_MAX: Duration = Duration::from_hours(1);
/// A sentence is enough, and a page helps nobody.
pub(crate) const ERROR_CHARACTERS_MAX: usize = 500;

/// After so many refusals, how long until the next try: 5 s, 10 s, 20 s and so on, up to an hour, for ever.
pub fn backoff(refusals: u32) -> Duration {
    let doublings = refusals.saturating_sub(1).min(16);
    BACKOFF_MIN.saturating_mul(1 << doublings).min(BACKOFF_MAX)
}

/// What became of a row that was given to the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Its event is in the store: made just now.
    Made { deliveries: u32 },
    /// Its event is in the store: by an earlier try whose answer was lost, or by somebody else with the same idempotency key and
    /// the same body, whose event then stands for it.
    WasThere,
    /// Something that is not the same has its id or its key. Which it is has to be looked up.
    Contested,
    /// Never as it is.
    Refused(String),
    /// Not now, and not its fault.
    Later,
}

impl Verdict {
    pub(crate) fn of(published: &Published) -> Verdict {
        match published {
            Published::Made { deliveries } => Verdict::Made { deliveries: *deliveries },
            Published::Duplicate { .. } => Verdict::WasThere,
            Published::Conflict { .. } => Verdict::Contested,
            Published::TooCostly(why) => Verdict::Refused(why.to_string()),
        }
    }

    /// What to say of a row that is contested or refused, once it is known what the store has under its id, if anything. An earlier try
    /// may have moved it, and what was acceptable then may not be so any more.
    pub(crate) fn beside(self, row: &OutboxRow, kept: Option<&EventRow>) -> Verdict {
        let refusal = match self {
            Verdict::Made { .. } | Verdict::WasThere | Verdict::Later => return self,
            Verdict::Contested => None,
            Verdict::Refused(why) => Some(why),
        };
        match (kept, refusal) {
            (None, Some(why)) => Verdict::Refused(why),
            (None, None) => Verdict::Refused("idempotency_key: it was used before, with another body".to_owned()),
            (Some(kept), _) if is_the_same(row, kept) => Verdict::WasThere,
            (Some(_), _) => Verdict::Refused("id: an event was made from this id before, with another body".to_owned()),
        }
    }
}

/// By what the row says and not by what it would become: that may not be acceptable any more.
fn is_the_same(row: &OutboxRow, kept: &EventRow) -> bool {
    let is_data_the_same = match (&row.data, &kept.data) {
        (Some(given), Some(kept)) => given == kept.as_str(),
        // One was erased, or is larger than is taken now.
        (None, _) | (_, None) => true,
    };
    row.event_type == kept.event_type.as_str()
        && row.version.as_deref() == kept.version.as_ref().map(Version::as_str)
        && row.ordering_key.as_deref() == kept.ordering_key.as_ref().map(OrderingKey::as_str)
        && is_data_the_same
}

/// What to do when the store has not taken a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterFailure {
    /// Everything waits.
    Wait(Duration),
    /// It may be the fault of one row: each by itself, so that it keeps back nobody else.
    OneByOne,
}

/// `failures` is how often in a row a group has not been taken, this time included.
pub fn after_failure(error: &Error, failures: u32, rows: usize) -> AfterFailure {
    let pause = Duration::from_millis(100).saturating_mul(1 << failures.saturating_sub(1).min(6)).min(Duration::from_secs(5));
    match error {
        Error::Overloaded { retry_after } => AfterFailure::Wait((*retry_after).min(Duration::from_secs(5))),
        // Once may be anything. Twice, and something may be wrong with a row.
        Error::Unavailable(_) | Error::CommitInDoubt | Error::Corrupt { .. } if failures >= 2 && rows > 1 => AfterFailure::OneByOne,
        Error::Unavailable(_) | Error::CommitInDoubt | Error::Corrupt { .. } | Error::Unusable(_) | Error::TooNew => {
            AfterFailure::Wait(pause)
        }
    }
}

/// Whether a row that the store has not taken by itself is at fault: only if others were taken beside it.
pub fn is_at_fault(error: &Error, others_taken: usize) -> bool {
    match error {
        Error::Unavailable(_) | Error::Corrupt { .. } => others_taken > 0,
        Error::CommitInDoubt | Error::Overloaded { .. } | Error::Unusable(_) | Error::TooNew => false,
    }
}

/// One line, not longer than somebody reads.
pub(crate) fn shortened(error: &str) -> String {
    let visible = error.chars().map(|character| if character.is_control() { ' ' } else { character });
    visible.take(ERROR_CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use posthaste_core::event::{Data, EventType, Timing};
    use posthaste_core::id::{EventId, TenantId};
    use posthaste_core::text::Labels;
    use posthaste_core::time::Timestamp;

    use super::*;

    #[test]
    fn what_is_refused_is_tried_ever_more_rarely_and_for_ever() {
        let seconds: Vec<u64> = [1, 2, 3, 4, 9, 10, 11, 1000, u32::MAX].map(|refusals| backoff(refusals).as_secs()).into();
        assert_eq!(seconds, [5, 10, 20, 40, 1280, 2560, 3600, 3600, 3600]);
    }

    #[test]
    fn a_store_that_fails_is_no_row_s_fault_unless_it_takes_others() {
        let unavailable = || Error::Unavailable("gone".into());
        let overloaded = Error::Overloaded { retry_after: Duration::from_mins(1) };
        assert_eq!(after_failure(&unavailable(), 1, 200), AfterFailure::Wait(Duration::from_millis(100)));
        assert_eq!(after_failure(&unavailable(), 2, 200), AfterFailure::OneByOne);
        assert_eq!(after_failure(&unavailable(), 9, 1), AfterFailure::Wait(Duration::from_secs(5)), "one alone is one by one");
        assert_eq!(after_failure(&overloaded, 9, 200), AfterFailure::Wait(Duration::from_secs(5)));
        assert_eq!(after_failure(&Error::TooNew, 3, 200), AfterFailure::Wait(Duration::from_millis(400)));
        assert!(!is_at_fault(&unavailable(), 0) && is_at_fault(&unavailable(), 1));
        assert!(is_at_fault(&Error::Corrupt { what: "endpoint" }, 1));
        assert!(!is_at_fault(&Error::CommitInDoubt, 5) && !is_at_fault(&overloaded, 5));
    }

    fn kept(event_type: &str, data: Option<&str>) -> EventRow {
        EventRow {
            id: EventId::parse("evt_1").unwrap(),
            tenant: TenantId::parse("acme").unwrap(),
            event_type: EventType::parse(event_type).unwrap(),
            version: None,
            timestamp: Timestamp::from_millis(1),
            accepted_at: Timestamp::from_millis(1),
            data: data.map(|data| Data::parse(data).unwrap()),
            erased_at: None,
            labels: Labels::default(),
            idempotency_key: None,
            ordering_key: None,
            timing: Timing::default(),
            deliveries: [0; 4],
        }
    }

    #[test]
    fn a_row_that_is_not_taken_was_moved_before_if_the_store_has_the_same_under_its_id() {
        let row = OutboxRow { event_type: "a.b".to_owned(), data: Some("[1]".to_owned()), ..OutboxRow::default() };
        let no = || Verdict::Refused("data: no".to_owned());
        for (verdict, kept, expected) in [
            (no(), None, "data: no"),
            (no(), Some(kept("a.b", Some("[1]"))), "was there"),
            (no(), Some(kept("a.b", None)), "was there"),
            (no(), Some(kept("a.b", Some("[2]"))), "id: an event was made from this id before, with another body"),
            (Verdict::Contested, None, "idempotency_key: it was used before, with another body"),
            (Verdict::Contested, Some(kept("a.b", Some("[1]"))), "was there"),
            (Verdict::Contested, Some(kept("a.c", Some("[1]"))), "id: an event was made from this id before, with another body"),
            (Verdict::WasThere, None, "was there"),
            (Verdict::Later, None, "later"),
        ] {
            let told = match verdict.clone().beside(&row, kept.as_ref()) {
                Verdict::Refused(why) => why,
                Verdict::WasThere => "was there".to_owned(),
                Verdict::Later => "later".to_owned(),
                other @ (Verdict::Made { .. } | Verdict::Contested) => panic!("{other:?}"),
            };
            assert_eq!(told, expected, "{verdict:?} beside {kept:?}");
        }
        assert_eq!(
            Verdict::of(&Published::Conflict {
                event: posthaste_core::id::EventId::parse("first").unwrap(),
                by: posthaste_store::DuplicateBy::Id
            }),
            Verdict::Contested
        );
    }

    #[test]
    fn an_error_is_kept_as_one_line_of_bounded_length() {
        assert_eq!(shortened("a\nb"), "a b");
        assert_eq!(shortened(&"ä".repeat(10_000)).chars().count(), ERROR_CHARACTERS_MAX);
    }
}
