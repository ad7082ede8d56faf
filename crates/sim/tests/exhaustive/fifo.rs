//! I20, a million times: deliveries of one key go strictly one after another, in the order of acceptance.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_core::bucket::Bucket;
use posthaste_core::circuit::CircuitPolicy;
use posthaste_core::delivery::Outcome;
use posthaste_core::event::EventType;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::jitter;
use posthaste_core::retry::{Jitter, RetryPolicy, Strategy};
use posthaste_core::scheduler::{
    Backlog, Class, Command, Entry, LaneConfig, LaneMemory, Limits, Scheduler, TenantConfig, WindowQuery,
};
use posthaste_core::text::OrderingKey;
use posthaste_core::time::Timestamp;

/// Chance from a number, without the cost of a generator.
struct Dice(u128, u32);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.1 += 1;
        jitter::draw(DeliveryId::from_bytes(self.0.to_be_bytes()), self.1) % sides
    }
}

/// A handful of rows of two keys and of none, published in between, with answers in any order and of any kind.
fn history(number: u128, shared: &Shared) {
    let mut dice = Dice(number, 0);
    let mut now = Timestamp::from_millis(1_800_000_000_000);
    let endpoint = EndpointId::from_bytes([1; 16]);
    let mut scheduler = Scheduler::new(now, Limits { window: 4, low_water: 2, ..Limits::default() });
    scheduler.configure_tenant(now, &shared.tenant, TenantConfig::default(), Bucket::full());
    scheduler.configure(now, &shared.tenant, endpoint, shared.config.clone(), LaneMemory::new(), Backlog::None);
    let mut waiting: BTreeMap<u64, Entry> = BTreeMap::new();
    let mut in_flight: Vec<DeliveryId> = vec![];
    let mut unrecorded: Vec<(DeliveryId, Option<Timestamp>)> = vec![];
    let mut published = 0;
    let rows = 3 + dice.roll(6);
    for _ in 0..400 {
        while let Some(command) = scheduler.next(now) {
            match command {
                Command::Read { endpoint, want, limit } => {
                    let rows = read(&waiting, &want);
                    let more = rows.len() > limit;
                    scheduler.refilled(endpoint, &want, rows.into_iter().take(limit).collect(), more, published);
                }
                Command::Send { delivery, .. } => {
                    let entry = waiting.values().find(|entry| entry.delivery == delivery).expect("only what waits is sent");
                    assert!(entry.due <= now, "case {number}: sent before it was due");
                    if entry.ordering_key.is_some() {
                        let head = waiting.values().find(|other| other.ordering_key == entry.ordering_key).unwrap();
                        assert_eq!(head.delivery, delivery, "case {number}: overtakes in its key");
                    }
                    in_flight.push(delivery);
                }
                Command::End { .. } => panic!("nothing ends here"),
            }
        }
        match dice.roll(4) {
            0 if published < rows => {
                published += 1;
                let key = &shared.keys[usize::try_from(dice.roll(3)).unwrap()];
                let later = dice.roll(5) == 0;
                let entry = Entry {
                    delivery: DeliveryId::from_bytes(u128::from(published).to_be_bytes()),
                    seq: published,
                    // Whoever publishes later may say that it happened earlier.
                    timestamp: now - Duration::from_millis(dice.roll(5_000)),
                    due: now + Duration::from_millis(if later { 1 + dice.roll(5_000) } else { 0 }),
                    attempts: 0,
                    is_later: later,
                    event_type: shared.event_type.clone(),
                    is_priority: dice.roll(4) == 0,
                    class: Class::Exempt,
                    ordering_key: key.clone(),
                    expires_at: None,
                };
                waiting.insert(published, entry.clone());
                // A lane with nothing to do is forgotten, and made anew.
                if !scheduler.has_lane(endpoint) {
                    scheduler.configure(now, &shared.tenant, endpoint, shared.config.clone(), LaneMemory::new(), Backlog::Unknown);
                }
                if dice.roll(5) == 0 { scheduler.hint(endpoint) } else { scheduler.offer(endpoint, entry) }
            }
            1 if !in_flight.is_empty() => {
                let which = usize::try_from(dice.roll(in_flight.len() as u64)).unwrap();
                let delivery = in_flight.swap_remove(which);
                let status = [200, 200, 500, 404][usize::try_from(dice.roll(4)).unwrap()];
                let decision = scheduler.finished(now, endpoint, delivery, &Outcome::Answered { status, retry_after: None });
                unrecorded.push((delivery, decision.verdict.retry_at()));
            }
            2 if !unrecorded.is_empty() => {
                let which = usize::try_from(dice.roll(unrecorded.len() as u64)).unwrap();
                let (delivery, retry_at) = unrecorded.swap_remove(which);
                let seq = u64::try_from(delivery.as_u128()).unwrap();
                match retry_at {
                    None => _ = waiting.remove(&seq),
                    Some(at) => {
                        let entry = waiting.get_mut(&seq).unwrap();
                        entry.due = at;
                        entry.attempts += 1;
                        entry.is_later = true;
                    }
                }
                scheduler.recorded(endpoint, delivery);
            }
            _ if in_flight.is_empty() && unrecorded.is_empty() => {
                if published == rows && waiting.is_empty() {
                    return;
                }
                now = scheduler.wake_at().map_or(now, |at| at.max(now)) + Duration::from_millis(1);
            }
            _ => now = now + Duration::from_millis(dice.roll(3_000)),
        }
    }
    panic!("case {number} does not end: {waiting:?}");
}

