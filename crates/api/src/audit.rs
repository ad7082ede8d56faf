//! `/v1/audit`: who changed what, when, from where.

use std::time::Duration;

use axum::response::Response;
use posthaste_core::event::{EventType, TypePatterns};
use posthaste_core::time::Timestamp;
use posthaste_store::AuditRow;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::call::{Call, Rows};
use crate::problem::Problem;
use crate::query::{ACTION, ACTOR, Query, RESOURCE};

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
    let before = call.cursor(LIST, |position| position.parse::<u64>().ok())?;
    let Ok(tenant) = call.caller.narrowed_to(call.query.tenant()?) else { return Ok(call.list(LIST, Rows::<AuditView>::none())) };
    let filter = Filter::read(&call.query)?;
    let (mut found, mut before, mut looked_at) = (Vec::new(), before, 0);
    let next = loop {
        let rows = call.app.store.audit(tenant.clone(), before, LOOK_ROWS).await?;
        let is_last = rows.len() < LOOK_ROWS || rows.last().is_some_and(|row| filter.is_over(row));
        looked_at += rows.len();
        for row in rows {
            before = Some(row.seq);
            if filter.covers(&row) {
                found.push(row);
            }
            if found.len() > limit {
                break;
            }
        }
        if found.len() > limit {
            found.truncate(limit);
            break found.last().map(|row| row.seq);
        }
        if is_last {
            break None;
        }
        // The rest is on the next page: this one may be short, or empty.
        if looked_at >= SCAN_ROWS_MAX {
            break before;
        }
    };
    Ok(call.list(LIST, Rows::new(found.iter().map(view).collect(), next.map(|seq| seq.to_string()))))
}

/// Rows that one look reads, and that one page looks at.
const LOOK_ROWS: usize = 500;
const SCAN_ROWS_MAX: usize = 2_000;
/// Entries are in the order of their numbers. What was committed later than its neighbours may be a little out of time.
const OUT_OF_TIME_MAX: Duration = Duration::from_mins(10);

/// What the list is narrowed to.
struct Filter {
    actor: Option<String>,
    actions: TypePatterns,
    resource: Option<String>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
}

impl Filter {
    fn read(query: &Query) -> Result<Filter, Problem> {
        Ok(Filter {
            actor: query.text(&ACTOR).map(str::to_owned),
            actions: query.patterns(&ACTION)?,
            resource: query.text(&RESOURCE).map(str::to_owned),
            from: query.range()?.0,
            to: query.range()?.1,
        })
    }

    fn covers(&self, row: &AuditRow) -> bool {
        let audit = &row.audit;
        self.actor.as_ref().is_none_or(|actor| *actor == audit.actor)
            && self.resource.as_ref().is_none_or(|resource| *resource == audit.subject)
            && EventType::parse(&audit.action).is_ok_and(|action| self.actions.covers_or_is_empty(&action))
            && self.from.is_none_or(|from| from <= row.at)
            && self.to.is_none_or(|to| row.at < to)
    }

    /// Everything after this one is older than what was asked for.
    fn is_over(&self, row: &AuditRow) -> bool {
        self.from.is_some_and(|from| row.at + OUT_OF_TIME_MAX < from)
    }
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
