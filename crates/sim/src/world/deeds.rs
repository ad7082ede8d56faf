//! What owners want done, done in two steps: at one moment the store sees it, at a later one the owner hears of it.

use std::time::Duration;

use posthaste_core::delivery::State;
use posthaste_core::endpoint::{Override, Status};
use posthaste_core::id::EndpointId;
use posthaste_core::timeout::Mode;
use posthaste_engine::{Deed, Life, Wake};
use posthaste_store::{HandedOver, Partition, Record, Recorded, RecordedAs, TakenUp};
use rand::RngExt;

use super::store::{number_of_delivery, row_number};
use super::{Before, Member, RULES, Step, World, endpoint_number};
use crate::checker::Violation;

/// Endpoints with work in one page.
const WORK_PAGE: usize = 2;
/// Rows that are stamped anew in one step.
const RESTAMP_ROWS: usize = 10;

impl World {
    /// Something happens to an owner, and it does what it wants to do about it.
    pub(super) fn deliver(&mut self, node: usize, wake: Wake) -> Result<(), Violation> {
        let member = (node, self.nodes[node].member);
        let Some(owner) = self.nodes[node].owner.as_mut() else { return Ok(()) };
        let (mut heard, mut bodies) = (None, Vec::new());
        match &wake {
            Wake::Answered { errand, .. } if !errand.is_test => heard = Some(errand.delivery),
            Wake::Bodies { asked, found, .. } => {
                for wanted in asked {
                    let body = found.iter().find(|body| body.seq == wanted.seq);
                    if body.is_some_and(|body| body.event.is_ok()) {
                        bodies.push(wanted.delivery);
                    } else if let Some(hit) = self.bodiless.remove(&(member, wanted.delivery)) {
                        let hit = self.in_flight.remove(&hit).expect("in flight until answered");
                        let circuit = &self.endpoints[hit.endpoint].config.circuit;
                        self.checker.unsendable(hit.endpoint, hit.is_probe, self.now, circuit);
                    }
                }
            }
            Wake::TakenUp { found, .. } => {
                for TakenUp { endpoint, .. } in found {
                    let limit = match endpoint.endpoint.policies.rate_limit {
                        Override::Set(limit) => Some(limit),
                        Override::Inherit | Override::Lift => None,
                    };
                    let number = endpoint_number(endpoint.endpoint.id);
                    if self.store.partitions[&endpoint.partition].owner == Some(member) {
                        self.checker.limit_changed(number, limit);
                    }
                }
            }
            Wake::Owns(_)
            | Wake::LeaseEnded
            | Wake::GiveUp(_)
            | Wake::RecordedElsewhere { .. }
            | Wake::Work(_)
            | Wake::Fed(_)
            | Wake::Read { .. }
            | Wake::Answered { .. }
            | Wake::NotSent { .. }
            | Wake::Recorded { .. }
            | Wake::ConfigurationMoved
            | Wake::Versions { .. }
            | Wake::Restamped { .. }
            | Wake::Overdue(_)
            | Wake::Asked(_)
            | Wake::LookedUp { .. }
            | Wake::Seen { .. }
            | Wake::NotCounted(_) => {}
        }
        owner.wake(self.now, wake);
        self.pump(node)?;
        // Whatever was heard has been decided about, and whatever could be sent has been.
        if let Some(delivery) = heard
            && let Some(hit) = self.answered.remove(&(member, delivery))
        {
            let what = format!("row {} at {}: its answer was heard and is not written down", hit.row, self.now.to_rfc3339());
            return Err(Violation { promise: "I1", what });
        }
        for delivery in bodies {
            if self.bodiless.contains_key(&(member, delivery)) {
                let what = format!("{delivery} at {}: its payload was found and it is not sent", self.now.to_rfc3339());
                return Err(Violation { promise: "I1", what });
            }
        }
        Ok(())
    }

