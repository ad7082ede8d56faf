//! Connections to the server: how they are made, how long anybody waits, what is tried again, and what a transaction has
//! come to when the answer to its `COMMIT` was lost.

use std::error::Error as _;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use deadpool_postgres::{Connect, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row, Statement};

use super::Database;
use super::address::{CONNECT_MAX, ConnectError, PostgresAddress, is_of_tls, is_permanent};
use super::row::{self, Parameters};
use crate::Error;

/// For verbs that people ask for, each of which takes one. Some of their queries are slow.
const CONNECTIONS: usize = 12;
/// For what delivering and publishing cannot go on without: slow queries of people never keep a lane from its next rows.
const WORK_CONNECTIONS: usize = 4;
/// For committers, beside the others: a dozen slow questions must not keep anybody from publishing.
const COMMITTING_CONNECTIONS: usize = 4;
/// How long a verb waits for a connection that others use.
const WAIT_MAX: Duration = Duration::from_millis(2_500);
/// A server that hangs answers nothing, so that whoever asks has to look at the clock. A verb answers within this time, so that
/// its caller can tell a client within five seconds that the database is away.
pub(super) const VERB_MAX: Duration = Duration::from_secs(4);
/// What of it is kept for the commit of a transaction, and for asking what has become of it.
const COMMIT_SHARE: Duration = Duration::from_secs(1);
/// For what is sent in one go, with its commit.
const FLIGHT_MAX: Duration = Duration::from_secs(6);
/// How long a committer asks after a commit whose answer was lost.
const DOUBT_MAX: Duration = Duration::from_secs(4);
const ROLLBACK_MAX: Duration = Duration::from_secs(1);
const TRIES_MAX: u32 = 5;

/// What every session goes by. PostgreSQL plans by statistics, which are wrong for a queue that was empty when it was last
/// looked at: so it is told to follow indexes in loops, which is all that SQLite knows. Partitioned plans stay small so.
pub(super) const SETTINGS: &str = "-c statement_timeout=5000 -c idle_in_transaction_session_timeout=10000 -c synchronous_commit=on \
                        -c TimeZone=UTC -c default_transaction_isolation=read\\ committed -c jit=off -c enable_seqscan=off \
                        -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off";

/// Why something was not done, before it is known whether it is tried again.
#[derive(Debug)]
pub(super) enum Problem {
    Postgres(tokio_postgres::Error),
    /// Nobody knows whether it was committed.
    Unknown,
    /// Somebody else was quicker; the next try sees what they did.
    Overtaken,
    Store(Error),
}

/// What can be done about a problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Remedy {
    /// It passes by itself: on another connection, or a moment later.
    TryAgain,
    /// The table of a day is not there.
    MakePartitions,
    /// What it was planned by has moved on.
    PlanAgain,
    /// A row's own fault: its neighbours can be written without it.
    LeaveItOut,
    Nothing,
}

impl From<tokio_postgres::Error> for Problem {
    fn from(error: tokio_postgres::Error) -> Problem {
        Problem::Postgres(error)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        Problem::Store(error)
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Error {
        match problem {
            Problem::Postgres(error) => match error.code() {
                Some(&SqlState::QUERY_CANCELED) => Error::unavailable("the query took too long"),
                Some(&SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED) => Error::Corrupt { what: "table or index" },
                _ if remedy_of(&error) == Remedy::PlanAgain => Error::unavailable("the configuration changes too often"),
                _ => Error::unavailable(sentence(&error)),
            },
            Problem::Unknown => Error::CommitInDoubt,
            Problem::Overtaken => Error::unavailable("others were quicker too often"),
            Problem::Store(error) => error,
        }
    }
}

impl Problem {
    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Problem::Postgres(error) => remedy_of(error),
            Problem::Overtaken => Remedy::TryAgain,
            Problem::Unknown | Problem::Store(_) => Remedy::Nothing,
        }
    }
}

