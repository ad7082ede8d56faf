//! `/v1/stream`: deliveries as they change, as server-sent events.
//!
//! Once a second the newest deliveries are read and compared with what was last told; what is new or stands differently is
//! sent as one `delivery` event. It is for watching: what happens to older deliveries is found in the lists. The
//! credential is asked for again each time, so that a revoked key ends its streams too.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http_body::Frame;
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_store::DeliveryQuery;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::App;
use crate::call::Call;
use crate::credentials::identify;
use crate::deliveries::{DeliveryView, Surroundings};
use crate::problem::Problem;

const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// Proxies close what is silent for longer.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// How many of the newest deliveries are watched.
const WATCHED_MAX: usize = 100;
/// A reader that is this far behind is dropped; it comes back by itself.
const UNREAD_MAX: usize = 256;

pub(crate) async fn follow(call: Call) -> Result<Response, Problem> {
    let tenant = call.query.tenant()?;
    let endpoint = call.query.endpoint()?;
    let Ok(tenant) = call.caller.narrowed_to(tenant) else { return Err(Problem::not_found()) };
    let permit = std::sync::Arc::clone(&call.app.streams).try_acquire_owned();
    let permit = permit.map_err(|_| Problem::unavailable("As many streams are open as may be. Try again later."))?;
    let (outbox, inbox) = mpsc::channel(UNREAD_MAX);
    // The head of the answer goes out at once, with something behind it.
    let _ = outbox.try_send(Bytes::from_static(b"retry: 2000\n\n"));
    tokio::spawn(async move {
        let _permit: OwnedSemaphorePermit = permit;
        let watch = Watch { app: call.app, headers: call.parts.headers, tenant, endpoint, told: HashMap::new() };
        watch.run(outbox).await;
    });
    let mut response = Response::new(Body::new(Events(inbox)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Some proxies would keep it until it ends.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

struct Watch {
    app: App,
    headers: http::HeaderMap,
    tenant: Option<TenantId>,
    endpoint: Option<EndpointId>,
    /// How each delivery stood when it was last told.
    told: HashMap<String, (&'static str, Option<&'static str>, u32)>,
}

impl Watch {
    async fn run(mut self, outbox: mpsc::Sender<Bytes>) {
        let mut ticks = tokio::time::interval(LOOKS_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_sent = tokio::time::Instant::now();
        let mut is_first = true;
        loop {
            tokio::select! {
                () = outbox.closed() => return,
                _ = ticks.tick() => {}
            }
            if identify(&self.app, &self.headers).await.is_err() {
                return;
            }
            // A store that does not answer now may answer next time.
            let Ok(changed) = self.look().await else { continue };
            // What was there before is not news.
            let changed = if is_first { vec![] } else { changed };
            is_first = false;
            for view in &changed {
                let data = serde_json::to_string(view).expect("texts and numbers");
                let event = format!("event: delivery\nid: {}\ndata: {data}\n\n", view.id);
                if outbox.try_send(Bytes::from(event)).is_err() {
                    return;
                }
                last_sent = tokio::time::Instant::now();
            }
            if last_sent.elapsed() >= KEEP_ALIVE_EVERY {
                if outbox.try_send(Bytes::from_static(b": still here\n\n")).is_err() {
                    return;
                }
                last_sent = tokio::time::Instant::now();
            }
        }
    }

    /// What is new or stands differently, the oldest first.
    async fn look(&mut self) -> Result<Vec<DeliveryView>, Problem> {
        let query =
            DeliveryQuery { tenant: self.tenant.clone(), endpoint: self.endpoint, limit: WATCHED_MAX, ..DeliveryQuery::default() };
        let rows = self.app.store.deliveries(query).await?.rows;
        let surroundings = Surroundings::of(&self.app, &rows).await?;
        let mut seen = HashMap::new();
        let mut changed = Vec::new();
        for row in rows.iter().rev() {
            let view = surroundings.view(&self.app, row);
            let standing = (view.status, view.hold_reason, view.attempt_count);
            seen.insert(view.id.clone(), standing);
            if self.told.get(&view.id) != Some(&standing) {
                changed.push(view);
            }
        }
        self.told = seen;
        Ok(changed)
    }
}

/// A body that goes on for as long as somebody sends.
struct Events(mpsc::Receiver<Bytes>);

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
