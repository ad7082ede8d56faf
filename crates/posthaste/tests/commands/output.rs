//! What is printed: JSON to the byte, tables that cannot hurt, watching through a pipe.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::Value;

use crate::server::{BINARY, Receiver, Server, run, tomorrow};

#[test]
fn payloads_are_published_and_shown_to_the_byte() {
    let server = Server::start("bytes");
    // Big numbers, order, spaces, escapes, a duplicate, letters of other alphabets.
    let data = "{\"z\": 12345678901234567890123.4500,\n \"a\" :\"\\u00e9é\\/\",\"a\":[ 1e400 ]}";
    let ways: [(&str, &str); 3] = [("1", data), ("2", "@payload.json"), ("3", "-")];
    std::fs::write(server.directory.join("payload.json"), data).unwrap();
    for (id, given) in ways {
        let arguments = ["events", "publish", "a.b", "--id", id, "--data", given];
        assert_eq!(run(server.command(&arguments), data).code, 0);
        let shown = server.ok(&["events", "show", id, "--json"]);
        assert!(shown.contains(&format!("\"data\":{data}")), "{shown}");
    }
    let table = server.ok(&["events", "show", "1"]);
    assert!(table.contains("12345678901234567890123.4500"), "{table}");
}

#[test]
fn json_is_what_the_api_has_said_and_all_pages_make_one_list() {
    let server = Server::start("pages");
    for number in 0..5 {
        server.ok(&["events", "publish", "a.b", "--data", &number.to_string(), "--id", &format!("e{number}")]);
    }
    let page = server.run(&["events", "list", "--limit", "2", "--json"]);
    let raw = raw_get(&server, "/v1/events?limit=2");
    // Each was read at a time of its own.
    let without_time = |text: &str| {
        let (before, rest) = text.split_once("\"as_of\":\"").unwrap();
        format!("{before}{}", rest.split_once('"').unwrap().1)
    };
    assert_eq!(page.out.strip_suffix('\n').map(without_time), Some(without_time(&raw)), "untouched");
    assert!(page.err.contains("there is more") && page.err.contains("--all"), "{page:?}");
    let cursor = serde_json::from_str::<Value>(&page.out).unwrap()["next_cursor"].as_str().unwrap().to_owned();
    let next = server.json(&["events", "list", "--limit", "2", "--cursor", &cursor]);
    assert_eq!(next["data"][0]["id"], "e2");
    let all = server.run(&["events", "list", "--limit", "2", "--all", "--json"]);
    let list: Value = serde_json::from_str(&all.out).unwrap();
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert_eq!((ids, &list["next_cursor"], all.err.as_str()), (vec!["e4", "e3", "e2", "e1", "e0"], &Value::Null, ""));
    let table = server.ok(&["events", "list", "--limit", "2", "--all"]);
    assert_eq!(table.lines().count(), 6, "one line of titles: {table}");
    let none = server.run(&["replay", "list", "--all", "--json"]);
    assert_eq!(none.out, "{\"data\":[],\"next_cursor\":null}\n");
    let none = server.run(&["replay", "list"]);
    assert_eq!((none.out.as_str(), none.err.as_str()), ("", "there is none\n"));
}

fn raw_get(server: &Server, path: &str) -> String {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\n\r\n", server.key).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn what_a_stranger_has_written_cannot_reach_the_terminal() {
    let server = Server::start("hostile");
    let hostile = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\r\nlast";
    let receiver = Receiver::start("400 Bad Request", hostile.as_bytes());
    server.ok(&["endpoints", "create", &receiver.url(), "--tenant", "acme"]);
    let event = server.text(&["events", "publish", "a.b", "--tenant", "acme", "--data", "\"\u{9b}31m\u{7f}\""], "id");
    let dead = server.wait_for(&["dead-letters", "list"], |list| !list["data"].as_array().unwrap().is_empty());
    let delivery = dead["data"][0]["id"].as_str().unwrap();
    let outputs = [
        server.ok(&["deliveries", "attempts", delivery]),
        server.ok(&["deliveries", "show", delivery]),
        server.ok(&["events", "show", &event]),
        server.ok(&["deliveries", "list"]),
        server.run(&["events", "show", "\u{1b}[2J"]).err,
        server.run(&["deliveries", "list", "--status", "\u{1b}[2J"]).err,
    ];
    for output in &outputs {
        let escaped: Vec<char> = output.chars().filter(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}').collect();
        assert!(escaped.is_empty(), "{escaped:?} in {output:?}");
    }
    // The server has taken the worst out already; what it lets through is escaped here.
    assert!(outputs[0].contains(r"\u{202e}\r\nlast"), "shown, but harmless: {}", outputs[0]);
    assert!(outputs[2].contains(r"\u{9b}31m\u{7f}"), "{}", outputs[2]);
    // Through a pipe JSON is as it came.
    assert!(server.ok(&["events", "show", &event, "--json"]).contains("\"\u{9b}31m\u{7f}\""));
}

#[test]
fn watching_through_a_pipe_adds_what_has_changed_and_nothing_twice() {
    let server = Server::start("watch");
    let receiver = Receiver::start("204 No Content", b"");
    server.ok(&["endpoints", "create", &receiver.url()]);
    let event = server.text(&["events", "publish", "a.b", "--data", "1", "--deliver-at", &tomorrow()], "id");
    let delivery = server.json(&["deliveries", "list"])["data"][0]["id"].as_str().unwrap().to_owned();
    let mut watching = server.command(&["deliveries", "list", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    let titles = lines.next().unwrap();
    assert!(titles.starts_with("ID") && titles.contains("WHY, AND UNTIL WHEN"), "{titles}");
    let first = lines.next().unwrap();
    assert!(first.contains(&event) && first.contains("scheduled") && first.contains("deliver_at, "), "{first}");
    server.ok(&["deliveries", "retry", &delivery]);
    let mut seen = vec![first];
    while !seen.last().unwrap().contains("delivered") {
        seen.push(lines.next().unwrap());
    }
    watching.kill().unwrap();
    watching.wait().unwrap();
    let mut distinct = seen.clone();
    distinct.dedup();
    assert_eq!(distinct, seen, "a line that has not changed is not written again");
    assert!(seen.iter().all(|line| !line.contains('\u{1b}')), "{seen:?}");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let server = Server::start("pipe");
    for arguments in [&["openapi"][..], &["completions", "bash"], &["events", "list", "--all"], &["stats"]] {
        let mut child = server.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {words}");
        assert!(!words.contains("panicked") && !words.contains("pipe"), "{arguments:?}: {words}");
    }
}

#[test]
fn completions_are_there_for_every_shell_and_the_document_needs_no_server() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = std::process::Command::new(BINARY).args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("dead-letters") && script.contains("rotate-secret"), "{shell}");
    }
    let output = std::process::Command::new(BINARY).arg("openapi").output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["paths"]["/v1/events"]["post"].is_object());
}
