//! The README's first command, with the real binary.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn the_demo_ends_with_a_delivered_and_verified_webhook_and_leaves_nothing_behind() {
    // A temporary directory of its own, so that whatever is left behind is seen.
    let temporary = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("demo-{}", std::process::id()));
    std::fs::create_dir_all(&temporary).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_posthaste")).args(["demo", "--seconds", "3"]).env("TMPDIR", &temporary).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{shown}\n{}", String::from_utf8_lossy(&output.stderr));
    for line in [
        "1 endpoint",
        "2 published",
        "3 arrived",
        "webhook-signature: v1,",
        "4 verified",
        "is delivered after 1 attempt",
        "quiet_hours, until",
        "flaky",
    ] {
        assert!(shown.contains(line), "{line} is missing:\n{shown}");
    }
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "the demo cleans up");
    std::fs::remove_dir(&temporary).unwrap();
}

#[test]
fn a_command_that_does_not_exist_is_refused_with_what_there_is() {
    let output = Command::new(env!("CARGO_BIN_EXE_posthaste")).arg("dmeo").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("'demo'"), "it suggests the right one");
}

#[test]
fn the_demo_cleans_up_when_it_is_terminated_or_its_terminal_is_gone() {
    for signal in ["TERM", "HUP"] {
        let temporary = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("demo-{signal}-{}", std::process::id()));
        std::fs::create_dir_all(&temporary).unwrap();
        let mut demo = Command::new(env!("CARGO_BIN_EXE_posthaste"))
            .arg("demo")
            .env("TMPDIR", &temporary)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(demo.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("4 verified") {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "the demo has ended");
        }
        assert!(std::fs::read_dir(&temporary).unwrap().count() > 0, "its files are there");
        assert!(Command::new("kill").args(["-s", signal, &demo.id().to_string()]).status().unwrap().success());
        let mut rest = String::new();
        let _ = std::io::Read::read_to_string(&mut out, &mut rest);
        assert!(demo.wait().unwrap().success(), "{signal}");
        assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "{signal}: nothing is left behind");
        std::fs::remove_dir(&temporary).unwrap();
    }
}
