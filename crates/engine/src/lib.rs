//! Runs deliveries: asks the core, does what it says.
//!
//! One loop. Everything that can happen is an [`Input`]; [`Owner`] handles it and returns [`Effect`]s, which
//! `executor` carries out next to the loop and whose ends are wakes again. A delivery is tried in one place, `attempt`.

mod attempt;
mod bodies;
mod executor;
mod handed_over;
mod housekeeping;
mod lease;
mod membership;
mod owner;
mod replays;
mod retention;
mod survey;
mod sweeper;
mod tally;
mod target;
mod traced;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use posthaste_core::endpoint::Policies;
use posthaste_core::health::HealthPolicy;
use posthaste_core::notice::Noticed;
use posthaste_core::scheduler::Limits;
use posthaste_core::tenant::Share;
use posthaste_core::timeout::TimeoutRules;
use posthaste_metrics::Metrics;
use posthaste_sender::Client;
use posthaste_store::{CommittedDelivery, Housekeeping, Store};
use posthaste_traces::Traces;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use executor::Executor;
pub use executor::{
    CallFailure, Execution, Next, Plan, Progress, RETRY_BACKOFF_MAX, RETRY_BACKOFF_MIN, StoreCall, StoreReply, UNREADABLE_RETRY,
    plan,
};
pub use handed_over::{HANDED_OVER_ASKED_EVERY, HandedOver};
use membership::Membership;
pub use membership::{
    LeaveReason, LoopHealth, MembershipCall, MembershipMachine, MembershipNews, MembershipProgress, MembershipReply, RENEWED_EVERY,
};
pub use owner::{Effect, Input, ObservedAttempts, OnRecorded, Owner, OwnerGeneration, PendingSend, SendRef, SendRequest, WaiterId};
use survey::{Surveyor, Watch};
pub use sweeper::{COMMITTED_AFTER, SWEPT_EVERY, Sweeper};
pub use target::Target;
use traced::Traced;

#[derive(Clone, Debug)]
pub struct Options {
    pub limits: Limits,
    /// What applies where neither tenant nor endpoint says anything. The store has to be told the same.
    pub policies: Policies,
    /// The share of a tenant that does not set its own.
    pub tenant_share: Share,
    pub timeouts: TimeoutRules,
    pub health: HealthPolicy,
    /// Payloads that are kept between their commit and their turn.
    pub cached_body_bytes_max: usize,
    /// Payloads on their way.
    pub in_flight_body_bytes_max: usize,
    /// Endpoints whose configuration is kept although nothing is to be sent there.
    pub endpoints_known_max: usize,
    pub test_send_pause: Duration,
    pub housekeeping: Housekeeping,
    /// Replayed deliveries of one endpoint that wait at once.
    pub replays_at_once_max: usize,
    /// Who counts what happens, if anybody does.
    pub metrics: Option<Metrics>,
    /// Who tells people of it, if anybody does. What does not fit is not told.
    pub notices: Option<mpsc::Sender<Noticed>>,
    /// Who looks at some of the attempts, if anybody does.
    pub traces: Option<Traces>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            limits: Limits::default(),
            policies: Policies::default(),
            tenant_share: Share::default(),
            timeouts: TimeoutRules::default(),
            health: HealthPolicy::default(),
            cached_body_bytes_max: 32 * 1024 * 1024,
            in_flight_body_bytes_max: 32 * 1024 * 1024,
            endpoints_known_max: 100_000,
            test_send_pause: Duration::from_secs(5),
            housekeeping: Housekeeping::default(),
            replays_at_once_max: 100,
            metrics: None,
            notices: None,
            traces: None,
        }
    }
}

impl Options {
    /// For how long a request that was begun may still be answered and recorded.
    pub fn request_max(&self) -> Duration {
        REQUEST_MAX.max(self.timeouts.max) + STOP_GRACE
    }
}

/// How many wakes are taken in before anything is done about them.
const WAKES_AT_ONCE_MAX: usize = 512;
/// What the loop sleeps at most.
const IDLE: Duration = Duration::from_secs(1);
/// How old what others see of a lane may be.
const SHOWN_EVERY: Duration = Duration::from_millis(200);
/// The same where it is written into a database for other nodes.
const SHOWN_TO_OTHERS_EVERY: Duration = Duration::from_secs(1);
/// How long a background task that has panicked is left alone before it is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// How long after the last request's timeout a stop waits for records.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// A request lasts at most so long: the longest timeout that can be pinned, and what the sender takes to notice.
const REQUEST_MAX: Duration = Duration::from_secs(61);

