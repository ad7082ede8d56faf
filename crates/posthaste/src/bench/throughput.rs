//! As many events as it takes, from publishing to arrival: to one endpoint, to many, from one event to many deliveries, and in batches.

use clap::Args;
use serde_json::{Value, json};

use super::collector::Taken;
use super::figures::{Column, Figure, number, table};
use super::load::Plan;
use super::measure::{Measured, measure};
use super::meter::mebibytes;
use super::plot::Chart;
use super::process::Part;
use super::raw::{self, Raw, SERVER_SECONDS};
use super::testbed::{BenchEnvironment, Testbed};
use super::{Report, show};

#[derive(Args, Clone, Debug)]
pub(crate) struct Scenario {
    #[command(flatten)]
    pub(super) load: raw::Scenario,
    /// How many endpoints the second row has, each of a tenant of its own; an event goes to one of them
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    endpoints: u16,
    /// How many endpoints get each event in the third row, which publishes so many fewer
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    fan_out: u16,
    /// How many events a request has in the fourth row
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(2..=1_000))]
    batch: u16,
    /// Measure one row alone
    #[arg(long, value_name = "ROW", value_parser = ["one_endpoint", "many_endpoints", "fan_out", "batches"])]
    only: Option<String>,
    /// Count nothing, to see what counting costs
    #[arg(long, hide = true)]
    metrics_off: bool,
    /// Send the traces of this share of the events to a collector, from 0 to 1, to see what that costs
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    traces: Option<f64>,
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "a number from 0 to 1 is wanted".to_owned())
}

/// What is different from row to row.
struct Shape {
    key: &'static str,
    name: String,
    tenants: usize,
    copies: usize,
    events: usize,
    batch: usize,
}

struct Row {
    shape: Shape,
    measured: Measured,
    peak_memory_bytes: u64,
    bytes_on_disk: u64,
    taken: Option<Taken>,
}

pub(super) async fn run(ground: &mut BenchEnvironment, scenario: &Scenario) -> anyhow::Result<Report> {
    // First what the machine can do, so that both find it in the same state: idle.
    let raw = raw::everything(ground, &scenario.load).await?;
    let collector = match scenario.traces {
        Some(_) => Some(Part::start("collector", &[]).await?),
        None => None,
    };
    let mut rows = Vec::new();
    for shape in scenario.shapes().into_iter().filter(|shape| scenario.only.as_deref().is_none_or(|only| only == shape.key)) {
        rows.push(row(ground, scenario, collector.as_ref(), shape).await?);
    }
    Ok(report(ground, scenario, &rows, &raw))
}

impl Scenario {
    /// What is not as it usually is.
    fn set_apart(&self) -> String {
        let metrics = if self.metrics_off { ", metrics off" } else { "" };
        self.traces.map_or_else(|| metrics.to_owned(), |ratio| format!("{metrics}, traces of {} %", ratio * 100.0))
    }

    fn shapes(&self) -> [Shape; 4] {
        let (events, fan_out, batch) = (self.load.events as usize, usize::from(self.fan_out), usize::from(self.batch));
        let shape = |key, name: String, tenants, copies, batch| {
            // Each row has about as many deliveries as the others.
            Shape { key, name, tenants, copies, events: (events / copies).max(1), batch }
        };
        [
            shape("one_endpoint", "1 endpoint".to_owned(), 1, 1, 1),
            shape("many_endpoints", format!("{} endpoints", self.endpoints), usize::from(self.endpoints), 1, 1),
            shape("fan_out", format!("1 to {fan_out}"), 1, fan_out, 1),
            shape("batches", format!("batches of {batch}"), 1, 1, batch),
        ]
    }
}

