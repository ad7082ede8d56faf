//! From a durable event to a delivered one.

use posthaste_core::delivery::{DeadReason, State};
use posthaste_core::endpoint::Status;
use posthaste_engine::Options;
use posthaste_signing::{Key, Received, Secret, TOLERANCE, standard};
use posthaste_store::DeliveryQuery;

use crate::world::{SECRET, World, until};

#[tokio::test]
async fn a_delivery_is_tried_until_it_arrives_with_the_same_id_and_body_each_time() {
    let world = World::new("retry", &[500, 503]).await;
    let engine = world.start();
    let delivery = world.publish("{ \"n\": 1.00 }").await;
    assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    assert_eq!(world.statuses(delivery).await, [500, 503, 200]);

    let hits = world.receiver.hits.lock().unwrap().clone();
    assert_eq!(hits.len(), 3);
    let secret = Secret::parse(SECRET).unwrap();
    for (attempt, (headers, body)) in (1..).zip(&hits) {
        let header = |name| headers[name].to_str().unwrap();
        assert_eq!(header("webhook-id"), hits[0].0["webhook-id"].to_str().unwrap());
        assert_eq!(header("posthaste-delivery"), delivery.to_string());
        assert_eq!(header("posthaste-attempt"), attempt.to_string());
        assert_eq!(body, &hits[0].1);
        assert!(std::str::from_utf8(body).unwrap().ends_with(",\"data\":{ \"n\": 1.00 }}"));
        let received = Received { timestamp: header("webhook-timestamp"), signature: header("webhook-signature"), body };
        let now = world.store.now().as_seconds();
        assert_eq!(standard::verify(header("webhook-id"), &received, now, TOLERANCE, &[Key::Shared(&secret)]), Ok(()));
    }
    engine.stop().await;
}

/// More is committed than may wait to be told of: the rest is found in the store.
#[tokio::test]
async fn i6_what_a_busy_loop_could_not_be_told_of_is_delivered_all_the_same() {
    let world = World::new("untold", &[]).await;
    let (engine, ice) = World::start_freezable(&world.store, Options::default());
    assert!(matches!(world.ended(world.publish("1").await).await, State::Delivered { .. }));
    ice.freeze();
    let large = format!("\"{}\"", "x".repeat(1024 * 1024));
    let mut deliveries = Vec::new();
    for _ in 0..40 {
        deliveries.push(world.publish(&large).await);
    }
    ice.thaw();
    deliveries.push(world.publish("2").await);
    for delivery in deliveries {
        assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    }
    assert_eq!(world.hits(), 42, "each once");
    engine.stop().await;
}

#[tokio::test]
async fn i11_permanent_answers_and_exhausted_retries_end_as_dead() {
    for (script, reason, hits) in [
        (&[404][..], DeadReason::PermanentFailure, 1),
        (&[302], DeadReason::PermanentFailure, 1),
        (&[500, 500, 500], DeadReason::MaxAttemptsExceeded, 3),
    ] {
        let world = World::new(&format!("dead-{}", script[0]), script).await;
        let engine = world.start();
        let delivery = world.publish("1").await;
        let State::Dead { reason: actual, .. } = world.ended(delivery).await else { panic!("it is dead") };
        assert_eq!((actual, world.statuses(delivery).await.len()), (reason, hits));
        engine.stop().await;
        assert_eq!(world.receiver.hits.lock().unwrap().len(), hits);
    }
}

#[tokio::test]
async fn i11_a_410_disables_the_endpoint() {
    let world = World::new("gone", &[410]).await;
    let engine = world.start();
    let delivery = world.publish("1").await;
    assert!(matches!(world.ended(delivery).await, State::Dead { reason: DeadReason::EndpointGone, .. }));
    assert_eq!(world.store.endpoint(None, world.endpoint).await.unwrap().unwrap().endpoint.status, Status::Disabled);
    engine.stop().await;
}

#[tokio::test]
async fn what_was_published_before_the_engine_ran_is_delivered_by_it() {
    let world = World::new("before", &[]).await;
    let mut deliveries = Vec::new();
    for n in 0..50 {
        deliveries.push(world.publish(&n.to_string()).await);
    }
    let engine = world.start();
    for delivery in deliveries {
        assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    }
    engine.stop().await;
    assert_eq!(world.receiver.hits.lock().unwrap().len(), 50, "each once");
}

#[tokio::test]
async fn a_row_that_cannot_be_read_holds_up_its_own_endpoint_alone() {
    let world = World::new("unreadable", &[]).await;
    let other = world.another_endpoint().await;
    world.publish("1").await;
    let query = DeliveryQuery { endpoint: Some(other), limit: 1, ..DeliveryQuery::default() };
    let readable = world.store.deliveries(query).await.unwrap().rows[0].seq;
    world.tamper(&format!("UPDATE deliveries SET type = '' WHERE seq <> {readable}"));
    let engine = world.start();
    let has_ended = || async {
        let state = world.store.deliveries_at(vec![readable]).await.unwrap()[0].state;
        matches!(state, State::Delivered { .. }).then_some(())
    };
    until("the other one is delivered", has_ended).await;
    engine.stop().await;
    assert_eq!(world.hits(), 1);
}

#[tokio::test]
async fn stopping_lets_what_is_in_flight_finish_and_starts_nothing_new() {
    let world = World::with("stop", &[], true, |_| {}).await;
    let held = world.receiver.held.clone().unwrap();
    let engine = world.start();
    let delivery = world.publish("1").await;
    held.0.notified().await;
    let engine = engine.tell_to_stop();
    let late = world.publish("2").await;
    held.1.notify_one();
    engine.await.unwrap();
    assert!(matches!(world.store.delivery(None, delivery).await.unwrap().unwrap().state, State::Delivered { .. }));
    assert!(matches!(world.store.delivery(None, late).await.unwrap().unwrap().state, State::Waiting { .. }));
    assert_eq!(world.receiver.hits.lock().unwrap().len(), 1);
}
