//! `/v1/events`: something happened.
//!
//! Publishing is the one path that has to be fast: the envelope is parsed once, `data` stays the bytes that came in, and
//! nothing is read from the store that is not in memory, unless the event goes to no one (`warn`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use posthaste_core::event::{Event, EventType};
use posthaste_core::id::{EventId, TenantId};
use posthaste_core::text::IdempotencyKey;
use posthaste_core::time::Timestamp;
use posthaste_core::trace::TraceContext;
use posthaste_store::catalogue::Catalogue;
use posthaste_store::computing;
use posthaste_store::{
    Command, CommandOutcome, Cursor, DeliveryQuery, Draft, DuplicateBy, EndpointQuery, Error, EventQuery, EventRow, NewEvent, Page,
    Published as Stored, StatusFilter, partition_of,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::App;
use crate::body;
use crate::call::{Call, Rows, answer, no_content, ok};
use crate::credentials::Caller;
use crate::deliveries::DeliveryContexts;
use crate::problem::Problem;
use crate::traced::{self, PublishTrace, Traced};

const LIST: &str = "events";

/// One thing that happened.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewEvent)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewEventBody<'a> {
    #[serde(rename = "type", borrow)]
    #[schema(value_type = String, max_length = 128, pattern = "^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$")]
    event_type: Cow<'a, str>,
    /// Any JSON. Kept as the bytes that it came as.
    #[serde(borrow)]
    #[schema(value_type = Value)]
    data: &'a RawValue,
    /// The key's own, or `default`.
    tenant: Option<String>,
    /// Your own, unique in the tenant; works as an idempotency key for as long as the event is kept.
    #[schema(max_length = 128, pattern = "^[A-Za-z0-9_-]+$")]
    id: Option<String>,
    #[schema(min_length = 1, max_length = 64)]
    version: Option<String>,
    /// When it happened.
    #[schema(format = DateTime)]
    timestamp: Option<String>,
    /// The same key publishes once in a day.
    #[schema(min_length = 1, max_length = 255)]
    idempotency_key: Option<String>,
    /// Not before; up to a year ahead.
    #[schema(format = DateTime)]
    deliver_at: Option<String>,
    /// What has not arrived by then is not sent any more.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Deliveries with the same key to one endpoint go one after another.
    #[schema(min_length = 1, max_length = 255)]
    ordering_key: Option<String>,
    #[schema(max_items = 16)]
    labels: Option<Vec<String>>,
}

/// What became of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Published {
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    tenant: String,
    #[schema(format = DateTime)]
    timestamp: String,
    /// It was published before; this is the first one.
    pub(crate) duplicate: bool,
    deliveries: u32,
    /// What may be a mistake although the event was stored, such as a tenant without endpoints.
    warnings: Vec<String>,
}

/// An event as it is read.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub(crate) struct EventView {
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    tenant: String,
    version: Option<String>,
    #[schema(format = DateTime)]
    timestamp: String,
    #[schema(format = DateTime)]
    accepted_at: String,
    idempotency_key: Option<String>,
    ordering_key: Option<String>,
    #[schema(format = DateTime)]
    deliver_at: Option<String>,
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    labels: Vec<String>,
    /// Not in lists, and not once it was erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    data: Option<Box<RawValue>>,
    #[schema(format = DateTime)]
    erased_at: Option<String>,
    /// How its deliveries stand. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    deliveries: Option<DeliveryCounts>,
}

/// Deliveries, counted by how they stand.
#[derive(Default, Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryCounts {
    pending: u64,
    delivering: u64,
    scheduled: u64,
    delivered: u64,
    dead: u64,
    cancelled: u64,
}

/// Answers only after the event and its deliveries are on disk.
pub(crate) async fn publish(call: Call) -> Result<Response, Problem> {
    let began = PublishTrace::now(&call.app, "/v1/events");
    let key = call.idempotency_key()?;
    let (call, body) = call.body().await?;
    let catalogue = call.app.known.catalogue().await?;
    let trace = traced::context_of(&call.parts.headers);
    let new = accept(&call, &catalogue, body.bytes.clone(), key, trace).await?;
    check_tenant(&call.app, &new.event.tenant).await?;
    let event = Arc::clone(&new.event);
    let stored = commit(&call.app, vec![new], began).await?.pop().expect("one answer for one event");
    let mut published = Published::show(&event, stored)?;
    warn(&call.app, vec![&mut published]).await;
    let status = if published.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok(answer(status, &published))
}

