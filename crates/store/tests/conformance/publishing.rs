//! A1–A4: an event and its deliveries, once, or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::catalogue::Entry;
use posthaste_core::delivery::State;
use posthaste_core::endpoint::{Endpoint, Override, PolicyOverrides, Status, Subscription};
use posthaste_core::event::{Data, Event, EventType, Timing, TypePatterns};
use posthaste_core::filter::Filter;
use posthaste_core::id::EventId;
use posthaste_core::quiet_hours::{Days, QuietHours, TimeOfDay, Window};
use posthaste_core::scheduler::{Class, WindowQuery};
use posthaste_core::text::{Label, Labels, Version};
use posthaste_core::trace::TraceContext;
use posthaste_store::*;

use crate::world::{World, idempotency_key, key, later, new_event, tenant};

crate::conform! {
    an_event_and_its_deliveries_survive_with_every_field
    the_trace_of_an_event_survives_and_goes_with_every_delivery_of_it
    only_endpoints_that_want_it_get_a_delivery
    a_key_publishes_once_and_another_body_is_a_conflict
    an_id_that_was_chosen_works_as_a_key_and_two_tenants_may_choose_the_same
    an_id_that_a_server_has_made_is_a_duplicate_or_a_conflict_for_that_event_alone
    the_same_key_in_one_batch_and_from_many_callers_makes_one_event
    a_key_is_forgotten_after_its_time
    an_endpoint_that_was_answered_is_seen_by_the_next_publish
    what_was_published_comes_by_the_feed_with_its_body
    a_feed_that_nobody_reads_keeps_no_more_than_so_much_and_says_so
    many_callers_at_once_all_get_their_own_answers
    urgent_types_and_quiet_ones_are_stamped_with_their_class
}

async fn an_event_and_its_deliveries_survive_with_every_field(world: World) {
    let endpoint = world.endpoint("acme").await;
    let now = world.store.now();
    let event = Event {
        version: Some(Version::parse("2026-04-08").unwrap()),
        timestamp: later(now, 0) - Duration::from_hours(1),
        data: Data::parse("{ \"z\":1.00,\"a\" : 12345678901234567890123, \"s\":\"\\u00e9\\/\\u0000é\" }").unwrap(),
        labels: Labels::new(vec![Label::parse("vip").unwrap(), Label::parse("eu").unwrap()]).unwrap(),
        idempotency_key: idempotency_key("k-1"),
        ordering_key: key("order-1"),
        timing: Timing::new(now, Some(later(now, 60)), Some(later(now, 3600))).unwrap(),
        ..world.event("acme", "order.paid")
    };
    assert_eq!(world.publish(event.clone()).await, Published::Made { deliveries: 1 });
    let options = world.options.clone();
    let world = world.reopened(options).await;
    let row = world.store.event(Some(tenant("acme")), event.id.clone()).await.unwrap().unwrap();
    assert_eq!(row.data.as_ref(), Some(&event.data));
    assert_eq!(
        (&row.event_type, &row.version, row.timestamp, row.accepted_at, &row.labels, &row.idempotency_key, &row.ordering_key),
        (
            &event.event_type,
            &event.version,
            event.timestamp,
            event.accepted_at,
            &event.labels,
            &event.idempotency_key,
            &event.ordering_key
        )
    );
    assert_eq!((row.timing, row.deliveries), (event.timing, [1, 0, 0, 0]));
    let delivery = world.deliveries_of(&event.id).await.remove(0);
    assert_eq!((delivery.endpoint, &delivery.ordering_key), (endpoint.id, &event.ordering_key));
    assert_eq!(delivery.state, posthaste_core::delivery::State::Waiting { due: later(now, 60) });
    assert!(delivery.is_later);
    let bodies = world.store.bodies(vec![delivery.seq, 999_999]).await.unwrap();
    assert_eq!(bodies.len(), 1, "one that is not there is passed over");
    assert_eq!(bodies[0].event.as_ref().unwrap(), &event);
}

