//! What waits in lanes, and why, counted from what is in memory, some lanes at a time.
//!
//! A look over all lanes at once would hold up whoever sends, so it is taken in steps. A lane whose backlog does not fit into
//! memory says so, together with what holds its rows: whoever asks can then count them in the store.

use std::time::Duration;

use super::Scheduler;
use super::lane::{Lane, Stage};
use super::window::Class;
use crate::admission::{Gates, HoldReason, LaneFacts, RowFacts};
use crate::id::EndpointId;
use crate::retry::RetryPolicy;
use crate::time::Timestamp;

/// Rows of one lane that wait for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Waiting {
    pub count: u64,
    /// When the oldest of them happened.
    pub oldest: Option<Timestamp>,
}

impl Waiting {
    pub fn add(&mut self, count: u64, oldest: Timestamp) {
        self.count += count;
        self.oldest = Some(self.oldest.map_or(oldest, |before| before.min(oldest)));
    }
}

/// What one lane looks like.
#[derive(Clone, PartialEq, Debug)]
pub struct LaneSurvey {
    pub endpoint: EndpointId,
    /// In the order of [`HoldReason::ALL`].
    pub held: [Waiting; HoldReason::ALL.len()],
    /// Due, and waiting for nothing but its turn.
    pub pending: Waiting,
    /// When the first of those was due.
    pub due_since: Option<Timestamp>,
    /// On the wire, or not yet recorded.
    pub in_flight: u64,
    /// There may be more in the store than what is counted here.
    pub is_partial: bool,
    pub gates: Gates,
    /// How long what waits for each reason is expected to wait in all, where that does not depend on how much waits.
    pub expected: [Option<Duration>; HoldReason::ALL.len()],
    pub max_per_minute: Option<u32>,
    /// Since when something could have been begun and was not.
    pub idle_since: Option<Timestamp>,
    /// Since when the store has not answered.
    pub reads_since: Option<Timestamp>,
    /// Since when its oldest request is on its way.
    pub oldest_request: Option<Timestamp>,
}

impl Scheduler {
    /// Looks at lanes from this place on, at most so many places, and says where to go on.
    pub fn survey(&mut self, now: Timestamp, from: usize, places_max: usize) -> (Vec<LaneSurvey>, Option<usize>) {
        let to = from.saturating_add(places_max).min(self.lanes.len());
        let mut seen = Vec::new();
        for number in from..to {
            let Some(endpoint) = self.lanes[number].as_ref().map(|lane| lane.endpoint) else { continue };
            let is_quiet_for = self.lane_mut(number).quiet_length(now);
            let facts = self.facts(now, endpoint).expect("a lane");
            seen.push(look(now, self.lane(number), &facts, is_quiet_for));
        }
        (seen, Some(to).filter(|to| *to < self.lanes.len()))
    }
}

fn look(now: Timestamp, lane: &Lane, facts: &LaneFacts<'_>, quiet_length: Option<Duration>) -> LaneSurvey {
    let gates = Gates::of(now, facts, quiet_length.is_some());
    let mut survey = LaneSurvey {
        endpoint: lane.endpoint,
        held: [Waiting::default(); HoldReason::ALL.len()],
        pending: Waiting::default(),
        due_since: None,
        in_flight: (lane.flights.len() + lane.elsewhere.len()) as u64,
        is_partial: !lane.window.is_whole(),
        gates,
        expected: [None; HoldReason::ALL.len()],
        max_per_minute: facts.rate_limit.map(|(limit, _)| limit.max_per_minute()),
        idle_since: None,
        reads_since: lane.reads_since,
        oldest_request: on_the_wire_since(lane),
    };
    let mut latest_wish: Option<(Timestamp, Timestamp)> = None;
    for entry in lane.window.entries() {
        let row = RowFacts {
            is_due: entry.due <= now,
            is_tried: entry.attempts > 0,
            waits_in_quiet_hours: entry.class == Class::Rest,
            is_head_of_key: true,
        };
        let reason = gates.hold(row);
        match reason {
            None => {
                survey.pending.add(1, entry.timestamp);
                survey.due_since = Some(survey.due_since.map_or(entry.due, |since| since.min(entry.due)));
            }
            Some(reason) => {
                survey.held[reason as usize].add(1, entry.timestamp);
                if reason == HoldReason::DeliverAt && latest_wish.is_none_or(|(oldest, _)| entry.timestamp < oldest) {
                    latest_wish = Some((entry.timestamp, entry.due));
                }
            }
        }
    }
    survey.expected[HoldReason::QuietHours as usize] = quiet_length;
    survey.expected[HoldReason::DeliverAt as usize] = latest_wish.map(|(happened, due)| due.since(happened));
    if survey.held[HoldReason::Retry as usize].count > 0 {
        survey.expected[HoldReason::Retry as usize] = Some(all_retries(&lane.config.retry));
    }
    // While it is being read the store has the word.
    if lane.reads_since.is_none() && !lane.is_leaving {
        survey.idle_since = survey.due_since.map(|since| since.max(lane.moved_at));
    }
    survey
}

fn on_the_wire_since(lane: &Lane) -> Option<Timestamp> {
    let is_out = |stage: Stage| match stage {
        Stage::OnTheWire { .. } => true,
        Stage::Recording { .. } => false,
    };
    lane.flights.iter().filter(|(_, flight)| is_out(flight.stage)).map(|(_, flight)| flight.since).min()
}

/// What a delivery waits between its tries if all of them fail.
fn all_retries(policy: &RetryPolicy) -> Duration {
    (1..policy.max_attempts()).filter_map(|failures| policy.delay_bounds(failures)).map(|(_, longest)| longest).sum()
}
