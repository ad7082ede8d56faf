//! Joins, stays, owns: what makes this process the owner of lanes, and what ends that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use posthaste_store::{Epoch, LEASE, NodeId, PARTITIONS, Partition, Refusal, Store};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use crate::handed_over::HandedOver;
use crate::lease::{Lease, Pulse};
use crate::owner::Wake;

/// How often it is said that this node is alive.
const RENEWED_EVERY: Duration = Duration::from_secs(1);
/// How long before its lease ends a node stops: what was begun then is over the wire before others take over.
const MARGIN: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(250);
/// How long a node that has given up what it could not do leaves it to others, who claim once in [`RENEWED_EVERY`].
const STEP_BACK: Duration = Duration::from_secs(3);

pub(crate) struct Membership {
    store: Arc<dyn Store>,
    inbox: UnboundedSender<Wake>,
    lease: Lease,
    node: Mutex<Option<NodeId>>,
    owned: Mutex<Owned>,
    /// What the owner was last told to leave alone.
    handed_over: Arc<HandedOver>,
    pulse: Pulse,
}

/// What the owner has been told that it owns. Looked at and told under one lock, so that what it hears is in the order of what
/// is true.
#[derive(Default)]
struct Owned {
    partitions: Vec<(Partition, Epoch)>,
    /// Nothing more is owned, and what is still here is being handed over by the owner.
    is_leaving: bool,
}

/// Why a node is no member any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    /// It could not say in time that it is alive, or others have taken it for dead.
    Lease,
    /// It is alive and does not do its work, and has left that to others.
    Stalled,
}

impl Owned {
    fn names(&self) -> Vec<Partition> {
        self.partitions.iter().map(|(partition, _)| *partition).collect()
    }
}

