//! Which connections are kept, for whom, and for how long.
//!
//! Everything is under one lock that is held for a few instructions and never while waiting. A connection is kept only if the
//! present policy would let it be made, and asked again when it is taken.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use posthaste_core::destination::{Destination, Host, Policy, Scheme};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection::{Connection, Facts};
use crate::options::Options;

pub(crate) struct Pool {
    policy: Arc<Policy>,
    connections_per_host_max: usize,
    idle_connections_max: usize,
    idle_max: Duration,
    age_max: Duration,
    judged_max: Duration,
    kept: Mutex<Kept>,
    /// Connections in use by one request alone.
    in_use: AtomicUsize,
    dialled: AtomicU64,
}

/// How many connections there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionCounts {
    pub in_use: usize,
    pub idle: usize,
    pub hosts: usize,
    /// Attempts that are under way, also those that wait for a connection.
    pub requests: usize,
    /// Connections made since the start.
    pub dialled: u64,
}

/// Requests to the same key may use each other's connections.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    scheme: Scheme,
    host: Host,
    port: u16,
}

#[derive(Default)]
struct Kept {
    hosts: HashMap<Key, HostEntry>,
    /// By when they were put here: the first has been unused for longest.
    idle: BTreeMap<u64, Idle>,
    last_number: u64,
    /// Somebody comes by to close what is not used.
    is_swept: bool,
}

struct HostEntry {
    /// Attempts that are about this host. Without any, and without connections, it is forgotten.
    visits: usize,
    slots: Arc<Semaphore>,
    idle: VecDeque<u64>,
    /// HTTP/2 connections in use, which further requests may share.
    shared: Vec<Shared>,
}

struct Shared {
    number: u64,
    connection: Connection,
    streams: usize,
}

struct Idle {
    key: Key,
    connection: Connection,
    since: Instant,
}

impl Pool {
    pub(crate) fn new(options: &Options) -> Arc<Pool> {
        Arc::new(Pool {
            policy: Arc::new(options.policy.clone()),
            connections_per_host_max: options.connections_per_host_max.clamp(1, Semaphore::MAX_PERMITS),
            idle_connections_max: options.idle_connections_max,
            idle_max: options.idle_max,
            age_max: options.age_max,
            judged_max: options.judged_max,
            kept: Mutex::new(Kept::default()),
            in_use: AtomicUsize::new(0),
            dialled: AtomicU64::new(0),
        })
    }

    pub(crate) fn counts(&self) -> ConnectionCounts {
        let kept = self.kept.lock();
        let shared: usize = kept.hosts.values().map(|host| host.shared.len()).sum();
        ConnectionCounts {
            in_use: self.in_use.load(Ordering::Relaxed) + shared,
            idle: kept.idle.len(),
            hosts: kept.hosts.len(),
            requests: kept.hosts.values().map(|host| host.visits).sum(),
            dialled: self.dialled.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy)
    }

    /// The beginning of an attempt.
    pub(crate) fn visit(self: &Arc<Pool>, destination: &Destination) -> Visit {
        let key = Key { scheme: destination.scheme(), host: destination.host().clone(), port: destination.port() };
        let mut kept = self.kept.lock();
        let host = kept.hosts.entry(key.clone()).or_insert_with(|| HostEntry {
            visits: 0,
            slots: Arc::new(Semaphore::new(self.connections_per_host_max)),
            idle: VecDeque::new(),
            shared: Vec::new(),
        });
        host.visits += 1;
        let slots = Arc::clone(&host.slots);
        drop(kept);
        Visit { pool: Arc::clone(self), key, slots, slot: None }
    }

    /// How many unused connections there are that have not been closed by the other side.
    pub(crate) fn idle_connections(&self) -> usize {
        let mut kept = self.kept.lock();
        kept.idle.values_mut().for_each(|idle| idle.connection.look());
        kept.idle.values().filter(|idle| !idle.connection.is_closed()).count()
    }

    fn is_permitted(&self, facts: &Facts) -> bool {
        self.policy.check(&facts.destination).is_ok() && self.policy.judge(&facts.destination, facts.address).is_ok()
    }

    fn is_usable(&self, connection: &Connection) -> bool {
        !connection.is_closed() && connection.facts().made_at.elapsed() < self.age_max && self.is_permitted(connection.facts())
    }

    fn keep(self: &Arc<Pool>, kept: &mut Kept, key: &Key, connection: Connection) {
        connection.facts().meter.rest();
        while kept.idle.len() >= self.idle_connections_max {
            let Some((number, _)) = kept.idle.first_key_value() else { return };
            kept.forget_idle(*number);
        }
        kept.last_number += 1;
        let number = kept.last_number;
        if let Some(host) = kept.hosts.get_mut(key) {
            host.idle.push_back(number);
            kept.idle.insert(number, Idle { key: key.clone(), connection, since: Instant::now() });
        }
        if !kept.is_swept {
            kept.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(self), self.idle_max / 4));
        }
    }
}

/// Closes what has not been used for too long, until there is nothing left to look after.
async fn sweep(pool: Weak<Pool>, pause: Duration) {
    loop {
        tokio::time::sleep(pause).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut kept = pool.kept.lock();
        kept.idle.values_mut().for_each(|idle| idle.connection.look());
        let gone: Vec<u64> = kept
            .idle
            .iter()
            .filter(|(_, idle)| idle.since.elapsed() >= pool.idle_max || !pool.is_usable(&idle.connection))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            kept.forget_idle(number);
        }
        if kept.idle.is_empty() {
            kept.is_swept = false;
            return;
        }
    }
}

