//! Text from outside, mutated: readers answer, never panic, and agree with themselves. `cargo xtask fuzz` runs these for longer.

use posthaste_core::filter::{Filter, FilterSet};
use posthaste_core::json;
use posthaste_core::retry_after;
use posthaste_core::time::Timestamp;
use posthaste_core::trace::TraceContext;
use posthaste_fuzzing::{Inputs, fuzz};

#[test]
fn fuzz_retry_after() {
    let inputs = Inputs {
        examples: &["120", "0", "Wed, 21 Oct 2026 07:28:00 GMT", "Wednesday, 21-Oct-26 07:28:00 GMT", "Wed Oct 21 07:28:00 2026"],
        dictionary: &["-1", "99999999999999999999", "GMT", "UTC", ", ", "Feb", "29", "60", "24:00:00", "+0", "1e9", "\u{0}"],
    };
    let now = Timestamp::parse("2026-10-21T07:00:00Z").unwrap();
    fuzz("retry-after", inputs, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return None };
        let waits = retry_after::parse(text, now)?;
        assert!(waits.as_secs() <= 24 * 60 * 60, "{waits:?} is capped at a day");
        Some(waits.as_secs() / 60)
    });
}

#[test]
fn fuzz_trace_headers() {
    let inputs = Inputs {
        examples: &[
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\nrojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
        ],
        dictionary: &["00-", "ff-", "-01", "00000000000000000000000000000000", "\n", ",", "=", "@", "\t", "é"],
    };
    fuzz("trace-headers", inputs, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return None };
        let read = TraceContext::from_text(text)?;
        assert_eq!(TraceContext::from_text(&read.to_text()).as_ref(), Some(&read), "what was written is read back");
        assert!(read.to_text().bytes().all(|byte| byte == b'\n' || (0x20..0x7f).contains(&byte)), "nothing that ends a header");
        Some((read.traceparent().ends_with("01"), read.tracestate().map(|state| state.split(',').count())))
    });
}

#[test]
fn fuzz_json() {
    let inputs = Inputs {
        examples: &[r#"{"a":[1,-2.5e3,true,null,"x\u00e9\ud83d\ude00"],"b":{"c":{}}}"#, "[[[]]]", "1e999", r#""\ud800""#],
        dictionary: &["\\u", "\\ud800", "{", "}", "[", "]", "\"", ":", ",", "1e999", "-0", "0.", "null", "\u{feff}", "\u{0}"],
    };
    fuzz("json", inputs, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return (false, String::new()) };
        let read = json::read(text, json::DEPTH_MAX);
        assert_eq!(read.is_ok(), json::check(text, json::DEPTH_MAX).is_ok(), "both readers accept the same");
        // The other way round does not hold: a program need not hold every number and text that JSON allows.
        if serde_json::from_str::<serde_json::Value>(text).is_ok() && text.len() < 64 {
            assert!(read.is_ok(), "{read:?}");
        }
        (
            read.is_ok(),
            read.err()
                .map(|error| error.to_string().chars().filter(|letter| !letter.is_ascii_digit()).collect())
                .unwrap_or_default(),
        )
    });
}

#[test]
fn fuzz_filters() {
    let inputs = Inputs {
        examples: &[
            r#"{"data.a.b": {"$eq": -1}}"#,
            r#"{"$or": [{"data.a": {"$gte": 1, "$lt": 5}}, {"type": "x.y"}, {"labels": {"$in": ["p", "q"]}}]}"#,
            r#"{"$not": {"data.list.0.name": {"$prefix": "al"}}, "tenant": {"$exists": true}}"#,
            r#"{"data.n": {"$ne": 1e999}, "$and": [{"version": null}]}"#,
        ],
        dictionary: &[
            "$eq", "$ne", "$in", "$gt", "$gte", "$lt", "$lte", "$exists", "$prefix", "$and", "$or", "$not", "data", ".", "labels",
            "1e999", "\\ud800", "{", "}", "[", "]", "null", "0", "\"a\"", ":",
        ],
    };
    let subjects =
        [r#"{"a":{"b":-1},"n":1e999,"list":[{"name":"alice"},{"name":"bob"}]}"#, r#"{"a":[1,2,{"b":3}],"list":[]}"#, r#""\ud800""#]
            .map(crate::filter::subject);
    fuzz("filters", inputs, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return None };
        let filter = match Filter::parse(text) {
            Ok(filter) => filter,
            Err(error) => return Some((error.to_string().chars().take(24).collect::<String>(), vec![])),
        };
        assert_eq!(filter.source(), text);
        let alone: Vec<bool> = subjects.iter().map(|subject| filter.matches(subject)).collect();
        let set = FilterSet::new([&filter, &filter]);
        for (subject, matches) in subjects.iter().zip(&alone) {
            let (together, steps) = set.matches(subject, &[0, 1], u64::MAX).unwrap();
            assert_eq!(together, [*matches; 2], "alone and in a set");
            assert!(steps > 0 && set.matches(subject, &[0, 1], steps).is_ok() && set.matches(subject, &[0, 1], steps - 1).is_err());
        }
        Some((String::new(), alone))
    });
}
