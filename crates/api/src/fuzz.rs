//! What callers send, mutated: nothing panics, and what is accepted means one thing. `cargo xtask fuzz` runs these for longer.

use http::Uri;
use posthaste_core::id::TenantId;
use posthaste_fuzzing::{Inputs, fuzz};

use crate::SealingKey;

use crate::batch::Splitter;
use crate::body::MediaType;
use crate::cursor::{Cursors, Scope};
use crate::portal::PortalCode;
use crate::query;

#[test]
fn fuzz_batch_splitter() {
    const ITEMS_MAX: usize = 20;
    let inputs = Inputs {
        examples: &[r#"[{"type":"a"},{"data":"]}\"\\"}, 3]"#, "{\"a\":1}\n{\"b\":\"\\n\"}\r\n\n[2]", "[]", " [ ] "],
        dictionary: &["[", "]", "{", "}", ",", "\"", "\\", "\n", "\r", "\\\"", " ", "null", "\u{feff}", "\u{0}", "é"],
    };
    fuzz("batch-splitter", inputs, |input| {
        let split = |media_type: MediaType, piece_bytes: usize| {
            let mut splitter = Splitter::new(media_type, ITEMS_MAX);
            input.chunks(piece_bytes).try_for_each(|piece| splitter.push(piece))?;
            splitter.finish()
        };
        [MediaType::Json, MediaType::NdJson].map(|media_type| {
            let whole = split(media_type, input.len().max(1)).ok();
            // Wherever the network cuts it.
            for piece_bytes in [1, 3] {
                assert_eq!(split(media_type, piece_bytes).ok(), whole, "in pieces of {piece_bytes}");
            }
            let items = whole?;
            assert!(items.len() <= ITEMS_MAX);
            assert!(items.windows(2).all(|pair| pair[0].end <= pair[1].start), "one after the other: {items:?}");
            assert!(items.iter().all(|item| item.start <= item.end && item.end <= input.len()), "inside: {items:?}");
            let text = std::str::from_utf8(input).ok()?;
            if matches!(media_type, MediaType::Json)
                && let Ok(values) = serde_json::from_str::<Vec<serde_json::Value>>(text)
            {
                let read = items.iter().map(|item| serde_json::from_str(&text[item.clone()]));
                assert_eq!(read.collect::<Result<Vec<serde_json::Value>, _>>().ok(), Some(values), "as another reader sees it");
            }
            Some(items.len())
        })
    });
}

#[test]
fn fuzz_cursor() {
    let cursors = Cursors::new(&SealingKey([7; 32]));
    let acme = TenantId::parse("acme").expect("a valid id");
    let filter = [("status", "dead")];
    let scope = Scope { list: "deliveries", tenant: Some(&acme), filter: &filter };
    let genuine = cursors.seal(scope, "1234");
    let longer = cursors.seal(scope, "1700000000000:99");
    let inputs = Inputs { examples: &[&genuine, &longer, ""], dictionary: &["=", "-", "_", "+", "/", "AAAA", "é", "\u{0}"] };
    fuzz("cursor", inputs, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return None };
        let opened = cursors.open(scope, text).ok();
        assert_eq!(opened.is_some(), text == genuine || text == longer, "{text} was not made here");
        Some((opened, text.len() / 8))
    });
}

#[test]
fn fuzz_query_strings() {
    let inputs = Inputs {
        examples: &[
            "limit=7&status=dead,pending&from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00%2B01:00",
            "tenant=acme&endpoint=ep_01m7ps9dj3f86sev1v4nmtfrzc&event=evt_1&type=invoice.*&labels=a,b",
        ],
        dictionary: &[
            "&", "=", "%", "%00", "%ff", "%F0%9F", "+", "limit=", "cursor=", "from=", "to=", "-1", "250", "251", ",", ".*",
        ],
    };
    let parameters = [
        query::LIMIT,
        query::CURSOR,
        query::STATUS,
        query::FROM,
        query::TO,
        query::TENANT,
        query::ENDPOINT,
        query::EVENT,
        query::TYPE,
        query::LABELS,
    ];
    fuzz("query-strings", inputs, |input| {
        let uri = Uri::try_from([b"/v1/deliveries?", input].concat()).ok()?;
        let query = query::Query::read(&uri, &parameters).ok()?;
        let (limit, range) = (query.limit().ok(), query.range().ok());
        assert!(limit.is_none_or(|limit| (1..=250).contains(&limit)));
        if let Some((Some(from), Some(to))) = range {
            assert!(from <= to);
        }
        let filters = query.filters().len();
        let ids = (query.tenant().is_ok(), query.endpoint().is_ok(), query.event().is_ok());
        let lists = (query.event_types().is_ok(), query.labels().is_ok(), query.words(&query::STATUS).is_ok());
        Some((limit, range.is_some(), filters, ids, lists))
    });
}

#[test]
fn fuzz_portal_code() {
    let inputs = Inputs {
        examples: &[r#"{"code": "phc_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}"#],
        dictionary: &["\"code\"", ":", "phc_", "null", "{", "}", "\\u0000", "\\ud800", "1e999", ","],
    };
    fuzz("portal-code", inputs, |input| {
        let read = serde_json::from_slice::<PortalCode>(input);
        read.map_or_else(|error| error.to_string().split(" at line").next().map(str::to_owned), |_| None)
    });
}

/// The `id` of a server-sent event comes back in the header `Last-Event-ID`.
#[test]
fn fuzz_last_event_id() {
    let cursors = Cursors::new(&SealingKey([9; 32]));
    let position = crate::stream::Position::for_test();
    let genuine = position.seal(&cursors, 77);
    let inputs = Inputs { examples: &[&genuine, "77"], dictionary: &["-", "_", "=", "\t", "\u{7f}", "é", "AAAA"] };
    fuzz("last-event-id", inputs, |input| {
        let value = http::HeaderValue::from_bytes(input).ok()?;
        let read = position.open(&cursors, &value).ok();
        assert_eq!(read, (input == genuine.as_bytes()).then_some(77));
        Some((read, input.len() / 8))
    });
}
