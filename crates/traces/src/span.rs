//! A span, as it is exported: what was done, from when to when, below which other one.

use std::borrow::Cow;

use posthaste_core::trace::{SpanId, TraceId};

use crate::moment::Nanos;

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Span {
    pub(crate) trace: TraceId,
    pub(crate) id: SpanId,
    pub(crate) parent: Option<SpanId>,
    /// The one above is a caller's.
    pub(crate) is_parent_remote: bool,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) began: Nanos,
    pub(crate) ended: Nanos,
    pub(crate) attributes: Attributes,
    pub(crate) has_failed: bool,
}

/// With the numbers of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Internal = 1,
    Server = 2,
    Client = 3,
    Consumer = 5,
}

/// Under names of the semantic conventions where they have one, else under our own.
pub(crate) type Attributes = Vec<(&'static str, Value)>;

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Text(Cow<'static, str>),
    Number(i64),
}

impl Value {
    pub(crate) fn word(word: &'static str) -> Value {
        Value::Text(Cow::Borrowed(word))
    }

    pub(crate) fn text(text: &(impl ToString + ?Sized)) -> Value {
        Value::Text(Cow::Owned(text.to_string()))
    }

    pub(crate) fn count(count: impl TryInto<i64>) -> Value {
        Value::Number(count.try_into().unwrap_or(i64::MAX))
    }
}

/// What every span of ours is below, and what its children share with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent {
    pub(crate) trace: TraceId,
    pub(crate) id: SpanId,
}

impl Parent {
    /// A step of it. Steps are measured with clocks that may differ by a little: none ends before it has begun.
    pub(crate) fn step(self, name: &'static str, began: Nanos, ended: Nanos) -> Span {
        Span {
            trace: self.trace,
            id: SpanId::from_draw(rand::random()),
            parent: Some(self.id),
            is_parent_remote: false,
            name,
            kind: Kind::Internal,
            began,
            ended: ended.max(began),
            attributes: Vec::new(),
            has_failed: false,
        }
    }
}
