//! The collector: where it is, and one request to it.
//!
//! Its address is the operator's, so that it may be anywhere, also where no delivery may go. Redirects are not followed: a
//! credential must not travel to where it was not meant to go. No error repeats a header.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, RETRY_AFTER, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::{Options, otlp};

/// A collector is near, or something is wrong.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// More than any answer of the protocol has to say.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Where traces go below a collector's address, as the protocol has it.
const TRACES_PATH: &str = "/v1/traces";

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(&'static str);

/// Where a collector is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Collector {
    is_tls: bool,
    host: String,
    port: u16,
    /// As it stands in `Host`.
    authority: String,
    path: String,
}

impl Collector {
    /// As other exporters take it: `http://localhost:4318`, to which `/v1/traces` is added unless it is there. What is wrong is
    /// said without repeating it: somebody may have put a credential there.
    pub fn parse(text: &str) -> Result<Collector, Unusable> {
        let uri: Uri = text.trim().parse().map_err(|_| Unusable("it is not a URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err(Unusable("it begins with http:// or https://; gRPC is not spoken")),
        };
        let authority = uri.authority().ok_or(Unusable("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(Unusable("credentials do not belong into it; otlp_headers is for them"));
        }
        if uri.query().is_some() {
            return Err(Unusable("it has no `?`"));
        }
        let above = uri.path().trim_end_matches('/');
        let above = above.strip_suffix(TRACES_PATH).unwrap_or(above);
        Ok(Collector {
            is_tls,
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            authority: authority.to_string(),
            path: format!("{above}{TRACES_PATH}"),
        })
    }
}

/// The URL that is posted to.
impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.is_tls { "https" } else { "http" }, self.authority, self.path)
    }
}

/// Sent with every request. Its value is never shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CollectorHeader {
    name: HeaderName,
    /// Marked as sensitive.
    value: HeaderValue,
}

impl CollectorHeader {
    /// `name=value`, as `OTEL_EXPORTER_OTLP_HEADERS` has it: what could not stand in a list is percent-encoded.
    pub fn parse(text: &str) -> Result<CollectorHeader, Unusable> {
        let (name, value) = text.split_once('=').ok_or(Unusable("a header is a name, `=`, and a value"))?;
        let name: HeaderName = name.trim().parse().map_err(|_| Unusable("that is no name of a header"))?;
        let is_ours = [HOST, CONTENT_TYPE, http::header::CONTENT_LENGTH, http::header::TRANSFER_ENCODING].contains(&name);
        if is_ours {
            return Err(Unusable("a header that frames the request is not for you to set"));
        }
        let value = percent_decoded(value.trim()).ok_or(Unusable("a `%` is followed by two digits of hexadecimal"))?;
        let mut value = HeaderValue::from_bytes(&value).map_err(|_| Unusable("that value cannot be sent in a header"))?;
        value.set_sensitive(true);
        Ok(CollectorHeader { name, value })
    }
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut decoded = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        decoded.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        decoded.extend_from_slice(rest.as_bytes());
    }
    Some(decoded)
}

/// Why spans did not get there.
#[derive(Debug)]
pub(crate) enum ExportError {
    /// It may work later.
    Passing { why: String, retry_after: Option<Duration> },
    /// It will not, however often it is tried.
    Lasting { why: String },
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::Passing { why, .. } | ExportError::Lasting { why } => f.write_str(why),
        }
    }
}

impl ExportError {
    fn passing(why: impl fmt::Display) -> ExportError {
        ExportError::Passing { why: why.to_string(), retry_after: None }
    }
}

/// A collector, a connection to it if there is one, and what every request has.
pub(crate) struct Line {
    collector: Collector,
    headers: HeaderMap,
    tls: Option<TlsConnector>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Line {
    pub(crate) fn new(options: &Options) -> Result<Line, Unusable> {
        let collector = options.collector.clone();
        let tls = collector.is_tls.then(|| tls_connector(&options.extra_roots)).transpose()?;
        let mut headers = HeaderMap::new();
        let host = HeaderValue::from_str(&collector.authority).map_err(|_| Unusable("its host cannot be sent in a header"))?;
        headers.insert(HOST, host);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("posthaste/", env!("CARGO_PKG_VERSION"))));
        headers.extend(options.headers.iter().map(|header| (header.name.clone(), header.value.clone())));
        Ok(Line { collector, headers, tls, connection: None })
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Posts one request and answers how many of its spans were thrown away.
    pub(crate) async fn send(&mut self, body: Bytes) -> Result<u64, ExportError> {
        let exchanged = timeout(REQUEST_MAX, self.exchange(body)).await;
        exchanged.unwrap_or_else(|_| {
            self.connection = None;
            Err(ExportError::passing("no answer within 10 s"))
        })
    }

