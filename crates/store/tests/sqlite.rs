//! The verbs of the store on a real file.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::time::Duration;

use posthaste_core::delivery::{DeadReason, Outcome, Silence, State};
use posthaste_core::endpoint::{Status, Subscription};
use posthaste_core::event::{Data, Event, EventType, Timing, TypePatterns};
use posthaste_core::id::{AttemptId, DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::text::Labels;
use posthaste_core::time::Timestamp;
use posthaste_store::{AttemptRecord, Due, Error, Recorded, SecretText, Store, StoredEndpoint};

/// A directory that is gone when the test is.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("posthaste-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn endpoint(store: &Store, types: &[&str]) -> StoredEndpoint {
    StoredEndpoint {
        id: EndpointId::from_unique(store.unique()),
        tenant: TenantId::parse("acme").unwrap(),
        url: "http://127.0.0.1:1/".to_owned(),
        subscription: Subscription { event_types: TypePatterns::parse(types.iter().copied()).unwrap(), ..Subscription::default() },
        status: Status::Active,
        secret: SecretText("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()),
        created_at: store.now(),
    }
}

fn event(store: &Store, event_type: &str, data: &str) -> Event {
    Event {
        id: EventId::from_unique(store.unique()),
        tenant: TenantId::parse("acme").unwrap(),
        event_type: EventType::parse(event_type).unwrap(),
        version: None,
        timestamp: store.now(),
        accepted_at: store.now(),
        data: Data::parse(data).unwrap(),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
    }
}

fn recorded(store: &Store, delivery: DeliveryId, number: u32, state: State) -> Recorded {
    let attempt = AttemptRecord {
        id: AttemptId::from_unique(store.unique()),
        number,
        outcome: Outcome::Silent(Silence::Timeout),
        response_time: Duration::from_millis(41),
        timeout: Duration::from_secs(10),
        preview: None,
        error: Some("no answer".to_owned()),
        attempted_at: store.now(),
    };
    Recorded { delivery, attempt, state, disables_endpoint: false }
}

async fn due(store: &Store, at: Timestamp) -> Vec<Due> {
    store.due(at, 100).await.unwrap().due
}

#[tokio::test]
async fn what_was_published_is_due_with_its_bytes_after_a_restart() {
    let scratch = Scratch::new("restart");
    // Numbers, order, spacing and escapes that a re-encoding would change.
    let data = "{ \"b\":1.00, \"a\" : 12345678901234567890123 ,\"s\":\"\\u00e9\\/\" }";
    let (made, event_id) = {
        let store = Store::open(&scratch.0).unwrap();
        store.create_endpoint(endpoint(&store, &["invoice.*"])).await.unwrap();
        store.create_endpoint(endpoint(&store, &["user.*"])).await.unwrap();
        let event = event(&store, "invoice.paid", data);
        let event_id = event.id.clone();
        (store.publish(event).await.unwrap(), event_id)
    };
    assert_eq!(made.len(), 1, "one subscribed endpoint, one delivery");
    let store = Store::open(&scratch.0).unwrap();
    let due = due(&store, store.now()).await;
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].delivery, made[0]);
    assert_eq!(due[0].event.id, event_id);
    assert_eq!(due[0].event.data.as_str(), data);
}

#[tokio::test]
async fn an_event_that_matches_nobody_is_kept_and_makes_no_delivery() {
    let scratch = Scratch::new("nobody");
    let store = Store::open(&scratch.0).unwrap();
    assert!(store.publish(event(&store, "a", "1")).await.unwrap().is_empty());
    assert!(due(&store, Timestamp::MAX).await.is_empty());
}

