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
use posthaste_core::filter::{STEPS_MAX, TooCostly};
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::quiet_hours::QuietHours;
use posthaste_core::route::{Route, Routes};
use posthaste_core::scheduler::Class;
use posthaste_core::tenant::{Retention, Tenant};

use crate::Error;
use crate::computing::{self, INLINE_BYTES_MAX, INLINE_STEPS_MAX};

/// What routing an event of one tenant needs.
#[derive(Debug)]
pub(crate) struct Routing {
    pub(crate) versions: Versions,
    /// How long what the tenant publishes is kept.
    pub(crate) retention: Retention,
    routes: Routes<Target>,
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
        let routes: Vec<Route<Target>> = endpoints
            .into_iter()
            .map(|endpoint| {
                let schedule = schedule_of(server, tenant, &endpoint);
                let target = Target { endpoint: endpoint.id, schedule };
                Route { endpoint: target, status: endpoint.status, subscription: endpoint.subscription }
            })
            .collect();
        let retention = tenant.and_then(|tenant| tenant.retention).unwrap_or(retention);
        Routing { versions, retention, routes: Routes::new(routes), urgent }
    }

    /// Where that takes long, it holds up nobody else.
    pub(crate) async fn plan(self: &Arc<Routing>, event: &Arc<Event>) -> Result<Result<Vec<Planned>, TooCostly>, Error> {
        if let Some(chosen) = self.plan_in_place(event) {
            return Ok(Ok(chosen));
        }
        let (routing, work_event) = (Arc::clone(self), Arc::clone(event));
        computing::run(event.tenant.as_str(), move || routing.plan_here(&work_event)).await
    }

    /// `None` if that would take long.
    pub(crate) fn plan_in_place(&self, event: &Event) -> Option<Vec<Planned>> {
        if event.data.as_str().len() > INLINE_BYTES_MAX && self.routes.has_filters_for(&event.event_type) {
            return None;
        }
        Some(self.planned(event, self.routes.choose(event, INLINE_STEPS_MAX).ok()?))
    }

    /// On the present thread, however long it takes.
    fn plan_here(&self, event: &Event) -> Result<Vec<Planned>, TooCostly> {
        Ok(self.planned(event, self.routes.choose(event, STEPS_MAX)?))
    }

    /// What this endpoint would get of it, on the present thread.
    pub(crate) fn plan_for(&self, endpoint: EndpointId, event: &Event) -> Result<Option<Planned>, TooCostly> {
        let chosen = self.routes.choose_among(event, STEPS_MAX, |target| target.endpoint == endpoint)?;
        Ok(self.planned(event, chosen).pop())
    }

    fn planned(&self, event: &Event, chosen: Vec<&Route<Target>>) -> Vec<Planned> {
        let is_priority = self.urgent.contains(&event.event_type);
        chosen
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

    /// What comes next reads it again.
    pub(crate) fn forget(&self, tenant: &TenantId) {
        self.0.write().remove(tenant);
    }

    pub(crate) fn put(&self, tenant: &TenantId, routing: &Arc<Routing>) {
        let mut routings = self.0.write();
        if routings.len() >= ROUTINGS_MAX {
            routings.clear();
        }
        routings.insert(tenant.clone(), Arc::clone(routing));
    }
}
