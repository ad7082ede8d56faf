//! Who is a member and owns what: the engine's own membership of each node, against the model of the database.
//!
//! A node renews its lease once a second, for ever. In a world that lasts for days only what surrounds some trouble is run: while
//! every partition has a live owner, a node rests, and its lease does not end. At the next trouble each node goes on as if it had
//! renewed its lease within the last second.

use std::time::Duration;

use posthaste_core::time::Timestamp;
use posthaste_engine::{
    Input, LoopHealth, MembershipCall, MembershipMachine, MembershipNews, MembershipProgress, MembershipReply, RENEWED_EVERY,
};
use posthaste_store::{Claimed, LEASE, Refusal};
use rand::RngExt;

use super::store::Kind;
use super::{Step, World};
use crate::checker::Violation;

/// How long after the last trouble the membership still runs.
const TROUBLED_FOR: Duration = Duration::from_secs(15);
/// How long a task that has panicked is left alone before it is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

impl World {
    /// A node begins to be a member.
    pub(super) fn join(&mut self, node: usize) -> Result<(), Violation> {
        self.nodes[node].membership = MembershipMachine::new(self.store.kind == Kind::Postgres);
        self.restart_membership(node, self.nodes[node].incarnation)
    }

    /// The task that keeps a node a member is started, or started again.
    pub(super) fn restart_membership(&mut self, node: usize, incarnation: u64) -> Result<(), Violation> {
        if self.nodes[node].incarnation != incarnation {
            return Ok(());
        }
        let progress = self.nodes[node].membership.start();
        self.member_goes_on(node, progress, false)
    }

    /// Something is about to happen to a node: every lease counts from here on.
    pub(super) fn trouble_begins(&mut self) {
        self.troubled_at = self.real;
        for node in 0..self.nodes.len() {
            if !self.nodes[node].rests {
                continue;
            }
            self.nodes[node].rests = false;
            let ago = self.soon(999);
            let asked_at =
                Timestamp::from_millis(self.real.as_millis() - i64::try_from(ago.as_millis()).expect("less than a second"));
            let uptime = self.uptime_at(asked_at);
            self.nodes[node].membership.renewed(uptime);
            self.store.renew((node, self.nodes[node].member), asked_at + LEASE);
            let incarnation = self.nodes[node].incarnation;
            self.later(
                RENEWED_EVERY.saturating_sub(ago),
                Step::MemberReply { node, incarnation, asked_at, reply: Box::new(Some(MembershipReply::Waited)) },
            );
        }
    }

    /// What a clock that cannot be set shows.
    fn uptime_at(&self, at: Timestamp) -> Duration {
        at.since(self.began_at)
    }

    /// Whether a node may still send, by what it knows of its lease.
    pub(super) fn has_lease(&self, node: usize) -> bool {
        let now = self.uptime_at(self.real);
        self.nodes[node].rests || self.nodes[node].membership.lease_ends_at().is_none_or(|at| now < at)
    }

