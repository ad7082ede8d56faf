//! `posthaste endpoints`: where a tenant wants its events sent, and how.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::body::{BodyBuilder, input, rate_limit};
use super::failure::{Failure, Kind};
use super::http::Request;
use super::operations::{
    CREATE_ENDPOINT, DELETE_ENDPOINT, DISABLE_ENDPOINT, ENABLE_ENDPOINT, ENDPOINT_STATS, LIST_ENDPOINTS, Operation, PATCH_ENDPOINT,
    PAUSE_ENDPOINT, PUT_ENDPOINT, RESUME_ENDPOINT, ROTATE_SECRET, SHOW_ENDPOINT, TEST_ENDPOINT,
};
use super::table::{Cell, Column, plain};
use super::task::{ApiCommand, Page, Shown, Task, Watch};
use super::{IfMatch, quoted};

const SECRET_ONCE: &str = "keep the secret: it is not shown again";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List endpoints, newest first
    List {
        /// Only endpoints of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only the endpoint with this uid
        #[arg(long)]
        uid: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// Create an endpoint. Its secret is shown only once
    Create {
        /// URL of the receiver; may also be given in --from-json
        #[arg(value_name = "URL")]
        destination: Option<String>,
        /// Tenant of the endpoint
        #[arg(long)]
        tenant: Option<String>,
        /// Your own id for the endpoint, unique in its tenant
        #[arg(long)]
        uid: Option<String>,
        /// Your own secret: the text, @file or - [default: generated]
        #[arg(long)]
        secret: Option<String>,
        #[command(flatten)]
        fields: Box<Fields>,
    },
    /// Create the endpoint with this uid, or replace its configuration
    Put {
        uid: String,
        /// URL of the receiver; may also be given in --from-json
        #[arg(value_name = "URL")]
        destination: Option<String>,
        /// Tenant of the endpoint
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        fields: Box<Fields>,
        #[command(flatten)]
        if_match: IfMatch,
    },
    /// Show an endpoint with the policies that apply to it
    Show {
        id: String,
        #[command(flatten)]
        watch: Watch,
    },
    /// Change the given fields of an endpoint
    Patch {
        id: String,
        /// New URL of the receiver (--url is the Posthaste server)
        #[arg(long, value_name = "URL")]
        endpoint_url: Option<String>,
        /// New uid
        #[arg(long)]
        uid: Option<String>,
        #[command(flatten)]
        fields: Box<Fields>,
        #[command(flatten)]
        if_match: IfMatch,
    },
    /// Delete an endpoint. Its waiting deliveries are cancelled
    Delete {
        id: String,
        #[command(flatten)]
        if_match: IfMatch,
    },
    /// Pause an endpoint until a time or until it is resumed
    Pause {
        id: String,
        /// Resume at this time [default: when resumed by hand]
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
        #[command(flatten)]
        if_match: IfMatch,
    },
    /// Resume a paused endpoint
    Resume(Verb),
    /// Disable an endpoint: it gets no new events, and waiting deliveries are held
    Disable(Verb),
    /// Enable an endpoint
    Enable(Verb),
    /// Rotate the secret. The new one is shown only once; the old one also signs for a while
    RotateSecret {
        id: String,
        /// Your own secret: the text, @file or - [default: generated]
        #[arg(long)]
        secret: Option<String>,
        /// How long the old secret also signs [default: one day]
        #[arg(long, value_name = "SECONDS")]
        overlap_seconds: Option<u64>,
        #[command(flatten)]
        if_match: IfMatch,
    },
    /// Send a test request now and show the result
    Test {
        id: String,
        /// Event type [default: posthaste.test]
        #[arg(long, value_name = "TYPE")]
        r#type: Option<String>,
        /// Payload: JSON, @file or -
        #[arg(long, value_name = "JSON")]
        data: Option<String>,
    },
    /// Show the health of an endpoint
    Stats {
        id: String,
        /// Count from this time on
        #[arg(long, value_name = "TIME")]
        from: Option<String>,
        /// Count up to this time
        #[arg(long, value_name = "TIME")]
        to: Option<String>,
        #[command(flatten)]
        watch: Watch,
    },
}

#[derive(Args)]
pub(crate) struct Verb {
    id: String,
    #[command(flatten)]
    if_match: IfMatch,
}

