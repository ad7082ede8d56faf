//! Keys: who may do what, and until when.

use axum::body::Body;
use http::Request;
use serde_json::json;

use crate::server::{ADMIN, Server, options, path, text};

#[tokio::test]
async fn nothing_is_served_without_a_key() {
    let server = Server::new("no-key");
    for header in [None, Some("Bearer "), Some("Bearer wrong"), Some("Basic x"), Some(ADMIN), Some("Bearer phl_AAAA")] {
        for route in posthaste_api::routes().into_iter().filter(|route| route.needs_key) {
            let mut request = Request::builder().method(route.method.clone()).uri(route.path.replace(['{', '}'], "x"));
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            let answer = server.send(request.body(Body::empty()).unwrap()).await;
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
            assert_eq!(answer.status.as_u16(), 401, "{} {} with {header:?}", route.method, route.path);
        }
    }
    let twice = Request::get("/v1/events").header("authorization", format!("Bearer {ADMIN}"));
    let twice = twice.header("authorization", "Bearer x").body(Body::empty()).unwrap();
    server.send(twice).await.expect(401);
    let in_address = Request::get(format!("/v1/events?key={ADMIN}")).body(Body::empty()).unwrap();
    server.send(in_address).await.expect(401);
}

#[tokio::test]
async fn a_key_may_do_what_its_scopes_say_and_no_more() {
    let server = Server::new("scopes");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    for (scope, allowed) in [
        ("publish", &["POST /v1/events"][..]),
        (
            "read",
            &["GET /v1/events", "GET /v1/endpoints", "GET /v1/tenants", "GET /v1/cluster", "GET /v1/stats", "GET /v1/event-types"],
        ),
        ("manage", &["POST /v1/endpoints", "POST /v1/event-types"]),
        ("replay", &["POST /v1/replays"]),
        (
            "admin",
            &[
                "POST /v1/events",
                "GET /v1/events",
                "POST /v1/endpoints",
                "POST /v1/replays",
                "GET /v1/keys",
                "GET /v1/audit",
                "POST /v1/keys",
            ],
        ),
    ] {
        let key = server.key(None, &[scope]).await;
        for (method, path) in [
            ("POST", "/v1/events"),
            ("GET", "/v1/events"),
            ("GET", "/v1/endpoints"),
            ("POST", "/v1/endpoints"),
            ("POST", "/v1/replays"),
            ("GET", "/v1/tenants"),
            ("GET", "/v1/keys"),
            ("POST", "/v1/keys"),
            ("GET", "/v1/audit"),
            ("GET", "/v1/cluster"),
            ("GET", "/v1/stats"),
            ("GET", "/v1/event-types"),
            ("POST", "/v1/event-types"),
        ] {
            let answer = server.call(&key, method, path, if method == "POST" { "{}" } else { "" }).await;
            let is_allowed = scope == "admin" || allowed.contains(&format!("{method} {path}").as_str());
            assert_eq!(answer.status.as_u16() != 403, is_allowed, "{scope}: {method} {path}: {}", answer.status);
        }
    }
    // What concerns everybody is not for a key that is bound to one.
    let bound = server.key(Some("acme"), &["admin"]).await;
    for (method, path) in [
        ("PUT", "/v1/tenants/acme"),
        ("PATCH", "/v1/tenants/acme"),
        ("DELETE", "/v1/tenants/acme"),
        ("POST", "/v1/event-types"),
        ("GET", "/v1/cluster"),
    ] {
        server.call(&bound, method, path, if method == "GET" || method == "DELETE" { "" } else { "{}" }).await.expect(403);
    }
}

