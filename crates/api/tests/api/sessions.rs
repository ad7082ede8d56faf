//! Sessions of the dashboard: a key exchanged for a cookie.

use axum::body::Body;
use http::Request;
use posthaste_api::{Options, SealingKey};
use serde_json::Value;

use crate::server::{ADMIN, Answer, Server, options, path, text};

const OWN: &str = "http://127.0.0.1:8080";

async fn log_in(server: &Server, key: &str) -> (Answer, String) {
    let answer = server.call(key, "POST", "/v1/sessions", "").await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let cookie = answer.headers["set-cookie"].to_str().unwrap().to_owned();
    let pair = cookie.split(';').next().unwrap().to_owned();
    (answer, pair)
}

/// A call with a cookie, as a browser makes it.
async fn call(server: &Server, cookie: &str, method: &str, path: &str, origin: Option<&str>) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("cookie", format!("theme=dark; {cookie}"));
    if let Some(origin) = origin {
        request = request.header("origin", origin).header("host", "127.0.0.1:8080");
    }
    server.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn a_session_may_do_what_its_key_may_do() {
    let server = Server::new("sessions");
    let own = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    let other = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "globex"}"#).await;
    let key = server.key(Some("acme"), &["read"]).await;
    let (answer, cookie) = log_in(&server, &key).await;
    assert_eq!(answer.json["tenant"], "acme");
    assert_eq!(answer.json["scopes"], serde_json::json!(["read"]));
    assert!(!answer.text().contains(&key));
    let set = answer.headers["set-cookie"].to_str().unwrap();
    for part in ["Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=86400"] {
        assert!(set.contains(part), "{set}");
    }
    assert!(!set.contains("Secure"), "there is no TLS here: {set}");
    let listed = call(&server, &cookie, "GET", "/v1/endpoints", None).await.expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    call(&server, &cookie, "GET", &path("endpoints", &other), None).await.expect(404);
    let pause = format!("{}/pause", path("endpoints", &own));
    call(&server, &cookie, "POST", &pause, Some(OWN)).await.expect(403);
    let shown = call(&server, &cookie, "GET", "/v1/sessions", None).await.expect(200);
    assert_eq!(shown["expires_at"], answer.json["expires_at"]);
    let (_, admin) = log_in(&server, ADMIN).await;
    call(&server, &admin, "POST", &pause, Some(OWN)).await.expect(200);
    let audit = server.get("/v1/audit?limit=1").await.expect(200);
    assert_eq!(audit["data"][0]["actor"], "admin key");
}

#[tokio::test]
async fn a_call_with_a_cookie_that_changes_something_needs_the_origin_of_this_server() {
    let server = Server::new("session-origin");
    let endpoint = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    let (_, cookie) = log_in(&server, ADMIN).await;
    let pause = format!("{}/pause", path("endpoints", &endpoint));
    for origin in [None, Some("https://evil.example"), Some("null"), Some("http://127.0.0.1:8081")] {
        let refused = call(&server, &cookie, "POST", &pause, origin).await;
        assert_eq!(refused.status, 403, "{origin:?}");
        call(&server, &cookie, "DELETE", &path("endpoints", &endpoint), origin).await.expect(403);
    }
    assert_eq!(server.get(&path("endpoints", &endpoint)).await.json["status"], "active");
    call(&server, &cookie, "POST", &pause, Some(OWN)).await.expect(200);
    call(&server, &cookie, "DELETE", "/v1/sessions", Some("https://evil.example")).await.expect(403);
    let (_, other) = log_in(&server, ADMIN).await;
    let ended = call(&server, &cookie, "DELETE", "/v1/sessions", Some(OWN)).await;
    assert_eq!(ended.status, 204);
    call(&server, &cookie, "GET", "/v1/sessions", None).await.expect(401);
    call(&server, &other, "GET", "/v1/sessions", None).await.expect(200);
    assert!(ended.headers["set-cookie"].to_str().unwrap().starts_with("posthaste-session=; "));
    assert!(ended.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
}

async fn a_session_ends_with_its_key(server: Server) {
    let made: Value = server.post("/v1/keys", r#"{"name": "a person", "scopes": ["read"]}"#).await.expect(201);
    let (_, cookie) = log_in(&server, &text(&made["key"])).await;
    call(&server, &cookie, "GET", "/v1/endpoints", None).await.expect(200);
    server.call(ADMIN, "DELETE", &path("keys", &made), "").await;
    call(&server, &cookie, "GET", "/v1/endpoints", None).await.expect(401);
}

on_both_databases! { a_session_ends_with_its_key }

#[tokio::test]
async fn only_a_key_makes_a_session_and_a_changed_cookie_is_none() {
    let options = Options { sealing_key: SealingKey([7; 32]), ..options() };
    let server = Server::with("session-forged", options.clone());
    server.call(ADMIN, "PUT", "/v1/tenants/acme", "{}").await.expect(201);
    let (_, cookie) = log_in(&server, ADMIN).await;
    let mut forged = cookie.clone().into_bytes();
    let at = forged.len() - 10;
    forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
    call(&server, std::str::from_utf8(&forged).unwrap(), "GET", "/v1/endpoints", None).await.expect(401);
    call(&server, "posthaste-session=", "GET", "/v1/endpoints", None).await.expect(401);
    call(&server, &cookie, "POST", "/v1/sessions", Some(OWN)).await.expect(403);
    let publish = server.key(None, &["publish"]).await;
    server.call(&publish, "POST", "/v1/sessions", "").await.expect(403);
    // Another admin key, the same sealing key: sessions of the old one have ended.
    let changed = posthaste_api::router(server.store.clone(), options, "phk_another-admin-key-of-tests");
    let request = Request::get("/v1/endpoints").header("cookie", &cookie).body(Body::empty()).unwrap();
    let answer = tower::ServiceExt::oneshot(changed, request).await.unwrap();
    assert_eq!(answer.status(), 401);
}

#[tokio::test]
async fn behind_tls_a_session_is_secure() {
    let options = Options { public_url: "https://hooks.example.com".to_owned(), ..options() };
    let server = Server::with("session-tls", options);
    let (answer, cookie) = log_in(&server, ADMIN).await;
    assert!(answer.headers["set-cookie"].to_str().unwrap().ends_with("; Secure"));
    assert!(cookie.starts_with("__Host-posthaste-session="), "{cookie}");
    call(&server, &cookie, "DELETE", "/v1/sessions", Some("https://hooks.example.com")).await.expect(204);
}
