//! What has become of it, for people who ask.

use posthaste_core::delivery::{DeadReason, State};
use posthaste_core::event::TypePatterns;
use posthaste_core::id::EventId;
use posthaste_store::*;

use crate::world::{World, later, tenant};

crate::conform! {
    deliveries_are_paged_newest_first_by_every_filter
    a_page_is_bounded_and_goes_on
    dead_letters_are_listed_by_their_death
    events_are_listed_without_their_payloads
    what_belongs_to_another_tenant_is_not_found
    rows_are_followed_in_the_order_in_which_they_were_made
}

async fn rows_are_followed_in_the_order_in_which_they_were_made(world: World) {
    let endpoint = world.endpoint("acme").await;
    world.endpoint("globex").await;
    let mut rows = Vec::new();
    for of in ["acme", "globex", "acme", "acme"] {
        rows.push(world.delivery(of).await);
    }
    let seqs = |places: &[usize]| places.iter().map(|place| rows[*place].seq).collect::<Vec<_>>();
    let after = async |query: MadeAfter| world.store.made_after(query).await.unwrap();
    let query = MadeAfter { limit: 10, ..MadeAfter::default() };
    assert_eq!(after(query.clone()).await, seqs(&[0, 1, 2, 3]));
    assert_eq!(after(MadeAfter { limit: 2, ..query.clone() }).await, seqs(&[0, 1]));
    assert_eq!(after(MadeAfter { after: rows[1].seq, ..query.clone() }).await, seqs(&[2, 3]));
    assert_eq!(after(MadeAfter { tenant: Some(tenant("acme")), ..query.clone() }).await, seqs(&[0, 2, 3]));
    let of_endpoint = MadeAfter { endpoint: Some(endpoint.id), after: rows[0].seq, ..query.clone() };
    assert_eq!(after(of_endpoint.clone()).await, seqs(&[2, 3]));
    assert_eq!(after(MadeAfter { tenant: Some(tenant("globex")), ..of_endpoint }).await, Vec::<u64>::new());
    let mut found = world.store.deliveries_at(vec![rows[2].seq, 999_999, rows[0].seq]).await.unwrap();
    found.sort_by_key(|row| row.seq);
    assert_eq!(found, [rows[0].clone(), rows[2].clone()]);
}

/// All pages together.
async fn all(world: &World, query: DeliveryQuery) -> Vec<u64> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = world.store.deliveries(DeliveryQuery { before, ..query.clone() }).await.unwrap();
        assert!(page.rows.len() <= query.limit);
        found.extend(page.rows.into_iter().map(|row| row.seq));
        before = page.next;
        if before.is_none() {
            return found;
        }
    }
}

async fn deliveries_are_paged_newest_first_by_every_filter(world: World) {
    let (first, second) = (world.endpoint("acme").await, world.endpoint("acme").await);
    let other = world.endpoint("globex").await;
    let mut events = Vec::new();
    for event_type in ["order.paid", "user.made", "order.paid"] {
        let event = world.event("acme", event_type);
        events.push(event.id.clone());
        world.publish(event).await;
    }
    let of_globex = world.delivery("globex").await;
    assert_eq!(of_globex.endpoint, other.id);
    let rows = world.deliveries_of(&events[0]).await;
    world.deliver(&rows[0]).await;
    let query = DeliveryQuery { limit: 2, ..DeliveryQuery::default() };
    let everything = all(&world, query.clone()).await;
    assert_eq!(everything.len(), 7);
    assert!(everything.is_sorted_by(|newer, older| newer > older));
    let count = async |query: DeliveryQuery| all(&world, query).await.len();
    assert_eq!(count(DeliveryQuery { tenant: Some(tenant("acme")), ..query.clone() }).await, 6);
    assert_eq!(count(DeliveryQuery { endpoint: Some(first.id), ..query.clone() }).await, 3);
    assert_eq!(count(DeliveryQuery { endpoint: Some(second.id), tenant: Some(tenant("globex")), ..query.clone() }).await, 0);
    assert_eq!(count(DeliveryQuery { event: Some(events[1].clone()), ..query.clone() }).await, 2);
    assert_eq!(count(DeliveryQuery { event: Some(events[1].clone()), endpoint: Some(first.id), ..query.clone() }).await, 1);
    let types = |patterns: &[&str]| TypePatterns::parse(patterns.iter().copied()).unwrap();
    assert_eq!(count(DeliveryQuery { event_types: types(&["user.made"]), ..query.clone() }).await, 2);
    assert_eq!(count(DeliveryQuery { event_types: types(&["user.*", "order.*"]), ..query.clone() }).await, 7);
    let statuses = vec![StatusFilter::Delivered, StatusFilter::Waiting];
    assert_eq!(count(DeliveryQuery { statuses, ..query.clone() }).await, 7);
    assert_eq!(count(DeliveryQuery { statuses: vec![StatusFilter::Delivered], ..query.clone() }).await, 1);
    assert_eq!(count(DeliveryQuery { statuses: vec![StatusFilter::Waiting], ..query.clone() }).await, 6);
    assert_eq!(count(DeliveryQuery { to: Some(rows[0].created_at), ..query.clone() }).await, 0);
    assert_eq!(count(DeliveryQuery { from: Some(later(world.store.now(), 60)), ..query }).await, 0);
}

