//! PostgreSQL under faults: answers that are lost, servers that hang or restart, nodes that race, leases that end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::delivery::{Outcome, State, Timings};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{AttemptId, EndpointId, EventId, TenantId};
use posthaste_core::scheduler::{Class, WindowQuery};
use posthaste_core::text::{IdempotencyKey, Labels, OrderingKey};
use posthaste_store::{
    AttemptRecord, Audit, Change, Claimed, DeliveryChange, DeliveryQuery, Error, GivenUp, Keyring, MasterKey, NewEndpoint,
    NewEvent, NodeId, Options, Postgres, Published, Record, RecordResult, Refusal, Store, WindowRequest, WindowRows, partition_of,
};
use posthaste_testpg::{Cut, Proxy, Server};

fn options() -> Options {
    Options::new(Keyring::new(MasterKey::from_base64("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").unwrap(), vec![]))
}

fn tenant(id: &str) -> TenantId {
    TenantId::parse(id).unwrap()
}

fn audit() -> Audit {
    let text = |text: &str| text.to_owned();
    Audit { actor: text("a\0b"), address: None, action: text("x"), subject: text("s"), tenant: None, before: None, after: None }
}

async fn endpoint(store: &Postgres, of: &str) -> EndpointId {
    let id = EndpointId::from_unique(store.unique());
    let endpoint = Endpoint::new(id, tenant(of), "https://example.com/hooks".to_owned(), store.now());
    let new = NewEndpoint { endpoint, secrets: vec![], per_tenant_max: 500, tenant_created_at: None };
    store.configure(Change::CreateEndpoint(Box::new(new)), audit()).await.unwrap().unwrap();
    id
}

async fn fresh(store: &Postgres, endpoint: EndpointId, limit: usize) -> Result<WindowRows, Error> {
    let asked = WindowRequest { endpoint, want: WindowQuery::Fresh(Class::Exempt), limit };
    Ok(store.windows(vec![asked]).await?.pop().expect("an answer for each"))
}

