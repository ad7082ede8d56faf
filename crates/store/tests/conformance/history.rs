//! What has become of it, for people who ask.

use std::sync::Arc;

use posthaste_core::delivery::{DeadReason, State};
use posthaste_core::endpoint::{Endpoint, Headers, PayloadFormat, Status};
use posthaste_core::event::TypePatterns;
use posthaste_core::id::{EndpointId, EventId};
use posthaste_store::*;

use crate::world::{World, later, tenant};

crate::conform! {
    deliveries_are_paged_newest_first_by_every_filter
    a_page_is_bounded_and_goes_on
    dead_letters_are_listed_by_their_death
    events_are_listed_without_their_payloads
    what_belongs_to_another_tenant_is_not_found
    an_old_delivery_keeps_the_url_that_was_used
    a_version_is_kept_only_when_history_would_show_another
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
    let after = async |query: RowsAfter| world.store.rows_after(query).await.unwrap();
    let query = RowsAfter { limit: 10, ..RowsAfter::default() };
    assert_eq!(after(query.clone()).await, seqs(&[0, 1, 2, 3]));
    assert_eq!(after(RowsAfter { limit: 2, ..query.clone() }).await, seqs(&[0, 1]));
    assert_eq!(after(RowsAfter { after: rows[1].seq, ..query.clone() }).await, seqs(&[2, 3]));
    assert_eq!(after(RowsAfter { tenant: Some(tenant("acme")), ..query.clone() }).await, seqs(&[0, 2, 3]));
    let of_endpoint = RowsAfter { endpoint: Some(endpoint.id), after: rows[0].seq, ..query.clone() };
    assert_eq!(after(of_endpoint.clone()).await, seqs(&[2, 3]));
    assert_eq!(after(RowsAfter { tenant: Some(tenant("globex")), ..of_endpoint }).await, Vec::<u64>::new());
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

/// An attempt that was sent with a version of the endpoint.
async fn try_with(world: &World, delivery: &DeliveryRow, number: u32, version: u64, state: State) {
    let attempt = Box::new(AttemptRecord { endpoint_version: Some(version), ..*world.attempt(number, 500) });
    let record = world.record(delivery, DeliveryChange::Attempt { seq: delivery.seq, attempt, state });
    assert_eq!(world.store.record(vec![record]).await.unwrap(), [RecordResult::Done]);
}

async fn replace(world: &World, endpoint: &Endpoint) -> u64 {
    let change = Change::ReplaceEndpoint { endpoint: Box::new(endpoint.clone()), expected_version: None, secrets: None };
    world.configure(change).await.unwrap().version
}

async fn an_old_delivery_keeps_the_url_that_was_used(world: World) {
    let mut endpoint = world.endpoint("acme").await;
    let first_url = endpoint.url.clone();
    let url = |delivery: &DeliveryRow| {
        let (store, id) = (Arc::clone(&world.store), delivery.id);
        async move { store.delivery(None, id).await.unwrap().unwrap().endpoint_url }
    };
    let (old, untried) = (world.delivery("acme").await, world.delivery("acme").await);
    let due = later(world.store.now(), 60);
    try_with(&world, &old, 1, 1, State::Waiting { due }).await;
    "https://example.com/second".clone_into(&mut endpoint.url);
    endpoint.payload_format = PayloadFormat::CloudEvents;
    endpoint.headers = Headers::new([("x-name", "canary-value")], &endpoint.signing).unwrap();
    let second = replace(&world, &endpoint).await;
    assert_eq!(url(&old).await, first_url);
    assert_eq!(url(&untried).await, "https://example.com/second", "where it will go");
    try_with(&world, &old, 2, second, State::Waiting { due }).await;
    try_with(&world, &untried, 1, second, State::Delivered { at: world.store.now() }).await;
    // Changes of other things are versions too.
    endpoint.status = Status::Paused { until: None };
    let paused = replace(&world, &endpoint).await;
    try_with(&world, &old, 3, paused, State::Delivered { at: world.store.now() }).await;
    "https://example.com/third".clone_into(&mut endpoint.url);
    endpoint.headers = Headers::default();
    let third = replace(&world, &endpoint).await;
    assert_eq!((url(&old).await, url(&untried).await), ("https://example.com/second".into(), "https://example.com/second".into()));
    let listed = world.store.deliveries(DeliveryQuery { limit: 10, ..DeliveryQuery::default() }).await.unwrap().rows;
    assert!(listed.iter().all(|row| row.endpoint_url == "https://example.com/second"), "{listed:?}");
    let attempts = world.store.attempts(old.id).await.unwrap();
    let sent_with: Vec<u64> = attempts.iter().filter_map(|attempt| attempt.endpoint_version).collect();
    assert_eq!(sent_with, [1, second, paused]);
    let versions = world.store.endpoint_versions(endpoint.id, vec![third, 1, paused, second]).await.unwrap();
    let version = |version, url: &str, payload_format, names: &[&str]| EndpointVersion {
        version,
        url: url.to_owned(),
        payload_format,
        header_names: Some(names.iter().map(|name| (*name).to_owned()).collect()),
    };
    let cloud_events = PayloadFormat::CloudEvents;
    assert_eq!(
        versions,
        [
            version(third, "https://example.com/third", cloud_events, &[]),
            version(1, &first_url, PayloadFormat::Envelope, &[]),
            version(paused, "https://example.com/second", cloud_events, &["x-name"]),
            version(second, "https://example.com/second", cloud_events, &["x-name"]),
        ]
    );
    let unknown = EndpointId::from_unique(world.store.unique());
    assert_eq!(world.store.endpoint_versions(unknown, vec![1]).await.unwrap(), []);
    assert_eq!(world.count("endpoint_versions WHERE header_names LIKE '%canary%'"), 0, "no values");
    // Attempts from before versions were kept.
    world.tamper("UPDATE attempts SET endpoint_version = NULL; UPDATE deliveries SET last_endpoint_version = NULL");
    assert_eq!(url(&old).await, "https://example.com/third");
    assert_eq!(world.store.attempts(old.id).await.unwrap()[0].endpoint_version, None);
}

async fn a_version_is_kept_only_when_history_would_show_another(world: World) {
    let mut endpoint = world.endpoint("acme").await;
    endpoint.status = Status::Paused { until: None };
    replace(&world, &endpoint).await;
    endpoint.headers = Headers::new([("x-name", "one")], &endpoint.signing).unwrap();
    replace(&world, &endpoint).await;
    assert_eq!(world.count("endpoint_versions"), 1, "another header");
    endpoint.headers = Headers::new([("x-name", "two")], &endpoint.signing).unwrap();
    replace(&world, &endpoint).await;
    let secrets = vec![StoredSecret { secret: SecretText("whsec_other".to_owned()), until: None }];
    world.configure(Change::ReplaceSecrets { endpoint: endpoint.id, secrets }).await.unwrap();
    assert_eq!(world.count("endpoint_versions"), 1, "another value, another secret");
    endpoint.payload_format = PayloadFormat::Data;
    replace(&world, &endpoint).await;
    assert_eq!(world.count("endpoint_versions"), 2, "another format");
    "https://example.com/other".clone_into(&mut endpoint.url);
    replace(&world, &endpoint).await;
    assert_eq!(world.count("endpoint_versions"), 3, "another URL");
}
