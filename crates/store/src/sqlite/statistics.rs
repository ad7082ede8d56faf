//! How endpoints have fared, per minute.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use posthaste_core::id::{EndpointId, TenantId};
use rusqlite::{Connection, Row, params};

use super::{SMALL, Sqlite, row};
use crate::statistics::{
    COUNTED_ATTEMPTS_MAX, COUNTED_ENDPOINTS_MAX, CountedAttempt, EVERYBODY, StatisticsOwner, Steps, Tally, tallies,
};
use crate::{Error, StatisticsQuery, StatisticsStep};

impl Sqlite {
    pub(super) async fn count(&self) -> Result<bool, Error> {
        let is_any =
            |connection: &Connection| Ok(connection.prepare_cached("SELECT 1 FROM uncounted_attempts LIMIT 1")?.exists([])?);
        // Mostly there is nothing to do while nothing is delivered.
        if !self.read_for_work(is_any).await? {
            return Ok(false);
        }
        self.write(SMALL, |connection, _| count(connection)).await
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

/// Part of the transaction that records the attempts.
pub(super) fn note(connection: &Connection, attempts: &[u8]) -> Result<(), Error> {
    if !attempts.is_empty() {
        connection.prepare_cached("INSERT INTO uncounted_attempts (attempts) VALUES (?1)")?.execute([attempts])?;
    }
    Ok(())
}

fn count(connection: &Connection) -> Result<bool, Error> {
    let (mut attempts, mut tenants) = (Vec::new(), BTreeMap::new());
    let (mut last, mut is_more) = (0, false);
    let mut select = connection.prepare_cached("SELECT seq, attempts FROM uncounted_attempts ORDER BY seq")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        if attempts.len() >= COUNTED_ATTEMPTS_MAX || tenants.len() >= COUNTED_ENDPOINTS_MAX {
            is_more = true;
            break;
        }
        last = row::column::<i64>(row, "seq")?;
        let noted = CountedAttempt::read_all(&row::column::<Vec<u8>>(row, "attempts")?).unwrap_or_else(|error| {
            tracing::error!(%error, "some attempts are missing from the statistics");
            Vec::new()
        });
        for attempt in &noted {
            if let Entry::Vacant(unknown) = tenants.entry(attempt.endpoint) {
                unknown.insert(tenant_of(connection, attempt.endpoint)?);
            }
        }
        attempts.extend(noted);
    }
    drop(rows);
    let of_tenants = attempts.into_iter().filter_map(|attempt| Some((attempt, tenants.get(&attempt.endpoint)?.as_ref()?)));
    for ((whose, minute), mut tally) in tallies(of_tenants) {
        match counted(connection, &whose, minute) {
            Ok(Some(before)) => tally.add(&before),
            Ok(None) => {}
            // It stays as it is, and the others are counted.
            Err(error @ Error::Corrupt { .. }) => {
                tracing::error!(%error, ?whose, minute, "nothing is added to a damaged minute");
                continue;
            }
            Err(error) => return Err(error),
        }
        keep(connection, &whose, minute, &tally)?;
    }
    connection.prepare_cached("DELETE FROM uncounted_attempts WHERE seq <= ?1")?.execute([last])?;
    Ok(is_more)
}

/// Deleted ones, too. `None` for one that is not there any more: nobody asks for its statistics.
fn tenant_of(connection: &Connection, endpoint: EndpointId) -> Result<Option<TenantId>, Error> {
    let mut select = connection.prepare_cached("SELECT tenant FROM endpoints WHERE id = ?1")?;
    row::first(select.query([endpoint.to_bytes()])?, |row| row::parsed(row, "tenant", TenantId::parse))
}

const SELECT_OF_ENDPOINT: &str = "SELECT * FROM minutes WHERE endpoint = ?1 AND minute_ms >= ?2 AND minute_ms < ?3
                                    AND (?4 IS NULL OR tenant = ?4)";
const SELECT_OF_TENANT: &str = "SELECT * FROM minutes_of_tenants WHERE tenant = ?1 AND minute_ms >= ?2 AND minute_ms < ?3";

fn counted(connection: &Connection, whose: &StatisticsOwner, minute: i64) -> Result<Option<Tally>, Error> {
    let of_tenant = "SELECT * FROM minutes_of_tenants WHERE tenant = ?1 AND minute_ms = ?2";
    match whose {
        StatisticsOwner::Endpoint(endpoint, _) => {
            let mut select = connection.prepare_cached("SELECT * FROM minutes WHERE endpoint = ?1 AND minute_ms = ?2")?;
            row::first(select.query(params![endpoint.to_bytes(), minute])?, tally)
        }
        StatisticsOwner::Tenant(tenant) => {
            row::first(connection.prepare_cached(of_tenant)?.query(params![tenant.as_str(), minute])?, tally)
        }
        StatisticsOwner::Everybody => row::first(connection.prepare_cached(of_tenant)?.query(params![EVERYBODY, minute])?, tally),
    }
}

fn keep(connection: &Connection, whose: &StatisticsOwner, minute: i64, tally: &Tally) -> Result<(), Error> {
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
        StatisticsOwner::Endpoint(endpoint, tenant) => connection
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
        StatisticsOwner::Tenant(tenant) => keep_of_tenant(tenant.as_str())?,
        StatisticsOwner::Everybody => keep_of_tenant(EVERYBODY)?,
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
