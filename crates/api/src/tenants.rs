//! `/v1/tenants`: customers of the people who run Posthaste.

use std::collections::BTreeMap;

use axum::response::Response;
use http::StatusCode;
use posthaste_core::destination::Destination;
use posthaste_core::endpoint::Metadata;
use posthaste_core::id::TenantId;
use posthaste_core::tenant::{Retention, ShareOverrides, Tenant};
use posthaste_store::{Change, Refusal, StoredTenant};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::App;
use crate::call::{Call, Rows, TRIES_MAX, answer, no_content, tagged, version_of, with_change};
use crate::endpoints::{changed_all_the_time, refused};
use crate::patch::{Patch, check_read_only};
use crate::policies::{DefaultsBody, DefaultsView, RateLimitBody};
use crate::problem::Problem;

const LIST: &str = "tenants";
const EMAILS_MAX: usize = 10;
const EMAIL_BYTES_MAX: usize = 254;

/// What is said about a tenant.
#[derive(Clone, Default, Debug, Deserialize, ToSchema)]
#[schema(as = TenantSettings)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantBody {
    /// Twice the weight, twice the share.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    weight: Patch<u32>,
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100_000)]
    max_in_flight: Patch<u32>,
    /// Over all its endpoints together.
    #[serde(default)]
    #[schema(value_type = Option<RateLimitBody>)]
    rate_limit: Patch<RateLimitBody>,
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 365)]
    retention_days: Patch<u32>,
    #[serde(default)]
    #[schema(value_type = Option<DefaultsBody>)]
    defaults: Patch<DefaultsBody>,
    #[serde(default)]
    #[schema(value_type = Option<Limits>)]
    limits: Patch<Limits>,
    #[serde(default)]
    #[schema(value_type = Option<Notifications>)]
    notifications: Patch<Notifications>,
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Patch<BTreeMap<String, String>>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    id: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    created_at: Patch<Value>,
}

/// What stands over the server's own limits; `null` is the server's.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = TenantLimits)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    #[schema(minimum = 1, maximum = 1_000_000)]
    #[serde(default)]
    max_endpoints: Option<u32>,
}

/// Where it is told that an endpoint fails.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Notifications {
    #[serde(default)]
    #[schema(max_items = 10)]
    emails: Vec<String>,
    #[serde(default)]
    url: Option<String>,
}

/// What the store keeps for us without reading it.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
struct Extra {
    limits: Limits,
    notifications: Notifications,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tenant)]
pub(crate) struct TenantView {
    id: String,
    weight: u32,
    max_in_flight: u32,
    rate_limit: Option<RateLimitBody>,
    retention_days: u32,
    defaults: DefaultsView,
    limits: Limits,
    notifications: Notifications,
    metadata: BTreeMap<String, String>,
    #[schema(format = DateTime)]
    created_at: String,
}

/// How many endpoints a tenant may have, if that was said.
pub(crate) fn endpoints_max(stored: &StoredTenant) -> Option<u32> {
    extra(stored).limits.max_endpoints
}

fn extra(stored: &StoredTenant) -> Extra {
    serde_json::from_str(&stored.extra).unwrap_or_default()
}

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    let limit = call.query.limit()?;
    let after = call.cursor(LIST, |position| TenantId::parse(position).ok())?;
    let rows = match &call.caller.tenant {
        None => call.app.store.tenants(after, limit + 1).await?,
        Some(own) => call
            .app
            .store
            .tenant(own.clone())
            .await?
            .into_iter()
            .filter(|_| after.as_ref().is_none_or(|after| after < own))
            .collect(),
    };
    Ok(call.list(LIST, Rows::cut(rows, limit, |row: &StoredTenant| row.tenant.id.to_string(), |row| view(&call.app, row))))
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    let id = TenantId::parse(&call.name).map_err(|_| Problem::not_found())?;
    Ok(shown(&call.app, StatusCode::OK, &find(&call, &id).await?.ok_or_else(Problem::not_found)?))
}

async fn find(call: &Call, id: &TenantId) -> Result<Option<StoredTenant>, Problem> {
    if !call.caller.sees(id) {
        return Ok(None);
    }
    Ok(call.app.store.tenant(id.clone()).await?)
}

