//! What a node does to be a member and to own partitions: a pure state machine.
//!
//! One call is made at a time. `mod.rs` makes it with tokio, the simulator in virtual time; each tells the machine how the call
//! ended, and hears what changes for the node and which call comes next.
//!
//! - A lease counts from when the request for it was sent, and ends [`MARGIN`] before the database says so.
//! - A node that is refused, or cannot renew its lease in time, drops everything and joins again under another name.
//! - A claim whose answer is lost is made again: the next one says all that the node owns.
//! - A node that leaves renews its lease until it is gone, so that what is in flight can be recorded, and claims nothing any more.

use std::time::Duration;

use posthaste_core::plant::{self, Plant};
use posthaste_store::{Claimed, Epoch, LEASE, Partition, Refusal};

/// How often a node says that it is alive.
pub const RENEWED_EVERY: Duration = Duration::from_secs(1);
/// How long before its lease ends a node stops: what was begun then is over the wire before others take over.
const MARGIN: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(250);
/// How long a node that has given up what it could not do leaves it to others, who claim once in [`RENEWED_EVERY`].
const STEP_BACK: Duration = Duration::from_secs(3);

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipCall {
    /// Join under a new name.
    Join,
    /// Take what no live node owns.
    Claim,
    Renew,
    /// Give these up without naming anything in flight.
    HandOver(Vec<(Partition, Epoch)>),
    Wait(Duration),
}

/// How a call ended. `None`: it failed, and whether it was carried out is not known.
#[derive(Clone, PartialEq, Debug)]
pub enum MembershipReply {
    Joined(Option<()>),
    Claimed(Option<Result<Claimed, Refusal>>),
    Renewed(Option<Result<(), Refusal>>),
    HandedOver,
    Waited,
}

/// What changes for the node, in this order: the lease, then what the owner is told.
#[derive(Clone, PartialEq, Debug)]
pub struct MembershipProgress {
    pub news: Option<MembershipNews>,
    pub next: MembershipCall,
}

#[derive(Clone, PartialEq, Debug)]
pub enum MembershipNews {
    /// It owns these from now on, and nothing else.
    Owns(Claimed),
    /// It owns nothing any more.
    Left(LeaveReason),
}

/// Why a node is no member any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaveReason {
    /// It could not say in time that it is alive, or others have taken it for dead.
    Lease,
    /// It is alive and does not do its work, and has left that to others.
    Stalled,
}

/// Whether the delivery loop of this node works.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LoopHealth {
    /// It has not come round for a while.
    pub has_stopped: bool,
    /// It comes round, and begins nothing of what is due.
    pub is_stalled: bool,
}

/// Times are since some fixed moment of the process, by a clock that cannot be set.
#[derive(Debug)]
pub struct MembershipMachine {
    /// Whether others can take over.
    is_shared: bool,
    phase: Phase,
    owned: Vec<(Partition, Epoch)>,
    /// Nothing more is owned, and what is still here is being handed over by the owner.
    is_leaving: bool,
    /// `None` where no one else can take over.
    lease_ends_at: Option<Duration>,
}

/// What the call that is being made, or that comes after the present wait, is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Joining,
    /// A member that has not claimed anything yet.
    FirstClaim,
    Resting,
    Renewing,
    Claiming,
    /// Gives back what a claim has got after the node began to leave.
    GivingBack,
    /// Gives up what it owns and does not deliver.
    SteppingDown,
    SteppedDown,
}

impl MembershipMachine {
    pub fn new(is_shared: bool) -> MembershipMachine {
        MembershipMachine { is_shared, phase: Phase::Joining, owned: vec![], is_leaving: false, lease_ends_at: None }
    }

    /// The first call, or the first one after the task that made them has failed: what was known about the membership may be half true.
    pub fn start(&mut self) -> MembershipProgress {
        let news = (self.phase != Phase::Joining).then(|| self.end(LeaveReason::Lease));
        self.phase = Phase::Joining;
        MembershipProgress { news, next: MembershipCall::Join }
    }