async fn the_trace_of_an_event_survives_and_goes_with_every_delivery_of_it(world: World) {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let endpoint = world.endpoint("acme").await;
    let context = |state: &str| TraceContext::parse([PARENT], [state]).map(Box::new);
    let said = [context(""), context("rojo=1,congo=a b"), None];
    let events = said.clone().map(|trace| Event { trace, ..world.event("acme", "order.paid") });
    // In one group: what one of them has, its neighbours have not.
    let published = world.store.publish(events.iter().cloned().map(new_event).collect()).await.unwrap();
    assert_eq!(published, [(); 3].map(|()| Published::Made { deliveries: 1 }));
    let options = world.options.clone();
    let world = world.reopened(options).await;
    for (event, said) in events.iter().zip(&said) {
        let query = DeliveryQuery { event: Some(event.id.clone()), limit: 10, ..DeliveryQuery::default() };
        let made = world.store.deliveries(query).await.unwrap().rows.remove(0);
        assert_eq!(made.endpoint, endpoint.id);
        world.try_once(&made, 1, 200, State::Delivered { at: world.store.now() }).await;
        let again = world.store.redeliver(made.id, world.audit("delivery.retry")).await.unwrap().unwrap();
        let bodies = world.store.bodies(vec![made.seq, again.seq]).await.unwrap();
        assert_eq!(bodies.len(), 2);
        for body in bodies {
            assert_eq!(&body.event.unwrap().trace, said, "{}", event.id);
        }
    }
}

