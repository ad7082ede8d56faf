//! The outbox with the real binary: `posthaste outbox …`, and `posthaste serve` that relays it, killed again and again.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use posthaste_checker::caller::Caller;
use posthaste_checker::receiver::Behaviour;
use posthaste_checker::world::World;
use posthaste_testpg::Server;
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_posthaste");
const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

fn outbox(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("outbox").args(arguments).current_dir(std::env::temp_dir()).env_clear().envs(variables.iter().copied());
    command.output().unwrap()
}

#[track_caller]
fn says(output: &Output, code: i32, part: &str) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let said = format!("{out}{err}");
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(part) && !said.contains("canary"), "{part}: {said}");
    out.into_owned()
}

/// An application's database with an outbox, made by the command.
fn application(postgres: &Server) -> String {
    let url = postgres.create_database("application");
    says(&outbox(&["install", "--database-url", &url], &[]), 0, "installed in the schema public");
    url
}

#[test]
fn the_outbox_is_installed_shown_and_removed_from_a_terminal() {
    let postgres = Server::start();
    let url = application(&postgres);
    says(&outbox(&["install"], &[("POSTHASTE_OUTBOX", &url)]), 0, "and was so before");
    says(&outbox(&["status"], &[("POSTHASTE_DATABASE_URL", &url)]), 0, "nothing waits");
    postgres.psql_at(&url, "SELECT posthaste_publish('a.b', '{}'); INSERT INTO posthaste_outbox (type, data, tenant, attempts, last_error, next_attempt_at) VALUES ('x', '{', 'acme', 2, E'data: \\x1b[2J no', '2099-01-01Z')").unwrap();
    let text = says(&outbox(&["status", "--database-url", &url], &[]), 0, "rows that wait: 2, the oldest since 20");
    assert!(
        text.contains("of these refused: 1\n")
            && text.contains("acme  x  refused 2 times, again at 2099-01-01T00:00:00.000Z: data: "),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "a terminal obeys nothing of it: {text}");
    let told: Value = serde_json::from_str(&says(&outbox(&["status", "--json", "--database-url", &url], &[]), 0, "")).unwrap();
    assert_eq!((&told["waiting"], &told["failed"], &told["version"]), (&json!(2), &json!(1), &json!(1)), "{told}");
    assert_eq!(told["failed_rows"][0]["attempts"], 2, "{told}");
    assert!(told["lag_seconds"].as_f64().unwrap() > 0.0, "{told}");
    says(&outbox(&["uninstall", "--database-url", &url], &[]), 1, "2 rows wait in the outbox and would be lost");
    says(&outbox(&["uninstall", "--force", "--database-url", &url], &[]), 0, "with it rows that waited: 2");
    says(&outbox(&["status", "--database-url", &url], &[]), 1, "posthaste outbox install");
    says(&outbox(&["status"], &[]), 1, "name the application's database");
    says(&outbox(&["install", "--database-url", "mysql://canary@x/y"], &[]), 1, "is a URL such as postgres://");
    says(&outbox(&["install", "--database-url", "postgres://a:canary@127.0.0.1:1/y"], &[]), 1, "cannot be reached");
}

/// The numbers in the payloads of all events, of which none comes twice.
async fn numbers(caller: &mut Caller) -> BTreeSet<u32> {
    let (mut seen, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let page = caller.get(&format!("/v1/events?limit=250{cursor}")).await.unwrap().json();
        for event in page["data"].as_array().unwrap() {
            let event = caller.get(&format!("/v1/events/{}", event["id"].as_str().unwrap())).await.unwrap().json();
            let number = u32::try_from(event["data"]["number"].as_u64().unwrap()).unwrap();
            assert!(seen.insert(number), "{number} has become two events");
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return seen,
        }
    }
}

async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < Duration::from_mins(1), "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn rows(postgres: &Arc<Server>, url: &str) -> String {
    let (postgres, url) = (Arc::clone(postgres), url.to_owned());
    tokio::task::spawn_blocking(move || postgres.psql_at(&url, "SELECT count(*) FROM posthaste_outbox").unwrap()).await.unwrap()
}

