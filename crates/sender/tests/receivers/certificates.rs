//! Certificates made for one test, and servers that show them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, SupportedProtocolVersion};
use tokio_rustls::TlsAcceptor;

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Somebody who vouches for receivers.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// From which year to which a certificate is valid.
pub(crate) const NOW: (i32, i32) = (2020, 2090);
pub(crate) const PAST: (i32, i32) = (2000, 2001);
pub(crate) const FUTURE: (i32, i32) = (2080, 2090);

impl Authority {
    pub(crate) fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        // Each has a name of its own, as in the world: nobody finds a forged signature where they find no issuer at all.
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("authority {}", COUNT.fetch_add(1, Ordering::SeqCst)));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A server for these names.
    pub(crate) fn server(&self, names: &[&str], valid: (i32, i32), protocols: &[&str]) -> TlsAcceptor {
        self.server_of_versions(names, valid, protocols, rustls::DEFAULT_VERSIONS)
    }

    pub(crate) fn server_of_versions(
        &self,
        names: &[&str],
        valid: (i32, i32),
        protocols: &[&str],
        versions: &[&'static SupportedProtocolVersion],
    ) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let certificate = params(names, valid).signed_by(&key, &self.issuer).unwrap();
        acceptor(certificate.der().clone(), &key, protocols, versions)
    }
}

/// A server that vouches for itself.
pub(crate) fn self_signed(names: &[&str]) -> TlsAcceptor {
    let key = KeyPair::generate().unwrap();
    let certificate = params(names, NOW).self_signed(&key).unwrap();
    acceptor(certificate.der().clone(), &key, &[], rustls::DEFAULT_VERSIONS)
}

fn params(names: &[&str], (from, until): (i32, i32)) -> CertificateParams {
    let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    params
}

fn acceptor(
    certificate: CertificateDer<'static>,
    key: &KeyPair,
    protocols: &[&str],
    versions: &[&'static SupportedProtocolVersion],
) -> TlsAcceptor {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}
