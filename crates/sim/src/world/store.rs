//! The model of the store: what is kept, what is seen of it at one moment, and what may be written.
//!
//! It stands for the store's verbs as the engine uses them. A row's number is taken before it is committed, and it becomes
//! visible when it is, so that a lower number can appear after a higher one, or never. Records are fenced
//! by the epoch of their partition, by what a leaver has named, and by the number of the attempt; lane states, statistics
//! and versions are what owners and people have written. The conformance suite of the store keeps it honest.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use posthaste_core::delivery::State;
use posthaste_core::endpoint::{Endpoint as Said, MaxInFlight, Override, PolicyOverrides};
use posthaste_core::event::{Event, EventType};
use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::plant::{self, Plant};
use posthaste_core::retention::{Keeping, RetentionStatus};
use posthaste_core::scheduler::{Class, Entry, LaneConfig, LaneMemory, Seq, WindowQuery};
use posthaste_core::tenant::Tenant as SaidOfTenant;
use posthaste_core::text::OrderingKey;
use posthaste_core::time::Timestamp;
use posthaste_store::{
    AttemptRecord, Body, BodyError, Claimed, DeliveryChange, DeliveryRow, EndpointBundle, Epoch, Error, HandedOver,
    InFlightElsewhere, LaneState, Overdue, OverdueReason, Partition, Record, RecordResult, StatisticsStep, StoredEndpoint,
    StoredTenant, SweepPage, WindowRows,
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
    /// When its number was taken.
    pub(crate) numbered_at: Timestamp,
    /// Others can see it, until it is deleted. A row whose transaction was rolled back never is.
    pub(crate) is_committed: bool,
    pub(crate) committed_at: Timestamp,
    /// What is stored of it is not what was published.
    pub(crate) is_damaged: bool,
    /// Somebody has asked for its payload to be forgotten.
    pub(crate) is_erased: bool,
    /// Somebody wanted it to be sent at once.
    pub(crate) is_hurried: bool,
    /// Its owner has heard of its commit.
    pub(crate) is_heard_of: bool,
    /// When it was asked for, if it is a replay.
    pub(crate) replayed_at: Option<Timestamp>,
}

impl Row {
    /// When it may be tried next, if it is committed and has not ended.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        match self.state {
            State::Waiting { due } if self.is_committed => Some(due),
            State::Waiting { .. } | State::Delivered { .. } | State::Dead { .. } | State::Cancelled { .. } => None,
        }
    }

    /// What retention goes by.
    pub(crate) fn kept_as(&self) -> RetentionStatus {
        match self.state {
            State::Waiting { due } => RetentionStatus::Waiting { due },
            State::Dead { at, .. } => RetentionStatus::Dead { at },
            State::Delivered { at } | State::Cancelled { at, .. } => RetentionStatus::Ended { at },
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
    /// Which node gave it up last, and until when it does not take it again: what it had in flight has ended by then. Production gives up
    /// partitions only when it leaves.
    pub(crate) left_by: Option<(usize, Timestamp)>,
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
    pub(crate) result: RecordResult,
    /// It was written by whoever had promised to, after another owner had taken over.
    pub(crate) is_late: bool,
    /// What is written was not this writer's to write.
    pub(crate) is_forbidden: bool,
    pub(crate) disables: bool,
}

/// The committed rows of one endpoint that have not ended, by their numbers.
#[derive(Default)]
struct Backlog {
    rows: BTreeSet<usize>,
    keys: BTreeMap<OrderingKey, BTreeSet<usize>>,
}

/// Which database this stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One process, which numbers and commits in one step.
    Sqlite,
    /// Any number of processes. Numbers are taken before the commit.
    Postgres,
}