#[tokio::test]
async fn a_key_is_shown_once_listed_revoked_and_refused_from_then_on() {
    let server = Server::new("keys");
    let body = r#"{"name": "billing", "tenant": "acme", "scopes": ["publish", "read"], "expires_at": "2099-01-01T00:00:00Z"}"#;
    let made = server.post("/v1/keys", body).await.expect(201);
    let key = text(&made["key"]);
    assert!(key.starts_with("phk_") && key.len() > 40);
    let listed = server.get("/v1/keys").await;
    assert!(!listed.text().contains(&key));
    assert_eq!(listed.json["data"][0]["scopes"], json!(["publish", "read"]));
    server.call(&key, "GET", "/v1/events", "").await.expect(200);
    // Bound to acme: that is its tenant, whatever is left out.
    let event = server.call(&key, "POST", "/v1/events", r#"{"type": "a", "data": 1}"#).await.expect(202);
    assert_eq!(event["tenant"], "acme");
    server.call(&key, "POST", "/v1/events", r#"{"type": "a", "data": 1, "tenant": "globex"}"#).await.expect(404);
    server.call(ADMIN, "DELETE", &path("keys", &made), "").await.expect(204);
    server.call(&key, "GET", "/v1/events", "").await.expect(401);
    server.call(ADMIN, "DELETE", &path("keys", &made), "").await.expect(204);
    assert!(server.get("/v1/keys").await.expect(200)["data"][0]["revoked_at"].is_string());
    for (body, field) in [
        (r#"{"name": "", "scopes": ["read"]}"#, "name"),
        (r#"{"name": "x", "scopes": []}"#, "scopes"),
        (r#"{"name": "x", "scopes": ["read", "read"]}"#, "scopes"),
        (r#"{"name": "x", "scopes": ["root"]}"#, "scopes[0]"),
        (r#"{"name": "x", "scopes": ["read"], "expires_at": "2020-01-01T00:00:00Z"}"#, "expires_at"),
        (r#"{"scopes": ["read"]}"#, "name"),
        (r#"{"name": "x", "scopes": ["read"], "tenant": "a b"}"#, "tenant"),
    ] {
        server.post("/v1/keys", body).await.refused(422, field);
    }
}

#[tokio::test]
async fn a_revocation_on_another_node_is_seen_within_a_second() {
    let server = Server::new("revoked");
    let elsewhere = posthaste_api::router(std::sync::Arc::clone(&server.store), options(), ADMIN);
    let made = server.post("/v1/keys", r#"{"name": "x", "scopes": ["read"]}"#).await.expect(201);
    let key = text(&made["key"]);
    let here = std::mem::replace(&mut { server.router.clone() }, elsewhere.clone());
    let other = async || {
        let request = Request::get("/v1/events").header("authorization", format!("Bearer {key}")).body(Body::empty()).unwrap();
        tower::ServiceExt::oneshot(elsewhere.clone(), request).await.unwrap().status().as_u16()
    };
    assert_eq!(other().await, 200);
    drop(here);
    server.call(ADMIN, "DELETE", &path("keys", &made), "").await.expect(204);
    let revoked = std::time::Instant::now();
    while other().await != 401 {
        assert!(revoked.elapsed() < std::time::Duration::from_secs(1), "it still works after a second");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn when_a_key_was_last_used_is_written_down_beside_the_request() {
    let every = std::time::Duration::ZERO;
    let server = Server::with("used", posthaste_api::Options { key_uses_written_every: every, ..options() });
    let key = server.key(None, &["read"]).await;
    assert_eq!(server.get("/v1/keys").await.expect(200)["data"][0]["last_used_at"], json!(null));
    server.call(&key, "GET", "/v1/events", "").await.expect(200);
    while server.get("/v1/keys").await.expect(200)["data"][0]["last_used_at"].is_null() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_deleted_tenants_keys_are_gone_with_it() {
    let server = Server::new("tenant-keys");
    server.call(ADMIN, "PUT", "/v1/tenants/acme", "{}").await.expect(201);
    let key = server.key(Some("acme"), &["read"]).await;
    server.call(&key, "GET", "/v1/events", "").await.expect(200);
    server.call(ADMIN, "DELETE", "/v1/tenants/acme", "").await.expect(204);
    server.call(&key, "GET", "/v1/events", "").await.expect(401);
}

#[tokio::test]
async fn calls_are_limited_per_key_and_publishing_apart() {
    let calls = posthaste_core::bucket::RateLimit::new(1, 3).unwrap();
    let server = Server::with("rate", posthaste_api::Options { calls: Some(calls), ..options() });
    let key = server.key(None, &["read", "publish"]).await;
    for _ in 0..3 {
        server.call(&key, "GET", "/v1/events", "").await.expect(200);
    }
    let refused = server.call(&key, "GET", "/v1/events", "").await;
    assert!(refused.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() > 0);
    refused.expect(429);
    for _ in 0..5 {
        server.call(&key, "POST", "/v1/events", r#"{"type": "a", "data": 1}"#).await.expect(202);
    }
    server.get("/v1/events").await.expect(200);
}

#[tokio::test]
async fn a_tenants_administrator_sees_and_makes_keys_of_that_tenant_alone() {
    let server = Server::new("tenant-admin");
    server.key(None, &["read"]).await;
    server.key(Some("globex"), &["read"]).await;
    let admin = server.key(Some("acme"), &["admin"]).await;
    let own = server.call(&admin, "POST", "/v1/keys", r#"{"name": "x", "scopes": ["read"]}"#).await.expect(201);
    assert_eq!(own["tenant"], "acme");
    server.call(&admin, "POST", "/v1/keys", r#"{"name": "x", "scopes": ["read"], "tenant": "globex"}"#).await.expect(404);
    let listed = server.call(&admin, "GET", "/v1/keys?limit=1", "").await.expect(200);
    assert_eq!(listed["data"][0]["id"], own["id"]);
    let rest =
        server.call(&admin, "GET", &format!("/v1/keys?limit=50&cursor={}", text(&listed["next_cursor"])), "").await.expect(200);
    assert!(rest["data"].as_array().unwrap().iter().all(|key| key["tenant"] == "acme"));
    assert_eq!(rest["data"].as_array().unwrap().len(), 1);
    let audit = server.call(&admin, "GET", "/v1/audit", "").await.expect(200);
    assert!(audit["data"].as_array().unwrap().iter().all(|row| row["tenant"] == "acme"));
}
