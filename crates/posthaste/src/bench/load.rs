//! Publishes over HTTP, with so many connections, and notes when each event was sent and acknowledged.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// One connection to a server, and the key to show.
pub(super) struct Line {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    authorization: String,
}

impl Line {
    pub(super) async fn connect(server: SocketAddr, key: &str) -> anyhow::Result<Line> {
        let stream = TcpStream::connect(server).await.context("cannot connect")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Line { sender, host: server.to_string(), authorization: format!("Bearer {key}") })
    }

    /// Posts it and reads the answer to its end.
    pub(super) async fn post(&mut self, path: &str, body: Bytes) -> anyhow::Result<(u16, Bytes)> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(HOST, &self.host)
            .header(AUTHORIZATION, &self.authorization)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    pub(super) async fn make_endpoint(&mut self, tenant: &str, url: &str) -> anyhow::Result<()> {
        let body = json!({"tenant": tenant, "url": url}).to_string();
        let (status, answer) = self.post("/v1/endpoints", body.into()).await?;
        if status == 201 { Ok(()) } else { bail!("an endpoint was refused: {}", String::from_utf8_lossy(&answer)) }
    }
}

/// The body of a publish: about so many bytes, with the number that the receiver looks for.
pub(super) fn event(tenant: &str, number: usize, payload_bytes: usize) -> Bytes {
    let filler = "x".repeat(payload_bytes.saturating_sub(30));
    Bytes::from(format!(r#"{{"type":"bench.event","tenant":"{tenant}","data":{{"number":{number},"filler":"{filler}"}}}}"#))
}

/// When an event was sent, and when it was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) number: usize,
    pub(super) began: Instant,
    pub(super) acknowledged: Instant,
}

impl Sent {
    pub(super) fn took(&self) -> Duration {
        self.acknowledged - self.began
    }
}

/// Publishes these numbers, the next one on whichever connection is free.
pub(super) async fn publish(
    server: SocketAddr,
    key: &str,
    tenants: &'static [&'static str],
    count: usize,
    connections: usize,
    payload_bytes: usize,
) -> anyhow::Result<Vec<Sent>> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let mut line = Line::connect(server, key).await?;
        let next = Arc::clone(&next);
        tasks.spawn(async move {
            let mut all = Vec::with_capacity(count / connections + 1);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(all);
                }
                let body = event(tenants[number % tenants.len()], number, payload_bytes);
                let began = Instant::now();
                let (status, answer) = line.post("/v1/events", body).await?;
                if status != 202 {
                    bail!("an event was answered {status}: {}", String::from_utf8_lossy(&answer));
                }
                all.push(Sent { number, began, acknowledged: Instant::now() });
            }
        });
    }
    let mut all = Vec::with_capacity(count);
    while let Some(part) = tasks.join_next().await {
        all.extend(part??);
    }
    Ok(all)
}

/// For a report: numbers that JSON can carry.
pub(super) fn number(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}
