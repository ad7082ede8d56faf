//! Cleanup in small steps, ending what has waited too long, and erasing.
//!
//! Candidates are looked for by readers; the writer is only asked to delete what was found, and gives itself back after some
//! milliseconds. Every look reads a bounded number of rows and remembers where it stopped.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use posthaste_core::id::{DeliveryId, EndpointId, EventId, TenantId};
use posthaste_core::retention::next_step_rows;
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, Row, params};

use super::retention::{Budget, SELECT_RETAINED, free_pages, has_free_pages, look_again, look_for_due, walk};
use super::writer::{GroupContext, State};
use super::{SMALL, Sqlite, configuration, row};
use crate::columns::{limit, millis, unsigned};
use crate::endpoint_versions::STRAGGLERS_MAX;
use crate::housekeeping::Rotation;
use crate::{Audit, CleanupStep, Error, Housekeeping, MINUTES_KEPT, Overdue, OverdueReason, secrets};

/// Rows that a look at what there is little of goes over.
const LOOK_ROWS: usize = 500;
/// Deleted endpoints whose rows are looked for in one go: the newest, and as many others in turn.
const DELETED_ENDPOINTS_PER_LOOK: usize = 250;
/// Deliveries that one look for overdue ones goes over.
const OVERDUE_ROWS_READ_MAX: usize = 5_000;

/// A place in an index by time and id.
type IndexPosition = (i64, Vec<u8>);
const FRONT: IndexPosition = (i64::MIN, Vec::new());

/// How far cleanup has come. What has to survive a restart is in the database.
#[derive(Debug)]
pub(super) struct Progress {
    rotation: Rotation,
    /// Rows of the next turn.
    rows: usize,
    /// Where the next look starts; at the front after the last row.
    endpoints: IndexPosition,
    tenants: (i64, String),
    replays: IndexPosition,
    versions: (Vec<u8>, i64),
    lanes: Vec<u8>,
    resealed: Vec<u8>,
    /// Rows were deleted since the log was last emptied: it still has them.
    is_in_the_log: bool,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            rotation: Rotation::default(),
            rows: 100,
            endpoints: FRONT,
            tenants: (i64::MIN, String::new()),
            replays: FRONT,
            versions: (Vec::new(), 0),
            lanes: Vec::new(),
            resealed: Vec::new(),
            is_in_the_log: false,
        }
    }
}

/// How long an erasure waits for readers that keep the log from being emptied.
const EMPTIED_WITHIN: Duration = Duration::from_millis(3_500);
const EMPTIED_PAUSE: Duration = Duration::from_millis(20);

/// Where the next look for overdue deliveries starts.
#[derive(Debug, Default)]
pub(super) struct OverdueProgress(Mutex<OverduePositions>);

#[derive(Clone, Debug)]
struct OverduePositions {
    retained: i64,
    endpoints: IndexPosition,
}

impl Default for OverduePositions {
    fn default() -> OverduePositions {
        OverduePositions { retained: 0, endpoints: FRONT }
    }
}

impl Sqlite {
    pub(super) async fn clean_up(&self, limits: Housekeeping) -> Result<CleanupStep, Error> {
        // All that follows destroys, by the clock. Whatever has to be true before that is asked here.
        let now = self.clock_now();
        let progress = &mut *self.0.housekeeping.lock().await;
        let mut step = Step { store: self, limits, now, swept: CleanupStep::default() };
        step.delete_events(progress).await?;
        if progress.rotation.are_others_due() {
            step.delete_retained(progress).await?;
            step.delete_idempotency_keys(progress).await?;
            step.delete_minutes(progress).await?;
        }
        if progress.rotation.is_rest_due() {
            step.delete_the_rest(progress).await?;
        }
        step.swept.behind = step.swept.behind.max(progress.rotation.behind());
        step.swept.has_more |= progress.rotation.is_anything_left();
        let swept = step.swept;
        progress.is_in_the_log |= swept.events + swept.deliveries > 0;
        if progress.is_in_the_log && !swept.has_more {
            // Once at the end of a round. If somebody reads, the next step tries again.
            progress.is_in_the_log = !self.0.writer.empty_the_log().await?;
        }
        Ok(swept)
    }

    /// What is found, even if one of the looks fails; an error only if nothing was.
    pub(super) async fn overdue(&self, rows_max: usize) -> Result<Vec<Overdue>, Error> {
        let now = self.clock_now();
        let places = self.0.overdue.0.lock().clone();
        let from = places.clone();
        let mut found = Vec::new();
        let mut failed = None;
        let mut take = |part: Result<Vec<Overdue>, Error>| match part {
            Ok(part) => found.extend(part),
            Err(error) => {
                tracing::warn!(%error, "some of what is overdue was not found; it is looked for again");
                failed = Some(error);
            }
        };
        take(self.read_for_work(move |connection| expired(connection, now, rows_max)).await);
        let (endpoints, deleted) =
            split(self.read_for_work(move |connection| of_deleted(connection, &from.endpoints, rows_max)).await);
        take(deleted);
        let (retained, stale) =
            split(self.read_for_work(move |connection| stale(connection, places.retained, now, rows_max)).await);
        take(stale);
        {
            let mut places = self.0.overdue.0.lock();
            places.endpoints = endpoints.unwrap_or_else(|| places.endpoints.clone());
            places.retained = retained.unwrap_or(places.retained);
        }
        found.truncate(rows_max);
        match failed {
            Some(error) if found.is_empty() => Err(error),
            Some(_) | None => Ok(found),
        }
    }

