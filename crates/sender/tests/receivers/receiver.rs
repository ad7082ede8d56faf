//! Receivers that do as a test tells them, byte by byte.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use posthaste_core::delivery::{NoConnection, Outcome, Silence};
use posthaste_core::time::Timestamp;
use posthaste_sender::{Address, Client, Options, Policy, Posted};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What an attempt may take in tests where it is meant to be used up.
pub(crate) const SHORT: Duration = Duration::from_millis(400);
/// The same where certificates have to be made and shown first.
pub(crate) const SHORT_WITH_TLS: Duration = Duration::from_secs(2);
/// What no attempt needs here unless something is broken.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Both loopbacks, and plain http.
pub(crate) fn loopback() -> Policy {
    let allowed_networks = ["127.0.0.0/8", "::1/128"].map(|network| network.parse().unwrap()).to_vec();
    Policy { allowed_networks, allow_http: true, public_host: None }
}

pub(crate) fn options() -> Options {
    Options { policy: loopback(), ..Options::default() }
}

pub(crate) fn client() -> Client {
    Client::new(&options()).unwrap()
}

pub(crate) async fn post(client: &Client, url: &str, timeout: Duration) -> Posted {
    send(client, Request::post(url).body(Full::new(Bytes::from_static(b"{\"n\":1}"))).unwrap(), timeout).await
}

/// As an attempt does it: a URL that cannot be one is not sent to.
pub(crate) async fn send(client: &Client, request: Request<Full<Bytes>>, timeout: Duration) -> Posted {
    match Address::parse(&request.uri().to_string()) {
        Ok(address) => client.post(&address, request, timeout, Timestamp::from_millis(0)).await,
        Err(rule) => Posted::blocked(rule.to_string()),
    }
}

/// One word for an outcome.
pub(crate) fn word(outcome: Outcome) -> String {
    match outcome {
        Outcome::Answered { status, retry_after: None } => status.to_string(),
        Outcome::Answered { status, retry_after: Some(wait) } => format!("{status} after {}s", wait.as_secs()),
        Outcome::NotSent(NoConnection::Dns) => "dns".to_owned(),
        Outcome::NotSent(NoConnection::Connect) => "connect".to_owned(),
        Outcome::NotSent(NoConnection::Tls) => "tls".to_owned(),
        Outcome::Silent(Silence::Timeout) => "timeout".to_owned(),
        Outcome::Silent(Silence::Reset) => "reset".to_owned(),
        Outcome::Blocked => "blocked".to_owned(),
    }
}

/// Somebody who listens on this machine, and how often they were called.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Receiver {
    /// Hands each connection, with its number from 0 on, to `behave`.
    pub(crate) async fn new<F>(behave: impl Fn(TcpStream, usize) -> F + Send + 'static) -> Receiver
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(behave(stream, count.fetch_add(1, Ordering::SeqCst)));
            }
        });
        Receiver { address, connections }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Reads one request to its end; what was read, or nothing once the sender has gone.
pub(crate) async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut request = Vec::new();
    loop {
        if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or("0");
        if body.len() >= length.parse().unwrap() {
            return Some(String::from_utf8(request).unwrap());
        }
    }
}

/// Answers every request with this, on connections that stay open.
pub(crate) async fn answering(answer: &'static [u8]) -> Receiver {
    Receiver::new(move |mut stream, _| async move {
        while read_request(&mut stream).await.is_some() {
            stream.write_all(answer).await.unwrap();
        }
    })
    .await
}

/// Looks again until it is so.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
