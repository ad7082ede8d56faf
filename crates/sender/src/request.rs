//! The request: body, headers, signature.
//!
//! The id and the body are the same in every try of an event, replays included; timestamp and signature are of this one. Headers of
//! the endpoint's own come last and never replace one of ours.

use std::fmt;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{HeaderMap, HeaderName, Method, Request, Uri};
use http_body_util::Full;
use posthaste_core::destination::{Destination, DestinationError};
use posthaste_core::endpoint::{HeaderNames, Headers, HexPrefix, PayloadFormat, Signing};
use posthaste_core::event::Event;
use posthaste_core::id::DeliveryId;
use posthaste_core::time::Timestamp;
use posthaste_core::trace::{self, PassedOn, SpanId, Trace};
pub use posthaste_signing::SecretError;
use posthaste_signing::{HexSecret, Key, Secret, SigningKey, standard, timestamp_hex};

/// One try of one delivery.
#[derive(Clone, Copy, Debug)]
pub struct Try<'a> {
    pub delivery: DeliveryId,
    /// Counted from 1.
    pub attempt: u32,
    pub event: &'a Event,
    pub address: &'a Address,
    pub signer: &'a Signer,
    pub payload_format: PayloadFormat,
    /// The endpoint's own.
    pub headers: &'a Headers,
    /// When it is sent: what the receiver compares with its clock.
    pub now: Timestamp,
    /// The span of this request, if somebody looks at it.
    pub span: Option<(Trace, SpanId)>,
}

/// An endpoint's URL, read once and not for every try, in the spelling that is sent. Whether it may be sent to is asked when it is.
#[derive(Clone)]
pub struct Address {
    pub(crate) destination: Destination,
    pub(crate) url: Uri,
    /// Host and port as the URL has them.
    pub(crate) host: HeaderValue,
}

impl Address {
    pub fn parse(text: &str) -> Result<Address, DestinationError> {
        let destination = Destination::parse(text)?;
        let unsendable = || DestinationError::Unreadable("it cannot be sent in a request");
        let url: Uri = destination.as_str().parse().map_err(|_| unsendable())?;
        let authority = url.authority().ok_or_else(unsendable)?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| unsendable())?;
        Ok(Address { destination, url, host })
    }

    pub fn url(&self) -> &Uri {
        &self.url
    }
}

/// Of a URL only its host: a path may be a credential.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.destination.fmt(f)
    }
}

/// Signs as one endpoint wants it, with each of the secrets that are in force.
pub enum Signer {
    Standard(Vec<StandardKey>),
    TimestampHex { secrets: Vec<HexSecret>, prefix: HexPrefix, header_names: HeaderNames },
}

/// A key of Standard Webhooks. Of which kind it is says how it begins, so that an endpoint can change from one to the other with both
/// in force.
pub enum StandardKey {
    /// `whsec_…`, signs as `v1`.
    Shared(Secret),
    /// `whsk_…`, signs as `v1a`.
    Signing(SigningKey),
}

impl Signer {
    /// `secrets` as they were shown, the newest first.
    pub fn new<'a>(signing: &Signing, secrets: impl IntoIterator<Item = &'a str>) -> Result<Signer, SecretError> {
        let mut secrets = secrets.into_iter();
        match signing {
            Signing::Standard | Signing::StandardEd25519 => {
                let key = |text: &str| {
                    if text.starts_with("whsk_") {
                        SigningKey::parse(text).map(StandardKey::Signing)
                    } else {
                        Secret::parse(text).map(StandardKey::Shared)
                    }
                };
                Ok(Signer::Standard(secrets.map(key).collect::<Result<_, _>>()?))
            }
            Signing::TimestampHex { prefix, header_names } => Ok(Signer::TimestampHex {
                secrets: secrets.try_fold(Vec::new(), |mut parsed, text| {
                    parsed.push(HexSecret::parse(text)?);
                    Ok(parsed)
                })?,
                prefix: *prefix,
                header_names: header_names.clone(),
            }),
        }
    }
}

/// Nothing of a secret is shown.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Signer::Standard(keys) => write!(f, "Standard({} keys)", keys.len()),
            Signer::TimestampHex { secrets, .. } => write!(f, "TimestampHex({} keys)", secrets.len()),
        }
    }
}

