//! How long an event takes from publishing to arrival while the server is far from busy: a fixed rate, whatever it answers.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tokio::task::JoinSet;

use super::load::{Line, Sent, event, number};
use super::meter::{millis, percentile};
use super::sink::Sink;
use super::{Bed, Report, forwarder, load_runtime, show};

/// Longer than anything that arrives takes.
const PATIENCE: Duration = Duration::from_secs(30);
const PERCENTS: [(&str, usize); 3] = [("p50", 50), ("p99", 99), ("slowest", 100)];

#[derive(Args, Clone, Debug)]
pub(crate) struct Course {
    /// Events in a second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// For how long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// How many connections take turns, so that a slow answer holds up no publish
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    connections: u32,
}

/// Sorted.
struct Times {
    publish: Vec<Duration>,
    arrival: Vec<Duration>,
}

pub(super) fn run(course: &Course) -> anyhow::Result<Report> {
    let loading = load_runtime()?;
    let forwarding = tokio::runtime::Builder::new_multi_thread().thread_name("bench-raw").enable_all().build()?;
    let raw = {
        let sink = Sink::new(course.events());
        let receiver = loading.block_on(sink.serve())?;
        let server = forwarding.block_on(forwarder::serve(receiver))?;
        loading.block_on(measure(course, "raw forwarder", server, "no-key", &sink))?
    };
    forwarding.shutdown_background();
    let bed = Bed::new()?;
    let sink = Sink::new(course.events());
    let (server, key) = (bed.server.address, bed.server.admin_key.0.clone());
    let ours = loading.block_on(async {
        let receiver = sink.serve().await?;
        Line::connect(server, &key).await?.make_endpoint("t0", &format!("http://{receiver}/")).await?;
        measure(course, "posthaste", server, &key, &sink).await
    })?;
    bed.end()?;
    Ok(report(course, &ours, &raw))
}

impl Course {
    fn events(&self) -> usize {
        (self.rate * self.seconds) as usize
    }
}

/// An event that is due is sent at its time, or as soon as its connection is free; either way its time counts from when it
/// was due, so that a stall is not left out of what it has delayed.
async fn measure(course: &Course, name: &str, server: SocketAddr, key: &str, sink: &Arc<Sink>) -> anyhow::Result<Times> {
    show(&format!("{name}: {} events/s for {} s", course.rate, course.seconds));
    let (events, connections, rate) = (course.events(), course.connections as usize, course.rate);
    let began = tokio::time::Instant::now();
    let mut tasks = JoinSet::new();
    for first in 0..connections {
        let mut line = Line::connect(server, key).await?;
        tasks.spawn(async move {
            let mut all = Vec::new();
            for number in (first..events).step_by(connections) {
                let due = began + Duration::from_secs_f64(number as f64 / f64::from(rate));
                tokio::time::sleep_until(due).await;
                let (status, answer) = line.post("/v1/events", event("t0", number, 600)).await?;
                if status != 202 {
                    bail!("an event was answered {status}: {}", String::from_utf8_lossy(&answer));
                }
                all.push(Sent { number, began: due.into_std(), acknowledged: Instant::now() });
            }
            Ok(all)
        });
    }
    let mut published: Vec<Sent> = Vec::with_capacity(events);
    while let Some(part) = tasks.join_next().await {
        published.extend(part??);
    }
    sink.wait_for(events, PATIENCE, |_| {}).await?;
    let arrived = |sent: &Sent| sink.arrival(sent.number).map(|arrived| arrived.saturating_duration_since(sent.began));
    let mut times =
        Times { publish: published.iter().map(Sent::took).collect(), arrival: published.iter().filter_map(arrived).collect() };
    times.publish.sort_unstable();
    times.arrival.sort_unstable();
    Ok(times)
}

fn report(course: &Course, ours: &Times, raw: &Times) -> Report {
    let mut page = format!(
        "{} events/s for {} s, 600 bytes, all on this machine\n\n{:>36} {:>14} {:>14}\n",
        course.rate, course.seconds, "", "posthaste", "raw forwarder"
    );
    let mut json = json!({"bench": "latency", "rate": course.rate, "seconds": course.seconds});
    for (what, ours, raw) in [("publish", &ours.publish, &raw.publish), ("publish to arrival", &ours.arrival, &raw.arrival)] {
        for (name, percent) in PERCENTS {
            let (ours, raw) = (millis(percentile(ours, percent)), millis(percentile(raw, percent)));
            let _ = writeln!(page, "{:>36} {ours:>14.2} {raw:>14.2}", format!("{what} {name}, ms"));
            let key = format!("{}_{name}_ms", what.replace(' ', "_"));
            json["posthaste"][&key] = number(ours);
            json["raw"][&key] = number(raw);
        }
    }
    Report { page, json }
}
