//! The same on PostgreSQL, where others may take over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_core::delivery::{CancelReason, State};
use posthaste_core::endpoint::{Endpoint, Status};
use posthaste_engine::Options;
use posthaste_metrics::{Format, Limits, Metrics};
use posthaste_store::{Command, CommandOutcome, LEASE};
use posthaste_testpg::Cut;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::world::{World, audit, key, until};

/// Listens for a line of the log.
#[derive(Clone)]
pub(crate) struct Heard {
    line: &'static str,
    was_said: Arc<AtomicBool>,
}

impl Heard {
    pub(crate) fn new(line: &'static str) -> Heard {
        Heard { line, was_said: Arc::default() }
    }

    pub(crate) async fn said(&self) {
        until(self.line, || async { self.was_said.load(Ordering::SeqCst).then_some(()) }).await;
    }
}

impl<S: tracing::Subscriber> Layer<S> for Heard {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Words(String);
        impl Visit for Words {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut words = Words(String::new());
        event.record(&mut words);
        if words.0.contains(self.line) {
            self.was_said.store(true, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn it_delivers_tries_again_and_hears_of_changes() {
    let world = World::on_postgres(&[500, 503], |_| {}).await;
    let engine = world.start();
    let delivery = world.publish("{ \"n\": 1.00 }").await;
    assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    assert_eq!(world.statuses(delivery).await, [500, 503, 200]);
    world.change(|endpoint: &mut Endpoint| endpoint.status = Status::Paused { until: None }).await;
    let is_paused = || async {
        let shown = world.store.lane_snapshots(vec![world.endpoint]).await.unwrap();
        shown.first().map(|lane| lane.at)
    };
    until("it is shown", is_paused).await;
    let held = world.publish("2").await;
    let cancel = Command::CancelDelivery { delivery: held, audit: audit("delivery.cancel") };
    let answer = world.ask(cancel).await;
    match world.ended(held).await {
        State::Cancelled { reason: CancelReason::Requested, .. } => assert_eq!(answer, CommandOutcome::Done),
        // The pause was not heard of yet when it was published.
        State::Delivered { .. } => assert!(matches!(answer, CommandOutcome::InFlight | CommandOutcome::HasEnded)),
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

/// How long after the record the next delivery of the same key may start: it is asked about every 200 ms. Several times that, for a
/// machine that does other things too, and far less than the 66 seconds after which an owner stops waiting.
const LEARNS_WITHIN: Duration = Duration::from_millis(2_500);

#[tokio::test]
async fn i33_the_next_of_a_key_goes_out_soon_after_a_node_that_stops_has_recorded_the_one_before() {
    let world = World::on_postgres_held().await;
    let held = world.receiver.held.clone().unwrap();
    let first = world.start();
    let in_flight = world.publish_as("1", |event| event.ordering_key = Some(key("a"))).await;
    held.0.notified().await;
    let other = world.another().await;
    let second = World::start_on(&other, Options::default());
    until("it has joined", || async { (world.store.nodes().await.unwrap().len() == 2).then_some(()) }).await;
    let stopping = first.tell_to_stop();
    // Without a key, so that it shows that the other node has taken over.
    let unkeyed = world.publish("2").await;
    held.0.notified().await;
    let next = world.publish_as("3", |event| event.ordering_key = Some(key("a"))).await;
    held.1.notify_one();
    held.1.notify_one();
    for delivery in [in_flight, unkeyed] {
        assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    }
    let recorded = std::time::Instant::now();
    held.0.notified().await;
    let took = recorded.elapsed();
    println!("the next of the key started {took:?} after the record");
    assert!(took < LEARNS_WITHIN, "{took:?}");
    assert_eq!(world.hits(), 3);
    held.1.notify_one();
    assert!(matches!(world.ended(next).await, State::Delivered { .. }));
    stopping.await.unwrap();
    second.stop().await;
}

#[tokio::test]
async fn i33_a_node_that_is_stopped_and_started_waits_for_nothing_of_its_own() {
    let world = World::on_postgres_held().await;
    let held = world.receiver.held.clone().unwrap();
    let first = world.start();
    let before = world.publish_as("1", |event| event.ordering_key = Some(key("a"))).await;
    held.0.notified().await;
    let next = world.publish_as("2", |event| event.ordering_key = Some(key("a"))).await;
    let stopping = first.tell_to_stop();
    held.1.notify_one();
    stopping.await.unwrap();
    assert!(matches!(world.row(before).await.state, State::Delivered { .. }), "recorded before it ended");
    let again = world.another().await;
    let started = std::time::Instant::now();
    let second = World::start_on(&again, Options::default());
    held.0.notified().await;
    let took = started.elapsed();
    println!("the next of the key started {took:?} after the start");
    assert!(took < LEARNS_WITHIN, "{took:?}");
    held.1.notify_one();
    assert!(matches!(world.ended(next).await, State::Delivered { .. }));
    second.stop().await;
}

#[tokio::test]
async fn i7_what_was_recorded_by_a_commit_whose_answer_never_came_is_counted_once_it_is_known() {
    let heard = Heard::new("what has become of a commit could not be found out");
    let _listening = tracing::subscriber::set_default(tracing_subscriber::registry().with(heard.clone()));
    let world = World::on_postgres_held().await;
    let held = world.receiver.held.clone().unwrap();
    let proxy = world.proxy();
    let store = world.another_behind(&proxy).await;
    let metrics = Metrics::new(Limits::default(), "test");
    let engine = World::start_on(&store, Options { metrics: Some(metrics.clone()), ..Options::default() });
    let counted = |count: usize| {
        let page = metrics.page(Format::Text);
        page.lines().any(|line| line == format!("webhook_delivery_attempt_count_count {count}")).then_some(())
    };
    // The first leaves the one connection open that records are committed on.
    let first = world.publish("1").await;
    held.0.notified().await;
    held.1.notify_one();
    assert!(matches!(world.ended(first).await, State::Delivered { .. }));
    until("it is counted", || async { counted(1) }).await;

    let second = world.publish("2").await;
    held.0.notified().await;
    proxy.refuse();
    proxy.cut_next_statement("INSERT INTO attempts", Cut::AfterAnswer);
    held.1.notify_one();
    assert!(matches!(world.ended(second).await, State::Delivered { .. }), "it was committed");
    heard.said().await;
    assert_eq!((proxy.cuts(), counted(2)), (1, None));
    proxy.pass();
    until("it is known, and counted", || async { counted(2) }).await;
    assert_eq!(world.statuses(second).await, [200]);
    assert_eq!(world.hits(), 2, "each once");
    engine.stop().await;
}

#[tokio::test]
async fn i41_a_node_whose_loop_stands_still_leaves_its_work_to_others_and_records_nothing_afterwards() {
    let (stuck, again) = (Heard::new("the delivery loop has not come round"), Heard::new("this node joins again"));
    let lines = tracing_subscriber::registry().with(stuck.clone()).with(again.clone());
    let _listening = tracing::subscriber::set_default(lines);
    let world = World::on_postgres_held().await;
    let held = world.receiver.held.clone().unwrap();
    let metrics = Metrics::new(Limits::default(), "test");
    let store = world.another().await;
    let options = Options { metrics: Some(metrics.clone()), ..Options::default() };
    let (first, ice) = World::start_freezable(&store, options);
    let in_flight = world.publish("1").await;
    held.0.notified().await;
    ice.freeze();
    // Its answer comes, and is not heard. What is due from now on would never be begun.
    held.1.notify_one();
    let due = world.publish("2").await;
    let other = world.another().await;
    let second = World::start_on(&other, Options::default());
    stuck.said().await;
    until("the other has sent both", || async { (world.hits() == 3).then_some(()) }).await;
    held.1.notify_waiters();
    let mut recorded = Vec::new();
    for delivery in [in_flight, due] {
        assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
        recorded.push(world.store.attempts(delivery).await.unwrap());
    }
    assert!(recorded.iter().all(|attempts| attempts.len() == 1), "{recorded:?}");
    let is_shown = |line: &str| metrics.page(Format::Text).lines().any(|other| other == line).then_some(());
    until("it is shown", || async { is_shown("posthaste_delivery_stalled{reason=\"loop_stuck\"} 1") }).await;

    // The answer that it had is the first thing that it hears of, and the next is that it owns nothing.
    ice.thaw();
    again.said().await;
    until("it is over", || async { is_shown("posthaste_delivery_stalled{reason=\"loop_stuck\"} 0") }).await;
    until("it has joined again", || async { (world.store.nodes().await.unwrap().len() == 2).then_some(()) }).await;
    for (delivery, recorded) in [in_flight, due].into_iter().zip(recorded) {
        assert_eq!(world.store.attempts(delivery).await.unwrap(), recorded, "as the other has recorded it");
    }
    assert_eq!(is_shown("webhook_delivery_attempt_count_count 0"), Some(()), "the first has recorded nothing");
    assert_eq!(world.hits(), 3);
    // And what comes now goes out once.
    let next = world.publish("3").await;
    until("it is sent", || async { (world.hits() == 4).then_some(()) }).await;
    held.1.notify_waiters();
    assert!(matches!(world.ended(next).await, State::Delivered { .. }));
    first.stop().await;
    second.stop().await;
    assert_eq!(world.hits(), 4);
}
