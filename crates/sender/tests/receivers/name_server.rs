//! A name server that says what a test tells it to, over UDP and TCP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// Those of the kind that was asked for; none of that kind is an answer without records.
    Addresses(Vec<IpAddr>),
    /// This name is another one.
    Alias(String),
    NoSuchName,
    ServerFailure,
    Refused,
    Silence,
    /// Bytes that are no answer.
    Garbage,
}

/// Short, so that everything is asked anew.
const SECONDS_TO_LIVE: u32 = 0;
/// What fits into a datagram.
const DATAGRAM_BYTES_MAX: usize = 512;

/// Listens on both, and answers by name, without the dot at its end.
pub(crate) async fn name_server(say: impl Fn(&str) -> Answer + Send + Sync + 'static) -> SocketAddr {
    let say = Arc::new(say);
    // The same number has to be free for both.
    let (datagrams, listener) = loop {
        let datagrams = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        if let Ok(listener) = TcpListener::bind(datagrams.local_addr().unwrap()).await {
            break (datagrams, listener);
        }
    };
    let address = datagrams.local_addr().unwrap();
    let over_udp = Arc::clone(&say);
    tokio::spawn(async move {
        let mut question = vec![0; 4096];
        loop {
            let (length, from) = datagrams.recv_from(&mut question).await.unwrap();
            if let Some(mut answer) = answer(&question[..length], over_udp.as_ref()) {
                if answer.len() > DATAGRAM_BYTES_MAX {
                    // Cut off, and it says so; records are no use then.
                    let end = end_of_question(&answer);
                    answer.truncate(end);
                    answer[2] |= 0x02;
                    answer[6..8].copy_from_slice(&[0, 0]);
                }
                datagrams.send_to(&answer, from).await.unwrap();
            }
        }
    });
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let say = Arc::clone(&say);
            tokio::spawn(async move {
                while let Ok(length) = stream.read_u16().await {
                    let mut question = vec![0; usize::from(length)];
                    stream.read_exact(&mut question).await.unwrap();
                    let Some(answer) = answer(&question, say.as_ref()) else { continue };
                    stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            });
        }
    });
    address
}

fn end_of_question(message: &[u8]) -> usize {
    let mut place = 12;
    while message[place] != 0 {
        place += 1 + usize::from(message[place]);
    }
    place + 5
}

fn answer(question: &[u8], say: &(dyn Fn(&str) -> Answer + Send + Sync)) -> Option<Vec<u8>> {
    let end = end_of_question(question);
    let mut labels = Vec::new();
    let mut place = 12;
    while question[place] != 0 {
        let length = usize::from(question[place]);
        labels.push(String::from_utf8_lossy(&question[place + 1..=place + length]).to_ascii_lowercase());
        place += 1 + length;
    }
    let kind = question[end - 3];
    let said = say(&labels.join("."));
    let mut records = Vec::new();
    let mut count: u16 = 0;
    let mut record = |kind: u8, data: &[u8]| {
        // The name is the one at byte 12 of this message.
        records.extend_from_slice(&[0xc0, 12, 0, kind, 0, 1]);
        records.extend_from_slice(&SECONDS_TO_LIVE.to_be_bytes());
        records.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
        records.extend_from_slice(data);
        count += 1;
    };
    let code = match said {
        Answer::Silence => return None,
        Answer::Garbage => return Some(vec![0xff; 40]),
        Answer::NoSuchName => 3,
        Answer::ServerFailure => 2,
        Answer::Refused => 5,
        Answer::Alias(to) => {
            let mut name = Vec::new();
            for label in to.split('.') {
                name.push(u8::try_from(label.len()).unwrap());
                name.extend_from_slice(label.as_bytes());
            }
            name.push(0);
            record(5, &name);
            0
        }
        Answer::Addresses(addresses) => {
            for address in addresses {
                match (address, kind) {
                    (IpAddr::V4(four), 1) => record(1, &four.octets()),
                    (IpAddr::V6(six), 28) => record(28, &six.octets()),
                    (IpAddr::V4(_) | IpAddr::V6(_), _) => {}
                }
            }
            0
        }
    };
    let mut message = question[..2].to_vec();
    message.extend_from_slice(&[0x81, 0x80 | code, 0, 1]);
    message.extend_from_slice(&count.to_be_bytes());
    message.extend_from_slice(&[0, 0, 0, 0]);
    message.extend_from_slice(&question[12..end]);
    message.extend_from_slice(&records);
    Some(message)
}
