//! Looks over the backlog, a few lanes at a time: what waits and why, how old it is, and whether something is stuck.
//!
//! What is in memory is counted there. Of lanes whose backlog does not fit, the rest is counted in the store, beside the loop,
//! now and then, and never so often that it costs more than a twentieth of the time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use posthaste_core::admission::{HoldReason, RowFacts};
use posthaste_core::id::EndpointId;
use posthaste_core::scheduler::{Class, HeldRows, LaneSurvey};
use posthaste_core::time::Timestamp;
use posthaste_metrics::{BacklogGauges, Held, Metrics, StallReason};
use posthaste_store::{BacklogGroup, BacklogQuery, BacklogScope, Store};

use crate::owner::Owner;

pub(crate) const SURVEYED_EVERY: Duration = Duration::from_millis(50);
/// A millisecond's worth, mostly.
const LANES_AT_ONCE_MAX: usize = 500;
/// What others see is at most so old, and as much older as a look over all lanes takes.
const ROUND_EVERY: Duration = Duration::from_secs(1);
const COUNTED_EVERY: Duration = Duration::from_secs(10);
const ROWS_COUNTED_MAX: usize = 200_000;
/// After a count of some length, so many times as long is nothing counted.
const REST_FACTOR: u32 = 20;
/// Whoever could have gone for so long, and did not, is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(8);
/// What is due, not held, and not sent for so long waits without a reason.
const UNEXPLAINED_AFTER: Duration = Duration::from_secs(1);
/// An expected hold is never shorter: clocks, commits and looks take their time, too.
const EXPECTED_MIN: Duration = Duration::from_mins(1);

/// What was counted in the store, and for whom it is to be counted.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    wanted: Mutex<Vec<EndpointId>>,
    counted: Mutex<HashMap<EndpointId, Vec<BacklogGroup>>>,
}

/// Counts for those that want it, for ever.
pub(crate) async fn count_in_store(store: Arc<dyn Store>, stored: Arc<Stored>) {
    loop {
        let began = Instant::now();
        let wanted = stored.wanted.lock().clone();
        let still: HashSet<EndpointId> = wanted.iter().copied().collect();
        stored.counted.lock().retain(|endpoint, _| still.contains(endpoint));
        for endpoint in wanted {
            let one_began = Instant::now();
            let query = BacklogQuery {
                scope: BacklogScope::Endpoint(endpoint),
                now: store.now(),
                lanes_max: 1,
                rows_per_queue_max: ROWS_COUNTED_MAX,
                rows_max: usize::MAX,
            };
            match store.backlog(query).await {
                Ok(found) => {
                    let rows = found.lanes.into_iter().next().map_or_else(Vec::new, |lane| lane.waiting);
                    stored.counted.lock().insert(endpoint, rows);
                }
                // What was counted before stands until it can be counted again.
                Err(error) => tracing::debug!(%endpoint, %error, "a backlog could not be counted"),
            }
            tokio::time::sleep(one_began.elapsed() * REST_FACTOR).await;
        }
        tokio::time::sleep(COUNTED_EVERY.saturating_sub(began.elapsed())).await;
    }
}

pub(crate) struct Surveyor {
    metrics: Metrics,
    stored: Arc<Stored>,
    request_max: Duration,
    /// Where the look that is under way goes on.
    from: usize,
    round: Round,
    next_round_at: Instant,
    /// How long the longest queue of a lane that waits for tokens was expected to take since it began to wait.
    draining: HashMap<EndpointId, Duration>,
    stall: Option<StallReason>,
}

#[derive(Default)]
struct Round {
    gauges: BacklogGauges,
    partial: Vec<EndpointId>,
    draining: HashMap<EndpointId, Duration>,
    stall: Option<StallReason>,
}

impl Surveyor {
    pub(crate) fn new(metrics: Metrics, request_max: Duration) -> Surveyor {
        Surveyor {
            metrics,
            stored: Arc::default(),
            request_max,
            from: 0,
            round: Round::default(),
            next_round_at: Instant::now(),
            draining: HashMap::new(),
            stall: None,
        }
    }

    /// Whether what is due is not begun for a reason of this node's own, so that another would do better. A database that
    /// does not answer would not answer another either.
    pub(crate) fn is_own_fault(&self) -> bool {
        match self.stall {
            Some(StallReason::NothingStarts | StallReason::RequestUnanswered | StallReason::LoopStuck) => true,
            Some(StallReason::ReadUnanswered | StallReason::LoadUnanswered) | None => false,
        }
    }

