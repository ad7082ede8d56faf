//! `/v1/events/batch`: many events in one request, as a JSON array or one a line.
//!
//! The body is cut into items while it streams in, so that one item too many, or a body that is no list, is refused before
//! the rest has arrived and before anything is stored. Each item is then judged by itself, and the good ones are committed in
//! groups: a bad one never harms its neighbours, and what could not be stored says so in its own place.

use std::ops::Range;
use std::sync::Arc;

use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use posthaste_core::event::Event;
use posthaste_core::trace::TraceContext;
use posthaste_store::catalogue::Catalogue;
use posthaste_store::{NewEvent, Published as Stored};
use serde::Serialize;

use utoipa::ToSchema;

use crate::body::MediaType;
use crate::call::{Call, answer};
use crate::events::{Published, READ_IN_PLACE_BYTES_MAX, accept, check_tenant, commit, warn};
use crate::problem::Problem;
use crate::traced::{self, PublishTrace};

/// So many are committed together: enough to share the cost of a flush, few enough that others get their turn.
const GROUP_EVENTS_MAX: usize = 256;
const GROUP_BYTES_MAX: usize = 1024 * 1024;

/// What became of a batch. `accepted`, `duplicates` and `rejected` add up to the number of results.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    accepted: usize,
    duplicates: usize,
    rejected: usize,
    /// In the order of the events.
    results: Vec<BatchResult>,
}

/// One of them.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum BatchResult {
    Published(Published),
    Refused(Refused),
}

/// Why this one was not stored.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Refused {
    error: Problem,
}

pub(crate) async fn publish(mut call: Call) -> Result<Response, Problem> {
    let began = PublishTrace::now(&call.app, "/v1/events/batch");
    let trace = traced::context_of(&call.parts.headers);
    let media_type = MediaType::of(&call.parts)?;
    if call.idempotency_key()?.is_some() {
        let message = "a batch has no key of its own; give each event its `idempotency_key`";
        return Err(Problem::invalid("Idempotency-Key", message));
    }
    let events_max = call.app.options.batch_events_max;
    let mut pieces = call.pieces(call.app.options.batch_bytes_max);
    let mut splitter = Splitter::new(media_type, events_max);
    let mut bytes = BytesMut::new();
    while let Some(piece) = pieces.next().await? {
        bytes.extend_from_slice(&piece);
        splitter.push(&piece)?;
    }
    let items = splitter.finish()?;
    if items.is_empty() {
        return Err(Problem::invalid("", "an empty batch says nothing"));
    }
    let catalogue = call.app.known.catalogue().await?;
    let mut results: Vec<Option<BatchResult>> = Vec::with_capacity(items.len());
    let mut group = Group::default();
    let bytes = bytes.freeze();
    let mut read_bytes = 0;
    for (place, item) in items.iter().enumerate() {
        results.push(None);
        let text = bytes.slice(item.clone());
        let length = text.len();
        // Others get their turn, whatever is in it.
        read_bytes += length;
        if read_bytes > READ_IN_PLACE_BYTES_MAX {
            read_bytes = 0;
            tokio::task::yield_now().await;
        }
        match read(&call, &catalogue, text, trace.clone()).await {
            Ok(new) => group.add(place, new, length),
            Err(error) => results[place] = Some(BatchResult::Refused(Refused { error })),
        }
        if group.is_full() {
            group.commit(&call, began, &mut results).await?;
        }
    }
    group.commit(&call, began, &mut results).await?;
    let mut results: Vec<BatchResult> = results.into_iter().map(|result| result.expect("committed or refused")).collect();
    let mut published = Vec::new();
    for result in &mut results {
        match result {
            BatchResult::Published(one) => published.push(one),
            BatchResult::Refused(_) => {}
        }
    }
    warn(&call.app, published).await;
    let count = |wanted: fn(&BatchResult) -> bool| results.iter().filter(|result| wanted(result)).count();
    let batch = BatchAnswer {
        accepted: count(|result| matches!(result, BatchResult::Published(published) if !published.duplicate)),
        duplicates: count(|result| matches!(result, BatchResult::Published(published) if published.duplicate)),
        rejected: count(|result| matches!(result, BatchResult::Refused(_))),
        results,
    };
    drop(pieces);
    Ok(answer(StatusCode::ACCEPTED, &batch))
}

fn result(event: &Event, stored: Stored) -> BatchResult {
    match Published::show(event, stored) {
        Ok(published) => BatchResult::Published(published),
        Err(error) => BatchResult::Refused(Refused { error }),
    }
}

/// One event of it.
async fn read(call: &Call, catalogue: &Arc<Catalogue>, text: Bytes, trace: Option<Box<TraceContext>>) -> Result<NewEvent, Problem> {
    // The limit of one event is that of one event, wherever it is.
    if text.len() > call.app.options.body_bytes_max {
        return Err(Problem::too_large(call.app.options.body_bytes_max));
    }
    let new = accept(call, catalogue, text, None, trace).await?;
    check_tenant(&call.app, &new.event.tenant).await?;
    Ok(new)
}

