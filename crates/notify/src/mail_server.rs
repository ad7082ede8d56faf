//! The mail server: where it is, what has to be true before anything is said to it, and what we say when it is not.
//!
//! A password goes out encrypted, or to this machine, or because somebody has written `tls=none` in so many words: never because
//! a server, or somebody in between, has offered no TLS. What a mail server says of a failure is its own words, and may quote ours:
//! they are cut short, and a password is taken out of them.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::{self, Debug, Formatter};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lettre::Message;
use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{
    AsyncSmtpConnection, AsyncTokioStream, Certificate, CertificateStore, TlsParameters, TlsParametersBuilder,
};
use lettre::transport::smtp::extension::ClientId;
use percent_encoding::percent_decode_str;
use rustls::CertificateError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

/// For a conversation as a whole, unless somebody has less patience. The library's own limit ends with the connection being made.
const CONVERSATION_MAX: Duration = Duration::from_secs(30);
/// For the connection being made, to each address that the name has.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// What we repeat of a mail server's words.
const WORDS_MAX: usize = 300;

const SMTP_PORT: u16 = 25;
const SUBMISSION_PORT: u16 = 587;
const SUBMISSIONS_PORT: u16 = 465;

/// Cheap enough to clone. Shown without its password.
#[derive(Clone)]
pub struct MailServer {
    host: String,
    port: u16,
    security: Security,
    login: Option<Login>,
    hello: ClientId,
    conversation_max: Duration,
}

#[derive(Clone)]
enum Security {
    /// Not asked for.
    None,
    /// STARTTLS where it is offered.
    IfOffered(TlsParameters),
    /// STARTTLS, or nothing.
    Required(TlsParameters),
    /// From the first byte.
    FromTheStart(TlsParameters),
}

#[derive(Clone)]
struct Login {
    user: String,
    password: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It may have a password in it, and is not repeated.
    #[error("the URL of the mail server cannot be used: it is like smtp://user:password@mail.example.com:587?tls=required")]
    Unreadable,
    #[error(
        "the URL of the mail server may say tls=required, tls=opportunistic or tls=none, and nothing else; smtps:// is TLS anyway"
    )]
    Tls,
    #[error("the URL of the mail server has a user or a password without the other")]
    HalfALogin,
    #[error(
        "the password for the mail server would go over the network unencrypted: say tls=required (or tls=none, if that is meant)"
    )]
    PasswordInTheClear,
    #[error("the extra root certificates cannot be used: {0}")]
    Roots(String),
}

/// Why a mail server cannot be used, in words for whoever runs this one.
#[derive(Debug, thiserror::Error)]
pub enum MailError {
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it took longer than {} ms", .0.as_millis())]
    TooSlow(Duration),
    #[error("it offers no encryption (STARTTLS), and nothing is said to it without")]
    NoEncryption,
    #[error("no encrypted connection could be made: {0}")]
    Tls(String),
    #[error("it offers no way to log in that is known here (PLAIN or LOGIN)")]
    NoLogin,
    #[error("it does not accept the user and the password: {words}")]
    LoginRefused { words: String, is_final: bool },
    #[error("it refuses: {words}")]
    Refused { words: String, is_final: bool },
    #[error("the conversation with it broke off: {0}")]
    Broken(String),
}

impl MailError {
    /// It was told no, and would be told no again.
    pub fn is_final(&self) -> bool {
        match self {
            MailError::LoginRefused { is_final, .. } | MailError::Refused { is_final, .. } => *is_final,
            MailError::Unreachable(_)
            | MailError::TooSlow(_)
            | MailError::NoEncryption
            | MailError::Tls(_)
            | MailError::NoLogin
            | MailError::Broken(_) => false,
        }
    }
}

/// How a mail server was found that could be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MailServerInfo {
    pub is_encrypted: bool,
    pub is_logged_in: bool,
}

