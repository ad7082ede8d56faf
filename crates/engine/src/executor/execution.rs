//! Decides how one effect of the owner is carried out: which store calls, in which order, and what to do when one fails.
//!
//! A pure state machine without a clock and without I/O. [`plan`] turns the owner's effects into executions; each
//! [`Execution`] asks for at most one store call at a time and is given its result by [`Execution::completed`]. Production
//! runs it as a tokio task; the simulator runs the same decisions in virtual time.
//!
//! - A call that fails is retried with backoff until it succeeds. A read that fails is retried with half as many rows, because
//!   it may have taken too long.
//! - A batch that fails because a row is unreadable ([`Error::Corrupt`](posthaste_store::Error::Corrupt)) is split until the
//!   culprit stands alone. An endpoint or payload that cannot be read is reported to the owner. A window or record that cannot
//!   be is tried again every [`UNREADABLE_RETRY`], after everything else of its batch.
//! - After a record whose commit is in doubt, the store is asked which of the refused records it already has.

use std::ops::Range;
use std::time::Duration;

use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::notice::Noticed;
use posthaste_core::plant::{self, Plant};
use posthaste_core::scheduler::Seq;
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::Trigger;
use posthaste_store::{
    Body, BodyError, Command, CommandRequest, Counts, DeliveryChange, DeliveryQuery, DeliveryRow, Epoch, HandedOver, LaneSnapshot,
    NodeId, Partition, Record, RecordResult, StatisticsQuery, StatisticsStep, WindowRequest,
};

use super::store_call::{CallFailure, StoreCall, StoreReply};
use crate::owner::{Effect, Input, ObservedAttempts, OnRecorded, OwnerGeneration, PendingSend, SendRequest};

/// Backoff between retries of a failed store call.
pub const RETRY_BACKOFF_MIN: Duration = Duration::from_millis(50);
pub const RETRY_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How often something unreadable is looked at again.
pub const UNREADABLE_RETRY: Duration = Duration::from_mins(5);
/// Endpoints with work fetched per page.
const WORK_PAGE_ROWS: usize = 1_000;
/// Windows read in one call, each of which may have as many rows as a queue holds.
const WINDOWS_PER_CALL: usize = 64;
/// Rows whose class is written again per call.
const RESTAMP_ROWS: usize = 500;
/// Deliveries fetched per page when cancelling an event.
const CANCEL_PAGE_ROWS: usize = 1_000;
/// Rows that one call of a gap scan looks at: a few milliseconds, far below the time limit of a read.
pub(crate) const SCAN_ROWS: usize = 10_000;

/// What the owner's effects come to.
#[derive(Debug, Default)]
pub struct Plan {
    pub executions: Vec<(Execution, Progress)>,
    pub sends: Vec<Box<SendRequest>>,
    pub notices: Vec<Noticed>,
}

/// Sorts what the owner wants done. `node` is the name under which partitions are handed over, if this node has joined.
pub fn plan(effects: Vec<Effect>, now: Timestamp, node: Option<NodeId>) -> Plan {
    let mut plan = Plan::default();
    let mut reads = Vec::new();
    for effect in effects {
        let work = match effect {
            Effect::Send(sending) => {
                plan.sends.push(sending);
                continue;
            }
            Effect::Notify(noticed) => {
                plan.notices.push(noticed);
                continue;
            }
            // Many lanes that wake at once want seven windows each: they are read together.
            Effect::ReadWindow { generation, endpoint, want, limit } => {
                reads.push((generation, WindowRequest { endpoint, want, limit }));
                continue;
            }
            Effect::FindWork => Work::Find { after: None },
            Effect::ScanGap { generation, after } => Work::ScanGap { generation, after },
            Effect::LoadEndpoints { generation, endpoints } => {
                Work::LoadEndpoints { generation, batches: Batches::of(endpoints.len()), endpoints }
            }
            Effect::ReadBodies { generation, wanted } => {
                Work::ReadBodies { generation, batches: Batches::of(wanted.len()), wanted }
            }
            Effect::Record { generation, records, on_recorded } => Work::Record(Recording::new(generation, records, on_recorded)),
            Effect::CompareVersions { generation, tenants } => Work::CompareVersions { generation, tenants },
            Effect::Restamp { generation, endpoint } => Work::Restamp { generation, endpoint, after: 0 },
            Effect::FindDeliveries { generation, asked } => Work::FindDeliveries(DeliveryLookup::new(generation, asked)),
            Effect::ReadStatistics { generation, endpoint, trigger, shortened_at } => {
                let is_counted = trigger != Some(Trigger::Spike);
                Work::Statistics(Statistics { generation, endpoint, trigger, shortened_at, now, is_counted, week: None, day: None })
            }
            Effect::PublishLanes(lanes) => Work::PublishLanes(lanes),
            Effect::HandOver { partitions, lanes, in_flight } => {
                Work::HandOver(HandOver { node, partitions, lanes, in_flight, are_lanes_written: false })
            }
        };
        plan.executions.extend(Execution::start(work));
    }
    while !reads.is_empty() {
        let rest = reads.split_off(reads.len().min(WINDOWS_PER_CALL));
        let reads = std::mem::replace(&mut reads, rest);
        plan.executions.extend(Execution::start(Work::ReadWindows { batches: Batches::of(reads.len()), reads }));
    }
    plan
}

