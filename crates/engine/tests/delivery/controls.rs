//! What people can say about an endpoint or a delivery, and when it takes effect.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::bucket::RateLimit;
use posthaste_core::circuit::{Breaker, CircuitPolicy};
use posthaste_core::delivery::{CancelReason, DeadReason, Outcome, State};
use posthaste_core::endpoint::{Endpoint, Override, Policies, Status};
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::EventId;
use posthaste_core::text::Labels;
use posthaste_engine::Options;
use posthaste_store::{Change, Command, CommandOutcome, NewReplay, ReplayFilter, ReplayState, StatisticsQuery};

use crate::world::{World, audit, key, tenant, until};

fn paused(endpoint: &mut Endpoint) {
    endpoint.status = Status::Paused { until: None };
}

#[tokio::test]
async fn what_is_published_while_paused_goes_out_after_resuming() {
    let world = World::with("paused", &[], false, paused).await;
    let engine = world.start();
    let delivery = world.publish("1").await;
    // The lane is there and shows that it holds.
    until("the lane is known", || async { world.store.lane_snapshots(vec![world.endpoint]).await.unwrap().pop() }).await;
    assert_eq!(world.hits(), 0);
    world.change(|endpoint| endpoint.status = Status::Active).await;
    assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    engine.stop().await;
}

#[tokio::test]
async fn i23_a_burst_leaves_at_once_and_the_rest_at_the_rate_also_after_a_crash() {
    let limit = RateLimit::new(60, 3).unwrap();
    let limited = |endpoint: &mut Endpoint| endpoint.policies.rate_limit = Override::Set(limit);
    let world = World::with("limited", &[], false, limited).await;
    let before = world.store.now();
    let engine = world.start();
    for n in 0..6 {
        world.publish(&n.to_string()).await;
    }
    until("the burst", || async { (world.hits() >= 3).then_some(()) }).await;
    engine.kill().await;
    // Whoever begins anew does not know what was spent.
    let engine = world.start();
    until("all", || async { (world.hits() >= 6).then_some(()) }).await;
    let took = world.store.now().since(before);
    assert!(took >= Duration::from_millis(2900), "three tokens at one in a second, and none for a restart: {took:?}");
    engine.stop().await;
}

#[tokio::test]
async fn i20_deliveries_of_a_key_go_one_after_the_other_and_hold_nobody_else() {
    let world = World::with("keyed", &[], true, |_| {}).await;
    let held = world.receiver.held.clone().unwrap();
    let engine = world.start();
    let first = world.publish_as("1", |event| event.ordering_key = Some(key("a"))).await;
    let second = world.publish_as("2", |event| event.ordering_key = Some(key("a"))).await;
    let other = world.publish_as("3", |event| event.ordering_key = Some(key("b"))).await;
    until("two hits", || async { (world.hits() == 2).then_some(()) }).await;
    held.1.notify_one();
    held.1.notify_one();
    until("the key goes on", || async { (world.hits() == 3).then_some(()) }).await;
    held.1.notify_one();
    for delivery in [first, second, other] {
        assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    }
    let bodies: Vec<_> = world.receiver.hits.lock().unwrap().iter().map(|(_, body)| body.clone()).collect();
    let place = |data: &str| bodies.iter().position(|body| body.ends_with(format!(":{data}}}").as_bytes())).unwrap();
    assert!(place("1") < place("2"));
    engine.stop().await;
}

#[tokio::test]
async fn i27_an_open_circuit_sends_nothing_but_its_probe_and_is_remembered() {
    let circuit = CircuitPolicy::new(2, Duration::from_secs(1)).unwrap();
    let say = |endpoint: &mut Endpoint| endpoint.policies.circuit = Some(circuit);
    let world = World::with("circuit", &[500, 500], false, say).await;
    let engine = world.start();
    let delivery = world.publish("1").await;
    until("it opens", || async { matches!(breaker(&world).await, Some(Breaker::Open { .. })).then_some(()) }).await;
    let (waiting, hits) = (world.publish("2").await, world.hits());
    assert_eq!(hits, 2);
    engine.kill().await;
    let engine = world.start();
    for delivery in [delivery, waiting] {
        assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    }
    assert_eq!(world.row(waiting).await.attempts, 1, "holding has burned no attempt");
    assert_eq!(world.statuses(delivery).await, [500, 500, 200], "the oldest is the probe");
    engine.stop().await;
}