impl Kept {
    /// Closes an unused connection.
    fn forget_idle(&mut self, number: u64) {
        let Some(idle) = self.idle.remove(&number) else { return };
        if let Some(host) = self.hosts.get_mut(&idle.key) {
            host.idle.retain(|kept| *kept != number);
        }
        self.forget_host_if_unused(&idle.key);
    }

    fn forget_host_if_unused(&mut self, key: &Key) {
        if self.hosts.get(key).is_some_and(|host| host.visits == 0 && host.idle.is_empty() && host.shared.is_empty()) {
            self.hosts.remove(key);
        }
    }
}

/// One attempt's stay with a host.
pub(crate) struct Visit {
    pool: Arc<Pool>,
    key: Key,
    slots: Arc<Semaphore>,
    slot: Option<OwnedSemaphorePermit>,
}

impl Visit {
    /// Waits until there are few enough requests under way to this host.
    pub(crate) async fn wait_for_slot(&mut self) {
        self.slot = match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(slot) => Some(slot),
            Err(_) => Some(Arc::clone(&self.slots).acquire_owned().await.expect("slots are never closed")),
        };
    }

    /// Whether the name of a connection has to be resolved again before it is used. An address that stands in the URL is judged
    /// each time by itself.
    pub(crate) fn is_due_to_be_judged(&self, facts: &Facts) -> bool {
        matches!(facts.destination.host(), Host::Name(_)) && facts.judged_at.lock().elapsed() >= self.pool.judged_max
    }

    /// A connection that is there already. The one used last comes first: the others may then grow old.
    pub(crate) fn take(&self) -> Option<Lease<'_>> {
        let pool = &self.pool;
        // What is closed is closed after the lock is given back.
        let mut spent = Vec::new();
        let mut guard = pool.kept.lock();
        let kept = &mut *guard;
        let host = kept.hosts.get_mut(&self.key).expect("it is kept while somebody visits");
        for shared in &mut host.shared {
            if shared.streams < shared.connection.streams_max()
                && pool.is_usable(&shared.connection)
                && let Some(connection) = shared.connection.shared()
            {
                shared.streams += 1;
                connection.facts().meter.begin(shared.streams);
                return Some(Lease::new(self, connection, Some(shared.number)));
            }
        }
        while let Some(number) = host.idle.pop_back() {
            let Some(idle) = kept.idle.remove(&number) else { continue };
            if idle.since.elapsed() >= pool.idle_max || !pool.is_usable(&idle.connection) {
                spent.push(idle.connection);
                continue;
            }
            idle.connection.facts().meter.begin(1);
            let number = share(host, &mut kept.last_number, &idle.connection);
            return Some(Lease::new(self, idle.connection, number));
        }
        drop(guard);
        drop(spent);
        None
    }

    /// A connection that was just made. Others may share it at once, where it can be shared.
    pub(crate) fn lease(&self, connection: Connection) -> Lease<'_> {
        let mut guard = self.pool.kept.lock();
        let kept = &mut *guard;
        let host = kept.hosts.get_mut(&self.key).expect("it is kept while somebody visits");
        let number = share(host, &mut kept.last_number, &connection);
        self.pool.dialled.fetch_add(1, Ordering::Relaxed);
        drop(guard);
        Lease::new(self, connection, number)
    }
}

fn share(host: &mut HostEntry, last_number: &mut u64, connection: &Connection) -> Option<u64> {
    let connection = connection.shared()?;
    *last_number += 1;
    host.shared.push(Shared { number: *last_number, connection, streams: 1 });
    Some(*last_number)
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut kept = self.pool.kept.lock();
        if let Some(host) = kept.hosts.get_mut(&self.key) {
            host.visits -= 1;
        }
        kept.forget_host_if_unused(&self.key);
    }
}

/// A connection for one request. It goes back when dropped, if [`Lease::keep`] was called, and is closed otherwise; one that is
/// shared then takes no further requests.
pub(crate) struct Lease<'a> {
    visit: &'a Visit,
    connection: Option<Connection>,
    shared: Option<u64>,
    is_good: bool,
}

impl Lease<'_> {
    fn new(visit: &Visit, connection: Connection, shared: Option<u64>) -> Lease<'_> {
        if shared.is_none() {
            visit.pool.in_use.fetch_add(1, Ordering::Relaxed);
        }
        Lease { visit, connection: Some(connection), shared, is_good: false }
    }

    /// Other requests may be under way on it.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is there until this is dropped")
    }

    /// The answer was read to its end: the next request may follow.
    pub(crate) fn keep(mut self) {
        self.is_good = true;
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let pool = &self.visit.pool;
        if self.shared.is_none() {
            pool.in_use.fetch_sub(1, Ordering::Relaxed);
        }
        let mut guard = pool.kept.lock();
        let kept = &mut *guard;
        let is_unused = match self.shared {
            None => true,
            Some(number) => {
                let host = kept.hosts.get_mut(&self.visit.key).expect("it is kept while somebody visits");
                match host.shared.iter().position(|shared| shared.number == number) {
                    // Taken out by another request that it has failed, or by a change of policy.
                    None => false,
                    Some(place) if !self.is_good => {
                        host.shared.swap_remove(place);
                        false
                    }
                    Some(place) => {
                        host.shared[place].streams -= 1;
                        let is_unused = host.shared[place].streams == 0;
                        if is_unused {
                            host.shared.swap_remove(place);
                        }
                        is_unused
                    }
                }
            }
        };
        if self.is_good && is_unused && pool.is_usable(&connection) {
            pool.keep(kept, &self.visit.key, connection);
        } else {
            drop(guard);
            drop(connection);
        }
    }
}