    pub(crate) fn stored(&self) -> Arc<Stored> {
        Arc::clone(&self.stored)
    }

    /// Looks at some more lanes, and says whether all have been looked at now.
    pub(crate) fn step(&mut self, now: Timestamp, owner: &mut Owner) -> bool {
        if self.from == 0 && Instant::now() < self.next_round_at {
            return false;
        }
        let (lanes, next) = owner.survey(now, self.from, LANES_AT_ONCE_MAX);
        let may_start = owner.may_start();
        for lane in &lanes {
            self.look_at(now, lane, may_start);
        }
        self.from = next.unwrap_or(0);
        if next.is_none() {
            self.next_round_at = Instant::now() + ROUND_EVERY;
            self.end_round(now, owner);
        }
        next.is_none()
    }

    fn look_at(&mut self, now: Timestamp, lane: &LaneSurvey, may_start: bool) {
        let (mut held, mut pending) = (lane.held, lane.pending);
        if lane.is_partial {
            self.round.partial.push(lane.endpoint);
            if let Some(rows) = self.stored.counted.lock().get(&lane.endpoint) {
                (held, pending) = counted(lane, rows);
            }
        }
        let gauges = &mut self.round.gauges;
        gauges.lanes += 1;
        gauges.lanes_counted_in_store += u64::from(lane.is_partial);
        gauges.in_flight += lane.in_flight;
        gauges.pending += pending.count;
        if may_start && lane.idle_since.is_some_and(|since| now.since(since) > UNEXPLAINED_AFTER) {
            gauges.unexplained += pending.count;
        }
        gauges.oldest_due = gauges.oldest_due.max(lane.due_since.map(|due| now.since(due)));
        let mut expected = lane.expected;
        let limited = held[HoldReason::RateLimited as usize];
        if let (Some(oldest), Some(rate)) = (limited.oldest, lane.max_per_minute) {
            let drains_in = Duration::from_secs(limited.count.saturating_mul(60) / u64::from(rate.max(1)));
            // What it has waited for something else before is not to be blamed on tokens.
            let longest = self.draining.get(&lane.endpoint).copied().unwrap_or_else(|| now.since(oldest)).max(drains_in);
            self.round.draining.insert(lane.endpoint, longest);
            expected[HoldReason::RateLimited as usize] = Some(longest);
        }
        for (place, waiting) in held.iter().enumerate() {
            let Some(oldest) = waiting.oldest else { continue };
            let (age, expected) = (now.since(oldest), expected[place].map(|hold| hold.max(EXPECTED_MIN)));
            let sum: &mut Held = &mut gauges.held[place];
            sum.count += waiting.count;
            sum.overdue_endpoints += u64::from(expected.is_some_and(|expected| age > expected * 2));
            if sum.oldest.is_none_or(|before| before < age) {
                (sum.oldest, sum.expected) = (Some(age), expected);
            }
        }
        let is_long_ago = |since: Option<Timestamp>, limit: Duration| since.is_some_and(|since| now.since(since) > limit);
        let stall = if is_long_ago(lane.reads_since, STUCK_AFTER) {
            Some(StallReason::ReadUnanswered)
        } else if is_long_ago(lane.idle_since, STUCK_AFTER) && may_start {
            Some(StallReason::NothingStarts)
        } else if is_long_ago(lane.oldest_request, self.request_max) {
            Some(StallReason::RequestUnanswered)
        } else {
            None
        };
        self.round.stall = self.round.stall.or(stall);
    }

    fn end_round(&mut self, now: Timestamp, owner: &Owner) {
        let Round { mut gauges, partial, draining, mut stall } = std::mem::take(&mut self.round);
        gauges.partitions = owner.partitions().len() as u64;
        gauges.unrecorded = owner.unrecorded() as u64;
        gauges.requests = owner.requests() as u64;
        let waits = owner.token_waits();
        (gauges.token_waits, gauges.token_wait) = (waits.count, waits.time);
        if owner.loading_since().is_some_and(|since| now.since(since) > STUCK_AFTER) {
            stall = stall.or(Some(StallReason::LoadUnanswered));
        }
        self.draining = draining;
        *self.stored.wanted.lock() = partial;
        self.metrics.backlog().set(gauges);
        self.metrics.liveness().found(stall);
        if stall != self.stall {
            log_change(&self.metrics, self.stall, stall);
            self.stall = stall;
        }
    }
}

