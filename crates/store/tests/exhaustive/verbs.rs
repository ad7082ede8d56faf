//! Every verb that writes, under every fault: its effect is there wholly or not at all, what it answers is true, and repeating it is
//! harmless.
//!
//! One table says of each verb what is looked at, and what that shows before it, after it, and after it was repeated. A verb of
//! the trait that is in no list here fails a test of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::delivery::{CancelReason, DeadReason, Outcome, State, Timings};
use posthaste_core::endpoint::{Endpoint, Override};
use posthaste_core::event::{Data, Event, EventType, Timing, TypePatterns};
use posthaste_core::id::{AttemptId, EndpointId, EventId, KeyId, ReplayId, SessionId, TenantId};
use posthaste_core::quiet_hours::{Days, QuietHours, TimeOfDay, Window};
use posthaste_core::scheduler::LaneMemory;
use posthaste_core::text::{IdempotencyKey, Labels};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::Adaptive;
use posthaste_store::{
    AttemptRecord, Audit, Change, DeliveryChange, DeliveryQuery, DeliveryRow, EndSessions, Epoch, Error, GivenUp, HandedOver,
    Housekeeping, Key, KeyHash, KeyScope, Keyring, LaneSnapshot, LaneState, MasterKey, NewEndpoint, NewEvent, NewReplay,
    NewSession, NodeId, Options, Postgres, Record, ReplayFilter, SessionAccess, SessionMaker, Sqlite, Store, partition_of,
};
use posthaste_testpg::{Cut, Proxy, Server};
use rusqlite::types::Value;

/// What a verb is tried with.
struct Case {
    verb: &'static str,
    act: Act,
    /// What is looked at, in SQL that both understand.
    look: &'static str,
    before: &'static str,
    after: &'static str,
    /// After it was called once more.
    again: &'static str,
    writes: Writes,
}

#[derive(Clone, Copy, PartialEq)]
enum Writes {
    /// With a commit that both databases have.
    Both,
    /// With SQLite it is in memory.
    OnlyPostgres,
    /// And PostgreSQL has a statement with this in it that is a transaction of its own.
    Alone(&'static str),
}

/// A name for what is done, because a child process is told it by its place.
type Act = for<'a> fn(&'a Facts) -> posthaste_store::StoreFuture<'a, String>;

/// What has been prepared, and whom to ask.
struct Facts {
    store: Arc<dyn Store>,
    epoch: Epoch,
    endpoint: Endpoint,
    waiting: DeliveryRow,
    ended: DeliveryRow,
}

const NODE: NodeId = NodeId(7);
const OTHER_NODE: NodeId = NodeId(8);
const REPLAY: [u8; 16] = [0x11; 16];
const KEY: [u8; 16] = [0x22; 16];

macro_rules! act {
    (|$facts:ident| $body:expr) => {
        |$facts| Box::pin(async move { Ok(format!("{:?}", $body.await?)) })
    };
}

