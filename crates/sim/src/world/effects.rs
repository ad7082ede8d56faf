//! Carries out the effects of owners, with the engine's own executor, against a store that fails.
//!
//! Each call has two moments: at one the store sees it, at a later one the node hears of it. In between the node can die; the
//! store can fail before it has written anything, or after; calls of different effects overtake each other.

use std::time::Duration;

use posthaste_core::delivery::State;
use posthaste_core::endpoint::{Override, Status};
use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::timeout::Mode;
use posthaste_engine::{
    CallFailure, Effect, Execution, HANDED_OVER_ASKED_EVERY, Input, Next, OnRecorded, PendingSend, Plan, Progress, StoreCall,
    StoreReply, plan,
};
use posthaste_store::{
    DeliveryChange, EndpointBundle, Epoch, Error, HandedOver, NodeId, Page, Partition, Record, RecordResult, WindowRequest,
};
use rand::RngExt;
use tokio::sync::mpsc::unbounded_channel;

use super::store::{number_of_delivery, row_number};
use super::{Before, Member, RULES, Step, World, endpoint_number};
use crate::checker::Violation;

/// Rows that are looked at in one page of a sweep.
const SWEEP_ROWS: usize = 20;
/// Rows that are stamped anew in one step.
const RESTAMP_ROWS: usize = 10;

/// An effect that is being carried out, and by whom.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) node: usize,
    incarnation: u64,
    member: u64,
    pub(super) execution: Execution,
}

/// Deliveries that are scheduled and not sent yet: something has to be read or written first.
fn begun(effect: &Effect) -> Vec<PendingSend> {
    match effect {
        Effect::ReadBodies { wanted, .. } => wanted.clone(),
        Effect::Record { on_recorded, .. } => on_recorded.iter().filter_map(probe).collect(),
        Effect::Send(_)
        | Effect::FindWork
        | Effect::ScanGap { .. }
        | Effect::LoadEndpoints { .. }
        | Effect::ReadWindow { .. }
        | Effect::CompareVersions { .. }
        | Effect::Restamp { .. }
        | Effect::FindDeliveries { .. }
        | Effect::ReadStatistics { .. }
        | Effect::PublishLanes(_)
        | Effect::Notify(_)
        | Effect::HandOver { .. } => vec![],
    }
}

fn probe(on_recorded: &OnRecorded) -> Option<PendingSend> {
    match on_recorded {
        OnRecorded::Probe(wanted) => Some(*wanted),
        OnRecorded::AttemptEnded { .. } | OnRecorded::Withdrawn { .. } | OnRecorded::Nothing => None,
    }
}

/// Whose turn has come.
pub(super) fn turns(effect: &Effect) -> Vec<usize> {
    if let Effect::Send(sending) = effect
        && !sending.send.is_test
    {
        return vec![row_number(sending.send.seq)];
    }
    begun(effect).iter().map(|wanted| row_number(wanted.seq)).collect()
}

impl World {
    /// Gives an owner an input and carries out the effects.
    pub(super) fn deliver(&mut self, node: usize, input: Input) -> Result<(), Violation> {
        self.deliver_to_member(node, self.nodes[node].member, input)
    }

    /// The same for what was meant for the node under the name that it had then.
    fn deliver_to_member(&mut self, node: usize, member: u64, input: Input) -> Result<(), Violation> {
        self.by_clock_of(node, |world| world.deliver_here(node, member, input))
    }

