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
    /// Send again what matches, at a pace; --dry-run counts only, --watch follows it to its end
    Create(Box<New>),
    /// Replays, newest first
    List {
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// One replay and how far it has come; --watch ends with it
    Show {
        id: String,
        #[command(flatten)]
        watch: Watch,
    },
    /// Make no more of its deliveries. Those made stay
    Cancel { id: String },
}

#[derive(Args)]
pub(crate) struct New {
    /// Why it is sent again; kept in the audit log
    #[arg(long, required_unless_present = "from_json")]
    reason: Option<String>,
    #[arg(long)]
    tenant: Option<String>,
    #[arg(long, value_name = "ID")]
    endpoint: Option<String>,
    /// Types or patterns, by commas
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    event_types: Vec<String>,
    /// delivered, dead, cancelled
    #[arg(long, value_delimiter = ',')]
    status: Vec<String>,
    /// Of deliveries, by commas
    #[arg(long, value_delimiter = ',', value_name = "ID")]
    ids: Vec<String>,
    /// Events that match the endpoint now and never had a delivery there
    #[arg(long)]
    missing: bool,
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    #[arg(long, value_name = "N")]
    rate_per_minute: Option<u32>,
    /// Count only
    #[arg(long)]
    dry_run: bool,
    /// The same key makes one replay, however often it is sent
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// The whole body: JSON, @file or -; flags beside it win
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
