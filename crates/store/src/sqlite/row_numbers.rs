//! Numbers of rows: each is used once, also after deletions, rollbacks and restarts.
//!
//! SQLite itself would give the number of the last row again once that row is deleted. `AUTOINCREMENT` prevents this with a write for every
//! row. Here the writer counts in memory and reserves a block of numbers on disk, in the transaction that first goes beyond the block before:
//! most commits write nothing. A start continues above what was reserved.

use rusqlite::{Connection, params};

use crate::Error;

/// Numbers reserved at once. A start skips at most this many, of which there are enough for a million starts a second for some thousand years.
const BLOCK: i64 = 1_024;

#[derive(Debug)]
pub(super) struct RowNumbers {
    pub(super) events: Numbers,
    pub(super) deliveries: Numbers,
}

/// The numbers of one table.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Where the highest reserved number is kept.
    counter: &'static str,
    next: i64,
    /// Committed: numbers up to this one may be used by commits that reserve nothing.
    reserved: i64,
}

/// What the present transaction has reserved: in force once it is committed.
#[derive(Debug)]
#[must_use]
pub(super) struct Reservation {
    events: i64,
    deliveries: i64,
}

impl RowNumbers {
    pub(super) fn load(connection: &Connection) -> Result<RowNumbers, Error> {
        Ok(RowNumbers {
            events: Numbers::load(connection, "event_number", "SELECT max(seq) FROM events")?,
            deliveries: Numbers::load(connection, "delivery_number", "SELECT max(seq) FROM deliveries")?,
        })
    }

    /// Makes sure that the numbers used so far are never used again, whether or not their rows stay. Part of the transaction that uses them.
    pub(super) fn reserve(&self, connection: &Connection) -> Result<Reservation, Error> {
        Ok(Reservation { events: self.events.reserve(connection)?, deliveries: self.deliveries.reserve(connection)? })
    }

    pub(super) fn commit(&mut self, reservation: &Reservation) {
        self.events.reserved = reservation.events;
        self.deliveries.reserved = reservation.deliveries;
    }
}

impl Numbers {
    fn load(connection: &Connection, counter: &'static str, select_highest: &str) -> Result<Numbers, Error> {
        let reserved: i64 = connection.query_row("SELECT value FROM counters WHERE name = ?1", [counter], |row| row.get(0))?;
        let highest: Option<i64> = connection.query_row(select_highest, [], |row| row.get(0))?;
        Ok(Numbers { counter, next: highest.unwrap_or(0).max(reserved) + 1, reserved })
    }

    /// The number that is taken next.
    pub(super) fn next(&self) -> i64 {
        self.next
    }

    pub(super) fn take(&mut self) -> i64 {
        self.next += 1;
        self.next - 1
    }

    fn reserve(&self, connection: &Connection) -> Result<i64, Error> {
        if self.next <= self.reserved + 1 {
            return Ok(self.reserved);
        }
        let reserved = self.next - 1 + BLOCK;
        let written = connection
            .prepare_cached("UPDATE counters SET value = ?2 WHERE name = ?1")?
            .execute(params![self.counter, reserved])?;
        if written == 1 { Ok(reserved) } else { Err(Error::Corrupt { what: "counter of row numbers" }) }
    }
}
