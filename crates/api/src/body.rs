//! A request body: read once, in bounded room and time, and refused precisely.
//!
//! Bounds that are applied while reading: how large one body may be (413), how many bytes of all bodies, of one tenant's and of one
//! key's may be in memory (503), and how fast it has to arrive (408). Room is taken for bytes that have arrived, never for
//! those that were only announced. JSON is read without a trail of where we are;
//! only what is refused is read a second time to find the field.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use tokio::time::Instant;

use crate::credentials::Caller;
use crate::deadline::Deadline;
use crate::problem::Problem;

/// The beginning of a body, which counts against no share: for every connection together it fits into a quarter of the room.
const SMALL_BYTES: usize = 4 * 1024;
/// Beyond that, room is given out in pieces of this size.
const UNIT_BYTES: usize = 16 * 1024;

/// A body has this long to begin, and from then on arrives at least this fast: a slow line is well above it, and one who sends a byte now and
/// then has a connection for a few seconds.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);
const ARRIVES_BYTES_PER_SECOND: u32 = 16 * 1024;

/// How much of a body that is too large is read, so that its sender gets to see the answer, and for how long.
const DRAINED_BYTES_MAX: usize = 32 * 1024 * 1024;
const DRAINED_WITHIN: Duration = Duration::from_secs(5);

/// What all requests together may keep of bodies that are not dealt with yet, and who has how much of it.
///
/// The beginning of each body is anybody's. Of the rest, a tenant (or a key that is bound to none) has at most as much as is left free: half of
/// everything if it is alone, a third if there are two of them. One of its keys has at most two thirds of that. One body at a time
/// is always taken from a tenant as long as there is room for it, and some is left.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Mutex<Accounts>>);

#[derive(Debug)]
struct Accounts {
    bytes_max: usize,
    used: usize,
    owners: HashMap<String, Account>,
}

#[derive(Default, Debug)]
struct Account {
    used: usize,
    bodies: usize,
    keys: HashMap<Arc<str>, usize>,
}

impl Budget {
    pub(crate) fn new(bytes_max: usize) -> Budget {
        Budget(Arc::new(Mutex::new(Accounts { bytes_max, used: 0, owners: HashMap::new() })))
    }

    /// Nothing yet, for a body of this caller.
    pub(crate) fn room(&self, caller: &Caller) -> Room {
        let is_bound = caller.tenant.is_some();
        Room { budget: self.clone(), owner: caller.owner().to_owned(), key: Arc::clone(&caller.actor), is_bound, bytes: 0 }
    }
}

/// What one body has of it, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    budget: Budget,
    owner: String,
    key: Arc<str>,
    /// The key is one of a tenant's.
    is_bound: bool,
    bytes: usize,
}

impl Room {
    /// Sees to it that there is room for so many bytes in all.
    fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let wanted = if bytes <= SMALL_BYTES { SMALL_BYTES } else { bytes.div_ceil(UNIT_BYTES) * UNIT_BYTES };
        let mut guard = self.budget.0.lock();
        let accounts = &mut *guard;
        let more = wanted - self.bytes;
        let free = accounts.bytes_max - accounts.used;
        let refuse = |whose: &str| {
            Err(Problem::unavailable(format!(
                "Too many large requests{whose} are being read. Nothing was stored; try again after the time in Retry-After."
            )))
        };
        if more > free {
            return refuse("");
        }
        if wanted > SMALL_BYTES {
            let account = accounts.owners.entry(self.owner.clone()).or_default();
            let is_first = self.bytes <= SMALL_BYTES;
            let is_alone = account.bodies == usize::from(!is_first);
            let is_some_left = free - more >= accounts.bytes_max / 8 || accounts.used == self.bytes;
            if !(is_alone && is_some_left) {
                let of_key = account.keys.get(&self.key).copied().unwrap_or(0);
                let refused = if account.used + more > free {
                    Some(" of this tenant")
                } else if self.is_bound && of_key + more > (account.used + free) / 3 {
                    Some(" of this key")
                } else {
                    None
                };
                if let Some(whose) = refused {
                    if account.bodies == 0 {
                        accounts.owners.remove(&self.owner);
                    }
                    return refuse(whose);
                }
            }
            account.bodies += usize::from(is_first);
            let counted = wanted - self.bytes.max(SMALL_BYTES);
            account.used += counted;
            *account.keys.entry(Arc::clone(&self.key)).or_default() += counted;
        }
        accounts.used += more;
        self.bytes = wanted;
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut accounts = self.budget.0.lock();
        accounts.used -= self.bytes;
        if self.bytes <= SMALL_BYTES {
            return;
        }
        let Some(account) = accounts.owners.get_mut(&self.owner) else { return };
        let counted = self.bytes - SMALL_BYTES;
        account.bodies -= 1;
        account.used -= counted;
        if let Some(of_key) = account.keys.get_mut(&self.key) {
            *of_key -= counted;
            if *of_key == 0 {
                account.keys.remove(&self.key);
            }
        }
        if account.bodies == 0 {
            accounts.owners.remove(&self.owner);
        }
    }
}

