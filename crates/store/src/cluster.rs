//! Who owns what: partitions of tenants, the nodes that own them, and the epochs that fence late writers off.

use std::time::Duration;

use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::scheduler::Seq;
use posthaste_core::text::OrderingKey;
use posthaste_core::time::Timestamp;

/// Tenants hash to one of these, and each has one owner.
pub const PARTITIONS: u16 = 256;
/// For how long a node is believed to be alive after it said so.
pub const LEASE: Duration = Duration::from_secs(5);

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

/// What a node owns after it has claimed.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Claimed {
    pub partitions: Vec<(Partition, Epoch)>,
    /// Those that their last owner gave up of its own will: what it has written about their lanes is all there is to know.
    pub handed_over: Vec<Partition>,
    pub in_flight_elsewhere: Vec<InFlightElsewhere>,
    /// The highest number that any row had been given by then: up to here an earlier owner may have sent and settled it,
    /// whatever news of its commit says.
    pub numbered: Seq,
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
    /// Whatever it owns.
    Everything,
    /// These, as far as it owns them under these epochs: what it has got again since stays its own, however late the request is.
    Partitions(Vec<(Partition, Epoch)>),
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
