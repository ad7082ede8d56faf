//! Callers that wait until the owner goes by a changed configuration.
//!
//! An endpoint that is cached is read again, by a read that begins after the request: one that is under way may have looked before
//! the change was committed. What is not cached is read before anything is sent there.

use std::collections::HashMap;

use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::time::Timestamp;
use posthaste_store::{CommandOutcome, RecordResult};
use tokio::sync::oneshot;

use super::commands::Waiter;
use super::{Owner, WaiterId};

#[derive(Default, Debug)]
pub(super) struct Applying {
    /// These wait for a read that has not begun.
    unread: HashMap<EndpointId, Vec<WaiterId>>,
    /// These wait for the read that is under way.
    reading: HashMap<EndpointId, Vec<WaiterId>>,
}

impl Applying {
    /// A read of these begins.
    pub(super) fn begin(&mut self, endpoints: &[EndpointId]) {
        if self.unread.is_empty() {
            return;
        }
        for endpoint in endpoints {
            if let Some(last_waiter_id) = self.unread.remove(endpoint) {
                self.reading.entry(*endpoint).or_default().extend(last_waiter_id);
            }
        }
    }

    /// The read has ended: the callers to answer, and whether another read is needed.
    fn end(&mut self, endpoint: EndpointId) -> (Vec<WaiterId>, bool) {
        (self.reading.remove(&endpoint).unwrap_or_default(), self.unread.contains_key(&endpoint))
    }

    fn is_empty(&self) -> bool {
        self.unread.is_empty() && self.reading.is_empty()
    }
}

impl Owner {
    /// The endpoints among these that are loaded or being loaded.
    pub(super) fn cached_endpoints(&self, tenant: &TenantId, endpoint: Option<EndpointId>) -> Vec<EndpointId> {
        let is_cached = |endpoint: &EndpointId| {
            self.endpoints.contains_key(endpoint) || self.loading.contains(endpoint) || self.unreadable.contains_key(endpoint)
        };
        if let Some(endpoint) = endpoint {
            return Some(endpoint).filter(is_cached).into_iter().collect();
        }
        // Of those that are being read for the first time the tenant is not known yet.
        let known = self.tenants.get(tenant).map(|tenant| tenant.endpoints.clone()).unwrap_or_default();
        let unknown = self.loading.iter().chain(self.unreadable.keys()).copied();
        known.into_iter().chain(unknown.filter(|endpoint| !self.endpoints.contains_key(endpoint))).collect()
    }

    /// Reads these again, and answers once that is done.
    pub(super) fn apply(&mut self, now: Timestamp, endpoints: Vec<EndpointId>, answer: oneshot::Sender<CommandOutcome>) {
        if endpoints.is_empty() {
            let _ = answer.send(CommandOutcome::Done);
            return;
        }
        self.last_waiter_id += 1;
        let waiter_id = self.last_waiter_id;
        self.waiters.insert(waiter_id, Waiter { left: endpoints.len(), is_any_done: true, answer });
        for endpoint in endpoints {
            self.retry_unreadable_endpoint(now, endpoint);
            self.request_load(endpoint);
            self.applying.unread.entry(endpoint).or_default().push(waiter_id);
        }
    }

    /// The store has answered about these, and their configuration is in force.
    pub(super) fn applied(&mut self, endpoints: &[EndpointId]) {
        if self.applying.is_empty() {
            return;
        }
        for endpoint in endpoints {
            let (last_waiter_id, is_wanted) = self.applying.end(*endpoint);
            for waiter_id in last_waiter_id {
                self.answer(waiter_id, RecordResult::Done);
            }
            if is_wanted {
                self.request_load(*endpoint);
            }
        }
    }
}