/// Writes transactions, of which every third is rolled back, until it is told that it is enough. Answers what was committed.
fn write(postgres: &Arc<Server>, url: &str, is_enough: &Arc<AtomicBool>) -> tokio::task::JoinHandle<BTreeSet<u32>> {
    let (postgres, url, is_enough) = (Arc::clone(postgres), url.to_owned(), Arc::clone(is_enough));
    tokio::task::spawn_blocking(move || {
        let (mut committed, mut transaction) = (BTreeSet::new(), 0_u32);
        while !is_enough.load(Ordering::Relaxed) {
            let (first, is_committed) = (transaction * 10, !transaction.is_multiple_of(3));
            let end = if is_committed { "COMMIT" } else { "ROLLBACK" };
            let sql = format!(
                "BEGIN; SELECT posthaste_publish('order.made', json_build_object('number', g)::text, 't' || g % 3, ordering_key => nullif('k' || g % 2, 'k0')) FROM generate_series({first}, {first} + 9) g; {end}"
            );
            postgres.psql_at(&url, &sql).unwrap();
            if is_committed {
                committed.extend(first..first + 10);
            }
            transaction += 1;
        }
        committed
    })
}

/// Kills servers in turn while an application writes; in the end every row is an event, and no other.
async fn killed_again_and_again(mut servers: Vec<World>, postgres: Arc<Server>, url: String) {
    let is_enough = Arc::new(AtomicBool::new(false));
    let writing = write(&postgres, &url, &is_enough);
    for server in &mut servers {
        server.start(&[]).await.unwrap();
    }
    for kill in 0..8 {
        let place = kill % servers.len();
        let server = &mut servers[place];
        // In the middle of it: this life of it has moved something, and more is written all the time.
        let mut caller = server.caller();
        wait_until("something was moved", async || relayed(&mut caller).await > 0).await;
        server.kill().unwrap();
        server.start(&[]).await.unwrap();
    }
    is_enough.store(true, Ordering::Relaxed);
    let committed = writing.await.unwrap();
    wait_until("the outbox is empty", async || rows(&postgres, &url).await == "0").await;
    println!("{} rows over 8 kills", committed.len());
    assert!(committed.len() > 100, "{}", committed.len());
    assert_eq!(numbers(&mut servers[0].caller()).await, committed);
    for mut server in servers {
        server.stop().await.unwrap();
    }
}

async fn relayed(caller: &mut Caller) -> u64 {
    metric(caller, "webhook_outbox_relayed_total ").await.unwrap_or(0)
}

