//! Everything that can go wrong, as RFC 9457 problem details. Each type has a page in `docs/errors/`.

use std::fmt::Display;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use posthaste_store::Error;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
}

#[derive(Debug, Serialize)]
pub(crate) struct FieldError {
    field: String,
    message: String,
}

impl Problem {
    fn new(status: StatusCode, name: &str, title: &'static str, detail: impl Into<String>) -> Problem {
        Problem { kind: format!("/docs/errors/{name}"), title, status: status.as_u16(), detail: detail.into(), errors: vec![] }
    }

    pub(crate) fn unreadable(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "unreadable", "The request cannot be read", detail)
    }

    /// Read, and not acceptable because of this field.
    pub(crate) fn invalid(field: impl Into<String>, message: impl Display) -> Problem {
        let (field, message) = (field.into(), message.to_string());
        let detail = if field.is_empty() { message.clone() } else { format!("{field}: {message}") };
        let errors = vec![FieldError { field, message }];
        Problem { errors, ..Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", "The request is not acceptable", detail) }
    }

    pub(crate) fn unauthorized() -> Problem {
        let detail = "Send a valid API key as `Authorization: Bearer <key>`.";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "No valid API key", detail)
    }

    pub(crate) fn not_found() -> Problem {
        let detail = "There is nothing here, or not for this key.";
        Problem::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    pub(crate) fn method_not_allowed() -> Problem {
        let detail = "This address exists, but not for this method; see the Allow header.";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "Method not allowed", detail)
    }

    pub(crate) fn too_large(bytes_max: usize) -> Problem {
        let detail = format!("The body is larger than {bytes_max} bytes.");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The request is too large", detail)
    }

    pub(crate) fn unsupported_media_type() -> Problem {
        let detail = "Send `Content-Type: application/json`, in UTF-8 and not compressed.";
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "Not JSON", detail)
    }

    fn unavailable() -> Problem {
        let detail = "Nothing was stored. Try again after the time in the Retry-After header.";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The database is busy or unreachable", detail)
    }
}

/// What the store says is never the caller's fault.
impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::error!(%error, cause, "a request could not be served");
        Problem::unavailable()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).expect("one of ours");
        let body = serde_json::to_vec(&self).expect("plain strings and numbers");
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_type_has_its_page() {
        let problems = [
            Problem::unreadable("x"),
            Problem::invalid("x", "y"),
            Problem::unauthorized(),
            Problem::not_found(),
            Problem::method_not_allowed(),
            Problem::too_large(1),
            Problem::unsupported_media_type(),
            Problem::unavailable(),
        ];
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let mut pages: Vec<String> = std::fs::read_dir(&docs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "README.md")
            .collect();
        let mut expected: Vec<String> = problems.iter().map(|problem| problem.kind.replace("/docs/errors/", "") + ".md").collect();
        pages.sort();
        expected.sort();
        assert_eq!(pages, expected, "a page for each type, and a type for each page");
        for problem in problems {
            let page = std::fs::read_to_string(docs.join(problem.kind.replace("/docs/errors/", "") + ".md")).unwrap();
            assert!(page.contains(&format!("**Status:** {}", problem.status)), "{page}");
        }
    }
}