/// Up to this an event is read in place: under a millisecond.
pub(crate) const READ_IN_PLACE_BYTES_MAX: usize = 128 * 1024;

/// Reads and judges one event. What takes long is done where it holds up nobody.
pub(crate) async fn accept(
    call: &Call,
    catalogue: &Arc<Catalogue>,
    text: Bytes,
    key: Option<IdempotencyKey>,
    trace: Option<Box<TraceContext>>,
) -> Result<NewEvent, Problem> {
    if text.len() <= READ_IN_PLACE_BYTES_MAX {
        let given: NewEventBody<'_> = body::parse(&text)?;
        if !catalogue.is_costly(&given.event_type, given.version.as_deref(), given.data.get()) {
            return given.read(&call.app, &call.caller, catalogue, key, trace);
        }
    }
    let (app, caller, catalogue) = (call.app.clone(), call.caller.clone(), Arc::clone(catalogue));
    let read = move || {
        let given: NewEventBody<'_> = body::parse(&text)?;
        given.read(&app, &caller, &catalogue, key, trace)
    };
    computing::run(call.caller.owner(), read).await?
}

/// The one way into the store, for single events and batches. Whether it works is what readiness is about.
pub(crate) async fn commit(app: &App, events: Vec<NewEvent>, began: PublishTrace) -> Result<Vec<Stored>, Error> {
    let traced = Traced::of(app, began, &events);
    let counted = app.options.metrics.as_ref().map(|metrics| {
        let events: Vec<Arc<Event>> = events.iter().map(|new| Arc::clone(&new.event)).collect();
        (metrics, events)
    });
    let stored = app.store.publish(events).await;
    if let Some(traced) = traced {
        traced.ended(&stored);
    }
    if let (Some((metrics, events)), Ok(stored)) = (counted, &stored) {
        metrics.publishing().created(events.iter().zip(stored).filter_map(|(event, stored)| match stored {
            Stored::Made { deliveries } => Some((&event.tenant, &event.event_type, *deliveries)),
            Stored::Duplicate { .. } | Stored::Conflict { .. } | Stored::TooCostly(_) => None,
        }));
    }
    match &stored {
        Ok(_) => app.readiness.publishing.worked(),
        // Having too much to do is not being broken.
        Err(Error::Overloaded { .. }) => {}
        Err(error) => app.readiness.publishing.failed(error),
    }
    stored
}

/// Where tenants have to be made first, this one has to be there.
pub(crate) async fn check_tenant(app: &App, tenant: &TenantId) -> Result<(), Problem> {
    Ok(posthaste_store::check_tenant(app.store.as_ref(), app.options.strict_tenants, tenant).await??)
}

/// Says where an event has nobody to go to because its tenant has no endpoints, as after a typo in the tenant's name. The events are
/// stored: a store that does not answer now is no failure.
pub(crate) async fn warn(app: &App, published: Vec<&mut Published>) {
    let mut has_endpoints: HashMap<String, bool> = HashMap::new();
    for published in published.into_iter().filter(|published| published.deliveries == 0 && !published.duplicate) {
        if !has_endpoints.contains_key(&published.tenant) {
            let Ok(tenant) = TenantId::parse(&published.tenant) else { continue };
            let query = EndpointQuery { tenant: Some(tenant), limit: 1, ..EndpointQuery::default() };
            let is_there = app.store.endpoints(query).await.map_or(true, |found| !found.is_empty());
            has_endpoints.insert(published.tenant.clone(), is_there);
        }
        if !has_endpoints[&published.tenant] {
            published.warnings.push(format!(
                "The tenant `{}` has no endpoints, so no one receives this event. Is the name of the tenant right?",
                published.tenant
            ));
        }
    }
}

impl Published {
    pub(crate) fn show(event: &Event, stored: Stored) -> Result<Published, Problem> {
        let shown = |id: &EventId, event_type: &EventType, timestamp: Timestamp, duplicate, deliveries| Published {
            id: id.to_string(),
            event_type: event_type.to_string(),
            tenant: event.tenant.to_string(),
            timestamp: timestamp.to_rfc3339(),
            duplicate,
            deliveries,
            warnings: vec![],
        };
        match stored {
            Stored::Made { deliveries } => Ok(shown(&event.id, &event.event_type, event.timestamp, false, deliveries)),
            Stored::Duplicate { event, event_type, timestamp, deliveries } => {
                Ok(shown(&event, &event_type, timestamp, true, deliveries))
            }
            Stored::TooCostly(why) => Err(Problem::invalid("data", why)),
            Stored::Conflict { event: first, by } => {
                let what = match by {
                    DuplicateBy::Id => "id",
                    DuplicateBy::IdempotencyKey => "idempotency key",
                };
                Err(Problem::conflict(format!(
                    "The same {what} was used before, for the event `{first}`, with another body. Nothing was stored."
                )))
            }
        }
    }
}

