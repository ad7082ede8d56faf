//! A request body: read once, in bounded room and time, and refused precisely.
//!
//! Three bounds, applied while reading: how large one body may be (413), how many bytes of all bodies may be in memory
//! (503), and how long we wait for the next piece and for the whole (408). JSON is read without a trail of where we are;
//! only what is refused is read a second time to find the field.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::deadline::Deadline;
use crate::problem::Problem;

/// Room for bodies is given out in pieces of this size, so that a permit fits into 32 bits.
const UNIT_BYTES: usize = 1024;

/// How much of a body that is too large is read, so that its sender gets to see the answer, and for how long.
const DRAINED_BYTES_MAX: usize = 32 * 1024 * 1024;
const DRAINED_WITHIN: Duration = Duration::from_secs(5);

/// What all requests together may keep of bodies that are not dealt with yet.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new(bytes: usize) -> Budget {
        Budget(Arc::new(Semaphore::new(bytes / UNIT_BYTES)))
    }

    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.0).try_acquire_many_owned(units).map_err(|_| {
            Problem::unavailable(
                "Too many large requests are being read. Nothing was stored; try again after the time in Retry-After.",
            )
        })
    }
}

/// A body that was read whole. Its room is given back with it.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

/// The pieces of a body as they come.
pub(crate) struct Pieces {
    body: Body,
    budget: Budget,
    room: Option<OwnedSemaphorePermit>,
    room_bytes: usize,
    read_bytes: usize,
    bytes_max: usize,
    arrives_by: Instant,
    /// Of the whole request; it stands still while we wait for the client.
    deadline: Arc<Deadline>,
    /// It was announced to be.
    is_too_large: bool,
    is_worth_draining: bool,
}

impl Pieces {
    pub(crate) fn new(
        parts: &Parts,
        body: Body,
        budget: &Budget,
        bytes_max: usize,
        patience: Duration,
        deadline: &Arc<Deadline>,
    ) -> Result<Pieces, Problem> {
        let declared = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        let mut pieces = Pieces {
            body,
            budget: budget.clone(),
            room: None,
            room_bytes: 0,
            read_bytes: 0,
            bytes_max,
            arrives_by: Instant::now() + patience,
            deadline: Arc::clone(deadline),
            is_too_large: declared.is_some_and(|declared| declared > bytes_max),
            // Somebody who asks before sending is told at once, and one who announces more than we would read too.
            is_worth_draining: !parts.headers.contains_key(EXPECT) && declared.is_none_or(|declared| declared <= DRAINED_BYTES_MAX),
        };
        // What was announced is reserved at once, so that nobody is turned away halfway.
        if !pieces.is_too_large {
            pieces.reserve(declared.unwrap_or(0))?;
        }
        Ok(pieces)
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), Problem> {
        if bytes > self.room_bytes {
            let more = self.budget.take(bytes - self.room_bytes)?;
            match &mut self.room {
                Some(room) => room.merge(more),
                None => self.room = Some(more),
            }
            self.room_bytes = bytes.div_ceil(UNIT_BYTES) * UNIT_BYTES;
        }
        Ok(())
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        if self.is_too_large {
            self.drain().await;
            return Err(Problem::too_large(self.bytes_max));
        }
        loop {
            self.deadline.pause();
            let frame = tokio::time::timeout_at(self.arrives_by, self.body.frame()).await;
            self.deadline.resume();
            let frame = frame.map_err(|_| Problem::too_slow())?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|_| Problem::unreadable("the body did not arrive whole"))?;
            // Trailers say nothing to us.
            let Ok(piece) = frame.into_data() else { continue };
            self.read_bytes += piece.len();
            if self.read_bytes > self.bytes_max {
                self.drain().await;
                return Err(Problem::too_large(self.bytes_max));
            }
            self.reserve(self.read_bytes)?;
            return Ok(Some(piece));
        }
    }

    /// Reads what is left and throws it away, within bounds: a client that is still sending when the connection is closed may never
    /// see the answer.
    async fn drain(&mut self) {
        let until = (Instant::now() + DRAINED_WITHIN).min(self.arrives_by);
        self.deadline.pause();
        while self.is_worth_draining && self.read_bytes <= DRAINED_BYTES_MAX {
            let Ok(Some(Ok(frame))) = tokio::time::timeout_at(until, self.body.frame()).await else { break };
            self.read_bytes += frame.data_ref().map_or(0, Bytes::len);
        }
        self.deadline.resume();
    }

    /// All of it. A body that comes in one piece is not copied.
    pub(crate) async fn whole(mut self) -> Result<Whole, Problem> {
        let Some(first) = self.next().await? else { return Ok(Whole { bytes: Bytes::new(), _room: self.room }) };
        let Some(second) = self.next().await? else { return Ok(Whole { bytes: first, _room: self.room }) };
        let mut bytes = BytesMut::with_capacity(first.len() + second.len());
        bytes.extend_from_slice(&first);
        bytes.extend_from_slice(&second);
        while let Some(piece) = self.next().await? {
            bytes.extend_from_slice(&piece);
        }
        Ok(Whole { bytes: bytes.freeze(), _room: self.room })
    }
}