pub(crate) struct Store {
    pub(crate) kind: Kind,
    /// How long rows are kept.
    pub(crate) keeping: Keeping,
    /// By number, one less than `seq`. Those that are not committed yet, or never will be, are here too.
    pub(crate) rows: Vec<Row>,
    /// By endpoint.
    backlogs: Vec<Backlog>,
    highest_committed: Seq,
    pub(crate) partitions: BTreeMap<Partition, Holding>,
    /// Who is a member, and until when; `None` while nothing happens to it.
    leases: BTreeMap<Member, Option<Timestamp>>,
    pub(crate) promised: BTreeMap<Seq, Promised>,
    /// By endpoint: what owners have written.
    pub(crate) lanes: BTreeMap<usize, LaneState>,
    /// Counted with the record; the statistics of a real store are up to a second behind.
    minutes: BTreeMap<(usize, Timestamp), StatisticsStep>,
    /// Numbered by this node, which does not know yet what became of the transaction.
    open: BTreeMap<Seq, usize>,
    /// By row: what was recorded.
    attempts: BTreeMap<usize, Vec<AttemptRecord>>,
}

pub(crate) fn row_number(seq: Seq) -> usize {
    usize::try_from(seq - 1).expect("a small number")
}

pub(crate) fn number_of_delivery(delivery: DeliveryId) -> usize {
    usize::try_from(delivery.as_u128() - 1).expect("a small number")
}

impl Store {
    pub(crate) fn new(kind: Kind, keeping: Keeping) -> Store {
        Store {
            kind,
            keeping,
            rows: Vec::new(),
            backlogs: Vec::new(),
            highest_committed: 0,
            partitions: BTreeMap::new(),
            leases: BTreeMap::new(),
            promised: BTreeMap::new(),
            lanes: BTreeMap::new(),
            minutes: BTreeMap::new(),
            open: BTreeMap::new(),
            attempts: BTreeMap::new(),
        }
    }

    /// Takes the next number for a row of this node.
    pub(crate) fn number(&mut self, publisher: usize, row: impl FnOnce(usize) -> Row) -> usize {
        let number = self.rows.len();
        let row = row(number);
        self.open.insert(row.seq, publisher);
        self.rows.push(row);
        number
    }

    /// Everyone can see it from now on.
    pub(crate) fn commit(&mut self, now: Timestamp, number: usize) {
        let row = &mut self.rows[number];
        (row.is_committed, row.committed_at) = (true, now);
        self.highest_committed = self.highest_committed.max(row.seq);
        if self.backlogs.len() <= row.endpoint {
            self.backlogs.resize_with(row.endpoint + 1, Backlog::default);
        }
        let backlog = &mut self.backlogs[row.endpoint];
        backlog.rows.insert(number);
        if let Some(key) = &row.key {
            backlog.keys.entry(key.clone()).or_default().insert(number);
        }
    }

    /// Its publisher knows what became of it.
    pub(crate) fn close(&mut self, number: usize) {
        self.open.remove(&self.rows[number].seq);
    }

    fn mark_ended(&mut self, number: usize) {
        let row = &self.rows[number];
        let backlog = &mut self.backlogs[row.endpoint];
        backlog.rows.remove(&number);
        if let Some(key) = &row.key
            && let Some(rows) = backlog.keys.get_mut(key)
        {
            rows.remove(&number);
            if rows.is_empty() {
                backlog.keys.remove(key);
            }
        }
    }

    /// Nothing is left of it.
    pub(crate) fn delete(&mut self, number: usize) {
        self.rows[number].is_committed = false;
        self.attempts.remove(&number);
        self.mark_ended(number);
    }

    /// The last row that is committed.
    pub(crate) fn last_seq(&self) -> Seq {
        self.highest_committed
    }

    /// Up to which row a read of this node says that it has seen everything of its own.
    fn seen(&self, reader: usize) -> Seq {
        let open = self.open.iter().find(|(_, publisher)| **publisher == reader);
        open.map_or(self.last_seq(), |(seq, _)| self.last_seq().min(seq - 1))
    }

    /// An endpoint's committed rows that have not ended, in the order of their numbers.
    pub(crate) fn waiting(&self, endpoint: usize) -> impl Iterator<Item = (usize, &Row)> {
        let numbers = self.backlogs.get(endpoint).map(|backlog| &backlog.rows);
        numbers.into_iter().flatten().map(|number| (*number, &self.rows[*number]))
    }

