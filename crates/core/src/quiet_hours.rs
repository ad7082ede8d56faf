//! Quiet hours: when an endpoint does not want to be called.
//!
//! Windows are wall time in an IANA zone. A window belongs to the day it starts on, may cross
//! midnight, and ends before its last moment. Where a clock change skips a start or an end, the
//! first moment that exists takes its place; where it doubles one, a window starts at the first
//! and ends at the second. Overlapping windows count as their union. One-off windows are plain
//! moments and know no zone.
//!
//! What is held in a window waits; nothing of it is written, and no attempt is used up.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use jiff::civil;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use crate::event::{EventType, TypePattern, TypePatterns};
use crate::text::TextError;
use crate::time::Timestamp;

/// When deliveries of some types are held back.
#[derive(Clone, PartialEq, Debug)]
pub struct QuietHours {
    zone: Zone,
    windows: Vec<Window>,
    maintenance: Vec<Maintenance>,
    applies_to: TypePatterns,
    bypass_event_types: TypePatterns,
    /// The union of `windows` in wall time, as it repeats every week.
    weekly: Vec<WeeklySpan>,
}

/// Whether it is quiet, and until when that is certain. A caller need not ask again before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// `until` is the start of the next window; `None` if there is none.
    Open {
        until: Option<Timestamp>,
    },
    Quiet {
        until: Timestamp,
    },
}

/// One window of wall time, on some days of the week.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub start: TimeOfDay,
    pub end: TimeOfDay,
    pub days: Days,
}

/// A one-off window, from the first moment to before the second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Maintenance {
    pub from: Timestamp,
    pub until: Timestamp,
}

/// A zone's name, and its rules if our zone data has them.
#[derive(Clone, PartialEq, Debug)]
struct Zone {
    name: String,
    rules: Option<TimeZone>,
}

/// More windows than this are a calendar.
pub const WINDOWS_MAX: usize = 100;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QuietHoursError {
    #[error("`{name}` is not an IANA time zone{}", hint.as_ref().map(|hint| format!("; did you mean `{hint}`?")).unwrap_or_default())]
    UnknownZone { name: String, hint: Option<String> },
    #[error("at most 100 windows")]
    TooManyWindows,
    #[error("window {number} starts when it ends; to hold everything, pause the endpoint")]
    EmptyWindow { number: usize },
    #[error("the windows cover the whole week, so nothing would ever be delivered; to hold everything, pause the endpoint")]
    NeverOpens,
    #[error("maintenance window {number} does not end after it starts")]
    EmptyMaintenance { number: usize },
    #[error("`{pattern}` is in applies_to and in bypass_event_types")]
    HeldAndExempt { pattern: TypePattern },
}

impl QuietHours {
    pub fn new(
        zone: &str,
        windows: Vec<Window>,
        maintenance: Vec<Maintenance>,
        applies_to: TypePatterns,
        bypass_event_types: TypePatterns,
    ) -> Result<QuietHours, QuietHoursError> {
        let schedule = QuietHours::stored(zone, windows, maintenance, applies_to, bypass_event_types)?;
        match schedule.unknown_zone() {
            Some(name) => Err(QuietHoursError::UnknownZone { name: name.to_owned(), hint: zone_hint(name) }),
            None => Ok(schedule),
        }
    }

    /// The same for what is remembered. A zone that was known once and is not any more does not stop deliveries:
    /// its weekly windows are open until somebody looks ([`QuietHours::unknown_zone`]).
    pub fn stored(
        zone: &str,
        windows: Vec<Window>,
        maintenance: Vec<Maintenance>,
        applies_to: TypePatterns,
        bypass_event_types: TypePatterns,
    ) -> Result<QuietHours, QuietHoursError> {
        if windows.len() > WINDOWS_MAX || maintenance.len() > WINDOWS_MAX {
            return Err(QuietHoursError::TooManyWindows);
        }
        if let Some(at) = windows.iter().position(|window| window.start == window.end) {
            return Err(QuietHoursError::EmptyWindow { number: at + 1 });
        }
        if let Some(at) = maintenance.iter().position(|window| window.until <= window.from) {
            return Err(QuietHoursError::EmptyMaintenance { number: at + 1 });
        }
        if let Some(pattern) = applies_to.shared_with(&bypass_event_types) {
            return Err(QuietHoursError::HeldAndExempt { pattern: pattern.clone() });
        }
        let weekly = weekly_union(&windows).ok_or(QuietHoursError::NeverOpens)?;
        let zone = Zone { name: zone.to_owned(), rules: zone_rules(zone) };
        Ok(QuietHours { zone, windows, maintenance, applies_to, bypass_event_types, weekly })
    }

