//! Takes connections: so many and no more, so many from one address, none that dawdles over its request or its answer
//! (`guarded.rs`), and at the end lets each finish. Who comes when all places are taken is told to come back, except for probes: some places
//! are kept for callers that ask for nothing but health and metrics.

use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderValue, Request, StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use crate::guarded::{Guarded, Heads};
use crate::tls::{CallerStream, Tls};

/// The head of a request, with every header that we could want.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long an end waits for requests that have begun. They are answered within five seconds of having arrived, and a caller that sends or reads
/// slowly keeps nobody from stopping within ten.
const FINISH_MAX: Duration = Duration::from_secs(6);
/// How long to wait when the process has no descriptor left: one comes free when a connection ends.
const OUT_OF_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(100);

/// Places for probes when all others are taken: enough for whoever watches a server, and few from one address.
const PROBES_MAX: usize = 48;
const PROBES_PER_ADDRESS_MAX: usize = 3;
/// A probe asks at once.
const PROBE_HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// What a probe asks for.
const PROBED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) connections_max: usize,
    pub(crate) connections_per_address_max: usize,
    /// Many callers come from each of these.
    pub(crate) trusted_proxies: Vec<IpNet>,
    pub(crate) header_timeout: Duration,
}

/// How many connections each address has.
#[derive(Default, Debug)]
struct Addresses(Mutex<HashMap<IpAddr, usize>>);

/// One connection of an address, counted until it is dropped.
struct Counted {
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Addresses {
    fn count(self: &Arc<Addresses>, address: IpAddr, max: usize) -> Option<Counted> {
        let mut counts = self.0.lock();
        let count = counts.entry(address).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Counted { addresses: Arc::clone(self), address })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.addresses.0.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// The address that a caller is counted by: of IPv6 the network that one customer of a provider has.
fn counted_address(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// What a connection has while it is open.
struct Taken {
    _place: OwnedSemaphorePermit,
    _counted: Option<Counted>,
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
    let places_of_probes = Arc::new(Semaphore::new(PROBES_MAX));
    let (addresses, probing) = (Arc::new(Addresses::default()), Arc::new(Addresses::default()));
    let heads = Arc::new(Heads::default());
    let open = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_buf_size(HEAD_BYTES_MAX);
    let mut http_of_probes = http.clone();
    http_of_probes.header_read_timeout(PROBE_HEADER_TIMEOUT.min(limits.header_timeout)).keep_alive(false);
    let mut turned_away = TurnedAway::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let is_proxy = limits.trusted_proxies.iter().any(|network| network.contains(&peer.ip().to_canonical()));
                let address = (!is_proxy).then(|| counted_address(peer.ip()));
                let take = |places: &Arc<Semaphore>, addresses: &Arc<Addresses>, max: usize| {
                    let counted = match address {
                        None => None,
                        Some(address) => Some(addresses.count(address, max)?),
                    };
                    let place = Arc::clone(places).try_acquire_owned().ok()?;
                    Some(Taken { _place: place, _counted: counted })
                };
                let taken = take(&places, &addresses, limits.connections_per_address_max);
                let is_full = taken.is_none();
                let taken = taken.or_else(|| take(&places_of_probes, &probing, PROBES_PER_ADDRESS_MAX));
                if is_full {
                    turned_away.tell();
                }
                let Some(taken) = taken else {
                    let _ = stream.try_write(FULL.as_bytes());
                    continue;
                };
                let stream = TokioIo::new(Guarded::new(prepared(stream, tls.as_deref()), heads.held(address)));
                let http = if is_full { &http_of_probes } else { &http };
                let connection = http.serve_connection(stream, service(router.clone(), peer, is_full));
                let connection = open.watch(connection);
                tokio::spawn(async move {
                    // A caller that went away or was too slow is none of our trouble.
                    if let Err(error) = connection.await {
                        tracing::debug!(%peer, %error, "a connection ended early");
                    }
                    drop(taken);
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
    fn tell(&mut self) {
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

/// `is_full`: there is a place for probes only.
fn service(
    router: Router,
    peer: SocketAddr,
    is_full: bool,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = axum::response::Response,
    Error = std::convert::Infallible,
    Future = impl Future<Output = Result<axum::response::Response, std::convert::Infallible>> + Send,
> {
    service_fn(move |request: Request<Incoming>| {
        let mut router = router.clone();
        async move {
            if let Some(refused) = refused(&request, is_full) {
                return Ok(refused);
            }
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            // A router is always ready.
            router.call(request).await
        }
    })
}

/// What is refused before anybody looks at what it asks for.
fn refused(request: &Request<Incoming>, is_full: bool) -> Option<Response> {
    if is_full && !PROBED.contains(&request.uri().path()) {
        let body = FULL.split_once("\r\n\r\n").expect("a head and a body").1;
        let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, body.to_owned());
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        return Some(response);
    }
    let hosts = request.headers().get_all(HOST).iter().count();
    // Before HTTP/1.1 there was no such header, and some probes are that old.
    let is_one = hosts == 1 || (hosts == 0 && request.version() == Version::HTTP_10);
    (!is_one).then(|| {
        let detail = "A request has one Host header.";
        let title = "The request cannot be read";
        let body = serde_json::json!({"type": "/docs/errors/unreadable", "title": title, "status": 400, "detail": detail});
        problem(StatusCode::BAD_REQUEST, body.to_string())
    })
}

fn problem(status: StatusCode, body: String) -> Response {
    (status, [(CONTENT_TYPE, "application/problem+json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_connections_and_gives_them_back() {
        let addresses = Arc::new(Addresses::default());
        let address = |text: &str| counted_address(text.parse().unwrap());
        let held: Vec<Counted> = (0..5).filter_map(|_| addresses.count(address("192.0.2.1"), 3)).collect();
        assert_eq!(held.len(), 3);
        assert!(addresses.count(address("::ffff:192.0.2.1"), 3).is_none(), "another spelling of the same");
        assert!(addresses.count(address("192.0.2.2"), 3).is_some());
        let one = addresses.count(address("2001:db8::1"), 1);
        assert!(addresses.count(address("2001:db8::2"), 1).is_none(), "one network");
        assert!(addresses.count(address("2001:db8:0:1::1"), 1).is_some());
        drop((held, one));
        assert!(addresses.0.lock().is_empty());
    }

    #[test]
    fn what_is_said_to_those_who_are_turned_away_is_as_long_as_it_says() {
        let (head, body) = FULL.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
        let problem: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(problem["status"], 503);
    }
}
