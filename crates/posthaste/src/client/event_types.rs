//! `posthaste event-types`: the catalogue.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::body::BodyBuilder;
use super::failure::Failure;
use super::http::Request;
use super::operations::{CREATE_EVENT_TYPE, DELETE_EVENT_TYPE, LIST_EVENT_TYPES, PATCH_EVENT_TYPE, SHOW_EVENT_TYPE};
use super::table::{Cell, Column, plain};
use super::task::{ApiCommand, Page, Shown, Task, Watch};
use super::{IfMatch, quoted};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List event types by name
    List {
        #[command(flatten)]
        page: Page,
    },
    /// Show an event type with its versions
    Show {
        name: String,
        #[command(flatten)]
        watch: Watch,
    },
    /// Create an event type
    Create {
        name: Option<String>,
        #[command(flatten)]
        fields: Fields,
    },
    /// Change the given fields of an event type
    Patch {
        name: String,
        #[command(flatten)]
        fields: Fields,
        #[command(flatten)]
        if_match: IfMatch,
    },
    /// Delete an event type. Events of that type are still delivered
    Delete {
        name: String,
        #[command(flatten)]
        if_match: IfMatch,
    },
}

#[derive(Args)]
pub(crate) struct Fields {
    /// Description of the event type
    #[arg(long)]
    description: Option<String>,
    /// Versions: JSON, @file or -, as in '[{"version": "1", "schema": {…}, "example": {…}}]'
    #[arg(long, value_name = "JSON")]
    versions: Option<String>,
    /// Mark as deprecated: still accepted, and subscribers are warned
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    deprecated: Option<bool>,
    /// Send before other events, also in quiet hours
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    priority: Option<bool>,
    /// The whole body: JSON, @file or -; flags take precedence
    #[arg(long, value_name = "JSON")]
    from_json: Option<String>,
}

impl Fields {
    fn given(&self) -> Result<BodyBuilder, Failure> {
        let given = BodyBuilder::begin(self.from_json.as_deref())?
            .value("description", self.description.as_deref())
            .value("deprecated", self.deprecated)
            .value("priority", self.priority);
        given.json("versions", self.versions.as_deref())
    }
}

const COLUMNS: &[Column] = &[
    Column("NAME", Cell::Id("/name")),
    Column("VERSIONS", Cell::Made(versions)),
    Column("PRIORITY", Cell::Text("/priority")),
    Column("DEPRECATED", Cell::Time("/deprecated_at")),
    Column("DESCRIPTION", Cell::Text("/description")),
];

fn versions(row: &Value, _: &super::text::Reader) -> String {
    let versions = row["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let names: Vec<String> = versions.iter().map(|version| plain(version.get("version"))).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}

impl ApiCommand for Command {
    fn task(self) -> Result<Task, Failure> {
        Ok(match self {
            Command::List { page } => Task::list(Request::to(&LIST_EVENT_TYPES), &page, COLUMNS),
            Command::Show { name, watch } => Task::record(Request::to(&SHOW_EVENT_TYPE).named(&name)).watching(watch),
            Command::Create { name, fields } => {
                Task::record(Request::to(&CREATE_EVENT_TYPE).body(fields.given()?.value("name", name).write()))
            }
            Command::Patch { name, fields, if_match } => {
                let request = Request::to(&PATCH_EVENT_TYPE).named(&name).header("if-match", quoted(&if_match).as_deref());
                Task::record(request.body(fields.given()?.write_something()?))
            }
            Command::Delete { name, if_match } => {
                let request = Request::to(&DELETE_EVENT_TYPE).named(&name).header("if-match", quoted(&if_match).as_deref());
                Task::new(request, Shown::Done("deleted"))
            }
        })
    }
}
