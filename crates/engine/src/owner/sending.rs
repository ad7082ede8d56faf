//! From a turn to a record: payload, request, answer, what is remembered of it.

use std::collections::HashMap;
use std::sync::Arc;

use posthaste_core::delivery::{CancelReason, DeadReason, Outcome, State, Verdict};
use posthaste_core::event::Event;
use posthaste_core::health::DisableReason;
use posthaste_core::id::{DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::notice::{NoticeKind, Noticed};
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::{Decision, Entry, LaneMemory, Seq};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::Mode;
use posthaste_core::trace::TraceId;
use posthaste_metrics::{Attempt, CircuitChange, EndpointStatus, Note};
use posthaste_store::{AttemptRecord, Body, BodyError, CommandOutcome, DeliveryChange, LaneState, Partition, Record, RecordResult};

use super::{Effect, OnRecorded, Owner, PendingSend, SendRef, SendRequest};
use crate::bodies::weight;
use crate::tally::is_timeout;

/// What is kept of an event while its request is on its way. Not its payload.
#[derive(Clone, Debug)]
pub(super) struct InFlightRequest {
    event: EventId,
    /// When it could first have been delivered.
    since: Timestamp,
    /// The trace that it belongs to, if somebody looks at it.
    trace: Option<TraceId>,
}

impl Owner {
    pub(super) fn send(&mut self, now: Timestamp, endpoint: EndpointId, delivery: DeliveryId, is_probe: bool) {
        let seq = self.entry(endpoint, delivery).seq;
        if self.withdrawn.contains_key(&seq) && !plant::is(Plant::WithdrawnIsSent) {
            self.scheduler.unsendable(now, endpoint, delivery);
            self.scheduler.ended(endpoint, delivery);
            return;
        }
        let wanted = PendingSend { endpoint, delivery, seq, is_probe };
        if is_probe && !plant::is(Plant::HalfOpenNotWritten) {
            self.record_probe(wanted);
        } else {
            self.find_body(wanted);
        }
    }

    fn find_body(&mut self, wanted: PendingSend) {
        if let Some(event) = self.bodies.take(wanted.seq) {
            self.post(wanted, event);
        } else {
            self.unsent.insert(wanted.delivery);
            self.pending_sends.push(wanted);
        }
    }

    /// Writes the half-open circuit before its probe is sent: whoever takes over after a crash knows that it was made, and does not
    /// send another before the probe interval is over.
    fn record_probe(&mut self, wanted: PendingSend) {
        let endpoint = wanted.endpoint;
        let memory = self.scheduler.memory(endpoint).expect("a lane stays while something of it is in flight");
        let version = self.next_lane_version();
        let known = self.endpoints.get_mut(&endpoint).expect("a lane is of a known endpoint");
        known.written = memory;
        let lane = LaneState { memory, timeout: known.timeout, version };
        self.unsent.insert(wanted.delivery);
        self.record(endpoint, DeliveryChange::Nothing, Some(lane), None, OnRecorded::Probe(wanted));
    }

    /// The probe may go, if its lane is still ours.
    fn probe_recorded(&mut self, now: Timestamp, wanted: PendingSend, result: RecordResult) {
        if !self.unsent.remove(&wanted.delivery) {
            // Given up while that was written: the next owner sends it.
            return;
        }
        match result {
            RecordResult::Done | RecordResult::MovedOn => self.find_body(wanted),
            RecordResult::NotOwner => {
                let PendingSend { endpoint, delivery, .. } = wanted;
                self.scheduler.unsendable(now, endpoint, delivery);
                self.scheduler.ended(endpoint, delivery);
                self.changed.insert(endpoint);
            }
        }
    }

    pub(super) fn post(&mut self, wanted: PendingSend, event: Arc<Event>) {
        let PendingSend { endpoint, delivery, seq, is_probe } = wanted;
        let entry = self.entry(endpoint, delivery);
        let (number, due) = (entry.attempts + 1, entry.due);
        let known = self.endpoints.get(&endpoint).expect("a lane is of a known endpoint");
        let target = Arc::clone(&known.target);
        let rules = &self.options.timeouts;
        let timeout = if is_probe {
            known.timeout.in_force_for_probe(known.mode, rules)
        } else {
            known.timeout.in_force(known.mode, rules).0
        };
        if is_probe {
            self.note(Note::Circuit(CircuitChange::HalfOpen));
        }
        let since = event.timing.deliver_at().map_or(made_at(delivery), |deliver_at| deliver_at.max(made_at(delivery)));
        let trace = self.options.traces.as_ref().and_then(|traces| traces.trace_of(&event));
        self.in_flight_requests
            .insert(delivery, InFlightRequest { event: event.id.clone(), since, trace: trace.map(|trace| trace.id) });
        let bytes = weight(&event);
        self.bytes_in_flight += bytes;
        self.requests += 1;
        let send = SendRef { endpoint, delivery, seq, is_test: false, bytes };
        self.changed.insert(endpoint);
        self.effects.push(Effect::Send(Box::new(SendRequest {
            generation: self.generation,
            send,
            number,
            event,
            target,
            timeout,
            due,
            trace,
        })));
    }

    pub(super) fn bodies_found(&mut self, now: Timestamp, asked: Vec<PendingSend>, found: Vec<Body>) {
        let mut found: HashMap<Seq, Body> = found.into_iter().map(|body| (body.seq, body)).collect();
        let mut others: Vec<Seq> = found.keys().copied().collect();
        others.sort_unstable();
        for wanted in asked {
            let PendingSend { endpoint, delivery, seq, .. } = wanted;
            if !self.unsent.remove(&delivery) {
                // Given up while its payload was read: the next owner sends it.
                continue;
            }
            let found_as = others.pop().filter(|_| plant::is(Plant::BodyOfAnother)).unwrap_or(seq);
            match found.remove(&found_as).map(|body| body.event) {
                Some(Ok(event)) => self.post(wanted, Arc::new(event)),
                Some(Err(problem)) => {
                    self.scheduler.unsendable(now, endpoint, delivery);
                    let state = match problem {
                        BodyError::Erased => State::Cancelled { at: now, reason: CancelReason::Requested },
                        BodyError::Corrupt(error) => {
                            tracing::error!(%delivery, %error, "a stored payload is damaged: it is not sent");
                            State::Dead { at: now, reason: DeadReason::Corrupt }
                        }
                    };
                    self.move_in_flight(endpoint, delivery, seq, state);
                }
                // The row itself is gone: its tenant was deleted.
                None => {
                    self.scheduler.unsendable(now, endpoint, delivery);
                    self.scheduler.ended(endpoint, delivery);
                }
            }
        }
    }

    /// Ends a delivery that a lane says has to end.
    pub(super) fn end(&mut self, endpoint: EndpointId, delivery: DeliveryId, state: State) {
        let seq = self.entry(endpoint, delivery).seq;
        if self.withdrawn.contains_key(&seq) {
            self.scheduler.ended(endpoint, delivery);
            return;
        }
        self.bodies.take(seq);
        self.move_in_flight(endpoint, delivery, seq, state);
    }

    pub(super) fn move_in_flight(&mut self, endpoint: EndpointId, delivery: DeliveryId, seq: Seq, state: State) {
        let note = self.note_of_end(endpoint, state);
        let noticed = self.death(endpoint, state);
        let recorded = DeliveryChange::Moved { seq, state, audit: None };
        self.record(endpoint, recorded, None, None, OnRecorded::AttemptEnded { endpoint, delivery, note, noticed });
    }

    pub(super) fn entry(&self, endpoint: EndpointId, delivery: DeliveryId) -> &Entry {
        self.scheduler.in_flight_entry(endpoint, delivery).expect("in flight until recorded")
    }

    /// Nothing has happened, and whoever owns it now may send it.
    pub(super) fn not_sent(&mut self, now: Timestamp, send: SendRef) {
        let SendRef { endpoint, delivery, is_test, bytes, .. } = send;
        self.requests -= 1;
        self.bytes_in_flight -= bytes;
        self.changed.insert(endpoint);
        if is_test {
            self.scheduler.finish_test_send(endpoint);
            // Dropped: whoever asked hears that it was not made.
            self.testers.remove(&delivery);
            return;
        }
        self.in_flight_requests.remove(&delivery);
        self.scheduler.unsendable(now, endpoint, delivery);
        self.scheduler.ended(endpoint, delivery);
        // If the lease is renewed in the last moment, it is still ours.
        self.look_at(now, endpoint);
    }

    pub(super) fn attempt_finished(&mut self, now: Timestamp, send: SendRef, attempt: Box<AttemptRecord>) {
        let SendRef { endpoint, delivery, seq, is_test, bytes } = send;
        self.requests -= 1;
        self.bytes_in_flight -= bytes;
        self.changed.insert(endpoint);
        if is_test {
            self.scheduler.finish_test_send(endpoint);
            if let Some(answer) = self.testers.remove(&delivery) {
                let _ = answer.send(CommandOutcome::Tested(attempt));
            }
            return;
        }
        if attempt.outcome == Outcome::Blocked {
            return self.hold_blocked(now, send, attempt.error);
        }
        self.blocked.remove(endpoint);
        let decision = self.scheduler.finished(now, endpoint, delivery, &attempt.outcome);
        let memory = self.scheduler.memory(endpoint).expect("a lane stays while something of it is in flight");
        let failing = (memory.health.consecutive_failures(), memory.health.failing_since().unwrap_or(now));
        let known = self.endpoints.get_mut(&endpoint).expect("a lane is of a known endpoint");
        let entry = self.scheduler.in_flight_entry(endpoint, delivery).expect("in flight until recorded");
        let request = self.in_flight_requests.remove(&delivery);
        log_attempt(
            &AttemptLog { endpoint, tenant: &known.tenant, delivery, entry, request: request.as_ref() },
            &attempt,
            &decision,
        );
        let note = self.options.metrics.is_some().then(|| {
            Note::Attempt(Box::new(Attempt {
                endpoint,
                tenant: known.tenant.clone(),
                event_type: entry.event_type.clone(),
                status: EndpointStatus::of(known.target.stored.endpoint.status.at(now)),
                number: attempt.number,
                outcome: attempt.outcome,
                verdict: decision.verdict,
                response_time: attempt.response_time,
                lag: attempt.attempted_at.since(entry.due),
                age: now.since(request.as_ref().map_or(entry.due, |request| request.since)),
                timeout: attempt.timeout,
            }))
        });
        if let Some(transition) = decision.transition.filter(|_| self.options.metrics.is_some()) {
            self.notes.push(Note::Circuit(CircuitChange::of(transition)));
        }
        known.recent.add(now, is_timeout(&attempt.outcome));
        let is_new = differs(&known.written, &memory) && !plant::is(Plant::LaneStateNotWritten);
        let lane = is_new.then(|| {
            known.written = memory;
            self.lane_version += 1;
            LaneState { memory, timeout: known.timeout, version: self.lane_version }
        });
        if known.mode == Mode::Adaptive || plant::is(Plant::PinIsLearned) {
            self.consider_timeout(now, endpoint, delivery, memory.breaker);
        }
        if plant::is(Plant::AnswerDropped) && decision.verdict.retry_at().is_none() {
            return;
        }
        let noticed = self.noticed(now, endpoint, &decision, failing);
        let recorded = DeliveryChange::Attempt { seq, attempt, state: decision.verdict.state(now) };
        let after = OnRecorded::AttemptEnded { endpoint, delivery, note, noticed };
        self.record(endpoint, recorded, lane, decision.disables_endpoint, after);
    }

    /// What people are told of an attempt once it is recorded. Nothing unless somebody tells them.
    fn noticed(&self, now: Timestamp, endpoint: EndpointId, decision: &Decision, failing: (u32, Timestamp)) -> Vec<Noticed> {
        if self.options.notices.is_none() {
            return vec![];
        }
        let (failures, since) = failing;
        let of_health = decision.news.and_then(|news| NoticeKind::of_news(news, failures, since));
        let of_circuit = decision.transition.and_then(NoticeKind::of_transition);
        let of_status = decision.disables_endpoint.map(|_| NoticeKind::Disabled);
        let of_death = decision.verdict.is_death().then_some(NoticeKind::Died);
        let all = [of_health, of_circuit, of_status, of_death];
        let tenant = &self.endpoints.get(&endpoint).expect("a lane is of a known endpoint").tenant;
        all.into_iter().flatten().map(|what| Noticed { at: now, endpoint, tenant: tenant.clone(), what }).collect()
    }

    /// What ends without an attempt may be dead, too.
    fn death(&self, endpoint: EndpointId, state: State) -> Vec<Noticed> {
        let State::Dead { at, .. } = state else { return vec![] };
        let Some(known) = self.endpoints.get(&endpoint).filter(|_| self.options.notices.is_some()) else { return vec![] };
        vec![Noticed { at, endpoint, tenant: known.tenant.clone(), what: NoticeKind::Died }]
    }

    pub(super) fn record(
        &mut self,
        endpoint: EndpointId,
        recorded: DeliveryChange,
        lane: Option<LaneState>,
        disables_endpoint: Option<DisableReason>,
        on_recorded: OnRecorded,
    ) {
        let partition = self.endpoints.get(&endpoint).expect("a lane is of a known endpoint").partition;
        self.record_in(partition, endpoint, recorded, lane, disables_endpoint, on_recorded);
    }

    pub(super) fn record_in(
        &mut self,
        partition: Partition,
        endpoint: EndpointId,
        recorded: DeliveryChange,
        lane: Option<LaneState>,
        disables_endpoint: Option<DisableReason>,
        on_recorded: OnRecorded,
    ) {
        // What was in flight when its partition was given up is recorded under the epoch that it was begun in.
        let epoch = self.epochs.get(&partition).or(self.left_epochs.get(&partition)).copied().unwrap_or(0);
        let epoch = self.epochs.values().next().copied().filter(|_| plant::is(Plant::WrongEpoch)).unwrap_or(epoch);
        self.records.push(Record { partition, epoch, endpoint, recorded, lane, disables_endpoint });
        self.on_recorded.push(on_recorded);
    }

    pub(super) fn recorded(&mut self, now: Timestamp, on_recorded: Vec<OnRecorded>, results: &[RecordResult]) {
        self.unrecorded -= on_recorded.len();
        for (on_recorded, result) in on_recorded.into_iter().zip(results) {
            if plant::is(Plant::RecordAnswerDropped) {
                continue;
            }
            match on_recorded {
                OnRecorded::AttemptEnded { endpoint, delivery, note, noticed } => {
                    self.notes.extend(note.filter(|_| *result == RecordResult::Done));
                    if *result == RecordResult::Done {
                        self.effects.extend(noticed.into_iter().map(Effect::Notify));
                    }
                    if *result == RecordResult::NotOwner {
                        tracing::warn!(%delivery, "an attempt was not recorded: somebody else owns its delivery now");
                    }
                    self.scheduler.recorded(endpoint, delivery);
                    self.consider_spike(now, endpoint, delivery);
                    self.changed.insert(endpoint);
                }
                OnRecorded::Withdrawn { endpoint, delivery, seq, still_waits, waiter_id, note } => {
                    self.notes.extend(note.filter(|_| *result == RecordResult::Done));
                    // A read that looked before the commit may bring it back: it is told apart from now on.
                    let _ = self.scheduler.withdraw(endpoint, delivery, seq);
                    let came_back = self.withdrawn.remove(&seq).unwrap_or_default();
                    // A read that has found it may have missed what comes next of its key.
                    if still_waits || came_back {
                        self.look_at(now, endpoint);
                    }
                    if let Some(waiter_id) = waiter_id {
                        self.answer(waiter_id, *result);
                    }
                }
                OnRecorded::Probe(wanted) => self.probe_recorded(now, wanted, *result),
                OnRecorded::Nothing => {}
            }
        }
    }
}

/// Ids of deliveries begin with when they were made.
fn made_at(delivery: DeliveryId) -> Timestamp {
    Timestamp::from_millis(i64::try_from(delivery.as_u128() >> 80).expect("48 bits"))
}

/// Whether there is something that has to survive a crash. The bucket does not: after one nobody knows what was spent.
fn differs(written: &LaneMemory, memory: &LaneMemory) -> bool {
    let lasting = |memory: &LaneMemory| (memory.breaker, memory.health, memory.held_until, memory.slow_start);
    lasting(written) != lasting(memory)
}

/// Whose attempt it was.
struct AttemptLog<'a> {
    endpoint: EndpointId,
    tenant: &'a TenantId,
    delivery: DeliveryId,
    entry: &'a Entry,
    request: Option<&'a InFlightRequest>,
}

