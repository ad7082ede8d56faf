//! What clients do: publish, change endpoints, cancel, send now, test, replay and erase. Also the housekeeping.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::{CancelReason, State};
use posthaste_core::endpoint::Status;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{DeliveryId, EventId, TenantId};
use posthaste_core::plant::{self, Plant};
use posthaste_core::replay_pace::ReplayPace;
use posthaste_core::retention::{RetentionDecision, fate};
use posthaste_core::scheduler::{Class, Entry};
use posthaste_core::text::{Labels, OrderingKey};
use posthaste_core::time::Timestamp;
use posthaste_engine::Input;
use posthaste_store::{Audit, COMMAND_MAX, Command, CommandOutcome, CommandRequest, CommittedDelivery};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::store::Kind;
use super::{Row, Step, World};
use crate::checker::Violation;
use crate::draw;

/// Of one endpoint, unfinished.
const REPLAYS_AT_ONCE: usize = 5;
const REPLAY_STEPPED_EVERY: Duration = Duration::from_secs(2);

/// What a replay has still to make, a few at a time.
#[derive(Debug)]
pub(super) struct Replay {
    endpoint: usize,
    asked_at: Timestamp,
    rate_per_minute: u32,
    rows: VecDeque<usize>,
    /// What the node that steps it knows of its pace: it dies with that node's incarnation.
    pace: Option<((usize, u64), ReplayPace)>,
}

/// A transaction that makes deliveries and is not committed yet.
#[derive(Debug)]
pub(super) struct Publishing {
    publisher: usize,
    incarnation: u64,
    tenant: usize,
    /// Of the tenant: what the event was routed by.
    version: u64,
    rows: Vec<usize>,
}

/// A command whose client waits for the outcome.
#[derive(Debug)]
pub(super) struct PendingCommand {
    wish: ClientRequest,
    endpoint: usize,
    asked_at: Timestamp,
    pub(super) rows: Vec<usize>,
    answer: oneshot::Receiver<CommandOutcome>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClientRequest {
    Cancel,
    SendNow,
    Test,
    Apply,
}

impl World {
    /// A client publishes an event. It is not accepted if no node takes it.
    pub(super) fn publish(&mut self) {
        const TYPES: [&str; 4] = ["order.paid", "order.sent", "alert.fire", "user.made"];
        let Some(publisher) = self.one_that_is_well() else { return };
        let tenant = self.random.random_range(0..self.tenants.len());
        let event_type = EventType::parse(TYPES[self.random.random_range(0..TYPES.len())]).expect("valid");
        let key = (self.random.random_range(0..100u32) < self.traffic.keyed_percent).then(|| {
            let number = self.random.random_range(1..=self.traffic.keys);
            OrderingKey::parse(&format!("k{number}")).expect("valid")
        });
        let ahead_percent = if key.is_some() { self.traffic.keyed_ahead_percent } else { 10 };
        let ahead = |random: &mut ChaCha8Rng| Duration::from_secs(random.random_range(1..20_000u64));
        let deliver_at = (self.random.random_range(0..100u32) < ahead_percent).then(|| self.now + ahead(&mut self.random));
        let expires_at =
            (self.random.random_range(0..10u32) == 0).then(|| deliver_at.unwrap_or(self.now) + ahead(&mut self.random));
        let mut event = self.event(tenant, event_type);
        // The publisher's clock is its own.
        event.timestamp = self.now - self.soon(2000);
        event.ordering_key = key;
        event.timing = Timing::stored(deliver_at, expires_at);
        self.by_clock_of(publisher, |world| world.begin_publishing(publisher, tenant, &Arc::new(event)));
    }

    fn one_that_is_well(&mut self) -> Option<usize> {
        let well: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_well(*node)).collect();
        (!well.is_empty()).then(|| well[self.random.random_range(0..well.len())])
    }

