//! What is moved, what it becomes, what stays, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use posthaste_core::catalogue::{Contract, Entry};
use posthaste_core::event::EventType;
use posthaste_core::text::Version;
use posthaste_core::time::Timestamp;
use posthaste_relay::Options;
use posthaste_store::{Audit, Change};

use crate::world::{Kept, World};

/// What a JSON library would not give back as it was.
const PAYLOADS: [&str; 9] = [
    r#"{"b": 1,  "a":2 }"#,
    " \t{\"spaces\" :\r\n [ ] }\n ",
    r#"{"a":1,"a":2}"#,
    "123456789012345678901234567890.10",
    r#"{"big":9007199254740993,"exact":1.10,"e":1E5}"#,
    r#"{"ä":"\u00e4 ä 😀 \ud83d\ude00","null":"\u0000"}"#,
    r#""it's a text""#,
    "null",
    r#"[[[[{"deep":[true,false]}]]]]"#,
];

async fn arrives_to_the_byte(kept: Kept) {
    let world = World::new(kept).await;
    let relay = world.relay();
    let mut ids = Vec::new();
    for payload in PAYLOADS {
        ids.push(world.sql(&format!("SELECT posthaste_publish('a.b', $data${payload}$data$)")).await);
    }
    let large = format!("[\"{}\"]", "x".repeat(900_000));
    world.sql("INSERT INTO posthaste_outbox (type, data) SELECT 'large', '[\"' || repeat('x', 900000) || '\"]' FROM generate_series(1, 5)").await;
    world.wait_until_empty().await;
    for (payload, id) in PAYLOADS.iter().zip(&ids) {
        let event = world.event(id).await.unwrap();
        assert_eq!(event.data.as_ref().map(posthaste_core::event::Data::as_str), Some(*payload));
        assert_eq!((event.tenant.as_str(), event.event_type.as_str()), ("default", "a.b"));
    }
    let events = world.events().await;
    assert_eq!(events.len(), PAYLOADS.len() + 5);
    let last = events.last().unwrap();
    let last = world.store.event(None, last.id.clone()).await.unwrap().unwrap();
    assert_eq!(last.data.unwrap().as_str(), large);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_arrives_to_the_byte_in_sqlite() {
    arrives_to_the_byte(Kept::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_arrives_to_the_byte_in_postgresql() {
    arrives_to_the_byte(Kept::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_a_row_says_its_event_says() {
    let world = World::new(Kept::Sqlite).await;
    let relay = world.relay();
    let id = world
        .sql(
            "SELECT posthaste_publish('a.b', '{}', 'acme', 'v1', 'key', 'order', now() + interval '1 day', 'infinity',
                                      '2020-01-02T03:04:05.678999Z')",
        )
        .await;
    let plain =
        world.sql("INSERT INTO posthaste_outbox (type, data, created_at) VALUES ('a.b', '{}', '2021-01-01Z') RETURNING id").await;
    // It was good when it was written; what became of it is for its deliveries to say.
    let expired = world
        .sql("INSERT INTO posthaste_outbox (type, data, created_at, expires_at) VALUES ('a.b', '1', '2021-01-01Z', '2021-01-02Z') RETURNING id")
        .await;
    world.wait_until_empty().await;
    let event = world.event_of("acme", &id).await;
    assert_eq!(event.version.unwrap().as_str(), "v1");
    assert_eq!(event.idempotency_key.unwrap().as_str(), "key");
    assert_eq!(event.ordering_key.unwrap().as_str(), "order");
    assert_eq!(event.timestamp.to_rfc3339(), "2020-01-02T03:04:05.678Z");
    assert!(event.timing.deliver_at().unwrap() > world.store.now());
    assert_eq!(event.timing.expires_at(), Some(Timestamp::MAX));
    assert_eq!(world.event(&plain).await.unwrap().timestamp.to_rfc3339(), "2021-01-01T00:00:00.000Z", "when it was written");
    assert_eq!(world.event(&expired).await.unwrap().timing.expires_at().unwrap().to_rfc3339(), "2021-01-02T00:00:00.000Z");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_rolled_back_is_never_moved() {
    let world = World::new(Kept::Sqlite).await;
    let relay = world.relay();
    for number in 0..20 {
        let end = if number % 2 == 0 { "COMMIT" } else { "ROLLBACK" };
        world.sql(&format!("BEGIN; SELECT posthaste_publish('a.b', '{number}'); {end}")).await;
    }
    world.sql("BEGIN; SELECT posthaste_publish('a.b', '100'); SAVEPOINT s; SELECT posthaste_publish('a.b', '101'); ROLLBACK TO s; COMMIT").await;
    world.wait_until_empty().await;
    let mut seen = BTreeSet::new();
    for event in world.events().await {
        let event = world.store.event(None, event.id).await.unwrap().unwrap();
        seen.insert(event.data.unwrap().as_str().parse::<u32>().unwrap());
    }
    assert_eq!(seen, (0..20).step_by(2).chain([100]).collect());
    relay.stop().await;
}

async fn bad_rows_keep_back_nobody(kept: Kept) {
    let world = World::new(kept).await;
    let bad = [
        ("'no type', '{}', NULL", "type: "),
        ("'a.b', '{', NULL", "data: "),
        ("'a.b', '', NULL", "data: "),
        ("'a.b', '{}', 'no tenant'", "tenant: "),
        ("'a.b', '[' || repeat('1,', 1000000) || '1]', NULL", "data: it is larger than"),
    ];
    for (values, _) in bad {
        world.sql(&format!("INSERT INTO posthaste_outbox (type, data, tenant) VALUES ({values})")).await;
        world.sql("INSERT INTO posthaste_outbox (type, data) SELECT 'good', g::text FROM generate_series(1, 100) g").await;
    }
    world.sql("INSERT INTO posthaste_outbox (type, data, deliver_at) VALUES ('a.b', '1', 'infinity')").await;
    world.sql("INSERT INTO posthaste_outbox (type, data, ordering_key) VALUES ('a.b', '1', 'a b')").await;
    let relay = world.relay();
    world.wait_until("the good ones are moved", async || world.rows().await == bad.len() + 2).await;
    assert_eq!(world.events().await.len(), 100 * bad.len());
    let kept = world.sql("SELECT attempts, last_error, next_attempt_at > now() FROM posthaste_outbox ORDER BY position").await;
    let expected = bad.iter().map(|(_, error)| *error).chain(["deliver_at: ", "ordering_key: "]);
    for (row, error) in kept.lines().zip(expected) {
        assert!(row.starts_with(&format!("1|{error}")) && row.ends_with("|t"), "{row}, expected {error}");
    }
    world.wait_until("they are counted", async || world.metric("webhook_outbox_failed_rows") == Some(7.0)).await;
    assert_eq!(world.metric("webhook_outbox_relayed_total"), Some(500.0));
    let told = posthaste_relay::status(&world.url).await.unwrap();
    assert_eq!((told.waiting.failed, told.failed.len()), (7, 7));
    assert!(told.failed.iter().all(|row| row.attempts == 1 && !row.error.is_empty()), "{told:?}");
    // Mended by a person, and looked at when they say so.
    world.sql("UPDATE posthaste_outbox SET type = 'a.b', data = '{}', tenant = NULL, deliver_at = NULL, ordering_key = NULL, next_attempt_at = now()").await;
    world.wait_until_empty().await;
    assert_eq!(world.events().await.len(), 100 * bad.len() + 7);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_row_stays_with_its_error_and_keeps_back_nobody_in_sqlite() {
    bad_rows_keep_back_nobody(Kept::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_row_stays_with_its_error_and_keeps_back_nobody_in_postgresql() {
    bad_rows_keep_back_nobody(Kept::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_and_strict_tenants_are_kept_to_as_in_the_api_and_what_was_moved_before_them_was_moved() {
    let world = World::new(Kept::Sqlite).await;
    let audit = || Audit {
        actor: "test".to_owned(),
        address: None,
        action: "event_type.create".to_owned(),
        subject: "a.b".to_owned(),
        tenant: None,
        before: None,
        after: None,
    };
    let entry = Entry {
        name: EventType::parse("a.b").unwrap(),
        description: String::new(),
        versions: vec![(
            Version::parse("v1").unwrap(),
            Contract { schema: Some(r#"{"type": "object"}"#.to_owned()), example: None },
        )],
        deprecated_at: None,
        is_priority: false,
    };
    // Moved by a relay that dies before it has deleted the row: it is put back as it was.
    let row = "INSERT INTO posthaste_outbox (id, type, data) VALUES ('0192f0c1-7e2a-7c3d-9f00-1234567890ab', 'a.b', '[1]')";
    world.sql(row).await;
    let relay = world.relay();
    world.wait_until_empty().await;
    relay.stop().await;
    world.store.configure(Change::PutEventType(Box::new(entry)), audit()).await.unwrap().unwrap();
    world.sql(row).await;
    world.sql("SELECT posthaste_publish('a.b', '[2]')").await;
    world.sql("SELECT posthaste_publish('a.b', '{}')").await;
    world.sql("SELECT posthaste_publish('a.b', '{}', version => 'v2')").await;
    world.sql("SELECT posthaste_publish('other', '{}', 'acme')").await;
    let relay = world.relay_with(Options { strict_tenants: true, ..world.options() });
    world
        .wait_until("those that can go have gone", async || {
            world.sql("SELECT count(*) FROM posthaste_outbox WHERE attempts = 0").await == "0"
        })
        .await;
    let kept = world.sql("SELECT data, left(last_error, 9) FROM posthaste_outbox ORDER BY position").await;
    assert_eq!(kept, "[2]|data: doe\n{}|version: \n{}|tenant: t");
    assert_eq!(world.events().await.len(), 2, "the one before and the good one");
    relay.stop().await;
}

async fn keys_mean_what_they_mean(kept: Kept) {
    let world = World::new(kept).await;
    let relay = world.relay();
    let first = world.sql("SELECT posthaste_publish('a.b', '{\"a\": 1}', idempotency_key => 'k1')").await;
    world.wait_until_empty().await;
    world.sql("SELECT posthaste_publish('a.b', '{\"a\": 1}', idempotency_key => 'k1')").await;
    world.sql("SELECT posthaste_publish('a.b', '{\"a\": 1}', 'acme', idempotency_key => 'k1')").await;
    world.sql("SELECT posthaste_publish('a.b', '{\"a\":1}', idempotency_key => 'k1')").await;
    // Twice in one group.
    world.sql("SELECT posthaste_publish('a.b', '{}', idempotency_key => 'k2'), posthaste_publish('a.b', '{}', idempotency_key => 'k2')").await;
    world
        .wait_until("one stays", async || world.sql("SELECT string_agg(attempts::text, ',') FROM posthaste_outbox").await == "1")
        .await;
    assert_eq!(
        world.sql("SELECT last_error FROM posthaste_outbox").await,
        "idempotency_key: it was used before, with another body"
    );
    let events = world.events().await;
    assert_eq!(events.len(), 3, "one for each key and tenant: {events:?}");
    assert!(events.iter().any(|event| event.id.as_str() == format!("evt_{first}")), "the first one stands");
    assert_eq!(world.metric("webhook_outbox_relayed_total"), Some(5.0), "the others count as moved");

    // The row's own id, with something else in it.
    world.sql("DELETE FROM posthaste_outbox").await;
    world.sql(&format!("INSERT INTO posthaste_outbox (id, type, data) VALUES ('{first}', 'a.b', '[]')")).await;
    world.wait_until("it is refused", async || world.sql("SELECT max(attempts) FROM posthaste_outbox").await == "1").await;
    let error = world.sql("SELECT last_error FROM posthaste_outbox").await;
    assert_eq!(error, "id: an event was made from this id before, with another body");
    assert_eq!(world.events().await.len(), 3);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idempotency_key_means_what_it_means_in_the_api_with_sqlite() {
    keys_mean_what_they_mean(Kept::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idempotency_key_means_what_it_means_in_the_api_with_postgresql() {
    keys_mean_what_they_mean(Kept::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_keep_the_order_within_each_key_and_move_everything_once() {
    let world = World::new(Kept::Postgres).await;
    let relays = [world.relay(), world.relay()];
    for batch in 0..10 {
        // Rows of a key in the order of their numbers, over many transactions, with others between them.
        world
            .sql(&format!(
                "INSERT INTO posthaste_outbox (type, data, ordering_key, created_at)
                 SELECT 'a.b', ({batch} * 200 + g)::text, CASE WHEN g % 4 > 0 THEN 'key-' || g % 4 END, '2026-01-01Z'
                 FROM generate_series(1, 200) g ORDER BY g"
            ))
            .await;
    }
    world.wait_until_empty().await;
    for relay in relays {
        relay.stop().await;
    }
    let mut by_key: BTreeMap<Option<String>, Vec<u32>> = BTreeMap::new();
    for event in world.events().await {
        let event = world.store.event(None, event.id).await.unwrap().unwrap();
        let number = event.data.unwrap().as_str().parse().unwrap();
        by_key.entry(event.ordering_key.map(|key| key.to_string())).or_default().push(number);
    }
    assert_eq!(by_key.values().map(Vec::len).sum::<usize>(), 2000);
    for key in ["key-1", "key-2", "key-3"] {
        assert!(by_key[&Some(key.to_owned())].is_sorted(), "{key}: {:?}", by_key[&Some(key.to_owned())]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_woken_at_once_by_a_call_and_by_a_plain_insert_and_looks_by_itself_if_it_is_not() {
    let world = World::new(Kept::Sqlite).await;
    // An hour until it would look by itself.
    let relay = world.relay_with(Options { poll: Duration::from_hours(1), ..world.options() });
    world.wait_until("it is there", async || world.metric("webhook_outbox_up") == Some(1.0)).await;
    let mut took = Vec::new();
    for insert in ["SELECT posthaste_publish('a.b', '{}')", "INSERT INTO posthaste_outbox (type, data) VALUES ('a.b', '{}')"] {
        let before = world.events().await.len();
        world.sql(insert).await;
        let committed = std::time::Instant::now();
        world.wait_until("it has come", async || world.events().await.len() == before + 1).await;
        took.push(committed.elapsed());
    }
    println!("from the end of psql to the event, seen every 10 ms: {took:?}");
    relay.stop().await;

    // Nobody is told of this one.
    let relay = world.relay();
    world.sql("BEGIN; SET LOCAL session_replication_role = replica; INSERT INTO posthaste_outbox (type, data) VALUES ('a.b', '3'); COMMIT").await;
    world.wait_until_empty().await;
    assert_eq!(world.events().await.len(), 3);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rows_that_were_refused_cost_the_others_nothing() {
    let world = World::new(Kept::Sqlite).await;
    world
        .sql(
            "INSERT INTO posthaste_outbox (type, data, attempts, next_attempt_at, ordering_key)
             SELECT 'a.b', '{', 3, now() + interval '1 hour', CASE WHEN g % 2 = 0 THEN 'k' END FROM generate_series(1, 20000) g",
        )
        .await;
    // What was read is told when the session that has read it ends, together with what it has deleted.
    let deleted = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'posthaste_outbox'";
    let read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'posthaste_outbox'";
    let before: u64 = world.sql(read).await.parse().unwrap();
    // Without metrics, which count.
    let relay = world.relay_with(Options { metrics: None, ..world.options() });
    for number in 0..10 {
        world.sql(&format!("SELECT posthaste_publish('good', '{number}')")).await;
    }
    world.wait_until("they are moved", async || world.events().await.len() == 10).await;
    relay.stop().await;
    world.wait_until("the server has counted", async || world.sql(deleted).await == "10").await;
    let after: u64 = world.sql(read).await.parse().unwrap();
    assert!(after - before < 1000, "{} rows were read to move ten", after - before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_has_spoken_of_an_outbox_one_that_is_there_is_relayed_and_none_is_not_missed() {
    let world = World::without_outbox(Kept::Postgres).await;
    let unsaid = || Options { is_certain: false, ..world.options() };
    let relay = world.relay_with(unsaid());
    relay.stop().await;
    assert_eq!(world.metric("webhook_outbox_up"), None, "there is nothing to be shown");
    posthaste_relay::install(&world.url).await.unwrap();
    let relay = world.relay_with(unsaid());
    world.sql("SELECT posthaste_publish('a.b', '{}')").await;
    world.wait_until_empty().await;
    world.wait_until("it is shown", async || world.metric("webhook_outbox_up") == Some(1.0)).await;
    assert_eq!(world.events().await.len(), 1);
    relay.stop().await;
}
