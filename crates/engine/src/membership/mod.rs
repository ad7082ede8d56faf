//! Joins, stays, owns: what makes this process the owner of lanes, and what ends that.
//!
//! `machine.rs` decides; this file makes its calls and tells the owner.

mod machine;

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use posthaste_store::{GivenUp, NodeId, Partition, Refusal, Store};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use crate::handed_over::HandedOver;
use crate::lease::{Heartbeat, Lease};
use crate::owner::Input;

pub use machine::{
    LeaveReason, LoopHealth, MembershipCall, MembershipMachine, MembershipNews, MembershipProgress, MembershipReply, RENEWED_EVERY,
};

pub(crate) struct Membership {
    store: Arc<dyn Store>,
    inbox: UnboundedSender<Input>,
    lease: Lease,
    started: Instant,
    node: Mutex<Option<NodeId>>,
    /// Advanced and told to the owner under one lock, so that what it hears is in the order of what is true.
    machine: Mutex<MembershipMachine>,
    /// What the owner was last told to leave alone.
    handed_over: Arc<HandedOver>,
    heartbeat: Heartbeat,
}

impl Membership {
    pub(crate) fn new(store: Arc<dyn Store>, inbox: UnboundedSender<Input>) -> Membership {
        let machine = Mutex::new(MembershipMachine::new(store.is_shared()));
        Membership {
            store,
            inbox,
            lease: Lease::endless(),
            started: Instant::now(),
            node: Mutex::new(None),
            machine,
            handed_over: Arc::default(),
            heartbeat: Heartbeat::new(),
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
        self.heartbeat.tick();
    }

    /// What is due is not begun here, for a reason of this node's own.
    pub(crate) fn stalled(&self, is_stalled: bool) {
        self.heartbeat.stalled(is_stalled);
    }

    pub(crate) fn node(&self) -> Option<NodeId> {
        *self.node.lock()
    }

    pub(crate) fn owns(&self, partition: Partition) -> bool {
        self.machine.lock().owns(partition)
    }

    /// Stays a member, so that what is in flight can be recorded, and claims nothing any more. The owner is told what to give up,
    /// after it was told what it owns.
    pub(crate) fn prepare_to_leave(&self) {
        let mut machine = self.machine.lock();
        let given_up = machine.prepare_to_leave();
        if !given_up.is_empty() {
            let _ = self.inbox.send(Input::GiveUp(given_up));
        }
    }

    /// Is a member for as long as this runs.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut listening = JoinSet::new();
        let mut next = self.advance(MembershipMachine::start);
        loop {
            let asked_at = self.started.elapsed();
            let reply = self.make(next, &mut listening).await;
            let health = LoopHealth { has_stopped: self.heartbeat.has_stopped(), is_stalled: self.heartbeat.is_stalled() };
            if health.has_stopped {
                tracing::error!("the delivery loop has not come round for ten seconds");
            }
            let now = self.started.elapsed();
            next = self.advance(|machine| machine.completed(now, asked_at, reply, health));
        }
    }

    /// Advances the machine, and does what changes for this node.
    fn advance(&self, step: impl FnOnce(&mut MembershipMachine) -> MembershipProgress) -> MembershipCall {
        let mut machine = self.machine.lock();
        let had_stepped_down = machine.has_stepped_down();
        let MembershipProgress { news, next } = step(&mut machine);
        if had_stepped_down && next == MembershipCall::Join {
            tracing::warn!("this node joins again");
        }
        match machine.lease_ends_at() {
            Some(at) => self.lease.set_end(self.started + at),
            None => self.lease.never_ends(),
        }
        match news {
            None => {}
            Some(MembershipNews::Owns(claimed)) => {
                tracing::info!(partitions = claimed.partitions.len(), "partitions_owned");
                let in_flight_elsewhere = claimed.in_flight_elsewhere.clone();
                let _ = self.inbox.send(Input::PartitionsClaimed(claimed));
                self.handed_over.add(&in_flight_elsewhere);
            }
            Some(MembershipNews::Left(ended)) => {
                match ended {
                    LeaveReason::Lease => tracing::error!("the lease has ended: this node drops everything and joins again"),
                    LeaveReason::Stalled => tracing::error!("this node does not deliver what is due: it leaves that to others"),
                }
                self.heartbeat.stalled(false);
                *self.node.lock() = None;
                self.handed_over.clear();
                let _ = self.inbox.send(Input::LeaseEnded);
                // After that: whatever has not heard of it yet sends nothing more under the old name.
                self.lease.begin_term();
            }
        }
        next
    }