    fn deliver_here(&mut self, node: usize, member: u64, input: Input) -> Result<(), Violation> {
        let member = (node, member);
        if self.nodes[node].owner.is_none() {
            return Ok(());
        }
        let (mut heard, mut bodies, mut probes) = (None, Vec::new(), Vec::new());
        match &input {
            Input::AttemptFinished { send, .. } if !send.is_test => heard = Some(send.delivery),
            Input::BodiesRead { asked, found, .. } => {
                for wanted in asked {
                    let body = found.iter().find(|body| body.seq == wanted.seq);
                    if body.is_some_and(|body| body.event.is_ok()) {
                        bodies.push(wanted.delivery);
                    } else if let Some(hit) = self.pending_sends.remove(&(member, wanted.delivery)) {
                        let hit = self.in_flight.remove(&hit).expect("in flight until answered");
                        let circuit = &self.endpoints[hit.endpoint].config.circuit;
                        self.checker.unsendable(hit.endpoint, hit.is_probe, self.now, circuit);
                    }
                }
            }
            Input::EndpointsLoaded { found, .. } => {
                for EndpointBundle { endpoint, .. } in found {
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
            Input::Recorded { on_recorded, results, .. } => {
                // A probe whose lane is somebody else's by now does not go.
                for (wanted, result) in
                    on_recorded.iter().zip(results).filter_map(|(on_recorded, result)| Some((probe(on_recorded)?, result)))
                {
                    if *result != RecordResult::NotOwner {
                        probes.push(wanted.delivery);
                    } else if let Some(hit) = self.pending_sends.remove(&(member, wanted.delivery)) {
                        self.in_flight.remove(&hit);
                    }
                }
            }
            Input::PartitionsClaimed(_)
            | Input::LeaseEnded
            | Input::GiveUp(_)
            | Input::RecordedElsewhere { .. }
            | Input::Work(_)
            | Input::Committed(_)
            | Input::FeedOverflowed
            | Input::GapScanned { .. }
            | Input::EndpointUnreadable { .. }
            | Input::WindowRead { .. }
            | Input::AttemptFinished { .. }
            | Input::NotSent { .. }
            | Input::ConfigurationChanged
            | Input::Versions { .. }
            | Input::Restamped { .. }
            | Input::Overdue(_)
            | Input::Command(_)
            | Input::DeliveriesFound { .. }
            | Input::StatisticsRead { .. } => {}
        }
        // That something was dropped is heard before what came after it.
        if std::mem::take(&mut self.nodes[node].feed_has_overflowed)
            && let Some(owner) = self.nodes[node].owner.as_mut()
        {
            owner.handle(self.now, Input::FeedOverflowed);
        }
        if let Some(owner) = self.nodes[node].owner.as_mut() {
            owner.handle(self.now, input);
        }
        self.pump(node)?;
        // Whatever was heard has been decided about, and whatever could be sent has been.
        if let Some(delivery) = heard
            && let Some(hit) = self.answered.remove(&(member, delivery))
        {
            let what = format!("row {} at {}: its answer was heard and is not written down", hit.row, self.now.to_rfc3339());
            return Err(Violation { promise: "I1", what });
        }
        for delivery in probes {
            self.drop_given_up(node, member, delivery);
        }
        for delivery in bodies {
            self.drop_given_up(node, member, delivery);
            if self.pending_sends.contains_key(&(member, delivery)) {
                let what = format!("{delivery} at {}: its payload was found and it is not sent", self.now.to_rfc3339());
                return Err(Violation { promise: "I1", what });
            }
        }
        Ok(())
    }

    /// A delivery whose partition was given up, or whose endpoint was changed, while its payload was read, or its probe written, is sent
    /// later, by the next owner or by the same one.
    pub(super) fn drop_given_up(&mut self, node: usize, member: Member, delivery: DeliveryId) {
        let row = &self.store.rows[number_of_delivery(delivery)];
        let (partition, endpoint) = (row.partition, self.endpoints[row.endpoint].id);
        let owner = self.nodes[node].owner.as_ref();
        let is_owner = owner.is_some_and(|owner| owner.partitions().contains(&partition));
        let is_own = is_owner && owner.is_some_and(|owner| owner.is_in_flight(endpoint, delivery));
        if !is_own && let Some(hit) = self.pending_sends.remove(&(member, delivery)) {
            self.visit("edge", "given back unsent");
            let hit = self.in_flight.remove(&hit).expect("in flight until answered");
            if is_owner {
                let circuit = &self.endpoints[hit.endpoint].config.circuit;
                self.checker.unsendable(hit.endpoint, hit.is_probe, self.now, circuit);
            }
        }
    }

    /// What was on its way to an owner that has died is lost.
    pub(super) fn arrives(&mut self, node: usize, incarnation: u64, member: u64, input: Input) -> Result<(), Violation> {
        if self.nodes[node].incarnation != incarnation {
            if matches!(input, Input::AttemptFinished { .. }) {
                self.visit("fault", "answer to a dead node");
            }
            return Ok(());
        }
        if self.nodes[node].member != member {
            self.visit("fault", "news of an earlier life");
        }
        if matches!(input, Input::AttemptFinished { .. }) && !self.nodes[node].counts_soon {
            self.nodes[node].counts_soon = true;
            self.later(Duration::from_secs(10), Step::Count { node, incarnation });
        }
        self.deliver_to_member(node, member, input)
    }

    pub(super) fn count(&mut self, node: usize, incarnation: u64) -> Result<(), Violation> {
        if self.nodes[node].incarnation != incarnation {
            return Ok(());
        }
        self.nodes[node].counts_soon = false;
        self.by_clock_of(node, |world| {
            if let Some(owner) = world.nodes[node].owner.as_mut() {
                owner.publish_changed_lanes(world.now);
            }
        });
        self.pump(node)
    }

    /// Starts all effects that an owner has now.
    pub(super) fn perform_all(&mut self, node: usize, effects: Vec<Effect>) -> Result<(), Violation> {
        let (incarnation, member) = (self.nodes[node].incarnation, self.nodes[node].member);
        for wanted in effects.iter().flat_map(begun).collect::<Vec<_>>() {
            let key = ((node, member), wanted.delivery);
            if self.may_send(node) && !self.pending_sends.contains_key(&key) {
                let hit = self.turn(node, number_of_delivery(wanted.delivery))?;
                self.pending_sends.insert(key, hit);
            }
        }
        // Whom people are told is nobody's promise here.
        let Plan { executions, sends, notices: _ } = plan(effects, self.now, Some(NodeId(0)));
        for sending in sends {
            self.send(node, *sending)?;
        }
        for (execution, progress) in executions {
            self.goes_on(Box::new(Running { node, incarnation, member, execution }), progress)?;
        }
        Ok(())
    }

    fn goes_on(&mut self, running: Box<Running>, progress: Progress) -> Result<(), Violation> {
        let Running { node, incarnation, member, .. } = *running;
        let call = match progress.next {
            Next::Call(call) => Some((Duration::ZERO, call)),
            Next::CallAfter(pause, call) => Some((pause, call)),
            Next::Done => None,
        };
        if let Some((pause, call)) = call {
            let delay = pause + self.store_takes(&call);
            self.later(delay, Step::Call { running, call: Box::new(call) });
        }
        for input in progress.inputs {
            self.arrives(node, incarnation, member, input)?;
        }
        Ok(())
    }

    /// Mostly at once; now and then a busy store takes its time.
    fn store_takes(&mut self, call: &StoreCall) -> Duration {
        let most = if self.random.random_range(0..100u32) == 0 { 300 } else { 5 };
        let is_asked = |record: &Record| matches!(&record.recorded, DeliveryChange::Moved { audit: Some(_), .. });
        // What comes in between is what can go wrong with a wish.
        let is_wish = matches!(call, StoreCall::Record(records) if records.iter().any(is_asked));
        let more = if is_wish && self.random.random_range(0..3u32) == 0 { 400 } else { 0 };
        self.soon(most + more)
    }

    /// The store sees a call. If whoever made it has died since, only its last words may still be heard.
    pub(super) fn call(&mut self, running: Box<Running>, call: StoreCall) -> Result<(), Violation> {
        let writer = (running.node, running.member);
        if self.nodes[running.node].incarnation != running.incarnation {
            if let StoreCall::Record(records) = &call {
                self.visit("fault", "record of a dead node");
                if self.nodes[running.node].last_words > 0 {
                    self.nodes[running.node].last_words -= 1;
                    self.visit("fault", "record of a dead node is committed");
                    self.commit_records(writer, records)?;
                }
            }
            return Ok(());
        }
        let is_out = self.real < self.store_fails_until;
        // What can go wrong with a hand-over is that it comes twice.
        let is_lost = matches!(call, StoreCall::HandOver { .. }) && !self.is_healed && self.random.random_range(0..3u32) == 0;
        let result = match self.random.random_range(0..900u32) {
            _ if is_out => Err(CallFailure::Store(Error::Unavailable("the store is away".into()))),
            _ if is_lost => self.reply(writer, call)?.and(Err(CallFailure::Store(Error::CommitInDoubt))),
            0 if !self.is_healed => Err(CallFailure::Store(Error::Unavailable("the store is busy".into()))),
            // It was written, and nobody hears of it.
            1 if !self.is_healed => self.reply(writer, call)?.and(Err(CallFailure::Store(Error::CommitInDoubt))),
            2 if !self.is_healed => self.reply(writer, call)?.and(Err(CallFailure::Panicked)),
            3 if !self.is_healed => Err(CallFailure::Panicked),
            _ => self.reply(writer, call)?,
        };
        if let Err(failure) = &result {
            let name = match failure {
                CallFailure::Store(Error::Unavailable(_)) => "store unavailable",
                CallFailure::Store(Error::CommitInDoubt) => "answer of the store lost",
                CallFailure::Store(Error::Corrupt { .. }) => "unreadable",
                CallFailure::Store(Error::Overloaded { .. } | Error::Unusable(_) | Error::TooNew) => "refused",
                CallFailure::Panicked => "call panicked",
            };
            self.visit("fault", name);
            self.store_failed_at = self.now;
        }
        let delay = self.soon(5);
        self.later(delay, Step::Returned { running, result: Box::new(result) });
        Ok(())
    }

    /// The node hears what became of a call.
    pub(super) fn returned(&mut self, mut running: Box<Running>, result: Result<StoreReply, CallFailure>) -> Result<(), Violation> {
        if self.nodes[running.node].incarnation != running.incarnation {
            return Ok(());
        }
        let progress = running.execution.completed(result);
        self.goes_on(running, progress)
    }

    /// What the store answers at this moment.
    fn reply(&mut self, writer: Member, call: StoreCall) -> Result<Result<StoreReply, CallFailure>, Violation> {
        Ok(Ok(match call {
            StoreCall::Work { after, limit } => StoreReply::Work(self.store.work(&self.endpoints, after, limit)),
            StoreCall::Sweep { after, limit } => StoreReply::Sweep(self.store.sweep(after, limit.min(SWEEP_ROWS), &self.endpoints)),
            StoreCall::LoadEndpoints(endpoints) => {
                if endpoints.iter().any(|endpoint| self.endpoints[endpoint_number(*endpoint)].is_unreadable) {
                    return Ok(Err(CallFailure::Store(Error::Corrupt { what: "endpoint" })));
                }
                let load_endpoints =
                    |id: &EndpointId| self.store.load_endpoints(endpoint_number(*id), &self.endpoints, &self.tenants);
                StoreReply::LoadEndpoints(endpoints.iter().map(load_endpoints).collect())
            }
            StoreCall::Windows(asked) => {
                let window =
                    |WindowRequest { endpoint, want, limit }| self.store.window(writer.0, endpoint_number(endpoint), &want, limit);
                StoreReply::Windows(asked.into_iter().map(window).collect())
            }
            StoreCall::Bodies(seqs) => StoreReply::Bodies(self.store.bodies(seqs.into_iter())),
            StoreCall::Record(records) => StoreReply::Record(self.commit_records(writer, &records)?),
            StoreCall::DeliveriesAt(seqs) => {
                let rows = seqs.into_iter().map(|seq| self.store.delivery_row(row_number(seq), &self.endpoints, &self.tenants));
                StoreReply::DeliveriesAt(rows.collect())
            }
            StoreCall::Attempts(delivery) => StoreReply::Attempts(self.store.attempts_of(delivery)),
            StoreCall::TenantVersions(tenants) => {
                let version = |id: &_| self.tenants.iter().find(|tenant| tenant.id == *id).map_or(0, |tenant| tenant.version);
                StoreReply::TenantVersions(tenants.iter().map(version).collect())
            }
            StoreCall::Restamp { endpoint, after, limit } => {
                let number = endpoint_number(endpoint);
                let after = usize::try_from(after).expect("a small number");
                let limit = limit.min(RESTAMP_ROWS);
                let next = self.store.restamp(number, &self.endpoints[number].config, after, limit);
                StoreReply::Restamp(next.map(|next| next as u64))
            }
            StoreCall::Delivery(delivery) => {
                let row = self.store.delivery_row(number_of_delivery(delivery), &self.endpoints, &self.tenants);
                StoreReply::Delivery(Box::new(Some(row)))
            }
            StoreCall::Deliveries(query) => {
                let event = query.event.expect("only those of an event are asked for");
                let numbers = self.store.rows_of(&event).into_iter();
                let rows = numbers.map(|number| self.store.delivery_row(number, &self.endpoints, &self.tenants)).collect();
                StoreReply::Deliveries(Page { rows, next: None })
            }
            StoreCall::Count => StoreReply::Count { is_more: false },
            StoreCall::Statistics(query) => {
                let endpoint = endpoint_number(query.endpoint.expect("one is asked about"));
                StoreReply::Statistics(self.store.statistics(endpoint, query.from, query.to).into_iter().collect())
            }
            StoreCall::PublishLanes(_) => StoreReply::PublishLanes,
            StoreCall::HandOver { partitions, in_flight, .. } => {
                self.hand_over(writer, &partitions, &in_flight);
                StoreReply::HandOver
            }
        }))
    }

    /// An owner has decided what an answer means.
    pub(super) fn decided(&mut self, member: Member, record: &Record) -> Result<(), Violation> {
        let DeliveryChange::Attempt { seq, attempt, state } = &record.recorded else { return Ok(()) };
        let delivery = self.store.rows[row_number(*seq)].delivery;
        let Some(hit) = self.answered.remove(&(member, delivery)) else {
            let what = format!("{delivery} at {}: an attempt is written down that was never made", self.now.to_rfc3339());
            return Err(Violation { promise: "I10", what });
        };
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.decided(self, &hit, &attempt.outcome, *state, record);
        self.checker = checker;
        verdict
    }

    fn commit_records(&mut self, writer: Member, records: &[Record]) -> Result<Vec<RecordResult>, Violation> {
        let mut results = Vec::new();
        for record in records {
            results.push(self.commit_record(writer, record)?);
        }
        Ok(results)
    }

    fn commit_record(&mut self, writer: Member, record: &Record) -> Result<RecordResult, Violation> {
        let endpoint = endpoint_number(record.endpoint);
        let timeout = |world: &World| {
            let lane = world.store.lanes.get(&endpoint);
            lane.map_or(RULES.default, |lane| lane.timeout.in_force(Mode::Adaptive, &RULES).0)
        };
        let before = timeout(self);
        let version = |world: &World| world.store.lanes.get(&endpoint).map(|lane| lane.version);
        let version_before = version(self);
        let committed = self.store.record(self.now, writer, record);
        if version(self) < version_before {
            let what = format!("endpoint {endpoint} at {}: what was known before replaces what is known", self.now.to_rfc3339());
            return Err(Violation { promise: "I27", what });
        }
        if committed.is_forbidden {
            let what = format!("endpoint {endpoint} at {}: written under an old epoch", self.now.to_rfc3339());
            return Err(Violation { promise: "I31", what });
        }
        let seq = match &record.recorded {
            DeliveryChange::Attempt { seq, .. } | DeliveryChange::Moved { seq, .. } => Some(*seq),
            DeliveryChange::Nothing => None,
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
        result: RecordResult,
        is_late: bool,
    ) -> Result<(), Violation> {
        if self.unrecorded.get(&number) == Some(&writer) {
            self.unrecorded.remove(&number);
        }
        match result {
            RecordResult::Done => {}
            RecordResult::NotOwner => {
                self.visit("fault", "record under an old epoch");
                return Ok(());
            }
            RecordResult::MovedOn => {
                self.visit("fault", "record of what has moved on");
                return Ok(());
            }
        }
        let state = self.store.rows[number].state;
        self.visit("edge", &format!("waiting to {}", state_name(state)));
        self.trace(2, number as u64);
        match &record.recorded {
            DeliveryChange::Attempt { attempt, .. } if !is_late => {
                let endpoint = endpoint_number(record.endpoint);
                let stored = self.store.lanes.get(&endpoint);
                // Something later may have been written before this.
                if let (Some(stored), Some(lane)) = (stored, &record.lane)
                    && stored.version == lane.version
                {
                    self.checker.recorded(number, attempt.number, stored.memory.breaker, self.now)?;
                }
            }
            DeliveryChange::Moved { state: State::Waiting { .. }, .. } => self.checker.hurried(number),
            DeliveryChange::Attempt { .. } | DeliveryChange::Moved { .. } | DeliveryChange::Nothing => {}
        }
        if is_late {
            // The new owner asks.
            self.visit("edge", "recorded by the owner before");
            // What waits again the new owner may have begun by itself.
            if self.store.rows[number].due().is_none() {
                self.recorded_elsewhere.push((self.now, number));
            }
        }
        Ok(())
    }

    /// A node asks what became of what an owner before has had in flight.
    pub(super) fn ask_handed_over(&mut self, node: usize, incarnation: u64) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        let (claim, mut asked) = self.nodes[node].handed_over.asked();
        self.nodes[node].asks_soon = !asked.is_empty();
        if asked.is_empty() {
            return;
        }
        // What a leaver whose lease has ended had in flight may be sent once more.
        for dead in self.store.expired(self.real) {
            self.lose_member(dead);
        }
        asked.sort_unstable();
        let left = self.store.handed_over_left(self.now, &asked);
        let (inbox, mut inputs) = unbounded_channel();
        self.nodes[node].handed_over.settle(claim, &asked, &left, &inbox);
        while let Ok(input) = inputs.try_recv() {
            self.visit("edge", "heard that the owner before has recorded it");
            let (delay, member) = (self.soon(5), self.nodes[node].member);
            self.later(delay, Step::Arrives { node, incarnation, member, input: Box::new(input) });
        }
        self.later(HANDED_OVER_ASKED_EVERY, Step::AskHandedOver { node, incarnation });
    }

    /// A node that stops has finished what it had begun: it says what it knows, and nobody owns what it had.
    pub(super) fn leave(&mut self, node: usize) -> Result<(), Violation> {
        let member = (node, self.nodes[node].member);
        let now = self.now;
        let owner = self.nodes[node].owner.as_mut().expect("only who runs can stop");
        let is_late = !owner.is_at_rest();
        drop(owner.next_effects(now));
        let lanes = owner.lane_states();
        // Also what a claim has got that was broken off before it could say so.
        let partitions = self.store.owned_by(member);
        self.visit("edge", if is_late { "stopped too late" } else { "stopped" });
        self.commit_records(member, &lanes)?;
        self.die(node);
        self.hand_over(member, &partitions, &[]);
        self.later(Duration::from_millis(500), Step::Start { node });
        Ok(())
    }

    /// Whether something that it has given up is not yet known to be.
    pub(super) fn is_handing_over(&self, leaver: usize) -> bool {
        self.pending.values().any(|step| {
            let (Step::Call { running, .. } | Step::Returned { running, .. }) = step else { return false };
            running.node == leaver && running.execution.is_hand_over()
        })
    }

    /// One transaction: what is in flight is written down with a deadline, and the partitions are nobody's.
    pub(super) fn hand_over(&mut self, leaver: Member, partitions: &[(Partition, Epoch)], in_flight: &[HandedOver]) {
        // A process that has ended has nothing in flight, and starts again.
        let is_running = self.nodes[leaver.0].owner.is_some() && self.nodes[leaver.0].stops_by.is_none();
        let until = if is_running { self.now + self.options.request_max() } else { self.now };
        self.store.hand_over(leaver, partitions, in_flight, until);
    }

    /// What is said now is what was said before, from the next change on.
    pub(super) fn about_to_change(&mut self, endpoint: usize) {
        let endpoint = &mut self.endpoints[endpoint];
        endpoint.before = Before { config: endpoint.config.clone(), mode: endpoint.mode, url: endpoint.url.clone() };
        endpoint.changed_at = self.now;
        endpoint.is_applied = false;
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