impl MailServer {
    /// `smtps://…` is TLS from the start, `smtp://…?tls=required` STARTTLS or nothing, `smtp://…?tls=opportunistic` STARTTLS where it
    /// is offered (with a password: or nothing), `smtp://…` and `smtp://…?tls=none` without. A path is the name that we greet with.
    /// `extra_roots` are certificates in PEM that may vouch for it beside the usual ones.
    pub fn parse(url: &str, extra_roots: &[u8]) -> Result<MailServer, UrlError> {
        let url = Url::parse(url).map_err(|_| UrlError::Unreadable)?;
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(UrlError::Unreadable)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let login = login(&url)?;
        let parameters: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let tls = match parameters.as_slice() {
            [] => None,
            [(name, value)] if name == "tls" => Some(value.as_str()),
            // A typo in it must not be a mail in the clear.
            [..] => return Err(UrlError::Tls),
        };
        let trusting = || tls_parameters(&host, extra_roots);
        let (default_port, security) = match (url.scheme(), tls) {
            ("smtps", None | Some("required")) => (SUBMISSIONS_PORT, Security::FromTheStart(trusting()?)),
            ("smtp", Some("required")) => (SUBMISSION_PORT, Security::Required(trusting()?)),
            ("smtp", Some("opportunistic")) if login.is_some() => (SUBMISSION_PORT, Security::Required(trusting()?)),
            ("smtp", Some("opportunistic")) => (SUBMISSION_PORT, Security::IfOffered(trusting()?)),
            ("smtp", None) if login.is_some() && !is_this_machine(&host) => return Err(UrlError::PasswordInTheClear),
            ("smtp", None | Some("none")) => (SMTP_PORT, Security::None),
            ("smtp" | "smtps", Some(_)) => return Err(UrlError::Tls),
            (_, _) => return Err(UrlError::Unreadable),
        };
        let name = url.path().trim_matches('/');
        let hello = if name.is_empty() { ClientId::default() } else { ClientId::Domain(name.to_owned()) };
        Ok(MailServer {
            host,
            port: url.port().unwrap_or(default_port),
            security,
            login,
            hello,
            conversation_max: CONVERSATION_MAX,
        })
    }

    /// With less patience than for a mail.
    #[must_use]
    pub fn within(self, conversation_max: Duration) -> MailServer {
        MailServer { conversation_max, ..self }
    }

