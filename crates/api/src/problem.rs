//! Everything that can go wrong, as RFC 9457 problem details. Each type has a page in `docs/errors/`.
//!
//! What is told about somebody else's things and about things that do not exist is the same to the byte: nothing here
//! repeats what was asked for.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use posthaste_store::{Error, InvalidEvent};
use serde::Serialize;
use utoipa::ToSchema;

/// What went wrong, for programs (`type`, `errors[].field`) and for people (`title`, `detail`).
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// The page that says what to do.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    kind: Cow<'static, str>,
    #[schema(value_type = String)]
    title: &'static str,
    status: u16,
    #[schema(value_type = String)]
    detail: Cow<'static, str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
    #[serde(skip)]
    retry_after: Option<Duration>,
}

/// One thing at fault.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FieldError {
    field: String,
    message: String,
}

/// What a caller whom we cannot serve now is asked to wait.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem {
            kind: Cow::Borrowed(kind),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            errors: vec![],
            retry_after: None,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).expect("one of ours")
    }

    /// It cannot be read at all: no JSON, not whole, a cursor that is not ours.
    pub(crate) fn unreadable(detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "/docs/errors/unreadable", "The request cannot be read", detail)
    }

    /// Read, and not acceptable because of this field.
    pub(crate) fn invalid(field: impl Into<String>, message: impl Display) -> Problem {
        Problem::not_acceptable(field.into(), message.to_string())
    }

    fn not_acceptable(field: String, message: String) -> Problem {
        let detail = if field.is_empty() { message.clone() } else { format!("{field}: {message}") };
        let errors = vec![FieldError { field, message }];
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Problem { errors, ..Problem::new(status, "/docs/errors/invalid", "The request is not acceptable", detail) }
    }

    /// The same, one level further in.
    #[must_use]
    pub(crate) fn inside(mut self, field: &str) -> Problem {
        for error in &mut self.errors {
            let separator = if error.field.is_empty() || error.field.starts_with('[') { "" } else { "." };
            error.field = format!("{field}{separator}{}", error.field);
        }
        if let [error] = self.errors.as_slice() {
            self.detail = format!("{}: {}", error.field, error.message).into();
        }
        self
    }

    pub(crate) fn unauthorized() -> Problem {
        let detail = "Send a valid API key as `Authorization: Bearer <key>`.";
        Problem::new(StatusCode::UNAUTHORIZED, "/docs/errors/unauthorized", "No valid API key", detail)
    }

    pub(crate) fn forbidden(detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "/docs/errors/forbidden", "This key may not do that", detail)
    }

    pub(crate) fn not_found() -> Problem {
        let detail = "There is nothing here, or not for this key.";
        Problem::new(StatusCode::NOT_FOUND, "/docs/errors/not-found", "Not found", detail)
    }

    pub(crate) fn method_not_allowed() -> Problem {
        let detail = "This address exists, but not for this method; see the Allow header.";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "/docs/errors/method-not-allowed", "Method not allowed", detail)
    }

    pub(crate) fn too_slow() -> Problem {
        let detail = "The body did not arrive in time. Nothing was stored.";
        Problem::new(StatusCode::REQUEST_TIMEOUT, "/docs/errors/too-slow", "The request took too long to arrive", detail)
    }

    pub(crate) fn conflict(detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem::new(StatusCode::CONFLICT, "/docs/errors/conflict", "Not possible as things stand", detail)
    }

    pub(crate) fn stale() -> Problem {
        let detail = "It has been changed since the version in If-Match. Read it again and decide anew.";
        Problem::new(StatusCode::PRECONDITION_FAILED, "/docs/errors/stale", "Changed meanwhile", detail)
    }

    pub(crate) fn too_large(bytes_max: usize) -> Problem {
        let detail = format!("The body is larger than {bytes_max} bytes.");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "/docs/errors/too-large", "The request is too large", detail)
    }

    pub(crate) fn address_too_long(bytes_max: usize) -> Problem {
        let detail = format!("The address with its query is longer than {bytes_max} bytes.");
        Problem::new(StatusCode::URI_TOO_LONG, "/docs/errors/address-too-long", "The address is too long", detail)
    }

    pub(crate) fn headers_too_large(bytes_max: usize) -> Problem {
        let detail = format!("The headers together are larger than {bytes_max} bytes.");
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        Problem::new(status, "/docs/errors/headers-too-large", "The headers are too large", detail)
    }

    pub(crate) fn unsupported_media_type() -> Problem {
        let detail = "Send `Content-Type: application/json` (or `application/x-ndjson` for batches), in UTF-8 and not compressed.";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Problem::new(status, "/docs/errors/unsupported-media-type", "Not JSON", detail)
    }

    pub(crate) fn too_many_requests(wait: Duration) -> Problem {
        let detail = "This key has made too many calls. Try again after the time in the Retry-After header.";
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "/docs/errors/too-many-requests", "Too many calls", detail);
        Problem { retry_after: Some(wait), ..problem }
    }

    /// Of credentials that were not accepted, from one address.
    pub(crate) fn too_many_failures(wait: Duration) -> Problem {
        let detail = "Too many calls from this address had no valid credential. Check the key, and try again after the time in the Retry-After header.";
        Problem { detail: detail.into(), ..Problem::too_many_requests(wait) }
    }

    /// The same, in other words.
    #[must_use]
    pub(crate) fn saying(self, detail: &'static str) -> Problem {
        Problem { detail: detail.into(), ..self }
    }

    /// A limit of the endpoint, not of the key.
    pub(crate) fn no_token(wait: Duration) -> Problem {
        let detail = "The endpoint has no room for a request now. Try again after the time in the Retry-After header.";
        Problem { detail: detail.into(), ..Problem::too_many_requests(wait) }
    }

    /// A bug of ours, told without its details.
    pub(crate) fn internal() -> Problem {
        let detail = "Whether it was done is not known. The log of the server has more, under the x-request-id of this answer.";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "/docs/errors/internal", "Something went wrong here", detail)
    }

    pub(crate) fn unavailable(detail: impl Into<Cow<'static, str>>) -> Problem {
        let problem =
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "/docs/errors/unavailable", "Not able to serve this now", detail);
        Problem { retry_after: Some(RETRY_AFTER_DEFAULT), ..problem }
    }

    /// It may have been done, or may still be.
    pub(crate) fn outcome_unknown() -> Problem {
        Problem::unavailable("Whether it was done is not known. Look before trying again, or use an idempotency key.")
    }

    pub(crate) fn overloaded(wait: Duration) -> Problem {
        let detail = "More is being written than there is room for. Nothing was stored; try again after the time in Retry-After.";
        Problem { retry_after: Some(wait), ..Problem::unavailable(detail) }
    }
}

