//! What an owner reads and writes: windows, records, lanes.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::circuit::Breaker;
use posthaste_core::delivery::{CancelReason, DeadReason, Outcome, State};
use posthaste_core::endpoint::Status;
use posthaste_core::event::{Event, Timing};
use posthaste_core::health::DisableReason;
use posthaste_core::scheduler::{Class, LaneMemory, WindowQuery};
use posthaste_core::timeout::Adaptive;
use posthaste_store::*;

use crate::world::{World, key, later};

crate::conform! {
    an_attempt_is_recorded_once_and_moves_its_delivery_on
    what_ends_without_an_attempt_ends_once
    a_record_under_an_old_epoch_changes_nothing_and_harms_nobody_else
    a_record_for_a_delivery_that_is_not_there_changes_nothing
    windows_hold_each_queue_in_its_own_order
    windows_asked_for_together_are_answered_in_their_order
    only_the_head_of_a_key_is_read
    endpoints_with_work_are_found
    a_sweep_names_who_was_given_something
    a_sweep_looks_at_so_many_rows_and_says_where_to_go_on
    a_lane_is_remembered_with_its_record
    a_record_that_is_retried_late_does_not_overwrite_a_newer_lane_state
    a_410_disables_with_the_attempt_that_said_so
    many_records_of_one_call_are_each_judged_for_themselves
    i39_a_damaged_payload_is_never_given_out
    texts_that_no_database_likes_are_kept
    who_called_a_delivery_off_is_written_with_it
    the_head_of_a_key_is_the_oldest_that_is_unfinished
    an_erased_payload_is_told_from_a_damaged_one
}

async fn an_attempt_is_recorded_once_and_moves_its_delivery_on(world: World) {
    world.endpoint("acme").await;
    let delivery = world.delivery("acme").await;
    let due = later(world.store.now(), 30);
    assert_eq!(world.try_once(&delivery, 1, 503, State::Waiting { due }).await, RecordResult::Done);
    let again = world.try_once(&delivery, 1, 503, State::Waiting { due }).await;
    assert_eq!(again, RecordResult::MovedOn, "repeating it is harmless");
    assert_eq!(world.try_once(&delivery, 3, 200, State::Delivered { at: due }).await, RecordResult::MovedOn, "2 comes before 3");
    let row = world.row(&delivery).await;
    assert_eq!((row.state, row.attempts, row.is_later, row.last_status_code), (State::Waiting { due }, 1, true, Some(503)));
    assert_eq!(world.try_once(&delivery, 2, 200, State::Delivered { at: due }).await, RecordResult::Done);
    assert_eq!(world.try_once(&delivery, 3, 200, State::Delivered { at: due }).await, RecordResult::MovedOn, "it has ended");
    let attempts = world.store.attempts(delivery.id).await.unwrap();
    assert_eq!(attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2]);
    let expected = world.attempt(1, 503);
    let first = &attempts[0];
    assert_eq!(
        (first.outcome, first.response_time, first.timings, first.timeout, &first.preview, &first.error),
        (
            Outcome::Answered { status: 503, retry_after: None },
            expected.response_time,
            expected.timings,
            expected.timeout,
            &expected.preview,
            &None
        )
    );
    assert!(world.waiting(delivery.endpoint).await.is_empty(), "nothing waits");
}

async fn what_ends_without_an_attempt_ends_once(world: World) {
    world.endpoint("acme").await;
    let at = world.store.now();
    let dead = State::Dead { at, reason: DeadReason::Expired };
    let cancelled = State::Cancelled { at, reason: CancelReason::Requested };
    let delivery = world.delivery("acme").await;
    let record = |state| world.record(&delivery, DeliveryChange::Moved { seq: delivery.seq, state, audit: None });
    let sooner = State::Waiting { due: later(at, 1) };
    assert_eq!(world.store.record(vec![record(sooner)]).await.unwrap(), [RecordResult::Done], "made due at another time");
    assert_eq!(world.row(&delivery).await.state, sooner);
    assert_eq!(world.store.record(vec![record(dead)]).await.unwrap(), [RecordResult::Done]);
    assert_eq!(world.store.record(vec![record(cancelled)]).await.unwrap(), [RecordResult::MovedOn]);
    let row = world.row(&delivery).await;
    assert_eq!((row.state, row.attempts), (dead, 0));
}

