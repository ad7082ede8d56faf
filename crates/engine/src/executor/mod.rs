//! Carries out the owner's effects next to the loop, and tells the owner how each ended.
//!
//! What is done when a store call fails is decided by [`Execution`], a pure state machine. This file runs executions as tokio
//! tasks, makes their calls, and sends requests. Every task is owned by the [`Executor`]: dropping it ends them all, and a stop
//! waits for them.
//!
//! A panic does not leak what its task had taken:
//! - A store call that panics has failed, and is retried as one whose outcome is not known.
//! - A request that panics counts as a failed attempt. Whether the receiver saw it is not known, and a payload that makes us
//!   panic each time has to end somewhere.
//! - A panic anywhere else is a broken promise of our own and ends the loop, as one in the owner does.

mod execution;
mod store_call;
#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use posthaste_core::delivery::{Outcome, Silence, Timings};
use posthaste_core::id::AttemptId;
use posthaste_core::notice::Noticed;
use posthaste_sender::Client;
use posthaste_store::{AttemptRecord, Store};
use tokio::sync::mpsc::{Sender, UnboundedSender};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};

use crate::attempt::attempt;
use crate::lease::LeaseTerm;
use crate::membership::Membership;
use crate::owner::{Effect, Input, Owner, SendRequest};
use crate::traced::{self, Judged, Traced};

pub(crate) use execution::SCAN_ROWS;
pub use execution::{Execution, Next, Plan, Progress, RETRY_BACKOFF_MAX, RETRY_BACKOFF_MIN, UNREADABLE_RETRY, plan};
pub use store_call::{CallFailure, StoreCall, StoreReply};

/// Lane states written per call at shutdown.
const SHUTDOWN_ROWS: usize = 500;
/// Longest wait at shutdown for the final lane states to be written, and for the tasks that still run.
const SHUTDOWN_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Executor {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    /// A stop waits for these before it leaves.
    hand_overs: JoinSet<()>,
}

/// What every task needs.
struct Shared {
    store: Arc<dyn Store>,
    client: Client,
    membership: Arc<Membership>,
    inbox: UnboundedSender<Input>,
    notices: Option<Sender<Noticed>>,
    traced: Traced,
    /// Set when nothing is retried any more.
    is_stopped: watch::Sender<bool>,
}

impl Executor {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        client: Client,
        membership: Arc<Membership>,
        inbox: UnboundedSender<Input>,
        notices: Option<Sender<Noticed>>,
        traced: Traced,
    ) -> Executor {
        let is_stopped = watch::Sender::new(false);
        let shared = Arc::new(Shared { store, client, membership, inbox, notices, traced, is_stopped });
        Executor { shared, tasks: JoinSet::new(), hand_overs: JoinSet::new() }
    }

    /// Begins to carry these out. `term` is that in which they were decided.
    pub(crate) fn carry_out(&mut self, effects: Vec<Effect>, term: LeaseTerm) {
        reap(&mut self.tasks);
        reap(&mut self.hand_overs);
        let Plan { executions, sends, notices } = plan(effects, self.shared.store.now(), self.shared.membership.node());
        for (execution, first) in executions {
            let shared = Arc::clone(&self.shared);
            let judged =
                execution.records().map_or_else(Vec::new, |(generation, records)| shared.traced.judged(generation, records));
            let tasks = if execution.is_hand_over() { &mut self.hand_overs } else { &mut self.tasks };
            tasks.spawn(async move { shared.run(execution, first, judged).await });
        }
        for sending in sends {
            let shared = Arc::clone(&self.shared);
            // In a box: it is large, and would be copied from hand to hand until it has become a task.
            self.tasks.spawn(Box::pin(async move { shared.send(*sending, term).await }));
        }
        for noticed in notices {
            // Whoever tells people may be slow, and delivering does not wait for it.
            if let Some(Err(error)) = self.shared.notices.as_ref().map(|notices| notices.try_send(noticed)) {
                tracing::debug!(%error, "a notification is dropped: too many are waiting");
            }
        }
    }

    /// Writes what has to survive a clean stop: counts, lane states, and that no one owns the lanes any more. Then ends every
    /// task: those that have to be retried at once, the others when their call is answered or the time is up.
    pub(crate) async fn stop(mut self, owner: &mut Owner) {
        let deadline = Instant::now() + SHUTDOWN_WRITE_TIMEOUT;
        if timeout_at(deadline, self.write_last_states(owner)).await.is_err() {
            tracing::warn!("the store did not take the final lane states in time; the next start is careful");
        }
        self.shared.is_stopped.send_replace(true);
        let ended = timeout_at(deadline, async { while self.tasks.join_next().await.is_some() {} }).await;
        if ended.is_err() {
            tracing::debug!(tasks = self.tasks.len(), "store calls that are not answered are given up");
        }
        self.tasks.shutdown().await;
        self.hand_overs.shutdown().await;
    }

    async fn write_last_states(&mut self, owner: &mut Owner) {
        let store = self.shared.store.as_ref();
        // Attempts that are left are counted after the next start.
        while matches!(store.count().await, Ok(true)) {}
        for records in owner.lane_states().chunks(SHUTDOWN_ROWS) {
            if let Err(error) = store.record(records.to_vec()).await {
                tracing::warn!(%error, "lane states could not be written; the next start is careful");
                return;
            }
        }
        // What is in flight of what was given up is named first: everything else is free to be claimed after that.
        while self.hand_overs.join_next().await.is_some() {}
        self.shared.membership.leave_everything().await;
    }
}

