//! The one `now()`: the wall clock, never backwards within a process.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_core::time::Timestamp;

#[derive(Debug, Default)]
pub(crate) struct Clock {
    latest_millis: AtomicI64,
}

impl Clock {
    pub(crate) fn now(&self) -> Timestamp {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = i64::try_from(wall.as_millis()).unwrap_or(i64::MAX);
        let before = self.latest_millis.fetch_max(wall, Ordering::Relaxed);
        Timestamp::from_millis(before.max(wall))
    }
}
