//! What people do: they publish, change their minds, call off, hurry, try out, ask for the same again, and ask for things to
//! be forgotten. And the housekeeping that is done for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::{CancelReason, State};
use posthaste_core::endpoint::Status;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{DeliveryId, EventId, TenantId};
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::{Class, Entry};
use posthaste_core::text::{Labels, OrderingKey};
use posthaste_core::time::Timestamp;
use posthaste_engine::Wake;
use posthaste_store::{Asked, Audit, COMMAND_MAX, Command, Commanded, Fed};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::{Row, Step, World};
use crate::checker::Violation;
use crate::draw;

/// Of one endpoint, unfinished.
const REPLAYS_AT_ONCE: usize = 5;

/// What a replay has still to make, a few at a time.
#[derive(Debug)]
pub(super) struct Replay {
    endpoint: usize,
    asked_at: Timestamp,
    rows: VecDeque<usize>,
}

/// Somebody waits to hear what has become of what they wanted.
#[derive(Debug)]
pub(super) struct Question {
    wish: Wish,
    endpoint: usize,
    asked_at: Timestamp,
    pub(super) rows: Vec<usize>,
    answer: oneshot::Receiver<Commanded>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Cancel,
    SendNow,
    Test,
}

impl World {
    pub(super) fn publish(&mut self) {
        const TYPES: [&str; 4] = ["order.paid", "order.sent", "alert.fire", "user.made"];
        let tenant = self.random.random_range(0..self.tenants.len());
        let event_type = EventType::parse(TYPES[self.random.random_range(0..TYPES.len())]).expect("valid");
        let is_priority = event_type.as_str().starts_with("alert");
        let key = (self.random.random_range(0..4u32) == 0)
            .then(|| OrderingKey::parse(["k1", "k2", "k3"][self.random.random_range(0..3usize)]).expect("valid"));
        let ahead = |random: &mut ChaCha8Rng| Duration::from_secs(random.random_range(1..20_000u64));
        let deliver_at = (self.random.random_range(0..10u32) == 0).then(|| self.now + ahead(&mut self.random));
        let expires_at =
            (self.random.random_range(0..10u32) == 0).then(|| deliver_at.unwrap_or(self.now) + ahead(&mut self.random));
        // The publisher's clock is its own.
        let timestamp = self.now - self.soon(2000);
        let mut event = self.event(tenant, event_type.clone());
        event.timestamp = timestamp;
        event.ordering_key.clone_from(&key);
        event.timing = Timing::stored(deliver_at, expires_at);
        let event = Arc::new(event);
        for endpoint in 0..self.endpoints.len() {
            let config = &self.endpoints[endpoint].config;
            if self.endpoints[endpoint].tenant != tenant
                || !config.status.takes_events()
                || !config.subscription.covers(&event_type)
            {
                continue;
            }
            if !self.store.rows.iter().any(|row| row.endpoint == endpoint && row.due().is_some()) {
                self.checker.drained(endpoint);
            }
            self.visit("edge", "published");
            let number = self.store.rows.len();
            let is_damaged = self.random.random_range(0..200u32) == 0;
            self.commit(Row {
                delivery: DeliveryId::from_bytes((number as u128 + 1).to_be_bytes()),
                seq: number as u64 + 1,
                endpoint,
                partition: self.tenants[tenant].partition,
                event: Arc::clone(&event),
                event_type: event_type.clone(),
                timestamp,
                is_priority,
                key: key.clone(),
                deliver_at,
                expires_at,
                state: State::Waiting { due: deliver_at.unwrap_or(self.now) },
                attempts: 0,
                is_later: deliver_at.is_some(),
                class: Class::of(&event_type, is_priority, self.endpoints[endpoint].config.schedule.as_ref()),
                committed_at: self.now,
                is_damaged,
                is_erased: false,
                is_hurried: false,
                replayed_at: None,
            });
        }
    }

