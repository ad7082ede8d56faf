//! One real server on either database, and a receiver that keeps everything it gets.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use posthaste_checker::caller::{Answered, Caller};
use posthaste_checker::server::{Process, Program};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
/// However slow this machine is, what has not happened by then does not happen.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
}

pub(crate) struct Server {
    pub(crate) program: Program,
    process: Option<Process>,
    directory: PathBuf,
    postgres: Option<posthaste_testpg::Server>,
}

impl Server {
    /// With these flags beside those that let deliveries reach this machine.
    pub(crate) async fn start(name: &str, database: Database, flags: &[&str]) -> Server {
        static SERVERS: AtomicU32 = AtomicU32::new(0);
        let number = SERVERS.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("posthaste-truth-{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let usual = ["--log", "warn", "--api-rate", "1000000", "--api-burst", "1000000"];
        let mut program = Program {
            binary: Path::new(env!("CARGO_BIN_EXE_posthaste")).to_owned(),
            data_dir: directory.join("data"),
            listen,
            admin_key: "phk_truth_0123456789abcdef".to_owned(),
            flags: usual.iter().chain(flags).map(|flag| (*flag).to_owned()).collect(),
            log: directory.join("log"),
        };
        let postgres = (database == Database::Postgres).then(posthaste_testpg::Server::start);
        if let Some(postgres) = &postgres {
            program.set("--database-url", &postgres.url());
            program.set("--master-key", MASTER_KEY);
        }
        let mut server = Server { program, process: None, directory, postgres };
        server.start_again().await;
        server
    }

    /// With what `program` says now.
    pub(crate) async fn start_again(&mut self) {
        let mut process = self.program.start(&[]).unwrap();
        self.program.ready(&mut process).await.unwrap();
        self.process = Some(process);
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.process.take().unwrap().kill().unwrap();
    }

    /// SIGTERM, without waiting for the end.
    pub(crate) fn ask_to_stop(&self) {
        posthaste_checker::server::signal_group(self.process.as_ref().unwrap().id(), "TERM").unwrap();
    }

    /// SIGTERM until it has ended: a second one counts as such if it comes a while after the first.
    pub(crate) async fn stop_at_once(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.ask_to_stop();
            if self.process.as_mut().unwrap().wait(Duration::from_millis(100)).await.is_ok() {
                self.process = None;
                return;
            }
            assert!(Instant::now() < deadline, "it does not stop");
        }
    }

    /// Changes what no call can change, while the server is down.
    pub(crate) fn execute(&self, sql: &str) {
        if let Some(postgres) = &self.postgres {
            postgres.psql(sql);
        } else {
            let file = self.program.data_dir.join("posthaste.db");
            rusqlite::Connection::open(file).unwrap().execute_batch(sql).unwrap();
        }
    }

    /// Asks the database again until it answers this.
    pub(crate) fn wait_for_sql(&self, sql: &str, answer: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = self.postgres.as_ref().unwrap().psql(sql);
            if seen.trim() == answer {
                return;
            }
            assert!(Instant::now() < deadline, "waited in vain for {answer} to {sql}: {seen}");
        }
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller::new(self.program.listen, &self.program.admin_key)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// One request that has arrived.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Bytes,
}

impl Arrival {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn event(&self) -> &str {
        self.header("webhook-id")
    }
}

/// Answers everything with one status, except what goes to operators: that is taken.
pub(crate) struct Receiver {
    address: std::net::SocketAddr,
    status: AtomicU16,
    arrivals: Mutex<Vec<Arrival>>,
    arrived: tokio::sync::Notify,
    is_holding: tokio::sync::watch::Sender<bool>,
}

