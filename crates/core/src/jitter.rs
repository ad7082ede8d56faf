//! Chance that can be computed again.
//!
//! Jitter keeps a crowd of failures from coming back as a crowd. It is derived from the
//! delivery and the attempt, so that two nodes agree on it, a restart does not change it,
//! and a test can name it. The algorithm is fixed: changing it would move deliveries that
//! are already waiting.

use crate::id::DeliveryId;
use std::time::Duration;

/// A number that looks random, the same every time for the same delivery and attempt.
pub fn draw(delivery: DeliveryId, attempt: u32) -> u64 {
    let bytes = delivery.to_bytes();
    let (high, low) = bytes.split_at(8);
    let half = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("half of sixteen bytes"));
    let mut mixed = mix(half(high));
    mixed = mix(mixed ^ half(low));
    mix(mixed ^ u64::from(attempt))
}

/// Spreads `draw` evenly over `[low, high]`, to the millisecond, ends included.
pub fn between(draw: u64, low: Duration, high: Duration) -> Duration {
    let low = crate::time::millis(low);
    let span = crate::time::millis(high).saturating_sub(low);
    let scaled = (u128::from(draw) * (u128::from(span) + 1)) >> 64;
    Duration::from_millis(low + u64::try_from(scaled).expect("at most the span"))
}

/// The finaliser of `SplitMix64`: every input bit reaches every output bit.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(n: u128) -> DeliveryId {
        DeliveryId::from_bytes(n.to_be_bytes())
    }

    #[test]
    fn the_draw_never_changes_from_release_to_release() {
        assert_eq!(draw(delivery(1), 1), 5_067_554_077_270_220_563);
        assert_eq!(draw(delivery(1), 2), 6_768_782_832_058_643_234);
        assert_eq!(draw(delivery(u128::MAX), 8), 6_688_391_045_852_341_355);
    }

    #[test]
    fn draws_spread_evenly_even_over_neighbouring_ids() {
        let mut tenths = [0u32; 10];
        for n in 0..100_000 {
            let value = between(draw(delivery(n), 1), Duration::ZERO, Duration::from_millis(9));
            tenths[usize::try_from(value.as_millis()).unwrap()] += 1;
        }
        for count in tenths {
            assert!((9_500..10_500).contains(&count), "{tenths:?}");
        }
    }

    #[test]
    fn both_ends_can_be_drawn_and_nothing_beyond() {
        let (low, high) = (Duration::from_millis(5), Duration::from_millis(7));
        assert_eq!(between(0, low, high), low);
        assert_eq!(between(u64::MAX, low, high), high);
        assert_eq!(between(u64::MAX, high, low), high, "an empty range is its lower end");
        assert_eq!(between(u64::MAX, Duration::ZERO, Duration::from_millis(u64::MAX)).as_millis(), u128::from(u64::MAX));
    }
}
