//! How many rows a second are moved out of an outbox, and how long one takes from its commit to its event.
//!
//! `cargo xtask bench-relay [ROWS]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::id::EventId;
use posthaste_metrics::{Format, Limits, Metrics};
use posthaste_relay::{Options, install, run};
use posthaste_store::{Keyring, MasterKey, Options as StoreOptions, Postgres, Sqlite, Store};
use posthaste_testpg::Server;
use tokio_postgres::NoTls;

const SINGLE_ROWS: usize = 200;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows: u64 = std::env::args().nth(1).map_or(Ok(20_000), |rows| rows.parse())?;
    let server = Server::start();
    let directory = std::env::temp_dir().join(format!("posthaste-bench-relay-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let options = || StoreOptions::new(Keyring::new(MasterKey::generate(), vec![]));
    let stores: [(&str, Arc<dyn Store>); 2] = [
        ("SQLite", Arc::new(Sqlite::open(&directory, options())?)),
        ("PostgreSQL", Arc::new(Postgres::connect(&server.create_database("posthaste"), options()).await?)),
    ];
    for (name, store) in stores {
        for relays in [1, 2] {
            let url = server.create_database(&format!("application_{name}_{relays}").to_lowercase());
            install(&url).await?;
            let payload =
                "SELECT 'order.made', json_build_object('number', g, 'text', repeat('x', 200))::text, 'tenant-' || g % 10";
            let sql = format!("INSERT INTO posthaste_outbox (type, data, tenant) {payload} FROM generate_series(1, {rows}) g");
            server.psql_at(&url, &sql)?;
            measure(name, relays, &store, &url, rows).await?;
        }
        store.close().await?;
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

async fn measure(
    name: &str,
    relays: usize,
    store: &Arc<dyn Store>,
    url: &str,
    rows: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let metrics = Metrics::new(Limits::default(), "bench");
    let options = || Options { metrics: Some(metrics.clone()), ..Options::new(url) };
    let began = Instant::now();
    let running: Vec<_> = (0..relays).map(|_| tokio::spawn(run(Arc::clone(store), options(), std::future::pending()))).collect();
    let moved = || {
        let page = metrics.page(Format::Text);
        let line = page.lines().find_map(|line| line.strip_prefix("webhook_outbox_relayed_total "));
        line.and_then(|count| count.parse().ok()).unwrap_or(0_u64)
    };
    while moved() < rows {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let took = began.elapsed();
    println!("{name}, relays: {relays}: {:.0} rows/s ({rows} in {:.2} s)", rows as f64 / took.as_secs_f64(), took.as_secs_f64());

    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let mut latencies = Vec::new();
    for _ in 0..SINGLE_ROWS {
        let row = client.query_one("SELECT posthaste_publish('order.made', '{}')::text", &[]).await?;
        let committed = Instant::now();
        let id = EventId::parse(&format!("evt_{}", row.get::<_, String>(0)))?;
        while store.event(None, id.clone()).await?.is_none() {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        latencies.push(committed.elapsed());
    }
    latencies.sort_unstable();
    let at = |share: usize| latencies[(latencies.len() - 1) * share / 100];
    println!("{name}, relays: {relays}: commit to event: median {:.1?}, p95 {:.1?}, p99 {:.1?}", at(50), at(95), at(99));
    for relay in running {
        relay.abort();
    }
    Ok(())
}
