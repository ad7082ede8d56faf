//! One tenant beside two bad neighbours: one whose endpoints all hang, and one that floods.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::figures::{Column, Figure, number, table};
use super::load::{Disturbance, Load, Plan};
use super::measure::arrived;
use super::meter::{Spread, mebibytes};
use super::plot::Chart;
use super::receiver::{HANGING, Receiver};
use super::testbed::{BenchEnvironment, Testbed};
use super::{Report, show};

/// What one tenant may do to another: I36.
const ALLOWED_MAX: Duration = Duration::from_secs(1);
/// An event that has not arrived by then has been moved for good.
const PATIENCE: Duration = Duration::from_secs(30);
const FLOODERS: u32 = 8;
pub(super) const PAYLOAD_BYTES: usize = 500;

#[derive(Args, Clone, Debug)]
pub(crate) struct Scenario {
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

/// How the quiet tenant fared.
pub(super) struct Fared {
    /// From the acknowledgement to the first hit.
    pub(super) delays: Spread,
    /// Published and not arrived.
    pub(super) missing: usize,
}

pub(super) async fn run(ground: &mut BenchEnvironment, scenario: &Scenario) -> anyhow::Result<Report> {
    let bed = ground.server(&[]).await?;
    let mut line = bed.line().await?;
    line.make_endpoint("quiet", &ground.hook(1, 0), &Value::Null).await?;
    show("undisturbed");
    let undisturbed = publish_quietly(ground, &bed, scenario.rate, scenario.seconds).await?;

    line.make_endpoint("flood", &ground.hook(1, 0), &Value::Null).await?;
    for made in 0..scenario.hanging {
        if made % 100 == 0 {
            show(&format!("{made} of {} endpoints that hang", scenario.hanging));
        }
        line.make_endpoint("hanging", &format!("http://{}{HANGING}", ground.receiver.address()), &Value::Null).await?;
    }
    let load = Load(&ground.load);
    let disturb = |tenant: &str, per_second, connections| Disturbance {
        server: bed.address(),
        key: bed.key.clone(),
        tenant: tenant.to_owned(),
        per_second,
        connections,
        payload_bytes: PAYLOAD_BYTES,
    };
    // One event for all that hang, and again and again, so that there is always more.
    load.disturb(&disturb("hanging", 1, 1)).await?;
    load.disturb(&disturb("flood", scenario.rate * 100, FLOODERS)).await?;
    show("beside the neighbours");
    let beside = publish_quietly(ground, &bed, scenario.rate, scenario.seconds).await?;
    let flooded = load.calm().await?;
    // What hangs would hold up a clean end for as long as its timeout, and proves nothing: it is killed with its bed.
    Ok(report(ground, scenario, &undisturbed, &beside, flooded, bed.peak_memory_bytes()))
}

/// What a quiet tenant sees: so many events a second, for so long.
pub(super) async fn publish_quietly(ground: &BenchEnvironment, bed: &Testbed, rate: u32, seconds: u32) -> anyhow::Result<Fared> {
    let events = (rate * seconds) as usize;
    let plan = Plan {
        server: bed.address(),
        key: bed.key.clone(),
        tenants: vec!["quiet".to_owned()],
        first: 0,
        events,
        connections: 1,
        payload_bytes: PAYLOAD_BYTES,
        batch: 1,
        requests_per_second: Some(f64::from(rate)),
    };
    let receiver = Receiver(&ground.receiver);
    receiver.expect(events).await?;
    let sent = Load(&ground.load).publish(&plan).await?;
    // Those that are late are counted, not waited for without end.
    let _ = receiver.wait_for(events, PATIENCE, "waiting for the last").await;
    let delays = arrived(&sent, &plan, 1, &receiver.arrivals().await?, |sent| sent.acknowledged_ns);
    Ok(Fared { missing: events - delays.count(), delays })
}

pub(super) fn column(name: &str, fared: &Fared) -> Column {
    Column::new(
        name,
        vec![
            Figure("acknowledged to first hit p50, ms", "p50_ms", fared.delays.millis_at(500), 2),
            Figure("acknowledged to first hit p99, ms", "p99_ms", fared.delays.millis_at(990), 2),
            Figure("acknowledged to first hit slowest, ms", "slowest_ms", fared.delays.millis_at(1000), 2),
            Figure("not arrived", "not_arrived", fared.missing as f64, 0),
        ],
    )
}

/// At most twice what it is without neighbours, or a second.
pub(super) fn is_kept(undisturbed: &Fared, beside: &Fared) -> bool {
    let allowed = undisturbed.delays.at(990).map(|quiet| (quiet * 2).max(ALLOWED_MAX));
    beside.missing == 0 && beside.delays.at(990).zip(allowed).is_some_and(|(beside, allowed)| beside <= allowed)
}

fn report(
    ground: &BenchEnvironment,
    scenario: &Scenario,
    undisturbed: &Fared,
    beside: &Fared,
    flooded: usize,
    memory_bytes: u64,
) -> Report {
    let is_kept = is_kept(undisturbed, beside);
    let page = format!(
        "one tenant at {}/s for {} s, beside {} endpoints that hang and a flood of {}/s ({flooded} events taken from the neighbours), {}\n\n{}\n\
         peak memory {:.1} MiB\nat most twice the undisturbed p99, or 1 s: {}\n",
        scenario.rate,
        scenario.seconds,
        scenario.hanging,
        scenario.rate * 100,
        ground.storing(),
        table(&[column("undisturbed", undisturbed), column("beside them", beside)]),
        mebibytes(memory_bytes),
        if is_kept { "kept" } else { "BROKEN" }
    );
    let json = json!({
        "bench": "noisy", "hanging": scenario.hanging, "rate": scenario.rate, "seconds": scenario.seconds, "flooded": flooded,
        "database": ground.storing(), "undisturbed_p99_ms": number(undisturbed.delays.millis_at(990)),
        "beside_p99_ms": number(beside.delays.millis_at(990)), "not_arrived": beside.missing, "is_kept": is_kept,
        "undisturbed": column("", undisturbed).values(), "beside": column("", beside).values(),
        "peak_memory_mib": number(mebibytes(memory_bytes)),
    });
    let curves = [("undisturbed".to_owned(), undisturbed.delays.curve()), ("beside them".to_owned(), beside.delays.curve())];
    Report { page, json, charts: vec![Chart::curves("A quiet tenant, from acknowledgement to first hit", "ms", curves)] }
}
