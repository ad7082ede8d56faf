//! The loop that moves rows: claim, publish, delete.
//!
//! Rows are locked in a transaction of the application's database, their events are published under ids that follow from the rows'
//! own, and the rows are deleted and the transaction committed. Whatever is lost in between, the rows are still there, and the
//! next who publishes them hears that they were. So nothing is lost and nothing made twice, for as long as the store remembers an
//! event, which is as long as it keeps it.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::event::Event;
use posthaste_core::id::{EventId, TenantId};
use posthaste_core::text::{IdempotencyKey, OrderingKey};
use posthaste_metrics::Metrics;
use posthaste_store::catalogue::Catalogue;
use posthaste_store::{
    DEFAULT_TENANT, Draft, Error, InvalidEvent, NewEvent, Published, SecretText, Store, check_not_reserved, check_tenant,
};
use posthaste_traces::{Publish, PublishedAs, Traces};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::decision::{AfterFailure, Verdict, after_failure, backoff, is_at_fault, shortened};
use crate::outbox::{Bounds, Outbox, OutboxError, OutboxRow, Refusal};

/// As many as the API commits together: enough to share the cost of a flush, few enough that others get their turn.
const ROWS_MAX: i64 = 256;
const BYTES_MAX: i64 = 1024 * 1024;
/// How often it is looked at what waits; more rarely where that takes long.
const MEASURED_EVERY: Duration = Duration::from_secs(1);
/// What counting may take of the application's database: one part in so many.
const MEASURING_SHARE: u32 = 50;
/// A database that cannot be reached is tried again after this, and after twice as long each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Where somebody has said that there is an outbox, and it is not there or cannot be used.
const LOOKED_FOR_EVERY: Duration = Duration::from_secs(5);
/// Where nobody has said so.
const LOOKED_AROUND_EVERY: Duration = Duration::from_mins(1);
/// How long what is being moved may take at the end. Nothing is lost if it takes longer.
const FINISH_MAX: Duration = Duration::from_secs(5);
/// A store that has not taken any of so many, one by one, takes none.
const FAILED_IN_A_ROW_MAX: usize = 3;
/// Rows that are tried one by one, each of which may take seconds to fail, do not keep the others locked for longer.
const ONE_BY_ONE_MAX: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Options {
    /// Where the outbox is.
    pub url: SecretText,
    /// Somebody has said that there is one. Otherwise it is looked for now and then, and nothing is said if it is not there.
    pub is_certain: bool,
    /// How often it is looked without having been woken.
    pub poll: Duration,
    pub strict_tenants: bool,
    /// The tenant of notifications, for which no one else publishes.
    pub reserved_tenant: Option<TenantId>,
    pub payload_bytes_max: usize,
    /// Who counts, if anybody does.
    pub metrics: Option<Metrics>,
    /// Who looks at some of it, if anybody does.
    pub traces: Option<Traces>,
}

impl Options {
    pub fn new(url: &str) -> Options {
        Options {
            url: SecretText(url.to_owned()),
            is_certain: true,
            poll: Duration::from_millis(500),
            strict_tenants: false,
            reserved_tenant: None,
            payload_bytes_max: 1024 * 1024,
            metrics: None,
            traces: None,
        }
    }
}

/// Moves rows until `stop`. Neither a store nor an application's database that fails ends it.
pub async fn run(store: Arc<dyn Store>, options: Options, stop: impl Future<Output = ()>) {
    if let (Some(metrics), true) = (&options.metrics, options.is_certain) {
        metrics.outbox().set_there(true);
    }
    let mut relay = Relay {
        store,
        options,
        outbox: None,
        catalogue: None,
        trouble: None,
        pause: PAUSE_MIN,
        failures: 0,
        measured: None,
        was_there: false,
    };
    let (end, mut ended) = watch::channel(false);
    let mut work = pin!(async move {
        while !*ended.borrow_and_update() {
            let next = relay.turn().await;
            tokio::select! {
                _ = ended.changed() => break,
                () = rest(next) => {}
            }
        }
    });
    let mut stop = pin!(stop);
    tokio::select! {
        () = &mut work => {}
        () = &mut stop => {
            let _ = end.send(true);
            // What is under way is finished; what is not is found by the next one.
            let _ = timeout(FINISH_MAX, work).await;
        }
    }
}