    /// Where it is, for people.
    pub fn name(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Hands a mail over. `Ok` means that the server has taken it.
    pub async fn deliver(&self, mail: &Message) -> Result<(), MailError> {
        let bytes = mail.formatted();
        self.in_time(async {
            let mut connection = self.connect().await?;
            connection.send(mail.envelope(), &bytes).await.map_err(|error| self.refused(&error))?;
            connection.abort().await;
            Ok(())
        })
        .await
    }

    /// Connects, encrypts and logs in as for a mail, and sends none.
    pub async fn look(&self) -> Result<MailServerInfo, MailError> {
        self.in_time(async {
            let mut connection = self.connect().await?;
            let looked = MailServerInfo { is_encrypted: connection.is_encrypted(), is_logged_in: self.login.is_some() };
            connection.abort().await;
            Ok(looked)
        })
        .await
    }

    async fn in_time<T>(&self, conversation: impl Future<Output = Result<T, MailError>>) -> Result<T, MailError> {
        timeout(self.conversation_max, conversation).await.unwrap_or(Err(MailError::TooSlow(self.conversation_max)))
    }

    async fn connect(&self) -> Result<AsyncSmtpConnection, MailError> {
        let address = (self.host.as_str(), self.port);
        let connected = match &self.security {
            Security::FromTheStart(parameters) => {
                let parameters = Some(parameters.clone());
                AsyncSmtpConnection::connect_tokio1(address, Some(CONNECT_MAX), &self.hello, parameters, None).await
            }
            Security::None | Security::IfOffered(_) | Security::Required(_) => {
                let connected = timeout(CONNECT_MAX, TcpStream::connect(address)).await;
                let stream = connected.map_err(|_| MailError::TooSlow(CONNECT_MAX))?;
                let stream = stream.map_err(|error| MailError::Unreachable(error.to_string()))?;
                AsyncSmtpConnection::connect_with_transport(Box::new(NotAhead::of(stream)), &self.hello).await
            }
        };
        let mut connection = connected.map_err(|error| self.no_connection(&error))?;
        let starttls = match &self.security {
            Security::Required(_) if !connection.can_starttls() => {
                connection.abort().await;
                return Err(MailError::NoEncryption);
            }
            Security::Required(parameters) => Some(parameters),
            Security::IfOffered(parameters) => Some(parameters).filter(|_| connection.can_starttls()),
            Security::None | Security::FromTheStart(_) => None,
        };
        if let Some(parameters) = starttls {
            let encrypted = connection.starttls(parameters.clone(), &self.hello).await;
            encrypted.map_err(|error| if error.status().is_some() { self.refused(&error) } else { self.no_tls(&error) })?;
        }
        if let Some(Login { user, password }) = &self.login {
            let credentials = Credentials::new(user.clone(), password.clone());
            connection.auth(DEFAULT_MECHANISMS, &credentials).await.map_err(|error| self.no_login(&error))?;
        }
        Ok(connection)
    }

    fn no_connection(&self, error: &SmtpError) -> MailError {
        if error.status().is_some() {
            self.refused(error)
        } else if tls_error(error).is_some() {
            self.no_tls(error)
        } else if error.is_response() {
            MailError::Broken(format!("it does not greet as a mail server does ({})", self.words(error)))
        } else {
            match source::<io::Error>(error) {
                Some(error) => MailError::Unreachable(self.cleaned(&error.to_string())),
                None => MailError::Unreachable(self.words(error)),
            }
        }
    }

    fn no_tls(&self, error: &SmtpError) -> MailError {
        match tls_error(error) {
            Some(rustls::Error::InvalidCertificate(wrong)) => MailError::Tls(certificate_in_words(wrong).to_owned()),
            Some(rustls::Error::InvalidMessage(_)) => {
                MailError::Tls("it does not answer in TLS; perhaps it wants STARTTLS (smtp://…?tls=required)".to_owned())
            }
            Some(other) => MailError::Tls(self.cleaned(&other.to_string())),
            None => MailError::Tls(self.words(error)),
        }
    }

    fn no_login(&self, error: &SmtpError) -> MailError {
        if error.status().is_some() {
            MailError::LoginRefused { words: self.words(error), is_final: error.is_permanent() }
        } else if error.is_client() {
            // It names no way, or asks what neither way has an answer to.
            MailError::NoLogin
        } else {
            MailError::Broken(self.words(error))
        }
    }

    fn refused(&self, error: &SmtpError) -> MailError {
        if error.status().is_some() {
            MailError::Refused { words: self.words(error), is_final: error.is_permanent() }
        } else {
            MailError::Broken(self.words(error))
        }
    }

    /// The code and what came with it, or what broke.
    fn words(&self, error: &SmtpError) -> String {
        let told = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        let told = error.status().map_or_else(|| told.clone(), |code| format!("{code} {told}"));
        self.cleaned(&told)
    }

    /// In one line, not too long, and without the password, in whatever form we have sent it.
    fn cleaned(&self, words: &str) -> String {
        let mut words = words.to_owned();
        if let Some(Login { user, password }) = &self.login {
            let together = STANDARD.encode(format!("\0{user}\0{password}"));
            for secret in [together, STANDARD.encode(password), password.clone()] {
                if !secret.is_empty() {
                    words = words.replace(&secret, "…");
                }
            }
        }
        words.split(char::is_control).flat_map(str::chars).take(WORDS_MAX).collect()
    }
}

impl Debug for MailServer {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MailServer").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// A connection that reads nothing ahead before TLS begins. What somebody in between has put behind the answer to STARTTLS would
/// otherwise be kept by the library, and believed as if it had come encrypted; so it is taken for the beginning of TLS, and is none.
#[derive(Debug)]
struct NotAhead {
    stream: TcpStream,
    has_tls_begun: bool,
}

/// A record of TLS that begins a handshake, and no command of SMTP, begins with this.
const HANDSHAKE: u8 = 0x16;

impl NotAhead {
    fn of(stream: TcpStream) -> NotAhead {
        NotAhead { stream, has_tls_begun: false }
    }
}

impl AsyncRead for NotAhead {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.has_tls_begun || buffer.remaining() == 0 {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let mut byte = [0];
        let mut one = ReadBuf::new(&mut byte);
        let polled = Pin::new(&mut self.stream).poll_read(context, &mut one);
        buffer.put_slice(one.filled());
        polled
    }
}

impl AsyncWrite for NotAhead {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.has_tls_begun |= bytes.first() == Some(&HANDSHAKE);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl AsyncTokioStream for NotAhead {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}

fn login(url: &Url) -> Result<Option<Login>, UrlError> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(Cow::into_owned);
    match (url.username(), url.password()) {
        ("", None) => Ok(None),
        ("", Some(_)) | (_, None) => Err(UrlError::HalfALogin),
        (user, Some(password)) => Ok(Some(Login {
            user: decoded(user).map_err(|_| UrlError::Unreadable)?,
            password: decoded(password).map_err(|_| UrlError::Unreadable)?,
        })),
    }
}

/// What is said to this machine itself crosses no network.
fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn tls_parameters(host: &str, extra_roots: &[u8]) -> Result<TlsParameters, UrlError> {
    let mut builder = TlsParametersBuilder::new(host.to_owned()).certificate_store(CertificateStore::WebpkiRoots);
    if !extra_roots.is_empty() {
        let roots = Certificate::from_pem(extra_roots).map_err(|error| UrlError::Roots(error.to_string()))?;
        builder = builder.add_root_certificate(roots);
    }
    builder.build_rustls().map_err(|error| UrlError::Roots(error.to_string()))
}

fn tls_error(error: &SmtpError) -> Option<&rustls::Error> {
    source::<io::Error>(error)?.get_ref()?.downcast_ref()
}

/// The cause of this kind, however deep it lies.
fn source<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn certificate_in_words(wrong: &CertificateError) -> &'static str {
    if matches!(wrong, CertificateError::Expired | CertificateError::ExpiredContext { .. }) {
        "its certificate has expired"
    } else if matches!(wrong, CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) {
        "its certificate is not valid yet"
    } else if matches!(wrong, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) {
        "its certificate is for another name"
    } else if matches!(wrong, CertificateError::UnknownIssuer) {
        "its certificate is self-signed, or its issuer is not trusted (extra_roots), or an intermediate certificate is missing"
    } else {
        "its certificate is not valid"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(url: &str) -> Option<UrlError> {
        MailServer::parse(url, b"").err()
    }

    #[test]
    fn a_password_goes_out_encrypted_or_to_this_machine_or_because_somebody_says_so() {
        for (url, expected) in [
            ("smtp://mail.example.com", None),
            ("smtp://mail.example.com?tls=none", None),
            ("smtps://u:p@mail.example.com", None),
            ("smtp://u:p@mail.example.com?tls=required", None),
            ("smtp://u:p@mail.example.com?tls=opportunistic", None),
            ("smtp://u:p@mail.example.com", Some(UrlError::PasswordInTheClear)),
            ("smtp://u:p@mail.example.com?tls=none", None),
            ("smtp://u:p@localhost", None),
            ("smtp://u:p@127.0.0.1:2525", None),
            ("smtp://u:p@[::1]:2525", None),
            ("smtp://u:p@10.0.0.1", Some(UrlError::PasswordInTheClear)),
        ] {
            assert_eq!(wrong(url), expected, "{url}");
        }
        let opportunistic = MailServer::parse("smtp://u:p@mail.example.com?tls=opportunistic", b"").unwrap();
        assert!(matches!(opportunistic.security, Security::Required(_)), "a login does not hang on an offer");
    }

    #[test]
    fn a_typo_is_an_error_and_never_a_mail_in_the_clear() {
        for (url, expected) in [
            ("smtp://mail.example.com?tsl=required", UrlError::Tls),
            ("smtp://mail.example.com?tls=require", UrlError::Tls),
            ("smtp://mail.example.com?tls=required&x=1", UrlError::Tls),
            ("smtps://mail.example.com?tls=none", UrlError::Tls),
            ("smtps://user@mail.example.com", UrlError::HalfALogin),
            ("smtps://:password@mail.example.com", UrlError::HalfALogin),
            ("http://mail.example.com", UrlError::Unreadable),
            ("mail.example.com:25", UrlError::Unreadable),
            ("smtp://", UrlError::Unreadable),
        ] {
            assert_eq!(wrong(url), Some(expected), "{url}");
        }
        let roots =
            MailServer::parse("smtps://mail.example.com", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert!(matches!(roots, Err(UrlError::Roots(_))));
    }

    #[test]
    fn ports_are_the_usual_ones_and_a_password_is_shown_to_nobody() {
        for (url, expected) in [
            ("smtp://mail.example.com", "mail.example.com:25"),
            ("smtp://mail.example.com?tls=required", "mail.example.com:587"),
            ("smtps://mail.example.com", "mail.example.com:465"),
            ("smtps://mail.example.com:2465/us.example.com", "mail.example.com:2465"),
        ] {
            assert_eq!(MailServer::parse(url, b"").unwrap().name(), expected);
        }
        let server = MailServer::parse("smtps://us%40example.com:canary%20p@mail.example.com", b"").unwrap();
        assert!(!format!("{server:?}").contains("canary"));
        let echoed = format!("500 what is AUTH PLAIN {}\r\nor canary p", STANDARD.encode("\0us@example.com\0canary p"));
        assert_eq!(server.cleaned(&echoed), "500 what is AUTH PLAIN …or …");
    }
}
