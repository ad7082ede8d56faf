//! Who owns what.

use posthaste_core::delivery::State;
use posthaste_core::time::Timestamp;
use posthaste_store::*;

use crate::world::{World, later};

crate::conform! {
    a_new_owner_raises_the_epoch
    what_a_leaver_has_in_flight_it_may_still_record_and_nothing_else
    what_was_recorded_before_it_is_handed_over_is_not_left_alone
    a_new_owner_can_ask_which_deliveries_are_still_in_flight_elsewhere
    a_node_that_never_joined_is_refused
    a_claim_knows_every_number_that_was_given_and_none_that_was_not
}

async fn a_new_owner_raises_the_epoch(world: World) {
    let epoch = world.epoch;
    assert_eq!(world.store.nodes().await.unwrap(), [world.node]);
    world.store.renew(world.node).await.unwrap().unwrap();
    let options = world.options.clone();
    let world = world.reopened(options).await;
    assert!(world.epoch > epoch);
}

async fn what_a_leaver_has_in_flight_it_may_still_record_and_nothing_else(world: World) {
    world.endpoint("acme").await;
    let (promised, other, late) = (world.delivery("acme").await, world.delivery("acme").await, world.delivery("acme").await);
    let now = world.store.now();
    let old = world.epoch;
    let in_flight = vec![in_flight(&promised, 1, later(now, 60)), in_flight(&late, 1, now)];
    world.store.hand_over(world.node, GivenUp::Everything, in_flight).await.unwrap();
    leases_end(&world, "in an hour");
    let options = world.options.clone();
    let world = world.reopened(options).await;
    let claimed = world.store.claim(world.node, usize::from(PARTITIONS)).await.unwrap().unwrap();
    let left: Vec<_> = claimed.in_flight_elsewhere.iter().map(|one| (one.delivery, one.endpoint, one.until)).collect();
    assert_eq!(left, [(promised.id, promised.endpoint, later(now, 60))]);
    let state = State::Delivered { at: world.store.now() };
    let record = |row: &DeliveryRow| Record {
        epoch: old,
        ..world.record(row, DeliveryChange::Attempt { seq: row.seq, attempt: world.attempt(1, 200), state })
    };
    let answers = world.store.record(vec![record(&other), record(&promised), record(&late)]).await.unwrap();
    assert_eq!(answers, [RecordResult::NotOwner, RecordResult::Done, RecordResult::NotOwner]);
    assert_eq!(world.row(&promised).await.state, state);
    assert!(matches!(world.row(&other).await.state, State::Waiting { .. }));
}

fn in_flight(row: &DeliveryRow, attempt: u32, until: Timestamp) -> HandedOver {
    HandedOver { seq: row.seq, attempt, until }
}

/// A leaver's record and its hand-over race. If the record is first, there is nothing to wait for.
async fn what_was_recorded_before_it_is_handed_over_is_not_left_alone(world: World) {
    world.endpoint("acme").await;
    let (tried, delivered, unsent) = (world.delivery("acme").await, world.delivery("acme").await, world.delivery("acme").await);
    let now = world.store.now();
    assert_eq!(world.try_once(&tried, 1, 500, State::Waiting { due: later(now, 1) }).await, RecordResult::Done);
    assert_eq!(world.try_once(&delivered, 1, 200, State::Delivered { at: now }).await, RecordResult::Done);
    let until = later(now, 60);
    let handed_over = vec![in_flight(&tried, 1, until), in_flight(&delivered, 1, until), in_flight(&unsent, 1, until)];
    world.store.hand_over(world.node, GivenUp::Everything, handed_over).await.unwrap();
    leases_end(&world, "in an hour");
    let options = world.options.clone();
    let world = world.reopened(options).await;
    let claimed = world.store.claim(world.node, usize::from(PARTITIONS)).await.unwrap().unwrap();
    assert_eq!(claimed.in_flight_elsewhere.iter().map(|one| one.seq).collect::<Vec<_>>(), [unsent.seq]);
}