/// A body that was read whole. Its room is given back with it.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) bytes: Bytes,
    _room: Room,
}

/// The pieces of a body as they come.
pub(crate) struct Pieces {
    body: Body,
    room: Room,
    read_bytes: usize,
    bytes_max: usize,
    began: Instant,
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
        room: Room,
        bytes_max: usize,
        patience: Duration,
        deadline: &Arc<Deadline>,
    ) -> Pieces {
        let declared = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        let began = Instant::now();
        Pieces {
            body,
            room,
            read_bytes: 0,
            bytes_max,
            began,
            arrives_by: began + patience,
            deadline: Arc::clone(deadline),
            is_too_large: declared.is_some_and(|declared| declared > bytes_max),
            // Somebody who asks before sending is told at once, and one who announces more than we would read too.
            is_worth_draining: !parts.headers.contains_key(EXPECT) && declared.is_none_or(|declared| declared <= DRAINED_BYTES_MAX),
        }
    }

    /// When the next piece has to be there.
    fn next_by(&self) -> Instant {
        let read = u32::try_from(self.read_bytes).unwrap_or(u32::MAX);
        let by_rate = ARRIVES_WITHIN + Duration::from_secs(1) * read / ARRIVES_BYTES_PER_SECOND;
        (self.began + by_rate).min(self.arrives_by)
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        if self.is_too_large {
            self.drain().await;
            return Err(Problem::too_large(self.bytes_max));
        }
        loop {
            self.deadline.pause();
            let frame = tokio::time::timeout_at(self.next_by(), self.body.frame()).await;
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
            self.room.grow(self.read_bytes)?;
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
        let mut parts = value.split(';');
        let essence = parts.next().unwrap_or_default();
        for parameter in parts {
            // A semicolon that nothing follows is a mistake of the sender's, and not ours to guess about.
            let (name, value) = parameter.split_once('=').ok_or_else(refuse)?;
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name.is_empty() || value.is_empty() {
                return Err(refuse());
            }
            if name.eq_ignore_ascii_case("charset") && !value.eq_ignore_ascii_case("utf-8") {
                return Err(refuse());
            }
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

    const MIB: usize = 1024 * 1024;

    /// Takes bodies of so many bytes as long as there is room.
    fn fill(budget: &Budget, tenant: &str, key: &str, bytes: usize) -> Vec<Room> {
        let caller = Caller::of_tenant_for_tests(tenant, key);
        let body = |_| {
            let mut room = budget.room(&caller);
            room.grow(bytes).is_ok().then_some(room)
        };
        (0..100_000).map_while(body).collect()
    }

    #[test]
    fn room_for_bodies_is_shared_between_tenants_and_keys_and_given_back() {
        let budget = Budget::new(64 * MIB);
        let first_key = fill(&budget, "a", "1", MIB);
        assert_eq!(first_key.len(), 21, "a key has a third of everything");
        let other_keys: Vec<Room> = ["2", "3"].iter().flat_map(|key| fill(&budget, "a", key, MIB)).collect();
        assert_eq!(first_key.len() + other_keys.len(), 32, "a tenant has half of everything");
        let others: Vec<Room> = (0..10).flat_map(|n| fill(&budget, &format!("t{n}"), "key", MIB)).collect();
        assert!(others.len() > 16, "{}", others.len());
        let small = fill(&budget, "small", "key", 100);
        assert!(small.len() >= 500, "small bodies find room: {}", small.len());
        drop((first_key, other_keys, others, small));
        let accounts = budget.0.lock();
        assert_eq!((accounts.used, accounts.owners.len()), (0, 0));
    }

    #[test]
    fn the_only_body_of_a_tenant_is_taken_however_large_it_is() {
        let budget = Budget::new(64 * MIB);
        let _noise = fill(&budget, "a", "1", MIB);
        let mut room = budget.room(&Caller::of_tenant_for_tests("b", "key"));
        for bytes in (MIB..=16 * MIB).step_by(64 * 1024) {
            assert!(room.grow(bytes).is_ok(), "{bytes}");
        }
        assert!(budget.room(&Caller::nobody()).grow(60 * MIB).is_err());
    }

    #[test]
    fn a_media_type_with_an_empty_parameter_is_none() {
        let of = |text: &str| {
            let (parts, ()) = http::Request::builder().header(CONTENT_TYPE, text).body(()).unwrap().into_parts();
            MediaType::of(&parts).map_err(|problem| problem.status().as_u16())
        };
        for right in ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=\"UTF-8\";v=1"] {
            assert_eq!(of(right), Ok(MediaType::Json), "{right}");
        }
        for wrong in ["application/json;;;", "application/json;", "application/json; charset", "application/json; charset=latin1"] {
            assert_eq!(of(wrong), Err(415), "{wrong}");
        }
    }
}