impl Problem {
    /// Whether a statement may have been done although it has failed.
    fn leaves_doubt(&self) -> bool {
        match self {
            Problem::Postgres(error) => !has_refused(error),
            Problem::Unknown => true,
            Problem::Overtaken | Problem::Store(_) => false,
        }
    }

    /// Whether somebody else holds what was wanted.
    pub(super) fn is_of_a_lock(&self) -> bool {
        let Problem::Postgres(error) = self else { return false };
        matches!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED | &SqlState::QUERY_CANCELED))
    }
}

/// What PostgreSQL says, with what lies behind it: by itself it says `db error`.
pub fn sentence(error: &tokio_postgres::Error) -> String {
    let mut text =
        error.as_db_error().map_or_else(|| error.to_string(), |error| format!("{} ({})", error.message(), error.code().code()));
    let mut cause = error.source().filter(|_| error.as_db_error().is_none());
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

fn remedy_of(error: &tokio_postgres::Error) -> Remedy {
    let Some(database_error) = error.as_db_error() else {
        return if is_lost(error) { Remedy::TryAgain } else { Remedy::LeaveItOut };
    };
    let code = database_error.code();
    let (class, is_of_a_partition) = (&code.code()[..2], matches!(database_error.table(), Some("events" | "attempts")));
    match *code {
        // Others were in the way; the server goes down or comes up; or a prepared statement is older than a migration.
        SqlState::T_R_SERIALIZATION_FAILURE
        | SqlState::T_R_DEADLOCK_DETECTED
        | SqlState::LOCK_NOT_AVAILABLE
        | SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
        // The server was demoted to a standby; a new connection finds the primary.
        | SqlState::READ_ONLY_SQL_TRANSACTION
        | SqlState::FEATURE_NOT_SUPPORTED
        | SqlState::INVALID_SQL_STATEMENT_NAME => Remedy::TryAgain,
        SqlState::CHECK_VIOLATION if database_error.constraint().is_none() && is_of_a_partition => Remedy::MakePartitions,
        SqlState::NOT_NULL_VIOLATION if database_error.table() == Some("commits") => Remedy::PlanAgain,
        _ if class == "08" => Remedy::TryAgain,
        _ if class == "22" || class == "23" || class == "54" => Remedy::LeaveItOut,
        _ => Remedy::Nothing,
    }
}

/// Whether the server has said no, and lives on.
fn has_refused(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
}

fn is_lost(error: &tokio_postgres::Error) -> bool {
    error.is_closed() || error.source().is_some_and(<dyn std::error::Error>::is::<std::io::Error>)
}

/// The server's connections, as many as each use may have.
#[derive(Debug)]
pub(super) struct Connections {
    verbs: Pool,
    work: Pool,
    committing: Pool,
    /// One of its own, so that a busy pool cannot delay heartbeats.
    heartbeats: Pool,
    is_closed: AtomicBool,
}

/// A statement is ended by the server before its verb gives up, so that the connection can be used again.
const VERBS: &str = "-c statement_timeout=3500";
/// A group joins what it was given with what it has done: five hundred rows with five hundred, which loops would square.
const COMMITTING: &str = "-c enable_hashjoin=on";

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Verb,
    Work,
    Committing,
    Heartbeat,
}

impl Connections {
    pub(super) fn new(address: &PostgresAddress) -> Result<Connections, Error> {
        let pool = |connections: usize, settings: &str| {
            let address = address.with_options(settings);
            let (config, recycling) = (address.first_config(), ManagerConfig { recycling_method: RecyclingMethod::Fast });
            let manager = Manager::from_connect(config, PoolConnector(address), recycling);
            Pool::builder(manager)
                .max_size(connections)
                .wait_timeout(Some(WAIT_MAX))
                .create_timeout(Some(CONNECT_MAX))
                .recycle_timeout(Some(WAIT_MAX))
                .runtime(Runtime::Tokio1)
                .build()
                .map_err(Error::unavailable)
        };
        Ok(Connections {
            verbs: pool(CONNECTIONS, VERBS)?,
            work: pool(WORK_CONNECTIONS, VERBS)?,
            committing: pool(COMMITTING_CONNECTIONS, COMMITTING)?,
            heartbeats: pool(1, VERBS)?,
            is_closed: AtomicBool::new(false),
        })
    }

