//! Things that were said and were not so, each on both databases.

use serde_json::{Value, json};

use crate::owner::Owner;
use crate::server::{ADMIN, Server, path, text};

async fn both(name: &str) -> [Server; 2] {
    [Server::new(name), Server::on_postgres().await]
}

fn ids(list: &Value) -> Vec<String> {
    list["data"].as_array().unwrap().iter().map(|row| text(&row["id"])).collect()
}

#[tokio::test]
async fn an_endpoint_is_found_changed_and_deleted_by_its_uid() {
    for server in both("smaller-uid").await {
        let made = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme", "uid": "billing"}"#).await;
        let other = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "uid": "billing"}"#).await;
        let named = "/v1/endpoints/uid:billing?tenant=acme";
        assert_eq!(server.get(named).await.expect(200)["id"], made["id"]);
        assert_eq!(server.get("/v1/endpoints/uid:billing").await.expect(200)["id"], other["id"], "the tenant is `default`");
        assert_eq!(server.patch(named, r#"{"description": "by its uid"}"#).await.expect(200)["description"], "by its uid");
        let paused = server.post("/v1/endpoints/uid:billing/pause?tenant=acme", "").await.expect(200);
        assert_eq!((&paused["id"], &paused["status"]), (&made["id"], &"paused".into()));
        // A key of the tenant needs no `?tenant=`, and one of another tenant finds nothing.
        let (own, others) = (server.key(Some("acme"), &["read"]).await, server.key(Some("globex"), &["read"]).await);
        assert_eq!(server.call(&own, "GET", "/v1/endpoints/uid:billing", "").await.expect(200)["id"], made["id"]);
        for named in ["/v1/endpoints/uid:billing", "/v1/endpoints/uid:billing?tenant=acme", "/v1/endpoints/uid:a%20b"] {
            server.call(&others, "GET", named, "").await.expect(404);
        }
        assert_eq!(server.call(ADMIN, "DELETE", named, "").await.status, 204);
        server.get(named).await.expect(404);
        server.get(&path("endpoints", &made)).await.expect(404);
        server.get(&path("endpoints", &other)).await.expect(200);
    }
}

#[tokio::test]
async fn lists_are_narrowed_by_several_statuses_type_patterns_and_labels() {
    for server in both("smaller-lists").await {
        server.endpoint(r#"{"url": "http://127.0.0.1:8080/"}"#).await;
        let mut events = Vec::new();
        for (name, labels) in [("invoice.paid", json!(["eu"])), ("invoice.sent", json!(["eu", "vip"])), ("user.made", json!([]))] {
            let event = json!({"type": name, "data": 1, "labels": labels}).to_string();
            events.push(text(&server.post("/v1/events", event).await.expect(202)["id"]));
        }
        let owner = Owner::of(&server.store).await;
        let mut rows = server.deliveries().await;
        rows.sort_by_key(|row| row.seq);
        owner.attempt(&rows[0], 200).await;
        owner.attempt(&rows[1], 404).await;
        let list = async |query: &str| ids(&server.get(query).await.expect(200)).into_iter().rev().collect::<Vec<_>>();
        for (query, wanted) in [
            ("status=delivered,dead", &[0, 1][..]),
            ("status=pending,delivering,scheduled", &[2]),
            ("status=dead", &[1]),
            ("type=invoice.*", &[0, 1]),
            ("type=user.made,invoice.sent", &[1, 2]),
            ("type=*", &[0, 1, 2]),
            ("labels=eu", &[0, 1]),
            ("labels=eu,vip", &[1]),
            ("labels=nobody", &[]),
            ("labels=eu&type=*.sent,invoice.sent&status=dead,delivered", &[1]),
        ] {
            let found = server.get(&format!("/v1/deliveries?{query}")).await;
            if query.contains("*.sent") {
                found.refused(422, "type");
                continue;
            }
            let found: Vec<String> = ids(&found.expect(200)).into_iter().rev().collect();
            assert_eq!(found, wanted.iter().map(|place| rows[*place].id.to_string()).collect::<Vec<_>>(), "{query}");
            if !query.contains("status") {
                let wanted: Vec<String> = wanted.iter().map(|place| events[*place].clone()).collect();
                assert_eq!(list(&format!("/v1/events?{query}")).await, wanted, "{query}");
            }
        }
        assert_eq!(ids(&server.get("/v1/dead-letters?type=invoice.*&labels=vip").await.expect(200)).len(), 1);
        server.get("/v1/deliveries?status=dead,gone").await.refused(422, "status");
    }
}

#[tokio::test]
async fn a_conflict_says_by_what_and_with_which_event() {
    for server in both("smaller-conflict").await {
        let publish = async |body: Value| server.post("/v1/events", body.to_string()).await;
        publish(json!({"type": "a", "data": 1, "id": "first"})).await.expect(202);
        let second = publish(json!({"type": "a", "data": 1, "idempotency_key": "k"})).await.expect(202);
        let by_id = text(&publish(json!({"type": "a", "data": 2, "id": "first"})).await.expect(409)["detail"]);
        assert!(by_id.contains("same id ") && by_id.contains("`first`"), "{by_id}");
        let by_key = text(&publish(json!({"type": "a", "data": 2, "idempotency_key": "k"})).await.expect(409)["detail"]);
        assert!(by_key.contains("same idempotency key ") && by_key.contains(&text(&second["id"])), "{by_key}");
        // Within one batch, too.
        let batch = json!([{"type": "b", "data": 1, "id": "twice"}, {"type": "b", "data": 2, "id": "twice"}]).to_string();
        let answer = server.post("/v1/events/batch", batch).await.expect(202);
        let detail = text(&answer["results"][1]["error"]["detail"]);
        assert!(detail.contains("same id ") && detail.contains("`twice`"), "{answer}");
    }
}

#[tokio::test]
async fn cancelling_an_event_that_matched_no_endpoint_is_done() {
    for server in both("smaller-cancel").await {
        let _owner = Owner::of(&server.store).await;
        let made = server.post("/v1/events", r#"{"type": "a", "data": 1}"#).await.expect(202);
        assert_eq!(made["deliveries"], 0);
        let cancelled = server.post(&format!("{}/cancel", path("events", &made)), "").await.expect(200);
        assert_eq!(cancelled["deliveries"]["cancelled"], 0, "{cancelled}");
    }
}

#[tokio::test]
async fn a_type_that_the_endpoint_does_not_want_any_more_is_not_retried() {
    for server in both("smaller-retry").await {
        let endpoint = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "event_types": ["a", "b"]}"#).await;
        server.post("/v1/events", r#"{"type": "a", "data": 1}"#).await.expect(202);
        let owner = Owner::of(&server.store).await;
        let row = server.deliveries().await.remove(0);
        owner.attempt(&row, 404).await;
        server.patch(&path("endpoints", &endpoint), r#"{"event_types": ["b"]}"#).await.expect(200);
        for retry in [format!("/v1/deliveries/{}/retry", row.id), format!("/v1/dead-letters/{}/retry", row.id)] {
            let told = server.post(&retry, "").await.expect(409);
            assert!(text(&told["detail"]).contains("does not subscribe"), "{told}");
        }
        assert_eq!(server.deliveries().await.len(), 1);
        server.patch(&path("endpoints", &endpoint), r#"{"event_types": ["a"]}"#).await.expect(200);
        server.post(&format!("/v1/deliveries/{}/retry", row.id), "").await.expect(202);
    }
}

#[tokio::test]
async fn the_document_says_which_scope_each_operation_needs() {
    let server = Server::new("smaller-scopes");
    let document = server.get("/openapi.json").await.expect(200);
    let mut seen = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for operation in operations.as_object().unwrap().values() {
            let security = operation["security"].as_array().unwrap();
            if let Some(scopes) = security.first().map(|one| one["key"].as_array().unwrap()) {
                assert_eq!(scopes.len(), 1, "{path}");
                assert_eq!(scopes[0], operation["x-scope"], "{path}");
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen}");
    assert_eq!(document["paths"]["/v1/events"]["post"]["security"], json!([{"key": ["publish"]}]));
}

#[tokio::test]
async fn the_audit_log_says_what_was_revoked_and_is_narrowed_by_who_what_and_when() {
    for server in both("smaller-audit").await {
        let made = server.post("/v1/keys", r#"{"name": "of acme", "tenant": "acme", "scopes": ["read"]}"#).await.expect(201);
        server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
        assert_eq!(server.call(ADMIN, "DELETE", &path("keys", &made), "").await.status, 204);
        let admin = server.post("/v1/keys", r#"{"name": "another admin", "scopes": ["admin", "manage"]}"#).await.expect(201);
        let endpoint =
            server.call(&text(&admin["key"]), "POST", "/v1/endpoints", r#"{"url": "http://127.0.0.1:8080/"}"#).await.expect(201);
        let found = async |query: &str| server.get(&format!("/v1/audit?{query}")).await.expect(200)["data"].clone();
        let revoked = found("action=key.revoke").await;
        assert_eq!(revoked.as_array().unwrap().len(), 1);
        let revoked = &revoked[0];
        assert_eq!((&revoked["tenant"], &revoked["subject"]), (&"acme".into(), &made["id"]));
        let before = &revoked["before"];
        assert_eq!((&before["name"], &before["tenant"], &before["scopes"]), (&"of acme".into(), &"acme".into(), &json!(["read"])));
        assert!(!revoked.to_string().contains(&text(&made["key"])), "never the key itself");
        let actions = async |query: &str| {
            let rows = found(query).await;
            rows.as_array().unwrap().iter().map(|row| text(&row["action"])).collect::<Vec<_>>()
        };
        assert_eq!(actions("action=key.*").await, ["key.create", "key.revoke", "key.create"]);
        assert_eq!(actions("action=endpoint.create,key.revoke&tenant=acme").await, ["key.revoke", "endpoint.create"]);
        assert_eq!(actions(&format!("actor={}", text(&admin["id"]))).await, ["endpoint.create"]);
        assert_eq!(actions(&format!("resource={}", text(&endpoint["id"]))).await, ["endpoint.create"]);
        assert_eq!(actions("from=2999-01-01T00:00:00Z").await, [""; 0]);
        assert_eq!(actions("to=2020-01-01T00:00:00Z").await, [""; 0]);
        assert_eq!(actions("from=2020-01-01T00:00:00Z&to=2999-01-01T00:00:00Z").await.len(), 5);
        // Page by page, each entry once.
        let (mut seen, mut query) = (0, "action=key.*&limit=1".to_owned());
        loop {
            let page = server.get(&format!("/v1/audit?{query}")).await.expect(200);
            seen += page["data"].as_array().unwrap().len();
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            query = format!("action=key.*&limit=1&cursor={cursor}");
        }
        assert_eq!(seen, 3);
        server.call(ADMIN, "DELETE", "/v1/keys/key_01m7p79qmce2av8d6h2hcedfxn", "").await.expect(404);
    }
}

#[tokio::test]
async fn every_list_says_as_of_when_it_is_true() {
    for server in both("smaller-as-of").await {
        server.endpoint(r#"{"url": "http://127.0.0.1:8080/"}"#).await;
        server.post("/v1/events", r#"{"type": "a", "data": 1}"#).await.expect(202);
        let document = server.get("/openapi.json").await.expect(200);
        let mut seen = 0;
        for (path, operations) in document["paths"].as_object().unwrap() {
            let schema = &operations["get"]["responses"]["200"]["content"]["application/json"]["schema"];
            if schema["properties"]["next_cursor"].is_null() {
                continue;
            }
            let named = path.replace("{id}", &server.deliveries().await[0].id.to_string());
            let before = server.store.now();
            let list = server.get(&named).await.expect(200);
            let as_of = posthaste_core::time::Timestamp::parse(&text(&list["as_of"])).unwrap();
            assert!(before <= as_of && as_of <= server.store.now(), "{path}: {list}");
            seen += 1;
        }
        assert!(seen >= 9, "{seen}");
        let stranger = server.key(Some("globex"), &["read"]).await;
        let empty = server.call(&stranger, "GET", "/v1/deliveries?tenant=acme", "").await.expect(200);
        assert!(empty["as_of"].is_string(), "{empty}");
    }
}

#[tokio::test]
async fn a_delivery_with_a_recorded_failure_is_not_shown_as_delivering() {
    for server in both("smaller-delivering").await {
        server.endpoint(r#"{"url": "http://127.0.0.1:8080/"}"#).await;
        server.post("/v1/events", r#"{"type": "a", "data": 1}"#).await.expect(202);
        let owner = Owner::of(&server.store).await;
        let row = server.deliveries().await.remove(0);
        let shown = |at| posthaste_store::LaneSnapshot {
            in_flight: vec![row.id],
            ..posthaste_store::LaneSnapshot::unknown(row.endpoint, at)
        };
        let delivery = format!("/v1/deliveries/{}", row.id);
        server.store.publish_lanes(vec![shown(server.store.now())]).await.unwrap();
        assert_eq!(server.get(&delivery).await.expect(200)["status"], "delivering");
        // The failure is recorded before its owner is seen again.
        let due = server.store.now() + std::time::Duration::from_secs(30);
        owner.attempt_again_at(&row, 503, due).await;
        let read = server.get(&delivery).await.expect(200);
        assert_eq!(
            (&read["status"], &read["hold_reason"], &read["attempt_count"]),
            (&"scheduled".into(), &"retry".into(), &1.into())
        );
        assert_eq!(server.get("/v1/deliveries?status=delivering").await.expect(200)["data"], json!([]));
    }
}