async fn a_record_under_an_old_epoch_changes_nothing_and_harms_nobody_else(world: World) {
    world.endpoint("acme").await;
    let (old, present) = (world.delivery("acme").await, world.delivery("acme").await);
    let state = State::Delivered { at: world.store.now() };
    let record = |delivery: &DeliveryRow, epoch| Record {
        epoch,
        ..world.record(delivery, DeliveryChange::Attempt { seq: delivery.seq, attempt: world.attempt(1, 200), state })
    };
    let records = vec![record(&old, world.epoch - 1), record(&present, world.epoch), record(&old, world.epoch + 1)];
    let answers = world.store.record(records).await.unwrap();
    assert_eq!(answers, [RecordResult::NotOwner, RecordResult::Done, RecordResult::NotOwner]);
    assert!(matches!(world.row(&old).await.state, State::Waiting { .. }));
    assert_eq!(world.store.attempts(old.id).await.unwrap(), []);
    assert_eq!(world.row(&present).await.state, state);
}

async fn a_record_for_a_delivery_that_is_not_there_changes_nothing(world: World) {
    world.endpoint("acme").await;
    let delivery = world.delivery("acme").await;
    let nowhere = DeliveryRow { seq: 123_456_789, ..delivery };
    let state = State::Delivered { at: world.store.now() };
    assert_eq!(world.try_once(&nowhere, 1, 200, state).await, RecordResult::MovedOn);
}

async fn windows_hold_each_queue_in_its_own_order(world: World) {
    let endpoint = world.endpoint("acme").await;
    let now = world.store.now();
    // Published in another order than they happened.
    let mut fresh = Vec::new();
    for seconds_ago in [10u64, 30, 20] {
        let timestamp = now - Duration::from_secs(seconds_ago);
        fresh.push(world.delivery_of(Event { timestamp, ..world.event("acme", "order.paid") }).await.seq);
    }
    let mut waiting = Vec::new();
    for seconds in [300u64, 100, 200] {
        let timing = Timing::new(now, Some(later(now, seconds)), None).unwrap();
        waiting.push(world.delivery_of(Event { timing, ..world.event("acme", "order.paid") }).await.seq);
    }
    let failed = world.delivery("acme").await;
    world.try_once(&failed, 1, 500, State::Waiting { due: later(now, 150) }).await;
    let seqs = |rows: WindowRows| rows.rows.into_iter().map(|row| row.seq).collect::<Vec<_>>();
    let read = world.window(endpoint.id, WindowQuery::Fresh(Class::Exempt), 10).await;
    assert!(!read.more && read.seen >= failed.seq);
    assert_eq!(seqs(read), [fresh[1], fresh[2], fresh[0]], "the oldest first");
    let read = world.window(endpoint.id, WindowQuery::Fresh(Class::Exempt), 2).await;
    assert!(read.more);
    assert_eq!(seqs(read), [fresh[1], fresh[2]]);
    let read = world.window(endpoint.id, WindowQuery::Later(Class::Exempt), 10).await;
    assert_eq!(read.rows[1].attempts, 1);
    assert_eq!(seqs(read), [waiting[1], failed.seq, waiting[2], waiting[0]], "whoever is due first");
    assert!(seqs(world.window(endpoint.id, WindowQuery::Fresh(Class::Rest), 10).await).is_empty());
    let exact = world.window(endpoint.id, WindowQuery::Later(Class::Exempt), 4).await;
    assert!(!exact.more, "just as many as were asked for");
}

