//! An endpoint comes back after an outage, with a great deal waiting for it: how long until all of it has arrived, and what the
//! others notice of that.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::figures::{Column, grouped, number, table};
use super::load::{Load, Plan};
use super::measure::{PATIENCE, arrived, per_second};
use super::meter::{mebibytes, now_ns};
use super::noisy::{self, Fared};
use super::plot::Chart;
use super::receiver::{RECOVERING, Receiver};
use super::testbed::{BenchEnvironment, Testbed};
use super::{Report, show};

#[derive(Args, Clone, Debug)]
pub(crate) struct Scenario {
    /// How many deliveries wait for the endpoint when it comes back
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    waiting: u32,
    /// How many events a second another tenant publishes meanwhile
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// For how long before, to compare with
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// How large the payload of an event is
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(30..=1_000_000))]
    payload_bytes: u32,
}

const BATCH: usize = 100;
const STEP: usize = 10_000;
/// So many bystanders' events are published at a time, until all has arrived.
const BYSTANDER_SECONDS: usize = 1;
/// The list of arrivals has room for bystanders for so long.
const BYSTANDER_SECONDS_MAX: usize = 600;

struct Recovered {
    until_first: Duration,
    until_last: Duration,
    per_second: f64,
    bystander: Fared,
    peak_memory_bytes: u64,
    server_seconds_per_thousand: f64,
}

pub(super) async fn run(ground: &mut BenchEnvironment, scenario: &Scenario) -> anyhow::Result<Report> {
    let bed = ground.server(&[]).await?;
    let receiver = Receiver(&ground.receiver);
    receiver.set_down(true).await?;
    let mut line = bed.line().await?;
    line.make_endpoint("bystander", &ground.hook(1, 0), &Value::Null).await?;
    // Tried again every second, so that what is measured is the drain and not a schedule.
    let eager = json!({
        "retry": {"strategy": "schedule", "delays_seconds": vec![1; 49], "jitter_percent": 0, "max_attempts": 50},
        "circuit": {"failure_threshold": 5, "probe_interval_seconds": 1},
    });
    let url = format!("http://{}{RECOVERING}/1/0", ground.receiver.address());
    line.make_endpoint("recovering", &url, &eager).await?;
    let (waiting, bystanders) = (scenario.waiting as usize, scenario.rate as usize * BYSTANDER_SECONDS_MAX);
    receiver.expect(waiting + bystanders).await?;
    show("undisturbed");
    let mut bystander = Bystander::new(ground, &bed, scenario);
    for _ in 0..scenario.seconds {
        bystander.publish().await?;
    }
    let undisturbed = bystander.fared().await?;
    fill(ground, &bed, scenario).await?;
    let recovered = recover(ground, &bed, scenario, bystander).await?;
    // The endpoint may have other retries to come; it is killed with its bed.
    Ok(report(ground, scenario, &undisturbed, &recovered))
}

/// Those for the endpoint that is down have the first numbers, and bystanders those after them.
struct Bystander<'a> {
    ground: &'a BenchEnvironment,
    plan: Plan,
    first: usize,
    sent: Vec<super::load::Sent>,
}

