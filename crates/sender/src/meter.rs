//! Bounds what a connection may read, whatever speaks HTTP above it believes, and by when a request has to be on its way.
//!
//! Each request brings an allowance. A receiver that has used it up, by a body, by headers, by frames that say nothing, finds
//! its connection broken. Between requests it may say a little: that it is closing, or that it is still there.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What may be read for one request: the head and the body together.
pub(crate) const RESPONSE_BYTES_MAX: u64 = 64 * 1024;
/// What may be read while nothing was asked.
const IDLE_BYTES_MAX: u64 = 8 * 1024;

#[derive(Debug)]
pub(crate) struct Meter {
    left: AtomicU64,
    made_at: Instant,
    /// In milliseconds since then.
    first_byte_by: AtomicU64,
}

const ANY_TIME: u64 = u64::MAX;

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter { left: AtomicU64::new(IDLE_BYTES_MAX), made_at: Instant::now(), first_byte_by: AtomicU64::new(ANY_TIME) }
    }

    /// What comes next is begun by then or not at all: the whole process may stand still between here and the wire.
    pub(crate) fn first_byte_by(&self, deadline: Instant) {
        let millis = u64::try_from(deadline.saturating_duration_since(self.made_at).as_millis()).unwrap_or(ANY_TIME);
        self.first_byte_by.store(millis, Ordering::Relaxed);
    }

    fn may_write(&self) -> io::Result<()> {
        let by = self.first_byte_by.load(Ordering::Relaxed);
        if by == ANY_TIME || self.made_at.elapsed().as_millis() < u128::from(by) {
            return Ok(());
        }
        Err(io::Error::other("it is too late to begin with the request"))
    }

    /// Once it has begun it may take its time.
    fn written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(bytes)) if bytes > 0) {
            self.first_byte_by.store(ANY_TIME, Ordering::Relaxed);
        }
        written
    }

    /// One more request; now there are `under_way`, itself included. What those before it left over is not hoarded.
    pub(crate) fn begin(&self, under_way: usize) {
        let others = RESPONSE_BYTES_MAX.saturating_mul(under_way.saturating_sub(1) as u64);
        self.change(|left| left.min(others) + RESPONSE_BYTES_MAX);
    }

    /// Nothing is under way any more.
    pub(crate) fn rest(&self) {
        self.left.store(IDLE_BYTES_MAX, Ordering::Relaxed);
        self.first_byte_by.store(ANY_TIME, Ordering::Relaxed);
    }

    fn change(&self, to: impl Fn(u64) -> u64) {
        // Answers `Ok` always: there is always a next value.
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(to(left)));
    }
}

/// A stream that is read only as far as its meter allows.
pub(crate) struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub(crate) fn new(stream: S, meter: Arc<Meter>) -> Metered<S> {
        Metered { stream, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let left = this.meter.left.load(Ordering::Relaxed);
        if left == 0 {
            return Poll::Ready(Err(io::Error::other("the receiver sent more than is read of an answer")));
        }
        let read = if left < buffer.remaining() as u64 {
            // Near the end, through a buffer that cannot take too much.
            let mut near = [0; 4096];
            let room = usize::try_from(left).unwrap_or(near.len()).min(near.len());
            let mut part = ReadBuf::new(&mut near[..room]);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut part))?;
            buffer.put_slice(part.filled());
            part.filled().len()
        } else {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            buffer.filled().len() - before
        };
        this.meter.change(|left| left.saturating_sub(read as u64));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.meter.may_write()?;
        this.meter.written(Pin::new(&mut this.stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.meter.may_write()?;
        this.meter.written(Pin::new(&mut this.stream).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn not_a_byte_beyond_the_allowance_is_read() {
        let endless = tokio::io::repeat(b'x');
        let meter = Arc::new(Meter::new());
        meter.begin(1);
        let mut metered = Metered::new(endless, Arc::clone(&meter));
        let mut read = Vec::new();
        assert!(metered.read_to_end(&mut read).await.is_err());
        assert_eq!(read.len() as u64, RESPONSE_BYTES_MAX);
        meter.begin(1);
        meter.begin(2);
        read.clear();
        assert!(metered.read_to_end(&mut read).await.is_err());
        assert_eq!(read.len() as u64, 2 * RESPONSE_BYTES_MAX);
        meter.begin(1);
        meter.rest();
        read.clear();
        assert!(metered.read_to_end(&mut read).await.is_err());
        assert_eq!(read.len() as u64, IDLE_BYTES_MAX, "what a request left over does not last");
    }

    #[tokio::test]
    async fn a_request_is_begun_in_time_or_not_at_all_and_then_takes_its_time() {
        use tokio::io::AsyncWriteExt;
        let meter = Arc::new(Meter::new());
        let mut metered = Metered::new(tokio::io::sink(), Arc::clone(&meter));
        let now = Instant::now();
        meter.first_byte_by(now + std::time::Duration::from_mins(1));
        metered.write_all(b"in time").await.unwrap();
        meter.first_byte_by(now);
        assert!(metered.write_all(b"too late").await.is_err());
        meter.written(Poll::Ready(Ok(1))).is_ready();
        metered.write_all(b"the rest of what has begun").await.unwrap();
    }
}
