//! The real store, the real engine, the real sender, and a scripted receiver.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::extract::State as Scripted;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use posthaste_core::delivery::{Outcome, State};
use posthaste_core::endpoint::{Endpoint, Policies};
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::retry::{RetryPolicy, Strategy};
use posthaste_core::text::{Labels, OrderingKey};
use posthaste_engine::Options;
use posthaste_sender::{Client, Options as SenderOptions, Policy};
use posthaste_store::{
    Audit, Change, Command, CommandOutcome, DeliveryQuery, DeliveryRow, Keyring, MasterKey, NewEndpoint, NewEvent,
    Options as StoreOptions, Postgres, SecretText, Sqlite, Store, StoredSecret, partition_of,
};
use posthaste_testpg::{Proxy, Server};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Answers with one status after another, and 200 from then on.
#[derive(Clone, Default)]
pub(crate) struct Receiver {
    pub(crate) script: Arc<Mutex<VecDeque<u16>>>,
    pub(crate) hits: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    /// If set, an answer waits for `released` after having told `arrived`.
    pub(crate) held: Option<Arc<(Notify, Notify)>>,
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

pub(crate) struct World {
    kept: Kept,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) receiver: Receiver,
    pub(crate) endpoint: EndpointId,
    master_key: MasterKey,
}

/// Where everything is.
enum Kept {
    Directory(PathBuf),
    Server(Box<Server>),
}

pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    engine: JoinHandle<()>,
}

impl Running {
    pub(crate) fn tell_to_stop(self) -> JoinHandle<()> {
        self.stop.send(()).unwrap();
        self.engine
    }

    pub(crate) async fn stop(self) {
        self.tell_to_stop().await.unwrap();
    }

    /// Dies on the spot, like a process that is killed.
    pub(crate) async fn kill(self) {
        self.engine.abort();
        let _ = self.engine.await;
    }
}

/// What keeps a loop from coming round.
#[derive(Clone, Default)]
pub(crate) struct Ice {
    is_frozen: Arc<AtomicBool>,
    loop_waits: Arc<Mutex<Option<Waker>>>,
}

impl Ice {
    pub(crate) fn freeze(&self) {
        self.is_frozen.store(true, Ordering::SeqCst);
    }

    pub(crate) fn thaw(&self) {
        self.is_frozen.store(false, Ordering::SeqCst);
        if let Some(waker) = self.loop_waits.lock().unwrap().take() {
            waker.wake();
        }
    }
}

impl World {
    pub(crate) async fn new(name: &str, script: &[u16]) -> World {
        World::with(name, script, false, |_| {}).await
    }

