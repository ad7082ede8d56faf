//! How endpoints have fared, per minute.

use posthaste_core::id::{EndpointId, TenantId};
use tokio_postgres::Row;

use super::connection::{Connection, Problem, Use};
use super::{Database, row};
use crate::statistics::{CountedAttempt, EVERYBODY, LedTo, StatisticsOwner, Steps, Tallies, Tally, tallies};
use crate::{Error, StatisticsQuery, StatisticsStep};

impl Database {
    pub(super) async fn count(&self) -> Result<bool, Error> {
        // Mostly there is nothing to do while nothing is delivered.
        let is_any = self.read_for_work(|connection| async move { connection.query_opt(SELECT_ANY_UNCOUNTED, &[]).await }).await?;
        if is_any.is_none() {
            return Ok(false);
        }
        self.transact_by(Use::Work, |connection| async move {
            let rows = connection.query(TAKE_UNCOUNTED, &[&UNCOUNTED_ROWS_MAX]).await?;
            let mut attempts = Vec::new();
            for row in &rows {
                attempts.extend(uncounted(row).unwrap_or_else(|error| {
                    tracing::error!(%error, "some attempts are missing from the statistics");
                    Vec::new()
                }));
            }
            let tallies = tallies(attempts.iter().map(|(attempt, tenant)| (*attempt, tenant)));
            count(&connection, &tallies).await?;
            Ok(rows.len() >= usize::try_from(UNCOUNTED_ROWS_MAX).unwrap_or(usize::MAX))
        })
        .await
    }

    pub(super) async fn statistics(&self, query: StatisticsQuery) -> Result<Vec<StatisticsStep>, Error> {
        let query = &query;
        self.read(|connection| async move {
            let (from, to) = (query.from.as_millis(), query.to.as_millis());
            let tenant = query.tenant.as_ref().map(TenantId::as_str);
            let rows = match query.endpoint {
                Some(endpoint) => {
                    connection.query(SELECT_OF_ENDPOINT, &[&endpoint.to_bytes().as_slice(), &from, &to, &tenant]).await?
                }
                None => connection.query(SELECT_OF_TENANT, &[&tenant.unwrap_or(EVERYBODY), &from, &to]).await?,
            };
            let mut steps = Steps::new(query);
            for row in &rows {
                steps.add(row::column(row, "minute_ms")?, &tally(row)?);
            }
            Ok(steps.steps())
        })
        .await
    }
}

/// Each has the attempts of one commit.
const UNCOUNTED_ROWS_MAX: i64 = 20;
const SELECT_ANY_UNCOUNTED: &str = "SELECT 1 FROM uncounted_attempts LIMIT 1";
/// Waits for rows that another transaction is counting, so that everything recorded before the call is counted when it returns.
const TAKE_UNCOUNTED: &str = "DELETE FROM uncounted_attempts WHERE seq IN (
       SELECT seq FROM uncounted_attempts ORDER BY seq LIMIT $1 FOR UPDATE) RETURNING *";

fn uncounted(row: &Row) -> Result<Vec<(CountedAttempt, TenantId)>, Error> {
    let corrupt = || Error::Corrupt { what: "list of attempts" };
    let endpoints: Vec<Vec<u8>> = row::column(row, "endpoint")?;
    let tenants: Vec<String> = row::column(row, "tenant")?;
    let times: Vec<i64> = row::column(row, "attempted_at_ms")?;
    let statuses: Vec<String> = row::column(row, "status")?;
    let are_timeouts: Vec<bool> = row::column(row, "is_timeout")?;
    let millis: Vec<i64> = row::column(row, "millis")?;
    let attempt = |place: usize| {
        let attempt = CountedAttempt {
            endpoint: EndpointId::from_bytes(endpoints[place].as_slice().try_into().ok()?),
            attempted_at_ms: *times.get(place)?,
            led_to: LedTo::of_status(statuses.get(place)?).ok()?,
            is_timeout: *are_timeouts.get(place)?,
            millis: u32::try_from(*millis.get(place)?).unwrap_or(u32::MAX),
        };
        Some((attempt, TenantId::parse(tenants.get(place)?).ok()?))
    };
    (0..endpoints.len()).map(|place| attempt(place).ok_or_else(corrupt)).collect()
}

