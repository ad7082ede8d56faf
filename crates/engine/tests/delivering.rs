//! From a durable event to a delivered one: the real store, the real sender, a scripted receiver.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State as Scripted;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use posthaste_core::delivery::{DeadReason, Outcome, State};
use posthaste_core::endpoint::{Endpoint, Status};
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::retry::{RetryPolicy, Strategy};
use posthaste_core::text::Labels;
use posthaste_engine::Options;
use posthaste_sender::{Client, Options as SenderOptions, Policy};
use posthaste_signing::{Key, Received, Secret, TOLERANCE, standard};
use posthaste_store::{
    Audit, Change, DeliveryQuery, Keyring, MasterKey, NewEndpoint, NewEvent, Options as StoreOptions, SecretText, Sqlite, Store,
    StoredSecret,
};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Answers with one status after another, and 200 from then on.
#[derive(Clone, Default)]
struct Receiver {
    script: Arc<Mutex<VecDeque<u16>>>,
    hits: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    /// If set, an answer waits for `released` after having told `arrived`.
    held: Option<Arc<(Notify, Notify)>>,
}

async fn answer(Scripted(receiver): Scripted<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    receiver.hits.lock().unwrap().push((headers, body));
    if let Some(held) = &receiver.held {
        held.0.notify_one();
        held.1.notified().await;
    }
    let status = receiver.script.lock().unwrap().pop_front().unwrap_or(200);
    StatusCode::from_u16(status).unwrap()
}

struct World {
    directory: PathBuf,
    store: Arc<dyn Store>,
    receiver: Receiver,
    endpoint: EndpointId,
}

