//! One process owns everything here, and says so under the epoch that it was started with.

use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::text::OrderingKey;
use rusqlite::params;

use super::{SMALL, Sqlite, row};
use crate::columns::{signed, unsigned};
use crate::{Claimed, Command, Commanded, Error, HandedOver, LaneShown, LeaveAlone, NodeId, PARTITIONS, Partition, Refusal};

/// In this order, which a plain join would turn round: few were handed over, and a great many may wait.
pub(super) const SELECT_LEFT_ALONE: &str =
    "SELECT h.until_ms, d.endpoint, d.id, d.seq, d.ordering_key FROM handed_over h CROSS JOIN deliveries d ON d.seq = h.delivery_seq
     WHERE h.until_ms > ?1 AND d.status = 'waiting'";

impl Sqlite {
    pub(super) fn set_node(&self, node: NodeId) {
        *self.0.node.lock() = Some(node);
    }

    pub(super) fn node(&self) -> Vec<NodeId> {
        self.0.node.lock().iter().copied().collect()
    }

    pub(super) async fn claim(&self, node: NodeId, _share: usize) -> Result<Result<Claimed, Refusal>, Error> {
        if let Err(refusal) = self.knows(node) {
            return Ok(Err(refusal));
        }
        let now = self.clock_now();
        let leave_alone = self
            .read(move |connection| {
                let mut select = connection.prepare_cached(SELECT_LEFT_ALONE)?;
                row::all(select.query([now.as_millis()])?, |row| {
                    Ok(LeaveAlone {
                        endpoint: EndpointId::from_bytes(row::column(row, "endpoint")?),
                        delivery: DeliveryId::from_bytes(row::column(row, "id")?),
                        seq: unsigned(row::column(row, "seq")?),
                        ordering_key: row::optional(row, "ordering_key", OrderingKey::parse)?,
                        until: row::timestamp(row, "until_ms")?,
                    })
                })
            })
            .await?;
        // Said once: whoever dies from here on has not handed over.
        let (was_handed_over, numbered) = self
            .write(SMALL, |connection, _| {
                let delete = "DELETE FROM counters WHERE name = 'handed_over'";
                let was_handed_over = connection.prepare_cached(delete)?.execute([])? > 0;
                let mut highest = connection.prepare_cached("SELECT coalesce(max(seq), 0) FROM deliveries")?;
                Ok((was_handed_over, unsigned(highest.query_row([], |row| row.get(0))?)))
            })
            .await?;
        Ok(Ok(Claimed {
            partitions: (0..PARTITIONS).map(|partition| (partition, self.0.epoch)).collect(),
            handed_over: if was_handed_over { (0..PARTITIONS).collect() } else { vec![] },
            leave_alone,
            numbered,
        }))
    }

    pub(super) async fn hand_over(&self, node: NodeId, _: Vec<Partition>, in_flight: Vec<HandedOver>) -> Result<(), Error> {
        if self.knows(node).is_err() {
            return Ok(());
        }
        let epoch = self.0.epoch;
        self.write(SMALL * (1 + in_flight.len()), move |connection, _| {
            let mut insert = connection
                .prepare_cached("INSERT OR REPLACE INTO handed_over (delivery_seq, epoch, until_ms) VALUES (?1, ?2, ?3)")?;
            for HandedOver { seq, until } in &in_flight {
                insert.execute(params![signed(*seq), signed(epoch), until.as_millis()])?;
            }
            connection.prepare_cached("INSERT OR REPLACE INTO counters (name, value) VALUES ('handed_over', 1)")?.execute([])?;
            Ok(())
        })
        .await
    }

    /// In memory: the owner is this process, and whoever else may ask is too.
    pub(super) async fn command(&self, partition: Partition, command: Command) -> Result<Commanded, Error> {
        self.0.commander.ask(partition, command).await
    }

    pub(super) fn keep_shown(&self, lanes: Vec<LaneShown>) {
        let mut shown = self.0.lanes_shown.lock();
        for lane in lanes {
            if shown.get(&lane.endpoint).is_none_or(|before| before.at <= lane.at) {
                shown.insert(lane.endpoint, lane);
            }
        }
    }

    pub(super) fn shown(&self, endpoints: &[EndpointId]) -> Vec<LaneShown> {
        let shown = self.0.lanes_shown.lock();
        endpoints.iter().filter_map(|endpoint| shown.get(endpoint).cloned()).collect()
    }

    pub(super) fn knows(&self, node: NodeId) -> Result<(), Refusal> {
        if *self.0.node.lock() == Some(node) { Ok(()) } else { Err(Refusal::LeaseEnded) }
    }
}
