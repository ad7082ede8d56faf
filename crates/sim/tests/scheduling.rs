//! What the scheduler does over hours, in virtual time.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use posthaste_core::bucket::{Bucket, RateLimit};
use posthaste_core::circuit::CircuitPolicy;
use posthaste_core::delivery::{Outcome, Verdict};
use posthaste_core::event::{EventType, TypePatterns};
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::quiet_hours::{Days, QuietHours, TimeOfDay, Window};
use posthaste_core::retry::{RetryPolicy, Strategy};
use posthaste_core::scheduler::{
    Backlog, Class, Command, Entry, LaneConfig, LaneMemory, Limits, Scheduler, TenantConfig, WindowQuery,
};
use posthaste_core::tenant::Share;
use posthaste_core::text::OrderingKey;
use posthaste_core::time::Timestamp;

/// Lanes with a backlog in a store, and receivers that always answer after a while.
struct Hall {
    scheduler: Scheduler,
    now: Timestamp,
    /// By endpoint, in the order in which they go.
    backlog: BTreeMap<EndpointId, BTreeMap<u64, Entry>>,
    answers: BinaryHeap<Reverse<(Timestamp, EndpointId, DeliveryId)>>,
    takes: BTreeMap<EndpointId, Duration>,
    /// When, and to whom.
    hits: Vec<(Timestamp, EndpointId)>,
    seq: u64,
}

impl Hall {
    fn new(now: Timestamp, limits: Limits) -> Hall {
        Hall {
            scheduler: Scheduler::new(now, limits),
            now,
            backlog: BTreeMap::new(),
            answers: BinaryHeap::new(),
            takes: BTreeMap::new(),
            hits: Vec::new(),
            seq: 0,
        }
    }

    fn endpoint(&mut self, tenant: &str, share: Share, config: LaneConfig, takes: Duration, backlog: u64) -> EndpointId {
        let id = EndpointId::from_bytes((self.backlog.len() as u128 + 1).to_be_bytes());
        let tenant = TenantId::parse(tenant).unwrap();
        let rows = (0..backlog)
            .map(|_| {
                self.seq += 1;
                let entry = Entry {
                    delivery: DeliveryId::from_bytes(u128::from(self.seq).to_be_bytes()),
                    seq: self.seq,
                    timestamp: self.now,
                    due: self.now,
                    attempts: 0,
                    is_later: false,
                    event_type: EventType::parse("order.paid").unwrap(),
                    is_priority: false,
                    class: Class::of(&EventType::parse("order.paid").unwrap(), false, config.schedule.as_ref()),
                    ordering_key: None,
                    expires_at: None,
                };
                (self.seq, entry)
            })
            .collect();
        self.backlog.insert(id, rows);
        self.takes.insert(id, takes);
        self.scheduler.configure_tenant(self.now, &tenant, TenantConfig { share, rate_limit: None }, Bucket::full());
        self.scheduler.configure(self.now, &tenant, id, config, LaneMemory::new(), Backlog::Unknown);
        id
    }

    /// Runs until nothing happens any more, or until then.
    fn run(&mut self, until: Timestamp) {
        while self.now < until {
            while let Some(command) = self.scheduler.next(self.now) {
                match command {
                    Command::Read { endpoint, want, limit } => {
                        let rows: Vec<Entry> = match want {
                            WindowQuery::Fresh(class) => self.backlog[&endpoint]
                                .values()
                                .filter(|entry| entry.class == class)
                                .take(limit + 1)
                                .cloned()
                                .collect(),
                            WindowQuery::Later(_) | WindowQuery::Heads { .. } | WindowQuery::Head(_) => vec![],
                        };
                        let more = rows.len() > limit;
                        let rows = rows.into_iter().take(limit).collect();
                        self.scheduler.refilled(endpoint, &want, rows, more, self.seq);
                    }
                    Command::Send { endpoint, delivery, .. } => {
                        self.hits.push((self.now, endpoint));
                        self.answers.push(Reverse((self.now + self.takes[&endpoint], endpoint, delivery)));
                    }
                    Command::End { .. } => panic!("nothing ends here"),
                }
            }
            let answer = self.answers.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = answer.into_iter().chain(self.scheduler.wake_at()).min() else { return };
            self.now = self.now.max(next);
            while self.answers.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
                let Reverse((_, endpoint, delivery)) = self.answers.pop().unwrap();
                let success = Outcome::Answered { status: 200, retry_after: None };
                self.scheduler.finished(self.now, endpoint, delivery, &success);
                self.backlog.get_mut(&endpoint).unwrap().remove(&u64::try_from(delivery.as_u128()).unwrap());
                self.scheduler.recorded(endpoint, delivery);
            }
        }
    }
}

