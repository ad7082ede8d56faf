//! `LISTEN`: a separate connection on which the database announces changes.
//!
//! The connection is opened on first use. Readers also poll, so they do not depend on it: a notification only makes them look
//! sooner.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, oneshot};
use tokio_postgres::AsyncMessage;

use super::address::PostgresAddress;
use super::announcements::{self, News};
use super::connection::sentence;
use super::ownership::Ownership;
use crate::remote_commits::{self, RemoteCommitSender, RemoteCommits};

const LISTEN: &str = "LISTEN posthaste_commands; LISTEN posthaste_partitions; LISTEN posthaste_deliveries";
/// A notification that takes longer than this is taken for lost.
const ARRIVES_WITHIN: Duration = Duration::from_secs(2);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Notifications {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

/// What the listening task passes on.
#[derive(Debug)]
struct Shared {
    /// A command, or an answer to one.
    commands: Arc<Notify>,
    /// Another node gave partitions up.
    partitions: Notify,
    /// Whoever hears of deliveries that other nodes commit.
    deliveries: Mutex<Option<RemoteCommitSender>>,
    /// Notifications arrive.
    is_listening: AtomicBool,
    ownership: Arc<Ownership>,
}

#[derive(Debug)]
enum State {
    Unwanted(Box<PostgresAddress>),
    /// It ends when this is dropped.
    Listening {
        _alive: oneshot::Sender<()>,
    },
    Closed,
}

impl Notifications {
    pub(super) fn new(address: PostgresAddress, ownership: Arc<Ownership>) -> Notifications {
        let shared = Shared {
            commands: Arc::new(Notify::new()),
            partitions: Notify::new(),
            deliveries: Mutex::new(None),
            is_listening: AtomicBool::new(false),
            ownership,
        };
        Notifications { shared: Arc::new(shared), state: Mutex::new(State::Unwanted(Box::new(address))) }
    }

    /// From now on it is listened. Has to be called where tasks can be started.
    pub(super) fn wanted(&self) {
        let mut state = self.state.lock();
        if let State::Unwanted(address) = &*state {
            let (alive, over) = oneshot::channel();
            tokio::spawn(listen((**address).clone(), Arc::clone(&self.shared), over));
            *state = State::Listening { _alive: alive };
        }
    }

    /// Resolves with the next command or answer. What comes between this call and the first poll is not lost.
    pub(super) fn next(&self) -> OwnedNotified {
        Arc::clone(&self.shared.commands).notified_owned()
    }

    pub(super) async fn partitions_freed(&self) {
        self.shared.partitions.notified().await;
    }

    /// From now on this receiver hears of deliveries that other nodes commit, and no earlier one.
    pub(super) fn remote_commits(&self) -> RemoteCommits {
        let (sender, commits) = remote_commits::channel();
        *self.shared.deliveries.lock() = Some(sender);
        commits
    }

    /// Whether notifications of other nodes arrive.
    pub(super) fn is_listening(&self) -> bool {
        self.shared.is_listening.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        *self.state.lock() = State::Closed;
        *self.shared.deliveries.lock() = None;
    }
}

impl Shared {
    fn heard(&self, channel: &str, message: &str) {
        match channel {
            "posthaste_partitions" => self.partitions.notify_one(),
            announcements::CHANNEL => self.delivery_announced(message),
            _ => self.commands.notify_waiters(),
        }
    }

    fn delivery_announced(&self, message: &str) {
        let Some((partition, news)) = announcements::read(message) else { return };
        if !self.ownership.is_owned(partition) {
            return;
        }
        if let Some(sender) = self.deliveries.lock().as_ref() {
            match news {
                News::Endpoints(endpoints) => sender.send(endpoints.into_iter().collect()),
                News::All => sender.missed(),
            }
        }
    }

    /// Whatever was announced before the connection listened is lost: everyone looks.
    fn missed(&self) {
        self.commands.notify_waiters();
        self.partitions.notify_one();
        if let Some(sender) = self.deliveries.lock().as_ref() {
            sender.missed();
        }
    }
}

async fn listen(address: PostgresAddress, shared: Arc<Shared>, over: oneshot::Receiver<()>) {
    let mut over = pin!(over);
    let mut pause = PAUSE_MIN;
    loop {
        tokio::select! {
            _ = &mut over => return,
            listened = listen_once(&address, &shared) => match listened {
                Ok(()) => pause = PAUSE_MIN,
                Err(error) => tracing::debug!(error, "the server does not tell of news for a moment"),
            },
        }
        shared.is_listening.store(false, Ordering::Relaxed);
        tokio::select! {
            _ = &mut over => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Until the connection is lost.
async fn listen_once(address: &PostgresAddress, shared: &Shared) -> Result<(), String> {
    let (client, mut connection) = address.connect().await.map_err(|error| error.to_string())?;
    let mut messages = pin!(async {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(news))) => shared.heard(news.channel(), news.payload()),
                // Notices, and what a later library knows.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(sentence(&error)),
                None => return Ok(()),
            }
        }
    });
    tokio::select! {
        ended = &mut messages => return ended,
        listening = client.batch_execute(LISTEN) => listening.map_err(|error| sentence(&error))?,
    }
    shared.missed();
    let arrives = tokio::select! {
        ended = &mut messages => return ended,
        arrives = notifications_arrive(address) => arrives?,
    };
    if arrives {
        shared.is_listening.store(true, Ordering::Relaxed);
        shared.missed();
    } else {
        tracing::warn!(
            "the database connection does not pass notifications on, as behind a pooler in transaction mode: events that other nodes \
             publish are looked for every 100 ms"
        );
    }
    messages.await
}

/// Whether a notification that one connection sends reaches another that listens. A pooler that gives a client another
/// connection for each transaction loses them.
pub(super) async fn notifications_arrive(address: &PostgresAddress) -> Result<bool, String> {
    let channel = format!("posthaste_test_{:016x}", rand::random::<u64>());
    let (listen, notify) = (format!("LISTEN {channel}"), format!("NOTIFY {channel}"));
    let (listener, mut connection) = address.connect().await.map_err(|error| error.to_string())?;
    let mut heard = pin!(async {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(news))) if news.channel() == channel => return Ok(true),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(sentence(&error)),
                None => return Err("the connection was closed".to_owned()),
            }
        }
    });
    tokio::select! {
        ended = &mut heard => return ended,
        listening = listener.batch_execute(&listen) => listening.map_err(|error| sentence(&error))?,
    }
    let (sender, connection) = address.connect().await.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let sent = tokio::select! {
        ended = &mut heard => return ended,
        sent = sender.batch_execute(&notify) => sent,
    };
    drop(sender);
    sent.map_err(|error| sentence(&error))?;
    let _ = connection.await;
    tokio::time::timeout(ARRIVES_WITHIN, heard).await.unwrap_or(Ok(false))
}