async fn windows_asked_for_together_are_answered_in_their_order(world: World) {
    let [one, other] = [world.endpoint("acme").await.id, world.endpoint("globex").await.id];
    let [first, second] = [world.delivery("acme").await.seq, world.delivery("globex").await.seq];
    let asked = |endpoint, want, limit| WindowRequest { endpoint, want, limit };
    let windows = vec![
        asked(other, WindowQuery::Fresh(Class::Exempt), 10),
        asked(one, WindowQuery::Later(Class::Exempt), 10),
        asked(one, WindowQuery::Fresh(Class::Exempt), 10),
        asked(other, WindowQuery::Fresh(Class::Exempt), 0),
    ];
    let answers = world.store.windows(windows).await.unwrap();
    let found: Vec<_> = answers.iter().map(|rows| (rows.rows.iter().map(|row| row.seq).collect::<Vec<_>>(), rows.more)).collect();
    assert_eq!(found, [(vec![second], false), (vec![], false), (vec![first], false), (vec![], true)]);
    assert!(answers.iter().all(|rows| rows.seen == second));
    assert_eq!(world.store.windows(vec![]).await.unwrap(), []);
}

async fn only_the_head_of_a_key_is_read(world: World) {
    let endpoint = world.endpoint("acme").await;
    let mut rows = Vec::new();
    for name in ["b", "a", "b", "c", "a"] {
        rows.push(world.delivery_of(Event { ordering_key: key(name), ..world.event("acme", "order.paid") }).await);
    }
    let heads = |rows: WindowRows| rows.rows.into_iter().map(|row| row.seq).collect::<Vec<_>>();
    let all = WindowQuery::Heads { after: None };
    assert_eq!(heads(world.window(endpoint.id, all.clone(), 10).await), [rows[1].seq, rows[0].seq, rows[3].seq]);
    let cut = world.window(endpoint.id, all.clone(), 2).await;
    assert!(cut.more);
    assert_eq!(heads(cut), [rows[1].seq, rows[0].seq]);
    assert_eq!(heads(world.window(endpoint.id, WindowQuery::Heads { after: key("b") }, 10).await), [rows[3].seq]);
    assert_eq!(heads(world.window(endpoint.id, WindowQuery::Head(key("b").unwrap()), 10).await), [rows[0].seq]);
    assert!(heads(world.window(endpoint.id, WindowQuery::Head(key("z").unwrap()), 10).await).is_empty());
    // A retry keeps its place.
    world.try_once(&rows[0], 1, 500, State::Waiting { due: later(world.store.now(), 3600) }).await;
    assert_eq!(heads(world.window(endpoint.id, WindowQuery::Head(key("b").unwrap()), 10).await), [rows[0].seq]);
    world.try_once(&rows[0], 2, 200, State::Delivered { at: world.store.now() }).await;
    assert_eq!(heads(world.window(endpoint.id, WindowQuery::Head(key("b").unwrap()), 10).await), [rows[2].seq]);
}

async fn endpoints_with_work_are_found(world: World) {
    let mut expected = Vec::new();
    for (of, with_key) in [("acme", false), ("globex", true), ("initech", false)] {
        let endpoint = world.endpoint(of).await;
        let ordering_key = if with_key { key("k") } else { None };
        world.delivery_of(Event { ordering_key, ..world.event(of, "order.paid") }).await;
        expected.push(endpoint.id);
    }
    world.endpoint("idle").await;
    let done = world.endpoint("done").await;
    let delivery = world.delivery("done").await;
    world.deliver(&delivery).await;
    assert_eq!(delivery.endpoint, done.id);
    expected.sort_unstable();
    assert_eq!(world.store.work(None, 10).await.unwrap(), expected);
    assert_eq!(world.store.work(None, 2).await.unwrap(), expected[..2]);
    assert_eq!(world.store.work(Some(expected[0]), 10).await.unwrap(), expected[1..]);
}

async fn a_sweep_names_who_was_given_something(world: World) {
    let (first, second) = (world.endpoint("acme").await, world.endpoint("globex").await);
    let row = world.delivery("acme").await;
    let before = world.store.sweep(0, 10).await.unwrap();
    assert_eq!((before.endpoints, before.highest, before.next), (vec![first.id], row.seq, None));
    world.delivery("globex").await;
    let since = world.store.sweep(row.seq, 10).await.unwrap();
    assert_eq!(since.endpoints, [second.id]);
    assert_eq!(world.store.sweep(since.highest, 10).await.unwrap().endpoints, []);
}

