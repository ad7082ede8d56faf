//! Heads of requests that can be read in two ways, or in none.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::requests::Server;

/// Sends these bytes and reads until the server closes.
fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.program.listen).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// The last answer has this status, and is a problem.
fn check(answers: &str, status: u16, what: &str) {
    let at = answers.rfind("HTTP/1.1 ").unwrap_or_else(|| panic!("{what}: {answers:?}"));
    let (head, body) = answers[at..].split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {answers}");
    assert!(head.to_ascii_lowercase().contains("content-type: application/problem+json"), "{what}: {answers}");
    let problem: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{what}: {answers}"));
    assert_eq!(problem["status"], status, "{what}");
}

#[tokio::test]
async fn a_head_that_can_be_read_in_two_ways_or_in_none_is_refused_with_problem_details() {
    let server = Server::start("heads").await;
    let long = "x".repeat(70_000);
    let few = "y".repeat(12_000);
    let many = "x: y\r\n".repeat(101);
    let filler = format!("x-filler: {}\r\n", "z".repeat(990)).repeat(60);
    for (what, head, status) in [
        ("no Host", "GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), 400),
        ("two Hosts", "GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n".to_owned(), 400),
        ("line feeds alone", "GET /healthz HTTP/1.1\nhost: a\n\n".to_owned(), 400),
        ("one line feed alone", "GET /healthz HTTP/1.1\r\nhost: a\nx: y\r\n\r\n".to_owned(), 400),
        ("a folded line", "GET /healthz HTTP/1.1\r\nhost: a\r\n b\r\n\r\n".to_owned(), 400),
        (
            "a length and a coding",
            "POST /v1/events HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
            400,
        ),
        ("two lengths", "POST /v1/events HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab".to_owned(), 400),
        ("no HTTP", "nonsense\r\n\r\n".to_owned(), 400),
        ("a header without a name", "GET / HTTP/1.1\r\n: a\r\n\r\n".to_owned(), 400),
        ("an address of 12,000 bytes", format!("GET /{few} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"), 414),
        ("an address of 70,000 bytes", format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"), 414),
        ("101 headers", format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"), 431),
        ("60,000 bytes of headers", format!("GET / HTTP/1.1\r\nhost: a\r\n{filler}\r\n"), 431),
    ] {
        check(&exchange(&server, head.as_bytes()), status, what);
        let behind = format!("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n{head}");
        let answers = exchange(&server, behind.as_bytes());
        assert!(answers.starts_with("HTTP/1.1 200 "), "{what}, behind a good one: {answers}");
        check(&answers, status, &format!("{what}, behind a good one"));
    }
    // Probes that are older than the header have none.
    let old = exchange(&server, b"GET /healthz HTTP/1.0\r\n\r\n");
    assert!(old.starts_with("HTTP/1.0 200 "), "{old}");
}