/// What a body may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MediaType {
    Json,
    /// One JSON value a line.
    NdJson,
}

impl MediaType {
    pub(crate) fn of(parts: &Parts) -> Result<MediaType, Problem> {
        let refuse = Problem::unsupported_media_type;
        if parts.headers.get(CONTENT_ENCODING).is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(refuse());
        }
        let value = parts.headers.get(CONTENT_TYPE).ok_or_else(refuse)?.to_str().map_err(|_| refuse())?;
        let (essence, parameters) = value.split_once(';').unwrap_or((value, ""));
        let charset = parameters.split(';').find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
        });
        if charset.is_some_and(|charset| !charset.eq_ignore_ascii_case("utf-8")) {
            return Err(refuse());
        }
        let essence = essence.trim();
        let is = |name: &str| essence.eq_ignore_ascii_case(name);
        if is("application/json") {
            Ok(MediaType::Json)
        } else if is("application/x-ndjson") || is("application/ndjson") || is("application/jsonl") {
            Ok(MediaType::NdJson)
        } else {
            Err(refuse())
        }
    }
}

/// Reads an object of this shape. Unknown fields are refused by the type itself.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|_| Problem::unreadable("the body is not UTF-8"))?;
    // A list of values in the right order would be read as an object, too.
    let is_object = text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with('{');
    if !is_object {
        return Err(match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) => Problem::invalid("", "expected a JSON object"),
            Err(error) => Problem::unreadable(error.to_string()),
        });
    }
    serde_json::from_str(text).map_err(|error| refusal::<T>(text, &error))
}

/// Reads it once more, now with a trail, to say where it went wrong.
fn refusal<'a, T: Deserialize<'a>>(text: &'a str, error: &serde_json::Error) -> Problem {
    match error.classify() {
        Category::Syntax | Category::Eof | Category::Io => Problem::unreadable(error.to_string()),
        Category::Data => {
            let mut reader = serde_json::Deserializer::from_str(text);
            let read: Result<T, _> = serde_path_to_error::deserialize(&mut reader);
            match read {
                Ok(_) => Problem::unreadable(error.to_string()),
                Err(error) => {
                    let path = error.path().to_string();
                    let message = error.into_inner().to_string();
                    Problem::invalid(field_at_fault(&path, &message), without_place(&message))
                }
            }
        }
    }
}

/// Where reading stopped; for a field that is missing or unknown the reader names it only in its words.
fn field_at_fault(path: &str, message: &str) -> String {
    let path = if path == "." { "" } else { path };
    // The path ends above a field that is missing or doubled, and sometimes above one that is unknown.
    let named = ["missing field `", "duplicate field `", "unknown field `"]
        .iter()
        .find_map(|beginning| message.strip_prefix(beginning)?.split('`').next());
    match named {
        None => path.to_owned(),
        Some(name) if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
        Some(name) if path.is_empty() => name.to_owned(),
        Some(name) => format!("{path}.{name}"),
    }
}

/// Line and column help with syntax, not with a field that has a name.
fn without_place(message: &str) -> &str {
    message.rfind(" at line ").map_or(message, |at| &message[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "read, to see what is refused")]
    struct Outer {
        a: u32,
        inner: Option<Inner>,
        #[serde(default)]
        list: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "read, to see what is refused")]
    struct Inner {
        b: u32,
    }

    #[test]
    fn the_field_at_fault_is_named_from_the_top() {
        for (text, field) in [
            (r#"{}"#, "a"),
            (r#"{"a": "x"}"#, "a"),
            (r#"{"a": 1, "x": 1}"#, "x"),
            (r#"{"a": 1, "a": 1}"#, "a"),
            (r#"{"a": -1}"#, "a"),
            (r#"{"a": 1, "inner": {}}"#, "inner.b"),
            (r#"{"a": 1, "inner": {"b": 1, "c": 2}}"#, "inner.c"),
            (r#"{"a": 1, "inner": {"b": 1, "b": 2}}"#, "inner.b"),
            (r#"{"a": 1, "list": [{"b": 1}, {"b": "x"}]}"#, "list[1].b"),
            (r#"[1, null, []]"#, ""),
        ] {
            let problem = parse::<Outer>(text.as_bytes()).unwrap_err();
            let shown = serde_json::to_value(&problem).unwrap();
            assert_eq!(shown["status"], 422, "{text}: {shown}");
            assert_eq!(shown["errors"][0]["field"], field, "{text}: {shown}");
        }
        for text in ["", "{", "{\"a\": 1} x", "nonsense"] {
            assert_eq!(parse::<Outer>(text.as_bytes()).unwrap_err().status(), 400, "{text}");
        }
    }

    #[test]
    fn room_for_bodies_is_bounded_and_given_back() {
        let budget = Budget::new(4 * UNIT_BYTES);
        let half = budget.take(2 * UNIT_BYTES).unwrap();
        let rest = budget.take(2 * UNIT_BYTES - 1).unwrap();
        assert_eq!(budget.take(1).unwrap_err().status(), 503);
        drop(half);
        assert!(budget.take(1).is_ok());
        drop(rest);
        assert!(budget.take(4 * UNIT_BYTES).is_ok());
    }
}
