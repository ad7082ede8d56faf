//! Whether deliveries are being made: the loop runs, and what is due is sent.
//!
//! The engine reports each turn of its loop and what it finds wrong. Readers never wait for the engine, which may be stuck.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::count::{Counter, Histogram};
use crate::page::{Kind, Page};

/// The loop turns once a second even without work; after this long without a turn it is stuck.
pub(crate) const TURN_MAX: Duration = Duration::from_secs(10);
const TURN_SECONDS: &[f64] = &[0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Why deliveries are stalled, in words for an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StallReason {
    /// The loop that decides what is sent has not turned.
    LoopStuck,
    /// Deliveries are due and not held, and none was started.
    NothingStarts,
    /// The store has not answered a read of waiting deliveries.
    ReadUnanswered,
    /// A request takes longer than the maximum.
    RequestUnanswered,
    /// The store has not answered a request to load endpoints.
    LoadUnanswered,
}

impl StallReason {
    pub fn name(self) -> &'static str {
        match self {
            StallReason::LoopStuck => "loop_stuck",
            StallReason::NothingStarts => "nothing_starts",
            StallReason::ReadUnanswered => "read_unanswered",
            StallReason::RequestUnanswered => "request_unanswered",
            StallReason::LoadUnanswered => "take_up_unanswered",
        }
    }

    pub fn in_words(self) -> &'static str {
        match self {
            StallReason::LoopStuck => "the delivery loop has not turned for ten seconds",
            StallReason::NothingStarts => "deliveries are due, nothing holds them, and none is begun",
            StallReason::ReadUnanswered => "deliveries are due, and the database does not say which",
            StallReason::RequestUnanswered => "a request has lasted longer than any may",
            StallReason::LoadUnanswered => "deliveries are due, and the database does not say where they go",
        }
    }

    pub const ALL: [StallReason; 5] = [
        StallReason::LoopStuck,
        StallReason::NothingStarts,
        StallReason::ReadUnanswered,
        StallReason::RequestUnanswered,
        StallReason::LoadUnanswered,
    ];
}

#[derive(Debug)]
pub struct Liveness {
    began: Instant,
    /// In milliseconds since it began; zero before the first turn.
    turned_at: AtomicU64,
    is_running: AtomicBool,
    stall: Mutex<Option<StallReason>>,
    turns: Histogram,
    stalls: Counter,
}

impl Liveness {
    pub(crate) fn new() -> Liveness {
        Liveness {
            began: Instant::now(),
            turned_at: AtomicU64::new(0),
            is_running: AtomicBool::new(false),
            stall: Mutex::new(None),
            turns: Histogram::new(TURN_SECONDS),
            stalls: Counter::default(),
        }
    }

    /// The loop has begun, or has ended.
    pub fn set_running(&self, is_running: bool) {
        self.turned_at.store(self.clock(), Ordering::Relaxed);
        self.is_running.store(is_running, Ordering::Relaxed);
    }

    /// The loop has turned, and that took so long.
    pub fn turned(&self, took: Duration) {
        self.turned_at.store(self.clock(), Ordering::Relaxed);
        self.turns.observe_seconds(took);
    }

    /// What the loop has found wrong, if anything.
    pub fn found(&self, stall: Option<StallReason>) {
        *self.stall.lock() = stall;
    }

    /// A stall has begun. Told once for each.
    pub fn stalled(&self) {
        self.stalls.add(1);
    }

    /// What is wrong now.
    pub fn stall(&self) -> Option<StallReason> {
        if self.is_running.load(Ordering::Relaxed) && self.since_turn() > TURN_MAX {
            return Some(StallReason::LoopStuck);
        }
        *self.stall.lock()
    }

    fn since_turn(&self) -> Duration {
        Duration::from_millis(self.clock().saturating_sub(self.turned_at.load(Ordering::Relaxed)))
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn show(&self, page: &mut Page) {
        let stall = self.stall();
        let mut stalled =
            page.family("posthaste_delivery_stalled", Kind::Gauge, "1 while deliveries are due and none is made, by why.");
        for one in StallReason::ALL {
            stalled.sample(&[("reason", &one.name())], f64::from(u8::from(stall == Some(one))));
        }
        page.counter(
            "posthaste_delivery_stalls_total",
            "Times that deliveries began to be due without being made.",
            self.stalls.get(),
        );
        if !self.is_running.load(Ordering::Relaxed) {
            return;
        }
        page.gauge(
            "posthaste_loop_lag_seconds",
            "How long ago the delivery loop last turned; it turns at least once a second.",
            self.since_turn().as_secs_f64(),
        );
        let mut turns = page.family(
            "posthaste_loop_turn_seconds",
            Kind::Histogram,
            "How long turns of the delivery loop took, without waiting.",
        );
        self.turns.show(&mut turns, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Format;

    #[test]
    fn i41_a_loop_that_does_not_turn_is_trouble_and_one_that_never_ran_is_not() {
        let mut liveness = Liveness::new();
        // As if it had begun a minute ago.
        liveness.began = Instant::now().checked_sub(Duration::from_mins(1)).unwrap();
        assert_eq!(liveness.stall(), None, "a node that does not deliver");
        liveness.set_running(true);
        assert_eq!(liveness.stall(), None);
        liveness.turned_at.store(1, Ordering::Relaxed);
        assert_eq!(liveness.stall(), Some(StallReason::LoopStuck));
        let mut page = Page::new(Format::Text);
        liveness.show(&mut page);
        let text = page.end();
        assert!(text.contains("posthaste_delivery_stalled{reason=\"loop_stuck\"} 1"), "{text}");
        liveness.turned(Duration::from_millis(1));
        assert_eq!(liveness.stall(), None);
        liveness.found(Some(StallReason::NothingStarts));
        assert_eq!(liveness.stall(), Some(StallReason::NothingStarts));
        liveness.set_running(false);
        liveness.found(None);
        assert_eq!(liveness.stall(), None, "a stop is no trouble");
    }
}