    pub(super) async fn erase(&self, tenant: Option<TenantId>, event: EventId, audit: Audit) -> Result<bool, Error> {
        let store = self.clone();
        let has_erased = self
            .write(SMALL, move |connection, _| {
                let now = store.clock_now();
                let erased = connection
                    .prepare_cached(
                        "UPDATE events SET data = NULL, erased_at_ms = ?3
                     WHERE seq IN (SELECT seq FROM events WHERE id = ?2 AND (?1 IS NULL OR tenant = ?1)) AND data IS NOT NULL",
                    )?
                    .execute(params![tenant.as_ref().map(TenantId::as_str), event.as_str(), now.as_millis()])?;
                if erased > 0 {
                    configuration::write_audit(connection, &audit, now)?;
                }
                Ok(erased > 0)
            })
            .await?;
        // Also if there was nothing to erase: an earlier call may have ended before the log was emptied.
        self.empty_the_log().await?;
        Ok(has_erased)
    }

    /// What was deleted is overwritten in the database file (`secure_delete`); the log still has the pages as they were before.
    /// Readers that began earlier have to end first, which they do within two seconds.
    async fn empty_the_log(&self) -> Result<(), Error> {
        let deadline = Instant::now() + EMPTIED_WITHIN;
        while !self.0.writer.empty_the_log().await? {
            if Instant::now() > deadline {
                return Err(Error::unavailable("the log could not be emptied yet; it still has what was erased"));
            }
            tokio::time::sleep(EMPTIED_PAUSE).await;
        }
        Ok(())
    }

    pub(super) async fn close(&self) -> Result<(), Error> {
        let closed = self.0.writer.close().await;
        self.0.feeder.close();
        self.0.commander.close();
        closed
    }
}

fn split<P>(looked: Result<(P, Vec<Overdue>), Error>) -> (Option<P>, Result<Vec<Overdue>, Error>) {
    match looked {
        Ok((place, found)) => (Some(place), Ok(found)),
        Err(error) => (None, Err(error)),
    }
}

/// One step of cleanup: several short turns of the writer, each of which lets others in between.
struct Step<'s> {
    store: &'s Sqlite,
    limits: Housekeeping,
    now: Timestamp,
    swept: CleanupStep,
}

