//! `/metrics`: for Prometheus, in its own format or as `OpenMetrics`.
//!
//! It names tenants and endpoints, so it is not for everybody: callers on this machine need no key, others one with `read` that
//! is not bound to a tenant. A caller that a proxy speaks for is not on this machine, wherever the proxy is; nor is a page in a
//! browser here that was led to this address by another name.

use std::net::{IpAddr, SocketAddr};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::Response;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use posthaste_metrics::{Format, Metrics};

use crate::call::Call;
use crate::problem::Problem;

/// Headers by which proxies say whom they speak for, beside those that begin with `x-forwarded`.
const SPOKEN_FOR: [&str; 9] = [
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-host",
    "true-client-ip",
    "cf-connecting-ip",
    "fastly-client-ip",
];

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
    let is_spoken_for =
        request.headers.keys().any(|name| name.as_str().starts_with("x-forwarded") || SPOKEN_FOR.contains(&name.as_str()));
    peer.is_some_and(|peer| peer.is_loopback()) && !is_spoken_for && is_called_locally(request)
}

/// Whether the one host that was called is this machine by a name that no one else can give it.
fn is_called_locally(request: &Parts) -> bool {
    let mut hosts = request.headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next(), request.uri.authority()) {
        (Some(host), None, _) => host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()),
        // As HTTP/2 has it.
        (None, None, Some(authority)) => Some(authority.clone()),
        (_, _, _) => None,
    };
    let Some(host) = host else { return false };
    let name = host.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn is_local_with(peer: &str, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::get("/metrics");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        parts.extensions.insert(ConnectInfo(peer.parse::<SocketAddr>().unwrap()));
        is_local(&parts)
    }

    #[test]
    fn only_a_caller_on_this_machine_that_calls_for_itself_by_a_loopback_name_is_local() {
        for host in ["localhost", "localhost:8080", "LOCALHOST", "127.0.0.1:9", "127.1.2.3", "[::1]:8080", "[::1]"] {
            assert!(is_local_with("127.0.0.1:1", &[("host", host)]), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example", "posthaste", "192.0.2.1", "127.0.0.1.nip.io", "user@evil.example", ""]
        {
            assert!(!is_local_with("127.0.0.1:1", &[("host", host)]), "{host}");
        }
        assert!(is_local_with("[::1]:1", &[("host", "localhost")]));
        assert!(!is_local_with("192.0.2.1:1", &[("host", "localhost")]));
        assert!(!is_local_with("127.0.0.1:1", &[]), "no host at all");
        assert!(!is_local_with("127.0.0.1:1", &[("host", "localhost"), ("host", "localhost")]), "two hosts");
        for name in ["forwarded", "via", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-anything", "x-real-ip"] {
            assert!(!is_local_with("127.0.0.1:1", &[("host", "localhost"), (name, "")]), "{name}");
        }
    }
}