/// When to look again.
enum Next {
    AtOnce,
    /// Or sooner, when woken.
    Within(Duration, Arc<Notify>),
    After(Duration),
}

async fn rest(next: Next) {
    match next {
        Next::AtOnce => tokio::task::yield_now().await,
        Next::Within(poll, woken) => {
            let _ = timeout(poll, woken.notified()).await;
        }
        Next::After(pause) => tokio::time::sleep(pause).await,
    }
}

struct Relay {
    store: Arc<dyn Store>,
    options: Options,
    outbox: Option<Outbox>,
    /// Under the configuration's number that it was read at.
    catalogue: Option<(u64, Arc<Catalogue>)>,
    /// What is wrong, so that it is said once.
    trouble: Option<OutboxError>,
    pause: Duration,
    /// How often in a row the store has not taken a group.
    failures: u32,
    /// When it was last looked at what waits, and how long to leave that now.
    measured: Option<(Instant, Duration)>,
    /// Whether an outbox was found that nobody had spoken of.
    was_there: bool,
}

/// What came of looking once.
enum Round {
    Nothing,
    Moved {
        is_cut: bool,
    },
    /// The store takes nothing now.
    StoreWaits(Duration),
}

impl Relay {
    async fn turn(&mut self) -> Next {
        let outbox = match self.outbox.take() {
            Some(outbox) => outbox,
            None => match Outbox::open(&self.options.url.0).await {
                Ok(outbox) => outbox,
                Err(trouble) => return self.troubled(trouble),
            },
        };
        match self.round(&outbox).await {
            Ok(round) => {
                self.mark_healthy();
                let woken = outbox.woken();
                self.outbox = Some(outbox);
                match round {
                    Round::Moved { is_cut: true } => Next::AtOnce,
                    Round::Nothing | Round::Moved { is_cut: false } => Next::Within(self.options.poll, woken),
                    Round::StoreWaits(pause) => Next::After(pause),
                }
            }
            // Whatever it is, the session is not used again: what it held is let go of when it ends.
            Err(trouble) => self.troubled(trouble),
        }
    }

    fn mark_healthy(&mut self) {
        if let Some(metrics) = &self.options.metrics {
            metrics.outbox().set_there(true);
            metrics.outbox().set_up(true);
        }
        if self.trouble.take().is_some() || !self.was_there {
            self.was_there = true;
            tracing::info!("the outbox is relayed");
        }
        self.pause = PAUSE_MIN;
    }

    /// Says it once, and how long to wait.
    fn troubled(&mut self, trouble: OutboxError) -> Next {
        self.measured = None;
        let is_expected = self.options.is_certain || trouble.is_of_an_outbox(self.was_there);
        if !is_expected {
            self.was_there = false;
            if let Some(metrics) = &self.options.metrics {
                metrics.outbox().set_there(false);
            }
            return Next::After(LOOKED_AROUND_EVERY);
        }
        if let Some(metrics) = &self.options.metrics {
            metrics.outbox().set_there(true);
            metrics.outbox().set_up(false);
        }
        let is_news = self.trouble.as_ref().is_none_or(|before| std::mem::discriminant(before) != std::mem::discriminant(&trouble));
        if is_news {
            tracing::warn!(%trouble, "the outbox is not relayed; nothing in it is lost, and it is looked for again and again");
        }
        let pause = match &trouble {
            OutboxError::Unreachable(_) | OutboxError::Other(_) => {
                let pause = self.pause;
                self.pause = (pause * 2).min(PAUSE_MAX);
                pause
            }
            OutboxError::BadUrl(_)
            | OutboxError::NotInstalled
            | OutboxError::NotOurs { .. }
            | OutboxError::TooNew { .. }
            | OutboxError::NotAllowed(_)
            | OutboxError::StillUsed(_) => LOOKED_FOR_EVERY,
        };
        self.trouble = Some(trouble);
        Next::After(pause)
    }

