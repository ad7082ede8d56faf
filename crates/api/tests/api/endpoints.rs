//! `/v1/endpoints`.

use serde_json::{Value, json};

use crate::owner::Owner;
use crate::server::{ADMIN, Server, options, path, text};

const URL: &str = r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme"}"#;

#[tokio::test]
async fn a_secret_and_header_values_are_shown_once() {
    let server = Server::new("secret");
    let made = server
        .endpoint(
            r#"{"url": "http://127.0.0.1:8080/", "event_types": ["a.*"], "headers": {"Authorization": "Bearer canary-header"}}"#,
        )
        .await;
    assert!(text(&made["secret"]).starts_with("whsec_"));
    assert_eq!((&made["tenant"], &made["status"]), (&"default".into(), &"active".into()));
    assert_eq!(made["headers"], json!({"authorization": "Bearer canary-header"}));
    let read = server.get(&path("endpoints", &made)).await.expect(200);
    assert_eq!(read.get("secret"), None);
    assert_eq!(read["event_types"], made["event_types"]);
    assert_eq!(read["headers"], json!({"authorization": "********"}));
    // What is masked can be sent back and keeps its value.
    server.patch(&path("endpoints", &made), r#"{"headers": {"authorization": "********", "x-new": "1"}}"#).await.expect(200);
    let stored = server.store.endpoints(posthaste_store::EndpointQuery { limit: 1, ..Default::default() }).await.unwrap();
    let headers: Vec<(&str, &str)> = stored[0].endpoint.headers.iter().collect();
    assert_eq!(headers, [("authorization", "Bearer canary-header"), ("x-new", "1")]);
    server.patch(&path("endpoints", &made), r#"{"headers": {"x-other": "********"}}"#).await.refused(422, "headers.x-other");
}

#[tokio::test]
async fn an_endpoint_has_all_the_fields_of_the_contract() {
    let server = Server::new("fields");
    let made = server.endpoint(URL).await;
    for field in [
        "id",
        "tenant",
        "url",
        "description",
        "status",
        "event_types",
        "disabled_event_types",
        "uid",
        "filter",
        "rate_limit",
        "max_in_flight",
        "delivery_schedule",
        "retry",
        "timeout",
        "circuit",
        "signing",
        "health",
        "payload_format",
        "headers",
        "metadata",
        "created_at",
        "updated_at",
    ] {
        assert!(made.get(field).is_some(), "{field} is missing");
    }
    assert_eq!(
        made["retry"],
        json!({"strategy": "schedule", "delays_seconds": [30, 120, 600, 1800, 7200, 21600, 86400], "jitter_percent": 20,
               "max_attempts": 8, "also_statuses": []})
    );
    assert_eq!(
        made["timeout"],
        json!({"mode": "adaptive", "timeout_ms": 10000, "method": "default", "p50_ms": null, "p95_ms": null, "p99_ms": null,
               "sample_count": 0, "computed_at": null})
    );
    assert_eq!(
        made["circuit"],
        json!({"state": "closed", "failure_threshold": 5, "probe_interval_seconds": 60, "consecutive_failures": 0, "opened_at": null,
               "next_probe_at": null})
    );
    assert_eq!(made["health"], json!({"score": 100, "state": "healthy", "failing_since": null}));
    assert_eq!((&made["max_in_flight"], &made["payload_format"]), (&16.into(), &"envelope".into()));
}

#[tokio::test]
async fn the_short_forms_of_the_articles_work() {
    let server = Server::new("short");
    let made = server.endpoint(URL).await;
    let patch = async |body: &str| server.patch(&path("endpoints", &made), body.to_owned()).await.expect(200);
    let limited = patch(r#"{"rate_limit": {"max_per_minute": 100, "burst_capacity": 250}}"#).await;
    assert_eq!(limited["rate_limit"], json!({"max_per_minute": 100, "burst_capacity": 250}));
    let quiet = patch(
        r#"{"delivery_schedule": {"quiet_start": "00:00", "quiet_end": "06:00", "timezone": "America/Chicago",
            "bypass_event_types": ["payment.failed", "account.suspended", "fraud.alert"]}}"#,
    )
    .await;
    assert_eq!(
        quiet["delivery_schedule"],
        json!({"timezone": "America/Chicago", "quiet_hours": [{"start": "00:00", "end": "06:00"}], "maintenance": [], "applies_to": [],
               "bypass_event_types": ["payment.failed", "account.suspended", "fraud.alert"]})
    );
    assert_eq!(quiet["rate_limit"], limited["rate_limit"], "what is not given stays");
    let pinned = patch(r#"{"timeout": {"timeout_ms": 5000}}"#).await;
    assert_eq!((&pinned["timeout"]["mode"], &pinned["timeout"]["timeout_ms"]), (&"manual".into(), &5000.into()));
    let learned = patch(r#"{"timeout": {"mode": "adaptive"}}"#).await;
    assert_eq!((&learned["timeout"]["method"], &learned["timeout"]["timeout_ms"]), (&"default".into(), &10000.into()));
    let exponential = patch(r#"{"retry": {"strategy": "exponential", "base_ms": 1000, "factor": 2, "cap_ms": 3600000, "jitter": "full", "max_attempts": 7}}"#).await;
    assert_eq!(exponential["retry"]["factor"], 2.0);
    let few = patch(r#"{"retry": {"delays_seconds": [1, 2]}}"#).await;
    assert_eq!(few["retry"]["max_attempts"], 3);
}

#[tokio::test]
async fn a_policy_that_is_given_replaces_that_policy_whole_and_null_inherits() {
    let server = Server::new("merge");
    let tenant = r#"{"defaults": {"rate_limit": {"max_per_minute": 60, "burst_capacity": 60}, "circuit": {"failure_threshold": 9},
        "delivery_schedule": {"timezone": "Europe/Berlin", "quiet_hours": [{"start": "22:00", "end": "06:00", "days": ["mon", "tue"]}]}}}"#;
    server.call(ADMIN, "PUT", "/v1/tenants/acme", tenant).await.expect(201);
    let made = server.endpoint(URL).await;
    assert_eq!(made["rate_limit"]["max_per_minute"], 60, "inherited from the tenant");
    assert_eq!(made["circuit"]["failure_threshold"], 9);
    assert_eq!(made["inherited"], json!(["retry", "timeout", "circuit", "delivery_schedule", "rate_limit", "max_in_flight"]));
    let patch = async |body: &str| server.patch(&path("endpoints", &made), body.to_owned()).await.expect(200);
    let own =
        patch(r#"{"rate_limit": "unlimited", "delivery_schedule": "always", "circuit": {"probe_interval_seconds": 7}}"#).await;
    assert_eq!((&own["rate_limit"], &own["delivery_schedule"]), (&"unlimited".into(), &"always".into()));
    assert_eq!(own["circuit"]["failure_threshold"], 5, "the policy's default, not the tenant's");
    assert_eq!(own["inherited"], json!(["retry", "timeout", "max_in_flight"]));
    let back = patch(r#"{"rate_limit": null, "delivery_schedule": null, "circuit": null}"#).await;
    assert_eq!(back["inherited"], made["inherited"]);
    assert_eq!(back["delivery_schedule"], made["delivery_schedule"]);
}

#[tokio::test]
async fn what_was_read_can_be_sent_back_and_changes_nothing() {
    let server = Server::new("round-trip");
    let tenant = r#"{"defaults": {"rate_limit": {"max_per_minute": 60, "burst_capacity": 60}, "delivery_schedule":
        {"timezone": "Europe/Berlin", "quiet_hours": [{"start": "22:00", "end": "06:00"}]}, "timeout": {"timeout_ms": 4000}}}"#;
    server.call(ADMIN, "PUT", "/v1/tenants/acme", tenant).await.expect(201);
    for body in [
        URL.to_owned(),
        r#"{"url": "http://127.0.0.1:8080/hooks?x=1", "tenant": "acme", "uid": "crm", "description": "two\nlines", "event_types": ["a.*", "b"],
            "disabled_event_types": ["a.b"], "filter": {"data.amount": {"$gte": 1000}}, "rate_limit": "unlimited", "max_in_flight": 3,
            "delivery_schedule": {"timezone": "America/Chicago", "quiet_hours": [{"start": "22:00", "end": "06:00", "days": ["mon"]}],
              "maintenance": [{"from": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00+01:00"}]},
            "retry": {"strategy": "exponential", "jitter": "proportional", "jitter_percent": 5}, "timeout": {"mode": "manual", "timeout_ms": 7000},
            "circuit": {"failure_threshold": 3}, "signing": {"scheme": "timestamp-hex", "prefix": "sha256="}, "payload_format": "cloudevents",
            "headers": {"x-a": "1"}, "metadata": {"plan": "gold"}}"#
            .to_owned(),
        r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme", "signing": {"scheme": "standard-ed25519"}}"#.to_owned(),
    ] {
        let made = server.endpoint(&body).await;
        let read = server.get(&path("endpoints", &made)).await;
        let again = server.patch(&path("endpoints", &made), read.bytes.clone()).await;
        assert_eq!(again.tag(), read.tag(), "nothing was written");
        assert_eq!(again.expect(200), read.json);
        // And one field can be changed on the way.
        let mut changed = read.json.clone();
        changed["description"] = json!("changed");
        let answer = server.patch(&path("endpoints", &made), changed.to_string()).await.expect(200);
        assert_eq!(answer["description"], "changed");
        assert_eq!(answer["inherited"], read.json["inherited"], "and what was inherited still is");
    }
    let made = server.endpoint(URL).await;
    for (field, value) in
        [("id", json!("ep_x")), ("created_at", json!("2026-01-01T00:00:00Z")), ("status", json!("paused")), ("health", json!({}))]
    {
        server.patch(&path("endpoints", &made), json!({field: value}).to_string()).await.refused(422, field);
        let mut body: Value = serde_json::from_str(URL).unwrap();
        body[field] = value;
        server.post("/v1/endpoints", body.to_string()).await.refused(422, field);
    }
    server.patch(&path("endpoints", &made), r#"{"circuit": {"state": "open"}}"#).await.refused(422, "circuit.state");
    server.patch(&path("endpoints", &made), r#"{"tenant": "globex"}"#).await.refused(422, "tenant");
}

#[tokio::test]
async fn a_change_that_somebody_else_has_made_meanwhile_is_not_overwritten() {
    let server = Server::new("etag");
    let made = server.endpoint(URL).await;
    let read = server.get(&path("endpoints", &made)).await;
    let tag = read.tag();
    let patch = async |tag: &str, url: &str| {
        let body = format!(r#"{{"description": "{url}"}}"#);
        server.call_with(ADMIN, "PATCH", &path("endpoints", &made), &[("if-match", tag)], body).await
    };
    let first = patch(&tag, "one").await;
    let next = first.tag();
    first.expect(200);
    assert_ne!(next, tag);
    for stale in [tag.as_str(), "\"999\"", "W/\"2\"", "nonsense", ""] {
        patch(stale, "two").await.expect(412);
    }
    patch("*", "three").await.expect(200);
    patch(&format!("\"7\", {}", server.get(&path("endpoints", &made)).await.tag()), "four").await.expect(200);
    let delete = server.call_with(ADMIN, "DELETE", &path("endpoints", &made), &[("if-match", &tag)], "").await;
    delete.expect(412);
    server.call(ADMIN, "DELETE", &path("endpoints", &made), "").await.expect(204);
    server.get(&path("endpoints", &made)).await.expect(404);
    server.call(ADMIN, "DELETE", &path("endpoints", &made), "").await.expect(404);
}

#[tokio::test]
async fn a_uid_of_the_users_own_makes_or_replaces() {
    let server = Server::new("uid");
    let put = async |body: &str| server.call(ADMIN, "PUT", "/v1/endpoints/uid:crm-1?tenant=acme", body.to_owned()).await;
    let made = put(r#"{"url": "http://127.0.0.1:8080/", "description": "first", "max_in_flight": 2, "headers": {"x-a": "1"}}"#)
        .await
        .expect(201);
    assert_eq!((&made["uid"], &made["tenant"]), (&"crm-1".into(), &"acme".into()));
    assert!(made["secret"].is_string());
    server.post(&format!("{}/pause", path("endpoints", &made)), "").await.expect(200);
    let replaced = put(r#"{"url": "http://127.0.0.1:8080/new"}"#).await.expect(200);
    assert_eq!((&replaced["id"], &replaced["created_at"]), (&made["id"], &made["created_at"]));
    assert_eq!((&replaced["description"], &replaced["max_in_flight"], &replaced["headers"]), (&"".into(), &16.into(), &json!({})));
    assert_eq!(replaced["status"], "paused", "what was done to it stays");
    assert!(replaced.get("secret").is_none());
    put("{}").await.refused(422, "url");
    put(r#"{"url": "http://127.0.0.1:8080/", "uid": "other"}"#).await.refused(422, "uid");
    put(r#"{"url": "http://127.0.0.1:8080/", "tenant": "globex"}"#).await.refused(422, "tenant");
    server.call(ADMIN, "PUT", "/v1/endpoints/uid:a.b", URL).await.refused(422, "uid");
    server.call(ADMIN, "PUT", &path("endpoints", &made), URL).await.expect(404);
    server.post("/v1/endpoints", r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme", "uid": "crm-1"}"#).await.expect(409);
    let found = server.get("/v1/endpoints?tenant=acme&uid=crm-1").await.expect(200);
    assert_eq!(found["data"][0]["id"], made["id"]);
    // The same name of another tenant is another endpoint.
    server.call(ADMIN, "PUT", "/v1/endpoints/uid:crm-1?tenant=globex", r#"{"url": "http://127.0.0.1:8080/"}"#).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_with_one_uid_make_one_endpoint() {
    let server = std::sync::Arc::new(Server::new("uid-at-once"));
    let callers: Vec<_> = (0..20)
        .map(|n| {
            let server = std::sync::Arc::clone(&server);
            let body = format!(r#"{{"url": "http://127.0.0.1:8080/{n}"}}"#);
            tokio::spawn(async move { server.call(ADMIN, "PUT", "/v1/endpoints/uid:crm?tenant=acme", body).await })
        })
        .collect();
    let mut made = 0;
    for caller in callers {
        let answer = caller.await.unwrap();
        assert!(answer.status.is_success() || answer.status == 503, "{}", answer.text());
        made += usize::from(answer.status == 201);
    }
    assert_eq!(made, 1);
    assert_eq!(server.get("/v1/endpoints").await.expect(200)["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn verbs_may_be_repeated() {
    let server = Server::new("verbs");
    let made = server.endpoint(URL).await;
    let verb = async |verb: &str, body: &str| server.post(&format!("{}/{verb}", path("endpoints", &made)), body.to_owned()).await;
    for _ in 0..2 {
        assert_eq!(verb("pause", "").await.expect(200)["status"], "paused");
    }
    let until = verb("pause", r#"{"until": "2099-01-01T00:00:00+01:00"}"#).await.expect(200);
    assert_eq!(until["paused_until"], "2098-12-31T23:00:00.000Z");
    verb("pause", r#"{"until": "2020-01-01T00:00:00Z"}"#).await.refused(422, "until");
    verb("pause", r#"{"untli": null}"#).await.refused(422, "untli");
    assert_eq!(verb("enable", "").await.expect(200)["status"], "paused", "a pause is not ended by enabling");
    for _ in 0..2 {
        assert_eq!(verb("resume", "{}").await.expect(200)["status"], "active");
    }
    for _ in 0..2 {
        assert_eq!(verb("disable", "").await.expect(200)["status"], "disabled");
    }
    verb("pause", "").await.expect(409);
    verb("resume", "").await.expect(409);
    for _ in 0..2 {
        assert_eq!(verb("enable", "").await.expect(200)["status"], "active");
    }
    verb("dance", "").await.expect(404);
    verb("pause", "[]").await.expect(422);
    let actions: Vec<Value> = server.get("/v1/audit?tenant=acme").await.expect(200)["data"].as_array().unwrap().clone();
    let shown: Vec<&str> = actions.iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(
        shown,
        ["endpoint.enable", "endpoint.disable", "endpoint.resume", "endpoint.pause", "endpoint.pause", "endpoint.create"],
        "what changed nothing is not in the log"
    );
    assert_eq!((&actions[0]["before"]["status"], &actions[0]["after"]["status"]), (&"disabled".into(), &"active".into()));
    assert_eq!((&actions[0]["actor"], &actions[0]["subject"]), (&"admin key".into(), &made["id"]));
}

#[tokio::test]
async fn a_rotated_secret_signs_beside_the_old_one_for_a_while() {
    let server = Server::new("rotate");
    let made = server.endpoint(URL).await;
    let rotate = async |body: &str| server.post(&format!("{}/rotate-secret", path("endpoints", &made)), body.to_owned()).await;
    let stored = async || {
        let all = server.store.endpoints(posthaste_store::EndpointQuery { limit: 9, ..Default::default() }).await.unwrap();
        all.into_iter().find(|stored| stored.endpoint.id.to_string() == text(&made["id"])).unwrap().secrets
    };
    let rotated = rotate("").await.expect(200);
    assert_ne!(rotated["secret"], made["secret"]);
    let secrets = stored().await;
    assert_eq!(
        secrets.iter().map(|stored| stored.secret.0.clone()).collect::<Vec<_>>(),
        [text(&rotated["secret"]), text(&made["secret"])]
    );
    assert!(secrets[0].until.is_none() && secrets[1].until.is_some());
    let own = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    let at_once = rotate(&format!(r#"{{"secret": "{own}", "overlap_seconds": 0}}"#)).await.expect(200);
    assert_eq!(at_once["secret"], own);
    assert_eq!(stored().await.len(), 2, "the first one still has its day; the second has ended");
    rotate(&format!(r#"{{"secret": "{own}"}}"#)).await.refused(422, "secret");
    rotate(r#"{"secret": "short"}"#).await.refused(422, "secret");
    rotate(r#"{"overlap_seconds": 604801}"#).await.refused(422, "overlap_seconds");
    rotate(r#"{"overlap_seconds": -1}"#).await.refused(422, "overlap_seconds");
    for _ in 0..10 {
        rotate("").await.expect(200);
    }
    assert_eq!(stored().await.len(), 8, "so many signatures and no more");
}

#[tokio::test]
async fn a_scheme_that_the_secret_cannot_sign_under_comes_with_a_new_one() {
    let server = Server::new("scheme");
    let made = server.endpoint(URL).await;
    let patch = async |body: &str| server.patch(&path("endpoints", &made), body.to_owned()).await;
    let hex = patch(r#"{"signing": {"scheme": "timestamp-hex"}}"#).await.expect(200);
    assert_eq!(hex["signing"]["header_names"]["signature"], "x-webhook-signature");
    assert!(hex.get("secret").is_none(), "the same text is the key there");
    let asymmetric = patch(r#"{"signing": {"scheme": "standard-ed25519"}}"#).await.expect(200);
    assert!(text(&asymmetric["secret"]).starts_with("whsk_"));
    assert!(text(&asymmetric["public_key"]).starts_with("whpk_"));
    let back = patch(r#"{"signing": null}"#).await.expect(200);
    assert!(text(&back["secret"]).starts_with("whsec_"));
    patch(r#"{"signing": {"scheme": "standard", "prefix": "v1="}}"#).await.refused(422, "signing.prefix");
    patch(r#"{"signing": {"scheme": "md5"}}"#).await.refused(422, "signing.scheme");
    patch(r#"{"signing": {"scheme": "timestamp-hex", "header_names": {"signature": "Host"}}}"#)
        .await
        .refused(422, "signing.header_names");
    // A header of one's own may not stand beside ours.
    let clash = r#"{"signing": {"scheme": "timestamp-hex"}, "headers": {"x-webhook-signature": "v1=00"}}"#;
    patch(clash).await.refused(422, "headers.x-webhook-signature");
}

#[tokio::test]
async fn what_could_never_be_delivered_to_is_refused_with_its_field() {
    let strict = Server::with(
        "strict",
        posthaste_api::Options { destinations: posthaste_core::destination::Policy::default(), ..options() },
    );
    strict.endpoint(r#"{"url": "https://example.com/hooks"}"#).await;
    let name = "x".repeat(2049);
    for url in [
        "http://example.com/",
        "https://localhost/",
        "https://10.0.0.1/",
        "https://169.254.169.254/",
        "https://[::1]/",
        "https://user:password@example.com/",
        "https://example.com:6379/",
        "https://a b.com/",
        "https://exa%6dple.com/",
        "ftp://example.com/",
        "https://0x7f.1/",
        "https://single/",
        "example.com",
        "",
        &format!("https://example.com/{name}"),
    ] {
        strict.post("/v1/endpoints", json!({"url": url}).to_string()).await.refused(422, "url");
    }
    for (body, field) in [
        (r#"{"url": "https://example.com/", "event_types": ["a", "*.b"]}"#, "event_types[1]"),
        (r#"{"url": "https://example.com/", "disabled_event_types": [""]}"#, "disabled_event_types[0]"),
        (r#"{"url": "https://example.com/", "filter": {"nowhere": 1}}"#, "filter.nowhere"),
        (
            r#"{"url": "https://example.com/", "rate_limit": {"max_per_minute": 0, "burst_capacity": 1}}"#,
            "rate_limit.max_per_minute",
        ),
        (r#"{"url": "https://example.com/", "rate_limit": {"max_per_minute": 5}}"#, "rate_limit.burst_capacity"),
        (r#"{"url": "https://example.com/", "rate_limit": "none"}"#, "rate_limit"),
        (r#"{"url": "https://example.com/", "max_in_flight": 1001}"#, "max_in_flight"),
        (r#"{"url": "https://example.com/", "max_in_flight": 1.5}"#, "max_in_flight"),
        (
            r#"{"url": "https://example.com/", "delivery_schedule": {"timezone": "america/chicago", "quiet_hours": []}}"#,
            "delivery_schedule.timezone",
        ),
        (
            r#"{"url": "https://example.com/", "delivery_schedule": {"quiet_start": "00:00", "quiet_end": "06:00"}}"#,
            "delivery_schedule.timezone",
        ),
        (
            r#"{"url": "https://example.com/", "delivery_schedule": {"timezone": "UTC", "quiet_start": "00:00"}}"#,
            "delivery_schedule.quiet_end",
        ),
        (
            r#"{"url": "https://example.com/", "delivery_schedule": {"timezone": "UTC", "quiet_start": "00:00", "quiet_end": "06:00", "quiet_hours": []}}"#,
            "delivery_schedule.quiet_start",
        ),
        (
            r#"{"url": "https://example.com/", "delivery_schedule": {"timezone": "UTC", "quiet_start": "00:00:00", "quiet_end": "06:00"}}"#,
            "delivery_schedule.quiet_hours[0].start",
        ),
        (
            r#"{"url": "https://example.com/", "delivery_schedule": {"timezone": "UTC", "quiet_hours": [{"start": "06:00", "end": "06:00"}]}}"#,
            "delivery_schedule.quiet_hours[0]",
        ),
        (
            r#"{"url": "https://example.com/", "delivery_schedule": {"timezone": "UTC", "quiet_hours": [{"start": "06:00", "end": "07:00", "days": ["mon", "mon"]}]}}"#,
            "delivery_schedule.quiet_hours[0].days",
        ),
        (
            r#"{"url": "https://example.com/", "delivery_schedule": {"timezone": "UTC", "quiet_hours": [{"start": "00:00", "end": "12:00"}, {"start": "12:00", "end": "00:00"}]}}"#,
            "delivery_schedule.quiet_hours",
        ),
        (
            r#"{"url": "https://example.com/", "delivery_schedule": {"timezone": "UTC", "applies_to": ["a"], "bypass_event_types": ["a"]}}"#,
            "delivery_schedule.bypass_event_types",
        ),
        (r#"{"url": "https://example.com/", "retry": {"strategy": "exponential", "factor": 11}}"#, "retry.factor"),
        (r#"{"url": "https://example.com/", "retry": {"strategy": "schedule", "base_ms": 1}}"#, "retry.base_ms"),
        (r#"{"url": "https://example.com/", "retry": {"delays_seconds": [604801]}}"#, "retry.delays_seconds"),
        (r#"{"url": "https://example.com/", "retry": {"max_attempts": 51}}"#, "retry.max_attempts"),
        (r#"{"url": "https://example.com/", "retry": {"also_statuses": [500]}}"#, "retry.also_statuses"),
        (r#"{"url": "https://example.com/", "retry": {"also_statuses": ["5xx"]}}"#, "retry.also_statuses[0]"),
        (r#"{"url": "https://example.com/", "retry": {"also_statuses": ["4xx", 404]}}"#, "retry.also_statuses[1]"),
        (r#"{"url": "https://example.com/", "timeout": {"mode": "manual", "timeout_ms": 999}}"#, "timeout.timeout_ms"),
        (r#"{"url": "https://example.com/", "timeout": {"mode": "adaptive", "timeout_ms": 5000}}"#, "timeout.timeout_ms"),
        (r#"{"url": "https://example.com/", "circuit": {"failure_threshold": 0}}"#, "circuit.failure_threshold"),
        (r#"{"url": "https://example.com/", "headers": {"Host": "x"}}"#, "headers.host"),
        (r#"{"url": "https://example.com/", "headers": {"x-a": "a\r\nb"}}"#, "headers.x-a"),
        (r#"{"url": "https://example.com/", "metadata": {"a": 1}}"#, "metadata.a"),
        (r#"{"url": "https://example.com/", "payload_format": "xml"}"#, "payload_format"),
        (r#"{"url": "https://example.com/", "uid": "a.b"}"#, "uid"),
        (r#"{"url": "https://example.com/", "secret": "hunter2"}"#, "secret"),
        (r#"{"url": null}"#, "url"),
    ] {
        strict.post("/v1/endpoints", body).await.refused(422, field);
    }
    assert_eq!(strict.get("/v1/endpoints").await.expect(200)["data"].as_array().unwrap().len(), 1, "nothing was stored");
}

#[tokio::test]
async fn a_tenant_has_as_many_endpoints_as_it_may() {
    let server = Server::with("limit", posthaste_api::Options { endpoints_per_tenant_max: 2, ..options() });
    server.endpoint(URL).await;
    server.endpoint(URL).await;
    server.post("/v1/endpoints", URL).await.expect(409);
    server.patch("/v1/tenants/acme", r#"{"limits": {"max_endpoints": 3}}"#).await.expect(200);
    server.endpoint(URL).await;
    server.post("/v1/endpoints", URL).await.expect(409);
    let pages = server.get("/v1/endpoints?limit=2").await.expect(200);
    assert_eq!(pages["data"].as_array().unwrap().len(), 2);
    let rest = server.get(&format!("/v1/endpoints?limit=2&cursor={}", text(&pages["next_cursor"]))).await.expect(200);
    assert_eq!((rest["data"].as_array().unwrap().len(), &rest["next_cursor"]), (1, &json!(null)));
}

#[tokio::test]
async fn a_test_send_answers_with_its_attempt_and_not_too_often() {
    let server = Server::new("test-send");
    let made = server.endpoint(URL).await;
    let test = async |body: &str| server.post(&format!("{}/test", path("endpoints", &made)), body.to_owned()).await;
    Owner::of(&server.store).await.obey(vec![]).await;
    test(r#"{"type": "a b"}"#).await.refused(422, "type");
    let attempt = test(r#"{"type": "invoice.paid", "data": {"a": 1}}"#).await.expect(200);
    assert_eq!(
        (&attempt["outcome"], &attempt["status_code"], &attempt["delivery"]),
        (&"success".into(), &204.into(), &json!(null))
    );
    let again = test("").await;
    assert!(again.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() <= 5);
    again.expect(429);
    let stats = server.get(&format!("{}/stats", path("endpoints", &made))).await.expect(200);
    assert_eq!((&stats["total"]["attempts"], &stats["health"]["score"]), (&0.into(), &100.into()));
}

#[tokio::test]
async fn i28_a_change_that_its_owner_does_not_confirm_says_by_when_it_is_in_force() {
    let server = Server::new("unconfirmed");
    let made = server.endpoint(URL).await;
    let at = path("endpoints", &made);
    let effective_by = |answer: &crate::server::Answer| answer.headers.get("posthaste-effective-by").cloned();
    let unowned = server.patch(&at, r#"{"description": "1"}"#).await;
    assert_eq!(effective_by(&unowned), None, "no one sends there");
    let commands = server.store.commands(posthaste_store::NodeId(7));
    let now = server.store.now();
    let unconfirmed = server.post(&format!("{at}/pause"), "").await;
    let told = effective_by(&unconfirmed).expect("the owner does not answer");
    let told = posthaste_core::time::Timestamp::parse(told.to_str().unwrap()).unwrap();
    assert!(now < told && told <= server.store.now() + posthaste_store::LEASE, "{told:?}");
    unconfirmed.expect(200);
    drop(commands);
    Owner::of(&server.store).await.obey(vec![]).await;
    assert_eq!(effective_by(&server.post(&format!("{at}/resume"), "").await), None, "it is in force");
}
