//! Calls the API as anybody would, over one connection that is made anew when it breaks.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Longer than anything is promised to take.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub struct Caller {
    server: SocketAddr,
    key: String,
    /// Beside those that every request has.
    headers: Vec<(String, String)>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// An answer that came as a whole.
#[derive(Clone, Debug)]
pub struct Answered {
    pub status: u16,
    pub body: Bytes,
    pub has_retry_after: bool,
}

impl Answered {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// No answer came, or not all of it: nobody knows what has become of the request.
#[derive(Clone, Copy, Debug)]
pub struct NoAnswer;

impl Caller {
    pub fn new(server: SocketAddr, key: &str) -> Caller {
        Caller { server, key: key.to_owned(), headers: Vec::new(), connection: None }
    }

    /// Sends this header with everything from now on.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Caller {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub async fn get(&mut self, path: &str) -> Result<Answered, NoAnswer> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Result<Answered, NoAnswer> {
        self.call(Method::POST, path, Bytes::from(body.to_string())).await
    }

    pub async fn call(&mut self, method: Method, path: &str, body: Bytes) -> Result<Answered, NoAnswer> {
        let answer = tokio::time::timeout(PATIENCE, self.exchange(method, path, body)).await;
        let answered = answer.unwrap_or(Err(NoAnswer));
        if answered.is_err() {
            // What is left of this exchange must not be taken for the answer to the next.
            self.connection = None;
        }
        answered
    }

    async fn exchange(&mut self, method: Method, path: &str, body: Bytes) -> Result<Answered, NoAnswer> {
        let mut connection = match self.connection.take() {
            Some(connection) if connection.is_ready() => connection,
            Some(_) | None => self.connect().await?,
        };
        let mut building = Request::builder();
        for (name, value) in &self.headers {
            building = building.header(name, value);
        }
        let request = building
            .method(method)
            .uri(path)
            .header(HOST, self.server.to_string())
            .header(AUTHORIZATION, format!("Bearer {}", self.key))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|_| NoAnswer)?;
        connection.ready().await.map_err(|_| NoAnswer)?;
        let response = connection.send_request(request).await.map_err(|_| NoAnswer)?;
        let status = response.status().as_u16();
        let has_retry_after = response.headers().contains_key(http::header::RETRY_AFTER);
        let body = response.into_body().collect().await.map_err(|_| NoAnswer)?.to_bytes();
        self.connection = Some(connection);
        Ok(Answered { status, body, has_retry_after })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, NoAnswer> {
        let stream = TcpStream::connect(self.server).await.map_err(|_| NoAnswer)?;
        let _ = stream.set_nodelay(true);
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|_| NoAnswer)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}