    pub fn zone(&self) -> &str {
        &self.zone.name
    }

    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    pub fn maintenance(&self) -> &[Maintenance] {
        &self.maintenance
    }

    pub fn applies_to(&self) -> &TypePatterns {
        &self.applies_to
    }

    pub fn bypass_event_types(&self) -> &TypePatterns {
        &self.bypass_event_types
    }

    /// The zone's name, if our zone data does not have it. Worth a warning.
    pub fn unknown_zone(&self) -> Option<&str> {
        self.zone.rules.is_none().then_some(self.zone.name.as_str())
    }

    /// Whether events of this type wait while it is quiet. A priority type never does.
    pub fn holds(&self, event_type: &EventType, is_priority: bool) -> bool {
        !is_priority && !self.bypass_event_types.covers(event_type) && self.applies_to.covers_or_is_empty(event_type)
    }

    pub fn at(&self, now: Timestamp) -> Phase {
        let mut until = now;
        // One window may end where the next begins. Each step ends later than the last, and after the last of the
        // maintenance windows the week has an opening, so this ends; the bound only guards that argument.
        for _ in 0..1000 {
            match self.end_of_what_covers(until) {
                Some(end) => until = end,
                None => break,
            }
        }
        if now < until { Phase::Quiet { until } } else { Phase::Open { until: self.next_start(now) } }
    }

    /// The latest end of the windows that cover this moment.
    fn end_of_what_covers(&self, at: Timestamp) -> Option<Timestamp> {
        let one_off = self.maintenance.iter().filter(|window| window.from <= at && at < window.until).map(|window| window.until);
        let weekly = self.zone.rules.iter().flat_map(|rules| {
            let wall = WallMinute::of(at, rules);
            occurrences(&self.weekly, wall.plus(-WALL_SLACK), wall.plus(WALL_SLACK))
                .filter_map(|occurrence| occurrence.moments(rules))
                .filter(move |(start, end)| *start <= at && at < *end)
                .map(|(_, end)| end)
        });
        one_off.chain(weekly).max()
    }

    fn next_start(&self, now: Timestamp) -> Option<Timestamp> {
        let one_off = self.maintenance.iter().map(|window| window.from).filter(|from| now < *from);
        let weekly = self.zone.rules.iter().filter_map(|rules| {
            let wall = WallMinute::of(now, rules);
            // A clock change can swallow a week's only window, but not two in a row.
            occurrences(&self.weekly, wall.plus(-WALL_SLACK), wall.plus(3 * WEEK))
                .filter_map(|occurrence| occurrence.moments(rules))
                .map(|(start, _)| start)
                .find(|start| now < *start)
        });
        one_off.chain(weekly).min()
    }
}

/// `HH:MM`, to the minute.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeOfDay(u16);

impl TimeOfDay {
    pub fn parse(text: &str) -> Result<TimeOfDay, TextError> {
        const RULE: TextError = TextError { rule: "a time of day is HH:MM, from 00:00 to 23:59" };
        let [h1, h2, b':', m1, m2] = text.as_bytes() else { return Err(RULE) };
        if ![h1, h2, m1, m2].iter().all(|byte| byte.is_ascii_digit()) {
            return Err(RULE);
        }
        let number = |tens: &u8, ones: &u8| u16::from(tens - b'0') * 10 + u16::from(ones - b'0');
        let (hour, minute) = (number(h1, h2), number(m1, m2));
        if hour < 24 && minute < 60 { Ok(TimeOfDay(hour * 60 + minute)) } else { Err(RULE) }
    }

