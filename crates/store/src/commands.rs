//! Commands to the owner of a lane: only the owner changes an unfinished delivery.
//!
//! The caller waits for a short time. A command that no owner has taken by then is withdrawn, so that it is not carried out
//! after the caller was told that it was not. A command that was taken and not answered has an unknown outcome. Each command
//! is taken once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_core::event::Event;
use posthaste_core::id::{DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::time::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::{AttemptRecord, Audit, Error, Partition};

/// How long the owner may take. A person waits for the answer.
pub const COMMAND_MAX: Duration = Duration::from_secs(3);
/// How long the answer to a change waits for the owner to go by it.
pub const APPLY_MAX: Duration = Duration::from_secs(1);
/// The longest that an answer can take: a test is answered when its request has ended, which takes a minute at most.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(65);
/// How many may wait for an owner. It answers each at once, so that more are a sign of trouble.
pub(crate) const COMMANDS_MAX: usize = 256;

/// A command to the owner of a lane.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    CancelDelivery {
        delivery: DeliveryId,
        audit: Audit,
    },
    /// Everything of it that still waits, or nothing if one is in flight.
    CancelEvent {
        tenant: TenantId,
        event: EventId,
        audit: Audit,
    },
    /// One that waits is due now.
    SendNow {
        delivery: DeliveryId,
        audit: Audit,
    },
    /// One request to an endpoint, of an event that is not kept.
    Test {
        endpoint: EndpointId,
        event: Arc<Event>,
    },
    /// Go by what is configured now: for one endpoint, or for all of the tenant's.
    Apply {
        tenant: TenantId,
        endpoint: Option<EndpointId>,
    },
}

/// Whether the owner of a lane uses the latest configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ApplyResult {
    Now,
    /// The owner did not confirm it in time. It does so by itself within a second, or its lease ends.
    Unconfirmed,
}

impl ApplyResult {
    pub(crate) fn of(asked: &Result<CommandOutcome, Error>) -> ApplyResult {
        match asked {
            Ok(CommandOutcome::Done) => ApplyResult::Now,
            Ok(_) | Err(_) => ApplyResult::Unconfirmed,
        }
    }
}

impl Command {
    /// How long its owner has.
    pub(crate) fn wait_max(&self) -> Duration {
        match self {
            Command::CancelDelivery { .. } | Command::CancelEvent { .. } | Command::SendNow { .. } => COMMAND_MAX,
            Command::Test { .. } => ANSWER_MAX,
            Command::Apply { .. } => APPLY_MAX,
        }
    }
}

/// The outcome of a command.
#[derive(Clone, PartialEq, Debug)]
pub enum CommandOutcome {
    Done,
    NotFound,
    InFlight,
    HasEnded,
    /// There is no token before then.
    NotBefore(Timestamp),
    Tested(Box<AttemptRecord>),
}

/// A command as the owner receives it. An owner that drops it makes the caller receive `Unavailable`.
#[derive(Debug)]
pub struct CommandRequest {
    pub command: Command,
    pub partition: Partition,
    pub answer: oneshot::Sender<CommandOutcome>,
}

/// The receiving end.
#[derive(Debug)]
pub struct Commands(mpsc::Receiver<Queued>);

