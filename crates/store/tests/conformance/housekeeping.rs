//! G3, I8: what is forgotten, and what never is.

use std::fmt::Write;

use posthaste_core::delivery::{DeadReason, State};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::event::{Event, Timing};
use posthaste_core::id::EventId;
use posthaste_core::tenant::{Retention, Tenant};
use posthaste_store::*;

use crate::world::{World, idempotency_key, later, new_event, tenant};

crate::conform! {
    i8_only_what_has_ended_long_ago_is_forgotten
    dead_letters_are_kept_as_long_as_dead_letters_are
    a_body_outlives_its_day_while_its_delivery_waits
    what_waits_too_long_is_named_to_its_owner
    keys_and_audit_entries_end
    an_erased_payload_is_gone_and_its_history_stays
    a_deleted_tenant_goes_by_and_by
    a_raised_retention_is_kept_for_what_was_there_before
    a_tenant_without_its_own_retention_follows_the_servers
    one_question_about_what_is_overdue_that_fails_does_not_hide_the_others
    i52_every_tenant_has_its_turn_and_no_step_takes_more_than_it_may
    i8_what_was_passed_over_goes_once_it_has_ended_wherever_it_is
    an_event_goes_with_the_last_of_its_deliveries
    what_is_left_of_a_deleted_tenant_is_removed
    a_tenant_that_is_created_again_keeps_its_new_rows
    what_nobody_refers_to_any_more_is_removed
    a_version_of_an_endpoint_goes_with_its_last_attempt
    versions_of_endpoints_go_with_their_tenant
}

/// Everything becomes older by so many days. Bodies in tables of their own day move with it.
fn days_pass(world: &World, days: i64) {
    let millis = days * 86_400_000;
    let mut sql = format!(
        "UPDATE deliveries SET created_at_ms = created_at_ms - {millis}, timestamp_ms = timestamp_ms - {millis},
                due_at_ms = due_at_ms - {millis}, ended_at_ms = ended_at_ms - {millis}, expires_at_ms = expires_at_ms - {millis};
         UPDATE audit SET at_ms = at_ms - {millis};
         UPDATE idempotency_keys SET expires_at_ms = expires_at_ms - {millis};
         UPDATE events SET accepted_at_ms = accepted_at_ms - {millis};
         UPDATE retained SET look_again_at_ms = look_again_at_ms - {millis};
         UPDATE endpoints SET deleted_at_ms = deleted_at_ms - {millis};
         UPDATE tenants SET deleted_at_ms = deleted_at_ms - {millis};
         UPDATE keys SET revoked_at_ms = revoked_at_ms - {millis}, expires_at_ms = expires_at_ms - {millis};
         UPDATE endpoint_versions SET replaced_at_ms = replaced_at_ms - {millis};
         UPDATE replays SET ended_at_ms = ended_at_ms - {millis};"
    );
    if world.is_postgres() {
        // A slot is four times the day, and the class.
        write!(
            sql,
            "DO $$ DECLARE old record; BEGIN
               FOR old IN SELECT DISTINCT 'events' AS t, slot FROM events UNION SELECT DISTINCT 'attempts', slot FROM attempts LOOP
                 EXECUTE format('CREATE TABLE IF NOT EXISTS %s_s%s PARTITION OF %s FOR VALUES IN (%s)', old.t, old.slot - 4 * {days}, old.t, old.slot - 4 * {days});
               END LOOP; END $$;
             UPDATE events SET slot = slot - 4 * {days}; UPDATE attempts SET slot = slot - 4 * {days};
             UPDATE deliveries SET event_slot = event_slot - 4 * {days};
             UPDATE idempotency_keys SET event_slot = event_slot - 4 * {days};"
        )
        .unwrap();
    }
    world.tamper(&sql);
}

