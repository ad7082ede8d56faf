//! The filter is total: every text that can be read as a filter answers for every event, and keeps the laws of logic. Where
//! a general JSON library can hold all values, it answers the same as an evaluator written over that, case by case from
//! the words of the guide.

use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::filter::{Filter, FilterSet, Subject};
use posthaste_core::id::{EventId, TenantId};
use posthaste_core::text::{Label, Labels};
use posthaste_core::time::Timestamp;
use proptest::prelude::*;
use serde_json::Value;
use std::cmp::Ordering;

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "0", "1", "items", "$eq", "a.b", "é", "", "\\\\"]).prop_map(str::to_owned)
}

/// Any JSON, written with any of the liberties that JSON takes.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i32>().prop_map(|n| n.to_string()),
        (-5i32..5).prop_map(|n| n.to_string()),
        Just("1e999".to_owned()),
        Just("12345678901234567890123.5".to_owned()),
        Just("\"\\ud800\"".to_owned()),
        prop::sample::select(vec!["\"a\"", "\"b\"", "\"ab\"", "\"\"", "\"\\u0061\""]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[ {} ]", items.join(" ,"))),
            prop::collection::vec((name(), inner), 0..4).prop_map(|members| {
                let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

/// Conditions that stand under a path.
fn conditions() -> impl Strategy<Value = String> {
    let operator = prop_oneof![
        (prop::sample::select(vec!["$eq", "$ne"]), json()).prop_map(|(operator, operand)| format!("\"{operator}\": {operand}")),
        (prop::sample::select(vec!["$gt", "$gte", "$lt", "$lte"]), prop::sample::select(vec!["0", "1.5", "\"a\"", "-1e999"]))
            .prop_map(|(operator, operand)| format!("\"{operator}\": {operand}")),
        prop::collection::vec(json(), 1..4).prop_map(|operands| format!("\"$in\": [{}]", operands.join(","))),
        any::<bool>().prop_map(|exists| format!("\"$exists\": {exists}")),
        Just("\"$prefix\": \"a\"".to_owned()),
    ];
    operator.prop_map(|operator| format!("{{{operator}}}"))
}

fn filter() -> impl Strategy<Value = String> {
    let path = prop::sample::select(vec![
        "data",
        "data.a",
        "data.b.a",
        "data.0",
        "data.0.a",
        "data.a.1.0",
        "data.1.b",
        "data.items.a",
        "data.a\\\\.b",
        "labels",
        "type",
        "version",
    ]);
    let leaf = (path, conditions()).prop_map(|(path, conditions)| format!("{{\"{path}\": {conditions}}}"));
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|list| format!("{{\"$and\": [{}]}}", list.join(","))),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|list| format!("{{\"$or\": [{}]}}", list.join(","))),
            inner.prop_map(|one| format!("{{\"$not\": {one}}}")),
        ]
    })
}

