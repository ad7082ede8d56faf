//! Cleanup at the edge of retention, and publishing next to it, on SQLite: how fast events are deleted, how much later a publish is
//! answered while that goes on, for how long the writer is held, and whether the file stays as large as it is over three days.
//! `cargo xtask bench-retention` runs it.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people; what goes wrong ends it")]

mod support {
    pub(crate) mod common;
}

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::endpoint::Endpoint;
use posthaste_core::event::{Data, Event};
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::retention::pause_after;
use posthaste_core::tenant::{Retention, Tenant};
use posthaste_store::{Change, CleanupStep, Housekeeping, NewEndpoint, NewEvent, Sqlite, Store, partition_of};
use rusqlite::{Connection, params};
use support::common;
use tokio::time::sleep;

const TENANTS: usize = 50;
/// So many of them keep things longer, every other one.
const KEEPING_LONGER: usize = 2;
const HOUR_MS: i64 = 3_600_000;
const WEEK_MS: i64 = 7 * 24 * HOUR_MS;
/// Callers that publish, each with a pause after every answer.
const CALLERS: usize = 16;
const CALLER_PAUSE: Duration = Duration::from_millis(10);
const DAYS: i64 = 3;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help") {
        println!("bench_retention [--events N] [--seconds N]");
        return;
    }
    let number = |word: &str, default: i64| {
        let place = words.iter().position(|given| given == word);
        place.and_then(|place| words.get(place + 1)).map_or(default, |text| text.parse().expect("a number"))
    };
    let (events, seconds) = (number("--events", 5_000_000), Duration::from_secs(number("--seconds", 20).unsigned_abs()));
    let scratch = Scratch::new();
    let directory = scratch.0.join("data");
    let endpoints = set_up(&directory).await;
    println!(
        "loading {events} events of {TENANTS} tenants, one delivery and one attempt each; every other tenant keeps them longer"
    );
    let now = wall_ms();
    load_events(&directory, &endpoints, events, now - WEEK_MS - 2 * HOUR_MS, now - WEEK_MS - HOUR_MS, |_| true);
    println!("the file has {:.0} MB", megabytes(&directory));

    measure(&directory, seconds, events).await;
    over_three_days(&directory, &endpoints, events / 20, now).await;
}

/// Publishing without and with cleanup, twice in turn, and then the rest of cleanup.
async fn measure(directory: &Path, seconds: Duration, events: i64) {
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(directory, common::options()).unwrap());
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut cleaned = Cleaned::default();
    publish_for(&store, Duration::from_secs(3)).await;
    for round in 1..=2 {
        without.extend(publish_for(&store, seconds).await);
        let stop = Arc::new(AtomicBool::new(false));
        let cleaning = tokio::spawn(clean(Arc::clone(&store), Arc::clone(&stop)));
        with.extend(publish_for(&store, seconds).await);
        stop.store(true, Ordering::Relaxed);
        cleaned.add(cleaning.await.unwrap());
        println!("round {round}: {} events deleted so far", cleaned.events);
    }
    let (p99_without, p99_with) = (percentile(&mut without, 99), percentile(&mut with, 99));
    println!("publishes, {CALLERS} callers         without cleanup       with");
    println!("  answered a second           {:>12.0} {:>12.0}", rate(without.len(), seconds * 2), rate(with.len(), seconds * 2));
    println!(
        "  p50                         {:>9.2} ms {:>9.2} ms",
        ms(percentile(&mut without, 50)),
        ms(percentile(&mut with, 50))
    );
    println!("  p99                         {:>9.2} ms {:>9.2} ms", ms(p99_without), ms(p99_with));
    println!("  p99 with / without          {:>12.2}   (asked: at most 1.50)", p99_with.as_secs_f64() / p99_without.as_secs_f64());
    cleaned.print("next to publishing", events / 2);
    let began = Instant::now();
    let rest = clean(Arc::clone(&store), Arc::new(AtomicBool::new(false))).await;
    rest.print("alone, to the end", events / 2);
    println!("the rest took {:.0} s; {} pages were given back", began.elapsed().as_secs_f64(), rest.freed_pages);
    store.close().await.unwrap();
    println!("the file has {:.0} MB", megabytes(directory));
}

