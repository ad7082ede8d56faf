//! `posthaste tenants`: customers of the people who run Posthaste.

use clap::{Args, Subcommand};

use super::body::{BodyBuilder, rate_limit};
use super::failure::Failure;
use super::http::Request;
use super::operations::{DELETE_TENANT, LIST_TENANTS, PATCH_TENANT, PUT_TENANT, SHOW_TENANT};
use super::table::{Cell, Column, plain};
use super::task::{ApiCommand, Page, Shown, Task, Watch};
use super::{IfMatch, quoted};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List tenants by id
    List {
        #[command(flatten)]
        page: Page,
    },
    /// Show a tenant: its share, its limits and its endpoints' defaults
    Show {
        id: String,
        #[command(flatten)]
        watch: Watch,
    },
    /// Create a tenant, or replace its configuration
    Put {
        id: String,
        #[command(flatten)]
        fields: Fields,
        #[command(flatten)]
        if_match: IfMatch,
    },
    /// Change the given fields of a tenant
    Patch {
        id: String,
        #[command(flatten)]
        fields: Fields,
        #[command(flatten)]
        if_match: IfMatch,
    },
    /// Delete a tenant with its endpoints and keys
    Delete {
        id: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        if_match: IfMatch,
    },
}

#[derive(Args)]
pub(crate) struct Fields {
    /// Weight of the tenant's share of the server's capacity
    #[arg(long)]
    weight: Option<u32>,
    /// Maximum number of requests in flight over all endpoints
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
    #[arg(long, value_name = "LIMIT", help = "Over all its endpoints together: PER_MINUTE or PER_MINUTE:BURST")]
    rate_limit: Option<String>,
    /// How long events are kept
    #[arg(long, value_name = "DAYS")]
    retention_days: Option<u32>,
    /// Defaults for the tenant's endpoints: JSON, @file or -
    #[arg(long, value_name = "JSON")]
    defaults: Option<String>,
    /// Limits of the tenant: JSON, @file or -
    #[arg(long, value_name = "JSON")]
    limits: Option<String>,
    /// Notification settings: JSON, @file or -
    #[arg(long, value_name = "JSON")]
    notifications: Option<String>,
    /// Metadata as NAME=VALUE; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    /// Fields to reset to their default
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    inherit: Vec<String>,
    /// The whole body: JSON, @file or -; flags take precedence
    #[arg(long, value_name = "JSON")]
    from_json: Option<String>,
}

impl Fields {
    fn given(&self) -> Result<BodyBuilder, Failure> {
        Ok(BodyBuilder::begin(self.from_json.as_deref())?
            .value("weight", self.weight)
            .value("max_in_flight", self.max_in_flight)
            .value("rate_limit", self.rate_limit.as_deref().map(rate_limit).transpose()?)
            .value("retention_days", self.retention_days)
            .json("defaults", self.defaults.as_deref())?
            .json("limits", self.limits.as_deref())?
            .json("notifications", self.notifications.as_deref())?
            .pairs("metadata", '=', &self.metadata)?
            .nulls(&self.inherit))
    }
}

const COLUMNS: &[Column] = &[
    Column("ID", Cell::Id("/id")),
    Column("WEIGHT", Cell::Text("/weight")),
    Column("IN FLIGHT", Cell::Text("/max_in_flight")),
    Column("PER MINUTE", Cell::Made(|row, _| plain(row.pointer("/rate_limit/max_per_minute")))),
    Column("KEPT DAYS", Cell::Text("/retention_days")),
    Column("CREATED", Cell::Time("/created_at")),
];

impl ApiCommand for Command {
    fn task(self) -> Result<Task, Failure> {
        Ok(match self {
            Command::List { page } => Task::list(Request::to(&LIST_TENANTS), &page, COLUMNS),
            Command::Show { id, watch } => Task::record(Request::to(&SHOW_TENANT).named(&id)).watching(watch),
            Command::Put { id, fields, if_match } => {
                let request = Request::to(&PUT_TENANT).named(&id).header("if-match", quoted(&if_match).as_deref());
                Task::record(request.body(fields.given()?.write()))
            }
            Command::Patch { id, fields, if_match } => {
                let request = Request::to(&PATCH_TENANT).named(&id).header("if-match", quoted(&if_match).as_deref());
                Task::record(request.body(fields.given()?.write_something()?))
            }
            Command::Delete { id, yes, if_match } => {
                let request = Request::to(&DELETE_TENANT).named(&id).header("if-match", quoted(&if_match).as_deref());
                let question = format!("Delete the tenant {id} with its endpoints and keys? What waits for them is cancelled.");
                Task { question: (!yes).then_some(question), ..Task::new(request, Shown::Done("deleted")) }
            }
        })
    }
}
