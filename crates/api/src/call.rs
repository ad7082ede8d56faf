//! One request on its way to its handler: who calls, for what, with which body; and how handlers answer.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::Response;
use http::header::{CONTENT_TYPE, ETAG, HeaderValue, IF_MATCH};
use http::request::Parts;
use http::{HeaderName, StatusCode};
use parking_lot::Mutex;
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::text::IdempotencyKey;
use posthaste_core::time::Timestamp;
use posthaste_store::{ApplyResult, Audit, Change, ChangeResult, LEASE, Refusal};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::App;
use crate::body::{self, MediaType, Pieces, Whole};
use crate::credentials::Caller;
use crate::cursor::{self, Scope};
use crate::deadline::Deadline;
use crate::problem::Problem;
use crate::query::{CURSOR, Query};

/// Of an answer.
const HEADERS_USUAL: usize = 10;
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A request that may be served: its caller is known and has the scope, its query has only what the route knows.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) query: Query,
    pub(crate) parts: Parts,
    /// What stands in the address in the place of `{…}`, decoded.
    pub(crate) name: String,
    /// A body can be read by one alone; the lock only says so to the compiler.
    pub(crate) unread: Mutex<Option<Body>>,
    pub(crate) deadline: Arc<Deadline>,
    /// Set by a change that its owner has not confirmed; read by the router, which tells the caller.
    pub(crate) effective_by: Arc<OnceLock<Timestamp>>,
    /// Before anything was read for it.
    pub(crate) began_at: Timestamp,
}

impl Call {
    /// Reads the body, which has to be one JSON value.
    pub(crate) async fn body(mut self) -> Result<(Call, Whole), Problem> {
        if MediaType::of(&self.parts)? != MediaType::Json {
            return Err(Problem::unsupported_media_type());
        }
        let whole = self.pieces(self.app.options.body_bytes_max).whole().await?;
        Ok((self, whole))
    }

    /// The same where everything is optional: no body at all means an empty object.
    pub(crate) async fn optional_body(mut self) -> Result<(Call, Option<Whole>), Problem> {
        let whole = self.pieces(self.app.options.body_bytes_max).whole().await?;
        if whole.bytes.is_empty() {
            return Ok((self, None));
        }
        if MediaType::of(&self.parts)? != MediaType::Json {
            return Err(Problem::unsupported_media_type());
        }
        Ok((self, Some(whole)))
    }

    /// For what takes nothing: an empty object is fine, anything else would be ignored and is refused instead.
    pub(crate) async fn without_body(self) -> Result<Call, Problem> {
        let (call, body) = self.optional_body().await?;
        let EmptyBody {} = parse_or_default(body.as_ref())?;
        Ok(call)
    }

    pub(crate) fn pieces(&mut self, bytes_max: usize) -> Pieces {
        let body = self.unread.get_mut().take().unwrap_or_default();
        let room = self.app.budget.room(&self.caller);
        Pieces::new(&self.parts, body, room, bytes_max, self.app.options.body_patience, &self.deadline)
    }

    /// What `If-Match` asks for.
    pub(crate) fn precondition(&self) -> Precondition {
        let mut values = self.parts.headers.get_all(IF_MATCH).iter().peekable();
        if values.peek().is_none() {
            return Precondition::None;
        }
        let tags: Vec<&str> = values.flat_map(|value| value.to_str().unwrap_or_default().split(',')).map(str::trim).collect();
        if tags == ["*"] {
            return Precondition::Exists;
        }
        // A weak tag never matches here: what differs in a detail differs.
        Precondition::OneOf(tags.iter().filter_map(|tag| tag.strip_prefix('"')?.strip_suffix('"')?.parse().ok()).collect())
    }

    /// The header of that name. What cannot be a key at all is a bad request.
    pub(crate) fn idempotency_key(&self) -> Result<Option<IdempotencyKey>, Problem> {
        let mut values = self.parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let key = value.to_str().ok().and_then(|text| IdempotencyKey::parse(text).ok());
        match (key, values.next()) {
            (Some(key), None) => Ok(Some(key)),
            (Some(_), Some(_)) => Err(Problem::unreadable("the Idempotency-Key header is given twice")),
            (None, _) => Err(Problem::unreadable(format!("the Idempotency-Key header: {}", IdempotencyKey::RULE))),
        }
    }

