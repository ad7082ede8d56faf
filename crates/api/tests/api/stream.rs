//! `/v1/stream`.

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use tower::ServiceExt;

use crate::server::{ADMIN, Server, options, text};

async fn open(server: &Server, key: &str, query: &str) -> axum::response::Response {
    let request = Request::get(format!("/v1/stream{query}")).header("authorization", format!("Bearer {key}"));
    server.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
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
