//! `/v1/event-types`: the catalogue. Events of types that are not in it are delivered all the same.

use axum::response::Response;
use http::StatusCode;
use posthaste_core::catalogue::{Contract, Entry};
use posthaste_core::endpoint::Description;
use posthaste_core::event::EventType;
use posthaste_core::json;
use posthaste_core::text::Version;
use posthaste_core::time::Timestamp;
use posthaste_store::catalogue::{compile, validate};
use posthaste_store::computing;
use posthaste_store::{Change, Refusal};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::call::{Call, Rows, TRIES_MAX, answer, document_of, no_content, tagged, version_of, with_change};
use crate::endpoints::{changed_all_the_time, refused};
use crate::patch::{Patch, check_read_only};
use crate::problem::Problem;

const LIST: &str = "event-types";
/// More versions than this are a history.
const VERSIONS_MAX: usize = 100;
const SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// What is said about a type.
#[derive(Clone, Default, Debug, Deserialize, ToSchema)]
#[schema(as = EventTypeSettings)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventTypeBody {
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 128)]
    name: Patch<String>,
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 1024)]
    description: Patch<String>,
    /// In the order in which they were added: the last is the present one.
    #[serde(default)]
    #[schema(value_type = Option<Vec<VersionBody>>, max_items = 100)]
    versions: Patch<Vec<VersionBody>>,
    /// Still accepted; subscribers are told to move on.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    deprecated: Patch<bool>,
    /// Goes before the rest of its lane and is not held by quiet hours.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    priority: Patch<bool>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    deprecated_at: Patch<Value>,
}

/// What a payload of one version looks like.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = EventTypeVersion)]
#[serde(deny_unknown_fields)]
pub(crate) struct VersionBody {
    #[schema(min_length = 1, max_length = 64)]
    version: String,
    /// JSON Schema. Publishing something that does not match it is refused.
    #[schema(value_type = Option<Value>)]
    schema: Option<Box<RawValue>>,
    #[schema(value_type = Option<Value>)]
    example: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EventType)]
pub(crate) struct EventTypeView {
    name: String,
    description: String,
    versions: Vec<VersionBody>,
    deprecated: bool,
    #[schema(format = DateTime)]
    deprecated_at: Option<String>,
    priority: bool,
}

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    let limit = call.query.limit()?;
    let after = call.cursor(LIST, |position| EventType::parse(position).ok())?;
    let entries = call.app.store.event_types().await?;
    let rows = entries.into_iter().filter(|entry| after.as_ref().is_none_or(|after| *after < entry.name)).take(limit + 1).collect();
    Ok(call.list(LIST, Rows::cut(rows, limit, |entry: &Entry| entry.name.to_string(), view)))
}

pub(crate) async fn create(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.body().await?;
    let mut given: EventTypeBody = body.parse()?;
    check_read_only("deprecated_at", &given.deprecated_at, None)?;
    let name = std::mem::take(&mut given.name).value().ok_or_else(|| Problem::invalid("name", "missing field `name`"))?;
    let name = EventType::parse(&name).map_err(|error| Problem::invalid("name", error))?;
    if posthaste_store::is_reserved_type(name.as_str()) {
        return Err(Problem::invalid("name", "types that begin with `posthaste.` are reserved for notifications"));
    }
    let blank = Entry { name, description: String::new(), versions: vec![], deprecated_at: None, is_priority: false };
    let now = call.app.store.now();
    let entry = computing::run(call.caller.owner(), move || given.lay_over(blank, now)).await??;
    let audit = with_change(call.audit("event-type.create", &entry.name, None), None, Some(&document(&entry)));
    match call.configure(Change::CreateEventType(Box::new(entry.clone())), audit).await? {
        Ok(_) => Ok(shown(StatusCode::CREATED, &entry)),
        Err(Refusal::Taken) => Err(Problem::conflict("There is such a type already.")),
        Err(refusal) => Err(refused(refusal)),
    }
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    Ok(shown(StatusCode::OK, &find(&call).await?))
}

/// Reads, changes and writes it back; again if somebody else was faster, unless the caller has named a version.
pub(crate) async fn change(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.body().await?;
    let given: EventTypeBody = body.parse()?;
    let precondition = call.precondition();
    for _ in 0..TRIES_MAX {
        let present = find(&call).await?;
        let before = document(&present);
        precondition.check(version_of(&before))?;
        check_read_only("deprecated_at", &given.deprecated_at, before.get("deprecated_at"))?;
        match &given.name {
            Patch::Absent => {}
            Patch::Is(name) if name == present.name.as_str() => {}
            Patch::Null | Patch::Is(_) => return Err(Problem::invalid("name", "a type keeps its name")),
        }
        let (now, given, over) = (call.app.store.now(), given.clone(), present.clone());
        let entry = computing::run(call.caller.owner(), move || given.lay_over(over, now)).await??;
        let audit = with_change(call.audit("event-type.change", &entry.name, None), Some(&before), Some(&document(&entry)));
        let change = Change::ReplaceEventType { entry: Box::new(entry.clone()), expected: Box::new(present) };
        match call.configure(change, audit).await? {
            Ok(_) => return Ok(shown(StatusCode::OK, &entry)),
            Err(Refusal::Stale) if precondition.is_given() => return Err(Problem::stale()),
            Err(Refusal::Stale) => {}
            Err(refusal) => return Err(refused(refusal)),
        }
    }
    Err(changed_all_the_time())
}

