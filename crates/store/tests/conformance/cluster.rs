//! Who owns what.

use std::time::Duration;

use posthaste_core::bucket::Bucket;
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
    i23_the_bucket_of_a_tenant_is_handed_over_with_its_partition
    i23_after_a_crash_a_claim_says_when_it_was_until_every_lane_has_been_loaded_since
    a_node_is_seen_with_what_it_says_about_itself
}

async fn a_new_owner_raises_the_epoch(world: World) {
    let epoch = world.epoch;
    assert_eq!(world.store.nodes().await.unwrap(), [world.node]);
    world.store.renew(world.node, NodeLoad::default()).await.unwrap().unwrap();
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
    world.store.hand_over(world.node, Transfer { in_flight, ..Transfer::of(GivenUp::Everything) }).await.unwrap();
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
    world.store.hand_over(world.node, Transfer { in_flight: handed_over, ..Transfer::of(GivenUp::Everything) }).await.unwrap();
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
    world.store.hand_over(world.node, Transfer { in_flight: handed_over, ..Transfer::of(GivenUp::Everything) }).await.unwrap();
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
    world.store.hand_over(world.node, Transfer { in_flight: handed_over, ..Transfer::of(GivenUp::Everything) }).await.unwrap();
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
    assert_eq!(world.store.renew(nobody, NodeLoad::default()).await.unwrap(), Err(Refusal::LeaseEnded));
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

async fn i23_the_bucket_of_a_tenant_is_handed_over_with_its_partition(world: World) {
    let endpoint = world.endpoint("acme").await;
    let partition = partition_of(&endpoint.tenant);
    let load = async |world: &World| world.store.load_endpoints(vec![endpoint.id]).await.unwrap().remove(0).tenant_bucket;
    assert_eq!(load(&world).await, None);
    let bucket = Bucket::from_nanos(1_234_567);
    let tenant_buckets = vec![TenantBucket { tenant: endpoint.tenant.clone(), partition, bucket }];
    let transfer = Transfer { tenant_buckets, ..Transfer::of(GivenUp::Everything) };
    world.store.hand_over(world.node, transfer).await.unwrap();
    assert_eq!(load(&world).await, Some(bucket));
}

async fn i23_after_a_crash_a_claim_says_when_it_was_until_every_lane_has_been_loaded_since(world: World) {
    let options = world.options.clone();
    // Cleanly, from the first process on.
    world.store.hand_over(world.node, Transfer::of(GivenUp::Everything)).await.unwrap();
    world.store.close().await.unwrap();
    let world = world.opened_again_with(options.clone(), |claimed| {
        assert_eq!(claimed.handed_over.len(), usize::from(PARTITIONS));
        assert!(claimed.handed_over.iter().all(|transfer| transfer.crashed_at.is_none()), "{:?}", claimed.handed_over[0]);
    });
    let world = world.await;
    // It dies: nothing is handed over.
    leases_end(&world, "now");
    world.store.close().await.unwrap();
    let before = world.store.now();
    let world = world.opened_again_with(options.clone(), |claimed| assert_eq!(claimed.handed_over, [])).await;
    // The next one hands over what it has got, and some lanes were never loaded since the crash.
    world.store.hand_over(world.node, Transfer::of(GivenUp::Everything)).await.unwrap();
    world.store.close().await.unwrap();
    let crashed_after = |claimed: &Claimed| {
        assert_eq!(claimed.handed_over.len(), usize::from(PARTITIONS));
        let latest = claimed.handed_over.iter().map(|transfer| transfer.crashed_at).min().unwrap();
        assert!(latest.is_some_and(|at| at + Duration::from_secs(5) > before), "{latest:?}, {before:?}");
    };
    world.opened_again_with(options, crashed_after).await;
}

async fn a_node_is_seen_with_what_it_says_about_itself(world: World) {
    let load = NodeLoad { lanes: 3, in_flight: 2, lag: Duration::from_millis(1500) };
    world.store.renew(world.node, load).await.unwrap().unwrap();
    let seen = world.store.cluster().await.unwrap();
    let [node] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!((node.id, node.load, node.is_leaving), (world.node, load, false));
    assert_eq!(node.partitions, (0..PARTITIONS).collect::<Vec<_>>());
    assert!(node.lease_left > Duration::ZERO && node.lease_left <= LEASE, "{node:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_move_to_a_node_that_joins_and_each_says_that_it_was_moved() {
    let world = World::postgres().await;
    let (other, node) = world.another_node().await;
    let view = world.store.renew(world.node, NodeLoad::default()).await.unwrap().unwrap();
    assert_eq!((view.delivering, view.settled, view.unowned_for), (2, 0, None));
    world.tamper("UPDATE nodes SET joined_at = clock_timestamp() - interval '11 seconds'");
    assert_eq!(world.store.renew(world.node, NodeLoad::default()).await.unwrap().unwrap().settled, 2);
    let moved = vec![(7, world.epoch), (9, world.epoch)];
    let freed = tokio::spawn({
        let other = other.clone();
        async move { other.partitions_freed().await.unwrap() }
    });
    world.store.hand_over(world.node, Transfer::of(GivenUp::Partitions(moved))).await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), freed).await.expect("the other node is notified").unwrap();
    let view = other.renew(node, NodeLoad::default()).await.unwrap().unwrap();
    assert!(view.unowned_for.is_some(), "{view:?}");
    let claimed = other.claim(node, 128).await.unwrap().unwrap();
    assert_eq!(claimed.partitions.iter().map(|(partition, _)| *partition).collect::<Vec<_>>(), [7, 9]);
    assert_eq!(claimed.just_moved, [7, 9]);
    let transfer = |partition| CleanTransfer { partition, crashed_at: None };
    assert_eq!(claimed.handed_over, [transfer(7), transfer(9)]);
    // Said once, with the claim that took them.
    assert_eq!(other.claim(node, 128).await.unwrap().unwrap().handed_over, []);
    world.tamper("UPDATE partitions SET moved_at = moved_at - interval '61 seconds'");
    assert_eq!(other.claim(node, 128).await.unwrap().unwrap().just_moved.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_does_not_count_and_its_partitions_do_not_count_as_moved() {
    let world = World::postgres().await;
    let (other, node) = world.another_node().await;
    world.store.hand_over(world.node, Transfer::of(GivenUp::Leaving(vec![(7, world.epoch)]))).await.unwrap();
    assert_eq!(other.renew(node, NodeLoad::default()).await.unwrap().unwrap().delivering, 1);
    let claimed = other.claim(node, 256).await.unwrap().unwrap();
    assert_eq!((claimed.partitions.len(), claimed.just_moved), (1, vec![]));
    let seen = other.cluster().await.unwrap();
    assert_eq!(seen.iter().map(|node| (node.is_leaving, node.partitions.len())).collect::<Vec<_>>(), [(true, 255), (false, 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_reads_only_what_it_owns_and_hears_what_others_commit_for_it() {
    let world = World::postgres().await;
    let (other, node) = world.another_node().await;
    let mut commits = other.remote_commits();
    let endpoint = world.endpoint("acme").await;
    let partition = partition_of(&endpoint.tenant);
    world.delivery("acme").await;
    assert_eq!(world.store.work(None, 10).await.unwrap().endpoints, [endpoint.id]);
    assert_eq!(other.work(None, 10).await.unwrap().endpoints, [], "another node owns it");
    assert_eq!(other.sweep(0, 100).await.unwrap().endpoints, []);
    world.store.hand_over(world.node, Transfer::of(GivenUp::Partitions(vec![(partition, world.epoch)]))).await.unwrap();
    other.claim(node, 256).await.unwrap().unwrap();
    assert_eq!(other.work(None, 10).await.unwrap().endpoints, [endpoint.id]);
    assert_eq!(other.sweep(0, 100).await.unwrap().endpoints, [endpoint.id]);
    assert_eq!(world.store.work(None, 10).await.unwrap().endpoints, []);
    let heard = async {
        loop {
            world.delivery("acme").await;
            // The first one says that something may have been missed before it listened.
            match tokio::time::timeout(Duration::from_secs(5), commits.next()).await {
                Ok(Some(RemoteCommit::Endpoints(endpoints))) => break endpoints,
                Ok(Some(RemoteCommit::Unknown)) | Err(_) => {}
                Ok(None) => panic!("the store is open"),
            }
        }
    };
    let heard = tokio::time::timeout(Duration::from_mins(1), heard).await.expect("it hears of it");
    assert_eq!(heard, [endpoint.id]);
    assert!(other.hears_other_nodes());
}