    async fn round(&mut self, outbox: &Outbox) -> Result<Round, OutboxError> {
        self.measure(outbox).await?;
        let payload_bytes_max = i64::try_from(self.options.payload_bytes_max).unwrap_or(i64::MAX);
        let claimed = outbox.claim(Bounds { rows_max: ROWS_MAX, bytes_max: BYTES_MAX, payload_bytes_max }).await?;
        if claimed.rows.is_empty() {
            outbox.leave().await?;
            return Ok(Round::Nothing);
        }
        let verdicts = match self.publish(&claimed.rows).await {
            Ok(verdicts) => {
                if self.failures > 0 {
                    self.failures = 0;
                    tracing::info!("the store takes rows of the outbox again");
                }
                verdicts
            }
            Err(StoreBusy { error, pause }) => {
                // Said once, until it is over.
                if self.failures == 1 {
                    tracing::warn!(%error, "the store takes nothing from the outbox now; its rows wait, and it is asked again and again");
                }
                outbox.leave().await?;
                return Ok(Round::StoreWaits(pause));
            }
        };
        let (mut moved, mut refused, mut later) = (Vec::new(), Vec::new(), 0);
        for (row, verdict) in claimed.rows.iter().zip(verdicts) {
            match verdict {
                Verdict::Made { .. } | Verdict::WasThere => moved.push(row.id.clone()),
                Verdict::Refused(error) => {
                    let again_after = backoff(row.attempts.saturating_add(1));
                    refused.push(Refusal { id: row.id.clone(), error: shortened(&error), again_after });
                }
                Verdict::Contested | Verdict::Later => later += 1,
            }
        }
        outbox.settle(&moved, &refused).await?;
        if let Some(Refusal { id, error, .. }) = refused.first() {
            // One line for all of them: each says for itself in the table.
            tracing::warn!(rows = refused.len(), outbox_id = %id, %error, "rows of the outbox are refused, such as this one");
        }
        if let Some(metrics) = &self.options.metrics {
            metrics.outbox().relayed(moved.len() as u64);
        }
        if later > 0 && moved.is_empty() {
            return Ok(Round::StoreWaits(Duration::from_millis(500)));
        }
        Ok(Round::Moved { is_cut: claimed.is_cut || later > 0 })
    }

    async fn measure(&mut self, outbox: &Outbox) -> Result<(), OutboxError> {
        let Some(metrics) = &self.options.metrics else { return Ok(()) };
        if self.measured.is_some_and(|(at, pause)| at.elapsed() < pause) {
            return Ok(());
        }
        let began = Instant::now();
        let waiting = outbox.waiting().await?;
        metrics.outbox().waits(waiting.rows, waiting.failed, waiting.lag);
        self.measured = Some((Instant::now(), MEASURED_EVERY.max(began.elapsed() * MEASURING_SHARE)));
        Ok(())
    }

    /// What becomes of each row, in their order.
    async fn publish(&mut self, rows: &[OutboxRow]) -> Result<Vec<Verdict>, StoreBusy> {
        let began = Instant::now();
        let catalogue = self.catalogue().await.map_err(|error| self.not_now(error))?;
        let mut drafts = Vec::with_capacity(rows.len());
        let mut tenants = HashMap::new();
        for row in rows {
            let draft = self.draft(row, &catalogue, &mut tenants).await.map_err(|error| self.not_now(error))?;
            drafts.push(draft.map_err(|refused| refused.to_string()));
        }
        let events: Vec<NewEvent> = drafts.iter().filter_map(|draft| draft.as_ref().ok().cloned()).collect();
        let taken = if events.is_empty() { vec![] } else { self.take(events.clone()).await? };
        self.count(&events, &taken, began);
        let mut taken = taken.into_iter();
        let mut verdicts = Vec::with_capacity(rows.len());
        for (row, draft) in rows.iter().zip(drafts) {
            let verdict = match draft {
                Ok(_) => taken.next().expect("an answer for each that was given"),
                Err(why) => Verdict::Refused(why),
            };
            verdicts.push(self.look_up(row, verdict).await);
        }
        Ok(verdicts)
    }

