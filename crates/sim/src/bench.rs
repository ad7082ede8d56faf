//! What the scheduler alone costs: one dispatch, its answer, its record, and the next row offered; and what it has in memory of a lane and
//! of a row that waits.

use std::fmt::Write;
use std::time::{Duration, Instant};

use posthaste_core::bucket::{Bucket, RateLimit};
use posthaste_core::delivery::Outcome;
use posthaste_core::event::EventType;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::scheduler::{Backlog, Class, Command, Entry, LaneConfig, LaneMemory, Limits, Scheduler, TenantConfig};
use posthaste_core::time::Timestamp;

/// A hundred tenants, as a busy server has.
const TENANTS: usize = 100;
/// How much work is measured.
const DISPATCHES: u32 = 500_000;
const IN_FLIGHT: usize = 64;

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub busy: usize,
    pub idle: usize,
    pub per_dispatch: Duration,
}

/// Few busy lanes, many of them, and few beside many that are idle: the median of five rounds, in turn, because a noisy
/// machine is slow for a while and not for one of them.
pub fn run() -> Vec<Row> {
    let cases = [(1_000, 0), (100_000, 0), (1_000, 100_000)];
    let rounds: Vec<[Duration; 3]> = (0..5).map(|_| cases.map(|(busy, idle)| measure(busy, idle))).collect();
    let median = |case: usize| {
        let mut times: Vec<Duration> = rounds.iter().map(|round| round[case]).collect();
        times.sort();
        times[2]
    };
    let row = |(case, (busy, idle))| Row { busy, idle, per_dispatch: median(case) };
    cases.into_iter().enumerate().map(row).collect()
}

/// What is in memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Of a lane that has one row.
    pub per_lane: u64,
    /// Of each further one. Rows behind the window are in the store alone.
    pub per_row: u64,
    /// How many there can be for each queue of a lane.
    pub rows_max: usize,
}

/// Taken from what the process grows by, so that everything counts, and what the allocator wastes. Nothing else may run in it.
pub fn memory() -> std::io::Result<Memory> {
    const LANES: usize = 50_000;
    const FULL_LANES: usize = 1_000;
    let now = Timestamp::from_millis(1_800_000_000_000);
    let tenant = TenantId::parse("tenant").expect("valid");
    let window = Limits::default().window;
    let event_type = EventType::parse("order.paid").expect("valid");
    let grown = |lanes: usize, rows: usize| -> std::io::Result<(u64, Scheduler)> {
        let before = resident_bytes()?;
        let mut scheduler = Scheduler::new(now, Limits::default());
        scheduler.configure_tenant(now, &tenant, TenantConfig::default(), Bucket::full());
        for lane in 0..lanes {
            let endpoint = EndpointId::from_bytes((lane as u128 + 1).to_be_bytes());
            scheduler.configure(now, &tenant, endpoint, LaneConfig::default(), LaneMemory::new(), Backlog::None);
            for row in 0..rows {
                scheduler.offer(endpoint, entry(now, &event_type, (lane * rows + row) as u64));
            }
        }
        Ok((resident_bytes()?.saturating_sub(before), scheduler))
    };
    // The first stays, so that the second is not given what it has left.
    let (bytes, _first) = grown(LANES, 1)?;
    let per_lane = bytes / LANES as u64;
    let (bytes, _second) = grown(FULL_LANES, window)?;
    let per_row = bytes.saturating_sub(per_lane * FULL_LANES as u64) / (FULL_LANES * (window - 1)) as u64;
    Ok(Memory { per_lane, per_row, rows_max: window })
}

fn resident_bytes() -> std::io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.map(|kibibytes| kibibytes * 1024).ok_or_else(|| std::io::Error::other("the kernel does not say RssAnon"))
}

