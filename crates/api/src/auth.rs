//! Who is calling.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::App;
use crate::problem::Problem;

/// The admin key, as its hash: the key itself is not kept.
pub(crate) struct AdminKey([u8; 32]);

impl AdminKey {
    pub(crate) fn new(key: &str) -> AdminKey {
        AdminKey(hash(key))
    }

    fn is(&self, key: &str) -> bool {
        self.0.ct_eq(&hash(key)).into()
    }
}

impl std::fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminKey(…)")
    }
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

pub(crate) async fn require(State(app): State<App>, request: Request, next: Next) -> Response {
    let shown =
        request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("Bearer "));
    match shown {
        Some(key) if app.admin_key.is(key) => next.run(request).await,
        Some(_) | None => Problem::unauthorized().into_response(),
    }
}
