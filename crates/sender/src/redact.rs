//! Takes secrets out of what a receiver has answered.
//!
//! Receivers echo requests, print their environment and dump stack traces. What is kept of that is read by more people than
//! should know a password. A redactor cannot know every secret; it takes out what is named like one, what looks like one of
//! ours, and what we ourselves sent as a header of the endpoint's own. In doubt it takes out too much.

use std::ops::Range;

use http::HeaderMap;

const REDACTED: &str = "[redacted]";

/// A name that contains one of these, in any case and with any of `_`, `-`, `.` or spaces between, names a secret.
const SECRET_NAMES: [&str; 12] = [
    "authorization",
    "cookie",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "accesskey",
    "privatekey",
    "credential",
    "sessionid",
];
/// Of these the rest of the line is the value.
const WHOLE_LINE_NAMES: [&str; 2] = ["authorization", "cookie"];
/// What our own keys begin with.
const OUR_PREFIXES: [&str; 3] = ["whsec_", "whsk_", "phk_"];
/// How far back a name is looked for.
const NAME_BYTES_MAX: usize = 64;
/// Shorter values of the endpoint's own headers are words, not secrets.
const OWN_SECRET_BYTES_MIN: usize = 6;

/// What we sent that a receiver may echo: the values of the endpoint's own headers.
#[derive(Default)]
pub(crate) struct OwnSecrets(Vec<String>);

impl OwnSecrets {
    /// The request's builder has marked them.
    pub(crate) fn of(headers: &HeaderMap) -> OwnSecrets {
        let mut values: Vec<String> = headers
            .values()
            .filter(|value| value.is_sensitive())
            .filter_map(|value| value.to_str().ok())
            // `Basic dXNlcjpwYXNz` may come back as its second half alone.
            .flat_map(|value| std::iter::once(value).chain(value.split(' ').skip(1)))
            .filter(|value| value.len() >= OWN_SECRET_BYTES_MIN)
            .map(str::to_owned)
            .collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        OwnSecrets(values)
    }
}

pub(crate) fn redact(text: &str, own: &OwnSecrets) -> String {
    let mut spans = Vec::new();
    for value in &own.0 {
        spans.extend(text.match_indices(value.as_str()).map(|(start, found)| start..start + found.len()));
    }
    let bytes = text.as_bytes();
    for prefix in OUR_PREFIXES {
        spans.extend(text.match_indices(prefix).map(|(start, _)| start..end_of_token(bytes, start + prefix.len())));
    }
    spans.extend(bearers(bytes));
    spans.extend((0..bytes.len()).filter_map(|place| named_value(bytes, place)));
    without(text, spans)
}

fn without(text: &str, mut spans: Vec<Range<usize>>) -> String {
    spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
    let mut left = String::with_capacity(text.len());
    let mut place = 0;
    for span in spans {
        if span.end <= place {
            continue;
        }
        if span.start >= place {
            left.push_str(&text[place..span.start]);
            left.push_str(REDACTED);
        }
        place = span.end;
    }
    left.push_str(&text[place..]);
    left
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~+/=%".contains(&byte)
}

fn end_of_token(bytes: &[u8], from: usize) -> usize {
    from + bytes[from..].iter().take_while(|byte| is_token_byte(**byte)).count()
}

/// `Bearer` and what follows it.
fn bearers(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    const WORD: &[u8] = b"bearer";
    bytes.windows(WORD.len()).enumerate().filter_map(|(start, window)| {
        let begins_a_word = start == 0 || !bytes[start - 1].is_ascii_alphanumeric();
        if !begins_a_word || !window.eq_ignore_ascii_case(WORD) {
            return None;
        }
        let after = start + WORD.len();
        let spaces = bytes[after..].iter().take_while(|byte| b" \t+".contains(byte)).count();
        let token = after + spaces..end_of_token(bytes, after + spaces);
        (spaces > 0 && !token.is_empty()).then_some(token)
    })
}

