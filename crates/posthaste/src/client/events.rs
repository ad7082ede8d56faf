//! `posthaste events`: something happened.

use std::collections::BTreeSet;
use std::fmt::Write;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::body::{BodyBuilder, file_or_stdin};
use super::failure::{Failure, Kind};
use super::http::Request;
use super::operations::{CANCEL_EVENT, ERASE_EVENT, LIST_EVENTS, PUBLISH_EVENT, PUBLISH_EVENTS, SHOW_EVENT};
use super::table::{Cell, Column};
use super::task::{ApiCommand, Page, Shown, Task, Watch};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Publish an event. Returns when it and its deliveries are on disk
    Publish(Box<New>),
    /// Publish many events: a JSON array, or one event per line
    Batch {
        /// The file, or - for stdin
        file: String,
    },
    /// List events, newest first
    List {
        /// Only events of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only these event types or patterns, separated by commas
        #[arg(long, value_name = "TYPE")]
        r#type: Option<String>,
        /// Only with all of these labels, separated by commas
        #[arg(long, value_name = "LABELS")]
        labels: Option<String>,
        /// Accepted at this time or later
        #[arg(long, value_name = "TIME")]
        from: Option<String>,
        /// Accepted before this time
        #[arg(long, value_name = "TIME")]
        to: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// Show an event with its payload and its deliveries counted by status
    Show {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        watch: Watch,
    },
    /// Cancel an event's remaining deliveries
    Cancel(Which),
    /// Erase an event's payload. Waiting deliveries are cancelled; the history stays
    Erase(Which),
}

/// Ids that users choose are unique in a tenant only.
#[derive(Args)]
pub(crate) struct Which {
    id: String,
    /// Tenant of the event, where its id is not unique
    #[arg(long)]
    tenant: Option<String>,
}

#[derive(Args)]
pub(crate) struct New {
    /// Event type, such as invoice.paid
    r#type: Option<String>,
    /// The payload: JSON, @file or -; sent byte for byte
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Tenant [default: the tenant of the key, or `default`]
    #[arg(long)]
    tenant: Option<String>,
    /// Your own event id, unique in the tenant
    #[arg(long)]
    id: Option<String>,
    /// Version of the event type's schema
    #[arg(long)]
    version: Option<String>,
    /// When the event happened
    #[arg(long, value_name = "TIME")]
    timestamp: Option<String>,
    /// Idempotency key: the same key publishes once per day
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Deliver no earlier than this time
    #[arg(long, value_name = "TIME")]
    deliver_at: Option<String>,
    /// Stop sending after this time
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// Ordering key: deliveries with the same key to one endpoint are sent one after another
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,
    /// Labels, separated by commas; may be repeated
    #[arg(long, value_delimiter = ',', value_name = "LABEL")]
    labels: Vec<String>,
    /// The whole event: JSON, @file or -; flags take precedence
    #[arg(long, value_name = "JSON")]
    from_json: Option<String>,
}

const COLUMNS: &[Column] = &[
    Column("ID", Cell::Id("/id")),
    Column("TYPE", Cell::Id("/type")),
    Column("TENANT", Cell::Id("/tenant")),
    Column("ACCEPTED", Cell::Time("/accepted_at")),
    Column("DELIVER AT", Cell::Time("/deliver_at")),
    Column("LABELS", Cell::Text("/labels")),
];

fn warnings(answer: &Value) -> Vec<String> {
    answer["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Each once.
fn warnings_of_batch(answer: &Value) -> Vec<String> {
    let all: BTreeSet<String> = answer["results"].as_array().into_iter().flatten().flat_map(warnings).collect();
    all.into_iter().collect()
}

/// Why events of a batch were not published, one a line.
fn rejected(answer: &Value) -> Option<Failure> {
    let results = answer["results"].as_array()?;
    let mut reasons = String::new();
    for (place, result) in results.iter().enumerate() {
        let Some(error) = result.get("error").filter(|error| !error.is_null()) else { continue };
        let detail = error["detail"].as_str().or(error["title"].as_str()).unwrap_or("rejected");
        let _ = write!(reasons, "\n  event {}: {detail}", place + 1);
    }
    let message = format!("{} of {} events were rejected; the others were published:{reasons}", answer["rejected"], results.len());
    (!reasons.is_empty()).then(|| Failure::new(Kind::Refused, message))
}

impl ApiCommand for Command {
    fn task(self) -> Result<Task, Failure> {
        Ok(match self {
            Command::Publish(new) => {
                if new.from_json.is_none() && new.r#type.is_none() {
                    return Err(Failure::usage(
                        "what type is the event? posthaste events publish invoice.paid --data '{\"amount\": 4999}'",
                    ));
                }
                if new.from_json.is_none() && new.data.is_none() {
                    let message = "the event has no payload: add --data '{\"amount\": 4999}', --data @file, or --data - for stdin";
                    return Err(Failure::usage(message));
                }
                let body = BodyBuilder::begin(new.from_json.as_deref())?
                    .value("type", new.r#type)
                    .value("tenant", new.tenant)
                    .value("id", new.id)
                    .value("version", new.version)
                    .value("timestamp", new.timestamp)
                    .value("idempotency_key", new.idempotency_key)
                    .value("deliver_at", new.deliver_at)
                    .value("expires_at", new.expires_at)
                    .value("ordering_key", new.ordering_key)
                    .list("labels", &new.labels)
                    .json("data", new.data.as_deref())?;
                Task { warnings: Some(warnings), ..Task::record(Request::to(&PUBLISH_EVENT).body(body.write())) }
            }
            Command::Batch { file } => {
                let bytes = file_or_stdin(&file)?;
                let is_array = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
                let media_type = if is_array { "application/json" } else { "application/x-ndjson" };
                let task = Task::record(Request::to(&PUBLISH_EVENTS).body(bytes).typed(media_type));
                Task { complaint: Some(rejected), warnings: Some(warnings_of_batch), ..task }
            }
            Command::List { tenant, r#type, labels, from, to, page } => {
                let request = Request::to(&LIST_EVENTS).with("tenant", tenant).with("type", r#type).with("labels", labels);
                Task::list(request.with("from", from).with("to", to), &page, COLUMNS)
            }
            Command::Show { which, watch } => {
                Task::record(Request::to(&SHOW_EVENT).named(&which.id).with("tenant", which.tenant)).watching(watch)
            }
            Command::Cancel(which) => Task::record(Request::to(&CANCEL_EVENT).named(&which.id).with("tenant", which.tenant)),
            Command::Erase(which) => {
                Task::new(Request::to(&ERASE_EVENT).named(&which.id).with("tenant", which.tenant), Shown::Done("erased"))
            }
        })
    }
}
