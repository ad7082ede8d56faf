//! A customer of the people who run Posthaste: the unit of fairness and of what a key may see.

use std::time::Duration;

use crate::bucket::RateLimit;
use crate::endpoint::PolicyOverrides;
use crate::id::TenantId;

#[derive(Clone, PartialEq, Debug)]
pub struct Tenant {
    pub id: TenantId,
    /// Its share of the machine beside other tenants: one with weight 2 gets twice as much as one with 1.
    pub weight: u32,
    pub max_in_flight: u32,
    /// Over all its endpoints together.
    pub rate_limit: Option<RateLimit>,
    pub retention: Duration,
    /// What its endpoints inherit.
    pub defaults: PolicyOverrides,
}

impl Tenant {
    /// As a tenant comes into being with its first event or endpoint.
    pub fn new(id: TenantId) -> Tenant {
        Tenant {
            id,
            weight: 1,
            max_in_flight: 256,
            rate_limit: None,
            retention: Duration::from_hours(30 * 24),
            defaults: PolicyOverrides::default(),
        }
    }
}
