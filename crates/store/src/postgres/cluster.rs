//! Who owns what. All times are the database's, compared where they are: in its statements.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::scheduler::Seq;
use posthaste_core::text::OrderingKey;
use tokio_postgres::Row;

use super::connection::{Connection, Problem, Use};
use super::{Database, row};
use crate::columns::{corrupt, limit, millis, signed, unsigned};
use crate::{
    Claimed, CleanTransfer, ClusterView, Epoch, Error, GivenUp, HandedOver, InFlightElsewhere, LEASE, MOVED_AT_MOST_EVERY, NodeId,
    NodeInfo, NodeLoad, NodeStatus, Partition, Refusal, SETTLED_AFTER, TenantBucket, Transfer,
};

impl Database {
    pub(super) async fn join(&self, node: NodeId) -> Result<ClusterView, Error> {
        let NodeInfo { host, version, roles, address } = &self.options.node_info;
        let roles = &roles.join(",");
        let view = self
            .transact_by(Use::Work, |connection| async move {
                let node = bytes(node);
                connection.execute(JOIN, &[&node, &lease_ms(), host, version, roles, address]).await?;
                // Under a name that was used before, it owns nothing either.
                connection.execute(FREE_OWN, &[&node]).await?;
                let view = connection.query_one(SELECT_VIEW, &[&settled_after_ms()]).await?;
                Ok(read_view(&view)?)
            })
            .await?;
        self.ownership.joined(node);
        self.news.wanted();
        Ok(view)
    }

    /// On a connection of its own, so that a busy pool cannot delay it.
    pub(super) async fn renew(&self, node: NodeId, load: NodeLoad) -> Result<Result<ClusterView, Refusal>, Error> {
        let (lanes, in_flight, lag) = (signed(load.lanes), signed(load.in_flight), millis(load.lag));
        self.run(Use::Heartbeat, |connection| async move {
            let asked_at = Instant::now();
            let skew = millis(self.clock.skew());
            let renewed = connection.query_opt(RENEW, &[&bytes(node), &lease_ms(), &skew, &lanes, &in_flight, &lag]).await?;
            let Some(row) = renewed else { return Ok(Err(Refusal::LeaseEnded)) };
            self.clock.measure(asked_at, row::column(&row, "micros")?);
            let view = connection.query_one(SELECT_VIEW, &[&settled_after_ms()]).await?;
            Ok(Ok(read_view(&view)?))
        })
        .await
    }

    pub(super) async fn claim(&self, node: NodeId, share: usize) -> Result<Result<Claimed, Refusal>, Error> {
        let claimed =
            self.transact_by(Use::Work, |connection| async move { claim(&connection, &bytes(node), share).await }).await?;
        self.ownership.owns(claimed.as_ref().map_or(&[], |claimed| &claimed.partitions));
        Ok(claimed)
    }

    pub(super) async fn partitions_freed(&self) -> Result<(), Error> {
        self.news.partitions_freed().await;
        Ok(())
    }