impl Commands {
    /// The next command whose caller still waits, or `None` once the store is closed or another receiver replaced this one.
    pub async fn next(&mut self) -> Option<CommandRequest> {
        loop {
            let Queued { asked, is_taken } = self.0.recv().await?;
            if !is_taken.swap(true, Ordering::AcqRel) {
                return Some(asked);
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Queued {
    asked: CommandRequest,
    /// Set by the first of two: the owner that takes the command, or the caller that stops waiting.
    is_taken: Arc<AtomicBool>,
}

/// The channel to the owner in this process, if there is one.
#[derive(Debug, Default)]
pub(crate) struct CommandChannel(parking_lot::Mutex<Option<mpsc::Sender<Queued>>>);

impl CommandChannel {
    pub(crate) fn listen(&self) -> Commands {
        let (outbox, inbox) = mpsc::channel(COMMANDS_MAX);
        *self.0.lock() = Some(outbox);
        Commands(inbox)
    }

    /// Sends a command to the owner in this process and waits for the answer.
    pub(crate) async fn ask(&self, partition: Partition, command: Command) -> Result<CommandOutcome, Error> {
        self.ask_for(command.wait_max(), partition, command).await
    }

    async fn ask_for(&self, wait_max: Duration, partition: Partition, command: Command) -> Result<CommandOutcome, Error> {
        let (answer, answered) = oneshot::channel();
        let is_taken = Arc::new(AtomicBool::new(false));
        let queued = Queued { asked: CommandRequest { command, partition, answer }, is_taken: Arc::clone(&is_taken) };
        let Some(listener) = self.0.lock().clone() else { return Err(Error::unavailable("nobody delivers here")) };
        match listener.try_send(queued) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return Err(Error::Overloaded { retry_after: Duration::from_secs(1) }),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(Error::unavailable("nobody delivers here")),
        }
        match tokio::time::timeout(wait_max, answered).await {
            Ok(Ok(commanded)) => Ok(commanded),
            Ok(Err(_)) => Err(Error::unavailable("whoever delivers here has stopped")),
            Err(_) if !is_taken.swap(true, Ordering::AcqRel) => Err(Error::unavailable("whoever delivers here does not answer")),
            Err(_) => Err(Error::CommitInDoubt),
        }
    }

    /// Whether an owner listens in this process.
    pub(crate) fn has_listener(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|listener| !listener.is_closed())
    }

    /// Whoever listens hears that nothing more will come.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }
}

/// A question for an owner who is handed it by somebody else, and where its answer will be.
pub(crate) fn question(partition: Partition, command: Command) -> (Queued, oneshot::Receiver<CommandOutcome>) {
    let (answer, answered) = oneshot::channel();
    (Queued { asked: CommandRequest { command, partition, answer }, is_taken: Arc::new(AtomicBool::new(false)) }, answered)
}

/// A channel that such questions go through.
pub(crate) fn channel() -> (mpsc::Sender<Queued>, Commands) {
    let (outbox, inbox) = mpsc::channel(COMMANDS_MAX);
    (outbox, Commands(inbox))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cancel() -> Command {
        let audit = Audit {
            actor: "key_1".to_owned(),
            address: None,
            action: "cancel".to_owned(),
            subject: "it".to_owned(),
            tenant: None,
            before: None,
            after: None,
        };
        Command::CancelDelivery { delivery: DeliveryId::from_bytes([1; 16]), audit }
    }

    #[tokio::test]
    async fn what_was_not_taken_in_time_is_withdrawn_and_what_was_is_not_known() {
        let (commander, short, long) = (CommandChannel::default(), Duration::from_millis(5), Duration::from_mins(1));
        let nobody = commander.ask(6, cancel()).await;
        assert!(matches!(nobody, Err(Error::Unavailable(_))), "at once: {nobody:?}");
        let mut commands = commander.listen();
        let late = commander.ask_for(short, 7, cancel()).await;
        assert!(matches!(late, Err(Error::Unavailable(_))), "nobody has taken it: {late:?}");
        let drop_it = async { commands.next().await.map(|asked| asked.partition) };
        let (dropped, taken) = tokio::join!(commander.ask_for(long, 8, cancel()), drop_it);
        assert_eq!(taken, Some(8), "the one that was withdrawn is passed over");
        assert!(matches!(dropped, Err(Error::Unavailable(_))), "{dropped:?}");
        let (held, asked) = tokio::join!(commander.ask_for(short, 9, cancel()), commands.next());
        assert!(matches!(held, Err(Error::CommitInDoubt)), "{held:?}");
        assert!(asked.expect("it was taken").answer.is_closed());
        let answer = async { commands.next().await.map(|asked| asked.answer.send(CommandOutcome::InFlight)) };
        let (answered, _) = tokio::join!(commander.ask_for(long, 10, cancel()), answer);
        assert_eq!(answered.expect("answered"), CommandOutcome::InFlight);
        commander.close();
        assert!(commands.next().await.is_none());
    }
}
