//! E2, I17: sending again what was sent, or missed, before.

use posthaste_core::delivery::{DeadReason, State};
use posthaste_core::endpoint::{Endpoint, Status};
use posthaste_core::event::TypePatterns;
use posthaste_core::id::ReplayId;
use posthaste_store::*;

use crate::world::{World, later, tenant};

crate::conform! {
    one_that_has_ended_is_made_again_and_names_its_successor
    i17_a_replay_makes_exactly_what_matched_in_steps
    a_replay_keeps_to_its_filter
    what_an_endpoint_has_missed_can_be_sent_after_enabling
    a_replay_can_be_cancelled_and_its_key_makes_it_once
    a_replay_waits_while_too_much_of_it_is_unfinished
    i17_an_endpoint_that_takes_nothing_now_stops_no_other
    i17_more_endpoints_than_one_step_looks_at_all_get_their_turn
    i17_overlapping_replays_make_each_row_once_and_their_books_balance
    i17_what_is_skipped_is_counted_by_its_reason
    i17_what_an_endpoint_misses_is_made_once_by_overlapping_replays
    i17_what_ends_or_vanishes_after_the_request_is_accounted_for
}

fn replay(world: &World, filter: ReplayFilter) -> NewReplay {
    NewReplay {
        id: ReplayId::from_unique(world.store.unique()),
        filter,
        reason: "an outage".to_owned(),
        requested_by: "key_1".to_owned(),
        rate_per_minute: 600,
        idempotency_key: None,
    }
}

async fn start(world: &World, filter: ReplayFilter) -> ReplayRow {
    assert_eq!(world.store.count_replay(filter.clone()).await.unwrap().matched, {
        let row = world.store.create_replay(replay(world, filter.clone()), world.audit("replay")).await.unwrap();
        world.store.cancel_replay(row.id, world.audit("cancel")).await.unwrap();
        row.matched
    });
    world.store.create_replay(replay(world, filter), world.audit("replay")).await.unwrap()
}

async fn finish(world: &World, id: ReplayId) -> ReplayRow {
    for _ in 0..1000 {
        let row = world.store.step_replay(id, 2, 1000).await.unwrap().unwrap();
        if row.state != ReplayState::Running {
            return row;
        }
    }
    panic!("it never ends");
}

async fn one_that_has_ended_is_made_again_and_names_its_successor(world: World) {
    let endpoint = world.endpoint("acme").await;
    let delivery = world.delivery("acme").await;
    let audit = world.audit("retry");
    assert_eq!(world.store.redeliver(delivery.id, audit.clone()).await.unwrap(), Err(Refusal::StillWaiting));
    let state = State::Dead { at: world.store.now(), reason: DeadReason::MaxAttemptsExceeded };
    world.try_once(&delivery, 1, 500, state).await;
    let made = world.store.redeliver(delivery.id, audit.clone()).await.unwrap().unwrap();
    assert_eq!((&made.event, made.endpoint, made.replay_of, made.attempts), (&delivery.event, endpoint.id, Some(delivery.id), 0));
    assert!(made.seq > delivery.seq && made.id != delivery.id);
    assert_eq!(world.row(&delivery).await.replayed_as, Some(made.id), "history is added to, not rewritten");
    assert_eq!(world.row(&delivery).await.state, state);
    let of_event = world.deliveries_of(&delivery.event).await;
    assert_eq!(of_event.iter().map(|row| row.seq).collect::<Vec<_>>(), [made.seq, delivery.seq], "both are of their event");
    let event = world.store.event(Some(tenant("acme")), delivery.event.clone()).await.unwrap().unwrap();
    assert_eq!(event.deliveries.iter().sum::<u64>(), 2);
    let open = world.store.dead_letters(DeliveryQuery { limit: 10, ..DeliveryQuery::default() }).await.unwrap();
    assert_eq!(open.rows, [], "it has left the open dead letters");
    let body = world.store.bodies(vec![made.seq]).await.unwrap().remove(0);
    assert_eq!(body.event.unwrap().id, delivery.event);
    assert_eq!(world.waiting(endpoint.id).await, [made.seq]);
    world.deliver(&made).await;
    let disabled = Endpoint { status: Status::Disabled, ..endpoint };
    world.configure(Change::ReplaceEndpoint { endpoint: Box::new(disabled), expected_version: None, secrets: None }).await.unwrap();
    assert_eq!(world.store.redeliver(made.id, audit.clone()).await.unwrap(), Err(Refusal::EndpointTakesNothing));
    let nobody = posthaste_core::id::DeliveryId::from_unique(world.store.unique());
    assert_eq!(world.store.redeliver(nobody, audit).await.unwrap(), Err(Refusal::NotFound));
}

