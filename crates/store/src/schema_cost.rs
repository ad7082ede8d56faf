//! What it costs to check a payload against a JSON Schema, counted before it is done.
//!
//! The library that checks has no limit of its own: forty definitions of which each refers twice to the next are a page of text and 2⁴⁰
//! checks. So the same walk is made here first, over the schema and the payload, and every keyword that would be looked at is a step.
//! It never stops early, so that it counts at least what the library can do: a branch that would be left out is counted, and
//! a pattern is taken to match. References lead into the schema itself, and nowhere else.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

/// What one payload may cost. Some tens of milliseconds.
pub const STEPS_MAX: u64 = 1_000_000;
/// What a schema may cost at one place of a payload, whatever the payload: references that multiply are found when the schema is made.
const STEPS_IN_PLACE_MAX: u64 = 10_000;
/// Schemas within schemas, through references. The library uses the stack as this walk does.
const DEPTH_MAX: usize = 256;
/// Bytes of a text that one step matches against a pattern.
const PATTERN_STEP_BYTES: usize = 4;
/// The library looks again at what other keywords have looked at, for each `unevaluatedProperties` and `unevaluatedItems`.
const UNEVALUATED_FACTOR: usize = 3;
/// Comparing each element with the others, by their digests.
const UNIQUE_STEPS: u64 = 16;

/// A schema whose cost can be counted.
#[derive(Debug)]
pub(crate) struct Costed {
    schema: Value,
    /// Where each reference leads: a JSON pointer.
    references: HashMap<String, String>,
}

/// It costs more than it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OverBudget;

impl Costed {
    pub(crate) fn new(schema: Value) -> Result<Costed, String> {
        let mut found = Found::default();
        collect(&schema, &mut String::new(), true, &mut found)?;
        let root = found.root_id.as_deref().unwrap_or_default();
        let mut references = HashMap::new();
        for reference in found.references {
            let local = reference.strip_prefix(root.trim_end_matches('#')).filter(|rest| rest.starts_with('#'));
            let Some(fragment) = local.or(reference.strip_prefix('#').map(|_| reference.as_str())).map(|text| &text[1..]) else {
                return Err(format!("`{reference}` leads out of the schema; a reference begins with #"));
            };
            let decoded = percent_decode_str(fragment).decode_utf8_lossy().into_owned();
            let pointer = if decoded.is_empty() || decoded.starts_with('/') {
                decoded
            } else {
                found.anchors.get(&decoded).cloned().ok_or_else(|| format!("`{reference}` leads nowhere"))?
            };
            if schema.pointer(&pointer).is_none() {
                return Err(format!("`{reference}` leads nowhere"));
            }
            references.insert(reference, pointer);
        }
        let costed = Costed { schema, references };
        for pointer in &found.schemas {
            let start = costed.schema.pointer(pointer).expect("found there");
            let mut count = Count { costed: &costed, left: STEPS_IN_PLACE_MAX };
            count.in_place(start, 0).map_err(|OverBudget| {
                format!(
                    "its references multiply: more than {STEPS_IN_PLACE_MAX} steps for one value, or more than {DEPTH_MAX} levels"
                )
            })?;
        }
        Ok(costed)
    }

    pub(crate) fn cost(&self, payload: &Value, steps_max: u64) -> Result<u64, OverBudget> {
        let mut count = Count { costed: self, left: steps_max };
        count.schema(&self.schema, payload, 0)?;
        Ok(steps_max - count.left)
    }
}

#[derive(Default)]
struct Found {
    root_id: Option<String>,
    references: Vec<String>,
    anchors: HashMap<String, String>,
    /// Every place that has a schema.
    schemas: Vec<String>,
}

/// How the value of a keyword is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// One schema, for the same value.
    InPlace,
    /// A list of schemas, for the same value.
    InPlaceList,
    /// Schemas by the name of a member that has to be there, for the same value. Lists of names mean nothing here.
    InPlaceMap,
    /// Something to refer to.
    Definitions,
    Members,
    MembersByPattern,
    EveryMember,
    MemberNames,
    /// One schema for every element, or a list of schemas by place.
    Elements,
    ElementsByPlace,
}

fn holds(keyword: &str) -> Option<Holds> {
    Some(match keyword {
        "not" | "if" | "then" | "else" => Holds::InPlace,
        "allOf" | "anyOf" | "oneOf" => Holds::InPlaceList,
        "dependentSchemas" | "dependencies" => Holds::InPlaceMap,
        "$defs" | "definitions" => Holds::Definitions,
        "properties" => Holds::Members,
        "patternProperties" => Holds::MembersByPattern,
        "additionalProperties" | "unevaluatedProperties" => Holds::EveryMember,
        "propertyNames" => Holds::MemberNames,
        "items" | "additionalItems" | "unevaluatedItems" | "contains" => Holds::Elements,
        "prefixItems" => Holds::ElementsByPlace,
        _ => return None,
    })
}