async fn breaker(world: &World) -> Option<Breaker> {
    world.store.lane(world.endpoint).await.unwrap().map(|lane| lane.memory.breaker)
}

#[tokio::test]
async fn i14_what_was_called_off_is_never_sent() {
    let world = World::with("cancel", &[], false, paused).await;
    let engine = world.start();
    let (called_off, kept) = (world.publish("1").await, world.publish("2").await);
    let cancel = |delivery| Command::CancelDelivery { delivery, audit: audit("delivery.cancel") };
    assert_eq!(world.ask(cancel(called_off)).await, CommandOutcome::Done);
    assert!(matches!(world.row(called_off).await.state, State::Cancelled { reason: CancelReason::Requested, .. }));
    assert_eq!(world.ask(cancel(called_off)).await, CommandOutcome::HasEnded);
    world.change(|endpoint| endpoint.status = Status::Active).await;
    assert!(matches!(world.ended(kept).await, State::Delivered { .. }));
    assert_eq!(world.hits(), 1);
    // Until the owner has heard that it is recorded it counts as under way.
    until("its owner knows", || async { (world.ask(cancel(kept)).await != CommandOutcome::InFlight).then_some(()) }).await;
    assert_eq!(world.ask(cancel(kept)).await, CommandOutcome::HasEnded);
    let log = world.store.audit(Some(tenant()), None, 10).await.unwrap();
    assert_eq!(log.iter().filter(|row| row.audit.action == "delivery.cancel").count(), 1, "who did it is known");
    engine.stop().await;
}

#[tokio::test]
async fn what_is_in_flight_cannot_be_called_off() {
    let world = World::with("cancel-flight", &[], true, |_| {}).await;
    let held = world.receiver.held.clone().unwrap();
    let engine = world.start();
    let delivery = world.publish("1").await;
    held.0.notified().await;
    let event = world.row(delivery).await.event;
    let cancel = Command::CancelEvent { tenant: tenant(), event, audit: audit("event.cancel") };
    assert_eq!(world.ask(cancel).await, CommandOutcome::InFlight);
    held.1.notify_one();
    assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    engine.stop().await;
}

#[tokio::test]
async fn one_that_waits_can_be_sent_now() {
    let world = World::new("now", &[]).await;
    let engine = world.start();
    let later = |event: &mut Event| {
        let at = event.accepted_at + Duration::from_hours(5);
        event.timing = Timing::new(event.accepted_at, Some(at), None).unwrap();
    };
    let delivery = world.publish_as("1", later).await;
    assert_eq!(world.ask(Command::SendNow { delivery, audit: audit("delivery.retry") }).await, CommandOutcome::Done);
    assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    engine.stop().await;
}

#[tokio::test]
async fn a_test_send_passes_a_pause_and_is_answered_with_its_attempt() {
    let world = World::with("test-send", &[418], false, paused).await;
    let engine = world.start();
    let now = world.store.now();
    let event = Arc::new(Event {
        id: EventId::from_unique(world.store.unique()),
        tenant: tenant(),
        event_type: EventType::parse("posthaste.test").unwrap(),
        version: None,
        timestamp: now,
        accepted_at: now,
        data: Data::parse("{}").unwrap(),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    });
    let test = Command::Test { endpoint: world.endpoint, event };
    let CommandOutcome::Tested(attempt) = world.ask(test.clone()).await else { panic!("it was sent") };
    assert_eq!(attempt.outcome, Outcome::Answered { status: 418, retry_after: None });
    assert!(matches!(world.ask(test).await, CommandOutcome::NotBefore(_)), "one in five seconds");
    assert_eq!(breaker(&world).await, None, "nothing was learned from it");
    engine.stop().await;
}

#[tokio::test]
async fn what_waits_at_a_deleted_endpoint_is_cancelled_with_the_cause() {
    let world = World::with("deleted", &[], false, paused).await;
    let engine = world.start();
    let delivery = world.publish("1").await;
    let change = Change::DeleteEndpoint { endpoint: world.endpoint };
    world.store.configure(change, audit("endpoint.delete")).await.unwrap().unwrap();
    assert!(matches!(world.ended(delivery).await, State::Cancelled { reason: CancelReason::EndpointDeleted, .. }));
    assert_eq!(world.hits(), 0);
    engine.stop().await;
}

