//! What a check needs beside Rust: found, or installed where that is possible, or asked for by name.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
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
    // The tests of the store start a server of their own, from the programs that are installed.
    ensure_package("PostgreSQL 14 or newer", "postgresql", posthaste_testpg::is_installed)?;
    // Certificates for the tests of TLS to PostgreSQL.
    ensure_package("openssl", "openssl", || answers(Command::new("openssl").arg("version")))?;
    // Flushes that fail, power cuts and killed processes.
    ensure_program("strace", "strace")?;
    // A network without a way out, to dial public addresses in.
    ensure_package("ip", "iproute2", || answers(Command::new("ip").arg("-V")))?;
    ensure_program("pkill", "procps")?;
    ensure_package("mkfs.ext4", "e2fsprogs", || answers(Command::new("mkfs.ext4").arg("-V")))?;
    ensure_prometheus()?;
    ensure_npm()?;
    ensure_chromium()?;
    ensure_nextest()
}

/// Alert rules are tried out on made series, and the dashboard on a real server.
pub(crate) fn ensure_prometheus() -> anyhow::Result<()> {
    ensure_program("promtool", "prometheus")
}

/// It installs what the dashboard is built with.
pub(crate) fn ensure_npm() -> anyhow::Result<()> {
    ensure_program("npm", "npm")
}

/// The dashboard is tried in a real browser.
pub(crate) fn ensure_chromium() -> anyhow::Result<()> {
    ensure_program("chromium", "chromium")
}

/// It counts instructions.
pub(crate) fn ensure_valgrind() -> anyhow::Result<()> {
    ensure_program("valgrind", "valgrind")
}

/// A program of Debian's.
fn ensure_program(program: &str, package: &str) -> anyhow::Result<()> {
    ensure_package(program, package, || answers(Command::new(program).arg("--version")))
}

fn ensure_package(what: &str, package: &str, is_there: impl Fn() -> bool) -> anyhow::Result<()> {
    if is_there() {
        return Ok(());
    }
    if may_install() {
        println!("{what} is missing, installing Debian's package {package}");
        // Without a fresh list of packages the name may not be known, or lead to a version that is gone.
        let installed = install(package).or_else(|error| {
            println!("{error:#}; trying again with a fresh list of packages");
            run(apt_get().args(["update", "--quiet"])).and_then(|()| install(package))
        });
        if installed.is_ok() && is_there() {
            return Ok(());
        }
    }
    bail!("{what} is missing: install the package {package}")
}

/// Root may, where there is Debian's installer.
fn may_install() -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|us| us.uid() == 0);
    is_root && answers(apt_get().arg("--version"))
}

fn install(package: &str) -> anyhow::Result<()> {
    run(apt_get().args(["install", "--yes", "--no-install-recommends", package]))
}

/// It must not stop to ask for somebody's time zone.
fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command
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
