//! The outbox in the application's database: all SQL that is spoken there.
//!
//! It is somebody else's database. Nothing is locked there but rows that are being moved, nobody waits for anything for long, and
//! what goes wrong is said in words that its owner can do something about.

use std::error::Error;
use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::time::Timestamp;
use posthaste_store::{ConnectError, PostgresAddress, postgres_sentence};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Row, Statement};

/// What this version makes and can use.
pub const VERSION: u32 = 1;

const TABLE: &str = include_str!("outbox.sql");
const FUNCTIONS: &str = include_str!("functions.sql");
/// Made once and not anew at every install: to replace it would wait for everybody who writes.
const TRIGGER: &str = "CREATE TRIGGER posthaste_outbox_wake AFTER INSERT ON {schema}.posthaste_outbox \
                       FOR EACH STATEMENT EXECUTE FUNCTION {schema}.posthaste_outbox_wake()";
const COMMENT: &str = "Posthaste outbox, version ";

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A server that hangs answers nothing, so that whoever asks has to look at the clock.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// A relay that was cut off leaves a session behind that holds its rows: it ends by itself after
/// `idle_in_transaction_session_timeout`, which is longer than any publishing takes.
const SETTINGS: &str = "-c statement_timeout=5000 -c idle_in_transaction_session_timeout=60000 -c synchronous_commit=on \
                        -c TimeZone=UTC -c default_transaction_isolation=read\\ committed -c jit=off -c enable_seqscan=off \
                        -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off";
/// So many rows are counted, and not more: beyond this the number does not matter, and counting would.
pub const COUNTED_MAX: i64 = 100_000;
/// Rows that were refused before and are due again: so many go first, so that neither they nor the others wait for each other.
const REFUSED_AT_ONCE_MAX: i64 = 32;
/// How many rows that were refused `status` shows.
pub const FAILED_SHOWN_MAX: i64 = 20;

/// Why nothing can be done in the application's database, in words for whoever runs it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OutboxError {
    #[error("the outbox's database cannot be reached: {0}")]
    Unreachable(String),
    #[error("{0}")]
    BadUrl(String),
    #[error("there is no outbox in this database; make it there: posthaste outbox install --database-url postgres://…")]
    NotInstalled,
    #[error(
        "there is a table posthaste_outbox in the schema {schema} that Posthaste has not made; rename it, or set another search_path"
    )]
    NotOurs { schema: String },
    #[error("the outbox in this database is of version {version}, and this binary knows {VERSION}; use a binary that knows it")]
    TooNew { version: u32 },
    #[error("{0}")]
    NotAllowed(String),
    /// For `uninstall`.
    #[error("{0}")]
    StillUsed(String),
    #[error("the outbox's database says: {0}")]
    Other(String),
}

impl OutboxError {
    /// Whether there is an outbox that it is about, where nobody has said that there is one. `was_there`: it was seen before.
    pub fn is_of_an_outbox(&self, was_there: bool) -> bool {
        match self {
            OutboxError::NotAllowed(_) | OutboxError::TooNew { .. } | OutboxError::StillUsed(_) => true,
            // It was removed, or is another's.
            OutboxError::NotInstalled | OutboxError::NotOurs { .. } => false,
            OutboxError::Unreachable(_) | OutboxError::BadUrl(_) | OutboxError::Other(_) => was_there,
        }
    }
}