    /// The store sees a call of a node's membership.
    pub(super) fn member_calls(&mut self, node: usize, incarnation: u64, asked_at: Timestamp, call: MembershipCall) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        let is_renewal = call == MembershipCall::Renew;
        let is_out = self.real < self.store_fails_until;
        let chance = self.random.random_range(0..300u32);
        let reply = match chance {
            0 if !self.is_healed => None,
            _ if is_out || chance == 1 && !self.is_healed => Some(failed(&call)),
            // It was written, and the node does not hear of it.
            2 if !self.is_healed => {
                self.member_reply(node, call.clone());
                Some(failed(&call))
            }
            _ => Some(self.member_reply(node, call)),
        };
        let delay = self.member_call_takes();
        if is_renewal && self.is_well(node) && std::mem::take(&mut self.nodes[node].freezes_at_renewal) && !self.is_healed {
            self.visit("fault", "frozen before it heard of its renewal");
            self.freeze_now(node);
        }
        self.later(delay, Step::MemberReply { node, incarnation, asked_at, reply: Box::new(reply) });
    }

    /// A node hears how a call of its membership ended. `None`: it has panicked.
    pub(super) fn member_hears(
        &mut self,
        node: usize,
        incarnation: u64,
        asked_at: Timestamp,
        reply: Option<MembershipReply>,
    ) -> Result<(), Violation> {
        if self.nodes[node].incarnation != incarnation {
            return Ok(());
        }
        let Some(reply) = reply else {
            self.visit("fault", "membership panicked");
            self.later(RESTART_PAUSE, Step::MembershipRestarts { node, incarnation });
            return Ok(());
        };
        let (now, asked_at) = (self.uptime_at(self.real), self.uptime_at(asked_at));
        // What it owns is what the database says.
        let is_settled = matches!(reply, MembershipReply::Claimed(Some(Ok(_))));
        let progress = self.nodes[node].membership.completed(now, asked_at, reply, LoopHealth::default());
        self.member_goes_on(node, progress, is_settled)
    }

    fn member_goes_on(&mut self, node: usize, progress: MembershipProgress, is_settled: bool) -> Result<(), Violation> {
        let MembershipProgress { news, next } = progress;
        let incarnation = self.nodes[node].incarnation;
        match news {
            None => {}
            Some(MembershipNews::Owns(claimed)) => {
                let in_flight_elsewhere = claimed.in_flight_elsewhere.clone();
                self.deliver(node, Input::PartitionsClaimed(claimed))?;
                self.nodes[node].handed_over.add(&in_flight_elsewhere);
                if !in_flight_elsewhere.is_empty() && !self.nodes[node].asks_soon {
                    self.nodes[node].asks_soon = true;
                    self.later(Duration::ZERO, Step::AskHandedOver { node, incarnation });
                }
            }
            Some(MembershipNews::Left(_)) => {
                self.visit("fault", "lease ended");
                self.lose(node);
                self.forget(node);
                self.nodes[node].member += 1;
                self.nodes[node].handed_over.clear();
                self.deliver(node, Input::LeaseEnded)?;
            }
        }
        // It may have stopped over it.
        if self.nodes[node].incarnation != incarnation {
            return Ok(());
        }
        match next {
            // One that does not share is not asked again what it owns.
            MembershipCall::Wait(_)
                if (is_settled || self.store.kind == Kind::Sqlite)
                    && self.nodes[node].membership.is_resting()
                    && self.is_quiet() =>
            {
                self.nodes[node].rests = true;
                self.store.rest((node, self.nodes[node].member));
            }
            MembershipCall::Wait(time) => {
                let (asked_at, reply) = (self.real, Box::new(Some(MembershipReply::Waited)));
                self.later(time, Step::MemberReply { node, incarnation, asked_at, reply });
            }
            call @ (MembershipCall::Join | MembershipCall::Claim | MembershipCall::Renew | MembershipCall::HandOver(_)) => {
                let delay = self.member_call_takes();
                self.later(delay, Step::MemberCalls { node, incarnation, asked_at: self.real, call: Box::new(call) });
            }
        }
        Ok(())
    }

    fn member_call_takes(&mut self) -> Duration {
        let most = if self.random.random_range(0..50u32) == 0 { 800 } else { 5 };
        self.soon(most)
    }

    /// Nothing has happened for a while, and every partition has an owner that runs.
    fn is_quiet(&self) -> bool {
        let is_live = |owner: Option<(usize, u64)>| {
            owner.is_some_and(|(node, member)| {
                self.is_well(node) && self.nodes[node].member == member && self.nodes[node].stops_by.is_none()
            })
        };
        let is_over = self.real.since(self.troubled_at) > TROUBLED_FOR;
        is_over && self.store.partitions.values().all(|holding| is_live(holding.owner))
    }

    fn member_reply(&mut self, node: usize, call: MembershipCall) -> MembershipReply {
        let member = (node, self.nodes[node].member);
        match call {
            MembershipCall::Join => {
                self.store.renew(member, self.real + LEASE);
                MembershipReply::Joined(Some(()))
            }
            MembershipCall::Renew => {
                let is_live = self.store.has_lease(member, self.real);
                if is_live {
                    self.store.renew(member, self.real + LEASE);
                }
                let refused = Err(Refusal::LeaseEnded);
                MembershipReply::Renewed(Some(if is_live { Ok(()) } else { refused }))
            }
            MembershipCall::Claim => MembershipReply::Claimed(Some(self.claim(node))),
            MembershipCall::HandOver(partitions) => {
                self.hand_over(member, &partitions, &[]);
                MembershipReply::HandedOver
            }
            MembershipCall::Wait(_) => MembershipReply::Waited,
        }
    }

    /// Takes what no live node has.
    fn claim(&mut self, node: usize) -> Result<Claimed, Refusal> {
        let member = (node, self.nodes[node].member);
        let is_shared = self.store.kind == Kind::Postgres;
        if is_shared && !self.store.has_lease(member, self.real) {
            self.visit("fault", "claim refused");
            return Err(Refusal::LeaseEnded);
        }
        for dead in self.store.free_orphans(member, self.real) {
            self.lose_member(dead);
        }
        let share = if self.real.since(self.began_at) < Duration::from_secs(3) { self.first_share } else { usize::MAX };
        let (mut claimed, taken) = self.store.claim(self.now, member, share, &self.endpoints);
        // PostgreSQL does not say so.
        if is_shared {
            claimed.handed_over.clear();
        }
        for (number, endpoint) in self.endpoints.iter().enumerate() {
            if taken.contains(&self.tenants[endpoint.tenant].partition) {
                self.checker.taken_over(number, self.store.memory(number), self.now);
            }
        }
        if !taken.is_empty() {
            self.visit("edge", if claimed.handed_over.is_empty() { "taken over" } else { "taken over with all that was known" });
        }
        Ok(claimed)
    }
}

fn failed(call: &MembershipCall) -> MembershipReply {
    match call {
        MembershipCall::Join => MembershipReply::Joined(None),
        MembershipCall::Claim => MembershipReply::Claimed(None),
        MembershipCall::Renew => MembershipReply::Renewed(None),
        // Whether it was done is not known, and nothing depends on it.
        MembershipCall::HandOver(_) => MembershipReply::HandedOver,
        MembershipCall::Wait(_) => MembershipReply::Waited,
    }
}