    /// Where the page begins that was asked for.
    pub(crate) fn cursor<T>(&self, list: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, Problem> {
        let Some(text) = self.query.text(&CURSOR) else { return Ok(None) };
        let filter = self.filter_of_list();
        let position = self.app.cursors.open(self.cursor_scope(list, &filter), text)?;
        parse(&position).map(Some).ok_or_else(cursor::refusal)
    }

    /// A page, with the time as of which it is true: nothing that was there before is missing.
    pub(crate) fn list<T: Serialize>(&self, list: &str, rows: Rows<T>) -> Response {
        let filter = self.filter_of_list();
        let next_cursor = rows.next.map(|position| self.app.cursors.seal(self.cursor_scope(list, &filter), &position));
        ok(&List { data: rows.data, as_of: self.began_at.to_rfc3339(), next_cursor })
    }

    /// The resource that the address names narrows a list like a filter does.
    fn filter_of_list(&self) -> Vec<(&str, &str)> {
        let mut filter = self.query.filters();
        filter.push(("", self.name.as_str()));
        filter
    }

    fn cursor_scope<'a>(&'a self, list: &'a str, filter: &'a [(&'a str, &'a str)]) -> Scope<'a> {
        Scope { list, tenant: self.caller.tenant.as_ref(), filter }
    }

    /// Changes the configuration. What comes next on this node sees it, and deliveries go by it: the owner of the lanes has
    /// confirmed that, or the answer says by when.
    pub(crate) async fn configure(&self, change: Change, audit: Audit) -> Result<Result<ChangeResult, Refusal>, Problem> {
        let lanes = changed_lanes(&change, &audit);
        let configured = self.app.store.configure(change, audit).await?;
        self.app.known.forget();
        if configured.is_ok()
            && let Some((tenant, endpoint)) = lanes
        {
            // The change cannot be taken back: the rest has the whole time again.
            self.deadline.restart();
            match self.app.store.apply(tenant, endpoint).await {
                Ok(ApplyResult::Now) => {}
                // Its owner hears of it by itself, or is cut off from the database and stops when its lease ends.
                Ok(ApplyResult::Unconfirmed) | Err(_) => {
                    let _ = self.effective_by.set(self.app.store.now() + LEASE);
                }
            }
        }
        Ok(configured)
    }

    /// Who the connection is from.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        address_of(&self.parts)
    }

    /// Who did what, for the audit log.
    pub(crate) fn audit(&self, action: &str, subject: &dyn Display, tenant: Option<&TenantId>) -> Audit {
        let address = self.address().map(|address| address.to_string());
        Audit {
            actor: self.caller.actor.to_string(),
            address,
            action: action.to_owned(),
            subject: subject.to_string(),
            tenant: tenant.cloned(),
            before: None,
            after: None,
        }
    }
}

/// Who a request's connection is from.
pub(crate) fn address_of(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())
}

/// Whose deliveries a change is about: one endpoint's, or all of a tenant's. `None` if no lane goes by it yet.
fn changed_lanes(change: &Change, audit: &Audit) -> Option<(TenantId, Option<EndpointId>)> {
    match change {
        Change::ReplaceEndpoint { endpoint, .. } => Some((endpoint.tenant.clone(), Some(endpoint.id))),
        Change::ReplaceSecrets { endpoint, .. } | Change::DeleteEndpoint { endpoint } => {
            Some((audit.tenant.clone()?, Some(*endpoint)))
        }
        Change::PutTenant { tenant, .. } | Change::ReplaceTenant { tenant, .. } => Some((tenant.id.clone(), None)),
        Change::DeleteTenant { tenant } => Some((tenant.clone(), None)),
        Change::CreateEndpoint(_)
        | Change::PutEventType(_)
        | Change::CreateEventType(_)
        | Change::ReplaceEventType { .. }
        | Change::DeleteEventType { .. }
        | Change::CreateKey(_)
        | Change::RevokeKey { .. } => None,
    }
}