/// Carries out one effect. Ask [`Execution::completed`] after each call; drop it once it is [`Next::Done`].
#[derive(Debug)]
pub struct Execution {
    work: Work,
    backoff: Backoff,
}

/// What an execution wants after a step.
#[derive(Debug)]
pub struct Progress {
    /// What the owner is told now.
    pub inputs: Vec<Input>,
    /// Which of the effect's records the [`Input::Recorded`] among the inputs is about.
    pub recorded: Option<Range<usize>>,
    pub next: Next,
}

#[derive(Debug)]
pub enum Next {
    Call(StoreCall),
    /// A retry. Not made any more once the engine has stopped.
    CallAfter(Duration, StoreCall),
    Done,
}

impl Progress {
    fn call(call: StoreCall) -> Progress {
        Progress { inputs: vec![], recorded: None, next: Next::Call(call) }
    }

    fn call_after(delay: Duration, call: StoreCall) -> Progress {
        Progress { inputs: vec![], recorded: None, next: Next::CallAfter(delay, call) }
    }

    fn done(inputs: Vec<Input>) -> Progress {
        Progress { inputs, recorded: None, next: Next::Done }
    }
}

#[derive(Debug)]
enum Work {
    Find { after: Option<EndpointId> },
    ScanGap { generation: OwnerGeneration, after: Seq },
    LoadEndpoints { generation: OwnerGeneration, endpoints: Vec<EndpointId>, batches: Batches },
    ReadWindows { reads: Vec<(OwnerGeneration, WindowRequest)>, batches: Batches },
    ReadBodies { generation: OwnerGeneration, wanted: Vec<PendingSend>, batches: Batches },
    Record(Recording),
    CompareVersions { generation: OwnerGeneration, tenants: Vec<TenantId> },
    Restamp { generation: OwnerGeneration, endpoint: EndpointId, after: Seq },
    FindDeliveries(DeliveryLookup),
    Statistics(Statistics),
    PublishLanes(Vec<LaneSnapshot>),
    HandOver(HandOver),
}

impl Execution {
    fn start(work: Work) -> Option<(Execution, Progress)> {
        let execution = Execution { work, backoff: Backoff::default() };
        let first = execution.current_call()?;
        Some((execution, Progress::call(first)))
    }

    /// A stop waits for it: others take over once it is done.
    pub fn is_hand_over(&self) -> bool {
        matches!(self.work, Work::HandOver(_))
    }

    /// The records that it writes, if that is what it does.
    pub(super) fn records(&self) -> Option<(OwnerGeneration, &[Record])> {
        match &self.work {
            Work::Record(recording) => Some((recording.generation, &recording.records)),
            Work::Find { .. }
            | Work::ScanGap { .. }
            | Work::LoadEndpoints { .. }
            | Work::ReadWindows { .. }
            | Work::ReadBodies { .. }
            | Work::CompareVersions { .. }
            | Work::Restamp { .. }
            | Work::FindDeliveries(_)
            | Work::Statistics(_)
            | Work::PublishLanes(_)
            | Work::HandOver(_) => None,
        }
    }

