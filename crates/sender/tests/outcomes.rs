//! What a receiver does, and which outcome it is.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use posthaste_core::delivery::{NoConnection, Outcome, Silence};
use posthaste_core::time::Timestamp;
use posthaste_sender::address::Egress;
use posthaste_sender::{Client, Posted};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn loopback() -> Egress {
    Egress { allowed_networks: vec!["127.0.0.0/8".parse().unwrap()] }
}

async fn post(egress: Egress, url: &str, timeout: Duration) -> Posted {
    let request = Request::post(url).body(Full::new(Bytes::from_static(b"{}"))).unwrap();
    Client::new(egress).post(request, timeout, Timestamp::from_millis(0)).await
}

/// Posts to a receiver that reads the request and then writes this, and keeps the connection open if told to.
async fn post_to(answer: &'static [u8], keep_open: bool) -> Posted {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let _ = stream.read(&mut request).await;
        stream.write_all(answer).await.unwrap();
        if keep_open {
            std::future::pending::<()>().await;
        }
    });
    post(loopback(), &url, Duration::from_millis(500)).await
}

#[tokio::test]
async fn an_answer_is_its_status_with_the_beginning_of_its_body() {
    let posted = post_to(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 5\r\n\r\nlater", false).await;
    assert_eq!(posted.outcome, Outcome::Answered { status: 503, retry_after: Some(Duration::from_secs(7)) });
    assert_eq!(posted.preview.as_deref(), Some("later"));
}

#[tokio::test]
async fn two_wishes_to_wait_are_none() {
    let posted = post_to(b"HTTP/1.1 429 Busy\r\nRetry-After: 7\r\nRetry-After: 9\r\nContent-Length: 0\r\n\r\n", false).await;
    assert_eq!(posted.outcome, Outcome::Answered { status: 429, retry_after: None });
}

#[tokio::test]
async fn a_preview_is_at_most_four_kibibytes_even_of_what_is_not_text() {
    const BODY: [u8; 9000] = [0xff; 9000];
    let answer: &[u8] = &[b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n", &BODY[..]].concat();
    let posted = post_to(Box::leak(answer.into()), false).await;
    assert!(posted.preview.unwrap().len() <= 4096);
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let posted = post_to(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", false).await;
    assert_eq!(posted.outcome, Outcome::Answered { status: 302, retry_after: None });
}

#[tokio::test]
async fn a_good_head_is_a_success_whatever_the_body_does() {
    let posted = post_to(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nnever the rest", true).await;
    assert_eq!(posted.outcome, Outcome::Answered { status: 200, retry_after: None });
    assert_eq!(posted.preview.as_deref(), Some("never the rest"));
}

#[tokio::test]
async fn silence_is_a_timeout_and_a_broken_connection_is_a_reset() {
    assert_eq!(post_to(b"", true).await.outcome, Outcome::Silent(Silence::Timeout));
    assert_eq!(post_to(b"", false).await.outcome, Outcome::Silent(Silence::Reset));
    assert_eq!(post_to(b"not http at all\r\n\r\n", false).await.outcome, Outcome::Silent(Silence::Reset));
}

#[tokio::test]
async fn nobody_listening_and_no_such_name_are_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let second = Duration::from_secs(5);
    assert_eq!(post(loopback(), &gone, second).await.outcome, Outcome::NotSent(NoConnection::Connect));
    let nowhere = post(loopback(), "http://no-such-name.invalid/", second).await;
    assert_eq!(nowhere.outcome, Outcome::NotSent(NoConnection::Dns), "{nowhere:?}");
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_not_dialled() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let posted = post(Egress::default(), &format!("http://{host}:{port}/"), Duration::from_secs(5)).await;
        assert_eq!(posted.outcome, Outcome::Blocked, "{host}");
    }
    // Whoever is first at the door is this test itself, so nobody came before.
    let own = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (_, first) = listener.accept().await.unwrap();
    assert_eq!(first, own.local_addr().unwrap());
}
