//! Receives webhooks, in moods, and writes down every one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::TcpListener;

use crate::draw::scattered;
use crate::evidence::{Answer, Clock, Hit, Moment, RetryAfter, fingerprint};
use crate::signature;

/// How an endpoint behaves until it is healed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behaviour {
    Healthy,
    /// Takes its time, within every time-out.
    Slow,
    /// Takes so long that requests pile up where there is a cap.
    Sluggish,
    /// Errors of all kinds, broken connections, answers that come too late.
    Flaky,
    /// Refuses every tenth event for good, healed or not.
    Picky,
    /// Refuses the first tries of every fourth event for now, and says when to come back, or something that means nothing.
    Busy,
    /// Never answers the first try of every fourth event.
    Hanging,
    /// Answers 410 to every twentieth event until it is disabled.
    Going,
}

/// What it knows of an endpoint.
#[derive(Debug)]
struct Place {
    mood: Behaviour,
    /// All that it has been given, in that order.
    secrets: RwLock<Vec<String>>,
    /// Which serial numbers have come to an end here.
    settled: Mutex<Vec<u64>>,
}

#[derive(Debug)]
pub struct Receiver {
    pub address: SocketAddr,
    clock: Clock,
    seed: u64,
    places: RwLock<Vec<Arc<Place>>>,
    hits: Mutex<Vec<Hit>>,
    is_healed: AtomicBool,
}

impl Receiver {
    pub async fn start(clock: Clock, seed: u64) -> anyhow::Result<Arc<Receiver>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let receiver = Arc::new(Receiver {
            address: listener.local_addr()?,
            clock,
            seed,
            places: RwLock::default(),
            hits: Mutex::default(),
            is_healed: AtomicBool::new(false),
        });
        let serving = Arc::clone(&receiver);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let receiver = Arc::clone(&serving);
                let service = service_fn(move |request| Arc::clone(&receiver).receive(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(receiver)
    }

    /// A new place to receive at; its number is its path.
    pub fn add(&self, mood: Behaviour) -> usize {
        let mut places = self.places.write();
        places.push(Arc::new(Place { mood, secrets: RwLock::default(), settled: Mutex::default() }));
        places.len() - 1
    }

    pub fn url(&self, place: usize) -> String {
        format!("http://{}/{place}", self.address)
    }

    /// From now on, or from soon on, this one may be used. Answers its number.
    pub fn add_secret(&self, place: usize, secret: &str) -> usize {
        let places = self.places.read();
        let mut secrets = places[place].secrets.write();
        secrets.push(secret.to_owned());
        secrets.len() - 1
    }

    /// From now on everybody is well.
    pub fn heal(&self) {
        self.is_healed.store(true, Ordering::Relaxed);
    }

    pub fn hit_count(&self) -> usize {
        self.hits.lock().len()
    }

    pub fn hits(&self) -> Vec<Hit> {
        self.hits.lock().clone()
    }

    /// Whether this publish has come to an end at this place.
    pub fn is_settled(&self, place: usize, serial: u64) -> bool {
        let at = usize::try_from(serial).expect("counted from 0");
        self.places.read()[place].settled.lock().get(at / 64).is_some_and(|bits| bits >> (at % 64) & 1 == 1)
    }

    async fn receive(self: Arc<Receiver>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Cut> {
        let start = self.clock.now();
        let arrived = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let endpoint: usize = request.uri().path().trim_start_matches('/').parse().unwrap_or(usize::MAX);
        let Some(place) = self.places.read().get(endpoint).cloned() else {
            return Ok(response(404));
        };
        let url_mark = request.uri().query().and_then(|query| query.strip_prefix("mark=")?.parse().ok());
        let headers = request.headers().clone();
        // Not all of it came: nobody was told anything, and nothing was received.
        let Ok(body) = request.into_body().collect().await else { return Err(Cut) };
        let body = body.to_bytes();
        let mut hit = read_hit(start, arrived, endpoint, &place, &headers, &body);
        hit.marks[0] = url_mark;
        let plan = self.plan(place.mood, &hit);
        let noted = Noted { receiver: &self, place: &place, hit: Some(hit) };
        if !plan.delay.is_zero() {
            tokio::time::sleep(plan.delay).await;
        }
        noted.answered(plan.answer, plan.retry_after);
        match plan.answer {
            Answer::Status(status) => {
                let mut response = response(status);
                if let Some(value) = plan.retry_after.header() {
                    response.headers_mut().insert(http::header::RETRY_AFTER, value.parse().expect("visible"));
                }
                Ok(response)
            }
            Answer::Cut => Err(Cut),
        }
    }

    fn plan(&self, mood: Behaviour, hit: &Hit) -> Plan {
        let none = RetryAfter::None;
        let status = |status| Plan { delay: Duration::ZERO, answer: Answer::Status(status), retry_after: none };
        let later =
            |millis, status| Plan { delay: Duration::from_millis(millis), answer: Answer::Status(status), retry_after: none };
        let drawn = scattered(self.seed ^ hit.serial.unwrap_or_default(), u64::from(hit.attempt));
        let by_event = scattered(self.seed, hit.serial.unwrap_or_default());
        let is_healed = self.is_healed.load(Ordering::Relaxed);
        match mood {
            Behaviour::Picky if by_event.is_multiple_of(10) => status(400),
            Behaviour::Going if by_event.is_multiple_of(20) && !is_healed => status(410),
            Behaviour::Slow if !is_healed => later(5 + drawn % 150, 200),
            Behaviour::Sluggish if !is_healed => later(800 + drawn % 400, 200),
            Behaviour::Busy if !is_healed && hit.attempt <= 2 => match (by_event % 8, hit.attempt) {
                (0, 1) => Plan { retry_after: RetryAfter::Seconds(2), ..status(503) },
                (1, _) => Plan { retry_after: RetryAfter::Malformed, ..status(429) },
                _ => status(200),
            },
            Behaviour::Flaky if !is_healed => match drawn % 100 {
                0..20 => status(503),
                20..25 => status(500),
                25..28 => status(429),
                28..32 => Plan { delay: Duration::ZERO, answer: Answer::Cut, retry_after: none },
                // Too late for the time-out of three seconds.
                32..34 => later(4_000, 200),
                _ => status(200),
            },
            Behaviour::Hanging if by_event.is_multiple_of(4) && hit.attempt == 1 && !is_healed => later(60_000, 200),
            Behaviour::Healthy
            | Behaviour::Hanging
            | Behaviour::Slow
            | Behaviour::Sluggish
            | Behaviour::Flaky
            | Behaviour::Picky
            | Behaviour::Busy
            | Behaviour::Going => status(200),
        }
    }
}

struct Plan {
    delay: Duration,
    answer: Answer,
    retry_after: RetryAfter,
}

/// Closes the connection without an answer.
#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut off on purpose")
    }
}