fn read(waiting: &BTreeMap<u64, Entry>, want: &WindowQuery) -> Vec<Entry> {
    let mut rows: Vec<&Entry> = match want {
        WindowQuery::Fresh(class) => {
            waiting.values().filter(|row| row.ordering_key.is_none() && !row.is_later && row.class == *class).collect()
        }
        WindowQuery::Later(class) => {
            waiting.values().filter(|row| row.ordering_key.is_none() && row.is_later && row.class == *class).collect()
        }
        WindowQuery::Heads { .. } | WindowQuery::Head(_) => {
            let mut heads: BTreeMap<&OrderingKey, &Entry> = BTreeMap::new();
            for row in waiting.values() {
                if let Some(key) = &row.ordering_key {
                    heads.entry(key).or_insert(row);
                }
            }
            let is_wanted = |key: &OrderingKey| match want {
                WindowQuery::Heads { after } => after.as_ref().is_none_or(|after| key > after),
                WindowQuery::Head(head) => key == head,
                WindowQuery::Fresh(_) | WindowQuery::Later(_) => false,
            };
            heads.into_iter().filter(|(key, _)| is_wanted(key)).map(|(_, row)| row).collect()
        }
    };
    match want {
        WindowQuery::Fresh(_) => rows.sort_by_key(|row| (row.timestamp, row.seq)),
        WindowQuery::Later(_) => rows.sort_by_key(|row| (row.due, row.seq)),
        WindowQuery::Heads { .. } | WindowQuery::Head(_) => {}
    }
    rows.into_iter().cloned().collect()
}

/// What is the same in every history.
struct Shared {
    tenant: TenantId,
    event_type: EventType,
    keys: [Option<OrderingKey>; 3],
    config: LaneConfig,
}

#[test]
fn i20_a_million_histories_keep_the_order_of_every_key() {
    let strategy =
        Strategy::Exponential { base: Duration::from_millis(500), factor: 2.0, cap: Duration::from_secs(4), jitter: Jitter::Full };
    let shared = Shared {
        tenant: TenantId::parse("acme").unwrap(),
        event_type: EventType::parse("order.paid").unwrap(),
        keys: [None, Some(OrderingKey::parse("k1").unwrap()), Some(OrderingKey::parse("k2").unwrap())],
        config: LaneConfig {
            retry: RetryPolicy::new(strategy, 4, std::collections::BTreeSet::new()).unwrap(),
            circuit: CircuitPolicy::new(1000, Duration::from_secs(1)).unwrap(),
            ..LaneConfig::default()
        },
    };
    std::thread::scope(|scope| {
        for half in 0..2u128 {
            let shared = &shared;
            scope.spawn(move || (0..500_000u128).for_each(|number| history(number * 2 + half, shared)));
        }
    });
}
