//! Tells tenants and operators what has happened to their endpoints.
//!
//! A notification is an event like any other, in a tenant of its own: operators make endpoints there and get them all, and
//! where a tenant has given a URL an endpoint is kept for it that gets its own. So they are signed, retried and kept by the same
//! engine, and about that tenant's endpoints nothing is ever told. Beside it they go out as e-mail.
//!
//! | question | file |
//! |---|---|
//! | What is said? | [`message`] |
//! | How often? | `posthaste_core::notice` |
//! | How does it become an event, and where does it go? | `publishing.rs` |
//! | What is never lost, and what is looked for? | `search.rs` |
//! | How does it become a mail? | [`mail`] |
//! | How is a mail server spoken to, and what is never said to it? | [`mail_server`] |

pub mod mail;
pub mod mail_server;
pub mod message;
mod publishing;
mod search;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::notice::{DeathWatch, Debounce, NoticeKind, Noticed};
use posthaste_core::tenant::Retention;
use posthaste_metrics::Metrics;
use posthaste_store::{Error, Store};
use posthaste_traces::Traces;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use mail::Mailer;
use message::{Kind, Message};
use search::Search;

#[derive(Clone, Debug)]
pub struct Options {
    /// Where notifications are published. Nothing is told about its own endpoints.
    pub tenant: TenantId,
    /// How long its events are kept if it does not set its own retention.
    pub retention: Retention,
    /// Between two of one kind about one endpoint.
    pub pause: Duration,
    /// How long before the overlap of a rotated secret ends that is told.
    pub overlap_notice: Duration,
    /// Deaths in an hour that are worth a word, if they are more than usual.
    pub deaths_min: u64,
    /// Those who run this server.
    pub operators: Vec<String>,
    /// Who counts what is published, if anybody does.
    pub metrics: Option<Metrics>,
    /// Who looks at some of it, if anybody does.
    pub traces: Option<Traces>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tenant: TenantId::parse("posthaste").expect("a name"),
            retention: Retention::default(),
            pause: Duration::from_mins(15),
            overlap_notice: Duration::from_hours(2),
            deaths_min: 10,
            operators: Vec::new(),
            metrics: None,
            traces: None,
        }
    }
}

/// What is noticed waits here. What does not fit is found by the search if it must not be lost, and is one of very many if not.
pub const NOTICED_MAX: usize = 10_000;
/// How often what was held back is looked at.
const DUE_EVERY: Duration = Duration::from_secs(1);
/// How often endpoints are looked over, and the audit log, without anybody having said that there is something to find.
const SEARCHED_EVERY: Duration = Duration::from_mins(5);

/// What is told apart when it comes to how often: `None` for what concerns a tenant as a whole.
type Subject = (TenantId, Option<EndpointId>, Kind);

/// Tells what comes out of `noticed` until `stop`. A store or a mail server that fails stops nothing else.
pub async fn run(
    store: Arc<dyn Store>,
    options: Options,
    mailer: Option<Mailer>,
    mut noticed: mpsc::Receiver<Noticed>,
    stop: impl Future<Output = ()>,
) {
    let mut teller = Notifier {
        debounce: Debounce::new(options.pause),
        deaths: DeathWatch::new(options.deaths_min),
        search: Search::default(),
        is_search_wanted: false,
        store,
        options,
        mailer,
    };
    let mut due = interval(DUE_EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first is at once: what a crash has kept from being told is told now.
    let mut searched = interval(SEARCHED_EVERY);
    searched.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            next = noticed.recv() => match next {
                Some(noticed) => teller.noticed(noticed).await,
                None => break,
            },
            _ = due.tick() => teller.tell_what_is_due().await,
            _ = searched.tick() => {
                teller.search().await;
                teller.look_at_secrets().await;
            }
        }
        if teller.is_search_wanted && noticed.is_empty() {
            teller.search().await;
        }
    }
    // What was noticed before the end is told before it.
    while let Ok(noticed) = noticed.try_recv() {
        teller.noticed(noticed).await;
    }
    if teller.is_search_wanted {
        teller.search().await;
    }
}

