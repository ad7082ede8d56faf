//! I42: a schema that is brought up to date is killed anywhere, by several at once, and from an old one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use posthaste_core::endpoint::Endpoint;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{DeliveryId, EndpointId, EventId};
use posthaste_core::text::Labels;
use posthaste_store::{Audit, Change, DeliveryQuery, Error, NewEndpoint, NewEvent, Postgres, Published, Sqlite, Store};
use posthaste_testpg::{Cut, Proxy, Server};

use crate::child::{Scene, options, tenant};

/// By their files, the first to the last.
fn steps() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/postgres");
    let names = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The number that a step's name begins with.
fn version_of(step: &str) -> u32 {
    step[..4].parse().unwrap()
}

fn audit() -> Audit {
    let text = |text: &str| text.to_owned();
    Audit { actor: text("a"), address: None, action: text("x"), subject: text("s"), tenant: None, before: None, after: None }
}

/// Makes an endpoint if there is none, and publishes.
async fn works(store: &dyn Store) -> EventId {
    if store.endpoints(posthaste_store::EndpointQuery { limit: 1, ..Default::default() }).await.unwrap().is_empty() {
        let id = EndpointId::from_unique(store.unique());
        let endpoint = Endpoint::new(id, tenant(), "https://example.com/".to_owned(), store.now());
        let new = NewEndpoint { endpoint, secrets: vec![], per_tenant_max: 1, tenant_created_at: None };
        store.configure(Change::CreateEndpoint(Box::new(new)), audit()).await.unwrap().unwrap();
    }
    let event = Event {
        id: EventId::from_unique(store.unique()),
        tenant: tenant(),
        event_type: EventType::parse("order.paid").unwrap(),
        version: None,
        timestamp: store.now(),
        accepted_at: store.now(),
        data: Data::parse("{}").unwrap(),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    };
    let id = event.id.clone();
    let new = NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [0; 32], resolved: None };
    assert_eq!(store.publish(vec![new]).await.unwrap(), [Published::Made { deliveries: 1 }]);
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i42_on_postgres_a_migration_goes_on_wherever_it_was_cut_off() {
    let server = Server::start();
    let steps = steps();
    // In each of its steps, before the server has heard of it and after.
    for cut in [Cut::Before, Cut::AfterAnswer] {
        for (place, step) in steps.iter().enumerate() {
            let database = format!("cut_{place}_{}", cut == Cut::Before);
            let url = server.create_database(&database);
            let proxy = Proxy::start(server.port());
            proxy.cut_next_statement(step, cut);
            assert!(Postgres::connect(&proxy.url_of(&database), options()).await.is_err(), "{step} {cut:?}");
            assert_eq!(proxy.cuts(), 1, "{step}");
            let version = server.psql_at(&url, "SELECT coalesce(max(version), 0) FROM schema").unwrap();
            let before = place.checked_sub(1).map_or(0, |before| version_of(&steps[before]));
            assert_eq!(version, before.to_string(), "the steps before it are there, and it is not");
            if place % 5 == 0 || place + 1 == steps.len() {
                let store = Postgres::connect(&url, options()).await.unwrap();
                works(&store).await;
                store.close().await.unwrap();
            }
        }
    }
    // At each of its commits: every start goes one step further.
    let url = server.create_database("commits");
    let proxy = Proxy::start(server.port());
    for step in &steps {
        proxy.cut_next_commit(Cut::AfterAnswer);
        assert!(Postgres::connect(&proxy.url_of("commits"), options()).await.is_err());
        let version = server.psql_at(&url, "SELECT version FROM schema").unwrap();
        assert_eq!(version, version_of(step).to_string(), "what was committed is not done again");
    }
    works(&Postgres::connect(&proxy.url_of("commits"), options()).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i42_many_nodes_migrate_at_once_and_one_of_them_dies() {
    let server = Server::start();
    let url = server.url();
    let proxy = Proxy::start(server.port());
    proxy.cut_next_statement("0009_deliveries.sql", Cut::AfterAnswer);
    let mut nodes = tokio::task::JoinSet::new();
    let through_proxy = proxy.url();
    nodes.spawn(async move { Postgres::connect(&through_proxy, options()).await.is_ok() });
    for _ in 0..5 {
        let url = url.clone();
        nodes.spawn(async move {
            let store = Postgres::connect(&url, options()).await.unwrap();
            store.nodes().await.is_ok()
        });
    }
    let worked = nodes.join_all().await.into_iter().filter(|worked| *worked).count();
    assert!(worked >= 5, "whoever was not cut off is well: {worked}");
    assert_eq!(server.psql("SELECT count(*) FROM schema"), "1");
    assert_eq!(server.psql("SELECT count(*) FROM partitions"), "256", "each step was done once");
    works(&Postgres::connect(&url, options()).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i42_on_sqlite_a_first_start_goes_on_wherever_it_was_killed() {
    // Every write of the first ones, and then every so many until it is past its migrations and publishes.
    let places = (1..12).chain((12..).step_by(23));
    let mut has_published = false;
    for when in places {
        let scene = Scene::new(&format!("migration-{when}"));
        let inject = format!("inject=pwrite64,write,fsync,fdatasync,ftruncate:signal=KILL:when={when}");
        let data = scene.data();
        let files: Vec<PathBuf> = ["posthaste.db", "posthaste.db-wal"].iter().map(|name| data.join(name)).collect();
        let paths: Vec<&str> = files.iter().map(|path| path.to_str().unwrap()).collect();
        let mut words = vec!["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64,write,fsync,fdatasync,ftruncate"];
        for path in &paths {
            words.extend(["-P", path]);
        }
        words.extend(["-e", &inject]);
        let mut child = scene.start(&words);
        child.wait().unwrap();
        has_published = !scene.lines().is_empty();
        scene.check().await;
        let store = Sqlite::open(&data, options()).unwrap_or_else(|error| panic!("killed at {when}: {error}"));
        works(&store).await;
        store.close().await.unwrap();
        if has_published || when > 5_000 {
            println!("killed at up to {when} writes");
            break;
        }
    }
    assert!(has_published);
}

/// Takes away what the last steps have added, as if a version before them had written it.
const DOWNGRADE: &str = "DROP TABLE retained; ALTER TABLE tenants DROP COLUMN deleted_to; DELETE FROM counters WHERE name = 'removed_tenant_version';
     DROP INDEX tenants_deleted; DROP INDEX endpoints_deleted; DROP INDEX keys_ended; DROP INDEX replays_ended; DROP INDEX handed_over_by_deadline;
     ALTER TABLE lanes DROP COLUMN version; DROP TABLE uncounted_attempts; ALTER TABLE tenants DROP COLUMN first_event;
     DROP TABLE replay_progress; ALTER TABLE replays DROP COLUMN steps; ALTER TABLE replays DROP COLUMN last_delivery;
     ALTER TABLE replays DROP COLUMN skipped_erased; ALTER TABLE replays DROP COLUMN skipped_already_redelivered;
     ALTER TABLE replays DROP COLUMN skipped_unsubscribed; DROP TABLE minutes; DROP TABLE minutes_of_tenants; ALTER TABLE events DROP COLUMN trace_context;
     DROP TABLE sessions; DROP INDEX endpoints_disabled;
     DROP TABLE endpoint_versions; ALTER TABLE attempts DROP COLUMN endpoint_version; ALTER TABLE deliveries DROP COLUMN last_endpoint_version;
     DELETE FROM schema; INSERT INTO schema VALUES (13, 13);";
const DOWNGRADE_SQLITE: &str = "DELETE FROM counters WHERE name IN ('event_number', 'delivery_number', 'audit_number');
     DROP INDEX events_by_id; CREATE UNIQUE INDEX events_by_id ON events (id, tenant); DROP INDEX deliveries_made_later; CREATE UNIQUE INDEX deliveries_by_id ON deliveries (id);
     CREATE UNIQUE INDEX deliveries_by_event ON deliveries (event_seq, endpoint, (CASE WHEN replay_of IS NULL THEN 0 ELSE seq END));
     DROP INDEX deliveries_queued; DROP INDEX deliveries_dead; DROP INDEX deliveries_dead_by_tenant;
     CREATE INDEX deliveries_dead ON deliveries (ended_at_ms, seq) WHERE status = 'dead' AND replayed_as IS NULL;
     CREATE INDEX deliveries_dead_by_tenant ON deliveries (tenant, ended_at_ms, seq) WHERE status = 'dead' AND replayed_as IS NULL;
     CREATE INDEX deliveries_fresh ON deliveries (endpoint, class, timestamp_ms) WHERE is_later = 0 AND ordering_key IS NULL AND status = 'waiting';
     CREATE INDEX deliveries_later ON deliveries (endpoint, class, due_at_ms) WHERE is_later = 1 AND ordering_key IS NULL AND status = 'waiting';
     CREATE INDEX deliveries_keyed ON deliveries (endpoint, ordering_key, seq) WHERE ordering_key IS NOT NULL AND status = 'waiting';
     ALTER TABLE events DROP COLUMN first_delivery; ALTER TABLE events DROP COLUMN deliveries;";
const DOWNGRADE_POSTGRES: &str =
    "ALTER TABLE tenants DROP COLUMN events_swept_to; ALTER TABLE tenants DROP COLUMN events_deleted_to;
     CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at_ms); DROP INDEX idempotency_keys_by_kind_and_expiry;
     DROP TABLE commands; DROP TABLE lanes_shown; DROP INDEX idempotency_keys_by_id;
     ALTER TABLE events_kept DROP COLUMN trace_context; ALTER TABLE attempts_kept DROP COLUMN endpoint_version;
     ALTER TABLE handed_over DROP COLUMN node;";

fn by_hand(data: &Path, sql: &str) {
    rusqlite::Connection::open(data.join("posthaste.db")).unwrap().execute_batch(sql).unwrap();
}

/// Rows are found by their ids because these grow from row to row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_are_found_by_their_ids_though_the_clock_was_set_back_and_some_are_gone() {
    let scene = Scene::new("ids");
    let store = Sqlite::open(&scene.data(), options()).unwrap();
    for _ in 0..20 {
        works(&store).await;
    }
    store.close().await.unwrap();
    drop(store);
    // The last was made when the clock was years ahead; and those that have ended are gone.
    by_hand(
        &scene.data(),
        "UPDATE deliveries SET id = x'0fffffffffff7000800000000000000a' WHERE seq = (SELECT max(seq) FROM deliveries);
         DELETE FROM deliveries WHERE seq % 7 IN (1, 2, 3);",
    );
    let store = Sqlite::open(&scene.data(), options()).unwrap();
    for _ in 0..5 {
        works(&store).await;
    }
    let rows = store.deliveries(DeliveryQuery { limit: 100, ..DeliveryQuery::default() }).await.unwrap().rows;
    assert!(rows.len() > 10 && rows.iter().any(|row| row.id.to_bytes().starts_with(&[0x0f, 0xff])), "{}", rows.len());
    for row in &rows {
        assert_eq!(store.delivery(None, row.id).await.unwrap().map(|found| found.seq), Some(row.seq));
        let of_event = DeliveryQuery { event: Some(row.event.clone()), limit: 10, ..DeliveryQuery::default() };
        let found = store.deliveries(of_event).await.unwrap().rows;
        assert_eq!(found.iter().map(|row| row.id).collect::<Vec<_>>(), [row.id], "one for each event");
    }
    let absent = [DeliveryId::from_bytes([0; 16]), DeliveryId::from_bytes([0xff; 16]), DeliveryId::from_unique(store.unique())];
    for id in absent {
        assert!(store.delivery(None, id).await.unwrap().is_none());
        assert!(store.attempts(id).await.unwrap().is_empty());
    }
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i42_what_an_older_version_has_written_is_brought_up_to_date_and_a_newer_one_is_left_alone() {
    let scene = Scene::new("old");
    let store = Sqlite::open(&scene.data(), options()).unwrap();
    let event = works(&store).await;
    store.close().await.unwrap();
    drop(store);
    by_hand(&scene.data(), DOWNGRADE_SQLITE);
    by_hand(&scene.data(), DOWNGRADE);
    let store = Sqlite::open(&scene.data(), options()).unwrap();
    let found = store.event(Some(tenant()), event.clone()).await.unwrap().unwrap();
    assert!(found.data.is_some(), "old rows are there");
    assert_eq!(found.deliveries.iter().sum::<u64>(), 1, "and their deliveries are still theirs");
    let theirs = store.deliveries(DeliveryQuery { event: Some(event), limit: 10, ..DeliveryQuery::default() }).await.unwrap().rows;
    assert_eq!(store.delivery(None, theirs[0].id).await.unwrap().unwrap().seq, theirs[0].seq);
    store.count().await.unwrap();
    works(&store).await;
    store.close().await.unwrap();
    drop(store);
    by_hand(&scene.data(), "UPDATE schema SET version = 99");
    let store = Sqlite::open(&scene.data(), options()).unwrap();
    works(&store).await;
    store.close().await.unwrap();
    drop(store);
    by_hand(&scene.data(), "UPDATE schema SET usable_from = 99");
    assert!(matches!(Sqlite::open(&scene.data(), options()).unwrap_err(), Error::TooNew));

    let server = Server::start();
    let store = Postgres::connect(&server.url(), options()).await.unwrap();
    let event = works(&store).await;
    store.close().await.unwrap();
    server.psql(DOWNGRADE_POSTGRES);
    server.psql(DOWNGRADE);
    let store = Postgres::connect(&server.url(), options()).await.unwrap();
    assert!(store.event(Some(tenant()), event).await.unwrap().unwrap().data.is_some(), "old rows are there");
    works(&store).await;
    store.close().await.unwrap();
    server.psql("UPDATE schema SET version = 99");
    works(&Postgres::connect(&server.url(), options()).await.unwrap()).await;
    server.psql("UPDATE schema SET usable_from = 99");
    assert!(matches!(Postgres::connect(&server.url(), options()).await.unwrap_err(), Error::TooNew));
}