/// A day is an hour of retention: what was loaded the day before is past it, and as much is loaded again.
async fn over_three_days(directory: &Path, endpoints: &[(TenantId, EndpointId)], day: i64, now: i64) {
    let is_short = |tenant: usize| tenant.is_multiple_of(KEEPING_LONGER);
    let load_day = |number: i64| {
        let at = now - WEEK_MS + number * HOUR_MS;
        load_events(directory, endpoints, day, at + HOUR_MS / 2, at + HOUR_MS / 2 + HOUR_MS / 4, is_short);
    };
    load_day(0);
    let mut sizes = Vec::new();
    for number in 1..=DAYS {
        load_day(number);
        let connection = Connection::open(directory.join("posthaste.db")).unwrap();
        let shortened = "UPDATE tenants SET retention_ms = ?1 WHERE retention_ms <= ?2";
        connection.execute(shortened, [WEEK_MS - number * HOUR_MS, WEEK_MS]).unwrap();
        drop(connection);
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(directory, common::options()).unwrap());
        let cleaned = clean(Arc::clone(&store), Arc::new(AtomicBool::new(false))).await;
        store.close().await.unwrap();
        sizes.push(megabytes(directory));
        println!("day {number}: {day} events came, {} went, the file has {:.0} MB", cleaned.events, megabytes(directory));
    }
    let (smallest, largest) = sizes.iter().fold((f64::MAX, 0f64), |(low, high), size| (low.min(*size), high.max(*size)));
    println!("file size over three days: largest / smallest {:.3} (asked: flat)", largest / smallest);
}

/// As the engine does it.
async fn clean(store: Arc<dyn Store>, stop: Arc<AtomicBool>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    let began = Instant::now();
    let mut told_at = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let step_began = Instant::now();
        let swept = store.clean_up(Housekeeping::default()).await.unwrap();
        let waited = step_began.elapsed().saturating_sub(swept.busy);
        if swept.is_nothing() {
            break;
        }
        cleaned.count(&swept, began.elapsed());
        if told_at.elapsed() > Duration::from_secs(10) {
            told_at = Instant::now();
            println!("  … {} events deleted, {} pages given back", cleaned.events, cleaned.freed_pages);
        }
        sleep(pause_after(swept.busy, swept.behind).saturating_sub(waited).max(Duration::from_millis(1))).await;
    }
    cleaned
}

#[derive(Default)]
struct Cleaned {
    events: u64,
    freed_pages: u64,
    /// Until the last event was deleted.
    took: Duration,
    busy: Duration,
    holds: Vec<Duration>,
}

impl Cleaned {
    fn count(&mut self, swept: &CleanupStep, since: Duration) {
        self.events += swept.events;
        self.freed_pages += swept.freed_pages;
        if swept.events > 0 {
            self.took = since;
            self.busy += swept.busy;
            self.holds.push(swept.longest_hold);
        }
    }

    fn add(&mut self, other: Cleaned) {
        self.events += other.events;
        self.took += other.took;
        self.busy += other.busy;
        self.holds.extend(other.holds);
    }

    fn print(&self, how: &str, all: i64) {
        let mut holds = self.holds.clone();
        println!("cleanup {how}: {} of {all} events", self.events);
        println!(
            "  {:.0} events/s (asked: at least 5,000), with {:.0} % of the writer",
            self.events as f64 / self.took.as_secs_f64().max(0.001),
            100.0 * self.busy.as_secs_f64() / self.took.as_secs_f64().max(0.001)
        );
        println!(
            "  the writer was held for {:.2} ms (p50), {:.2} ms (p99), {:.2} ms at most, in {} steps (asked: at most 5 ms)",
            ms(percentile(&mut holds, 50)),
            ms(percentile(&mut holds, 99)),
            ms(percentile(&mut holds, 100)),
            holds.len()
        );
    }
}

/// How long each publish took.
async fn publish_for(store: &Arc<dyn Store>, time: Duration) -> Vec<Duration> {
    let data = common::payload();
    let mut callers = tokio::task::JoinSet::new();
    let until = Instant::now() + time;
    for caller in 0..CALLERS {
        let (store, data) = (Arc::clone(store), data.clone());
        callers.spawn(async move {
            let mut took = Vec::new();
            let mut place = caller;
            while Instant::now() < until {
                // For those who keep things longer: what is young would end the walk through what is loaded later as if it were old.
                let event = new_event(store.as_ref(), &data, &tenant(place % (TENANTS / KEEPING_LONGER) * KEEPING_LONGER + 1));
                let began = Instant::now();
                store.publish(vec![event]).await.unwrap();
                took.push(began.elapsed());
                place += CALLERS;
                sleep(CALLER_PAUSE).await;
            }
            took
        });
    }
    callers.join_all().await.into_iter().flatten().collect()
}

fn new_event(store: &dyn Store, data: &Data, tenant: &TenantId) -> NewEvent {
    let NewEvent { event, is_id_chosen, fingerprint, resolved } = common::event(store, data);
    let event = Arc::new(Event { tenant: tenant.clone(), ..Arc::unwrap_or_clone(event) });
    NewEvent { event, is_id_chosen, fingerprint, resolved }
}

fn tenant(place: usize) -> TenantId {
    TenantId::parse(&format!("tenant-{place:02}")).unwrap()
}

