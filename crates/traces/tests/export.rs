//! Spans on their way to collectors of every kind: one that takes them, one that has no time, one that refuses, one that hangs, and
//! one that is not there.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{EventId, TenantId};
use posthaste_core::text::Labels;
use posthaste_core::time::Timestamp;
use posthaste_metrics::{Format, Page};
use posthaste_traces::{Collector, CollectorHeader, Options, Publish, PublishedAs, Traces, probe};
use prost::Message;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// What a collector answers to its first requests, one after the other; after that all is well.
type Script = Vec<Response>;

/// A collector, and what it has seen.
struct Seen {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<(http::request::Parts, Bytes)>>>,
    count: watch::Receiver<usize>,
}

impl Seen {
    async fn start(script: Script) -> Seen {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<_>>> = Arc::default();
        let (counted, count) = watch::channel(0);
        let script = Arc::new(Mutex::new(script));
        let kept = Arc::clone(&requests);
        let take = move |request: Request| {
            let (kept, script, counted) = (Arc::clone(&kept), Arc::clone(&script), counted.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                kept.lock().push((head, body));
                counted.send_modify(|count| *count += 1);
                let mut script = script.lock();
                if script.is_empty() { StatusCode::OK.into_response() } else { script.remove(0) }
            }
        };
        let router = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Seen { address, requests, count }
    }

    async fn wait_for(&mut self, requests: usize) {
        self.count.wait_for(|count| *count >= requests).await.unwrap();
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock();
        let read = |body: &Bytes| ExportTraceServiceRequest::decode(body.clone()).unwrap().resource_spans;
        let resources = requests.iter().flat_map(|(_, body)| read(body));
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }
}

fn options(address: SocketAddr) -> Options {
    Options {
        collector: Collector::parse(&format!("http://{address}")).unwrap(),
        headers: vec![CollectorHeader::parse("x-key=canary").unwrap()],
        sample_ratio: 1.0,
        extra_roots: vec![],
        version: "1.2.3",
    }
}

fn event(id: &str) -> Event {
    let at = Timestamp::from_millis(1_775_643_330_250);
    Event {
        id: EventId::parse(id).unwrap(),
        tenant: TenantId::parse("acme").unwrap(),
        event_type: EventType::parse("invoice.paid").unwrap(),
        version: None,
        timestamp: at,
        accepted_at: at,
        data: Data::parse("1").unwrap(),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    }
}

/// Four spans.
fn publish(traces: &Traces, id: &str) {
    let now = Instant::now();
    traces.published(&Publish {
        event: &event(id),
        route: Some("/v1/events"),
        began: now,
        created: now,
        resolved: Some(now),
        ended: now,
        published_as: PublishedAs::Made { deliveries: 1 },
    });
}

