//! Where connections are made, and where addresses are judged.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use posthaste_core::delivery::NoConnection;
use tokio::net::{TcpStream, lookup_host};

use crate::address::Egress;

/// Resolves, judges, and dials what it has judged.
#[derive(Clone)]
pub(crate) struct GuardedConnector {
    pub(crate) egress: Arc<Egress>,
}

/// Why there is no connection. Nothing was sent.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// One of the addresses is not permitted. All must be, or a name could mix them.
    Blocked,
    Failed(NoConnection, std::io::Error),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Which address it was is the operator's business: a tenant could read out internal names.
            ConnectError::Blocked => f.write_str("the address is not one that deliveries may go to"),
            ConnectError::Failed(NoConnection::Dns, error) => write!(f, "the name could not be resolved: {error}"),
            ConnectError::Failed(NoConnection::Connect | NoConnection::Tls, error) => write!(f, "could not connect: {error}"),
        }
    }
}

impl std::error::Error for ConnectError {}

impl GuardedConnector {
    async fn connect(self, uri: Uri) -> Result<Guarded, ConnectError> {
        let dns = |error| ConnectError::Failed(NoConnection::Dns, error);
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = match uri.port() {
            None => 80,
            Some(port) => port.as_u16(),
        };
        let addresses: Vec<SocketAddr> = lookup_host((host, port)).await.map_err(dns)?.collect();
        if addresses.iter().any(|address| !self.egress.permits(address.ip())) {
            return Err(ConnectError::Blocked);
        }
        let first = addresses.first().ok_or_else(|| dns(std::io::Error::other("no address")))?;
        let stream = TcpStream::connect(first).await.map_err(|error| ConnectError::Failed(NoConnection::Connect, error))?;
        // One small write per request: waiting for more would only add delay.
        let _ = stream.set_nodelay(true);
        Ok(Guarded(TokioIo::new(stream)))
    }
}

impl tower_service::Service<Uri> for GuardedConnector {
    type Response = Guarded;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Guarded, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// A connection to an address that was judged.
pub(crate) struct Guarded(TokioIo<TcpStream>);

impl Connection for Guarded {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
