//! Slow queries of people on PostgreSQL. On SQLite a query is made slow from within: see `sqlite/mod.rs`.

use std::sync::Arc;
use std::time::Duration;

use posthaste_store::*;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::world::World;

/// More callers than people have connections for.
const CALLERS: usize = 24;
/// People's connections: all of them wait for the lock.
const CONNECTIONS: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_queries_of_people_do_not_keep_lanes_from_their_rows() {
    let world = World::postgres().await;
    let endpoint = world.endpoint("acme").await;
    let delivery = world.delivery("acme").await;
    let url = world.server().url();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute("BEGIN; LOCK TABLE audit IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let mut slow = JoinSet::new();
    for _ in 0..CALLERS {
        let store = Arc::clone(&world.store);
        slow.spawn(async move { store.audit(None, None, 1).await.map(drop) });
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    while world.server().psql(waiting).parse::<usize>().unwrap() < CONNECTIONS {
        sleep(Duration::from_millis(20)).await;
    }
    let work = async {
        assert_eq!(world.waiting(endpoint.id).await, [delivery.seq]);
        assert_eq!(world.store.bodies(vec![delivery.seq]).await?.len(), 1);
        assert_eq!(world.store.load_endpoints(vec![endpoint.id]).await?.len(), 1);
        world.store.configuration_number().await?;
        world.store.overdue(10).await?;
        Ok::<_, Error>(())
    };
    timeout(Duration::from_secs(20), work).await.unwrap().unwrap();
    client.batch_execute("ROLLBACK").await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
    slow.join_all().await;
}
