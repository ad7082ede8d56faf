//! Carries out commands: cancel, send now, test. Also ends deliveries that are overdue.

use std::sync::Arc;

use posthaste_core::delivery::{CancelReason, DeadReason, State};
use posthaste_core::event::Event;
use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::{Backlog, Seq};
use posthaste_core::time::Timestamp;
use posthaste_store::{
    Audit, Command, CommandOutcome, CommandRequest, DeliveryChange, DeliveryRow, Overdue, OverdueReason, Partition, RecordResult,
};
use tokio::sync::oneshot;

use super::{Effect, OnRecorded, Owner, SendRef, SendRequest, WaiterId};
use crate::bodies::weight;

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) left: usize,
    pub(super) is_any_done: bool,
    pub(super) answer: oneshot::Sender<CommandOutcome>,
}

impl Owner {
    pub(super) fn command_received(&mut self, now: Timestamp, asked: CommandRequest) {
        if !self.epochs.contains_key(&asked.partition) || self.is_stopping {
            // Dropped: the caller receives `Unavailable`.
            return;
        }
        match &asked.command {
            Command::CancelDelivery { .. } | Command::CancelEvent { .. } | Command::SendNow { .. } => {
                self.effects.push(Effect::FindDeliveries { generation: self.generation, asked: Box::new(asked) });
            }
            Command::Test { endpoint, event } => {
                let (endpoint, event) = (*endpoint, Arc::clone(event));
                if self.ensure_lane(now, endpoint, Backlog::None) {
                    self.test(now, endpoint, event, asked.answer);
                } else {
                    self.tests.entry(endpoint).or_default().push((event, asked.answer));
                }
            }
            Command::Apply { tenant, endpoint } => {
                let endpoints = self.cached_endpoints(tenant, *endpoint);
                self.apply(now, endpoints, asked.answer);
            }
        }
    }

    pub(super) fn deliveries_found(&mut self, now: Timestamp, asked: CommandRequest, rows: &[DeliveryRow]) {
        let CommandRequest { command, answer, .. } = asked;
        let (state, audit) = match command {
            Command::CancelDelivery { audit, .. } | Command::CancelEvent { audit, .. } => {
                (State::Cancelled { at: now, reason: CancelReason::Requested }, audit)
            }
            Command::SendNow { audit, .. } => (State::Waiting { due: now }, audit),
            Command::Test { .. } | Command::Apply { .. } => return,
        };
        if rows.iter().any(|row| !self.epochs.contains_key(&row.partition)) {
            // The partition was given up. Dropped: the caller receives `Unavailable`.
            return;
        }
        let waits = |row: &&DeliveryRow| matches!(row.state, State::Waiting { .. });
        let refusal = if rows.is_empty() {
            Some(CommandOutcome::NotFound)
        } else if rows.iter().any(|row| self.scheduler.is_in_flight(row.endpoint, row.id) || self.withdrawn.contains_key(&row.seq))
        {
            Some(CommandOutcome::InFlight)
        } else if rows.iter().filter(waits).count() == 0 {
            Some(CommandOutcome::HasEnded)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let _ = answer.send(refusal);
            return;
        }
        self.last_waiter_id += 1;
        let waiter_id = self.last_waiter_id;
        let waiting: Vec<&DeliveryRow> = rows.iter().filter(waits).collect();
        self.waiters.insert(waiter_id, Waiter { left: waiting.len(), is_any_done: false, answer });
        let mut audit = Some(audit);
        for row in waiting {
            // One audit entry per command.
            self.withdraw(row.partition, row.endpoint, row.id, row.seq, state, audit.take(), Some(waiter_id));
            if plant::is(Plant::CancelAnsweredEarly) {
                self.answer(waiter_id, RecordResult::Done);
            }
        }
    }