#[tokio::test]
async fn an_attempt_is_recorded_once_and_moves_its_delivery_on() {
    let scratch = Scratch::new("record");
    let store = Store::open(&scratch.0).unwrap();
    store.create_endpoint(endpoint(&store, &[])).await.unwrap();
    let delivery = store.publish(event(&store, "a", "1")).await.unwrap()[0];
    let later = store.now() + Duration::from_secs(30);

    store.record(recorded(&store, delivery, 1, State::Waiting { due: later })).await.unwrap();
    let again = store.record(recorded(&store, delivery, 1, State::Delivered { at: later })).await;
    assert!(matches!(again, Err(Error::MovedOn)), "the same attempt twice changes nothing");
    assert!(due(&store, later - Duration::from_millis(1)).await.is_empty());
    let retry = due(&store, later).await;
    assert_eq!((retry[0].delivery, retry[0].attempts), (delivery, 1));

    let dead = State::Dead { at: later, reason: DeadReason::MaxAttemptsExceeded };
    store.record(recorded(&store, delivery, 2, dead)).await.unwrap();
    assert!(matches!(store.record(recorded(&store, delivery, 3, dead)).await, Err(Error::MovedOn)), "it has ended");
    let row = store.delivery(delivery).await.unwrap().unwrap();
    assert_eq!((row.state, row.attempts), (dead, 2));
    let attempts = store.attempts(delivery).await.unwrap();
    assert_eq!(attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(attempts[0].outcome, Outcome::Silent(Silence::Timeout));
}

#[tokio::test]
async fn a_write_that_is_refused_does_not_harm_its_neighbours() {
    let scratch = Scratch::new("neighbours");
    let store = Store::open(&scratch.0).unwrap();
    store.create_endpoint(endpoint(&store, &[])).await.unwrap();
    let twice = event(&store, "a", "1");
    let publishes = (0..200).map(|n| {
        let store = store.clone();
        let event = if n % 10 == 0 { twice.clone() } else { event(&store, "a", "1") };
        tokio::spawn(async move { store.publish(event).await.is_ok() })
    });
    let mut accepted = 0;
    for publish in publishes.collect::<Vec<_>>() {
        accepted += usize::from(publish.await.unwrap());
    }
    assert_eq!(accepted, 181, "180 different ones and the first of the twenty that are the same");
    let store_now = store.now();
    assert_eq!(store.due(store_now, 1000).await.unwrap().due.len(), 181);
}

#[tokio::test]
async fn a_payload_that_is_not_what_was_published_is_set_apart_and_never_given_out() {
    let scratch = Scratch::new("damage");
    let store = Store::open(&scratch.0).unwrap();
    store.create_endpoint(endpoint(&store, &[])).await.unwrap();
    let damaged = store.publish(event(&store, "a", "{\"amount\": 1}")).await.unwrap()[0];
    let intact = store.publish(event(&store, "a", "{\"amount\": 2}")).await.unwrap()[0];
    let outside = rusqlite::Connection::open(scratch.0.join("posthaste.db")).unwrap();
    outside.execute("UPDATE events SET data = '{\"amount\": 9}' WHERE data = '{\"amount\": 1}'", []).unwrap();

    let now = store.due(store.now(), 100).await.unwrap();
    assert_eq!(now.damaged, [damaged]);
    assert_eq!(now.due.iter().map(|due| due.delivery).collect::<Vec<_>>(), [intact]);
    let dead = State::Dead { at: store.now(), reason: DeadReason::Corrupt };
    store.end(damaged, dead).await.unwrap();
    assert_eq!(store.delivery(damaged).await.unwrap().unwrap().state, dead);
    assert!(store.due(store.now(), 100).await.unwrap().damaged.is_empty());
}

#[tokio::test]
async fn an_endpoint_that_is_gone_is_disabled_with_the_attempt_that_said_so() {
    let scratch = Scratch::new("gone");
    let store = Store::open(&scratch.0).unwrap();
    let gone = endpoint(&store, &[]);
    store.create_endpoint(gone.clone()).await.unwrap();
    let delivery = store.publish(event(&store, "a", "1")).await.unwrap()[0];
    store.publish(event(&store, "a", "2")).await.unwrap();
    let dead = State::Dead { at: store.now(), reason: DeadReason::EndpointGone };
    store.record(Recorded { disables_endpoint: true, ..recorded(&store, delivery, 1, dead) }).await.unwrap();
    assert_eq!(store.endpoint(gone.id).await.unwrap().unwrap().status, Status::Disabled);
    assert!(due(&store, Timestamp::MAX).await.is_empty(), "what waits there is held");
}

#[tokio::test]
async fn i42_a_database_of_a_newer_version_is_refused() {
    let scratch = Scratch::new("newer");
    drop(Store::open(&scratch.0).unwrap());
    let outside = rusqlite::Connection::open(scratch.0.join("posthaste.db")).unwrap();
    outside.pragma_update(None, "user_version", 1000).unwrap();
    assert!(matches!(Store::open(&scratch.0), Err(Error::TooNew)));
}

#[tokio::test]
async fn a_paused_endpoint_keeps_its_deliveries_waiting() {
    let scratch = Scratch::new("paused");
    let store = Store::open(&scratch.0).unwrap();
    let until = store.now() + Duration::from_hours(1);
    store.create_endpoint(StoredEndpoint { status: Status::Paused { until: Some(until) }, ..endpoint(&store, &[]) }).await.unwrap();
    store.create_endpoint(StoredEndpoint { status: Status::Disabled, ..endpoint(&store, &[]) }).await.unwrap();
    assert_eq!(store.publish(event(&store, "a", "1")).await.unwrap().len(), 1, "none for the disabled one");
    assert!(due(&store, until - Duration::from_millis(1)).await.is_empty());
    assert_eq!(due(&store, until).await.len(), 1);
}