    /// When this node has to stop sending, by its own clock. `None`: never.
    pub fn lease_ends_at(&self) -> Option<Duration> {
        self.lease_ends_at
    }

    pub fn owns(&self, partition: Partition) -> bool {
        !self.is_leaving && self.owned.iter().any(|(owned, _)| *owned == partition)
    }

    pub fn owned(&self) -> Vec<Partition> {
        self.owned.iter().map(|(partition, _)| *partition).collect()
    }

    /// Claims nothing any more. Answers what the owner has to give up: where no one else is, no one takes over.
    pub fn prepare_to_leave(&mut self) -> Vec<Partition> {
        self.is_leaving = true;
        if self.is_shared { self.owned() } else { vec![] }
    }

    /// It is a member that only waits to renew its lease: from here on it would renew it again and again.
    pub fn is_resting(&self) -> bool {
        self.phase == Phase::Resting
    }

    /// It has left its work to others, and waits before it joins again.
    pub fn has_stepped_down(&self) -> bool {
        self.phase == Phase::SteppedDown
    }

    /// The lease was renewed by a request that was sent at `asked_at`: the database may have counted from then on.
    pub fn renewed(&mut self, asked_at: Duration) {
        self.lease_ends_at = self.is_shared.then(|| asked_at + LEASE.saturating_sub(MARGIN));
    }

    /// A call that was made at `asked_at` has ended, and it is `now`.
    pub fn completed(
        &mut self,
        now: Duration,
        asked_at: Duration,
        reply: MembershipReply,
        health: LoopHealth,
    ) -> MembershipProgress {
        match reply {
            MembershipReply::Joined(Some(())) => {
                self.renewed(asked_at);
                self.call(Phase::FirstClaim, MembershipCall::Claim)
            }
            MembershipReply::Joined(None) => self.call(Phase::Joining, MembershipCall::Wait(PAUSE)),
            MembershipReply::Renewed(Some(Err(_))) | MembershipReply::Claimed(Some(Err(_))) => {
                self.drop_everything(LeaveReason::Lease)
            }
            MembershipReply::Renewed(renewed) => {
                if renewed.is_some() {
                    self.renewed(if plant::is(Plant::LeaseCountsFromAnswer) { now } else { asked_at });
                }
                self.after_renewal(now, health)
            }
            MembershipReply::Claimed(Some(Ok(claimed))) => self.claimed(claimed),
            // A member that owns nothing does not wait for its next renewal.
            MembershipReply::Claimed(None) if self.phase == Phase::FirstClaim => self.first_claim_failed(now),
            MembershipReply::HandedOver if self.phase == Phase::SteppingDown => self.drop_everything(LeaveReason::Stalled),
            MembershipReply::Claimed(None) | MembershipReply::HandedOver => self.rest(),
            MembershipReply::Waited => self.waited(health),
        }
    }

    fn waited(&mut self, health: LoopHealth) -> MembershipProgress {
        match self.phase {
            Phase::FirstClaim => self.call(Phase::FirstClaim, MembershipCall::Claim),
            Phase::SteppedDown if health.has_stopped => self.call(Phase::SteppedDown, MembershipCall::Wait(PAUSE)),
            Phase::Joining | Phase::SteppedDown => self.call(Phase::Joining, MembershipCall::Join),
            Phase::Resting | Phase::Renewing | Phase::Claiming | Phase::GivingBack | Phase::SteppingDown => {
                self.call(Phase::Renewing, MembershipCall::Renew)
            }
        }
    }

    fn first_claim_failed(&mut self, now: Duration) -> MembershipProgress {
        if self.has_ended(now) {
            self.drop_everything(LeaveReason::Lease)
        } else {
            self.call(Phase::FirstClaim, MembershipCall::Wait(PAUSE))
        }
    }

    fn after_renewal(&mut self, now: Duration, health: LoopHealth) -> MembershipProgress {
        if self.has_ended(now) {
            return self.drop_everything(LeaveReason::Lease);
        }
        if (health.has_stopped || health.is_stalled) && self.is_shared {
            // Others can do what this node cannot.
            return self.call(Phase::SteppingDown, MembershipCall::HandOver(self.owned.clone()));
        }
        if self.is_shared && !self.is_leaving { self.call(Phase::Claiming, MembershipCall::Claim) } else { self.rest() }
    }