impl NewEventBody<'_> {
    /// Checks all that can be checked without the store. `key` and `trace` are what headers said.
    pub(crate) fn read(
        &self,
        app: &App,
        caller: &Caller,
        catalogue: &Catalogue,
        key: Option<IdempotencyKey>,
        trace: Option<Box<TraceContext>>,
    ) -> Result<NewEvent, Problem> {
        let idempotency_key = match (self.idempotency_key.as_deref(), key) {
            (None, key) => key,
            (Some(text), None) => Some(IdempotencyKey::parse(text).map_err(|error| Problem::invalid("idempotency_key", error))?),
            (Some(text), Some(key)) if key.as_str() == text => Some(key),
            (Some(_), Some(_)) => {
                return Err(Problem::invalid("idempotency_key", "differs from the one in the Idempotency-Key header"));
            }
        };
        let accepted_at = app.store.now();
        let draft = Draft {
            event_type: &self.event_type,
            data: self.data.get(),
            tenant: caller.ordinary_tenant_for(app, self.tenant.as_deref())?,
            id: self.id.as_deref(),
            version: self.version.as_deref(),
            timestamp: time("timestamp", self.timestamp.as_deref())?,
            idempotency_key,
            ordering_key: self.ordering_key.as_deref(),
            deliver_at: time("deliver_at", self.deliver_at.as_deref())?,
            expires_at: time("expires_at", self.expires_at.as_deref())?,
            labels: self.labels.as_deref().unwrap_or_default(),
            trace,
            written_at: accepted_at,
        };
        let mut new = draft.accept(catalogue, accepted_at, || app.store.unique())?;
        new.resolved = traced::mark(app, &new.event);
        Ok(new)
    }
}

fn time(field: &'static str, text: Option<&str>) -> Result<Option<Timestamp>, Problem> {
    text.map(Timestamp::parse).transpose().map_err(|error| Problem::invalid(field, error))
}

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    let query = &call.query;
    let wanted = EventQuery {
        tenant: None,
        event_types: query.event_types()?,
        labels: query.labels()?,
        from: query.range()?.0,
        to: query.range()?.1,
        before: call.cursor(LIST, |position| position.parse::<Cursor>().ok())?,
        limit: query.limit()?,
    };
    let Ok(tenant) = call.caller.narrowed_to(query.tenant()?) else { return Ok(call.list(LIST, Rows::<EventView>::none())) };
    let Page { rows, next } = call.app.store.events(EventQuery { tenant, ..wanted }).await?;
    Ok(call.list(LIST, Rows::new(rows.iter().map(view).collect(), next.map(|next| next.to_string()))))
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    let row = find(&call).await?;
    Ok(ok(&whole(&call.app, &row).await?))
}

/// The event that the address names, if it is there for this caller.
async fn find(call: &Call) -> Result<EventRow, Problem> {
    let id = EventId::parse(&call.name).map_err(|_| Problem::not_found())?;
    let Ok(tenant) = call.caller.narrowed_to(call.query.tenant()?) else { return Err(Problem::not_found()) };
    // Ids are unique within a tenant. Without one, an id that two tenants chose names neither.
    let tenant = match tenant {
        Some(tenant) => tenant,
        None => match <[TenantId; 1]>::try_from(call.app.store.tenants_of_event(id.clone()).await?) {
            Ok([tenant]) => tenant,
            Err(tenants) if tenants.is_empty() => return Err(Problem::not_found()),
            Err(_) => {
                return Err(Problem::conflict("More than one tenant has an event with this id. Name the tenant with `?tenant=`."));
            }
        },
    };
    call.app.store.event(Some(tenant), id).await?.ok_or_else(Problem::not_found)
}

