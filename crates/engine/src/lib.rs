//! Runs deliveries: asks the core, does what it says.
//!
//! One loop. Everything that can wake it is a [`Wake`]; [`Owner`] takes it in and says what to do as [`Deed`]s, which
//! `hands` does beside the loop and whose ends are wakes again. A delivery is tried in one place, `attempt`.

mod attempt;
mod bodies;
mod hands;
mod housekeeping;
mod lease;
mod membership;
mod owner;
mod survey;
mod tally;
mod target;
mod told;
mod traced;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::endpoint::Policies;
use posthaste_core::health::HealthPolicy;
use posthaste_core::notice::Noticed;
use posthaste_core::scheduler::Limits;
use posthaste_core::timeout::TimeoutRules;
use posthaste_metrics::Metrics;
use posthaste_sender::Client;
use posthaste_store::{Fed, Housekeeping, Store};
use posthaste_traces::Traces;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use hands::Hands;
use membership::Membership;
pub use owner::{After, Bodiless, Deed, Errand, Life, Owner, Seen, Sending, Ticket, Wake};
use survey::{Surveyor, Watch};
pub use target::Target;
use told::Told;
use traced::Traced;

#[derive(Clone, Debug)]
pub struct Options {
    pub limits: Limits,
    /// What applies where neither tenant nor endpoint says anything. The store has to be told the same.
    pub policies: Policies,
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
const COUNTED_EVERY: Duration = Duration::from_secs(10);
/// How long after the last request's timeout a stop waits for records.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// A request lasts at most so long: the longest timeout that can be pinned, and what the sender takes to notice.
const REQUEST_MAX: Duration = Duration::from_secs(61);

/// Delivers until `stop`, then lets what is in flight finish.
pub async fn run(store: Arc<dyn Store>, client: Client, options: Options, stop: impl Future<Output = ()>) {
    let (inbox, mut wakes) = mpsc::unbounded_channel();
    let membership = Arc::new(Membership::new(Arc::clone(&store), inbox.clone()));
    let traced = Traced::new(options.traces.clone());
    let hands = Hands::new(Arc::clone(&store), client, Arc::clone(&membership), inbox.clone(), options.notices.clone(), traced);
    let mut background = JoinSet::new();
    background.spawn(Arc::clone(&membership).keep());
    background.spawn(housekeeping::sweep(Arc::clone(&store), inbox.clone()));
    background.spawn(housekeeping::watch_configuration(Arc::clone(&store), inbox.clone()));
    background.spawn(housekeeping::keep(Arc::clone(&store), options.clone(), Arc::clone(&membership), inbox));

    let request_max = options.request_max();
    let metrics = options.metrics.clone();
    let watch = metrics.as_ref().map(|metrics| Watch::start(metrics.clone()));
    let mut surveyor = metrics.as_ref().map(|metrics| Surveyor::new(metrics.clone(), request_max));
    if let Some(surveyor) = &surveyor {
        background.spawn(survey::count_in_store(Arc::clone(&store), surveyor.stored()));
    }
    let mut surveyed = interval(survey::SURVEYED_EVERY);
    surveyed.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut owner = Owner::new(store.now(), options);
    let mut feed = Some(store.feed());
    let mut told = Told::default();
    let mut shown = interval(if store.is_shared() { SHOWN_TO_OTHERS_EVERY } else { SHOWN_EVERY });
    shown.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut counted = interval(COUNTED_EVERY);
    counted.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = std::pin::pin!(stop);
    let mut deadline: Option<Instant> = None;
    let mut batch: Vec<Wake> = Vec::with_capacity(WAKES_AT_ONCE_MAX);
    loop {
        let mut is_survey_due = false;
        // Asked before the news: what is decided without the news that everything is lost is of the tenure before.
        let tenure = membership.lease().tenure();
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
            _ = wakes.recv_many(&mut batch, WAKES_AT_ONCE_MAX) => {}
            news = next_of(&mut feed) => match news {
                Some(rows) => {
                    told.fed(&rows);
                    batch.push(Wake::Fed(rows));
                }
                None => feed = None,
            },
            _ = shown.tick() => owner.show(store.now()),
            _ = counted.tick() => owner.count(),
            _ = surveyed.tick(), if surveyor.is_some() => is_survey_due = true,
            () = sleep(rest) => {}
        }
        let turn_began = Instant::now();
        if let Some(look) = feed.as_ref().and_then(|feed| told.turn(feed.has_overflowed())) {
            hands.sweep(look);
        }
        membership.tick();
        let now = store.now();
        for wake in batch.drain(..) {
            owner.wake(now, wake);
        }
        hands.perform_all(owner.next_deeds(now), tenure);
        if let (Some(metrics), Some(surveyor)) = (&metrics, &mut surveyor) {
            metrics.deliveries().note(&owner.take_notes());
            // After what is due was begun: what is still due then is stuck.
            if is_survey_due && surveyor.step(now, &mut owner) {
                membership.stalled(surveyor.is_own_fault());
            }
            metrics.liveness().turned(turn_began.elapsed());
        }
        if deadline.is_some() && owner.is_at_rest() {
            break;
        }
    }
    drop(watch);
    background.shutdown().await;
    hands.leave(&mut owner).await;
}

async fn next_of(feed: &mut Option<posthaste_store::Feed>) -> Option<Vec<Fed>> {
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
