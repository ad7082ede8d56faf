//! How endpoints have fared.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::id::EndpointId;
use posthaste_core::latency::LatencySketch;
use posthaste_core::time::Timestamp;
use posthaste_store::*;

use crate::world::{World, tenant};

crate::conform! {
    minutes_add_up_by_endpoint_by_tenant_and_over_all
    counts_from_many_sides_are_all_there
    old_minutes_are_swept_away
    a_sketch_that_cannot_be_read_is_said_to_be_damaged
}

const MINUTE: Duration = Duration::from_mins(1);

fn sketch(millis: &[u64]) -> LatencySketch {
    let mut sketch = LatencySketch::default();
    for millis in millis {
        sketch.record(Duration::from_millis(*millis));
    }
    sketch
}

fn minute(endpoint: EndpointId, of: &str, at: Timestamp, times: &[u64]) -> Minute {
    let n = times.len() as u64;
    Minute {
        endpoint,
        tenant: tenant(of),
        minute: at,
        counts: Counts { attempts: n + 2, successes: n, timeouts: 1, delivered: n, dead: 1, retried: 1 },
        successes: sketch(times),
        timeouts: sketch(&[10_000]),
    }
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
    let id = || EndpointId::from_unique(world.store.unique());
    let (one, two, other) = (id(), id(), id());
    world.store.count(vec![]).await.unwrap();
    world.store.count(vec![minute(one, "acme", at, &[5, 7]), minute(two, "acme", at, &[9])]).await.unwrap();
    world
        .store
        .count(vec![
            minute(one, "acme", at, &[300]),
            minute(one, "acme", at, &[]),
            minute(one, "acme", at + MINUTE * 4, &[1]),
            minute(one, "acme", at + MINUTE * 5, &[2]),
            minute(other, "globex", at + MINUTE * 11, &[3]),
        ])
        .await
        .unwrap();
    let ask = async |query| world.store.statistics(query).await.unwrap();
    let of_one = ask(StatisticsQuery { endpoint: Some(one), ..query(at) }).await;
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
    let of_another = StatisticsQuery { endpoint: Some(one), tenant: Some(tenant("globex")), ..query(at) };
    assert_eq!(ask(of_another).await, [], "another tenant's endpoint has no statistics");
    let narrow = StatisticsQuery { from: at + MINUTE * 4, to: at + MINUTE * 5, step: Duration::ZERO, ..query(at) };
    let narrow = ask(narrow).await;
    assert_eq!(narrow.iter().map(|step| (step.from, step.counts.successes)).collect::<Vec<_>>(), [(at + MINUTE * 4, 1)]);
}

async fn counts_from_many_sides_are_all_there(world: World) {
    let at = start(&world);
    let endpoints: Arc<Vec<EndpointId>> = Arc::new((0..5).map(|_| EndpointId::from_unique(world.store.unique())).collect());
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..20usize {
        let (store, endpoints) = (Arc::clone(&world.store), Arc::clone(&endpoints));
        // In another order each time, because two that lock in other orders would wait for each other.
        let minutes = (0..5).map(|m| minute(endpoints[(m * 2 + n) % 5], "acme", at, &[m as u64])).collect();
        callers.spawn(async move { store.count(minutes).await.unwrap() });
    }
    callers.join_all().await;
    let all = world.store.statistics(query(at)).await.unwrap();
    assert_eq!((all.len(), all[0].counts.attempts, all[0].successes.count()), (1, 300, 100));
    let one = world.store.statistics(StatisticsQuery { endpoint: Some(endpoints[3]), ..query(at) }).await.unwrap();
    assert_eq!((one.len(), one[0].counts.attempts, one[0].successes.count()), (1, 60, 20));
}

async fn old_minutes_are_swept_away(world: World) {
    let (at, id) = (start(&world), EndpointId::from_unique(world.store.unique()));
    let old = at - MINUTES_KEPT - MINUTE;
    world.store.count(vec![minute(id, "acme", old, &[1]), minute(id, "acme", at, &[2])]).await.unwrap();
    let swept = world.store.sweep_away(Housekeeping::default()).await.unwrap();
    assert_eq!(swept.minutes, 3, "of the endpoint, of its tenant, of all");
    assert!(world.store.sweep_away(Housekeeping::default()).await.unwrap().is_nothing());
    let whole = StatisticsQuery { from: old, to: at + MINUTE, ..query(at) };
    assert_eq!(world.store.statistics(whole).await.unwrap().iter().map(|step| step.counts.successes).sum::<u64>(), 1);
}

async fn a_sketch_that_cannot_be_read_is_said_to_be_damaged(world: World) {
    let (at, id) = (start(&world), EndpointId::from_unique(world.store.unique()));
    world.store.count(vec![minute(id, "acme", at, &[1])]).await.unwrap();
    let damaged = if world.is_postgres() { r"'\x0105'::bytea" } else { "x'0105'" };
    world.tamper(&format!("UPDATE minutes SET success_times = {damaged}"));
    let asked = world.store.statistics(StatisticsQuery { endpoint: Some(id), ..query(at) }).await;
    assert!(matches!(asked, Err(Error::Corrupt { what: "latency sketch" })), "{asked:?}");
    let added = world.store.count(vec![minute(id, "acme", at, &[1])]).await;
    assert!(matches!(added, Err(Error::Corrupt { .. })), "it is not written over: {added:?}");
    assert_eq!(world.store.statistics(query(at)).await.unwrap()[0].counts.successes, 1, "all or none");
}
