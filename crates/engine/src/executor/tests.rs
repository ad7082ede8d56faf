//! Executions against answers that are made up call by call.

#![expect(clippy::wildcard_enum_match_arm, reason = "a test names the one call that it expects")]

use posthaste_core::delivery::{Outcome, State, Timings};
use posthaste_core::event::EventType;
use posthaste_core::id::{AttemptId, DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::scheduler::{Class, Seq, WindowQuery};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::Trigger;
use posthaste_store::{AttemptRecord, BodyError, DeliveryChange, DeliveryRow, Error, Record, RecordResult, SweepPage, WindowRows};

use super::*;
use crate::owner::{OnRecorded, PendingSend};

fn endpoint(number: u8) -> EndpointId {
    EndpointId::from_bytes([number; 16])
}

fn corrupt() -> CallFailure {
    CallFailure::Store(Error::Corrupt { what: "endpoint" })
}

fn unavailable() -> CallFailure {
    CallFailure::Store(Error::Unavailable("the disk is gone".into()))
}

fn start(effect: Effect) -> (Execution, Progress) {
    plan(vec![effect], Timestamp::from_millis(0), None).executions.pop().expect("it asks the store")
}

/// What an execution did until it was done, or wanted to wait for a long time.
#[derive(Default)]
struct Run {
    calls: Vec<StoreCall>,
    delays: Vec<Duration>,
    inputs: Vec<Input>,
    is_done: bool,
}

fn run(effect: Effect, mut answer: impl FnMut(&StoreCall) -> Result<StoreReply, CallFailure>) -> Run {
    let (mut execution, mut progress) = start(effect);
    let mut run = Run::default();
    for _ in 0..1_000 {
        run.inputs.extend(progress.inputs);
        let call = match progress.next {
            Next::Done => {
                run.is_done = true;
                return run;
            }
            Next::Call(call) => call,
            Next::CallAfter(delay, call) => {
                run.delays.push(delay);
                if delay >= UNREADABLE_RETRY {
                    return run;
                }
                call
            }
        };
        progress = execution.completed(answer(&call));
        run.calls.push(call);
    }
    panic!("it does not end: {:?}", run.calls.last());
}

#[test]
fn one_unreadable_endpoint_is_found_and_its_neighbours_are_taken_up() {
    let endpoints: Vec<EndpointId> = (0..200).map(endpoint).collect();
    let culprits = [endpoint(3), endpoint(150)];
    let run = run(Effect::LoadEndpoints { generation: 1, endpoints: endpoints.clone() }, |call| match call {
        StoreCall::LoadEndpoints(asked) if asked.iter().any(|one| culprits.contains(one)) => Err(corrupt()),
        StoreCall::LoadEndpoints(_) => Ok(StoreReply::LoadEndpoints(vec![])),
        call => panic!("{call:?}"),
    });
    assert!(run.is_done);
    assert!(run.delays.is_empty(), "nobody waits for it");
    assert!(run.calls.len() <= 35, "halves, and not one by one: {}", run.calls.len());
    let (mut unreadable, mut bundle) = (Vec::new(), Vec::new());
    for input in run.inputs {
        match input {
            Input::EndpointUnreadable { generation: 1, endpoint, cause } => {
                assert_eq!(cause, "stored endpoint is not readable");
                unreadable.push(endpoint);
            }
            Input::EndpointsLoaded { generation: 1, asked, .. } => bundle.extend(asked),
            input => panic!("{input:?}"),
        }
    }
    unreadable.sort_unstable();
    bundle.sort_unstable();
    assert_eq!(unreadable, culprits);
    assert_eq!(bundle, endpoints.into_iter().filter(|one| !culprits.contains(one)).collect::<Vec<_>>());
}

#[test]
fn one_unreadable_body_is_corrupt_and_the_others_are_found() {
    let wanted: Vec<PendingSend> = (1..=64)
        .map(|seq: Seq| {
            let delivery = DeliveryId::from_bytes([u8::try_from(seq).unwrap(); 16]);
            PendingSend { endpoint: endpoint(1), delivery, seq, is_probe: false }
        })
        .collect();
    let run = run(Effect::ReadBodies { generation: 1, wanted: wanted.clone() }, |call| match call {
        StoreCall::Bodies(asked) if asked.contains(&9) => Err(corrupt()),
        StoreCall::Bodies(_) => Ok(StoreReply::Bodies(vec![])),
        call => panic!("{call:?}"),
    });
    assert!(run.is_done);
    let (mut dead, mut others) = (Vec::new(), 0);
    for input in &run.inputs {
        let Input::BodiesRead { asked, found, .. } = input else { panic!("{input:?}") };
        match found.first() {
            None => others += asked.len(),
            Some(body) => {
                assert!(matches!(body.event, Err(BodyError::Corrupt(_))));
                dead.push((asked.clone(), body.seq));
            }
        }
    }
    assert_eq!(dead, [(vec![wanted[8]], 9)]);
    assert_eq!(others, 63);
}

#[test]
fn a_store_that_is_away_is_asked_again_and_nobody_is_blamed_for_it() {
    let endpoints: Vec<EndpointId> = (0..200).map(endpoint).collect();
    let mut failures = 0;
    let run = run(Effect::LoadEndpoints { generation: 1, endpoints: endpoints.clone() }, |call| {
        failures += 1;
        match call {
            _ if failures <= 10 => Err(unavailable()),
            StoreCall::LoadEndpoints(_) => Ok(StoreReply::LoadEndpoints(vec![])),
            call => panic!("{call:?}"),
        }
    });
    assert!(run.is_done);
    let millis: Vec<u128> = run.delays.iter().map(Duration::as_millis).collect();
    assert_eq!(millis, [50, 100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000]);
    let mut bundle = Vec::new();
    for input in run.inputs {
        let Input::EndpointsLoaded { asked, .. } = input else { panic!("{input:?}") };
        bundle.extend(asked);
    }
    bundle.sort_unstable();
    assert_eq!(bundle, endpoints);
}

#[test]
fn a_window_that_cannot_be_read_waits_until_all_others_are() {
    let read = |number: u8| Effect::ReadWindow {
        generation: 1,
        endpoint: endpoint(number),
        want: WindowQuery::Fresh(Class::Rest),
        limit: 10,
    };
    let mut plan = plan((0..8).map(read).collect(), Timestamp::from_millis(0), None);
    assert_eq!(plan.executions.len(), 1, "they are read together");
    let (mut execution, mut progress) = plan.executions.pop().unwrap();
    let (mut found, mut waits) = (Vec::new(), 0);
    while waits < 3 {
        found.extend(progress.inputs.iter().map(|input| match input {
            Input::WindowRead { endpoint, .. } => *endpoint,
            input => panic!("{input:?}"),
        }));
        let call = match progress.next {
            Next::Call(call) => call,
            Next::CallAfter(delay, call) => {
                assert_eq!((delay, found.len()), (UNREADABLE_RETRY, 7), "it alone is waited for");
                waits += 1;
                call
            }
            Next::Done => panic!("one is not read yet"),
        };
        let StoreCall::Windows(asked) = call else { panic!("{call:?}") };
        let is_bad = asked.iter().any(|asked| asked.endpoint == endpoint(5));
        let rows = WindowRows { rows: vec![], more: false, seen: 0 };
        progress = execution.completed(if is_bad { Err(corrupt()) } else { Ok(StoreReply::Windows(vec![rows; asked.len()])) });
    }
    // Somebody has repaired it.
    let Next::CallAfter(..) = progress.next else { panic!("{progress:?}") };
    let rows = WindowRows { rows: vec![], more: false, seen: 0 };
    let last = execution.completed(Ok(StoreReply::Windows(vec![rows])));
    assert!(matches!(last.next, Next::Done));
    assert!(matches!(&last.inputs[..], [Input::WindowRead { endpoint: found, .. }] if *found == endpoint(5)));
}

fn attempt(seq: Seq) -> (Record, OnRecorded) {
    let attempt = AttemptRecord {
        id: AttemptId::from_bytes([u8::try_from(seq).unwrap(); 16]),
        number: 1,
        outcome: Outcome::Answered { status: 200, retry_after: None },
        response_time: Duration::ZERO,
        timings: Timings::default(),
        timeout: Duration::from_secs(1),
        preview: None,
        error: None,
        attempted_at: Timestamp::from_millis(0),
        endpoint_version: Some(1),
    };
    let state = State::Delivered { at: Timestamp::from_millis(0) };
    let recorded = DeliveryChange::Attempt { seq, attempt: Box::new(attempt), state };
    let record = Record { partition: 1, epoch: 1, endpoint: endpoint(1), recorded, lane: None, disables_endpoint: None };
    let delivery = DeliveryId::from_bytes([u8::try_from(seq).unwrap(); 16]);
    (record, OnRecorded::AttemptEnded { endpoint: endpoint(1), delivery, note: None, noticed: vec![] })
}

fn record(seqs: impl Iterator<Item = Seq>) -> Effect {
    let (records, on_recorded) = seqs.map(attempt).unzip();
    Effect::Record { generation: 1, records, on_recorded }
}

#[test]
fn a_record_that_cannot_be_written_does_not_hold_up_the_others() {
    let run = run(record(1..=20), |call| match call {
        StoreCall::Record(records) if records.iter().any(|record| record.seq() == Some(7)) => Err(corrupt()),
        StoreCall::Record(records) => Ok(StoreReply::Record(vec![RecordResult::Done; records.len()])),
        call => panic!("{call:?}"),
    });
    assert_eq!(run.delays, [UNREADABLE_RETRY], "and is tried again");
    let mut recorded = Vec::new();
    for input in run.inputs {
        let Input::Recorded { on_recorded, results, .. } = input else { panic!("{input:?}") };
        assert_eq!(on_recorded.len(), results.len());
        recorded.extend(on_recorded.into_iter().map(|on_recorded| match on_recorded {
            OnRecorded::AttemptEnded { delivery, .. } => delivery,
            after => panic!("{after:?}"),
        }));
    }
    recorded.sort_unstable();
    let others = (1..=20).filter(|seq| *seq != 7).map(|seq: u8| DeliveryId::from_bytes([seq; 16]));
    assert_eq!(recorded, others.collect::<Vec<_>>());
}

#[test]
fn a_record_whose_answer_was_lost_counts_if_the_store_has_it() {
    for lost in [|| CallFailure::Store(Error::CommitInDoubt), || CallFailure::Panicked] {
        let mut tries = 0;
        let run = run(record(1..=3), |call| match call {
            StoreCall::Record(_) => {
                tries += 1;
                // The first try has written 1 and 2; somebody else has recorded 3.
                if tries == 1 { Err(lost()) } else { Ok(StoreReply::Record(vec![RecordResult::MovedOn; 3])) }
            }
            StoreCall::DeliveriesAt(rows) => Ok(StoreReply::DeliveriesAt(rows.iter().map(|seq| delivery_row(*seq)).collect())),
            StoreCall::Attempts(delivery) => {
                let (mine, _) = attempt(Seq::from(delivery.to_bytes()[0]));
                let DeliveryChange::Attempt { attempt, .. } = mine.recorded else { panic!("it is one") };
                let other = AttemptRecord { id: AttemptId::from_bytes([99; 16]), ..*attempt.clone() };
                Ok(StoreReply::Attempts(vec![if delivery.to_bytes()[0] == 3 { other } else { *attempt }]))
            }
            call => panic!("{call:?}"),
        });
        assert!(run.is_done);
        let [Input::Recorded { results, .. }] = &run.inputs[..] else { panic!("{:?}", run.inputs) };
        assert_eq!(results, &[RecordResult::Done, RecordResult::Done, RecordResult::MovedOn]);
    }
}

#[test]
fn a_refusal_is_believed_if_no_answer_was_lost() {
    let mut tries = 0;
    let run = run(record(1..=2), |call| match call {
        StoreCall::Record(_) => {
            tries += 1;
            if tries == 1 { Err(unavailable()) } else { Ok(StoreReply::Record(vec![RecordResult::NotOwner; 2])) }
        }
        call => panic!("nothing is in doubt: {call:?}"),
    });
    assert!(matches!(&run.inputs[..], [Input::Recorded { results, .. }] if results == &[RecordResult::NotOwner; 2]));
    assert_eq!(run.calls.len(), 2, "a write is not split because the store is away");
}

#[test]
fn a_gap_is_scanned_page_by_page_and_goes_on_where_it_failed() {
    let mut asked = Vec::new();
    let run = run(Effect::ScanGap { generation: 1, after: 500 }, |call| {
        let StoreCall::Sweep { after, .. } = call else { panic!("{call:?}") };
        asked.push(*after);
        if asked.len() == 2 {
            return Err(unavailable());
        }
        let next = (*after < 700).then_some(after + 100);
        Ok(StoreReply::Sweep(SweepPage { endpoints: vec![endpoint(1)], highest: 720, next }))
    });
    assert_eq!(asked, [500, 600, 600, 700], "not from the beginning");
    assert_eq!(run.inputs.iter().filter(|input| matches!(input, Input::Work(_))).count(), 3);
    assert!(matches!(run.inputs.last(), Some(Input::GapScanned { generation: 1, through: 720 })));
}

fn delivery_row(seq: Seq) -> DeliveryRow {
    let at = Timestamp::from_millis(0);
    DeliveryRow {
        id: DeliveryId::from_bytes([u8::try_from(seq).unwrap(); 16]),
        seq,
        event: EventId::parse("evt_1").unwrap(),
        endpoint: endpoint(1),
        endpoint_url: String::new(),
        tenant: TenantId::parse("acme").unwrap(),
        partition: 1,
        event_type: EventType::parse("a").unwrap(),
        is_priority: false,
        state: State::Delivered { at },
        attempts: 1,
        ordering_key: None,
        is_head_of_key: true,
        timestamp: at,
        is_later: false,
        expires_at: None,
        last_attempt_at: Some(at),
        last_status_code: Some(200),
        last_error: None,
        replay_of: None,
        replay: None,
        replayed_as: None,
        created_at: at,
    }
}

#[test]
fn a_spike_is_looked_at_once_what_was_recorded_is_counted() {
    let see = |trigger| Effect::ReadStatistics { generation: 1, endpoint: endpoint(1), trigger: Some(trigger), shortened_at: None };
    let mut uncounted = 2;
    let spike = run(see(Trigger::Spike), |call| match call {
        StoreCall::Count => {
            uncounted -= 1;
            Ok(StoreReply::Count { is_more: uncounted > 0 })
        }
        StoreCall::Statistics(_) => Ok(StoreReply::Statistics(vec![])),
        call => panic!("{call:?}"),
    });
    let names: Vec<&str> = spike.calls.iter().map(StoreCall::name).collect();
    assert_eq!(names, ["count", "count", "statistics", "statistics"]);
    let daily = run(see(Trigger::Daily), |_| Ok(StoreReply::Statistics(vec![])));
    assert_eq!(daily.calls.len(), 2, "the day before is counted already");
}
