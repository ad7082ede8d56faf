//! What goes on beside delivering: ending what has waited too long, replays, and hearing of changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use posthaste_core::id::EndpointId;
use posthaste_core::scheduler::Seq;
use posthaste_store::{Store, SweepPage};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep};

use crate::Options;
use crate::executor::SCAN_ROWS;
use crate::membership::Membership;
use crate::owner::Input;
use crate::replays::Replays;
use crate::sweeper::{SWEPT_EVERY, Sweeper};

/// A change takes effect within a second.
const CHANGES_EVERY: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_millis(250);
/// Statistics agree with what was recorded within two seconds.
const COUNTED_EVERY: Duration = Duration::from_secs(1);
const OVERDUE_EVERY: Duration = Duration::from_secs(1);
const OVERDUE_ROWS: usize = 500;
/// Running replays are asked for so often while there are none.
const REPLAYS_EVERY: Duration = Duration::from_secs(1);

/// Finds what other processes have committed.
pub(crate) async fn sweep(store: Arc<dyn Store>, inbox: UnboundedSender<Input>) {
    if !store.is_shared() {
        return;
    }
    let started = Instant::now();
    let mut sweeper = Sweeper::default();
    loop {
        let began = started.elapsed();
        let mut scan = Scan::new(sweeper.start_after());
        while !scan.is_done {
            match store.sweep(scan.after, SCAN_ROWS).await {
                Ok(page) => {
                    let endpoints = scan.read(page);
                    if !endpoints.is_empty() && inbox.send(Input::Work(endpoints)).is_err() {
                        return;
                    }
                }
                // It goes on from there.
                Err(error) => {
                    complain("sweep", &error);
                    sleep(SWEPT_EVERY).await;
                }
            }
        }
        sweeper.swept(began, scan.highest.unwrap_or(0));
        sleep(SWEPT_EVERY).await;
    }
}

/// One look over all rows after a certain one, page by page.
struct Scan {
    /// Where the next page starts.
    after: Seq,
    /// The last row that there was when the first page was read.
    highest: Option<Seq>,
    is_done: bool,
}

impl Scan {
    fn new(after: Seq) -> Scan {
        Scan { after, highest: None, is_done: false }
    }

    /// Answers the endpoints of this page.
    fn read(&mut self, page: SweepPage) -> Vec<EndpointId> {
        // Of the first page: what is committed while the others are read is swept again.
        self.highest.get_or_insert(page.highest);
        self.is_done = page.next.is_none();
        self.after = page.next.unwrap_or(self.after);
        page.endpoints
    }
}

/// Says when what people have said has changed.
pub(crate) async fn watch_configuration(store: Arc<dyn Store>, inbox: UnboundedSender<Input>) {
    let mut known = None;
    loop {
        match store.configuration_number().await {
            Ok(number) => {
                if known.replace(number).is_some_and(|known| known != number) && inbox.send(Input::ConfigurationChanged).is_err() {
                    return;
                }
            }
            Err(error) => complain("configuration_number", &error),
        }
        sleep(CHANGES_EVERY).await;
    }
}

/// Adds what was recorded to the statistics. At a start that is also what a process before this one has left.
pub(crate) async fn count(store: Arc<dyn Store>) {
    loop {
        match store.count().await {
            Ok(true) => {}
            Ok(false) => sleep(COUNTED_EVERY).await,
            Err(error) => {
                complain("count", &error);
                sleep(COUNTED_EVERY).await;
            }
        }
    }
}

/// One step after another, none of which holds delivering up.
pub(crate) async fn keep(store: Arc<dyn Store>, options: Options, membership: Arc<Membership>, inbox: UnboundedSender<Input>) {
    let mut overdue_at = Instant::now();
    let mut replays_at = Instant::now();
    let mut replays = Replays::new();
    loop {
        sleep(TICK).await;
        let now = Instant::now();
        if overdue_at <= now {
            overdue_at = now + OVERDUE_EVERY;
            match store.overdue(OVERDUE_ROWS).await {
                Ok(overdue) if overdue.is_empty() => {}
                Ok(overdue) => {
                    if inbox.send(Input::Overdue(overdue)).is_err() {
                        return;
                    }
                }
                Err(error) => complain("overdue", &error),
            }
        }
        if replays_at <= now {
            match replays.step(store.as_ref(), &membership, &options).await {
                Ok(is_any) => replays_at = now + if is_any { TICK } else { REPLAYS_EVERY },
                Err(error) => complain("running_replays", &error),
            }
        }
    }
}

/// A store that is away is news once in a while, not in every line.
pub(crate) fn complain(what: &str, error: impl std::fmt::Display) {
    static TOLD_AT: AtomicI64 = AtomicI64::new(i64::MIN);
    static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let second = i64::try_from(BEGUN.get_or_init(Instant::now).elapsed().as_secs()).unwrap_or(i64::MAX);
    if TOLD_AT.swap(second, Ordering::Relaxed) != second {
        tracing::error!(what, %error, "the store does not answer; trying again");
    }
}
