//! What happens to nodes: they die, freeze, wake up to find that others have taken over, and hand over when they are well.

use std::time::Duration;

use posthaste_core::bucket::Bucket;
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::{Backlog, LaneMemory, Scheduler};
use rand::RngExt;

use super::{DEADLINE, LEASE, Node, Step, Tenant, World};

impl World {
    /// What waits for a node that is frozen waits until it runs again. Receivers and the database go on.
    pub(super) fn unless_frozen(&mut self, step: Step) -> Option<Step> {
        let node = match &step {
            Step::ReadArrives { node, .. }
            | Step::Heard { node, .. }
            | Step::Record { node, .. }
            | Step::TestSendEnds { node, .. } => *node,
            Step::Feed { row, .. } => self.tenants[self.endpoints[self.rows[*row].endpoint].tenant].owner,
            Step::Sweep { endpoint } | Step::RecordedElsewhere { endpoint, .. } => {
                self.tenants[self.endpoints[*endpoint].tenant].owner
            }
            Step::Publish
            | Step::ReadSees { .. }
            | Step::Answer { .. }
            | Step::Change
            | Step::Applied { .. }
            | Step::MoodChanges { .. }
            | Step::Cancel
            | Step::TestSend
            | Step::Crash
            | Step::TakeOver { .. }
            | Step::Freeze
            | Step::Thaw { .. }
            | Step::Transfer
            | Step::Replay
            | Step::ReplayGoesOn { .. }
            | Step::RecomputeTimeouts
            | Step::Wake { .. }
            | Step::Expire
            | Step::Heal => return Some(step),
        };
        let Some(thaw) = self.nodes[node].frozen_until else { return Some(step) };
        let after = thaw.since(self.now);
        self.later(after, step);
        None
    }

    /// A node dies with everything it had in memory.
    pub(super) fn crash(&mut self) {
        let node = self.random.random_range(0..self.nodes.len());
        if self.nodes[node].scheduler.is_none() || self.nodes[node].frozen_until.is_some() || self.is_healed {
            return;
        }
        self.visit("fault", "crash");
        self.lose(node);
        self.nodes[node].scheduler = None;
        self.nodes[node].epoch += 1;
        self.nodes[node].wakes_at = None;
        let after = if self.nodes.len() == 1 { Duration::from_millis(500) } else { LEASE };
        self.later(after, Step::TakeOver { dead: node });
    }

    /// Whatever this node has in flight may be sent once more.
    fn lose(&mut self, node: usize) {
        let Some(scheduler) = self.nodes[node].scheduler.as_ref() else { return };
        for number in 0..self.rows.len() {
            let endpoint = self.endpoints[self.rows[number].endpoint].id;
            if scheduler.is_in_flight(endpoint, self.rows[number].delivery) {
                self.checker.lost(number);
            }
        }
        let endpoints: Vec<usize> =
            (0..self.endpoints.len()).filter(|e| self.tenants[self.endpoints[*e].tenant].owner == node).collect();
        for endpoint in endpoints {
            self.checker.owner_died(endpoint);
        }
    }

    /// A node stops running for a while, and does not know it. If others are there, they take over when its lease ends.
    pub(super) fn freeze(&mut self) {
        let node = self.random.random_range(0..self.nodes.len());
        if self.nodes[node].scheduler.is_none() || self.nodes[node].frozen_until.is_some() || self.is_healed {
            return;
        }
        let span = Duration::from_secs([2, 20][self.random.random_range(0..2usize)]);
        self.visit("fault", if span > LEASE { "frozen past its lease" } else { "frozen for a moment" });
        self.nodes[node].frozen_until = Some(self.now + span);
        self.later(span, Step::Thaw { node });
        if span > LEASE && self.nodes.len() > 1 {
            self.later(LEASE, Step::TakeOver { dead: node });
        }
    }

    /// It goes on where it was, unless its lease has ended: then it knows nothing and begins anew.
    pub(super) fn thaw(&mut self, node: usize) {
        self.nodes[node].frozen_until = None;
        for endpoint in 0..self.endpoints.len() {
            if self.tenants[self.endpoints[endpoint].tenant].owner == node {
                self.checker.catching_up(endpoint, self.now);
            }
        }
        if self.nodes[node].has_lost_lease && plant::is(Plant::OldEpochIsRecorded) {
            let scheduler = self.nodes[node].scheduler.as_mut().expect("it was only frozen");
            self.endpoints.iter().for_each(|endpoint| drop(scheduler.leave(endpoint.id)));
        } else if self.nodes[node].has_lost_lease && !plant::is(Plant::FrozenNodeGoesOn) {
            let now = self.now;
            let present = &mut self.nodes[node];
            present.scheduler = Some(Scheduler::new(now, self.limits));
            present.epoch += 1;
            present.wakes_at = None;
            present.has_lost_lease = false;
            // What it has been given since, if it was the only heir.
            for tenant in (0..self.tenants.len()).filter(|tenant| self.tenants[*tenant].owner == node).collect::<Vec<_>>() {
                self.give(tenant, node);
            }
        }
    }

