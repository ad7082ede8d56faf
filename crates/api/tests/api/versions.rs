//! Two people who change the same thing: tenants and event types have versions as endpoints have.

use serde_json::{Value, json};

use crate::server::{ADMIN, Server};

on_both_databases! {
    a_change_of_an_old_version_is_refused
    changes_at_the_same_time_are_all_there
    of_two_who_add_the_same_type_one_is_told
}

async fn a_change_of_an_old_version_is_refused(server: Server) {
    server.call(ADMIN, "PUT", "/v1/tenants/acme", r#"{"weight": 2}"#).await.expect(201);
    server.post("/v1/event-types", r#"{"name": "a.b", "description": "one"}"#).await.expect(201);
    for (path, one, two) in [
        ("/v1/tenants/acme", r#"{"weight": 3}"#, r#"{"weight": 4}"#),
        ("/v1/event-types/a.b", r#"{"description": "two"}"#, r#"{"description": "three"}"#),
    ] {
        let read = server.get(path).await;
        let tag = read.tag();
        // What changes nothing about it changes no version either.
        server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
        assert_eq!(server.get(path).await.tag(), tag, "{path}");
        let changed = server.call_with(ADMIN, "PATCH", path, &[("if-match", &tag)], one).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
        assert_ne!(changed.tag(), tag);
        assert_eq!(server.get(path).await.tag(), changed.tag(), "what is told is what is read");
        assert_eq!(server.call_with(ADMIN, "PATCH", path, &[("if-match", &tag)], two).await.status, 412);
        assert_eq!(server.call_with(ADMIN, "DELETE", path, &[("if-match", &tag)], "").await.status, 412);
        assert_eq!(server.get(path).await.tag(), changed.tag(), "nothing was changed");
        assert_eq!(server.call_with(ADMIN, "PATCH", path, &[("if-match", "*")], two).await.status, 200);
        assert_eq!(server.call_with(ADMIN, "DELETE", path, &[("if-match", &server.get(path).await.tag())], "").await.status, 204);
    }
    let put = server.call_with(ADMIN, "PUT", "/v1/tenants/nobody", &[("if-match", "\"1\"")], "{}").await;
    assert_eq!(put.status, 412, "there is no version of what is not there");
}

async fn changes_at_the_same_time_are_all_there(server: Server) {
    server.call(ADMIN, "PUT", "/v1/tenants/acme", "{}").await.expect(201);
    server.post("/v1/event-types", r#"{"name": "a.b"}"#).await.expect(201);
    // Each changes another field, all of them at once, again and again.
    for round in 1..=5 {
        let (weight, days, text) = (json!({"weight": round}), json!({"retention_days": round}), format!("round {round}"));
        let (flight, about, urgent) =
            (json!({"max_in_flight": round}), json!({"description": text}), json!({"priority": round % 2 == 0}));
        let patch = async |path: &str, body: &Value| server.patch(path, body.to_string()).await.expect(200);
        tokio::join!(
            patch("/v1/tenants/acme", &weight),
            patch("/v1/tenants/acme", &days),
            patch("/v1/tenants/acme", &flight),
            patch("/v1/event-types/a.b", &about),
            patch("/v1/event-types/a.b", &urgent),
        );
        let tenant = server.get("/v1/tenants/acme").await.expect(200);
        assert_eq!(
            (&tenant["weight"], &tenant["retention_days"], &tenant["max_in_flight"]),
            (&json!(round), &json!(round), &json!(round)),
            "none is lost"
        );
        let event_type = server.get("/v1/event-types/a.b").await.expect(200);
        assert_eq!((&event_type["description"], &event_type["priority"]), (&json!(text), &json!(round % 2 == 0)));
    }
}

async fn of_two_who_add_the_same_type_one_is_told(server: Server) {
    let body = |text: &str| json!({"name": "a.b", "description": text}).to_string();
    let (one, two) = tokio::join!(server.post("/v1/event-types", body("one")), server.post("/v1/event-types", body("two")),);
    let mut statuses = [one.status.as_u16(), two.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409]);
    let winner = if one.status == 201 { "one" } else { "two" };
    assert_eq!(server.get("/v1/event-types/a.b").await.expect(200)["description"], winner);
}
