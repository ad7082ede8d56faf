//! The model of the store: what is kept, what is seen of it at one moment, and what may be written.
//!
//! It stands for the store's verbs as the engine uses them. Rows become visible when they are committed; records are fenced
//! by the epoch of their partition, by what a leaver has named, and by the number of the attempt; lane states, statistics
//! and versions are what owners and people have written. The conformance suite of the store keeps it honest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::State;
use posthaste_core::endpoint::{Endpoint as Said, MaxInFlight, Override, PolicyOverrides};
use posthaste_core::event::{Event, EventType};
use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::latency::LatencySketch;
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::{Class, Entry, LaneConfig, LaneMemory, Seq, Want};
use posthaste_core::tenant::Tenant as SaidOfTenant;
use posthaste_core::text::OrderingKey;
use posthaste_core::time::Timestamp;
use posthaste_engine::Seen;
use posthaste_store::{
    Body, BodyError, Claimed, Command, Counts, DeliveryRow, Epoch, Error, HandedOver, LaneState, LeaveAlone, Minute, Overdue,
    OverdueReason, Partition, Record, Recorded, RecordedAs, StatisticsStep, StoredEndpoint, StoredTenant, TakenUp, WindowRows,
};

use super::{Endpoint, Tenant};

/// A process that takes part, under the name that it joined with.
pub(crate) type Member = (usize, u64);

/// A delivery as the database has it.
#[expect(clippy::struct_excessive_bools, reason = "columns of a row, each of its own")]
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) delivery: DeliveryId,
    pub(crate) seq: Seq,
    pub(crate) endpoint: usize,
    pub(crate) partition: Partition,
    pub(crate) event: Arc<Event>,
    pub(crate) event_type: EventType,
    pub(crate) timestamp: Timestamp,
    pub(crate) is_priority: bool,
    pub(crate) key: Option<OrderingKey>,
    pub(crate) deliver_at: Option<Timestamp>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) state: State,
    pub(crate) attempts: u32,
    pub(crate) is_later: bool,
    pub(crate) class: Class,
    pub(crate) committed_at: Timestamp,
    /// What is stored of it is not what was published.
    pub(crate) is_damaged: bool,
    /// Somebody has asked for its payload to be forgotten.
    pub(crate) is_erased: bool,
    /// Somebody wanted it to be sent at once.
    pub(crate) is_hurried: bool,
    /// When it was asked for, if it is a replay.
    pub(crate) replayed_at: Option<Timestamp>,
}

impl Row {
    pub(crate) fn due(&self) -> Option<Timestamp> {
        match self.state {
            State::Waiting { due } => Some(due),
            State::Delivered { .. } | State::Dead { .. } | State::Cancelled { .. } => None,
        }
    }

    pub(crate) fn entry(&self) -> Entry {
        Entry {
            delivery: self.delivery,
            seq: self.seq,
            timestamp: self.timestamp,
            due: self.due().expect("only what waits is given out"),
            attempts: self.attempts,
            is_later: self.is_later,
            event_type: self.event_type.clone(),
            is_priority: self.is_priority,
            class: self.class,
            ordering_key: self.key.clone(),
            expires_at: self.expires_at,
        }
    }
}

/// Who has a partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) owner: Option<Member>,
    pub(crate) epoch: Epoch,
    /// Given up by an owner that has written down all that it knew.
    pub(crate) is_handed_over: bool,
    /// Every owner since the last crash has done so. Otherwise something may have been spent that nobody wrote down.
    pub(crate) is_trusted: bool,
}

/// What a leaver may still record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promised {
    pub(crate) by: Member,
    epoch: Epoch,
    pub(crate) until: Timestamp,
}

/// What came of a record.
pub(crate) struct Committed {
    pub(crate) result: RecordedAs,
    /// It was written by whoever had promised to, after another owner had taken over.
    pub(crate) is_late: bool,
    /// What is written was not this writer's to write.
    pub(crate) is_forbidden: bool,
    pub(crate) disables: bool,
}

