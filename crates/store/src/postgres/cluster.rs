//! Who owns what. All times are the database's, compared where they are: in its statements.

use std::collections::BTreeMap;
use std::time::Instant;

use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::scheduler::Seq;
use posthaste_core::text::OrderingKey;
use tokio_postgres::Row;

use super::connection::{Connection, Problem, Use};
use super::{Database, row};
use crate::columns::{corrupt, limit, millis, signed, unsigned};
use crate::{Claimed, Epoch, Error, GivenUp, HandedOver, InFlightElsewhere, LEASE, NodeId, Partition, Refusal};

impl Database {
    pub(super) async fn join(&self, node: NodeId) -> Result<(), Error> {
        self.transact_by(Use::Work, |connection| async move {
            let node = bytes(node);
            connection.execute(JOIN, &[&node, &lease_ms()]).await?;
            // Under a name that was used before, it owns nothing either.
            connection.execute(FREE_OWN, &[&node]).await?;
            Ok(())
        })
        .await
    }

    /// On a connection of its own, so that a busy pool cannot delay it.
    pub(super) async fn renew(&self, node: NodeId) -> Result<Result<(), Refusal>, Error> {
        self.run(Use::Heartbeat, |connection| async move {
            let asked_at = Instant::now();
            let Some(row) = connection.query_opt(RENEW, &[&bytes(node), &lease_ms()]).await? else {
                return Ok(Err(Refusal::LeaseEnded));
            };
            self.clock.measure(asked_at, row::column(&row, "micros")?);
            Ok(Ok(()))
        })
        .await
    }

    pub(super) async fn claim(&self, node: NodeId, share: usize) -> Result<Result<Claimed, Refusal>, Error> {
        self.transact_by(Use::Work, |connection| async move { claim(&connection, &bytes(node), share).await }).await
    }

    pub(super) async fn hand_over(&self, node: NodeId, given_up: GivenUp, in_flight: Vec<HandedOver>) -> Result<(), Error> {
        let (partitions, epochs) = match given_up {
            GivenUp::Everything => (None, None),
            GivenUp::Partitions(partitions) => {
                let ids = partitions.iter().filter_map(|(partition, _)| i16::try_from(*partition).ok()).collect::<Vec<_>>();
                (Some(ids), Some(partitions.iter().map(|(_, epoch)| signed(*epoch)).collect::<Vec<i64>>()))
            }
        };
        let (partitions, epochs) = (&partitions, &epochs);
        // The last word about each, because one statement writes a row once.
        let in_flight: BTreeMap<Seq, HandedOver> = in_flight.into_iter().map(|one| (one.seq, one)).collect();
        let seqs = &in_flight.keys().copied().map(signed).collect::<Vec<i64>>();
        let attempts = &in_flight.values().map(|one| i32::try_from(one.attempt).unwrap_or(i32::MAX)).collect::<Vec<i32>>();
        let untils = &in_flight.values().map(|one| one.until.as_millis()).collect::<Vec<i64>>();
        self.transact_by(Use::Work, |connection| async move {
            let node = bytes(node);
            connection.execute(LOCK_OWN, &[&node, partitions, epochs]).await?;
            connection.execute(HAND_OVER, &[&node, partitions, epochs, seqs, attempts, untils]).await?;
            connection.execute(GIVE_UP, &[&node, partitions, epochs]).await?;
            Ok(())
        })
        .await
    }

    pub(super) async fn handed_over_left(&self, deliveries: Vec<Seq>) -> Result<Vec<Seq>, Error> {
        let seqs = &deliveries.into_iter().map(signed).collect::<Vec<i64>>();
        self.read_for_work(|connection| async move {
            let rows = connection.query(SELECT_HANDED_OVER_LEFT, &[seqs]).await?;
            Ok(rows.iter().map(|row| Ok(unsigned(row::column(row, "seq")?))).collect::<Result<_, Error>>()?)
        })
        .await
    }

