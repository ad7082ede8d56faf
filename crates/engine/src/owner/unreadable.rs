//! Endpoints whose stored configuration cannot be read.
//!
//! Their deliveries are held: nothing is known about where and how to send them. They are looked at again every
//! [`UNREADABLE_RETRY`] and whenever some configuration changes. There are at most as many as endpoints with work.

use posthaste_core::endpoint::Status;
use posthaste_core::id::EndpointId;
use posthaste_core::scheduler::{Backlog, LaneMemory};
use posthaste_core::time::Timestamp;

use super::Owner;
use crate::executor::UNREADABLE_RETRY;

#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) cause: String,
    retry_at: Timestamp,
}

impl Owner {
    pub(super) fn endpoint_unreadable(&mut self, now: Timestamp, endpoint: EndpointId, cause: String) {
        self.load_finished(now, &[endpoint]);
        // Dropped: whoever waits for a test hears that it was not made.
        self.tests.remove(&endpoint);
        if !self.unreadable.contains_key(&endpoint) {
            tracing::error!(%endpoint, cause, "endpoint_unreadable: its deliveries are held");
        }
        self.unreadable.insert(endpoint, Unreadable { cause, retry_at: now + UNREADABLE_RETRY });
        self.changed.insert(endpoint);
        // What was known before is not what people have said since.
        if let Some(known) = self.endpoints.get_mut(&endpoint).filter(|known| !known.has_left) {
            known.config.status = Status::Disabled;
            if self.scheduler.has_lane(endpoint) {
                let config = known.config.clone();
                self.scheduler.configure(now, &known.tenant, endpoint, config, LaneMemory::new(), Backlog::Unknown);
            }
        }
        self.applied(&[endpoint]);
    }

    /// The store could read them, or they are gone.
    pub(super) fn mark_readable(&mut self, endpoints: &[EndpointId]) {
        if self.unreadable.is_empty() {
            return;
        }
        for endpoint in endpoints {
            if self.unreadable.remove(endpoint).is_some() {
                tracing::warn!(%endpoint, "endpoint_readable_again");
            }
        }
    }

    /// Something was configured anew, and may be readable now.
    pub(super) fn retry_unreadable_now(&mut self, now: Timestamp) {
        for unreadable in self.unreadable.values_mut() {
            unreadable.retry_at = now;
        }
    }

    /// The same for one of them.
    pub(super) fn retry_unreadable_endpoint(&mut self, now: Timestamp, endpoint: EndpointId) {
        if let Some(unreadable) = self.unreadable.get_mut(&endpoint) {
            unreadable.retry_at = now;
        }
    }

    /// Asks for those whose time has come.
    pub(super) fn retry_unreadable(&mut self, now: Timestamp) {
        for (endpoint, unreadable) in &mut self.unreadable {
            if unreadable.retry_at <= now {
                unreadable.retry_at = now + UNREADABLE_RETRY;
                if self.loading.insert(*endpoint) {
                    self.to_load.push(*endpoint);
                }
            }
        }
    }

    pub(super) fn unreadable_retry_at(&self) -> Option<Timestamp> {
        self.unreadable.values().map(|unreadable| unreadable.retry_at).min()
    }
}
