//! Runs cleanup: one step after another, with a pause after each that leaves the database to others.
//!
//! What is deleted is decided by the store and the core; how long a pause is, by [`posthaste_core::retention`].

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::retention::pause_after;
use posthaste_store::{Housekeeping, Store};
use tokio::time::{Instant, sleep};

use crate::housekeeping::complain;
use crate::membership::Membership;

/// How often cleanup looks for something to delete while it finds nothing.
const IDLE: Duration = Duration::from_secs(10);
/// The shortest pause between two steps.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Deletes what is older than its retention, until it is dropped. One node is enough for all.
pub(crate) async fn keep(store: Arc<dyn Store>, limits: Housekeeping, membership: Arc<Membership>) {
    loop {
        sleep(IDLE).await;
        while membership.owns(0) {
            let began = Instant::now();
            let pause = match store.clean_up(limits).await {
                Ok(swept) if swept.is_nothing() => break,
                Ok(swept) => {
                    // While the step waited for its turn, others had theirs.
                    let waited = began.elapsed().saturating_sub(swept.busy);
                    pause_after(swept.busy, swept.behind).saturating_sub(waited).max(PAUSE_MIN)
                }
                Err(error) => {
                    complain("clean_up", &error);
                    break;
                }
            };
            sleep(pause).await;
        }
    }
}
