//! `posthaste doctor`: what is wrong with an installation, in plain words, each with what to do about it.
//!
//! It goes by the same settings as the server and looks at what the server would find: at its directory, its database, its
//! machine and its network. It changes nothing, unless it is told to accept a clock, and takes no lock, so that it may be asked at any time.

mod database;
mod directory;
mod finding;
mod machine;
mod mail;
mod network;
mod outbox;

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::client::escaped;
use crate::settings::{self, Flags, Mistakes, Settings, table};
use finding::{Finding, Grade};

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Also see whether deliveries could reach this URL: nothing is sent. May be given more than once
    #[arg(long, value_name = "URL")]
    reach: Vec<String>,
    #[arg(long, value_name = "URL", help = "The server to ask [env: POSTHASTE_URL] [default: the one of this machine]")]
    url: Option<String>,
    /// Say that the clock of this machine is right after it has jumped: what expires and is deleted goes by it again. The only thing that `doctor` changes
    #[arg(long)]
    accept_clock: bool,
    /// For scripts
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: Flags,
}

pub(crate) fn run(doctor: &Doctor) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let findings = match runtime {
        Ok(runtime) => runtime.block_on(doctor.findings()),
        Err(error) => vec![Finding::wrong("process", format!("nothing can be run here: {error}"), "free memory and descriptors")],
    };
    let page = if doctor.json { as_json(&findings) } else { as_text(&findings) };
    // Whoever does not read it still has the code.
    let _ = std::io::stdout().lock().write_all(page.as_bytes());
    if is_wrong(&findings) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Doctor {
    async fn findings(&self) -> Vec<Finding> {
        let (settings, mistakes) = Settings::load_what_can_be(&self.flags);
        let mut findings = vec![Finding::ok("version", format!("this is Posthaste {}", env!("CARGO_PKG_VERSION")))];
        findings.extend(of_settings(&mistakes));
        findings.push(machine::wall_clock());
        let is_hidden = mistakes.hide("database_url") || mistakes.hide("data_dir");
        if is_hidden {
            let words = "it is not looked at, because the setting that names it cannot be read";
            findings.push(Finding::wrong("database", words, "mend the setting first"));
        } else {
            if self.accept_clock {
                findings.push(database::accept_clock(&settings));
            }
            findings.extend(directory::look(&settings));
            findings.extend(database::look(&settings).await);
        }
        if !is_hidden && !mistakes.hide("outbox") {
            findings.extend(outbox::look(&settings).await);
        }
        findings.push(machine::certificates(&settings));
        findings.push(machine::descriptors(&settings));
        findings.extend(mail::look(&settings).await);
        let mut known = settings::of_client(&self.flags);
        known.url = self.url.clone().filter(|url| !url.is_empty()).or(known.url);
        findings.push(network::server(&settings, &known).await);
        findings.extend(network::collector(&settings).await);
        for url in &self.reach {
            findings.push(network::reach(&settings, url).await);
        }
        findings
    }
}

fn of_settings(mistakes: &Mistakes) -> Vec<Finding> {
    let wrong =
        mistakes.iter().map(|mistake| Finding::wrong("settings", mistake, "mend it; docs/guide/settings.md lists them all"));
    let mut findings: Vec<Finding> = wrong.collect();
    if findings.is_empty() {
        findings.push(Finding::ok("settings", format!("all {} are understood", table().len())));
    }
    findings
}

fn is_wrong(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.grade == Grade::Wrong)
}

fn count(findings: &[Finding], grade: Grade) -> usize {
    findings.iter().filter(|finding| finding.grade == grade).count()
}

/// One line each, and one that says what it comes to. Some of the words are a server's or a file's: a terminal must not obey them.
fn as_text(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let Finding { check, grade, words, remedy } = finding;
        let remedy = remedy.as_ref().map_or_else(String::new, |remedy| format!(". To do: {remedy}"));
        format!("{:<8} {check:<15} {}\n", grade.name(), escaped(&format!("{words}{remedy}")))
    };
    let (wrong, warnings) = (count(findings, Grade::Wrong), count(findings, Grade::Warning));
    let sum = match (wrong, warnings) {
        (0, 0) => "nothing is wrong\n".to_owned(),
        (0, warnings) => format!("nothing is wrong, and there is something to look at: {warnings}\n"),
        (wrong, warnings) => format!("something is wrong: {wrong}; to look at besides: {warnings}\n"),
    };
    findings.iter().map(line).chain([sum]).collect()
}

fn as_json(findings: &[Finding]) -> String {
    let shown: Vec<_> = findings
        .iter()
        .map(|finding| {
            json!({"check": finding.check, "result": finding.grade.name(), "message": finding.words, "to_do": finding.remedy})
        })
        .collect();
    let page = json!({
        "ok": !is_wrong(findings),
        "wrong": count(findings, Grade::Wrong),
        "warnings": count(findings, Grade::Warning),
        "version": env!("CARGO_PKG_VERSION"),
        "findings": shown,
    });
    format!("{page}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_one_line_with_what_to_do_whatever_it_says() {
        let findings = [
            Finding::ok("settings", "fine"),
            Finding::warning("disk", "slow", "wait"),
            Finding::wrong("server", "it says \u{1b}[2J\nnothing", "ask again"),
        ];
        let page = as_text(&findings);
        assert_eq!(page.lines().count(), 4, "{page}");
        assert!(page.contains("warning  disk            slow. To do: wait\n"), "{page}");
        assert!(!page.contains('\u{1b}') && page.ends_with("something is wrong: 1; to look at besides: 1\n"), "{page}");
        assert!(as_text(&findings[..1]).ends_with("nothing is wrong\n"));
        let told: serde_json::Value = serde_json::from_str(&as_json(&findings)).unwrap();
        assert_eq!((&told["ok"], &told["findings"][1]["to_do"]), (&json!(false), &json!("wait")));
        assert!(is_wrong(&findings) && !is_wrong(&findings[..2]));
    }
}