async fn sweep_all(world: &World) -> CleanupStep {
    let mut total = CleanupStep::default();
    for _ in 0..1_000 {
        let swept = world.store.clean_up(Housekeeping { rows_max: 2, ..Housekeeping::default() }).await.unwrap();
        if swept.is_nothing() {
            return total;
        }
        total.deliveries += swept.deliveries;
        total.events += swept.events;
        total.idempotency_keys += swept.idempotency_keys;
        total.audit += swept.audit;
        total.replays += swept.replays;
        total.endpoints += swept.endpoints;
        total.endpoint_versions += swept.endpoint_versions;
        total.tenants += swept.tenants;
        total.keys += swept.keys;
        total.lanes += swept.lanes;
        total.commands += swept.commands;
    }
    panic!("it never ends: {total:?}");
}

async fn keep_for(world: &World, of: &str, days: u32) {
    let tenant = Tenant { retention: Some(Retention::days(days).unwrap()), ..Tenant::new(tenant(of)) };
    world.configure(Change::PutTenant { tenant: Box::new(tenant), extra: "{}".to_owned() }).await.unwrap();
}

async fn i8_only_what_has_ended_long_ago_is_forgotten(world: World) {
    world.endpoint("acme").await;
    keep_for(&world, "acme", 7).await;
    let mut rows = Vec::new();
    for _ in 0..5 {
        rows.push(world.delivery("acme").await);
    }
    for row in &rows[..4] {
        world.deliver(row).await;
    }
    assert!(sweep_all(&world).await.is_nothing(), "nothing is old enough");
    days_pass(&world, 10);
    let young = world.delivery("acme").await;
    world.deliver(&young).await;
    assert_eq!(sweep_all(&world).await.deliveries, 4);
    for row in &rows[..4] {
        assert_eq!(world.store.delivery(None, row.id).await.unwrap(), None);
        assert_eq!(world.store.attempts(row.id).await.unwrap(), []);
        assert_eq!(world.store.event(Some(tenant("acme")), row.event.clone()).await.unwrap(), None);
    }
    assert!(matches!(world.row(&rows[4]).await.state, State::Waiting { .. }), "it still waits");
    assert!(world.store.bodies(vec![rows[4].seq]).await.unwrap()[0].event.is_ok(), "with its body");
    assert!(matches!(world.row(&young).await.state, State::Delivered { .. }));
    // Once it has ended, and enough time has passed, it goes too.
    world.deliver(&rows[4]).await;
    assert_eq!(sweep_all(&world).await.deliveries, 0);
    days_pass(&world, 10);
    assert_eq!(sweep_all(&world).await.deliveries, 2);
}

async fn a_tenant_without_its_own_retention_follows_the_servers(world: World) {
    for of in ["acme", "other"] {
        world.endpoint(of).await;
    }
    keep_for(&world, "other", 90).await;
    let [ours, others] = [world.delivery("acme").await, world.delivery("other").await];
    for row in [&ours, &others] {
        world.deliver(row).await;
    }
    days_pass(&world, 10);
    assert_eq!(sweep_all(&world).await.deliveries, 0, "30 days unless set");
    let retention = Retention::days(7).unwrap();
    let options = Options { retention, ..world.options.clone() };
    let world = world.reopened(options).await;
    // One that comes into being under the new setting, as one that was there before.
    world.endpoint("born").await;
    let young = world.delivery("born").await;
    world.deliver(&young).await;
    assert_eq!(sweep_all(&world).await.deliveries, 1);
    assert_eq!(world.store.delivery(None, ours.id).await.unwrap(), None);
    days_pass(&world, 10);
    assert_eq!(sweep_all(&world).await.deliveries, 1);
    assert_eq!(world.store.delivery(None, young.id).await.unwrap(), None);
    assert!(world.store.delivery(None, others.id).await.unwrap().is_some(), "it sets its own");
    // And back: what is kept follows from the setting, not from when the tenant was made.
    let options = Options { retention: Retention::default(), ..world.options.clone() };
    let world = world.reopened(options).await;
    let kept = world.delivery("born").await;
    world.deliver(&kept).await;
    days_pass(&world, 10);
    assert_eq!(sweep_all(&world).await.deliveries, 0);
}