const CASES: &[Case] = &[
    Case {
        verb: "configure",
        act: act!(|facts| {
            let endpoint = Endpoint { url: "https://example.org/".to_owned(), ..facts.endpoint.clone() };
            facts.store.configure(
                Change::ReplaceEndpoint { endpoint: Box::new(endpoint), secrets: None, expected_version: Some(2) },
                audit(),
            )
        }),
        look: "SELECT (SELECT version FROM endpoints) || ' ' || (SELECT count(*) FROM audit WHERE action <> 'session') || ' ' || (SELECT value FROM counters WHERE name = 'configuration')",
        before: "2 4 4",
        after: "3 5 5",
        again: "3 5 5",
        writes: Writes::Both,
    },
    Case {
        verb: "configure",
        act: act!(|facts| {
            let mut endpoint = facts.endpoint.clone();
            endpoint.policies.delivery_schedule = Override::Lift;
            facts.store.configure(
                Change::ReplaceEndpoint { endpoint: Box::new(endpoint), secrets: None, expected_version: Some(2) },
                audit(),
            )
        }),
        look: "SELECT (SELECT version FROM endpoints) || ' ' || (SELECT count(*) FROM audit WHERE action <> 'session')",
        before: "2 4",
        after: "3 5",
        again: "3 5",
        writes: Writes::Both,
    },
    Case {
        verb: "keys_used",
        act: act!(|facts| facts.store.keys_used(vec![(KeyId::from_bytes(KEY), Timestamp::from_millis(5))])),
        look: "SELECT count(*) FROM keys WHERE last_used_at_ms = 5",
        before: "0",
        after: "1",
        again: "1",
        writes: Writes::Both,
    },
    Case {
        verb: "create_session",
        act: act!(|facts| facts.store.create_session(session(facts.store.as_ref(), 0x44), audit())),
        look: "SELECT (SELECT count(*) FROM sessions) || ' ' || (SELECT count(*) FROM audit WHERE action <> 'session')",
        before: "1 4",
        after: "2 5",
        // The same session is kept once.
        again: "2 5",
        writes: Writes::Both,
    },
    Case {
        verb: "start_session",
        act: act!(|facts| facts.store.start_session(KeyHash([0x33; 32]), KeyHash([0x55; 32]), audit())),
        look: "SELECT (SELECT count(*) FROM sessions WHERE started_at_ms IS NOT NULL) || ' ' || (SELECT count(*) FROM audit WHERE action <> 'session')",
        before: "0 4",
        after: "1 5",
        again: "1 5",
        writes: Writes::Both,
    },
    Case {
        verb: "end_sessions",
        act: act!(|facts| facts.store.end_sessions(EndSessions::One(SessionId::from_bytes([0x33; 16])), audit())),
        look: "SELECT (SELECT count(*) FROM sessions) || ' ' || (SELECT count(*) FROM audit WHERE action <> 'session')",
        before: "1 4",
        after: "0 5",
        again: "0 5",
        writes: Writes::Both,
    },
    Case {
        verb: "set_hold",
        act: act!(|facts| facts.store.set_hold()),
        look: "SELECT '' || count(*) FROM words WHERE name = 'hold'",
        before: "0",
        after: "1",
        again: "1",
        writes: Writes::Both,
    },
    Case {
        verb: "publish",
        act: act!(|facts| {
            let mut event = event(facts.store.as_ref(), facts.store.now());
            (event.id, event.idempotency_key) = (EventId::parse("chosen").unwrap(), IdempotencyKey::parse("k").ok());
            facts.store.publish(vec![NewEvent { event: Arc::new(event), is_id_chosen: true, fingerprint: [7; 32], resolved: None }])
        }),
        look: "SELECT (SELECT count(*) FROM events WHERE id = 'chosen') || ' ' || (SELECT count(*) FROM deliveries WHERE event = 'chosen') || ' ' || (SELECT count(*) FROM idempotency_keys)",
        before: "0 0 0",
        after: "1 1 2",
        again: "1 1 2",
        writes: Writes::Both,
    },
    Case {
        // Without a key there is no duplicate: whoever does not know publishes another.
        verb: "publish",
        act: act!(|facts| {
            let event = event(facts.store.as_ref(), facts.store.now());
            facts.store.publish(vec![NewEvent {
                event: Arc::new(event),
                is_id_chosen: false,
                fingerprint: [7; 32],
                resolved: None,
            }])
        }),
        look: "SELECT (SELECT count(*) FROM events WHERE tenant = 'acme') || ' ' || (SELECT count(*) FROM deliveries)",
        before: "5 6",
        after: "6 7",
        again: "7 8",
        writes: Writes::Both,
    },
    Case {
        verb: "record",
        act: act!(|facts| {
            let state = State::Delivered { at: facts.store.now() };
            let recorded = DeliveryChange::Attempt { seq: facts.waiting.seq, attempt: attempt(facts.store.as_ref(), 1), state };
            let lane = LaneState { memory: LaneMemory::new(), timeout: Adaptive::default(), version: 1 };
            facts.store.record(vec![Record { lane: Some(lane), ..record(facts, &facts.waiting, recorded) }])
        }),
        look: "SELECT (SELECT count(*) FROM attempts) || ' ' || (SELECT count(*) FROM deliveries WHERE status = 'waiting') || ' ' || (SELECT count(*) FROM lanes)",
        before: "4 2 0",
        after: "5 1 1",
        again: "5 1 1",
        writes: Writes::Both,
    },
    Case {
        verb: "record",
        act: act!(|facts| {
            let state = State::Cancelled { at: facts.store.now(), reason: CancelReason::Requested };
            let recorded = DeliveryChange::Moved { seq: facts.waiting.seq, state, audit: Some(Box::new(audit())) };
            facts.store.record(vec![Record {
                disables_endpoint: Some(posthaste_core::health::DisableReason::Gone),
                ..record(facts, &facts.waiting, recorded)
            }])
        }),
        look: "SELECT (SELECT count(*) FROM deliveries WHERE status = 'cancelled') || ' ' || (SELECT status FROM endpoints) || ' ' || (SELECT count(*) FROM audit WHERE action <> 'session')",
        before: "0 active 4",
        after: "1 disabled 6",
        again: "1 disabled 6",
        writes: Writes::Both,
    },
    Case {
        verb: "restamp",
        act: act!(|facts| facts.store.restamp(facts.endpoint.id, 0, 100)),
        look: "SELECT (SELECT count(*) FROM deliveries WHERE status = 'waiting' AND class = 1) || ' ' || (SELECT count(*) FROM deliveries WHERE status = 'waiting' AND class = 2)",
        before: "2 0",
        after: "0 2",
        again: "0 2",
        writes: Writes::Both,
    },
    Case {
        verb: "count",
        act: act!(|facts| facts.store.count()),
        look: "SELECT (SELECT coalesce(sum(attempts), 0) FROM minutes) || ' ' || (SELECT coalesce(sum(attempts), 0) FROM minutes_of_tenants)",
        before: "0 0",
        after: "4 8",
        again: "4 8",
        writes: Writes::Both,
    },
    Case {
        verb: "publish_lanes",
        act: act!(|facts| {
            facts.store.publish_lanes(vec![LaneSnapshot {
                endpoint: facts.endpoint.id,
                at: facts.store.now(),
                memory: LaneMemory::new(),
                timeout: Adaptive::default(),
                tenant_bucket: None,
                retries_from: None,
                is_short_of_tokens: false,
                has_slot: true,
                in_flight: vec![],
                blocked: None,
            }])
        }),
        look: "SELECT count(*) FROM lanes_shown",
        before: "0",
        after: "1",
        again: "1",
        writes: Writes::Alone("insert into lanes_shown"),
    },
    Case {
        verb: "create_replay",
        act: act!(|facts| {
            let replay = NewReplay { idempotency_key: Some("again".to_owned()), ..replay([0x33; 16]) };
            facts.store.create_replay(replay, audit())
        }),
        look: "SELECT (SELECT count(*) FROM replays) || ' ' || (SELECT count(*) FROM audit WHERE action <> 'session')",
        before: "1 4",
        after: "2 5",
        again: "2 5",
        writes: Writes::Both,
    },
    Case {
        // Each step makes the next row.
        verb: "step_replay",
        act: act!(|facts| facts.store.step_replay(ReplayId::from_bytes(REPLAY), 1, 100)),
        look: "SELECT (SELECT count(*) FROM deliveries WHERE replay IS NOT NULL) || ' ' || (SELECT created FROM replays)",
        before: "1 1",
        after: "2 2",
        again: "3 3",
        writes: Writes::Both,
    },
    Case {
        verb: "cancel_replay",
        act: act!(|facts| facts.store.cancel_replay(ReplayId::from_bytes(REPLAY), audit())),
        look: "SELECT (SELECT state FROM replays) || ' ' || (SELECT count(*) FROM audit WHERE action <> 'session')",
        before: "running 4",
        after: "cancelled 5",
        again: "cancelled 5",
        writes: Writes::Both,
    },
    Case {
        // Whoever asks twice is given two, and the last is the successor.
        verb: "redeliver",
        act: act!(|facts| facts.store.redeliver(facts.ended.id, audit())),
        look: "SELECT (SELECT count(*) FROM deliveries) || ' ' || (SELECT count(*) FROM deliveries WHERE replayed_as IS NOT NULL) || ' ' || (SELECT count(*) FROM audit WHERE action <> 'session')",
        before: "6 1 4",
        after: "7 2 5",
        again: "8 2 6",
        writes: Writes::Both,
    },
    Case {
        verb: "clean_up",
        act: act!(|facts| facts.store.clean_up(Housekeeping::default())),
        look: "SELECT count(*) FROM deliveries",
        before: "6",
        after: "5",
        again: "5",
        writes: Writes::Both,
    },
    Case {
        verb: "erase",
        act: act!(|facts| facts.store.erase(Some(tenant()), facts.ended.event.clone(), audit())),
        look: "SELECT (SELECT count(*) FROM events WHERE data IS NULL) || ' ' || (SELECT count(*) FROM audit WHERE action <> 'session')",
        before: "0 4",
        after: "1 5",
        again: "1 5",
        writes: Writes::Both,
    },
    Case {
        verb: "join",
        act: act!(|facts| facts.store.join(NodeId(77))),
        look: "SELECT count(*) FROM nodes",
        before: "2",
        after: "3",
        again: "3",
        writes: Writes::OnlyPostgres,
    },
    Case {
        // The lease that is looked at was made to last for hours when it was prepared.
        verb: "renew",
        act: act!(|facts| facts.store.renew(NODE)),
        look: "SELECT count(*) FROM nodes WHERE expires_at > clock_timestamp() + interval '90 minutes'",
        before: "1",
        after: "0",
        again: "0",
        writes: Writes::Alone("update nodes set expires_at"),
    },
    Case {
        verb: "claim",
        act: act!(|facts| facts.store.claim(OTHER_NODE, 10)),
        look: "SELECT (SELECT count(*) FROM partitions WHERE owner IS NULL) || ' ' || (SELECT count(DISTINCT owner) FROM partitions)",
        before: "56 1",
        after: "46 2",
        again: "46 2",
        writes: Writes::OnlyPostgres,
    },
    Case {
        verb: "hand_over",
        act: act!(|facts| {
            let until = facts.store.now() + Duration::from_mins(1);
            facts.store.hand_over(
                NODE,
                GivenUp::Everything,
                vec![HandedOver { seq: facts.waiting.seq, attempt: facts.waiting.attempts + 1, until }],
            )
        }),
        look: "SELECT count(*) FROM handed_over",
        before: "0",
        after: "1",
        again: "1",
        writes: Writes::Both,
    },
];