    /// What was on its way to an owner that has died is lost.
    pub(super) fn arrives(&mut self, node: usize, incarnation: u64, member: u64, wake: Wake) -> Result<(), Violation> {
        if self.nodes[node].incarnation != incarnation {
            if matches!(wake, Wake::Answered { .. }) {
                self.visit("fault", "answer to a dead node");
            }
            return Ok(());
        }
        if self.nodes[node].member != member {
            self.visit("fault", "news of an earlier life");
        }
        if matches!(wake, Wake::Answered { .. }) && !self.nodes[node].counts_soon {
            self.nodes[node].counts_soon = true;
            self.later(Duration::from_secs(10), Step::Count { node, incarnation });
        }
        self.deliver(node, wake)
    }

    pub(super) fn count(&mut self, node: usize, incarnation: u64) -> Result<(), Violation> {
        if self.nodes[node].incarnation != incarnation {
            return Ok(());
        }
        self.nodes[node].counts_soon = false;
        let now = self.now;
        if let Some(owner) = self.nodes[node].owner.as_mut() {
            owner.count();
            owner.show(now);
        }
        self.pump(node)
    }

    pub(super) fn perform(&mut self, node: usize, deed: Deed) -> Result<(), Violation> {
        let (incarnation, member) = (self.nodes[node].incarnation, self.nodes[node].member);
        let mut delay = self.soon(5);
        match &deed {
            Deed::Send(_)
            | Deed::FindWork
            | Deed::Restamp { .. }
            | Deed::Show(_)
            | Deed::TakeUp { .. }
            | Deed::CompareVersions { .. }
            | Deed::LookUp { .. }
            | Deed::See { .. }
            | Deed::Count(_)
            | Deed::Notice(_) => {}
            Deed::Read { .. } => delay = self.store_takes(),
            Deed::ReadBodies { wanted, .. } => {
                delay = self.store_takes();
                for wanted in wanted.iter().filter(|_| self.may_send(node)).collect::<Vec<_>>() {
                    let hit = self.turn(node, number_of_delivery(wanted.delivery))?;
                    self.bodiless.insert(((node, member), wanted.delivery), hit);
                }
            }
            Deed::Record { records, .. } => {
                let is_asked = |record: &Record| matches!(&record.recorded, Recorded::Moved { audit: Some(_), .. });
                // What comes in between is what can go wrong with a wish.
                let more = if records.iter().any(is_asked) && self.random.random_range(0..3u32) == 0 { 400 } else { 0 };
                delay = self.record_takes(node, more);
            }
            Deed::HandOver { .. } => delay = self.record_takes(node, 0),
        }
        let step = match deed {
            Deed::Send(sending) => return self.send(node, *sending),
            // What others see of lanes is looked at where it is made; whom people are told is nobody's promise here.
            Deed::Show(_) | Deed::Notice(_) => return Ok(()),
            Deed::FindWork => Step::FindWork { node, incarnation, after: None },
            Deed::Restamp { life, endpoint } => {
                Step::Restamp { node, incarnation, life, endpoint: endpoint_number(endpoint), after: 0 }
            }
            Deed::TakeUp { .. }
            | Deed::Read { .. }
            | Deed::ReadBodies { .. }
            | Deed::Record { .. }
            | Deed::CompareVersions { .. }
            | Deed::LookUp { .. }
            | Deed::See { .. }
            | Deed::Count(_)
            | Deed::HandOver { .. } => Step::Do { node, incarnation, member, deed: Box::new(deed) },
        };
        self.later(delay, step);
        Ok(())
    }

    /// Mostly at once; now and then a busy store takes its time.
    fn store_takes(&mut self) -> Duration {
        let most = if self.random.random_range(0..100u32) == 0 { 300 } else { 5 };
        self.soon(most)
    }

    fn record_takes(&mut self, node: usize, more: u64) -> Duration {
        let takes = self.store_takes() + self.soon(5 + more);
        let at = (self.now + takes).max(self.nodes[node].records_until);
        self.nodes[node].records_until = at;
        at.since(self.now)
    }

