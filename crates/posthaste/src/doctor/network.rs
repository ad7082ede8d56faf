//! The network: the server of this installation, and whether deliveries could get somewhere.

use std::time::Duration;

use posthaste_core::delivery::Timings;
use posthaste_store::Sqlite;

use super::finding::Finding;
use crate::client::{Health, Running};
use crate::serve::{client, traces_options};
use crate::settings::{ClientSettings, Settings};

/// As long as a delivery has unless something is known of its endpoint.
const REACH_MAX: Duration = Duration::from_secs(10);

/// One that nobody has named may as well not run.
pub(super) async fn server(settings: &Settings, known: &ClientSettings) -> Finding {
    let check = "server";
    let is_named = known.url.is_some();
    if !is_named && settings.listen.port() == 0 {
        return Finding::ok(check, "it is not asked: its port is not known beforehand. POSTHASTE_URL names one");
    }
    let url = known.url.as_ref().unwrap_or(&known.local_url);
    let is_due = is_named || (settings.database_url.is_none() && Sqlite::process_using(&settings.data_dir).is_some());
    let ours = env!("CARGO_PKG_VERSION");
    match Health::of(url).await {
        Health::Unreachable(why) if is_due => {
            let remedy = "see its log and its --listen; for another address set POSTHASTE_URL or say --url";
            Finding::wrong(check, why, remedy)
        }
        Health::Unreachable(_) => Finding::warning(check, format!("no server answers at {url}"), "start it: posthaste serve"),
        Health::Strange(why) => {
            let remedy = "see what listens there, and set POSTHASTE_URL (or --listen) to where the server is meant to be";
            Finding::wrong(check, format!("{url}: {why}"), remedy)
        }
        Health::Running(Running { not_ready: Some(why), .. }) => Finding::wrong(
            check,
            format!("the server at {url} takes no traffic: {why}"),
            "see its log, and what else is wrong here",
        ),
        Health::Running(Running { not_ready: None, version: Some(theirs) }) if theirs != ours => Finding::warning(
            check,
            format!("the server at {url} is of version {theirs}, and this binary of {ours}"),
            "restart the server with this binary, or ask with that of the server",
        ),
        Health::Running(Running { not_ready: None, version: Some(_) }) => {
            Finding::ok(check, format!("the server at {url} takes traffic, and is of this version"))
        }
        Health::Running(Running { not_ready: None, version: None }) => {
            Finding::ok(check, format!("the server at {url} is alive and has no API"))
        }
    }
}

/// Nothing, where nobody has asked for traces. Without a collector everything else works.
pub(super) async fn collector(settings: &Settings) -> Option<Finding> {
    let check = "traces";
    let options = match traces_options(settings) {
        Ok(options) => options?,
        Err(error) => return Some(Finding::wrong(check, format!("nothing can be sent: {error:#}"), "see certificates, above")),
    };
    let collector = &options.collector;
    Some(match posthaste_traces::probe(&options).await {
        Ok(()) => Finding::ok(check, format!("{collector} takes traces")),
        Err(why) => {
            let remedy =
                "see that the collector runs and takes OTLP over HTTP there (port 4318, not 4317), and what otlp_headers it wants";
            Finding::warning(check, format!("{collector} takes no traces: {why}"), remedy)
        }
    })
}

/// Resolves, judges, connects and shakes hands as a delivery would, and sends nothing.
pub(super) async fn reach(settings: &Settings, url: &str) -> Finding {
    let check = "reach";
    let client = match client(settings) {
        Ok(client) => client,
        Err(error) => return Finding::wrong(check, format!("nothing can be reached: {error:#}"), "see certificates, above"),
    };
    match client.reach(url, REACH_MAX).await {
        Ok(reached) => Finding::ok(check, format!("{url} can be reached at {} ({})", reached.address, in_words(&reached.timings))),
        Err((why, _)) => {
            let remedy = "see its name, its certificate, and a firewall in between; private addresses need allow_networks, http needs allow_http";
            Finding::wrong(check, format!("{url} cannot be reached: {why}"), remedy)
        }
    }
}

fn in_words(timings: &Timings) -> String {
    let steps = [("name", timings.dns), ("connection", timings.connect), ("TLS", timings.tls)];
    let taken = steps.iter().filter_map(|(step, time)| time.map(|time| format!("{step} {} ms", time.as_millis())));
    taken.collect::<Vec<_>>().join(", ")
}