    /// One transaction: every delivery gets its number, and some time later all of them are committed.
    fn begin_publishing(&mut self, publisher: usize, tenant: usize, event: &Arc<Event>) {
        let (now, database_now) = (self.now, self.database_now);
        let (partition, version) = (self.tenants[tenant].partition, self.tenants[tenant].version);
        let is_priority = event.event_type.as_str().starts_with("alert");
        let (deliver_at, expires_at) = (event.timing.deliver_at(), event.timing.expires_at());
        let mut rows = Vec::new();
        for endpoint in 0..self.endpoints.len() {
            let config = &self.endpoints[endpoint].config;
            let takes = config.status.takes_events() && config.subscription.covers(&event.event_type);
            if self.endpoints[endpoint].tenant != tenant || !takes {
                continue;
            }
            let class = Class::of(&event.event_type, is_priority, config.schedule.as_ref());
            let is_damaged = self.random.random_range(0..200u32) == 0;
            rows.push(self.store.number(publisher, |number| Row {
                delivery: DeliveryId::from_bytes((number as u128 + 1).to_be_bytes()),
                seq: number as u64 + 1,
                endpoint,
                partition,
                event: Arc::clone(event),
                event_type: event.event_type.clone(),
                timestamp: event.timestamp,
                is_priority,
                key: event.ordering_key.clone(),
                deliver_at,
                expires_at,
                state: State::Waiting { due: deliver_at.unwrap_or(now) },
                attempts: 0,
                is_later: deliver_at.is_some(),
                class,
                numbered_at: database_now,
                is_committed: false,
                committed_at: database_now,
                is_damaged,
                is_erased: false,
                is_hurried: false,
                is_heard_of: false,
                replayed_at: None,
            }));
        }
        if rows.is_empty() {
            return;
        }
        self.sweeps_go_on();
        let publishing = Publishing { publisher, incarnation: self.nodes[publisher].incarnation, tenant, version, rows };
        match self.store.kind {
            // Numbered and committed by the one writer.
            Kind::Sqlite => self.commit(publishing),
            Kind::Postgres => {
                // A transaction that makes deliveries takes ten seconds at most.
                let most = [5, 5, 5, 5, 5, 5, 5, 300, 2_000, 9_500][self.random.random_range(0..10usize)];
                let delay = self.soon(most);
                self.later(delay, Step::Commit { publishing });
            }
        }
    }

    /// The deliveries of one transaction become visible together, and the publisher hears of its own commit.
    pub(super) fn commit(&mut self, publishing: Publishing) {
        let Publishing { publisher, incarnation, tenant, version, rows } = publishing;
        let is_dead = self.nodes[publisher].incarnation != incarnation;
        let has_changed = self.tenants[tenant].version != version;
        if is_dead && self.random.random_range(0..2u32) == 0 || has_changed {
            // What was routed by an old configuration is routed again. What its publisher has not finished is gone.
            self.visit("fault", if has_changed { "publish rolled back" } else { "publish of a dead node rolled back" });
            for number in &rows {
                self.store.close(*number);
            }
            if !is_dead {
                let event = Arc::clone(&self.store.rows[rows[0]].event);
                self.begin_publishing(publisher, tenant, &event);
            }
            return;
        }
        if rows.iter().any(|number| self.store.rows[*number].seq < self.store.last_seq()) {
            self.visit("fault", "visible after a higher number");
        }
        for number in &rows {
            let endpoint = self.store.rows[*number].endpoint;
            if !self.store.has_work(endpoint) {
                self.checker.drained(endpoint);
            }
            self.visit("edge", "published");
            self.store.commit(self.now, *number);
        }
        self.sweeps_go_on();
        // The transaction is known to be over before the engine hears of its rows.
        for number in &rows {
            self.store.close(*number);
        }
        if is_dead {
            return;
        }
        // Some do not fit, and of those the engine hears only that there were some. What is damaged is only found out by
        // whoever has to read it.
        let is_damaged = rows.iter().any(|number| self.store.rows[*number].is_damaged);
        // A node that is behind drops what comes, and is still behind when the next comes.
        let is_behind = self.nodes[publisher].feed_until > self.real && self.random.random_range(0..3u32) == 0;
        if is_behind || self.random.random_range(0..10u32) == 0 || is_damaged {
            self.visit("fault", "news lost");
            self.nodes[publisher].feed_has_overflowed = true;
            // The loop comes round once a second.
            let delay = self.soon(1000);
            self.later(delay, Step::Turn { node: publisher });
            return;
        }
        // Mostly at once; now and then a busy node takes its time. In the order of the commits.
        let most = match self.random.random_range(0..40u32) {
            0..5 => 2_000,
            // Longer than a sweep and a change of owner take.
            5..8 if self.store.kind == Kind::Postgres => 8_000,
            _ => 3,
        };
        let at = (self.real + self.soon(most)).max(self.nodes[publisher].feed_until);
        self.nodes[publisher].feed_until = at;
        let entries = rows.into_iter().map(|number| (number, self.store.rows[number].entry())).collect();
        let delay = at.since(self.real);
        self.later(delay, Step::Feed { node: publisher, incarnation, entries });
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

    /// A node hears of its own commit.
    pub(super) fn feed(&mut self, node: usize, incarnation: u64, entries: Vec<(usize, Entry)>) -> Result<(), Violation> {
        if self.nodes[node].incarnation != incarnation {
            // It has died over it. Whoever takes over looks for itself.
            return Ok(());
        }
        for (number, _) in &entries {
            let endpoint = self.store.rows[*number].endpoint;
            self.store.rows[*number].is_heard_of = self.owner_of(endpoint) == Some((node, self.nodes[node].member));
        }
        let fed = |(number, entry): (usize, Entry)| {
            let row = &self.store.rows[number];
            let endpoint = &self.endpoints[row.endpoint];
            CommittedDelivery {
                endpoint: endpoint.id,
                tenant: self.tenants[endpoint.tenant].id.clone(),
                partition: row.partition,
                entry,
                event: Arc::clone(&row.event),
            }
        };
        let fed: Vec<CommittedDelivery> = entries.into_iter().map(fed).collect();
        self.deliver(node, Input::Committed(fed))
    }

    /// A client changes an endpoint. Its owner learns of it within a second.
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
        let tenant = self.tenants[self.endpoints[endpoint].tenant].id.clone();
        let one = Some(self.endpoints[endpoint].id).filter(|_| self.random.random_range(0..4u32) > 0);
        self.ask(ClientRequest::Apply, endpoint, vec![], Command::Apply { tenant, endpoint: one });
    }