/// Delivers until `stop`, then lets what is in flight finish.
pub async fn run(store: Arc<dyn Store>, client: Client, options: Options, stop: impl Future<Output = ()>) {
    let (inbox, mut inputs) = mpsc::unbounded_channel();
    let membership = Arc::new(Membership::new(Arc::clone(&store), inbox.clone()));
    let request_max = options.request_max();
    // Stalls are noticed, logged and acted on whether or not someone reads the metrics.
    let metrics = options.metrics.clone().unwrap_or_else(unread_metrics);
    let mut surveyor = Surveyor::new(metrics.clone(), request_max);
    let mut background = background(&store, &options, &membership, &inbox, &surveyor);
    let traced = Traced::new(options.traces.clone());
    let notices = options.notices.clone();
    let mut executor = Executor::new(Arc::clone(&store), client, Arc::clone(&membership), inbox, notices, traced);

    let watch = Watch::start(metrics.clone());
    let mut surveyed = interval(survey::SURVEYED_EVERY);
    surveyed.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut owner = Owner::new(store.now(), options);
    let mut feed = Some(store.feed());
    let mut shown = interval(if store.is_shared() { SHOWN_TO_OTHERS_EVERY } else { SHOWN_EVERY });
    shown.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = std::pin::pin!(stop);
    let mut deadline: Option<Instant> = None;
    let mut batch: Vec<Input> = Vec::with_capacity(WAKES_AT_ONCE_MAX);
    loop {
        let mut is_survey_due = false;
        // Asked before the news: what is decided without the news that everything is lost is of the tenure before.
        let term = membership.lease().term();
        let rest = owner.wake_at().map_or(IDLE, |at| at.since(store.now()).min(IDLE));
        tokio::select! {
            () = &mut stop, if deadline.is_none() => {
                owner.stop();
                // Others go on with the rest while what is in flight ends here.
                membership.prepare_to_leave();
                deadline = Some(Instant::now() + request_max);
            }
            () = wait_until(deadline) => {
                tracing::error!(unfinished = owner.unfinished(), "stopped although some attempts could not be recorded");
                break;
            }
            _ = inputs.recv_many(&mut batch, WAKES_AT_ONCE_MAX) => {}
            news = next_of(&mut feed) => match news {
                Some(rows) => batch.push(Input::Committed(rows)),
                None => feed = None,
            },
            _ = shown.tick() => owner.publish_changed_lanes(store.now()),
            _ = surveyed.tick() => is_survey_due = true,
            () = sleep(rest) => {}
        }
        let turn_began = Instant::now();
        // After the rows were received: those that were dropped before them are known to be missing.
        if feed.as_ref().is_some_and(posthaste_store::Feed::take_overflow) {
            batch.push(Input::FeedOverflowed);
        }
        membership.tick();
        let now = store.now();
        for input in batch.drain(..) {
            owner.handle(now, input);
        }
        executor.carry_out(owner.next_effects(now), term);
        metrics.deliveries().note(&owner.take_notes());
        // After what is due was begun: what is still due then is stuck.
        if is_survey_due && surveyor.step(now, &mut owner) {
            membership.stalled(surveyor.is_own_fault());
        }
        metrics.liveness().turned(turn_began.elapsed());
        if deadline.is_some() && owner.is_at_rest() {
            break;
        }
    }
    drop(watch);
    background.shutdown().await;
    executor.stop(&mut owner).await;
}

/// Everything that goes on next to the loop until it is shut down.
fn background(
    store: &Arc<dyn Store>,
    options: &Options,
    membership: &Arc<Membership>,
    inbox: &UnboundedSender<Input>,
    surveyor: &Surveyor,
) -> JoinSet<()> {
    let mut background = JoinSet::new();
    let (members, lanes) = (Arc::clone(membership), surveyor.stored());
    background.spawn(restarted("membership", move || Arc::clone(&members).keep()));
    let members = Arc::clone(membership);
    background.spawn(restarted("handed over", move || Arc::clone(&members).watch_handed_over()));
    let (of, to) = (Arc::clone(store), inbox.clone());
    background.spawn(restarted("sweep", move || housekeeping::sweep(Arc::clone(&of), to.clone())));
    let (of, to) = (Arc::clone(store), inbox.clone());
    background.spawn(restarted("configuration", move || housekeeping::watch_configuration(Arc::clone(&of), to.clone())));
    let (of, limits, members) = (Arc::clone(store), options.housekeeping, Arc::clone(membership));
    background.spawn(restarted("retention", move || retention::keep(Arc::clone(&of), limits, Arc::clone(&members))));
    let of = Arc::clone(store);
    background.spawn(restarted("statistics", move || housekeeping::count(Arc::clone(&of))));
    let (of, to, options, members) = (Arc::clone(store), inbox.clone(), options.clone(), Arc::clone(membership));
    let is_counted = options.metrics.is_some();
    let keep = move || housekeeping::keep(Arc::clone(&of), options.clone(), Arc::clone(&members), to.clone());
    background.spawn(restarted("housekeeping", keep));
    // Only the numbers that people read need it.
    if is_counted {
        let of = Arc::clone(store);
        background.spawn(restarted("backlog", move || survey::count_in_store(Arc::clone(&of), Arc::clone(&lanes))));
    }
    background
}

/// Runs a task until it ends by itself. One that panics is started again after a while.
async fn restarted<F: Future<Output = ()>>(task: &'static str, start: impl Fn() -> F) {
    while AssertUnwindSafe(start()).catch_unwind().await.is_err() {
        tracing::error!(task, "task_panicked: it is started again");
        sleep(RESTART_PAUSE).await;
    }
}

/// For a process whose metrics no one reads.
fn unread_metrics() -> Metrics {
    Metrics::new(posthaste_metrics::Limits::default(), env!("CARGO_PKG_VERSION"))
}

async fn next_of(feed: &mut Option<posthaste_store::Feed>) -> Option<Vec<CommittedDelivery>> {
    match feed {
        Some(feed) => feed.next().await,
        None => std::future::pending().await,
    }
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
