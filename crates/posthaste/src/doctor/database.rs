//! The database: whether it can be used, by this version and with this key, and whether its clock is ours.

use std::time::Duration;

use posthaste_store::{Error, Examined, Hold, Keyring, MasterKeyFit, Postgres, Schema, SealedValues, Sqlite};
use tokio::time::timeout;

use super::finding::Finding;
use crate::keys::existing_master_key;
use crate::serve::egress_policy;
use crate::settings::Settings;
use crate::unreachable::Unreachable;

/// What a server would wait for several times, and somebody who has asked what is wrong would not.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// More than clocks that are kept are apart.
const SKEW_ODD: Duration = Duration::from_secs(1);
/// From here on a node is not ready.
const SKEW_MAX: Duration = Duration::from_secs(5);

pub(super) async fn look(settings: &Settings) -> Vec<Finding> {
    let keyring = match keyring(settings) {
        Ok(keyring) => keyring,
        Err(error) => {
            let remedy = "restore it from a backup, or set POSTHASTE_MASTER_KEY";
            return vec![Finding::wrong("master key", format!("{error:#}"), remedy)];
        }
    };
    let Some(url) = &settings.database_url else {
        return match Sqlite::examine(&settings.data_dir, keyring.as_ref()) {
            Ok(Some(examined)) => told(&examined, settings),
            Ok(None) => vec![Finding::ok("database", "there is none yet; the first start makes it")],
            Err(error) => vec![unusable(&error, "check the owner and the permissions of the files in the data directory")],
        };
    };
    match timeout(ANSWER_MAX, Postgres::examine(&url.0, keyring.as_ref())).await {
        Ok(Ok(examined)) => told(&examined, settings),
        Ok(Err(error)) => vec![unusable(&error, "see that it runs, and that the database URL names it")],
        Err(_) => {
            let words = "PostgreSQL takes connections and does not answer within 10 s";
            vec![Finding::wrong("database", words, "see what keeps it busy, and whether its disk still answers")]
        }
    }
}

fn unusable(error: &Error, remedy: &str) -> Finding {
    match error {
        Error::Unusable(_) | Error::TooNew => Finding::wrong_as_told("database", error),
        Error::Unavailable(_) | Error::CommitInDoubt | Error::Overloaded { .. } | Error::Corrupt { .. } => {
            Finding::wrong("database", error, remedy)
        }
    }
}

/// What was set, or what is kept beside the database. With PostgreSQL there is only what was set.
fn keyring(settings: &Settings) -> anyhow::Result<Option<Keyring>> {
    let current = match (&settings.master_key, &settings.database_url) {
        (Some(key), _) => Some(key.clone()),
        (None, Some(_)) => None,
        (None, None) => existing_master_key(&settings.data_dir)?,
    };
    Ok(current.map(|current| Keyring::new(current, settings.previous_master_keys.clone())))
}

fn told(examined: &Examined, settings: &Settings) -> Vec<Finding> {
    let Examined {
        version,
        schema,
        master_key,
        sealed,
        clock_skew,
        clock_jumped_by,
        has_unread_log,
        hold,
        endpoint_urls,
        troubles,
    } = examined;
    let mut findings: Vec<Finding> = troubles.iter().map(|trouble| Finding::wrong_as_told("database", trouble)).collect();
    if findings.is_empty() {
        let place = if settings.database_url.is_some() { String::new() } else { format!(" in {}", settings.data_dir.display()) };
        findings.push(Finding::ok("database", format!("{version}{place} can be read and flushes what it acknowledges")));
    }
    if *has_unread_log && *schema == Schema::None {
        let words = "what is in it is not known: it is in the log of a server that was killed, which the next start reads back";
        return vec![Finding::ok("database", words)];
    }
    findings.push(of_schema(*schema));
    findings.push(of_master_key(master_key));
    findings.extend(sealed.as_ref().and_then(of_sealed_values));
    findings.extend(clock_skew.map(of_skew));
    findings.extend(clock_jumped_by.map(of_jump));
    findings.extend(hold.as_ref().map(of_hold));
    findings.push(of_endpoints(endpoint_urls, settings));
    findings
}

/// After `restore --hold` or `serve --hold`.
fn of_hold(hold: &Hold) -> Finding {
    let Hold { since, waiting, tried } = hold;
    let words = format!(
        "all deliveries are held since {}: {waiting} would be sent after the release, of which {tried} were tried before",
        since.to_rfc3339()
    );
    Finding::warning("hold", words, "release them with `posthaste hold release` when they may be sent")
}