/// Verbs that change nothing, or nothing that is kept.
const READING: &[&str] = &[
    "now",
    "wall_clock",
    "clock_status",
    "handed_over_left",
    "unique",
    "apply",
    "configuration_number",
    "endpoint",
    "endpoints",
    "tenant",
    "tenants",
    "event_types",
    "key",
    "keys",
    "session",
    "sessions",
    "audit",
    "feed",
    "work",
    "sweep",
    "windows",
    "load_endpoints",
    "tenant_versions",
    "is_shared",
    "bodies",
    "lane",
    "commands",
    "lane_snapshots",
    "statistics",
    "backlog",
    "count_ahead",
    "sealed_values",
    "tenants_of_event",
    "delivery",
    "deliveries",
    "rows_after",
    "deliveries_at",
    "dead_letters",
    "attempts",
    "endpoint_versions",
    "event",
    "events",
    "count_replay",
    "replay",
    "replays",
    "running_replays",
    "overdue",
    "nodes",
    "hold",
    "close",
];
/// A question to somebody, kept for seconds: what is lost of it is told by its answer, which has tests of its own.
const ASKING: &[&str] = &["command"];
/// Writes only while there is a hold, which these cases do not set; the tests of the `hold` commands release one.
const NEEDS_A_HOLD: &[&str] = &["release_hold"];