const SELECT_OF_ENDPOINT: &str = "SELECT * FROM minutes WHERE endpoint = $1 AND minute_ms >= $2 AND minute_ms < $3
                                    AND ($4::text IS NULL OR tenant = $4)";
const SELECT_OF_TENANT: &str = "SELECT * FROM minutes_of_tenants WHERE tenant = $1 AND minute_ms >= $2 AND minute_ms < $3";

/// Sketches are added up here, because the database cannot: so rows are made if they are not there, locked in order, read, and
/// written.
async fn count(connection: &Connection, tallies: &Tallies) -> Result<(), Problem> {
    let (mut endpoints, mut of_endpoints) = (Keys::default(), Vec::new());
    let (mut tenants, mut of_tenants) = (Keys::default(), Vec::new());
    for ((whose, minute), tally) in tallies {
        match whose {
            StatisticsOwner::Endpoint(endpoint, tenant) => {
                endpoints.endpoints.push(endpoint.to_bytes().to_vec());
                endpoints.tenants.push(tenant.as_str());
                endpoints.minutes.push(*minute);
                of_endpoints.push(tally);
            }
            StatisticsOwner::Tenant(tenant) => {
                tenants.tenants.push(tenant.as_str());
                tenants.minutes.push(*minute);
                of_tenants.push(tally);
            }
            StatisticsOwner::Everybody => {
                tenants.tenants.push(EVERYBODY);
                tenants.minutes.push(*minute);
                of_tenants.push(tally);
            }
        }
    }
    let empty = Tally::default().successes.to_bytes();
    let Keys { endpoints, tenants: tenants_of_endpoints, minutes } = &endpoints;
    connection.execute(MAKE_OF_ENDPOINTS, &[endpoints, tenants_of_endpoints, minutes, &empty]).await?;
    let before = connection.query(LOCK_OF_ENDPOINTS, &[endpoints, minutes]).await?;
    let sums = Sums::of(&of_endpoints, &before)?;
    let Sums { counts: [attempts, successes, timeouts, delivered, dead, retried], success_times, timeout_times } = &sums;
    connection
        .execute(
            SET_OF_ENDPOINTS,
            &[endpoints, minutes, attempts, successes, timeouts, delivered, dead, retried, success_times, timeout_times],
        )
        .await?;
    let Keys { tenants, minutes, .. } = &tenants;
    connection.execute(MAKE_OF_TENANTS, &[tenants, minutes, &empty]).await?;
    let before = connection.query(LOCK_OF_TENANTS, &[tenants, minutes]).await?;
    let sums = Sums::of(&of_tenants, &before)?;
    let Sums { counts: [attempts, successes, timeouts, delivered, dead, retried], success_times, timeout_times } = &sums;
    connection
        .execute(
            SET_OF_TENANTS,
            &[tenants, minutes, attempts, successes, timeouts, delivered, dead, retried, success_times, timeout_times],
        )
        .await?;
    Ok(())
}

#[derive(Default)]
struct Keys<'a> {
    endpoints: Vec<Vec<u8>>,
    tenants: Vec<&'a str>,
    minutes: Vec<i64>,
}

/// What is added and what was there, as columns; nothing for a row that is left as it is.
struct Sums {
    counts: [Vec<Option<i64>>; 6],
    success_times: Vec<Option<Vec<u8>>>,
    timeout_times: Vec<Option<Vec<u8>>>,
}

