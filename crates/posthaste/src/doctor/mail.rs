//! The mail server, where one is set: as for a mail, and without sending one.

use std::time::Duration;

use posthaste_notify::mail_server::{MailError, MailServerInfo};

use super::finding::Finding;
use crate::serve::mail_server;
use crate::settings::Settings;

/// Somebody is waiting for the answer.
const LOOK_MAX: Duration = Duration::from_secs(10);

pub(super) async fn look(settings: &Settings) -> Option<Finding> {
    let check = "mail";
    let url = settings.smtp_url.as_ref()?;
    let server = match mail_server(settings, &url.0) {
        Ok(server) => server.within(LOOK_MAX),
        Err(error) => {
            let words = format!("no mail could be sent: {error:#}");
            return Some(Finding::wrong(check, words, "mend smtp_url, or the files of extra_roots"));
        }
    };
    let name = server.name();
    Some(match server.look().await {
        Ok(looked) => Finding::ok(check, format!("the mail server at {name} {}", in_words(looked))),
        Err(trouble) => Finding::wrong(check, format!("the mail server at {name} cannot be used: {trouble}"), remedy(&trouble)),
    })
}

fn in_words(looked: MailServerInfo) -> &'static str {
    match (looked.is_encrypted, looked.is_logged_in) {
        (true, true) => "is encrypted and accepts the login",
        (true, false) => "is encrypted and wants no login",
        (false, true) => "accepts the login, and is not encrypted",
        (false, false) => "answers; it is not encrypted, and there is no login",
    }
}

fn remedy(trouble: &MailError) -> &'static str {
    match trouble {
        MailError::Unreachable(_) | MailError::TooSlow(_) => {
            "see the host and the port of smtp_url, and a firewall in between; many networks let nothing out to port 25"
        }
        MailError::NoEncryption => "see its port (587 has STARTTLS, 465 wants smtps://); tls=required is what demands it",
        MailError::Tls(_) => "see its certificate and the name in smtp_url; an authority of your own goes into extra_roots",
        MailError::NoLogin => "leave user and password out of smtp_url, or let it offer PLAIN or LOGIN to this machine",
        MailError::LoginRefused { .. } => {
            "see user and password in smtp_url; characters such as @ : / % are written as %40 %3A %2F %25"
        }
        MailError::Refused { .. } | MailError::Broken(_) => {
            "see its log, and whether it is a mail server that takes mail from here"
        }
    }
}