/// The audit entry with what it was and what it is since; both without secrets.
pub(crate) fn with_change(audit: Audit, before: Option<&Value>, after: Option<&Value>) -> Audit {
    Audit { before: before.map(Value::to_string), after: after.map(Value::to_string), ..audit }
}

impl Whole {
    /// Reads an object of this shape.
    pub(crate) fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        body::parse(&self.bytes)
    }
}

/// Reads an optional body, or what stands for none.
pub(crate) fn parse_or_default<'a, T: Deserialize<'a> + Default>(body: Option<&'a Whole>) -> Result<T, Problem> {
    body.map_or_else(|| Ok(T::default()), Whole::parse)
}

/// Nothing can be said here.
#[derive(Default, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmptyBody {}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Precondition {
    None,
    /// `*`
    Exists,
    OneOf(Vec<u64>),
}

impl Precondition {
    pub(crate) fn check(&self, version: u64) -> Result<(), Problem> {
        match self {
            Precondition::None | Precondition::Exists => Ok(()),
            Precondition::OneOf(versions) if versions.contains(&version) => Ok(()),
            Precondition::OneOf(_) => Err(Problem::stale()),
        }
    }

    pub(crate) fn is_given(&self) -> bool {
        *self != Precondition::None
    }
}

/// A page of a list, newest first unless said otherwise.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct List<T> {
    data: Vec<T>,
    /// When it was read. What depends on a delivery that is under way is at most two seconds older.
    #[schema(format = DateTime)]
    as_of: String,
    /// Where the next page begins; `null` on the last.
    next_cursor: Option<String>,
}

/// What a page shows, and the position at which the next one begins.
#[derive(Debug)]
pub(crate) struct Rows<T> {
    data: Vec<T>,
    next: Option<String>,
}

impl<T> Rows<T> {
    pub(crate) fn none() -> Rows<T> {
        Rows { data: vec![], next: None }
    }

    pub(crate) fn new(data: Vec<T>, next: Option<String>) -> Rows<T> {
        Rows { data, next }
    }

    /// From rows of which one more than the page was asked for, which tells whether there is another.
    pub(crate) fn cut<R>(mut rows: Vec<R>, limit: usize, position: impl Fn(&R) -> String, view: impl Fn(&R) -> T) -> Rows<T> {
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| has_more).map(position);
        Rows::new(rows.iter().map(view).collect(), next)
    }
}

pub(crate) fn answer(status: StatusCode, view: &impl Serialize) -> Response {
    let body = serde_json::to_vec(view).expect("texts, numbers and lists of them");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    // With those that every answer gets.
    response.headers_mut().reserve(HEADERS_USUAL);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn ok(view: &impl Serialize) -> Response {
    answer(StatusCode::OK, view)
}

pub(crate) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// A view as JSON, for comparing and for the audit log. JSON of users' own (a filter, an example) may have numbers and texts that no program
/// can hold (`1e999`, half of a surrogate pair): a field with such a thing is shown as its text.
pub(crate) fn document_of(view: &impl Serialize) -> Value {
    serde_json::to_value(view).unwrap_or_else(|_| {
        let text = serde_json::to_string(view).expect("texts, numbers and lists of them");
        let fields: BTreeMap<String, &RawValue> = serde_json::from_str(&text).expect("a view is an object");
        let value = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or_else(|_| Value::from(raw.get()));
        fields.into_iter().map(|(name, raw)| (name, value(raw))).collect::<serde_json::Map<_, _>>().into()
    })
}

/// The version of what has no number of its own: the same for as long as it says the same.
pub(crate) fn version_of(document: &Value) -> u64 {
    let digest = Sha256::digest(document.to_string().as_bytes());
    u64::from_be_bytes(*digest.first_chunk().expect("a digest is longer"))
}

/// How often a change is tried again when somebody else was faster.
pub(crate) const TRIES_MAX: u32 = 20;

/// With the version that `If-Match` takes.
pub(crate) fn tagged(mut response: Response, version: u64) -> Response {
    let tag = HeaderValue::from_str(&format!("\"{version}\"")).expect("digits in quotes");
    response.headers_mut().insert(ETAG, tag);
    response
}