async fn dead_letters_are_kept_as_long_as_dead_letters_are(world: World) {
    world.endpoint("acme").await;
    keep_for(&world, "acme", 7).await;
    let row = world.delivery("acme").await;
    world.try_once(&row, 1, 404, State::Dead { at: world.store.now(), reason: DeadReason::PermanentFailure }).await;
    days_pass(&world, 10);
    assert_eq!(sweep_all(&world).await.deliveries, 0);
    assert_eq!(world.store.attempts(row.id).await.unwrap().len(), 1, "with its attempts");
    let made = world.store.redeliver(row.id, world.audit("retry")).await.unwrap().unwrap();
    assert!(world.store.bodies(vec![made.seq]).await.unwrap()[0].event.is_ok(), "and it can still be sent");
    world.deliver(&made).await;
    days_pass(&world, 25);
    assert_eq!(sweep_all(&world).await.deliveries, 2);
}

async fn a_body_outlives_its_day_while_its_delivery_waits(world: World) {
    let endpoint = world.endpoint("acme").await;
    keep_for(&world, "acme", 7).await;
    let event = world.event("acme", "order.paid");
    let (row, other) = (world.delivery_of(event.clone()).await, world.delivery("acme").await);
    world.deliver(&other).await;
    let paused =
        posthaste_core::endpoint::Endpoint { status: posthaste_core::endpoint::Status::Paused { until: None }, ..endpoint.clone() };
    world.configure(Change::ReplaceEndpoint { endpoint: Box::new(paused), expected_version: None, secrets: None }).await.unwrap();
    days_pass(&world, 30);
    assert!(sweep_all(&world).await.events >= 1);
    assert_eq!(world.store.event(Some(tenant("acme")), other.event.clone()).await.unwrap(), None);
    let body = world.store.bodies(vec![row.seq]).await.unwrap().remove(0).event.unwrap();
    assert_eq!((body.data, body.id), (event.data, event.id), "to the byte");
    world.deliver(&row).await;
    assert!(matches!(world.row(&row).await.state, State::Delivered { .. }));
}

async fn what_waits_too_long_is_named_to_its_owner(world: World) {
    let endpoint = world.endpoint("acme").await;
    keep_for(&world, "acme", 7).await;
    let now = world.store.now();
    let timing = Timing::new(now, None, Some(later(now, 60))).unwrap();
    let expiring = world.delivery_of(Event { timing, ..world.event("acme", "order.paid") }).await;
    let patient = world.delivery("acme").await;
    assert_eq!(world.store.overdue(10).await.unwrap(), []);
    world.tamper(&format!("UPDATE deliveries SET expires_at_ms = 1 WHERE seq = {}", expiring.seq));
    let named = |seq, why| Overdue {
        endpoint: endpoint.id,
        delivery: if seq == expiring.seq { expiring.id } else { patient.id },
        seq,
        why,
    };
    assert_eq!(world.store.overdue(10).await.unwrap(), [named(expiring.seq, OverdueReason::Expired)]);
    let state = State::Dead { at: now, reason: DeadReason::Expired };
    let record = world.record(&expiring, DeliveryChange::Moved { seq: expiring.seq, state, audit: None });
    world.store.record(vec![record]).await.unwrap();
    assert_eq!(world.store.overdue(10).await.unwrap(), []);
    days_pass(&world, 8);
    sweep_all(&world).await;
    assert_eq!(world.store.overdue(10).await.unwrap(), [named(patient.seq, OverdueReason::Expired)], "longer than retention");
    world.configure(Change::DeleteEndpoint { endpoint: endpoint.id }).await.unwrap();
    assert!(world.store.overdue(10).await.unwrap().contains(&named(patient.seq, OverdueReason::EndpointDeleted)));
}

async fn keys_and_audit_entries_end(world: World) {
    for n in 0..5 {
        let keyed = Event { idempotency_key: idempotency_key(&format!("k{n}")), ..world.event("acme", "order.paid") };
        world.publish(keyed).await;
    }
    world.endpoint("acme").await;
    days_pass(&world, 2);
    let swept = sweep_all(&world).await;
    assert_eq!((swept.idempotency_keys, swept.audit), (5, 0));
    days_pass(&world, 400);
    assert_eq!(sweep_all(&world).await.audit, 1);
}

