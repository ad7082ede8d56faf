//! `posthaste serve`: store, engine and API, wired together; from the first line on stderr to a clean end.
//!
//! The shapes that other crates show to the binary are used here and nowhere else.

use std::fmt::Display;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use axum::Router;
use http::Uri;
use posthaste_api::PortalKey;
use posthaste_core::bucket::RateLimit;
use posthaste_core::scheduler::Limits;
use posthaste_sender::{Client, Options as SenderOptions, Policy, Proxy};
use posthaste_store::{Housekeeping, Keyring, MasterKey, Options as StoreOptions, Postgres, SecretText, Sqlite, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::accept;
use crate::descriptors;
use crate::keys::{ADMIN_KEY, DataDirectory};
use crate::log::{Logs, without_control_characters};
use crate::settings::{Role, Settings};

/// A signal that goes to a group of processes often comes twice: from whoever sent it, and passed on by a parent.
const SAME_SIGNAL_WITHIN: Duration = Duration::from_millis(250);

/// Serves until it is told to stop, twice if once is not enough.
pub(crate) async fn run(settings: Settings, logs: &Logs) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    let mut server = tokio::select! {
        started = Server::start(&settings) => started?,
        signal = stop.asked() => bail!("stopped by {signal} before it was ready"),
    };
    if let Some(key) = &server.new_admin_key {
        // To whoever has started it, this once, and not into the logs.
        println!("The admin key is {}\nIt is kept in {}.", key.0, settings.data_dir.join(ADMIN_KEY).display());
    }
    let version = env!("CARGO_PKG_VERSION");
    logs.say(&format!("posthaste {version} is ready at {}; {}", settings.public_url(server.address), server.storing));
    tokio::select! {
        signal = stop.asked() => logs.say(&format!("posthaste: {signal}: finishing what is in flight; once more to stop at once")),
        () = server.failed() => bail!("a part of the server has ended by itself; see the log"),
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

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) admin_key: SecretText,
    /// Set if this start has made it.
    new_admin_key: Option<SecretText>,
    /// Where, in words.
    storing: String,
    store: Arc<dyn Store>,
    tasks: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
}

