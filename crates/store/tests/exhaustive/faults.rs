//! F4–F7: flushes that fail, and disks that are full. No false acknowledgement, and unaided recovery.

use std::process::{Child, Command};

use crate::child::{Scene, kill};

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Kills what runs under strace, which then ends by itself.
fn kill_traced(mut child: Child) {
    Command::new("pkill").args(["-KILL", "-P", &child.id().to_string()]).status().unwrap();
    child.wait().unwrap();
}

/// Acknowledged after the last `error`.
fn acknowledged_since_error(lines: &[String]) -> usize {
    lines.iter().rev().take_while(|line| *line != "error").count()
}

/// A database that is there already, so that the fault comes while events are published.
fn begun(name: &str) -> Scene {
    let scene = Scene::new(name);
    let child = scene.start(&[]);
    scene.wait_until("it writes", |lines| !lines.is_empty());
    kill(child);
    scene
}

fn has_recovered(lines: &[String]) -> bool {
    lines.iter().any(|line| line == "error") && acknowledged_since_error(lines) > 200
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_a_flush_that_fails_is_found_out_about_and_survived() {
    assert!(is_there("strace"), "install the Debian package strace");
    for when in ["12", "30..33"] {
        let scene = begun(&format!("flush-{}", when.len()));
        let inject = format!("inject=fsync,fdatasync:error=EIO:when={when}");
        let child = scene.start(&["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", &inject]);
        scene.wait_until("it has failed and gone on", has_recovered);
        kill_traced(child);
        let count = scene.check().await;
        println!("flush {when} failed: {count} acknowledged, all there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_no_space_in_the_middle_of_a_write_is_survived() {
    let scene = begun("enospc");
    let log = scene.data().join("posthaste.db-wal");
    let inject = "inject=pwrite64,write:error=ENOSPC:when=400..460";
    let words = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", log.to_str().unwrap(), "-e", "trace=pwrite64,write", "-e", inject];
    let child = scene.start(&words);
    scene.wait_until("it has failed and gone on", has_recovered);
    kill_traced(child);
    scene.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_a_full_disk_is_answered_and_recovered_from() {
    let scene = Scene::new("full");
    std::fs::create_dir_all(scene.data()).unwrap();
    let data = scene.data().to_str().unwrap().to_owned();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs", &data]).status().unwrap();
    if !mounted.success() {
        println!("not run: this machine allows no mounts");
        return;
    }
    let filler = scene.data().join("filler");
    let child = scene.start(&[]);
    scene.wait_until("it writes", |lines| lines.len() > 50);
    let _ = std::fs::write(&filler, vec![0u8; 32 * 1024 * 1024]);
    scene.wait_until("the disk is full", |lines| lines.iter().filter(|line| *line == "error").count() > 50);
    std::fs::remove_file(&filler).unwrap();
    scene.wait_until("there is room again", |lines| acknowledged_since_error(lines) > 20);
    kill(child);
    scene.check().await;
    Command::new("umount").arg(&data).status().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_a_limit_on_file_sizes_does_not_kill_the_process() {
    let scene = Scene::new("fsize");
    // 4 MiB, in blocks of 512 bytes.
    let child = scene.start(&["sh", "-c", "trap '' XFSZ; ulimit -f 8192; exec \"$0\" \"$@\""]);
    scene.wait_until("the limit is reached", |lines| lines.iter().filter(|line| *line == "error").count() > 50);
    kill(child);
    assert!(scene.check().await > 0);
}