#[derive(Default)]
pub(crate) struct Store {
    pub(crate) rows: Vec<Row>,
    pub(crate) partitions: BTreeMap<Partition, Holding>,
    pub(crate) promised: BTreeMap<Seq, Promised>,
    /// By endpoint: what owners have written.
    pub(crate) lanes: BTreeMap<usize, LaneState>,
    minutes: BTreeMap<(usize, Timestamp), Minute>,
    /// As PostgreSQL's: a read says that it has seen only what everybody has been told of, and may bring more than that.
    is_cautious: bool,
    /// Committed, and whoever has published them has not been told yet.
    pub(crate) untold: BTreeSet<Seq>,
}

pub(crate) fn row_number(seq: Seq) -> usize {
    usize::try_from(seq - 1).expect("a small number")
}

pub(crate) fn number_of_delivery(delivery: DeliveryId) -> usize {
    usize::try_from(delivery.as_u128() - 1).expect("a small number")
}

impl Store {
    /// The last row that is committed.
    pub(crate) fn last_seq(&self) -> Seq {
        self.rows.last().map_or(0, |row| row.seq)
    }

    pub(crate) fn cautious() -> Self {
        Self { is_cautious: true, ..Self::default() }
    }

    /// Up to which row a read says that it has seen everything.
    fn seen(&self) -> Seq {
        self.untold.first().filter(|_| self.is_cautious).map_or(self.last_seq(), |first| first - 1)
    }

    /// The first rows of a queue at this moment, in its order.
    pub(crate) fn window(&self, endpoint: usize, want: &Want, limit: usize) -> WindowRows {
        let waiting = self.rows.iter().filter(|row| row.endpoint == endpoint && row.due().is_some());
        let mut rows: Vec<&Row> = match want {
            Want::Fresh(class) => waiting.filter(|row| row.key.is_none() && !row.is_later && row.class == *class).collect(),
            Want::Later(class) => waiting.filter(|row| row.key.is_none() && row.is_later && row.class == *class).collect(),
            Want::Heads { .. } | Want::Head(_) => {
                let mut heads: BTreeMap<&OrderingKey, &Row> = BTreeMap::new();
                for row in waiting.filter(|row| row.key.is_some()) {
                    heads.entry(row.key.as_ref().expect("filtered")).or_insert(row);
                }
                let wanted = heads.into_iter().filter(|(key, _)| match want {
                    Want::Heads { after } => after.as_ref().is_none_or(|after| *key > after),
                    Want::Head(head) => *key == head,
                    Want::Fresh(_) | Want::Later(_) => unreachable!("not keyed"),
                });
                wanted.map(|(_, row)| row).collect()
            }
        };
        match want {
            Want::Fresh(_) => rows.sort_by_key(|row| (row.timestamp, row.seq)),
            Want::Later(_) => rows.sort_by_key(|row| (row.due(), row.seq)),
            Want::Heads { .. } | Want::Head(_) => {}
        }
        let more = rows.len() > limit;
        rows.truncate(limit);
        WindowRows { rows: rows.into_iter().map(Row::entry).collect(), more, seen: self.seen() }
    }

    pub(crate) fn bodies(&self, seqs: impl Iterator<Item = Seq>) -> Vec<Body> {
        let body = |seq| {
            let row = &self.rows[row_number(seq)];
            let event = if row.is_erased {
                Err(BodyError::Erased)
            } else if row.is_damaged {
                Err(BodyError::Corrupt(Error::Corrupt { what: "payload" }))
            } else {
                Ok(Event::clone(&row.event))
            };
            Body { seq, delivery: row.delivery, event }
        };
        seqs.map(body).collect()
    }

    /// Endpoints that have something unfinished, a page at a time.
    pub(crate) fn work(&self, endpoints: &[Endpoint], after: Option<EndpointId>, limit: usize) -> Vec<EndpointId> {
        let has_work = |number: usize| self.rows.iter().any(|row| row.endpoint == number && row.due().is_some());
        let behind = endpoints.iter().enumerate().filter(|(_, endpoint)| after.is_none_or(|after| endpoint.id > after));
        behind.filter(|(number, _)| has_work(*number)).map(|(_, endpoint)| endpoint.id).take(limit).collect()
    }

