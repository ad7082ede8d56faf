//! The API as a caller sees it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use http::{Request, StatusCode};
use posthaste_store::{DeliveryQuery, DeliveryRow, Keyring, MasterKey, Options, Sqlite, Store};
use serde_json::Value;
use tower::ServiceExt;

const KEY: &str = "phk_a-key-for-the-tests";

struct Server {
    directory: PathBuf,
    router: axum::Router,
    store: Arc<dyn Store>,
}

impl Server {
    fn new(name: &str) -> Server {
        let directory = std::env::temp_dir().join(format!("posthaste-api-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let options = Options::new(Keyring::new(MasterKey::generate(), vec![]));
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&directory, options).unwrap());
        Server { directory, router: posthaste_api::router(Arc::clone(&store), KEY), store }
    }

    async fn deliveries(&self) -> Vec<DeliveryRow> {
        self.store.deliveries(DeliveryQuery { limit: 10, ..DeliveryQuery::default() }).await.unwrap().rows
    }

    async fn call(&self, method: &str, path: &str, body: impl Into<Body>) -> (StatusCode, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {KEY}"))
            .header("content-type", "application/json")
            .body(body.into())
            .unwrap();
        self.send(request).await
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, Value) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            assert_eq!(response.headers()["content-type"], "application/problem+json");
        }
        let bytes = to_bytes(response.into_body(), 10_000_000).await.unwrap();
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if status.is_client_error() {
            assert_eq!(answer["status"], status.as_u16());
        }
        (status, answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test]
