//! Notifications, with the real binary: as webhooks to operators and tenants, by mail, after crashes, and not too many.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::mail_server::{Encryption, Habits, MailServer};
use crate::server::{Receiver, Server};

/// Looks again until there is one.
#[track_caller]
fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// The bodies that have arrived of this type.
fn told(receiver: &Receiver, event_type: &str) -> Vec<Value> {
    let arrivals = receiver.arrivals.lock().unwrap();
    let bodies = arrivals.iter().map(|arrival| serde_json::from_slice::<Value>(&arrival.body).unwrap());
    bodies.filter(|body| body["type"] == event_type).collect()
}

/// What was published for operators, by type.
fn published(server: &Server) -> Vec<String> {
    let listed = server.json(&["events", "list", "--tenant", "posthaste", "--limit", "250"]);
    listed["data"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
}

fn count(server: &Server, event_type: &str) -> usize {
    published(server).iter().filter(|published| *published == event_type).count()
}

fn publish(server: &Server, tenant: &str, times: usize) {
    let events: Vec<String> = (0..times).map(|_| format!(r#"{{"type": "a.b", "tenant": "{tenant}", "data": {{}}}}"#)).collect();
    let file = server.directory.join("batch.json");
    std::fs::write(&file, format!("[{}]", events.join(","))).unwrap();
    server.ok(&["events", "batch", file.to_str().unwrap()]);
}

/// An endpoint that is tried once for each event, and whose circuit stays closed.
fn endpoint(server: &Server, tenant: &str, url: &str) -> String {
    let said = r#"{"retry": {"strategy": "schedule", "delays_seconds": [1], "max_attempts": 1}, "circuit": {"failure_threshold": 1000, "probe_interval_seconds": 1}}"#;
    server.text(&["endpoints", "create", url, "--tenant", tenant, "--from-json", said], "id")
}

/// Answers every request with the status that is set now.
fn moody(status: u16) -> (Arc<AtomicU16>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hooks", listener.local_addr().unwrap());
    let mood = Arc::new(AtomicU16::new(status));
    let shared = Arc::clone(&mood);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap_or(0) > 0 {}
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            let _ = std::io::Read::read_exact(&mut reader, &mut body);
            let status = shared.load(Ordering::SeqCst);
            let _ = write!(reader.into_inner(), "HTTP/1.1 {status} Said\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    (mood, url)
}

#[test]
fn a_disabled_endpoint_is_told_to_its_tenant_and_to_operators_by_webhook_and_mail() {
    let login = Some(("hooks", "canary-password"));
    let mail = MailServer::start(Habits { encryption: Encryption::Offered, login, sent_away: 1, ..Habits::default() });
    let (url, from) = (format!("smtp://hooks:canary-password@{}?tls=required", mail.place()), "hooks@posthaste.example");
    let roots = std::env::temp_dir().join(format!("posthaste-mail-roots-{}.pem", std::process::id()));
    std::fs::write(&roots, &mail.certificate).unwrap();
    let server = Server::start_with(
        "notified",
        &[
            "--smtp-url",
            &url,
            "--smtp-from",
            from,
            "--smtp-operators",
            "ops@posthaste.example",
            "--extra-roots",
            roots.to_str().unwrap(),
        ],
    );
    std::fs::remove_file(&roots).unwrap();
    let (tenants_own, operators, gone) =
        (Receiver::start("200 OK", b""), Receiver::start("200 OK", b""), Receiver::start("410 Gone", b""));
    server.ok(&["endpoints", "create", &operators.url(), "--tenant", "posthaste", "--event-types", "posthaste.*"]);
    let wants = format!(r#"{{"url": "{}", "emails": ["people@acme.example"]}}"#, tenants_own.url());
    server.ok(&["tenants", "put", "acme", "--notifications", &wants]);
    let id = endpoint(&server, "acme", &gone.url());
    let others = endpoint(&server, "other", &gone.url());
    publish(&server, "acme", 1);

    let arrived = wait_for("the tenant hears of it", || told(&tenants_own, "posthaste.endpoint.disabled").pop());
    assert_eq!((&arrived["data"]["endpoint"], &arrived["data"]["tenant"]), (&Value::from(id.as_str()), &Value::from("acme")));
    assert_eq!(arrived["data"]["endpoint_url"].as_str(), Some(gone.url().as_str()));
    assert!(tenants_own.first().header("webhook-signature").starts_with("v1,"), "it is signed");
    wait_for("operators hear of it", || told(&operators, "posthaste.endpoint.disabled").pop());
    for address in ["people@acme.example", "ops@posthaste.example"] {
        let mails = wait_for("a mail comes, although the first caller was sent away", || {
            Some(mail.mails_to(address)).filter(|mails| !mails.is_empty())
        });
        let text = mails[0].text.replace("=\r\n", "");
        assert!(text.contains("Subject: [Posthaste] acme: an endpoint was disabled"), "{text}");
        assert!(text.contains(&format!("From: {from}")) && text.contains(&id) && text.contains("replay what was missed"), "{text}");
    }

    // Somebody else's is told to operators and not to this tenant.
    publish(&server, "other", 1);
    wait_for("operators hear of the other", || {
        let all = told(&operators, "posthaste.endpoint.disabled");
        all.into_iter().find(|body| body["data"]["endpoint"] == others.as_str())
    });
    assert_eq!(told(&tenants_own, "posthaste.endpoint.disabled").len(), 1);
    assert_eq!(mail.mails_to("people@acme.example").len(), 1);
    assert!(mail.in_the_clear().iter().all(|line| line.starts_with("EHLO") || line == "STARTTLS"), "{:?}", mail.in_the_clear());
    let audit = server.json(&["audit"]);
    assert!(audit["data"].as_array().unwrap().iter().any(|row| row["action"] == "endpoint.auto_disable"), "{audit}");

    // The URL goes, and with the next notification so does its endpoint.
    server.ok(&["tenants", "patch", "acme", "--notifications", "{}"]);
    let another = endpoint(&server, "acme", &gone.url());
    publish(&server, "acme", 1);
    wait_for("operators hear of the third", || {
        let all = told(&operators, "posthaste.endpoint.disabled");
        all.into_iter().find(|body| body["data"]["endpoint"] == another.as_str())
    });
    let kept = server.json(&["endpoints", "list", "--tenant", "posthaste"]);
    assert_eq!(kept["data"].as_array().unwrap().len(), 1, "{kept}");
}

#[test]
fn an_endpoint_that_fails_is_told_at_half_and_at_nine_tenths_and_when_it_works_again() {
    let server = Server::start_with("failing", &["--notification-pause-seconds", "0"]);
    let (mood, url) = moody(500);
    let id = endpoint(&server, "acme", &url);
    publish(&server, "acme", 50);
    wait_for("half", || (count(&server, "posthaste.endpoint.failing") == 1).then_some(()));
    wait_for("dead letters", || (count(&server, "posthaste.dead_letters.growing") >= 1).then_some(()));
    publish(&server, "acme", 40);
    wait_for("nine tenths", || (count(&server, "posthaste.endpoint.failing") == 2).then_some(()));
    assert_eq!(count(&server, "posthaste.endpoint.recovered"), 0);
    mood.store(200, Ordering::SeqCst);
    publish(&server, "acme", 1);
    wait_for("it works again", || (count(&server, "posthaste.endpoint.recovered") == 1).then_some(()));
    mood.store(500, Ordering::SeqCst);
    publish(&server, "acme", 100);
    wait_for("given up", || (count(&server, "posthaste.endpoint.disabled") == 1).then_some(()));
    assert_eq!(server.json(&["endpoints", "show", &id])["status"], "disabled");
    assert_eq!(count(&server, "posthaste.endpoint.failing"), 4);
}

#[test]
fn a_circuit_is_told_when_it_opens_and_closes_and_one_that_flaps_floods_nobody() {
    let server = Server::start_with("flapping", &["--notification-pause-seconds", "86400"]);
    let (mood, url) = moody(500);
    let said = r#"{"retry": {"strategy": "schedule", "delays_seconds": [1], "max_attempts": 1}, "circuit": {"failure_threshold": 1, "probe_interval_seconds": 1}}"#;
    let id = server.text(&["endpoints", "create", &url, "--tenant", "acme", "--from-json", said], "id");
    let circuit_is = |state: &str| {
        server.wait_for(&["endpoints", "show", &id], |shown| shown["circuit"]["state"] == state);
    };
    for _ in 0..3 {
        mood.store(500, Ordering::SeqCst);
        publish(&server, "acme", 1);
        circuit_is("open");
        mood.store(200, Ordering::SeqCst);
        publish(&server, "acme", 1);
        circuit_is("closed");
    }
    // What comes last has come through the same line.
    let gone = Receiver::start("410 Gone", b"");
    endpoint(&server, "last", &gone.url());
    publish(&server, "last", 1);
    wait_for("the last", || (count(&server, "posthaste.endpoint.disabled") == 1).then_some(()));
    let kinds = ["posthaste.circuit.opened", "posthaste.circuit.closed"].map(|kind| count(&server, kind));
    assert_eq!(kinds, [1, 1], "once each, and not three times: {:?}", published(&server));
}

#[test]
fn what_was_not_told_before_a_crash_is_told_after_it_and_once() {
    let mut server = Server::start_with("untold", &["--notifications=false"]);
    let gone = Receiver::start("410 Gone", b"");
    let id = endpoint(&server, "acme", &gone.url());
    publish(&server, "acme", 1);
    server.wait_for(&["endpoints", "show", &id], |shown| shown["status"] == "disabled");
    // As far as the disk knows, it died between disabling it and telling anybody.
    server.end(true);
    for _ in 0..2 {
        server.again(&[]);
        wait_for("it is told", || (count(&server, "posthaste.endpoint.disabled") == 1).then_some(()));
        server.end(true);
    }
    server.again(&[]);
    let other = endpoint(&server, "acme", &gone.url());
    publish(&server, "acme", 1);
    server.wait_for(&["endpoints", "show", &other], |shown| shown["status"] == "disabled");
    wait_for("the other", || (count(&server, "posthaste.endpoint.disabled") == 2).then_some(()));
}

#[test]
fn the_end_of_an_overlap_is_told_once_before_it_comes() {
    let mut server = Server::start_with("overlap", &[]);
    let working = Receiver::start("200 OK", b"");
    let [soon, later] = ["soon", "later"].map(|tenant| endpoint(&server, tenant, &working.url()));
    server.ok(&["endpoints", "rotate-secret", &soon, "--overlap-seconds", "3600"]);
    server.ok(&["endpoints", "rotate-secret", &later, "--overlap-seconds", "86400"]);
    for _ in 0..2 {
        server.end(false);
        server.again(&[]);
        wait_for("it is told", || (count(&server, "posthaste.secret.overlap_ending") >= 1).then_some(()));
    }
    assert_eq!(count(&server, "posthaste.secret.overlap_ending"), 1, "of one of the two, and once");
}

#[test]
fn notifications_cause_no_further_ones_and_a_broken_mail_server_stops_nothing() {
    // It offers TLS and then has none: what has to be encrypted is not sent.
    let mail = MailServer::start(Habits { encryption: Encryption::OfferedInVain, ..Habits::default() });
    let url = format!("smtp://{}?tls=required", mail.place());
    let server = Server::start_with(
        "further",
        &[
            "--smtp-url",
            &url,
            "--smtp-from",
            "a@b.example",
            "--smtp-operators",
            "ops@b.example",
            "--notification-pause-seconds",
            "0",
        ],
    );
    let (gone, working) = (Receiver::start("410 Gone", b""), Receiver::start("200 OK", b""));
    let wants = format!(r#"{{"url": "{}"}}"#, gone.url());
    server.ok(&["tenants", "put", "acme", "--notifications", &wants]);
    for expected in 1..=2 {
        endpoint(&server, "acme", &gone.url());
        publish(&server, "acme", 1);
        wait_for("it is told", || (count(&server, "posthaste.endpoint.disabled") == expected).then_some(()));
        // The endpoint of the notification has answered 410 as well.
        server.wait_for(&["endpoints", "list", "--tenant", "posthaste"], |listed| listed["data"][0]["status"] == "disabled");
    }
    wait_for("mails are tried", || mail.has_heard("STARTTLS").then_some(()));
    assert!(mail.mails.lock().unwrap().is_empty(), "nothing goes out in the clear");
    endpoint(&server, "fine", &working.url());
    publish(&server, "fine", 1);
    working.first();
    assert_eq!(count(&server, "posthaste.endpoint.disabled"), 2, "{:?}", published(&server));
    let listed = server.json(&["events", "list", "--tenant", "posthaste", "--limit", "250"]);
    let about = |event: &Value| {
        let id = event["id"].as_str().unwrap();
        server.json(&["events", "show", id, "--tenant", "posthaste"])["data"]["tenant"].as_str().map(str::to_owned)
    };
    let all: Vec<_> = listed["data"].as_array().unwrap().iter().filter_map(about).collect();
    assert!(all.iter().all(|tenant| tenant == "acme"), "{all:?}");
}

#[test]
fn nodes_that_share_a_database_tell_it_once() {
    let postgres = posthaste_testpg::Server::start();
    let database = postgres.url();
    let flags = ["--database-url", &database, "--master-key", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="];
    let mut one = Server::start_with("node-one", &flags);
    let other = Server::start_with("node-other", &flags);
    let gone = Receiver::start("410 Gone", b"");
    endpoint(&one, "acme", &gone.url());
    publish(&other, "acme", 1);
    wait_for("it is told", || (count(&one, "posthaste.endpoint.disabled") == 1).then_some(()));
    // Whoever starts looks for what was not told.
    one.end(true);
    one.again(&flags);
    endpoint(&one, "acme", &gone.url());
    publish(&other, "acme", 1);
    wait_for("the next is told, too", || (count(&other, "posthaste.endpoint.disabled") >= 2).then_some(()));
    assert_eq!(count(&other, "posthaste.endpoint.disabled"), 2);
}