const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Finds every schema, where it can be referred to, and what it refers to.
fn collect(schema: &Value, at: &mut String, is_root: bool, found: &mut Found) -> Result<(), String> {
    let Value::Object(keywords) = schema else { return Ok(()) };
    found.schemas.push(at.clone());
    for (name, value) in keywords {
        match (name.as_str(), value) {
            ("$id" | "id", Value::String(id)) if is_root => found.root_id = Some(id.clone()),
            ("$id", Value::String(_)) => return Err("only the schema as a whole may have an `$id`".to_owned()),
            ("$anchor" | "$dynamicAnchor", Value::String(anchor)) => {
                let before = found.anchors.insert(anchor.clone(), at.clone());
                if before.is_some_and(|before| before != *at) {
                    return Err(format!("the anchor `{anchor}` is named twice"));
                }
            }
            (keyword, Value::String(reference)) if REFERENCES.contains(&keyword) => found.references.push(reference.clone()),
            _ => {}
        }
        let Some(holds) = holds(name) else { continue };
        let length = at.len();
        at.push('/');
        at.push_str(&escaped(name));
        match (holds, value) {
            (Holds::InPlaceMap | Holds::Definitions | Holds::Members | Holds::MembersByPattern, Value::Object(map)) => {
                for (name, inner) in map {
                    let length = at.len();
                    at.push('/');
                    at.push_str(&escaped(name));
                    collect(inner, at, false, found)?;
                    at.truncate(length);
                }
            }
            (_, Value::Array(list)) => {
                for (place, inner) in list.iter().enumerate() {
                    let length = at.len();
                    at.push('/');
                    at.push_str(&place.to_string());
                    collect(inner, at, false, found)?;
                    at.truncate(length);
                }
            }
            (_, inner) => collect(inner, at, false, found)?,
        }
        at.truncate(length);
    }
    Ok(())
}

/// As a JSON pointer has it.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

struct Count<'a> {
    costed: &'a Costed,
    left: u64,
}

impl<'a> Count<'a> {
    fn spend(&mut self, steps: usize) -> Result<(), OverBudget> {
        self.left = self.left.checked_sub(steps as u64).ok_or(OverBudget)?;
        Ok(())
    }

