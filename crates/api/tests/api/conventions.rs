//! What holds for every route.

use axum::body::Body;
use http::Request;
use serde_json::json;

use crate::server::{ADMIN, Server, options};

#[tokio::test]
async fn what_is_not_there_is_404_and_a_wrong_method_405_with_what_would_be_allowed() {
    let server = Server::new("missing");
    for path in [
        "/v1/deliveries/dlv_01knp9e1ege0094d2pf2dbsqqg",
        "/v1/deliveries/x",
        "/v1/deliveries/%ff",
        "/v1/endpoints/ep_x",
        "/v1/events/a.b",
        "/v1/replays/rpl_",
        "/v1/keys",
        "/v1/nothing",
        "/nothing",
        "/v1/events/",
        "//v1/events",
    ] {
        if path != "/v1/keys" {
            server.get(path).await.expect(404);
        }
    }
    for (method, path, allowed) in [
        ("DELETE", "/v1/events", "GET, HEAD, POST"),
        ("PUT", "/v1/events/x", "GET, HEAD"),
        ("OPTIONS", "/v1/endpoints/x", "DELETE, GET, HEAD, PATCH, PUT"),
        ("POST", "/healthz", "GET, HEAD"),
    ] {
        let answer = server.call(ADMIN, method, path, "").await;
        let mut given: Vec<&str> = answer.headers["allow"].to_str().unwrap().split(", ").collect();
        given.sort_unstable();
        assert_eq!(given.join(", "), allowed, "{method} {path}");
        answer.expect(405);
    }
}

#[tokio::test]
async fn every_answer_has_an_id_and_tells_browsers_to_keep_out() {
    let server = Server::new("headers");
    let mut ids = std::collections::BTreeSet::new();
    for path in ["/v1/events", "/v1/nothing", "/healthz", "/docs", "/openapi.json", "/docs/errors/invalid"] {
        let answer = server.get(path).await;
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers["x-frame-options"], "DENY");
        assert_eq!(answer.headers["referrer-policy"], "no-referrer");
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        ids.insert(answer.headers["x-request-id"].to_str().unwrap().to_owned());
        assert!(!answer.text().contains(ids.last().unwrap()), "in the header only");
    }
    assert_eq!(ids.len(), 6);
    assert_eq!(server.get("/v1/events").await.headers["cache-control"], "no-store");
    let head = server.call(ADMIN, "HEAD", "/v1/events", "").await;
    assert_eq!((head.status.as_u16(), head.bytes.len()), (200, 0));
}

#[tokio::test]
async fn unknown_parameters_wrong_limits_and_borrowed_cursors_are_refused() {
    let server = Server::new("query");
    for n in 0..3 {
        server.post("/v1/events", format!(r#"{{"type": "a", "data": {n}}}"#)).await.expect(202);
    }
    for route in posthaste_api::routes().into_iter().filter(|route| route.needs_key && route.method == http::Method::GET) {
        let path = route.path.replace(['{', '}'], "x");
        server.get(&format!("{path}?nonsense=1")).await.refused(422, "nonsense");
        if route.query.contains(&"limit") && !route.path.contains('{') {
            for limit in ["0", "251", "-1", "x", ""] {
                server.get(&format!("{path}?limit={limit}")).await.refused(422, "limit");
            }
            server.get(&format!("{path}?cursor=nonsense")).await.expect(400);
            server.get(&format!("{path}?limit=1&limit=2")).await.refused(422, "limit");
        }
        for (name, wrong) in [
            ("tenant", "a%20b"),
            ("from", "yesterday"),
            ("to", "1"),
            ("endpoint", "x"),
            ("status", "lost"),
            ("hold_reason", "x"),
            ("type", "a..b"),
        ] {
            // Where the address names something, that is looked for first.
            if route.query.contains(&name) && !route.path.contains('{') {
                server.get(&format!("{path}?{name}={wrong}")).await.refused(422, name);
            }
        }
    }
    let page = server.get("/v1/events?limit=1").await.expect(200);
    let cursor = page["next_cursor"].as_str().unwrap();
    server.get(&format!("/v1/events?cursor={cursor}")).await.expect(200);
    server.get(&format!("/v1/deliveries?cursor={cursor}")).await.expect(400);
    server.get(&format!("/v1/events?cursor={}", &cursor[1..])).await.expect(400);
}

#[tokio::test]
async fn what_is_not_plain_json_is_415() {
    let server = Server::new("media");
    let body = r#"{"type": "a", "data": 1}"#;
    for (headers, status) in [
        (&[("content-type", "application/json")][..], 202),
        (&[("content-type", "Application/JSON; charset=UTF-8")], 202),
        (&[("content-type", "application/json; charset=\"utf-8\"")], 202),
        (&[("content-type", "application/json; charset=latin1")], 415),
        (&[("content-type", "text/plain")], 415),
        (&[("content-type", "application/x-ndjson")], 415),
        (&[("content-type", "")], 415),
        (&[("content-type", "application/json"), ("content-encoding", "gzip")], 415),
        (&[("content-type", "application/json"), ("content-encoding", "identity")], 202),
    ] {
        let answer = server.call_with(ADMIN, "POST", "/v1/events", headers, body).await;
        assert_eq!(answer.status.as_u16(), status, "{headers:?}");
    }
    let bare = Request::post("/v1/events").header("authorization", format!("Bearer {ADMIN}")).body(Body::from(body)).unwrap();
    server.send(bare).await.expect(415);
}

#[tokio::test]
async fn what_is_too_long_is_told_so() {
    let server = Server::new("long");
    let long = "x".repeat(9000);
    server.get(&format!("/v1/events?type={long}")).await.expect(414);
    server.call_with(ADMIN, "GET", "/v1/events", &[("x-padding", &"x".repeat(40_000))], "").await.expect(431);
    let declared = [("content-length", "2000000")];
    server.call_with(ADMIN, "POST", "/v1/events", &declared, "{}").await.expect(413);
    let large = format!(r#"{{"type": "a", "data": "{}"}}"#, "x".repeat(1024 * 1024));
    server.post("/v1/events", large).await.expect(413);
}

#[tokio::test]
async fn i41_ready_means_that_publishing_works() {
    let server = Server::new("ready");
    let ask = async |path: &str| server.send(Request::get(path).body(Body::empty()).unwrap()).await;
    assert_eq!(ask("/readyz").await.expect(200), json!({"status": "ready"}));
    server.store.close().await.unwrap();
    let unready = ask("/readyz").await;
    assert_eq!(unready.headers["retry-after"], "1");
    assert!(unready.expect(503)["detail"].as_str().unwrap().contains("database"));
    assert_eq!(ask("/healthz").await.expect(200), json!({"status": "ok"}), "alive all the same");
    let refused = server.post("/v1/events", r#"{"type": "a", "data": 1}"#).await;
    assert_eq!(refused.headers["retry-after"], "1");
    refused.expect(503);
}

#[tokio::test]
async fn the_address_that_is_shown_comes_from_the_settings_and_not_from_the_request() {
    let server =
        Server::with("address", posthaste_api::Options { public_url: "https://hooks.example.com/".to_owned(), ..options() });
    server.call(ADMIN, "PUT", "/v1/tenants/acme", "{}").await.expect(201);
    let body = r#"{"tenant": "acme", "permissions": ["view"]}"#;
    let link = server.call_with(ADMIN, "POST", "/v1/portal-links", &[("host", "evil.example.org")], body).await.expect(201);
    assert!(link["url"].as_str().unwrap().starts_with("https://hooks.example.com/portal#code=phc_"), "{link}");
}
