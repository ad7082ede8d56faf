//! `posthaste demo`: a server, receivers with moods, sample traffic, and a look at what becomes of it.
//!
//! First one event, from publishing to a verified webhook, step by step. Then a busier time: six endpoints, one of which
//! fails now and then, one is slow, one has a rate limit, one quiet hours, and one is down until its circuit opens.

mod receiver;
mod view;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use axum::Router;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use posthaste_signing::Secret;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::scratch::Scratch;
use crate::serve::Server;
use crate::settings::Settings;

use receiver::{Arrival, Behaviour, ReceiverHandle};
use view::{Row, View};

/// Everything is on this machine; whatever takes longer than this is broken.
const PATIENCE: Duration = Duration::from_secs(30);
const PUBLISHED_EVERY: Duration = Duration::from_millis(400);
const DRAWN_EVERY: Duration = Duration::from_millis(500);
/// Without a terminal, where nobody can press Ctrl-C.
const UNWATCHED_FOR: Duration = Duration::from_secs(10);
const DOWN_FOR: Duration = Duration::from_secs(25);
const TYPES: [&str; 4] = ["invoice.paid", "order.created", "order.shipped", "user.updated"];

/// Shows it until Ctrl-C, or for so many seconds.
#[derive(clap::Args)]
pub(crate) struct Demo {
    /// End after so many seconds; until Ctrl-C unless given, and after ten where nobody is watching
    #[arg(long)]
    seconds: Option<u64>,
}

pub(crate) async fn run(demo: &Demo) -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let is_terminal = std::io::stdout().is_terminal();
    let span = demo.seconds.map(Duration::from_secs).or((!is_terminal).then_some(UNWATCHED_FOR));
    let mut settings = Settings::unsaid();
    settings.listen = "127.0.0.1:0".parse().context("our own address")?;
    settings.data_dir = scratch.path().to_owned();
    settings.allow_networks = vec!["127.0.0.0/8".parse().context("our own network")?];
    settings.allow_http = true;
    let server = Server::start(&settings, None).await?;
    let shown = tokio::select! {
        shown = show(&scratch, &server, View::new(is_terminal), span) => shown,
        () = asked_to_end() => {
            println!();
            Ok(())
        }
    };
    // Whatever the slow receiver still has to say is not waited for.
    let _ = tokio::time::timeout(Duration::from_secs(3), server.stop()).await;
    shown
}

