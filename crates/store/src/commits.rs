//! How many callers share a commit, and how long it takes: counted beside the writing, shown when somebody asks.

use std::time::Duration;

use posthaste_metrics::{Counter, Histogram, Kind, Page};

const CALLERS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
const SECONDS: &[f64] = &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug)]
pub struct Commits {
    callers: Histogram,
    seconds: Histogram,
    failed: Counter,
}

impl Default for Commits {
    fn default() -> Commits {
        Commits { callers: Histogram::new(CALLERS), seconds: Histogram::new(SECONDS), failed: Counter::default() }
    }
}

impl Commits {
    /// A group has been written, or could not be.
    pub(crate) fn group(&self, callers: usize, took: Duration, is_written: bool) {
        self.callers.observe(callers as f64);
        self.seconds.observe_seconds(took);
        if !is_written {
            self.failed.add(1);
        }
    }

    pub fn show(&self, page: &mut Page) {
        let mut callers = page.family("posthaste_commit_callers", Kind::Histogram, "Callers that shared a commit.");
        self.callers.show(&mut callers, &[]);
        let mut seconds = page.family(
            "posthaste_commit_seconds",
            Kind::Histogram,
            "How long a group of writes took, its commit included, in seconds.",
        );
        self.seconds.show(&mut seconds, &[]);
        page.counter("posthaste_commit_failures_total", "Groups of writes that could not be committed.", self.failed.get());
    }
}
