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

/// The first byte of what is stored. Another form would have another.
const STORED_FORM: u8 = 1;
/// More than anybody sends, and little enough that thousands of sketches can be added up.
const STORED_COUNT_MAX: u64 = 1 << 48;

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

    /// For the store: a byte that names the form, the largest value, and each bucket that is not empty as its distance from the
    /// one before and its count. Numbers are seven bits a byte, the lowest first; a minute of one endpoint takes some 50 bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![STORED_FORM];
        if self.total == 0 {
            return bytes;
        }
        put_number(&mut bytes, self.max_millis);
        let mut before = 0;
        for (bucket, count) in &self.counts {
            put_number(&mut bytes, u64::from(*bucket - before));
            put_number(&mut bytes, *count);
            before = *bucket;
        }
        bytes
    }

    /// What [`LatencySketch::to_bytes`] has made. `None` for anything that no sketch is written as.
    pub fn from_bytes(bytes: &[u8]) -> Option<LatencySketch> {
        let (form, mut rest) = bytes.split_first()?;
        if *form != STORED_FORM {
            return None;
        }
        let mut sketch = LatencySketch::default();
        if rest.is_empty() {
            return Some(sketch);
        }
        sketch.max_millis = take_number(&mut rest).filter(|max| *max <= VALUE_MAX)?;
        let mut bucket = 0;
        while !rest.is_empty() {
            let distance = u16::try_from(take_number(&mut rest)?).ok()?;
            let count = take_number(&mut rest).filter(|count| *count > 0)?;
            if distance == 0 && !sketch.counts.is_empty() {
                return None;
            }
            bucket = distance.checked_add(bucket)?;
            sketch.counts.insert(bucket, count);
            sketch.total = sketch.total.checked_add(count).filter(|total| *total <= STORED_COUNT_MAX)?;
        }
        // Every value is in a bucket, and the largest is in the last.
        (sketch.counts.last_key_value()?.0 == &bucket_of(sketch.max_millis)).then_some(sketch)
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

fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// The one spelling of a number that [`put_number`] has, from the front.
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for place in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * place);
        if shifted >> (7 * place) != bits || (*byte == 0 && place > 0) {
            return None;
        }
        number |= shifted;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
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

    #[test]
    fn what_no_sketch_is_written_as_is_not_read() {
        let whole = sketch(&[12, 12, 300]).to_bytes();
        assert_eq!(whole, [1, 0xac, 2, 12, 2, 0x8a, 2, 1], "small");
        assert_eq!(LatencySketch::default().to_bytes(), [1]);
        for cut in (0..whole.len()).filter(|cut| *cut != 1) {
            assert_eq!(LatencySketch::from_bytes(&whole[..cut]), None, "cut at {cut}");
        }
        for bad in [&[0][..], &[2, 5, 5, 1], &[1, 5, 5, 0], &[1, 6, 5, 1], &[1, 5, 5, 1, 0, 1], &[1, 0x85, 0, 5, 1]] {
            assert_eq!(LatencySketch::from_bytes(bad), None, "{bad:?}");
        }
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
        fn what_is_stored_is_read_back(values in prop::collection::vec(0u64..2_000_000, 0..300), times in 0u32..38) {
            let mut seen = sketch(&values);
            // Counts that need more than one byte.
            (0..times).for_each(|_| seen.merge(&seen.clone()));
            prop_assert_eq!(LatencySketch::from_bytes(&seen.to_bytes()), Some(seen));
        }

        #[test]
        fn what_is_read_is_what_would_be_stored(bytes in prop::collection::vec(any::<u8>(), 0..40), flipped in 0usize..40, bit in 0u8..8) {
            let mut stored = sketch(&[3, 3, 41, 300, 300, 9_000]).to_bytes();
            let place = flipped % stored.len();
            stored[place] ^= 1 << bit;
            for bytes in [bytes.clone(), [vec![STORED_FORM], bytes].concat(), stored] {
                if let Some(read) = LatencySketch::from_bytes(&bytes) {
                    prop_assert_eq!(read.to_bytes(), bytes);
                }
            }
        }

        #[test]
        fn merging_is_the_same_as_having_seen_everything(a in prop::collection::vec(0u64..60_000, 0..100), b in prop::collection::vec(0u64..60_000, 0..100)) {
            let mut merged = sketch(&a);
            merged.merge(&sketch(&b));
            prop_assert_eq!(merged, sketch(&[a, b].concat()));
        }
    }
}