/// One line when it begins, and one when it is over.
fn log_change(metrics: &Metrics, before: Option<StallReason>, now: Option<StallReason>) {
    match (before, now) {
        (None, Some(stall)) => {
            metrics.liveness().stalled();
            tracing::error!(reason = stall.name(), "deliveries_stalled: {}", stall.in_words());
        }
        (Some(_), Some(stall)) => tracing::error!(reason = stall.name(), "deliveries_stalled: {}", stall.in_words()),
        (Some(_), None) => tracing::warn!("deliveries_go_on"),
        (None, None) => {}
    }
}

/// What the store says of a lane, under what holds it. What is in flight waits there, too, and is counted elsewhere.
fn counted(lane: &LaneSurvey, rows: &[BacklogGroup]) -> ([HeldRows; HoldReason::ALL.len()], HeldRows) {
    let (mut held, mut pending) = ([HeldRows::default(); HoldReason::ALL.len()], HeldRows::default());
    let mut in_flight = lane.in_flight;
    for rows in rows {
        let elsewhere = if rows.is_due { in_flight.min(rows.count) } else { 0 };
        in_flight -= elsewhere;
        let count = rows.count - elsewhere;
        if count == 0 {
            continue;
        }
        let row = RowFacts {
            is_due: rows.is_due,
            is_tried: rows.is_tried,
            waits_in_quiet_hours: rows.class == Class::Rest,
            is_head_of_key: rows.is_head_of_key,
        };
        match lane.gates.hold(row) {
            Some(reason) => held[reason as usize].add(count, rows.oldest),
            None => pending.add(count, rows.oldest),
        }
    }
    (held, pending)
}

/// Looks after the loop from a thread of its own, because a loop that is stuck may have taken every other with it.
pub(crate) struct Watch {
    metrics: Metrics,
    is_over: Arc<AtomicBool>,
}

const WATCHED_EVERY: Duration = Duration::from_secs(1);

