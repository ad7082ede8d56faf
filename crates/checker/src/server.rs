//! The real program, as a process: started, asked to stop, killed.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// However slow this machine is today, a server that is not ready by then is stuck.
const READY_MAX: Duration = Duration::from_mins(1);
const GONE_MAX: Duration = Duration::from_secs(2);
const STOP_MAX: Duration = Duration::from_mins(1);

/// How to start it.
#[derive(Clone, Debug)]
pub struct Program {
    pub binary: PathBuf,
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    pub admin_key: String,
    pub flags: Vec<String>,
    /// What it writes to stderr goes here, over all its lives.
    pub log: PathBuf,
}

/// One life of it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    is_over: bool,
}

impl Program {
    /// Gives a flag another value than these worlds give it, or one at all.
    pub fn set(&mut self, flag: &str, value: &str) {
        if let Some(at) = self.flags.iter().position(|present| present == flag) {
            value.clone_into(&mut self.flags[at + 1]);
        } else {
            self.flags.extend([flag.to_owned(), value.to_owned()]);
        }
    }

    /// Starts it, under another program if one is given. It is the leader of a group of processes of its own, so that it can
    /// be ended together with whatever it runs under.
    pub fn start(&self, under: &[&str]) -> anyhow::Result<Process> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        // Whatever happens to us, it must not stay behind.
        let mut words: Vec<String> = Vec::new();
        if Path::new("/usr/bin/setpriv").exists() {
            words.extend(["/usr/bin/setpriv", "--pdeathsig", "KILL"].map(str::to_owned));
        }
        words.extend(under.iter().map(|word| (*word).to_owned()));
        words.push(self.binary.to_str().context("a path in UTF-8")?.to_owned());
        words.extend(["serve".to_owned(), "--listen".to_owned(), self.listen.to_string()]);
        words.extend(["--data-dir".to_owned(), self.data_dir.to_str().context("a path in UTF-8")?.to_owned()]);
        words.extend(self.flags.iter().cloned());
        let mut command = Command::new(&words[0]);
        // Settings of whoever runs this are not meant for the server under test.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTHASTE_")) {
            command.env_remove(name);
        }
        command
            .args(&words[1..])
            .env("POSTHASTE_ADMIN_KEY", &self.admin_key)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {}", words.join(" ")))?;
        Ok(Process { child, is_over: false })
    }

    /// Waits until it answers. If it ends instead, says what it has said.
    pub async fn ready(&self, process: &mut Process) -> anyhow::Result<Duration> {
        let started = Instant::now();
        loop {
            if is_answering(self.listen).await {
                return Ok(started.elapsed());
            }
            if let Some(status) = process.ended()? {
                bail!("the server ended with {status}: {}", self.last_words());
            }
            if started.elapsed() > READY_MAX {
                bail!("the server was not ready after a minute: {}", self.last_words());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The end of its log.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

impl Process {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9` of it and of what it runs under.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if !self.is_over {
            signal_group(self.id(), "KILL")?;
            self.child.wait()?;
            self.is_over = true;
            // What ran under something else is not our child, and may take a moment longer to let go of its files.
            let started = Instant::now();
            while signal_group(self.child.id(), "0").is_ok() && started.elapsed() < GONE_MAX {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }

    /// Asks it to stop and waits until it has.
    pub async fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        signal_group(self.id(), "TERM")?;
        self.wait(STOP_MAX).await
    }

    pub async fn wait(&mut self, at_most: Duration) -> anyhow::Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if started.elapsed() > at_most {
                bail!("it did not end within {} s", at_most.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        self.is_over |= status.is_some();
        Ok(status)
    }

    /// Memory that is its own, in bytes.
    pub fn resident_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().split(' ').next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// By the number of a process that we have started and not yet waited for.
pub fn signal_group(leader: u32, name: &str) -> anyhow::Result<()> {
    let mut kill = Command::new("kill");
    let status = kill.args([&format!("-{name}"), "--", &format!("-{leader}")]).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { bail!("no process took the signal") }
}

async fn is_answering(server: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<bool, std::io::Error>(answer.starts_with(b"HTTP/1.1 200"))
    };
    matches!(tokio::time::timeout(Duration::from_secs(2), ask).await, Ok(Ok(true)))
}
