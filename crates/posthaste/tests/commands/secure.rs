//! The key: where it is taken from, where it must not go, and that nothing repeats it. And https.

use std::process::Command;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::server::{Receiver, Run, Server, run};

const CANARY: &str = "phk_canary_0123456789abcdef";

#[test]
fn no_error_repeats_the_key_wherever_it_was_given_and_whatever_goes_wrong() {
    let server = Server::start("canary");
    std::fs::create_dir_all(server.directory.join("other")).unwrap();
    std::fs::write(server.directory.join("other/admin.key"), CANARY).unwrap();
    std::fs::write(server.directory.join("other-broken"), format!("{CANARY}\nx")).unwrap();
    let echo = Receiver::start("500 Oh", b"{}");
    let urls =
        ["", "http://127.0.0.1:1", "not a url", &format!("http://{}", echo.address), &format!("http://{CANARY}@127.0.0.1:1")];
    let mut tried = 0;
    for url in urls {
        let commands: [&[&str]; 6] = [
            &["stats"],
            &["keys", "create", "x", "--scopes", "nothing"],
            &["events", "publish", "a", "--data", "{"],
            &["tenants", "delete", "x"],
            &["stats", "--no-such-flag"],
            &["endpoints", "create", "x", "--from-json", "@nowhere"],
        ];
        for arguments in commands {
            let mut by_flag = server.command(arguments);
            by_flag.args(["--api-key", CANARY]);
            let mut by_variable = server.command(arguments);
            by_variable.env("POSTHASTE_API_KEY", CANARY);
            let mut by_broken_variable = server.command(arguments);
            by_broken_variable.env("POSTHASTE_API_KEY", format!("{CANARY}\n\u{1b}"));
            let mut by_file = server.command(arguments);
            by_file.args(["--data-dir", "other"]);
            for mut command in [by_flag, by_variable, by_broken_variable, by_file] {
                command.env("POSTHASTE_URL", url);
                let seen = run(command, "");
                assert_ne!(seen.code, 0, "{arguments:?} {url}: {seen:?}");
                assert!(!seen.err.contains("canary") && !seen.out.contains("canary"), "{arguments:?} {url}: {seen:?}");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 5 * 6 * 4);
}

#[test]
fn the_key_of_this_machine_is_not_shown_to_another_server() {
    let server = Server::start("stays");
    let stranger = Receiver::start("200 OK", b"{}");
    let url = format!("http://{}", stranger.address);
    let seen = server.run(&["stats", "--url", &url]);
    assert!(seen.code == 6 && seen.err.contains("POSTHASTE_API_KEY"), "{seen:?}");
    assert!(stranger.arrivals.lock().unwrap().is_empty(), "it was not even called");
    // Its own address, said aloud, is no other server.
    server.ok(&["stats", "--url", &format!("http://{}/", server.address)]);
    // And whoever says where the key is has meant it.
    server.ok(&["stats", "--url", &format!("http://localhost:{}", server.address.port()), "--data-dir", "posthaste-data"]);
}

#[test]
fn the_server_of_this_machine_is_found_by_its_own_settings() {
    let server = Server::start("found");
    std::fs::write(server.directory.join("posthaste.toml"), format!("listen = \"{}\"\n", server.address)).unwrap();
    let mut command = server.command(&["stats", "--json"]);
    command.env_remove("POSTHASTE_LISTEN");
    let seen = run(command, "");
    assert_eq!(seen.code, 0, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_is_spoken_to_servers_whose_certificate_is_trusted_and_to_no_others() {
    let server = Server::start("tls");
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let behind = server.address;
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut outside) = acceptor.accept(stream).await else { return };
                let mut inside = TcpStream::connect(behind).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
            });
        }
    });
    let roots = server.directory.join("roots.pem");
    std::fs::write(&roots, cert.pem()).unwrap();
    let ask = |url: String, is_trusted: bool| -> Run {
        let mut command: Command = server.command(&["stats", "--json"]);
        command.env("POSTHASTE_URL", url).env("POSTHASTE_API_KEY", &server.key);
        if is_trusted {
            command.env("SSL_CERT_FILE", &roots);
        }
        run(command, "")
    };
    let trusted = tokio::task::block_in_place(|| ask(format!("https://localhost:{port}"), true));
    assert!(trusted.code == 0 && trusted.out.contains("\"total\""), "{trusted:?}");
    let unknown = tokio::task::block_in_place(|| ask(format!("https://localhost:{port}"), false));
    assert!(unknown.code == 3 && unknown.err.contains("certificate"), "{unknown:?}");
    let misnamed = tokio::task::block_in_place(|| ask(format!("https://127.0.0.1:{port}"), true));
    assert!(misnamed.code == 3 && misnamed.err.contains("certificate"), "{misnamed:?}");
}
