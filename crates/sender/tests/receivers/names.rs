//! F36: names that lead nowhere, everywhere, or somewhere else the second time.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste_sender::{Client, NameServers, Options, Policy, Posted};

use crate::name_server::{Answer, name_server};
use crate::receiver::{LONG, OK, answering, loopback, options, post, word};

fn addresses(texts: &[&str]) -> Answer {
    Answer::Addresses(texts.iter().map(|text| text.parse().unwrap()).collect())
}

async fn client(say: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Client {
    let name_servers = NameServers::These(vec![name_server(say).await]);
    Client::new(&Options { name_servers, ..options() }).unwrap()
}

async fn answered(answer: Answer) -> Posted {
    let receiver = answering(OK).await;
    let client = client(move |_| answer.clone()).await;
    let started = Instant::now();
    let posted = post(&client, &format!("http://hooks.example.com:{}/", receiver.address.port()), LONG).await;
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    assert!(posted.timings.dns.is_some());
    posted
}

async fn check(answer: Answer, expected: &str, error: Option<&str>) {
    let shown = format!("{answer:?}");
    let posted = answered(answer).await;
    assert_eq!(word(posted.outcome), expected, "{} {:?}", &shown[..shown.len().min(80)], posted.error);
    if let Some(error) = error {
        assert_eq!(posted.error.as_deref(), Some(error), "{}", &shown[..shown.len().min(80)]);
    }
}

#[tokio::test]
async fn a_name_leads_to_its_address() {
    check(addresses(&["127.0.0.1"]), "200", None).await;
    check(addresses(&["::1", "127.0.0.1"]), "200", None).await;
}

#[tokio::test]
async fn f36_names_that_do_not_resolve_are_failures_of_dns() {
    check(Answer::NoSuchName, "dns", Some("there is no such name")).await;
    check(Answer::ServerFailure, "dns", None).await;
    check(Answer::Refused, "dns", None).await;
    check(Answer::Garbage, "dns", None).await;
    check(addresses(&[]), "dns", None).await;
    check(Answer::Alias("hooks.example.com".to_owned()), "dns", None).await;
}

#[tokio::test]
async fn f36_a_silent_name_server_is_given_five_seconds() {
    check(Answer::Silence, "dns", Some("no name server answered in time")).await;
}

#[tokio::test]
async fn f36_silence_ends_with_the_attempt_where_that_is_sooner() {
    let client = client(|_| Answer::Silence).await;
    let started = Instant::now();
    let posted = post(&client, "http://hooks.example.com/", Duration::from_millis(300)).await;
    assert_eq!(word(posted.outcome), "dns");
    assert!(started.elapsed() < Duration::from_millis(1300));
}

#[tokio::test]
async fn f36_aliases_that_lead_round_in_circles_end() {
    let client =
        client(|name| Answer::Alias(if name == "a.example.com" { "b.example.com" } else { "a.example.com" }.to_owned())).await;
    assert_eq!(word(post(&client, "http://a.example.com/", LONG).await.outcome), "dns");
}

#[tokio::test]
async fn an_alias_is_followed_and_what_it_leads_to_is_judged() {
    let receiver = answering(OK).await;
    let client = client(|name| match name {
        "good.example.com" => Answer::Alias("real.example.com".to_owned()),
        "real.example.com" => addresses(&["127.0.0.1"]),
        "bad.example.com" => Answer::Alias("internal.example.com".to_owned()),
        _ => addresses(&["10.0.0.1"]),
    })
    .await;
    let port = receiver.address.port();
    assert_eq!(word(post(&client, &format!("http://good.example.com:{port}/"), LONG).await.outcome), "200");
    assert_eq!(word(post(&client, &format!("http://bad.example.com:{port}/"), LONG).await.outcome), "blocked");
}

#[tokio::test]
async fn f36_at_most_32_addresses_are_taken() {
    let many = |count: u8| Answer::Addresses((0..count).map(|n| IpAddr::from([127, 0, 0, n + 1])).collect());
    check(many(32), "200", None).await;
    check(many(33), "dns", Some("the name has more than 32 addresses")).await;
    // Too much for a datagram, so it is asked again over TCP.
    let thousand = (0..1000_u16).map(|n| IpAddr::from([127, 1, n.to_be_bytes()[0], n.to_be_bytes()[1]])).collect();
    check(Answer::Addresses(thousand), "dns", Some("the name has more than 32 addresses")).await;
}

#[tokio::test]
async fn i43_one_forbidden_address_refuses_the_whole_answer() {
    for bad in ["10.0.0.1", "169.254.169.254", "192.168.1.1", "0.0.0.0", "fe80::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"] {
        let posted = answered(addresses(&["127.0.0.1", bad])).await;
        assert_eq!(word(posted.outcome), "blocked", "{bad}");
        let error = posted.error.unwrap();
        assert!(!error.contains(bad), "which address it was is nobody's business: {error}");
    }
}

#[tokio::test]
async fn i43_a_name_that_moves_inside_is_blocked_the_second_time() {
    let receiver = answering(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await;
    let asked = AtomicUsize::new(0);
    // Each attempt asks for both kinds of address.
    let client =
        client(
            move |_| {
                if asked.fetch_add(1, Ordering::SeqCst) < 2 { addresses(&["127.0.0.1"]) } else { addresses(&["10.0.0.1"]) }
            },
        )
        .await;
    let url = format!("http://rebinding.example.com:{}/", receiver.address.port());
    assert_eq!(word(post(&client, &url, LONG).await.outcome), "200");
    assert_eq!(word(post(&client, &url, LONG).await.outcome), "blocked");
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn an_allowed_network_has_names_of_its_own_but_only_inside_it() {
    let receiver = answering(OK).await;
    let port = receiver.address.port();
    let client = client(|name| match name {
        "queue" | "my_queue" | "printer.local" => addresses(&["127.0.0.1"]),
        _ => addresses(&["93.184.216.34"]),
    })
    .await;
    for inside in ["queue", "my_queue", "printer.local"] {
        assert_eq!(word(post(&client, &format!("http://{inside}:{port}/"), LONG).await.outcome), "200", "{inside}");
    }
    for outside in ["elsewhere", "other.internal"] {
        let posted = post(&client, &format!("http://{outside}:{port}/"), LONG).await;
        assert_eq!(word(posted.outcome), "blocked", "{outside}");
        assert!(posted.error.unwrap().contains("one network only"));
    }
}

#[tokio::test]
async fn our_own_name_is_not_called_back() {
    let policy = Policy { public_host: Some("hooks.ours.com".to_owned()), ..Policy::default() };
    let server = name_server(|_| addresses(&["93.184.216.34"])).await;
    let client = Client::new(&Options { policy, name_servers: NameServers::These(vec![server]), ..options() }).unwrap();
    assert_eq!(word(post(&client, "https://hooks.ours.com/", LONG).await.outcome), "blocked");
}

#[tokio::test]
async fn search_domains_and_the_hosts_file_are_not_asked_where_servers_are_given() {
    let policy = Policy { allow_http: true, ..loopback() };
    let server = name_server(|name| if name == "queue" { Answer::NoSuchName } else { addresses(&["127.0.0.1"]) }).await;
    let client = Client::new(&Options { policy, name_servers: NameServers::These(vec![server]), ..options() }).unwrap();
    assert_eq!(word(post(&client, "http://queue/", LONG).await.outcome), "blocked");
}

/// One that keeps its connections open.
const KEPT_OPEN: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

async fn judging_each_time(say: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Client {
    let policy = Policy { allow_http: true, ..loopback() };
    let name_servers = NameServers::These(vec![name_server(say).await]);
    Client::new(&Options { policy, name_servers, judged_max: Duration::ZERO, ..options() }).unwrap()
}

#[tokio::test]
async fn i43_a_kept_connection_is_not_used_once_its_name_leads_elsewhere() {
    let receiver = answering(KEPT_OPEN).await;
    let place = Arc::new(Mutex::new("127.0.0.1"));
    let said = Arc::clone(&place);
    let client = judging_each_time(move |_| addresses(&[*said.lock().unwrap()])).await;
    let url = format!("http://moving.example.com:{}/", receiver.address.port());
    for _ in 0..2 {
        assert_eq!(word(post(&client, &url, LONG).await.outcome), "200");
    }
    assert_eq!((receiver.connections(), client.idle_connections()), (1, 1), "it is used again while its name leads there");
    *place.lock().unwrap() = "10.0.0.1";
    assert_eq!(word(post(&client, &url, LONG).await.outcome), "blocked");
    assert_eq!(client.idle_connections(), 0, "it is closed");
    *place.lock().unwrap() = "127.0.0.1";
    assert_eq!(word(post(&client, &url, LONG).await.outcome), "200");
    assert_eq!(receiver.connections(), 2);
}

#[tokio::test]
async fn a_name_that_a_rule_refuses_is_not_asked_for() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let server = name_server(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        addresses(&["93.184.216.34"])
    })
    .await;
    let policy = Policy { allow_http: true, ..Policy::default() };
    let client = Client::new(&Options { policy, name_servers: NameServers::These(vec![server]), ..options() }).unwrap();
    for name in ["queue", "db.internal", "printer.local", "a.svc"] {
        assert_eq!(word(post(&client, &format!("http://{name}:8080/"), LONG).await.outcome), "blocked", "{name}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_refused_name_that_does_not_exist_looks_like_one_that_does() {
    let client = client(|name| match name {
        "there.internal" => addresses(&["10.0.0.1"]),
        "broken.internal" => Answer::ServerFailure,
        _ => Answer::NoSuchName,
    })
    .await;
    let mut seen = Vec::new();
    for name in ["there.internal", "not-there.internal", "broken.internal"] {
        let posted = post(&client, &format!("http://{name}:8080/"), LONG).await;
        assert!(posted.response_time >= Duration::from_secs(1), "{name}: {posted:?}");
        assert_eq!(posted.timings.dns, None, "{name}");
        seen.push((word(posted.outcome), posted.error));
    }
    assert_eq!(seen[0].0, "blocked");
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
}
