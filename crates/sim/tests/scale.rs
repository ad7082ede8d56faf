//! One lane with more keys, commits and tenants than fit into memory: nothing is stuck, and nothing grows.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound;
use std::time::Duration;

use posthaste_core::bucket::{Bucket, RateLimit};
use posthaste_core::circuit::CircuitPolicy;
use posthaste_core::delivery::{Outcome, Verdict};
use posthaste_core::event::{EventType, TypePatterns};
use posthaste_core::health::HealthPolicy;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::quiet_hours::{Days, QuietHours, TimeOfDay, Window};
use posthaste_core::retry::{RetryPolicy, Strategy};
use posthaste_core::scheduler::{
    Backlog, Class, Command, Entry, LaneConfig, LaneMemory, Limits, Scheduler, TenantConfig, WindowQuery,
};
use posthaste_core::text::OrderingKey;
use posthaste_core::time::Timestamp;

const LIMITS: Limits = Limits { in_flight_max: 1024, window: 256, low_water: 64, retries: None };
const ANSWER_TAKES: Duration = Duration::from_millis(5);

/// One endpoint, its unfinished rows in a store that answers at once, and a receiver.
struct Lane {
    scheduler: Scheduler,
    config: LaneConfig,
    now: Timestamp,
    endpoint: EndpointId,
    rows: BTreeMap<u64, Entry>,
    /// The rows of each key.
    keys: BTreeMap<OrderingKey, BTreeSet<u64>>,
    answers: BinaryHeap<Reverse<(Timestamp, u64)>>,
    /// Rows that are refused this many times.
    refusals: BTreeMap<u64, u32>,
    /// When, and which row.
    hits: Vec<(Timestamp, u64)>,
    reads: usize,
    seq: u64,
}

impl Lane {
    fn new(now: Timestamp, config: LaneConfig) -> Lane {
        let endpoint = EndpointId::from_bytes([7; 16]);
        let mut lane = Lane {
            scheduler: Scheduler::new(now, LIMITS),
            config,
            now,
            endpoint,
            rows: BTreeMap::new(),
            keys: BTreeMap::new(),
            answers: BinaryHeap::new(),
            refusals: BTreeMap::new(),
            hits: vec![],
            reads: 0,
            seq: 0,
        };
        lane.restart(Backlog::None);
        lane
    }

    /// A new owner, which knows nothing of what waits.
    fn restart(&mut self, backlog: Backlog) {
        let tenant = TenantId::parse("acme").unwrap();
        self.scheduler = Scheduler::new(self.now, LIMITS);
        self.scheduler.configure_tenant(self.now, &tenant, TenantConfig::default(), Bucket::full());
        self.scheduler.configure(self.now, &tenant, self.endpoint, self.config.clone(), LaneMemory::new(), backlog);
    }

    fn publish(&mut self, event_type: &str, key: Option<&str>, due: Timestamp) -> u64 {
        self.seq += 1;
        let event_type = EventType::parse(event_type).unwrap();
        let entry = Entry {
            delivery: DeliveryId::from_bytes(u128::from(self.seq).to_be_bytes()),
            seq: self.seq,
            timestamp: self.now,
            due,
            attempts: 0,
            is_later: due > self.now,
            class: Class::of(&event_type, false, self.config.schedule.as_ref()),
            event_type,
            is_priority: false,
            ordering_key: key.map(|key| OrderingKey::parse(key).unwrap()),
            expires_at: None,
        };
        if let Some(key) = entry.ordering_key.clone() {
            self.keys.entry(key).or_default().insert(self.seq);
        }
        self.rows.insert(self.seq, entry.clone());
        self.scheduler.offer(self.endpoint, entry);
        self.seq
    }

