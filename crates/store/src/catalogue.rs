//! What publishing has to check about a type: the catalogue, with its schemas ready to be asked.

use std::collections::HashMap;
use std::fmt;

use jsonschema::{PatternOptions, Validator};
use posthaste_core::catalogue::{Check, Entry};
use posthaste_core::event::Event;
use serde_json::Value;

use crate::Refused;

/// A regular expression of a schema may grow to this when it is compiled; matching is linear in the payload.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;

/// Made once for each state of the configuration, and asked for every event.
pub struct Catalogue {
    entries: HashMap<String, Entry>,
    /// By the text of the schema, which several versions may share. One that cannot be read any more checks nothing.
    validators: HashMap<String, Option<Validator>>,
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.keys()).finish()
    }
}

impl Catalogue {
    pub fn new(entries: Vec<Entry>) -> Catalogue {
        let schemas = entries.iter().flat_map(|entry| &entry.versions).filter_map(|(_, contract)| contract.schema.as_ref());
        let validators = schemas.map(|schema| (schema.clone(), compile(schema).ok())).collect();
        Catalogue { entries: entries.into_iter().map(|entry| (entry.name.to_string(), entry)).collect(), validators }
    }

    /// Types that are not in it are fine.
    pub fn check(&self, event: &Event) -> Result<(), Refused> {
        let Some(entry) = self.entries.get(event.event_type.as_str()) else { return Ok(()) };
        match entry.check(event.version.as_ref()) {
            Check::Nothing => Ok(()),
            Check::UnknownVersion => Err(Refused::new("version", "this event type has versions, and this is not one of them")),
            Check::Schema(schema) => match self.validators.get(schema) {
                Some(Some(validator)) => validate(validator, event.data.as_str()),
                Some(None) | None => Ok(()),
            },
        }
    }
}

/// Makes a schema ready, or says what is wrong with it. It may refer only to itself: nothing is ever fetched.
pub fn compile(schema: &str) -> Result<Validator, String> {
    let schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    jsonschema::options().offline().with_pattern_options(patterns).build(&schema).map_err(|error| error.masked().to_string())
}

/// Whether a payload is what a schema describes; the first thing that is not, by its place.
pub fn validate(validator: &Validator, data: &str) -> Result<(), Refused> {
    // A schema speaks of numbers and texts that a program can hold; JSON itself allows more.
    let value: Value = serde_json::from_str(data)
        .map_err(|error| Refused::new("data", format!("cannot be checked against its schema: {error}")))?;
    validator.validate(&value).map_err(|error| {
        let place = error.instance_path().to_string();
        let field = format!("data{}", place.replace('/', "."));
        Refused::new(field, format!("does not match the schema: {}", error.masked()))
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
