//! HTTP/2: shared connections where the receiver is good, and every abuse over in time where it is not.

use std::time::{Duration, Instant};

use posthaste_sender::Posted;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::certificates::{Authority, NOW};
use crate::receiver::{LONG, Receiver, SHORT_WITH_TLS, post, until, word};
use crate::tls::{NAME, client_of, url};

type Wire = TlsStream<TcpStream>;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH: u8 = 5;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
/// `:status: 200`, from the static table.
const STATUS_200: &[u8] = &[0x88];
const STATUS_500: &[u8] = &[0x8e];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The next frame: kind, flags, stream, payload.
async fn read_frame(wire: &mut Wire) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    wire.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, flags, s1, s2, s3, s4] = head;
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
    wire.read_exact(&mut payload).await.ok()?;
    Some((kind, flags, u32::from_be_bytes([s1, s2, s3, s4]), payload))
}

/// Introduces itself as a server does.
async fn greet(wire: &mut Wire, settings: &[u8]) {
    let mut preface = [0; 24];
    wire.read_exact(&mut preface).await.unwrap();
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    wire.write_all(&frame(SETTINGS, 0, 0, settings)).await.unwrap();
    wire.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
}

/// Reads until a request has ended, and answers its stream.
async fn read_request(wire: &mut Wire) -> Option<u32> {
    loop {
        let (kind, flags, stream, _) = read_frame(wire).await?;
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            return Some(stream);
        }
    }
}

/// A receiver that chooses HTTP/2 and then behaves like this.
async fn receiver<F>(authority: &Authority, behave: impl Fn(Wire, usize) -> F + Clone + Send + 'static) -> Receiver
where
    F: Future<Output = ()> + Send + 'static,
{
    let acceptor = authority.server(&[NAME], NOW, &["h2", "http/1.1"]);
    Receiver::new(move |stream, number| {
        let (acceptor, behave) = (acceptor.clone(), behave.clone());
        async move {
            let wire = acceptor.accept(stream).await.unwrap();
            assert_eq!(wire.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            behave(wire, number).await;
        }
    })
    .await
}

fn answer(stream: u32) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, stream, STATUS_200), frame(DATA, END_STREAM, stream, b"fine")].concat()
}

