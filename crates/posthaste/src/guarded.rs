//! A connection of a caller, guarded: below the HTTP library, which has no limits for these.
//!
//! | what a caller could do | what is done about it |
//! |---|---|
//! | send heads that can be read in two ways | refused ([`crate::framing`]) |
//! | begin large heads and never finish them | their bytes are counted, for all and for one address ([`Heads`]) |
//! | ask, and never read the answers | what is written has to be taken at a minimum rate ([`Stall`]) |
//!
//! The library's own refusals (400, 414, 431) have no body. They pass through here, and get one.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::framing::{Framing, Refusal};
use crate::tls::CallerStream;

/// What the library is given in place of a head that was refused: it refuses this, in its turn, behind the answers to what came before.
/// No part of a head may have a zero, and it ends no line, because an empty one would complete the head.
const POISON: &[u8] = b"\0\r\n\r\n";
/// How long a caller may take nothing of an answer, and how fast it has to take it from then on.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
const TAKEN_BYTES_PER_SECOND: u64 = 16 * 1024;

pub(crate) struct Guarded {
    stream: CallerStream,
    framing: Framing,
    held: Held,
    refused: Option<Refusal>,
    has_been_poisoned: bool,
    stall: Option<Stall>,
    /// What is left of an answer that we write in place of the library's.
    substitute: Option<(Vec<u8>, usize)>,
}

impl Guarded {
    pub(crate) fn new(stream: CallerStream, held: Held) -> Guarded {
        Guarded {
            stream,
            framing: Framing::default(),
            held,
            refused: None,
            has_been_poisoned: false,
            stall: None,
            substitute: None,
        }
    }

    fn look_at(&mut self, arrived: &[u8]) -> Result<(), (usize, Refusal)> {
        self.framing.pass(arrived)?;
        self.held.set(self.framing.head_bytes()).map_err(|NoRoom| (0, Refusal::NoRoom))
    }