    fn event(&mut self, tenant: usize, event_type: EventType) -> Event {
        self.event_count += 1;
        Event {
            id: EventId::parse(&format!("evt_{}", self.event_count)).expect("a valid id"),
            tenant: self.tenants[tenant].id.clone(),
            event_type,
            version: None,
            timestamp: self.now,
            accepted_at: self.now,
            data: Data::parse(&format!("{{\"number\":{}}}", self.event_count)).expect("valid JSON"),
            labels: Labels::default(),
            idempotency_key: None,
            ordering_key: None,
            timing: Timing::default(),
            trace: None,
        }
    }

    /// A new row is in the database; its owner hears of it. Whoever has published it hears of it as of its own commit.
    fn commit(&mut self, row: Row) {
        let (number, endpoint, is_damaged) = (self.store.rows.len(), row.endpoint, row.is_damaged);
        let entry = Box::new(row.entry());
        self.store.rows.push(row);
        let publisher = self.random.random_range(0..self.nodes.len());
        // What is damaged is only found out by whoever has to read it.
        if self.random.random_range(0..10u32) == 0 || is_damaged || !self.is_well(publisher) {
            self.visit("fault", "news lost");
            self.later(Duration::from_secs(2), Step::Hint { endpoint });
            return;
        }
        // Mostly at once; now and then a busy node takes its time.
        let most = if self.random.random_range(0..8u32) == 0 { 2000 } else { 3 };
        let delay = self.soon(most);
        if self.owner_of(endpoint).is_some_and(|(node, _)| node != publisher) {
            let delay = self.soon(50);
            self.later(delay, Step::Hint { endpoint });
        }
        let incarnation = self.nodes[publisher].incarnation;
        self.store.untold.insert(entry.seq);
        self.later(delay, Step::Feed { node: publisher, incarnation, row: number, entry });
    }

    pub(super) fn feed(&mut self, node: usize, incarnation: u64, row: usize, entry: Entry) -> Result<(), Violation> {
        self.store.untold.remove(&entry.seq);
        if self.nodes[node].incarnation != incarnation {
            // It has died over it. Whoever takes over looks for itself, and so does whoever has it already.
            let endpoint = self.store.rows[row].endpoint;
            self.later(Duration::from_secs(2), Step::Hint { endpoint });
            return Ok(());
        }
        let number = self.store.rows[row].endpoint;
        if self.owner_of(number) != Some((node, self.nodes[node].member)) {
            self.later(Duration::from_secs(2), Step::Hint { endpoint: number });
        }
        let (row, endpoint) = (&self.store.rows[row], &self.endpoints[number]);
        let fed = Fed {
            endpoint: endpoint.id,
            tenant: self.tenants[endpoint.tenant].id.clone(),
            partition: row.partition,
            entry,
            event: Arc::clone(&row.event),
        };
        self.deliver(node, Wake::Fed(vec![fed]))
    }

    /// The present owner hears that there may be something. If nobody owns it, the next sweep says so again.
    pub(super) fn hint(&mut self, endpoint: usize) -> Result<(), Violation> {
        match self.owner_of(endpoint) {
            Some((node, _)) if self.nodes[node].owner.is_some() => {
                let id = self.endpoints[endpoint].id;
                self.deliver(node, Wake::Work(vec![id]))
            }
            Some(_) | None => {
                self.later(Duration::from_secs(2), Step::Hint { endpoint });
                Ok(())
            }
        }
    }