/// The value after the separator at `place`, if there is a separator there and what stands before it names a secret.
fn named_value(bytes: &[u8], place: usize) -> Option<Range<usize>> {
    let separator = bytes[place];
    // `name: value`, `name=value`, `name => value`, `<name>value`.
    let name_end = match separator {
        b'=' if bytes.get(place + 1) == Some(&b'>') => return None,
        b'>' if place > 0 && bytes[place - 1] == b'=' => place - 1,
        b':' | b'=' | b'>' => place,
        _ => return None,
    };
    let is_element = separator == b'>' && name_end == place;
    let name = name_before(bytes, name_end, is_element)?;
    if !SECRET_NAMES.iter().any(|secret| name.contains(secret)) {
        return None;
    }
    let whole_line = !is_element && separator == b':' && WHOLE_LINE_NAMES.iter().any(|secret| name.contains(secret));
    let spaces = bytes[place + 1..].iter().take_while(|byte| b" \t".contains(byte)).count();
    let value = value_at(bytes, place + 1 + spaces, separator, whole_line);
    let is_nothing = matches!(&bytes[value.clone()], b"" | b"null" | b"true" | b"false");
    (!is_nothing).then_some(value)
}

/// What stands before a separator, in lower case and without what separates its words. Quotes around it do not count.
fn name_before(bytes: &[u8], end: usize, is_element: bool) -> Option<String> {
    let mut name = Vec::new();
    let mut place = end;
    while place > 0 && b" \t\"'`\\".contains(&bytes[place - 1]) && end - place < 8 {
        place -= 1;
    }
    while place > 0 && end - place < NAME_BYTES_MAX {
        let byte = bytes[place - 1];
        match byte {
            byte if byte.is_ascii_alphanumeric() => name.push(byte.to_ascii_lowercase()),
            b'_' | b'-' | b'.' | b' ' => {}
            _ => break,
        }
        place -= 1;
    }
    if is_element && (place == 0 || bytes[place - 1] != b'<') {
        return None;
    }
    name.reverse();
    String::from_utf8(name).ok()
}

/// Where a value ends follows from how it begins.
fn value_at(bytes: &[u8], start: usize, separator: u8, whole_line: bool) -> Range<usize> {
    let until = |from: usize, ends: &[u8]| from + bytes[from..].iter().take_while(|byte| !ends.contains(byte)).count();
    let backslashes = bytes[start..].iter().take_while(|byte| **byte == b'\\').count();
    match bytes.get(start + backslashes) {
        Some(quote @ (b'"' | b'\'')) => {
            let inside = start + backslashes + 1;
            inside..end_of_quoted(bytes, inside, *quote, backslashes)
        }
        Some(b'{' | b'[') => start..end_of_nested(bytes, start),
        _ if separator == b'>' => start..until(start, b"<\r\n"),
        _ if whole_line => start..until(start, b"\r\n"),
        _ if separator == b':' => start..until(start, b",;&}]<\"\r\n"),
        _ => start..until(start, b" \t,;&}]<>\"'\r\n"),
    }
}

/// A quote that is escaped as often as the one that opened ends it.
fn end_of_quoted(bytes: &[u8], inside: usize, quote: u8, backslashes: usize) -> usize {
    let mut run = 0;
    for (place, byte) in bytes.iter().enumerate().skip(inside) {
        if *byte == quote && run == backslashes {
            return place - backslashes;
        }
        run = match byte {
            // Two of them are one that stands for itself, at the outermost level.
            b'\\' if backslashes == 0 && run == 1 => 0,
            b'\\' => run + 1,
            _ => 0,
        };
    }
    bytes.len()
}

