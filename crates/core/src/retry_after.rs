//! `Retry-After`: a receiver says when it would like to hear from us again.
//!
//! Either whole seconds or a date in one of HTTP's three forms. Anything else, a negative
//! number included, is no wish at all and changes nothing.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::fmt::strtime;

use crate::time::Timestamp;

/// Nobody may keep a delivery waiting longer than this by a header.
pub const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);
/// How long the whole lane waits for one receiver's wish; after that only the delivery that was told does.
pub const LANE_HOLD_MAX: Duration = Duration::from_mins(15);

/// How long to wait from `now`, at most [`RETRY_AFTER_MAX`]; nothing where the header makes no sense.
pub fn parse(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim_matches([' ', '\t']);
    let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than fit mean longer than the cap.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        http_date(value, now)?.since(now)
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

/// IMF-fixdate, or one of the two forms that are obsolete and must still be understood.
fn http_date(value: &str, now: Timestamp) -> Option<Timestamp> {
    if let Some(at) = civil("%a, %d %b %Y %H:%M:%S GMT", value).or_else(|| civil("%a %b %e %H:%M:%S %Y", value)) {
        return Some(at);
    }
    // `Sunday, 06-Nov-94 08:49:37 GMT`: two digits of a year that is at most fifty years ahead.
    let near = civil("%A, %d-%b-%y %H:%M:%S GMT", value)?;
    let fifty_years = Duration::from_hours(50 * 8766);
    Some(if near > now + fifty_years { near - Duration::from_hours(100 * 8766) } else { near })
}

fn civil(format: &str, value: &str) -> Option<Timestamp> {
    const EPOCH: DateTime = jiff::civil::datetime(1970, 1, 1, 0, 0, 0, 0);
    let at = strtime::parse(format, value).ok()?.to_datetime().ok()?;
    Some(Timestamp::from_millis(at.duration_since(EPOCH).as_secs().saturating_mul(1000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &str, seconds: Option<u64>) {
        // Sunday, 6 November 1994, 08:49:07: thirty seconds before the RFC's own example.
        let now = Timestamp::parse("1994-11-06T08:49:07Z").unwrap();
        assert_eq!(parse(value, now).map(|wait| wait.as_secs()), seconds, "{value:?}");
    }

    #[test]
    fn seconds_and_all_three_forms_of_a_date_are_understood() {
        check("0", Some(0));
        check("120", Some(120));
        check(" 120\t", Some(120));
        check("Sun, 06 Nov 1994 08:49:37 GMT", Some(30));
        check("Sunday, 06-Nov-94 08:49:37 GMT", Some(30));
        check("Sun Nov  6 08:49:37 1994", Some(30));
        check("Mon, 07 Nov 1994 08:49:06 GMT", Some(86_399));
    }

    #[test]
    fn the_past_means_at_once_and_too_far_means_a_day() {
        check("Sun, 06 Nov 1994 08:49:00 GMT", Some(0));
        check("Fri, 31 Dec 9999 23:59:59 GMT", Some(86_400));
        check("1000000000", Some(86_400));
        check("99999999999999999999999999", Some(86_400));
    }

    #[test]
    fn what_makes_no_sense_changes_nothing() {
        for value in [
            "",
            "-1",
            "+5",
            "1.5",
            "1e3",
            "0x10",
            "soon",
            "10 seconds",
            "10, 20",
            "Sun, 06 Nov 1994",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 32 Nov 1994 08:49:37 GMT",
            "1994-11-06T08:49:37Z",
            "٣",
        ] {
            check(value, None);
        }
    }
}
