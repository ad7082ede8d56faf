//! What an ordinary answer leaves behind.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use posthaste_sender::Posted;

use crate::receiver::{LONG, OK, Receiver, answering, client, loopback, options, post, read_request, send, word};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

async fn answer(bytes: &'static [u8]) -> Posted {
    let receiver = answering(bytes).await;
    post(&client(), &receiver.url(), LONG).await
}

#[tokio::test]
async fn an_answer_is_its_status_with_the_beginning_of_its_body() {
    let posted = answer(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 5\r\n\r\nlater").await;
    assert_eq!(word(posted.outcome), "503 after 7s");
    assert_eq!(posted.preview.as_deref(), Some("later"));
    assert_eq!(posted.error, None);
    assert!(posted.timings.first_byte.is_some() && posted.timings.connect.is_some(), "{:?}", posted.timings);
    assert!(posted.timings.dns.is_none() && posted.timings.tls.is_none(), "{:?}", posted.timings);
    let known = posted.timings.connect.unwrap() + posted.timings.first_byte.unwrap();
    assert!(known <= posted.response_time, "{posted:?}");
}

#[tokio::test]
async fn wishes_to_wait_are_read_and_nonsense_is_not() {
    for (header, expected) in [
        ("Retry-After: 0", "429 after 0s"),
        ("Retry-After: -1", "429"),
        ("Retry-After: 1000000000", "429 after 86400s"),
        ("Retry-After: Thu, 01 Jan 1970 00:01:00 GMT", "429 after 60s"),
        ("Retry-After: Wed, 31 Dec 1969 23:59:00 GMT", "429 after 0s"),
        ("Retry-After: soon", "429"),
        ("Retry-After: \u{1}", "429"),
        ("Retry-After: 7\r\nRetry-After: 9", "429"),
    ] {
        let bytes = format!("HTTP/1.1 429 Busy\r\n{header}\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(word(answer(Box::leak(bytes.into_bytes().into())).await.outcome), expected, "{header}");
    }
}

#[tokio::test]
async fn i47_a_preview_is_at_most_four_kibibytes_even_of_what_is_not_text() {
    let bytes = [b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n".to_vec(), vec![0xff; 9000]].concat();
    let posted = answer(Box::leak(bytes.into())).await;
    let preview = posted.preview.unwrap();
    assert!((4000..=4096).contains(&preview.len()), "{}", preview.len());
}

#[tokio::test]
async fn i45_secrets_in_an_answer_are_not_kept_also_those_that_we_sent() {
    let body = r#"{"token":"canary-1","note":"canary-2 was refused","auth":"Bearer canary-3","key":"whsec_canary4"}"#;
    let bytes = format!("HTTP/1.1 401 No\r\nSet-Cookie: a=canary-5\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let receiver = answering(Box::leak(bytes.into_bytes().into())).await;
    let mut own = HeaderValue::from_static("canary-2");
    own.set_sensitive(true);
    let request = Request::post(receiver.url()).header("x-pin", own).body(Full::new(Bytes::new())).unwrap();
    let posted = send(&client(), request, LONG).await;
    let shown = format!("{posted:?}");
    assert!(!shown.contains("canary"), "{shown}");
    assert!(posted.preview.unwrap().contains("was refused"));
}

#[tokio::test]
async fn i43_redirects_upgrades_cookies_and_hints_are_answers_and_lead_nowhere() {
    let elsewhere = Receiver::new(|_, _| async {}).await;
    for (status, header) in [
        ("301", "Location"),
        ("302", "Location"),
        ("307", "Location"),
        ("308", "Location"),
        ("200", "Refresh: 0; url="),
        ("200", "Alt-Svc: h2="),
        ("101", "Upgrade: websocket\r\nConnection: upgrade\r\nX"),
        ("407", "Proxy-Authenticate: Basic\r\nX"),
        ("200", "Set-Cookie: session=1\r\nX"),
        ("200", "Content-Location"),
    ] {
        let bytes = format!("HTTP/1.1 {status} X\r\n{header}: http://{}/\r\nContent-Length: 0\r\n\r\n", elsewhere.address);
        let receiver = answering(Box::leak(bytes.into_bytes().into())).await;
        let client = client();
        assert_eq!(word(post(&client, &receiver.url(), LONG).await.outcome), status, "{header}");
        assert_eq!(word(post(&client, &receiver.url(), LONG).await.outcome), status, "{header}, again");
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn a_cookie_is_not_sent_back() {
    let receiver = Receiver::new(|mut stream, _| async move {
        while let Some(request) = read_request(&mut stream).await {
            let status = if request.to_ascii_lowercase().contains("cookie") { "500 Cookie" } else { "200 OK" };
            let answer = format!("HTTP/1.1 {status}\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let client = client();
    for _ in 0..3 {
        assert_eq!(word(post(&client, &receiver.url(), LONG).await.outcome), "200");
    }
}

#[tokio::test]
async fn what_is_compressed_is_neither_unpacked_nor_shown() {
    let bytes =
        [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n".to_vec(), vec![0x1f, 0x8b, 8, 0]].concat();
    assert_eq!(answer(Box::leak(bytes.into())).await.preview.as_deref(), Some("(compressed with gzip, not shown)"));
}

#[tokio::test]
async fn a_request_has_the_path_and_the_host_of_its_url() {
    let receiver = Receiver::new(|mut stream, _| async move {
        while let Some(request) = read_request(&mut stream).await {
            let head: String = request.split("\r\n\r\n").next().unwrap().to_owned();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let url = format!("http://LOCALHOST:{}/a/../hooks?x=%20#y", receiver.address.port());
    let posted = post(&client(), &url, LONG).await;
    let head = posted.preview.unwrap();
    assert!(head.starts_with("POST /hooks?x=%20 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("host: localhost:{}", receiver.address.port())), "{head}");
}

#[tokio::test]
async fn localhost_works_for_whoever_allows_one_of_the_loopbacks() {
    let four = answering(OK).await;
    let only_four = posthaste_sender::Policy { allowed_networks: vec!["127.0.0.0/8".parse().unwrap()], ..loopback() };
    let client = posthaste_sender::Client::new(&posthaste_sender::Options { policy: only_four, ..options() }).unwrap();
    let url = format!("http://localhost:{}/", four.address.port());
    assert_eq!(word(post(&client, &url, LONG).await.outcome), "200");
    // Both are allowed and only one listens.
    assert_eq!(word(post(&crate::receiver::client(), &url, LONG).await.outcome), "200");
    let policy = posthaste_sender::Policy { allow_http: true, ..posthaste_sender::Policy::default() };
    let nobody =
        posthaste_sender::Client::new(&posthaste_sender::Options { policy, ..posthaste_sender::Options::default() }).unwrap();
    assert_eq!(word(post(&nobody, &url, LONG).await.outcome), "blocked");
}

#[tokio::test]
async fn a_request_comes_from_the_address_that_was_set() {
    let receiver = Receiver::new(|mut stream, _| async move {
        let peer = stream.peer_addr().unwrap().ip().to_string();
        read_request(&mut stream).await;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{peer}", peer.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let options = posthaste_sender::Options { bind_address: Some("127.0.0.7".parse().unwrap()), ..options() };
    let client = posthaste_sender::Client::new(&options).unwrap();
    assert_eq!(post(&client, &receiver.url(), LONG).await.preview.as_deref(), Some("127.0.0.7"));
    let six = post(&client, "http://[::1]:8080/", LONG).await;
    assert_eq!(word(six.outcome), "connect", "an IPv4 address cannot reach IPv6");
}

#[tokio::test]
async fn nobody_listening_is_a_connection_that_failed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let posted = post(&client(), &gone, Duration::from_secs(5)).await;
    assert_eq!(word(posted.outcome), "connect");
    assert_eq!(posted.error.as_deref(), Some("could not connect: the receiver refused the connection"));
    assert!(posted.timings.connect.is_some() && posted.timings.first_byte.is_none());
}