    async fn make(&self, call: MembershipCall, listening: &mut JoinSet<()>) -> MembershipReply {
        match call {
            MembershipCall::Wait(time) => {
                tokio::time::sleep(time).await;
                MembershipReply::Waited
            }
            MembershipCall::Join => {
                listening.abort_all();
                let node = NodeId(rand::random());
                let joined = done("join", self.store.join(node).await);
                if joined.is_some() {
                    *self.node.lock() = Some(node);
                    self.listen(node, listening);
                }
                MembershipReply::Joined(joined)
            }
            MembershipCall::Claim => match self.node() {
                None => MembershipReply::Claimed(Some(Err(Refusal::LeaseEnded))),
                Some(node) => MembershipReply::Claimed(done("claim", self.store.claim(node, usize::MAX).await)),
            },
            MembershipCall::Renew => match self.node() {
                None => MembershipReply::Renewed(Some(Err(Refusal::LeaseEnded))),
                Some(node) => MembershipReply::Renewed(done("renew", self.store.renew(node).await)),
            },
            MembershipCall::HandOver(partitions) => {
                self.leave(GivenUp::Partitions(partitions)).await;
                MembershipReply::HandedOver
            }
        }
    }

    /// Hears what other processes ask the owner of a lane to do.
    fn listen(&self, node: NodeId, listening: &mut JoinSet<()>) {
        let mut commands = self.store.commands(node);
        let inbox = self.inbox.clone();
        listening.spawn(async move {
            while let Some(asked) = commands.next().await {
                if inbox.send(Input::Command(asked)).is_err() {
                    return;
                }
            }
        });
    }

    /// No one owns anything of this node's from now on, nor what a claim has got that was broken off before it could say so.
    pub(crate) async fn leave_everything(&self) {
        self.leave(GivenUp::Everything).await;
    }

    /// No one owns these from now on; what was not this node's stays as it is.
    async fn leave(&self, given_up: GivenUp) {
        let Some(node) = self.node() else { return };
        if let Err(error) = self.store.hand_over(node, given_up, vec![]).await {
            tracing::warn!(%error, "partitions could not be handed over; they are taken over when the lease ends");
        }
    }
}

/// What the store has answered, if it has.
fn done<T>(call: &'static str, answer: Result<T, posthaste_store::Error>) -> Option<T> {
    answer.inspect_err(|error| crate::housekeeping::complain(call, error)).ok()
}

#[cfg(test)]
mod tests {
    use posthaste_store::{Keyring, MasterKey, Options, PARTITIONS, Postgres};
    use posthaste_testpg::Server;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    struct World {
        membership: Membership,
        node: NodeId,
        inputs: UnboundedReceiver<Input>,
        store: Arc<dyn Store>,
        _server: Server,
        listening: JoinSet<()>,
    }

    /// A node that has joined and owns everything.
    async fn world() -> World {
        let server = Server::start();
        let options = Options::new(Keyring::new(MasterKey::generate(), vec![]));
        let store: Arc<dyn Store> = Arc::new(Postgres::connect(&server.url(), options).await.unwrap());
        let (inbox, inputs) = unbounded_channel();
        let membership = Membership::new(Arc::clone(&store), inbox);
        let world = World { membership, node: NodeId(0), inputs, store, _server: server, listening: JoinSet::new() };
        world.joined().await
    }

    impl World {
        async fn joined(mut self) -> World {
            let claim = self.completed(MembershipCall::Join).await;
            assert_eq!(claim, MembershipCall::Claim);
            self.completed(claim).await;
            self.node = self.membership.node().unwrap();
            self
        }

        /// Makes one call, and answers which comes next.
        async fn completed(&mut self, call: MembershipCall) -> MembershipCall {
            let asked_at = self.membership.started.elapsed();
            let reply = self.membership.make(call, &mut self.listening).await;
            let now = self.membership.started.elapsed();
            self.membership.advance(|machine| machine.completed(now, asked_at, reply, LoopHealth::default()))
        }

        /// Claims, and gives back what it should not have got.
        async fn claim(&mut self) {
            if let next @ MembershipCall::HandOver(_) = self.completed(MembershipCall::Claim).await {
                self.completed(next).await;
            }
        }

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
        let Some(Input::PartitionsClaimed(claimed)) = world.inputs.recv().await else { panic!("it was told what it owns") };
        assert_eq!(claimed.partitions.len(), usize::from(PARTITIONS));
        let Some(Input::GiveUp(partitions)) = world.inputs.recv().await else { panic!("and then what it gives up") };
        assert_eq!(partitions.len(), usize::from(PARTITIONS));
        // The owner does as it was told, and the claim that had begun before looks after that.
        world.store.hand_over(world.node, GivenUp::Partitions(claimed.partitions), vec![]).await.unwrap();
        world.claim().await;
        assert_eq!(world.left_for_others().await, usize::from(PARTITIONS), "it got everything again, and gave it up");
        assert!(world.inputs.try_recv().is_err(), "the owner has heard nothing of it");
    }

    #[tokio::test]
    async fn i33_a_claim_that_looked_before_leaves_what_the_owner_has_to_hand_over() {
        let mut world = world().await;
        world.membership.prepare_to_leave();
        world.claim().await;
        // Others would send what is in flight here once more: the owner has not said yet what that is.
        assert_eq!(world.left_for_others().await, 0);
        assert!(!world.membership.owns(0), "and no housekeeping is begun");
        world.membership.leave_everything().await;
        assert_eq!(world.left_for_others().await, usize::from(PARTITIONS));
    }
}
