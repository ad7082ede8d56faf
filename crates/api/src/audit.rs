//! `/v1/audit`: who changed what, when, from where.

use axum::response::Response;
use posthaste_store::AuditRow;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::call::{Call, List, ok};
use crate::problem::Problem;

const LIST: &str = "audit";

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditEntry)]
pub(crate) struct AuditView {
    #[schema(format = DateTime)]
    at: String,
    /// The id of a key, or what else it was; never the key.
    actor: String,
    address: Option<String>,
    /// Such as `endpoint.change`.
    action: String,
    /// The id of what was changed.
    subject: String,
    tenant: Option<String>,
    /// What differs, without secrets.
    #[schema(value_type = Option<Value>)]
    before: Option<Box<RawValue>>,
    #[schema(value_type = Option<Value>)]
    after: Option<Box<RawValue>>,
}

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    let limit = call.query.limit()?;
    let before = call.query.cursor(LIST, |position| position.parse::<u64>().ok())?;
    let Ok(tenant) = call.caller.narrowed_to(call.query.tenant()?) else { return Ok(ok(&List::<AuditView>::empty())) };
    let rows = call.app.store.audit(tenant, before, limit + 1).await?;
    Ok(ok(&List::cut(rows, limit, LIST, |row: &AuditRow| row.seq.to_string(), view)))
}

fn view(row: &AuditRow) -> AuditView {
    let raw = |text: &Option<String>| text.as_ref().and_then(|text| RawValue::from_string(text.clone()).ok());
    AuditView {
        at: row.at.to_rfc3339(),
        actor: row.audit.actor.clone(),
        address: row.audit.address.clone(),
        action: row.audit.action.clone(),
        subject: row.audit.subject.clone(),
        tenant: row.audit.tenant.as_ref().map(ToString::to_string),
        before: raw(&row.audit.before),
        after: raw(&row.audit.after),
    }
}
