//! One connection to a receiver, over which requests go one after another (HTTP/1.1) or side by side (HTTP/2).

use std::error::Error;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, Response, Uri, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use posthaste_core::destination::Destination;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use crate::meter::{Meter, Metered};
use crate::request::Address;

/// The head of an answer. Enough for any framework's cookies and policies; beyond it somebody tries something.
const HEAD_BYTES_MAX: usize = 32 * 1024;
const HEADERS_MAX: usize = 256;
/// What an HTTP/2 receiver may send of a body before we have read any: the other half of what is read of an answer.
const WINDOW_BYTES: u32 = 32 * 1024;
/// How many requests share an HTTP/2 connection. One that gets stuck takes no more than these with it.
const STREAMS_MAX: usize = 64;

type Body = Full<Bytes>;

/// Cloned only where requests go side by side. Closed when the last clone is dropped.
pub(crate) struct Connection {
    wire: Wire,
    facts: Arc<Facts>,
}

enum Wire {
    Http1 { send: http1::SendRequest<Body>, driver: Driver },
    Http2(http2::SendRequest<Body>),
}

/// What moves the bytes of an HTTP/1.1 connection. No task of its own does that, which would have to be woken for every request and then
/// wake whoever waits for the answer: they do it themselves. Between requests nobody does. `None` once it has ended.
struct Driver(Option<Box<http1::Connection<TokioIo<Metered<Stream>>, Body>>>);

impl Driver {
    /// Waits for that, which needs bytes to be moved.
    async fn drive<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        let mut awaited = pin!(awaited);
        poll_fn(|context| {
            self.step(context);
            awaited.as_mut().poll(context)
        })
        .await
    }

    fn step(&mut self, context: &mut Context<'_>) {
        // How it ended is told to whoever waits for an answer.
        if self.0.as_mut().is_some_and(|connection| Pin::new(connection).poll(context).is_ready()) {
            self.0 = None;
        }
    }
}

/// What the pool has to know of a connection.
pub(crate) struct Facts {
    pub(crate) destination: Destination,
    /// The address that was judged.
    pub(crate) address: IpAddr,
    pub(crate) made_at: Instant,
    /// When its address was last found to be one that its name leads to and that deliveries may go to.
    pub(crate) judged_at: Mutex<Instant>,
    pub(crate) meter: Arc<Meter>,
    multiplexer: Option<Multiplexer>,
    tasks: Tasks,
}

type Http2 = http2::Connection<TokioIo<Metered<Stream>>, Body, Tasks>;
/// Shared with the task that drives it, which takes it out at its end: only then is the connection seen to be closed.
type Multiplexer = Arc<Mutex<Option<Http2>>>;

impl Drop for Facts {
    fn drop(&mut self) {
        // Whatever the receiver is still sending, or not reading, nobody waits for it any more.
        self.tasks.0.lock().abort_all();
    }
}

/// What runs for an HTTP/2 connection, so that it can be ended with it.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let mut tasks = self.0.lock();
        // Those that have ended are forgotten.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// Asked at the last moment: by when a request has to be on its way, or `None` if it may not be sent any more.
pub type MaySend<'a> = &'a (dyn Fn() -> Option<Instant> + Send + Sync);

/// Why there is no answer.
pub(crate) enum SendError {
    /// Not a byte of it was written. Here it is back.
    Unsent(Box<Request<Body>>, hyper::Error),
    /// It may not be sent any more, and was not.
    Forbidden,
    /// It may have been seen, unless the receiver has said that it was not.
    Lost { error: hyper::Error, was_refused: bool },
}