async fn i17_a_replay_makes_exactly_what_matched_in_steps(world: World) {
    let endpoint = world.endpoint("acme").await;
    let mut events = Vec::new();
    for n in 0..7u32 {
        let delivery = world.delivery("acme").await;
        if n < 5 {
            world.deliver(&delivery).await;
            events.push(delivery.event);
        }
    }
    let filter = ReplayFilter { endpoint: Some(endpoint.id), ..ReplayFilter::default() };
    let row = start(&world, filter).await;
    assert_eq!((row.matched, row.created, row.state), (5, 0, ReplayState::Running), "what waits is not part of it");
    assert_eq!(world.store.running_replays().await.unwrap().iter().map(|row| row.id).collect::<Vec<_>>(), [row.id]);
    let step = world.store.step_replay(row.id, 2, 1000).await.unwrap().unwrap();
    assert_eq!((step.created, step.state), (2, ReplayState::Running));
    let options = world.options.clone();
    let world = world.reopened(options).await;
    let done = finish(&world, row.id).await;
    assert_eq!((done.created, done.state, done.ended_at.is_some()), (5, ReplayState::Done, true));
    assert_eq!(finish(&world, row.id).await.created, 5, "a step after the end makes nothing");
    for event in events {
        let rows = world.deliveries_of(&event).await;
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].replay, rows[0].replay_of), (Some(row.id), Some(rows[1].id)));
        assert_eq!(rows[0].timestamp, done.created_at, "behind live traffic");
    }
}

async fn a_replay_keeps_to_its_filter(world: World) {
    let (first, _second) = (world.endpoint("acme").await, world.endpoint("acme").await);
    world.endpoint("globex").await;
    let now = world.store.now();
    let mut ids = Vec::new();
    for (of, event_type, status) in
        [("acme", "order.paid", 404), ("acme", "user.made", 404), ("acme", "order.paid", 200), ("globex", "order.paid", 404)]
    {
        let event = world.event(of, event_type);
        let id = event.id.clone();
        world.publish(event).await;
        for row in world.deliveries_of(&id).await {
            let dead = State::Dead { at: now, reason: DeadReason::PermanentFailure };
            world.try_once(&row, 1, status, if status == 200 { State::Delivered { at: now } } else { dead }).await;
            ids.push(row.id);
        }
    }
    let count = async |filter: ReplayFilter| world.store.count_replay(filter).await.unwrap().matched;
    let none = ReplayFilter::default();
    assert_eq!(count(none.clone()).await, 7);
    assert_eq!(count(ReplayFilter { tenant: Some(tenant("acme")), ..none.clone() }).await, 6);
    assert_eq!(count(ReplayFilter { endpoint: Some(first.id), ..none.clone() }).await, 3);
    assert_eq!(count(ReplayFilter { status: vec![StatusFilter::Dead], ..none.clone() }).await, 5);
    assert_eq!(count(ReplayFilter { event_types: TypePatterns::parse(["user.*"]).unwrap(), ..none.clone() }).await, 2);
    assert_eq!(count(ReplayFilter { ids: vec![ids[0], ids[6]], ..none.clone() }).await, 2);
    assert_eq!(count(ReplayFilter { from: Some(later(now, 3600)), ..none.clone() }).await, 0);
    assert_eq!(count(ReplayFilter { to: Some(later(now, 3600)), ..none.clone() }).await, 7);
    let row = start(&world, ReplayFilter { ids: vec![ids[0], ids[6]], ..none.clone() }).await;
    assert_eq!(finish(&world, row.id).await.created, 2);
    assert_eq!(count(none).await, 5, "what was made again is not made a third time");
}