    /// The call that the present state needs; `None` if there is nothing to do.
    fn current_call(&self) -> Option<StoreCall> {
        Some(match &self.work {
            Work::Find { after } => StoreCall::Work { after: *after, limit: WORK_PAGE_ROWS },
            Work::ScanGap { after, .. } => StoreCall::Sweep { after: *after, limit: SCAN_ROWS },
            Work::LoadEndpoints { endpoints, batches, .. } => StoreCall::LoadEndpoints(endpoints[batches.current()?].to_vec()),
            Work::ReadWindows { reads, batches } => {
                StoreCall::Windows(reads[batches.current()?].iter().map(|(_, asked)| asked.clone()).collect())
            }
            Work::ReadBodies { wanted, batches, .. } => {
                StoreCall::Bodies(wanted[batches.current()?].iter().map(|wanted| wanted.seq).collect())
            }
            Work::Record(recording) => recording.current_call()?,
            Work::CompareVersions { tenants, .. } => StoreCall::TenantVersions(tenants.clone()),
            Work::Restamp { endpoint, after, .. } => StoreCall::Restamp { endpoint: *endpoint, after: *after, limit: RESTAMP_ROWS },
            Work::FindDeliveries(lookup) => lookup.current_call(),
            Work::Statistics(statistics) => statistics.current_call(),
            Work::PublishLanes(lanes) => StoreCall::PublishLanes(lanes.clone()),
            Work::HandOver(hand_over) => hand_over.current_call()?,
        })
    }

    /// The call that this execution asked for last has ended.
    pub fn completed(&mut self, result: Result<StoreReply, CallFailure>) -> Progress {
        match result {
            Ok(reply) => {
                self.backoff = Backoff::default();
                self.succeeded(reply)
            }
            Err(CallFailure::Panicked) if plant::is(Plant::PanicLeaksCall) => Progress::done(vec![]),
            Err(failure) => self.failed(failure),
        }
    }

    fn succeeded(&mut self, reply: StoreReply) -> Progress {
        let (inputs, recorded) = match (&mut self.work, reply) {
            (Work::Find { after }, StoreReply::Work(endpoints)) => {
                let is_last = endpoints.len() < WORK_PAGE_ROWS;
                *after = endpoints.last().copied();
                if is_last {
                    return Progress::done(vec![Input::Work(endpoints)]);
                }
                (vec![Input::Work(endpoints)], None)
            }
            (Work::ScanGap { generation, after }, StoreReply::Sweep(swept)) => {
                let mut inputs = Vec::new();
                if !swept.endpoints.is_empty() {
                    inputs.push(Input::Work(swept.endpoints));
                }
                let Some(next) = swept.next.filter(|_| !plant::is(Plant::GapScanStopsEarly)) else {
                    inputs.push(Input::GapScanned { generation: *generation, through: swept.highest });
                    return Progress::done(inputs);
                };
                *after = next;
                (inputs, None)
            }
            (Work::LoadEndpoints { generation, endpoints, batches }, StoreReply::LoadEndpoints(found)) => {
                let asked = endpoints[batches.finish()].to_vec();
                (vec![Input::EndpointsLoaded { generation: *generation, asked, found }], None)
            }
            (Work::ReadWindows { reads, batches }, StoreReply::Windows(found)) => {
                let asked = reads[batches.finish()].iter().cloned();
                let read = |((generation, asked), rows): ((OwnerGeneration, WindowRequest), _)| {
                    let WindowRequest { endpoint, want, .. } = asked;
                    Input::WindowRead { generation, endpoint, want, rows }
                };
                (asked.zip(found).map(read).collect(), None)
            }
            (Work::ReadBodies { generation, wanted, batches }, StoreReply::Bodies(found)) => {
                let asked = wanted[batches.finish()].to_vec();
                (vec![Input::BodiesRead { generation: *generation, asked, found }], None)
            }
            (Work::Record(recording), reply) => match recording.succeeded(reply) {
                Some((input, range)) => (vec![input], Some(range)),
                None => (vec![], None),
            },
            (Work::CompareVersions { generation, tenants }, StoreReply::TenantVersions(versions)) => {
                let versions = std::mem::take(tenants).into_iter().zip(versions).collect();
                return Progress::done(vec![Input::Versions { generation: *generation, versions }]);
            }
            (Work::Restamp { generation, endpoint, after }, StoreReply::Restamp(next)) => {
                let Some(next) = next else {
                    return Progress::done(vec![Input::Restamped { generation: *generation, endpoint: *endpoint }]);
                };
                *after = next;
                (vec![], None)
            }
            (Work::FindDeliveries(lookup), reply) => match lookup.succeeded(reply) {
                Some(input) => return Progress::done(vec![input]),
                None => (vec![], None),
            },
            (Work::Statistics(statistics), StoreReply::Count { is_more }) => {
                statistics.is_counted = !is_more;
                (vec![], None)
            }
            (Work::Statistics(statistics), StoreReply::Statistics(steps)) => match statistics.succeeded(steps) {
                Some(input) => return Progress::done(vec![input]),
                None => (vec![], None),
            },
            (Work::HandOver(hand_over), StoreReply::Record(_)) => {
                hand_over.are_lanes_written = true;
                (vec![], None)
            }
            (Work::PublishLanes(_), StoreReply::PublishLanes) | (Work::HandOver(_), StoreReply::HandOver) => {
                return Progress::done(vec![]);
            }
            (work, reply) => unreachable!("{work:?} was answered with {reply:?}"),
        };
        Progress { inputs, recorded, ..self.go_on() }
    }