async fn a_sweep_looks_at_so_many_rows_and_says_where_to_go_on(world: World) {
    let (first, second) = (world.endpoint("acme").await, world.endpoint("globex").await);
    let mut rows = Vec::new();
    for _ in 0..5 {
        rows.push(world.delivery("acme").await);
    }
    rows.push(world.delivery("globex").await);
    // What has ended is looked at, and not named.
    for row in &rows[..2] {
        world.deliver(row).await;
    }
    let (mut after, mut pages, mut found) = (0, 0, Vec::new());
    loop {
        let page = world.store.sweep(after, 2).await.unwrap();
        assert_eq!(page.highest, rows[5].seq);
        pages += 1;
        let mut endpoints = page.endpoints;
        endpoints.sort_unstable();
        found.push(endpoints);
        let Some(next) = page.next else { break };
        assert!(next > after, "it goes on");
        after = next;
    }
    let mut both = vec![first.id, second.id];
    both.sort_unstable();
    assert_eq!(found, [vec![], vec![first.id], both, vec![]]);
    assert_eq!((pages, after), (4, rows[5].seq));
}

async fn a_lane_is_remembered_with_its_record(world: World) {
    let endpoint = world.endpoint("acme").await;
    assert_eq!(world.store.lane(endpoint.id).await.unwrap(), None);
    let delivery = world.delivery("acme").await;
    let now = world.store.now();
    let breaker = Breaker::Open { since: now, probe_at: later(now, 60), failures: 5 };
    let memory = LaneMemory { breaker, held_until: Some(later(now, 9)), slow_start: Some(3), ..LaneMemory::new() };
    let lane = Some(LaneState { memory, timeout: Adaptive::default(), version: 1 });
    let recorded =
        DeliveryChange::Attempt { seq: delivery.seq, attempt: world.attempt(1, 500), state: State::Waiting { due: now } };
    let record = Record { lane: lane.clone(), ..world.record(&delivery, recorded) };
    assert_eq!(world.store.record(vec![record.clone()]).await.unwrap(), [RecordResult::Done]);
    assert_eq!(world.store.lane(endpoint.id).await.unwrap(), lane);
    let stale = LaneState { memory: LaneMemory::new(), timeout: Adaptive::default(), version: 2 };
    let stale = Record { lane: Some(stale), ..record };
    assert_eq!(world.store.record(vec![stale]).await.unwrap(), [RecordResult::MovedOn]);
    assert_eq!(world.store.lane(endpoint.id).await.unwrap(), lane, "what was refused has changed nothing");
    let alone = LaneState { memory: LaneMemory::new(), timeout: Adaptive::default(), version: 3 };
    let record = Record { lane: Some(alone.clone()), ..world.record(&delivery, DeliveryChange::Nothing) };
    assert_eq!(world.store.record(vec![record]).await.unwrap(), [RecordResult::Done]);
    assert_eq!(world.store.lane(endpoint.id).await.unwrap(), Some(alone));
}

async fn a_record_that_is_retried_late_does_not_overwrite_a_newer_lane_state(world: World) {
    let endpoint = world.endpoint("acme").await;
    let (first, second) = (world.delivery("acme").await, world.delivery("acme").await);
    let now = world.store.now();
    let lane = |failures: u32, version: u64| {
        let memory = LaneMemory { breaker: Breaker::Closed { failures }, ..LaneMemory::new() };
        LaneState { memory, timeout: Adaptive::default(), version }
    };
    let tried = |delivery: &DeliveryRow, lane: LaneState| {
        let attempt = world.attempt(1, 500);
        let recorded = DeliveryChange::Attempt { seq: delivery.seq, attempt, state: State::Waiting { due: now } };
        Record { lane: Some(lane), ..world.record(delivery, recorded) }
    };
    let only = |lane: LaneState| Record { lane: Some(lane), ..world.record(&first, DeliveryChange::Nothing) };
    // The second failure is written first, because the record of the first had to be retried.
    assert_eq!(world.store.record(vec![tried(&second, lane(2, 8))]).await.unwrap(), [RecordResult::Done]);
    assert_eq!(world.store.record(vec![tried(&first, lane(1, 7))]).await.unwrap(), [RecordResult::Done], "the attempt is kept");
    assert_eq!(world.store.lane(endpoint.id).await.unwrap(), Some(lane(2, 8)));
    // Also within one call, and the same once more.
    let both = vec![only(lane(4, 10)), only(lane(3, 9)), only(lane(5, 10))];
    assert_eq!(world.store.record(both).await.unwrap(), [RecordResult::Done; 3]);
    let stored = world.store.lane(endpoint.id).await.unwrap().unwrap();
    assert_eq!(stored.version, 10);
    assert_ne!(stored, lane(3, 9));
    let bundle = world.store.load_endpoints(vec![endpoint.id]).await.unwrap();
    assert_eq!(bundle[0].lane.as_ref().map(|lane| lane.version), Some(10), "the next owner goes on from there");
}

