//! `install`, `uninstall` and `status`, and what they say to whoever may not.

use std::collections::BTreeSet;

use posthaste_relay::{Installed, OutboxError, install, status, uninstall};
use posthaste_store::SecretText;

use crate::world::{Kept, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_may_be_installed_again_and_from_many_places_at_once_and_is_removed_without_a_trace() {
    let world = World::without_outbox(Kept::Sqlite).await;
    let before = world.sql("SELECT count(*) FROM pg_class").await;
    assert_eq!(status(&world.url).await, Err(OutboxError::NotInstalled));
    let many: Vec<_> = (0..8)
        .map(|_| {
            tokio::spawn({
                let url = world.url.clone();
                async move { install(&url).await }
            })
        })
        .collect();
    let mut made = Vec::new();
    for one in many {
        made.push(one.await.unwrap().unwrap());
    }
    assert_eq!(made.iter().filter(|installed| matches!(installed, Installed::Now { .. })).count(), 1, "{made:?}");
    world.sql("SELECT posthaste_publish('a.b', '{}', 'acme', deliver_at => now() + interval '1 hour')").await;
    world.sql("INSERT INTO posthaste_outbox (type, data) VALUES ('a.b', '1'), ('a.b', '2')").await;
    world.sql("DROP TRIGGER posthaste_outbox_wake ON posthaste_outbox; DROP FUNCTION posthaste_outbox_wake()").await;
    assert!(matches!(install(&world.url).await, Ok(Installed::Before { .. })), "rows stay, and what is missing is made");
    let told = status(&world.url).await.unwrap();
    assert_eq!((told.waiting.rows, told.waiting.failed, told.version, told.schema.as_str()), (3, 0, 1, "public"));
    assert!(told.waiting.lag.is_some() && told.oldest_created_at.is_some(), "{told:?}");

    let refused = uninstall(&world.url, false).await.unwrap_err();
    assert!(matches!(&refused, OutboxError::StillUsed(why) if why.contains("3 rows wait") && why.contains("--force")), "{refused}");
    assert_eq!(world.rows().await, 3);
    assert_eq!(uninstall(&world.url, true).await, Ok(3));
    assert_eq!(uninstall(&world.url, true).await, Err(OutboxError::NotInstalled));
    assert_eq!(world.sql("SELECT count(*) FROM pg_class").await, before);
    assert_eq!(world.sql("SELECT count(*) FROM pg_proc WHERE proname LIKE 'posthaste%'").await, "0");
}

/// The grants and the first example of docs/guide/outbox.md, as they stand there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_publishes_with_the_grants_of_the_guide_and_nothing_else() {
    let guide = include_str!("../../../../docs/guide/outbox.md");
    let block = |start: &str| {
        let found = guide.split("```sql\n").find(|block| block.starts_with(start)).unwrap();
        found.split("```").next().unwrap().to_owned()
    };
    let world = World::new(Kept::Sqlite).await;
    world.sql("CREATE ROLE shop LOGIN; CREATE ROLE relay LOGIN; CREATE TABLE orders (id int, paid_at timestamptz)").await;
    world.sql("INSERT INTO orders VALUES (42); GRANT SELECT, UPDATE ON orders TO shop").await;
    world.sql(&block("GRANT INSERT")).await;
    let id = world.sql(&format!("SET ROLE shop; {}", block("BEGIN;"))).await;
    assert_eq!(id.len(), 36, "the id of the row: {id}");
    let refused = world.server.psql_at(&world.url, "SET ROLE shop; SELECT * FROM posthaste_outbox").unwrap_err();
    assert!(refused.contains("permission denied"), "{refused}");
    assert_eq!(world.sql("SELECT id || ' ' || tenant FROM posthaste_outbox").await, format!("{id} acme"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_has_the_columns_that_were_promised_and_fills_in_the_rest() {
    let world = World::new(Kept::Sqlite).await;
    let columns = world
        .sql("SELECT column_name || ' ' || data_type FROM information_schema.columns WHERE table_name = 'posthaste_outbox'")
        .await;
    let columns: BTreeSet<&str> = columns.lines().collect();
    for column in [
        "id uuid",
        "tenant text",
        "type text",
        "version text",
        "data text",
        "idempotency_key text",
        "ordering_key text",
        "deliver_at timestamp with time zone",
        "expires_at timestamp with time zone",
        "occurred_at timestamp with time zone",
        "created_at timestamp with time zone",
        "attempts integer",
        "last_error text",
        "next_attempt_at timestamp with time zone",
    ] {
        assert!(columns.contains(column), "{column}: {columns:?}");
    }
    let id = world
        .sql("SELECT posthaste_publish('a.b', '{}', 'acme', 'v1', 'key', 'order', '2030-01-01', '2031-01-01', '2020-01-01')")
        .await;
    let row = world.sql("SELECT id, tenant, type, version, data, idempotency_key, ordering_key, extract(year FROM deliver_at), extract(year FROM expires_at), extract(year FROM occurred_at), attempts FROM posthaste_outbox").await;
    assert_eq!(row, format!("{id}|acme|a.b|v1|{{}}|key|order|2030|2031|2020|0"));
    let own = "0192f0c1-7e2a-7c3d-9f00-1234567890ab";
    assert_eq!(world.sql(&format!("SELECT posthaste_publish('a.b', '{{}}', id => '{own}')")).await, own);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_lives_in_the_schema_of_the_search_path_and_is_called_from_any() {
    let world = World::without_outbox(Kept::Sqlite).await;
    world.sql("CREATE SCHEMA \"Odd \"\"name\"\"\"").await;
    let url = format!("{}?options=-c%20search_path%3D%22Odd%5C%20%22%22name%22%22%22", world.url);
    let installed = install(&url).await.unwrap();
    assert_eq!(installed, Installed::Now { schema: "\"Odd \"\"name\"\"\"".to_owned() });
    assert_eq!(status(&world.url).await, Err(OutboxError::NotInstalled), "another search path does not find it");
    world.sql("SELECT \"Odd \"\"name\"\"\".posthaste_publish('a.b', '{}')").await;
    let relay = world.relay_with(posthaste_relay::Options { url: SecretText(url.clone()), ..world.options() });
    world.wait_until("it is moved", async || world.events().await.len() == 1).await;
    relay.stop().await;
    assert_eq!(uninstall(&url, false).await, Ok(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_may_not_is_told_what_to_do() {
    let world = World::without_outbox(Kept::Sqlite).await;
    let port = world.server.port();
    world.sql("CREATE ROLE stranger LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").await;
    let stranger = format!("postgres://stranger@127.0.0.1:{port}/application");
    let refused = install(&stranger).await.unwrap_err().to_string();
    assert!(refused.contains("the role stranger may not create tables in the schema public"), "{refused}");
    assert!(refused.contains("GRANT CREATE ON SCHEMA public TO stranger"), "{refused}");
    install(&world.url).await.unwrap();
    assert!(matches!(install(&stranger).await, Ok(Installed::Before { .. })), "what is there need not be made");
    let refused = status(&stranger).await.unwrap_err().to_string();
    assert!(refused.contains("GRANT SELECT, UPDATE, DELETE ON posthaste_outbox"), "{refused}");

    // Also where nobody has spoken of an outbox: there is one, and it is not relayed.
    assert_eq!(world.metric("webhook_outbox_up"), None);
    let unsaid = posthaste_relay::Options { is_certain: false, url: SecretText(stranger.clone()), ..world.options() };
    let relay = world.relay_with(unsaid);
    world.wait_until("it is shown to be of no use", async || world.metric("webhook_outbox_up") == Some(0.0)).await;
    relay.stop().await;

    // A relay says so, tells whoever watches, and begins once it may.
    let relay = world.relay_with(posthaste_relay::Options { url: SecretText(stranger), ..world.options() });
    world.sql("SELECT posthaste_publish('a.b', '{}')").await;
    world.wait_until("it is shown to be of no use", async || world.metric("webhook_outbox_up") == Some(0.0)).await;
    assert_eq!(world.events().await.len(), 0);
    world.sql("GRANT SELECT, UPDATE, DELETE ON posthaste_outbox TO stranger").await;
    world.wait_until_empty().await;
    world.wait_until("it is shown to be well", async || world.metric("webhook_outbox_up") == Some(1.0)).await;
    relay.stop().await;

    for (url, part) in [
        (format!("postgres://nobody@127.0.0.1:{port}/application"), "refuses the connection"),
        (format!("postgres://postgres@127.0.0.1:{port}/nowhere"), "refuses the connection"),
        ("postgres://postgres:canary@127.0.0.1:1/application".to_owned(), "cannot be reached"),
        (format!("{}?sslmode=verify-ca", world.url), "needs sslrootcert"),
    ] {
        let refused = install(&url).await.unwrap_err().to_string();
        assert!(refused.contains(part) && !refused.contains("canary"), "{url}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_somebody_else_or_of_a_later_version_is_left_alone() {
    let world = World::without_outbox(Kept::Sqlite).await;
    world.sql("CREATE TABLE posthaste_outbox (id integer)").await;
    for tried in
        [install(&world.url).await.map(drop), uninstall(&world.url, true).await.map(drop), status(&world.url).await.map(drop)]
    {
        assert_eq!(tried, Err(OutboxError::NotOurs { schema: "public".to_owned() }));
    }
    world.sql("DROP TABLE posthaste_outbox").await;
    install(&world.url).await.unwrap();
    world.sql("COMMENT ON TABLE posthaste_outbox IS 'Posthaste outbox, version 2. From the future.'").await;
    for tried in
        [install(&world.url).await.map(drop), uninstall(&world.url, true).await.map(drop), status(&world.url).await.map(drop)]
    {
        assert_eq!(tried, Err(OutboxError::TooNew { version: 2 }));
    }
}
