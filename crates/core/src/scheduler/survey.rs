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
pub struct HeldRows {
    pub count: u64,
    /// When the oldest of them happened.
    pub oldest: Option<Timestamp>,
}

impl HeldRows {
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
    pub held: [HeldRows; HoldReason::ALL.len()],
    /// Due, and waiting for nothing but its turn.
    pub pending: HeldRows,
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

/// Hours that are looked back at in one step, to find when quiet times began. Some ten lanes' worth; the rest have their turn
/// in the next look.
const QUIET_LOOKS_MAX: usize = 100;

impl Scheduler {
    /// Looks at lanes from this place on, at most so many places, and says where to go on.
    pub fn survey(&mut self, now: Timestamp, from: usize, places_max: usize) -> (Vec<LaneSurvey>, Option<usize>) {
        let to = from.saturating_add(places_max).min(self.lanes.len());
        let mut seen = Vec::new();
        let mut looks_left = QUIET_LOOKS_MAX;
        for number in from..to {
            let Some(endpoint) = self.lanes[number].as_ref().map(|lane| lane.endpoint) else { continue };
            let lane = self.lane_mut(number);
            let (is_quiet, quiet_length) = (lane.quiet_at(now), lane.quiet_length(now, &mut looks_left));
            let facts = self.facts(now, endpoint).expect("a lane");
            let gates = Gates::of(now, &facts, is_quiet);
            seen.push(look(now, self.lane(number), &facts, gates, quiet_length));
        }
        (seen, Some(to).filter(|to| *to < self.lanes.len()))
    }
}

fn look(now: Timestamp, lane: &Lane, facts: &LaneFacts<'_>, gates: Gates, quiet_length: Option<Duration>) -> LaneSurvey {
    let mut survey = LaneSurvey {
        endpoint: lane.endpoint,
        held: [HeldRows::default(); HoldReason::ALL.len()],
        pending: HeldRows::default(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventType, TypePatterns};
    use crate::id::{DeliveryId, TenantId};
    use crate::quiet_hours::{Days, QuietHours, TimeOfDay, Window};
    use crate::scheduler::{Backlog, Command, Entry, LaneConfig, LaneMemory, Limits, Seq, TenantConfig};

    /// 1 January 2026, 03:00 UTC.
    const NOW: Timestamp = Timestamp::from_millis(1_767_236_400_000);

    fn minutes(count: i64) -> Timestamp {
        Timestamp::from_millis(NOW.as_millis() + count * 60_000)
    }

    fn entry(seq: Seq, timestamp: Timestamp, due: Timestamp, attempts: u32, class: Class) -> Entry {
        Entry {
            delivery: DeliveryId::from_bytes(u128::from(seq).to_be_bytes()),
            seq,
            timestamp,
            due,
            attempts,
            is_later: attempts > 0 || due > NOW,
            event_type: EventType::parse("order.made").unwrap(),
            is_priority: class == Class::Priority,
            class,
            ordering_key: None,
            expires_at: None,
        }
    }

    fn scheduler(config: LaneConfig, rows: Vec<Entry>) -> (Scheduler, EndpointId) {
        let mut scheduler = Scheduler::new(NOW, Limits { in_flight_max: 1, window: 4, low_water: 1, retries: None });
        let (tenant, endpoint) = (TenantId::parse("acme").unwrap(), EndpointId::from_bytes([9; 16]));
        scheduler.configure_tenant(NOW, &tenant, TenantConfig::default(), crate::bucket::Bucket::full());
        scheduler.configure(NOW, &tenant, endpoint, config, LaneMemory::new(), Backlog::None);
        for row in rows {
            scheduler.offer(endpoint, row);
        }
        (scheduler, endpoint)
    }

    fn surveyed(scheduler: &mut Scheduler) -> LaneSurvey {
        let (mut lanes, next) = scheduler.survey(NOW, 0, 10);
        assert_eq!((lanes.len(), next), (1, None));
        lanes.remove(0)
    }

    fn quiet_hours(start: &str, end: &str) -> QuietHours {
        let time = |text| TimeOfDay::parse(text).unwrap();
        let window = Window { start: time(start), end: time(end), days: Days::ALL };
        QuietHours::new("UTC", vec![window], vec![], TypePatterns::default(), TypePatterns::default()).unwrap()
    }

    #[test]
    fn rows_are_counted_under_what_holds_each() {
        let config = LaneConfig { schedule: Some(quiet_hours("22:00", "06:00")), ..LaneConfig::default() };
        let (mut scheduler, _) = scheduler(
            config,
            vec![
                entry(1, minutes(-200), minutes(-200), 0, Class::Rest),
                entry(2, minutes(-100), minutes(-100), 0, Class::Rest),
                entry(3, minutes(-300), minutes(5), 1, Class::Rest),
                entry(4, minutes(-50), minutes(70), 0, Class::Rest),
                entry(5, minutes(-1), minutes(-1), 0, Class::Priority),
            ],
        );
        let lane = surveyed(&mut scheduler);
        let held = |reason: HoldReason| lane.held[reason as usize];
        assert_eq!(held(HoldReason::QuietHours), HeldRows { count: 2, oldest: Some(minutes(-200)) });
        assert_eq!(held(HoldReason::Retry), HeldRows { count: 1, oldest: Some(minutes(-300)) });
        assert_eq!(held(HoldReason::DeliverAt), HeldRows { count: 1, oldest: Some(minutes(-50)) });
        assert_eq!((lane.pending.count, lane.due_since, lane.is_partial), (1, Some(minutes(-1)), false));
        // A night of eight hours, to about an hour.
        let night = lane.expected[HoldReason::QuietHours as usize].unwrap();
        assert!((8..=9).contains(&(night.as_secs() / 3600)), "{night:?}");
        assert_eq!(lane.expected[HoldReason::DeliverAt as usize], Some(Duration::from_hours(2)));
        // Eight attempts over a day and a half, with what jitter may add.
        let retries = lane.expected[HoldReason::Retry as usize].unwrap();
        assert!((32..=36).contains(&(retries.as_secs() / 3600)), "{retries:?}");
        assert_eq!(lane.idle_since, Some(minutes(-1)), "nobody has asked who goes next");
    }

    #[test]
    fn what_does_not_fit_into_memory_is_said_to_be_more() {
        let (mut scheduler, _) =
            scheduler(LaneConfig::default(), (1..=6).map(|seq| entry(seq, NOW, NOW, 0, Class::Exempt)).collect());
        let lane = surveyed(&mut scheduler);
        assert_eq!((lane.pending.count, lane.is_partial), (4, true));
    }

    #[test]
    fn what_is_on_its_way_is_not_counted_as_waiting_and_is_watched() {
        let (mut scheduler, _) =
            scheduler(LaneConfig::default(), vec![entry(1, NOW, NOW, 0, Class::Exempt), entry(2, NOW, NOW, 0, Class::Exempt)]);
        assert!(matches!(scheduler.next(NOW), Some(Command::Send { .. })));
        let lane = surveyed(&mut scheduler);
        assert_eq!((lane.in_flight, lane.oldest_request), (1, Some(NOW)));
        // One at a time is all that this scheduler may send.
        assert_eq!(lane.held[HoldReason::Concurrency as usize].count, 1);
        assert_eq!((lane.pending.count, lane.idle_since), (0, None));
    }

    #[test]
    fn waits_for_a_token_are_counted_once_each() {
        let limit = crate::bucket::RateLimit::new(60, 1).unwrap();
        let config = LaneConfig { rate_limit: Some(limit), ..LaneConfig::default() };
        let (mut scheduler, endpoint) = scheduler(config, (1..=3).map(|seq| entry(seq, NOW, NOW, 0, Class::Exempt)).collect());
        let Some(Command::Send { delivery, .. }) = scheduler.next(NOW) else { panic!("the first goes") };
        scheduler.finished(NOW, endpoint, delivery, &crate::delivery::Outcome::Answered { status: 200, retry_after: None });
        scheduler.recorded(endpoint, delivery);
        for _ in 0..5 {
            assert_eq!(scheduler.next(NOW), None);
            scheduler.hint(endpoint);
            while let Some(Command::Read { want, .. }) = scheduler.next(NOW) {
                scheduler.refilled(endpoint, &want, vec![], false, 3);
            }
        }
        assert_eq!(scheduler.token_waits(), crate::scheduler::TokenWaits { count: 1, time: Duration::from_secs(1) });
    }
}
