//! Posts a request and says what came of it.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use posthaste_core::delivery::{NoConnection, Outcome, Silence, Timings};
use posthaste_core::destination::{Destination, Policy};
use posthaste_core::retry_after;
use posthaste_core::time::Timestamp;
use tokio::time::Instant;

use crate::connection::{Facts, MaySend, SendError};
use crate::connector::{Connector, Failure, within};
use crate::options::{Options, OptionsError};
use crate::pool::{ConnectionCounts, Lease, Pool, Visit};
use crate::preview::{self, Preview};
use crate::redact::OwnSecrets;
use crate::request::Address;

pub use crate::preview::RESPONSE_PREVIEW_BYTES_MAX;

/// What people are told of a failure.
const ERROR_BYTES_MAX: usize = 512;

/// Cheap to clone; the clones share their connections.
#[derive(Clone)]
pub struct Client {
    connector: Arc<Connector>,
    pool: Arc<Pool>,
}

/// What came of one request.
#[derive(Clone, PartialEq, Debug)]
pub struct Posted {
    pub outcome: Outcome,
    /// From the start of the attempt to the response head, or to the failure.
    pub response_time: Duration,
    pub timings: Timings,
    /// The beginning of the answer's body, without what looks like a secret.
    pub preview: Option<String>,
    pub error: Option<String>,
}

impl Posted {
    /// Nothing was sent, because a rule forbids it.
    pub fn blocked(rule: impl Into<String>) -> Posted {
        failed(Failure { outcome: Outcome::Blocked, error: rule.into() }, Duration::ZERO, Timings::default())
    }
}

/// That a connection came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    pub address: IpAddr,
    pub timings: Timings,
}

impl Client {
    pub fn new(options: &Options) -> Result<Client, OptionsError> {
        Ok(Client { connector: Arc::new(Connector::new(options)?), pool: Pool::new(options) })
    }

    /// The policy that every request is checked against.
    pub fn policy(&self) -> Arc<Policy> {
        self.pool.policy()
    }

    /// How many connections there are.
    pub fn connections(&self) -> ConnectionCounts {
        self.pool.counts()
    }

    /// How many unused connections are kept.
    pub fn idle_connections(&self) -> usize {
        self.pool.idle_connections()
    }

    /// Sends it there, whatever the request's own URI is, and waits at most `timeout` for the head of an answer. `now` is only for
    /// reading dates in it.
    /// Whatever the receiver does, this is over within the timeout and a second.
    pub async fn post(&self, to: &Address, request: Request<Full<Bytes>>, timeout: Duration, now: Timestamp) -> Posted {
        self.post_while(&|| Some(far_away()), to, request, timeout, now).await.expect("it always may")
    }

    /// The same, if it still may when there is a connection to send it on. `may_send` then says by when the first byte has to be on its way:
    /// even after that the whole process may stand still. `None` if it may not any more; then not a byte was sent.
    pub async fn post_while(
        &self,
        may_send: MaySend<'_>,
        to: &Address,
        request: Request<Full<Bytes>>,
        timeout: Duration,
        now: Timestamp,
    ) -> Option<Posted> {
        // Nobody is dialled for what may not be sent.
        may_send()?;
        let started = Instant::now();
        let secrets = OwnSecrets::of(request.headers());
        let mut timings = Timings::default();
        let mut visit = self.pool.visit(&to.destination);
        let sent = self.send(&mut visit, may_send, to, request, started + timeout, &mut timings).await;
        let response_time = started.elapsed();
        Some(match sent? {
            Ok((response, mut lease)) => {
                let outcome = Outcome::Answered { status: response.status().as_u16(), retry_after: asked_to_wait(&response, now) };
                let Preview { text, is_whole } = lease.connection().drive(preview::read(response, &secrets)).await;
                if is_whole {
                    lease.keep();
                }
                Posted { outcome, response_time, timings, preview: text, error: None }
            }
            Err(failure) => failed(failure, response_time, timings),
        })
    }

    /// Makes a connection as a delivery would, and closes it without a word: whether deliveries could get there. If not, why, in
    /// words, and how far it came.
    pub async fn reach(&self, url: &str, timeout: Duration) -> Result<Reached, (String, Timings)> {
        let mut timings = Timings::default();
        let reached = async {
            let destination = Destination::parse(url).map_err(|rule| Failure::refused(&rule))?;
            let policy = self.pool.policy();
            policy.check(&destination).map_err(|rule| Failure::refused(&rule))?;
            let connection = self.connector.connect(&policy, &destination, Instant::now() + timeout, &mut timings).await?;
            Ok(connection.facts().address)
        };
        match reached.await {
            Ok(address) => Ok(Reached { address, timings }),
            Err(failure) => {
                let told = failed(failure, Duration::ZERO, timings);
                Err((told.error.unwrap_or_default(), told.timings))
            }
        }
    }

