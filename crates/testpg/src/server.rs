//! One server: a copy of an initialised directory, a postmaster that is our child, and a watcher that ends both.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::installation::Installation;
use crate::port;

/// Recovery after a kill first flushes every file, which a slow disk takes its time for.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long until we look again.
const PAUSE: Duration = Duration::from_millis(5);

/// Whoever changes these gives the templates another name in [`Server::template`].
const INITDB: [&str; 7] = ["--auth=trust", "--no-sync", "-U", "postgres", "-E", "UTF8", "--locale=C"];

/// As careful with data as a server that somebody relies on; a test that does not need that says so.
const SETTINGS: [(&str, &str); 8] = [
    ("fsync", "on"),
    ("full_page_writes", "on"),
    ("synchronous_commit", "on"),
    ("max_connections", "100"),
    ("shared_buffers", "64MB"),
    ("listen_addresses", "127.0.0.1"),
    ("timezone", "UTC"),
    // In its directory, so that it is gone with it; elsewhere, a killed server leaves files in /dev/shm.
    ("dynamic_shared_memory_type", "mmap"),
];

/// A PostgreSQL server that runs until it is dropped, or until this process is gone.
#[derive(Debug)]
pub struct Server {
    installation: Installation,
    directory: PathBuf,
    user: User,
    port: u16,
    /// None while it is down.
    postmaster: Mutex<Option<Child>>,
    watcher: Child,
    /// Closing it tells the watcher to clean up.
    lifeline: Option<ChildStdin>,
}

/// Whom the server runs as. PostgreSQL refuses root.
#[derive(Debug, Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
    /// Whether we are somebody else, namely root.
    is_other: bool,
}

/// It could not start, but may if it is tried again.
#[derive(Debug)]
struct NotYet;

/// What PostgreSQL then says: somebody has its port, or a killed process has lost its command line, by which we find it, but
/// not yet its memory.
const NOT_YET: [&str; 2] = ["Address already in use", "pre-existing shared memory block"];