impl Step<'_> {
    fn rows(&self, progress: &Progress) -> usize {
        progress.rows.min(self.limits.rows_max).max(1)
    }

    /// One turn of the writer. The next has fewer rows if this one took too long.
    async fn turn<T: Send + 'static>(
        &mut self,
        progress: &mut Progress,
        mut work: impl FnMut(&GroupContext<'_>, &mut State, &mut Budget) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let rows = self.rows(progress);
        let (done, took) = self
            .store
            .write(SMALL, move |turn, state| {
                let began = Instant::now();
                let mut budget = Budget::new(rows, began);
                let done = work(turn, state, &mut budget)?;
                Ok((done, began.elapsed()))
            })
            .await?;
        self.swept.held(took);
        progress.rows = next_step_rows(rows, took, self.limits.rows_max);
        Ok(done)
    }

    /// Removes one after the other until the turn is over. Answers how many rows went.
    async fn remove<K: Send + 'static>(
        &mut self,
        progress: &mut Progress,
        keys: Vec<K>,
        mut remove: impl FnMut(&GroupContext<'_>, &mut State, &K) -> Result<u64, Error> + Send + 'static,
    ) -> Result<u64, Error> {
        if keys.is_empty() {
            return Ok(0);
        }
        let (removed, is_done) = self
            .turn(progress, move |turn, state, budget| {
                let mut removed = 0;
                for (place, key) in keys.iter().enumerate() {
                    if place > 0 && budget.is_spent() {
                        return Ok((removed, false));
                    }
                    removed += remove(turn, state, key)?;
                    budget.spend(1);
                }
                Ok((removed, true))
            })
            .await?;
        self.swept.has_more |= !is_done;
        Ok(removed)
    }

    async fn delete_events(&mut self, progress: &mut Progress) -> Result<(), Error> {
        for _ in 0..progress.rotation.looks_of_next_step() {
            let (after, now) = (progress.rotation.look_after(), self.now);
            let (due, last) = self.store.read(move |connection| look_for_due(connection, &after, now)).await?;
            if !progress.rotation.looked(due, last) {
                break;
            }
        }
        let (tenants, quantum) = progress.rotation.take_turns(self.rows(progress));
        if tenants.is_empty() {
            return Ok(());
        }
        let (turns, now, kept) = (tenants.clone(), self.now, self.limits.dead_letters_kept);
        let walked = self.turn(progress, move |turn, _, budget| walk(turn, &turns, quantum, kept, now, budget)).await;
        match walked {
            Ok(walked) => {
                self.swept.events += walked.swept.events;
                self.swept.deliveries += walked.swept.deliveries;
                progress.rotation.was_not_reached(tenants.into_iter().skip(walked.reached));
                walked.more.into_iter().for_each(|tenant| progress.rotation.requeue(tenant));
                Ok(())
            }
            Err(error) => {
                progress.rotation.was_not_reached(tenants.into_iter());
                Err(error)
            }
        }
    }

    /// What was passed over, once it may have ended long enough ago.
    async fn delete_retained(&mut self, progress: &mut Progress) -> Result<(), Error> {
        let (now, rows, kept) = (self.now, self.rows(progress), self.limits.dead_letters_kept);
        let retained: Vec<(i64, Timestamp)> = self
            .store
            .read(move |connection| {
                let mut select = connection.prepare_cached(SELECT_RETAINED)?;
                row::all(select.query(params![now.as_millis(), limit(rows)])?, |row| {
                    Ok((row::column(row, "event_seq")?, row::timestamp(row, "look_again_at_ms")?))
                })
            })
            .await?;
        let Some((_, oldest)) = retained.first() else { return Ok(()) };
        self.swept.behind = self.swept.behind.max(now.since(*oldest));
        let is_cut = retained.len() >= rows;
        let (swept, is_done) = self
            .turn(progress, move |turn, _, budget| {
                let mut swept = CleanupStep::default();
                for (place, (event, _)) in retained.iter().enumerate() {
                    if place > 0 && budget.is_spent() {
                        return Ok((swept, false));
                    }
                    budget.spend(1);
                    look_again(turn, *event, kept, now, budget, &mut swept)?;
                }
                Ok((swept, true))
            })
            .await?;
        self.swept.events += swept.events;
        self.swept.deliveries += swept.deliveries;
        self.swept.has_more |= is_cut || !is_done;
        Ok(())
    }

    async fn delete_idempotency_keys(&mut self, progress: &mut Progress) -> Result<(), Error> {
        let (now, rows) = (self.now.as_millis(), self.rows(progress));
        let expired: Vec<(String, String, String, i64)> = self
            .store
            .read(move |connection| {
                let mut select = connection.prepare_cached(SELECT_EXPIRED_KEYS)?;
                row::all(select.query(params![now, limit(rows)])?, |row| {
                    let text = |name| row::text(row, name).map(str::to_owned);
                    Ok((text("tenant")?, text("kind")?, text("key")?, row::column(row, "expires_at_ms")?))
                })
            })
            .await?;
        let Some((.., oldest)) = expired.first() else { return Ok(()) };
        self.swept.behind = self.swept.behind.max(self.now.since(Timestamp::from_millis(*oldest)));
        self.swept.has_more |= expired.len() >= rows;
        self.swept.idempotency_keys += self
            .remove(progress, expired, move |turn, _, (tenant, kind, key, _)| {
                Ok(turn.execute_often(DELETE_EXPIRED_KEY, params![tenant, kind, key, now])? as u64)
            })
            .await?;
        Ok(())
    }

    async fn delete_minutes(&mut self, progress: &mut Progress) -> Result<(), Error> {
        let (before, rows) = (self.now.as_millis() - millis(MINUTES_KEPT), self.rows(progress));
        let of_endpoints = self.look(before, rows, SELECT_MINUTES, |row| Ok((row.get(0)?, row.get(1)?))).await?;
        self.swept.minutes += self
            .remove(progress, of_endpoints, |turn, _, (endpoint, minute): &(Vec<u8>, i64)| {
                Ok(turn.execute_often(DELETE_MINUTE, params![endpoint, minute])? as u64)
            })
            .await?;
        let of_tenants = self.look(before, rows, SELECT_MINUTES_OF_TENANTS, |row| Ok((row.get(0)?, row.get(1)?))).await?;
        self.swept.minutes += self
            .remove(progress, of_tenants, |turn, _, (tenant, minute): &(String, i64)| {
                Ok(turn.execute_often(DELETE_MINUTE_OF_TENANT, params![tenant, minute])? as u64)
            })
            .await?;
        Ok(())
    }

    /// What is older than `before`, the oldest first: a query with an index by time.
    async fn look<K: Send + 'static>(
        &mut self,
        before: i64,
        rows: usize,
        sql: &'static str,
        read: fn(&Row<'_>) -> rusqlite::Result<K>,
    ) -> Result<Vec<K>, Error> {
        let found: Vec<K> = self
            .store
            .read(move |connection| {
                row::all(connection.prepare_cached(sql)?.query(params![before, limit(rows)])?, |row| Ok(read(row)?))
            })
            .await?;
        self.swept.has_more |= found.len() >= rows;
        Ok(found)
    }

    async fn delete_the_rest(&mut self, progress: &mut Progress) -> Result<(), Error> {
        let (now, limits, rows) = (self.now.as_millis(), self.limits, LOOK_ROWS.min(self.limits.rows_max));
        let audit = self.look(now - millis(limits.audit_kept), rows, SELECT_AUDIT, |row| row.get(0)).await?;
        self.swept.audit += self
            .remove(progress, audit, |turn, _, seq: &i64| Ok(turn.execute_often("DELETE FROM audit WHERE seq = ?1", [seq])? as u64))
            .await?;
        // What a leaver has not recorded by now it never may.
        let handed_over = self.look(now, rows, SELECT_HANDED_OVER, |row| row.get(0)).await?;
        self.remove(progress, handed_over, move |turn, _, seq: &i64| {
            Ok(turn.execute_often(DELETE_HANDED_OVER, params![seq, now])? as u64)
        })
        .await?;
        let keys = self.look(now - millis(limits.ended_keys_kept), rows, SELECT_ENDED_KEYS, |row| row.get(0)).await?;
        self.swept.keys += self
            .remove(progress, keys, |turn, _, id: &Vec<u8>| Ok(turn.execute_often("DELETE FROM keys WHERE id = ?1", [id])? as u64))
            .await?;
        let sessions = self.look(now, rows, SELECT_ENDED_SESSIONS, |row| row.get(0)).await?;
        self.swept.sessions += self
            .remove(progress, sessions, move |turn, _, id: &Vec<u8>| {
                Ok(turn.execute_often("DELETE FROM sessions WHERE id = ?1 AND ends_at_ms <= ?2", params![id, now])? as u64)
            })
            .await?;
        self.delete_replays(progress, rows).await?;
        self.delete_endpoints(progress, rows).await?;
        self.delete_versions(progress, rows).await?;
        self.delete_tenants(progress, rows).await?;
        self.delete_lanes(progress, rows).await?;
        self.reseal(progress, rows.min(100)).await?;
        self.free_pages(progress).await
    }

    /// Replays that have ended, once their tenant's retention has passed.
    async fn delete_replays(&mut self, progress: &mut Progress, rows: usize) -> Result<(), Error> {
        let ((at, after), now) = (progress.replays.clone(), self.now.as_millis());
        let retention = millis(self.store.0.options.retention.as_duration());
        let looked: Vec<(IndexPosition, bool)> = self
            .store
            .read(move |connection| {
                let mut select = connection.prepare_cached(SELECT_REPLAYS)?;
                row::all(select.query(params![at, after, now, retention, limit(rows)])?, |row| {
                    Ok(((row::column(row, "ended_at_ms")?, row::column(row, "id")?), row::column(row, "is_old")?))
                })
            })
            .await?;
        progress.replays = self.next_place(&looked, rows, FRONT);
        let old = looked.into_iter().filter(|(_, is_old)| *is_old).map(|((_, id), _)| id).collect();
        self.swept.replays += self
            .remove(progress, old, |turn, _, id: &Vec<u8>| {
                Ok(turn.execute_often("DELETE FROM replays WHERE id = ?1 AND ended_at_ms IS NOT NULL", [id])? as u64)
            })
            .await?;
        Ok(())
    }

    /// Where the next look starts: after the last row of a page that was full, and otherwise at the front.
    fn next_place<P: Clone>(&mut self, looked: &[(P, bool)], rows: usize, front: P) -> P {
        match looked.last() {
            Some((place, _)) if looked.len() >= rows => {
                self.swept.has_more = true;
                place.clone()
            }
            Some(_) | None => front,
        }
    }

    /// Deleted endpoints, with their secrets and lane states, once no delivery refers to them.
    async fn delete_endpoints(&mut self, progress: &mut Progress, rows: usize) -> Result<(), Error> {
        let ((at, after), before) = (progress.endpoints.clone(), self.now.as_millis() - millis(self.limits.deleted_kept));
        let looked: Vec<(IndexPosition, bool)> = self
            .store
            .read(move |connection| {
                let mut select = connection.prepare_cached(SELECT_DELETED_ENDPOINTS)?;
                row::all(select.query(params![at, after, before, limit(rows)])?, |row| {
                    Ok(((row::column(row, "deleted_at_ms")?, row::column(row, "id")?), !row::column::<bool>(row, "is_needed")?))
                })
            })
            .await?;
        progress.endpoints = self.next_place(&looked, rows, FRONT);
        let unneeded = looked.into_iter().filter(|(_, is_unneeded)| *is_unneeded).map(|((_, id), _)| id).collect();
        let store = self.store.clone();
        self.swept.endpoints += self
            .remove(progress, unneeded, move |turn, _, id: &Vec<u8>| {
                let deleted = turn.execute_often(DELETE_ENDPOINT, [id])?;
                if deleted > 0 {
                    turn.execute_often(DELETE_LANE, [id])?;
                    if let Ok(id) = <[u8; 16]>::try_from(id.as_slice()) {
                        store.0.lane_snapshots.lock().remove(&EndpointId::from_bytes(id));
                    }
                }
                Ok(deleted as u64)
            })
            .await?;
        Ok(())
    }

    /// Earlier versions of endpoints, once every delivery that was made before they were replaced is gone.
    async fn delete_versions(&mut self, progress: &mut Progress, rows: usize) -> Result<(), Error> {
        let (endpoint, last_version) = progress.versions.clone();
        let looked: Vec<((Vec<u8>, i64), bool)> = self
            .store
            .read(move |connection| {
                let mut select = connection.prepare_cached(SELECT_VERSIONS)?;
                row::all(select.query(params![endpoint, last_version, millis(STRAGGLERS_MAX), limit(rows)])?, |row| {
                    Ok(((row::column(row, "endpoint")?, row::column(row, "last_version")?), row::column(row, "is_unneeded")?))
                })
            })
            .await?;
        progress.versions = self.next_place(&looked, rows, (Vec::new(), 0));
        let unneeded = looked.into_iter().filter(|(_, is_unneeded)| *is_unneeded).map(|(version, _)| version).collect();
        self.swept.endpoint_versions += self
            .remove(progress, unneeded, |turn, _, (endpoint, last_version): &(Vec<u8>, i64)| {
                Ok(turn.execute_often(DELETE_VERSION, params![endpoint, last_version])? as u64)
            })
            .await?;
        Ok(())
    }

    /// Deleted tenants, once nothing of theirs is left.
    async fn delete_tenants(&mut self, progress: &mut Progress, rows: usize) -> Result<(), Error> {
        let ((at, after), before) = (progress.tenants.clone(), self.now.as_millis() - millis(self.limits.deleted_kept));
        let looked: Vec<((i64, String), bool)> = self
            .store
            .read(move |connection| {
                let mut select = connection.prepare_cached(SELECT_DELETED_TENANTS)?;
                row::all(select.query(params![at, after, before, limit(rows)])?, |row| {
                    Ok(((row::column(row, "deleted_at_ms")?, row::column(row, "id")?), !row::column::<bool>(row, "is_needed")?))
                })
            })
            .await?;
        progress.tenants = self.next_place(&looked, rows, (i64::MIN, String::new()));
        let unneeded: Vec<String> = looked.into_iter().filter(|(_, is_unneeded)| *is_unneeded).map(|((_, id), _)| id).collect();
        let is_any = !unneeded.is_empty();
        let keys_max = limit(self.rows(progress));
        let removed = self
            .remove(progress, unneeded, move |turn, state, id: &String| {
                // What its events have not taken with them.
                let keys = turn.execute_often(DELETE_KEYS_OF_TENANT, params![id, keys_max])?;
                if limit(keys) >= keys_max {
                    return Ok(0);
                }
                // Whoever creates it again goes on above its version: what was cached of it must not look like the present.
                turn.execute_often(RAISE_REMOVED_VERSION, [id])?;
                state.forget_versions();
                Ok(turn.execute_often(DELETE_TENANT, params![id, before])? as u64)
            })
            .await?;
        self.swept.tenants += removed;
        self.swept.has_more |= is_any && removed == 0;
        Ok(())
    }

    /// Lane states of endpoints that are gone.
    async fn delete_lanes(&mut self, progress: &mut Progress, rows: usize) -> Result<(), Error> {
        let after = progress.lanes.clone();
        let looked: Vec<(Vec<u8>, bool)> = self
            .store
            .read(move |connection| {
                let mut select = connection.prepare_cached(SELECT_LANES)?;
                row::all(select.query(params![after, limit(rows)])?, |row| {
                    Ok((row::column(row, "endpoint")?, row::column(row, "is_orphan")?))
                })
            })
            .await?;
        progress.lanes = self.next_place(&looked, rows, Vec::new());
        let orphans = looked.into_iter().filter(|(_, is_orphan)| *is_orphan).map(|(id, _)| id).collect();
        self.swept.lanes += self
            .remove(progress, orphans, |turn, _, id: &Vec<u8>| Ok(turn.execute_often(DELETE_ORPHANED_LANE, [id])? as u64))
            .await?;
        Ok(())
    }

    /// Secrets that an earlier master key has sealed.
    async fn reseal(&mut self, progress: &mut Progress, rows: usize) -> Result<(), Error> {
        let keyring = &self.store.0.options.keyring;
        if !keyring.has_previous() {
            return Ok(());
        }
        let (after, current) = (progress.resealed.clone(), keyring.current_id().as_bytes().to_vec());
        let looked: Vec<(Vec<u8>, bool)> = self
            .store
            .read(move |connection| {
                let mut select = connection.prepare_cached(SELECT_SEALED)?;
                row::all(select.query(params![after, current, limit(rows)])?, |row| {
                    Ok((row::column(row, "id")?, row::column(row, "is_old")?))
                })
            })
            .await?;
        progress.resealed = self.next_place(&looked, rows, Vec::new());
        let old = looked.into_iter().filter(|(_, is_old)| *is_old).map(|(id, _)| id).collect();
        let store = self.store.clone();
        self.swept.resealed += self.remove(progress, old, move |turn, _, id: &Vec<u8>| reseal(&store, turn, id)).await?;
        Ok(())
    }

    /// Not while events are deleted: new ones go where the old ones were.
    async fn free_pages(&mut self, progress: &mut Progress) -> Result<(), Error> {
        if progress.rotation.is_anything_left() || !self.store.read(has_free_pages).await? {
            return Ok(());
        }
        let freed = self.turn(progress, |turn, _, budget| free_pages(turn, budget)).await?;
        self.swept.freed_pages += freed;
        self.swept.has_more |= freed > 0;
        Ok(())
    }
}

