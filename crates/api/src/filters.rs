//! `/v1/filters/test`: a filter tried on an event that is not published.

use axum::response::Response;
use posthaste_core::filter::{FilterSet, STEPS_MAX, Subject, TooCostly};
use posthaste_store::catalogue::Catalogue;
use posthaste_store::computing::{self, INLINE_STEPS_MAX};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::App;
use crate::body;
use crate::call::{Call, ok};
use crate::credentials::Caller;
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

/// One call is worth so many steps of asking, or so many bytes of reading.
const STEPS_PER_CALL: u64 = 10_000;
const BYTES_PER_CALL: usize = 16 * 1024;

/// It counts as as many calls as it costs.
pub(crate) async fn test(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.body().await?;
    let of_reading = body.bytes.len() / BYTES_PER_CALL;
    let (app, caller, text) = (call.app.clone(), call.caller.clone(), body.bytes.clone());
    let asked = if of_reading == 0 { ask(&app, &caller, &text, INLINE_STEPS_MAX)? } else { Err(TooCostly { max: 0 }) };
    let asked = match asked {
        Ok(answer) => Ok(answer),
        Err(_) => computing::run(call.caller.owner(), move || ask(&app, &caller, &text, STEPS_MAX)).await??,
    };
    let steps = asked.as_ref().map_or_else(|too_costly| too_costly.max, |(_, steps)| *steps);
    call.app.calls.charge(&call.caller, call.app.store.now(), of_reading as u64 + steps / STEPS_PER_CALL);
    let (matches, _) = asked.map_err(|too_costly| Problem::invalid("event.data", too_costly))?;
    Ok(ok(&FilterTestAnswer { matches }))
}

/// Whether it matches, and how many steps it took.
fn ask(app: &App, caller: &Caller, text: &[u8], steps_max: u64) -> Result<Result<(bool, u64), TooCostly>, Problem> {
    let given: FilterTestBody<'_> = body::parse(text)?;
    let filter = read_filter(given.filter.get())?;
    let event: NewEventBody<'_> = body::parse(given.event.get().as_bytes()).map_err(|problem| problem.inside("event"))?;
    let nothing = Catalogue::new(vec![]);
    let new = event.read(app, caller, &nothing, None, None).map_err(|problem| problem.inside("event"))?;
    let asked = FilterSet::new([&filter]).matches(&Subject::of(&new.event), &[0], steps_max);
    Ok(asked.map(|(answers, steps)| (answers == [true], steps)))
}