    pub fn minute_of_day(self) -> u16 {
        self.0
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl fmt::Debug for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Days of the week, at least one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Days(u8);

impl Days {
    pub const ALL: Days = Days(0b111_1111);
    pub const NAMES: [&'static str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Days, TextError> {
        let mut days = 0u8;
        for name in names {
            let at = Days::NAMES.iter().position(|day| *day == name);
            let bit = 1 << at.ok_or(TextError { rule: "a day is one of mon, tue, wed, thu, fri, sat, sun" })?;
            if days & bit != 0 {
                return Err(TextError { rule: "a day is named twice" });
            }
            days |= bit;
        }
        if days == 0 {
            return Err(TextError { rule: "at least one day; leave `days` out for every day" });
        }
        Ok(Days(days))
    }

    /// Monday is 0.
    pub fn has(self, day: usize) -> bool {
        self.0 >> day & 1 == 1
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Days::NAMES.into_iter().enumerate().filter(move |(day, _)| self.has(*day)).map(|(_, name)| name)
    }
}

impl fmt::Debug for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

const DAY: i64 = 24 * 60;
const WEEK: i64 = 7 * DAY;
/// How far wall time can be from where a window's moments put it: a whole day once vanished in the Pacific.
const WALL_SLACK: i64 = 26 * 60;

/// A stretch of wall time in every week. `start` counts minutes from Monday 00:00; it may run into the next week.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct WeeklySpan {
    start: i64,
    length: i64,
}

/// The windows as separate stretches of the week; `None` if they leave nothing.
///
/// Joining in wall time is exact: the first moment of a wall time, and the last one, both rise with it, so that two
/// windows which touch on the wall touch in time, whatever the clocks do.
fn weekly_union(windows: &[Window]) -> Option<Vec<WeeklySpan>> {
    let minutes_of_week = usize::try_from(WEEK).expect("a small positive number");
    let mut is_quiet = vec![false; minutes_of_week];
    for window in windows {
        let start = i64::from(window.start.minute_of_day());
        let length = (i64::from(window.end.minute_of_day()) - start).rem_euclid(DAY);
        for day in (0..7).filter(|day| window.days.has(*day)) {
            let from = usize::try_from(start).expect("a minute of the day") + day * usize::try_from(DAY).expect("positive");
            for minute in 0..usize::try_from(length).expect("less than a day") {
                is_quiet[(from + minute) % minutes_of_week] = true;
            }
        }
    }
    let opening = is_quiet.iter().position(|quiet| !quiet)?;
    let mut spans: Vec<WeeklySpan> = Vec::new();
    let mut inside = false;
    for step in 0..minutes_of_week {
        let minute = (opening + step) % minutes_of_week;
        match (is_quiet[minute], inside) {
            (true, true) => spans.last_mut().expect("inside one").length += 1,
            (true, false) => spans.push(WeeklySpan { start: i64::try_from(minute).expect("of a week"), length: 1 }),
            (false, _) => {}
        }
        inside = is_quiet[minute];
    }
    spans.sort_by_key(|span| span.start);
    Some(spans)
}

/// A minute of wall time: minutes since Monday, 5 January 1970, 00:00, as the clock on the wall counts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct WallMinute(i64);

impl WallMinute {
    const ORIGIN: civil::Date = civil::date(1970, 1, 5);

    fn of(at: Timestamp, rules: &TimeZone) -> WallMinute {
        let wall = rules.to_datetime(at.to_jiff());
        let days = wall.date().duration_since(Self::ORIGIN).as_hours() / 24;
        WallMinute(days * DAY + i64::from(wall.hour()) * 60 + i64::from(wall.minute()))
    }

    fn plus(self, minutes: i64) -> WallMinute {
        WallMinute(self.0 + minutes)
    }