async fn metric(caller: &mut Caller, line: &str) -> Option<u64> {
    let page = caller.get("/metrics").await.unwrap();
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    page.lines().find_map(|other| other.strip_prefix(line)).map(|value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i19_rows_are_events_one_for_one_however_often_the_server_is_killed_on_sqlite() {
    let postgres = Arc::new(Server::start());
    let url = application(&postgres);
    let mut server = World::new(Path::new(BINARY), 31).await.unwrap();
    server.program.set("--outbox", &url);
    killed_again_and_again(vec![server], postgres, url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i19_rows_are_events_one_for_one_with_two_servers_that_are_killed_on_postgresql() {
    let postgres = Arc::new(Server::start());
    let (url, own) = (application(&postgres), postgres.create_database("posthaste"));
    let mut servers = Vec::new();
    for seed in [32, 33] {
        let mut server = World::new(Path::new(BINARY), seed).await.unwrap();
        server.program.set("--outbox", &url);
        server.program.set("--database-url", &own);
        server.program.set("--master-key", MASTER_KEY);
        servers.push(server);
    }
    // One key for both, so that either can be asked.
    servers[1].program.admin_key = servers[0].program.admin_key.clone();
    killed_again_and_again(servers, postgres, url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_in_our_own_database_needs_no_setting_and_its_rows_arrive_at_receivers() {
    let postgres = Arc::new(Server::start());
    let url = application(&postgres);
    let mut world = World::new(Path::new(BINARY), 34).await.unwrap();
    world.program.set("--database-url", &url);
    world.program.set("--master-key", MASTER_KEY);
    world.start(&[]).await.unwrap();
    let mut caller = world.caller();
    let receiver = world.receiver.url(world.receiver.add(Behaviour::Healthy));
    let made = caller.post("/v1/endpoints", &json!({"tenant": "acme", "url": receiver})).await.unwrap();
    assert_eq!(made.status, 201);
    let id = postgres.psql_at(&url, "SELECT posthaste_publish('order.made', '{\"number\":  7}', 'acme')").unwrap();
    wait_until("it is delivered", async || {
        let page = caller.get(&format!("/v1/deliveries?event=evt_{id}&tenant=acme")).await.unwrap().json();
        page["data"][0]["status"] == "delivered"
    })
    .await;
    let event = caller.get(&format!("/v1/events/evt_{id}")).await.unwrap();
    assert!(String::from_utf8(event.body.to_vec()).unwrap().contains("{\"number\":  7}"), "to the byte");
    assert_eq!(relayed(&mut caller).await, 1);
    // One that has expired while it waited for a relay becomes an event as well, which says what became of it.
    let late = "INSERT INTO posthaste_outbox (type, data, tenant, created_at, expires_at)
                VALUES ('order.made', '{}', 'acme', now() - interval '1 hour', now() - interval '1 minute') RETURNING id";
    let id = postgres.psql_at(&url, late).unwrap();
    wait_until("it is known to have expired", async || {
        let page = caller.get(&format!("/v1/deliveries?event=evt_{id}&tenant=acme")).await.unwrap().json();
        page["data"][0]["dead_reason"] == "expired"
    })
    .await;
    world.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_process_with_the_role_relays() {
    let postgres = Arc::new(Server::start());
    let (url, own) = (application(&postgres), postgres.create_database("posthaste"));
    let server = |seed, role: &'static str| {
        let (url, own) = (url.clone(), own.clone());
        async move {
            let mut server = World::new(Path::new(BINARY), seed).await.unwrap();
            for (flag, value) in
                [("--outbox", url.as_str()), ("--database-url", &own), ("--master-key", MASTER_KEY), ("--role", role)]
            {
                server.program.set(flag, value);
            }
            server
        }
    };
    let mut api = server(35, "api").await;
    api.start(&[]).await.unwrap();
    let mut caller = api.caller();
    postgres.psql_at(&url, "SELECT posthaste_publish('order.made', '{\"number\": 1}')").unwrap();
    assert_eq!(metric(&mut caller, "webhook_outbox_up ").await, None, "there is no relay here");
    let mut relay = server(36, "relay").await;
    relay.start(&[]).await.unwrap();
    wait_until("it is moved", async || rows(&postgres, &url).await == "0").await;
    assert_eq!(numbers(&mut caller).await, BTreeSet::from([1]));
    let mut other = relay.caller();
    assert_eq!(other.get("/v1/events").await.unwrap().status, 404, "it has no API");
    assert_eq!(other.get("/healthz").await.unwrap().status, 200);
    assert_eq!((metric(&mut other, "webhook_outbox_up ").await, relayed(&mut other).await), (Some(1), 1));
    assert_eq!(metric(&mut caller, "webhook_outbox_up ").await, None);
    relay.stop().await.unwrap();
    api.stop().await.unwrap();
}

#[test]
fn the_doctor_looks_at_the_outbox() {
    let postgres = Server::start();
    let url = postgres.create_database("application");
    let directory = std::env::temp_dir().join(format!("posthaste-outbox-doctor-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let doctor = |url: &str| {
        let mut command = Command::new(BINARY);
        command.args(["doctor", "--outbox", url]).current_dir(&directory).env_clear();
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.contains(" outbox ")).unwrap_or_else(|| panic!("{text}")).to_owned();
        assert!(!line.contains("canary"), "{line}");
        line
    };
    let line = doctor(&url);
    assert!(line.starts_with("wrong ") && line.contains("posthaste outbox install"), "{line}");
    let line = doctor("postgres://a:canary@127.0.0.1:1/x");
    assert!(line.starts_with("wrong ") && line.contains("cannot be reached") && line.contains("To do: "), "{line}");
    says(&outbox(&["install", "--database-url", &url], &[]), 0, "");
    let line = doctor(&url);
    assert!(line.starts_with("ok ") && line.contains("of version 1; rows that wait: 0"), "{line}");
    postgres
        .psql_at(&url, "INSERT INTO posthaste_outbox (type, data, attempts, last_error) VALUES ('a', '{', 1, 'data: no')")
        .unwrap();
    let line = doctor(&url);
    assert!(line.starts_with("warning ") && line.contains("of these refused: 1") && line.contains("data: no"), "{line}");
    let _ = std::fs::remove_dir_all(&directory);
}
