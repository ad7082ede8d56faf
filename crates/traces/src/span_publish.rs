//! `webhook.publish`: an event comes in. Below it: it is read and checked (`create_event`), its endpoints are found
//! (`resolve_subscriptions`), and it is written with its deliveries (`enqueue_deliveries`).

use std::time::Instant;

use posthaste_core::event::Event;
use posthaste_core::id::EventId;
use posthaste_core::trace::Trace;

use crate::moment::Anchor;
use crate::span::{Kind, Parent, Span, Value};

/// What is known of a publishing when it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Publish<'a> {
    pub event: &'a Event,
    /// The route that it came by; `None` for one of our own making.
    pub route: Option<&'static str>,
    /// When the request came.
    pub began: Instant,
    /// When it was read, checked, and given to the store.
    pub created: Instant,
    /// When its endpoints were known, if it came to that.
    pub resolved: Option<Instant>,
    pub ended: Instant,
    pub published_as: PublishedAs<'a>,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishedAs<'a> {
    Made {
        deliveries: u32,
    },
    /// This one was published before.
    Duplicate {
        of: &'a EventId,
    },
    /// The same key or id, and another body.
    Conflict,
    /// It is not acceptable.
    Refused,
    /// The store could not take it.
    Failed,
}

impl Publish<'_> {
    pub(crate) fn spans(&self, trace: Trace) -> Vec<Span> {
        let Publish { event, route, began, created, resolved, ended, published_as } = self;
        let anchor = Anchor::now();
        let this = Parent { trace: trace.id, id: trace.publish };
        let mut publish = Span {
            id: trace.publish,
            parent: trace.caller,
            is_parent_remote: trace.caller.is_some(),
            kind: Kind::Server,
            ..this.step("webhook.publish", anchor.nanos(*began), anchor.nanos(*ended))
        };
        publish.attributes = vec![
            ("messaging.system", Value::word("posthaste")),
            ("messaging.operation.name", Value::word("publish")),
            ("messaging.operation.type", Value::word("send")),
            ("messaging.destination.name", Value::text(&event.event_type)),
            ("messaging.message.id", Value::text(&event.id)),
            ("messaging.message.body.size", Value::count(event.data.as_str().len())),
            ("posthaste.tenant", Value::text(&event.tenant)),
            ("posthaste.event.type", Value::text(&event.event_type)),
        ];
        if let Some(route) = route {
            let of_http = [("http.request.method", Value::word("POST")), ("http.route", Value::word(route))];
            publish.attributes.extend(of_http);
        }
        let result = |word| ("posthaste.publish.result", Value::word(word));
        match published_as {
            PublishedAs::Made { deliveries } => {
                publish.attributes.extend([result("made"), ("posthaste.deliveries", Value::count(*deliveries))]);
            }
            PublishedAs::Duplicate { of } => {
                publish.attributes.extend([result("duplicate"), ("posthaste.duplicate_of", Value::text(of))]);
            }
            PublishedAs::Conflict => {
                publish.attributes.extend([result("conflict"), ("error.type", Value::word("conflict"))]);
            }
            PublishedAs::Refused => {
                publish.attributes.extend([result("refused"), ("error.type", Value::word("too_costly"))]);
            }
            PublishedAs::Failed => {
                publish.attributes.extend([result("failed"), ("error.type", Value::word("unavailable"))]);
                publish.has_failed = true;
            }
        }
        let create = this.step("create_event", anchor.nanos(*began), anchor.nanos(*created));
        let mut spans = vec![publish, create];
        if let Some(resolved) = resolved {
            spans.push(this.step("resolve_subscriptions", anchor.nanos(*created), anchor.nanos(*resolved)));
            let enqueue = this.step("enqueue_deliveries", anchor.nanos(*resolved), anchor.nanos(*ended));
            spans.push(Span { has_failed: *published_as == PublishedAs::Failed, ..enqueue });
        }
        spans
    }
}
