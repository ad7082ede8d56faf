//! What one caller can do to its neighbours: attacks on the real server, and what a healthy tenant sees of them.
//!
//! A healthy tenant publishes at a steady pace and receives what it publishes. It is measured undisturbed, then while an attack goes on;
//! probes are asked for all the while, and in the end the server has to stop although the attack does not.

use std::collections::HashMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::caller::Caller;
use crate::server::{Process, Program};
use crate::world::Database;

const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
/// Between two events of the healthy tenant.
const PACE: Duration = Duration::from_millis(25);
/// However slow this machine is, what has not arrived by then does not arrive.
const ARRIVES_WITHIN: Duration = Duration::from_mins(1);
/// What is required: the larger of this and twice what it was undisturbed.
const REQUIRED_MIN: Duration = Duration::from_millis(250);
/// Attackers come from addresses of their own, so that limits by address can be seen to tell them apart.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
/// So that all connections can be taken by a test.
const CONNECTIONS: usize = 256;
const CONNECTIONS_PER_ADDRESS: usize = 100;

/// What is done to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attack {
    Filters,
    Schemas,
    DeclaredLengths,
    SlowReaders,
    AllConnections,
    Streams,
    Heads,
}

impl Attack {
    pub const ALL: [Attack; 7] = [
        Attack::Filters,
        Attack::Schemas,
        Attack::DeclaredLengths,
        Attack::SlowReaders,
        Attack::AllConnections,
        Attack::Streams,
        Attack::Heads,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Attack::Filters => "20 endpoints with 100 conditions each, and 1 MB events with 130,000 objects",
            Attack::Schemas => "a schema whose references double at each of 40 levels, and events nested as deep",
            Attack::DeclaredLengths => "bodies that are announced with 1 to 16 MiB and never sent",
            Attack::SlowReaders => "pipelined requests for the largest document, and answers that are never read",
            Attack::AllConnections => "the same from many addresses, until every connection is taken",
            Attack::Streams => "64 streams, opened again and again",
            Attack::Heads => "heads of 40 KiB that are never finished",
        }
    }

    pub fn attacker_had(self) -> &'static str {
        match self {
            Attack::Filters => "a tenant's key (`manage`, `publish`)",
            Attack::Schemas => "a tenant's key (`publish`); an operator had made the schema",
            Attack::DeclaredLengths | Attack::Streams => "a tenant's key (`read`)",
            Attack::SlowReaders | Attack::AllConnections | Attack::Heads => "no key",
        }
    }
}

/// How long each part takes.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub undisturbed: Duration,
    pub attacked: Duration,
}

/// What the healthy tenant saw in one part.
#[derive(Clone, Default, Debug)]
pub struct Observed {
    publishes: Vec<Duration>,
    lags: Vec<Duration>,
    probes: Vec<Duration>,
    /// Publishes that were not taken at the first try.
    pub refused: usize,
}

impl Observed {
    pub fn publish(&self, percent: usize) -> Duration {
        percentile(&self.publishes, percent)
    }

    pub fn lag(&self, percent: usize) -> Duration {
        percentile(&self.lags, percent)
    }

    pub fn probe_max(&self) -> Duration {
        self.probes.iter().max().copied().unwrap_or_default()
    }
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[derive(Debug)]
pub struct Measured {
    pub attack: Attack,
    pub database: Database,
    pub before: Observed,
    pub during: Observed,
    pub stopped_within: Duration,
    pub grown_bytes: u64,
}

impl Measured {
    /// What is not as it is required to be; `slack` times as much is allowed on a machine that others use, too.
    pub fn faults(&self, slack: u32) -> Vec<String> {
        let mut faults = Vec::new();
        let mut require = |what: &str, seen: Duration, required: Duration| {
            if seen > required * slack {
                faults.push(format!("{:?} on {:?}: {what} {seen:?}, required {required:?}", self.attack, self.database));
            }
        };
        let (publish, lag) = ((2 * self.before.publish(99)).max(REQUIRED_MIN), (2 * self.before.lag(99)).max(REQUIRED_MIN));
        require("publish p99", self.during.publish(99), publish);
        require("delivery lag p99", self.during.lag(99), lag);
        require("the slowest probe", self.during.probe_max(), Duration::from_secs(1));
        require("stopped within", self.stopped_within, Duration::from_secs(10));
        // Where every connection is taken, there is none for a neighbour that lets go of its own.
        if self.during.refused > 0 && self.attack != Attack::AllConnections {
            faults.push(format!("{:?} on {:?}: {} publishes were refused", self.attack, self.database, self.during.refused));
        }
        faults
    }

