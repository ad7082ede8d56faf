//! The outbox in an application's database: what waits there, for how long, and whether it can be reached.
//!
//! Shown only where there is one. What is not known, because the database cannot be reached, is as it was last seen; what was due
//! then goes on growing old.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::count::Counter;
use crate::page::Page;

#[derive(Debug, Default)]
pub struct Outbox {
    is_there: AtomicBool,
    is_up: AtomicBool,
    waiting: AtomicU64,
    failed: AtomicU64,
    /// Since when the oldest has been due.
    due_since: Mutex<Option<Instant>>,
    relayed: Counter,
}

impl Outbox {
    /// There is one to be relayed, whether it can be reached or not; or there is none any more.
    pub fn set_there(&self, is_there: bool) {
        self.is_there.store(is_there, Ordering::Relaxed);
    }

    pub fn set_up(&self, is_up: bool) {
        self.is_up.store(is_up, Ordering::Relaxed);
    }

    /// What waits there, how much of it was refused before, and for how long the oldest has been due.
    pub fn waits(&self, waiting: u64, failed: u64, lag: Option<Duration>) {
        self.waiting.store(waiting, Ordering::Relaxed);
        self.failed.store(failed, Ordering::Relaxed);
        *self.due_since.lock() = lag.and_then(|lag| Instant::now().checked_sub(lag));
    }

    /// So many rows are events now, and are gone from the outbox.
    pub fn relayed(&self, rows: u64) {
        self.relayed.add(rows);
    }

    pub(crate) fn show(&self, page: &mut Page) {
        if !self.is_there.load(Ordering::Relaxed) {
            return;
        }
        let is_up = self.is_up.load(Ordering::Relaxed);
        page.gauge("webhook_outbox_up", "1 if the outbox in the application's database can be used.", f64::from(u8::from(is_up)));
        let lag = self.due_since.lock().map_or(0.0, |since| since.elapsed().as_secs_f64());
        page.gauge("webhook_outbox_lag_seconds", "For how long the oldest row that is due has not been moved; 0 if none is.", lag);
        let waiting = self.waiting.load(Ordering::Relaxed) as f64;
        page.gauge("webhook_outbox_waiting_rows", "Rows in the outbox, counted up to 100,000.", waiting);
        let failed = self.failed.load(Ordering::Relaxed) as f64;
        page.gauge(
            "webhook_outbox_failed_rows",
            "Those of them that were refused, and why they were stands in last_error.",
            failed,
        );
        page.counter("webhook_outbox_relayed_total", "Rows that were moved: their events are on disk.", self.relayed.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Format;

    fn shown(outbox: &Outbox) -> String {
        let mut page = Page::new(Format::Text);
        outbox.show(&mut page);
        page.end()
    }

    #[test]
    fn nothing_is_shown_where_there_is_none_and_what_is_due_grows_old_while_nobody_looks() {
        let outbox = Outbox::default();
        outbox.waits(5, 2, Some(Duration::from_secs(30)));
        assert_eq!(shown(&outbox), "");
        outbox.set_there(true);
        let text = shown(&outbox);
        assert!(text.contains("\nwebhook_outbox_up 0\n") && text.contains("\nwebhook_outbox_waiting_rows 5\n"), "{text}");
        assert!(text.contains("\nwebhook_outbox_failed_rows 2\n") && text.contains("\nwebhook_outbox_relayed_total 0\n"), "{text}");
        let lag = |text: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix("webhook_outbox_lag_seconds "));
            line.and_then(|lag| lag.parse::<f64>().ok()).unwrap()
        };
        let before = lag(&text);
        assert!(before >= 30.0 && lag(&shown(&outbox)) >= before, "{text}");
        outbox.waits(0, 0, None);
        assert!(lag(&shown(&outbox)).abs() < f64::EPSILON);
    }
}
