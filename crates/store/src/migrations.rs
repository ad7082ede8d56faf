//! The steps of the schema, numbered and named alike for both databases, and who may still use which.
//!
//! A release only adds, and removes one release later, so that nodes can be upgraded one by one: the schema says from
//! which version on a binary can use it.

use crate::Error;

pub(crate) struct Step {
    pub(crate) version: u32,
    /// The oldest binary that can still use the schema after this step, by the last step that it knows.
    pub(crate) usable_from: u32,
    pub(crate) sql: &'static str,
}

pub(crate) type Steps = [Step; 27];

/// The steps, from one folder or the other.
macro_rules! steps {
    ($database:literal) => {
        $crate::migrations::steps!($database,
            1 "0001_counters", 2 "0002_tenants", 3 "0003_endpoints", 4 "0004_event_types", 5 "0005_keys", 6 "0006_audit",
            7 "0007_events", 8 "0008_idempotency_keys", 9 "0009_deliveries", 10 "0010_attempts", 11 "0011_lanes",
            12 "0012_replays", 13 "0013_cluster", 14 "0014_commands", 15 "0015_minutes", 16 "0016_chosen_ids",
            17 "0017_trace_contexts", 18 "0018_places_of_deliveries", 19 "0019_row_numbers", 20 "0020_uncounted_attempts",
            21 "0021_retention", 22 "0022_lane_versions", 23 "0023_replay_progress", 24 "0024_endpoint_versions",
            25 "0025_leavers", 26 "0026_sessions", 27 "0027_portal")
    };
    ($database:literal, $($version:literal $name:literal),*) => {
        [$($crate::migrations::Step {
            version: $version,
            usable_from: $version,
            sql: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/", $database, "/", $name, ".sql")),
        }),*]
    };
}
pub(crate) use steps;

/// The version that this binary brings a schema to.
pub const SCHEMA_VERSION: u32 = {
    let steps: Steps = steps!("sqlite");
    steps[steps.len() - 1].version
};

/// The next step for a schema of this version, if there is one.
pub(crate) fn check_usable(steps: &Steps, stored: Option<(u32, u32)>) -> Result<Option<&Step>, Error> {
    let (version, usable_from) = stored.unwrap_or((0, 0));
    let known = steps.last().expect("there are steps").version;
    if usable_from > known {
        return Err(Error::TooNew);
    }
    // A newer one that we can still use is left as it is.
    Ok(steps.iter().find(|step| step.version > version))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A check with a list costs three times as much as writing the row.
    #[test]
    fn no_check_of_sqlite_has_a_list_in_it() {
        let steps: Steps = steps!("sqlite");
        for step in steps {
            let checks = step.sql.lines().filter(|line| line.contains("CHECK") && !line.trim_start().starts_with("--"));
            for check in checks {
                assert!(!check.contains(" IN ("), "in step {}: {check}", step.version);
            }
        }
    }

    #[test]
    fn i42_an_older_binary_refuses_what_it_cannot_use_and_leaves_alone_what_it_can() {
        let steps: Steps = steps!("sqlite");
        let next = |stored| check_usable(&steps, stored).map(|step| step.map(|step| step.version));
        assert_eq!(next(None).ok(), Some(Some(1)));
        assert_eq!(next(Some((4, 4))).ok(), Some(Some(5)));
        let last = steps.last().expect("there are steps").version;
        assert_eq!(next(Some((last, last))).ok(), Some(None));
        assert_eq!(next(Some((last + 1, last))).ok(), Some(None), "newer, and still usable");
        assert!(matches!(next(Some((last + 1, last + 1))), Err(Error::TooNew)));
    }
}
