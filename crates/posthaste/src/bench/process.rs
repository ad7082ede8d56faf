//! The parts from the bench's side: started, spoken to, and ended when nobody holds them any more.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::line::Line;
use super::part::{DATABASE, DATABASE_URL_VARIABLE, DIRECTORY};

/// A process of ours. It is gone when this is.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// In a group of its own, so that Ctrl-C reaches the bench alone, which then ends the others in order. Settings of a server
    /// that lie around here are none of its business.
    fn command(duty: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args(["bench-part", "--parent", &std::process::id().to_string(), duty]).process_group(0).stdin(Stdio::piped());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTHASTE_")) {
            command.env_remove(name);
        }
        Ok(command)
    }
}

/// A part that serves.
pub(super) struct Part {
    running: Running,
    /// Open for as long as the part is wanted.
    _lifeline: Option<ChildStdin>,
    name: String,
    /// What it said of itself: where it is told what to do, and where its work comes from if that is elsewhere.
    addresses: Vec<SocketAddr>,
}

impl Part {
    /// From the main thread of the bench alone: the kernel takes the end of the thread that has started it for the end of its
    /// parent.
    pub(super) async fn start(duty: &str, arguments: &[&OsStr]) -> anyhow::Result<Part> {
        let mut command = Running::command(duty)?;
        let mut child =
            command.args(arguments).stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start the {duty}"))?;
        let (lifeline, output) = (child.stdin.take(), child.stdout.take().context("its output is ours")?);
        let running = Running(child);
        let first_line = move || BufReader::new(output).lines().next();
        let line = tokio::task::spawn_blocking(first_line).await?.with_context(|| format!("the {duty} ended at once"))??;
        let addresses: Result<Vec<SocketAddr>, _> = line.split(' ').map(str::parse).collect();
        let addresses = addresses.with_context(|| format!("the {duty} did not say where it is: {line}"))?;
        Ok(Part { running, _lifeline: lifeline, name: duty.to_owned(), addresses })
    }

    pub(super) fn process(&self) -> u32 {
        self.running.0.id()
    }

    /// Where its work comes from.
    pub(super) fn address(&self) -> SocketAddr {
        *self.addresses.last().expect("a line has a first word")
    }

    /// Asks it to do something, and waits until it has.
    pub(super) async fn tell(&self, what: &str, order: &impl Serialize) -> anyhow::Result<Bytes> {
        let control = self.addresses.first().expect("a line has a first word");
        let mut line = Line::connect(*control, "").await.with_context(|| format!("the {} is gone", self.name))?;
        let (status, answer) =
            line.post(what, serde_json::to_vec(order)?.into()).await.with_context(|| format!("the {} is gone", self.name))?;
        if status == 200 { Ok(answer) } else { bail!("{}", String::from_utf8_lossy(&answer)) }
    }

    pub(super) async fn ask<T: DeserializeOwned>(&self, what: &str, question: &impl Serialize) -> anyhow::Result<T> {
        Ok(serde_json::from_slice(&self.tell(what, question).await?)?)
    }
}

/// `posthaste serve` in a process of its own.
pub(super) struct ServerProcess {
    running: Running,
    pub(super) address: SocketAddr,
    said: Arc<Mutex<VecDeque<String>>>,
}

/// What is kept of a server's log, to say why it has ended.
const LINES_KEPT: usize = 20;
/// Longer than a clean end may take.
const STOP_MAX: Duration = Duration::from_secs(40);
const LOOKED_EVERY: Duration = Duration::from_millis(5);

impl ServerProcess {
    /// Comes back when it is ready.
    pub(super) async fn start(directory: &Path, flags: &[String], variables: &[(&str, String)]) -> anyhow::Result<ServerProcess> {
        let mut command = Running::command("server")?;
        command.arg("--").args(flags).envs(variables.iter().map(|(name, value)| (name, value)));
        // Where no file of settings lies.
        command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let log = child.stderr.take().context("its log is ours")?;
        let running = Running(child);
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let (ready, is_ready) = oneshot::channel();
        let listener = Arc::clone(&said);
        std::thread::spawn(move || follow(log, &listener, ready));
        let Ok(address) = is_ready.await else { bail!("the server did not start: {}", told(&said)) };
        Ok(ServerProcess { running, address, said })
    }

    pub(super) fn process(&self) -> u32 {
        self.running.0.id()
    }

    /// As an operator would. Answers how long it took.
    pub(super) async fn stop(mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let process = i32::try_from(self.process()).ok().and_then(Pid::from_raw).context("a process has a number")?;
        kill_process(process, Signal::TERM)?;
        while began.elapsed() < STOP_MAX {
            if let Some(status) = self.running.0.try_wait()? {
                if status.success() {
                    return Ok(began.elapsed());
                }
                bail!("the server did not end well ({status}): {}", told(&self.said));
            }
            tokio::time::sleep(LOOKED_EVERY).await;
        }
        Err(anyhow!("the server did not end within {} s", STOP_MAX.as_secs()))
    }
}

/// Reads its log for as long as it lives, so that it never waits for a reader.
fn follow(log: impl Read, said: &Mutex<VecDeque<String>>, ready: oneshot::Sender<SocketAddr>) {
    let mut ready = Some(ready);
    for line in BufReader::new(log).lines().map_while(Result::ok) {
        let address = line.split_once(" is ready at http://").and_then(|(_, rest)| rest.split(';').next()?.parse().ok());
        if let (Some(address), Some(ready)) = (address, ready.take_if(|_| address.is_some())) {
            let _ = ready.send(address);
        }
        let mut said = said.lock();
        said.push_back(line);
        if said.len() > LINES_KEPT {
            said.pop_front();
        }
    }
}

fn told(said: &Mutex<VecDeque<String>>) -> String {
    let said = said.lock();
    if said.is_empty() { "it said nothing".to_owned() } else { said.iter().map(String::as_str).collect::<Vec<_>>().join("\n") }
}

/// Removes what it was told of when the bench ends, even if that was killed.
pub(super) struct Cleaner {
    child: Child,
    /// Closed to say that it is time.
    input: Option<ChildStdin>,
}

impl Cleaner {
    pub(super) fn start(database_url: Option<&str>) -> anyhow::Result<Cleaner> {
        let mut command = Running::command("cleaner")?;
        command.stdout(Stdio::null());
        if let Some(url) = database_url {
            command.env(DATABASE_URL_VARIABLE, url);
        }
        let mut child = command.spawn().context("cannot start the cleaner")?;
        let input = child.stdin.take();
        Ok(Cleaner { child, input })
    }

    /// Before it is made.
    pub(super) fn will_remove_directory(&mut self, directory: &Path) -> anyhow::Result<()> {
        self.tell(&format!("{DIRECTORY}{}", directory.display()))
    }

    /// Before it is made.
    pub(super) fn will_drop_database(&mut self, name: &str) -> anyhow::Result<()> {
        self.tell(&format!("{DATABASE}{name}"))
    }

    fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.input.as_ref().context("it listens until the end")?, "{line}").context("the cleaner is gone")
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
