//! TLS for callers of the API: the certificate that is shown, read again when asked, and streams that begin with a handshake.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use anyhow::{Context as _, anyhow};
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::keys::refuse_if_loose;

/// Whose bits of the key's mode are refused: a group may read it, as many certificate tools have it.
const OTHERS: u32 = 0o037;

/// The certificate and the key that are shown to callers.
pub(crate) struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    /// Written by a reload, read by every new connection.
    config: RwLock<Arc<ServerConfig>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Tls {
    pub(crate) fn load(certificate: PathBuf, key: PathBuf) -> anyhow::Result<Tls> {
        let config = read(&certificate, &key)?;
        Ok(Tls { certificate, key, config: RwLock::new(config) })
    }

    /// Reads both files again, for connections from now on. If they cannot be used, what was there before stays.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        let config = read(&self.certificate, &self.key)?;
        *self.config.write() = config;
        Ok(())
    }

    /// The handshake is made when somebody first reads.
    pub(crate) fn accept(&self, stream: TcpStream) -> CallerStream {
        let config = Arc::clone(&self.config.read());
        CallerStream::Handshake(Box::new(TlsAcceptor::from(config).accept(stream)))
    }
}

fn read(certificate: &PathBuf, key: &PathBuf) -> anyhow::Result<Arc<ServerConfig>> {
    refuse_if_loose(key, OTHERS)?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| anyhow!("the certificate {} cannot be read: {error}", certificate.display()))?;
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| anyhow!("the key {} cannot be read: {error}", key.display()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider speaks TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| format!("the certificate {} and the key {} cannot be used", certificate.display(), key.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// What a caller's connection is read from and written to.
pub(crate) enum CallerStream {
    Plain(TcpStream),
    /// It has not been finished; whoever serves the connection bounds the time for it, as for the head of a request.
    Handshake(Box<Accept<TcpStream>>),
    Secured(Box<TlsStream<TcpStream>>),
    Broken,
}

impl CallerStream {
    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let CallerStream::Handshake(accept) = self else { return Poll::Ready(Ok(())) };
        match ready!(Pin::new(accept.as_mut()).poll(context)) {
            Ok(stream) => {
                *self = CallerStream::Secured(Box::new(stream));
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                *self = CallerStream::Broken;
                Poll::Ready(Err(error))
            }
        }
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "there was no TLS handshake")
}

impl AsyncRead for CallerStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_handshake(context))?;
        match &mut *self {
            CallerStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            CallerStream::Secured(stream) => Pin::new(stream).poll_read(context, buffer),
            CallerStream::Handshake(_) | CallerStream::Broken => Poll::Ready(Err(broken())),
        }
    }
}

impl AsyncWrite for CallerStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_handshake(context))?;
        match &mut *self {
            CallerStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            CallerStream::Secured(stream) => Pin::new(stream).poll_write(context, bytes),
            CallerStream::Handshake(_) | CallerStream::Broken => Poll::Ready(Err(broken())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            CallerStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            CallerStream::Secured(stream) => Pin::new(stream).poll_flush(context),
            // Nothing was written yet.
            CallerStream::Handshake(_) | CallerStream::Broken => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            CallerStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            CallerStream::Secured(stream) => Pin::new(stream).poll_shutdown(context),
            CallerStream::Handshake(_) | CallerStream::Broken => Poll::Ready(Ok(())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_handshake(context))?;
        match &mut *self {
            CallerStream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            CallerStream::Secured(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            CallerStream::Handshake(_) | CallerStream::Broken => Poll::Ready(Err(broken())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            CallerStream::Plain(stream) => stream.is_write_vectored(),
            CallerStream::Secured(stream) => stream.is_write_vectored(),
            CallerStream::Handshake(_) | CallerStream::Broken => true,
        }
    }
}
