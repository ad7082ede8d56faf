//! F35: receivers whose TLS is good, bad, old or missing.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use posthaste_sender::{Client, NameServers, Options, OptionsError, Posted, Roots};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::certificates::{Authority, FUTURE, NOW, PAST, self_signed};
use crate::name_server::{Answer, name_server};
use crate::receiver::{LONG, OK, Receiver, SHORT_WITH_TLS, options, post, read_request, word};

pub(crate) const NAME: &str = "hooks.example.com";

/// Believes this authority alone, and finds every name on this machine.
pub(crate) async fn client_of(authority: &Authority) -> Client {
    let server = name_server(|_| Answer::Addresses(vec!["127.0.0.1".parse().unwrap()])).await;
    let options = Options {
        name_servers: NameServers::These(vec![server]),
        roots: Roots::ExtraOnly,
        extra_roots: authority.pem.clone().into_bytes(),
        ..options()
    };
    Client::new(&options).unwrap()
}

pub(crate) fn url(address: SocketAddr) -> String {
    format!("https://{NAME}:{}/", address.port())
}

/// Speaks HTTP/1.1 over TLS.
async fn receiver(acceptor: TlsAcceptor) -> Receiver {
    Receiver::new(move |stream, _| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            while read_request(&mut stream).await.is_some() {
                stream.write_all(OK).await.unwrap();
            }
        }
    })
    .await
}

async fn answered(authority: &Authority, acceptor: TlsAcceptor) -> Posted {
    let receiver = receiver(acceptor).await;
    post(&client_of(authority).await, &url(receiver.address), LONG).await
}

async fn refused(authority: &Authority, acceptor: TlsAcceptor, error: &str) {
    let posted = answered(authority, acceptor).await;
    assert_eq!(word(posted.outcome), "tls", "{error}");
    assert!(posted.error.as_ref().is_some_and(|said| said.contains(error)), "{error}: {:?}", posted.error);
    assert!(posted.timings.tls.is_some() && posted.timings.first_byte.is_none());
}

#[tokio::test]
async fn a_good_certificate_is_believed_in_tls_1_2_and_1_3() {
    let authority = Authority::new();
    for versions in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13]] {
        let posted = answered(&authority, authority.server_of_versions(&[NAME], NOW, &["http/1.1"], versions)).await;
        assert_eq!(word(posted.outcome), "200", "{:?}", posted.error);
        assert!(posted.timings.tls.is_some() && posted.timings.dns.is_some());
    }
    let wildcard = answered(&authority, authority.server(&["*.example.com"], NOW, &[])).await;
    assert_eq!(word(wildcard.outcome), "200", "{:?}", wildcard.error);
}

#[tokio::test]
async fn an_address_can_have_a_certificate_of_its_own() {
    let authority = Authority::new();
    let receiver = receiver(authority.server(&["127.0.0.1"], NOW, &[])).await;
    let client = client_of(&authority).await;
    let url = format!("https://127.0.0.1:{}/", receiver.address.port());
    assert_eq!(word(post(&client, &url, LONG).await.outcome), "200");
}

#[tokio::test]
async fn i11_f35_bad_certificates_are_refused_with_the_reason() {
    let authority = Authority::new();
    refused(&authority, authority.server(&[NAME], PAST, &[]), "has expired").await;
    refused(&authority, authority.server(&[NAME], FUTURE, &[]), "not valid yet").await;
    refused(&authority, authority.server(&["other.example.com"], NOW, &[]), "is for another name").await;
    refused(&authority, self_signed(&[NAME]), "is self-signed").await;
    refused(&authority, Authority::new().server(&[NAME], NOW, &[]), "issuer is not trusted").await;
}

#[tokio::test]
async fn nobody_is_believed_whom_the_bundled_roots_do_not_vouch_for() {
    let authority = Authority::new();
    let receiver = receiver(authority.server(&["127.0.0.1"], NOW, &[])).await;
    let posted = post(&Client::new(&options()).unwrap(), &format!("https://{}/", receiver.address), LONG).await;
    assert_eq!(word(posted.outcome), "tls");
}

