//! What happens to nodes: they die, freeze, wake up to find that others have taken over, and hand over when they are well.

use std::time::Duration;

use posthaste_engine::{COMMITTED_AFTER, HandedOver, Owner, SWEPT_EVERY, Sweeper, Wake};
use posthaste_store::LEASE;
use rand::RngExt;

use super::store::Kind;
use super::{Step, World};
use crate::checker::Violation;

/// How long before its lease ends a node stops by its own clock.
const MARGIN: Duration = Duration::from_millis(500);

impl World {
    /// What waits for a node that is frozen waits until it runs again. Receivers and the database go on.
    pub(super) fn unless_frozen(&mut self, step: Step) -> Option<Step> {
        let node = match &step {
            Step::Arrives { node, .. }
            | Step::Feed { node, .. }
            | Step::Sweep { node, .. }
            | Step::Turn { node }
            | Step::AskHandedOver { node, .. }
            | Step::ConfigurationMoves { node }
            | Step::Count { node, .. }
            | Step::StopsAtLast { node, .. } => *node,
            Step::Returned { running, .. } => running.node,
            // What it wanted done may have left before it froze.
            Step::Call { running, .. } if !self.nodes[running.node].reaches_the_store => running.node,
            Step::Call { .. }
            | Step::Publish
            | Step::Commit { .. }
            | Step::Answer { .. }
            | Step::Change
            | Step::MoodChanges { .. }
            | Step::Cancel
            | Step::SendNow
            | Step::TestSend
            | Step::Erase
            | Step::Asked { .. }
            | Step::Crash
            | Step::TakeOver { .. }
            | Step::Freeze
            | Step::Thaw { .. }
            | Step::LeaseEnds { .. }
            | Step::Claim { .. }
            | Step::Transfer
            | Step::Stop
            | Step::Start { .. }
            | Step::Replay
            | Step::ReplayGoesOn { .. }
            | Step::Wake { .. }
            | Step::Outage
            | Step::Damage
            | Step::Repair { .. }
            | Step::Expire
            | Step::Retention
            | Step::ClockIsSet { .. }
            | Step::ClocksDrift
            | Step::Heal => return Some(step),
        };
        let Some(thaw) = self.nodes[node].frozen_until else { return Some(step) };
        let after = thaw.since(self.real);
        self.later(after, step);
        None
    }

    /// A node dies with everything it had in memory.
    pub(super) fn crash(&mut self) {
        let node = self.random.random_range(0..self.nodes.len());
        if !self.is_well(node) || self.is_healed {
            return;
        }
        self.visit("fault", "crash");
        self.nodes[node].last_words = self.random.random_range(0..3u32);
        self.die(node);
        let after = if self.nodes.len() == 1 { Duration::from_millis(500) } else { LEASE };
        self.later(after, Step::TakeOver { dead: node });
    }

    /// Nothing of it is left.
    pub(super) fn die(&mut self, node: usize) {
        self.lose(node);
        self.forget(node);
        let dead = &mut self.nodes[node];
        dead.owner = None;
        dead.incarnation += 1;
        dead.counts_soon = false;
        dead.lease_ends_at = None;
        dead.stops_by = None;
    }

    /// Somebody tells a node to stop. It finishes what it has begun, if that does not take too long.
    pub(super) fn stop(&mut self) -> Result<(), Violation> {
        let node = self.random.random_range(0..self.nodes.len());
        if !self.is_well(node) || self.is_healed {
            return Ok(());
        }
        let request_max = self.options.request_max();
        self.nodes[node].stops_by = Some(self.real + request_max);
        self.nodes[node].owner.as_mut().expect("it is well").stop();
        let incarnation = self.nodes[node].incarnation;
        self.later(request_max, Step::StopsAtLast { node, incarnation });
        if self.nodes.len() > 1 {
            // Others go on with the rest while what is in flight ends here.
            let partitions = self.store.owned_by((node, self.nodes[node].member));
            return self.deliver(node, Wake::GiveUp(partitions));
        }
        self.pump(node)
    }

    /// It does not wait any longer for what has not ended.
    pub(super) fn stop_at_last(&mut self, node: usize, incarnation: u64) -> Result<(), Violation> {
        if self.nodes[node].incarnation != incarnation || self.nodes[node].stops_by.is_none() {
            return Ok(());
        }
        self.leave(node)
    }