    fn has_ended(&self, now: Duration) -> bool {
        self.lease_ends_at.is_some_and(|at| at <= now)
    }

    fn claimed(&mut self, claimed: Claimed) -> MembershipProgress {
        if self.is_leaving {
            // The claim was being made when this node began to leave. What it has got beyond what the owner knows of, or again after the
            // owner has given it up, this node would never deliver.
            let is_new = |got: &&(Partition, Epoch)| !self.owned.contains(*got);
            let retaken: Vec<(Partition, Epoch)> = claimed.partitions.iter().filter(is_new).copied().collect();
            if retaken.is_empty() {
                return self.rest();
            }
            return self.call(Phase::GivingBack, MembershipCall::HandOver(retaken));
        }
        let mut progress = self.rest();
        // Under a new epoch it is owned again: in between another node may have had it.
        if self.owned != claimed.partitions {
            self.owned.clone_from(&claimed.partitions);
            progress.news = Some(MembershipNews::Owns(claimed));
        }
        progress
    }

    fn rest(&mut self) -> MembershipProgress {
        self.call(Phase::Resting, MembershipCall::Wait(RENEWED_EVERY))
    }

    fn call(&mut self, phase: Phase, next: MembershipCall) -> MembershipProgress {
        self.phase = phase;
        MembershipProgress { news: None, next }
    }

    fn drop_everything(&mut self, ended: LeaveReason) -> MembershipProgress {
        let news = Some(self.end(ended));
        match ended {
            LeaveReason::Lease => MembershipProgress { news, ..self.call(Phase::Joining, MembershipCall::Join) },
            // Otherwise this node would get again what it has just given up, before any other has looked.
            LeaveReason::Stalled => MembershipProgress { news, ..self.call(Phase::SteppedDown, MembershipCall::Wait(STEP_BACK)) },
        }
    }

