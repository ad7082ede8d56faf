//! I43: no `connect()` goes to a forbidden address, whatever DNS, redirects, hints, kept connections or proxy variables say.
//!
//! The child lives in a network of its own without a way out, in which a public address is this machine's. Every address it dials is in
//! the trace of its system calls.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use posthaste_sender::{Client, NameServers, Options, Policy};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::name_server::{Answer, name_server};
use crate::receiver::{LONG, post, read_request, word};

/// Anybody's, as far as the rules are concerned.
const PUBLIC: &str = "93.184.216.34";
const PORT: u16 = 8080;

/// In every block that is refused, and in every disguise.
const FORBIDDEN: [&str; 40] = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:93.184.216.34",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::10.0.0.1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2600::5efe:127.0.0.1",
    "3fff::1",
    "fc00::1",
    "fe80::1",
    "ff02::1",
];

#[test]
fn i43_no_system_call_dials_a_forbidden_address() {
    let trace = std::env::temp_dir().join(format!("posthaste-connects-{}", std::process::id()));
    let network = format!("ip link set lo up && ip addr add {PUBLIC}/32 dev lo && exec \"$@\"");
    let traced = ["unshare", "--net", "sh", "-c", &network, "sh", "strace", "-f", "-qq", "-e", "trace=connect", "-o"];
    let traced: Vec<&str> = traced.into_iter().chain([trace.to_str().unwrap()]).collect();
    let child = super::under(&traced, "dialling::tries_to_reach_what_is_forbidden")
        .envs(
            ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"]
                .map(|name| (name, "http://10.9.9.9:3128")),
        )
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}\n{}", String::from_utf8_lossy(&child.stderr));
    let name_server = said.lines().find_map(|line| line.strip_prefix("name server ")).unwrap();
    let calls = std::fs::read_to_string(&trace).unwrap();
    std::fs::remove_file(&trace).unwrap();
    let mut to_public = 0;
    for call in calls.lines().filter(|line| line.contains("connect(") && line.contains("AF_INET")) {
        let port = call.split("htons(").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
        // The only thing in quotes, for either kind.
        let address = call.split('"').nth(1).unwrap();
        if address == PUBLIC {
            to_public += 1;
        } else {
            assert_eq!(format!("{address}:{port}"), name_server, "dialled: {call}");
        }
    }
    assert!(to_public >= 5, "what is allowed was dialled: {calls}");
}

#[tokio::test]
#[ignore = "the child of the test above"]
async fn tries_to_reach_what_is_forbidden() {
    let elsewhere = format!("http://10.0.0.1:{PORT}/");
    let listener = TcpListener::bind((PUBLIC, PORT)).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let head = format!(
                "HTTP/1.1 307 Elsewhere\r\nLocation: {elsewhere}\r\nRefresh: 0; url={elsewhere}\r\nAlt-Svc: h2=\"10.0.0.1:443\"\r\n\
                 Connection: close\r\nContent-Length: 0\r\n\r\n"
            );
            tokio::spawn(async move {
                read_request(&mut stream).await;
                let _ = stream.write_all(head.as_bytes()).await;
            });
        }
    });
    let rebound = Arc::new(AtomicUsize::new(0));
    let server = name_server(move |name| {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        let bad = |name: &str| {
            parse(FORBIDDEN[name.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()).parse::<usize>().unwrap()])
        };
        match name.split('.').next().unwrap() {
            "public" => Answer::Addresses(vec![parse(PUBLIC)]),
            // Public for the two questions of the first attempt.
            "rebinding" if rebound.fetch_add(1, Ordering::SeqCst) < 2 => Answer::Addresses(vec![parse(PUBLIC)]),
            "rebinding" => Answer::Addresses(vec![parse("10.0.0.1")]),
            mixed if mixed.starts_with("mixed") => Answer::Addresses(vec![parse(PUBLIC), bad(mixed)]),
            alias if alias.starts_with("alias") => Answer::Alias(alias.replace("alias", "bad") + ".example.com"),
            other => Answer::Addresses(vec![bad(other)]),
        }
    })
    .await;
    println!("name server {server}");
    let options = Options {
        policy: Policy { allow_http: true, ..Policy::default() },
        name_servers: NameServers::These(vec![server]),
        ..Options::default()
    };
    let client = Client::new(&options).unwrap();
    let outcome = async |url: String| word(post(&client, &url, LONG).await.outcome);
    for _ in 0..3 {
        assert_eq!(outcome(format!("http://public.example.com:{PORT}/")).await, "307");
    }
    assert_eq!(outcome(format!("http://{PUBLIC}:{PORT}/")).await, "307");
    assert_eq!(outcome(format!("http://rebinding.example.com:{PORT}/")).await, "307");
    assert_eq!(outcome(format!("http://rebinding.example.com:{PORT}/")).await, "blocked");
    for (number, address) in FORBIDDEN.iter().enumerate() {
        let literal = if address.contains(':') { format!("[{address}]") } else { (*address).to_owned() };
        for host in [
            literal,
            format!("bad{number}.example.com"),
            format!("mixed{number}.example.com"),
            format!("alias{number}.example.com"),
        ] {
            assert_eq!(outcome(format!("http://{host}:{PORT}/")).await, "blocked", "{host} {address}");
        }
    }
    for host in ["0x7f.1", "2130706433", "0177.0.0.1", "127.1", "127.0.0.1.", "localhost", "x.localhost", "017700000001"] {
        assert_eq!(outcome(format!("http://{host}:{PORT}/")).await, "blocked", "{host}");
    }
}
