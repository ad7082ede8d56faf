//! `/metrics`: who may read it, and what it says of this API.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use posthaste_api::Options;
use posthaste_metrics::{Limits, Metrics, StallReason};
use serde_json::json;
use tower::ServiceExt;

use crate::server::{ADMIN, Server, options};

/// Somebody at this address asks, with a key or without.
async fn asks(server: &Server, peer: &str, key: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = Request::get("/metrics").header("host", "localhost:8080");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if !key.is_empty() {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let peer: SocketAddr = peer.parse().unwrap();
    let request = request.extension(ConnectInfo(peer)).body(Body::empty()).unwrap();
    server.router.clone().oneshot(request).await.unwrap().status().as_u16()
}

async fn key(server: &Server, scopes: &[&str], tenant: Option<&str>) -> String {
    let made = server.post("/v1/keys", json!({"name": "a key", "scopes": scopes, "tenant": tenant}).to_string()).await;
    made.expect(201)["key"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn metrics_are_open_to_this_machine_and_need_a_key_that_reads_everything_from_elsewhere() {
    let server = Server::new("metrics-access");
    let (reads, publishes) = (key(&server, &["read"], None).await, key(&server, &["publish"], None).await);
    let bound = key(&server, &["read", "manage"], Some("acme")).await;
    for (peer, key, headers, status) in [
        ("127.0.0.1:5000", "", &[][..], 200),
        ("[::1]:5000", "", &[], 200),
        ("[::ffff:127.0.0.1]:5000", "", &[], 200),
        ("192.0.2.1:5000", "", &[], 401),
        ("192.0.2.1:5000", "phk_nobody-has-made-this-one", &[], 401),
        ("192.0.2.1:5000", &reads, &[], 200),
        ("192.0.2.1:5000", ADMIN, &[], 200),
        ("192.0.2.1:5000", &publishes, &[], 403),
        ("192.0.2.1:5000", &bound, &[], 403),
        // A proxy on this machine speaks for somebody who is not.
        ("127.0.0.1:5000", "", &[("x-forwarded-for", "192.0.2.1")], 401),
        ("127.0.0.1:5000", "", &[("forwarded", "for=192.0.2.1")], 401),
        ("127.0.0.1:5000", &reads, &[("x-forwarded-for", "192.0.2.1")], 200),
    ] {
        assert_eq!(asks(&server, peer, key, headers).await, status, "{peer} {key} {headers:?}");
    }
}

#[tokio::test]
async fn where_nothing_is_counted_there_is_no_page() {
    let server = Server::with("metrics-off", Options { metrics: None, ..options() });
    assert_eq!(asks(&server, "127.0.0.1:5000", "", &[]).await, 404);
    server.get("/readyz").await.expect(200);
}

#[tokio::test]
async fn events_are_counted_once_they_are_made_and_duplicates_are_not() {
    let server = Server::new("metrics-events");
    let event = |key: &str| json!({"type": "invoice.paid", "tenant": "acme", "data": {}, "idempotency_key": key}).to_string();
    server.post("/v1/events", event("1")).await.expect(202);
    server.post("/v1/events", event("1")).await.expect(200);
    server.post("/v1/events", "{}").await.expect(422);
    server.post("/v1/events/batch", format!("[{},{},{{}}]", event("2"), event("2"))).await.expect(202);
    let page = server.get("/metrics").await.text();
    assert!(page.contains("webhook_events_created_total{tenant=\"acme\",type=\"invoice.paid\"} 2\n"), "{page}");
}

#[tokio::test]
async fn i41_a_node_that_should_deliver_and_does_not_says_so_and_still_takes_events() {
    let metrics = Metrics::new(Limits::default(), "test");
    let server = Server::with("metrics-stalled", Options { metrics: Some(metrics.clone()), ..options() });
    let stalled = async || server.get("/metrics").await.text().contains("posthaste_delivery_stalled{reason=\"read_unanswered\"} 1");
    assert!(!stalled().await);
    metrics.liveness().found(Some(StallReason::ReadUnanswered));
    assert!(stalled().await);
    server.get("/readyz").await.expect(200);
    metrics.liveness().found(None);
    assert!(!stalled().await);
}
