//! Deletes events that are older than their tenant's retention, with their deliveries, attempts and idempotency rows.
//!
//! Tenants take turns. Each tenant's events are walked in their order, and how far that has come is stored with the tenant; what
//! cannot be deleted yet is noted in `retained` with the time when to look again. So no row is read that is neither old nor noted.
//! A turn decides and deletes in one transaction: what was replayed or created again in the meantime is seen.

use std::time::{Duration, Instant};

use posthaste_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::row;
use super::writer::GroupContext;
use crate::columns::{duration, limit};
use crate::housekeeping::{DueTenant, RetentionDecision, TENANTS_PER_LOOK, TenantKeeping, fate, standing};
use crate::{CleanupStep, Error};

/// The writer is given back after this long. A row that is begun is finished, which leaves room below the limit of 5 ms.
const HOLD_MAX: Duration = Duration::from_millis(4);
/// Deliveries of one event that are looked at in one turn. More of them take several turns.
const DELIVERIES_PER_LOOK: usize = 2_000;

/// Events of a tenant that are read at once, so that few are read in vain when the turn ends.
const EVENTS_PER_READ: usize = 16;

/// What one turn may still read and how long it may take.
pub(super) struct Budget {
    rows: usize,
    until: Instant,
}

impl Budget {
    pub(super) fn new(rows: usize, began: Instant) -> Budget {
        Budget { rows, until: began + HOLD_MAX }
    }

    pub(super) fn spend(&mut self, rows: usize) {
        self.rows = self.rows.saturating_sub(rows);
    }

    pub(super) fn is_spent(&self) -> bool {
        self.rows == 0 || Instant::now() >= self.until
    }
}

const SELECT_TENANTS: &str =
    "SELECT id, retention_ms, deleted_at_ms, deleted_to, swept_to FROM tenants WHERE id > ?1 ORDER BY id LIMIT ?2";
const SELECT_NEXT_EVENT: &str = "SELECT seq, accepted_at_ms FROM events WHERE tenant = ?1 AND seq > ?2 ORDER BY seq LIMIT 1";

/// Which of the next tenants have an event that is past its retention, and the last one that was looked at if there are more.
pub(super) fn look_for_due(
    connection: &Connection,
    after: &str,
    now: Timestamp,
) -> Result<(Vec<DueTenant>, Option<String>), Error> {
    let mut select = connection.prepare_cached(SELECT_TENANTS)?;
    let tenants = row::all(select.query(params![after, limit(TENANTS_PER_LOOK)])?, |row| {
        Ok((row::column::<String>(row, "id")?, keeping(row)?))
    })?;
    let last = tenants.last().filter(|_| tenants.len() >= TENANTS_PER_LOOK).map(|(id, _)| id.clone());
    let mut next = connection.prepare_cached(SELECT_NEXT_EVENT)?;
    let mut due = Vec::new();
    for (id, keeping) in tenants {
        let first = row::first(next.query(params![id, keeping.swept_to])?, |row| {
            Ok((row::column::<i64>(row, "seq")?, row::timestamp(row, "accepted_at_ms")?))
        })?;
        if let Some(behind) = first.and_then(|(seq, accepted_at)| keeping.overdue_for(seq, accepted_at, now)) {
            due.push(DueTenant { id, behind });
        }
    }
    Ok((due, last))
}

fn keeping(row: &Row<'_>) -> Result<TenantKeeping, Error> {
    Ok(TenantKeeping {
        retention: duration(row::column(row, "retention_ms")?)?,
        is_deleted: row::column::<Option<i64>>(row, "deleted_at_ms")?.is_some(),
        deleted_to: row::column(row, "deleted_to")?,
        swept_to: row::column(row, "swept_to")?,
    })
}

fn keeping_of(connection: &Connection, tenant: &str) -> Result<Option<TenantKeeping>, Error> {
    let mut select =
        connection.prepare_cached("SELECT retention_ms, deleted_at_ms, deleted_to, swept_to FROM tenants WHERE id = ?1")?;
    row::first(select.query([tenant])?, keeping)
}

/// What a turn has come to.
#[derive(Default)]
pub(super) struct Walked {
    pub(super) swept: CleanupStep,
    /// How many tenants had their turn.
    pub(super) reached: usize,
    /// Those of them that have more to delete.
    pub(super) more: Vec<DueTenant>,
}

const SELECT_EVENTS: &str = "SELECT seq, tenant, id, accepted_at_ms, idempotency_key, first_delivery, deliveries
                             FROM events WHERE tenant = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3";