    async fn exchange(&mut self, body: Bytes) -> Result<u64, ExportError> {
        let kept = self.connection.take().filter(|connection| !connection.is_closed());
        let is_kept = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        match self.post(connection, body.clone()).await {
            // A connection that has lain idle may have been closed at the other end meanwhile.
            Err(ExportError::Passing { retry_after: None, .. }) if is_kept && self.connection.is_none() => {
                let connection = self.connect().await?;
                self.post(connection, body).await
            }
            posted => posted,
        }
    }

    async fn post(&mut self, mut connection: SendRequest<Full<Bytes>>, body: Bytes) -> Result<u64, ExportError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.collector.path.parse().map_err(ExportError::passing)?;
        *request.headers_mut() = self.headers.clone();
        connection.ready().await.map_err(ExportError::passing)?;
        let response = connection.send_request(request).await.map_err(ExportError::passing)?;
        let (head, body) = response.into_parts();
        let answer = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(ExportError::passing)?.to_bytes();
        self.connection = Some(connection);
        let why = format!("the collector answered {}", head.status.as_u16());
        match head.status {
            status if status.is_success() => Ok(otlp::rejected_spans(&answer)),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                let seconds = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
                Err(ExportError::Passing { why, retry_after: seconds.map(Duration::from_secs) })
            }
            _ => Err(ExportError::Lasting { why }),
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ExportError> {
        let Collector { host, port, .. } = &self.collector;
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(ExportError::passing)?;
        stream.set_nodelay(true).map_err(ExportError::passing)?;
        let Some(tls) = &self.tls else { return shake_hands(stream).await };
        let name = ServerName::try_from(host.clone()).map_err(ExportError::passing)?;
        shake_hands(tls.connect(name, stream).await.map_err(ExportError::passing)?).await
    }
}

async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, ExportError> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(ExportError::passing)?;
    tokio::spawn(connection);
    Ok(sender)
}

/// The system's roots, so that a company's own authority works; where there are none, those that are built in.
fn tls_connector(extra_roots: &[u8]) -> Result<TlsConnector, Unusable> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    for certificate in CertificateDer::pem_slice_iter(extra_roots) {
        let added = certificate.ok().map(|certificate| roots.add(certificate));
        if !matches!(added, Some(Ok(()))) {
            return Err(Unusable("one of the extra root certificates cannot be read"));
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|_| Unusable("TLS cannot be set up"))?;
    Ok(TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

    use super::*;

    #[test]
    fn an_address_is_taken_as_other_exporters_take_it() {
        for (text, url, port) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces", 4318),
            ("http://localhost:4318/", "http://localhost:4318/v1/traces", 4318),
            ("http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces", 4318),
            ("https://otlp.example.com/tenant/7", "https://otlp.example.com/tenant/7/v1/traces", 443),
            ("http://[::1]", "http://[::1]/v1/traces", 80),
        ] {
            let collector = Collector::parse(text).unwrap();
            assert_eq!((collector.to_string().as_str(), collector.port), (url, port), "{text}");
        }
        assert_eq!(Collector::parse("http://[::1]:4318").unwrap().host, "::1");
        for bad in ["", "localhost:4318", "grpc://x:4317", "http://canary:canary@x", "http://x/?key=canary", "http://"] {
            let words = Collector::parse(bad).unwrap_err().to_string();
            assert!(!words.contains("canary"), "{bad}: {words}");
        }
    }

    #[test]
    fn a_header_is_a_name_and_a_value_that_is_never_shown() {
        let header = CollectorHeader::parse("Authorization=Basic%20Y2FuYXJ5=").unwrap();
        assert_eq!((header.name.as_str(), header.value.as_bytes()), ("authorization", &b"Basic Y2FuYXJ5="[..]));
        assert!(!format!("{header:?}").contains("Y2FuYXJ5"), "{header:?}");
        for bad in ["", "canary", "=canary", "a b=canary", "x=%", "x=%4", "x=%+1", "x=canary%0a", "host=canary"] {
            let words = CollectorHeader::parse(bad).unwrap_err().to_string();
            assert!(!words.contains("canary"), "{bad}: {words}");
        }
    }
}
