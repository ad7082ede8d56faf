//! F29 to F32: receivers that refuse, hang, lie and flood.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::receiver::{LONG, Receiver, SHORT, client, post, read_request, send, word};

/// What a receiver does once it has been called.
#[derive(Clone)]
enum Act {
    /// Reads the request.
    Read,
    Write(Vec<u8>),
    /// Writes this over and over, until nobody reads it.
    Flood(Vec<u8>),
    /// Writes this a byte at a time, slowly.
    Drip(Vec<u8>),
    /// Says that nothing more will come, and listens on.
    HalfClose,
    /// Drops the connection with a reset.
    Reset,
    /// Does nothing, for as long as the sender stays.
    Hang,
}

use Act::{Drip, Flood, HalfClose, Hang, Read, Reset, Write};

async fn act(mut stream: TcpStream, acts: Vec<Act>) {
    for act in acts {
        let done = match act {
            Read => {
                read_request(&mut stream).await;
                Ok(())
            }
            Write(bytes) => stream.write_all(&bytes).await,
            Flood(bytes) => loop {
                if let Err(error) = stream.write_all(&bytes).await {
                    break Err(error);
                }
            },
            Drip(bytes) => {
                for byte in bytes {
                    if stream.write_all(&[byte]).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(())
            }
            HalfClose => stream.shutdown().await,
            Reset => stream.set_zero_linger(),
            Hang => {
                while read_request(&mut stream).await.is_some() {}
                Ok(())
            }
        };
        if done.is_err() {
            return;
        }
    }
}

fn write(text: &str) -> Act {
    Write(text.as_bytes().to_vec())
}

/// Whatever it does, it is over in time and by this class.
async fn check(what: &str, acts: Vec<Act>, expected: &str) {
    let receiver = Receiver::new(move |stream, _| act(stream, acts.clone())).await;
    // What is to be used up is short; the rest has to be over long before.
    let timeout = if expected.contains("timeout") { SHORT } else { LONG };
    let started = Instant::now();
    let posted = post(&client(), &receiver.url(), timeout).await;
    let took = started.elapsed();
    let outcome = word(posted.outcome);
    assert!(expected.split(" or ").any(|one| one == outcome), "{what}: {outcome}, {:?}", posted.error);
    assert!(took < SHORT + Duration::from_secs(5), "{what}: {took:?}");
    assert!(took < posted.response_time + Duration::from_secs(1), "{what}: {took:?}, head after {:?}", posted.response_time);
    assert!(posted.preview.unwrap_or_default().len() <= 4096, "{what}");
    if outcome == "timeout" {
        assert!(took >= timeout && took < timeout + Duration::from_secs(1), "{what}: {took:?}");
    }
}

#[tokio::test]
async fn i11_f29_receivers_that_hang_up() {
    check("resets at once", vec![Reset], "reset or connect").await;
    check("closes at once", vec![], "reset or connect").await;
    check("resets after the request", vec![Read, Reset], "reset").await;
    check("closes after the request", vec![Read], "reset").await;
    check("half-closes after the request", vec![Read, HalfClose, Hang], "reset").await;
    check("closes in the middle of the head", vec![Read, write("HTTP/1.1 200 OK\r\nContent-")], "reset").await;
    check("answers and half-closes", vec![Read, write("HTTP/1.1 200 OK\r\n\r\nhello"), HalfClose, Hang], "200").await;
    check("answers and resets", vec![Read, write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"), Reset], "200 or reset")
        .await;
    check(
        "answers before it has read",
        vec![write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), Hang],
        "200 or reset or connect",
    )
    .await;
}

#[tokio::test]
async fn i30_f30_receivers_that_hang() {
    check("silence", vec![Hang], "timeout").await;
    check("silence after the request", vec![Read, Hang], "timeout").await;
    check("a head that drips", vec![Read, Drip(format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(1000)).into_bytes())], "timeout")
        .await;
    check("a body that drips", vec![Read, write("HTTP/1.1 200 OK\r\n\r\n"), Drip(vec![b'x'; 1000])], "200").await;
    check("a body that never comes", vec![Read, write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"), Hang], "200").await;
    check("an endless body", vec![Read, write("HTTP/1.1 200 OK\r\n\r\n"), Flood(vec![b'x'; 65536])], "200").await;
    let chunk = [b"10000\r\n".to_vec(), vec![b'x'; 65536], b"\r\n".to_vec()].concat();
    check("endless chunks", vec![Read, write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), Flood(chunk)], "200").await;
    let tiny = b"1;ext=aaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n".repeat(100);
    check("tiny chunks", vec![Read, write("HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n"), Flood(tiny)], "500").await;
    let trailers = b"X-Trailer: aaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".repeat(100);
    let last = write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n");
    check("endless trailers", vec![Read, last, Flood(trailers)], "200").await;
    check("endless continues", vec![Read, Flood(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec())], "reset or timeout").await;
    check("a slow continue", vec![Read, write("HTTP/1.1 100 Continue\r\n\r\n"), Hang], "timeout").await;
}

#[tokio::test]
async fn i47_f31_receivers_that_flood() {
    let huge = "HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n";
    check("a gigabyte", vec![Read, write(huge), Flood(vec![b'x'; 65536])], "200").await;
    let bomb = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n";
    check("a bomb", vec![Read, write(bomb), Flood(vec![0; 65536])], "200").await;
    let many = (0..10_000).fold(String::new(), |many, n| many + &format!("X-{n}: y\r\n"));
    check("10,000 headers", vec![Read, write(&format!("HTTP/1.1 200 OK\r\n{many}\r\n")), Hang], "reset").await;
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(1024 * 1024));
    check("a header of a mebibyte", vec![Read, write(&long), Hang], "reset").await;
    check("an endless header", vec![Read, write("HTTP/1.1 200 OK\r\nX: "), Flood(vec![b'y'; 65536])], "reset").await;
    check("an endless reason", vec![Read, write("HTTP/1.1 200 "), Flood(vec![b'y'; 65536])], "reset").await;
    let fits = (0..200).fold(String::new(), |fits, n| fits + &format!("X-{n}: {}\r\n", "y".repeat(100)));
    let fits = format!("HTTP/1.1 200 OK\r\n{fits}Content-Length: 0\r\n\r\n");
    check("200 headers of 22 KiB are an answer", vec![Read, write(&fits), Hang], "200").await;
}

#[tokio::test]
async fn i11_f32_receivers_that_lie() {
    let no_body = "Content-Length: 0\r\n\r\n";
    for (what, answer, expected) in [
        ("a bad chunk size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nx", "200".to_owned()),
        (
            "a chunk size beyond numbers",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nx",
            "200".to_owned(),
        ),
        ("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "reset".to_owned()),
        ("a length below zero", "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello", "reset".to_owned()),
        (
            "length and chunks",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "200".to_owned(),
        ),
        ("a bare line break in the reason", &format!("HTTP/1.1 200 O\rK\r\n{no_body}"), "reset".to_owned()),
        ("NUL in a header", &format!("HTTP/1.1 200 OK\r\nX: \0\r\n{no_body}"), "reset".to_owned()),
        ("a header without a colon", &format!("HTTP/1.1 200 OK\r\nnonsense\r\n{no_body}"), "200".to_owned()),
        ("999", &format!("HTTP/1.1 999 X\r\n{no_body}"), "999".to_owned()),
        ("600", &format!("HTTP/1.1 600 X\r\n{no_body}"), "600".to_owned()),
        ("000", &format!("HTTP/1.1 000 X\r\n{no_body}"), "reset".to_owned()),
        ("four digits", &format!("HTTP/1.1 2000 X\r\n{no_body}"), "reset".to_owned()),
        ("HTTP/0.9", "hello\r\n", "reset".to_owned()),
        ("HTTP/3.0", &format!("HTTP/3.0 200 OK\r\n{no_body}"), "reset".to_owned()),
        ("HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\nhello", "200".to_owned()),
        ("another protocol", "SSH-2.0-OpenSSH_9.2p1\r\n", "reset".to_owned()),
        ("204 with a body", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", "204".to_owned()),
        ("304 with a body", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello", "304".to_owned()),
        ("two answers", &format!("HTTP/1.1 200 OK\r\n{no_body}HTTP/1.1 500 No\r\n{no_body}"), "200".to_owned()),
        ("nothing but line breaks", "\r\n\r\n\r\n", "reset".to_owned()),
    ] {
        check(what, vec![Read, write(answer)], &expected).await;
    }
}

#[tokio::test]
async fn a_receiver_that_does_not_read_is_a_timeout() {
    let receiver = Receiver::new(|stream, _| async move {
        // Held open, and never read from.
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let body = http_body_util::Full::new(bytes::Bytes::from(vec![b'x'; 32 * 1024 * 1024]));
    let request = http::Request::post(receiver.url()).body(body).unwrap();
    let started = Instant::now();
    let posted = send(&client(), request, SHORT).await;
    assert_eq!(word(posted.outcome), "timeout");
    assert!(started.elapsed() < SHORT + Duration::from_secs(1));
}

#[tokio::test]
async fn the_answer_after_a_strange_one_is_read_from_its_own_beginning() {
    // What comes after the end of an answer must not be taken for the next one.
    let receiver = Receiver::new(|mut stream, number| async move {
        read_request(&mut stream).await;
        let answer: &[u8] = if number == 0 {
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
        } else {
            b"HTTP/1.1 202 OK\r\nContent-Length: 4\r\n\r\nreal"
        };
        stream.write_all(answer).await.unwrap();
        read_request(&mut stream).await;
    })
    .await;
    let client = client();
    assert_eq!(post(&client, &receiver.url(), LONG).await.preview.as_deref(), Some("ok"));
    let second = post(&client, &receiver.url(), SHORT).await;
    assert_ne!(second.preview.as_deref(), Some("forged"), "{second:?}");
}

#[tokio::test]
async fn i11_a_connection_that_does_not_come_about_in_time_is_not_a_timeout_of_the_request() {
    // Nobody accepts, and there is room for few: whoever comes after that is not even greeted.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        waiting.push(connected.unwrap());
    }
    let posted = post(&client(), &format!("http://{address}/"), SHORT).await;
    assert_eq!(word(posted.outcome), "connect");
    assert_eq!(posted.error.as_deref(), Some("no connection came about in time"));
    assert!(posted.timings.connect.is_some_and(|took| took >= SHORT));
}
