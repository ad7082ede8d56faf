//! The dashboard: builds `ui/dist` from `ui/`, says whether it is what the sources give, and tries it in a browser.
//!
//! The built files are committed, so that a build of the server needs neither Node nor a network. npm's packages are installed
//! from the lock file into `ui/node_modules`, which is not committed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::{cargo, root, run, tools};

/// Builds the dashboard into `ui/dist`.
pub(crate) fn build() -> anyhow::Result<()> {
    tools::ensure_npm()?;
    install()?;
    write_types()?;
    npm(&["run", "check"], &dist())?;
    npm(&["run", "build"], &dist())
}

/// Vite's development server in front of a Posthaste that runs already.
pub(crate) fn watch() -> anyhow::Result<()> {
    tools::ensure_npm()?;
    install()?;
    run(Command::new("npx").arg("vite").current_dir(home()))
}

/// `ui/dist` and the API's types have to be what the sources give.
pub(crate) fn check() -> anyhow::Result<()> {
    install()?;
    let types = home().join("src/api/schema.d.ts");
    let before = fs::read(&types).context("ui/src/api/schema.d.ts")?;
    write_types()?;
    if fs::read(&types)? != before {
        bail!("ui/src/api/schema.d.ts was not what the OpenAPI document gives: run `cargo xtask ui` and commit what it writes");
    }
    let built = root().join("target/ui-dist");
    npm(&["run", "check"], &built)?;
    npm(&["run", "build"], &built)?;
    // Another version of Node may compress differently: what is compressed has to say the same, not be the same.
    run(Command::new("node").args(["scripts/compare.mjs"]).arg(&built).arg(dist()).current_dir(home()))
        .context("ui/dist is not what the sources give: run `cargo xtask ui` and commit what it writes")?;
    check_lock()
}

/// Drives the dashboard of the real server in a headless Chromium.
pub(crate) fn test() -> anyhow::Result<()> {
    tools::ensure_npm()?;
    tools::ensure_chromium()?;
    install()?;
    run(Command::new("node")
        .args(["--test", "--test-concurrency=1", "e2e/dashboard.test.mjs", "e2e/portal.test.mjs", "e2e/verification.test.mjs"])
        .env("UI_TEST_BINARY", binary()?)
        .current_dir(home()))
}

/// Takes a picture of every page into `target/screenshots`.
pub(crate) fn screenshots() -> anyhow::Result<()> {
    tools::ensure_npm()?;
    tools::ensure_chromium()?;
    install()?;
    let folder = root().join("target/screenshots");
    run(Command::new("node").arg("e2e/screenshots.mjs").arg(binary()?).arg(&folder).current_dir(home()))?;
    println!("{}", folder.display());
    Ok(())
}

/// The server with the dashboard that is in `ui/dist` now.
fn binary() -> anyhow::Result<PathBuf> {
    run(&mut cargo(&["build", "--quiet", "--package", "posthaste"]))?;
    Ok(root().join("target/debug/posthaste"))
}

fn home() -> PathBuf {
    root().join("ui")
}

fn dist() -> PathBuf {
    home().join("dist")
}

fn npm(arguments: &[&str], out: &Path) -> anyhow::Result<()> {
    run(Command::new("npm").args(arguments).env("UI_OUT_DIR", out).current_dir(home()))
}

/// Installs what the lock file names, unless that is there already.
///
/// Not with `npm ci`, which refuses a lock file that lacks the packages of other platforms, as one made next to a registry without
/// them does. `npm install` takes the versions and checksums of the lock file; what it writes there is taken back.
fn install() -> anyhow::Result<()> {
    let lock = fs::read(home().join("package-lock.json")).context("ui/package-lock.json")?;
    let installed = home().join("node_modules/.posthaste-lock");
    if fs::read(&installed).is_ok_and(|present| present == lock) {
        return Ok(());
    }
    npm(&["install", "--no-save", "--no-audit", "--no-fund"], &dist())?;
    fs::write(home().join("package-lock.json"), &lock)?;
    Ok(fs::write(installed, lock)?)
}

/// The API's types, from the document that the server's own code makes.
fn write_types() -> anyhow::Result<()> {
    let output = cargo(&["run", "--quiet", "--package", "posthaste", "--", "openapi"]).output()?;
    if !output.status.success() {
        bail!("`posthaste openapi` failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    fs::write(root().join("target/openapi.json"), output.stdout)?;
    npm(&["run", "--silent", "types"], &dist())
}

/// A lock file that names where packages were fetched from would send everybody there.
fn check_lock() -> anyhow::Result<()> {
    let lock = fs::read_to_string(home().join("package-lock.json"))?;
    if lock.contains("\"resolved\"") {
        bail!("ui/package-lock.json names a registry; ui/.npmrc says how to leave that out");
    }
    Ok(())
}
