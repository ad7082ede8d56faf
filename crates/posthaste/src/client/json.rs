//! JSON whose text matters: members in the order in which they came, and values to the byte.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, in their order.
#[derive(Debug)]
pub(super) struct Members(pub(super) Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl Members {
    pub(super) fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    pub(super) fn set(&mut self, name: &str, value: Box<RawValue>) {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), value));
    }

    pub(super) fn write(&self) -> String {
        let member = |(name, value): &(String, Box<RawValue>)| format!("{}:{value}", serde_json::Value::from(name.as_str()));
        format!("{{{}}}", self.0.iter().map(member).collect::<Vec<_>>().join(","))
    }
}

/// The text of a JSON string, if it is one.
pub(super) fn string(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_bytes_of_values_survive() {
        let text = r#"{"z": 12345678901234567890123, "a" : {"b":1.0,  "a":"\u00e9"}, "z2":[ ]}"#;
        let mut members: Members = serde_json::from_str(text).unwrap();
        assert_eq!(members.get("a").unwrap().get(), r#"{"b":1.0,  "a":"\u00e9"}"#);
        members.set("a\"b", RawValue::from_string("1e2".to_owned()).unwrap());
        assert_eq!(members.write(), r#"{"z":12345678901234567890123,"a":{"b":1.0,  "a":"\u00e9"},"z2":[ ],"a\"b":1e2}"#);
    }
}
