//! `/v1/deliveries` and `/v1/dead-letters`.

use serde_json::json;

use crate::owner::Owner;
use crate::server::{ADMIN, Server, path, text};

async fn publish(server: &Server, body: &str) -> serde_json::Value {
    server.post("/v1/events", body.to_owned()).await.expect(202)
}

#[tokio::test]
async fn a_delivery_says_how_it_stands_and_why_it_waits() {
    let server = Server::new("standing");
    let endpoint = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    let event = publish(&server, r#"{"type": "a", "tenant": "acme", "data": 1}"#).await;
    publish(&server, r#"{"type": "b", "tenant": "acme", "data": 1, "deliver_at": "2027-01-01T00:00:00Z"}"#).await;
    let listed = server.get(&format!("/v1/deliveries?event={}", text(&event["id"]))).await.expect(200);
    let first = &listed["data"][0];
    for field in [
        "id",
        "event",
        "endpoint",
        "endpoint_url",
        "tenant",
        "type",
        "status",
        "hold_reason",
        "dead_reason",
        "cancel_reason",
        "attempt_count",
        "max_attempts",
        "next_attempt_at",
        "estimated_at",
        "last_attempt_at",
        "delivered_at",
        "dead_at",
        "expires_at",
        "last_status_code",
        "last_error",
        "replay_of",
        "replay",
        "replayed_as",
        "created_at",
    ] {
        assert!(first.get(field).is_some(), "{field} is missing");
    }
    assert_eq!((&first["status"], &first["hold_reason"], &first["max_attempts"]), (&"pending".into(), &json!(null), &8.into()));
    let waits = server.get("/v1/deliveries?hold_reason=deliver_at").await.expect(200);
    assert_eq!(waits["data"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&waits["data"][0]["status"], &waits["data"][0]["next_attempt_at"]),
        (&"scheduled".into(), &"2027-01-01T00:00:00.000Z".into())
    );
    server.post(&format!("{}/pause", path("endpoints", &endpoint)), "").await.expect(200);
    let paused = server.get(&path("deliveries", first)).await.expect(200);
    assert_eq!(
        (&paused["status"], &paused["hold_reason"], &paused["next_attempt_at"]),
        (&"scheduled".into(), &"paused".into(), &json!(null))
    );
    assert_eq!(server.get("/v1/deliveries?status=pending").await.expect(200)["data"], json!([]));
    assert_eq!(server.get("/v1/deliveries?status=scheduled").await.expect(200)["data"].as_array().unwrap().len(), 2);
    assert_eq!(server.get("/v1/deliveries?type=b&tenant=acme").await.expect(200)["data"].as_array().unwrap().len(), 1);
    let schedule = r#"{"delivery_schedule": {"maintenance": [{"from": "2020-01-01T00:00:00Z", "until": "2099-01-01T00:00:00Z"}]}}"#;
    server.post(&format!("{}/resume", path("endpoints", &endpoint)), "").await.expect(200);
    server.patch(&path("endpoints", &endpoint), schedule).await.expect(200);
    let quiet = server.get(&path("deliveries", first)).await.expect(200);
    assert_eq!((&quiet["hold_reason"], &quiet["next_attempt_at"]), (&"quiet_hours".into(), &"2099-01-01T00:00:00.000Z".into()));
    server.call(ADMIN, "DELETE", &path("endpoints", &endpoint), "").await.expect(204);
    server.get(&path("deliveries", first)).await.expect(200);
}

#[tokio::test]
async fn a_dead_letter_is_listed_inspected_retried_and_leaves_the_list() {
    let server = Server::new("dead");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    publish(&server, r#"{"type": "a", "tenant": "acme", "data": 1}"#).await;
    publish(&server, r#"{"type": "b", "tenant": "acme", "data": 1}"#).await;
    let rows = server.deliveries().await;
    let (second, first) = (&rows[0], &rows[1]);
    let owner = Owner::of(&server.store).await;
    owner.attempt(first, 404).await;
    owner.attempt(second, 200).await;
    owner.obey(vec![]).await;
    let dead = server.get("/v1/dead-letters?tenant=acme").await.expect(200);
    assert_eq!(dead["data"].as_array().unwrap().len(), 1);
    let letter = &dead["data"][0];
    assert_eq!(
        (&letter["status"], &letter["dead_reason"], &letter["last_status_code"]),
        (&"dead".into(), &"permanent_failure".into(), &404.into())
    );
    let attempts = server.get(&format!("{}/attempts", path("deliveries", letter))).await.expect(200);
    let attempt = &attempts["data"][0];
    assert_eq!(
        (&attempt["number"], &attempt["outcome"], &attempt["response_time_ms"]),
        (&1.into(), &"http_error".into(), &41.into())
    );
    assert_eq!(attempt["timings"], json!({"dns_ms": null, "connect_ms": 2, "tls_ms": null, "first_byte_ms": null}));
    assert_eq!(attempt["response_preview"], "what it said");
    // What would be ignored is refused, and nothing happens.
    let ignored = server.post(&format!("/v1/dead-letters/{}/retry", first.id), r#"{"when": "now"}"#).await;
    ignored.refused(422, "when");
    // Only what is dead is a dead letter.
    server.post(&format!("/v1/dead-letters/{}/retry", second.id), "").await.expect(404);
    let new = server.post(&format!("/v1/dead-letters/{}/retry", first.id), "").await.expect(202);
    assert_eq!((&new["replay_of"], &new["event"]), (&letter["id"], &letter["event"]));
    assert_ne!(new["id"], letter["id"]);
    assert_eq!(server.get("/v1/dead-letters").await.expect(200)["data"], json!([]));
    assert_eq!(server.get(&path("deliveries", letter)).await.expect(200)["replayed_as"], new["id"]);
    server.post(&format!("/v1/dead-letters/{}/retry", first.id), "").await.expect(409);
    // What was delivered can be sent again, too; what waits is only brought forward.
    let again = server.post(&format!("/v1/deliveries/{}/retry", second.id), "").await.expect(202);
    assert_eq!(again["replay_of"], second.id.to_string());
    let now = server.post(&format!("{}/retry", path("deliveries", &new)), "").await.expect(202);
    assert_eq!(now["id"], new["id"], "no second row");
}

#[tokio::test]
async fn one_delivery_can_be_cancelled_and_one_in_flight_cannot() {
    let server = Server::new("one-cancel");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    for type_ in ["a", "b", "c"] {
        publish(&server, &format!(r#"{{"type": "{type_}", "tenant": "acme", "data": 1}}"#)).await;
    }
    let rows = server.deliveries().await;
    server.post(&format!("/v1/deliveries/{}/cancel", rows[0].id), "").await.expect(503);
    let owner = Owner::of(&server.store).await;
    owner.attempt(&rows[2], 200).await;
    owner.obey(vec![rows[1].id]).await;
    for _ in 0..2 {
        let cancelled = server.post(&format!("/v1/deliveries/{}/cancel", rows[0].id), "").await.expect(200);
        assert_eq!((&cancelled["status"], &cancelled["cancel_reason"]), (&"cancelled".into(), &"requested".into()));
    }
    server.post(&format!("/v1/deliveries/{}/cancel", rows[1].id), "").await.expect(409);
    server.post(&format!("/v1/deliveries/{}/retry", rows[1].id), "").await.expect(409);
    server.post(&format!("/v1/deliveries/{}/cancel", rows[2].id), "").await.expect(409);
}

#[tokio::test]
async fn one_delivery_says_when_its_turn_will_come() {
    let server = Server::new("estimate");
    let limit = r#""rate_limit": {"max_per_minute": 1, "burst_capacity": 2}"#;
    server.endpoint(&format!(r#"{{"url": "http://127.0.0.1:8080/", "tenant": "acme", {limit}}}"#)).await;
    for n in 0..5 {
        publish(&server, &format!(r#"{{"type": "a", "tenant": "acme", "data": {n}}}"#)).await;
    }
    let mut minutes = Vec::new();
    for row in server.deliveries().await.iter().rev() {
        let read = server.get(&format!("/v1/deliveries/{}", row.id)).await.expect(200);
        let at = posthaste_core::time::Timestamp::parse(&text(&read["estimated_at"])).unwrap();
        minutes.push((at.since(row.created_at).as_secs() + 5) / 60);
    }
    assert_eq!(minutes, [0, 0, 1, 2, 3], "two at once, then one a minute, oldest first");
    let listed = server.get("/v1/deliveries").await.expect(200);
    assert_eq!(listed["data"][0]["estimated_at"], json!(null), "not in lists");
}

#[tokio::test]
async fn pages_follow_each_other_without_gaps() {
    let server = Server::new("pages");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    for n in 0..7 {
        publish(&server, &format!(r#"{{"type": "a", "tenant": "acme", "data": {n}, "id": "e{n}"}}"#)).await;
    }
    let mut seen = Vec::new();
    let mut next = String::new();
    loop {
        let page = server.get(&format!("/v1/deliveries?limit=3{next}")).await.expect(200);
        seen.extend(page["data"].as_array().unwrap().iter().map(|row| text(&row["event"])));
        match page["next_cursor"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ["e6", "e5", "e4", "e3", "e2", "e1", "e0"]);
}
