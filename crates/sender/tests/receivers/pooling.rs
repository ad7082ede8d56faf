//! Which connections are used again, and which are not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use posthaste_sender::{Client, Options};
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;

use crate::receiver::{LONG, OK, Receiver, SHORT, answering, client, options, post, read_request, until, word};

#[tokio::test]
async fn a_connection_is_used_again_and_then_takes_no_time_to_make() {
    let receiver = answering(OK).await;
    let client = client();
    let first = post(&client, &receiver.url(), LONG).await;
    assert!(first.timings.connect.is_some());
    for _ in 0..5 {
        let posted = post(&client, &receiver.url(), LONG).await;
        assert_eq!(word(posted.outcome), "200");
        assert_eq!((posted.timings.dns, posted.timings.connect, posted.timings.tls), (None, None, None));
        assert!(posted.timings.first_byte.is_some());
    }
    assert_eq!(receiver.connections(), 1);
    assert_eq!(client.idle_connections(), 1);
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_is_made_anew_within_the_attempt() {
    let receiver = Receiver::new(|mut stream, _| async move {
        read_request(&mut stream).await;
        // No word of its being the last.
        stream.write_all(OK).await.unwrap();
    })
    .await;
    let client = client();
    for round in 1..=5 {
        assert_eq!(word(post(&client, &receiver.url(), LONG).await.outcome), "200");
        until("the end was noticed", || client.idle_connections() == 0).await;
        assert_eq!(receiver.connections(), round);
    }
}

/// Answers once, and closes when it is told to, without a word of its having been the last.
struct Closing {
    receiver: Receiver,
    orders: Arc<Semaphore>,
    closed: Arc<AtomicUsize>,
}

impl Closing {
    async fn new() -> Closing {
        let (orders, closed) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (ordered, done) = (Arc::clone(&orders), Arc::clone(&closed));
        let receiver = Receiver::new(move |mut stream, _| {
            let (ordered, done) = (Arc::clone(&ordered), Arc::clone(&done));
            async move {
                read_request(&mut stream).await;
                stream.write_all(OK).await.unwrap();
                ordered.acquire().await.unwrap().forget();
                drop(stream);
                done.fetch_add(1, Ordering::SeqCst);
            }
        })
        .await;
        Closing { receiver, orders, closed }
    }

    async fn close(&self) {
        let before = self.closed.load(Ordering::SeqCst);
        self.orders.add_permits(1);
        until("it has closed", || self.closed.load(Ordering::SeqCst) > before).await;
    }
}

#[tokio::test]
async fn a_connection_that_nobody_has_looked_at_since_it_was_closed_is_made_anew_all_the_same() {
    let closing = Closing::new().await;
    let client = client();
    for round in 1..=5 {
        assert_eq!(word(post(&client, &closing.receiver.url(), LONG).await.outcome), "200");
        closing.close().await;
        assert_eq!((closing.receiver.connections(), client.connections().idle), (round, 1));
    }
}

#[tokio::test]
async fn a_connection_that_the_other_side_has_closed_is_let_go_before_its_time() {
    let closing = Closing::new().await;
    let idle_max = Duration::from_secs(8);
    let client = Client::new(&Options { idle_max, ..options() }).unwrap();
    assert_eq!(word(post(&client, &closing.receiver.url(), LONG).await.outcome), "200");
    let kept_at = Instant::now();
    closing.close().await;
    assert_eq!(client.connections().idle, 1);
    until("it is let go", || client.connections().idle == 0).await;
    assert!(kept_at.elapsed() < idle_max);
}

#[tokio::test]
async fn a_connection_whose_answer_was_not_read_to_the_end_is_closed() {
    let receiver = Receiver::new(|mut stream, _| async move {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n").await.unwrap();
        let _ = stream.write_all(&vec![b'x'; 1_000_000]).await;
        // It hears of it at once.
        read_request(&mut stream).await;
    })
    .await;
    let client = client();
    assert_eq!(word(post(&client, &receiver.url(), LONG).await.outcome), "200");
    assert_eq!(client.idle_connections(), 0);
    assert_eq!(word(post(&client, &receiver.url(), LONG).await.outcome), "200");
    assert_eq!(receiver.connections(), 2);
}

#[tokio::test]
async fn an_unused_connection_is_closed_after_its_time() {
    let receiver = answering(OK).await;
    let client = Client::new(&Options { idle_max: Duration::from_millis(100), ..options() }).unwrap();
    post(&client, &receiver.url(), LONG).await;
    assert_eq!(client.idle_connections(), 1);
    until("it is closed", || client.idle_connections() == 0).await;
    // And whoever looks after them does so again.
    post(&client, &receiver.url(), LONG).await;
    assert_eq!(client.idle_connections(), 1);
    until("it is closed again", || client.idle_connections() == 0).await;
}

#[tokio::test]
async fn a_connection_that_is_too_old_is_not_used_again() {
    let receiver = answering(OK).await;
    let client = Client::new(&Options { age_max: Duration::ZERO, ..options() }).unwrap();
    for _ in 0..3 {
        assert_eq!(word(post(&client, &receiver.url(), LONG).await.outcome), "200");
    }
    assert_eq!(receiver.connections(), 3);
}

#[tokio::test]
async fn the_one_unused_for_longest_makes_room() {
    let client = Client::new(&Options { idle_connections_max: 2, ..options() }).unwrap();
    let receivers = [answering(OK).await, answering(OK).await, answering(OK).await];
    for receiver in &receivers {
        post(&client, &receiver.url(), LONG).await;
    }
    assert_eq!(client.idle_connections(), 2);
    for receiver in [&receivers[2], &receivers[1], &receivers[0]] {
        post(&client, &receiver.url(), LONG).await;
    }
    let connections = receivers.each_ref().map(Receiver::connections);
    assert_eq!(connections, [2, 1, 1]);
}

#[tokio::test]
async fn no_more_connections_than_set_go_to_one_host() {
    let gate = Arc::new(Semaphore::new(0));
    let (present, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (at_gate, here, seen) = (Arc::clone(&gate), Arc::clone(&present), Arc::clone(&most));
    let receiver = Receiver::new(move |mut stream, _| {
        let (gate, present, most) = (Arc::clone(&at_gate), Arc::clone(&here), Arc::clone(&seen));
        async move {
            while read_request(&mut stream).await.is_some() {
                most.fetch_max(present.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                gate.acquire().await.unwrap().forget();
                present.fetch_sub(1, Ordering::SeqCst);
                stream.write_all(OK).await.unwrap();
            }
        }
    })
    .await;
    let client = Client::new(&Options { connections_per_host_max: 3, ..options() }).unwrap();
    let url = receiver.url();
    let posts: Vec<_> = (0..10)
        .map(|_| {
            let (client, url) = (client.clone(), url.clone());
            tokio::spawn(async move { post(&client, &url, LONG).await })
        })
        .collect();
    until("three are there", || present.load(Ordering::SeqCst) == 3).await;
    // Whoever finds no room within its time has sent nothing.
    let late = post(&client, &url, SHORT).await;
    assert_eq!(word(late.outcome), "connect");
    assert!(late.error.unwrap().contains("in use"));
    // Another host is not held up by it.
    let other = answering(OK).await;
    assert_eq!(word(post(&client, &other.url(), LONG).await.outcome), "200");
    gate.add_permits(100);
    for posted in posts {
        assert_eq!(word(posted.await.unwrap().outcome), "200");
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert!(receiver.connections() <= 3);
}

#[tokio::test]
async fn an_attempt_that_is_called_off_gives_its_place_back() {
    let receiver = Receiver::new(|mut stream, number| async move {
        read_request(&mut stream).await;
        if number > 0 {
            stream.write_all(OK).await.unwrap();
        }
        read_request(&mut stream).await;
    })
    .await;
    let client = Client::new(&Options { connections_per_host_max: 1, ..options() }).unwrap();
    let (stuck, url) = (client.clone(), receiver.url());
    let task = tokio::spawn(async move { post(&stuck, &url, LONG).await });
    until("it is under way", || receiver.connections() == 1).await;
    task.abort();
    assert_eq!(word(post(&client, &receiver.url(), LONG).await.outcome), "200");
}