impl fmt::Debug for StandardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StandardKey::Shared(_) => f.write_str("Shared(…)"),
            StandardKey::Signing(_) => f.write_str("Signing(…)"),
        }
    }
}

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const DELIVERY: HeaderName = HeaderName::from_static("posthaste-delivery");
const ATTEMPT: HeaderName = HeaderName::from_static("posthaste-attempt");
const EVENT_TYPE: HeaderName = HeaderName::from_static("posthaste-event-type");
const EVENT_TIMESTAMP: HeaderName = HeaderName::from_static("posthaste-event-timestamp");
const TENANT: HeaderName = HeaderName::from_static("posthaste-tenant");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const USER_AGENT_VALUE: &str = concat!("Posthaste/", env!("CARGO_PKG_VERSION"));

/// Everything a receiver gets.
pub fn build(one_try: &Try<'_>) -> Request<Full<Bytes>> {
    let Try { delivery, attempt, event, address, signer, payload_format, headers: own, now, span } = one_try;
    let (body, content_type) = match payload_format {
        PayloadFormat::Envelope => (envelope(event), "application/json"),
        PayloadFormat::Data => (event.data.as_str().to_owned(), "application/json"),
        PayloadFormat::CloudEvents => (cloud_event(event), "application/cloudevents+json"),
    };
    let seconds = now.as_seconds();
    let mut headers = HeaderMap::with_capacity(16);
    // Some servers insist on its being the first.
    headers.insert(HOST, address.host.clone());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
    let mut set = |name: HeaderName, value: String| {
        let value = HeaderValue::try_from(value).expect("ids, numbers, hex, base64 and traces are visible ASCII");
        headers.insert(name, value);
    };
    let delivery = delivery.to_string();
    set(WEBHOOK_ID, event.id.as_str().to_owned());
    set(DELIVERY, delivery.clone());
    set(ATTEMPT, attempt.to_string());
    if let PayloadFormat::Data = payload_format {
        // The body says nothing about the event itself.
        set(EVENT_TYPE, event.event_type.as_str().to_owned());
        set(EVENT_TIMESTAMP, event.timestamp.to_rfc3339());
        set(TENANT, event.tenant.as_str().to_owned());
    }
    if let Some(PassedOn { traceparent, tracestate }) = trace::passed_on(event, *span) {
        set(TRACEPARENT, traceparent);
        if let Some(tracestate) = tracestate {
            set(TRACESTATE, tracestate.to_owned());
        }
    }
    match signer {
        Signer::Standard(keys) => {
            let keys: Vec<Key<'_>> = keys.iter().map(StandardKey::as_key).collect();
            set(WEBHOOK_TIMESTAMP, seconds.to_string());
            set(WEBHOOK_SIGNATURE, standard::sign(&keys, event.id.as_str(), seconds, body.as_bytes()));
        }
        Signer::TimestampHex { secrets, prefix, header_names } => {
            let name = |chosen: &str| HeaderName::from_bytes(chosen.as_bytes()).expect("names that an endpoint chose were checked");
            set(name(header_names.id()), event.id.as_str().to_owned());
            set(name(header_names.delivery()), delivery);
            set(name(header_names.timestamp()), seconds.to_string());
            set(name(header_names.signature()), timestamp_hex::sign(secrets, prefix.as_str(), seconds, body.as_bytes()));
        }
    }
    for (name, value) in own.iter() {
        let (Ok(name), Ok(mut value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) else { continue };
        // It may be a credential: an answer that echoes it is redacted.
        value.set_sensitive(true);
        headers.entry(name).or_insert(value);
    }
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = address.url.clone();
    *request.headers_mut() = headers;
    request
}

impl StandardKey {
    fn as_key(&self) -> Key<'_> {
        match self {
            StandardKey::Shared(secret) => Key::Shared(secret),
            StandardKey::Signing(key) => Key::Signing(key),
        }
    }
}

/// What an envelope has around its payload, at most: three names of 128 characters, a version of 64, and the words between them.
const AROUND_DATA_BYTES: usize = 640;

/// `data` goes in as it came, to the byte; everything around it is ours.
fn envelope(event: &Event) -> String {
    let mut text = String::with_capacity(event.data.as_str().len() + AROUND_DATA_BYTES);
    field(&mut text, "{\"id\":", event.id.as_str());
    field(&mut text, ",\"type\":", event.event_type.as_str());
    match &event.version {
        Some(version) => field(&mut text, ",\"version\":", version.as_str()),
        None => text.push_str(",\"version\":null"),
    }
    field(&mut text, ",\"tenant\":", event.tenant.as_str());
    field(&mut text, ",\"timestamp\":", &event.timestamp.to_rfc3339());
    labels(&mut text, event);
    payload(&mut text, event);
    text
}