impl From<tokio_postgres::Error> for OutboxError {
    fn from(error: tokio_postgres::Error) -> OutboxError {
        let sentence = postgres_sentence(&error);
        match error.code() {
            None if is_lost(&error) => OutboxError::Unreachable(sentence),
            Some(&SqlState::UNDEFINED_TABLE) => OutboxError::NotInstalled,
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => OutboxError::NotAllowed(format!(
                "the role may not do that in the outbox's database: {sentence}; a relay needs GRANT SELECT, UPDATE, DELETE ON posthaste_outbox \
                 and USAGE on its schema, and whoever installs it has to be allowed to create tables there"
            )),
            Some(code) if code.code().starts_with("28") || *code == SqlState::INVALID_CATALOG_NAME => OutboxError::NotAllowed(
                format!("the outbox's database refuses the connection: {sentence}; check the URL that was given"),
            ),
            Some(&SqlState::LOCK_NOT_AVAILABLE) => OutboxError::Other(format!(
                "{sentence}; others use the table at this moment, so that nothing was changed: try again"
            )),
            // It goes down or comes up, or has no room for another session.
            Some(code) if code.code().starts_with("57P") || code.code().starts_with("53") || code.code().starts_with("08") => {
                OutboxError::Unreachable(sentence)
            }
            None | Some(_) => OutboxError::Other(sentence),
        }
    }
}

/// Whether it is the connection that has failed.
fn is_lost(error: &tokio_postgres::Error) -> bool {
    error.is_closed() || error.source().is_some_and(<dyn Error>::is::<std::io::Error>)
}

/// One row, as it was written. A time beyond what can be written stands at the end of what can.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxRow {
    pub id: String,
    pub tenant: Option<String>,
    pub event_type: String,
    pub version: Option<String>,
    /// `None` if it is larger than is taken.
    pub data: Option<String>,
    pub idempotency_key: Option<String>,
    pub ordering_key: Option<String>,
    pub deliver_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub occurred_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub attempts: u32,
    /// Why it cannot be read, if it cannot: a column that is not UTF-8.
    pub unreadable: Option<String>,
}

impl Default for OutboxRow {
    fn default() -> OutboxRow {
        OutboxRow {
            id: String::new(),
            tenant: None,
            event_type: String::new(),
            version: None,
            data: None,
            idempotency_key: None,
            ordering_key: None,
            deliver_at: None,
            expires_at: None,
            occurred_at: None,
            created_at: Timestamp::from_millis(0),
            attempts: 0,
            unreadable: None,
        }
    }
}

/// How much a relay takes at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub rows_max: i64,
    pub bytes_max: i64,
    /// The payload of one row.
    pub payload_bytes_max: i64,
}

/// What was claimed, and whether there is more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimedRows {
    pub rows: Vec<OutboxRow>,
    pub is_cut: bool,
}

/// A row that stays.
#[derive(Clone, PartialEq, Debug)]
pub struct Refusal {
    pub id: String,
    pub error: String,
    pub again_after: Duration,
}

/// What waits, as a relay and `status` see it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OutboxBacklog {
    /// All rows that are there, up to [`COUNTED_MAX`].
    pub rows: u64,
    /// Those of them that were refused, up to as many.
    pub failed: u64,
    /// For how long the one has been due that has been so longest.
    pub lag: Option<Duration>,
}

/// What `status` and the doctor show.
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    pub schema: String,
    pub version: u32,
    pub waiting: OutboxBacklog,
    pub oldest_created_at: Option<Timestamp>,
    /// The latest of them, at most [`FAILED_SHOWN_MAX`].
    pub failed: Vec<FailedRow>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailedRow {
    pub id: String,
    pub tenant: Option<String>,
    pub event_type: String,
    pub attempts: u32,
    pub error: String,
    pub next_attempt_at: Timestamp,
    pub created_at: Timestamp,
}

/// Where a table of that name is, and what it says of itself.
struct FoundTable {
    /// Quoted.
    schema: String,
    version: Option<u32>,
}

/// A session.
#[derive(Debug)]
pub struct Outbox {
    client: Client,
    /// Told when rows were written, and when the session has ended.
    woken: Arc<Notify>,
    listener: JoinHandle<()>,
    statements: Option<Statements>,
}

#[derive(Debug)]
struct Statements {
    take_turn: Statement,
    claim: Statement,
    read: Statement,
    delete: Statement,
    refuse: Statement,
    measure: Statement,
}

impl Drop for Outbox {
    fn drop(&mut self) {
        // The session ends with it, and whatever it had not committed.
        self.listener.abort();
    }
}