impl Server {
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    /// With these settings beside ours, or in their place.
    pub fn start_with(settings: &[(&str, &str)]) -> Server {
        let installation = Installation::find().expect("PostgreSQL 14 or newer is missing: install the Debian package postgresql");
        let mut server = Server::watched(installation);
        server.copy_template();
        server.configure(settings);
        for _ in 0..10 {
            // Somebody may take it before PostgreSQL does; then we look for another.
            server.port = port::listen_anywhere().local_addr().expect("it listens somewhere").port();
            if server.launch().is_ok() {
                return server;
            }
        }
        panic!("ten ports were free, and taken before PostgreSQL could have them:\n{}", server.log());
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Of the database `postgres`.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    pub fn url_of(&self, database: &str) -> String {
        url(self.port, database)
    }

    /// A new database; answers its URL.
    pub fn create_database(&self, name: &str) -> String {
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{name} would need quotes in its URL");
        self.psql(&format!("CREATE DATABASE \"{name}\""));
        self.url_of(name)
    }

    /// Runs these statements as one message in the database `postgres`, and answers the rows that they have: columns
    /// separated by `|`, no newline at the end.
    pub fn psql(&self, sql: &str) -> String {
        self.psql_at(&self.url(), sql).unwrap_or_else(|error| panic!("psql: {error}\n{sql}"))
    }

    /// The same in another database, or through a [`crate::Proxy`]; the error is what psql complained about.
    pub fn psql_at(&self, url: &str, sql: &str) -> Result<String, String> {
        let mut psql = Command::new(self.installation.program("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-d", url, "-c", sql]).stdin(Stdio::null());
        let output = without_surprises(&mut psql).output().expect("psql was there a moment ago");
        let rows = String::from_utf8(output.stdout).expect("the database is UTF-8");
        if output.status.success() {
            Ok(rows.trim_end_matches('\n').to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned())
        }
    }

    /// Restarts it with TLS: its certificate, the key of that, and the authority that signs certificates of clients (PEM).
    pub fn enable_tls(&self, certificate: &Path, key: &Path, authority: &Path) {
        let files = [("ssl_cert_file", certificate), ("ssl_key_file", key), ("ssl_ca_file", authority)];
        let copies = files.map(|(setting, file)| {
            // PostgreSQL refuses a key that belongs to another user, or that others can read.
            let copy = self.directory.join(setting);
            std::fs::copy(file, &copy).expect("the file can be read");
            std::fs::set_permissions(&copy, Permissions::from_mode(0o600)).expect("it is ours");
            self.user.give(&copy);
            (setting, copy.to_str().expect("the directory for temporary files has a name in UTF-8").to_owned())
        });
        let settings: Vec<(&str, &str)> =
            copies.iter().map(|(setting, copy)| (*setting, copy.as_str())).chain([("ssl", "on")]).collect();
        self.configure(&settings);
        self.restart_immediately();
    }

    /// Restarts it with these lines as its `pg_hba.conf`. [`Server::psql`] needs one that trusts it.
    pub fn authenticate_by(&self, lines: &str) {
        std::fs::write(self.data().join("pg_hba.conf"), lines).expect("initdb has made this file");
        self.restart_immediately();
    }

    /// Everything that the server has logged since its first start.
    pub fn log(&self) -> String {
        std::fs::read(self.log_path()).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// Where its data, its log and its socket are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// An immediate shutdown, as in `pg_ctl restart -m immediate`, and a start on the same port: connections are lost, what
    /// was committed is not.
    pub fn restart_immediately(&self) {
        self.thaw();
        self.end_postmaster("QUIT");
        self.begin();
    }

    /// The server dies without a last word: all of its processes, the postmaster first, so that it cannot react.
    pub fn kill(&self) {
        self.end_postmaster("KILL");
        self.wait_until("the killed server is gone", || {
            // Left to themselves they would finish what they are doing, and keep the next postmaster from starting.
            let left = self.processes();
            self.signal("KILL", &left);
            left.is_empty()
        });
    }

    /// Starts it again on the same port, after [`Server::kill`].
    pub fn begin(&self) {
        assert!(self.postmaster().is_none(), "the server runs already");
        self.wait_until("the port and the memory of the one before are free", || self.launch().is_ok());
    }

    /// Stops every process of the server where it is. Connections stay open, new ones are not refused; nobody answers.
    pub fn freeze(&self) {
        // Again until all of them stand still: the postmaster may just have started another.
        self.wait_until("every process stands still", || {
            let processes = self.processes();
            assert!(!processes.is_empty(), "only a server that runs can be frozen");
            self.signal("STOP", &processes);
            processes.iter().all(|process| is_stopped(*process)) && self.processes() == processes
        });
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.signal("CONT", &self.processes());
    }

    /// An empty directory, and the watcher that will remove it.
    fn watched(installation: Installation) -> Server {
        let user = User::that_runs_postgres();
        // Unique, and short enough for a socket in it.
        let name = format!("testpg-{}-{:016x}", std::process::id(), port::random());
        let directory = home(user).join(&name);
        DirBuilder::new().mode(0o700).create(&directory).expect("the name is new, and the directory above may be written to");
        user.give(&directory);
        let mut watcher = user.command("sh", Path::new("/"));
        watcher.args(["-c", include_str!("watch.sh")]).env("DIRECTORY", &directory).env("NAME", &name);
        // A group of its own: what ends the test, be it Ctrl-C or the test runner, shall not end the watcher.
        watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut watcher = watcher.spawn().expect("there is a shell, and the server's user may run it");
        let lifeline = watcher.stdin.take();
        Server { installation, directory, user, port: 0, postmaster: Mutex::new(None), watcher, lifeline }
    }

    fn copy_template(&self) {
        let template = self.template();
        let copied = self.command("cp").arg("-a").arg(template).arg(self.data()).output().expect("there is cp");
        assert!(copied.status.success(), "copying the template failed: {}", String::from_utf8_lossy(&copied.stderr));
    }

    /// An initialised directory that is kept for all servers of this version: making one takes a second or two.
    fn template(&self) -> PathBuf {
        let template = self.directory.with_file_name(format!("template-1-{}", self.installation.version));
        if !template.exists() {
            let fresh = self.directory.join("template");
            let made = self.command(self.installation.program("initdb")).args(INITDB).arg("-D").arg(&fresh).output();
            let made = made.expect("initdb was there a moment ago");
            assert!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));
            // Complete or not there at all. Fails if another process was faster, whose template is as good.
            let renamed = std::fs::rename(&fresh, &template);
            assert!(template.exists(), "the template could not be put in its place: {renamed:?}");
        }
        template
    }