    pub(crate) fn has_work(&self, endpoint: usize) -> bool {
        self.backlogs.get(endpoint).is_some_and(|backlog| !backlog.rows.is_empty())
    }

    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = (usize, &Row)> {
        (0..self.backlogs.len()).flat_map(|endpoint| self.waiting(endpoint))
    }

    /// Endpoints that have something waiting among so many rows behind this one, and where to go on.
    pub(crate) fn sweep(&self, after: Seq, limit: usize, endpoints: &[Endpoint]) -> SweepPage {
        let from = usize::try_from(after).unwrap_or(usize::MAX).min(self.rows.len());
        let to = from.saturating_add(limit).min(self.rows.len());
        let found: BTreeSet<usize> = self.rows[from..to].iter().filter(|row| row.due().is_some()).map(|row| row.endpoint).collect();
        let next = Some(to as Seq).filter(|_| to < self.rows.len());
        SweepPage { endpoints: found.into_iter().map(|number| endpoints[number].id).collect(), highest: self.last_seq(), next }
    }

    /// Which of these an owner before may still record.
    pub(crate) fn handed_over_left(&self, now: Timestamp, asked: &[Seq]) -> HashSet<Seq> {
        let is_left = |seq: &&Seq| {
            let promised = self.promised.get(*seq).is_some_and(|promised| self.is_awaited(now, promised));
            promised && self.rows[row_number(**seq)].due().is_some()
        };
        asked.iter().filter(is_left).copied().collect()
    }

    /// The first rows of a queue at this moment, in its order.
    pub(crate) fn window(&self, reader: usize, endpoint: usize, want: &WindowQuery, limit: usize) -> WindowRows {
        let waiting = || self.waiting(endpoint).map(|(_, row)| row).filter(|row| row.key.is_none());
        let keys = self.backlogs.get(endpoint).map(|backlog| &backlog.keys);
        let head = |rows: &BTreeSet<usize>| &self.rows[*rows.first().expect("a key without rows is removed")];
        let mut rows: Vec<&Row> = match want {
            WindowQuery::Fresh(class) => waiting().filter(|row| !row.is_later && row.class == *class).collect(),
            WindowQuery::Later(class) => waiting().filter(|row| row.is_later && row.class == *class).collect(),
            WindowQuery::Heads { after } => {
                let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let behind = keys.into_iter().flat_map(|keys| keys.range::<OrderingKey, _>((from, Bound::Unbounded)));
                behind.take(limit + 1).map(|(_, rows)| head(rows)).collect()
            }
            WindowQuery::Head(key) => keys.and_then(|keys| keys.get(key)).map(head).into_iter().collect(),
        };
        match want {
            WindowQuery::Fresh(_) => rows.sort_by_key(|row| (row.timestamp, row.seq)),
            WindowQuery::Later(_) => rows.sort_by_key(|row| (row.due(), row.seq)),
            WindowQuery::Heads { .. } | WindowQuery::Head(_) => {}
        }
        let more = rows.len() > limit;
        rows.truncate(limit);
        WindowRows { rows: rows.into_iter().map(Row::entry).collect(), more, seen: self.seen(reader) }
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
        let behind = endpoints.iter().enumerate().filter(|(_, endpoint)| after.is_none_or(|after| endpoint.id > after));
        behind.filter(|(number, _)| self.has_work(*number)).map(|(_, endpoint)| endpoint.id).take(limit).collect()
    }

    pub(crate) fn load_endpoints(&self, endpoint: usize, endpoints: &[Endpoint], tenants: &[Tenant]) -> EndpointBundle {
        let tenant = &tenants[endpoints[endpoint].tenant];
        EndpointBundle {
            endpoint: stored_endpoint(&endpoints[endpoint], tenant),
            tenant: Some(stored_tenant(tenant)),
            lane: self.lanes.get(&endpoint).cloned(),
        }
    }

