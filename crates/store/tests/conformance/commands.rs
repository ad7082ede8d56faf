//! What owners are asked to do, and what they show of their lanes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::bucket::Bucket;
use posthaste_core::circuit::Breaker;
use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::scheduler::LaneMemory;
use posthaste_core::text::{Label, Labels};
use posthaste_core::timeout::Adaptive;
use posthaste_store::*;

use crate::world::{World, key, later, tenant};

crate::conform! {
    a_command_reaches_the_owner_and_its_answer_the_asker
    every_kind_of_command_arrives_as_it_was_given
    nobody_who_listens_is_unavailable
    a_command_that_its_owner_drops_is_unavailable_at_once
    a_change_is_applied_once_its_owner_says_so
    whoever_listens_last_is_asked
    what_is_shown_of_lanes_is_the_youngest
}

fn partition(of: &str) -> Partition {
    partition_of(&tenant(of))
}

async fn a_command_reaches_the_owner_and_its_answer_the_asker(world: World) {
    world.endpoint("acme").await;
    let delivery = world.delivery("acme").await;
    let mut commands = world.store.commands(world.node);
    let mut askers = tokio::task::JoinSet::new();
    for n in 0..20 {
        let (store, audit) = (Arc::clone(&world.store), world.audit(&format!("cancel {n}")));
        let command = Command::CancelDelivery { delivery: delivery.id, audit };
        askers.spawn(async move { (n, store.command(partition("acme"), command).await.unwrap()) });
    }
    let owner = tokio::spawn(async move {
        for _ in 0..20 {
            let CommandRequest { command, partition: at, answer } = commands.next().await.unwrap();
            let Command::CancelDelivery { delivery, audit } = command else { panic!("{command:?}") };
            assert_eq!((at, delivery.to_string().is_empty()), (partition("acme"), false));
            let n = audit.action.strip_prefix("cancel ").unwrap().parse::<i64>().unwrap();
            answer.send(CommandOutcome::NotBefore(posthaste_core::time::Timestamp::from_millis(n))).unwrap();
        }
    });
    let began = Instant::now();
    while let Some(answered) = askers.join_next().await {
        let (n, answer) = answered.unwrap();
        assert_eq!(answer, CommandOutcome::NotBefore(posthaste_core::time::Timestamp::from_millis(n)), "each gets its own answer");
    }
    assert!(began.elapsed() < COMMAND_MAX, "{:?}", began.elapsed());
    owner.await.unwrap();
}

async fn every_kind_of_command_arrives_as_it_was_given(world: World) {
    let mut event = world.event("acme", "order.paid");
    event.labels = Labels::new(vec![Label::parse("a").unwrap(), Label::parse("b").unwrap()]).unwrap();
    event.ordering_key = key("k");
    let audit = world.audit("cancel");
    let delivery = DeliveryId::from_unique(world.store.unique());
    let given = [
        Command::CancelDelivery { delivery, audit: audit.clone() },
        Command::CancelEvent { tenant: tenant("acme"), event: event.id.clone(), audit: audit.clone() },
        Command::SendNow { delivery, audit: Audit { address: None, before: Some("\u{1F600}".to_owned()), ..audit } },
        Command::Test { endpoint: EndpointId::from_unique(world.store.unique()), event: Arc::new(event) },
        Command::Apply { tenant: tenant("acme"), endpoint: Some(EndpointId::from_unique(world.store.unique())) },
        Command::Apply { tenant: tenant("acme"), endpoint: None },
    ];
    let tested = CommandOutcome::Tested(world.attempt(1, 204));
    let answers = [
        CommandOutcome::Done,
        CommandOutcome::NotFound,
        CommandOutcome::HasEnded,
        tested,
        CommandOutcome::Done,
        CommandOutcome::InFlight,
    ];
    let mut commands = world.store.commands(world.node);
    for (given, expected) in given.into_iter().zip(answers) {
        let owner = async {
            let asked = commands.next().await.unwrap();
            assert_eq!(asked.command, given);
            asked.answer.send(expected.clone()).unwrap();
        };
        let (answer, ()) = tokio::join!(world.store.command(7, given.clone()), owner);
        assert_eq!(answer.unwrap(), expected);
    }
}