#[test]
fn c4_ten_thousand_held_overnight_drain_at_the_shaped_rate() {
    let night = Timestamp::parse("2026-06-01T00:00:00Z").unwrap();
    let window = Window { start: TimeOfDay::parse("00:00").unwrap(), end: TimeOfDay::parse("06:00").unwrap(), days: Days::ALL };
    let schedule = QuietHours::new("UTC", vec![window], vec![], TypePatterns::default(), TypePatterns::default()).unwrap();
    let config = LaneConfig {
        schedule: Some(schedule),
        rate_limit: Some(RateLimit::new(100, 250).unwrap()),
        max_in_flight: 1000,
        ..LaneConfig::default()
    };
    let mut hall = Hall::new(night, Limits { in_flight_max: 4096, ..Limits::default() });
    hall.endpoint("acme", Share::new(1, 2000).unwrap(), config, Duration::from_millis(1), 10_000);
    hall.run(night + Duration::from_hours(24));
    let opening = Timestamp::parse("2026-06-01T06:00:00Z").unwrap();
    assert_eq!(hall.hits.len(), 10_000);
    assert_eq!(hall.hits[0].0, opening, "the first at the opening");
    let at_once = hall.hits.iter().filter(|(at, _)| at.since(opening) < Duration::from_millis(500)).count();
    assert_eq!(at_once, 250);
    let minutes = hall.hits[9_999].0.since(opening).as_secs_f64() / 60.0;
    assert!((minutes - 97.5).abs() < 0.975, "the last after {minutes} minutes");
    // I24: 100 a minute are 16.7 in any ten seconds.
    for start in (0..).map(|n| opening + Duration::from_millis(500 * n)) {
        let end = start + Duration::from_secs(10);
        if end > hall.hits[9_999].0 {
            break;
        }
        let first = hall.hits.partition_point(|(at, _)| *at < start);
        let hits = hall.hits.partition_point(|(at, _)| *at < end) - first;
        assert!(hits >= 15, "{hits} from {} on", start.to_rfc3339());
    }
}

