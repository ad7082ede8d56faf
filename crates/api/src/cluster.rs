//! `/v1/cluster`: the nodes that are alive and how they share the partitions.

use std::time::Duration;

use axum::response::Response;
use posthaste_store::{NodeInfo, NodeLoad, NodeStatus, PARTITIONS};
use serde::Serialize;
use utoipa::ToSchema;

use crate::call::{Call, ok};
use crate::problem::Problem;

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Cluster)]
pub(crate) struct ClusterView {
    /// The nodes that deliver, oldest first.
    nodes: Vec<NodeView>,
    /// What tenants are divided into; each has one owner.
    partitions: u16,
    /// Partitions without an owner. They are taken over within seconds.
    unowned_partitions: usize,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Node)]
struct NodeView {
    /// Drawn when the process joined the cluster.
    id: String,
    host: String,
    version: String,
    /// `api`, `deliver`, `relay`.
    roles: Vec<String>,
    /// Where its API listens.
    address: Option<String>,
    /// When it joined the cluster.
    #[schema(format = DateTime)]
    started_at: String,
    /// The other nodes take over when this is 0. It is renewed every second.
    lease_left_ms: u64,
    /// How far its clock is off from the database's.
    clock_skew_ms: u64,
    /// It is stopping: it finishes what is in flight and takes nothing more.
    is_leaving: bool,
    /// The partitions that it owns.
    partitions: Vec<u16>,
    /// Endpoints that have something to send.
    lanes: u64,
    in_flight: u64,
    /// How long the oldest delivery that is due has waited.
    lag_ms: u64,
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    let nodes: Vec<NodeView> = call.app.store.cluster().await?.into_iter().map(view).collect();
    let owned: usize = nodes.iter().map(|node| node.partitions.len()).sum();
    let unowned_partitions = usize::from(PARTITIONS).saturating_sub(owned);
    Ok(ok(&ClusterView { nodes, partitions: PARTITIONS, unowned_partitions }))
}

fn view(node: NodeStatus) -> NodeView {
    let NodeStatus { id, info, load, started_at, lease_left, clock_skew, is_leaving, partitions } = node;
    let NodeInfo { host, version, roles, address } = info;
    let NodeLoad { lanes, in_flight, lag } = load;
    NodeView {
        id: format!("{:032x}", id.0),
        host,
        version,
        roles,
        address,
        started_at: started_at.to_rfc3339(),
        lease_left_ms: milliseconds(lease_left),
        clock_skew_ms: milliseconds(clock_skew),
        is_leaving,
        partitions,
        lanes,
        in_flight,
        lag_ms: milliseconds(lag),
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
