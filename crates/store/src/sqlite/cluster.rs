//! One process owns everything here, and says so under the epoch that it was started with.

use std::collections::HashMap;

use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::scheduler::Seq;
use posthaste_core::text::OrderingKey;
use posthaste_core::time::Timestamp;
use rusqlite::params;

use super::{SMALL, Sqlite, row};
use crate::columns::{signed, unsigned};
use crate::{
    ApplyResult, Claimed, Command, CommandOutcome, Error, GivenUp, HandedOver, InFlightElsewhere, LaneSnapshot, NodeId, PARTITIONS,
    Partition, Refusal, partition_of,
};

/// In this order, which a plain join would turn round: few were handed over, and a great many may wait.
pub(super) const SELECT_LEFT_ALONE: &str =
    "SELECT h.until_ms, d.endpoint, d.id, d.seq, d.ordering_key FROM handed_over h CROSS JOIN deliveries d ON d.seq = h.delivery_seq
     WHERE h.until_ms > ?1 AND d.status = 'waiting'";

/// What was recorded since it was sent is not in flight any more.
const HAND_OVER: &str = "INSERT OR REPLACE INTO handed_over (delivery_seq, epoch, until_ms)
     SELECT seq, ?3, ?4 FROM deliveries WHERE seq = ?1 AND status = 'waiting' AND attempts = ?2 - 1";
const SELECT_IS_HANDED_OVER: &str = "SELECT 1 FROM handed_over h CROSS JOIN deliveries d ON d.seq = h.delivery_seq
     WHERE h.delivery_seq = ?1 AND h.until_ms > ?2 AND d.status = 'waiting'";

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
        let in_flight_elsewhere = self
            .read_for_work(move |connection| {
                let mut select = connection.prepare_cached(SELECT_LEFT_ALONE)?;
                row::all(select.query([now.as_millis()])?, |row| {
                    Ok(InFlightElsewhere {
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
            in_flight_elsewhere,
            numbered,
        }))
    }

    pub(super) async fn hand_over(&self, node: NodeId, _: GivenUp, in_flight: Vec<HandedOver>) -> Result<(), Error> {
        if self.knows(node).is_err() {
            return Ok(());
        }
        let epoch = self.0.epoch;
        self.write(SMALL * (1 + in_flight.len()), move |connection, _| {
            let mut insert = connection.prepare_cached(HAND_OVER)?;
            for HandedOver { seq, attempt, until } in &in_flight {
                insert.execute(params![signed(*seq), attempt, signed(epoch), until.as_millis()])?;
            }
            connection.prepare_cached("INSERT OR REPLACE INTO counters (name, value) VALUES ('handed_over', 1)")?.execute([])?;
            Ok(())
        })
        .await
    }

    pub(super) async fn handed_over_left(&self, deliveries: Vec<Seq>) -> Result<Vec<Seq>, Error> {
        let now = self.clock_now();
        self.read(move |connection| {
            let mut select = connection.prepare_cached(SELECT_IS_HANDED_OVER)?;
            let mut left = Vec::new();
            for seq in deliveries {
                if select.exists(params![signed(seq), now.as_millis()])? {
                    left.push(seq);
                }
            }
            Ok(left)
        })
        .await
    }

    /// In memory: the owner is this process, and whoever else may ask is too.
    pub(super) async fn command(&self, partition: Partition, command: Command) -> Result<CommandOutcome, Error> {
        self.0.commander.ask(partition, command).await
    }

    pub(super) async fn apply(&self, tenant: TenantId, endpoint: Option<EndpointId>) -> Result<ApplyResult, Error> {
        if !self.0.commander.has_listener() {
            return Ok(ApplyResult::Now);
        }
        let partition = partition_of(&tenant);
        Ok(ApplyResult::of(&self.command(partition, Command::Apply { tenant, endpoint }).await))
    }

    pub(super) fn keep_shown(&self, lanes: Vec<LaneSnapshot>) {
        let mut shown = self.0.lane_snapshots.lock();
        for lane in lanes {
            if shown.get(&lane.endpoint).is_none_or(|before| before.at <= lane.at) {
                shown.insert(lane.endpoint, lane);
            }
        }
        if shown.len() > LANES_SHOWN_MAX {
            drop_older_half(&mut shown);
        }
    }

    pub(super) fn shown(&self, endpoints: &[EndpointId]) -> Vec<LaneSnapshot> {
        let shown = self.0.lane_snapshots.lock();
        endpoints.iter().filter_map(|endpoint| shown.get(endpoint).cloned()).collect()
    }

    pub(super) fn knows(&self, node: NodeId) -> Result<(), Refusal> {
        if *self.0.node.lock() == Some(node) { Ok(()) } else { Err(Refusal::LeaseEnded) }
    }
}

/// Lanes whose snapshot is kept: twice as many as an owner keeps endpoints in memory, at some 300 bytes each.
const LANES_SHOWN_MAX: usize = 200_000;

/// Of a lane that was not shown for long nothing is in flight: it is explained from its configuration alone.
fn drop_older_half(shown: &mut HashMap<EndpointId, LaneSnapshot>) {
    let mut ages: Vec<(Timestamp, EndpointId)> = shown.values().map(|lane| (lane.at, lane.endpoint)).collect();
    let middle = ages.len() / 2;
    let median = *ages.select_nth_unstable(middle).1;
    shown.retain(|endpoint, lane| (lane.at, *endpoint) > median);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_half_that_was_shown_last_is_kept_also_of_one_instant() {
        for times in [1, 10] {
            let lane = |number: u8| {
                let at = Timestamp::from_millis(i64::from(number % times));
                LaneSnapshot::unknown(EndpointId::from_bytes([number; 16]), at)
            };
            let mut shown: HashMap<EndpointId, LaneSnapshot> = (0..100).map(lane).map(|lane| (lane.endpoint, lane)).collect();
            drop_older_half(&mut shown);
            assert_eq!(shown.len(), 49);
            assert!(shown.values().all(|lane| lane.at.as_millis() >= i64::from(times / 2)));
        }
    }
}
