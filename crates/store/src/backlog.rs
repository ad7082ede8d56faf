//! What waits, counted where it lies.
//!
//! A backlog may be millions of rows, and somebody who looks at it must not read them all: so many of each queue of a lane are
//! counted, and so many in all. What is told apart is what decides why a delivery waits, as far as a row knows it; the rest is
//! known of its lane.

use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::scheduler::{Class, Seq};
use posthaste_core::time::Timestamp;

/// Whose, and how much of it is looked at.
#[derive(Clone, PartialEq, Debug)]
pub struct BacklogQuery {
    pub scope: BacklogScope,
    pub now: Timestamp,
    pub lanes_max: usize,
    /// Of each of its three queues.
    pub rows_per_queue_max: usize,
    /// No further lane is begun once so many have been counted.
    pub rows_max: usize,
}

#[derive(Clone, PartialEq, Debug)]
pub enum BacklogScope {
    All,
    Tenant(TenantId),
    Endpoint(EndpointId),
}

#[derive(Clone, PartialEq, Default, Debug)]
pub struct Backlog {
    pub lanes: Vec<LaneBacklog>,
    /// Nothing was left out.
    pub is_whole: bool,
}

/// What waits for one endpoint.
#[derive(Clone, PartialEq, Debug)]
pub struct LaneBacklog {
    pub endpoint: EndpointId,
    pub waiting: Vec<BacklogGroup>,
}

/// Deliveries that are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BacklogGroup {
    pub class: Class,
    pub is_due: bool,
    pub is_tried: bool,
    /// Nothing older of its ordering key is unfinished.
    pub is_head_of_key: bool,
    pub count: u64,
    /// When the oldest of them happened.
    pub oldest: Timestamp,
}

/// Where a delivery stands among what waits for the same endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlaceQuery {
    pub endpoint: EndpointId,
    /// The time and the number of its row: whatever is older goes first.
    pub older_than: (Timestamp, Seq),
    /// What is due later is passed over.
    pub due_by: Timestamp,
    /// Of each of the three queues.
    pub rows_per_queue_max: usize,
}

/// What was counted of a lane; and of which the last queue may have more.
pub(crate) fn is_cut_off(waiting: &[BacklogGroup], query: &BacklogQuery) -> bool {
    // The queues are not told apart here, so that three that are nearly full may be taken for one that is: then it is said that
    // there may be more although there is not.
    waiting.iter().map(|alike| alike.count).sum::<u64>() >= query.rows_per_queue_max as u64
}
