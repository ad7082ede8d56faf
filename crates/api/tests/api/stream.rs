//! `/v1/stream`.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::owner::Owner;
use crate::server::{ADMIN, Server, options, text};

async fn open(server: &Server, key: &str, query: &str) -> axum::response::Response {
    let request = Request::get(format!("/v1/stream{query}")).header("authorization", format!("Bearer {key}"));
    server.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

/// Somebody who watches, and what was told so far.
struct Watcher {
    body: Body,
    unread: String,
    last_event_id: String,
}

impl Watcher {
    async fn open(server: &Server, last_event_id: Option<&str>) -> Watcher {
        let mut request = Request::get("/v1/stream").header("authorization", format!("Bearer {ADMIN}"));
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let response = server.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        Watcher { body: response.into_body(), unread: String::new(), last_event_id: String::new() }
    }

    /// The name and the data of the next event.
    async fn next(&mut self) -> (String, Value) {
        loop {
            if let Some((event, rest)) = self.unread.split_once("\n\n").map(|(event, rest)| (event.to_owned(), rest.to_owned())) {
                self.unread = rest;
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let (Some(name), Some(data)) = (field("event: "), field("data: ")) else { continue };
                self.last_event_id = field("id: ").unwrap();
                return (name, serde_json::from_str(&data).unwrap());
            }
            let frame = tokio::time::timeout(std::time::Duration::from_mins(1), self.body.frame()).await;
            let frame = frame.expect("something is told").unwrap().unwrap();
            self.unread += std::str::from_utf8(&frame.into_data().unwrap()).unwrap();
        }
    }
}

/// So many events at once.
async fn publish(server: &Server, count: usize) {
    for batch in (0..count).collect::<Vec<_>>().chunks(1000) {
        let events: Vec<Value> = batch.iter().map(|n| json!({"type": "a", "tenant": "acme", "data": n})).collect();
        let answer = server.post("/v1/events/batch", Value::from(events).to_string()).await.expect(202);
        assert_eq!(answer["accepted"], batch.len());
    }
}

on_both_databases! {
    every_delivery_is_told_however_fast_they_are_made
    every_change_is_told_also_to_somebody_who_was_away
    what_there_is_no_time_for_is_said_to_be_missed
}

const ENDPOINT: &str = r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#;

async fn every_delivery_is_told_however_fast_they_are_made(server: Server) {
    server.endpoint(ENDPOINT).await;
    let mut watcher = Watcher::open(&server, None).await;
    publish(&server, 2500).await;
    let mut seen = BTreeSet::new();
    while seen.len() < 2500 {
        let (name, data) = watcher.next().await;
        match name.as_str() {
            "delivery" => assert!(seen.insert(text(&data["id"])) || data["status"] != "pending", "told twice: {data}"),
            // More wait than can be followed, since nobody delivers here.
            "lagging" => assert!(seen.len() > 900, "{data}"),
            other => panic!("{other}: {data}"),
        }
    }
}

async fn every_change_is_told_also_to_somebody_who_was_away(server: Server) {
    server.endpoint(ENDPOINT).await;
    let owner = Owner::of(&server.store).await;
    let mut watcher = Watcher::open(&server, None).await;
    publish(&server, 2).await;
    let first = watcher.next().await.1;
    watcher.next().await;
    let rows = server.deliveries().await;
    let row = |id: &Value| rows.iter().find(|row| row.id.to_string() == text(id)).unwrap();
    owner.attempt(row(&first["id"]), 204).await;
    let changed = watcher.next().await.1;
    assert_eq!((&changed["id"], &changed["status"]), (&first["id"], &json!("delivered")));
    let (position, other) =
        (watcher.last_event_id.clone(), rows.iter().find(|row| row.id.to_string() != text(&first["id"])).unwrap());
    drop(watcher);
    // While nobody watches: one ends, and two are made.
    owner.attempt(other, 500).await;
    publish(&server, 2).await;
    let mut watcher = Watcher::open(&server, Some(&position)).await;
    // Whoever comes back may be told of something twice.
    let mut told = BTreeMap::from([(text(&first["id"]), "delivered".to_owned())]);
    while told.len() < 4 {
        let (name, data) = watcher.next().await;
        assert_eq!(name, "delivery");
        told.insert(text(&data["id"]), text(&data["status"]));
    }
    assert_eq!((&*told[&text(&first["id"])], &*told[&other.id.to_string()]), ("delivered", "dead"));
    assert_eq!(told.values().filter(|status| *status == "pending").count(), 2, "{told:?}");
}

async fn what_there_is_no_time_for_is_said_to_be_missed(server: Server) {
    server.endpoint(ENDPOINT).await;
    let mut watcher = Watcher::open(&server, None).await;
    publish(&server, 1).await;
    watcher.next().await;
    let position = watcher.last_event_id.clone();
    drop(watcher);
    publish(&server, 6500).await;
    let mut watcher = Watcher::open(&server, Some(&position)).await;
    let (mut missed, mut seen) = (0, BTreeSet::new());
    // The one from before has not ended, and is told again.
    while missed + seen.len() < 6501 {
        let (name, data) = watcher.next().await;
        match name.as_str() {
            "delivery" => _ = seen.insert(text(&data["id"])),
            "missed" => missed += usize::try_from(data["deliveries"].as_u64().unwrap()).unwrap(),
            "lagging" => {}
            other => panic!("{other}: {data}"),
        }
    }
    assert!(missed >= 5000, "{missed}");
}

#[tokio::test]
async fn a_position_that_is_not_ours_is_refused() {
    let server = Server::new("stream-position");
    let headers = [("last-event-id", "dlv_01m7hnfggneejskb9dj9vestdn")];
    assert_eq!(server.call_with(ADMIN, "GET", "/v1/stream", &headers, "").await.status, 400);
}

#[tokio::test]
async fn a_stream_tells_of_the_deliveries_of_its_tenant_and_ends_with_its_key() {
    let server = Server::new("stream");
    for tenant in ["acme", "globex"] {
        server.endpoint(&format!(r#"{{"url": "http://127.0.0.1:8080/", "tenant": "{tenant}"}}"#)).await;
    }
    let made = server.post("/v1/keys", r#"{"name": "x", "tenant": "acme", "scopes": ["read"]}"#).await.expect(201);
    let response = open(&server, &text(&made["key"]), "").await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let mut seen = String::new();
    let mut published = 0;
    // One after another until it is told: what was there before the first look is not news.
    while !seen.contains("event: delivery") {
        for tenant in ["globex", "acme"] {
            let event = format!(r#"{{"type": "a", "tenant": "{tenant}", "data": {published}}}"#);
            server.post("/v1/events", event).await.expect(202);
        }
        published += 1;
        let frame = tokio::time::timeout(std::time::Duration::from_millis(200), body.frame()).await;
        if let Ok(frame) = frame {
            seen += std::str::from_utf8(&frame.unwrap().unwrap().into_data().unwrap()).unwrap();
        }
        assert!(published < 1000, "nothing is told: {seen}");
    }
    assert!(seen.contains("\"tenant\":\"acme\"") && !seen.contains("globex"), "{seen}");
    server.call(ADMIN, "DELETE", &format!("/v1/keys/{}", text(&made["id"])), "").await.expect(204);
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
}

#[tokio::test]
async fn streams_are_counted() {
    let server = Server::with("streams", posthaste_api::Options { streams_max: 1, ..options() });
    let first = open(&server, ADMIN, "").await;
    assert_eq!(open(&server, ADMIN, "").await.status(), 503);
    drop(first);
    while open(&server, ADMIN, "").await.status() != 200 {
        tokio::task::yield_now().await;
    }
}
