//! How fast somebody answers, as a small summary that can be added up.
//!
//! Response times are counted in buckets whose width grows with the value: exact below 256 ms,
//! and from there never more than 0.8 % wide. Only whole numbers are involved, so that two
//! machines that saw the same times say the same percentile; sketches of minutes, hours and
//! nodes are merged by adding.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::millis;

/// Values from 2⁸ on have 2⁷ buckets for each doubling.
const SUB_BITS: u32 = 7;
const EXACT_BELOW: u64 = 1 << (SUB_BITS + 1);
/// A response time is at most a time-out, which is at most a minute; this leaves room.
const VALUE_MAX: u64 = (1 << 20) - 1;

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LatencySketch {
    counts: BTreeMap<u16, u64>,
    total: u64,
    max_millis: u64,
}

impl LatencySketch {
    pub fn record(&mut self, response_time: Duration) {
        let value = millis(response_time).min(VALUE_MAX);
        *self.counts.entry(bucket_of(value)).or_default() += 1;
        self.total += 1;
        self.max_millis = self.max_millis.max(value);
    }

    pub fn merge(&mut self, other: &LatencySketch) {
        for (bucket, count) in &other.counts {
            *self.counts.entry(*bucket).or_default() += count;
        }
        self.total += other.total;
        self.max_millis = self.max_millis.max(other.max_millis);
    }

    pub fn count(&self) -> u64 {
        self.total
    }

    /// The value that `percent` of the samples do not exceed: never less than the true one, and at most 0.8 % more.
    pub fn percentile(&self, percent: u32) -> Option<Duration> {
        assert!((1..=100).contains(&percent), "a percentile from 1 to 100");
        let rank = (self.total * u64::from(percent)).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in &self.counts {
            seen += count;
            if seen >= rank {
                return Some(Duration::from_millis(upper_edge(*bucket).min(self.max_millis)));
            }
        }
        None
    }
}

fn bucket_of(value: u64) -> u16 {
    let bucket = if value < EXACT_BELOW {
        value
    } else {
        let doubling = value.ilog2() - SUB_BITS;
        u64::from(doubling) * (1 << SUB_BITS) + (value >> doubling)
    };
    u16::try_from(bucket).expect("values are capped")
}

/// The largest value that falls into this bucket.
fn upper_edge(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    if bucket < EXACT_BELOW {
        return bucket;
    }
    let doubling = (bucket >> SUB_BITS) - 1;
    let leading = bucket - (doubling << SUB_BITS);
    ((leading + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_are_narrow() {
        let mut last = 0;
        for value in 0..=VALUE_MAX {
            let bucket = bucket_of(value);
            assert!(bucket == last || bucket == last + 1, "no bucket is left out at {value}");
            last = bucket;
            let edge = upper_edge(bucket);
            assert!(value <= edge && edge as f64 <= value as f64 * 1.008, "{value} in a bucket up to {edge}");
            assert_eq!(bucket_of(edge), bucket);
        }
    }

    fn sketch(values: &[u64]) -> LatencySketch {
        let mut sketch = LatencySketch::default();
        for value in values {
            sketch.record(Duration::from_millis(*value));
        }
        sketch
    }

    #[test]
    fn nothing_seen_is_nothing_known() {
        assert_eq!(LatencySketch::default().percentile(99), None);
        assert_eq!(sketch(&[4200; 100]).percentile(99), Some(Duration::from_millis(4200)));
        assert_eq!(sketch(&[10_000_000]).percentile(50), Some(Duration::from_millis(VALUE_MAX)));
    }

    proptest! {
        #[test]
        fn a_percentile_is_within_a_hundredth_of_the_true_one(values in prop::collection::vec(0u64..60_000, 1..500), percent in 1u32..=100) {
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let rank = (values.len() * percent as usize).div_ceil(100);
            let truth = sorted[rank - 1];
            let said = millis(sketch(&values).percentile(percent).unwrap());
            prop_assert!(truth <= said && said as f64 <= truth as f64 * 1.008, "{} for {}", said, truth);
        }

        #[test]
        fn merging_is_the_same_as_having_seen_everything(a in prop::collection::vec(0u64..60_000, 0..100), b in prop::collection::vec(0u64..60_000, 0..100)) {
            let mut merged = sketch(&a);
            merged.merge(&sketch(&b));
            prop_assert_eq!(merged, sketch(&[a, b].concat()));
        }
    }
}
