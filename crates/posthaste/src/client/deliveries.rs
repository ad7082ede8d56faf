//! `posthaste deliveries` and `posthaste dead-letters`: one event on its way to one endpoint.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::failure::Failure;
use super::http::Request;
use super::operations::{
    CANCEL_DELIVERY, LIST_ATTEMPTS, LIST_DEAD_LETTERS, LIST_DELIVERIES, RETRY_DEAD_LETTER, RETRY_DELIVERY, SHOW_DELIVERY,
};
use super::table::{Cell, Column, plain};
use super::task::{ApiCommand, Page, Task, Watch};
use super::text::Reader;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List deliveries, newest first; waiting ones with the reason and until when
    List {
        #[command(flatten)]
        filters: Box<Filters>,
        #[command(flatten)]
        page: Page,
    },
    /// Show a delivery: its status, and why and until when it waits. --watch stops when the delivery ends
    Show {
        id: String,
        #[command(flatten)]
        watch: Watch,
    },
    /// Redeliver: create a new delivery, or send a waiting one now
    Retry { id: String },
    /// Cancel a delivery
    Cancel { id: String },
    /// List the attempts of a delivery, newest first
    Attempts {
        id: String,
        #[command(flatten)]
        page: Page,
    },
}

#[derive(Subcommand)]
pub(crate) enum DeadLetters {
    /// List dead letters that were not retried, newest first
    List {
        #[command(flatten)]
        filters: Box<Filters>,
        #[command(flatten)]
        page: Page,
    },
    /// Retry a dead letter
    Retry { id: String },
}

#[derive(Args)]
pub(crate) struct Filters {
    /// Only deliveries to this endpoint
    #[arg(long, value_name = "ID")]
    endpoint: Option<String>,
    /// Only deliveries of this event
    #[arg(long, value_name = "ID")]
    event: Option<String>,
    /// Only deliveries of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// pending, delivering, scheduled, delivered, dead, cancelled; separate several by commas
    #[arg(long)]
    status: Option<String>,
    #[arg(
        long,
        value_name = "REASON",
        help = "disabled, paused, deliver_at, retry, circuit_open, quiet_hours, ordering, rate_limited, concurrency"
    )]
    hold_reason: Option<String>,
    /// Only these event types or patterns, separated by commas
    #[arg(long, value_name = "TYPE")]
    r#type: Option<String>,
    /// Only with all of these labels, separated by commas
    #[arg(long, value_name = "LABELS")]
    labels: Option<String>,
    /// Created at this time or later
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Created before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

impl Filters {
    fn over(self, request: Request) -> Request {
        request
            .with("endpoint", self.endpoint)
            .with("event", self.event)
            .with("tenant", self.tenant)
            .with("status", self.status)
            .with("hold_reason", self.hold_reason)
            .with("type", self.r#type)
            .with("labels", self.labels)
            .with("from", self.from)
            .with("to", self.to)
    }
}

const COLUMNS: &[Column] = &[
    Column("ID", Cell::Id("/id")),
    Column("TYPE", Cell::Id("/type")),
    Column("STATUS", Cell::Text("/status")),
    Column("WHY, AND UNTIL WHEN", Cell::Made(why)),
    Column("TRIES", Cell::Made(|row, _| format!("{}/{}", plain(row.get("attempt_count")), plain(row.get("max_attempts"))))),
    Column("LAST", Cell::Text("/last_status_code")),
    Column("ERROR", Cell::Text("/last_error")),
    Column("TENANT", Cell::Id("/tenant")),
    Column("ENDPOINT", Cell::Id("/endpoint")),
    Column("EVENT", Cell::Id("/event")),
    Column("CREATED", Cell::Time("/created_at")),
];

/// Why it waits and until when, or how it has ended and when.
fn why(row: &Value, reader: &Reader) -> String {
    let text = |name: &str| row[name].as_str();
    let time = |name: &str| text(name).map(|at| reader.time(at));
    let reason = ["hold_reason", "dead_reason", "cancel_reason"].into_iter().find_map(text).map(super::text::escaped);
    let at = ["next_attempt_at", "delivered_at", "dead_at", "cancelled_at"].into_iter().find_map(time);
    match (reason, at) {
        (Some(reason), Some(at)) => format!("{reason}, {at}"),
        (Some(reason), None) => reason,
        (None, Some(at)) => at,
        (None, None) => "-".to_owned(),
    }
}

const ATTEMPT_COLUMNS: &[Column] = &[
    Column("ID", Cell::Id("/id")),
    Column("TRY", Cell::Text("/number")),
    Column("OUTCOME", Cell::Text("/outcome")),
    Column("STATUS", Cell::Text("/status_code")),
    Column("TOOK MS", Cell::Text("/response_time_ms")),
    Column("AT", Cell::Time("/attempted_at")),
    Column("ERROR", Cell::Text("/error")),
    Column("ANSWER", Cell::Text("/response_preview")),
];

fn has_ended(delivery: &Value) -> bool {
    delivery["status"].as_str().is_some_and(|status| ["delivered", "dead", "cancelled"].contains(&status))
}

impl ApiCommand for Command {
    fn task(self) -> Result<Task, Failure> {
        Ok(match self {
            Command::List { filters, page } => Task::list(filters.over(Request::to(&LIST_DELIVERIES)), &page, COLUMNS),
            Command::Show { id, watch } => {
                let task = Task::record(Request::to(&SHOW_DELIVERY).named(&id)).watching(watch);
                Task { ends_when: Some(has_ended), ..task }
            }
            Command::Retry { id } => Task::record(Request::to(&RETRY_DELIVERY).named(&id)),
            Command::Cancel { id } => Task::record(Request::to(&CANCEL_DELIVERY).named(&id)),
            Command::Attempts { id, page } => Task::list(Request::to(&LIST_ATTEMPTS).named(&id), &page, ATTEMPT_COLUMNS),
        })
    }
}

impl ApiCommand for DeadLetters {
    fn task(self) -> Result<Task, Failure> {
        Ok(match self {
            DeadLetters::List { filters, page } => Task::list(filters.over(Request::to(&LIST_DEAD_LETTERS)), &page, COLUMNS),
            DeadLetters::Retry { id } => Task::record(Request::to(&RETRY_DEAD_LETTER).named(&id)),
        })
    }
}
