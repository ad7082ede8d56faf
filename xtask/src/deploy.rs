//! What is in `deploy/`, checked as far as that goes without a container runtime or a cluster. It takes seconds; what is
//! not installed here is named and passed over.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::{root, run};

/// Reads YAML as compose and Kubernetes do. Templates of Helm are not YAML before they are rendered.
const READ_YAML: &str = "
import sys
try:
    import yaml
except ImportError:
    sys.exit(77)
for path in sys.argv[1:]:
    list(yaml.safe_load_all(open(path)))
";
/// What a program says whose means are missing, as in automake's tests.
const IS_MISSING: i32 = 77;

pub(crate) fn check() -> anyhow::Result<()> {
    let deploy = root().join("deploy");
    let mut pages = Vec::new();
    for folder in ["compose", "helm/posthaste", "prometheus"] {
        for entry in fs::read_dir(deploy.join(folder)).with_context(|| folder.to_owned())? {
            let path = entry?.path();
            if path.extension().is_some_and(|kind| kind == "yaml" || kind == "yml") {
                pages.push(path);
            }
        }
    }
    let status = Command::new("python3").args(["-c", READ_YAML]).args(&pages).status().context("python3")?;
    match status.code() {
        Some(0) => println!("{} files are YAML", pages.len()),
        Some(IS_MISSING) => println!("not run: Python has no module yaml"),
        Some(_) | None => bail!("a file in deploy/ is not YAML, see above"),
    }
    if has("helm") {
        let chart = deploy.join("helm/posthaste");
        for postgresql in ["false", "true"] {
            let setting = format!("postgresql.enabled={postgresql}");
            run(Command::new("helm").args(["template", "check"]).arg(&chart).args(["--set", &setting]).stdout(Stdio::null()))?;
        }
    } else {
        println!("not run: helm is not installed");
    }
    if has("systemd-analyze") {
        unit()
    } else {
        println!("not run: systemd-analyze is not installed");
        Ok(())
    }
}

/// With a program at hand that exists, since `verify` looks for it.
fn unit() -> anyhow::Result<()> {
    let text = fs::read_to_string(root().join("deploy/systemd/posthaste.service"))?;
    let folder = root().join("target/deploy-check");
    fs::create_dir_all(&folder)?;
    let path = folder.join("posthaste.service");
    fs::write(&path, text.replace("/usr/bin/posthaste", "/bin/true"))?;
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    // It also tells of other units of this machine.
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("posthaste.service")).collect();
    if !ours.is_empty() {
        bail!("systemd-analyze: {}", ours.join("\n"));
    }
    if output.status.success() {
        println!("systemd takes the unit");
        return Ok(());
    }
    println!("not run: systemd-analyze does not work here: {}", said.lines().next().unwrap_or_default());
    Ok(())
}

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}
