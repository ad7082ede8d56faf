//! What people send who mean no good, or mean something else: a clear answer, and nothing stored.

use crate::server::Server;

async fn i48_bad_input_gets_its_status_and_stores_nothing(server: Server) {
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/"}"#).await;
    let deep = format!(r#"{{"type": "a", "data": {}{}}}"#, "[".repeat(65), "]".repeat(65));
    let very_deep = format!(r#"{{"type": "a", "data": {}"#, "[".repeat(200_000));
    let deep_elsewhere = format!(r#"{{"type": {}{}, "data": 1}}"#, "[".repeat(5000), "]".repeat(5000));
    let long = format!(r#"{{"type": "{}", "data": 1}}"#, "x".repeat(129));
    let labels = format!(r#"{{"type": "a", "data": 1, "labels": [{}]}}"#, vec!["\"x\""; 17].join(","));
    let key = format!(r#"{{"type": "a", "data": 1, "idempotency_key": "{}"}}"#, "k".repeat(256));
    for (body, status, field) in [
        (&b""[..], 400, None),
        (b"{", 400, None),
        (b"nonsense", 400, None),
        (b"{\"type\": \"a\", \"data\": 1} x", 400, None),
        (b"{\"type\": \"a\", \"data\": \"\xff\"}", 400, None),
        (b"\xef\xbb\xbf{\"type\": \"a\", \"data\": 1}", 400, None),
        (b"{\"type\": \"a\", \"data\": 01}", 400, None),
        (b"{\"type\": \"a\", \"data\": NaN}", 400, None),
        (b"{\"type\": \"a\", \"data\": 'x'}", 400, None),
        (b"{\"type\": \"a\", \"data\": 1,}", 400, None),
        (b"{\"type\": \"a\", \"data\": \"\n\"}", 400, None),
        (very_deep.as_bytes(), 400, None),
        (deep_elsewhere.as_bytes(), 422, Some("type")),
        (b"[]", 422, None),
        (b"null", 422, None),
        (b"\"text\"", 422, None),
        (b"[\"a\", 1, null, null, null, []]", 422, Some("")),
        (b"{}", 422, Some("type")),
        (b"{\"type\": \"a\"}", 422, Some("data")),
        (b"{\"type\": 1, \"data\": 1}", 422, Some("type")),
        (b"{\"type\": null, \"data\": 1}", 422, Some("type")),
        (b"{\"type\": \"a\", \"data\": 1, \"labels\": [\"a\", 1]}", 422, Some("labels[1]")),
        (b"{\"type\": \"a\", \"data\": 1, \"labels\": \"a\"}", 422, Some("labels")),
        (b"{\"type\": \"a\", \"data\": 1, \"tyep\": 1}", 422, Some("tyep")),
        (b"{\"type\": \"a\", \"type\": \"b\", \"data\": 1}", 422, Some("type")),
        (b"{\"type\": \"a\", \"data\": 1, \"data\": 2}", 422, Some("data")),
        (b"{\"type\": \"a..b\", \"data\": 1}", 422, Some("type")),
        (b"{\"type\": \"a\\u0000b\", \"data\": 1}", 422, Some("type")),
        (b"{\"type\": \"\", \"data\": 1}", 422, Some("type")),
        (b"{\"type\": \"a.*\", \"data\": 1}", 422, Some("type")),
        (long.as_bytes(), 422, Some("type")),
        (b"{\"type\": \"a\", \"data\": 1, \"tenant\": \"a b\"}", 422, Some("tenant")),
        (b"{\"type\": \"a\", \"data\": 1, \"tenant\": \"../../etc\"}", 422, Some("tenant")),
        (b"{\"type\": \"a\", \"data\": 1, \"id\": \"a.b\"}", 422, Some("id")),
        (b"{\"type\": \"a\", \"data\": 1, \"id\": \"a\\r\\nx-evil: 1\"}", 422, Some("id")),
        (b"{\"type\": \"a\", \"data\": 1, \"id\": \"\"}", 422, Some("id")),
        (b"{\"type\": \"a\", \"data\": 1, \"version\": \"\"}", 422, Some("version")),
        (b"{\"type\": \"a\", \"data\": 1, \"ordering_key\": \"a b\"}", 422, Some("ordering_key")),
        (b"{\"type\": \"a\", \"data\": 1, \"timestamp\": \"yesterday\"}", 422, Some("timestamp")),
        (b"{\"type\": \"a\", \"data\": 1, \"timestamp\": 1744107330}", 422, Some("timestamp")),
        (b"{\"type\": \"a\", \"data\": 1, \"timestamp\": \"2026-02-30T00:00:00Z\"}", 422, Some("timestamp")),
        (b"{\"type\": \"a\", \"data\": 1, \"timestamp\": \"9999-12-31T23:59:59Z\"}", 422, Some("timestamp")),
        (b"{\"type\": \"a\", \"data\": 1, \"deliver_at\": \"2099-01-01T00:00:00Z\"}", 422, Some("deliver_at")),
        (b"{\"type\": \"a\", \"data\": 1, \"expires_at\": \"2020-01-01T00:00:00Z\"}", 422, Some("expires_at")),
        (b"{\"type\": \"a\", \"data\": 1, \"labels\": [\"ok\", \"\"]}", 422, Some("labels[1]")),
        (labels.as_bytes(), 422, Some("labels")),
        (key.as_bytes(), 422, Some("idempotency_key")),
        (deep.as_bytes(), 422, Some("data")),
    ] {
        let answer = server.post("/v1/events", body.to_vec()).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(answer.status.as_u16(), status, "{shown}: {}", answer.text());
        if let Some(field) = field {
            assert_eq!(answer.json["errors"][0]["field"], field, "{shown}: {}", answer.text());
        }
        assert!(!answer.bytes.iter().any(u8::is_ascii_control), "no control character comes back: {}", answer.text());
    }
    assert!(server.deliveries().await.is_empty());
    assert_eq!(server.get("/v1/events").await.expect(200)["data"], serde_json::json!([]));
}

async fn i48_names_that_try_to_be_something_else_are_only_names(server: Server) {
    for name in [
        "..%2f..%2fetc%2fpasswd",
        "'%20OR%201=1--",
        "%00",
        "%0d%0ax-evil:%201",
        "a%2fb",
        "%F0%9F%98%80",
        "$(id)",
        "{{7*7}}",
        "%25s%25n",
    ] {
        for resource in ["events", "endpoints", "deliveries", "replays", "tenants", "event-types"] {
            let answer = server.get(&format!("/v1/{resource}/{}", name.replace(['{', '}'], "%7B"))).await;
            assert_eq!(answer.status.as_u16(), 404, "{resource} {name}");
            assert!(!answer.headers.contains_key("x-evil"));
        }
    }
}

async fn i48_an_id_of_ours_that_is_there_already_is_a_duplicate_or_a_conflict(server: Server) {
    let made = server.post("/v1/events", r#"{"type": "a", "tenant": "acme", "data": 1}"#).await.expect(202);
    let id = crate::server::text(&made["id"]);
    let again = |data: u32| format!(r#"{{"type": "a", "tenant": "acme", "data": {data}, "id": "{id}"}}"#);
    let same = server.post("/v1/events", again(1)).await.expect(200);
    assert_eq!((&same["id"], &same["duplicate"]), (&made["id"], &true.into()));
    server.post("/v1/events", again(2)).await.expect(409);
    let batch = server.post("/v1/events/batch", format!("[{}, {}]", again(1), again(2))).await.expect(202);
    assert_eq!((&batch["duplicates"], &batch["rejected"]), (&1.into(), &1.into()), "{batch}");
    // Of another tenant, or not there yet, it is an id like any other.
    server.post("/v1/events", again(1).replace("acme", "globex")).await.expect(202);
    let moved = r#"{"type": "a", "tenant": "acme", "data": 1, "id": "evt_01knp9e1ege0094d2pf2dbsqqg"}"#;
    server.post("/v1/events", moved).await.expect(202);
    server.post("/v1/events", moved).await.expect(200);
    server.post("/v1/events", moved.replace("1,", "2,")).await.expect(409);
    assert_eq!(server.get("/v1/events?tenant=acme").await.expect(200)["data"].as_array().unwrap().len(), 2);
}

on_both_databases! {
    i48_an_id_of_ours_that_is_there_already_is_a_duplicate_or_a_conflict
    i48_bad_input_gets_its_status_and_stores_nothing
    i48_names_that_try_to_be_something_else_are_only_names
}