    /// Somebody changes an endpoint. Its owner hears of it within a second.
    pub(super) fn change(&mut self) {
        let endpoint = self.random.random_range(0..self.endpoints.len());
        if self.is_healed || self.endpoints[endpoint].deleted_at.is_some() {
            return;
        }
        let drawn = draw::lane_config(&mut self.random);
        let kind = self.random.random_range(0..17u32);
        let until = self.now + Duration::from_secs(self.random.random_range(1..10_000u64));
        self.about_to_change(endpoint);
        let now = self.now;
        let present = &mut self.endpoints[endpoint];
        let config = &mut present.config;
        let name = match kind {
            0 | 1 => {
                config.status = Status::Paused { until: Some(until) };
                "pause"
            }
            2 | 3 => {
                config.status = if config.status == Status::Active { Status::Disabled } else { Status::Active };
                "enable or disable"
            }
            4 | 5 => {
                config.rate_limit = drawn.rate_limit;
                "rate limit"
            }
            6 | 7 => {
                config.schedule = drawn.schedule;
                "schedule"
            }
            8 | 9 => {
                config.subscription = drawn.subscription;
                "subscription"
            }
            10 | 11 => {
                present.mode = draw::timeout_mode(&mut self.random);
                "timeout"
            }
            12 | 13 => {
                config.max_in_flight = drawn.max_in_flight;
                "cap"
            }
            14 | 15 => {
                present.url = format!("http://moved-{}.test/{endpoint}", now.as_millis());
                "url"
            }
            _ => {
                config.status = Status::Disabled;
                present.deleted_at = Some(now);
                "deleted"
            }
        };
        self.visit("change", name);
        self.configuration_moves(endpoint);
    }

    /// Somebody wants a delivery called off, or a whole event.
    pub(super) fn cancel(&mut self) {
        let Some(number) = self.one_that_waits() else { return };
        let row = &self.store.rows[number];
        let audit = audit("cancel");
        let (command, rows) = if self.random.random_range(0..3u32) == 0 {
            let (tenant, event) = (self.tenant_of(row), row.event.id.clone());
            let rows = self.store.rows_of(&event);
            (Command::CancelEvent { tenant, event, audit }, rows)
        } else {
            (Command::CancelDelivery { delivery: row.delivery, audit }, vec![number])
        };
        let endpoint = self.store.rows[number].endpoint;
        self.ask(Wish::Cancel, endpoint, rows, command);
    }

    /// Somebody does not want to wait for a retry, or for a time that was set.
    pub(super) fn send_now(&mut self) {
        let Some(number) = self.one_that_waits() else { return };
        let row = &self.store.rows[number];
        let command = Command::SendNow { delivery: row.delivery, audit: audit("send_now") };
        self.ask(Wish::SendNow, row.endpoint, vec![number], command);
    }

    /// Somebody tries an endpoint out.
    pub(super) fn test_send(&mut self) {
        let endpoint = self.random.random_range(0..self.endpoints.len());
        let event = Arc::new(self.event(self.endpoints[endpoint].tenant, EventType::parse("test").expect("valid")));
        let command = Command::Test { endpoint: self.endpoints[endpoint].id, event };
        self.ask(Wish::Test, endpoint, vec![], command);
    }

    /// Half of the time one that could go any moment.
    fn one_that_waits(&mut self) -> Option<usize> {
        let mut waiting: Vec<usize> = (0..self.store.rows.len()).filter(|row| self.store.rows[*row].due().is_some()).collect();
        if self.random.random_range(0..2u32) == 0 {
            let is_near = |number: &usize| {
                let row = &self.store.rows[*number];
                let is_new = self.now < row.committed_at + Duration::from_secs(5);
                is_new && row.due() <= Some(self.now) && row.key.is_some() && self.store.is_head_of_key(*number)
            };
            let near: Vec<usize> = waiting.iter().copied().filter(is_near).collect();
            waiting = if near.is_empty() { waiting } else { near };
        }
        (!waiting.is_empty()).then(|| waiting[self.random.random_range(0..waiting.len())])
    }

    fn tenant_of(&self, row: &Row) -> TenantId {
        self.tenants[self.endpoints[row.endpoint].tenant].id.clone()
    }