    /// `None` beyond the end of the calendar.
    fn to_civil(self) -> Option<civil::DateTime> {
        let date = Self::ORIGIN.checked_add(jiff::SignedDuration::from_hours(self.0.div_euclid(DAY) * 24)).ok()?;
        let minute = self.0.rem_euclid(DAY);
        let part = |value: i64| i8::try_from(value).expect("less than sixty");
        Some(date.at(part(minute / 60), part(minute % 60), 0, 0))
    }
}

/// One window on one date.
struct Occurrence {
    start: WallMinute,
    end: WallMinute,
}

impl Occurrence {
    /// From the first moment to before the second; `None` where a clock change leaves nothing of it.
    fn moments(&self, rules: &TimeZone) -> Option<(Timestamp, Timestamp)> {
        let start = moment(self.start.to_civil()?, rules, Edge::Start)?;
        let end = moment(self.end.to_civil()?, rules, Edge::End)?;
        (start < end).then_some((start, end))
    }
}

/// The occurrences that lie at least partly between two wall times, in order of their start.
fn occurrences(weekly: &[WeeklySpan], from: WallMinute, to: WallMinute) -> impl Iterator<Item = Occurrence> + use<'_> {
    // A span may have begun in the week before.
    let first_week = from.0.div_euclid(WEEK) - 1;
    let last_week = to.0.div_euclid(WEEK);
    (first_week..=last_week)
        .flat_map(move |week| weekly.iter().map(move |span| (week * WEEK + span.start, span.length)))
        .map(|(start, length)| Occurrence { start: WallMinute(start), end: WallMinute(start + length) })
        .filter(move |occurrence| occurrence.start <= to && from <= occurrence.end)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Edge {
    Start,
    End,
}

/// The moment at which the clock on the wall shows this time.
fn moment(wall: civil::DateTime, rules: &TimeZone, edge: Edge) -> Option<Timestamp> {
    let at = match rules.to_ambiguous_timestamp(wall).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(wall).ok()?,
        // Shown twice: a start is the first, an end the second.
        AmbiguousOffset::Fold { before, after } => match edge {
            Edge::Start => before.to_timestamp(wall).ok()?,
            Edge::End => after.to_timestamp(wall).ok()?,
        },
        // Never shown: the first moment after the jump. Read by the old offset, the time lies at or after it.
        AmbiguousOffset::Gap { before, .. } => {
            let after_the_jump = before.to_timestamp(wall).ok()? + Duration::from_secs(1);
            rules.preceding(after_the_jump).next()?.timestamp()
        }
    };
    Some(Timestamp::from_jiff(at))
}

/// The zone data that is compiled in: the same on every machine, and no file is read.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

fn zone_rules(name: &str) -> Option<TimeZone> {
    let rules = ZONES.get(name).ok()?;
    // Look-up ignores case; a name has one spelling. "Etc/Unknown" is jiff's word for not knowing.
    (rules.iana_name() == Some(name) && !rules.is_unknown()).then_some(rules)
}

