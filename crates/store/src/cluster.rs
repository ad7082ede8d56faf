//! Who owns what: partitions of tenants, the nodes that own them, and the epochs that fence late writers off.

use std::time::Duration;

use posthaste_core::bucket::Bucket;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::scheduler::Seq;
use posthaste_core::text::OrderingKey;
use posthaste_core::time::Timestamp;

/// Tenants hash to one of these, and each has one owner.
pub const PARTITIONS: u16 = 256;
/// For how long a node is believed to be alive after it said so.
pub const LEASE: Duration = Duration::from_secs(5);

/// A new node counts in the shares of the others once it has been a member for this long: one that keeps failing moves nothing.
pub const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// A partition that was handed over to share the load is not handed over for that reason again before this time has passed.
pub const MOVED_AT_MOST_EVERY: Duration = Duration::from_mins(1);

/// One of [`PARTITIONS`].
pub type Partition = u16;
/// Raised with every change of owner: a write under an old one changes nothing.
pub type Epoch = u64;

/// The name of one process, drawn when it starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u128);

/// Where a tenant belongs. Never changes, so it is a hash of our own, written down here.
pub fn partition_of(tenant: &TenantId) -> Partition {
    let hash = tenant
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let folded = (hash >> 32) ^ hash;
    Partition::try_from(folded % u64::from(PARTITIONS)).expect("less than the number of partitions")
}

/// What a node learns about the others when it joins and when it renews its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClusterView {
    /// Live nodes that deliver and are not leaving, this one included.
    pub delivering: usize,
    /// Those of them that have been members for [`SETTLED_AFTER`].
    pub settled: usize,
    /// How long a partition has been without an owner: the longest such time.
    pub unowned_for: Option<Duration>,
}

impl ClusterView {
    /// What a node sees that has the database to itself.
    pub fn alone() -> ClusterView {
        ClusterView { delivering: 1, settled: 1, unowned_for: None }
    }
}

/// What a process says about itself, for people. It does not change while the process runs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NodeInfo {
    pub host: String,
    pub version: String,
    /// What it does: `api`, `deliver`, `relay`.
    pub roles: Vec<String>,
    /// Where its API listens, if it does.
    pub address: Option<String>,
}

/// What a node has to do at present, for people.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NodeLoad {
    pub lanes: u64,
    pub in_flight: u64,
    /// How long the oldest delivery that is due has waited.
    pub lag: Duration,
}

/// A live node as the others see it.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeStatus {
    pub id: NodeId,
    pub info: NodeInfo,
    pub load: NodeLoad,
    pub started_at: Timestamp,
    pub lease_left: Duration,
    /// How far its wall clock is ahead of the database's, or behind it.
    pub clock_skew: Duration,
    pub is_leaving: bool,
    pub partitions: Vec<Partition>,
}

/// What a node owns after it has claimed.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Claimed {
    pub partitions: Vec<(Partition, Epoch)>,
    /// Those that their last owner gave up of its own will, having written what it knew about their lanes.
    pub handed_over: Vec<CleanTransfer>,
    /// Those that were handed over less than [`MOVED_AT_MOST_EVERY`] ago to share the load.
    pub just_moved: Vec<Partition>,
    pub in_flight_elsewhere: Vec<InFlightElsewhere>,
    /// The highest number that any row had been given by then: up to here an earlier owner may have sent and settled it,
    /// whatever news of its commit says.
    pub numbered: Seq,
}

/// A partition that its last owner gave up of its own will.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanTransfer {
    pub partition: Partition,
    /// When an owner last died with it. What was spent by then is not known of a lane that no owner has loaded since.
    pub crashed_at: Option<Timestamp>,
}

/// What an earlier owner has in flight, and until when its record is waited for.
#[derive(Clone, PartialEq, Debug)]
pub struct InFlightElsewhere {
    pub endpoint: EndpointId,
    pub delivery: DeliveryId,
    pub seq: Seq,
    pub ordering_key: Option<OrderingKey>,
    pub until: Timestamp,
}

/// What a node gives up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GivenUp {
    /// Whatever it owns, because it leaves.
    Everything,
    /// These, because it leaves. The others share what it had.
    Leaving(Vec<(Partition, Epoch)>),
    /// These, as far as it owns them under these epochs: what it has got again since stays its own, however late the request is.
    Partitions(Vec<(Partition, Epoch)>),
}

impl GivenUp {
    /// Whether the node takes no more partitions.
    pub fn is_leaving(&self) -> bool {
        match self {
            GivenUp::Everything | GivenUp::Leaving(_) => true,
            GivenUp::Partitions(_) => false,
        }
    }
}

/// A partition's transfer: what is given up, and what the next owner has to know.
#[derive(Clone, PartialEq, Debug)]
pub struct Transfer {
    pub given_up: GivenUp,
    /// What this node still has in flight and will record.
    pub in_flight: Vec<HandedOver>,
    /// The buckets of tenants with a rate limit, as far as they are not full.
    pub tenant_buckets: Vec<TenantBucket>,
}

/// What a tenant has spent in one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantBucket {
    pub tenant: TenantId,
    pub partition: Partition,
    pub bucket: Bucket,
}

impl Transfer {
    /// Without anything in flight or spent.
    pub fn of(given_up: GivenUp) -> Transfer {
        Transfer { given_up, in_flight: vec![], tenant_buckets: vec![] }
    }
}

/// What a leaver still has in flight.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HandedOver {
    pub seq: Seq,
    /// The number of the attempt that is in flight, counted from 1. A row that has been recorded since is not handed over.
    pub attempt: u32,
    pub until: Timestamp,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn tenants_spread_over_the_partitions_and_stay_where_they_are() {
        let tenant = |name: &str| TenantId::parse(name).expect("valid");
        assert_eq!(partition_of(&tenant("acme")), 140);
        assert_eq!(partition_of(&tenant("default")), 232);
        let mut counts: BTreeMap<Partition, u32> = BTreeMap::new();
        (0..25_600).for_each(|n| *counts.entry(partition_of(&tenant(&format!("tenant-{n}")))).or_default() += 1);
        assert_eq!(counts.len(), usize::from(PARTITIONS));
        assert!(counts.values().all(|count| (50..200).contains(count)), "{counts:?}");
    }
}