pub(crate) async fn delete(call: Call) -> Result<Response, Problem> {
    let entry = find(&call).await?;
    let before = document(&entry);
    call.precondition().check(version_of(&before))?;
    let audit = with_change(call.audit("event-type.delete", &entry.name, None), Some(&before), None);
    call.configure(Change::DeleteEventType { name: entry.name }, audit).await?.map_err(refused)?;
    Ok(no_content())
}

fn shown(status: StatusCode, entry: &Entry) -> Response {
    tagged(answer(status, &view(entry)), version_of(&document(entry)))
}

async fn find(call: &Call) -> Result<Entry, Problem> {
    let name = EventType::parse(&call.name).map_err(|_| Problem::not_found())?;
    let entries = call.app.store.event_types().await?;
    entries.into_iter().find(|entry| entry.name == name).ok_or_else(Problem::not_found)
}

impl EventTypeBody {
    fn lay_over(self, mut entry: Entry, now: Timestamp) -> Result<Entry, Problem> {
        entry.description = self.description.over(entry.description, |text| {
            Description::parse(&text).map(|text| text.to_string()).map_err(|error| Problem::invalid("description", error))
        })?;
        entry.versions = self.versions.over(entry.versions, read_versions)?;
        entry.is_priority = self.priority.over(entry.is_priority, Ok)?;
        let is_deprecated = self.deprecated.over(entry.deprecated_at.is_some(), Ok)?;
        entry.deprecated_at = is_deprecated.then(|| entry.deprecated_at.unwrap_or(now));
        Ok(entry)
    }
}

fn read_versions(given: Vec<VersionBody>) -> Result<Vec<(Version, Contract)>, Problem> {
    if given.len() > VERSIONS_MAX {
        return Err(Problem::invalid("versions", "at most 100 versions"));
    }
    let mut versions: Vec<(Version, Contract)> = Vec::new();
    for (index, body) in given.into_iter().enumerate() {
        let (version, contract) = body.read().map_err(|problem| problem.inside(&format!("versions[{index}]")))?;
        if versions.iter().any(|(known, _)| *known == version) {
            return Err(Problem::invalid(format!("versions[{index}].version"), "is named twice"));
        }
        versions.push((version, contract));
    }
    Ok(versions)
}

impl VersionBody {
    fn read(self) -> Result<(Version, Contract), Problem> {
        let version = Version::parse(&self.version).map_err(|error| Problem::invalid("version", error))?;
        let text = |field: &str, raw: Option<Box<RawValue>>| -> Result<Option<String>, Problem> {
            let Some(raw) = raw else { return Ok(None) };
            if raw.get().len() > SCHEMA_BYTES_MAX {
                return Err(Problem::invalid(field, "at most 64 KiB"));
            }
            json::check(raw.get(), json::DEPTH_MAX).map_err(|error| Problem::invalid(field, error))?;
            Ok(Some(raw.get().to_owned()))
        };
        let contract = Contract { schema: text("schema", self.schema)?, example: text("example", self.example)? };
        if let Some(schema) = &contract.schema {
            let validator = compile(schema).map_err(|error| Problem::invalid("schema", error))?;
            if let Some(example) = &contract.example {
                validate(&validator, example).map_err(|_| Problem::invalid("example", "does not match the schema beside it"))?;
            }
        }
        Ok((version, contract))
    }
}

fn view(entry: &Entry) -> EventTypeView {
    let raw = |text: &Option<String>| text.as_ref().and_then(|text| RawValue::from_string(text.clone()).ok());
    let version = |(version, contract): &(Version, Contract)| VersionBody {
        version: version.to_string(),
        schema: raw(&contract.schema),
        example: raw(&contract.example),
    };
    EventTypeView {
        name: entry.name.to_string(),
        description: entry.description.clone(),
        versions: entry.versions.iter().map(version).collect(),
        deprecated: entry.deprecated_at.is_some(),
        deprecated_at: entry.deprecated_at.map(Timestamp::to_rfc3339),
        priority: entry.is_priority,
    }
}

fn document(entry: &Entry) -> Value {
    document_of(&view(entry))
}
