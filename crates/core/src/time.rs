//! A moment, to the millisecond, and how it is written.
//!
//! There is no `now` here: whoever calls the core says what time it is. Arithmetic
//! stops at the ends of what RFC 3339 can express instead of wrapping or failing.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 9999-12-30T00:00:00.000Z. A day short of the last that can be written, so that every zone can show it.
    pub const MAX: Timestamp = Timestamp(253_402_128_000_000);
    /// 0000-01-02T00:00:00.000Z.
    pub const MIN: Timestamp = Timestamp(-62_167_132_800_000);

    pub const fn from_millis(millis: i64) -> Timestamp {
        if millis > Self::MAX.0 {
            Self::MAX
        } else if millis < Self::MIN.0 {
            Self::MIN
        } else {
            Timestamp(millis)
        }
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since 1970, rounded down: what a signature carries.
    pub const fn as_seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// How long after `earlier` this is; nothing if it is not after.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// RFC 3339 with any offset. Finer than a millisecond is rounded down.
    pub fn parse(text: &str) -> Result<Timestamp, NotATimestamp> {
        // jiff also reads forms that RFC 3339 does not have, such as a bracketed zone or a missing colon.
        if !is_rfc3339_shaped(text.as_bytes()) {
            return Err(NotATimestamp);
        }
        let parsed: Result<jiff::Timestamp, _> = match text.find('.') {
            None => text.parse(),
            // Any number of digits is allowed; what is finer than we keep is cut off.
            Some(point) => {
                let digits = text[point + 1..].bytes().take_while(u8::is_ascii_digit).count();
                format!("{}{}", &text[..point + 1 + digits.min(9)], &text[point + 1 + digits..]).parse()
            }
        };
        let parsed = parsed.map_err(|_| NotATimestamp)?;
        let millis = parsed.as_nanosecond().div_euclid(1_000_000);
        let millis = i64::try_from(millis).map_err(|_| NotATimestamp)?;
        if (Self::MIN.0..=Self::MAX.0).contains(&millis) { Ok(Timestamp(millis)) } else { Err(NotATimestamp) }
    }

    /// RFC 3339 in UTC with milliseconds, as everywhere in our answers.
    pub fn to_rfc3339(self) -> String {
        format!("{:.3}", self.to_jiff())
    }

    pub(crate) fn to_jiff(self) -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(self.0).expect("the range of Timestamp lies inside jiff's")
    }

    pub(crate) fn from_jiff(at: jiff::Timestamp) -> Timestamp {
        Timestamp::from_millis(at.as_millisecond())
    }
}

/// `2026-04-08T10:15:30[.123](Z|±hh:mm)`, with `t` and `z` in either case.
fn is_rfc3339_shaped(text: &[u8]) -> bool {
    let pattern = b"dddd-dd-ddTdd:dd:dd";
    if text.len() <= pattern.len() {
        return false;
    }
    let (head, mut rest) = text.split_at(pattern.len());
    let head_fits = head.iter().zip(pattern).all(|(byte, shape)| match shape {
        b'd' => byte.is_ascii_digit(),
        other => byte.eq_ignore_ascii_case(other),
    });
    if !head_fits {
        return false;
    }
    if let Some(fraction) = rest.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return false;
        }
        rest = &fraction[digits..];
    }
    match rest {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', hour @ .., b':', m1, m2] => {
            matches!(hour, [b'0' | b'1', b'0'..=b'9'] | [b'2', b'0'..=b'3']) && matches!((m1, m2), (b'0'..=b'5', b'0'..=b'9'))
        }
        _ => false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a time in RFC 3339 form before the last days of 9999, such as 2026-04-08T10:15:30Z or 2026-04-08T12:15:30.250+02:00")]
pub struct NotATimestamp;

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({})", self.0)
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;
    fn add(self, duration: Duration) -> Timestamp {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.0.saturating_add(millis))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;
    fn sub(self, duration: Duration) -> Timestamp {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.0.saturating_sub(millis))
    }
}

/// The milliseconds of a duration, for arithmetic that is done in whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_offset_is_read_and_utc_with_milliseconds_is_written() {
        for (text, written) in [
            ("2026-04-08T10:15:30Z", "2026-04-08T10:15:30.000Z"),
            ("2026-04-08t10:15:30.25z", "2026-04-08T10:15:30.250Z"),
            ("2026-04-08T10:15:30.12345678901234567890-23:59", "2026-04-09T10:14:30.123Z"),
            ("2026-04-08T12:15:30.123999+02:00", "2026-04-08T10:15:30.123Z"),
            ("1969-12-31T23:59:59.999-00:30", "1970-01-01T00:29:59.999Z"),
            ("1969-12-31T23:59:59.9999Z", "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::parse(text).unwrap().to_rfc3339(), written, "{text}");
        }
    }

    #[test]
    fn what_is_not_rfc_3339_is_refused() {
        for text in [
            "",
            "2026-04-08",
            "2026-04-08T10:15:30",
            "2026-04-08 10:15:30Z",
            "2026-04-08T10:15Z",
            "2026-04-08T10:15:30+0200",
            "2026-04-08T10:15:30+02",
            "2026-04-08T10:15:30Z[UTC]",
            "2026-04-08T10:15:30.Z",
            "2026-13-08T10:15:30Z",
            "2026-02-29T10:15:30Z",
            "2026-04-08T25:15:30Z",
            "2026-04-08T10:15:30Zx",
            "2026-04-08T10:15:30+24:00",
            "2026-04-08T10:15:30+02:60",
            "+002026-04-08T10:15:30Z",
            "1775643330",
            "２026-04-08T10:15:30Z",
        ] {
            assert!(Timestamp::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        assert_eq!(Timestamp::MAX + Duration::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::MIN - Duration::MAX, Timestamp::MIN);
        assert_eq!(Timestamp::MIN.since(Timestamp::MAX), Duration::ZERO);
        assert_eq!(Timestamp::from_millis(i64::MAX).to_rfc3339(), "9999-12-30T00:00:00.000Z");
        assert_eq!(Timestamp::from_millis(i64::MIN).to_rfc3339(), "0000-01-02T00:00:00.000Z");
    }
}
