//! `posthaste serve`: store, engine and API, wired together; from the first line on stderr to a clean end.
//!
//! The shapes that other crates show to the binary are used here and nowhere else.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use http::{StatusCode, Uri};
use posthaste_api::SealingKey;
use posthaste_core::bucket::RateLimit;
use posthaste_core::id::{KeyId, TenantId};
use posthaste_core::scheduler::Limits;
use posthaste_metrics::{Kind, Metrics, Page};
use posthaste_notify::mail::Mailer;
use posthaste_notify::mail_server::MailServer;
use posthaste_sender::{Client, Options as SenderOptions, Policy, Proxy};
use posthaste_store::{
    ClockStatus, Commits, EventQuery, Housekeeping, Key, Keyring, MasterKey, Options as StoreOptions, Postgres, SecretText, Sqlite,
    Store,
};
use posthaste_traces::{Exporter, Traces};
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::accept;
use crate::descriptors;
use crate::hold;
use crate::keys::{ADMIN_KEY, DataDirectory};
use crate::log::{Logs, without_control_characters};
use crate::settings::{Mistakes, Role, Settings};
use crate::tls::Tls;
use crate::unreachable;

/// A signal that goes to a group of processes often comes twice: from whoever sent it, and passed on by a parent.
const SAME_SIGNAL_WITHIN: Duration = Duration::from_millis(250);

