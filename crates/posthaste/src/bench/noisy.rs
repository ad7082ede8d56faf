//! One tenant beside two bad neighbours: one whose endpoints all hang, and one that floods.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::load::{Line, Sent, event, number};
use super::meter::{millis, percentile};
use super::sink::Sink;
use super::{Bed, Report, load_runtime, show};

/// What one tenant may do to another: I36.
const ALLOWED_MAX: Duration = Duration::from_secs(1);
/// An event that has not arrived by then has been moved for good.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is left to do after a measurement is done by then, or is not worth waiting for.
const LAST_MOMENTS: Duration = Duration::from_millis(500);
const FLOODERS: usize = 8;
/// Beyond the quiet tenant's numbers, so that the sink does not take them for its.
const NOT_COUNTED: usize = usize::MAX / 2;

#[derive(Args, Clone, Debug)]
pub(crate) struct Course {
    /// How many endpoints of the first neighbour hang
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    hanging: u32,
    /// How many events a second the quiet tenant publishes; the flood is a hundred times that
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: u32,
    /// For how long, undisturbed and then beside the neighbours
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
}

pub(super) fn run(course: &Course) -> anyhow::Result<Report> {
    let loading = load_runtime()?;
    let bed = Bed::new()?;
    let measured = loading.block_on(measure(course, bed.server.address, &bed.server.admin_key.0));
    // What hangs would hold up a clean end for as long as its timeout, and proves nothing.
    bed.server.take_no_more();
    bed.runtime.shutdown_timeout(LAST_MOMENTS);
    let (undisturbed, beside, flooded) = measured?;
    Ok(report(course, &undisturbed, &beside, flooded))
}

/// How the quiet tenant fared.
struct Fared {
    /// From the acknowledgement to the first hit, sorted.
    delays: Vec<Duration>,
    /// Published and not arrived.
    missing: usize,
}

async fn measure(course: &Course, server: SocketAddr, key: &str) -> anyhow::Result<(Fared, Fared, usize)> {
    let events = (course.rate * course.seconds) as usize;
    let sink = Sink::new(2 * events);
    let receiver = sink.serve().await?;
    let mut line = Line::connect(server, key).await?;
    line.make_endpoint("quiet", &format!("http://{receiver}/")).await?;
    show("undisturbed");
    let undisturbed = publish_quietly(course, &mut line, &sink, 0).await?;

    line.make_endpoint("flood", &format!("http://{receiver}/")).await?;
    for made in 0..course.hanging {
        show(&format!("{made} of {} endpoints that hang", course.hanging));
        line.make_endpoint("hanging", &format!("http://{receiver}/hang")).await?;
    }
    // One event for all of them, and again and again, so that there is always more that hangs.
    let is_over = Arc::new(AtomicBool::new(false));
    let flooded = Arc::new(AtomicUsize::new(0));
    let mut neighbours = JoinSet::new();
    let tenants = std::iter::once("hanging").chain(std::iter::repeat_n("flood", FLOODERS));
    for tenant in tenants {
        let rate = if tenant == "flood" { course.rate as usize * 100 / FLOODERS } else { 1 };
        let line = Line::connect(server, key).await?;
        neighbours.spawn(disturb(line, tenant, rate, Arc::clone(&is_over), Arc::clone(&flooded)));
    }
    show("beside the neighbours");
    let beside = publish_quietly(course, &mut line, &sink, events).await?;
    is_over.store(true, Ordering::Relaxed);
    neighbours.abort_all();
    Ok((undisturbed, beside, flooded.load(Ordering::Relaxed)))
}

async fn publish_quietly(course: &Course, line: &mut Line, sink: &Sink, first: usize) -> anyhow::Result<Fared> {
    let events = (course.rate * course.seconds) as usize;
    let mut turns = tokio::time::interval(Duration::from_secs(1) / course.rate);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut published = Vec::with_capacity(events);
    for number in first..first + events {
        turns.tick().await;
        let began = Instant::now();
        let (status, answer) = line.post("/v1/events", event("quiet", number, 600)).await?;
        if status != 202 {
            bail!("the quiet tenant was answered {status}: {}", String::from_utf8_lossy(&answer));
        }
        published.push(Sent { number, began, acknowledged: Instant::now() });
    }
    let before = sink.count();
    // Those that are late are counted, not waited for without end.
    let _ = sink.wait_for((first + events).max(before), PATIENCE, |_| {}).await;
    let delay = |sent: &Sent| sink.arrival(sent.number).map(|hit| hit.saturating_duration_since(sent.acknowledged));
    let mut delays: Vec<Duration> = published.iter().filter_map(delay).collect();
    delays.sort_unstable();
    Ok(Fared { missing: published.len() - delays.len(), delays })
}

/// Publishes at a rate until it is over. Being refused is what may happen to a flood.
async fn disturb(mut line: Line, tenant: &'static str, rate: usize, is_over: Arc<AtomicBool>, flooded: Arc<AtomicUsize>) {
    let mut turns = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate.max(1)).unwrap_or(u32::MAX));
    turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !is_over.load(Ordering::Relaxed) {
        turns.tick().await;
        match line.post("/v1/events", event(tenant, NOT_COUNTED, 600)).await {
            Ok((202, _)) => _ = flooded.fetch_add(1, Ordering::Relaxed),
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

fn report(course: &Course, undisturbed: &Fared, beside: &Fared, flooded: usize) -> Report {
    let p99 = |fared: &Fared| percentile(&fared.delays, 99);
    let allowed = p99(undisturbed).map(|quiet| (quiet * 2).max(ALLOWED_MAX));
    let is_kept = beside.missing == 0 && p99(beside).zip(allowed).is_some_and(|(beside, allowed)| beside <= allowed);
    let mut page = format!(
        "one tenant at {}/s for {} s, beside {} endpoints that hang and a flood of {}/s ({flooded} events taken from the neighbours)\n\n{:>36} {:>14} {:>14}\n",
        course.rate,
        course.seconds,
        course.hanging,
        course.rate * 100,
        "",
        "undisturbed",
        "beside them"
    );
    for (name, percent) in [("p50", 50), ("p99", 99), ("slowest", 100)] {
        let value = |fared: &Fared| millis(percentile(&fared.delays, percent));
        let name = format!("acknowledged to first hit {name}, ms");
        let _ = writeln!(page, "{name:>36} {:>14.2} {:>14.2}", value(undisturbed), value(beside));
    }
    let _ = writeln!(page, "{:>36} {:>14} {:>14}", "not arrived", undisturbed.missing, beside.missing);
    let word = if is_kept { "kept" } else { "BROKEN" };
    let _ = writeln!(page, "\nat most twice the undisturbed p99, or 1 s: {word}");
    let json = json!({
        "bench": "noisy", "hanging": course.hanging, "rate": course.rate, "seconds": course.seconds, "flooded": flooded,
        "undisturbed_p99_ms": number(millis(p99(undisturbed))), "beside_p99_ms": number(millis(p99(beside))),
        "not_arrived": beside.missing, "is_kept": is_kept,
    });
    Report { page, json }
}
