//! `posthaste keys`: who may do what.

use clap::Subcommand;

use super::body::BodyBuilder;
use super::failure::Failure;
use super::http::Request;
use super::operations::{CREATE_KEY, LIST_KEYS, REVOKE_KEY};
use super::table::{Cell, Column};
use super::task::{ApiCommand, Page, Shown, Task};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List keys, newest first, including revoked and expired ones
    List {
        #[command(flatten)]
        page: Page,
    },
    /// Create a key. It is shown only once
    Create {
        /// Name of the key
        name: String,
        /// Scopes: publish, read, manage, replay, admin
        #[arg(long, required = true, value_delimiter = ',', value_name = "SCOPE")]
        scopes: Vec<String>,
        /// Restrict the key to one tenant [default: all tenants]
        #[arg(long)]
        tenant: Option<String>,
        /// When the key expires
        #[arg(long, value_name = "TIME")]
        expires_at: Option<String>,
    },
    /// Revoke a key, on all nodes within a second
    Delete { id: String },
}

const COLUMNS: &[Column] = &[
    Column("ID", Cell::Id("/id")),
    Column("NAME", Cell::Text("/name")),
    Column("TENANT", Cell::Id("/tenant")),
    Column("SCOPES", Cell::Text("/scopes")),
    Column("CREATED", Cell::Time("/created_at")),
    Column("LAST USED", Cell::Time("/last_used_at")),
    Column("EXPIRES", Cell::Time("/expires_at")),
    Column("REVOKED", Cell::Time("/revoked_at")),
];

impl ApiCommand for Command {
    fn task(self) -> Result<Task, Failure> {
        Ok(match self {
            Command::List { page } => Task::list(Request::to(&LIST_KEYS), &page, COLUMNS),
            Command::Create { name, scopes, tenant, expires_at } => {
                let body = BodyBuilder::begin(None)?
                    .value("name", Some(name))
                    .list("scopes", &scopes)
                    .value("tenant", tenant)
                    .value("expires_at", expires_at);
                Task::new(Request::to(&CREATE_KEY).body(body.write()), Shown::Once("keep the key: it is not shown again"))
            }
            Command::Delete { id } => Task::new(Request::to(&REVOKE_KEY).named(&id), Shown::Done("revoked")),
        })
    }
}
