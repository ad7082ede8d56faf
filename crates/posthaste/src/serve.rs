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
use posthaste_core::timeout::Mode;
use posthaste_sender::Client;
use posthaste_sender::address::Egress;
use posthaste_store::{Keyring, MasterKey, Options as StoreOptions, Postgres, SecretText, Sqlite, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::accept::{self, Limits};
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
        let (store, storing) = open_store(settings, &directory).await?;
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
        if settings.has_role(Role::Deliver) {
            let engine = posthaste_engine::run(
                Arc::clone(&store),
                client(settings),
                engine_options(settings, parts.in_flight_max),
                told(stopped.clone()),
            );
            tasks.push(tokio::spawn(engine));
        }
        let router =
            if settings.has_role(Role::Api) { posthaste_api::router(Arc::clone(&store), &admin_key.0) } else { without_api() };
        let limits =
            Limits { connections_max: parts.connections_max, header_timeout: Duration::from_millis(settings.header_timeout_ms) };
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
        (settings.proxy.is_some(), "proxy"),
        (settings.bind_address.is_some(), "bind_address"),
        (!settings.extra_roots.is_empty(), "extra_roots"),
    ];
    let asked: Vec<&str> = absent.iter().filter(|(is_asked, _)| *is_asked).map(|(_, name)| *name).collect();
    if asked.is_empty() { Ok(()) } else { bail!("this version of Posthaste does not have: {}", asked.join("; ")) }
}

async fn open_store(settings: &Settings, directory: &DataDirectory) -> anyhow::Result<(Arc<dyn Store>, String)> {
    if let Some(url) = &settings.database_url {
        let master_key = settings.master_key.clone().context("PostgreSQL needs a master key")?;
        let store = Postgres::connect(&url.0, store_options(settings, master_key)).await.map_err(plainly)?;
        return Ok((Arc::new(store), "PostgreSQL".to_owned()));
    }
    let master_key = settings.master_key.clone().map_or_else(|| directory.master_key(), Ok)?;
    let (path, options) = (directory.path().to_owned(), store_options(settings, master_key));
    // A large log is read back first; meanwhile a signal wants to be heard.
    let opened = tokio::task::spawn_blocking(move || Sqlite::open(&path, options)).await?;
    Ok((Arc::new(opened.map_err(plainly)?), format!("SQLite in {}", directory.path().display())))
}

fn store_options(settings: &Settings, master_key: MasterKey) -> StoreOptions {
    StoreOptions {
        policies: settings.policies().expect("checked when they were read"),
        idempotency_keys_kept: Duration::from_hours(settings.idempotency_keys_kept_hours.into()),
        commit_queue_bytes_max: settings.commit_queue_bytes_max,
        ..StoreOptions::new(Keyring::new(master_key, settings.previous_master_keys.clone()))
    }
}

fn engine_options(settings: &Settings, in_flight_max: usize) -> posthaste_engine::Options {
    let policies = settings.policies().expect("checked when they were read");
    let timeout = match policies.timeout {
        Mode::Adaptive => settings.timeout_rules().expect("checked when they were read").default,
        Mode::Manual(pinned) => pinned.as_duration(),
    };
    posthaste_engine::Options { in_flight_max, retry: policies.retry, timeout }
}

fn client(settings: &Settings) -> Client {
    Client::new(Egress { allowed_networks: settings.allow_networks.clone() })
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
