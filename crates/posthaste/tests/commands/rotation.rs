//! Rotating the master key: values are sealed again in the background, progress is shown, and no key can be dropped too early.

use std::process::Command;

use posthaste_testpg::Server as Database;
use serde_json::json;

use crate::server::{BINARY, Run, Server, run};

const OLD: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const NEW: &str = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=";

/// A start that has to be refused.
fn refused(server: &Server, flags: &[&str]) -> Run {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "127.0.0.1:0"]).args(flags).current_dir(&server.directory).env_clear();
    let refused = run(command, "");
    assert_ne!(refused.code, 0, "{refused:?}");
    refused
}

fn to_reseal(server: &Server) -> Option<f64> {
    let (_, _, page) = server.exchange("GET", "/metrics", &[], "");
    page.lines().find_map(|line| line.strip_prefix("posthaste_sealed_values_to_reseal ")?.parse().ok())
}

fn rotate(name: &str, database: Option<&Database>) {
    let url = database.map(Database::url);
    let shared: Vec<&str> = url.as_deref().map_or(vec![], |url| vec!["--database-url", url]);
    let with = |keys: &[&'static str]| [&shared[..], keys].concat();
    let mut server = Server::start_bare(name, &with(&["--master-key", OLD]));
    for _ in 0..3 {
        server.good("POST", "/v1/endpoints", &json!({"url": "https://example.com/"}).to_string());
    }
    server.end(false);

    // The state of a rotation whose first start ended before anything was sealed again.
    let told = refused(&server, &with(&["--master-key", NEW]));
    let name = told.err.split("the one given is ").nth(1).unwrap().split(';').next().unwrap().to_owned();
    let sql = format!("UPDATE words SET value = '{name}' WHERE name = 'master_key'");
    if let Some(database) = database {
        database.psql(&sql);
    } else {
        let connection = rusqlite::Connection::open(server.directory.join("posthaste-data/posthaste.db")).unwrap();
        connection.execute_batch(&sql).unwrap();
    }
    let told = refused(&server, &with(&["--master-key", NEW]));
    assert!(told.err.contains("3 of 3 sealed values") && told.err.contains("POSTHASTE_PREVIOUS_MASTER_KEYS"), "{}", told.err);
    let mut doctor = Command::new(BINARY);
    doctor.arg("doctor").args(with(&["--master-key", NEW])).current_dir(&server.directory).env_clear();
    let told = run(doctor, "");
    assert!(told.code == 1 && told.out.contains("3 of 3 sealed values need the master key"), "{}", told.out);
    let mut doctor = Command::new(BINARY);
    let both = with(&["--master-key", NEW, "--previous-master-keys", OLD]);
    doctor.arg("doctor").args(&both).current_dir(&server.directory).env_clear();
    let told = run(doctor, "");
    assert!(told.out.contains("3 of 3 sealed values still need a previous key"), "{}", told.out);

    server.again_bare(&[&both[..], &["--log", "info"]].concat());
    server.wait_until("/readyz", |ready| ready == &json!({"status": "ready"}));
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while to_reseal(&server) != Some(0.0) {
        assert!(std::time::Instant::now() < deadline, "{:?}", to_reseal(&server));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while !server.said().contains("every value is sealed with the present master key") {
        assert!(std::time::Instant::now() < deadline, "{}", server.said());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    server.end(false);
    server.again_bare(&with(&["--master-key", NEW]));
    server.wait_until("/readyz", |ready| ready["status"] == "ready");
    let endpoint = server.good("GET", "/v1/endpoints", "")["data"][0].clone();
    server.good("PATCH", &format!("/v1/endpoints/{}", endpoint["id"].as_str().unwrap()), r#"{"description": "still readable"}"#);
}

#[test]
fn a_master_key_is_dropped_only_after_everything_was_sealed_again_on_sqlite() {
    rotate("rotation-sqlite", None);
}

#[test]
fn a_master_key_is_dropped_only_after_everything_was_sealed_again_on_postgresql() {
    rotate("rotation-postgres", Some(&Database::start()));
}

#[test]
fn every_role_says_whether_it_is_alive_and_ready() {
    let database = Database::start();
    let url = database.url();
    for role in ["api", "deliver", "relay", "all"] {
        let server = Server::start_bare(&format!("role-{role}"), &["--database-url", &url, "--master-key", OLD, "--role", role]);
        assert_eq!(server.call("GET", "/healthz", ""), (200, json!({"status": "ok"})), "{role}");
        assert_eq!(server.call("GET", "/readyz", ""), (200, json!({"status": "ready"})), "{role}");
        let (status, _, page) = server.exchange("GET", "/metrics", &[], "");
        assert!(status == 200 && page.contains("posthaste_sealed_values"), "{role}: {status}");
    }
    // Not ready while publishing would fail, or something is sealed with a key that this node does not have.
    for role in ["api", "deliver"] {
        let flags = ["--database-url", &url, "--master-key", OLD, "--role", role];
        let server = Server::start_bare(&format!("unready-{role}"), &flags);
        if role == "api" {
            server.good("POST", "/v1/endpoints", r#"{"url": "https://example.com/"}"#);
        }
        database.psql("UPDATE endpoints SET sealed = overlay(sealed PLACING '\\x0102030405060708'::bytea FROM 2)");
        let told = server.wait_until("/readyz", |ready| ready["status"] == 503);
        assert!(told["detail"].as_str().unwrap().contains("1 of 1 sealed values cannot be read"), "{role}: {told}");
        if role == "api" {
            // As it was: the next node could not start otherwise.
            database.psql("DELETE FROM endpoints");
            let api = Server::start_bare("again-api", &["--database-url", &url, "--master-key", OLD]);
            api.good("POST", "/v1/endpoints", r#"{"url": "https://example.com/"}"#);
        }
    }
    database.psql("DELETE FROM endpoints");
    let server = Server::start_bare("frozen-deliver", &["--database-url", &url, "--master-key", OLD, "--role", "deliver"]);
    database.kill();
    let told = server.wait_until("/readyz", |ready| ready["status"] == 503);
    assert!(told["detail"].as_str().unwrap().contains("database"), "{told}");
}

/// A lock on what is known of lanes keeps a node from delivering, and from nothing else.
#[test]
fn i41_a_node_that_only_delivers_is_not_ready_while_it_cannot_deliver() {
    let database = Database::start();
    let url = database.url();
    let flags = ["--database-url", &url, "--master-key", OLD, "--role"];
    let api = Server::start_bare("takes-events", &[&flags[..], &["api"]].concat());
    api.good("POST", "/v1/endpoints", r#"{"url": "https://example.com/"}"#);
    api.good("POST", "/v1/events", r#"{"type": "order.paid", "data": {}}"#);
    database.psql("CREATE TABLE is_locked (yes BOOLEAN); INSERT INTO is_locked VALUES (TRUE)");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            database.psql(
                "DO $$ BEGIN LOCK TABLE lanes IN ACCESS EXCLUSIVE MODE;
                 WHILE EXISTS (SELECT 1 FROM is_locked) LOOP PERFORM pg_sleep(0.02); END LOOP; END $$",
            )
        });
        let is_waited_for = "SELECT count(*) FROM pg_locks WHERE relation = 'lanes'::regclass AND mode = 'AccessExclusiveLock'";
        while database.psql(is_waited_for) != "1" {}
        let deliver = Server::start_bare("cannot-deliver", &[&flags[..], &["deliver"]].concat());
        let told = deliver.wait_until("/readyz", |ready| ready["status"] == 503);
        assert!(told["detail"].as_str().unwrap().contains("deliveries are due"), "{told}");
        assert_eq!(api.call("GET", "/readyz", "").0, 200, "events are taken");
        database.psql("DELETE FROM is_locked");
        deliver.wait_until("/readyz", |ready| ready["status"] == "ready");
    });
}