#[test]
fn every_verb_is_in_a_list() {
    let trait_text = include_str!("../../src/lib.rs");
    let begin = trait_text.find("pub trait Store").unwrap();
    let body = &trait_text[begin..begin + trait_text[begin..].find("\n}").unwrap()];
    let verbs: BTreeSet<&str> = body.lines().filter_map(|line| line.trim().strip_prefix("fn ")?.split('(').next()).collect();
    let writing = CASES.iter().map(|case| case.verb);
    let listed: BTreeSet<&str> =
        writing.chain(READING.iter().copied()).chain(ASKING.iter().copied()).chain(NEEDS_A_HOLD.iter().copied()).collect();
    assert_eq!(verbs, listed);
}

fn options() -> Options {
    Options::new(Keyring::new(MasterKey::from_base64("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").unwrap(), vec![]))
}

fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

fn audit() -> Audit {
    let text = |text: &str| text.to_owned();
    Audit { actor: text("a"), address: None, action: text("x"), subject: text("s"), tenant: None, before: None, after: None }
}

fn event(store: &dyn Store, at: Timestamp) -> Event {
    Event {
        id: EventId::from_unique(store.unique()),
        tenant: tenant(),
        event_type: EventType::parse("order.paid").unwrap(),
        version: None,
        timestamp: at,
        accepted_at: at,
        data: Data::parse("{}").unwrap(),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    }
}

