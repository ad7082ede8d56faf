//! G3, I8: what is forgotten, and what never is.

use std::fmt::Write;

use posthaste_core::delivery::{DeadReason, State};
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
}

/// Everything becomes older by so many days. Bodies in tables of their own day move with it.
fn days_pass(world: &World, days: i64) {
    let millis = days * 86_400_000;
    let mut sql = format!(
        "UPDATE deliveries SET created_at_ms = created_at_ms - {millis}, timestamp_ms = timestamp_ms - {millis},
                due_at_ms = due_at_ms - {millis}, ended_at_ms = ended_at_ms - {millis}, expires_at_ms = expires_at_ms - {millis};
         UPDATE audit SET at_ms = at_ms - {millis};
         UPDATE idempotency_keys SET expires_at_ms = expires_at_ms - {millis};
         UPDATE events SET accepted_at_ms = accepted_at_ms - {millis};"
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

async fn sweep_all(world: &World) -> SweptAway {
    let mut total = SweptAway::default();
    for _ in 0..50 {
        let swept = world.store.sweep_away(Housekeeping { rows_max: 2, ..Housekeeping::default() }).await.unwrap();
        if swept.is_nothing() {
            return total;
        }
        total.deliveries += swept.deliveries;
        total.events += swept.events;
        total.idempotency_keys += swept.idempotency_keys;
        total.audit += swept.audit;
    }
    panic!("it never ends: {total:?}");
}

async fn keep_for(world: &World, of: &str, days: u32) {
    let tenant = Tenant { retention: Retention::days(days).unwrap(), ..Tenant::new(tenant(of)) };
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
        assert_eq!(world.store.delivery(row.id).await.unwrap(), None);
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

async fn dead_letters_are_kept_as_long_as_dead_letters_are(world: World) {
    world.endpoint("acme").await;
    keep_for(&world, "acme", 7).await;
    let row = world.delivery("acme").await;
    world.try_once(&row, 1, 404, State::Dead { at: world.store.now(), reason: DeadReason::PermanentFailure }).await;
    days_pass(&world, 10);
    assert_eq!(sweep_all(&world).await.deliveries, 0);
    assert_eq!(world.store.attempts(row.id).await.unwrap().len(), 1, "with its attempts");
    let made = world.store.repeat(row.id, world.audit("retry")).await.unwrap().unwrap();
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
    let record = world.record(&expiring, Recorded::Moved { seq: expiring.seq, state, audit: None });
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
    assert_eq!(world.store.repeat(row.id, world.audit("retry")).await.unwrap(), Err(Refusal::PayloadGone));
}

async fn a_deleted_tenant_goes_by_and_by(world: World) {
    world.endpoint("acme").await;
    world.endpoint("globex").await;
    let (mine, theirs) = (world.delivery("acme").await, world.delivery("globex").await);
    world.deliver(&mine).await;
    world.deliver(&theirs).await;
    world.configure(Change::DeleteTenant { tenant: tenant("acme") }).await.unwrap();
    assert_eq!(sweep_all(&world).await.deliveries, 1);
    assert_eq!(world.store.delivery(mine.id).await.unwrap(), None);
    assert!(world.store.delivery(theirs.id).await.unwrap().is_some());
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
    assert_eq!(sweep_all(&world).await, SweptAway::default(), "twenty days are less than thirty");
    let found = async |id: &EventId| world.store.event(Some(tenant("acme")), id.clone()).await.unwrap();
    for id in &ids {
        assert!(found(id).await.unwrap().data.is_some(), "{id} is there, with its payload");
    }
    assert_eq!(world.store.attempts(row.id).await.unwrap().len(), 1, "with its attempts");
    assert_eq!(world.store.repeat(row.id, world.audit("retry")).await.unwrap().unwrap().event, row.event, "and can be sent again");
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

fn chosen(event: Event, id: &str) -> NewEvent {
    let event = Event { id: EventId::parse(id).unwrap(), ..event };
    NewEvent { is_id_chosen: true, ..new_event(event) }
}