impl World {
    async fn new(name: &str, script: &[u16], held: bool) -> World {
        let directory = std::env::temp_dir().join(format!("posthaste-engine-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let options = StoreOptions::new(Keyring::new(MasterKey::generate(), vec![]));
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&directory, options).unwrap());
        let receiver = Receiver {
            script: Arc::new(Mutex::new(script.iter().copied().collect())),
            held: held.then(Arc::default),
            ..Receiver::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let router = Router::new().route("/", post(answer)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let id = EndpointId::from_unique(store.unique());
        let endpoint = Endpoint::new(id, TenantId::parse("acme").unwrap(), url, store.now());
        let secrets = vec![StoredSecret { secret: SecretText(SECRET.to_owned()), until: None }];
        let change = Change::CreateEndpoint(Box::new(NewEndpoint { endpoint, secrets, per_tenant_max: 10 }));
        let audit = Audit {
            actor: "a test".to_owned(),
            address: None,
            action: "endpoint.create".to_owned(),
            subject: id.to_string(),
            tenant: None,
            before: None,
            after: None,
        };
        store.configure(change, audit).await.unwrap().unwrap();
        World { directory, store, receiver, endpoint: id }
    }

    async fn publish(&self, data: &str) -> DeliveryId {
        let now = self.store.now();
        let event = Event {
            id: EventId::from_unique(self.store.unique()),
            tenant: TenantId::parse("acme").unwrap(),
            event_type: EventType::parse("invoice.paid").unwrap(),
            version: None,
            timestamp: now,
            accepted_at: now,
            data: Data::parse(data).unwrap(),
            labels: Labels::default(),
            idempotency_key: None,
            ordering_key: None,
            timing: Timing::default(),
        };
        let id = event.id.clone();
        let new = NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [0; 32] };
        self.store.publish(vec![new]).await.unwrap();
        let query = DeliveryQuery { event: Some(id), limit: 1, ..DeliveryQuery::default() };
        self.store.deliveries(query).await.unwrap().rows[0].id
    }

    /// Runs the engine, with retries that do not wait, until told to stop.
    fn start(&self) -> (oneshot::Sender<()>, JoinHandle<()>) {
        let strategy = Strategy::Schedule { delays: vec![Duration::ZERO; 2], jitter_percent: 0 };
        let retry = RetryPolicy::new(strategy, 3, BTreeSet::new()).unwrap();
        let options = Options { retry, ..Options::default() };
        let policy = Policy { allowed_networks: vec!["127.0.0.0/8".parse().unwrap()], allow_http: true, public_host: None };
        let client = Client::new(&SenderOptions { policy, ..SenderOptions::default() }).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let engine = tokio::spawn(posthaste_engine::run(Arc::clone(&self.store), client, options, async {
            let _ = stopped.await;
        }));
        (stop, engine)
    }

    async fn ended(&self, delivery: DeliveryId) -> State {
        let wait = async {
            loop {
                let row = self.store.delivery(delivery).await.unwrap().unwrap();
                if !matches!(row.state, State::Waiting { .. }) {
                    return row.state;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the delivery ends")
    }

    async fn statuses(&self, delivery: DeliveryId) -> Vec<u16> {
        let attempts = self.store.attempts(delivery).await.unwrap();
        attempts
            .iter()
            .map(|attempt| match attempt.outcome {
                Outcome::Answered { status, .. } => status,
                Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => 0,
            })
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test]
async fn a_delivery_is_tried_until_it_arrives_with_the_same_id_and_body_each_time() {
    let world = World::new("retry", &[500, 503], false).await;
    let (stop, engine) = world.start();
    let delivery = world.publish("{ \"n\": 1.00 }").await;
    assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    assert_eq!(world.statuses(delivery).await, [500, 503, 200]);

    let hits = world.receiver.hits.lock().unwrap().clone();
    assert_eq!(hits.len(), 3);
    let secret = Secret::parse(SECRET).unwrap();
    for (attempt, (headers, body)) in (1..).zip(&hits) {
        let header = |name| headers[name].to_str().unwrap();
        assert_eq!(header("webhook-id"), hits[0].0["webhook-id"].to_str().unwrap());
        assert_eq!(header("posthaste-delivery"), delivery.to_string());
        assert_eq!(header("posthaste-attempt"), attempt.to_string());
        assert_eq!(body, &hits[0].1);
        assert!(std::str::from_utf8(body).unwrap().ends_with(",\"data\":{ \"n\": 1.00 }}"));
        let received = Received { timestamp: header("webhook-timestamp"), signature: header("webhook-signature"), body };
        let now = world.store.now().as_seconds();
        assert_eq!(standard::verify(header("webhook-id"), &received, now, TOLERANCE, &[Key::Shared(&secret)]), Ok(()));
    }
    stop.send(()).unwrap();
    engine.await.unwrap();
}

#[tokio::test]
async fn i11_permanent_answers_and_exhausted_retries_end_as_dead() {
    for (script, reason, hits) in [
        (&[404][..], DeadReason::PermanentFailure, 1),
        (&[302], DeadReason::PermanentFailure, 1),
        (&[500, 500, 500], DeadReason::MaxAttemptsExceeded, 3),
    ] {
        let world = World::new(&format!("dead-{}", script[0]), script, false).await;
        let (stop, engine) = world.start();
        let delivery = world.publish("1").await;
        let State::Dead { reason: actual, .. } = world.ended(delivery).await else { panic!("it is dead") };
        assert_eq!((actual, world.statuses(delivery).await.len()), (reason, hits));
        stop.send(()).unwrap();
        engine.await.unwrap();
        assert_eq!(world.receiver.hits.lock().unwrap().len(), hits);
    }
}

#[tokio::test]
async fn i11_a_410_disables_the_endpoint() {
    let world = World::new("gone", &[410], false).await;
    let (stop, engine) = world.start();
    let delivery = world.publish("1").await;
    assert!(matches!(world.ended(delivery).await, State::Dead { reason: DeadReason::EndpointGone, .. }));
    assert_eq!(world.store.endpoint(world.endpoint).await.unwrap().unwrap().endpoint.status, Status::Disabled);
    stop.send(()).unwrap();
    engine.await.unwrap();
}

#[tokio::test]
async fn what_was_published_before_the_engine_ran_is_delivered_by_it() {
    let world = World::new("before", &[], false).await;
    let mut deliveries = Vec::new();
    for n in 0..50 {
        deliveries.push(world.publish(&n.to_string()).await);
    }
    let (stop, engine) = world.start();
    for delivery in deliveries {
        assert!(matches!(world.ended(delivery).await, State::Delivered { .. }));
    }
    stop.send(()).unwrap();
    engine.await.unwrap();
    assert_eq!(world.receiver.hits.lock().unwrap().len(), 50, "each once");
}

#[tokio::test]
async fn stopping_lets_what_is_in_flight_finish_and_starts_nothing_new() {
    let world = World::new("stop", &[], true).await;
    let held = world.receiver.held.clone().unwrap();
    let (stop, engine) = world.start();
    let delivery = world.publish("1").await;
    held.0.notified().await;
    stop.send(()).unwrap();
    let late = world.publish("2").await;
    held.1.notify_one();
    engine.await.unwrap();
    assert!(matches!(world.store.delivery(delivery).await.unwrap().unwrap().state, State::Delivered { .. }));
    assert!(matches!(world.store.delivery(late).await.unwrap().unwrap().state, State::Waiting { .. }));
    assert_eq!(world.receiver.hits.lock().unwrap().len(), 1);
}
