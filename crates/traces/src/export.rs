//! Takes spans from the queue to the collector, many at a time, beside everything else.
//!
//! A collector that is slow, down or hangs costs spans and nothing more: a request has a time limit, a batch has a few tries, and
//! meanwhile the queue fills up and what comes then is dropped by whoever brings it. All of it is counted; in the log there is a
//! line now and then.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_metrics::{Counter, Kind, Page};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::collector::{ExportError, Line};
use crate::otlp;
use crate::span::Span;

/// Publishings and attempts that wait to be exported: some seconds' worth where all are, and at most some twenty megabytes.
pub(crate) const QUEUE_TRACES_MAX: usize = 8_192;
/// About a megabyte.
const REQUEST_SPANS_MAX: usize = 2_048;
/// How long a span waits for company.
const COLLECTED_FOR: Duration = Duration::from_secs(1);
/// Tries of one batch, and the pauses between them.
const TRIES_MAX: u32 = 5;
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Between two lines in the log.
const TOLD_EVERY: Duration = Duration::from_mins(1);
/// What a stop waits for the last spans.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// Every span that was handed over is in exactly one of the others, or still on its way.
#[derive(Default, Debug)]
pub(crate) struct Counts {
    pub(crate) handed_over: Counter,
    exported: Counter,
    pub(crate) dropped_queue_full: Counter,
    dropped_unreachable: Counter,
    dropped_refused: Counter,
    dropped_rejected: Counter,
    dropped_stopped: Counter,
}

impl Counts {
    pub(crate) fn show(&self, page: &mut Page) {
        page.counter("posthaste_spans_exported_total", "Spans that the collector has taken.", self.exported.get());
        let help = "Spans that were not exported: the queue was full, the collector could not be reached or had no time, it refused the \
                    request, it rejected them, or the server was stopped.";
        let mut dropped = page.family("posthaste_spans_dropped_total", Kind::Counter, help);
        for (reason, counter) in [
            ("queue_full", &self.dropped_queue_full),
            ("unreachable", &self.dropped_unreachable),
            ("refused", &self.dropped_refused),
            ("rejected", &self.dropped_rejected),
            ("stopped", &self.dropped_stopped),
        ] {
            dropped.sample(&[("reason", &reason)], counter.get() as f64);
        }
    }

    fn dropped(&self) -> u64 {
        let all = [
            &self.dropped_queue_full,
            &self.dropped_unreachable,
            &self.dropped_refused,
            &self.dropped_rejected,
            &self.dropped_stopped,
        ];
        all.iter().map(|counter| counter.get()).sum()
    }

    fn on_their_way(&self) -> u64 {
        self.handed_over.get().saturating_sub(self.exported.get() + self.dropped())
    }
}

/// The export, from the side of whoever stops it.
#[derive(Debug)]
pub struct Exporter {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    counts: Arc<Counts>,
}

impl Exporter {
    pub(crate) fn start(line: Line, queued: mpsc::Receiver<Vec<Span>>, counts: Arc<Counts>, version: &'static str) -> Exporter {
        let (stop, stopped) = watch::channel(false);
        let export = Export { line, queued, stopped, counts: Arc::clone(&counts), version, trouble: None };
        Exporter { stop, task: tokio::spawn(export.run()), counts }
    }

    /// Exports what is still there, if that does not take long.
    pub async fn finish(mut self) {
        let _ = self.stop.send(true);
        if timeout(FLUSH_MAX, &mut self.task).await.is_err() {
            self.task.abort();
            let lost = self.counts.on_their_way();
            self.counts.dropped_stopped.add(lost);
            tracing::warn!(spans = lost, "the collector did not take the last spans in time: they are lost");
        }
    }
}

struct Export {
    line: Line,
    queued: mpsc::Receiver<Vec<Span>>,
    stopped: watch::Receiver<bool>,
    counts: Arc<Counts>,
    version: &'static str,
    trouble: Option<LoggedFailure>,
}

/// Trouble that was told of, when, and how many had been dropped by then.
struct LoggedFailure {
    at: Instant,
    dropped: u64,
}

impl Export {
    async fn run(mut self) {
        while let Some(batch) = self.next_batch().await {
            self.export(&batch).await;
        }
    }

    /// `None` once everything is exported and nothing more will come.
    async fn next_batch(&mut self) -> Option<Vec<Span>> {
        let mut batch = tokio::select! {
            biased;
            first = self.queued.recv() => first?,
            () = told(&mut self.stopped) => return None,
        };
        let until = Instant::now() + COLLECTED_FOR;
        while batch.len() < REQUEST_SPANS_MAX {
            tokio::select! {
                biased;
                more = self.queued.recv() => match more {
                    Some(more) => batch.extend(more),
                    None => break,
                },
                () = told(&mut self.stopped) => break,
                () = sleep_until(until) => break,
            }
        }
        Some(batch)
    }

    async fn export(&mut self, batch: &[Span]) {
        let spans = batch.len() as u64;
        let body = Bytes::from(otlp::request(self.version, batch));
        let mut pause = PAUSE_FIRST;
        for tried in 1..=TRIES_MAX {
            let is_last = tried == TRIES_MAX || *self.stopped.borrow();
            match self.line.send(body.clone()).await {
                Ok(rejected) => {
                    let rejected = rejected.min(spans);
                    self.counts.exported.add(spans - rejected);
                    self.counts.dropped_rejected.add(rejected);
                    if rejected > 0 {
                        self.complain("the collector has taken a request and rejected some of its spans");
                    } else if self.trouble.take().is_some() {
                        tracing::info!(collector = %self.line.collector(), dropped = self.counts.dropped(), "spans are exported again");
                    }
                    return;
                }
                Err(trouble @ ExportError::Lasting { .. }) => {
                    self.counts.dropped_refused.add(spans);
                    self.complain(&trouble.to_string());
                    return;
                }
                Err(trouble @ ExportError::Passing { .. }) if is_last => {
                    self.counts.dropped_unreachable.add(spans);
                    self.complain(&trouble.to_string());
                }
                Err(ExportError::Passing { why, retry_after }) => {
                    tracing::debug!(why, "spans were not exported yet");
                    let pause_now = retry_after.map_or(pause, |asked| asked.max(pause)).min(PAUSE_MAX);
                    tokio::select! {
                        () = told(&mut self.stopped) => {}
                        () = sleep(pause_now) => {}
                    }
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            if is_last {
                return;
            }
        }
    }

    fn complain(&mut self, why: &str) {
        let dropped = self.counts.dropped();
        if self.trouble.as_ref().is_some_and(|told| told.at.elapsed() < TOLD_EVERY) {
            return;
        }
        let before = self.trouble.as_ref().map_or(0, |told| told.dropped);
        let lately = dropped.saturating_sub(before);
        tracing::warn!(collector = %self.line.collector(), why, dropped = lately, "spans are lost on their way to the collector");
        self.trouble = Some(LoggedFailure { at: Instant::now(), dropped });
    }
}

async fn told(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
}