/// By Ctrl-C, by `kill`, or because its terminal is gone: each ends the demo with its files.
async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut hangup)) = (signal(SignalKind::terminate()), signal(SignalKind::hangup())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

async fn show(scratch: &Scratch, server: &Server, view: View, span: Option<Duration>) -> anyhow::Result<()> {
    println!("Posthaste {} demo: one event, from publishing to a verified webhook\n", env!("CARGO_PKG_VERSION"));
    let cast = cast(Timestamp::now());
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let desk = ReceiverHandle::new(cast.iter().map(|role| (role.name, role.mood)).collect(), arrived);
    let receiver = listen(desk.router()).await?;
    let api = Api::new(server.address, server.admin_key.0.clone());
    println!("  server      http://{}, storing in {}", server.address, scratch.path().display());
    println!("  receiver    http://{receiver}/webhooks, a customer's server\n");

    let healthy = make_endpoint(&api, receiver, &desk, &cast[0]).await?;
    println!("  1 endpoint  {healthy} wants every event");
    one_event(&api, &mut arrivals).await?;
    println!("\nA webhook was delivered and verified. What waits says why; ask for it yourself while the demo runs:\n");
    println!("    curl -H 'Authorization: Bearer {}' 'http://{}/v1/deliveries?status=scheduled'", api.key, api.server);
    println!("    http://{}/  the dashboard; log in with the key above", api.server);
    println!("    http://{}/docs  the API, with examples", api.server);
    println!("\nNow a busier time, with receivers of all kinds:\n");

    let mut endpoints = vec![healthy];
    for role in &cast[1..] {
        endpoints.push(make_endpoint(&api, receiver, &desk, role).await?);
    }
    traffic(&api, &cast, &endpoints, &mut arrivals, view, span).await?;
    println!("`posthaste serve` is a server of your own, which keeps what it is told; the guide is in docs/guide.");
    Ok(())
}

/// An endpoint of the demo.
struct Role {
    name: &'static str,
    story: String,
    mood: Behaviour,
    /// What is said about it beside its URL.
    policies: Value,
}

fn cast(now: Timestamp) -> Vec<Role> {
    // It began an hour ago, and ends in two.
    let at = |time: Timestamp| time.strftime("%H:%M").to_string();
    let (start, end) = (at(now - Duration::from_hours(1)), at(now + Duration::from_hours(2)));
    let retry =
        json!({"strategy": "schedule", "delays_seconds": [2, 3, 5, 8, 13, 21, 34], "jitter_percent": 20, "max_attempts": 8});
    let role = |name, story: &str, mood, policies| Role { name, story: story.to_owned(), mood, policies };
    vec![
        role("healthy", "answers at once", Behaviour::Healthy, json!({})),
        role("flaky", "says 503 every third time", Behaviour::Flaky, json!({"retry": retry})),
        role("slow", "takes 1.5 s, two at a time", Behaviour::Slow(Duration::from_millis(1500)), json!({"max_in_flight": 2})),
        role(
            "limited",
            "wants 30 a minute, 5 at once",
            Behaviour::Healthy,
            json!({"rate_limit": {"max_per_minute": 30, "burst_capacity": 5}}),
        ),
        role(
            "quiet",
            &format!("wants quiet from {start} to {end} UTC"),
            Behaviour::Healthy,
            json!({"delivery_schedule": {"timezone": "UTC", "quiet_hours": [{"start": start, "end": end}]}}),
        ),
        role(
            "failing",
            &format!("is down for the first {} s", DOWN_FOR.as_secs()),
            Behaviour::DownFor(DOWN_FOR),
            json!({"retry": retry, "circuit": {"failure_threshold": 5, "probe_interval_seconds": 5}}),
        ),
    ]
}

/// Answers its id.
async fn make_endpoint(api: &Api, receiver: SocketAddr, desk: &ReceiverHandle, role: &Role) -> anyhow::Result<String> {
    let mut endpoint = json!({
        "url": format!("http://{receiver}/webhooks/{}", role.name),
        "tenant": "acme",
        "description": format!("the demo's {} receiver", role.name),
    });
    if let (Some(endpoint), Some(policies)) = (endpoint.as_object_mut(), role.policies.as_object()) {
        endpoint.extend(policies.clone());
    }
    let made = api.call(Method::POST, "/v1/endpoints", Some(&endpoint), StatusCode::CREATED).await?;
    let shown = made["secret"].as_str().context("a new endpoint shows its secret")?;
    desk.trust(role.name, Secret::parse(shown)?);
    Ok(text(&made["id"]).to_owned())
}

async fn one_event(api: &Api, arrivals: &mut mpsc::UnboundedReceiver<Arrival>) -> anyhow::Result<()> {
    let event = json!({"type": "invoice.paid", "tenant": "acme", "version": "2026-04-08", "data": {"invoice": "inv_456", "amount": 4999, "currency": "EUR"}});
    let published_at = Instant::now();
    let published = api.call(Method::POST, "/v1/events", Some(&event), StatusCode::ACCEPTED).await?;
    println!(
        "  2 published {} {}, on disk after {}",
        text(&published["id"]),
        text(&published["type"]),
        millis(published_at.elapsed())
    );
    let arrival =
        tokio::time::timeout(PATIENCE, arrivals.recv()).await.context("no webhook arrived")?.context("the receiver is gone")?;
    println!("  3 arrived   after {}:\n", millis(published_at.elapsed()));
    print_webhook(&arrival)?;
    arrival.verified.context("the receiver could not verify the signature")?;
    println!("  4 verified  the receiver checked the signature with the endpoint's secret, and answered 204");
    let delivery = arrival.headers["posthaste-delivery"].to_str()?;
    let status = wait_until_delivered(api, delivery).await?;
    println!("  5 recorded  {delivery} is {} after {} attempt", text(&status["status"]), status["attempt_count"]);
    Ok(())
}

/// Publishes, and shows what lands and what waits, until the time is up.
async fn traffic(
    api: &Api,
    cast: &[Role],
    endpoints: &[String],
    arrivals: &mut mpsc::UnboundedReceiver<Arrival>,
    mut view: View,
    span: Option<Duration>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut publishing = interval(PUBLISHED_EVERY);
    publishing.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut drawing = interval(DRAWN_EVERY);
    drawing.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut published, mut delivered) = (0u64, BTreeMap::<&'static str, u64>::new());
    while span.is_none_or(|span| began.elapsed() < span) {
        tokio::select! {
            _ = publishing.tick() => {
                let event_type = TYPES[usize::try_from(published).unwrap_or(0) % TYPES.len()];
                let event = json!({"type": event_type, "tenant": "acme", "data": {"number": published}});
                api.call(Method::POST, "/v1/events", Some(&event), StatusCode::ACCEPTED).await?;
                published += 1;
            }
            Some(arrival) = arrivals.recv() => {
                view.landed(began.elapsed(), &arrival);
                *delivered.entry(arrival.name).or_default() += u64::from(arrival.status.is_success());
            }
            _ = drawing.tick() => view.draw(&rows(api, cast, endpoints, published, &delivered).await?),
        }
    }
    if span.is_some() {
        println!("{}", view.picture(&rows(api, cast, endpoints, published, &delivered).await?));
    }
    Ok(())
}

async fn rows(
    api: &Api,
    cast: &[Role],
    endpoints: &[String],
    published: u64,
    delivered: &BTreeMap<&'static str, u64>,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (role, endpoint) in cast.iter().zip(endpoints) {
        let delivered = delivered.get(role.name).copied().unwrap_or(0);
        let why = if delivered < published { why_it_waits(api, endpoint).await? } else { String::new() };
        rows.push(Row { name: role.name, story: role.story.clone(), published, delivered, why });
    }
    Ok(rows)
}