    pub(super) async fn nodes(&self) -> Result<Vec<NodeId>, Error> {
        self.read_for_work(|connection| async move {
            let rows = connection.query(SELECT_NODES, &[]).await?;
            let node = |row| Ok(NodeId(u128::from_be_bytes(row::bytes(row, "id")?)));
            Ok(rows.iter().map(node).collect::<Result<_, Error>>()?)
        })
        .await
    }
}

pub(super) fn bytes(node: NodeId) -> Vec<u8> {
    node.0.to_be_bytes().to_vec()
}

fn lease_ms() -> f64 {
    millis(LEASE) as f64
}

async fn claim(connection: &Connection, node: &Vec<u8>, share: usize) -> Result<Result<Claimed, Refusal>, Problem> {
    if connection.query_opt(SELECT_LEASE, &[node]).await?.is_none() {
        return Ok(Err(Refusal::LeaseEnded));
    }
    connection.execute(DELETE_EXPIRED, &[]).await?;
    connection.execute(FREE_ORPHANS, &[]).await?;
    connection.execute(TAKE, &[node, &limit(share)]).await?;
    let partitions = connection.query(SELECT_OWN, &[node]).await?;
    let in_flight_elsewhere = connection.query(SELECT_LEAVE_ALONE, &[node]).await?;
    let numbered = connection.query_one(SELECT_NUMBERED, &[]).await?;
    // If others have kept us waiting for too long, they take what we have just written.
    if connection.query_opt(SELECT_LEASE, &[node]).await?.is_none() {
        return Ok(Err(Refusal::LeaseEnded));
    }
    Ok(Ok(Claimed {
        partitions: partitions.iter().map(owned).collect::<Result<_, _>>()?,
        // A partition without an owner may also be a dead one's that others had no room for: not trusted.
        handed_over: vec![],
        in_flight_elsewhere: in_flight_elsewhere.iter().map(read_in_flight_elsewhere).collect::<Result<_, _>>()?,
        numbered: unsigned(row::column(&numbered, "numbered")?),
    }))
}

fn owned(row: &Row) -> Result<(Partition, Epoch), Error> {
    let partition = Partition::try_from(row::column::<i16>(row, "id")?).map_err(corrupt("partition"))?;
    Ok((partition, unsigned(row::column(row, "epoch")?)))
}

fn read_in_flight_elsewhere(row: &Row) -> Result<InFlightElsewhere, Error> {
    Ok(InFlightElsewhere {
        endpoint: EndpointId::from_bytes(row::bytes(row, "endpoint")?),
        delivery: DeliveryId::from_bytes(row::bytes(row, "id")?),
        seq: unsigned(row::column(row, "seq")?),
        ordering_key: row::optional(row, "ordering_key", OrderingKey::parse)?,
        until: row::timestamp(row, "until_ms")?,
    })
}

/// Numbers that were taken and not yet written, too. A sequence shows its first number before it has given it.
const SELECT_NUMBERED: &str =
    "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS numbered FROM deliveries_seq_seq";
const JOIN: &str = "INSERT INTO nodes (id, expires_at) VALUES ($1, clock_timestamp() + $2::float8 * interval '1 millisecond')
                    ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at";
const FREE_OWN: &str = "UPDATE partitions SET owner = NULL WHERE owner = $1";
/// One that has expired is never renewed: others may have taken what it owned.
const RENEW: &str = "UPDATE nodes SET expires_at = clock_timestamp() + $2::float8 * interval '1 millisecond'
     WHERE id = $1 AND expires_at > clock_timestamp()
     RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS micros";
/// Keeps others from deleting it, and not itself from renewing it.
const SELECT_LEASE: &str = "SELECT 1 FROM nodes WHERE id = $1 AND expires_at > clock_timestamp() FOR KEY SHARE";
/// Looked at again once it is locked, so that one that has renewed in the last moment stays.
const DELETE_EXPIRED: &str =
    "DELETE FROM nodes WHERE id IN (SELECT id FROM nodes WHERE expires_at <= clock_timestamp() ORDER BY id FOR UPDATE SKIP LOCKED)";
