//! What is said: as an event, and as a mail.

use posthaste_core::endpoint::Endpoint;
use posthaste_core::health::{DisableReason, Warning};
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::notice::{Growing, NoticeKind};
use posthaste_core::time::Timestamp;
use serde_json::{Map, Value, json};

/// The names of operational events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    EndpointFailing,
    EndpointDisabled,
    EndpointRecovered,
    CircuitOpened,
    CircuitClosed,
    DeadLettersGrowing,
    SecretOverlapEnding,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::EndpointFailing,
        Kind::EndpointDisabled,
        Kind::EndpointRecovered,
        Kind::CircuitOpened,
        Kind::CircuitClosed,
        Kind::DeadLettersGrowing,
        Kind::SecretOverlapEnding,
    ];

    /// The type of the event.
    pub fn name(self) -> &'static str {
        match self {
            Kind::EndpointFailing => "posthaste.endpoint.failing",
            Kind::EndpointDisabled => "posthaste.endpoint.disabled",
            Kind::EndpointRecovered => "posthaste.endpoint.recovered",
            Kind::CircuitOpened => "posthaste.circuit.opened",
            Kind::CircuitClosed => "posthaste.circuit.closed",
            Kind::DeadLettersGrowing => "posthaste.dead_letters.growing",
            Kind::SecretOverlapEnding => "posthaste.secret.overlap_ending",
        }
    }

    /// `None` of a single death, which is no news.
    pub(crate) fn of(what: NoticeKind) -> Option<Kind> {
        match what {
            NoticeKind::Failing { .. } => Some(Kind::EndpointFailing),
            NoticeKind::Disabled => Some(Kind::EndpointDisabled),
            NoticeKind::Recovered => Some(Kind::EndpointRecovered),
            NoticeKind::CircuitOpened => Some(Kind::CircuitOpened),
            NoticeKind::CircuitClosed => Some(Kind::CircuitClosed),
            NoticeKind::Died => None,
        }
    }
}

/// One notification, before it is sent anywhere.
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    pub kind: Kind,
    pub at: Timestamp,
    /// Whose endpoint it is about.
    pub tenant: TenantId,
    /// The same for the same news, however often it is found; `None` where nobody could find it twice.
    pub(crate) id: Option<String>,
    endpoint: Option<(EndpointId, String)>,
    details: Map<String, Value>,
    sentence: String,
    advice: &'static str,
    left_out: u32,
}

impl Message {
    fn new(kind: Kind, at: Timestamp, endpoint: &Endpoint, sentence: String, advice: &'static str) -> Message {
        Message {
            kind,
            at,
            tenant: endpoint.tenant.clone(),
            id: None,
            endpoint: Some((endpoint.id, endpoint.url.clone())),
            details: Map::new(),
            sentence,
            advice,
            left_out: 0,
        }
    }

    fn with(mut self, name: &str, value: Value) -> Message {
        self.details.insert(name.to_owned(), value);
        self
    }

    /// `None` for what is told otherwise.
    pub(crate) fn about(at: Timestamp, endpoint: &Endpoint, what: NoticeKind) -> Option<Message> {
        let kind = Kind::of(what)?;
        match what {
            NoticeKind::Failing { warning, failures, since } => {
                let (percent, how_far) = match warning {
                    Warning::Refusing => (None, "it answers every request with a 3xx or 4xx status that is not retried"),
                    Warning::Half => (Some(50), "half of the way to being disabled"),
                    Warning::NineTenths => (Some(90), "nine tenths of the way to being disabled"),
                };
                let sentence = format!("has failed {failures} times in a row since {}: {how_far}", since.to_rfc3339());
                let message = Message::new(
                    kind,
                    at,
                    endpoint,
                    sentence,
                    "See what it answers, and mend it; one success starts the count anew.",
                );
                Some(
                    message
                        .with("percent_of_threshold", json!(percent))
                        .with("consecutive_failures", json!(failures))
                        .with("failing_since", json!(since.to_rfc3339())),
                )
            }
            NoticeKind::Recovered => {
                let sentence = "works again after it had been failing".to_owned();
                Some(Message::new(kind, at, endpoint, sentence, "Nothing has to be done."))
            }
            NoticeKind::CircuitOpened => {
                let sentence = "has failed several times in a row: its circuit is open, and deliveries wait".to_owned();
                Some(Message::new(
                    kind,
                    at,
                    endpoint,
                    sentence,
                    "It is probed, and deliveries go on by themselves once it answers well.",
                ))
            }
            NoticeKind::CircuitClosed => {
                let sentence = "has answered a probe: its circuit is closed, and deliveries go on".to_owned();
                Some(Message::new(kind, at, endpoint, sentence, "Nothing has to be done."))
            }
            NoticeKind::Disabled | NoticeKind::Died => None,
        }
    }

    /// `number` is that of the row in the audit log.
    pub(crate) fn disabled(at: Timestamp, endpoint: &Endpoint, number: u64, reason: Option<DisableReason>) -> Message {
        let sentence = match reason {
            Some(DisableReason::Gone) => "was disabled, because it answered 410 and so asked not to be called again".to_owned(),
            Some(DisableReason::FailuresInARow { failures }) => {
                format!("was disabled, because it failed {failures} times in a row")
            }
            Some(DisableReason::FailingFor { failing_for, failures }) => {
                let hours = failing_for.as_secs() / 3600;
                format!("was disabled, because it failed for {hours} hours, {failures} times in a row")
            }
            None => "was disabled, because it failed for too long or asked not to be called again (410)".to_owned(),
        };
        let advice = "Events are no longer taken for it. Mend it, enable it again, and replay what was missed.";
        let message = Message::new(Kind::EndpointDisabled, at, endpoint, sentence, advice);
        let message = Message { id: Some(format!("posthaste-disabled-{number}")), ..message };
        let Some(reason) = reason else { return message };
        let message = message.with("reason", json!(reason.name()));
        match reason {
            DisableReason::Gone => message,
            DisableReason::FailuresInARow { failures } => message.with("consecutive_failures", json!(failures)),
            DisableReason::FailingFor { failing_for, failures } => {
                message.with("consecutive_failures", json!(failures)).with("failing_for_seconds", json!(failing_for.as_secs()))
            }
        }
    }

