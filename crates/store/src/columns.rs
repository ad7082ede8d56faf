//! Between columns and the types of the core, for both databases. Whatever cannot be read back is `Corrupt`, never guessed.

use std::time::Duration;

use posthaste_core::delivery::{CancelReason, DeadReason, NoConnection, Outcome, Silence, State};
use posthaste_core::endpoint::Status;
use posthaste_core::event::Data;
use posthaste_core::scheduler::Class;
use posthaste_core::text::{Label, Labels};
use posthaste_core::time::Timestamp;
use posthaste_core::trace::TraceContext;
use sha2::{Digest, Sha256};

use crate::{Error, KeyScope};

pub(crate) fn corrupt<E>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |_| Error::Corrupt { what }
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn duration(millis: i64) -> Result<Duration, Error> {
    u64::try_from(millis).map(Duration::from_millis).map_err(corrupt("duration"))
}

/// Rows are counted from 1, and no disk holds more than half of what fits into 64 bits.
pub(crate) fn signed(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

pub(crate) fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// Texts that cannot contain a line break, one a line.
pub(crate) fn lines<T: ToString>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join("\n")
}

pub(crate) fn labels(stored: &str) -> Result<Labels, Error> {
    let labels = stored.lines().map(Label::parse).collect::<Result<_, _>>().map_err(corrupt("labels"))?;
    Labels::new(labels).map_err(corrupt("labels"))
}

/// One that cannot be read is left out: an event is not lost for its trace.
pub(crate) fn trace_context(stored: Option<&str>) -> Option<Box<TraceContext>> {
    stored.and_then(TraceContext::from_text).map(Box::new)
}

pub(crate) fn scopes(stored: &str) -> Result<Vec<KeyScope>, Error> {
    let scope = |name: &str| KeyScope::ALL.into_iter().find(|scope| scope.name() == name).ok_or(Error::Corrupt { what: "scopes" });
    stored.lines().map(scope).collect()
}

pub(crate) fn digest(data: &str) -> [u8; 32] {
    Sha256::digest(data.as_bytes()).into()
}

/// A payload, if it is what was published.
pub(crate) fn checked_data(data: &str, stored_digest: &[u8]) -> Result<Data, Error> {
    if digest(data) != stored_digest {
        return Err(Error::Corrupt { what: "payload" });
    }
    Data::parse(data).map_err(corrupt("payload"))
}

pub(crate) fn class_code(class: Class) -> i16 {
    match class {
        Class::Priority => 0,
        Class::Exempt => 1,
        Class::Rest => 2,
    }
}

pub(crate) fn class(code: i16) -> Result<Class, Error> {
    Class::ALL.into_iter().find(|class| class_code(*class) == code).ok_or(Error::Corrupt { what: "class" })
}

pub(crate) fn status_columns(status: Status) -> (&'static str, Option<i64>) {
    match status {
        Status::Active => ("active", None),
        Status::Paused { until } => ("paused", until.map(Timestamp::as_millis)),
        Status::Disabled => ("disabled", None),
    }
}

pub(crate) fn status(name: &str, paused_until_ms: Option<i64>) -> Result<Status, Error> {
    match name {
        "active" => Ok(Status::Active),
        "paused" => Ok(Status::Paused { until: paused_until_ms.map(Timestamp::from_millis) }),
        "disabled" => Ok(Status::Disabled),
        _ => Err(Error::Corrupt { what: "status" }),
    }
}

/// The columns of `deliveries` that hold a `State`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StateColumns<T = &'static str> {
    pub(crate) status: T,
    pub(crate) due_at_ms: Option<i64>,
    pub(crate) ended_at_ms: Option<i64>,
    pub(crate) dead_reason: Option<T>,
    pub(crate) cancel_reason: Option<T>,
}

pub(crate) fn state_columns(state: State) -> StateColumns {
    let ended = |status, at: Timestamp| StateColumns {
        status,
        due_at_ms: None,
        ended_at_ms: Some(at.as_millis()),
        dead_reason: None,
        cancel_reason: None,
    };
    match state {
        State::Waiting { due } => StateColumns { ended_at_ms: None, due_at_ms: Some(due.as_millis()), ..ended("waiting", due) },
        State::Delivered { at } => ended("delivered", at),
        State::Dead { at, reason } => StateColumns { dead_reason: Some(reason.name()), ..ended("dead", at) },
        State::Cancelled { at, reason } => StateColumns { cancel_reason: Some(reason.name()), ..ended("cancelled", at) },
    }
}

pub(crate) fn state(columns: &StateColumns<&str>) -> Result<State, Error> {
    let at = |millis: Option<i64>| millis.map(Timestamp::from_millis).ok_or(Error::Corrupt { what: "time" });
    match columns.status {
        "waiting" => Ok(State::Waiting { due: at(columns.due_at_ms)? }),
        "delivered" => Ok(State::Delivered { at: at(columns.ended_at_ms)? }),
        "dead" => Ok(State::Dead {
            at: at(columns.ended_at_ms)?,
            reason: named("dead_reason", columns.dead_reason, &DeadReason::ALL, DeadReason::name)?,
        }),
        "cancelled" => Ok(State::Cancelled {
            at: at(columns.ended_at_ms)?,
            reason: named("cancel_reason", columns.cancel_reason, &CancelReason::ALL, CancelReason::name)?,
        }),
        _ => Err(Error::Corrupt { what: "status" }),
    }
}

/// The one of `all` that has this name.
pub(crate) fn named<T: Copy>(what: &'static str, stored: Option<&str>, all: &[T], name: fn(T) -> &'static str) -> Result<T, Error> {
    all.iter().copied().find(|one| Some(name(*one)) == stored).ok_or(Error::Corrupt { what })
}

pub(crate) fn outcome_columns(outcome: Outcome) -> (&'static str, Option<u16>) {
    match outcome {
        Outcome::Answered { status, .. } => ("answered", Some(status)),
        Outcome::NotSent(NoConnection::Dns) => ("dns", None),
        Outcome::NotSent(NoConnection::Connect) => ("connect", None),
        Outcome::NotSent(NoConnection::Tls) => ("tls", None),
        Outcome::Silent(Silence::Timeout) => ("timeout", None),
        Outcome::Silent(Silence::Reset) => ("reset", None),
        Outcome::Blocked => ("blocked", None),
    }
}

/// `Retry-After` has done its work by then and is not kept.
pub(crate) fn outcome(name: &str, status_code: Option<i32>) -> Result<Outcome, Error> {
    Ok(match name {
        "answered" => {
            let status = status_code.and_then(|code| u16::try_from(code).ok()).ok_or(Error::Corrupt { what: "status_code" })?;
            Outcome::Answered { status, retry_after: None }
        }
        "dns" => Outcome::NotSent(NoConnection::Dns),
        "connect" => Outcome::NotSent(NoConnection::Connect),
        "tls" => Outcome::NotSent(NoConnection::Tls),
        "timeout" => Outcome::Silent(Silence::Timeout),
        "reset" => Outcome::Silent(Silence::Reset),
        "blocked" => Outcome::Blocked,
        _ => return Err(Error::Corrupt { what: "outcome" }),
    })
}