/// `CloudEvents` 1.0 in structured mode. Whose event it is makes the source; id and source together are unique, as it asks.
fn cloud_event(event: &Event) -> String {
    let mut text = String::with_capacity(event.data.as_str().len() + AROUND_DATA_BYTES);
    field(&mut text, "{\"specversion\":\"1.0\",\"id\":", event.id.as_str());
    field(&mut text, ",\"source\":", &format!("/tenants/{}", event.tenant));
    field(&mut text, ",\"type\":", event.event_type.as_str());
    field(&mut text, ",\"time\":", &event.timestamp.to_rfc3339());
    field(&mut text, ",\"tenant\":", event.tenant.as_str());
    if let Some(version) = &event.version {
        field(&mut text, ",\"version\":", version.as_str());
    }
    text.push_str(",\"datacontenttype\":\"application/json\"");
    payload(&mut text, event);
    text
}

/// Only where there are any.
fn labels(text: &mut String, event: &Event) {
    for (place, label) in event.labels.iter().enumerate() {
        field(text, if place == 0 { ",\"labels\":[" } else { "," }, label.as_str());
    }
    if !event.labels.is_empty() {
        text.push(']');
    }
}

fn payload(text: &mut String, event: &Event) {
    text.push_str(",\"data\":");
    text.push_str(event.data.as_str());
    text.push('}');
}

