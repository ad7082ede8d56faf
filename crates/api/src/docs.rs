//! `/openapi.json`, `/docs` and `/docs/errors/…`: what this server can do, for programs and for people.
//!
//! The pages are made from the same table as the router and need nothing from elsewhere: no script, no font, no picture. The
//! one style sheet is allowed by its hash.

use axum::body::{Body, Bytes};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::call::Call;
use crate::dashboard;
use crate::openapi;
use crate::problem::Problem;
use crate::routes::Route;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c;background:#fff}\
code,pre{font:14px/1.45 ui-monospace,monospace}pre{background:#f4f4f2;padding:.8rem;overflow:auto;border-radius:6px}\
h2{margin-top:3rem;border-bottom:1px solid #ddd}h3{margin-top:2rem}table{border-collapse:collapse;width:100%}\
td,th{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #eee}.m{font-weight:700}.s{color:#555}\
@media(prefers-color-scheme:dark){body{color:#e8e8e8;background:#161616}pre{background:#222}td,th{border-color:#333}h2{border-color:#444}.s{color:#aaa}}";

/// The pages on errors, as they lie in the repository.
const ERROR_PAGES: [(&str, &str); 16] = [
    ("address-too-long", include_str!("../../../docs/errors/address-too-long.md")),
    ("conflict", include_str!("../../../docs/errors/conflict.md")),
    ("forbidden", include_str!("../../../docs/errors/forbidden.md")),
    ("headers-too-large", include_str!("../../../docs/errors/headers-too-large.md")),
    ("internal", include_str!("../../../docs/errors/internal.md")),
    ("invalid", include_str!("../../../docs/errors/invalid.md")),
    ("method-not-allowed", include_str!("../../../docs/errors/method-not-allowed.md")),
    ("not-found", include_str!("../../../docs/errors/not-found.md")),
    ("stale", include_str!("../../../docs/errors/stale.md")),
    ("too-large", include_str!("../../../docs/errors/too-large.md")),
    ("too-many-requests", include_str!("../../../docs/errors/too-many-requests.md")),
    ("too-slow", include_str!("../../../docs/errors/too-slow.md")),
    ("unauthorized", include_str!("../../../docs/errors/unauthorized.md")),
    ("unavailable", include_str!("../../../docs/errors/unavailable.md")),
    ("unreadable", include_str!("../../../docs/errors/unreadable.md")),
    ("unsupported-media-type", include_str!("../../../docs/errors/unsupported-media-type.md")),
];

/// What is served, made once.
#[derive(Debug)]
pub(crate) struct Document {
    openapi: Static,
    page: Static,
    policy: HeaderValue,
}

/// A text that is the same for everybody, made once: answers share its bytes, and a client that has it is told so.
#[derive(Debug)]
struct Static {
    bytes: Bytes,
    tag: HeaderValue,
}

impl Static {
    fn new(text: String) -> Static {
        let digest = Sha256::digest(text.as_bytes());
        let tag = HeaderValue::from_str(&format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest[..12]))).expect("base64 in quotes");
        Static { bytes: Bytes::from(text), tag }
    }

    fn answer(&self, asked: &HeaderMap, media_type: &'static str) -> Response {
        let is_known = asked.get_all(IF_NONE_MATCH).iter().any(|value| dashboard::names(value, &self.tag));
        let mut response = Response::new(if is_known { Body::empty() } else { Body::from(self.bytes.clone()) });
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.insert(ETAG, self.tag.clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        response
    }
}

impl Document {
    pub(crate) fn new(table: &[Route]) -> Document {
        let document = openapi::document(table);
        let hash = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
        let policy = format!("default-src 'none'; style-src 'sha256-{hash}'; frame-ancestors 'none'; base-uri 'none'");
        Document {
            openapi: Static::new(serde_json::to_string_pretty(&document).expect("JSON")),
            page: Static::new(page_of(table, &document)),
            policy: HeaderValue::from_str(&policy).expect("visible ASCII"),
        }
    }

    pub(crate) fn openapi_text(&self) -> &str {
        std::str::from_utf8(&self.openapi.bytes).expect("made from a text")
    }
}

pub(crate) async fn openapi_document(call: Call) -> Result<Response, Problem> {
    Ok(call.app.document.openapi.answer(&call.parts.headers, "application/json"))
}

pub(crate) async fn page(call: Call) -> Result<Response, Problem> {
    let mut response = call.app.document.page.answer(&call.parts.headers, HTML);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, call.app.document.policy.clone());
    Ok(response)
}

pub(crate) async fn error_page(call: Call) -> Result<Response, Problem> {
    let (_, text) = ERROR_PAGES.iter().find(|(name, _)| *name == call.name).ok_or_else(Problem::not_found)?;
    let title = text.lines().next().unwrap_or_default().trim_start_matches("# ");
    let paragraph = |paragraph: &str| match paragraph.strip_prefix("# ") {
        Some(title) => format!("<h1>{}</h1>", inline(title)),
        None => format!("<p>{}</p>", inline(paragraph)),
    };
    let body: String = text.split("\n\n").map(paragraph).collect();
    Ok(html(&call, wrapped(title, &body)))
}

const HTML: &str = "text/html; charset=utf-8";

fn html(call: &Call, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(HTML));
    headers.insert(CONTENT_SECURITY_POLICY, call.app.document.policy.clone());
    response
}

fn wrapped(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{}</title><style>{STYLE}</style></head><body>{body}</body></html>",
        escaped(title)
    )
}

fn page_of(table: &[Route], document: &Value) -> String {
    let mut body = vec![String::from(
        "<h1>Posthaste</h1><p>Webhook delivery that never loses an event. Programs read <a href=\"/openapi.json\">openapi.json</a>; \
         every error has a page of its own, which its <code>type</code> leads to. Send your key as <code>Authorization: Bearer …</code>.</p>",
    )];
    let mut last_tag = "";
    for route in table {
        let tag = openapi::tag(route.path);
        if tag != last_tag {
            body.push(format!("<h2 id=\"{tag}\">{tag}</h2>"));
            last_tag = tag;
        }
        let operation = &document["paths"][route.path][route.method.as_str().to_ascii_lowercase()];
        body.push(format!(
            "<h3 id=\"{}\"><span class=\"m\">{}</span> <code>{}</code></h3><p>{}</p>",
            route.operation,
            route.method,
            escaped(route.path),
            inline(route.summary)
        ));
        if let Some(scope) = operation["x-scope"].as_str() {
            body.push(format!("<p class=\"s\">Needs the scope <code>{scope}</code>.</p>"));
        }
        let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !parameters.is_empty() {
            body.push("<table><tr><th>parameter</th><th>in</th><th></th></tr>".to_owned());
            for parameter in parameters {
                let text = |field: &str| inline(parameter[field].as_str().unwrap_or_default());
                body.push(format!(
                    "<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>",
                    text("name"),
                    text("in"),
                    text("description")
                ));
            }
            body.push("</table>".to_owned());
        }
        if let Some(takes) = &route.body {
            if takes.example.is_empty() {
                body.push(format!(
                    "<p>Takes {}.</p>",
                    shape_link(&operation["requestBody"]["content"]["application/json"]["schema"])
                ));
            } else {
                let example: Value = serde_json::from_str(takes.example).expect("our own example is JSON");
                let pretty = serde_json::to_string_pretty(&example).expect("JSON");
                let link = shape_link(&operation["requestBody"]["content"]["application/json"]["schema"]);
                body.push(format!("<p>Takes {link}:</p><pre>{}</pre>", escaped(&pretty)));
            }
        }
        for gives in &route.answers {
            let link = shape_link(&operation["responses"][gives.status.to_string()]["content"][gives.media_type]["schema"]);
            body.push(format!("<p><code>{}</code> {} {link}</p>", gives.status, inline(gives.about)));
        }
    }
    body.push("<h2 id=\"shapes\">shapes</h2>".to_owned());
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        let pretty = serde_json::to_string_pretty(schema).expect("JSON");
        body.push(format!("<h3 id=\"shape-{name}\">{name}</h3><pre>{}</pre>", escaped(&pretty)));
    }
    wrapped("Posthaste API", &body.concat())
}

