//! What needs a person.

use std::time::Duration;

use posthaste_core::circuit::Breaker;
use posthaste_core::delivery::{DeadReason, State};
use posthaste_store::LaneSnapshot;
use serde_json::{Value, json};

use crate::owner::Owner;
use crate::server::{ADMIN, Server, text};

fn kinds(answer: &Value) -> Vec<String> {
    answer["data"].as_array().unwrap().iter().map(|need| text(&need["kind"])).collect()
}

async fn key_of(server: &Server, tenant: &str) -> String {
    let body = json!({"name": "looks", "tenant": tenant, "scopes": ["read"]}).to_string();
    text(&server.post("/v1/keys", body).await.expect(201)["key"])
}

async fn dead_letters_are_grouped_and_endpoints_that_need_a_person_are_named(server: Server) {
    let quiet = server.get("/v1/attention").await.expect(200);
    assert_eq!(kinds(&quiet), ["no_node"], "nobody has joined yet");
    let owner = Owner::of(&server.store).await;
    let failing = server.endpoint(r#"{"url": "http://127.0.0.1:8080/failing", "tenant": "acme"}"#).await;
    let off = server.endpoint(r#"{"url": "http://127.0.0.1:8080/off", "tenant": "globex"}"#).await;
    server.post(&format!("/v1/endpoints/{}/disable", text(&off["id"])), "").await.expect(200);
    for n in 0..5 {
        let event = json!({"type": "a.b", "tenant": "acme", "data": n}).to_string();
        server.post("/v1/events", event).await.expect(202);
    }
    let rows = server.deliveries().await;
    assert_eq!(rows.len(), 5);
    let at = server.store.now();
    for row in &rows[..3] {
        owner.move_to(row, State::Dead { at, reason: DeadReason::PermanentFailure }).await;
    }
    owner.move_to(&rows[3], State::Dead { at, reason: DeadReason::Expired }).await;
    let endpoint = rows[4].endpoint;
    let mut shown = LaneSnapshot::unknown(endpoint, at);
    shown.memory.breaker = Breaker::Open { since: at, probe_at: at + Duration::from_mins(1), failures: 5 };
    server.store.publish_lanes(vec![shown]).await.unwrap();

    // Another tenant's key is the first to ask, so that nothing is kept yet of what it is asked.
    let acme = key_of(&server, "acme").await;
    let seen = server.call(&acme, "GET", "/v1/attention", "").await.expect(200);
    assert_eq!(kinds(&seen), ["circuit_open", "dead_letters", "dead_letters"]);
    let open = &seen["data"][0];
    assert_eq!((&open["endpoint"], &open["count"]), (&failing["id"], &json!(1)), "{open}");
    assert_eq!(open["delivery"], json!(rows[4].id.to_string()));
    let dead = &seen["data"][1];
    assert_eq!((&dead["reason"], &dead["count"]), (&json!("permanent_failure"), &json!(3)), "{dead}");
    assert_eq!((&dead["tenant"], &dead["endpoint"]), (&json!("acme"), &failing["id"]));
    assert!(dead["first_seen"].is_string() && dead["last_seen"].is_string() && dead["delivery"].is_string(), "{dead}");
    assert_eq!((&seen["data"][2]["reason"], &seen["data"][2]["count"]), (&json!("expired"), &json!(1)));

    let globex = key_of(&server, "globex").await;
    let seen = server.call(&globex, "GET", "/v1/attention", "").await.expect(200);
    assert_eq!(kinds(&seen), ["endpoint_disabled"]);
    assert_eq!(seen["data"][0]["endpoint"], off["id"]);
    // Of somebody else's there is nothing to tell.
    let none = server.call(&globex, "GET", "/v1/attention?tenant=acme", "").await.expect(200);
    assert_eq!(kinds(&none), [""; 0]);
    let narrowed = server.call(ADMIN, "GET", "/v1/attention?tenant=globex", "").await.expect(200);
    assert_eq!(kinds(&narrowed), ["endpoint_disabled"]);
}

#[tokio::test]
async fn attention_on_sqlite() {
    dead_letters_are_grouped_and_endpoints_that_need_a_person_are_named(Server::new("attention")).await;
}

#[tokio::test]
async fn attention_on_postgres() {
    dead_letters_are_grouped_and_endpoints_that_need_a_person_are_named(Server::on_postgres().await).await;
}
