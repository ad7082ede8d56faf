//! What publishing has to check about a type: the catalogue, with its schemas ready to be asked.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use jsonschema::{PatternOptions, Validator};
use posthaste_core::catalogue::{Check, Entry};
use posthaste_core::event::Event;
use posthaste_core::text::Version;
use serde_json::Value;

use crate::InvalidEvent;
use crate::computing::INLINE_BYTES_MAX;
pub use crate::schema_cost::STEPS_MAX;
use crate::schema_cost::{Costed, OverBudget};

/// A regular expression of a schema may grow to this when it is compiled. Matching is linear in the payload, and in this.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// Checks that take no more steps are made in place: some tenths of a millisecond.
const INLINE_STEPS_MAX: u64 = 2_000;
/// Schemas that are made ready in place.
const READY_IN_PLACE_BYTES_MAX: usize = 2 * 1024;

/// Made once for each state of the configuration, and asked for every event.
pub struct Catalogue {
    entries: HashMap<String, Entry>,
    /// By the text of the schema, which several versions may share. One that cannot be read any more checks nothing.
    validators: HashMap<String, Option<Arc<Schema>>>,
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.keys()).finish()
    }
}

impl Catalogue {
    pub fn new(entries: Vec<Entry>) -> Catalogue {
        Catalogue::renewed(entries, None)
    }

    /// The same, and schemas that were ready before are not made ready again: any change of the configuration makes a new catalogue.
    pub fn renewed(entries: Vec<Entry>, before: Option<&Catalogue>) -> Catalogue {
        let schemas = entries.iter().flat_map(|entry| &entry.versions).filter_map(|(_, contract)| contract.schema.as_ref());
        let known = |schema: &String| before.and_then(|before| before.validators.get(schema)).cloned();
        let ready = |schema: &String| known(schema).unwrap_or_else(|| compile(schema).ok().map(Arc::new));
        let validators = schemas.map(|schema| (schema.clone(), ready(schema))).collect();
        Catalogue { entries: entries.into_iter().map(|entry| (entry.name.to_string(), entry)).collect(), validators }
    }

    /// Whether hardly anything would have to be made ready for these.
    pub fn is_quick(entries: &[Entry], before: Option<&Catalogue>) -> bool {
        let schemas = entries.iter().flat_map(|entry| &entry.versions).filter_map(|(_, contract)| contract.schema.as_ref());
        let is_new = |schema: &&String| before.is_none_or(|before| !before.validators.contains_key(*schema));
        schemas.filter(is_new).map(String::len).sum::<usize>() <= READY_IN_PLACE_BYTES_MAX
    }

    /// Whether checking this takes so long that it has to be done where it holds up nobody.
    pub fn is_costly(&self, event_type: &str, version: Option<&str>, data: &str) -> bool {
        let Some(entry) = self.entries.get(event_type) else { return false };
        // A version that cannot be one is refused in no time.
        let Ok(version) = version.map(Version::parse).transpose() else { return false };
        let Check::Schema(schema) = entry.check(version.as_ref()) else { return false };
        let Some(Some(schema)) = self.validators.get(schema) else { return false };
        data.len() > INLINE_BYTES_MAX
            || serde_json::from_str(data).is_ok_and(|value| schema.costed.cost(&value, INLINE_STEPS_MAX).is_err())
    }

    /// Types that are not in it are fine.
    pub fn check(&self, event: &Event) -> Result<(), InvalidEvent> {
        let Some(entry) = self.entries.get(event.event_type.as_str()) else { return Ok(()) };
        match entry.check(event.version.as_ref()) {
            Check::Nothing => Ok(()),
            Check::UnknownVersion => Err(InvalidEvent::new("version", "this event type has versions, and this is not one of them")),
            Check::Schema(schema) => match self.validators.get(schema) {
                Some(Some(schema)) => validate(schema, event.data.as_str()),
                Some(None) | None => Ok(()),
            },
        }
    }
}

/// A schema that is ready to be asked.
pub struct Schema {
    validator: Validator,
    costed: Costed,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schema").field(&self.costed).finish()
    }
}

/// Makes a schema ready, or says what is wrong with it. It may refer only to itself: nothing is ever fetched.
pub fn compile(schema: &str) -> Result<Schema, String> {
    let schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
    let costed = Costed::new(schema.clone())?;
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    let validator = jsonschema::options().offline().with_pattern_options(patterns).build(&schema);
    Ok(Schema { validator: validator.map_err(|error| error.masked().to_string())?, costed })
}

/// Whether a payload is what a schema describes; the first thing that is not, by its place.
pub fn validate(schema: &Schema, data: &str) -> Result<(), InvalidEvent> {
    // A schema speaks of numbers and texts that a program can hold; JSON itself allows more.
    let value: Value = serde_json::from_str(data)
        .map_err(|error| InvalidEvent::new("data", format!("cannot be checked against its schema: {error}")))?;
    schema.costed.cost(&value, STEPS_MAX).map_err(|OverBudget| {
        InvalidEvent::new(
            "data",
            format!("cannot be checked against its schema within {STEPS_MAX} steps; make it smaller, or the schema simpler"),
        )
    })?;
    schema.validator.validate(&value).map_err(|error| {
        let place = error.instance_path().to_string();
        let field = format!("data{}", place.replace('/', "."));
        InvalidEvent::new(field, format!("does not match the schema: {}", error.masked()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_asked_and_nothing_is_fetched_for_it() {
        let validator = compile(r#"{"type": "object", "properties": {"amount": {"type": "integer", "minimum": 1}}}"#).unwrap();
        assert!(validate(&validator, r#"{"amount": 5}"#).is_ok());
        assert_eq!(validate(&validator, r#"{"amount": 0}"#).unwrap_err().field, "data.amount");
        assert_eq!(validate(&validator, r#"{"amount": 1e999}"#).unwrap_err().field, "data");
        for elsewhere in ["http://127.0.0.1:1/schema.json", "https://example.com/schema.json", "file:///etc/passwd"] {
            assert!(compile(&format!(r#"{{"$ref": "{elsewhere}"}}"#)).is_err(), "{elsewhere}");
        }
        for wrong in [r#"{"type": "nonsense"}"#, r#"{"minimum": "x"}"#, r#"{"pattern": "("}"#, "5"] {
            assert!(compile(wrong).is_err(), "{wrong}");
        }
        assert!(compile(r#"{"pattern": "(((((a{100}){100}){100}){100}){100})"}"#).is_err(), "a pattern that would fill memory");
    }
}
