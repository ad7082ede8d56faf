//! `/v1/cluster`: the nodes that are alive.

use axum::response::Response;
use posthaste_store::PARTITIONS;
use serde::Serialize;
use utoipa::ToSchema;

use crate::call::{Call, ok};
use crate::problem::Problem;

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Cluster)]
pub(crate) struct ClusterView {
    nodes: Vec<NodeView>,
    /// What tenants are divided into; each has one owner.
    partitions: u16,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Node)]
struct NodeView {
    /// Drawn when the process started.
    id: String,
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    let nodes = call.app.store.nodes().await?;
    let nodes = nodes.into_iter().map(|node| NodeView { id: format!("{:032x}", node.0) }).collect();
    Ok(ok(&ClusterView { nodes, partitions: PARTITIONS }))
}