impl Outbox {
    /// A session in which nothing was looked at yet.
    pub async fn connect(url: &str) -> Result<Outbox, OutboxError> {
        let address = read_url(url)?.with_options(SETTINGS);
        let connected = timeout(CONNECT_MAX, address.connect()).await;
        let (client, mut connection) = connected.map_err(|_| silent())?.map_err(|error| match error {
            ConnectError::Postgres(error) => OutboxError::from(error),
            ConnectError::Unusable(error) => OutboxError::BadUrl(error.to_string()),
            ConnectError::NoAnswer => silent(),
        })?;
        let woken = Arc::new(Notify::new());
        let told = Arc::clone(&woken);
        let listener = tokio::spawn(async move {
            loop {
                match poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(_))) => told.notify_one(),
                    // Notices, and what a later library knows.
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => break,
                }
            }
            told.notify_one();
        });
        Ok(Outbox { client, woken, listener, statements: None })
    }

    /// Connects to an outbox that this version can use, and listens for news.
    pub async fn open(url: &str) -> Result<Outbox, OutboxError> {
        let mut outbox = Outbox::connect(url).await?;
        outbox.usable().await?;
        answered(outbox.client.batch_execute("LISTEN posthaste_outbox")).await?;
        let client = &outbox.client;
        let statements = async {
            Ok::<_, tokio_postgres::Error>(Statements {
                take_turn: client.prepare(TAKE_TURN).await?,
                claim: client.prepare(&claim()).await?,
                read: client.prepare(&read()).await?,
                delete: client.prepare(DELETE).await?,
                refuse: client.prepare(REFUSE).await?,
                measure: client.prepare(&measure()).await?,
            })
        };
        outbox.statements = Some(answered(statements).await?);
        Ok(outbox)
    }

    pub fn woken(&self) -> Arc<Notify> {
        Arc::clone(&self.woken)
    }

    fn statements(&self) -> &Statements {
        self.statements.as_ref().expect("prepared when it was opened")
    }

    /// Begins a transaction and locks rows that are due, in their order: those with an ordering key only if no other relay is at it.
    pub async fn claim(&self, bounds: Bounds) -> Result<ClaimedRows, OutboxError> {
        let (client, statements) = (&self.client, self.statements());
        let turn = async {
            client.batch_execute("BEGIN").await?;
            client.query_one(&statements.take_turn, &[]).await?.try_get::<_, bool>(0)
        };
        let has_turn = answered(turn).await?;
        let found = answered(client.query(&statements.claim, &[&has_turn, &bounds.rows_max])).await?;
        let (mut ids, mut bytes, mut refused_before) = (Vec::with_capacity(found.len()), 0, 0);
        for row in &found {
            refused_before += i64::from(row.try_get::<_, bool>("was_refused")?);
            // One larger than all that may be taken goes alone.
            if bytes >= bounds.bytes_max || i64::try_from(ids.len()).unwrap_or(i64::MAX) >= bounds.rows_max {
                break;
            }
            ids.push(row.try_get::<_, String>("id")?);
            bytes += row.try_get::<_, i64>("bytes")?.min(bounds.payload_bytes_max);
        }
        let is_cut = i64::try_from(found.len()).unwrap_or(i64::MAX) >= bounds.rows_max
            || ids.len() < found.len()
            || refused_before >= REFUSED_AT_ONCE_MAX;
        if ids.is_empty() {
            return Ok(ClaimedRows { rows: vec![], is_cut });
        }
        // Locked by now, so that what is read is what will be deleted.
        let rows = answered(client.query(&statements.read, &[&ids, &bounds.payload_bytes_max])).await?;
        Ok(ClaimedRows { rows: rows.iter().map(outbox_row).collect::<Result<_, _>>()?, is_cut })
    }

    /// Removes what was moved, notes what was refused, and commits.
    pub async fn settle(&self, moved: &[String], refused: &[Refusal]) -> Result<(), OutboxError> {
        let (client, statements) = (&self.client, self.statements());
        if !moved.is_empty() {
            answered(client.execute(&statements.delete, &[&moved])).await?;
        }
        if !refused.is_empty() {
            let ids: Vec<&str> = refused.iter().map(|refusal| refusal.id.as_str()).collect();
            let errors: Vec<&str> = refused.iter().map(|refusal| refusal.error.as_str()).collect();
            let seconds: Vec<f64> = refused.iter().map(|refusal| refusal.again_after.as_secs_f64()).collect();
            answered(client.execute(&statements.refuse, &[&ids, &errors, &seconds])).await?;
        }
        answered(client.batch_execute("COMMIT")).await
    }

    /// Lets go of what was claimed.
    pub async fn leave(&self) -> Result<(), OutboxError> {
        answered(self.client.batch_execute("ROLLBACK")).await
    }

    pub async fn waiting(&self) -> Result<OutboxBacklog, OutboxError> {
        waiting_of(&answered(self.client.query_one(&self.statements().measure, &[&COUNTED_MAX])).await?)
    }

    async fn find(&self) -> Result<Option<FoundTable>, OutboxError> {
        let Some(row) = answered(self.client.query_opt(FIND, &[])).await? else { return Ok(None) };
        let comment: Option<String> = row.try_get("comment")?;
        let version = comment.as_deref().and_then(|comment| comment.strip_prefix(COMMENT));
        let digits = version.map(|rest| rest.split(|character: char| !character.is_ascii_digit()).next().unwrap_or_default());
        Ok(Some(FoundTable { schema: row.try_get("schema")?, version: digits.and_then(|digits| digits.parse().ok()) }))
    }

    async fn usable(&self) -> Result<FoundTable, OutboxError> {
        match self.find().await? {
            None => Err(OutboxError::NotInstalled),
            Some(FoundTable { schema, version: None }) => Err(OutboxError::NotOurs { schema }),
            Some(FoundTable { version: Some(version), .. }) if version > VERSION => Err(OutboxError::TooNew { version }),
            Some(found) => Ok(found),
        }
    }
}