impl Watch {
    pub(crate) fn start(metrics: Metrics) -> Watch {
        metrics.liveness().set_running(true);
        let is_over = Arc::new(AtomicBool::new(false));
        let (watched, ended) = (metrics.clone(), Arc::clone(&is_over));
        let watching = std::thread::Builder::new().name("posthaste-watch".to_owned()).spawn(move || {
            let mut was_stuck = false;
            while !ended.load(Ordering::Relaxed) {
                let is_stuck = watched.liveness().stall() == Some(StallReason::LoopStuck);
                if is_stuck != was_stuck {
                    let stall = |is_stuck: bool| is_stuck.then_some(StallReason::LoopStuck);
                    log_change(&watched, stall(was_stuck), stall(is_stuck));
                    was_stuck = is_stuck;
                }
                std::thread::sleep(WATCHED_EVERY);
            }
        });
        if let Err(error) = watching {
            tracing::warn!(%error, "nobody looks after the delivery loop");
        }
        Watch { metrics, is_over }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.metrics.liveness().set_running(false);
        self.metrics.liveness().found(None);
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::endpoint::{Endpoint, Status};
    use posthaste_core::event::{Data, Event, EventType, Timing};
    use posthaste_core::id::{DeliveryId, EventId, TenantId};
    use posthaste_core::scheduler::{Entry, WindowQuery};
    use posthaste_core::text::Labels;
    use posthaste_metrics::Format;
    use posthaste_store::{Body, Claimed, EndpointBundle, SecretText, StoredEndpoint, StoredSecret, WindowRows, partition_of};

    use super::*;
    use crate::{Effect, Input, Options};

    /// An owner whose wishes are granted only when a test does so: every hand is stuck.
    struct Stuck {
        owner: Owner,
        surveyor: Surveyor,
        metrics: Metrics,
        now: Timestamp,
        endpoint: EndpointId,
        status: Status,
    }

    fn tenant() -> TenantId {
        TenantId::parse("acme").unwrap()
    }

    impl Stuck {
        fn new(status: Status) -> Stuck {
            let metrics = Metrics::new(posthaste_metrics::Limits::default(), "test");
            let options = Options { metrics: Some(metrics.clone()), ..Options::default() };
            let now = Timestamp::from_millis(1_800_000_000_000);
            let surveyor = Surveyor::new(metrics.clone(), options.request_max());
            let endpoint = EndpointId::from_bytes([7; 16]);
            let mut stuck = Stuck { owner: Owner::new(now, options), surveyor, metrics, now, endpoint, status };
            let partitions = vec![(partition_of(&tenant()), 1)];
            stuck.happens(Input::PartitionsClaimed(Claimed {
                partitions,
                handed_over: vec![],
                in_flight_elsewhere: vec![],
                numbered: 0,
            }));
            stuck.happens(Input::Work(vec![endpoint]));
            stuck
        }

        fn happens(&mut self, input: Input) {
            self.owner.handle(self.now, input);
        }

        /// What the loop does in a turn, without anybody who does what it wants.
        fn wants(&mut self) -> Vec<Effect> {
            self.owner.next_effects(self.now)
        }

        fn load_endpoints(&mut self) {
            let url = "https://example.com/".to_owned();
            let endpoint = Endpoint { status: self.status, ..Endpoint::new(self.endpoint, tenant(), url, self.now) };
            let secret = StoredSecret { secret: SecretText("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()), until: None };
            let partition = partition_of(&tenant());
            let stored = StoredEndpoint { endpoint, secrets: vec![secret], partition, version: 1, deleted_at: None };
            let found = vec![EndpointBundle { endpoint: stored, tenant: None, lane: None }];
            self.happens(Input::EndpointsLoaded { generation: 0, asked: vec![self.endpoint], found });
        }

        /// Answers what was asked of the store: one delivery waits.
        fn answer_reads(&mut self, effects: Vec<Effect>) {
            for effect in effects {
                let Effect::ReadWindow { generation, endpoint, want, .. } = effect else { continue };
                let is_here = want == WindowQuery::Fresh(Class::Exempt);
                let rows = is_here.then(|| self.entry()).into_iter().collect();
                self.happens(Input::WindowRead { generation, endpoint, want, rows: WindowRows { rows, more: false, seen: 1 } });
            }
        }

        fn entry(&self) -> Entry {
            Entry {
                delivery: DeliveryId::from_bytes([1; 16]),
                seq: 1,
                timestamp: self.now,
                due: self.now,
                attempts: 0,
                is_later: false,
                event_type: EventType::parse("order.made").unwrap(),
                is_priority: false,
                class: Class::Exempt,
                ordering_key: None,
                expires_at: None,
            }
        }

        fn event(&self) -> Event {
            Event {
                id: EventId::parse("evt_1").unwrap(),
                tenant: tenant(),
                event_type: EventType::parse("order.made").unwrap(),
                version: None,
                timestamp: self.now,
                accepted_at: self.now,
                data: Data::parse("1").unwrap(),
                labels: Labels::default(),
                idempotency_key: None,
                ordering_key: None,
                timing: Timing::default(),
                trace: None,
            }
        }

        /// So much later, what does a look over everything find?
        fn after(&mut self, time: Duration) -> Option<StallReason> {
            self.now = self.now + time;
            self.surveyor.next_round_at = Instant::now();
            assert!(self.surveyor.step(self.now, &mut self.owner), "all of one lane");
            let page = self.metrics.page(Format::Text);
            let stall = self.metrics.liveness().stall();
            let shown = page.contains("posthaste_delivery_stalled")
                && page.lines().any(|line| line.starts_with("posthaste_delivery_stalled") && line.ends_with(" 1"));
            assert_eq!(shown, stall.is_some(), "the page says the same");
            stall
        }
    }

    const SOON: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(9);

    #[test]
    fn i41_a_store_that_does_not_say_where_things_go_is_noticed_within_ten_seconds() {
        let mut stuck = Stuck::new(Status::Active);
        assert!(matches!(stuck.wants()[..], [Effect::FindWork, Effect::LoadEndpoints { .. }]));
        assert_eq!(stuck.after(SOON), None);
        assert_eq!(stuck.after(LONG), Some(StallReason::LoadUnanswered));
        stuck.load_endpoints();
        assert_eq!(stuck.after(SOON), None, "it goes on");
        assert!(stuck.metrics.page(Format::Text).contains("posthaste_delivery_stalls_total 1\n"));
    }

    #[test]
    fn i33_what_was_not_sent_yet_when_a_node_leaves_is_not_handed_over_as_in_flight() {
        let mut stuck = Stuck::new(Status::Active);
        stuck.wants();
        stuck.load_endpoints();
        let effects = stuck.wants();
        stuck.answer_reads(effects);
        let effects = stuck.wants();
        let Some(Effect::ReadBodies { generation, wanted }) =
            effects.into_iter().find(|effect| matches!(effect, Effect::ReadBodies { .. }))
        else {
            panic!("its payload is asked for")
        };
        stuck.happens(Input::GiveUp(vec![partition_of(&tenant())]));
        let in_flight = |effect| if let Effect::HandOver { in_flight, .. } = effect { Some(in_flight) } else { None };
        assert_eq!(stuck.wants().into_iter().find_map(in_flight), Some(vec![]));
        // Its payload comes too late: the next owner sends it.
        let event = Ok(stuck.event());
        let found = vec![Body { seq: 1, delivery: DeliveryId::from_bytes([1; 16]), event }];
        stuck.happens(Input::BodiesRead { generation, asked: wanted, found });
        let effects = stuck.wants();
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Send(_))), "{effects:?}");
        assert!(stuck.owner.is_at_rest());
    }

