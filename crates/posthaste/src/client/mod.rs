//! The command line as a client: the API from a terminal, with tables for people and JSON for scripts.
//!
//! One file per resource turns what was given into a `Task`; `task.rs` does it over `http.rs` and shows it with
//! `table.rs`. Which command calls which route is in `operations.rs`. `verify.rs` needs no server.

mod body;
mod deliveries;
mod endpoints;
mod event_types;
mod events;
mod failure;
mod health;
mod http;
mod json;
mod keys;
mod operations;
mod overview;
mod portal_sessions;
mod replays;
mod status;
mod table;
mod task;
mod tenants;
mod text;
mod verify;

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Subcommand};

use crate::keys::ADMIN_KEY;
use crate::settings::{self, ClientSettings, Flags};
pub(crate) use failure::EXIT_CODES;
use failure::{Failure, Kind};
pub(crate) use health::{Health, Running};
use http::{Address, Server};
use task::{ApiCommand, Task};
pub(crate) use text::escaped;
pub(crate) use verify::Verify;

#[derive(Subcommand)]
pub(crate) enum ClientCommand {
    /// Publish, list and cancel events
    #[command(after_help = EXIT_CODES)]
    Events(ResourceCommand<events::Command>),
    /// Manage endpoints
    #[command(after_help = EXIT_CODES)]
    Endpoints(Box<ResourceCommand<endpoints::Command>>),
    /// List deliveries, show why they wait, redeliver or cancel them
    #[command(after_help = EXIT_CODES)]
    Deliveries(ResourceCommand<deliveries::Command>),
    /// List dead letters and retry them
    #[command(after_help = EXIT_CODES)]
    DeadLetters(ResourceCommand<deliveries::DeadLetters>),
    /// Replay events: redeliver a range of them
    #[command(after_help = EXIT_CODES)]
    Replay(ResourceCommand<replays::Command>),
    /// Manage tenants (your customers)
    #[command(after_help = EXIT_CODES)]
    Tenants(ResourceCommand<tenants::Command>),
    /// Manage the catalogue of event types
    #[command(after_help = EXIT_CODES)]
    EventTypes(ResourceCommand<event_types::Command>),
    /// Manage API keys
    #[command(after_help = EXIT_CODES)]
    Keys(ResourceCommand<keys::Command>),
    /// List the audit log, newest first
    #[command(after_help = EXIT_CODES)]
    Audit(SingleCommand<overview::Audit>),
    /// Show what needs attention now, with the command to look further; exit code 1 if anything does
    #[command(after_help = EXIT_CODES)]
    Status(SingleCommand<status::Status>),
    /// Show delivery statistics
    #[command(after_help = EXIT_CODES)]
    Stats(SingleCommand<overview::Stats>),
    /// Create a link to a tenant's portal
    #[command(after_help = EXIT_CODES)]
    PortalLink(SingleCommand<overview::PortalLink>),
    /// List and end portal sessions
    #[command(after_help = EXIT_CODES)]
    PortalSessions(ResourceCommand<portal_sessions::Command>),
    /// Test filters
    #[command(after_help = EXIT_CODES)]
    Filters(ResourceCommand<overview::Filters>),
    /// List the nodes of the cluster
    #[command(after_help = EXIT_CODES)]
    Cluster(SingleCommand<overview::Cluster>),
    /// Show and release the hold on all deliveries (`serve --hold`, `restore --hold`)
    #[command(after_help = EXIT_CODES)]
    Hold(ResourceCommand<overview::Hold>),
}

/// A resource, with commands of its own.
#[derive(Args)]
pub(crate) struct ResourceCommand<C: Subcommand> {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: C,
}

/// A command by itself.
#[derive(Args)]
pub(crate) struct SingleCommand<A: Args> {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    command: A,
}

/// Which server, as whom, and how the answer is shown.
// No `Debug`: it holds a key.
#[derive(Args)]
#[command(next_help_heading = "Server and output")]
struct Connection {
    #[arg(long, global = true, value_name = "URL", help = "The server [env: POSTHASTE_URL] [default: the one of this machine]")]
    url: Option<String>,
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        help = "An API key; better given as POSTHASTE_API_KEY, since others on this machine can see command lines [default: \
                the key file of the server of this machine]"
    )]
    api_key: Option<String>,
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        help = "Where the server of this machine keeps its key file [env: POSTHASTE_DATA_DIR] [default: ./posthaste-data]"
    )]
    data_dir: Option<PathBuf>,
    /// The API's JSON as it is, for scripts
    #[arg(long, global = true)]
    json: bool,
}