#[derive(Args)]
pub(crate) struct Fields {
    /// Description of the endpoint
    #[arg(long)]
    description: Option<String>,
    /// Event types or patterns such as invoice.*, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    event_types: Vec<String>,
    /// Event types to leave out although they match, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    disabled_event_types: Vec<String>,
    /// Filter: JSON, @file or -, as in '{"data.amount": {"$gte": 1000}}'
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    #[arg(long, value_name = "LIMIT", help = "PER_MINUTE, PER_MINUTE:BURST, or unlimited")]
    rate_limit: Option<String>,
    /// Maximum number of requests in flight
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
    /// Daily quiet hours, as in 22:00-06:00
    #[arg(long, value_name = "START-END", requires = "timezone", conflicts_with = "delivery_schedule")]
    quiet_hours: Option<String>,
    /// Time zone of --quiet-hours, as in Europe/Berlin
    #[arg(long, value_name = "ZONE", requires = "quiet_hours")]
    timezone: Option<String>,
    /// Delivery schedule: JSON, @file, - or always
    #[arg(long, value_name = "JSON")]
    delivery_schedule: Option<String>,
    /// Retry policy: JSON, @file or -
    #[arg(long, value_name = "JSON")]
    retry: Option<String>,
    /// Request timeout: milliseconds such as 5000, adaptive, or JSON
    #[arg(long = "timeout-ms", alias = "timeout", value_name = "MILLISECONDS")]
    timeout: Option<String>,
    /// Circuit breaker policy: JSON, @file or -
    #[arg(long, value_name = "JSON")]
    circuit: Option<String>,
    /// Signature scheme: standard, standard-ed25519, timestamp-hex, or JSON
    #[arg(long, value_name = "SCHEME")]
    signing: Option<String>,
    /// Payload format: envelope, data or cloudevents
    #[arg(long, value_name = "FORMAT")]
    payload_format: Option<String>,
    /// Header to send with every request, as in 'X-Team: billing'; may be repeated
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Metadata as NAME=VALUE; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    /// Fields to reset to the inherited value, as in rate-limit,retry
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    inherit: Vec<String>,
    /// The whole body: JSON, @file or -; flags take precedence
    #[arg(long, value_name = "JSON")]
    from_json: Option<String>,
}

impl Fields {
    fn given(&self) -> Result<BodyBuilder, Failure> {
        let given = BodyBuilder::begin(self.from_json.as_deref())?
            .value("description", self.description.as_deref())
            .list("event_types", &self.event_types)
            .list("disabled_event_types", &self.disabled_event_types)
            .json("filter", self.filter.as_deref())?
            .value("rate_limit", self.rate_limit.as_deref().map(rate_limit).transpose()?)
            .value("max_in_flight", self.max_in_flight)
            .value("delivery_schedule", self.quiet()?)
            .json_or_word("delivery_schedule", self.delivery_schedule.as_deref(), &["always"])?
            .json("retry", self.retry.as_deref())?
            .json("circuit", self.circuit.as_deref())?
            .value("payload_format", self.payload_format.as_deref())
            .pairs("headers", ':', &self.header)?
            .pairs("metadata", '=', &self.metadata)?
            .nulls(&self.inherit);
        let given = match self.timeout.as_deref() {
            Some("adaptive") => given.value("timeout", Some(json!({"mode": "adaptive"}))),
            Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                let timeout_ms: u64 = text.parse().map_err(|_| Failure::usage("--timeout-ms is too large"))?;
                given.value("timeout", Some(json!({"mode": "manual", "timeout_ms": timeout_ms})))
            }
            other => given.json("timeout", other)?,
        };
        match self.signing.as_deref() {
            Some(scheme)
                if scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
                    && scheme != "-" =>
            {
                Ok(given.value("signing", Some(json!({"scheme": scheme}))))
            }
            other => given.json("signing", other),
        }
    }

    fn quiet(&self) -> Result<Option<Value>, Failure> {
        let (Some(window), Some(zone)) = (&self.quiet_hours, &self.timezone) else { return Ok(None) };
        let (start, end) =
            window.split_once('-').ok_or_else(|| Failure::usage("--quiet-hours takes START-END, as in 22:00-06:00"))?;
        Ok(Some(json!({"quiet_start": start, "quiet_end": end, "timezone": zone})))
    }
}

