//! I51: numbers of rows are used once, and a key answers only with an event of its own tenant that still exists.

use posthaste_core::delivery::{CancelReason, State};
use posthaste_core::event::Event;
use posthaste_core::id::EventId;
use posthaste_core::scheduler::Seq;
use posthaste_store::*;

use crate::world::{World, idempotency_key, new_event, tenant};

crate::conform! {
    i51_a_key_of_a_deleted_tenant_never_answers_with_the_event_of_another_tenant
    i51_a_tenant_that_is_created_again_publishes_with_its_old_key_before_any_cleanup
    i51_a_tenant_that_is_created_again_chooses_an_old_id_before_any_cleanup
    i51_a_publish_alone_brings_a_deleted_tenant_back_without_its_keys
    i51_an_id_that_the_server_made_for_a_deleted_tenant_can_be_chosen_again
    i51_cleaning_up_a_deleted_tenant_leaves_the_keys_of_its_successor
    i51_keys_and_chosen_ids_are_deleted_with_their_event
    i51_numbers_of_deliveries_are_not_used_again_after_deletion_and_restart
    i51_numbers_of_audit_entries_are_not_used_again
    i51_a_new_endpoint_is_not_sent_what_it_missed_of_a_deleted_tenant
    i51_a_body_is_read_for_its_own_tenant_only
}

async fn delete_tenant(world: &World, id: &str) {
    world.configure(Change::DeleteTenant { tenant: tenant(id) }).await.unwrap();
}

/// Ends what waits at endpoints that were deleted, and deletes everything that may be deleted.
async fn clean_up(world: &World) {
    for overdue in world.store.overdue(1_000).await.unwrap() {
        let at = world.store.now();
        let state = State::Cancelled { at, reason: CancelReason::EndpointDeleted };
        let row = world.store.deliveries_at(vec![overdue.seq]).await.unwrap().remove(0);
        let record = world.record(&row, DeliveryChange::Moved { seq: overdue.seq, state, audit: None });
        assert_eq!(world.store.record(vec![record]).await.unwrap(), [RecordResult::Done]);
    }
    // Nothing is deleted in the millisecond in which it ended.
    let now = world.store.now();
    while world.store.now() == now {
        tokio::task::yield_now().await;
    }
    while !world.store.clean_up(Housekeeping::default()).await.unwrap().is_nothing() {}
}

fn keyed(world: &World, of: &str) -> Event {
    Event { idempotency_key: idempotency_key("k"), ..world.event(of, "order.paid") }
}

fn chosen(world: &World, of: &str, id: &str) -> NewEvent {
    NewEvent { is_id_chosen: true, ..new_event(Event { id: EventId::parse(id).unwrap(), ..world.event(of, "order.paid") }) }
}

async fn i51_a_key_of_a_deleted_tenant_never_answers_with_the_event_of_another_tenant(world: World) {
    world.endpoint("acme").await;
    world.endpoint("globex").await;
    assert_eq!(world.publish(keyed(&world, "acme")).await, Published::Made { deliveries: 1 });
    delete_tenant(&world, "acme").await;
    clean_up(&world).await;
    // On SQLite, without care, it has the number of the event that is gone.
    assert_eq!(world.publish(world.event("globex", "order.paid")).await, Published::Made { deliveries: 1 });
    world.endpoint("acme").await;
    let again = keyed(&world, "acme");
    let id = again.id.clone();
    assert_eq!(world.publish(again).await, Published::Made { deliveries: 1 });
    assert_eq!(world.deliveries_of(&id).await.len(), 1);
}

async fn i51_a_tenant_that_is_created_again_publishes_with_its_old_key_before_any_cleanup(world: World) {
    world.endpoint("acme").await;
    let first = keyed(&world, "acme");
    assert_eq!(world.publish(first.clone()).await, Published::Made { deliveries: 1 });
    delete_tenant(&world, "acme").await;
    world.endpoint("acme").await;
    let again = keyed(&world, "acme");
    assert_eq!(world.publish(again.clone()).await, Published::Made { deliveries: 1 });
    assert_eq!(world.deliveries_of(&again.id).await.len(), 1);
    let duplicate = Published::Duplicate {
        event: again.id.clone(),
        event_type: again.event_type.clone(),
        timestamp: again.timestamp,
        deliveries: 1,
    };
    assert_eq!(world.publish(keyed(&world, "acme")).await, duplicate, "from then on it is the new event's key");
    let other_body = NewEvent { fingerprint: [8; 32], ..new_event(keyed(&world, "acme")) };
    assert_eq!(
        world.publish_all(vec![other_body]).await,
        [Published::Conflict { event: again.id, by: DuplicateBy::IdempotencyKey }]
    );
}

async fn i51_a_tenant_that_is_created_again_chooses_an_old_id_before_any_cleanup(world: World) {
    world.endpoint("acme").await;
    assert_eq!(world.publish_all(vec![chosen(&world, "acme", "order-1")]).await, [Published::Made { deliveries: 1 }]);
    delete_tenant(&world, "acme").await;
    let endpoint = world.endpoint("acme").await;
    let again = chosen(&world, "acme", "order-1");
    assert_eq!(world.publish_all(vec![again.clone()]).await, [Published::Made { deliveries: 1 }]);
    let id = EventId::parse("order-1").unwrap();
    let row = world.store.event(Some(tenant("acme")), id.clone()).await.unwrap().unwrap();
    assert_eq!((row.accepted_at, row.deliveries), (again.event.accepted_at, [1, 0, 0, 0]), "the newest is meant");
    assert_eq!(world.waiting(endpoint.id).await.len(), 1);
    let published = world.publish_all(vec![chosen(&world, "acme", "order-1")]).await;
    assert!(matches!(&published[0], Published::Duplicate { event, deliveries: 1, .. } if *event == id), "{published:?}");
}