    pub(crate) fn take_up(&self, endpoint: usize, endpoints: &[Endpoint], tenants: &[Tenant]) -> TakenUp {
        let tenant = &tenants[endpoints[endpoint].tenant];
        TakenUp {
            endpoint: stored_endpoint(&endpoints[endpoint], tenant),
            tenant: Some(stored_tenant(tenant)),
            lane: self.lanes.get(&endpoint).cloned(),
        }
    }

    /// Stamps some waiting rows with the class that the present configuration gives them. Answers where to go on.
    pub(crate) fn restamp(&mut self, endpoint: usize, config: &LaneConfig, after: usize, limit: usize) -> Option<usize> {
        let numbers: Vec<usize> =
            (after..self.rows.len()).filter(|number| self.rows[*number].endpoint == endpoint).take(limit).collect();
        for number in &numbers {
            let row = &mut self.rows[*number];
            if row.due().is_some() {
                row.class = Class::of(&row.event_type, row.is_priority, config.schedule.as_ref());
            }
        }
        numbers.last().filter(|_| numbers.len() >= limit).map(|last| last + 1)
    }

    /// What the database says of what somebody wants.
    pub(crate) fn look_up(&self, command: &Command, endpoints: &[Endpoint], tenants: &[Tenant]) -> Vec<DeliveryRow> {
        let number = |delivery: &DeliveryId| vec![number_of_delivery(*delivery)];
        let numbers = match command {
            Command::CancelDelivery { delivery, .. } | Command::SendNow { delivery, .. } => number(delivery),
            Command::CancelEvent { event, .. } => self.rows_of(event),
            Command::Test { .. } => vec![],
        };
        let row = |number: usize| {
            let row = &self.rows[number];
            let endpoint = &endpoints[row.endpoint];
            let tenant = &tenants[endpoint.tenant];
            DeliveryRow {
                id: row.delivery,
                seq: row.seq,
                event: row.event.id.clone(),
                endpoint: endpoint.id,
                endpoint_url: endpoint.url.clone(),
                tenant: tenant.id.clone(),
                partition: row.partition,
                event_type: row.event_type.clone(),
                is_priority: row.is_priority,
                state: row.state,
                attempts: row.attempts,
                ordering_key: row.key.clone(),
                is_head_of_key: self.is_head_of_key(number),
                timestamp: row.timestamp,
                is_later: row.is_later,
                expires_at: row.expires_at,
                last_attempt_at: None,
                last_status_code: None,
                last_error: None,
                replay_of: None,
                replay: None,
                replayed_as: None,
                created_at: row.committed_at,
            }
        };
        numbers.into_iter().map(row).collect()
    }

    /// All deliveries of an event, replays too.
    pub(crate) fn rows_of(&self, event: &posthaste_core::id::EventId) -> Vec<usize> {
        (0..self.rows.len()).filter(|number| self.rows[*number].event.id == *event).collect()
    }

    /// Nothing older with its key is unfinished.
    pub(crate) fn is_head_of_key(&self, number: usize) -> bool {
        let row = &self.rows[number];
        let is_before = |other: &Row| other.endpoint == row.endpoint && other.key == row.key && other.due().is_some();
        row.key.is_none() || !self.rows[..number].iter().any(is_before)
    }

