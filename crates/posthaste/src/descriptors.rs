//! How many files and connections this process may have open, and who gets how many of them.
//!
//! A server that runs out of descriptors can neither take a call nor deliver nor open its database again. So the limit is
//! raised as far as it goes, and where that is not far, callers and deliveries each get their part and files keep theirs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::settings::Settings;

/// For the database and its readers, keys, logs, and callers who are told to come back.
const RESERVED: usize = 64;
/// Fewer make no server.
const PART_MIN: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    pub(crate) connections_max: usize,
    pub(crate) in_flight_max: usize,
}

/// What was set, or as much of it as this process may have.
pub(crate) fn divide(settings: &Settings) -> Parts {
    let wanted = Parts { connections_max: settings.connections_max, in_flight_max: settings.in_flight_max };
    let Some(limit) = raised() else { return wanted };
    let parts = divided(limit, wanted);
    if parts != wanted {
        tracing::warn!(
            limit,
            connections_max = parts.connections_max,
            in_flight_max = parts.in_flight_max,
            "this process may have too few files open for what was set; raise its limit (ulimit -n, LimitNOFILE)"
        );
    }
    parts
}

/// What a server would have, and what it was set to, without raising anything here. `None`: there is no limit.
pub(crate) fn foreseen(settings: &Settings) -> Option<(usize, Parts, Parts)> {
    let wanted = Parts { connections_max: settings.connections_max, in_flight_max: settings.in_flight_max };
    let limit = getrlimit(Resource::Nofile).maximum.and_then(|limit| usize::try_from(limit).ok())?;
    Some((limit, divided(limit, wanted), wanted))
}

fn divided(limit: usize, wanted: Parts) -> Parts {
    let free = limit.saturating_sub(RESERVED);
    // Whoever wants less than half leaves the rest to the other.
    // With few descriptors each gets at least `PART_MIN`, and never more than was set.
    let part = |wanted: usize, left: usize| wanted.min(left.max(PART_MIN));
    let in_flight_max = part(wanted.in_flight_max, (free / 2).max(free.saturating_sub(wanted.connections_max)));
    let connections_max = part(wanted.connections_max, free.saturating_sub(in_flight_max));
    Parts { connections_max, in_flight_max }
}

/// The soft limit, after it was raised to the hard one. `None`: there is none.
fn raised() -> Option<usize> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let limit = if raised.is_ok() { maximum } else { current };
    limit.and_then(|limit| usize::try_from(limit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_shared_and_never_more_than_there_are() {
        let parts = |connections_max, in_flight_max| Parts { connections_max, in_flight_max };
        assert_eq!(divided(1_000_000, parts(4096, 1024)), parts(4096, 1024), "enough for everybody");
        assert_eq!(divided(1024, parts(4096, 1024)), parts(480, 480));
        assert_eq!(divided(1024, parts(4096, 100)), parts(860, 100));
        assert_eq!(divided(1024, parts(100, 4096)), parts(100, 860));
        assert_eq!(divided(16, parts(4096, 1024)), parts(PART_MIN, PART_MIN));
        assert_eq!(divided(1024, parts(4096, 1)), parts(959, 1), "a small setting is kept");
        assert_eq!(divided(16, parts(4096, 3)), parts(PART_MIN, 3));
    }
}