/// Ten keys of one endpoint that takes four at once, an event each 2 ms: how long each of nine keys waited. The tenth is
/// refused, and waits for an hour between two tries.
fn waits_of_nine_keys(is_tenth_refused: bool) -> Vec<Duration> {
    let start = Timestamp::parse("2026-06-01T00:00:00Z").unwrap();
    let (tenant, endpoint) = (TenantId::parse("acme").unwrap(), EndpointId::from_bytes([7; 16]));
    let retry =
        RetryPolicy::new(Strategy::Schedule { delays: vec![Duration::from_hours(1); 4], jitter_percent: 0 }, 5, BTreeSet::new());
    let circuit = CircuitPolicy::new(100, Duration::from_mins(1)).unwrap();
    let config = LaneConfig { max_in_flight: 4, retry: retry.unwrap(), circuit, ..LaneConfig::default() };
    let mut scheduler = Scheduler::new(start, Limits { window: 8, low_water: 4, ..Limits::default() });
    scheduler.configure_tenant(start, &tenant, TenantConfig::default(), Bucket::full());
    scheduler.configure(start, &tenant, endpoint, config, LaneMemory::new(), Backlog::None);
    let key_of = |seq: u64| OrderingKey::parse(&format!("key-{}", seq % 10)).unwrap();
    // What is unfinished, in the order of acceptance.
    let mut rows: BTreeMap<u64, Entry> = BTreeMap::new();
    let mut answers: BinaryHeap<Reverse<(Timestamp, u64)>> = BinaryHeap::new();
    let mut waits = Vec::new();
    for tick in 0..20_000u64 {
        let now = start + Duration::from_millis(tick);
        if tick % 2 == 0 {
            let seq = tick / 2 + 1;
            let entry = Entry {
                delivery: DeliveryId::from_bytes(u128::from(seq).to_be_bytes()),
                seq,
                timestamp: now,
                due: now,
                attempts: 0,
                is_later: false,
                event_type: EventType::parse("order.paid").unwrap(),
                is_priority: false,
                class: Class::Exempt,
                ordering_key: Some(key_of(seq)),
                expires_at: None,
            };
            rows.insert(seq, entry.clone());
            scheduler.offer(endpoint, entry);
        }
        while answers.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Reverse((_, seq)) = answers.pop().unwrap();
            let is_refused = is_tenth_refused && seq % 10 == 0;
            let outcome = Outcome::Answered { status: if is_refused { 500 } else { 200 }, retry_after: None };
            let delivery = rows[&seq].delivery;
            match scheduler.finished(now, endpoint, delivery, &outcome).verdict {
                Verdict::RetryAt(due) => rows.get_mut(&seq).unwrap().due = due,
                Verdict::Delivered | Verdict::Dead(_) => drop(rows.remove(&seq)),
            }
            scheduler.recorded(endpoint, delivery);
        }
        while let Some(command) = scheduler.next(now) {
            match command {
                Command::Read { want, limit, .. } => {
                    let mut heads: BTreeMap<OrderingKey, Entry> = BTreeMap::new();
                    for row in rows.values() {
                        heads.entry(row.ordering_key.clone().unwrap()).or_insert(row.clone());
                    }
                    let found: Vec<Entry> = match &want {
                        WindowQuery::Fresh(_) | WindowQuery::Later(_) => vec![],
                        WindowQuery::Head(key) => heads.remove(key).into_iter().collect(),
                        WindowQuery::Heads { after } => {
                            heads.into_iter().filter(|(key, _)| Some(key) > after.as_ref()).map(|(_, row)| row).collect()
                        }
                    };
                    let more = found.len() > limit;
                    let found = found.into_iter().take(limit).collect();
                    scheduler.refilled(endpoint, &want, found, more, tick / 2 + 1);
                }
                Command::Send { delivery, .. } => {
                    let seq = u64::try_from(delivery.as_u128()).unwrap();
                    if seq % 10 != 0 {
                        waits.push(now.since(rows[&seq].timestamp));
                    }
                    answers.push(Reverse((now + Duration::from_millis(5), seq)));
                }
                Command::End { .. } => panic!("nothing ends here"),
            }
        }
    }
    waits
}

#[test]
fn i21_a_blocked_key_blocks_only_itself() {
    let p99 = |mut waits: Vec<Duration>| {
        assert!(waits.len() > 8_500, "{} were sent", waits.len());
        waits.sort();
        waits[waits.len() * 99 / 100]
    };
    let (undisturbed, beside_a_blocked_one) = (p99(waits_of_nine_keys(false)), p99(waits_of_nine_keys(true)));
    assert!(
        beside_a_blocked_one <= 2 * undisturbed.max(Duration::from_millis(1)),
        "{undisturbed:?}, then {beside_a_blocked_one:?}"
    );
}

/// The least share of all hits that any of these had, over any stretch of ten seconds in which all had work.
fn least_share(hits: &[(Timestamp, EndpointId)], of: &[EndpointId]) -> f64 {
    let span = Duration::from_secs(10);
    let mut least: f64 = 1.0;
    let mut first = 0;
    for last in 0..hits.len() {
        if hits[last].0.since(hits[first].0) < span {
            continue;
        }
        let stretch = &hits[first..last];
        for endpoint in of {
            let mine = stretch.iter().filter(|(_, to)| to == endpoint).count();
            least = least.min(mine as f64 / stretch.len() as f64);
        }
        first = last;
    }
    least
}