    /// One line of the table.
    pub fn row(&self) -> String {
        let millis = |time: Duration| format!("{:.0}", time.as_secs_f64() * 1000.0);
        let both = |of: &dyn Fn(&Observed, usize) -> Duration, seen: &Observed| {
            format!("{} / {}", millis(of(seen, 50)), millis(of(seen, 99)))
        };
        let (publish, lag) = (&|seen: &Observed, percent| seen.publish(percent), &|seen: &Observed, percent| seen.lag(percent));
        let database = match self.database {
            Database::Sqlite => "SQLite",
            Database::Postgres => "PostgreSQL",
        };
        format!(
            "| {} | {} | {database} | {} | {} | {} | {} | {} | {:.1} |",
            self.attack.name(),
            self.attack.attacker_had(),
            both(publish, &self.before),
            both(publish, &self.during),
            both(lag, &self.before),
            both(lag, &self.during),
            millis(self.during.probe_max()),
            self.stopped_within.as_secs_f64(),
        )
    }
}

pub const TABLE_HEAD: &str = "| attack | what the attacker had | database | publish before, p50 / p99 (ms) | publish during | delivery lag before | delivery lag during | slowest probe (ms) | stopped after (s) |\n|---|---|---|---|---|---|---|---|---|";

/// All of them, one after the other, on one database.
pub async fn run(
    binary: &Path,
    database: Database,
    course: Scenario,
    attacks: &[Attack],
    mut tell: impl FnMut(&Measured),
) -> anyhow::Result<Vec<Measured>> {
    let mut bed = Testbed::make(binary, database).await?;
    let mut all = Vec::new();
    for attack in attacks {
        let measured = bed.measure(*attack, course).await.with_context(|| format!("{attack:?} on {database:?}"))?;
        tell(&measured);
        all.push(measured);
    }
    Ok(all)
}

/// The table, as Markdown.
pub fn table(measured: &[Measured]) -> String {
    measured.iter().fold(TABLE_HEAD.to_owned() + "\n", |mut table, one| {
        let _ = writeln!(table, "{}", one.row());
        table
    })
}

const TABLE_BEGINS: &str = "<!-- table: cargo xtask attack -->\n";
const TABLE_ENDS: &str = "<!-- end of table -->";

/// Puts the table between its marks.
pub fn write_table(path: &Path, measured: &[Measured]) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path)?;
    let (before, rest) = text.split_once(TABLE_BEGINS).context("no beginning of a table")?;
    let (_, after) = rest.split_once(TABLE_ENDS).context("no end of a table")?;
    Ok(std::fs::write(path, format!("{before}{TABLE_BEGINS}{}{TABLE_ENDS}{after}", table(measured)))?)
}