impl Connection {
    pub(crate) async fn over(stream: Stream, destination: Destination, address: IpAddr) -> hyper::Result<Connection> {
        let meter = Arc::new(Meter::new());
        // The first request is as good as under way: a receiver may introduce itself at length.
        meter.begin(1);
        let is_http2 = stream.is_http2();
        let io = TokioIo::new(Metered::new(stream, Arc::clone(&meter)));
        let tasks = Tasks::default();
        let (wire, multiplexer) = if is_http2 {
            let (send, connection) = http2::Builder::new(tasks.clone())
                .timer(TokioTimer::new())
                .initial_stream_window_size(WINDOW_BYTES)
                .initial_connection_window_size(WINDOW_BYTES * 4)
                .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).expect("it is 32 KiB"))
                .max_send_buf_size(64 * 1024)
                .handshake(io)
                .await?;
            let multiplexer = Arc::new(Mutex::new(Some(connection)));
            let driven = Arc::clone(&multiplexer);
            tasks.execute(poll_fn(move |context| {
                let mut driven = driven.lock();
                let Some(connection) = driven.as_mut() else { return Poll::Ready(()) };
                // How it ended is told to whoever waits for an answer.
                let ended = Pin::new(connection).poll(context).map(|_| ());
                if ended.is_ready() {
                    *driven = None;
                }
                ended
            }));
            (Wire::Http2(send), Some(multiplexer))
        } else {
            let (send, connection) = http1::Builder::new()
                .max_buf_size(HEAD_BYTES_MAX)
                .max_headers(HEADERS_MAX)
                // Receivers are not ours to correct.
                .ignore_invalid_headers_in_responses(true)
                .allow_spaces_after_header_name_in_responses(true)
                .allow_obsolete_multiline_headers_in_responses(true)
                .handshake(io)
                .await?;
            (Wire::Http1 { send, driver: Driver(Some(Box::new(connection))) }, None)
        };
        let made_at = Instant::now();
        let judged_at = Mutex::new(made_at);
        let facts = Arc::new(Facts { destination, address, made_at, judged_at, meter, multiplexer, tasks });
        Ok(Connection { wire, facts })
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// As far as it is known: of one that nobody has used since, look first.
    pub(crate) fn is_closed(&self) -> bool {
        match &self.wire {
            Wire::Http1 { send, .. } => send.is_closed(),
            Wire::Http2(send) => send.is_closed(),
        }
    }

    /// Notices what the other side has done to a connection that nobody uses.
    pub(crate) fn look(&mut self) {
        if let Wire::Http1 { driver, .. } = &mut self.wire {
            driver.step(&mut Context::from_waker(Waker::noop()));
        }
    }

    /// Waits for something that comes over this connection, after [`Connection::send`].
    pub(crate) async fn drive<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        match &mut self.wire {
            Wire::Http1 { driver, .. } => driver.drive(awaited).await,
            Wire::Http2(_) => awaited.await,
        }
    }

    /// How many requests it takes at a time, by the receiver's wish and ours.
    pub(crate) fn streams_max(&self) -> usize {
        match &self.facts.multiplexer {
            None => 1,
            Some(multiplexer) => {
                multiplexer.lock().as_ref().map_or(0, |connection| connection.current_max_send_streams().min(STREAMS_MAX))
            }
        }
    }

    /// The same connection once more, where several requests can share it.
    pub(crate) fn shared(&self) -> Option<Connection> {
        match &self.wire {
            Wire::Http1 { .. } => None,
            Wire::Http2(send) => Some(Connection { wire: Wire::Http2(send.clone()), facts: Arc::clone(&self.facts) }),
        }
    }

    /// Sends, and waits for the head of an answer. `to` is where the request goes, whatever its own URI has been made.
    /// `may_send` is asked at the last moment.
    pub(crate) async fn send(
        &mut self,
        may_send: MaySend<'_>,
        mut request: Request<Body>,
        to: &Address,
    ) -> Result<Response<Incoming>, SendError> {
        match &mut self.wire {
            Wire::Http1 { send, driver } => {
                // It may have been closed, or be finishing the answer before.
                if let Err(error) = driver.drive(send.ready()).await {
                    return Err(SendError::Unsent(Box::new(request), error));
                }
                let Some(deadline) = may_send() else { return Err(SendError::Forbidden) };
                self.facts.meter.first_byte_by(deadline);
                *request.version_mut() = Version::HTTP_11;
                *request.uri_mut() = to.url.path_and_query().map_or(Uri::from_static("/"), |path| Uri::from(path.clone()));
                if !request.headers().contains_key(HOST) {
                    request.headers_mut().insert(HOST, to.host.clone());
                }
                driver.drive(send.try_send_request(request)).await.map_err(not_sent)
            }
            Wire::Http2(send) => {
                let Some(deadline) = may_send() else { return Err(SendError::Forbidden) };
                self.facts.meter.first_byte_by(deadline);
                *request.version_mut() = Version::HTTP_2;
                *request.uri_mut() = to.url.clone();
                request.headers_mut().remove(HOST);
                send.try_send_request(request).await.map_err(not_sent)
            }
        }
    }
}

fn not_sent(mut error: hyper::client::conn::TrySendError<Request<Body>>) -> SendError {
    let unsent = error.take_message();
    let error = error.into_error();
    match unsent {
        Some(request) => SendError::Unsent(Box::new(request), error),
        None => SendError::Lost { was_refused: was_refused(&error), error },
    }
}

/// HTTP/2 lets a receiver say that it has not looked at a request: it is closing, or has enough to do.
fn was_refused(error: &hyper::Error) -> bool {
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<h2::Error>()) else { return false };
    error.reason() == Some(h2::Reason::REFUSED_STREAM) || (error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR))
}

/// What bytes go over.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn is_http2(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
