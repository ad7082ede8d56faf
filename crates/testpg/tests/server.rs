//! What a test may expect of its server.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use posthaste_testpg::Server;

/// Set for a copy of this program that plays the test which is killed, or the ones that start at once.
const PLAYS_A_PART: &str = "POSTHASTE_TESTPG_PLAYS_A_PART";

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(30), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether any process has this on its command line.
fn runs(name: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let command_line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        // Ours would have it as a program's argument, never as our own.
        String::from_utf8_lossy(&command_line).contains(name)
    })
}

fn name(directory: &Path) -> String {
    directory.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Runs one test of this file in a process of its own.
fn play(test: &str, temporary: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(PLAYS_A_PART, "yes").env("TMPDIR", temporary);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

fn plays_a_part() -> bool {
    std::env::var_os(PLAYS_A_PART).is_some()
}

#[test]
fn a_server_answers_as_configured() {
    let server = Server::start();
    assert_eq!(server.psql("select 1, 'ü'"), "1|ü");
    for (setting, expected) in [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("max_connections", "100"),
        ("shared_buffers", "64MB"),
        ("listen_addresses", "127.0.0.1"),
        ("port", &server.port().to_string()),
        ("server_encoding", "UTF8"),
        ("lc_collate", "C"),
    ] {
        assert_eq!(server.psql(&format!("show {setting}")), expected, "{setting}");
    }
    assert!(server.directory().join(format!(".s.PGSQL.{}", server.port())).exists(), "the socket is beside the data");
    assert!(server.log().contains("ready to accept connections"), "{}", server.log());
}

#[test]
fn a_setting_of_the_test_wins() {
    let server = Server::start_with(&[("fsync", "off"), ("application_name", "it's")]);
    assert_eq!(server.psql("show fsync"), "off");
    assert_eq!(server.psql("select setting from pg_file_settings where name = 'application_name'"), "it's");
}

#[test]
fn databases_are_apart() {
    let server = Server::start();
    let url = server.create_database("other");
    assert_eq!(url, server.url_of("other"));
    server.psql_at(&url, "create table only_here()").unwrap();
    assert_eq!(server.psql_at(&url, "select count(*) from only_here").unwrap(), "0");
    let error = server.psql_at(&server.url(), "select count(*) from only_here").unwrap_err();
    assert!(error.contains("does not exist"), "{error}");
}

#[test]
fn what_was_committed_survives_kills_and_restarts() {
    let server = Server::start();
    let port = server.port();
    server.psql("create table t(n int); insert into t values (1)");
    server.kill();
    let error = server.psql_at(&server.url(), "select 1").unwrap_err();
    assert!(error.contains("Connection refused"), "{error}");
    server.begin();
    assert_eq!(server.psql("select n from t"), "1");
    server.psql("insert into t values (2)");
    server.restart_immediately();
    assert_eq!(server.psql("select sum(n) from t"), "3");
    assert_eq!(server.port(), port);
    assert_eq!(server.log().matches("automatic recovery in progress").count(), 2, "{}", server.log());
}

#[test]
fn a_kill_ends_a_query_and_what_it_has_not_committed() {
    let server = Server::start();
    server.psql("create table t(n int)");
    std::thread::scope(|scope| {
        let query = scope.spawn(|| server.psql_at(&server.url(), "begin; insert into t values (1); select pg_sleep(600)"));
        wait_until("it sleeps", || server.psql("select count(*) from pg_stat_activity where wait_event = 'PgSleep'") == "1");
        server.kill();
        query.join().unwrap().unwrap_err();
    });
    assert!(!runs(&name(server.directory())));
    server.begin();
    assert_eq!(server.psql("select count(*) from t"), "0");
}

#[test]
fn a_frozen_server_answers_nobody_until_it_is_thawed() {
    let server = Server::start();
    server.freeze();
    let (answers, answer) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| answers.send(server.psql("select 1")).unwrap());
        assert_eq!(answer.recv_timeout(Duration::from_millis(300)), Err(mpsc::RecvTimeoutError::Timeout));
        server.thaw();
        assert_eq!(answer.recv_timeout(Duration::from_secs(30)).unwrap(), "1");
    });
}

#[test]
fn a_dropped_server_leaves_nothing_behind() {
    for state in ["running", "killed", "frozen"] {
        let server = Server::start();
        let directory = server.directory().to_owned();
        assert!(runs(&name(&directory)), "{state}");
        let postmaster = std::fs::read_to_string(directory.join("data/postmaster.pid")).unwrap();
        let shared_memory = postmaster.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap().to_owned();
        let has_shared_memory = || {
            let all = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
            all.lines().any(|line| line.split_whitespace().nth(1) == Some(&shared_memory))
        };
        assert!(has_shared_memory(), "{state}");
        match state {
            "killed" => server.kill(),
            "frozen" => server.freeze(),
            _ => {}
        }
        drop(server);
        assert!(!directory.exists(), "{state}");
        assert!(!runs(&name(&directory)), "{state}");
        assert!(!has_shared_memory(), "{state}");
    }
}

#[test]
fn a_killed_test_leaves_nothing_behind() {
    if plays_a_part() {
        let server = Server::start();
        println!("\ndirectory {}", server.directory().display());
        // Until it is killed.
        loop {
            std::thread::park();
        }
    }
    let mut child = play("a_killed_test_leaves_nothing_behind", &std::env::temp_dir());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let directory: PathBuf = lines.find_map(|line| line.unwrap().strip_prefix("directory ").map(PathBuf::from)).unwrap();
    assert!(runs(&name(&directory)));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the processes are gone", || !runs(&name(&directory)));
    wait_until("the directory is gone", || !directory.exists());
}

#[test]
fn first_starts_at_once_make_one_template() {
    if plays_a_part() {
        assert_eq!(Server::start().psql("select 1"), "1");
        return;
    }
    let temporary = std::env::temp_dir().join(format!("posthaste-testpg-first-{}", std::process::id()));
    std::fs::create_dir(&temporary).unwrap();
    // Somewhere that every user may write to, like the real one.
    std::fs::set_permissions(&temporary, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    let children = [(); 3].map(|()| play("first_starts_at_once_make_one_template", &temporary));
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let only_entry = |directory: &Path| {
        let entries: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries[0].clone()
    };
    let template = only_entry(&only_entry(&temporary));
    assert!(name(&template).starts_with("template-"), "{template:?}");
    assert_ne!(template.metadata().unwrap().uid(), 0, "PostgreSQL does not run as root");
    std::fs::remove_dir_all(&temporary).unwrap();
}