    fn ask(&mut self, wish: Wish, endpoint: usize, rows: Vec<usize>, command: Command) {
        let (sender, answer) = oneshot::channel();
        let partition = self.tenants[self.endpoints[endpoint].tenant].partition;
        let question = Box::new(Question { wish, endpoint, asked_at: self.now, rows, answer });
        let delay = self.soon(5);
        let asked = Box::new(Asked { command, partition, answer: sender });
        self.later(delay, Step::Asked { question, asked });
    }

    /// The owner is asked, if there is one. What nobody takes in time is withdrawn.
    pub(super) fn asked(&mut self, question: Question, asked: Asked) -> Result<(), Violation> {
        let Some((node, _)) = self.owner_of(question.endpoint) else { return Ok(()) };
        if self.now.since(question.asked_at) > COMMAND_MAX {
            self.visit("edge", "a question that nobody took");
            return Ok(());
        }
        if let Some(thaw) = self.nodes[node].frozen_until {
            let after = thaw.since(self.now);
            self.later(after, Step::Asked { question: Box::new(question), asked: Box::new(asked) });
            return Ok(());
        }
        self.questions.push(question);
        self.deliver(node, Wake::Asked(asked))?;
        self.hear_answers()
    }

    /// What those who asked are told has to be true.
    pub(super) fn hear_answers(&mut self) -> Result<(), Violation> {
        let mut waiting = Vec::new();
        for mut question in std::mem::take(&mut self.questions) {
            match question.answer.try_recv() {
                Err(TryRecvError::Empty) => waiting.push(question),
                Err(TryRecvError::Closed) => self.visit("edge", "a question that was not answered"),
                Ok(answer) => self.judge_answer(&question, &answer)?,
            }
        }
        self.questions = waiting;
        Ok(())
    }

    fn judge_answer(&mut self, question: &Question, answer: &Commanded) -> Result<(), Violation> {
        let now = self.now;
        let fail = |what: &str| {
            let what =
                format!("rows {:?} at {}: {:?} was answered {answer:?}: {what}", question.rows, now.to_rfc3339(), question.wish);
            Err(Violation { promise: "I14", what })
        };
        let still_wait = question.rows.iter().any(|row| self.store.rows[*row].due().is_some());
        match (question.wish, answer) {
            (Wish::Cancel, Commanded::Done) => {
                if still_wait {
                    return fail("it still waits");
                }
                for row in &question.rows {
                    if matches!(self.store.rows[*row].state, State::Cancelled { reason: CancelReason::Requested, .. }) {
                        self.checker.called_off(*row);
                    }
                }
                let name = if question.rows.len() == 1 { "cancelled by request" } else { "event cancelled by request" };
                self.visit("edge", name);
            }
            (Wish::SendNow, Commanded::Done) => self.visit("edge", "made due by request"),
            (Wish::Cancel | Wish::SendNow, Commanded::HasEnded) => {
                if still_wait {
                    return fail("it still waits");
                }
                self.visit("edge", "cancel refused because it has ended");
            }
            (Wish::Cancel | Wish::SendNow, Commanded::InFlight) => self.visit("edge", "cancel refused in flight"),
            (Wish::Test, Commanded::NotBefore(_)) => self.visit("edge", "test-send refused"),
            (Wish::Test, Commanded::Tested(_)) => self.visit("edge", "test-send answered"),
            (Wish::Test, Commanded::NotFound) if self.endpoints[question.endpoint].deleted_at.is_some() => {}
            (Wish::Cancel | Wish::SendNow, Commanded::NotFound | Commanded::NotBefore(_) | Commanded::Tested(_))
            | (Wish::Test, Commanded::Done | Commanded::NotFound | Commanded::InFlight | Commanded::HasEnded) => {
                return fail("that is no answer to it");
            }
        }
        Ok(())
    }

    /// Somebody wants a payload forgotten. Its history stays.
    pub(super) fn erase(&mut self) {
        let Some(number) = self.one_that_waits() else { return };
        self.visit("edge", "payload erased");
        for row in self.store.rows_of(&self.store.rows[number].event.id.clone()) {
            self.store.rows[row].is_erased = true;
        }
    }