    pub(super) async fn hand_over(&self, node: NodeId, transfer: Transfer) -> Result<(), Error> {
        let Transfer { given_up, in_flight, tenant_buckets } = transfer;
        let is_leaving = given_up.is_leaving();
        let (partitions, epochs) = match given_up {
            GivenUp::Everything => (None, None),
            GivenUp::Partitions(partitions) | GivenUp::Leaving(partitions) => {
                // Before they are free: what is committed from now on is announced to the next owner.
                self.ownership.gives_up(&partitions);
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
        let buckets: BTreeMap<(String, i16), i64> = tenant_buckets
            .into_iter()
            .filter_map(|TenantBucket { tenant, partition, bucket }| {
                Some(((tenant.as_str().to_owned(), i16::try_from(partition).ok()?), bucket.as_nanos()))
            })
            .collect();
        let tenants = &buckets.keys().map(|(tenant, _)| tenant.as_str()).collect::<Vec<_>>();
        let places = &buckets.keys().map(|(_, partition)| *partition).collect::<Vec<_>>();
        let full_at = &buckets.values().copied().collect::<Vec<_>>();
        self.transact_by(Use::Work, |connection| async move {
            let node = bytes(node);
            connection.execute(LOCK_OWN, &[&node, partitions, epochs]).await?;
            connection.execute(HAND_OVER, &[&node, partitions, epochs, seqs, attempts, untils]).await?;
            if !tenants.is_empty() {
                connection.execute(PUT_BUCKETS, &[&node, partitions, epochs, tenants, places, full_at]).await?;
            }
            if is_leaving {
                connection.execute(MARK_LEAVING, &[&node]).await?;
            }
            connection.query(GIVE_UP, &[&node, partitions, epochs, &!is_leaving]).await?;
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
            Ok(rows.iter().map(node_id).collect::<Result<_, Error>>()?)
        })
        .await
    }

    pub(super) async fn cluster(&self) -> Result<Vec<NodeStatus>, Error> {
        self.read(|connection| async move {
            let rows = connection.query(SELECT_CLUSTER, &[]).await?;
            Ok(rows.iter().map(node_status).collect::<Result<_, Error>>()?)
        })
        .await
    }
}

fn node_id(row: &Row) -> Result<NodeId, Error> {
    Ok(NodeId(u128::from_be_bytes(row::bytes(row, "id")?)))
}

fn node_status(row: &Row) -> Result<NodeStatus, Error> {
    let roles = row::text(row, "roles")?;
    let partitions: Vec<i16> = row::column(row, "partitions")?;
    Ok(NodeStatus {
        id: node_id(row)?,
        info: NodeInfo {
            host: row::text(row, "host")?.to_owned(),
            version: row::text(row, "version")?.to_owned(),
            roles: roles.split(',').filter(|role| !role.is_empty()).map(str::to_owned).collect(),
            address: row::optional_text(row, "address")?.map(str::to_owned),
        },
        load: NodeLoad {
            lanes: unsigned(row::column(row, "lanes")?),
            in_flight: unsigned(row::column(row, "in_flight")?),
            lag: duration(row, "lag_ms")?,
        },
        started_at: row::timestamp(row, "joined_ms")?,
        lease_left: duration(row, "lease_left_ms")?,
        clock_skew: duration(row, "clock_skew_ms")?,
        is_leaving: row::column(row, "is_leaving")?,
        partitions: partitions.into_iter().map(Partition::try_from).collect::<Result<_, _>>().map_err(corrupt("partition"))?,
    })
}

fn duration(row: &Row, column: &'static str) -> Result<Duration, Error> {
    Ok(Duration::from_millis(unsigned(row::column(row, column)?)))
}

fn read_view(row: &Row) -> Result<ClusterView, Error> {
    let unowned_ms: Option<i64> = row::column(row, "unowned_ms")?;
    Ok(ClusterView {
        delivering: usize::try_from(row::column::<i64>(row, "delivering")?).unwrap_or(usize::MAX),
        settled: usize::try_from(row::column::<i64>(row, "settled")?).unwrap_or(usize::MAX),
        unowned_for: unowned_ms.map(|ms| Duration::from_millis(unsigned(ms))),
    })
}

pub(super) fn bytes(node: NodeId) -> Vec<u8> {
    node.0.to_be_bytes().to_vec()
}

fn lease_ms() -> f64 {
    millis(LEASE) as f64
}

fn settled_after_ms() -> f64 {
    millis(SETTLED_AFTER) as f64
}

async fn claim(connection: &Connection, node: &Vec<u8>, share: usize) -> Result<Result<Claimed, Refusal>, Problem> {
    if connection.query_opt(SELECT_LEASE, &[node]).await?.is_none() {
        return Ok(Err(Refusal::LeaseEnded));
    }
    connection.execute(DELETE_EXPIRED, &[]).await?;
    connection.execute(FREE_ORPHANS, &[]).await?;
    let taken = connection.query(TAKE, &[node, &limit(share)]).await?;
    let partitions = connection.query(SELECT_OWN, &[node, &(millis(MOVED_AT_MOST_EVERY) as f64)]).await?;
    let in_flight_elsewhere = connection.query(SELECT_LEAVE_ALONE, &[node]).await?;
    let numbered = connection.query_one(SELECT_NUMBERED, &[]).await?;
    // If others have kept us waiting for too long, they take what we have just written.
    if connection.query_opt(SELECT_LEASE, &[node]).await?.is_none() {
        return Ok(Err(Refusal::LeaseEnded));
    }
    let mut just_moved = Vec::new();
    for row in &partitions {
        if row::column(row, "is_just_moved")? {
            just_moved.push(owned(row)?.0);
        }
    }
    Ok(Ok(Claimed {
        partitions: partitions.iter().map(owned).collect::<Result<_, _>>()?,
        handed_over: clean_transfers(&taken)?,
        just_moved,
        in_flight_elsewhere: in_flight_elsewhere.iter().map(read_in_flight_elsewhere).collect::<Result<_, _>>()?,
        numbered: unsigned(row::column(&numbered, "numbered")?),
    }))
}

/// In the order of their partitions.
fn clean_transfers(taken: &[Row]) -> Result<Vec<CleanTransfer>, Error> {
    let mut transfers = Vec::new();
    for row in taken {
        if row::column(row, "is_handed_over")? {
            let partition = Partition::try_from(row::column::<i16>(row, "id")?).map_err(corrupt("partition"))?;
            transfers.push(CleanTransfer { partition, crashed_at: row::optional_timestamp(row, "crashed_ms")? });
        }
    }
    transfers.sort_unstable_by_key(|transfer| transfer.partition);
    Ok(transfers)
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
const JOIN: &str = "INSERT INTO nodes (id, expires_at, joined_at, host, version, roles, address)
     VALUES ($1, clock_timestamp() + $2::float8 * interval '1 millisecond', clock_timestamp(), $3, $4, $5, $6)
     ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at, joined_at = excluded.joined_at, is_leaving = FALSE";
const FREE_OWN: &str = "UPDATE partitions SET owner = NULL, freed_at = clock_timestamp(), crashed_at = clock_timestamp(), \
                        is_handed_over = FALSE WHERE owner = $1";
/// The nodes that share the work, and whether something has no owner.
const SELECT_VIEW: &str = "SELECT count(*) AS delivering,
       count(*) FILTER (WHERE joined_at <= clock_timestamp() - $1::float8 * interval '1 millisecond') AS settled,
       (SELECT (extract(epoch FROM clock_timestamp() - min(coalesce(p.freed_at, '-infinity'))) * 1000)::bigint
        FROM partitions p WHERE p.owner IS NULL AND p.freed_at IS NOT NULL) AS unowned_ms
     FROM nodes WHERE expires_at > clock_timestamp() AND NOT is_leaving";
/// One that has expired is never renewed: others may have taken what it owned.
const RENEW: &str = "UPDATE nodes SET expires_at = clock_timestamp() + $2::float8 * interval '1 millisecond',
       clock_skew_ms = $3, lanes = $4, in_flight = $5, lag_ms = $6
     WHERE id = $1 AND expires_at > clock_timestamp()
     RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS micros";
/// Keeps others from deleting it, and not itself from renewing it.
const SELECT_LEASE: &str = "SELECT 1 FROM nodes WHERE id = $1 AND expires_at > clock_timestamp() FOR KEY SHARE";
/// Looked at again once it is locked, so that one that has renewed in the last moment stays.
const DELETE_EXPIRED: &str =
    "DELETE FROM nodes WHERE id IN (SELECT id FROM nodes WHERE expires_at <= clock_timestamp() ORDER BY id FOR UPDATE SKIP LOCKED)";
/// Waits for what their owners may be writing: that is under the old epoch, and before the next one.
const FREE_ORPHANS: &str = "UPDATE partitions
     SET owner = NULL, freed_at = clock_timestamp(), crashed_at = clock_timestamp(), is_handed_over = FALSE WHERE id IN (
       SELECT p.id FROM partitions p WHERE p.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = p.owner)
       ORDER BY p.id FOR UPDATE OF p)";
/// Whether the last owner gave a partition up cleanly stays with its row: it is true of the transfer to this owner.
const TAKE: &str = "UPDATE partitions SET owner = $1, epoch = epoch + 1, freed_at = NULL WHERE id IN (
       SELECT id FROM partitions WHERE owner IS NULL ORDER BY id
       LIMIT greatest($2::bigint - (SELECT count(*) FROM partitions WHERE owner = $1), 0) FOR UPDATE SKIP LOCKED)
     RETURNING id, is_handed_over, (extract(epoch FROM crashed_at) * 1000)::bigint AS crashed_ms";
const SELECT_OWN: &str = "SELECT id, epoch,
       coalesce(moved_at > clock_timestamp() - $2::float8 * interval '1 millisecond', FALSE) AS is_just_moved
     FROM partitions WHERE owner = $1 ORDER BY id";
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
/// Of tenants whose partition is given up. A bucket that has filled up needs no row.
const PUT_BUCKETS: &str = concat!(
    "INSERT INTO tenant_buckets (tenant, partition, full_at_nanos)
     SELECT given.tenant, given.partition, given.full_at
     FROM unnest($4::text[], $5::smallint[], $6::bigint[]) AS given (tenant, partition, full_at)
     JOIN partitions p ON p.id = given.partition AND ",
    is_given_up!(),
    " ON CONFLICT (tenant, partition) DO UPDATE SET full_at_nanos = excluded.full_at_nanos"
);
const MARK_LEAVING: &str = "UPDATE nodes SET is_leaving = TRUE WHERE id = $1";
/// $4: to share the load. The others hear of it when this commits.
const GIVE_UP: &str = concat!(
    "WITH freed AS (
       UPDATE partitions p SET owner = NULL, freed_at = clock_timestamp(), is_handed_over = TRUE,
              moved_at = CASE WHEN $4 THEN clock_timestamp() ELSE p.moved_at END
       WHERE ",
    is_given_up!(),
    " RETURNING 1)
     SELECT pg_notify('posthaste_partitions', '') FROM freed LIMIT 1"
);
/// What is in flight on each node, for people.
const SELECT_CLUSTER: &str = "SELECT n.id, n.host, n.version, n.roles, n.address, n.lanes, n.in_flight, n.lag_ms, n.clock_skew_ms,
       n.is_leaving, (extract(epoch FROM n.joined_at) * 1000)::bigint AS joined_ms,
       (extract(epoch FROM n.expires_at - clock_timestamp()) * 1000)::bigint AS lease_left_ms,
       ARRAY(SELECT p.id FROM partitions p WHERE p.owner = n.id ORDER BY p.id) AS partitions
     FROM nodes n WHERE n.expires_at > clock_timestamp() ORDER BY n.joined_at, n.id";
const SELECT_NODES: &str = "SELECT id FROM nodes WHERE expires_at > clock_timestamp() ORDER BY id";