    /// A client cancels a delivery or an event.
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
        self.ask(ClientRequest::Cancel, endpoint, rows, command);
    }

    /// A client sends a waiting delivery now.
    pub(super) fn send_now(&mut self) {
        let Some(number) = self.one_that_waits() else { return };
        let row = &self.store.rows[number];
        let command = Command::SendNow { delivery: row.delivery, audit: audit("send_now") };
        self.ask(ClientRequest::SendNow, row.endpoint, vec![number], command);
    }

    /// A client sends a test to an endpoint.
    pub(super) fn test_send(&mut self) {
        let endpoint = self.random.random_range(0..self.endpoints.len());
        let event = Arc::new(self.event(self.endpoints[endpoint].tenant, EventType::parse("test").expect("valid")));
        let command = Command::Test { endpoint: self.endpoints[endpoint].id, event };
        self.ask(ClientRequest::Test, endpoint, vec![], command);
    }

    /// Half of the time one that could go any moment.
    fn one_that_waits(&mut self) -> Option<usize> {
        let mut waiting: Vec<usize> = self.store.all_waiting().map(|(number, _)| number).collect();
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

    fn ask(&mut self, wish: ClientRequest, endpoint: usize, rows: Vec<usize>, command: Command) {
        let (sender, answer) = oneshot::channel();
        let partition = self.tenants[self.endpoints[endpoint].tenant].partition;
        let question = Box::new(PendingCommand { wish, endpoint, asked_at: self.now, rows, answer });
        let delay = self.soon(5);
        let asked = Box::new(CommandRequest { command, partition, answer: sender });
        self.later(delay, Step::CommandRequest { question, asked });
    }

    /// Sends a command to the owner, if there is one. A command that no owner takes in time is withdrawn.
    pub(super) fn asked(&mut self, question: PendingCommand, asked: CommandRequest) -> Result<(), Violation> {
        let Some((node, _)) = self.owner_of(question.endpoint) else { return Ok(()) };
        if self.now.since(question.asked_at) > COMMAND_MAX {
            self.visit("edge", "a question that nobody took");
            return Ok(());
        }
        if let Some(thaw) = self.nodes[node].frozen_until {
            let after = thaw.since(self.real);
            self.later(after, Step::CommandRequest { question: Box::new(question), asked: Box::new(asked) });
            return Ok(());
        }
        self.questions.push(question);
        self.deliver(node, Input::Command(asked))?;
        self.hear_answers()
    }

    /// Checks that the outcome of a command is true.
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

    fn judge_answer(&mut self, question: &PendingCommand, answer: &CommandOutcome) -> Result<(), Violation> {
        let now = self.now;
        let fail = |what: &str| {
            let what =
                format!("rows {:?} at {}: {:?} was answered {answer:?}: {what}", question.rows, now.to_rfc3339(), question.wish);
            Err(Violation { promise: "I14", what })
        };
        let still_wait = question.rows.iter().any(|row| self.store.rows[*row].due().is_some());
        match (question.wish, answer) {
            (ClientRequest::Cancel, CommandOutcome::Done) => {
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
            (ClientRequest::SendNow, CommandOutcome::Done) => self.visit("edge", "made due by request"),
            (ClientRequest::Cancel | ClientRequest::SendNow, CommandOutcome::HasEnded) => {
                if still_wait {
                    return fail("it still waits");
                }
                self.visit("edge", "cancel refused because it has ended");
            }
            (ClientRequest::Cancel | ClientRequest::SendNow, CommandOutcome::InFlight) => {
                self.visit("edge", "cancel refused in flight");
            }
            (ClientRequest::Test, CommandOutcome::NotBefore(_)) => self.visit("edge", "test-send refused"),
            (ClientRequest::Test, CommandOutcome::Tested(_)) => self.visit("edge", "test-send answered"),
            // From here on the change is in force, unless there was another one since.
            (ClientRequest::Apply, CommandOutcome::Done) => {
                if self.endpoints[question.endpoint].changed_at <= question.asked_at {
                    self.endpoints[question.endpoint].is_applied = true;
                }
                self.visit("edge", "change applied");
            }
            (ClientRequest::Test, CommandOutcome::NotFound) if self.endpoints[question.endpoint].deleted_at.is_some() => {}
            (
                ClientRequest::Cancel | ClientRequest::SendNow,
                CommandOutcome::NotFound | CommandOutcome::NotBefore(_) | CommandOutcome::Tested(_),
            )
            | (
                ClientRequest::Test,
                CommandOutcome::Done | CommandOutcome::NotFound | CommandOutcome::InFlight | CommandOutcome::HasEnded,
            )
            | (
                ClientRequest::Apply,
                CommandOutcome::NotFound
                | CommandOutcome::InFlight
                | CommandOutcome::HasEnded
                | CommandOutcome::NotBefore(_)
                | CommandOutcome::Tested(_),
            ) => {
                return fail("that is no answer to it");
            }
        }
        Ok(())
    }

    /// A client erases a payload. The history stays.
    pub(super) fn erase(&mut self) {
        let Some(number) = self.one_that_waits() else { return };
        self.visit("edge", "payload erased");
        for row in self.store.rows_of(&self.store.rows[number].event.id.clone()) {
            self.store.rows[row].is_erased = true;
        }
    }

    /// A client replays the deliveries of an endpoint that have ended.
    pub(super) fn replay(&mut self) {
        let endpoint = self.random.random_range(0..self.endpoints.len());
        let rows: VecDeque<usize> = (0..self.store.rows.len())
            .filter(|row| self.store.rows[*row].endpoint == endpoint && self.store.rows[*row].is_committed)
            .filter(|row| self.store.rows[*row].due().is_none())
            .take(40)
            .collect();
        if !rows.is_empty() {
            self.visit("edge", "replay");
            let rate_per_minute = [6, 60, 600][self.random.random_range(0..3usize)];
            let replay = Replay { endpoint, asked_at: self.now, rate_per_minute, rows, pace: None };
            self.later(Duration::ZERO, Step::ReplayGoesOn { replay });
        }
    }

    /// One step of it: at its rate, and only so many of an endpoint may be unfinished at once.
    pub(super) fn go_on_with(&mut self, mut replay: Replay) -> Result<(), Violation> {
        let endpoint = replay.endpoint;
        let Some((node, _)) = self.owner_of(endpoint).filter(|(node, _)| self.is_well(*node)) else {
            self.later(REPLAY_STEPPED_EVERY, Step::ReplayGoesOn { replay });
            return Ok(());
        };
        let stepper = (node, self.nodes[node].incarnation);
        let uptime = self.real.since(self.nodes[node].started_at);
        let mut pace = match replay.pace.take() {
            Some((by, pace)) if by == stepper => pace,
            Some(_) | None => ReplayPace::starting_at(uptime),
        };
        let due = pace.rows_due(uptime, replay.rate_per_minute);
        let unfinished = self.store.waiting(endpoint).filter(|(_, row)| row.replayed_at.is_some()).count();
        let (now, tenant) = (self.now, self.endpoints[endpoint].tenant);
        let mut rows = Vec::new();
        for _ in (unfinished..REPLAYS_AT_ONCE).take(due) {
            let Some(original) = replay.rows.pop_front() else { break };
            let original = self.store.rows[original].clone();
            if !original.is_committed {
                // It was deleted since the replay was asked for.
                continue;
            }
            let timestamp = if plant::is(Plant::ReplayOvertakes) { original.timestamp } else { replay.asked_at };
            let config = &self.endpoints[endpoint].config;
            if !config.status.takes_events() || !config.subscription.covers(&original.event_type) || original.is_erased {
                continue;
            }
            let class = Class::of(&original.event_type, original.is_priority, config.schedule.as_ref());
            rows.push(self.store.number(node, |number| Row {
                delivery: DeliveryId::from_bytes((number as u128 + 1).to_be_bytes()),
                seq: number as u64 + 1,
                timestamp,
                deliver_at: None,
                expires_at: None,
                state: State::Waiting { due: now },
                attempts: 0,
                is_later: false,
                class,
                numbered_at: now,
                is_committed: false,
                committed_at: now,
                replayed_at: Some(replay.asked_at),
                is_hurried: false,
                is_heard_of: false,
                ..original
            }));
        }
        pace.made(rows.len() as u64);
        replay.pace = Some((stepper, pace));
        for _ in &rows {
            self.checker.replay_made(self.real, (endpoint, replay.asked_at, stepper), replay.rate_per_minute)?;
        }
        if !rows.is_empty() {
            let (incarnation, version) = (self.nodes[node].incarnation, self.tenants[tenant].version);
            self.sweeps_go_on();
            self.commit(Publishing { publisher: node, incarnation, tenant, version, rows });
        }
        if !replay.rows.is_empty() && !self.is_healed {
            self.later(REPLAY_STEPPED_EVERY, Step::ReplayGoesOn { replay });
        }
        Ok(())
    }

    /// Housekeeping: what has expired while it was held ends, and what waits at a deleted endpoint.
    pub(super) fn expire(&mut self) -> Result<(), Violation> {
        let overdue = self.store.overdue(self.now, &self.endpoints);
        if !overdue.is_empty() {
            for node in (0..self.nodes.len()).filter(|node| self.is_well(*node)).collect::<Vec<_>>() {
                self.deliver(node, Input::Overdue(overdue.clone()))?;
            }
        }
        // What waits at an endpoint that was given up waits for ever.
        let has_time = self.real < self.publishing_until + Duration::from_hours(60 * 24);
        if !self.is_healed || has_time && self.store.all_waiting().next().is_some() {
            self.later(Duration::from_mins(1), Step::Expire);
        }
        Ok(())
    }

    /// Cleanup: what has ended and is older than its retention is deleted.
    pub(super) fn clean_up(&mut self) -> Result<(), Violation> {
        let keeping = self.store.keeping;
        for number in 0..self.store.rows.len() {
            let row = &self.store.rows[number];
            let is_old = row.event.accepted_at + keeping.retention <= self.now;
            if !row.is_committed || !is_old || fate(row.kept_as(), keeping, self.now) != RetentionDecision::Delete {
                continue;
            }
            let kept = if matches!(row.state, State::Dead { .. }) { keeping.dead_letters } else { Duration::ZERO };
            let must_stay = match row.state {
                State::Waiting { .. } => true,
                State::Delivered { at } | State::Dead { at, .. } | State::Cancelled { at, .. } => {
                    self.now < at + keeping.retention.max(kept)
                }
            };
            if must_stay {
                let what = format!("row {number} at {}: deleted although it is {:?}", self.now.to_rfc3339(), row.state);
                return Err(Violation { promise: "I8", what });
            }
            self.visit("edge", "deleted after its retention");
            self.store.delete(number);
        }
        let is_over = self.is_healed && self.store.all_waiting().next().is_none();
        if !is_over && self.real < self.publishing_until + Duration::from_hours(60 * 24) {
            self.later(Duration::from_hours(1), Step::Retention);
        }
        Ok(())
    }

    /// Everybody is well again, and no hold is in force: from here everything has to end.
    pub(super) fn heal(&mut self) {
        self.is_healed = true;
        self.store_fails_until = self.real;
        for endpoint in 0..self.endpoints.len() {
            self.endpoints[endpoint].is_unreadable = false;
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
