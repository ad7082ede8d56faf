//! `/v1/filters/test`: a filter tried on an event that is not published.

use axum::response::Response;
use posthaste_core::filter::Subject;
use posthaste_store::catalogue::Catalogue;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::body;
use crate::call::{Call, ok};
use crate::endpoints::read_filter;
use crate::events::NewEventBody;
use crate::problem::Problem;

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = FilterTest)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilterTestBody<'a> {
    #[serde(borrow)]
    #[schema(value_type = Object)]
    filter: &'a RawValue,
    /// As it would be published.
    #[serde(borrow)]
    #[schema(value_type = NewEventBody<'a>)]
    event: &'a RawValue,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FilterTestResult)]
pub(crate) struct FilterTestAnswer {
    matches: bool,
}

pub(crate) async fn test(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.body().await?;
    let given: FilterTestBody<'_> = body.parse()?;
    let filter = read_filter(given.filter.get())?;
    let event: NewEventBody<'_> = body::parse(given.event.get().as_bytes()).map_err(|problem| problem.inside("event"))?;
    let nothing = Catalogue::new(vec![]);
    let new = event.read(&call.app, &call.caller, &nothing, None, None).map_err(|problem| problem.inside("event"))?;
    Ok(ok(&FilterTestAnswer { matches: filter.matches(&Subject::of(&new.event)) }))
}
