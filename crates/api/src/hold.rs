//! `/v1/hold`: whether all deliveries are held, and their release.

use std::time::{Duration, Instant};

use axum::response::Response;
use parking_lot::Mutex;
use posthaste_core::time::Timestamp;
use posthaste_store::{Hold, Store};
use serde::Serialize;
use utoipa::ToSchema;

use crate::call::{Call, ok};
use crate::problem::Problem;

/// What `last_error` of a held delivery says.
pub(crate) const HELD: &str = "the server holds all deliveries until an operator releases them (posthaste hold release)";
/// How old a remembered answer of the store may be: the count reads the backlog.
const ASK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Hold)]
pub(crate) struct HoldView {
    is_held: bool,
    #[schema(format = DateTime)]
    since: Option<String>,
    /// Deliveries that will be sent after the release; counted up to a million.
    waiting: u64,
    /// Those of them that were tried before. In a restored database they may have arrived after the backup.
    tried: u64,
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    Ok(ok(&view(call.app.store.hold().await?)))
}

/// Every node starts to deliver within a second. May be repeated.
pub(crate) async fn release(call: Call) -> Result<Response, Problem> {
    let audit = call.audit("hold.release", &"server", None);
    call.app.store.release_hold(audit).await?;
    *call.app.hold.0.lock() = None;
    Ok(ok(&view(None)))
}

fn view(hold: Option<Hold>) -> HoldView {
    match hold {
        None => HoldView { is_held: false, since: None, waiting: 0, tried: 0 },
        Some(Hold { since, waiting, tried }) => {
            HoldView { is_held: true, since: Some(Timestamp::to_rfc3339(since)), waiting, tried }
        }
    }
}

/// What the store said last, for those who ask often.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<Option<(Instant, Option<Hold>)>>);

impl Remembered {
    pub(crate) async fn look(&self, store: &dyn Store) -> Result<Option<Hold>, posthaste_store::Error> {
        let known = *self.0.lock();
        if let Some((at, hold)) = known
            && at.elapsed() < ASK_EVERY
        {
            return Ok(hold);
        }
        let hold = store.hold().await?;
        *self.0.lock() = Some((Instant::now(), hold));
        Ok(hold)
    }
}