async fn an_erased_payload_is_gone_and_its_history_stays(world: World) {
    world.endpoint("acme").await;
    let row = world.delivery("acme").await;
    let erase = async |of: &str| world.store.erase(Some(tenant(of)), row.event.clone(), world.audit("erase")).await.unwrap();
    assert!(!erase("globex").await, "another tenant's is not there");
    assert!(erase("acme").await);
    assert!(!erase("acme").await, "once");
    let event = world.store.event(Some(tenant("acme")), row.event.clone()).await.unwrap().unwrap();
    assert!(event.data.is_none() && event.erased_at.is_some());
    assert!(world.store.bodies(vec![row.seq]).await.unwrap()[0].event.is_err(), "it is never sent");
    world.deliver(&row).await;
    assert_eq!(world.store.redeliver(row.id, world.audit("retry")).await.unwrap(), Err(Refusal::PayloadGone));
}

async fn a_deleted_tenant_goes_by_and_by(world: World) {
    world.endpoint("acme").await;
    world.endpoint("globex").await;
    let (mine, theirs) = (world.delivery("acme").await, world.delivery("globex").await);
    world.deliver(&mine).await;
    world.deliver(&theirs).await;
    world.configure(Change::DeleteTenant { tenant: tenant("acme") }).await.unwrap();
    assert_eq!(sweep_all(&world).await.deliveries, 1);
    assert_eq!(world.store.delivery(None, mine.id).await.unwrap(), None);
    assert!(world.store.delivery(None, theirs.id).await.unwrap().is_some());
}

async fn a_raised_retention_is_kept_for_what_was_there_before(world: World) {
    keep_for(&world, "acme", 7).await;
    let nobodys = chosen(world.event("acme", "order.paid"), "nobodys");
    assert_eq!(world.publish_all(vec![nobodys]).await, [Published::Made { deliveries: 0 }]);
    world.endpoint("acme").await;
    let named = chosen(world.event("acme", "order.paid"), "named");
    assert_eq!(world.publish_all(vec![named]).await, [Published::Made { deliveries: 1 }]);
    let ids = ["nobodys", "named"].map(|id| EventId::parse(id).unwrap());
    let row = world.deliveries_of(&ids[1]).await.remove(0);
    world.deliver(&row).await;
    days_pass(&world, 5);
    keep_for(&world, "acme", 30).await;
    days_pass(&world, 15);
    assert_eq!(sweep_all(&world).await, CleanupStep::default(), "twenty days are less than thirty");
    let found = async |id: &EventId| world.store.event(Some(tenant("acme")), id.clone()).await.unwrap();
    for id in &ids {
        assert!(found(id).await.unwrap().data.is_some(), "{id} is there, with its payload");
    }
    assert_eq!(world.store.attempts(row.id).await.unwrap().len(), 1, "with its attempts");
    assert_eq!(
        world.store.redeliver(row.id, world.audit("retry")).await.unwrap().unwrap().event,
        row.event,
        "and can be sent again"
    );
    // What was kept is forgotten when its time comes.
    let again = world.deliveries_of(&ids[1]).await.remove(0);
    world.deliver(&again).await;
    days_pass(&world, 40);
    world.tamper(if world.is_postgres() {
        "UPDATE events_kept SET accepted_at_ms = accepted_at_ms - 3456000000"
    } else {
        "UPDATE tenants SET id = id"
    });
    let swept = sweep_all(&world).await;
    assert_eq!(swept.deliveries, 2);
    for id in &ids {
        assert_eq!(found(id).await, None);
    }
}

/// How many deliveries a tenant has, up to a thousand.
async fn count(world: &World, of: &str) -> usize {
    let query = DeliveryQuery { tenant: Some(tenant(of)), limit: 1_000, ..DeliveryQuery::default() };
    world.store.deliveries(query).await.unwrap().rows.len()
}

async fn publish_many(world: &World, of: &str, number: usize) {
    let events = (0..number).map(|_| new_event(world.event(of, "order.paid"))).collect();
    let published = world.publish_all(events).await;
    assert!(published.iter().all(|answer| *answer == Published::Made { deliveries: 1 }));
}

