//! `posthaste serve`, with the real binary: what it refuses, how it starts, how it ends.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use posthaste_checker::receiver::Behaviour;
use posthaste_checker::server::signal_group;
use posthaste_checker::verdict::{Verdict, judge};
use posthaste_checker::world::World;

const BINARY: &str = env!("CARGO_BIN_EXE_posthaste");

/// A directory of a test's own, gone with it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("posthaste-serve-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs it to its end, in an environment without any of our variables.
fn serve(directory: &Directory, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("serve").args(arguments).current_dir(&directory.0).env_clear();
    command.output().unwrap()
}

#[track_caller]
fn refused(output: &Output, part: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert_eq!(said.lines().count(), 1, "one plain line: {said}");
    assert!(said.contains(part), "{part} is missing: {said}");
}

#[test]
fn mistakes_are_told_together_before_anything_is_touched() {
    let directory = Directory::new("mistakes");
    std::fs::write(directory.join("posthaste.toml"), "retention_days = 0\nlissten = 'x'\n").unwrap();
    let output = serve(&directory, &["--api-rate", "0", "--role", "api"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.contains("posthaste.toml:2: there is no setting `lissten`; did you mean `listen`?"), "{said}");
    assert!(!directory.join("posthaste-data").exists(), "nothing was made");
}

#[test]
fn what_was_understood_is_printed_and_nothing_is_started() {
    let directory = Directory::new("print");
    let output = serve(&directory, &["--print-config", "--retention-days", "7", "--admin-key", "canary-canary-canary"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(said.contains("retention_days = 7  # --retention-days") && said.contains("admin_key = \"(set)\""), "{said}");
    assert!(!said.contains("canary"), "{said}");
    assert!(!directory.join("posthaste-data").exists());
}

#[test]
fn a_port_that_is_taken_is_refused_with_what_to_do() {
    let directory = Directory::new("port");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = serve(&directory, &["--listen", &taken.local_addr().unwrap().to_string()]);
    refused(&output, "another process listens there");
}

#[test]
fn f8_directories_that_cannot_be_used_are_refused_with_what_to_do() {
    let directory = Directory::new("unusable");
    std::fs::write(directory.join("file"), "").unwrap();
    refused(&serve(&directory, &["--data-dir", "file/data"]), "name another with --data-dir");
    refused(&serve(&directory, &["--data-dir", "/proc/nowhere"]), "name another with --data-dir");
}

#[test]
fn f8_a_database_of_somebody_else_is_left_alone() {
    let directory = Directory::new("owner");
    let data = directory.join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("posthaste.db"), "").unwrap();
    if std::os::unix::fs::chown(data.join("posthaste.db"), Some(12345), None).is_err() {
        println!("not run: only root can give files away");
        return;
    }
    refused(&serve(&directory, &["--data-dir", "data"]), "belongs to user 12345");
}

#[test]
fn i39_a_database_that_is_damaged_or_without_its_key_is_refused() {
    let directory = Directory::new("damaged");
    let data = directory.join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("posthaste.db"), "this is no database").unwrap();
    refused(&serve(&directory, &["--data-dir", "data"]), "master.key is missing");
    std::fs::write(data.join("master.key"), "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").unwrap();
    std::fs::set_permissions(data.join("master.key"), PermissionsExt::from_mode(0o600)).unwrap();
    refused(&serve(&directory, &["--data-dir", "data"]), "is damaged");
    std::fs::write(data.join("master.key"), "not base64!").unwrap();
    refused(&serve(&directory, &["--data-dir", "data"]), "master.key is not usable");
}

#[test]
fn an_outbox_that_could_never_be_relayed_is_refused_rather_than_ignored() {
    let directory = Directory::new("absent");
    refused(&serve(&directory, &["--outbox", "postgres://app:canary@127.0.0.1/app?sslmode=verify-ca"]), "needs sslrootcert");
    refused(&serve(&directory, &["--outbox", "postgres://app:canary@127.0.0.1:port/app"]), "the outbox cannot be relayed");
}

#[test]
fn keys_are_made_at_the_first_start_and_kept_for_nobody_else_and_no_log_has_them() {
    let directory = Directory::new("keys");
    let shown: Vec<String> = (0..2)
        .map(|_| {
            let mut child = Command::new(BINARY)
                .args(["serve", "--listen", "127.0.0.1:0", "--data-dir", "data"])
                .current_dir(&directory.0)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut ready = [0; 1];
            child.stderr.as_mut().unwrap().read_exact(&mut ready).unwrap();
            Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "SIGTERM is a clean end");
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
        })
        .collect();
    let key = std::fs::read_to_string(directory.join("data/admin.key")).unwrap();
    assert!(!shown[0].contains(key.trim()), "{}", shown[0]);
    // The first byte was read to know that it lives.
    assert!(shown[0].contains("the admin key was made and is in data/admin.key"), "{}", shown[0]);
    assert!(!shown[1].contains("admin key"), "only once: {}", shown[1]);
    for (name, mode) in [("data", 0o700), ("data/admin.key", 0o600), ("data/master.key", 0o600)] {
        assert_eq!(std::fs::metadata(directory.join(name)).unwrap().mode() & 0o777, mode, "{name}");
    }
}