fn read_url(url: &str) -> Result<PostgresAddress, OutboxError> {
    PostgresAddress::parse(url).map_err(|error| OutboxError::BadUrl(error.to_string()))
}

/// Whether a URL is one that can be used at all, before anybody is asked.
pub fn check_url(url: &str) -> Result<(), OutboxError> {
    read_url(url).map(drop)
}

/// What `install` has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Installed {
    Now { schema: String },
    Before { schema: String },
}

/// Makes table, function and trigger, all or nothing. May be run again, and from several places at once.
pub async fn install(url: &str) -> Result<Installed, OutboxError> {
    let outbox = Outbox::connect(url).await?;
    answered(outbox.client.batch_execute(&format!("BEGIN; SET LOCAL lock_timeout = '5s'; {ONE_AT_A_TIME}"))).await?;
    let is_new = outbox.find().await?.is_none();
    let schema = if is_new { schema_to_install_in(&outbox).await? } else { outbox.usable().await?.schema };
    if is_new {
        answered(outbox.client.batch_execute(&TABLE.replace("{schema}", &schema))).await?;
        answered(outbox.client.batch_execute(&FUNCTIONS.replace("{schema}", &schema))).await?;
    } else if !has_functions(&outbox, &schema).await? {
        answered(outbox.client.batch_execute(&FUNCTIONS.replace("{schema}", &schema))).await?;
    }
    let has_trigger: bool = answered(outbox.client.query_one(HAS_TRIGGER, &[])).await?.try_get(0)?;
    if !has_trigger {
        answered(outbox.client.batch_execute(&TRIGGER.replace("{schema}", &schema))).await?;
    }
    answered(outbox.client.batch_execute("COMMIT")).await?;
    Ok(if is_new { Installed::Now { schema } } else { Installed::Before { schema } })
}