    /// What came of a write. A caller that does not read is given up.
    fn after_write(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                if let Some(stall) = &mut self.stall {
                    stall.taken += bytes as u64;
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let stall = self.stall.get_or_insert_with(Stall::new);
                stall.poll(context).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the caller does not read its answers")))
            }
        }
    }

    /// Writes what stands in the place of the library's answer.
    fn poll_substitute(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((answer, at)) = &mut self.substitute {
            if *at == answer.len() {
                break;
            }
            let written = Pin::new(&mut self.stream).poll_write(context, &answer[*at..]);
            if let Poll::Ready(Ok(bytes)) = &written {
                *at += bytes;
            }
            ready!(self.after_write(context, written))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.refused.is_some() {
            if !self.has_been_poisoned && buffer.remaining() >= POISON.len() {
                self.has_been_poisoned = true;
                buffer.put_slice(POISON);
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if let Err((place, refusal)) = self.look_at(&buffer.filled()[before..]) {
            self.refused = Some(refusal);
            buffer.set_filled(before + place);
            if place == 0 && buffer.remaining() >= POISON.len() {
                self.has_been_poisoned = true;
                buffer.put_slice(POISON);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.substitute.is_none()
            && let Some(status) = of_the_library(bytes)
        {
            let answer = answer(status, self.refused);
            self.substitute = Some((answer, 0));
        }
        if self.substitute.is_some() {
            ready!(self.poll_substitute(context))?;
            // The library is done with this connection, and hears that all of it was written.
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.after_write(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        // All of it was taken: the next answer begins anew.
        self.stall = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = slices.iter().find(|slice| !slice.is_empty());
        if self.substitute.is_some() || first.is_some_and(|slice| of_the_library(slice).is_some()) {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            return self.poll_write(context, &bytes);
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.after_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// The status of an answer that the library has made by itself: ours of these statuses have bodies.
fn of_the_library(bytes: &[u8]) -> Option<u16> {
    let status = bytes.strip_prefix(b"HTTP/1.1 4").and_then(|rest| rest.get(..2))?;
    let status = match status {
        b"00" => 400,
        b"14" => 414,
        b"31" => 431,
        _ => return None,
    };
    let is_empty =
        bytes.ends_with(b"\r\n\r\n") && bytes.windows(19).any(|part| part.eq_ignore_ascii_case(b"content-length: 0\r\n"));
    is_empty.then_some(status)
}

/// The same as problem details.
fn answer(status: u16, refused: Option<Refusal>) -> Vec<u8> {
    let (status, reason, page, title, detail) = match (status, refused) {
        (_, Some(Refusal::NoRoom)) => (
            503,
            "Service Unavailable",
            "unavailable",
            "Not able to serve this now",
            "Too many unfinished requests are in memory. Nothing was stored; try again after the time in the Retry-After header.",
        ),
        (414, _) | (_, Some(Refusal::AddressTooLong)) => (
            414,
            "URI Too Long",
            "address-too-long",
            "The address is too long",
            "The address with its query is longer than 8192 bytes.",
        ),
        (431, _) | (_, Some(Refusal::HeadersTooLarge)) => (
            431,
            "Request Header Fields Too Large",
            "headers-too-large",
            "The headers are too large",
            "There are more than 100 headers, or together they are larger than 32768 bytes.",
        ),
        (_, Some(Refusal::Line)) => (
            400,
            "Bad Request",
            "unreadable",
            "The request cannot be read",
            "A line of the head ends without a carriage return, or goes on in the next line.",
        ),
        (_, Some(Refusal::Length)) => (
            400,
            "Bad Request",
            "unreadable",
            "The request cannot be read",
            "Where the body ends can be read in two ways: send one Content-Length, or Transfer-Encoding: chunked.",
        ),
        (_, None) => (400, "Bad Request", "unreadable", "The request cannot be read", "The head of the request is not HTTP/1.1."),
    };
    let body =
        serde_json::json!({"type": format!("/docs/errors/{page}"), "title": title, "status": status, "detail": detail}).to_string();
    let retry = if status == 503 { "retry-after: 1\r\n" } else { "" };
    let length = body.len();
    format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/problem+json\r\n{retry}connection: close\r\n\
         x-content-type-options: nosniff\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// An answer that is not being taken.
struct Stall {
    began: Instant,
    taken: u64,
    timer: Pin<Box<Sleep>>,
}

impl Stall {
    fn new() -> Stall {
        let began = Instant::now();
        Stall { began, taken: 0, timer: Box::pin(sleep_until(began + TAKEN_WITHIN)) }
    }

    /// Ready when it has taken too long.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(context));
            let until = self.began + TAKEN_WITHIN + Duration::from_millis(self.taken.saturating_mul(1000) / TAKEN_BYTES_PER_SECOND);
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(until);
        }
    }
}

/// What all unfinished heads together may keep, beyond the beginning of each.
const HEADS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The beginning of a head, which is counted against nobody: all that ordinary clients send.
const SMALL_HEAD_BYTES: usize = 4 * 1024;
const UNIT_BYTES: usize = 4 * 1024;

/// The bytes of unfinished heads: an address has at most as many as are left free.
#[derive(Default, Debug)]
pub(crate) struct Heads(Mutex<HeadsHeld>);

#[derive(Default, Debug)]
struct HeadsHeld {
    bytes: usize,
    by_address: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
pub(crate) struct NoRoom;

impl Heads {
    /// For one connection. `address` is `None` where many callers come from one.
    pub(crate) fn held(self: &Arc<Heads>, address: Option<IpAddr>) -> Held {
        Held { heads: Arc::clone(self), address, bytes: 0 }
    }
}

/// What one connection keeps.
#[derive(Debug)]
pub(crate) struct Held {
    heads: Arc<Heads>,
    address: Option<IpAddr>,
    bytes: usize,
}

impl Held {
    fn set(&mut self, head_bytes: usize) -> Result<(), NoRoom> {
        let wanted = head_bytes.saturating_sub(SMALL_HEAD_BYTES).div_ceil(UNIT_BYTES) * UNIT_BYTES;
        if wanted == self.bytes {
            return Ok(());
        }
        let mut held = self.heads.0.lock();
        if wanted > self.bytes {
            let more = wanted - self.bytes;
            let free = HEADS_BYTES_MAX - held.bytes;
            let of_address = self.address.and_then(|address| held.by_address.get(&address)).copied().unwrap_or(0);
            if more > free || of_address + more > free {
                return Err(NoRoom);
            }
            held.bytes += more;
            if let Some(address) = self.address {
                *held.by_address.entry(address).or_default() += more;
            }
        } else {
            let less = self.bytes - wanted;
            held.bytes -= less;
            if let Some(address) = self.address
                && let Some(of_address) = held.by_address.get_mut(&address)
            {
                *of_address -= less;
                if *of_address == 0 {
                    held.by_address.remove(&address);
                }
            }
        }
        drop(held);
        self.bytes = wanted;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_heads_are_counted_for_all_and_for_each_address() {
        let heads = Arc::new(Heads::default());
        let fill = |address: Option<IpAddr>| -> Vec<Held> {
            let one = |_| {
                let mut held = heads.held(address);
                held.set(SMALL_HEAD_BYTES + 32 * 1024).is_ok().then_some(held)
            };
            (0..10_000).map_while(one).collect()
        };
        let attacker = fill(Some([192, 0, 2, 1].into()));
        assert_eq!(attacker.len(), HEADS_BYTES_MAX / 2 / (32 * 1024), "half of everything");
        let neighbour = fill(Some([192, 0, 2, 2].into()));
        assert!(neighbour.len() > 100, "{}", neighbour.len());
        let proxy = fill(None);
        assert!(!proxy.is_empty());
        let mut small = heads.held(Some([192, 0, 2, 1].into()));
        assert!(small.set(SMALL_HEAD_BYTES).is_ok(), "an ordinary head needs no room");
        drop((attacker, neighbour, proxy, small));
        let held = heads.0.lock();
        assert_eq!((held.bytes, held.by_address.len()), (0, 0));
    }

    #[test]
    fn what_the_library_answers_by_itself_is_recognized_and_nothing_else() {
        let own = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(of_the_library(own), Some(400));
        for other in [
            &b"HTTP/1.1 400 Bad Request\r\ncontent-length: 10\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            b"{\"a\": 1}",
            b"",
        ] {
            assert_eq!(of_the_library(other), None);
        }
        for refusal in [Refusal::Line, Refusal::Length, Refusal::AddressTooLong, Refusal::HeadersTooLarge, Refusal::NoRoom] {
            let answer = String::from_utf8(answer(400, Some(refusal))).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{answer}");
            let problem: serde_json::Value = serde_json::from_str(body).unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {} ", problem["status"])), "{answer}");
        }
    }
}