    /// An owner has decided what an answer means.
    pub(super) fn decided(&mut self, member: Member, record: &Record) -> Result<(), Violation> {
        let Recorded::Attempt { seq, attempt, state } = &record.recorded else { return Ok(()) };
        let delivery = self.store.rows[row_number(*seq)].delivery;
        let Some(hit) = self.answered.remove(&(member, delivery)) else {
            let what = format!("{delivery} at {}: an attempt is written down that was never made", self.now.to_rfc3339());
            return Err(Violation { promise: "I10", what });
        };
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.decided(self, &hit, &attempt.outcome, *state, record.disables_endpoint);
        self.checker = checker;
        verdict
    }

    /// The store sees it. If whoever wanted it has died since, only the last words that it said may still be heard.
    pub(super) fn do_it(&mut self, node: usize, incarnation: u64, member: u64, deed: Deed) -> Result<(), Violation> {
        let is_dead = self.nodes[node].incarnation != incarnation;
        if is_dead {
            if let Deed::Record { records, .. } = &deed {
                self.visit("fault", "record of a dead node");
                if self.nodes[node].last_words > 0 {
                    self.nodes[node].last_words -= 1;
                    self.visit("fault", "record of a dead node is committed");
                    self.commit_records((node, member), records)?;
                }
            }
            return Ok(());
        }
        let now = self.now;
        let wake = match deed {
            Deed::TakeUp { life, endpoints } => {
                let take_up =
                    |endpoint: &EndpointId| self.store.take_up(endpoint_number(*endpoint), &self.endpoints, &self.tenants);
                let found = endpoints.iter().map(take_up).collect();
                Wake::TakenUp { life, asked: endpoints, found }
            }
            Deed::Read { life, endpoint, want, limit } => {
                let rows = self.store.window(endpoint_number(endpoint), &want, limit);
                Wake::Read { life, endpoint, want, rows }
            }
            Deed::ReadBodies { life, wanted } => {
                let found = self.store.bodies(wanted.iter().map(|wanted| wanted.seq));
                Wake::Bodies { life, asked: wanted, found }
            }
            Deed::Record { life, records, after } => {
                let results = self.commit_records((node, member), &records)?;
                let is_only_a_lane = records.iter().any(|record| record.recorded == Recorded::Nothing);
                if !is_only_a_lane && self.random.random_range(0..200u32) == 0 {
                    // Nobody hears that it was committed, so it is said again.
                    self.visit("fault", "answer of the store lost");
                    let delay = self.soon(100);
                    let deed = Box::new(Deed::Record { life, records, after });
                    self.later(delay, Step::Do { node, incarnation, member, deed });
                    return Ok(());
                }
                Wake::Recorded { life, after, results }
            }
            Deed::CompareVersions { life, tenants } => {
                let version = |id: &_| self.tenants.iter().find(|tenant| tenant.id == *id).map_or(0, |tenant| tenant.version);
                let versions = tenants.into_iter().map(|id| (id.clone(), version(&id))).collect();
                Wake::Versions { life, versions }
            }
            Deed::LookUp { life, asked } => {
                let rows = self.store.look_up(&asked.command, &self.endpoints, &self.tenants);
                Wake::LookedUp { life, asked, rows }
            }
            Deed::See { life, endpoint, trigger, shortened_at } => {
                let seen = Box::new(self.store.see(now, endpoint_number(endpoint), shortened_at));
                Wake::Seen { life, endpoint, trigger, seen }
            }
            Deed::Count(minutes) => {
                self.store.count(minutes);
                return Ok(());
            }
            Deed::HandOver { partitions, lanes, in_flight } => {
                self.commit_records((node, member), &lanes)?;
                let delay = self.record_takes(node, 0);
                self.later(delay, Step::HandOver { node, member, partitions, in_flight });
                return Ok(());
            }
            Deed::Send(_) | Deed::FindWork | Deed::Restamp { .. } | Deed::Show(_) | Deed::Notice(_) => {
                unreachable!("not a question to the store")
            }
        };
        let delay = self.soon(5);
        self.later(delay, Step::Arrives { node, incarnation, member, wake: Box::new(wake) });
        Ok(())
    }

