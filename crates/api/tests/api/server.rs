//! One server, and what is asked of it.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use http::{HeaderMap, Request, StatusCode};
use posthaste_api::Options;
use posthaste_core::destination::Policy;
use posthaste_metrics::Metrics;
use posthaste_store::{
    ClockSource, DeliveryQuery, DeliveryRow, Keyring, MasterKey, Options as StoreOptions, Postgres, Sqlite, Store, SystemClock,
};
use serde_json::Value;
use tower::ServiceExt;

pub(crate) const ADMIN: &str = "phk_the-admin-key-of-the-tests";

pub(crate) struct Server {
    /// Removed with it.
    directory: Option<PathBuf>,
    /// Stops when it is dropped.
    database: Option<Box<posthaste_testpg::Server>>,
    pub(crate) router: axum::Router,
    pub(crate) store: Arc<dyn Store>,
}

/// An answer, read whole.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
    pub(crate) json: Value,
}

impl Answer {
    /// The body, if the status is this one.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.bytes));
        self.json
    }

    /// Refused with this status because of this field.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, field: &str) {
        let shown = String::from_utf8_lossy(&self.bytes).into_owned();
        assert_eq!((self.status.as_u16(), &self.json["errors"][0]["field"]), (status, &field.into()), "{shown}");
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub(crate) fn tag(&self) -> String {
        self.headers["etag"].to_str().unwrap().to_owned()
    }
}

/// What most tests allow: http, and this machine.
pub(crate) fn options() -> Options {
    let destinations = Policy { allowed_networks: vec!["127.0.0.0/8".parse().unwrap()], allow_http: true, public_host: None };
    let metrics = Some(Metrics::new(posthaste_metrics::Limits::default(), "test"));
    Options { destinations, calls: None, metrics, ..Options::default() }
}

impl Server {
    pub(crate) fn new(name: &str) -> Server {
        Server::with(name, options())
    }

    pub(crate) fn with(name: &str, options: Options) -> Server {
        let directory = std::env::temp_dir().join(format!("posthaste-api-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let store_options = StoreOptions::new(Keyring::new(MasterKey::generate(), vec![]));
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&directory, store_options).unwrap());
        Server {
            directory: Some(directory),
            database: None,
            router: posthaste_api::router(Arc::clone(&store), options, ADMIN),
            store,
        }
    }

    /// The same on PostgreSQL, in a server of its own.
    pub(crate) async fn on_postgres() -> Server {
        Server::on_postgres_with(options()).await
    }

    pub(crate) async fn on_postgres_with(options: Options) -> Server {
        Server::on_postgres_with_clock(options, Arc::new(SystemClock::default())).await
    }

    pub(crate) async fn on_postgres_with_clock(options: Options, clock: Arc<dyn ClockSource>) -> Server {
        let database = posthaste_testpg::Server::start();
        let store_options = StoreOptions { clock, ..StoreOptions::new(Keyring::new(MasterKey::generate(), vec![])) };
        let store: Arc<dyn Store> = Arc::new(Postgres::connect(&database.url(), store_options).await.unwrap());
        let router = posthaste_api::router(Arc::clone(&store), options, ADMIN);
        Server { directory: None, database: Some(Box::new(database)), router, store }
    }

    /// Of one on PostgreSQL.
    pub(crate) fn database(&self) -> &posthaste_testpg::Server {
        self.database.as_ref().expect("it is on PostgreSQL")
    }

    pub(crate) async fn deliveries(&self) -> Vec<DeliveryRow> {
        self.store.deliveries(DeliveryQuery { limit: 250, ..DeliveryQuery::default() }).await.unwrap().rows
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(ADMIN, "GET", path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.call(ADMIN, "POST", path, body).await
    }

    pub(crate) async fn patch(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.call(ADMIN, "PATCH", path, body).await
    }

    pub(crate) async fn call(&self, key: &str, method: &str, path: &str, body: impl Into<Body>) -> Answer {
        self.call_with(key, method, path, &[], body).await
    }

    pub(crate) async fn call_with(
        &self,
        key: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {key}"));
        if !headers.iter().any(|(name, _)| *name == "content-type") && method != "GET" && method != "DELETE" {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(body.into()).unwrap()).await
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = to_bytes(response.into_body(), 64 * 1024 * 1024).await.unwrap().to_vec();
        let json: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if status.is_client_error() || status.is_server_error() {
            assert_eq!(headers["content-type"], "application/problem+json");
            assert_eq!(json["status"], status.as_u16());
            assert!(json["type"].as_str().unwrap().starts_with("/docs/errors/"));
        }
        Answer { status, headers, bytes, json }
    }

    pub(crate) async fn endpoint(&self, body: &str) -> Value {
        self.post("/v1/endpoints", body.to_owned()).await.expect(201)
    }

    /// A key with these scopes, for one tenant or all.
    pub(crate) async fn key(&self, tenant: Option<&str>, scopes: &[&str]) -> String {
        let body = serde_json::json!({"name": "a test", "tenant": tenant, "scopes": scopes}).to_string();
        text(&self.post("/v1/keys", body).await.expect(201)["key"])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// The path of a resource, by its id.
pub(crate) fn path(resource: &str, of: &Value) -> String {
    format!("/v1/{resource}/{}", text(&of["id"]))
}