impl Bystander<'_> {
    fn new<'a>(ground: &'a BenchEnvironment, bed: &Testbed, scenario: &Scenario) -> Bystander<'a> {
        let plan = Plan {
            server: bed.address(),
            key: bed.key.clone(),
            tenants: vec!["bystander".to_owned()],
            first: scenario.waiting as usize,
            events: scenario.rate as usize * BYSTANDER_SECONDS,
            connections: 4,
            payload_bytes: scenario.payload_bytes as usize,
            batch: 1,
            requests_per_second: Some(f64::from(scenario.rate)),
        };
        Bystander { ground, first: plan.first, plan, sent: Vec::new() }
    }

    /// For a second.
    async fn publish(&mut self) -> anyhow::Result<()> {
        self.sent.extend(Load(&self.ground.load).publish(&self.plan).await?);
        self.plan.first += self.plan.events;
        Ok(())
    }

    /// Since it was last asked.
    async fn fared(&mut self) -> anyhow::Result<Fared> {
        let receiver = Receiver(&self.ground.receiver);
        let began = std::time::Instant::now();
        loop {
            let arrivals = receiver.arrivals().await?;
            let whole = Plan { first: self.first, events: self.plan.first - self.first, ..self.plan.clone() };
            let delays = arrived(&self.sent, &whole, 1, &arrivals, |sent| sent.acknowledged_ns);
            let missing = self.sent.len() - delays.count();
            if missing == 0 || began.elapsed() > PATIENCE {
                self.sent.clear();
                self.first = self.plan.first;
                return Ok(Fared { delays, missing });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn fill(ground: &BenchEnvironment, bed: &Testbed, scenario: &Scenario) -> anyhow::Result<()> {
    let waiting = scenario.waiting as usize;
    for first in (0..waiting).step_by(STEP) {
        show(&format!("down: {} of {} wait", grouped(first as f64, 0), grouped(waiting as f64, 0)));
        let events = STEP.min(waiting - first);
        let plan = Plan {
            server: bed.address(),
            key: bed.key.clone(),
            tenants: vec!["recovering".to_owned()],
            first,
            events,
            connections: events.div_ceil(BATCH).min(8),
            payload_bytes: scenario.payload_bytes as usize,
            batch: BATCH,
            requests_per_second: None,
        };
        Load(&ground.load).publish(&plan).await?;
    }
    Ok(())
}

async fn recover(
    ground: &BenchEnvironment,
    bed: &Testbed,
    scenario: &Scenario,
    mut bystander: Bystander<'_>,
) -> anyhow::Result<Recovered> {
    let receiver = Receiver(&ground.receiver);
    let (waiting, before) = (scenario.waiting as usize, bed.metered().used());
    let bystanders_before = receiver.count().await?;
    let back = now_ns();
    receiver.set_down(false).await?;
    let mut last = (0, std::time::Instant::now());
    for _ in 0..BYSTANDER_SECONDS_MAX - scenario.seconds.min(300) as usize {
        bystander.publish().await?;
        let drained = receiver.arrivals().await?.iter().take(waiting).flatten().count();
        show(&format!("back: {} of {} arrived", grouped(drained as f64, 0), grouped(waiting as f64, 0)));
        if drained == waiting {
            break;
        }
        if drained > last.0 {
            last = (drained, std::time::Instant::now());
        }
        anyhow::ensure!(last.1.elapsed() < PATIENCE, "{drained} of {waiting} arrived, and then none for {} s", PATIENCE.as_secs());
    }
    let used = bed.metered().used_when_settled().await.since(&before);
    let fared = bystander.fared().await?;
    let arrivals = receiver.arrivals().await?;
    let drained = arrivals.get(..waiting).unwrap_or_default();
    let missing = drained.iter().filter(|at| at.is_none()).count();
    anyhow::ensure!(missing == 0, "{missing} of {waiting} have not arrived");
    let first = drained.iter().flatten().copied().min().unwrap_or(back);
    let all = drained.iter().flatten().copied().max().unwrap_or(back);
    let deliveries = receiver.count().await? - bystanders_before;
    Ok(Recovered {
        until_first: Duration::from_nanos(first.saturating_sub(back)),
        until_last: Duration::from_nanos(all.saturating_sub(back)),
        per_second: per_second(waiting, first, all),
        bystander: fared,
        peak_memory_bytes: bed.peak_memory_bytes(),
        server_seconds_per_thousand: used.server * 1000.0 / deliveries.max(1) as f64,
    })
}

fn report(ground: &BenchEnvironment, scenario: &Scenario, undisturbed: &Fared, recovered: &Recovered) -> Report {
    let Recovered { until_first, until_last, per_second, bystander, peak_memory_bytes, server_seconds_per_thousand } = recovered;
    let columns: [Column; 2] = [noisy::column("undisturbed", undisturbed), noisy::column("meanwhile", bystander)];
    let page = format!(
        "an endpoint comes back with {} deliveries waiting, {}; another tenant publishes {}/s\n\n\
         first of them after {:.2} s (it was tried again every second), the last after {:.2} s: {} deliveries/s\n\
         server CPU s per 1,000 deliveries {server_seconds_per_thousand:.3}, peak memory {:.1} MiB\n\nthe other tenant:\n{}",
        grouped(f64::from(scenario.waiting), 0),
        ground.storing(),
        scenario.rate,
        until_first.as_secs_f64(),
        until_last.as_secs_f64(),
        grouped(*per_second, 0),
        mebibytes(*peak_memory_bytes),
        table(&columns)
    );
    let json = json!({
        "bench": "recovery", "waiting": scenario.waiting, "rate": scenario.rate, "payload_bytes": scenario.payload_bytes,
        "database": ground.storing(), "until_first_seconds": number(until_first.as_secs_f64()),
        "until_last_seconds": number(until_last.as_secs_f64()), "deliveries_per_second": number(*per_second),
        "server_cpu_seconds_per_1000": number(*server_seconds_per_thousand), "peak_memory_mib": number(mebibytes(*peak_memory_bytes)),
        "undisturbed": columns[0].values(), "meanwhile": columns[1].values(), "is_kept": noisy::is_kept(undisturbed, bystander),
    });
    let curves = [("undisturbed".to_owned(), undisturbed.delays.curve()), ("meanwhile".to_owned(), bystander.delays.curve())];
    let charts = vec![
        Chart::bars("Deliveries to the endpoint that came back", "a second", [("drained".to_owned(), *per_second)]),
        Chart::curves("Another tenant, from acknowledgement to first hit", "ms", curves),
    ];
    Report { page, json, charts }
}
