//! What this process knows about its own membership: the node it joined as, and the partitions it owns.
//!
//! Written by the cluster's verbs. Read to decide which committed deliveries have to be announced to other nodes, and by reads
//! that leave out what others own.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::{Epoch, NodeId, Partition};

#[derive(Debug, Default)]
pub(super) struct Ownership(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    node: Option<NodeId>,
    owned: BTreeSet<Partition>,
}

impl Ownership {
    pub(super) fn joined(&self, node: NodeId) {
        *self.0.lock() = State { node: Some(node), owned: BTreeSet::new() };
    }

    pub(super) fn owns(&self, partitions: &[(Partition, Epoch)]) {
        self.0.lock().owned = partitions.iter().map(|(partition, _)| *partition).collect();
    }

    pub(super) fn gives_up(&self, partitions: &[(Partition, Epoch)]) {
        let mut state = self.0.lock();
        for (partition, _) in partitions {
            state.owned.remove(partition);
        }
    }

    /// The node that this process last joined as. `None`: it does not deliver.
    pub(super) fn node(&self) -> Option<NodeId> {
        self.0.lock().node
    }

    pub(super) fn is_owned(&self, partition: Partition) -> bool {
        self.0.lock().owned.contains(&partition)
    }

    /// Those of these that another node owns, or none.
    pub(super) fn foreign<T>(&self, items: impl Iterator<Item = (Partition, T)>) -> Vec<(Partition, T)> {
        let state = self.0.lock();
        items.filter(|(partition, _)| !state.owned.contains(partition)).collect()
    }
}
