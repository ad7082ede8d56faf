//! A hold on all deliveries, kept in the database so that it applies to every node and outlives restarts.
//!
//! `posthaste restore --hold` and `serve --hold` set it; an operator releases it. Nodes read it before they start to deliver.

use posthaste_core::time::Timestamp;

use crate::Error;
use crate::columns::corrupt;

/// A hold that is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    pub since: Timestamp,
    /// Deliveries that would be sent after the release, counted up to [`HELD_COUNT_MAX`].
    pub waiting: u64,
    /// Those of them that were tried before. A restored database may not know that they arrived since.
    pub tried: u64,
}

/// Rows counted for [`Hold::waiting`]: a count of more would take seconds.
pub const HELD_COUNT_MAX: usize = 1_000_000;

/// The name of the row in `words`.
pub(crate) const HOLD: &str = "hold";

/// As it is stored: milliseconds since 1970.
pub(crate) fn written(since: Timestamp) -> String {
    since.as_millis().to_string()
}

pub(crate) fn read(value: &str) -> Result<Timestamp, Error> {
    value.parse().map(Timestamp::from_millis).map_err(corrupt("hold"))
}