/// What the API says of the newest delivery that waits there.
async fn why_it_waits(api: &Api, endpoint: &str) -> anyhow::Result<String> {
    for status in ["scheduled", "delivering", "pending"] {
        let path = format!("/v1/deliveries?endpoint={endpoint}&status={status}&limit=1");
        let page = api.call(Method::GET, &path, None, StatusCode::OK).await?;
        if let Some(delivery) = page["data"].as_array().and_then(|rows| rows.first()) {
            return Ok(view::why(delivery, Timestamp::now()));
        }
    }
    Ok(String::new())
}

fn print_webhook(arrival: &Arrival) -> anyhow::Result<()> {
    println!("      POST /webhooks/{}", arrival.name);
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature", "posthaste-delivery", "posthaste-attempt", "user-agent"] {
        println!("      {name}: {}", arrival.headers.get(name).context(name)?.to_str()?);
    }
    println!("\n      {}\n", std::str::from_utf8(&arrival.body)?);
    Ok(())
}

/// The record comes a moment after the answer it is about.
async fn wait_until_delivered(api: &Api, delivery: &str) -> anyhow::Result<Value> {
    let started = Instant::now();
    loop {
        let status = api.call(Method::GET, &format!("/v1/deliveries/{delivery}"), None, StatusCode::OK).await?;
        if status["status"] == "delivered" {
            return Ok(status);
        }
        if started.elapsed() > PATIENCE {
            bail!("the delivery was not recorded: {status}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Serves on a free port of this machine for as long as the process lives.
async fn listen(router: Router) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on 127.0.0.1")?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

/// The public API, as anybody would call it.
struct Api {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    server: SocketAddr,
    key: String,
}

impl Api {
    fn new(server: SocketAddr, key: String) -> Api {
        Api { http: HttpClient::builder(TokioExecutor::new()).build_http(), server, key }
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>, expected: StatusCode) -> anyhow::Result<Value> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.server))
            .header(AUTHORIZATION, format!("Bearer {}", self.key))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body.map(Value::to_string).unwrap_or_default()))?;
        let response = self.http.request(request).await.with_context(|| format!("{path} was not answered"))?;
        let status = response.status();
        let answer: Value = serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
        if status == expected { Ok(answer) } else { bail!("{path} answered {status}: {answer}") }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}
