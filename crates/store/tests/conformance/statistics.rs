//! How endpoints have fared.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::{DeadReason, Outcome, Silence, State};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::EndpointId;
use posthaste_core::latency::LatencySketch;
use posthaste_core::time::Timestamp;
use posthaste_store::*;

use crate::world::{World, tenant};

crate::conform! {
    minutes_add_up_by_endpoint_by_tenant_and_over_all
    an_attempt_is_counted_once_however_often_it_is_recorded_and_whoever_counts
    i53_attempts_that_a_process_has_not_counted_are_counted_after_the_next_start
    old_minutes_are_swept_away
    a_damaged_minute_stays_as_it_is_and_the_others_are_counted
}

const MINUTE: Duration = Duration::from_mins(1);

fn sketch(millis: &[u64]) -> LatencySketch {
    let mut sketch = LatencySketch::default();
    for millis in millis {
        sketch.record(Duration::from_millis(*millis));
    }
    sketch
}

/// The record of an attempt that was made at this time and took so long, on a new delivery.
async fn attempted(world: &World, endpoint: &Endpoint, at: Timestamp, outcome: Outcome, state: State, millis: u64) -> Record {
    let event = world.event(endpoint.tenant.as_str(), "order.paid");
    let id = event.id.clone();
    world.publish(event).await;
    let delivery = world.deliveries_of(&id).await.into_iter().find(|row| row.endpoint == endpoint.id).unwrap();
    let took = Duration::from_millis(millis);
    let attempt = AttemptRecord { outcome, response_time: took, timeout: took, attempted_at: at, ..*world.attempt(1, 200) };
    world.record(&delivery, DeliveryChange::Attempt { seq: delivery.seq, attempt: Box::new(attempt), state })
}

/// Records an answer in each of these times, a timeout that ended its delivery after ten seconds, and a refusal that is tried again; and counts.
async fn count(world: &World, endpoint: &Endpoint, at: Timestamp, times: &[u64]) {
    let answered = |status| Outcome::Answered { status, retry_after: None };
    let dead = State::Dead { at, reason: DeadReason::PermanentFailure };
    let mut records = vec![
        attempted(world, endpoint, at, Outcome::Silent(Silence::Timeout), dead, 10_000).await,
        attempted(world, endpoint, at, answered(503), State::Waiting { due: at }, 50).await,
    ];
    for millis in times {
        records.push(attempted(world, endpoint, at, answered(200), State::Delivered { at }, *millis).await);
    }
    assert!(world.store.record(records).await.unwrap().iter().all(|recorded| *recorded == RecordResult::Done));
    count_all(world).await;
}

async fn count_all(world: &World) {
    while world.store.count().await.unwrap() {}
}

fn start(world: &World) -> Timestamp {
    let now = world.store.now().as_millis();
    Timestamp::from_millis(now - now.rem_euclid(60_000))
}

fn query(from: Timestamp) -> StatisticsQuery {
    StatisticsQuery { tenant: None, endpoint: None, from, to: from + Duration::from_hours(1), step: MINUTE * 5 }
}

async fn minutes_add_up_by_endpoint_by_tenant_and_over_all(world: World) {
    let at = start(&world);
    let (one, two, other) = (world.endpoint("acme").await, world.endpoint("acme").await, world.endpoint("globex").await);
    assert!(!world.store.count().await.unwrap(), "there is nothing yet");
    count(&world, &one, at + Duration::from_secs(3), &[5, 7]).await;
    count(&world, &two, at, &[9]).await;
    count(&world, &one, at + Duration::from_secs(59), &[300]).await;
    count(&world, &one, at, &[]).await;
    count(&world, &one, at + MINUTE * 4, &[1]).await;
    count(&world, &one, at + MINUTE * 5, &[2]).await;
    count(&world, &other, at + MINUTE * 11, &[3]).await;
    assert_eq!(world.count("uncounted_attempts"), 0);
    let ask = async |query| world.store.statistics(query).await.unwrap();
    let of_one = ask(StatisticsQuery { endpoint: Some(one.id), ..query(at) }).await;
    assert_eq!(
        of_one.iter().map(|step| step.from).collect::<Vec<_>>(),
        [at, at + MINUTE * 5],
        "steps without anything are left out"
    );
    let first = Counts { attempts: 12, successes: 4, timeouts: 4, delivered: 4, dead: 4, retried: 4 };
    assert_eq!(of_one[0].counts, first);
    assert_eq!((&of_one[0].successes, &of_one[0].timeouts), (&sketch(&[1, 5, 7, 300]), &sketch(&[10_000; 4])));
    let of_acme = ask(StatisticsQuery { tenant: Some(tenant("acme")), ..query(at) }).await;
    assert_eq!(of_acme.iter().map(|step| step.counts.successes).collect::<Vec<_>>(), [5, 1]);
    let of_all = ask(query(at)).await;
    assert_eq!(
        of_all.iter().map(|step| (step.from, step.counts.successes)).collect::<Vec<_>>(),
        [(at, 5), (at + MINUTE * 5, 1), (at + MINUTE * 10, 1)]
    );
    let of_another = StatisticsQuery { endpoint: Some(one.id), tenant: Some(tenant("globex")), ..query(at) };
    assert_eq!(ask(of_another).await, [], "another tenant's endpoint has no statistics");
    let narrow = StatisticsQuery { from: at + MINUTE * 4, to: at + MINUTE * 5, step: Duration::ZERO, ..query(at) };
    let narrow = ask(narrow).await;
    assert_eq!(narrow.iter().map(|step| (step.from, step.counts.successes)).collect::<Vec<_>>(), [(at + MINUTE * 4, 1)]);
}

