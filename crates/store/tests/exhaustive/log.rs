//! A history query that takes long cannot keep SQLite's log from being checkpointed: it stays bounded while readers hog.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::EventId;
use posthaste_core::text::Labels;
use posthaste_store::{NewEvent, Sqlite, Store};

use crate::child::{Scene, options, tenant};

/// As long as the store lets a query of its own go on, nearly.
const READ: Duration = Duration::from_millis(1_800);
/// From 64 MiB on the writer sees to it that the log begins anew; one group more may be in it by then, and what came while it waited.
const LOG_BYTES_MAX: u64 = 128 * 1024 * 1024;
const WRITTEN_BYTES: usize = 320 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_stays_bounded_while_readers_hog() {
    let scene = Scene::new("log");
    let store = Arc::new(Sqlite::open(&scene.data(), options()).unwrap());
    let (database, log) = (scene.data().join("posthaste.db"), scene.data().join("posthaste.db-wal"));
    let is_over = Arc::new(AtomicBool::new(false));
    // There is always somebody who reads, and each sees an old state until it ends.
    let readers: Vec<_> = (0..3)
        .map(|place| {
            let (is_over, database) = (Arc::clone(&is_over), database.clone());
            std::thread::spawn(move || {
                let connection = rusqlite::Connection::open(database).unwrap();
                std::thread::sleep(READ * place / 3);
                let mut reads = 0;
                while !is_over.load(Ordering::Relaxed) {
                    connection.execute_batch("BEGIN").unwrap();
                    let _: i64 = connection.query_row("SELECT count(*) FROM events", [], |row| row.get(0)).unwrap();
                    std::thread::sleep(READ);
                    connection.execute_batch("ROLLBACK").unwrap();
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    let data = Data::parse(&format!("{{\"filler\": \"{}\"}}", "x".repeat(250_000))).unwrap();
    let (mut written, mut longest_log, mut longest_write) = (0, 0, Duration::ZERO);
    while written < WRITTEN_BYTES {
        let events = (0..4).map(|_| {
            let event = Event {
                id: EventId::from_unique(store.unique()),
                tenant: tenant(),
                event_type: EventType::parse("order.paid").unwrap(),
                version: None,
                timestamp: store.now(),
                accepted_at: store.now(),
                data: data.clone(),
                labels: Labels::default(),
                idempotency_key: None,
                ordering_key: None,
                timing: Timing::default(),
                trace: None,
            };
            NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [0; 32], resolved: None }
        });
        let began = Instant::now();
        store.publish(events.collect()).await.unwrap();
        longest_write = longest_write.max(began.elapsed());
        written += 4 * data.as_str().len();
        longest_log = longest_log.max(std::fs::metadata(&log).unwrap().len());
    }
    is_over.store(true, Ordering::Relaxed);
    let reads: u32 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    println!("{written} bytes written, {reads} long reads, log up to {longest_log} bytes, longest publish {longest_write:?}");
    assert!(longest_log < LOG_BYTES_MAX, "{longest_log}");
    assert!(reads >= 3);
    store.close().await.unwrap();
}
