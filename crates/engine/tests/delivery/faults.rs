//! A store that fails, panics, or holds rows that cannot be read.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::circuit::{Breaker, CircuitPolicy};
use posthaste_core::delivery::State;
use posthaste_core::endpoint::MaxInFlight;
use posthaste_store::{DeliveryQuery, Store};
use tracing_subscriber::layer::SubscriberExt;

use crate::faulty_store::{Fault, FaultyStore};
use crate::postgres::Heard;
use crate::world::{World, until};

/// A world, and its store as the engine sees it.
async fn faulty(name: &str) -> (World, Arc<FaultyStore>) {
    let world = World::new(name, &[]).await;
    let store = Arc::new(FaultyStore::new(Arc::clone(&world.store)));
    (world, store)
}

#[tokio::test]
async fn a_request_that_panics_is_a_failed_attempt_and_frees_its_slot() {
    let (world, store) = faulty("panicking-request").await;
    world.change(|endpoint| endpoint.max_in_flight = Some(MaxInFlight::new(3).unwrap())).await;
    // As many as there are slots: if one were lost each time, nothing more could be sent.
    store.panic_in_requests(3);
    let engine = World::start_on(&(Arc::clone(&store) as Arc<dyn Store>), World::impatient());
    let mut deliveries = Vec::new();
    for n in 0..6 {
        deliveries.push(world.publish(&n.to_string()).await);
    }
    let mut failed = 0;
    for delivery in deliveries {
        assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
        let attempts = world.store.attempts(delivery).await.unwrap();
        failed +=
            attempts.iter().filter(|attempt| attempt.error.as_deref() == Some("internal error: the request panicked")).count();
    }
    assert_eq!(failed, 3, "each is an attempt that was made");
    assert_eq!(world.hits(), 6);
    engine.stop().await;
}

#[tokio::test]
async fn a_store_call_that_panics_is_made_again() {
    for call in ["work", "load_endpoints", "windows", "bodies", "record"] {
        let (world, store) = faulty(&format!("panicking-{call}")).await;
        // Before the engine runs, so that its body has to be read.
        let delivery = world.publish("1").await;
        store.fail(call, 2, Fault::Panic);
        let engine = World::start_on(&(Arc::clone(&store) as Arc<dyn Store>), World::impatient());
        assert!(matches!(world.ended(delivery).await, State::Delivered { .. }), "{call}");
        assert_eq!(store.left(call), 0, "{call} has panicked");
        engine.stop().await;
        assert_eq!(world.hits(), 1, "{call}: sent once");
    }
}

#[tokio::test]
async fn nothing_asks_a_broken_store_after_the_engine_has_stopped() {
    let (world, store) = faulty("stopped").await;
    world.publish("1").await;
    store.fail("windows", usize::MAX, Fault::Unavailable);
    store.fail("load_endpoints", usize::MAX, Fault::Unavailable);
    let engine = World::start_on(&(Arc::clone(&store) as Arc<dyn Store>), World::impatient());
    until("it is asked again", || async { (store.calls("load_endpoints") > 2).then_some(()) }).await;
    engine.stop().await;
    assert_eq!(Arc::strong_count(&store), 1, "no task holds it any more");
}

#[tokio::test]
async fn i41_a_stall_is_noticed_where_no_one_reads_metrics() {
    let (stalled, goes_on) = (Heard::new("deliveries_stalled"), Heard::new("deliveries_go_on"));
    let lines = tracing_subscriber::registry().with(stalled.clone()).with(goes_on.clone());
    let _listening = tracing::subscriber::set_default(lines);
    let (world, store) = faulty("stalled").await;
    world.publish("1").await;
    store.fail("windows", usize::MAX, Fault::Unavailable);
    let options = World::impatient();
    assert!(options.metrics.is_none());
    let engine = World::start_on(&(Arc::clone(&store) as Arc<dyn Store>), options);
    stalled.said().await;
    store.fail("windows", 0, Fault::Unavailable);
    goes_on.said().await;
    engine.stop().await;
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_read_holds_its_own_deliveries_alone() {
    let world = World::new("unreadable-endpoint", &[]).await;
    let others = [world.another_endpoint().await, world.another_endpoint().await, world.another_endpoint().await];
    world.publish("1").await;
    let bad = world.endpoint;
    let hex = format!("{:032x}", bad.as_u128());
    world.tamper(&format!("UPDATE endpoints SET document = 'not JSON' WHERE id = x'{hex}'"));
    let engine = world.start();
    for other in others {
        let has_ended = || async {
            let query = DeliveryQuery { endpoint: Some(other), limit: 1, ..DeliveryQuery::default() };
            let state = world.store.deliveries(query).await.unwrap().rows[0].state;
            matches!(state, State::Delivered { .. }).then_some(())
        };
        until("its neighbours are delivered", has_ended).await;
    }
    assert_eq!(world.hits(), 3);
    let blocked = || async { world.store.lane_snapshots(vec![bad]).await.unwrap().pop().and_then(|lane| lane.blocked) };
    assert_eq!(until("its owner says why", blocked).await, "stored endpoint is not readable");
    // What came later waits for it, too.
    world.publish("2").await;
    until("the others get it", || async { (world.hits() == 6).then_some(()) }).await;
    // Somebody repairs it, and says so by a change.
    world.tamper(&format!("UPDATE endpoints SET document = '{{}}' WHERE id = x'{hex}'"));
    world.another_endpoint().await;
    until("what was held is delivered", || async { (world.hits() == 8).then_some(()) }).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_crash_while_a_probe_is_on_its_way_does_not_probe_again_at_once() {
    let interval = Duration::from_secs(2);
    let circuit = CircuitPolicy::new(1, interval).unwrap();
    let world = World::with("half-open", &[500], true, |endpoint| endpoint.policies.circuit = Some(circuit)).await;
    let held = world.receiver.held.clone().unwrap();
    let engine = world.start();
    world.publish("1").await;
    held.0.notified().await;
    held.1.notify_one();
    // The circuit is open now, and the probe comes.
    held.0.notified().await;
    let breaker = world.store.lane(world.endpoint).await.unwrap().unwrap().memory.breaker;
    let Breaker::HalfOpen { probe_started, .. } = breaker else { panic!("it is written before the request is made: {breaker:?}") };
    engine.kill().await;
    let engine = world.start();
    until("the next probe", || async { (world.hits() == 3).then_some(()) }).await;
    assert!(world.store.now() >= probe_started + interval, "not before its time");
    held.1.notify_waiters();
    engine.kill().await;
}