const SELECT_EVENT: &str = "SELECT seq, tenant, id, accepted_at_ms, idempotency_key, first_delivery, deliveries
                            FROM events WHERE seq = ?1";

/// Walks on through the events of these tenants, each for so many rows, until the budget is spent.
pub(super) fn walk(
    turn: &GroupContext<'_>,
    tenants: &[DueTenant],
    quantum: usize,
    dead_letters_kept: Duration,
    now: Timestamp,
    budget: &mut Budget,
) -> Result<Walked, Error> {
    let mut walked = Walked::default();
    for tenant in tenants {
        if walked.reached > 0 && budget.is_spent() {
            break;
        }
        walked.reached += 1;
        let Some(keeping) = keeping_of(turn, &tenant.id)? else { continue };
        let (reached, behind) = walk_tenant(turn, tenant, &keeping, quantum, dead_letters_kept, now, budget, &mut walked.swept)?;
        if reached != keeping.swept_to {
            turn.execute_often(SET_SWEPT, params![tenant.id, reached])?;
        }
        if let Some(behind) = behind {
            walked.more.push(DueTenant { id: tenant.id.clone(), behind });
        }
    }
    Ok(walked)
}

/// Answers the last event that was passed, and for how long the next one should have been.
#[expect(clippy::too_many_arguments, reason = "one tenant's part of a turn, with all that the turn knows")]
fn walk_tenant(
    turn: &GroupContext<'_>,
    tenant: &DueTenant,
    keeping: &TenantKeeping,
    quantum: usize,
    dead_letters_kept: Duration,
    now: Timestamp,
    budget: &mut Budget,
    swept: &mut CleanupStep,
) -> Result<(i64, Option<Duration>), Error> {
    let (mut reached, mut looked_at) = (keeping.swept_to, 0);
    loop {
        let mut select = turn.prepare_cached(SELECT_EVENTS)?;
        let events = row::all(select.query(params![tenant.id, reached, limit(EVENTS_PER_READ)])?, old_event)?;
        let is_end = events.len() < EVENTS_PER_READ;
        for event in events {
            let Some(behind) = keeping.overdue_for(event.seq, event.accepted_at, now) else { return Ok((reached, None)) };
            if looked_at > 0 && (looked_at >= quantum || budget.is_spent()) {
                return Ok((reached, Some(behind)));
            }
            looked_at += 1;
            budget.spend(1);
            match examine(turn, &event, keeping, dead_letters_kept, now, budget, swept)? {
                Examined::Done => reached = event.seq,
                Examined::Interrupted => return Ok((reached, Some(behind))),
            }
        }
        if is_end {
            return Ok((reached, None));
        }
    }
}

const SET_SWEPT: &str = "UPDATE tenants SET swept_to = ?2 WHERE id = ?1";

pub(super) const SELECT_RETAINED: &str =
    "SELECT event_seq, look_again_at_ms FROM retained WHERE look_again_at_ms <= ?1 ORDER BY look_again_at_ms LIMIT ?2";

/// Looks again at an event that was passed over.
pub(super) fn look_again(
    turn: &GroupContext<'_>,
    event_seq: i64,
    dead_letters_kept: Duration,
    now: Timestamp,
    budget: &mut Budget,
    swept: &mut CleanupStep,
) -> Result<(), Error> {
    let event = row::first(turn.prepare_cached(SELECT_EVENT)?.query([event_seq])?, old_event)?;
    let Some(event) = event else {
        turn.execute_often(DELETE_RETAINED, [event_seq])?;
        return Ok(());
    };
    let tenant = keeping_of(turn, &event.tenant)?;
    // Without a tenant there is nobody to keep it for.
    let nobody = TenantKeeping { retention: Duration::ZERO, is_deleted: true, deleted_to: 0, swept_to: 0 };
    examine(turn, &event, &tenant.unwrap_or(nobody), dead_letters_kept, now, budget, swept)?;
    Ok(())
}

struct OldEvent {
    seq: i64,
    tenant: String,
    id: String,
    accepted_at: Timestamp,
    idempotency_key: Option<String>,
    first_delivery: i64,
    last_delivery: i64,
}

