//! `posthaste bench`, with the real binary: that it measures what it says, not how fast; and that nothing is left of it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A directory for what a bench makes, which has to be empty again.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn bench(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.arg("bench").args(arguments).arg("--json").env("TMPDIR", &self.0).stdin(Stdio::null());
        // A setting that would stop every server, were it heard.
        command.env("POSTHASTE_LISTEN", "nonsense");
        command
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().count() == 0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bench(name: &str, arguments: &[&str]) -> Value {
    let scratch = Scratch::new(name);
    let output = scratch.bench(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(scratch.is_empty(), "it cleans up");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Numbers above zero by these names.
fn assert_figures(values: &Value, names: &[&str]) {
    for name in names {
        assert!(values[*name].as_f64().is_some_and(|value| value > 0.0), "{name}: {values}");
    }
}

/// An event may arrive before its publisher has heard that it was taken.
fn assert_delays(values: &Value) {
    let at = |name: &str| values[name].as_f64().unwrap();
    assert!(0.0 <= at("p50_ms") && at("p50_ms") <= at("p99_ms") && at("p99_ms") <= at("slowest_ms"), "{values}");
}

const PUBLISHING: [&str; 3] = ["publishes_per_second", "publish_p50_ms", "publish_p99_ms"];

#[test]
fn what_traces_cost_is_measured_with_a_collector_that_gets_them() {
    let load = ["--events", "200", "--connections", "4", "--endpoints", "10", "--fan-out", "5", "--batch", "20"];
    let report = bench("traces", &[&["throughput", "--traces", "1"], &load[..]].concat());
    assert_eq!(report["traces"], 1.0);
    for (row, (publishes, attempts)) in
        report["rows"].as_array().unwrap().iter().zip([(200, 200), (200, 200), (40, 200), (200, 200)])
    {
        let spans = f64::from(4 * publishes + 6 * attempts);
        assert!((row["spans"].as_f64().unwrap() - spans).abs() < 0.5, "every one of them: {row}");
        assert_figures(row, &["deliveries_per_second", "span_requests"]);
    }
}

#[test]
fn throughput_is_told_of_four_loads_beside_what_the_machine_can_do() {
    let plot = Scratch::new("plot");
    let picture = plot.0.join("throughput.svg");
    let load = ["--events", "300", "--connections", "8", "--endpoints", "20", "--fan-out", "5", "--batch", "20"];
    let report = bench("throughput", &[&["throughput", "--plot", picture.to_str().unwrap()], &load[..]].concat());
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["one_endpoint", "many_endpoints", "fan_out", "batches"]);
    for row in rows {
        assert_eq!(row["deliveries"], 300, "{row}");
        assert_figures(row, &PUBLISHING);
        assert_figures(
            row,
            &[
                "deliveries_per_second",
                "publish_to_arrival_p50_ms",
                "publish_to_arrival_p99_ms",
                "server_cpu_seconds_per_1000",
                "peak_memory_mib",
                "disk_bytes_per_delivery",
                "ratio_to_raw",
                "ratio_to_bare_store",
                "cpu_ratio_to_bare_store",
            ],
        );
        assert!(row["database_cpu_seconds_per_1000"].is_null(), "SQLite is in the server: {row}");
        let ratio =
            row["deliveries_per_second"].as_f64().unwrap() / report["raw"]["forwarder"]["deliveries_per_second"].as_f64().unwrap();
        assert!((row["ratio_to_raw"].as_f64().unwrap() - ratio).abs() < 0.01, "{row}");
    }
    assert_eq!(rows[2]["events"], 60, "each goes to five");
    assert_figures(&rows[2], &["ratio_to_raw_client"]);
    assert!(rows[0]["ratio_to_raw_client"].is_null());
    assert_eq!(report["ratio_to_raw"], rows[0]["ratio_to_raw"]);
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("20 endpoints") && picture.contains("<polyline"), "{picture}");
}

