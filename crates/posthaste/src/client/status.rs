//! `posthaste status`: what needs attention now, one line each, and the command to look further.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use serde::Deserialize;

use super::failure::Failure;
use super::http::Request;
use super::operations::LIST_ATTENTION;
use super::text::escaped;
use super::{Connection, written};
use crate::settings::{self, Flags};

#[derive(Args)]
pub(crate) struct Status {
    /// Only what concerns this tenant
    #[arg(long)]
    tenant: Option<String>,
}

#[derive(Deserialize)]
struct Listed {
    data: Vec<Need>,
}

/// One thing, as `/v1/attention` tells it. Kinds that a newer server knows are shown by their names.
#[derive(Deserialize)]
struct Need {
    kind: String,
    tenant: Option<String>,
    endpoint: Option<String>,
    endpoint_url: Option<String>,
    reason: Option<String>,
    status_code: Option<u16>,
    count: Option<u64>,
    first_seen: Option<String>,
    delivery: Option<String>,
}

/// Success where nothing needs attention.
pub(super) fn run(connection: &Connection, status: Status) -> Result<ExitCode, Failure> {
    let mut server = connection.server(&settings::of_client(&Flags::default()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(server.ask(&Request::to(&LIST_ATTENTION).with("tenant", status.tenant)))?;
    let listed: Listed = serde_json::from_slice(&answer.body).map_err(Failure::unexpected)?;
    if connection.json {
        written(&[&answer.body[..], b"\n"].concat())?;
    } else if listed.data.is_empty() {
        written(b"nothing needs attention\n")?;
    } else {
        let now = Timestamp::now();
        let lines: Vec<String> = listed.data.iter().map(|need| format!("{}\n", line(need, now))).collect();
        written(lines.concat().as_bytes())?;
    }
    Ok(if listed.data.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is wrong, where, how often, since when; then the command.
fn line(need: &Need, now: Timestamp) -> String {
    let mut words = vec![need.kind.replace('_', " ")];
    if let Some(count) = need.count {
        words.push(format!("({count})"));
    }
    if let Some(place) = need.endpoint_url.as_deref().or(need.tenant.as_deref()) {
        words.push(format!("at {place}"));
    }
    if let Some(reason) = need.reason.as_deref().map(|reason| reason.replace('_', " ")) {
        words.push(format!("because of {reason}"));
    }
    if let Some(code) = need.status_code {
        words.push(format!("[{code}]"));
    }
    if let Some(age) = need.first_seen.as_deref().and_then(|at| age(at, now)) {
        words.push(format!("for {age}"));
    }
    format!("{}: {}", escaped(&words.join(" ")), escaped(&command(need)))
}

fn age(at: &str, now: Timestamp) -> Option<String> {
    let seconds = now.as_second().saturating_sub(at.parse::<Timestamp>().ok()?.as_second()).max(0);
    Some(match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    })
}

/// Where to look further.
fn command(need: &Need) -> String {
    match (need.kind.as_str(), &need.delivery, &need.endpoint) {
        ("dead_letters", _, Some(endpoint)) => format!("posthaste dead-letters list --endpoint {endpoint}"),
        ("dead_letters_growing", ..) => "posthaste dead-letters list".to_owned(),
        ("no_node", ..) => "posthaste cluster".to_owned(),
        (_, Some(delivery), _) => format!("posthaste deliveries attempts {delivery}"),
        (_, None, Some(endpoint)) => format!("posthaste endpoints show {endpoint}"),
        (_, None, None) => "posthaste doctor".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_wrong_and_where_to_look() {
        let need = |json: &str| serde_json::from_str::<Need>(json).expect("as the server says it");
        let now = "2026-11-18T08:00:00Z".parse().expect("a time");
        for (json, expected) in [
            (
                r#"{"kind": "dead_letters", "tenant": "acme", "endpoint": "ep_1", "endpoint_url": "https://a.example/x", "reason":
                    "permanent_failure", "status_code": 422, "count": 7, "first_seen": "2026-11-18T07:30:00Z", "delivery": "dlv_1"}"#,
                "dead letters (7) at https://a.example/x because of permanent failure [422] for 30 min: \
                 posthaste dead-letters list --endpoint ep_1",
            ),
            (
                r#"{"kind": "circuit_open", "endpoint": "ep_1", "endpoint_url": "https://a.example", "delivery": "dlv_1"}"#,
                "circuit open at https://a.example: posthaste deliveries attempts dlv_1",
            ),
            (r#"{"kind": "endpoint_disabled", "endpoint": "ep_1"}"#, "endpoint disabled: posthaste endpoints show ep_1"),
            (r#"{"kind": "clock", "reason": "a jump"}"#, "clock because of a jump: posthaste doctor"),
            (r#"{"kind": "\u001b[31m"}"#, "\\u{1b}[31m: posthaste doctor"),
        ] {
            assert_eq!(line(&need(json), now), expected);
        }
    }
}
