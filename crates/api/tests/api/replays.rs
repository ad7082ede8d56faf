//! `/v1/replays`.

use serde_json::json;

use crate::owner::Owner;
use crate::server::{ADMIN, Server, path, text};

#[tokio::test]
async fn a_replay_is_counted_started_read_and_cancelled() {
    let server = Server::new("replays");
    let endpoint = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    for n in 0..3 {
        server.post("/v1/events", format!(r#"{{"type": "a", "tenant": "acme", "data": {n}}}"#)).await.expect(202);
    }
    let owner = Owner::of(&server.store).await;
    for row in server.deliveries().await.iter().take(2) {
        owner.attempt(row, 404).await;
    }
    let body =
        |more: &str| format!(r#"{{"endpoint": "{}", "status": ["dead"], "reason": "it was down"{more}}}"#, text(&endpoint["id"]));
    let dry = server.post("/v1/replays", body(r#", "dry_run": true"#)).await.expect(200);
    let skipped = json!({"erased": 0, "already_redelivered": 0, "unsubscribed": 0});
    assert_eq!(dry, json!({"matched": 2, "skipped": skipped, "remaining": 2}));
    let made = server.call_with(ADMIN, "POST", "/v1/replays", &[("idempotency-key", "r1")], body("")).await.expect(202);
    assert_eq!((&made["state"], &made["tenant"], &made["created"]), (&"running".into(), &"acme".into(), &0.into()));
    assert_eq!(
        (&made["reason"], &made["requested_by"], &made["rate_per_minute"]),
        (&"it was down".into(), &"admin key".into(), &600.into())
    );
    let again = server.call_with(ADMIN, "POST", "/v1/replays", &[("idempotency-key", "r1")], body("")).await.expect(202);
    assert_eq!(again["id"], made["id"]);
    let other = body(r#", "rate_per_minute": 5"#);
    server.call_with(ADMIN, "POST", "/v1/replays", &[("idempotency-key", "r1")], other).await.expect(409);
    let id = posthaste_core::id::ReplayId::parse(&text(&made["id"])).unwrap();
    server.store.step_replay(id, 1, 100).await.unwrap().unwrap();
    let read = server.get(&path("replays", &made)).await.expect(200);
    assert_eq!((&read["matched"], &read["created"]), (&2.into(), &1.into()));
    assert_eq!((&read["skipped"], &read["remaining"]), (&skipped, &1.into()));
    let of_replay = server.get("/v1/deliveries?tenant=acme").await.expect(200);
    assert_eq!(of_replay["data"][0]["replay"], made["id"]);
    let cancelled = server.post(&format!("{}/cancel", path("replays", &made)), "").await.expect(200);
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(server.post(&format!("{}/cancel", path("replays", &made)), "").await.expect(200)["state"], "cancelled");
    assert_eq!(server.get("/v1/replays?tenant=acme").await.expect(200)["data"].as_array().unwrap().len(), 1);
    let audit = server.get("/v1/audit?tenant=acme").await.expect(200);
    assert_eq!(audit["data"][0]["action"], "replay.cancel");
}

#[tokio::test]
async fn i17_the_books_of_a_replay_name_what_it_skipped() {
    let server = Server::new("replays-skipped");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    for n in 0..3 {
        server.post("/v1/events", format!(r#"{{"type": "a", "tenant": "acme", "data": {n}}}"#)).await.expect(202);
    }
    let owner = Owner::of(&server.store).await;
    let rows = server.deliveries().await;
    for row in &rows {
        owner.attempt(row, 404).await;
    }
    let body = r#"{"tenant": "acme", "reason": "it was down"}"#;
    let made = server.post("/v1/replays", body).await.expect(202);
    server.post(&format!("/v1/deliveries/{}/retry", rows[0].id), "").await.expect(202);
    let audit = posthaste_store::Audit {
        actor: "x".to_owned(),
        address: None,
        action: "erase".to_owned(),
        subject: "x".to_owned(),
        tenant: None,
        before: None,
        after: None,
    };
    server.store.erase(None, rows[1].event.clone(), audit).await.unwrap();
    let id = posthaste_core::id::ReplayId::parse(&text(&made["id"])).unwrap();
    server.store.step_replay(id, 10, 100).await.unwrap().unwrap();
    let read = server.get(&path("replays", &made)).await.expect(200);
    let skipped = json!({"erased": 1, "already_redelivered": 1, "unsubscribed": 0});
    assert_eq!((&read["state"], &read["matched"], &read["created"]), (&"done".into(), &3.into(), &1.into()));
    assert_eq!((&read["skipped"], &read["remaining"]), (&skipped, &0.into()));
}

#[tokio::test]
async fn a_replay_without_filter_reason_or_sense_is_refused() {
    let server = Server::new("replays-bad");
    let endpoint = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    let id = text(&endpoint["id"]);
    let long = "x".repeat(1025);
    for (body, field) in [
        (r#"{"reason": "x"}"#.to_owned(), ""),
        (r#"{"tenant": "acme"}"#.to_owned(), "reason"),
        (r#"{"tenant": "acme", "reason": "  "}"#.to_owned(), "reason"),
        (format!(r#"{{"tenant": "acme", "reason": "{long}"}}"#), "reason"),
        (r#"{"tenant": "acme", "reason": "x", "from": "2999-01-01T00:00:00Z"}"#.to_owned(), "from"),
        (r#"{"tenant": "acme", "reason": "x", "from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}"#.to_owned(), "to"),
        (r#"{"tenant": "acme", "reason": "x", "from": "yesterday"}"#.to_owned(), "from"),
        (r#"{"reason": "x", "status": ["pending"]}"#.to_owned(), "status[0]"),
        (r#"{"reason": "x", "ids": ["dlv_x"]}"#.to_owned(), "ids[0]"),
        (r#"{"reason": "x", "endpoint": "nonsense"}"#.to_owned(), "endpoint"),
        (r#"{"reason": "x", "tenant": "acme", "missing": true}"#.to_owned(), "endpoint"),
        (format!(r#"{{"reason": "x", "endpoint": "{id}", "missing": true, "status": ["dead"]}}"#), "missing"),
        (r#"{"reason": "x", "tenant": "acme", "rate_per_minute": 0}"#.to_owned(), "rate_per_minute"),
        (r#"{"reason": "x", "tenant": "acme", "rate_per_minute": 601}"#.to_owned(), "rate_per_minute"),
        (r#"{"reason": "x", "event_types": ["a b"]}"#.to_owned(), "event_types[0]"),
    ] {
        server.post("/v1/replays", body).await.refused(422, field);
    }
    let missing = format!(r#"{{"reason": "x", "endpoint": "{id}", "missing": true, "dry_run": true}}"#);
    assert_eq!(server.post("/v1/replays", missing.clone()).await.expect(200)["matched"], 0);
    server.post(&format!("{}/disable", path("endpoints", &endpoint)), "").await.expect(200);
    server.post("/v1/events", r#"{"type": "a", "tenant": "acme", "data": 1}"#).await.expect(202);
    server.post("/v1/replays", missing.clone()).await.expect(409);
    server.post(&format!("{}/enable", path("endpoints", &endpoint)), "").await.expect(200);
    assert_eq!(server.post("/v1/replays", missing.clone()).await.expect(200)["matched"], 1, "what it has missed");
    server.call(ADMIN, "DELETE", &path("endpoints", &endpoint), "").await.expect(204);
    server.post("/v1/replays", missing).await.expect(404);
    assert_eq!(server.get("/v1/replays").await.expect(200)["data"], json!([]));
}
