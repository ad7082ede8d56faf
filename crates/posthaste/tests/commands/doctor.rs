//! `posthaste doctor` on the real binary: that all is well, each kind of wrong, and that it changes nothing.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::mail_server::{Encryption, Habits, MailServer};
use crate::server::{BINARY, Run, Server, run};

const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// A directory for the length of a test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        Place::below(&std::env::temp_dir(), name)
    }

    fn below(parent: &Path, name: &str) -> Place {
        let path = parent.join(format!("posthaste-doctor-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        Place(path)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("doctor").args(arguments).current_dir(&self.0).env_clear().env("POSTHASTE_LISTEN", "127.0.0.1:0");
        command
    }

    fn doctor(&self, arguments: &[&str]) -> Run {
        run(self.command(arguments), "")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// That one line says this of this, and that the code goes with it.
#[track_caller]
fn says(run: &Run, grade: &str, check: &str, part: &str) {
    let is_it = |line: &&str| line.starts_with(&format!("{grade:<8} {check:<15} ")) && line.contains(part);
    assert!(run.out.lines().any(|line| is_it(&line)), "no `{grade} {check} … {part}` in\n{}{}", run.out, run.err);
    let is_wrong = run.out.lines().any(|line| line.starts_with("wrong "));
    assert_eq!(run.code, i32::from(is_wrong), "{}{}", run.out, run.err);
    assert_eq!(run.err, "", "everything is told on stdout");
}

/// Everything in a directory, to the byte.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

/// A data directory with a database in it, whose server has ended.
fn stopped(name: &str) -> (Server, PathBuf) {
    let mut server = Server::start(name);
    server.end(false);
    let data = server.directory.join("posthaste-data");
    (server, data)
}

#[test]
fn a_sound_installation_is_found_sound_while_it_runs_and_after_and_nothing_is_changed() {
    let mut server = Server::start("doctor-sound");
    let process = format!("is in use by the process {}", server.process());
    let names = |path: &Path| contents(path).into_keys().collect::<Vec<_>>();
    let data = server.directory.join("posthaste-data");
    let before = names(&data);
    let found = run(server.command(&["doctor"]), "");
    says(&found, "ok", "process", &process);
    says(&found, "ok", "server", "takes traffic");
    for check in ["version", "settings", "clock", "data directory", "keys", "database", "schema", "master key", "certificates"] {
        says(&found, "ok", check, "");
    }
    assert!(!found.out.lines().any(|line| line.starts_with("wrong")), "{}", found.out);
    let told: Value = serde_json::from_str(&server.ok(&["doctor", "--json"])).unwrap();
    assert_eq!((told["ok"].as_bool(), told["wrong"].as_u64()), (Some(true), Some(0)), "{told}");
    assert!(told["findings"].as_array().unwrap().iter().all(|finding| finding["result"] != "wrong"));
    assert_eq!(names(&data), before, "nothing is left beside it");
    server.ok(&["events", "publish", "a.b", "--data", "{}"]);

    server.end(false);
    let before = contents(&data);
    let found = run(server.command(&["doctor"]), "");
    says(&found, "ok", "process", "is not in use");
    says(&found, "ok", "master key", "opens");
    says(&found, "warning", "server", "To do: start it");
    assert_eq!(contents(&data), before, "to the byte");
}

#[test]
fn a_server_that_was_killed_is_told_apart_and_its_log_is_left_alone() {
    let mut server = Server::start("doctor-killed");
    server.ok(&["events", "publish", "a.b", "--data", "{}"]);
    server.end(true);
    let data = server.directory.join("posthaste-data");
    let before = contents(&data);
    let found = run(server.command(&["doctor"]), "");
    says(&found, "ok", "process", "was killed");
    says(&found, "ok", "database", "which the next start reads back");
    assert_eq!(found.code, 0, "{}", found.out);
    assert_eq!(contents(&data), before, "to the byte");
    // What was acknowledged is in the log, and that is taken away.
    std::fs::remove_file(data.join("posthaste.db-wal")).unwrap();
    let found = run(server.command(&["doctor"]), "");
    assert_eq!(found.code, 1, "{}", found.out);
    says(&found, "wrong", "database", "its log (posthaste.db-wal) is missing");
}

#[test]
fn i35_a_clock_that_a_server_does_not_believe_is_told_and_can_be_accepted() {
    let mut server = Server::start("doctor-clock");
    says(&run(server.command(&["doctor", "--accept-clock"]), ""), "ok", "clock", "there is nothing to accept");
    server.end(false);
    let database = rusqlite::Connection::open(server.directory.join("posthaste-data/posthaste.db")).unwrap();
    let year = 365 * 86_400_000_u64;
    database.execute("INSERT INTO words VALUES ('clock_suspect', ?1)", [format!("0 1800000000000 {year} a-boot")]).unwrap();
    drop(database);
    says(&run(server.command(&["doctor"]), ""), "wrong", "clock", "has jumped ahead by 8760 h");
    says(&run(server.command(&["doctor", "--accept-clock"]), ""), "ok", "clock", "accepted");
    let found = run(server.command(&["doctor"]), "");
    assert!(!found.out.contains("jumped"), "{}", found.out);
}

#[test]
fn where_nothing_was_started_yet_nothing_is_wrong_and_nothing_is_made() {
    let place = Place::new("new");
    let found = place.doctor(&[]);
    says(&found, "ok", "data directory", "the first start makes it");
    says(&found, "ok", "database", "the first start makes it");
    assert_eq!((found.code, contents(&place.0).len()), (0, 0));
}

#[test]
fn every_mistake_in_the_settings_is_told_and_what_hangs_on_it_is_not_guessed() {
    let place = Place::new("settings");
    std::fs::write(place.0.join("posthaste.toml"), "in_flight_mx = 5\nallow_http = 'perhaps'\n").unwrap();
    let found = run(
        {
            let mut command = place.command(&["--database-url", "mysql://x"]);
            command.env("POSTHASTE_LISTNE", "x");
            command
        },
        "",
    );
    says(&found, "wrong", "settings", "did you mean `in_flight_max`?");
    says(&found, "wrong", "settings", "`perhaps` is not true or false");
    says(&found, "wrong", "settings", "did you mean POSTHASTE_LISTEN?");
    says(&found, "wrong", "database", "is not looked at");
    assert!(!found.out.contains("first start"), "{}", found.out);
    says(&place.doctor(&["--config", "/nowhere/x.toml"]), "wrong", "settings", "/nowhere/x.toml cannot be read");
    std::fs::remove_file(place.0.join("posthaste.toml")).unwrap();
    says(&place.doctor(&["--role", "relay"]), "wrong", "settings", "roles are split");
}

#[test]
fn a_directory_that_others_can_use_or_that_is_none_is_wrong() {
    let (server, data) = stopped("doctor-directory");
    let doctor = || run(server.command(&["doctor"]), "");
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(&data, 0o770);
    says(&doctor(), "wrong", "data directory", "written to by other users (mode 770)");
    mode(&data, 0o755);
    says(&doctor(), "warning", "data directory", "chmod 700");
    mode(&data, 0o700);
    mode(&data.join("master.key"), 0o640);
    says(&doctor(), "wrong", "keys", "master.key can be read by other users (mode 640)");
    mode(&data.join("master.key"), 0o600);
    std::fs::write(data.join("admin.key"), "short\n").unwrap();
    says(&doctor(), "wrong", "keys", "at least 20 characters");
    let file = server.directory.join("file");
    std::fs::write(&file, "x").unwrap();
    says(&run(server.command(&["doctor", "--data-dir", "file"]), ""), "wrong", "data directory", "is not a directory");
    says(&run(server.command(&["doctor", "--data-dir", "file/x"]), ""), "wrong", "data directory", "cannot be looked at");
    // Only root can be somebody else, or give it away.
    if rustix::process::geteuid().is_root() {
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", BINARY, "doctor", "--data-dir"]);
        nobody.arg(&data).current_dir("/").env_clear().env("PATH", "/usr/bin:/bin");
        says(&run(nobody, ""), "wrong", "data directory", "cannot be written to: Permission denied");
    }
    if std::os::unix::fs::chown(data.join("posthaste.db"), Some(65534), None).is_ok() {
        says(&doctor(), "wrong", "data directory", "belongs to user 65534");
    }
}

#[test]
fn a_database_that_is_damaged_gone_or_too_new_is_wrong() {
    let (server, data) = stopped("doctor-database");
    let doctor = || run(server.command(&["doctor"]), "");
    let database = data.join("posthaste.db");
    let sound = std::fs::read(&database).unwrap();
    let changed = Command::new("python3")
        .args(["-c", "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('UPDATE schema SET version = 99, usable_from = 99'); c.commit()"])
        .arg(&database)
        .status()
        .unwrap();
    assert!(changed.success());
    says(&doctor(), "wrong", "schema", "its version is 99");
    let mut harmed = sound.clone();
    let end = harmed.len().min(40 * 4096);
    harmed[2 * 4096..end].fill(0xa5);
    std::fs::write(&database, &harmed).unwrap();
    says(&doctor(), "wrong", "database", "damaged");
    std::fs::write(&database, b"this is no database at all, and longer than a header would be").unwrap();
    says(&doctor(), "wrong", "database", "");
    std::fs::write(&database, b"").unwrap();
    says(&doctor(), "wrong", "database", "missing or empty");
    std::fs::write(&database, &sound).unwrap();
    assert_eq!(doctor().code, 0, "as it was");
}

#[test]
fn a_master_key_that_does_not_fit_is_wrong_and_is_not_shown() {
    let (server, data) = stopped("doctor-key");
    let other = run(server.command(&["doctor", "--master-key", MASTER_KEY]), "");
    says(&other, "wrong", "master key", "and the one given is");
    assert!(!other.out.contains(MASTER_KEY));
    let kept = std::fs::read_to_string(data.join("master.key")).unwrap();
    let rotated = run(server.command(&["doctor", "--master-key", MASTER_KEY, "--previous-master-keys", kept.trim()]), "");
    says(&rotated, "ok", "master key", "a previous key");
    std::fs::write(data.join("master.key"), "not base64!").unwrap();
    says(&run(server.command(&["doctor"]), ""), "wrong", "master key", "is not usable");
    std::fs::remove_file(data.join("master.key")).unwrap();
    says(&run(server.command(&["doctor"]), ""), "wrong", "master key", "and there is none");
    assert!(!data.join("master.key").exists(), "none is made");
}

#[test]
fn a_disk_that_is_full_is_memory_or_fails_to_flush_is_told() {
    let memory = Place::below(Path::new("/dev/shm"), "memory");
    let data = memory.0.to_str().unwrap().to_owned();
    says(&memory.doctor(&["--data-dir", &data]), "warning", "disk", "gone when the machine stops");
    let place = Place::new("disk");
    let data = place.0.to_str().unwrap();
    // However busy it is.
    let found = place.doctor(&["--data-dir", data]);
    assert!(found.code == 0 && found.out.contains("is flushed in"), "{}", found.out);
    let strace = ["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO"];
    let mut failing = Command::new("strace");
    failing.args(strace).arg(BINARY).args(["doctor", "--data-dir", data]).current_dir(&place.0);
    says(&run(failing, ""), "wrong", "disk", "cannot be flushed");
    // Only root can mount.
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m,mode=700", "none", data]).status().unwrap();
    if mounted.success() {
        let found = place.doctor(&["--data-dir", data]);
        let _ = Command::new("umount").arg(data).status();
        says(&found, "wrong", "disk space", "24 MiB are free");
    }
}

/// A library that shows another time, and leaves flushes out.
fn shim(place: &Place) -> PathBuf {
    let (source, library) = (place.0.join("shim.c"), place.0.join("shim.so"));
    std::fs::write(
        &source,
        r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t which, struct timespec *shown) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, shown);
    const char *offset = getenv("SHIM_OFFSET_SECONDS");
    if (which == CLOCK_REALTIME && offset) shown->tv_sec += atol(offset);
    return result;
}
int fsync(int file) { (void) file; return 0; }
"#,
    )
    .unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status().unwrap();
    assert!(made.success(), "a C compiler is needed");
    library
}

