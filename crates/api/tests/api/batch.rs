//! `/v1/events/batch`.

use axum::body::Body;
use serde_json::{Value, json};

use crate::events::AWKWARD;
use crate::server::{ADMIN, Server, options, text};

const NDJSON: &[(&str, &str)] = &[("content-type", "application/x-ndjson")];

#[tokio::test]
async fn i15_payloads_in_a_batch_are_kept_to_the_byte() {
    let server = Server::new("batch-bytes");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/"}"#).await;
    let events = [AWKWARD, "[ ]", "\"],[\\\"\"", "null", "{\"nested\": {\"a\": [1, {\"}\": \"]\"}]}}"];
    let list: Vec<String> = events.iter().map(|data| format!("{{\"data\": {data}, \"type\": \"t\"}}")).collect();
    let as_array = server.post("/v1/events/batch", format!(" [ {} ] ", list.join(" , "))).await.expect(202);
    // One a line: a payload may have any space but a line break.
    let as_lines = server.call_with(ADMIN, "POST", "/v1/events/batch", NDJSON, list.join("\n") + "\r\n\n").await.expect(202);
    for answer in [as_array, as_lines] {
        assert_eq!((&answer["accepted"], &answer["rejected"]), (&5.into(), &0.into()), "{answer}");
        for (result, data) in answer["results"].as_array().unwrap().iter().zip(events) {
            let read = server.get(&format!("/v1/events/{}", text(&result["id"]))).await;
            assert!(read.text().contains(&format!("\"data\":{data},\"")), "{}", read.text());
        }
    }
}