/// Ends everything that waits, without an attempt.
fn deliver_all(world: &World) {
    world.tamper(
        "UPDATE deliveries SET status = 'delivered', ended_at_ms = created_at_ms, due_at_ms = NULL WHERE status = 'waiting'",
    );
}

async fn i52_every_tenant_has_its_turn_and_no_step_takes_more_than_it_may(world: World) {
    const EVENTS: usize = 500;
    let names: Vec<String> = (0..40).map(|number| format!("t{number:02}")).collect();
    for (number, name) in names.iter().enumerate() {
        // The first of each pair keeps things longer: its neighbour has its turn all the same.
        keep_for(&world, name, if number.is_multiple_of(2) { 90 } else { 7 }).await;
        world.endpoint(name).await;
        publish_many(&world, name, EVENTS).await;
    }
    deliver_all(&world);
    days_pass(&world, 10);
    let short: Vec<&String> = names.iter().skip(1).step_by(2).collect();
    let rows_max = 400;
    let step = async || {
        let swept = world.store.clean_up(Housekeeping { rows_max, ..Housekeeping::default() }).await.unwrap();
        assert!(swept.deliveries <= rows_max as u64, "{swept:?}");
        swept
    };
    let mut gone = 0;
    while gone < 20 * 60 {
        let swept = step().await;
        assert!(!swept.is_nothing(), "{gone} are gone");
        assert!(swept.behind > std::time::Duration::from_hours(2 * 24), "it knows how late it is: {swept:?}");
        gone += swept.deliveries;
    }
    for name in &short {
        let left = count(&world, name).await;
        assert!(left < EVENTS && left > 0, "{name} has {left}: each has had some turns, and none has had them all");
    }
    while !step().await.is_nothing() {}
    for name in &names {
        let expected = if short.contains(&name) { 0 } else { EVENTS };
        assert_eq!(count(&world, name).await, expected, "{name}");
    }
}

async fn i8_what_was_passed_over_goes_once_it_has_ended_wherever_it_is(world: World) {
    world.endpoint("acme").await;
    keep_for(&world, "acme", 7).await;
    publish_many(&world, "acme", 300).await;
    let rows = world.store.deliveries(DeliveryQuery { limit: 300, ..DeliveryQuery::default() }).await.unwrap().rows;
    days_pass(&world, 10);
    assert_eq!(sweep_all(&world).await.deliveries, 0, "all of them wait");
    // Neither the first nor the last of what was passed over.
    world.deliver(&rows[60]).await;
    days_pass(&world, 3);
    assert_eq!(sweep_all(&world).await.deliveries, 0, "it has not been kept for long enough");
    days_pass(&world, 5);
    assert_eq!(sweep_all(&world).await.deliveries, 1);
    assert_eq!(world.store.delivery(None, rows[60].id).await.unwrap(), None);
    assert_eq!(count(&world, "acme").await, 299, "I8: what waits is never deleted");
    assert_eq!(world.store.overdue(500).await.unwrap().len(), 299, "and its owner is told to end it");
}

async fn an_event_goes_with_the_last_of_its_deliveries(world: World) {
    world.endpoint("acme").await;
    world.endpoint("acme").await;
    // Not a retention that PostgreSQL has a class for: its events do not go with their day.
    keep_for(&world, "acme", 5).await;
    let event = Event { idempotency_key: idempotency_key("k"), ..world.event("acme", "order.paid") };
    let (id, again) = (event.id.clone(), event.clone());
    let event = NewEvent { is_id_chosen: true, ..new_event(event) };
    assert_eq!(world.publish_all(vec![event]).await, [Published::Made { deliveries: 2 }]);
    let rows = world.deliveries_of(&id).await;
    world.deliver(&rows[0]).await;
    days_pass(&world, 6);
    assert_eq!(sweep_all(&world).await.deliveries, 1);
    assert_eq!(world.deliveries_of(&id).await.len(), 1);
    assert!(world.store.bodies(vec![rows[1].seq]).await.unwrap()[0].event.is_ok(), "the other one still has its body");
    world.deliver(&rows[1]).await;
    days_pass(&world, 6);
    let swept = sweep_all(&world).await;
    assert_eq!((swept.deliveries, swept.events), (1, 1));
    assert_eq!(world.store.event(Some(tenant("acme")), id.clone()).await.unwrap(), None);
    // Neither its key nor the id that was chosen for it is remembered.
    let again = NewEvent { is_id_chosen: true, ..new_event(again) };
    assert_eq!(world.publish_all(vec![again]).await, [Published::Made { deliveries: 2 }]);
}

