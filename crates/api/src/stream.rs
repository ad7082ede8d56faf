//! `/v1/stream`: deliveries as they change, as server-sent events.
//!
//! Every delivery that is made while somebody watches is told of, and so is every change of how it stands until it has ended; of
//! those that waited before, the newest are followed too. Each second the rows that were made since are found by their
//! numbers, and what has not ended is looked at again. All of that is bounded: what there is no time for is counted in an
//! event `missed`, and that more wait than are followed is said by `lagging`; nothing is left out in silence. Each event has
//! an id that says where to go on, so that whoever was cut off hears what happened meanwhile, some of it twice.
//!
//! The credential is asked for again each time, so that a revoked key ends its streams too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http_body::Frame;
use posthaste_core::delivery::State;
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::scheduler::Seq;
use posthaste_store::{DeliveryQuery, RowsAfter, StatusFilter};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use crate::App;
use crate::call::Call;
use crate::credentials::identify;
use crate::cursor::{Cursors, Scope};
use crate::deliveries::{DeliveryContexts, DeliveryView};
use crate::problem::Problem;

const LIST: &str = "stream";
const LAST_EVENT_ID: &str = "last-event-id";
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// Proxies close what is silent for longer.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// So many new deliveries are told of at one look.
const NEW_PER_LOOK_MAX: usize = 1_000;
/// Whoever is further behind than this is told how many it has missed.
const BEHIND_MAX: usize = 5_000;
/// So many that have not ended are looked at again each second.
const FOLLOWED_MAX: usize = 1_000;
/// Of those that waited before anybody watched.
const FOLLOWED_AT_FIRST_MAX: usize = 500;
/// Where other processes write too, so many rows before the newest may not be visible yet.
const UNSETTLED_MAX: u64 = 1_000;
/// Where other processes write too, a row may become visible after one with a larger number, for as long as a commit takes.
const SETTLES_AFTER: Duration = Duration::from_secs(10);
/// How many events wait for the reader; then the next look waits, too.
const UNREAD_MAX: usize = 256;
/// A reader that takes nothing for so long is gone.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn follow(call: Call) -> Result<Response, Problem> {
    let tenant = call.query.tenant()?;
    let endpoint = call.query.endpoint()?;
    let Ok(tenant) = call.caller.narrowed_to(tenant) else { return Err(Problem::not_found()) };
    if let Some(endpoint) = endpoint
        && call.app.store.endpoint(tenant.clone(), endpoint).await?.is_none()
    {
        return Err(Problem::not_found());
    }
    let position = Position {
        tenant: call.caller.tenant.clone(),
        filter: [tenant.as_ref().map(TenantId::to_string), endpoint.map(|id| id.to_string())],
    };
    let resumed = match call.parts.headers.get(LAST_EVENT_ID) {
        None => None,
        Some(value) => Some(position.open(&call.app.cursors, value)?),
    };
    let place = call.app.streams.take(&call.caller)?;
    let (outbox, inbox) = mpsc::channel(UNREAD_MAX);
    // The head of the answer goes out at once, with something behind it.
    let _ = outbox.try_send(Bytes::from_static(b"retry: 2000\n\n"));
    let mut watch = Watch::new(call.app, call.parts.headers, tenant, endpoint, position);
    let first = watch.begin(resumed).await?;
    tokio::spawn(async move {
        let _place = place;
        watch.run(outbox, first).await;
    });
    let mut response = Response::new(Body::new(Events(inbox)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Some proxies would keep it until it ends.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// How the `id` of an event is written: the row after which something may not have been sent, sealed for this caller and stream.
pub(crate) struct Position {
    /// The tenant that the caller is bound to.
    tenant: Option<TenantId>,
    /// The tenant and the endpoint that the stream is narrowed to.
    filter: [Option<String>; 2],
}

impl Position {
    /// Of a stream of all tenants.
    #[cfg(test)]
    pub(crate) fn for_test() -> Position {
        Position { tenant: None, filter: [None, None] }
    }

    fn filters(&self) -> Vec<(&str, &str)> {
        let [tenant, endpoint] = &self.filter;
        let given = [("tenant", tenant), ("endpoint", endpoint)];
        given.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
    }

    pub(crate) fn open(&self, cursors: &Cursors, value: &HeaderValue) -> Result<Seq, Problem> {
        let refuse = || Problem::unreadable("the Last-Event-ID is not one of ours; use the `id` of the last event as it is");
        let text = value.to_str().map_err(|_| refuse())?;
        let scope = Scope { list: LIST, tenant: self.tenant.as_ref(), filter: &self.filters() };
        cursors.open(scope, text).ok().and_then(|position| position.parse().ok()).ok_or_else(refuse)
    }

    pub(crate) fn seal(&self, cursors: &Cursors, position: Seq) -> String {
        let scope = Scope { list: LIST, tenant: self.tenant.as_ref(), filter: &self.filters() };
        cursors.seal(scope, &position.to_string())
    }
}

/// How a delivery stands, as far as a watcher cares.
type WatchedStatus = (&'static str, Option<&'static str>, u32);

struct Watch {
    app: App,
    headers: http::HeaderMap,
    tenant: Option<TenantId>,
    endpoint: Option<EndpointId>,
    written: Position,
    /// No row up to this one will appear any more.
    settled: Seq,
    /// Rows after that one which are known.
    known: BTreeSet<Seq>,
    /// When each row was the highest, to know when it has settled.
    marks: VecDeque<(Instant, Seq)>,
    /// What has not ended, and how it stood when it was last told.
    followed: BTreeMap<Seq, WatchedStatus>,
    /// Something older than all that is followed may wait and is not looked at.
    is_lagging: bool,
}

/// Rows that were not seen before, the oldest first.
struct Next {
    taken: Vec<Seq>,
    /// There is no time for these.
    passed_over: Vec<Seq>,
    /// There may be still more.
    is_cut_off: bool,
}

/// What is told.
enum StreamEvent {
    Delivery(Box<DeliveryView>),
    /// There was no time for so many, or for more.
    Missed {
        deliveries: usize,
        is_at_least: bool,
    },
    /// More wait than are followed.
    Lagging,
}

impl Watch {
    fn new(app: App, headers: http::HeaderMap, tenant: Option<TenantId>, endpoint: Option<EndpointId>, written: Position) -> Watch {
        Watch {
            app,
            headers,
            tenant,
            endpoint,
            written,
            settled: 0,
            known: BTreeSet::new(),
            marks: VecDeque::new(),
            followed: BTreeMap::new(),
            is_lagging: false,
        }
    }

    /// What was there before is not news, unless somebody goes on where it was cut off.
    async fn begin(&mut self, resumed: Option<Seq>) -> Result<Vec<StreamEvent>, Problem> {
        let query = DeliveryQuery { tenant: self.tenant.clone(), endpoint: self.endpoint, ..DeliveryQuery::default() };
        let newest = self.app.store.deliveries(DeliveryQuery { limit: 1, ..query.clone() }).await?.rows;
        let newest = newest.first().map_or(0, |row| row.seq);
        self.settled = match resumed {
            Some(position) => position.min(newest),
            None if self.app.store.is_shared() => newest.saturating_sub(UNSETTLED_MAX),
            None => newest,
        };
        if resumed.is_none() {
            self.known.extend(self.rows_after_settled(usize::try_from(UNSETTLED_MAX).expect("a small number")).await?);
        }
        let query = DeliveryQuery { statuses: vec![StatusFilter::Waiting], limit: FOLLOWED_AT_FIRST_MAX, ..query };
        let page = self.app.store.deliveries(query).await?;
        let contexts = DeliveryContexts::of(&self.app, &page.rows).await?;
        for row in page.rows.iter().filter(|row| row.seq <= self.settled || self.known.contains(&row.seq)) {
            self.followed.insert(row.seq, standing(&contexts.view(&self.app, row)));
        }
        self.is_lagging = page.next.is_some();
        Ok(if self.is_lagging { vec![StreamEvent::Lagging] } else { vec![] })
    }

    async fn run(mut self, outbox: mpsc::Sender<Bytes>, first: Vec<StreamEvent>) {
        let mut ticks = tokio::time::interval(LOOKS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_sent = Instant::now();
        let (mut news, mut position) = (first, self.position());
        loop {
            for (place, told) in news.iter().enumerate() {
                // Whoever is cut off in the middle of a look hears all of it again.
                if place + 1 == news.len() {
                    position = self.position();
                }
                if !send(&outbox, event(told, &self.written.seal(&self.app.cursors, position))).await {
                    return;
                }
                last_sent = Instant::now();
            }
            if last_sent.elapsed() >= KEEP_ALIVE_EVERY {
                if !send(&outbox, Bytes::from_static(b": still here\n\n")).await {
                    return;
                }
                last_sent = Instant::now();
            }
            tokio::select! {
                () = outbox.closed() => return,
                _ = ticks.tick() => {}
            }
            if identify(&self.app, &self.headers).await.is_err() {
                return;
            }
            // A store that does not answer now may answer next time: nothing is taken for told before it was read.
            news = self.look().await.unwrap_or_default();
        }
    }

    /// What is new or stands differently, the oldest first.
    async fn look(&mut self) -> Result<Vec<StreamEvent>, Problem> {
        let mut news = Vec::new();
        let Next { taken, passed_over, is_cut_off } = self.next_rows().await?;
        let wanted: Vec<Seq> = self.followed.keys().copied().chain(taken.iter().copied()).collect();
        let mut rows = self.app.store.deliveries_at(wanted).await?;
        rows.sort_unstable_by_key(|row| row.seq);
        let contexts = DeliveryContexts::of(&self.app, &rows).await?;
        // From here on nothing can fail, so that whatever is taken for told is told.
        if !passed_over.is_empty() {
            news.push(StreamEvent::Missed { deliveries: passed_over.len(), is_at_least: is_cut_off });
        }
        self.known.extend(&taken);
        self.known.extend(passed_over);
        let mut followed = BTreeMap::new();
        for row in &rows {
            let view = contexts.view(&self.app, row);
            let stands = standing(&view);
            let is_news = self.followed.get(&row.seq) != Some(&stands);
            if let State::Waiting { .. } = row.state {
                followed.insert(row.seq, stands);
            }
            if is_news {
                news.push(StreamEvent::Delivery(Box::new(view)));
            }
        }
        let was_lagging = self.is_lagging;
        while followed.len() > FOLLOWED_MAX {
            followed.pop_first();
            self.is_lagging = true;
        }
        self.followed = followed;
        if self.is_lagging && !was_lagging {
            news.push(StreamEvent::Lagging);
        }
        self.settle();
        Ok(news)
    }

    /// Rows that were not seen before.
    async fn next_rows(&self) -> Result<Next, Problem> {
        let limit = BEHIND_MAX + NEW_PER_LOOK_MAX + self.known.len();
        let rows = self.rows_after_settled(limit).await?;
        let is_cut_off = rows.len() >= limit;
        let mut fresh: Vec<Seq> = rows.into_iter().filter(|row| !self.known.contains(row)).collect();
        if fresh.len() <= BEHIND_MAX {
            fresh.truncate(NEW_PER_LOOK_MAX);
            return Ok(Next { taken: fresh, passed_over: vec![], is_cut_off });
        }
        let taken = fresh.split_off(fresh.len() - NEW_PER_LOOK_MAX);
        Ok(Next { taken, passed_over: fresh, is_cut_off })
    }

    async fn rows_after_settled(&self, limit: usize) -> Result<Vec<Seq>, Problem> {
        let query = RowsAfter { tenant: self.tenant.clone(), endpoint: self.endpoint, after: self.settled, limit };
        Ok(self.app.store.rows_after(query).await?)
    }

    /// Forgets rows that are so old that none before them can appear.
    fn settle(&mut self) {
        let now = Instant::now();
        if let Some(highest) = self.known.last() {
            self.marks.push_back((now, *highest));
        }
        let settles_after = if self.app.store.is_shared() { SETTLES_AFTER } else { Duration::ZERO };
        while let Some((_, seq)) = self.marks.front().copied().filter(|(at, _)| *at + settles_after <= now) {
            self.marks.pop_front();
            self.settled = self.settled.max(seq);
        }
        self.known = self.known.split_off(&(self.settled + 1));
    }

    /// Before the first row of which not everything was told.
    fn position(&self) -> Seq {
        self.followed.first_key_value().map_or(self.settled, |(seq, _)| self.settled.min(seq - 1))
    }
}

fn event(told: &StreamEvent, id: &str) -> Bytes {
    let (name, data): (&str, Value) = match told {
        StreamEvent::Delivery(view) => ("delivery", serde_json::to_value(view).expect("texts and numbers")),
        StreamEvent::Missed { deliveries, is_at_least } => {
            ("missed", json!({"deliveries": deliveries, "is_at_least": is_at_least, "see": "/v1/deliveries"}))
        }
        StreamEvent::Lagging => {
            let detail = "Not everything that waits is followed: changes of older deliveries are not told here.";
            ("lagging", json!({"followed_max": FOLLOWED_MAX, "detail": detail, "see": "/v1/deliveries"}))
        }
    };
    Bytes::from(format!("event: {name}\nid: {id}\ndata: {data}\n\n"))
}

fn standing(view: &DeliveryView) -> WatchedStatus {
    (view.status, view.hold_reason, view.attempt_count)
}

/// Whether somebody still reads.
async fn send(outbox: &mpsc::Sender<Bytes>, event: Bytes) -> bool {
    matches!(tokio::time::timeout(PATIENCE, outbox.send(event)).await, Ok(Ok(())))
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
