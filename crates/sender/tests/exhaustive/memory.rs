//! I47: whatever receivers send, and however many do so at a time, it does not pile up here.

use std::time::Duration;

use posthaste_sender::{Client, Options, Roots};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::certificates::{Authority, NOW};
use crate::receiver::{LONG, OK, Receiver, answering, options, post, read_request, word};

const URLS: &str = "POSTHASTE_TEST_URLS";
const ROOTS: &str = "POSTHASTE_TEST_ROOTS";
/// How many requests are under way at a time. More than any one endpoint has unless somebody asks for it.
const AT_A_TIME: usize = 64;
const MORE_KIB_MAX: u64 = 32 * 1024;

/// Writes this for as long as somebody reads it.
async fn flooding(head: &'static str, over_and_over: Vec<u8>) -> Receiver {
    Receiver::new(move |mut stream, _| {
        let over_and_over = over_and_over.clone();
        async move {
            read_request(&mut stream).await;
            let _ = stream.write_all(head.as_bytes()).await;
            while stream.write_all(&over_and_over).await.is_ok() {}
        }
    })
    .await
}

/// The same with HTTP/2 inside of TLS: a greeting, and then frames without end.
async fn flooding_with_frames(authority: &Authority, frames: &'static [u8]) -> Receiver {
    let acceptor = authority.server(&["127.0.0.1"], NOW, &["h2"]);
    Receiver::new(move |stream, _| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let _ = stream.read_u8().await;
            // Settings, without any.
            let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
            while stream.write_all(frames).await.is_ok() {}
        }
    })
    .await
}

#[tokio::test]
async fn i47_hostile_receivers_cost_at_most_32_mebibytes() {
    let authority = Authority::new();
    let endless = vec![b'x'; 64 * 1024];
    let chunk = [b"10000\r\n".to_vec(), endless.clone(), b"\r\n".to_vec()].concat();
    let headers = b"X-Header: some value or other, it does not matter which\r\n".repeat(1000);
    let good = answering(OK).await;
    let hostile = [
        flooding("HTTP/1.1 200 OK\r\n\r\n", endless.clone()).await,
        flooding("HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n", endless.clone()).await,
        flooding("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", vec![0; 64 * 1024]).await,
        flooding("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk).await,
        flooding("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n".repeat(1000)).await,
        flooding("HTTP/1.1 200 OK\r\n", headers).await,
        flooding("HTTP/1.1 200 OK\r\nX: ", endless).await,
        flooding("", b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000)).await,
        Receiver::new(|mut stream, _| async move { while read_request(&mut stream).await.is_some() {} }).await,
    ];
    let frames = [
        // A ping, and settings.
        flooding_with_frames(&authority, &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]).await,
        flooding_with_frames(&authority, &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0x40, 0]).await,
    ];
    let urls: Vec<String> = std::iter::once(&good)
        .chain(&hostile)
        .map(Receiver::url)
        .chain(frames.iter().map(|receiver| format!("https://{}/", receiver.address)))
        .collect();
    let mut command = super::child("memory::is_flooded");
    command.env(URLS, urls.join(" ")).env(ROOTS, &authority.pem);
    let child = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success(), "{said}\n{}", String::from_utf8_lossy(&child.stderr));
    let number = |name: &str| -> u64 {
        said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {said}")).trim().parse().unwrap()
    };
    let (idle, peak) = (number("idle KiB:"), number("peak KiB:"));
    println!("idle {idle} KiB, peak {peak} KiB, {} KiB more", peak - idle);
    assert!(peak - idle <= MORE_KIB_MAX, "idle {idle} KiB, peak {peak} KiB");
}

/// A line of the kernel's account of this process.
fn kibibytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the child of the test above"]
async fn is_flooded() {
    let urls: Vec<String> = std::env::var(URLS).unwrap().split(' ').map(str::to_owned).collect();
    let extra_roots = std::env::var(ROOTS).unwrap().into_bytes();
    let client = Client::new(&Options { roots: Roots::ExtraOnly, extra_roots, ..options() }).unwrap();
    for _ in 0..10 {
        assert_eq!(word(post(&client, &urls[0], LONG).await.outcome), "200");
    }
    let idle = kibibytes("VmRSS:");
    // From here on the kernel keeps the peak anew.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    for url in &urls {
        let many = (0..AT_A_TIME).map(|_| {
            let (client, url) = (client.clone(), url.clone());
            tokio::spawn(async move { post(&client, &url, Duration::from_secs(1)).await })
        });
        for posted in futures_util::future::join_all(many).await {
            let outcome = word(posted.unwrap().outcome);
            assert!(["200", "reset", "timeout", "tls"].contains(&outcome.as_str()), "{url}: {outcome}");
        }
    }
    println!("idle KiB: {idle}\npeak KiB: {}", kibibytes("VmHWM:"));
}
