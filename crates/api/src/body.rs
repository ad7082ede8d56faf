//! A JSON request body: read once, refused precisely.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::BODY_BYTES_MAX;
use crate::problem::Problem;

/// A body that is JSON of this shape. Unknown fields are refused by the type itself.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Json<T>, Problem> {
        let media_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = media_type.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            return Err(Problem::unsupported_media_type());
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection: BytesRejection| {
            if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                Problem::too_large(BODY_BYTES_MAX)
            } else {
                Problem::unreadable("the body did not arrive whole")
            }
        })?;
        let text = std::str::from_utf8(&bytes).map_err(|_| Problem::unreadable("the body is not UTF-8"))?;
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let path = error.path().to_string();
            (path, error.into_inner())
        });
        let value = read.and_then(|value| reader.end().map(|()| value).map_err(|error| (String::new(), error)));
        // A list of values in the right order would be read as an object, too.
        let is_object = text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with('{');
        match value {
            Ok(value) if is_object => Ok(Json(value)),
            Ok(_) => Err(Problem::invalid("", "expected a JSON object")),
            Err((path, error)) => Err(match error.classify() {
                Category::Data => Problem::invalid(field_at_fault(&path, &error.to_string()), error),
                Category::Syntax | Category::Eof | Category::Io => Problem::unreadable(error.to_string()),
            }),
        }
    }
}

/// Where reading stopped; for a field that is missing or unknown the reader names it only in its words.
fn field_at_fault(path: &str, message: &str) -> String {
    let named = ["missing field `", "unknown field `", "duplicate field `"]
        .iter()
        .find_map(|beginning| message.strip_prefix(beginning)?.split('`').next());
    named.unwrap_or(if path == "." { "" } else { path }).to_owned()
}

/// The id in an address. What cannot be one is not found.
pub(crate) struct Id(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Id, Problem> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| Problem::not_found())?;
        Ok(Id(id))
    }
}
