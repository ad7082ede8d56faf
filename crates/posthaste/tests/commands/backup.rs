//! Backups of a server that runs under load, and what a restore gives back.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::server::{BINARY, Receiver, Run, Server, run, tomorrow};

const PASSPHRASE: &str = "correct horse battery staple";

/// With the passphrase, in this directory, and without any other of our variables.
fn command(directory: &Path, passphrase: &str, arguments: &[&str]) -> Run {
    let mut command = Command::new(BINARY);
    command.args(arguments).current_dir(directory).env_clear().env("POSTHASTE_BACKUP_PASSPHRASE", passphrase);
    run(command, "")
}

fn in_time(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The id of each event that a receiver has seen.
fn seen(receiver: &Receiver) -> BTreeSet<String> {
    receiver.arrivals.lock().unwrap().iter().map(|arrival| arrival.header("webhook-id")).collect()
}

#[test]
fn a_backup_under_load_has_everything_that_was_acknowledged_before_it_and_a_restore_is_held_until_its_release() {
    let mut server = Server::start("backup");
    let receiver = Receiver::start("204 No Content", b"");
    server.good("POST", "/v1/endpoints", &format!(r#"{{"url": "{}"}}"#, receiver.url()));
    // This one never answers well: it still waits when the backup is taken.
    let failing = Receiver::start("503 Service Unavailable", b"");
    server.good("POST", "/v1/endpoints", &format!(r#"{{"url": "{}", "event_types": ["later.*"]}}"#, failing.url()));
    let (acknowledged, is_over) = (Mutex::new(Vec::<String>::new()), AtomicBool::new(false));
    let mut before = BTreeSet::new();
    std::thread::scope(|scope| {
        for publisher in 0..2 {
            let (server, acknowledged, is_over) = (&server, &acknowledged, &is_over);
            scope.spawn(move || {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let name = if count % 10 == 0 { "later.on" } else { "invoice.paid" };
                    let event = format!(r#"{{"type": "{name}", "id": "load-{publisher}-{count}", "data": {{"n": {count}}}}}"#);
                    let (status, answer) = server.call("POST", "/v1/events", &event);
                    assert_eq!(status, 202, "{answer}");
                    acknowledged.lock().unwrap().push(format!("load-{publisher}-{count}"));
                    count += 1;
                }
            });
        }
        in_time("a hundred events", || acknowledged.lock().unwrap().len() > 100);
        before.extend(acknowledged.lock().unwrap().iter().cloned());
        let made = command(&server.directory, PASSPHRASE, &["backup", "create", "copy"]);
        assert_eq!(made.code, 0, "{made:?}");
        let at_its_end = acknowledged.lock().unwrap().len();
        in_time("publishing goes on", || acknowledged.lock().unwrap().len() > at_its_end + 20);
        is_over.store(true, Ordering::Relaxed);
    });
    let directory = server.directory.clone();
    for name in ["copy/posthaste.db", "copy/keys.sealed", "copy/backup.json"] {
        let mode = std::fs::metadata(directory.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let verified = command(&directory, PASSPHRASE, &["backup", "verify", "copy"]);
    assert!(verified.code == 0 && verified.out.contains("the passphrase opens its keys"), "{verified:?}");

    // The machine is gone. What is in the backup is put elsewhere.
    server.end(true);
    let again = command(&directory, PASSPHRASE, &["restore", "copy", "--data-dir", "posthaste-data", "--hold"]);
    assert!(again.code == 1 && again.err.contains("is not empty"), "{again:?}");
    std::fs::rename(directory.join("posthaste-data"), directory.join("lost")).unwrap();
    let restored = command(&directory, PASSPHRASE, &["restore", "copy", "--data-dir", "posthaste-data", "--hold"]);
    assert!(restored.code == 0 && restored.out.contains("deliveries are held"), "{restored:?}");
    receiver.arrivals.lock().unwrap().clear();
    let arrived_at_failing = failing.arrivals.lock().unwrap().len();
    server.again(&["--retry-delays-seconds", "1"]);

    for id in &before {
        let (status, answer) = server.call("GET", &format!("/v1/events/{id}"), "");
        assert_eq!(status, 200, "{id} was acknowledged before the backup: {answer}");
    }
    server.good("POST", "/v1/events", r#"{"type": "invoice.paid", "id": "while-held", "data": {}}"#);
    let hold = server.json(&["hold", "show"]);
    assert_eq!(hold["is_held"], true);
    assert!(hold["waiting"].as_u64().unwrap() >= before.iter().filter(|id| id.ends_with('0')).count() as u64, "{hold}");
    let waiting = server.good("GET", "/v1/deliveries?event=while-held", "");
    let waiting = &waiting["data"][0];
    assert_eq!((&waiting["hold_reason"], &waiting["next_attempt_at"]), (&"blocked".into(), &serde_json::Value::Null), "{waiting}");
    assert!(waiting["last_error"].as_str().unwrap().contains("posthaste hold release"), "{waiting}");
    let (_, _, ready) = server.exchange("GET", "/readyz", &[], "");
    assert!(ready.contains("all deliveries are held"), "{ready}");
    assert!(server.run(&["doctor"]).out.contains("all deliveries are held since"));
    // A restart, also without any flag, does not send anything.
    server.end(false);
    server.again(&["--retry-delays-seconds", "1"]);
    assert_eq!(server.json(&["hold", "show"])["is_held"], true);
    assert_eq!(seen(&receiver), BTreeSet::new());
    assert_eq!(failing.arrivals.lock().unwrap().len(), arrived_at_failing);

    server.ok(&["hold", "release"]);
    in_time("the event from the time of the hold arrives", || seen(&receiver).contains("while-held"));
    assert_eq!(server.json(&["hold", "show"])["is_held"], false);
    let audit = server.good("GET", "/v1/audit?action=hold.release", "");
    assert_eq!(audit["data"].as_array().unwrap().len(), 1, "{audit}");
    server.wait_until("/v1/deliveries?event=while-held", |page| page["data"][0]["status"] == "delivered");
}

#[test]
fn a_server_that_is_started_with_hold_stores_events_and_sends_them_after_the_release() {
    let server = Server::start_with("hold", &["--hold"]);
    let receiver = Receiver::start("204 No Content", b"");
    server.good("POST", "/v1/endpoints", &format!(r#"{{"url": "{}"}}"#, receiver.url()));
    server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1}"#);
    let hold = server.json(&["hold", "show"]);
    assert_eq!((&hold["is_held"], &hold["waiting"], &hold["tried"]), (&true.into(), &1.into(), &0.into()), "{hold}");
    assert!(receiver.arrivals.lock().unwrap().is_empty());
    server.ok(&["hold", "release"]);
    receiver.first();
}

#[test]
fn a_backup_that_was_changed_or_has_another_passphrase_is_refused() {
    let server = Server::start("refused");
    let directory = &server.directory;
    let short = command(directory, "short", &["backup", "create", "copy"]);
    assert!(short.code == 1 && short.err.contains("shorter than"), "{short:?}");
    let none = command(directory, "", &["backup", "create", "copy"]);
    assert!(none.code == 1 && none.err.contains("--passphrase-file"), "{none:?}");
    assert!(!directory.join("copy").exists(), "nothing is made without a passphrase");
    assert_eq!(command(directory, PASSPHRASE, &["backup", "create", "copy"]).code, 0);
    let wrong = command(directory, "another passphrase", &["restore", "copy", "--data-dir", "new"]);
    assert!(wrong.code == 1 && wrong.err.contains("the passphrase is not the one"), "{wrong:?}");
    assert!(!directory.join("new").exists(), "nothing is made with a wrong passphrase");
    let database = directory.join("copy/posthaste.db");
    let mut bytes = std::fs::read(&database).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&database, bytes).unwrap();
    let changed = command(directory, PASSPHRASE, &["backup", "verify", "copy"]);
    assert!(changed.code == 1 && changed.err.contains("its SHA-256 differs"), "{changed:?}");
    std::fs::remove_file(directory.join("copy/backup.json")).unwrap();
    let incomplete = command(directory, PASSPHRASE, &["backup", "verify", "copy"]);
    assert!(incomplete.code == 1 && incomplete.err.contains("is not a complete backup"), "{incomplete:?}");
}

#[test]
fn health_is_told_by_an_exit_code() {
    let mut server = Server::start("health");
    assert!(server.ok(&["health"]).starts_with("ready: http://127.0.0.1:"));
    let address = server.address.to_string();
    server.end(false);
    let gone = command(&server.directory, "", &["health", "--url", &format!("http://{address}")]);
    assert!(gone.code == 1 && gone.err.contains("cannot reach"), "{gone:?}");
}

/// As docs/guide/backup.md has it.
#[test]
fn a_dump_of_postgresql_is_restored_into_another_database_and_held() {
    if !posthaste_testpg::is_installed() {
        println!("not run: PostgreSQL is not installed");
        return;
    }
    let postgres = posthaste_testpg::Server::start();
    let url = postgres.url();
    let key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    let (receiver, flags) = (Receiver::start("204 No Content", b""), ["--database-url", &url, "--master-key", key]);
    let mut server = Server::start_with("dump", &flags);
    server.good("POST", "/v1/endpoints", &format!(r#"{{"url": "{}"}}"#, receiver.url()));
    let far = format!(r#"{{"type": "a.b", "id": "far", "data": 1, "deliver_at": "{}"}}"#, tomorrow());
    server.good("POST", "/v1/events", &far);
    let tool = |name: &str, arguments: &[&str]| {
        let output = Command::new(name).args(arguments).current_dir(&server.directory).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    };
    tool("pg_dump", &["--format=custom", "--file=posthaste.dump", &url]);
    let restored = postgres.create_database("restored");
    tool("pg_restore", &["--exit-on-error", "--dbname", &restored, "posthaste.dump"]);
    server.end(false);
    let mut arguments: Vec<&str> = flags.to_vec();
    arguments[1] = &restored;
    arguments.push("--hold");
    server.again(&arguments);
    assert_eq!(server.json(&["hold", "show"])["is_held"], true);
    assert_eq!(server.good("GET", "/v1/events/far", "")["id"], "far");
    server.good("POST", "/v1/events", r#"{"type": "a.b", "id": "near", "data": 1}"#);
    let held = server.good("GET", "/v1/deliveries?event=near", "");
    assert_eq!(held["data"][0]["hold_reason"], "blocked", "{held}");
    let doctor = server.run(&["doctor", "--database-url", &restored, "--master-key", key]);
    assert!(doctor.out.contains("all deliveries are held since"), "{doctor:?}");
    assert!(receiver.arrivals.lock().unwrap().is_empty());
    server.ok(&["hold", "release"]);
    receiver.first();
}
