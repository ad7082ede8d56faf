//! `/v1/tenants`: customers of the people who run Posthaste.

use std::collections::BTreeMap;

use axum::response::Response;
use http::StatusCode;
use posthaste_core::destination::Destination;
use posthaste_core::endpoint::Metadata;
use posthaste_core::id::TenantId;
use posthaste_core::tenant::{Retention, Share, Tenant};
use posthaste_store::{Change, StoredTenant};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::App;
use crate::call::{Call, List, answer, no_content, ok, with_change};
use crate::endpoints::refused;
use crate::given::{Given, check_read_only};
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
    weight: Given<u32>,
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100_000)]
    max_in_flight: Given<u32>,
    /// Over all its endpoints together.
    #[serde(default)]
    #[schema(value_type = Option<RateLimitBody>)]
    rate_limit: Given<RateLimitBody>,
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 365)]
    retention_days: Given<u32>,
    #[serde(default)]
    #[schema(value_type = Option<DefaultsBody>)]
    defaults: Given<DefaultsBody>,
    #[serde(default)]
    #[schema(value_type = Option<Limits>)]
    limits: Given<Limits>,
    #[serde(default)]
    #[schema(value_type = Option<Notifications>)]
    notifications: Given<Notifications>,
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Given<BTreeMap<String, String>>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    id: Given<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    created_at: Given<Value>,
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
    let after = call.query.cursor(LIST, |position| TenantId::parse(position).ok())?;
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
    Ok(ok(&List::cut(rows, limit, LIST, |row: &StoredTenant| row.tenant.id.to_string(), view)))
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    let id = TenantId::parse(&call.name).map_err(|_| Problem::not_found())?;
    Ok(ok(&view(&find(&call, &id).await?.ok_or_else(Problem::not_found)?)))
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
    let document = present.as_ref().map(document);
    given.check_read_only_fields(&id, document.as_ref())?;
    let (tenant, extra) = given.lay_over(&call.app, Tenant::new(id.clone()), Extra::default())?;
    let action = if present.is_some() { "tenant.replace" } else { "tenant.create" };
    let stored = write(&call, action, document.as_ref(), tenant, &extra).await?;
    let status = if present.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    Ok(answer(status, &view(&stored)))
}

pub(crate) async fn change(call: Call) -> Result<Response, Problem> {
    let id = TenantId::parse(&call.name).map_err(|_| Problem::not_found())?;
    let (call, body) = call.body().await?;
    let given: TenantBody = body.parse()?;
    let present = find(&call, &id).await?.ok_or_else(Problem::not_found)?;
    let document = document(&present);
    given.check_read_only_fields(&id, Some(&document))?;
    let (tenant, extra) = given.lay_over(&call.app, present.tenant.clone(), extra(&present))?;
    let stored = write(&call, "tenant.change", Some(&document), tenant, &extra).await?;
    Ok(ok(&view(&stored)))
}

pub(crate) async fn delete(call: Call) -> Result<Response, Problem> {
    let id = TenantId::parse(&call.name).map_err(|_| Problem::not_found())?;
    let present = find(&call, &id).await?.ok_or_else(Problem::not_found)?;
    let audit = with_change(call.audit("tenant.delete", &id, Some(&id)), Some(&document(&present)), None);
    call.configure(Change::DeleteTenant { tenant: id }, audit).await?.map_err(refused)?;
    Ok(no_content())
}

async fn write(call: &Call, action: &str, before: Option<&Value>, tenant: Tenant, extra: &Extra) -> Result<StoredTenant, Problem> {
    let id = tenant.id.clone();
    let extra = serde_json::to_string(extra).expect("texts and numbers");
    let now = call.app.store.now();
    let after = document(&StoredTenant { tenant: tenant.clone(), version: 0, created_at: now, extra: extra.clone() });
    let audit = with_change(call.audit(action, &id, Some(&id)), before, Some(&after));
    call.configure(Change::PutTenant { tenant: Box::new(tenant), extra }, audit).await?.map_err(refused)?;
    call.app.store.tenant(id).await?.ok_or_else(Problem::not_found)
}

impl TenantBody {
    fn check_read_only_fields(&self, id: &TenantId, present: Option<&Value>) -> Result<(), Problem> {
        check_read_only("id", &self.id, Some(&Value::from(id.as_str())))?;
        check_read_only("created_at", &self.created_at, present.and_then(|present| present.get("created_at")))
    }

    fn lay_over(self, app: &App, mut tenant: Tenant, mut extra: Extra) -> Result<(Tenant, Extra), Problem> {
        let default = Share::default();
        let pick = |given: Given<u32>, present: u32, default: u32| match given {
            Given::Absent => present,
            Given::Null => default,
            Given::Is(value) => value,
        };
        let weight = pick(self.weight, tenant.share.weight(), default.weight());
        Share::new(weight, 1).map_err(|error| Problem::invalid("weight", error))?;
        let max_in_flight = pick(self.max_in_flight, tenant.share.max_in_flight(), default.max_in_flight());
        tenant.share = Share::new(weight, max_in_flight).map_err(|error| Problem::invalid("max_in_flight", error))?;
        tenant.rate_limit = self.rate_limit.over(tenant.rate_limit, |limit| limit.read().map(Some))?;
        tenant.retention = self
            .retention_days
            .over(tenant.retention, |days| Retention::days(days).map_err(|error| Problem::invalid("retention_days", error)))?;
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

fn view(stored: &StoredTenant) -> TenantView {
    let Extra { limits, notifications, metadata } = extra(stored);
    let tenant = &stored.tenant;
    TenantView {
        id: tenant.id.to_string(),
        weight: tenant.share.weight(),
        max_in_flight: tenant.share.max_in_flight(),
        rate_limit: tenant.rate_limit.map(RateLimitBody::show),
        retention_days: tenant.retention.as_days(),
        defaults: DefaultsView::show(&tenant.defaults),
        limits,
        notifications,
        metadata,
        created_at: stored.created_at.to_rfc3339(),
    }
}

fn document(stored: &StoredTenant) -> Value {
    serde_json::to_value(view(stored)).expect("texts, numbers and lists of them")
}