async fn an_attempt_is_counted_once_however_often_it_is_recorded_and_whoever_counts(world: World) {
    let at = start(&world);
    let endpoints = [world.endpoint("acme").await, world.endpoint("globex").await];
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..20usize {
        let answered = Outcome::Answered { status: 200, retry_after: None };
        let record = attempted(&world, &endpoints[n % 2], at, answered, State::Delivered { at }, 5).await;
        let store = Arc::clone(&world.store);
        callers.spawn(async move {
            store.record(vec![record.clone()]).await.unwrap();
            store.count().await.unwrap();
            // As after an answer that was lost.
            assert_eq!(store.record(vec![record]).await.unwrap(), [RecordResult::MovedOn]);
            store.count().await.unwrap();
        });
    }
    callers.join_all().await;
    count_all(&world).await;
    let all = world.store.statistics(query(at)).await.unwrap();
    assert_eq!((all.len(), all[0].counts.attempts, all[0].successes.count()), (1, 20, 20));
    let one = world.store.statistics(StatisticsQuery { endpoint: Some(endpoints[1].id), ..query(at) }).await.unwrap();
    assert_eq!((one.len(), one[0].counts.attempts, one[0].successes.count()), (1, 10, 10));
}

async fn i53_attempts_that_a_process_has_not_counted_are_counted_after_the_next_start(world: World) {
    let at = start(&world);
    let endpoint = world.endpoint("acme").await;
    let answered = Outcome::Answered { status: 200, retry_after: None };
    let record = attempted(&world, &endpoint, at, answered, State::Delivered { at }, 5).await;
    assert_eq!(world.store.record(vec![record]).await.unwrap(), [RecordResult::Done]);
    let options = world.options.clone();
    let world = world.reopened(options).await;
    count_all(&world).await;
    let of_one = world.store.statistics(StatisticsQuery { endpoint: Some(endpoint.id), ..query(at) }).await.unwrap();
    assert_eq!(of_one.iter().map(|step| step.counts.delivered).sum::<u64>(), 1);
}

async fn old_minutes_are_swept_away(world: World) {
    let at = start(&world);
    let endpoint = world.endpoint("acme").await;
    count(&world, &endpoint, at, &[2]).await;
    let old = at - MINUTES_KEPT - MINUTE;
    for table in ["minutes", "minutes_of_tenants"] {
        let columns = "attempts, successes, timeouts, delivered, dead, retried, success_times, timeout_times";
        let whose = if table == "minutes" { "endpoint, tenant" } else { "tenant" };
        world.tamper(&format!(
            "INSERT INTO {table} ({whose}, minute_ms, {columns}) SELECT {whose}, {}, {columns} FROM {table}",
            old.as_millis()
        ));
    }
    let swept = world.store.clean_up(Housekeeping::default()).await.unwrap();
    assert_eq!(swept.minutes, 3, "of the endpoint, of its tenant, of all");
    while !world.store.clean_up(Housekeeping::default()).await.unwrap().is_nothing() {}
    let whole = StatisticsQuery { from: old, to: at + MINUTE, ..query(at) };
    assert_eq!(world.store.statistics(whole).await.unwrap().iter().map(|step| step.counts.successes).sum::<u64>(), 1);
}

async fn a_damaged_minute_stays_as_it_is_and_the_others_are_counted(world: World) {
    let at = start(&world);
    let (damaged, well) = (world.endpoint("acme").await, world.endpoint("acme").await);
    count(&world, &damaged, at, &[1]).await;
    let bytes = if world.is_postgres() { r"'\x0105'::bytea" } else { "x'0105'" };
    world.tamper(&format!("UPDATE minutes SET success_times = {bytes}"));
    let ask = async |endpoint: Option<EndpointId>| world.store.statistics(StatisticsQuery { endpoint, ..query(at) }).await;
    assert!(matches!(ask(Some(damaged.id)).await, Err(Error::Corrupt { what: "latency sketch" })));
    count(&world, &damaged, at, &[1]).await;
    count(&world, &well, at, &[1]).await;
    assert!(matches!(ask(Some(damaged.id)).await, Err(Error::Corrupt { .. })), "it is not written over");
    assert_eq!(ask(Some(well.id)).await.unwrap()[0].counts.successes, 1);
    assert_eq!(ask(None).await.unwrap()[0].counts.successes, 3);
}
