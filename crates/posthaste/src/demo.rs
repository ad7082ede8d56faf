//! `posthaste demo`: the server, a receiver and one event, to be looked at. Leaves nothing behind.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
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
use posthaste_api::Options as ApiOptions;
use posthaste_sender::{Client, Options as SenderOptions, Policy};
use posthaste_signing::Secret;
use posthaste_store::{Keyring, MasterKey, Options as StoreOptions, Sqlite, Store};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use crate::receiver::{self, Arrival};
use crate::scratch::Scratch;

/// Everything is on this machine; whatever takes longer than this is broken.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    tokio::select! {
        shown = show(&scratch) => shown,
        _ = tokio::signal::ctrl_c() => bail!("stopped"),
    }
}

async fn show(scratch: &Scratch) -> anyhow::Result<()> {
    println!("Posthaste {} demo: one event, from publishing to a verified webhook\n", env!("CARGO_PKG_VERSION"));
    let options = StoreOptions::new(Keyring::new(MasterKey::generate(), vec![]));
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(scratch.path(), options).context("cannot open a database for the demo")?);
    let key = format!("phk_demo_{:032x}", rand::random::<u128>());
    let policy =
        Policy { allowed_networks: vec!["127.0.0.0/8".parse().context("our own network")?], allow_http: true, public_host: None };
    let options = ApiOptions { destinations: policy.clone(), ..ApiOptions::default() };
    let server = serve(posthaste_api::router(Arc::clone(&store), options, &key)).await?;
    let secret = Arc::new(OnceLock::new());
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let receiver = serve(receiver::router(Arc::clone(&secret), arrived)).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let client = Client::new(&SenderOptions { policy, ..SenderOptions::default() })?;
    let engine = tokio::spawn(posthaste_engine::run(store, client, posthaste_engine::Options::default(), async {
        let _ = stopped.await;
    }));
    let api = Api::new(server, key);

    println!("  server      http://{server}, storing in {}", scratch.path().display());
    println!("  receiver    http://{receiver}/webhooks, a customer's server\n");

    let endpoint = json!({"url": format!("http://{receiver}/webhooks"), "tenant": "acme", "event_types": ["invoice.*"]});
    let endpoint = api.call(Method::POST, "/v1/endpoints", Some(&endpoint), StatusCode::CREATED).await?;
    let shown = endpoint["secret"].as_str().context("a new endpoint shows its secret")?;
    let _ = secret.set(Secret::parse(shown)?);
    println!("  1 endpoint  {} wants invoice.*", text(&endpoint["id"]));

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
    let status = wait_until_delivered(&api, delivery).await?;
    println!("  5 recorded  {delivery} is {} after {} attempt", text(&status["status"]), status["attempt_count"]);
    println!("\nA webhook was delivered and verified. What it can do today and what comes next: README.md.");

    let _ = stop.send(());
    engine.await.context("the engine did not stop")
}

fn print_webhook(arrival: &Arrival) -> anyhow::Result<()> {
    println!("      POST /webhooks");
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
async fn serve(router: Router) -> anyhow::Result<SocketAddr> {
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