    fn failed(&mut self, failure: CallFailure) -> Progress {
        if let Work::Record(recording) = &mut self.work {
            recording.is_in_doubt |= failure.leaves_doubt();
            if recording.cannot_resolve(&failure) {
                let (input, range) = recording.finish_resolution();
                return Progress { inputs: vec![input], recorded: Some(range), ..self.go_on() };
            }
        }
        match &mut self.work {
            // Not urgent, or the caller hears that it was not done: not retried.
            Work::FindDeliveries(_) | Work::Statistics(_) | Work::PublishLanes(_) => return Progress::done(vec![]),
            // Its rows are found one page after another: there is nothing to split.
            Work::Restamp { .. } if failure.is_corrupt() => {
                let call = self.current_call().expect("it has just failed");
                return Progress::call_after(UNREADABLE_RETRY, call);
            }
            Work::Find { .. }
            | Work::ScanGap { .. }
            | Work::LoadEndpoints { .. }
            | Work::ReadWindows { .. }
            | Work::ReadBodies { .. }
            | Work::Record(_)
            | Work::CompareVersions { .. }
            | Work::Restamp { .. }
            | Work::HandOver(_) => {}
        }
        let Some(batches) = self.work.batches() else { return self.retry() };
        if !failure.is_corrupt() || plant::is(Plant::UnreadableStopsBatch) {
            if !plant::is(Plant::UnreadableStopsBatch) && !matches!(self.work, Work::Record(_)) {
                self.work.batches().expect("just found").split();
            }
            return self.retry();
        }
        if batches.split() {
            // The culprit is in one of the halves.
            return self.go_on();
        }
        let inputs = self.set_culprit_aside(failure);
        Progress { inputs, ..self.go_on() }
    }

    /// The batch that has failed is one row, and that cannot be read.
    fn set_culprit_aside(&mut self, failure: CallFailure) -> Vec<Input> {
        match &mut self.work {
            Work::LoadEndpoints { generation, endpoints, batches } => {
                let endpoint = endpoints[batches.finish().start];
                vec![Input::EndpointUnreadable { generation: *generation, endpoint, cause: failure.to_string() }]
            }
            Work::ReadBodies { generation, wanted, batches } => {
                let wanted = wanted[batches.finish().start];
                let CallFailure::Store(error) = failure else { unreachable!("only the store finds something unreadable") };
                let body = Body { seq: wanted.seq, delivery: wanted.delivery, event: Err(BodyError::Corrupt(error)) };
                vec![Input::BodiesRead { generation: *generation, asked: vec![wanted], found: vec![body] }]
            }
            Work::ReadWindows { reads, batches } => {
                let (place, is_news) = batches.set_aside();
                let (_, asked) = &reads[place];
                if is_news {
                    tracing::error!(endpoint = %asked.endpoint, queue = ?asked.want, error = %failure, "deliveries_unreadable");
                }
                vec![]
            }
            Work::Record(recording) => {
                let (place, is_news) = recording.batches.set_aside();
                let record = &recording.records[place];
                if is_news {
                    tracing::error!(endpoint = %record.endpoint, error = %failure, "record_refused");
                }
                vec![]
            }
            work @ (Work::Find { .. }
            | Work::ScanGap { .. }
            | Work::CompareVersions { .. }
            | Work::Restamp { .. }
            | Work::FindDeliveries(_)
            | Work::Statistics(_)
            | Work::PublishLanes(_)
            | Work::HandOver(_)) => unreachable!("not a batch: {work:?}"),
        }
    }