impl Sums {
    /// Both in the same order.
    fn of(added: &[&Tally], before: &[Row]) -> Result<Sums, Problem> {
        if added.len() != before.len() {
            // One so old that it was swept away in between.
            return Err(Problem::Overtaken);
        }
        let mut sums = Sums { counts: <[Vec<Option<i64>>; 6]>::default(), success_times: Vec::new(), timeout_times: Vec::new() };
        for (added, before) in added.iter().zip(before) {
            let sum = match tally(before) {
                Ok(mut sum) => {
                    sum.add(added);
                    Some(sum)
                }
                // It stays as it is, and the others are counted.
                Err(error) => {
                    tracing::error!(%error, "nothing is added to a damaged minute");
                    None
                }
            };
            let counts = sum.as_ref().map(|sum| sum.counts.columns());
            sums.counts.iter_mut().enumerate().for_each(|(place, column)| column.push(counts.map(|counts| counts[place])));
            sums.success_times.push(sum.as_ref().map(|sum| sum.successes.to_bytes()));
            sums.timeout_times.push(sum.as_ref().map(|sum| sum.timeouts.to_bytes()));
        }
        Ok(sums)
    }
}

fn tally(row: &Row) -> Result<Tally, Error> {
    let mut counts = [0; 6];
    for (count, name) in counts.iter_mut().zip(["attempts", "successes", "timeouts", "delivered", "dead", "retried"]) {
        *count = row::column(row, name)?;
    }
    Tally::of_columns(counts, row::column(row, "success_times")?, row::column(row, "timeout_times")?)
}

const MAKE_OF_ENDPOINTS: &str =
    "INSERT INTO minutes (endpoint, minute_ms, tenant, attempts, successes, timeouts, delivered, dead, retried, success_times,
                          timeout_times)
     SELECT endpoint, minute_ms, tenant, 0, 0, 0, 0, 0, 0, $4::bytea, $4
     FROM unnest($1::bytea[], $2::text[], $3::bigint[]) WITH ORDINALITY AS new (endpoint, tenant, minute_ms, place) ORDER BY place
     ON CONFLICT (endpoint, minute_ms) DO NOTHING";
const LOCK_OF_ENDPOINTS: &str =
    "SELECT m.* FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY AS wanted (endpoint, minute_ms, place)
     JOIN minutes m ON m.endpoint = wanted.endpoint AND m.minute_ms = wanted.minute_ms ORDER BY wanted.place FOR UPDATE OF m";
const SET_OF_ENDPOINTS: &str =
    "UPDATE minutes m SET attempts = s.attempts, successes = s.successes, timeouts = s.timeouts, delivered = s.delivered,
            dead = s.dead, retried = s.retried, success_times = s.success_times, timeout_times = s.timeout_times
     FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
                 $9::bytea[], $10::bytea[])
       AS s (endpoint, minute_ms, attempts, successes, timeouts, delivered, dead, retried, success_times, timeout_times)
     WHERE m.endpoint = s.endpoint AND m.minute_ms = s.minute_ms AND s.attempts IS NOT NULL";
const MAKE_OF_TENANTS: &str =
    "INSERT INTO minutes_of_tenants (tenant, minute_ms, attempts, successes, timeouts, delivered, dead, retried, success_times,
                                     timeout_times)
     SELECT tenant, minute_ms, 0, 0, 0, 0, 0, 0, $3::bytea, $3
     FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS new (tenant, minute_ms, place) ORDER BY place
     ON CONFLICT (tenant, minute_ms) DO NOTHING";
const LOCK_OF_TENANTS: &str =
    "SELECT m.* FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS wanted (tenant, minute_ms, place)
     JOIN minutes_of_tenants m ON m.tenant = wanted.tenant AND m.minute_ms = wanted.minute_ms
     ORDER BY wanted.place FOR UPDATE OF m";
const SET_OF_TENANTS: &str =
    "UPDATE minutes_of_tenants m SET attempts = s.attempts, successes = s.successes, timeouts = s.timeouts,
            delivered = s.delivered, dead = s.dead, retried = s.retried, success_times = s.success_times,
            timeout_times = s.timeout_times
     FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
                 $9::bytea[], $10::bytea[])
       AS s (tenant, minute_ms, attempts, successes, timeouts, delivered, dead, retried, success_times, timeout_times)
     WHERE m.tenant = s.tenant AND m.minute_ms = s.minute_ms AND s.attempts IS NOT NULL";