/// The first of the search path that is there, quoted, if tables may be made in it.
async fn schema_to_install_in(outbox: &Outbox) -> Result<String, OutboxError> {
    let row = answered(outbox.client.query_one(SELECT_SCHEMA, &[])).await?;
    let (role, may_create): (String, bool) = (row.try_get("role")?, row.try_get("may_create")?);
    match row.try_get::<_, Option<String>>("schema")? {
        Some(schema) if may_create => Ok(schema),
        Some(schema) => Err(OutboxError::NotAllowed(format!(
            "the role {role} may not create tables in the schema {schema}: run this as its owner, or let it: GRANT CREATE ON SCHEMA \
             {schema} TO {role}"
        ))),
        None => Err(OutboxError::NotAllowed(
            "no schema of the search_path is there; make one, or name another with ?options=-c%20search_path%3D…".to_owned(),
        )),
    }
}

/// Only who has made them may make them anew, and whoever installs a second time may be somebody else.
async fn has_functions(outbox: &Outbox, schema: &str) -> Result<bool, OutboxError> {
    Ok(answered(outbox.client.query_one(HAS_FUNCTIONS, &[&schema])).await?.try_get(0)?)
}

/// Removes all that `install` has made. Refuses while rows wait, unless it is told that they may be lost. Answers how many were.
pub async fn uninstall(url: &str, is_forced: bool) -> Result<u64, OutboxError> {
    let outbox = Outbox::connect(url).await?;
    answered(outbox.client.batch_execute(&format!("BEGIN; SET LOCAL lock_timeout = '5s'; {ONE_AT_A_TIME}"))).await?;
    let schema = outbox.usable().await?.schema;
    // Nobody writes between the look and the removal.
    answered(outbox.client.batch_execute(&format!("LOCK TABLE {schema}.posthaste_outbox IN ACCESS EXCLUSIVE MODE"))).await?;
    let sql = format!("SELECT count(*) FROM {schema}.posthaste_outbox");
    let rows: i64 = answered(outbox.client.query_one(&sql, &[])).await?.try_get(0)?;
    if rows > 0 && !is_forced {
        return Err(OutboxError::StillUsed(format!(
            "{rows} rows wait in the outbox and would be lost: let a server relay them first (posthaste serve --outbox …), or say --force"
        )));
    }
    let drop = format!(
        "DROP FUNCTION IF EXISTS {schema}.posthaste_publish(text, text, text, text, text, text, timestamptz, timestamptz, timestamptz, uuid);
         DROP TABLE {schema}.posthaste_outbox;
         DROP FUNCTION IF EXISTS {schema}.posthaste_outbox_wake();
         COMMIT"
    );
    answered(outbox.client.batch_execute(&drop)).await?;
    Ok(u64::try_from(rows).unwrap_or(0))
}

pub async fn status(url: &str) -> Result<Status, OutboxError> {
    let outbox = Outbox::connect(url).await?;
    let FoundTable { schema, version } = outbox.usable().await?;
    let waiting = waiting_of(&answered(outbox.client.query_one(&measure(), &[&COUNTED_MAX])).await?)?;
    let oldest = answered(outbox.client.query_one(&oldest(), &[])).await?.try_get::<_, Option<i64>>(0)?;
    let failed = answered(outbox.client.query(&failed(), &[&FAILED_SHOWN_MAX])).await?;
    let failed_row = |row: &Row| {
        Ok::<_, tokio_postgres::Error>(FailedRow {
            id: row.try_get("id")?,
            tenant: row.try_get("tenant")?,
            event_type: row.try_get("type")?,
            attempts: u32::try_from(row.try_get::<_, i32>("attempts")?).unwrap_or(0),
            error: row.try_get::<_, Option<String>>("last_error")?.unwrap_or_default(),
            next_attempt_at: Timestamp::from_millis(row.try_get("next_attempt_at")?),
            created_at: Timestamp::from_millis(row.try_get("created_at")?),
        })
    };
    Ok(Status {
        schema,
        version: version.unwrap_or(0),
        waiting,
        oldest_created_at: oldest.map(Timestamp::from_millis),
        failed: failed.iter().map(failed_row).collect::<Result<_, _>>()?,
    })
}