    /// One transaction: what is in flight is written down with a deadline, and the tenant is given up.
    pub(super) fn transfer(&mut self) {
        let tenant = self.random.random_range(0..self.tenants.len());
        let from = self.tenants[tenant].owner;
        let to = self.random.random_range(0..self.nodes.len());
        let is_well = |node: &Node| node.scheduler.is_some() && node.frozen_until.is_none();
        if from == to || !is_well(&self.nodes[from]) || !is_well(&self.nodes[to]) {
            return;
        }
        self.visit("edge", "handed over");
        let now = self.now;
        let leaver = self.nodes[from].scheduler.as_mut().expect("well");
        let bucket = leaver.tenant_bucket(&self.tenants[tenant].id).expect("its owner knows it");
        let mut handed = Vec::new();
        for (number, endpoint) in self.endpoints.iter().enumerate().filter(|(_, endpoint)| endpoint.tenant == tenant) {
            handed.push((number, leaver.leave(endpoint.id)));
        }
        let Tenant { id, config, .. } = &self.tenants[tenant];
        let heir = self.nodes[to].scheduler.as_mut().expect("well");
        heir.take_tenant(now, id, *config, bucket);
        for (number, hand_over) in handed {
            let endpoint = &mut self.endpoints[number];
            let Some(hand_over) = hand_over else {
                // It had nothing to send and nothing to remember.
                endpoint.memory = LaneMemory::new();
                heir.configure(now, id, endpoint.id, endpoint.config.clone(), endpoint.memory, Backlog::Unknown);
                self.checker.drained(number);
                continue;
            };
            endpoint.memory = hand_over.memory_under(now, &endpoint.config);
            self.checker.limit_changed(number, endpoint.config.rate_limit);
            heir.configure(now, id, endpoint.id, endpoint.config.clone(), endpoint.memory, Backlog::Unknown);
            for delivery in hand_over.in_flight {
                let until = now + DEADLINE;
                self.left_alone.insert(delivery, until);
            }
            self.checker.taken_over(number, endpoint.memory, now);
        }
        self.tenants[tenant].owner = to;
        self.leave_alone(tenant, to);
    }

    /// Another node takes the dead one's tenants, or the same one starts again.
    pub(super) fn take_over(&mut self, dead: usize) {
        let heir = (dead + self.random.random_range(0..self.nodes.len())) % self.nodes.len();
        let now = self.now;
        let is_frozen = self.nodes[dead].frozen_until.is_some();
        let is_well = |node: &Node| node.scheduler.is_some() && node.frozen_until.is_none();
        if is_frozen && (heir == dead || !is_well(&self.nodes[heir])) {
            // Whoever is there will do it, or it goes on itself.
            let Some(heir) = (0..self.nodes.len()).find(|node| is_well(&self.nodes[*node])) else { return };
            self.lose(dead);
            self.nodes[dead].has_lost_lease = true;
            self.inherit(dead, heir);
            return;
        }
        if is_frozen {
            self.lose(dead);
            self.nodes[dead].has_lost_lease = true;
        } else if self.nodes[dead].scheduler.is_none() {
            self.nodes[dead].scheduler = Some(Scheduler::new(now, self.limits));
        }
        let heir = if is_well(&self.nodes[heir]) { heir } else { dead };
        self.inherit(dead, heir);
    }

    fn inherit(&mut self, dead: usize, heir: usize) {
        for tenant in 0..self.tenants.len() {
            if self.tenants[tenant].owner != dead {
                continue;
            }
            self.give(tenant, heir);
        }
    }

    /// A tenant whose owner is gone goes to this node, which knows what the database knows.
    fn give(&mut self, tenant: usize, heir: usize) {
        let now = self.now;
        self.tenants[tenant].owner = heir;
        let scheduler = self.nodes[heir].scheduler.as_mut().expect("alive");
        let Tenant { id, config, .. } = &self.tenants[tenant];
        let bucket = config.rate_limit.map_or(Bucket::full(), |limit| Bucket::empty(now, limit));
        scheduler.take_tenant(now, id, *config, bucket);
        for (number, endpoint) in self.endpoints.iter().enumerate().filter(|(_, endpoint)| endpoint.tenant == tenant) {
            self.checker.taken_over(number, endpoint.memory, now);
            let memory = endpoint.memory.after_a_crash(now, &endpoint.config);
            scheduler.configure(now, id, endpoint.id, endpoint.config.clone(), memory, Backlog::Unknown);
        }
        self.leave_alone(tenant, heir);
    }

    /// Tells a new owner what owners before it may still record.
    fn leave_alone(&mut self, tenant: usize, heir: usize) {
        let scheduler = self.nodes[heir].scheduler.as_mut().expect("alive");
        for (delivery, until) in self.left_alone.iter().filter(|(_, until)| self.now < **until) {
            let row = &self.rows[self.by_delivery[delivery]];
            let endpoint = &self.endpoints[row.endpoint];
            if endpoint.tenant == tenant {
                scheduler.leave_alone(endpoint.id, *delivery, row.key.clone(), *until);
            }
        }
    }
}