async fn a_secret_is_shown_once() {
    let server = Server::new("secret");
    let (status, made) = server.call("POST", "/v1/endpoints", r#"{"url": "http://127.0.0.1:9/", "event_types": ["a.*"]}"#).await;
    assert_eq!(status, StatusCode::CREATED);
    assert!(made["secret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!((&made["tenant"], &made["status"]), (&"default".into(), &"active".into()));
    let (status, read) = server.call("GET", &format!("/v1/endpoints/{}", made["id"].as_str().unwrap()), "").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(read.get("secret"), None);
    assert_eq!(read["event_types"], made["event_types"]);
}

#[tokio::test]
async fn a_payload_is_kept_to_the_byte() {
    let server = Server::new("bytes");
    server.call("POST", "/v1/endpoints", r#"{"url": "http://127.0.0.1:9/"}"#).await;
    let data = "{ \"z\":1.00,\"a\" : 12345678901234567890123, \"s\":\"\\u00e9\\/\\ud800\", \"e\":1E+2 , \"a\":2}";
    let (status, published) = server.call("POST", "/v1/events", format!("{{\"type\": \"t\", \"data\":  {data} }}")).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_eq!((&published["deliveries"], &published["duplicate"]), (&1.into(), &false.into()));
    let made = server.deliveries().await;
    let bodies = server.store.bodies(vec![made[0].seq]).await.unwrap();
    assert_eq!(bodies[0].event.as_ref().unwrap().data.as_str(), data);
    let (status, delivery) = server.call("GET", &format!("/v1/deliveries/{}", made[0].id), "").await;
    assert_eq!((status, &delivery["status"]), (StatusCode::OK, &"pending".into()));
    assert_eq!(delivery["event"], published["id"]);
}

#[tokio::test]
async fn nothing_is_served_without_the_key() {
    let server = Server::new("key");
    for header in [None, Some("Bearer "), Some("Bearer wrong"), Some("Basic x"), Some(KEY)] {
        let mut request = Request::post("/v1/events").header("content-type", "application/json");
        if let Some(header) = header {
            request = request.header("authorization", header);
        }
        let (status, _) = server.send(request.body(Body::from("{}")).unwrap()).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{header:?}");
    }
    let health = server.send(Request::get("/healthz").body(Body::empty()).unwrap()).await;
    assert_eq!(health.0, StatusCode::OK, "except whether it is alive");
}

#[tokio::test]
async fn i48_bad_input_gets_its_status_and_stores_nothing() {
    let server = Server::new("bad");
    server.call("POST", "/v1/endpoints", r#"{"url": "http://127.0.0.1:9/"}"#).await;
    let deep = format!(r#"{{"type": "a", "data": {}{}}}"#, "[".repeat(65), "]".repeat(65));
    let very_deep = format!(r#"{{"type": "a", "data": {}"#, "[".repeat(200_000));
    let long = format!(r#"{{"type": "{}", "data": 1}}"#, "x".repeat(129));
    let large = format!(r#"{{"type": "a", "data": "{}"}}"#, "x".repeat(1024 * 1024));
    for (body, status, field) in [
        (&b""[..], 400, None),
        (b"{", 400, None),
        (b"nonsense", 400, None),
        (b"{\"type\": \"a\", \"data\": 1} x", 400, None),
        (b"{\"type\": \"a\", \"data\": \"\xff\"}", 400, None),
        (very_deep.as_bytes(), 400, None),
        (b"[]", 422, None),
        (b"[\"a\", 1, null, null, null, []]", 422, Some("")),
        (b"{}", 422, Some("type")),
        (b"{\"type\": \"a\"}", 422, Some("data")),
        (b"{\"type\": 1, \"data\": 1}", 422, Some("type")),
        (b"{\"type\": \"a\", \"data\": 1, \"labels\": [\"a\", 1]}", 422, Some("labels[1]")),
        (b"{\"type\": \"a\", \"data\": 1, \"tyep\": 1}", 422, Some("tyep")),
        (b"{\"type\": \"a\", \"type\": \"b\", \"data\": 1}", 422, Some("type")),
        (b"{\"type\": \"a..b\", \"data\": 1}", 422, Some("type")),
        (long.as_bytes(), 422, Some("type")),
        (b"{\"type\": \"a\", \"data\": 1, \"tenant\": \"a b\"}", 422, Some("tenant")),
        (b"{\"type\": \"a\", \"data\": 1, \"timestamp\": \"yesterday\"}", 422, Some("timestamp")),
        (b"{\"type\": \"a\", \"data\": 1, \"labels\": [\"ok\", \"\"]}", 422, Some("labels[1]")),
        (deep.as_bytes(), 422, Some("data")),
        (large.as_bytes(), 413, None),
    ] {
        let (actual, problem) = server.call("POST", "/v1/events", body.to_vec()).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(actual.as_u16(), status, "{shown}: {problem}");
        if let Some(field) = field {
            assert_eq!(problem["errors"][0]["field"], field, "{shown}");
        }
    }
    for (body, field) in
        [(r#"{"url": "ftp://a.b/"}"#, "url"), (r#"{"url": "http://a.b/", "event_types": ["a", "*.b"]}"#, "event_types[1]")]
    {
        let (status, problem) = server.call("POST", "/v1/endpoints", body).await;
        assert_eq!((status.as_u16(), &problem["errors"][0]["field"]), (422, &field.into()));
    }
    assert!(server.deliveries().await.is_empty());
}

#[tokio::test]
async fn what_is_not_there_is_404_and_a_wrong_method_405() {
    let server = Server::new("missing");
    for path in [
        "/v1/deliveries/dlv_01knp9e1ege0094d2pf2dbsqqg",
        "/v1/deliveries/x",
        "/v1/deliveries/%ff",
        "/v1/endpoints/ep_x",
        "/v1/nothing",
        "/nothing",
    ] {
        assert_eq!(server.call("GET", path, "").await.0, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(server.call("DELETE", "/v1/events", "").await.0, StatusCode::METHOD_NOT_ALLOWED);
    let request = Request::post("/v1/events").header("authorization", format!("Bearer {KEY}"));
    let (status, _) = server.send(request.header("content-type", "text/plain").body(Body::from("{}")).unwrap()).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}
