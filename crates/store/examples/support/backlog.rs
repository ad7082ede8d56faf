//! What a backlog costs: opening, the next window of any lane, memory.

use std::time::{Duration, Instant};

use posthaste_core::event::Event;
use posthaste_core::id::EndpointId;
use posthaste_core::scheduler::{Class, WindowQuery};
use posthaste_core::text::OrderingKey;
use posthaste_store::{NewEvent, Store, WindowRequest};

use super::load::{Database, event, payload};

pub(crate) async fn run(database: &Database, rows: u64) {
    println!("{}: {rows} deliveries wait at one endpoint; times are the median and the longest of 100 looks\n", database.name());
    for (name, shape) in [
        ("all fresh", Shape::Fresh),
        ("half wait for a retry, ahead of the rest", Shape::HalfLater),
        ("nine tenths of one blocked key", Shape::OneKey),
        ("all held by quiet hours, and one that is not", Shape::AllRest),
    ] {
        let (store, endpoint, _) = database.fresh().await;
        fill(store.as_ref(), rows, shape).await;
        arrange(database, shape);
        store.close().await.unwrap();
        drop(store);
        let started = Instant::now();
        let store = database.open().await;
        let opening = started.elapsed();
        println!("  {name}");
        println!("    opening {:.0} ms", millis(opening));
        let wants: &[(&str, WindowQuery)] = &[
            ("fresh, exempt", WindowQuery::Fresh(Class::Exempt)),
            ("later, exempt", WindowQuery::Later(Class::Exempt)),
            ("fresh, rest", WindowQuery::Fresh(Class::Rest)),
            ("heads of keys", WindowQuery::Heads { after: None }),
        ];
        for (queue, want) in wants {
            let (median, longest, found) = look(store.as_ref(), endpoint, want).await;
            println!("    window of 256, {queue:<14} {median:>7.2} ms, longest {longest:>7.2} ms, {found} rows");
        }
        let started = Instant::now();
        let work = store.work(None, 1000).await.unwrap();
        println!("    endpoints with work    {:>7.2} ms, {} found", millis(started.elapsed()), work.len());
        println!("    memory                 {:>7} MiB", resident_mib());
        store.close().await.unwrap();
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Fresh,
    HalfLater,
    OneKey,
    AllRest,
}

async fn fill(store: &dyn Store, rows: u64, shape: Shape) {
    let data = payload();
    let mut made = 0;
    while made < rows {
        let batch: Vec<NewEvent> = (made..rows.min(made + 1000))
            .map(|n| {
                let new = event(store, &data);
                let ordering_key = match shape {
                    Shape::OneKey if n % 10 < 9 => Some(OrderingKey::parse("blocked").unwrap()),
                    Shape::OneKey => Some(OrderingKey::parse(&format!("key-{}", n % 1000)).unwrap()),
                    Shape::Fresh | Shape::HalfLater | Shape::AllRest => None,
                };
                NewEvent { event: std::sync::Arc::new(Event { ordering_key, ..new.event.as_ref().clone() }), ..new }
            })
            .collect();
        made += batch.len() as u64;
        store.publish(batch).await.unwrap();
    }
}

/// Stamps rows as days of failures, or a night, would have.
fn arrange(database: &Database, shape: Shape) {
    let sql = match shape {
        Shape::Fresh | Shape::OneKey => return,
        Shape::HalfLater => {
            "UPDATE deliveries SET is_later = (1 = 1), due_at_ms = due_at_ms + 3600000, attempts = 1 WHERE seq % 2 = 0"
        }
        Shape::AllRest => "UPDATE deliveries SET class = 2 WHERE seq > (SELECT min(seq) FROM deliveries)",
    };
    match database {
        Database::Sqlite(directory) => {
            let connection = rusqlite::Connection::open(directory.join("posthaste.db")).unwrap();
            connection.busy_timeout(Duration::from_mins(1)).unwrap();
            connection.execute_batch(sql).unwrap();
        }
        Database::Postgres(server) => {
            server.psql(sql);
            server.psql("VACUUM ANALYZE deliveries");
        }
    }
}

async fn look(store: &dyn Store, endpoint: EndpointId, want: &WindowQuery) -> (f64, f64, usize) {
    let (mut times, mut found) = (Vec::new(), 0);
    for _ in 0..100 {
        let started = Instant::now();
        let asked = WindowRequest { endpoint, want: want.clone(), limit: 256 };
        found = store.windows(vec![asked]).await.unwrap()[0].rows.len();
        times.push(millis(started.elapsed()));
    }
    times.sort_by(f64::total_cmp);
    (times[50], times[99], found)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}