    fn configure(&self, settings: &[(&str, &str)]) {
        let directory = self.directory.to_str().expect("the directory for temporary files has a name in UTF-8");
        // What `processes` looks for.
        let ours = [("unix_socket_directories", directory), ("cluster_name", self.name())];
        let mut text = String::new();
        // PostgreSQL takes the last of several.
        for (name, value) in SETTINGS.iter().chain(&ours).chain(settings) {
            writeln!(text, "{name} = '{}'", value.replace('\'', "''")).expect("a string takes everything");
        }
        let file = OpenOptions::new().append(true).open(self.data().join("postgresql.conf"));
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("initdb has made a file of settings");
    }

    /// Starts the postmaster and waits until it takes connections.
    fn launch(&self) -> Result<(), NotYet> {
        let logged = self.log().len();
        let log = File::options().create(true).append(true).open(self.log_path()).expect("the log can be written to");
        let mut command = self.command(self.installation.program("postgres"));
        command.arg("-D").arg(self.data()).arg("-p").arg(self.port.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        let mut child = command.spawn().expect("postgres was there a moment ago");
        let started = Instant::now();
        while !self.takes_connections(&child) {
            if let Some(status) = child.try_wait().expect("it is our child") {
                let log = &self.log()[logged..];
                if NOT_YET.iter().any(|reason| log.contains(reason)) {
                    return Err(NotYet);
                }
                panic!("PostgreSQL ended with {status} while it started:\n{log}");
            }
            assert!(started.elapsed() < DEADLINE, "PostgreSQL did not start in time:\n{}", self.log());
            std::thread::sleep(PAUSE);
        }
        *self.postmaster() = Some(child);
        Ok(())
    }

    /// The postmaster says so in its file, where `pg_ctl` looks as well. A connection would tell less: whoever answers at our
    /// port could be somebody else's server.
    fn takes_connections(&self, postmaster: &Child) -> bool {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let lines: Vec<&str> = file.lines().map(str::trim).collect();
        lines.first() == Some(&postmaster.id().to_string().as_str()) && lines.get(7) == Some(&"ready")
    }

    fn end_postmaster(&self, signal: &str) {
        let mut child = self.postmaster().take().expect("the server runs");
        self.signal(signal, &[child.id()]);
        self.wait_until("the postmaster has ended", || child.try_wait().expect("it is our child").is_some());
    }

    /// All processes of this server, also those whose postmaster is gone. PostgreSQL shows the name of the cluster on the
    /// command line of each; other traces of them are hidden from root in a container.
    fn processes(&self) -> Vec<u32> {
        let mut found: Vec<u32> = std::fs::read_dir("/proc")
            .expect("this is Linux")
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|process| {
                // One that is gone meanwhile is none of ours.
                let read = |file| std::fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
                let name = self.name().as_bytes();
                read("comm") == b"postgres\n" && read("cmdline").windows(name.len()).any(|part| part == name)
            })
            .collect();
        found.sort_unstable();
        found
    }

    fn signal(&self, signal: &str, processes: &[u32]) {
        if !processes.is_empty() {
            // By the shell, because the library has no call for it; the status does not matter, they may be gone by now.
            let mut kill = self.command("sh");
            kill.args(["-c", "kill -s \"$@\"", "sh", signal]).args(processes.iter().map(u32::to_string));
            kill.stdin(Stdio::null()).stderr(Stdio::null()).status().expect("there is a shell");
        }
    }

    fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let started = Instant::now();
        while !condition() {
            assert!(started.elapsed() < DEADLINE, "waited in vain until {what}:\n{}", self.log());
            std::thread::sleep(PAUSE);
        }
    }

    fn postmaster(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.postmaster.lock().expect("nobody panics while holding it")
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.user.command(program, &self.directory)
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.join("postgres.log")
    }

    fn name(&self) -> &str {
        self.directory.file_name().and_then(OsStr::to_str).expect("we have named it")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        // Not worth a panic, which could hide the one that we are dropped by.
        let _ = self.watcher.wait();
        if let Ok(Some(child)) = self.postmaster.get_mut() {
            let _ = child.wait();
        }
    }
}

impl User {
    /// Ourselves; or if we are root, Debian's `postgres`, or else `nobody`.
    fn that_runs_postgres() -> User {
        let us = std::fs::metadata("/proc/self").expect("this is Linux");
        if us.uid() != 0 {
            return User { uid: us.uid(), gid: us.gid(), is_other: false };
        }
        let passwd = std::fs::read_to_string("/etc/passwd").expect("there is a list of users");
        let user = |name| passwd.lines().find_map(|line| user_in_passwd(line, name));
        let (uid, gid) = user("postgres").or_else(|| user("nobody")).expect("root has somebody to run PostgreSQL as");
        User { uid, gid, is_other: true }
    }

    fn give(self, directory: &Path) {
        if self.is_other {
            chown(directory, Some(self.uid), Some(self.gid)).expect("root may give a directory away");
        }
    }

    fn command(self, program: impl AsRef<OsStr>, directory: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(directory);
        if self.is_other {
            command.uid(self.uid).gid(self.gid);
        }
        without_surprises(&mut command);
        command
    }
}

/// The directory of all servers of one user, and of the templates for them. It stays.
fn home(user: User) -> PathBuf {
    let temporary = std::env::temp_dir().canonicalize().expect("there is a directory for temporary files");
    let home = temporary.join(format!("posthaste-testpg-{}", user.uid));
    match DirBuilder::new().mode(0o700).create(&home) {
        Ok(()) => {
            // Asks ext4 to spread the directories in it over the disk. In one place, and without a journal, it looks at every
            // file that was removed in the last minutes before it makes a new one: a copy then takes a second instead of
            // a tenth. Other file systems do not know the wish, and do not need it.
            let _ = Command::new("chattr").arg("+T").arg(&home).stderr(Stdio::null()).status();
            user.give(&home);
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let owner = home.metadata().expect("it exists").uid();
            // Root's while another process is in the branch above.
            assert!(owner == user.uid || owner == 0, "{} belongs to somebody who could have put anything there", home.display());
            user.give(&home);
        }
        Err(error) => panic!("{}: {error}", home.display()),
    }
    home
}

pub(crate) fn url(port: u16, database: &str) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/{database}")
}

/// The ids of the user and of its group, as in `postgres:x:101:104:…`.
fn user_in_passwd(line: &str, name: &str) -> Option<(u32, u32)> {
    let mut fields = line.split(':');
    (fields.next()? == name).then_some(())?;
    Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Whoever runs the tests may have a database, a language and a time zone of their own.
fn without_surprises(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C").env("TZ", "UTC")
}

/// The state is the letter after the name, which is in parentheses.
fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_an_id_and_a_group() {
        for (line, expected) in [
            ("postgres:x:101:104:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash", Some((101, 104))),
            ("postgres2:x:101:104::/:/bin/sh", None),
            ("root:x:0:0:root:/root:/bin/bash", None),
            ("postgres:x", None),
            ("", None),
        ] {
            assert_eq!(user_in_passwd(line, "postgres"), expected, "{line}");
        }
    }
}
