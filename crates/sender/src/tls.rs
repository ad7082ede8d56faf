//! TLS to receivers: whom we believe, and what we say when we do not.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use posthaste_core::destination::Host;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};

use crate::options::{Options, OptionsError, Roots};

/// What we offer to speak, the better one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

pub(crate) fn config(options: &Options) -> Result<Arc<ClientConfig>, OptionsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots(options)?)
        .with_no_client_auth();
    config.alpn_protocols = PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(config))
}

fn roots(options: &Options) -> Result<RootCertStore, OptionsError> {
    let mut store = RootCertStore::empty();
    match options.roots {
        Roots::Bundled => store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Roots::System => {
            // Single ones that cannot be read are common, and do not matter as long as others can.
            let (added, _) = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                return Err(OptionsError::SystemRoots);
            }
        }
        Roots::ExtraOnly => {}
    }
    let mut extra = 0;
    for certificate in CertificateDer::pem_slice_iter(&options.extra_roots) {
        let certificate = certificate.map_err(|error| OptionsError::ExtraRoots(error.to_string()))?;
        store.add(certificate).map_err(|error| OptionsError::ExtraRoots(error.to_string()))?;
        extra += 1;
    }
    if extra == 0 && !options.extra_roots.is_empty() {
        return Err(OptionsError::ExtraRoots("there is no certificate in PEM form".to_owned()));
    }
    Ok(store)
}

/// Whom a receiver has to prove to be.
pub(crate) fn server_name(host: &Host) -> Option<ServerName<'static>> {
    match host {
        Host::Name(name) => ServerName::try_from(name.clone()).ok(),
        Host::Address(address) => Some(ServerName::from(IpAddr::clone(address))),
    }
}

/// Why a handshake failed, in words for whoever runs the receiver.
pub(crate) fn in_words(error: &io::Error) -> String {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return if error.kind() == io::ErrorKind::UnexpectedEof {
            "the receiver closed the connection during the TLS handshake".to_owned()
        } else {
            format!("the connection broke during the TLS handshake: {error}")
        };
    };
    if let Error::InvalidCertificate(wrong) = error {
        return certificate_in_words(wrong).to_owned();
    }
    if is_too_old(error) {
        // Not a word of it is guessed: without these neither side can be blamed for less.
        return "the receiver speaks no TLS that is still considered safe: Posthaste needs TLS 1.2 or 1.3 with forward secrecy \
                (ECDHE) and an AEAD cipher (AES-GCM, ChaCha20), and speaks no TLS 1.0 or 1.1, no CBC and no RSA key exchange"
            .to_owned();
    }
    if matches!(error, Error::InvalidMessage(_)) {
        return "the receiver does not answer in TLS; perhaps it speaks plain http on this port".to_owned();
    }
    format!("the TLS handshake failed: {error}")
}

/// What servers say, or rustls does, where the two have no version or cipher in common.
fn is_too_old(error: &Error) -> bool {
    matches!(
        error,
        Error::PeerIncompatible(_)
            | Error::AlertReceived(
                AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity
            )
    )
}

fn certificate_in_words(wrong: &CertificateError) -> &'static str {
    if matches!(wrong, CertificateError::Expired | CertificateError::ExpiredContext { .. }) {
        "the receiver's certificate has expired"
    } else if matches!(wrong, CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) {
        "the receiver's certificate is not valid yet"
    } else if matches!(wrong, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) {
        "the receiver's certificate is for another name"
    } else if matches!(wrong, CertificateError::UnknownIssuer) {
        "the receiver's certificate is self-signed, or its issuer is not trusted, or an intermediate certificate is missing"
    } else if matches!(wrong, CertificateError::Revoked) {
        "the receiver's certificate was revoked"
    } else {
        "the receiver's certificate is not valid"
    }
}