    /// Stamps some waiting rows with the class that the present configuration gives them. Answers where to go on.
    pub(crate) fn restamp(&mut self, endpoint: usize, config: &LaneConfig, after: usize, limit: usize) -> Option<usize> {
        let behind = self.waiting(endpoint).map(|(number, _)| number).filter(|number| *number >= after);
        let numbers: Vec<usize> = behind.take(limit).collect();
        for number in &numbers {
            let row = &mut self.rows[*number];
            row.class = Class::of(&row.event_type, row.is_priority, config.schedule.as_ref());
        }
        numbers.last().filter(|_| numbers.len() >= limit).map(|last| last + 1)
    }

    /// What the database says of a delivery.
    pub(crate) fn delivery_row(&self, number: usize, endpoints: &[Endpoint], tenants: &[Tenant]) -> DeliveryRow {
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
    }

    pub(crate) fn attempts_of(&self, delivery: DeliveryId) -> Vec<AttemptRecord> {
        self.attempts.get(&number_of_delivery(delivery)).cloned().unwrap_or_default()
    }

    /// All deliveries of an event, replays too.
    pub(crate) fn rows_of(&self, event: &posthaste_core::id::EventId) -> Vec<usize> {
        (0..self.rows.len()).filter(|number| self.rows[*number].is_committed && self.rows[*number].event.id == *event).collect()
    }

    /// Nothing older with its key is unfinished.
    pub(crate) fn is_head_of_key(&self, number: usize) -> bool {
        self.older_of_key(number).next().is_none()
    }

    /// What goes before it under its key.
    pub(crate) fn older_of_key(&self, number: usize) -> impl Iterator<Item = &Row> {
        let row = &self.rows[number];
        let backlog = self.backlogs.get(row.endpoint);
        let of_key = backlog.and_then(|backlog| backlog.keys.get(row.key.as_ref()?));
        of_key.into_iter().flat_map(move |rows| rows.range(..number)).map(|older| &self.rows[*older])
    }

    /// Writes one record, if whoever writes it may.
    pub(crate) fn record(&mut self, now: Timestamp, writer: Member, record: &Record) -> Committed {
        let holding = self.partitions[&record.partition];
        let refused = |result| Committed { result, is_late: false, is_forbidden: false, disables: false };
        let seq = match &record.recorded {
            DeliveryChange::Attempt { seq, .. } | DeliveryChange::Moved { seq, .. } => Some(*seq),
            DeliveryChange::Nothing => None,
        };
        let is_owner = holding.epoch == record.epoch && holding.owner.is_some();
        let promised = seq.and_then(|seq| self.promised.get(&seq).copied());
        let is_promised = promised.is_some_and(|promised| promised.epoch == record.epoch && self.is_awaited(now, &promised));
        if !is_owner && !is_promised && !plant::is(Plant::OldEpochIsRecorded) {
            return refused(RecordResult::NotOwner);
        }
        match &record.recorded {
            DeliveryChange::Attempt { seq, attempt, state } => {
                let row = &mut self.rows[row_number(*seq)];
                if row.due().is_none() || row.attempts + 1 != attempt.number {
                    return refused(RecordResult::MovedOn);
                }
                row.state = *state;
                row.attempts = attempt.number;
                row.is_later |= matches!(state, State::Waiting { .. });
                self.attempts.entry(row_number(*seq)).or_default().push((**attempt).clone());
                let millis = attempt.attempted_at.as_millis();
                let minute = Timestamp::from_millis(millis - millis.rem_euclid(60_000));
                let key = (super::endpoint_number(record.endpoint), minute);
                self.minutes.entry(key).or_insert_with(|| StatisticsStep::new(minute)).count(attempt, *state);
            }
            DeliveryChange::Moved { seq, state, .. } => {
                let row = &mut self.rows[row_number(*seq)];
                if row.due().is_none() {
                    return refused(RecordResult::MovedOn);
                }
                row.state = *state;
                row.is_hurried |= matches!(state, State::Waiting { .. });
            }
            DeliveryChange::Nothing => {}
        }
        if let Some(number) = seq.map(row_number)
            && self.rows[number].due().is_none()
        {
            self.mark_ended(number);
        }
        // A leaver has no say in the lane any more.
        let is_late = !is_owner;
        if is_late && let Some(seq) = seq {
            self.promised.remove(&seq);
        }
        if let Some(lane) = record.lane.as_ref().filter(|_| !is_late) {
            let endpoint = super::endpoint_number(record.endpoint);
            let is_newer = self.lanes.get(&endpoint).is_none_or(|kept| kept.version < lane.version);
            if is_newer || plant::is(Plant::OlderLaneStateWins) {
                self.lanes.insert(endpoint, lane.clone());
            }
        }
        let may_write = is_owner && holding.owner == Some(writer) || promised.is_some_and(|promised| promised.by == writer);
        let disables = record.disables_endpoint.is_some() && !is_late;
        Committed { result: RecordResult::Done, is_late, is_forbidden: !may_write, disables }
    }