async fn i51_a_publish_alone_brings_a_deleted_tenant_back_without_its_keys(world: World) {
    world.endpoint("acme").await;
    assert_eq!(world.publish(keyed(&world, "acme")).await, Published::Made { deliveries: 1 });
    delete_tenant(&world, "acme").await;
    let again = keyed(&world, "acme");
    assert_eq!(world.publish(again.clone()).await, Published::Made { deliveries: 0 });
    let duplicate = world.publish(keyed(&world, "acme")).await;
    assert!(matches!(&duplicate, Published::Duplicate { event, .. } if *event == again.id), "{duplicate:?}");
}

async fn i51_an_id_that_the_server_made_for_a_deleted_tenant_can_be_chosen_again(world: World) {
    world.endpoint("acme").await;
    let made = world.event("acme", "order.paid");
    let id = made.id.as_str().to_owned();
    assert_eq!(world.publish(made).await, Published::Made { deliveries: 1 });
    delete_tenant(&world, "acme").await;
    world.endpoint("acme").await;
    assert_eq!(world.publish_all(vec![chosen(&world, "acme", &id)]).await, [Published::Made { deliveries: 1 }]);
}

async fn i51_cleaning_up_a_deleted_tenant_leaves_the_keys_of_its_successor(world: World) {
    world.endpoint("acme").await;
    let with_key = |event: NewEvent| {
        let keyed = Event { idempotency_key: idempotency_key("k"), ..(*event.event).clone() };
        NewEvent { event: keyed.into(), ..event }
    };
    let first = with_key(chosen(&world, "acme", "order-1"));
    assert_eq!(world.publish_all(vec![first]).await, [Published::Made { deliveries: 1 }]);
    delete_tenant(&world, "acme").await;
    let endpoint = world.endpoint("acme").await;
    let second = with_key(chosen(&world, "acme", "order-1"));
    assert_eq!(world.publish_all(vec![second]).await, [Published::Made { deliveries: 1 }]);
    clean_up(&world).await;
    assert_eq!(world.waiting(endpoint.id).await.len(), 1);
    let by_id = world.publish_all(vec![chosen(&world, "acme", "order-1")]).await;
    assert!(matches!(&by_id[0], Published::Duplicate { .. }), "{by_id:?}");
    let by_key = world.publish(keyed(&world, "acme")).await;
    assert!(matches!(&by_key, Published::Duplicate { .. }), "{by_key:?}");
}

async fn i51_keys_and_chosen_ids_are_deleted_with_their_event(world: World) {
    world.endpoint("acme").await;
    assert_eq!(world.publish(keyed(&world, "acme")).await, Published::Made { deliveries: 1 });
    assert_eq!(world.publish_all(vec![chosen(&world, "acme", "order-1")]).await, [Published::Made { deliveries: 1 }]);
    assert_eq!(world.count("idempotency_keys"), 2);
    delete_tenant(&world, "acme").await;
    clean_up(&world).await;
    assert_eq!((world.count("events"), world.count("idempotency_keys")), (0, 0));
}

async fn i51_numbers_of_deliveries_are_not_used_again_after_deletion_and_restart(world: World) {
    let publish = async |world: &World, of: &str| -> Seq {
        world.endpoint(of).await;
        world.delivery(of).await.seq
    };
    let first = publish(&world, "acme").await;
    delete_tenant(&world, "acme").await;
    clean_up(&world).await;
    assert_eq!(world.count("deliveries"), 0);
    let second = publish(&world, "globex").await;
    assert!(second > first, "{second} after {first}");
    delete_tenant(&world, "globex").await;
    clean_up(&world).await;
    let options = world.options.clone();
    let world = world.reopened(options).await;
    let third = publish(&world, "initech").await;
    assert!(third > second, "{third} after {second}");
    let again = world.store.deliveries_at(vec![first, second]).await.unwrap();
    assert!(again.is_empty(), "{again:?}");
}

async fn i51_numbers_of_audit_entries_are_not_used_again(world: World) {
    let note = async || {
        world.endpoint("acme").await;
        world.store.audit(None, None, 1).await.unwrap()[0].seq
    };
    let first = note().await;
    world.tamper("DELETE FROM audit");
    let second = note().await;
    assert!(second > first, "{second} after {first}");
}

async fn i51_a_new_endpoint_is_not_sent_what_it_missed_of_a_deleted_tenant(world: World) {
    assert_eq!(world.publish(world.event("acme", "order.paid")).await, Published::Made { deliveries: 0 });
    delete_tenant(&world, "acme").await;
    assert_eq!(world.publish(world.event("acme", "order.paid")).await, Published::Made { deliveries: 0 });
    let endpoint = world.endpoint("acme").await;
    let filter = ReplayFilter { endpoint: Some(endpoint.id), missing: true, ..ReplayFilter::default() };
    assert_eq!(world.store.count_replay(filter).await.unwrap().remaining(), 1);
}

/// A row whose event has another tenant is damaged: nothing is sent rather than the event of somebody else.
async fn i51_a_body_is_read_for_its_own_tenant_only(world: World) {
    world.endpoint("acme").await;
    let row = world.delivery("acme").await;
    assert_eq!(world.store.bodies(vec![row.seq]).await.unwrap().len(), 1);
    world.tamper("UPDATE events SET tenant = 'globex'");
    assert!(world.store.bodies(vec![row.seq]).await.unwrap().is_empty());
}