/// What the store says is never the caller's fault.
/// Parsed, and not acceptable.
impl From<InvalidEvent> for Problem {
    fn from(refused: InvalidEvent) -> Problem {
        Problem::not_acceptable(refused.field, refused.message)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        match error {
            Error::Overloaded { retry_after } => Problem::overloaded(retry_after),
            Error::CommitInDoubt => {
                tracing::warn!(%error, "a request could not be served");
                Problem::outcome_unknown()
            }
            Error::Unavailable(_) | Error::Corrupt { .. } | Error::Unusable(_) | Error::TooNew => {
                tracing::error!(%error, cause, "a request could not be served");
                Problem::unavailable("Nothing was stored. Try again after the time in the Retry-After header.")
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = serde_json::to_vec(&self).expect("plain strings and numbers");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(wait) = self.retry_after {
            // Rounded up: whoever comes back after it should be served.
            let seconds = wait.as_millis().div_ceil(1000).max(1);
            headers.insert(RETRY_AFTER, HeaderValue::from_str(&seconds.to_string()).expect("digits"));
        }
        response
    }
}

/// A 405 with what would be allowed.
pub(crate) fn method_not_allowed(allowed: &str) -> Response {
    let mut response = Problem::method_not_allowed().into_response();
    response.headers_mut().insert(ALLOW, HeaderValue::from_str(allowed).expect("names of methods"));
    response
}

/// One of each type, for the test that keeps them and their pages in step, and for the document.
pub(crate) fn one_of_each() -> Vec<Problem> {
    vec![
        Problem::unreadable("x"),
        Problem::invalid("x", "y"),
        Problem::unauthorized(),
        Problem::forbidden("x"),
        Problem::not_found(),
        Problem::method_not_allowed(),
        Problem::too_slow(),
        Problem::conflict("x"),
        Problem::stale(),
        Problem::too_large(1),
        Problem::address_too_long(1),
        Problem::headers_too_large(1),
        Problem::unsupported_media_type(),
        Problem::too_many_requests(RETRY_AFTER_DEFAULT),
        Problem::internal(),
        Problem::unavailable("x"),
    ]
}

impl Problem {
    /// The same once more, for several items that one cause has struck.
    pub(crate) fn again(&self) -> Problem {
        Problem {
            kind: self.kind.clone(),
            title: self.title,
            status: self.status,
            detail: self.detail.clone(),
            errors: vec![],
            retry_after: self.retry_after,
        }
    }

    /// The name of its page, without the folder.
    #[cfg(test)]
    pub(crate) fn page(&self) -> &str {
        self.kind.trim_start_matches("/docs/errors/")
    }

    pub(crate) fn title(&self) -> &'static str {
        self.title
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_type_has_its_page() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let mut pages: Vec<String> = std::fs::read_dir(&docs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "README.md")
            .collect();
        let problems = one_of_each();
        let mut expected: Vec<String> = problems.iter().map(|problem| format!("{}.md", problem.page())).collect();
        pages.sort();
        expected.sort();
        assert_eq!(pages, expected, "a page for each type, and a type for each page");
        let index = std::fs::read_to_string(docs.join("README.md")).unwrap();
        for problem in problems {
            let file = format!("{}.md", problem.page());
            let page = std::fs::read_to_string(docs.join(&file)).unwrap();
            assert!(page.contains(&format!("**Status:** {}", problem.status)), "{page}");
            assert!(page.starts_with(&format!("# {}", problem.title)), "{page}");
            assert!(index.contains(&format!("({file})")), "{file} is in the index");
        }
    }

    #[test]
    fn a_field_inside_a_policy_is_named_from_the_top() {
        let problem = Problem::invalid("start", "wrong").inside("quiet_hours[2]").inside("delivery_schedule");
        assert_eq!(problem.errors[0].field, "delivery_schedule.quiet_hours[2].start");
        assert_eq!(problem.detail, "delivery_schedule.quiet_hours[2].start: wrong");
        assert_eq!(Problem::invalid("", "x").inside("filter").errors[0].field, "filter");
        assert_eq!(Problem::invalid("[3]", "x").inside("headers").errors[0].field, "headers[3]");
    }
}
