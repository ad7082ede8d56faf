//! What is compared with: takes a request, answers, and passes it on. It remembers nothing, signs nothing, tries once.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// As many as the server may have.
const IN_FLIGHT_MAX: usize = 1024;

struct Forwarder {
    client: Client<HttpConnector, Full<Bytes>>,
    target: http::Uri,
    places: Arc<Semaphore>,
}

pub(super) async fn serve(target: SocketAddr) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on 127.0.0.1")?;
    let address = listener.local_addr()?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let target = format!("http://{target}/").parse().context("our own address")?;
    let forwarder = Arc::new(Forwarder { client, target, places: Arc::new(Semaphore::new(IN_FLIGHT_MAX)) });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let forwarder = Arc::clone(&forwarder);
            let service = service_fn(move |request| forward(Arc::clone(&forwarder), request));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(address)
}

async fn forward(forwarder: Arc<Forwarder>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::default());
    let Ok(body) = request.into_body().collect().await else {
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(response);
    };
    let place = Arc::clone(&forwarder.places).acquire_owned().await.expect("never closed");
    tokio::spawn(async move {
        let mut request = Request::new(Full::new(body.to_bytes()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = forwarder.target.clone();
        request.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        // The connection is free for the next only when the answer was read.
        if let Ok(answer) = forwarder.client.request(request).await {
            let _ = answer.into_body().collect().await;
        }
        drop(place);
    });
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}
