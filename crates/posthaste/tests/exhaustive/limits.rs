//! F12, F13: too little memory, too few descriptors.

use std::path::PathBuf;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::{check_and_collect, furnished, wait_until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_i40_without_descriptors_it_sheds_and_recovers_unaided() {
    let mut world = furnished(13).await;
    world.start(&["prlimit", "--nofile=128:128"]).await.unwrap();
    let publishing = world.publish(50);
    wait_until("it works", || world.desk.acknowledged_since(0) > 20).await;
    // More than it can have, from callers who never say anything.
    let mut idle = Vec::new();
    for _ in 0..200 {
        let connecting = TcpStream::connect(world.program.listen);
        idle.extend(tokio::time::timeout(Duration::from_millis(200), connecting).await.into_iter().flatten());
    }
    let log = world.program.log.clone();
    let says = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    wait_until("it says that it can take no more", || says("turned away") || says("could not be taken")).await;
    let hits = world.receiver.hit_count();
    wait_until("deliveries go on meanwhile", || world.receiver.hit_count() > hits + 5).await;
    drop(idle);
    let before = world.desk.count();
    wait_until("it works again", || world.desk.acknowledged_since(before) > 50).await;
    publishing.stop().await;
    check_and_collect(&mut world).await;
    let lines = std::fs::read_to_string(&log).unwrap().lines().count();
    assert!(lines < 500, "it does not fill a disk with complaints: {lines} lines");
    world.stop().await.unwrap();
}

/// A group of processes that may use so much memory and no more, by whichever of the two ways this machine has.
struct Group {
    path: PathBuf,
    /// Where the most that was ever used is told.
    peak: PathBuf,
}

impl Group {
    fn new(bytes: u64) -> Option<Group> {
        let name = format!("posthaste-{}", std::process::id());
        let ways = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.peak"),
        ];
        for (top, limit, peak) in ways {
            let path = PathBuf::from(top).join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Group { peak: path.join(peak), path };
            // A directory in which the kernel has put nothing is no group.
            let is_group = group.path.join(limit).exists() && group.peak.exists();
            if is_group && std::fs::write(group.path.join(limit), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        println!("not run: this machine allows no memory limits for groups");
        None
    }

    fn has(&self, process: u32) -> bool {
        let members = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap();
        members.lines().any(|member| member == process.to_string())
    }

    fn peak_bytes(&self) -> u64 {
        std::fs::read_to_string(&self.peak).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_i40_under_a_memory_limit_it_stays_below_it_and_loses_nothing() {
    let limit = 256 * 1024 * 1024;
    let Some(group) = Group::new(limit) else { return };
    let mut world = furnished(12).await;
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", group.path.display());
    world.start(&["sh", "-c", &enter]).await.unwrap();
    assert!(group.has(world.process().unwrap().id()), "the limit is in force");
    let mut load = world.load(100);
    load.filler_bytes = 200_000;
    let publishing = world.desk.start(&load);
    wait_until("200 MB went through", || world.desk.acknowledged_since(0) > 1000).await;
    publishing.stop().await;
    assert!(world.process().unwrap().ended().unwrap().is_none(), "it was not killed for its memory");
    check_and_collect(&mut world).await;
    let resident = world.process().unwrap().resident_bytes().unwrap();
    println!("{} MiB resident, {} MiB at most with all caches", resident >> 20, group.peak_bytes() >> 20);
    assert!(group.peak_bytes() > limit / 8, "it was this group that was used");
    world.stop().await.unwrap();
}