async fn what_is_left_of_a_deleted_tenant_is_removed(world: World) {
    for of in ["acme", "globex"] {
        world.endpoint(of).await;
        let keyed = Event { idempotency_key: idempotency_key("k"), ..world.event(of, "order.paid") };
        let row = world.delivery_of(keyed).await;
        world.deliver(&row).await;
    }
    let nobodys = world.event("acme", "order.paid");
    world.tamper("INSERT INTO lanes (endpoint, document) SELECT id, '{}' FROM endpoints");
    world.configure(Change::DeleteTenant { tenant: tenant("acme") }).await.unwrap();
    let before = world.store.tenant_versions(vec![tenant("globex")]).await.unwrap()[0];
    let swept = sweep_all(&world).await;
    assert_eq!((swept.deliveries, swept.endpoints, swept.tenants), (1, 0, 0), "deleted ones are shown for a day");
    days_pass(&world, 2);
    let swept = sweep_all(&world).await;
    assert_eq!((swept.endpoints, swept.tenants), (1, 1), "{swept:?}");
    assert_eq!(world.store.tenant_versions(vec![tenant("globex")]).await.unwrap(), [before], "others stay as they are");
    assert_eq!(world.store.endpoints(EndpointQuery { limit: 10, ..EndpointQuery::default() }).await.unwrap().len(), 1);
    // Created again, it has a version that it never had: what somebody has cached of it is not the present.
    world.endpoint("acme").await;
    assert!(world.store.tenant_versions(vec![tenant("acme")]).await.unwrap()[0] > 2);
    assert_eq!(world.publish(nobodys).await, Published::Made { deliveries: 1 });
}

async fn a_tenant_that_is_created_again_keeps_its_new_rows(world: World) {
    world.endpoint("acme").await;
    let keyed = Event { idempotency_key: idempotency_key("k"), ..world.event("acme", "order.paid") };
    let old = world.delivery_of(keyed).await;
    world.deliver(&old).await;
    world.configure(Change::DeleteTenant { tenant: tenant("acme") }).await.unwrap();
    world.endpoint("acme").await;
    let new = world.delivery("acme").await;
    world.deliver(&new).await;
    assert_eq!(sweep_all(&world).await.deliveries, 1);
    assert_eq!(world.store.delivery(None, old.id).await.unwrap(), None, "what the deleted one left goes");
    assert!(world.store.delivery(None, new.id).await.unwrap().is_some(), "what the new one has stays");
    assert!(world.store.event(Some(tenant("acme")), new.event.clone()).await.unwrap().is_some());
    days_pass(&world, 2);
    assert_eq!(sweep_all(&world).await.tenants, 0, "it is not deleted");
    assert!(world.store.tenant(tenant("acme")).await.unwrap().is_some());
    let keyed = Event { idempotency_key: idempotency_key("k"), ..world.event("acme", "order.paid") };
    assert_eq!(world.publish(keyed).await, Published::Made { deliveries: 1 }, "its key is free");
}

