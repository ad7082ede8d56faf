//! Conditions over an event's envelope: which of the subscribed events an endpoint wants.
//!
//! ```json
//! {"data.amount": {"$gte": 1000}, "$or": [{"data.currency": "EUR"}, {"labels": {"$in": ["vip"]}}]}
//! ```
//!
//! All conditions of an object must hold. A path goes through objects by name and through
//! arrays by index, or, where the next step is not an index, through every element; a test on
//! an array holds if it holds for the array itself or for any element. `{"data": {"amount": 5}}`
//! means the same as `{"data.amount": {"$eq": 5}}`. In a name, `\` takes the special meaning
//! from a following `.`, `$` or `\`.
//!
//! Evaluation is total: every filter gives an answer for every event. Many filters are asked
//! together and within a budget (`filter/set.rs`). Comparing unlike things is false, never an error; a missing value satisfies only
//! `$exists: false`, `$ne` and `$not`.

mod set;

use crate::event::Event;
use crate::json::{self, Json, Members};
use std::cmp::Ordering;
use std::collections::BTreeSet;

pub use set::{FilterSet, STEPS_MAX, TooCostly};

/// A filter is configuration, not a program.
pub const FILTER_BYTES_MAX: usize = 16 * 1024;
pub const FILTER_DEPTH_MAX: usize = 16;
/// Each may have to look at every element of a large array. Many alternatives for one value are one `$in`.
pub const CONDITIONS_MAX: usize = 100;

/// What a path may start with.
const FIELDS: [&str; 7] = ["id", "type", "version", "tenant", "timestamp", "labels", "data"];

/// The envelope as filters see it. Made once per event, whatever the number of endpoints.
#[derive(Debug)]
pub struct Subject(Json);

impl Subject {
    pub fn of(event: &Event) -> Subject {
        let text = |text: &str| Json::Text(text.to_owned());
        let data = json::read(event.data.as_str(), json::DEPTH_MAX).expect("checked when the event came in");
        Subject(Json::Object(Members::from_iter([
            ("id".to_owned(), text(event.id.as_str())),
            ("type".to_owned(), text(event.event_type.as_str())),
            ("version".to_owned(), event.version.as_ref().map_or(Json::Null, |version| text(version.as_str()))),
            ("tenant".to_owned(), text(event.tenant.as_str())),
            ("timestamp".to_owned(), Json::Text(event.timestamp.to_rfc3339())),
            ("labels".to_owned(), Json::Array(event.labels.iter().map(|label| text(label.as_str())).collect())),
            ("data".to_owned(), data),
        ])))
    }
}

/// A checked filter. `source` is kept as it came in, so that a user sees what they wrote.
#[derive(Clone, PartialEq, Debug)]
pub struct Filter {
    source: String,
    conditions: Vec<Condition>,
}

#[derive(Clone, PartialEq, Debug)]
enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
    At { path: Vec<String>, test: Test },
}

#[derive(Clone, PartialEq, Debug)]
enum Test {
    Exists,
    Equals(Json),
    OneOf(BTreeSet<Json>),
    /// `$gt`, `$gte`, `$lt` or `$lte`: the orderings that satisfy it.
    Ordered {
        by: Json,
        accepts: &'static [Ordering],
    },
    Prefix(String),
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct FilterError {
    /// Where in the filter, as a path such as `data.amount.$gte`.
    pub at: String,
    pub problem: String,
}

impl Filter {
    pub fn parse(source: &str) -> Result<Filter, FilterError> {
        let refuse = |problem: String| FilterError { at: "filter".to_owned(), problem };
        if source.len() > FILTER_BYTES_MAX {
            return Err(refuse(format!("a filter has at most {FILTER_BYTES_MAX} bytes")));
        }
        match json::read(source, FILTER_DEPTH_MAX).map_err(|error| refuse(error.to_string()))? {
            Json::Object(members) => {
                let conditions = parse_members(&members, &[])?;
                if conditions.iter().map(Condition::count).sum::<usize>() > CONDITIONS_MAX {
                    return Err(refuse(format!("a filter has at most {CONDITIONS_MAX} conditions; $in takes many values in one")));
                }
                Ok(Filter { source: source.to_owned(), conditions })
            }
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::Array(_) => {
                Err(refuse("a filter is an object of paths and conditions".to_owned()))
            }
        }
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn matches(&self, subject: &Subject) -> bool {
        self.conditions.iter().all(|condition| condition.holds(&subject.0))
    }
}

impl Condition {
    fn count(&self) -> usize {
        match self {
            Condition::All(inner) | Condition::Any(inner) => inner.iter().map(Condition::count).sum(),
            Condition::Not(inner) => inner.count(),
            Condition::At { .. } => 1,
        }
    }

