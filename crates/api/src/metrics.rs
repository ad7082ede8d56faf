//! `/metrics`: for Prometheus, in its own format or as `OpenMetrics`.
//!
//! It names tenants and endpoints, so it is not for everybody: callers on this machine need no key, others one with `read` that
//! is not bound to a tenant. A caller that a proxy speaks for is not on this machine, wherever the proxy is.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::Response;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use posthaste_metrics::{Format, Metrics};

use crate::call::Call;
use crate::problem::Problem;

/// Headers by which proxies say whom they speak for.
const SPOKEN_FOR: [&str; 4] = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip"];

pub(crate) async fn page(call: Call) -> Result<Response, Problem> {
    let metrics = call.app.options.metrics.as_ref().ok_or_else(Problem::not_found)?;
    Ok(answer(metrics, &call.parts))
}

/// The page as this request would like it, for whoever serves it elsewhere.
pub fn answer(metrics: &Metrics, request: &Parts) -> Response {
    let format = Format::accepted(request.headers.get(ACCEPT).and_then(|value| value.to_str().ok()));
    let mut response = Response::new(Body::from(metrics.page(format)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether somebody on this machine calls for themselves.
pub fn is_local(request: &Parts) -> bool {
    let peer = request.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical());
    peer.is_some_and(|peer| peer.is_loopback()) && !SPOKEN_FOR.iter().any(|name| request.headers.contains_key(*name))
}