    pub(super) async fn get(&self, purpose: Use) -> Result<Arc<Connection>, Problem> {
        if self.are_closed() {
            return Err(Error::unavailable("the store is closed").into());
        }
        let pool = match purpose {
            Use::Verb => &self.verbs,
            Use::Work => &self.work,
            Use::Committing => &self.committing,
            Use::Heartbeat => &self.heartbeats,
        };
        match pool.get().await {
            Ok(client) => Ok(Arc::new(Connection { client: Some(client), is_usable: AtomicBool::new(false) })),
            Err(error) => Err(no_connection(error)),
        }
    }

    pub(super) fn are_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Later verbs hear that it is closed.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.verbs.close();
        self.work.close();
        self.committing.close();
        self.heartbeats.close();
    }
}

fn no_connection(error: PoolError) -> Problem {
    let why = match error {
        PoolError::Backend(error) if is_permanent(&error) => return refused(&error).into(),
        // One that was lost while it was made is made again.
        PoolError::Backend(error) => return error.into(),
        PoolError::Timeout(TimeoutType::Wait) => "all connections to the database are in use",
        PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle) => "the database does not answer",
        PoolError::Closed => "the store is closed",
        PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => "the pool is not set up",
    };
    Error::unavailable(why).into()
}

/// Connects for a pool.
struct PoolConnector(PostgresAddress);

type Connected = Result<(Client, JoinHandle<()>), tokio_postgres::Error>;

impl Connect for PoolConnector {
    fn connect(&self, _: &Config) -> Pin<Box<dyn Future<Output = Connected> + Send + '_>> {
        Box::pin(async move {
            let (client, connection) = match self.0.connect().await {
                Ok(connected) => connected,
                Err(ConnectError::Postgres(error)) => return Err(error),
                Err(ConnectError::Unusable(error)) => {
                    tracing::error!(%error, "the database cannot be connected to");
                    std::future::pending().await
                }
                // The pool has no error for this; its own limit, which is as long, says that the database does not answer.
                Err(ConnectError::NoAnswer) => std::future::pending().await,
            };
            let task = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(error = sentence(&error), "a connection to the database was lost");
                }
            });
            Ok((client, task))
        })
    }
}

/// Waits until the server takes connections, at most for `wait`. Returns at once if waiting does not help.
pub(super) async fn wait_for_server(address: &PostgresAddress, wait: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + wait;
    let mut next_report = Instant::now();
    loop {
        let why = match timeout(CONNECT_MAX, address.connect()).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(ConnectError::Unusable(error))) => return Err(error),
            Ok(Err(ConnectError::Postgres(error))) if is_permanent(&error) => return Err(refused(&error)),
            Ok(Err(ConnectError::Postgres(error))) => sentence(&error),
            Ok(Err(ConnectError::NoAnswer)) | Err(_) => "the database does not answer".to_owned(),
        };
        if Instant::now() >= deadline {
            return Err(Error::unavailable(why));
        }
        if Instant::now() >= next_report {
            let left_seconds = deadline.saturating_duration_since(Instant::now()).as_secs();
            tracing::warn!(why, left_seconds, "waiting for the database");
            next_report = Instant::now() + REPORT_EVERY;
        }
        tokio::time::sleep(WAIT_PAUSE).await;
    }
}

