//! `posthaste replay`: sending again what was sent, or missed, before.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::body::BodyBuilder;
use super::failure::Failure;
use super::http::Request;
use super::operations::{CANCEL_REPLAY, CREATE_REPLAY, LIST_REPLAYS, SHOW_REPLAY};
use super::table::{Cell, Column, plain};
use super::task::{ApiCommand, Page, Task, Watch};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create a replay of matching events; --dry-run only counts, --watch follows it to its end
    Create(Box<New>),
    /// List replays, newest first
    List {
        /// Only replays of this tenant
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// Show a replay and its progress; --watch stops when it ends
    Show {
        id: String,
        #[command(flatten)]
        watch: Watch,
    },
    /// Cancel a replay. Deliveries that it created stay
    Cancel { id: String },
}

#[derive(Args)]
pub(crate) struct New {
    /// Reason for the replay; stored in the audit log
    #[arg(long, required_unless_present = "from_json")]
    reason: Option<String>,
    /// Only events of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only deliveries to this endpoint
    #[arg(long, value_name = "ID")]
    endpoint: Option<String>,
    /// Event types or patterns, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    event_types: Vec<String>,
    /// Only deliveries with this status: delivered, dead, cancelled
    #[arg(long, value_delimiter = ',')]
    status: Vec<String>,
    /// Ids of deliveries, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "ID")]
    ids: Vec<String>,
    /// Events that match the endpoint now and were never delivered there
    #[arg(long)]
    missing: bool,
    /// Events published at this time or later
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Events published before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Maximum number of deliveries to create per minute
    #[arg(long, value_name = "N")]
    rate_per_minute: Option<u32>,
    /// Only count; create nothing
    #[arg(long)]
    dry_run: bool,
    /// Idempotency key: the same key creates one replay
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// The whole body: JSON, @file or -; flags take precedence
    #[arg(long, value_name = "JSON")]
    from_json: Option<String>,
    #[command(flatten)]
    watch: Watch,
}

const COLUMNS: &[Column] = &[
    Column("ID", Cell::Id("/id")),
    Column("STATE", Cell::Text("/state")),
    Column("MADE", Cell::Made(|row, _| format!("{}/{}", plain(row.get("created")), plain(row.get("matched"))))),
    Column("SKIPPED", Cell::Made(|row, _| skipped(row))),
    Column("REMAINING", Cell::Text("/remaining")),
    Column("TENANT", Cell::Id("/tenant")),
    Column("ENDPOINT", Cell::Id("/endpoint")),
    Column("REASON", Cell::Text("/reason")),
    Column("BY", Cell::Id("/requested_by")),
    Column("CREATED", Cell::Time("/created_at")),
];

/// The sum over all reasons; `show` has each of them.
fn skipped(replay: &Value) -> String {
    let reasons = replay["skipped"].as_object().into_iter().flat_map(|reasons| reasons.values());
    reasons.filter_map(Value::as_u64).sum::<u64>().to_string()
}

/// Such as `rpl_… running: 20 of 60 made, 0 skipped, 40 remaining`.
fn progress(replay: &Value) -> String {
    let of = |field: &str| plain(replay.get(field));
    let (id, state, made, matched) = (of("id"), of("state"), of("created"), of("matched"));
    format!("{id} {state}: {made} of {matched} made, {} skipped, {} remaining", skipped(replay), of("remaining"))
}

fn has_ended(replay: &Value) -> bool {
    replay["state"].as_str().is_some_and(|state| state != "running")
}

impl ApiCommand for Command {
    fn task(self) -> Result<Task, Failure> {
        Ok(match self {
            Command::Create(new) => {
                let body = BodyBuilder::begin(new.from_json.as_deref())?
                    .value("reason", new.reason)
                    .value("tenant", new.tenant)
                    .value("endpoint", new.endpoint)
                    .list("event_types", &new.event_types)
                    .list("status", &new.status)
                    .list("ids", &new.ids)
                    .value("missing", new.missing.then_some(true))
                    .value("from", new.from)
                    .value("to", new.to)
                    .value("rate_per_minute", new.rate_per_minute)
                    .value("dry_run", new.dry_run.then_some(true));
                let request = Request::to(&CREATE_REPLAY).header("idempotency-key", new.idempotency_key.as_deref());
                let task = Task::record(request.body(body.write())).watching(new.watch);
                // A dry run makes nothing that could be followed.
                let progress = (!new.dry_run).then_some(progress as fn(&Value) -> String);
                Task { followed_by: Some(&SHOW_REPLAY), ends_when: Some(has_ended), progress, ..task }
            }
            Command::List { tenant, page } => Task::list(Request::to(&LIST_REPLAYS).with("tenant", tenant), &page, COLUMNS),
            Command::Show { id, watch } => {
                let task = Task::record(Request::to(&SHOW_REPLAY).named(&id)).watching(watch);
                Task { ends_when: Some(has_ended), progress: Some(progress), ..task }
            }
            Command::Cancel { id } => Task::record(Request::to(&CANCEL_REPLAY).named(&id)),
        })
    }
}
