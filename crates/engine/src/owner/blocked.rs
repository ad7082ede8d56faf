//! Endpoints that our own settings do not let us send to, such as one in a private network that is no longer allowed.
//!
//! Their deliveries are held and use no attempt: it is not the receiver's fault. One delivery is sent to look again every
//! [`LOOKED_AT_EVERY`], and all go on when the endpoint is changed. Other settings come with a restart, which begins without any.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use posthaste_core::id::EndpointId;
use posthaste_core::time::Timestamp;

use super::{Owner, SendRef};

const LOOKED_AT_EVERY: Duration = Duration::from_mins(5);

/// At most as many as there are endpoints with work.
#[derive(Default, Debug)]
pub(super) struct Blocked {
    /// The rule, in words, and when the endpoint is looked at again.
    endpoints: BTreeMap<EndpointId, (String, Timestamp)>,
    /// The same by time, so that a turn of the loop looks at what is due and no further.
    looks: BTreeSet<(Timestamp, EndpointId)>,
}

impl Blocked {
    pub(super) fn cause(&self, endpoint: EndpointId) -> Option<String> {
        self.endpoints.get(&endpoint).map(|(cause, _)| cause.clone())
    }

    pub(super) fn next_look(&self) -> Option<Timestamp> {
        self.looks.first().map(|(at, _)| *at)
    }

    /// Answers whether it was not blocked before.
    fn insert(&mut self, endpoint: EndpointId, cause: String, look_at: Timestamp) -> bool {
        let is_new = !self.remove(endpoint);
        self.endpoints.insert(endpoint, (cause, look_at));
        self.looks.insert((look_at, endpoint));
        is_new
    }

    /// Answers whether it was blocked.
    pub(super) fn remove(&mut self, endpoint: EndpointId) -> bool {
        let Some((_, look_at)) = self.endpoints.remove(&endpoint) else { return false };
        self.looks.remove(&(look_at, endpoint))
    }

    /// One whose time has come.
    fn pop_due(&mut self, now: Timestamp) -> Option<EndpointId> {
        let (look_at, endpoint) = self.looks.first().copied().filter(|(look_at, _)| *look_at <= now)?;
        self.looks.remove(&(look_at, endpoint));
        let next = now + LOOKED_AT_EVERY;
        self.looks.insert((next, endpoint));
        if let Some((_, look_at)) = self.endpoints.get_mut(&endpoint) {
            *look_at = next;
        }
        Some(endpoint)
    }
}

impl Owner {
    /// A request was refused before anything of it was sent. There is nothing to record.
    pub(super) fn hold_blocked(&mut self, now: Timestamp, send: SendRef, cause: Option<String>) {
        let SendRef { endpoint, delivery, .. } = send;
        self.in_flight_requests.remove(&delivery);
        self.scheduler.blocked(now, endpoint, delivery);
        let cause = cause.unwrap_or_else(|| "the settings do not allow it".to_owned());
        if self.blocked.insert(endpoint, cause.clone(), now + LOOKED_AT_EVERY) {
            tracing::warn!(%endpoint, cause, "endpoint_blocked: its deliveries are held");
        }
    }

    /// Looks again where it is time.
    pub(super) fn look_at_blocked(&mut self, now: Timestamp) {
        while let Some(endpoint) = self.blocked.pop_due(now) {
            self.scheduler.look_again(endpoint);
        }
    }
}
