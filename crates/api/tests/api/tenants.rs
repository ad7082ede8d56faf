//! `/v1/tenants`.

use serde_json::json;

use crate::server::{ADMIN, Server, options, text};

#[tokio::test]
async fn a_tenant_comes_into_being_is_changed_and_goes() {
    let server = Server::new("tenants");
    server.get("/v1/tenants/acme").await.expect(404);
    server.post("/v1/events", r#"{"type": "a", "tenant": "acme", "data": 1}"#).await.expect(202);
    let born = server.get("/v1/tenants/acme").await.expect(200);
    assert_eq!(
        (&born["weight"], &born["max_in_flight"], &born["retention_days"], &born["rate_limit"]),
        (&1.into(), &256.into(), &30.into(), &json!(null))
    );
    let body = r#"{"weight": 3, "retention_days": 7, "rate_limit": {"max_per_minute": 10, "burst_capacity": 20}, "metadata": {"plan": "gold"},
        "notifications": {"emails": ["ops@acme.example"], "url": "http://127.0.0.1:8080/ops"}, "defaults": {"retry": {"max_attempts": 3}}}"#;
    let put = server.call(ADMIN, "PUT", "/v1/tenants/acme", body).await.expect(200);
    assert_eq!(
        (&put["weight"], &put["metadata"]["plan"], &put["defaults"]["retry"]["max_attempts"]),
        (&3.into(), &"gold".into(), &3.into())
    );
    assert_eq!(put["created_at"], born["created_at"]);
    let patched = server.patch("/v1/tenants/acme", r#"{"max_in_flight": 5, "rate_limit": null}"#).await.expect(200);
    assert_eq!((&patched["weight"], &patched["max_in_flight"], &patched["rate_limit"]), (&3.into(), &5.into(), &json!(null)));
    // What was read can be sent back.
    let again = server.patch("/v1/tenants/acme", patched.to_string()).await.expect(200);
    assert_eq!(again, patched);
    server.call(ADMIN, "PUT", "/v1/tenants/b.c:d", "{}").await.expect(201);
    let listed = server.get("/v1/tenants?limit=1").await.expect(200);
    assert_eq!(listed["data"][0]["id"], "acme");
    let next = server.get(&format!("/v1/tenants?limit=1&cursor={}", text(&listed["next_cursor"]))).await.expect(200);
    assert_eq!(next["data"][0]["id"], "b.c:d");
    for (body, field) in [
        (r#"{"weight": 0}"#, "weight"),
        (r#"{"max_in_flight": 100001}"#, "max_in_flight"),
        (r#"{"retention_days": 366}"#, "retention_days"),
        (r#"{"id": "other"}"#, "id"),
        (r#"{"defaults": {"retry": {"max_attempts": 0}}}"#, "defaults.retry.max_attempts"),
        (r#"{"defaults": {"nonsense": 1}}"#, "defaults.nonsense"),
        (r#"{"limits": {"max_endpoints": 0}}"#, "limits.max_endpoints"),
        (r#"{"notifications": {"emails": ["a b@c.d"]}}"#, "notifications.emails[0]"),
        (r#"{"notifications": {"url": "ftp://x.example/"}}"#, "notifications.url"),
        (r#"{"wieght": 1}"#, "wieght"),
    ] {
        server.patch("/v1/tenants/acme", body).await.refused(422, field);
    }
    server.call(ADMIN, "PUT", "/v1/tenants/a%20b", "{}").await.refused(422, "id");
    server.call(ADMIN, "DELETE", "/v1/tenants/acme", "").await.expect(204);
    server.get("/v1/tenants/acme").await.expect(404);
    server.call(ADMIN, "DELETE", "/v1/tenants/acme", "").await.expect(404);
}

#[tokio::test]
async fn where_tenants_have_to_be_made_first_nothing_makes_one_by_the_way() {
    let server = Server::with("strict-tenants", posthaste_api::Options { strict_tenants: true, ..options() });
    let event = r#"{"type": "a", "tenant": "acme", "data": 1}"#;
    server.post("/v1/events", event).await.refused(422, "tenant");
    server.post("/v1/endpoints", r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await.refused(422, "tenant");
    server.get("/v1/tenants/acme").await.expect(404);
    server.call(ADMIN, "PUT", "/v1/tenants/acme", "{}").await.expect(201);
    server.post("/v1/events", event).await.expect(202);
}
