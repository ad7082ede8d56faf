//! Alert rules and the dashboard: tried out by the tools that will read them.

use std::process::Command;

use crate::{cargo, root, run, tools};

/// Each rule fires on made series, and stays silent when it should.
pub(crate) fn check() -> anyhow::Result<()> {
    let folder = root().join("deploy/prometheus");
    let promtool = |arguments: &[&str]| run(Command::new("promtool").args(arguments).current_dir(&folder));
    promtool(&["check", "rules", "posthaste.rules.yml"])?;
    promtool(&["test", "rules", "posthaste.rules.test.yml"])
}

/// A server, a publisher, receivers with moods and a Prometheus, all for a minute or two.
pub(crate) fn grafana() -> anyhow::Result<()> {
    tools::ensure_prometheus()?;
    run(&mut cargo(&["build", "--quiet", "--package", "posthaste", "--package", "posthaste-checker"]))?;
    let built = root().join("target/debug");
    let checker = Command::new(built.join("posthaste-checker"))
        .args(["dashboard", "--binary"])
        .arg(built.join("posthaste"))
        .current_dir(root())
        .status()?;
    if checker.success() { Ok(()) } else { anyhow::bail!("some queries returned nothing, see above") }
}