    fn holds(&self, envelope: &Json) -> bool {
        match self {
            Condition::All(all) => all.iter().all(|condition| condition.holds(envelope)),
            Condition::Any(any) => any.iter().any(|condition| condition.holds(envelope)),
            Condition::Not(inner) => !inner.holds(envelope),
            Condition::At { path, test } => test.holds_below(envelope, path),
        }
    }
}

impl Test {
    fn holds_below(&self, value: &Json, path: &[String]) -> bool {
        let Some((step, rest)) = path.split_first() else {
            return self.holds(value);
        };
        match value {
            Json::Object(members) => members.get(step).is_some_and(|member| self.holds_below(member, rest)),
            Json::Array(items) => match step.parse::<usize>() {
                Ok(index) => items.get(index).is_some_and(|item| self.holds_below(item, rest)),
                Err(_) => items.iter().any(|item| self.holds_below(item, path)),
            },
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) => false,
        }
    }

    fn holds(&self, value: &Json) -> bool {
        self.holds_for(value) || matches!(value, Json::Array(items) if items.iter().any(|item| self.holds_for(item)))
    }

    fn holds_for(&self, value: &Json) -> bool {
        match self {
            Test::Exists => true,
            Test::Equals(operand) => value == operand,
            Test::OneOf(operands) => operands.contains(value),
            Test::Ordered { by, accepts } => value.order(by).is_some_and(|order| accepts.contains(&order)),
            Test::Prefix(prefix) => matches!(value, Json::Text(text) if text.starts_with(prefix)),
        }
    }
}

fn parse_members(members: &Members, path: &[String]) -> Result<Vec<Condition>, FilterError> {
    members
        .iter()
        .map(|(name, value)| {
            if let Some(operator) = name.strip_prefix('$') {
                parse_operator(operator, value, path)
            } else {
                parse_path(name, value, path)
            }
        })
        .collect()
}

fn parse_path(name: &str, value: &Json, above: &[String]) -> Result<Condition, FilterError> {
    let mut path = above.to_vec();
    path.extend(split_path(name));
    let refuse = |problem: &str| FilterError { at: path.join("."), problem: problem.to_owned() };
    if path.iter().any(String::is_empty) {
        return Err(refuse("a path has a name between any two dots"));
    }
    if !FIELDS.contains(&path[0].as_str()) {
        return Err(refuse("a path starts with one of id, type, version, tenant, timestamp, labels, data"));
    }
    match value {
        Json::Object(members) if members.is_empty() => {
            Err(refuse("an empty object says nothing; to compare with one, write {\"$eq\": {}}"))
        }
        Json::Object(members) => Ok(Condition::All(parse_members(members, &path)?)),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::Array(_) => {
            Ok(Condition::At { path, test: Test::Equals(value.clone()) })
        }
    }
}

fn parse_operator(operator: &str, operand: &Json, path: &[String]) -> Result<Condition, FilterError> {
    let refuse = |problem: &str| {
        let at = path.iter().map(String::as_str).chain([format!("${operator}").as_str()]).collect::<Vec<_>>().join(".");
        FilterError { at, problem: problem.to_owned() }
    };
    let each = |operand: &Json| -> Result<Vec<Condition>, FilterError> {
        let items = non_empty(operand).ok_or_else(|| refuse("takes a list of at least one condition"))?;
        items.iter().map(|item| parse_group(item, path, &refuse)).collect()
    };
    match operator {
        "and" => return Ok(Condition::All(each(operand)?)),
        "or" => return Ok(Condition::Any(each(operand)?)),
        "not" => return Ok(Condition::Not(Box::new(parse_group(operand, path, &refuse)?))),
        _ => {}
    }
    if path.is_empty() {
        return Err(refuse("stands under a path, such as {\"data.amount\": {\"$gte\": 1000}}; at the top only $and, $or and $not"));
    }
    let at = |test: Test| Condition::At { path: path.to_vec(), test };
    let ordered = |accepts: &'static [Ordering]| match operand {
        Json::Number(_) | Json::Text(_) => Ok(at(Test::Ordered { by: operand.clone(), accepts })),
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => Err(refuse("compares with a number or a string")),
    };
    match operator {
        "eq" => Ok(at(Test::Equals(operand.clone()))),
        "ne" => Ok(Condition::Not(Box::new(at(Test::Equals(operand.clone()))))),
        "in" => {
            let items = non_empty(operand).ok_or_else(|| refuse("takes a list of at least one value"))?;
            Ok(at(Test::OneOf(items.iter().cloned().collect())))
        }
        "gt" => ordered(&[Ordering::Greater]),
        "gte" => ordered(&[Ordering::Greater, Ordering::Equal]),
        "lt" => ordered(&[Ordering::Less]),
        "lte" => ordered(&[Ordering::Less, Ordering::Equal]),
        "exists" => {
            let Json::Bool(wanted) = operand else { return Err(refuse("takes true or false")) };
            Ok(if *wanted { at(Test::Exists) } else { Condition::Not(Box::new(at(Test::Exists))) })
        }
        "prefix" => {
            let Json::Text(prefix) = operand else { return Err(refuse("takes a string")) };
            Ok(at(Test::Prefix(prefix.clone())))
        }
        _ => Err(refuse("is not an operator; there are $eq, $ne, $in, $gt, $gte, $lt, $lte, $exists, $prefix, $and, $or, $not")),
    }
}

