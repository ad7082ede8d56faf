//! What a backlog costs those who are not in it: the same load with nothing waiting and with a great deal, how long a restart takes
//! then, and how much memory. Half of what waits is paused, the other half is in quiet hours.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::figures::{Column, Figure, grouped, number, table};
use super::load::{Load, Plan};
use super::measure::{Measured, measure};
use super::meter::mebibytes;
use super::plot::Chart;
use super::raw;
use super::testbed::{BenchEnvironment, Testbed};
use super::{Report, show};

#[derive(Args, Clone, Debug)]
pub(crate) struct Scenario {
    /// How many deliveries wait, one after the other; 10000000 is worth a coffee
    #[arg(long, value_delimiter = ',', default_value = "0,100000,1000000", value_parser = clap::value_parser!(u32).range(0..=100_000_000))]
    waiting: Vec<u32>,
    #[command(flatten)]
    load: raw::Scenario,
}

/// One event makes so many that wait, half of them for a paused endpoint and half for one in quiet hours.
const COPIES: usize = 10;
/// How many events one request brings while the backlog is made.
const BATCH: usize = 100;
/// How many deliveries are made between two looks at the progress.
const STEP: usize = 50_000;
const FILLING_CONNECTIONS: usize = 8;

struct Row {
    waiting: usize,
    measured: Measured,
    filled_per_second: f64,
    peak_memory_bytes: u64,
    stopped: Duration,
    restarted: Duration,
    /// From the start to the first delivery of something new.
    first_delivery: Duration,
    resident_after_restart_bytes: u64,
    bytes_on_disk: u64,
}

pub(super) async fn run(ground: &mut BenchEnvironment, scenario: &Scenario) -> anyhow::Result<Report> {
    let mut bed = ground.server(&[]).await?;
    furnish(ground, &bed).await?;
    let mut waiting: Vec<usize> = scenario.waiting.iter().map(|count| *count as usize).collect();
    waiting.sort_unstable();
    let (mut rows, mut there) = (Vec::new(), 0);
    for waiting in waiting {
        let filled_per_second = fill(ground, &bed, scenario, there, waiting).await?;
        there = there.max(waiting);
        rows.push(row(ground, &mut bed, scenario, waiting, filled_per_second).await?);
    }
    bed.stop().await?;
    Ok(report(ground, scenario, &rows))
}

async fn furnish(ground: &BenchEnvironment, bed: &Testbed) -> anyhow::Result<()> {
    let mut line = bed.line().await?;
    line.make_endpoint("t0", &ground.hook(1, 0), &Value::Null).await?;
    // It began an hour ago, and does not end while anybody measures.
    let now = Timestamp::now();
    let at = |time: Timestamp| time.strftime("%H:%M").to_string();
    let quiet_hours = [json!({"start": at(now - Duration::from_hours(1)), "end": at(now + Duration::from_hours(22))})];
    let quiet = json!({"delivery_schedule": {"timezone": "UTC", "quiet_hours": quiet_hours}});
    for number in 0..COPIES {
        let url = ground.hook(COPIES, number);
        if number % 2 == 0 {
            let endpoint = line.make_endpoint("waiting", &url, &Value::Null).await?;
            line.pause(&endpoint).await?;
        } else {
            line.make_endpoint("waiting", &url, &quiet).await?;
        }
    }
    Ok(())
}

/// Answers how many deliveries a second were written; not a number where there was nothing to do.
async fn fill(ground: &BenchEnvironment, bed: &Testbed, scenario: &Scenario, there: usize, waiting: usize) -> anyhow::Result<f64> {
    let began = std::time::Instant::now();
    let mut made = there;
    while made < waiting {
        show(&format!("{} of {} deliveries wait", grouped(made as f64, 0), grouped(waiting as f64, 0)));
        let events = (waiting - made).min(STEP).div_ceil(COPIES);
        let plan = Plan {
            tenants: vec!["waiting".to_owned()],
            first: made / COPIES,
            events,
            connections: FILLING_CONNECTIONS.min(events.div_ceil(BATCH)),
            batch: BATCH,
            ..scenario.load.plan(bed.address(), &bed.key)
        };
        Load(&ground.load).publish(&plan).await?;
        made += events * COPIES;
    }
    Ok(if made > there { (made - there) as f64 / began.elapsed().as_secs_f64() } else { f64::NAN })
}