async fn what_an_endpoint_has_missed_can_be_sent_after_enabling(world: World) {
    let endpoint = Endpoint { status: Status::Disabled, ..world.new_endpoint("acme") };
    world.add(&endpoint).await.unwrap();
    let missed = world.event("acme", "order.paid");
    assert_eq!(world.publish(missed.clone()).await, Published::Made { deliveries: 0 });
    let enabled = Endpoint { status: Status::Active, ..endpoint.clone() };
    world.configure(Change::ReplaceEndpoint { endpoint: Box::new(enabled), expected_version: None, secrets: None }).await.unwrap();
    let had = world.delivery("acme").await;
    let filter = ReplayFilter { endpoint: Some(endpoint.id), missing: true, ..ReplayFilter::default() };
    let row = start(&world, filter.clone()).await;
    assert_eq!(row.matched, 1);
    assert_eq!(finish(&world, row.id).await.created, 1);
    let made = world.deliveries_of(&missed.id).await;
    assert_eq!((made.len(), made[0].replay_of, made[0].replay), (1, None, Some(row.id)));
    assert_eq!(world.deliveries_of(&had.event).await.len(), 1);
    assert_eq!(world.store.count_replay(filter).await.unwrap(), ReplayCount::default());
}

async fn a_replay_can_be_cancelled_and_its_key_makes_it_once(world: World) {
    world.endpoint("acme").await;
    for _ in 0..3 {
        let delivery = world.delivery("acme").await;
        world.deliver(&delivery).await;
    }
    let filter = ReplayFilter { tenant: Some(tenant("acme")), ..ReplayFilter::default() };
    let new = NewReplay { idempotency_key: Some("k".to_owned()), ..replay(&world, filter) };
    let row = world.store.create_replay(new.clone(), world.audit("replay")).await.unwrap();
    let again = NewReplay { id: ReplayId::from_unique(world.store.unique()), ..new };
    assert_eq!(world.store.create_replay(again, world.audit("replay")).await.unwrap().id, row.id);
    assert_eq!(world.store.step_replay(row.id, 1, 1000).await.unwrap().unwrap().created, 1);
    let cancelled = world.store.cancel_replay(row.id, world.audit("cancel")).await.unwrap().unwrap();
    assert_eq!((cancelled.state, cancelled.created), (ReplayState::Cancelled, 1));
    assert_eq!(world.store.step_replay(row.id, 5, 1000).await.unwrap().unwrap().created, 1, "it makes no more");
    let nobody = ReplayId::from_unique(world.store.unique());
    assert_eq!(world.store.cancel_replay(nobody, world.audit("cancel")).await.unwrap(), None);
    assert_eq!(world.store.step_replay(nobody, 5, 5).await.unwrap(), None);
    assert_eq!(world.store.replays(Some(tenant("acme")), None, 10).await.unwrap().len(), 1);
    assert_eq!(world.store.replays(Some(tenant("globex")), None, 10).await.unwrap(), []);
    assert_eq!(world.store.replay(None, row.id).await.unwrap().unwrap().state, ReplayState::Cancelled);
}

async fn a_replay_waits_while_too_much_of_it_is_unfinished(world: World) {
    let endpoint = world.endpoint("acme").await;
    for _ in 0..4 {
        let delivery = world.delivery("acme").await;
        world.deliver(&delivery).await;
    }
    let row = start(&world, ReplayFilter { endpoint: Some(endpoint.id), ..ReplayFilter::default() }).await;
    let step = world.store.step_replay(row.id, 10, 3).await.unwrap().unwrap();
    assert_eq!((step.created, step.state), (3, ReplayState::Running));
    assert_eq!(world.store.step_replay(row.id, 10, 3).await.unwrap().unwrap().created, 3);
    let first = world.waiting(endpoint.id).await[0];
    let query = DeliveryQuery { endpoint: Some(endpoint.id), limit: 10, ..DeliveryQuery::default() };
    let rows = world.store.deliveries(query).await.unwrap().rows;
    world.deliver(rows.iter().find(|row| row.seq == first).unwrap()).await;
    let step = world.store.step_replay(row.id, 10, 3).await.unwrap().unwrap();
    assert_eq!((step.created, step.state), (4, ReplayState::Done));
}

/// The books of a replay, at any time.
#[track_caller]
fn assert_balanced(row: &ReplayRow) {
    assert_eq!(row.matched, row.created + row.skipped.total() + row.remaining(), "{row:?}");
    if row.state == ReplayState::Done {
        assert_eq!(row.remaining(), 0, "{row:?}");
    }
}

/// Rows that wait at this endpoint.
async fn unfinished(world: &World, endpoint: &Endpoint) -> Vec<DeliveryRow> {
    let waiting = world.waiting(endpoint.id).await;
    world.store.deliveries_at(waiting).await.unwrap()
}