/// Waits for what their owners may be writing: that is under the old epoch, and before the next one.
const FREE_ORPHANS: &str = "UPDATE partitions SET owner = NULL WHERE id IN (
       SELECT p.id FROM partitions p WHERE p.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = p.owner)
       ORDER BY p.id FOR UPDATE OF p)";
const TAKE: &str = "UPDATE partitions SET owner = $1, epoch = epoch + 1 WHERE id IN (
       SELECT id FROM partitions WHERE owner IS NULL ORDER BY id
       LIMIT greatest($2::bigint - (SELECT count(*) FROM partitions WHERE owner = $1), 0) FOR UPDATE SKIP LOCKED)";
const SELECT_OWN: &str = "SELECT id, epoch FROM partitions WHERE owner = $1 ORDER BY id";
/// Whether a leaver may still record what it has handed over, and its successor waits for that (`h` is a row of `handed_over`). A node
/// whose lease has ended is gone: it is never renewed, so that nothing is recorded once its successor has stopped waiting.
macro_rules! is_awaited {
    () => {
        "h.until_ms > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
           AND (h.node IS NULL OR EXISTS (SELECT 1 FROM nodes n WHERE n.id = h.node AND n.expires_at > clock_timestamp()))"
    };
}
pub(super) use is_awaited;
const SELECT_LEAVE_ALONE: &str = concat!(
    "SELECT h.until_ms, d.endpoint, d.id, d.seq, d.ordering_key FROM handed_over h JOIN deliveries d ON d.seq = h.delivery_seq
     WHERE d.status = 'waiting' AND d.partition IN (SELECT id FROM partitions WHERE owner = $1) AND ",
    is_awaited!()
);
const SELECT_HANDED_OVER_LEFT: &str = concat!(
    "SELECT d.seq FROM handed_over h JOIN deliveries d ON d.seq = h.delivery_seq
     WHERE h.delivery_seq = ANY($1::bigint[]) AND d.status = 'waiting' AND ",
    is_awaited!()
);
/// Of the partitions `p`, those that the node $1 gives up: of $2 the ones whose epochs are still those of $3, or all that it owns.
macro_rules! is_given_up {
    () => {
        "p.owner = $1 AND ($2::smallint[] IS NULL
           OR (p.id, p.epoch) IN (SELECT given.id, given.epoch FROM unnest($2::smallint[], $3::bigint[]) AS given (id, epoch)))"
    };
}

const LOCK_OWN: &str = concat!("SELECT id FROM partitions p WHERE ", is_given_up!(), " ORDER BY id FOR UPDATE");
/// After the lock, so that it sees what was recorded before: that is not in flight any more, and waiting for its record would
/// block its key and its slot for nothing.
const HAND_OVER: &str = concat!(
    "INSERT INTO handed_over (delivery_seq, epoch, until_ms, node)
     SELECT d.seq, p.epoch, left_over.until_ms, $1
     FROM unnest($4::bigint[], $5::int[], $6::bigint[]) AS left_over (seq, attempt, until_ms)
     JOIN deliveries d ON d.seq = left_over.seq AND d.status = 'waiting' AND d.attempts = left_over.attempt - 1
     JOIN partitions p ON p.id = d.partition AND ",
    is_given_up!(),
    " ON CONFLICT (delivery_seq) DO UPDATE SET epoch = excluded.epoch, until_ms = excluded.until_ms, node = excluded.node"
);
const GIVE_UP: &str = concat!("UPDATE partitions p SET owner = NULL WHERE ", is_given_up!());
const SELECT_NODES: &str = "SELECT id FROM nodes WHERE expires_at > clock_timestamp() ORDER BY id";