fn reseal(store: &Sqlite, turn: &GroupContext<'_>, id: &[u8]) -> Result<u64, Error> {
    let mut select = turn.prepare_cached("SELECT id, sealed FROM endpoints WHERE id = ?1")?;
    let found = row::first(select.query([id])?, |row| {
        Ok((EndpointId::from_bytes(row::column(row, "id")?), row::column::<Vec<u8>>(row, "sealed")?))
    })?;
    let Some((id, sealed)) = found else { return Ok(0) };
    match secrets::reseal(&store.0.options.keyring, id, &sealed)? {
        Some(sealed) => {
            let update = "UPDATE endpoints SET sealed = ?2 WHERE id = ?1";
            Ok(turn.prepare_cached(update)?.execute(params![id.to_bytes(), sealed])? as u64)
        }
        None => Ok(0),
    }
}

const SELECT_EXPIRED_KEYS: &str = "SELECT tenant, kind, key, expires_at_ms FROM idempotency_keys
     WHERE expires_at_ms IS NOT NULL AND expires_at_ms <= ?1 ORDER BY expires_at_ms LIMIT ?2";
/// One that was used again in the meantime is a new one.
const DELETE_EXPIRED_KEY: &str =
    "DELETE FROM idempotency_keys WHERE tenant = ?1 AND kind = ?2 AND key = ?3 AND expires_at_ms <= ?4";
