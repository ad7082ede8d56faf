//! Builds the body of a request from the command line.
//!
//! A JSON value is sent byte for byte. `--from-json` is the whole body; flags take precedence.

use std::io::Read;

use serde_json::Value;
use serde_json::value::RawValue;

use super::failure::Failure;
use super::json::Members;

/// More than any server takes.
const INPUT_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// `@file`, `-` for stdin, or else the text itself.
pub(super) fn input(given: &str) -> Result<String, Failure> {
    let bytes = match given.strip_prefix('@') {
        Some(path) => return text_of(read_file(path)?),
        None if given == "-" => read_all(std::io::stdin().lock(), "stdin")?,
        None => return Ok(given.to_owned()),
    };
    text_of(bytes)
}

/// The bytes of a file, or of stdin where it is called `-`.
pub(super) fn file_or_stdin(path: &str) -> Result<Vec<u8>, Failure> {
    let path = path.strip_prefix('@').unwrap_or(path);
    if path == "-" { read_all(std::io::stdin().lock(), "stdin") } else { read_file(path) }
}

fn read_file(path: &str) -> Result<Vec<u8>, Failure> {
    let file = std::fs::File::open(path).map_err(|error| Failure::usage(format!("cannot read {path}: {error}")))?;
    read_all(file, path)
}

fn read_all(from: impl Read, name: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = from.take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
    if bytes.len() as u64 > INPUT_BYTES_MAX {
        return Err(Failure::usage(format!("{name} is larger than 1 GiB")));
    }
    Ok(bytes)
}

fn text_of(bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|_| Failure::usage("what was given is not UTF-8"))
}

/// A request body that is being built.
#[derive(Debug)]
pub(super) struct BodyBuilder(Members);

impl BodyBuilder {
    /// Begins with a whole body, if there is one.
    pub(super) fn begin(from_json: Option<&str>) -> Result<BodyBuilder, Failure> {
        let Some(given) = from_json else { return Ok(BodyBuilder(Members(vec![]))) };
        let text = input(given)?;
        let members =
            serde_json::from_str(&text).map_err(|error| Failure::usage(format!("--from-json is not a JSON object: {error}")))?;
        Ok(BodyBuilder(members))
    }

    pub(super) fn value(mut self, name: &str, value: Option<impl Into<Value>>) -> BodyBuilder {
        if let Some(value) = value {
            let text = value.into().to_string();
            self.0.set(name, RawValue::from_string(text).expect("a value is JSON"));
        }
        self
    }

    /// Several of them, if there is any.
    pub(super) fn list(self, name: &str, values: &[String]) -> BodyBuilder {
        self.value(name, (!values.is_empty()).then(|| values.to_vec()))
    }

    /// `name=value`, several times, as one object.
    pub(super) fn pairs(self, name: &str, separator: char, pairs: &[String]) -> Result<BodyBuilder, Failure> {
        let mut object = serde_json::Map::new();
        for pair in pairs {
            let (key, value) = pair
                .split_once(separator)
                .ok_or_else(|| Failure::usage(format!("--{} takes NAME{separator}VALUE", name.trim_end_matches('s'))))?;
            object.insert(key.trim().to_owned(), value.trim().into());
        }
        Ok(self.value(name, (!pairs.is_empty()).then_some(Value::Object(object))))
    }

    /// JSON, to the byte.
    pub(super) fn json(mut self, name: &str, given: Option<&str>) -> Result<BodyBuilder, Failure> {
        if let Some(given) = given {
            let raw = RawValue::from_string(input(given)?.trim().to_owned());
            let raw = raw.map_err(|error| {
                Failure::usage(format!("{name} is not JSON: {error}; a text needs quotes of its own, as in '\"text\"'"))
            })?;
            self.0.set(name, raw);
        }
        Ok(self)
    }

    /// JSON, or one of these words as it is.
    pub(super) fn json_or_word(self, name: &str, given: Option<&str>, words: &[&str]) -> Result<BodyBuilder, Failure> {
        match given {
            Some(word) if words.contains(&word) => Ok(self.value(name, Some(word))),
            Some(_) | None => self.json(name, given),
        }
    }

    /// These go back to what is inherited.
    pub(super) fn nulls(self, names: &[String]) -> BodyBuilder {
        names.iter().fold(self, |given, name| given.value(&name.replace('-', "_"), Some(Value::Null)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.0.is_empty()
    }

    pub(super) fn write(&self) -> String {
        self.0.write()
    }

    /// For commands that would change nothing otherwise.
    pub(super) fn write_something(&self) -> Result<String, Failure> {
        if self.is_empty() { Err(Failure::usage("nothing was said that could be changed; see --help")) } else { Ok(self.write()) }
    }
}

/// `100` or `100:250`: so many a minute, and so many at once; as many at once as a minute unless said.
pub(super) fn rate_limit(given: &str) -> Result<Value, Failure> {
    if given == "unlimited" {
        return Ok(Value::from(given));
    }
    let (rate, burst) = given.split_once(':').unwrap_or((given, given));
    let number = |text: &str| {
        text.parse::<u32>()
            .map_err(|_| Failure::usage("--rate-limit takes PER_MINUTE, PER_MINUTE:BURST or unlimited, as in 100:250"))
    };
    Ok(serde_json::json!({"max_per_minute": number(rate)?, "burst_capacity": number(burst)?}))
}
