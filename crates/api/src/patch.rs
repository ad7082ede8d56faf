//! A field of a request body: absent, `null`, or a value. PATCH tells the three apart.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::problem::Problem;

/// Use with `#[serde(default)]`, which makes a missing field `Absent`.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) enum Patch<T> {
    #[default]
    Absent,
    Null,
    Is(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Patch<T>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Patch::Null, Patch::Is))
    }
}

impl<T> Patch<T> {
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Patch::Absent)
    }

    /// The value, where `null` says the same as nothing.
    pub(crate) fn value(self) -> Option<T> {
        match self {
            Patch::Absent | Patch::Null => None,
            Patch::Is(value) => Some(value),
        }
    }

    /// Lays it over what is there: `null` goes back to the default.
    pub(crate) fn over<U: Default>(self, present: U, read: impl FnOnce(T) -> Result<U, Problem>) -> Result<U, Problem> {
        match self {
            Patch::Absent => Ok(present),
            Patch::Null => Ok(U::default()),
            Patch::Is(value) => read(value),
        }
    }
}

/// A field that only we write. Refused where something is made; where it is changed, repeating what is there is fine, so
/// that an answer can be sent back with one field changed.
pub(crate) fn check_read_only(field: &str, given: &Patch<Value>, present: Option<&Value>) -> Result<(), Problem> {
    let is_the_same = match (given, present) {
        (Patch::Absent, _) => true,
        (Patch::Null, Some(present)) => present.is_null(),
        (Patch::Is(value), Some(present)) => value == present,
        (Patch::Null | Patch::Is(_), None) => false,
    };
    if is_the_same { Ok(()) } else { Err(Problem::invalid(field, "is read-only")) }
}
