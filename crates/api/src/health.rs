//! `/healthz` and `/readyz`: for load balancers and whoever restarts processes.
//!
//! Alive means that we answer. Ready means that publishing would work, that sealed values can be read, and that the clock is close
//! to the database's; a node that is not ready says why. One whose deliveries stall stays ready, because what it takes is kept and
//! others deliver it where there are others; the body says so. A node that does nothing but deliver is not ready then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use posthaste_metrics::Metrics;
use posthaste_store::{Error, SealedValues, Store};
use serde::Serialize;
use utoipa::ToSchema;

use crate::call::{Call, ok};
use crate::problem::Problem;

/// How long a failed publish counts. After that somebody has to try, or nobody would ever find out that it works again.
const FAILURE_COUNTS_FOR: Duration = Duration::from_secs(5);
/// Leases and due times go by the database's clock, and what else runs on a machine whose clock is that far off cannot be relied on.
const SKEW_MAX: Duration = Duration::from_secs(5);
/// Sealed values are counted no more often: that reads all endpoints.
const SEALED_READ_EVERY: Duration = Duration::from_secs(5);
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
    /// What an operator should look at although this node may take traffic.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
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

    fn stall(&self) -> Option<&'static str> {
        self.0.lock().filter(|(at, _)| at.elapsed() < FAILURE_COUNTS_FOR).map(|(_, why)| why)
    }
}

/// In words of our own: a database's may name hosts and users, and this is told to anybody.
fn why(error: &Error) -> &'static str {
    match error {
        Error::Unavailable(_) => "the database is busy or unreachable",
        Error::CommitInDoubt => "the database was lost before it answered",
        Error::Overloaded { .. } => "the database cannot keep up",
        Error::Corrupt { .. } => "something that is stored cannot be read",
        Error::Unusable(_) => "the database cannot be used",
        Error::TooNew => "the database was written by a newer version of Posthaste",
    }
}

pub(crate) async fn alive(_call: Call) -> Result<Response, Problem> {
    Ok(alive_answer())
}

/// What a process answers that is alive.
pub fn alive_answer() -> Response {
    ok(&Alive { status: "ok" })
}

pub(crate) async fn ready(call: Call) -> Result<Response, Problem> {
    call.app.readiness.look().await
}

/// Whether this node may take traffic. A node without the API asks the same.
#[derive(Debug)]
pub struct Readiness {
    store: Arc<dyn Store>,
    metrics: Option<Metrics>,
    is_for_delivering_alone: bool,
    pub(crate) publishing: Publishing,
    sealed: Mutex<Option<(Instant, SealedValues)>>,
    hold: crate::hold::Remembered,
}

impl Readiness {
    /// `is_for_delivering_alone`: a node that does nothing else is not ready while it cannot deliver.
    pub fn new(store: Arc<dyn Store>, metrics: Option<Metrics>, is_for_delivering_alone: bool) -> Readiness {
        Readiness {
            store,
            metrics,
            is_for_delivering_alone,
            publishing: Publishing::default(),
            sealed: Mutex::default(),
            hold: crate::hold::Remembered::default(),
        }
    }

    /// The answer of `/readyz`.
    pub async fn answer(&self) -> Response {
        self.look().await.unwrap_or_else(IntoResponse::into_response)
    }

    async fn look(&self) -> Result<Response, Problem> {
        if let Some(why) = self.publishing.stall() {
            return Err(Problem::unavailable(format!("The last event could not be stored: {why}")));
        }
        let clock = self.store.clock_status();
        if clock.skew.is_some_and(|skew| skew > SKEW_MAX) {
            return Err(Problem::unavailable("the clock of this node and that of the database are more than 5 seconds apart"));
        }
        let sealed = match tokio::time::timeout(READY_WITHIN, self.ask_the_store()).await {
            Ok(Ok(sealed)) => sealed,
            Ok(Err(error)) => return Err(Problem::unavailable(why(&error))),
            Err(_) => return Err(Problem::unavailable("the database does not answer")),
        };
        if sealed.unreadable() > 0 {
            return Err(Problem::unavailable(format!(
                "{} of {} sealed values cannot be read: they need a master key that this node does not have",
                sealed.unreadable(),
                sealed.total
            )));
        }
        let stalled = self.metrics.as_ref().and_then(|metrics| metrics.liveness().stall());
        if let Some(stall) = stalled.filter(|_| self.is_for_delivering_alone) {
            return Err(Problem::unavailable(stall.in_words()));
        }
        let mut warnings: Vec<String> = stalled.map(|stall| stall.in_words().to_owned()).into_iter().collect();
        let held = tokio::time::timeout(READY_WITHIN, self.hold.look(self.store.as_ref())).await;
        if let Ok(Ok(Some(hold))) = held {
            warnings.push(format!(
                "all deliveries are held: {} wait until an operator releases them with `posthaste hold release`",
                hold.waiting
            ));
        }
        if clock.suspicion.is_some() {
            warnings.push("the clock of this machine has jumped ahead and is not believed".to_owned());
        }
        if sealed.under_previous_keys > 0 {
            let SealedValues { total, under_previous_keys, .. } = sealed;
            warnings.push(format!("{under_previous_keys} of {total} sealed values still need a previous master key"));
        }
        Ok(ok(&Ready { status: "ready", warnings }))
    }

    async fn ask_the_store(&self) -> Result<SealedValues, Error> {
        // A read, and a write of nothing: the way that publishing goes, without leaving anything.
        self.store.configuration_number().await?;
        self.store.keys_used(vec![]).await?;
        let known = self.sealed.lock().clone().filter(|(at, _)| at.elapsed() < SEALED_READ_EVERY);
        if let Some((_, sealed)) = known {
            return Ok(sealed);
        }
        let sealed = self.store.sealed_values().await?;
        *self.sealed.lock() = Some((Instant::now(), sealed.clone()));
        Ok(sealed)
    }
}
