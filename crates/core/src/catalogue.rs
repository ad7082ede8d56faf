//! The catalogue of event types: what they are called, what they carry, which of them are urgent.

use crate::event::EventType;
use crate::text::Version;
use crate::time::Timestamp;

/// What is known about one type. Events of types that are not in the catalogue are delivered all the same.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    pub name: EventType,
    pub description: String,
    /// In the order in which they were added: the last is the present one.
    pub versions: Vec<(Version, Contract)>,
    /// Still accepted; subscribers are told to move on.
    pub deprecated_at: Option<Timestamp>,
    /// Goes before the rest of its lane and is not held by quiet hours.
    pub is_priority: bool,
}

/// What a payload of one version looks like.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Contract {
    /// JSON Schema, as text. Without one anything goes.
    pub schema: Option<String>,
    pub example: Option<String>,
}

/// What publishing has to check about a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check<'a> {
    Nothing,
    Schema(&'a str),
    /// The type has versions, and this is not one of them.
    UnknownVersion,
}

impl Entry {
    /// An event without a version is held to the latest, because that is what its readers expect.
    pub fn check(&self, version: Option<&Version>) -> Check<'_> {
        let contract = match version {
            None => self.versions.last().map(|(_, contract)| contract),
            Some(_) if self.versions.is_empty() => None,
            Some(version) => match self.versions.iter().find(|(known, _)| known == version) {
                Some((_, contract)) => Some(contract),
                None => return Check::UnknownVersion,
            },
        };
        contract.and_then(|contract| contract.schema.as_deref()).map_or(Check::Nothing, Check::Schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_held_to_its_version_or_to_the_latest() {
        let version = |text: &str| Version::parse(text).unwrap();
        let contract = |schema: &str| Contract { schema: Some(schema.to_owned()), example: None };
        let mut entry = Entry {
            name: EventType::parse("invoice.paid").unwrap(),
            description: String::new(),
            versions: vec![],
            deprecated_at: None,
            is_priority: false,
        };
        assert_eq!(entry.check(Some(&version("v9"))), Check::Nothing, "a type without versions takes any");
        entry.versions =
            vec![(version("v8"), Contract::default()), (version("v9"), contract("old")), (version("v10"), contract("new"))];
        assert_eq!(entry.check(None), Check::Schema("new"), "the one that was added last, whatever its name");
        assert_eq!(entry.check(Some(&version("v9"))), Check::Schema("old"));
        assert_eq!(entry.check(Some(&version("v8"))), Check::Nothing);
        assert_eq!(entry.check(Some(&version("v7"))), Check::UnknownVersion);
    }
}
