//! `LISTEN`: a separate connection on which the database announces changes.
//!
//! The connection is opened on first use. Readers also poll, so they do not depend on it: a notification only makes them look
//! sooner.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, oneshot};
use tokio_postgres::AsyncMessage;

use super::address::{ConnectError, PostgresAddress};
use super::connection::sentence;

const LISTEN: &str = "LISTEN posthaste_commands";
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Notifications {
    told: Arc<Notify>,
    state: Mutex<State>,
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
    pub(super) fn new(address: PostgresAddress) -> Notifications {
        Notifications { told: Arc::new(Notify::new()), state: Mutex::new(State::Unwanted(Box::new(address))) }
    }

    /// From now on it is listened. Has to be called where tasks can be started.
    pub(super) fn wanted(&self) {
        let mut state = self.state.lock();
        if let State::Unwanted(address) = &*state {
            let (alive, over) = oneshot::channel();
            tokio::spawn(listen((**address).clone(), Arc::clone(&self.told), over));
            *state = State::Listening { _alive: alive };
        }
    }

    /// Comes back with the next news. What comes between this call and the first poll is not lost.
    pub(super) fn next(&self) -> OwnedNotified {
        Arc::clone(&self.told).notified_owned()
    }

    pub(super) fn close(&self) {
        *self.state.lock() = State::Closed;
    }
}

async fn listen(address: PostgresAddress, told: Arc<Notify>, over: oneshot::Receiver<()>) {
    let mut over = pin!(over);
    let mut pause = PAUSE_MIN;
    loop {
        tokio::select! {
            _ = &mut over => return,
            listened = listen_once(&address, &told) => match listened {
                Ok(()) => pause = PAUSE_MIN,
                Err(error) => tracing::debug!(error, "the server does not tell of news for a moment"),
            },
        }
        tokio::select! {
            _ = &mut over => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Until the connection is lost.
async fn listen_once(address: &PostgresAddress, told: &Notify) -> Result<(), String> {
    let (client, mut connection) = address.connect().await.map_err(|error| match error {
        ConnectError::Postgres(error) => sentence(&error),
        ConnectError::Unusable(error) => error.to_string(),
        ConnectError::NoAnswer => "the database does not answer".to_owned(),
    })?;
    let mut messages = pin!(async {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(_))) => told.notify_waiters(),
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
    // What came before it listened.
    told.notify_waiters();
    messages.await
}
