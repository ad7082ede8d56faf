//! The one table of everything that is served.
//!
//! The router, the OpenAPI document, the page at `/docs` and the tests of tenancy are made from it, so that a route cannot
//! be added to one of them and forgotten in another. What every call has to pass (credential, scope, rate, query) is
//! passed here, before its handler is asked.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use http::{HeaderName, HeaderValue, Method};
use parking_lot::Mutex;
use posthaste_store::KeyScope::{self, Admin, Manage, Publish, Read, Replay};
use utoipa::ToSchema;

use crate::call::{Call, EmptyBody, address_of};
use crate::credentials::{Caller, identify};
use crate::deadline::Deadline;
use crate::openapi::{Shape, list_of, shape};
use crate::problem::{self, Problem};
use crate::query::{
    ACTION, ACTOR, CURSOR, ENDPOINT, EVENT, FROM, HOLD_REASON, KEY, LABELS, LIMIT, Parameter, Query, RESOURCE, STATUS, TENANT,
    TENANT_OF_UID, TO, TYPE, UID,
};
use crate::{
    App, attention, audit, batch, cluster, dashboard, dead_letters, deliveries, docs, endpoint_verbs, endpoints, event_types,
    events, filters, framed, health, hold, keys, metrics, portal, replays, sessions, statistics, stream, tenants,
};

type Answered = Pin<Box<dyn Future<Output = Result<Response, Problem>> + Send>>;
type Handler = Box<dyn Fn(Call) -> Answered + Send + Sync>;

/// Who may call a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Without a credential.
    Anybody,
    Scope(KeyScope),
    /// What concerns the whole server: keys that are bound to a tenant may not.
    ServerWide(KeyScope),
    /// The same, and nothing is asked of a caller on this machine.
    ServerWideOrLocal(KeyScope),
}

/// One method of one address.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// Its name in the OpenAPI document, and so in generated clients.
    pub(crate) operation: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) access: Access,
    pub(crate) query: &'static [Parameter],
    pub(crate) body: Option<RequestSpec>,
    pub(crate) answers: Vec<ResponseSpec>,
    /// Statuses of problems beside those that any call can meet.
    pub(crate) problems: &'static [u16],
    /// Beside the body: `If-Match`, `Idempotency-Key`, `traceparent`.
    pub(crate) headers: &'static [&'static str],
    /// Publishing is not counted among a key's calls.
    is_publishing: bool,
    /// It takes as long as a receiver takes to answer.
    waits_for_receiver: bool,
    handler: Handler,
}

/// What a body looks like.
pub(crate) struct RequestSpec {
    pub(crate) shape: Shape,
    pub(crate) is_required: bool,
    /// Fields that this route needs, although the shape that it shares with others does not.
    pub(crate) fields: &'static [&'static str],
    /// One that works on an empty server; a test sends it.
    pub(crate) example: &'static str,
    pub(crate) media_types: &'static [&'static str],
}

/// What comes back when all is well.
pub(crate) struct ResponseSpec {
    pub(crate) status: u16,
    pub(crate) about: &'static str,
    pub(crate) shape: Option<Shape>,
    pub(crate) media_type: &'static str,
}

const JSON: &str = "application/json";

impl Route {
    fn new<F, A>(method: Method, path: &'static str, operation: &'static str, access: Access, handler: F) -> Route
    where
        F: Fn(Call) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Response, Problem>> + Send + 'static,
    {
        Route {
            method,
            path,
            operation,
            summary: "",
            access,
            query: &[],
            body: None,
            answers: vec![],
            problems: &[],
            headers: &[],
            is_publishing: false,
            waits_for_receiver: false,
            handler: Box::new(move |call| Box::pin(handler(call))),
        }
    }

    fn says(mut self, summary: &'static str) -> Route {
        self.summary = summary;
        self
    }

    fn asks(mut self, query: &'static [Parameter]) -> Route {
        self.query = query;
        self
    }

    fn takes<T: ToSchema>(mut self, example: &'static str) -> Route {
        self.body = Some(RequestSpec { shape: shape::<T>(), is_required: true, fields: &[], example, media_types: &[JSON] });
        self
    }

