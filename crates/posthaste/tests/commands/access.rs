//! What one caller may learn of another's: each test asks for it, with the real binary on both databases.

use posthaste_testpg::Server as Database;
use serde_json::{Value, json};

use crate::server::Server;

const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const LOCAL: [&str; 3] = ["--allow-http", "--allow-networks", "127.0.0.0/8"];

/// Runs a test on SQLite and on PostgreSQL, with these flags beside those that let it deliver to this machine.
pub(crate) fn on_both(name: &str, flags: &[&str], test: impl Fn(&mut Server)) {
    let flags = [&LOCAL, flags].concat();
    test(&mut Server::start_bare(&format!("{name}-sqlite"), &flags));
    let database = Database::start();
    let url = database.url();
    let flags = [flags.as_slice(), &["--database-url", &url, "--master-key", MASTER_KEY]].concat();
    test(&mut Server::start_bare(&format!("{name}-postgres"), &flags));
}

/// A key for one tenant.
pub(crate) fn key_of(server: &Server, tenant: &str, scopes: &[&str]) -> String {
    let made = server.good("POST", "/v1/keys", &json!({"name": "test", "tenant": tenant, "scopes": scopes}).to_string());
    made["key"].as_str().unwrap().to_owned()
}

pub(crate) fn call_as(server: &Server, key: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (status, _, answer) = server.exchange_as(key, method, path, &[], body);
    (status, serde_json::from_str(&answer).unwrap_or(Value::Null))
}

/// An endpoint that takes nothing for now, with so many deliveries that wait.
fn paused_endpoint(server: &Server, tenant: &str, deliveries: usize) -> String {
    server.good("PUT", &format!("/v1/tenants/{tenant}"), "{}");
    let made = server.good("POST", "/v1/endpoints", &json!({"url": "http://127.0.0.1:8/", "tenant": tenant}).to_string());
    let id = made["id"].as_str().unwrap().to_owned();
    server.good("POST", &format!("/v1/endpoints/{id}/pause"), "");
    let events: Vec<Value> = (0..deliveries).map(|n| json!({"type": "a.b", "tenant": tenant, "data": n})).collect();
    for batch in events.chunks(1000) {
        server.good("POST", "/v1/events/batch", &Value::from(batch.to_vec()).to_string());
    }
    id
}

/// Of a page, what does not depend on when it was asked for.
fn without_time(mut page: Value) -> Value {
    page.as_object_mut().unwrap().remove("as_of");
    page
}

#[test]
fn another_tenants_endpoint_in_a_filter_is_answered_like_one_that_was_never_made() {
    on_both("foreign-endpoint", &[], |server| {
        let foreign = paused_endpoint(server, "globex", 2_500);
        paused_endpoint(server, "acme", 1);
        let key = key_of(server, "acme", &["read"]);
        let unknown = "ep_01ktyk0000000000000000000a";
        for list in ["deliveries", "dead-letters"] {
            let ask = |endpoint: &str| call_as(server, &key, "GET", &format!("/v1/{list}?endpoint={endpoint}&limit=1"), "");
            let ((status, answer), (status_of_unknown, answer_for_unknown)) = (ask(&foreign), ask(unknown));
            assert_eq!((status, status_of_unknown), (200, 200), "{list}: {answer}");
            assert_eq!(without_time(answer.clone()), without_time(answer_for_unknown), "{list}");
            assert_eq!((&answer["data"], &answer["next_cursor"]), (&json!([]), &Value::Null), "{list}");
        }
        for path in ["/v1/stream?endpoint=", "/v1/endpoints/"] {
            let ask = |endpoint: &str| call_as(server, &key, "GET", &format!("{path}{endpoint}"), "");
            let (asked, of_unknown) = (ask(&foreign), ask(unknown));
            assert_eq!(asked, of_unknown, "{path}");
            assert_eq!(asked.0, 404, "{path}");
        }
    });
}