/// Events that will be committed together, with their places in the batch.
#[derive(Default)]
struct Group {
    places: Vec<usize>,
    events: Vec<NewEvent>,
    bytes: usize,
    has_committed: bool,
}

impl Group {
    fn add(&mut self, place: usize, new: NewEvent, bytes: usize) {
        self.places.push(place);
        self.events.push(new);
        self.bytes += bytes;
    }

    fn is_full(&self) -> bool {
        self.events.len() >= GROUP_EVENTS_MAX || self.bytes >= GROUP_BYTES_MAX
    }

    async fn commit(&mut self, call: &Call, began: PublishTrace, results: &mut [Option<BatchResult>]) -> Result<(), Problem> {
        if self.events.is_empty() {
            return Ok(());
        }
        let events = std::mem::take(&mut self.events);
        let places = std::mem::take(&mut self.places);
        self.bytes = 0;
        let known: Vec<Arc<Event>> = events.iter().map(|new| Arc::clone(&new.event)).collect();
        match commit(&call.app, events, began).await {
            Ok(stored) => {
                for ((place, event), stored) in places.into_iter().zip(&known).zip(stored) {
                    results[place] = Some(result(event, stored));
                }
                self.has_committed = true;
                call.deadline.restart();
                Ok(())
            }
            // If nothing of the batch was stored, all of it can be sent again; else each says for itself.
            Err(error) if !self.has_committed => Err(error.into()),
            Err(error) => {
                let problem = Problem::from(error);
                for place in places {
                    results[place] = Some(BatchResult::Refused(Refused { error: problem.again() }));
                }
                Ok(())
            }
        }
    }
}

/// Cuts a stream of bytes into items, without reading what is in them.
pub(crate) struct Splitter {
    state: State,
    /// Bytes seen so far.
    at: usize,
    items: Vec<Range<usize>>,
    items_max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Before the `[`.
    BeforeArray,
    /// After `[` or `,`: an item, or, right after `[`, the end.
    BeforeItem { may_end: bool },
    /// In an item that began at `start`, `depth` brackets deep.
    InItem { start: usize, depth: usize, text: Text },
    /// After an item that needed no bracket to end, or whose bracket has closed.
    AfterItem,
    /// After the `]`.
    AfterArray,
    /// One item a line.
    Line { start: usize, is_blank: bool },
}

/// Where we are inside of a string, in which brackets and commas mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Text {
    Outside,
    Inside,
    Escaped,
}

impl Splitter {
    pub(crate) fn new(media_type: MediaType, items_max: usize) -> Splitter {
        let state = match media_type {
            MediaType::Json => State::BeforeArray,
            MediaType::NdJson => State::Line { start: 0, is_blank: true },
        };
        Splitter { state, at: 0, items: Vec::new(), items_max }
    }

    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<(), Problem> {
        for byte in piece {
            self.state = self.step(*byte)?;
            self.at += 1;
        }
        Ok(())
    }

    fn add(&mut self, item: Range<usize>) -> Result<(), Problem> {
        if self.items.len() == self.items_max {
            return Err(Problem::invalid("", format!("a batch has at most {} events; nothing was stored", self.items_max)));
        }
        self.items.push(item);
        Ok(())
    }