    /// Writes one record, if whoever writes it may.
    pub(crate) fn record(&mut self, now: Timestamp, writer: Member, record: &Record) -> Committed {
        let holding = self.partitions[&record.partition];
        let refused = |result| Committed { result, is_late: false, is_forbidden: false, disables: false };
        let seq = match &record.recorded {
            Recorded::Attempt { seq, .. } | Recorded::Moved { seq, .. } => Some(*seq),
            Recorded::Nothing => None,
        };
        let is_owner = holding.epoch == record.epoch && holding.owner.is_some();
        let promised = seq.and_then(|seq| self.promised.get(&seq).copied());
        let is_promised = promised.is_some_and(|promised| promised.epoch == record.epoch && now < promised.until);
        if !is_owner && !is_promised && !plant::is(Plant::OldEpochIsRecorded) {
            return refused(RecordedAs::NotOwner);
        }
        match &record.recorded {
            Recorded::Attempt { seq, attempt, state } => {
                let row = &mut self.rows[row_number(*seq)];
                if row.due().is_none() || row.attempts + 1 != attempt.number {
                    return refused(RecordedAs::MovedOn);
                }
                row.state = *state;
                row.attempts = attempt.number;
                row.is_later |= matches!(state, State::Waiting { .. });
            }
            Recorded::Moved { seq, state, .. } => {
                let row = &mut self.rows[row_number(*seq)];
                if row.due().is_none() {
                    return refused(RecordedAs::MovedOn);
                }
                row.state = *state;
                row.is_hurried |= matches!(state, State::Waiting { .. });
            }
            Recorded::Nothing => {}
        }
        // A leaver has no say in the lane any more.
        let is_late = !is_owner;
        if is_late && let Some(seq) = seq {
            self.promised.remove(&seq);
        }
        if let Some(lane) = record.lane.as_ref().filter(|_| !is_late) {
            self.lanes.insert(super::endpoint_number(record.endpoint), lane.clone());
        }
        let may_write = is_owner && holding.owner == Some(writer) || promised.is_some_and(|promised| promised.by == writer);
        let disables = record.disables_endpoint && !is_late;
        Committed { result: RecordedAs::Done, is_late, is_forbidden: !may_write, disables }
    }

    /// Gives partitions up, as far as they are still this member's.
    pub(crate) fn hand_over(&mut self, leaver: Member, partitions: &[Partition], in_flight: &[HandedOver]) {
        for handed_over in in_flight {
            let partition = self.rows[row_number(handed_over.seq)].partition;
            let holding = &self.partitions[&partition];
            if holding.owner == Some(leaver) && partitions.contains(&partition) {
                let promised = Promised { by: leaver, epoch: holding.epoch, until: handed_over.until };
                self.promised.insert(handed_over.seq, promised);
            }
        }
        for partition in partitions {
            let holding = self.partitions.get_mut(partition).expect("all are here");
            if holding.owner == Some(leaver) {
                *holding = Holding { owner: None, is_handed_over: holding.is_trusted, ..*holding };
            }
        }
    }

    pub(crate) fn owned_by(&self, member: Member) -> Vec<Partition> {
        let own = self.partitions.iter().filter(|(_, holding)| holding.owner == Some(member));
        own.map(|(partition, _)| *partition).collect()
    }

    /// Nobody has what this member had.
    pub(crate) fn abandon(&mut self, member: Member) {
        for holding in self.partitions.values_mut().filter(|holding| holding.owner == Some(member)) {
            *holding = Holding { owner: None, is_handed_over: false, is_trusted: false, ..*holding };
        }
    }

    /// Takes what nobody has. Answers all that the member has then, and which of it is new.
    pub(crate) fn claim(&mut self, now: Timestamp, member: Member, endpoints: &[Endpoint]) -> (Claimed, Vec<Partition>) {
        let (mut taken, mut handed_over) = (Vec::new(), Vec::new());
        for (partition, holding) in self.partitions.iter_mut().filter(|(_, holding)| holding.owner.is_none()) {
            taken.push(*partition);
            handed_over.extend(Some(*partition).filter(|_| holding.is_handed_over));
            *holding = Holding { owner: Some(member), epoch: holding.epoch + 1, is_handed_over: false, ..*holding };
        }
        let own = self.partitions.iter().filter(|(_, holding)| holding.owner == Some(member));
        let partitions: Vec<(Partition, Epoch)> = own.map(|(partition, holding)| (*partition, holding.epoch)).collect();
        let is_own = |row: &Row| partitions.iter().any(|(own, _)| *own == row.partition);
        let left_alone = self.promised.iter().filter(|(_, promised)| now < promised.until).filter_map(|(seq, promised)| {
            let row = &self.rows[row_number(*seq)];
            (row.due().is_some() && is_own(row)).then(|| LeaveAlone {
                endpoint: endpoints[row.endpoint].id,
                delivery: row.delivery,
                seq: *seq,
                ordering_key: row.key.clone(),
                until: promised.until,
            })
        });
        (Claimed { leave_alone: left_alone.collect(), partitions, handed_over, numbered: self.last_seq() }, taken)
    }