/// What the page says of a counter.
fn counted(traces: &Traces, name: &str) -> u64 {
    let mut page = Page::new(Format::Text);
    traces.show(&mut page);
    let page = page.end();
    let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

const EXPORTED: &str = "posthaste_spans_exported_total";

fn dropped(reason: &str) -> String {
    format!("posthaste_spans_dropped_total{{reason=\"{reason}\"}}")
}

#[tokio::test]
async fn a_collector_gets_the_spans_with_the_headers_that_were_set() {
    let mut seen = Seen::start(vec![]).await;
    let (traces, exporter) = Traces::start(&options(seen.address)).unwrap();
    publish(&traces, "evt_1");
    publish(&traces, "evt_2");
    seen.wait_for(1).await;
    exporter.finish().await;
    let names: Vec<String> = seen.spans().into_iter().map(|span| span.name).collect();
    let of_one = ["webhook.publish", "create_event", "resolve_subscriptions", "enqueue_deliveries"];
    assert_eq!(names, [of_one, of_one].concat());
    let (head, _) = seen.requests.lock().remove(0);
    assert_eq!(head.headers["content-type"], "application/x-protobuf");
    assert_eq!(head.headers["x-key"], "canary");
    assert_eq!(counted(&traces, EXPORTED), 8);
}

#[tokio::test]
async fn a_stop_exports_what_has_not_been_exported_yet() {
    let seen = Seen::start(vec![]).await;
    let (traces, exporter) = Traces::start(&options(seen.address)).unwrap();
    for n in 0..2_000 {
        publish(&traces, &format!("evt_{n}"));
    }
    exporter.finish().await;
    assert_eq!((seen.spans().len(), counted(&traces, EXPORTED)), (8_000, 8_000));
}

#[tokio::test]
async fn one_that_has_no_time_now_is_asked_again_and_nothing_is_lost() {
    let busy = |status: StatusCode| status.into_response();
    let mut seen = Seen::start(vec![busy(StatusCode::SERVICE_UNAVAILABLE), busy(StatusCode::TOO_MANY_REQUESTS)]).await;
    let (traces, exporter) = Traces::start(&options(seen.address)).unwrap();
    publish(&traces, "evt_1");
    seen.wait_for(3).await;
    exporter.finish().await;
    let requests = seen.requests.lock();
    assert!(requests.iter().all(|(_, body)| *body == requests[0].1), "the same spans each time");
    assert_eq!((requests.len(), counted(&traces, EXPORTED)), (3, 4));
}

#[tokio::test]
async fn what_one_refuses_or_rejects_is_counted_as_lost_and_not_sent_again() {
    let partial = ExportTraceServiceResponse {
        partial_success: Some(ExportTracePartialSuccess { rejected_spans: 3, error_message: "too old".to_owned() }),
    };
    let mut seen = Seen::start(vec![StatusCode::BAD_REQUEST.into_response(), partial.encode_to_vec().into_response()]).await;
    let (traces, exporter) = Traces::start(&options(seen.address)).unwrap();
    publish(&traces, "evt_1");
    seen.wait_for(1).await;
    publish(&traces, "evt_2");
    seen.wait_for(2).await;
    exporter.finish().await;
    assert_eq!(seen.requests.lock().len(), 2);
    assert_eq!(counted(&traces, &dropped("refused")), 4);
    assert_eq!((counted(&traces, EXPORTED), counted(&traces, &dropped("rejected"))), (1, 3));
}

/// Time is virtual here: it passes as soon as nothing else can be done.
#[tokio::test(start_paused = true)]
async fn one_that_is_not_there_costs_spans_that_are_counted_and_nothing_else() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (traces, exporter) = Traces::start(&options(nobody)).unwrap();
    for n in 0..10_000 {
        publish(&traces, &format!("evt_{n}"));
    }
    assert!(counted(&traces, &dropped("queue_full")) >= 4 * 1_000, "the queue is bounded");
    let began = tokio::time::Instant::now();
    exporter.finish().await;
    assert!(began.elapsed().as_secs() <= 5, "{:?}", began.elapsed());
    let lost: u64 = ["queue_full", "unreachable", "stopped"].iter().map(|reason| counted(&traces, &dropped(reason))).sum();
    assert_eq!((lost, counted(&traces, EXPORTED)), (40_000, 0), "every span is accounted for");
}

#[tokio::test(start_paused = true)]
async fn one_that_takes_a_request_and_never_answers_holds_up_a_stop_for_seconds_only() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (traces, exporter) = Traces::start(&options(listener.local_addr().unwrap())).unwrap();
    publish(&traces, "evt_1");
    let (held, _) = listener.accept().await.unwrap();
    publish(&traces, "evt_2");
    let began = tokio::time::Instant::now();
    exporter.finish().await;
    assert!(began.elapsed().as_secs() <= 5, "{:?}", began.elapsed());
    assert_eq!(counted(&traces, &dropped("stopped")) + counted(&traces, &dropped("unreachable")), 8);
    drop(held);
}

/// Takes one request over TLS, under this name.
async fn collector_with_a_certificate() -> (SocketAddr, String) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        while let Ok((stream, _)) = listener.accept().await {
            // Whoever does not believe the certificate goes away.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        }
    });
    (address, cert.pem())
}

#[tokio::test]
async fn a_collector_behind_tls_is_believed_if_its_certificate_is_trusted_and_not_else() {
    let (address, certificate) = collector_with_a_certificate().await;
    let collector = Collector::parse(&format!("https://localhost:{}", address.port())).unwrap();
    let trusting = Options { collector, extra_roots: certificate.into_bytes(), ..options(address) };
    assert_eq!(probe(&trusting).await, Ok(()));
    let why = probe(&Options { extra_roots: vec![], ..trusting.clone() }).await.unwrap_err();
    assert!(why.contains("certificate"), "{why}");
    let unreadable =
        Options { extra_roots: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec(), ..trusting };
    assert_eq!(probe(&unreadable).await.unwrap_err(), "one of the extra root certificates cannot be read");
}

#[tokio::test]
async fn a_collector_can_be_asked_whether_it_takes_traces() {
    let seen = Seen::start(vec![StatusCode::OK.into_response(), StatusCode::UNAUTHORIZED.into_response()]).await;
    assert_eq!(probe(&options(seen.address)).await, Ok(()));
    assert_eq!(probe(&options(seen.address)).await, Err("the collector answered 401".to_owned()));
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert!(probe(&options(nobody)).await.unwrap_err().contains("refused"));
    assert!(seen.spans().is_empty());
}
