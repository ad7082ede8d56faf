//! Turns commands and their answers into JSON text, and back, for a database that carries them from one node to another.
//!
//! They live for seconds, but two versions may talk while nodes are upgraded one by one. What one does not know it leaves undone.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::{NoConnection, Outcome, Silence, Timings};
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{AttemptId, DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::text::{IdempotencyKey, Label, Labels, OrderingKey, Version};
use posthaste_core::time::{Timestamp, millis};
use serde::{Deserialize, Serialize};

use crate::{AttemptRecord, Audit, Command, CommandOutcome, Error};

pub(crate) fn command(command: &Command) -> String {
    write(&match command {
        Command::CancelDelivery { delivery, audit } => {
            CommandDocument::CancelDelivery { delivery: delivery.to_string(), audit: AuditDocument::of(audit) }
        }
        Command::CancelEvent { tenant, event, audit } => CommandDocument::CancelEvent {
            tenant: tenant.as_str().to_owned(),
            event: event.as_str().to_owned(),
            audit: AuditDocument::of(audit),
        },
        Command::SendNow { delivery, audit } => {
            CommandDocument::SendNow { delivery: delivery.to_string(), audit: AuditDocument::of(audit) }
        }
        Command::Test { endpoint, event } => {
            CommandDocument::Test { endpoint: endpoint.to_string(), event: Box::new(EventDocument::of(event)) }
        }
        Command::Apply { tenant, endpoint } => {
            CommandDocument::Apply { tenant: tenant.as_str().to_owned(), endpoint: endpoint.map(|endpoint| endpoint.to_string()) }
        }
    })
}

pub(crate) fn read_command(text: &str) -> Result<Command, Error> {
    let read = || {
        Ok(match parse(text)? {
            CommandDocument::CancelDelivery { delivery, audit } => {
                Command::CancelDelivery { delivery: DeliveryId::parse(&delivery)?, audit: audit.read()? }
            }
            CommandDocument::CancelEvent { tenant, event, audit } => {
                Command::CancelEvent { tenant: TenantId::parse(&tenant)?, event: EventId::parse(&event)?, audit: audit.read()? }
            }
            CommandDocument::SendNow { delivery, audit } => {
                Command::SendNow { delivery: DeliveryId::parse(&delivery)?, audit: audit.read()? }
            }
            CommandDocument::Test { endpoint, event } => {
                Command::Test { endpoint: EndpointId::parse(&endpoint)?, event: Arc::new(event.read()?) }
            }
            CommandDocument::Apply { tenant, endpoint } => Command::Apply {
                tenant: TenantId::parse(&tenant)?,
                endpoint: endpoint.as_deref().map(EndpointId::parse).transpose()?,
            },
        })
    };
    read().map_err(|Unreadable| Error::Corrupt { what: "command" })
}

pub(crate) fn commanded(commanded: &CommandOutcome) -> String {
    write(&match commanded {
        CommandOutcome::Done => AnswerDocument::Done,
        CommandOutcome::NotFound => AnswerDocument::NotFound,
        CommandOutcome::InFlight => AnswerDocument::InFlight,
        CommandOutcome::HasEnded => AnswerDocument::HasEnded,
        CommandOutcome::NotBefore(at) => AnswerDocument::NotBefore { at_ms: at.as_millis() },
        CommandOutcome::Tested(attempt) => AnswerDocument::Tested { attempt: Box::new(AttemptDocument::of(attempt)) },
    })
}

/// For one that its owner has not answered.
pub(crate) fn dropped() -> String {
    write(&AnswerDocument::Dropped)
}

/// `None` for one that its owner has dropped.
pub(crate) fn read_commanded(text: &str) -> Result<Option<CommandOutcome>, Error> {
    let read = || {
        Ok(Some(match parse(text)? {
            AnswerDocument::Done => CommandOutcome::Done,
            AnswerDocument::NotFound => CommandOutcome::NotFound,
            AnswerDocument::InFlight => CommandOutcome::InFlight,
            AnswerDocument::HasEnded => CommandOutcome::HasEnded,
            AnswerDocument::NotBefore { at_ms } => CommandOutcome::NotBefore(Timestamp::from_millis(at_ms)),
            AnswerDocument::Tested { attempt } => CommandOutcome::Tested(Box::new(attempt.read()?)),
            AnswerDocument::Dropped => return Ok(None),
        }))
    };
    read().map_err(|Unreadable| Error::Corrupt { what: "answer to a command" })
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
enum CommandDocument {
    CancelDelivery { delivery: String, audit: AuditDocument },
    CancelEvent { tenant: String, event: String, audit: AuditDocument },
    SendNow { delivery: String, audit: AuditDocument },
    Test { endpoint: String, event: Box<EventDocument> },
    Apply { tenant: String, endpoint: Option<String> },
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum AnswerDocument {
    Done,
    NotFound,
    InFlight,
    HasEnded,
    NotBefore { at_ms: i64 },
    Tested { attempt: Box<AttemptDocument> },
    Dropped,
}

#[derive(Serialize, Deserialize)]
struct AuditDocument {
    actor: String,
    address: Option<String>,
    action: String,
    subject: String,
    tenant: Option<String>,
    before: Option<String>,
    after: Option<String>,
}

impl AuditDocument {
    fn of(audit: &Audit) -> AuditDocument {
        let Audit { actor, address, action, subject, tenant, before, after } = audit.clone();
        AuditDocument { actor, address, action, subject, tenant: tenant.map(|tenant| tenant.as_str().to_owned()), before, after }
    }

    fn read(self) -> Result<Audit, Unreadable> {
        let AuditDocument { actor, address, action, subject, tenant, before, after } = self;
        let tenant = tenant.as_deref().map(TenantId::parse).transpose()?;
        Ok(Audit { actor, address, action, subject, tenant, before, after })
    }
}

#[derive(Serialize, Deserialize)]
struct EventDocument {
    id: String,
    tenant: String,
    event_type: String,
    version: Option<String>,
    timestamp_ms: i64,
    accepted_at_ms: i64,
    /// As text within text, so that its bytes survive.
    data: String,
    labels: Vec<String>,
    idempotency_key: Option<String>,
    ordering_key: Option<String>,
    deliver_at_ms: Option<i64>,
    expires_at_ms: Option<i64>,
}

impl EventDocument {
    fn of(event: &Event) -> EventDocument {
        EventDocument {
            id: event.id.as_str().to_owned(),
            tenant: event.tenant.as_str().to_owned(),
            event_type: event.event_type.as_str().to_owned(),
            version: event.version.as_ref().map(|version| version.as_str().to_owned()),
            timestamp_ms: event.timestamp.as_millis(),
            accepted_at_ms: event.accepted_at.as_millis(),
            data: event.data.as_str().to_owned(),
            labels: event.labels.iter().map(ToString::to_string).collect(),
            idempotency_key: event.idempotency_key.as_ref().map(|key| key.as_str().to_owned()),
            ordering_key: event.ordering_key.as_ref().map(|key| key.as_str().to_owned()),
            deliver_at_ms: event.timing.deliver_at().map(Timestamp::as_millis),
            expires_at_ms: event.timing.expires_at().map(Timestamp::as_millis),
        }
    }

    fn read(self) -> Result<Event, Unreadable> {
        let labels = self.labels.iter().map(|label| Label::parse(label)).collect::<Result<_, _>>()?;
        let at = |millis: Option<i64>| millis.map(Timestamp::from_millis);
        Ok(Event {
            id: EventId::parse(&self.id)?,
            tenant: TenantId::parse(&self.tenant)?,
            event_type: EventType::parse(&self.event_type)?,
            version: self.version.as_deref().map(Version::parse).transpose()?,
            timestamp: Timestamp::from_millis(self.timestamp_ms),
            accepted_at: Timestamp::from_millis(self.accepted_at_ms),
            data: Data::parse(&self.data)?,
            labels: Labels::new(labels)?,
            idempotency_key: self.idempotency_key.as_deref().map(IdempotencyKey::parse).transpose()?,
            ordering_key: self.ordering_key.as_deref().map(OrderingKey::parse).transpose()?,
            timing: Timing::stored(at(self.deliver_at_ms), at(self.expires_at_ms)),
            // A test-send is nobody's trace.
            trace: None,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct AttemptDocument {
    id: String,
    number: u32,
    outcome: OutcomeDocument,
    response_time_ms: u64,
    dns_ms: Option<u64>,
    connect_ms: Option<u64>,
    tls_ms: Option<u64>,
    first_byte_ms: Option<u64>,
    timeout_ms: u64,
    preview: Option<String>,
    error: Option<String>,
    attempted_at_ms: i64,
    /// Absent in what a node of an earlier version has written.
    #[serde(default)]
    endpoint_version: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutcomeDocument {
    Answered { status: u16, retry_after_ms: Option<u64> },
    Dns,
    Connect,
    Tls,
    Timeout,
    Reset,
    Blocked,
}

impl AttemptDocument {
    fn of(attempt: &AttemptRecord) -> AttemptDocument {
        AttemptDocument {
            id: attempt.id.to_string(),
            number: attempt.number,
            outcome: match attempt.outcome {
                Outcome::Answered { status, retry_after } => {
                    OutcomeDocument::Answered { status, retry_after_ms: retry_after.map(millis) }
                }
                Outcome::NotSent(NoConnection::Dns) => OutcomeDocument::Dns,
                Outcome::NotSent(NoConnection::Connect) => OutcomeDocument::Connect,
                Outcome::NotSent(NoConnection::Tls) => OutcomeDocument::Tls,
                Outcome::Silent(Silence::Timeout) => OutcomeDocument::Timeout,
                Outcome::Silent(Silence::Reset) => OutcomeDocument::Reset,
                Outcome::Blocked => OutcomeDocument::Blocked,
            },
            response_time_ms: millis(attempt.response_time),
            dns_ms: attempt.timings.dns.map(millis),
            connect_ms: attempt.timings.connect.map(millis),
            tls_ms: attempt.timings.tls.map(millis),
            first_byte_ms: attempt.timings.first_byte.map(millis),
            timeout_ms: millis(attempt.timeout),
            preview: attempt.preview.clone(),
            error: attempt.error.clone(),
            attempted_at_ms: attempt.attempted_at.as_millis(),
            endpoint_version: attempt.endpoint_version,
        }
    }

    fn read(self) -> Result<AttemptRecord, Unreadable> {
        Ok(AttemptRecord {
            id: AttemptId::parse(&self.id)?,
            number: self.number,
            outcome: match self.outcome {
                OutcomeDocument::Answered { status, retry_after_ms } => {
                    Outcome::Answered { status, retry_after: retry_after_ms.map(Duration::from_millis) }
                }
                OutcomeDocument::Dns => Outcome::NotSent(NoConnection::Dns),
                OutcomeDocument::Connect => Outcome::NotSent(NoConnection::Connect),
                OutcomeDocument::Tls => Outcome::NotSent(NoConnection::Tls),
                OutcomeDocument::Timeout => Outcome::Silent(Silence::Timeout),
                OutcomeDocument::Reset => Outcome::Silent(Silence::Reset),
                OutcomeDocument::Blocked => Outcome::Blocked,
            },
            response_time: Duration::from_millis(self.response_time_ms),
            timings: Timings {
                dns: self.dns_ms.map(Duration::from_millis),
                connect: self.connect_ms.map(Duration::from_millis),
                tls: self.tls_ms.map(Duration::from_millis),
                first_byte: self.first_byte_ms.map(Duration::from_millis),
            },
            timeout: Duration::from_millis(self.timeout_ms),
            preview: self.preview,
            error: self.error,
            attempted_at: Timestamp::from_millis(self.attempted_at_ms),
            endpoint_version: self.endpoint_version,
        })
    }
}

fn write<T: Serialize>(document: &T) -> String {
    serde_json::to_string(document).expect("a document has texts for names and can always be written")
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Unreadable> {
    Ok(serde_json::from_str(text)?)
}

/// Why is not told: the reason might quote a payload.
struct Unreadable;

impl<E: std::error::Error> From<E> for Unreadable {
    fn from(_: E) -> Unreadable {
        Unreadable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_any_kind_is_read_back() {
        let attempt = |outcome| AttemptRecord {
            id: AttemptId::from_bytes([7; 16]),
            number: 1,
            outcome,
            response_time: Duration::from_millis(12),
            timings: Timings { dns: Some(Duration::from_millis(1)), ..Timings::default() },
            timeout: Duration::from_secs(10),
            preview: Some("ok \u{0} \u{1F600}".to_owned()),
            error: None,
            attempted_at: Timestamp::from_millis(1_775_643_330_123),
            endpoint_version: Some(7),
        };
        let outcomes = [
            Outcome::Answered { status: 429, retry_after: Some(Duration::from_secs(3)) },
            Outcome::Answered { status: 200, retry_after: None },
            Outcome::NotSent(NoConnection::Dns),
            Outcome::NotSent(NoConnection::Connect),
            Outcome::NotSent(NoConnection::Tls),
            Outcome::Silent(Silence::Timeout),
            Outcome::Silent(Silence::Reset),
            Outcome::Blocked,
        ];
        let tested = outcomes.map(|outcome| CommandOutcome::Tested(Box::new(attempt(outcome))));
        let plain = [
            CommandOutcome::Done,
            CommandOutcome::NotFound,
            CommandOutcome::InFlight,
            CommandOutcome::HasEnded,
            CommandOutcome::NotBefore(Timestamp::from_millis(5)),
        ];
        for answer in plain.into_iter().chain(tested) {
            assert_eq!(read_commanded(&commanded(&answer)).expect("readable"), Some(answer));
        }
        assert_eq!(read_commanded(&dropped()).expect("readable"), None);
        assert!(matches!(read_commanded("{}"), Err(Error::Corrupt { .. })));
        assert!(matches!(read_command("{\"command\": \"dance\"}"), Err(Error::Corrupt { .. })));
    }
}