    /// Gives partitions up, as far as they are still this member's under these epochs.
    pub(crate) fn hand_over(
        &mut self,
        leaver: Member,
        partitions: &[(Partition, Epoch)],
        in_flight: &[HandedOver],
        kept_from_leaver_until: Timestamp,
    ) {
        let is_given_up = |partition: Partition, holding: &Holding| {
            holding.owner == Some(leaver) && partitions.contains(&(partition, holding.epoch))
        };
        for handed_over in in_flight {
            let row = &self.rows[row_number(handed_over.seq)];
            let partition = row.partition;
            let holding = &self.partitions[&partition];
            let is_in_flight = row.due().is_some() && row.attempts + 1 == handed_over.attempt;
            if is_in_flight && is_given_up(partition, holding) {
                let promised = Promised { by: leaver, epoch: holding.epoch, until: handed_over.until };
                self.promised.insert(handed_over.seq, promised);
            }
        }
        for (partition, holding) in &mut self.partitions {
            if is_given_up(*partition, holding) {
                let left_by = Some((leaver.0, kept_from_leaver_until));
                *holding = Holding { owner: None, is_handed_over: holding.is_trusted, left_by, ..*holding };
            }
        }
    }

    pub(crate) fn owned_by(&self, member: Member) -> Vec<(Partition, Epoch)> {
        let own = self.partitions.iter().filter(|(_, holding)| holding.owner == Some(member));
        own.map(|(partition, holding)| (*partition, holding.epoch)).collect()
    }

    /// Whether a leaver may still record what it has handed over: on PostgreSQL as long as its lease lasts.
    pub(crate) fn is_awaited(&self, now: Timestamp, promised: &Promised) -> bool {
        now < promised.until && (self.kind == Kind::Sqlite || self.has_lease(promised.by, now))
    }

    /// This member is believed to be alive until then.
    pub(crate) fn renew(&mut self, member: Member, until: Timestamp) {
        self.leases.insert(member, Some(until));
    }

    /// Nothing happens to this member for a while: its lease does not end.
    pub(crate) fn rest(&mut self, member: Member) {
        self.leases.insert(member, None);
    }

    pub(crate) fn has_lease(&self, member: Member, at: Timestamp) -> bool {
        self.leases.get(&member).is_some_and(|until| until.is_none_or(|until| at < until))
    }

    /// Members whose lease has ended, and that have not been removed.
    pub(crate) fn expired(&self, at: Timestamp) -> BTreeSet<Member> {
        let is_over = |until: &Option<Timestamp>| until.is_some_and(|until| until <= at);
        self.leases.iter().filter(|(_, until)| is_over(until)).map(|(member, _)| *member).collect()
    }

    /// What members had whose lease has ended has no owner; SQLite has one process, and what any other had is free. Answers whose
    /// records are not accepted any more.
    pub(crate) fn free_orphans(&mut self, claimant: Member, at: Timestamp) -> BTreeSet<Member> {
        // Also one that has handed over what it had, and was to record what it had in flight.
        let mut freed = self.expired(at);
        self.leases.retain(|member, _| !freed.contains(member));
        let (kind, leases) = (self.kind, &self.leases);
        let is_live = |owner: &Member| match kind {
            Kind::Sqlite => *owner == claimant,
            Kind::Postgres => leases.contains_key(owner),
        };
        for holding in self.partitions.values_mut() {
            if let Some(dead) = holding.owner.filter(|owner| !is_live(owner)) {
                freed.insert(dead);
                *holding = Holding { owner: None, is_handed_over: false, is_trusted: false, ..*holding };
            }
        }
        freed
    }

