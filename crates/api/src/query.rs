//! What stands behind the `?`. Names that a route does not know are refused, and so is one that is given twice.

use http::Uri;
use posthaste_core::event::TypePatterns;
use posthaste_core::id::{EndpointId, EventId, TenantId};
use posthaste_core::text::{Label, TextError};
use posthaste_core::time::Timestamp;
use serde_json::{Value, json};

use crate::problem::Problem;

const LIMIT_DEFAULT: usize = 50;
const LIMIT_MAX: usize = 250;

/// One parameter that a route knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Limit,
    Text,
    /// What is accepted, as a regular expression.
    Like(&'static str),
    Time,
    OneOf(&'static [&'static str]),
    /// Some of these words, separated by commas.
    SomeOf(&'static [&'static str]),
}

const fn text(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, about, kind: Kind::Text }
}

const fn like(name: &'static str, about: &'static str, pattern: &'static str) -> Parameter {
    Parameter { name, about, kind: Kind::Like(pattern) }
}

const WORD_PATTERN: &str = "^[A-Za-z0-9_-]{1,128}$";
const TENANT_PATTERN: &str = "^[A-Za-z0-9_-]([A-Za-z0-9_.:-]{0,126}[A-Za-z0-9_-])?$";

pub(crate) const LIMIT: Parameter = Parameter { name: "limit", about: "How many at most, 50 unless said.", kind: Kind::Limit };
pub(crate) const CURSOR: Parameter = text("cursor", "`next_cursor` of the page before.");
pub(crate) const TENANT: Parameter = like("tenant", "Only what belongs to this tenant.", TENANT_PATTERN);
pub(crate) const TENANT_OF_UID: Parameter = like(
    "tenant",
    "The tenant of an endpoint that is named by its `uid`; the key's own, or `default`, unless given.",
    TENANT_PATTERN,
);
pub(crate) const ENDPOINT: Parameter = like("endpoint", "Only what goes to this endpoint.", "^ep_[0-7][0-9a-hjkmnp-tv-z]{25}$");
pub(crate) const EVENT: Parameter = like("event", "Only what belongs to this event.", WORD_PATTERN);
/// A type or a pattern, and more of them behind commas.
const TYPES_PATTERN: &str =
    "^(\\*|[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*(\\.\\*)?)(,(\\*|[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*(\\.\\*)?))*$";
pub(crate) const TYPE: Parameter =
    like("type", "Only these event types or patterns such as `invoice.*`, separated by commas.", TYPES_PATTERN);
pub(crate) const LABELS: Parameter = text("labels", "Only what has all of these labels, separated by commas.");
pub(crate) const ACTOR: Parameter = text("actor", "Only what was done by this: the id of a key, or what else `actor` says.");
pub(crate) const ACTION: Parameter =
    like("action", "Only these actions or patterns such as `endpoint.*`, separated by commas.", TYPES_PATTERN);
pub(crate) const RESOURCE: Parameter = text("resource", "Only what was done to this: the id that `subject` says.");
pub(crate) const KEY: Parameter = like(
    "key",
    "Only what was made by this key: its id, or `admin` for the operator's first key.",
    "^(admin|key_[0-7][0-9a-hjkmnp-tv-z]{25})$",
);
pub(crate) const UID: Parameter = like("uid", "Only the endpoint with this `uid`.", WORD_PATTERN);
pub(crate) const FROM: Parameter = Parameter { name: "from", about: "Made at this time or later.", kind: Kind::Time };
pub(crate) const TO: Parameter = Parameter { name: "to", about: "Made before this time.", kind: Kind::Time };
pub(crate) const STATUSES: [&str; 6] = ["pending", "delivering", "scheduled", "delivered", "dead", "cancelled"];
pub(crate) const STATUS: Parameter =
    Parameter { name: "status", about: "Only what has one of these statuses, separated by commas.", kind: Kind::SomeOf(&STATUSES) };