pub(crate) async fn cancel(call: Call) -> Result<Response, Problem> {
    let call = call.without_body().await?;
    let row = find(&call).await?;
    let [waiting, delivered, dead, _] = row.deliveries;
    // All of them were cancelled before, or the event matched no endpoint: none of them will be sent.
    if waiting + delivered + dead == 0 {
        return Ok(ok(&whole(&call.app, &row).await?));
    }
    call_off(&call, &row).await?;
    let row = find(&call).await?;
    Ok(ok(&whole(&call.app, &row).await?))
}

/// Asks the owner to cancel everything of it that still waits.
async fn call_off(call: &Call, row: &EventRow) -> Result<(), Problem> {
    let audit = call.audit("event.cancel", &row.id, Some(&row.tenant));
    let command = Command::CancelEvent { tenant: row.tenant.clone(), event: row.id.clone(), audit };
    match call.app.store.command(partition_of(&row.tenant), command).await? {
        CommandOutcome::Done => Ok(()),
        CommandOutcome::InFlight => {
            Err(Problem::conflict("One of its deliveries is being sent at this moment. Nothing was cancelled."))
        }
        CommandOutcome::HasEnded => Err(Problem::conflict("All its deliveries have ended already.")),
        CommandOutcome::NotFound => Err(Problem::not_found()),
        CommandOutcome::NotBefore(_) | CommandOutcome::Tested(_) => {
            Err(Problem::unavailable("The owner of the event could not do that now."))
        }
    }
}

/// Erases the payload; first it is called off where it still waits, so that nothing is sent without it.
pub(crate) async fn erase(call: Call) -> Result<Response, Problem> {
    let row = find(&call).await?;
    if row.deliveries[0] > 0 {
        match call_off(&call, &row).await {
            Ok(()) => {}
            // What has ended between our look and the owner's needs no cancelling.
            Err(problem) if problem.status() == StatusCode::CONFLICT => {
                if find(&call).await?.deliveries[0] > 0 {
                    return Err(problem);
                }
            }
            Err(problem) => return Err(problem),
        }
    }
    let audit = call.audit("event.erase", &row.id, Some(&row.tenant));
    call.app.store.erase(Some(row.tenant.clone()), row.id.clone(), audit).await?;
    Ok(no_content())
}

fn view(row: &EventRow) -> EventView {
    EventView {
        id: row.id.to_string(),
        event_type: row.event_type.to_string(),
        tenant: row.tenant.to_string(),
        version: row.version.as_ref().map(ToString::to_string),
        timestamp: row.timestamp.to_rfc3339(),
        accepted_at: row.accepted_at.to_rfc3339(),
        idempotency_key: row.idempotency_key.as_ref().map(ToString::to_string),
        ordering_key: row.ordering_key.as_ref().map(ToString::to_string),
        deliver_at: row.timing.deliver_at().map(Timestamp::to_rfc3339),
        expires_at: row.timing.expires_at().map(Timestamp::to_rfc3339),
        labels: row.labels.iter().map(ToString::to_string).collect(),
        data: None,
        erased_at: row.erased_at.map(Timestamp::to_rfc3339),
        deliveries: None,
    }
}

/// Deliveries of one event that are looked at to say how they stand. Beyond, they count as pending.
const STANDING_MAX: usize = 1000;

/// With its payload, to the byte, and how its deliveries stand.
async fn whole(app: &App, row: &EventRow) -> Result<EventView, Problem> {
    let [waiting, delivered, dead, cancelled] = row.deliveries;
    let mut counts = DeliveryCounts { pending: waiting, delivered, dead, cancelled, ..DeliveryCounts::default() };
    if waiting > 0 {
        let query = DeliveryQuery {
            tenant: Some(row.tenant.clone()),
            event: Some(row.id.clone()),
            statuses: vec![StatusFilter::Waiting],
            limit: STANDING_MAX,
            ..DeliveryQuery::default()
        };
        let rows = app.store.deliveries(query).await?.rows;
        let contexts = DeliveryContexts::of(app, &rows).await?;
        for delivery in &rows {
            match contexts.view(app, delivery).status {
                "delivering" => counts.delivering += 1,
                "scheduled" => counts.scheduled += 1,
                _ => continue,
            }
            counts.pending = counts.pending.saturating_sub(1);
        }
    }
    let data = row.data.as_ref().map(|data| RawValue::from_string(data.as_str().to_owned()));
    let data = data.transpose().map_err(|_| Problem::unavailable("The stored payload is not readable."))?;
    Ok(EventView { data, deliveries: Some(counts), ..view(row) })
}