    /// Up to the head of an answer. `None` if nothing may be sent any more.
    async fn send<'a>(
        &self,
        visit: &'a mut Visit,
        may_send: MaySend<'_>,
        to: &Address,
        mut request: Request<Full<Bytes>>,
        deadline: Instant,
        timings: &mut Timings,
    ) -> Option<Result<(Response<Incoming>, Lease<'a>), Failure>> {
        if let Err(rule) = self.pool.policy().check(&to.destination) {
            return Some(Err(Failure::refused(&rule)));
        }
        if within(deadline, visit.wait_for_slot()).await.is_none() {
            let error = "all connections to this host were in use for the whole time";
            return Some(Err(Failure::not_sent(NoConnection::Connect, error)));
        }
        let visit = &*visit;
        loop {
            let (mut lease, is_new) = match visit.take() {
                Some(mut lease) => match self.judge_again(visit, lease.connection().facts(), deadline, timings).await {
                    Ok(true) => (lease, false),
                    // The name leads elsewhere now: this one is closed, and the next look is for another.
                    Ok(false) => continue,
                    Err(failure) => return Some(Err(failure)),
                },
                None => match self.dial(visit, &to.destination, deadline, timings).await {
                    Ok(lease) => (lease, true),
                    Err(failure) => return Some(Err(failure)),
                },
            };
            let sending = Instant::now();
            // Only a connection that was used before is worth a second try, and only HTTP/2 can refuse after it has seen it.
            let spare = (!is_new && lease.is_shared()).then(|| request.clone());
            let answer = within(deadline, lease.connection().send(may_send, request, to)).await;
            timings.first_byte = Some(sending.elapsed());
            match answer {
                Some(Ok(response)) => return Some(Ok((response, lease))),
                Some(Err(SendError::Forbidden)) => return None,
                Some(Err(SendError::Unsent(unsent, _))) if !is_new => request = *unsent,
                Some(Err(SendError::Lost { was_refused: true, error })) => match spare {
                    Some(spare) => request = spare,
                    None => return Some(Err(lost(&error))),
                },
                Some(Err(SendError::Lost { was_refused: false, error })) => return Some(Err(lost(&error))),
                Some(Err(SendError::Unsent(_, error))) => {
                    let error = format!("the connection was closed before the request was written: {}", root_cause(&error));
                    return Some(Err(Failure::not_sent(NoConnection::Connect, error)));
                }
                None => {
                    let error = "the request was sent, and no answer came in time".to_owned();
                    return Some(Err(Failure { outcome: Outcome::Silent(Silence::Timeout), error }));
                }
            }
        }
    }

    /// Whether a connection that is there already may be used: its name is asked for again from time to time.
    async fn judge_again(&self, visit: &Visit, facts: &Facts, deadline: Instant, timings: &mut Timings) -> Result<bool, Failure> {
        if !visit.is_due_to_be_judged(facts) {
            return Ok(true);
        }
        self.connector.judge_again(&self.pool.policy(), facts, deadline, timings).await
    }

    async fn dial<'a>(
        &self,
        visit: &'a Visit,
        destination: &Destination,
        deadline: Instant,
        timings: &mut Timings,
    ) -> Result<Lease<'a>, Failure> {
        let connection = self.connector.connect(&self.pool.policy(), destination, deadline, timings).await?;
        // The policy may have changed while it was made.
        let address = connection.facts().address;
        self.pool.policy().judge(destination, address).map_err(|rule| Failure::refused(&rule))?;
        Ok(visit.lease(connection))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("connector", &self.connector).field("policy", &self.policy()).finish_non_exhaustive()
    }
}

/// Longer than anything takes here.
fn far_away() -> std::time::Instant {
    std::time::Instant::now() + Duration::from_hours(24)
}

fn failed(failure: Failure, response_time: Duration, mut timings: Timings) -> Posted {
    let Failure { outcome, mut error } = failure;
    // There was no byte.
    timings.first_byte = None;
    // Some of it may be the receiver's own words, such as the names in a certificate.
    error.retain(|character| !character.is_control());
    error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
    Posted { outcome, response_time, timings, preview: None, error: Some(error) }
}

/// The request may have been seen.
fn lost(error: &hyper::Error) -> Failure {
    let what = if error.is_parse() || error.is_parse_status() {
        "the answer is not HTTP that can be read"
    } else {
        "the connection broke before an answer came"
    };
    Failure { outcome: Outcome::Silent(Silence::Reset), error: format!("{what}: {}", root_cause(error)) }
}

fn asked_to_wait(response: &Response<Incoming>, now: Timestamp) -> Option<Duration> {
    let mut values = response.headers().get_all(RETRY_AFTER).iter();
    // Two of them contradict each other, and then none counts.
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    retry_after::parse(value.to_str().ok()?, now)
}

fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
