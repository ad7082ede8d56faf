//! What a check needs beside Rust: found, or installed where that is possible, or asked for by name.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::{cargo, root, run};

/// The version that the check was last seen to pass with.
const NEXTEST_VERSION: &str = "0.9.143";

pub(crate) fn ensure() -> anyhow::Result<()> {
    for (component, arguments) in [("rustfmt", &["fmt", "--version"]), ("clippy", &["clippy", "--version"])] {
        if !answers(&mut cargo(arguments)) {
            bail!("{component} is missing: run `rustup component add {component}`");
        }
    }
    // The signature tests want crypto libraries that share no code with ours, and run the examples of the guide.
    ensure_program("node", "nodejs")?;
    ensure_program("python3", "python3")?;
    ensure_nextest()
}

/// A program of Debian's.
fn ensure_program(program: &str, package: &str) -> anyhow::Result<()> {
    let is_there = || answers(Command::new(program).arg("--version"));
    if is_there() {
        return Ok(());
    }
    println!("{program} is missing, installing Debian's package {package}");
    // Without a fresh list of packages the name may not be known.
    let installed = run(Command::new("apt-get").args(["update", "--quiet"]))
        .and_then(|()| run(Command::new("apt-get").args(["install", "--yes", "--no-install-recommends", package])));
    if installed.is_err() || !is_there() {
        bail!("{program} is missing: install the package {package}");
    }
    Ok(())
}

fn ensure_nextest() -> anyhow::Result<()> {
    let nextest = || anyhow::Ok(answers(cargo(&["nextest", "--version"]).env("PATH", path()?)));
    if nextest()? {
        return Ok(());
    }
    // Unoptimised: it only starts tests, and builds in a third of the time.
    println!("cargo-nextest is missing, building it below target/tools (some minutes, once)");
    let tools = root().join("target/tools");
    run(cargo(&["install", "cargo-nextest", "--locked", "--debug", "--quiet", "--version", NEXTEST_VERSION])
        .arg("--root")
        .arg(&tools))
    .context("cargo-nextest is missing: install the crate cargo-nextest")?;
    if nextest()? { Ok(()) } else { bail!("cargo-nextest is missing: install the crate cargo-nextest") }
}

/// Where programs are looked for: first where they always are, then where we have put them.
pub(crate) fn path() -> anyhow::Result<OsString> {
    let present = std::env::var_os("PATH").unwrap_or_default();
    let ours: PathBuf = root().join("target/tools/bin");
    Ok(std::env::join_paths(std::env::split_paths(&present).chain([ours]))?)
}

fn answers(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