async fn what_nobody_refers_to_any_more_is_removed(world: World) {
    let endpoint = world.endpoint("acme").await;
    let kept = world.endpoint("acme").await;
    let rows: Vec<DeliveryRow> = {
        let event = world.event("acme", "order.paid");
        let id = event.id.clone();
        assert_eq!(world.publish(event).await, Published::Made { deliveries: 2 });
        world.deliveries_of(&id).await
    };
    for row in &rows {
        world.deliver(row).await;
    }
    let key = |name: &str, expires_at| Key {
        id: posthaste_core::id::KeyId::from_unique(world.store.unique()),
        hash: KeyHash(rand::random()),
        name: name.to_owned(),
        tenant: None,
        scopes: vec![KeyScope::ALL[0]],
        created_at: world.store.now(),
        expires_at,
        revoked_at: None,
        last_used_at: None,
    };
    let (revoked, expiring, used) = (key("revoked", None), key("expiring", Some(later(world.store.now(), 60))), key("used", None));
    for key in [&revoked, &expiring, &used] {
        world.configure(Change::CreateKey(Box::new(key.clone()))).await.unwrap();
    }
    world.configure(Change::RevokeKey { key: revoked.id, tenant: None }).await.unwrap();
    let new = NewReplay {
        id: posthaste_core::id::ReplayId::from_unique(world.store.unique()),
        filter: ReplayFilter { tenant: Some(tenant("acme")), ..ReplayFilter::default() },
        reason: "test".to_owned(),
        requested_by: "key_1".to_owned(),
        rate_per_minute: 1,
        idempotency_key: None,
    };
    let replay = world.store.create_replay(new, world.audit("replay")).await.unwrap();
    world.store.cancel_replay(replay.id, world.audit("cancel")).await.unwrap();
    world.configure(Change::DeleteEndpoint { endpoint: endpoint.id }).await.unwrap();
    world.tamper("INSERT INTO lanes (endpoint, document) SELECT id, '{}' FROM endpoints");
    if world.is_postgres() {
        world.tamper(
            "INSERT INTO lanes_shown (endpoint, at_ms, document) SELECT id, 1, '{}' FROM endpoints;
             INSERT INTO lanes_shown (endpoint, at_ms, document) VALUES (decode(repeat('ff', 16), 'hex'), 1, '{}');
             INSERT INTO lanes (endpoint, document) VALUES (decode(repeat('ff', 16), 'hex'), '{}');
             INSERT INTO commands (id, partition, document, created_at) VALUES (decode(repeat('ff', 16), 'hex'), 1, '{}', now() - interval '1 hour')",
        );
    } else {
        world.tamper("INSERT INTO lanes (endpoint, document) VALUES (x'ffffffffffffffffffffffffffffffff', '{}')");
    }
    days_pass(&world, 10);
    let swept = sweep_all(&world).await;
    assert_eq!((swept.endpoints, swept.keys, swept.replays), (0, 0, 0), "its history is kept, and so are keys and replays");
    let (lanes, commands) = if world.is_postgres() { (2, 1) } else { (1, 0) };
    assert_eq!(
        (swept.lanes, swept.commands),
        (lanes, commands),
        "of an endpoint that never was, and asked by somebody who is gone"
    );
    assert!(world.store.endpoint(None, endpoint.id).await.unwrap().is_some());
    days_pass(&world, 25);
    let swept = sweep_all(&world).await;
    assert_eq!((swept.deliveries, swept.endpoints, swept.keys, swept.replays), (2, 1, 2, 1), "{swept:?}");
    assert_eq!(world.store.endpoint(None, endpoint.id).await.unwrap(), None, "with its secrets");
    assert!(world.store.endpoint(None, kept.id).await.unwrap().is_some());
    assert_eq!(world.store.replay(None, replay.id).await.unwrap(), None);
    let keys = world.store.keys(None, 10).await.unwrap();
    assert_eq!(keys.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["used"]);
    let audit = world.store.audit(None, None, 100).await.unwrap();
    assert!(audit.iter().any(|row| row.audit.action == "replay"), "the audit log is kept for longer");
}

fn chosen(event: Event, id: &str) -> NewEvent {
    let event = Event { id: EventId::parse(id).unwrap(), ..event };
    NewEvent { is_id_chosen: true, ..new_event(event) }
}