    fn go_on(&self) -> Progress {
        match self.current_call() {
            None => Progress::done(vec![]),
            Some(call) if self.work.is_only_unreadable_left() => Progress::call_after(UNREADABLE_RETRY, call),
            Some(call) => Progress::call(call),
        }
    }

    fn retry(&mut self) -> Progress {
        let call = self.current_call().expect("it has just failed");
        Progress::call_after(self.backoff.next(), call)
    }
}

impl Work {
    fn batches(&mut self) -> Option<&mut Batches> {
        match self {
            Work::LoadEndpoints { batches, .. } | Work::ReadWindows { batches, .. } | Work::ReadBodies { batches, .. } => {
                Some(batches)
            }
            Work::Record(recording) if recording.resolution.is_none() => Some(&mut recording.batches),
            Work::Find { .. }
            | Work::ScanGap { .. }
            | Work::Record(_)
            | Work::CompareVersions { .. }
            | Work::Restamp { .. }
            | Work::FindDeliveries(_)
            | Work::Statistics(_)
            | Work::PublishLanes(_)
            | Work::HandOver(_) => None,
        }
    }

    /// Everything but what cannot be read is done.
    fn is_only_unreadable_left(&self) -> bool {
        match self {
            Work::LoadEndpoints { batches, .. } | Work::ReadWindows { batches, .. } | Work::ReadBodies { batches, .. } => {
                batches.pending.is_empty()
            }
            Work::Record(recording) => recording.batches.pending.is_empty() && recording.resolution.is_none(),
            Work::Find { .. }
            | Work::ScanGap { .. }
            | Work::CompareVersions { .. }
            | Work::Restamp { .. }
            | Work::FindDeliveries(_)
            | Work::Statistics(_)
            | Work::PublishLanes(_)
            | Work::HandOver(_) => false,
        }
    }
}

#[derive(Debug)]
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff(RETRY_BACKOFF_MIN)
    }
}

impl Backoff {
    fn next(&mut self) -> Duration {
        let delay = self.0;
        self.0 = (self.0 * 2).min(RETRY_BACKOFF_MAX);
        delay
    }
}

/// The parts of a batch that are not done yet, as places in it.
#[derive(Debug)]
struct Batches {
    /// The last one is the current one. None is empty.
    pending: Vec<Range<usize>>,
    /// Single rows that could not be read; their turn comes when nothing else is pending.
    unreadable: Vec<usize>,
}

impl Batches {
    fn of(len: usize) -> Batches {
        let whole = 0..len;
        Batches { pending: if whole.is_empty() { vec![] } else { vec![whole] }, unreadable: vec![] }
    }

    fn current(&self) -> Option<Range<usize>> {
        self.pending.last().cloned().or_else(|| self.unreadable.first().map(|place| *place..*place + 1))
    }

    /// The current part is done.
    fn finish(&mut self) -> Range<usize> {
        self.pending.pop().unwrap_or_else(|| {
            let place = self.unreadable.remove(0);
            place..place + 1
        })
    }

    /// Halves the current part, unless it is a single row.
    fn split(&mut self) -> bool {
        let Some(part) = self.pending.last_mut().filter(|part| part.len() > 1) else { return false };
        let middle = part.start + part.len() / 2;
        let first = part.start..middle;
        part.start = middle;
        self.pending.push(first);
        true
    }

    /// The current part is a single row that cannot be read: everything else first. Answers its place, and whether this is the
    /// first time.
    fn set_aside(&mut self) -> (usize, bool) {
        let is_news = !self.pending.is_empty();
        let place = self.finish().start;
        self.unreadable.push(place);
        (place, is_news)
    }
}

/// Until a record is committed its delivery stays in flight.
#[derive(Debug)]
struct Recording {
    generation: OwnerGeneration,
    records: Vec<Record>,
    on_recorded: Vec<OnRecorded>,
    batches: Batches,
    /// An earlier try may have been committed.
    is_in_doubt: bool,
    resolution: Option<Resolution>,
}

