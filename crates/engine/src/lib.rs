//! Runs deliveries: asks the core, does what it says.

mod attempt;

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use posthaste_core::delivery::{DeadReason, State};
use posthaste_core::id::DeliveryId;
use posthaste_core::retry::RetryPolicy;
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::TimeoutRules;
use posthaste_sender::Client;
use posthaste_store::Store;
use tokio::task::{Id, JoinError, JoinSet};

#[derive(Clone, Debug)]
pub struct Options {
    pub in_flight_max: usize,
    /// For every endpoint.
    pub retry: RetryPolicy,
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { in_flight_max: 256, retry: RetryPolicy::default(), timeout: TimeoutRules::default().default }
    }
}

/// How long to leave a store alone that has just failed.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// News can be lost; after this long the store is asked anyway.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How long after the last timeout a stop waits for records.
const RECORD_GRACE: Duration = Duration::from_secs(5);

/// Everything that can wake the loop.
enum Wake {
    /// There are new deliveries.
    News,
    /// Something may be due.
    Time,
    /// An attempt has been recorded, or could not be.
    Ended(Id),
    Stop,
}

/// Delivers what is due until `stop`, then lets what is in flight finish.
pub async fn run(store: Store, client: Client, options: Options, stop: impl Future<Output = ()>) {
    let mut news = store.news();
    let mut attempts = JoinSet::new();
    let mut in_flight: HashMap<DeliveryId, Id> = HashMap::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let look_again = start_what_is_due(&store, &client, &options, &mut attempts, &mut in_flight).await;
        let wake = tokio::select! {
            biased;
            () = &mut stop => Wake::Stop,
            Some(ended) = attempts.join_next_with_id() => Wake::Ended(task_of(ended)),
            Ok(()) = news.changed() => Wake::News,
            () = tokio::time::sleep(look_again) => Wake::Time,
        };
        match wake {
            Wake::News | Wake::Time => {}
            Wake::Ended(task) => in_flight.retain(|_, running| *running != task),
            Wake::Stop => break,
        }
    }
    // An attempt ends by its timeout. A record that the store does not take by then is lost, and its delivery is tried
    // again after the next start.
    let all_ended = async { while attempts.join_next().await.is_some() {} };
    if tokio::time::timeout(options.timeout + RECORD_GRACE, all_ended).await.is_err() {
        tracing::error!("stopped although some attempts could not be recorded");
    }
}

/// An attempt that panicked is over, too; its delivery is still due.
fn task_of(ended: Result<(Id, ()), JoinError>) -> Id {
    ended.map_or_else(
        |error| {
            tracing::error!(%error, "an attempt panicked");
            error.id()
        },
        |(task, ())| task,
    )
}

/// Answers how long nothing further can be due.
async fn start_what_is_due(
    store: &Store,
    client: &Client,
    options: &Options,
    attempts: &mut JoinSet<()>,
    in_flight: &mut HashMap<DeliveryId, Id>,
) -> Duration {
    if in_flight.len() >= options.in_flight_max {
        return LOOK_AGAIN;
    }
    let now = store.now();
    // What is in flight is still due by the book, so it has to be asked for too.
    let found = match store.due(now, options.in_flight_max).await {
        Ok(found) => found,
        Err(error) => {
            tracing::error!(%error, "the store does not say what is due");
            return STORE_PAUSE;
        }
    };
    for delivery in found.damaged {
        let state = State::Dead { at: now, reason: DeadReason::Corrupt };
        if let Err(error) = store.end(delivery, state).await {
            tracing::error!(%delivery, %error, "a damaged delivery could not be ended");
        }
    }
    for due in found.due {
        if in_flight.len() < options.in_flight_max && !in_flight.contains_key(&due.delivery) {
            let delivery = due.delivery;
            let attempt = attempt::attempt(store.clone(), client.clone(), options.clone(), due);
            in_flight.insert(delivery, attempts.spawn(attempt).id());
        }
    }
    found.next.map_or(LOOK_AGAIN, |next: Timestamp| next.since(store.now()).min(LOOK_AGAIN))
}