/// While a start waits for the database.
const WAIT_PAUSE: Duration = Duration::from_millis(250);
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// An error that time does not mend, with what to do.
fn refused(error: &tokio_postgres::Error) -> Error {
    let why = sentence(error);
    Error::Unusable(if is_of_tls(error) {
        format!(
            "no encrypted connection to the database: {why}; check sslmode, sslrootcert, sslcert and sslkey in the database URL"
        )
    } else {
        format!("the database refuses the connection: {why}; check the URL that was given")
    })
}

/// A connection while it is used. One that was left in the middle of something is not given to the next, because nobody
/// knows what it still waits for.
#[derive(Debug)]
pub(super) struct Connection {
    client: Option<Object>,
    is_usable: AtomicBool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(client) = self.client.take()
            && !self.is_usable.load(Ordering::Acquire)
        {
            // Out of the pool; the session ends with it.
            drop(Object::take(client));
        }
    }
}

impl Connection {
    fn client(&self) -> &Object {
        self.client.as_ref().expect("it is taken when it is dropped")
    }

    pub(super) async fn prepare(&self, sql: &str) -> Result<Statement, Problem> {
        Ok(self.client().prepare_cached(sql).await?)
    }

    pub(super) async fn query(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Problem> {
        let statement = self.prepare(sql).await?;
        Ok(self.client().query(&statement, parameters).await?)
    }

    pub(super) async fn query_opt(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>, Problem> {
        Ok(self.query(sql, parameters).await?.into_iter().next())
    }

    pub(super) async fn query_one(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Row, Problem> {
        self.query_opt(sql, parameters).await?.ok_or(Problem::Store(Error::Corrupt { what: "row that is always there" }))
    }

    pub(super) async fn execute(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<u64, Problem> {
        let statement = self.prepare(sql).await?;
        Ok(self.client().execute(&statement, parameters).await?)
    }

    /// Several statements without parameters.
    pub(super) async fn batch(&self, sql: &str) -> Result<(), Problem> {
        Ok(self.client().batch_execute(sql).await?)
    }

    /// May be given to the next.
    pub(super) fn mark_reusable(&self) {
        self.is_usable.store(true, Ordering::Release);
    }

    /// Ends whatever has failed, so that it can be used again; if that does not work it is thrown away.
    pub(super) async fn clean_up(&self, problem: &Problem) {
        let is_worn = match problem {
            Problem::Postgres(error) => {
                error.as_db_error().is_none()
                    || matches!(
                        error.code(),
                        Some(
                            &SqlState::FEATURE_NOT_SUPPORTED
                                | &SqlState::INVALID_SQL_STATEMENT_NAME
                                | &SqlState::READ_ONLY_SQL_TRANSACTION
                        )
                    )
            }
            Problem::Unknown => true,
            Problem::Overtaken | Problem::Store(_) => false,
        };
        if !is_worn {
            self.roll_back().await;
        }
    }

    /// If it does not answer soon, it is thrown away.
    pub(super) async fn roll_back(&self) {
        if matches!(timeout(ROLLBACK_MAX, self.batch("ROLLBACK")).await, Ok(Ok(()))) {
            self.mark_reusable();
        }
    }
}

type Pending<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send + 'a>>;

/// Statements that are sent in one go, without waiting for the answer to one before the next is sent.
pub(super) struct Flight<'a> {
    connection: &'a Connection,
    statements: Vec<Pending<'a>>,
    commit: Option<usize>,
}

/// Why a flight has not done what it should.
pub(super) struct Crash {
    pub(super) problem: Problem,
    /// It may have been committed all the same.
    pub(super) is_in_doubt: bool,
}

impl<'a> Flight<'a> {
    pub(super) fn new(connection: &'a Connection) -> Flight<'a> {
        Flight { connection, statements: Vec::new(), commit: None }
    }

    pub(super) fn begin(&mut self) {
        self.batch("BEGIN");
    }

    fn batch(&mut self, sql: &'static str) {
        let connection = self.connection;
        self.statements.push(Box::pin(async move { connection.client().batch_execute(sql).await.map(|()| Vec::new()) }));
    }

    /// Answers its place.
    pub(super) fn query(&mut self, statement: Statement, parameters: Parameters<'a>) -> usize {
        let connection = self.connection;
        self.statements.push(Box::pin(async move {
            let borrowed: Vec<&(dyn ToSql + Sync)> =
                parameters.iter().map(|parameter| &**parameter as &(dyn ToSql + Sync)).collect();
            connection.client().query(&statement, &borrowed).await
        }));
        self.statements.len() - 1
    }

    /// One that is a transaction of its own, and the only one of its flight. Answers its place.
    pub(super) fn query_that_commits(&mut self, statement: Statement, parameters: Parameters<'a>) -> usize {
        self.commit = Some(self.statements.len());
        self.query(statement, parameters)
    }

    pub(super) fn commit(&mut self) {
        self.commit = Some(self.statements.len());
        self.batch("COMMIT");
    }

    /// What each statement has answered. One that fails makes the server refuse the rest, and `COMMIT` roll back.
    pub(super) async fn land(self) -> Result<Vec<Vec<Row>>, Crash> {
        self.land_within(FLIGHT_MAX).await
    }

    async fn land_within(mut self, flight_max: Duration) -> Result<Vec<Vec<Row>>, Crash> {
        let mut answers: Vec<Option<Result<Vec<Row>, tokio_postgres::Error>>> = self.statements.iter().map(|_| None).collect();
        let mut sent = 0;
        let statements = &mut self.statements;
        let landed = timeout(
            flight_max,
            poll_fn(|context| {
                let mut is_waiting = false;
                for (place, statement) in statements.iter_mut().enumerate() {
                    if answers[place].is_some() {
                        continue;
                    }
                    let is_first = place >= sent;
                    sent = sent.max(place + 1);
                    match statement.as_mut().poll(context) {
                        Poll::Ready(answer) => {
                            let was_not_sent = is_first && answer.is_err();
                            answers[place] = Some(answer);
                            // A statement that could not even be sent. Nothing may follow it: the commit would go without it.
                            if was_not_sent {
                                return Poll::Ready(());
                            }
                        }
                        Poll::Pending => is_waiting = true,
                    }
                }
                if is_waiting { Poll::Pending } else { Poll::Ready(()) }
            }),
        )
        .await;
        let was_commit_sent = self.commit.is_some_and(|commit| commit < sent);
        if landed.is_err() {
            let problem = Problem::Store(Error::unavailable("the database does not answer"));
            return Err(Crash { problem, is_in_doubt: was_commit_sent });
        }
        let commit_answer_was_lost = self.commit.is_some_and(|commit| !matches!(answers.get(commit), Some(Some(Ok(_)))));
        let mut rows = Vec::with_capacity(answers.len());
        for answer in answers {
            match answer {
                Some(Ok(answer)) => rows.push(answer),
                Some(Err(error)) => {
                    // What the server itself has refused is rolled back, unless it was the commit, or the session has died
                    // and nobody knows how far it had come.
                    let is_certain = has_refused(&error) && (Some(rows.len()) != self.commit || self.commit == Some(0));
                    let is_in_doubt = was_commit_sent && commit_answer_was_lost && !is_certain;
                    return Err(Crash { problem: error.into(), is_in_doubt });
                }
                None => return Err(Crash { problem: Problem::Unknown, is_in_doubt: was_commit_sent }),
            }
        }
        Ok(rows)
    }
}

/// The name of a transaction, by which it is found when the answer to its commit was lost.
pub(super) type CommitId = [u8; 16];

/// Counts tries, and pauses between them.
pub(super) struct Retries {
    count: u32,
    began_at: Instant,
}

impl Retries {
    pub(super) fn new() -> Retries {
        Retries { count: 1, began_at: Instant::now() }
    }

    /// Comes back when it is time to try again, unless that would not help.
    pub(super) async fn again(&mut self, problem: Problem) -> Result<(), Problem> {
        let is_over = self.count >= TRIES_MAX || self.began_at.elapsed() > VERB_MAX;
        if is_over || problem.remedy() != Remedy::TryAgain {
            return Err(problem);
        }
        tracing::debug!(?problem, "trying again");
        // Jittered, so that two that got into each other's way do not meet again.
        let pause = rand::random_range(2..=15) * u64::from(self.count);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.count += 1;
        Ok(())
    }
}

impl Database {
    /// A connection, and the database's time if it is long since that was asked.
    pub(super) async fn connection(&self, purpose: Use) -> Result<Arc<Connection>, Problem> {
        let connection = self.connections.get(purpose).await?;
        if self.clock.is_due() {
            let asked_at = Instant::now();
            let row = connection.query_one(SELECT_CLOCK, &[]).await?;
            self.clock.measure(asked_at, row::column(&row, "micros")?);
        }
        Ok(connection)
    }

    /// Runs one statement that changes something and may be repeated, as a transaction of its own. If it is not known in the
    /// end whether a try of it has reached the server, it says so.
    pub(super) async fn run<T, F: Future<Output = Result<T, Problem>>>(
        &self,
        purpose: Use,
        work: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Error> {
        let is_in_doubt = AtomicBool::new(false);
        match self.try_to_run(purpose, work, &is_in_doubt).await {
            Err(Error::Unavailable(_)) if is_in_doubt.load(Ordering::Relaxed) => Err(Error::CommitInDoubt),
            certain => certain,
        }
    }

    /// Sets `is_in_doubt` while something was sent and not answered.
    async fn try_to_run<T, F: Future<Output = Result<T, Problem>>>(
        &self,
        purpose: Use,
        work: impl Fn(Arc<Connection>) -> F,
        is_in_doubt: &AtomicBool,
    ) -> Result<T, Error> {
        let mut tries = Retries::new();
        let run = async {
            loop {
                let problem = match self.connection(purpose).await {
                    Ok(connection) => {
                        let was_in_doubt = is_in_doubt.swap(true, Ordering::Relaxed);
                        match work(Arc::clone(&connection)).await {
                            Ok(answer) => {
                                connection.mark_reusable();
                                return Ok(answer);
                            }
                            Err(problem) => {
                                is_in_doubt.store(was_in_doubt || problem.leaves_doubt(), Ordering::Relaxed);
                                connection.clean_up(&problem).await;
                                problem
                            }
                        }
                    }
                    Err(problem) => problem,
                };
                tries.again(problem).await?;
            }
        };
        timeout(VERB_MAX, run)
            .await
            .map_err(|_| Error::unavailable("the database does not answer"))?
            .map_err(|problem: Problem| problem.into())
    }

    /// Reads. What one look has to see at one moment is one statement.
    pub(super) async fn read<T, F: Future<Output = Result<T, Problem>>>(
        &self,
        work: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Error> {
        self.try_to_run(Use::Verb, work, &AtomicBool::new(false)).await
    }

    /// The same for what delivering and publishing need. It does not wait for people's queries.
    pub(super) async fn read_for_work<T, F: Future<Output = Result<T, Problem>>>(
        &self,
        work: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Error> {
        self.try_to_run(Use::Work, work, &AtomicBool::new(false)).await
    }

    /// Runs a transaction, again if it has to be, and answers only what is certain: if the answer to its commit is lost, it
    /// is found out what has become of it.
    pub(super) async fn transact<T, F: Future<Output = Result<T, Problem>>>(
        &self,
        work: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Error> {
        self.transact_by(Use::Verb, work).await
    }

    pub(super) async fn transact_by<T, F: Future<Output = Result<T, Problem>>>(
        &self,
        purpose: Use,
        work: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Error> {
        let mut tries = Retries::new();
        let deadline = Instant::now() + VERB_MAX;
        loop {
            match self.try_to_transact(purpose, &work, deadline).await {
                Ok(answer) => return Ok(answer),
                Err(problem) => tries.again(problem).await?,
            }
        }
    }

    async fn try_to_transact<T, F: Future<Output = Result<T, Problem>>>(
        &self,
        purpose: Use,
        work: &impl Fn(Arc<Connection>) -> F,
        deadline: Instant,
    ) -> Result<T, Problem> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let worked = async {
            let connection = self.connection(purpose).await?;
            let worked = async {
                connection.batch("BEGIN").await?;
                let answer = work(Arc::clone(&connection)).await?;
                Ok((answer, connection.prepare(INSERT_COMMIT).await?))
            };
            match worked.await {
                Ok((answer, statement)) => Ok((answer, statement, connection)),
                Err(problem) => {
                    connection.clean_up(&problem).await;
                    Err(problem)
                }
            }
        };
        let worked = timeout(left().saturating_sub(COMMIT_SHARE), worked)
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the database does not answer").into()));
        let (answer, statement, connection) = worked?;
        let id = rand::random::<CommitId>();
        let mut flight = Flight::new(&connection);
        flight.query(statement, row::parameters![id.to_vec()]);
        flight.commit();
        // Half for the commit, and half for asking after it.
        match flight.land_within(left() / 2).await {
            Ok(_) => {
                connection.mark_reusable();
                Ok(answer)
            }
            Err(crash) => {
                self.after_a_crash_by(&connection, crash, id, deadline).await?;
                Ok(answer)
            }
        }
    }

    /// Answers once a crash is known to have been a commit.
    pub(super) async fn after_a_crash(&self, connection: &Connection, crash: Crash, id: CommitId) -> Result<(), Problem> {
        self.after_a_crash_by(connection, crash, id, Instant::now() + DOUBT_MAX).await
    }

    async fn after_a_crash_by(
        &self,
        connection: &Connection,
        crash: Crash,
        id: CommitId,
        deadline: Instant,
    ) -> Result<(), Problem> {
        if !crash.is_in_doubt {
            connection.clean_up(&crash.problem).await;
            return Err(crash.problem);
        }
        tracing::warn!(problem = ?crash.problem, "the answer to a commit was lost: finding out what has become of it");
        if self.was_committed(id, deadline).await? { Ok(()) } else { Err(Problem::Overtaken) }
    }

    /// Writes the name of a transaction in doubt, as void. That waits for it if it is still under way; if it works it has not been
    /// committed and never will be, because its own name would be there twice.
    async fn was_committed(&self, id: CommitId, deadline: Instant) -> Result<bool, Problem> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let asked = timeout(left, async {
                let connection = self.connections.get(Use::Committing).await?;
                let is_void: bool = row::column(&connection.query_one(VOID_COMMIT, &[&id.as_slice()]).await?, "is_void")?;
                connection.mark_reusable();
                Ok::<_, Problem>(!is_void)
            });
            match asked.await {
                Ok(Ok(was_committed)) => return Ok(was_committed),
                // A server that is gone says so at once, every time.
                Ok(Err(problem)) if !left.is_zero() => tracing::warn!(?problem, "what has become of a commit cannot be asked yet"),
                Ok(Err(_)) | Err(_) => {
                    tracing::error!(
                        "what has become of a commit could not be found out; whoever waits for it hears that it is not known"
                    );
                    return Err(Problem::Unknown);
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

pub(super) const INSERT_COMMIT: &str = "INSERT INTO commits (id, at) VALUES ($1::bytea, clock_timestamp())";
/// Says whether it is void, by this statement or by an earlier try of it whose answer was lost too.
const VOID_COMMIT: &str = "INSERT INTO commits (id, at, is_void) VALUES ($1, clock_timestamp(), TRUE)
                           ON CONFLICT (id) DO UPDATE SET is_void = commits.is_void RETURNING is_void";
const SELECT_CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS micros";