async fn a_new_owner_can_ask_which_deliveries_are_still_in_flight_elsewhere(world: World) {
    world.endpoint("acme").await;
    let (first, second, late) = (world.delivery("acme").await, world.delivery("acme").await, world.delivery("acme").await);
    let never = world.delivery("acme").await;
    let (now, old) = (world.store.now(), world.epoch);
    let until = later(now, 60);
    let handed_over = vec![in_flight(&first, 1, until), in_flight(&second, 1, until), in_flight(&late, 1, now)];
    world.store.hand_over(world.node, GivenUp::Everything, handed_over).await.unwrap();
    leases_end(&world, "in an hour");
    let options = world.options.clone();
    let world = world.reopened(options).await;
    let asked = vec![first.seq, second.seq, late.seq, never.seq];
    let left = async || {
        let mut left = world.store.handed_over_left(asked.clone()).await.unwrap();
        left.sort_unstable();
        left
    };
    assert_eq!(left().await, [first.seq, second.seq]);
    let state = State::Waiting { due: later(now, 1) };
    let recorded = DeliveryChange::Attempt { seq: first.seq, attempt: world.attempt(1, 500), state };
    let record = Record { epoch: old, ..world.record(&first, recorded) };
    assert_eq!(world.store.record(vec![record]).await.unwrap(), [RecordResult::Done]);
    assert_eq!(left().await, [second.seq]);
    assert!(world.store.handed_over_left(vec![]).await.unwrap().is_empty());
}

/// However slow this machine is, a node is gone when the test says so. SQLite has no leases.
fn leases_end(world: &World, when: &str) {
    if world.is_postgres() {
        let at = if when == "now" { "clock_timestamp()" } else { "clock_timestamp() + interval '1 hour'" };
        world.tamper(&format!("UPDATE nodes SET expires_at = {at}"));
    }
}

/// A node that is killed while it finishes its requests has no one to record them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i33_what_a_leaver_that_is_gone_had_in_flight_is_not_waited_for_and_cannot_be_recorded() {
    let world = World::postgres().await;
    world.endpoint("acme").await;
    let (first, second) = (world.delivery("acme").await, world.delivery("acme").await);
    let (now, old) = (world.store.now(), world.epoch);
    let until = later(now, 60);
    let handed_over = vec![in_flight(&first, 1, until), in_flight(&second, 1, until)];
    world.store.hand_over(world.node, GivenUp::Everything, handed_over).await.unwrap();
    leases_end(&world, "now");
    let options = world.options.clone();
    let world = world.reopened(options).await;
    assert!(world.store.handed_over_left(vec![first.seq, second.seq]).await.unwrap().is_empty());
    let claimed = world.store.claim(world.node, usize::from(PARTITIONS)).await.unwrap().unwrap();
    assert_eq!(claimed.in_flight_elsewhere, []);
    let state = State::Delivered { at: now };
    let recorded = DeliveryChange::Attempt { seq: first.seq, attempt: world.attempt(1, 200), state };
    let record = Record { epoch: old, ..world.record(&first, recorded) };
    assert_eq!(world.store.record(vec![record]).await.unwrap(), [RecordResult::NotOwner]);
    assert_eq!(world.try_once(&first, 1, 200, state).await, RecordResult::Done, "it is its successor's");
    // What was handed over before nodes were named is waited for until its deadline.
    world.tamper("UPDATE handed_over SET node = NULL");
    assert_eq!(world.store.handed_over_left(vec![first.seq, second.seq]).await.unwrap(), [second.seq]);
}

async fn a_node_that_never_joined_is_refused(world: World) {
    let nobody = NodeId(7);
    assert_eq!(world.store.renew(nobody).await.unwrap(), Err(Refusal::LeaseEnded));
    assert_eq!(world.store.claim(nobody, 10).await.unwrap(), Err(Refusal::LeaseEnded));
}

/// By it an owner tells news of what others may have sent from news of what nobody can have.
async fn a_claim_knows_every_number_that_was_given_and_none_that_was_not(world: World) {
    let numbered = async |world: &World| world.store.claim(world.node, usize::MAX).await.unwrap().unwrap().numbered;
    let before = numbered(&world).await;
    world.endpoint("acme").await;
    world.endpoint("other").await;
    let first = world.delivery("acme").await;
    assert!(before < first.seq, "{before}, and then {}", first.seq);
    let mut last = world.delivery("other").await;
    for _ in 0..3 {
        last = world.delivery("acme").await;
    }
    let after = numbered(&world).await;
    assert!(last.seq <= after, "{} was given, and {after} is the last", last.seq);
    // Also what has ended, and also for whoever comes next.
    let at = world.store.now();
    assert_eq!(world.try_once(&last, 1, 200, State::Delivered { at }).await, RecordResult::Done);
    let options = world.options.clone();
    let world = world.reopened(options).await;
    let after = numbered(&world).await;
    assert!(last.seq <= after, "{} was given, and {after} is the last", last.seq);
    let next = world.delivery("acme").await;
    assert!(after < next.seq, "{after} was the last, and then came {}", next.seq);
}
