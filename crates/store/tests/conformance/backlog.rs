//! What waits, counted.

use posthaste_core::delivery::State;
use posthaste_core::event::Timing;
use posthaste_core::scheduler::Class;
use posthaste_store::*;

use crate::world::{World, key, later, new_event};

crate::conform! {
    what_waits_is_told_apart_by_what_decides_why
    a_backlog_that_is_too_large_is_counted_in_part_and_says_so
}

fn query(world: &World) -> BacklogQuery {
    let now = later(world.store.now(), 1);
    BacklogQuery { tenant: None, now, lanes_max: 10, rows_per_queue_max: 100, rows_max: 1000 }
}

fn alike(is_due: bool, is_tried: bool, is_head_of_key: bool, count: u64) -> Waiting {
    Waiting { class: Class::Exempt, is_due, is_tried, is_head_of_key, count }
}

async fn what_waits_is_told_apart_by_what_decides_why(world: World) {
    assert_eq!(world.store.backlog(query(&world)).await.unwrap(), Backlog { lanes: vec![], is_whole: true });
    let endpoint = world.endpoint("acme").await;
    let other = world.endpoint("globex").await;
    for _ in 0..3 {
        world.delivery("acme").await;
    }
    world.delivery("globex").await;
    let ended = world.delivery("acme").await;
    world.deliver(&ended).await;
    let failed = world.delivery("acme").await;
    let due = later(world.store.now(), 3600);
    assert_eq!(world.try_once(&failed, 1, 500, State::Waiting { due }).await, RecordedAs::Done);
    let mut event = world.event("acme", "order.paid");
    event.timing = Timing::new(event.accepted_at, Some(due), None).unwrap();
    world.delivery_of(event).await;
    for _ in 0..3 {
        let mut event = world.event("acme", "order.paid");
        event.ordering_key = key("one");
        world.delivery_of(event).await;
    }
    let of_acme =
        vec![alike(false, false, true, 1), alike(false, true, true, 1), alike(true, false, false, 2), alike(true, false, true, 4)];
    let backlog = world.store.backlog(BacklogQuery { tenant: Some(endpoint.tenant.clone()), ..query(&world) }).await.unwrap();
    assert_eq!(backlog, Backlog { lanes: vec![LaneBacklog { endpoint: endpoint.id, waiting: of_acme.clone() }], is_whole: true });
    let mut all = world.store.backlog(query(&world)).await.unwrap();
    all.lanes.sort_by_key(|lane| lane.endpoint != endpoint.id);
    let of_globex = LaneBacklog { endpoint: other.id, waiting: vec![alike(true, false, true, 1)] };
    assert_eq!(all.lanes, [LaneBacklog { endpoint: endpoint.id, waiting: of_acme }, of_globex]);
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
    let tenant = world.store.endpoint(acme).await.unwrap().unwrap().endpoint.tenant;
    let few = world.store.backlog(BacklogQuery { tenant: Some(tenant), lanes_max: 2, ..query(&world) }).await.unwrap();
    assert_eq!((few.lanes.len(), few.is_whole), (2, false));
}
