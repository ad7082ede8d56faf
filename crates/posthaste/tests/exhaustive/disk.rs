//! F4–F8, F10: disks.

use std::process::Command;

use crate::{Mounted, check_and_collect, fails_and_recovers, furnished, reads_live_and_publishing_is_refused, restart, wait_until};

/// Traces only what is harmed.
const STRACE: [&str; 7] = ["strace", "--seccomp-bpf", "-f", "-qq", "-o", "/dev/null", "-e"];

fn under_strace<'a>(words: &[&'a str]) -> Vec<&'a str> {
    STRACE.into_iter().chain(words.iter().copied()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_a_flush_that_fails_is_never_acknowledged_and_survived_unaided() {
    for when in ["15", "40..43"] {
        let mut world = furnished(4).await;
        let inject = format!("inject=fsync,fdatasync:error=EIO:when={when}");
        world.start(&under_strace(&["trace=fsync,fdatasync", "-e", &inject])).await.unwrap();
        let publishing = world.publish(100);
        fails_and_recovers(&world, 100).await;
        publishing.stop().await;
        restart(&mut world).await;
        let evidence = check_and_collect(&mut world).await;
        println!("flush {when} failed: {} calls, all is well", evidence.publishes.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_no_space_in_the_middle_of_a_write_is_never_acknowledged_and_survived_unaided() {
    let mut world = furnished(6).await;
    let log = world.program.data_dir.join("posthaste.db-wal");
    let words = ["trace=pwrite64", "-P", log.to_str().unwrap(), "-e", "inject=pwrite64:error=ENOSPC:when=200..230"];
    world.start(&under_strace(&words)).await.unwrap();
    let publishing = world.publish(100);
    fails_and_recovers(&world, 100).await;
    publishing.stop().await;
    restart(&mut world).await;
    check_and_collect(&mut world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_i38_a_full_disk_is_answered_and_recovered_from_unaided() {
    let mut world = furnished(5).await;
    let data = world.program.data_dir.clone();
    let aside = data.with_extension("aside");
    std::fs::rename(&data, &aside).unwrap();
    let Some(_mounted) = Mounted::new(&data, "24m") else { return };
    let copied = Command::new("cp").arg("-a").arg(format!("{}/.", aside.display())).arg(&data).status().unwrap();
    assert!(copied.success());
    world.start(&[]).await.unwrap();
    let publishing = world.publish(100);
    wait_until("it works", || world.desk.acknowledged_since(0) > 50).await;
    let filler = data.join("filler");
    let _ = std::fs::write(&filler, vec![0u8; 32 * 1024 * 1024]);
    let before = world.desk.count();
    wait_until("the disk is full", || world.desk.failed_since(before) > 30).await;
    reads_live_and_publishing_is_refused(&world).await;
    std::fs::remove_file(&filler).unwrap();
    fails_and_recovers(&world, 50).await;
    publishing.stop().await;
    check_and_collect(&mut world).await;
    world.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_a_limit_on_file_sizes_ends_nothing_and_loses_nothing() {
    let mut world = furnished(7).await;
    // 2 MiB, in blocks of 512 bytes.
    world.start(&["sh", "-c", "trap '' XFSZ; ulimit -f 4096; exec \"$0\" \"$@\""]).await.unwrap();
    let publishing = world.publish(300);
    let limit_is_reached = || {
        let calls = world.desk.count();
        calls > 100 && world.desk.failed_since(calls - 50) > 45
    };
    wait_until("the limit is reached", limit_is_reached).await;
    reads_live_and_publishing_is_refused(&world).await;
    publishing.stop().await;
    assert!(world.process().unwrap().ended().unwrap().is_none(), "it is alive");
    // The limit stays for as long as the process does.
    world.note_outage(0);
    restart(&mut world).await;
    check_and_collect(&mut world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_a_read_only_data_directory_is_refused_in_one_line() {
    let world = furnished(8).await;
    let data = world.program.data_dir.with_extension("read-only");
    let Some(mounted) = Mounted::new(&data, "8m") else { return };
    for is_empty in [true, false] {
        if !is_empty {
            let source = format!("{}/.", world.program.data_dir.display());
            assert!(Command::new("cp").arg("-a").arg(source).arg(&data).status().unwrap().success());
        }
        assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(&data).status().unwrap().success());
        let output = Command::new(&world.program.binary)
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.lines().count() == 1, "{said}");
        assert!(said.contains("cannot be written to") && said.contains("Read-only"), "{said}");
        assert!(Command::new("mount").args(["-o", "remount,rw"]).arg(&data).status().unwrap().success());
    }
    drop(mounted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_a_slow_disk_makes_it_slow_and_loses_nothing() {
    let mut world = furnished(10).await;
    let words = ["trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_exit=200000"];
    world.start(&under_strace(&words)).await.unwrap();
    let publishing = world.publish(200);
    wait_until("it works", || world.desk.acknowledged_since(0) > 200).await;
    publishing.stop().await;
    check_and_collect(&mut world).await;
}