async fn world(seed: u64) -> World {
    World::new(Path::new(BINARY), seed).await.unwrap()
}

#[track_caller]
fn all_is_well(verdicts: &[Verdict]) {
    let broken: Vec<String> = verdicts.iter().filter(|verdict| verdict.is_broken()).map(ToString::to_string).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_a_stop_under_load_loses_and_repeats_nothing() {
    let mut world = world(1).await;
    world.start(&[]).await.unwrap();
    world.furnish_plainly().await.unwrap();
    world.make_endpoint(0, Behaviour::Slow, None).await.unwrap();
    let publishing = world.publish(200);
    for _ in 0..3 {
        let before = world.desk.count();
        wait_until("events are acknowledged", || world.desk.acknowledged_since(before) > 30).await;
        world.stop().await.unwrap();
        world.start(&[]).await.unwrap();
    }
    publishing.stop().await;
    assert_eq!(world.settle().await, 0, "everything that was acknowledged arrives");
    let evidence = world.testify().await.unwrap();
    assert!(evidence.kills.is_empty(), "so that nothing excuses a duplicate");
    all_is_well(&judge(&evidence));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i53_statistics_agree_with_the_rows_after_a_kill() {
    let mut world = world(11).await;
    world.start(&[]).await.unwrap();
    world.furnish_plainly().await.unwrap();
    let load = world.load(1);
    let mut caller = world.caller();
    for _ in 0..40 {
        world.desk.publish(&load, &mut caller).await;
    }
    // At once: what was counted in memory dies with it.
    wait_until("some are delivered", || world.receiver.hit_count() > 20).await;
    world.kill().unwrap();
    world.start(&[]).await.unwrap();
    assert_eq!(world.settle().await, 0);
    statistics_agree(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_a_second_process_on_the_same_directory_is_refused_at_once() {
    let mut world = world(2).await;
    world.start(&[]).await.unwrap();
    let directory = Directory::new("second");
    let output = serve(&directory, &["--listen", "127.0.0.1:0", "--data-dir", world.program.data_dir.to_str().unwrap()]);
    refused(&output, "another Posthaste process uses the data directory");
    world.furnish_plainly().await.unwrap();
    world.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_it_at_once_although_something_is_in_flight() {
    let mut world = world(3).await;
    world.program.set("--timeout-default-ms", "30000");
    world.start(&[]).await.unwrap();
    // Takes the request and never answers.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let body = serde_json::json!({"tenant": "t0", "url": format!("http://{}/", hanging.local_addr().unwrap())});
    assert_eq!(world.caller().post("/v1/endpoints", &body).await.unwrap().status, 201);
    let event = serde_json::json!({"tenant": "t0", "type": "order.made", "data": {}});
    assert_eq!(world.caller().post("/v1/events", &event).await.unwrap().status, 202);
    let (_in_flight, _) = tokio::task::spawn_blocking(move || hanging.accept().unwrap()).await.unwrap();
    let log = world.program.log.clone();
    let says = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    let process = world.process().unwrap();
    // As a shell and a parent that passes it on would send it: that is one signal.
    let started = Instant::now();
    signal_group(process.id(), "TERM").unwrap();
    signal_group(process.id(), "TERM").unwrap();
    wait_until("it has heard", || says("finishing what is in flight")).await;
    let status = loop {
        if let Some(status) = process.ended().unwrap() {
            break status;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "it waits for what is in flight");
        let _ = signal_group(process.id(), "TERM");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(!status.success(), "it did not end well");
    assert!(started.elapsed() > Duration::from_millis(200), "and not because of the first two: {:?}", started.elapsed());
    assert!(says("stopped at once"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_callers_that_never_finish_their_request_are_cut_off_and_hold_up_nobody() {
    let mut world = world(4).await;
    world.program.set("--header-timeout-ms", "1000");
    world.start(&[]).await.unwrap();
    let mut dawdlers: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(world.program.listen).unwrap();
            stream.write_all(b"POST /v1/events HTTP/1.1\r\nhost: x\r\nx-slow").unwrap();
            stream
        })
        .collect();
    world.furnish_plainly().await.unwrap();
    let load = world.load(1);
    let started = Instant::now();
    for _ in 0..20 {
        world.desk.publish(&load, &mut world.caller()).await;
    }
    assert_eq!(world.desk.acknowledged_since(0), 20);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    for stream in &mut dawdlers {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut answer = Vec::new();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut answer);
    }
    assert!(started.elapsed() < Duration::from_secs(25), "each of them was cut off: {:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f41_a_blocked_stderr_holds_up_no_delivery() {
    let mut world = world(5).await;
    world.program.set("--log", "trace");
    // A pipe that nobody reads takes 64 KiB, and then blocks whoever writes to it.
    let pipe = world.program.data_dir.with_extension("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut reader = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    world.program.log = pipe;
    world.start(&[]).await.unwrap();
    world.furnish_plainly().await.unwrap();
    let publishing = world.publish(100);
    // Each leaves many lines at this level. More than fits is dropped and counted, and deliveries go on.
    let mut caller = world.caller();
    let (deadline, mut dropped) = (Instant::now() + Duration::from_mins(1), 0);
    while dropped == 0 && Instant::now() < deadline {
        let page = String::from_utf8(caller.get("/metrics").await.unwrap().body.to_vec()).unwrap();
        let count = page.lines().find_map(|line| line.strip_prefix("posthaste_log_lines_dropped_total "));
        dropped = count.unwrap_or("0").parse().unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let hits = world.receiver.hit_count();
    wait_until("deliveries go on", || world.receiver.hit_count() > hits + 100).await;
    publishing.stop().await;
    let owed = world.settle().await;
    world.kill().unwrap();
    // Whoever looks for its last words must not wait for the pipe.
    world.program.log = PathBuf::from("/dev/null");
    let (full, is_full) = std::sync::mpsc::channel();
    std::thread::spawn(move || full.send(reader.read_exact(&mut vec![0; 60_000])));
    is_full.recv_timeout(Duration::from_secs(10)).expect("the pipe was full all the time").unwrap();
    assert_eq!(owed, 0);
    assert!(dropped > 0, "what was lost is counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_attempt_is_one_line_with_what_support_asks_for_and_levels_change_on_a_hangup() {
    let mut world = world(6).await;
    let settings = world.program.data_dir.with_extension("toml");
    std::fs::write(&settings, "log = 'warn'\n").unwrap();
    // From the file, so that it can change.
    let at = world.program.flags.iter().position(|flag| flag == "--log").unwrap();
    world.program.flags.drain(at..at + 2);
    world.program.set("--config", settings.to_str().unwrap());
    world.program.set("--log-format", "json");
    world.start(&[]).await.unwrap();
    world.furnish_plainly().await.unwrap();
    let log = world.program.log.clone();
    let attempts = || {
        let text = std::fs::read_to_string(&log).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.filter(|line| line["message"] == "webhook_delivery_attempt").collect::<Vec<_>>()
    };
    let load = world.load(1);
    world.desk.publish(&load, &mut world.caller()).await;
    assert_eq!(world.settle().await, 0);
    assert_eq!(attempts().len(), 0, "one that went well is not worth a warning");
    let says = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    for (file, told) in [
        ("log = 'warn,posthaste_engine=info'\n", "SIGHUP: what is logged is now warn,posthaste_engine=info"),
        ("log = 'loud'\nretention_days = 0\n", "SIGHUP: nothing is changed"),
    ] {
        std::fs::write(&settings, file).unwrap();
        signal_group(world.process().unwrap().id(), "HUP").unwrap();
        wait_until(told, || says(told)).await;
    }
    world.desk.publish(&load, &mut world.caller()).await;
    wait_until("the attempt is told", || attempts().len() == 1).await;
    let line = attempts().remove(0);
    let delivery = world.caller().get("/v1/deliveries?limit=1").await.unwrap().json()["data"][0].clone();
    for (field, expected) in [
        ("delivery", &delivery["id"]),
        ("event", &delivery["event"]),
        ("endpoint", &delivery["endpoint"]),
        ("tenant", &delivery["tenant"]),
        ("event_type", &delivery["type"]),
        ("attempt", &1.into()),
        ("success", &true.into()),
        ("outcome", &"success".into()),
        ("status_code", &200.into()),
        ("level", &"INFO".into()),
        ("target", &"posthaste_engine::owner::sending".into()),
    ] {
        assert_eq!(&line[field], expected, "{field}: {line}");
    }
    assert!(line["latency_ms"].is_u64() && line["timeout_ms"] == 3000 && line["timestamp"].is_string(), "{line}");
    // One that fails says why and when it is tried again.
    let body = serde_json::json!({"tenant": "gone", "url": "http://127.0.0.1:1/"});
    let refused = world.caller().post("/v1/endpoints", &body).await.unwrap();
    assert_eq!(refused.status, 422, "a port that nobody delivers to");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let body = serde_json::json!({"tenant": "gone", "url": format!("http://{closed}/")});
    assert_eq!(world.caller().post("/v1/endpoints", &body).await.unwrap().status, 201);
    let event = serde_json::json!({"tenant": "gone", "type": "order.made", "data": {"canary": "payload-canary"}});
    assert_eq!(world.caller().post("/v1/events", &event).await.unwrap().status, 202);
    wait_until("the failure is told", || attempts().len() >= 2).await;
    let line = attempts().remove(1);
    assert_eq!(
        (&line["level"], &line["success"], &line["outcome"]),
        (&"WARN".into(), &false.into(), &"connection_error".into()),
        "{line}"
    );
    assert!(line["status_code"].is_null() && line["error"].is_string() && line["next_attempt_at"].is_string(), "{line}");
    assert!(!says("payload-canary"), "no payload in any log");
}

#[test]
fn a_directory_with_open_doors_is_not_what_we_make() {
    let directory = Directory::new("mode");
    std::fs::set_permissions(&directory.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    serve(&directory, &["--listen", &taken.local_addr().unwrap().to_string(), "--data-dir", "a/b/c"]);
    assert_eq!(std::fs::metadata(directory.join("a/b/c")).unwrap().mode() & 0o777, 0o700);
}

async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the counts per minute say what the deliveries themselves say.
async fn statistics_agree(world: &World) {
    let mut caller = world.caller();
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let rows = caller.get("/v1/deliveries?limit=250").await.unwrap().json()["data"].as_array().unwrap().clone();
        let attempts: u64 = rows.iter().map(|row| row["attempt_count"].as_u64().unwrap()).sum();
        let delivered = rows.iter().filter(|row| row["status"] == "delivered").count() as u64;
        assert!(delivered > 0);
        let total = caller.get("/v1/stats").await.unwrap().json()["total"].clone();
        if (&total["attempts"], &total["delivered"]) == (&attempts.into(), &delivered.into()) {
            return;
        }
        assert!(Instant::now() < deadline, "{attempts} attempts and {delivered} delivered, and not {total}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