const SELECT_MINUTES: &str = "SELECT endpoint, minute_ms FROM minutes WHERE minute_ms < ?1 ORDER BY minute_ms LIMIT ?2";
const SELECT_MINUTES_OF_TENANTS: &str =
    "SELECT tenant, minute_ms FROM minutes_of_tenants WHERE minute_ms < ?1 ORDER BY minute_ms LIMIT ?2";
const DELETE_MINUTE: &str = "DELETE FROM minutes WHERE endpoint = ?1 AND minute_ms = ?2";
const DELETE_MINUTE_OF_TENANT: &str = "DELETE FROM minutes_of_tenants WHERE tenant = ?1 AND minute_ms = ?2";
/// The oldest are the first: no more than these are looked at.
const SELECT_AUDIT: &str = "SELECT seq FROM (SELECT seq, at_ms FROM audit ORDER BY seq LIMIT ?2) WHERE at_ms <= ?1";
const SELECT_HANDED_OVER: &str = "SELECT delivery_seq FROM handed_over WHERE until_ms <= ?1 ORDER BY until_ms LIMIT ?2";
const DELETE_HANDED_OVER: &str = "DELETE FROM handed_over WHERE delivery_seq = ?1 AND until_ms <= ?2";
const SELECT_ENDED_KEYS: &str = "SELECT id FROM keys WHERE coalesce(revoked_at_ms, expires_at_ms) IS NOT NULL
     AND coalesce(revoked_at_ms, expires_at_ms) <= ?1 ORDER BY coalesce(revoked_at_ms, expires_at_ms) LIMIT ?2";