impl std::error::Error for Cut {}

/// Writes the hit down when it is over, also if the other side goes away in the middle.
struct Noted<'a> {
    receiver: &'a Receiver,
    place: &'a Place,
    hit: Option<Hit>,
}

impl Noted<'_> {
    fn answered(mut self, answer: Answer, retry_after: RetryAfter) {
        if let Some(hit) = &mut self.hit {
            (hit.answer, hit.retry_after) = (answer, retry_after);
        }
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let Some(mut hit) = self.hit.take() else { return };
        hit.end = self.receiver.clock.now();
        if let (Some(serial), true) = (hit.serial, hit.answer.is_success() || hit.answer.is_permanent()) {
            let at = usize::try_from(serial).expect("counted from 0");
            let mut settled = self.place.settled.lock();
            if settled.len() <= at / 64 {
                settled.resize(at / 64 + 1, 0);
            }
            settled[at / 64] |= 1 << (at % 64);
        }
        self.receiver.hits.lock().push(hit);
    }
}

/// The envelope, as far as it matters here. The payload is kept as the text that came.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(rename = "type")]
    event_type: String,
    tenant: String,
    #[serde(borrow)]
    data: &'a RawValue,
}

/// What the publisher has put into every payload.
#[derive(Deserialize)]
struct Payload {
    serial: u64,
}

fn read_hit(start: Moment, arrived: u64, endpoint: usize, place: &Place, headers: &HeaderMap, body: &[u8]) -> Hit {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let envelope: Option<Envelope<'_>> = serde_json::from_slice(body).ok();
    let payload = envelope.as_ref().and_then(|envelope| serde_json::from_str::<Payload>(envelope.data.get()).ok());
    let (id, timestamp, signatures) = (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"));
    let secrets = place.secrets.read();
    let is_signed_with = |secret: &String| signature::problem(secret, id, timestamp, signatures, body).is_none();
    let secret = secrets.iter().rposition(is_signed_with);
    // Without any it was hit before the answer that has the first was read. Nothing can be said about it.
    let signature_problem =
        secrets.last().filter(|_| secret.is_none()).and_then(|secret| signature::problem(secret, id, timestamp, signatures, body));
    Hit {
        start,
        end: start,
        endpoint,
        event: id.into(),
        delivery: header("posthaste-delivery").into(),
        attempt: header("posthaste-attempt").parse().unwrap_or_default(),
        serial: payload.map(|payload| payload.serial),
        tenant: envelope.as_ref().and_then(|envelope| envelope.tenant.strip_prefix('t')?.parse().ok()),
        event_type: envelope.as_ref().map(|envelope| envelope.event_type.as_str()).unwrap_or_default().into(),
        data: fingerprint(envelope.map_or("", |envelope| envelope.data.get()).as_bytes()),
        body: fingerprint(body),
        answer: Answer::Cut,
        retry_after: RetryAfter::None,
        marks: [None, header("x-mark").parse().ok()],
        secret,
        signature_problem: signature_problem.map(Into::into),
        clock_off_seconds: timestamp.parse::<u64>().map_or(u64::MAX, |timestamp| timestamp.abs_diff(arrived)),
    }
}

fn response(status: u16) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = http::StatusCode::from_u16(status).expect("one of ours");
    response
}