impl Receiver {
    pub(crate) async fn start() -> Arc<Receiver> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Arc::new(Receiver {
            address: listener.local_addr().unwrap(),
            status: AtomicU16::new(200),
            arrivals: Mutex::default(),
            arrived: tokio::sync::Notify::new(),
            is_holding: tokio::sync::watch::Sender::new(false),
        });
        let serving = Arc::clone(&receiver);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let receiver = Arc::clone(&serving);
                let service = service_fn(move |request| receive(Arc::clone(&receiver), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        receiver
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// What everything is answered with from now on.
    pub(crate) fn answer(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// Whether answers wait until this is taken back.
    pub(crate) fn hold(&self, is_holding: bool) {
        self.is_holding.send_replace(is_holding);
    }

    /// Those whose path begins like this.
    pub(crate) fn arrivals(&self, path: &str) -> Vec<Arrival> {
        self.arrivals.lock().iter().filter(|arrival| arrival.path.starts_with(path)).cloned().collect()
    }

    pub(crate) fn of(&self, path: &str, event: &str) -> Option<Arrival> {
        self.arrivals(path).into_iter().find(|arrival| arrival.event() == event)
    }

    /// Waits for so many at paths that begin like this.
    pub(crate) async fn wait_for_count(&self, path: &str, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let arrived = self.arrived.notified();
            let arrivals = self.arrivals(path).len();
            if arrivals >= count {
                return;
            }
            assert!(Instant::now() < deadline, "{arrivals} of {count} have arrived at {path}");
            let _ = tokio::time::timeout(Duration::from_secs(1), arrived).await;
        }
    }

    /// Waits for an event at a path that begins like this.
    pub(crate) async fn wait_for(&self, path: &str, event: &str) -> Arrival {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let arrived = self.arrived.notified();
            if let Some(arrival) = self.of(path, event) {
                return arrival;
            }
            assert!(Instant::now() < deadline, "{event} has not arrived at {path}");
            let _ = tokio::time::timeout(Duration::from_secs(1), arrived).await;
        }
    }
}

async fn receive(
    receiver: Arc<Receiver>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Full<Bytes>>, std::convert::Infallible> {
    let at = Instant::now();
    let path = request.uri().path().to_owned();
    let text = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let headers = request.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    if let Ok(body) = request.into_body().collect().await {
        let path = path.clone();
        receiver.arrivals.lock().push(Arrival { at, path, headers, body: body.to_bytes() });
        receiver.arrived.notify_waiters();
    }
    let _ = receiver.is_holding.subscribe().wait_for(|is_holding| !*is_holding).await;
    let is_taken = path.starts_with("/operators");
    let mut response = http::Response::new(Full::default());
    *response.status_mut() =
        http::StatusCode::from_u16(if is_taken { 200 } else { receiver.status.load(Ordering::Relaxed) }).unwrap();
    Ok(response)
}

/// Calls that have to go well, in short.
pub(crate) struct Client(Caller);

impl Client {
    pub(crate) fn of(server: &Server) -> Client {
        Client(server.caller())
    }

    /// Asks again as long as a busy disk makes the server answer 503.
    async fn ok(&mut self, method: Method, path: &str, body: Value) -> Answered {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.0.call(method.clone(), path, body.clone()).await;
            let answer = answer.unwrap_or_else(|_| panic!("no answer to {method} {path}"));
            if (200..300).contains(&answer.status) {
                return answer;
            }
            let may_retry = answer.status == 503 && Instant::now() < deadline;
            assert!(may_retry, "{method} {path}: {} {}", answer.status, answer.json());
        }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Value {
        self.ok(Method::GET, path, Value::Null).await.json()
    }

    pub(crate) async fn post(&mut self, path: &str, body: Value) -> Value {
        self.ok(Method::POST, path, body).await.json()
    }

    pub(crate) async fn put(&mut self, path: &str, body: Value) -> Value {
        self.ok(Method::PUT, path, body).await.json()
    }

    /// Publishes so many, in batches.
    pub(crate) async fn publish_many(&mut self, tenant: &str, count: usize) {
        let event = json!({"type": "order.paid", "tenant": tenant, "data": {}});
        for begin in (0..count).step_by(1_000) {
            let batch = vec![event.clone(); (count - begin).min(1_000)];
            let answer = self.post("/v1/events/batch", Value::from(batch)).await;
            assert_eq!(answer["rejected"], 0, "{answer}");
        }
    }

    pub(crate) async fn patch(&mut self, path: &str, body: Value) -> Value {
        self.ok(Method::PATCH, path, body).await.json()
    }

    /// Answers its id.
    pub(crate) async fn endpoint(&mut self, body: Value) -> String {
        id(&self.post("/v1/endpoints", body).await)
    }

    /// Answers its id. Published once, however often it takes to be told so.
    pub(crate) async fn publish(&mut self, mut body: Value) -> String {
        static PUBLISHED: AtomicU64 = AtomicU64::new(0);
        body["idempotency_key"] = format!("key-{}", PUBLISHED.fetch_add(1, Ordering::Relaxed)).into();
        id(&self.post("/v1/events", body).await)
    }

    /// Asks again until it is so.
    pub(crate) async fn wait_for(&mut self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = self.get(path).await;
            if is_so(&seen) {
                return seen;
            }
            assert!(Instant::now() < deadline, "waited in vain for {path}: {seen}");
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) fn id(of: &Value) -> String {
    of["id"].as_str().unwrap_or_else(|| panic!("no id in {of}")).to_owned()
}
