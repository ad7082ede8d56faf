//! Reads JSON without changing what it says.
//!
//! A payload is somebody else's text. We check that it is JSON and not too deep, keep
//! its bytes, and look into it only for filters. A general JSON library does not quite
//! fit: it rounds large numbers to a double, refuses `1e999` and lone surrogates, all of
//! which are JSON, and so could not answer for every payload that we accepted.
//! Here numbers are compared exactly as decimals, and every valid text can be read.

use std::cmp::Ordering;

/// Deep enough for any real payload, and small enough for everybody's parser.
pub const DEPTH_MAX: usize = 64;

/// A JSON value. Of members with the same name the last one counts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    Array(Vec<Json>),
    Object(Members),
}

/// The members of an object, by name. A list rather than a tree: a payload of a million tiny objects stays small.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Members(Vec<(String, Json)>);

impl Members {
    pub fn get(&self, name: &str) -> Option<&Json> {
        let at = self.0.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = &(String, Json)> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Of members with the same name the last one counts.
impl FromIterator<(String, Json)> for Members {
    fn from_iter<I: IntoIterator<Item = (String, Json)>>(members: I) -> Members {
        let mut list: Vec<(String, Json)> = members.into_iter().collect();
        list.reverse();
        // Stable: of equal names the last one written is now the first.
        list.sort_by(|a, b| a.0.cmp(&b.0));
        list.dedup_by(|later, kept| later.0 == kept.0);
        list.shrink_to_fit();
        Members(list)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JsonError {
    #[error("not JSON: expected {expected} at byte {at}")]
    Syntax { at: usize, expected: &'static str },
    #[error("nested more than {max} levels deep")]
    TooDeep { max: usize },
}

/// Says whether `text` is one JSON value, nested at most `depth_max` deep, and reads nothing into memory.
pub fn check(text: &str, depth_max: usize) -> Result<(), JsonError> {
    Reader::new(text, depth_max).whole::<Nothing>()
}

pub fn read(text: &str, depth_max: usize) -> Result<Json, JsonError> {
    Reader::new(text, depth_max).whole::<Tree>()
}

impl Json {
    /// Like text with like text, number with like number; nothing else has an order.
    pub fn order(&self, other: &Json) -> Option<Ordering> {
        match (self, other) {
            (Json::Number(a), Json::Number(b)) => Some(a.cmp(b)),
            (Json::Text(a), Json::Text(b)) => Some(a.cmp(b)),
            (Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::Array(_) | Json::Object(_), _) => None,
        }
    }
}

/// A number as the decimal it was written as: 0.d₁d₂d₃… × 10^exponent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Number {
    negative: bool,
    /// Without leading or trailing zeros; empty for zero.
    digits: String,
    exponent: i64,
}

impl Number {
    /// How long it is to compare.
    pub fn digits_count(&self) -> usize {
        self.digits.len()
    }

    /// `text` has been checked against the grammar.
    fn from_literal(text: &str) -> Number {
        let (negative, unsigned) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, power) = match unsigned.find(['e', 'E']) {
            Some(at) => (&unsigned[..at], saturating_integer(&unsigned[at + 1..])),
            None => (unsigned, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all: String = [whole, fraction].concat();
        let significant = all.trim_start_matches('0');
        let leading_zeros = all.len() - significant.len();
        let digits = significant.trim_end_matches('0').to_owned();
        if digits.is_empty() {
            return Number { negative: false, digits, exponent: 0 };
        }
        let point = i64::try_from(whole.len()).unwrap_or(i64::MAX) - i64::try_from(leading_zeros).unwrap_or(i64::MAX);
        Number { negative, digits, exponent: power.saturating_add(point) }
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Number) -> Ordering {
        let signum = |number: &Number| match (number.digits.is_empty(), number.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        let magnitude = || self.exponent.cmp(&other.exponent).then_with(|| self.digits.cmp(&other.digits));
        signum(self).cmp(&signum(other)).then_with(|| match signum(self) {
            0 => Ordering::Equal,
            1 => magnitude(),
            _ => magnitude().reverse(),
        })
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Number) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// An exponent may have any number of digits; beyond 64 bits the difference no longer matters.
fn saturating_integer(text: &str) -> i64 {
    text.parse().unwrap_or(if text.starts_with('-') { i64::MIN } else { i64::MAX })
}

/// What to make of the pieces: a tree, or nothing at all.
trait Build {
    type Value;
    type Items: Default;
    type Members: Default;
    fn null() -> Self::Value;
    fn bool(value: bool) -> Self::Value;
    fn number(literal: &str) -> Self::Value;
    /// `raw` is what stands between the quotes, escapes and all.
    fn text(raw: &str) -> Self::Value;
    fn item(items: &mut Self::Items, value: Self::Value);
    fn member(members: &mut Self::Members, raw_name: &str, value: Self::Value);
    fn array(items: Self::Items) -> Self::Value;
    fn object(members: Self::Members) -> Self::Value;
}

struct Nothing;

impl Build for Nothing {
    type Value = ();
    type Items = ();
    type Members = ();
    fn null() {}
    fn bool(_: bool) {}
    fn number(_: &str) {}
    fn text(_: &str) {}
    fn item((): &mut (), (): ()) {}
    fn member((): &mut (), _: &str, (): ()) {}
    fn array((): ()) {}
    fn object((): ()) {}
}

struct Tree;

impl Build for Tree {
    type Value = Json;
    type Items = Vec<Json>;
    type Members = Vec<(String, Json)>;
    fn null() -> Json {
        Json::Null
    }
    fn bool(value: bool) -> Json {
        Json::Bool(value)
    }
    fn number(literal: &str) -> Json {
        Json::Number(Number::from_literal(literal))
    }
    fn text(raw: &str) -> Json {
        Json::Text(unescape(raw))
    }
    fn item(items: &mut Vec<Json>, value: Json) {
        items.push(value);
    }
    fn member(members: &mut Vec<(String, Json)>, raw_name: &str, value: Json) {
        members.push((unescape(raw_name), value));
    }
    fn array(items: Vec<Json>) -> Json {
        Json::Array(items)
    }
    fn object(members: Vec<(String, Json)>) -> Json {
        Json::Object(members.into_iter().collect())
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth_max: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, depth_max: usize) -> Reader<'a> {
        Reader { text, at: 0, depth_max }
    }

    fn whole<B: Build>(mut self) -> Result<B::Value, JsonError> {
        self.skip_space();
        let value = self.value::<B>(0)?;
        self.skip_space();
        match self.peek() {
            None => Ok(value),
            Some(_) => Err(self.expected("the end of the text")),
        }
    }

    fn value<B: Build>(&mut self, depth: usize) -> Result<B::Value, JsonError> {
        match self.peek() {
            Some(b'{') => self.object::<B>(depth + 1),
            Some(b'[') => self.array::<B>(depth + 1),
            Some(b'"') => self.string().map(B::text),
            Some(b'-' | b'0'..=b'9') => self.number().map(B::number),
            Some(b't') => self.word("true").map(|()| B::bool(true)),
            Some(b'f') => self.word("false").map(|()| B::bool(false)),
            Some(b'n') => self.word("null").map(|()| B::null()),
            _ => Err(self.expected("a value")),
        }
    }

    fn object<B: Build>(&mut self, depth: usize) -> Result<B::Value, JsonError> {
        self.enter(depth)?;
        let mut members = B::Members::default();
        if self.take(b'}') {
            return Ok(B::object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.expected("a member's name in quotes"));
            }
            let name = self.string()?;
            self.skip_space();
            if !self.take(b':') {
                return Err(self.expected("`:`"));
            }
            self.skip_space();
            let value = self.value::<B>(depth)?;
            B::member(&mut members, name, value);
            self.skip_space();
            if self.take(b'}') {
                return Ok(B::object(members));
            }
            if !self.take(b',') {
                return Err(self.expected("`,` or `}`"));
            }
        }
    }

    fn array<B: Build>(&mut self, depth: usize) -> Result<B::Value, JsonError> {
        self.enter(depth)?;
        let mut items = B::Items::default();
        if self.take(b']') {
            return Ok(B::array(items));
        }
        loop {
            self.skip_space();
            let value = self.value::<B>(depth)?;
            B::item(&mut items, value);
            self.skip_space();
            if self.take(b']') {
                return Ok(B::array(items));
            }
            if !self.take(b',') {
                return Err(self.expected("`,` or `]`"));
            }
        }
    }

    /// Steps over the opening bracket.
    fn enter(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth > self.depth_max {
            return Err(JsonError::TooDeep { max: self.depth_max });
        }
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// Answers what stands between the quotes.
    fn string(&mut self) -> Result<&'a str, JsonError> {
        self.at += 1;
        let start = self.at;
        self.skip_plain();
        loop {
            match self.peek() {
                Some(b'"') => {
                    let raw = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(raw);
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                        Some(b'u') => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                                    return Err(self.expected("four hexadecimal digits"));
                                }
                                self.at += 1;
                            }
                        }
                        _ => return Err(self.expected("an escape such as \\n or \\u0041")),
                    }
                    self.skip_plain();
                }
                Some(0..=0x1f) => return Err(self.expected("no raw control character in a string")),
                Some(_) => self.at += 1,
                None => return Err(self.expected("the closing `\"`")),
            }
        }
    }

    /// Most of a string means nothing to us: it is passed over in blocks, which the processor compares at once.
    #[expect(clippy::needless_bitwise_bool, reason = "without branches all bytes of a block are compared together")]
    fn skip_plain(&mut self) {
        const BLOCK: usize = 16;
        let is_plain = |byte: &u8| (*byte >= 0x20) & (*byte != b'"') & (*byte != b'\\');
        let blocks = self.text.as_bytes()[self.at..].chunks_exact(BLOCK);
        self.at += BLOCK * blocks.take_while(|block| block.iter().fold(true, |all, byte| all & is_plain(byte))).count();
    }

    fn number(&mut self) -> Result<&'a str, JsonError> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') && self.digits() == 0 {
            return Err(self.expected("a digit"));
        }
        if self.take(b'.') && self.digits() == 0 {
            return Err(self.expected("a digit after the point"));
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            if self.digits() == 0 {
                return Err(self.expected("a digit in the exponent"));
            }
        }
        Ok(&self.text[start..self.at])
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    fn word(&mut self, word: &'static str) -> Result<(), JsonError> {
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.expected("`true`, `false` or `null`"))
        }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn expected(&self, expected: &'static str) -> JsonError {
        JsonError::Syntax { at: self.at, expected }
    }
}

