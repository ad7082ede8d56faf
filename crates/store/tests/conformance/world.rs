//! A store to be tried, and short ways of saying what is done with it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::{Outcome, State, Timings};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{AttemptId, EndpointId, EventId, TenantId};
use posthaste_core::scheduler::{Class, Entry, Seq, WindowQuery};
use posthaste_core::text::{IdempotencyKey, Labels, OrderingKey};
use posthaste_core::time::Timestamp;
use posthaste_store::*;
use posthaste_testpg::Server;

pub(crate) struct World {
    pub(crate) store: Arc<dyn Store>,
    kept: Kept,
    pub(crate) options: Options,
    pub(crate) epoch: Epoch,
    pub(crate) node: NodeId,
}

enum Kept {
    Directory(PathBuf),
    Server(Box<Server>),
}

impl World {
    pub(crate) async fn sqlite(name: &str) -> World {
        let directory = std::env::temp_dir().join(format!("posthaste-conformance-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        World::open(Kept::Directory(directory), World::options()).await
    }

    pub(crate) async fn postgres() -> World {
        World::open(Kept::Server(Box::new(Server::start())), World::options()).await
    }

    fn options() -> Options {
        Options::new(Keyring::new(MasterKey::from_base64("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").unwrap(), vec![]))
    }

    async fn open(kept: Kept, options: Options) -> World {
        let store: Arc<dyn Store> = match &kept {
            Kept::Directory(directory) => Arc::new(Sqlite::open(directory, options.clone()).unwrap()),
            Kept::Server(server) => Arc::new(Postgres::connect(&server.url(), options.clone()).await.unwrap()),
        };
        let node = NodeId(rand::random());
        store.join(node).await.unwrap();
        let claimed = store.claim(node, usize::from(PARTITIONS)).await.unwrap().unwrap();
        assert_eq!(claimed.partitions.len(), usize::from(PARTITIONS));
        let epoch = claimed.partitions[0].1;
        World { store, kept, options, epoch, node }
    }

    /// Closes it, and opens it with these options as another process would.
    pub(crate) async fn reopened(self, options: Options) -> World {
        self.store.hand_over(self.node, GivenUp::Everything, vec![]).await.unwrap();
        self.store.close().await.unwrap();
        self.opened_again(options).await
    }

    /// The same for one that is closed.
    pub(crate) async fn opened_again(mut self, options: Options) -> World {
        let kept = std::mem::replace(&mut self.kept, Kept::Directory(PathBuf::new()));
        drop(self);
        World::open(kept, options).await
    }

    #[expect(clippy::unused_self, reason = "reads like the other things that a world does")]
    pub(crate) fn audit(&self, action: &str) -> Audit {
        Audit {
            actor: "key_1".to_owned(),
            address: Some("127.0.0.1".to_owned()),
            action: action.to_owned(),
            subject: "something".to_owned(),
            tenant: Some(tenant("acme")),
            before: None,
            after: Some("{}".to_owned()),
        }
    }

    pub(crate) async fn configure(&self, change: Change) -> Result<ChangeResult, Refusal> {
        let audit = self.audit("change");
        self.store.configure(change, audit).await.unwrap()
    }

    pub(crate) fn new_endpoint(&self, of: &str) -> Endpoint {
        let id = EndpointId::from_unique(self.store.unique());
        Endpoint::new(id, tenant(of), "https://example.com/hooks".to_owned(), self.store.now())
    }

    pub(crate) async fn add(&self, endpoint: &Endpoint) -> Result<ChangeResult, Refusal> {
        let secrets = vec![StoredSecret { secret: SecretText("whsec_canary".to_owned()), until: None }];
        let new = NewEndpoint { endpoint: endpoint.clone(), secrets, per_tenant_max: 5, tenant_created_at: None };
        self.configure(Change::CreateEndpoint(Box::new(new))).await
    }

    pub(crate) async fn endpoint(&self, of: &str) -> Endpoint {
        let endpoint = self.new_endpoint(of);
        self.add(&endpoint).await.unwrap();
        endpoint
    }

    pub(crate) fn event(&self, of: &str, event_type: &str) -> Event {
        let now = self.store.now();
        Event {
            id: EventId::from_unique(self.store.unique()),
            tenant: tenant(of),
            event_type: EventType::parse(event_type).unwrap(),
            version: None,
            timestamp: now,
            accepted_at: now,
            data: Data::parse(r#"{ "amount": 1.00 }"#).unwrap(),
            labels: Labels::default(),
            idempotency_key: None,
            ordering_key: None,
            timing: Timing::default(),
            trace: None,
        }
    }

    pub(crate) async fn publish(&self, event: Event) -> Published {
        self.publish_all(vec![new_event(event)]).await.remove(0)
    }

    pub(crate) async fn publish_all(&self, events: Vec<NewEvent>) -> Vec<Published> {
        self.store.publish(events).await.unwrap()
    }

    /// One delivery of a new event.
    pub(crate) async fn delivery(&self, of: &str) -> DeliveryRow {
        self.delivery_of(self.event(of, "order.paid")).await
    }

    pub(crate) async fn delivery_of(&self, event: Event) -> DeliveryRow {
        let id = event.id.clone();
        assert_eq!(self.publish(event).await, Published::Made { deliveries: 1 });
        self.deliveries_of(&id).await.remove(0)
    }

    pub(crate) async fn deliveries_of(&self, event: &EventId) -> Vec<DeliveryRow> {
        let query = DeliveryQuery { event: Some(event.clone()), limit: 100, ..DeliveryQuery::default() };
        self.store.deliveries(query).await.unwrap().rows
    }

    pub(crate) async fn row(&self, delivery: &DeliveryRow) -> DeliveryRow {
        self.store.delivery(None, delivery.id).await.unwrap().unwrap()
    }

    pub(crate) fn attempt(&self, number: u32, status: u16) -> Box<AttemptRecord> {
        Box::new(AttemptRecord {
            id: AttemptId::from_unique(self.store.unique()),
            number,
            outcome: Outcome::Answered { status, retry_after: None },
            response_time: Duration::from_millis(41),
            timings: Timings {
                dns: None,
                connect: Some(Duration::from_millis(2)),
                tls: None,
                first_byte: Some(Duration::from_millis(29)),
            },
            timeout: Duration::from_secs(10),
            preview: Some("ok \u{1F600}".to_owned()),
            error: None,
            attempted_at: self.store.now(),
            endpoint_version: Some(1),
        })
    }

    pub(crate) fn record(&self, delivery: &DeliveryRow, recorded: DeliveryChange) -> Record {
        Record {
            partition: delivery.partition,
            epoch: self.epoch,
            endpoint: delivery.endpoint,
            recorded,
            lane: None,
            disables_endpoint: None,
        }
    }

    pub(crate) async fn try_once(&self, delivery: &DeliveryRow, number: u32, status: u16, state: State) -> RecordResult {
        let attempt = self.attempt(number, status);
        let record = self.record(delivery, DeliveryChange::Attempt { seq: delivery.seq, attempt, state });
        self.store.record(vec![record]).await.unwrap().remove(0)
    }

    pub(crate) async fn deliver(&self, delivery: &DeliveryRow) {
        let state = State::Delivered { at: self.store.now() };
        assert_eq!(self.try_once(delivery, 1, 200, state).await, RecordResult::Done);
    }

    pub(crate) async fn window(&self, endpoint: EndpointId, want: WindowQuery, limit: usize) -> WindowRows {
        self.store.windows(vec![WindowRequest { endpoint, want, limit }]).await.unwrap().pop().unwrap()
    }

    /// The beginnings of all queues together, as a set of rows.
    pub(crate) async fn waiting(&self, endpoint: EndpointId) -> Vec<Seq> {
        let mut found: Vec<Entry> = Vec::new();
        for class in Class::ALL {
            found.extend(self.window(endpoint, WindowQuery::Fresh(class), 1000).await.rows);
            found.extend(self.window(endpoint, WindowQuery::Later(class), 1000).await.rows);
        }
        found.extend(self.window(endpoint, WindowQuery::Heads { after: None }, 1000).await.rows);
        let mut seqs: Vec<Seq> = found.into_iter().map(|entry| entry.seq).collect();
        seqs.sort_unstable();
        seqs
    }

    /// Changes what no verb can change: how old something is, or a byte of it. SQL that both understand.
    pub(crate) fn tamper(&self, sql: &str) {
        match &self.kept {
            Kept::Directory(directory) => {
                let connection = rusqlite::Connection::open(directory.join("posthaste.db")).unwrap();
                connection.busy_timeout(Duration::from_secs(5)).unwrap();
                connection.execute_batch(sql).unwrap();
            }
            Kept::Server(server) => drop(server.psql(sql)),
        }
    }

    /// Of one on SQLite.
    pub(crate) fn directory(&self) -> &Path {
        let Kept::Directory(directory) = &self.kept else { panic!("it is on a server") };
        directory
    }

    /// How many rows a table has.
    pub(crate) fn count(&self, table: &str) -> u64 {
        let select = format!("SELECT count(*) FROM {table}");
        match &self.kept {
            Kept::Directory(directory) => {
                let connection = rusqlite::Connection::open(directory.join("posthaste.db")).unwrap();
                connection.busy_timeout(Duration::from_secs(5)).unwrap();
                connection.query_row(&select, [], |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap()
            }
            Kept::Server(server) => server.psql(&select).trim().parse().unwrap(),
        }
    }

    pub(crate) fn server(&self) -> &Server {
        match &self.kept {
            Kept::Server(server) => server,
            Kept::Directory(_) => panic!("there is no server"),
        }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.kept, Kept::Server(_))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Kept::Directory(directory) = &self.kept {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

pub(crate) fn new_event(event: Event) -> NewEvent {
    NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [7; 32], resolved: None }
}

pub(crate) fn tenant(id: &str) -> TenantId {
    TenantId::parse(id).unwrap()
}

pub(crate) fn key(text: &str) -> Option<OrderingKey> {
    OrderingKey::parse(text).ok()
}

pub(crate) fn idempotency_key(text: &str) -> Option<IdempotencyKey> {
    IdempotencyKey::parse(text).ok()
}

pub(crate) fn later(at: Timestamp, seconds: u64) -> Timestamp {
    at + Duration::from_secs(seconds)
}