const SELECT_ENDED_SESSIONS: &str = "SELECT id FROM sessions WHERE ends_at_ms <= ?1 ORDER BY ends_at_ms LIMIT ?2";
const SELECT_REPLAYS: &str = "SELECT r.ended_at_ms, r.id,
       r.ended_at_ms <= ?3 - coalesce((SELECT t.retention_ms FROM tenants t WHERE t.id = r.tenant), ?4) AS is_old
     FROM replays r WHERE r.ended_at_ms IS NOT NULL AND (r.ended_at_ms, r.id) > (?1, ?2) ORDER BY r.ended_at_ms, r.id LIMIT ?5";
const SELECT_DELETED_ENDPOINTS: &str =
    "SELECT p.deleted_at_ms, p.id, EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint = p.id) AS is_needed
     FROM endpoints p WHERE p.deleted_at_ms IS NOT NULL AND (p.deleted_at_ms, p.id) > (?1, ?2) AND p.deleted_at_ms <= ?3
     ORDER BY p.deleted_at_ms, p.id LIMIT ?4";
const DELETE_ENDPOINT: &str = "DELETE FROM endpoints WHERE id = ?1 AND deleted_at_ms IS NOT NULL
     AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint = endpoints.id)";
/// A delivery that was made later was never sent with it.
const SELECT_VERSIONS: &str = "SELECT v.endpoint, v.last_version,
       coalesce((SELECT d.created_at_ms FROM deliveries d WHERE d.endpoint = v.endpoint ORDER BY d.seq LIMIT 1)
                > v.replaced_at_ms + ?3, TRUE) AS is_unneeded
     FROM endpoint_versions v WHERE (v.endpoint, v.last_version) > (?1, ?2) ORDER BY v.endpoint, v.last_version LIMIT ?4";
const DELETE_VERSION: &str = "DELETE FROM endpoint_versions WHERE endpoint = ?1 AND last_version = ?2";
const DELETE_LANE: &str = "DELETE FROM lanes WHERE endpoint = ?1";
const DELETE_ORPHANED_LANE: &str =
    "DELETE FROM lanes WHERE endpoint = ?1 AND NOT EXISTS (SELECT 1 FROM endpoints p WHERE p.id = lanes.endpoint)";