    /// Somebody asks for what has ended at an endpoint to be sent again.
    pub(super) fn replay(&mut self) {
        let endpoint = self.random.random_range(0..self.endpoints.len());
        let rows: VecDeque<usize> = (0..self.store.rows.len())
            .filter(|row| self.store.rows[*row].endpoint == endpoint && self.store.rows[*row].due().is_none())
            .take(40)
            .collect();
        if !rows.is_empty() {
            self.visit("edge", "replay");
            self.later(Duration::ZERO, Step::ReplayGoesOn { replay: Replay { endpoint, asked_at: self.now, rows } });
        }
    }

    /// One step of it: only so many of an endpoint may be unfinished at once.
    pub(super) fn go_on_with(&mut self, mut replay: Replay) {
        let endpoint = replay.endpoint;
        let is_unfinished = |row: &&Row| row.endpoint == endpoint && row.replayed_at.is_some() && row.due().is_some();
        let unfinished = self.store.rows.iter().filter(is_unfinished).count();
        for _ in unfinished..REPLAYS_AT_ONCE {
            let Some(original) = replay.rows.pop_front() else { break };
            let original = self.store.rows[original].clone();
            let number = self.store.rows.len();
            let timestamp = if plant::is(Plant::ReplayOvertakes) { original.timestamp } else { replay.asked_at };
            let config = &self.endpoints[endpoint].config;
            if !config.status.takes_events() || !config.subscription.covers(&original.event_type) || original.is_erased {
                continue;
            }
            self.commit(Row {
                delivery: DeliveryId::from_bytes((number as u128 + 1).to_be_bytes()),
                seq: number as u64 + 1,
                timestamp,
                deliver_at: None,
                expires_at: None,
                state: State::Waiting { due: self.now },
                attempts: 0,
                is_later: false,
                class: Class::of(&original.event_type, original.is_priority, config.schedule.as_ref()),
                committed_at: self.now,
                replayed_at: Some(replay.asked_at),
                is_hurried: false,
                ..original
            });
        }
        if !replay.rows.is_empty() && !self.is_healed {
            self.later(Duration::from_secs(5), Step::ReplayGoesOn { replay });
        }
    }

    /// Housekeeping: what has expired while it was held ends, and what waits at a deleted endpoint.
    pub(super) fn expire(&mut self) -> Result<(), Violation> {
        let overdue = self.store.overdue(self.now, &self.endpoints);
        if !overdue.is_empty() {
            for node in (0..self.nodes.len()).filter(|node| self.is_well(*node)).collect::<Vec<_>>() {
                self.deliver(node, Wake::Overdue(overdue.clone()))?;
            }
        }
        // What waits at an endpoint that was given up waits for ever.
        let has_time = self.now < self.publishing_until + Duration::from_hours(60 * 24);
        if !self.is_healed || has_time && self.store.rows.iter().any(|row| row.due().is_some()) {
            self.later(Duration::from_mins(1), Step::Expire);
        }
        Ok(())
    }

    /// Everybody is well again, and no hold is in force: from here everything has to end.
    pub(super) fn heal(&mut self) {
        self.is_healed = true;
        for endpoint in 0..self.endpoints.len() {
            self.about_to_change(endpoint);
            let present = &mut self.endpoints[endpoint];
            present.mood = draw::Mood::Healthy;
            if present.deleted_at.is_none() {
                present.config.status = Status::Active;
            }
            present.config.schedule = None;
            self.configuration_moves(endpoint);
        }
    }
}

fn audit(action: &str) -> Audit {
    Audit {
        actor: "somebody".to_owned(),
        address: None,
        action: action.to_owned(),
        subject: "it".to_owned(),
        tenant: None,
        before: None,
        after: None,
    }
}