impl Server {
    /// Everything that can be refused is refused before the port is bound.
    pub(crate) async fn start(settings: &Settings) -> anyhow::Result<Server> {
        refuse_what_is_not_there_yet(settings)?;
        let directory = DataDirectory::open(&settings.data_dir)?;
        let (admin_key, new_admin_key) = if let Some(key) = &settings.admin_key {
            (key.clone(), None)
        } else {
            let kept = directory.admin_key()?;
            (kept.key.clone(), kept.is_new.then_some(kept.key))
        };
        let client = settings.has_role(Role::Deliver).then(|| client(settings)).transpose()?;
        let (store, storing, master_key) = open_store(settings, &directory).await?;
        let listener = match listen(settings.listen).await {
            Ok(listener) => listener,
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
        if let Some(client) = client {
            let options = engine_options(settings, parts.in_flight_max);
            let engine = posthaste_engine::run(Arc::clone(&store), client, options, told(stopped.clone()));
            tasks.push(tokio::spawn(engine));
        }
        let router = if settings.has_role(Role::Api) {
            posthaste_api::router(Arc::clone(&store), api_options(settings, address, &master_key), &admin_key.0)
        } else {
            without_api()
        };
        let limits = accept::Limits {
            connections_max: parts.connections_max,
            header_timeout: Duration::from_millis(settings.header_timeout_ms),
        };
        tasks.push(tokio::spawn(accept::serve(listener, router, limits, told(stopped))));
        Ok(Server { address, admin_key, new_admin_key, storing, store, tasks, stop })
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
        self.store.close().await.map_err(plainly)?;
        if has_panicked { Err(anyhow!("a part of the server did not end well; see the log")) } else { Ok(()) }
    }
}

/// Accepted, checked and shown, but no part of this version can do it: ignoring it would be worse than refusing.
fn refuse_what_is_not_there_yet(settings: &Settings) -> anyhow::Result<()> {
    let absent = [
        (settings.outbox.is_some() || settings.role.contains(&Role::Relay), "outbox, --role relay"),
        (settings.metrics_listen.is_some(), "metrics_listen"),
    ];
    let asked: Vec<&str> = absent.iter().filter(|(is_asked, _)| *is_asked).map(|(_, name)| *name).collect();
    if asked.is_empty() { Ok(()) } else { bail!("this version of Posthaste does not have: {}", asked.join("; ")) }
}

async fn open_store(settings: &Settings, directory: &DataDirectory) -> anyhow::Result<(Arc<dyn Store>, String, MasterKey)> {
    if let Some(url) = &settings.database_url {
        let master_key = settings.master_key.clone().context("PostgreSQL needs a master key")?;
        let store = Postgres::connect(&url.0, store_options(settings, master_key.clone())).await.map_err(plainly)?;
        return Ok((Arc::new(store), "PostgreSQL".to_owned(), master_key));
    }
    let master_key = settings.master_key.clone().map_or_else(|| directory.master_key(), Ok)?;
    let (path, options) = (directory.path().to_owned(), store_options(settings, master_key.clone()));
    // A large log is read back first; meanwhile a signal wants to be heard.
    let opened = tokio::task::spawn_blocking(move || Sqlite::open(&path, options)).await?;
    Ok((Arc::new(opened.map_err(plainly)?), format!("SQLite in {}", directory.path().display()), master_key))
}

fn store_options(settings: &Settings, master_key: MasterKey) -> StoreOptions {
    StoreOptions {
        policies: settings.policies().expect("checked when they were read"),
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
        timeout_rules: settings.timeout_rules().expect("checked when they were read"),
        destinations: egress_policy(settings),
        strict_tenants: settings.strict_tenants,
        body_bytes_max: settings.payload_bytes_max,
        batch_bytes_max: settings.batch_bytes_max,
        batch_events_max: settings.batch_events_max,
        bodies_bytes_max: settings.request_bytes_max,
        endpoints_per_tenant_max: settings.endpoints_per_tenant_max,
        calls,
        replays_per_minute_max: settings.replays_per_minute,
        portal_key: PortalKey(master_key.derive("portal tokens")),
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

/// Where deliveries may go; the API judges by the same when an endpoint is made.
fn egress_policy(settings: &Settings) -> Policy {
    let public_host = settings.public_url.as_deref().and_then(|url| url.parse::<Uri>().ok());
    Policy {
        allowed_networks: settings.allow_networks.clone(),
        allow_http: settings.allow_http,
        public_host: public_host.as_ref().and_then(Uri::host).map(str::to_owned),
    }
}

fn client(settings: &Settings) -> anyhow::Result<Client> {
    let mut extra_roots = Vec::new();
    for path in &settings.extra_roots {
        let file = std::fs::read(path).with_context(|| format!("cannot read extra_roots {}", path.display()))?;
        extra_roots.extend(file);
        extra_roots.push(b'\n');
    }
    let options = SenderOptions {
        policy: egress_policy(settings),
        proxy: settings.proxy.as_ref().map(|proxy| Proxy::parse(&proxy.0)).transpose()?,
        bind_address: settings.bind_address,
        extra_roots,
        ..SenderOptions::default()
    };
    Ok(Client::new(&options)?)
}

/// What a process answers that has no API: whoever watches it still has to know that it lives.
fn without_api() -> Router {
    Router::new().route("/healthz", axum::routing::get(async || "ok"))
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let remedies = [
            (ErrorKind::AddrInUse, "another process listens there; stop it, or name another port with --listen"),
            (ErrorKind::PermissionDenied, "ports below 1024 need privileges; name a higher one with --listen"),
            (ErrorKind::AddrNotAvailable, "this machine does not have that address; name one of its own with --listen"),
        ];
        let remedy = remedies.iter().find(|(kind, _)| *kind == error.kind());
        let remedy = remedy.map_or("name another address with --listen", |(_, remedy)| *remedy);
        anyhow!("cannot listen on {address}: {error}; {remedy}")
    })
}

/// One line, whatever the cause has to say.
fn plainly(error: impl Display) -> anyhow::Error {
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
