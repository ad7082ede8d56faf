//! Wall time, written from scratch: the checker does not trust the server's own calendar.

/// Zones whose distance from UTC does not change, in minutes.
pub const ZONES: [(&str, i64); 4] = [("UTC", 0), ("Asia/Kolkata", 330), ("Asia/Kathmandu", 345), ("America/Phoenix", -420)];

const MINUTES_PER_DAY: i64 = 1440;

/// `HH:MM` in a zone, so many minutes after 1970 in UTC.
pub fn clock_face(minutes: u64, offset_minutes: i64) -> String {
    let minute = (i64::try_from(minutes).expect("not that far ahead") + offset_minutes).rem_euclid(MINUTES_PER_DAY);
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

/// RFC 3339 in UTC, of milliseconds since 1970.
pub fn rfc3339(millis: u64) -> String {
    let (seconds, days) = (millis / 1000, millis / 86_400_000);
    let (mut year, mut left) = (1970, days);
    while left >= days_of_year(year) {
        left -= days_of_year(year);
        year += 1;
    }
    let mut month = 1;
    while left >= days_of_month(year, month) {
        left -= days_of_month(year, month);
        month += 1;
    }
    let (day, second) = (left + 1, seconds % 86_400);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}.{:03}Z", second % 60, millis % 1000)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_123, "2000-02-29T00:00:00.123Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_767_225_600_000, "2026-01-01T00:00:00.000Z"),
            (4_102_444_800_000, "2100-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(millis), text);
        }
    }

    #[test]
    fn a_clock_shows_the_time_of_its_zone() {
        let noon = 29_000_000 / MINUTES_PER_DAY.unsigned_abs() * MINUTES_PER_DAY.unsigned_abs() + 720;
        let faces: Vec<String> = ZONES.iter().map(|(_, offset)| clock_face(noon, *offset)).collect();
        assert_eq!(faces, ["12:00", "17:30", "17:45", "05:00"]);
        assert_eq!(clock_face(noon + 720, -420), "17:00");
        assert_eq!(clock_face(noon + 360, 330), "23:30");
        assert_eq!(clock_face(noon + 400, 330), "00:10");
    }
}
