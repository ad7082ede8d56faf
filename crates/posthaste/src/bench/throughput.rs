//! As many events as it takes, from publishing to arrival.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::load::{self, Line, Sent, number};
use super::meter::{millis, percentile, processor_time_except};
use super::sink::Sink;
use super::{Bed, LOAD_THREAD, Report, load_runtime, raw, show};

/// Nothing that works leaves its receiver alone for so long in the middle of a load.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Args, Clone, Debug)]
pub(crate) struct Course {
    /// How many events
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    events: u32,
    /// How many connections publish at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4_000))]
    connections: u16,
    /// How many endpoints, each of a tenant of its own; an event goes to one of them
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=16))]
    endpoints: u8,
    /// How large the payload of an event is
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(30..=1_000_000))]
    payload_bytes: u32,
    /// Count nothing, to see what counting costs
    #[arg(long, hide = true)]
    metrics_off: bool,
}

const TENANTS: [&str; 16] = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9", "t10", "t11", "t12", "t13", "t14", "t15"];

/// What one run was like, ours or the one beside it.
pub(super) struct Run {
    per_second: f64,
    processor_seconds_per_thousand: f64,
    publish: [Option<Duration>; 2],
    arrival: [Option<Duration>; 2],
}

pub(super) fn run(course: &Course) -> anyhow::Result<Report> {
    // First what the machine can do, so that both find it in the same state: idle.
    let raw = raw::measure(course)?;
    let loading = load_runtime()?;
    let bed = Bed::with(|settings| settings.metrics = !course.metrics_off)?;
    let ours = {
        let (sink, receiver) = loading.block_on(sink(course))?;
        let (server, key) = (bed.server.address, bed.server.admin_key.0.clone());
        loading.block_on(furnish(course, server, &key, receiver))?;
        loading.block_on(measure(course, "posthaste", server, &key, &sink))?
    };
    bed.end()?;
    Ok(report(course, &ours, &raw))
}

pub(super) async fn sink(course: &Course) -> anyhow::Result<(Arc<Sink>, SocketAddr)> {
    let sink = Sink::new(course.events as usize);
    let address = sink.serve().await?;
    Ok((sink, address))
}

async fn furnish(course: &Course, server: SocketAddr, key: &str, receiver: SocketAddr) -> anyhow::Result<()> {
    let mut line = Line::connect(server, key).await?;
    for tenant in &TENANTS[..usize::from(course.endpoints)] {
        line.make_endpoint(tenant, &format!("http://{receiver}/")).await?;
    }
    Ok(())
}

pub(super) async fn measure(course: &Course, name: &str, server: SocketAddr, key: &str, sink: &Arc<Sink>) -> anyhow::Result<Run> {
    let events = course.events as usize;
    let processor_before = processor_time_except(LOAD_THREAD);
    let began = Instant::now();
    let publishing = load::publish(
        server,
        key,
        &TENANTS[..usize::from(course.endpoints)],
        events,
        usize::from(course.connections),
        course.payload_bytes as usize,
    );
    let arriving = sink.wait_for(events, PATIENCE, |count| show(&format!("{name}: {count} of {events} arrived")));
    let (published, ()) = tokio::try_join!(publishing, arriving)?;
    let processor = processor_time_except(LOAD_THREAD).saturating_sub(processor_before);
    let seconds = sink.last_arrival().unwrap_or(began).duration_since(began).as_secs_f64();
    let arrived = |sent: &Sent| sink.arrival(sent.number).map(|arrived| arrived.saturating_duration_since(sent.began));
    Ok(Run {
        per_second: events as f64 / seconds,
        processor_seconds_per_thousand: processor.as_secs_f64() * 1000.0 / events as f64,
        publish: halves(published.iter().map(Sent::took).collect()),
        arrival: halves(published.iter().filter_map(arrived).collect()),
    })
}

/// The median and the 99th percentile.
fn halves(mut durations: Vec<Duration>) -> [Option<Duration>; 2] {
    durations.sort_unstable();
    [percentile(&durations, 50), percentile(&durations, 99)]
}

fn report(course: &Course, ours: &Run, raw: &Run) -> Report {
    let ratio = ours.per_second / raw.per_second;
    let mut page = format!("{}\n\n{}", course.told(), table(&[("posthaste", ours), ("raw forwarder", raw)]));
    let _ = writeln!(page, "{:>36} {ratio:>14.3}", "ratio_to_raw");
    page.push_str("\nThe raw forwarder answers and passes on; it stores nothing, signs nothing and tries once.\n");
    let json = json!({
        "bench": "throughput", "events": course.events, "connections": course.connections, "endpoints": course.endpoints,
        "payload_bytes": course.payload_bytes, "metrics": !course.metrics_off, "posthaste": values(ours), "raw": values(raw), "ratio_to_raw": number(ratio),
    });
    Report { page, json }
}

impl Course {
    pub(super) fn told(&self) -> String {
        let Course { events, payload_bytes, connections, endpoints, metrics_off } = self;
        format!(
            "{events} events of {payload_bytes} bytes, {connections} connections, {endpoints} endpoints{}, all on this machine",
            if *metrics_off { ", metrics off" } else { "" }
        )
    }
}

/// What is told of a run: a name for people, one for programs, the value, and how many digits of it mean anything.
fn told(run: &Run) -> [(&'static str, &'static str, f64, usize); 6] {
    [
        ("deliveries/s", "deliveries_per_second", run.per_second, 0),
        ("processor seconds per 1,000", "processor_seconds_per_1000", run.processor_seconds_per_thousand, 3),
        ("publish p50, ms", "publish_p50_ms", millis(run.publish[0]), 2),
        ("publish p99, ms", "publish_p99_ms", millis(run.publish[1]), 2),
        ("publish to arrival p50, ms", "publish_to_arrival_p50_ms", millis(run.arrival[0]), 2),
        ("publish to arrival p99, ms", "publish_to_arrival_p99_ms", millis(run.arrival[1]), 2),
    ]
}

/// Side by side, each under its name.
pub(super) fn table(runs: &[(&str, &Run)]) -> String {
    let mut page = format!("{:>36}", "");
    for (name, _) in runs {
        let _ = write!(page, " {name:>14}");
    }
    page.push('\n');
    let columns: Vec<_> = runs.iter().map(|(_, run)| told(run)).collect();
    for row in 0..columns.first().map_or(0, |column| column.len()) {
        let _ = write!(page, "{:>36}", columns[0][row].0);
        for (_, _, value, digits) in columns.iter().map(|column| column[row]) {
            let _ = write!(page, " {value:>14.digits$}");
        }
        page.push('\n');
    }
    page
}

pub(super) fn values(run: &Run) -> Value {
    told(run).into_iter().map(|(_, name, value, _)| (name.to_owned(), number(value))).collect()
}
