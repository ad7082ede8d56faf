//! What belongs to somebody else is the same as nothing, to the byte: over every route, every kind of id and every place that
//! an id can stand in, from the table that the router is made of.

use serde_json::{Value, json};

use crate::owner::Owner;
use crate::server::{ADMIN, Answer, Server, path, text};

/// Ids of things that are there and belong to `victim`, and of things like them that are not.
struct Ids {
    kind: &'static str,
    foreign: String,
    unknown: &'static str,
}

async fn victim(server: &Server) -> (Vec<Ids>, Vec<String>) {
    let endpoint = server
        .endpoint(r#"{"url": "http://127.0.0.1:8080/canary-url", "tenant": "victim", "uid": "canary-uid", "description": "canary-description"}"#)
        .await;
    let body =
        r#"{"type": "canary.type", "tenant": "victim", "data": "canary-data", "id": "canary-event", "labels": ["canary-label"]}"#;
    let event = server.post("/v1/events", body).await.expect(202);
    server.post("/v1/events", r#"{"type": "a", "tenant": "victim", "data": 1}"#).await.expect(202);
    let rows = server.deliveries().await;
    Owner::of(&server.store).await.attempt(&rows[0], 404).await;
    let replay =
        server.post("/v1/replays", r#"{"tenant": "victim", "status": ["dead"], "reason": "canary-reason"}"#).await.expect(202);
    let key = server.post("/v1/keys", r#"{"name": "canary-key", "tenant": "victim", "scopes": ["read"]}"#).await.expect(201);
    let ids = vec![
        Ids { kind: "endpoint", foreign: text(&endpoint["id"]), unknown: "ep_01knp9e1ege0094d2pf2dbsqqg" },
        Ids { kind: "event", foreign: text(&event["id"]), unknown: "nobodys-event" },
        Ids { kind: "delivery", foreign: rows[1].id.to_string(), unknown: "dlv_01knp9e1ege0094d2pf2dbsqqg" },
        Ids { kind: "dead letter", foreign: rows[0].id.to_string(), unknown: "dlv_01knp9e1ege0094d2pf2dbsqqg" },
        Ids { kind: "replay", foreign: text(&replay["id"]), unknown: "rpl_01knp9e1ege0094d2pf2dbsqqg" },
        Ids { kind: "key", foreign: text(&key["id"]), unknown: "key_01knp9e1ege0094d2pf2dbsqqg" },
        Ids { kind: "tenant", foreign: "victim".to_owned(), unknown: "nobody" },
        Ids { kind: "uid", foreign: "canary-uid".to_owned(), unknown: "nobodys-uid" },
    ];
    let watched = vec![
        path("endpoints", &endpoint),
        "/v1/events/canary-event?tenant=victim".to_owned(),
        format!("/v1/deliveries/{}", rows[0].id),
        format!("/v1/deliveries/{}", rows[1].id),
        path("replays", &replay),
        "/v1/tenants/victim".to_owned(),
        "/v1/endpoints?tenant=victim".to_owned(),
        "/v1/events?tenant=victim".to_owned(),
        "/v1/deliveries?tenant=victim".to_owned(),
        "/v1/keys".to_owned(),
    ];
    (ids, watched)
}

/// How all of the victim's things look to the operator.
async fn snapshot(server: &Server, watched: &[String]) -> Vec<Value> {
    let mut all = Vec::new();
    for path in watched {
        let mut read = server.get(path).await.expect(200);
        let shown = read.as_object_mut().unwrap();
        shown.remove("as_of");
        // What is about to be sent is estimated to go now.
        shown.remove("estimated_at");
        if path == "/v1/keys" {
            // The attacker's own key may have been used meanwhile.
            read["data"].as_array_mut().unwrap().retain(|key| key["tenant"] == "victim");
        }
        all.push(read);
    }
    all
}

/// A list says when it was read.
fn without_time(answer: &Answer) -> String {
    let text = answer.text();
    match text.split_once("\"as_of\":\"") {
        Some((before, rest)) => format!("{before}{}", rest.split_once('"').unwrap().1),
        None => text,
    }
}

fn is_nothing(foreign: &Answer, unknown: &Answer, what: &str) {
    assert_eq!(foreign.status, unknown.status, "{what}: {} and {}", foreign.text(), unknown.text());
    assert_eq!(without_time(foreign), without_time(unknown), "{what}");
    assert!(!foreign.text().contains("canary"), "{what}: {}", foreign.text());
    assert!(!format!("{:?}", foreign.headers).contains("canary"), "{what}");
}

async fn i44_somebody_elses_things_are_not_there(server: Server) {
    let (ids, watched) = victim(&server).await;
    server.call(ADMIN, "PUT", "/v1/tenants/attacker", "{}").await.expect(201);
    let attacker = server.key(Some("attacker"), &["admin"]).await;
    let before = snapshot(&server, &watched).await;
    let mut compared = 0;
    for route in posthaste_api::routes().into_iter().filter(|route| route.needs_key) {
        let method = route.method.as_str();
        // A body that would do something, if the id were one's own.
        let body = match route.operation {
            "changeEndpoint" | "putEndpoint" => r#"{"url": "http://127.0.0.1:8080/taken-over"}"#,
            _ if route.takes_body => "{}",
            _ => "",
        };
        if route.path.contains('{') {
            for ids in &ids {
                let at = |id: &str| {
                    let (head, rest) = route.path.split_once('{').unwrap();
                    format!("{head}{id}{}", rest.split_once('}').unwrap().1)
                };
                // By a uid one reaches only one's own.
                if route.operation == "putEndpoint" {
                    continue;
                }
                let foreign = server.call(&attacker, method, &at(&ids.foreign), body).await;
                let unknown = server.call(&attacker, method, &at(ids.unknown), body).await;
                is_nothing(&foreign, &unknown, &format!("{method} {} with a {}", route.path, ids.kind));
                let is_about_everybody = route.is_server_wide || route.operation == "readEventType";
                assert!(
                    foreign.status == 404 || (is_about_everybody && foreign.status == 403),
                    "{method} {}: {}",
                    route.path,
                    foreign.text()
                );
                compared += 1;
            }
        }
        for (parameter, kind) in [("tenant", "tenant"), ("endpoint", "endpoint"), ("event", "event"), ("uid", "uid")] {
            if !route.query.contains(&parameter) {
                continue;
            }
            let ids = ids.iter().find(|ids| ids.kind == kind).unwrap();
            let range = if route.operation == "readStats" { "&from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z" } else { "" };
            let own_path = route.path.replace("{id}", "canary-event").replace("uid:{uid}", "uid:mine");
            let at = |id: &str| format!("{own_path}?{parameter}={id}{range}");
            if route.operation == "stream" && parameter != "tenant" {
                continue;
            }
            let foreign = server.call(&attacker, method, &at(&ids.foreign), body).await;
            let unknown = server.call(&attacker, method, &at(ids.unknown), body).await;
            is_nothing(&foreign, &unknown, &format!("{method} {} with ?{parameter}=", route.path));
            compared += 1;
        }
    }
    // And where a body names something.
    let endpoint = &ids[0];
    let delivery = &ids[2];
    for (path, body) in [
        ("/v1/events", r#"{"type": "a", "data": 1, "tenant": "ID"}"#),
        ("/v1/events/batch", r#"[{"type": "a", "data": 1, "tenant": "ID"}]"#),
        ("/v1/endpoints", r#"{"url": "http://127.0.0.1:8080/", "tenant": "ID"}"#),
        ("/v1/replays", r#"{"tenant": "ID", "status": ["dead"], "reason": "x", "dry_run": true}"#),
        ("/v1/keys", r#"{"name": "x", "scopes": ["read"], "tenant": "ID"}"#),
        ("/v1/portal-links", r#"{"tenant": "ID", "permissions": ["view"]}"#),
        ("/v1/filters/test", r#"{"filter": {}, "event": {"type": "a", "data": 1, "tenant": "ID"}}"#),
    ] {
        let foreign = server.call(&attacker, "POST", path, body.replace("ID", "victim")).await;
        let unknown = server.call(&attacker, "POST", path, body.replace("ID", "nobody")).await;
        is_nothing(&foreign, &unknown, path);
        compared += 1;
    }
    for (ids, body) in [
        (endpoint, r#"{"endpoint": "ID", "reason": "x", "dry_run": true}"#),
        (endpoint, r#"{"endpoint": "ID", "reason": "x", "missing": true, "dry_run": true}"#),
        (delivery, r#"{"ids": ["ID"], "reason": "x", "dry_run": true}"#),
        (&ids[3], r#"{"ids": ["ID"], "reason": "x", "dry_run": true}"#),
    ] {
        let foreign = server.call(&attacker, "POST", "/v1/replays", body.replace("ID", &ids.foreign)).await;
        let unknown = server.call(&attacker, "POST", "/v1/replays", body.replace("ID", ids.unknown)).await;
        is_nothing(&foreign, &unknown, body);
        compared += 1;
    }
    assert!(compared > 200, "{compared}");
    assert_eq!(snapshot(&server, &watched).await, before, "and nothing of it has changed");
    // A replay of one's own never reaches another's deliveries.
    let all =
        server.call(&attacker, "POST", "/v1/replays", r#"{"status": ["dead"], "reason": "x", "dry_run": true}"#).await.expect(200);
    let skipped = json!({"erased": 0, "already_redelivered": 0, "unsubscribed": 0});
    assert_eq!(all, json!({"matched": 0, "skipped": skipped, "remaining": 0}));
    // The same key of another tenant is another replay.
    let body = r#"{"status": ["dead"], "reason": "canary-reason"}"#;
    server.call_with(ADMIN, "POST", "/v1/replays", &[("idempotency-key", "same")], body).await.expect(202);
    let own = server.call_with(&attacker, "POST", "/v1/replays", &[("idempotency-key", "same")], body).await.expect(202);
    assert_eq!(own["tenant"], "attacker");
}

on_both_databases! {
    i44_somebody_elses_things_are_not_there
}
