//! Joins, stays, owns: what makes this process the owner of lanes, and what ends that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use posthaste_store::{LEASE, NodeId, Partition, Refusal, Store};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use crate::lease::{Lease, Pulse};
use crate::owner::Wake;

/// How often it is said that this node is alive.
const RENEWED_EVERY: Duration = Duration::from_secs(1);
/// How long before its lease ends a node stops: what was begun then is over the wire before others take over.
const MARGIN: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(250);

pub(crate) struct Membership {
    store: Arc<dyn Store>,
    inbox: UnboundedSender<Wake>,
    lease: Lease,
    node: Mutex<Option<NodeId>>,
    owned: Mutex<Vec<Partition>>,
    pulse: Pulse,
    /// Claims nothing any more.
    is_leaving: AtomicBool,
}

impl Membership {
    pub(crate) fn new(store: Arc<dyn Store>, inbox: UnboundedSender<Wake>) -> Membership {
        Membership {
            store,
            inbox,
            lease: Lease::endless(),
            node: Mutex::new(None),
            owned: Mutex::new(Vec::new()),
            pulse: Pulse::new(),
            is_leaving: AtomicBool::new(false),
        }
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The loop has come round.
    pub(crate) fn tick(&self) {
        self.pulse.tick();
    }

    /// What is due is not begun here, for a reason of this node's own.
    pub(crate) fn stalled(&self, is_stalled: bool) {
        self.pulse.stalled(is_stalled);
    }

    pub(crate) fn node(&self) -> Option<NodeId> {
        *self.node.lock()
    }

    pub(crate) fn owns(&self, partition: Partition) -> bool {
        self.owned.lock().contains(&partition)
    }

    /// Stays a member, so that what is in flight can be recorded, and claims nothing any more. Answers what is to be given up.
    pub(crate) fn prepare_to_leave(&self) -> Vec<Partition> {
        self.is_leaving.store(true, Ordering::Release);
        // Where nobody else is, nobody takes over.
        if self.store.is_shared() { self.owned.lock().clone() } else { vec![] }
    }

    /// Is a member for as long as this runs.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            let commands = match self.join().await {
                Ok(commands) => commands,
                Err(error) => {
                    crate::housekeeping::complain("join", &error);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            self.stay().await;
            commands.abort();
            self.lease.end();
            self.owned.lock().clear();
            *self.node.lock() = None;
            let _ = self.inbox.send(Wake::LeaseEnded);
        }
    }

    /// Takes part under a new name, and owns what it gets.
    async fn join(&self) -> Result<JoinHandle<()>, posthaste_store::Error> {
        let node = NodeId(rand::random());
        let asked = Instant::now();
        self.store.join(node).await?;
        self.renewed(asked);
        *self.node.lock() = Some(node);
        let mut commands = self.store.commands(node);
        let inbox = self.inbox.clone();
        let listening = tokio::spawn(async move {
            while let Some(asked) = commands.next().await {
                if inbox.send(Wake::Asked(asked)).is_err() {
                    return;
                }
            }
        });
        if let Err(error) = self.claim(node).await {
            listening.abort();
            return Err(error);
        }
        Ok(listening)
    }

    /// Takes what nobody owns, and what was a dead node's.
    async fn claim(&self, node: NodeId) -> Result<Result<(), Refusal>, posthaste_store::Error> {
        let claimed = match self.store.claim(node, usize::MAX).await? {
            Ok(claimed) => claimed,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let owned: Vec<Partition> = claimed.partitions.iter().map(|(partition, _)| *partition).collect();
        let before = std::mem::replace(&mut *self.owned.lock(), owned.clone());
        if before != owned {
            tracing::info!(partitions = owned.len(), "partitions_owned");
            let _ = self.inbox.send(Wake::Owns(claimed));
        }
        Ok(Ok(()))
    }

    /// Returns when the lease has ended.
    async fn stay(&self) {
        loop {
            tokio::time::sleep(RENEWED_EVERY).await;
            let Some(node) = *self.node.lock() else { return };
            let asked = Instant::now();
            match self.store.renew(node).await {
                Ok(Ok(())) => self.renewed(asked),
                Ok(Err(refusal)) => {
                    tracing::error!(%refusal, "this node is taken for dead: it drops everything and joins anew");
                    return;
                }
                Err(error) => crate::housekeeping::complain("renew", &error),
            }
            if self.lease.has_ended() {
                tracing::error!("the lease could not be renewed: this node drops everything and joins anew");
                return;
            }
            let (has_stopped, is_stalled) = (self.pulse.has_stopped(), self.pulse.is_stalled());
            if has_stopped {
                tracing::error!("the delivery loop has not come round for ten seconds");
            }
            if (has_stopped || is_stalled) && self.store.is_shared() {
                // Others can do what this node cannot.
                self.pulse.stalled(false);
                let owned = self.owned.lock().clone();
                self.leave(owned).await;
                return;
            }
            if self.store.is_shared() && !self.is_leaving.load(Ordering::Acquire) {
                match self.claim(node).await {
                    Ok(Ok(())) => {}
                    Ok(Err(refusal)) => {
                        tracing::error!(%refusal, "this node is taken for dead: it drops everything and joins anew");
                        return;
                    }
                    Err(error) => crate::housekeeping::complain("claim", &error),
                }
            }
        }
    }

    fn renewed(&self, asked: Instant) {
        if self.store.is_shared() {
            self.lease.renewed(asked, LEASE.saturating_sub(MARGIN));
        } else {
            self.lease.never_ends();
        }
    }

    /// Nobody owns what was ours, from now on.
    pub(crate) async fn leave(&self, partitions: Vec<Partition>) {
        let Some(node) = *self.node.lock() else { return };
        if let Err(error) = self.store.hand_over(node, partitions, vec![]).await {
            tracing::warn!(%error, "partitions could not be handed over; they are taken over when the lease ends");
        }
    }
}
