//! Counters and histograms that any thread may add to without waiting for another.
//!
//! Additions are relaxed: nothing is decided by them, and whoever reads them reads a moment that is about now.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::page::{Family, Labels};

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often a value was at most this large.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last has none.
    counts: Box<[AtomicU64]>,
    /// In millionths, so that it can be added to in one step.
    sum: AtomicU64,
}

/// What a sum is kept in.
const PARTS: f64 = 1_000_000.0;

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Histogram {
        assert!(bounds.is_sorted(), "each bound is above the one before");
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum: AtomicU64::new(0) }
    }

    pub fn observe(&self, value: f64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float stays within bounds")]
        self.sum.fetch_add((value * PARTS) as u64, Ordering::Relaxed);
    }

    pub fn observe_seconds(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }

    pub fn observe_millis(&self, duration: Duration) {
        self.observe(duration.as_secs_f64() * 1000.0);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub fn show(&self, family: &mut Family<'_>, labels: &Labels<'_>) {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        family.buckets(labels, self.bounds, &counts, self.sum.load(Ordering::Relaxed) as f64 / PARTS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Format, Kind, Page};

    #[test]
    fn a_value_on_a_bound_is_below_it_and_one_above_all_is_counted() {
        let histogram = Histogram::new(&[1.0, 10.0]);
        for value in [0.0, 1.0, 1.5, 10.0, 1e9] {
            histogram.observe(value);
        }
        let mut page = Page::new(Format::Text);
        histogram.show(&mut page.family("x", Kind::Histogram, ""), &[]);
        let text = page.end();
        for line in
            ["x_bucket{le=\"1.0\"} 2", "x_bucket{le=\"10.0\"} 4", "x_bucket{le=\"+Inf\"} 5", "x_count 5", "x_sum 1000000012.5"]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
