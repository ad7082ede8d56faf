//! What sending to an endpoint takes, read once for each configuration and not for each attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use posthaste_core::destination::DestinationError;
use posthaste_core::endpoint::Policies;
use posthaste_core::scheduler::{LaneConfig, TenantConfig};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::Mode;
use posthaste_sender::request::{Address, SecretError, Signer};
use posthaste_store::{EndpointBundle, StoredEndpoint, StoredTenant};

use crate::Options;

/// An endpoint, ready to be sent to.
#[derive(Debug)]
pub struct Target {
    pub(crate) stored: StoredEndpoint,
    pub(crate) address: Result<Address, DestinationError>,
    /// With the secrets that are in force for good. During an overlap it is made anew for each attempt.
    signer: Option<Arc<Signer>>,
    /// Something about the endpoint was changed since: no request is begun with this any more. Set by the owner, read by the executor
    /// before the first byte is sent.
    is_superseded: AtomicBool,
}

impl Target {
    pub(crate) fn new(stored: StoredEndpoint) -> Target {
        let is_overlap = stored.secrets.iter().any(|secret| secret.until.is_some());
        let address = Address::parse(&stored.endpoint.url);
        let mut target = Target { stored, address, signer: None, is_superseded: AtomicBool::new(false) };
        if !is_overlap {
            target.signer = target.signer_at(Timestamp::MAX).ok();
        }
        target
    }

    /// As it was when it was last read.
    pub fn stored(&self) -> &StoredEndpoint {
        &self.stored
    }

    pub(crate) fn supersede(&self) {
        self.is_superseded.store(true, Ordering::Release);
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.is_superseded.load(Ordering::Acquire)
    }

    /// A rotated secret signs beside its successor until its overlap ends.
    pub(crate) fn signer_at(&self, now: Timestamp) -> Result<Arc<Signer>, SecretError> {
        if let Some(signer) = &self.signer {
            return Ok(Arc::clone(signer));
        }
        let in_force = self.stored.secrets.iter().filter(|secret| secret.until.is_none_or(|until| now < until));
        Signer::new(&self.stored.endpoint.signing, in_force.map(|secret| secret.secret.0.as_str())).map(Arc::new)
    }
}

/// What applies to an endpoint once everybody has been heard.
pub(crate) fn policies(options: &Options, bundle: &EndpointBundle) -> Policies {
    let mut policies = options.policies.clone();
    if let Some(tenant) = &bundle.tenant {
        policies = policies.overridden_by(&tenant.tenant.defaults);
    }
    policies.overridden_by(&bundle.endpoint.endpoint.policies)
}

/// What scheduling has to know of it, and how its timeout comes about.
pub(crate) fn lane_config(options: &Options, bundle: &EndpointBundle) -> (LaneConfig, Mode) {
    let policies = policies(options, bundle);
    let StoredEndpoint { endpoint, deleted_at, .. } = &bundle.endpoint;
    let config = LaneConfig {
        // What waits at a deleted one is cancelled by housekeeping.
        status: if deleted_at.is_some() { posthaste_core::endpoint::Status::Disabled } else { endpoint.status },
        subscription: endpoint.subscription.clone(),
        max_in_flight: endpoint.max_in_flight.unwrap_or(policies.max_in_flight).get(),
        rate_limit: policies.rate_limit,
        schedule: policies.delivery_schedule,
        circuit: policies.circuit,
        retry: policies.retry,
        health: options.health,
    };
    (config, policies.timeout)
}

pub(crate) fn tenant_config(options: &Options, tenant: Option<&StoredTenant>) -> TenantConfig {
    tenant.map_or_else(
        || TenantConfig { share: options.tenant_share, ..TenantConfig::default() },
        |stored| TenantConfig { share: stored.tenant.share.over(options.tenant_share), rate_limit: stored.tenant.rate_limit },
    )
}