    fn target(&self, keyword: &str, value: &Value) -> Option<&'a Value> {
        if !REFERENCES.contains(&keyword) {
            return None;
        }
        self.costed.schema.pointer(self.costed.references.get(value.as_str()?)?)
    }

    /// What is looked at for one value, whatever it is, without what is inside of it.
    fn in_place(&mut self, schema: &'a Value, depth: usize) -> Result<(), OverBudget> {
        let Value::Object(keywords) = schema else { return Ok(()) };
        if depth > DEPTH_MAX {
            return Err(OverBudget);
        }
        self.spend(1)?;
        for (name, value) in keywords {
            if let Some(target) = self.target(name, value) {
                self.in_place(target, depth + 1)?;
            }
            match (holds(name), value) {
                (Some(Holds::InPlace), inner) => self.in_place(inner, depth + 1)?,
                (Some(Holds::InPlaceList), Value::Array(list)) => {
                    for inner in list {
                        self.in_place(inner, depth + 1)?;
                    }
                }
                (Some(Holds::InPlaceMap), Value::Object(map)) => {
                    for inner in map.values() {
                        self.in_place(inner, depth + 1)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn schema(&mut self, schema: &'a Value, payload: &Value, depth: usize) -> Result<(), OverBudget> {
        self.spend(1)?;
        let Value::Object(keywords) = schema else { return Ok(()) };
        if depth > DEPTH_MAX {
            return Err(OverBudget);
        }
        self.spend(keywords.len())?;
        let rounds = ["unevaluatedProperties", "unevaluatedItems"].iter().any(|name| keywords.contains_key(*name));
        for _ in 0..if rounds { UNEVALUATED_FACTOR } else { 1 } {
            for (name, value) in keywords {
                self.keyword(keywords, name, value, payload, depth)?;
            }
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        keywords: &'a Map<String, Value>,
        name: &str,
        value: &'a Value,
        payload: &Value,
        depth: usize,
    ) -> Result<(), OverBudget> {
        if let Some(target) = self.target(name, value) {
            self.schema(target, payload, depth + 1)?;
        }
        match (name, payload) {
            ("pattern" | "format", Value::String(text)) => self.spend(text.len() / PATTERN_STEP_BYTES)?,
            ("enum" | "const", _) | ("required" | "dependentRequired", Value::Object(_)) => self.spend(size(value))?,
            ("uniqueItems", Value::Array(_)) => {
                self.spend(usize::try_from(UNIQUE_STEPS).expect("a small number").saturating_mul(size(payload)))?;
            }
            _ => {}
        }
        match (holds(name), value, payload) {
            (Some(Holds::InPlace), inner, _) => self.schema(inner, payload, depth + 1),
            (Some(Holds::InPlaceList), Value::Array(list), _) => {
                list.iter().try_for_each(|inner| self.schema(inner, payload, depth + 1))
            }
            (Some(Holds::InPlaceMap), Value::Object(map), _) => {
                map.values().try_for_each(|inner| self.schema(inner, payload, depth + 1))
            }
            (Some(Holds::Members), Value::Object(map), Value::Object(members)) => {
                self.spend(map.len())?;
                map.iter().try_for_each(|(name, inner)| match members.get(name) {
                    Some(member) => self.schema(inner, member, depth + 1),
                    None => Ok(()),
                })
            }
            (Some(Holds::MembersByPattern), Value::Object(map), Value::Object(members)) => map.values().try_for_each(|inner| {
                members.iter().try_for_each(|(name, member)| {
                    self.spend(1 + name.len() / PATTERN_STEP_BYTES)?;
                    self.schema(inner, member, depth + 1)
                })
            }),
            (Some(Holds::EveryMember), inner, Value::Object(members)) => {
                let named = keywords.get("properties").and_then(Value::as_object);
                members.iter().try_for_each(|(name, member)| {
                    self.spend(1)?;
                    if named.is_some_and(|named| named.contains_key(name)) {
                        return Ok(());
                    }
                    self.schema(inner, member, depth + 1)
                })
            }
            (Some(Holds::MemberNames), inner, Value::Object(members)) => {
                members.keys().try_for_each(|name| self.schema(inner, &Value::String(name.clone()), depth + 1))
            }
            (Some(Holds::Elements | Holds::ElementsByPlace), Value::Array(list), Value::Array(elements)) => {
                list.iter().zip(elements).try_for_each(|(inner, element)| self.schema(inner, element, depth + 1))
            }
            (Some(Holds::Elements), inner, Value::Array(elements)) => {
                elements.iter().try_for_each(|element| self.schema(inner, element, depth + 1))
            }
            _ => Ok(()),
        }
    }
}

/// How many values there are in it.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) => 1 + text.len() / 64,
        Value::Array(list) => list.iter().map(size).sum::<usize>() + 1,
        Value::Object(members) => members.values().map(|member| 1 + size(member)).sum::<usize>() + 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each level refers twice to the next, for the same value (`$ref`) or for a member of it.
    fn doubling(levels: usize, is_in_place: bool) -> Value {
        let mut definitions = Map::new();
        for level in 0..levels {
            let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
            let inner = if is_in_place {
                json!({"allOf": [next.clone(), next]})
            } else {
                json!({"properties": {"a": next.clone()}, "additionalProperties": true, "patternProperties": {"a": next}})
            };
            definitions.insert(format!("l{level}"), inner);
        }
        definitions.insert(format!("l{levels}"), json!({"type": "object"}));
        json!({"$ref": "#/$defs/l0", "$defs": definitions})
    }

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!({}), |inner, _| json!({"a": inner}))
    }

    #[test]
    fn references_that_multiply_for_one_value_are_refused_when_the_schema_is_made() {
        assert!(Costed::new(doubling(40, true)).unwrap_err().contains("multiply"));
        assert!(Costed::new(json!({"$ref": "#"})).unwrap_err().contains("multiply"), "it refers to itself");
        assert!(Costed::new(json!({"anyOf": [{"type": "null"}, {"$ref": "#"}]})).is_err());
        assert!(Costed::new(doubling(10, true)).is_ok());
    }

    #[test]
    fn references_that_multiply_with_the_payload_are_stopped_by_the_budget() {
        let costed = Costed::new(doubling(40, false)).unwrap();
        assert_eq!(costed.cost(&nested(40), STEPS_MAX), Err(OverBudget));
        assert!(costed.cost(&nested(5), STEPS_MAX).unwrap() < 1_000);
    }

    #[test]
    fn an_ordinary_schema_costs_about_as_much_as_its_payload_has_values() {
        let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {
            "type": "object", "required": ["name"],
            "properties": {"name": {"type": "string", "minLength": 1}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}}});
        let costed = Costed::new(tree).unwrap();
        let payload = json!({"name": "root", "children": vec![json!({"name": "leaf", "children": []}); 1_000]});
        let cost = costed.cost(&payload, STEPS_MAX).unwrap();
        assert!((10_000..50_000).contains(&cost), "{cost}");
    }

    #[test]
    fn a_reference_leads_into_the_schema_and_nowhere_else() {
        for wrong in [
            json!({"$ref": "https://example.com/x.json"}),
            json!({"$ref": "other.json#/a"}),
            json!({"$ref": "#/$defs/none"}),
            json!({"$ref": "#none"}),
            json!({"properties": {"a": {"$id": "inner", "type": "string"}}}),
        ] {
            assert!(Costed::new(wrong.clone()).is_err(), "{wrong}");
        }
        for right in [
            json!({"$id": "https://example.com/a", "properties": {"a": {"$ref": "https://example.com/a#/$defs/b"}}, "$defs": {"b": {}}}),
            json!({"properties": {"a": {"$ref": "#b"}}, "$defs": {"x/y": {"$anchor": "b"}}}),
            json!({"properties": {"a": {"$ref": "#/$defs/x~1y%20z"}}, "$defs": {"x/y z": {}}}),
            json!({"properties": {"id": {"$ref": "#"}}}),
            json!({"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}}),
            json!(true),
        ] {
            assert!(Costed::new(right.clone()).is_ok(), "{right}: {:?}", Costed::new(right.clone()).err());
        }
    }
}