#[test]
fn a_cursor_is_good_for_its_own_list_tenant_and_filter_after_a_restart_too() {
    on_both("cursors", &[], |server| {
        paused_endpoint(server, "globex", 3);
        paused_endpoint(server, "acme", 3);
        let (acme, globex) = (key_of(server, "acme", &["read"]), key_of(server, "globex", &["read"]));
        let (status, first) = call_as(server, &acme, "GET", "/v1/deliveries?limit=2&status=scheduled", "");
        assert_eq!(status, 200, "{first}");
        let cursor = first["next_cursor"].as_str().unwrap().to_owned();
        server.end(false);
        server.restart();
        let page = |key: &str, path: &str| call_as(server, key, "GET", &format!("{path}cursor={cursor}"), "");
        let (status, second) = page(&acme, "/v1/deliveries?status=scheduled&");
        assert_eq!((status, second["data"].as_array().unwrap().len()), (200, 1), "{second}");
        for (key, path) in [
            (&acme, "/v1/deliveries?"),
            (&acme, "/v1/deliveries?status=dead&"),
            (&acme, "/v1/dead-letters?status=scheduled&"),
            (&acme, "/v1/events?"),
            (&globex, "/v1/deliveries?status=scheduled&"),
            (&server.key, "/v1/deliveries?status=scheduled&"),
        ] {
            let (status, problem) = page(key, path);
            assert_eq!(status, 400, "{path}: {problem}");
        }
        let (status, problem) = call_as(server, &acme, "GET", "/v1/deliveries?cursor=MTg0NDY3NDQwNzM3MDk1NTE2MTY", "");
        assert_eq!(status, 400, "{problem}");
    });
}

/// Makes a portal link and answers its code.
fn portal_code(server: &Server, key: &str, tenant: &str, permissions: &[&str]) -> String {
    let body = json!({"tenant": tenant, "permissions": permissions}).to_string();
    let (status, link) = call_as(server, key, "POST", "/v1/portal-links", &body);
    assert_eq!(status, 201, "{link}");
    link["url"].as_str().unwrap().split_once("/portal#code=").unwrap().1.to_owned()
}

/// What the exchange of a code answers.
fn exchange(server: &Server, code: &str) -> (u16, Value) {
    call_as(server, "", "POST", "/v1/portal-sessions", &json!({"code": code}).to_string())
}

/// The token of a new session.
fn portal_token(server: &Server, key: &str, tenant: &str, permissions: &[&str]) -> String {
    let (status, started) = exchange(server, &portal_code(server, key, tenant, permissions));
    assert_eq!(status, 201, "{started}");
    started["token"].as_str().unwrap().to_owned()
}

fn status_as(server: &Server, key: &str, method: &str, path: &str, body: &str) -> u16 {
    call_as(server, key, method, path, body).0
}

#[test]
fn a_portal_code_is_good_for_one_use() {
    on_both("portal-code", &[], |server| {
        server.good("PUT", "/v1/tenants/acme", "{}");
        let code = portal_code(server, &server.key, "acme", &["view"]);
        assert_eq!(status_as(server, &code, "GET", "/v1/endpoints", ""), 401, "a code is no token");
        let attempts = 8;
        let answers: Vec<(u16, Value)> = std::thread::scope(|scope| {
            let exchanges: Vec<_> = (0..attempts).map(|_| scope.spawn(|| exchange(server, &code))).collect();
            exchanges.into_iter().map(|exchange| exchange.join().unwrap()).collect()
        });
        let started: Vec<&Value> = answers.iter().filter(|(status, _)| *status == 201).map(|(_, answer)| answer).collect();
        assert_eq!(started.len(), 1, "{answers:?}");
        assert!(answers.iter().filter(|(status, _)| *status == 401).count() == attempts - 1, "{answers:?}");
        let token = started[0]["token"].as_str().unwrap();
        assert_eq!(status_as(server, token, "GET", "/v1/endpoints", ""), 200);
        assert_eq!(exchange(server, "phc_nothing").0, 401);
        assert_eq!(exchange(server, token).0, 401, "a token is no code");
    });
}

