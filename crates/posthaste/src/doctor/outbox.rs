//! The outbox in the application's database, where there is one: whether a relay could use it, and what it would find.

use std::time::Duration;

use posthaste_relay::{OutboxError, Status, status};

use super::finding::Finding;
use crate::serve::outbox_url;
use crate::settings::Settings;

/// A relay that runs moves a row in a moment; what waits for longer has none.
const LAG_ODD: Duration = Duration::from_secs(30);

pub(super) async fn look(settings: &Settings) -> Option<Finding> {
    let check = "outbox";
    let (url, is_certain) = outbox_url(settings)?;
    match status(&url.0).await {
        Ok(status) => Some(judge(&status)),
        // Nobody has spoken of one; and of what is wrong with our own database it was told above.
        Err(trouble) if !is_certain && !trouble.is_of_an_outbox(false) => None,
        Err(trouble @ OutboxError::Unreachable(_)) => {
            let remedy = "see that it runs, and that --outbox (POSTHASTE_OUTBOX) names it; what is in it waits there";
            Some(Finding::wrong(check, trouble, remedy))
        }
        Err(
            trouble @ (OutboxError::BadUrl(_)
            | OutboxError::NotInstalled
            | OutboxError::NotOurs { .. }
            | OutboxError::TooNew { .. }
            | OutboxError::NotAllowed(_)
            | OutboxError::StillUsed(_)
            | OutboxError::Other(_)),
        ) => Some(Finding::wrong_as_told(check, trouble)),
    }
}

fn judge(status: &Status) -> Finding {
    let (check, waiting) = ("outbox", status.waiting);
    let words = format!("it is in the schema {}, of version {}; rows that wait: {}", status.schema, status.version, waiting.rows);
    if let Some(first) = status.failed.first() {
        let words = format!("{words}; of these refused: {}, such as {}: {}", waiting.failed, first.id, first.error);
        return Finding::warning(check, words, "posthaste outbox status shows them; mend them, or what they were refused for");
    }
    match waiting.lag {
        Some(lag) if lag > LAG_ODD => {
            let words = format!("{words}, for {} s", lag.as_secs());
            Finding::warning(check, words, "see that a server with the role relay runs, and its log")
        }
        Some(_) | None => Finding::ok(check, words),
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::time::Timestamp;
    use posthaste_relay::{FailedRow, OutboxBacklog};

    use super::*;
    use crate::doctor::finding::Grade;

    #[test]
    fn rows_that_wait_for_long_or_were_refused_are_to_be_looked_at() {
        let status = |rows, lag: Option<u64>, failed| Status {
            schema: "public".to_owned(),
            version: 1,
            waiting: OutboxBacklog { rows, failed: 0, lag: lag.map(Duration::from_secs) },
            oldest_created_at: None,
            failed,
        };
        let failed = FailedRow {
            id: "0192f0c1-7e2a-7c3d-9f00-1234567890ab".to_owned(),
            tenant: None,
            event_type: "a.b".to_owned(),
            attempts: 3,
            error: "data: no".to_owned(),
            next_attempt_at: Timestamp::from_millis(0),
            created_at: Timestamp::from_millis(0),
        };
        assert_eq!(judge(&status(0, None, vec![])).grade, Grade::Ok);
        assert_eq!(judge(&status(9, Some(2), vec![])).grade, Grade::Ok);
        assert_eq!(judge(&status(9, Some(60), vec![])).grade, Grade::Warning);
        let refused = judge(&status(1, None, vec![failed]));
        assert!(refused.grade == Grade::Warning && refused.words.contains("data: no"), "{refused:?}");
    }
}
