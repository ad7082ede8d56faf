//! Every setting has an effect that can be seen: each one is changed here, or in the test that is named for it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_testpg::Server as Database;
use serde_json::{Value, json};

use crate::server::{BINARY, Receiver, Server};

const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const LOCAL: [&str; 3] = ["--allow-http", "--allow-networks", "127.0.0.0/8"];

/// Where a change of a setting is seen to have its effect.
enum Seen {
    /// In this file.
    Here,
    /// In another file of tests, which gives its flag.
    In(&'static str),
    /// In what it is turned into: it speaks of memory, or of days in which a server has to learn.
    InOptions,
}
use Seen::{Here, In, InOptions};

const SETTINGS: [(&str, Seen); 87] = [
    ("listen", Here),
    ("tls_cert", In("commands/tls.rs")),
    ("tls_key", In("commands/tls.rs")),
    ("metrics", Here),
    ("metrics_listen", In("metrics.rs")),
    ("metrics_endpoints_max", Here),
    ("metrics_types_max", Here),
    ("public_url", Here),
    ("data_dir", Here),
    ("database_url", Here),
    ("database_wait_seconds", In("postgres.rs")),
    ("role", In("postgres.rs")),
    ("hold", In("commands/backup.rs")),
    ("outbox", In("outbox.rs")),
    ("connections_max", Here),
    ("connections_per_address_max", Here),
    ("trusted_proxies", Here),
    ("header_timeout_ms", In("serve.rs")),
    ("portal_origins", Here),
    ("strict_tenants", Here),
    ("admin_key", Here),
    ("master_key", In("postgres.rs")),
    ("previous_master_keys", In("commands/rotation.rs")),
    ("log", In("serve.rs")),
    ("log_format", In("serve.rs")),
    ("otlp_endpoint", In("traces.rs")),
    ("otlp_headers", In("traces.rs")),
    ("trace_sample_ratio", In("traces.rs")),
    ("allow_networks", Here),
    ("allow_http", Here),
    ("proxy", Here),
    ("bind_address", Here),
    ("extra_roots", In("commands/notifications.rs")),
    ("notifications", Here),
    ("notifications_tenant", Here),
    ("notification_pause_seconds", In("commands/notifications.rs")),
    ("secret_overlap_notice_seconds", Here),
    ("dead_letters_growing_min", Here),
    ("smtp_url", In("commands/notifications.rs")),
    ("smtp_from", In("commands/notifications.rs")),
    ("smtp_operators", In("commands/notifications.rs")),
    ("payload_bytes_max", Here),
    ("batch_events_max", Here),
    ("batch_bytes_max", Here),
    ("endpoints_per_tenant_max", Here),
    ("types_per_endpoint_max", Here),
    ("in_flight_per_endpoint", Here),
    ("in_flight_per_tenant", Here),
    ("in_flight_max", Here),
    ("replays_per_minute", Here),
    ("test_send_pause_seconds", Here),
    ("api_rate", Here),
    ("api_burst", Here),
    ("retries_per_minute_max", Here),
    ("request_bytes_max", InOptions),
    ("commit_queue_bytes_max", InOptions),
    ("cached_body_bytes_max", InOptions),
    ("in_flight_bytes_max", Here),
    ("retention_days", Here),
    ("dead_letters_kept_days", Here),
    ("audit_kept_days", Here),
    ("idempotency_keys_kept_hours", Here),
    ("retry_strategy", Here),
    ("retry_delays_seconds", Here),
    ("retry_max_attempts", Here),
    ("retry_base_ms", Here),
    ("retry_factor", Here),
    ("retry_cap_ms", Here),
    ("retry_jitter", Here),
    ("retry_jitter_percent", Here),
    ("retry_also_statuses", Here),
    ("circuit_failure_threshold", Here),
    ("circuit_probe_interval_seconds", Here),
    ("rate_limit_max_per_minute", Here),
    ("rate_limit_burst_capacity", Here),
    ("quiet_hours", Here),
    ("quiet_hours_timezone", Here),
    ("quiet_hours_applies_to", Here),
    ("quiet_hours_bypass_event_types", Here),
    ("timeout_mode", Here),
    ("timeout_ms", Here),
    ("timeout_default_ms", Here),
    ("timeout_min_ms", InOptions),
    ("timeout_max_ms", InOptions),
    ("timeout_multiplier", InOptions),
    ("timeout_buffer_ms", InOptions),
    ("timeout_samples_min", InOptions),
];

#[test]
fn every_setting_is_changed_by_a_test() {
    let printed = Command::new(BINARY).args(["serve", "--print-config"]).env_clear().output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    // A setting that is not set is printed as a comment.
    let names = printed.lines().filter_map(|line| line.trim_start_matches("# ").split_once(" = ")).map(|(name, _)| name.to_owned());
    let listed: BTreeSet<String> = SETTINGS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names.collect::<BTreeSet<_>>(), listed, "{printed}");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (name, seen) in SETTINGS {
        let (file, word) = match seen {
            Here => (tests.join("commands/settings.rs"), format!("--{}", name.replace('_', "-"))),
            In(file) => (tests.join(file), format!("--{}", name.replace('_', "-"))),
            InOptions => (tests.join("../src/settings.rs"), format!("--{}", name.replace('_', "-"))),
        };
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(&format!("\"{word}")), "{word} is not in {}", file.display());
    }
}

