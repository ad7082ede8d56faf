//! Through an operator's proxy: a tunnel to the address that was judged, never to a name that the proxy would resolve anew.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::options::Proxy;

/// What a proxy may say before the tunnel begins.
const ANSWER_BYTES_MAX: usize = 8 * 1024;

/// Asks for a tunnel. What the proxy says instead is told by its status alone.
pub(crate) async fn open_tunnel(stream: &mut TcpStream, proxy: &Proxy, to: SocketAddr) -> io::Result<()> {
    let authorization = proxy.authorization.as_ref().map(|value| format!("Proxy-Authorization: {value}\r\n")).unwrap_or_default();
    let question = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{authorization}\r\n");
    stream.write_all(question.as_bytes()).await?;
    let mut answer = Vec::with_capacity(512);
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.windows(4).any(|window| window == b"\r\n\r\n") || answer.len() >= ANSWER_BYTES_MAX {
            return Err(io::Error::other("the proxy's answer makes no sense"));
        }
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::Error::other("the proxy closed the connection"));
        }
    }
    match status(&answer) {
        Some(200..=299) => Ok(()),
        Some(status) => Err(io::Error::other(format!("the proxy answered {status}"))),
        None => Err(io::Error::other("the proxy's answer makes no sense")),
    }
}

/// From `HTTP/1.1 200 …`.
fn status(answer: &[u8]) -> Option<u16> {
    let rest = answer.strip_prefix(b"HTTP/1.1 ").or_else(|| answer.strip_prefix(b"HTTP/1.0 "))?;
    std::str::from_utf8(rest.get(..3)?).ok()?.parse().ok().filter(|status| (100..=999).contains(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_or_the_answer_makes_no_sense() {
        assert_eq!(status(b"HTTP/1.1 200 Connection established\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 407 Proxy Authentication Required\r\n\r\n"), Some(407));
        for bad in [&b""[..], b"HTTP/1.1 20", b"HTTP/2 200 \r\n\r\n", b"HTTP/1.1 +20 ", b"HTTP/1.1 abc ", b"HTTP/1.1 \xff\xff\xff"]
        {
            assert_eq!(status(bad), None, "{bad:?}");
        }
    }
}
