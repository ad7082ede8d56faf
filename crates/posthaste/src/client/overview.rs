//! Commands with nothing below them: `audit`, `stats`, `portal-link`, `filters test`, `cluster`.

use clap::{Args, Subcommand};

use super::failure::Failure;
use super::given::Given;
use super::http::Request;
use super::operations::{CREATE_PORTAL_LINK, LIST_AUDIT, READ_CLUSTER, READ_STATS, TEST_FILTER};
use super::table::{Cell, Column};
use super::task::{Asks, Page, Shown, Task, Watch};

#[derive(Args)]
pub(crate) struct Audit {
    #[arg(long)]
    tenant: Option<String>,
    /// Only what was done by this: the id of a key, say
    #[arg(long)]
    actor: Option<String>,
    /// Only these actions or patterns such as endpoint.*, by commas
    #[arg(long)]
    action: Option<String>,
    /// Only what was done to this id
    #[arg(long, value_name = "ID")]
    resource: Option<String>,
    /// Done at this time or later
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Done before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    #[command(flatten)]
    page: Page,
}

const AUDIT_COLUMNS: &[Column] = &[
    Column("AT", Cell::Time("/at")),
    Column("WHO", Cell::Id("/actor")),
    Column("FROM", Cell::Id("/address")),
    Column("WHAT", Cell::Id("/action")),
    Column("SUBJECT", Cell::Id("/subject")),
    Column("TENANT", Cell::Id("/tenant")),
];

impl Asks for Audit {
    fn task(self) -> Result<Task, Failure> {
        let request = Request::to(&LIST_AUDIT)
            .with("tenant", self.tenant)
            .with("actor", self.actor)
            .with("action", self.action)
            .with("resource", self.resource)
            .with("from", self.from)
            .with("to", self.to);
        Ok(Task::list(request, &self.page, AUDIT_COLUMNS))
    }
}

#[derive(Args)]
pub(crate) struct Stats {
    #[arg(long)]
    tenant: Option<String>,
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    #[command(flatten)]
    watch: Watch,
}

impl Asks for Stats {
    fn task(self) -> Result<Task, Failure> {
        let request = Request::to(&READ_STATS).with("tenant", self.tenant).with("from", self.from).with("to", self.to);
        Ok(Task::record(request).watching(self.watch))
    }
}

#[derive(Args)]
pub(crate) struct PortalLink {
    tenant: String,
    /// view, manage, secrets, replay
    #[arg(long, value_delimiter = ',', default_value = "view", value_name = "PERMISSION")]
    permissions: Vec<String>,
    /// An hour unless said
    #[arg(long, value_name = "SECONDS")]
    expires_in_seconds: Option<u64>,
    /// How the portal looks, as the guide describes `appearance`: JSON, @file or -
    #[arg(long, value_name = "JSON")]
    appearance: Option<String>,
}

impl Asks for PortalLink {
    fn task(self) -> Result<Task, Failure> {
        let body = Given::begin(None)?
            .value("tenant", Some(self.tenant))
            .list("permissions", &self.permissions)
            .value("expires_in_seconds", self.expires_in_seconds)
            .json("appearance", self.appearance.as_deref())?;
        let words = "the link is good for one use within five minutes; the session that it begins ends at expires_at";
        Ok(Task::new(Request::to(&CREATE_PORTAL_LINK).body(body.write()), Shown::Once(words)))
    }
}

#[derive(Subcommand)]
pub(crate) enum Filters {
    /// Try a filter on an event that is not published
    Test {
        /// JSON, @file or -
        #[arg(long, value_name = "JSON")]
        filter: String,
        /// As it would be published: JSON, @file or -
        #[arg(long, value_name = "JSON")]
        event: String,
    },
}

impl Asks for Filters {
    fn task(self) -> Result<Task, Failure> {
        let Filters::Test { filter, event } = self;
        let body = Given::begin(None)?.json("filter", Some(&filter))?.json("event", Some(&event))?;
        Ok(Task::record(Request::to(&TEST_FILTER).body(body.write())))
    }
}

#[derive(Args)]
pub(crate) struct Cluster {
    #[command(flatten)]
    watch: Watch,
}

impl Asks for Cluster {
    fn task(self) -> Result<Task, Failure> {
        Ok(Task::record(Request::to(&READ_CLUSTER)).watching(self.watch))
    }
}
