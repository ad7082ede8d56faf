//! Through an operator's proxy: judged all the same, and to the address that was judged.

use std::sync::Arc;

use parking_lot::Mutex;
use posthaste_sender::{Client, NameServers, Options, Proxy, Roots};
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;

use crate::certificates::{Authority, NOW};
use crate::name_server::{Answer, name_server};
use crate::receiver::{LONG, OK, Receiver, SHORT, answering, options, post, read_request, word};
use crate::tls::NAME;

/// A proxy that tunnels, and what it was asked.
async fn tunnelling() -> (Receiver, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&asked);
    let proxy = Receiver::new(move |mut stream, _| {
        let notes = Arc::clone(&notes);
        async move {
            let Some(question) = read_request(&mut stream).await else { return };
            let target = question.split(' ').nth(1).unwrap().to_owned();
            notes.lock().push(question);
            let mut onward = TcpStream::connect(target).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 Connection established\r\nX: y\r\n\r\n").await.unwrap();
            let _ = copy_bidirectional(&mut stream, &mut onward).await;
        }
    })
    .await;
    (proxy, asked)
}

fn through(proxy: &Receiver, options: Options) -> Client {
    let proxy = Proxy::parse(&format!("http://user:pass@{}", proxy.address)).unwrap();
    Client::new(&Options { proxy: Some(proxy), ..options }).unwrap()
}

#[tokio::test]
async fn a_request_goes_through_a_tunnel_to_the_address_that_was_judged() {
    let (proxy, asked) = tunnelling().await;
    let receiver = answering(OK).await;
    let names = name_server(|_| Answer::Addresses(vec!["127.0.0.1".parse().unwrap()])).await;
    let client = through(&proxy, Options { name_servers: NameServers::These(vec![names]), ..options() });
    let url = format!("http://{NAME}:{}/", receiver.address.port());
    for _ in 0..3 {
        let posted = post(&client, &url, LONG).await;
        assert_eq!(word(posted.outcome), "200", "{:?}", posted.error);
    }
    let asked = asked.lock();
    assert_eq!(asked.len(), 1, "the tunnel is kept");
    assert!(asked[0].starts_with(&format!("CONNECT {} HTTP/1.1\r\n", receiver.address)), "an address, not a name: {}", asked[0]);
    assert!(asked[0].contains("Proxy-Authorization: Basic dXNlcjpwYXNz\r\n"), "{}", asked[0]);
}

#[tokio::test]
async fn tls_is_between_us_and_the_receiver() {
    let authority = Authority::new();
    let acceptor = authority.server(&[NAME], NOW, &[]);
    let (proxy, _) = tunnelling().await;
    let receiver = Receiver::new(move |stream, _| {
        let acceptor = acceptor.clone();
        async move {
            let mut stream = acceptor.accept(stream).await.unwrap();
            let request = read_request(&mut stream).await.unwrap();
            assert!(!request.contains("Proxy-Authorization"), "that was for the proxy alone");
            stream.write_all(OK).await.unwrap();
        }
    })
    .await;
    let names = name_server(|_| Answer::Addresses(vec!["127.0.0.1".parse().unwrap()])).await;
    let options = Options {
        name_servers: NameServers::These(vec![names]),
        roots: Roots::ExtraOnly,
        extra_roots: authority.pem.clone().into_bytes(),
        ..options()
    };
    let posted = post(&through(&proxy, options), &format!("https://{NAME}:{}/", receiver.address.port()), LONG).await;
    assert_eq!(word(posted.outcome), "200", "{:?}", posted.error);
    assert!(posted.timings.tls.is_some());
}

#[tokio::test]
async fn i43_what_is_forbidden_is_not_asked_of_a_proxy_either() {
    let (proxy, asked) = tunnelling().await;
    let names = name_server(|_| Answer::Addresses(vec!["10.0.0.1".parse().unwrap()])).await;
    let client = through(&proxy, Options { name_servers: NameServers::These(vec![names]), ..options() });
    for url in ["http://internal.example.com/", "http://10.0.0.1/", "http://169.254.169.254/latest/meta-data/"] {
        assert_eq!(word(post(&client, url, LONG).await.outcome), "blocked", "{url}");
    }
    assert_eq!((asked.lock().len(), proxy.connections()), (0, 0));
}

#[tokio::test]
async fn a_proxy_that_refuses_or_talks_nonsense_is_a_connection_that_failed() {
    for (answer, error) in [
        (&b"HTTP/1.1 407 Proxy Authentication Required\r\nX: secret\r\n\r\n"[..], "could not connect: the proxy answered 407"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "could not connect: the proxy answered 502"),
        (b"SSH-2.0-x\r\n\r\n", "could not connect: the proxy's answer makes no sense"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n", "could not connect: the proxy's answer makes no sense"),
        (b"HTTP/1.1 200", "could not connect: the proxy closed the connection"),
    ] {
        let proxy = Receiver::new(move |mut stream, _| async move {
            read_request(&mut stream).await;
            stream.write_all(answer).await.unwrap();
        })
        .await;
        let posted = post(&through(&proxy, options()), "http://127.0.0.1:8080/", LONG).await;
        assert_eq!(word(posted.outcome), "connect");
        assert_eq!(posted.error.as_deref(), Some(error));
    }
    let silent = Receiver::new(|mut stream, _| async move { while read_request(&mut stream).await.is_some() {} }).await;
    assert_eq!(word(post(&through(&silent, options()), "http://127.0.0.1:8080/", SHORT).await.outcome), "connect");
    let endless = Receiver::new(|mut stream, _| async move { while stream.write_all(&[b'x'; 4096]).await.is_ok() {} }).await;
    assert_eq!(word(post(&through(&endless, options()), "http://127.0.0.1:8080/", SHORT).await.outcome), "connect");
}
