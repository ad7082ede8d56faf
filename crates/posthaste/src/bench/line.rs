//! One connection over which the bench speaks: to the server it measures, and to the parts that it has started.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Requests go one after the other.
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
        self.call(Method::POST, path, body).await
    }

    async fn call(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<(u16, Bytes)> {
        let request = Request::builder()
            .method(method)
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

    /// The same for what has to go well.
    async fn ask(&mut self, method: Method, path: &str, body: &Value, expected: u16) -> anyhow::Result<Value> {
        let (status, answer) = self.call(method, path, body.to_string().into()).await?;
        if status != expected {
            bail!("{path} was answered {status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    /// With whatever is said about it beside its URL. Answers its id.
    pub(super) async fn make_endpoint(&mut self, tenant: &str, url: &str, policies: &Value) -> anyhow::Result<String> {
        let mut body = json!({"tenant": tenant, "url": url});
        if let (Some(body), Some(policies)) = (body.as_object_mut(), policies.as_object()) {
            body.extend(policies.clone());
        }
        let made = self.ask(Method::POST, "/v1/endpoints", &body, 201).await?;
        Ok(made["id"].as_str().context("an endpoint has an id")?.to_owned())
    }

    pub(super) async fn pause(&mut self, endpoint: &str) -> anyhow::Result<()> {
        self.ask(Method::POST, &format!("/v1/endpoints/{endpoint}/pause"), &json!({}), 200).await?;
        Ok(())
    }

    pub(super) async fn change_endpoint(&mut self, endpoint: &str, change: &Value) -> anyhow::Result<()> {
        self.ask(Method::PATCH, &format!("/v1/endpoints/{endpoint}"), change, 200).await?;
        Ok(())
    }
}