fn event(store: &Postgres, of: &str) -> Event {
    let now = store.now();
    Event {
        id: EventId::from_unique(store.unique()),
        tenant: tenant(of),
        event_type: EventType::parse("order.paid").unwrap(),
        version: None,
        timestamp: now,
        accepted_at: now,
        data: Data::parse(r#"{ "amount": 1.00, "nul": "\u0000" }"#).unwrap(),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    }
}

fn new(event: Event) -> NewEvent {
    NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [7; 32], resolved: None }
}

async fn join(store: &Postgres, share: usize) -> (NodeId, Claimed) {
    let node = NodeId(rand::random());
    store.join(node).await.unwrap();
    let claimed = store.claim(node, share).await.unwrap().unwrap();
    (node, claimed)
}

fn attempt(store: &Postgres, number: u32) -> Box<AttemptRecord> {
    Box::new(AttemptRecord {
        id: AttemptId::from_unique(store.unique()),
        number,
        outcome: Outcome::Answered { status: 500, retry_after: None },
        response_time: Duration::from_millis(41),
        timings: Timings::default(),
        timeout: Duration::from_secs(10),
        preview: Some("nul \0 here".to_owned()),
        error: Some("nul \0 there".to_owned()),
        attempted_at: store.now(),
        endpoint_version: Some(1),
    })
}

fn count(server: &Server, sql: &str) -> i64 {
    server.psql(sql).trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i18_two_nodes_publish_the_same_keys_at_once_and_each_is_made_once() {
    let server = Server::start();
    let url = server.url();
    let (one, two) = tokio::join!(Postgres::connect(&url, options()), Postgres::connect(&url, options()));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert!(one.clock_skew() < Duration::from_millis(500), "{:?}", one.clock_skew());
    endpoint(&one, "acme").await;
    let mut tasks = Vec::new();
    for round in 0..20 {
        for key in 0..20 {
            for store in [one.clone(), two.clone()] {
                tasks.push(tokio::spawn(async move {
                    let mut event = event(&store, if key % 2 == 0 { "acme" } else { "other" });
                    event.idempotency_key = IdempotencyKey::parse(&format!("k{round}-{key}")).ok();
                    event.ordering_key = OrderingKey::parse(&format!("o{key}")).ok();
                    let with = new(event.clone());
                    let bare = new(Event { idempotency_key: None, id: EventId::from_unique(store.unique()), ..event });
                    store.publish(vec![with.clone(), bare, with]).await.unwrap()
                }));
            }
        }
    }
    let (mut made, mut duplicates) = (0, 0);
    for task in tasks {
        for answer in task.await.unwrap() {
            match answer {
                Published::Made { .. } => made += 1,
                Published::Duplicate { .. } => duplicates += 1,
                Published::Conflict { .. } | Published::TooCostly(_) => panic!("{answer:?}"),
            }
        }
    }
    assert_eq!((made, duplicates), (400 + 800, 800 + 400));
    assert_eq!(count(&server, "SELECT count(*) FROM events"), 1200);
    assert_eq!(count(&server, "SELECT count(*) FROM deliveries"), 600);
    assert_eq!(count(&server, "SELECT count(*) FROM idempotency_keys"), 400);
    two.close().await.unwrap();
    assert!(matches!(two.publish(vec![new(event(&one, "acme"))]).await, Err(Error::Unavailable(_))));
    assert!(matches!(two.nodes().await, Err(Error::Unavailable(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_an_answer_to_a_commit_that_was_lost_is_found_out() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let store = Postgres::connect(&proxy.url(), options()).await.unwrap();
    let id = endpoint(&store, "acme").await;
    let mut feed = store.feed();
    let (_, claimed) = join(&store, 256).await;
    let epoch = claimed.partitions[0].1;
    for (n, cut) in [(1, Cut::AfterAnswer), (2, Cut::Before), (3, Cut::AfterAnswer)] {
        proxy.cut_next_commit(cut);
        let answer = store.publish(vec![new(event(&store, "acme"))]).await.unwrap();
        assert_eq!(answer, [Published::Made { deliveries: 1 }]);
        assert_eq!(count(&server, "SELECT count(*) FROM events"), n, "{cut:?}");
        assert_eq!(feed.next().await.unwrap().len(), 1);
    }
    assert_eq!(proxy.cuts(), 3);
    let window = fresh(&store, id, 10).await.unwrap();
    assert_eq!((window.rows.len(), window.more), (3, false));
    assert_eq!(window.seen, window.rows[2].seq);
    for (n, cut) in [(0, Cut::AfterAnswer), (1, Cut::Before)] {
        proxy.cut_next_commit(cut);
        let seq = window.rows[n].seq;
        let state = State::Waiting { due: store.now() };
        let record = Record {
            partition: partition_of(&tenant("acme")),
            epoch,
            endpoint: id,
            recorded: DeliveryChange::Attempt { seq, attempt: attempt(&store, 1), state },
            lane: None,
            disables_endpoint: None,
        };
        assert_eq!(store.record(vec![record.clone()]).await.unwrap(), [RecordResult::Done], "{cut:?}");
        assert_eq!(store.record(vec![record]).await.unwrap(), [RecordResult::MovedOn]);
    }
    let attempts = store.attempts(window.rows[0].delivery).await.unwrap();
    assert_eq!(attempts[0].preview.as_deref(), Some("nul \u{fffd} here"));
    for cut in [Cut::AfterAnswer, Cut::Before] {
        let before = count(&server, "SELECT count(*) FROM endpoints");
        proxy.cut_next_commit(cut);
        endpoint(&store, "acme").await;
        assert_eq!(count(&server, "SELECT count(*) FROM endpoints"), before + 1);
    }
    proxy.cut_all();
    assert_eq!(store.nodes().await.unwrap().len(), 1);
    proxy.refuse();
    let began = Instant::now();
    assert!(matches!(store.publish(vec![new(event(&store, "acme"))]).await, Err(Error::Unavailable(_))));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    proxy.pass();
    store.publish(vec![new(event(&store, "acme"))]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_f21_what_hangs_is_given_up_and_a_restart_is_survived() {
    let server = Server::start();
    let store = Postgres::connect(&server.url(), options()).await.unwrap();
    endpoint(&store, "acme").await;
    server.freeze();
    let began = Instant::now();
    let (read, published, node) =
        tokio::join!(store.nodes(), store.publish(vec![new(event(&store, "acme"))]), store.join(NodeId(7)));
    println!("{read:?} {published:?} {node:?} {:?}", began.elapsed());
    assert!(read.is_err() && published.is_err() && node.is_err());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    server.thaw();
    store.nodes().await.unwrap();
    store.publish(vec![new(event(&store, "acme"))]).await.unwrap();
    server.restart_immediately();
    store.nodes().await.unwrap();
    store.publish(vec![new(event(&store, "acme"))]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_cannot_be_written_is_refused_alone() {
    let server = Server::start();
    let store = Postgres::connect(&server.url(), options()).await.unwrap();
    endpoint(&store, "acme").await;
    server.psql("ALTER TABLE events ADD CHECK (type <> 'bad.one')");
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut event = event(&store, "acme");
                if n % 13 == 5 {
                    event.event_type = EventType::parse("bad.one").unwrap();
                }
                store.publish(vec![new(event)]).await
            })
        })
        .collect();
    for (n, task) in tasks.into_iter().enumerate() {
        let answer = task.await.unwrap();
        assert_eq!(answer.is_err(), n % 13 == 5, "{n} {answer:?}");
    }
    assert_eq!(count(&server, "SELECT count(*) FROM events"), 46);
    assert_eq!(count(&server, "SELECT count(*) FROM deliveries"), 46);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i32_leases_end_and_partitions_move() {
    let server = Server::start();
    let one = Postgres::connect(&server.url(), options()).await.unwrap();
    let two = Postgres::connect(&server.url(), options()).await.unwrap();
    let (a, first) = join(&one, 200).await;
    let (b, second) = join(&two, 200).await;
    assert_eq!((first.partitions.len(), second.partitions.len()), (200, 56));
    let given_up: Vec<_> = first.partitions.iter().copied().filter(|(partition, _)| *partition < 100).collect();
    one.hand_over(a, GivenUp::Partitions(given_up.clone()), vec![]).await.unwrap();
    let second = two.claim(b, 200).await.unwrap().unwrap();
    assert_eq!(second.partitions.len(), 156);
    let owned: BTreeSet<_> = second.partitions.iter().map(|(partition, _)| *partition).collect();
    assert!((0..100).all(|partition| owned.contains(&partition)));
    // A request that comes once more, late, takes nothing away under a newer epoch.
    two.hand_over(b, GivenUp::Partitions(given_up), vec![]).await.unwrap();
    assert_eq!(two.claim(b, 200).await.unwrap().unwrap().partitions, second.partitions);
    // The lease is real time; the other one renews until the first is over.
    let deadline = Instant::now() + Duration::from_secs(30);
    while one.nodes().await.unwrap().contains(&a) {
        assert!(Instant::now() < deadline, "a lease ends");
        two.renew(b).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(one.renew(a).await.unwrap(), Err(Refusal::LeaseEnded));
    assert_eq!(one.nodes().await.unwrap(), [b]);
    let all = two.claim(b, 256).await.unwrap().unwrap();
    assert_eq!(all.partitions.len(), 256);
    assert_eq!(one.claim(a, 5).await.unwrap(), Err(Refusal::LeaseEnded));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_what_would_lose_something_is_refused() {
    let server = Server::start_with(&[("fsync", "off")]);
    let refused = Postgres::connect(&server.url(), options()).await.unwrap_err();
    assert!(matches!(&refused, Error::Unusable(why) if why.contains("fsync")), "{refused}");
    let server = Server::start_with(&[("default_transaction_read_only", "on")]);
    let refused = Postgres::connect(&server.url(), options()).await.unwrap_err();
    assert!(matches!(&refused, Error::Unusable(why) if why.contains("read_only")), "{refused}");
    let server = Server::start();
    drop(Postgres::connect(&server.url(), options()).await.unwrap());
    let other = Options::new(Keyring::new(MasterKey::from_base64("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDA=").unwrap(), vec![]));
    let refused = Postgres::connect(&server.url(), other).await.unwrap_err();
    assert!(matches!(&refused, Error::Unusable(why) if why.contains("master key")), "{refused}");
    server.psql("UPDATE schema SET version = 99, usable_from = 99");
    assert!(matches!(Postgres::connect(&server.url(), options()).await.unwrap_err(), Error::TooNew));
    let refused = Postgres::connect("postgresql://nobody@127.0.0.1:1/x", options()).await.unwrap_err();
    assert!(matches!(&refused, Error::Unavailable(_)), "{refused}");
    let refused = Postgres::connect(&server.url_of("nowhere"), options()).await.unwrap_err();
    assert!(matches!(&refused, Error::Unusable(_)), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_answers_are_true_whatever_is_cut() {
    let server = Server::start();
    let proxy = Arc::new(Proxy::start(server.port()));
    let store = Postgres::connect(&proxy.url(), options()).await.unwrap();
    let id = endpoint(&store, "acme").await;
    let (_, claimed) = join(&store, 256).await;
    let epoch = claimed.partitions[0].1;
    let until = Instant::now() + Duration::from_secs(20);
    let publishers: Vec<_> = (0..8)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let (mut made, mut failed) = (Vec::new(), Vec::new());
                while Instant::now() < until {
                    let mut event = event(&store, "acme");
                    if n % 2 == 0 {
                        event.idempotency_key = IdempotencyKey::parse(event.id.as_str()).ok();
                    }
                    let name = event.id.as_str().to_owned();
                    match store.publish(vec![new(event)]).await {
                        Ok(answer) => {
                            assert_eq!(answer, [Published::Made { deliveries: 1 }]);
                            made.push(name);
                        }
                        Err(error) => failed.push((name, error.to_string())),
                    }
                }
                (made, failed)
            })
        })
        .collect();
    let recorder = {
        let store = store.clone();
        tokio::spawn(async move {
            let (mut done, mut wrong, mut failed) = (0, 0, 0);
            let mut seen = BTreeSet::new();
            while Instant::now() < until {
                let Ok(window) = fresh(&store, id, 20).await else { continue };
                let records: Vec<_> = window
                    .rows
                    .iter()
                    .filter(|row| !seen.contains(&row.seq))
                    .map(|row| Record {
                        partition: partition_of(&tenant("acme")),
                        epoch,
                        endpoint: id,
                        recorded: DeliveryChange::Attempt {
                            seq: row.seq,
                            attempt: attempt(&store, 1),
                            state: State::Delivered { at: store.now() },
                        },
                        lane: None,
                        disables_endpoint: None,
                    })
                    .collect();
                match store.record(records).await {
                    Ok(answers) => {
                        done += answers.iter().filter(|answer| **answer == RecordResult::Done).count();
                        wrong += answers.iter().filter(|answer| **answer != RecordResult::Done).count();
                        seen.extend(window.rows.iter().map(|row| row.seq));
                    }
                    Err(error) => {
                        failed += 1;
                        println!("record: {error}");
                    }
                }
            }
            (done, wrong, failed)
        })
    };
    let mut round = 0;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(40)).await;
        round += 1;
        match round % 5 {
            0 => proxy.cut_all(),
            1 => proxy.cut_next_commit(Cut::AfterAnswer),
            2 => proxy.cut_next_commit(Cut::Before),
            3 => proxy.cut_next_statement("insert into events", Cut::AfterAnswer),
            _ => {}
        }
        if round % 100 == 50 {
            tokio::task::block_in_place(|| server.restart_immediately());
        }
    }
    let (mut made, mut failed) = (Vec::new(), Vec::new());
    for publisher in publishers {
        let (a, b) = publisher.await.unwrap();
        made.extend(a);
        failed.extend(b);
    }
    let (done, wrong, unknown) = recorder.await.unwrap();
    println!("{} made, {} failed, {} cuts, {done} recorded, {wrong} not, {unknown} failed", made.len(), failed.len(), proxy.cuts());
    let stored = server.psql("SELECT id FROM events");
    let stored: Vec<&str> = stored.lines().collect();
    let unique: BTreeSet<&str> = stored.iter().copied().collect();
    assert_eq!(stored.len(), unique.len());
    assert!(made.iter().all(|id| unique.contains(id.as_str())), "lost");
    for (id, why) in &failed {
        assert!(!unique.contains(id.as_str()) || why.contains("not known"), "{why}");
    }
    assert_eq!(count(&server, "SELECT count(*) FROM deliveries"), i64::try_from(stored.len()).unwrap());
    assert_eq!(
        count(&server, "SELECT count(*) FROM attempts"),
        count(&server, "SELECT count(*) FROM deliveries WHERE status = 'delivered'")
    );
}

/// Somebody who does by hand, and slowly, what a store does.
async fn by_hand(server: &Server) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn wait_until_somebody_waits_for_a_lock_on(server: &Server, table: &str) {
    let waiting = format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = to_regclass('{table}')");
    let deadline = Instant::now() + Duration::from_secs(20);
    while count(server, &waiting) == 0 {
        assert!(Instant::now() < deadline, "nobody waits for {table}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_that_waits_for_a_change_sees_it() {
    let server = Server::start();
    let store = Postgres::connect(&server.url(), options()).await.unwrap();
    endpoint(&store, "acme").await;
    assert_eq!(store.publish(vec![new(event(&store, "acme"))]).await.unwrap(), [Published::Made { deliveries: 1 }]);
    for keyed in [false, true] {
        server.psql("UPDATE endpoints SET status = 'active'; UPDATE tenants SET version = version + 1");
        let change = by_hand(&server).await;
        change.batch_execute("BEGIN; LOCK TABLE commits IN SHARE MODE").await.unwrap();
        let publisher = {
            let store = store.clone();
            let mut event = event(&store, "acme");
            event.idempotency_key = IdempotencyKey::parse("k").ok().filter(|_| keyed);
            tokio::spawn(async move { store.publish(vec![new(event)]).await.unwrap() })
        };
        wait_until_somebody_waits_for_a_lock_on(&server, "commits").await;
        change
            .batch_execute("UPDATE endpoints SET status = 'disabled'; UPDATE tenants SET version = version + 1; COMMIT")
            .await
            .unwrap();
        assert_eq!(publisher.await.unwrap(), [Published::Made { deliveries: 0 }], "keyed: {keyed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_quiet_hours_waits_for_those_who_publish_and_no_other_change_does() {
    let server = Server::start();
    let store = Postgres::connect(&server.url(), options()).await.unwrap();
    let id = endpoint(&store, "acme").await;
    let stored = store.endpoint(None, id).await.unwrap().unwrap().endpoint;
    let replaced =
        |endpoint: Endpoint| Change::ReplaceEndpoint { endpoint: Box::new(endpoint), secrets: None, expected_version: None };
    let publishing = by_hand(&server).await;
    publishing.batch_execute("BEGIN; INSERT INTO commits (id, at) VALUES ('0123456789abcdef', now())").await.unwrap();
    let moved = Endpoint { url: "https://example.org/".to_owned(), ..stored.clone() };
    store.configure(replaced(moved), audit()).await.unwrap().unwrap();
    let mut quiet = stored;
    quiet.policies.delivery_schedule = posthaste_core::endpoint::Override::Lift;
    let change = {
        let store = store.clone();
        let quiet = replaced(quiet);
        tokio::spawn(async move { store.configure(quiet, audit()).await })
    };
    wait_until_somebody_waits_for_a_lock_on(&server, "commits").await;
    assert!(!change.is_finished());
    publishing.batch_execute("COMMIT").await.unwrap();
    change.await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_found_by_its_id_without_a_look_at_other_days() {
    let server = Server::start();
    let store = Postgres::connect(&server.url(), options()).await.unwrap();
    endpoint(&store, "acme").await;
    let today = event(&store, "acme");
    let mut old = event(&store, "acme");
    (old.id, old.accepted_at) = (EventId::parse("chosen-1").unwrap(), old.accepted_at - Duration::from_hours(24 * 20));
    let old_day = NewEvent { is_id_chosen: true, ..new(old.clone()) };
    for days in [5, 10] {
        let of_day = event(&store, "acme");
        let of_day = Event { accepted_at: of_day.accepted_at - Duration::from_hours(24 * days), ..of_day };
        store.publish(vec![new(of_day)]).await.unwrap();
    }
    store.publish(vec![new(today.clone()), old_day]).await.unwrap();
    let tables = server.psql("SELECT relname FROM pg_class WHERE relname ~ '^events_s[0-9]+$' AND relkind = 'r' ORDER BY relname");
    let tables: Vec<&str> = tables.lines().collect();
    assert_eq!(tables.len(), 4);
    let query = |id: &EventId| DeliveryQuery { event: Some(id.clone()), limit: 10, ..DeliveryQuery::default() };
    // Nobody can even look at a table that is locked like this. A session that is new has no plan for all ids, which it would make
    // once to compare, and which would look at all tables.
    for (id, allowed) in [(&today.id, tables[3]), (&old.id, tables[0])] {
        let store = Postgres::connect(&server.url(), options()).await.unwrap();
        let locker = by_hand(&server).await;
        let others: Vec<&str> = tables.iter().copied().filter(|table| *table != allowed).collect();
        locker.batch_execute(&format!("BEGIN; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", others.join(", "))).await.unwrap();
        for tenant_named in [true, false] {
            let of = Some(tenant("acme")).filter(|_| tenant_named);
            assert_eq!(&store.event(of, id.clone()).await.unwrap().unwrap().id, id);
            assert_eq!(store.deliveries(query(id)).await.unwrap().rows.len(), 1);
        }
        assert!(store.erase(None, id.clone(), audit()).await.unwrap());
        locker.batch_execute("ROLLBACK").await.unwrap();
    }
    assert_eq!(store.event(None, EventId::parse("nowhere").unwrap()).await.unwrap(), None);
}
