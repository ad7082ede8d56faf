//! `posthaste outbox`: makes, removes and shows the outbox in an application's database.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::bail;
use clap::{Args, Subcommand};
use posthaste_core::time::Timestamp;
use posthaste_relay::outbox::COUNTED_MAX;
use posthaste_relay::{FailedRow, Installed, OutboxError, Status, install, status, uninstall};
use serde_json::json;

use crate::client::escaped;
use crate::settings::{Flags, Settings};

#[derive(Args)]
pub(crate) struct OutboxCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Create the table `posthaste_outbox` and the function `posthaste_publish` (safe to repeat)
    Install(OutboxLocation),
    /// Remove the table and the function. Refuses while rows wait
    Uninstall {
        #[command(flatten)]
        place: OutboxLocation,
        /// Remove the table even if rows wait in it; they are lost
        #[arg(long)]
        force: bool,
    },
    /// Show waiting rows, their age, and failed rows with the reason
    Status {
        #[command(flatten)]
        place: OutboxLocation,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

// No `Debug`: a URL holds a password.
#[derive(Args)]
struct OutboxLocation {
    #[arg(
        long,
        value_name = "URL",
        help = "The application's database, such as postgres://user:password@host/database; better set as POSTHASTE_OUTBOX, since others on \
                this machine can see command lines [default: the settings outbox, then database_url]"
    )]
    database_url: Option<String>,
}

impl OutboxLocation {
    fn url(&self) -> anyhow::Result<String> {
        if let Some(url) = self.database_url.as_ref().filter(|url| !url.is_empty()) {
            if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
                bail!("--database-url is a URL such as postgres://user:password@host/database");
            }
            return Ok(url.clone());
        }
        // Mistakes in the server's settings are the server's to tell.
        let (settings, _) = Settings::load_what_can_be(&Flags::default());
        match settings.outbox.or(settings.database_url) {
            Some(url) => Ok(url.0),
            None => {
                bail!("name the application's database: --database-url postgres://user:password@host/database, or POSTHASTE_OUTBOX")
            }
        }
    }
}

pub(crate) async fn run(command: &OutboxCommand) -> anyhow::Result<()> {
    let page = match &command.action {
        Action::Install(place) => match install(&place.url()?).await.map_err(|trouble| plainly(&trouble))? {
            Installed::Now { schema } => format!("the outbox is installed in the schema {schema}\n"),
            Installed::Before { schema } => format!("the outbox is installed in the schema {schema}, and was so before\n"),
        },
        Action::Uninstall { place, force } => match uninstall(&place.url()?, *force).await.map_err(|trouble| plainly(&trouble))? {
            0 => "the outbox is removed\n".to_owned(),
            lost => format!("the outbox is removed, and with it rows that waited: {lost}\n"),
        },
        Action::Status { place, json } => {
            let status = status(&place.url()?).await.map_err(|trouble| plainly(&trouble))?;
            if *json { as_json(&status) } else { as_text(&status) }
        }
    };
    // Whoever does not read it still has the code.
    let _ = std::io::stdout().lock().write_all(page.as_bytes());
    Ok(())
}

/// Some of the words are the database's: a terminal must not obey them.
fn plainly(trouble: &OutboxError) -> anyhow::Error {
    anyhow::anyhow!("{}", escaped(&trouble.to_string()))
}

fn as_text(status: &Status) -> String {
    let Status { schema, version, waiting, oldest_created_at, failed } = status;
    let mut page = format!("the outbox is in the schema {schema}, of version {version}\n");
    match (waiting.rows, oldest_created_at) {
        (0, _) => page.push_str("nothing waits\n"),
        (rows, None) => _ = writeln!(page, "rows that wait: {}", counted(rows)),
        (rows, Some(oldest)) => {
            let _ = writeln!(page, "rows that wait: {}, the oldest since {}", counted(rows), oldest.to_rfc3339());
        }
    }
    if let Some(lag) = waiting.lag {
        let _ = writeln!(page, "due and not moved for: {:.1} s", lag.as_secs_f64());
    }
    if waiting.failed > 0 {
        let _ = writeln!(page, "of these refused: {}", counted(waiting.failed));
    }
    for FailedRow { id, tenant, event_type, attempts, error, next_attempt_at, .. } in failed {
        let tenant = tenant.as_deref().unwrap_or(posthaste_store::DEFAULT_TENANT);
        let times = if *attempts == 1 { "once".to_owned() } else { format!("{attempts} times") };
        let line = format!("{id}  {tenant}  {event_type}  refused {times}, again at {}: {error}", next_attempt_at.to_rfc3339());
        let _ = writeln!(page, "  {}", escaped(&line));
    }
    page
}

/// No more than so many are counted.
fn counted(rows: u64) -> String {
    let is_all = i64::try_from(rows).is_ok_and(|rows| rows < COUNTED_MAX);
    if is_all { rows.to_string() } else { format!("{rows} or more") }
}

fn as_json(status: &Status) -> String {
    let Status { schema, version, waiting, oldest_created_at, failed } = status;
    let row = |row: &FailedRow| {
        json!({
            "id": row.id,
            "tenant": row.tenant,
            "type": row.event_type,
            "attempts": row.attempts,
            "last_error": row.error,
            "next_attempt_at": row.next_attempt_at.to_rfc3339(),
            "created_at": row.created_at.to_rfc3339(),
        })
    };
    let page = json!({
        "schema": schema,
        "version": version,
        "waiting": waiting.rows,
        "failed": waiting.failed,
        "lag_seconds": waiting.lag.map_or(0.0, |lag| lag.as_secs_f64()),
        "oldest_created_at": oldest_created_at.map(Timestamp::to_rfc3339),
        "failed_rows": failed.iter().map(row).collect::<Vec<_>>(),
    });
    format!("{page}\n")
}
