//! `/v1/events`.

use serde_json::json;

use crate::owner::Owner;
use crate::server::{ADMIN, Server, text};

/// Everything that a JSON library would change: big numbers, order, spacing, escapes, doubled names, odd texts.
pub(crate) const AWKWARD: &str =
    "{ \"z\":1.00,\"a\" : 12345678901234567890123, \"s\":\"\\u00e9\\/\\ud800 é\u{1f600}\", \"e\":1E+2 ,\t\"a\":[ ], \"n\": -0 }";

#[tokio::test]
async fn i15_a_payload_is_kept_to_the_byte() {
    let server = Server::new("bytes");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/"}"#).await;
    let body = format!("{{\"type\": \"t\", \"data\":  {AWKWARD} }}");
    let published = server.post("/v1/events", body).await.expect(202);
    assert_eq!((&published["deliveries"], &published["duplicate"]), (&1.into(), &false.into()));
    let made = server.deliveries().await;
    let bodies = server.store.bodies(vec![made[0].seq]).await.unwrap();
    assert_eq!(bodies[0].event.as_ref().unwrap().data.as_str(), AWKWARD);
    let read = server.get(&format!("/v1/events/{}", text(&published["id"]))).await;
    assert!(read.text().contains(&format!("\"data\":{AWKWARD},")), "{}", read.text());
}

