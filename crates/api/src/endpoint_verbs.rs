//! `/v1/endpoints/{id}/…`: what can be done to an endpoint beside changing it.
//!
//! Verbs may be repeated: saying again what is so already changes nothing and answers the same.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use posthaste_core::endpoint::{Endpoint, SECRET_OVERLAP_DEFAULT, SECRET_OVERLAP_MAX, Status};
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::EventId;
use posthaste_core::text::Labels;
use posthaste_core::time::Timestamp;
use posthaste_store::{Change, Command, CommandOutcome, SecretText, StoredSecret};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::call::{Call, ok, parse_or_default, tagged, with_change};
use crate::deliveries::{AttemptView, versions_of};
use crate::endpoints::{EditTarget, find, refused, replace, secret_for};
use crate::problem::Problem;

/// Where it says nothing, until it is resumed.
#[derive(Default, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseBody {
    #[schema(format = DateTime)]
    until: Option<String>,
}

#[derive(Default, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RotateBody {
    /// Your own; left out, we make one.
    #[schema(write_only)]
    secret: Option<String>,
    /// How long the old secret signs beside the new one. A day unless said.
    #[schema(minimum = 0, maximum = 604_800)]
    overlap_seconds: Option<u64>,
}

#[derive(Default, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestBody {
    /// `posthaste.test` unless said.
    #[serde(rename = "type")]
    event_type: Option<String>,
    #[schema(value_type = Option<Value>)]
    data: Option<Box<RawValue>>,
}

pub(crate) async fn pause(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.optional_body().await?;
    let given: PauseBody = parse_or_default(body.as_ref())?;
    let until = given.until.as_deref().map(Timestamp::parse).transpose().map_err(|error| Problem::invalid("until", error))?;
    if until.is_some_and(|until| until <= call.app.store.now()) {
        return Err(Problem::invalid("until", "has passed already"));
    }
    set_status(&call, "endpoint.pause", |present| match present {
        Status::Active | Status::Paused { .. } => Ok(Status::Paused { until }),
        Status::Disabled => Err(Problem::conflict("It is disabled, and takes nothing that could wait. Enable it first.")),
    })
    .await
}

pub(crate) async fn resume(call: Call) -> Result<Response, Problem> {
    let call = call.without_body().await?;
    set_status(&call, "endpoint.resume", |present| match present {
        Status::Active | Status::Paused { .. } => Ok(Status::Active),
        Status::Disabled => Err(Problem::conflict("It is disabled, not paused. Enable it.")),
    })
    .await
}

pub(crate) async fn disable(call: Call) -> Result<Response, Problem> {
    let call = call.without_body().await?;
    set_status(&call, "endpoint.disable", |_| Ok(Status::Disabled)).await
}

pub(crate) async fn enable(call: Call) -> Result<Response, Problem> {
    let call = call.without_body().await?;
    set_status(&call, "endpoint.enable", |present| match present {
        Status::Disabled => Ok(Status::Active),
        // A pause is somebody's wish and stays.
        Status::Active | Status::Paused { .. } => Ok(present),
    })
    .await
}

async fn set_status(call: &Call, action: &str, next: impl Fn(Status) -> Result<Status, Problem>) -> Result<Response, Problem> {
    replace(call, action, EditTarget::IsNamed, |found, _| {
        let endpoint = found.stored.endpoint.clone();
        let status = next(endpoint.status.at(call.app.store.now()))?;
        Ok(Endpoint { status, ..endpoint }.into())
    })
    .await
}

/// More than two at once means that rotations follow each other faster than receivers do; each still costs a signature.
const SECRETS_MAX: usize = 8;

pub(crate) async fn rotate_secret(call: Call) -> Result<Response, Problem> {
    if !call.caller.may_see_secrets {
        return Err(Problem::forbidden("This needs the permission `secrets`."));
    }
    let (call, body) = call.optional_body().await?;
    let given: RotateBody = parse_or_default(body.as_ref())?;
    let overlap = given.overlap_seconds.map_or(SECRET_OVERLAP_DEFAULT, Duration::from_secs);
    if overlap > SECRET_OVERLAP_MAX {
        return Err(Problem::invalid("overlap_seconds", "0 to 604,800 (7 days)"));
    }
    let mut found = find(&call).await?;
    call.precondition().check(found.stored.version)?;
    let secret = secret_for(&found.stored.endpoint.signing, given.secret)?;
    let now = call.app.store.now();
    if found.stored.secrets.iter().any(|stored| stored.secret.0 == secret) {
        return Err(Problem::invalid("secret", "is one of its secrets already"));
    }
    let mut secrets = vec![StoredSecret { secret: SecretText(secret.clone()), until: None }];
    secrets.extend(found.stored.secrets.iter().filter_map(|old| {
        let until = old.until.unwrap_or(now + overlap);
        (now < until).then(|| StoredSecret { secret: old.secret.clone(), until: Some(until) })
    }));
    secrets.truncate(SECRETS_MAX);
    let endpoint = &found.stored.endpoint;
    let audit = call.audit("endpoint.rotate-secret", &endpoint.id, Some(&endpoint.tenant));
    let audit = with_change(audit, None, Some(&json!({"overlap_seconds": overlap.as_secs()})));
    let change = Change::ReplaceSecrets { endpoint: endpoint.id, secrets: secrets.clone() };
    let changed = call.configure(change, audit).await?.map_err(refused)?;
    found.stored.secrets = secrets;
    Ok(tagged(ok(&found.view_with_secret(&call.app, secret)), changed.version))
}

pub(crate) async fn test(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.optional_body().await?;
    let given: TestBody = parse_or_default(body.as_ref())?;
    let found = find(&call).await?;
    let endpoint = &found.stored.endpoint;
    let event_type = EventType::parse(given.event_type.as_deref().unwrap_or("posthaste.test"));
    let data = given.data.as_ref().map_or(r#"{"message":"This is a test from Posthaste."}"#, |data| data.get());
    let now = call.app.store.now();
    let event = Event {
        id: EventId::from_unique(call.app.store.unique()),
        tenant: endpoint.tenant.clone(),
        event_type: event_type.map_err(|error| Problem::invalid("type", error))?,
        version: None,
        timestamp: now,
        accepted_at: now,
        data: Data::parse(data).map_err(|error| Problem::invalid("data", error))?,
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    };
    let command = Command::Test { endpoint: endpoint.id, event: Arc::new(event) };
    match call.app.store.command(found.stored.partition, command).await? {
        CommandOutcome::Tested(attempt) => {
            let mut versions = versions_of(&call, endpoint.id, std::iter::once(&*attempt)).await?;
            let sent_with = attempt.endpoint_version.and_then(|version| versions.remove(&version));
            Ok(ok(&AttemptView::show(None, &attempt, sent_with)))
        }
        CommandOutcome::NotBefore(at) => Err(Problem::no_token(at.since(call.app.store.now()))),
        CommandOutcome::NotFound => Err(Problem::not_found()),
        CommandOutcome::Done | CommandOutcome::InFlight | CommandOutcome::HasEnded => {
            Err(Problem::unavailable("The node that owns the endpoint could not test it now."))
        }
    }
}