    /// With an endpoint about which something is said.
    pub(crate) async fn with(name: &str, script: &[u16], held: bool, say: impl FnOnce(&mut Endpoint)) -> World {
        let directory = std::env::temp_dir().join(format!("posthaste-engine-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        World::kept(Kept::Directory(directory), script, held, say).await
    }

    pub(crate) async fn on_postgres(script: &[u16], say: impl FnOnce(&mut Endpoint)) -> World {
        World::kept(Kept::Server(Box::new(Server::start())), script, false, say).await
    }

    /// Whose receiver answers only when it is told to.
    pub(crate) async fn on_postgres_held() -> World {
        World::kept(Kept::Server(Box::new(Server::start())), &[], true, |_| {}).await
    }

    async fn kept(kept: Kept, script: &[u16], held: bool, say: impl FnOnce(&mut Endpoint)) -> World {
        let master_key = MasterKey::generate();
        let options = StoreOptions::new(Keyring::new(master_key.clone(), vec![]));
        let store: Arc<dyn Store> = match &kept {
            Kept::Directory(directory) => Arc::new(Sqlite::open(directory, options).unwrap()),
            Kept::Server(server) => Arc::new(Postgres::connect(&server.url(), options).await.unwrap()),
        };
        let receiver = Receiver {
            script: Arc::new(Mutex::new(script.iter().copied().collect())),
            held: held.then(Arc::default),
            ..Receiver::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let router = Router::new().route("/", post(answer)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let endpoint = make_endpoint(store.as_ref(), url, say).await;
        World { kept, store, receiver, endpoint, master_key }
    }

    /// At the same receiver.
    pub(crate) async fn another_endpoint(&self) -> EndpointId {
        let url = self.store.endpoint(None, self.endpoint).await.unwrap().unwrap().endpoint.url;
        make_endpoint(self.store.as_ref(), url, |_| {}).await
    }

    /// Does to the database what we would not.
    pub(crate) fn tamper(&self, sql: &str) {
        let Kept::Directory(directory) = &self.kept else { panic!("it is not in a directory") };
        let connection = rusqlite::Connection::open(directory.join("posthaste.db")).unwrap();
        connection.busy_timeout(Duration::from_secs(5)).unwrap();
        connection.execute_batch(sql).unwrap();
    }

    /// Closes the store and opens it again, as another process would.
    pub(crate) async fn reopen(&mut self) {
        self.store.close().await.unwrap();
        let Kept::Directory(directory) = &self.kept else { panic!("nobody else's connection has to end") };
        // The last handle gives the directory free.
        self.store = Arc::new(Sqlite::open(&directory.join("nobody"), self.store_options()).unwrap());
        let open = || Sqlite::open(directory, self.store_options()).ok();
        self.store = Arc::new(until("the directory is free", || async { open() }).await);
    }

    /// Another process beside this one, on the same database.
    pub(crate) async fn another(&self) -> Arc<dyn Store> {
        let Kept::Server(server) = &self.kept else { panic!("one process owns a directory") };
        Arc::new(Postgres::connect(&server.url(), self.store_options()).await.unwrap())
    }

    /// Another process, whose connections can be lost.
    pub(crate) async fn another_behind(&self, proxy: &Proxy) -> Arc<dyn Store> {
        Arc::new(Postgres::connect(&proxy.url(), self.store_options()).await.unwrap())
    }

    pub(crate) fn proxy(&self) -> Proxy {
        let Kept::Server(server) = &self.kept else { panic!("a directory has no connections") };
        Proxy::start(server.port())
    }

    fn store_options(&self) -> StoreOptions {
        StoreOptions::new(Keyring::new(self.master_key.clone(), vec![]))
    }

    pub(crate) async fn publish(&self, data: &str) -> DeliveryId {
        self.publish_as(data, |_| {}).await
    }

    pub(crate) async fn publish_as(&self, data: &str, say: impl FnOnce(&mut Event)) -> DeliveryId {
        let now = self.store.now();
        let mut event = Event {
            id: EventId::from_unique(self.store.unique()),
            tenant: tenant(),
            event_type: EventType::parse("invoice.paid").unwrap(),
            version: None,
            timestamp: now,
            accepted_at: now,
            data: Data::parse(data).unwrap(),
            labels: Labels::default(),
            idempotency_key: None,
            ordering_key: None,
            timing: Timing::default(),
            trace: None,
        };
        say(&mut event);
        let id = event.id.clone();
        let new = NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [0; 32], resolved: None };
        self.store.publish(vec![new]).await.unwrap();
        let query = DeliveryQuery { event: Some(id), limit: 1, ..DeliveryQuery::default() };
        self.store.deliveries(query).await.unwrap().rows[0].id
    }

    /// Runs the engine, with retries that do not wait, until told to stop.
    pub(crate) fn start(&self) -> Running {
        self.start_with(World::impatient())
    }

    /// Retries that do not wait.
    pub(crate) fn impatient() -> Options {
        let strategy = Strategy::Schedule { delays: vec![Duration::ZERO; 2], jitter_percent: 0 };
        let retry = RetryPolicy::new(strategy, 3, BTreeSet::new()).unwrap();
        Options { policies: Policies { retry, ..Policies::default() }, ..Options::default() }
    }

    pub(crate) fn start_with(&self, options: Options) -> Running {
        World::start_on(&self.store, options)
    }

    pub(crate) fn start_on(store: &Arc<dyn Store>, options: Options) -> Running {
        World::start_freezable(store, options).0
    }

    /// Its loop can be kept from coming round, while everything beside it goes on.
    pub(crate) fn start_freezable(store: &Arc<dyn Store>, options: Options) -> (Running, Ice) {
        let policy = Policy { allowed_networks: vec!["127.0.0.0/8".parse().unwrap()], allow_http: true, public_host: None };
        let client = Client::new(&SenderOptions { policy, ..SenderOptions::default() }).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut running = Box::pin(posthaste_engine::run(Arc::clone(store), client, options, async {
            let _ = stopped.await;
        }));
        let ice = Ice::default();
        let frozen = ice.clone();
        let engine = tokio::spawn(poll_fn(move |context| {
            if frozen.is_frozen.load(Ordering::SeqCst) {
                *frozen.loop_waits.lock().unwrap() = Some(context.waker().clone());
                return Poll::Pending;
            }
            running.as_mut().poll(context)
        }));
        (Running { stop, engine }, ice)
    }

    /// Says something else about the endpoint.
    pub(crate) async fn change(&self, say: impl FnOnce(&mut Endpoint)) {
        let mut endpoint = self.store.endpoint(None, self.endpoint).await.unwrap().unwrap().endpoint;
        say(&mut endpoint);
        let change = Change::ReplaceEndpoint { endpoint: Box::new(endpoint), secrets: None, expected_version: None };
        self.store.configure(change, audit("endpoint.update")).await.unwrap().unwrap();
    }

    pub(crate) async fn row(&self, delivery: DeliveryId) -> DeliveryRow {
        self.store.delivery(None, delivery).await.unwrap().unwrap()
    }

    pub(crate) async fn ended(&self, delivery: DeliveryId) -> State {
        let ended = || async {
            let state = self.row(delivery).await.state;
            (!matches!(state, State::Waiting { .. })).then_some(state)
        };
        until("the delivery ends", ended).await
    }

    /// Waits until the engine can be asked, and asks.
    pub(crate) async fn ask(&self, command: Command) -> CommandOutcome {
        let ask = || async { self.store.command(partition_of(&tenant()), command.clone()).await.ok() };
        until("the owner answers", ask).await
    }

    pub(crate) fn hits(&self) -> usize {
        self.receiver.hits.lock().unwrap().len()
    }

    pub(crate) async fn statuses(&self, delivery: DeliveryId) -> Vec<u16> {
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
        if let Kept::Directory(directory) = &self.kept {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

async fn make_endpoint(store: &dyn Store, url: String, say: impl FnOnce(&mut Endpoint)) -> EndpointId {
    let id = EndpointId::from_unique(store.unique());
    let mut endpoint = Endpoint::new(id, tenant(), url, store.now());
    say(&mut endpoint);
    let secrets = vec![StoredSecret { secret: SecretText(SECRET.to_owned()), until: None }];
    let change = Change::CreateEndpoint(Box::new(NewEndpoint { endpoint, secrets, per_tenant_max: 10, tenant_created_at: None }));
    store.configure(change, audit("endpoint.create")).await.unwrap().unwrap();
    id
}

pub(crate) fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

pub(crate) fn key(key: &str) -> OrderingKey {
    OrderingKey::parse(key).unwrap()
}

pub(crate) fn audit(action: &str) -> Audit {
    Audit {
        actor: "a test".to_owned(),
        address: None,
        action: action.to_owned(),
        subject: "it".to_owned(),
        tenant: Some(tenant()),
        before: None,
        after: None,
    }
}

/// Asks until there is an answer.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, ask: impl Fn() -> F) -> T {
    let wait = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap_or_else(|_| panic!("{what}: not within 30 seconds"))
}
