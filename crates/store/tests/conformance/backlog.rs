//! What waits, counted.

use posthaste_core::delivery::State;
use posthaste_core::event::Timing;
use posthaste_core::id::EndpointId;
use posthaste_core::scheduler::Class;
use posthaste_store::*;

use crate::world::{World, key, later, new_event};

crate::conform! {
    what_waits_is_told_apart_by_what_decides_why
    a_backlog_that_is_too_large_is_counted_in_part_and_says_so
    what_is_older_and_due_is_ahead
}

fn query(world: &World) -> BacklogQuery {
    let now = later(world.store.now(), 1);
    BacklogQuery { scope: BacklogScope::All, now, lanes_max: 10, rows_per_queue_max: 100, rows_max: 1000 }
}

/// Whether it is due, was tried, and is the head of its key; and how many.
type Alike = (bool, bool, bool, u64);

fn told(lane: &LaneBacklog) -> (EndpointId, Vec<Alike>) {
    assert!(lane.waiting.iter().all(|alike| alike.class == Class::Exempt), "{lane:?}");
    (lane.endpoint, lane.waiting.iter().map(|alike| (alike.is_due, alike.is_tried, alike.is_head_of_key, alike.count)).collect())
}

async fn what_waits_is_told_apart_by_what_decides_why(world: World) {
    assert_eq!(world.store.backlog(query(&world)).await.unwrap(), Backlog { lanes: vec![], is_whole: true });
    let endpoint = world.endpoint("acme").await;
    let other = world.endpoint("globex").await;
    let first = world.delivery("acme").await;
    for _ in 0..2 {
        world.delivery("acme").await;
    }
    world.delivery("globex").await;
    let ended = world.delivery("acme").await;
    world.deliver(&ended).await;
    let failed = world.delivery("acme").await;
    let due = later(world.store.now(), 3600);
    assert_eq!(world.try_once(&failed, 1, 500, State::Waiting { due }).await, RecordResult::Done);
    let mut event = world.event("acme", "order.paid");
    event.timing = Timing::new(event.accepted_at, Some(due), None).unwrap();
    world.delivery_of(event).await;
    for _ in 0..3 {
        let mut event = world.event("acme", "order.paid");
        event.ordering_key = key("one");
        world.delivery_of(event).await;
    }
    let of_acme =
        (endpoint.id, vec![(false, false, true, 1), (false, true, true, 1), (true, false, false, 2), (true, false, true, 4)]);
    for scope in [BacklogScope::Tenant(endpoint.tenant.clone()), BacklogScope::Endpoint(endpoint.id)] {
        let backlog = world.store.backlog(BacklogQuery { scope, ..query(&world) }).await.unwrap();
        assert_eq!(backlog.lanes.iter().map(told).collect::<Vec<_>>(), std::slice::from_ref(&of_acme));
        assert!(backlog.is_whole);
        let due = backlog.lanes[0].waiting.last().unwrap();
        assert_eq!(due.oldest, first.timestamp, "the oldest of those that are alike");
    }
    let mut all = world.store.backlog(query(&world)).await.unwrap();
    all.lanes.sort_by_key(|lane| lane.endpoint != endpoint.id);
    assert_eq!(all.lanes.iter().map(told).collect::<Vec<_>>(), [of_acme, (other.id, vec![(true, false, true, 1)])]);
}

async fn a_backlog_that_is_too_large_is_counted_in_part_and_says_so(world: World) {
    for _ in 0..3 {
        world.endpoint("acme").await;
    }
    let events = (0..20).map(|_| new_event(world.event("acme", "order.paid"))).collect();
    world.publish_all(events).await;
    let count = |backlog: &Backlog| backlog.lanes.iter().flat_map(|lane| &lane.waiting).map(|alike| alike.count).sum::<u64>();
    let whole = world.store.backlog(query(&world)).await.unwrap();
    assert_eq!((count(&whole), whole.is_whole), (60, true));
    let narrow = world.store.backlog(BacklogQuery { rows_per_queue_max: 5, ..query(&world) }).await.unwrap();
    assert_eq!((count(&narrow), narrow.is_whole), (15, false));
    let few = world.store.backlog(BacklogQuery { lanes_max: 2, ..query(&world) }).await.unwrap();
    assert_eq!((few.lanes.len(), few.is_whole), (2, false));
    let acme = whole.lanes[0].endpoint;
    let tenant = world.store.endpoint(None, acme).await.unwrap().unwrap().endpoint.tenant;
    let few =
        world.store.backlog(BacklogQuery { scope: BacklogScope::Tenant(tenant), lanes_max: 2, ..query(&world) }).await.unwrap();
    assert_eq!((few.lanes.len(), few.is_whole), (2, false));
}

async fn what_is_older_and_due_is_ahead(world: World) {
    let endpoint = world.endpoint("acme").await;
    world.endpoint("globex").await;
    world.delivery("globex").await;
    for _ in 0..3 {
        world.delivery("acme").await;
    }
    let due = later(world.store.now(), 3600);
    let failed = world.delivery("acme").await;
    assert_eq!(world.try_once(&failed, 1, 500, State::Waiting { due }).await, RecordResult::Done);
    let mut event = world.event("acme", "order.paid");
    event.ordering_key = key("one");
    world.delivery_of(event).await;
    let ended = world.delivery("acme").await;
    world.deliver(&ended).await;
    let last = world.delivery("acme").await;
    world.delivery("acme").await;
    let now = later(world.store.now(), 1);
    let query = PlaceQuery { endpoint: endpoint.id, older_than: (last.timestamp, last.seq), due_by: now, rows_per_queue_max: 6 };
    assert_eq!(world.store.count_ahead(query.clone()).await.unwrap(), Some(4), "three that are fresh, and one with a key");
    assert_eq!(world.store.count_ahead(PlaceQuery { due_by: due, ..query.clone() }).await.unwrap(), Some(5));
    assert_eq!(world.store.count_ahead(PlaceQuery { rows_per_queue_max: 5, ..query }).await.unwrap(), None, "there may be more");
}