    pub(crate) fn overlap_ending(now: Timestamp, endpoint: &Endpoint, until: Timestamp) -> Message {
        let sentence = format!("is signed with its previous secret only until {}", until.to_rfc3339());
        let advice = "See that the receiver verifies with the new secret by then.";
        let message = Message::new(Kind::SecretOverlapEnding, now, endpoint, sentence, advice);
        let id = format!("posthaste-overlap-{}-{}", endpoint.id, until.as_millis());
        Message { id: Some(id), ..message }.with("overlap_ends_at", json!(until.to_rfc3339()))
    }

    pub(crate) fn dead_letters_growing(at: Timestamp, tenant: &TenantId, growing: Growing) -> Message {
        let Growing { in_the_last_hour, usual_per_hour } = growing;
        let message = Message {
            kind: Kind::DeadLettersGrowing,
            at,
            tenant: tenant.clone(),
            id: None,
            endpoint: None,
            details: Map::new(),
            sentence: format!("{in_the_last_hour} deliveries have died within an hour; {usual_per_hour} are usual"),
            advice: "See the dead letters for the reason, mend it, and replay them.",
            left_out: 0,
        };
        message.with("in_the_last_hour", json!(in_the_last_hour)).with("usual_per_hour", json!(usual_per_hour))
    }

    /// Some of its kind were not told before it.
    pub(crate) fn after(self, left_out: u32) -> Message {
        Message { left_out, ..self }
    }

    /// The payload of the event.
    pub fn data(&self) -> String {
        let mut data = self.details.clone();
        data.insert("tenant".to_owned(), json!(self.tenant.as_str()));
        data.insert("at".to_owned(), json!(self.at.to_rfc3339()));
        data.insert("message".to_owned(), json!(self.in_a_sentence()));
        data.insert("left_out".to_owned(), json!(self.left_out));
        if let Some((id, url)) = &self.endpoint {
            data.insert("endpoint".to_owned(), json!(id.to_string()));
            data.insert("endpoint_url".to_owned(), json!(url));
        }
        Value::Object(data).to_string()
    }

    pub fn subject(&self) -> String {
        let what = match self.kind {
            Kind::EndpointFailing => "an endpoint is failing",
            Kind::EndpointDisabled => "an endpoint was disabled",
            Kind::EndpointRecovered => "an endpoint works again",
            Kind::CircuitOpened => "a circuit has opened",
            Kind::CircuitClosed => "a circuit has closed",
            Kind::DeadLettersGrowing => "dead letters are growing",
            Kind::SecretOverlapEnding => "a secret's overlap ends soon",
        };
        format!("[Posthaste] {}: {what}", self.tenant)
    }

    /// The mail, plain.
    pub fn text(&self) -> String {
        let mut text = format!("{}.\n\n{}\n\nTenant:   {}\n", self.in_a_sentence(), self.advice, self.tenant);
        if let Some((id, _)) = &self.endpoint {
            text = format!("{text}Endpoint: {id}\n");
        }
        text = format!("{text}Time:     {}\n", self.at.to_rfc3339());
        if self.left_out > 0 {
            text = format!("{text}Of this kind {} more were not told before this one.\n", self.left_out);
        }
        text
    }

    fn in_a_sentence(&self) -> String {
        match &self.endpoint {
            Some((_, url)) => format!("The endpoint {url} {}", self.sentence),
            None => self.sentence.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::id::Sequence;

    use super::*;

    #[test]
    fn everything_that_is_told_is_json_with_whose_it_is_and_a_sentence() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let tenant = TenantId::parse("acme").expect("a name");
        let id = EndpointId::from_unique(Sequence::default().next(now, 7));
        let endpoint = Endpoint::new(id, tenant.clone(), "https://x.example/\"hooks\"".to_owned(), now);
        let failing = NoticeKind::Failing { warning: Warning::NineTenths, failures: 90, since: now };
        let messages = [
            Message::about(now, &endpoint, failing),
            Message::about(now, &endpoint, NoticeKind::Recovered),
            Message::about(now, &endpoint, NoticeKind::CircuitOpened),
            Message::about(now, &endpoint, NoticeKind::CircuitClosed),
            Some(Message::disabled(now, &endpoint, 7, Some(DisableReason::FailuresInARow { failures: 100 }))),
            Some(Message::overlap_ending(now, &endpoint, now)),
            Some(Message::dead_letters_growing(now, &tenant, Growing { in_the_last_hour: 12, usual_per_hour: 1 })),
        ];
        let mut kinds = Vec::new();
        for message in messages.into_iter().map(|message| message.expect("it is told").after(3)) {
            let data: Value = serde_json::from_str(&message.data()).expect("it is JSON");
            assert_eq!((&data["tenant"], &data["left_out"]), (&json!("acme"), &json!(3)));
            assert_eq!(data["endpoint"].is_string(), message.kind != Kind::DeadLettersGrowing);
            let sentence = data["message"].as_str().expect("a sentence");
            assert!(message.text().starts_with(sentence) && message.subject().starts_with("[Posthaste] acme: "));
            kinds.push(message.kind);
        }
        kinds.sort_unstable();
        assert_eq!(kinds, Kind::ALL, "one of each");
    }
}