#[test]
fn throughput_on_postgresql_counts_the_databases_processor_time_and_drops_what_it_has_made() {
    let postgres = posthaste_testpg::Server::start();
    let load = ["throughput", "--events", "200", "--connections", "4", "--endpoints", "3", "--fan-out", "2", "--batch", "10"];
    let report = bench("postgresql", &[&load[..], &["--database-url", &postgres.url()]].concat());
    assert!(report["database"].as_str().unwrap().starts_with("PostgreSQL "), "{report}");
    for row in report["rows"].as_array().unwrap() {
        assert_figures(row, &["database_cpu_seconds_per_1000", "server_cpu_seconds_per_1000", "disk_bytes_per_delivery"]);
        assert!(row["ratio_to_bare_store"].is_null(), "that has SQLite: {row}");
    }
    let left = postgres.psql("SELECT count(*) FROM pg_database WHERE datname LIKE 'posthaste_bench%'");
    assert_eq!(left, "0");
    assert_eq!(
        postgres.psql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"),
        "0",
        "the database that was named is not touched"
    );
}

#[test]
fn raw_is_a_forwarder_a_client_a_writer_and_a_bare_store() {
    let report = bench("raw", &["raw", "--events", "200", "--connections", "4"]);
    for delivering in [&report["forwarder"], &report["bare_store"]] {
        assert_figures(delivering, &PUBLISHING);
        assert_figures(delivering, &["deliveries_per_second", "server_cpu_seconds_per_1000", "peak_memory_mib"]);
    }
    assert_figures(&report["client"], &["deliveries_per_second"]);
    assert_figures(&report["group_commit"], &PUBLISHING);
    assert_figures(&report, &["flush_p50_ms", "flush_p99_ms"]);
}

#[test]
fn latency_is_told_at_a_rate_and_at_a_tenth_of_what_goes() {
    let report = bench("latency", &["latency", "--rate", "50", "--seconds", "1", "--events", "200"]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["rate"], &rows[0]["events"]), (&50.0.into(), &50.into()));
    let tenth = (report["most_deliveries_per_second"].as_f64().unwrap() / 10.0).floor().max(1.0);
    assert!((rows[1]["rate"].as_f64().unwrap() - tenth).abs() < 1e-6, "{report}");
    for row in rows {
        assert_figures(row, &["flush_p50_ms", "flush_p99_ms"]);
        for side in [&row["posthaste"], &row["raw"], &row["bare_store"]] {
            for what in ["publish", "publish_to_arrival"] {
                let at = |name: &str| side[format!("{what}_{name}_ms")].as_f64().unwrap();
                assert!(
                    0.0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("p999") && at("p999") <= at("slowest"),
                    "{report}"
                );
            }
        }
    }
    assert_figures(&report, &["flush_p50_ms"]);
}