async fn deliver_all(world: &World, endpoint: &Endpoint) {
    for row in unfinished(world, endpoint).await {
        world.deliver(&row).await;
    }
}

async fn i17_an_endpoint_that_takes_nothing_now_stops_no_other(world: World) {
    let (stuck, healthy) = (world.endpoint("acme").await, world.endpoint("acme").await);
    for _ in 0..9 {
        assert_eq!(world.publish(world.event("acme", "order.paid")).await, Published::Made { deliveries: 2 });
    }
    deliver_all(&world, &stuck).await;
    deliver_all(&world, &healthy).await;
    let row = start(&world, ReplayFilter { tenant: Some(tenant("acme")), ..ReplayFilter::default() }).await;
    assert_eq!(row.matched, 18);
    for _ in 0..20 {
        let step = world.store.step_replay(row.id, 2, 3).await.unwrap().unwrap();
        assert_balanced(&step);
        deliver_all(&world, &healthy).await;
    }
    let now = world.store.replay(None, row.id).await.unwrap().unwrap();
    assert_eq!((now.created, now.remaining(), now.state), (3 + 9, 6, ReplayState::Running));
    assert_eq!(unfinished(&world, &stuck).await.len(), 3);
    let options = world.options.clone();
    let world = world.reopened(options).await;
    for _ in 0..20 {
        deliver_all(&world, &stuck).await;
        world.store.step_replay(row.id, 2, 3).await.unwrap().unwrap();
    }
    let done = world.store.replay(None, row.id).await.unwrap().unwrap();
    assert_eq!((done.created, done.skipped, done.state), (18, Skipped::default(), ReplayState::Done));
    assert_balanced(&done);
}

async fn i17_more_endpoints_than_one_step_looks_at_all_get_their_turn(world: World) {
    let mut endpoints = Vec::new();
    for n in 0..70 {
        let name = format!("tenant-{n}");
        endpoints.push(world.endpoint(&name).await);
        for _ in 0..3 {
            let delivery = world.delivery(&name).await;
            world.deliver(&delivery).await;
        }
    }
    let row = start(&world, ReplayFilter { status: vec![StatusFilter::Delivered], ..ReplayFilter::default() }).await;
    assert_eq!(row.matched, 210);
    // All but the last two take one row and no more.
    for _ in 0..12 {
        let step = world.store.step_replay(row.id, 100, 1).await.unwrap().unwrap();
        assert_balanced(&step);
        for endpoint in &endpoints[68..] {
            deliver_all(&world, endpoint).await;
        }
    }
    let now = world.store.replay(None, row.id).await.unwrap().unwrap();
    assert_eq!((now.created, now.remaining()), (68 + 2 * 3, 68 * 2));
}

async fn i17_overlapping_replays_make_each_row_once_and_their_books_balance(world: World) {
    let endpoint = world.endpoint("acme").await;
    for _ in 0..20 {
        let delivery = world.delivery("acme").await;
        world.deliver(&delivery).await;
    }
    let filter = || ReplayFilter { endpoint: Some(endpoint.id), ..ReplayFilter::default() };
    let (first, second, third) =
        (start(&world, filter()).await.id, start(&world, filter()).await.id, start(&world, filter()).await.id);
    let finish = |id| finish(&world, id);
    let done = tokio::join!(finish(first), finish(second), finish(third));
    let done = [done.0, done.1, done.2];
    for row in &done {
        assert_eq!((row.matched, row.remaining(), row.state), (20, 0, ReplayState::Done));
        assert_eq!(row.skipped, Skipped { already_redelivered: 20 - row.created, ..Skipped::default() });
    }
    assert_eq!(done.iter().map(|row| row.created).sum::<u64>(), 20);
    assert_eq!(unfinished(&world, &endpoint).await.len(), 20);
    assert_eq!(world.store.count_replay(filter()).await.unwrap().matched, 0, "all of them have a successor");
}

