//! What other processes committed, as far as they announce it. An announcement may be lost: a sweep finds the rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use posthaste_core::id::EndpointId;
use tokio::sync::mpsc;

/// Announcements that may wait for the engine. What does not fit is found by a scan.
const ANNOUNCEMENTS_MAX: usize = 1024;

/// An announcement of another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RemoteCommit {
    /// These endpoints, in partitions of this node, have new deliveries.
    Endpoints(Vec<EndpointId>),
    /// Some announcements were lost or too large: look for new deliveries.
    Unknown,
}

/// The receiving end.
#[derive(Debug)]
pub struct RemoteCommits {
    inbox: mpsc::Receiver<Vec<EndpointId>>,
    has_missed: Arc<AtomicBool>,
    wake: Arc<tokio::sync::Notify>,
}

impl RemoteCommits {
    /// The next announcement, or `None` if no other process can commit anything.
    pub async fn next(&mut self) -> Option<RemoteCommit> {
        loop {
            if self.has_missed.swap(false, Ordering::Relaxed) {
                return Some(RemoteCommit::Unknown);
            }
            tokio::select! {
                endpoints = self.inbox.recv() => return endpoints.map(RemoteCommit::Endpoints),
                () = self.wake.notified() => {}
            }
        }
    }
}

/// The sending end.
#[derive(Clone, Debug)]
pub(crate) struct RemoteCommitSender {
    outbox: mpsc::Sender<Vec<EndpointId>>,
    has_missed: Arc<AtomicBool>,
    wake: Arc<tokio::sync::Notify>,
}

impl RemoteCommitSender {
    pub(crate) fn send(&self, endpoints: Vec<EndpointId>) {
        if self.outbox.try_send(endpoints).is_err() {
            self.missed();
        }
    }

    /// Something was committed, and which endpoints it is for is not known.
    pub(crate) fn missed(&self) {
        self.has_missed.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }
}

pub(crate) fn channel() -> (RemoteCommitSender, RemoteCommits) {
    let (outbox, inbox) = mpsc::channel(ANNOUNCEMENTS_MAX);
    let (has_missed, wake) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Notify::new()));
    let sender = RemoteCommitSender { outbox, has_missed: Arc::clone(&has_missed), wake: Arc::clone(&wake) };
    (sender, RemoteCommits { inbox, has_missed, wake })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(number: u8) -> EndpointId {
        EndpointId::from_bytes([number; 16])
    }

    #[tokio::test]
    async fn what_does_not_fit_is_reported_as_unknown() {
        let (sender, mut commits) = channel();
        sender.send(vec![endpoint(1)]);
        assert_eq!(commits.next().await, Some(RemoteCommit::Endpoints(vec![endpoint(1)])));
        for _ in 0..=ANNOUNCEMENTS_MAX {
            sender.send(vec![endpoint(2)]);
        }
        assert_eq!(commits.next().await, Some(RemoteCommit::Unknown));
        assert_eq!(commits.next().await, Some(RemoteCommit::Endpoints(vec![endpoint(2)])));
        drop(sender);
        while commits.next().await.is_some() {}
    }
}
