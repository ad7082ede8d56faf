//! TLS to PostgreSQL: which certificates are trusted, and the adapter between tokio-postgres and rustls.
//!
//! Refuses a file that cannot be used when the URL is read. The files are read again for every connection, so that renewed
//! certificates are used without a restart.

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

use crate::Error;

/// `sslmode`, as libpq defines it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Disable,
    /// Plain text if the server does not speak TLS.
    Prefer,
    /// TLS with any certificate.
    Require,
    /// The certificate has to be signed by a trusted authority.
    VerifyCa,
    /// The certificate also has to be for the host of the URL.
    VerifyFull,
}

impl Mode {
    pub(super) fn parse(text: &str) -> Option<Mode> {
        match text {
            "disable" => Some(Mode::Disable),
            "prefer" => Some(Mode::Prefer),
            "require" => Some(Mode::Require),
            "verify-ca" => Some(Mode::VerifyCa),
            "verify-full" => Some(Mode::VerifyFull),
            _ => None,
        }
    }
}

/// `sslrootcert`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Roots {
    /// The certificates that the operating system trusts.
    System,
    File(PathBuf),
}

/// What a URL says about TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TlsSettings {
    pub(super) mode: Mode,
    pub(super) roots: Option<Roots>,
    /// `sslcert` and `sslkey`.
    pub(super) client_certificate: Option<(PathBuf, PathBuf)>,
}

/// Mode bits of a key file that are refused: a group may read it, as many certificate tools have it.
const LOOSE_MODE: u32 = 0o037;

impl TlsSettings {
    /// Reads the files that are named.
    pub(super) fn client_config(&self) -> Result<Arc<ClientConfig>, Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = self.verifier(&provider)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider speaks TLS 1.2 and 1.3")
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &self.client_certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = read_certificates(certificate, "sslcert")?;
                builder.with_client_auth_cert(chain, read_key(key)?).map_err(|error| {
                    let (certificate, key) = (certificate.display(), key.display());
                    Error::Unusable(format!("sslcert {certificate} and sslkey {key} cannot be used together: {error}"))
                })?
            }
        };
        // PostgreSQL 17 asks for it if TLS begins without a question; older servers ignore it.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Arc::new(config))
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, Error> {
        let checks_name = match (self.mode, &self.roots) {
            (Mode::VerifyFull, _) => true,
            (Mode::VerifyCa, _) | (Mode::Require, Some(_)) => false,
            (Mode::Disable | Mode::Prefer, _) | (Mode::Require, None) => {
                return Ok(Arc::new(AnyCertificate(Arc::clone(provider))));
            }
        };
        let roots = Arc::new(read_roots(self.roots.as_ref().unwrap_or(&Roots::System))?);
        let chain = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
            .build()
            .map_err(|error| Error::Unusable(format!("sslrootcert cannot be used: {error}")))?;
        Ok(if checks_name { chain } else { Arc::new(AnyName(chain)) })
    }
}

fn read_roots(roots: &Roots) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    match roots {
        Roots::System => {
            // Single certificates that cannot be read are common, and do not matter as long as others can.
            let (added, _) = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                return Err(Error::Unusable(
                    "this machine has no root certificates to check the database's certificate with; name a file with \
                     sslrootcert=… in the database URL"
                        .to_owned(),
                ));
            }
        }
        Roots::File(path) => {
            for certificate in read_certificates(path, "sslrootcert")? {
                store.add(certificate).map_err(unreadable("sslrootcert", path))?;
            }
        }
    }
    Ok(store)
}

fn read_certificates(path: &Path, parameter: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(unreadable(parameter, path))?;
    if certificates.is_empty() {
        return Err(unreadable(parameter, path)("there is no certificate in PEM form"));
    }
    Ok(certificates)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let mode = std::fs::metadata(path).map_err(unreadable("sslkey", path))?.mode();
    if mode & LOOSE_MODE != 0 {
        let shown = path.display();
        return Err(Error::Unusable(format!("others can read or write sslkey {shown} of the database URL: chmod 600 {shown}")));
    }
    PrivateKeyDer::from_pem_file(path).map_err(unreadable("sslkey", path))
}

fn unreadable<E: Display>(parameter: &'static str, path: &Path) -> impl Fn(E) -> Error {
    move |error| Error::Unusable(format!("{parameter} {} of the database URL cannot be read: {error}", path.display()))
}

/// Accepts every certificate: `prefer` and `require` protect against readers, not against impostors.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Checks the chain and not the name. The inner verifier checks the chain first, so an error about the name means that the
/// chain is good.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Makes TLS streams for tokio-postgres. `None` where TLS is switched off.
#[derive(Clone)]
pub(super) struct Connector {
    config: Option<Arc<ClientConfig>>,
    /// Set once a handshake has begun: the library does not say whether a connection is encrypted.
    was_used: Arc<AtomicBool>,
}

impl Connector {
    pub(super) fn new(settings: &TlsSettings) -> Result<Connector, Error> {
        let config = if settings.mode == Mode::Disable { None } else { Some(settings.client_config()?) };
        Ok(Connector { config, was_used: Arc::default() })
    }

    pub(super) fn was_used(&self) -> bool {
        self.was_used.load(Ordering::Acquire)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Connector {
    type Stream = EncryptedStream<S>;
    type TlsConnect = HostConnector;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<HostConnector> {
        Ok(HostConnector { connector: self.clone(), host: host.to_owned() })
    }
}

/// A [`Connector`] for one host.
pub(super) struct HostConnector {
    connector: Connector,
    host: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for HostConnector {
    type Stream = EncryptedStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<EncryptedStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let config = self.connector.config.ok_or_else(|| io::Error::other("TLS is switched off"))?;
            let name = ServerName::try_from(self.host)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the host is neither a name nor an address"))?;
            self.connector.was_used.store(true, Ordering::Release);
            let stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await?;
            Ok(EncryptedStream(Box::new(stream)))
        })
    }
}

/// A TLS stream to the server.
pub struct EncryptedStream<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S> std::fmt::Debug for EncryptedStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncryptedStream").finish_non_exhaustive()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for EncryptedStream<S> {
    /// SCRAM also works without it.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for EncryptedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for EncryptedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