#[test]
fn a_portal_session_ends_with_its_tenant_and_never_makes_one() {
    on_both("portal-tenant", &[], |server| {
        server.good("PUT", "/v1/tenants/acme", "{}");
        let token = portal_token(server, &server.key, "acme", &["view", "manage"]);
        let unused = portal_code(server, &server.key, "acme", &["view", "manage"]);
        let endpoint = json!({"url": "http://127.0.0.1:8/"}).to_string();
        assert_eq!(status_as(server, &token, "POST", "/v1/endpoints", &endpoint), 201);
        assert_eq!(server.call("DELETE", "/v1/tenants/acme", "").0, 204);
        assert_eq!(status_as(server, &token, "POST", "/v1/endpoints", &endpoint), 401);
        assert_eq!(server.call("GET", "/v1/tenants/acme", "").0, 404, "it was not made again");
        // A new customer with the same name.
        server.good("POST", "/v1/events", &json!({"type": "a.b", "tenant": "acme", "id": "theirs", "data": "private"}).to_string());
        for path in ["/v1/endpoints", "/v1/events/theirs", "/v1/events"] {
            assert_eq!(status_as(server, &token, "GET", path, ""), 401, "{path}");
        }
        assert_eq!(exchange(server, &unused).0, 401);
    });
}

