//! An application's database with an outbox, a store, and relays between them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::id::{EventId, TenantId};
use posthaste_metrics::{Format, Limits, Metrics};
use posthaste_relay::{Options, install, run};
use posthaste_store::{EventQuery, EventRow, Keyring, MasterKey, Options as StoreOptions, Postgres, Sqlite, Store};
use posthaste_testpg::Server;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// However slow this machine is today, what has not happened by then does not.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub(crate) server: Arc<Server>,
    /// The application's.
    pub(crate) url: String,
    pub(crate) store: Arc<dyn Store>,
    directory: Option<PathBuf>,
    pub(crate) metrics: Metrics,
}

/// Where Posthaste keeps its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    Sqlite,
    Postgres,
}

pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap();
    }

    /// Dies on the spot, like a process that is killed.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

fn store_options() -> StoreOptions {
    let key = MasterKey::from_base64("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").unwrap();
    StoreOptions::new(Keyring::new(key, vec![]))
}

pub(crate) async fn postgres_store(url: &str) -> Arc<dyn Store> {
    Arc::new(Postgres::connect(url, store_options()).await.unwrap())
}

impl World {
    /// With an outbox that is installed.
    pub(crate) async fn new(kept: Kept) -> World {
        let world = World::without_outbox(kept).await;
        install(&world.url).await.unwrap();
        world
    }

    pub(crate) async fn without_outbox(kept: Kept) -> World {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let server = Server::start();
        let url = server.create_database("application");
        let (store, directory): (Arc<dyn Store>, _) = match kept {
            Kept::Postgres => (postgres_store(&server.create_database("posthaste")).await, None),
            Kept::Sqlite => {
                let name = format!("posthaste-relay-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
                let directory = std::env::temp_dir().join(name);
                std::fs::create_dir_all(&directory).unwrap();
                (Arc::new(Sqlite::open(&directory, store_options()).unwrap()), Some(directory))
            }
        };
        World { server: Arc::new(server), url, store, directory, metrics: Metrics::new(Limits::default(), "test") }
    }

    pub(crate) fn options(&self) -> Options {
        Options { metrics: Some(self.metrics.clone()), ..Options::new(&self.url) }
    }

    pub(crate) fn relay(&self) -> Running {
        self.relay_with(self.options())
    }

    pub(crate) fn relay_with(&self, options: Options) -> Running {
        let (stop, stopped) = oneshot::channel();
        let stopped = async move {
            let _ = stopped.await;
        };
        Running { stop, task: tokio::spawn(run(Arc::clone(&self.store), options, stopped)) }
    }

    /// As the application: statements in one transaction, without waiting for it in the way of others.
    pub(crate) async fn sql(&self, sql: &str) -> String {
        let (server, url, sql) = (Arc::clone(&self.server), self.url.clone(), sql.to_owned());
        let ran = tokio::task::spawn_blocking(move || server.psql_at(&url, &sql).map_err(|error| format!("{error}\n{sql}")));
        ran.await.unwrap().unwrap()
    }

    pub(crate) async fn rows(&self) -> usize {
        self.sql("SELECT count(*) FROM posthaste_outbox").await.parse().unwrap()
    }

    /// All of them, the oldest first, without payloads.
    pub(crate) async fn events(&self) -> Vec<EventRow> {
        let (mut all, mut before) = (Vec::new(), None);
        loop {
            let page = self.store.events(EventQuery { before, limit: 200, ..EventQuery::default() }).await.unwrap();
            all.extend(page.rows);
            match page.next {
                Some(next) => before = Some(next),
                None => break,
            }
        }
        all.reverse();
        all
    }

    pub(crate) async fn event(&self, outbox_id: &str) -> Option<EventRow> {
        let id = EventId::parse(&format!("evt_{outbox_id}")).unwrap();
        self.store.event(None, id).await.unwrap()
    }

    pub(crate) async fn event_of(&self, tenant: &str, outbox_id: &str) -> EventRow {
        let id = EventId::parse(&format!("evt_{outbox_id}")).unwrap();
        self.store.event(Some(TenantId::parse(tenant).unwrap()), id).await.unwrap().unwrap()
    }

    pub(crate) async fn wait_until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        let started = Instant::now();
        while !is_so().await {
            if started.elapsed() < PATIENCE {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
            let errors = self.sql("SELECT last_error FROM posthaste_outbox WHERE attempts > 0 LIMIT 5").await;
            let page = self.metrics.page(Format::Text);
            let page =
                page.lines().filter(|line| line.starts_with("webhook_outbox")).fold(String::new(), |all, line| all + line + "\n");
            panic!("waited in vain until {what}\n{page}{errors}\n{}", self.server.log());
        }
    }

    pub(crate) async fn wait_until_empty(&self) {
        self.wait_until("the outbox is empty", async || self.rows().await == 0).await;
    }

    /// `None` where it is not shown.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let page = self.metrics.page(Format::Text);
        page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(|value| value.parse().unwrap())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}