async fn only_endpoints_that_want_it_get_a_delivery(world: World) {
    let filter = Filter::parse(r#"{"data.amount": {"$gte": 1000}}"#).unwrap();
    let types = |list: &[&str]| TypePatterns::parse(list.iter().copied()).unwrap();
    let wants = |endpoint: Endpoint, subscription| Endpoint { subscription, ..endpoint };
    let all = world.endpoint("acme").await;
    let paused = Endpoint { status: Status::Paused { until: None }, ..world.new_endpoint("acme") };
    let disabled = Endpoint { status: Status::Disabled, ..world.new_endpoint("acme") };
    let other = wants(world.new_endpoint("acme"), Subscription { event_types: types(&["user.*"]), ..Subscription::default() });
    let rich = wants(world.new_endpoint("acme"), Subscription { filter: Some(filter), ..Subscription::default() });
    for endpoint in [&paused, &disabled, &other, &rich] {
        world.add(endpoint).await.unwrap();
    }
    world.endpoint("globex").await;
    let event = world.event("acme", "order.paid");
    let id = event.id.clone();
    assert_eq!(world.publish(event).await, Published::Made { deliveries: 2 });
    let got: BTreeSet<_> = world.deliveries_of(&id).await.into_iter().map(|row| row.endpoint).collect();
    assert_eq!(got, BTreeSet::from([all.id, paused.id]));
    let nobody = world.event("initech", "order.paid");
    let id = nobody.id.clone();
    assert_eq!(world.publish(nobody).await, Published::Made { deliveries: 0 });
    assert!(world.store.event(Some(tenant("initech")), id).await.unwrap().is_some(), "it is kept");
    assert!(world.store.tenant(tenant("initech")).await.unwrap().is_some(), "and the tenant has come into being");
}

async fn a_key_publishes_once_and_another_body_is_a_conflict(world: World) {
    world.endpoint("acme").await;
    let first = Event { idempotency_key: idempotency_key("k"), ..world.event("acme", "order.paid") };
    let again = Event { idempotency_key: idempotency_key("k"), ..world.event("acme", "order.paid") };
    let of_another = Event { idempotency_key: idempotency_key("k"), ..world.event("globex", "order.paid") };
    assert_eq!(world.publish(first.clone()).await, Published::Made { deliveries: 1 });
    let duplicate = Published::Duplicate {
        event: first.id.clone(),
        event_type: first.event_type.clone(),
        timestamp: first.timestamp,
        deliveries: 1,
    };
    assert_eq!(world.publish(again.clone()).await, duplicate);
    let other_body = NewEvent { fingerprint: [8; 32], ..new_event(again.clone()) };
    assert_eq!(
        world.publish_all(vec![other_body]).await,
        [Published::Conflict { event: first.id, by: DuplicateBy::IdempotencyKey }]
    );
    assert_eq!(world.store.event(Some(tenant("acme")), again.id).await.unwrap(), None, "neither leaves a trace");
    assert_eq!(world.publish(of_another).await, Published::Made { deliveries: 0 }, "a key belongs to its tenant");
}

async fn an_id_that_was_chosen_works_as_a_key_and_two_tenants_may_choose_the_same(world: World) {
    world.endpoint("acme").await;
    let id = EventId::parse("order-4711").unwrap();
    let chosen = |of: &str| NewEvent { is_id_chosen: true, ..new_event(Event { id: id.clone(), ..world.event(of, "order.paid") }) };
    assert_eq!(world.publish_all(vec![chosen("acme")]).await, [Published::Made { deliveries: 1 }]);
    assert!(matches!(world.publish_all(vec![chosen("acme")]).await[0], Published::Duplicate { .. }));
    let other_body = NewEvent { fingerprint: [9; 32], ..chosen("acme") };
    assert_eq!(world.publish_all(vec![other_body]).await, [Published::Conflict { event: id.clone(), by: DuplicateBy::Id }]);
    assert_eq!(world.store.tenants_of_event(id.clone()).await.unwrap(), [tenant("acme")]);
    assert_eq!(world.publish_all(vec![chosen("globex")]).await, [Published::Made { deliveries: 0 }]);
    assert_eq!(world.store.tenants_of_event(id.clone()).await.unwrap(), [tenant("acme"), tenant("globex")]);
    let made = world.event("globex", "order.paid");
    world.publish(made.clone()).await;
    assert_eq!(world.store.tenants_of_event(made.id).await.unwrap(), [tenant("globex")]);
    assert_eq!(world.deliveries_of(&id).await.len(), 1);
}

async fn an_id_that_a_server_has_made_is_a_duplicate_or_a_conflict_for_that_event_alone(world: World) {
    world.endpoint("acme").await;
    let made = world.event("acme", "order.paid");
    assert_eq!(world.publish(made.clone()).await, Published::Made { deliveries: 1 });
    let chosen = |event: Event| NewEvent { is_id_chosen: true, ..new_event(event) };
    let again = Event { timestamp: made.timestamp, accepted_at: world.store.now(), ..made.clone() };
    let other = Event { data: Data::parse("2").unwrap(), ..again.clone() };
    let elsewhere = Event { tenant: tenant("globex"), ..again.clone() };
    let neighbours = [world.event("acme", "order.paid"), world.event("acme", "order.paid")];
    let [before, after] = neighbours.map(new_event);
    let answers = world.publish_all(vec![before, chosen(again), chosen(other), after, chosen(elsewhere)]).await;
    let duplicate = Published::Duplicate {
        event: made.id.clone(),
        event_type: made.event_type.clone(),
        timestamp: made.timestamp,
        deliveries: 1,
    };
    let fresh = |deliveries| Published::Made { deliveries };
    let conflict = Published::Conflict { event: made.id.clone(), by: DuplicateBy::Id };
    assert_eq!(answers, [fresh(1), duplicate, conflict, fresh(1), fresh(0)]);
    assert_eq!(world.deliveries_of(&made.id).await.len(), 1);
}

async fn the_same_key_in_one_batch_and_from_many_callers_makes_one_event(world: World) {
    world.endpoint("acme").await;
    let keyed = || new_event(Event { idempotency_key: idempotency_key("k"), ..world.event("acme", "order.paid") });
    let batch = world.publish_all(vec![keyed(), new_event(world.event("acme", "order.paid")), keyed()]).await;
    assert!(matches!(batch.as_slice(), [Published::Made { .. }, Published::Made { .. }, Published::Duplicate { .. }]), "{batch:?}");
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let store = Arc::clone(&world.store);
        let event = Event { idempotency_key: idempotency_key("race"), ..world.event("acme", "order.paid") };
        callers.spawn(async move { store.publish(vec![new_event(event)]).await.unwrap().remove(0) });
    }
    let answers = callers.join_all().await;
    let made = answers.iter().filter(|answer| matches!(answer, Published::Made { .. })).count();
    let named: BTreeSet<_> = answers
        .iter()
        .filter_map(|answer| match answer {
            Published::Duplicate { event, .. } => Some(event.clone()),
            Published::Made { .. } | Published::Conflict { .. } | Published::TooCostly(_) => None,
        })
        .collect();
    assert_eq!((made, named.len(), answers.len()), (1, 1, 40));
}

