//! What waits and why, in `/v1/stats`.

use std::time::Duration;

use posthaste_core::id::EndpointId;
use posthaste_core::scheduler::LaneMemory;
use posthaste_core::timeout::Adaptive;
use posthaste_store::LaneSnapshot;
use serde_json::{Value, json};

use crate::owner::Owner;
use crate::server::{Server, path, text};

on_both_databases! {
    what_waits_is_counted_by_why
}

async fn publish(server: &Server, tenant: &str, more: Value) {
    let mut event = json!({"type": "a", "tenant": tenant, "data": 1});
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/events", event.to_string()).await.expect(202);
}

async fn what_waits_is_counted_by_why(server: Server) {
    let endpoint = |tenant: &str, more: &str| format!(r#"{{"url": "http://127.0.0.1:8080/", "tenant": "{tenant}"{more}}}"#);
    let quiet = r#", "delivery_schedule": {"timezone": "UTC", "maintenance": [{"from": "2020-01-01T00:00:00Z", "until": "2099-01-01T00:00:00Z"}], "applies_to": ["a"]}"#;
    let plain = server.endpoint(&endpoint("acme", "")).await;
    let paused = server.endpoint(&endpoint("paused", "")).await;
    server.endpoint(&endpoint("quiet", quiet)).await;
    server.post(&format!("{}/pause", path("endpoints", &paused)), "").await.expect(200);
    for _ in 0..3 {
        publish(&server, "acme", json!({})).await;
    }
    let tomorrow = (server.store.now() + Duration::from_hours(24)).to_rfc3339();
    publish(&server, "acme", json!({"deliver_at": tomorrow})).await;
    for _ in 0..2 {
        publish(&server, "acme", json!({"ordering_key": "one"})).await;
    }
    publish(&server, "paused", json!({})).await;
    publish(&server, "quiet", json!({})).await;
    // What has ended does not wait.
    publish(&server, "acme", json!({"id": "ended"})).await;
    let owner = Owner::of(&server.store).await;
    let rows = server.deliveries().await;
    owner.attempt(rows.iter().find(|row| row.event.as_str() == "ended").unwrap(), 204).await;
    // One is in flight, as its owner shows.
    let flying = rows.iter().find(|row| row.tenant.as_str() == "acme" && row.ordering_key.is_none() && !row.is_later).unwrap();
    let lane = LaneSnapshot {
        endpoint: EndpointId::parse(&text(&plain["id"])).unwrap(),
        at: server.store.now(),
        memory: LaneMemory::default(),
        tenant_bucket: None,
        timeout: Adaptive::default(),
        in_flight: vec![flying.id],
        retries_from: None,
        is_short_of_tokens: false,
        has_slot: true,
        blocked: None,
    };
    server.store.publish_lanes(vec![lane]).await.unwrap();
    let backlog = server.get("/v1/stats").await.expect(200)["backlog"].clone();
    assert_eq!(backlog["is_complete"], true);
    assert_eq!((&backlog["waiting"], &backlog["pending"], &backlog["delivering"]), (&json!(8), &json!(3), &json!(1)), "{backlog}");
    let held = json!({"disabled": 0, "paused": 1, "blocked": 0, "deliver_at": 1, "retry": 0, "circuit_open": 0, "quiet_hours": 1, "ordering": 1,
                      "rate_limited": 0, "concurrency": 0});
    assert_eq!(backlog["held"], held);
    // It is told again for a while, and not counted anew for everybody who looks.
    publish(&server, "acme", json!({})).await;
    let again = server.get("/v1/stats").await.expect(200)["backlog"].clone();
    assert!(again == backlog || again["counted_at"] != backlog["counted_at"], "{again}");
    let of_quiet = server.get("/v1/stats?tenant=quiet").await.expect(200)["backlog"].clone();
    assert_eq!((&of_quiet["waiting"], &of_quiet["held"]["quiet_hours"]), (&json!(1), &json!(1)));
    // A key sees what waits of its own tenant.
    let key = server.key(Some("paused"), &["read"]).await;
    let own = server.call(&key, "GET", "/v1/stats", "").await.expect(200)["backlog"].clone();
    assert_eq!((&own["waiting"], &own["held"]["paused"]), (&json!(1), &json!(1)));
    let other = server.call(&key, "GET", "/v1/stats?tenant=acme", "").await.expect(200)["backlog"].clone();
    assert_eq!(other["waiting"], 0);
}