    /// Withdraws a delivery that is not in flight from its lane and records its new state.
    #[expect(clippy::too_many_arguments, reason = "each is another thing, and it is called in two places")]
    pub(super) fn withdraw(
        &mut self,
        partition: Partition,
        endpoint: EndpointId,
        delivery: DeliveryId,
        seq: Seq,
        state: State,
        audit: Option<Audit>,
        waiter_id: Option<WaiterId>,
    ) {
        self.scheduler.withdraw(endpoint, delivery, seq).expect("asked before");
        self.withdrawn.insert(seq, false);
        self.mark_seen(endpoint, seq);
        // An endpoint that is not loaded remembers nothing of this.
        self.expect_late_feed_rows([seq]);
        let still_waits = matches!(state, State::Waiting { .. });
        if !still_waits {
            self.bodies.take(seq);
        }
        let note = self.note_of_end(endpoint, state);
        let recorded = DeliveryChange::Moved { seq, state, audit: audit.map(Box::new) };
        let after = OnRecorded::Withdrawn { endpoint, delivery, seq, still_waits, waiter_id, note };
        self.record_in(partition, endpoint, recorded, None, None, after);
    }

    pub(super) fn answer(&mut self, waiter_id: WaiterId, result: RecordResult) {
        let Some(waiter) = self.waiters.get_mut(&waiter_id) else { return };
        match result {
            RecordResult::Done => waiter.is_any_done = true,
            RecordResult::MovedOn => {}
            RecordResult::NotOwner => {
                // Dropped: the caller receives `Unavailable`.
                self.waiters.remove(&waiter_id);
                return;
            }
        }
        waiter.left -= 1;
        if waiter.left == 0 {
            let Waiter { is_any_done, answer, .. } = self.waiters.remove(&waiter_id).expect("just found");
            let _ = answer.send(if is_any_done { CommandOutcome::Done } else { CommandOutcome::HasEnded });
        }
    }

    pub(super) fn test(
        &mut self,
        now: Timestamp,
        endpoint: EndpointId,
        event: Arc<Event>,
        answer: oneshot::Sender<CommandOutcome>,
    ) {
        let known = self.endpoints.get_mut(&endpoint).expect("a lane is of a known endpoint");
        if known.target.stored.deleted_at.is_some() {
            let _ = answer.send(CommandOutcome::NotFound);
            return;
        }
        let again_at = known.tested_at.map(|tested_at| tested_at + self.options.test_send_pause);
        let started = match again_at.filter(|again_at| now < *again_at) {
            Some(again_at) => Err(again_at),
            None => self.scheduler.start_test_send(now, endpoint),
        };
        if let Err(not_before) = started {
            let _ = answer.send(CommandOutcome::NotBefore(not_before));
            return;
        }
        known.tested_at = Some(now);
        let timeout = known.timeout.in_force_for_probe(known.mode, &self.options.timeouts);
        // It is no delivery, so that its id is made from its event's, which is new.
        let delivery = DeliveryId::from_bytes(test_id(&event));
        let bytes = weight(&event);
        self.bytes_in_flight += bytes;
        self.requests += 1;
        self.testers.insert(delivery, answer);
        let send = SendRef { endpoint, delivery, seq: 0, is_test: true, bytes };
        let target = Arc::clone(&known.target);
        // Nobody looks at a test: its event is nobody's.
        let sending = SendRequest { generation: self.generation, send, number: 1, event, target, timeout, due: now, trace: None };
        self.effects.push(Effect::Send(Box::new(sending)));
    }

    pub(super) fn end_overdue(&mut self, now: Timestamp, overdue: Overdue) {
        let Overdue { endpoint, delivery, seq, why } = overdue;
        // One that is not known yet is taken up, and found again next time.
        let Some(partition) = self.endpoints.get(&endpoint).map(|known| known.partition) else {
            self.request_load(endpoint);
            return;
        };
        let is_ours = self.epochs.contains_key(&partition);
        if !is_ours || self.scheduler.is_in_flight(endpoint, delivery) || self.withdrawn.contains_key(&seq) {
            return;
        }
        let state = match why {
            OverdueReason::Expired => State::Dead { at: now, reason: DeadReason::Expired },
            OverdueReason::EndpointDeleted => State::Cancelled { at: now, reason: CancelReason::EndpointDeleted },
        };
        self.withdraw(partition, endpoint, delivery, seq, state, None, None);
    }
}

fn test_id(event: &Event) -> [u8; 16] {
    let mut id = [0u8; 16];
    for (place, byte) in event.id.as_str().bytes().enumerate() {
        let at = place % id.len();
        id[at] = id[at].rotate_left(3) ^ byte;
    }
    id
}