async fn a_key_is_forgotten_after_its_time(world: World) {
    let keyed = || Event { idempotency_key: idempotency_key("k"), ..world.event("acme", "order.paid") };
    assert!(matches!(world.publish(keyed()).await, Published::Made { .. }));
    assert!(matches!(world.publish(keyed()).await, Published::Duplicate { .. }));
    world.tamper("UPDATE idempotency_keys SET expires_at_ms = 1");
    assert!(matches!(world.publish(keyed()).await, Published::Made { .. }), "its time is over, swept or not");
    assert!(matches!(world.publish(keyed()).await, Published::Duplicate { .. }));
}

async fn an_endpoint_that_was_answered_is_seen_by_the_next_publish(world: World) {
    for count in 0..5 {
        assert_eq!(world.publish(world.event("acme", "order.paid")).await, Published::Made { deliveries: count });
        world.endpoint("acme").await;
    }
    let endpoints = world.store.endpoints(EndpointQuery { limit: 10, ..EndpointQuery::default() }).await.unwrap();
    let disabled = Endpoint { status: Status::Disabled, ..endpoints[0].endpoint.clone() };
    world.configure(Change::ReplaceEndpoint { endpoint: Box::new(disabled), expected_version: None, secrets: None }).await.unwrap();
    assert_eq!(world.publish(world.event("acme", "order.paid")).await, Published::Made { deliveries: 4 });
    world.configure(Change::DeleteEndpoint { endpoint: endpoints[1].endpoint.id }).await.unwrap();
    assert_eq!(world.publish(world.event("acme", "order.paid")).await, Published::Made { deliveries: 3 });
}

async fn what_was_published_comes_by_the_feed_with_its_body(world: World) {
    let endpoint = world.endpoint("acme").await;
    let mut feed = world.store.feed();
    let event = Event { ordering_key: key("k"), ..world.event("acme", "order.paid") };
    let row = world.delivery_of(event.clone()).await;
    let first = feed.next().await.unwrap().remove(0);
    assert_eq!((first.endpoint, &first.tenant, first.partition), (endpoint.id, &event.tenant, row.partition));
    assert_eq!(first.event.as_ref(), &event);
    let window = world.window(endpoint.id, WindowQuery::Head(event.ordering_key.clone().unwrap()), 10).await;
    assert_eq!(window.rows, [first.entry], "the same as a read would bring");
    world.store.close().await.unwrap();
    assert!(feed.next().await.is_none(), "nothing more will come");
    let late = world.store.publish(vec![new_event(world.event("acme", "order.paid"))]).await;
    assert!(matches!(late, Err(Error::Unavailable(_))), "and nothing more is taken");
}