/// A name as it is written, and its value in quotes.
fn field(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    if value.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        text.push('"');
        text.push_str(value);
        text.push('"');
    } else {
        text.push_str(&serde_json::Value::from(value).to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use http_body_util::BodyExt;
    use posthaste_core::event::{Data, EventType, Timing};
    use posthaste_core::id::{EventId, TenantId};
    use posthaste_core::text::{Labels, Version};
    use posthaste_core::trace::{Sampler, TraceContext};
    use posthaste_signing::{Received, TOLERANCE};
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
    use std::fmt::Write;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn event() -> Event {
        let at = Timestamp::from_millis(1_775_643_330_250);
        Event {
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
            trace: None,
        }
    }

    fn request(signing: &Signing, secrets: &[&str], payload_format: PayloadFormat, own: &[(&str, &str)]) -> Request<Full<Bytes>> {
        build(&Try {
            delivery: DeliveryId::from_bytes(7_u128.to_be_bytes()),
            attempt: 3,
            event: &event(),
            address: &Address::parse("https://Example.com:8443/hooks?x=1#y").unwrap(),
            signer: &Signer::new(signing, secrets.iter().copied()).unwrap(),
            payload_format,
            // Checked for another scheme, as happens when an endpoint changes its scheme.
            headers: &Headers::new(own.iter().copied(), &Signing::Standard).unwrap(),
            now: Timestamp::from_millis(1_800_000_000_999),
            span: None,
        })
    }

    fn body(request: Request<Full<Bytes>>) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(request.into_body().collect()).unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    fn check(request: Request<Full<Bytes>>, expected: &Expect) {
        let mut shown = format!("{} {}\n", request.method(), request.uri());
        for (name, value) in request.headers() {
            writeln!(shown, "{name}: {}", value.to_str().unwrap()).unwrap();
        }
        shown += &body(request);
        expected.assert_eq(&shown);
    }

    #[test]
    fn a_receiver_gets_the_headers_of_the_contract_and_the_envelope() {
        check(
            request(&Signing::Standard, &[SECRET], PayloadFormat::Envelope, &[("X-Own", "1")]),
            &expect![[r#"
            POST https://example.com:8443/hooks?x=1
            host: example.com:8443
            content-type: application/json
            user-agent: Posthaste/0.1.0
            webhook-id: evt_1
            posthaste-delivery: dlv_00000000000000000000000007
            posthaste-attempt: 3
            webhook-timestamp: 1800000000
            webhook-signature: v1,oiXJY2XoR4jgF+dqvD9CTNKnx1j4Nrowv3UYURQmCwM=
            x-own: 1
            {"id":"evt_1","type":"invoice.paid","version":"\"quoted\\","tenant":"acme","timestamp":"2026-04-08T10:15:30.250Z","data":{ "b":1.00, "a" : 12345678901234567890123 }}"#]],
        );
    }

    #[test]
    fn the_hex_style_uses_the_names_that_were_chosen() {
        let header_names = HeaderNames::new("X-Id", "X-Delivery", "X-Time", "X-Sig").unwrap();
        let hex = Signing::TimestampHex { prefix: HexPrefix::Sha256, header_names };
        check(
            request(&hex, &[SECRET, "an-old-secret-of-theirs"], PayloadFormat::Data, &[]),
            &expect![[r#"
                POST https://example.com:8443/hooks?x=1
                host: example.com:8443
                content-type: application/json
                user-agent: Posthaste/0.1.0
                webhook-id: evt_1
                posthaste-delivery: dlv_00000000000000000000000007
                posthaste-attempt: 3
                posthaste-event-type: invoice.paid
                posthaste-event-timestamp: 2026-04-08T10:15:30.250Z
                posthaste-tenant: acme
                x-id: evt_1
                x-delivery: dlv_00000000000000000000000007
                x-time: 1800000000
                x-sig: sha256=2b4a4b3f59cb9f2833da85192271193528fdc210ff9c47a2374fb28f2ad2a884,sha256=ec5699e22c13cca2f10f565a6dea1cf8d94007196fcb314e404aa895928201cb
                { "b":1.00, "a" : 12345678901234567890123 }"#]],
        );
    }

    #[test]
    fn a_cloud_event_has_the_required_attributes_and_the_payload_to_the_byte() {
        let built = request(&Signing::Standard, &[SECRET], PayloadFormat::CloudEvents, &[]);
        assert_eq!(built.headers()[CONTENT_TYPE], "application/cloudevents+json");
        let body = body(built);
        assert!(body.ends_with(&format!("\"data\":{}}}", event().data.as_str())), "{body}");
        let read: serde_json::Value = serde_json::from_str(&body).unwrap();
        for (name, value) in [
            ("specversion", "1.0"),
            ("id", "evt_1"),
            ("source", "/tenants/acme"),
            ("type", "invoice.paid"),
            ("time", "2026-04-08T10:15:30.250Z"),
            ("datacontenttype", "application/json"),
            ("tenant", "acme"),
            ("version", "\"quoted\\"),
        ] {
            assert_eq!(read[name], value, "{name}");
        }
        let named = |name: &&String| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        assert!(read.as_object().unwrap().keys().all(|name| named(&name)), "no other characters are allowed in names");
    }

    #[test]
    fn an_envelope_has_the_labels_that_there_are_before_its_data() {
        let label = |text: &str| posthaste_core::text::Label::parse(text).unwrap();
        let with = |labels: Vec<posthaste_core::text::Label>| envelope(&Event { labels: Labels::new(labels).unwrap(), ..event() });
        assert!(!with(vec![]).contains("labels"));
        let labelled = with(vec![label("eu"), label("a \"quoted\" one")]);
        assert!(labelled.contains(r#""labels":["eu","a \"quoted\" one"],"data":{ "b":1.00"#), "{labelled}");
        serde_json::from_str::<serde_json::Value>(&labelled).unwrap();
    }

    #[test]
    fn data_alone_comes_with_headers_that_say_what_it_is() {
        let built = request(&Signing::Standard, &[SECRET], PayloadFormat::Data, &[]);
        let header = |name: &str| built.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("posthaste-event-type"), "invoice.paid");
        assert_eq!(header("posthaste-event-timestamp"), event().timestamp.to_rfc3339());
        assert_eq!(header("posthaste-tenant"), "acme");
        let enveloped = request(&Signing::Standard, &[SECRET], PayloadFormat::Envelope, &[]);
        assert!(!enveloped.headers().contains_key("posthaste-event-type"));
    }

    #[test]
    fn every_scheme_verifies_with_every_secret_in_force() {
        let ed25519 = SigningKey::from_random([7; 32]);
        let shown = ed25519.reveal();
        let (now, tolerance) = (1_800_000_000, TOLERANCE);
        for format in [PayloadFormat::Envelope, PayloadFormat::Data, PayloadFormat::CloudEvents] {
            let built = request(&Signing::StandardEd25519, &[shown.as_str(), SECRET], format, &[]);
            let headers = built.headers().clone();
            let header = |name: &str| headers[name].to_str().unwrap();
            let body = body(built);
            let received =
                Received { timestamp: header("webhook-timestamp"), signature: header("webhook-signature"), body: body.as_bytes() };
            let shared = Secret::parse(SECRET).unwrap();
            for key in [Key::Shared(&shared), Key::Signing(&ed25519)] {
                standard::verify(header("webhook-id"), &received, now, tolerance, &[key]).unwrap();
            }
        }
        let hex = Signing::TimestampHex { prefix: HexPrefix::V1, header_names: HeaderNames::default() };
        let built = request(&hex, &[SECRET], PayloadFormat::Envelope, &[]);
        let headers = built.headers().clone();
        let header = |name: &str| headers[name].to_str().unwrap();
        let body = body(built);
        let received =
            Received { timestamp: header("x-webhook-timestamp"), signature: header("x-webhook-signature"), body: body.as_bytes() };
        timestamp_hex::verify(&received, "v1=", now, tolerance, &[HexSecret::parse(SECRET).unwrap()]).unwrap();
    }

    #[test]
    fn headers_of_the_endpoint_s_own_never_replace_ours() {
        let hex = Signing::TimestampHex { prefix: HexPrefix::V1, header_names: HeaderNames::default() };
        let forged = [("X-Webhook-Signature", "v1=00"), ("x-webhook-event-id", "evt_2"), ("X-Mine", "kept")];
        let built = request(&hex, &[SECRET], PayloadFormat::Envelope, &forged);
        assert_eq!(built.headers().get_all("x-webhook-signature").iter().count(), 1);
        assert_ne!(built.headers()["x-webhook-signature"], "v1=00");
        assert_eq!(built.headers()["x-webhook-event-id"], "evt_1");
        assert_eq!(built.headers()["x-mine"], "kept");
        assert!(built.headers()["x-mine"].is_sensitive() && !built.headers()["webhook-id"].is_sensitive());
    }

    #[test]
    fn a_receiver_is_told_of_the_trace_whatever_the_endpoint_s_own_headers_say() {
        const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::parse([PARENT], ["a=1,b=x y"]).map(Box::new);
        let event = Event { trace: context, ..event() };
        let address = Address::parse("https://example.com").unwrap();
        let signer = Signer::new(&Signing::Standard, [SECRET]).unwrap();
        let own = Headers::new([("x-own", "1")], &Signing::Standard).unwrap();
        let sent = |event: &Event, span| {
            let one_try = Try {
                delivery: DeliveryId::from_bytes([7; 16]),
                attempt: 1,
                event,
                address: &address,
                signer: &signer,
                payload_format: PayloadFormat::Envelope,
                headers: &own,
                now: event.accepted_at,
                span,
            };
            let headers = build(&one_try).headers().clone();
            ["traceparent", "tracestate"].map(|name| headers.get(name).map(|value| value.to_str().unwrap().to_owned()))
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(sent(&event, None), [text(PARENT), text("a=1,b=x y")]);
        let trace = Sampler::new(1.0).trace_of(&event).unwrap();
        let below = format!("00-{}-0000000000000009-01", trace.id);
        assert_eq!(sent(&event, Some((trace, SpanId::from_draw(9)))), [Some(below), text("a=1,b=x y")]);
        assert_eq!(sent(&Event { trace: None, ..event }, None), [None, None]);
    }

    #[test]
    fn a_secret_of_another_kind_is_refused_and_none_is_shown() {
        assert!(Signer::new(&Signing::Standard, ["hunter2"]).is_err());
        assert!(Signer::new(&Signing::Standard, ["whsk_AAAA"]).is_err());
        let signer = Signer::new(&Signing::Standard, [SECRET]).unwrap();
        assert_eq!(format!("{signer:?}"), "Standard(1 keys)");
    }

    proptest! {
        #[test]
        fn whatever_a_value_is_its_quotes_are_those_of_json(value in "[ -~é\u{0}-\u{1f}\u{7f}\u{2028}\"\\\\]{0,12}") {
            let mut written = String::new();
            field(&mut written, "", &value);
            prop_assert_eq!(serde_json::from_str::<String>(&written).unwrap(), value);
        }

        #[test]
        fn every_url_that_may_be_sent_to_can_be_sent(host in "[a-zé]{1,8}\\.[a-z]{2,4}", rest in "([/?][!-~é]{0,20}){0,3}") {
            let text = format!("https://{host}{rest}");
            let Ok(destination) = Destination::parse(&text) else { return Ok(()) };
            let address = Address::parse(&text);
            prop_assert!(address.is_ok(), "{}", text);
            prop_assert_eq!(Destination::parse(&address.unwrap().url.to_string()), Ok(destination));
        }
    }
}
