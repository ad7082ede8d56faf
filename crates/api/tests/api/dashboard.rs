//! The dashboard as it is served: addresses, caching, compression, and what the pages may do.

use axum::body::Body;
use http::Request;

use crate::server::{Answer, Server};

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.send(request.body(Body::empty()).unwrap()).await
}

fn assets(page: &Answer) -> Vec<String> {
    let text = page.text();
    let found = text.split('"').filter(|piece| piece.starts_with("/assets/")).map(str::to_owned);
    found.collect()
}

#[tokio::test]
async fn the_dashboard_is_served_without_a_key_at_its_addresses_and_nowhere_else() {
    let server = Server::new("dashboard");
    let page = get(&server, "/", &[]).await;
    assert_eq!((page.status.as_u16(), page.headers["content-type"].to_str().unwrap()), (200, "text/html; charset=utf-8"));
    for path in ["/deliveries", "/deliveries/dlv_1?tab=raw", "/endpoints", "/dead-letters", "/audit"] {
        assert_eq!(get(&server, path, &[]).await.bytes, page.bytes, "{path}");
    }
    for path in ["/v1/nothing", "/v1", "/nothing", "/index", "/assets/nothing.js", "/..%2fCargo.toml", "//deliveriesx"] {
        let answer = get(&server, path, &[]).await;
        assert_eq!(answer.headers["content-type"], "application/problem+json", "{path}");
        assert_eq!(answer.json["status"], 404, "{path}");
    }
    let posted = server.send(Request::post("/").body(Body::empty()).unwrap()).await;
    assert_eq!(posted.status, 404);
}

#[tokio::test]
async fn pages_run_only_what_was_built_into_the_server() {
    let server = Server::new("dashboard-policy");
    let page = get(&server, "/", &[]).await;
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.headers["x-frame-options"], "DENY");
    let text = page.text();
    for inline in ["<style", "style=", "onload", "javascript:", "<script>"] {
        assert!(!text.contains(inline), "{inline}");
    }
}

#[tokio::test]
async fn assets_are_compressed_cached_for_good_and_small() {
    let server = Server::new("dashboard-assets");
    let page = get(&server, "/", &[]).await;
    assert_eq!(page.headers["cache-control"], "no-cache");
    let again = get(&server, "/", &[("if-none-match", page.headers["etag"].to_str().unwrap())]).await;
    assert_eq!((again.status.as_u16(), again.bytes.len()), (304, 0));
    let assets = assets(&page);
    assert!(assets.len() >= 2, "{assets:?}");
    let mut first_load = 0;
    for asset in assets {
        let plain = get(&server, &asset, &[]).await;
        assert!(plain.headers.get("content-encoding").is_none());
        assert_eq!(plain.headers["cache-control"], "public, max-age=31536000, immutable");
        let gzip = get(&server, &asset, &[("accept-encoding", "gzip, deflate")]).await;
        assert_eq!(gzip.headers["content-encoding"], "gzip");
        assert_eq!(gzip.headers["vary"], "accept-encoding");
        let brotli = get(&server, &asset, &[("accept-encoding", "gzip, br")]).await;
        assert_eq!(brotli.headers["content-encoding"], "br");
        assert_eq!(plain.headers["content-type"], brotli.headers["content-type"]);
        assert!(brotli.bytes.len() < gzip.bytes.len() && gzip.bytes.len() < plain.bytes.len());
        first_load += gzip.bytes.len();
        let head = server.send(Request::head(&asset).body(Body::empty()).unwrap()).await;
        assert_eq!(head.headers["content-length"].to_str().unwrap(), plain.bytes.len().to_string());
    }
    assert!(first_load < 250_000, "{first_load} bytes");
}