    /// Gives a group to the store; if it does not take that, each by itself, so that one bad row keeps back nobody.
    async fn take(&mut self, events: Vec<NewEvent>) -> Result<Vec<Verdict>, StoreBusy> {
        let error = match self.store.publish(events.clone()).await {
            Ok(published) => return Ok(published.iter().map(Verdict::of).collect()),
            Err(error) => error,
        };
        self.failures = self.failures.saturating_add(1);
        match after_failure(&error, self.failures, events.len()) {
            AfterFailure::Wait(pause) => Err(StoreBusy { error, pause }),
            AfterFailure::OneByOne => self.take_one_by_one(events).await,
        }
    }

    async fn take_one_by_one(&mut self, events: Vec<NewEvent>) -> Result<Vec<Verdict>, StoreBusy> {
        let (began, mut taken) = (Instant::now(), 0);
        let mut held: HashSet<OrderingKey> = HashSet::new();
        let mut answers: Vec<Result<Published, Option<Error>>> = Vec::with_capacity(events.len());
        for new in events {
            let failed = answers.len() - taken;
            let key = new.event.ordering_key.clone();
            let is_behind = key.as_ref().is_some_and(|key| held.contains(key));
            // Nobody overtakes what may still come before them.
            if is_behind || (taken == 0 && failed >= FAILED_IN_A_ROW_MAX) || began.elapsed() > ONE_BY_ONE_MAX {
                answers.push(Err(None));
                continue;
            }
            match self.store.publish(vec![new]).await {
                Ok(mut published) => {
                    answers.push(Ok(published.pop().expect("one answer for one event")));
                    taken += 1;
                }
                Err(error) => {
                    held.extend(key);
                    answers.push(Err(Some(error)));
                }
            }
        }
        if taken == 0 {
            let error = answers.into_iter().find_map(|answer| answer.err().flatten()).unwrap_or(Error::CommitInDoubt);
            return Err(self.not_now(error));
        }
        let verdict = |answer: Result<Published, Option<Error>>| match answer {
            Ok(published) => Verdict::of(&published),
            Err(Some(error)) if is_at_fault(&error, taken) => Verdict::Refused(format!("the store does not take it: {error}")),
            Err(_) => Verdict::Later,
        };
        Ok(answers.into_iter().map(verdict).collect())
    }

    fn not_now(&mut self, error: Error) -> StoreBusy {
        self.failures = self.failures.saturating_add(1);
        let pause = match after_failure(&error, self.failures, 1) {
            AfterFailure::Wait(pause) => pause,
            AfterFailure::OneByOne => MEASURED_EVERY,
        };
        StoreBusy { error, pause }
    }

