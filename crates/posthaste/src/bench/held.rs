//! Memory with a large backlog in quiet hours, and what another tenant sees when all windows open at once.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::figures::{Column, Figure, grouped, number, table};
use super::line::Line;
use super::load::{Load, Plan};
use super::meter::mebibytes;
use super::noisy::{Fared, PAYLOAD_BYTES, publish_quietly};
use super::plot::Chart;
use super::testbed::{BenchEnvironment, Testbed};
use super::{Report, show};

/// By how much memory may differ between the sizes, in percent.
const MEMORY_MAY_DIFFER_PERCENT: f64 = 10.0;
/// The opening may delay another tenant's delivery by no more than this.
const DELAY_MAX: Duration = Duration::from_secs(1);
/// Time between the last change of a window and its end.
const OPENS_AFTER: Duration = Duration::from_secs(5);
/// Events in one publish request while the backlog is made.
const BATCH_EVENTS: usize = 500;
const FILLING_CONNECTIONS: usize = 4;
/// Events published between two progress lines.
const STEP_EVENTS: usize = 50_000;
/// The receiver counts events below this number; those of the backlog are above it.
const FIRST_HELD: usize = 10_000_000;

#[derive(Args, Clone, Debug)]
pub(crate) struct Scenario {
    /// How many events are held, one size after the other
    #[arg(long, value_delimiter = ',', default_value = "2000000,4000000", value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    events: Vec<u32>,
    /// How many endpoints hold them, each of a tenant of its own
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    lanes: u32,
    /// Events per second of the other tenant
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: u32,
    /// How long the other tenant publishes, from just before the opening on
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
}

struct Row {
    events: usize,
    filled_per_second: f64,
    /// With everything held.
    resident_bytes: u64,
    /// Until the end of the opening.
    peak_memory_bytes: u64,
    before: Fared,
    opening: Fared,
}

pub(super) async fn run(ground: &mut BenchEnvironment, scenario: &Scenario) -> anyhow::Result<Report> {
    let mut sizes: Vec<usize> = scenario.events.iter().map(|events| *events as usize).collect();
    sizes.sort_unstable();
    let mut rows = Vec::new();
    for events in sizes {
        rows.push(row(ground, scenario, events).await?);
    }
    Ok(report(ground, scenario, &rows))
}

async fn row(ground: &mut BenchEnvironment, scenario: &Scenario, events: usize) -> anyhow::Result<Row> {
    // Each size on a server of its own: a peak is of the whole life of a process.
    let bed = ground.server(&[]).await?;
    let mut line = bed.line().await?;
    line.make_endpoint("quiet", &ground.hook(1, 0), &Value::Null).await?;
    let endpoints = make_lanes(ground, &mut line, scenario).await?;
    let filled_per_second = fill(ground, &bed, scenario, events).await?;
    let before = publish_quietly(ground, &bed, scenario.rate, scenario.seconds.min(10)).await?;
    let resident_bytes = bed.resident_bytes();
    let opens_in = open_all(&mut line, &endpoints).await?;
    tokio::time::sleep(opens_in.saturating_sub(Duration::from_secs(1))).await;
    show(&format!("{} events: all windows open", grouped(events as f64, 0)));
    let opening = publish_quietly(ground, &bed, scenario.rate, scenario.seconds).await?;
    Ok(Row { events, filled_per_second, resident_bytes, peak_memory_bytes: bed.peak_memory_bytes(), before, opening })
}

fn window(until: Timestamp) -> Value {
    let maintenance = [json!({"from": "2020-01-01T00:00:00Z", "until": until.to_string()})];
    json!({"delivery_schedule": {"timezone": "UTC", "maintenance": maintenance}})
}

async fn make_lanes(ground: &BenchEnvironment, line: &mut Line, scenario: &Scenario) -> anyhow::Result<Vec<String>> {
    let held = window(Timestamp::now() + Duration::from_hours(24));
    let url = format!("http://{}/held", ground.receiver.address());
    let mut endpoints = Vec::new();
    for lane in 0..scenario.lanes {
        if lane % 100 == 0 {
            show(&format!("{lane} of {} endpoints", scenario.lanes));
        }
        endpoints.push(line.make_endpoint(&tenant(lane), &url, &held).await?);
    }
    Ok(endpoints)
}

fn tenant(lane: u32) -> String {
    format!("held-{lane}")
}