/// The same claim about a server on each database.
fn on_both(name: &str, flags: &[&str], claim: impl Fn(&mut Server)) {
    claim(&mut Server::start_bare(&format!("{name}-sqlite"), flags));
    let database = Database::start();
    let url = database.url();
    let shared = ["--database-url", url.as_str(), "--master-key", MASTER_KEY];
    claim(&mut Server::start_bare(&format!("{name}-postgres"), &[flags, &shared].concat()));
}

fn refused(server: &Server, method: &str, path: &str, body: &str, status: u16) {
    let (said, answer) = server.call(method, path, body);
    assert_eq!(said, status, "{method} {path}: {answer}");
}

#[test]
fn what_may_come_in_is_bounded_as_set() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let flags = [
        "--listen",
        &port,
        "--payload-bytes-max",
        "2048",
        "--batch-events-max",
        "2",
        "--batch-bytes-max",
        "4096",
        "--endpoints-per-tenant-max",
        "2",
        "--types-per-endpoint-max",
        "2",
        "--public-url",
        "https://hooks.example.com",
        "--connections-max",
        "16",
        "--portal-origins",
        "https://app.example.com",
    ];
    on_both("bounds", &flags, |server| {
        let event = |length: usize| json!({"type": "a.b", "data": "x".repeat(length)}).to_string();
        server.good("POST", "/v1/events", &event(1_000));
        refused(server, "POST", "/v1/events", &event(3_000), 413);
        let batch =
            |count: usize, length: usize| json!(vec![json!({"type": "a.b", "data": "x".repeat(length)}); count]).to_string();
        server.good("POST", "/v1/events/batch", &batch(2, 10));
        let (_, many) = server.call("POST", "/v1/events/batch", &batch(3, 10));
        assert!(many["errors"].is_array() && many["status"].as_u64() >= Some(413), "{many}");
        refused(server, "POST", "/v1/events/batch", &batch(2, 4_000), 413);
        refused(server, "POST", "/v1/endpoints", r#"{"url": "http://example.com/"}"#, 422);
        refused(server, "POST", "/v1/endpoints", r#"{"url": "https://127.0.0.1/"}"#, 422);
        let endpoint = |types: &[&str]| json!({"url": "https://example.com/", "event_types": types}).to_string();
        let (status, answer) = server.call("POST", "/v1/endpoints", &endpoint(&["a", "b", "c"]));
        assert_eq!((status, &answer["errors"][0]["field"]), (422, &"event_types".into()), "{answer}");
        server.good("POST", "/v1/endpoints", &endpoint(&["a", "b"]));
        server.good("POST", "/v1/endpoints", &endpoint(&[]));
        let (status, answer) = server.call("POST", "/v1/endpoints", &endpoint(&[]));
        assert!(status == 409 || status == 422, "{status} {answer}");
        let link = server.good("POST", "/v1/portal-links", r#"{"tenant": "default", "permissions": ["view"]}"#);
        assert!(link["url"].as_str().unwrap().starts_with("https://hooks.example.com/"), "{link}");
        let page = beside(server.address, "/portal");
        assert!(page.contains("frame-ancestors https://app.example.com;"), "{page}");
        // So many callers keep the others out for as long as they stay, except for probes.
        let callers: Vec<_> = (0..16).map(|_| std::net::TcpStream::connect(server.address).unwrap()).collect();
        let answer = beside(server.address, "/docs");
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        let answer = beside(server.address, "/healthz");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop(callers);
    });
}

/// What a caller hears over a connection of its own.
fn beside(server: SocketAddr, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(server).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn one_address_has_as_many_connections_as_set_unless_it_is_a_proxy() {
    let few = ["--connections-per-address-max", "3"];
    let server = Server::start_bare("per-address", &few);
    let callers: Vec<_> = (0..3).map(|_| std::net::TcpStream::connect(server.address).unwrap()).collect();
    assert!(beside(server.address, "/docs").starts_with("HTTP/1.1 503"));
    assert!(beside(server.address, "/readyz").starts_with("HTTP/1.1 200"), "probes have places of their own");
    drop(callers);
    let server = Server::start_bare("proxy", &[&few[..], &["--trusted-proxies", "127.0.0.0/8"]].concat());
    let _callers: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(server.address).unwrap()).collect();
    assert!(beside(server.address, "/docs").starts_with("HTTP/1.1 200"));
}

#[test]
fn who_may_call_and_how_often_is_as_set() {
    let key = "an-admin-key-of-the-operators-own";
    let flags = [
        "--admin-key",
        key,
        "--api-rate",
        "1",
        "--api-burst",
        "3",
        "--strict-tenants",
        "--listen",
        "127.0.0.2:0",
        "--data-dir",
        "elsewhere",
    ];
    on_both("callers", &flags, |server| {
        assert_eq!(server.address.ip().to_string(), "127.0.0.2");
        let has = |name: &str| server.directory.join(name).is_dir();
        assert!(has("elsewhere") && !has("posthaste-data"));
        refused(server, "GET", "/v1/tenants", "", 401);
        let call = |method: &str, path: &str, body: &str| server.exchange_as(key, method, path, &[], body).0;
        let event = r#"{"type": "a.b", "data": 1, "tenant": "acme"}"#;
        assert!((400..500).contains(&call("POST", "/v1/events", event)), "the tenant has to be made first");
        let statuses: Vec<u16> = (0..4).map(|_| call("GET", "/v1/tenants", "")).collect();
        assert_eq!(statuses, [200, 200, 200, 429]);
    });
}

#[test]
fn what_is_measured_and_told_is_as_set() {
    let quiet = Server::start_bare("no-metrics", &["--metrics=false"]);
    assert_eq!(quiet.call("GET", "/metrics", "").0, 404);
    let receiver = Receiver::start("410 Gone", b"");
    let flags = ["--metrics-endpoints-max", "0", "--metrics-types-max", "0", "--notifications-tenant", "ops"];
    on_both("told", &[&LOCAL[..], &flags].concat(), |server| {
        let url = receiver.url();
        server.good("POST", "/v1/endpoints", &json!({"url": url, "tenant": "acme"}).to_string());
        server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1, "tenant": "acme"}"#);
        let told = server.wait_until("/v1/events?tenant=ops", |seen| !seen["data"].as_array().unwrap().is_empty());
        assert_eq!(told["data"][0]["type"], "posthaste.endpoint.disabled", "{told}");
        let (_, _, page) = server.exchange("GET", "/metrics", &[], "");
        assert!(page.contains("webhook_events_created_total") && !page.contains("\"a.b\"") && !page.contains("\"ep_"), "{page}");
    });
    let flags = ["--notifications=false"];
    on_both("untold", &[&LOCAL[..], &flags].concat(), |server| {
        let url = receiver.url();
        let made = server.good("POST", "/v1/endpoints", &json!({"url": url}).to_string());
        server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1}"#);
        let path = format!("/v1/endpoints/{}", made["id"].as_str().unwrap());
        server.wait_until(&path, |seen| seen["status"] == "disabled");
        assert_eq!(server.call("GET", "/v1/tenants/posthaste", "").0, 404, "nothing was published for it");
    });
    let flags = ["--dead-letters-growing-min", "1", "--secret-overlap-notice-seconds", "604800"];
    let refusing = Receiver::start("404 Not Found", b"");
    on_both("growing", &[&LOCAL[..], &flags].concat(), |server| {
        let made = server.good("POST", "/v1/endpoints", &json!({"url": refusing.url()}).to_string());
        let rotate = format!("/v1/endpoints/{}/rotate-secret", made["id"].as_str().unwrap());
        server.good("POST", &rotate, r#"{"overlap_seconds": 3600}"#);
        server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1}"#);
        let has = |seen: &Value, name: &str| seen["data"].as_array().unwrap().iter().any(|event| event["type"] == name);
        server.wait_until("/v1/events?tenant=posthaste", |seen| has(seen, "posthaste.dead_letters.growing"));
        // Overlaps that end are looked for at the start.
        server.end(false);
        server.restart();
        server.wait_until("/v1/events?tenant=posthaste", |seen| has(seen, "posthaste.secret.overlap_ending"));
    });
}