/// A server with a healthy tenant.
struct Testbed {
    program: Program,
    directory: PathBuf,
    arrivals: Arc<Mutex<HashMap<String, Instant>>>,
    receiver: SocketAddr,
    made: u32,
    postgres: Option<posthaste_testpg::Server>,
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Testbed {
    async fn make(binary: &Path, database: Database) -> anyhow::Result<Testbed> {
        let directory = std::env::temp_dir().join(format!("posthaste-attack-{}-{database:?}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory)?;
        let listen = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut program = Program {
            binary: binary.to_owned(),
            data_dir: directory.join("data"),
            listen,
            admin_key: "phk_attack_0123456789abcdef".to_owned(),
            flags: vec!["--allow-http".to_owned()],
            log: directory.join("log"),
        };
        for (flag, value) in [
            ("--log", "error"),
            ("--allow-networks", "127.0.0.0/8"),
            ("--connections-max", &CONNECTIONS.to_string()),
            ("--connections-per-address-max", &CONNECTIONS_PER_ADDRESS.to_string()),
        ] {
            program.set(flag, value);
        }
        let postgres = (database == Database::Postgres).then(posthaste_testpg::Server::start);
        if let Some(postgres) = &postgres {
            program.set("--database-url", &postgres.url());
            program.set("--master-key", MASTER_KEY);
        }
        let arrivals: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
        let receiver = receive(Arc::clone(&arrivals)).await?;
        Ok(Testbed { program, directory, arrivals, receiver, made: 0, postgres })
    }

    async fn measure(&mut self, attack: Attack, course: Scenario) -> anyhow::Result<Measured> {
        let database = if self.postgres.is_some() { Database::Postgres } else { Database::Sqlite };
        let mut process = self.program.start(&[])?;
        self.program.ready(&mut process).await?;
        let mut admin = Caller::new(self.program.listen, &self.program.admin_key);
        self.made += 1;
        let healthy = format!("healthy-{}", self.made);
        let endpoint = json!({"url": format!("http://{}/", self.receiver), "tenant": healthy});
        call(&mut admin, "/v1/endpoints", &endpoint).await?;
        let key = make_key(&mut admin, &healthy, &["publish"]).await?;
        let mut publisher = Caller::new(self.program.listen, &key);
        // The first ones make connections and fill caches.
        self.watch(&mut publisher, Duration::from_millis(300)).await?;
        let before = self.watch(&mut publisher, course.undisturbed).await?;
        let resident = process.resident_bytes().unwrap_or_default();
        let mut attackers = JoinSet::new();
        let attacker = Attacker { server: self.program.listen, tenant: format!("attacker-{}", self.made) };
        attacker.begin(attack, &mut admin, &mut attackers).await?;
        let during = self.watch(&mut publisher, course.attacked).await?;
        if attack == Attack::Streams {
            let status = stream_status(self.program.listen, &self.program.admin_key).await?;
            ensure!(status == 200, "an operator's stream is answered with {status} while a tenant asks for all places");
        }
        let grown_bytes = process.resident_bytes().unwrap_or_default().saturating_sub(resident);
        let stopping = Instant::now();
        stop(&mut process).await?;
        let stopped_within = stopping.elapsed();
        attackers.shutdown().await;
        Ok(Measured { attack, database, before, during, stopped_within, grown_bytes })
    }

    /// What the healthy tenant sees in this time.
    async fn watch(&self, publisher: &mut Caller, length: Duration) -> anyhow::Result<Observed> {
        let listen = self.program.listen;
        let end = Instant::now() + length;
        let probing = tokio::spawn(async move {
            let mut probes = Vec::new();
            for path in ["/healthz", "/readyz", "/metrics"].iter().cycle() {
                let began = Instant::now();
                if began >= end {
                    break;
                }
                probe(listen, path).await?;
                probes.push(began.elapsed());
                tokio::time::sleep_until((began + Duration::from_millis(100)).into()).await;
            }
            anyhow::Ok(probes)
        });
        let mut seen = Observed::default();
        let mut sent = Vec::new();
        while Instant::now() < end {
            let began = Instant::now();
            let (id, tries) = publish(publisher).await?;
            seen.publishes.push(began.elapsed());
            seen.refused += tries - 1;
            sent.push((id, began));
            tokio::time::sleep_until((began + PACE).into()).await;
        }
        seen.probes = probing.await??;
        for (id, began) in sent {
            let arrived = loop {
                if let Some(at) = self.arrivals.lock().get(&id) {
                    break *at;
                }
                ensure!(began.elapsed() < ARRIVES_WITHIN, "an event of the healthy tenant has not arrived");
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            seen.lags.push(arrived.saturating_duration_since(began));
        }
        Ok(seen)
    }
}

/// Answers its id, and how many tries it took.
async fn publish(publisher: &mut Caller) -> anyhow::Result<(String, usize)> {
    let event = json!({"type": "order.paid", "data": {"amount": 5}});
    for tries in 1..100 {
        if let Ok(answer) = publisher.post("/v1/events", &event).await
            && answer.status == 202
        {
            return Ok((answer.json()["id"].as_str().context("an id")?.to_owned(), tries));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("the healthy tenant cannot publish")
}

async fn stop(process: &mut Process) -> anyhow::Result<()> {
    let status = process.stop().await?;
    ensure!(status.success(), "it ended with {status}");
    Ok(())
}

/// As something that watches a server does: a connection for each.
async fn probe(server: SocketAddr, path: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await??;
    let head = String::from_utf8_lossy(&answer);
    ensure!(head.starts_with("HTTP/1.1 200 "), "{path} is answered with {}", head.lines().next().unwrap_or_default());
    Ok(())
}

async fn stream_status(server: SocketAddr, key: &str) -> anyhow::Result<u16> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(stream_request(server, key).as_bytes()).await?;
    let mut head = [0; 12];
    tokio::time::timeout(Duration::from_secs(30), stream.read_exact(&mut head)).await??;
    Ok(std::str::from_utf8(&head[9..])?.parse()?)
}

fn stream_request(server: SocketAddr, key: &str) -> String {
    format!("GET /v1/stream HTTP/1.1\r\nhost: {server}\r\nauthorization: Bearer {key}\r\n\r\n")
}

async fn call(caller: &mut Caller, path: &str, body: &Value) -> anyhow::Result<Value> {
    let answer = caller.post(path, body).await.ok().with_context(|| format!("no answer to {path}"))?;
    ensure!((200..300).contains(&answer.status), "{path}: {} {}", answer.status, answer.json());
    Ok(answer.json())
}

async fn make_key(admin: &mut Caller, tenant: &str, scopes: &[&str]) -> anyhow::Result<String> {
    let made = call(admin, "/v1/keys", &json!({"name": "attack", "tenant": tenant, "scopes": scopes})).await?;
    Ok(made["key"].as_str().context("a key")?.to_owned())
}

async fn receive(arrivals: Arc<Mutex<HashMap<String, Instant>>>) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let arrivals = Arc::clone(&arrivals);
            let service = service_fn(move |request: http::Request<Incoming>| {
                let id = request.headers().get("webhook-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
                arrivals.lock().entry(id).or_insert_with(Instant::now);
                async { Ok::<_, std::convert::Infallible>(http::Response::new(Full::<Bytes>::default())) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(address)
}

#[derive(Clone)]
struct Attacker {
    server: SocketAddr,
    tenant: String,
}

impl Attacker {
    /// Everything goes on until its tasks are ended.
    async fn begin(&self, attack: Attack, admin: &mut Caller, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
        match attack {
            Attack::Filters => self.filters(admin, tasks).await,
            Attack::Schemas => self.schemas(admin, tasks).await,
            Attack::DeclaredLengths => self.declared_lengths(admin, tasks).await,
            Attack::SlowReaders => {
                self.hold(tasks, &[ATTACKER], 2 * CONNECTIONS_PER_ADDRESS, Attacker::pipelined()).await;
                Ok(())
            }
            Attack::AllConnections => {
                let addresses: Vec<Ipv4Addr> = (70..80).map(|last| Ipv4Addr::new(127, 0, 0, last)).collect();
                self.hold(tasks, &addresses, 2 * CONNECTIONS, Attacker::pipelined()).await;
                Ok(())
            }
            Attack::Streams => self.streams(admin, tasks).await,
            Attack::Heads => {
                let head =
                    format!("GET /healthz HTTP/1.1\r\nhost: a\r\n{}", format!("x-filler: {}\r\n", "x".repeat(980)).repeat(40));
                self.hold(tasks, &[ATTACKER], CONNECTIONS_PER_ADDRESS, head).await;
                Ok(())
            }
        }
    }

    async fn filters(&self, admin: &mut Caller, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
        let key = make_key(admin, &self.tenant, &["manage", "publish"]).await?;
        let mut caller = Caller::new(self.server, &key);
        for number in 0..20 {
            // Half of them ask what can be looked up, half what has to be tried.
            let operator = if number % 2 == 0 { "$eq" } else { "$gt" };
            let condition = |n: u32| json!({"data.a.b": {operator: 1_000_000 + 100 * number + n}});
            let filter = json!({"$or": (0..100).map(condition).collect::<Vec<_>>()});
            let types = if number % 2 == 0 { json!(["looked-up"]) } else { json!(["tried"]) };
            let endpoint = json!({"url": "http://127.0.0.1:8081/", "event_types": types, "filter": filter});
            call(&mut caller, "/v1/endpoints", &endpoint).await?;
        }
        for number in 0..4 {
            let objects = if number % 2 == 0 { vec!["{}"; 130_000] } else { vec![r#"{"b":1}"#; 130_000] };
            let event_type = if number % 2 == 0 { "looked-up" } else { "tried" };
            let event = format!(r#"{{"type": "{event_type}", "data": {{"a": [{}]}}}}"#, objects.join(","));
            self.publish_on(&key, Bytes::from(event), tasks);
        }
        Ok(())
    }

    async fn schemas(&self, admin: &mut Caller, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
        let mut definitions = serde_json::Map::new();
        for level in 0..40 {
            let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
            definitions.insert(format!("l{level}"), json!({"properties": {"a": next.clone()}, "patternProperties": {"a": next}}));
        }
        definitions.insert("l40".to_owned(), json!({"type": "object"}));
        let schema = json!({"$ref": "#/$defs/l0", "$defs": definitions});
        let name = format!("doubling-{}", self.tenant);
        call(admin, "/v1/event-types", &json!({"name": name, "versions": [{"version": "1", "schema": schema}]})).await?;
        let key = make_key(admin, &self.tenant, &["publish"]).await?;
        let nested = (0..40).fold("{}".to_owned(), |inner, _| format!(r#"{{"a": {inner}}}"#));
        for _ in 0..4 {
            self.publish_on(&key, Bytes::from(format!(r#"{{"type": "{name}", "data": {nested}}}"#)), tasks);
        }
        Ok(())
    }

    /// The same event again and again, whatever the answer.
    fn publish_on(&self, key: &str, event: Bytes, tasks: &mut JoinSet<()>) {
        let mut caller = Caller::new(self.server, key);
        tasks.spawn(async move {
            loop {
                if caller.call(http::Method::POST, "/v1/events", event.clone()).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        });
    }

    async fn declared_lengths(&self, admin: &mut Caller, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
        let key = make_key(admin, &self.tenant, &["read", "publish"]).await?;
        for number in 0..64 {
            let (path, length) = if number % 8 == 0 { ("/v1/events/batch", 16 << 20) } else { ("/v1/filters/test", 1 << 20) };
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n["
            );
            self.hold_one(tasks, ATTACKER, head);
        }
        Ok(())
    }

    async fn streams(&self, admin: &mut Caller, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
        let key = make_key(admin, &self.tenant, &["read"]).await?;
        for _ in 0..64 {
            self.hold_one(tasks, ATTACKER, stream_request(self.server, &key));
        }
        Ok(())
    }

    /// Many requests at once for the largest document.
    fn pipelined() -> String {
        "GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n".repeat(100)
    }

    /// So many connections from these addresses that send this and read nothing. Comes back when all have been tried once.
    async fn hold(&self, tasks: &mut JoinSet<()>, addresses: &[Ipv4Addr], count: usize, what: String) {
        for number in 0..count {
            self.hold_one(tasks, addresses[number % addresses.len()], what.clone());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    /// Connects, sends and waits, again whenever it is closed.
    fn hold_one(&self, tasks: &mut JoinSet<()>, from: Ipv4Addr, what: String) {
        let server = self.server;
        tasks.spawn(async move {
            loop {
                let _ = hold_connection(server, from, what.as_bytes()).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
    }
}

async fn hold_connection(server: SocketAddr, from: Ipv4Addr, what: &[u8]) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from.into(), 0))?;
    // A small window, so that answers do not fit into it.
    socket.set_recv_buffer_size(4096)?;
    let mut stream = socket.connect(server).await?;
    stream.write_all(what).await?;
    // Nothing is read; the end is noticed because the other side closes.
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        if stream.ready(tokio::io::Interest::ERROR).await.is_ok_and(|ready| ready.is_error() || ready.is_write_closed()) {
            return Ok(());
        }
    }
}
