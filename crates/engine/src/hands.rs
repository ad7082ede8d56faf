//! Does what the owner wants done, beside the loop, and tells it how that ended.
//!
//! A store that fails is asked again until it answers: nothing is lost by waiting, and the owner need not know.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use posthaste_core::notice::Noticed;
use posthaste_core::scheduler::Seq;
use posthaste_core::time::Timestamp;
use posthaste_sender::Client;
use posthaste_store::{
    Command, Counts, DeliveryQuery, DeliveryRow, Error, Minute, Record, Recorded, RecordedAs, StatisticsQuery, StatisticsStep,
    Store, WindowAsked, WindowRows,
};
use tokio::sync::mpsc::{Sender, UnboundedSender};
use tokio::task::JoinSet;

use crate::attempt::attempt;
use crate::lease::Tenure;
use crate::membership::Membership;
use crate::owner::{Deed, Life, Owner, Seen, Sending, Wake};
use crate::told::Look;
use crate::traced::{self, Traced};

/// How long to leave a store alone that has just failed: at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Endpoints with work that are read in one go.
const WORK_PAGE: usize = 1_000;
/// Windows that are read in one go, each of which may have as many rows as a queue holds.
const WINDOWS_AT_ONCE_MAX: usize = 64;
/// Rows that are stamped anew in one go.
const RESTAMP_ROWS: usize = 500;
/// Deliveries of one event that somebody wants to call off, in one page.
const LOOK_UP_PAGE: usize = 1_000;
/// Lane states that a stop writes in one go.
const LEAVE_ROWS: usize = 500;
/// What a stop waits for the store to take its last words.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// Each deed has a clone.
#[derive(Clone)]
pub(crate) struct Hands(Arc<Tools>);

pub(crate) struct Tools {
    store: Arc<dyn Store>,
    client: Client,
    membership: Arc<Membership>,
    inbox: UnboundedSender<Wake>,
    /// What a stop has to wait for.
    handing_over: Mutex<JoinSet<()>>,
    notices: Option<Sender<Noticed>>,
    traced: Traced,
}

impl Deref for Hands {
    type Target = Tools;

    fn deref(&self) -> &Tools {
        &self.0
    }
}