/// Answers each request after a while, and knows how many it had at once.
struct Slow {
    address: SocketAddr,
    /// Requests now, at most at once, in all, and who asked last.
    seen: Arc<Mutex<(usize, usize, usize, String)>>,
}

impl Slow {
    fn start() -> Slow {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Mutex::new((0, 0, 0, String::new()))));
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, seen) = (stream.unwrap(), Arc::clone(&shared));
                std::thread::spawn(move || {
                    let peer = stream.peer_addr().unwrap().ip().to_string();
                    let mut reader = BufReader::new(stream);
                    let (mut head, mut line) = (String::new(), String::new());
                    while reader.read_line(&mut line).unwrap_or(0) > 2 {
                        head += &std::mem::take(&mut line);
                    }
                    let length =
                        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
                    let mut body = vec![0; length.unwrap_or(0)];
                    if head.is_empty() || reader.read_exact(&mut body).is_err() {
                        return;
                    }
                    {
                        let mut seen = seen.lock().unwrap();
                        *seen = (seen.0 + 1, seen.1.max(seen.0 + 1), seen.2 + 1, peer);
                    }
                    // The receiver is what takes time, not the test.
                    std::thread::sleep(Duration::from_millis(200));
                    seen.lock().unwrap().0 -= 1;
                    let _ = reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                });
            }
        });
        Slow { address, seen }
    }
}