    fn read(&mut self, want: &WindowQuery, limit: usize) {
        self.reads += 1;
        let unkeyed = |class: &Class, is_later: bool| -> Vec<Entry> {
            let is_wanted = |row: &&Entry| row.ordering_key.is_none() && row.class == *class && row.is_later == is_later;
            let mut rows: Vec<Entry> = self.rows.values().filter(is_wanted).cloned().collect();
            rows.sort_by_key(|row| if is_later { (row.due, row.seq) } else { (row.timestamp, row.seq) });
            rows
        };
        let head = |rows: &BTreeSet<u64>| self.rows[rows.first().expect("a key without rows is removed")].clone();
        let mut found = match want {
            WindowQuery::Fresh(class) => unkeyed(class, false),
            WindowQuery::Later(class) => unkeyed(class, true),
            WindowQuery::Head(key) => self.keys.get(key).map(head).into_iter().collect(),
            WindowQuery::Heads { after } => {
                let from = after.clone().map_or(Bound::Unbounded, Bound::Excluded);
                self.keys.range((from, Bound::Unbounded)).take(limit + 1).map(|(_, rows)| head(rows)).collect()
            }
        };
        let more = found.len() > limit;
        found.truncate(limit);
        self.scheduler.refilled(self.endpoint, want, found, more, self.seq);
    }

    fn remove(&mut self, seq: u64) {
        let row = self.rows.remove(&seq).unwrap();
        if let Some(key) = row.ordering_key {
            let rows = self.keys.get_mut(&key).unwrap();
            rows.remove(&seq);
            if rows.is_empty() {
                self.keys.remove(&key);
            }
        }
    }

    /// Does what can be done now. Fails if that does not end.
    fn settle(&mut self) {
        let reads_before = self.reads;
        while let Some(command) = self.scheduler.next(self.now) {
            match command {
                Command::Read { want, limit, .. } => self.read(&want, limit),
                Command::Send { delivery, .. } => {
                    let seq = u64::try_from(delivery.as_u128()).unwrap();
                    self.hits.push((self.now, seq));
                    self.answers.push(Reverse((self.now + ANSWER_TAKES, seq)));
                }
                Command::End { .. } => panic!("nothing ends here"),
            }
            assert!(self.reads - reads_before < 1_000, "it reads without end at {}", self.now.to_rfc3339());
        }
    }

    fn run(&mut self, until: Timestamp) {
        loop {
            self.settle();
            assert!(self.scheduler.wake_up_count() <= 2, "a lane and a tenant: {}", self.scheduler.wake_up_count());
            let answer = self.answers.peek().map(|Reverse((at, _))| *at);
            let next = answer.into_iter().chain(self.scheduler.wake_at()).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            while self.answers.peek().is_some_and(|Reverse((at, _))| *at <= self.now) {
                let Reverse((_, seq)) = self.answers.pop().unwrap();
                let is_refused = self.refusals.get_mut(&seq).is_some_and(|left| {
                    *left = left.saturating_sub(1);
                    *left > 0
                });
                let outcome = Outcome::Answered { status: if is_refused { 500 } else { 200 }, retry_after: None };
                let delivery = self.rows[&seq].delivery;
                match self.scheduler.finished(self.now, self.endpoint, delivery, &outcome).verdict {
                    Verdict::RetryAt(due) => {
                        let row = self.rows.get_mut(&seq).unwrap();
                        (row.due, row.is_later, row.attempts) = (due, true, row.attempts + 1);
                    }
                    Verdict::Delivered | Verdict::Dead(_) => self.remove(seq),
                }
                self.scheduler.recorded(self.endpoint, delivery);
            }
        }
        self.now = until;
    }

    fn hit_at(&self, seq: u64) -> Option<Timestamp> {
        self.hits.iter().find(|(_, hit)| *hit == seq).map(|(at, _)| *at)
    }
}

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

fn patient(max_in_flight: u32) -> LaneConfig {
    let delays = Strategy::Schedule { delays: vec![Duration::from_mins(10); 4], jitter_percent: 0 };
    LaneConfig {
        max_in_flight,
        retry: RetryPolicy::new(delays, 5, BTreeSet::new()).unwrap(),
        circuit: CircuitPolicy::new(1_000, Duration::from_mins(1)).unwrap(),
        health: HealthPolicy { failures_in_a_row: u32::MAX, ..HealthPolicy::default() },
        ..LaneConfig::default()
    }
}

