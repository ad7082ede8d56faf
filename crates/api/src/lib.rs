//! HTTP and JSON: one file per resource.
//!
//! Only this crate shapes our public JSON. What a caller may see follows from its credential alone; today there is
//! one, the admin key.

mod auth;
mod body;
mod deliveries;
mod endpoints;
mod events;
mod problem;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use posthaste_store::Store;

use auth::AdminKey;
use problem::Problem;

/// One event with its envelope, or one endpoint with all its policies, fits easily.
const BODY_BYTES_MAX: usize = 1024 * 1024;

#[derive(Clone, Debug)]
struct App {
    store: Arc<dyn Store>,
    admin_key: Arc<AdminKey>,
}

/// Everything that is served. `admin_key` is the key that callers have to show.
pub fn router(store: Arc<dyn Store>, admin_key: &str) -> Router {
    let app = App { store, admin_key: Arc::new(AdminKey::new(admin_key)) };
    Router::new()
        .route("/v1/endpoints", post(endpoints::create))
        .route("/v1/endpoints/{id}", get(endpoints::read))
        .route("/v1/events", post(events::publish))
        .route("/v1/deliveries/{id}", get(deliveries::read))
        .route("/v1/deliveries/{id}/attempts", get(deliveries::attempts))
        .layer(from_fn_with_state(app.clone(), auth::require))
        .route("/healthz", get(async || "ok"))
        .fallback(async || Problem::not_found())
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}
