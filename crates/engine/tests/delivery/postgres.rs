//! The same on PostgreSQL, where others may take over.

use std::time::Duration;

use posthaste_core::delivery::{CancelReason, State};
use posthaste_core::endpoint::{Endpoint, Status};
use posthaste_engine::Options;
use posthaste_store::{Command, Commanded, LEASE};

use crate::world::{World, audit, until};

#[tokio::test]
async fn it_delivers_tries_again_and_hears_of_changes() {
    let world = World::on_postgres(&[500, 503], |_| {}).await;
    let engine = world.start();
    let delivery = world.publish("{ \"n\": 1.00 }").await;
    assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    assert_eq!(world.statuses(delivery).await, [500, 503, 200]);
    world.change(|endpoint: &mut Endpoint| endpoint.status = Status::Paused { until: None }).await;
    let is_paused = || async {
        let shown = world.store.lanes_shown(vec![world.endpoint]).await.unwrap();
        shown.first().map(|lane| lane.at)
    };
    until("it is shown", is_paused).await;
    let held = world.publish("2").await;
    let cancel = Command::CancelDelivery { delivery: held, audit: audit("delivery.cancel") };
    let answer = world.ask(cancel).await;
    match world.ended(held).await {
        State::Cancelled { reason: CancelReason::Requested, .. } => assert_eq!(answer, Commanded::Done),
        // The pause was not heard of yet when it was published.
        State::Delivered { .. } => assert!(matches!(answer, Commanded::InFlight | Commanded::HasEnded)),
        other @ (State::Waiting { .. } | State::Dead { .. } | State::Cancelled { .. }) => panic!("{other:?}"),
    }
    engine.stop().await;
}

#[tokio::test]
async fn i33_another_node_goes_on_when_one_dies_and_at_once_when_it_leaves() {
    let world = World::on_postgres(&[], |_| {}).await;
    let first = world.start();
    let delivery = world.publish("1").await;
    assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    let (other, third) = (world.another().await, world.another().await);
    let second = World::start_on(&other, Options::default());
    until("it has joined", || async { (world.store.nodes().await.unwrap().len() == 2).then_some(()) }).await;
    first.kill().await;
    let died = world.store.now();
    // What is published by a process that delivers nothing is found by whoever does.
    let delivery = world.publish("2").await;
    assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    let took = world.store.now().since(died);
    assert!(took < (LEASE + Duration::from_secs(3)) * 3, "{took:?}");
    println!("another node went on after {took:?}");
    let heir = World::start_on(&third, Options::default());
    until("it has joined", || async { (world.store.nodes().await.unwrap().len() >= 2).then_some(()) }).await;
    second.stop().await;
    let left = world.store.now();
    let delivery = world.publish("3").await;
    assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    println!("after a clean stop: {:?}", world.store.now().since(left));
    assert_eq!(world.hits(), 3, "each once");
    heir.stop().await;
}

#[tokio::test]
async fn i33_a_node_that_stops_hands_over_at_once_and_still_records_what_it_has_in_flight() {
    let world = World::on_postgres_held().await;
    let held = world.receiver.held.clone().unwrap();
    let first = world.start();
    let in_flight = world.publish("1").await;
    held.0.notified().await;
    let other = world.another().await;
    let second = World::start_on(&other, Options::default());
    until("it has joined", || async { (world.store.nodes().await.unwrap().len() == 2).then_some(()) }).await;
    let stopping = first.tell_to_stop();
    let next = world.publish("2").await;
    // The first request is still unanswered, so that the first node is still there.
    held.0.notified().await;
    assert_eq!(world.hits(), 2, "the other node has sent the second");
    assert!(!stopping.is_finished(), "it waits for its answer");
    held.1.notify_one();
    held.1.notify_one();
    stopping.await.unwrap();
    for delivery in [in_flight, next] {
        assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
        assert_eq!(world.statuses(delivery).await, [200]);
    }
    assert_eq!(world.hits(), 2, "each once");
    second.stop().await;
}
