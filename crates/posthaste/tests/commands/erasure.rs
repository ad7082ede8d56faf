//! Erased means erased: what was erased, or is past its retention, is in no file of the data directory any more.

use std::path::Path;

use posthaste_testpg::Server as Database;
use serde_json::json;

use crate::server::{Receiver, Server};

const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const LOCAL: [&str; 3] = ["--allow-http", "--allow-networks", "127.0.0.0/8"];

/// The files of a data directory that have these bytes.
fn files_with(directory: &Path, bytes: &[u8]) -> Vec<String> {
    let entries = std::fs::read_dir(directory.join("posthaste-data")).unwrap().map(|entry| entry.unwrap().path());
    let has = |path: &std::path::PathBuf| {
        let content = std::fs::read(path).unwrap_or_default();
        content.windows(bytes.len()).any(|window| window == bytes)
    };
    entries.filter(has).map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn an_erased_payload_is_in_no_file_of_the_data_directory() {
    let receiver = Receiver::start("200 OK", b"");
    let server = Server::start_bare("erased", &LOCAL);
    server.good("POST", "/v1/endpoints", &json!({"url": receiver.url()}).to_string());
    // One inside a page, and one on pages of its own, among others that stay.
    for (id, length) in [("before", 10), ("small", 10), ("large", 50_000), ("after", 10)] {
        let canary = format!("canary-{id}-");
        let event = json!({"type": "a.b", "id": id, "data": {"name": canary.repeat(length / 10)}});
        server.good("POST", "/v1/events", &event.to_string());
    }
    server.wait_until("/v1/deliveries?status=delivered", |seen| seen["data"].as_array().unwrap().len() == 4);
    assert!(!files_with(&server.directory, b"canary-small-").is_empty());
    for id in ["small", "large"] {
        assert_eq!(server.call("DELETE", &format!("/v1/events/{id}/data"), "").0, 204);
        assert_eq!(files_with(&server.directory, format!("canary-{id}-").as_bytes()), [""; 0], "{id}");
        let read = server.good("GET", &format!("/v1/events/{id}"), "");
        assert!(read["erased_at"].is_string() && read.get("data").is_none(), "its history stays: {read}");
    }
    for id in ["before", "after"] {
        assert!(!files_with(&server.directory, format!("canary-{id}-").as_bytes()).is_empty(), "{id}");
    }
}

#[test]
fn what_is_past_its_retention_is_in_no_file_of_the_data_directory() {
    let receiver = Receiver::start("200 OK", b"");
    let mut server = Server::start_bare("past-retention", &LOCAL);
    server.good("POST", "/v1/endpoints", &json!({"url": receiver.url()}).to_string());
    for id in ["old", "older"] {
        let event = json!({"type": "a.b", "id": id, "data": {"name": "canary-old-".repeat(500)}});
        server.good("POST", "/v1/events", &event.to_string());
    }
    server.wait_until("/v1/deliveries?status=delivered", |seen| seen["data"].as_array().unwrap().len() == 2);
    server.end(false);
    let database = rusqlite::Connection::open(server.directory.join("posthaste-data/posthaste.db")).unwrap();
    let days = 100 * 86_400_000_i64;
    let older = format!(
        "UPDATE deliveries SET created_at_ms = created_at_ms - {days}, ended_at_ms = ended_at_ms - {days};
         UPDATE events SET accepted_at_ms = accepted_at_ms - {days};"
    );
    database.execute_batch(&older).unwrap();
    drop(database);
    server.restart();
    server.wait_until("/v1/events/older", |seen| seen["status"] == 404);
    server.wait_until("/v1/events/old", |seen| seen["status"] == 404);
    let is_gone = || files_with(&server.directory, b"canary-old-").is_empty();
    // The log is emptied once at the end of a round of cleanup.
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while !is_gone() {
        assert!(std::time::Instant::now() < deadline, "{:?}", files_with(&server.directory, b"canary-old-"));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn an_id_that_two_tenants_chose_names_neither_of_them() {
    let database = Database::start();
    let url = database.url();
    for flags in [vec![], vec!["--database-url", &url, "--master-key", MASTER_KEY]] {
        let server = Server::start_bare(&format!("two-tenants-{}", flags.len()), &flags);
        let event = |tenant: &str, id: &str| json!({"type": "a.b", "tenant": tenant, "id": id, "data": tenant}).to_string();
        for tenant in ["acme", "globex"] {
            server.good("POST", "/v1/events", &event(tenant, "chosen"));
        }
        server.good("POST", "/v1/events", &event("globex", "single"));
        for (method, path) in
            [("GET", "/v1/events/chosen"), ("POST", "/v1/events/chosen/cancel"), ("DELETE", "/v1/events/chosen/data")]
        {
            let (status, answer) = server.call(method, path, "");
            assert!(status == 409 && answer["detail"].as_str().unwrap().contains("?tenant="), "{method}: {status} {answer}");
        }
        let read = |tenant: &str| server.good("GET", &format!("/v1/events/chosen?tenant={tenant}"), "");
        assert_eq!((&read("acme")["data"], &read("globex")["data"]), (&"acme".into(), &"globex".into()), "nothing was erased");
        assert_eq!(server.call("DELETE", "/v1/events/chosen/data?tenant=acme", "").0, 204);
        assert!(read("acme").get("data").is_none() && read("globex")["data"] == "globex");
        assert_eq!(server.good("GET", "/v1/events/single", "")["tenant"], "globex");
        assert_eq!(server.call("GET", "/v1/events/nowhere", "").0, 404);
        // A tenant's key does not learn that another has the same id.
        let key = server.good("POST", "/v1/keys", r#"{"name": "a test", "tenant": "acme", "scopes": ["read"]}"#);
        let key = key["key"].as_str().unwrap();
        assert_eq!(server.exchange_as(key, "GET", "/v1/events/chosen", &[], "").0, 200);
        assert_eq!(server.exchange_as(key, "GET", "/v1/events/single", &[], "").0, 404);
    }
}