async fn a_page_is_bounded_and_goes_on(world: World) {
    world.endpoint("acme").await;
    let events: Vec<NewEvent> = (0..500).map(|_| crate::world::new_event(world.event("acme", "order.paid"))).collect();
    for _ in 0..5 {
        let events = events.iter().map(|_| crate::world::new_event(world.event("acme", "order.paid"))).collect();
        world.publish_all(events).await;
    }
    let rare = world.event("acme", "rare.one");
    world.publish(rare).await;
    for _ in 0..5 {
        let events = events.iter().map(|_| crate::world::new_event(world.event("acme", "order.paid"))).collect();
        world.publish_all(events).await;
    }
    let event_types = TypePatterns::parse(["rare.one"]).unwrap();
    let query = DeliveryQuery { event_types, limit: 10, ..DeliveryQuery::default() };
    let first = world.store.deliveries(query.clone()).await.unwrap();
    assert_eq!(first.rows, [], "it did not look at everything");
    assert!(first.next.is_some(), "and says so");
    assert_eq!(all(&world, query).await.len(), 1);
}

async fn dead_letters_are_listed_by_their_death(world: World) {
    world.endpoint("acme").await;
    world.endpoint("globex").await;
    let now = world.store.now();
    let mut dead = Vec::new();
    for (of, seconds) in [("acme", 30), ("globex", 20), ("acme", 10), ("acme", 20)] {
        let row = world.delivery(of).await;
        let state = State::Dead { at: later(now, seconds), reason: DeadReason::PermanentFailure };
        world.try_once(&row, 1, 404, state).await;
        dead.push(row.seq);
    }
    let pages = async |of: Option<&str>| {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let query = DeliveryQuery { tenant: of.map(tenant), limit: 2, before, ..DeliveryQuery::default() };
            let page = world.store.dead_letters(query).await.unwrap();
            found.extend(page.rows.into_iter().map(|row| row.seq));
            before = page.next;
            if before.is_none() {
                return found;
            }
        }
    };
    assert_eq!(pages(None).await, [dead[0], dead[3], dead[1], dead[2]]);
    assert_eq!(pages(Some("acme")).await, [dead[0], dead[3], dead[2]]);
    assert!(pages(Some("initech")).await.is_empty());
}

async fn events_are_listed_without_their_payloads(world: World) {
    let mut made = Vec::new();
    for (of, event_type) in [("acme", "order.paid"), ("globex", "order.paid"), ("acme", "user.made")] {
        let event = world.event(of, event_type);
        made.push(event.id.clone());
        world.publish(event).await;
    }
    let list = async |query: EventQuery| {
        let page = world.store.events(EventQuery { limit: 10, ..query }).await.unwrap();
        assert!(page.rows.iter().all(|row| row.data.is_none()));
        page.rows.into_iter().map(|row| row.id).collect::<Vec<EventId>>()
    };
    assert_eq!(list(EventQuery::default()).await, [made[2].clone(), made[1].clone(), made[0].clone()]);
    assert_eq!(
        list(EventQuery { tenant: Some(tenant("acme")), ..EventQuery::default() }).await,
        [made[2].clone(), made[0].clone()]
    );
    let event_types = TypePatterns::parse(["user.*"]).unwrap();
    assert_eq!(list(EventQuery { event_types, ..EventQuery::default() }).await, [made[2].clone()]);
    let page = world.store.events(EventQuery { limit: 1, ..EventQuery::default() }).await.unwrap();
    let next = world.store.events(EventQuery { limit: 1, before: page.next, ..EventQuery::default() }).await.unwrap();
    assert_eq!((&page.rows[0].id, &next.rows[0].id), (&made[2], &made[1]));
}

async fn what_belongs_to_another_tenant_is_not_found(world: World) {
    world.endpoint("acme").await;
    let event = world.event("acme", "order.paid");
    world.publish(event.clone()).await;
    assert_eq!(world.store.event(Some(tenant("globex")), event.id.clone()).await.unwrap(), None);
    assert!(world.store.event(None, event.id.clone()).await.unwrap().is_some(), "whoever may see all sees it");
    let query = DeliveryQuery { tenant: Some(tenant("globex")), event: Some(event.id), limit: 5, ..DeliveryQuery::default() };
    assert_eq!(world.store.deliveries(query).await.unwrap().rows, []);
}