    fn step(&mut self, byte: u8) -> Result<State, Problem> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        let refuse = |what: &str| Problem::unreadable(format!("{what} at byte {}", self.at));
        match self.state {
            State::BeforeArray => match byte {
                b'[' => Ok(State::BeforeItem { may_end: true }),
                _ if is_space => Ok(self.state),
                b'{' => Err(Problem::invalid("", "expected a JSON array of events, or one event a line as application/x-ndjson")),
                _ => Err(refuse("expected `[`")),
            },
            State::BeforeItem { may_end } => match byte {
                _ if is_space => Ok(self.state),
                b']' if may_end => Ok(State::AfterArray),
                b']' | b',' => Err(refuse("expected an event")),
                _ => self.in_item(State::InItem { start: self.at, depth: 0, text: Text::Outside }, byte),
            },
            State::InItem { .. } => self.in_item(self.state, byte),
            State::AfterItem => match byte {
                _ if is_space => Ok(self.state),
                b',' => Ok(State::BeforeItem { may_end: false }),
                b']' => Ok(State::AfterArray),
                _ => Err(refuse("expected `,` or `]`")),
            },
            State::AfterArray if is_space => Ok(self.state),
            State::AfterArray => Err(refuse("expected nothing more")),
            State::Line { start, is_blank } => {
                if byte == b'\n' {
                    if !is_blank {
                        self.add(start..self.at)?;
                    }
                    return Ok(State::Line { start: self.at + 1, is_blank: true });
                }
                Ok(State::Line { start, is_blank: is_blank && is_space })
            }
        }
    }

    fn in_item(&mut self, state: State, byte: u8) -> Result<State, Problem> {
        let State::InItem { start, depth, text } = state else { return Ok(state) };
        let inside = |depth, text| Ok(State::InItem { start, depth, text });
        match (text, byte) {
            (Text::Inside, b'\\') => inside(depth, Text::Escaped),
            (Text::Inside, b'"') => inside(depth, Text::Outside),
            (Text::Escaped | Text::Inside, _) | (Text::Outside, b'"') => inside(depth, Text::Inside),
            (Text::Outside, b'{' | b'[') => inside(depth + 1, Text::Outside),
            // A word or number ends where the list goes on.
            (Text::Outside, b',') if depth == 0 => {
                self.add(start..self.at)?;
                Ok(State::BeforeItem { may_end: false })
            }
            (Text::Outside, b']') if depth == 0 => {
                self.add(start..self.at)?;
                Ok(State::AfterArray)
            }
            (Text::Outside, b'}') if depth == 0 => Err(Problem::unreadable(format!("expected `,` or `]` at byte {}", self.at))),
            (Text::Outside, b'}' | b']') if depth == 1 => {
                self.add(start..self.at + 1)?;
                Ok(State::AfterItem)
            }
            (Text::Outside, b'}' | b']') => inside(depth - 1, Text::Outside),
            (Text::Outside, _) => inside(depth, Text::Outside),
        }
    }

    pub(crate) fn finish(mut self) -> Result<Vec<Range<usize>>, Problem> {
        match self.state {
            State::AfterArray => Ok(self.items),
            State::Line { start, is_blank } => {
                if !is_blank {
                    self.add(start..self.at)?;
                }
                Ok(self.items)
            }
            State::BeforeArray | State::BeforeItem { .. } | State::InItem { .. } | State::AfterItem => {
                Err(Problem::unreadable("the list has no end; nothing was stored"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(media_type: MediaType, text: &str, piece_bytes: usize) -> Result<Vec<String>, u16> {
        let mut splitter = Splitter::new(media_type, 4);
        for piece in text.as_bytes().chunks(piece_bytes) {
            splitter.push(piece).map_err(|problem| problem.status().as_u16())?;
        }
        let items = splitter.finish().map_err(|problem| problem.status().as_u16())?;
        Ok(items.into_iter().map(|item| text[item].trim().to_owned()).collect())
    }

    fn check(media_type: MediaType, text: &str, expected: Result<&[&str], u16>) {
        let expected = expected.map(|items| items.iter().map(|item| (*item).to_owned()).collect());
        // However the network cuts it.
        for piece_bytes in [1, 2, 3, 7, 1000] {
            assert_eq!(split(media_type, text, piece_bytes), expected, "{text} in pieces of {piece_bytes}");
        }
    }

    #[test]
    fn a_list_is_cut_where_its_items_end_whatever_is_in_them() {
        for (text, expected) in [
            ("[]", Ok(&[][..])),
            (" [ ] \n", Ok(&[])),
            (r#"[{"a": 1}]"#, Ok(&[r#"{"a": 1}"#])),
            (r#"[{"a": "]},[\"\\"}, {"b": [1, {"c": "}"}]}]"#, Ok(&[r#"{"a": "]},[\"\\"}"#, r#"{"b": [1, {"c": "}"}]}"#])),
            ("[1, null ,\"a,b\", [2]]", Ok(&["1", "null", "\"a,b\"", "[2]"])),
            ("[{\"a\":}, nonsense]", Ok(&["{\"a\":}", "nonsense"])),
            ("[1,2,3,4,5]", Err(422)),
            ("{}", Err(422)),
            ("", Err(400)),
            ("x", Err(400)),
            ("[", Err(400)),
            ("[1", Err(400)),
            ("[1,", Err(400)),
            ("[1,]", Err(400)),
            ("[,1]", Err(400)),
            ("[1 2]", Ok(&["1 2"])),
            ("[{} {}]", Err(400)),
            ("[1}", Err(400)),
            ("[1] x", Err(400)),
            ("[\"a]", Err(400)),
        ] {
            check(MediaType::Json, text, expected);
        }
    }

    #[test]
    fn lines_are_cut_at_their_ends_and_blank_ones_are_nothing() {
        for (text, expected) in [
            ("", Ok(&[][..])),
            ("\n \r\n\t", Ok(&[])),
            ("{\"a\": 1}", Ok(&["{\"a\": 1}"])),
            ("{\"a\": 1}\n{\"b\": 2}\r\n\n{\"c\"", Ok(&["{\"a\": 1}", "{\"b\": 2}", "{\"c\""])),
            ("1\n2\n3\n4\n", Ok(&["1", "2", "3", "4"])),
            ("1\n2\n3\n4\n5", Err(422)),
        ] {
            check(MediaType::NdJson, text, expected);
        }
    }
}