const SELECT_LANES: &str = "SELECT l.endpoint, NOT EXISTS (SELECT 1 FROM endpoints p WHERE p.id = l.endpoint) AS is_orphan
     FROM lanes l WHERE l.endpoint > ?1 ORDER BY l.endpoint LIMIT ?2";
const SELECT_SEALED: &str = "SELECT id, substr(sealed, 2, 8) <> ?2 AS is_old FROM endpoints WHERE id > ?1 ORDER BY id LIMIT ?3";

/// Whether anything of a tenant `t` is left.
macro_rules! is_tenant_needed {
    () => {
        "(EXISTS (SELECT 1 FROM events e WHERE e.tenant = t.id) OR EXISTS (SELECT 1 FROM deliveries d WHERE d.tenant = t.id)
          OR EXISTS (SELECT 1 FROM endpoints p WHERE p.tenant = t.id))"
    };
}
const SELECT_DELETED_TENANTS: &str = concat!(
    "SELECT t.deleted_at_ms, t.id, ",
    is_tenant_needed!(),
    " AS is_needed FROM tenants t
     WHERE t.deleted_at_ms IS NOT NULL AND (t.deleted_at_ms, t.id) > (?1, ?2) AND t.deleted_at_ms <= ?3
     ORDER BY t.deleted_at_ms, t.id LIMIT ?4"
);
const DELETE_TENANT: &str = concat!(
    "DELETE FROM tenants AS t WHERE t.id = ?1 AND t.deleted_at_ms IS NOT NULL AND t.deleted_at_ms <= ?2 AND NOT ",
    is_tenant_needed!()
);
/// Only what was published before the tenant was deleted: it may have been created again.
const DELETE_KEYS_OF_TENANT: &str = "DELETE FROM idempotency_keys WHERE (tenant, kind, key) IN (
       SELECT k.tenant, k.kind, k.key FROM idempotency_keys k JOIN tenants t ON t.id = k.tenant
       WHERE k.tenant = ?1 AND t.deleted_at_ms IS NOT NULL LIMIT ?2)";
const RAISE_REMOVED_VERSION: &str =
    "UPDATE counters SET value = max(value, coalesce((SELECT version FROM tenants WHERE id = ?1), 0))
     WHERE name = 'removed_tenant_version'";

fn overdue_row(row: &Row<'_>, why: OverdueReason) -> Result<Overdue, Error> {
    Ok(Overdue {
        endpoint: EndpointId::from_bytes(row::column(row, "endpoint")?),
        delivery: DeliveryId::from_bytes(row::column(row, "id")?),
        seq: unsigned(row::column(row, "seq")?),
        why,
    })
}

const SELECT_EXPIRED: &str = "SELECT endpoint, id, seq FROM deliveries INDEXED BY deliveries_expiring
     WHERE status = 'waiting' AND expires_at_ms IS NOT NULL AND expires_at_ms <= ?1 ORDER BY expires_at_ms LIMIT ?2";

fn expired(connection: &Connection, now: Timestamp, rows_max: usize) -> Result<Vec<Overdue>, Error> {
    let mut select = connection.prepare_cached(SELECT_EXPIRED)?;
    row::all(select.query(params![now.as_millis(), limit(rows_max)])?, |row| overdue_row(row, OverdueReason::Expired))
}

const SELECT_NEWEST_DELETED: &str =
    "SELECT deleted_at_ms, id FROM endpoints WHERE deleted_at_ms IS NOT NULL ORDER BY deleted_at_ms DESC, id DESC LIMIT ?1";
const SELECT_NEXT_DELETED: &str = "SELECT deleted_at_ms, id FROM endpoints
     WHERE deleted_at_ms IS NOT NULL AND (deleted_at_ms, id) > (?1, ?2) ORDER BY deleted_at_ms, id LIMIT ?3";
const SELECT_WAITING: &str = "SELECT d.endpoint, d.id, d.seq FROM deliveries d INDEXED BY deliveries_queued
     WHERE d.endpoint = ?1 AND d.status = 'waiting' LIMIT ?2";

/// What waits at deleted endpoints: at the newest, and at some of the others in turn. Answers where to go on.
fn of_deleted(connection: &Connection, from: &IndexPosition, rows_max: usize) -> Result<(IndexPosition, Vec<Overdue>), Error> {
    let place = |row: &Row<'_>| Ok((row::column::<i64>(row, "deleted_at_ms")?, row::column::<Vec<u8>>(row, "id")?));
    let mut newest = connection.prepare_cached(SELECT_NEWEST_DELETED)?;
    let mut endpoints: BTreeSet<IndexPosition> =
        row::all(newest.query([limit(DELETED_ENDPOINTS_PER_LOOK)])?, place)?.into_iter().collect();
    let mut next = connection.prepare_cached(SELECT_NEXT_DELETED)?;
    let others = row::all(next.query(params![from.0, from.1, limit(DELETED_ENDPOINTS_PER_LOOK)])?, place)?;
    let go_on = others.last().filter(|_| others.len() >= DELETED_ENDPOINTS_PER_LOOK).cloned().unwrap_or(FRONT);
    endpoints.extend(others);
    let mut waiting = connection.prepare_cached(SELECT_WAITING)?;
    let mut found = Vec::new();
    for (_, endpoint) in endpoints.into_iter().rev() {
        if found.len() >= rows_max {
            break;
        }
        let rows = waiting.query(params![endpoint, limit(rows_max - found.len())])?;
        found.extend(row::all(rows, |row| overdue_row(row, OverdueReason::EndpointDeleted))?);
    }
    Ok((go_on, found))
}