/// For changes of something that somebody else may have changed meanwhile.
#[derive(Args)]
pub(crate) struct IfMatch {
    /// Only if it still has this version, as `show` tells it
    #[arg(long, value_name = "VERSION")]
    if_match: Option<String>,
}

/// As the header wants it.
fn quoted(if_match: &IfMatch) -> Option<String> {
    let bare = |version: &str| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    if_match.if_match.as_ref().map(|version| if bare(version) { format!("\"{version}\"") } else { version.clone() })
}

pub(crate) fn run(command: ClientCommand) -> ExitCode {
    match command {
        ClientCommand::Events(of) => ended(ask(&of.connection, of.command)),
        ClientCommand::Endpoints(of) => ended(ask(&of.connection, of.command)),
        ClientCommand::Deliveries(of) => ended(ask(&of.connection, of.command)),
        ClientCommand::DeadLetters(of) => ended(ask(&of.connection, of.command)),
        ClientCommand::Replay(of) => ended(ask(&of.connection, of.command)),
        ClientCommand::Tenants(of) => ended(ask(&of.connection, of.command)),
        ClientCommand::EventTypes(of) => ended(ask(&of.connection, of.command)),
        ClientCommand::Keys(of) => ended(ask(&of.connection, of.command)),
        ClientCommand::Audit(with) => ended(ask(&with.connection, with.command)),
        ClientCommand::Status(with) => match status::run(&with.connection, with.command) {
            Ok(code) => code,
            Err(failure) => ended(Err(failure)),
        },
        ClientCommand::Stats(with) => ended(ask(&with.connection, with.command)),
        ClientCommand::PortalLink(with) => ended(ask(&with.connection, with.command)),
        ClientCommand::PortalSessions(of) => ended(ask(&of.connection, of.command)),
        ClientCommand::Filters(of) => ended(ask(&of.connection, of.command)),
        ClientCommand::Cluster(with) => ended(ask(&with.connection, with.command)),
        ClientCommand::Hold(of) => ended(ask(&of.connection, of.command)),
    }
}

pub(crate) fn verify(verify: &Verify) -> ExitCode {
    match verify.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => ended(Err(failure)),
    }
}

/// The document that a server of this version serves.
pub(crate) fn openapi() -> ExitCode {
    ended(written(format!("{}\n", posthaste_api::openapi()).as_bytes()))
}

pub(crate) fn completions<C: CommandFactory>(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut C::command(), "posthaste", &mut script);
    ended(written(&script))
}

fn written(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(words) = failure.words() {
                // Where stderr is gone too, the code has to say it.
                let _ = writeln!(std::io::stderr(), "{words}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn ask(connection: &Connection, command: impl ApiCommand) -> Result<(), Failure> {
    let task: Task = command.task()?;
    let mut server = connection.server(&settings::of_client(&Flags::default()))?;
    if let Some(question) = &task.question {
        confirm(question)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(task::run(&mut server, &task, connection.json))
}

impl Connection {
    fn server(&self, known: &ClientSettings) -> Result<Server, Failure> {
        let named = self.url.as_ref().filter(|url| !url.is_empty()).or(known.url.as_ref());
        let address = Address::parse(named.unwrap_or(&known.local_url))?;
        let given = self.api_key.as_ref().filter(|key| !key.is_empty()).or(known.api_key.as_ref());
        if let Some(key) = given {
            return Server::new(address, key);
        }
        // The key of this machine's server is not shown to another one, unless somebody says where it is.
        if named.is_some_and(|url| url.trim_end_matches('/') != known.local_url) && self.data_dir.is_none() {
            let message = format!("there is no key for {}; set POSTHASTE_API_KEY", address.shown());
            return Err(Failure::new(Kind::Credentials, message));
        }
        if let (Some(key), None) = (&known.admin_key, &self.data_dir) {
            return Server::new(address, key);
        }
        let path = self.data_dir.as_ref().unwrap_or(&known.data_dir).join(ADMIN_KEY);
        let key = std::fs::read_to_string(&path).map_err(|error| {
            let message = format!(
                "there is no API key: neither --api-key nor POSTHASTE_API_KEY is set, and {} cannot be read: {error}",
                path.display()
            );
            Failure::new(Kind::Credentials, message)
        })?;
        Server::new(address, &key)
    }
}

/// Somebody has to say yes; where nobody can be asked, with a flag.
fn confirm(question: &str) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::usage("this has to be confirmed, and nobody can be asked here; say --yes"));
    }
    write!(std::io::stderr(), "{} [y/N] ", text::escaped(question))?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::usage("nothing was done")) }
}
