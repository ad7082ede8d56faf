//! `webhook.deliver`: one attempt. Below it: it waits in its lane from when it is due (`claim_delivery`), it is signed
//! (`sign_payload`), sent (`http_post_customer_endpoint`), judged (`mark_delivered_or_retry`), and written down
//! (`record_attempt`). It is judged before it is written, because attempt and verdict are written together.

use std::time::{Duration, Instant};

use posthaste_core::delivery::{Outcome, State, Timings};
use posthaste_core::event::{Event, EventType};
use posthaste_core::id::{AttemptId, DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::time::Timestamp;
use posthaste_core::trace::{SpanId, Trace};

use crate::moment::{Anchor, nanos_of};
use crate::span::{Attributes, Kind, Parent, Span, Value};

/// What is known of an attempt before it is made.
#[derive(Clone, Copy, Debug)]
pub struct AttemptStart<'a> {
    pub endpoint: EndpointId,
    pub delivery: DeliveryId,
    /// Counted from 1.
    pub number: u32,
    /// Since when it could have been made.
    pub due: Timestamp,
    /// `None` if its URL cannot be sent to.
    pub server: Option<Server<'a>>,
    pub timeout: Duration,
}

/// What is told of a receiver's URL.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    pub scheme: &'a str,
    pub host: &'a str,
    pub port: Option<u16>,
}

/// One attempt that somebody looks at, from its beginning to its record. It holds no payload.
#[derive(Clone, Debug)]
pub struct Attempt {
    trace: Trace,
    deliver: SpanId,
    post: SpanId,
    due: Timestamp,
    began: Instant,
    signed: Option<Instant>,
    answered: Option<Instant>,
    event: EventId,
    tenant: TenantId,
    event_type: EventType,
    endpoint: EndpointId,
    delivery: DeliveryId,
    number: u32,
    body_bytes: usize,
    timeout: Duration,
    server: Attributes,
}

/// How it has ended.
#[derive(Clone, Copy, Debug)]
pub struct AttemptEnd {
    pub attempt: AttemptId,
    pub outcome: Outcome,
    pub timings: Timings,
    pub state: State,
    /// When it was judged, and began to be recorded.
    pub judged: Instant,
    pub recorded: Instant,
    pub recorded_as: RecordStatus,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordStatus {
    Done,
    /// Another attempt of this number was recorded before, or the delivery had ended.
    MovedOn,
    /// Another node owns the delivery.
    NotOwner,
}

impl Attempt {
    /// It begins now.
    pub fn begin(trace: Trace, event: &Event, begun: AttemptStart<'_>) -> Attempt {
        let AttemptStart { endpoint, delivery, number, due, server, timeout } = begun;
        Attempt {
            trace,
            deliver: SpanId::from_draw(rand::random()),
            post: SpanId::from_draw(rand::random()),
            due,
            began: Instant::now(),
            signed: None,
            answered: None,
            event: event.id.clone(),
            tenant: event.tenant.clone(),
            event_type: event.event_type.clone(),
            endpoint,
            delivery,
            number,
            body_bytes: event.data.as_str().len(),
            timeout,
            server: server.map(Server::attributes).unwrap_or_default(),
        }
    }

    /// The span that a receiver is told of.
    pub fn post(&self) -> (Trace, SpanId) {
        (self.trace, self.post)
    }

    /// It is signed, and on its way from now on.
    pub fn signed(&mut self) {
        self.signed = Some(Instant::now());
    }

    /// It has been answered, or never will be.
    pub fn answered(&mut self) {
        self.answered = Some(Instant::now());
    }