const SELECT_RETAINED_OVERDUE: &str =
    "SELECT event_seq FROM retained WHERE is_overdue = 1 AND event_seq > ?1 ORDER BY event_seq LIMIT ?2";
const SELECT_STALE: &str = concat!(
    "SELECT d.endpoint, d.id, d.seq FROM events e CROSS JOIN tenants t ON t.id = e.tenant CROSS JOIN deliveries d ON d.seq IN (",
    super::events::seqs_of_event!(),
    ") WHERE e.seq = ?1 AND d.status = 'waiting' AND d.due_at_ms <= ?2 - t.retention_ms LIMIT ?3"
);

/// What has waited longer than the retention, among what cleanup has noted as such. Answers where to go on.
fn stale(connection: &Connection, from: i64, now: Timestamp, rows_max: usize) -> Result<(i64, Vec<Overdue>), Error> {
    let mut select = connection.prepare_cached(SELECT_RETAINED_OVERDUE)?;
    let events = row::all(select.query(params![from, limit(rows_max)])?, |row| row::column::<i64>(row, "event_seq"))?;
    let mut go_on = 0;
    let mut found = Vec::new();
    let mut of_event = connection.prepare_cached(SELECT_STALE)?;
    let mut read = 0;
    for event in &events {
        if found.len() >= rows_max || read >= OVERDUE_ROWS_READ_MAX {
            return Ok((go_on, found));
        }
        let rows = of_event.query(params![event, now.as_millis(), limit(rows_max)])?;
        let stale = row::all(rows, |row| overdue_row(row, OverdueReason::Expired))?;
        read += 1 + stale.len();
        found.extend(stale);
        go_on = *event;
    }
    Ok((if events.len() >= rows_max { go_on } else { 0 }, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asked again and again, whatever waits and however much is kept.
    #[test]
    fn i52_no_look_of_housekeeping_reads_what_it_is_not_looking_for() {
        let mut connection = Connection::open_in_memory().expect("a database");
        super::super::migrations::run(&mut connection).expect("a schema");
        for (select, way) in [
            (SELECT_EXPIRED, "deliveries_expiring (expires_at_ms>?"),
            (SELECT_NEWEST_DELETED, "endpoints_deleted (deleted_at_ms>?"),
            (SELECT_NEXT_DELETED, "endpoints_deleted ((deleted_at_ms,id)>(?,?)"),
            (SELECT_WAITING, "deliveries_queued (endpoint=?"),
            (SELECT_RETAINED_OVERDUE, "retained_overdue (event_seq>?"),
            (SELECT_STALE, "d USING INTEGER PRIMARY KEY (rowid=?"),
            (SELECT_EXPIRED_KEYS, "idempotency_keys_by_expiry (expires_at_ms>?"),
            (SELECT_MINUTES, "minutes_by_age (minute_ms<?"),
            (SELECT_MINUTES_OF_TENANTS, "minutes_of_tenants_by_age (minute_ms<?"),
            (SELECT_HANDED_OVER, "handed_over_by_deadline (until_ms<?"),
            (SELECT_ENDED_KEYS, "keys_ended (<expr><?"),
            (SELECT_ENDED_SESSIONS, "sessions_by_end (ends_at_ms<?"),
            (SELECT_REPLAYS, "replays_ended ((ended_at_ms,id)>(?,?)"),
            (SELECT_DELETED_ENDPOINTS, "endpoints_deleted ((deleted_at_ms,id)>(?,?)"),
            (SELECT_DELETED_ENDPOINTS, "deliveries_by_endpoint (endpoint=?"),
            (SELECT_DELETED_TENANTS, "tenants_deleted ((deleted_at_ms,id)>(?,?)"),
            (SELECT_DELETED_TENANTS, "events_by_tenant (tenant=?"),
            (SELECT_DELETED_TENANTS, "deliveries_by_tenant (tenant=?"),
            (SELECT_LANES, "PRIMARY KEY (endpoint>?"),
            (SELECT_VERSIONS, "PRIMARY KEY ((endpoint,last_version)>(?,?)"),
            (SELECT_VERSIONS, "deliveries_by_endpoint (endpoint=?"),
            (SELECT_SEALED, "PRIMARY KEY (id>?"),
        ] {
            let steps = row::plan(&connection, select);
            assert!(steps.iter().any(|step| step.starts_with("SEARCH") && step.contains(way)), "{way}: {select}\n{steps:?}");
            assert!(!steps.iter().any(|step| step.starts_with("SCAN") || step.contains("TEMP B-TREE")), "{select}\n{steps:?}");
        }
    }
}
