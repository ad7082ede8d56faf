//! What must not be lost, looked for where it was written; and what comes about by time alone.
//!
//! That an endpoint was disabled is written into the audit log together with disabling it. Whoever dies before it is told leaves
//! it there, and whoever comes next finds it. It is published under an id that follows from its place in the log, so that it is
//! told once, however many look.

use std::collections::BTreeSet;
use std::time::Duration;

use posthaste_core::id::EndpointId;
use posthaste_core::time::Timestamp;
use posthaste_store::{AUTO_DISABLED, EndpointQuery, Error, Store};

use crate::Options;
use crate::message::Message;

const PAGE: usize = 250;
/// More than are disabled within the time that is looked at twice.
const TOLD_MAX: usize = 10_000;
/// What commits later than its neighbours may have a smaller number: so much is looked at once more.
const OVERLAP: Duration = Duration::from_mins(10);
/// Ids are remembered for as long as their events are kept; what is nearly as old is left alone, or it would be told again.
const MARGIN: Duration = Duration::from_hours(1);

#[derive(Debug, Default)]
pub(crate) struct Search {
    /// Everything before was looked at, and told.
    told_until: Option<Timestamp>,
    /// Rows after that which were told by this process.
    told: BTreeSet<u64>,
}

impl Search {
    /// Endpoints that were disabled by us since this was last looked for, the oldest first.
    pub(crate) async fn disabled(&self, store: &dyn Store, options: &Options) -> Result<Vec<(u64, Message)>, Error> {
        let now = store.now();
        let operators = &options.tenant;
        let kept = store.tenant(operators.clone()).await?.and_then(|stored| stored.tenant.retention).unwrap_or(options.retention);
        let kept_since = now - kept.as_duration().saturating_sub(MARGIN);
        let since = self.told_until.map_or(kept_since, |until| (until - OVERLAP).max(kept_since));
        let (mut found, mut before) = (Vec::new(), None);
        'pages: loop {
            let rows = store.audit(None, before, PAGE).await?;
            let is_last = rows.len() < PAGE;
            for row in rows {
                before = Some(row.seq);
                if row.at < since {
                    break 'pages;
                }
                let is_of_others = row.audit.tenant.as_ref() != Some(operators);
                if row.audit.action == AUTO_DISABLED && is_of_others && !self.told.contains(&row.seq) {
                    found.push((row.seq, row.at, row.audit.disable_reason(), row.audit.subject));
                }
            }
            if is_last {
                break;
            }
        }
        let mut messages = Vec::new();
        for (seq, at, reason, subject) in found.into_iter().rev() {
            let Ok(id) = EndpointId::parse(&subject) else { continue };
            // Deleted ones too: somebody may wonder where they went.
            if let Some(stored) = store.endpoint(None, id).await? {
                messages.push((seq, Message::disabled(at, &stored.endpoint, seq, reason)));
            }
        }
        Ok(messages)
    }

    pub(crate) fn mark_notified(&mut self, row: u64) {
        self.told.insert(row);
        // Beyond this they are only told to the store once more, which knows them.
        while self.told.len() > TOLD_MAX {
            self.told.pop_first();
        }
    }

    /// Everything that was there at that time.
    pub(crate) fn mark_notified_until(&mut self, until: Timestamp) {
        self.told_until = Some(until);
    }
}

/// Endpoints whose previous secret will soon not sign any more.
pub(crate) async fn overlaps_ending(store: &dyn Store, options: &Options) -> Result<Vec<Message>, Error> {
    let (mut messages, mut before) = (Vec::new(), None);
    loop {
        let endpoints = store.endpoints(EndpointQuery { tenant: None, uid: None, is_disabled: false, before, limit: PAGE }).await?;
        let now = store.now();
        for stored in &endpoints {
            before = Some(stored.endpoint.id);
            let ends = stored.secrets.iter().filter_map(|secret| secret.until);
            let soon = ends.filter(|until| now < *until && *until <= now + options.overlap_notice).min();
            if let Some(until) = soon.filter(|_| stored.endpoint.tenant != options.tenant) {
                messages.push(Message::overlap_ending(now, &stored.endpoint, until));
            }
        }
        if endpoints.len() < PAGE {
            return Ok(messages);
        }
    }
}
