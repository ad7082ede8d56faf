//! Parsers of untrusted input on mutated inputs, for longer than the check runs them.
//!
//! The targets are tests of their crates; `crates/fuzzing` makes the inputs. They are guided by outcomes, not by coverage.

use anyhow::bail;

use crate::{cargo, run as run_command};

struct Target {
    name: &'static str,
    package: &'static str,
    /// Where the test is: `--lib`, `--bins`, or the test program `exhaustive`.
    place: &'static [&'static str],
    test: &'static str,
}

const EXHAUSTIVE: &[&str] = &["--test", "exhaustive"];

const TARGETS: [Target; 12] = [
    Target { name: "batch-splitter", package: "posthaste-api", place: &["--lib"], test: "fuzz::fuzz_batch_splitter" },
    Target { name: "cursor", package: "posthaste-api", place: &["--lib"], test: "fuzz::fuzz_cursor" },
    Target { name: "portal-code", package: "posthaste-api", place: &["--lib"], test: "fuzz::fuzz_portal_code" },
    Target { name: "query-strings", package: "posthaste-api", place: &["--lib"], test: "fuzz::fuzz_query_strings" },
    Target { name: "last-event-id", package: "posthaste-api", place: &["--lib"], test: "fuzz::fuzz_last_event_id" },
    Target { name: "retry-after", package: "posthaste-core", place: EXHAUSTIVE, test: "fuzz::fuzz_retry_after" },
    Target { name: "trace-headers", package: "posthaste-core", place: EXHAUSTIVE, test: "fuzz::fuzz_trace_headers" },
    Target { name: "json", package: "posthaste-core", place: EXHAUSTIVE, test: "fuzz::fuzz_json" },
    Target { name: "filters", package: "posthaste-core", place: EXHAUSTIVE, test: "fuzz::fuzz_filters" },
    Target { name: "schemas", package: "posthaste-store", place: EXHAUSTIVE, test: "fuzz::fuzz_schemas" },
    Target { name: "dns-answers", package: "posthaste-sender", place: EXHAUSTIVE, test: "fuzz::fuzz_dns_answers" },
    Target { name: "settings", package: "posthaste", place: &["--bins"], test: "settings::tests::fuzz_settings" },
];

pub(crate) fn list() {
    for target in TARGETS {
        println!("{}", target.name);
    }
}

pub(crate) fn run(target: Option<&str>, cases: u64, seconds: u64) -> anyhow::Result<()> {
    let wanted: Vec<&Target> = TARGETS.iter().filter(|known| target.is_none_or(|name| name == known.name)).collect();
    if wanted.is_empty() {
        bail!("there is no such target; `cargo xtask fuzz --list` names them");
    }
    for Target { package, place, test, .. } in wanted {
        let mut command = cargo(&["test", "--quiet", "--package", package]);
        command.args(*place).args([test, "--", "--exact", "--nocapture"]);
        run_command(command.env("FUZZ_CASES", cases.to_string()).env("FUZZ_SECONDS", seconds.to_string()))?;
    }
    Ok(())
}
