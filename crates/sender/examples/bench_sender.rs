//! How fast the sender is, and what it costs, beside the bare client of the same library.
//!
//! `cargo xtask bench-sender [--seconds N] [--tasks N]`. The receiver is a process of its own, so that only the sender's time is
//! counted; both are on this machine and share its processors, so the rates are for comparing, not for boasting.

#![allow(clippy::unwrap_used, reason = "a measurement that panics says so")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use posthaste_core::delivery::Outcome;
use posthaste_core::endpoint::{Headers, PayloadFormat, Signing};
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{DeliveryId, EventId, TenantId};
use posthaste_core::text::Labels;
use posthaste_core::time::Timestamp;
use posthaste_sender::request::{self, Address, Signer, Try};
use posthaste_sender::{Client, Options, Policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// About what a webhook weighs.
const PAYLOAD_BYTES: usize = 600;
/// What else the machine does falls on all of them alike if they take turns.
const ROUNDS: u32 = 5;
/// The kernel counts time in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == "receiver") {
        return receive().await;
    }
    let number = |name: &str, usual: u64| {
        let place = arguments.iter().position(|argument| argument == name);
        place.and_then(|place| arguments.get(place + 1)).map_or(usual, |text| text.parse().expect("a whole number"))
    };
    let (time, tasks) = (Duration::from_secs(number("--seconds", 5)), usize::try_from(number("--tasks", 64)).unwrap());
    let (mut receiver, address) = start_receiver();
    println!("{tasks} tasks, {PAYLOAD_BYTES} bytes of payload, plain HTTP/1.1 on this machine, medians of {ROUNDS} rounds in turn");
    println!("{:<28} {:>10} {:>20}", "", "POSTs/s", "CPU ms per 1,000");
    let jobs = [
        ("bare client", bare_client(&address)),
        ("sender: post", poster(&address, false)),
        ("sender: build, sign, post", poster(&address, true)),
    ];
    let mut measured = jobs.each_ref().map(|_| Vec::new());
    for round in 0..=ROUNDS {
        for ((_, job), measured) in jobs.iter().zip(&mut measured) {
            let one = measure(tasks, time / ROUNDS, job).await;
            // In the first, connections, caches and branch predictors warm up.
            if round > 0 {
                measured.push(one);
            }
        }
    }
    let medians = measured.map(|rounds| Measured {
        rate: median(rounds.iter().map(|one| one.rate).collect()),
        cpu: median(rounds.iter().map(|one| one.cpu).collect()),
    });
    for ((what, _), one) in jobs.iter().zip(&medians) {
        println!("{what:<28} {:>10.0} {:>20.1}", one.rate, one.cpu);
    }
    let [bare, post, _] = medians;
    println!("post beside the bare client: {:.2} of its rate, {:.2} times its CPU", post.rate / bare.rate, post.cpu / bare.cpu);
    receiver.kill().unwrap();
    receiver.wait().unwrap();
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

struct Measured {
    rate: f64,
    cpu: f64,
}

type Job = Arc<dyn Fn() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

async fn measure(tasks: usize, time: Duration, job: &Job) -> Measured {
    let (started, before) = (Instant::now(), processor_time());
    let posts = run(tasks, time, job).await;
    let rate = posts as f64 / started.elapsed().as_secs_f64();
    let cpu = processor_time().saturating_sub(before).as_secs_f64() * 1e6 / posts as f64;
    Measured { rate, cpu }
}

async fn run(tasks: usize, time: Duration, job: &Job) -> u64 {
    let is_over = Arc::new(AtomicBool::new(false));
    let working: Vec<_> = (0..tasks)
        .map(|_| {
            let (job, is_over) = (Arc::clone(job), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut posts = 0;
                while !is_over.load(Ordering::Relaxed) {
                    job().await;
                    posts += 1;
                }
                posts
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    is_over.store(true, Ordering::Relaxed);
    let mut posts = 0;
    for task in working {
        posts += task.await.unwrap();
    }
    posts
}

/// What this process has used of the processors, by the kernel's account.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u32 = fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap();
    TICK * ticks
}

/// The request that everybody sends, the bare client too.
fn built(address: &Address, event: &Event, signer: &Signer) -> Request<Full<Bytes>> {
    request::build(&Try {
        delivery: DeliveryId::from_bytes(1_u128.to_be_bytes()),
        attempt: 1,
        event,
        address,
        signer,
        payload_format: PayloadFormat::Envelope,
        headers: &Headers::default(),
        now: Timestamp::from_millis(1_800_000_000_000),
        span: None,
    })
}

fn event() -> Event {
    let at = Timestamp::from_millis(1_800_000_000_000);
    Event {
        id: EventId::parse("evt_1").unwrap(),
        tenant: TenantId::parse("acme").unwrap(),
        event_type: EventType::parse("invoice.paid").unwrap(),
        version: None,
        timestamp: at,
        accepted_at: at,
        data: Data::parse(&format!("{{\"x\":\"{}\"}}", "y".repeat(PAYLOAD_BYTES))).unwrap(),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    }
}

fn signer() -> Signer {
    Signer::new(&Signing::Standard, ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap()
}

fn bare_client(address: &Address) -> Job {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: legacy::Client<HttpConnector, Full<Bytes>> = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let prepared = built(address, &event(), &signer());
    Arc::new(move || {
        let (client, request) = (client.clone(), prepared.clone());
        Box::pin(async move {
            let response = client.request(request).await.unwrap();
            assert!(response.status().is_success());
            response.into_body().collect().await.unwrap();
        })
    })
}

fn poster(address: &Address, anew: bool) -> Job {
    let policy = Policy { allowed_networks: vec!["127.0.0.0/8".parse().unwrap()], allow_http: true, public_host: None };
    let client = Client::new(&Options { policy, ..Options::default() }).unwrap();
    let (address, event, signer) = (Arc::new(address.clone()), event(), signer());
    let prepared = built(&address, &event, &signer);
    Arc::new(move || {
        let request = if anew { built(&address, &event, &signer) } else { prepared.clone() };
        let (client, address) = (client.clone(), Arc::clone(&address));
        Box::pin(async move {
            let posted = client.post(&address, request, Duration::from_secs(10), Timestamp::from_millis(0)).await;
            assert!(matches!(posted.outcome, Outcome::Answered { status: 200, .. }), "{posted:?}");
        })
    })
}

fn start_receiver() -> (Child, Address) {
    let this = std::env::current_exe().unwrap();
    let mut child = Command::new(this).arg("receiver").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, Address::parse(line.trim()).unwrap())
}

/// Reads requests and answers them, as cheaply as it can.
async fn receive() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}/", listener.local_addr().unwrap());
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        tokio::spawn(async move {
            let mut read = Vec::with_capacity(8192);
            while stream.read_buf(&mut read).await.is_ok_and(|bytes| bytes > 0) {
                while let Some(end) = end_of_request(&read) {
                    read.drain(..end);
                    if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.is_err() {
                        return;
                    }
                }
            }
        });
    }
}

fn end_of_request(read: &[u8]) -> Option<usize> {
    let head = read.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&read[..head]).unwrap().to_ascii_lowercase();
    let length: usize = text.split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
    (read.len() >= head + length).then_some(head + length)
}