/// Tenants with one endpoint each; every other one keeps things for a month instead of a week.
async fn set_up(directory: &Path) -> Vec<(TenantId, EndpointId)> {
    let store = Sqlite::open(directory, common::options()).unwrap();
    let mut endpoints = Vec::new();
    for place in 0..TENANTS {
        let days = if place.is_multiple_of(KEEPING_LONGER) { 7 } else { 30 };
        let made = Tenant { retention: Some(Retention::days(days).unwrap()), ..Tenant::new(tenant(place)) };
        let change = Change::PutTenant { tenant: Box::new(made), extra: "{}".to_owned() };
        store.configure(change, common::audit()).await.unwrap().unwrap();
        let id = EndpointId::from_unique(store.unique());
        let endpoint = Endpoint::new(id, tenant(place), "https://example.com/".to_owned(), store.now());
        let new = NewEndpoint { endpoint, secrets: vec![], per_tenant_max: 1000, tenant_created_at: None };
        store.configure(Change::CreateEndpoint(Box::new(new)), common::audit()).await.unwrap().unwrap();
        endpoints.push((tenant(place), id));
    }
    Store::close(&store).await.unwrap();
    endpoints
}

/// Writes delivered events straight into the file, which nobody else has open.
fn load_events(
    directory: &Path,
    endpoints: &[(TenantId, EndpointId)],
    count: i64,
    from_ms: i64,
    to_ms: i64,
    is_wanted: impl Fn(usize) -> bool,
) {
    let connection = Connection::open(directory.join("posthaste.db")).unwrap();
    connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -1000000;").unwrap();
    let last = |table: &str| -> i64 {
        connection.query_row(&format!("SELECT coalesce(max(seq), 0) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    let (last_event, last_delivery) = (last("events"), last("deliveries"));
    let wanted: Vec<_> =
        endpoints.iter().enumerate().filter(|(place, _)| is_wanted(*place)).map(|(_, endpoint)| endpoint).collect();
    let payload = common::payload();
    connection.execute_batch("BEGIN").unwrap();
    {
        let mut event = connection
            .prepare(
                "INSERT INTO events (seq, tenant, id, type, timestamp_ms, accepted_at_ms, data, digest, labels, first_delivery, deliveries)
                 VALUES (?1, ?2, ?3, 'invoice.paid', ?4, ?4, ?5, zeroblob(32), '', ?6, 1)",
            )
            .unwrap();
        let mut delivery = connection
            .prepare(
                "INSERT INTO deliveries (seq, id, tenant, partition, endpoint, event_seq, event, type, is_priority, class, timestamp_ms,
                                         status, is_later, ended_at_ms, attempts, created_at_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'invoice.paid', 0, 2, ?8, 'delivered', 0, ?8, 1, ?8)",
            )
            .unwrap();
        let mut attempt = connection
            .prepare(
                "INSERT INTO attempts (delivery_seq, number, id, outcome, status_code, response_time_ms, timeout_ms, preview, attempted_at_ms)
                 VALUES (?1, 1, ?2, 'answered', 200, 12, 10000, 'ok', ?3)",
            )
            .unwrap();
        let mut told_at = Instant::now();
        for number in 0..count {
            let (event_seq, delivery_seq) = (last_event + 1 + number, last_delivery + 1 + number);
            let (tenant, endpoint) = wanted[usize::try_from(number).unwrap() % wanted.len()];
            let at = from_ms + (to_ms - from_ms) * number / count;
            let (id, text_id) = (u128::from(delivery_seq.unsigned_abs()).to_be_bytes(), format!("evt_{event_seq:026}"));
            event.execute(params![event_seq, tenant.as_str(), text_id, at, payload.as_str(), delivery_seq]).unwrap();
            let row = params![delivery_seq, id, tenant.as_str(), partition_of(tenant), endpoint.to_bytes(), event_seq, text_id, at];
            delivery.execute(row).unwrap();
            attempt.execute(params![delivery_seq, id, at]).unwrap();
            if told_at.elapsed() > Duration::from_secs(10) {
                told_at = Instant::now();
                println!("  … {number} loaded");
            }
        }
    }
    connection.execute_batch("COMMIT; PRAGMA journal_mode = WAL;").unwrap();
}

fn wall_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

fn percentile(sample: &mut [Duration], percent: usize) -> Duration {
    sample.sort_unstable();
    sample.get((sample.len() * percent / 100).min(sample.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn megabytes(directory: &Path) -> f64 {
    let bytes = std::fs::metadata(directory.join("posthaste.db")).unwrap().len();
    bytes as f64 / 1_000_000.0
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        // Beside the build, which is on a disk; a temporary directory may be in memory.
        let directory = std::env::current_exe().unwrap().with_file_name(format!("bench-retention-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Scratch(directory)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