/// Answers everything, with so many requests at a time.
async fn good(authority: &Authority, streams: u32) -> Receiver {
    receiver(authority, move |mut wire, _| async move {
        greet(&mut wire, &[&[0, 3], &streams.to_be_bytes()[..]].concat()).await;
        while let Some(stream) = read_request(&mut wire).await {
            if wire.write_all(&answer(stream)).await.is_err() {
                return;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_receiver_that_speaks_http_2_gets_it_and_its_connection_is_shared() {
    let authority = Authority::new();
    let receiver = good(&authority, 100).await;
    let client = client_of(&authority).await;
    let first = post(&client, &url(receiver.address), LONG).await;
    assert_eq!(word(first.outcome), "200", "{:?}", first.error);
    assert_eq!(first.preview.as_deref(), Some("fine"));
    until("the connection is kept", || client.idle_connections() == 1).await;
    let address = url(receiver.address);
    let many = (0..40).map(|_| post(&client, &address, LONG));
    for posted in futures_util::future::join_all(many).await {
        assert_eq!(word(posted.outcome), "200", "{:?}", posted.error);
        assert_eq!(posted.timings.connect, None, "it was there already");
    }
    assert_eq!(receiver.connections(), 1);
    assert_eq!(client.idle_connections(), 1);
}

#[tokio::test]
async fn a_receiver_that_takes_one_request_at_a_time_gets_further_connections() {
    let authority = Authority::new();
    let receiver = good(&authority, 1).await;
    let client = client_of(&authority).await;
    let address = url(receiver.address);
    assert_eq!(word(post(&client, &address, LONG).await.outcome), "200");
    for posted in futures_util::future::join_all((0..8).map(|_| post(&client, &address, LONG))).await {
        assert_eq!(word(posted.outcome), "200", "{:?}", posted.error);
    }
    assert!(receiver.connections() > 1, "nobody has to wait for another's answer");
}

/// One attempt against such a receiver, which is over in time.
async fn abused<F>(behave: impl Fn(Wire, usize) -> F + Clone + Send + 'static) -> Posted
where
    F: Future<Output = ()> + Send + 'static,
{
    let authority = Authority::new();
    let receiver = receiver(&authority, behave).await;
    let client = client_of(&authority).await;
    let started = Instant::now();
    let posted = post(&client, &url(receiver.address), SHORT_WITH_TLS).await;
    assert!(started.elapsed() < SHORT_WITH_TLS + Duration::from_secs(1), "{:?}", started.elapsed());
    posted
}

/// Introduces itself, reads the request, and then writes this for as long as somebody reads.
async fn flooded(first: Vec<u8>, over_and_over: Vec<u8>) -> String {
    let posted = abused(move |mut wire, _| {
        let (first, over_and_over) = (first.clone(), over_and_over.clone());
        async move {
            greet(&mut wire, &[]).await;
            read_request(&mut wire).await;
            wire.write_all(&first).await.unwrap();
            while !over_and_over.is_empty() && wire.write_all(&over_and_over).await.is_ok() {}
            while read_frame(&mut wire).await.is_some() {}
        }
    })
    .await;
    word(posted.outcome)
}

#[tokio::test]
async fn i47_f31_floods_of_frames_are_cut_off() {
    let settings = frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0x40, 0]).repeat(100);
    assert_eq!(flooded(vec![], settings).await, "reset");
    assert_eq!(flooded(vec![], frame(PING, 0, 0, &[0; 8]).repeat(100)).await, "reset");
    assert_eq!(flooded(vec![], frame(WINDOW, 0, 0, &[0, 0, 0, 1]).repeat(100)).await, "reset");
    assert_eq!(flooded(vec![], frame(0xfa, 0, 0, &[0; 100]).repeat(100)).await, "reset", "frames of no known kind");
    let opened = frame(HEADERS, 0, 1, STATUS_200);
    assert_eq!(flooded(opened, frame(CONTINUATION, 0, 1, &[0, 1, b'a', 1, b'b']).repeat(100)).await, "reset");
    let answered = frame(HEADERS, END_HEADERS, 1, STATUS_200);
    assert_eq!(flooded(answered.clone(), frame(DATA, 0, 1, &[]).repeat(100)).await, "200", "empty frames after a good head");
    assert_eq!(flooded(answered, frame(DATA, 0, 1, &[b'x'; 1000]).repeat(10)).await, "200", "an endless body");
    // One header that is 4,000 times the size that was sent, again and again.
    let mut bomb = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
    bomb.extend(std::iter::repeat_n(b'x', 4000));
    bomb.extend(std::iter::repeat_n(0xbe, 10_000));
    assert_eq!(flooded([frame(HEADERS, END_HEADERS, 1, &[STATUS_200, &bomb].concat())].concat(), vec![]).await, "reset");
}

#[tokio::test]
async fn i11_http_2_that_breaks_its_rules_is_a_broken_connection() {
    for (what, bytes) in [
        ("data before a head", frame(DATA, 0, 1, b"x")),
        ("a stream that nobody opened", frame(HEADERS, END_HEADERS, 9, STATUS_200)),
        ("a push that was not asked for", frame(PUSH, END_HEADERS, 1, &[0, 0, 0, 2, 0x88])),
        ("a frame that is too large", frame(DATA, 0, 1, &vec![0; 20_000])),
        ("settings of a wrong length", frame(SETTINGS, 0, 0, &[1, 2, 3])),
        ("a head that cannot be unpacked", frame(HEADERS, END_HEADERS, 1, &[0xff; 50])),
        ("a head without a status", frame(HEADERS, END_HEADERS | END_STREAM, 1, &[])),
        ("reset", frame(RESET, 0, 1, &[0, 0, 0, 8])),
        ("refused", frame(RESET, 0, 1, &[0, 0, 0, 7])),
        ("gone", frame(GO_AWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2])),
        ("HTTP/1.1", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("garbage", vec![0xff; 500]),
    ] {
        assert_eq!(flooded(bytes, vec![]).await, "reset", "{what}");
    }
    assert_eq!(flooded(frame(HEADERS, END_HEADERS | END_STREAM, 1, STATUS_500), vec![]).await, "500");
}

#[tokio::test]
async fn i30_http_2_that_is_silent_is_a_timeout() {
    assert_eq!(flooded(vec![], vec![]).await, "timeout");
    let no_greeting = abused(|mut wire, _| async move { while wire.read_u8().await.is_ok() {} }).await;
    assert_eq!(word(no_greeting.outcome), "timeout");
    let no_window = abused(|mut wire, _| async move {
        // Nothing of a body may be sent.
        greet(&mut wire, &[0, 4, 0, 0, 0, 0]).await;
        while read_frame(&mut wire).await.is_some() {}
    })
    .await;
    assert_eq!(word(no_window.outcome), "timeout");
}

#[tokio::test]
async fn f35_http_2_that_turns_out_to_be_garbage_is_a_broken_connection() {
    let posted = abused(|mut wire, _| async move {
        wire.write_all(&[0xff; 500]).await.unwrap();
        while wire.read_u8().await.is_ok() {}
    })
    .await;
    assert!(["reset", "connect"].contains(&word(posted.outcome).as_str()), "{posted:?}");
}

#[tokio::test]
async fn a_kept_connection_that_refuses_the_next_request_is_dialled_anew_within_the_attempt() {
    for (what, refusal) in
        [("going away", frame(GO_AWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0])), ("too busy", frame(RESET, 0, 3, &[0, 0, 0, 7]))]
    {
        let authority = Authority::new();
        let receiver = receiver(&authority, move |mut wire, number| {
            let refusal = refusal.clone();
            async move {
                greet(&mut wire, &[]).await;
                let mut requests = 0;
                while let Some(stream) = read_request(&mut wire).await {
                    requests += 1;
                    let bytes = if number == 0 && requests == 2 { refusal.clone() } else { answer(stream) };
                    wire.write_all(&bytes).await.unwrap();
                }
            }
        })
        .await;
        let client = client_of(&authority).await;
        assert_eq!(word(post(&client, &url(receiver.address), LONG).await.outcome), "200");
        until("the connection is kept", || client.idle_connections() == 1).await;
        let second = post(&client, &url(receiver.address), LONG).await;
        assert_eq!(word(second.outcome), "200", "{what}: {:?}", second.error);
        assert_eq!(receiver.connections(), 2, "{what}");
    }
}

#[tokio::test]
async fn i36_a_shared_connection_that_gets_stuck_takes_no_further_requests() {
    let authority = Authority::new();
    let receiver = receiver(&authority, |mut wire, number| async move {
        greet(&mut wire, &[]).await;
        let mut requests = 0;
        while let Some(stream) = read_request(&mut wire).await {
            requests += 1;
            // The first connection answers once, and then never again.
            if number > 0 || requests == 1 {
                wire.write_all(&answer(stream)).await.unwrap();
            }
        }
    })
    .await;
    let client = client_of(&authority).await;
    assert_eq!(word(post(&client, &url(receiver.address), LONG).await.outcome), "200");
    until("the connection is kept", || client.idle_connections() == 1).await;
    // Somebody with much time waits on it all the while.
    let (patient, address) = (client.clone(), url(receiver.address));
    let patient = tokio::spawn(async move { post(&patient, &address, LONG).await });
    until("it is in use", || client.idle_connections() == 0).await;
    assert_eq!(word(post(&client, &url(receiver.address), SHORT_WITH_TLS).await.outcome), "timeout");
    assert_eq!(receiver.connections(), 1, "they shared it");
    assert_eq!(word(post(&client, &url(receiver.address), SHORT_WITH_TLS).await.outcome), "200");
    assert_eq!(receiver.connections(), 2);
    assert!(!patient.is_finished(), "what is under way on it may still be answered");
    patient.abort();
}

#[tokio::test]
async fn i47_a_flood_between_requests_closes_the_connection() {
    let authority = Authority::new();
    let receiver = receiver(&authority, |mut wire, _| async move {
        greet(&mut wire, &[]).await;
        while let Some(stream) = read_request(&mut wire).await {
            wire.write_all(&answer(stream)).await.unwrap();
            while wire.write_all(&frame(PING, 0, 0, &[0; 8]).repeat(10)).await.is_ok() {}
        }
    })
    .await;
    let client = client_of(&authority).await;
    assert_eq!(word(post(&client, &url(receiver.address), LONG).await.outcome), "200");
    until("the connection is closed", || client.idle_connections() == 0).await;
}