    /// Of what it takes, this has to be there.
    fn needs(mut self, fields: &'static [&'static str]) -> Route {
        if let Some(body) = &mut self.body {
            body.fields = fields;
        }
        self
    }

    fn may_take<T: ToSchema>(mut self, example: &'static str) -> Route {
        self.body = Some(RequestSpec { shape: shape::<T>(), is_required: false, fields: &[], example, media_types: &[JSON] });
        self
    }

    fn gives<T: ToSchema>(self, status: u16, about: &'static str) -> Route {
        self.gives_as(status, about, Some(shape::<T>()), JSON)
    }

    fn gives_list<T: ToSchema>(self) -> Route {
        self.gives_as(200, "A page.", Some(list_of::<T>()), JSON)
    }

    fn gives_nothing(self) -> Route {
        self.gives_as(204, "Done.", None, JSON)
    }

    fn gives_as(mut self, status: u16, about: &'static str, shape: Option<Shape>, media_type: &'static str) -> Route {
        self.answers.push(ResponseSpec { status, about, shape, media_type });
        self
    }

    /// Problems that only some routes know.
    fn refuses(mut self, statuses: &'static [u16]) -> Route {
        self.problems = statuses;
        self
    }

    fn heeds(mut self, headers: &'static [&'static str]) -> Route {
        self.headers = headers;
        self
    }

    fn publishing(mut self) -> Route {
        self.is_publishing = true;
        self
    }

    fn waiting_for_receiver(mut self) -> Route {
        self.waits_for_receiver = true;
        self
    }

    /// As the router knows it. It has no places that begin in the middle of a segment.
    pub(crate) fn router_path(&self) -> String {
        self.path.split('/').map(|segment| if segment.contains('{') { "{name}" } else { segment }).collect::<Vec<_>>().join("/")
    }

    fn check_access(&self, caller: &Caller) -> Result<(), Problem> {
        let (scope, is_server_wide) = match self.access {
            Access::Anybody => return Ok(()),
            Access::Scope(scope) => (scope, false),
            Access::ServerWide(scope) | Access::ServerWideOrLocal(scope) => (scope, true),
        };
        if !caller.has(scope) {
            return Err(Problem::forbidden(format!("This needs a key with the scope `{}`.", scope.name())));
        }
        if is_server_wide && caller.tenant.is_some() {
            return Err(Problem::forbidden("This concerns the whole server, and this key is bound to one tenant."));
        }
        Ok(())
    }
}

macro_rules! methods {
    ($($name:ident $method:ident)*) => {
        $(fn $name<F, A>(path: &'static str, operation: &'static str, access: Access, handler: F) -> Route
        where
            F: Fn(Call) -> A + Send + Sync + 'static,
            A: Future<Output = Result<Response, Problem>> + Send + 'static,
        {
            Route::new(Method::$method, path, operation, access, handler)
        })*
    };
}

methods! {
    get GET
    post POST
    put PUT
    patch PATCH
    delete DELETE
}

const DELIVERY_FILTERS: &[Parameter] = &[ENDPOINT, EVENT, TENANT, STATUS, HOLD_REASON, TYPE, LABELS, FROM, TO, LIMIT, CURSOR];
/// An endpoint is named by its id, or as `uid:…` by the `uid` that it has in its tenant.
const OF_ENDPOINT: &[Parameter] = &[TENANT_OF_UID];
const PAGES: &[Parameter] = &[LIMIT, CURSOR];
const IF_MATCH: &[&str] = &["If-Match"];
const IDEMPOTENCY_KEY: &[&str] = &["Idempotency-Key"];
const PUBLISH_HEADERS: &[&str] = &["Idempotency-Key", "traceparent", "tracestate"];
const TRACE_HEADERS: &[&str] = &["traceparent", "tracestate"];

