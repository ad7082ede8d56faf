//! A real server with its directory, a receiver that says what it is told to, and the command line beside them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_posthaste");

pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) directory: PathBuf,
    pub(crate) key: String,
    /// What it was started with.
    flags: Vec<String>,
    /// What it has said since it was ready.
    said: Arc<Mutex<String>>,
    /// Which commands have been run.
    pub(crate) ran: Mutex<BTreeSet<String>>,
}

/// What a command has said, and how it has ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Server {
    pub(crate) fn start(name: &str) -> Server {
        Server::start_with(name, &[])
    }

    /// With these flags beside the usual ones.
    pub(crate) fn start_with(name: &str, flags: &[&str]) -> Server {
        let directory = std::env::temp_dir().join(format!("posthaste-commands-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let (child, address, said) = launch(&directory, flags);
        let key = std::fs::read_to_string(directory.join("posthaste-data/admin.key")).unwrap().trim().to_owned();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Server { child, address, directory, key, flags, said, ran: Mutex::default() }
    }

    /// With these flags alone, but for where it listens.
    pub(crate) fn start_bare(name: &str, flags: &[&str]) -> Server {
        let directory = std::env::temp_dir().join(format!("posthaste-commands-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let (child, address, said) = launch_bare(&directory, flags);
        let key = std::fs::read_to_string(directory.join("posthaste-data/admin.key")).unwrap_or_default().trim().to_owned();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Server { child, address, directory, key, flags, said, ran: Mutex::default() }
    }

    /// With these variables in its environment, too.
    pub(crate) fn start_with_variables(name: &str, flags: &[&str], variables: &[(&str, &str)]) -> Server {
        let directory = std::env::temp_dir().join(format!("posthaste-commands-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let (child, address, said) = launch_in(&directory, flags, variables);
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Server { child, address, directory, key: String::new(), flags, said, ran: Mutex::default() }
    }

    /// What it says if it is started once more with another value of one flag, and does not start.
    pub(crate) fn refused_with(&self, pair: &[&str; 2]) -> String {
        let mut flags = self.flags.clone();
        let place = flags.iter().position(|flag| flag == pair[0]).unwrap();
        pair[1].clone_into(&mut flags[place + 1]);
        let mut command = Command::new(BINARY);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(&flags).current_dir(&self.directory).env_clear();
        let run = run(command, "");
        assert_ne!(run.code, 0, "it has started: {run:?}");
        run.err
    }

    /// Everything on its stderr so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Started once more with the flags that it had.
    pub(crate) fn restart(&mut self) {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        (self.child, self.address, self.said) = launch_bare(&self.directory, &flags);
    }

    /// As [`Server::again`], with these flags alone.
    pub(crate) fn again_bare(&mut self, flags: &[&str]) {
        (self.child, self.address, self.said) = launch_bare(&self.directory, flags);
    }

    /// One call of the API, without the command line.
    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, _, body) = self.exchange(method, path, &[], body);
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    /// The same, with more headers; answers the status, the head and the body as text.
    pub(crate) fn exchange(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String, String) {
        self.exchange_as(&self.key, method, path, headers, body)
    }

    /// The same with another key.
    pub(crate) fn exchange_as(
        &self,
        key: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let more = headers.iter().fold(String::new(), |all, (name, value)| all + name + ": " + value + "\r\n");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {key}\r\n{more}content-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        // A server that refuses the body may close before it has read all of it; its answer is still there to be read.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer to {method} {path}: {answer}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_owned(), body.to_owned())
    }

    /// The status and the whole answer to a request as it is written here.
    pub(crate) fn raw(&self, request: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap_or_else(|| panic!("no answer to {request}")).parse().unwrap();
        (status, answer)
    }

    /// The answer of a call that has to go well.
    pub(crate) fn good(&self, method: &str, path: &str, body: &str) -> Value {
        let (status, answer) = self.call(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    /// Reads until it is so.
    pub(crate) fn wait_until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let (_, seen) = self.call("GET", path, "");
            if is_so(&seen) {
                return seen;
            }
            assert!(Instant::now() < deadline, "waited in vain: {path}: {seen}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Started once more where it was, after it has ended.
    pub(crate) fn again(&mut self, flags: &[&str]) {
        (self.child, self.address, self.said) = launch(&self.directory, flags);
    }

    /// Killed as by a power cut, or asked to end; its directory stays.
    pub(crate) fn end(&mut self, is_killed: bool) {
        if is_killed {
            self.child.kill().unwrap();
        } else {
            let sent = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
            assert!(sent.success());
        }
        self.child.wait().unwrap();
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// The command line in the server's own directory, in an environment without any of our variables but where it listens.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(arguments).current_dir(&self.directory).env_clear();
        command.env("POSTHASTE_LISTEN", self.address.to_string());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        let run = run(self.command(arguments), "");
        if run.code == 0 {
            let words: Vec<&str> = arguments.iter().take_while(|word| !word.starts_with('-')).take(2).copied().collect();
            self.ran.lock().unwrap().insert(words.join(" "));
        }
        run
    }

    /// What it says when all is well.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!(run.code, 0, "{arguments:?}: {run:?}");
        run.out
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let out = self.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {out}"))
    }

    /// Makes something and answers one of its fields.
    pub(crate) fn text(&self, arguments: &[&str], field: &str) -> String {
        let made = self.json(arguments);
        made[field].as_str().unwrap_or_else(|| panic!("{arguments:?}: no {field} in {made}")).to_owned()
    }

    /// Looks again until it is so.
    pub(crate) fn wait_for(&self, arguments: &[&str], is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let seen = self.json(arguments);
            if is_so(&seen) {
                return seen;
            }
            assert!(Instant::now() < deadline, "waited in vain: {arguments:?}: {seen}");
            std::thread::yield_now();
        }
    }
}

const USUAL: [&str; 9] = [
    "--allow-http",
    "--log",
    "warn",
    "--allow-networks",
    "127.0.0.0/8",
    "--retry-strategy",
    "schedule",
    "--retry-delays-seconds",
    "3600",
];

fn launch(directory: &Path, flags: &[&str]) -> (Child, SocketAddr, Arc<Mutex<String>>) {
    launch_bare(directory, &[&USUAL, flags].concat())
}

/// Where it listens, if its own address for people says nothing about that.
fn known_address(flags: &[&str]) -> Option<SocketAddr> {
    let value_of = |name: &str| flags.iter().position(|flag| *flag == name).and_then(|place| flags.get(place + 1));
    value_of("--public-url").and(value_of("--listen")).and_then(|address| address.parse().ok())
}

/// Comes back when it is ready.
fn launch_bare(directory: &Path, flags: &[&str]) -> (Child, SocketAddr, Arc<Mutex<String>>) {
    launch_in(directory, flags, &[])
}

fn launch_in(directory: &Path, flags: &[&str], variables: &[(&str, &str)]) -> (Child, SocketAddr, Arc<Mutex<String>>) {
    // Whatever happens to us, it must not stay behind.
    let is_bound = Path::new("/usr/bin/setpriv").exists();
    let mut command = Command::new(if is_bound { "/usr/bin/setpriv" } else { BINARY });
    if is_bound {
        command.args(["--pdeathsig", "KILL", BINARY]);
    }
    let mut child = command
        .arg("serve")
        .args(if flags.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] })
        .args(flags)
        .current_dir(directory)
        .env_clear()
        .envs(variables.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let address = loop {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the server has ended: {said}");
        said += &line;
        if let (Some(given), true) = (known_address(flags), line.contains("is ready at")) {
            break given;
        }
        let ready = line.split_once("is ready at http://").or_else(|| line.split_once("is ready at https://"));
        if let Some((_, rest)) = ready {
            break rest.split(';').next().unwrap().replace("localhost", "127.0.0.1").parse().unwrap();
        }
    };
    // What it says later must not block it.
    let told = Arc::new(Mutex::new(said));
    let listening = Arc::clone(&told);
    std::thread::spawn(move || {
        let mut line = String::new();
        while stderr.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            listening.lock().unwrap().push_str(&std::mem::take(&mut line));
        }
    });
    (child, address, told)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub(crate) fn run(mut command: Command, input: &str) -> Run {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Whoever does not read it has ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Run {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// As the API writes it.
pub(crate) fn tomorrow() -> String {
    (jiff::Timestamp::now() + Duration::from_hours(24)).strftime("%Y-%m-%dT%H:%M:00.000Z").to_string()
}

/// A request that has arrived.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Arrival {
    pub(crate) fn header(&self, name: &str) -> String {
        let line = self.head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("no {name} in {}", self.head)).split_once(':').unwrap().1.trim().to_owned()
    }
}

/// Answers every request with the same bytes.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    pub(crate) arrivals: Arc<Mutex<Vec<Arrival>>>,
}

impl Receiver {
    /// `answer` is a status line with headers, and a body.
    pub(crate) fn start(answer: &str, body: &[u8]) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut bytes = format!("HTTP/1.1 {answer}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&arrivals);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (bytes, seen) = (bytes.clone(), Arc::clone(&seen));
                std::thread::spawn(move || answer_one(stream.unwrap(), &bytes, &seen));
            }
        });
        Receiver { address, arrivals }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hooks", self.address)
    }

    pub(crate) fn first(&self) -> Arrival {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(arrival) = self.arrivals.lock().unwrap().first() {
                return arrival.clone();
            }
            assert!(Instant::now() < deadline, "nothing has arrived");
            std::thread::yield_now();
        }
    }
}

fn answer_one(stream: TcpStream, bytes: &[u8], seen: &Mutex<Vec<Arrival>>) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    seen.lock().unwrap().push(Arrival { head, body });
    let _ = reader.into_inner().write_all(bytes);
}
