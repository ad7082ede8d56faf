//! The API over TLS, with the real binary.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::server::Server;

/// Writes a new certificate for this machine, and its key.
fn renew(directory: &Path) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(directory.join("cert.pem"), certificate.pem()).unwrap();
    std::fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
    std::fs::set_permissions(directory.join("key.pem"), std::fs::Permissions::from_mode(0o600)).unwrap();
    certificate.der().clone()
}

/// The answer to `GET /readyz`, from a server that shows exactly this certificate.
fn ask(address: SocketAddr, trusted: &CertificateDer<'static>) -> Result<String, String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let connection = ClientConnection::new(config, ServerName::try_from("localhost").unwrap()).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    let asked = stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    asked.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn hang_up(server: &Server) {
    assert!(Command::new("kill").args(["-HUP", &server.process().to_string()]).status().unwrap().success());
}

fn wait_until_said(server: &Server, words: &str) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !server.said().contains(words) {
        assert!(Instant::now() < deadline, "waited in vain for {words}: {}", server.said());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_api_is_served_over_tls_and_a_renewed_certificate_is_shown_after_sighup() {
    let directory = std::env::temp_dir().join(format!("posthaste-tls-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let first = renew(&directory);
    let (cert, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    let flags = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let server = Server::start_bare("tls", &flags);
    assert!(ask(server.address, &first).unwrap().starts_with("HTTP/1.1 200"));
    // Whoever speaks no TLS is not answered.
    let mut plain = TcpStream::connect(server.address).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    plain.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));

    let second = renew(&directory);
    assert!(ask(server.address, &second).is_err(), "the first one is shown until it is told");
    hang_up(&server);
    wait_until_said(&server, "the certificate was read again");
    assert!(ask(server.address, &second).unwrap().starts_with("HTTP/1.1 200"));
    assert!(ask(server.address, &first).is_err());
    std::fs::write(&cert, "not a certificate").unwrap();
    hang_up(&server);
    wait_until_said(&server, "the certificate stays as it was");
    assert!(ask(server.address, &second).unwrap().starts_with("HTTP/1.1 200"));
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn without_tls_beyond_this_machine_there_is_a_warning() {
    let warned = |name: &str, flags: &[&str]| Server::start_bare(name, flags).said().contains("is served without TLS");
    assert!(warned("tls-open", &["--listen", "0.0.0.0:0"]));
    assert!(!warned("tls-loopback", &["--listen", "127.0.0.1:0"]));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("0.0.0.0:{port}");
    assert!(!warned("tls-proxy", &["--listen", &listen, "--public-url", "https://hooks.example.com"]));
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_at_the_start() {
    let directory = std::env::temp_dir().join(format!("posthaste-tls-refused-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    renew(&directory);
    let refused = |arguments: &[&str]| {
        let mut command = Command::new(crate::server::BINARY);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments).current_dir(&directory).env_clear();
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let alone = refused(&["--tls-cert", "cert.pem"]);
    assert!(alone.contains("TLS needs both a certificate and its key"), "{alone}");
    let missing = refused(&["--tls-cert", "cert.pem", "--tls-key", "nowhere.pem"]);
    assert!(missing.contains("the key nowhere.pem cannot be read"), "{missing}");
    std::fs::set_permissions(directory.join("key.pem"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let loose = refused(&["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    assert!(loose.contains("chmod 600 key.pem"), "{loose}");
    let _ = std::fs::remove_dir_all(&directory);
}
