//! Takes connections: so many and no more, none that dawdles over its request, and at the end lets each finish. Who comes
//! when all places are taken is told to come back.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

use crate::tls::{CallerStream, Tls};

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
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let mut stop = std::pin::pin!(stop);
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let open = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_buf_size(HEAD_BYTES_MAX);
    let mut turned_away = TurnedAway::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    turned_away.turn_away(&stream);
                    continue;
                };
                let connection =
                    http.serve_connection(TokioIo::new(prepared(stream, tls.as_deref())), service(router.clone(), peer));
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

/// What a caller is told for whom there is no place.
const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 186\r\n\r\n\
    {\"type\":\"/docs/errors/unavailable\",\"title\":\"Too many connections\",\"status\":503,\
    \"detail\":\"Nothing was stored. Try again after the time in the Retry-After header, over fewer connections.\"}";
/// A crowd is told about once in a while.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Those who came when there was no place.
#[derive(Default)]
struct TurnedAway {
    count: u64,
    told: Option<Instant>,
}

impl TurnedAway {
    /// Without waiting for anybody: a new connection has room for so little.
    fn turn_away(&mut self, stream: &TcpStream) {
        let _ = stream.try_write(FULL.as_bytes());
        self.count += 1;
        if self.told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            tracing::warn!(connections = self.count, "every connection that may be open is; further callers are turned away");
            *self = TurnedAway { count: 0, told: Some(Instant::now()) };
        }
    }
}

/// Answers are small and somebody waits for each.
fn prepared(stream: TcpStream, tls: Option<&Tls>) -> CallerStream {
    let _ = stream.set_nodelay(true);
    match tls {
        Some(tls) => tls.accept(stream),
        None => CallerStream::Plain(stream),
    }
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

#[cfg(test)]
mod tests {
    use super::FULL;

    #[test]
    fn what_is_said_to_those_who_are_turned_away_is_as_long_as_it_says() {
        let (head, body) = FULL.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
        let problem: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(problem["status"], 503);
    }
}