    /// It runs again, and owns nothing yet.
    pub(super) fn start(&mut self, node: usize) {
        if self.nodes[node].owner.is_none() {
            let owner = self.by_clock_of(node, |world| Owner::new(world.now, world.options.clone()));
            let started = &mut self.nodes[node];
            started.owner = Some(owner);
            started.member += 1;
            (started.started_at, started.sweeper) = (self.real, Sweeper::default());
            (started.sweeps_soon, started.feed_has_overflowed) = (false, false);
            (started.handed_over, started.asks_soon) = (HandedOver::default(), false);
            self.sweeps_go_on();
        }
    }

    /// As long as something is being written, each node looks for what others have committed.
    pub(super) fn sweeps_go_on(&mut self) {
        self.numbered_at = self.real;
        if self.store.kind == Kind::Sqlite {
            return;
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].owner.is_some() && !self.nodes[node].sweeps_soon {
                self.nodes[node].sweeps_soon = true;
                // At any moment of its rhythm.
                let delay = self.soon(u64::try_from(SWEPT_EVERY.as_millis()).expect("seconds"));
                let incarnation = self.nodes[node].incarnation;
                self.later(delay, Step::Sweep { node, incarnation });
            }
        }
    }

    pub(super) fn sweep(&mut self, node: usize, incarnation: u64) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        let looking = &mut self.nodes[node];
        let swept = self.store.sweep(looking.sweeper.start_after(), usize::MAX, &self.endpoints);
        looking.sweeper.swept(self.real.since(looking.started_at), swept.highest);
        if !swept.endpoints.is_empty() {
            let (delay, member) = (self.soon(5), self.nodes[node].member);
            let wake = Box::new(Wake::Work(swept.endpoints));
            self.later(delay, Step::Arrives { node, incarnation, member, wake });
        }
        // In production sweeps never end. Here they do once another one could find nothing: a node's first sweep looks at nothing,
        // and one that was frozen has to catch up.
        let last_cause = self.numbered_at.max(self.thawed_at).max(self.nodes[node].started_at);
        let goes_on = self.real.since(last_cause) < COMMITTED_AFTER + SWEPT_EVERY;
        self.nodes[node].sweeps_soon = goes_on;
        if goes_on {
            self.later(SWEPT_EVERY, Step::Sweep { node, incarnation });
        }
    }

    /// Whatever this node has in flight may be sent once more.
    fn lose(&mut self, node: usize) {
        let member = (node, self.nodes[node].member);
        for row in self.unrecorded.iter().filter(|(_, by)| by.0 == node).map(|(row, _)| *row).collect::<Vec<_>>() {
            self.unrecorded.remove(&row);
            self.checker.lost(row);
        }
        for endpoint in (0..self.endpoints.len()).filter(|endpoint| self.owner_of(*endpoint) == Some(member)).collect::<Vec<_>>() {
            self.checker.owner_died(endpoint);
        }
    }

    /// This node knows nothing any more of what it has begun.
    fn forget(&mut self, node: usize) {
        for key in self.bodiless.keys().filter(|(by, _)| by.0 == node).copied().collect::<Vec<_>>() {
            let hit = self.bodiless.remove(&key).expect("just found");
            self.in_flight.remove(&hit);
        }
        self.answered.retain(|(by, _), _| by.0 != node);
    }

    /// A node stops running for a while, and does not know it. If others are there, they take over when its lease ends.
    pub(super) fn freeze(&mut self) {
        let node = self.random.random_range(0..self.nodes.len());
        if !self.is_well(node) || self.is_healed {
            return;
        }
        let span = Duration::from_secs([2, 20][self.random.random_range(0..2usize)]);
        self.visit("fault", if span > LEASE { "frozen past its lease" } else { "frozen for a moment" });
        let (reaches_the_store, is_alone) = (self.random.random_range(0..2u32) == 0, self.nodes.len() == 1);
        let frozen = &mut self.nodes[node];
        frozen.frozen_until = Some(self.real + span);
        frozen.reaches_the_store = reaches_the_store;
        // Where nobody else can take over, it never ends.
        frozen.lease_ends_at = Some(self.real + LEASE - MARGIN).filter(|_| !is_alone);
        self.later(span, Step::Thaw { node });
        if span > LEASE && !is_alone {
            self.later(LEASE, Step::TakeOver { dead: node });
        }
    }

    /// It goes on where it was, until it finds that its lease has ended.
    pub(super) fn thaw(&mut self, node: usize) -> Result<(), Violation> {
        self.nodes[node].frozen_until = None;
        self.thawed_at = self.real;
        for endpoint in 0..self.endpoints.len() {
            if self.owner_of(endpoint).is_some_and(|(owner, _)| owner == node) {
                self.checker.catching_up(endpoint, self.now);
            }
        }
        if self.nodes[node].lease_ends_at.is_some_and(|at| at <= self.real) {
            let (delay, incarnation) = (self.soon(20), self.nodes[node].incarnation);
            self.later(delay, Step::LeaseEnds { node, incarnation });
        } else {
            self.nodes[node].lease_ends_at = None;
        }
        self.pump(node)
    }

    /// It drops everything and joins under another name.
    pub(super) fn lease_ends(&mut self, node: usize, incarnation: u64) -> Result<(), Violation> {
        if self.nodes[node].incarnation != incarnation {
            return Ok(());
        }
        self.lose(node);
        self.forget(node);
        self.store.abandon(self.now, (node, self.nodes[node].member));
        self.nodes[node].member += 1;
        self.nodes[node].lease_ends_at = None;
        self.nodes[node].handed_over.clear();
        self.deliver(node, Wake::LeaseEnded)?;
        let delay = self.soon(50);
        self.later(delay, Step::Claim { node });
        Ok(())
    }

    /// A tenant's owner is asked to give it up. What is in flight there it still finishes.
    pub(super) fn transfer(&mut self) -> Result<(), Violation> {
        let partition = self.tenants[self.random.random_range(0..self.tenants.len())].partition;
        let Some((from, member)) = self.store.partitions[&partition].owner else { return Ok(()) };
        let is_well = self.is_well(from) && self.nodes[from].member == member && self.nodes[from].lease_ends_at.is_none();
        if self.nodes.len() == 1 || !is_well {
            return Ok(());
        }
        self.visit("edge", "handed over");
        self.deliver(from, Wake::GiveUp(vec![partition]))
    }

    /// A node is taken for dead: what it had is nobody's, and somebody takes it. If it has died it starts again.
    pub(super) fn take_over(&mut self, dead: usize) {
        let is_frozen = self.nodes[dead].frozen_until.is_some();
        let others = (0..self.nodes.len()).filter(|node| *node != dead && self.is_well(*node)).count();
        if is_frozen && others == 0 {
            // It finds out by itself.
            return;
        }
        let member = (dead, self.nodes[dead].member);
        if is_frozen {
            self.lose(dead);
        } else {
            self.start(dead);
        }
        self.store.abandon(self.now, member);
        let heir = self.random.random_range(0..self.nodes.len());
        self.later(Duration::ZERO, Step::Claim { node: heir });
    }

    /// Takes what nobody has, and hears what it owns. Another node does it if this one is not well.
    pub(super) fn claim(&mut self, node: usize) -> Result<(), Violation> {
        let is_able = |node: &usize| {
            let stays = self.nodes[*node].lease_ends_at.is_none() && self.nodes[*node].stops_by.is_none();
            self.is_well(*node) && stays
        };
        let Some(node) = Some(node).filter(is_able).or_else(|| (0..self.nodes.len()).find(is_able)) else {
            self.later(Duration::from_millis(500), Step::Claim { node });
            return Ok(());
        };
        let member = (node, self.nodes[node].member);
        let (mut claimed, taken) = self.store.claim(self.now, member, &self.endpoints);
        // PostgreSQL does not say so.
        if self.store.kind == Kind::Postgres {
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
        let leave_alone = claimed.leave_alone.clone();
        self.deliver(node, Wake::Owns(claimed))?;
        self.nodes[node].handed_over.add(&leave_alone);
        if !leave_alone.is_empty() && !self.nodes[node].asks_soon {
            self.nodes[node].asks_soon = true;
            let incarnation = self.nodes[node].incarnation;
            self.later(Duration::ZERO, Step::AskHandedOver { node, incarnation });
        }
        Ok(())
    }

    /// The store answers nobody for a while.
    pub(super) fn outage(&mut self) {
        let span = self.soon(3_000);
        if !self.is_healed {
            self.store_fails_until = self.real + span;
        }
    }

    pub(super) fn damage(&mut self) {
        let endpoint = self.random.random_range(0..self.endpoints.len());
        if self.is_healed {
            return;
        }
        self.endpoints[endpoint].is_unreadable = true;
        let span = Duration::from_secs(self.random.random_range(1..3_000u64));
        self.later(span, Step::Repair { endpoint });
        // Whatever changes at its tenant makes its owner read it again.
        self.configuration_moves(endpoint);
    }

    /// Somebody writes it anew, as it was.
    pub(super) fn repair(&mut self, endpoint: usize) {
        self.endpoints[endpoint].is_unreadable = false;
        self.configuration_moves(endpoint);
    }
}
