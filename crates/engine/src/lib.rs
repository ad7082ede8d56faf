//! Runs deliveries: asks the core, does what it says.

mod attempt;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::{DeadReason, State};
use posthaste_core::endpoint::Status;
use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::retry::RetryPolicy;
use posthaste_core::scheduler::{Class, Entry, Want};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::TimeoutRules;
use posthaste_sender::Client;
use posthaste_store::{Epoch, Error, NodeId, Partition, Record, Recorded, Store, StoredEndpoint};
use tokio::task::{Id, JoinError, JoinSet};

use attempt::Due;

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
/// How many endpoints are looked at in one go.
const ENDPOINTS_MAX: usize = 10_000;

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

/// What a look at the store needs.
struct Engine {
    store: Arc<dyn Store>,
    client: Client,
    options: Options,
    epochs: BTreeMap<Partition, Epoch>,
    attempts: JoinSet<()>,
    in_flight: HashMap<DeliveryId, Id>,
}

/// Delivers what is due until `stop`, then lets what is in flight finish.
pub async fn run(store: Arc<dyn Store>, client: Client, options: Options, stop: impl Future<Output = ()>) {
    let mut feed = store.feed();
    let mut engine =
        Engine { store, client, options, epochs: BTreeMap::new(), attempts: JoinSet::new(), in_flight: HashMap::new() };
    let mut stop = std::pin::pin!(stop);
    loop {
        let look_again = tokio::select! {
            biased;
            // Also in the middle of a look: nothing new is started from here on.
            () = &mut stop => break,
            looked = engine.start_what_is_due() => looked.unwrap_or_else(|error| {
                tracing::error!(%error, "the store does not say what is due");
                STORE_PAUSE
            }),
        };
        let wake = tokio::select! {
            biased;
            () = &mut stop => Wake::Stop,
            Some(ended) = engine.attempts.join_next_with_id() => Wake::Ended(task_of(ended)),
            Some(_) = feed.next() => Wake::News,
            () = tokio::time::sleep(look_again) => Wake::Time,
        };
        match wake {
            Wake::News | Wake::Time => {}
            Wake::Ended(task) => engine.in_flight.retain(|_, running| *running != task),
            Wake::Stop => break,
        }
    }
    // An attempt ends by its timeout. A record that the store does not take by then is lost, and its delivery is tried
    // again after the next start.
    let all_ended = async { while engine.attempts.join_next().await.is_some() {} };
    if tokio::time::timeout(engine.options.timeout + RECORD_GRACE, all_ended).await.is_err() {
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

impl Engine {
    /// Answers how long nothing further can be due.
    async fn start_what_is_due(&mut self) -> Result<Duration, Error> {
        if self.epochs.is_empty() {
            let node = NodeId(rand::random());
            self.store.join(node).await?;
            if let Ok(claimed) = self.store.claim(node, usize::MAX).await? {
                self.epochs = claimed.partitions.into_iter().collect();
            }
        }
        let mut next: Option<Timestamp> = None;
        for endpoint in self.store.work(None, ENDPOINTS_MAX).await? {
            let Some(stored) = self.store.endpoint(endpoint).await? else { continue };
            let now = self.store.now();
            if stored.endpoint.status.at(now) != Status::Active {
                continue;
            }
            let stored = Arc::new(stored);
            let mut due = Vec::new();
            for entry in self.waiting_at(endpoint).await? {
                if now < entry.due {
                    next = Some(next.map_or(entry.due, |next| next.min(entry.due)));
                } else if !self.in_flight.contains_key(&entry.delivery) {
                    due.push(entry);
                }
            }
            due.truncate(self.options.in_flight_max.saturating_sub(self.in_flight.len()));
            self.start(&stored, due).await?;
        }
        Ok(next.map_or(LOOK_AGAIN, |next| next.since(self.store.now()).min(LOOK_AGAIN)))
    }

    /// The beginning of each of a lane's queues. What is in flight is still there by the book, so there is room for it.
    async fn waiting_at(&self, endpoint: EndpointId) -> Result<Vec<Entry>, Error> {
        let mut waiting = Vec::new();
        let queues = Class::ALL.into_iter().flat_map(|class| [Want::Fresh(class), Want::Later(class)]);
        for want in queues.chain([Want::Heads { after: None }]) {
            waiting.extend(self.store.window(endpoint, want, self.options.in_flight_max).await?.rows);
        }
        Ok(waiting)
    }

    async fn start(&mut self, endpoint: &Arc<StoredEndpoint>, due: Vec<Entry>) -> Result<(), Error> {
        let epoch = self.epochs.get(&endpoint.partition).copied().unwrap_or(0);
        let bodies = self.store.bodies(due.iter().map(|entry| entry.seq).collect()).await?;
        for body in bodies {
            let Some(entry) = due.iter().find(|entry| entry.seq == body.seq) else { continue };
            match body.event {
                Ok(event) => {
                    let due = Due { entry: entry.clone(), event, endpoint: Arc::clone(endpoint), epoch };
                    let attempt = attempt::attempt(Arc::clone(&self.store), self.client.clone(), self.options.clone(), due);
                    self.in_flight.insert(entry.delivery, self.attempts.spawn(attempt).id());
                }
                Err(error) => {
                    tracing::error!(delivery = %entry.delivery, %error, "a stored delivery is damaged");
                    let state = State::Dead { at: self.store.now(), reason: DeadReason::Corrupt };
                    let record = Record {
                        partition: endpoint.partition,
                        epoch,
                        endpoint: endpoint.endpoint.id,
                        recorded: Recorded::Moved { seq: entry.seq, state, audit: None },
                        lane: None,
                        disables_endpoint: false,
                    };
                    self.store.record(vec![record]).await?;
                }
            }
        }
        Ok(())
    }
}
