//! A database of the bench's own on the PostgreSQL server that was named, so that nobody's tables are touched; its size, and which
//! processes of this machine are its server.
//!
//! Everything about Posthaste's own tables is the store's. This makes the room that a server is put into, and measures it from outside.

use std::net::ToSocketAddrs;

use anyhow::{Context, anyhow};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

use super::meter;
use crate::log::without_control_characters;

pub(super) struct Database {
    client: Client,
    url: String,
    /// Its first process, if that is on this machine.
    pub(super) postmaster: Option<u32>,
    pub(super) version: String,
}

impl Database {
    pub(super) async fn connect(url: &str) -> anyhow::Result<Database> {
        let client = connect(url).await?;
        let row = client.query_one("SELECT pg_backend_pid(), current_setting('server_version')", &[]).await.map_err(plainly)?;
        let backend = u32::try_from(row.get::<_, i32>(0)).unwrap_or(0);
        let version = row.get::<_, String>(1).split(' ').next().unwrap_or_default().to_owned();
        // The number is only worth something where it is one of this machine's, and of PostgreSQL.
        let is_ours = is_local(url) && meter::name(backend).is_some_and(|name| name.starts_with("postgres"));
        let postmaster = is_ours.then(|| meter::parent(backend)).flatten();
        Ok(Database { client, url: url.to_owned(), postmaster, version })
    }

    /// An empty one. Answers its address.
    pub(super) async fn create(&self, name: &str) -> anyhow::Result<String> {
        self.client.batch_execute(&format!("CREATE DATABASE {name}")).await.map_err(plainly)?;
        Ok(with_name(&self.url, name))
    }

    pub(super) async fn bytes(&self, name: &str) -> anyhow::Result<u64> {
        let row = self.client.query_one("SELECT pg_database_size($1)", &[&name]).await.map_err(plainly)?;
        Ok(u64::try_from(row.get::<_, i64>(0))?)
    }
}

/// Also of those that somebody still uses.
pub(super) async fn drop_all(url: &str, names: &[&str]) -> anyhow::Result<()> {
    let client = connect(url).await?;
    for name in names {
        client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await.map_err(plainly)?;
    }
    Ok(())
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(plainly).context("cannot reach the database")?;
    tokio::spawn(connection);
    Ok(client)
}

/// Whether the server is where we are.
fn is_local(url: &str) -> bool {
    let Ok(config) = url.parse::<Config>() else { return false };
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => (name.as_str(), 0).to_socket_addrs().is_ok_and(|mut all| all.all(|address| address.ip().is_loopback())),
    })
}

/// The same server, another database.
fn with_name(url: &str, name: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let (before, parameters) = rest.split_once('?').map_or((rest, None), |(before, parameters)| (before, Some(parameters)));
    let authority = before.split_once('/').map_or(before, |(authority, _)| authority);
    let parameters = parameters.map(|parameters| format!("?{parameters}")).unwrap_or_default();
    format!("{scheme}://{authority}/{name}{parameters}")
}

/// One line, with what the database itself had to say.
#[expect(clippy::needless_pass_by_value, reason = "it is handed to `map_err`")]
fn plainly(error: tokio_postgres::Error) -> anyhow::Error {
    let said = error.as_db_error().map_or_else(|| error.to_string(), |database| database.message().to_owned());
    anyhow!("{}", without_control_characters(&said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_of_the_same_server_is_named_by_its_address() {
        for (url, expected) in [
            ("postgres://me:secret@db:5432/mine", "postgres://me:secret@db:5432/bench"),
            ("postgres://db", "postgres://db/bench"),
            ("postgresql://db/?host=/run/a/b", "postgresql://db/bench?host=/run/a/b"),
            ("postgres://me@db/mine?application_name=x", "postgres://me@db/bench?application_name=x"),
        ] {
            assert_eq!(with_name(url, "bench"), expected);
        }
    }

    #[test]
    fn a_server_is_local_if_every_way_to_it_is() {
        assert!(is_local("postgres://127.0.0.1:5432/x") && is_local("postgres:///x?host=/run/postgresql"));
        assert!(!is_local("postgres://192.0.2.1/x") && !is_local("postgres://127.0.0.1,192.0.2.1/x") && !is_local("nonsense"));
    }
}
