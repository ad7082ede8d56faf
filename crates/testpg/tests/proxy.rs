//! What the proxy loses, and what it leaves alone.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use posthaste_testpg::{Cut, Proxy, Server};

fn unimportant_server() -> Server {
    Server::start_with(&[("fsync", "off")])
}

fn table_exists(server: &Server, table: &str) -> bool {
    server.psql(&format!("select to_regclass('{table}') is not null")) == "t"
}

/// A client that says exactly what a test wants it to, and waits for nothing.
struct Client(TcpStream);

impl Client {
    fn connect(port: u16) -> Client {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let start = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        stream.write_all(&u32::try_from(start.len() + 4).unwrap().to_be_bytes()).unwrap();
        stream.write_all(start).unwrap();
        let mut client = Client(stream);
        client.answers(1).unwrap();
        client
    }

    /// Messages of a kind and a body each, in one write.
    fn send(&mut self, messages: &[(u8, &[u8])]) {
        let mut bytes = Vec::new();
        for (kind, body) in messages {
            bytes.push(*kind);
            bytes.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
            bytes.extend(*body);
        }
        self.0.write_all(&bytes).unwrap();
    }

    /// The kinds of the messages of that many answers; `None` if the connection is closed before. An answer ends with Z.
    fn answers(&mut self, count: usize) -> Option<String> {
        let mut kinds = String::new();
        while kinds.matches('Z').count() < count {
            let mut head = [0; 5];
            match self.0.read_exact(&mut head) {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => return None,
                Err(error) => panic!("{error}"),
            }
            let length = u32::from_be_bytes(head[1..].try_into().unwrap());
            let mut body = vec![0; usize::try_from(length).unwrap() - 4];
            self.0.read_exact(&mut body).unwrap();
            kinds.push(char::from(head[0]));
        }
        Some(kinds)
    }
}

#[test]
fn without_a_fault_everything_passes() {
    let server = unimportant_server();
    let proxy = Proxy::start(server.port());
    assert_eq!(server.psql_at(&proxy.url(), "begin; select 1; commit").unwrap(), "1");
    let long = "x".repeat(100_000);
    assert_eq!(server.psql_at(&proxy.url(), &format!("select '{long}'")).unwrap(), long);
    server.create_database("other");
    assert_eq!(server.psql_at(&proxy.url_of("other"), "select current_database()").unwrap(), "other");
    assert_eq!(server.psql_at(&proxy.url(), "select count(*) from generate_series(1, 10)").unwrap(), "10");
    assert_eq!(proxy.cuts(), 0);
}

#[test]
fn a_commit_is_lost_before_it_or_after_it_and_only_once() {
    let server = unimportant_server();
    let proxy = Proxy::start(server.port());
    for (cut, table, exists) in [(Cut::Before, "before_it", false), (Cut::AfterAnswer, "after_it", true)] {
        proxy.cut_next_commit(cut);
        let cuts = proxy.cuts();
        assert_eq!(server.psql_at(&proxy.url(), "select 1").unwrap(), "1", "this commits nothing");
        let error = server.psql_at(&proxy.url(), &format!("BEGIN; CREATE TABLE {table}(); COMMIT")).unwrap_err();
        assert!(error.contains("server closed the connection unexpectedly"), "{error}");
        assert_eq!(table_exists(&server, table), exists, "{cut:?}");
        assert_eq!(proxy.cuts(), cuts + 1);
        server.psql_at(&proxy.url(), &format!("BEGIN; CREATE TABLE again_{table}(); COMMIT")).unwrap();
        assert_eq!(proxy.cuts(), cuts + 1);
    }
}

#[test]
fn a_prepared_commit_is_lost_when_it_is_executed() {
    let server = unimportant_server();
    let proxy = Proxy::start(server.port());
    for (cut, table, exists) in [(Cut::Before, "before_it", false), (Cut::AfterAnswer, "after_it", true)] {
        let mut client = Client::connect(proxy.port());
        client.send(&[(b'P', b"my commit\0COMMIT\0\0\0"), (b'S', b"")]);
        assert_eq!(client.answers(1).unwrap(), "1Z");
        proxy.cut_next_commit(cut);
        client.send(&[(b'Q', format!("BEGIN; CREATE TABLE {table}()\0").as_bytes())]);
        assert_eq!(client.answers(1).unwrap(), "CCZ");
        client.send(&[(b'B', b"\0my commit\0\0\0\0\0\0\0"), (b'E', b"\0\0\0\0\0"), (b'S', b"")]);
        assert_eq!(client.answers(1), None, "{cut:?}");
        assert_eq!(table_exists(&server, table), exists, "{cut:?}");
    }
    assert_eq!(proxy.cuts(), 2);
}

#[test]
fn of_several_requests_at_once_only_the_answer_to_the_commit_is_lost() {
    let server = unimportant_server();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(proxy.port());
    proxy.cut_next_commit(Cut::AfterAnswer);
    client.send(&[
        (b'Q', b"BEGIN\0"),
        (b'Q', b"CREATE TABLE committed()\0"),
        (b'Q', b"COMMIT\0"),
        (b'Q', b"CREATE TABLE too_late()\0"),
    ]);
    assert_eq!(client.answers(2).unwrap(), "CZCZ");
    assert_eq!(client.answers(1), None);
    assert!(table_exists(&server, "committed"));
    assert!(!table_exists(&server, "too_late"));
}

#[test]
fn a_statement_that_commits_by_itself_is_lost_by_its_text() {
    let server = unimportant_server();
    let proxy = Proxy::start(server.port());
    for (cut, table, exists) in [(Cut::Before, "before_it", false), (Cut::AfterAnswer, "after_it", true)] {
        proxy.cut_next_statement("create TABLE", cut);
        server.psql_at(&proxy.url(), "select 1").unwrap();
        // The long row is sent long before all of it is done and committed.
        let statements = format!("Create Table {table}(); select repeat('x', 100000); select pg_sleep(0.2)");
        server.psql_at(&proxy.url(), &statements).unwrap_err();
        assert_eq!(table_exists(&server, table), exists, "{cut:?}");
    }
    assert_eq!(proxy.cuts(), 2);
}

#[test]
fn all_connections_are_cut_and_new_ones_are_welcome() {
    let server = unimportant_server();
    let proxy = Proxy::start(server.port());
    let mut clients = [(); 3].map(|()| Client::connect(proxy.port()));
    proxy.cut_all();
    for client in &mut clients {
        assert_eq!(client.answers(1), None);
    }
    assert_eq!(server.psql_at(&proxy.url(), "select 1").unwrap(), "1");
}

#[test]
fn refused_are_new_connections_only_and_not_for_ever() {
    let server = unimportant_server();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(proxy.port());
    for _ in 0..3 {
        proxy.refuse();
        let error = server.psql_at(&proxy.url(), "select 1").unwrap_err();
        assert!(error.contains("Connection refused"), "{error}");
        client.send(&[(b'Q', b"select 1\0")]);
        assert_eq!(client.answers(1).unwrap(), "TDCZ");
        proxy.pass();
        assert_eq!(server.psql_at(&proxy.url(), "select 1").unwrap(), "1");
    }
}

#[test]
fn a_server_that_was_killed_is_found_again() {
    let server = unimportant_server();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(proxy.port());
    server.kill();
    assert_eq!(client.answers(1), None);
    server.psql_at(&proxy.url(), "select 1").unwrap_err();
    server.begin();
    assert_eq!(server.psql_at(&proxy.url(), "select 1").unwrap(), "1");
}
