//! The request: body, headers, signature.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{HeaderName, Method, Request, Uri};
use http_body_util::Full;
use posthaste_core::event::Event;
use posthaste_core::id::DeliveryId;
use posthaste_core::text::Version;
use posthaste_core::time::Timestamp;
pub use posthaste_signing::Secret;
use posthaste_signing::{Key, standard};

/// One try of one delivery.
#[derive(Clone, Copy, Debug)]
pub struct Try<'a> {
    pub delivery: DeliveryId,
    /// Counted from 1.
    pub attempt: u32,
    pub event: &'a Event,
    pub url: &'a Uri,
    /// The newest first; each signs.
    pub secrets: &'a [Secret],
    /// When it is sent: what the receiver compares with its clock.
    pub now: Timestamp,
}

const VERSION: &str = concat!("Posthaste/", env!("CARGO_PKG_VERSION"));

/// Everything a receiver gets. The id and the body are the same in every try; timestamp and signature are of this one.
pub fn build(one_try: &Try<'_>) -> Request<Full<Bytes>> {
    let Try { delivery, attempt, event, url, secrets, now } = one_try;
    let body = envelope(event);
    let keys: Vec<Key<'_>> = secrets.iter().map(Key::Shared).collect();
    let signature = standard::sign(&keys, event.id.as_str(), now.as_seconds(), body.as_bytes());
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = (*url).clone();
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(VERSION));
    let mut set = |name: &'static str, value: &str| {
        let value = HeaderValue::from_str(value).expect("ids, numbers and base64 are visible ASCII");
        headers.insert(HeaderName::from_static(name), value);
    };
    set("webhook-id", event.id.as_str());
    set("webhook-timestamp", &now.as_seconds().to_string());
    set("webhook-signature", &signature);
    set("posthaste-delivery", &delivery.to_string());
    set("posthaste-attempt", &attempt.to_string());
    request
}

/// `data` goes in as it came, to the byte; everything around it is ours.
fn envelope(event: &Event) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    format!(
        "{{\"id\":{},\"type\":{},\"version\":{},\"tenant\":{},\"timestamp\":{},\"data\":{}}}",
        quoted(event.id.as_str()),
        quoted(event.event_type.as_str()),
        event.version.as_ref().map(Version::as_str).map_or("null".to_owned(), quoted),
        quoted(event.tenant.as_str()),
        quoted(&event.timestamp.to_rfc3339()),
        event.data.as_str(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_core::event::{Data, EventType, Timing};
    use posthaste_core::id::{EventId, TenantId};
    use posthaste_core::text::Labels;

    #[test]
    fn the_envelope_keeps_the_payload_to_the_byte_and_escapes_the_rest() {
        let at = Timestamp::from_millis(1_775_643_330_250);
        let event = Event {
            id: EventId::parse("evt_1").unwrap(),
            tenant: TenantId::parse("acme").unwrap(),
            event_type: EventType::parse("invoice.paid").unwrap(),
            version: Some(Version::parse("\"quoted\\").unwrap()),
            timestamp: at,
            accepted_at: at,
            data: Data::parse("{ \"b\":1.00, \"a\" : 12345678901234567890123 }").unwrap(),
            labels: Labels::default(),
            idempotency_key: None,
            ordering_key: None,
            timing: Timing::default(),
        };
        assert_eq!(
            envelope(&event),
            r#"{"id":"evt_1","type":"invoice.paid","version":"\"quoted\\","tenant":"acme","timestamp":"2026-04-08T10:15:30.250Z","data":{ "b":1.00, "a" : 12345678901234567890123 }}"#
        );
    }
}
