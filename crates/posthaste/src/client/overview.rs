//! Commands with nothing below them: `audit`, `stats`, `portal-link`, `filters test`, `cluster`.

use clap::{Args, Subcommand};

use super::body::BodyBuilder;
use super::failure::Failure;
use super::http::Request;
use super::operations::{CREATE_PORTAL_LINK, LIST_AUDIT, READ_CLUSTER, READ_HOLD, READ_STATS, RELEASE_HOLD, TEST_FILTER};
use super::table::{Cell, Column};
use super::task::{ApiCommand, Page, Shown, Task, Watch};

#[derive(Args)]
pub(crate) struct Audit {
    /// Only actions on this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only actions of this caller, such as the id of a key
    #[arg(long)]
    actor: Option<String>,
    /// Only these actions or patterns such as endpoint.*, separated by commas
    #[arg(long)]
    action: Option<String>,
    /// Only actions on this id
    #[arg(long, value_name = "ID")]
    resource: Option<String>,
    /// At this time or later
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Before this time
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

impl ApiCommand for Audit {
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
    /// Only deliveries of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Count from this time on
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Count up to this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    #[command(flatten)]
    watch: Watch,
}

impl ApiCommand for Stats {
    fn task(self) -> Result<Task, Failure> {
        let request = Request::to(&READ_STATS).with("tenant", self.tenant).with("from", self.from).with("to", self.to);
        Ok(Task::record(request).watching(self.watch))
    }
}

#[derive(Args)]
pub(crate) struct PortalLink {
    tenant: String,
    /// Permissions: view, manage, secrets, replay
    #[arg(long, value_delimiter = ',', default_value = "view", value_name = "PERMISSION")]
    permissions: Vec<String>,
    /// How long the session lasts [default: one hour]
    #[arg(long, value_name = "SECONDS")]
    expires_in_seconds: Option<u64>,
    /// How the portal looks, as the guide describes `appearance`: JSON, @file or -
    #[arg(long, value_name = "JSON")]
    appearance: Option<String>,
}

impl ApiCommand for PortalLink {
    fn task(self) -> Result<Task, Failure> {
        let body = BodyBuilder::begin(None)?
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
    /// Test a filter against an event without publishing it
    Test {
        /// Filter: JSON, @file or -
        #[arg(long, value_name = "JSON")]
        filter: String,
        /// The event as it would be published: JSON, @file or -
        #[arg(long, value_name = "JSON")]
        event: String,
    },
}

impl ApiCommand for Filters {
    fn task(self) -> Result<Task, Failure> {
        let Filters::Test { filter, event } = self;
        let body = BodyBuilder::begin(None)?.json("filter", Some(&filter))?.json("event", Some(&event))?;
        Ok(Task::record(Request::to(&TEST_FILTER).body(body.write())))
    }
}

#[derive(Args)]
pub(crate) struct Cluster {
    #[command(flatten)]
    watch: Watch,
}

impl ApiCommand for Cluster {
    fn task(self) -> Result<Task, Failure> {
        Ok(Task::record(Request::to(&READ_CLUSTER)).watching(self.watch))
    }
}

#[derive(Subcommand)]
pub(crate) enum Hold {
    /// Show whether all deliveries are held, since when, and how many wait
    Show,
    /// Release all deliveries
    Release,
}

impl ApiCommand for Hold {
    fn task(self) -> Result<Task, Failure> {
        Ok(match self {
            Hold::Show => Task::record(Request::to(&READ_HOLD)),
            Hold::Release => {
                Task::new(Request::to(&RELEASE_HOLD), Shown::Done("released; every node starts to deliver within two seconds"))
            }
        })
    }
}
