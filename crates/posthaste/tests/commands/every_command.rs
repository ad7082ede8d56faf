//! Every command once, against a real server.

use std::collections::BTreeSet;
use std::process::Command;

use crate::server::{BINARY, Receiver, Server, run, tomorrow};

/// Not clients of the API, and tested where they belong.
const OTHERS: [&str; 13] = [
    "serve",
    "demo",
    "bench",
    "migrate",
    "backup",
    "restore",
    "health",
    "outbox",
    "doctor",
    "verify",
    "openapi",
    "completions",
    "help",
];

/// The commands below this one, as its help lists them.
fn listed(command: &[&str]) -> Vec<String> {
    let output = Command::new(BINARY).args(command).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let Some((_, rest)) = help.split_once("\nCommands:\n") else { return vec![] };
    let names = rest.lines().take_while(|line| !line.is_empty()).filter(|line| line.starts_with("  ") && !line.starts_with("    "));
    names.map(|line| line.split_whitespace().next().unwrap().to_owned()).filter(|name| name != "help").collect()
}

#[test]
fn every_command_does_what_it_says() {
    let server = Server::start("every");
    let receiver = Receiver::start("204 No Content", b"");
    let url = receiver.url();
    let ok = |arguments: &[&str]| server.ok(arguments);

    assert_eq!(ok(&["status"]), "nothing needs attention\n");
    // Tenants and the catalogue.
    ok(&["tenants", "put", "acme", "--weight", "3", "--metadata", "plan=gold"]);
    ok(&["tenants", "patch", "acme", "--rate-limit", "6000:100"]);
    let shown = server.json(&["tenants", "show", "acme"]);
    assert_eq!((shown["weight"].as_u64(), shown["rate_limit"]["burst_capacity"].as_u64()), (Some(3), Some(100)), "{shown}");
    assert_eq!(shown["metadata"]["plan"], "gold");
    ok(&["tenants", "patch", "acme", "--inherit", "rate-limit"]);
    assert!(server.json(&["tenants", "show", "acme"])["rate_limit"].is_null());
    assert!(ok(&["tenants", "list"]).contains("acme"));
    ok(&["event-types", "create", "invoice.paid", "--description", "Money came."]);
    ok(&["event-types", "patch", "invoice.paid", "--deprecated", "--versions", r#"[{"version": "1"}]"#]);
    assert!(server.json(&["event-types", "show", "invoice.paid"])["deprecated"].as_bool().unwrap());
    assert!(ok(&["event-types", "list"]).contains("invoice.paid"));

    // Endpoints.
    let endpoint = server.json(&[
        "endpoints",
        "create",
        &url,
        "--tenant",
        "acme",
        "--event-types",
        "invoice.*,order.*",
        "--rate-limit",
        "6000",
        "--timeout-ms",
        "5000",
        "--quiet-hours",
        "00:00-00:01",
        "--timezone",
        "Europe/Berlin",
        "--header",
        "X-Team: billing",
        "--uid",
        "billing",
    ]);
    let id = endpoint["id"].as_str().unwrap();
    assert!(endpoint["secret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!(endpoint["rate_limit"]["burst_capacity"], 6000);
    assert_eq!(endpoint["timeout"]["timeout_ms"], 5000);
    assert_eq!(endpoint["headers"]["X-Team"].as_str().or(endpoint["headers"]["x-team"].as_str()), Some("billing"));
    ok(&["endpoints", "patch", id, "--delivery-schedule", "always", "--inherit", "rate-limit", "--description", "for invoices"]);
    let put = server.json(&["endpoints", "put", "second", &url, "--tenant", "acme", "--event-types", "nothing.at.all"]);
    let second = put["id"].as_str().unwrap();
    assert!(ok(&["endpoints", "list", "--tenant", "acme"]).contains(id));
    assert!(ok(&["endpoints", "show", id]).contains("for invoices"));
    assert_eq!(server.json(&["endpoints", "pause", id, "--until", "2099-01-01T00:00:00Z"])["status"], "paused");
    assert_eq!(server.json(&["endpoints", "resume", id])["status"], "active");
    assert_eq!(server.json(&["endpoints", "disable", second])["status"], "disabled");
    let attention = server.run(&["status", "--tenant", "acme"]);
    assert_eq!(attention.code, 1, "{attention:?}");
    assert!(attention.out.contains(&format!("posthaste endpoints show {second}")), "{attention:?}");
    assert_eq!(server.json(&["endpoints", "enable", second])["status"], "active");
    assert!(server.text(&["endpoints", "rotate-secret", second, "--overlap-seconds", "60"], "secret").starts_with("whsec_"));
    assert_eq!(server.json(&["endpoints", "test", id, "--type", "invoice.test", "--data", "[1]"])["outcome"], "success");

    // Events and their deliveries.
    let event = server.text(&["events", "publish", "invoice.paid", "--tenant", "acme", "--data", r#"{"amount": 4999}"#], "id");
    assert!(ok(&["events", "list", "--tenant", "acme", "--type", "invoice.paid"]).contains(&event));
    let listed_deliveries = server
        .wait_for(&["deliveries", "list", "--event", &event, "--tenant", "acme"], |list| list["data"][0]["status"] == "delivered");
    let delivery = listed_deliveries["data"][0]["id"].as_str().unwrap();
    assert!(ok(&["deliveries", "show", delivery]).contains("delivered"));
    assert!(ok(&["deliveries", "attempts", delivery]).contains("success"));
    assert!(ok(&["endpoints", "stats", id]).contains("health"));
    let again = server.text(&["deliveries", "retry", delivery], "id");
    assert_ne!(again, delivery);
    ok(&["deliveries", "show", &again, "--watch"]);

    // What waits can be called off, and says why it waits.
    let tomorrow = tomorrow();
    let later = ["events", "publish", "invoice.paid", "--tenant", "acme", "--data", "1", "--deliver-at", &tomorrow];
    let waiting = server.text(&later, "id");
    let held = server.json(&["deliveries", "list", "--event", &waiting, "--tenant", "acme", "--status", "scheduled"]);
    let table = ok(&["deliveries", "list", "--hold-reason", "deliver_at"]);
    let told = format!("deliver_at, {tomorrow}");
    assert!(table.contains(held["data"][0]["id"].as_str().unwrap()) && table.contains(&told), "why and until when: {table}");
    assert_eq!(server.json(&["deliveries", "cancel", held["data"][0]["id"].as_str().unwrap()])["status"], "cancelled");
    let waiting = server.text(&later, "id");
    assert_eq!(server.json(&["events", "cancel", &waiting])["deliveries"]["cancelled"], 1);
    ok(&["events", "erase", &waiting]);
    assert!(server.json(&["events", "show", &waiting])["erased_at"].is_string());

    // A batch, from a file and from stdin, as a list and by lines.
    let file = server.directory.join("batch.json");
    std::fs::write(&file, r#" [{"type": "a", "data": 1}, {"type": "b", "data": 2}]"#).unwrap();
    assert_eq!(server.json(&["events", "batch", file.to_str().unwrap()])["accepted"], 2);
    let lines = run(server.command(&["events", "batch", "-", "--json"]), "{\"type\": \"a\", \"data\": 1}\n{\"type\": 7}\n");
    assert!(lines.code == 4 && lines.out.contains("\"rejected\":1"), "{lines:?}");

    // Dead letters and replays.
    let refusing = Receiver::start("410 Gone", b"never again");
    server.ok(&["endpoints", "create", &refusing.url(), "--tenant", "acme", "--event-types", "order.*"]);
    ok(&["events", "publish", "order.made", "--tenant", "acme", "--data", "1"]);
    let dead = server.wait_for(&["dead-letters", "list"], |list| list["data"][0]["status"] == "dead");
    let table = ok(&["dead-letters", "list", "--tenant", "acme"]);
    assert!(table.contains("endpoint_gone"), "{table}");
    let dead_endpoint = dead["data"][0]["endpoint"].as_str().unwrap();
    ok(&["endpoints", "enable", dead_endpoint]);
    ok(&["dead-letters", "retry", dead["data"][0]["id"].as_str().unwrap()]);
    let replayed = ["replay", "create", "--endpoint", id, "--status", "delivered", "--reason", "they lost them"];
    assert!(server.json(&[&replayed[..], &["--dry-run"]].concat())["matched"].as_u64().unwrap() >= 2);
    let watched = ok(&[&replayed[..], &["--watch", "--idempotency-key", "once"]].concat());
    assert!(watched.contains("done"), "it is followed to its end: {watched}");
    let replay = server.text(&[&replayed[..], &["--idempotency-key", "once"]].concat(), "id");
    assert!(watched.contains(&replay), "the same key is the same replay");
    assert!(ok(&["replay", "show", &replay, "--watch"]).contains(" made, "));
    assert!(ok(&["replay", "show", &replay]).contains("they lost them"));
    assert!(ok(&["replay", "list"]).contains(&replay));
    ok(&["replay", "cancel", &replay]);

    // Who may do what, who did, and how it goes.
    let key = server.json(&["keys", "create", "for the till", "--scopes", "publish,read", "--tenant", "acme"]);
    assert!(key["key"].as_str().unwrap().starts_with("phk_"));
    assert!(ok(&["keys", "list"]).contains("for the till"));
    ok(&["keys", "delete", key["id"].as_str().unwrap()]);
    assert!(ok(&["audit", "--tenant", "acme"]).contains("endpoint.create"));
    let stats = ok(&["stats", "--tenant", "acme"]);
    assert!(stats.contains("total.delivered") && stats.contains("backlog.held.quiet_hours"), "{stats}");
    assert!(server.text(&["portal-link", "acme", "--permissions", "view,replay"], "url").contains("/portal#code="));
    let link = server.text(&["portal-link", "acme"], "session");
    assert!(ok(&["portal-sessions", "list", "--tenant", "acme"]).contains(&link));
    ok(&["portal-sessions", "end", &link]);
    ok(&["portal-sessions", "end-all", "--tenant", "acme", "--key", "admin"]);
    assert!(!ok(&["portal-sessions", "list"]).contains("ses_"));
    let filter = ["filters", "test", "--filter", r#"{"data.n": {"$gte": 2}}"#, "--event", r#"{"type": "a", "data": {"n": 2}}"#];
    assert_eq!(server.json(&filter)["matches"], true);
    assert!(server.json(&["cluster"])["nodes"].is_array());
    assert_eq!(server.json(&["hold", "show"])["is_held"], false);
    ok(&["hold", "release"]);

    ok(&["endpoints", "delete", second]);
    ok(&["event-types", "delete", "invoice.paid"]);
    ok(&["tenants", "delete", "acme", "--yes"]);

    let mut commands: BTreeSet<String> = BTreeSet::new();
    for name in listed(&[]).into_iter().filter(|name| !OTHERS.contains(&name.as_str())) {
        let below = listed(&[&name]);
        if below.is_empty() {
            commands.insert(name);
        } else {
            commands.extend(below.iter().map(|inner| format!("{name} {inner}")));
        }
    }
    let ran: BTreeSet<String> = server.ran.lock().unwrap().iter().cloned().collect();
    let first_word = |command: &String| ran.iter().any(|run| run.split(' ').next() == Some(command));
    let missing: Vec<_> = commands.iter().filter(|command| !ran.contains(*command) && !first_word(command)).collect();
    assert!(missing.is_empty() && commands.len() > 45, "not tried: {missing:?} of {commands:?}");
}