/// Makes it, or replaces all that is said about it: what is left out has its default.
pub(crate) async fn put(call: Call) -> Result<Response, Problem> {
    let id = TenantId::parse(&call.name).map_err(|error| Problem::invalid("id", error))?;
    let (call, body) = call.body().await?;
    let given: TenantBody = body.parse()?;
    let present = find(&call, &id).await?;
    if present.is_none() && call.precondition().is_given() {
        return Err(Problem::stale());
    }
    if present.is_some() {
        let blank = |_: &StoredTenant| (Tenant::new(id.clone()), Extra::default());
        return replace(&call, "tenant.replace", &id, &given, blank).await;
    }
    given.check_read_only_fields(&id, None)?;
    let (tenant, extra) = given.lay_over(&call.app, Tenant::new(id.clone()), Extra::default())?;
    let stored = StoredTenant { tenant, version: 0, created_at: call.app.store.now(), extra: written(&extra) };
    let audit = with_change(call.audit("tenant.create", &id, Some(&id)), None, Some(&document(&call.app, &stored)));
    let change = Change::PutTenant { tenant: Box::new(stored.tenant), extra: stored.extra };
    call.configure(change, audit).await?.map_err(refused)?;
    let stored = call.app.store.tenant(id).await?.ok_or_else(Problem::not_found)?;
    Ok(shown(&call.app, StatusCode::CREATED, &stored))
}

pub(crate) async fn change(call: Call) -> Result<Response, Problem> {
    let id = TenantId::parse(&call.name).map_err(|_| Problem::not_found())?;
    let (call, body) = call.body().await?;
    let given: TenantBody = body.parse()?;
    replace(&call, "tenant.change", &id, &given, |present| (present.tenant.clone(), extra(present))).await
}

pub(crate) async fn delete(call: Call) -> Result<Response, Problem> {
    let id = TenantId::parse(&call.name).map_err(|_| Problem::not_found())?;
    let present = find(&call, &id).await?.ok_or_else(Problem::not_found)?;
    let before = document(&call.app, &present);
    call.precondition().check(version_of(&before))?;
    let audit = with_change(call.audit("tenant.delete", &id, Some(&id)), Some(&before), None);
    call.configure(Change::DeleteTenant { tenant: id }, audit).await?.map_err(refused)?;
    Ok(no_content())
}

/// Reads, lays what was given over it or over a blank one, and writes it back; again if somebody else was faster, unless the
/// caller has named a version.
async fn replace(
    call: &Call,
    action: &str,
    id: &TenantId,
    given: &TenantBody,
    begin: impl Fn(&StoredTenant) -> (Tenant, Extra),
) -> Result<Response, Problem> {
    let precondition = call.precondition();
    for _ in 0..TRIES_MAX {
        let present = find(call, id).await?.ok_or_else(Problem::not_found)?;
        let before = document(&call.app, &present);
        precondition.check(version_of(&before))?;
        given.check_read_only_fields(id, Some(&before))?;
        let (tenant, extra) = begin(&present);
        let (tenant, extra) = given.clone().lay_over(&call.app, tenant, extra)?;
        let stored = StoredTenant { tenant, extra: written(&extra), ..present.clone() };
        let audit = with_change(call.audit(action, id, Some(id)), Some(&before), Some(&document(&call.app, &stored)));
        let change = Change::ReplaceTenant {
            tenant: Box::new(stored.tenant.clone()),
            extra: stored.extra.clone(),
            expected: Box::new((present.tenant, present.extra)),
        };
        match call.configure(change, audit).await? {
            Ok(_) => return Ok(shown(&call.app, StatusCode::OK, &stored)),
            Err(Refusal::Stale) if precondition.is_given() => return Err(Problem::stale()),
            Err(Refusal::Stale) => {}
            Err(refusal) => return Err(refused(refusal)),
        }
    }
    Err(changed_all_the_time())
}

fn written(extra: &Extra) -> String {
    serde_json::to_string(extra).expect("texts and numbers")
}