/// With a server of its own, which has nothing to remember before.
async fn row(ground: &mut BenchEnvironment, scenario: &Scenario, collector: Option<&Part>, shape: Shape) -> anyhow::Result<Row> {
    show(&format!("{}: starting", shape.name));
    let mut set = Vec::new();
    if scenario.metrics_off {
        set.push("--metrics=false".to_owned());
    }
    if let (Some(ratio), Some(collector)) = (scenario.traces, collector) {
        set.push(format!("--otlp-endpoint=http://{}", collector.address()));
        set.push(format!("--trace-sample-ratio={ratio}"));
    }
    let mut bed = ground.server(&set.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let tenants = furnish(ground, &bed, &shape).await?;
    let plan = Plan { tenants, events: shape.events, batch: shape.batch, ..scenario.load.plan(bed.address(), &bed.key) };
    let measured = measure(ground, &shape.name, &plan, shape.copies, bed.metered()).await?;
    let peak_memory_bytes = bed.peak_memory_bytes();
    bed.stop().await?;
    let bytes_on_disk = ground.bytes_on_disk(&bed).await?;
    // After the stop, which sends the last ones.
    let taken = match collector {
        Some(collector) => Some(collector.ask("/taken", &()).await?),
        None => None,
    };
    Ok(Row { shape, measured, peak_memory_bytes, bytes_on_disk, taken })
}

async fn furnish(ground: &BenchEnvironment, bed: &Testbed, shape: &Shape) -> anyhow::Result<Vec<String>> {
    let mut line = bed.line().await?;
    let tenants: Vec<String> = (0..shape.tenants).map(|number| format!("t{number}")).collect();
    for tenant in &tenants {
        for copy in 0..shape.copies {
            line.make_endpoint(tenant, &ground.hook(shape.copies, copy), &Value::Null).await?;
        }
    }
    Ok(tenants)
}

impl Row {
    fn column(&self, raw: &Raw) -> Column {
        let Row { shape, measured, .. } = self;
        let client = if shape.copies > 1 { measured.deliveries_per_second / raw.client_posts_per_second } else { f64::NAN };
        let mut figures = vec![
            Figure("events published/s", "publishes_per_second", measured.publishes_per_second, 0),
            Figure("publish p50, ms", "publish_p50_ms", measured.publish.millis_at(500), 2),
            Figure("publish p99, ms", "publish_p99_ms", measured.publish.millis_at(990), 2),
            Figure("deliveries/s", "deliveries_per_second", measured.deliveries_per_second, 0),
            Figure("publish to arrival p50, ms", "publish_to_arrival_p50_ms", measured.arrival.millis_at(500), 2),
            Figure("publish to arrival p99, ms", "publish_to_arrival_p99_ms", measured.arrival.millis_at(990), 2),
            Figure(SERVER_SECONDS.0, SERVER_SECONDS.1, measured.server_seconds_per_thousand(), 3),
        ];
        let database = measured.database_seconds_per_thousand();
        figures.push(Figure("database CPU s per 1,000 deliveries", "database_cpu_seconds_per_1000", database, 3));
        figures.extend([
            Figure("peak memory, MiB", "peak_memory_mib", mebibytes(self.peak_memory_bytes), 1),
            Figure(
                "bytes on disk per delivery",
                "disk_bytes_per_delivery",
                self.bytes_on_disk as f64 / measured.deliveries as f64,
                0,
            ),
            Figure("ratio_to_raw", "ratio_to_raw", measured.deliveries_per_second / raw.forwarder.deliveries_per_second, 3),
            Figure("ratio to the raw client", "ratio_to_raw_client", client, 3),
            Figure(
                "publish p99 to that of group commit",
                "publish_p99_ratio_to_group_commit",
                if shape.batch == 1 { measured.publish.millis_at(990) / raw.writer.publish.millis_at(990) } else { f64::NAN },
                2,
            ),
        ]);
        if let Some(bare) = &raw.bare_store {
            let seconds = measured.server_seconds_per_thousand() / bare.server_seconds_per_thousand();
            let rate = measured.deliveries_per_second / bare.deliveries_per_second;
            figures.push(Figure("CPU to that of the bare store", "cpu_ratio_to_bare_store", seconds, 2));
            figures.push(Figure("deliveries/s to the bare store's", "ratio_to_bare_store", rate, 2));
        }
        if let Some(taken) = self.taken {
            figures.push(Figure("spans that the collector got", "spans", taken.spans as f64, 0));
            figures.push(Figure("requests that they came in", "span_requests", taken.requests as f64, 0));
        }
        Column::new(shape.name.clone(), figures)
    }
}

fn report(ground: &BenchEnvironment, scenario: &Scenario, rows: &[Row], raw: &Raw) -> Report {
    let ours: Vec<Column> = rows.iter().map(|row| row.column(raw)).collect();
    let columns: Vec<Column> = ours.iter().cloned().chain(raw.columns()).collect();
    let page = format!(
        "{} events of {} bytes, {} connections, {}, all on this machine{}; a flush of its disk takes {:.2} ms\n\n{}\n{}{}",
        scenario.load.events,
        scenario.load.payload_bytes,
        scenario.load.connections,
        ground.storing(),
        scenario.set_apart(),
        raw.flush.millis_at(500),
        table(&columns),
        raw::LEGEND,
        ground.remark()
    );
    let row_values = rows.iter().zip(&ours).map(|(row, column)| {
        let mut values = column.values();
        values["name"] = row.shape.key.into();
        values["events"] = row.shape.events.into();
        values["deliveries"] = row.measured.deliveries.into();
        values
    });
    let ratio = rows.first().map_or(f64::NAN, |row| row.measured.deliveries_per_second / raw.forwarder.deliveries_per_second);
    let json = json!({
        "bench": "throughput", "events": scenario.load.events, "connections": scenario.load.connections, "endpoints": scenario.endpoints,
        "fan_out": scenario.fan_out, "batch": scenario.batch, "payload_bytes": scenario.load.payload_bytes, "database": ground.storing(),
        "metrics": !scenario.metrics_off, "traces": scenario.traces, "rows": row_values.collect::<Vec<_>>(), "raw": raw.values(), "ratio_to_raw": number(ratio),
    });
    Report { page, json, charts: charts(rows, raw) }
}

fn charts(rows: &[Row], raw: &Raw) -> Vec<Chart> {
    let rates = rows.iter().map(|row| (row.shape.name.clone(), row.measured.deliveries_per_second));
    let beside =
        [("raw forwarder".to_owned(), raw.forwarder.deliveries_per_second), ("raw client".to_owned(), raw.client_posts_per_second)];
    let seconds = rows.iter().map(|row| {
        let database = row.measured.database_seconds_per_thousand();
        let seconds = row.measured.server_seconds_per_thousand() + if database.is_finite() { database } else { 0.0 };
        (row.shape.name.clone(), seconds * 1000.0)
    });
    let bare = raw.bare_store.iter().map(|measured| ("bare store".to_owned(), measured));
    let bare_rate = bare.clone().map(|(name, measured)| (name, measured.deliveries_per_second));
    let without_us = bare.chain([("raw forwarder".to_owned(), &raw.forwarder)]);
    let microseconds = without_us.map(|(name, measured)| (name, measured.server_seconds_per_thousand() * 1000.0));
    let publishing =
        rows.iter().filter(|row| row.shape.batch == 1).map(|row| (row.shape.name.clone(), row.measured.publish.curve()));
    let others =
        [("raw forwarder".to_owned(), raw.forwarder.publish.curve()), ("group commit".to_owned(), raw.writer.publish.curve())];
    let arriving = rows.iter().map(|row| (row.shape.name.clone(), row.measured.arrival.curve()));
    vec![
        Chart::bars("Deliveries", "a second", rates.chain(bare_rate).chain(beside)),
        Chart::bars("Processor time, server and database", "µs per delivery", seconds.chain(microseconds)),
        Chart::curves("Publishing, until it is acknowledged", "ms", publishing.chain(others)),
        Chart::curves("From publishing to arrival, at full load", "ms", arriving),
    ]
}