    /// What is refused may have been moved by an earlier try, when it was still acceptable, or contested by its own event.
    async fn look_up(&self, row: &OutboxRow, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Made { .. } | Verdict::WasThere | Verdict::Later => verdict,
            Verdict::Contested | Verdict::Refused(_) => {
                let Ok(tenant) = TenantId::parse(row.tenant.as_deref().unwrap_or(DEFAULT_TENANT)) else { return verdict };
                match self.store.event(Some(tenant), event_id(row)).await {
                    Ok(kept) => verdict.beside(row, kept.as_ref()),
                    // Not its fault.
                    Err(_) => Verdict::Later,
                }
            }
        }
    }

    /// A row as an event, judged as the API would. The outer error is the store's.
    async fn draft(
        &self,
        row: &OutboxRow,
        catalogue: &Catalogue,
        tenants: &mut HashMap<TenantId, Result<(), InvalidEvent>>,
    ) -> Result<Result<NewEvent, InvalidEvent>, Error> {
        if let Some(why) = &row.unreadable {
            return Ok(Err(InvalidEvent::new("", why)));
        }
        let Some(data) = &row.data else {
            let bytes_max = self.options.payload_bytes_max;
            return Ok(Err(InvalidEvent::new("data", format!("it is larger than {bytes_max} bytes (payload_bytes_max)"))));
        };
        let tenant = match TenantId::parse(row.tenant.as_deref().unwrap_or(DEFAULT_TENANT)) {
            Ok(tenant) => tenant,
            Err(error) => return Ok(Err(InvalidEvent::new("tenant", error))),
        };
        let checked = match tenants.get(&tenant) {
            Some(checked) => checked.clone(),
            None => match check_not_reserved(&tenant, self.options.reserved_tenant.as_ref()) {
                Ok(()) => check_tenant(self.store.as_ref(), self.options.strict_tenants, &tenant).await?,
                refused @ Err(_) => refused,
            },
        };
        tenants.insert(tenant.clone(), checked.clone());
        let idempotency_key = row.idempotency_key.as_deref().map(IdempotencyKey::parse).transpose();
        let idempotency_key = match (checked, idempotency_key) {
            (Err(refused), _) => return Ok(Err(refused)),
            (Ok(()), Err(error)) => return Ok(Err(InvalidEvent::new("idempotency_key", error))),
            (Ok(()), Ok(key)) => key,
        };
        let id = event_id(row);
        let draft = Draft {
            event_type: &row.event_type,
            data,
            tenant,
            id: Some(id.as_str()),
            version: row.version.as_deref(),
            timestamp: row.occurred_at,
            idempotency_key,
            ordering_key: row.ordering_key.as_deref(),
            deliver_at: row.deliver_at,
            expires_at: row.expires_at,
            labels: &[],
            trace: None,
            written_at: row.created_at,
        };
        let mut accepted = draft.accept(catalogue, self.store.now(), || self.store.unique());
        if let (Ok(new), Some(traces)) = (&mut accepted, &self.options.traces) {
            new.resolved = traces.trace_of(&new.event).map(|_| Arc::default());
        }
        Ok(accepted)
    }

    /// The catalogue as it is now.
    async fn catalogue(&mut self) -> Result<Arc<Catalogue>, Error> {
        let number = self.store.configuration_number().await?;
        if let Some((known, catalogue)) = &self.catalogue
            && *known == number
        {
            return Ok(Arc::clone(catalogue));
        }
        let catalogue = Arc::new(Catalogue::new(self.store.event_types().await?));
        // Read after its number, it may be younger than that says; then it is read once more.
        self.catalogue = Some((number, Arc::clone(&catalogue)));
        Ok(catalogue)
    }

    fn count(&self, events: &[NewEvent], verdicts: &[Verdict], began: Instant) {
        let made = |(new, verdict): (&NewEvent, &Verdict)| match verdict {
            Verdict::Made { deliveries } => Some((Arc::clone(&new.event), *deliveries)),
            Verdict::WasThere | Verdict::Contested | Verdict::Refused(_) | Verdict::Later => None,
        };
        let made: Vec<(Arc<Event>, u32)> = events.iter().zip(verdicts).filter_map(made).collect();
        if let Some(metrics) = &self.options.metrics {
            metrics.publishing().created(made.iter().map(|(event, deliveries)| (&event.tenant, &event.event_type, *deliveries)));
        }
        let Some(traces) = &self.options.traces else { return };
        let ended = Instant::now();
        for (new, verdict) in events.iter().zip(verdicts) {
            let (Some(resolved), Verdict::Made { deliveries }) = (&new.resolved, verdict) else { continue };
            traces.published(&Publish {
                event: &new.event,
                route: None,
                began,
                created: began,
                resolved: resolved.get().copied(),
                ended,
                published_as: PublishedAs::Made { deliveries: *deliveries },
            });
        }
    }
}

/// The store takes nothing now, and when to ask again.
struct StoreBusy {
    error: Error,
    pause: Duration,
}

/// Its event's id: `evt_` and the row's own, which no id that a server makes looks like.
fn event_id(row: &OutboxRow) -> EventId {
    EventId::parse(&format!("{}{}", EventId::PREFIX, row.id)).expect("hexadecimal digits and hyphens")
}
