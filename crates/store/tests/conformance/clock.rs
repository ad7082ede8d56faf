//! Clocks that are wrong.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use posthaste_core::id::KeyId;
use posthaste_store::*;

use crate::world::{World, later};

/// Clocks that a test sets.
#[derive(Debug)]
struct SetClock {
    wall: Mutex<Duration>,
    boottime: Mutex<Duration>,
    boot_id: Mutex<String>,
    is_synchronised: Mutex<Option<bool>>,
}

impl SetClock {
    fn new() -> Arc<SetClock> {
        Arc::new(SetClock {
            wall: Mutex::new(SystemTime::now().duration_since(UNIX_EPOCH).unwrap()),
            boottime: Mutex::new(Duration::from_secs(1_000)),
            boot_id: Mutex::new("a boot".to_owned()),
            is_synchronised: Mutex::new(None),
        })
    }

    fn pass(&self, time: Duration) {
        *self.wall.lock() += time;
        *self.boottime.lock() += time;
    }

    fn jump(&self, time: Duration) {
        *self.wall.lock() += time;
    }
}

impl ClockSource for SetClock {
    fn wall(&self) -> Duration {
        *self.wall.lock()
    }

    fn boottime(&self) -> Duration {
        *self.boottime.lock()
    }

    fn is_synchronised(&self) -> Option<bool> {
        *self.is_synchronised.lock()
    }

    fn boot_id(&self) -> String {
        self.boot_id.lock().clone()
    }
}

const DAY: Duration = Duration::from_hours(24);

/// A world of which a year of history would go, and whose clock can be set.
async fn world(name: &str) -> (World, Arc<SetClock>) {
    let clock = SetClock::new();
    let world = World::sqlite(name).await;
    let options = Options { clock: Arc::clone(&clock) as Arc<dyn ClockSource>, ..world.options.clone() };
    (world.reopened(options).await, clock)
}

async fn destroys_nothing(world: &World) -> bool {
    let swept = world.store.clean_up(Housekeeping::default()).await.unwrap();
    swept.is_nothing() && world.store.overdue(10).await.unwrap().is_empty()
}