    pub(crate) fn count(&mut self, minutes: Vec<Minute>) {
        for minute in minutes {
            let key = (super::endpoint_number(minute.endpoint), minute.minute);
            match self.minutes.get_mut(&key) {
                None => _ = self.minutes.insert(key, minute),
                Some(present) => {
                    present.counts.add(minute.counts);
                    present.successes.merge(&minute.successes);
                    present.timeouts.merge(&minute.timeouts);
                }
            }
        }
    }

    /// What an endpoint's attempts were like.
    pub(crate) fn see(&self, now: Timestamp, endpoint: usize, shortened_at: Option<Timestamp>) -> Seen {
        let step = |from: Timestamp| {
            let mut found: Option<StatisticsStep> = None;
            for (_, minute) in self.minutes.range((endpoint, from)..(endpoint, now)) {
                let step = found.get_or_insert_with(|| StatisticsStep {
                    from,
                    counts: Counts::default(),
                    successes: LatencySketch::default(),
                    timeouts: LatencySketch::default(),
                });
                step.counts.add(minute.counts);
                step.successes.merge(&minute.successes);
                step.timeouts.merge(&minute.timeouts);
            }
            found
        };
        let counts = |step: Option<StatisticsStep>| step.map_or_else(Counts::default, |step| step.counts);
        Seen {
            week: step(now - Duration::from_hours(7 * 24)),
            day: counts(step(now - Duration::from_hours(24))),
            since_shortened: shortened_at.map(|since| counts(step(since))),
        }
    }

    /// What waits and should not any more.
    pub(crate) fn overdue(&self, now: Timestamp, endpoints: &[Endpoint]) -> Vec<Overdue> {
        let overdue = |row: &Row| {
            let why = if endpoints[row.endpoint].deleted_at.is_some() {
                OverdueReason::EndpointDeleted
            } else if row.expires_at.is_some_and(|at| at <= now) {
                OverdueReason::Expired
            } else {
                return None;
            };
            row.due().map(|_| Overdue { endpoint: endpoints[row.endpoint].id, delivery: row.delivery, seq: row.seq, why })
        };
        self.rows.iter().filter_map(overdue).collect()
    }

    pub(crate) fn memory(&self, endpoint: usize) -> LaneMemory {
        self.lanes.get(&endpoint).map_or_else(LaneMemory::new, |lane| lane.memory)
    }
}

fn stored_endpoint(endpoint: &Endpoint, tenant: &Tenant) -> StoredEndpoint {
    let LaneConfig { status, subscription, max_in_flight, rate_limit, schedule, circuit, retry, health: _ } =
        endpoint.config.clone();
    let mut said = Said::new(endpoint.id, tenant.id.clone(), endpoint.url.clone(), endpoint.created_at);
    said.status = status;
    said.subscription = subscription;
    said.max_in_flight = MaxInFlight::new(max_in_flight).expect("drawn within its bounds");
    said.policies = PolicyOverrides {
        retry: Some(retry),
        timeout: Some(endpoint.mode),
        circuit: Some(circuit),
        delivery_schedule: schedule.map_or(Override::Lift, Override::Set),
        rate_limit: rate_limit.map_or(Override::Lift, Override::Set),
    };
    said.updated_at = endpoint.changed_at;
    StoredEndpoint { endpoint: said, secrets: vec![], partition: tenant.partition, version: 1, deleted_at: endpoint.deleted_at }
}

fn stored_tenant(tenant: &Tenant) -> StoredTenant {
    let said =
        SaidOfTenant { share: tenant.config.share, rate_limit: tenant.config.rate_limit, ..SaidOfTenant::new(tenant.id.clone()) };
    StoredTenant { tenant: said, version: tenant.version, created_at: tenant.created_at, extra: String::new() }
}