/// Finds out which of the refused records an earlier try has written: those count as done.
#[derive(Debug)]
struct Resolution {
    range: Range<usize>,
    results: Vec<RecordResult>,
    /// The refused record that is being looked up, within `range`.
    place: usize,
    /// Its delivery is found; now its attempts are read.
    delivery: Option<Box<DeliveryRow>>,
}

impl Recording {
    fn new(generation: OwnerGeneration, records: Vec<Record>, on_recorded: Vec<OnRecorded>) -> Recording {
        let batches = Batches::of(records.len());
        Recording { generation, records, on_recorded, batches, is_in_doubt: false, resolution: None }
    }

    fn current_call(&self) -> Option<StoreCall> {
        let Some(resolution) = &self.resolution else {
            return Some(StoreCall::Record(self.records[self.batches.current()?].to_vec()));
        };
        Some(match &resolution.delivery {
            Some(row) => StoreCall::Attempts(row.id),
            None => StoreCall::DeliveriesAt(self.records[resolution.range.start + resolution.place].seq().into_iter().collect()),
        })
    }

    fn succeeded(&mut self, reply: StoreReply) -> Option<(Input, Range<usize>)> {
        match (&mut self.resolution, reply) {
            (None, StoreReply::Record(results)) => {
                let range = self.batches.finish();
                if !self.is_in_doubt {
                    return Some(self.recorded(range, results));
                }
                self.resolution = Some(Resolution { range, results, place: 0, delivery: None });
                self.resolve()
            }
            (Some(resolution), StoreReply::DeliveriesAt(rows)) => {
                let record = &self.records[resolution.range.start + resolution.place];
                let row = rows.into_iter().next();
                match (&record.recorded, row) {
                    (DeliveryChange::Attempt { .. }, Some(row)) => {
                        resolution.delivery = Some(Box::new(row));
                        return None;
                    }
                    (DeliveryChange::Moved { state, .. }, Some(row)) if row.state == *state => {
                        resolution.results[resolution.place] = RecordResult::Done;
                    }
                    (DeliveryChange::Attempt { .. } | DeliveryChange::Moved { .. } | DeliveryChange::Nothing, _) => {}
                }
                resolution.place += 1;
                self.resolve()
            }
            (Some(resolution), StoreReply::Attempts(attempts)) => {
                let record = &self.records[resolution.range.start + resolution.place];
                if let DeliveryChange::Attempt { attempt, .. } = &record.recorded
                    && attempts.iter().any(|known| known.id == attempt.id)
                {
                    resolution.results[resolution.place] = RecordResult::Done;
                }
                resolution.delivery = None;
                resolution.place += 1;
                self.resolve()
            }
            (resolution, reply) => unreachable!("a record ({resolution:?}) was answered with {reply:?}"),
        }
    }

    /// Goes to the next record that was refused and that an earlier try may have written.
    fn resolve(&mut self) -> Option<(Input, Range<usize>)> {
        let resolution = self.resolution.as_mut().expect("a commit is in doubt");
        let records = &self.records[resolution.range.clone()];
        let is_open = |place: &usize| resolution.results[*place] != RecordResult::Done && records[*place].seq().is_some();
        match (resolution.place..records.len()).find(is_open) {
            Some(place) => {
                resolution.place = place;
                None
            }
            None => Some(self.finish_resolution()),
        }
    }

    /// Whether the answer that would resolve a doubt cannot be read: then the refusals stand.
    fn cannot_resolve(&self, failure: &CallFailure) -> bool {
        self.resolution.is_some() && failure.is_corrupt()
    }

    fn finish_resolution(&mut self) -> (Input, Range<usize>) {
        let Resolution { range, results, .. } = self.resolution.take().expect("a commit is in doubt");
        self.recorded(range, results)
    }

    fn recorded(&mut self, range: Range<usize>, results: Vec<RecordResult>) -> (Input, Range<usize>) {
        let on_recorded = if range.len() == self.on_recorded.len() {
            std::mem::take(&mut self.on_recorded)
        } else {
            self.on_recorded[range.clone()].to_vec()
        };
        (Input::Recorded { generation: self.generation, on_recorded, results }, range)
    }
}

/// Reads what the database says about deliveries that somebody wants to cancel or hurry.
#[derive(Debug)]
struct DeliveryLookup {
    generation: OwnerGeneration,
    /// Taken when it is answered.
    asked: Option<Box<CommandRequest>>,
    call: StoreCall,
    rows: Vec<DeliveryRow>,
}