#[test]
fn i6_a_due_head_goes_although_more_keys_than_fit_wait_for_tomorrow() {
    for restarts in [false, true] {
        for key in ["a", "zzz"] {
            let start = at("2026-06-01T12:00:00Z");
            let mut lane = Lane::new(start, LaneConfig::default());
            let tomorrow = start + Duration::from_hours(24);
            for number in 0..1_000 {
                lane.publish("order.paid", Some(&format!("key-{number:04}")), tomorrow);
            }
            lane.run(start + Duration::from_secs(1));
            let published_at = lane.now;
            let due = lane.publish("order.paid", Some(key), published_at);
            if restarts {
                lane.restart(Backlog::Unknown);
            }
            lane.run(published_at + Duration::from_secs(1));
            assert_eq!(lane.hit_at(due), Some(published_at), "key {key}, after a restart: {restarts}");
            // And the others tomorrow, all of them.
            lane.run(tomorrow + Duration::from_mins(1));
            assert_eq!(lane.hits.len(), 1_001);
            assert!(lane.hits[1].0 >= tomorrow);
        }
    }
}

#[test]
fn c4_a_bypassing_head_goes_although_more_keys_than_fit_wait_for_the_opening() {
    let start = at("2026-06-01T00:30:00Z");
    let window = Window { start: TimeOfDay::parse("00:00").unwrap(), end: TimeOfDay::parse("06:00").unwrap(), days: Days::ALL };
    let bypass = TypePatterns::parse(["payment.failed"]).unwrap();
    let schedule = QuietHours::new("UTC", vec![window], vec![], TypePatterns::default(), bypass).unwrap();
    let mut lane = Lane::new(start, LaneConfig { schedule: Some(schedule), ..LaneConfig::default() });
    for number in 0..1_000 {
        lane.publish("order.paid", Some(&format!("key-{number:04}")), start);
    }
    let urgent = lane.publish("payment.failed", Some("zzz"), start);
    lane.restart(Backlog::Unknown);
    lane.run(start + Duration::from_mins(1));
    assert_eq!(lane.hits, [(start, urgent)]);
    let opening = at("2026-06-01T06:00:00Z");
    lane.run(opening + Duration::from_mins(1));
    assert_eq!(lane.hits.len(), 1_001);
    assert_eq!(lane.hits[1].0, opening);
}

#[test]
fn every_key_is_delivered_in_order_and_read_a_few_times_only() {
    let start = at("2026-06-01T12:00:00Z");
    let mut lane = Lane::new(start, patient(16));
    for round in 0..3 {
        for number in 0..2_000 {
            lane.publish("order.paid", Some(&format!("key-{number:04}")), start);
        }
        if round == 1 {
            lane.restart(Backlog::Unknown);
        }
    }
    lane.run(start + Duration::from_mins(10));
    assert_eq!(lane.hits.len(), 6_000);
    let mut last_of_key: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, seq) in &lane.hits {
        let before = last_of_key.insert((seq - 1) % 2_000, *seq);
        assert!(before < Some(*seq), "{seq} came after {before:?}");
    }
    // Pages of heads, most of the time, and not one read for each row.
    assert!(lane.reads < 1_000, "{} reads", lane.reads);
}

#[test]
fn keys_that_are_refused_come_back_and_keep_nobody_waiting() {
    let start = at("2026-06-01T12:00:00Z");
    let mut lane = Lane::new(start, patient(64));
    for number in 0..1_000 {
        let seq = lane.publish("order.paid", Some(&format!("key-{number:04}")), start);
        lane.refusals.insert(seq, 3);
    }
    // Within ten minutes all were refused once, and wait: more heads than fit.
    lane.run(start + Duration::from_mins(5));
    assert_eq!(lane.hits.len(), 1_000);
    let published_at = lane.now;
    let next = lane.publish("order.paid", Some("zzz"), published_at);
    lane.run(published_at + Duration::from_secs(1));
    assert_eq!(lane.hit_at(next), Some(published_at));
    lane.run(start + Duration::from_hours(2));
    assert_eq!(lane.hits.len(), 3_001, "each three times, and one that was not refused");
    assert!(lane.rows.is_empty());
}