#[test]
fn a_clock_that_was_never_set_and_a_flush_that_is_left_out_are_told() {
    let place = Place::new("shim");
    let library = shim(&place);
    let run_with = |offset: &str| {
        let mut command = place.command(&["--data-dir", "."]);
        command.env("LD_PRELOAD", &library).env("SHIM_OFFSET_SECONDS", offset);
        run(command, "")
    };
    let found = run_with("-1000000000");
    says(&found, "wrong", "clock", "which is long past");
    says(&found, "warning", "disk", "as no disk can");
    says(&run_with("0"), "ok", "clock", "shows 20");
}

#[test]
fn certificates_that_cannot_be_loaded_and_too_few_files_are_told() {
    let place = Place::new("machine");
    says(&place.doctor(&["--extra-roots", "/nowhere/ca.pem"]), "wrong", "certificates", "/nowhere/ca.pem");
    std::fs::write(place.0.join("ca.pem"), "not a certificate").unwrap();
    says(&place.doctor(&["--extra-roots", "ca.pem"]), "wrong", "certificates", "no certificate");
    let mut limited = Command::new("sh");
    limited.args(["-c", r#"ulimit -n 200; exec "$0" doctor"#, BINARY]).current_dir(&place.0);
    says(&run(limited, ""), "warning", "open files", "200 are allowed");
}

/// Answers by the path, for ever.
fn answering(answer: impl Fn(&str) -> (&'static str, &'static str) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap_or(0) > 0 {}
            let (status, body) = answer(head.split(' ').nth(1).unwrap_or_default());
            let length = body.len();
            let _ = write!(reader.into_inner(), "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        }
    });
    address
}

#[test]
fn a_server_that_is_gone_strange_unready_or_of_another_version_is_told() {
    let place = Place::new("server");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let asked = |address: SocketAddr| place.doctor(&["--url", &format!("http://{address}")]);
    says(&asked(closed), "wrong", "server", "cannot reach");
    says(&asked(answering(|_| ("200 OK", "hello"))), "wrong", "server", "is not Posthaste");
    says(&asked(answering(|_| ("404 Not Found", ""))), "wrong", "server", "answered 404");
    let unready = answering(|path| match path {
        "/readyz" => ("503 Service Unavailable", r#"{"title": "Unavailable", "detail": "Deliveries are stalled"}"#),
        _ => ("200 OK", r#"{"status": "ok"}"#),
    });
    says(&asked(unready), "wrong", "server", "Deliveries are stalled");
    let other = answering(|_| ("200 OK", r#"{"status": "ok", "info": {"version": "9.9.9"}}"#));
    says(&asked(other), "warning", "server", "is of version 9.9.9");
    let mut by_variable = place.command(&[]);
    by_variable.env("POSTHASTE_URL", format!("http://{closed}"));
    says(&run(by_variable, ""), "wrong", "server", "cannot reach");
}

#[test]
fn what_deliveries_could_not_reach_is_told_with_the_reason() {
    let place = Place::new("reach");
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hooks", open.local_addr().unwrap());
    let allowed = ["--allow-http", "--allow-networks", "127.0.0.0/8", "--reach"];
    says(&place.doctor(&[&allowed[..], &[&url]].concat()), "ok", "reach", "can be reached at 127.0.0.1");
    says(&place.doctor(&["--allow-http", "--reach", &url]), "wrong", "reach", "cannot be reached");
    says(&place.doctor(&["--reach", &url]), "wrong", "reach", "cannot be reached");
    let tls = url.replace("http://", "https://");
    drop(open);
    says(&place.doctor(&[&allowed[..], &[&url]].concat()), "wrong", "reach", "refused the connection");
    let plain = answering(|_| ("200 OK", ""));
    let tls = tls.replace(tls.split('/').nth(2).unwrap(), &plain.to_string());
    says(&place.doctor(&[&allowed[..], &[&tls]].concat()), "wrong", "reach", "TLS");
}

#[test]
fn a_collector_that_is_gone_or_takes_no_traces_is_told_and_a_good_one_is_too() {
    let place = Place::new("collector");
    let asked = |address: SocketAddr| {
        let endpoint = format!("http://{address}");
        place.doctor(&["--otlp-endpoint", &endpoint, "--otlp-headers", "authorization=canary"])
    };
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    says(&asked(closed), "warning", "traces", "Connection refused");
    let strict = answering(|path| if path == "/v1/traces" { ("401 Unauthorized", "") } else { ("200 OK", "") });
    let found = asked(strict);
    says(&found, "warning", "traces", "the collector answered 401");
    assert!(!found.out.contains("canary"), "{}", found.out);
    let good = answering(|path| if path == "/v1/traces" { ("200 OK", "") } else { ("404 Not Found", "") });
    says(&asked(good), "ok", "traces", "takes traces");
    assert!(!place.doctor(&[]).out.contains("traces"), "nobody has asked for them");
}

#[test]
fn a_postgresql_that_is_gone_unsafe_foreign_or_apart_in_time_is_wrong() {
    let place = Place::new("postgres");
    let postgres = posthaste_testpg::Server::start();
    let url = postgres.url();
    let given = ["--master-key", MASTER_KEY, "--database-url", &url];
    let fresh = place.doctor(&given);
    says(&fresh, "ok", "database", "PostgreSQL");
    says(&fresh, "ok", "schema", "no tables yet");
    says(&fresh, "ok", "clock", "apart");
    assert_eq!(postgres.psql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").trim(), "0", "nothing is made");

    let library = shim(&place);
    let mut ahead = place.command(&given);
    ahead.env("LD_PRELOAD", &library).env("SHIM_OFFSET_SECONDS", "90");
    says(&run(ahead, ""), "wrong", "clock", "is not ready");
    let mut ahead = place.command(&given);
    ahead.env("LD_PRELOAD", &library).env("SHIM_OFFSET_SECONDS", "3");
    says(&run(ahead, ""), "warning", "clock", "apart");

    postgres.psql("CREATE TABLE schema (version BIGINT, usable_from BIGINT); INSERT INTO schema VALUES (99, 99)");
    postgres.psql("CREATE TABLE words (name TEXT, value TEXT); INSERT INTO words VALUES ('master_key', 'b6720f2d217e03a1')");
    let found = place.doctor(&given);
    says(&found, "wrong", "schema", "its version is 99");
    says(&found, "wrong", "master key", "b6720f2d217e03a1");
    says(&place.doctor(&["--database-url", &url]), "wrong", "settings", "master key");

    let canary = "postgres://canary:canary@127.0.0.1:1/x";
    let gone = place.doctor(&["--master-key", MASTER_KEY, "--database-url", canary]);
    says(&gone, "wrong", "database", "unreachable");
    assert!(!gone.out.contains("canary"), "{}", gone.out);

    let unsafe_one = posthaste_testpg::Server::start_with(&[("fsync", "off")]);
    let found = place.doctor(&["--master-key", MASTER_KEY, "--database-url", &unsafe_one.url()]);
    says(&found, "wrong", "database", "fsync = off");
}

#[test]
fn a_mail_server_is_looked_at_as_for_a_mail_and_none_is_sent() {
    let place = Place::new("mail");
    let file = place.0.join("mail-roots.pem");
    let look = |server: &MailServer, url: &str| {
        std::fs::write(&file, &server.certificate).unwrap();
        let url = url.replace("HERE", &server.place());
        let found = place.doctor(&["--smtp-url", &url, "--smtp-from", "a@b.example", "--extra-roots", "mail-roots.pem"]);
        assert!(!found.out.contains("canary"), "{}", found.out);
        assert!(server.mails.lock().unwrap().is_empty(), "nothing is sent");
        found
    };
    let login = Some(("user", "canary"));
    let secure = |encryption| MailServer::start(Habits { encryption, login, ..Habits::default() });
    let (offered, from_the_start) = (secure(Encryption::Offered), secure(Encryption::FromTheStart));
    says(&look(&offered, "smtp://user:canary@HERE?tls=required"), "ok", "mail", "is encrypted and accepts the login");
    says(&look(&from_the_start, "smtps://user:canary@HERE"), "ok", "mail", "is encrypted and accepts the login");
    let refused = look(&offered, "smtp://user:canary2@HERE?tls=required");
    says(&refused, "wrong", "mail", "does not accept the user and the password: 535");
    says(&refused, "wrong", "mail", "To do: see user and password in smtp_url");
    says(&look(&secure(Encryption::None), "smtp://user:canary@HERE?tls=required"), "wrong", "mail", "offers no encryption");
    let misnamed = MailServer::start(Habits {
        encryption: Encryption::FromTheStart,
        login,
        certified: "mail.example.com",
        ..Habits::default()
    });
    says(&look(&misnamed, "smtps://user:canary@HERE"), "wrong", "mail", "its certificate is for another name");
    let strange = MailServer::start(Habits { encryption: Encryption::FromTheStart, login, ways: "GSSAPI", ..Habits::default() });
    says(&look(&strange, "smtps://user:canary@HERE"), "wrong", "mail", "no way to log in");
    let plain = MailServer::start(Habits::default());
    says(&look(&plain, "smtp://HERE"), "ok", "mail", "it is not encrypted, and there is no login");

    let from = ["--smtp-from", "a@b.example", "--smtp-url"];
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let found = place.doctor(&[&from[..], &[&format!("smtp://{closed}")]].concat());
    says(&found, "wrong", "mail", "cannot be reached: Connection refused");
    let untrusted = place.doctor(&[&from[..], &[&format!("smtps://user:canary@{}", from_the_start.place())]].concat());
    says(&untrusted, "wrong", "mail", "its issuer is not trusted");
    let clear = place.doctor(&[&from[..], &["smtp://user:canary@mail.example.com"]].concat());
    says(&clear, "wrong", "settings", "would go over the network unencrypted");
    assert!(!clear.out.contains("canary"), "{}", clear.out);
    assert!(!place.doctor(&[]).out.contains("mail "), "where none is set, none is looked at");
}
