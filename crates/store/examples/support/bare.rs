//! The same rows in the same tables with the same settings, written by a loop that does nothing else.

use std::path::Path;
use std::time::{Duration, Instant};

use posthaste_core::time::Timestamp;
use posthaste_store::partition_of;
use sha2::{Digest, Sha256};

use super::load::{Database, Rates, payload, tenant};

const GROUP: usize = 64;

pub(crate) async fn run(database: &Database, directory: &Path, seconds: u64) -> Rates {
    match database {
        Database::Sqlite(_) => {
            let database = Database::Sqlite(directory.to_owned());
            let (store, endpoint, _) = database.fresh().await;
            store.close().await.unwrap();
            drop(store);
            let (directory, endpoint) = (directory.to_owned(), endpoint.to_bytes());
            tokio::task::spawn_blocking(move || sqlite(&directory, endpoint, seconds)).await.unwrap()
        }
        Database::Postgres(server) => {
            let (store, endpoint, _) = database.fresh().await;
            // Makes the day's tables.
            store.publish(vec![super::load::event(store.as_ref(), &payload())]).await.unwrap();
            store.close().await.unwrap();
            postgres(&server.url(), endpoint.to_bytes(), seconds).await
        }
    }
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap()).as_millis()
}

fn id(n: i64) -> [u8; 16] {
    (u128::from(now().unsigned_abs()) << 80 | u128::from(n.unsigned_abs())).to_be_bytes()
}

fn sqlite(directory: &Path, endpoint: [u8; 16], seconds: u64) -> Rates {
    let connection = rusqlite::Connection::open(directory.join("posthaste.db")).unwrap();
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -65536;",
        )
        .unwrap();
    let (data, partition) = (payload(), partition_of(&tenant()));
    let mut event = connection
        .prepare(
            "INSERT INTO events (tenant, id, type, timestamp_ms, accepted_at_ms, data, digest, labels) VALUES ('acme', ?1, 'invoice.paid', ?2, ?2, ?3, ?4, '')",
        )
        .unwrap();
    let mut delivery = connection
        .prepare(
            "INSERT INTO deliveries (id, tenant, partition, endpoint, event_seq, event, type, is_priority, class, timestamp_ms, status,
                                     due_at_ms, is_later, created_at_ms)
             VALUES (?1, 'acme', ?2, ?3, ?4, ?5, 'invoice.paid', 0, 1, ?6, 'waiting', ?6, 0, ?6)",
        )
        .unwrap();
    let (started, mut rows) = (Instant::now(), 0i64);
    while started.elapsed() < Duration::from_secs(seconds) {
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        for _ in 0..GROUP {
            rows += 1;
            let (at, name) = (now(), format!("evt_{rows:026}"));
            let digest: [u8; 32] = Sha256::digest(data.as_str().as_bytes()).into();
            event.execute(rusqlite::params![name, at, data.as_str(), digest]).unwrap();
            let seq = connection.last_insert_rowid();
            delivery.execute(rusqlite::params![id(rows), partition, endpoint, seq, name, at]).unwrap();
        }
        connection.execute_batch("COMMIT").unwrap();
    }
    let publishes = rows as f64 / started.elapsed().as_secs_f64();
    let mut update = connection
        .prepare(
            "UPDATE deliveries SET status = 'delivered', due_at_ms = NULL, ended_at_ms = ?2, attempts = 1, last_attempt_at_ms = ?2,
                    last_status_code = 200 WHERE seq = ?1 AND status = 'waiting' AND attempts = 0",
        )
        .unwrap();
    let mut attempt = connection
        .prepare(
            "INSERT INTO attempts (delivery_seq, number, id, outcome, status_code, response_time_ms, timeout_ms, preview, attempted_at_ms)
             VALUES (?1, 1, ?2, 'answered', 200, 12, 10000, 'ok', ?3)",
        )
        .unwrap();
    let (started, mut done) = (Instant::now(), 0i64);
    while started.elapsed() < Duration::from_secs(seconds) && done + 64 <= rows {
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        for _ in 0..GROUP {
            done += 1;
            let at = now();
            assert_eq!(update.execute(rusqlite::params![done, at]).unwrap(), 1);
            attempt.execute(rusqlite::params![done, id(done), at]).unwrap();
        }
        connection.execute_batch("COMMIT").unwrap();
    }
    Rates { publishes, records: done as f64 / started.elapsed().as_secs_f64() }
}