/// Whether deliveries may go where they are meant to.
fn of_endpoints(urls: &[String], settings: &Settings) -> Finding {
    let check = "endpoints";
    let (policy, mut unreachable) = (egress_policy(settings), Unreachable::default());
    for url in urls {
        unreachable.add(&policy, url);
    }
    match unreachable {
        Unreachable { count, first: Some(rule) } => Finding::warning(
            check,
            format!(
                "{count} of {} cannot be reached under the present settings, and their deliveries are held: {rule}",
                urls.len()
            ),
            "set allow_http and allow_networks as before, or give the endpoints another URL",
        ),
        Unreachable { first: None, .. } => Finding::ok(check, format!("deliveries may go to the URLs of all {}", urls.len())),
    }
}

fn of_schema(schema: Schema) -> Finding {
    let check = "schema";
    match schema {
        Schema::None => Finding::ok(check, "there are no tables yet; the first start makes them"),
        Schema::Current { version } => Finding::ok(check, format!("its version is {version}, which this binary uses")),
        Schema::Older { version, known } => {
            Finding::ok(check, format!("its version is {version}; the next start of this binary makes it {known}"))
        }
        Schema::NewerButUsable { version, known } => Finding::warning(
            check,
            format!("its version is {version}, and this binary knows {known}; it can still use it"),
            "upgrade this binary as well",
        ),
        Schema::TooNew { version, known } => Finding::wrong(
            check,
            format!("its version is {version}, which this binary (up to {known}) cannot use"),
            "run the version that has written it, or a later one",
        ),
    }
}

fn of_master_key(fit: &MasterKeyFit) -> Finding {
    let check = "master key";
    match fit {
        MasterKeyFit::NothingSealed => Finding::ok(check, "nothing is sealed yet"),
        MasterKeyFit::Fits => Finding::ok(check, "it opens what is sealed in the database"),
        MasterKeyFit::IsPrevious => Finding::ok(check, "a previous key opens what is sealed; the next start seals it anew"),
        MasterKeyFit::Differs { sealed_with, given } => Finding::wrong(
            check,
            format!("the secrets in the database were sealed with the master key {sealed_with}, and the one given is {given}"),
            "set POSTHASTE_MASTER_KEY to the key that was used before, or name that among the previous ones",
        ),
        MasterKeyFit::NoKey { sealed_with } => Finding::wrong(
            check,
            format!("the secrets in the database were sealed with the master key {sealed_with}, and there is none"),
            "restore master.key from a backup, or set POSTHASTE_MASTER_KEY",
        ),
    }
}

/// While the master key is being rotated.
fn of_sealed_values(sealed: &SealedValues) -> Option<Finding> {
    let SealedValues { total, under_previous_keys, under_unknown_keys } = sealed;
    if let Some((key, _)) = under_unknown_keys.first() {
        let count = sealed.unreadable();
        let words = format!("{count} of {total} sealed values need the master key {key}, which was not given: no server starts");
        return Some(Finding::wrong(
            "master key",
            words,
            "name it in POSTHASTE_PREVIOUS_MASTER_KEYS until all values are sealed again",
        ));
    }
    (*under_previous_keys > 0).then(|| {
        let words = format!("{under_previous_keys} of {total} sealed values still need a previous key");
        Finding::warning("master key", words, "keep the previous key; a server seals them again in the background")
    })
}

fn of_jump(jumped_by: Duration) -> Finding {
    let hours = jumped_by.as_secs() / 3600;
    Finding::wrong(
        "clock",
        format!(
            "the clock of this machine has jumped ahead by {hours} h while a server ran: it goes on by the time before, and nothing \
             expires or is deleted by the new one"
        ),
        "set the clock right, or, if it is right, run `posthaste doctor --accept-clock`",
    )
}

/// Says that the clock is right.
pub(super) fn accept_clock(settings: &Settings) -> Finding {
    if settings.database_url.is_some() {
        return Finding::ok("clock", "with PostgreSQL the database's clock counts; there is nothing to accept");
    }
    match Sqlite::accept_clock(&settings.data_dir) {
        Ok(true) => Finding::ok("clock", "accepted: a server that runs goes by it within two seconds, and the next start at once"),
        Ok(false) => Finding::ok("clock", "no server has seen it jump; there is nothing to accept"),
        Err(error) => unusable(&error, "check the owner and the permissions of the files in the data directory"),
    }
}

fn of_skew(skew: Duration) -> Finding {
    let words = format!("the clock of this machine and that of the database are {} ms apart", skew.as_millis());
    let remedy = "let both follow a time server (NTP)";
    if skew > SKEW_MAX {
        Finding::wrong("clock", format!("{words}: a node on this machine is not ready"), remedy)
    } else if skew > SKEW_ODD {
        Finding::warning("clock", words, remedy)
    } else {
        Finding::ok("clock", words)
    }
}