fn waiting_of(row: &Row) -> Result<OutboxBacklog, OutboxError> {
    let count = |name| Ok::<_, OutboxError>(u64::try_from(row.try_get::<_, i64>(name)?).unwrap_or(0));
    let lag = row.try_get::<_, Option<f64>>("lag")?;
    Ok(OutboxBacklog {
        rows: count("waiting")?,
        failed: count("failed")?,
        lag: lag.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok()),
    })
}

fn outbox_row(row: &Row) -> Result<OutboxRow, OutboxError> {
    let mut unreadable = None;
    let mut text = |name: &'static str| match row.try_get::<_, Option<String>>(name) {
        Ok(text) => text,
        // A database without an encoding holds what it was given.
        Err(error) => {
            unreadable.get_or_insert_with(|| format!("{name}: {error}"));
            None
        }
    };
    let time = |name: &'static str| Ok::<_, OutboxError>(row.try_get::<_, Option<i64>>(name)?.map(Timestamp::from_millis));
    let (tenant, event_type, version) = (text("tenant"), text("type").unwrap_or_default(), text("version"));
    let (data, idempotency_key, ordering_key) = (text("data"), text("idempotency_key"), text("ordering_key"));
    Ok(OutboxRow {
        id: row.try_get("id")?,
        tenant,
        event_type,
        version,
        data,
        idempotency_key,
        ordering_key,
        deliver_at: time("deliver_at")?,
        expires_at: time("expires_at")?,
        occurred_at: time("occurred_at")?,
        created_at: time("created_at")?.unwrap_or(Timestamp::from_millis(0)),
        attempts: u32::try_from(row.try_get::<_, i32>("attempts")?).unwrap_or(0),
        unreadable,
    })
}

fn silent() -> OutboxError {
    OutboxError::Unreachable("it does not answer".to_owned())
}

async fn answered<T>(asked: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, OutboxError> {
    Ok(timeout(ANSWER_MAX, asked).await.map_err(|_| silent())??)
}

/// Any number that others would not think of.
const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(1886352500, 1)";
const FIND: &str = "SELECT quote_ident(n.nspname) AS schema, obj_description(c.oid, 'pg_class') AS comment
                    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('posthaste_outbox')";
const SELECT_SCHEMA: &str = "SELECT quote_ident(current_schema()) AS schema, quote_ident(current_user) AS role,
                                    coalesce(has_schema_privilege(current_schema(), 'CREATE'), FALSE) AS may_create";
const HAS_TRIGGER: &str = "SELECT EXISTS (SELECT FROM pg_trigger
                                          WHERE tgrelid = to_regclass('posthaste_outbox') AND tgname = 'posthaste_outbox_wake')";
const HAS_FUNCTIONS: &str = "SELECT 2 = count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                             WHERE quote_ident(n.nspname) = $1
                               AND (p.proname, p.pronargs) IN (('posthaste_publish', 10), ('posthaste_outbox_wake', 0))";
/// Rows with an ordering key are one relay's at a time, so that two never overtake each other. It lasts as long as the transaction.
const TAKE_TURN: &str = "SELECT pg_try_advisory_xact_lock(1886352500, to_regclass('posthaste_outbox')::oid::integer)";
const DELETE: &str = "DELETE FROM posthaste_outbox WHERE id = ANY ($1::text[]::uuid[])";
const REFUSE: &str = "UPDATE posthaste_outbox o
                      SET attempts = least(o.attempts, 2147483646) + 1, last_error = r.error,
                          next_attempt_at = clock_timestamp() + r.seconds * interval '1 second'
                      FROM unnest($1::text[], $2::text[], $3::float8[]) AS r (id, error, seconds)
                      WHERE o.id = r.id::uuid";

