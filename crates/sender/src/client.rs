//! Posts a request and says what came of it.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use posthaste_core::delivery::{NoConnection, Outcome, Silence};
use posthaste_core::retry_after;
use posthaste_core::time::Timestamp;

use crate::address::Egress;
use crate::connector::{ConnectError, GuardedConnector};

/// What we keep of an answer. Enough to read an error, too little to store someone's data.
pub const RESPONSE_PREVIEW_BYTES_MAX: usize = 4 * 1024;
/// How long a body may take once the head has said what we wanted to know.
const PREVIEW_TIME_MAX: Duration = Duration::from_secs(1);
const IDLE_MAX: Duration = Duration::from_mins(1);
const IDLE_PER_HOST_MAX: usize = 64;

#[derive(Clone, Debug)]
pub struct Client {
    http: legacy::Client<GuardedConnector, Full<Bytes>>,
}

/// What came of one request.
#[derive(Clone, PartialEq, Debug)]
pub struct Posted {
    pub outcome: Outcome,
    /// From the start of the attempt to the response head, or to the failure.
    pub response_time: Duration,
    pub preview: Option<String>,
    pub error: Option<String>,
}

impl Client {
    pub fn new(egress: Egress) -> Client {
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_PER_HOST_MAX)
            .http1_max_buf_size(32 * 1024)
            .build(GuardedConnector { egress: Arc::new(egress) });
        Client { http }
    }

    /// Sends, and waits at most `timeout` for the head of an answer. `now` is only for reading dates in it.
    pub async fn post(&self, request: Request<Full<Bytes>>, timeout: Duration, now: Timestamp) -> Posted {
        let started = Instant::now();
        let answer = tokio::time::timeout(timeout, self.http.request(request)).await;
        let response_time = started.elapsed();
        let failed = |outcome, error: String| Posted { outcome, response_time, preview: None, error: Some(error) };
        match answer {
            Ok(Ok(response)) => {
                let outcome = Outcome::Answered { status: response.status().as_u16(), retry_after: asked_to_wait(&response, now) };
                Posted { outcome, response_time, preview: preview(response.into_body()).await, error: None }
            }
            Ok(Err(error)) => failed(class_of(&error), root_cause(&error)),
            Err(_) => failed(Outcome::Silent(Silence::Timeout), format!("no answer within {} ms", timeout.as_millis())),
        }
    }
}

fn asked_to_wait(response: &Response<Incoming>, now: Timestamp) -> Option<Duration> {
    let mut values = response.headers().get_all(RETRY_AFTER).iter();
    // Two of them contradict each other, and then none counts.
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    retry_after::parse(value.to_str().ok()?, now)
}

fn class_of(error: &legacy::Error) -> Outcome {
    match error.source().and_then(|source| source.downcast_ref::<ConnectError>()) {
        Some(ConnectError::Blocked) => Outcome::Blocked,
        Some(ConnectError::Failed(failure, _)) => Outcome::NotSent(*failure),
        None if error.is_connect() => Outcome::NotSent(NoConnection::Connect),
        None => Outcome::Silent(Silence::Reset),
    }
}

fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The beginning of the body. The head has decided already; the body may be endless, and is cut off.
async fn preview(mut body: Incoming) -> Option<String> {
    let mut kept: Vec<u8> = Vec::new();
    let read = async {
        while kept.len() < RESPONSE_PREVIEW_BYTES_MAX {
            let Some(Ok(frame)) = body.frame().await else { break };
            if let Some(bytes) = frame.data_ref() {
                let room = RESPONSE_PREVIEW_BYTES_MAX - kept.len();
                kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        }
    };
    let _ = tokio::time::timeout(PREVIEW_TIME_MAX, read).await;
    let mut text = String::from_utf8_lossy(&kept).into_owned();
    // What was not UTF-8 has grown.
    text.truncate(text.floor_char_boundary(RESPONSE_PREVIEW_BYTES_MAX));
    (!text.is_empty()).then_some(text)
}
