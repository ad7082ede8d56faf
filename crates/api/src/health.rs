//! `/healthz` and `/readyz`: for load balancers and whoever restarts processes.
//!
//! Alive means that we answer. Ready means that publishing would work: a node that cannot reach its database says why, and
//! one whose clock is too far from the database's does too, and one that only has nothing to deliver, or failing receivers, stays ready. So does one whose deliveries stall: what it takes
//! is kept, others deliver it where there are others, and a metric and the log tell of it.

use std::time::{Duration, Instant};

use axum::response::Response;
use parking_lot::Mutex;
use posthaste_store::Error;
use serde::Serialize;
use utoipa::ToSchema;

use crate::call::{Call, ok};
use crate::problem::Problem;

/// How long a failed publish counts. After that somebody has to try, or nobody would ever find out that it works again.
const FAILURE_COUNTS_FOR: Duration = Duration::from_secs(5);
/// Leases and due times go by the database's clock, and what else runs on a machine whose clock is that far off cannot be relied on.
const SKEW_MAX: Duration = Duration::from_secs(5);
/// A load balancer waits no longer.
const READY_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Alive {
    #[schema(value_type = String)]
    status: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ready {
    #[schema(value_type = String)]
    status: &'static str,
}

/// Whether publishing works, as far as publishing has shown.
#[derive(Debug, Default)]
pub(crate) struct Publishing(Mutex<Option<(Instant, &'static str)>>);

impl Publishing {
    pub(crate) fn worked(&self) {
        let mut failed = self.0.lock();
        if failed.is_some() {
            *failed = None;
        }
    }

    pub(crate) fn failed(&self, error: &Error) {
        *self.0.lock() = Some((Instant::now(), why(error)));
    }

    fn trouble(&self) -> Option<&'static str> {
        self.0.lock().filter(|(at, _)| at.elapsed() < FAILURE_COUNTS_FOR).map(|(_, why)| why)
    }
}

/// In words of our own: a database's may name hosts and users, and this is told to anybody.
fn why(error: &Error) -> &'static str {
    match error {
        Error::Unavailable(_) => "the database is busy or unreachable",
        Error::Unknown => "the database was lost before it answered",
        Error::Overloaded { .. } => "the database cannot keep up",
        Error::Corrupt { .. } => "something that is stored cannot be read",
        Error::Unusable(_) => "the database cannot be used",
        Error::TooNew => "the database was written by a newer version of Posthaste",
    }
}

pub(crate) async fn alive(_call: Call) -> Result<Response, Problem> {
    Ok(ok(&Alive { status: "ok" }))
}

pub(crate) async fn ready(call: Call) -> Result<Response, Problem> {
    if let Some(why) = call.app.publishing.trouble() {
        return Err(Problem::unavailable(format!("The last event could not be stored: {why}")));
    }
    if call.app.store.clock_status().skew.is_some_and(|skew| skew > SKEW_MAX) {
        return Err(Problem::unavailable("the clock of this node and that of the database are more than 5 seconds apart"));
    }
    // A read, and a write of nothing: the way that publishing goes, without leaving anything.
    let asked = async {
        call.app.store.configuration_number().await?;
        call.app.store.keys_used(vec![]).await
    };
    match tokio::time::timeout(READY_WITHIN, asked).await {
        Ok(Ok(())) => Ok(ok(&Ready { status: "ready" })),
        Ok(Err(error)) => Err(Problem::unavailable(why(&error))),
        Err(_) => Err(Problem::unavailable("the database does not answer")),
    }
}