fn end_of_nested(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    for (place, byte) in bytes.iter().enumerate().skip(start) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return place + 1;
                }
            }
            _ => {}
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::{Strategy, any, prop_assert, proptest};

    fn check(text: &str, expected: &str) {
        assert_eq!(redact(text, &OwnSecrets::default()), expected, "{text}");
    }

    #[test]
    fn fields_that_are_named_like_secrets_lose_their_values() {
        check(r#"{"token":"abc","amount":5}"#, r#"{"token":"[redacted]","amount":5}"#);
        check(r#"{"access_token" : "a\"b\\", "ok": true}"#, r#"{"access_token" : "[redacted]", "ok": true}"#);
        check(r#"{"X-Api-Key":"k","Set-Cookie":"a=b; c=d"}"#, r#"{"X-Api-Key":"[redacted]","Set-Cookie":"[redacted]"}"#);
        check(r#"{"clientSecret":12345,"n":1}"#, r#"{"clientSecret":[redacted],"n":1}"#);
        check(r#"{"tokens":["a","b"],"n":1}"#, r#"{"tokens":[redacted],"n":1}"#);
        check(r#"{"credentials":{"user":"u","key":["k"]},"n":1}"#, r#"{"credentials":[redacted],"n":1}"#);
        check(r#"{"body":"{\"password\":\"p\",\"n\":1}"}"#, r#"{"body":"{\"password\":\"[redacted]\",\"n\":1}"}"#);
        check("user=u&password=p%26q&n=1", "user=u&password=[redacted]&n=1");
        check("Authorization: Basic dXNlcjpwYXNz\r\nHost: x", "Authorization: [redacted]\r\nHost: x");
        check("Cookie: a=b; session=c\nX: y", "Cookie: [redacted]\nX: y");
        check("the API key: k123, code: 5", "the API key: [redacted], code: 5");
        check("<password>p</password><n>1</n>", "<password>[redacted]</password><n>1</n>");
        check("{:api_key=>\"k\", :n=>1}", "{:api_key=>\"[redacted]\", :n=>1}");
        check("'secret': 's', 'n': 1", "'secret': '[redacted]', 'n': 1");
    }

    #[test]
    fn what_looks_like_a_credential_goes_wherever_it_stands() {
        check("got Bearer abc.def-1 from you", "got Bearer [redacted] from you");
        check("BEARER\tabc", "BEARER\t[redacted]");
        check("key whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw== bad", "key [redacted] bad");
        check("phk_1a2b", "[redacted]");
        check("forbearer abc", "forbearer abc");
    }

    #[test]
    fn a_value_that_was_cut_off_goes_whole() {
        check(r#"{"token":"abc"#, r#"{"token":"[redacted]"#);
        check(r#"{"secrets":["a","b"#, r#"{"secrets":[redacted]"#);
        check("Authorization: Bas", "Authorization: [redacted]");
    }

    #[test]
    fn what_names_no_secret_is_left_alone() {
        for text in [
            r#"{"error":"invalid signature","code":401}"#,
            r#"{"token":null,"token_valid":false,"password":""}"#,
            "a > b = c : d",
            "https://example.com/x?y=z",
            "=>:<>\"'\\",
            "",
        ] {
            check(text, text);
        }
    }

    #[test]
    fn what_we_sent_ourselves_does_not_come_back() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("x-tenant-pin", "hunter2-hunter2"), ("authorization", "Basic dXNlcjpwYXNz"), ("x-short", "ok")] {
            let mut value = HeaderValue::from_static(value);
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        headers.insert("webhook-id", HeaderValue::from_static("evt_1234567"));
        let own = OwnSecrets::of(&headers);
        let echoed = "x hunter2-hunter2 y, ok, evt_1234567, dXNlcjpwYXNz";
        assert_eq!(redact(echoed, &own), "x [redacted] y, ok, evt_1234567, [redacted]");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-zé:=>{}\\[\\]\"'\\\\ \n<]{0,80}") {
            redact(&text, &OwnSecrets::default());
        }

        #[test]
        fn a_secret_in_a_json_field_never_survives(
            name in "(x-)?(api[_-]?key|[Tt]oken|PASSWORD|client_secret|cookie)",
            secret in any::<String>().prop_map(|text| format!("canary{text}")),
            before in "[ -~]{0,20}",
        ) {
            let value = serde_json::Value::from(secret.as_str()).to_string();
            let name = serde_json::Value::from(name).to_string();
            let text = format!("{{\"a\":{},{name}:{value},\"z\":1}}", serde_json::Value::from(before.as_str()));
            prop_assert!(!redact(&text, &OwnSecrets::default()).contains("canary"));
        }
    }
}