/// How many requests were in flight at most while so many events went to each of two endpoints of one tenant.
fn most_at_once(server: &Server, bytes: usize) -> usize {
    let slow = Slow::start();
    for _ in 0..2 {
        server.good("POST", "/v1/endpoints", &json!({"url": format!("http://{}/", slow.address), "tenant": "acme"}).to_string());
    }
    let event = json!({"type": "a.b", "data": "x".repeat(bytes), "tenant": "acme"});
    server.good("POST", "/v1/events/batch", &json!(vec![event; 12]).to_string());
    let path = "/v1/deliveries?limit=100&status=delivered";
    server.wait_until(path, |seen| seen["data"].as_array().is_some_and(|data| data.len() == 24));
    let seen = slow.seen.lock().unwrap();
    assert_eq!(seen.2, 24);
    seen.1
}

#[test]
fn no_more_is_in_flight_than_was_set() {
    for (name, flags, most) in [
        ("endpoint", ["--in-flight-per-endpoint", "2"], 4),
        ("tenant", ["--in-flight-per-tenant", "3"], 3),
        ("server", ["--in-flight-max", "1"], 1),
    ] {
        on_both(&format!("in-flight-{name}"), &[&LOCAL[..], &flags].concat(), |server| {
            assert_eq!(most_at_once(server, 10), most, "{flags:?}");
            let endpoint = server.good("GET", "/v1/endpoints", "")["data"][0].clone();
            assert_eq!(endpoint["max_in_flight"], if name == "endpoint" { 2 } else { 16 });
            let tenant = server.good("GET", "/v1/tenants/acme", "");
            assert_eq!(tenant["max_in_flight"], if name == "tenant" { 3 } else { 256 });
        });
    }
    let flags = ["--in-flight-bytes-max", "1MiB", "--in-flight-per-endpoint", "16"];
    on_both("in-flight-bytes", &[&LOCAL[..], &flags].concat(), |server| {
        // The first one that does not fit is still sent: two of 600 KB, and no third.
        assert_eq!(most_at_once(server, 600_000), 2);
    });
}

