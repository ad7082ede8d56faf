//! The receivers of a measurement: they take a webhook, note when, and answer as they were told to.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// Not yet.
const NEVER: u64 = u64::MAX;

/// When each event arrived. Events carry their number in the payload.
#[derive(Debug)]
pub(super) struct Sink {
    began: Instant,
    arrivals: Vec<AtomicU64>,
    count: AtomicUsize,
    has_news: Notify,
}

impl Sink {
    pub(super) fn new(events: usize) -> Arc<Sink> {
        let arrivals = (0..events).map(|_| AtomicU64::new(NEVER)).collect();
        Arc::new(Sink { began: Instant::now(), arrivals, count: AtomicUsize::new(0), has_news: Notify::new() })
    }

    /// Serves on a port of its own. Whoever asks for `/hang` is never answered.
    pub(super) async fn serve(self: &Arc<Sink>) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on 127.0.0.1")?;
        let address = listener.local_addr()?;
        let sink = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let sink = Arc::clone(&sink);
                let service = service_fn(move |request| receive(Arc::clone(&sink), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(address)
    }

    fn arrived(&self, body: &[u8]) {
        let Some(arrival) = number(body).and_then(|number| self.arrivals.get(number)) else { return };
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(NEVER - 1);
        // Only the first time counts.
        if arrival.compare_exchange(NEVER, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.has_news.notify_waiters();
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// When this event arrived, if it has.
    pub(super) fn arrival(&self, number: usize) -> Option<Instant> {
        let nanos = self.arrivals[number].load(Ordering::Relaxed);
        (nanos != NEVER).then(|| self.began + Duration::from_nanos(nanos))
    }

    /// When the last of them arrived.
    pub(super) fn last_arrival(&self) -> Option<Instant> {
        (0..self.arrivals.len()).filter_map(|number| self.arrival(number)).max()
    }

    /// Waits for so many, for as long as something arrives at all.
    pub(super) async fn wait_for(&self, count: usize, patience: Duration, mut progress: impl FnMut(usize)) -> anyhow::Result<()> {
        let mut last = (self.count(), Instant::now());
        while self.count() < count {
            let _ = tokio::time::timeout(Duration::from_millis(100), self.has_news.notified()).await;
            let now = self.count();
            progress(now);
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > patience {
                anyhow::bail!("{now} of {count} events arrived, and then none for {} s", patience.as_secs());
            }
        }
        Ok(())
    }
}

async fn receive(sink: Arc<Sink>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_hanging = request.uri().path() == "/hang";
    if let Ok(body) = request.into_body().collect().await {
        sink.arrived(&body.to_bytes());
    }
    if is_hanging {
        std::future::pending::<()>().await;
    }
    let mut response = Response::new(Full::default());
    *response.status_mut() = http::StatusCode::NO_CONTENT;
    Ok(response)
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
    fn an_event_is_known_by_its_number() {
        assert_eq!(number(br#"{"data":{"number":17,"filler":"x"}}"#), Some(17));
        assert_eq!(number(b"{}"), None);
    }
}
