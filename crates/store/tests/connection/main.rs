//! Connections to PostgreSQL: every `sslmode`, client certificates, several hosts, and a start before the server is up.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use posthaste_store::*;
use posthaste_testpg::Server;

fn options() -> Options {
    Options::new(Keyring::new(MasterKey::from_base64("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").unwrap(), vec![]))
}

/// An authority and certificates that it has signed, made with the program `openssl`.
struct Authority(PathBuf);

impl Authority {
    fn new(name: &str) -> Authority {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let authority = Authority(directory);
        let subject = format!("/CN={name}");
        authority.openssl(
            &["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"],
            &["-subj", &subject, "-keyout", "ca.key", "-out", "ca.pem"],
        );
        authority
    }

    fn openssl(&self, first: &[&str], rest: &[&str]) {
        let done = Command::new("openssl").args(first).args(rest).current_dir(&self.0).output().expect("openssl is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// Answers the certificate and its key.
    fn sign(&self, common_name: &str, alternative_name: &str) -> (PathBuf, PathBuf) {
        let (request, key, certificate) =
            (format!("{common_name}.csr"), format!("{common_name}.key"), format!("{common_name}.pem"));
        let (subject, extension) = (format!("/CN={common_name}"), format!("{common_name}.ext"));
        std::fs::write(self.0.join(&extension), format!("basicConstraints=CA:FALSE\nsubjectAltName={alternative_name}\n")).unwrap();
        self.openssl(
            &["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"],
            &["-subj", &subject, "-keyout", &key, "-out", &request],
        );
        self.openssl(
            &["x509", "-req", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"],
            &["-in", &request, "-extfile", &extension, "-out", &certificate],
        );
        (self.0.join(certificate), self.0.join(key))
    }

    fn certificate(&self) -> PathBuf {
        self.0.join("ca.pem")
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn server_with_tls(authority: &Authority, alternative_name: &str) -> Server {
    let server = Server::start();
    let (certificate, key) = authority.sign("server", alternative_name);
    server.enable_tls(&certificate, &key, &authority.certificate());
    server
}

/// Whether a session is encrypted, or why there is none.
async fn is_encrypted(url: &str) -> Result<bool, String> {
    let address = PostgresAddress::parse(url).map_err(|error| error.to_string())?;
    let (client, connection) = address.connect().await.map_err(|error| match error {
        ConnectError::Postgres(error) => postgres_sentence(&error),
        ConnectError::Unusable(error) => error.to_string(),
        ConnectError::NoAnswer => "no answer".to_owned(),
    })?;
    let connection = tokio::spawn(connection);
    let row = client.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]).await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
    Ok(row.get(0))
}

fn shown(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_sslmode_does_what_libpq_does() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let (plain, right) = (Server::start(), server_with_tls(&ours, "IP:127.0.0.1"));
    let wrong_name = server_with_tls(&ours, "DNS:db.example.com");
    let (ca, other_ca) = (shown(&ours.certificate()), shown(&other.certificate()));
    for (server, parameters, expected) in [
        (&plain, "sslmode=disable".to_owned(), Ok(false)),
        (&plain, "sslmode=prefer".to_owned(), Ok(false)),
        (&plain, "sslmode=require".to_owned(), Err("does not support TLS")),
        (&plain, format!("sslmode=verify-full&sslrootcert={ca}"), Err("does not support TLS")),
        (&right, "sslmode=disable".to_owned(), Ok(false)),
        (&right, "sslmode=prefer".to_owned(), Ok(true)),
        (&right, "sslmode=require".to_owned(), Ok(true)),
        (&right, format!("sslmode=require&sslrootcert={other_ca}"), Err("UnknownIssuer")),
        (&right, format!("sslmode=verify-ca&sslrootcert={ca}"), Ok(true)),
        (&right, format!("sslmode=verify-ca&sslrootcert={other_ca}"), Err("UnknownIssuer")),
        (&right, format!("sslmode=verify-full&sslrootcert={ca}"), Ok(true)),
        (&right, format!("sslmode=verify-full&sslrootcert={other_ca}"), Err("UnknownIssuer")),
        (&right, "sslmode=verify-full".to_owned(), Err("UnknownIssuer")),
        (&wrong_name, "sslmode=require".to_owned(), Ok(true)),
        (&wrong_name, format!("sslmode=verify-ca&sslrootcert={ca}"), Ok(true)),
        (&wrong_name, format!("sslmode=verify-full&sslrootcert={ca}"), Err("not valid for name")),
    ] {
        let result = is_encrypted(&format!("{}?{parameters}", server.url())).await;
        match (&result, expected) {
            (Ok(is_encrypted), Ok(expected)) => assert_eq!(*is_encrypted, expected, "{parameters}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{parameters}: {why}"),
            (_, expected) => panic!("{parameters}: {result:?} instead of {expected:?}"),
        }
    }
}

#[tokio::test]
async fn a_store_uses_tls_and_refuses_a_bad_certificate_at_once() {
    let (ours, other) = (Authority::new("store"), Authority::new("stranger"));
    let server = server_with_tls(&ours, "IP:127.0.0.1");
    let url = format!("{}?sslmode=verify-full&sslrootcert={}", server.url(), shown(&ours.certificate()));
    let store = Postgres::connect(&url, options()).await.unwrap();
    assert_eq!(
        server.psql(
            "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'posthaste' AND NOT ssl"
        ),
        "0"
    );
    store.close().await.unwrap();
    let url = format!("{}?sslmode=verify-full&sslrootcert={}", server.url(), shown(&other.certificate()));
    let began = Instant::now();
    let refused = Postgres::connect_within(&url, Duration::from_mins(1), options()).await.unwrap_err();
    assert!(matches!(&refused, Error::Unusable(why) if why.contains("sslrootcert")), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(20), "it does not wait for what time does not mend");
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_the_server_asks_for_one() {
    let (ours, other) = (Authority::new("clients"), Authority::new("impostor"));
    let server = server_with_tls(&ours, "IP:127.0.0.1");
    server.authenticate_by("hostssl all all 127.0.0.1/32 cert\n");
    let parameters = |certificate: Option<(PathBuf, PathBuf)>| {
        let certificate = certificate.map(|(file, key)| format!("&sslcert={}&sslkey={}", shown(&file), shown(&key)));
        format!("{}?sslmode=require{}", server.url(), certificate.unwrap_or_default())
    };
    assert_eq!(is_encrypted(&parameters(Some(ours.sign("postgres", "DNS:client")))).await, Ok(true));
    let refused = Postgres::connect_within(&parameters(None), Duration::from_mins(1), options()).await.unwrap_err();
    assert!(matches!(&refused, Error::Unusable(why) if why.contains("client certificate")), "{refused}");
    let refused = is_encrypted(&parameters(Some(other.sign("postgres", "DNS:client")))).await;
    assert!(refused.is_err(), "{refused:?}");
    let (file, key) = ours.sign("loose", "DNS:client");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let refused = is_encrypted(&parameters(Some((file, key)))).await;
    assert!(refused.as_ref().is_err_and(|why| why.contains("chmod 600")), "{refused:?}");
}

#[tokio::test]
async fn of_several_hosts_the_one_that_takes_writes_is_used_and_a_failover_is_followed() {
    let (one, two) = (Server::start_with(&[("default_transaction_read_only", "on")]), Server::start());
    let hosts = format!("127.0.0.1:1,127.0.0.1:{},127.0.0.1:{}", one.port(), two.port());
    let url = format!("postgres://postgres@{hosts}/postgres?target_session_attrs=read-write");
    let address = PostgresAddress::parse(&url).unwrap();
    let port = async || {
        let (client, connection) = address.connect().await.ok()?;
        let connection = tokio::spawn(connection);
        let port: String = client.query_one("SELECT current_setting('port')", &[]).await.ok()?.get(0);
        drop(client);
        connection.await.ok()?.ok()?;
        port.parse::<u16>().ok()
    };
    assert_eq!(port().await, Some(two.port()));
    let store = Postgres::connect(&url, options()).await.unwrap();
    store.configuration_number().await.unwrap();
    store.close().await.unwrap();
    two.kill();
    let conf = one.directory().join("data/postgresql.conf");
    std::fs::write(&conf, std::fs::read_to_string(&conf).unwrap() + "default_transaction_read_only = off\n").unwrap();
    one.restart_immediately();
    assert_eq!(port().await, Some(one.port()), "the other host takes writes now");
}

#[tokio::test]
async fn a_host_that_does_not_answer_leaves_time_for_the_next() {
    let (hung, good) = (Server::start(), Server::start());
    hung.freeze();
    let url = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", hung.port(), good.port());
    let store = Postgres::connect(&url, options()).await.unwrap();
    store.close().await.unwrap();
    hung.thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_waits_for_a_server_that_comes_up_late() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    let refused = Postgres::connect_within(&url, Duration::ZERO, options()).await.unwrap_err();
    assert!(matches!(&refused, Error::Unavailable(_)), "{refused}");
    let waiting = tokio::spawn(async move { Postgres::connect_within(&url, Duration::from_mins(1), options()).await });
    // Long enough for several refused connections; a start that does not wait has ended by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    tokio::task::block_in_place(|| server.begin());
    waiting.await.unwrap().unwrap().close().await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_or_database_is_refused_at_once() {
    let server = Server::start();
    server.psql("CREATE ROLE hooks LOGIN PASSWORD 'right'");
    server.authenticate_by("host all hooks 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n");
    let began = Instant::now();
    for url in [format!("postgres://hooks:canary@127.0.0.1:{}/postgres", server.port()), server.url_of("nowhere")] {
        let refused = Postgres::connect_within(&url, Duration::from_mins(1), options()).await.unwrap_err();
        let is_clear =
            matches!(&refused, Error::Unusable(why) if why.contains("refuses the connection") && !why.contains("canary"));
        assert!(is_clear, "{refused}");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "it does not wait for what time does not mend");
    is_encrypted(&format!("postgres://hooks:right@127.0.0.1:{}/postgres", server.port())).await.unwrap();
}
