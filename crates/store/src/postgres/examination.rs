//! A look at a database without changing anything in it.

use std::time::{SystemTime, UNIX_EPOCH};

use super::address::PostgresAddress;
use super::connection::{Connection, Connections, Problem, SETTINGS, Use};
use super::migrations::STEPS;
use super::{Postgres, SELECT_MASTER_KEY, SELECT_SETTINGS, configuration, row, unfit};
use crate::columns::{corrupt, limit};
use crate::examination::{ENDPOINTS_MAX, Examined, MasterKeyFit, Schema};
use crate::{Error, Keyring};

impl Postgres {
    /// Looks at the database that this URL names, also while servers use it.
    pub async fn examine(url: &str, keyring: Option<&Keyring>) -> Result<Examined, Error> {
        let connections = Connections::new(&PostgresAddress::parse(url)?.with_options(SETTINGS))?;
        let connection = connections.get(Use::Verb).await?;
        let examined = look(&connection, keyring).await;
        drop(connection);
        connections.close();
        Ok(examined?)
    }
}

async fn look(connection: &Connection, keyring: Option<&Keyring>) -> Result<Examined, Problem> {
    let settings = connection.query_one(SELECT_SETTINGS, &[]).await?;
    let version = connection.query_one(SELECT_VERSION, &[]).await?;
    // Nothing that follows could write, even by mistake.
    connection.batch("SET default_transaction_read_only = on").await?;
    let troubles = unfit(&settings)?.map(str::to_owned).into_iter().collect();
    let asked_at = since_1970_micros();
    let row = connection.query_one(SELECT_CLOCK, &[]).await?;
    // It read its clock half-way between the question and the answer.
    let here = i64::midpoint(asked_at, since_1970_micros());
    let skew = std::time::Duration::from_micros(here.abs_diff(row::column(&row, "micros")?));
    let has_tables: bool = row::column(&connection.query_one(SELECT_HAS_TABLES, &[]).await?, "has_tables")?;
    let (stored, sealed_with) = if has_tables { stored(connection).await? } else { (None, None) };
    let has_endpoints: bool = row::column(&connection.query_one(SELECT_HAS_ENDPOINTS, &[]).await?, "has_tables")?;
    let sealed = match keyring {
        Some(keyring) if has_endpoints => Some(configuration::sealed_values(connection, keyring).await?),
        Some(_) | None => None,
    };
    let known = STEPS.last().expect("there are steps").version;
    let endpoint_urls = if has_tables { endpoint_urls(connection).await? } else { vec![] };
    let has_deliveries: bool = row::column(&connection.query_one(SELECT_HAS_DELIVERIES, &[]).await?, "has_tables")?;
    let hold = if has_deliveries { super::hold::find(connection).await? } else { None };
    Ok(Examined {
        version: format!("PostgreSQL {}", row::text(&version, "words")?),
        schema: Schema::of(stored, known),
        master_key: MasterKeyFit::of(sealed_with, keyring),
        sealed,
        clock_skew: Some(skew),
        clock_jumped_by: None,
        has_unread_log: false,
        hold,
        endpoint_urls,
        troubles,
    })
}

type Stored = (Option<(u32, u32)>, Option<String>);

async fn stored(connection: &Connection) -> Result<Stored, Problem> {
    let number = |stored: i64| u32::try_from(stored).map_err(corrupt("schema version"));
    let schema = match connection.query_opt("SELECT version, usable_from FROM schema", &[]).await? {
        Some(row) => Some((number(row::column(&row, "version")?)?, number(row::column(&row, "usable_from")?)?)),
        None => None,
    };
    // The first step makes the table of words.
    let sealed_with = match connection.query_opt(SELECT_HAS_WORDS, &[]).await? {
        Some(_) => connection.query_opt(SELECT_MASTER_KEY, &[]).await?,
        None => None,
    };
    let sealed_with = sealed_with.map(|row| row::text(&row, "value").map(str::to_owned)).transpose()?;
    Ok((schema, sealed_with))
}

/// None while the tables are being made.
async fn endpoint_urls(connection: &Connection) -> Result<Vec<String>, Problem> {
    if connection.query_opt("SELECT 1 WHERE to_regclass('endpoints') IS NOT NULL", &[]).await?.is_none() {
        return Ok(vec![]);
    }
    let rows = connection.query(SELECT_URLS, &[&limit(ENDPOINTS_MAX)]).await?;
    Ok(rows.iter().map(|row| row::text(row, "url").map(str::to_owned)).collect::<Result<_, Error>>()?)
}

fn since_1970_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

const SELECT_URLS: &str = "SELECT url FROM endpoints WHERE deleted_at_ms IS NULL AND status <> 'disabled' LIMIT $1";
const SELECT_VERSION: &str = "SELECT current_setting('server_version') AS words";
const SELECT_CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS micros";
const SELECT_HAS_TABLES: &str = "SELECT to_regclass('schema') IS NOT NULL AS has_tables";
const SELECT_HAS_ENDPOINTS: &str = "SELECT to_regclass('endpoints') IS NOT NULL AS has_tables";
const SELECT_HAS_DELIVERIES: &str = "SELECT to_regclass('deliveries') IS NOT NULL AS has_tables";
const SELECT_HAS_WORDS: &str = "SELECT 1 WHERE to_regclass('words') IS NOT NULL";
