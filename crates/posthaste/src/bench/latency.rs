//! How long an event takes while the server is far from busy: at a fixed rate, and at a tenth of what this machine can do, whatever the
//! server answers.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::figures::{Column, Figure, number, table};
use super::load::Plan;
use super::measure::{Measured, measure};
use super::meter::{Metered, Spread, flush_times_at};
use super::plot::Chart;
use super::process::Part;
use super::raw;
use super::testbed::BenchEnvironment;
use super::{Report, show};

#[derive(Args, Clone, Debug)]
pub(crate) struct Scenario {
    /// Events in a second; a tenth of what the machine can do is measured besides
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// For how long, each time
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// How many connections take turns, so that a slow answer holds up no publish
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    connections: u16,
    /// How large the payload of an event is
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(30..=1_000_000))]
    payload_bytes: u32,
    /// How many events it takes to find out what the machine can do
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    events: u32,
}

/// What a tenth of nothing is still worth measuring at.
const RATE_MIN: f64 = 1.0;
const LOAD_CONNECTIONS: u16 = 64;

/// What was found at one rate.
struct AtRate {
    per_second: f64,
    ours: Measured,
    raw: Measured,
    bare_store: Option<Measured>,
    /// At the same pace: it takes longer where it is seldom done.
    flush: Spread,
}

pub(super) async fn run(ground: &mut BenchEnvironment, scenario: &Scenario) -> anyhow::Result<Report> {
    let full = raw::Scenario { events: scenario.events, connections: LOAD_CONNECTIONS, payload_bytes: scenario.payload_bytes };
    let mut bed = ground.server(&[]).await?;
    bed.line().await?.make_endpoint("t0", &ground.hook(1, 0), &Value::Null).await?;
    let most = measure(ground, "as fast as it goes", &full.plan(bed.address(), &bed.key), 1, bed.metered()).await?;
    let tenth = (most.deliveries_per_second / 10.0).floor().max(RATE_MIN);
    let forwarder = ground.forwarder().await?;
    let bare_store = ground.bare_store().await?;
    let mut found = Vec::new();
    for per_second in [f64::from(scenario.rate), tenth] {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "both are bounded, and positive")]
        let events = (per_second * f64::from(scenario.seconds)).ceil() as usize;
        let at_rate = |plan: Plan| Plan {
            events,
            connections: usize::from(scenario.connections),
            requests_per_second: Some(per_second),
            ..plan
        };
        let name = format!("{per_second:.0} events/s for {} s", scenario.seconds);
        show(&name);
        let plan = at_rate(full.plan(bed.address(), &bed.key));
        let ours = measure(ground, &name, &plan, 1, bed.metered()).await?;
        let through = async |part: &Part, what: &str| {
            let plan = at_rate(full.plan(part.address(), "no-key"));
            let metered = Metered { process: part.process(), postmaster: None };
            measure(ground, &format!("{what}, {name}"), &plan, 1, metered).await
        };
        let raw = through(&forwarder, "raw").await?;
        let bare_store = match &bare_store {
            Some(part) => Some(through(part, "bare store").await?),
            None => None,
        };
        let flush = flush_times_at(&ground.scratch, events as u64, Duration::from_secs_f64(per_second.recip()))?;
        found.push(AtRate { per_second, ours, raw, bare_store, flush });
    }
    bed.stop().await?;
    Ok(report(ground, scenario, &most, &found))
}

fn column(name: String, measured: &Measured) -> Column {
    let Measured { publish, arrival, .. } = measured;
    Column::new(
        name,
        vec![
            Figure("publish p50, ms", "publish_p50_ms", publish.millis_at(500), 2),
            Figure("publish p99, ms", "publish_p99_ms", publish.millis_at(990), 2),
            Figure("publish p99.9, ms", "publish_p999_ms", publish.millis_at(999), 2),
            Figure("publish slowest, ms", "publish_slowest_ms", publish.millis_at(1000), 2),
            Figure("publish to arrival p50, ms", "publish_to_arrival_p50_ms", arrival.millis_at(500), 2),
            Figure("publish to arrival p99, ms", "publish_to_arrival_p99_ms", arrival.millis_at(990), 2),
            Figure("publish to arrival p99.9, ms", "publish_to_arrival_p999_ms", arrival.millis_at(999), 2),
            Figure("publish to arrival slowest, ms", "publish_to_arrival_slowest_ms", arrival.millis_at(1000), 2),
        ],
    )
}

fn report(ground: &BenchEnvironment, scenario: &Scenario, most: &Measured, found: &[AtRate]) -> Report {
    let mut columns = Vec::new();
    let mut rows = Vec::new();
    let mut flushes = Vec::new();
    for AtRate { per_second, ours, raw, bare_store, flush } in found {
        let [ours_shown, raw_shown] = [column(format!("at {per_second:.0}/s"), ours), column("raw".to_owned(), raw)];
        let bare_shown = bare_store.as_ref().map(|measured| column("bare store".to_owned(), measured));
        rows.push(json!({
            "rate": number(*per_second), "events": ours.publish.count(), "posthaste": ours_shown.values(), "raw": raw_shown.values(),
            "bare_store": bare_shown.as_ref().map(Column::values),
            "flush_p50_ms": number(flush.millis_at(500)), "flush_p99_ms": number(flush.millis_at(990)),
        }));
        flushes.push(format!("{:.2} ms (p99 {:.2}) at {per_second:.0}/s", flush.millis_at(500), flush.millis_at(990)));
        columns.extend([ours_shown, raw_shown].into_iter().chain(bare_shown));
    }
    let page = format!(
        "{} s at each rate, {} bytes, {}, all on this machine, which can do {:.0} deliveries/s; a flush of its disk takes {}\n\n{}",
        scenario.seconds,
        scenario.payload_bytes,
        ground.storing(),
        most.deliveries_per_second,
        flushes.join(", "),
        table(&columns)
    );
    let json = json!({
        "bench": "latency", "seconds": scenario.seconds, "connections": scenario.connections, "payload_bytes": scenario.payload_bytes,
        "database": ground.storing(), "most_deliveries_per_second": number(most.deliveries_per_second),
        "flush_p50_ms": rows[0]["flush_p50_ms"], "flush_p99_ms": rows[0]["flush_p99_ms"], "rows": rows,
    });
    let curves = |of: fn(&Measured) -> &Spread| {
        found.iter().flat_map(move |AtRate { per_second, ours, raw, bare_store, .. }| {
            let bare = bare_store.as_ref().map(|measured| (format!("bare store, at {per_second:.0}/s"), of(measured).curve()));
            [(format!("at {per_second:.0}/s"), of(ours).curve()), (format!("raw, at {per_second:.0}/s"), of(raw).curve())]
                .into_iter()
                .chain(bare)
        })
    };
    let charts = vec![
        Chart::curves("From publishing to arrival", "ms", curves(|measured| &measured.arrival)),
        Chart::curves("Publishing, until it is acknowledged", "ms", curves(|measured| &measured.publish)),
    ];
    Report { page, json, charts }
}
