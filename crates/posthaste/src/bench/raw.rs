//! What this machine does without Posthaste: a forwarder that remembers nothing, the client alone, a bare group-committing writer, the
//! least that stores and forwards, and the disk. Other measurements are told beside these.

use clap::Args;
use serde_json::{Value, json};

use super::figures::{Column, Figure, number, table};
use super::forwarder::{Alone, post_alone};
use super::load::Plan;
use super::measure::{Measured, PATIENCE, measure, per_second};
use super::meter::{Metered, Spread, flush_times, mebibytes, now_ns, peak_memory_bytes};
use super::plot::Chart;
use super::process::Part;
use super::receiver::Receiver;
use super::testbed::BenchEnvironment;
use super::{Report, show};

// Part of other courses, too, which have a group of arguments by the same name.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct Scenario {
    /// How many events
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    pub(super) events: u32,
    /// How many connections publish at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4_000))]
    pub(super) connections: u16,
    /// How large the payload of an event is
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(30..=1_000_000))]
    pub(super) payload_bytes: u32,
}

impl Scenario {
    /// For one endpoint of one tenant, each event in a request of its own.
    pub(super) fn plan(&self, server: std::net::SocketAddr, key: &str) -> Plan {
        Plan {
            server,
            key: key.to_owned(),
            tenants: vec!["t0".to_owned()],
            first: 0,
            events: self.events as usize,
            connections: usize::from(self.connections),
            payload_bytes: self.payload_bytes as usize,
            batch: 1,
            requests_per_second: None,
        }
    }
}

pub(super) async fn run(ground: &mut BenchEnvironment, scenario: &Scenario) -> anyhow::Result<Report> {
    let raw = everything(ground, scenario).await?;
    let page = format!("{}\n\n{}\n{}", raw.told(scenario), table(&raw.columns()), LEGEND);
    let mut json = raw.values();
    json["bench"] = "raw".into();
    json["events"] = scenario.events.into();
    json["connections"] = scenario.connections.into();
    json["payload_bytes"] = scenario.payload_bytes.into();
    Ok(Report { page, json, charts: vec![raw.chart()] })
}

/// What stands beside a throughput.
pub(super) struct Raw {
    pub(super) forwarder: Measured,
    forwarder_memory_bytes: u64,
    /// What the client alone can post, with as many requests at once as ten endpoints may have.
    pub(super) client_posts_per_second: f64,
    client_seconds_per_thousand: f64,
    pub(super) writer: Written,
    /// On SQLite.
    pub(super) bare_store: Option<Measured>,
    bare_store_memory_bytes: u64,
    pub(super) flush: Spread,
}

/// What the bare writer has taken.
pub(super) struct Written {
    publishes_per_second: f64,
    pub(super) publish: Spread,
    seconds_per_thousand: f64,
}

/// Ten endpoints with sixteen each.
const CLIENT_IN_FLIGHT: usize = 160;

pub(super) async fn everything(ground: &BenchEnvironment, scenario: &Scenario) -> anyhow::Result<Raw> {
    let flush = flush_times(&ground.scratch)?;
    let part = ground.forwarder().await?;
    let forwarder = through(ground, scenario, &part, "raw forwarder").await?;
    let forwarder_memory_bytes = peak_memory_bytes(part.process());
    let (client_posts_per_second, client_seconds_per_thousand) = client_alone(ground, scenario, &part).await?;
    drop(part);
    let writer = written(ground, scenario).await?;
    let (mut bare_store, mut bare_store_memory_bytes) = (None, 0);
    if let Some(part) = ground.bare_store().await? {
        bare_store = Some(through(ground, scenario, &part, "bare store").await?);
        bare_store_memory_bytes = peak_memory_bytes(part.process());
    }
    Ok(Raw {
        forwarder,
        forwarder_memory_bytes,
        client_posts_per_second,
        client_seconds_per_thousand,
        writer,
        bare_store,
        bare_store_memory_bytes,
        flush,
    })
}

/// From the load through this to the receiver.
async fn through(ground: &BenchEnvironment, scenario: &Scenario, part: &Part, name: &str) -> anyhow::Result<Measured> {
    let metered = Metered { process: part.process(), postmaster: None };
    measure(ground, name, &scenario.plan(part.address(), "no-key"), 1, metered).await
}

async fn client_alone(ground: &BenchEnvironment, scenario: &Scenario, part: &Part) -> anyhow::Result<(f64, f64)> {
    let metered = Metered { process: part.process(), postmaster: None };
    let (receiver, posts) = (Receiver(&ground.receiver), scenario.events as usize);
    receiver.expect(posts).await?;
    let (before, began) = (metered.used(), now_ns());
    let order = Alone { posts, in_flight: CLIENT_IN_FLIGHT.min(posts), payload_bytes: scenario.payload_bytes as usize };
    tokio::try_join!(post_alone(part, order), receiver.wait_for(posts, PATIENCE, "raw client"))?;
    let used = metered.used().since(&before);
    let last = receiver.arrivals().await?.into_iter().flatten().max().unwrap_or(began);
    Ok((per_second(posts, began, last), used.server * 1000.0 / posts as f64))
}