/// `raw` has been checked. A surrogate without its partner becomes U+FFFD: it can be compared, and is never sent on.
fn unescape(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut units: Vec<u16> = Vec::new();
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        text.push_str(before);
        let (character, length) = match escape.as_bytes()[1] {
            b'u' => {
                // A run of \u escapes is decoded as one piece, so that pairs find each other.
                units.clear();
                let mut run = escape;
                while let Some(hex) = run.strip_prefix("\\u") {
                    units.push(u16::from_str_radix(&hex[..4], 16).expect("checked to be hexadecimal"));
                    run = &hex[4..];
                }
                text.push_str(&String::from_utf16_lossy(&units));
                rest = run;
                continue;
            }
            b'b' => ('\u{8}', 2),
            b'f' => ('\u{c}', 2),
            b'n' => ('\n', 2),
            b'r' => ('\r', 2),
            b't' => ('\t', 2),
            other => (char::from(other), 2),
        };
        text.push(character);
        rest = &escape[length..];
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(text: &str) -> Number {
        let Json::Number(number) = read(text, 1).unwrap() else { panic!("{text} is a number") };
        number
    }

    #[test]
    fn numbers_are_compared_as_the_decimals_they_were_written_as() {
        let rising = [
            "-1e400",
            "-12345678901234567890124",
            "-12345678901234567890123",
            "-1.5",
            "-1",
            "-0.001",
            "0",
            "1e-400",
            "0.1",
            "0.10000000000000000000001",
            "1",
            "9007199254740992",
            "9007199254740993",
            "12345678901234567890123",
            "1e400",
            "1e99999999999999999999",
        ];
        for (i, a) in rising.iter().enumerate() {
            for (j, b) in rising.iter().enumerate() {
                assert_eq!(number(a).cmp(&number(b)), i.cmp(&j), "{a} and {b}");
            }
        }
        for (a, b) in [("1", "1.0"), ("100", "1e2"), ("0.5", "5E-1"), ("0", "-0"), ("0e5", "0.000"), ("1200e-2", "12")] {
            assert_eq!(number(a), number(b), "{a} and {b}");
        }
    }

    #[test]
    fn strings_are_compared_as_what_they_mean() {
        for (written, meant) in [
            (r#""Grüße""#, "Grüße"),
            (r#""\ud83d\ude00 \/ \"""#, "😀 / \""),
            (r#""\ud83d""#, "\u{fffd}"),
            (r#""\ud83dA""#, "\u{fffd}A"),
            (r#""a\\u0041""#, "a\\u0041"),
            (r#""\b\f\n\r\t""#, "\u{8}\u{c}\n\r\t"),
        ] {
            assert_eq!(read(written, 1), Ok(Json::Text(meant.to_owned())), "{written}");
        }
    }

    #[test]
    fn depth_is_counted_in_brackets() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(check(&nested(64), DEPTH_MAX), Ok(()));
        assert_eq!(check(&nested(65), DEPTH_MAX), Err(JsonError::TooDeep { max: 64 }));
        assert_eq!(check(&"[".repeat(1_000_000), DEPTH_MAX), Err(JsonError::TooDeep { max: 64 }));
        assert_eq!(check("0", 0), Ok(()));
    }

    #[test]
    fn of_two_members_with_one_name_the_last_counts() {
        assert_eq!(read(r#"{"a":1,"b":0,"\u0061":2}"#, 1), read(r#"{"b":0,"a":2}"#, 1));
        let Ok(Json::Object(members)) = read(r#"{"a":1,"b":0,"a":2,"a":3}"#, 1) else { panic!("an object") };
        assert_eq!(members.get("a"), Some(&Json::Number(number("3"))));
        assert_eq!(members.iter().count(), 2);
    }

    fn json_like() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            // Longer than the blocks that strings are passed over in.
            1 => "[a-z]{10,40}",
            8 => prop::sample::select(vec!["{", "}", "[", "]", ",", ":", "\"", "\\", "\"a\"", "0", "1", "-", "+", ".", "e", "E5", "true", "false", "null", " ", "\n", "\\u00e9", "\\ud800", "\u{7f}", "\u{1}", "ü"]).prop_map(str::to_owned),
            1 => any::<char>().prop_map(String::from),
        ];
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn we_accept_what_serde_json_accepts_as_raw_text(text in json_like()) {
            let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
            prop_assert_eq!(check(&text, 100).is_ok(), theirs);
            prop_assert_eq!(read(&text, 100).is_ok(), theirs);
        }
    }
}