#[tokio::test]
async fn i3_a_bad_item_never_harms_its_neighbours() {
    let server = Server::new("batch-bad");
    let deep = format!("{{\"type\": \"a\", \"data\": {}{}}}", "[".repeat(65), "]".repeat(65));
    let large = format!("{{\"type\": \"a\", \"data\": \"{}\"}}", "x".repeat(1024 * 1024));
    let items: Vec<(&str, Option<u16>)> = vec![
        (r#"{"type": "a", "data": 1}"#, None),
        (r#"{"type": "a b", "data": 1}"#, Some(422)),
        (r#"{"type": "a", "data": 1, "id": "same"}"#, None),
        (r#"{"type": "a"}"#, Some(422)),
        (r#"{"type": "a", "data": 1, "id": "same"}"#, None),
        (r#"{"type": "a", "data": 2, "id": "same"}"#, Some(409)),
        (r#"{"type": "a", "data": 1, "tyep": 1}"#, Some(422)),
        (r#"{"type": "a", "data": }"#, Some(400)),
        ("5", Some(422)),
        ("nonsense", Some(400)),
        (&deep, Some(422)),
        (&large, Some(413)),
        (r#"{"type": "z", "data": 1}"#, None),
    ];
    let body = format!("[{}]", items.iter().map(|(item, _)| *item).collect::<Vec<_>>().join(","));
    let answer = server.post("/v1/events/batch", body).await.expect(202);
    assert_eq!((&answer["accepted"], &answer["duplicates"], &answer["rejected"]), (&3.into(), &1.into(), &9.into()), "{answer}");
    for ((item, expected), result) in items.iter().zip(answer["results"].as_array().unwrap()) {
        let shown = &item[..item.len().min(60)];
        assert_eq!(
            result["error"]["status"].as_u64().and_then(|status| u16::try_from(status).ok()),
            *expected,
            "{shown}: {result}"
        );
        assert_eq!(result.get("id").is_some(), expected.is_none(), "{shown}");
    }
    assert_eq!(answer["results"][4]["duplicate"], true);
    let stored = server.get("/v1/events").await.expect(200);
    assert_eq!(stored["data"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn what_is_no_batch_is_refused_whole_and_nothing_is_stored() {
    let server = Server::new("batch-none");
    let one = r#"{"type": "a", "data": 1}"#;
    let many = vec![one; 1001].join(",");
    for (body, status) in [
        (String::new(), 400),
        ("[]".to_owned(), 422),
        (one.to_owned(), 422),
        (format!("[{one}"), 400),
        (format!("[{one},]"), 400),
        (format!("[{one}] x"), 400),
        (format!("[{one} {one}]"), 400),
        (format!("[{many}]"), 422),
        ("null".to_owned(), 400),
    ] {
        let shown = body[..body.len().min(50)].to_owned();
        let answer = server.post("/v1/events/batch", body).await;
        assert_eq!(answer.status.as_u16(), status, "{shown}: {}", answer.text());
    }
    let lines = vec![one; 1001].join("\n");
    server.call_with(ADMIN, "POST", "/v1/events/batch", NDJSON, lines).await.expect(422);
    server.call_with(ADMIN, "POST", "/v1/events/batch", NDJSON, "\n\n").await.expect(422);
    server.call_with(ADMIN, "POST", "/v1/events/batch", &[("content-type", "text/plain")], one).await.expect(415);
    server.call_with(ADMIN, "POST", "/v1/events/batch", &[("idempotency-key", "k")], format!("[{one}]")).await.expect(422);
    assert_eq!(server.get("/v1/events").await.expect(200)["data"], json!([]));
}

#[tokio::test]
async fn a_thousand_events_are_taken_however_they_are_cut_into_pieces() {
    let server = Server::new("batch-many");
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#).await;
    let events: Vec<String> =
        (0..1000).map(|n| format!(r#"{{"type": "a", "tenant": "acme", "id": "e-{n}", "data": {{"n": {n}}}}}"#)).collect();
    let whole = format!("[{}]", events.join(","));
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> = whole.as_bytes().chunks(777).map(|piece| Ok(piece.to_vec())).collect();
    let answer = server.post("/v1/events/batch", Body::from_stream(Pieces(pieces.into_iter()))).await.expect(202);
    assert_eq!((&answer["accepted"], &answer["rejected"]), (&1000.into(), &0.into()));
    let ids: Vec<String> = answer["results"].as_array().unwrap().iter().map(|result| text(&result["id"])).collect();
    assert_eq!(ids, (0..1000).map(|n| format!("e-{n}")).collect::<Vec<_>>(), "in their order");
    assert!(answer["results"].as_array().unwrap().iter().all(|result| result["deliveries"] == 1));
    let again = server.post("/v1/events/batch", whole).await.expect(202);
    assert_eq!((&again["accepted"], &again["duplicates"]), (&0.into(), &1000.into()));
}

#[tokio::test]
async fn i40_bodies_beyond_the_budget_are_turned_away_at_the_door() {
    let server = Server::with("budget", posthaste_api::Options { bodies_bytes_max: 64 * 1024, ..options() });
    let large = format!(r#"{{"type": "a", "data": "{}"}}"#, "x".repeat(100 * 1024));
    let refused = server.post("/v1/events", large).await;
    assert_eq!(refused.headers["retry-after"], "1");
    refused.expect(503);
    let fitting = format!(r#"{{"type": "a", "data": "{}"}}"#, "x".repeat(60 * 1024));
    for _ in 0..3 {
        server.post("/v1/events", fitting.clone()).await.expect(202);
    }
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_not_waited_for() {
    let server = Server::with("slow", posthaste_api::Options { body_patience: std::time::Duration::from_millis(20), ..options() });
    let never: Body = Body::from_stream(Never);
    let answer: Value = server.post("/v1/events", never).await.expect(408);
    assert_eq!(answer["type"], "/docs/errors/too-slow");
}

/// A body in pieces.
struct Pieces(std::vec::IntoIter<Result<Vec<u8>, std::io::Error>>);

impl futures_util::Stream for Pieces {
    type Item = Result<Vec<u8>, std::io::Error>;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

/// A body that never comes.
struct Never;

impl futures_util::Stream for Never {
    type Item = Result<Vec<u8>, std::io::Error>;

    fn poll_next(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Pending
    }
}
