//! What is compared with: a forwarder that remembers nothing. It takes the same publish requests with the same HTTP server, signs,
//! posts with the same client, and answers when the receiver has. It stores nothing, tries once, and asks for no key.
//!
//! The same process can also post without being asked, to see what the client alone can do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use axum::extract::{Json, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use posthaste_core::delivery::Outcome;
use posthaste_core::endpoint::{Headers, PayloadFormat, Signing};
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{DeliveryId, EventId, Sequence, TenantId, Unique};
use posthaste_core::text::Labels;
use posthaste_core::time::Timestamp;
use posthaste_sender::request::{self, Address, Signer, Try};
use posthaste_sender::{Client, Options, Policy};
use posthaste_signing::Secret;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use super::load::event;
use super::part::listen;
use super::process::Part;

/// As an endpoint has it about which nothing was said.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Forwarder {
    client: Client,
    target: Address,
    signer: Signer,
    headers: Headers,
    sequence: Mutex<Sequence>,
}

/// An event as it is published, as far as a forwarder has to know it.
#[derive(Deserialize)]
struct Published<'a> {
    #[serde(rename = "type")]
    event_type: &'a str,
    tenant: &'a str,
    #[serde(borrow)]
    data: &'a RawValue,
}

/// Posts by itself.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(super) struct Alone {
    pub(super) posts: usize,
    pub(super) in_flight: usize,
    pub(super) payload_bytes: usize,
}

/// Comes back when the last was answered.
pub(super) async fn post_alone(forwarder: &Part, order: Alone) -> anyhow::Result<()> {
    forwarder.tell("/alone", &order).await.map(drop)
}

pub(super) async fn serve(receiver: SocketAddr) -> anyhow::Result<String> {
    let forwarder = Arc::new(Forwarder::new(receiver)?);
    let router = axum::Router::new().route("/v1/events", post(forward)).route("/alone", post(alone)).with_state(forwarder);
    Ok(listen(router).await?.to_string())
}

async fn forward(State(forwarder): State<Arc<Forwarder>>, body: Bytes) -> Response {
    match forwarder.pass_on(&body).await {
        Ok(id) => (StatusCode::ACCEPTED, Json(json!({"id": id.as_str(), "deliveries": 1}))).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
    }
}

impl Forwarder {
    pub(super) fn new(receiver: SocketAddr) -> anyhow::Result<Forwarder> {
        let own_network = "127.0.0.0/8".parse().context("our own network")?;
        let policy = Policy { allowed_networks: vec![own_network], allow_http: true, public_host: None };
        let secret = Secret::from_random(rand::random());
        Ok(Forwarder {
            client: Client::new(&Options { policy, ..Options::default() })?,
            target: Address::parse(&format!("http://{receiver}/1/0"))?,
            signer: Signer::new(&Signing::Standard, [secret.reveal()])?,
            headers: Headers::default(),
            sequence: Mutex::default(),
        })
    }

    async fn pass_on(&self, body: &[u8]) -> anyhow::Result<EventId> {
        let event = self.event(body)?;
        self.post(&event).await?;
        Ok(event.id)
    }

    pub(super) fn event(&self, body: &[u8]) -> anyhow::Result<Event> {
        let published: Published<'_> = serde_json::from_slice(body)?;
        let now = wall_clock();
        Ok(Event {
            id: EventId::from_unique(self.unique(now)),
            tenant: TenantId::parse(published.tenant)?,
            event_type: EventType::parse(published.event_type)?,
            version: None,
            timestamp: now,
            accepted_at: now,
            data: Data::parse(published.data.get())?,
            labels: Labels::default(),
            idempotency_key: None,
            ordering_key: None,
            timing: Timing::default(),
            trace: None,
        })
    }

    /// Goes well if the receiver has taken it.
    pub(super) async fn post(&self, event: &Event) -> anyhow::Result<()> {
        let now = wall_clock();
        let one_try = Try {
            delivery: DeliveryId::from_unique(self.unique(now)),
            attempt: 1,
            event,
            address: &self.target,
            signer: &self.signer,
            payload_format: PayloadFormat::Envelope,
            headers: &self.headers,
            now,
            span: None,
        };
        let posted = self.client.post(&self.target, request::build(&one_try), TIMEOUT, now).await;
        match posted.outcome {
            Outcome::Answered { status: 200..=299, .. } => Ok(()),
            Outcome::Answered { .. } | Outcome::Silent(_) | Outcome::NotSent(_) | Outcome::Blocked => {
                bail!("the receiver did not take it: {:?}", posted.outcome)
            }
        }
    }

    fn unique(&self, now: Timestamp) -> Unique {
        self.sequence.lock().next(now, rand::random())
    }
}

async fn alone(State(forwarder): State<Arc<Forwarder>>, Json(order): Json<Alone>) -> Response {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..order.in_flight {
        let (forwarder, next) = (Arc::clone(&forwarder), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= order.posts {
                    return anyhow::Ok(());
                }
                forwarder.pass_on(event("raw", number, order.payload_bytes).as_bytes()).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        if let Ok(Err(error)) = ended {
            return (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response();
        }
    }
    StatusCode::OK.into_response()
}

fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