pub(crate) const HOLD_REASONS: [&str; 10] = [
    "disabled",
    "paused",
    "blocked",
    "deliver_at",
    "retry",
    "circuit_open",
    "quiet_hours",
    "ordering",
    "rate_limited",
    "concurrency",
];
pub(crate) const HOLD_REASON: Parameter =
    Parameter { name: "hold_reason", about: "Only what is held for this reason.", kind: Kind::OneOf(&HOLD_REASONS) };

impl Parameter {
    /// As the OpenAPI document has it.
    pub(crate) fn document(&self) -> Value {
        let schema = match self.kind {
            Kind::Limit => json!({"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}),
            Kind::Text => json!({"type": "string"}),
            Kind::Like(pattern) => json!({"type": "string", "pattern": pattern}),
            Kind::Time => json!({"type": "string", "format": "date-time"}),
            Kind::OneOf(words) => json!({"type": "string", "enum": words}),
            Kind::SomeOf(words) => {
                let one = words.join("|");
                json!({"type": "string", "pattern": format!("^({one})(,({one}))*$")})
            }
        };
        json!({"name": self.name, "in": "query", "description": self.about, "schema": schema})
    }
}

/// The parameters of one request.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn read(uri: &Uri, known: &[Parameter]) -> Result<Query, Problem> {
        let Some(text) = uri.query().filter(|text| !text.is_empty()) else { return Ok(Query::default()) };
        let mut given: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            if !known.iter().any(|parameter| parameter.name == name) {
                let names: Vec<&str> = known.iter().map(|parameter| parameter.name).collect();
                let message = if names.is_empty() {
                    "there are no parameters here".to_owned()
                } else {
                    format!("expected one of {}", names.join(", "))
                };
                return Err(Problem::invalid(printable(&name), format!("unknown parameter; {message}")));
            }
            if given.iter().any(|(before, _)| *before == name) {
                return Err(Problem::invalid(name, "given twice"));
            }
            given.push((name.into_owned(), value.into_owned()));
        }
        Ok(Query(given))
    }

    pub(crate) fn text(&self, parameter: &Parameter) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == parameter.name).map(|(_, value)| value.as_str())
    }

    fn parsed<T>(&self, parameter: &Parameter, parse: impl Fn(&str) -> Result<T, TextError>) -> Result<Option<T>, Problem> {
        self.text(parameter).map(parse).transpose().map_err(|error| Problem::invalid(parameter.name, error))
    }

    pub(crate) fn tenant(&self) -> Result<Option<TenantId>, Problem> {
        self.parsed(&TENANT, TenantId::parse)
    }

    pub(crate) fn endpoint(&self) -> Result<Option<EndpointId>, Problem> {
        self.parsed(&ENDPOINT, EndpointId::parse)
    }

    pub(crate) fn event(&self) -> Result<Option<EventId>, Problem> {
        self.parsed(&EVENT, EventId::parse)
    }

    /// Patterns of types; none if the parameter is not given.
    pub(crate) fn event_types(&self) -> Result<TypePatterns, Problem> {
        self.patterns(&TYPE)
    }

    /// The same for other words with dots.
    pub(crate) fn patterns(&self, parameter: &Parameter) -> Result<TypePatterns, Problem> {
        let given = self.text(parameter).map(|text| TypePatterns::parse(text.split(',')));
        given.transpose().map(Option::unwrap_or_default).map_err(|error| Problem::invalid(parameter.name, error))
    }

    pub(crate) fn labels(&self) -> Result<Vec<Label>, Problem> {
        let given = self.text(&LABELS).map(|text| text.split(',').map(Label::parse).collect());
        given.transpose().map(Option::unwrap_or_default).map_err(|error| Problem::invalid(LABELS.name, error))
    }

    /// From when to when. A range that ends before it begins is a mistake, and not an empty list.
    pub(crate) fn range(&self) -> Result<(Option<Timestamp>, Option<Timestamp>), Problem> {
        let (from, to) = (self.time(&FROM)?, self.time(&TO)?);
        if from.zip(to).is_some_and(|(from, to)| to < from) {
            return Err(Problem::invalid(TO.name, "is before from"));
        }
        Ok((from, to))
    }

    pub(crate) fn time(&self, parameter: &Parameter) -> Result<Option<Timestamp>, Problem> {
        self.text(parameter).map(Timestamp::parse).transpose().map_err(|error| Problem::invalid(parameter.name, error))
    }

    /// One of a few words.
    pub(crate) fn word(&self, parameter: &Parameter) -> Result<Option<&'static str>, Problem> {
        let Kind::OneOf(words) = parameter.kind else { return Ok(None) };
        let Some(given) = self.text(parameter) else { return Ok(None) };
        match words.iter().find(|word| **word == given) {
            Some(word) => Ok(Some(word)),
            None => Err(Problem::invalid(parameter.name, format!("expected one of {}", words.join(", ")))),
        }
    }

    /// Some of a few words; none if the parameter is not given.
    pub(crate) fn words(&self, parameter: &Parameter) -> Result<Vec<&'static str>, Problem> {
        let (Kind::SomeOf(words), Some(given)) = (parameter.kind, self.text(parameter)) else { return Ok(vec![]) };
        let find = |given: &str| words.iter().find(|word| **word == given).copied();
        let refuse = || Problem::invalid(parameter.name, format!("expected some of {}, separated by commas", words.join(", ")));
        given.split(',').map(|one| find(one).ok_or_else(refuse)).collect()
    }

    pub(crate) fn limit(&self) -> Result<usize, Problem> {
        let Some(text) = self.text(&LIMIT) else { return Ok(LIMIT_DEFAULT) };
        match text.parse() {
            Ok(limit @ 1..=LIMIT_MAX) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(limit),
            Ok(_) | Err(_) => Err(Problem::invalid(LIMIT.name, format!("a whole number from 1 to {LIMIT_MAX}"))),
        }
    }

    /// What narrows a list: everything but the size of a page and where it begins.
    pub(crate) fn filters(&self) -> Vec<(&str, &str)> {
        let filters = self.0.iter().filter(|(name, _)| name != LIMIT.name && name != CURSOR.name);
        filters.map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
}

