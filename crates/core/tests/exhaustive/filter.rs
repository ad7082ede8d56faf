//! The filter is total: every text that can be read as a filter answers for every event, and keeps the laws of logic.

use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::filter::{Filter, Subject};
use posthaste_core::id::{EventId, TenantId};
use posthaste_core::text::{Label, Labels};
use posthaste_core::time::Timestamp;
use proptest::prelude::*;

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

fn subject(data: &str) -> Subject {
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
    fn ne_is_not_eq_and_in_is_any_eq(data in json(), x in json(), y in json()) {
        let subject = subject(&data);
        let eq = |operand: &str| matches(&format!("{{\"data.a\": {{\"$eq\": {operand}}}}}"), &subject);
        prop_assert_eq!(matches(&format!("{{\"data.a\": {{\"$ne\": {x}}}}}"), &subject), !eq(&x));
        prop_assert_eq!(matches(&format!("{{\"data.a\": {{\"$in\": [{x}, {y}]}}}}"), &subject), eq(&x) || eq(&y));
    }
}