/// A query that fails stands for one that takes too long, too: both end with an error.
async fn one_question_about_what_is_overdue_that_fails_does_not_hide_the_others(world: World) {
    world.endpoint("acme").await;
    let gone = world.endpoint("acme").await;
    let now = world.store.now();
    let timing = Timing::new(now, None, Some(later(now, 60))).unwrap();
    assert_eq!(world.publish(Event { timing, ..world.event("acme", "order.paid") }).await, Published::Made { deliveries: 2 });
    world.configure(Change::DeleteEndpoint { endpoint: gone.id }).await.unwrap();
    world.tamper("UPDATE deliveries SET expires_at_ms = 1");
    let whys = async || {
        let overdue = world.store.overdue(100).await.unwrap();
        overdue.into_iter().map(|overdue| format!("{:?}", overdue.why)).collect::<std::collections::BTreeSet<_>>()
    };
    let all = whys().await;
    assert_eq!(all.len(), 2, "{all:?}");
    world.tamper("ALTER TABLE tenants RENAME COLUMN swept_to TO elsewhere");
    assert_eq!(whys().await, all, "without what has waited for longer than its tenant keeps things");
    world.tamper(
        "ALTER TABLE tenants RENAME COLUMN elsewhere TO swept_to; ALTER TABLE endpoints RENAME COLUMN deleted_at_ms TO elsewhere",
    );
    assert_eq!(whys().await.len(), 1, "without what waits at deleted endpoints");
    world.tamper(
        "ALTER TABLE deliveries RENAME COLUMN expires_at_ms TO elsewhere; ALTER TABLE tenants RENAME COLUMN swept_to TO elsewhere",
    );
    assert!(matches!(world.store.overdue(100).await, Err(Error::Unavailable(_))), "nothing could be asked");
}

/// Gives an endpoint another URL, several times.
async fn change_url(world: &World, endpoint: &Endpoint, times: u32) {
    for n in 0..times {
        let changed = Endpoint { url: format!("https://example.com/{n}/{}", world.store.now().as_millis()), ..endpoint.clone() };
        let change = Change::ReplaceEndpoint { endpoint: Box::new(changed), expected_version: None, secrets: None };
        world.configure(change).await.unwrap();
    }
}

async fn a_version_of_an_endpoint_goes_with_its_last_attempt(world: World) {
    let endpoint = world.endpoint("acme").await;
    keep_for(&world, "acme", 7).await;
    let old = world.delivery("acme").await;
    world.deliver(&old).await;
    change_url(&world, &endpoint, 5).await;
    assert!(sweep_all(&world).await.is_nothing(), "its attempt is there");
    days_pass(&world, 1);
    let young = world.delivery("acme").await;
    world.deliver(&young).await;
    change_url(&world, &endpoint, 1).await;
    assert_eq!(sweep_all(&world).await.endpoint_versions, 0, "still");
    days_pass(&world, 6);
    let swept = sweep_all(&world).await;
    assert_eq!((swept.deliveries, swept.endpoint_versions), (1, 5), "the old attempt is gone, the young one is not");
    assert_eq!(world.count("endpoint_versions"), 1);
    days_pass(&world, 7);
    let swept = sweep_all(&world).await;
    assert_eq!((swept.deliveries, swept.endpoint_versions, swept.endpoints), (1, 1, 0));
    // Of a deleted endpoint, too.
    let last = world.delivery("acme").await;
    world.deliver(&last).await;
    change_url(&world, &endpoint, 1).await;
    world.configure(Change::DeleteEndpoint { endpoint: endpoint.id }).await.unwrap();
    days_pass(&world, 2);
    assert_eq!(sweep_all(&world).await.endpoint_versions, 0, "history shows it");
    days_pass(&world, 7);
    let swept = sweep_all(&world).await;
    assert_eq!((swept.deliveries, swept.endpoint_versions, swept.endpoints), (1, 1, 1));
}

async fn versions_of_endpoints_go_with_their_tenant(world: World) {
    for of in ["acme", "globex"] {
        let endpoint = world.endpoint(of).await;
        let row = world.delivery(of).await;
        world.deliver(&row).await;
        change_url(&world, &endpoint, 1).await;
    }
    world.configure(Change::DeleteTenant { tenant: tenant("acme") }).await.unwrap();
    let swept = sweep_all(&world).await;
    assert_eq!((swept.deliveries, swept.endpoint_versions), (1, 1));
    assert_eq!(world.count("endpoint_versions"), 1, "of the other tenant");
}