    fn commit_records(&mut self, writer: Member, records: &[Record]) -> Result<Vec<RecordedAs>, Violation> {
        let mut results = Vec::new();
        for record in records {
            results.push(self.commit_record(writer, record)?);
        }
        Ok(results)
    }

    fn commit_record(&mut self, writer: Member, record: &Record) -> Result<RecordedAs, Violation> {
        let endpoint = endpoint_number(record.endpoint);
        let timeout = |world: &World| {
            let lane = world.store.lanes.get(&endpoint);
            lane.map_or(RULES.default, |lane| lane.timeout.in_force(Mode::Adaptive, &RULES).0)
        };
        let before = timeout(self);
        let committed = self.store.record(self.now, writer, record);
        if committed.is_forbidden {
            let what = format!("endpoint {endpoint} at {}: written under an old epoch", self.now.to_rfc3339());
            return Err(Violation { promise: "I31", what });
        }
        let seq = match &record.recorded {
            Recorded::Attempt { seq, .. } | Recorded::Moved { seq, .. } => Some(*seq),
            Recorded::Nothing => None,
        };
        if let Some(number) = seq.map(row_number) {
            self.note_record(writer, number, record, committed.result, committed.is_late)?;
        }
        let after = timeout(self);
        if before != after {
            self.visit("timeout", if after < before { "shorter" } else { "longer" });
            self.checker.timeout_computed(endpoint, self.now, before, after)?;
        }
        if committed.disables && self.endpoints[endpoint].config.status != Status::Disabled {
            self.visit("edge", "endpoint disabled");
            self.about_to_change(endpoint);
            self.endpoints[endpoint].config.status = Status::Disabled;
            self.configuration_moves(endpoint);
        }
        Ok(committed.result)
    }

    /// What the database has made of one delivery.
    fn note_record(
        &mut self,
        writer: Member,
        number: usize,
        record: &Record,
        result: RecordedAs,
        is_late: bool,
    ) -> Result<(), Violation> {
        if self.unrecorded.get(&number) == Some(&writer) {
            self.unrecorded.remove(&number);
        }
        match result {
            RecordedAs::Done => {}
            RecordedAs::NotOwner => {
                self.visit("fault", "record under an old epoch");
                return Ok(());
            }
            RecordedAs::MovedOn => {
                self.visit("fault", "record of what has moved on");
                return Ok(());
            }
        }
        let state = self.store.rows[number].state;
        self.visit("edge", &format!("waiting to {}", state_name(state)));
        self.trace(2, number as u64);
        match &record.recorded {
            Recorded::Attempt { attempt, .. } if !is_late => {
                let endpoint = endpoint_number(record.endpoint);
                let stored = self.store.memory(endpoint).breaker;
                self.checker.recorded(number, attempt.number, stored, self.now)?;
            }
            Recorded::Moved { state: State::Waiting { .. }, .. } => self.checker.hurried(number),
            Recorded::Attempt { .. } | Recorded::Moved { .. } | Recorded::Nothing => {}
        }
        if is_late {
            self.visit("edge", "recorded by the owner before");
            let endpoint = record.endpoint;
            let delivery = self.store.rows[number].delivery;
            let delay = self.soon(10);
            if let Some((node, member)) = self.owner_of(endpoint_number(endpoint)) {
                let wake = Box::new(Wake::RecordedElsewhere { endpoint, delivery });
                let incarnation = self.nodes[node].incarnation;
                self.later(delay, Step::Arrives { node, incarnation, member, wake });
            }
        }
        Ok(())
    }

