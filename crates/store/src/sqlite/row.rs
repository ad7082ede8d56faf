//! Between columns and the types of the core. Whatever cannot be read back is `Corrupt`, never guessed.

use std::time::Duration;

use posthaste_core::delivery::{CancelReason, DeadReason, NoConnection, Outcome, Silence, State};
use posthaste_core::endpoint::Status;
use posthaste_core::time::Timestamp;
use rusqlite::Row;
use rusqlite::types::FromSql;

use crate::Error;

pub(super) fn column<T: FromSql>(row: &Row<'_>, name: &'static str) -> Result<T, Error> {
    row.get(name).map_err(|_| Error::Corrupt { what: name })
}

/// A column that the core has a parser for.
pub(super) fn parsed<T, E>(row: &Row<'_>, name: &'static str, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<T, Error> {
    let text: String = column(row, name)?;
    parse(&text).map_err(|_| Error::Corrupt { what: name })
}

pub(super) fn timestamp(row: &Row<'_>, name: &'static str) -> Result<Timestamp, Error> {
    column(row, name).map(Timestamp::from_millis)
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn duration(row: &Row<'_>, name: &'static str) -> Result<Duration, Error> {
    let millis: i64 = column(row, name)?;
    u64::try_from(millis).map(Duration::from_millis).map_err(|_| Error::Corrupt { what: name })
}

/// Texts that cannot contain a line break, one a line.
pub(super) fn lines<T: ToString>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join("\n")
}

pub(super) fn status(row: &Row<'_>, name: &'static str, until: &'static str) -> Result<Status, Error> {
    match column::<String>(row, name)?.as_str() {
        "active" => Ok(Status::Active),
        "paused" => Ok(Status::Paused { until: column::<Option<i64>>(row, until)?.map(Timestamp::from_millis) }),
        "disabled" => Ok(Status::Disabled),
        _ => Err(Error::Corrupt { what: name }),
    }
}

pub(super) fn status_columns(status: Status) -> (&'static str, Option<i64>) {
    match status {
        Status::Active => ("active", None),
        Status::Paused { until } => ("paused", until.map(Timestamp::as_millis)),
        Status::Disabled => ("disabled", None),
    }
}

/// The columns of `deliveries` that hold a `State`.
pub(super) struct StateColumns {
    pub(super) status: &'static str,
    pub(super) due_at_ms: Option<i64>,
    pub(super) ended_at_ms: Option<i64>,
    pub(super) dead_reason: Option<&'static str>,
    pub(super) cancel_reason: Option<&'static str>,
}

pub(super) fn state_columns(state: State) -> StateColumns {
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

pub(super) fn state(row: &Row<'_>) -> Result<State, Error> {
    match column::<String>(row, "status")?.as_str() {
        "waiting" => Ok(State::Waiting { due: timestamp(row, "due_at_ms")? }),
        "delivered" => Ok(State::Delivered { at: timestamp(row, "ended_at_ms")? }),
        "dead" => Ok(State::Dead {
            at: timestamp(row, "ended_at_ms")?,
            reason: named(row, "dead_reason", &DeadReason::ALL, DeadReason::name)?,
        }),
        "cancelled" => Ok(State::Cancelled {
            at: timestamp(row, "ended_at_ms")?,
            reason: named(row, "cancel_reason", &CancelReason::ALL, CancelReason::name)?,
        }),
        _ => Err(Error::Corrupt { what: "status" }),
    }
}

/// The one of `all` that has the name in this column.
fn named<T: Copy>(row: &Row<'_>, column_name: &'static str, all: &[T], name: fn(T) -> &'static str) -> Result<T, Error> {
    let stored: String = column(row, column_name)?;
    all.iter().copied().find(|one| name(*one) == stored).ok_or(Error::Corrupt { what: column_name })
}

pub(super) fn outcome_columns(outcome: Outcome) -> (&'static str, Option<u16>) {
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
pub(super) fn outcome(row: &Row<'_>) -> Result<Outcome, Error> {
    Ok(match column::<String>(row, "outcome")?.as_str() {
        "answered" => Outcome::Answered { status: column(row, "status_code")?, retry_after: None },
        "dns" => Outcome::NotSent(NoConnection::Dns),
        "connect" => Outcome::NotSent(NoConnection::Connect),
        "tls" => Outcome::NotSent(NoConnection::Tls),
        "timeout" => Outcome::Silent(Silence::Timeout),
        "reset" => Outcome::Silent(Silence::Reset),
        "blocked" => Outcome::Blocked,
        _ => return Err(Error::Corrupt { what: "outcome" }),
    })
}
