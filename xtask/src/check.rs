//! Everything that has to be true of a commit, in the order in which it is cheapest to find out.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::{alerts, cargo, dependencies, deploy, documents, instructions, names, shown, tools, ui};

pub(crate) fn run(fast: bool) -> anyhow::Result<()> {
    let mut parts = Parts::default();
    parts.time("tools", tools::ensure)?;
    parts.time("format", || crate::run(&mut cargo(&["fmt", "--all", "--check"])))?;
    parts.time("documents", documents::check)?;
    parts.time("names", names::check)?;
    parts.time("dependencies", dependencies::check)?;
    parts.time("alert rules", alerts::check)?;
    parts.time("deploy/", deploy::check)?;
    parts.time("lint", || {
        crate::run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"]))
    })?;
    parts.time("the operators' dashboard, built again", ui::check)?;
    parts.time("reference", || {
        crate::run(
            cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"),
        )
    })?;
    parts.time("examples in comments", || crate::run(&mut cargo(&["test", "--workspace", "--doc", "--quiet"])))?;
    if !fast {
        parts.time("demo, as in the README", || crate::run(&mut cargo(&["run", "--release", "--quiet", "--", "demo"])))?;
        parts.time("20 kills of the server under load", || {
            crate::checker("crash", &["--strict", "--cycles", "20"].map(str::to_owned))
        })?;
        parts.time("6 kills of the server on PostgreSQL", || {
            crate::checker("crash", &["--strict", "--postgres", "--cycles", "6"].map(str::to_owned))
        })?;
        parts.time("what a delivery costs, in instructions", || instructions::run(false))?;
    }
    parts.time("the dashboard, in a real Prometheus", alerts::grafana)?;
    parts.time("the operators' dashboard, in a browser", ui::test)?;
    let summary = parts.time("tests", || tests(fast))?;
    println!("\n{parts}");
    if fast {
        println!(
            "left to the full check: tests over millions of cases (binary `exhaustive`), the demo, the kills and the count of instructions, in a release build"
        );
    }
    print!("{summary}");
    Ok(())
}

/// Runs all tests and answers the runner's own summary, to be shown last.
fn tests(fast: bool) -> anyhow::Result<String> {
    let profile = if fast { "fast" } else { "default" };
    let mut command =
        cargo(&["nextest", "run", "--workspace", "--locked", "--profile", profile, "--color", "never", "--status-level", "slow"]);
    // One more than there are cores: many a test waits for a server, a lease or a disk, and then nobody would use its core.
    let at_once = std::thread::available_parallelism()?.get() + 1;
    command.arg("--test-threads").arg(at_once.to_string());
    // A check compares with what is expected; it never rewrites it.
    command.env("PATH", tools::path()?).env_remove("UPDATE_EXPECT");
    let mut child = command.stderr(Stdio::piped()).spawn().with_context(|| shown(&command))?;
    let mut summary = String::new();
    for line in BufReader::new(child.stderr.take().context("piped")?).lines() {
        let line = line?;
        eprintln!("{line}");
        if !summary.is_empty() || line.trim_start().starts_with("Summary [") {
            summary += &line;
            summary.push('\n');
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("some tests failed, see above");
    }
    if summary.is_empty() {
        bail!("the test runner printed no summary");
    }
    Ok(summary)
}

/// How long each part took.
#[derive(Default)]
struct Parts(Vec<(&'static str, Duration)>);

impl Parts {
    fn time<T>(&mut self, name: &'static str, part: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        println!("== {name}");
        std::io::stdout().flush()?;
        let started = Instant::now();
        let result = part().with_context(|| name);
        self.0.push((name, started.elapsed()));
        result
    }
}

impl std::fmt::Display for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, took) in &self.0 {
            writeln!(f, "{:>8.1} s  {name}", took.as_secs_f64())?;
        }
        let total: Duration = self.0.iter().map(|(_, took)| *took).sum();
        writeln!(f, "{:>8.1} s  in all", total.as_secs_f64())
    }
}