impl Hands {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        client: Client,
        membership: Arc<Membership>,
        inbox: UnboundedSender<Wake>,
        notices: Option<Sender<Noticed>>,
        traced: Traced,
    ) -> Hands {
        Hands(Arc::new(Tools { store, client, membership, inbox, handing_over: Mutex::default(), notices, traced }))
    }

    /// `tenure` is that in which they were decided.
    pub(crate) fn perform_all(&self, deeds: Vec<Deed>, tenure: Tenure) {
        let mut reads = Vec::new();
        for deed in deeds {
            self.perform(deed, tenure, &mut reads);
        }
        // Many lanes that wake at once want seven windows each.
        while !reads.is_empty() {
            let rest = reads.split_off(reads.len().min(WINDOWS_AT_ONCE_MAX));
            let (hands, reads) = (self.clone(), std::mem::replace(&mut reads, rest));
            tokio::spawn(async move { hands.read(reads).await });
        }
    }

    async fn read(&self, reads: Vec<(Life, WindowAsked)>) {
        let asked = reads.iter().map(|(_, asked)| asked.clone()).collect();
        match self.store.windows(asked).await {
            Ok(found) => reads.into_iter().zip(found).for_each(|(read, rows)| self.has_read(read, rows)),
            // A row that cannot be read holds up its own lane, and no other.
            Err(error) => {
                tracing::debug!(%error, "windows could not be read together");
                for read in reads {
                    let hands = self.clone();
                    tokio::spawn(async move {
                        let found = again("windows", || hands.store.windows(vec![read.1.clone()])).await;
                        for rows in found {
                            hands.has_read(read.clone(), rows);
                        }
                    });
                }
            }
        }
    }

    fn has_read(&self, (life, asked): (Life, WindowAsked), rows: WindowRows) {
        self.tell(Wake::Read { life, endpoint: asked.endpoint, want: asked.want, rows });
    }

    /// Begins it, or puts it to what is read together.
    fn perform(&self, deed: Deed, tenure: Tenure, reads: &mut Vec<(Life, WindowAsked)>) {
        let hands = self.clone();
        match deed {
            Deed::Send(sending) => {
                // In a box: it is large, and would be copied from hand to hand until it has become a task.
                tokio::spawn(Box::pin(async move { hands.send(*sending, tenure).await }));
            }
            Deed::Record { life, records, after } => {
                let mut recording = Box::pin(async move {
                    let traced = hands.traced.judged(life, &records);
                    let results = hands.record(records).await;
                    hands.traced.recorded(traced, &results);
                    hands.tell(Wake::Recorded { life, after, results });
                });
                // Begun here, and not in a task that may be overtaken: what is known of a lane must reach the store after
                // what was known before.
                if recording.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                    tokio::spawn(recording);
                }
            }
            Deed::Read { life, endpoint, want, limit } => reads.push((life, WindowAsked { endpoint, want, limit })),
            Deed::ReadBodies { life, wanted } => {
                tokio::spawn(async move {
                    let seqs: Vec<Seq> = wanted.iter().map(|wanted| wanted.seq).collect();
                    let found = again("bodies", || hands.store.bodies(seqs.clone())).await;
                    hands.tell(Wake::Bodies { life, asked: wanted, found });
                });
            }
            Deed::TakeUp { life, endpoints } => {
                tokio::spawn(async move {
                    let found = again("take_up", || hands.store.take_up(endpoints.clone())).await;
                    hands.tell(Wake::TakenUp { life, asked: endpoints, found });
                });
            }
            Deed::FindWork => {
                tokio::spawn(async move { hands.find_work().await });
            }
            Deed::CompareVersions { life, tenants } => {
                tokio::spawn(async move {
                    let versions = again("tenant_versions", || hands.store.tenant_versions(tenants.clone())).await;
                    hands.tell(Wake::Versions { life, versions: tenants.into_iter().zip(versions).collect() });
                });
            }
            Deed::Restamp { life, endpoint } => {
                tokio::spawn(async move {
                    let mut after = Some(0);
                    while let Some(from) = after {
                        after = again("restamp", || hands.store.restamp(endpoint, from, RESTAMP_ROWS)).await;
                    }
                    hands.tell(Wake::Restamped { life, endpoint });
                });
            }
            Deed::LookUp { life, asked } => {
                tokio::spawn(async move {
                    let rows = hands.look_up(&asked.command).await;
                    // A store that fails now: whoever asked hears that it was not done.
                    if let Ok(rows) = rows {
                        hands.tell(Wake::LookedUp { life, asked, rows });
                    }
                });
            }
            Deed::See { life, endpoint, trigger, shortened_at } => {
                tokio::spawn(async move {
                    // It is not urgent: without an answer it is looked at another time.
                    if let Ok(seen) = hands.see(endpoint, shortened_at).await {
                        hands.tell(Wake::Seen { life, endpoint, trigger, seen: Box::new(seen) });
                    }
                });
            }
            Deed::Show(lanes) => {
                tokio::spawn(async move {
                    if let Err(error) = hands.store.show_lanes(lanes).await {
                        tracing::debug!(%error, "lanes could not be shown");
                    }
                });
            }
            Deed::HandOver { partitions, lanes, in_flight } => {
                let node = self.membership.node();
                self.handing_over.lock().spawn(async move {
                    again("record", || hands.store.record(lanes.clone())).await;
                    if let Some(node) = node {
                        again("hand_over", || hands.store.hand_over(node, partitions.clone(), in_flight.clone())).await;
                    }
                });
            }
            Deed::Notice(noticed) => {
                // Whoever tells people may be slow, and delivering does not wait for it.
                if let Some(Err(error)) = self.notices.as_ref().map(|notices| notices.try_send(noticed)) {
                    tracing::debug!(%error, "something is not told: too much is waiting to be");
                }
            }
            Deed::Count(minutes) => {
                tokio::spawn(async move { hands.count(minutes).await });
            }
        }
    }

    fn tell(&self, wake: Wake) {
        // Nobody listens any more: the loop has ended.
        let _ = self.inbox.send(wake);
    }

    async fn send(&self, sending: Sending, tenure: Tenure) {
        let Sending { life, errand, .. } = sending;
        let mut seen = traced::begin(&sending);
        // Another node may own it by now. Our record would be refused, but the receiver would have had it twice. And if nobody does, it
        // would count an attempt that was none.
        let may_send = || self.membership.lease().lasts_until(tenure);
        match attempt(self.store.as_ref(), &self.client, &may_send, &sending, seen.as_mut()).await {
            Some(attempt) => {
                self.traced.answered(life, attempt.id, seen);
                self.tell(Wake::Answered { life, errand, attempt: Box::new(attempt) });
            }
            None => self.tell(Wake::NotSent { life, errand }),
        }
    }

    /// Until this is remembered its deliveries must not be tried again, so they stay in flight.
    async fn record(&self, records: Vec<Record>) -> Vec<RecordedAs> {
        let is_in_doubt = AtomicBool::new(false);
        let mut results = again("record", || async {
            let answer = self.store.record(records.clone()).await;
            if matches!(answer, Err(Error::Unknown)) {
                is_in_doubt.store(true, Ordering::Relaxed);
            }
            answer
        })
        .await;
        if is_in_doubt.load(Ordering::Relaxed) {
            // What an earlier try has written is refused as written already: it was us, and it counts.
            for (record, result) in records.iter().zip(&mut results) {
                if *result != RecordedAs::Done && self.was_done(record).await {
                    *result = RecordedAs::Done;
                }
            }
        }
        results
    }

    /// Whether it is this record that the store has, and not that of somebody else.
    async fn was_done(&self, record: &Record) -> bool {
        let row_of = async |seq: Seq| again("deliveries_at", || self.store.deliveries_at(vec![seq])).await.pop();
        match &record.recorded {
            Recorded::Attempt { seq, attempt, .. } => {
                let Some(row) = row_of(*seq).await else { return false };
                let attempts = again("attempts", || self.store.attempts(row.id)).await;
                attempts.iter().any(|known| known.id == attempt.id)
            }
            Recorded::Moved { seq, state, .. } => row_of(*seq).await.is_some_and(|row| row.state == *state),
            Recorded::Nothing => false,
        }
    }

    async fn find_work(&self) {
        let mut after = None;
        loop {
            let endpoints = again("work", || self.store.work(after, WORK_PAGE)).await;
            let is_last = endpoints.len() < WORK_PAGE;
            after = endpoints.last().copied();
            self.tell(Wake::Work(endpoints));
            if is_last {
                return;
            }
        }
    }

    /// News was lost: finds whatever is behind this row.
    pub(crate) fn sweep(&self, look: Look) {
        let hands = self.clone();
        tokio::spawn(async move {
            let swept = again("sweep", || hands.store.sweep(look.after)).await;
            // Before the loop wakes, which asks for it then. If nobody asks, the loop has ended.
            let _ = look.found_up_to.send(swept.highest);
            hands.tell(Wake::Work(swept.endpoints));
        });
    }

    /// What the database says of what somebody wants done.
    async fn look_up(&self, command: &Command) -> Result<Vec<DeliveryRow>, Error> {
        match command {
            Command::CancelDelivery { delivery, .. } | Command::SendNow { delivery, .. } => {
                Ok(self.store.delivery(*delivery).await?.into_iter().collect())
            }
            Command::CancelEvent { tenant, event, .. } => {
                let mut query = DeliveryQuery {
                    tenant: Some(tenant.clone()),
                    event: Some(event.clone()),
                    limit: LOOK_UP_PAGE,
                    ..DeliveryQuery::default()
                };
                let mut rows = Vec::new();
                loop {
                    let page = self.store.deliveries(query.clone()).await?;
                    rows.extend(page.rows);
                    query.before = page.next;
                    if query.before.is_none() {
                        return Ok(rows);
                    }
                }
            }
            Command::Test { .. } => Ok(Vec::new()),
        }
    }

    async fn see(&self, endpoint: posthaste_core::id::EndpointId, shortened_at: Option<Timestamp>) -> Result<Seen, Error> {
        const DAY: Duration = Duration::from_hours(24);
        let now = self.store.now();
        let before = |days: i64| Timestamp::from_millis(now.as_millis() - days * 86_400_000);
        let step = |from: Timestamp| async move {
            let query = StatisticsQuery { tenant: None, endpoint: Some(endpoint), from, to: now, step: 8 * DAY };
            let steps = self.store.statistics(query).await?;
            Ok::<Option<StatisticsStep>, Error>(steps.into_iter().next())
        };
        let counts = |step: Option<StatisticsStep>| step.map_or_else(Counts::default, |step| step.counts);
        Ok(Seen {
            week: step(before(7)).await?,
            day: counts(step(before(1)).await?),
            since_shortened: match shortened_at {
                Some(since) => Some(counts(step(since).await?)),
                None => None,
            },
        })
    }

    async fn count(&self, minutes: Vec<Minute>) {
        if let Err(error) = self.store.count(minutes.clone()).await {
            match error {
                // They may have been added, and would be added twice.
                Error::Unknown => {}
                Error::Unavailable(_) | Error::Overloaded { .. } => self.tell(Wake::NotCounted(minutes)),
                Error::Corrupt { .. } | Error::Unusable(_) | Error::TooNew => {
                    tracing::error!(%error, "statistics could not be written");
                }
            }
        }
    }

    /// The last words of a stop: what was counted, what lanes have to remember, and that nobody owns them any more.
    pub(crate) async fn leave(&self, owner: &mut Owner) {
        owner.count();
        let last_words = async {
            for deed in owner.next_deeds(self.store.now()) {
                if let Deed::Count(minutes) = deed {
                    let _ = self.store.count(minutes).await;
                }
            }
            for records in owner.lane_states().chunks(LEAVE_ROWS) {
                if let Err(error) = self.store.record(records.to_vec()).await {
                    tracing::warn!(%error, "what lanes remember could not be written; the next start is careful");
                    return;
                }
            }
            // What is in flight of what was given up is named first: everything else is nobody's after that.
            let handing_over = std::mem::take(&mut *self.handing_over.lock());
            handing_over.join_all().await;
            self.membership.leave_everything().await;
        };
        if tokio::time::timeout(LEAVE_MAX, last_words).await.is_err() {
            tracing::warn!("the store did not take the last words of a stop");
        }
    }
}

/// Asks the store until it answers.
pub(crate) async fn again<T, F: Future<Output = Result<T, Error>>>(what: &str, verb: impl Fn() -> F) -> T {
    let mut pause = PAUSE_FIRST;
    loop {
        match verb().await {
            Ok(answer) => return answer,
            Err(error) if pause < PAUSE_MAX => tracing::debug!(what, %error, "the store has failed"),
            Err(error) => crate::housekeeping::complain(what, &error),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