#[test]
fn deliveries_leave_as_set() {
    let slow = Slow::start();
    on_both("bind", &[&LOCAL[..], &["--bind-address", "127.0.0.9"]].concat(), |server| {
        server.good("POST", "/v1/endpoints", &json!({"url": format!("http://{}/", slow.address)}).to_string());
        server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1}"#);
        server.wait_until("/v1/deliveries?status=delivered", |seen| seen["data"].as_array().unwrap().len() == 1);
        assert_eq!(slow.seen.lock().unwrap().3, "127.0.0.9");
    });
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    on_both("proxy", &[&LOCAL[..], &["--proxy", &address]].concat(), |server| {
        server.good("POST", "/v1/endpoints", &json!({"url": format!("http://{}/", slow.address)}).to_string());
        server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1}"#);
        let mut line = String::new();
        BufReader::new(proxy.accept().unwrap().0).read_line(&mut line).unwrap();
        assert!(line.contains(&slow.address.to_string()), "{line}");
    });
}

#[test]
fn tests_and_replays_are_paced_as_set() {
    let receiver = Receiver::start("200 OK", b"");
    let flags = ["--test-send-pause-seconds", "3600", "--replays-per-minute", "7"];
    on_both("paced", &[&LOCAL[..], &flags].concat(), |server| {
        let made = server.good("POST", "/v1/endpoints", &json!({"url": receiver.url()}).to_string());
        let test = format!("/v1/endpoints/{}/test", made["id"].as_str().unwrap());
        server.good("POST", &test, "{}");
        refused(server, "POST", &test, "{}", 429);
        let replay =
            server.good("POST", "/v1/replays", r#"{"tenant": "default", "from": "2020-01-01T00:00:00Z", "reason": "a test"}"#);
        assert_eq!(replay["rate_per_minute"], 7, "{replay}");
    });
    let failing = Receiver::start("500 Internal Server Error", b"");
    let flags = ["--retries-per-minute-max", "1", "--retry-delays-seconds", "0", "--retry-jitter-percent", "0"];
    on_both("retries", &[&LOCAL[..], &flags].concat(), |server| {
        let before = failing.arrivals.lock().unwrap().len();
        server.good("POST", "/v1/endpoints", &json!({"url": failing.url(), "event_types": ["a.b"]}).to_string());
        server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1}"#);
        // Its first attempt is made, and its second, which would follow at once, waits for a token: there is none for a minute.
        server.wait_until("/v1/deliveries?limit=1", |seen| seen["data"][0]["attempt_count"] == 1);
        server.good("POST", "/v1/endpoints", &json!({"url": receiver.url(), "event_types": ["c.d"]}).to_string());
        server.good("POST", "/v1/events", r#"{"type": "c.d", "data": 3}"#);
        server.wait_until("/v1/deliveries?status=delivered", |seen| seen["data"].as_array().unwrap().len() == 1);
        assert_eq!(failing.arrivals.lock().unwrap().len() - before, 1);
    });
}

/// Everything that has ended becomes older by so many days.
fn days_pass(database: Option<&Database>, directory: &Path, days: i64) {
    let millis = days * 86_400_000;
    let sql = format!(
        "UPDATE deliveries SET created_at_ms = created_at_ms - {millis}, timestamp_ms = timestamp_ms - {millis},
                due_at_ms = due_at_ms - {millis}, ended_at_ms = ended_at_ms - {millis};
         UPDATE audit SET at_ms = at_ms - {millis};
         UPDATE idempotency_keys SET expires_at_ms = expires_at_ms - {millis};
         UPDATE retained SET look_again_at_ms = look_again_at_ms - {millis};
         UPDATE events SET accepted_at_ms = accepted_at_ms - {millis};"
    );
    let Some(database) = database else {
        let connection = rusqlite::Connection::open(directory.join("posthaste-data/posthaste.db")).unwrap();
        connection.execute_batch(&sql).unwrap();
        return;
    };
    database.psql(&sql);
    database.psql(&format!(
        "DO $$ DECLARE old record; BEGIN
           FOR old IN SELECT DISTINCT 'events' AS t, slot FROM events UNION SELECT DISTINCT 'attempts', slot FROM attempts LOOP
             EXECUTE format('CREATE TABLE IF NOT EXISTS %s_s%s PARTITION OF %s FOR VALUES IN (%s)', old.t, old.slot - 4 * {days}, old.t, old.slot - 4 * {days});
           END LOOP; END $$;
         UPDATE events SET slot = slot - 4 * {days}; UPDATE attempts SET slot = slot - 4 * {days};
         UPDATE deliveries SET event_slot = event_slot - 4 * {days};
         UPDATE idempotency_keys SET event_slot = event_slot - 4 * {days};"
    ));
}

#[test]
fn what_has_ended_is_kept_for_as_long_as_set() {
    let (good, bad) = (Receiver::start("200 OK", b""), Receiver::start("404 Not Found", b""));
    for database in [None, Some(Database::start())] {
        let url = database.as_ref().map(Database::url);
        let shared = url.as_deref().map_or(vec![], |url| vec!["--database-url", url, "--master-key", MASTER_KEY]);
        let flags: Vec<&str> = [&LOCAL[..], &shared].concat();
        let name = if database.is_some() { "kept-postgres" } else { "kept-sqlite" };
        let mut server = Server::start_bare(name, &flags);
        server.good("POST", "/v1/endpoints", &json!({"url": good.url(), "event_types": ["a.b"]}).to_string());
        server.good("POST", "/v1/endpoints", &json!({"url": bad.url(), "event_types": ["c.d"]}).to_string());
        let body = r#"{"type": "a.b", "data": 1, "id": "first", "idempotency_key": "k"}"#;
        server.good("POST", "/v1/events", body);
        server.good("POST", "/v1/events", r#"{"type": "c.d", "data": 1, "id": "dead"}"#);
        server.wait_until("/v1/deliveries?status=delivered", |seen| seen["data"].as_array().unwrap().len() == 1);
        server.wait_until("/v1/dead-letters", |seen| seen["data"].as_array().unwrap().len() == 1);
        let has_audit = |seen: &Value| seen["data"].as_array().unwrap().iter().any(|row| row["action"] == "endpoint.create");
        assert!(has_audit(&server.good("GET", "/v1/audit", "")));
        server.end(false);
        days_pass(database.as_ref(), &server.directory, 10);

        // Longer than ten days, all of it: nothing goes. The idempotency key would be forgotten after a day.
        server.again_bare(
            &[&flags[..], &["--retention-days", "20", "--dead-letters-kept-days", "20", "--audit-kept-days", "20"]].concat(),
        );
        assert_eq!(server.good("GET", "/v1/tenants/default", "")["retention_days"], 20);
        assert_eq!(server.call("GET", "/v1/events/first", "").0, 200);
        server.end(false);
        let kept = ["--retention-days", "2", "--dead-letters-kept-days", "20", "--audit-kept-days", "20"];
        server.again_bare(&[&flags[..], &kept].concat());
        server.wait_until("/v1/events/first", |seen| seen["status"] == 404);
        assert_eq!(server.good("GET", "/v1/dead-letters", "")["data"].as_array().unwrap().len(), 1);
        assert!(has_audit(&server.good("GET", "/v1/audit", "")));
        server.end(false);
        days_pass(database.as_ref(), &server.directory, 1);
        let kept = ["--retention-days", "2", "--dead-letters-kept-days", "2", "--audit-kept-days", "2"];
        server.again_bare(&[&flags[..], &kept, &["--idempotency-keys-kept-hours", "1"]].concat());
        server.wait_until("/v1/dead-letters", |seen| seen["data"].as_array().unwrap().is_empty());
        server.wait_until("/v1/audit", |seen| !has_audit(seen));
        let again = server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1, "idempotency_key": "k"}"#);
        assert_eq!(again["duplicate"], false, "{again}");
        let expiry = "SELECT max(expires_at_ms) FROM idempotency_keys";
        let expires_at: i64 = if let Some(database) = &database {
            database.psql(expiry).trim().parse().unwrap()
        } else {
            let connection = rusqlite::Connection::open(server.directory.join("posthaste-data/posthaste.db")).unwrap();
            connection.query_row(expiry, [], |row| row.get(0)).unwrap()
        };
        let left = expires_at - jiff::Timestamp::now().as_millisecond();
        assert!((0..=3_600_000).contains(&left), "an hour: {left}");
    }
}

#[test]
fn policies_of_the_server_are_in_force_for_endpoints_that_have_none() {
    let flags = [
        "--retry-strategy",
        "exponential",
        "--retry-base-ms",
        "90000",
        "--retry-factor",
        "3",
        "--retry-cap-ms",
        "7200000",
        "--retry-jitter",
        "none",
        "--retry-max-attempts",
        "4",
        "--retry-also-statuses",
        "404",
        "--circuit-failure-threshold",
        "1",
        "--circuit-probe-interval-seconds",
        "700",
        "--rate-limit-max-per-minute",
        "60",
        "--rate-limit-burst-capacity",
        "5",
        "--timeout-mode",
        "manual",
        "--timeout-ms",
        "2500",
    ];
    let (absent, failing) = (Receiver::start("404 Not Found", b""), Receiver::start("500 Internal Server Error", b""));
    on_both("policies", &[&LOCAL[..], &flags].concat(), |server| {
        let first = server.good("POST", "/v1/endpoints", &json!({"url": absent.url(), "event_types": ["a.b"]}).to_string());
        let retry = json!({"strategy": "exponential", "base_ms": 90_000, "factor": 3.0, "cap_ms": 7_200_000, "jitter": "none",
            "max_attempts": 4, "also_statuses": [404]});
        for (field, value) in retry.as_object().unwrap() {
            assert_eq!(&first["retry"][field], value, "{field}: {first}");
        }
        assert_eq!(first["rate_limit"], json!({"max_per_minute": 60, "burst_capacity": 5}));
        assert_eq!((&first["timeout"]["mode"], &first["timeout"]["timeout_ms"]), (&"manual".into(), &2500.into()));
        assert_eq!(first["circuit"]["probe_interval_seconds"], 700);
        server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1}"#);
        let tried = server.wait_until("/v1/deliveries", |seen| seen["data"][0]["attempt_count"] == 1)["data"][0].clone();
        assert_eq!((&tried["status"], &tried["max_attempts"]), (&"scheduled".into(), &4.into()), "404 is tried again: {tried}");
        let at = |field: &str| tried[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond();
        let waits = at("next_attempt_at") - at("last_attempt_at");
        assert!((90_000..91_000).contains(&waits), "{waits}");
        let id = tried["id"].as_str().unwrap();
        let attempt = server.good("GET", &format!("/v1/deliveries/{id}/attempts"), "")["data"][0].clone();
        assert_eq!(attempt["timeout_ms"], 2500);
        let second = server.good("POST", "/v1/endpoints", &json!({"url": failing.url(), "event_types": ["c.d"]}).to_string());
        server.good("POST", "/v1/events", r#"{"type": "c.d", "data": 1}"#);
        let path = format!("/v1/endpoints/{}", second["id"].as_str().unwrap());
        server.wait_until(&path, |seen| seen["circuit"]["state"] == "open");
    });
    // All day but one minute, in a zone that is not ours, and not for everything.
    let flags = [
        "--quiet-hours",
        "00:00-12:00,12:00-23:59",
        "--quiet-hours-timezone",
        "Asia/Kathmandu",
        "--quiet-hours-applies-to",
        "a.*",
        "--quiet-hours-bypass-event-types",
        "a.urgent",
        "--timeout-default-ms",
        "4000",
        "--retry-jitter-percent",
        "0",
        "--retry-delays-seconds",
        "50",
    ];
    let good = Receiver::start("200 OK", b"");
    on_both("quiet", &[&LOCAL[..], &flags].concat(), |server| {
        let made = server.good("POST", "/v1/endpoints", &json!({"url": good.url()}).to_string());
        let schedule = &made["delivery_schedule"];
        assert_eq!((&schedule["timezone"], &schedule["applies_to"]), (&"Asia/Kathmandu".into(), &json!(["a.*"])), "{made}");
        assert_eq!((&made["timeout"]["mode"], &made["timeout"]["timeout_ms"]), (&"adaptive".into(), &4000.into()));
        assert_eq!((&made["retry"]["delays_seconds"], &made["retry"]["jitter_percent"]), (&json!([50]), &0.into()));
        for name in ["a.b", "a.urgent", "c.d"] {
            server.good("POST", "/v1/events", &json!({"type": name, "data": 1}).to_string());
        }
        let is_so = |seen: &Value| {
            let rows = seen["data"].as_array().unwrap();
            let held = |row: &&Value| row["hold_reason"] == "quiet_hours" && row["type"] == "a.b";
            // In the one minute in which it is open there is nothing to see.
            let is_open = jiff::Timestamp::now().as_second() / 60 % 1440 == (23 * 60 + 59 - (5 * 60 + 45));
            rows.iter().filter(|row| row["status"] == "delivered").count() >= 2 && (is_open || rows.iter().any(|row| held(&row)))
        };
        server.wait_until("/v1/deliveries", is_so);
    });
}
