//! Turns, requests and answers: what comes of a decision to send.

use std::time::Duration;

use posthaste_core::delivery::{NoConnection, Outcome, Silence, Timings};
use posthaste_core::id::AttemptId;
use posthaste_core::plant::{self, Plant};
use posthaste_engine::{Input, OwnerGeneration, SendRef, SendRequest};
use posthaste_store::AttemptRecord;
use rand::RngExt;

use super::store::number_of_delivery;
use super::{Step, World, endpoint_number};
use crate::checker::{Hit, Violation};
use crate::draw::Mood;

impl World {
    /// A delivery's turn has come: a token is spent, and a slot is taken.
    pub(super) fn turn(&mut self, node: usize, row: usize) -> Result<usize, Violation> {
        let number = self.hit_count;
        self.hit_count += 1;
        let mut hit = Hit {
            row,
            endpoint: self.store.rows[row].endpoint,
            attempt: self.store.rows[row].attempts + 1,
            is_probe: false,
            member: (node, self.nodes[node].member),
            turned_at: self.now,
            started: self.real,
            timeout: Duration::ZERO,
        };
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.turn_comes(self, &hit);
        self.checker = checker;
        hit.is_probe = verdict?;
        self.in_flight.insert(number, hit);
        Ok(number)
    }

    /// Looked at just before the first byte leaves.
    pub(super) fn may_send(&self, node: usize) -> bool {
        self.has_lease(node) || plant::is(Plant::FrozenNodeGoesOn)
    }

    pub(super) fn send(&mut self, node: usize, sending: SendRequest) -> Result<(), Violation> {
        let SendRequest { generation, send, number: attempt, event, target, timeout, due: _, trace: _ } = sending;
        let (incarnation, member) = (self.nodes[node].incarnation, self.nodes[node].member);
        let goes = self.may_send(node);
        let endpoint = endpoint_number(send.endpoint);
        if send.is_test {
            return self.send_test(node, generation, send, goes);
        }
        let row = number_of_delivery(send.delivery);
        let waiting = self.pending_sends.remove(&((node, member), send.delivery));
        if !goes {
            self.visit("fault", "not sent because the lease has ended");
            if let Some(hit) = waiting.and_then(|number| self.in_flight.remove(&number))
                && self.owner_of(endpoint) == Some(hit.member)
            {
                self.checker.unsendable(endpoint, hit.is_probe, self.now, &self.endpoints[endpoint].config.circuit);
            }
            let delay = self.soon(3);
            self.later(delay, Step::Arrives { node, incarnation, member, input: Box::new(Input::NotSent { generation, send }) });
            return Ok(());
        }
        let number = match waiting {
            Some(number) => number,
            None => self.turn(node, row)?,
        };
        self.report.hits += 1;
        self.trace(1, number as u64 ^ (row as u64) << 20);
        let hit = self.in_flight.get_mut(&number).expect("its turn has come");
        (hit.attempt, hit.started, hit.timeout) = (attempt, self.real, timeout);
        let hit = hit.clone();
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.hit_starts(self, &hit, &event, target.stored());
        self.checker = checker;
        verdict?;
        self.unrecorded.insert(row, (node, member));
        let (takes, outcome) = self.receive(endpoint, timeout);
        self.later(takes, Step::Answer { incarnation, hit: number, generation, send, outcome });
        Ok(())
    }

    /// Somebody tries an endpoint out. It passes every hold but the bucket.
    fn send_test(&mut self, node: usize, generation: OwnerGeneration, send: SendRef, goes: bool) -> Result<(), Violation> {
        let (incarnation, member, endpoint) =
            (self.nodes[node].incarnation, self.nodes[node].member, endpoint_number(send.endpoint));
        self.visit("edge", "test-send");
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.test_send(self, endpoint);
        self.checker = checker;
        verdict?;
        let (takes, outcome) = self.receive(endpoint, Duration::from_secs(10));
        let attempt = Box::new(self.attempt(1, outcome, takes, Duration::from_secs(10)));
        let input = if goes { Input::AttemptFinished { generation, send, attempt } } else { Input::NotSent { generation, send } };
        self.later(takes, Step::Arrives { node, incarnation, member, input: Box::new(input) });
        Ok(())
    }

    fn receive(&mut self, endpoint: usize, timeout: Duration) -> (Duration, Outcome) {
        let quick = self.soon(300);
        let answered = |status| Outcome::Answered { status, retry_after: None };
        match self.endpoints[endpoint].mood {
            Mood::Healthy => (quick, answered(200)),
            Mood::Failing(status) => (quick, answered(status)),
            Mood::Hanging => (timeout, Outcome::Silent(Silence::Timeout)),
            Mood::Slow(millis) if Duration::from_millis(millis) >= timeout => (timeout, Outcome::Silent(Silence::Timeout)),
            Mood::Slow(millis) => (Duration::from_millis(millis), answered(200)),
            Mood::Uneven if self.random.random_range(0..2u32) == 0 => (quick, answered(503)),
            Mood::Uneven => {
                let takes = Duration::from_millis(self.random.random_range(500..9_000u64));
                if takes < timeout { (takes, answered(200)) } else { (timeout, Outcome::Silent(Silence::Timeout)) }
            }
            Mood::Refusing => (Duration::from_millis(2), Outcome::NotSent(NoConnection::Connect)),
            Mood::Flaky => (quick, answered(if self.random.random_range(0..3u32) == 0 { 500 } else { 204 })),
            Mood::Limiting(seconds) => (quick, Outcome::Answered { status: 429, retry_after: Some(Duration::from_secs(seconds)) }),
        }
    }

    /// The receiver has answered; whoever has sent it hears of that, if it still runs.
    pub(super) fn answer(
        &mut self,
        incarnation: u64,
        number: usize,
        generation: OwnerGeneration,
        send: SendRef,
        outcome: Outcome,
    ) -> Result<(), Violation> {
        let hit = self.in_flight.remove(&number).expect("in flight until answered");
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.hit_ends(self, &hit, &outcome);
        self.checker = checker;
        verdict?;
        let (node, member) = hit.member;
        let attempt = Box::new(self.attempt(hit.attempt, outcome, self.real.since(hit.started), hit.timeout));
        let input = Input::AttemptFinished { generation, send, attempt };
        if self.nodes[node].incarnation == incarnation && self.nodes[node].member == member {
            self.answered.insert((hit.member, send.delivery), hit);
        }
        if let Some(thaw) = self.nodes[node].frozen_until {
            self.visit("fault", "answer to a frozen node");
            let after = thaw.since(self.real);
            self.later(after, Step::Arrives { node, incarnation, member, input: Box::new(input) });
            return Ok(());
        }
        self.arrives(node, incarnation, member, input)
    }

    fn attempt(&mut self, number: u32, outcome: Outcome, response_time: Duration, timeout: Duration) -> AttemptRecord {
        self.attempt_count += 1;
        AttemptRecord {
            id: AttemptId::from_bytes(self.attempt_count.to_be_bytes()),
            number,
            outcome,
            response_time,
            timings: Timings::default(),
            timeout,
            preview: None,
            error: None,
            attempted_at: self.now - response_time,
            // Histories of URLs are the store's, and not simulated.
            endpoint_version: None,
        }
    }
}