fn attempt(store: &dyn Store, number: u32) -> Box<AttemptRecord> {
    Box::new(AttemptRecord {
        id: AttemptId::from_unique(store.unique()),
        number,
        outcome: Outcome::Answered { status: 200, retry_after: None },
        response_time: Duration::from_millis(41),
        timings: Timings::default(),
        timeout: Duration::from_secs(10),
        preview: None,
        error: None,
        attempted_at: store.now(),
        endpoint_version: Some(1),
    })
}

/// A portal link that has not been used.
fn session(store: &dyn Store, byte: u8) -> NewSession {
    NewSession {
        id: SessionId::from_bytes([byte; 16]),
        hash: KeyHash([byte; 32]),
        access: SessionAccess::Dashboard,
        made_by: SessionMaker::Key(KeyId::from_bytes(KEY)),
        created_at: store.now(),
        expires_at: store.now() + Duration::from_hours(1),
        code_expires_at: Some(store.now() + Duration::from_hours(1)),
    }
}

fn record(facts: &Facts, row: &DeliveryRow, recorded: DeliveryChange) -> Record {
    Record { partition: row.partition, epoch: facts.epoch, endpoint: row.endpoint, recorded, lane: None, disables_endpoint: None }
}

fn replay(id: [u8; 16]) -> NewReplay {
    NewReplay {
        id: ReplayId::from_bytes(id),
        filter: ReplayFilter {
            tenant: Some(tenant()),
            event_types: TypePatterns::parse(["order.*"]).unwrap(),
            ..ReplayFilter::default()
        },
        reason: "an outage".to_owned(),
        requested_by: "key_1".to_owned(),
        rate_per_minute: 600,
        idempotency_key: None,
    }
}

/// Two that wait, three that were delivered, one of them 40 days ago; a replay that has made one of them again; quiet hours that
/// came after them.
async fn prepare(store: Arc<dyn Store>) {
    let id = EndpointId::from_unique(store.unique());
    let endpoint = Endpoint::new(id, tenant(), "https://example.com/hooks".to_owned(), store.now());
    let new = NewEndpoint { endpoint: endpoint.clone(), secrets: vec![], per_tenant_max: 500, tenant_created_at: None };
    store.configure(Change::CreateEndpoint(Box::new(new)), audit()).await.unwrap().unwrap();
    let key = Key {
        id: KeyId::from_bytes(KEY),
        hash: KeyHash([1; 32]),
        name: "k".to_owned(),
        tenant: None,
        scopes: vec![KeyScope::Read],
        created_at: store.now(),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    };
    store.configure(Change::CreateKey(Box::new(key)), audit()).await.unwrap().unwrap();
    let noted = Audit { action: "session".to_owned(), ..audit() };
    store.create_session(session(store.as_ref(), 0x33), noted).await.unwrap().unwrap();
    store.join(NODE).await.unwrap();
    let epoch = store.claim(NODE, 256).await.unwrap().unwrap().partitions[0].1;
    let now = store.now();
    let ages = [Duration::from_hours(40 * 24), Duration::ZERO, Duration::ZERO, Duration::ZERO, Duration::ZERO];
    for (place, age) in ages.into_iter().enumerate() {
        let event = event(store.as_ref(), now - age);
        let id = event.id.clone();
        store
            .publish(vec![NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [7; 32], resolved: None }])
            .await
            .unwrap();
        if place < 4 {
            let row = store
                .deliveries(DeliveryQuery { event: None, endpoint: Some(endpoint.id), limit: 1, ..DeliveryQuery::default() })
                .await
                .unwrap()
                .rows
                .remove(0);
            assert_eq!(row.event, id);
            let reason = DeadReason::MaxAttemptsExceeded;
            let state = if place == 3 { State::Dead { at: now, reason } } else { State::Delivered { at: now - age } };
            let attempt = AttemptRecord { attempted_at: now - age, ..*attempt(store.as_ref(), 1) };
            let recorded = DeliveryChange::Attempt { seq: row.seq, attempt: Box::new(attempt), state };
            let record = Record {
                partition: partition_of(&tenant()),
                epoch,
                endpoint: endpoint.id,
                recorded,
                lane: None,
                disables_endpoint: None,
            };
            store.record(vec![record]).await.unwrap();
        }
    }
    store.create_replay(replay(REPLAY), audit()).await.unwrap();
    // The first that it finds is the oldest, whose payload is still there.
    store.step_replay(ReplayId::from_bytes(REPLAY), 1, 100).await.unwrap();
    let at = |text: &str| TimeOfDay::parse(text).unwrap();
    let window = Window { start: at("22:00"), end: at("06:00"), days: Days::parse(["mon"]).unwrap() };
    let none = TypePatterns::parse([] as [&str; 0]).unwrap();
    let quiet = QuietHours::new("UTC", vec![window], vec![], none.clone(), none).unwrap();
    let mut changed = endpoint;
    changed.policies.delivery_schedule = Override::Set(quiet);
    let change = Change::ReplaceEndpoint { endpoint: Box::new(changed), secrets: None, expected_version: None };
    store.configure(change, audit()).await.unwrap().unwrap();
    store.hand_over(NODE, GivenUp::Everything, vec![]).await.unwrap();
    store.close().await.unwrap();
}

