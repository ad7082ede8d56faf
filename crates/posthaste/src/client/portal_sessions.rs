//! `posthaste portal-sessions`: who is in the portal, and how to end that.

use clap::{ArgGroup, Subcommand};

use super::failure::Failure;
use super::http::Request;
use super::operations::{END_PORTAL_SESSION, END_PORTAL_SESSIONS, LIST_PORTAL_SESSIONS};
use super::table::{Cell, Column};
use super::task::{ApiCommand, Page, Shown, Task};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List open sessions, newest first, and unused links
    List {
        /// Only sessions of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only sessions whose link was created by this key: its id, or `admin`
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// End a session or an unused link
    End { id: String },
    /// End all sessions of a tenant, or all whose link was created by a key
    #[command(group = ArgGroup::new("whose").required(true).multiple(true).args(["tenant", "key"]))]
    EndAll {
        /// End all sessions of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// The id of the key, or `admin` for the operator's first key
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
    },
}

const COLUMNS: &[Column] = &[
    Column("ID", Cell::Id("/id")),
    Column("TENANT", Cell::Id("/tenant")),
    Column("PERMISSIONS", Cell::Text("/permissions")),
    Column("KEY", Cell::Id("/key")),
    Column("CREATED", Cell::Time("/created_at")),
    Column("STARTED", Cell::Time("/started_at")),
    Column("EXPIRES", Cell::Time("/expires_at")),
];

impl ApiCommand for Command {
    fn task(self) -> Result<Task, Failure> {
        Ok(match self {
            Command::List { tenant, key, page } => {
                Task::list(Request::to(&LIST_PORTAL_SESSIONS).with("tenant", tenant).with("key", key), &page, COLUMNS)
            }
            Command::End { id } => Task::new(Request::to(&END_PORTAL_SESSION).named(&id), Shown::Done("ended")),
            Command::EndAll { tenant, key } => {
                let request = Request::to(&END_PORTAL_SESSIONS).with("tenant", tenant).with("key", key);
                Task::new(request, Shown::Done("ended"))
            }
        })
    }
}
