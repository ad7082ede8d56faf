//! The trace that a caller is in, and what is seen of a publishing that somebody looks at.
//!
//! Where nobody has asked for traces this costs a branch; where somebody has, one look at the clock for each request. All else is
//! done for events alone that are looked at.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use http::{HeaderMap, HeaderName};
use posthaste_core::event::Event;
use posthaste_core::trace::TraceContext;
use posthaste_store::{Error, NewEvent, Published as Stored};
use posthaste_traces::{Publish, PublishedAs, Traces};

use crate::App;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// What a request says of its caller's trace. What cannot be read is as if it had not been said: a trace is never worth an event.
pub(crate) fn context_of(headers: &HeaderMap) -> Option<Box<TraceContext>> {
    if !headers.contains_key(&TRACEPARENT) {
        return None;
    }
    // What is no text is not left out, which would make the rest look whole.
    let all = |name| headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?"));
    TraceContext::parse(all(&TRACEPARENT), all(&TRACESTATE)).map(Box::new)
}

/// When a request to publish came, if anybody wants to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishTrace {
    at: Option<Instant>,
    route: &'static str,
}

impl PublishTrace {
    pub(crate) fn now(app: &App, route: &'static str) -> PublishTrace {
        PublishTrace { at: app.options.traces.as_ref().map(|_| Instant::now()), route }
    }
}

/// Where the store notes when it has found an event's endpoints. `None` where nobody looks at the event.
pub(crate) fn mark(app: &App, event: &Event) -> Option<Arc<OnceLock<Instant>>> {
    app.options.traces.as_ref()?.trace_of(event).map(|_| Arc::default())
}

/// Events of a group that are looked at, on their way into the store.
#[derive(Debug)]
pub(crate) struct Traced<'a> {
    traces: &'a Traces,
    route: &'static str,
    began: Instant,
    created: Instant,
    /// With their places in the group.
    events: Vec<(usize, NewEvent)>,
}

impl Traced<'_> {
    pub(crate) fn of<'a>(app: &'a App, began: PublishTrace, group: &[NewEvent]) -> Option<Traced<'a>> {
        let (Some(traces), Some(at)) = (&app.options.traces, began.at) else { return None };
        let is_seen = |(_, new): &(usize, &NewEvent)| new.resolved.is_some();
        let events: Vec<_> = group.iter().enumerate().filter(is_seen).map(|(place, new)| (place, new.clone())).collect();
        if events.is_empty() {
            return None;
        }
        Some(Traced { traces, route: began.route, began: at, created: Instant::now(), events })
    }

    pub(crate) fn ended(&self, stored: &Result<Vec<Stored>, Error>) {
        let ended = Instant::now();
        for (place, new) in &self.events {
            let published_as = match stored.as_ref().ok().and_then(|stored| stored.get(*place)) {
                Some(Stored::Made { deliveries }) => PublishedAs::Made { deliveries: *deliveries },
                Some(Stored::Duplicate { event, .. }) => PublishedAs::Duplicate { of: event },
                Some(Stored::Conflict { .. }) => PublishedAs::Conflict,
                Some(Stored::TooCostly(_)) => PublishedAs::Refused,
                None => PublishedAs::Failed,
            };
            self.traces.published(&Publish {
                event: &new.event,
                route: Some(self.route),
                began: self.began,
                created: self.created,
                resolved: new.resolved.as_ref().and_then(|resolved| resolved.get().copied()),
                ended,
                published_as,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn context(headers: &[(&HeaderName, &[u8])]) -> Option<(String, Option<String>)> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        context_of(&map).map(|context| (context.traceparent(), context.tracestate().map(str::to_owned)))
    }

    #[test]
    fn a_caller_s_trace_is_taken_from_its_headers_and_nonsense_is_not() {
        let parent = (&TRACEPARENT, PARENT.as_bytes());
        let whole = |state: Option<&str>| Some((PARENT.to_owned(), state.map(str::to_owned)));
        assert_eq!(context(&[]), None);
        assert_eq!(context(&[parent]), whole(None));
        assert_eq!(context(&[parent, (&TRACESTATE, b"a=1"), (&TRACESTATE, b"b=2")]), whole(Some("a=1,b=2")));
        assert_eq!(context(&[parent, (&TRACESTATE, b"a=1"), (&TRACESTATE, b"b=\xff")]), whole(None));
        assert_eq!(context(&[parent, parent]), None);
        assert_eq!(context(&[parent, (&TRACEPARENT, b"\xff")]), None);
        assert_eq!(context(&[(&TRACESTATE, b"a=1")]), None);
    }
}
