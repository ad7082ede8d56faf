//! Days of events and attempts, each a table of its own, so that forgetting one is dropping a table.
//!
//! A slot is a day and a retention class. Its tables are made when something first belongs there, and ahead for tomorrow.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use posthaste_core::tenant::Retention;
use posthaste_core::time::Timestamp;

use super::Database;
use crate::Error;

/// In days. A tenant's events are in the shortest class that is long enough.
const CLASSES: [u32; 4] = [7, 30, 90, 365];
const DAY_MS: i64 = 24 * 60 * 60 * 1000;
/// Whoever holds it may make or drop the table of a slot: `slots` in ASCII.
const LOCK: i64 = 0x73_6c6f_7473;

/// A day and a class, as the column has it.
pub(super) type Slot = i32;

/// Which of the two that are cut into days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Table {
    Events,
    Attempts,
}

impl Table {
    pub(super) fn name(self) -> &'static str {
        match self {
            Table::Events => "events",
            Table::Attempts => "attempts",
        }
    }

    /// The table of one slot.
    pub(super) fn of(self, slot: Slot) -> String {
        format!("{}_s{slot}", self.name())
    }

    /// The slot that a table is of, by its name.
    pub(super) fn slot_of(self, name: &str) -> Option<Slot> {
        name.strip_prefix(self.name())?.strip_prefix("_s")?.parse().ok()
    }
}

/// Whole days since 1970. What is said to be older is put there too, so that every slot has a name.
pub(super) fn day_of(at: Timestamp) -> i32 {
    i32::try_from(at.as_millis().div_euclid(DAY_MS).max(0)).unwrap_or(0)
}

fn class_of(retention: Retention) -> i32 {
    let class = CLASSES.iter().position(|days| retention.as_days() <= *days).unwrap_or(CLASSES.len() - 1);
    i32::try_from(class).unwrap_or(0)
}

pub(super) fn slot_of(at: Timestamp, retention: Retention) -> Slot {
    slot(day_of(at), class_of(retention))
}

/// Four of them make a day: whoever looks for one of a day takes them all.
pub(super) fn slot(day: i32, class: i32) -> Slot {
    day * 4 + class
}

/// A tenant with one of these loses everything when its days are dropped, and nothing has to be deleted by itself.
pub(super) fn class_durations() -> [i64; 4] {
    CLASSES.map(|days| i64::from(days) * DAY_MS)
}

/// How long what is in a slot was to be kept when it was put there.
pub(super) fn kept_ms(slot: Slot) -> i64 {
    let class = usize::try_from(slot.rem_euclid(4)).unwrap_or(0);
    i64::from(CLASSES[class]) * DAY_MS
}

/// When the last of a slot is old enough to be forgotten.
pub(super) fn end_of(slot: Slot) -> Timestamp {
    Timestamp::from_millis((i64::from(slot.div_euclid(4)) + 1) * DAY_MS + kept_ms(slot))
}

pub(super) fn next_day(at: Timestamp) -> Timestamp {
    at + Duration::from_hours(24)
}

/// Tables that are known to be there.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<BTreeSet<(Table, Slot)>>);

impl Slots {
    fn knows(&self, table: Table, slot: Slot) -> bool {
        self.0.lock().contains(&(table, slot))
    }

    /// Another node has dropped some, or this one.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }
}

impl Database {
    /// Makes tables that are not there yet.
    pub(super) async fn make_slots(&self, table: Table, slots: &BTreeSet<Slot>) -> Result<(), Error> {
        for slot in slots.iter().copied().filter(|slot| !self.slots.knows(table, *slot)) {
            let (parent, name) = (table.name(), &table.of(slot));
            // Made by itself and attached then: a partition that is made in its place would lock out everybody who writes.
            let make = &format!(
                "CREATE TABLE {name} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
                 ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES IN ({slot})"
            );
            self.transact(move |connection| async move {
                connection.execute(TAKE_LOCK, &[&LOCK]).await?;
                let is_there: bool = connection.query_one(SELECT_TABLE, &[name]).await?.try_get(0)?;
                if !is_there {
                    connection.batch(make).await?;
                }
                Ok(())
            })
            .await?;
            self.slots.0.lock().insert((table, slot));
        }
        Ok(())
    }
}

const TAKE_LOCK: &str = "SELECT pg_advisory_xact_lock($1)";
const SELECT_TABLE: &str = "SELECT to_regclass($1::text) IS NOT NULL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_a_day_and_the_shortest_class_that_is_long_enough() {
        let at = Timestamp::parse("2026-07-31T23:59:59Z").expect("a time");
        let day = 20_665;
        assert_eq!(day_of(at), day);
        for (days, class) in [(1, 0), (7, 0), (8, 1), (30, 1), (31, 2), (90, 2), (91, 3), (365, 3)] {
            assert_eq!(slot_of(at, Retention::days(days).expect("a retention")), day * 4 + class, "{days}");
        }
        assert_eq!(day_of(Timestamp::from_millis(-5)), 0);
    }

    #[test]
    fn a_slot_ends_when_its_last_moment_is_old_enough() {
        let end = end_of(slot(day_of(Timestamp::parse("2026-07-01T12:00:00Z").expect("a time")), 1));
        assert_eq!(end, Timestamp::parse("2026-08-01T00:00:00Z").expect("a time"));
    }

    #[test]
    fn the_name_of_a_table_says_which_slot_it_is() {
        assert_eq!(Table::Events.of(82_661), "events_s82661");
        assert_eq!(Table::Events.slot_of("events_s82661"), Some(82_661));
        assert_eq!(Table::Events.slot_of("events_kept"), None);
        assert_eq!(Table::Attempts.slot_of("events_s82661"), None);
    }
}