#[test]
fn keys_at_the_end_are_served_while_keys_at_the_beginning_are_busy() {
    let start = at("2026-06-01T12:00:00Z");
    let mut lane = Lane::new(start, LaneConfig { rate_limit: Some(RateLimit::new(60_000, 1).unwrap()), ..patient(16) });
    for number in 0..2_000 {
        lane.publish("order.paid", Some(&format!("m-{number:04}")), start);
    }
    let last = lane.publish("order.paid", Some("z"), start);
    lane.restart(Backlog::Unknown);
    // Every millisecond one goes, and one comes at the beginning.
    for tick in 0..6_000u64 {
        lane.publish("order.paid", Some(&format!("a-{tick:06}")), lane.now);
        lane.run(start + Duration::from_millis(tick));
    }
    assert!(lane.hit_at(last).is_some(), "{} were sent before it", lane.hits.len());
}

#[test]
fn a_held_lane_keeps_one_wake_up_however_many_commits_it_hears_of() {
    let start = at("2026-06-01T00:30:00Z");
    let window = Window { start: TimeOfDay::parse("00:00").unwrap(), end: TimeOfDay::parse("06:00").unwrap(), days: Days::ALL };
    let schedule = QuietHours::new("UTC", vec![window], vec![], TypePatterns::default(), TypePatterns::default()).unwrap();
    let mut lane = Lane::new(start, LaneConfig { schedule: Some(schedule), ..LaneConfig::default() });
    for second in 0..10_000u64 {
        // Some are due earlier than everything before them.
        let due = at("2026-06-02T12:00:00Z") - Duration::from_secs(second);
        lane.publish("order.paid", None, if second % 2 == 0 { due } else { lane.now });
        lane.run(start + Duration::from_secs(second));
    }
    assert_eq!(lane.scheduler.wake_up_count(), 1);
}

#[test]
fn a_tenant_without_lanes_is_forgotten_once_its_bucket_is_full() {
    let start = at("2026-06-01T12:00:00Z");
    let mut scheduler = Scheduler::new(start, LIMITS);
    let limit = RateLimit::new(60, 10).unwrap();
    let config = TenantConfig { rate_limit: Some(limit), ..TenantConfig::default() };
    let tenant = |number: u32| TenantId::parse(&format!("tenant-{number}")).unwrap();
    for number in 0..1_000 {
        scheduler.configure_tenant(start, &tenant(number), config, Bucket::full());
        assert!(scheduler.forget_tenant(start, &tenant(number)));
    }
    assert_eq!(scheduler.tenant_count(), 0);
    // One that has spent its tokens is remembered until they are back.
    scheduler.configure_tenant(start, &tenant(1), config, Bucket::empty(start, limit));
    assert!(!scheduler.forget_tenant(start + Duration::from_secs(9), &tenant(1)));
    assert!(scheduler.forget_tenant(start + Duration::from_secs(10), &tenant(1)));
    // One with a lane stays.
    scheduler.configure_tenant(start, &tenant(2), config, Bucket::full());
    let endpoint = EndpointId::from_bytes([9; 16]);
    scheduler.configure(start, &tenant(2), endpoint, LaneConfig::default(), LaneMemory::new(), Backlog::None);
    assert!(!scheduler.forget_tenant(start, &tenant(2)));
    while scheduler.next(start).is_some() {}
    assert!(!scheduler.has_lane(endpoint));
    assert!(scheduler.forget_tenant(start, &tenant(2)), "its lane was forgotten first");
}
