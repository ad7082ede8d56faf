//! Portal links, and what can be done with them.

use serde_json::Value;

use crate::server::{ADMIN, Server, path, text};

async fn code(server: &Server, permissions: &str) -> String {
    let body = format!(r#"{{"tenant": "acme", "permissions": [{permissions}], "expires_in_seconds": 60}}"#);
    let link: Value = server.post("/v1/portal-links", body).await.expect(201);
    text(&link["url"]).split_once("#code=").unwrap().1.to_owned()
}

async fn token(server: &Server, permissions: &str) -> String {
    let code = serde_json::json!({"code": code(server, permissions).await});
    let started = server.call("", "POST", "/v1/portal-sessions", code.to_string()).await.expect(201);
    text(&started["token"])
}

#[tokio::test]
async fn a_portal_token_is_a_credential_with_its_permissions_for_one_tenant() {
    let server = Server::new("portal");
    let own = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    let foreign = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "globex"}"#).await;
    let view = token(&server, "\"view\"").await;
    let listed = server.call(&view, "GET", "/v1/endpoints", "").await.expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    server.call(&view, "GET", &path("endpoints", &foreign), "").await.expect(404);
    server.call(&view, "POST", &format!("{}/pause", path("endpoints", &own)), "").await.expect(403);
    server.call(&view, "POST", "/v1/events", r#"{"type": "a", "data": 1}"#).await.expect(403);
    server.call(&view, "GET", "/v1/keys", "").await.expect(403);
    let manage = token(&server, "\"view\", \"manage\"").await;
    server.call(&manage, "POST", &format!("{}/pause", path("endpoints", &own)), "").await.expect(200);
    server.call(&manage, "POST", &format!("{}/rotate-secret", path("endpoints", &own)), "").await.expect(403);
    let other_scheme = r#"{"signing": {"scheme": "standard-ed25519"}}"#;
    server.call(&manage, "PATCH", &path("endpoints", &own), other_scheme).await.expect(403);
    let made = server.call(&manage, "POST", "/v1/endpoints", r#"{"url": "http://127.0.0.1:8080/"}"#).await.expect(201);
    assert_eq!(made["tenant"], "acme");
    assert!(made.get("secret").is_none(), "not without the permission to see secrets");
    server.call(&manage, "POST", "/v1/replays", r#"{"status": ["dead"], "reason": "x", "dry_run": true}"#).await.expect(403);
    let secrets = token(&server, "\"manage\", \"secrets\", \"replay\"").await;
    let rotated = server.call(&secrets, "POST", &format!("{}/rotate-secret", path("endpoints", &own)), "").await.expect(200);
    assert!(rotated["secret"].is_string());
    server.call(&secrets, "POST", "/v1/replays", r#"{"status": ["dead"], "reason": "x", "dry_run": true}"#).await.expect(200);
    let audit = server.get("/v1/audit?tenant=acme").await.expect(200);
    assert!(text(&audit["data"][0]["actor"]).starts_with("portal:"));
    // Changed by a letter, it is nobody's.
    let mut forged = view.clone().into_bytes();
    forged[10] = if forged[10] == b'A' { b'B' } else { b'A' };
    server.call(std::str::from_utf8(&forged).unwrap(), "GET", "/v1/endpoints", "").await.expect(401);
    for (body, field) in [
        (r#"{"tenant": "acme", "permissions": []}"#, "permissions"),
        (r#"{"tenant": "acme", "permissions": ["root"]}"#, "permissions[0]"),
        (r#"{"tenant": "acme", "permissions": ["view"], "expires_in_seconds": 0}"#, "expires_in_seconds"),
        (r#"{"tenant": "acme", "permissions": ["view"], "expires_in_seconds": 604801}"#, "expires_in_seconds"),
    ] {
        server.post("/v1/portal-links", body).await.refused(422, field);
    }
    server.call(ADMIN, "POST", "/v1/portal-links", r#"{"tenant": "nobody", "permissions": ["view"]}"#).await.expect(404);
}

#[tokio::test]
async fn who_made_a_link_is_in_the_audit_log_and_the_code_is_not() {
    let server = Server::new("portal-audit");
    server.call(ADMIN, "PUT", "/v1/tenants/acme", "{}").await.expect(201);
    let code = code(&server, r#""view", "secrets""#).await;
    let audit = server.get("/v1/audit?tenant=acme&limit=1").await;
    assert!(!audit.text().contains(&code) && !audit.text().contains("phc_"), "{}", audit.text());
    let entry = &audit.expect(200)["data"][0];
    assert_eq!((&entry["action"], &entry["subject"]), (&"portal-link.create".into(), &"acme".into()));
    assert_eq!(entry["after"]["permissions"], serde_json::json!(["view", "secrets"]));
    assert!(entry["after"]["expires_at"].is_string());
    let started = server.call("", "POST", "/v1/portal-sessions", serde_json::json!({"code": code}).to_string()).await.expect(201);
    let audit = server.get("/v1/audit?tenant=acme&limit=1").await;
    assert!(!audit.text().contains("phs_"), "{}", audit.text());
    let entry = &audit.expect(200)["data"][0];
    assert_eq!((&entry["action"], &entry["subject"]), (&"portal-session.start".into(), &started["id"]));
}