    /// One page after another.
    pub(super) fn find_work(&mut self, node: usize, incarnation: u64, after: Option<EndpointId>) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        let page = self.store.work(&self.endpoints, after, WORK_PAGE);
        let (delay, member) = (self.soon(5), self.nodes[node].member);
        if page.len() == WORK_PAGE {
            let again = self.soon(5);
            self.later(again, Step::FindWork { node, incarnation, after: page.last().copied() });
        }
        self.later(delay, Step::Arrives { node, incarnation, member, wake: Box::new(Wake::Work(page)) });
    }

    /// Some rows after others; whoever dies over it leaves the rest as they were.
    pub(super) fn restamp(&mut self, node: usize, incarnation: u64, life: Life, endpoint: usize, after: usize) {
        if self.nodes[node].incarnation != incarnation {
            self.visit("fault", "died while it stamped rows anew");
            return;
        }
        let delay = self.soon(5);
        let goes_on = self.store.restamp(endpoint, &self.endpoints[endpoint].config, after, RESTAMP_ROWS);
        let step = if let Some(after) = goes_on {
            Step::Restamp { node, incarnation, life, endpoint, after }
        } else {
            let wake = Box::new(Wake::Restamped { life, endpoint: self.endpoints[endpoint].id });
            Step::Arrives { node, incarnation, member: self.nodes[node].member, wake }
        };
        self.later(delay, step);
    }

    /// A node that stops has finished what it had begun: it says what it knows, and nobody owns what it had.
    pub(super) fn leave(&mut self, node: usize) -> Result<(), Violation> {
        let member = (node, self.nodes[node].member);
        let now = self.now;
        let owner = self.nodes[node].owner.as_mut().expect("only who runs can stop");
        let is_late = !owner.is_at_rest();
        owner.count();
        let (deeds, lanes, partitions) = (owner.next_deeds(now), owner.lane_states(), owner.partitions());
        for deed in deeds {
            if let Deed::Count(minutes) = deed {
                self.store.count(minutes);
            }
        }
        self.visit("edge", if is_late { "stopped too late" } else { "stopped" });
        self.commit_records(member, &lanes)?;
        self.die(node);
        self.hand_over(member, &partitions, &[]);
        if is_late {
            // What it has given up, and nobody has heard of, is taken over when its lease ends.
            self.store.abandon(member);
        }
        self.later(Duration::from_millis(500), Step::Start { node });
        Ok(())
    }

    /// Whether something that it has given up is not yet known to be.
    pub(super) fn is_handing_over(&self, leaver: usize) -> bool {
        self.pending.values().any(|step| {
            let is_asked =
                matches!(step, Step::Do { node, deed, .. } if *node == leaver && matches!(**deed, Deed::HandOver { .. }));
            is_asked || matches!(step, Step::HandOver { node, .. } if *node == leaver)
        })
    }

    /// One transaction: what is in flight is written down with a deadline, and the partitions are nobody's.
    pub(super) fn hand_over(&mut self, leaver: Member, partitions: &[Partition], in_flight: &[HandedOver]) {
        self.store.hand_over(leaver, partitions, in_flight);
        let (heir, delay) = (self.random.random_range(0..self.nodes.len()), self.soon(50));
        let heir = if heir == leaver.0 { (heir + 1) % self.nodes.len() } else { heir };
        self.later(delay, Step::Claim { node: heir });
    }

    /// What is said now is what was said before, from the next change on.
    pub(super) fn about_to_change(&mut self, endpoint: usize) {
        let endpoint = &mut self.endpoints[endpoint];
        endpoint.before = Before { config: endpoint.config.clone(), mode: endpoint.mode, url: endpoint.url.clone() };
        endpoint.changed_at = self.now;
    }

    /// A change is committed. Every node hears of it within 250 ms, if it runs.
    pub(super) fn configuration_moves(&mut self, endpoint: usize) {
        self.tenants[self.endpoints[endpoint].tenant].version += 1;
        for node in 0..self.nodes.len() {
            let delay = self.soon(250);
            self.later(delay, Step::ConfigurationMoves { node });
        }
    }
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Waiting { .. } => "waiting again",
        State::Delivered { .. } => "delivered",
        State::Dead { reason, .. } => reason.name(),
        State::Cancelled { reason, .. } => reason.name(),
    }
}
