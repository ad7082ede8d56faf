//! Tells an OpenTelemetry collector what became of some events.
//!
//! One event is one trace: `webhook.publish` and, below it, `webhook.deliver` for each attempt, whenever and on whichever node
//! that is made. Which trace it is, and whether anybody looks at it, is decided in `core::trace`. Whoever publishes or delivers an
//! event that is looked at keeps a few moments in mind and hands them over at the end; spans are made of them then. Nobody waits
//! for a collector: what does not fit into the queue is dropped, and counted.
//!
//! Spans have ids, names and numbers in them. They never have payloads, headers, secrets, or more of a receiver's URL than its
//! scheme, host and port: a path may be as good as a password.

mod collector;
mod export;
mod moment;
mod otlp;
mod span;
mod span_deliver;
mod span_publish;

use std::fmt;
use std::sync::Arc;

use posthaste_core::event::Event;
use posthaste_core::trace::{Sampler, Trace};
use posthaste_metrics::Page;
use tokio::sync::mpsc;

use collector::Line;
pub use collector::{Collector, CollectorHeader, Unusable};
pub use export::Exporter;
use export::{Counts, QUEUE_TRACES_MAX};
pub use otlp::spans_in;
use span::Span;
pub use span_deliver::{Attempt, AttemptEnd, AttemptStart, RecordStatus, Server};
pub use span_publish::{Publish, PublishedAs};

/// What the operator has set.
#[derive(Clone, Debug)]
pub struct Options {
    pub collector: Collector,
    /// Sent with every request. They may be credentials.
    pub headers: Vec<CollectorHeader>,
    /// Of all events, from 0 to 1. A caller's own trace is looked at if the caller looks at it.
    pub sample_ratio: f64,
    /// Certificates to trust beside the usual ones (PEM).
    pub extra_roots: Vec<u8>,
    /// Of the server.
    pub version: &'static str,
}

/// Looks at some events. Cheap to clone; the clones are one.
#[derive(Clone)]
pub struct Traces(Arc<Inner>);

struct Inner {
    sampler: Sampler,
    queue: mpsc::Sender<Vec<Span>>,
    counts: Arc<Counts>,
}

impl Traces {
    /// Begins to export, on the runtime that it is called on.
    pub fn start(options: &Options) -> Result<(Traces, Exporter), Unusable> {
        let line = Line::new(options)?;
        let (queue, queued) = mpsc::channel(QUEUE_TRACES_MAX);
        let counts = Arc::new(Counts::default());
        let exporter = Exporter::start(line, queued, Arc::clone(&counts), options.version);
        Ok((Traces(Arc::new(Inner { sampler: Sampler::new(options.sample_ratio), queue, counts })), exporter))
    }

    /// `None` where nobody looks at it.
    pub fn trace_of(&self, event: &Event) -> Option<Trace> {
        self.0.sampler.trace_of(event)
    }

    /// An event was published, or could not be.
    pub fn published(&self, publish: &Publish<'_>) {
        if let Some(trace) = self.trace_of(publish.event) {
            self.hand_over(publish.spans(trace));
        }
    }

    /// An attempt is recorded, or cannot be.
    pub fn attempted(&self, attempt: &Attempt, ended: &AttemptEnd) {
        self.hand_over(attempt.spans(ended));
    }

    fn hand_over(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        self.0.counts.handed_over.add(count);
        if self.0.queue.try_send(spans).is_err() {
            self.0.counts.dropped_queue_full.add(count);
        }
    }

    /// What was exported and what was not.
    pub fn show(&self, page: &mut Page) {
        self.0.counts.show(page);
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").field("sampler", &self.0.sampler).finish_non_exhaustive()
    }
}

/// Whether a collector takes traces: an empty request, as they are sent later. Answers in words what is wrong.
pub async fn probe(options: &Options) -> Result<(), String> {
    let mut line = Line::new(options).map_err(|error| error.to_string())?;
    line.send(otlp::request(options.version, &[]).into()).await.map(|_| ()).map_err(|trouble| trouble.to_string())
}