#[test]
fn i36_ten_tenants_get_their_share_beside_one_that_floods() {
    let start = Timestamp::from_millis(1_800_000_000_000);
    let mut hall = Hall::new(start, Limits { in_flight_max: 64, ..Limits::default() });
    let mut all = vec![];
    for number in 0..10 {
        let backlog = if number == 0 { 2_000_000 / 10 } else { 2_000 };
        all.push(hall.endpoint(
            &format!("tenant-{number}"),
            Share::default(),
            LaneConfig::default(),
            Duration::from_millis(200),
            backlog,
        ));
    }
    // So long that the smaller backlogs last.
    hall.run(start + Duration::from_mins(1));
    assert!(hall.backlog.values().all(|rows| !rows.is_empty()), "all still have work");
    let least = least_share(&hall.hits, &all);
    assert!(least >= 0.8 / 10.0, "the least share was {least}");
}

#[test]
fn i36_a_newcomer_finds_room_beside_tenants_whose_receivers_all_hang() {
    let start = Timestamp::from_millis(1_800_000_000_000);
    let mut hall = Hall::new(start, Limits { in_flight_max: 256, ..Limits::default() });
    for number in 0..3 {
        for _ in 0..100 {
            let hog = Share::new(1, 100_000).unwrap();
            hall.endpoint(&format!("hog-{number}"), hog, LaneConfig::default(), Duration::from_secs(30), 50);
        }
    }
    hall.run(start + Duration::from_secs(5));
    let asked = hall.now;
    let newcomer = hall.endpoint("newcomer", Share::default(), LaneConfig::default(), Duration::from_millis(10), 20);
    hall.run(asked + Duration::from_secs(5));
    let first: Vec<Timestamp> = hall.hits.iter().filter(|(_, to)| *to == newcomer).map(|(at, _)| *at).collect();
    assert_eq!(first.len(), 20);
    assert!(first[19].since(asked) < Duration::from_millis(200), "the last after {:?}", first[19].since(asked));
}

#[test]
fn weights_divide_the_machine() {
    let start = Timestamp::from_millis(1_800_000_000_000);
    let mut hall = Hall::new(start, Limits { in_flight_max: 40, ..Limits::default() });
    let light = hall.endpoint("light", Share::new(1, 1000).unwrap(), LaneConfig::default(), Duration::from_millis(100), 100_000);
    let config = LaneConfig { max_in_flight: 1000, ..LaneConfig::default() };
    let heavy = hall.endpoint("heavy", Share::new(3, 1000).unwrap(), config, Duration::from_millis(100), 100_000);
    hall.run(start + Duration::from_secs(30));
    let count = |endpoint| hall.hits.iter().filter(|(_, to)| *to == endpoint).count() as f64;
    let ratio = count(heavy) / count(light);
    assert!((2.0..4.5).contains(&ratio), "three times the weight got {ratio} times as much");
}

#[test]
fn test_sends_beyond_every_cap_harm_nobody() {
    let start = Timestamp::from_millis(1_800_000_000_000);
    let mut hall = Hall::new(start, Limits { in_flight_max: 2, ..Limits::default() });
    let endpoint = hall.endpoint("acme", Share::new(1, 2).unwrap(), LaneConfig::default(), Duration::from_millis(10), 20);
    for _ in 0..5 {
        assert_eq!(hall.scheduler.start_test_send(start, endpoint), Ok(()));
    }
    assert!(hall.scheduler.facts(start, endpoint).is_some_and(|facts| !facts.has_slot));
    hall.run(start + Duration::from_millis(1));
    assert!(hall.hits.is_empty(), "there is no room beside them");
    for _ in 0..5 {
        hall.scheduler.finish_test_send(endpoint);
    }
    hall.run(start + Duration::from_mins(1));
    assert_eq!(hall.hits.len(), 20);
}

#[test]
fn a_lane_and_a_row_that_waits_take_no_more_memory_than_the_documents_say() {
    let memory = posthaste_sim::bench::memory().unwrap();
    assert!((200..=2_048).contains(&memory.per_lane), "{memory:?}");
    assert!((100..=320).contains(&memory.per_row), "{memory:?}");
    assert_eq!(memory.rows_max, 256);
}
