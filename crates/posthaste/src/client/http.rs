//! Speaks to a server: one request after another over one connection, http or https.
//!
//! It is the operator's own server, so that any address may be reached. Redirects are told and not followed: a key must not
//! travel to where it was not meant to go. The key is in the one header and nowhere else, and no error repeats it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, ETAG, HOST, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT};
use http::{Method, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::failure::{Failure, Kind};
use super::operations::Operation;

const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A test-send may take a minute until its receiver has answered.
const ANSWER_MAX: Duration = Duration::from_secs(90);
/// More than any page can hold.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Where a server is.
#[derive(Clone, Debug)]
pub(super) struct Address {
    is_tls: bool,
    host: String,
    port: u16,
    /// As it stands in `Host`.
    authority: String,
    /// What stands before `/v1`, for servers behind a proxy.
    prefix: String,
}

impl Address {
    /// What is wrong is said without repeating it: somebody may have put a credential there.
    pub(super) fn parse(text: &str) -> Result<Address, Failure> {
        let refuse = |why: &str| Failure::usage(format!("the server's URL is not usable: {why}"));
        let uri: Uri = text.trim().parse().map_err(|_| refuse("it is not a URL such as https://hooks.example.com"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err(refuse("it begins with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| refuse("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("user and password do not belong into it; the key is given by POSTHASTE_API_KEY"));
        }
        if uri.query().is_some() {
            return Err(refuse("it has no `?`"));
        }
        let host = authority.host();
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Address {
            is_tls,
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port,
            authority: authority.to_string(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// For people.
    pub(super) fn shown(&self) -> String {
        format!("{}://{}{}", if self.is_tls { "https" } else { "http" }, self.authority, self.prefix)
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Request {
    operation: &'static Operation,
    name: Option<String>,
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Option<Bytes>,
    media_type: &'static str,
}

impl Request {
    pub(super) fn to(operation: &'static Operation) -> Request {
        Request { operation, name: None, query: vec![], headers: vec![], body: None, media_type: "application/json" }
    }

    pub(super) fn named(mut self, name: &str) -> Request {
        self.name = Some(name.to_owned());
        self
    }

    pub(super) fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Request {
        self.query.retain(|(known, _)| *known != name || value.is_none());
        self.query.extend(value.map(|value| (name, value.to_string())));
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: Option<&str>) -> Request {
        self.headers.extend(value.map(|value| (name, value.to_owned())));
        self
    }

    pub(super) fn body(mut self, body: impl Into<Bytes>) -> Request {
        self.body = Some(body.into());
        self
    }

    pub(super) fn typed(mut self, media_type: &'static str) -> Request {
        self.media_type = media_type;
        self
    }

    /// The path with the name in its place.
    fn path(&self) -> Result<String, Failure> {
        let mut path = match (self.operation.path.split_once('{'), &self.name) {
            (None, _) | (_, None) => self.operation.path.to_owned(),
            (Some((before, rest)), Some(name)) => {
                if matches!(name.as_str(), "" | "." | "..") {
                    return Err(Failure::usage("an id or a name is missing"));
                }
                let after = rest.split_once('}').map_or("", |(_, after)| after);
                format!("{before}{}{after}", percent_encoded(name))
            }
        };
        for (index, (name, value)) in self.query.iter().enumerate() {
            path.push(if index == 0 { '?' } else { '&' });
            path.push_str(name);
            path.push('=');
            path.push_str(&percent_encoded(value));
        }
        Ok(path)
    }
}

/// What came back, if all was well.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) body: Bytes,
    pub(super) etag: Option<String>,
}

pub(super) struct Server {
    address: Address,
    /// Marked as sensitive, so that no debug output shows it.
    authorization: Option<HeaderValue>,
    tls: Option<TlsConnector>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Server {
    pub(super) fn new(address: Address, key: &str) -> Result<Server, Failure> {
        let unusable = |_| {
            Failure::new(Kind::Credentials, "the API key has characters in it that no key has; is it the right file or variable?")
        };
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", key.trim())).map_err(unusable)?;
        authorization.set_sensitive(true);
        Ok(Server { authorization: Some(authorization), ..Server::without_key(address)? })
    }

    /// For what is answered to anybody.
    pub(super) fn without_key(address: Address) -> Result<Server, Failure> {
        let tls = address.is_tls.then(tls_connector).transpose()?;
        Ok(Server { address, authorization: None, tls, connection: None })
    }

    /// Asks, and reads the answer to its end. What is not a 2xx is a failure.
    pub(super) async fn ask(&mut self, request: &Request) -> Result<Answer, Failure> {
        let sent = self.request(request)?;
        let mut connection = match self.connection.take() {
            Some(connection) if !connection.is_closed() => connection,
            Some(_) | None => self.connect().await?,
        };
        let exchange = async {
            connection.ready().await?;
            let response = connection.send_request(sent).await?;
            let (head, body) = response.into_parts();
            Ok::<_, hyper::Error>((head, Limited::new(body, ANSWER_BYTES_MAX).collect().await))
        };
        let broke = |why: &dyn std::fmt::Display| {
            let shown = self.address.shown();
            Failure::new(
                Kind::Unreachable,
                format!(
                    "the connection to {shown} broke before the answer was whole: {why}; whether the request has arrived is not known"
                ),
            )
        };
        let answered = timeout(ANSWER_MAX, exchange).await.map_err(|_| broke(&"no answer in time"))?;
        let (head, body) = answered.map_err(|error| broke(&error))?;
        let body = body.map_err(|error| broke(&error))?.to_bytes();
        self.connection = Some(connection);
        if head.status.is_success() {
            let etag = head.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
            return Ok(Answer { body, etag });
        }
        Err(self.refusal(head.status.as_u16(), &head.headers, &body))
    }

    fn request(&self, request: &Request) -> Result<http::Request<Full<Bytes>>, Failure> {
        let path = format!("{}{}", self.address.prefix, request.path()?);
        let method = Method::from_bytes(request.operation.method.as_bytes()).map_err(Failure::unexpected)?;
        let mut building = http::Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.address.authority)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("posthaste/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &self.authorization {
            building = building.header(AUTHORIZATION, authorization);
        }
        if request.body.is_some() {
            building = building.header(CONTENT_TYPE, request.media_type);
        }
        for (name, value) in &request.headers {
            let value =
                HeaderValue::from_str(value).map_err(|_| Failure::usage(format!("what was given for {name} cannot be sent")))?;
            building = building.header(*name, value);
        }
        building.body(Full::new(request.body.clone().unwrap_or_default())).map_err(Failure::unexpected)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let Address { host, port, .. } = &self.address;
        let unreachable = |why: &dyn std::fmt::Display| {
            let message = format!(
                "cannot reach {}: {why}\nIs the server running (`posthaste serve`)? Another one is named with --url or POSTHASTE_URL.",
                self.address.shown()
            );
            Failure::new(Kind::Unreachable, message)
        };
        let connected = timeout(CONNECT_MAX, TcpStream::connect((host.as_str(), *port))).await;
        let stream = connected.map_err(|_| unreachable(&"no answer within 10 s"))?.map_err(|error| unreachable(&error))?;
        stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
        let Some(tls) = &self.tls else { return shake_hands(stream).await.map_err(|error| unreachable(&error)) };
        let name = ServerName::try_from(host.clone()).map_err(|error| unreachable(&error))?;
        let connected = timeout(CONNECT_MAX, tls.connect(name, stream)).await;
        let stream = connected.map_err(|_| unreachable(&"no TLS within 10 s"))?.map_err(|error| unreachable(&error))?;
        shake_hands(stream).await.map_err(|error| unreachable(&error))
    }

    /// What a status other than 2xx means to whoever asked.
    fn refusal(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> Failure {
        let kind = match status {
            401 | 403 => Kind::Credentials,
            404 => Kind::NotFound,
            429 | 500.. => Kind::Server,
            400..=499 => Kind::Refused,
            _ => Kind::Unexpected,
        };
        let header = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let mut message = match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => problem.in_words(status),
            Err(_) => {
                format!("{} answered {status}, and not in the words of Posthaste; is it the right URL?", self.address.shown())
            }
        };
        if let Some(target) = header(LOCATION) {
            message = format!("{message}\nIt leads to {target}, which is not followed; name the right server with --url.");
        }
        if let Some(seconds) = header(RETRY_AFTER) {
            message = format!("{message}\nTry again in {seconds} s.");
        }
        Failure::new(kind, message)
    }
}

async fn shake_hands(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> hyper::Result<SendRequest<Full<Bytes>>> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// The system's roots, so that a company's own authority works; where there are none, those that are built in.
fn tls_connector() -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(Failure::unexpected)?;
    Ok(TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
}

/// RFC 9457, as the server writes it.
#[derive(Deserialize)]
struct Problem {
    title: String,
    detail: String,
    #[serde(default)]
    errors: Vec<FieldError>,
}

#[derive(Deserialize)]
struct FieldError {
    field: String,
    message: String,
}

impl Problem {
    fn in_words(&self, status: u16) -> String {
        // Each line is escaped later; what is one line here stays one.
        let one_line = |text: &str| text.replace(['\n', '\r'], " ");
        let mut words = format!("{} ({status}: {})", one_line(&self.title), one_line(&self.detail));
        let is_said = |error: &FieldError| self.detail == format!("{}: {}", error.field, error.message);
        for error in self.errors.iter().filter(|error| !is_said(error)) {
            let place = if error.field.is_empty() { "the request" } else { &error.field };
            words = format!("{words}\n  {}: {}", one_line(place), one_line(&error.message));
        }
        words
    }
}

/// Everything but what stands for itself in a URL.
fn percent_encoded(text: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b':' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::operations::{PUT_ENDPOINT, SHOW_EVENT};

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        let path = |name: &str| Request::to(&SHOW_EVENT).named(name).with("tenant", Some("a b&c")).path();
        assert_eq!(path("evt_1").unwrap(), "/v1/events/evt_1?tenant=a%20b%26c");
        assert_eq!(path("../keys?x#y/ä").unwrap(), "/v1/events/..%2Fkeys%3Fx%23y%2F%C3%A4?tenant=a%20b%26c");
        assert!(path("").is_err() && path("..").is_err());
        assert_eq!(Request::to(&PUT_ENDPOINT).named("billing").path().unwrap(), "/v1/endpoints/uid:billing");
    }

    #[test]
    fn a_url_is_understood_or_refused_without_repeating_it() {
        let address = Address::parse("https://hooks.example.com/posthaste/").unwrap();
        assert_eq!((address.port, address.shown().as_str()), (443, "https://hooks.example.com/posthaste"));
        let address = Address::parse("http://[::1]:8080").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 8080));
        for bad in ["", "localhost:8080", "ftp://x", "https://canary:canary@example.com", "http://x/?key=canary", "http://"] {
            let words = Address::parse(bad).unwrap_err().words().unwrap();
            assert!(words.contains("not usable") && !words.contains("canary"), "{bad}: {words}");
        }
    }
}
