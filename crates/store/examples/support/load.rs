//! Callers that publish, and then record, as fast as they are answered.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::delivery::{Outcome, State, Timings};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::{AttemptId, EndpointId};
use posthaste_store::{
    AttemptRecord, Change, DeliveryChange, Epoch, NewEndpoint, NodeId, PARTITIONS, Partition, Postgres, Record, RecordResult,
    Sqlite, Store,
};

pub(crate) use super::common::{audit, event, options, payload, tenant};

pub(crate) enum Database {
    Sqlite(PathBuf),
    Postgres(Box<posthaste_testpg::Server>),
}

pub(crate) struct Rates {
    pub(crate) publishes: f64,
    pub(crate) records: f64,
}

impl Database {
    pub(crate) fn postgres() -> Database {
        Database::Postgres(Box::new(posthaste_testpg::Server::start_with(&[("shared_buffers", "256MB"), ("max_wal_size", "4GB")])))
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Database::Sqlite(_) => "SQLite",
            Database::Postgres(_) => "PostgreSQL",
        }
    }

    /// An empty one, with an endpoint.
    pub(crate) async fn fresh(&self) -> (Arc<dyn Store>, EndpointId, Epoch) {
        match self {
            Database::Sqlite(directory) => drop(std::fs::remove_dir_all(directory)),
            Database::Postgres(server) => drop(server.psql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")),
        }
        let store = self.open().await;
        let id = EndpointId::from_unique(store.unique());
        let endpoint = Endpoint::new(id, tenant(), "https://example.com/".to_owned(), store.now());
        let new = NewEndpoint { endpoint, secrets: vec![], per_tenant_max: 1000, tenant_created_at: None };
        store.configure(Change::CreateEndpoint(Box::new(new)), audit()).await.unwrap().unwrap();
        let node = NodeId(rand::random());
        store.join(node).await.unwrap();
        let epoch = store.claim(node, usize::from(PARTITIONS)).await.unwrap().unwrap().partitions[0].1;
        (store, id, epoch)
    }

    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        match self {
            Database::Sqlite(directory) => Arc::new(Sqlite::open(directory, options()).unwrap()),
            Database::Postgres(server) => Arc::new(Postgres::connect(&server.url(), options()).await.unwrap()),
        }
    }
}

pub(crate) async fn run(database: &Database, callers: usize, batch: usize, seconds: u64) -> Rates {
    let (store, endpoint, epoch) = database.fresh().await;
    let mut feed = store.feed();
    let collected = tokio::spawn(async move {
        let mut seqs = Vec::new();
        while let Some(fed) = feed.next().await {
            seqs.extend(fed.into_iter().map(|fed| (fed.entry.seq, fed.partition)));
        }
        (seqs, feed)
    });
    let publishes = {
        // Read and checked once, as the bare program's is: that is the API's work.
        let (store, data) = (Arc::clone(&store), payload());
        timed(callers, seconds, move || {
            let (store, data) = (Arc::clone(&store), data.clone());
            async move {
                let events = (0..batch).map(|_| event(store.as_ref(), &data)).collect();
                store.publish(events).await.unwrap().len() as u64
            }
        })
        .await
    };
    // The feed ends when a new one begins.
    let _next = store.feed();
    let (seqs, _) = collected.await.unwrap();
    assert!(!seqs.is_empty());
    let work = Arc::new(parking_lot::Mutex::new(seqs));
    let recording = Arc::clone(&store);
    let records = timed(callers, seconds, move || {
        let (store, work) = (Arc::clone(&recording), Arc::clone(&work));
        async move {
            let taken: Vec<(u64, Partition)> = {
                let mut work = work.lock();
                let rest = work.len().saturating_sub(batch);
                work.split_off(rest)
            };
            if taken.is_empty() {
                return 0;
            }
            let records = taken.into_iter().map(|(seq, partition)| Record {
                partition,
                epoch,
                endpoint,
                recorded: DeliveryChange::Attempt {
                    seq,
                    attempt: attempt(store.as_ref()),
                    state: State::Delivered { at: store.now() },
                },
                lane: None,
                disables_endpoint: None,
            });
            let answers = store.record(records.collect()).await.unwrap();
            assert!(answers.iter().all(|answer| *answer == RecordResult::Done), "{answers:?}");
            answers.len() as u64
        }
    })
    .await;
    store.close().await.unwrap();
    Rates { publishes, records }
}

pub(crate) fn attempt(store: &dyn Store) -> Box<AttemptRecord> {
    Box::new(AttemptRecord {
        id: AttemptId::from_unique(store.unique()),
        number: 1,
        outcome: Outcome::Answered { status: 200, retry_after: None },
        response_time: Duration::from_millis(12),
        timings: Timings::default(),
        timeout: Duration::from_secs(10),
        preview: Some("ok".to_owned()),
        error: None,
        attempted_at: store.now(),
        endpoint_version: Some(1),
    })
}

/// How many a second, with so many callers. It ends early when there is nothing left to do.
async fn timed<F>(callers: usize, seconds: u64, call: impl Fn() -> F + Clone + Send + 'static) -> f64
where
    F: Future<Output = u64> + Send + 'static,
{
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let until = started + Duration::from_secs(seconds);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (done, call) = (Arc::clone(&done), call.clone());
        tasks.spawn(async move {
            while Instant::now() < until {
                match call().await {
                    0 => break,
                    count => done.fetch_add(count, Ordering::Relaxed),
                };
            }
        });
    }
    tasks.join_all().await;
    done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
}
