//! OTLP over HTTP, as bytes: the request that spans are exported with, and what of the answer matters.
//!
//! Protobuf is a key and a value after another, and what we send is five small messages; so they are written here, into one
//! buffer, and a test reads them with the types that OpenTelemetry generates. The numbers are those of opentelemetry-proto 1.x.

use crate::span::{Attributes, Span, Value};

/// `ExportTraceServiceRequest` with these spans. `version` is the server's.
pub(crate) fn request(version: &str, spans: &[Span]) -> Vec<u8> {
    let mut request = Message(Vec::with_capacity(256 + spans.len() * SPAN_BYTES));
    if spans.is_empty() {
        return request.0;
    }
    request.message(1, |resource_spans| {
        resource_spans.message(1, |resource| {
            resource.attribute(1, "service.name", &Value::word("posthaste"));
            resource.attribute(1, "service.version", &Value::text(version));
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| {
                scope.text(1, "posthaste");
                scope.text(2, version);
            });
            for span in spans {
                scope_spans.message(2, |message| message.span(span));
            }
        });
    });
    request.0
}

/// About what a span takes.
const SPAN_BYTES: usize = 512;
/// The trace is looked at.
const FLAG_SAMPLED: u32 = 1;
/// It is known whether the parent is of another process, and it is.
const FLAGS_REMOTE: u32 = 0x300;
const STATUS_ERROR: u64 = 2;

struct Message(Vec<u8>);

/// How a value is written.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Fixed32 = 5,
}

impl Message {
    fn span(&mut self, span: &Span) {
        self.bytes(1, &span.trace.to_bytes());
        self.bytes(2, &span.id.to_bytes());
        if let Some(parent) = span.parent {
            self.bytes(4, &parent.to_bytes());
        }
        self.text(5, span.name);
        self.number(6, span.kind as u64);
        self.fixed64(7, span.began);
        self.fixed64(8, span.ended);
        self.attributes(9, &span.attributes);
        if span.has_failed {
            self.message(15, |status| status.number(3, STATUS_ERROR));
        }
        self.fixed32(16, FLAG_SAMPLED | if span.is_parent_remote { FLAGS_REMOTE } else { 0 });
    }

    fn attributes(&mut self, field: u32, attributes: &Attributes) {
        for (name, value) in attributes {
            self.attribute(field, name, value);
        }
    }

    fn attribute(&mut self, field: u32, name: &str, value: &Value) {
        self.message(field, |attribute| {
            attribute.text(1, name);
            attribute.message(2, |any| match value {
                Value::Text(text) => any.text(1, text),
                Value::Number(number) => any.number(3, number.cast_unsigned()),
            });
        });
    }

    /// What is written into it comes after its length, which is known only then.
    fn message(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        self.key(field, Wire::Bytes);
        let start = self.0.len();
        write(self);
        let mut length = Message(Vec::with_capacity(10));
        length.varint((self.0.len() - start) as u64);
        self.0.splice(start..start, length.0);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, Wire::Bytes);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, field: u32, number: u64) {
        self.key(field, Wire::Varint);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u32, number: u64) {
        self.key(field, Wire::Fixed64);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed32(&mut self, field: u32, number: u32) {
        self.key(field, Wire::Fixed32);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn key(&mut self, field: u32, wire: Wire) {
        self.varint(u64::from(field) << 3 | wire as u64);
    }

    /// Seven bits a byte, the lowest first; all but the last have the eighth set.
    fn varint(&mut self, mut number: u64) {
        while let Some(more) = Some(number >> 7).filter(|more| *more > 0) {
            self.0.push((number & 0x7f) as u8 | 0x80);
            number = more;
        }
        self.0.push((number & 0x7f) as u8);
    }
}

/// How many spans a collector has thrown away although it has taken the request: `partial_success.rejected_spans`. An answer that
/// cannot be read says nothing.
pub(crate) fn rejected_spans(answer: &[u8]) -> u64 {
    let rejected = |partial_success| Fields(partial_success).numbers(1).next();
    Fields(answer).messages(1).find_map(rejected).unwrap_or(0)
}

/// How many spans are in a request, for whoever stands in for a collector.
pub fn spans_in(request: &[u8]) -> usize {
    let scopes = Fields(request).messages(1).flat_map(|resource_spans| Fields(resource_spans).messages(2));
    scopes.map(|scope_spans| Fields(scope_spans).messages(2).count()).sum()
}

/// The fields of a message, as far as they can be read.
struct Fields<'a>(&'a [u8]);

