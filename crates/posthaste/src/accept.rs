//! Takes connections: so many and no more, none that dawdles over its request, and at the end lets each finish.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower_service::Service;

/// The head of a request, with every header that we could want.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long an end waits for requests that have begun. A commit takes at most ten seconds.
const FINISH_MAX: Duration = Duration::from_secs(15);
/// How long to wait when the process has no descriptor left: one comes free when a connection ends.
const OUT_OF_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connections_max: usize,
    pub(crate) header_timeout: Duration,
}

/// Serves until `stop`, then finishes what has begun.
pub(crate) async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: impl Future<Output = ()>) {
    let mut stop = std::pin::pin!(stop);
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let open = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_buf_size(HEAD_BYTES_MAX);
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await.expect("never closed");
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = &mut stop => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = http.serve_connection(TokioIo::new(prepared(stream)), service(router.clone(), peer));
                let connection = open.watch(connection);
                tokio::spawn(async move {
                    // A caller that went away or was too slow is none of our trouble.
                    if let Err(error) = connection.await {
                        tracing::debug!(%peer, %error, "a connection ended early");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::select! {
                    () = &mut stop => break,
                    () = tokio::time::sleep(OUT_OF_DESCRIPTORS_PAUSE) => {}
                }
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(FINISH_MAX, open.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end and are cut off");
    }
}

/// Answers are small and somebody waits for each.
fn prepared(stream: TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true);
    stream
}

fn service(
    router: Router,
    peer: SocketAddr,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = axum::response::Response,
    Error = std::convert::Infallible,
    Future = impl Future<Output = Result<axum::response::Response, std::convert::Infallible>> + Send,
> {
    service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        // A router is always ready.
        router.clone().call(request)
    })
}