/// Serves until it is told to stop, twice if once is not enough.
/// `read_again` reads the settings anew, for what may change while it runs.
pub(crate) async fn run(
    settings: Settings,
    logs: &Logs,
    read_again: impl Fn() -> Result<Settings, Mistakes>,
) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut server = tokio::select! {
        started = Server::start(&settings, Some(logs)) => started?,
        signal = stop.asked() => bail!("stopped by {signal} before it was ready"),
    };
    if let Some(key) = &server.new_admin_key {
        let path = settings.data_dir.join(ADMIN_KEY);
        // To the person who has started it, this once. What is not a terminal is likely kept as a log.
        if std::io::stdout().is_terminal() {
            println!("The admin key is {}\nIt is kept in {}.", key.0, path.display());
        } else {
            logs.say(&format!("posthaste: the admin key was made and is in {}", path.display()));
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    if let Some(address) = server.metrics_address {
        logs.say(&format!("posthaste: metrics for anybody are at http://{address}/metrics"));
    }
    if settings.is_open_to_listeners(server.address) {
        logs.say(
            "posthaste: warning: the API is served without TLS beyond this machine, so that keys and payloads can be read on the \
             network; set --tls-cert and --tls-key, or put a proxy with TLS in front and set --public-url https://…",
        );
    }
    logs.say(&format!("posthaste {version} is ready at {}; {}", settings.public_url(server.address), server.storing));
    loop {
        tokio::select! {
            signal = stop.asked() => {
                logs.say(&format!("posthaste: {signal}: finishing what is in flight; once more to stop at once"));
                break;
            }
            _ = hangup.recv() => {
                reread_log_levels(logs, &read_again);
                reread_certificate(logs, server.tls.as_deref());
            }
            () = server.failed() => bail!("a part of the server has ended by itself; see the log"),
        }
    }
    tokio::select! {
        stopped = server.stop() => stopped?,
        signal = stop.asked_again() => {
            logs.say(&format!("posthaste: {signal} again: stopped at once"));
            logs.flush();
            std::process::exit(1);
        }
    }
    logs.say("posthaste: stopped");
    Ok(())
}

/// What is logged may change while it runs; everything else is as it was at the start.
fn reread_log_levels(logs: &Logs, read_again: &impl Fn() -> Result<Settings, Mistakes>) {
    match read_again() {
        Ok(settings) => match logs.set_levels(&settings.log) {
            Ok(()) => logs.say(&format!("posthaste: SIGHUP: what is logged is now {}", settings.log)),
            Err(why) => logs.say(&format!("posthaste: SIGHUP: what is logged cannot be changed: {why}")),
        },
        Err(mistakes) => {
            logs.say("posthaste: SIGHUP: nothing is changed, because the settings cannot be read:");
            mistakes.to_string().lines().for_each(|mistake| logs.say(mistake));
        }
    }
}

/// Certificates are renewed while a server runs.
fn reread_certificate(logs: &Logs, tls: Option<&Tls>) {
    let Some(tls) = tls else { return };
    match tls.reload() {
        Ok(()) => logs.say("posthaste: SIGHUP: the certificate was read again"),
        Err(error) => logs.say(&format!("posthaste: SIGHUP: the certificate stays as it was: {error:#}")),
    }
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    pub(crate) admin_key: SecretText,
    /// Set if this start has made it.
    new_admin_key: Option<SecretText>,
    /// Where, in words.
    storing: String,
    tls: Option<Arc<Tls>>,
    store: Arc<dyn Store>,
    tasks: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    exporter: Option<Exporter>,
}

impl Server {
    /// Everything that can be refused is refused before the port is bound.
    pub(crate) async fn start(settings: &Settings, logs: Option<&Logs>) -> anyhow::Result<Server> {
        let relay = relay_options(settings)?;
        let directory = DataDirectory::open(&settings.data_dir)?;
        let (admin_key, new_admin_key) = if let Some(key) = &settings.admin_key {
            (key.clone(), None)
        } else {
            let kept = directory.admin_key()?;
            (kept.key.clone(), kept.is_new.then_some(kept.key))
        };
        let tls = match (&settings.tls_cert, &settings.tls_key) {
            (Some(certificate), Some(key)) => Some(Arc::new(Tls::load(certificate.clone(), key.clone())?)),
            (Some(_), None) | (None, Some(_) | None) => None,
        };
        let client = settings.has_role(Role::Deliver).then(|| client(settings)).transpose()?;
        let (store, storing, master_key, commits) = open_store(settings, &directory).await?;
        if let Err(error) = check_reserved_tenant(store.as_ref(), &settings.notifications_tenant).await {
            let _ = store.close().await;
            return Err(error);
        }
        let is_held = match hold::begin(store.as_ref(), settings.hold).await {
            Ok(is_held) => is_held,
            Err(error) => {
                let _ = store.close().await;
                return Err(plainly(error));
            }
        };
        let listening = async {
            let metrics_listener = match settings.metrics_listen {
                Some(address) => Some(listen(address, "--metrics-listen")?),
                None => None,
            };
            anyhow::Ok((listen(settings.listen, "--listen")?, metrics_listener))
        };
        let (traces, exporter) = match traces(settings) {
            Ok(traces) => traces.unzip(),
            Err(error) => {
                let _ = store.close().await;
                return Err(error);
            }
        };
        let (listener, metrics_listener) = match listening.await {
            Ok(listeners) => listeners,
            Err(error) => {
                // Closed as after any other stop, so that the next start has nothing to repair.
                let _ = store.close().await;
                return Err(error);
            }
        };
        let address = listener.local_addr()?;
        let parts = descriptors::divide(settings);
        let (stop, stopped) = watch::channel(false);
        let mut tasks = Vec::new();
        let metrics = settings.metrics.then(|| metrics(settings, client.as_ref(), commits, logs));
        if let Some(metrics) = &metrics {
            let store = Arc::clone(&store);
            metrics.gather(move |page| show_clock(page, &store.clock_status()));
        }
        let sealed = Arc::new(Resealing::default());
        if let Some(metrics) = &metrics {
            let sealed = Arc::clone(&sealed);
            metrics.gather(move |page| sealed.show(page));
        }
        tasks.push(tokio::spawn(watch_resealing(Arc::clone(&store), sealed, told(stopped.clone()))));
        if let (Some(metrics), Some(traces)) = (&metrics, traces.clone()) {
            metrics.gather(move |page| traces.show(page));
        }
        if let Some(client) = client {
            let (notices, to_tell) = mpsc::channel(posthaste_notify::NOTICED_MAX);
            let options = posthaste_engine::Options {
                metrics: metrics.clone(),
                notices: settings.notifications.then_some(notices),
                traces: traces.clone(),
                ..engine_options(settings, parts.in_flight_max)
            };
            if settings.notifications {
                let options =
                    posthaste_notify::Options { metrics: metrics.clone(), traces: traces.clone(), ..notify_options(settings) };
                let mailer = mailer(settings)?;
                let telling = posthaste_notify::run(Arc::clone(&store), options, mailer, to_tell, told(stopped.clone()));
                tasks.push(tokio::spawn(telling));
            }
            let reporting = unreachable::report(Arc::clone(&store), egress_policy(settings));
            let stopping = told(stopped.clone());
            tasks.push(tokio::spawn(async move {
                reporting.await;
                stopping.await;
            }));
            let engine = posthaste_engine::run(Arc::clone(&store), client, options, told(stopped.clone()));
            if is_held {
                let released = hold::released(Arc::clone(&store), told(stopped.clone()));
                tasks.push(tokio::spawn(async move {
                    released.await;
                    // After a stop it ends at once.
                    engine.await;
                }));
            } else {
                tasks.push(tokio::spawn(engine));
            }
        }
        if let Some(options) = relay {
            let options = posthaste_relay::Options { metrics: metrics.clone(), traces: traces.clone(), ..options };
            tasks.push(tokio::spawn(posthaste_relay::run(Arc::clone(&store), options, told(stopped.clone()))));
        }
        let router = if settings.has_role(Role::Api) {
            let options =
                posthaste_api::Options { metrics: metrics.clone(), traces, ..api_options(settings, address, &master_key) };
            posthaste_api::router(Arc::clone(&store), options, &admin_key.0)
        } else {
            let is_for_delivering_alone = settings.has_role(Role::Deliver);
            let readiness = posthaste_api::Readiness::new(Arc::clone(&store), metrics.clone(), is_for_delivering_alone);
            without_api(Arc::new(readiness), metrics.as_ref())
        };
        let limits = accept::Limits {
            connections_max: parts.connections_max,
            connections_per_address_max: settings.connections_per_address_max,
            trusted_proxies: settings.trusted_proxies.clone(),
            header_timeout: Duration::from_millis(settings.header_timeout_ms),
        };
        let metrics_address = metrics_listener.as_ref().map(TcpListener::local_addr).transpose()?;
        if let (Some(listener), Some(metrics)) = (metrics_listener, metrics) {
            let limits = accept::Limits { connections_max: METRICS_CONNECTIONS_MAX, ..limits.clone() };
            let router = metrics_router(metrics);
            tasks.push(tokio::spawn(accept::serve(listener, None, router, limits, told(stopped.clone()))));
        }
        tasks.push(tokio::spawn(accept::serve(listener, tls.clone(), router, limits, told(stopped))));
        Ok(Server { address, metrics_address, admin_key, new_admin_key, storing, tls, store, tasks, stop, exporter })
    }

    /// Comes back only if a part of it has ended although nobody has asked for it.
    async fn failed(&mut self) {
        let ended = self.tasks.iter_mut().map(Box::pin);
        let mut ended: Vec<_> = ended.collect();
        std::future::poll_fn(|context| {
            let is_over = ended.iter_mut().any(|task| task.as_mut().poll(context).is_ready());
            if is_over { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }

    /// Takes no more work from here on.
    pub(crate) fn take_no_more(&self) {
        let _ = self.stop.send(true);
    }

    /// Takes no more work, lets what is in flight finish, and leaves everything on disk.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.take_no_more();
        let mut has_panicked = false;
        for task in self.tasks {
            has_panicked |= task.await.is_err();
        }
        let closed = self.store.close().await;
        // The last spans are of what has just ended. They come after everything that must not be lost.
        if let Some(exporter) = self.exporter {
            exporter.finish().await;
        }
        closed.map_err(plainly)?;
        if has_panicked { Err(anyhow!("a part of the server did not end well; see the log")) } else { Ok(()) }
    }
}

/// Events of the tenant of notifications that are looked at, the newest.
const RESERVED_EVENTS_LOOKED_AT: usize = 250;

/// Notifications about all tenants go into one tenant. If somebody else uses a tenant of that name, that one would get them.
async fn check_reserved_tenant(store: &dyn Store, tenant: &TenantId) -> anyhow::Result<()> {
    if store.tenant(tenant.clone()).await.map_err(plainly)?.is_none() {
        return Ok(());
    }
    let query = EventQuery { tenant: Some(tenant.clone()), limit: RESERVED_EVENTS_LOOKED_AT, ..EventQuery::default() };
    let events = store.events(query).await.map_err(plainly)?.rows;
    let foreign = events.iter().find(|event| !posthaste_store::is_reserved_type(event.event_type.as_str()));
    let used_by = match (live_key_of(store, tenant).await?, foreign) {
        (Some(key), _) => format!("the API key {key} is bound to it"),
        (None, Some(event)) => {
            format!("it has events that are no notifications, such as {} of type {}", event.id, event.event_type)
        }
        (None, None) => return Ok(()),
    };
    bail!(
        "the tenant `{tenant}` is reserved for notifications about all tenants, and somebody uses it: {used_by}; give notifications \
         another tenant with --notifications-tenant (a name that no one uses), or delete this one with the version that ran before \
         (`posthaste tenants delete {tenant}`)"
    )
}

/// A key that is bound to a tenant and can still be used.
async fn live_key_of(store: &dyn Store, tenant: &TenantId) -> anyhow::Result<Option<KeyId>> {
    const KEYS_PER_LOOK: usize = 1_000;
    let (now, mut before) = (store.now(), None);
    loop {
        let keys = store.keys(before, KEYS_PER_LOOK).await.map_err(plainly)?;
        let is_live = |key: &&Key| {
            key.tenant.as_ref() == Some(tenant) && key.revoked_at.is_none() && key.expires_at.is_none_or(|at| now < at)
        };
        if let Some(key) = keys.iter().find(is_live) {
            return Ok(Some(key.id));
        }
        before = keys.last().map(|key| key.id);
        if keys.len() < KEYS_PER_LOOK {
            return Ok(None);
        }
    }
}

/// `posthaste migrate`: the store is opened, which brings its schema up to date, and closed again.
pub(crate) async fn migrate(settings: &Settings) -> anyhow::Result<()> {
    let directory = DataDirectory::open(&settings.data_dir)?;
    let (store, storing, ..) = open_store(settings, &directory).await?;
    store.close().await.map_err(plainly)?;
    println!("The schema is up to date (version {}): {storing}", posthaste_store::SCHEMA_VERSION);
    Ok(())
}

/// The store, where it is in words, the key that seals its secrets, and what counts its commits.
type Opened = (Arc<dyn Store>, String, MasterKey, Arc<Commits>);

async fn open_store(settings: &Settings, directory: &DataDirectory) -> anyhow::Result<Opened> {
    if let Some(url) = &settings.database_url {
        let master_key = settings.master_key.clone().context("PostgreSQL needs a master key")?;
        let options = store_options(settings, master_key.clone());
        let commits = Arc::clone(&options.commits);
        let wait = Duration::from_secs(settings.database_wait_seconds);
        let store = Postgres::connect_within(&url.0, wait, options).await.map_err(plainly)?;
        return Ok((Arc::new(store), "PostgreSQL".to_owned(), master_key, commits));
    }
    let master_key = settings.master_key.clone().map_or_else(|| directory.master_key(), Ok)?;
    let (path, options) = (directory.path().to_owned(), store_options(settings, master_key.clone()));
    let commits = Arc::clone(&options.commits);
    // A large log is read back first; meanwhile a signal wants to be heard.
    let opened = tokio::task::spawn_blocking(move || Sqlite::open(&path, options)).await?;
    Ok((Arc::new(opened.map_err(plainly)?), format!("SQLite in {}", directory.path().display()), master_key, commits))
}

fn store_options(settings: &Settings, master_key: MasterKey) -> StoreOptions {
    StoreOptions {
        policies: settings.policies().expect("checked when they were read"),
        retention: settings.tenant_defaults().retention,
        idempotency_keys_kept: Duration::from_hours(settings.idempotency_keys_kept_hours.into()),
        commit_queue_bytes_max: settings.commit_queue_bytes_max,
        ..StoreOptions::new(Keyring::new(master_key, settings.previous_master_keys.clone()))
    }
}

fn api_options(settings: &Settings, address: SocketAddr, master_key: &MasterKey) -> posthaste_api::Options {
    // More than a bucket can count is as many as they like.
    let calls = RateLimit::new(settings.api_rate.saturating_mul(60), settings.api_burst).ok();
    posthaste_api::Options {
        public_url: settings.public_url(address),
        policies: settings.policies().expect("checked when they were read"),
        tenants: settings.tenant_defaults(),
        timeout_rules: settings.timeout_rules().expect("checked when they were read"),
        destinations: egress_policy(settings),
        portal_origins: settings.portal_origins.clone(),
        strict_tenants: settings.strict_tenants,
        reserved_tenant: Some(settings.notifications_tenant.clone()),
        body_bytes_max: settings.payload_bytes_max,
        batch_bytes_max: settings.batch_bytes_max,
        batch_events_max: settings.batch_events_max,
        bodies_bytes_max: settings.request_bytes_max,
        endpoints_per_tenant_max: settings.endpoints_per_tenant_max,
        types_per_endpoint_max: settings.types_per_endpoint_max,
        calls,
        replays_per_minute_max: settings.replays_per_minute,
        sealing_key: SealingKey(master_key.derive("sealed by the API")),
        ..posthaste_api::Options::default()
    }
}

fn engine_options(settings: &Settings, in_flight_max: usize) -> posthaste_engine::Options {
    let days = |days: u32| Duration::from_hours(24 * u64::from(days));
    // An incident's retries may come in a burst of ten seconds' worth.
    let retries =
        settings.retries_per_minute_max.map(|rate| RateLimit::new(rate, rate.div_ceil(6)).expect("checked when it was read"));
    let defaults = posthaste_engine::Options::default();
    posthaste_engine::Options {
        limits: Limits { in_flight_max: u32::try_from(in_flight_max).unwrap_or(u32::MAX), retries, ..defaults.limits },
        policies: settings.policies().expect("checked when they were read"),
        tenant_share: settings.tenant_defaults().share,
        timeouts: settings.timeout_rules().expect("checked when they were read"),
        cached_body_bytes_max: settings.cached_body_bytes_max,
        in_flight_body_bytes_max: settings.in_flight_bytes_max,
        test_send_pause: Duration::from_secs(settings.test_send_pause_seconds),
        housekeeping: Housekeeping {
            dead_letters_kept: days(settings.dead_letters_kept_days),
            audit_kept: days(settings.audit_kept_days),
            ..defaults.housekeeping
        },
        ..defaults
    }
}

/// What the parts are told, for tests of settings.
#[cfg(test)]
pub(crate) fn options_of(settings: &Settings) -> (posthaste_api::Options, posthaste_engine::Options, StoreOptions) {
    let (key, address) = (MasterKey::generate(), SocketAddr::from(([127, 0, 0, 1], 0)));
    let api = api_options(settings, address, &key);
    (api, engine_options(settings, settings.in_flight_max), store_options(settings, key))
}

fn notify_options(settings: &Settings) -> posthaste_notify::Options {
    posthaste_notify::Options {
        tenant: settings.notifications_tenant.clone(),
        retention: settings.tenant_defaults().retention,
        pause: Duration::from_secs(settings.notification_pause_seconds),
        overlap_notice: Duration::from_secs(settings.secret_overlap_notice_seconds),
        deaths_min: settings.dead_letters_growing_min,
        operators: settings.smtp_operators.clone(),
        metrics: None,
        traces: None,
    }
}

/// Whose outbox this process relays, if anybody's: the one that was named, or the one in our own database, should there be one.
fn relay_options(settings: &Settings) -> anyhow::Result<Option<posthaste_relay::Options>> {
    let Some((url, is_certain)) = outbox_url(settings) else { return Ok(None) };
    posthaste_relay::check_url(&url.0).map_err(|trouble| plainly(format!("the outbox cannot be relayed: {trouble}")))?;
    Ok(Some(posthaste_relay::Options {
        is_certain,
        strict_tenants: settings.strict_tenants,
        reserved_tenant: Some(settings.notifications_tenant.clone()),
        payload_bytes_max: settings.payload_bytes_max,
        ..posthaste_relay::Options::new(&url.0)
    }))
}

/// And whether somebody has said that there is an outbox.
pub(crate) fn outbox_url(settings: &Settings) -> Option<(&SecretText, bool)> {
    if !settings.has_role(Role::Relay) {
        return None;
    }
    let named = settings.outbox.as_ref().map(|url| (url, true));
    named.or_else(|| settings.database_url.as_ref().map(|url| (url, false)))
}

/// Who is told of some events, if anybody is.
fn traces(settings: &Settings) -> anyhow::Result<Option<(Traces, Exporter)>> {
    let options = traces_options(settings)?;
    options.map(|options| Traces::start(&options).context("traces cannot be sent")).transpose()
}

pub(crate) fn traces_options(settings: &Settings) -> anyhow::Result<Option<posthaste_traces::Options>> {
    let Some(collector) = settings.otlp_endpoint.clone() else { return Ok(None) };
    Ok(Some(posthaste_traces::Options {
        collector,
        headers: settings.otlp_headers.clone(),
        sample_ratio: settings.trace_sample_ratio,
        extra_roots: extra_roots(settings)?,
        version: env!("CARGO_PKG_VERSION"),
    }))
}

fn mailer(settings: &Settings) -> anyhow::Result<Option<Mailer>> {
    match (&settings.smtp_url, &settings.smtp_from) {
        (Some(url), Some(from)) => Ok(Some(Mailer::new(mail_server(settings, &url.0)?, from)?)),
        (Some(_), None) | (None, Some(_) | None) => Ok(None),
    }
}

/// It is believed by the same certificates as receivers are.
pub(crate) fn mail_server(settings: &Settings, url: &str) -> anyhow::Result<MailServer> {
    Ok(MailServer::parse(url, &extra_roots(settings)?)?)
}

/// Where deliveries may go; the API judges by the same when an endpoint is made.
pub(crate) fn egress_policy(settings: &Settings) -> Policy {
    let public_host = settings.public_url.as_deref().and_then(|url| url.parse::<Uri>().ok());
    Policy {
        allowed_networks: settings.allow_networks.clone(),
        allow_http: settings.allow_http,
        public_host: public_host.as_ref().and_then(Uri::host).map(str::to_owned),
    }
}

/// All of them, one after the other.
fn extra_roots(settings: &Settings) -> anyhow::Result<Vec<u8>> {
    let mut extra_roots = Vec::new();
    for path in &settings.extra_roots {
        let file = std::fs::read(path).with_context(|| format!("cannot read extra_roots {}", path.display()))?;
        extra_roots.extend(file);
        extra_roots.push(b'\n');
    }
    Ok(extra_roots)
}

pub(crate) fn client(settings: &Settings) -> anyhow::Result<Client> {
    let options = SenderOptions {
        policy: egress_policy(settings),
        proxy: settings.proxy.as_ref().map(|proxy| Proxy::parse(&proxy.0)).transpose()?,
        bind_address: settings.bind_address,
        extra_roots: extra_roots(settings)?,
        ..SenderOptions::default()
    };
    Ok(Client::new(&options)?)
}

/// What a process answers that has no API: whoever watches it still has to know that it lives.
fn without_api(readiness: Arc<posthaste_api::Readiness>, metrics: Option<&Metrics>) -> Router {
    let router = Router::new()
        .route("/healthz", axum::routing::get(async || posthaste_api::alive_answer()))
        .route("/readyz", axum::routing::get(async move || readiness.answer().await));
    let Some(metrics) = metrics.cloned() else { return router };
    let page = move |request: Request| {
        let (request, _) = request.into_parts();
        let is_local = posthaste_api::is_local(&request);
        // There are no keys here: whoever watches from elsewhere is given an address of their own.
        let told = if is_local { posthaste_api::metrics_answer(&metrics, &request) } else { StatusCode::FORBIDDEN.into_response() };
        std::future::ready(told)
    };
    router.route("/metrics", axum::routing::get(page))
}

/// What is served at an address of its own, where whoever can reach it may read it.
fn metrics_router(metrics: Metrics) -> Router {
    let page = move |request: Request| std::future::ready(posthaste_api::metrics_answer(&metrics, &request.into_parts().0));
    Router::new().route("/metrics", axum::routing::get(page)).route("/healthz", axum::routing::get(async || "ok"))
}

fn show_clock(page: &mut Page, clock: &ClockStatus) {
    if let Some(skew) = clock.skew {
        let help = "How far the clock of this machine is from the database's; above 5 the node is not ready.";
        page.gauge("posthaste_clock_skew_seconds", help, skew.as_secs_f64());
    }
    let help = "1 while the wall clock has jumped ahead and is not believed: nothing expires or is deleted by it.";
    page.gauge("posthaste_clock_suspect", help, f64::from(u8::from(clock.suspicion.is_some())));
}

/// How far a change of the master key has come.
#[derive(Debug, Default)]
struct Resealing {
    total: AtomicU64,
    left: AtomicU64,
}

impl Resealing {
    fn show(&self, page: &mut Page) {
        let help = "Values that are encrypted in the database: secrets and headers of endpoints.";
        page.gauge("posthaste_sealed_values", help, self.total.load(Ordering::Relaxed) as f64);
        let help = "Encrypted values that still need a previous master key; at 0 it can be removed.";
        page.gauge("posthaste_sealed_values_to_reseal", help, self.left.load(Ordering::Relaxed) as f64);
    }
}

const RESEALING_LOOKED_AT_EVERY: Duration = Duration::from_secs(1);
/// While nothing is left: another node may have another key.
const SEALED_LOOKED_AT_EVERY: Duration = Duration::from_mins(1);

/// Says when every value is sealed with the present master key, so that the previous one can be removed.
async fn watch_resealing(store: Arc<dyn Store>, progress: Arc<Resealing>, stopped: impl Future<Output = ()>) {
    let mut stopped = std::pin::pin!(stopped);
    let mut was_left = 0;
    loop {
        // A store that does not answer is told of elsewhere.
        if let Ok(sealed) = store.sealed_values().await {
            let left = sealed.under_previous_keys + sealed.unreadable();
            progress.total.store(sealed.total, Ordering::Relaxed);
            progress.left.store(left, Ordering::Relaxed);
            if was_left == 0 && left > 0 {
                tracing::info!(left, total = sealed.total, "sealed values still need a previous master key; they are sealed again");
            } else if was_left > 0 && left == 0 {
                let total = sealed.total;
                tracing::info!(total, "every value is sealed with the present master key; previous_master_keys can be removed");
            }
            was_left = left;
        }
        let pause = if was_left > 0 { RESEALING_LOOKED_AT_EVERY } else { SEALED_LOOKED_AT_EVERY };
        tokio::select! {
            () = &mut stopped => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Scrapers, and those who look by hand.
const METRICS_CONNECTIONS_MAX: usize = 64;

/// What is counted, and what is asked when somebody wants to see it.
fn metrics(settings: &Settings, client: Option<&Client>, commits: Arc<Commits>, logs: Option<&Logs>) -> Metrics {
    let limits = posthaste_metrics::Limits { endpoints_max: settings.metrics_endpoints_max, types_max: settings.metrics_types_max };
    let metrics = Metrics::new(limits, env!("CARGO_PKG_VERSION"));
    metrics.gather(move |page| commits.show(page));
    if let Some(client) = client.cloned() {
        metrics.gather(move |page| show_connections(page, &client));
    }
    if let Some(logs) = logs.cloned() {
        metrics.gather(move |page| {
            let help = "Log lines that nobody took in time and that were dropped.";
            page.counter("posthaste_log_lines_dropped_total", help, logs.dropped());
        });
    }
    metrics
}

fn show_connections(page: &mut Page, client: &Client) {
    let counts = client.connections();
    let mut connections = page.family("posthaste_sender_connections", Kind::Gauge, "Connections to receivers, by what they do.");
    connections.sample(&[("state", &"in_use")], counts.in_use as f64);
    connections.sample(&[("state", &"idle")], counts.idle as f64);
    page.gauge("posthaste_sender_hosts", "Hosts with connections or requests.", counts.hosts as f64);
    page.gauge("posthaste_sender_requests", "Requests that are under way or wait for a connection.", counts.requests as f64);
    page.counter("posthaste_sender_connections_made_total", "Connections to receivers that were made.", counts.dialled);
}

/// What the kernel keeps of answers to one caller; most answers fit, and the rest is kept once for all.
const SEND_BUFFER_BYTES: u32 = 128 * 1024;
/// Connections that wait to be taken.
const BACKLOG: u32 = 1024;

fn listen(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let listening = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        // Its connections have the same. Without it the kernel keeps megabytes for each caller that does not read.
        socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listening().map_err(|error| {
        let remedies = [
            (ErrorKind::AddrInUse, "another process listens there; stop it, or name another port with"),
            (ErrorKind::PermissionDenied, "ports below 1024 need privileges; name a higher one with"),
            (ErrorKind::AddrNotAvailable, "this machine does not have that address; name one of its own with"),
        ];
        let remedy = remedies.iter().find(|(kind, _)| *kind == error.kind());
        let remedy = remedy.map_or("name another address with", |(_, remedy)| *remedy);
        anyhow!("cannot listen on {address}: {error}; {remedy} {flag}")
    })
}

/// One line, whatever the cause has to say.
pub(crate) fn plainly(error: impl Display) -> anyhow::Error {
    anyhow!("{}", without_control_characters(&error.to_string()))
}

/// Comes back when the server is told to stop, or is gone.
async fn told(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
}

/// Signals that ask for an end.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> anyhow::Result<Stop> {
        Ok(Stop { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Asked once more, by somebody who means it.
    async fn asked_again(&mut self) -> &'static str {
        let asked_first = Instant::now();
        loop {
            let signal = self.asked().await;
            if asked_first.elapsed() > SAME_SIGNAL_WITHIN {
                return signal;
            }
        }
    }

    async fn asked(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
