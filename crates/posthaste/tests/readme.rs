//! Every command of the README, pasted into one shell in its order, with the real binary.
//!
//! Only three things are put in the place of others: `cargo` does not build again, ports are free ones, and PostgreSQL is
//! a private one.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_posthaste");

/// What stands in for `cargo`, which the check itself has called.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
  "run --release -- demo") exec BINARY demo --seconds 1 ;;
  "build --release" | "xtask check") exit 0 ;;
  *) echo "the README calls cargo $*" >&2; exit 9 ;;
esac
"#;

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

fn is_there(program: &str) -> bool {
    Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success()
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn every_block_of_the_readme_works_as_it_is_written() {
    if !is_there("node") || !is_there("curl") || !posthaste_testpg::is_installed() {
        println!("not run: it needs node, curl and PostgreSQL");
        return;
    }
    let readme = include_str!("../../../README.md");
    let blocks: Vec<&str> = readme.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 7, "a block was added or removed: {blocks:?}");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("readme-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("target/release")).unwrap();
    std::fs::create_dir_all(directory.join("tools")).unwrap();
    std::os::unix::fs::symlink(BINARY, directory.join("target/release/posthaste")).unwrap();
    script(&directory.join("tools/cargo"), &CARGO.replace("BINARY", BINARY));
    let postgres = posthaste_testpg::Server::start();
    postgres.create_database("posthaste");
    script(&directory.join("tools/createdb"), "#!/bin/sh\ntest \"$*\" = posthaste\n");

    let (api, receiver, second) = (free_port(), free_port(), free_port());
    let pasted = blocks
        .join("\n")
        .replace("3000", &receiver)
        .replace("8080", &api)
        .replace("8090", &second)
        .replace("postgres://localhost/posthaste", &postgres.url_of("posthaste"));
    // As at a prompt, but that the first failure ends it. What was started in the background ends with it.
    let shell = format!("set -e\ntrap 'kill $(jobs -p)' EXIT\n{pasted}\n");
    let output = Command::new("bash")
        .args(["-c", &shell])
        .current_dir(&directory)
        .env_clear()
        .env("PATH", format!("{}:{}", directory.join("tools").display(), std::env::var("PATH").unwrap()))
        .env("HOME", &directory)
        .env("TMPDIR", &directory)
        .env("POSTHASTE_LISTEN", format!("127.0.0.1:{api}"))
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("is delivered after 1 attempt"), "the demo: {out}");
    assert!(out.contains("received evt_") && out.contains(r#""data":{"amount": 4999}"#), "the webhook arrives: {out}");
    assert!(out.contains(" delivered "), "the list says so: {out}");
    assert!(out.contains(&format!("ready: http://127.0.0.1:{second}")), "PostgreSQL: {out}");
    std::fs::remove_dir_all(&directory).unwrap();
}
