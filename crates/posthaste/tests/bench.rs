//! `posthaste bench`, with the real binary: that it measures what it says, not how fast.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::process::Command;

fn bench(arguments: &[&str]) -> serde_json::Value {
    let temporary =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}-{}", arguments[0], std::process::id()));
    std::fs::create_dir_all(&temporary).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    let output = command.arg("bench").args(arguments).arg("--json").env("TMPDIR", &temporary).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "it cleans up");
    std::fs::remove_dir(&temporary).unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn throughput_is_told_beside_that_of_a_raw_forwarder() {
    let report = bench(&["throughput", "--events", "200", "--connections", "4", "--endpoints", "2"]);
    let ours = &report["posthaste"];
    let ratio = ours["deliveries_per_second"].as_f64().unwrap() / report["raw"]["deliveries_per_second"].as_f64().unwrap();
    assert!((report["ratio_to_raw"].as_f64().unwrap() - ratio).abs() < 0.05, "{report}");
    assert!(ours["publish_p50_ms"].as_f64().unwrap() <= ours["publish_p99_ms"].as_f64().unwrap(), "{report}");
    assert!(ours["publish_to_arrival_p50_ms"].as_f64().unwrap() > 0.0, "{report}");
    assert!(ours["processor_seconds_per_1000"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn a_quiet_tenant_is_measured_without_and_with_its_neighbours() {
    let report = bench(&["noisy", "--hanging", "3", "--rate", "5", "--seconds", "1"]);
    assert!(report["undisturbed_p99_ms"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["beside_p99_ms"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["flooded"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["not_arrived"], 0, "{report}");
}

#[test]
fn latency_and_the_raw_forwarder_are_measured_by_themselves() {
    let report = bench(&["latency", "--rate", "50", "--seconds", "1"]);
    for side in ["posthaste", "raw"] {
        let arrival = |name: &str| report[side][format!("publish_to_arrival_{name}_ms")].as_f64().unwrap();
        assert!(0.0 < arrival("p50") && arrival("p50") <= arrival("p99") && arrival("p99") <= arrival("slowest"), "{report}");
    }
    let report = bench(&["raw", "--events", "100", "--connections", "4"]);
    assert!(report["deliveries_per_second"].as_f64().unwrap() > 0.0, "{report}");
}