/// One line for every attempt, and one for what it has changed. No payloads, and of an answer only its status.
fn log_attempt(log: &AttemptLog<'_>, attempt: &AttemptRecord, decision: &Decision) {
    let AttemptLog { endpoint, tenant, delivery, entry, request } = log;
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                %delivery,
                event = request.map(|request| request.event.as_str()),
                %endpoint,
                %tenant,
                event_type = entry.event_type.as_str(),
                attempt = attempt.number,
                success = decision.verdict == Verdict::Delivered,
                outcome = attempt.outcome.name(),
                status_code = attempt.outcome.status_code(),
                latency_ms = attempt.response_time.as_millis(),
                timeout_ms = attempt.timeout.as_millis(),
                error = attempt.error.as_deref(),
                next_attempt_at = decision.verdict.retry_at().map(Timestamp::to_rfc3339),
                dead_reason = dead_reason(decision.verdict),
                trace_id = request.and_then(|request| request.trace).map(|trace| trace.to_string()),
                "webhook_delivery_attempt"
            )
        };
    }
    match decision.verdict {
        Verdict::Delivered => line!(info),
        Verdict::RetryAt(_) | Verdict::Dead(_) => line!(warn),
    }
    if let Some(transition) = decision.transition {
        tracing::warn!(%endpoint, %tenant, ?transition, "circuit_changed");
    }
    if let Some(news) = decision.news {
        tracing::warn!(%endpoint, %tenant, ?news, "endpoint_health_changed");
    }
    if let Some(reason) = decision.disables_endpoint {
        tracing::warn!(%endpoint, %tenant, ?reason, "endpoint_disabled");
    }
}

fn dead_reason(verdict: Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Dead(reason) => Some(reason.name()),
        Verdict::Delivered | Verdict::RetryAt(_) => None,
    }
}
