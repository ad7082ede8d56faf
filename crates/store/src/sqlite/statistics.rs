//! How endpoints have fared, per minute.

use posthaste_core::id::TenantId;
use rusqlite::{Connection, Row, params};

use super::{SMALL, Sqlite, row};
use crate::statistics::{EVERYBODY, Steps, Tally, Whose, tallies};
use crate::{Error, Minute, StatisticsQuery, StatisticsStep};

impl Sqlite {
    pub(super) async fn count(&self, minutes: Vec<Minute>) -> Result<(), Error> {
        self.write(SMALL * minutes.len(), move |connection, _| {
            for ((whose, minute), mut tally) in tallies(&minutes) {
                if let Some(before) = counted(connection, &whose, minute)? {
                    tally.add(&before);
                }
                keep(connection, &whose, minute, &tally)?;
            }
            Ok(())
        })
        .await
    }

    pub(super) async fn statistics(&self, query: StatisticsQuery) -> Result<Vec<StatisticsStep>, Error> {
        self.read(move |connection| {
            let mut steps = Steps::new(&query);
            let (from, to) = (query.from.as_millis(), query.to.as_millis());
            let tenant = query.tenant.as_ref().map(TenantId::as_str);
            let mut add = |row: &Row<'_>| {
                steps.add(row::column(row, "minute_ms")?, &tally(row)?);
                Ok::<_, Error>(())
            };
            match query.endpoint {
                Some(endpoint) => row::all(
                    connection.prepare_cached(SELECT_OF_ENDPOINT)?.query(params![endpoint.to_bytes(), from, to, tenant])?,
                    &mut add,
                )?,
                None => row::all(
                    connection.prepare_cached(SELECT_OF_TENANT)?.query(params![tenant.unwrap_or(EVERYBODY), from, to])?,
                    &mut add,
                )?,
            };
            Ok(steps.steps())
        })
        .await
    }
}

const SELECT_OF_ENDPOINT: &str = "SELECT * FROM minutes WHERE endpoint = ?1 AND minute_ms >= ?2 AND minute_ms < ?3
                                    AND (?4 IS NULL OR tenant = ?4)";
const SELECT_OF_TENANT: &str = "SELECT * FROM minutes_of_tenants WHERE tenant = ?1 AND minute_ms >= ?2 AND minute_ms < ?3";

fn counted(connection: &Connection, whose: &Whose, minute: i64) -> Result<Option<Tally>, Error> {
    let of_tenant = "SELECT * FROM minutes_of_tenants WHERE tenant = ?1 AND minute_ms = ?2";
    match whose {
        Whose::Endpoint(endpoint, _) => {
            let mut select = connection.prepare_cached("SELECT * FROM minutes WHERE endpoint = ?1 AND minute_ms = ?2")?;
            row::first(select.query(params![endpoint.to_bytes(), minute])?, tally)
        }
        Whose::Tenant(tenant) => row::first(connection.prepare_cached(of_tenant)?.query(params![tenant.as_str(), minute])?, tally),
        Whose::Everybody => row::first(connection.prepare_cached(of_tenant)?.query(params![EVERYBODY, minute])?, tally),
    }
}

fn keep(connection: &Connection, whose: &Whose, minute: i64, tally: &Tally) -> Result<(), Error> {
    let [attempts, successes, timeouts, delivered, dead, retried] = tally.counts.columns();
    let (success_times, timeout_times) = (tally.successes.to_bytes(), tally.timeouts.to_bytes());
    let keep_of_tenant = |tenant: &str| {
        connection
            .prepare_cached(
                "INSERT OR REPLACE INTO minutes_of_tenants (tenant, minute_ms, attempts, successes, timeouts, delivered, dead,
                                                            retried, success_times, timeout_times)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?
            .execute(params![tenant, minute, attempts, successes, timeouts, delivered, dead, retried, success_times, timeout_times])
    };
    match whose {
        Whose::Endpoint(endpoint, tenant) => connection
            .prepare_cached(
                "INSERT OR REPLACE INTO minutes (endpoint, minute_ms, tenant, attempts, successes, timeouts, delivered, dead,
                                                 retried, success_times, timeout_times)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?
            .execute(params![
                endpoint.to_bytes(),
                minute,
                tenant.as_str(),
                attempts,
                successes,
                timeouts,
                delivered,
                dead,
                retried,
                success_times,
                timeout_times
            ])?,
        Whose::Tenant(tenant) => keep_of_tenant(tenant.as_str())?,
        Whose::Everybody => keep_of_tenant(EVERYBODY)?,
    };
    Ok(())
}

fn tally(row: &Row<'_>) -> Result<Tally, Error> {
    let mut counts = [0; 6];
    for (count, name) in counts.iter_mut().zip(["attempts", "successes", "timeouts", "delivered", "dead", "retried"]) {
        *count = row::column(row, name)?;
    }
    let (successes, timeouts): (Vec<u8>, Vec<u8>) = (row::column(row, "success_times")?, row::column(row, "timeout_times")?);
    Tally::of_columns(counts, &successes, &timeouts)
}