fn old_event(row: &Row<'_>) -> Result<OldEvent, Error> {
    let first_delivery: i64 = row::column(row, (5, "first_delivery"))?;
    let deliveries: i64 = row::column(row, (6, "deliveries"))?;
    Ok(OldEvent {
        seq: row::column(row, (0, "seq"))?,
        tenant: row::column(row, (1, "tenant"))?,
        id: row::column(row, (2, "id"))?,
        accepted_at: row::timestamp(row, (3, "accepted_at_ms"))?,
        idempotency_key: row::column(row, (4, "idempotency_key"))?,
        first_delivery,
        last_delivery: first_delivery + deliveries - 1,
    })
}

enum Examined {
    /// It is gone, or noted as retained.
    Done,
    /// The budget was spent before all of its deliveries were looked at.
    Interrupted,
}

/// Those that the event began with, and those that were made of it later.
pub(super) const SELECT_DELIVERIES: &str =
    "SELECT b.seq, b.status, b.due_at_ms, b.ended_at_ms FROM deliveries b WHERE b.seq BETWEEN ?2 AND ?3 AND b.event_seq = ?1
     UNION ALL
     SELECT l.seq, l.status, l.due_at_ms, l.ended_at_ms FROM deliveries l INDEXED BY deliveries_made_later
     WHERE l.event_seq = ?1 AND (l.replay IS NOT NULL OR l.replay_of IS NOT NULL)
     LIMIT ?4";

/// Deletes what may go of an event: deliveries that have ended long enough ago, and the event with the last of them.
fn examine(
    turn: &GroupContext<'_>,
    event: &OldEvent,
    tenant: &TenantKeeping,
    dead_letters_kept: Duration,
    now: Timestamp,
    budget: &mut Budget,
    swept: &mut CleanupStep,
) -> Result<Examined, Error> {
    let keeping = tenant.of(event.seq, dead_letters_kept);
    let mut select = turn.prepare_cached(SELECT_DELIVERIES)?;
    let rows = select.query(params![event.seq, event.first_delivery, event.last_delivery, limit(DELIVERIES_PER_LOOK)])?;
    let deliveries = row::all(rows, |row| {
        let standing =
            standing(row::text(row, (1, "status"))?, row::column(row, (2, "due_at_ms"))?, row::column(row, (3, "ended_at_ms"))?)?;
        Ok((row::column::<i64>(row, (0, "seq"))?, fate(standing, keeping, now)))
    })?;
    let is_all = deliveries.len() < DELIVERIES_PER_LOOK;
    budget.spend(deliveries.len());
    let mut retained: Option<(Timestamp, bool)> = None;
    let mut is_any_deleted = false;
    for (seq, fate) in deliveries {
        match fate {
            RetentionDecision::Keep { look_again, is_overdue } => {
                let (sooner, was_overdue) = retained.unwrap_or((look_again, is_overdue));
                retained = Some((sooner.min(look_again), was_overdue || is_overdue));
            }
            RetentionDecision::Delete => {
                if is_any_deleted && budget.is_spent() {
                    return Ok(Examined::Interrupted);
                }
                is_any_deleted = true;
                budget.spend(turn.execute_often(DELETE_ATTEMPTS, [seq])?);
                swept.deliveries += turn.execute_often(DELETE_DELIVERY, [seq])? as u64;
            }
        }
    }
    match retained {
        // There are more than one look shows: they are seen once these are gone.
        None if !is_all => return Ok(Examined::Interrupted),
        None => {
            turn.execute_often(DELETE_IDEMPOTENCY_KEY, params![event.tenant, "id", event.id, event.seq])?;
            if let Some(key) = &event.idempotency_key {
                turn.execute_often(DELETE_IDEMPOTENCY_KEY, params![event.tenant, "key", key, event.seq])?;
            }
            swept.events += turn.execute_often(DELETE_EVENT, [event.seq])? as u64;
            turn.execute_often(DELETE_RETAINED, [event.seq])?;
        }
        Some((look_again, is_overdue)) => {
            turn.execute_often(RETAIN, params![event.seq, look_again.as_millis(), is_overdue])?;
        }
    }
    Ok(Examined::Done)
}

const DELETE_ATTEMPTS: &str = "DELETE FROM attempts WHERE delivery_seq = ?1";
const DELETE_DELIVERY: &str = "DELETE FROM deliveries WHERE seq = ?1";
const DELETE_EVENT: &str = "DELETE FROM events WHERE seq = ?1";
const DELETE_IDEMPOTENCY_KEY: &str = "DELETE FROM idempotency_keys WHERE tenant = ?1 AND kind = ?2 AND key = ?3 AND event_seq = ?4";
const DELETE_RETAINED: &str = "DELETE FROM retained WHERE event_seq = ?1";
const RETAIN: &str = "INSERT INTO retained (event_seq, look_again_at_ms, is_overdue) VALUES (?1, ?2, ?3)
     ON CONFLICT (event_seq) DO UPDATE SET look_again_at_ms = excluded.look_again_at_ms, is_overdue = excluded.is_overdue";