/// By their places, whatever has become of them.
async fn facts(store: Arc<dyn Store>) -> Facts {
    store.join(NODE).await.unwrap();
    store.renew(NODE).await.unwrap().unwrap();
    let claimed = store.claim(NODE, 200).await.unwrap().unwrap();
    let partition = partition_of(&tenant());
    let epoch = claimed.partitions.iter().find(|(id, _)| *id == partition).unwrap().1;
    let query = DeliveryQuery { tenant: Some(tenant()), limit: 50, ..DeliveryQuery::default() };
    let mut rows = store.deliveries(query).await.unwrap().rows;
    // Without the old one, which may have been swept away.
    let yesterday = store.now() - Duration::from_hours(24);
    rows.retain(|row| row.replay.is_none() && row.replay_of.is_none() && row.created_at > yesterday);
    rows.sort_by_key(|row| row.seq);
    let (ended, waiting) = (rows[0].clone(), rows[3].clone());
    let endpoint = store.endpoint(None, waiting.endpoint).await.unwrap().unwrap().endpoint;
    let facts = Facts { store, epoch, endpoint, waiting, ended };
    // So that whatever is opened or made for the first time is there.
    let nothing = record(&facts, &facts.waiting, DeliveryChange::Nothing);
    facts.store.record(vec![nothing]).await.unwrap();
    let other = Event { tenant: TenantId::parse("other").unwrap(), ..event(facts.store.as_ref(), facts.store.now()) };
    let other = NewEvent { event: Arc::new(other), is_id_chosen: false, fingerprint: [7; 32], resolved: None };
    facts.store.publish(vec![other]).await.unwrap();
    facts
}

/// What a fault has to lead to.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Expected {
    /// As if nothing had happened: it is there, once, and it was answered.
    Done,
    /// It is there or not, and that is what was answered.
    Truth,
    /// Whoever asked is dead, or hears that it is not known or was not written.
    NotWritten,
    /// Whoever asked is dead, or does not hear that it was not written.
    Written,
}

fn check(case: &Case, fault: &str, expected: Expected, answer: Option<&Result<String, bool>>, shown: &str) {
    let what = format!("{} ({}): {answer:?}, and it shows {shown:?}", case.verb, fault);
    match expected {
        Expected::Done => assert!(matches!(answer, Some(Ok(_))) && shown == case.after, "{what}"),
        Expected::Truth => match answer {
            Some(Ok(_)) => assert_eq!(shown, case.after, "{what}"),
            Some(Err(false)) => assert_eq!(shown, case.before, "{what}"),
            Some(Err(true)) | None => panic!("{what}"),
        },
        Expected::NotWritten => assert!(!matches!(answer, Some(Ok(_))) && shown == case.before, "{what}"),
        Expected::Written => assert!(!matches!(answer, Some(Err(false))) && shown == case.after, "{what}"),
    }
}