#[tokio::test]
async fn i18_the_same_key_publishes_once_and_another_body_is_a_conflict() {
    let server = Server::new("idempotency");
    let body = r#"{"type": "a", "tenant": "acme", "data": {"n": 1}, "idempotency_key": "k1"}"#;
    let first = server.post("/v1/events", body).await.expect(202);
    let again = server.post("/v1/events", body).await.expect(200);
    assert_eq!((&again["id"], &again["duplicate"]), (&first["id"], &true.into()));
    // In the header it is the same key.
    let plain = r#"{"type": "a", "tenant": "acme", "data": {"n": 1}}"#;
    let by_header = server.call_with(ADMIN, "POST", "/v1/events", &[("idempotency-key", "k1")], plain).await.expect(200);
    assert_eq!(by_header["id"], first["id"]);
    // Data is compared by its bytes, and everything else that was given too.
    for other in [
        r#"{"type": "a", "tenant": "acme", "data": {"n":1}, "idempotency_key": "k1"}"#,
        r#"{"type": "b", "tenant": "acme", "data": {"n": 1}, "idempotency_key": "k1"}"#,
        r#"{"type": "a", "tenant": "acme", "data": {"n": 1}, "idempotency_key": "k1", "labels": ["x"]}"#,
        r#"{"type": "a", "tenant": "acme", "data": {"n": 1}, "idempotency_key": "k1", "version": "2"}"#,
        r#"{"type": "a", "tenant": "acme", "data": {"n": 1}, "idempotency_key": "k1", "ordering_key": "o"}"#,
        r#"{"type": "a", "tenant": "acme", "data": {"n": 1}, "idempotency_key": "k1", "timestamp": "2026-01-01T00:00:00Z"}"#,
        r#"{"type": "a", "tenant": "acme", "data": {"n": 1}, "idempotency_key": "k1", "deliver_at": "2026-12-24T00:00:00Z"}"#,
    ] {
        server.post("/v1/events", other).await.expect(409);
    }
    // Another tenant's key is another key.
    let elsewhere = server.post("/v1/events", body.replace("acme", "globex")).await.expect(202);
    assert_ne!(elsewhere["id"], first["id"]);
    // An id of one's own works the same.
    let own = r#"{"type": "a", "tenant": "acme", "data": 1, "id": "order-1"}"#;
    assert_eq!(server.post("/v1/events", own).await.expect(202)["id"], "order-1");
    assert_eq!(server.post("/v1/events", own).await.expect(200)["id"], "order-1");
    server.post("/v1/events", own.replace("\"data\": 1", "\"data\": 2")).await.expect(409);
    // A key in the header that says something else than the body.
    let differs = server.call_with(ADMIN, "POST", "/v1/events", &[("idempotency-key", "k2")], body).await;
    differs.refused(422, "idempotency_key");
    for unusable in ["with space", "", "\u{e9}"] {
        let value = http::HeaderValue::from_bytes(unusable.as_bytes()).unwrap();
        let mut request = http::Request::post("/v1/events").header("authorization", format!("Bearer {ADMIN}"));
        request = request.header("content-type", "application/json").header("idempotency-key", value);
        server.send(request.body(plain.into()).unwrap()).await.expect(400);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i18_of_many_at_once_with_one_key_one_is_the_first_and_all_name_it() {
    let server = std::sync::Arc::new(Server::new("at-once"));
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    let callers: Vec<_> = (0..60)
        .map(|n| {
            let server = std::sync::Arc::clone(&server);
            // Every third has another body.
            let body = format!(r#"{{"type": "a", "tenant": "acme", "data": {}, "idempotency_key": "k"}}"#, u8::from(n % 3 == 0));
            tokio::spawn(async move { server.post("/v1/events", body).await })
        })
        .collect();
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.unwrap());
    }
    let good: Vec<_> = answers.iter().filter(|answer| answer.status.is_success()).collect();
    assert!(good.iter().all(|answer| answer.json["id"] == good[0].json["id"]), "one event");
    assert_eq!(good.iter().filter(|answer| answer.json["duplicate"] == false).count(), 1);
    assert_eq!(answers.iter().filter(|answer| answer.status == 409).count() + good.len(), 60);
    assert!([20, 40].contains(&good.len()), "one of the two bodies: {}", good.len());
    assert_eq!(server.deliveries().await.len(), 1);
}

#[tokio::test]
async fn an_event_is_read_as_it_was_published_and_lists_leave_its_payload_out() {
    let server = Server::new("reading");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme", "event_types": ["invoice.*"]}"#).await;
    let body = r#"{"type": "invoice.paid", "tenant": "acme", "data": {"x": 1}, "version": "v2", "timestamp": "2026-04-08T12:15:30.250+02:00",
        "idempotency_key": "k", "deliver_at": "2027-01-01T00:00:00+01:00", "expires_at": "2027-02-01T00:00:00Z", "ordering_key": "cart:1",
        "labels": ["vip", "eu"]}"#;
    let published = server.post("/v1/events", body).await.expect(202);
    let read = server.get(&format!("/v1/events/{}", text(&published["id"]))).await.expect(200);
    assert_eq!(read["timestamp"], "2026-04-08T10:15:30.250Z");
    assert_eq!(read["deliver_at"], "2026-12-31T23:00:00.000Z");
    assert_eq!(read["data"], json!({"x": 1}));
    assert_eq!(read["labels"], json!(["vip", "eu"]));
    let counts = json!({"pending": 0, "delivering": 0, "scheduled": 1, "delivered": 0, "dead": 0, "cancelled": 0});
    assert_eq!(read["deliveries"], counts, "it waits for its time");
    for type_ in ["a", "b", "invoice.sent"] {
        server.post("/v1/events", format!(r#"{{"type": "{type_}", "tenant": "acme", "data": 1}}"#)).await.expect(202);
    }
    let first = server.get("/v1/events?tenant=acme&limit=3").await.expect(200);
    let types: Vec<&str> = first["data"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["invoice.sent", "b", "a"], "newest first");
    assert!(first["data"][0].get("data").is_none());
    let second = server.get(&format!("/v1/events?tenant=acme&limit=3&cursor={}", text(&first["next_cursor"]))).await.expect(200);
    assert_eq!(second["data"].as_array().unwrap().len(), 1);
    assert_eq!(second["next_cursor"], json!(null));
    let filtered = server.get("/v1/events?type=invoice.paid").await.expect(200);
    assert_eq!(filtered["data"].as_array().unwrap().len(), 1);
    let later = server.get("/v1/events?from=2999-01-01T00:00:00Z").await.expect(200);
    assert_eq!(later["data"], json!([]));
}

#[tokio::test]
async fn i14_a_cancelled_event_is_called_off_and_one_in_flight_is_not() {
    let server = Server::new("cancel");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    let first = server.post("/v1/events", r#"{"type": "a", "tenant": "acme", "data": 1, "id": "first"}"#).await.expect(202);
    assert_eq!(first["deliveries"], 2);
    server.post("/v1/events/first/cancel", "").await.expect(503);
    let in_flight = server.deliveries().await[0].id;
    Owner::of(&server.store).await.obey(vec![in_flight]).await;
    server.post("/v1/events/first/cancel", "").await.expect(409);
    server.post("/v1/events", r#"{"type": "a", "tenant": "acme", "data": 1, "id": "second"}"#).await.expect(202);
    let cancelled = server.post("/v1/events/second/cancel", "").await.expect(200);
    assert_eq!(cancelled["deliveries"]["cancelled"], 2);
    server.post("/v1/events/second/cancel", "").await.expect(200);
    server.post("/v1/events/nobody/cancel", "").await.expect(404);
}

#[tokio::test]
async fn an_erased_payload_is_gone_and_its_history_stays() {
    let server = Server::new("erase");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    server.post("/v1/events", r#"{"type": "a", "tenant": "acme", "data": "canary-payload", "id": "one"}"#).await.expect(202);
    Owner::of(&server.store).await.obey(vec![]).await;
    let erased = server.call(ADMIN, "DELETE", "/v1/events/one/data", "").await;
    assert_eq!((erased.status.as_u16(), erased.bytes.len()), (204, 0));
    let read = server.get("/v1/events/one").await;
    assert!(!read.text().contains("canary-payload"));
    let read = read.expect(200);
    assert!(read.get("data").is_none() && read["erased_at"].is_string());
    assert_eq!(read["deliveries"]["cancelled"], 1, "what waited is cancelled");
    server.call(ADMIN, "DELETE", "/v1/events/one/data", "").await.expect(204);
    server.call(ADMIN, "DELETE", "/v1/events/nobody/data", "").await.expect(404);
    let actions: Vec<String> =
        server.get("/v1/audit").await.expect(200)["data"].as_array().unwrap().iter().map(|row| text(&row["action"])).collect();
    assert!(actions.contains(&"event.erase".to_owned()), "{actions:?}");
}

#[tokio::test]
async fn a_payload_is_held_to_the_schema_of_its_version() {
    let server = Server::new("schema");
    let made = server
        .post(
            "/v1/event-types",
            r#"{"name": "invoice.paid", "versions": [{"version": "1"}, {"version": "2", "schema": {"type": "object", "required": ["amount"],
                "properties": {"amount": {"type": "integer", "minimum": 1}}}, "example": {"amount": 5}}], "priority": true}"#,
        )
        .await
        .expect(201);
    assert_eq!((&made["priority"], &made["deprecated"]), (&true.into(), &false.into()));
    let publish = async |version: &str, data: &str| {
        server.post("/v1/events", format!(r#"{{"type": "invoice.paid", "version": {version}, "data": {data}}}"#)).await
    };
    publish("\"2\"", r#"{"amount": 5}"#).await.expect(202);
    publish("null", r#"{"amount": 5}"#).await.expect(202);
    publish("\"1\"", r#"{"anything": true}"#).await.expect(202);
    publish("\"2\"", r#"{"amount": 0}"#).await.refused(422, "data.amount");
    publish("null", "{}").await.refused(422, "data");
    publish("\"3\"", r#"{"amount": 5}"#).await.refused(422, "version");
    // Others are not in the catalogue, and fine.
    server.post("/v1/events", r#"{"type": "invoice.sent", "version": "9", "data": {}}"#).await.expect(202);
    // The catalogue changes, and so does what is checked.
    let changed = server.patch("/v1/event-types/invoice.paid", r#"{"versions": [], "deprecated": true}"#).await.expect(200);
    assert!(changed["deprecated_at"].is_string());
    assert_eq!(changed["priority"], true, "what was not given stays");
    publish("\"3\"", "{}").await.expect(202);
    for (body, field) in [
        (r#"{"name": "a b"}"#, "name"),
        (r#"{"description": "x"}"#, "name"),
        (r#"{"name": "x", "versions": [{"version": "1", "schema": {"type": "nonsense"}}]}"#, "versions[0].schema"),
        (r#"{"name": "x", "versions": [{"version": "1", "schema": {"$ref": "https://example.com/x"}}]}"#, "versions[0].schema"),
        (r#"{"name": "x", "versions": [{"version": "1"}, {"version": "1"}]}"#, "versions[1].version"),
        (r#"{"name": "x", "versions": [{"version": "1", "schema": {"type": "string"}, "example": 5}]}"#, "versions[0].example"),
    ] {
        server.post("/v1/event-types", body).await.refused(422, field);
    }
    server.post("/v1/event-types", r#"{"name": "invoice.paid"}"#).await.expect(409);
    server.call(ADMIN, "DELETE", "/v1/event-types/invoice.paid", "").await.expect(204);
    server.get("/v1/event-types/invoice.paid").await.expect(404);
}

#[tokio::test]
async fn a_filter_can_be_tried_out() {
    let server = Server::new("filters");
    let attempt = async |filter: &str| {
        let body = format!(
            r#"{{"filter": {filter}, "event": {{"type": "invoice.paid", "data": {{"amount": 1000}}, "labels": ["vip"]}}}}"#
        );
        server.post("/v1/filters/test", body).await
    };
    assert_eq!(attempt(r#"{"data.amount": {"$gte": 1000}}"#).await.expect(200)["matches"], true);
    assert_eq!(attempt(r#"{"data.amount": {"$gt": 1000}}"#).await.expect(200)["matches"], false);
    assert_eq!(attempt(r#"{"labels": "vip", "type": {"$prefix": "invoice."}}"#).await.expect(200)["matches"], true);
    attempt(r#"{"data.amount": {"$near": 1}}"#).await.refused(422, "filter.data.amount.$near");
    attempt("5").await.refused(422, "filter");
    server.post("/v1/filters/test", r#"{"filter": {}, "event": {"type": "a b", "data": 1}}"#).await.refused(422, "event.type");
    assert_eq!(server.get("/v1/events").await.expect(200)["data"], json!([]), "nothing was published");
}