/// In the order of writing, each from the index that is made for it: by a time that stands still within a statement, because an
/// index cannot be asked by one that does not. What was refused before goes first, a few at a time.
fn claim() -> String {
    let fresh = |name: &str, which: &str| {
        format!(
            "{name} AS (SELECT id, position, octet_length(data)::bigint AS bytes FROM posthaste_outbox
                        WHERE {which} AND attempts = 0 AND next_attempt_at <= statement_timestamp()
                        ORDER BY position LIMIT $2 FOR UPDATE SKIP LOCKED)"
        )
    };
    format!(
        "WITH {}, {},
         failed AS (SELECT id, position, octet_length(data)::bigint AS bytes FROM posthaste_outbox
                    WHERE attempts > 0 AND next_attempt_at <= statement_timestamp()
                    ORDER BY next_attempt_at LIMIT {REFUSED_AT_ONCE_MAX} FOR UPDATE SKIP LOCKED)
         SELECT id::text AS id, bytes, was_refused
         FROM (SELECT FALSE AS was_refused, * FROM in_order UNION ALL SELECT FALSE, * FROM anyhow
               UNION ALL SELECT TRUE, * FROM failed) due
         ORDER BY was_refused DESC, position",
        fresh("in_order", "$1 AND ordering_key IS NOT NULL"),
        fresh("anyhow", "ordering_key IS NULL"),
    )
}

/// In milliseconds. What is infinite is far beyond all that can be written.
fn millis(column: &str) -> String {
    format!(
        "CASE WHEN {column} IS NULL THEN NULL WHEN isfinite({column}) THEN floor(extract(epoch FROM {column}) * 1000)::bigint
              WHEN {column} > '2000-01-01' THEN 100000000000000000 ELSE -100000000000000000 END AS {column}"
    )
}

/// Of each of these, in the order of writing.
fn read() -> String {
    let times = ["deliver_at", "expires_at", "occurred_at", "created_at"].map(millis).join(", ");
    format!(
        "SELECT id::text AS id, tenant, type, version, CASE WHEN octet_length(data)::bigint <= $2 THEN data END AS data,
                idempotency_key, ordering_key, attempts, {times}
         FROM posthaste_outbox WHERE id = ANY ($1::text[]::uuid[]) ORDER BY position"
    )
}

fn measure() -> String {
    let first = |which: &dyn Display, order: &str| {
        format!(
            "(SELECT next_attempt_at AS due FROM posthaste_outbox WHERE {which} AND next_attempt_at <= statement_timestamp()
              ORDER BY {order} LIMIT 1)"
        )
    };
    let due = [
        first(&"attempts = 0 AND ordering_key IS NULL", "position"),
        first(&"attempts = 0 AND ordering_key IS NOT NULL", "position"),
        first(&"attempts > 0", "next_attempt_at"),
    ];
    format!(
        "SELECT (SELECT count(*) FROM (SELECT FROM posthaste_outbox LIMIT $1) w) AS waiting,
                (SELECT count(*) FROM (SELECT FROM posthaste_outbox WHERE attempts > 0 LIMIT $1) f) AS failed,
                (SELECT extract(epoch FROM statement_timestamp() - min(due))::float8 FROM ({}) d WHERE isfinite(due)) AS lag",
        due.join(" UNION ALL ")
    )
}

/// The first of those that were never refused has waited longest of them; of the others so many are looked at as are counted.
fn oldest() -> String {
    let first =
        |which: &str| format!("(SELECT created_at FROM posthaste_outbox WHERE attempts = 0 AND {which} ORDER BY position LIMIT 1)");
    format!(
        "SELECT {} FROM (SELECT min(created_at) AS created_at
                         FROM ({} UNION ALL {} UNION ALL
                               (SELECT created_at FROM posthaste_outbox WHERE attempts > 0 LIMIT {COUNTED_MAX})) f) o
         WHERE created_at IS NOT NULL UNION ALL SELECT NULL LIMIT 1",
        millis("created_at"),
        first("ordering_key IS NULL"),
        first("ordering_key IS NOT NULL")
    )
}

/// Those that come next, the soonest first.
fn failed() -> String {
    format!(
        "SELECT id::text AS id, tenant, type, attempts, last_error, {}, {} FROM posthaste_outbox
         WHERE attempts > 0 ORDER BY posthaste_outbox.next_attempt_at LIMIT $1",
        millis("next_attempt_at"),
        millis("created_at")
    )
}
