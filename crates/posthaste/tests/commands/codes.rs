//! Each exit code, and what is said with it.

use std::net::TcpListener;

use crate::server::{Receiver, Run, Server, run};

/// What the command line says about another server than its own.
fn elsewhere(server: &Server, url: &str, arguments: &[&str]) -> Run {
    let mut command = server.command(arguments);
    command.env("POSTHASTE_URL", url).env("POSTHASTE_API_KEY", "phk_some_key_or_other");
    run(command, "")
}

#[test]
fn each_exit_code_means_what_the_help_says() {
    let server = Server::start("codes");
    let check = |run: &Run, code: i32, words: &[&str]| {
        assert_eq!(run.code, code, "{run:?}");
        assert_eq!(run.out, "", "nothing is on stdout that a script would take for an answer");
        for word in words {
            assert!(run.err.contains(word), "{word} is missing: {run:?}");
        }
    };
    // 1: something that is not Posthaste answers.
    let other = Receiver::start("200 OK", b"<html>hello</html>");
    let url = format!("http://{}", other.address);
    check(&elsewhere(&server, &url, &["stats"]), 1, &["is it the right URL"]);
    let moved = Receiver::start("301 Moved\r\nlocation: https://elsewhere.example/", b"");
    check(
        &elsewhere(&server, &format!("http://{}", moved.address), &["stats"]),
        1,
        &["https://elsewhere.example/", "not followed"],
    );
    // 2: wrong usage.
    check(&server.run(&["stats", "--colour"]), 2, &["--colour"]);
    check(&server.run(&["tenants", "patch", "acme"]), 2, &["nothing was said"]);
    check(&server.run(&["events", "publish", "a.b", "--data", "{not json"]), 2, &["data is not JSON"]);
    check(&server.run(&["events", "publish", "a.b", "--data", "@/nowhere/at/all"]), 2, &["/nowhere/at/all"]);
    // 3: nobody is there.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    check(&elsewhere(&server, &url, &["stats"]), 3, &[&url, "posthaste serve", "--url"]);
    // 4: refused, with the field at fault; or because it has changed meanwhile.
    check(&server.run(&["endpoints", "create", "ftp://x"]), 4, &["422", "url"]);
    check(&server.run(&["deliveries", "list", "--status", "lost"]), 4, &["status", "expected some of"]);
    let receiver = Receiver::start("204 No Content", b"");
    let id = server.text(&["endpoints", "create", &receiver.url()], "id");
    check(&server.run(&["endpoints", "patch", &id, "--description", "x", "--if-match", "4711"]), 4, &["412"]);
    server.ok(&["tenants", "put", "acme"]);
    server.ok(&["event-types", "create", "a.b"]);
    for (resource, name, change) in [("tenants", "acme", ["--weight", "2"]), ("event-types", "a.b", ["--description", "new"])] {
        let shown = server.ok(&[resource, "show", name]);
        let version = shown.lines().find_map(|line| line.strip_prefix("version ")?.split(' ').next()).unwrap();
        let patch = [&[resource, "patch", name, "--if-match", version][..], &change].concat();
        server.ok(&patch);
        check(&server.run(&[&patch[..], &["--from-json", "{}"]].concat()), 4, &["412"]);
    }
    // 5: not found.
    check(&server.run(&["events", "show", "evt_nobody"]), 5, &["404"]);
    check(&server.run(&["deliveries", "show", "../keys"]), 5, &["404"]);
    // 6: no key, a wrong one, or one that may not.
    check(&server.run(&["stats", "--data-dir", "elsewhere"]), 6, &["POSTHASTE_API_KEY", "elsewhere/admin.key"]);
    check(&elsewhere(&server, &format!("http://{}", server.address), &["stats"]), 6, &["401"]);
    let narrow = server.text(&["keys", "create", "narrow", "--scopes", "publish"], "key");
    check(&server.run(&["stats", "--api-key", &narrow]), 6, &["403", "`read`"]);
    // 7: too much, or broken; with when to come back.
    assert_eq!(server.run(&["endpoints", "test", &id]).code, 0);
    check(&server.run(&["endpoints", "test", &id]), 7, &["429", "Try again in"]);
    let down = Receiver::start("503 Service Unavailable\r\nretry-after: 17", b"<h1>down</h1>");
    check(&elsewhere(&server, &format!("http://{}", down.address), &["stats"]), 7, &["503", "Try again in 17 s"]);
}