impl DeliveryLookup {
    fn new(generation: OwnerGeneration, asked: Box<CommandRequest>) -> DeliveryLookup {
        let call = match &asked.command {
            Command::CancelDelivery { delivery, .. } | Command::SendNow { delivery, .. } => StoreCall::Delivery(*delivery),
            Command::CancelEvent { tenant, event, .. } => StoreCall::Deliveries(DeliveryQuery {
                tenant: Some(tenant.clone()),
                event: Some(event.clone()),
                limit: CANCEL_PAGE_ROWS,
                ..DeliveryQuery::default()
            }),
            Command::Test { .. } | Command::Apply { .. } => unreachable!("it is not looked up"),
        };
        DeliveryLookup { generation, asked: Some(asked), call, rows: vec![] }
    }

    fn current_call(&self) -> StoreCall {
        self.call.clone()
    }

    fn succeeded(&mut self, reply: StoreReply) -> Option<Input> {
        match (reply, &mut self.call) {
            (StoreReply::Delivery(row), StoreCall::Delivery(_)) => self.rows.extend(*row),
            (StoreReply::Deliveries(page), StoreCall::Deliveries(query)) => {
                self.rows.extend(page.rows);
                query.before = page.next;
                if query.before.is_some() {
                    return None;
                }
            }
            (reply, call) => unreachable!("{call:?} was answered with {reply:?}"),
        }
        let asked = self.asked.take().expect("answered once");
        Some(Input::DeliveriesFound { generation: self.generation, asked, rows: std::mem::take(&mut self.rows) })
    }
}

/// Reads what an endpoint's timeout is computed from.
#[derive(Debug)]
struct Statistics {
    generation: OwnerGeneration,
    endpoint: EndpointId,
    trigger: Option<Trigger>,
    shortened_at: Option<Timestamp>,
    now: Timestamp,
    /// What is recorded is in the statistics: a spike is made of attempts that were recorded a moment ago.
    is_counted: bool,
    /// As read so far, in this order.
    week: Option<Vec<StatisticsStep>>,
    day: Option<Counts>,
}

impl Statistics {
    fn current_call(&self) -> StoreCall {
        const DAY: Duration = Duration::from_hours(24);
        if !self.is_counted {
            return StoreCall::Count;
        }
        let from = match (&self.week, &self.day, self.shortened_at) {
            (None, ..) => self.now - 7 * DAY,
            (Some(_), None, _) | (Some(_), Some(_), None) => self.now - DAY,
            (Some(_), Some(_), Some(shortened_at)) => shortened_at,
        };
        StoreCall::Statistics(StatisticsQuery {
            tenant: None,
            endpoint: Some(self.endpoint),
            from,
            to: self.now,
            // One step covers it all.
            step: 8 * DAY,
        })
    }

    fn succeeded(&mut self, steps: Vec<StatisticsStep>) -> Option<Input> {
        let Some(week) = &mut self.week else {
            self.week = Some(steps);
            return None;
        };
        let counts = steps.into_iter().next().map_or_else(Counts::default, |step| step.counts);
        let (day, since_shortened) = match self.day {
            None if self.shortened_at.is_some() => {
                self.day = Some(counts);
                return None;
            }
            None => (counts, None),
            Some(day) => (day, Some(counts)),
        };
        let seen = Box::new(ObservedAttempts { week: std::mem::take(week).into_iter().next(), day, since_shortened });
        Some(Input::StatisticsRead { generation: self.generation, endpoint: self.endpoint, trigger: self.trigger, seen })
    }
}

/// Writes what is known about lanes, and then gives their partitions up.
#[derive(Debug)]
struct HandOver {
    node: Option<NodeId>,
    partitions: Vec<(Partition, Epoch)>,
    lanes: Vec<Record>,
    in_flight: Vec<HandedOver>,
    are_lanes_written: bool,
}

impl HandOver {
    fn current_call(&self) -> Option<StoreCall> {
        if !self.are_lanes_written {
            return Some(StoreCall::Record(self.lanes.clone()));
        }
        // A node that is no member owns nothing that it could hand over.
        let node = self.node?;
        Some(StoreCall::HandOver { node, partitions: self.partitions.clone(), in_flight: self.in_flight.clone() })
    }
}
