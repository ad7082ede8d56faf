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