/// Nothing arrives anywhere.
async fn written(ground: &BenchEnvironment, scenario: &Scenario) -> anyhow::Result<Written> {
    show("group commit");
    let part = ground.writer().await?;
    let metered = Metered { process: part.process(), postmaster: None };
    let plan = scenario.plan(part.address(), "no-key");
    let before = metered.used();
    let sent = super::load::Load(&ground.load).publish(&plan).await?;
    let used = metered.used().since(&before);
    let began = sent.iter().map(|sent| sent.began_ns).min().unwrap_or(0);
    let last = sent.iter().map(|sent| sent.acknowledged_ns).max().unwrap_or(0);
    Ok(Written {
        publishes_per_second: per_second(plan.events, began, last),
        publish: Spread::of(sent.iter().map(super::load::Sent::took)),
        seconds_per_thousand: used.server * 1000.0 / plan.events as f64,
    })
}

impl Raw {
    fn told(&self, scenario: &Scenario) -> String {
        format!(
            "{} events of {} bytes, {} connections, all on this machine; a flush of its disk takes {:.2} ms (p99 {:.2})",
            scenario.events,
            scenario.payload_bytes,
            scenario.connections,
            self.flush.millis_at(500),
            self.flush.millis_at(990)
        )
    }

    pub(super) fn columns(&self) -> Vec<Column> {
        let through = |name, measured: &Measured, memory_bytes| {
            Column::new(
                name,
                vec![
                    Figure("events published/s", "publishes_per_second", measured.publishes_per_second, 0),
                    Figure("publish p50, ms", "publish_p50_ms", measured.publish.millis_at(500), 2),
                    Figure("publish p99, ms", "publish_p99_ms", measured.publish.millis_at(990), 2),
                    Figure("deliveries/s", "deliveries_per_second", measured.deliveries_per_second, 0),
                    Figure(SERVER_SECONDS.0, SERVER_SECONDS.1, measured.server_seconds_per_thousand(), 3),
                    Figure("peak memory, MiB", "peak_memory_mib", mebibytes(memory_bytes), 1),
                ],
            )
        };
        let mut columns = vec![
            through("raw forwarder", &self.forwarder, self.forwarder_memory_bytes),
            Column::new(
                "raw client",
                vec![
                    Figure("deliveries/s", "deliveries_per_second", self.client_posts_per_second, 0),
                    Figure(SERVER_SECONDS.0, SERVER_SECONDS.1, self.client_seconds_per_thousand, 3),
                ],
            ),
            Column::new(
                "group commit",
                vec![
                    Figure("events published/s", "publishes_per_second", self.writer.publishes_per_second, 0),
                    Figure("publish p50, ms", "publish_p50_ms", self.writer.publish.millis_at(500), 2),
                    Figure("publish p99, ms", "publish_p99_ms", self.writer.publish.millis_at(990), 2),
                    Figure(SERVER_SECONDS.0, SERVER_SECONDS.1, self.writer.seconds_per_thousand, 3),
                ],
            ),
        ];
        columns.extend(self.bare_store.as_ref().map(|measured| through("bare store", measured, self.bare_store_memory_bytes)));
        columns
    }

    pub(super) fn values(&self) -> Value {
        let columns = self.columns();
        let named = |name: &str| columns.iter().find(|column| column.name == name).map(Column::values);
        json!({
            "forwarder": named("raw forwarder"), "client": named("raw client"), "group_commit": named("group commit"),
            "bare_store": named("bare store"),
            "flush_p50_ms": number(self.flush.millis_at(500)), "flush_p99_ms": number(self.flush.millis_at(990)),
        })
    }

    fn chart(&self) -> Chart {
        let bare_store = self.bare_store.as_ref().map(|measured| ("bare store".to_owned(), measured.deliveries_per_second));
        let others = [
            ("forwarder".to_owned(), self.forwarder.deliveries_per_second),
            ("client alone".to_owned(), self.client_posts_per_second),
            ("group commit".to_owned(), self.writer.publishes_per_second),
        ];
        Chart::bars("What this machine does without Posthaste", "a second", others.into_iter().chain(bare_store))
    }
}

/// What is spent by whatever is measured, the database apart.
pub(super) const SERVER_SECONDS: (&str, &str) = ("server CPU s per 1,000 deliveries", "server_cpu_seconds_per_1000");

/// What stands below a table.
pub(super) const LEGEND: &str = "The raw forwarder signs and passes on, and remembers nothing. The raw client is the one that delivers, \
    alone.\nGroup commit writes the same bytes to a file, flushes, and delivers nothing. The bare store keeps an event and its delivery in \
    SQLite,\npasses it on and notes that, and can do nothing else.\n";