/// Everything.
#[expect(clippy::too_many_lines, reason = "one table, read from top to bottom")]
pub(crate) fn table() -> Vec<Route> {
    vec![
        // Events.
        post("/v1/events", "publishEvent", Access::Scope(Publish), events::publish)
            .says("Publish one event. Answered once it and its deliveries are on disk.")
            .heeds(PUBLISH_HEADERS)
            .takes::<events::NewEventBody>(r#"{"type": "invoice.paid", "tenant": "acme", "data": {"invoice": "inv_456", "amount": 4999}}"#)
            .gives::<events::Published>(202, "It is on disk.")
            .gives::<events::Published>(200, "It was published before, under this id.")
            .refuses(&[409])
            .publishing(),
        post("/v1/events/batch", "publishEvents", Access::Scope(Publish), batch::publish)
            .says("Publish up to 1,000 events, as a JSON array or one a line. A bad one does not harm its neighbours.")
            .heeds(TRACE_HEADERS)
            .takes_batch()
            .gives::<batch::BatchAnswer>(202, "What became of each, in their order.")
            .publishing(),
        get("/v1/events", "listEvents", Access::Scope(Read), events::list)
            .says("Events, newest first, without their payloads.")
            .asks(&[TENANT, TYPE, LABELS, FROM, TO, LIMIT, CURSOR])
            .gives_list::<events::EventView>(),
        get("/v1/events/{id}", "readEvent", Access::Scope(Read), events::read)
            .says("One event with its payload, and its deliveries counted by how they stand.")
            .asks(&[TENANT])
            .gives::<events::EventView>(200, "The event.")
            .refuses(&[409]),
        post("/v1/events/{id}/cancel", "cancelEvent", Access::Scope(Publish), events::cancel)
            .says("See to it that none of its remaining deliveries is sent.")
            .asks(&[TENANT])
            .may_take::<EmptyBody>("")
            .gives::<events::EventView>(200, "None of its remaining deliveries will be sent.")
            .refuses(&[409]),
        delete("/v1/events/{id}/data", "eraseEventData", Access::Scope(Manage), events::erase)
            .says("Erase its payload. What still waits is cancelled; history stays.")
            .asks(&[TENANT])
            .gives_nothing()
            .refuses(&[409]),
        // Endpoints.
        post("/v1/endpoints", "createEndpoint", Access::Scope(Manage), endpoints::create)
            .says("Make an endpoint. Its secret is shown in this answer only.")
            .takes::<endpoints::EndpointBody>(r#"{"url": "https://example.com/webhooks", "tenant": "acme", "event_types": ["invoice.*"]}"#)
            .needs(&["url"])
            .gives::<endpoints::EndpointView>(201, "The endpoint, with its secret.")
            .refuses(&[409]),
        get("/v1/endpoints", "listEndpoints", Access::Scope(Read), endpoints::list)
            .says("Endpoints, newest first.")
            .asks(&[TENANT, UID, LIMIT, CURSOR])
            .gives_list::<endpoints::EndpointView>(),
        get("/v1/endpoints/{id}", "readEndpoint", Access::Scope(Read), endpoints::read)
            .says("One endpoint, with the policies that apply to it.")
            .asks(OF_ENDPOINT)
            .gives::<endpoints::EndpointView>(200, "The endpoint."),
        patch("/v1/endpoints/{id}", "changeEndpoint", Access::Scope(Manage), endpoints::change)
            .says("Change what is given; `null` goes back to what is inherited.")
            .asks(OF_ENDPOINT)
            .heeds(IF_MATCH)
            .takes::<endpoints::EndpointBody>("")
            .gives::<endpoints::EndpointView>(200, "The endpoint as it is now.")
            .refuses(&[409, 412]),
        delete("/v1/endpoints/{id}", "deleteEndpoint", Access::Scope(Manage), endpoints::delete)
            .says("Delete it. What waits there is cancelled; history stays.")
            .asks(OF_ENDPOINT)
            .heeds(IF_MATCH)
            .gives_nothing()
            .refuses(&[412]),
        put("/v1/endpoints/uid:{uid}", "putEndpoint", Access::Scope(Manage), endpoints::put)
            .says("Make the endpoint with this `uid` of yours, or replace all that is said about it.")
            .asks(&[TENANT])
            .heeds(IF_MATCH)
            .takes::<endpoints::EndpointBody>("")
            .needs(&["url"])
            .gives::<endpoints::EndpointView>(201, "It was made; its secret is shown in this answer only.")
            .gives::<endpoints::EndpointView>(200, "It was replaced.")
            .refuses(&[409, 412]),
        post("/v1/endpoints/{id}/pause", "pauseEndpoint", Access::Scope(Manage), endpoint_verbs::pause)
            .says("Hold everything, until a time or until it is resumed.")
            .asks(OF_ENDPOINT)
            .heeds(IF_MATCH)
            .may_take::<endpoint_verbs::PauseBody>("")
            .gives::<endpoints::EndpointView>(200, "The endpoint.")
            .refuses(&[409, 412]),
        post("/v1/endpoints/{id}/resume", "resumeEndpoint", Access::Scope(Manage), endpoint_verbs::resume)
            .says("End a pause.")
            .asks(OF_ENDPOINT)
            .heeds(IF_MATCH)
            .may_take::<EmptyBody>("")
            .gives::<endpoints::EndpointView>(200, "The endpoint.")
            .refuses(&[409, 412]),
        post("/v1/endpoints/{id}/disable", "disableEndpoint", Access::Scope(Manage), endpoint_verbs::disable)
            .says("Take no more events. What waits is held.")
            .asks(OF_ENDPOINT)
            .heeds(IF_MATCH)
            .may_take::<EmptyBody>("")
            .gives::<endpoints::EndpointView>(200, "The endpoint.")
            .refuses(&[409, 412]),
        post("/v1/endpoints/{id}/enable", "enableEndpoint", Access::Scope(Manage), endpoint_verbs::enable)
            .says("Take events again. What was missed meanwhile can be replayed with `missing`.")
            .asks(OF_ENDPOINT)
            .heeds(IF_MATCH)
            .may_take::<EmptyBody>("")
            .gives::<endpoints::EndpointView>(200, "The endpoint.")
            .refuses(&[409, 412]),
        post("/v1/endpoints/{id}/rotate-secret", "rotateEndpointSecret", Access::Scope(Manage), endpoint_verbs::rotate_secret)
            .says("A new secret, shown in this answer only. The old one signs beside it for a while.")
            .asks(OF_ENDPOINT)
            .heeds(IF_MATCH)
            .may_take::<endpoint_verbs::RotateBody>("")
            .gives::<endpoints::EndpointView>(200, "The endpoint, with its new secret.")
            .refuses(&[409, 412]),
        post("/v1/endpoints/{id}/test", "testEndpoint", Access::Scope(Manage), endpoint_verbs::test)
            .says("Send one request now, and see what came of it.")
            .asks(OF_ENDPOINT)
            .may_take::<endpoint_verbs::TestBody>("")
            .gives::<deliveries::AttemptView>(200, "The attempt, once it has ended.")
            .refuses(&[409])
            .waiting_for_receiver(),
        get("/v1/endpoints/{id}/stats", "readEndpointStats", Access::Scope(Read), statistics::of_endpoint)
            .says("How it has been doing.")
            .asks(&[TENANT_OF_UID, FROM, TO])
            .gives::<statistics::EndpointStats>(200, "Counts and response times."),
        // Deliveries.
        get("/v1/deliveries", "listDeliveries", Access::Scope(Read), deliveries::list)
            .says("Deliveries, newest first.")
            .asks(DELIVERY_FILTERS)
            .gives_list::<deliveries::DeliveryView>(),
        get("/v1/deliveries/{id}", "readDelivery", Access::Scope(Read), deliveries::read)
            .says("One delivery: how it stands, and if it waits, why and until when.")
            .gives::<deliveries::DeliveryView>(200, "The delivery."),
        get("/v1/deliveries/{id}/attempts", "listAttempts", Access::Scope(Read), deliveries::attempts)
            .says("Every try of it, newest first.")
            .asks(PAGES)
            .gives_list::<deliveries::AttemptView>(),
        post("/v1/deliveries/{id}/retry", "retryDelivery", Access::Scope(Replay), deliveries::retry)
            .says("Send it again: a new delivery of the same event, or, where it still waits, the same one now.")
            .may_take::<EmptyBody>("")
            .gives::<deliveries::DeliveryView>(202, "The delivery that will be tried.")
            .refuses(&[409]),
        post("/v1/deliveries/{id}/cancel", "cancelDelivery", Access::Scope(Manage), deliveries::cancel)
            .says("See to it that it is not sent.")
            .may_take::<EmptyBody>("")
            .gives::<deliveries::DeliveryView>(200, "The delivery.")
            .refuses(&[409]),
        get("/v1/dead-letters", "listDeadLetters", Access::Scope(Read), dead_letters::list)
            .says("What nobody tries any more and nobody has retried, the newest death first.")
            .asks(DELIVERY_FILTERS)
            .gives_list::<deliveries::DeliveryView>(),
        post("/v1/dead-letters/{id}/retry", "retryDeadLetter", Access::Scope(Replay), dead_letters::retry)
            .says("Send it again. It leaves the dead letters and names its successor.")
            .may_take::<EmptyBody>("")
            .gives::<deliveries::DeliveryView>(202, "The new delivery.")
            .refuses(&[409]),
        // Replays.
        post("/v1/replays", "createReplay", Access::Scope(Replay), replays::create)
            .says("Send again what matches, at a pace. `dry_run` counts only.")
            .heeds(IDEMPOTENCY_KEY)
            .takes::<replays::NewReplayBody>(r#"{"tenant": "acme", "status": ["dead"], "reason": "the receiver was down", "dry_run": true}"#)
            .gives::<replays::ReplayView>(202, "It is under way.")
            .gives::<replays::DryRun>(200, "How many it would be.")
            .refuses(&[409]),
        get("/v1/replays", "listReplays", Access::Scope(Read), replays::list)
            .says("Replays, newest first.")
            .asks(&[TENANT, LIMIT, CURSOR])
            .gives_list::<replays::ReplayView>(),
        get("/v1/replays/{id}", "readReplay", Access::Scope(Read), replays::read)
            .says("One replay and how far it has come.")
            .gives::<replays::ReplayView>(200, "The replay."),
        post("/v1/replays/{id}/cancel", "cancelReplay", Access::Scope(Replay), replays::cancel)
            .says("Make no more of its deliveries. Those made stay.")
            .may_take::<EmptyBody>("")
            .gives::<replays::ReplayView>(200, "The replay."),
        // Tenants.
        get("/v1/tenants", "listTenants", Access::Scope(Read), tenants::list)
            .says("Tenants, in the order of their ids.")
            .asks(PAGES)
            .gives_list::<tenants::TenantView>(),
        get("/v1/tenants/{id}", "readTenant", Access::Scope(Read), tenants::read)
            .says("One tenant: its share, its limits, what its endpoints inherit.")
            .gives::<tenants::TenantView>(200, "The tenant."),
        put("/v1/tenants/{id}", "putTenant", Access::ServerWide(Admin), tenants::put)
            .says("Make a tenant, or replace all that is said about it.")
            .heeds(IF_MATCH)
            .takes::<tenants::TenantBody>("")
            .gives::<tenants::TenantView>(201, "It was made.")
            .gives::<tenants::TenantView>(200, "It was replaced.")
            .refuses(&[412]),
        patch("/v1/tenants/{id}", "changeTenant", Access::ServerWide(Admin), tenants::change)
            .says("Change what is given; `null` goes back to the default.")
            .heeds(IF_MATCH)
            .takes::<tenants::TenantBody>("")
            .gives::<tenants::TenantView>(200, "The tenant as it is now.")
            .refuses(&[412]),
        delete("/v1/tenants/{id}", "deleteTenant", Access::ServerWide(Admin), tenants::delete)
            .says("Delete it with its endpoints and keys. Its history goes by and by.")
            .heeds(IF_MATCH)
            .gives_nothing()
            .refuses(&[412]),
        // Event types.
        get("/v1/event-types", "listEventTypes", Access::Scope(Read), event_types::list)
            .says("The catalogue, in the order of names.")
            .asks(PAGES)
            .gives_list::<event_types::EventTypeView>(),
        post("/v1/event-types", "createEventType", Access::ServerWide(Manage), event_types::create)
            .says("Add a type to the catalogue.")
            .takes::<event_types::EventTypeBody>(r#"{"name": "invoice.created", "description": "An invoice was made.", "versions": [{"version": "2026-04-08", "schema": {"type": "object", "required": ["invoice"]}, "example": {"invoice": "inv_456"}}]}"#)
            .needs(&["name"])
            .gives::<event_types::EventTypeView>(201, "The type.")
            .refuses(&[409]),
        get("/v1/event-types/{name}", "readEventType", Access::Scope(Read), event_types::read)
            .says("One type, with its versions.")
            .gives::<event_types::EventTypeView>(200, "The type."),
        patch("/v1/event-types/{name}", "changeEventType", Access::ServerWide(Manage), event_types::change)
            .says("Change what is given.")
            .heeds(IF_MATCH)
            .takes::<event_types::EventTypeBody>("")
            .gives::<event_types::EventTypeView>(200, "The type as it is now.")
            .refuses(&[412]),
        delete("/v1/event-types/{name}", "deleteEventType", Access::ServerWide(Manage), event_types::delete)
            .says("Remove it from the catalogue. Events of that type are delivered all the same.")
            .heeds(IF_MATCH)
            .gives_nothing()
            .refuses(&[412]),
        // Who may do what, and who did.
        get("/v1/keys", "listKeys", Access::Scope(Admin), keys::list)
            .says("Keys, newest first, also revoked and expired ones. The keys themselves are kept nowhere.")
            .asks(PAGES)
            .gives_list::<keys::KeyView>(),
        post("/v1/keys", "createKey", Access::Scope(Admin), keys::create)
            .says("Make a key. It is shown in this answer only.")
            .takes::<keys::NewKeyBody>(r#"{"name": "billing service", "tenant": "acme", "scopes": ["publish"]}"#)
            .gives::<keys::KeyView>(201, "The key."),
        delete("/v1/keys/{id}", "revokeKey", Access::Scope(Admin), keys::revoke)
            .says("Revoke it, on all nodes within a second.")
            .gives_nothing(),
        get("/v1/audit", "listAudit", Access::Scope(Admin), audit::list)
            .says("Who changed what, newest first.")
            .asks(&[TENANT, ACTOR, ACTION, RESOURCE, FROM, TO, LIMIT, CURSOR])
            .gives_list::<audit::AuditView>(),
        post("/v1/sessions", "createSession", Access::Scope(Read), sessions::create)
            .says("Exchange the API key in the `Authorization` header for a cookie. It lasts a day, and ends with its key.")
            .may_take::<EmptyBody>("")
            .gives::<sessions::SessionView>(201, "The session; its cookie is in `Set-Cookie`."),
        get("/v1/sessions", "readSession", Access::Scope(Read), sessions::read)
            .says("Who is calling, and what they may do.")
            .gives::<sessions::SessionView>(200, "The session."),
        delete("/v1/sessions", "endSession", Access::Scope(Read), sessions::end)
            .says("End the session that the call is made with, and remove its cookie from the browser.")
            .gives_nothing(),
        post("/v1/portal-links", "createPortalLink", Access::Scope(Admin), portal::create)
            .says("A way into the portal for one tenant's people, for a short time.")
            .takes::<portal::NewPortalLink>(r#"{"tenant": "acme", "permissions": ["view", "replay"], "expires_in_seconds": 3600}"#)
            .gives::<portal::PortalLink>(201, "The link."),
        post("/v1/portal-sessions", "startPortalSession", Access::Anybody, portal::start)
            .says("Exchange the code of a portal link, once and within five minutes, for a token.")
            .takes::<portal::PortalCode>("")
            .gives::<portal::StartedPortalSession>(201, "The session, with its token.")
            .refuses(&[401, 429, 503]),
        get("/v1/portal-sessions", "listPortalSessions", Access::Scope(Admin), portal::list)
            .says("Sessions of the portal that are not over, newest first, and links that have not been used yet.")
            .asks(&[TENANT, KEY, LIMIT, CURSOR])
            .gives_list::<portal::PortalSessionView>(),
        delete("/v1/portal-sessions", "endPortalSessions", Access::Scope(Admin), portal::end_many)
            .says("End all sessions of the portal for a tenant, or all whose link was made by a key.")
            .asks(&[TENANT, KEY])
            .gives_nothing(),
        delete("/v1/portal-sessions/{id}", "endPortalSession", Access::Scope(Admin), portal::end)
            .says("End one session of the portal, or a link that has not been used.")
            .gives_nothing(),
        // Looking.
        post("/v1/filters/test", "testFilter", Access::Scope(Read), filters::test)
            .says("Try a filter on an event that is not published.")
            .takes::<filters::FilterTestBody>(r#"{"filter": {"data.amount": {"$gte": 1000}}, "event": {"type": "invoice.paid", "data": {"amount": 4999}}}"#)
            .gives::<filters::FilterTestAnswer>(200, "Whether it matches."),
        get("/v1/stats", "readStats", Access::Scope(Read), statistics::overview)
            .says("What the dashboard's first page shows.")
            .asks(&[TENANT, FROM, TO])
            .gives::<statistics::Overview>(200, "Counts, and what waits and why."),
        get("/v1/attention", "listAttention", Access::Scope(Read), attention::list)
            .says("What needs a person now: open circuits, disabled, blocked and failing endpoints, what has been due for too long, and dead letters by endpoint, reason and status.")
            .asks(&[TENANT])
            .gives_list::<attention::AttentionView>(),
        get("/v1/stream", "stream", Access::Scope(Read), stream::follow)
            .says("Deliveries as they change, as server-sent events: `delivery` with one as it stands, `missed` with how many there was no time for, `lagging` when more wait than are followed. After a break `Last-Event-ID` goes on where it was.")
            .asks(&[TENANT, ENDPOINT])
            .heeds(&["Last-Event-ID"])
            .gives_as(200, "A stream of events.", None, "text/event-stream"),
        get("/v1/cluster", "readCluster", Access::ServerWide(Read), cluster::read)
            .says("The nodes that are alive.")
            .gives::<cluster::ClusterView>(200, "The cluster."),
        get("/v1/hold", "readHold", Access::ServerWide(Read), hold::read)
            .says("Whether all deliveries are held, as after `restore --hold` or with `serve --hold`, and how many wait.")
            .gives::<hold::HoldView>(200, "The hold."),
        post("/v1/hold/release", "releaseHold", Access::ServerWide(Admin), hold::release)
            .says("Release all deliveries: every node starts to deliver within two seconds. May be repeated.")
            .gives::<hold::HoldView>(200, "The hold, which has ended."),
        // For machines and people, without a key.
        get("/healthz", "isAlive", Access::Anybody, health::alive)
            .says("Whether the process is alive.")
            .gives::<health::Alive>(200, "It is."),
        get("/readyz", "isReady", Access::Anybody, health::ready)
            .says("Whether it may take traffic: not while publishing would fail.")
            .gives::<health::Ready>(200, "It may."),
        get("/metrics", "readMetrics", Access::ServerWideOrLocal(Read), metrics::page)
            .says("What is counted, for Prometheus. Without a key for callers on this machine that call it by a loopback name.")
            .gives_as(200, "Prometheus' text format, or OpenMetrics if that is asked for.", None, "text/plain"),
        get("/openapi.json", "readOpenApi", Access::Anybody, docs::openapi_document)
            .says("This document.")
            .gives_as(200, "OpenAPI 3.1.", None, JSON)
            .heeds(&["If-None-Match"])
            .gives_as(304, "The caller has it.", None, JSON),
        get("/docs", "readDocs", Access::Anybody, docs::page)
            .says("This document, for people.")
            .gives_as(200, "A page.", None, "text/html")
            .heeds(&["If-None-Match"])
            .gives_as(304, "The caller has it.", None, "text/html"),
        get("/docs/errors/{name}", "readErrorPage", Access::Anybody, docs::error_page)
            .says("What an error means and what to do.")
            .gives_as(200, "A page.", None, "text/html"),
    ]
}

impl Route {
    fn takes_batch(mut self) -> Route {
        let example = r#"[{"type": "invoice.paid", "tenant": "acme", "data": {"invoice": "inv_1"}}, {"type": "invoice.paid", "tenant": "acme", "data": {"invoice": "inv_2"}}]"#;
        let shape = crate::openapi::array_of::<events::NewEventBody>();
        self.body =
            Some(RequestSpec { shape, is_required: true, fields: &[], example, media_types: &[JSON, "application/x-ndjson"] });
        self
    }
}

/// The table as a router.
pub(crate) fn router(table: Vec<Route>, app: &App) -> Router {
    let mut paths: BTreeMap<String, Vec<Arc<Route>>> = BTreeMap::new();
    for route in table {
        paths.entry(route.router_path()).or_default().push(Arc::new(route));
    }
    let mut router = Router::new();
    for (path, routes) in paths {
        let mut methods = MethodRouter::new();
        let mut allowed: Vec<String> = Vec::new();
        for route in routes {
            allowed.push(route.method.to_string());
            if route.method == Method::GET {
                allowed.push("HEAD".to_owned());
            }
            let filter = MethodFilter::try_from(route.method.clone()).expect("one of the common methods");
            let app = app.clone();
            methods = methods.merge(on(filter, move |request: Request| {
                let (app, route) = (app.clone(), Arc::clone(&route));
                async move {
                    framed(&app, request, async |request| {
                        serve_in_time(&app, &route, request).await.unwrap_or_else(IntoResponse::into_response)
                    })
                    .await
                }
            }));
        }
        let refusal = (app.clone(), allowed.join(", "));
        let refuse = async move |request: Request| {
            let (app, allowed) = refusal;
            framed(&app, request, async |_| problem::method_not_allowed(&allowed)).await
        };
        router = router.route(&path, methods.fallback(refuse));
    }
    let app = app.clone();
    let router = router.fallback(async move |request: Request| {
        framed(&app, request, async |request| dashboard::answer(request.method(), request.uri(), request.headers())).await
    });
    // Without a state yet to come every route is ready now, and is not made ready for every request.
    router.with_state(())
}

/// Serves, or says after [`Options::answer_max`](crate::Options::answer_max) that it takes too long. A body that is streamed
/// afterwards takes as long as it takes.
async fn serve_in_time(app: &App, route: &Route, request: Request) -> Result<Response, Problem> {
    let deadline = Arc::new(Deadline::new(app.options.answer_max));
    let is_read = request.method().is_safe();
    if route.waits_for_receiver {
        return serve(app, route, request, deadline).await;
    }
    tokio::select! {
        biased;
        served = serve(app, route, request, Arc::clone(&deadline)) => served,
        () = deadline.passed() => {
            tracing::warn!(operation = route.operation, "a request could not be served in time");
            Err(if is_read {
                Problem::unavailable("The database does not answer. Try again after the time in the Retry-After header.")
            } else {
                Problem::outcome_unknown()
            })
        }
    }
}

/// What every call has to pass, then its handler.
async fn serve(app: &App, route: &Route, request: Request, deadline: Arc<Deadline>) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let caller = match route.access {
        Access::Anybody => Caller::nobody(),
        Access::ServerWideOrLocal(_) if metrics::is_local(&parts) => Caller::nobody(),
        Access::Scope(_) | Access::ServerWide(_) | Access::ServerWideOrLocal(_) => {
            let caller = identify(app, &parts.headers).await;
            let caller = caller.map_err(|problem| app.failures.refuse(address_of(&parts), app.store.now(), problem))?;
            if !route.is_publishing {
                app.calls.take(&caller, app.store.now())?;
            }
            if !parts.method.is_safe() {
                sessions::check_origin(app, &parts.headers)?;
            }
            route.check_access(&caller)?;
            caller
        }
    };
    let query = Query::read(&parts.uri, route.query)?;
    let name = if route.path.contains('{') {
        let places = RawPathParams::from_request_parts(&mut parts, &()).await.map_err(|_| Problem::not_found())?;
        places.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default()
    } else {
        String::new()
    };
    let effective_by = Arc::new(OnceLock::new());
    let call = Call {
        app: app.clone(),
        caller,
        query,
        parts,
        name,
        unread: Mutex::new(Some(body)),
        deadline,
        began_at: app.store.now(),
        effective_by: Arc::clone(&effective_by),
    };
    let mut served = (route.handler)(call).await;
    if let (Ok(response), Some(at)) = (&mut served, effective_by.get()) {
        let at = HeaderValue::from_str(&at.to_rfc3339()).expect("digits and punctuation");
        response.headers_mut().insert(EFFECTIVE_BY, at);
    }
    served
}

/// By when deliveries go by a change that the node that makes them has not confirmed.
const EFFECTIVE_BY: HeaderName = HeaderName::from_static("posthaste-effective-by");
