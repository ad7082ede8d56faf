//! Endpoints that deliveries may not go to under the present settings, as far as their URLs say so: for the start and the doctor.
//!
//! A name that leads to a forbidden address is found at its first delivery.

use std::sync::Arc;

use posthaste_core::destination::{Destination, Policy};
use posthaste_core::endpoint::Status;
use posthaste_store::{EndpointQuery, Error, Store};

const PAGE_ROWS: usize = 250;

/// How many there are, and the rule that forbids the first of them.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Unreachable {
    pub(crate) count: usize,
    pub(crate) first: Option<String>,
}

impl Unreachable {
    pub(crate) fn add(&mut self, policy: &Policy, url: &str) {
        let refused = Destination::parse(url).and_then(|destination| policy.check(&destination));
        if let Err(rule) = refused {
            self.count += 1;
            self.first.get_or_insert_with(|| rule.to_string());
        }
    }

    /// Of those that take events.
    pub(crate) async fn count(store: &dyn Store, policy: &Policy) -> Result<Unreachable, Error> {
        let (mut unreachable, mut before) = (Unreachable::default(), None);
        loop {
            let page =
                store.endpoints(EndpointQuery { tenant: None, uid: None, is_disabled: false, before, limit: PAGE_ROWS }).await?;
            for stored in page.iter().filter(|stored| stored.endpoint.status != Status::Disabled) {
                unreachable.add(policy, &stored.endpoint.url);
            }
            before = page.last().map(|stored| stored.endpoint.id);
            if page.len() < PAGE_ROWS {
                return Ok(unreachable);
            }
        }
    }
}

/// Says at the start that deliveries will be held, and why.
pub(crate) async fn report(store: Arc<dyn Store>, policy: Policy) {
    match Unreachable::count(store.as_ref(), &policy).await {
        Ok(Unreachable { count: 0, .. }) => {}
        Ok(Unreachable { count, first }) => tracing::warn!(
            endpoints = count,
            rule = first.as_deref(),
            "endpoints_blocked: the present settings do not let deliveries reach them; their deliveries are held"
        ),
        Err(error) => tracing::warn!(%error, "whether endpoints can be reached under the present settings is not known"),
    }
}
