//! Faults of nodes and of the store: nodes die, freeze, wake up after others took over, stop and hand over.

use std::time::Duration;

use posthaste_engine::{COMMITTED_AFTER, HandedOver, Input, Owner, SWEPT_EVERY, Sweeper};
use posthaste_store::LEASE;
use rand::RngExt;

use super::store::{Kind, Member};
use super::{Step, World};
use crate::checker::Violation;

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
            | Step::MemberReply { node, .. }
            | Step::MembershipRestarts { node, .. }
            | Step::StopsAtLast { node, .. } => *node,
            Step::Returned { running, .. } => running.node,
            // What it wanted done may have left before it froze.
            Step::Call { running, .. } if !self.nodes[running.node].reaches_the_store => running.node,
            Step::MemberCalls { node, .. } if !self.nodes[*node].reaches_the_store => *node,
            Step::Call { .. }
            | Step::MemberCalls { .. }
            | Step::Publish
            | Step::Commit { .. }
            | Step::Answer { .. }
            | Step::Change
            | Step::MoodChanges { .. }
            | Step::Cancel
            | Step::SendNow
            | Step::TestSend
            | Step::Erase
            | Step::CommandRequest { .. }
            | Step::Crash
            | Step::Freeze
            | Step::Thaw { .. }
            | Step::Transfer
            | Step::Stop
            | Step::Start { .. }
            | Step::Replay
            | Step::ReplayGoesOn { .. }
            | Step::Input { .. }
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
        self.trouble_begins();
        self.nodes[node].last_words = self.random.random_range(0..3u32);
        self.die(node);
        // Before others have noticed, or after.
        let after = Duration::from_millis([500, 10_000][self.random.random_range(0..2usize)]);
        self.later(after, Step::Start { node });
    }

    /// Nothing of it is left.
    pub(super) fn die(&mut self, node: usize) {
        self.lose(node);
        self.forget(node);
        let dead = &mut self.nodes[node];
        dead.owner = None;
        dead.incarnation += 1;
        dead.counts_soon = false;
        (dead.rests, dead.freezes_at_renewal) = (false, false);
        dead.stops_by = None;
    }

    /// A node is told to stop. It finishes what it began, if that does not take too long.
    pub(super) fn stop(&mut self) -> Result<(), Violation> {
        let node = self.random.random_range(0..self.nodes.len());
        if !self.is_well(node) || self.is_healed {
            return Ok(());
        }
        self.trouble_begins();
        let request_max = self.options.request_max();
        self.nodes[node].stops_by = Some(self.real + request_max);
        self.nodes[node].owner.as_mut().expect("it is well").stop();
        let incarnation = self.nodes[node].incarnation;
        self.later(request_max, Step::StopsAtLast { node, incarnation });
        // Others go on with the rest while what is in flight ends here.
        let given_up = self.nodes[node].membership.prepare_to_leave();
        if given_up.is_empty() { self.pump(node) } else { self.deliver(node, Input::GiveUp(given_up)) }
    }

    /// It does not wait any longer for what has not ended.
    pub(super) fn stop_at_last(&mut self, node: usize, incarnation: u64) -> Result<(), Violation> {
        if self.nodes[node].incarnation != incarnation || self.nodes[node].stops_by.is_none() {
            return Ok(());
        }
        self.leave(node)
    }

    /// It runs again, and owns nothing yet.
    pub(super) fn start(&mut self, node: usize) -> Result<(), Violation> {
        if self.nodes[node].owner.is_none() {
            self.trouble_begins();
            let owner = self.by_clock_of(node, |world| Owner::new(world.now, world.options.clone()));
            let started = &mut self.nodes[node];
            started.owner = Some(owner);
            started.member += 1;
            (started.started_at, started.sweeper) = (self.real, Sweeper::default());
            (started.sweeps_soon, started.feed_has_overflowed) = (false, false);
            (started.handed_over, started.asks_soon) = (HandedOver::default(), false);
            self.sweeps_go_on();
            self.join(node)?;
        }
        Ok(())
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
            let input = Box::new(Input::Work(swept.endpoints));
            self.later(delay, Step::Arrives { node, incarnation, member, input });
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
    pub(super) fn lose(&mut self, node: usize) {
        self.lose_member((node, self.nodes[node].member));
    }

    /// Whatever this member has in flight may be sent once more.
    pub(super) fn lose_member(&mut self, member: Member) {
        for row in self.unrecorded.iter().filter(|(_, by)| **by == member).map(|(row, _)| *row).collect::<Vec<_>>() {
            self.unrecorded.remove(&row);
            self.checker.lost(row);
        }
        for endpoint in (0..self.endpoints.len()).filter(|endpoint| self.owner_of(*endpoint) == Some(member)).collect::<Vec<_>>() {
            self.checker.owner_died(endpoint);
        }
    }

    /// This node knows nothing any more of what it has begun.
    pub(super) fn forget(&mut self, node: usize) {
        for key in self.pending_sends.keys().filter(|(by, _)| by.0 == node).copied().collect::<Vec<_>>() {
            let hit = self.pending_sends.remove(&key).expect("just found");
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
        if self.store.kind == Kind::Postgres && self.random.random_range(0..3u32) == 0 {
            self.trouble_begins();
            self.nodes[node].freezes_at_renewal = true;
            return;
        }
        self.freeze_now(node);
    }

    pub(super) fn freeze_now(&mut self, node: usize) {
        let span = Duration::from_secs([2, 20][self.random.random_range(0..2usize)]);
        self.visit("fault", if span > LEASE { "frozen past its lease" } else { "frozen for a moment" });
        self.trouble_begins();
        let reaches_the_store = self.random.random_range(0..2u32) == 0;
        let frozen = &mut self.nodes[node];
        frozen.frozen_until = Some(self.real + span);
        frozen.reaches_the_store = reaches_the_store;
        self.later(span, Step::Thaw { node });
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
        self.trouble_begins();
        self.pump(node)
    }

    /// A tenant's owner is asked to give it up. What is in flight there it still finishes.
    pub(super) fn transfer(&mut self) -> Result<(), Violation> {
        // Half of the time one that something was published to a moment ago.
        let latest = self.store.rows.last().filter(|_| self.random.random_range(0..2u32) == 0).map(|row| row.partition);
        let any = self.tenants[self.random.random_range(0..self.tenants.len())].partition;
        let partition = latest.unwrap_or(any);
        let Some((from, member)) = self.store.partitions[&partition].owner else { return Ok(()) };
        let is_well = self.is_well(from) && self.nodes[from].member == member && self.has_lease(from);
        if self.nodes.len() == 1 || !is_well {
            return Ok(());
        }
        self.visit("edge", "handed over");
        self.trouble_begins();
        self.deliver(from, Input::GiveUp(vec![partition]))
    }

    /// The store does not answer for a while.
    pub(super) fn outage(&mut self) {
        // Some outlast every lease.
        let most = [3_000, 3_000, 12_000][self.random.random_range(0..3usize)];
        let span = self.soon(most);
        if !self.is_healed {
            self.trouble_begins();
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