/// The right spelling of a name that is wrong only in its capitals.
fn zone_hint(name: &str) -> Option<String> {
    let rules = ZONES.get(name).ok()?;
    rules.iana_name().filter(|_| !rules.is_unknown()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use std::fmt::Write;

    fn time(text: &str) -> TimeOfDay {
        TimeOfDay::parse(text).unwrap()
    }

    /// `22:00-06:00` or `22:00-06:00@mon,tue`, separated by spaces.
    fn windows(text: &str) -> Vec<Window> {
        text.split_whitespace()
            .map(|word| {
                let (span, days) =
                    word.split_once('@').map_or((word, Days::ALL), |(span, days)| (span, Days::parse(days.split(',')).unwrap()));
                let (start, end) = span.split_once('-').unwrap();
                Window { start: time(start), end: time(end), days }
            })
            .collect()
    }

    fn schedule(zone: &str, text: &str) -> Result<QuietHours, QuietHoursError> {
        QuietHours::new(zone, windows(text), vec![], TypePatterns::default(), TypePatterns::default())
    }

    /// Walks from one change of phase to the next and says when they were.
    fn check(zone: &str, text: &str, from: &str, changes: usize, expected: &Expect) {
        let schedule = schedule(zone, text).unwrap();
        let mut now = Timestamp::parse(from).unwrap();
        let mut trace = String::new();
        for _ in 0..changes {
            let phase = schedule.at(now);
            let (word, until) = match phase {
                Phase::Open { until } => ("open ", until),
                Phase::Quiet { until } => ("quiet", Some(until)),
            };
            let Some(until) = until else {
                writeln!(trace, "{word} for ever").unwrap();
                break;
            };
            let rules = zone_rules(zone).unwrap();
            writeln!(trace, "{word} until {} {}", until.to_rfc3339(), rules.to_datetime(until.to_jiff())).unwrap();
            assert_eq!(schedule.at(until - Duration::from_millis(1)), phase, "the same until just before");
            now = until;
        }
        expected.assert_eq(&trace);
    }

    #[test]
    fn a_window_across_midnight_belongs_to_the_day_it_starts_on() {
        check(
            "America/Chicago",
            "22:00-06:00@mon,tue",
            "2026-06-01T00:00:00Z",
            6,
            &expect![[r"
            open  until 2026-06-02T03:00:00.000Z 2026-06-01T22:00:00
            quiet until 2026-06-02T11:00:00.000Z 2026-06-02T06:00:00
            open  until 2026-06-03T03:00:00.000Z 2026-06-02T22:00:00
            quiet until 2026-06-03T11:00:00.000Z 2026-06-03T06:00:00
            open  until 2026-06-09T03:00:00.000Z 2026-06-08T22:00:00
            quiet until 2026-06-09T11:00:00.000Z 2026-06-09T06:00:00
        "]],
        );
    }

    #[test]
    fn a_start_that_spring_skips_moves_to_the_jump_and_so_does_an_end() {
        // In New York on 8 March 2026 the clock goes from 02:00 to 03:00.
        check(
            "America/New_York",
            "02:30-05:00",
            "2026-03-08T05:00:00Z",
            2,
            &expect![[r"
            open  until 2026-03-08T07:00:00.000Z 2026-03-08T03:00:00
            quiet until 2026-03-08T09:00:00.000Z 2026-03-08T05:00:00
        "]],
        );
        check(
            "America/New_York",
            "01:00-02:30",
            "2026-03-08T05:00:00Z",
            2,
            &expect![[r"
            open  until 2026-03-08T06:00:00.000Z 2026-03-08T01:00:00
            quiet until 2026-03-08T07:00:00.000Z 2026-03-08T03:00:00
        "]],
        );
        // A window that lies wholly in what is skipped does not happen that day.
        check(
            "America/New_York",
            "02:10-02:50",
            "2026-03-08T05:00:00Z",
            1,
            &expect![[r"
            open  until 2026-03-09T06:10:00.000Z 2026-03-09T02:10:00
        "]],
        );
    }

    #[test]
    fn autumn_doubles_an_hour_and_a_window_takes_both() {
        // In Berlin on 25 October 2026 the hour from 02:00 to 03:00 comes twice.
        check(
            "Europe/Berlin",
            "02:15-02:45",
            "2026-10-24T22:00:00Z",
            2,
            &expect![[r"
            open  until 2026-10-25T00:15:00.000Z 2026-10-25T02:15:00
            quiet until 2026-10-25T01:45:00.000Z 2026-10-25T02:45:00
        "]],
        );
        check(
            "Europe/Berlin",
            "22:00-02:30",
            "2026-10-24T22:00:00Z",
            1,
            &expect![[r"
            quiet until 2026-10-25T01:30:00.000Z 2026-10-25T02:30:00
        "]],
        );
    }

    #[test]
    fn windows_that_overlap_or_touch_are_one() {
        check(
            "UTC",
            "22:00-02:00 01:00-03:00 03:00-04:00 12:00-13:00",
            "2026-06-01T00:00:00Z",
            4,
            &expect![[r"
            quiet until 2026-06-01T04:00:00.000Z 2026-06-01T04:00:00
            open  until 2026-06-01T12:00:00.000Z 2026-06-01T12:00:00
            quiet until 2026-06-01T13:00:00.000Z 2026-06-01T13:00:00
            open  until 2026-06-01T22:00:00.000Z 2026-06-01T22:00:00
        "]],
        );
    }

    #[test]
    fn a_weekend_is_one_long_window() {
        check(
            "Asia/Tokyo",
            "00:00-23:59@sat,sun 23:59-00:00@sat,sun",
            "2026-06-05T00:00:00Z",
            2,
            &expect![[r"
            open  until 2026-06-05T15:00:00.000Z 2026-06-06T00:00:00
            quiet until 2026-06-07T15:00:00.000Z 2026-06-08T00:00:00
        "]],
        );
    }

    #[test]
    fn maintenance_joins_the_weekly_windows() {
        let at = |text: &str| Timestamp::parse(text).unwrap();
        let maintenance = vec![Maintenance { from: at("2026-06-01T05:30:00Z"), until: at("2026-06-01T07:00:00Z") }];
        let schedule =
            QuietHours::new("UTC", windows("22:00-06:00"), maintenance, TypePatterns::default(), TypePatterns::default()).unwrap();
        assert_eq!(schedule.at(at("2026-06-01T01:00:00Z")), Phase::Quiet { until: at("2026-06-01T07:00:00Z") });
        assert_eq!(schedule.at(at("2026-06-01T07:00:00Z")), Phase::Open { until: Some(at("2026-06-01T22:00:00Z")) });
        let only =
            QuietHours::new("UTC", vec![], schedule.maintenance().to_vec(), TypePatterns::default(), TypePatterns::default())
                .unwrap();
        assert_eq!(only.at(at("2026-06-01T00:00:00Z")), Phase::Open { until: Some(at("2026-06-01T05:30:00Z")) });
        assert_eq!(only.at(at("2026-06-01T08:00:00Z")), Phase::Open { until: None });
    }

    #[test]
    fn a_schedule_that_would_never_open_is_refused_when_it_is_made() {
        assert_eq!(schedule("UTC", "00:00-12:00 12:00-00:00"), Err(QuietHoursError::NeverOpens));
        assert_eq!(schedule("UTC", "06:00-05:59 05:00-07:00"), Err(QuietHoursError::NeverOpens));
        assert!(schedule("UTC", "06:00-05:59").is_ok(), "one minute a day is an opening");
        assert_eq!(schedule("UTC", "06:00-06:00"), Err(QuietHoursError::EmptyWindow { number: 1 }));
        assert_eq!(schedule("UTC", &"00:00-01:00 ".repeat(101)), Err(QuietHoursError::TooManyWindows));
    }

    #[test]
    fn zones_are_known_by_their_exact_name() {
        for good in
            ["UTC", "Etc/UTC", "America/Argentina/Buenos_Aires", "Asia/Kolkata", "Asia/Calcutta", "Pacific/Chatham", "EST5EDT"]
        {
            assert!(schedule(good, "22:00-06:00").is_ok(), "{good}");
        }
        for bad in
            ["", "utc", "europe/berlin", "Berlin", "+02:00", "UTC+2", "Etc/Unknown", "Europe/Berlin ", "../etc/passwd", "CEST"]
        {
            assert!(matches!(schedule(bad, "22:00-06:00"), Err(QuietHoursError::UnknownZone { .. })), "{bad}");
        }
        assert_eq!(
            schedule("europe/berlin", "22:00-06:00").unwrap_err().to_string(),
            "`europe/berlin` is not an IANA time zone; did you mean `Europe/Berlin`?"
        );
    }

    #[test]
    fn a_stored_zone_that_is_gone_never_blocks() {
        let stored =
            QuietHours::stored("Mars/Olympus", windows("00:00-23:00"), vec![], TypePatterns::default(), TypePatterns::default())
                .unwrap();
        assert_eq!(stored.unknown_zone(), Some("Mars/Olympus"));
        assert_eq!(stored.at(Timestamp::from_millis(0)), Phase::Open { until: None });
    }

    #[test]
    fn some_types_are_held_and_others_are_not() {
        let patterns = |list: &[&str]| TypePatterns::parse(list.iter().copied()).unwrap();
        let check = |applies_to: &[&str], bypass: &[&str], event_type: &str, is_priority: bool, held: bool| {
            let schedule = QuietHours::new("UTC", windows("22:00-06:00"), vec![], patterns(applies_to), patterns(bypass)).unwrap();
            assert_eq!(
                schedule.holds(&EventType::parse(event_type).unwrap(), is_priority),
                held,
                "{applies_to:?} {bypass:?} {event_type}"
            );
        };
        check(&[], &[], "invoice.paid", false, true);
        check(&[], &[], "invoice.paid", true, false);
        check(&[], &["payment.failed"], "payment.failed", false, false);
        check(&["invoice.*"], &[], "invoice.paid", false, true);
        check(&["invoice.*"], &[], "payment.failed", false, false);
        check(&["invoice.*"], &["invoice.paid"], "invoice.paid", false, false);
        let both = QuietHours::new("UTC", windows("22:00-06:00"), vec![], patterns(&["a"]), patterns(&["b", "a"]));
        assert_eq!(both.unwrap_err().to_string(), "`a` is in applies_to and in bypass_event_types");
    }

    #[test]
    fn times_and_days_have_one_spelling() {
        for bad in ["", "6:00", "24:00", "12:60", "12:00:00", "12.00", "-1:00", "１2:00"] {
            assert!(TimeOfDay::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(TimeOfDay::parse("23:59").unwrap().to_string(), "23:59");
        for bad in [&[][..], &["mon", "mon"], &["Mon"], &["monday"]] {
            assert!(Days::parse(bad.iter().copied()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_ends_of_time_are_answered_too() {
        let schedule = schedule("Pacific/Kiritimati", "22:00-06:00").unwrap();
        for now in [Timestamp::MIN, Timestamp::MAX] {
            let _ = schedule.at(now);
        }
    }
}