    #[test]
    fn a_stop_does_not_wait_for_what_was_about_to_be_sent_when_everything_was_lost() {
        let mut stuck = Stuck::new(Status::Active);
        stuck.wants();
        stuck.load_endpoints();
        let reads = stuck.wants();
        stuck.answer_reads(reads);
        let effects = stuck.wants();
        let [Effect::ReadBodies { generation, wanted }] = &effects[..] else { panic!("{effects:?}") };
        let event = stuck.event();
        let found = vec![Body { seq: 1, delivery: wanted[0].delivery, event: Ok(event) }];
        stuck.happens(Input::BodiesRead { generation: *generation, asked: wanted.clone(), found });
        assert_eq!(stuck.owner.requests(), 1, "it is as good as sent");
        // Both in one turn of the loop: nobody has been told to send it.
        stuck.happens(Input::LeaseEnded);
        stuck.owner.stop();
        assert!(!stuck.wants().iter().any(|effect| matches!(effect, Effect::Send(_))));
        assert!(stuck.owner.is_at_rest());
    }

    #[test]
    fn i41_a_read_that_is_not_answered_is_noticed_within_ten_seconds() {
        let mut stuck = Stuck::new(Status::Active);
        stuck.wants();
        stuck.load_endpoints();
        let effects = stuck.wants();
        assert!(effects.iter().any(|effect| matches!(effect, Effect::ReadWindow { .. })));
        assert_eq!(stuck.after(SOON), None);
        assert_eq!(stuck.after(LONG), Some(StallReason::ReadUnanswered));
        assert!(!stuck.surveyor.is_own_fault(), "it would not answer anybody else");
        stuck.answer_reads(effects);
        assert_eq!(stuck.after(Duration::ZERO), None, "it goes on");
    }

    #[test]
    fn i41_work_that_is_due_and_not_begun_is_noticed_within_ten_seconds() {
        let mut stuck = Stuck::new(Status::Active);
        stuck.wants();
        stuck.load_endpoints();
        let effects = stuck.wants();
        stuck.answer_reads(effects);
        // From here on nobody asks who goes next.
        assert_eq!(stuck.after(SOON), None);
        assert_eq!(stuck.after(LONG), Some(StallReason::NothingStarts));
        assert!(stuck.surveyor.is_own_fault(), "somebody else should do it");
        let effects = stuck.wants();
        assert!(effects.iter().any(|effect| matches!(effect, Effect::ReadBodies { .. })), "{effects:?}");
        assert_eq!(stuck.after(Duration::ZERO), None, "it goes on");
        // And now its payload is never found.
        assert_eq!(stuck.after(LONG), None, "a request may take its time");
        assert_eq!(stuck.after(Options::default().request_max()), Some(StallReason::RequestUnanswered));
        assert!(stuck.metrics.page(Format::Text).contains("posthaste_delivery_stalls_total 2\n"));
    }

    #[test]
    fn what_somebody_holds_is_not_stuck_however_long() {
        let mut stuck = Stuck::new(Status::Paused { until: None });
        stuck.wants();
        stuck.load_endpoints();
        let effects = stuck.wants();
        stuck.answer_reads(effects);
        assert!(stuck.wants().iter().all(|effect| !matches!(effect, Effect::ReadBodies { .. } | Effect::Send(_))));
        assert_eq!(stuck.after(Duration::from_hours(100)), None);
        let page = stuck.metrics.page(Format::Text);
        assert!(page.contains("webhook_queue_depth{hold_reason=\"paused\"} 1\n"), "{page}");
        assert!(page.contains("webhook_oldest_held_seconds{hold_reason=\"paused\"} 360000\n"), "{page}");
        assert!(!page.contains("webhook_expected_hold_seconds{"), "nobody can say how long a pause is: {page}");
    }
}