/// Whether this delivery would be ended because it has waited longer than anything is kept.
async fn is_overdue(world: &World, delivery: &DeliveryRow) -> bool {
    for _ in 0..100 {
        if world.store.clean_up(Housekeeping::default()).await.unwrap().is_nothing() {
            break;
        }
    }
    world.store.overdue(10).await.unwrap().iter().any(|overdue| overdue.seq == delivery.seq)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i35_a_clock_that_jumps_ahead_destroys_nothing_until_it_is_accepted_whatever_restarts() {
    let (world, clock) = world("clock-jump").await;
    world.endpoint("acme").await;
    let (waiting, ended) = (world.delivery("acme").await, world.delivery("acme").await);
    world.deliver(&ended).await;
    let now = world.store.now();
    let key = Key {
        id: KeyId::from_unique(world.store.unique()),
        hash: KeyHash([7; 32]),
        name: "a key".to_owned(),
        tenant: None,
        scopes: vec![KeyScope::Publish],
        created_at: now,
        expires_at: Some(now + 30 * DAY),
        revoked_at: None,
        last_used_at: None,
    };
    world.configure(Change::CreateKey(Box::new(key))).await.unwrap();
    assert_eq!(world.store.clock_status().suspicion, None);

    clock.jump(400 * DAY);
    clock.pass(Duration::from_secs(10));
    let jumped_by = |world: &World| world.store.clock_status().suspicion.map(|suspicion| suspicion.jumped_by);
    assert_eq!(jumped_by(&world), Some(400 * DAY));
    assert!(world.store.now() < later(now, 60), "time goes on from where it was");
    assert!(destroys_nothing(&world).await);
    assert!(world.store.key(KeyHash([7; 32])).await.unwrap().is_some(), "a key that was valid before stays valid");
    let published = world.delivery("acme").await;
    world.deliver(&published).await;

    // It is written down with the next beat of the heart, and so survives a restart, also of the machine.
    world.store.renew(world.node).await.unwrap().unwrap();
    assert_eq!(Sqlite::examine(world.directory(), None).unwrap().unwrap().clock_jumped_by, Some(400 * DAY));
    let options = world.options.clone();
    let world = world.reopened(options.clone()).await;
    assert_eq!(jumped_by(&world), Some(400 * DAY));
    assert!(destroys_nothing(&world).await);
    "another boot".clone_into(&mut clock.boot_id.lock());
    *clock.boottime.lock() = Duration::from_secs(5);
    let world = world.reopened(options).await;
    assert!(jumped_by(&world).is_some_and(|jumped_by| jumped_by > 399 * DAY));
    assert!(destroys_nothing(&world).await);

    assert!(Sqlite::accept_clock(world.directory()).unwrap());
    world.store.renew(world.node).await.unwrap().unwrap();
    assert_eq!(jumped_by(&world), None);
    assert_eq!(Sqlite::examine(world.directory(), None).unwrap().unwrap().clock_jumped_by, None);
    assert!(!Sqlite::accept_clock(world.directory()).unwrap(), "there is nothing to accept any more");
    assert!(is_overdue(&world, &waiting).await, "by now it is true");
    assert!(world.store.key(KeyHash([7; 32])).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i35_a_clock_is_accepted_while_no_server_runs_and_a_gap_since_the_last_stop_is_no_jump() {
    let (world, clock) = world("clock-gap").await;
    world.endpoint("acme").await;
    let waiting = world.delivery("acme").await;
    clock.jump(400 * DAY);
    world.store.renew(world.node).await.unwrap().unwrap();
    assert!(world.store.clock_status().suspicion.is_some());
    assert!(Sqlite::accept_clock(world.directory()).unwrap());
    let options = world.options.clone();
    let world = world.reopened(options.clone()).await;
    assert_eq!(world.store.clock_status().suspicion, None);
    world.store.renew(world.node).await.unwrap().unwrap();
    // Stopped for a year.
    world.store.close().await.unwrap();
    clock.jump(400 * DAY);
    let world = world.opened_again(options).await;
    assert_eq!(world.store.clock_status().suspicion, None);
    assert!(is_overdue(&world, &waiting).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i35_the_kernel_confirms_a_jump_when_it_is_synchronised_after_it() {
    let (world, clock) = world("clock-kernel").await;
    *clock.is_synchronised.lock() = Some(true);
    clock.pass(Duration::from_secs(1));
    let now = world.store.now();
    clock.jump(2 * DAY);
    for said in [true, false] {
        *clock.is_synchronised.lock() = Some(said);
        clock.pass(Duration::from_secs(1));
        assert!(world.store.now() < later(now, 60), "{said}");
    }
    *clock.is_synchronised.lock() = Some(true);
    clock.pass(Duration::from_secs(1));
    assert!(world.store.now() > later(now, 86_400));
    assert_eq!(world.store.clock_status(), ClockStatus::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i35_on_postgresql_signatures_carry_the_database_s_time_and_the_skew_is_known() {
    let world = World::postgres().await;
    let clock = SetClock::new();
    clock.jump(Duration::from_hours(2));
    let options = Options { clock: Arc::clone(&clock) as Arc<dyn ClockSource>, ..world.options.clone() };
    let world = world.reopened(options).await;
    world.store.renew(world.node).await.unwrap().unwrap();
    let truth = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let signed = u128::try_from(world.store.wall_clock().as_millis()).unwrap();
    assert!(signed.abs_diff(truth) < 2_000, "{signed} {truth}");
    let skew = world.store.clock_status().skew.expect("there are two clocks");
    assert!(skew.abs_diff(Duration::from_hours(2)) < Duration::from_mins(2), "{skew:?}");
}
