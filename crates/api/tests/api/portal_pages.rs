//! The portal's pages: its cookie, who may frame it, and who may call the API from pages of their own.

use axum::body::Body;
use http::Request;
use posthaste_api::Options;
use serde_json::{Value, json};

use crate::server::{Answer, Server, options, text};

const APP: &str = "https://app.example.com";
const OWN: &str = "https://hooks.example.com";

fn framed() -> Options {
    Options { public_url: OWN.to_owned(), portal_origins: vec![APP.to_owned()], ..options() }
}

async fn send(server: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    server.send(request.header("content-type", "application/json").body(body).unwrap()).await
}

async fn code(server: &Server, appearance: &Value) -> String {
    let body = json!({"tenant": "acme", "permissions": ["view", "manage"], "appearance": appearance}).to_string();
    text(&server.post("/v1/portal-links", body).await.expect(201)["url"]).split_once("#code=").unwrap().1.to_owned()
}

/// The cookie that an answer sets, as a browser sends it back.
fn kept(answer: &Answer) -> String {
    answer.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned()
}

async fn a_link_is_good_once_and_goes_on_only_where_its_session_lives(server: Server) {
    for tenant in ["acme", "globex"] {
        server.endpoint(&json!({"url": "http://127.0.0.1:8080/", "tenant": tenant}).to_string()).await;
    }
    let looks = json!({"name": "Example Ltd", "primary_color": "#aa3300", "theme": "dark"});
    let code = code(&server, &looks).await;
    let exchange = json!({"code": code, "cookie": true});
    // Nobody else's page may log its readers in.
    send(&server, "POST", "/v1/portal-sessions", &[("origin", "https://evil.example")], &exchange).await.expect(403);
    let begun = send(&server, "POST", "/v1/portal-sessions", &[("origin", OWN)], &exchange).await;
    let cookie = begun.headers["set-cookie"].to_str().unwrap().to_owned();
    for part in ["__Host-posthaste-portal=phs_", "HttpOnly", "SameSite=None", "Secure", "Partitioned", "Path=/"] {
        assert!(cookie.contains(part), "{part} in {cookie}");
    }
    let kept = kept(&begun);
    assert!(begun.expect(201).get("token").is_none(), "it is in the cookie alone");

    let portal = [("cookie", kept.as_str()), ("posthaste-session", "portal")];
    let session = send(&server, "GET", "/v1/sessions", &portal, &Value::Null).await.expect(200);
    assert_eq!((&session["tenant"], &session["appearance"]), (&json!("acme"), &looks));
    assert_eq!(session["permissions"], json!(["view", "manage"]));
    let listed = send(&server, "GET", "/v1/endpoints", &portal, &Value::Null).await.expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "its own tenant's alone");
    // Without the header it is not the dashboard's cookie.
    send(&server, "GET", "/v1/sessions", &portal[..1], &Value::Null).await.expect(401);
    // What changes something needs our own origin.
    let id = text(&listed["data"][0]["id"]);
    let pause = format!("/v1/endpoints/{id}/pause");
    for (origin, status) in [("https://evil.example", 403), (APP, 403), (OWN, 200)] {
        send(&server, "POST", &pause, &[portal[0], portal[1], ("origin", origin)], &json!({})).await.expect(status);
    }

    // The same link again: here it goes on, elsewhere it does not.
    let again = send(&server, "POST", "/v1/portal-sessions", &[("origin", OWN), portal[0]], &exchange).await.expect(201);
    assert_eq!(again["id"], session_id(&server).await);
    send(&server, "POST", "/v1/portal-sessions", &[("origin", OWN)], &exchange).await.expect(401);
    send(&server, "POST", "/v1/portal-sessions", &[], &json!({"code": code})).await.expect(401);

    let ended = send(&server, "DELETE", "/v1/sessions", &[portal[0], portal[1], ("origin", OWN)], &Value::Null).await;
    assert!(ended.headers["set-cookie"].to_str().unwrap().starts_with("__Host-posthaste-portal=;"));
    ended.expect(204);
    send(&server, "GET", "/v1/sessions", &portal, &Value::Null).await.expect(401);
    send(&server, "POST", "/v1/portal-sessions", &[("origin", OWN), portal[0]], &exchange).await.expect(401);
}

