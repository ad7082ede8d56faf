//! The machine: its clock, whom it trusts, and how many files a server may have open.

use jiff::Timestamp;

use super::finding::Finding;
use crate::descriptors;
use crate::serve::client;
use crate::settings::Settings;

/// A clock that shows an earlier time was never set.
const CLOCK_MIN: &str = "2024-01-01T00:00:00Z";
/// And one that shows a later one was set wrong.
const CLOCK_MAX: &str = "2100-01-01T00:00:00Z";

pub(super) fn wall_clock() -> Finding {
    judge_clock(Timestamp::now())
}

fn judge_clock(now: Timestamp) -> Finding {
    let bound = |text: &str| text.parse::<Timestamp>().expect("a time as it is written");
    let words = format!("the clock of this machine shows {}", now.strftime("%Y-%m-%d %H:%M:%S UTC"));
    let remedy = "set it, and let it follow a time server (NTP); certificates and signatures go by it";
    if now < bound(CLOCK_MIN) {
        Finding::wrong("clock", format!("{words}, which is long past"), remedy)
    } else if now > bound(CLOCK_MAX) {
        Finding::wrong("clock", format!("{words}, which is far ahead"), remedy)
    } else {
        Finding::ok("clock", words)
    }
}

/// As the server loads them, with its name servers and its proxy.
pub(super) fn certificates(settings: &Settings) -> Finding {
    match client(settings) {
        Ok(_) if settings.extra_roots.is_empty() => {
            Finding::ok("certificates", "the root certificates for receivers can be loaded")
        }
        Ok(_) => {
            let words =
                format!("the root certificates for receivers can be loaded, extra ones from {} files", settings.extra_roots.len());
            Finding::ok("certificates", words)
        }
        Err(error) => {
            let remedy = "check the settings extra_roots and proxy, and that the files can be read and are PEM";
            Finding::wrong("certificates", format!("deliveries could not be made: {error:#}"), remedy)
        }
    }
}

pub(super) fn descriptors(settings: &Settings) -> Finding {
    let Some((limit, foreseen, wanted)) = descriptors::foreseen(settings) else {
        return Finding::ok("open files", "there is no limit of open files");
    };
    if foreseen == wanted {
        return Finding::ok("open files", format!("{limit} are allowed, enough for what is set"));
    }
    let words = format!(
        "{limit} are allowed, so that a server takes {} connections instead of {} and has {} requests in flight instead of {}",
        foreseen.connections_max, wanted.connections_max, foreseen.in_flight_max, wanted.in_flight_max
    );
    Finding::warning(
        "open files",
        words,
        "raise the limit (ulimit -n, LimitNOFILE), or set connections_max and in_flight_max lower",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Grade;

    #[test]
    fn a_clock_that_was_never_set_is_wrong() {
        for (time, grade) in [
            ("1970-01-01T00:01:00Z", Grade::Wrong),
            ("2023-12-31T23:59:59Z", Grade::Wrong),
            ("2024-01-01T00:00:00Z", Grade::Ok),
            ("2099-12-31T00:00:00Z", Grade::Ok),
            ("2106-02-07T06:28:15Z", Grade::Wrong),
        ] {
            assert_eq!(judge_clock(time.parse().unwrap()).grade, grade, "{time}");
        }
    }
}