const COLUMNS: &[Column] = &[
    Column("ID", Cell::Id("/id")),
    Column("TENANT", Cell::Id("/tenant")),
    Column("STATUS", Cell::Made(status)),
    Column("HEALTH", Cell::Text("/health/score")),
    Column("CIRCUIT", Cell::Text("/circuit/state")),
    Column("TYPES", Cell::Text("/event_types")),
    Column("URL", Cell::Text("/url")),
    Column("DESCRIPTION", Cell::Text("/description")),
];

fn status(row: &Value, reader: &super::text::Reader) -> String {
    match row["paused_until"].as_str() {
        Some(until) => format!("{}, ends {}", plain(row.get("status")), reader.time(until)),
        None => plain(row.get("status")),
    }
}

impl ApiCommand for Command {
    fn task(self) -> Result<Task, Failure> {
        Ok(match self {
            Command::List { tenant, uid, page } => {
                Task::list(Request::to(&LIST_ENDPOINTS).with("tenant", tenant).with("uid", uid), &page, COLUMNS)
            }
            Command::Create { destination, tenant, uid, secret, fields } => {
                let given = fields.given()?.value("url", destination).value("tenant", tenant).value("uid", uid);
                let given = given.value("secret", read_secret(secret.as_deref())?);
                Task::new(Request::to(&CREATE_ENDPOINT).body(given.write()), Shown::Once(SECRET_ONCE))
            }
            Command::Put { uid, destination, tenant, fields, if_match } => {
                let request = conditional(&PUT_ENDPOINT, &uid, &if_match).with("tenant", tenant);
                Task::record(request.body(fields.given()?.value("url", destination).write()))
            }
            Command::Show { id, watch } => Task::record(Request::to(&SHOW_ENDPOINT).named(&id)).watching(watch),
            Command::Patch { id, endpoint_url, uid, fields, if_match } => {
                let given = fields.given()?.value("url", endpoint_url).value("uid", uid);
                Task::record(conditional(&PATCH_ENDPOINT, &id, &if_match).body(given.write_something()?))
            }
            Command::Delete { id, if_match } => Task::new(conditional(&DELETE_ENDPOINT, &id, &if_match), Shown::Done("deleted")),
            Command::Pause { id, until, if_match } => {
                let body = BodyBuilder::begin(None)?.value("until", until);
                Task::record(conditional(&PAUSE_ENDPOINT, &id, &if_match).body(body.write()))
            }
            Command::Resume(verb) => Task::record(conditional(&RESUME_ENDPOINT, &verb.id, &verb.if_match)),
            Command::Disable(verb) => Task::record(conditional(&DISABLE_ENDPOINT, &verb.id, &verb.if_match)),
            Command::Enable(verb) => Task::record(conditional(&ENABLE_ENDPOINT, &verb.id, &verb.if_match)),
            Command::RotateSecret { id, secret, overlap_seconds, if_match } => {
                let body = BodyBuilder::begin(None)?
                    .value("secret", read_secret(secret.as_deref())?)
                    .value("overlap_seconds", overlap_seconds);
                Task::new(conditional(&ROTATE_SECRET, &id, &if_match).body(body.write()), Shown::Once(SECRET_ONCE))
            }
            Command::Test { id, r#type, data } => {
                let body = BodyBuilder::begin(None)?.value("type", r#type).json("data", data.as_deref())?;
                let task = Task::record(Request::to(&TEST_ENDPOINT).named(&id).body(body.write()));
                Task { complaint: Some(not_accepted), ..task }
            }
            Command::Stats { id, from, to, watch } => {
                Task::record(Request::to(&ENDPOINT_STATS).named(&id).with("from", from).with("to", to)).watching(watch)
            }
        })
    }
}

/// Why a test-send did not arrive.
fn not_accepted(attempt: &Value) -> Option<Failure> {
    let outcome = attempt["outcome"].as_str()?;
    let status = attempt["status_code"].as_u64().map_or_else(String::new, |status| format!(" ({status})"));
    (outcome != "success").then(|| Failure::new(Kind::Receiver, format!("the receiver did not accept the test: {outcome}{status}")))
}

fn conditional(operation: &'static Operation, name: &str, if_match: &IfMatch) -> Request {
    Request::to(operation).named(name).header("if-match", quoted(if_match).as_deref())
}

fn read_secret(given: Option<&str>) -> Result<Option<String>, Failure> {
    given.map(|given| input(given).map(|secret| secret.trim().to_owned())).transpose()
}