async fn a_410_disables_with_the_attempt_that_said_so(world: World) {
    let endpoint = world.endpoint("acme").await;
    let delivery = world.delivery("acme").await;
    let number = world.store.configuration_number().await.unwrap();
    let state = State::Dead { at: world.store.now(), reason: DeadReason::EndpointGone };
    let recorded = DeliveryChange::Attempt { seq: delivery.seq, attempt: world.attempt(1, 410), state };
    let record = Record { disables_endpoint: Some(DisableReason::Gone), ..world.record(&delivery, recorded) };
    assert_eq!(world.store.record(vec![record]).await.unwrap(), [RecordResult::Done]);
    assert_eq!(world.store.endpoint(None, endpoint.id).await.unwrap().unwrap().endpoint.status, Status::Disabled);
    assert!(world.store.configuration_number().await.unwrap() > number, "others hear of it");
    let audit = world.store.audit(None, None, 1).await.unwrap().remove(0).audit;
    assert_eq!((audit.action.as_str(), audit.disable_reason()), (AUTO_DISABLED, Some(DisableReason::Gone)));
    assert_eq!(world.publish(world.event("acme", "order.paid")).await, Published::Made { deliveries: 0 });
}

async fn many_records_of_one_call_are_each_judged_for_themselves(world: World) {
    world.endpoint("acme").await;
    let delivery = world.delivery("acme").await;
    let now = world.store.now();
    let attempt = |number, state| {
        let attempt = world.attempt(number, 500);
        world.record(&delivery, DeliveryChange::Attempt { seq: delivery.seq, attempt, state })
    };
    let waiting = State::Waiting { due: now };
    let records = vec![attempt(1, waiting), attempt(1, waiting), attempt(2, waiting), attempt(3, State::Delivered { at: now })];
    let answers = world.store.record(records).await.unwrap();
    assert_eq!(answers, [RecordResult::Done, RecordResult::MovedOn, RecordResult::Done, RecordResult::Done]);
    assert_eq!(world.store.attempts(delivery.id).await.unwrap().len(), 3);
    // And from many callers at once.
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let delivery = world.delivery("acme").await;
        let (store, attempt) = (Arc::clone(&world.store), world.attempt(1, 200));
        let recorded = DeliveryChange::Attempt { seq: delivery.seq, attempt, state: State::Delivered { at: now } };
        let record = world.record(&delivery, recorded);
        callers.spawn(async move { store.record(vec![record]).await.unwrap() });
    }
    assert!(callers.join_all().await.iter().all(|answer| answer == &[RecordResult::Done]));
    assert!(world.waiting(delivery.endpoint).await.is_empty());
}

async fn i39_a_damaged_payload_is_never_given_out(world: World) {
    world.endpoint("acme").await;
    let (whole, damaged) = (world.delivery("acme").await, world.delivery("acme").await);
    world.tamper(&format!("UPDATE events SET data = '{{ \"amount\": 9.00 }}' WHERE id = '{}'", damaged.event));
    let bodies = world.store.bodies(vec![whole.seq, damaged.seq]).await.unwrap();
    assert!(bodies[0].event.is_ok());
    assert!(matches!(bodies[1].event, Err(BodyError::Corrupt(Error::Corrupt { .. }))));
}