/// Forgets tasks that have ended.
fn reap(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.try_join_next() {
        if let Err(panic) = ended.map_err(JoinError::try_into_panic) {
            // Calls and requests catch theirs: this one is a decision of our own that went wrong.
            match panic {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(cancelled) => tracing::debug!(%cancelled, "a task was cancelled"),
            }
        }
    }
}

impl Shared {
    fn deliver(&self, input: Input) {
        // Once the loop has ended no one receives it.
        let _ = self.inbox.send(input);
    }

    async fn run(&self, mut execution: Execution, first: Progress, mut judged: Vec<Judged>) {
        let mut progress = first;
        loop {
            let Progress { inputs, recorded, next } = progress;
            for input in inputs {
                if let (Input::Recorded { results, .. }, Some(range)) = (&input, &recorded) {
                    self.traced.recorded(&mut judged, range, results);
                }
                self.deliver(input);
            }
            let call = match next {
                Next::Done => return,
                Next::Call(call) => call,
                Next::CallAfter(delay, call) => {
                    if !self.wait(delay).await {
                        return;
                    }
                    call
                }
            };
            let name = call.name();
            let result = match AssertUnwindSafe(call.make(self.store.as_ref())).catch_unwind().await {
                Ok(result) => result.map_err(CallFailure::Store),
                Err(_) => Err(CallFailure::Panicked),
            };
            let failure = result.as_ref().err().map(ToString::to_string);
            progress = execution.completed(result);
            if let Some(failure) = failure {
                log_failure(name, &failure, &progress.next);
            }
        }
    }

    /// Answers whether the engine still runs after that time.
    async fn wait(&self, delay: Duration) -> bool {
        let mut is_stopped = self.is_stopped.subscribe();
        tokio::select! {
            () = sleep(delay) => true,
            _ = is_stopped.wait_for(|is_stopped| *is_stopped) => false,
        }
    }

    async fn send(&self, sending: SendRequest, term: LeaseTerm) {
        let SendRequest { generation, send, number, timeout, .. } = sending;
        let (attempted_at, began) = (self.store.now(), Instant::now());
        let mut seen = traced::begin(&sending);
        // Another node may own it by now. Our record would be refused, but the receiver would have had it twice. And if no one does,
        // it would count an attempt that was none.
        // Nor may it go to where it should have gone before a change that was answered since.
        let may_send = || self.membership.lease().lasts_until(term).filter(|_| !sending.target.is_superseded());
        let request = attempt(self.store.as_ref(), &self.client, &may_send, &sending, seen.as_mut());
        let made = AssertUnwindSafe(request).catch_unwind().await;
        let attempt = match made {
            Ok(Some(attempt)) => attempt,
            Ok(None) => return self.deliver(Input::NotSent { generation, send }),
            Err(_) => {
                tracing::error!(delivery = %send.delivery, attempt = number, "request_panicked: it counts as a failed attempt");
                AttemptRecord {
                    id: AttemptId::from_unique(self.store.unique()),
                    number,
                    outcome: Outcome::Silent(Silence::Reset),
                    response_time: began.elapsed(),
                    timings: Timings::default(),
                    timeout,
                    preview: None,
                    error: Some("internal error: the request panicked".to_owned()),
                    attempted_at,
                    endpoint_version: Some(sending.target.stored.version),
                }
            }
        };
        // What our own settings have blocked is no attempt, and is never recorded.
        if attempt.outcome != Outcome::Blocked {
            self.traced.answered(generation, attempt.id, seen);
        }
        self.deliver(Input::AttemptFinished { generation, send, attempt: Box::new(attempt) });
    }
}

fn log_failure(call: &'static str, failure: &str, next: &Next) {
    match next {
        // It has been failing for a while.
        Next::CallAfter(delay, _) if *delay >= RETRY_BACKOFF_MAX => crate::housekeeping::complain(call, failure),
        Next::CallAfter(..) | Next::Call(_) | Next::Done => tracing::debug!(call, failure, "a store call failed"),
    }
}
