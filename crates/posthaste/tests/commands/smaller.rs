//! The command line says what happened, also to scripts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use posthaste_testpg::Server as Database;

use crate::server::{BINARY, Receiver, Server, run};

const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

#[test]
fn a_batch_with_rejected_events_fails_and_says_why() {
    let server = Server::start("batch");
    let batch = r#"[{"type": "a.b", "data": 1}, {"type": "not a type", "data": 2}, {"type": "a.b"}]"#;
    for arguments in [&["events", "batch", "-"][..], &["events", "batch", "-", "--json"]] {
        let told = run(server.command(arguments), batch);
        assert_eq!(told.code, 4, "{told:?}");
        assert!(told.err.contains("2 of 3 events were rejected"), "{}", told.err);
        assert!(told.err.contains("event 2:") && told.err.contains("type") && told.err.contains("event 3:"), "{}", told.err);
        assert!(told.out.contains("evt_"), "the others were published: {}", told.out);
    }
    assert_eq!(run(server.command(&["events", "batch", "-"]), r#"[{"type": "a.b", "data": 1}]"#).code, 0);
}

#[test]
fn a_watched_replay_prints_a_line_for_each_step_in_a_pipe() {
    let server = Server::start("replay-lines");
    let receiver = Receiver::start("200 OK", b"");
    server.ok(&["endpoints", "create", &receiver.url(), "--tenant", "acme"]);
    server.ok(&["events", "publish", "a.b", "--data", "1", "--tenant", "acme"]);
    server.wait_for(&["deliveries", "list", "--status", "delivered"], |seen| seen["data"].as_array().unwrap().len() == 1);
    let told = server.ok(&["replay", "create", "--tenant", "acme", "--reason", "a test", "--watch"]);
    assert!(!told.contains('\u{1b}'), "nothing is drawn over: {told:?}");
    assert!(told.lines().all(|line| line.starts_with("rpl_") && line.contains(" of 1 made, 0 skipped, ")), "{told:?}");
    assert!(told.lines().last().unwrap().contains(" done: 1 of 1 made, 0 skipped, 0 remaining"), "{told:?}");
    let id = told.split(' ').next().unwrap();
    assert_eq!(server.ok(&["replay", "show", id, "--watch"]).lines().count(), 1);
}

#[test]
fn a_client_that_sends_everything_before_it_reads_sees_the_413() {
    let server = Server::start("too-large");
    for (length, is_chunked) in [(3_000_000, false), (20_000_000, false), (3_000_000, true)] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let framing = if is_chunked { "transfer-encoding: chunked".to_owned() } else { format!("content-length: {length}") };
        let head = format!(
            "POST /v1/events HTTP/1.1\r\nhost: posthaste\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             {framing}\r\nconnection: close\r\n\r\n",
            server.key
        );
        stream.write_all(head.as_bytes()).unwrap();
        let piece = vec![b'x'; 100_000];
        for _ in 0..length / piece.len() {
            if is_chunked {
                stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).unwrap();
            }
            stream.write_all(&piece).unwrap();
            if is_chunked {
                stream.write_all(b"\r\n").unwrap();
            }
        }
        if is_chunked {
            stream.write_all(b"0\r\n\r\n").unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 413"), "{length}: {answer}");
    }
}

#[test]
fn migrate_makes_the_tables_and_ends() {
    let database = Database::start();
    let url = database.url();
    let postgres = ["--database-url", &url, "--master-key", MASTER_KEY];
    for flags in [&[][..], &postgres] {
        let directory = std::env::temp_dir().join(format!("posthaste-migrate-{}-{}", flags.len(), std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let migrate = || {
            let mut command = Command::new(BINARY);
            command.arg("migrate").args(flags).current_dir(&directory).env_clear();
            run(command, "")
        };
        let doctor = || {
            let mut command = Command::new(BINARY);
            command.arg("doctor").args(flags).current_dir(&directory).env_clear();
            run(command, "").out
        };
        let told = migrate();
        assert!(told.code == 0 && told.out.contains("The schema is up to date"), "{told:?}");
        assert!(doctor().contains("which this binary uses"), "{}", doctor());
        assert_eq!(migrate().code, 0, "once more changes nothing");
        std::fs::remove_dir_all(&directory).unwrap();
    }
    let mut command = Command::new(BINARY);
    command.args(["migrate", "--retention-days", "0"]).env_clear();
    assert_eq!(run(command, "").code, 2);
}

#[test]
fn a_timeout_is_given_in_milliseconds_and_says_so() {
    let server = Server::start("timeout-unit");
    let made = server.json(&["endpoints", "create", "https://example.com/", "--timeout-ms", "5000"]);
    assert_eq!((&made["timeout"]["mode"], &made["timeout"]["timeout_ms"]), (&"manual".into(), &5000.into()));
    let help = run(server.command(&["endpoints", "create", "--help"]), "").out;
    assert!(help.contains("--timeout-ms <MILLISECONDS>"), "{help}");
}