/// The name of a shape, leading to it; of a list, that of what is in it.
fn shape_link(schema: &Value) -> String {
    let reference = ["/$ref", "/allOf/0/$ref", "/items/$ref", "/properties/data/items/$ref"]
        .iter()
        .find_map(|path| schema.pointer(path)?.as_str());
    match reference.and_then(|reference| reference.rsplit('/').next()) {
        Some(name) => format!("<a href=\"#shape-{name}\">{name}</a>"),
        None => String::new(),
    }
}

/// Backticks and double asterisks, as in our own documents.
fn inline(text: &str) -> String {
    let is_marked = |number: usize| number % 2 == 1;
    let strong = |(number, piece): (usize, &str)| {
        if is_marked(number) { format!("<strong>{piece}</strong>") } else { piece.to_owned() }
    };
    let code = |(number, piece): (usize, &str)| {
        if is_marked(number) { format!("<code>{piece}</code>") } else { piece.split("**").enumerate().map(strong).collect() }
    };
    escaped(text).split('`').enumerate().map(code).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_page_is_served() {
        let mut served: Vec<&str> = ERROR_PAGES.iter().map(|(name, _)| *name).collect();
        let problems = crate::problem::one_of_each();
        let mut expected: Vec<&str> = problems.iter().map(Problem::page).collect();
        served.sort_unstable();
        expected.sort_unstable();
        assert_eq!(served, expected);
    }

    #[test]
    fn nothing_that_is_written_becomes_markup() {
        assert_eq!(inline("a `<b>` **c** & \"d\""), "a <code>&lt;b&gt;</code> <strong>c</strong> &amp; &quot;d&quot;");
    }
}