async fn fill(ground: &BenchEnvironment, bed: &Testbed, scenario: &Scenario, events: usize) -> anyhow::Result<f64> {
    let began = std::time::Instant::now();
    let mut made = 0;
    while made < events {
        show(&format!("{} of {} events held", grouped(made as f64, 0), grouped(events as f64, 0)));
        let step = (events - made).min(STEP_EVENTS);
        let plan = Plan {
            server: bed.address(),
            key: bed.key.clone(),
            tenants: (0..scenario.lanes).map(tenant).collect(),
            first: FIRST_HELD + made,
            events: step,
            connections: FILLING_CONNECTIONS.min(step.div_ceil(BATCH_EVENTS)),
            payload_bytes: PAYLOAD_BYTES,
            batch: BATCH_EVENTS,
            requests_per_second: None,
        };
        Load(&ground.load).publish(&plan).await?;
        made += step;
    }
    Ok(events as f64 / began.elapsed().as_secs_f64())
}

/// Lets all windows end at one moment. Returns the time until then.
async fn open_all(line: &mut Line, endpoints: &[String]) -> anyhow::Result<Duration> {
    // Changing a thousand endpoints takes a second or two.
    let allowance = OPENS_AFTER + Duration::from_millis(20) * u32::try_from(endpoints.len())?;
    let opens_at = Timestamp::now() + allowance;
    let change = window(opens_at);
    for (changed, endpoint) in endpoints.iter().enumerate() {
        if changed % 100 == 0 {
            show(&format!("{changed} of {} windows set to end", endpoints.len()));
        }
        line.change_endpoint(endpoint, &change).await?;
    }
    Ok(Duration::try_from(Timestamp::now().duration_until(opens_at)).unwrap_or_default())
}

fn slowest(fared: &Fared) -> f64 {
    fared.delays.millis_at(1000)
}

fn report(ground: &BenchEnvironment, scenario: &Scenario, rows: &[Row]) -> Report {
    let columns: Vec<Column> = rows
        .iter()
        .map(|row| {
            Column::new(
                format!("{} held", grouped(row.events as f64, 0)),
                vec![
                    Figure("events published/s while it was made", "filled_per_second", row.filled_per_second, 0),
                    Figure("memory with all held, MiB", "memory_mib", mebibytes(row.resident_bytes), 1),
                    Figure("peak memory, opening included, MiB", "peak_memory_mib", mebibytes(row.peak_memory_bytes), 1),
                    Figure("other tenant before the opening, p99, ms", "before_p99_ms", row.before.delays.millis_at(990), 2),
                    Figure("other tenant at the opening, p99, ms", "opening_p99_ms", row.opening.delays.millis_at(990), 2),
                    Figure("other tenant at the opening, slowest, ms", "opening_slowest_ms", slowest(&row.opening), 2),
                    Figure("other tenant, not arrived", "not_arrived", row.opening.missing as f64, 0),
                ],
            )
        })
        .collect();
    let memory = |row: &Row| mebibytes(row.resident_bytes);
    let least = rows.iter().map(memory).fold(f64::INFINITY, f64::min);
    let most = rows.iter().map(memory).fold(0.0, f64::max);
    let grows_percent = (most / least - 1.0) * 100.0;
    let is_flat = grows_percent <= MEMORY_MAY_DIFFER_PERCENT;
    let delay_max_ms = DELAY_MAX.as_secs_f64() * 1000.0;
    let is_undelayed = rows.iter().all(|row| row.opening.missing == 0 && slowest(&row.opening) <= delay_max_ms);
    let word = |is_kept: bool| if is_kept { "kept" } else { "BROKEN" };
    let page = format!(
        "events held by quiet hours at {} endpoints, each of a tenant of its own; another tenant publishes {}/s for {} s; {}\n\n{}\n\
         memory differs by {grows_percent:.1} %, at most {MEMORY_MAY_DIFFER_PERCENT} %: {}\n\
         no delivery of the other tenant is delayed by more than 1 s: {}\n",
        scenario.lanes,
        scenario.rate,
        scenario.seconds,
        ground.storing(),
        table(&columns),
        word(is_flat),
        word(is_undelayed),
    );
    let values = rows.iter().zip(&columns).map(|(row, column)| {
        let mut values = column.values();
        values["events"] = row.events.into();
        values
    });
    let json = json!({
        "bench": "held", "lanes": scenario.lanes, "rate": scenario.rate, "seconds": scenario.seconds, "database": ground.storing(),
        "rows": values.collect::<Vec<_>>(), "memory_grows_percent": number(grows_percent), "is_flat": is_flat, "is_undelayed": is_undelayed,
    });
    let bars = rows.iter().map(|row| (format!("{} held", grouped(row.events as f64, 0)), memory(row)));
    Report { page, json, charts: vec![Chart::bars("Memory with all held", "MiB", bars)] }
}