#[test]
fn portal_sessions_are_listed_and_end_one_by_one_by_tenant_by_key_and_with_their_key() {
    on_both("portal-ends", &[], |server| {
        for tenant in ["acme", "globex"] {
            server.good("PUT", &format!("/v1/tenants/{tenant}"), "{}");
        }
        let made = server.good("POST", "/v1/keys", r#"{"name": "app", "scopes": ["admin"]}"#);
        let (key, key_id) = (made["key"].as_str().unwrap(), made["id"].as_str().unwrap());
        let own = key_of(server, "globex", &["admin"]);
        let is_in = |token: &str| status_as(server, token, "GET", "/v1/endpoints", "") == 200;
        let listed =
            |query: &str| server.good("GET", &format!("/v1/portal-sessions{query}"), "")["data"].as_array().unwrap().clone();

        // One.
        let (first, second) = (portal_token(server, key, "acme", &["view"]), portal_token(server, key, "acme", &["view"]));
        assert_eq!(listed("?tenant=acme").len(), 2);
        assert!(listed("").iter().all(|session| session["key"] == key_id && session["started_at"].is_string()));
        let newest = listed("?tenant=acme")[0]["id"].as_str().unwrap().to_owned();
        assert_eq!(status_as(server, &own, "DELETE", &format!("/v1/portal-sessions/{newest}"), ""), 404, "another tenant's");
        assert_eq!(server.call("DELETE", &format!("/v1/portal-sessions/{newest}"), "").0, 204);
        assert!(is_in(&first) && !is_in(&second));
        // One that ends itself.
        assert_eq!(status_as(server, &first, "DELETE", "/v1/sessions", ""), 204);
        assert!(!is_in(&first));

        // All of a tenant, unused links too.
        let (here, there) = (portal_token(server, key, "acme", &["view"]), portal_token(server, key, "globex", &["view"]));
        let unused = portal_code(server, key, "acme", &["view"]);
        assert_eq!(status_as(server, &own, "DELETE", "/v1/portal-sessions?tenant=acme", ""), 204, "nothing of theirs");
        assert!(is_in(&here));
        assert_eq!(server.call("DELETE", "/v1/portal-sessions?tenant=acme", "").0, 204);
        assert!(!is_in(&here) && is_in(&there) && exchange(server, &unused).0 == 401);
        assert_eq!(server.call("DELETE", "/v1/portal-sessions", "").0, 422);

        // All made by a key.
        let by_admin = portal_token(server, &server.key, "acme", &["view"]);
        assert_eq!(listed("?key=admin").len(), 1);
        assert_eq!(server.call("DELETE", &format!("/v1/portal-sessions?key={key_id}"), "").0, 204);
        assert!(!is_in(&there) && is_in(&by_admin));
        assert_eq!(server.call("DELETE", "/v1/portal-sessions?key=admin", "").0, 204);
        assert!(!is_in(&by_admin));

        // With the key.
        let (token, unused) = (portal_token(server, key, "acme", &["view"]), portal_code(server, key, "acme", &["view"]));
        assert_eq!(server.call("DELETE", &format!("/v1/keys/{key_id}"), "").0, 204);
        assert!(!is_in(&token) && exchange(server, &unused).0 == 401);
        assert_eq!(listed("").len(), 0);
    });
}

#[test]
fn a_session_of_the_dashboard_that_was_ended_is_over_for_every_copy_of_its_cookie() {
    on_both("dashboard-session", &[], |server| {
        let (status, head, _) = server.exchange("POST", "/v1/sessions", &[], "");
        assert_eq!(status, 201, "{head}");
        let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let with_cookie = |method: &str| {
            let origin = format!("http://{}", server.address);
            let host = server.address;
            let head = format!("host: {host}\r\ncookie: {cookie}\r\norigin: {origin}\r\nconnection: close\r\n");
            server.raw(&format!("{method} /v1/sessions HTTP/1.1\r\n{head}\r\n")).0
        };
        assert_eq!(with_cookie("GET"), 200);
        assert_eq!(with_cookie("DELETE"), 204);
        assert_eq!(with_cookie("GET"), 401);
    });
}

#[test]
fn header_credentials_do_not_follow_a_url_that_a_caller_without_secrets_changes() {
    on_both("hidden-headers", &[], |server| {
        let theirs = crate::server::Receiver::start("200 OK", b"");
        let body = json!({"url": theirs.url(), "tenant": "acme", "headers": {"authorization": "Bearer canary", "x-b": "canary-b"}});
        let made = server.good("POST", "/v1/endpoints", &body.to_string());
        let path = format!("/v1/endpoints/{}", made["id"].as_str().unwrap());
        let manage = portal_token(server, &server.key, "acme", &["view", "manage"]);
        // The same server at another path keeps them.
        let same = format!("{}/elsewhere", theirs.url());
        let (status, kept) = call_as(server, &manage, "PATCH", &path, &json!({"url": same}).to_string());
        assert_eq!((status, &kept["headers"]["authorization"]), (200, &json!("********")), "{kept}");
        assert_eq!(kept["warnings"], Value::Null);
        // The attacker's own one, with masked values sent back.
        let ours = crate::server::Receiver::start("200 OK", b"");
        let moved = json!({"url": ours.url(), "headers": {"authorization": "********", "x-b": "given again"}});
        let (status, moved) = call_as(server, &manage, "PATCH", &path, &moved.to_string());
        assert_eq!((status, &moved["headers"]), (200, &json!({"x-b": "********"})), "{moved}");
        assert!(moved["warnings"][0].as_str().unwrap().contains("`authorization` was removed"), "{moved}");
        server.good("POST", &format!("{path}/test"), "");
        let seen = ours.first().head;
        assert!(!seen.contains("canary") && seen.contains("given again"), "{seen}");
        // Somebody who may see secrets takes them along.
        let body = json!({"url": theirs.url(), "headers": {"authorization": "Bearer canary"}});
        server.good("PATCH", &path, &body.to_string());
        let moved = server.good("PATCH", &path, &json!({"url": ours.url()}).to_string());
        assert_eq!(moved["headers"], json!({"authorization": "********"}));
    });
}

#[test]
fn metrics_are_open_only_to_a_loopback_client_that_calls_a_loopback_name() {
    let server = Server::start_bare("local-metrics", &[]);
    let ask = |headers: &str| server.raw(&format!("GET /metrics HTTP/1.1\r\n{headers}connection: close\r\n\r\n")).0;
    assert_eq!(ask(&format!("host: {}\r\n", server.address)), 200);
    assert_eq!(ask("host: localhost:8080\r\n"), 200);
    assert_eq!(ask("host: rebound.example\r\n"), 401);
    assert_eq!(ask("host: localhost\r\nx-forwarded-proto: https\r\n"), 401);
    assert_eq!(ask("host: localhost\r\nforwarded: for=192.0.2.1\r\n"), 401);
    let key = format!("host: rebound.example\r\nauthorization: Bearer {}\r\n", server.key);
    assert_eq!(ask(&key), 200);
}

#[test]
fn failed_authentication_is_limited_by_address_counted_and_logged() {
    on_both("failed-authentication", &["--api-rate", "1000000"], |server| {
        let mut answers = std::collections::BTreeMap::new();
        for attempt in 0..150 {
            let key = format!("phk_wrong-{attempt:020}");
            *answers.entry(status_as(server, &key, "GET", "/v1/endpoints", "")).or_insert(0) += 1;
        }
        assert!(answers[&401] >= 100 && answers[&429] >= 1, "{answers:?}");
        assert_eq!(server.call("GET", "/v1/endpoints", "").0, 200, "a valid key from the same address is served");
        let (_, page) = server.raw("GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        assert!(page.contains("posthaste_failed_authentications_total 150"), "{page}");
        let lines = server.said().lines().filter(|line| line.contains("authentication_failed")).count();
        assert!((1..=10).contains(&lines), "{lines} lines: {}", server.said());
    });
}

#[test]
fn the_tenant_of_notifications_is_the_operators_alone() {
    on_both("reserved-tenant", &[], |server| {
        let manage = server.good("POST", "/v1/keys", r#"{"name": "app", "scopes": ["manage", "publish", "read"]}"#);
        let app = manage["key"].as_str().unwrap();
        let event = |tenant: &str, kind: &str| json!({"type": kind, "tenant": tenant, "data": 1}).to_string();
        let endpoint =
            |types: &[&str]| json!({"url": "http://127.0.0.1:8/", "tenant": "posthaste", "event_types": types}).to_string();
        let refused = |key: &str, path: &str, body: &str, field: &str| {
            let (status, problem) = call_as(server, key, "POST", path, body);
            assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!(field)), "{path} {body}: {problem}");
        };
        // An application passes on what its customer wants to be called.
        refused(app, "/v1/endpoints", &endpoint(&[]), "tenant");
        refused(app, "/v1/endpoints", &endpoint(&["posthaste.*"]), "tenant");
        refused(app, "/v1/events", &event("posthaste", "a.b"), "tenant");
        refused(app, "/v1/events", &event("acme", "posthaste.endpoint.failing"), "type");
        refused(&server.key, "/v1/events", &event("posthaste", "a.b"), "tenant");
        refused(&server.key, "/v1/endpoints", &endpoint(&[]), "event_types");
        refused(&server.key, "/v1/endpoints", &endpoint(&["posthaste.*", "a.b"]), "event_types");
        refused(&server.key, "/v1/keys", r#"{"name": "x", "tenant": "posthaste", "scopes": ["read"]}"#, "tenant");
        refused(&server.key, "/v1/portal-links", r#"{"tenant": "posthaste", "permissions": ["view"]}"#, "tenant");
        refused(&server.key, "/v1/event-types", r#"{"name": "posthaste.mine"}"#, "name");
        let (_, batch) = call_as(server, app, "POST", "/v1/events/batch", &format!("[{}]", event("posthaste", "a.b")));
        assert_eq!(batch["rejected"], 1, "{batch}");
        // The operator.
        server.good("POST", "/v1/endpoints", &endpoint(&["posthaste.endpoint.*"]));
        server.end(false);
        server.restart();
        assert_eq!(server.call("GET", "/v1/tenants/posthaste", "").0, 200, "an operator's endpoint does not keep it from starting");
    });
}

#[test]
fn a_server_does_not_start_where_a_customer_has_the_tenant_of_notifications() {
    on_both("taken-tenant", &["--notifications-tenant", "other"], |server| {
        server.good("POST", "/v1/events", &json!({"type": "a.b", "tenant": "posthaste", "data": 1}).to_string());
        server.end(false);
        let said = server.refused_with(&["--notifications-tenant", "posthaste"]);
        assert!(said.contains("the tenant `posthaste` is reserved for notifications"), "{said}");
        assert!(said.contains("type a.b") && said.contains("--notifications-tenant"), "{said}");
        // The way out.
        server.restart();
        key_of(server, "posthaste", &["read"]);
        server.end(false);
        let said = server.refused_with(&["--notifications-tenant", "posthaste"]);
        assert!(said.contains("key_") && said.lines().count() == 1, "{said}");
        server.restart();
    });
}

#[test]
fn a_receiver_that_echoes_our_headers_escaped_or_cut_does_not_show_them() {
    let server = Server::start_bare("echoed-headers", &LOCAL);
    let (long, short) = (r#"ca"na\ry/secret-value"#, "4711");
    let body = format!("{} and cut: ca\"na and {short} at the end: ecret-va", json!({"got": long}));
    let receiver = crate::server::Receiver::start("500 Oops", body.as_bytes());
    let endpoint = json!({"url": receiver.url(), "headers": {"x-long": long, "x-short": short}});
    let made = server.good("POST", "/v1/endpoints", &endpoint.to_string());
    let attempt = server.good("POST", &format!("/v1/endpoints/{}/test", made["id"].as_str().unwrap()), "");
    let preview = attempt["response_preview"].as_str().unwrap();
    assert_eq!(preview, "{\"got\":\"[redacted]\"} and cut: ca\"na and [redacted] at the end: [redacted]", "{attempt}");
}