#[tokio::test]
async fn what_has_expired_while_it_was_held_is_dead() {
    let world = World::with("expired", &[], false, paused).await;
    let engine = world.start();
    let soon = |event: &mut Event| {
        let at = event.accepted_at + Duration::from_millis(300);
        event.timing = Timing::new(event.accepted_at, None, Some(at)).unwrap();
    };
    let delivery = world.publish_as("1", soon).await;
    assert!(matches!(world.ended(delivery).await, State::Dead { reason: DeadReason::Expired, .. }));
    engine.stop().await;
}

#[tokio::test]
async fn i17_a_replay_makes_each_matching_delivery_once_more() {
    let world = World::new("replay", &[404, 404]).await;
    let engine = world.start();
    let dead = [world.publish("1").await, world.publish("2").await];
    let mut events = Vec::new();
    for delivery in dead {
        assert!(matches!(world.ended(delivery).await, State::Dead { .. }));
        events.push(world.row(delivery).await.event.to_string());
    }
    let id = posthaste_core::id::ReplayId::from_unique(world.store.unique());
    let replay = NewReplay {
        id,
        filter: ReplayFilter { endpoint: Some(world.endpoint), ..ReplayFilter::default() },
        reason: "it was down".to_owned(),
        requested_by: "a test".to_owned(),
        rate_per_minute: 6000,
        idempotency_key: None,
    };
    world.store.create_replay(replay, audit("replay.create")).await.unwrap();
    let done = || async { world.store.replay(None, id).await.unwrap().filter(|replay| replay.state == ReplayState::Done) };
    assert_eq!(until("the replay ends", done).await.created, 2);
    until("both arrive", || async { (world.hits() == 4).then_some(()) }).await;
    let hits = world.receiver.hits.lock().unwrap().clone();
    let again: Vec<_> = hits[2..].iter().map(|(headers, _)| headers["webhook-id"].to_str().unwrap().to_owned()).collect();
    assert_eq!(again, events, "the same events, oldest first");
    engine.stop().await;
}

#[tokio::test]
async fn what_was_tried_is_counted() {
    let world = World::new("counted", &[500, 200]).await;
    let engine = world.start();
    let delivery = world.publish("1").await;
    world.ended(delivery).await;
    let from = world.store.now() + Duration::ZERO;
    engine.stop().await;
    let (from, to) = (from - Duration::from_hours(1), from + Duration::from_hours(1));
    let query = StatisticsQuery { tenant: None, endpoint: Some(world.endpoint), from, to, step: Duration::from_hours(2) };
    let counts = world.store.statistics(query).await.unwrap()[0].counts;
    assert_eq!((counts.attempts, counts.successes, counts.retried, counts.delivered), (2, 1, 1, 1));
}

#[tokio::test]
async fn a_clean_stop_remembers_what_was_spent_and_what_was_not() {
    let limit = RateLimit::new(1, 3).unwrap();
    let limited = |endpoint: &mut Endpoint| endpoint.policies.rate_limit = Override::Set(limit);
    let mut world = World::with("clean", &[], false, limited).await;
    // Nobody has owned it before: what was spent is not known, until somebody says so.
    let engine = world.start();
    let unknown = posthaste_core::id::DeliveryId::from_unique(world.store.unique());
    let cancel = Command::CancelDelivery { delivery: unknown, audit: audit("delivery.cancel") };
    assert_eq!(world.ask(cancel).await, CommandOutcome::NotFound);
    engine.stop().await;
    let engine = world.start();
    world.publish("1").await;
    until("the first", || async { (world.hits() == 1).then_some(()) }).await;
    engine.stop().await;
    world.reopen().await;
    let engine = world.start_with(Options { policies: Policies::default(), ..Options::default() });
    world.publish("2").await;
    world.publish("3").await;
    let held = world.publish("4").await;
    until("what is left of the burst", || async { (world.hits() == 3).then_some(()) }).await;
    assert!(matches!(world.row(held).await.state, State::Waiting { .. }));
    engine.stop().await;
    assert_eq!(world.hits(), 3);
}
