//! The receivers of a measurement, in one process: they take a webhook, note when, and answer as they were told to.
//!
//! Events carry their number in the payload. An endpoint's path says which of the copies of an event come there, `/10/3` the
//! fourth of ten, so that each delivery has a place of its own in the list of arrivals.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::extract::{Json, State};
use axum::routing::post;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::meter::now_ns;
use super::part::listen;
use super::process::Part;
use super::show;

/// Not yet.
const NEVER: u64 = u64::MAX;
/// Whoever asks for it is never answered.
pub(super) const HANGING: &str = "/hang";
/// Before a path: refused while the receiver is told to be down.
pub(super) const RECOVERING: &str = "/recovering";

#[derive(Default)]
struct Desk {
    arrivals: RwLock<Arrivals>,
    is_down: AtomicBool,
    has_news: Notify,
}

/// When each delivery arrived first.
#[derive(Default)]
struct Arrivals {
    at: Vec<AtomicU64>,
    count: AtomicUsize,
}

#[derive(Serialize, Deserialize)]
struct Expect {
    deliveries: usize,
}

#[derive(Serialize, Deserialize)]
struct Down {
    is_down: bool,
}

#[derive(Serialize, Deserialize)]
struct Until {
    count: usize,
    milliseconds: u64,
}

#[derive(Serialize, Deserialize)]
struct Nothing {}

/// Says where it is told what to do, and where webhooks go.
pub(super) async fn serve() -> anyhow::Result<String> {
    let desk = Arc::new(Desk::default());
    let router = axum::Router::new()
        .route("/expect", post(expect))
        .route("/down", post(down))
        .route("/count", post(count))
        .route("/arrivals", post(arrivals))
        .with_state(Arc::clone(&desk));
    let control = listen(router).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on 127.0.0.1")?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let desk = Arc::clone(&desk);
            let service = service_fn(move |request| receive(Arc::clone(&desk), request));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(format!("{control} {address}"))
}

async fn receive(desk: Arc<Desk>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let body = request.into_body().collect().await;
    if path == HANGING {
        std::future::pending::<()>().await;
    }
    let path = match path.strip_prefix(RECOVERING) {
        Some(_) if desk.is_down.load(Ordering::Relaxed) => {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return Ok(response);
        }
        Some(path) => path,
        None => &path,
    };
    if let (Ok(body), Some((copies, copy))) = (body, copy(path)) {
        desk.arrived(&body.to_bytes(), copies, copy);
    }
    Ok(response)
}

impl Desk {
    fn arrived(&self, body: &[u8], copies: usize, copy: usize) {
        let arrivals = self.arrivals.read();
        let place = number(body).and_then(|number| number.checked_mul(copies)?.checked_add(copy));
        let Some(arrival) = place.and_then(|place| arrivals.at.get(place)) else { return };
        // Only the first time counts.
        if arrival.compare_exchange(NEVER, now_ns(), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            arrivals.count.fetch_add(1, Ordering::Relaxed);
            self.has_news.notify_waiters();
        }
    }

    fn count(&self) -> usize {
        self.arrivals.read().count.load(Ordering::Relaxed)
    }
}

async fn expect(State(desk): State<Arc<Desk>>, Json(order): Json<Expect>) {
    let at = (0..order.deliveries).map(|_| AtomicU64::new(NEVER)).collect();
    *desk.arrivals.write() = Arrivals { at, count: AtomicUsize::new(0) };
}

async fn down(State(desk): State<Arc<Desk>>, Json(order): Json<Down>) {
    desk.is_down.store(order.is_down, Ordering::Relaxed);
}

/// Answers when so many are there, or after so long.
async fn count(State(desk): State<Arc<Desk>>, Json(until): Json<Until>) -> Json<usize> {
    let enough = async {
        loop {
            let news = desk.has_news.notified();
            if desk.count() >= until.count {
                return;
            }
            news.await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(until.milliseconds), enough).await;
    Json(desk.count())
}

/// Eight bytes for each, because there may be millions.
async fn arrivals(State(desk): State<Arc<Desk>>, Json(_): Json<Nothing>) -> Vec<u8> {
    desk.arrivals.read().at.iter().flat_map(|at| at.load(Ordering::Relaxed).to_le_bytes()).collect()
}

/// How long one look at the receiver waits for news.
const LOOK_MS: u64 = 200;

/// What the bench asks of the receiver.
pub(super) struct Receiver<'a>(pub(super) &'a Part);

impl Receiver<'_> {
    pub(super) async fn expect(&self, deliveries: usize) -> anyhow::Result<()> {
        self.0.tell("/expect", &Expect { deliveries }).await.map(drop)
    }

    pub(super) async fn set_down(&self, is_down: bool) -> anyhow::Result<()> {
        self.0.tell("/down", &Down { is_down }).await.map(drop)
    }

    pub(super) async fn count(&self) -> anyhow::Result<usize> {
        self.0.ask("/count", &Until { count: 0, milliseconds: 0 }).await
    }

    /// Waits for so many, for as long as something arrives at all.
    pub(super) async fn wait_for(&self, count: usize, patience: Duration, name: &str) -> anyhow::Result<()> {
        let mut last = (0, Instant::now());
        loop {
            let now: usize = self.0.ask("/count", &Until { count, milliseconds: LOOK_MS }).await?;
            if now >= count {
                return Ok(());
            }
            show(&format!("{name}: {now} of {count} arrived"));
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > patience {
                anyhow::bail!("{now} of {count} deliveries arrived, and then none for {} s", patience.as_secs());
            }
        }
    }

    /// When each arrived, by its place.
    pub(super) async fn arrivals(&self) -> anyhow::Result<Vec<Option<u64>>> {
        let bytes = self.0.tell("/arrivals", &Nothing {}).await?;
        let (times, _) = bytes.as_chunks::<8>();
        Ok(times.iter().map(|time| u64::from_le_bytes(*time)).map(|time| (time != NEVER).then_some(time)).collect())
    }
}

/// How many copies of an event there are, and which of them come here.
fn copy(path: &str) -> Option<(usize, usize)> {
    let (copies, copy) = path.strip_prefix('/')?.split_once('/')?;
    Some((copies.parse().ok()?, copy.parse().ok()?))
}

const MARK: &[u8] = b"\"number\":";

/// The event's number, found without reading the rest.
fn number(body: &[u8]) -> Option<usize> {
    let at = body.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
    let digits = body[at..].iter().take_while(|byte| byte.is_ascii_digit());
    let text: String = digits.map(|digit| char::from(*digit)).collect();
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_known_by_the_number_of_its_event_and_the_path_of_its_endpoint() {
        assert_eq!(number(br#"{"data":{"number":17,"filler":"x"}}"#), Some(17));
        assert_eq!(number(b"{}"), None);
        assert_eq!(copy("/10/3"), Some((10, 3)));
        assert_eq!(copy("/10"), None);
    }
}