#[test]
fn the_codes_are_in_the_help_of_every_command() {
    let server = Server::start("help");
    for command in ["events", "keys", "stats", "verify"] {
        let help = server.ok(&[command, "--help"]);
        assert!(help.contains("Exit codes:") && help.contains("3  the server cannot be reached"), "{help}");
    }
    assert!(server.ok(&["keys", "list", "--help"]).contains("better given as POSTHASTE_API_KEY"));
}

#[test]
fn a_tenant_is_not_deleted_because_nobody_could_be_asked() {
    let server = Server::start("confirm");
    server.ok(&["tenants", "put", "acme"]);
    let refused = server.run(&["tenants", "delete", "acme"]);
    assert!(refused.code == 2 && refused.err.contains("--yes"), "{refused:?}");
    server.ok(&["tenants", "show", "acme"]);
    server.ok(&["tenants", "delete", "acme", "--yes"]);
    assert_eq!(server.run(&["tenants", "show", "acme"]).code, 5);
}

#[test]
fn a_test_that_the_receiver_refuses_has_a_code_of_its_own() {
    let server = Server::start("refusing");
    let receiver = Receiver::start("500 Internal Server Error", b"");
    let id = server.text(&["endpoints", "create", &receiver.url()], "id");
    let tested = server.run(&["endpoints", "test", &id]);
    assert_eq!(tested.code, 8, "{tested:?}");
    assert!(tested.err.contains("http_error (500)") && tested.out.contains("http_error"), "{tested:?}");
}

#[test]
fn an_event_without_a_payload_is_asked_for_one() {
    let server = Server::start("payload");
    let run = server.run(&["events", "publish", "invoice.paid"]);
    assert!(run.code == 2 && run.err.contains("--data '{"), "{run:?}");
    let run = server.run(&["endpoints", "create", "http://example.com/"]);
    assert_eq!(run.code, 0, "http is allowed here: {run:?}");
}

#[test]
fn a_mistyped_tenant_is_warned_of_and_a_known_one_is_not() {
    let server = Server::start("warnings");
    let receiver = Receiver::start("204 No Content", b"");
    server.ok(&["endpoints", "create", &receiver.url(), "--tenant", "globex", "--event-types", "a.*"]);
    let typo = server.run(&["events", "publish", "a.b", "--tenant", "globexx", "--data", "1"]);
    assert!(typo.code == 0 && typo.err.contains("warning: The tenant `globexx` has no endpoints"), "{typo:?}");
    let fine = server.run(&["events", "publish", "a.b", "--tenant", "globex", "--data", "1"]);
    assert_eq!((fine.code, fine.err.as_str()), (0, ""));
    let other_type = server.json(&["events", "publish", "z.z", "--tenant", "globex", "--data", "1"]);
    assert_eq!(other_type["warnings"], serde_json::json!([]), "it has an endpoint, for other types");
    let batch = r#"[{"type": "a.b", "tenant": "globexx", "data": 1}, {"type": "a.b", "tenant": "globex", "data": 1}]"#;
    let answer = server.good("POST", "/v1/events/batch", batch);
    let warnings = |place: usize| answer["results"][place]["warnings"].as_array().unwrap().len();
    assert_eq!((warnings(0), warnings(1)), (1, 0), "{answer}");
}

#[test]
fn every_line_of_a_server_that_logs_json_is_json() {
    let mut server = Server::start_with("json", &["--log-format", "json"]);
    server.end(false);
    let mut said = server.said();
    let refused = server.refused_with(&["--log-format", "yaml"]);
    assert!(refused.contains("yaml"), "{refused}");
    for flags in [&["--listen", "256.0.0.1:1"][..], &["--data-dir", "/proc/nowhere"]] {
        let mut command = std::process::Command::new(crate::server::BINARY);
        command.args(["serve", "--log-format", "json"]).args(flags).current_dir(&server.directory).env_clear();
        let run = crate::server::run(command, "");
        assert_ne!(run.code, 0);
        said += &run.err;
    }
    assert!(said.lines().count() >= 4, "{said}");
    for line in said.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["message"].is_string() && line["level"].is_string(), "{line}");
    }
}