    pub(crate) fn spans(&self, ended: &AttemptEnd) -> Vec<Span> {
        let anchor = Anchor::now();
        let began = anchor.nanos(self.began);
        let claimed_from = nanos_of(self.due).min(began);
        let this = Parent { trace: self.trace.id, id: self.deliver };
        let above = Parent { trace: self.trace.id, id: self.trace.publish };
        let has_failed = !matches!(ended.state, State::Delivered { .. });
        let deliver = Span {
            id: self.deliver,
            kind: Kind::Consumer,
            attributes: self.attributes(ended),
            has_failed,
            ..above.step("webhook.deliver", claimed_from, anchor.nanos(ended.recorded))
        };
        let mut spans = vec![deliver, this.step("claim_delivery", claimed_from, began)];
        if let Some(signed) = self.signed {
            spans.push(this.step("sign_payload", began, anchor.nanos(signed)));
            let answered = anchor.nanos(self.answered.unwrap_or(signed));
            let mut attributes = self.server.clone();
            attributes.extend(self.of_request(ended));
            spans.push(Span {
                id: self.post,
                kind: Kind::Client,
                attributes,
                has_failed: ended.outcome.name() != "success",
                ..this.step("http_post_customer_endpoint", anchor.nanos(signed), answered)
            });
        }
        let last = self.answered.or(self.signed).unwrap_or(self.began);
        let judged = this.step("mark_delivered_or_retry", anchor.nanos(last), anchor.nanos(ended.judged));
        spans.push(Span { attributes: of_state(ended.state), ..judged });
        let recorded = this.step("record_attempt", anchor.nanos(ended.judged), anchor.nanos(ended.recorded));
        let recorded_as = match ended.recorded_as {
            RecordStatus::Done => "done",
            RecordStatus::MovedOn => "moved_on",
            RecordStatus::NotOwner => "not_owner",
        };
        spans.push(Span {
            attributes: vec![("posthaste.record.result", Value::word(recorded_as))],
            has_failed: ended.recorded_as != RecordStatus::Done,
            ..recorded
        });
        spans
    }

    fn attributes(&self, ended: &AttemptEnd) -> Attributes {
        let mut attributes = vec![
            ("messaging.system", Value::word("posthaste")),
            ("messaging.operation.name", Value::word("deliver")),
            ("messaging.operation.type", Value::word("process")),
            ("messaging.destination.name", Value::text(&self.event_type)),
            ("messaging.message.id", Value::text(&self.event)),
            ("messaging.message.body.size", Value::count(self.body_bytes)),
            ("posthaste.tenant", Value::text(&self.tenant)),
            ("posthaste.event.type", Value::text(&self.event_type)),
            ("posthaste.endpoint.id", Value::text(&self.endpoint)),
            ("posthaste.delivery.id", Value::text(&self.delivery)),
            ("posthaste.attempt.id", Value::text(&ended.attempt)),
            ("posthaste.attempt.number", Value::count(self.number)),
            ("posthaste.attempt.outcome", Value::word(ended.outcome.name())),
        ];
        attributes.extend(ended.outcome.status_code().map(|status| ("http.response.status_code", Value::count(status))));
        attributes.extend(error_type(&ended.outcome));
        attributes.extend(of_state(ended.state));
        attributes
    }

    fn of_request(&self, ended: &AttemptEnd) -> Attributes {
        let mut attributes =
            vec![("http.request.method", Value::word("POST")), ("posthaste.timeout_ms", Value::count(self.timeout.as_millis()))];
        if self.number > 1 {
            attributes.push(("http.request.resend_count", Value::count(self.number - 1)));
        }
        attributes.extend(ended.outcome.status_code().map(|status| ("http.response.status_code", Value::count(status))));
        attributes.extend(error_type(&ended.outcome));
        let Timings { dns, connect, tls, first_byte } = ended.timings;
        let timings = [
            ("posthaste.dns_us", dns),
            ("posthaste.connect_us", connect),
            ("posthaste.tls_us", tls),
            ("posthaste.first_byte_us", first_byte),
        ];
        attributes.extend(timings.into_iter().filter_map(|(name, time)| Some((name, Value::count(time?.as_micros())))));
        attributes
    }
}

impl Server<'_> {
    fn attributes(self) -> Attributes {
        let mut attributes = vec![("url.scheme", Value::text(self.scheme)), ("server.address", Value::text(self.host))];
        let port = self.port.unwrap_or(if self.scheme == "http" { 80 } else { 443 });
        attributes.push(("server.port", Value::count(port)));
        attributes
    }
}

/// The status if there is one, else the word for what went wrong.
fn error_type(outcome: &Outcome) -> Option<(&'static str, Value)> {
    let value = match outcome {
        Outcome::Answered { status: 200..=299, .. } => return None,
        Outcome::Answered { status, .. } => Value::text(status),
        Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => Value::word(outcome.name()),
    };
    Some(("error.type", value))
}

fn of_state(state: State) -> Attributes {
    let verdict = |word| ("posthaste.verdict", Value::word(word));
    match state {
        State::Delivered { .. } => vec![verdict("delivered")],
        State::Waiting { due } => vec![verdict("retry"), ("posthaste.next_attempt_at", Value::text(&due.to_rfc3339()))],
        State::Dead { reason, .. } => vec![verdict("dead"), ("posthaste.dead_reason", Value::word(reason.name()))],
        State::Cancelled { reason, .. } => vec![verdict("cancelled"), ("posthaste.cancel_reason", Value::word(reason.name()))],
    }
}