/// `Err(true)` where it is not known.
fn told(answer: Result<String, Error>) -> Result<String, bool> {
    answer.map_err(|error| matches!(error, Error::CommitInDoubt))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_every_verb_on_postgres_is_done_once_or_not_at_all_whatever_is_lost() {
    let server = Arc::new(Server::start_with(&[("max_connections", "300")]));
    let url = server.create_database("prepared");
    prepare(Arc::new(Postgres::connect(&url, options()).await.unwrap())).await;
    let faults = [
        ("lost before its commit", Cut::Before, false, Expected::Done),
        ("the answer to its commit lost", Cut::AfterAnswer, false, Expected::Done),
        ("lost before its commit, and the database gone", Cut::Before, true, Expected::NotWritten),
        ("the answer to its commit lost, and the database gone", Cut::AfterAnswer, true, Expected::Written),
    ];
    for (fault, cut, is_gone, expected) in faults {
        let mut tasks = tokio::task::JoinSet::new();
        for (place, case) in CASES.iter().enumerate() {
            let server = Arc::clone(&server);
            tasks.spawn(async move { one_on_postgres(&server, place, case, fault, cut, is_gone, expected).await });
        }
        // A panic of one is a failure of all.
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    }
}

async fn one_on_postgres(server: &Server, place: usize, case: &Case, fault: &str, cut: Cut, is_gone: bool, expected: Expected) {
    let name = format!("case_{place}_{}_{is_gone}", cut == Cut::Before);
    let url = tokio::task::block_in_place(|| {
        server.psql(&format!("CREATE DATABASE {name} TEMPLATE prepared"));
        server.url_of(&name)
    });
    let look = || tokio::task::block_in_place(|| server.psql_at(&url, case.look).unwrap());
    let proxy = Proxy::start(server.port());
    let store: Arc<dyn Store> = Arc::new(Postgres::connect(&proxy.url_of(&name), options()).await.unwrap());
    let facts = facts(Arc::clone(&store)).await;
    store.join(OTHER_NODE).await.unwrap();
    // A lease that lasts as long as the test, and one that is seen to be renewed.
    let leases = "UPDATE nodes SET expires_at = clock_timestamp() + interval '1 hour';
                  UPDATE nodes SET expires_at = clock_timestamp() + interval '2 hours' WHERE id = decode('00000000000000000000000000000007', 'hex')";
    tokio::task::block_in_place(|| server.psql_at(&url, leases).unwrap());
    assert_eq!(look(), case.before, "{} before it", case.verb);
    match case.writes {
        Writes::Both | Writes::OnlyPostgres => proxy.cut_next_commit(cut),
        Writes::Alone(statement) => proxy.cut_next_statement(statement, cut),
    }
    if is_gone {
        // New connections are refused, as soon as the one in use is cut.
        proxy.refuse();
    }
    let began = Instant::now();
    let answer = told((case.act)(&facts).await);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{} ({fault}) is answered soon: {took:?}", case.verb);
    assert_eq!(proxy.cuts(), 1, "{} ({fault}) has a commit that can be cut: {answer:?}", case.verb);
    check(case, fault, expected, Some(&answer), &look());
    let fresh: Arc<dyn Store> = Arc::new(Postgres::connect(&url, options()).await.unwrap());
    let again = (case.act)(&Facts { store: Arc::clone(&fresh), ..facts }).await;
    let expected = if expected == Expected::NotWritten { case.after } else { case.again };
    assert_eq!(look(), expected, "{} ({fault}) once more: {again:?}", case.verb);
    fresh.close().await.unwrap();
}

const DIRECTORY: &str = "POSTHASTE_TEST_DIRECTORY";
const PLACE: &str = "POSTHASTE_TEST_PLACE";

/// Not a test: the process that does one verb, and may be killed in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the child of another test"]
async fn does_one_verb_when_it_is_told_to() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let case = &CASES[std::env::var(PLACE).unwrap().parse::<usize>().unwrap()];
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&directory.join("data"), options()).unwrap());
    let facts = facts(store).await;
    std::fs::write(directory.join("ready"), "").unwrap();
    wait_for("the word to begin", || directory.join("go").exists());
    let answer = told((case.act)(&facts).await);
    std::fs::write(directory.join("answer.new"), format!("{answer:?}")).unwrap();
    std::fs::rename(directory.join("answer.new"), directory.join("answer")).unwrap();
    // Whoever has started it looks at the files, and kills it.
    wait_for("nothing", || false);
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_every_verb_on_sqlite_is_done_once_or_not_at_all_wherever_it_is_killed() {
    assert!(Command::new("strace").arg("--version").output().is_ok(), "install the Debian package strace");
    let scratch = std::env::temp_dir().join(format!("posthaste-exhaustive-verbs-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&scratch);
    let prepared = scratch.join("prepared");
    prepare(Arc::new(Sqlite::open(&prepared, options()).unwrap())).await;
    let faults = [
        ("killed at its first write", "inject=pwrite64:signal=KILL:when=1", Expected::NotWritten),
        ("killed at its third write", "inject=pwrite64:signal=KILL:when=3", Expected::NotWritten),
        ("killed before its flush", "inject=fsync,fdatasync:signal=KILL:when=1", Expected::Written),
        ("its flush fails", "inject=fsync,fdatasync:error=EIO:when=1", Expected::Truth),
    ];
    for (place, case) in CASES.iter().enumerate().filter(|(_, case)| case.writes == Writes::Both) {
        for (number, (fault, inject, expected)) in faults.into_iter().enumerate() {
            let directory = scratch.join(format!("{place}-{number}"));
            copy(&prepared, &directory.join("data"));
            one_on_sqlite(&directory, place, case, fault, inject, expected).await;
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}

async fn one_on_sqlite(directory: &Path, place: usize, case: &Case, fault: &str, inject: &str, expected: Expected) {
    let mut child = Ended(start(directory, place));
    tokio::task::block_in_place(|| {
        wait_for("the child to be ready", || directory.join("ready").exists());
        let database = directory.join("data/posthaste.db");
        assert_eq!(look_at(&database, case.look), case.before, "{} before it", case.verb);
        let log = directory.join("data/posthaste.db-wal");
        let pid = child.0.id();
        let strace = Command::new("strace")
            .args(["-f", "-qq", "-o", "/dev/null", "-p", &pid.to_string(), "-P", log.to_str().unwrap()])
            .args(["-e", "trace=pwrite64,fsync,fdatasync", "-e", inject])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut strace = Ended(strace);
        wait_for("strace to be attached", || is_traced(pid));
        std::fs::write(directory.join("go"), "").unwrap();
        let answer = directory.join("answer");
        wait_for("an answer, or its end", || answer.exists() || child.0.try_wait().unwrap().is_some());
        // It may have been killed after it had answered: then the fault has come too late.
        let answer = std::fs::read_to_string(&answer).ok();
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        strace.0.wait().unwrap();
        let answer = answer.map(|text: String| if text.starts_with("Ok") { Ok(text) } else { Err(text.contains("true")) });
        check(case, fault, expected, answer.as_ref(), &look_at(&database, case.look));
    });
    let is_there = look_at(&directory.join("data/posthaste.db"), case.look) == case.after;
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&directory.join("data"), options()).unwrap());
    let facts = facts(Arc::clone(&store)).await;
    let again = (case.act)(&facts).await;
    let expected = if is_there { case.again } else { case.after };
    assert_eq!(look_at(&directory.join("data/posthaste.db"), case.look), expected, "{} ({fault}) once more: {again:?}", case.verb);
    store.close().await.unwrap();
}

/// A child that does not outlive its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(directory: &Path, place: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "verbs::does_one_verb_when_it_is_told_to", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(PLACE, place.to_string())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(directory.join("stderr")).unwrap())
        .spawn()
        .unwrap()
}

/// All of its threads.
fn is_traced(pid: u32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().all(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    })
}

fn look_at(database: &Path, look: &str) -> String {
    let connection = rusqlite::Connection::open_with_flags(database, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    connection.busy_timeout(Duration::from_secs(5)).unwrap();
    connection
        .query_row(look, [], |row| row.get::<_, Value>(0))
        .map(|value| match value {
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => text,
            other @ (Value::Null | Value::Real(_) | Value::Blob(_)) => format!("{other:?}"),
        })
        .unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}