/// What stands under `$and`, `$or`, `$not`: an object of conditions, about the same path as they are.
fn parse_group(json: &Json, path: &[String], refuse: &dyn Fn(&str) -> FilterError) -> Result<Condition, FilterError> {
    if let Json::Object(members) = json
        && !members.is_empty()
    {
        return Ok(Condition::All(parse_members(members, path)?));
    }
    Err(refuse("takes objects of conditions"))
}

fn non_empty(json: &Json) -> Option<&[Json]> {
    if let Json::Array(items) = json
        && !items.is_empty()
    {
        return Some(items);
    }
    None
}

fn split_path(name: &str) -> Vec<String> {
    let mut steps = vec![String::new()];
    let mut characters = name.chars();
    while let Some(character) = characters.next() {
        let step = steps.last_mut().expect("starts with one step and only grows");
        match character {
            '.' => steps.push(String::new()),
            '\\' => step.push(characters.next().unwrap_or('\\')),
            other => step.push(other),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::event;

    fn check(filter: &str, data: &str, expected: bool) {
        let subject = Subject::of(&event("invoice.paid", data));
        let parsed = Filter::parse(filter).unwrap();
        assert_eq!(parsed.matches(&subject), expected, "{filter} on {data}");
    }

    #[test]
    fn each_operator_means_what_its_name_says() {
        for (condition, yes, no) in [
            (r#"{"$eq": 5}"#, "5.0", "6"),
            (r#"{"$ne": 5}"#, "6", "5"),
            (r#"{"$in": [1, "a", null]}"#, r#""a""#, r#""b""#),
            (r#"{"$gt": 9007199254740992}"#, "9007199254740993", "9007199254740992"),
            (r#"{"$gte": 1000}"#, "1000", "999.999999999999999999999"),
            (r#"{"$lt": "b"}"#, r#""a""#, r#""b""#),
            (r#"{"$lte": -1}"#, "-1", "0"),
            (r#"{"$exists": true}"#, "null", "missing"),
            (r#"{"$exists": false}"#, "missing", "0"),
            (r#"{"$prefix": "inv_"}"#, r#""inv_1""#, r#""in""#),
            (r#"{"$not": {"$gt": 5}}"#, "5", "6"),
            (r#"{"$not": {"$gt": 5}}"#, "missing", "6"),
            (r#"{"$or": [{"$lt": 1}, {"$gt": 5}]}"#, "6", "3"),
            (r#"{"$and": [{"$gt": 1}, {"$lt": 5}]}"#, "3", "5"),
            (r#"{"$gt": 1, "$lt": 5}"#, "3", "6"),
            (r#"{"$eq": {"b": [1], "c": null}}"#, r#"{"c": null, "b": [1e0]}"#, r#"{"b": [1]}"#),
            (r#""EUR""#, r#""EUR""#, r#""eur""#),
            ("null", "null", "missing"),
            ("true", "true", "1"),
            ("[1, 2]", "[1, 2]", "[2, 1]"),
        ] {
            let with = |value: &str| if value == "missing" { "{}".to_owned() } else { format!(r#"{{"a": {value}}}"#) };
            check(&format!(r#"{{"data.a": {condition}}}"#), &with(yes), true);
            check(&format!(r#"{{"data.a": {condition}}}"#), &with(no), false);
            // Written as nested objects it is the same filter.
            if condition.starts_with('{') {
                check(&format!(r#"{{"data": {{"a": {condition}}}}}"#), &with(yes), true);
                check(&format!(r#"{{"data": {{"a": {condition}}}}}"#), &with(no), false);
            }
        }
    }

    #[test]
    fn paths_go_through_arrays_by_index_or_through_every_element() {
        let data = r#"{"items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 7}], "tags": ["x", "y"]}"#;
        check(r#"{"data.items.1.sku": "b"}"#, data, true);
        check(r#"{"data.items.0.sku": "b"}"#, data, false);
        check(r#"{"data.items.2.sku": {"$exists": true}}"#, data, false);
        check(r#"{"data.items.sku": "b"}"#, data, true);
        check(r#"{"data.items.n": {"$gt": 7}}"#, data, false);
        check(r#"{"data.tags": "y"}"#, data, true);
        check(r#"{"data.tags": {"$ne": "y"}}"#, data, false);
        check(r#"{"data.tags": {"$in": ["z", "x"]}}"#, data, true);
        check(r#"{"data.tags.sku": {"$exists": true}}"#, data, false);
    }

    #[test]
    fn the_whole_envelope_can_be_asked_about() {
        check(r#"{"type": {"$prefix": "invoice."}, "tenant": "acme"}"#, "1", true);
        check(r#"{"labels": "vip"}"#, "1", true);
        check(r#"{"labels": {"$in": ["beta", "vip"]}}"#, "1", true);
        check(r#"{"labels": "gold"}"#, "1", false);
        check(r#"{"version": null}"#, "1", true);
        check(r#"{"timestamp": {"$lt": "2030"}}"#, "1", true);
        check(r#"{"data": 1}"#, "1", true);
        check("{}", "1", true);
        check(r#"{"data.a\\.b.\\$c": 1}"#, r#"{"a.b": {"$c": 1}}"#, true);
    }

    #[test]
    fn every_valid_payload_gets_an_answer_however_odd() {
        check(r#"{"data.a": {"$gt": 1e300}}"#, r#"{"a": 1e999}"#, true);
        check(r#"{"data.a": {"$prefix": "x"}}"#, r#"{"a": "\ud800"}"#, false);
        check(r#"{"data.a": {"$eq": 12345678901234567890123}}"#, r#"{"a": 12345678901234567890124}"#, false);
    }

    #[test]
    fn a_filter_that_could_not_mean_anything_is_refused_where_it_is_wrong() {
        for (filter, error) in [
            ("[]", "filter: a filter is an object of paths and conditions"),
            ("{", "filter: not JSON: expected a member's name in quotes at byte 1"),
            (r#"{"amount": 5}"#, "amount: a path starts with one of id, type, version, tenant, timestamp, labels, data"),
            (r#"{"data..a": 5}"#, "data..a: a path has a name between any two dots"),
            (
                r#"{"data.a": {"$near": 5}}"#,
                "data.a.$near: is not an operator; there are $eq, $ne, $in, $gt, $gte, $lt, $lte, $exists, $prefix, $and, $or, $not",
            ),
            (r#"{"data.a": {"$gt": true}}"#, "data.a.$gt: compares with a number or a string"),
            (r#"{"data.a": {"$in": []}}"#, "data.a.$in: takes a list of at least one value"),
            (r#"{"data.a": {"$exists": 1}}"#, "data.a.$exists: takes true or false"),
            (r#"{"data.a": {}}"#, "data.a: an empty object says nothing; to compare with one, write {\"$eq\": {}}"),
            (r#"{"$or": []}"#, "$or: takes a list of at least one condition"),
            (r#"{"$or": [5]}"#, "$or: takes objects of conditions"),
            (r#"{"$not": 5}"#, "$not: takes objects of conditions"),
            (
                r#"{"$eq": 5}"#,
                "$eq: stands under a path, such as {\"data.amount\": {\"$gte\": 1000}}; at the top only $and, $or and $not",
            ),
        ] {
            assert_eq!(Filter::parse(filter).unwrap_err().to_string(), error);
        }
        assert!(Filter::parse(&format!(r#"{{"data": "{}"}}"#, "x".repeat(FILTER_BYTES_MAX))).is_err());
        let many = |count: usize| format!(r#"{{"$or": [{}]}}"#, vec![r#"{"data.a": 1}"#; count].join(","));
        assert!(Filter::parse(&many(100)).is_ok());
        assert!(Filter::parse(&many(101)).unwrap_err().problem.starts_with("a filter has at most 100 conditions"));
        let deep = r#"{"$not":"#.repeat(17) + r#"{"data":1}"# + &"}".repeat(17);
        assert_eq!(Filter::parse(&deep).unwrap_err().problem, "nested more than 16 levels deep");
    }
}
