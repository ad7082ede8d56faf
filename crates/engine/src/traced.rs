//! Attempts that somebody looks at, from their beginning to their record.
//!
//! The owner knows nothing of them: what was seen of an attempt waits here while the owner judges it, and is found again by the
//! attempt's id when that is recorded. Of all other attempts there is nothing here.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use http::Uri;
use parking_lot::Mutex;
use posthaste_core::id::AttemptId;
use posthaste_store::{DeliveryChange, Record, RecordResult};
use posthaste_traces::{self as traces, Attempt, AttemptEnd, AttemptStart, Server, Traces};

use crate::owner::{OwnerGeneration, SendRequest};

#[derive(Clone, Default, Debug)]
pub(crate) struct Traced {
    traces: Option<Traces>,
    answered: Arc<Mutex<Answered>>,
}

/// Answered, and not yet judged.
#[derive(Default, Debug)]
struct Answered {
    /// What was answered in an earlier one is nobody's, and is never recorded.
    generation: OwnerGeneration,
    attempts: HashMap<AttemptId, Attempt>,
}

/// One that is being recorded.
pub(crate) struct Judged {
    /// Among the records.
    place: usize,
    attempt: Attempt,
    ended: AttemptEnd,
}

/// `None` where nobody looks.
pub(crate) fn begin(sending: &SendRequest) -> Option<Attempt> {
    let trace = sending.trace?;
    let begun = AttemptStart {
        endpoint: sending.send.endpoint,
        delivery: sending.send.delivery,
        number: sending.number,
        due: sending.due,
        server: sending.target.address.as_ref().ok().and_then(|address| server(address.url())),
        timeout: sending.timeout,
    };
    Some(Attempt::begin(trace, &sending.event, begun))
}

impl Traced {
    pub(crate) fn new(traces: Option<Traces>) -> Traced {
        Traced { traces, answered: Arc::default() }
    }

    pub(crate) fn answered(&self, generation: OwnerGeneration, attempt: AttemptId, seen: Option<Attempt>) {
        let Some(seen) = seen else { return };
        let mut answered = self.answered.lock();
        if generation > answered.generation {
            *answered = Answered { generation, attempts: HashMap::new() };
        }
        if generation == answered.generation {
            answered.attempts.insert(attempt, seen);
        }
    }

    /// Those of these records that are looked at; they are about to be written.
    pub(crate) fn judged(&self, generation: OwnerGeneration, records: &[Record]) -> Vec<Judged> {
        if self.traces.is_none() {
            return Vec::new();
        }
        let mut answered = self.answered.lock();
        if answered.attempts.is_empty() || answered.generation != generation {
            return Vec::new();
        }
        let judged_at = Instant::now();
        let judged = |(place, record): (usize, &Record)| match &record.recorded {
            DeliveryChange::Attempt { attempt, state, .. } => {
                let seen = answered.attempts.remove(&attempt.id)?;
                let ended = AttemptEnd {
                    attempt: attempt.id,
                    outcome: attempt.outcome,
                    timings: attempt.timings,
                    state: *state,
                    judged: judged_at,
                    // Both are said when it is known.
                    recorded: judged_at,
                    recorded_as: traces::RecordStatus::Done,
                };
                Some(Judged { place, attempt: seen, ended })
            }
            DeliveryChange::Moved { .. } | DeliveryChange::Nothing => None,
        };
        records.iter().enumerate().filter_map(judged).collect()
    }

    /// Those of `range` among the records that were judged together are recorded.
    pub(crate) fn recorded(&self, judged: &mut Vec<Judged>, range: &Range<usize>, results: &[RecordResult]) {
        let Some(traces) = self.traces.as_ref().filter(|_| !judged.is_empty()) else { return };
        let recorded = Instant::now();
        for Judged { place, attempt, ended } in judged.extract_if(.., |judged| range.contains(&judged.place)) {
            let recorded_as = match results.get(place - range.start) {
                Some(RecordResult::Done) => traces::RecordStatus::Done,
                Some(RecordResult::MovedOn) => traces::RecordStatus::MovedOn,
                Some(RecordResult::NotOwner) | None => traces::RecordStatus::NotOwner,
            };
            traces.attempted(&attempt, &AttemptEnd { recorded, recorded_as, ..ended });
        }
    }
}

fn server(url: &Uri) -> Option<Server<'_>> {
    Some(Server { scheme: url.scheme_str()?, host: url.host()?, port: url.port_u16() })
}
