//! The dashboard at `/` and the addresses of its pages, from the files that were built into the binary.
//!
//! `ui/` has the sources, `cargo xtask ui` builds `ui/dist`, and `build.rs` lists what is there. The pages use the public
//! API alone. Only the addresses in [`PAGES`] lead to the dashboard: everything else stays a problem in JSON.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderValue,
    IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, Method, StatusCode, Uri};
use sha2::{Digest, Sha256};

use crate::portal_page;
use crate::problem::Problem;

/// One file of `ui/dist`, and the same compressed where that makes it smaller.
struct File {
    path: &'static str,
    body: &'static [u8],
    gzip: Option<&'static [u8]>,
    brotli: Option<&'static [u8]>,
}

static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/dashboard_files.rs"));

/// First segments of the dashboard's own addresses; the same as in `ui/src/pages.ts`.
const PAGES: [&str; 10] =
    ["deliveries", "endpoints", "dead-letters", "events", "event-types", "tenants", "replays", "cluster", "keys", "audit"];

/// The web component that frames the portal; the one file below its pages.
const EMBED: &str = "portal/embed.js";
const INDEX: &str = "index.html";
/// Files in this folder have a digest of their content in their names.
const HASHED: &str = "assets/";

/// Scripts and styles come from this server, from files: nothing that is written into a page is run.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      font-src 'self'; manifest-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The files by their paths, each with its tag.
static BY_PATH: LazyLock<HashMap<&'static str, (&'static File, HeaderValue)>> = LazyLock::new(|| {
    let tag = |file: &File| {
        let digest = Sha256::digest(file.body);
        HeaderValue::from_str(&format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest[..12]))).expect("base64 in quotes")
    };
    FILES.iter().map(|file| (file.path, (file, tag(file)))).collect()
});

/// Whether this is a page of the portal, which the operator's own pages may frame.
pub(crate) fn is_portal(uri: &Uri) -> bool {
    uri.path().strip_prefix(portal_page::PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers what no route of the API is for.
pub(crate) fn answer(method: &Method, uri: &Uri, headers: &HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    let is_page = path.is_empty() || PAGES.contains(&path.split('/').next().unwrap_or_default());
    let is_portal_page = is_portal(uri) && path != EMBED;
    let name = if is_page || is_portal_page { INDEX } else { path };
    match BY_PATH.get(name) {
        Some((file, tag)) if method == Method::GET || method == Method::HEAD => serve(file, tag, method, headers),
        Some(_) | None => Problem::not_found().into_response(),
    }
}

fn serve(file: &File, tag: &HeaderValue, method: &Method, asked: &HeaderMap) -> Response {
    let is_known = asked.get_all(IF_NONE_MATCH).iter().any(|value| names(value, tag));
    let (body, encoding) = encoded(file, asked);
    let mut response = if is_known || method == Method::HEAD { Response::default() } else { Response::new(Body::from(body)) };
    let headers = response.headers_mut();
    headers.insert(ETAG, tag.clone());
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    let caching = if file.path.starts_with(HASHED) { "public, max-age=31536000, immutable" } else { "no-cache" };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return response;
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type(file.path)));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    if let Some(encoding) = encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    response
}

/// Whether a value of `If-None-Match` names this tag. Proxies that compress make a tag weak; the content is the same.
pub(crate) fn names(value: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(value), Ok(tag)) = (value.to_str(), tag.to_str()) else { return false };
    value.split(',').map(|one| one.trim().trim_start_matches("W/")).any(|one| one == tag || one == "*")
}

/// The smallest form that the client takes.
fn encoded(file: &File, asked: &HeaderMap) -> (&'static [u8], Option<&'static str>) {
    let forms = [("br", file.brotli), ("gzip", file.gzip)];
    let taken = forms.into_iter().find_map(|(name, body)| accepts(asked, name).then_some((body?, Some(name))));
    taken.unwrap_or((file.body, None))
}

fn accepts(asked: &HeaderMap, encoding: &str) -> bool {
    let values = asked.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| {
        let mut parts = one.split(';').map(str::trim);
        let is_it = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(encoding));
        is_it && !parts.any(|part| part.strip_prefix("q=").is_some_and(|weight| weight.trim_matches(['0', '.']).is_empty()))
    })
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "md" => "text/markdown; charset=utf-8",
        "json" => "application/json",
        "woff2" => "font/woff2",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_with_the_weight_zero_is_not_accepted() {
        let headers = |value: &'static str| HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]);
        for (value, is_accepted) in [
            ("br", true),
            ("gzip, BR;q=0.5", true),
            ("br;q=0", false),
            ("br; q=0.000", false),
            ("br;q=0.01", true),
            ("gzip", false),
            ("brotli", false),
            ("", false),
        ] {
            assert_eq!(accepts(&headers(value), "br"), is_accepted, "{value}");
        }
    }

    #[test]
    fn every_script_and_style_is_compressed() {
        let mut pages = 0;
        for file in FILES {
            let is_text = matches!(file.path.rsplit('.').next(), Some("js" | "css"));
            assert!(!is_text || (file.gzip.is_some() && file.brotli.is_some()), "{}", file.path);
            pages += usize::from(file.path == INDEX);
        }
        assert_eq!(pages, 1);
    }
}