async fn i17_what_is_skipped_is_counted_by_its_reason(world: World) {
    let endpoint = world.endpoint("acme").await;
    let mut rows = Vec::new();
    for event_type in ["order.paid", "order.paid", "order.paid", "user.made", "order.paid"] {
        let delivery = world.delivery_of(world.event("acme", event_type)).await;
        world.deliver(&delivery).await;
        rows.push(delivery);
    }
    let filter = ReplayFilter { tenant: Some(tenant("acme")), ..ReplayFilter::default() };
    let before = start(&world, filter.clone()).await;
    assert_eq!(world.store.count_replay(filter.clone()).await.unwrap(), ReplayCount { matched: 5, skipped: Skipped::default() });
    assert!(world.store.erase(Some(tenant("acme")), rows[0].event.clone(), world.audit("erase")).await.unwrap());
    world.store.redeliver(rows[1].id, world.audit("retry")).await.unwrap().unwrap();
    let mut changed = endpoint.clone();
    changed.subscription.event_types = TypePatterns::parse(["order.*"]).unwrap();
    world.configure(Change::ReplaceEndpoint { endpoint: Box::new(changed), expected_version: None, secrets: None }).await.unwrap();
    let skipped = Skipped { erased: 0, unsubscribed: 1, already_redelivered: 0 };
    let count = world.store.count_replay(filter.clone()).await.unwrap();
    let why = "neither what was made again nor what was erased matches any more";
    assert_eq!((count, count.remaining()), (ReplayCount { matched: 3, skipped }, 2), "{why}");
    let after = start(&world, ReplayFilter { ids: rows.iter().map(|row| row.id).collect(), ..filter }).await;
    assert_eq!(after.matched, 3, "{why}");
    let done = finish(&world, before.id).await;
    assert_eq!((done.matched, done.created, done.remaining()), (5, 2, 0));
    assert_eq!(done.skipped, Skipped { already_redelivered: 1, erased: 1, ..skipped }, "erased after it was requested");
    let done = finish(&world, after.id).await;
    assert_eq!((done.matched, done.created, done.remaining()), (3, 0, 0));
    assert_eq!(done.skipped, Skipped { already_redelivered: 2, ..skipped }, "erased before it was requested");
    world.configure(Change::DeleteEndpoint { endpoint: endpoint.id }).await.unwrap();
    let filter = ReplayFilter { ids: vec![rows[3].id], ..ReplayFilter::default() };
    let count = world.store.count_replay(filter).await.unwrap();
    assert_eq!(count, ReplayCount { matched: 1, skipped: Skipped { unsubscribed: 1, ..Skipped::default() } });
}

async fn i17_what_an_endpoint_misses_is_made_once_by_overlapping_replays(world: World) {
    let endpoint = Endpoint { status: Status::Disabled, ..world.new_endpoint("acme") };
    world.add(&endpoint).await.unwrap();
    for _ in 0..6 {
        world.publish(world.event("acme", "order.paid")).await;
    }
    let enabled = Endpoint { status: Status::Active, ..endpoint.clone() };
    world.configure(Change::ReplaceEndpoint { endpoint: Box::new(enabled), expected_version: None, secrets: None }).await.unwrap();
    let filter = ReplayFilter { endpoint: Some(endpoint.id), missing: true, ..ReplayFilter::default() };
    let (first, second) = (start(&world, filter.clone()).await, start(&world, filter.clone()).await);
    assert_eq!((first.matched, second.matched), (6, 6));
    world.store.step_replay(first.id, 4, 1000).await.unwrap().unwrap();
    let (second, first) = (finish(&world, second.id).await, finish(&world, first.id).await);
    for (row, created) in [(&first, 4), (&second, 2)] {
        assert_eq!((row.matched, row.created, row.remaining()), (6, created, 0));
        assert_eq!(row.skipped, Skipped { already_redelivered: 6 - created, ..Skipped::default() });
    }
    assert_eq!(unfinished(&world, &endpoint).await.len(), 6);
}

async fn i17_what_ends_or_vanishes_after_the_request_is_accounted_for(world: World) {
    let endpoint = world.endpoint("acme").await;
    let mut rows = Vec::new();
    for n in 0..4 {
        let delivery = world.delivery("acme").await;
        if n < 3 {
            world.deliver(&delivery).await;
        }
        rows.push(delivery);
    }
    let row = start(&world, ReplayFilter { endpoint: Some(endpoint.id), ..ReplayFilter::default() }).await;
    assert_eq!(row.matched, 3);
    let ends = later(world.store.now(), 1);
    assert_eq!(world.try_once(&rows[3], 1, 200, State::Delivered { at: ends }).await, RecordResult::Done);
    world.tamper(&format!("DELETE FROM deliveries WHERE seq = {}", rows[1].seq));
    let done = finish(&world, row.id).await;
    assert_eq!((done.matched, done.created, done.skipped), (3, 2, Skipped { erased: 1, ..Skipped::default() }));
}