    fn end(&mut self, ended: LeaveReason) -> MembershipNews {
        self.owned.clear();
        self.lease_ends_at = Some(Duration::ZERO);
        MembershipNews::Left(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: LoopHealth = LoopHealth { has_stopped: false, is_stalled: false };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn owning(partitions: &[(Partition, Epoch)]) -> Claimed {
        Claimed { partitions: partitions.to_vec(), ..Claimed::default() }
    }

    /// A member at second 10 that owns partition 3.
    fn member() -> MembershipMachine {
        let mut machine = MembershipMachine::new(true);
        machine.start();
        machine.completed(seconds(10), seconds(10), MembershipReply::Joined(Some(())), WELL);
        machine.completed(seconds(10), seconds(10), MembershipReply::Claimed(Some(Ok(owning(&[(3, 1)])))), WELL);
        machine
    }

    fn renew(machine: &mut MembershipMachine, asked_at: u64, now: u64, reply: Option<Result<(), Refusal>>) -> MembershipProgress {
        machine.completed(seconds(now), seconds(now), MembershipReply::Waited, WELL);
        machine.completed(seconds(now), seconds(asked_at), MembershipReply::Renewed(reply), WELL)
    }

    #[test]
    fn i34_a_lease_counts_from_when_it_was_asked_for_and_ends_before_the_database_says_so() {
        let mut machine = member();
        assert_eq!(machine.lease_ends_at(), Some(seconds(10) + LEASE.saturating_sub(MARGIN)));
        let progress = renew(&mut machine, 12, 16, Some(Ok(())));
        assert_eq!(progress, MembershipProgress { news: None, next: MembershipCall::Claim });
        assert_eq!(machine.lease_ends_at(), Some(seconds(12) + LEASE.saturating_sub(MARGIN)));
        let progress = renew(&mut machine, 12, 17, None);
        assert_eq!(
            progress,
            MembershipProgress { news: Some(MembershipNews::Left(LeaveReason::Lease)), next: MembershipCall::Join }
        );
        assert!(!machine.owns(3));
    }

    #[test]
    fn a_renewal_that_fails_is_made_again_while_the_lease_lasts_and_a_refusal_ends_it() {
        let mut machine = member();
        assert_eq!(renew(&mut machine, 11, 11, None).next, MembershipCall::Claim);
        let progress = renew(&mut machine, 12, 12, Some(Err(Refusal::LeaseEnded)));
        assert_eq!(progress.news, Some(MembershipNews::Left(LeaveReason::Lease)));
    }

    #[test]
    fn the_owner_hears_of_a_claim_only_if_it_changes_something() {
        let mut machine = member();
        renew(&mut machine, 11, 11, Some(Ok(())));
        let claim = |machine: &mut MembershipMachine, partitions: &[(Partition, Epoch)]| {
            machine.completed(seconds(11), seconds(11), MembershipReply::Claimed(Some(Ok(owning(partitions)))), WELL).news
        };
        assert_eq!(claim(&mut machine, &[(3, 1)]), None);
        assert_eq!(claim(&mut machine, &[(3, 2)]), Some(MembershipNews::Owns(owning(&[(3, 2)]))));
        assert_eq!(claim(&mut machine, &[]), Some(MembershipNews::Owns(owning(&[]))));
    }

    #[test]
    fn i33_a_leaver_claims_nothing_and_gives_back_what_a_claim_has_got_meanwhile() {
        let mut machine = member();
        renew(&mut machine, 11, 11, Some(Ok(())));
        assert_eq!(machine.prepare_to_leave(), [3]);
        assert!(!machine.owns(3));
        let claimed = owning(&[(3, 1), (4, 9)]);
        let progress = machine.completed(seconds(11), seconds(11), MembershipReply::Claimed(Some(Ok(claimed))), WELL);
        assert_eq!(progress, MembershipProgress { news: None, next: MembershipCall::HandOver(vec![(4, 9)]) });
        machine.completed(seconds(11), seconds(11), MembershipReply::HandedOver, WELL);
        assert_eq!(renew(&mut machine, 12, 12, Some(Ok(()))).next, MembershipCall::Wait(RENEWED_EVERY));
    }

    #[test]
    fn a_node_that_begins_nothing_of_what_is_due_leaves_it_to_others_for_a_while() {
        let mut machine = member();
        let stalled = LoopHealth { is_stalled: true, ..WELL };
        machine.completed(seconds(11), seconds(11), MembershipReply::Waited, WELL);
        let progress = machine.completed(seconds(11), seconds(11), MembershipReply::Renewed(Some(Ok(()))), stalled);
        assert_eq!(progress.next, MembershipCall::HandOver(vec![(3, 1)]));
        let progress = machine.completed(seconds(11), seconds(11), MembershipReply::HandedOver, WELL);
        assert_eq!(progress.news, Some(MembershipNews::Left(LeaveReason::Stalled)));
        assert_eq!(progress.next, MembershipCall::Wait(STEP_BACK));
        let stopped = LoopHealth { has_stopped: true, ..WELL };
        let progress = machine.completed(seconds(14), seconds(11), MembershipReply::Waited, stopped);
        assert_eq!(progress.next, MembershipCall::Wait(PAUSE));
        assert_eq!(machine.completed(seconds(15), seconds(14), MembershipReply::Waited, WELL).next, MembershipCall::Join);
    }

    #[test]
    fn where_no_one_else_can_take_over_a_lease_never_ends_and_nothing_is_claimed_twice() {
        let mut machine = MembershipMachine::new(false);
        machine.start();
        machine.completed(seconds(1), seconds(1), MembershipReply::Joined(Some(())), WELL);
        machine.completed(seconds(1), seconds(1), MembershipReply::Claimed(Some(Ok(owning(&[(3, 1)])))), WELL);
        assert_eq!(machine.lease_ends_at(), None);
        assert_eq!(renew(&mut machine, 100, 200, None).next, MembershipCall::Wait(RENEWED_EVERY));
        assert!(machine.prepare_to_leave().is_empty());
    }
}
