//! The examples of the guide, run.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::filter::{Filter, Subject};
use posthaste_core::id::{EventId, TenantId};
use posthaste_core::text::{Label, Labels};
use posthaste_core::time::Timestamp;
use serde_json::Value;

/// The rows of the tables on a page of the guide whose cells are all code.
fn rows(page: &str) -> Vec<Vec<String>> {
    let path = format!("{}/../../docs/guide/{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("| `")?.strip_suffix("` |"))
        .map(|row| row.split("` | `").map(str::to_owned).collect())
        .collect()
}

/// An event of which the guide shows only a part.
fn subject(shown: &str) -> Subject {
    let shown: Value = serde_json::from_str(shown).unwrap();
    let text = |name: &str, default: &str| shown[name].as_str().unwrap_or(default).to_owned();
    let labels = shown["labels"].as_array().cloned().unwrap_or_default();
    let now = Timestamp::from_millis(0);
    Subject::of(&Event {
        id: EventId::parse("evt_1").unwrap(),
        tenant: TenantId::parse(&text("tenant", "acme")).unwrap(),
        event_type: EventType::parse(&text("type", "invoice.paid")).unwrap(),
        version: None,
        timestamp: now,
        accepted_at: now,
        data: Data::parse(&shown["data"].to_string()).unwrap(),
        labels: Labels::new(labels.iter().map(|label| Label::parse(label.as_str().unwrap()).unwrap()).collect()).unwrap(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    })
}

#[test]
fn the_guides_filters_match_what_it_says_and_fail_as_it_says() {
    let (mut examples, mut refusals) = (0, 0);
    for row in rows("filters.md") {
        match &row[..] {
            [filter, matching, other] => {
                let filter = Filter::parse(filter).unwrap();
                assert!(filter.matches(&subject(matching)), "{filter:?} matches {matching}");
                assert!(!filter.matches(&subject(other)), "{filter:?} does not match {other}");
                examples += 1;
            }
            [filter, error] => {
                assert_eq!(Filter::parse(filter).unwrap_err().to_string(), *error);
                refusals += 1;
            }
            _ => panic!("{row:?}"),
        }
    }
    assert!(examples == 10 && refusals >= 3, "{examples} examples and {refusals} refusals");
}
