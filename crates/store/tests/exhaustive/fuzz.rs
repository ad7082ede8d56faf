//! JSON Schemas and payloads from outside, mutated: compiling and checking end, within their budgets. `cargo xtask fuzz` runs this
//! for longer.

use posthaste_fuzzing::{Inputs, fuzz};
use posthaste_store::catalogue::{compile, validate};

/// A line break separates the schema from the payload.
#[test]
fn fuzz_schemas() {
    let inputs = Inputs {
        examples: &[
            "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":1}},\"required\":[\"a\"]}\n{\"a\":5}",
            "{\"$defs\":{\"n\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"$ref\":\"#/$defs/n\"}\n[[],[[]]]",
            "{\"anyOf\":[{\"const\":1},{\"enum\":[\"a\",null]}],\"not\":{\"pattern\":\"^x+$\"}}\n\"xxx\"",
            "{\"patternProperties\":{\"^a\":{\"multipleOf\":0.1}},\"unevaluatedProperties\":false}\n{\"ab\":0.3}",
            "{\"contains\":{\"$dynamicRef\":\"#m\"},\"$dynamicAnchor\":\"m\",\"uniqueItems\":true}\n[1,1.0,1e999]",
        ],
        dictionary: &[
            "\"$ref\":\"#\"",
            "#/$defs/n",
            "\"allOf\":[",
            "\"anyOf\":[",
            "\"oneOf\":[",
            "\"not\":",
            "\"if\":",
            "\"then\":",
            "\"items\":",
            "\"prefixItems\":[",
            "\"dependentSchemas\":",
            "\"propertyNames\":",
            "\"format\":\"date-time\"",
            "true",
            "false",
            "{}",
            "[]",
            "1e999",
            "-0",
            "(a*)*b",
            "\n",
            "\"$id\":\"http://x\"",
            "\"minLength\":18446744073709551616",
            "\\ud800",
        ],
    };
    fuzz("schemas", inputs, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return "no text".to_owned() };
        let (schema, data) = text.split_once('\n').unwrap_or((text, "{}"));
        let short = |text: String| text.chars().take(40).collect::<String>();
        match compile(schema) {
            Err(error) => short(error),
            Ok(schema) => validate(&schema, data).map_or_else(|refused| short(format!("{refused:?}")), |()| "valid".to_owned()),
        }
    });
}