/// Free pages up to this part of the file stay in it: the next events go there.
const FREE_PAGES_KEPT_PART: i64 = 16;
const FREE_PAGES_KEPT_MIN: i64 = 256;

/// Whether the file is much larger than what is in it.
pub(super) fn has_free_pages(connection: &Connection) -> Result<bool, Error> {
    let pragma = |sql: &str| connection.prepare_cached(sql)?.query_row([], |row| row.get::<_, i64>(0)).optional();
    let free = pragma("PRAGMA freelist_count")?.unwrap_or(0);
    let pages = pragma("PRAGMA page_count")?.unwrap_or(0);
    Ok(free > FREE_PAGES_KEPT_MIN.max(pages / FREE_PAGES_KEPT_PART))
}

/// Gives free pages back to the file system. Each step of the statement frees one.
pub(super) fn free_pages(connection: &Connection, budget: &mut Budget) -> Result<u64, Error> {
    let mut vacuum = connection.prepare_cached("PRAGMA incremental_vacuum(10000)")?;
    let mut rows = vacuum.query([])?;
    let mut freed = 0;
    while !budget.is_spent() && rows.next()?.is_some() {
        freed += 1;
        budget.spend(1);
    }
    Ok(freed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many rows are young, unfinished, or of other tenants.
    #[test]
    fn i52_old_rows_are_found_without_reading_others() {
        let mut connection = Connection::open_in_memory().expect("a database");
        super::super::migrations::run(&mut connection).expect("a schema");
        for (select, way) in [
            (SELECT_TENANTS, "SEARCH tenants USING PRIMARY KEY (id>?)"),
            (SELECT_NEXT_EVENT, "SEARCH events USING INDEX events_by_tenant (tenant=? AND rowid>?)"),
            (SELECT_EVENTS, "SEARCH events USING INDEX events_by_tenant (tenant=? AND rowid>?)"),
            (SELECT_EVENT, "SEARCH events USING INTEGER PRIMARY KEY (rowid=?)"),
            (SELECT_RETAINED, "SEARCH retained USING COVERING INDEX retained_by_time (look_again_at_ms<?)"),
            (SELECT_DELIVERIES, "SEARCH b USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
            (SELECT_DELIVERIES, "SEARCH l USING INDEX deliveries_made_later (event_seq=?)"),
            (DELETE_ATTEMPTS, "SEARCH attempts USING PRIMARY KEY (delivery_seq=?)"),
            (DELETE_IDEMPOTENCY_KEY, "SEARCH idempotency_keys USING PRIMARY KEY (tenant=? AND kind=? AND key=?)"),
        ] {
            let steps = row::plan(&connection, select);
            assert!(steps.iter().any(|step| step == way), "{select}\n{steps:?}");
            assert!(!steps.iter().any(|step| step.starts_with("SCAN") || step.contains("TEMP B-TREE")), "{select}\n{steps:?}");
        }
    }

    #[test]
    fn free_pages_are_given_back_one_for_each_row_of_the_budget() {
        let connection = Connection::open_in_memory().expect("a database");
        connection
            .execute_batch(
                "PRAGMA auto_vacuum = INCREMENTAL; CREATE TABLE t (data BLOB);
                 WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) INSERT INTO t SELECT zeroblob(4000) FROM n;
                 DELETE FROM t",
            )
            .expect("a table");
        let free = || connection.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0)).expect("a count");
        assert!(has_free_pages(&connection).expect("a look"));
        let before = free();
        let far = Instant::now() + Duration::from_mins(1);
        assert_eq!(free_pages(&connection, &mut Budget { rows: 100, until: far }).expect("a vacuum"), 100);
        assert_eq!(before - free(), 100);
        assert_eq!(free_pages(&connection, &mut Budget { rows: 100, until: Instant::now() }).expect("a vacuum"), 0, "no time");
        let rest = free();
        assert_eq!(free_pages(&connection, &mut Budget { rows: 100_000, until: far }).expect("a vacuum"), rest.unsigned_abs());
        assert_eq!(free(), 0);
    }
}