fn shown(app: &App, status: StatusCode, stored: &StoredTenant) -> Response {
    tagged(answer(status, &view(app, stored)), version_of(&document(app, stored)))
}

impl TenantBody {
    fn check_read_only_fields(&self, id: &TenantId, present: Option<&Value>) -> Result<(), Problem> {
        check_read_only("id", &self.id, Some(&Value::from(id.as_str())))?;
        check_read_only("created_at", &self.created_at, present.and_then(|present| present.get("created_at")))
    }

    fn lay_over(self, app: &App, mut tenant: Tenant, mut extra: Extra) -> Result<(Tenant, Extra), Problem> {
        let weight = match self.weight {
            Patch::Absent => tenant.share.weight(),
            Patch::Null => ShareOverrides::default().weight(),
            Patch::Is(weight) => weight,
        };
        ShareOverrides::new(weight, None).map_err(|error| Problem::invalid("weight", error))?;
        let max_in_flight = self.max_in_flight.over(tenant.share.max_in_flight(), |count| Ok(Some(count)))?;
        tenant.share = ShareOverrides::new(weight, max_in_flight).map_err(|error| Problem::invalid("max_in_flight", error))?;
        tenant.rate_limit = self.rate_limit.over(tenant.rate_limit, |limit| limit.read().map(Some))?;
        tenant.retention = self.retention_days.over(tenant.retention, |days| {
            Retention::days(days).map(Some).map_err(|error| Problem::invalid("retention_days", error))
        })?;
        tenant.defaults =
            self.defaults.over(tenant.defaults, |defaults| defaults.read().map_err(|problem| problem.inside("defaults")))?;
        extra.limits = self.limits.over(extra.limits, |limits| match limits.max_endpoints {
            Some(0 | 1_000_001..) => Err(Problem::invalid("limits.max_endpoints", "1 to 1,000,000")),
            Some(_) | None => Ok(limits),
        })?;
        extra.notifications = self.notifications.over(extra.notifications, |notifications| notifications.checked(app))?;
        extra.metadata = self.metadata.over(extra.metadata, |metadata| {
            Metadata::new(metadata.clone()).map_err(|error| Problem::invalid("metadata", error))?;
            Ok(metadata)
        })?;
        Ok((tenant, extra))
    }
}

impl Notifications {
    fn checked(self, app: &App) -> Result<Notifications, Problem> {
        if self.emails.len() > EMAILS_MAX {
            return Err(Problem::invalid("notifications.emails", "at most 10 addresses"));
        }
        for (index, email) in self.emails.iter().enumerate() {
            let is_plausible = email.len() <= EMAIL_BYTES_MAX
                && email.chars().all(|character| !character.is_whitespace() && !character.is_control())
                && email
                    .split_once('@')
                    .is_some_and(|(local, domain)| !local.is_empty() && domain.contains('.') && !domain.contains('@'));
            if !is_plausible {
                return Err(Problem::invalid(format!("notifications.emails[{index}]"), "is not an e-mail address"));
            }
        }
        if let Some(url) = &self.url {
            let refuse = |error: &dyn std::fmt::Display| Problem::invalid("notifications.url", error);
            let destination = Destination::parse(url).map_err(|error| refuse(&error))?;
            app.options.destinations.check(&destination).map_err(|error| refuse(&error))?;
        }
        Ok(self)
    }
}

fn view(app: &App, stored: &StoredTenant) -> TenantView {
    let defaults = &app.options.tenants;
    let Extra { limits, notifications, metadata } = extra(stored);
    let tenant = &stored.tenant;
    TenantView {
        id: tenant.id.to_string(),
        weight: tenant.share.weight(),
        max_in_flight: tenant.share.over(defaults.share).max_in_flight(),
        rate_limit: tenant.rate_limit.map(RateLimitBody::show),
        retention_days: tenant.retention.unwrap_or(defaults.retention).as_days(),
        defaults: DefaultsView::show(&tenant.defaults),
        limits,
        notifications,
        metadata,
        created_at: stored.created_at.to_rfc3339(),
    }
}

fn document(app: &App, stored: &StoredTenant) -> Value {
    serde_json::to_value(view(app, stored)).expect("texts, numbers and lists of them")
}