async fn row(
    ground: &BenchEnvironment,
    bed: &mut Testbed,
    scenario: &Scenario,
    waiting: usize,
    filled_per_second: f64,
) -> anyhow::Result<Row> {
    let name = format!("{} waiting", grouped(waiting as f64, 0));
    let measured = measure(ground, &name, &scenario.load.plan(bed.address(), &bed.key), 1, bed.metered()).await?;
    let peak_memory_bytes = bed.peak_memory_bytes();
    show(&format!("{name}: restarting"));
    let stopped = bed.stop().await?;
    let bytes_on_disk = ground.bytes_on_disk(bed).await?;
    let began = std::time::Instant::now();
    let restarted = bed.start_again().await?;
    let one = Plan { events: 1, connections: 1, ..scenario.load.plan(bed.address(), &bed.key) };
    measure(ground, &name, &one, 1, bed.metered()).await?;
    let first_delivery = began.elapsed();
    let resident_after_restart_bytes = bed.resident_bytes();
    Ok(Row {
        waiting,
        measured,
        filled_per_second,
        peak_memory_bytes,
        stopped,
        restarted,
        first_delivery,
        resident_after_restart_bytes,
        bytes_on_disk,
    })
}

fn report(ground: &BenchEnvironment, scenario: &Scenario, rows: &[Row]) -> Report {
    let none = rows.first().map_or(f64::NAN, |row| row.measured.deliveries_per_second);
    let columns: Vec<Column> = rows
        .iter()
        .map(|row| {
            let measured = &row.measured;
            Column::new(
                format!("{} wait", grouped(row.waiting as f64, 0)),
                vec![
                    Figure("deliveries/s while it was made", "filled_per_second", row.filled_per_second, 0),
                    Figure("events published/s", "publishes_per_second", measured.publishes_per_second, 0),
                    Figure("publish p50, ms", "publish_p50_ms", measured.publish.millis_at(500), 2),
                    Figure("publish p99, ms", "publish_p99_ms", measured.publish.millis_at(990), 2),
                    Figure("deliveries/s", "deliveries_per_second", measured.deliveries_per_second, 0),
                    Figure("ratio to the first", "ratio_to_first", measured.deliveries_per_second / none, 3),
                    Figure(raw::SERVER_SECONDS.0, raw::SERVER_SECONDS.1, measured.server_seconds_per_thousand(), 3),
                    Figure(
                        "database CPU s per 1,000 deliveries",
                        "database_cpu_seconds_per_1000",
                        measured.database_seconds_per_thousand(),
                        3,
                    ),
                    Figure("peak memory, MiB", "peak_memory_mib", mebibytes(row.peak_memory_bytes), 1),
                    Figure("stopped within, s", "stop_seconds", row.stopped.as_secs_f64(), 3),
                    Figure("ready again after, s", "restart_seconds", row.restarted.as_secs_f64(), 3),
                    Figure("delivers again after, s", "first_delivery_seconds", row.first_delivery.as_secs_f64(), 3),
                    Figure("memory then, MiB", "memory_after_restart_mib", mebibytes(row.resident_after_restart_bytes), 1),
                    Figure("MiB on disk", "disk_mib", mebibytes(row.bytes_on_disk), 1),
                ],
            )
        })
        .collect();
    let page = format!(
        "{} events of {} bytes, {} connections, one endpoint, {}, all on this machine, beside what waits\n\n{}\n{}",
        scenario.load.events,
        scenario.load.payload_bytes,
        scenario.load.connections,
        ground.storing(),
        table(&columns),
        ground.remark()
    );
    let values = rows.iter().zip(&columns).map(|(row, column)| {
        let mut values = column.values();
        values["waiting"] = row.waiting.into();
        values
    });
    let json = json!({
        "bench": "backlog", "events": scenario.load.events, "connections": scenario.load.connections,
        "payload_bytes": scenario.load.payload_bytes, "database": ground.storing(), "rows": values.collect::<Vec<_>>(),
        "last_ratio_to_first": number(rows.last().map_or(f64::NAN, |row| row.measured.deliveries_per_second / none)),
    });
    let bars = |of: fn(&Row) -> f64| rows.iter().map(move |row| (format!("{} wait", grouped(row.waiting as f64, 0)), of(row)));
    let charts = vec![
        Chart::bars("Deliveries", "a second", bars(|row| row.measured.deliveries_per_second)),
        Chart::bars("Ready again after a restart", "s", bars(|row| row.restarted.as_secs_f64())),
        Chart::bars("Peak memory", "MiB", bars(|row| mebibytes(row.peak_memory_bytes))),
    ];
    Report { page, json, charts }
}
