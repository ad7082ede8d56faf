//! Moments that were kept in mind, as times of the day.
//!
//! Steps of a span are measured with the clock that never jumps, and put on the wall clock once, when the span is made: so that
//! the steps of one span are in order whatever happens to the wall clock meanwhile.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use posthaste_core::time::Timestamp;

/// Since 1970.
pub(crate) type Nanos = u64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    at: Instant,
    nanos: Nanos,
}

impl Anchor {
    pub(crate) fn now() -> Anchor {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Anchor { at: Instant::now(), nanos: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// Of a moment before the anchor.
    pub(crate) fn nanos(&self, moment: Instant) -> Nanos {
        let before = u64::try_from(self.at.saturating_duration_since(moment).as_nanos()).unwrap_or(u64::MAX);
        self.nanos.saturating_sub(before)
    }
}

pub(crate) fn nanos_of(timestamp: Timestamp) -> Nanos {
    u64::try_from(timestamp.as_millis()).unwrap_or(0).saturating_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_was_before_stays_before_and_as_far_apart() {
        let anchor = Anchor::now();
        let earlier = anchor.at.checked_sub(Duration::from_millis(5)).expect("the machine has run for longer");
        assert_eq!(anchor.nanos(anchor.at) - anchor.nanos(earlier), 5_000_000);
        assert_eq!(nanos_of(Timestamp::from_millis(3)), 3_000_000);
    }
}