async fn texts_that_no_database_likes_are_kept(world: World) {
    world.endpoint("acme").await;
    let delivery = world.delivery("acme").await;
    let odd = "\u{0}\r\n\t\u{7f}\u{feff}'\";-- \u{1F600}\u{202e}";
    let attempt = Box::new(AttemptRecord { preview: Some(odd.to_owned()), error: Some(odd.to_owned()), ..*world.attempt(1, 200) });
    let state = State::Delivered { at: world.store.now() };
    let record = world.record(&delivery, DeliveryChange::Attempt { seq: delivery.seq, attempt, state });
    assert_eq!(world.store.record(vec![record]).await.unwrap(), [RecordResult::Done]);
    let kept = world.store.attempts(delivery.id).await.unwrap().remove(0).preview.unwrap();
    assert_eq!(kept.replace('\u{fffd}', "\u{0}"), odd, "a NUL may have been replaced, and nothing else");
}

async fn who_called_a_delivery_off_is_written_with_it(world: World) {
    world.endpoint("acme").await;
    let (called_off, other, ended) = (world.delivery("acme").await, world.delivery("acme").await, world.delivery("acme").await);
    world.deliver(&ended).await;
    let before = world.store.audit(None, None, 100).await.unwrap().len();
    let at = world.store.now();
    let state = State::Cancelled { at, reason: CancelReason::Requested };
    let moved = |row: &DeliveryRow, action: &str| {
        let audit = Some(Box::new(world.audit(action)));
        world.record(row, DeliveryChange::Moved { seq: row.seq, state, audit })
    };
    let old = Record { epoch: world.epoch + 9, ..moved(&other, "of a stranger") };
    let records = vec![moved(&called_off, "cancel"), moved(&ended, "too late"), old];
    let answers = world.store.record(records).await.unwrap();
    assert_eq!(answers, [RecordResult::Done, RecordResult::MovedOn, RecordResult::NotOwner]);
    assert_eq!(world.store.record(vec![moved(&called_off, "again")]).await.unwrap(), [RecordResult::MovedOn]);
    let audit = world.store.audit(None, None, 100).await.unwrap();
    assert_eq!(audit.len(), before + 1, "only what was done is told");
    assert_eq!(audit[0].audit, world.audit("cancel"));
    assert_eq!(world.row(&called_off).await.state, state);
}

async fn the_head_of_a_key_is_the_oldest_that_is_unfinished(world: World) {
    world.endpoint("acme").await;
    let mut rows = Vec::new();
    for ordering_key in [key("a"), key("a"), key("b"), None, key("a")] {
        rows.push(world.delivery_of(Event { ordering_key, ..world.event("acme", "order.paid") }).await);
    }
    let heads = async || {
        let mut heads = Vec::new();
        for row in &rows {
            heads.push(world.row(row).await.is_head_of_key);
        }
        heads
    };
    assert_eq!(heads().await, [true, false, true, true, false]);
    world.deliver(&rows[0]).await;
    assert_eq!(heads().await, [true, true, true, true, false], "nothing older than the second is unfinished");
    world.deliver(&rows[4]).await;
    assert_eq!(heads().await, [true, true, true, true, false], "the second is older, and waits");
    let query = DeliveryQuery { endpoint: Some(rows[0].endpoint), limit: 10, ..DeliveryQuery::default() };
    let listed = world.store.deliveries(query).await.unwrap().rows;
    assert_eq!(listed.iter().rev().map(|row| row.is_head_of_key).collect::<Vec<_>>(), heads().await);
}

async fn an_erased_payload_is_told_from_a_damaged_one(world: World) {
    world.endpoint("acme").await;
    let (erased, whole) = (world.delivery("acme").await, world.delivery("acme").await);
    assert!(world.store.erase(None, erased.event.clone(), world.audit("erase")).await.unwrap());
    let bodies = world.store.bodies(vec![erased.seq, whole.seq]).await.unwrap();
    assert!(matches!(bodies[0].event, Err(BodyError::Erased)));
    assert!(bodies[1].event.is_ok());
}
