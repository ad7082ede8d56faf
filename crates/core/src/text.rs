//! Short texts with a rule: names, keys, labels.
//!
//! Each is checked where it enters and is valid from then on, so that nothing
//! behind the door asks again. The rule is part of the error, because whoever
//! reads the error wants to know what would have been right.

use std::fmt;

/// Why a text was refused, in words that say what would be accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{rule}")]
pub struct TextError {
    pub rule: &'static str,
}

/// Declares a text type: cheap to clone, ordered, made only by `parse`.
macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $rule:literal, $is_valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            pub const RULE: &'static str = $rule;

            pub fn parse(text: &str) -> Result<$name, $crate::text::TextError> {
                let is_valid: fn(&str) -> bool = $is_valid;
                if is_valid(text) {
                    Ok($name(text.into()))
                } else {
                    Err($crate::text::TextError { rule: Self::RULE })
                }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use text_type;

/// Letters, digits, `_` and `-`: safe in a header, a URL, a file name and a signed string.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_word_byte)
}

pub(crate) fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// Printable ASCII without the space.
pub(crate) fn is_visible_ascii(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

text_type!(
    /// A caller's word for "this is the same publish": remembered per tenant for a day.
    IdempotencyKey,
    "an idempotency key is 1 to 255 visible ASCII characters",
    |text| text.len() <= 255 && is_visible_ascii(text)
);

text_type!(
    /// Deliveries with the same key to the same endpoint go strictly one after another.
    OrderingKey,
    "an ordering key is 1 to 255 visible ASCII characters",
    |text| text.len() <= 255 && is_visible_ascii(text)
);

text_type!(
    /// The version of a payload's contract, such as `2026-04-08` or `v2`.
    Version,
    "a version is 1 to 64 visible ASCII characters",
    |text| text.len() <= 64 && is_visible_ascii(text)
);

text_type!(
    /// A word on an event that filters can ask for.
    Label,
    "a label is 1 to 128 characters without control characters",
    |text| !text.is_empty() && text.chars().count() <= 128 && !text.chars().any(char::is_control)
);

/// At most [`Labels::COUNT_MAX`] labels, as published.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Labels(Vec<Label>);

impl Labels {
    /// Enough to sort by; more would be data.
    pub const COUNT_MAX: usize = 16;

    pub fn new(labels: Vec<Label>) -> Result<Labels, TextError> {
        if labels.len() > Self::COUNT_MAX {
            return Err(TextError { rule: "an event has at most 16 labels" });
        }
        Ok(Labels(labels))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Label> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_take_visible_ascii_and_nothing_else() {
        assert!(IdempotencyKey::parse("order-1:paid/é").is_err());
        assert!(IdempotencyKey::parse("").is_err());
        assert!(IdempotencyKey::parse("with space").is_err());
        assert!(IdempotencyKey::parse("line\nbreak").is_err());
        assert!(IdempotencyKey::parse(&"k".repeat(256)).is_err());
        assert_eq!(IdempotencyKey::parse(&"k".repeat(255)).unwrap().as_str().len(), 255);
        assert_eq!(OrderingKey::parse("{cart:42}").unwrap().to_string(), "{cart:42}");
    }

    #[test]
    fn labels_are_counted_in_characters_and_may_be_in_any_script() {
        assert!(Label::parse(&"ü".repeat(128)).is_ok());
        assert!(Label::parse(&"ü".repeat(129)).is_err());
        assert!(Label::parse("tab\there").is_err());
        let many = vec![Label::parse("x").unwrap(); 17];
        assert_eq!(Labels::new(many).unwrap_err().to_string(), "an event has at most 16 labels");
    }
}