/// A name that nobody expected, short enough and without what a terminal would obey.
fn printable(name: &str) -> String {
    name.chars().take(64).map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Query, Problem> {
        Query::read(&format!("/x?{query}").parse().unwrap(), &[LIMIT, CURSOR, STATUS, FROM])
    }

    #[test]
    fn what_is_unknown_or_doubled_or_out_of_bounds_is_refused() {
        assert_eq!(read("limit=7").unwrap().limit().unwrap(), 7);
        assert_eq!(read("").unwrap().limit().unwrap(), 50);
        assert_eq!(read("status=dead").unwrap().words(&STATUS).unwrap(), ["dead"]);
        assert_eq!(read("status=dead,pending").unwrap().words(&STATUS).unwrap(), ["dead", "pending"]);
        assert_eq!(read("").unwrap().words(&STATUS).unwrap(), [""; 0]);
        assert_eq!(read("tyep=x").unwrap_err().status(), 422);
        assert_eq!(read("limit=1&limit=1").unwrap_err().status(), 422);
        for limit in ["0", "251", "-1", "+5", "1e1", "", "x", "99999999999999999999"] {
            assert_eq!(read(&format!("limit={limit}")).unwrap().limit().unwrap_err().status(), 422, "{limit}");
        }
        for status in ["Dead", "dead,", "", "dead,x"] {
            assert_eq!(read(&format!("status={status}")).unwrap().words(&STATUS).unwrap_err().status(), 422, "{status}");
        }
        assert_eq!(read("from=yesterday").unwrap().time(&FROM).unwrap_err().status(), 422);
        assert_eq!(read("cursor=x&status=dead&limit=1").unwrap().filters(), [("status", "dead")]);
    }
}
