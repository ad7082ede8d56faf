//! I19: whatever dies and whenever, every row that was committed becomes one event, and no other does.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_relay::outbox::{Bounds, Outbox};
use posthaste_relay::{Options, OutboxError, install, uninstall};
use posthaste_store::SecretText;
use posthaste_testpg::{Cut, Proxy};

use crate::world::{Kept, World, postgres_store};

/// The numbers in the payloads of all events, of which none comes twice.
async fn numbers(world: &World) -> BTreeSet<u32> {
    let mut seen = BTreeSet::new();
    for event in world.events().await {
        let event = world.store.event(None, event.id).await.unwrap().unwrap();
        let number = event.data.unwrap().as_str().parse().unwrap();
        assert!(seen.insert(number), "{number} has become two events");
    }
    seen
}

async fn the_answer_to_the_end_is_lost(kept: Kept) {
    let world = World::new(kept).await;
    let proxy = Proxy::start(world.server.port());
    for (round, cut) in [Cut::Before, Cut::AfterAnswer, Cut::Before].into_iter().enumerate() {
        let first = round * 100;
        world.sql(&format!("INSERT INTO posthaste_outbox (type, data, idempotency_key) SELECT 'a.b', g::text, nullif('key-' || g, 'key-{}') FROM generate_series({first}, {first} + 99) g", first + 1)).await;
        let cuts = proxy.cuts();
        // A relay commits when it has moved something, and not before.
        proxy.cut_next_commit(cut);
        let relay = world.relay_with(Options { url: SecretText(proxy.url_of("application")), ..world.options() });
        world.wait_until_empty().await;
        relay.stop().await;
        assert_eq!(proxy.cuts(), cuts + 1, "the connection was lost between publishing and forgetting");
    }
    assert_eq!(numbers(&world).await, (0..300).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i19_a_relay_that_is_cut_off_after_publishing_makes_no_second_event_in_sqlite() {
    the_answer_to_the_end_is_lost(Kept::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i19_a_relay_that_is_cut_off_after_publishing_makes_no_second_event_in_postgresql() {
    the_answer_to_the_end_is_lost(Kept::Postgres).await;
}

async fn relays_die_under_load(kept: Kept) {
    let world = World::new(kept).await;
    let is_over = AtomicBool::new(false);
    let writing = async {
        let mut committed = BTreeSet::new();
        for transaction in 0..60_u32 {
            let numbers = transaction * 20..transaction * 20 + 20;
            let is_committed = transaction % 3 != 0;
            let end = if is_committed { "COMMIT" } else { "ROLLBACK" };
            world
                .sql(&format!(
                    "BEGIN; INSERT INTO posthaste_outbox (type, data, ordering_key)
                            SELECT 'a.b', g::text, CASE WHEN g % 2 = 0 THEN 'k' END FROM generate_series({}, {}) g; {end}",
                    numbers.start,
                    numbers.end - 1
                ))
                .await;
            if is_committed {
                committed.extend(numbers);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        committed
    };
    let killing = async {
        let mut kills = 0;
        while !is_over.load(Ordering::Relaxed) {
            let relays = [world.relay(), world.relay()];
            // Somewhere in the middle of what they do, not always the same.
            tokio::time::sleep(Duration::from_millis(5 + kills * 7 % 60)).await;
            for relay in relays {
                relay.kill().await;
                kills += 1;
            }
        }
        kills
    };
    let (committed, kills) = tokio::join!(writing, killing);
    let relay = world.relay();
    world.wait_until_empty().await;
    relay.stop().await;
    println!("{} rows over {kills} deaths", committed.len());
    assert!(kills > 10, "{kills}");
    assert_eq!(numbers(&world).await, committed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i19_two_relays_that_die_again_and_again_lose_nothing_and_double_nothing_in_sqlite() {
    relays_die_under_load(Kept::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i19_two_relays_that_die_again_and_again_lose_nothing_and_double_nothing_in_postgresql() {
    relays_die_under_load(Kept::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i19_an_application_s_database_may_go_away_and_come_back() {
    let world = World::new(Kept::Sqlite).await;
    let relay = world.relay();
    for round in 0..3_u32 {
        world
            .sql(&format!(
                "INSERT INTO posthaste_outbox (type, data) SELECT 'a.b', g::text FROM generate_series({0}, {0} + 499) g",
                round * 500
            ))
            .await;
        if round == 1 {
            world.server.kill();
            world.wait_until("it is shown to be gone", async || world.metric("webhook_outbox_up") == Some(0.0)).await;
            world.server.begin();
        } else {
            world.server.restart_immediately();
        }
    }
    world.wait_until_empty().await;
    world.wait_until("it is shown to be back", async || world.metric("webhook_outbox_up") == Some(1.0)).await;
    relay.stop().await;
    assert_eq!(numbers(&world).await, (0..1500).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_not_there_is_said_to_be_missing_and_found_when_it_is() {
    let world = World::without_outbox(Kept::Sqlite).await;
    let relay = world.relay();
    world.wait_until("it is shown to be of no use", async || world.metric("webhook_outbox_up") == Some(0.0)).await;
    let told = OutboxError::NotInstalled.to_string();
    assert!(told.contains("posthaste outbox install"), "{told}");
    install(&world.url).await.unwrap();
    world.sql("SELECT posthaste_publish('a.b', '1')").await;
    world.wait_until_empty().await;
    // Removed while it runs, and made again.
    world.wait_until("nobody holds it", async || uninstall(&world.url, false).await.is_ok()).await;
    world.wait_until("it is missed", async || world.metric("webhook_outbox_up") == Some(0.0)).await;
    install(&world.url).await.unwrap();
    world.sql("SELECT posthaste_publish('a.b', '2')").await;
    world.wait_until_empty().await;
    relay.stop().await;
    assert_eq!(numbers(&world).await, BTreeSet::from([1, 2]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_takes_nothing_rows_wait_the_lag_grows_and_nothing_is_counted_against_them() {
    let mut world = World::new(Kept::Sqlite).await;
    world.server.create_database("behind_a_proxy");
    let proxy = Proxy::start(world.server.port());
    world.store = postgres_store(&proxy.url_of("behind_a_proxy")).await;
    let relay = world.relay();
    world.sql("SELECT posthaste_publish('a.b', '0')").await;
    world.wait_until_empty().await;
    proxy.refuse();
    proxy.cut_all();
    world.sql("INSERT INTO posthaste_outbox (type, data) SELECT 'a.b', g::text FROM generate_series(1, 50) g").await;
    world.wait_until("the lag is seen to grow", async || world.metric("webhook_outbox_lag_seconds") > Some(1.5)).await;
    world.wait_until("they are counted", async || world.metric("webhook_outbox_waiting_rows") == Some(50.0)).await;
    assert_eq!(world.metric("webhook_outbox_up"), Some(1.0), "the application's database is well");
    assert_eq!(world.sql("SELECT max(attempts), count(last_error) FROM posthaste_outbox").await, "0|0");
    proxy.pass();
    world.wait_until_empty().await;
    world.wait_until("the lag is gone", async || world.metric("webhook_outbox_lag_seconds") == Some(0.0)).await;
    assert_eq!(world.metric("webhook_outbox_waiting_rows"), Some(0.0));
    relay.stop().await;
    assert_eq!(numbers(&world).await, (0..=50).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_the_store_cannot_read_keeps_back_nobody_else() {
    let world = World::new(Kept::Postgres).await;
    let damaged =
        "INSERT INTO endpoints (id, tenant, partition, url, status, document, sealed, version, created_at_ms, updated_at_ms)
                   VALUES (decode(repeat('ab', 16), 'hex'), 'broken', 0, 'https://example.com', 'active', '{', '', 1, 0, 0)";
    world.server.psql_at(&world.server.url_of("posthaste"), damaged).unwrap();
    world
        .sql(
            "INSERT INTO posthaste_outbox (type, data, tenant)
             SELECT 'a.b', g::text, CASE WHEN g % 10 = 0 THEN 'broken' ELSE 'fine' END FROM generate_series(0, 99) g",
        )
        .await;
    let relay = world.relay();
    world.wait_until("the others have gone", async || world.rows().await == 10).await;
    world.wait_until("these say why", async || world.sql("SELECT min(attempts) FROM posthaste_outbox").await != "0").await;
    let errors = world.sql("SELECT DISTINCT tenant, last_error FROM posthaste_outbox").await;
    assert_eq!(errors, "broken|the store does not take it: stored endpoint is not readable");
    assert_eq!(numbers(&world).await, (0..100).filter(|number| number % 10 != 0).collect());
    // Mended by a person, they go by themselves.
    world.server.psql_at(&world.server.url_of("posthaste"), "DELETE FROM endpoints WHERE tenant = 'broken'").unwrap();
    world.sql("UPDATE posthaste_outbox SET next_attempt_at = now()").await;
    world.wait_until_empty().await;
    relay.stop().await;
    assert_eq!(numbers(&world).await, (0..100).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rows_that_were_refused_go_quickly_once_they_may() {
    let world = World::new(Kept::Sqlite).await;
    world
        .sql(
            "INSERT INTO posthaste_outbox (type, data, attempts, last_error)
             SELECT 'a.b', g::text, 3, 'mended since' FROM generate_series(0, 999) g",
        )
        .await;
    // An hour until it would look by itself.
    let relay = world.relay_with(Options { poll: Duration::from_hours(1), ..world.options() });
    world.wait_until_empty().await;
    relay.stop().await;
    assert_eq!(numbers(&world).await, (0..1000).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_stands_still_keeps_back_what_it_holds_and_what_comes_after_it_in_order_and_nothing_else() {
    let world = World::new(Kept::Sqlite).await;
    let write = async |from: u32, to: u32| {
        world
            .sql(&format!(
                "INSERT INTO posthaste_outbox (type, data, ordering_key)
                 SELECT 'a.b', g::text, CASE WHEN g % 2 = 0 THEN 'k' END FROM generate_series({from}, {to}) g"
            ))
            .await;
    };
    write(0, 9).await;
    let frozen = Outbox::open(&world.url).await.unwrap();
    let held = frozen.claim(Bounds { rows_max: 256, bytes_max: 1 << 20, payload_bytes_max: 1 << 20 }).await.unwrap();
    assert_eq!((held.rows.len(), held.is_cut), (10, false));
    write(10, 19).await;
    let relay = world.relay();
    world.wait_until("what it does not hold, and has no order, is moved", async || world.events().await.len() == 5).await;
    assert_eq!(numbers(&world).await, (10..20).filter(|number| number % 2 == 1).collect());
    // Its session ends, as it does by itself when a relay is frozen for a minute.
    drop(frozen);
    world.wait_until_empty().await;
    relay.stop().await;
    let mut in_order = Vec::new();
    for event in world.events().await.into_iter().filter(|event| event.ordering_key.is_some()) {
        let event = world.store.event(None, event.id).await.unwrap().unwrap();
        in_order.push(event.data.unwrap().as_str().parse::<u32>().unwrap());
    }
    assert_eq!(in_order, (0..20).step_by(2).collect::<Vec<_>>());
    assert_eq!(numbers(&world).await, (0..20).collect());
}
