//! HTTP and JSON: one file per resource.
//!
//! Only this crate shapes our public JSON. What a caller may see follows from its credential alone: users, the command
//! line, the dashboard and the portal all come through the same table of routes (`routes.rs`).

mod attention;
mod audit;
mod backlog;
mod batch;
mod body;
mod call;
mod cluster;
mod config_cache;
mod credentials;
mod cursor;
mod dashboard;
mod dead_letters;
mod deadline;
mod deliveries;
mod docs;
mod endpoint_verbs;
mod endpoints;
mod event_types;
mod events;
mod failures;
mod filters;
#[cfg(test)]
mod fuzz;
mod health;
mod hold;
mod keys;
mod lane_status;
mod metrics;
mod openapi;
mod patch;
mod policies;
mod portal;
mod portal_page;
mod problem;
mod query;
mod replays;
mod routes;
mod sessions;
mod statistics;
mod statuses;
mod stream;
mod streams;
mod tenants;
mod traced;

use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use posthaste_core::bucket::RateLimit;
use posthaste_core::destination;
use posthaste_core::endpoint::Policies;
use posthaste_core::event::TypePatterns;
use posthaste_core::id::TenantId;
use posthaste_core::tenant::TenantDefaults;
use posthaste_core::timeout::TimeoutRules;
use posthaste_metrics::Metrics;
use posthaste_store::Store;
use posthaste_traces::Traces;

use body::Budget;
use config_cache::ConfigCache;
use credentials::{AdminKey, Calls, Uses};
use cursor::Cursors;
use failures::Failures;
pub use health::{Readiness, alive_answer};
pub use metrics::{answer as metrics_answer, is_local};
use problem::Problem;

/// What the operator has set.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server's own address for people, in links that we make. Never taken from a request.
    pub public_url: String,
    /// What applies where neither tenant nor endpoint says anything; the same that the store was given.
    pub policies: Policies,
    /// What applies to a tenant that does not set its own.
    pub tenants: TenantDefaults,
    pub timeout_rules: TimeoutRules,
    /// The operator's own applications: their pages may frame the portal, have its logo, and call the API with portal tokens.
    pub portal_origins: Vec<String>,
    /// Where deliveries may go, as far as that can be known when an endpoint is made.
    pub destinations: destination::Policy,
    /// A tenant has to be made before it can be used.
    pub strict_tenants: bool,
    /// The tenant of notifications: no one publishes into it, and only operators make endpoints there.
    pub reserved_tenant: Option<TenantId>,
    /// One event with its envelope, or one endpoint with all its policies, fits easily.
    pub body_bytes_max: usize,
    pub batch_bytes_max: usize,
    pub batch_events_max: usize,
    /// What all requests together may keep of bodies that are being read.
    pub bodies_bytes_max: usize,
    /// How long a body may take to arrive.
    pub body_patience: Duration,
    /// After this time a request is answered with 503 although the store has not answered. Without the time in which its body
    /// arrives, and not for what waits for a receiver.
    pub answer_max: Duration,
    /// Enough for any customer; a loop that makes endpoints ends here. A tenant's own limit stands over it.
    pub endpoints_per_tenant_max: u32,
    /// Patterns in each list of event types of an endpoint; at most `TypePatterns::COUNT_MAX`.
    pub types_per_endpoint_max: usize,
    /// Calls of one key, without publishing. `None`: as many as it likes.
    pub calls: Option<RateLimit>,
    /// How often it is written down when keys were last used. Precise enough to find keys that nobody uses.
    pub key_uses_written_every: Duration,
    pub replays_per_minute_max: u32,
    /// Connections to `/v1/stream`; each asks the store once a second.
    pub streams_max: usize,
    /// Seals cursors, and names the first key in sessions. Has to be the same on every node and after a restart, or those made before stop working.
    pub sealing_key: SealingKey,
    /// Counts what comes in, and is shown at `/metrics`.
    pub metrics: Option<Metrics>,
    /// Looks at some of the events that come in.
    pub traces: Option<Traces>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            public_url: "http://127.0.0.1:8080".to_owned(),
            policies: Policies::default(),
            tenants: TenantDefaults::default(),
            timeout_rules: TimeoutRules::default(),
            portal_origins: vec![],
            destinations: destination::Policy::default(),
            strict_tenants: false,
            reserved_tenant: None,
            body_bytes_max: 1024 * 1024,
            batch_bytes_max: 16 * 1024 * 1024,
            batch_events_max: 1000,
            bodies_bytes_max: 64 * 1024 * 1024,
            body_patience: Duration::from_secs(30),
            // Clients hear within five seconds that the database is away.
            answer_max: Duration::from_millis(4_500),
            endpoints_per_tenant_max: 1000,
            types_per_endpoint_max: TypePatterns::COUNT_MAX,
            calls: Some(RateLimit::new(6000, 1000).expect("within its bounds")),
            key_uses_written_every: Duration::from_secs(10),
            replays_per_minute_max: 600,
            streams_max: 64,
            sealing_key: SealingKey(rand::random()),
            metrics: None,
            traces: None,
        }
    }
}