async fn nobody_who_listens_is_unavailable(world: World) {
    let command = || Command::SendNow { delivery: DeliveryId::from_unique(world.store.unique()), audit: world.audit("now") };
    let began = Instant::now();
    let answer = world.store.command(3, command()).await;
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    assert!(began.elapsed() < COMMAND_MAX + Duration::from_secs(2), "{:?}", began.elapsed());
    // What nobody has taken in time is withdrawn.
    let mut commands = world.store.commands(world.node);
    let owner = async { commands.next().await.unwrap().answer.send(CommandOutcome::Done).unwrap() };
    let (answer, ()) = tokio::join!(world.store.command(4, command()), owner);
    assert_eq!(answer.unwrap(), CommandOutcome::Done);
    drop(commands);
    let answer = world.store.command(5, command()).await;
    assert!(matches!(answer, Err(Error::Unavailable(_))), "it has gone: {answer:?}");
}

async fn a_command_that_its_owner_drops_is_unavailable_at_once(world: World) {
    let mut commands = world.store.commands(world.node);
    let command = Command::SendNow { delivery: DeliveryId::from_unique(world.store.unique()), audit: world.audit("now") };
    let began = Instant::now();
    let owner = async { drop(commands.next().await.unwrap()) };
    let (answer, ()) = tokio::join!(world.store.command(3, command), owner);
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    assert!(began.elapsed() < COMMAND_MAX, "{:?}", began.elapsed());
}

async fn a_change_is_applied_once_its_owner_says_so(world: World) {
    let endpoint = EndpointId::from_unique(world.store.unique());
    let mut commands = world.store.commands(world.node);
    let owner = async {
        let CommandRequest { command, partition: at, answer } = commands.next().await.unwrap();
        assert_eq!(command, Command::Apply { tenant: tenant("acme"), endpoint: Some(endpoint) });
        assert_eq!(at, partition("acme"));
        answer.send(CommandOutcome::Done).unwrap();
    };
    let (applied, ()) = tokio::join!(world.store.apply(tenant("acme"), Some(endpoint)), owner);
    assert_eq!(applied.unwrap(), ApplyResult::Now);
    // An owner that does not answer keeps no one waiting for long.
    let began = Instant::now();
    let applied = world.store.apply(tenant("acme"), None).await.unwrap();
    assert_eq!(applied, ApplyResult::Unconfirmed);
    assert!(began.elapsed() < APPLY_MAX * 2, "{:?}", began.elapsed());
}

async fn whoever_listens_last_is_asked(world: World) {
    let mut first = world.store.commands(world.node);
    let mut last = world.store.commands(world.node);
    let command = Command::SendNow { delivery: DeliveryId::from_unique(world.store.unique()), audit: world.audit("now") };
    let owner = async {
        assert!(first.next().await.is_none(), "it hears that somebody else does");
        last.next().await.unwrap().answer.send(CommandOutcome::InFlight).unwrap();
    };
    let (answer, ()) = tokio::join!(world.store.command(3, command), owner);
    assert_eq!(answer.unwrap(), CommandOutcome::InFlight);
}

async fn what_is_shown_of_lanes_is_the_youngest(world: World) {
    let now = world.store.now();
    let (one, other) = (EndpointId::from_unique(world.store.unique()), EndpointId::from_unique(world.store.unique()));
    let plain = |endpoint, at| LaneSnapshot {
        endpoint,
        at,
        memory: LaneMemory::new(),
        timeout: Adaptive::default(),
        tenant_bucket: None,
        retries_from: None,
        is_short_of_tokens: false,
        has_slot: true,
        in_flight: vec![],
        blocked: None,
    };
    let full = LaneSnapshot {
        memory: LaneMemory { breaker: Breaker::Closed { failures: 3 }, held_until: Some(later(now, 9)), ..LaneMemory::new() },
        tenant_bucket: Some(Bucket::from_nanos(77)),
        retries_from: Some(later(now, 5)),
        is_short_of_tokens: false,
        has_slot: false,
        blocked: Some("stored endpoint is not readable".to_owned()),
        in_flight: vec![DeliveryId::from_unique(world.store.unique()), DeliveryId::from_unique(world.store.unique())],
        ..plain(one, later(now, 2))
    };
    world.store.publish_lanes(vec![]).await.unwrap();
    world.store.publish_lanes(vec![plain(one, now), plain(other, now)]).await.unwrap();
    world.store.publish_lanes(vec![full.clone()]).await.unwrap();
    world.store.publish_lanes(vec![plain(one, later(now, 1))]).await.unwrap();
    let nobody = EndpointId::from_unique(world.store.unique());
    let mut shown = world.store.lane_snapshots(vec![other, nobody, one]).await.unwrap();
    shown.sort_by_key(|lane| lane.endpoint);
    assert_eq!(shown, [full, plain(other, now)], "an owner that is late changes nothing");
    assert_eq!(world.store.lane_snapshots(vec![]).await.unwrap(), []);
}
