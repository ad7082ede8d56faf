//! Schemathesis against the real server: a tool that shares no code with us reads the OpenAPI document and makes requests from it.
//!
//! The check has a generator of its own (`crates/api/tests/api/generated.rs`), which needs nothing from outside. This one is
//! fetched from the Python package index, and is run by hand when the API has changed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::{cargo, root, run};

/// The version that it was last seen to pass with.
const VERSION: &str = "4.32.5";
const KEY: &str = "phk_the-key-that-schemathesis-is-given";
const CHECKS: &str =
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance";

pub(crate) fn fuzz(arguments: &[String]) -> anyhow::Result<()> {
    let program = ensure()?;
    run(&mut cargo(&["build", "--quiet", "--package", "posthaste"]))?;
    let directory = std::env::temp_dir().join(format!("posthaste-fuzz-api-{}", std::process::id()));
    let server = Server::start(directory)?;
    let mut command = Command::new(program);
    command
        .args(["run", &format!("http://127.0.0.1:{}/openapi.json", server.port)])
        .args(["--header", &format!("Authorization: Bearer {KEY}"), "--checks", CHECKS])
        // A stream has no end, so that no answer of it can be judged.
        .args(["--exclude-path", "/v1/stream", "--max-examples", "40", "--no-color"])
        .args(arguments)
        // It leaves a folder of its own where it runs.
        .current_dir(&server.directory);
    run(&mut command).context("requests were answered in a way that the document does not describe, or failed; see above")
}

/// Installs it below `target/`, where nothing else is touched.
fn ensure() -> anyhow::Result<PathBuf> {
    let home = root().join("target/tools/schemathesis");
    let program = home.join("bin/schemathesis");
    let is_there = || {
        let output = Command::new(&program).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(VERSION))
    };
    if !is_there() {
        println!("installing schemathesis {VERSION} below target/tools (once)");
        run(Command::new("python3").args(["-m", "venv"]).arg(&home)).context("python3 with its venv module is needed")?;
        run(Command::new(home.join("bin/pip")).args(["install", "--quiet", &format!("schemathesis=={VERSION}")]))?;
    }
    if is_there() { Ok(program) } else { bail!("schemathesis {VERSION} is not usable") }
}

/// A server of our own, stopped and removed at the end.
struct Server {
    process: Child,
    port: u16,
    directory: PathBuf,
}

impl Server {
    fn start(directory: PathBuf) -> anyhow::Result<Server> {
        std::fs::create_dir_all(&directory)?;
        // Free now; nobody else is likely to take it in the next moment.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = Command::new(root().join("target/debug/posthaste"))
            .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--allow-networks", "127.0.0.0/8", "--allow-http"])
            // It is judged by its answers, not by its patience.
            .args(["--api-rate", "16000", "--api-burst", "1000000"])
            .arg("--data-dir")
            .arg(directory.join("data"))
            .env("POSTHASTE_ADMIN_KEY", KEY)
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the server")?;
        let server = Server { process, port, directory };
        let started = Instant::now();
        while !server.is_ready() {
            if started.elapsed() > Duration::from_secs(30) {
                bail!("the server does not become ready");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn is_ready(&self) -> bool {
        let ask = || -> std::io::Result<String> {
            let mut connection = TcpStream::connect(("127.0.0.1", self.port))?;
            connection.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