enum Found<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    fn messages(self, wanted: u64) -> impl Iterator<Item = &'a [u8]> {
        self.filter_map(move |(field, found)| match found {
            Found::Bytes(bytes) if field == wanted => Some(bytes),
            Found::Bytes(_) | Found::Number(_) => None,
        })
    }

    fn numbers(self, wanted: u64) -> impl Iterator<Item = u64> {
        self.filter_map(move |(field, found)| match found {
            Found::Number(number) if field == wanted => Some(number),
            Found::Number(_) | Found::Bytes(_) => None,
        })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Found<'a>);

    fn next(&mut self) -> Option<(u64, Found<'a>)> {
        let rest = &mut self.0;
        let key = read_varint(rest)?;
        let found = match key & 7 {
            0 => Found::Number(read_varint(rest)?),
            1 => Found::Bytes(rest.split_off(..8)?),
            2 => {
                let length = usize::try_from(read_varint(rest)?).ok()?;
                Found::Bytes(rest.split_off(..length)?)
            }
            5 => Found::Bytes(rest.split_off(..4)?),
            _ => return None,
        };
        Some((key >> 3, found))
    }
}

fn read_varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..10 {
        let byte = message.split_off_first()?;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
    use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
    use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
    use posthaste_core::trace::{SpanId, TraceId};
    use prost::Message as _;

    use super::*;
    use crate::span::{Kind, Parent};

    fn attribute(key: &str, value: Any) -> KeyValue {
        KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
    }

    #[test]
    fn what_is_written_reads_as_the_messages_of_opentelemetry() {
        let above = Parent { trace: TraceId::new(0x0102).unwrap(), id: SpanId::new(0x0304).unwrap() };
        let long = "ä".repeat(200);
        let child = Span {
            kind: Kind::Client,
            attributes: vec![("long", Value::text(&long)), ("big", Value::Number(i64::MAX)), ("small", Value::Number(-1))],
            has_failed: true,
            ..above.step("child", 1, u64::MAX)
        };
        let root = Span { parent: None, is_parent_remote: true, ..above.step("root", 0, 300) };
        let bytes = request("1.2.3", &[child.clone(), root]);
        assert_eq!(spans_in(&bytes), 2);
        let read = ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
        let [resource_spans] = read.resource_spans.as_slice() else { panic!("one resource") };
        let resource = resource_spans.resource.as_ref().unwrap();
        let text = |text: &str| Any::StringValue(text.to_owned());
        assert_eq!(
            resource.attributes,
            [attribute("service.name", text("posthaste")), attribute("service.version", text("1.2.3"))]
        );
        let [scope_spans] = resource_spans.scope_spans.as_slice() else { panic!("one scope") };
        assert_eq!(scope_spans.scope.as_ref().unwrap().version, "1.2.3");
        let [read_child, read_root] = scope_spans.spans.as_slice() else { panic!("two spans") };
        assert_eq!(read_child.trace_id, 0x0102_u128.to_be_bytes());
        assert_eq!(read_child.span_id, child.id.to_bytes());
        assert_eq!(read_child.parent_span_id, 0x0304_u64.to_be_bytes());
        assert_eq!((read_child.name.as_str(), read_child.kind, read_child.flags), ("child", 3, 1));
        assert_eq!((read_child.start_time_unix_nano, read_child.end_time_unix_nano), (1, u64::MAX));
        let expected =
            [attribute("long", text(&long)), attribute("big", Any::IntValue(i64::MAX)), attribute("small", Any::IntValue(-1))];
        assert_eq!(read_child.attributes, expected);
        assert_eq!(read_child.status.as_ref().unwrap().code(), StatusCode::Error);
        assert_eq!((read_root.parent_span_id.len(), read_root.kind, read_root.flags), (0, 1, 0x301));
        assert_eq!(read_root.status, None);
    }

    #[test]
    fn what_a_collector_has_thrown_away_is_read_and_nonsense_is_nothing() {
        let answer = |rejected_spans| ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess { rejected_spans, error_message: "too many".to_owned() }),
        };
        for rejected in [0, 1, 300, i64::MAX] {
            assert_eq!(rejected_spans(&answer(rejected).encode_to_vec()), u64::try_from(rejected).unwrap());
        }
        let whole = answer(300).encode_to_vec();
        for cut in 0..whole.len() {
            assert_eq!(rejected_spans(&whole[..cut]), 0, "cut at {cut}");
        }
        for nonsense in [&b"{}"[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"] {
            assert_eq!(rejected_spans(nonsense), 0);
        }
    }
}