struct Notifier {
    store: Arc<dyn Store>,
    options: Options,
    mailer: Option<Mailer>,
    debounce: Debounce<Subject, Message>,
    deaths: DeathWatch,
    search: Search,
    /// Something is in the audit log that is to be told. One search finds all of them.
    is_search_wanted: bool,
}

impl Notifier {
    async fn noticed(&mut self, noticed: Noticed) {
        // They never cause further ones.
        if noticed.tenant == self.options.tenant {
            return;
        }
        let (now, Noticed { at, endpoint, tenant, what }) = (self.store.now(), noticed);
        match what {
            // Found in the audit log, where it was written together with what it tells of: this way and after a crash alike.
            NoticeKind::Disabled => self.is_search_wanted = true,
            NoticeKind::Died => {
                let Some(growing) = self.deaths.died(now, &tenant) else { return };
                let subject = (tenant.clone(), None, Kind::DeadLettersGrowing);
                if self.debounce.is_open(now, &subject) {
                    self.take(subject, Message::dead_letters_growing(at, &tenant, growing)).await;
                }
            }
            NoticeKind::Failing { .. } | NoticeKind::Recovered | NoticeKind::CircuitOpened | NoticeKind::CircuitClosed => {
                let Some(kind) = Kind::of(what) else { return };
                let Some(message) = self.about(endpoint, |stored| Message::about(at, &stored.endpoint, what)).await else { return };
                self.take((tenant, Some(endpoint), kind), message).await;
            }
        }
    }

    /// Says something about an endpoint that is still there.
    async fn about<T>(&self, endpoint: EndpointId, say: impl FnOnce(&posthaste_store::StoredEndpoint) -> Option<T>) -> Option<T> {
        match self.store.endpoint(None, endpoint).await {
            Ok(Some(stored)) if stored.deleted_at.is_none() => say(&stored),
            Ok(Some(_) | None) => None,
            Err(error) => {
                complain("an endpoint could not be read", &error);
                None
            }
        }
    }

    async fn take(&mut self, subject: Subject, message: Message) {
        if let Some(told) = self.debounce.take(self.store.now(), subject, message) {
            self.tell(told.what.after(told.left_out)).await;
        }
    }

    async fn tell_what_is_due(&mut self) {
        let now = self.store.now();
        for told in self.debounce.due(now) {
            self.tell(told.what.after(told.left_out)).await;
        }
    }

    /// As an event first, which survives whatever comes; then by mail.
    async fn tell(&self, message: Message) -> bool {
        let told = publishing::publish(self.store.as_ref(), &self.options, &message).await;
        match told {
            Ok(publishing::NotifyOutcome::Now { emails }) => {
                tracing::info!(kind = message.kind.name(), tenant = %message.tenant, "notified");
                if let Some(mailer) = &self.mailer {
                    let to = self.options.operators.iter().cloned().chain(emails).collect();
                    mailer.send(to, &message.subject(), &message.text());
                }
                true
            }
            Ok(publishing::NotifyOutcome::Before) => true,
            Err(error) => {
                complain("a notification could not be published", &error);
                false
            }
        }
    }

    /// What is in the audit log and was not told yet. If the store fails, it is there the next time.
    async fn search(&mut self) {
        self.is_search_wanted = false;
        let now = self.store.now();
        let found = match self.search.disabled(self.store.as_ref(), &self.options).await {
            Ok(found) => found,
            Err(error) => {
                self.is_search_wanted = true;
                return complain("the audit log could not be searched", &error);
            }
        };
        for (row, message) in found {
            if self.tell(message).await {
                self.search.mark_notified(row);
            } else {
                self.is_search_wanted = true;
            }
        }
        if !self.is_search_wanted {
            self.search.mark_notified_until(now);
        }
    }

    async fn look_at_secrets(&mut self) {
        self.deaths.forget(self.store.now());
        match search::overlaps_ending(self.store.as_ref(), &self.options).await {
            Ok(found) => {
                for message in found {
                    self.tell(message).await;
                }
            }
            Err(error) => complain("endpoints could not be searched", &error),
        }
    }
}

fn complain(what: &str, error: &Error) {
    tracing::warn!(%error, "{what}");
}