async fn a_feed_that_nobody_reads_keeps_no_more_than_so_much_and_says_so(world: World) {
    const PAYLOAD_BYTES: usize = 1024 * 1024;
    world.endpoint("acme").await;
    let mut feed = world.store.feed();
    let large = || {
        let data = Data::parse(&format!("\"{}\"", "x".repeat(PAYLOAD_BYTES))).unwrap();
        Event { data, ..world.event("acme", "order.paid") }
    };
    for _ in 0..40 {
        world.publish(large()).await;
    }
    assert!(feed.take_overflow(), "40 MiB");
    let small = world.event("acme", "order.paid");
    world.publish(small.clone()).await;
    let mut bytes = 0;
    let next = loop {
        let came = feed.next().await.unwrap().remove(0);
        if came.event.id == small.id {
            break came;
        }
        bytes += came.event.data.as_str().len();
    };
    assert!((16 * PAYLOAD_BYTES..=32 * PAYLOAD_BYTES).contains(&bytes), "{bytes}");
    assert_eq!(next.event.as_ref(), &small, "what came when there was room");
    assert!(!feed.take_overflow(), "said once");
    for _ in 0..40 {
        world.publish(large()).await;
        feed.next().await.unwrap();
    }
    assert!(!feed.take_overflow(), "what was read makes room");
}

async fn many_callers_at_once_all_get_their_own_answers(world: World) {
    let endpoint = world.endpoint("acme").await;
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..200u32 {
        let store = Arc::clone(&world.store);
        let of = if n % 2 == 0 { "acme" } else { "globex" };
        let events = (0..=n % 3).map(|_| new_event(world.event(of, "order.paid"))).collect();
        callers.spawn(async move { (n, store.publish(events).await.unwrap()) });
    }
    let mut expected = 0;
    for (n, answers) in callers.join_all().await {
        let deliveries = u32::from(n % 2 == 0);
        assert_eq!(answers, vec![Published::Made { deliveries }; (n % 3 + 1) as usize]);
        expected += if n % 2 == 0 { (n % 3 + 1) as usize } else { 0 };
    }
    assert_eq!(world.waiting(endpoint.id).await.len(), expected);
}

async fn urgent_types_and_quiet_ones_are_stamped_with_their_class(world: World) {
    let urgent = Entry {
        name: EventType::parse("alert.fire").unwrap(),
        description: "Fire".to_owned(),
        versions: vec![],
        deprecated_at: None,
        is_priority: true,
    };
    world.configure(Change::PutEventType(Box::new(urgent))).await.unwrap();
    let window = Window { start: TimeOfDay::parse("00:00").unwrap(), end: TimeOfDay::parse("06:00").unwrap(), days: Days::ALL };
    let bypass = TypePatterns::parse(["user.*"]).unwrap();
    let schedule = QuietHours::new("UTC", vec![window], vec![], TypePatterns::default(), bypass).unwrap();
    let policies = PolicyOverrides { delivery_schedule: Override::Set(schedule), ..PolicyOverrides::default() };
    let endpoint = Endpoint { policies, ..world.new_endpoint("acme") };
    world.add(&endpoint).await.unwrap();
    for event_type in ["alert.fire", "user.made", "order.paid"] {
        assert_eq!(world.publish(world.event("acme", event_type)).await, Published::Made { deliveries: 1 });
    }
    for (class, event_type) in [(Class::Priority, "alert.fire"), (Class::Exempt, "user.made"), (Class::Rest, "order.paid")] {
        let rows = world.window(endpoint.id, WindowQuery::Fresh(class), 10).await.rows;
        assert_eq!(rows.iter().map(|row| row.event_type.as_str()).collect::<Vec<_>>(), [event_type]);
        assert_eq!(rows[0].is_priority, class == Class::Priority);
    }
    // Without quiet hours nothing is held by them.
    let open = Endpoint { policies: PolicyOverrides::default(), ..endpoint.clone() };
    world.configure(Change::ReplaceEndpoint { endpoint: Box::new(open), expected_version: Some(1), secrets: None }).await.unwrap();
    let mut after = Some(0);
    let mut steps = 0;
    while let Some(from) = after {
        after = world.store.restamp(endpoint.id, from, 1).await.unwrap();
        steps += 1;
    }
    assert!(steps >= 3, "in small steps");
    assert_eq!(world.window(endpoint.id, WindowQuery::Fresh(Class::Rest), 10).await.rows, []);
    assert_eq!(world.window(endpoint.id, WindowQuery::Fresh(Class::Exempt), 10).await.rows.len(), 2);
}
