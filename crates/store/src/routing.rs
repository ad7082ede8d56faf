//! Who gets what, kept in memory: routes of a tenant, and where a row can be seen.
//!
//! A plan is made outside of any transaction, because judging filters takes time. It carries the versions that it was
//! made by; the transaction compares them and plans again where they have moved on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use posthaste_core::catalogue;
use posthaste_core::endpoint::{Endpoint, Policies};
use posthaste_core::event::{Event, EventType};
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::quiet_hours::QuietHours;
use posthaste_core::route::{self, Route};
use posthaste_core::scheduler::Class;
use posthaste_core::tenant::{Retention, Tenant};

/// What routing an event of one tenant needs.
#[derive(Debug)]
pub(crate) struct Routing {
    pub(crate) versions: Versions,
    /// How long what the tenant publishes is kept.
    pub(crate) retention: Retention,
    routes: Vec<Route<Target>>,
    urgent: Arc<BTreeSet<EventType>>,
}

/// Of the tenant and of the catalogue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Versions {
    pub(crate) tenant: u64,
    pub(crate) catalogue: u64,
}

#[derive(Debug)]
struct Target {
    endpoint: EndpointId,
    schedule: Option<QuietHours>,
}

/// One delivery to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Planned {
    pub(crate) endpoint: EndpointId,
    pub(crate) class: Class,
    pub(crate) is_priority: bool,
}

impl Routing {
    pub(crate) fn new(
        versions: Versions,
        server: &Policies,
        retention: Retention,
        tenant: Option<&Tenant>,
        endpoints: Vec<Endpoint>,
        urgent: Arc<BTreeSet<EventType>>,
    ) -> Routing {
        let routes = endpoints
            .into_iter()
            .map(|endpoint| {
                let schedule = schedule_of(server, tenant, &endpoint);
                let target = Target { endpoint: endpoint.id, schedule };
                Route { endpoint: target, status: endpoint.status, subscription: endpoint.subscription }
            })
            .collect();
        let retention = tenant.and_then(|tenant| tenant.retention).unwrap_or(retention);
        Routing { versions, retention, routes, urgent }
    }

    pub(crate) fn plan(&self, event: &Event) -> Vec<Planned> {
        let is_priority = self.urgent.contains(&event.event_type);
        route::choose(event, &self.routes)
            .into_iter()
            .map(|route| Planned {
                endpoint: route.endpoint.endpoint,
                class: Class::of(&event.event_type, is_priority, route.endpoint.schedule.as_ref()),
                is_priority,
            })
            .collect()
    }
}

/// The quiet hours that apply to an endpoint once everybody has been heard.
pub(crate) fn schedule_of(server: &Policies, tenant: Option<&Tenant>, endpoint: &Endpoint) -> Option<QuietHours> {
    let mut policies = server.clone();
    if let Some(tenant) = tenant {
        policies = policies.overridden_by(&tenant.defaults);
    }
    policies.overridden_by(&endpoint.policies).delivery_schedule
}

pub(crate) fn urgent_types(catalogue: &[catalogue::Entry]) -> Arc<BTreeSet<EventType>> {
    Arc::new(catalogue.iter().filter(|entry| entry.is_priority).map(|entry| entry.name.clone()).collect())
}

/// The routings of tenants that have published lately.
#[derive(Debug, Default)]
pub(crate) struct Routings(RwLock<BTreeMap<TenantId, Arc<Routing>>>);

/// Beyond this many tenants it begins anew. A routing of ten endpoints has some kilobytes.
const ROUTINGS_MAX: usize = 10_000;

impl Routings {
    pub(crate) fn get(&self, tenant: &TenantId) -> Option<Arc<Routing>> {
        self.0.read().get(tenant).cloned()
    }

    pub(crate) fn put(&self, tenant: &TenantId, routing: &Arc<Routing>) {
        let mut routings = self.0.write();
        if routings.len() >= ROUTINGS_MAX {
            routings.clear();
        }
        routings.insert(tenant.clone(), Arc::clone(routing));
    }
}
