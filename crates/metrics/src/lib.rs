//! Counts what happens and shows it to Prometheus.
//!
//! There is no global state: whoever runs a server makes one [`Metrics`] and gives it to the parts that count. What a part
//! counts by itself (commits, connections) is gathered when somebody asks, not when it happens. Nothing here waits, and how
//! many series there can be is bounded by [`Limits`], whatever tenants, types and endpoints users make up.

mod backlog;
mod count;
mod deliveries;
mod liveness;
mod note;
mod outbox;
mod page;
mod process;
mod publishing;
mod ranked;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

pub use backlog::{Backlog, BacklogGauges, Held};
pub use count::{Counter, Histogram};
pub use deliveries::Deliveries;
pub use liveness::{Liveness, StallReason};
pub use note::{Attempt, CircuitChange, EndpointStatus, Note};
pub use outbox::Outbox;
pub use page::{Family, Format, Kind, Labels, Page};
pub use publishing::Publishing;
pub use ranked::{Counts, Ranked};

/// How many series there may be for what users make up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Endpoints with series of their own.
    pub endpoints_max: usize,
    /// Pairs of tenant and event type with series of their own.
    pub types_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { endpoints_max: 100, types_max: 200 }
    }
}

/// Writes what some part of the server has counted.
type Gather = Box<dyn Fn(&mut Page) + Send + Sync>;

/// Everything that is counted. Cheap to clone; the clones are one.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    publishing: Publishing,
    deliveries: Deliveries,
    backlog: Backlog,
    liveness: Liveness,
    outbox: Outbox,
    gathered: Mutex<Vec<Gather>>,
    version: &'static str,
}

impl Metrics {
    pub fn new(limits: Limits, version: &'static str) -> Metrics {
        Metrics(Arc::new(Inner {
            publishing: Publishing::new(&limits),
            deliveries: Deliveries::new(&limits),
            backlog: Backlog::default(),
            liveness: Liveness::new(),
            outbox: Outbox::default(),
            gathered: Mutex::new(Vec::new()),
            version,
        }))
    }

    pub fn publishing(&self) -> &Publishing {
        &self.0.publishing
    }

    pub fn deliveries(&self) -> &Deliveries {
        &self.0.deliveries
    }

    pub fn backlog(&self) -> &Backlog {
        &self.0.backlog
    }

    pub fn liveness(&self) -> &Liveness {
        &self.0.liveness
    }

    pub fn outbox(&self) -> &Outbox {
        &self.0.outbox
    }

    /// Has this asked whenever somebody asks for the page.
    pub fn gather(&self, part: impl Fn(&mut Page) + Send + Sync + 'static) {
        self.0.gathered.lock().push(Box::new(part));
    }

    /// The whole page.
    pub fn page(&self, format: Format) -> String {
        let mut page = Page::new(format);
        self.0.publishing.show(&mut page);
        self.0.deliveries.show(&mut page);
        self.0.backlog.show(&mut page);
        self.0.liveness.show(&mut page);
        self.0.outbox.show(&mut page);
        for part in self.0.gathered.lock().iter() {
            part(&mut page);
        }
        page.family("posthaste_build_info", Kind::Gauge, "Which version this is; always 1.")
            .sample(&[("version", &self.0.version)], 1.0);
        process::show(&mut page);
        page.end()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("version", &self.0.version).finish_non_exhaustive()
    }
}