    /// Takes what nobody has, up to its share. Answers all that the member has then, and which of it is new.
    pub(crate) fn claim(
        &mut self,
        now: Timestamp,
        member: Member,
        share: usize,
        endpoints: &[Endpoint],
    ) -> (Claimed, Vec<Partition>) {
        let room = share.saturating_sub(self.owned_by(member).len());
        let (mut taken, mut handed_over) = (Vec::new(), Vec::new());
        let is_free = |holding: &Holding| {
            let is_kept = holding.left_by.is_some_and(|(node, until)| node == member.0 && now < until);
            holding.owner.is_none() && !is_kept
        };
        for (partition, holding) in self.partitions.iter_mut().filter(|(_, holding)| is_free(holding)).take(room) {
            taken.push(*partition);
            handed_over.extend(Some(*partition).filter(|_| holding.is_handed_over));
            *holding = Holding { owner: Some(member), epoch: holding.epoch + 1, is_handed_over: false, ..*holding };
        }
        let own = self.partitions.iter().filter(|(_, holding)| holding.owner == Some(member));
        let partitions: Vec<(Partition, Epoch)> = own.map(|(partition, holding)| (*partition, holding.epoch)).collect();
        let is_own = |row: &Row| partitions.iter().any(|(own, _)| *own == row.partition);
        let in_flight_elsewhere =
            self.promised.iter().filter(|(_, promised)| self.is_awaited(now, promised)).filter_map(|(seq, promised)| {
                let row = &self.rows[row_number(*seq)];
                (row.due().is_some() && is_own(row)).then(|| InFlightElsewhere {
                    endpoint: endpoints[row.endpoint].id,
                    delivery: row.delivery,
                    seq: *seq,
                    ordering_key: row.key.clone(),
                    until: promised.until,
                })
            });
        (
            Claimed {
                in_flight_elsewhere: in_flight_elsewhere.collect(),
                partitions,
                handed_over,
                numbered: self.rows.len() as Seq,
            },
            taken,
        )
    }

    /// What an endpoint's attempts were like between these times.
    pub(crate) fn statistics(&self, endpoint: usize, from: Timestamp, to: Timestamp) -> Option<StatisticsStep> {
        let mut found: Option<StatisticsStep> = None;
        for (_, minute) in self.minutes.range((endpoint, from)..(endpoint, to)) {
            let step = found.get_or_insert_with(|| StatisticsStep::new(from));
            step.counts.add(minute.counts);
            step.successes.merge(&minute.successes);
            step.timeouts.merge(&minute.timeouts);
        }
        found
    }

    /// What waits and should not any more.
    pub(crate) fn overdue(&self, now: Timestamp, endpoints: &[Endpoint]) -> Vec<Overdue> {
        let overdue = |row: &Row| {
            let why = if endpoints[row.endpoint].deleted_at.is_some() {
                OverdueReason::EndpointDeleted
            } else if row.expires_at.is_some_and(|at| at <= now) || row.due().is_some_and(|due| due + self.keeping.retention <= now)
            {
                OverdueReason::Expired
            } else {
                return None;
            };
            row.due().map(|_| Overdue { endpoint: endpoints[row.endpoint].id, delivery: row.delivery, seq: row.seq, why })
        };
        self.all_waiting().filter_map(|(_, row)| overdue(row)).collect()
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
    said.max_in_flight = Some(MaxInFlight::new(max_in_flight).expect("drawn within its bounds"));
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
    let said = SaidOfTenant {
        share: tenant.config.share.into(),
        rate_limit: tenant.config.rate_limit,
        ..SaidOfTenant::new(tenant.id.clone())
    };
    StoredTenant { tenant: said, version: tenant.version, created_at: tenant.created_at, extra: String::new() }
}