pub(crate) fn subject(data: &str) -> Subject {
    let now = Timestamp::from_millis(0);
    Subject::of(&Event {
        id: EventId::parse("e").unwrap(),
        tenant: TenantId::parse("t").unwrap(),
        event_type: EventType::parse("a.b").unwrap(),
        version: None,
        timestamp: now,
        accepted_at: now,
        data: Data::parse(data).unwrap(),
        labels: Labels::new(vec![Label::parse("a").unwrap()]).unwrap(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    })
}

fn matches(filter: &str, subject: &Subject) -> bool {
    Filter::parse(filter).unwrap_or_else(|error| panic!("{filter}: {error}")).matches(subject)
}

proptest! {
    #![proptest_config(super::cases(200_000))]

    #[test]
    fn every_filter_answers_for_every_event_and_keeps_the_laws_of_logic(data in json(), a in filter(), b in filter()) {
        let subject = subject(&data);
        let (holds_a, holds_b) = (matches(&a, &subject), matches(&b, &subject));
        prop_assert_eq!(matches(&format!("{{\"$not\": {a}}}"), &subject), !holds_a);
        prop_assert_eq!(matches(&format!("{{\"$and\": [{a}, {b}]}}"), &subject), holds_a && holds_b);
        prop_assert_eq!(matches(&format!("{{\"$or\": [{a}, {b}]}}"), &subject), holds_a || holds_b);
    }

    #[test]
    fn any_json_as_a_filter_is_read_or_refused_and_never_worse(text in json(), data in json()) {
        if let Ok(filter) = Filter::parse(&text) {
            let _ = filter.matches(&subject(&data));
        }
    }

    #[test]
    fn filters_that_are_asked_together_answer_as_each_does_alone(data in json(), filters in prop::collection::vec(filter(), 1..6)) {
        let subject = subject(&data);
        let filters: Vec<Filter> = filters.iter().map(|filter| Filter::parse(filter).unwrap()).collect();
        let alone: Vec<bool> = filters.iter().map(|filter| filter.matches(&subject)).collect();
        let places: Vec<usize> = (0..filters.len()).collect();
        let set = FilterSet::new(&filters);
        prop_assert_eq!(&set.matches(&subject, &places, u64::MAX).unwrap().0, &alone);
        let odd: Vec<usize> = places.into_iter().filter(|place| place % 2 == 1).collect();
        let alone: Vec<bool> = odd.iter().map(|place| alone[*place]).collect();
        prop_assert_eq!(set.matches(&subject, &odd, u64::MAX).unwrap().0, alone);
    }

    #[test]
    fn ne_is_not_eq_and_in_is_any_eq(data in json(), x in json(), y in json()) {
        let subject = subject(&data);
        let eq = |operand: &str| matches(&format!("{{\"data.a\": {{\"$eq\": {operand}}}}}"), &subject);
        prop_assert_eq!(matches(&format!("{{\"data.a\": {{\"$ne\": {x}}}}}"), &subject), !eq(&x));
        prop_assert_eq!(matches(&format!("{{\"data.a\": {{\"$in\": [{x}, {y}]}}}}"), &subject), eq(&x) || eq(&y));
    }
}

/// Numbers that a double holds, and strings without surrogates: what `serde_json::Value` can hold.
fn plain_json() -> impl Strategy<Value = String> {
    json().prop_map(|text| text.replace("1e999", "1e99").replace("12345678901234567890123.5", "123.5").replace("\\ud800", "x"))
}

/// What the guide says about one operator on one value.
fn holds(operator: &str, operand: &Value, value: &Value) -> bool {
    let equal = |a: &Value, b: &Value| same(a, b);
    let alone = |value: &Value| match operator {
        "$exists" => true,
        "$eq" => equal(value, operand),
        "$in" => operand.as_array().unwrap().iter().any(|one| equal(value, one)),
        "$prefix" => value.as_str().is_some_and(|text| text.starts_with(operand.as_str().unwrap())),
        _ => {
            let order = match (value, operand) {
                (Value::Number(a), Value::Number(b)) => a.as_f64().unwrap().partial_cmp(&b.as_f64().unwrap()),
                (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
                _ => None,
            };
            match operator {
                "$gt" => order == Some(Ordering::Greater),
                "$gte" => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
                "$lt" => order == Some(Ordering::Less),
                "$lte" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
                _ => panic!("{operator}"),
            }
        }
    };
    alone(value) || value.as_array().is_some_and(|items| items.iter().any(alone))
}

/// Equal as JSON: numbers by value.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

/// Every value at the end of a path.
fn at<'a>(value: &'a Value, path: &[&str]) -> Vec<&'a Value> {
    let Some((step, rest)) = path.split_first() else { return vec![value] };
    match value {
        Value::Object(members) => members.get(*step).map(|member| at(member, rest)).unwrap_or_default(),
        Value::Array(items) => match step.parse::<usize>() {
            Ok(index) => items.get(index).map(|item| at(item, rest)).unwrap_or_default(),
            Err(_) => items.iter().flat_map(|item| at(item, path)).collect(),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => vec![],
    }
}

proptest! {
    #![proptest_config(super::cases(200_000))]

    #[test]
    fn the_filter_answers_as_the_guide_says(
        data in plain_json(),
        path in prop::sample::select(vec![vec![], vec!["a"], vec!["b", "a"], vec!["0"], vec!["items", "a"], vec!["a", "1", "b"]]),
        test in prop_oneof![
            plain_json().prop_map(|operand| ("$eq", operand)),
            prop::collection::vec(plain_json(), 1..4).prop_map(|operands| ("$in", format!("[{}]", operands.join(",")))),
            (prop::sample::select(vec!["$gt", "$gte", "$lt", "$lte"]), prop::sample::select(vec!["0", "1", "-3", "\"a\"", "\"b\""]))
                .prop_map(|(operator, operand)| (operator, operand.to_owned())),
            Just(("$exists", "true".to_owned())),
            Just(("$prefix", "\"a\"".to_owned())),
        ],
    ) {
        let (operator, operand) = test;
        let whole = [vec!["data"], path.clone()].concat().join(".");
        let ours = matches(&format!("{{\"{whole}\": {{\"{operator}\": {operand}}}}}"), &subject(&data));
        let data: Value = serde_json::from_str(&data).unwrap();
        let operand: Value = serde_json::from_str(&operand).unwrap();
        let theirs = at(&data, &path).into_iter().any(|value| holds(operator, &operand, value));
        prop_assert_eq!(ours, theirs, "{} {} {} on {}", whole, operator, operand, data);
    }
}