/// What seals what callers keep for us; the same on every node.
#[derive(Clone)]
pub struct SealingKey(pub [u8; 32]);

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealingKey(…)")
    }
}

/// What handlers share.
#[derive(Clone, Debug)]
struct App(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    options: Options,
    admin_key: AdminKey,
    known: Arc<ConfigCache>,
    calls: Calls,
    cursors: Cursors,
    failures: Failures,
    uses: Uses,
    budget: Budget,
    readiness: Readiness,
    hold: hold::Remembered,
    backlogs: backlog::BacklogCache,
    attention: attention::Found,
    streams: Arc<streams::Streams>,
    /// Requests that met a bug of ours.
    panics: Arc<AtomicU64>,
    /// The OpenAPI document and its page, made once.
    document: docs::Document,
    uses_written: parking_lot::Mutex<std::time::Instant>,
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// Everything that is served. `admin_key` is the operator's first key; further ones are made with it.
pub fn router(store: Arc<dyn Store>, options: Options, admin_key: &str) -> Router {
    let table = routes::table();
    let panics = Arc::new(AtomicU64::new(0));
    if let Some(metrics) = &options.metrics {
        let panics = Arc::clone(&panics);
        metrics.gather(move |page| {
            let help = "Requests that were answered with 500 because of a bug.";
            page.counter("posthaste_request_panics_total", help, panics.load(Ordering::Relaxed));
        });
    }
    let app = App(Arc::new(Shared {
        admin_key: AdminKey::new(admin_key),
        known: Arc::new(ConfigCache::new(Arc::clone(&store))),
        calls: Calls::new(options.calls),
        failures: Failures::new(options.metrics.as_ref()),
        cursors: Cursors::new(&options.sealing_key),
        uses: Uses::default(),
        budget: Budget::new(options.bodies_bytes_max),
        readiness: Readiness::new(Arc::clone(&store), options.metrics.clone(), false),
        hold: hold::Remembered::default(),
        backlogs: backlog::BacklogCache::default(),
        attention: attention::Found::default(),
        streams: streams::Streams::new(options.streams_max),
        panics,
        document: docs::Document::new(&table),
        uses_written: parking_lot::Mutex::new(std::time::Instant::now()),
        options,
        store,
    }));
    routes::router(table, &app)
}

/// The OpenAPI document, as the server serves it.
pub fn openapi() -> String {
    docs::Document::new(&routes::table()).openapi_text().to_owned()
}

/// One line of the table of routes, for tests that have to cover all of them.
#[derive(Clone, Debug)]
pub struct RouteShown {
    pub method: http::Method,
    pub path: &'static str,
    pub operation: &'static str,
    pub needs_key: bool,
    pub is_server_wide: bool,
    pub takes_body: bool,
    /// A body that works on an empty server, or nothing.
    pub example: &'static str,
    pub query: Vec<&'static str>,
}

/// The table that the router is made from.
pub fn routes() -> Vec<RouteShown> {
    let shown = |route: &routes::Route| RouteShown {
        method: route.method.clone(),
        path: route.path,
        operation: route.operation,
        needs_key: route.access != routes::Access::Anybody,
        is_server_wide: matches!(route.access, routes::Access::ServerWide(_) | routes::Access::ServerWideOrLocal(_)),
        takes_body: route.body.is_some(),
        example: route.body.as_ref().map_or("", |body| body.example),
        query: route.query.iter().map(|parameter| parameter.name).collect(),
    };
    routes::table().iter().map(shown).collect()
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const ADDRESS_BYTES_MAX: usize = 8 * 1024;
const HEADERS_BYTES_MAX: usize = 32 * 1024;

/// What surrounds every answer: bounds on what is not the body, an id, and what browsers are to be told.
async fn framed(app: &App, request: Request, answer: impl AsyncFnOnce(Request) -> Response) -> Response {
    let address_bytes = request.uri().path_and_query().map_or(0, |address| address.as_str().len());
    let headers_bytes: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let is_api = request.uri().path().starts_with("/v1/");
    let is_portal = dashboard::is_portal(request.uri());
    let reader = portal_page::reader(app, request.uri().path(), request.headers());
    let preflight = portal_page::preflight(app, request.method(), request.uri().path(), request.headers());
    let id = HeaderValue::try_from(format!("req_{:032x}", rand::random::<u128>())).expect("digits and letters");
    let mut response = if address_bytes > ADDRESS_BYTES_MAX {
        Problem::address_too_long(ADDRESS_BYTES_MAX).into_response()
    } else if headers_bytes > HEADERS_BYTES_MAX {
        Problem::headers_too_large(HEADERS_BYTES_MAX).into_response()
    } else if let Some(preflight) = preflight {
        preflight
    } else {
        let method = request.method().clone();
        let response = unless_it_panics(answer(request), &app.panics, &id).await;
        tracing::debug!(request = id.to_str().unwrap_or_default(), %method, status = response.status().as_u16(), "answered");
        response
    };
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    if !headers.contains_key(CONTENT_SECURITY_POLICY) {
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    }
    if is_portal {
        portal_page::frame_page(app, &mut response);
    }
    if let Some(origin) = reader {
        portal_page::let_read(&mut response, origin);
    }
    if is_api {
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    write_uses(app);
    response
}

/// What panics is one request's trouble. The place and the message are in the log, by the hook that logs every panic.
async fn unless_it_panics(answering: impl Future<Output = Response>, panics: &AtomicU64, id: &HeaderValue) -> Response {
    let answered = AssertUnwindSafe(answering).catch_unwind().await;
    answered.unwrap_or_else(|_| {
        panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!(request = id.to_str().unwrap_or_default(), "a request met a bug of ours and was answered with 500");
        Problem::internal().into_response()
    })
}

/// Writes down now and then when keys were last used. Beside the request, which does not wait for it.
fn write_uses(app: &App) {
    {
        let Some(mut written) = app.uses_written.try_lock() else { return };
        if written.elapsed() < app.options.key_uses_written_every {
            return;
        }
        *written = std::time::Instant::now();
    }
    let used = app.uses.take();
    if used.is_empty() {
        return;
    }
    let store = Arc::clone(&app.store);
    tokio::spawn(async move {
        if let Err(error) = store.keys_used(used).await {
            tracing::warn!(%error, "when keys were last used could not be written down");
        }
    });
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[tokio::test]
    async fn a_request_that_panics_is_answered_with_500_and_counted() {
        let (panics, id) = (AtomicU64::new(0), HeaderValue::from_static("req_1"));
        let fine = unless_it_panics(async { Problem::not_found().into_response() }, &panics, &id).await;
        assert_eq!((fine.status(), panics.load(Ordering::Relaxed)), (StatusCode::NOT_FOUND, 0));
        let bug = unless_it_panics(async { panic!("a bug") }, &panics, &id).await;
        assert_eq!((bug.status(), panics.load(Ordering::Relaxed)), (StatusCode::INTERNAL_SERVER_ERROR, 1));
    }
}