/// Says this in answer to a client's greeting.
async fn raw(answer: &'static [u8], then_close: bool) -> Posted {
    let receiver = Receiver::new(move |mut stream, _| async move {
        let mut greeting = vec![0; 4096];
        let _ = stream.read(&mut greeting).await;
        stream.write_all(answer).await.unwrap();
        if !then_close {
            // Until the sender has had enough.
            while stream.read(&mut greeting).await.unwrap_or(0) > 0 {}
        }
    })
    .await;
    let client = client_of(&Authority::new()).await;
    let started = Instant::now();
    let posted = post(&client, &url(receiver.address), SHORT_WITH_TLS).await;
    assert!(started.elapsed() < SHORT_WITH_TLS + Duration::from_secs(1));
    posted
}

#[tokio::test]
async fn i11_f35_old_tls_gets_its_own_message() {
    // Alerts: protocol_version, handshake_failure, insufficient_security.
    for alert in [
        &b"\x15\x03\x01\x00\x02\x02\x46"[..],
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x15\x03\x03\x00\x02\x02\x47",
        // A server hello of TLS 1.0, with a cipher of its time (RSA, AES-128-CBC, SHA-1).
        b"\x16\x03\x01\x00\x2a\x02\x00\x00\x26\x03\x01aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\x00\x00\x2f\x00",
    ] {
        let posted = raw(alert, false).await;
        assert_eq!(word(posted.outcome), "tls", "{alert:?} {:?}", posted.error);
        assert!(posted.error.as_ref().unwrap().contains("no TLS 1.0 or 1.1"), "{alert:?} {:?}", posted.error);
    }
}

#[tokio::test]
async fn i11_f35_what_is_not_tls_is_named() {
    let plain = raw(b"HTTP/1.1 400 Bad Request\r\n\r\n", true).await;
    assert_eq!(word(plain.outcome), "tls");
    assert!(plain.error.as_ref().unwrap().contains("plain http"), "{:?}", plain.error);
    let closed = raw(b"", true).await;
    assert_eq!(word(closed.outcome), "tls");
    assert!(closed.error.as_ref().unwrap().contains("closed the connection"), "{:?}", closed.error);
    // A record that promises more than there may be.
    assert_eq!(word(raw(b"\x16\x03\x03\xff\xff\x02", false).await.outcome), "tls");
}

#[tokio::test]
async fn i30_f35_a_handshake_that_stalls_is_a_failure_of_tls() {
    for greeting in [&b""[..], b"\x16\x03\x03\x00\x7a\x02"] {
        let posted = raw(greeting, false).await;
        assert_eq!(word(posted.outcome), "tls");
        assert_eq!(posted.error.as_deref(), Some("the TLS handshake took too long"));
    }
}

#[tokio::test]
async fn a_receiver_that_breaks_off_after_the_handshake_has_perhaps_seen_the_request() {
    let authority = Authority::new();
    let acceptor = authority.server(&[NAME], NOW, &[]);
    let receiver = Receiver::new(move |stream, _| {
        let acceptor = acceptor.clone();
        async move {
            let mut stream = acceptor.accept(stream).await.unwrap();
            read_request(&mut stream).await;
            // The bytes below TLS, in the middle of a record.
            let (tcp, _) = stream.get_mut();
            tcp.write_all(b"\x17\x03\x03\x00\x20garbage").await.unwrap();
        }
    })
    .await;
    assert_eq!(word(post(&client_of(&authority).await, &url(receiver.address), LONG).await.outcome), "reset");
}

#[test]
fn roots_that_cannot_be_read_are_a_mistake_in_the_settings() {
    for extra_roots in [&b"nonsense"[..], b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let made = Client::new(&Options { extra_roots: extra_roots.to_vec(), ..options() });
        assert!(matches!(made, Err(OptionsError::ExtraRoots(_))));
    }
}