#[test]
fn a_backlog_is_made_measured_beside_and_restarted_with() {
    let report = bench("backlog", &["backlog", "--waiting", "0,500", "--events", "100", "--connections", "4"]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["waiting"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 500]);
    for row in rows {
        assert_figures(row, &PUBLISHING);
        assert_figures(
            row,
            &[
                "deliveries_per_second",
                "ratio_to_first",
                "server_cpu_seconds_per_1000",
                "peak_memory_mib",
                "stop_seconds",
                "restart_seconds",
                "first_delivery_seconds",
                "memory_after_restart_mib",
                "disk_mib",
            ],
        );
    }
    assert!(rows[0]["filled_per_second"].is_null() && rows[1]["filled_per_second"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(report["last_ratio_to_first"], rows[1]["ratio_to_first"]);
}

#[test]
fn a_quiet_tenant_is_measured_without_and_with_its_neighbours() {
    let report = bench("noisy", &["noisy", "--hanging", "3", "--rate", "5", "--seconds", "1"]);
    assert_figures(&report, &["flooded", "peak_memory_mib"]);
    assert_eq!(report["not_arrived"], 0, "{report}");
    assert_delays(&report["undisturbed"]);
    assert_delays(&report["beside"]);
    assert_eq!(report["undisturbed_p99_ms"], report["undisturbed"]["p99_ms"]);
    assert_eq!(report["beside_p99_ms"], report["beside"]["p99_ms"]);
    assert!(report["is_kept"].is_boolean());
}

#[test]
fn memory_with_held_events_and_the_opening_of_all_windows_are_measured() {
    let flags = ["held", "--events", "400,200", "--lanes", "5", "--rate", "10", "--seconds", "2"];
    let report = bench("held", &flags);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!([&rows[0]["events"], &rows[1]["events"]], [200, 400], "{report}");
    for row in rows {
        let figures =
            ["filled_per_second", "memory_mib", "peak_memory_mib", "before_p99_ms", "opening_p99_ms", "opening_slowest_ms"];
        assert_figures(row, &figures);
        assert_eq!(row["not_arrived"], 0.0, "{report}");
    }
    assert!(report["is_flat"].is_boolean() && report["is_undelayed"].is_boolean(), "{report}");
}

#[test]
fn an_endpoint_that_comes_back_gets_everything_that_waited() {
    let report = bench("recovery", &["recovery", "--waiting", "300", "--rate", "10", "--seconds", "1"]);
    assert_figures(
        &report,
        &["until_first_seconds", "until_last_seconds", "deliveries_per_second", "server_cpu_seconds_per_1000", "peak_memory_mib"],
    );
    assert!(report["until_first_seconds"].as_f64().unwrap() <= report["until_last_seconds"].as_f64().unwrap(), "{report}");
    assert_delays(&report["undisturbed"]);
    assert_delays(&report["meanwhile"]);
    assert_eq!(report["meanwhile"]["not_arrived"], 0.0, "{report}");
}

const PATIENCE: Duration = Duration::from_mins(1);

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Processes that were started by this one or by one of those, as far as they live.
fn descendants(process: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let children: Vec<u32> = numbers.filter(|other| parent(*other) == Some(process)).collect();
    children.iter().flat_map(|child| std::iter::once(*child).chain(descendants(*child))).collect()
}

fn stat(process: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

fn parent(process: u32) -> Option<u32> {
    stat(process)?[1].parse().ok()
}

/// Of one that is dead there may be an entry until somebody asks what became of it.
fn lives(process: u32) -> bool {
    stat(process).is_some_and(|stat| stat[0] != "Z" && stat[0] != "X")
}

/// A bench that runs for long, once its server is there: cleaner, receiver, load and server.
fn long_one(scratch: &Scratch) -> (Child, Vec<u32>) {
    let child = scratch
        .bench(&["noisy", "--hanging", "0", "--seconds", "600"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let has_database =
        || std::fs::read_dir(&scratch.0).unwrap().flatten().any(|entry| entry.path().join("server-1/data/posthaste.db").exists());
    wait_until("a server runs", || descendants(child.id()).len() == 4 && has_database());
    let parts = descendants(child.id());
    (child, parts)
}

#[test]
fn the_parts_end_when_the_bench_is_killed_and_what_they_made_is_removed() {
    let scratch = Scratch::new("killed");
    let (mut child, parts) = long_one(&scratch);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("every part has ended", || parts.iter().all(|part| !lives(*part)));
    assert!(scratch.is_empty(), "the last of them cleans up");
}

#[test]
fn ctrl_c_ends_everything_before_the_bench_ends() {
    let scratch = Scratch::new("interrupted");
    let (mut child, parts) = long_one(&scratch);
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(parts.iter().all(|part| !lives(*part)), "{parts:?}");
    assert!(scratch.is_empty());
}

#[test]
fn a_server_that_cannot_start_ends_the_bench_with_its_reason_and_nothing_is_left() {
    let scratch = Scratch::new("refused");
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = scratch.bench(&["raw", "--database-url", &format!("postgres://me:canary@{unused}/x")]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("cannot reach the database") && !said.contains("canary"), "{said}");
    assert!(scratch.is_empty());
    let output = scratch.bench(&["raw", "--plot", "picture.png"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(".svg"), "{said}");
}