async fn session_id(server: &Server) -> Value {
    server.get("/v1/portal-sessions?tenant=acme").await.expect(200)["data"][0]["id"].clone()
}

#[tokio::test]
async fn links_on_sqlite() {
    a_link_is_good_once_and_goes_on_only_where_its_session_lives(Server::with("portal-pages", framed())).await;
}

#[tokio::test]
async fn links_on_postgres() {
    a_link_is_good_once_and_goes_on_only_where_its_session_lives(Server::on_postgres_with(framed()).await).await;
}

#[tokio::test]
async fn an_appearance_is_checked_before_it_is_kept() {
    let server = Server::with("portal-looks", framed());
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    for (appearance, field) in [
        (json!({"name": ""}), "appearance.name"),
        (json!({"name": "a\u{7}b"}), "appearance.name"),
        (json!({"primary_color": "red"}), "appearance.primary_color"),
        (json!({"primary_color": "#fff}*{"}), "appearance.primary_color"),
        (json!({"logo_url": "https://evil.example/logo.png"}), "appearance.logo_url"),
        (json!({"logo_url": "https://app.example.com.evil.example/logo.png"}), "appearance.logo_url"),
        (json!({"logo_url": "javascript:alert(1)"}), "appearance.logo_url"),
    ] {
        let body = json!({"tenant": "acme", "permissions": ["view"], "appearance": appearance}).to_string();
        server.post("/v1/portal-links", body).await.refused(422, field);
    }
    code(&server, &json!({"logo_url": "https://app.example.com/logo.png", "font": "serif"})).await;
}

#[tokio::test]
async fn only_the_operators_own_pages_frame_the_portal_and_read_answers() {
    let closed = Server::new("portal-closed");
    for path in ["/portal", "/portal/endpoints"] {
        let page = closed.get(path).await;
        assert_eq!(page.headers["x-frame-options"], "DENY");
        assert!(page.headers["content-security-policy"].to_str().unwrap().contains("frame-ancestors 'none'"));
        page.expect(200);
    }
    let server = Server::with("portal-framed", framed());
    let page = server.get("/portal").await;
    assert!(!page.headers.contains_key("x-frame-options"));
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("frame-ancestors https://app.example.com;") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(server.get("/").await.headers["x-frame-options"], "DENY", "the dashboard is nobody's to frame");
    server.get("/portalx").await.expect(404);
    let script = server.get("/portal/embed.js").await;
    assert!(script.headers["content-type"].to_str().unwrap().starts_with("text/javascript"));
    assert!(script.text().contains("customElements.define(\"posthaste-portal\""));

    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    let ask = [("origin", APP), ("access-control-request-method", "GET")];
    let preflight = send(&server, "OPTIONS", "/v1/endpoints", &ask, &Value::Null).await;
    assert_eq!(preflight.headers["access-control-allow-origin"], APP);
    assert!(!preflight.headers.contains_key("access-control-allow-credentials"));
    preflight.expect(204);
    let ask = [("origin", "https://evil.example"), ("access-control-request-method", "GET")];
    send(&server, "OPTIONS", "/v1/endpoints", &ask, &Value::Null).await.expect(405);
    let code = code(&server, &json!({})).await;
    let begun = send(&server, "POST", "/v1/portal-sessions", &[("origin", APP)], &json!({"code": code})).await;
    assert_eq!(begun.headers["access-control-allow-origin"], APP);
    let token = format!("Bearer {}", text(&begun.expect(201)["token"]));
    for (origin, is_read) in [(APP, true), ("https://evil.example", false)] {
        let listed = send(&server, "GET", "/v1/endpoints", &[("origin", origin), ("authorization", &token)], &Value::Null).await;
        assert_eq!(listed.headers.contains_key("access-control-allow-origin"), is_read, "{origin}");
        listed.expect(200);
    }
    // A key is not for pages.
    let key = format!("Bearer {}", crate::server::ADMIN);
    let listed = send(&server, "GET", "/v1/endpoints", &[("origin", APP), ("authorization", &key)], &Value::Null).await;
    assert!(!listed.headers.contains_key("access-control-allow-origin"));
}
