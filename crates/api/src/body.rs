//! A JSON request body: read once, refused precisely.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use http::StatusCode;
use http::header::CONTENT_TYPE;
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
        serde_json::from_str(text).map(Json).map_err(|error| match error.classify() {
            Category::Data => Problem::invalid("", error),
            Category::Syntax | Category::Eof | Category::Io => Problem::unreadable(error.to_string()),
        })
    }
}