/// A row that nobody has tried yet.
fn entry(now: Timestamp, event_type: &EventType, seq: u64) -> Entry {
    Entry {
        delivery: DeliveryId::from_bytes(u128::from(seq).to_be_bytes()),
        seq,
        timestamp: now,
        due: now,
        attempts: 0,
        is_later: false,
        event_type: event_type.clone(),
        is_priority: false,
        class: Class::Exempt,
        ordering_key: None,
        expires_at: None,
    }
}

fn measure(busy: usize, idle: usize) -> Duration {
    let now = Timestamp::from_millis(1_800_000_000_000);
    let mut scheduler = Scheduler::new(now, Limits::default());
    let tenants: Vec<TenantId> = (0..TENANTS).map(|n| TenantId::parse(&format!("tenant-{n}")).expect("valid")).collect();
    for tenant in &tenants {
        scheduler.configure_tenant(now, tenant, TenantConfig::default(), Bucket::full());
    }
    let event_type = EventType::parse("order.paid").expect("valid");
    let mut seq = 0;
    let mut next_entry = || {
        seq += 1;
        entry(now, &event_type, seq)
    };
    let endpoint = |n: usize| EndpointId::from_bytes((n as u128 + 1).to_be_bytes());
    for n in 0..busy + idle {
        // An idle lane has a row, and no token for it until tomorrow.
        let limit = RateLimit::new(1, 1_000).expect("valid");
        let (rate_limit, bucket) = if n < busy { (None, Bucket::full()) } else { (Some(limit), Bucket::empty(now, limit)) };
        let config = LaneConfig { rate_limit, ..LaneConfig::default() };
        let memory = LaneMemory { bucket, ..LaneMemory::new() };
        scheduler.configure(now, &tenants[n % TENANTS], endpoint(n), config, memory, Backlog::None);
        scheduler.offer(endpoint(n), next_entry());
        if n < busy {
            scheduler.offer(endpoint(n), next_entry());
        }
    }
    let success = Outcome::Answered { status: 200, retry_after: None };
    let mut in_flight = std::collections::VecDeque::new();
    let mut dispatched = 0;
    // Everybody has had a turn before the clock starts, so that the idle ones are parked.
    let mut started = None;
    while dispatched < DISPATCHES {
        match scheduler.next(now).filter(|_| in_flight.len() < IN_FLIGHT) {
            Some(Command::Send { endpoint, delivery, .. }) => {
                in_flight.push_back((endpoint, delivery));
                if started.is_some() {
                    dispatched += 1;
                } else if in_flight.len() == IN_FLIGHT / 2 {
                    started = Some(Instant::now());
                }
            }
            Some(command) => panic!("nothing else is asked for: {command:?}"),
            None => {
                let (endpoint, delivery) = in_flight.pop_front().expect("work never ends");
                scheduler.finished(now, endpoint, delivery, &success);
                scheduler.recorded(endpoint, delivery);
                scheduler.offer(endpoint, next_entry());
            }
        }
        if in_flight.len() >= IN_FLIGHT {
            let (endpoint, delivery) = in_flight.pop_front().expect("full");
            scheduler.finished(now, endpoint, delivery, &success);
            scheduler.recorded(endpoint, delivery);
            scheduler.offer(endpoint, next_entry());
        }
    }
    started.expect("it was").elapsed() / DISPATCHES
}

/// For people: each beside the first.
pub fn table(rows: &[Row]) -> String {
    let first = rows[0].per_dispatch.as_secs_f64();
    let mut text =
        format!("{:>12} {:>12} {:>16} {:>18} {:>8}\n", "busy lanes", "idle lanes", "per dispatch", "dispatches/s", "ratio");
    for row in rows {
        let seconds = row.per_dispatch.as_secs_f64();
        let (busy, idle, nanos) = (row.busy, row.idle, seconds * 1e9);
        writeln!(text, "{busy:>12} {idle:>12} {nanos:>13.0} ns {:>18.0} {:>8.2}", 1.0 / seconds, seconds / first)
            .expect("a String takes everything");
    }
    text
}
