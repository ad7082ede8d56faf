//! What each status and each reason means, and what to do about it: for the OpenAPI document and for the guide's table, which a test
//! keeps current.

/// One word of the API.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusDoc {
    pub(crate) name: &'static str,
    /// Completes "It means that …".
    pub(crate) meaning: &'static str,
    pub(crate) to_do: &'static str,
}

const fn word(name: &'static str, meaning: &'static str, to_do: &'static str) -> StatusDoc {
    StatusDoc { name, meaning, to_do }
}

pub(crate) const STATUSES: [StatusDoc; 6] = [
    word("pending", "the delivery is due and is about to be sent", "Nothing."),
    word("delivering", "a request is on its way to the receiver", "Nothing. It ends within its timeout."),
    word("scheduled", "the delivery is held; `hold_reason` says why, `next_attempt_at` until when", "See the hold reasons below."),
    word("delivered", "the receiver answered with a 2xx status", "Nothing. Send it again with a retry or a replay."),
    word("dead", "the delivery is given up; `dead_reason` says why", "See the dead reasons below."),
    word("cancelled", "the delivery is not sent; `cancel_reason` says why", "See the cancel reasons below."),
];

/// In the order in which they are told: the first that applies is shown.
pub(crate) const HOLD_REASONS: [StatusDoc; 10] = [
    word(
        "disabled",
        "the endpoint is disabled, by a person or after sustained failure",
        "Fix the receiver, then enable the endpoint.",
    ),
    word("paused", "the endpoint is paused, with or without an end", "Resume the endpoint, or wait until `paused_until`."),
    word(
        "blocked",
        "the endpoint cannot be used as it is stored or under the present settings; `last_error` says why",
        "Do what `last_error` says. The endpoint is looked at again every 5 minutes and after any change.",
    ),
    word(
        "deliver_at",
        "the event was published with a `deliver_at` that lies ahead",
        "Nothing. Cancel the event if it should not be sent.",
    ),
    word("retry", "an attempt failed and the next one is not due yet", "Look at the attempts. Retry the delivery to send it now."),
    word(
        "circuit_open",
        "the receiver failed several times in a row; only a probe is sent now and then",
        "Fix the receiver. The next successful probe closes the circuit.",
    ),
    word(
        "quiet_hours",
        "the delivery schedule of the endpoint does not allow requests now",
        "Nothing. Change `delivery_schedule` to send earlier.",
    ),
    word(
        "ordering",
        "an older delivery with the same `ordering_key` comes first",
        "Look at the oldest delivery of that key: cancel or retry it if it cannot get through.",
    ),
    word(
        "rate_limited",
        "the rate limit of the endpoint or the tenant has no token, or the receiver asked for a pause with `Retry-After`",
        "Nothing, or raise `rate_limit`.",
    ),
    word(
        "concurrency",
        "as many requests as allowed are in flight to the endpoint, for the tenant or from the server",
        "Nothing. Raise `max_in_flight`, or make the receiver answer faster.",
    ),
];

pub(crate) const DEAD_REASONS: [StatusDoc; 5] = [
    word(
        "permanent_failure",
        "the receiver answered with a status that another attempt would not change (3xx, most 4xx)",
        "Fix the receiver or the URL, then retry. `retry.also_statuses` names statuses that are worth another attempt.",
    ),
    word("max_attempts_exceeded", "all attempts of the retry policy failed", "Fix the receiver, then retry or replay."),
    word(
        "endpoint_gone",
        "the receiver answered 410; the endpoint was disabled, too",
        "Change the URL, enable the endpoint, then retry.",
    ),
    word(
        "expired",
        "the delivery had not arrived by `expires_at`, or waited longer than the retention",
        "Publish again what is still wanted. See why it waited: pause, circuit, rate limit.",
    ),
    word(
        "corrupt",
        "the stored payload is not what was published",
        "Check the disk, restore a backup, or publish the event again.",
    ),
];

pub(crate) const CANCEL_REASONS: [StatusDoc; 3] = [
    word("requested", "the delivery or its event was cancelled, or its payload was erased", "Nothing."),
    word(
        "endpoint_deleted",
        "the endpoint was deleted while the delivery waited",
        "Create the endpoint again and replay with `missing`.",
    ),
    word(
        "unsubscribed",
        "the endpoint no longer subscribed to the type when the delivery's turn came",
        "Subscribe the endpoint again, then retry the delivery.",
    ),
];

/// For descriptions in the OpenAPI document.
pub(crate) fn in_words(words: &[StatusDoc]) -> String {
    let lines: Vec<String> = words.iter().map(|word| format!("`{}`: {}. {}", word.name, word.meaning, word.to_do)).collect();
    lines.join("\n\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write;

    use posthaste_core::admission::HoldReason;
    use posthaste_core::delivery::{CancelReason, DeadReason};

    use super::*;
    use crate::query;

    const GUIDE: &str = "# Statuses and reasons

What the `status` of a delivery and the reason with it mean, and what to do. `GET /v1/deliveries/{id}` shows them, lists are narrowed by
`?status=` and `?hold_reason=`, and `/v1/stats` and the metrics count by the same words. A hold is not stored and uses no attempt: it ends by
itself when its reason ends. If several reasons hold a delivery, the first of the table is shown.
";

    #[test]
    fn the_guide_lists_every_status_and_reason() {
        let mut page = GUIDE.to_owned();
        for (title, column, words) in [
            ("Statuses", "status", &STATUSES[..]),
            ("Hold reasons", "`hold_reason`", &HOLD_REASONS),
            ("Dead reasons", "`dead_reason`", &DEAD_REASONS),
            ("Cancel reasons", "`cancel_reason`", &CANCEL_REASONS),
        ] {
            let _ = write!(page, "\n## {title}\n\n| {column} | it means that | what to do |\n|---|---|---|\n");
            for StatusDoc { name, meaning, to_do } in words {
                let _ = writeln!(page, "| `{name}` | {meaning} | {to_do} |");
            }
        }
        expect_test::expect_file!["../../../docs/guide/statuses.md"].assert_eq(&page);
    }

    #[test]
    fn every_word_that_the_api_can_say_is_explained() {
        let names = |words: &[StatusDoc]| words.iter().map(|word| word.name).collect::<Vec<_>>();
        assert_eq!(names(&STATUSES), query::STATUSES);
        assert_eq!(names(&DEAD_REASONS), DeadReason::ALL.map(DeadReason::name));
        assert_eq!(names(&CANCEL_REASONS), CancelReason::ALL.map(CancelReason::name));
        let of_the_core: BTreeSet<&str> = HoldReason::ALL.iter().map(|reason| reason.name()).chain(["blocked"]).collect();
        assert_eq!(names(&HOLD_REASONS).into_iter().collect::<BTreeSet<_>>(), of_the_core);
        let in_order: Vec<&str> = names(&HOLD_REASONS).into_iter().filter(|name| *name != "blocked").collect();
        let told: Vec<&str> = HoldReason::ALL.iter().map(|reason| reason.name()).filter(|name| *name != "blocked").collect();
        assert_eq!(in_order, told, "the first that applies is the first of the table");
    }
}