impl Membership {
    pub(crate) fn new(store: Arc<dyn Store>, inbox: UnboundedSender<Wake>) -> Membership {
        Membership {
            store,
            inbox,
            lease: Lease::endless(),
            node: Mutex::new(None),
            owned: Mutex::default(),
            handed_over: Arc::default(),
            pulse: Pulse::new(),
        }
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Tells the owner when what it leaves alone has been recorded by the owner before. Never returns.
    pub(crate) async fn watch_handed_over(self: Arc<Self>) {
        Arc::clone(&self.handed_over).watch(Arc::clone(&self.store), self.inbox.clone()).await;
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
        let owned = self.owned.lock();
        !owned.is_leaving && owned.names().contains(&partition)
    }

    /// Stays a member, so that what is in flight can be recorded, and claims nothing any more. The owner is told what to give up,
    /// after it was told what it owns. Where nobody else is, nobody takes over.
    pub(crate) fn prepare_to_leave(&self) {
        let mut owned = self.owned.lock();
        owned.is_leaving = true;
        if self.store.is_shared() && !owned.partitions.is_empty() {
            let _ = self.inbox.send(Wake::GiveUp(owned.names()));
        }
    }

    /// Is a member for as long as this runs.
    pub(crate) async fn keep(self: Arc<Self>) {
        if self.node().is_some() {
            // It was started again: what it knew about its membership may be half true.
            self.end_membership();
        }
        loop {
            let commands = match self.join().await {
                Ok(commands) => commands,
                Err(error) => {
                    crate::housekeeping::complain("join", &error);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let ended = self.stay().await;
            drop(commands);
            self.end_membership();
            match ended {
                Ended::Lease => {}
                Ended::Stalled => self.step_back().await,
            }
        }
    }

    /// This node owns nothing any more, and the owner hears of it.
    fn end_membership(&self) {
        self.lease.end();
        self.owned.lock().partitions.clear();
        *self.node.lock() = None;
        self.handed_over.clear();
        let _ = self.inbox.send(Wake::LeaseEnded);
        // After that: whoever has not heard of it yet sends nothing more in the old one's name.
        self.lease.begin_tenure();
    }

    /// Otherwise this node would get again what it has just given up, before anybody else has looked.
    async fn step_back(&self) {
        tokio::time::sleep(STEP_BACK).await;
        while self.pulse.has_stopped() {
            tokio::time::sleep(PAUSE).await;
        }
        tracing::warn!("this node joins again");
    }

    /// Takes part under a new name, and owns what it gets.
    async fn join(&self) -> Result<JoinSet<()>, posthaste_store::Error> {
        let node = NodeId(rand::random());
        let asked = Instant::now();
        self.store.join(node).await?;
        self.renewed(asked);
        *self.node.lock() = Some(node);
        let mut commands = self.store.commands(node);
        let inbox = self.inbox.clone();
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            while let Some(asked) = commands.next().await {
                if inbox.send(Wake::Asked(asked)).is_err() {
                    return;
                }
            }
        });
        // A refusal is heard again when the lease is renewed. With an error the listener is dropped, and ends.
        let _ = self.claim(node).await?;
        Ok(listening)
    }

    /// Takes what nobody owns, and what was a dead node's.
    async fn claim(&self, node: NodeId) -> Result<Result<(), Refusal>, posthaste_store::Error> {
        let claimed = match self.store.claim(node, usize::MAX).await? {
            Ok(claimed) => claimed,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let retaken: Vec<Partition> = {
            let mut owned = self.owned.lock();
            if owned.is_leaving {
                // It was under way when this node began to leave. What it has got beside what the owner knows of, or again after
                // the owner has given it up, nobody here would ever deliver.
                let is_new = |got: &&(Partition, Epoch)| !owned.partitions.contains(*got);
                claimed.partitions.iter().filter(is_new).map(|(partition, _)| *partition).collect()
            } else {
                if owned.partitions != claimed.partitions {
                    tracing::info!(partitions = claimed.partitions.len(), "partitions_owned");
                    owned.partitions.clone_from(&claimed.partitions);
                    let leave_alone = claimed.leave_alone.clone();
                    let _ = self.inbox.send(Wake::Owns(claimed));
                    self.handed_over.add(&leave_alone);
                }
                vec![]
            }
        };
        if !retaken.is_empty() {
            self.leave(retaken).await;
        }
        Ok(Ok(()))
    }

    /// Returns when this is no member any more.
    async fn stay(&self) -> Ended {
        loop {
            tokio::time::sleep(RENEWED_EVERY).await;
            let Some(node) = *self.node.lock() else { return Ended::Lease };
            let asked = Instant::now();
            match self.store.renew(node).await {
                Ok(Ok(())) => self.renewed(asked),
                Ok(Err(refusal)) => {
                    tracing::error!(%refusal, "this node is taken for dead: it drops everything and joins anew");
                    return Ended::Lease;
                }
                Err(error) => crate::housekeeping::complain("renew", &error),
            }
            if self.lease.has_ended() {
                tracing::error!("the lease could not be renewed: this node drops everything and joins anew");
                return Ended::Lease;
            }
            let (has_stopped, is_stalled) = (self.pulse.has_stopped(), self.pulse.is_stalled());
            if has_stopped {
                tracing::error!("the delivery loop has not come round for ten seconds");
            }
            if (has_stopped || is_stalled) && self.store.is_shared() {
                // Others can do what this node cannot.
                self.pulse.stalled(false);
                let owned = self.owned.lock().names();
                self.leave(owned).await;
                return Ended::Stalled;
            }
            let is_leaving = self.owned.lock().is_leaving;
            if self.store.is_shared() && !is_leaving {
                match self.claim(node).await {
                    Ok(Ok(())) => {}
                    Ok(Err(refusal)) => {
                        tracing::error!(%refusal, "this node is taken for dead: it drops everything and joins anew");
                        return Ended::Lease;
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

    /// Nobody owns anything of ours from now on, also what a claim has got that was broken off before it could say so.
    pub(crate) async fn leave_everything(&self) {
        self.leave((0..PARTITIONS).collect()).await;
    }

    /// Nobody owns these from now on; what was not ours stays as it is.
    async fn leave(&self, partitions: Vec<Partition>) {
        let Some(node) = *self.node.lock() else { return };
        if let Err(error) = self.store.hand_over(node, partitions, vec![]).await {
            tracing::warn!(%error, "partitions could not be handed over; they are taken over when the lease ends");
        }
    }
}

#[cfg(test)]
mod tests {
    use posthaste_store::{Keyring, MasterKey, Options, Postgres};
    use posthaste_testpg::Server;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    struct World {
        membership: Membership,
        node: NodeId,
        wakes: UnboundedReceiver<Wake>,
        store: Arc<dyn Store>,
        _server: Server,
    }

    /// A node that has joined and owns everything.
    async fn world() -> World {
        let server = Server::start();
        let options = Options::new(Keyring::new(MasterKey::generate(), vec![]));
        let store: Arc<dyn Store> = Arc::new(Postgres::connect(&server.url(), options).await.unwrap());
        let (inbox, wakes) = unbounded_channel();
        let membership = Membership::new(Arc::clone(&store), inbox);
        drop(membership.join().await.unwrap());
        let node = membership.node().unwrap();
        World { membership, node, wakes, store, _server: server }
    }

    impl World {
        /// What another node gets that comes now.
        async fn left_for_others(&self) -> usize {
            let other = NodeId(rand::random());
            self.store.join(other).await.unwrap();
            self.store.claim(other, usize::MAX).await.unwrap().unwrap().partitions.len()
        }
    }

    #[tokio::test]
    async fn i33_a_claim_that_was_under_way_when_a_node_left_keeps_nothing_from_others() {
        let mut world = world().await;
        world.membership.prepare_to_leave();
        let Some(Wake::Owns(claimed)) = world.wakes.recv().await else { panic!("it was told what it owns") };
        assert_eq!(claimed.partitions.len(), usize::from(PARTITIONS));
        let Some(Wake::GiveUp(partitions)) = world.wakes.recv().await else { panic!("and then what it gives up") };
        assert_eq!(partitions.len(), usize::from(PARTITIONS));
        // The owner does as it was told, and the claim that had begun before looks after that.
        world.store.hand_over(world.node, partitions, vec![]).await.unwrap();
        world.membership.claim(world.node).await.unwrap().unwrap();
        assert_eq!(world.left_for_others().await, usize::from(PARTITIONS), "it got everything again, and gave it up");
        assert!(world.wakes.try_recv().is_err(), "the owner has heard nothing of it");
    }

    #[tokio::test]
    async fn i33_a_claim_that_looked_before_leaves_what_the_owner_has_to_hand_over() {
        let world = world().await;
        world.membership.prepare_to_leave();
        world.membership.claim(world.node).await.unwrap().unwrap();
        // Others would send what is in flight here once more: the owner has not said yet what that is.
        assert_eq!(world.left_for_others().await, 0);
        assert!(!world.membership.owns(0), "and no housekeeping is begun");
        world.membership.leave_everything().await;
        assert_eq!(world.left_for_others().await, usize::from(PARTITIONS));
    }
}