async fn postgres(url: &str, endpoint: [u8; 16], seconds: u64) -> Rates {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let (data, partition) = (payload(), i16::try_from(partition_of(&tenant())).unwrap());
    let slot: i32 = client.query_one("SELECT max(slot) FROM events", &[]).await.unwrap().get(0);
    let publish = client
        .prepare(
            "WITH new AS (
               INSERT INTO events (slot, seq, tenant, id, type, timestamp_ms, accepted_at_ms, data, digest, labels)
               SELECT $1, nextval('events_seq'), 'acme', u.id, 'invoice.paid', $3, $3, u.data, u.digest, ''
               FROM unnest($2::text[], $4::text[], $5::bytea[]) AS u (id, data, digest)
               RETURNING seq, id)
             INSERT INTO deliveries (id, tenant, partition, endpoint, event_slot, event_seq, event, type, is_priority, class, timestamp_ms,
                                     status, due_at_ms, is_later, created_at_ms)
             SELECT d.id, 'acme', $6, $7, $1, new.seq, new.id, 'invoice.paid', false, 1, $3, 'waiting', $3, false, $3
             FROM new JOIN unnest($2::text[], $8::bytea[]) AS d (event, id) ON d.event = new.id",
        )
        .await
        .unwrap();
    let (started, mut rows) = (Instant::now(), 0i64);
    while started.elapsed() < Duration::from_secs(seconds) {
        // Every event has bytes of its own, as on SQLite.
        let (mut names, mut ids, mut bodies, mut digests) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..GROUP {
            rows += 1;
            names.push(format!("evt_{rows:026}"));
            ids.push(id(rows).to_vec());
            bodies.push(data.as_str());
            digests.push(Sha256::digest(data.as_str().as_bytes()).to_vec());
        }
        let at = now();
        client.execute(&publish, &[&slot, &names, &at, &bodies, &digests, &partition, &endpoint.as_slice(), &ids]).await.unwrap();
    }
    let publishes = rows as f64 / started.elapsed().as_secs_f64();
    let record = client
        .prepare(
            "WITH moved AS (
               UPDATE deliveries SET status = 'delivered', due_at_ms = NULL, ended_at_ms = $3, attempts = 1, last_attempt_at_ms = $3,
                      last_status_code = 200
               FROM unnest($2::bigint[], $4::bytea[]) AS u (seq, id)
               WHERE deliveries.seq = u.seq AND status = 'waiting' AND attempts = 0 RETURNING deliveries.seq, u.id)
             INSERT INTO attempts (slot, delivery_seq, number, id, outcome, status_code, response_time_ms, timeout_ms, preview, attempted_at_ms)
             SELECT $1, seq, 1, id, 'answered', 200, 12, 10000, 'ok', $3 FROM moved",
        )
        .await
        .unwrap();
    client
        .batch_execute(&format!("CREATE TABLE IF NOT EXISTS attempts_s{slot} PARTITION OF attempts FOR VALUES IN ({slot})"))
        .await
        .unwrap();
    let seqs: Vec<i64> =
        client.query("SELECT seq FROM deliveries ORDER BY seq", &[]).await.unwrap().into_iter().map(|row| row.get(0)).collect();
    let (started, mut done) = (Instant::now(), 0usize);
    for group in seqs.chunks(GROUP) {
        if started.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
        let ids: Vec<Vec<u8>> = group.iter().map(|seq| id(*seq).to_vec()).collect();
        assert_eq!(client.execute(&record, &[&slot, &group.to_vec(), &now(), &ids]).await.unwrap(), group.len() as u64);
        done += group.len();
    }
    Rates { publishes, records: done as f64 / started.elapsed().as_secs_f64() }
}
